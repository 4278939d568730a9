"""Checkpoints: a fault never costs the last good one, and only rank 0 ever holds all weights in fp32.

    checkpoint-STEP/                  renamed from checkpoint.tmp when all ranks have written and all is on the disk
      config.json, *.safetensors, …   the policy in the generators' dtype: for generators, --evaluate, other programs
      state/                          what any number of trainers can resume from: fp32 weights and AdamW's moments
                                      (torch.distributed.checkpoint, each rank writes its shards); run.json: counters

The two latest are kept, and the one of the best evaluation.

Deviation: none known; the paper does not describe its checkpoints.

Run by train.py. Test: pytest tests/test_checkpoints.py tests/test_run_folder.py tests/test_faults.py
"""

import errno
import itertools
import json
import os
import pickle
import re
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import cached_file
from transformers.utils.hub import get_checkpoint_shard_files

import experts
import precision
from plumbing import store
from plumbing.log import counters, finished_checkpoints, step_of

# --- Reading ---------------------------------------------------------------------------------------------------------


FULL = 1 << 20  # bytes: a disk with less room is full
LATEST = 1800.0  # seconds of wall clock between two checkpoints at most, unless --checkpoint-every is given
FILES = "model.safetensors model.safetensors.index.json pytorch_model.bin pytorch_model.bin.index.json".split()
VOCABULARIES = "tokenizer.json tokenizer.model spiece.model vocab.json vocab.txt".split()  # of a tokenizer: one of them
ADAPTERS = "adapter_config.json adapter_model.safetensors adapter_model.bin".split()
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
POINTER = b"version https://git-lfs"  # how a file of git-lfs begins that was not fetched
# What readers of JSON, pickles, torch's files and safetensors raise for bytes that they cannot parse.
UNPARSED = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, EOFError)
UNPARSED += (pickle.UnpicklingError, SafetensorError)
# Hugging Face model types whose logits are lm_head(body(ids)): one linear layer without bias, nothing after it.
SUPPORTED = ("gemma", "llama", "mistral", "mixtral", "olmo2", "olmoe", "qwen2", "qwen3", "qwen3_moe", "smollm3")
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
    # They act on the trainer only, so pi_train would differ from pi_gen at equal weights.
    acting = ((name, getattr(config, name, 0.0)) for name in ("attention_dropout", "router_jitter_noise"))
    noise = [f"{name}={value}" for name, value in acting if value]
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if config.model_type not in SUPPORTED:
        reason = "its attention and head have not been checked"
    elif any(kind != "full_attention" for kind in layers) if layers else window is not None:
        reason = f"attention is not full in every layer (sliding_window={window})"
    elif noise:
        reason = f"{', '.join(noise)} must be 0"
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
    for path in Path(folder).glob("*"):  # of a name on the hub there is none
        if path.is_file() and path.stat().st_size < 1000 and path.read_bytes().startswith(POINTER):
            raise ValueError(f"{path.name} is a pointer of git-lfs; expected the file, which `git lfs pull` fetches")
    if adapter := first_file(folder, ADAPTERS):
        raise ValueError(f"{Path(adapter).name} is part of an adapter: merge it into the weights first")
    if other := getattr(config, "transformers_weights", None):
        raise ValueError(f"config.json names {other} as its weights: expected one of {', '.join(FILES)}")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    path = first_file(folder, FILES)
    if not path:
        raise ValueError(f"expected weights, found none of {', '.join(FILES)}")
    stored = {}
    try:
        shards = get_checkpoint_shard_files(folder, path)[0] if path.endswith(".json") else [path]
        for path in shards:  # they are mapped, not read
            stored |= torch.load(path, mmap=True, weights_only=True) if path.endswith(".bin") else load_file(path)
        fault = misfit(stored, model)
    except (OSError, *UNPARSED) as error:
        fault = f"{Path(path).name} cannot be read: {type(error).__name__}: {str(error).partition('. ')[0]}"
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

    Raises OSError for a state/ that cannot be read, or that holds anything but tensors.
    """
    state = tensors(policy, optimizer, stepped)
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"  # else dcp unpickles what is no tensor, such as AdamW's betas
    try:
        dcp.load(state, storage_reader=StateReader(Path(folder) / "state"), process_group=group)
    except dcp.CheckpointException as error:
        cause = str(first_cause(error)).partition(". ")[0]
        way = "Nothing was changed; to go on from the checkpoint before it, move this one away"
        raise OSError(f"--resume: {folder}/state cannot be read: {cause}. {way}") from error
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


# --- Whole or broken -------------------------------------------------------------------------------------------------


def damage(folder):
    """What of a checkpoint is missing, cut or torn, as a crash or a full disk leaves it, in words; "" if it is whole.

    Raises OSError for a file that is there and cannot be opened.
    """
    folder = Path(folder)
    name = "state/run.json"
    try:
        for key in ("version", "stepped", "curriculum"):
            counters(folder)[key]
        name = "state/.metadata"
        parts = StateReader(folder / "state").read_metadata().storage_data.values()
        for part in parts:
            name = f"state/{part.relative_path}"
            least = part.offset + part.length
            if (size := (folder / name).stat().st_size) < least:
                return f"{name} has {size} bytes, expected {least} or more"
        for name in ("config.json", "tokenizer_config.json"):
            (folder / name).stat()
        if not any((folder / name).exists() for name in VOCABULARIES):
            return f"{VOCABULARIES[0]} is missing"
        index = folder / "model.safetensors.index.json"
        shards = ["model.safetensors"]
        if index.exists():
            name = index.name
            shards = {*json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
        for name in shards:
            # `safe_open` reads the header, which says how long the file must be. It takes no permission for no file.
            with (folder / name).open("rb"), safe_open(folder / name, "pt"):
                pass
    except FileNotFoundError:
        return f"{name} is missing"
    except UNPARSED as error:
        return f"{name} cannot be read: {type(error).__name__}: {error}"
    return ""


def newest(out):
    """(the newest whole checkpoint of a run or None, {a broken one after it: what is wrong, in words}).

    Raises OSError if there are only broken ones, or one whose files cannot be opened.
    """
    broken = {}
    for folder in reversed(finished_checkpoints(out)):
        fault = damage(folder)
        if not fault:
            return folder, broken
        broken[folder] = fault
    if broken:
        faults = "; ".join(f"{folder}: {fault}" for folder, fault in broken.items())
        raise OSError(f"--resume: expected a whole checkpoint in {out}, found broken ones only: {faults}")
    return None, broken


def pick(out):
    """The newest whole checkpoint. Broken ones after it get a name that no checkpoint has, and are named in a line.

    Raises OSError as `newest`.
    """
    folder, broken = newest(out)
    for damaged, fault in broken.items():
        names = (f"{damaged.name}-broken{number}" for number in itertools.count(1))
        aside = next(path for path in map(damaged.with_name, names) if not path.exists())
        damaged.rename(aside)  # the run will write a checkpoint of the same step
        print(f"{damaged} is broken: {fault}; it is {aside.name} now, and --resume goes on from {folder}")
    return str(folder)


def check_same_policy(model, folder):
    """Raise ValueError unless a --model of --resume has config and tokenizer of the checkpoint, whose weights it takes.

    folder  None: there is no checkpoint, so that nothing tells
    """
    theirs = described(folder) if folder else {}
    try:
        ours = described(model)
    except (OSError, ValueError) as error:
        differ = str(error).strip().partition("\n")[0].rstrip(".")
    else:
        names = [name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)]
        differ = ", ".join(names) and f"it has another {', '.join(names)}"
    if differ:
        expected = f"expected the model of the run, with config and tokenizer as in {folder or 'a checkpoint'}"
        raise ValueError(f"--resume with --model {model}: {expected}; {differ}. To go on as before, leave out --model")


def described(place):
    """{name: bytes} of a policy's files for config and tokenizer, as transformers writes them today."""
    with tempfile.TemporaryDirectory() as folder:
        config = AutoConfig.from_pretrained(place)
        config.dtype = None  # of its weights
        config.save_pretrained(folder)
        AutoTokenizer.from_pretrained(place).save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


