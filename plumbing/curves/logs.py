"""The readers of fit.py: which columns of a log's table are the compute and the reward, and how many runs it holds.

If no column is asked for, the reward is

    1. pass_rate, or the only column whose name says a pass rate (RATE: accuracy, score, success, …)
    2. else the only column whose name says a reward, unless its spread shows that it is none from 0 to 1
    3. else the only column that is left,

and the compute is the first name of COMPUTE that stands beside it. Anything else is refused with the columns there are.
The last note of each `fit.Run` says what was taken.
"""

import re
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

import fit
from plumbing.curves.tables import COUNTERS, read_table

COMPUTE = (  # names without what stands before "/"; wandb's _step counts its own calls
    "gpu_hours",
    "global_steps?",
    "(?:(?:train(?:ing|er)?|optim(?:izer)?|policy|actor)_)?steps?",
    f"(?:train(?:ing)?_)?(?:{COUNTERS})",
    "(?:(?:total|num|env)_)?(?:time|env_)?steps?",
    "_step",
    "epochs?|rounds?",
)
STEP = re.compile("step|iter|update|rollout|batch", re.IGNORECASE)  # in the name of a column that counts them
EPOCHS = {"epoch", "round", "stage", "phase", "cycle"}  # a step may start anew in each
RATE = set("acc accuracy accuracies pass success solve solved correct correctness score win exact".split())
REWARD = {"reward", "rewards", "rm"}
NO_RATE = set(
    "% percent std min max best loss kl entropy lr grad norm token tokens format length len clip num time runtime"
    " timestamp target zero none truncated threshold error advantage margin margins sum total return returns".split()
)
RUN_NAMES = ("run", "run_id", "run_name", "experiment", "exp_name", "seed", "name", "method", "algo", "model", "group")
LEAST = 5  # points of a run; and what happens in less than every fifth row is an accident, as where a run was resumed
SCALES = {"percent": (0.0, 100.0), "pm1": (-1.0, 1.0)}


# ---- Which columns ----


@cache
def _words(name):
    """The words of what a column holds."""
    return frozenset(re.findall("[a-z]+|%", re.sub("([a-z])([A-Z])", r"\1_\2", _metric(name)).lower()))


def _metric(name):
    """What a column holds: without the run, as wandb writes it before " - ", and without its seed."""
    return re.sub(r"[_ ]?(seed|run)[_ ]?\d+", "", name.rpartition(" - ")[2])


@cache
def _rank(name):
    """1, 2, … for the names of COMPUTE, the most wanted first; 0 for any other."""
    last = re.split("[/.]", _metric(name))[-1].strip().replace(" ", "_").lower()
    return next((n for n, usual in enumerate(COMPUTE, 1) if re.fullmatch(usual, last)), 0)


def _refusal(table, flag, asked, why, close=()):
    """The BadInput that says why `flag` needs a name, and which there are: those that look like rewards, and some."""
    likely = [name for n, name in enumerate(table.columns) if n < 12 or _words(name) & (RATE | REWARD)]
    got = ", ".join(f"{name:.40}" for name in close or likely)
    rows = "; --compute row counts the rows" if flag == "--compute" else ""
    return fit.BadInput("; ".join([f"{flag} {asked or 'COLUMN'} {why}; there is {got}{rows}", *table.notes]))


def _asked(table, asked, flag):
    """The columns that are called `asked`, else those whose names end in it: one, or one of each run."""
    ends = [asked] if asked in table.columns else [name for name in table.columns if name.endswith(asked)]
    if not ends or len(set(map(_metric, ends))) > 1:
        raise _refusal(table, flag, asked, "matches several columns" if ends else "matches no column", ends)
    return ends


def _compute(table, reward):
    """The column of compute that no flag names: of those that vary, and stand beside the reward, the most wanted."""
    rows = table.columns[reward].keys()
    names = []
    for name, cells in table.columns.items():
        both = [str(cells[row]) for row in rows & cells.keys()] if _rank(name) else []
        names += [name] * (2 * len(both) >= len(rows) and (len({*both}) > 1 or len(rows) == 1))
    if not names:
        raise _refusal(table, "--compute", None, "is needed")
    return min(names, key=_rank)


