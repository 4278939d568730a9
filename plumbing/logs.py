"""The readers of fit.py: a log, as its trainer wrote it, becomes a `fit.Run`.

The format is told by the content: our logs; CSV, TSV and tables with semicolons (wandb's and TensorBoard's exports
too); JSONL; a JSON list; trainer_state.json of Hugging Face's trainers; the console lines of verl (step:12 - score:0.5)
and of TRL ({'reward': '0.5'}); each also as .gz. A Table holds all columns; `read_runs` picks compute and reward and
splits a file that holds several runs.
"""

import csv
import gzip
import json
import re
import zlib
from array import array
from collections import Counter
from contextlib import suppress
from difflib import get_close_matches
from itertools import chain, islice
from pathlib import Path

import numpy as np

import fit
from plumbing.typed import beside

STEPS = ("step", "global_step", "Step", "_step", "train/global_step")  # as trainers call them
STEP = re.compile("step|iter", re.IGNORECASE)  # in the name of a column that may count them too, if it is asked for
COMPUTE = ("gpu_hours", *STEPS, "epoch")  # if none is asked for
REWARD = ("pass_rate", "reward", "Value")
COUNTS = ("completions", "num_completions", "num_samples", "n_samples", "samples", "episodes", "count", "total", "n")
RUN_NAMES = ("run", "run_id", "run_name", "experiment", "exp_name", "seed", "name", "method", "algo", "model", "group")
LEAST = 5  # points of a run; and what happens in less than every fifth row is an accident, as where a run was resumed
SCALES = {"percent": (0.0, 100.0), "pm1": (-1.0, 1.0)}
MISSING = {"", "-", "None", "none", "NULL", "null", "NA", "N/A", "n/a"}  # cells without a value
HEAD = 10_000  # lines that are looked at to tell the format
VERL = re.compile(r"\bstep:\d+ - .*")
TRL = re.compile(r"\{'.*\}")
PAIR = re.compile(r"'([^']+)': '?(-?[\d.]+(?:e[-+]?\d+)?|-?inf|nan)'?", re.IGNORECASE)


class Table:
    """Columns of a file: for each name the rows that have a value, and the values."""

    def __init__(self):
        self.columns = {}
        self.length = 0
        self.notes = []

    def add(self, pairs):
        """Append a row of (name, value); None and "" are no value."""
        for name, value in pairs:
            if value is not None and value != "":
                rows, values = self.columns.setdefault(name, (array("q"), []))
                rows.append(self.length)
                values.append(value)
        self.length += 1

    def texts(self, name):
        """The column as a list, None where it has no value."""
        found = [None] * self.length
        for row, value in zip(*self.columns.get(name, ((), ()))):
            found[row] = value
        return found

    def numbers(self, name):
        """The column as (length,) floats, nan where it has no value, and the mask of rows that have one."""
        found = np.full(self.length, np.nan)
        has = np.zeros(self.length, bool)
        rows, values = self.columns.get(name, ((), ()))
        if rows:
            found[rows] = numbers(name, values)
            has[rows] = True
        return found, has


def numbers(name, values):
    """The cells of column `name` as a list of floats. Raises BadInput for anything that is no number."""
    value = None
    try:
        if wrong := set(map(type, values)) - {bool, int, float, str}:
            value = next(x for x in values if type(x) in wrong)
            raise TypeError
        return [float(value := x) for x in values]
    except (TypeError, ValueError, OverflowError):
        raise fit.BadInput(f"{name} holds {value!r:.40}, expected a number; another column?") from None


# ---- Formats: each takes lines and fills a Table ----


def _add_object(table, row, what):
    """Add a JSON object as a row; the entries of an inner object get columns too, named like tasks.math."""
    if not isinstance(row, dict):
        raise fit.BadInput(f"{what} is {row!r:.40}, expected a JSON object")
    for name in [name for name, x in row.items() if type(x) is dict]:
        row |= {f"{name}.{key}": x for key, x in row[name].items()}
    table.add(row.items())


