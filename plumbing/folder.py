"""The folder of a run: its log, its checkpoints, which of them are whole, and the flags it was started with.

    log.jsonl              one JSON object per line; the run that writes it holds a lock on it
    completions.jsonl      some completions of each evaluation
    scaling.png, run.png   the fit; the columns of the log by optimizer step
    checkpoint-STEP/       checkpoints.py writes them; one that does not match its contents.json is never resumed from:
                           the newest intact one is, and those after it are set aside as checkpoint-STEP-broken

Test: pytest tests/test_run_folder.py tests/test_faults.py
"""

import hashlib
import itertools
import json
import os
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open

CONTENTS = "contents.json"
RENAMED = {"average": "aggregation"}  # flags of earlier versions -> their names today
STATE = ("config.json", "state/run.json", "state/.metadata")  # files of every checkpoint, also of earlier versions

# --- The folders of a run --------------------------------------------------------------------------------------------


def step(folder):
    """The number of a checkpoint-STEP folder."""
    return int(Path(folder).name.partition("-")[2])


def finished(out):
    """The checkpoint-STEP folders of a run, oldest first; not a user's own checkpoint-best, or a file."""
    folders = [folder for folder in Path(out).glob("checkpoint-*") if folder.is_dir()]
    return sorted((folder for folder in folders if folder.name.partition("-")[2].isdigit()), key=step)


def others(out):
    """Names in a folder that `save` would write, rename or delete: checkpoints, or an unfinished one."""
    return [folder.name for folder in (*finished(out), Path(out) / "checkpoint.tmp") if folder.exists()]


def lock_log(out, *, alone=True):
    """Open the log of a run and lock it until it is closed. Raises OSError if it is held or cannot be opened.

    alone  False: only find out whether a run holds it; several processes may at the same time
    """
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        log = (Path(out) / "log.jsonl").open("ab")
    except OSError as error:
        cause = "a file or a broken link of that name, or a folder that may not be written"
        raise OSError(error.errno, f"--out {out} cannot hold a run: {error}; likely cause: {cause}") from error
    try:
        with suppress(ImportError):  # Windows has no such lock: there nothing notices a second run
            import fcntl

            fcntl.flock(log, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(f"{out} is in use by another run") from error
    return log


def is_locked(log, out):
    """Whether `log`, as from `lock_log`, is still the file of that name."""
    try:
        return os.path.samestat(os.fstat(log.fileno()), (Path(out) / "log.jsonl").stat())
    except FileNotFoundError:
        return False


def rows(log):
    """(the rows of a run's log, the numbers of lines that are none: a crash or a full disk may leave such lines).

    Flags of earlier versions have today's names.
    """
    intact = []
    broken = []
    for place, line in enumerate(Path(log).read_bytes().split(b"\n"), 1):
        try:
            row = json.loads(line.decode() or "null")
            if row and row["kind"] == "config":
                row["flags"] = {RENAMED.get(name, name): value for name, value in row["flags"].items()}
            intact += [row] if row and row["kind"] else []
        except (ValueError, KeyError, TypeError, RecursionError):
            broken.append(place)
    return intact, broken


def lost(out, state):
    """{total: what the log says was spent since the checkpoint with these counters ({}: since the start), and lost}."""
    log = Path(out) / "log.jsonl"
    spent = [row for row in rows(log)[0] if "gpu_hours" in row] if log.exists() else []
    before = state.get("totals", {}) | {"gpu_hours": state.get("gpu_hours", 0.0)}
    return {
        name: max(0, max((row.get(name) or 0 for row in spent), default=0) - before.get(name, 0))
        for name in ("gpu_hours", "tokens", "tokens_trained")
    }


def set_aside(out, folder):
    """Rename the checkpoints after `folder`, which are broken: the run will write checkpoints of the same steps."""
    names = [checkpoint.name for checkpoint in finished(out)]
    for name in names[names.index(Path(folder).name) + 1 :]:
        places = (Path(out) / f"{name}-broken{number}" for number in itertools.chain([""], itertools.count(2)))
        (Path(out) / name).rename(next(place for place in places if not place.exists()))


def pick(out, expected):
    """The newest intact checkpoint, by checksums too; sets broken ones after it aside, and says so.

    Raises OSError if there is none.
    """
    folder, faults = newest(out, thorough=True)
    if not folder:
        raise OSError(f"--resume: found no intact checkpoint in {out}: {faults}")
    if str(folder) != expected:
        print(f"{faults}; --resume: goes on from {folder}")
    set_aside(out, folder)
    return str(folder)


# --- Whole or broken -------------------------------------------------------------------------------------------------


def damage(folder, *, needed=STATE, thorough=False):
    """What is wrong with a checkpoint, in words; "" if nothing is found.

    needed    files that must be there, whatever contents.json says (which earlier versions did not write)
    thorough  compare the checksums too, which reads all of state/
    """
    folder = Path(folder)
    try:
        known = {"bytes": {}, "sha256": {}}
        if (folder / CONTENTS).exists():
            known = json.loads((folder / CONTENTS).read_text(encoding="utf-8"))
        fault = misfits(folder, known["bytes"], needed)
        if thorough and not fault:
            fault = changed(folder, known["sha256"])
        if fault:
            return fault
        if needed == STATE:
            counters(folder)["version"]
        for path in folder.glob("*.safetensors"):
            with safe_open(path, "pt"):  # reads the header, which says how long the file must be
                pass
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError, SafetensorError) as error:
        fault = f"its files cannot be read: {type(error).__name__}: {error}"
    return fault


def misfits(folder, sizes, needed):
    """The first file that is missing or does not have its size, in words; sizes {name: bytes}."""
    for name in (*needed, *sizes):
        if not (folder / name).is_file():
            return f"{name} is missing"
        if (got := (folder / name).stat().st_size) != sizes.get(name, got):
            return f"{name} has {got} bytes, not {sizes[name]}"
    return ""


def changed(folder, digests):
    """The first file that does not hold what was written, in words; digests {name: checksum}."""
    for name, digest in digests.items():
        if checksum(folder / name) != digest:
            return f"{name} holds other bytes than were written"
    return ""


def newest(out, *, thorough=False):
    """(the newest intact checkpoint of a run or None, what is wrong with the broken ones after it, in words)."""
    faults = []
    for folder in reversed(finished(out)):
        fault = damage(folder, thorough=thorough)
        if not fault:
            return folder, "; ".join(faults)
        faults.append(f"{folder} is broken: {fault}")
    return None, "; ".join(faults)


def checksum(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def counters(folder):
    """The `counters` that `save` wrote into a checkpoint folder."""
    return json.loads((Path(folder) / "state" / "run.json").read_text(encoding="utf-8"))


def stored_flags(log):
    """The settings with which the run of this log was last started, as logged. Raises ValueError if it does not say."""
    starts = [row["flags"] for row in rows(log)[0] if row["kind"] == "config"]
    if not starts:
        raise ValueError(f"expected a row in {log} that says with which flags the run was started; found none intact")
    return starts[-1] | starts[-1]["clips"]
