"""Makes lengths and slots fit the model's positions and the free memory.

The paper's sizes are for an 8B model on 80 GPUs. A size that the command line does not give is made smaller until it
fits, and a line says so; a given size that does not fit is refused. Memory in bytes:

    a position of a completion   2 (keys, values) x layers x key/value heads x head size x bytes of --dtype
    a generator                  `generator_bytes`: weights, slots x positions x bytes of a position, a pass of prompts
    a trainer                    `trainer_bytes`: 16 per parameter / T, what is gathered, and a micro-batch's values

Slots are made to fit for TorchGenerator, which may need all positions of all slots at once; for vLLM only lengths are:
it takes what memory is free and lets completions wait when that is full. With --plan the memory is that of the GPUs
which it names.

Deviation: with fewer generators than the paper's 64, a validation has fewer prompts (validation_prompts).

Run by build.py. Test: pytest tests/test_settings.py tests/test_plan.py
"""

import copy
import re
from bisect import bisect_left
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM

import batches
import experts
import precision
from decoding import GRAPHS, WRITTEN
from pipeline import OFF_POLICY
from plumbing.arguments import as_given, check_model, option
from plumbing.checkpoints import LATEST, check_supported
from plumbing.devices import (
    DEVICES,
    Fleet,
    free_bytes,
    gpus_of_ranks,
    own_memory,
    refuse,
    sharing,
    torchrun,
    world_size,
)
from plumbing.store import MAX_BYTES
from plumbing.virtual import Costs
from recipes import PAPER
from rollout import PREFILL_AHEAD, PREFILL_TOKENS
from vllm_rollout import check_dense

USABLE = 0.9  # share of the free memory; the rest is for what is not counted here
LENGTHS = {"max_prompt_tokens", "max_new_tokens", "interrupt_at", "length_max", "length_cache"}
LARGEST_CHUNK = 4096  # positions of a head's chunk: products of so many rows fill a GPU
MOST_TRAINERS = 1024  # more that are looked at for a model that does not fit
PAPER_GENERATORS = 64  # beside its 16 trainers
LEAST_PROMPTS = 100
FEW_SLOTS = 8  # with fewer a GPU reads its weights for little
GRAPH_BYTES = 8e6  # assumed: a CUDA graph of a decode step, about a thousand launches, without the memory it works in
COUNTED: dict[str, int] = {}  # a config's text -> parameters of its model, which takes a second to make
SHORTER = 8  # by which factor lengths are shortened in what is proposed, at most


def fit(args, config, phrase):
    """Make lengths and slots fit model and memory: returns (all settings as a namespace, lines that say what changed).

    config  Hugging Face's;  phrase  tokens of the interruption phrase
    Raises ValueError for what cannot be made to fit.
    """
    least = min(FEW_SLOTS, args.slots)
    try:
        fitted, lines = fit_as_given(args, config, phrase)
    except ValueError as error:
        flags = smaller(args, config, phrase, least) or smaller(args, config, phrase, 1)
        raise ValueError(f"{error}. These fit: {flags}" if flags else str(error)) from None
    if fitted.slots < least:
        if flags := smaller(args, config, phrase, least):
            lines.append(f"So few slots decode slowly; {least} or more fit with {flags}")
    return fitted, lines


def smaller(args, config, phrase, slots):
    """The first flags with which at least so many slots fit, of micro-batches and lengths that are halved; or ""."""
    less = SimpleNamespace(**vars(args))
    while True:
        while less.max_prompt_tokens + less.max_new_tokens > less.token_budget:
            less.max_prompt_tokens //= 2
            less.max_new_tokens //= 2
            less.asked = {*args.asked, "max_prompt_tokens", "max_new_tokens"}
        if less.max_prompt_tokens * SHORTER < args.max_prompt_tokens:
            return ""
        with suppress(ValueError):
            if fit_as_given(less, config, phrase)[0].slots >= slots:
                break
        less.token_budget //= 2
    changed = [name for name in ("max_prompt_tokens", "max_new_tokens") if getattr(less, name) != getattr(args, name)]
    names = changed if args.evaluate else ["token_budget", *changed]  # an evaluation has no micro-batches
    return " ".join(f"{option(name)} {getattr(less, name)}" for name in names)


