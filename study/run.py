"""Do the paper's main comparisons (Fig. 2, 4a, 5a, 6, 7) come out the same way on the embedded task?

    python study/run.py --list                        lists the configurations, their flags and finished runs
    python study/run.py                               makes all missing runs but those of --quiet
    python study/run.py --only 'loo-*' --seeds 0 1    makes the missing runs of these configurations and seeds
    python study/run.py --quiet                       makes the missing runs of Fig. 4a whose device-hours count;
                                                             nothing else may use the machine meanwhile
    python study/run.py --verdicts                    prints the table of findings from results/study
    python study/run.py --verdicts --without RUN …    the same without these runs, such as pipeline-8-0
    python study/run.py --collapses                   prints staleness, largest drop, collapse, largest rho, end and A
                                                             of each run
    python study/run.py --figures                     draws the comparisons into figures/ours_*.png

Configurations and findings are in study/comparisons.py, the rule of the verdicts in study/rule.py, the figures in
study/drawing.py. A run takes 9 to 21 minutes on two cores. Its log is shortened to at most 15 kB, every evaluation
and a summary of the steps between two of them, and kept as results/study/NAME-SEED.jsonl, also if the run diverged.
ScaleRL is also what the README's first command runs: if results/main_seed*.jsonl exist, they are used. An interrupted
run continues from its last checkpoint. Prompts, steps and batches do not depend on timing. The staleness of tokens
does where the trainer is the slower side, as without the zero-variance filter under PipelineRL: such runs, and those of
--quiet, are best made alone on two cores. The others can run side by side, each on a core of its own (taskset -c 0,
taskset -c 1).

Test: pytest tests/test_study.py
"""

import argparse
import fnmatch
import json
import os
import subprocess
import sys
from collections import Counter
from math import nan
from pathlib import Path
from statistics import mean, median

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from study import drawing  # noqa: E402
from study.comparisons import CONFIGURATIONS, complete, figures_of, flags, kept, rows_of  # noqa: E402
from study.rule import measure, table  # noqa: E402

RESULTS, RUNS = ROOT / "results" / "study", ROOT / "runs" / "study"


def wanted(pattern="*", seeds=None, quiet=False):
    """[(name, seed)] that the flags ask for: the first seed of all configurations, then the second of all, …"""
    chosen = [c for c in CONFIGURATIONS.values() if fnmatch.fnmatch(c.name, pattern)]
    every = range(max((c.seeds for c in chosen), default=0)) if seeds is None else seeds
    return [(c.name, seed) for seed in every for c in chosen if seed < c.seeds and (seed < c.quiet) == quiet]


def place(name, seed):
    """Where the log of a finished run is kept."""
    return RESULTS / f"{name}-{seed}.jsonl"


def finished(name, seed):
    """The rows of a finished run: of results/main_seed*.jsonl for ScaleRL if that exists, else of a run made now."""
    first_command = ROOT / "results" / f"main_seed{seed}.jsonl"  # the README's: its defaults are ScaleRL
    return rows_of(first_command) if name == "scalerl" and first_command.exists() else run(name, seed)


def run(name, seed):
    """Make a run, from its last checkpoint if it has one; returns its rows.

    Exits if the run neither got to its end nor diverged. One that diverged is a result.
    """
    out = RUNS / f"{name}-{seed}"
    started = list(out.glob("checkpoint-*"))
    if not started and (out / "log.jsonl").exists():
        (out / "log.jsonl").unlink()  # it was interrupted before its first checkpoint
    more = ["--resume"] if started else [*flags(name), "--seed", str(seed)]
    train([*more, "--out", os.path.relpath(out, ROOT)])  # relative: the log keeps it
    rows = rows_of(log) if (log := out / "log.jsonl").exists() else [{"kind": "nothing"}]
    reason = rows[-1].get("reason", "no reason")
    if not complete(reason):
        sys.exit(f"study.py: {out} ended with {reason!r}; run this again to go on with it")
    return rows


def train(argv):
    """train.py in a process of its own. How it ended is said by its log."""
    with subprocess.Popen([sys.executable, str(ROOT / "train.py"), *argv], cwd=ROOT) as process:
        try:
            process.wait()
        except KeyboardInterrupt:  # Ctrl-C reaches the run too, which writes a checkpoint and ends
            process.wait()


