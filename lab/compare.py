"""Which setting is better? Makes the runs that are missing, and compares them by seed.

    python -m lab.compare "cispo: --loss cispo" "mine: --loss mine.py:objective" --seeds 4 --data tiny --virtual exact
    python -m lab.compare grid-k8-x1                a table of settings.py: its runs kept in results/lab, none is made
    python -m lab.compare grid-k8-x1 --seeds 9      the same, and what of these seeds is missing

Each setting is a name and flags of train.py; what follows the settings are flags of train.py for all of them. The runs
are in virtual time, one on each core, so that neither load nor pauses change them. Each is a run of train.py in
OUT/KEY, where KEY says its settings, the code, and the contents of the files that it reads: a run is made once,
whatever it is called. It may be stopped at any time and started again: runs that have ended stay, others are made anew.

Seeds are blocks: with the same seed all settings get the same prompts and draws. statistics.py says what is compared,
how, and when there is no verdict. Logs of other runs are compared by `fit.py --compare`.

Test: pytest tests/test_lab.py
"""

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from math import inf, isfinite
from pathlib import Path
from statistics import mean

import numpy as np

from lab import drawing, statistics
from lab.tables import TABLES, kept_groups, make_inputs
from plumbing import curves, devices
from plumbing.log import lock_log, read_rows
from plumbing.processes import code_digest
from plumbing.settings import FIELDS, known_flags, read_settings
from recipes import RECIPES

ROOT = Path(__file__).resolve().parent.parent
UNNAMED = ("out", "resume", "evaluate", "checkpoint_every", "timeout")  # do not change what a run learns
ONE_RATIO = {"cispo", "dapo", "grpo"}  # where no clip acts, these are one loss
RESULTS = ("finished", "curriculum exhausted")  # or it diverged


class CannotRun(Exception):
    """What was asked for cannot be run; the message says why."""


# --- What is asked ---------------------------------------------------------------------------------------------------


def parsed(argv):
    """(arguments --seeds and --out, {setting: its flags}, the table's name or None) of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.compare",
        usage='python -m lab.compare "NAME: FLAGS" "NAME: FLAGS" ... | TABLE  [--seeds N] [--out FOLDER] [FLAGS]',
        description="Compare settings of train.py by runs of the same seeds. FLAGS are train.py's; those at the end "
        "are for all settings.",
        epilog=f"tables: {', '.join(TABLES)}",
        allow_abbrev=False,
    )
    parser.add_argument("--seeds", type=int, help="seeds 0 ... N-1 (default: 4; of a table those of its kept runs)")
    parser.add_argument("--out", type=Path, default=Path("runs/lab"), help="folder of the runs (default: runs/lab)")
    count = next((at for at, word in enumerate(argv) if word.startswith("--")), len(argv))
    words = argv[:count]
    args, common = parser.parse_known_args(argv[count:])
    if args.seeds is not None and args.seeds < 1:
        parser.error(f"got --seeds {args.seeds}, expected 1 or more")
    if len(words) == 1 and words[0] in TABLES:
        if common:
            parser.error(f"got {common[0]}, but the flags of a table are those of lab/tables.py")
        return args, {name: flags.split() for name, flags in TABLES[words[0]].items()}, words[0]
    pairs = [word.partition(":") for word in words]
    if len(pairs) < 2 or not all(colon for _, colon, _ in pairs):
        parser.error(f"got {shlex.join(words) or 'no settings'}; expected two or more settings, such as "
                     '"cispo: --loss cispo", or the name of a table (--help lists them)')  # fmt: skip
    asked = {name.strip(): [*shlex.split(flags), *common] for name, _, flags in pairs}
    if len(asked) < len(pairs):
        parser.error("two settings have the same name")
    return args, asked, None


def checked(flags, seed, out):
    """The Settings of a run. Raises CannotRun for what the lab sets itself; exits as train.py does for wrong flags."""
    if given := sorted({"--seed", "--out", "--resume", "--evaluate"} & {flag.partition("=")[0] for flag in flags}):
        raise CannotRun(f"got {given[0]}, which the lab sets itself; --seeds N makes runs of N seeds")
    settings = read_settings([*flags, "--seed", str(seed), "--out", str(out / "new")])
    if not settings.virtual:
        raise CannotRun("runs are compared in virtual time, one a core and the same twice: add --virtual exact")
    return settings


def with_seed(flags, seed):
    """The flags of a run: {seed} in them stands for its seed."""
    return [flag.replace("{seed}", str(seed)) for flag in flags]


def clip_alone(one, other):
    """Whether two settings, lists of flags, differ in how they clip alone."""
    both = [vars(known_flags().parse_args(flags)) for flags in (one, other)]
    both = [RECIPES[asked.get("recipe", "scalerl")] | asked for asked in both]
    unlike = {name for name in both[0].keys() | both[1] if both[0].get(name) != both[1].get(name)}
    return unlike <= {"loss", "recipe", "eps_max", "eps_low", "eps_high"} and {a["loss"] for a in both} <= ONE_RATIO


# --- Runs ------------------------------------------------------------------------------------------------------------


def files(settings):
    """The files that a run reads: the policy, prompts, a loss or reward of one's own."""
    own = [(settings.reward or "").rpartition(":")[0], settings.loss.rpartition(":")[0]]
    names = [settings.model, *own, *(one.partition(":")[0] for one in settings.data)]
    for path in {place / name for name in filter(None, names) for place in (Path(), ROOT)}:
        yield from (file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())