def fit_as_given(args, config, phrase):
    """`fit`, whose errors do not say what would fit."""
    args = SimpleNamespace(**vars(args))
    lines = [fit_lengths(args, config.max_position_embeddings, args.default_new, phrase)]
    lines.append(fit_trainers(args, config))
    lines.append(fit_validation(args))
    if args.generator == "torch" or args.plan or torch.cuda.device_count():
        lines.append(fit_slots(args, config, **neighbours(args)))
    if not args.evaluate:
        check_lengths(args, config)
    return args, [*filter(None, lines)]


def check_lengths(args, config):
    """Raise ValueError for a completion with its prompt that is too long for training."""
    longest = args.max_prompt_tokens + args.max_new_tokens
    if longest > args.token_budget:
        raise ValueError(f"--token-budget {args.token_budget} is less than a prompt with its completion, {longest}")
    experts.check_record(config, longest, MAX_BYTES)


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
    sizes = args.max_prompt_tokens, args.max_new_tokens
    if sum(sizes) > positions or min(sizes) < 1:
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
        f"{option(name)} {as_given(getattr(args, name))} instead of {as_given(before[name])}"
        for name in ("max_prompt_tokens", "max_new_tokens", *read)
        if getattr(args, name) != before[name]
    ]
    shrunk = longest > positions
    cause = f"the model has {positions} positions" if shrunk else f"--max-new-tokens is {args.max_new_tokens}"
    return f"Lengths made to fit, {cause}: {', '.join(changed)}" if changed else ""


def position_bytes(config, itemsize):
    """Bytes of the keys and values of one position; config: Hugging Face's, itemsize: bytes of a number."""
    return 2 * config.num_hidden_layers * layer_widths(config)[3] * itemsize


def parameters(config):
    """Number of parameters of the model that `config` describes; takes no memory for them."""
    text = config.to_json_string()
    if text not in COUNTED:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        COUNTED[text] = sum(parameter.numel() for parameter in model.parameters())
    return COUNTED[text]


def layer_widths(config):
    """(H, I of an expert, heads x head size, key/value heads x head size): the widths of a decoder layer's matrices."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    inner = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    return config.hidden_size, inner, config.num_attention_heads * size, groups * size


def trainer_bytes(args, config, count, itemsize, trainers):
    """Bytes that each of `trainers` ranks needs at the peak of a step, in the backward pass of a layer or of the head.

    count     parameters of the model
    itemsize  bytes of --dtype

    The factors of `working` were fitted to peaks of Qwen3 of 0.6B to 8B, in bf16. FSDP2 keeps
    the embeddings and the head gathered through the backward pass, and one layer.
    """
    width, inner, heads, groups = layer_widths(config)
    every, chosen = experts.count(config)
    tokens, layers = micro_batch(args), config.num_hidden_layers
    layer = layer_parameters(config)
    states = 16 * count // trainers  # fp32: weights, gradients, AdamW's two moments
    gathered = (count - (layers - 1) * layer) * itemsize
    # Queries, keys and values too: before and after their norms and turns.
    inside = 10 * width + 4 * heads + 5 * groups + 4 * chosen * (inner + width * (every > 1))
    saved = width if args.activation_checkpointing else inside  # numbers that a layer keeps per token
    kept = (layers * saved + 2 * width) * tokens * itemsize
    head = head_bytes(precision.CHUNK, config)
    return states + gathered + kept + max(layer_working(args, config, itemsize), head)


def micro_batch(args):
    """Padded tokens of the largest micro-batch on a GPU."""
    return max(args.token_budget, batches.columns(args.max_prompt_tokens + args.max_new_tokens, "cuda"))


def layer_parameters(config):
    """Parameters of a decoder layer's matrices."""
    width, inner, heads, groups = layer_widths(config)
    return 2 * width * (heads + groups) + 3 * width * inner * experts.count(config)[0]


