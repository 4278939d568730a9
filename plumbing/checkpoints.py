"""Checkpoints: a fault never costs the last good one, and only rank 0 ever holds all weights in fp32.

    checkpoint-STEP/                  renamed from checkpoint.tmp when complete and flushed; the two latest are kept
      config.json, *.safetensors, …   the policy in the generators' dtype: for generators, --evaluate, other programs
      contents.json                   written last: the size of every file, the checksums of those under state/
      state/                          what any number of trainers can resume from: fp32 weights and AdamW's moments
                                      (torch.distributed.checkpoint, each rank writes its shards); run.json: counters

A checkpoint that does not match its contents.json is never resumed from: the newest intact one is, and those after it
are set aside as checkpoint-STEP-broken.

Deviation: none known; the paper does not describe its checkpoints.

Run by train.py. Test: pytest tests/test_faults.py tests/test_train.py
"""

import hashlib
import itertools
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

import precision
from plumbing.typed import step

CONTENTS = "contents.json"
STATE = ("config.json", "state/run.json", "state/.metadata")  # files of every checkpoint, also of earlier versions

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# --- The folders of a run --------------------------------------------------------------------------------------------


def finished(out):
    """The checkpoint-STEP folders of a run, oldest first; not a user's own checkpoint-best, or a file."""
    steps = {folder.name.partition("-")[2]: folder for folder in Path(out).glob("checkpoint-*") if folder.is_dir()}
    return [steps[step] for step in sorted(filter(str.isdigit, steps), key=int)]


def others(out):
    """Names in a folder that `save` would write, rename or delete: checkpoints, or an unfinished one."""
    return [folder.name for folder in (*finished(out), Path(out) / "checkpoint.tmp") if folder.exists()]


def own(out):
    """Open the log of a run and lock it until it is closed. Raises OSError if it is held or cannot be opened.

    Where the system has no such locks (Windows), it is not locked.
    """
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        log = (Path(out) / "log.jsonl").open("ab")
    except OSError as error:
        cause = "a file or a broken link of that name, or a folder that may not be written"
        raise OSError(error.errno, f"--out {out} cannot hold a run: {error}; likely cause: {cause}") from error
    if fcntl is None:
        return log
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(f"{out} is in use by another run") from error
    return log


def rows(log):
    """(the rows of a run's log, the numbers of lines that are none: a crash or a full disk may leave such lines)."""
    found = []
    broken = []
    for place, line in enumerate(Path(log).read_bytes().split(b"\n"), 1):
        try:
            row = json.loads(line.decode() or "null")
            found += [row] if row and row["kind"] else []
        except (ValueError, KeyError, TypeError, RecursionError):
            broken.append(place)
    return found, broken


def lost(out, state):
    """{total: what the log says was spent since the checkpoint with these counters ({}: since the start), and lost}."""
    log = Path(out) / "log.jsonl"
    spent = [row for row in rows(log)[0] if "gpu_hours" in row] if log.exists() else []
    before = state.get("totals", {}) | {"gpu_hours": state.get("gpu_hours", 0.0)}
    return {
        name: max(0, max((row.get(name) or 0 for row in spent), default=0) - before.get(name, 0))
        for name in ("gpu_hours", "tokens", "tokens_trained", "flops")
    }


def set_aside(out, folder):
    """Rename the checkpoints after `folder`, which are broken: the run will write checkpoints of the same steps."""
    names = [one.name for one in finished(out)]
    for name in names[names.index(Path(folder).name) + 1 :]:
        places = (Path(out) / f"{name}-broken{number}" for number in itertools.chain([""], itertools.count(2)))
        (Path(out) / name).rename(next(place for place in places if not place.exists()))


# --- Whole or broken -------------------------------------------------------------------------------------------------


