"""The readers of fit.py: train.py's own logs, and tables of other trainers, of which two columns are named.

    ours          the first row is of kind config and has flags; its evaluations are read, pass_rate over gpu_hours
    JSON          JSON Lines, or the only list of objects in one value; tasks.math: math in an inner object tasks
    .csv, .tsv    the first line names the columns, behind comments (#)
    tfevents      an event file of TensorBoard, if tensorboard is installed: its tags are columns beside `step`

    --reward, --x    the name of a column, or the last part of exactly one (acc for val/acc); --x row counts the rows
    --where N=V      keeps the rows whose cell in column N is V, or one of several values of N
    runs             rows with another `run` or `seed` are another run
    steps            a run may be resumed: it then repeats a range of its steps, and the last row of a step counts

The notes of each `fit.Run` say what was taken and what was left out.
"""

import csv
import json
import re
from collections import Counter
from io import StringIO
from itertools import dropwhile
from pathlib import Path

import numpy as np

import fit

STEPS = ("global_step", "step")  # columns by which repeated rows are known, else the compute
RUNS = ("run", "seed")
LEAST = 5  # points of a run
MISSING = {None, "", "-", "None", "null", "NULL", "NA", "N/A", "n/a"}  # cells without a value
SCALES = {None: (0.0, 1.0), "percent": (0.0, 100.0), "pm1": (-1.0, 1.0)}
FORMS = (
    "expected JSON Lines, JSON with one list of objects, CSV or TSV; docs/forecasting.md, 'Other forms of logs', makes "
    "a CSV of a console, of Parquet and of Excel; then: --reward NAME --x NAME"
)


# ---- From a file to rows ----


def read_rows(path):
    """([{column: cell}], notes) of a file. BadInput for what cannot be read, OSError for what cannot be opened."""
    if "tfevents" in path.name:
        return from_events(path), []
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise fit.BadInput(f"got no text, or not in UTF-8 (iconv -f ENCODING -t UTF-8); {FORMS}") from None
    return from_table(text) if path.suffix in (".csv", ".tsv") else from_json(text)


def from_json(text):
    """Rows of JSON Lines, of which a crash may leave some broken, or of the only list of objects in one value."""
    rows, broken = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(dict(flat(json.loads(line))))
            except (ValueError, AttributeError, RecursionError):
                broken.append(number)
    if len(broken) < len(rows) > 1:
        return rows, [f"left out {len(broken)} lines that are no row: {str(broken[:9])[1:-1]}"] if broken else []
    try:
        tables = [value for value in lists(json.loads(text)) if all(isinstance(row, dict) for row in value)]
    except json.JSONDecodeError as error:
        raise fit.BadInput(f"this is no JSON, or it was cut off: {error}; {FORMS}") from None
    if len(tables) != 1:
        raise fit.BadInput(
            f"got {len(tables)} lists of objects, expected one; write each to a file of its own; {FORMS}"
        )
    return [dict(flat(row)) for row in tables[0]], []


def lists(value):
    """All lists in a value that are not empty and stand in no other list."""
    if isinstance(value, list) and value:
        yield value
    if isinstance(value, dict):
        for inner in value.values():
            yield from lists(inner)


def flat(row, path=""):
    """(name, value) of all that an object holds."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{name}.")
        else:
            yield path + name, value


def from_table(text):
    """Rows of a table: the first line behind comments names the columns. A resumed run may write it again."""
    lines = list(dropwhile(lambda line: line.startswith("#"), StringIO(text, newline="")))
    table = csv.DictReader(lines, delimiter=max(",;\t", key="".join(lines[:1]).count), skipinitialspace=True)
    header = list(table.fieldnames or ())
    if any(map(is_number, header)):
        raise fit.BadInput("the first line holds numbers, expected the names of the columns in a line before it")
    if len(set(header)) < len(header):
        raise fit.BadInput(f"the first line names a column twice: {header!r:.200}; rename one")
    rows = [row for row in table if any(row.values()) and list(row.values()) != header]
    if any(None in row for row in rows):
        raise fit.BadInput(f"a row has more cells than the first line names, {len(header)}")
    return rows, []


def from_events(path):
    """Rows of an event file of TensorBoard: a step each, of two values of a step the last."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise fit.BadInput(f"got an event file, which needs: pip install tensorboard; or {FORMS}") from None
    events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
    rows = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            rows.setdefault(event.step, {"step": event.step})[tag] = event.value
    return [rows[step] for step in sorted(rows)]


