"""What fits into a model's positions and the memory; and train.py --plan, which says what a run will need.

The paper's sizes are for an 8B model on 80 GPUs. A size that the command line does not give is computed once, by one
formula, and a line says so. A given size that does not fit is refused, with the flags on which the need depends.

    lengths          min(preset, positions); where both are cut, by one factor
    --token-budget   on GPUs: min(preset, the tokens with which a trainer fits)
    --trainers       where each process has a GPU of its own: the fastest division that fits, by the seconds of --plan;
                     on a GPU that devices.DEVICES lacks the smallest that fits, of a fifth or more
    --slots          min(preset, (free memory - what a generator needs anyway) / bytes of a slot)

A slot is `generator_bytes`, a trainer `trainer_bytes`. Slots are computed for TorchGenerator, which may need all
positions of all slots at once. vLLM takes what memory is free and lets completions wait when that is full. With --plan
the memory is that of the GPUs which it names.

Run by build.py. Test: pytest tests/test_plan.py
"""

import copy
from bisect import bisect_right
from functools import cached_property, partial
from itertools import product
from types import SimpleNamespace
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM

import batches
import experts
import precision
from decoding import GRAPHS, WRITTEN
from pipeline import OFF_POLICY
from plumbing.arguments import as_given, option
from plumbing.devices import fleet_here, free_bytes, gpu_bytes, gpus, sharing, torchrun, world_size
from plumbing.store import MAX_BYTES
from plumbing.virtual import Costs
from rollout import PREFILL_AHEAD, PREFILL_TOKENS

USABLE = 0.9  # share of the free memory; the rest is for what is not counted here
LARGEST_CHUNK = 4096  # positions of a head's chunk: products of so many rows fill a GPU
GRAPH_BYTES = 8e6  # assumed: a CUDA graph of a decode step, about a thousand launches, without the memory it works in


class Sizes:
    """A model's, from its config (Hugging Face's) and --dtype."""

    def __init__(self, config, dtype):
        self.config = config
        self.itemsize = getattr(torch, dtype).itemsize
        self.positions = config.max_position_embeddings
        self.layers = config.num_hidden_layers
        self.width = config.hidden_size
        self.inner = getattr(config, "moe_intermediate_size", None) or config.intermediate_size  # of an expert
        head = getattr(config, "head_dim", None) or self.width // config.num_attention_heads
        self.heads = config.num_attention_heads * head
        self.groups = (getattr(config, "num_key_value_heads", None) or config.num_attention_heads) * head
        self.experts, self.chosen = experts.count(config)
        self.vocabulary = config.vocab_size
        self.layer = 2 * self.width * (self.heads + self.groups) + 3 * self.width * self.inner * self.experts
        self.position = 2 * self.layers * self.groups * self.itemsize  # bytes of the keys and values of one position

    @cached_property
    def count(self):
        """Number of parameters; takes a second, and no memory for them."""
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config)
        return sum(parameter.numel() for parameter in model.parameters())


def fit(args, sizes, phrase):
    """Compute what is not given: returns (all settings as a namespace, lines that say what changed).

    phrase  tokens of the interruption phrase
    Raises ValueError for what does not fit.
    """
    before, args = vars(args), SimpleNamespace(**vars(args))
    fit_lengths(args, sizes.positions, phrase)
    if not args.evaluate:
        if longest(args) > args.token_budget:
            raise ValueError(
                f"--token-budget {args.token_budget} is less than a prompt with its completion, {longest(args)}"
            )
        experts.check_record(sizes.config, longest(args), MAX_BYTES)
        fit_trainers(args, sizes)
    if args.generator == "torch" or args.plan or gpus():
        fit_slots(args, sizes, **neighbours(args))
    changed = [
        f"{option(name)} {as_given(value)} instead of {as_given(before[name])}"
        for name, value in vars(args).items()
        if value != before[name]
    ]
    fitted = f"Made to fit the lengths that were given, {sizes.positions:,} positions and the memory"
    return args, [f"{fitted}: {', '.join(changed)}"] if changed else []


def longest(args):
    """Tokens of the longest prompt with its completion."""
    return args.max_prompt_tokens + args.max_new_tokens


