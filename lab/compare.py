"""Which setting is better? Makes the runs that are missing, compares them by seed, and draws them.

    python -m lab.compare "cispo: --loss cispo" "mine: --loss mine.py:objective" --seeds 4 --data tiny --virtual exact
    python -m lab.compare grid-k8-x1                a table of tables.py: its runs kept in results/lab, none is made
    python -m lab.compare grid-k8-x1 --seeds 9      the same, and what of these seeds is missing
    python -m lab.compare results                   all tables by their kept runs, and the figures of these runs

Each setting is a name and flags of train.py; what follows the settings are flags of train.py for all of them. The runs
are in virtual time, one on each core, so that neither load nor pauses change them. Each is a run of train.py in
OUT/KEY, where KEY says its settings, the code, and the contents of the files that it reads: a run is made once,
whatever it is called. It may be stopped at any time and started again: runs that have ended stay, others are made anew.

Seeds are blocks: with the same seed all settings get the same prompts and draws. statistics.py says what is compared,
and how. Logs of other runs are compared by `fit.py --compare`.

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
from types import SimpleNamespace

import numpy as np
from matplotlib.figure import Figure
from scipy.special import stdtrit

from lab import statistics
from lab.tables import KEPT, MADE, RATES, STALENESS, TABLES, kept_groups
from plumbing.curves import table as aligned
from plumbing.devices import cores
from plumbing.figures import COLOURS, RATE, Curve, called, save
from plumbing.log import lock_log, read_rows
from plumbing.processes import code_digest
from plumbing.settings import FIELDS, read_settings

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "figures"
UNNAMED = ("out", "resume", "evaluate", "checkpoint_every", "timeout")  # do not change what a run learns
RESULTS = ("finished", "curriculum exhausted")  # or it diverged
AXES = (  # title of a panel, table, settings
    ("prompts x 8 generations a step", "axis-batch", ("4 x 8", "8 x 8", "16 x 8", "32 x 8", "64 x 8")),
    ("prompts x generations, 128 completions a step in all", "axis-batch", ("32 x 4", "16 x 8", "8 x 16", "4 x 32")),
    ("token budget of a completion", "axis-length", ()),
    ("size of the policy", "axis-model", ()),
    ("sums of 4 or 5 operands, and longer ones of 6 or 7", "axis-mixture", ()),
    ("the embedded task: prompts x 16 generations a step", "axis-embedded", ()),
)


class CannotRun(Exception):
    """What was asked for cannot be run; the message says why."""


# --- What is asked ---------------------------------------------------------------------------------------------------


def parsed(argv):
    """(arguments --seeds and --out, {setting: its flags}, the table's name or None) of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.compare",
        usage='python -m lab.compare "NAME: FLAGS" "NAME: FLAGS" ... | TABLE | results [--seeds N] [--out OUT] [FLAGS]',
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
    asked = {name.strip(): [*shlex.split(flags), *common] for name, colon, flags in pairs if colon}
    if len(asked) < max(2, len(words)):
        parser.error(f"got {shlex.join(words) or 'no settings'}; expected two or more settings of different names, "
                     'such as "cispo: --loss cispo", a table (--help lists them), or results alone')  # fmt: skip
    return args, asked, None


def checked(flags, seed, out):
    """The Settings of a run. Raises CannotRun for what the lab sets itself; exits as train.py does for wrong flags."""
    if given := sorted({"--seed", "--out", "--resume", "--evaluate"} & {flag.partition("=")[0] for flag in flags}):
        raise CannotRun(f"got {given[0]}, which the lab sets itself; --seeds N makes runs of N seeds")
    if any(MADE in flag for flag in flags):
        raise CannotRun("the policies and prompts of this table are made by lab/tables.py of commit 546db21")
    settings = read_settings([*flags, "--seed", str(seed), "--out", str(out / "new")])
    if not settings.virtual:
        raise CannotRun("runs are compared in virtual time, one a core and the same twice: add --virtual exact")
    return settings


# --- Runs ------------------------------------------------------------------------------------------------------------


def files(settings):
    """The files that a run reads: the policy, prompts, a loss or reward of one's own."""
    code = [name.rpartition(":")[0] for name in (settings.loss, settings.reward or "")]
    data = [source.partition(":")[0] for source in settings.data]
    for path in [ROOT / name for name in (settings.model, *code, *data) if name]:
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
    shutil.rmtree(folder)  # without --resume, since not every checkpoint in virtual time can be resumed from
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "train.py"), *flags, "--out", str(folder)]
    with folder.with_suffix(".txt").open("w", encoding="utf-8") as screen:
        return subprocess.Popen(command, env=environment, stdout=screen, stderr=screen)


