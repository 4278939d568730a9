"""Checkpoints: a fault never costs the last good one, and only rank 0 ever holds all weights in fp32.

    checkpoint-STEP/                  renamed from checkpoint.tmp when complete and flushed; the two latest are kept
      config.json, *.safetensors, …   the policy in the generators' dtype: for generators, --evaluate, other programs
      contents.json                   written last: the size of every file, the checksums of those under state/
      state/                          what any number of trainers can resume from: fp32 weights and AdamW's moments
                                      (torch.distributed.checkpoint, each rank writes its shards); run.json: counters


Deviation: none known; the paper does not describe its checkpoints.

Run by train.py. Test: pytest tests/test_faults.py tests/test_train.py
"""

import hashlib
import itertools
import json
import os
import pickle
import re
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import cached_file
from transformers.utils.hub import get_checkpoint_shard_files

import experts
import precision
from plumbing import store
from plumbing.log import finished_checkpoints, step_of

# --- Reading ---------------------------------------------------------------------------------------------------------


LATEST = 1800.0  # seconds of wall clock between two checkpoints at most, unless --checkpoint-every is given
FILES = "model.safetensors model.safetensors.index.json pytorch_model.bin pytorch_model.bin.index.json".split()
ADAPTERS = "adapter_config.json adapter_model.safetensors adapter_model.bin".split()
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
UNREADABLE = (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, pickle.UnpicklingError)
# Hugging Face model types whose logits are lm_head(body(ids)): one linear layer without bias, nothing after it.
SUPPORTED = ("gemma", "llama", "mistral", "mixtral", "olmo2", "olmoe", "qwen2", "qwen3", "qwen3_moe", "smollm3")
REFUSED = {
    "gpt_oss": "its attention has sinks, and a sliding window in every other layer",
    "llama4": "its attention is chunked in most layers",
}
COMPUTED = r"rotary_emb\.inv_freq"  # in files of the first Llama models; transformers computes it, and leaves it unread


def check_supported(config):
    """Raise ValueError unless `config` (Hugging Face) is of a SUPPORTED type, with full attention without dropout.

    Its weights must not be quantised.
    """
    quantised = getattr(config, "quantization_config", None)
    if quantised is not None:
        got = f"quantization_config {str(quantised)[:60]}"
        raise ValueError(f"{got}: a policy is trained in bf16 or fp32: give the unquantised weights")
    layers = getattr(config, "layer_types", None)
    dropout = getattr(config, "attention_dropout", 0.0)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if config.model_type not in SUPPORTED:
        reason = REFUSED.get(config.model_type.removesuffix("_text"), "its head has not been checked")
    elif any(kind != "full_attention" for kind in layers) if layers else window is not None:
        reason = f"attention is not full in every layer (sliding_window={window})"
    elif dropout:  # acts on the trainer only, so pi_train would differ from pi_gen at equal weights
        reason = f"attention_dropout={dropout} must be 0"
    elif jitter := getattr(config, "router_jitter_noise", 0.0):  # likewise
        reason = f"router_jitter_noise={jitter} must be 0"
    else:
        return
    raise ValueError(
        f"model type {config.model_type!r} is not supported: {reason}. Expected a decoder-only model with full "
        f"attention and a bias-free linear head whose output is the logits: {', '.join(SUPPORTED)}."
    )


def first_file(folder, names):
    """The path of the first of these files that a policy has, a folder or a name on the hub; None without any."""
    optional = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    return next(filter(None, (cached_file(folder, name, **optional) for name in names)), None)


def generation_config(folder):
    """The GenerationConfig of a policy, or None: not every folder has one. Raises OSError for one that is no JSON."""
    return GenerationConfig.from_pretrained(folder) if first_file(folder, ["generation_config.json"]) else None