def fit_lengths(args, positions, phrase):
    """Compute the lengths that were not given.

    positions  that the model has
    phrase     tokens of the interruption phrase, after which one token must be left for the answer

    Default lengths of an interruption and of the penalty are made for --max-new-tokens of args.default_new.
    Raises ValueError for given lengths that leave no position for the other.
    """
    both = longest(args)
    got = f"got --max-prompt-tokens {args.max_prompt_tokens} and --max-new-tokens {args.max_new_tokens}"
    if both > positions and "max_prompt_tokens" not in args.asked:
        shared = max(1, args.max_prompt_tokens * positions // both)
        args.max_prompt_tokens = positions - args.max_new_tokens if "max_new_tokens" in args.asked else shared
    if both > positions and "max_new_tokens" not in args.asked:
        args.max_new_tokens = positions - args.max_prompt_tokens
    if longest(args) > positions or min(args.max_prompt_tokens, args.max_new_tokens) < 1:
        raise ValueError(f"expected prompt and completion within the {positions} positions that the model has, {got}")

    def scaled(tokens):
        return max(1, tokens * min(args.max_new_tokens, args.default_new) // args.default_new)

    if args.length_control == "penalty":
        for name in {"length_max", "length_cache"} - set(args.asked):
            setattr(args, name, scaled(getattr(args, name)))
    if args.length_control == "interrupt" and "interrupt_at" not in args.asked:
        low, high = map(scaled, args.interrupt_at)
        last = min(high, max(1, args.max_new_tokens - phrase - 1))
        args.interrupt_at = (max(1, low * last // high), last)


# --- Bytes -----------------------------------------------------------------------------------------------------------


def trainer_bytes(args, sizes, trainers, tokens):
    """Bytes that each of `trainers` ranks needs at the peak of a step, in the backward pass of a layer or of the head.

    tokens  --token-budget

    The factors of `inside` and `layer_working` were fitted to peaks of Qwen3 of 0.6B to 8B, in bf16. FSDP2 keeps
    the embeddings and the head gathered through the backward pass, and one layer.
    """
    tokens = max(tokens, batches.columns(longest(args), "cuda"))  # of the largest micro-batch, padded
    width = sizes.width
    moments = 8 * sizes.count // trainers  # AdamW's two, in fp32; weights and gradients take as much
    gathered = (sizes.count - (sizes.layers - 1) * sizes.layer) * sizes.itemsize
    # Queries, keys and values too: before and after their norms and turns.
    inside = 10 * width + 4 * sizes.heads + 5 * sizes.groups
    inside += 4 * sizes.chosen * (sizes.inner + width * (sizes.experts > 1))
    saved = width if args.activation_checkpointing else inside  # numbers that a layer keeps per token
    kept = (sizes.layers * saved + 2 * width) * tokens * sizes.itemsize
    working = gathered + kept + max(layer_working(sizes, tokens), head_bytes(precision.CHUNK, sizes))
    if args.offload_optimizer:
        return moments + max(moments, working)  # the moments come when all else is gone
    return 2 * moments + working


def layer_working(sizes, tokens):
    """Bytes that the backward pass of a decoder layer needs for itself (see `trainer_bytes`)."""
    sparse = sizes.experts > 1
    numbers = 13 * sizes.width + 6 * sizes.inner * sizes.chosen + 8 * sizes.heads  # per token
    numbers += 3 * sizes.chosen * sizes.width * sparse  # a copy for each of its experts
    # With experts the next layer, which is large, is gathered too.
    return (numbers * tokens + sizes.vocabulary * sizes.width) * sizes.itemsize + (6 if sparse else 4) * sizes.layer


def head_bytes(chunk, sizes):
    """Bytes of precision.token_logprobs: in fp32 a chunk's logits 4.5 times, split ones too, and twice the gradient."""
    return 2 * sizes.vocabulary * (9 * chunk + 4 * sizes.width)


def head_chunk(args, config):
    """Positions whose logits a trainer holds at once: on a GPU as many as take the memory that a layer needs later.

    So a larger chunk, which is faster, costs no memory; and it is the same on all ranks, and after a restart.
    """
    if not gpus():
        return precision.CHUNK
    sizes = Sizes(config, args.dtype)
    room = layer_working(sizes, max(args.token_budget, batches.columns(longest(args), "cuda")))
    chunks = range(LARGEST_CHUNK, precision.CHUNK, -precision.CHUNK)
    return next((chunk for chunk in chunks if head_bytes(chunk, sizes) <= room), precision.CHUNK)


def generator_bytes(args, sizes):
    """(bytes that a generator needs whatever its slots, bytes that each slot needs).

    The first are weights and a pass of prompts: their keys and values, and what a layer makes of them. vLLM holds the
    weights twice. A slot has its positions, and probabilities as fp32 and twice as fp64. The factors of `working` were
    fitted to peaks of Qwen3 of 0.6B and 8B, in bf16. CUDA graphs work in a memory of their own, which they share: it
    holds the probabilities once more. Each takes GRAPH_BYTES besides.
    """
    prompts = min(PREFILL_TOKENS, (args.slots + PREFILL_AHEAD) * args.max_prompt_tokens)
    working = (4 * sizes.width + 3 * sizes.inner * sizes.chosen) * sizes.itemsize
    weights = sizes.count * sizes.itemsize
    fixed = weights + prompts * (sizes.position + working)
    probabilities = (4 + 8 + 8) * sizes.vocabulary
    slot = min(longest(args), sizes.positions) * sizes.position + probabilities
    if args.generator == "vllm":
        return fixed + weights, slot
    if (args.plan or gpus()) and sizes.config.model_type in WRITTEN:
        return fixed + GRAPHS * GRAPH_BYTES, slot + probabilities
    return fixed, slot


# --- What fits -------------------------------------------------------------------------------------------------------


def fit_trainers(args, sizes):
    """Compute --token-budget, --trainers and --offload-optimizer if they were not given, where there are GPUs.

    A GPU is judged by its whole memory, which all ranks see alike, not by what is free. Where processes share it, each
    has an equal part, --trainers stays, and `fit_slots` tells what does not fit.
    Raises ValueError for a trainer that does not fit a GPU of its own, and for --offload-optimizer without GPUs.
    """
    fleet = args.plan or fleet_here()
    if args.virtual or not fleet:
        if args.offload_optimizer and "offload_optimizer" in args.asked:
            raise ValueError("--offload-optimizer: expected a real run on GPUs; else there is nothing to move from")
        args.offload_optimizer = False
        return
    usable, world = USABLE * gpu_bytes(args), world_size(args.plan)
    shared = fleet.count < world
    numbers = [args.trainers]
    if "trainers" not in args.asked and not shared:
        numbers = range(1 if fleet.device.flops else args.trainers, world)
    least = args.token_budget if "token_budget" in args.asked else longest(args)
    need = partial(trainer_bytes, args, sizes)
    offloads = [args.offload_optimizer] if shared or "offload_optimizer" in args.asked else [False, True]
    budgets = {}  # (--offload-optimizer, number of trainers) -> the largest --token-budget that fits
    for args.offload_optimizer, trainers in product(offloads, numbers):
        most = bisect_right(range(args.token_budget + 1), usable, key=partial(need, trainers)) - 1
        if shared or most >= least:
            budgets[args.offload_optimizer, trainers] = max(most, least)
    if not budgets:
        raise ValueError(
            f"--trainers {max(numbers)}: each needs about {need(max(numbers), least) / 1e9:.1f} GB for "
            f"{sizes.count / 1e9:.2f}B parameters and micro-batches of {least:,} tokens; {usable / 1e9:.1f} GB of a "
            "GPU can be used. This depends on --trainers, --token-budget, --max-prompt-tokens, --max-new-tokens, "
            "--activation-checkpointing, --offload-optimizer, --dtype"
        )
    division = min(budgets)
    if len(budgets) > 1 and fleet.device.flops:
        trial = copy.copy(args)
        fit_slots(trial, sizes, free=gpu_bytes(args), trainers=0, generators=1)

        def duration(division):
            trial.offload_optimizer, trial.trainers = division
            return seconds(trial, sizes, fleet).step

        division = min(budgets, key=duration)
    args.offload_optimizer, args.trainers = division
    args.token_budget = budgets[division]


def fit_slots(args, sizes, *, free, trainers, generators):
    """Compute --slots if it was not given.

    free                  bytes of memory on this process's device
    trainers, generators  ranks that share it; trainers 0: they have devices of their own
    Raises ValueError if the given slots, or even one slot, do not fit beside the trainers. vLLM takes its share of the
    memory whatever a trainer needs, and lets completions wait for a slot.
    """
    fixed, slot = generator_bytes(args, sizes)
    together = 1 if args.virtual else args.trainers  # in virtual time one process has all of a trainer's memory
    training = trainer_bytes(args, sizes, together, args.token_budget) if trainers and not args.evaluate else 0
    room = int((USABLE * free - trainers * training - generators * fixed) // (generators * slot))
    if args.generator == "vllm":
        ours = USABLE * free / (trainers + generators)
        room = int((ours - fixed) // slot) if training <= ours else 0
    if room >= args.slots or args.generator == "vllm" and room > 0:
        return
    if "slots" in args.asked or room < 1:
        raise ValueError(
            f"--slots {args.slots} does not fit: {slot / 1e9:.2f} GB each, and {fixed / 1e9:.1f} GB for each of "
            f"{generators} generator(s) and {training / 1e9:.1f} GB for each of {trainers} trainer(s) besides; "
            f"{free / 1e9:.1f} GB are free, {max(room, 0)} would fit. A generator is one device: tensor parallelism "
            "is missing. This depends on --slots, --generator, --max-prompt-tokens, --max-new-tokens, --token-budget, "
            "--dtype"
        )
    args.slots = room


def neighbours(args):
    """The arguments of `fit_slots` for this process's device: free bytes, and the ranks that share them.

    Without a GPU all ranks of a node share its memory. A rank with a GPU of its own is treated as a generator.
    """
    if args.plan:  # two processes share a single GPU
        return {"free": args.plan.device.memory, "trainers": int(args.plan.count == 1), "generators": 1}
    if args.virtual:  # one process, in which at most one trainer computes
        return {"free": free_bytes(0), "trainers": 1, "generators": args.generators}
    mine = torchrun("LOCAL_RANK")
    ranks = [torchrun("RANK") - mine + rank for rank in sharing(1 if args.evaluate else world_size())]
    training = 0 if args.evaluate or len(ranks) == 1 else sum(rank < args.trainers for rank in ranks)
    # A lone trainer on CPUs decodes too (evaluate.TrainerDecodes).
    decodes = training == args.trainers == 1 and not gpus()
    return {"free": free_bytes(mine), "trainers": training, "generators": max(1, len(ranks) - training) + decodes}


# --- Seconds ---------------------------------------------------------------------------------------------------------


MFU = 0.3  # measured with a trainer of 1.7B (docs/nodes.md); Llama 3: 0.38 to 0.43 (arXiv 2407.21783, Table 4)
MBU = 0.6  # assumed: the lower end of what tuned decoders are said to reach
# Seconds a layer at least, measured with Qwen3-0.6B's shapes and 16 slots on an H100 (docs/nodes.md).
GRAPH = 2e-4  # with CUDA graphs: TorchGenerator on the models that decoding.py writes out; assumed of vLLM too
HOST = 1e-3  # TorchGenerator on any other: the host launches each kernel
LINK = 25e9  # bytes/s to another GPU or the host: PCIe 4, or a network of 200 Gbit/s; NVLink is faster
SHARE = 0.5  # assumed: mean length of a prompt and of a completion, of the longest
OFF = 5.4  # times the device-hours that `plan` gives for the paper's 8B run took (docs/nodes.md)


def roofline(args, sizes, device, rows):
    """The virtual.Costs of a model on GPUs like this devices.Device, where a generator decodes so many rows."""
    flops, rate = MFU * device.flops, MBU * device.bandwidth
    expert = 3 * sizes.width * sizes.inner * sizes.layers  # parameters of one expert in every layer
    multiplied = sizes.count - (0 if sizes.config.tie_word_embeddings else sizes.vocabulary * sizes.width)
    active = multiplied - (sizes.experts - sizes.chosen) * expert
    read = multiplied - (sizes.experts - min(sizes.experts, rows * sizes.chosen)) * expert  # rows choose different ones
    context = SHARE * longest(args) / 2  # mean over the positions of a sequence
    forward = 2 * active + 4 * sizes.layers * sizes.heads * context
    return Costs(
        decode=max(read * sizes.itemsize / rate, rows * 2 * active / flops),
        column=sizes.position / rate,
        token=(3 + args.activation_checkpointing) * forward / flops,
        optimizer=28 * sizes.count / rate + args.offload_optimizer * 16 * sizes.count / LINK,
        broadcast=sizes.count * sizes.itemsize / LINK,
    )


def generator_memory(args, sizes, fleet):
    """(bytes of a generator, its slots)"""
    fixed, slot = generator_bytes(args, sizes)
    if args.generator == "torch":
        return fixed + args.slots * slot, args.slots
    # It takes what is there, for completions as long as they are.
    room = USABLE * fleet.device.memory * fleet.count / world_size(fleet)
    return room, min(int((room - fixed) // (SHARE * slot)), args.slots)


def decoding(args, sizes, fleet, completions):
    """Seconds in which the generators decode so many completions, together in flight."""
    _, slots = generator_memory(args, sizes, fleet)
    generators = max(1, fleet.count - args.trainers)
    rows = max(1.0, min(slots, completions / generators))
    # TorchGenerator reads as many columns in each row as the longest one has.
    reach = 1.0 if args.generator == "torch" else SHARE / 2
    columns = SHARE * args.max_prompt_tokens + reach * args.max_new_tokens
    launched = GRAPH if args.generator == "vllm" or sizes.config.model_type in WRITTEN else HOST
    costs = roofline(args, sizes, fleet.device, rows)
    step = max(costs.decode_step(rows, columns), launched * sizes.layers)
    # The longest of them takes a step for each of its tokens, however few there are.
    return max(completions * SHARE / (generators * rows), 1) * args.max_new_tokens * step


class Seconds(NamedTuple):
    """Of an optimizer step, and of an evaluation."""

    step: float
    decode: float
    gradients: float
    publish: float
    evaluation: float
    in_turn: bool  # generators and trainers do not work at the same time


def seconds(args, sizes, fleet):
    """The Seconds of a run on the GPUs of a devices.Fleet."""
    rule, batch = OFF_POLICY[args.off_policy], args.prompts * args.generations
    in_flight = rule.requested(0, args.k)
    decode = decoding(args, sizes, fleet, in_flight * batch) / in_flight
    costs = roofline(args, sizes, fleet.device, 1)
    tokens = batch * SHARE * longest(args)
    gradients = costs.gradient_step(tokens / args.token_budget, tokens) / args.trainers
    in_turn = rule.alternates or fleet.count == 1
    step = (decode + gradients if in_turn else max(decode, gradients)) + costs.broadcast
    evaluation = decoding(args, sizes, fleet, args.eval_prompts * args.eval_generations)
    return Seconds(step, decode, gradients, costs.broadcast, evaluation, in_turn)


def plan(args, sizes):
    """What --plan prints, as lines. Raises ValueError for what does not fit."""
    args, changes = fit(args, sizes, len(args.interrupt_phrase) // 4)  # about four letters are a token
    gpus, name, device = args.plan
    trainer = trainer_bytes(args, sizes, args.trainers, args.token_budget)
    generator, slots = generator_memory(args, sizes, args.plan)
    batch, mean = args.prompts * args.generations, SHARE * args.max_new_tokens
    times = seconds(args, sizes, args.plan)
    completions = args.eval_prompts * args.eval_generations
    evaluations = args.steps // args.eval_every + 1
    evaluating = evaluations * times.evaluation / 3600
    hours = args.steps * times.step / 3600 + evaluating
    return [
        f"A model, not a measurement. Assumed: {MFU:.0%} of the peak FLOP/s, {MBU:.0%} of the peak bandwidth, "
        f"lengths of {SHARE:.0%} of the longest (docs/nodes.md)",
        *changes,
        f"{gpus} x {name}: {device.flops / 1e12:,.0f} TFLOP/s in {args.dtype}, {device.bandwidth / 1e12:.2f} TB/s, "
        f"{device.memory / 1e9:.0f} GB; {sizes.count / 1e9:.2f}B parameters",
        f"trainers      {args.trainers}, {trainer / 1e9:.1f} GB each",
        f"generators    {max(1, gpus - args.trainers)}, {generator / 1e9:.1f} GB each, {slots} slots",
        f"a step        {batch:,} completions, {batch * mean / 1e6:.1f}M tokens: {times.step:,.1f} seconds",
        f"  decode      {times.decode:,.1f} seconds",
        f"  gradients   {times.gradients:,.1f} seconds, " + ("then" if times.in_turn else "meanwhile"),
        f"  publish     {times.publish:,.2f} seconds",
        f"an evaluation {completions:,} completions, {completions * mean / 1e6:.1f}M tokens: "
        f"{times.evaluation / 60:,.1f} minutes",
        f"the run       {args.steps:,} step(s), {evaluations} evaluation(s): {hours:,.0f} hours, "
        f"{gpus * hours:,.0f} device-hours, {evaluating / hours:.0%} of them for evaluations; the paper's run took "
        f"{OFF} times what this model gives for it",
    ]


def estimate(args, sizes):
    """The line on how long a run on this machine's GPUs will take, as a list; [] if they are not in DEVICES."""
    fleet = fleet_here()
    if not fleet or not fleet.device.flops:
        return []
    times = seconds(args, sizes, fleet)
    name = fleet.name
    return [f"estimated from {name}'s data sheet: a step {times.step:,.1f} s, R_0 {times.evaluation / 60:,.1f} min"]