def reduced(rows):
    """The rows of a log that fits and figures read: config, evaluations, end, and before each evaluation one
    `step` row that sums up the steps since the previous evaluation.
    """
    steps = {}
    kept = []
    for row in rows:
        if row["kind"] == "step":  # a resumed run repeats some steps; the last row of a step counts
            steps[row["step"]] = row
        elif row["kind"] == "eval":
            kept = [one for one in kept if one["kind"] == "config" or one["step"] < row["step"]]
            since = max((one["step"] for one in kept if one["kind"] == "eval"), default=0)
            kept += [summary([steps[n] for n in sorted(steps) if since < n <= row["step"]])] if row["step"] else []
            kept.append(row)
        elif row["kind"] == "end" or not kept:
            kept.append(row)
    return [short(row) for row in kept]


def summary(steps):
    """One `step` row for several: means of the rates, the largest rho, tokens by staleness, else the last value."""
    means = (
        "reward",
        "pass_rate",
        "kept",
        "entropy",
        "log_rho",
        "clipped",
        "gradient_norm",
        "truncated",
        "interrupted",
        "seconds",
        "seconds_generate",
        "seconds_train",
    )
    last = ("kind", "step", "gpu_hours", "tokens", "tokens_trained", "flops", "retired", "epoch")
    tokens = sum((Counter(row["staleness"]) for row in steps), Counter())
    known = {name: [row[name] for row in steps if row[name] is not None] for name in means}
    return (
        {name: steps[-1][name] for name in last}
        | {name: mean(values) for name, values in known.items() if values}
        | {
            "rho_max": max((row["rho_max"] for row in steps if row["rho_max"] is not None), default=None),
            "staleness": tokens,
        }
    )


def short(value):
    """The value with every float, also inside dicts, rounded to five significant digits."""
    if isinstance(value, dict):
        return {name: short(one) for name, one in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def run_missing(pairs):
    """Make the runs that are not in results/study; print how many are done and, from their times, the time left."""
    missing = [pair for pair in pairs if not place(*pair).exists()]
    print(f"{len(pairs) - len(missing)} of {len(pairs)} runs are there")
    for number, (name, seed) in enumerate(missing):
        hours = [rows_of(place(*pair))[-1]["seconds"] / 3600 for pair in pairs if place(*pair).exists()]
        left = f", about {median(hours) * (len(missing) - number):.1f} hours left" if hours else ""
        print(f"--- {number + 1} of {len(missing)}: {name}, seed {seed}{left}", flush=True)
        rows = reduced(finished(name, seed))
        RESULTS.mkdir(parents=True, exist_ok=True)
        place(name, seed).write_text("".join(json.dumps(row) + "\n" for row in rows))


def collapses(logs):
    """A line per run, least staleness first: what the README of results/ counts."""
    lines = []
    for (name, seed), rows in logs.items():
        one = measure(rows)
        rho = max(row["rho_max"] or 0.0 for row in rows if row["kind"] == "step")
        drop = float(max(np.maximum.accumulate(one.rates) - one.rates))
        line = (
            f"{name}-{seed}: staleness {one.staleness:.2f} steps; largest drop {drop:.3f}; "
            f"collapses after step {one.collapsed}; largest rho {rho:.0f}; pass rate at the end {one.end:.3f}; "
            f"A {one.law.A if one.law else nan:.3f}"
        )
        lines.append((one.staleness, line.replace("collapses after step None; ", "")))
    return [line for _, line in sorted(lines)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="the configurations and which runs are there")
    parser.add_argument("--verdicts", action="store_true", help="the table of findings")
    parser.add_argument("--without", nargs="+", default=(), metavar="RUN", help="of --verdicts: leave these runs out")
    parser.add_argument(
        "--collapses", action="store_true", help="staleness, drop, collapse, rho, end and A of each run"
    )
    parser.add_argument("--figures", action="store_true", help="draw the comparisons into figures/")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="configurations by name, such as 'loo-*'")
    parser.add_argument("--seeds", type=int, nargs="+", help="of these seeds only")
    parser.add_argument("--quiet", action="store_true", help="only the runs that need a machine to themselves")
    args = parser.parse_args()
    if args.list:
        for name, own in CONFIGURATIONS.items():
            there = [seed for seed in range(own.seeds) if place(name, seed).exists()]
            print(f"{name:26} Fig. {figures_of(name):10} {len(there)} of {own.seeds} runs   {' '.join(flags(name))}")
    elif args.collapses:
        print(*collapses(kept(RESULTS)), sep="\n")
    elif args.figures:
        print(*drawing.draw_all(kept(RESULTS), ROOT / "figures"), sep="\n")
    elif args.verdicts:
        logs = {pair: rows for pair, rows in kept(RESULTS).items() if "{}-{}".format(*pair) not in args.without}
        print(*table(logs), sep="\n")
    else:
        run_missing(wanted(args.only, args.seeds, args.quiet))


if __name__ == "__main__":
    main()