def check_weights(folder, config):
    """Raise ValueError unless the files of a policy hold the tensors that its config asks for, and no others.

    transformers would fill in random weights, part weights that the config ties, or leave tensors out, and only say so.
    """
    if adapter := first_file(folder, ADAPTERS):
        raise ValueError(f"{Path(adapter).name} is part of an adapter: merge it into the weights first")
    if other := getattr(config, "transformers_weights", None):
        raise ValueError(f"config.json names {other} as its weights: expected one of {', '.join(FILES)}")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    stored = {}
    try:
        if not (first := first_file(folder, FILES)):
            raise OSError(f"there is none of {', '.join(FILES)}")
        paths = get_checkpoint_shard_files(folder, first)[0] if first.endswith(".json") else [first]
        for path in paths:  # they are mapped, not read
            part = torch.load(path, mmap=True, weights_only=True) if path.endswith(".bin") else load_file(path)
            if twice := stored.keys() & part.keys():
                raise ValueError(f"{min(twice)} is in more than one of them")
            stored |= part
        fault = misfit(stored, model)
    except UNREADABLE as error:
        fault = f"its files cannot be read: {type(error).__name__}: {str(error).partition('. ')[0]}"
    if fault:
        cause = "the config of another model, an adapter that was not merged, or an unfinished download or conversion"
        expected = "expected the tensors that its config.json asks for, and no others"
        raise ValueError(f"{expected}; {fault}; likely cause: {cause}")


def misfit(stored, model):
    """In which way tensors {name: tensor} are not those of a model on the meta device, in words; "" if they are."""
    # As files name them: transformers joins the experts of a layer to one tensor when it loads them.
    wanted = revert_weight_conversion(model, dict(model.named_parameters()))
    ties = model._tied_weights_keys if model.config.tie_word_embeddings else {}
    ignored = re.compile("|".join([COMPUTED, *(model._keys_to_ignore_on_load_unexpected or ())]))
    shared = [(name, stored[name]) for name in wanted if name in stored]
    faults = {
        "are missing": [name for name in wanted if name not in stored],
        "are not of this model": [name for name in stored if name not in {*wanted, *ties} and not ignored.search(name)],
        "have another shape": [f"{name} {tuple(x.shape)}" for name, x in shared if x.shape != wanted[name].shape],
        "are quantised: give the others": [f"{name} {x.dtype}" for name, x in shared if x.dtype not in FLOATS],
        "differ from what tie_word_embeddings: true ties them to": [
            head for head, tied in ties.items() if head in stored and not torch.equal(stored[head], stored[tied])
        ],
    }
    return next(
        (f"{len(names)} of {len(stored)} tensors {how}: {names[0]}" for how, names in faults.items() if names), ""
    )


def load_policy(folder, processes, *, resume, activation_checkpointing=False, **settings):
    """The policy in `folder` as a sharded precision.PolicyModel; every trainer rank calls this.

    resume    True: weights are left unset, for `load_state` to fill
    settings  of the PolicyModel
    """
    config = AutoConfig.from_pretrained(folder)
    config._experts_implementation = experts.implementation(config, settings["dtype"])
    with torch.device("meta"):  # shapes only, no memory yet
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.generation_config = generation_config(folder) or model.generation_config
    if activation_checkpointing:  # transformers 5.24 has renamed it
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        model.train()  # else it has no effect; dropout, which this turns on too, is refused
    policy = precision.PolicyModel(model, **settings)
    if processes.mesh.size() == 1:  # this rank holds everything
        policy.to_empty(device=processes.device)
    policy = precision.shard(policy, processes.mesh)
    if processes.mesh.size() > 1:  # memory for its shards only
        policy.to_empty(device=processes.device)
    model.tie_weights()
    if not resume:
        spread(folder, model, processes)
        if not finite(policy):
            raise FloatingPointError(f"{folder}: expected finite weights; one of them is nan or infinity")
    return policy