def _reward(table, scale):
    """The columns of the reward that no flag names: one, or one of each run."""
    if "pass_rate" in table.columns:
        return ["pass_rate"]
    names = [name for name in table.columns if not _rank(name) and name != "Wall time" and "__M" not in name]
    fitting = [name for name in names if not _words(name) & NO_RATE and f"{name}.mean" not in names]
    rewards = [name for name in fitting if _words(name) & REWARD]
    rates = [name for name in fitting if _words(name) & RATE and name not in rewards]
    only = fitting if len(set(map(_metric, names))) == 1 and not rewards else []
    for found in (rates, rewards, only):
        if len(set(map(_metric, found))) > 1:
            raise _refusal(table, "--reward", None, "is needed", found)
        if wide := [name for name in found if not scale and _spreads(table, name)]:
            raise _refusal(
                table, "--reward", None, f"is needed, with --scale: {wide[0]} is none from 0 to 1, by its std"
            )
        if found:
            return found
    raise _refusal(table, "--reward", None, "is needed")


def _spreads(table, name):
    """Whether a column with the standard deviation of the rewards `name` is wider than rewards from 0 to 1 can be."""
    R = table.numbers(name)
    widest = np.sqrt(2 * np.clip(R * (1 - R), 0, None) + 0.01)  # twice the variance, and 0.1, for estimates of few
    own = _words(name) - {"mean"} | {"std"}
    return any((table.numbers(other) > widest).any() for other in table.columns if _words(other) == own)


# ---- From columns to a Run ----


def _order(table, compute, reward):
    """(compute, the column by which repeated rows are known). Compute is "row" if rows share an epoch, as TRL rounds
    it, or the steps start anew in each epoch."""
    counts = [name for name in table.columns if _rank(name) > 1]  # steps and epochs
    order = compute if compute in counts else min(counts, key=_rank, default=compute)
    steps = table.numbers(order)
    rows = np.flatnonzero(np.isfinite(steps + table.numbers(reward)))
    falls = np.diff(steps[rows]) < 0
    if _words(compute) & EPOCHS and len(set(steps[rows])) < len(rows):
        table.notes.append(f"rows share a rounded {compute}, so they are counted")
        return "row", compute
    for name in [name for name in table.columns if _words(name) & EPOCHS and name != order]:
        change = np.diff(table.numbers(name)[rows])[falls]
        if (change > 0).any() and (change != 0).all():
            table.notes.append(f"{order} starts anew with {name}, so the rows are counted")
            return "row", name
    return compute, order


def _parts(table, order, reward):
    """[(label, mask of rows)] of the runs in a table: one, unless columns separate several. Runs of fewer than LEAST
    points are left out with a note, unless all are."""
    kinds = table.texts("kind")
    R = table.numbers(reward)
    counted = np.isfinite(R) & ([kind == "eval" for kind in kinds] if "eval" in kinds else True)
    steps = table.numbers(order)
    rows = np.flatnonzero(np.isfinite(steps))
    full = rows[counted[rows]]
    if STEP.search(order) and (np.diff(steps[full]) > 0).all():
        return [("", np.ones(table.length, bool))]
    labels = _labels(table, steps, R, full, STEP.search(order))
    parts = [(label, labels == label) for label in sorted(set(labels[full])) or [""]]
    long = [(label, mask) for label, mask in parts if (mask & counted).sum() >= LEAST]
    if 0 < len(long) < len(parts):
        table.notes.append(f"{len(parts) - len(long)} runs of fewer than {LEAST} points are left out")
    return long or parts