def with_points(rows):
    """Rows whose decimal commas have become points, and whose points have become commas, which are no numbers."""
    swap = str.maketrans(",.", ".,")

    def pointed(cell):
        return cell.translate(swap) if isinstance(cell, str) and re.fullmatch(r"[-+\d.,]+(e[-+]?\d+)?", cell) else cell

    return [{name: pointed(cell) for name, cell in row.items()} for row in rows]


def is_number(cell):
    try:
        return float(cell) is not None
    except ValueError:
        return False


def numbers(rows, name):
    """A column as (n,) floats, nan where it has no value. Raises BadInput for a cell that is no number."""
    column = np.full(len(rows), np.nan)
    for place, row in enumerate(rows):
        cell = row.get(name)
        try:
            if cell not in MISSING:
                column[place] = float(cell)
        except (ValueError, TypeError, OverflowError):
            expected = "a number: a decimal point (else --decimal ,), no unit, no %, nothing between thousands"
            raise fit.BadInput(f"{name} holds {cell!r:.40}, expected {expected}") from None
    return column


# ---- From rows to columns ----


def names_of(rows):
    return list(dict.fromkeys(name for row in rows for name in row))


def table_of(rows):
    """The columns, as lines: name, least, most, how many rows hold a number, whether all lie in [0, 1] and all rise."""
    lines = [f"  {'least':>10} {'most':>10} {'rows':>6} {'in [0, 1]':>9} {'rises':>5}  column"]
    for name in names_of(rows):
        try:
            column = numbers(rows, name)
            column = column[np.isfinite(column)]
            low, high = column.min(), column.max()
        except ValueError:  # BadInput too: a column of text, or one that is empty
            lines.append(f"  {'no numbers':44}  {name!r:.100}")
        else:
            unit = "yes" if 0 <= low <= high <= 1 else ""
            rises = "yes" if (np.diff(column) > 0).all() else ""
            lines.append(f"  {low:10.4g} {high:10.4g} {len(column):6} {unit:>9} {rises:>5}  {name!r:.100}")
    return "\n".join(lines)


def column_of(rows, asked, flag):
    """The name of the column that is asked for. Raises BadInput with the table of columns if it is not exactly one."""
    names = names_of(rows)
    matches = [asked] if asked in names else [name for name in names if name.endswith((f"/{asked}", f".{asked}"))]
    if asked is None:
        raise fit.BadInput(
            f"--reward NAME and --x NAME are needed, the names of two of these columns:\n{table_of(rows)}"
        )
    if len(matches) != 1:
        got = "several columns" if matches else "no column"
        raise fit.BadInput(f"{flag} {asked} names {got}, expected one of these:\n{table_of(rows)}")
    return matches[0]


def text_of(cell):
    """A cell as --where names it."""
    return cell if isinstance(cell, str) else "" if cell is None else json.dumps(cell)


def where(rows, conditions):
    """The rows that hold one of the values that `conditions`, ("NAME=VALUE", ...), give for each name, without these
    columns, which then tell no rows apart."""
    values: dict[str, list] = {}
    for condition in conditions:
        name, equals, value = condition.partition("=")
        if not equals:
            raise fit.BadInput(f"got --where {condition}, expected NAME=VALUE")
        values.setdefault(column_of(rows, name, "--where"), []).append(value)
    kept = [row for row in rows if all(text_of(row.get(name)) in some for name, some in values.items())]
    if not kept:
        there = {name: sorted({text_of(row.get(name)) for row in rows})[:9] for name in values}
        raise fit.BadInput(f"--where keeps no row; the values are {there}")
    return [{name: cell for name, cell in row.items() if name not in values} for row in kept]


def check_one_series(rows):
    """Raise BadInput if a column of text tells the rows of a run apart: it has several values, each several times."""
    for name in names_of(rows):
        counts = Counter(text_of(row.get(name)) for row in rows)
        texts = {value for value in counts if not is_number(value)} - MISSING
        if name not in RUNS and texts and len(counts) > 1 and min(counts.values()) > 1:
            values = ", ".join(f"{value!r:.40} ({count} rows)" for value, count in counts.most_common(9))
            got = f"the column {name} tells {len(counts)} series of rows apart: {values}"
            raise fit.BadInput(f"{got}; keep one: --where {name}=VALUE, or name each value that belongs to the run")


def ends(scale):
    """The rewards that become 0 and 1, of "percent", "pm1" (-1 to 1), "LO:HI", or None for pass rates.

    Raises BadInput for any other scale.
    """
    try:
        low, high = SCALES.get(scale) or map(float, scale.split(":"))
    except ValueError:
        low = high = np.nan
    if not -np.inf < low < high < np.inf:
        raise fit.BadInput(f"got --scale {scale}, expected percent, pm1 or LO:HI with LO < HI")
    return low, high