@torch.no_grad()
def spread(folder, model, processes):
    """Fill in the weights: rank 0 reads them and broadcasts tensor after tensor; each rank keeps its shard of each."""
    source = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) if processes.rank == 0 else model
    dist.barrier(processes.writers)  # reading may take long, with a download: longer than other groups wait
    theirs = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    for name, mine in [*model.named_parameters(), *model.named_buffers()]:
        whole = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
        dist.broadcast(whole.copy_(theirs[name]) if processes.rank == 0 else whole, 0, group=processes.trainers)
        if isinstance(mine, DTensor):  # src_data_rank None: nothing is sent, each rank slices its own copy
            whole = distribute_tensor(whole, mine.device_mesh, mine.placements, src_data_rank=None)
        mine.copy_(whole)


METADATA = {  # all that the pickled metadata of a state/ names
    tuple(name.rsplit(".", 1))
    for name in """
        torch.distributed.checkpoint.metadata.Metadata torch.distributed.checkpoint.metadata.MetadataIndex
        torch.distributed.checkpoint.metadata.StorageMeta torch.distributed.checkpoint.metadata.BytesStorageMetadata
        torch.distributed.checkpoint.metadata.ChunkStorageMetadata torch.distributed.checkpoint.filesystem._StorageInfo
        torch.distributed.checkpoint.metadata.TensorStorageMetadata torch.serialization._get_layout torch.Size
        torch.distributed.checkpoint.metadata.TensorProperties torch.float32 torch.bfloat16 torch.int64
        torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING pathlib.PosixPath pathlib._local.PosixPath
    """.split()
}


class StateReader(dcp.FileSystemReader):
    """Reads a state/ that anybody may have written: an ordinary pickle can have any function called."""

    def read_metadata(self, *args, **settings):
        return store.unpickled((Path(self.path) / ".metadata").read_bytes(), METADATA)


def load_state(folder, policy, optimizer, group, *, stepped):
    """Load a checkpoint's weights, and AdamW's moments if `stepped` (see `save`), in place; all of `group` call it.

    Raises OSError for a state/ that cannot be read, or that names anything but what METADATA lists.
    """
    state = tensors(policy, optimizer, stepped)
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"  # else dcp unpickles what is no tensor, such as AdamW's betas
    try:
        dcp.load(state, storage_reader=StateReader(Path(folder) / "state"), process_group=group)
    except dcp.CheckpointException as error:
        cause = str(first_cause(error)).partition(". ")[0]
        raise OSError(f"--resume: {folder}/state cannot be read: {cause}") from error
    if stepped:
        sharded.set_optimizer_state_dict(policy, optimizer, state["optimizer"])


def first_cause(error):
    """The exception of the first rank that failed, of a dcp.CheckpointException; any other is its own cause."""
    return [cause for cause, _ in getattr(error, "failures", {0: (error, None)}).values()][0]


def finite(policy):
    """Whether all weights in this rank's shards are finite."""
    shards = (p.to_local() if isinstance(p, DTensor) else p for p in policy.parameters())
    return bool(torch.stack([shard.isfinite().all() for shard in shards]).all())  # waits for a GPU once


def tensors(policy, optimizer, stepped):
    """{name: tensors} that state/ holds: this rank's own shards, not copies."""
    moments = {"optimizer": sharded.get_optimizer_state_dict(policy, optimizer)} if stepped else {}
    return {"policy": dict(policy.named_parameters()), "buffers": dict(policy.named_buffers())} | moments


CONTENTS = "contents.json"
STATE = ("config.json", "state/run.json", "state/.metadata")  # files of every checkpoint, also of earlier versions


def set_aside(out, folder):
    """Rename the checkpoints after `folder`, which are broken: the run will write checkpoints of the same steps."""
    names = [checkpoint.name for checkpoint in finished_checkpoints(out)]
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
    for folder in reversed(finished_checkpoints(out)):
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


# --- Writing ---------------------------------------------------------------------------------------------------------