def _labels(table, steps, R, rows, counts):
    """(length,) the run that each row of the table belongs to, such as "run a seed 0".

    A column of RUN_NAMES tells runs apart if fewer rows repeat a step of their run with another reward, or if no row
    does and the order is no count of steps (`counts`).
    """
    labels = np.full(table.length, "", object)
    for name in RUN_NAMES:
        cells = table.texts(name)
        found = Counter(str(cells[row]) for row in rows)
        if len(found) > 1 and max(found.values()) >= LEAST > found["None"]:
            finer = np.array([f"{label} {name} {cell}".strip() for label, cell in zip(labels, cells)], object)
            before, after = (_again(steps[rows], R[rows], x[rows]) for x in (labels, finer))
            if after < before or not before and not counts:
                labels = finer
    return labels


def _again(steps, R, labels):
    """How many rows repeat a step of the same label with another reward; all (n,)."""
    return len(set(zip(labels, steps, R))) - len(set(zip(labels, steps)))


def _led_on(steps):
    """(n,) whether a row led to the end of its run: no later row repeats its step or an earlier one, as in a run that
    was resumed."""
    repeats = np.ones(len(steps), bool)
    repeats[np.unique(steps, return_index=True)[1]] = False
    least = np.minimum.accumulate(np.where(repeats, steps, np.inf)[::-1])[::-1]
    return steps < np.append(least[1:], np.inf)


def _picked(table, compute, order, reward, cumulative, part, notes):
    """Compute, reward, epoch and row, (n,) each, of the points in the mask of rows `part`, in order of their steps.

    What is left out is added to the list `notes`.
    """
    C, R, epoch, steps = map(table.numbers, (compute, reward, "epoch", order))
    numbered = np.arange(table.length, dtype=float)
    C = numbered if compute == "row" else C
    steps = np.where(np.isfinite(steps) & bool(STEP.search(order)), steps, numbered + 0.5)  # else none repeats
    if cumulative:
        rows = np.flatnonzero(np.isfinite(C) & part)
        rows = rows[_led_on(steps[rows])]
        if np.sign(np.diff(C[rows])).sum() > len(rows) / 2:
            raise fit.BadInput(f"got --cumulative, but {compute} rises like a running total; leave --cumulative out")
        C[rows] = np.cumsum(C[rows])
    known = np.where(np.isfinite(epoch) & part, np.arange(table.length), 0)
    epoch = epoch[np.maximum.accumulate(known)]  # our log: that of the step before the evaluation
    rows = np.flatnonzero(np.isfinite(C + R) & part)
    kept = rows[_led_on(steps[rows])]
    kinds = table.texts("kind")
    if "eval" in kinds:
        kept = kept[[kinds[row] == "eval" for row in kept]]
    else:
        _check_one_run(steps[rows], R[rows])
        lost = sum(part[row] for row in table.columns[reward]) - (np.isfinite(R) & part).sum()
        again = len(rows) - len(kept)
        notes += [f"{lost} rows without a number are left out"] * bool(lost)
        notes += [f"{again} rows of repeated steps are left out; of each step the last counts"] * bool(again)
    kept = kept[np.argsort(steps[kept], kind="stable")]
    return np.arange(1.0, len(kept) + 1) if compute == "row" else C[kept], R[kept], epoch[kept], kept


def _check_one_run(steps, R):
    """Raise BadInput if more than a fifth of the rows repeat a step with another reward and the steps fall as often:
    such are the rows of several runs, or of single completions. A resumed run falls back once and goes on."""
    falls = (np.diff(steps) <= 0).sum()
    if LEAST * falls > len(steps) < LEAST * (again := _again(steps, R, steps * 0)):
        got = f"{again} of {len(steps)} rows repeat a step with another reward, expected one row for each step"
        raise fit.BadInput(f"{got}; average them, or tell runs apart by a column called 'run'")


def _check_compute(name, C):
    """Raise BadInput if C (n,), in order of the steps, does not rise from 0 on."""
    if C[0] < 0 or 1e9 < C[0] < C[-1] < 1.1 * C[0]:
        got = f"got {name} from {C[0]:.10g} to {C[-1]:.10g}, expected compute since the start, from 0 on"
        raise fit.BadInput(f"{got}; if it is a time of day, subtract that of the start")
    if (np.diff(C) < 0).any():
        raise fit.BadInput(f"{name} falls, expected a running total; if each row holds only its own, add --cumulative")