def _json_lines(table, lines):
    """JSONL; lines that are no row, as a crash or a full disk leaves them, are left out unless most are."""
    bad = {}
    for place, line in enumerate(lines, 1):
        try:
            row = json.loads(line.encode().strip() or "null")  # surrogates stand for bytes that are not UTF-8
            if line.strip():
                _add_object(table, row, f"line {place}")
        except (ValueError, RecursionError, fit.BadInput):
            bad[place] = f"line {place} is {line[:40]!r}, expected one JSON object"
    if len(bad) > table.length:
        raise fit.BadInput(next(iter(bad.values())))
    places = ", ".join(map(str, [*bad][:9])) + ", …" * (len(bad) > 9)
    table.notes += [f"left out what is no row, in line {places}"] * bool(bad)


def _json_whole(table, lines):
    """A JSON list of objects, or the log_history of a trainer_state.json."""
    content = json.loads("".join(lines))
    rows = content.get("log_history") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise fit.BadInput("one JSON object without log_history, expected a list of objects or one object a line")
    for place, row in enumerate(rows, 1):
        _add_object(table, row, f"entry {place}")


def _console(table, lines):
    """Those of the lines that verl or TRL printed; TRL prints an epoch and no step."""
    for line in lines:
        if found := VERL.search(line):
            pairs = (part.rpartition(":") for part in found[0].split(" - "))
            table.add((name, re.sub(r"^np\.\w+\((.*)\)$", r"\1", x.strip())) for name, _, x in pairs)
        elif found := TRL.search(line):
            table.add(PAIR.findall(found[0]))


def _rows(table, lines):
    """The lines of a table but comments, as monitor files have them, and a last one that ends within a number."""
    for line in lines:
        if line.endswith(".") and line[-2:-1].isdigit():  # all but the last line end with a newline
            table.notes.append(f"left out the last row, which ends within a number: {line[-20:]!r}")
        elif not line.startswith("#"):
            yield line


def _delimited(table, lines):
    """A header, then one row per line; cells end at the tab, semicolon or comma, whichever the header has most of."""
    lines = _rows(table, lines)
    first = next((line for line in lines if line.strip()), "")
    mark = max("\t;,", key=first.count)
    rows = csv.reader(chain([first], lines), delimiter=mark)
    header = [name.strip() for name in next(rows, [])]
    if len(header) < 2:
        raise fit.BadInput(f"the header is {first.strip()[:40]!r}, expected two or more columns")
    short = 0
    columns = [table.columns.setdefault(name, (array("q"), [])) for name in header]
    for row in rows:
        if len(row) > len(header):
            raise fit.BadInput(f"line {rows.line_num} has {len(row)} cells, the header {len(header)}")
        for (places, values), x in zip(columns, map(str.strip, row)):
            if x not in MISSING:
                places.append(table.length)
                values.append(x.replace(",", ".") if mark == ";" else x)
        table.length += 1
        short += 0 < len(row) < len(header)
    table.notes += [f"{short} rows have fewer cells than the header"] * bool(short)
    if repeated := {name for name in header if header.count(name) > 1}:
        for name in repeated:
            table.columns.pop(name, None)
        table.notes.append(f"columns that occur twice are left out: {', '.join(sorted(repeated)):.60}")


def _format(head, suffixes):
    """The reader for a file that starts with the lines `head`."""
    first = next((line.strip() for line in head if line.strip()), "")
    if re.match(r"\[\s*($|[\[{\]\d\"])", first) and not any(VERL.search(x) or TRL.search(x) for x in head):
        return _json_whole
    if first.startswith("{") and not first.startswith("{'"):
        try:
            row = json.loads(first)
        except ValueError:
            return _json_lines if '":' in first and len(head) > 1 and head[1].startswith("{") else _json_whole
        return _json_whole if "log_history" in row else _json_lines
    if not {".csv", ".tsv"} & set(suffixes) and any(VERL.search(x) or TRL.search(x) for x in head):
        return _console
    return _delimited


def _utf8(line):
    """The line, if its bytes are UTF-8; else UnicodeEncodeError."""
    line.encode()
    return line