def damage(folder, *, needed=STATE, thorough=False):
    """What is wrong with a checkpoint, in words; "" if nothing is found.

    needed    files that must be there, whatever contents.json says (which earlier versions did not write)
    thorough  compare the checksums too, which reads all of state/
    """
    folder = Path(folder)
    try:
        known = json.loads((folder / CONTENTS).read_text()) if (folder / CONTENTS).exists() else {}
        wrong = misfits(folder, known.get("bytes", {}), needed)
        for name, digest in known.get("sha256", {}).items() if thorough and not wrong else ():
            wrong = wrong or f"{name} holds other bytes than were written" * (checksum(folder / name) != digest)
        if not wrong and needed == STATE:
            counters(folder)["version"]
        for path in () if wrong else folder.glob("*.safetensors"):
            with safe_open(path, "pt"):  # reads the header, which says how long the file must be
                pass
    except (OSError, ValueError, KeyError, AttributeError, TypeError, SafetensorError) as error:
        wrong = f"its files cannot be read: {type(error).__name__}: {error}"
    return wrong


def lacking(folder, config):
    """What the safetensors files of a policy lack of the weights that its config asks for, in words; "" if nothing.

    transformers would fill in random weights, and only say so.
    """
    with torch.device("meta"):
        wanted = {name: tuple(p.shape) for name, p in AutoModelForCausalLM.from_config(config).named_parameters()}
    found = {}
    for path in Path(folder).glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    missing = [name for name in wanted if name not in found]
    if found and missing:
        return f"{len(missing)} of {len(wanted)} tensors are missing, such as {missing[0]}"
    for name, shape in wanted.items() if found else ():
        if found[name] != shape:
            return f"{name} has the shape {found[name]}, not {shape}"
    return ""


def misfits(folder, sizes, needed):
    """The first file that is missing or does not have its size, in words; sizes {name: bytes}."""
    for name in (*needed, *sizes):
        if not (folder / name).is_file():
            return f"{name} is missing"
        if (got := (folder / name).stat().st_size) != sizes.get(name, got):
            return f"{name} has {got} bytes, not {sizes[name]}"
    return ""


def newest(out, *, thorough=False):
    """(the newest intact checkpoint of a run or None, {folder: what is wrong} of the broken ones after it)."""
    broken = {}
    for folder in reversed(finished(out)):
        if not (wrong := damage(folder, thorough=thorough)):
            return folder, broken
        broken[folder] = wrong
    return None, broken


def checksum(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- Reading ---------------------------------------------------------------------------------------------------------


def counters(folder):
    """The `counters` that `save` wrote into a checkpoint folder."""
    return json.loads((Path(folder) / "state" / "run.json").read_text())


def load_policy(folder, fleet, *, resume, prepare, **settings):
    """The policy in `folder` as a sharded precision.PolicyModel; every trainer rank calls this.

    resume    True: weights are left unset, for `load_state` to fill
    prepare   called with the Hugging Face model before it is wrapped
    settings  of the PolicyModel
    """
    with torch.device("meta"):  # shapes only, no memory yet
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32).eval()
    with suppress(OSError):  # not every folder has one
        model.generation_config = GenerationConfig.from_pretrained(folder)
    prepare(model)
    policy = precision.PolicyModel(model, **settings)
    if fleet.mesh.size() == 1:  # this rank holds everything
        policy.to_empty(device=fleet.device)
    policy = precision.shard(policy, fleet.mesh)
    if fleet.mesh.size() > 1:  # memory for its shards only
        policy.to_empty(device=fleet.device)
    model.tie_weights()
    if not resume:
        spread(folder, model, fleet)
    return policy


@torch.no_grad()
def spread(folder, model, fleet):
    """Fill in the weights: rank 0 reads them and broadcasts tensor after tensor; each rank keeps its shard of each."""
    source = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) if fleet.rank == 0 else model
    theirs = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    for name, mine in [*model.named_parameters(), *model.named_buffers()]:
        whole = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
        dist.broadcast(whole.copy_(theirs[name]) if fleet.rank == 0 else whole, 0, group=fleet.trainers)
        if isinstance(mine, DTensor):  # src_data_rank None: nothing is sent, each rank slices its own copy
            whole = distribute_tensor(whole, mine.device_mesh, mine.placements, src_data_rank=None)
        mine.copy_(whole)