def make_all(missing):
    """Make the runs of {folder: flags}, one on each core; prints each that has ended."""
    left = list(missing.items())
    at_work = {}
    began = time.monotonic()
    try:
        while left or at_work:
            while left and len(at_work) < cores():
                folder, flags = left.pop(0)
                at_work[folder] = make(folder, flags)
            time.sleep(0.1)
            for folder in [folder for folder, process in at_work.items() if process.poll() is not None]:
                del at_work[folder]
                if not (rows := ended(folder)):
                    screen = folder.with_suffix(".txt").read_text(encoding="utf-8").strip().split("\n")[-5:]
                    raise CannotRun("\n".join([f"a run ended without a result; {folder}.txt ends in", *screen]))
                done = len(missing) - len(left) - len(at_work)
                rate = [row["pass_rate"] for row in rows if row["kind"] == "eval"][-1]
                told = f"{done} of {len(missing)} runs, {time.monotonic() - began:.0f} s"
                print(f"{told}: {shlex.join(missing[folder])} ended at {rate:.3f}", flush=True)
    finally:
        for process in at_work.values():
            process.kill()


def gathered(args, asked, table):
    """{setting: [Run]}: kept ones of a table, and of the seeds that are asked for those in OUT, made where missing."""
    groups = kept_groups(table) if table else {name: [] for name in asked}
    if table:
        print(f"{sum(map(len, groups.values()))} runs of {table} are kept in results/lab, made by earlier code")
        if args.seeds is None:
            return groups
    seeds = range(args.seeds or 4)
    digest = code_digest()
    places = {}
    for seed in seeds:
        for name in asked:
            if seed not in [run.seed for run in groups[name]]:
                settings = checked(asked[name], seed, args.out)
                flags = [*asked[name], "--seed", str(seed)]
                if "--checkpoint-every" not in flags:  # none but the last
                    flags += ["--checkpoint-every", str(settings.steps)]
                places[name, seed] = args.out / key(settings, digest), flags
    missing = {folder: flags for folder, flags in places.values() if not ended(folder)}
    print(f"{len(places)} runs in {args.out}: {len(missing)} to be made on {cores()} cores", flush=True)
    make_all(missing)
    for (name, seed), (folder, _) in places.items():
        groups[name].append(statistics.of_log(ended(folder), seed))
    return {name: [run for run in runs if run.seed in seeds] for name, runs in groups.items()}


# --- What is said ----------------------------------------------------------------------------------------------------


def settings_lines(groups):
    """Lines: what each setting's runs came to."""
    rows = [("", "runs", "end (least to most)", "last quarter rose by", "collapse", "tokens clipped", "staleness")]
    for name, runs in groups.items():
        ends = [statistics.end(run) for run in runs]
        clipped, staleness = ([getattr(run, what) for run in runs] for what in ("clipped", "staleness"))
        rows.append(
            (
                name,
                str(len(runs)),
                f"{mean(ends):.3f} ({min(ends):.3f} to {max(ends):.3f})",
                f"{mean(map(statistics.rising, runs)):+.3f}",
                f"{sum(map(statistics.collapses, runs))} of {len(runs)}",
                "not known" if None in clipped else f"{mean(clipped):.2%}",
                "not known" if None in staleness else f"{mean(staleness):.1f} steps",
            )
        )
    lines = aligned(rows)
    if len({task for runs in groups.values() for run in runs for task in run.tasks}) > 1:
        for name, runs in groups.items():
            rates = {task: mean(run.tasks[task] for run in runs) for task in runs[0].tasks}
            lines.append(f"  {name}: " + ", ".join(f"{Path(task).stem} {rate:.3f}" for task, rate in rates.items()))
    return lines


def shown(difference, ratio=False):
    """A Difference as words: a difference, or how many times as much."""
    D, *interval = [f"x{np.exp(value):.2f}" if ratio else f"{value:+.3f}" for value in difference[:3]]
    return f"{D} ({' to '.join(interval)})" if isfinite(difference.low) else f"{D} (no interval)"


def difference_lines(rows, reference, x):
    """Lines: each setting minus the reference."""
    cells = [("", "pass rate at the end", f"{called(x)} to a common pass rate")]
    for row in rows:
        compute = shown(row.compute, ratio=True) if row.compute else "a run does not get there"
        cells.append((row.name, shown(row.end), f"to {row.level:.3f}: {compute}"))
    return [f"minus {reference}, paired by seed, 90 % intervals:", *aligned(cells)]


def answer(row, reference):
    """A sentence: which of two settings ends higher, or how many seeds would tell."""
    name, D, low, high = row.name, row.joint.D, row.joint.low, row.joint.high
    if row.alike and 2 * row.alike >= row.joint.seeds:
        return f"{name} and {reference}: no verdict, since {row.alike} of {row.joint.seeds} seeds give the same run."
    if not isfinite(low):
        return f"{name} and {reference}: one seed cannot tell which ends higher; give --seeds 2 or more."
    if low > 0 or high < 0:
        better, worse = (name, reference) if low > 0 else (reference, name)
        small, large = sorted(map(abs, (low, high)))
        return f"{better} ends higher than {worse}: by {abs(D):.3f} ({small:.3f} to {large:.3f})."
    needed = statistics.seeds_needed(D, row.joint.s)
    many = f"about {needed} seeds" if needed < inf else f"more than {statistics.MOST_SEEDS} seeds"
    return (
        f"{name} and {reference}: these {row.joint.seeds} seeds cannot tell which ends higher. A difference as large "
        f"as the one seen, {D:+.3f}, would take {many}; one outside {low:+.3f} to {high:+.3f} is unlikely."
    )


