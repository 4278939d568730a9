"""The readers of fit.py: train.py's own logs, and those of other trainers, whose columns are named.

    JSON         JSON Lines, or one list of objects, which may stand inside an object; tasks.math: in an inner object
    .csv, .tsv   the first line names the columns; a later line of names holds for the rows below it
    any other    a console: lines with name: value or name=value

    reward    --reward, else pass_rate
    compute   --x, else the first of COMPUTE that stands beside the reward
    both      need no name in a file of two columns, if one rises and the other lies in [0, 1]
    runs      rows with another `run` or `seed` are another run
    steps     a run may be resumed: of rows that repeat a step the last counts

A column is named whole or by its end. Anything else is refused with the columns there are and a command to paste.
Files may be packed (.gz). The last note of each `fit.Run` says what was taken.
"""

import csv
import gzip
import json
import re
import shlex
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np

import fit

COMPUTE = ("gpu_hours", "global_step", "step")
STEPS = ("global_step", "step")  # columns by which repeated rows are known, if compute is none
RUNS = ("run", "seed")
LEAST = 5  # points of a run
MISSING = {None, "", "-", "None", "null", "NULL", "NA", "N/A", "n/a"}  # cells without a value
PAIR = re.compile(  # reward: 0.5, 'reward': '0.5', val/acc:np.float64(0.5); cells such as 3/4 are kept, and refused
    r"(?<![\w./@+-])([^\W\d][\w./@+-]{0,200})['\"]?\s*[:=]\s*['\"]?(?:[a-z][\w.]*\()?([-+]?(?:\.?\d(?:[^\s,;'\"|()\[\]{}]|,(?=\d))*|nan|inf))",
    re.IGNORECASE,
)
SCALES = {None: (0.0, 1.0), "percent": (0.0, 100.0), "pm1": (-1.0, 1.0)}
FORMS = "expected JSON Lines, a file named .csv, or lines with name: value; else write a CSV of step and pass_rate"
BLANKS = "a table between blanks becomes one by: tr -s ' |' ',' < FILE > FILE.csv"
LIKELY = ("accura|pass|solve|success|correct", "reward|score|acc")  # in names of rewards that a refusal suggests


# ---- From a file to rows ----


def read_rows(path):
    """([{column: cell}], notes) of a file. BadInput for what cannot be read, OSError for what cannot be opened."""
    if "tfevents" in path.name or path.suffix in (".parquet", ".xlsx") or path.is_dir():
        raise fit.BadInput("folders, event files, Parquet and Excel are not read; export the columns as CSV")
    if not path.exists():
        raise FileNotFoundError(f"{path}: No such file")
    if not path.is_file():
        raise fit.BadInput("this is not a file")
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig", errors="replace")
        if re.match(r'\s*(\[\s*)?\{\s*"', text):
            return from_json(text)
        if Path(path.name.removesuffix(".gz")).suffix in (".csv", ".tsv"):
            return from_csv(text)
        return from_console(text)
    except (ValueError, csv.Error, RecursionError, EOFError, zlib.error) as error:  # no text, JSON, CSV or gzip
        raise fit.BadInput(str(error).replace("\n", " ") or "nested too deep") from None


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
        places = ", ".join(map(str, broken[:9]))
        return rows, [f"left out {len(broken)} lines that are no row: {places}"] if broken else []
    try:
        found = dict(lists(json.loads(text)))
    except json.JSONDecodeError as error:
        raise fit.BadInput(f"this is no JSON, or it was cut off: {error}") from None
    rows_of = {name: rows for name, rows in found.items() if isinstance(rows[0], dict)}
    if len(rows_of) == 1:
        return [dict(flat(row)) for row in [*rows_of.values()][0] if isinstance(row, dict)], []
    if rows_of:
        got = f"got {len(rows_of)} lists of rows, {', '.join(rows_of)}"
        raise fit.BadInput(f"{got}, expected one; write each to a file of its own")
    got = f"got lists of cells, {', '.join(found)}" if found else "got no list of objects"
    remedy = "import json, pandas; pandas.DataFrame(json.load(open('FILE'))).to_csv('FILE.csv')"
    raise fit.BadInput(f'{got}, expected rows; write a CSV: python -c "{remedy}"')


