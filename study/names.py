"""Names that have changed since runs were kept: what an old name in a kept line is called today.

Kept files stay as they were written; `today` reads them. Whoever renames a flag adds a line to FLAGS.

Test: pytest tests/test_study.py
"""

FLAGS = {"average": "aggregation"}  # old name in the `flags` of a log's config row -> today's


def today(row):
    """A row of a log, or a copy of it whose flags have today's names.

    >>> today({"kind": "config", "flags": {"average": "prompt", "k": 8}})
    {'kind': 'config', 'flags': {'aggregation': 'prompt', 'k': 8}}
    """
    if not FLAGS.keys() & row.get("flags", {}).keys():
        return row
    return row | {"flags": {FLAGS.get(name, name): value for name, value in row["flags"].items()}}
