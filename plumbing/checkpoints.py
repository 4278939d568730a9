"""Checkpoints: no fault costs the last good one, and no rank but one ever holds all weights in fp32.

    checkpoint-STEP/                  renamed from checkpoint.tmp when complete and flushed; the two latest are kept
      config.json, *.safetensors, …   the policy in the generators' dtype: for generators, --evaluate, other programs
      state/                          what trainers, in any number, resume from: fp32 weights and AdamW's moments
                                      (torch.distributed.checkpoint, of each rank its shards); run.json: the counters

Deviation: none known; the paper does not describe its checkpoints.

Run by train.py. Test: pytest tests/test_faults.py tests/test_train.py
"""

import fcntl
import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

import precision


# --- The folders of a run --------------------------------------------------------------------------------------------


def finished(out):
    """Checkpoint folders of a run, oldest first; not a user's own checkpoint-best or checkpoint-100-copy."""
    steps = {folder.name.partition("-")[2]: folder for folder in Path(out).glob("checkpoint-*")}
    return [steps[step] for step in sorted(filter(str.isdigit, steps), key=int)]


def farewell(out, reason):
    """The last words of a rank whose run has failed."""
    last = [folder.name.partition("-")[2] for folder in finished(out)[-1:]]
    left = f"holds a checkpoint of step {last[0]}: go on with --resume" if last else "holds no checkpoint yet"
    return f"train.py: error: {reason}; {out} {left}"


def own(out):
    """The log of a run, open and locked: for as long as it is open, no other process gets it. Raises OSError.

    What a crash has torn off in the middle of a line goes, or the next line would be lost with it.
    """
    Path(out).mkdir(parents=True, exist_ok=True)
    log = (Path(out) / "log.jsonl").open("ab")
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(f"{out} is in use by another run") from error
    for path in Path(out).glob("*.jsonl"):
        whole, _, torn = path.read_bytes().rpartition(b"\n")
        if torn:
            print(f"{path}: {len(torn)} bytes of a torn last line are gone", file=sys.stderr)
            os.truncate(path, len(whole) + bool(whole))
    return log


# --- Reading ---------------------------------------------------------------------------------------------------------


def counters(folder):
    """What Trainer.checkpoint keeps besides tensors."""
    return json.loads((Path(folder) / "state" / "run.json").read_text())


def load_policy(folder, fleet, *, resume, prepare, **settings):
    """A sharded precision.PolicyModel (its `settings`) of `folder`, on every trainer rank; if `resume` without weights.

    prepare  called with the Hugging Face model before it is wrapped
    Only rank 0 reads the weights; the others get their shards, one tensor after the other.
    """
    reads, alone = fleet.rank == 0 and not resume, fleet.mesh.size() == 1
    source = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) if reads else None
    model = source if reads and alone else blank(folder)
    if resume and alone:
        materialise(model, model, fleet.device)
    prepare(model)
    policy = precision.shard(precision.PolicyModel(model, **settings), fleet.mesh)
    if not alone:
        materialise(policy, model, fleet.device)
        if not resume:
            spread(source, model, fleet.trainers)
    return policy


def blank(folder):
    """The Hugging Face model of a folder, without memory for its tensors."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    with suppress(OSError):  # not every folder has one
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model.eval()


def materialise(module, model, device):
    """Memory for the tensors of a blank `model`, or of this rank's shards in the `module` around it; still unset."""
    module.to_empty(device=device)
    model.tie_weights()


@torch.no_grad()
def spread(source, model, group):
    """Rank 0's `source` into the shards of `model` on all ranks of the group, a tensor at a time."""
    theirs = {**dict(source.named_parameters()), **dict(source.named_buffers())} if source else {}
    for name, mine in [*model.named_parameters(), *model.named_buffers()]:
        whole = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
        dist.broadcast(whole.copy_(theirs[name]) if source else whole, 0, group=group)
        if isinstance(mine, DTensor):  # without a source rank: each takes its slice of what it has
            whole = distribute_tensor(whole, mine.device_mesh, mine.placements, src_data_rank=None)
        mine.copy_(whole)


def load_state(folder, policy, optimizer, group, *, stepped):
    """Weights and AdamW's moments of a checkpoint, in place; all ranks of the group call it. `stepped` as in `save`."""
    state = tensors(policy, optimizer, stepped)
    dcp.load(state, checkpoint_id=Path(folder) / "state", process_group=group)
    if stepped:
        sharded.set_optimizer_state_dict(policy, optimizer, state["optimizer"])


def finite(policy):
    """Whether this rank's shards of the weights are."""
    return all((p.to_local() if isinstance(p, DTensor) else p).isfinite().all() for p in policy.parameters())


def tensors(policy, optimizer, stepped):
    """What state/ holds, by name: no copies, but this rank's own shards."""
    moments = {"optimizer": sharded.get_optimizer_state_dict(policy, optimizer)} if stepped else {}
    return {"policy": dict(policy.named_parameters()), "buffers": dict(policy.named_buffers())} | moments


# --- Writing ---------------------------------------------------------------------------------------------------------


def save(out, version, policy, optimizer, group, *, stepped, write_rest):
    """Write checkpoint-VERSION and keep the two latest; all ranks of the group call it.

    group       of the trainers; one on the CPU, with more patience than a disk needs
    stepped     whether AdamW has a state: before the first optimizer step, asking for it would count one
    write_rest  called with the folder on rank 0, before all write state/
    Raises OSError; the last checkpoint is untouched then, and nothing half written is left.
    """
    folder, leads = Path(out) / "checkpoint.tmp", dist.get_rank() == 0
    try:
        if leads:
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "state").mkdir(parents=True)
            write_rest(folder)
            flush(*folder.glob("*.*"))  # while the others wait in this group
        dcp.save(tensors(policy, optimizer, stepped), checkpoint_id=folder / "state", process_group=group)
        if leads:
            flush(*folder.rglob("*"), folder)
            folder.rename(Path(out) / f"checkpoint-{version}")
            flush(out)
    except (SafetensorError, dcp.CheckpointException) as error:
        reason = str(error) if isinstance(error, SafetensorError) else [cause for cause, _ in error.failures.values()][0]
        raise OSError(f"no checkpoint of step {version} could be written: {reason}") from error
    finally:
        if leads:
            shutil.rmtree(folder, ignore_errors=True)
    for old in finished(out)[:-2] if leads else ():
        shutil.rmtree(old, ignore_errors=True)


def write_files(folder, model, tokenizer, weights, dtype, counters):
    """The Hugging Face files, `weights` {name: whole tensor} in `dtype`, and state/run.json."""
    (folder / "state" / "run.json").write_text(json.dumps(counters))
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder, state_dict=weights)
    model.config.dtype = dtype  # not that of the master weights, which `save_pretrained` notes
    model.config.save_pretrained(folder)


def flush(*paths):
    """Files, and the names in folders, are on the disk when this returns: a rename may else outlive what it renames."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