def _completions(table, asked, rows):
    """How many completions each evaluation is the mean of, or None; asked: a number, a column, or None: completions."""
    name = asked or "completions"
    counts = table.numbers(name)[rows] if name in table.columns else [np.nan]
    with suppress(TypeError, ValueError):
        counts = [float(asked)]
    if np.min(counts) >= 1:
        return float(np.median(counts))
    if asked:
        raise fit.BadInput(f"got --completions {asked}, expected a number from 1 on, or a column of them")


def scaled(R, scale):
    """Rewards (n,) mapped to [0, 1]; scale: "percent", "pm1" (-1 to 1), "LO:HI", or None for pass rates.

    Raises BadInput for any other scale.
    """
    if scale is None:
        return R
    try:
        low, high = SCALES.get(scale) or map(float, scale.split(":"))
    except ValueError:
        low = high = np.nan
    if not -np.inf < low < high < np.inf:
        raise fit.BadInput(f"got --scale {scale}, expected percent, pm1 or LO:HI with LO < HI")
    return (R - low) / (high - low)


def read_runs(path, compute=None, reward=None, scale=None, cumulative=False, completions=None):
    """[fit.Run] from a file, or from log.jsonl in the folder of a run: one, or several if the file holds more.

    compute     the name of its column, or the end of the name, or "row": rows are counted (default: `_compute`)
    reward      the same (default: `_reward`; in our logs also tasks.NAME)
    scale       see `scaled`
    cumulative  True: a row's compute is its own, so it is added up
    completions see `_completions`
    Rows without compute or reward are left out. Raises BadInput for what cannot be read, OSError for what cannot be
    opened.
    """
    path = Path(path) / "log.jsonl" if Path(path).is_dir() else Path(path)
    table = read_table(path)
    stem = path.parent.name if path.name == "log.jsonl" else Path(path.name.removesuffix(".gz")).stem
    try:
        rewards = _asked(table, reward, "--reward") if reward else _reward(table, scale)
        asked = compute and (compute if compute == "row" else _asked(table, compute, "--compute")[0])
        runs = []
        for reward in rewards:
            compute, order = _order(table, asked or _compute(table, reward), reward)
            column = reward.rpartition(" - ")[0] or reward if len(rewards) > 1 else ""
            for label, part in _parts(table, order, reward):
                name = " ".join(filter(None, (stem, column, label)))
                runs.append(_run(table, name, part, asked or compute, order, reward, scale, cumulative, completions))
        several = f"; {len(runs)} runs" * (len(runs) > 1)
    except fit.BadInput as error:
        raise fit.BadInput(f"{path}: {error}") from None
    return [run._replace(notes=(*run.notes[:-1], run.notes[-1] + several)) for run in runs]


def _run(table, name, part, compute, order, reward, scale, cumulative, completions):
    """The fit.Run of the rows in the mask `part`; arguments as in `read_runs`."""
    rate = f"as a pass rate by --scale {scale}" if scale else "taken as a pass rate"
    notes = [*dict.fromkeys(table.notes)]
    C, R, epoch, rows = _picked(table, compute, order, reward, cumulative, part, notes)
    if not len(C) or compute == reward:
        raise fit.BadInput(f"no row has both {compute} and {reward}, expected two columns with numbers in one row")
    _check_compute(compute, C)
    notes.append(f"reward: {reward}, {rate}; compute: {compute}")
    tasks = tuple(sorted(name for name in table.columns if name.startswith("tasks.")))
    unit = f"virtual {compute}" if compute == "gpu_hours" and "flags.virtual" in table.columns else compute
    count = _completions(table, completions, rows)
    if reward in tasks:  # our logs count the completions of all tasks
        name += f" {reward}"
        count = count and count / len(tasks)
    return fit.Run(
        C, scaled(R, scale), name=name, unit=unit, epoch=epoch, tasks=tasks, notes=tuple(notes), completions=count
    )


def read_run(*args, **options):
    """The last fit.Run of a file; arguments and errors as in `read_runs`."""
    return read_runs(*args, **options)[-1]
