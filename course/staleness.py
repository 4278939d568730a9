"""How stale may tokens be? Where runs that differ in --k alone end: a table and a figure.

    python exercises.py train --loss cispo --data tiny --virtual exact --eval-every 8 --lr 6e-4 --k 8 --out stale/k8
    python -m course.staleness stale/k*      prints best and end of each run, draws staleness.png

With --virtual exact every token is exactly k optimizer steps old once k steps are done. End: mean pass rate of the last
five evaluations; best: the largest mean of five in a row. A run whose best lies well above its end has unlearnt.

One run for each k: with another seed an end moves by some hundredths, more where k is large (results/README.md).

Test: pytest tests/test_exercises.py -k staleness
"""

import argparse
import json
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

LAST = 5  # evaluations


def rates(folder):
    """(k, pass rate of each evaluation) of a run. Raises ValueError if it has fewer than LAST evaluations."""
    rows = [json.loads(line) for line in (Path(folder) / "log.jsonl").open()]
    found = [row["pass_rate"] for row in rows if row["kind"] == "eval"]
    if len(found) < LAST:
        raise ValueError(f"{folder}: {len(found)} evaluations, expected at least {LAST}: is the run over?")
    return rows[0]["flags"]["k"], found


def end(found):
    """Mean of the last evaluations."""
    return mean(found[-LAST:])


def best(found):
    """Largest mean of as many evaluations in a row."""
    return max(mean(found[at : at + LAST]) for at in range(len(found) - LAST + 1))


def draw(runs, path):
    """End and best against k; runs: [(k, pass rates)]"""
    figure = Figure(figsize=(6, 4), layout="constrained")
    ax = figure.add_subplot(title="Where runs end, by the staleness of their tokens")
    staleness = [k for k, _ in runs]
    ax.plot(
        staleness, [best(found) for _, found in runs], "o", ms=10, mfc="none", color="C1", label="best mean of five"
    )
    ax.plot(staleness, [end(found) for _, found in runs], "o-", color="C0", label="end: mean of the last five")
    ax.set_xscale("symlog", base=2, linthresh=1)
    ax.set_xticks(staleness, staleness)
    ax.set_xlabel("k: staleness of every token (optimizer steps)")
    ax.set_ylabel("pass rate on held-out prompts")
    ax.legend()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(prog="python -m course.staleness", description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="a folder that holds a run's log.jsonl")
    parser.add_argument("-o", "--out", default="staleness.png", metavar="FIGURE")
    args = parser.parse_args()
    runs = sorted(map(rates, args.folders))
    print("   k  best   end")
    for k, found in runs:
        print(f"{k:4}  {best(found):.3f}  {end(found):.3f}")
    draw(runs, args.out)
    print(args.out)


if __name__ == "__main__":
    main()
