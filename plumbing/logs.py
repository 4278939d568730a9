"""What fit.py reads: the logs of our runs, and any CSV or JSONL file with a column of compute and one of pass rates."""

import csv
import json
from pathlib import Path

import numpy as np

import fit


def _json_rows(lines):
    """The objects of the lines of a JSONL file; what is in an inner object has a column too, such as tasks.math."""
    for number, line in enumerate(lines, 1):
        try:
            row = dict(json.loads(line.strip() or "{}"))
        except (ValueError, TypeError):
            if number > 1 and not line.endswith("\n"):  # a crash, or a run that is writing, tore the last line
                return
            raise fit.BadInput(f"line {number} is {line[:40]!r}, expected one JSON object (or a file *.csv)") from None
        yield row | {f"{name}.{key}": x for name, obj in row.items() if isinstance(obj, dict) for key, x in obj.items()}


def _evaluations(rows):
    """The `eval` rows of our log, with the "epoch" of the step before; of any other file all rows.

    An empty cell of a CSV and a null are no value, and left out. Numbers may be text, as they are in a CSV.
    A resumed run repeats the steps after its checkpoint: a row undoes the evaluations of its step or later before it.
    """
    rows, kept, epoch = [{name: x for name, x in row.items() if x not in (None, "")} for row in rows], [], np.nan
    for row in (row for row in rows if row.get("kind") in ("step", "eval") and "step" in row):
        kept, epoch = [x for x in kept if float(x["step"]) < float(row["step"])], row.get("epoch", epoch)
        if row["kind"] == "eval":
            kept.append(row | {"epoch": epoch})
    return kept or rows


def read_run(path, compute="gpu_hours", reward="pass_rate"):
    """A Run from one of our logs (or its folder), or from any CSV or JSONL file.

    compute   the column of compute; in our logs gpu_hours, tokens, tokens_trained, flops or step
    reward    the column of pass rates; in our logs pass_rate, or tasks.NAME for one task
    Rows that lack one of the two are left out. Raises BadInput for what cannot be read, OSError for what cannot be
    opened.
    """
    path = Path(path) / "log.jsonl" if Path(path).is_dir() else Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = _evaluations(csv.DictReader(file) if path.suffix.lower() == ".csv" else _json_rows(file))
        full = [row for row in rows if compute in row and reward in row]
        if not full:
            known = ", ".join(dict.fromkeys(str(name) for row in rows for name in row)) or "nothing"
            got = f"got {len(rows)} rows of {known}"
            raise fit.BadInput(f"no row has {compute} and {reward} (--compute, --reward); {got}")
        C, R, epoch = np.array([[float(row.get(name, "nan")) for row in full] for name in (compute, reward, "epoch")])
    except (ValueError, TypeError, csv.Error) as error:  # no UTF-8, no number, no CSV
        raise fit.BadInput(f"{path}: {error}") from None
    tasks = tuple(sorted({name for row in rows for name in row if str(name).startswith("tasks.")}))
    name = (path.parent.name if path.name == "log.jsonl" else path.stem) + f" {reward}" * (reward in tasks)
    return fit.Run(C, R, name=name, unit=compute, epoch=epoch, tasks=tasks)