def key(settings, code):
    """The name of a run's folder: a digest of what decides it."""
    named = {name: getattr(settings, name) for name in FIELDS if name not in UNNAMED} | settings.clips
    digest = hashlib.sha256(json.dumps([code, named], sort_keys=True, default=str).encode())
    for content in sorted(hashlib.sha256(file.read_bytes()).digest() for file in files(settings)):
        digest.update(content)
    return digest.hexdigest()[:16]


def ended(folder):
    """The rows of a run that has ended with a result, or None."""
    log = folder / "log.jsonl"
    rows = read_rows(log)[0] if log.exists() else []
    last = rows[-1] if rows else {}
    whole = last.get("kind") == "end" and (last["reason"] in RESULTS or "finite" in last["reason"])
    return rows if whole else None


def make(folder, flags):
    """Begin a run of train.py in a folder, which holds no run that has ended; returns its process."""
    lock_log(folder).close()  # another process may be at it; Windows removes no file that is open
    shutil.rmtree(folder)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "train.py"), *flags, "--out", str(folder)]
    with folder.with_suffix(".txt").open("w", encoding="utf-8") as said:
        return subprocess.Popen(command, env=environment, stdout=said, stderr=said)


def make_all(missing, cores):
    """Make the runs of {folder: flags}, one on each core; prints each that has ended."""
    left = list(missing.items())
    at_work = {}
    began = time.monotonic()
    try:
        while left or at_work:
            while left and len(at_work) < cores:
                folder, flags = left.pop(0)
                at_work[folder] = make(folder, flags)
            time.sleep(0.1)
            for folder in [folder for folder, process in at_work.items() if process.poll() is not None]:
                del at_work[folder]
                if not (rows := ended(folder)):
                    said = folder.with_suffix(".txt").read_text(encoding="utf-8").strip().split("\n")[-5:]
                    raise CannotRun("\n".join([f"a run ended without a result; {folder}.txt ends in", *said]))
                done = len(missing) - len(left) - len(at_work)
                rate = [row["pass_rate"] for row in rows if row["kind"] == "eval"][-1]
                told = f"{done} of {len(missing)} runs, {time.monotonic() - began:.0f} s"
                print(f"{told}: {shlex.join(missing[folder])} ended at {rate:.3f}", flush=True)
    finally:
        for process in at_work.values():
            process.kill()


def gathered(args, asked, table):
    """{setting: [Run]}: kept ones of a table, and of the seeds that are asked for those in OUT, made where missing."""
    seeds = range(4 if args.seeds is None else args.seeds)
    own = kept_groups(table) if table else {name: [] for name in asked}
    if table:
        print(f"{sum(map(len, own.values()))} runs of {table} are kept in results/lab, made by earlier code")
        if args.seeds is None and any(own.values()):
            return own
    digest = code_digest()
    places = {}
    for seed in seeds:
        for name in asked:
            if seed not in [run.seed for run in own[name]]:
                flags = with_seed(asked[name], seed)
                make_inputs(flags)
                settings = checked(flags, seed, args.out)
                flags = [*flags, "--seed", str(seed)]
                if "--checkpoint-every" not in flags:  # none but the last
                    flags += ["--checkpoint-every", str(settings.steps)]
                places[name, seed] = args.out / key(settings, digest), flags
    missing = {folder: flags for folder, flags in places.values() if not ended(folder)}
    cores = devices.cores()
    print(f"{len(places)} runs in {args.out}: {len(missing)} to be made on {cores} cores", flush=True)
    make_all(missing, cores)
    for (name, seed), (folder, _) in places.items():
        own[name].append(statistics.of_log(ended(folder), seed))
    return {name: [run for run in runs if run.seed in seeds] for name, runs in own.items()}


# --- What is said ----------------------------------------------------------------------------------------------------