# ---- From columns to a Run ----


def led_on(steps):
    """(n,) whether a row led to the end of its run: no later row repeats its step or an earlier one."""
    later = np.minimum.accumulate(np.append(steps, np.inf)[::-1])[::-1][1:]
    return steps < later


def check_resumed(name, steps):
    """Raise BadInput if the rows, by their steps (n,), are not those of one run that may have been resumed: each part
    then begins after the first step, and repeats the steps that the run had from there on."""
    before, *parts = np.split(steps, np.flatnonzero(np.diff(steps) <= 0) + 1)
    for part in parts:
        repeated = before[(part[0] <= before) & (before <= part[-1])]
        again = part[part <= before[-1]]
        if part[0] == before[-1] or part[0] <= steps[0] or not np.array_equal(again, repeated):
            raise fit.BadInput(
                f"{name} goes from {before[-1]:g} to {part[0]:g}, expected steps that rise, or a run that was resumed "
                "and repeats a range of them; average rows of a step, keep one by --where, or name runs in a column run"
            )
        before = np.append(before[before < part[0]], part)


def check_compute(name, C):
    """Raise BadInput if C (n,), in order of the steps, does not rise from 0 on."""
    if C[0] < 0 or 1e9 < C[0] < C[-1] < 1.1 * C[0]:
        raise fit.BadInput(
            f"got {name} from {C[0]:.10g} to {C[-1]:.10g}, expected compute since the start, from 0 on; if it is a "
            "time of day, subtract that of the start; --x row counts the rows"
        )
    if (np.diff(C) < 0).any():
        raise fit.BadInput(
            f"{name} falls while the rows go on, expected a running total; --cumulative rows if each row holds its "
            "own, --cumulative parts if it starts anew after a restart; a run that repeats rows needs a column of steps"
        )
    if 2 * len(set(C)) <= len(C) > 1:
        raise fit.BadInput(
            f"{name} has {len(set(C))} values in {len(C)} rows, expected one each; if rounded, --x row counts the rows"
        )


def added_up(name, C, parts):
    """The running total (n,) of a compute (n,): of "parts" that each start anew, or of what each of "rows" holds."""
    falls = np.diff(C) < 0
    if not falls.any() and (parts == "parts" or (np.diff(C) > 0).all()):
        raise fit.BadInput(f"got --cumulative {parts}, but {name} is a running total; leave --cumulative out")
    if parts == "rows":
        return np.cumsum(C)
    return C + np.cumsum(np.append(0, np.where(falls, C[:-1], 0)))


def completions_of(rows, asked):
    """How many completions each evaluation is the mean of, or None; asked: a number, a column, or None: completions."""
    try:
        counts = np.array([float(asked)])
    except (TypeError, ValueError):
        counts = numbers(rows, asked or "completions")
    if np.min(counts) >= 1:
        return np.median(counts)
    if asked:
        raise fit.BadInput(f"got --completions {asked}, expected a number from 1 on, or a column of them")


def one_run(rows, notes, compute, reward, scale, cumulative, completions):
    """The fit.Run of the rows of one run, whose columns are named exactly; other arguments as in `read_runs`. Adds to
    `notes` what was left out, and what was taken."""
    R, C = numbers(rows, reward), numbers(rows, compute)
    own_order = "row" if cumulative else compute
    order = next((step for step in STEPS if np.isfinite(numbers(rows, step) + R).any()), own_order)
    steps = numbers(rows, order)
    there = np.isfinite(C + steps + R)
    if not there.any():
        raise fit.BadInput(f"no row has both {compute} and {reward}, expected two columns with numbers in one row")
    check_one_series([row for row, used in zip(rows, there) if used])
    falls = (np.diff(steps[there]) < 0).any()
    if falls and len(set(steps[there])) == there.sum():
        by_step = np.argsort(steps, kind="stable")
        rows = [rows[place] for place in by_step]
        R, C, steps, there = (column[by_step] for column in (R, C, steps, there))
        notes.append(f"the rows were sorted by {order}")
    elif order not in STEPS:
        steps = numbers(rows, "row")  # a compute may be rounded
    there = np.flatnonzero(there)
    check_resumed(order, steps[there])
    if cumulative:
        own = np.flatnonzero(np.isfinite(C + steps))
        own = own[led_on(steps[own])]
        C[own] = added_up(compute, C[own], cumulative)
        notes.append(f"--cumulative {cumulative}: {compute} is added up")
    kept = there[led_on(steps[there])]
    counts = {
        f"without a number for {reward} or {compute}": len(rows) - len(there),
        "of repeated steps, of which the last counts": len(there) - len(kept),
    }
    notes += [f"rows left out {what}: {count}" for what, count in counts.items() if count]
    if compute == "row":
        C[kept] = np.arange(1.0, len(kept) + 1)
    check_compute(compute, C[kept])
    tasks = tuple(sorted({column for row in rows for column in row if column.startswith("tasks.")}))
    count = completions_of([rows[place] for place in kept], completions)
    if count and reward in tasks:  # our logs count the completions of all tasks
        count /= len(tasks)
    notes.append(f"reward: {reward}, {f'by --scale {scale}' if scale else 'taken as a pass rate'}; compute: {compute}")
    run = fit.Run(C[kept], R[kept], tasks=tasks, notes=tuple(notes), completions=count, ends=ends(scale))
    return run._replace(reward=run.rate(run.reward))