def save(out, policy, optimizer, tokenizer, weights, counters, processes):
    """Write a checkpoint and delete all but the two latest; every trainer rank calls this.

    weights   on rank 0, {Hugging Face name: whole tensor}, in the generators' dtype
    counters  what run.json keeps; needs `version` (the step) and `stepped` (whether AdamW has a state)
    Raises OSError if it cannot be written: earlier checkpoints are then untouched, and checkpoint.tmp is removed.
    """
    folder = Path(out) / "checkpoint.tmp"
    leads = processes.rank == 0
    try:
        if leads:
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "state").mkdir(parents=True)
            (folder / "state" / "run.json").write_text(json.dumps(counters), encoding="utf-8")
            save_policy(folder, policy.model, tokenizer, weights, processes.dtype)
            flush(folder)
        dist.barrier(processes.writers)  # may wait for a day; if rank 0 has failed, the others write nothing
        state = tensors(policy, optimizer, counters["stepped"])
        dcp.save(state, checkpoint_id=folder / "state", process_group=processes.writers)  # flushed by each rank
        digests = gather_checksums(folder / "state", processes)
        if leads:
            write_contents(folder, digests)
            flush(folder)  # else a crash could leave the new name on disk without the files' contents
            folder.rename(Path(out) / f"checkpoint-{counters['version']}")
    except (Exception, dcp.CheckpointException) as error:
        # The writer of fast tokenizers raises a plain Exception when the disk is full.
        if type(error) is not Exception and not isinstance(error, (OSError, SafetensorError, dcp.CheckpointException)):
            raise
        cause = first_cause(error)
        message = f"no checkpoint of step {counters['version']} could be written to {out}: {cause}"
        number = getattr(cause, "errno", None)
        raise (OSError(number, message) if number else OSError(message)) from error
    finally:
        if leads:
            shutil.rmtree(folder, ignore_errors=True)
    if leads:
        # No folder that another program has written, or that is newer.
        whole = [folder for folder in finished_checkpoints(out) if (folder / STATE[1]).exists()]
        done = [folder for folder in whole if step_of(folder) <= counters["version"]]
        for old in done[:-2]:
            shutil.rmtree(old, ignore_errors=True)


def save_policy(folder, model, tokenizer, weights, dtype):
    """Write a policy for generators and other programs. weights: as for `save`, in `dtype`."""
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder, state_dict=weights)
    model.config.dtype = dtype  # `save_pretrained` has noted the fp32 of the master weights
    model.config.save_pretrained(folder)
    spell_as_before(folder)


def spell_as_before(folder):
    """Add the names of transformers 4 to a policy's config and tokenizer: it would take other angles, and say nothing.

    transformers 5 and vLLM read both.
    """
    config = json.loads((folder / "config.json").read_text())
    rope = config["rope_parameters"]
    config["rope_theta"] = rope["rope_theta"]
    if rope["rope_type"] != "default":
        config["rope_scaling"] = rope
    if "num_local_experts" in config:
        config["num_experts"] = config["num_local_experts"]
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer["additional_special_tokens"] = tokenizer.pop("extra_special_tokens", [])
    if (folder / "tokenizer.json").exists():
        # The class that takes all from tokenizer.json, in both; others of that name differ in what they add to it.
        tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2))


def flush(folder):
    """Wait until the files in a folder, and their names, are on the disk; no other file is waited for."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and os.name == "nt":  # Windows opens no folders
            continue
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # Windows flushes what may be written
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def gather_checksums(state, processes):
    """{name of a file in state/: its checksum} on rank 0; each trainer reads the files that it has just written."""
    mine = {path.name: checksum(path) for path in state.glob(f"__{processes.rank}_*")}
    parts = [{}] * dist.get_world_size(processes.writers) if processes.rank == 0 else None
    dist.gather_object(mine, parts, group=processes.writers)
    return {name: digest for part in parts or () for name, digest in part.items()}


def write_contents(folder, digests):
    """Write contents.json: with it a reader can tell a whole checkpoint from a broken one."""
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    states = [name for name in sizes if name.startswith("state/")]
    sums = {name: digests.get(name.removeprefix("state/")) or checksum(folder / name) for name in states}
    (folder / CONTENTS).write_text(json.dumps({"bytes": sizes, "sha256": sums}, indent=1), encoding="utf-8")
