"""Makes lengths and slots fit the model's positions and the free memory.

The paper's sizes are for an 8B model on 80 GPUs. A size that the command line does not give is made smaller until it
fits, and a line says so; a given size that does not fit is refused. Memory in bytes:

    a position of a completion   2 (keys, values) x layers x key/value heads x head size x bytes of --dtype
    a generator                  its weights + slots x positions x bytes of a position
    a trainer                    `trainer_bytes`: 16 per parameter / T, what is gathered, and a micro-batch's values

Slots are made to fit for TorchGenerator, which may need all positions of all slots at once; for vLLM only lengths are:
it takes what memory is free and lets completions wait when that is full.

Run by build.py. Test: pytest tests/test_settings.py
"""

import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from plumbing.launch import world_size

USABLE = 0.9  # share of the free memory; the rest is for what is not counted here
LENGTHS = {"max_prompt_tokens", "max_new_tokens", "interrupt_at", "length_max", "length_cache"}
HEAD_CHUNK = 256  # positions whose logits the trainer holds at once (precision.PolicyModel)


def fit(args, config, phrase):
    """Make lengths and slots fit model and memory; returns lines that say what changed, and a hint on a GPU.

    config  Hugging Face's;  phrase  tokens of the interruption phrase
    Raises ValueError for what cannot be made to fit.
    """
    lines = [fit_lengths(args, config.max_position_embeddings, args.default_new, phrase)]
    lines.append(fit_trainers(args, config))
    if args.generator == "torch":
        lines.append(fit_slots(args, config, **neighbours(args)))
        if torch.cuda.is_available():
            lines.append(
                "Hint: --generator torch runs anywhere, but is not fast; on a GPU --generator vllm is (docs/own.md)"
            )
    check_lengths(args)
    return list(filter(None, lines))


def check_lengths(args):
    """Raise ValueError for lengths that contradict each other."""
    low, high = args.interrupt_at
    if args.length_control == "interrupt" and not low <= high < args.max_new_tokens:
        raise ValueError(
            f"--interrupt-at {low} {high}: expected LO <= HI < --max-new-tokens {args.max_new_tokens}, for an answer"
        )
    longest = args.max_prompt_tokens + args.max_new_tokens
    if not args.evaluate and longest > args.token_budget:
        raise ValueError(
            f"--token-budget {args.token_budget} is smaller than one prompt with its completion, {longest} tokens"
        )