def layer_working(args, config, itemsize):
    """Bytes that the backward pass of a decoder layer needs for itself (see `trainer_bytes`)."""
    width, inner, heads, _ = layer_widths(config)
    every, chosen = experts.count(config)
    copies = chosen * width if every > 1 else 0  # numbers per token, once for each of its experts
    values = (13 * width + 6 * inner * chosen + 8 * heads + 3 * copies) * micro_batch(args) + config.vocab_size * width
    # With experts the next layer, which is large, is gathered too.
    return values * itemsize + (6 if every > 1 else 4) * layer_parameters(config)


def head_chunk(args, config):
    """Positions whose logits a trainer holds at once: on a GPU as many as take the memory that a layer needs later.

    So a larger chunk, which is faster, costs no memory; and it is the same on all ranks, and after a restart.
    """
    if not torch.cuda.is_available():
        return precision.CHUNK
    room = layer_working(args, config, getattr(torch, args.dtype).itemsize)
    chunks = range(LARGEST_CHUNK, precision.CHUNK, -precision.CHUNK)
    return next((chunk for chunk in chunks if head_bytes(chunk, config) <= room), precision.CHUNK)


def head_bytes(chunk, config):
    """Bytes of precision.token_logprobs: in fp32 a chunk's logits 4.5 times, split ones too, and twice the gradient."""
    return 2 * config.vocab_size * (9 * chunk + 4 * config.hidden_size)


def generator_bytes(args, config, count, itemsize):
    """(bytes that a TorchGenerator needs whatever its slots, bytes that each slot needs).

    count     parameters of the model
    itemsize  bytes of --dtype

    The first are weights and a pass of prompts: their keys and values, and what a layer makes of them. A slot has its
    positions, and probabilities as fp32 and twice as fp64. The factors of `working` were fitted to peaks of Qwen3 of
    0.6B and 8B, in bf16. CUDA graphs work in a memory of their own, which they share: it holds
    the probabilities once more. Each takes GRAPH_BYTES besides.
    """
    width, inner, _, _ = layer_widths(config)
    position = position_bytes(config, itemsize)
    prompts = min(PREFILL_TOKENS, (args.slots + PREFILL_AHEAD) * args.max_prompt_tokens)
    working = (4 * width + 3 * inner * experts.count(config)[1]) * itemsize
    fixed = count * itemsize + prompts * (position + working)
    probabilities = (4 + 8 + 8) * config.vocab_size
    slot = longest(args, config) * position + probabilities
    on_gpu = args.plan or torch.cuda.is_available()
    if on_gpu and args.generator == "torch" and config.model_type in WRITTEN:
        return fixed + GRAPHS * GRAPH_BYTES, slot + probabilities
    return fixed, slot


def least_generator(args, config, count, itemsize):
    """Bytes of a generator with a single slot; arguments as for `generator_bytes`. With vLLM it holds weights twice."""
    copies = count * itemsize if args.generator == "vllm" else 0
    return sum(generator_bytes(args, config, count, itemsize)) + copies


def longest(args, config):
    """Positions of the longest sequence."""
    return min(args.max_prompt_tokens + args.max_new_tokens, config.max_position_embeddings)


