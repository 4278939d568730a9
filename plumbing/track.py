"""--track trackio|wandb: the numbers of the log, shown by a tracker too. Both have `init`, `log` and `finish`.

Test: pytest tests/test_track.py
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

TRACKERS = ("trackio", "wandb")
PROJECT = "scalerl"


def check(name):
    """Raise ValueError if the tracker is not installed."""
    if find_spec(name) is None:
        raise ValueError(f"--track {name}: expected the package {name}, found none; type: pip install {name}")


def observer(name, out):
    """An observer of the log that hands its numbers to the tracker; the run is called as its folder `out`."""
    tracker = import_module(name)

    def observe(row):
        if row["kind"] == "config":
            tracker.init(project=PROJECT, name=Path(out).name, config=row["flags"])
        elif row["kind"] == "end":
            tracker.finish()
        elif row["kind"] != "fit":
            tracker.log(numbers(row), step=row["step"])

    return observe


def numbers(row):
    """What of a row of the log is a number, under kind/name and kind/name/inner.

    >>> numbers({"kind": "eval", "step": 3, "pass_rate": 0.5, "tasks": {"math": {"pass_rate": 0.25}}, "prompts": [1]})
    {'eval/step': 3, 'eval/pass_rate': 0.5, 'eval/tasks/math/pass_rate': 0.25}
    """
    found = {}
    for name, value in row.items():
        inner = numbers(value | {"kind": name}) if isinstance(value, dict) else {}
        found |= inner if isinstance(value, dict) else {name: value} if isinstance(value, (int, float)) else {}
    return {f"{row['kind']}/{name}": value for name, value in found.items()}
