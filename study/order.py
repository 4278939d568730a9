"""Makes the runs of regimes.py, grid.py and axes.py, one after the other in this process, in the order of ORDER.

    python study/order.py                  makes what is missing under results/exact and results/tiny
    python study/order.py --into FOLDER    the same in another folder
    python study/order.py --list           says what is there and what is not, and the CPU seconds that a run took
    python study/order.py --parts grid     only the parts whose name begins so

May be stopped, continued and killed at any time, and started again: a run that was interrupted is made anew, at most
one is lost. Runs are in virtual time, so that neither the machine's load nor a pause changes them. A second process on
the same folder is refused.

Why this order: first what shows something whole, a heat map of all losses from two seeds at lr x1 and x2; then the
first seed of each configuration at exact k = 1; then the rest of the two, in turns; then what is asked of fewer runs.

Test: pytest tests/test_study_runs.py
"""

import argparse
import fcntl
import json
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from study import axes, grid, regimes, warm  # noqa: E402
from study.run import reduced  # noqa: E402


def make_exact(train, what, folder):
    """Make a run of the embedded task and keep its log, whole or not at all. what: (regime, name, seed)"""
    regime, name, seed = what
    began = time.process_time()
    rows = reduced(warm.run(train, [*regimes.flags(regime, name), "--seed", str(seed)]))
    rows[0]["rounding"] = warm.rounding()
    rows[-1]["seconds"] = round(time.process_time() - began, 1)  # of CPU: those of the clock depend on pauses
    place = regimes.place(folder, regime, name, seed)
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_suffix(".part")
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    part.rename(place)


def tiny(plan, seeds=None, rates=grid.RATES):
    """A part of ORDER: runs of a plan of study/grid.py."""

    def missing(folder):
        return grid.missing(folder, plan, seeds, rates)

    return missing, grid.make


def exact(regime, seeds):
    """A part of ORDER: the first seeds of a regime of study/regimes.py."""

    def missing(folder):
        return [(regime, *pair) for pair in regimes.missing(folder, regime, seeds)]

    return missing, make_exact


def along(axis):
    """A part of ORDER: the runs of an axis of study/axes.py."""

    def missing(folder):
        return axes.missing(folder, axis)

    return missing, axes.make


def more(regime):
    """A part of ORDER: what the stopping rule asks for now."""

    def missing(folder):
        return [(regime, *pair) for pair in regimes.due(regimes.kept(folder, regime), regime)]

    return missing, make_exact


ORDER = {  # name -> (what is missing in a folder, how one of it is made)
    "grid, 2 seeds, lr x1 x2": tiny("grid", 2, (1, 2)),
    "exact-1, 1 seed": exact("exact-1", 1),
    "grid, 2 seeds": tiny("grid", 2),
    "exact-8, 1 seed": exact("exact-8", 1),
    "efficiency, 1 seed": tiny("efficiency", 1),
    "exact-1, 2 seeds": exact("exact-1", 2),
    "grid, 4 seeds": tiny("grid", 4),
    "variants, 4 seeds": tiny("variants", 4),
    "exact-1, 3 seeds": exact("exact-1", 3),
    "exact-8, 3 seeds": exact("exact-8", 3),
    "balanced, 3 seeds": exact("balanced", 3),
    "ceilings": tiny("ceilings"),
    "efficiency": tiny("efficiency"),
    "head": tiny("head"),
    "grid": tiny("grid"),
    "variants": tiny("variants"),
    **{f"{regime}, stopping rule": more(regime) for regime in regimes.REGIMES},
    **{f"axis {axis}": along(axis) for axis in axes.AXES},
}


def make_all(train, folder, parts=""):
    """Make what is missing, part by part; the stopping rule is asked again until it wants nothing."""
    for name, (missing, make_one) in ORDER.items():
        while name.startswith(parts) and (left := missing(folder)):
            print(f"{time.strftime('%H:%M:%S')} {name}: {len(left)} left, now {left[0]}", flush=True)
            make_one(train, left[0], folder)
            if left[0] in missing(folder):
                raise RuntimeError(f"{left[0]} was made and is still missing")


def listed(folder):
    """Lines: what of each part is there."""
    lines = [f"{name}: {len(missing(folder))} missing" for name, (missing, _) in ORDER.items()]
    for plan in grid.PLANS:
        seconds = [line["cpu_seconds"] for line in grid.kept(folder, plan).values()]
        lines.append(taken(plan, len(grid.PLANS[plan]()), seconds))
    for regime in regimes.REGIMES:
        seconds = [rows[-1]["seconds"] for rows in regimes.kept(folder, regime).values()]
        lines.append(taken(regime, regimes.LEAST * len(regimes.names(regime)), seconds))
    return lines


def taken(name, of, seconds):
    """A line on the runs that took these CPU seconds."""
    each = f", {median(seconds):.0f} CPU seconds each, {sum(seconds) / 3600:.1f} hours so far" if seconds else ""
    return f"{name}: {len(seconds)} of {of} runs{each}"


def locked(folder):
    """An open file that no other process has locked. Exits if one has."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "order.lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"order.py: another process makes the runs of {folder}")
    return file


def main(train_module):
    """train_module(): the module train.py, imported only when runs are made."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "results", metavar="FOLDER")
    parser.add_argument("--list", action="store_true", help="what is there and what is not")
    parser.add_argument("--parts", default="", metavar="NAME", help="only the parts whose name begins so")
    args = parser.parse_args()
    if args.list:
        print(*listed(args.into), sep="\n")
    else:
        with locked(args.into):
            make_all(train_module(), args.into, args.parts)


if __name__ == "__main__":

    def train_module():
        import train

        return train

    main(train_module)