def fit_trainers(args, config):
    """Where each process has a GPU of its own, make --trainers fit if it was not asked for; returns a line, or "".

    The smallest number that fits is taken, at least a fifth of the processes. It is judged by the whole memory of a
    GPU, which all ranks see alike, not by what is free.
    Raises ValueError, before anything is loaded, for a model that cannot be trained on these GPUs.
    """
    usable = USABLE * own_memory(args)
    if not usable:
        return ""
    world = world_size(args.plan)
    count, itemsize = parameters(config), getattr(torch, args.dtype).itemsize
    asked = args.trainers
    need = partial(trainer_bytes, args, config, count, itemsize)
    numbers = range(asked, asked + MOST_TRAINERS)
    first = bisect_left(numbers, True, key=lambda trainers: need(trainers) <= usable)  # the more, the less each needs
    fits = numbers[first] if first < MOST_TRAINERS else None
    if fits == asked:
        return ""
    shortage = (
        f"with {asked} trainer(s) each needs about {need(asked) / 1e9:.1f} GB for {count / 1e9:.2f}B parameters and "
        f"micro-batches of {args.token_budget:,} tokens; {usable / 1e9:.1f} GB of a GPU can be used"
    )
    if fits and fits < world and "trainers" not in args.asked:
        args.trainers = fits
        return f"--trainers {fits} instead of {asked}: {shortage}"
    ways = ""
    if fits and least_generator(args, config, count, itemsize) <= usable:
        ways = f"--trainers {fits}, or " if fits < world else f"{fits + 1} GPUs, or "
    raise ValueError(f"{shortage}. Way out: {ways}a smaller model")