def fit_lengths(args, positions, default_new, phrase):
    """Change those of LENGTHS that were not asked for until they fit; returns the line that says so, or "".

    positions    that the model has
    default_new  the default of --max-new-tokens, for which the default interruption and penalty lengths are made
    phrase       tokens of the interruption phrase, after which one token must be left for the answer
    Raises ValueError for lengths that were asked for and leave no position for the other.
    """
    before = {name: getattr(args, name) for name in LENGTHS}
    longest = args.max_prompt_tokens + args.max_new_tokens
    if longest > positions and "max_new_tokens" not in args.asked:
        if "max_prompt_tokens" not in args.asked:
            args.max_prompt_tokens = max(1, args.max_prompt_tokens * positions // longest)
        args.max_new_tokens = positions - args.max_prompt_tokens
    elif longest > positions and "max_prompt_tokens" not in args.asked:
        args.max_prompt_tokens = positions - args.max_new_tokens
    if (
        args.max_prompt_tokens + args.max_new_tokens > positions
        or args.max_new_tokens < 1
        or args.max_prompt_tokens < 1
    ):
        raise ValueError(
            f"expected prompt and completion within the {positions} positions that the model has, got "
            f"--max-prompt-tokens {before['max_prompt_tokens']} and --max-new-tokens {before['max_new_tokens']}"
        )
    room = args.max_new_tokens - phrase - 1
    beyond = {"interrupt": args.interrupt_at[1] > room, "penalty": args.length_max > args.max_new_tokens}
    if beyond.get(args.length_control) or args.max_new_tokens != before["max_new_tokens"]:

        def scaled(tokens):
            return max(1, tokens * args.max_new_tokens // default_new)

        for name in {"length_max", "length_cache"} - set(args.asked):
            setattr(args, name, scaled(before[name]))
        if "interrupt_at" not in args.asked:
            low, high = map(scaled, before["interrupt_at"])
            args.interrupt_at = (low, high) if high <= room else (max(1, low * room // high), max(1, room))
    read = {"interrupt": ["interrupt_at"], "penalty": ["length_max", "length_cache"]}.get(args.length_control, [])
    changed = [
        f"--{name.replace('_', '-')} {numbers(getattr(args, name))} instead of {numbers(before[name])}"
        for name in ("max_prompt_tokens", "max_new_tokens", *read)
        if getattr(args, name) != before[name]
    ]
    shrunk = longest > positions
    cause = f"the model has {positions} positions" if shrunk else f"--max-new-tokens is {args.max_new_tokens}"
    return f"Lengths made to fit, {cause}: {', '.join(changed)}" if changed else ""


def numbers(value):
    """A value as it is written on the command line.

    >>> numbers(8), numbers((5, 6))
    ('8', '5 6')
    """
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def position_bytes(config, itemsize):
    """Bytes of the keys and values of one position; config: Hugging Face's, itemsize: bytes of a number."""
    return 2 * config.num_hidden_layers * layer_widths(config)[3] * itemsize


def parameters(config):
    """Number of parameters of the model that `config` describes; takes no memory for them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())


def layer_widths(config):
    """(H, I, heads x head size, key/value heads x head size): the widths of a decoder layer's matrices."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return config.hidden_size, config.intermediate_size, config.num_attention_heads * size, groups * size


def trainer_bytes(args, config, count, itemsize, trainers):
    """Bytes that each of `trainers` ranks needs at the peak of a step, in the backward pass of a layer or of the head.

    count     parameters of the model
    itemsize  bytes of --dtype

    The factors of `working` were fitted to peaks of Qwen3 of 0.6B to 8B, in bf16 (tests/shadow/meter.py). FSDP2 keeps
    the embeddings and the head gathered through the backward pass, and one layer.
    """
    width, inner, heads, groups = layer_widths(config)
    tokens, vocabulary, layers = args.token_budget, config.vocab_size * width, config.num_hidden_layers
    layer = 2 * width * (heads + groups) + 3 * width * inner  # parameters
    states = 16 * count // trainers  # fp32: weights, gradients, AdamW's two moments
    gathered = (count - (layers - 1) * layer) * itemsize
    saved = width if args.activation_checkpointing else 10 * width + 4 * inner  # numbers that a layer keeps per token
    kept = (layers * saved + 2 * width) * tokens * itemsize
    working = (13 * width + 6 * inner + 8 * heads) * tokens * itemsize + vocabulary * itemsize + 4 * layer
    head = 3 * HEAD_CHUNK * config.vocab_size * 4 + 2 * 4 * vocabulary
    return states + gathered + kept + max(working, head)


def fit_trainers(args, config):
    """Where each process has a GPU of its own, make --trainers fit if it was not asked for; returns a line, or "".

    The smallest number that fits is taken, at least a fifth of the processes. It is judged by the whole memory of a
    GPU, which all ranks see alike, not by what is free.
    Raises ValueError, before anything is loaded, for a model that cannot be trained on these GPUs.
    """
    gpus = torch.cuda.device_count()
    if args.virtual or args.evaluate or gpus < int(os.environ.get("LOCAL_WORLD_SIZE", world_size())):
        return ""
    usable = USABLE * torch.cuda.mem_get_info(0)[1]
    count, itemsize = parameters(config), getattr(torch, args.dtype).itemsize
    needs = {T: trainer_bytes(args, config, count, itemsize, T) for T in range(args.trainers, world_size())}
    fits = [T for T in needs if needs[T] <= usable]
    asked = args.trainers
    need = (
        f"with {asked} trainer(s) each needs about {needs[asked] / 1e9:.1f} GB for {count / 1e9:.2f}B parameters and "
        f"micro-batches of {args.token_budget:,} tokens; {usable / 1e9:.1f} GB of a GPU can be used"
    )
    if fits[:1] == [asked]:
        return ""
    if not fits or "trainers" in args.asked:
        more = f"--trainers {fits[0]}" if fits else f"more than {world_size()} GPUs"
        raise ValueError(f"{need}. Way out: {more}, a smaller --token-budget or a smaller model")
    args.trainers = fits[0]
    return f"--trainers {fits[0]} instead of {asked}: {need}"


def fit_slots(args, config, *, free, trainers, generators):
    """Make --slots fit if it was not asked for; returns the line that says so, or "".

    free                  bytes of memory on this process's device
    trainers, generators  ranks that share it; trainers 0: they have devices of their own
    Raises ValueError if the slots that were asked for do not fit, or if not even one slot does.
    """
    itemsize = getattr(torch, args.dtype).itemsize
    positions = min(args.max_prompt_tokens + args.max_new_tokens, config.max_position_embeddings)
    position = position_bytes(config, itemsize)
    count = parameters(config)
    weights = count * itemsize
    sharing = 1 if args.virtual else args.trainers  # in virtual time one process has all of a trainer's memory
    training = 0 if args.evaluate else trainer_bytes(args, config, count, itemsize, sharing)
    room = int((USABLE * free - trainers * training - generators * weights) // (generators * positions * position))
    if room >= args.slots:
        return ""
    where = "here too" if trainers else "on a device of its own"
    needs = (
        f"{args.slots} slots x {positions:,} positions x {position:,} bytes = "
        f"{args.slots * positions * position / 1e9:.1f} GB; {free / 1e9:.1f} GB are free for {generators} "
        f"generator(s) with weights of {weights / 1e9:.1f} GB each"
        + f"; a trainer needs about {training / 1e9:.1f} GB, {where}"
        * (training > 0)
    )
    if "slots" in args.asked or room < 1:
        raise ValueError(
            f"--slots {args.slots} does not fit: {needs}; {max(room, 0)} would fit. Lower --slots or --max-new-tokens"
        )
    before = args.slots
    args.slots = room
    return f"--slots {room} instead of {before}, to fit the memory: {needs}. Shorter lengths allow more slots"


def neighbours(args):
    """The arguments of `fit_slots` for this process's device: free bytes, and the ranks that share them.

    Without a GPU all ranks of a node share its memory. A rank with a GPU of its own is treated as a generator.
    """
    if args.evaluate or args.virtual:  # one process, in which at most one trainer computes
        return {"free": free_bytes(0), "trainers": int(bool(args.virtual)), "generators": args.generators}
    mine = int(os.environ.get("LOCAL_RANK", 0))
    first = int(os.environ.get("RANK", 0)) - mine
    gpus = torch.cuda.device_count()
    local = range(int(os.environ.get("LOCAL_WORLD_SIZE", world_size())))
    here = [first + rank for rank in local if not gpus or rank % gpus == mine % gpus]
    training = 0 if len(here) == 1 else sum(rank < args.trainers for rank in here)
    return {"free": free_bytes(mine), "trainers": training, "generators": max(1, len(here) - training)}


def free_bytes(local):
    """Free memory of the device of the local-th process of this node."""
    gpus = torch.cuda.device_count()
    return torch.cuda.mem_get_info(local % gpus)[0] if gpus else available()


def available():
    """Bytes of memory that are still available; where there is no /proc/meminfo, all memory of the machine."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        return 1024 * int(meminfo.read_text().partition("MemAvailable:")[2].split()[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