def lists(value, path=""):
    """(name, list) of all lists in a value that are not empty and stand in no other list."""
    if isinstance(value, list) and value:
        yield path or "the list", value
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from lists(inner, f"{path}.{name}".strip("."))


def flat(row, path=""):
    """(name, value) of all that an object holds."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{name}.")
        else:
            yield path + name, value


def from_csv(text):
    """Rows of a table: its first line that is no comment names the columns, and so does each further line of names."""
    lines = text.splitlines(keepends=True)
    said = [line for line in lines if not line.startswith("#")]
    notes = [f"left out {len(lines) - len(said)} lines of comments"] if len(said) < len(lines) else []
    mark = max(",;\t", key="".join(said[:1]).count)
    header, rows = None, []
    for number, cells in enumerate(csv.reader(said, delimiter=mark, skipinitialspace=True), 1):
        cells = [cell.strip() for cell in cells]
        words = [cell for cell in cells if cell and not is_number(cell)]
        if not header or len(words) == sum(map(bool, cells)) and set(words) & set(header):
            if len(words) < sum(map(bool, cells)):
                remedy = "put a line of names before it: sed '1i step,pass_rate' FILE > FILE.csv"
                raise fit.BadInput(f"the first line holds numbers, expected the names of the columns; {remedy}")
            header = cells
            if twice := [name for name in words if words.count(name) > 1]:
                raise fit.BadInput(f"the column {twice[0]:.40} occurs twice; rename one")
        elif any(cells[len(header) :]):
            raise fit.BadInput(f"row {number} has {len(cells)} cells, the header {len(header)}")
        elif any(cells):
            rows.append({name: cell for name, cell in zip(header, cells) if name})
    if not rows:
        raise fit.BadInput(f"found no row; {FORMS}")
    return rows, notes


def from_console(text):
    """Rows of the lines that hold name: value. A name that a line gives two values gets both, which are no number."""
    rows = []
    for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines():
        row = {}
        for name, cell in PAIR.findall(line):
            row[name] = cell if row.get(name, cell) == cell else f"{row[name]} and {cell}"
        if row:
            rows.append(row)
    if not rows:
        raise fit.BadInput(f"found no row; {FORMS}; {BLANKS}")
    return rows, []


def is_number(cell):
    try:
        return float(cell) is not None
    except ValueError:
        return False


def numbers(rows, name):
    """A column as (n,) floats, nan where it has no value. Raises BadInput for a cell that is no number."""
    found = np.full(len(rows), np.nan)
    for place, row in enumerate(rows):
        cell = row.get(name)
        try:
            if isinstance(cell, (list, dict)) or cell not in MISSING:
                found[place] = float(cell)
        except (ValueError, TypeError, OverflowError):
            remedy = "decimal points, no unit, no fraction, no commas between thousands"
            if str(cell).endswith("%"):
                remedy = "no %, but --scale percent; without the signs: sed 's/%//g' FILE > FILE.csv"
            raise fit.BadInput(f"{name} holds {cell!r:.40}, expected a number: {remedy}") from None
    return found


# ---- From rows to columns ----


class Columns:
    """The columns of a file: `names`, and `cells` {name: (n,) floats} of those that hold nothing but numbers."""

    def __init__(self, path, rows):
        self.path = path
        self.names = list(dict.fromkeys(name for row in rows for name in row))
        self.cells = {}
        for name in self.names:
            with suppress(fit.BadInput):
                cells = numbers(rows, name)
                if np.isfinite(cells).any():
                    self.cells[name] = cells

    def equal(self, one, other):
        """Whether two columns hold the same numbers, as TRL's reward and rewards/x do."""
        return {one, other} <= self.cells.keys() and np.array_equal(self.cells[one], self.cells[other], equal_nan=True)

    def rises(self, name):
        return name in self.cells and len(self.cells[name]) > 1 and bool((np.diff(self.cells[name]) > 0).all())

    def named(self, asked, flag):
        """The column that is called `asked`, else the one whose name ends in it."""
        found = [asked] if asked in self.names else [name for name in self.names if name.endswith(asked)]
        if not found:
            raise self.refusal(f"{flag} {asked} matches no column")
        if not all(self.equal(found[0], name) for name in found[1:]):
            raise self.refusal(f"{flag} {asked} matches several columns", found if flag == "--reward" else ())
        return found[0]

    def pair(self):
        """[(compute, reward)] of a file of two columns: one rises, and the other lies in [0, 1]."""
        if len(self.names) != 2 or len(self.cells) != 2:
            return []
        orders = [(x, y) for x, y in (self.names, self.names[::-1]) if y not in (*COMPUTE, "epoch")]
        rates = [name for name, cells in self.cells.items() if 0 <= np.nanmin(cells) <= np.nanmax(cells) <= 1]
        return [(x, y) for x, y in orders if self.rises(x) and y in rates]

    def choose(self, compute, reward):
        """(compute, reward): those that are asked for, or need no name."""
        asked = compute and compute != "row" and self.named(compute, "--x") or compute
        rewarded = reward and self.named(reward, "--reward")
        pairs = [(x, y) for x, y in self.pair() if asked in (None, x) and rewarded in (None, y)]
        if len(pairs) == 1:
            return pairs[0]
        if not rewarded and "pass_rate" not in self.names:
            raise self.refusal("--reward COLUMN is needed", x=asked)
        rewarded = rewarded or "pass_rate"
        there = np.isfinite(self.cells.get(rewarded, np.nan))
        known = [name for name in COMPUTE if name in self.cells]
        beside_it = [name for name in known if 2 * np.isfinite(self.cells[name][there]).sum() >= there.sum()]
        if not asked and not beside_it:
            raise self.refusal("--x COLUMN is needed", [rewarded])
        return asked or beside_it[0], rewarded

    def refusal(self, why, rewards=(), x=None):
        """The BadInput that says why, lists the columns and ends in a command; rewards, x: what the command names."""

        def doubts(name):
            cells = self.cells.get(name, np.array([0.0, 2.0]))
            unlike = [not re.search(words, name, re.IGNORECASE) for words in LIKELY]
            low, high = np.nanmin(cells), np.nanmax(cells)
            return all(unlike), low == high, "std" in name, *unlike, low < 0 or high > 1, self.rises(name)

        def counts(name):
            cells = self.cells[name][there]
            return name not in rewards and 1.1 * len(set(cells[np.isfinite(cells)])) > len(cells)

        if not rewards:
            rewards = [min(self.names, key=doubts)]
        there = np.isfinite(self.cells.get(rewards[0], np.nan))
        last = {name: re.split("[/.]", name)[-1].lower() for name in self.cells}
        steps = [name for end in (*COMPUTE, "epoch") for name in last if last[name] == end]
        x = x or next(filter(counts, [*steps, *filter(self.rises, self.cells)]), "row")
        flags = [word for name in rewards for word in ("--reward", name)] + ["--x", x]
        values = np.concatenate([self.cells.get(name, [0.0]) for name in rewards])
        low, high = min(0, np.floor(np.nanmin(values))), max(1, np.ceil(np.nanmax(values)))
        if (low, high) != (0, 1):
            flags.append(f"--scale={low:g}:{high:g}")
        listed = []
        for name in self.names:
            if not any("reward" in (other, name) and self.equal(other, name) for other in listed):
                listed.append(name)
        got = ", ".join(f"{name:.40}" for name in listed[:40])
        command = shlex.join(["python", "fit.py", str(self.path), *flags])
        return fit.BadInput(f"{why}; there is {got}; for instance: {command}")