def evaluations(rows):
    """The rows of one of our logs that hold the evaluations that led to its end; its steps, too, tell what did not."""
    rows = [row for row in rows if row.get("kind") in ("step", "eval")]
    led = led_on(numbers(rows, "step"))
    return [row for row, kept in zip(rows, led) if kept and row["kind"] == "eval"]


def read_runs(
    path, compute=None, reward=None, scale=None, cumulative=None, completions=None, conditions=(), decimal="."
):
    """[fit.Run] from a file, or from log.jsonl in the folder of a run: one, or several if the file holds more.

    compute, reward  columns, see above; compute "row": rows are counted
    scale            see `ends`
    cumulative       "rows" or "parts": the compute is added up, see `added_up`
    completions      see `completions_of`
    conditions       see `where`
    decimal          "," if numbers are written with decimal commas
    Rows without compute or reward are left out. Raises BadInput for what cannot be read, OSError for what cannot be
    opened.
    """
    path = Path(path)
    if path.is_dir():
        path /= "log.jsonl"
    name = path.absolute().parent.name if path.name == "log.jsonl" else path.stem
    try:
        rows, notes = read_rows(path)
        if not rows:
            raise fit.BadInput("got no row, expected names of columns and values for them")
        first = rows[0]
        if first.get("kind") == "config" and any(column.startswith("flags.") for column in first):
            rows = evaluations(rows)
            compute, reward = compute or "gpu_hours", reward or "pass_rate"
        if decimal == ",":
            rows = with_points(rows)
        rows = [{"row": number, **row} for number, row in enumerate(where(rows, conditions), 1)]
        reward, compute = column_of(rows, reward, "--reward"), column_of(rows, compute, "--x")
        if reward == compute:
            raise fit.BadInput(f"got {reward} for --reward and for --x, expected two columns")
        unit = f"virtual {compute}" if compute == "gpu_hours" and first.get("flags.virtual") else compute
        runs = []
        for label, part in runs_in(rows, reward, notes):
            run = one_run(part, list(notes), compute, reward, scale, cumulative, completions)
            runs.append(run._replace(name=f"{name} {label}".strip(), unit=unit, source=path))
        return runs
    except (fit.BadInput, csv.Error, RecursionError) as error:
        raise fit.BadInput(f"{path}: {error}") from None


def runs_in(rows, reward, notes):
    """[(label, rows)] of the runs that the columns RUNS tell apart; "" labels the only one. Adds a note on those of
    fewer than LEAST points."""
    parts = {}
    for row in rows:
        label = " ".join(f"{name} {row[name]}" for name in RUNS if text_of(row.get(name)) not in MISSING)
        parts.setdefault(label, []).append(row)
    if len(parts) == 1:
        return [("", rows)]
    long = [label for label, part in parts.items() if np.isfinite(numbers(part, reward)).sum() >= LEAST]
    if not long:
        raise fit.BadInput(
            f"the columns {' and '.join(RUNS)} tell {len(parts)} runs apart, none of {LEAST} points; else rename them"
        )
    short = [f"{label or 'no run'} ({len(part)} rows)" for label, part in parts.items() if label not in long]
    if short:
        notes.append(f"runs of fewer than {LEAST} points, left out: {', '.join(short)}")
    return [(label if len(long) > 1 else "", parts[label]) for label in long]


def read_run(*args, **options):
    """The last fit.Run of a file; arguments and errors as in `read_runs`."""
    return read_runs(*args, **options)[-1]