def report(groups, x):
    """Lines: what runs {setting: [Run]} say, with the column x as compute."""
    reference = next(iter(groups))
    rows = statistics.compare(groups, x)
    lines = [*settings_lines(groups), "", *difference_lines(rows, reference, x), ""]
    lines += [answer(row, reference) for row in rows]
    if len(rows) > 1:
        lines.append(f"These {len(rows)} answers hold together in 90 % of repetitions (Bonferroni), where their "
                     "intervals are wider than those of the table, each of which does so alone.")  # fmt: skip
    return lines


def compute_of(asked):
    """The column that counts as compute: where decoding is free, tokens."""
    return "tokens" if {"exact", "--virtual=exact"} & {*next(iter(asked.values()))} else "gpu_hours"


# --- Figures ---------------------------------------------------------------------------------------------------------


def panel(title, groups, x):
    """A panel of plumbing/figures.py: the mean pass rate of each of {setting: runs}, over what all of its runs have
    run, against the mean of their column x."""
    lines = []
    for name, runs in groups.items():
        shared = min(len(run.pass_rate) for run in runs)
        C, R = (np.mean([getattr(run, column)[1:shared] for run in runs], 0) for column in (x, "pass_rate"))
        mean = lambda at, C=C, R=R: np.interp(np.log(at), np.log(C), R)  # noqa: E731  straight in log C
        lines.append(Curve(name, mean, (C[0], C[-1], C[-1]), (C, R)))
    return title, f"compute C ({called(x)})", RATE, lines


def staleness(path):
    """Write the figure of the grid: the ends of each loss against staleness, a panel a learning rate."""
    drawn = Figure(figsize=(12, 4.2), layout="constrained")
    drawn.suptitle("tiny: means of 8 seeds, 90 % intervals (open circle: half or more of the runs collapse)")
    for ax, rate in zip(drawn.subplots(1, len(RATES), sharey=True), RATES):
        for colour, loss in zip(COLOURS, ("CISPO", "DAPO", "GRPO", "GSPO", "no ratio")):
            cells = [kept_groups(f"grid-k{k}-x{rate}")[loss] for k in STALENESS]
            ends = np.array([list(map(statistics.end, runs)) for runs in cells])
            reach = stdtrit(7, 0.95) * ends.std(1, ddof=1) / 8**0.5
            places = range(len(cells))
            ax.errorbar(places, ends.mean(1), yerr=reach, color=colour, lw=1.3, capsize=2, label=loss)
            faces = ["white" if sum(map(statistics.collapses, runs)) >= 4 else colour for runs in cells]
            ax.scatter(places, ends.mean(1), 36, faces, ec=colour, zorder=3)
        ax.set_xticks(places, STALENESS)
        ax.set(xlabel="staleness of every token (optimizer steps)", ylabel="pass rate at the end")
        ax.set_title(f"learning rate x{rate}", fontsize=10)
        ax.label_outer()
        ax.grid(alpha=0.25)
        ax.legend(fontsize=7)
    drawn.savefig(path, dpi=120)


def of_kept_runs():
    """Write the figures of the runs that are kept in results/."""
    staleness(FIGURES / "staleness.png")
    panels = []
    for title, table, settings in AXES:
        groups = kept_groups(table)
        panels.append(panel(title, {name: groups[name] for name in settings or groups}, "tokens"))
    save(
        FIGURES / "axes.png", "CISPO, tokens one step old, on tiny unless said otherwise: means of three seeds", panels
    )
    bases = [{}, {}, {}]
    for row in read_rows(KEPT / "experts.jsonl")[0]:
        bases[row["seed"]][row["policy"]] = [SimpleNamespace(**row)]
    panels = [panel(f"starting policies of seed {seed}", bases[seed], "flops") for seed in range(3)]
    title = "tiny: dense policies and mixtures of experts, by the FLOPs of their active parameters"
    save(FIGURES / "experts.png", title, panels, alike=True)
    logs = sorted(KEPT.parent.glob("smollm2_seed*.jsonl"))
    runs = {f"seed {seed}": [statistics.of_log(read_rows(log)[0], seed)] for seed, log in enumerate(logs)}
    save(FIGURES / "smollm2.png", "SmolLM2-135M-Instruct", [panel("short questions about numbers", runs, "tokens")])


def recount():
    """Print what the kept runs of every table say, and draw them."""
    for table, settings in TABLES.items():
        x = compute_of({name: flags.split() for name, flags in settings.items()})
        print(f"--- {table}", *report(kept_groups(table), x), "", sep="\n", flush=True)
    of_kept_runs()


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    if argv == ["results"]:
        return recount()
    args, asked, table = parsed(argv)
    try:
        groups = gathered(args, asked, table)
    except (CannotRun, OSError) as error:
        sys.exit(f"lab.compare: {error}")
    x = compute_of(asked)
    print("", *report(groups, x), sep="\n")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{table or 'comparison'}.png"
    save(path, "means over the seeds", [panel("", groups, x)])
    print(f"written to {path}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("lab.compare: interrupted; the same command goes on, with the runs that have ended")