def scaled(R, scale):
    """Rewards (n,) mapped to [0, 1]; scale: see `ends`."""
    low, high = ends(scale)
    return (R - low) / (high - low)


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
    then begins after the first step, and ends beyond the part before it."""
    starts = np.flatnonzero(np.diff(steps) <= 0) + 1
    for start, end in zip(starts, np.append(starts[1:], len(steps))):
        before, first, last = steps[start - 1], steps[start], steps[end - 1]
        if first <= steps[0] or last <= before:
            got = f"{name} goes from {before:g} back to {first:g} and on to {last:g}"
            raise fit.BadInput(
                f"{got}, expected one run, resumed after its first step and taken beyond what it had reached; average "
                "the rows of one step, sort the rows, split the file, or tell runs apart by a column called run"
            )


def check_compute(name, C):
    """Raise BadInput if C (n,), in order of the steps, does not rise from 0 on."""
    if C[0] < 0 or 1e9 < C[0] < C[-1] < 1.1 * C[0]:
        got = f"got {name} from {C[0]:.10g} to {C[-1]:.10g}, expected compute since the start, from 0 on"
        raise fit.BadInput(f"{got}; if it is a time of day, subtract that of the start; --x row counts the rows")
    if (np.diff(C) < 0).any():
        raise fit.BadInput(f"{name} falls, expected a running total; if each row holds only its own, add --cumulative")
    if 2 * len(set(C)) <= len(C) > 1:
        got = f"{name} has {len(set(C))} values in {len(C)} rows, expected one for each"
        raise fit.BadInput(f"{got}; if it is rounded, --x row counts the rows")


def completions_of(rows, asked):
    """How many completions each evaluation is the mean of, or None; asked: a number, a column, or None: completions."""
    try:
        counts = np.array([float(asked)])
    except (TypeError, ValueError):
        counts = numbers(rows, asked or "completions")
    if np.min(counts) >= 1:
        return float(np.median(counts))
    if asked:
        raise fit.BadInput(f"got --completions {asked}, expected a number from 1 on, or a column of them")


def order_of(rows, compute, R):
    """(compute, steps, name): by which steps (n,), those of column `name`, repeated rows are known.

    Compute becomes "row" if the steps start anew in each epoch."""
    name = next((name for name in STEPS if np.isfinite(numbers(rows, name) + R).any()), compute)
    numbered = np.arange(1.0, len(rows) + 1)
    if name == "row":
        return compute, numbered, name
    steps = numbers(rows, name)
    there = np.flatnonzero(np.isfinite(steps + R))
    if name not in STEPS and not (np.diff(steps[there]) < 0).any():
        return compute, numbered, name  # an epoch, say, may be rounded
    falls = np.diff(steps[there]) <= 0
    if falls.any() and (np.diff(numbers(rows, "epoch")[there])[falls] > 0).all():
        return "row" if compute == name else compute, numbered, "row"
    return compute, steps, name


def one_run(rows, notes, name, compute, reward, scale, cumulative, completions):
    """The fit.Run of the rows of one run; arguments as in `read_runs`."""
    R = numbers(rows, reward)
    asked = compute
    compute, steps, order = order_of(rows, compute, R)
    C = np.arange(1.0, len(rows) + 1) if compute == "row" else numbers(rows, compute)
    if cumulative:
        if order == compute:
            steps = np.arange(len(rows))
        own = np.flatnonzero(np.isfinite(C + steps))
        if np.sign(np.diff(C[own])).sum() > len(own) / 2:
            raise fit.BadInput(f"got --cumulative, but {compute} rises like a running total; leave --cumulative out")
        own = own[led_on(steps[own])]
        C[own] = np.cumsum(C[own])
    there = np.flatnonzero(np.isfinite(C + steps + R))
    new = [i for i, j in zip(there, [-1, *there]) if j < 0 or (steps[i], R[i]) != (steps[j], R[j])]
    check_resumed(order, steps[new])
    kept = there[led_on(steps[there])]
    counts = {
        f"without a number for {reward} or {compute}": len(rows) - len(there),
        "of repeated steps, of which the last counts": len(there) - len(kept),
    }
    notes = notes + [f"rows left out {what}: {count}" for what, count in counts.items() if count]
    if not len(kept) or compute == reward:
        raise fit.BadInput(f"no row has both {compute} and {reward}, expected two columns with numbers in one row")
    if compute == "row":
        C[kept] = np.arange(1.0, len(kept) + 1)
        if asked != "row":
            notes.append(f"{asked} starts anew with each epoch, so the rows are counted")
    check_compute(compute, C[kept])
    tasks = tuple(sorted({column for row in rows for column in row if column.startswith("tasks.")}))
    count = completions_of([rows[place] for place in kept], completions)
    if reward in tasks:  # our logs count the completions of all tasks
        name += f" {reward}"
        count = count and count / len(tasks)
    notes.append(f"reward: {reward}, {f'by --scale {scale}' if scale else 'taken as a pass rate'}; compute: {compute}")
    given = {"tasks": tasks, "notes": tuple(notes), "completions": count, "ends": ends(scale)}
    return fit.Run(C[kept], scaled(R[kept], scale), name=name, unit=compute, **given)


def evaluations(rows):
    """The rows of one of our logs that hold the evaluations that led to its end; its steps, too, tell what did not."""
    rows = [row for row in rows if row.get("kind") in ("step", "eval")]
    led = led_on(numbers(rows, "step"))
    return [row for row, kept in zip(rows, led) if kept and row["kind"] == "eval"]


def read_runs(path, compute=None, reward=None, scale=None, cumulative=False, completions=None):
    """[fit.Run] from a file, or from log.jsonl in the folder of a run: one, or several if the file holds more.

    compute, reward  columns, named whole or by their ends; compute "row": rows are counted
    scale            see `ends`
    cumulative       True: a row's compute is its own, so it is added up
    completions      see `completions_of`
    Rows without compute or reward are left out. Raises BadInput for what cannot be read, OSError for what cannot be
    opened.
    """
    path = Path(path) / "log.jsonl" if (Path(path) / "log.jsonl").is_file() else Path(path)
    name = path.parent.name if path.name == "log.jsonl" else Path(path.name.removesuffix(".gz")).stem
    try:
        rows, notes = read_rows(path)
        virtual = any(row.get("flags.virtual") for row in rows)
        if any(row.get("kind") == "eval" for row in rows):
            rows = evaluations(rows)
        compute, reward = Columns(path, rows).choose(compute, reward)
        runs = []
        for label, part in runs_in(rows, reward, notes):
            called = f"{name} {label}" if label else name
            run = one_run(part, notes, called, compute, reward, scale, cumulative, completions)
            unit = f"virtual {run.unit}" if virtual and run.unit == "gpu_hours" else run.unit
            runs.append(run._replace(source=(f"{path} {label}", reward), unit=unit))
        return runs
    except fit.BadInput as error:
        raise fit.BadInput(f"{path}: {error}".replace("FILE", shlex.quote(str(path)))) from None


def runs_in(rows, reward, notes):
    """[(label, rows)] of the runs that the columns RUNS tell apart; "" labels the only one. Adds a note on those of
    fewer than LEAST points."""
    parts = {}
    for row in rows:
        label = " ".join(f"{name} {row[name]}" for name in RUNS if row.get(name) not in MISSING)
        parts.setdefault(label, []).append(row)
    points = {label: int(np.isfinite(numbers(part, reward)).sum()) for label, part in parts.items()}
    long = [label for label in parts if points[label] >= LEAST]
    if sum(map(bool, points.values())) > 1 > len(long):
        got = f"the columns {' and '.join(RUNS)} tell {len(parts)} runs apart, none of {LEAST} points"
        raise fit.BadInput(f"{got}; if they tell no runs apart, rename them")
    short = [label for label in parts if label not in long] if long else []
    notes += [f"left out {len(parts[label])} rows of {label or 'no run'}: {points[label]} points" for label in short]
    labels = long or list(parts)
    return [(label if len(labels) > 1 else "", parts[label]) for label in labels]


def read_run(*args, **options):
    """The last fit.Run of a file; arguments and errors as in `read_runs`."""
    return read_runs(*args, **options)[-1]
