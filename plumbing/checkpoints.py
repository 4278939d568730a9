"""Checkpoints: a fault never costs the last good one, and only rank 0 ever holds all weights in fp32.

    checkpoint-STEP/                  renamed from checkpoint.tmp when complete and flushed; the two latest are kept
      config.json, *.safetensors, …   the policy in the generators' dtype: for generators, --evaluate, other programs
      state/                          what any number of trainers can resume from: fp32 weights and AdamW's moments
                                      (torch.distributed.checkpoint, each rank writes its shards); run.json: counters

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
    """The checkpoint-STEP folders of a run, oldest first; not a user's own checkpoint-best or checkpoint-100-copy."""
    steps = {folder.name.partition("-")[2]: folder for folder in Path(out).glob("checkpoint-*")}
    return [steps[step] for step in sorted(filter(str.isdigit, steps), key=int)]


def own(out):
    """Open the log of a run and lock it until it is closed. Raises OSError if another process holds it.

    A half-written last line, as a crash leaves it, is removed from each .jsonl file of the run: the next line would be
    joined to it and lost.
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
            print(f"{path}: removed {len(torn)} bytes of a half-written last line", file=sys.stderr)
            os.truncate(path, len(whole) + bool(whole))
    return log


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


def save(out, policy, optimizer, tokenizer, weights, counters, fleet):
    """Write a checkpoint and delete all but the two latest; every trainer rank calls this.

    weights   on rank 0, {Hugging Face name: whole tensor}, in the generators' dtype
    counters  what run.json keeps; needs `version` (the step) and `stepped` (whether AdamW has a state)
    Raises OSError if it cannot be written: earlier checkpoints are then untouched, and checkpoint.tmp is removed.
    """
    folder, leads = Path(out) / "checkpoint.tmp", fleet.rank == 0
    try:
        if leads:
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "state").mkdir(parents=True)
            (folder / "state" / "run.json").write_text(json.dumps(counters))
            tokenizer.save_pretrained(folder)
            policy.model.save_pretrained(folder, state_dict=weights)
            policy.model.config.dtype = fleet.dtype  # `save_pretrained` has noted the fp32 of the master weights
            policy.model.config.save_pretrained(folder)
            os.sync()
        dist.barrier(fleet.writers)  # may wait for a day; if rank 0 has failed, the others write nothing
        state = tensors(policy, optimizer, counters["stepped"])
        dcp.save(state, checkpoint_id=folder / "state", process_group=fleet.writers)  # flushed by each rank
        if leads:
            os.sync()  # else a crash could leave the new name on disk without the files' contents
            folder.rename(Path(out) / f"checkpoint-{counters['version']}")
    except (SafetensorError, dcp.CheckpointException) as error:
        cause = [cause for cause, _ in getattr(error, "failures", {0: (error, None)}).values()][0]
        raise OSError(f"no checkpoint of step {counters['version']} could be written: {cause}") from error
    finally:
        if leads:
            shutil.rmtree(folder, ignore_errors=True)
    for old in finished(out)[:-2] if leads else ():
        shutil.rmtree(old, ignore_errors=True)
