"""Reads the table that is in a log, whatever its form: columns of cells, which `Table.numbers` takes as numbers.

Three forms are told apart by what stands in the file, not by its name: JSON (objects one after the other, or in lists),
tables (cells between tabs, semicolons, commas or blanks) and consoles (lines with name: value or name=value). Each may
be packed (.gz).
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections import defaultdict
from itertools import islice
from pathlib import Path

import numpy as np

import fit
from plumbing.setup.typed import beside

MISSING = {"", "-", "None", "none", "NULL", "null", "NA", "N/A", "n/a"}  # cells without a value
COUNTERS = "iter(?:ation)?s?|updates?|rollout(?:_id|_step)?|batch|generation"  # names that count steps
NUMBER = r"[-+]?(?:(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?%?|-?inf|nan"
WORD = r"[^\W\d][\w./@+-]{0,200}"
PAIR = re.compile(  # reward: 0.5, reward=3/4, 'reward': '0.5'; Step 12
    rf"(?<![\w./@+-])(?:({WORD}(?: {WORD}){{0,2}})['\"]?\s*[:=]\s*['\"]?"
    rf"(?:[\w.]+\()?((?:{NUMBER})(?:/\d+)?)(?![\w:]|[.,]\d)"
    rf"|((?:global |train )?(?:step|epoch|episode|{COUNTERS})) #?(\d+))",
    re.IGNORECASE,
)
HEAD = 20_000  # characters that are looked at to tell the form
FORMS = "expected JSON, a table, or lines with name: value; write a CSV with the columns step and pass_rate"


class Table:
    """Columns of a file: name -> {row: value}, for the rows that have one."""

    def __init__(self):
        self.columns = defaultdict(dict)
        self.length = 0
        self.notes = []  # what was left out
        self.parsed = {}  # columns as `numbers`

    def add(self, pairs):
        """Append a row of (name, value); None and "" are no value."""
        for name, value in pairs:
            if value is not None and value != "":
                self.columns[name][self.length] = value
        self.length += 1

    def texts(self, name):
        """The column as a list, None where it has no value."""
        return list(map(self.columns.get(name, {}).get, range(self.length)))

    def numbers(self, name):
        """The column as (length,) floats, nan where it has no value. Raises BadInput for a cell that is no number."""
        if name not in self.parsed:
            found = np.full(self.length, np.nan)
            column = self.columns.get(name, {})
            try:
                found[list(column)] = list(map(float, column.values()))
            except (ValueError, TypeError, OverflowError):
                found[list(column)] = [_number(name, str(cell)) for cell in column.values()]
            self.parsed[name] = found
        return self.parsed[name].copy()


def _number(name, cell):
    """A cell as a float: 10.5%, 3/4 and 500,000 are numbers too; 0,5 is none."""
    above, _, below = cell.rstrip("%").partition("/")
    if is_number(above):  # else its commas divide no thousands
        above = above.replace(",", "")
    try:
        return float(above) / float(below or 1) / (100 if cell.endswith("%") else 1)
    except ValueError:
        likely = "a decimal point in place of the comma" if re.fullmatch(r"-?\d+,\d+", cell) else "another column"
        raise fit.BadInput(f"{name} holds {cell!r:.40}, expected a number; {likely}?") from None


def is_number(text):
    """Whether a cell holds a number."""
    return bool(re.fullmatch(NUMBER, text, re.IGNORECASE))


# ---- Forms: each reader takes a text and fills a Table ----


def _json(table, text):
    """Objects one after the other, as in JSONL; or one that holds lists of them; or what is left of a text cut off.

    What is no complete object, as a crash or a full disk leaves it, is left out, unless that is most of it.
    """
    rows, bad = [], []
    place = 0
    decode = json.JSONDecoder().raw_decode
    while (start := text.find("{", place)) >= 0 and len(bad) < len(rows) + 1000:  # else it is hopeless
        bad += [place] * bool(text[place:start].strip("[], \r\n\t"))
        try:
            row, place = decode(text, start)
            rows.append(row)
        except (ValueError, RecursionError):
            bad.append(start)
            place = start + 1
    bad += [place] * bool(text[place:].strip("[], \r\n\t"))
    if len(bad) > len(rows):
        raise fit.BadInput(f"expected JSON objects, got {text[bad[0] :].strip()[:40]!r}")
    for row in [*_objects(rows[0])] or rows if len(rows) == 1 else rows:
        table.add(_flat(row))
    if bad:
        lines = dict.fromkeys(str(text.count("\n", 0, place + 1) + 1) for place in bad[:9])
        table.notes.append(f"left out what is no row, in line {', '.join(lines)}{', …' * (len(bad) > 9)}")


def _objects(value):
    """The rows in a JSON object: the objects in its lists, and the cells of its longest lists, which are columns."""
    lists = {name: x for name, x in value.items() if isinstance(x, list) and len(x) > 1}
    longest = max(map(len, lists.values()), default=0)
    columns = {name: x for name, x in lists.items() if len(x) == longest and not isinstance(x[0], dict)}
    yield from (dict(zip(columns, row)) for row in zip(*columns.values()) if len(columns) > 1)
    yield from (x for rows in lists.values() for x in rows if isinstance(x, dict))
    yield from (x for inner in value.values() if isinstance(inner, dict) for x in _objects(inner))


def _flat(row, path=""):
    """(name, value) of all that an object holds; what is in an inner object is named like tasks.math."""
    for name, value in row.items():
        yield path + name, value
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")


def _console(table, text):
    """Lines that hold name: value."""
    for line in io.StringIO(re.sub(r"\x1b\[[\d;]*m", "", text), newline=""):
        if pairs := [(name or counter, value or count) for name, value, counter, count in PAIR.findall(line)]:
            table.add(pairs)


def _rows(text, mark):
    """The cells of each line that is not empty, without comments."""
    lines = (line for line in io.StringIO(text, newline="") if not line.startswith("#"))
    rows = csv.reader(lines, delimiter=mark, skipinitialspace=True)
    return ([cell.strip() for cell in row] for row in rows if row)


def _layout(head):
    """(mark between cells, index of the first row) of a table at the start of a log, or None.

    It begins with names. The next row holds a number, and most rows have as many cells.
    """
    for mark in "\t;, ":
        rows = [*_rows(head, mark)]
        for i, (row, below) in enumerate(zip(rows, rows[1:])):
            like = len(below) == len(row) > 1 and not any(map(is_number, row)) and any(map(is_number, below))
            if like and 2 * sum(len(x) == len(row) for x in rows[i:]) > len(rows[i:]):
                return mark, i
    return None


def _delimited(table, text, mark, skipped):
    """A header, then one row a line; a header in between is left out."""
    rows = islice(_rows(text, mark), skipped, None)
    header = next(rows)
    if twice := [name for name in header if name and header.count(name) > 1]:
        raise fit.BadInput(f"the column {twice[0]:.40} occurs twice; rename one")
    for row in rows:
        if len(row) > len(header):
            raise fit.BadInput(f"row {table.length + 1} has {len(row)} cells, the header {len(header)}")
        if row != header and (len(row) == len(header) or mark != " "):
            table.add((name, x) for name, x in zip(header, row) if x not in MISSING)


def _decoded(data):
    """The text of bytes, which may be packed."""
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return data.decode("utf-8-sig", errors="replace")


def read_table(path):
    """The Table of a file; BadInput for what cannot be read, OSError for what cannot be opened."""
    path = Path(path)
    events = "tfevents" in path.name or not path.exists() and any(path.parent.glob("*tfevents*"))
    if events or path.suffix in (".parquet", ".xlsx"):
        raise fit.BadInput(f"{path}: event files, Parquet and Excel are not read; export the columns as CSV")
    if not path.exists():
        raise FileNotFoundError(f"{path}: No such file; {beside(path)}")
    if not path.is_file():
        raise fit.BadInput(f"{path} is not a file")
    table = Table()
    try:
        text = _decoded(path.read_bytes())
        lines = [line for line in text[:HEAD].splitlines() if line.strip()]
        objects = [line for line in lines if re.match(r"\{(?!').*\}\s*$", line)]
        if re.match(r'\s*(\[\s*)?\{\s*"', text) or 2 * len(objects) > len(lines):
            _json(table, text)
        elif layout := _layout(text[:HEAD]):
            _delimited(table, text, *layout)
        else:
            _console(table, text)
        if not table.columns:
            raise fit.BadInput(f"found no column; {FORMS}")
    except (ValueError, csv.Error, RecursionError, EOFError, zlib.error) as error:  # no text, JSON, CSV or gzip
        raise fit.BadInput(f"{path}: {str(error) or 'nested too deep'}".replace("\n", " ")) from None
    return table