def settings_lines(groups):
    """Lines: what each setting's runs came to."""
    rows = [("", "runs", "end (least to most)", "last quarter rose by", "collapse", "tokens clipped", "staleness")]
    for name, runs in groups.items():
        ends = [statistics.end(run) for run in runs]
        clipped, staleness = ([getattr(run, what) for run in runs] for what in ("clipped", "staleness"))
        collapses = f"{sum(map(statistics.collapses, runs))} of {len(runs)}"
        if never := sum(map(statistics.never_learns, runs)):
            collapses += f", {never} never learn"
        rows.append(
            (
                name,
                str(len(runs)),
                f"{mean(ends):.3f} ({min(ends):.3f} to {max(ends):.3f})",
                f"{mean(map(statistics.rising, runs)):+.3f}",
                collapses,
                "not known" if None in clipped else f"{mean(clipped):.2%}",
                "not known" if None in staleness else f"{mean(staleness):.1f} steps",
            )
        )
    tasks = {task for runs in groups.values() for run in runs for task in run.tasks}
    lines = curves.table(rows)
    if len(tasks) > 1:
        for name, runs in groups.items():
            own = {task: mean(run.tasks[task] for run in runs) for task in runs[0].tasks}
            lines.append(f"  {name}: " + ", ".join(f"{Path(task).stem} {rate:.3f}" for task, rate in own.items()))
    return lines


def shown(one, ratio=False):
    """A Difference as words: a difference, or how many times as much."""
    if one is None:
        return "not determined"
    values = [f"x{np.exp(value):.2f}" if ratio else f"{value:+.3f}" for value in (one.D, one.low, one.high)]
    return f"{values[0]} ({values[1]} to {values[2]})" if isfinite(one.low) else f"{values[0]} (no interval)"


def difference_lines(rows, reference, x):
    """Lines: each setting minus the reference."""
    unit = {"tokens": "tokens", "gpu_hours": "device-hours"}[x]
    table = [("", "pass rate at the end", f"{unit} to a common pass rate", "asymptote A")]
    for row in rows:
        compute = f"to {row.level:.3f}: {shown(row.compute, ratio=True) if row.compute else 'a run does not get there'}"
        table.append((row.name, shown(row.end), compute, shown(row.A)))
    return [f"minus {reference}, paired by seed, 90 % intervals:", *curves.table(table)]


def answer(row, reference, of):
    """A sentence: which of two settings ends higher, or how many seeds would tell."""
    name, D, low, high = row.name, row.joint.D, row.joint.low, row.joint.high
    if row.why_not:
        return f"{name} and {reference}: no verdict, since {row.why_not}."
    if not isfinite(low):
        return f"{name} and {reference}: one seed cannot tell which ends higher; give --seeds 2 or more."
    if low > 0 or high < 0:
        better, worse = (name, reference) if low > 0 else (reference, name)
        small, large = sorted(map(abs, (low, high)))
        return f"{better} ends higher than {worse}: by {abs(D):.3f} ({small:.3f} to {large:.3f})."
    needed = statistics.seeds_needed(D, row.joint.s)
    many = f"about {needed} seeds" if needed < inf else f"more than {statistics.MOST_SEEDS} seeds"
    more = (
        f" (an interval that holds together with {of - 1} others is wider)"
        if of > 1 and row.end.low * row.end.high > 0
        else ""
    )
    return (
        f"{name} and {reference}: these {row.joint.seeds} seeds cannot tell which ends higher{more}. A difference as "
        f"large as the one seen, {D:+.3f}, would take {many}; one outside {low:+.3f} to {high:+.3f} is unlikely."
    )


def answers(rows, reference):
    """Lines: the answers, and what many comparisons do to them."""
    lines = [answer(row, reference, len(rows)) for row in rows]
    if len(rows) > 1:
        lines.append(f"These {len(rows)} answers hold together in 90 % of repetitions (Bonferroni); each interval in "
                     "the table does so alone.")  # fmt: skip
    return lines


def limits(settings):
    """A line: what so small a task cannot tell."""
    name = Path(settings.model).name
    return (
        f"What so small a task cannot tell: what holds for answers longer than {settings.max_new_tokens} tokens, other "
        f"policies than {name}, learning rates far from {settings.lr:g}, or more than {settings.steps} steps. Its "
        "device-hours are those of a cost model."
    )


def report(groups, asked, x):
    """(lines, [Compared]) of runs {setting: [Run]}."""
    reference, *others = groups
    alone = [name for name in others if clip_alone(asked[reference], asked[name])]
    rows = statistics.compare(groups, x, alone)
    lines = [*settings_lines(groups), "", *difference_lines(rows, reference, x), "", *answers(rows, reference)]
    return lines, rows


def main(argv=None):
    args, asked, table = parsed(sys.argv[1:] if argv is None else argv)
    try:
        groups = gathered(args, asked, table)
        settings = checked(with_seed(next(iter(asked.values())), 0), 0, args.out)
        x = "tokens" if settings.virtual == "exact" else "gpu_hours"
        lines, rows = report(groups, asked, x)
        args.out.mkdir(parents=True, exist_ok=True)
        path = drawing.comparison(args.out / f"{table or 'comparison'}.png", groups, rows, x)
    except (CannotRun, OSError) as error:
        sys.exit(f"lab.compare: {error}")
    print("", *lines, limits(settings), f"written to {path}", sep="\n")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("lab.compare: interrupted; the same command goes on, with the runs that have ended")