def validation_prompts(generators):
    """How many validation prompts suit so many generators: the paper's 1,000 for its 64, fewer for fewer.

    Each generator then samples 250 completions of 16 to a prompt, about as many as it has slots. With the 1,000 on 7
    generators R_0 takes hours, and validations a sixth of all decoding. Below LEAST_PROMPTS a curve is too noisy.

    >>> [validation_prompts(generators) for generators in (1, 7, 15, 64, 128)]
    [100, 110, 235, 1000, 1000]
    """
    most: Any = PAPER["eval_prompts"]
    return min(most, max(LEAST_PROMPTS, -(-most * generators // PAPER_GENERATORS)))


def fit_validation(args):
    """Make the paper's default of --eval-prompts suit the generators that there are; returns the line, or ""."""
    before = args.eval_prompts
    if args.evaluate or "eval_prompts" in args.asked or before != PAPER["eval_prompts"]:
        return ""
    generators = args.generators if args.virtual else world_size(args.plan) - args.trainers
    args.eval_prompts = validation_prompts(generators)
    why = f"the paper's are for {PAPER_GENERATORS} generators, here are {generators}"
    return f"--eval-prompts {args.eval_prompts} instead of {before}: {why}" if args.eval_prompts != before else ""


def fit_slots(args, config, *, free, trainers, generators):
    """Make --slots fit if it was not asked for; returns the line that says so, or "".

    free                  bytes of memory on this process's device
    trainers, generators  ranks that share it; trainers 0: they have devices of their own
    Raises ValueError if a trainer, the slots that were asked for, or even one slot does not fit. vLLM takes its share
    of the memory whatever a trainer needs, holds the weights twice, and lets completions wait for a slot.
    """
    itemsize = getattr(torch, args.dtype).itemsize
    count = parameters(config)
    fixed, slot = generator_bytes(args, config, count, itemsize)
    positions, position, weights = longest(args, config), position_bytes(config, itemsize), count * itemsize
    sharing = 1 if args.virtual else args.trainers  # in virtual time one process has all of a trainer's memory
    training = 0 if args.evaluate or not trainers else trainer_bytes(args, config, count, itemsize, sharing)
    ours = USABLE * free / max(1, trainers)  # a trainer's
    room = int((USABLE * free - trainers * training - generators * fixed) // (generators * slot))
    ways = f"--slots {room}, or " if room > 0 else ""
    if args.generator == "vllm":
        ways = "--generator torch, or " if room > 0 else ""
        ours = USABLE * free / (trainers + generators)
        room = int((ours - fixed - weights) // slot)
    if training > ours:
        has = f"a trainer needs about {training / 1e9:.1f} GB, and has {ours / 1e9:.1f} GB of {free / 1e9:.1f} GB"
        raise ValueError(f"{has}. Way out: {ways}a smaller model")
    if room >= args.slots or args.generator == "vllm" and room > 0:
        return ""
    needs = (
        f"{args.slots} slots x {positions:,} positions x {position:,} bytes = "
        f"{args.slots * positions * position / 1e9:.1f} GB; {free / 1e9:.1f} GB are free for {generators} "
        f"generator(s) with weights of {weights / 1e9:.1f} GB each"
    )
    needs += ", which vLLM holds twice" if args.generator == "vllm" else ""
    needs += f"; a trainer needs about {training / 1e9:.1f} GB" if training else ""
    if "slots" in args.asked or room < 1:
        raise ValueError(
            f"--slots {args.slots} does not fit: {needs}; {max(room, 0)} would fit. Way out: {ways}a smaller model"
        )
    before = args.slots
    args.slots = room
    return f"--slots {room} instead of {before}, to fit the memory: {needs}. Shorter lengths allow more slots"


def neighbours(args):
    """The arguments of `fit_slots` for this process's device: free bytes, and the ranks that share them.

    Without a GPU all ranks of a node share its memory. A rank with a GPU of its own is treated as a generator.
    """
    if args.plan:  # two processes share a single GPU
        return {"free": args.plan.device.memory, "trainers": int(args.plan.count == 1), "generators": 1}
    if args.virtual:  # one process, in which at most one trainer computes
        return {"free": free_bytes(0), "trainers": 1, "generators": args.generators}
    mine = torchrun("LOCAL_RANK")
    if args.evaluate:
        return {"free": free_bytes(mine), "trainers": 0, "generators": len(sharing())}
    first = torchrun("RANK") - mine
    here = [first + rank for rank in sharing(world_size())]
    training = 0 if len(here) == 1 else sum(rank < args.trainers for rank in here)
    # A lone trainer on CPUs decodes too (evaluation.TrainerDecodes).
    decodes = training == args.trainers == 1 and not torch.cuda.device_count()
    return {"free": free_bytes(mine), "trainers": training, "generators": max(1, len(here) - training) + decodes}


# --- train.py --plan -------------------------------------------------------------------------------------------------


MFU = 0.4  # Llama 3 was trained at 0.38 to 0.43 (arXiv 2407.21783, Table 4)
MBU = 0.6  # assumed: the lower end of what tuned decoders are said to reach
# Seconds a layer at least, measured with Qwen3-0.6B's shapes and 16 slots on an H100 (docs/nodes.md).
GRAPH = 2e-4  # with CUDA graphs: TorchGenerator on the models that decoding.py writes out; assumed of vLLM too
HOST = 1e-3  # TorchGenerator on any other: the host launches each kernel
STARVED = 0.75  # another setting is named if its step takes at most so much of the time
LINK = 25e9  # bytes/s between two GPUs: PCIe 4, or a network of 200 Gbit/s; NVLink is faster
SHARE = 0.5  # assumed: mean length of a prompt and of a completion, of the longest


def roofline(args, config, count, rows):
    """The Costs of a model with `count` parameters on the GPUs of --plan, where a generator decodes so many rows."""
    itemsize = getattr(torch, args.dtype).itemsize
    width, inner, heads, _ = layer_widths(config)
    flops, rate = MFU * args.plan.device.flops, MBU * args.plan.device.bandwidth
    every, chosen = experts.count(config)
    expert = 3 * width * inner * config.num_hidden_layers  # parameters of one expert in every layer
    multiplied = count - (0 if config.tie_word_embeddings else config.vocab_size * width)
    active = multiplied - (every - chosen) * expert
    read = multiplied - (every - min(every, rows * chosen)) * expert  # rows choose different experts
    context = SHARE * (args.max_prompt_tokens + args.max_new_tokens) / 2  # mean over the positions of a sequence
    forward = 2 * active + 4 * config.num_hidden_layers * heads * context
    return Costs(
        decode=max(read * itemsize / rate, rows * 2 * active / flops),
        column=position_bytes(config, itemsize) / rate,
        token=(3 + args.activation_checkpointing) * forward / flops,
        optimizer=28 * count / rate,
        broadcast=count * itemsize / LINK,
    )


def decoding(args, config, count, slots, completions):
    """Seconds in which the generators decode so many completions, together in flight, in `slots` slots each."""
    generators = max(1, args.plan.count - args.trainers)
    rows = max(1.0, min(slots, completions / generators))
    # TorchGenerator reads as many columns in each row as the longest one has.
    reach = 1.0 if args.generator == "torch" else SHARE / 2
    columns = SHARE * args.max_prompt_tokens + reach * args.max_new_tokens
    launched = GRAPH if args.generator == "vllm" or config.model_type in WRITTEN else HOST
    step = max(roofline(args, config, count, rows).decode_step(rows, columns), launched * config.num_hidden_layers)
    return completions * SHARE * args.max_new_tokens / (generators * rows) * step


class Seconds(NamedTuple):
    """Of an optimizer step, and of an evaluation."""

    step: float
    decode: float
    gradients: float
    publish: float
    evaluation: float
    in_turn: bool  # generators and trainers do not work at the same time


def seconds(args, config, count):
    """The Seconds of a run on the GPUs of --plan."""
    _, slots = generator_memory(args, config, count)
    rule, batch = OFF_POLICY[args.off_policy], args.prompts * args.generations
    batches = rule.requested(0, args.k)  # in flight
    decode = decoding(args, config, count, slots, batches * batch) / batches
    costs = roofline(args, config, count, slots)
    tokens = batch * SHARE * (args.max_prompt_tokens + args.max_new_tokens)
    gradients = costs.gradient_step(tokens / args.token_budget, tokens) / args.trainers
    in_turn = rule.alternates or args.plan.count == 1
    step = (decode + gradients if in_turn else max(decode, gradients)) + costs.broadcast
    evaluation = decoding(args, config, count, slots, args.eval_prompts * args.eval_generations)
    return Seconds(step, decode, gradients, costs.broadcast, evaluation, in_turn)


def faster(args, config, count):
    """The line on the fastest step of all divisions of the GPUs and smaller micro-batches, as a list.

    [] if it takes more than STARVED of the time.
    """

    usable, itemsize = USABLE * args.plan.device.memory, getattr(torch, args.dtype).itemsize
    other, flags = copy.copy(args), {}  # seconds of a step -> the flags
    while other.token_budget >= args.max_prompt_tokens + args.max_new_tokens:
        for other.trainers in range(1, min(args.plan.count, MOST_TRAINERS)):
            if trainer_bytes(other, config, count, itemsize, other.trainers) <= usable:
                text = f"--trainers {other.trainers} --token-budget {other.token_budget}"
                flags.setdefault(seconds(other, config, count).step, text)
        other.token_budget //= 2
    best = min(flags, default=float("inf"))
    if best >= STARVED * seconds(args, config, count).step:
        return []
    return [f"faster        {flags[best]}: {best:,.1f} seconds a step"]


def mixture(config):
    """The line on a mixture of experts, as a list; [] for a dense model."""
    if experts.count(config)[0] == 1:
        return []
    return ["a mixture of experts decodes slowly here, through its Hugging Face model: such a run is for study"]


def generator_memory(args, config, count):
    """(bytes of a generator, its slots)"""

    itemsize = getattr(torch, args.dtype).itemsize
    fixed, slot = generator_bytes(args, config, count, itemsize)
    if args.generator == "torch":
        return fixed + args.slots * slot, args.slots
    # It takes what is there, for completions as long as they are, and holds the weights twice.
    room = USABLE * args.plan.device.memory * args.plan.count / world_size(args.plan)
    return room, min(int((room - fixed - count * itemsize) // (SHARE * slot)), args.slots)


def lines(args, config):
    """What --plan prints, with lengths, trainers and slots that fit. Raises ValueError for what cannot fit."""

    if args.generator == "vllm":
        check_dense(config)
    args, changes = fit(args, config, len(args.interrupt_phrase) // 4)  # about four letters are a token
    (gpus, name, device), count = args.plan, parameters(config)
    trainer = trainer_bytes(args, config, count, getattr(torch, args.dtype).itemsize, args.trainers)
    generator, slots = generator_memory(args, config, count)
    batch, mean = args.prompts * args.generations, SHARE * args.max_new_tokens
    found = seconds(args, config, count)
    asked = args.eval_prompts * args.eval_generations
    evaluation = found.evaluation / 3600
    evaluations = args.steps // args.eval_every + 1
    hours = args.steps * found.step / 3600 + evaluations * evaluation
    return [
        f"A model, not a measurement. Assumed: {MFU:.0%} of the peak FLOP/s, {MBU:.0%} of the peak bandwidth, "
        f"lengths of {SHARE:.0%} of the longest (docs/nodes.md)",
        *changes,
        *mixture(config),
        f"{gpus} x {name}: {device.flops / 1e12:,.0f} TFLOP/s in {args.dtype}, {device.bandwidth / 1e12:.2f} TB/s, "
        f"{device.memory / 1e9:.0f} GB; {count / 1e9:.2f}B parameters",
        f"trainers      {args.trainers}, {trainer / 1e9:.1f} GB each",
        f"generators    {max(1, gpus - args.trainers)}, {generator / 1e9:.1f} GB each, {slots} slots",
        f"a step        {batch:,} completions, {batch * mean / 1e6:.1f}M tokens: {found.step:,.1f} seconds",
        f"  decode      {found.decode:,.1f} seconds",
        f"  gradients   {found.gradients:,.1f} seconds, " + ("then" if found.in_turn else "meanwhile"),
        f"  publish     {found.publish:,.2f} seconds",
        *faster(args, config, count),
        f"an evaluation {asked:,} completions, {asked * mean / 1e6:.1f}M tokens: {found.evaluation / 60:,.1f} minutes",
        f"the run       {args.steps:,} step(s), {evaluations} evaluation(s): {hours:,.0f} hours, "
        f"{gpus * hours:,.0f} device-hours, {evaluations * evaluation / hours:.0%} of them for evaluations",
    ]


def forecast(args, config):
    """Lines on how long a run on this machine's GPUs will take, before it starts; [] if they are not in DEVICES."""
    name = torch.cuda.get_device_name(torchrun("LOCAL_RANK") % torch.cuda.device_count())
    known = [device for device in DEVICES if re.search(rf"\b{device}\b", re.sub(r"RTX (?=\d)", "RTX", name))]
    if not known:
        return []

    gpus = gpus_of_ranks(world_size())  # of this node's ranks: two may share one
    asked = copy.copy(args)
    asked.plan = Fleet(world_size() if len(set(gpus)) == len(gpus) else 1, known[-1], DEVICES[known[-1]])
    count = parameters(config)
    now = seconds(asked, config, count)
    apart = args.checkpoint_every * now.step
    if "checkpoint_every" not in args.asked:
        apart = max(now.step, min(apart, LATEST))
    text = (
        f"estimated from {asked.plan.name}'s data sheet: a step {now.step:,.1f} s, R_0 {now.evaluation / 60:,.1f} min, "
        f"a checkpoint every {apart / 60:,.0f} min"
    )
    if args.generator == "vllm" or mixture(config):
        return [text, *mixture(config)]
    asked.generator = "vllm"
    if "slots" not in args.asked:  # they were made to fit TorchGenerator
        asked.slots = PAPER["slots"]
    with suppress(ValueError):  # vLLM does not fit
        fit_slots(asked, config, **neighbours(asked))
        other = seconds(asked, config, count)
        there = "it is installed" if find_spec("vllm") else "pip install -e '.[vllm]' installs it"
        line = f"with --generator vllm a step {other.step:,.1f} s, R_0 {other.evaluation / 60:,.1f} min; {there}"
        if other.step < now.step:
            return [text, line]
    return [text]


def show_plan(args, folder):
    """Print the plan for the model in `folder`; returns the exit code 0. Ends with code 2 and one line if it cannot."""

    try:
        check_model("--model", folder)
        config = AutoConfig.from_pretrained(folder)
        check_supported(config)
        print(*args.notes, *lines(args, config), sep="\n")
    except (ValueError, OSError, StrictDataclassError) as error:
        refuse(" ".join(str(error).split()))
    return 0