# --- Writing ---------------------------------------------------------------------------------------------------------


def save(out, policy, optimizer, tokenizer, weights, counters, processes):
    """Write a checkpoint; delete all but the two latest and the best one. Every trainer rank calls this.

    weights   on rank 0, {Hugging Face name: whole tensor}, in the generators' dtype
    counters  what run.json keeps; needs `version` (the step), `stepped` (whether AdamW has a state) and `best` ({} or
              the version and pass_rate of the best evaluation that has a checkpoint)
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
        dist.barrier(processes.writers)  # may wait for a day; if rank 0 has failed, the others write nothing
        state = tensors(policy, optimizer, counters["stepped"])
        # It returns when all ranks have written and flushed.
        dcp.save(state, checkpoint_id=folder / "state", process_group=processes.writers)
        if leads:
            flush(folder)  # else a crash could leave the new name on disk without the files' contents
            folder.rename(Path(out) / f"checkpoint-{counters['version']}")
    except (Exception, dcp.CheckpointException) as error:
        # The writer of fast tokenizers raises a plain Exception when the disk is full.
        if type(error) is not Exception and not isinstance(error, (OSError, SafetensorError, dcp.CheckpointException)):
            raise
        cause = first_cause(error)
        if shutil.disk_usage(out).free < FULL and "No space" not in str(cause):  # some writers do not say it
            cause = OSError(errno.ENOSPC, f"No space left on the disk ({cause})")
        message = f"no checkpoint of step {counters['version']} could be written to {out}: {cause}"
        number = getattr(cause, "errno", None)
        raise (OSError(number, message) if number else OSError(message)) from error
    finally:
        if leads:
            shutil.rmtree(folder, ignore_errors=True)
    if leads:
        # No folder that another program has written, or that is newer.
        done = [folder for folder in finished_checkpoints(out) if step_of(folder) <= counters["version"]]
        for old in [folder for folder in done if (folder / "state" / "run.json").exists()][:-2]:
            if step_of(old) != counters["best"].get("version"):
                shutil.rmtree(old, ignore_errors=True)


def save_policy(folder, model, tokenizer, weights, dtype):
    """Write a policy for generators and other programs. weights: as for `save`, in `dtype`."""
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder, state_dict=weights)
    model.config.dtype = dtype  # `save_pretrained` has noted the fp32 of the master weights
    model.config.save_pretrained(folder)


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