def load_state(folder, policy, optimizer, group, *, stepped):
    """Load a checkpoint's weights, and AdamW's moments if `stepped` (see `save`), in place; all of `group` call it."""
    state = tensors(policy, optimizer, stepped)
    dcp.load(state, checkpoint_id=Path(folder) / "state", process_group=group)
    if stepped:
        sharded.set_optimizer_state_dict(policy, optimizer, state["optimizer"])


def finite(policy):
    """Whether all weights in this rank's shards are finite."""
    return all((p.to_local() if isinstance(p, DTensor) else p).isfinite().all() for p in policy.parameters())


def tensors(policy, optimizer, stepped):
    """{name: tensors} that state/ holds: this rank's own shards, not copies."""
    moments = {"optimizer": sharded.get_optimizer_state_dict(policy, optimizer)} if stepped else {}
    return {"policy": dict(policy.named_parameters()), "buffers": dict(policy.named_buffers())} | moments


# --- Writing ---------------------------------------------------------------------------------------------------------


def flush():
    """Have the system write to the disk what it holds, where it can be asked (not on Windows)."""
    if hasattr(os, "sync"):
        os.sync()


def save(out, policy, optimizer, tokenizer, weights, counters, fleet):
    """Write a checkpoint and delete all but the two latest; every trainer rank calls this.

    weights   on rank 0, {Hugging Face name: whole tensor}, in the generators' dtype
    counters  what run.json keeps; needs `version` (the step) and `stepped` (whether AdamW has a state)
    Raises OSError if it cannot be written: earlier checkpoints are then untouched, and checkpoint.tmp is removed.
    """
    folder = Path(out) / "checkpoint.tmp"
    leads = fleet.rank == 0
    try:
        if leads:
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "state").mkdir(parents=True)
            (folder / "state" / "run.json").write_text(json.dumps(counters))
            tokenizer.save_pretrained(folder)
            policy.model.save_pretrained(folder, state_dict=weights)
            policy.model.config.dtype = fleet.dtype  # `save_pretrained` has noted the fp32 of the master weights
            policy.model.config.save_pretrained(folder)
            flush()
        dist.barrier(fleet.writers)  # may wait for a day; if rank 0 has failed, the others write nothing
        state = tensors(policy, optimizer, counters["stepped"])
        dcp.save(state, checkpoint_id=folder / "state", process_group=fleet.writers)  # flushed by each rank
        digests = gather_checksums(folder / "state", fleet)
        if leads:
            write_contents(folder, digests)
            flush()  # else a crash could leave the new name on disk without the files' contents
            folder.rename(Path(out) / f"checkpoint-{counters['version']}")
    except (Exception, dcp.CheckpointException) as error:
        # The writer of fast tokenizers raises a plain Exception when the disk is full.
        if type(error) is not Exception and not isinstance(error, (OSError, SafetensorError, dcp.CheckpointException)):
            raise
        cause = [cause for cause, _ in getattr(error, "failures", {0: (error, None)}).values()][0]
        where = f"no checkpoint of step {counters['version']} could be written to {out}"
        raise OSError(getattr(cause, "errno", None), f"{where}: {cause}") from error
    finally:
        if leads:
            shutil.rmtree(folder, ignore_errors=True)
    done = [one for one in finished(out) if (one / STATE[1]).exists() and step(one) <= counters["version"]]
    for old in done[:-2] if leads else ():  # no folder that another program has written, or that is newer
        shutil.rmtree(old, ignore_errors=True)


def gather_checksums(state, fleet):
    """{name of a file in state/: its checksum} on rank 0; each trainer reads the files that it has just written."""
    mine = {path.name: checksum(path) for path in state.glob(f"__{fleet.rank}_*")}
    parts = [{}] * dist.get_world_size(fleet.writers) if fleet.rank == 0 else None
    dist.gather_object(mine, parts, group=fleet.writers)
    return {name: digest for part in parts or () for name, digest in part.items()}


def write_contents(folder, digests):
    """Write contents.json: with it a reader can tell a whole checkpoint from a broken one."""
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    states = [name for name in sizes if name.startswith("state/")]
    sums = {name: digests.get(name.removeprefix("state/")) or checksum(folder / name) for name in states}
    (folder / CONTENTS).write_text(json.dumps({"bytes": sizes, "sha256": sums}, indent=1))
