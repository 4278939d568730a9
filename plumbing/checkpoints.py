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
    """
    with torch.device("meta"):  # no memory yet
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
    """Rank 0 reads the weights; the others get their shards of one tensor after the other."""
    source = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) if fleet.rank == 0 else model
    theirs = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    for name, mine in [*model.named_parameters(), *model.named_buffers()]:
        whole = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
        dist.broadcast(whole.copy_(theirs[name]) if fleet.rank == 0 else whole, 0, group=fleet.trainers)
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


def save(out, policy, optimizer, tokenizer, weights, counters, fleet):
    """Write a checkpoint and keep the two latest; all trainers call it.

    weights   on rank 0, {Hugging Face name: whole tensor}, in the generators' dtype
    counters  what JSON holds of the run, `version` and `stepped` (whether AdamW has a state) among it
    Raises OSError; the last checkpoint is untouched then, and nothing half written is left.
    """
    folder, leads = Path(out) / "checkpoint.tmp", fleet.rank == 0
    try:
        if leads:
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "state").mkdir(parents=True)
            (folder / "state" / "run.json").write_text(json.dumps(counters))
            tokenizer.save_pretrained(folder)
            policy.model.save_pretrained(folder, state_dict=weights)
            policy.model.config.dtype = fleet.dtype  # not that of the master weights, which `save_pretrained` notes
            policy.model.config.save_pretrained(folder)
            os.sync()
        dist.barrier(fleet.writers)  # patient; if rank 0 fails, the others write nothing
        state = tensors(policy, optimizer, counters["stepped"])
        dcp.save(state, checkpoint_id=folder / "state", process_group=fleet.writers)  # flushed by each rank
        if leads:
            os.sync()  # a rename may else outlive what it renames
            folder.rename(Path(out) / f"checkpoint-{counters['version']}")
    except (SafetensorError, dcp.CheckpointException) as error:
        cause = [cause for cause, _ in getattr(error, "failures", {0: (error, None)}).values()][0]
        raise OSError(f"no checkpoint of step {counters['version']} could be written: {cause}") from error
    finally:
        if leads:
            shutil.rmtree(folder, ignore_errors=True)
    for old in finished(out)[:-2] if leads else ():
        shutil.rmtree(old, ignore_errors=True)