def read_table(path):
    """The Table of a file; BadInput for what cannot be read, OSError for what cannot be opened."""
    table = Table()
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: No such file; {beside(path)}")
    if not path.is_file():
        raise fit.BadInput(f"{path} is not a file")
    with path.open("rb") as file:
        unpack = gzip.open if file.read(2) == b"\x1f\x8b" else open
    try:
        with unpack(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
            head = list(islice(lines, HEAD))
            if 2 * sum("\0" in line for line in head) > len(head):
                raise fit.BadInput("binary or UTF-16, expected UTF-8 text")
            read = _format(head, [suffix.lower() for suffix in path.suffixes])
            rest = chain(head, lines)
            read(table, rest if read is _json_lines else map(_utf8, rest))
    except (ValueError, csv.Error, RecursionError, EOFError, zlib.error) as error:  # no UTF-8, JSON, CSV or gzip
        raise fit.BadInput(f"{path}: {str(error) or 'nested too deep'}".replace("\n", " ")) from None
    return table


# ---- From columns to a Run ----


def _likely(names):
    """The first 12 names, and all others that look like rewards."""
    words = "reward", "score", "acc", "pass", "success", "correct", "return"
    return [name for n, name in enumerate(names) if n < 12 or any(word in name.lower() for word in words)]


def column(table, asked, usual, flag):
    """The name of a column: `asked`, or the only name that ends in it; if `asked` is None, the first of `usual`.

    A reward that is not asked for may also be the only column that is left. Raises BadInput, naming `flag`.
    """
    names = list(table.columns)
    if asked is None:
        asked = next((name for name in usual if name in names), None)
        rest = [x for x in names if x not in (*COMPUTE, "Wall time") and not x.endswith(("__MIN", "__MAX"))]
        asked = rest[0] if asked is None and usual is REWARD and len(rest) == 1 else asked
    ends = [name for name in names if asked and name.endswith(asked)]
    if asked in names or len(ends) == 1:
        return asked if asked in names else ends[0]
    wrong = "matches several columns" if ends else "matches no column" if asked else "is needed"
    close = ends or get_close_matches(asked or "", names, 3, 0.4) or _likely(names)
    got = ", ".join(f"{name:.40}" for name in close) or "no column at all"
    raise fit.BadInput(f"{flag} {asked or 'COLUMN'} {wrong}; there is {got}")


def _evaluations(table, part):
    """[(row, epoch)] of the evaluations of our log that count, within the mask of rows `part`; epoch: of the latest
    optimizer step before the row.

    A resumed run repeats the steps after its checkpoint: a row cancels earlier evaluations of its own or a later step.
    """
    steps, has = table.numbers("step")
    epochs, _ = table.numbers("epoch")
    kept = []
    epoch = np.nan
    for row, kind in enumerate(table.texts("kind")):
        if part[row] and kind in ("step", "eval") and has[row]:
            while kept and steps[kept[-1][0]] >= steps[row]:
                kept.pop()
            epoch = epochs[row] if np.isfinite(epochs[row]) else epoch
            if kind == "eval":
                kept.append((row, epoch))
    return kept


def _last(steps):
    """The index of the last row of each distinct step, in order of the steps; steps (n,)."""
    return len(steps) - 1 - np.unique(steps[::-1], return_index=True)[1]


def _steps(table, compute):
    """The steps (length,) by which repeated rows are known: the column of steps, else the rows' numbers."""
    name = next((name for name in (compute, *STEPS) if name in STEPS and name in table.columns), None)
    rows = np.arange(table.length, dtype=float)
    steps = table.numbers(name)[0] if name else rows
    return np.where(np.isfinite(steps), steps, rows + 0.5)  # a row without a step repeats none


def _parts(table, compute, reward):
    """[(label, mask of rows)] of the runs in a table: one, unless columns or falls of the steps separate several.

    Runs of fewer than LEAST points are left out with a note, unless all are so short.
    """
    every = np.ones(table.length, bool)
    R, _ = table.numbers(reward)
    kinds = table.texts("kind")
    counted = np.isfinite(R) & ([kind == "eval" for kind in kinds] if "eval" in kinds else every)
    name = next((name for name in (compute, *STEPS) if name in STEPS and name in table.columns), compute)
    steps, has = table.numbers(name)
    rows = np.flatnonzero(has & np.isfinite(steps))
    full = rows[counted[rows]]
    if "config" in kinds:
        parts = _numbered("", _cut(every, _starts(table)))
    elif STEP.search(name) and (np.diff(steps[full]) > 0).all():
        return [("", every)]
    else:
        labels = np.array(_labels(table, steps, R, full, {compute, reward, name}, STEP.search(name)))
        named = [(label, labels == label) for label in sorted(set(labels[full])) or [""]]
        parts = [x for label, mask in named for x in _numbered(label, _by_fall(steps, rows[mask[rows]], counted, mask))]
    return _long_enough(table, parts, counted)


def _long_enough(table, parts, counted):
    """Those of `parts` that have LEAST of the rows in the mask `counted`, or all if none has; a note on the rest."""
    points = [(mask & counted).sum() for _, mask in parts]
    if max(points) < LEAST or min(points) >= LEAST:
        return parts
    short = ", ".join(f"{label} ({n})" for (label, _), n in zip(parts, points) if n < LEAST)
    table.notes.append(f"runs of fewer than {LEAST} points are left out: {short:.100}")
    return [part for part, n in zip(parts, points) if n >= LEAST]


def _numbered(label, masks):
    """[(label, mask)], the labels numbered if there are several masks."""
    many = len(masks) > 1
    return [(f"{label} ({i} of {len(masks)})".strip() if many else label, mask) for i, mask in enumerate(masks, 1)]


def _cut(part, cuts):
    """The mask of rows `part` in pieces; one begins at each of the rows `cuts`, which ascend."""
    piece = np.searchsorted(cuts, np.arange(len(part)), side="right")
    return [part & (piece == i) for i in range(len(cuts) + 1)]


def _starts(table):
    """The rows of our log at which another run begins: a config with other flags that no checkpoint was resumed with.

    A run that is started anew before its first checkpoint has the same flags.
    """
    starts = []
    before = None
    for row, (kind, flags, resumed) in enumerate(zip(*map(table.texts, ("kind", "flags", "flags.resume")))):
        if kind == "config":
            if before not in (None, flags) and resumed is False:
                starts.append(row)
            before = flags
    return starts


def _labels(table, steps, R, rows, taken, counts):
    """For each row of the table the run it belongs to, such as "run a seed 0"; "" if no column tells runs apart.

    counts  whether `steps` are optimizer steps, which runs share; they seldom share hours or tokens
    """
    labels = [""] * table.length
    usual = [name for name in RUN_NAMES if name in table.columns]
    for name in [name for name in (*usual, *sorted(set(table.columns) - {*usual})) if name not in taken]:
        values = table.texts(name)
        if _may_name(name, [values[row] for row in rows]):
            finer = [f"{label} {name} {value}".strip() for label, value in zip(labels, values)]
            now, then = ([x[row] for row in rows] for x in (labels, finer))
            if _tells_apart(name in usual, now, then, steps[rows], R[rows], counts):
                labels = finer
    return labels


def _may_name(name, values):
    """Whether column `name` with these values may tell runs apart: a usual name, of which a crashed run may have few
    rows and a few rows none; or texts."""
    found = Counter(map(str, values))
    if not 1 < len(found) <= 100:
        return False
    if name in RUN_NAMES:
        return values.count(None) < LEAST <= max(found.values())
    return min(found.values()) >= LEAST and all(isinstance(x, str) and not _is_number(x) for x in values)


def _tells_apart(usual, labels, finer, steps, R, counts):
    """Whether the labels `finer` (n,) tell runs apart that share one of `labels`, whatever the order of the rows.

    Then fewer rows repeat a step of their run with another reward (none, unless the column has a usual name). Where no
    row does, the rows of runs side by side alternate, and the steps of runs one after the other rise within each.
    """
    before, after = (_conflicts(x, steps, R) for x in (labels, finer))
    if before:
        return after < before if usual else not after
    known = len(set(finer))
    changes = sum(x != y for x, y in zip(finer, finer[1:]))
    beside_each_other = usual and not counts and known > len(set(labels)) and changes >= known
    return beside_each_other or _rise(finer, steps) and not _rise(labels, steps)


def _conflicts(labels, steps, R):
    """How many rows repeat a step of the same label with another reward; all (n,)."""
    return len(set(zip(labels, steps, R))) - len(set(zip(labels, steps)))


def _rise(labels, steps):
    """Whether the steps rise from row to row of each label."""
    last = {}
    for label, step in zip(labels, steps):
        if step <= last.get(label, -np.inf):
            return False
        last[label] = step
    return True


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def _by_fall(steps, rows, counted, part):
    """The mask `part`, whose steps stand in `rows`, in pieces that begin where the steps fall back to the first one or
    below; whole, if fewer than two pieces have LEAST points or the rows are in no order."""
    falls = np.diff(steps[rows]) < 0
    pieces = _cut(part, rows[1:][falls & (steps[rows[1:]] <= steps[rows[:1]])])
    long = sum((piece & counted).sum() >= LEAST for piece in pieces)
    return pieces if long > 1 and LEAST * falls.sum() <= len(rows) else [part]


def _check_one_run(table, steps, R, rows, taken):
    """Raise BadInput if more than a fifth of the rows repeat a step with another reward and the steps fall as often:
    such are the rows of several runs, or of single completions. A resumed run falls back once and goes on.
    """
    if LEAST * (np.diff(steps) <= 0).sum() <= len(rows):
        return
    pairs = np.unique(np.stack([steps, R], 1), axis=0)
    mixed = np.unique(pairs[1:, 0][np.diff(pairs[:, 0]) == 0])  # steps with several rewards
    again = np.isin(steps, mixed).sum() - len(mixed)
    if LEAST * again <= len(rows):
        return
    others = {name: table.texts(name) for name in table.columns if name not in taken}
    vary = [name for name, values in others.items() if len({str(values[row]) for row in rows[steps == mixed[0]]}) > 1]
    vary.sort(key=lambda name: len(set(map(str, others[name]))))  # what tells runs apart has few values
    remedy = (
        f"call the column that tells them apart 'run'; at step {mixed[0]:g} these differ: {', '.join(vary[:5]):.200}"
    )
    raise fit.BadInput(
        f"{again} of {len(rows)} rows repeat a step with another reward, expected one row for each step; average them, "
        f"or, if they are of several runs, {remedy if vary else 'give each a file: no other column tells them apart'}"
    )


def _pick(table, compute, reward, cumulative, part, notes):
    """Compute, reward and epoch, (n,) each, of the rows of `part` that have compute and reward, in order of their
    steps; the rows. Of a repeated step the last row counts. What is left out is added to the list `notes`.
    """
    (C, has_C), (R, has_R), (epoch, _) = map(table.numbers, (compute, reward, "epoch"))
    if evaluations := _evaluations(table, part) if "kind" in table.columns else ():
        rows, epochs = zip(*evaluations)
        epoch[list(rows)] = epochs
        has_R[np.delete(np.arange(len(C)), rows)] = False
    steps = _steps(table, compute)
    if cumulative:
        rows = np.flatnonzero(np.isfinite(C) & part)
        rows = rows[_last(steps[rows])]
        if _runs_on(C[rows]):
            raise fit.BadInput(f"got --cumulative, but {compute} rises like a running total; leave --cumulative out")
        C[rows] = np.cumsum(C[rows])
    full = has_C & has_R & part
    rows = np.flatnonzero(full & np.isfinite(C + R))
    if lost := full.sum() - len(rows):
        notes.append(f"{lost} rows without a number are left out")
    counts = STEP.search(compute) and not set(STEPS) & set(table.columns)
    _check_one_run(table, (C if counts else steps)[rows], R[rows], rows, {compute, reward})
    again = len(rows)
    rows = rows[_last(steps[rows])]
    if again := again - len(rows):
        notes.append(f"{again} rows of repeated steps are left out; of each step the last counts")
    return C[rows], R[rows], epoch[rows], rows


def _completions(table, asked, R, rows):
    """How many completions (or episodes) each evaluation is the mean of, or None.

    asked: a number, a column's name, or None: the first of COUNTS with which all rewards R (n,) are whole counts.
    """
    with suppress(TypeError, ValueError):
        if float(asked) >= 1:
            return float(asked)
    if asked is not None and asked not in table.columns:
        raise fit.BadInput(f"got --completions {asked}, expected a number from 1 on or a column's name")
    for name in [asked] if asked else [name for name in COUNTS if name in table.columns]:
        with suppress(*[] if asked else [fit.BadInput]):
            counts = table.numbers(name)[0][rows]
            whole = np.isfinite(counts).all() and (counts >= 1).all()
            hits = R * counts
            if whole and (asked or name == COUNTS[0] or (abs(hits - hits.round()) < 0.02).all()):
                return float(np.median(counts))
    if asked:
        raise fit.BadInput(f"--completions {asked}: expected a count from 1 on in each evaluation")
    return None


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


def _counted(table, compute, reward):
    """The column of the compute; "row", which is added, if that is an epoch so rounded that rows share it (TRL prints
    two decimals). Rows with a reward are numbered, anew where the epoch falls back to the first one."""
    epochs, has = table.numbers(compute)
    rows = np.flatnonzero(has & table.numbers(reward)[1] & np.isfinite(epochs))
    if len(set(epochs[rows])) == len(rows):
        return compute
    falls = np.append(False, (np.diff(epochs[rows]) < 0) & (epochs[rows][1:] <= epochs[rows][0]))
    place = np.arange(len(rows))
    number = 1 + place - np.maximum.accumulate(np.where(falls, place, 0))
    table.columns["row"] = array("q", rows.tolist()), number.tolist()
    table.notes.append(
        f"rows share a rounded {compute}: their numbers count as compute (--x {compute} for the {compute})"
    )
    return "row"


def read_runs(path, compute=None, reward=None, scale=None, cumulative=False, completions=None):
    """[fit.Run] from a file, or from log.jsonl in the folder of a run: one, or several if the file holds more.

    compute     the name of its column, or the end of the name (default: gpu_hours, else the step, else the epoch)
    reward      the same (default: pass_rate, else reward, else the only other column; in our logs also tasks.NAME)
    scale       see `scaled`
    cumulative  True: a row's compute is its own, so it is added up
    completions see `_completions`
    Rows without compute or reward are left out. Raises BadInput for what cannot be read, OSError for what cannot be
    opened.
    """
    path = Path(path) / "log.jsonl" if Path(path).is_dir() else Path(path)
    table = read_table(path)
    try:
        asked = compute
        compute = column(table, compute, COMPUTE, "--compute")
        reward = column(table, reward, REWARD, "--reward")
        if compute == reward:
            raise fit.BadInput(f"got {compute} as --compute and as --reward")
        if asked is None and compute == "epoch":
            compute = _counted(table, compute, reward)
        stem = path.parent.name if path.name == "log.jsonl" else Path(path.name.removesuffix(".gz")).stem
        picked = (compute, reward, scale, cumulative, completions)
        return [_run(table, f"{stem} {label}".strip(), part, *picked) for label, part in _parts(table, compute, reward)]
    except fit.BadInput as error:
        raise fit.BadInput(f"{path}: {error}") from None


def _run(table, name, part, compute, reward, scale, cumulative, completions):
    """The fit.Run of the rows of `part`; arguments as in `read_runs`."""
    notes = list(table.notes)
    C, R, epoch, rows = _pick(table, compute, reward, cumulative, part, notes)
    if not len(C):
        raise fit.BadInput(f"no row has both {compute} and {reward}")
    _check_compute(compute, C)
    R = scaled(R, scale)
    tasks = tuple(sorted(name for name in table.columns if name.startswith("tasks.")))
    unit = f"virtual {compute}" if compute == "gpu_hours" and "flags.virtual" in table.columns else compute
    count = _completions(table, completions, R, rows)
    if reward in tasks:  # our logs count the completions of all tasks
        name += f" {reward}"
        count = count and count / len(tasks)
    return fit.Run(C, R, name=name, unit=unit, epoch=epoch, tasks=tasks, notes=tuple(notes), completions=count)


def _runs_on(C):
    """Whether the values (n,) mostly rise and seldom fall, like a running total whose clock a resumed run restarts."""
    change = np.diff(C)
    return LEAST * (change < 0).sum() <= len(C) < 2 * (change > 0).sum()


def _check_compute(name, C):
    """Raise BadInput if C (n,), in order of the steps, does not rise from 0 on."""
    if C[0] > 1e9 and C[0] < C[-1] < 1.1 * C[0]:
        got = f"got {name} from {C[0]:.10g} to {C[-1]:.10g}, expected compute since the start"
        raise fit.BadInput(f"{got}; is it a time of day? subtract that of the start")
    fall = np.flatnonzero(np.diff(C) < 0)
    if not len(fall):
        return
    remedy = f"if each row holds only its own, add --cumulative; if {name} is a running total, sort the rows by it"
    if _runs_on(C) and STEP.search(name):
        remedy = "if the run was resumed, call the column 'step': then the last row of each counts"
    elif _runs_on(C):
        remedy = "did the clock start anew when the run was resumed? add what it had reached to the rows after it"
    elif _runs_on(-C):
        remedy = "is the last row the first? sort the rows by it"
    raise fit.BadInput(f"{name} falls from {C[fall[0]]:g} to {C[fall[0] + 1]:g}; {remedy}")


def read_run(*args, **options):
    """The last fit.Run of a file; arguments and errors as in `read_runs`."""
    return read_runs(*args, **options)[-1]
