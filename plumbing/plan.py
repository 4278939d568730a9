"""train.py --plan 16xH100: memory, seconds and device-hours of a run, from the model's config alone.

Memory, trainers and slots are what memory.py finds at the start of a run. Seconds are a roofline, put into the form of
costs.Costs: arithmetic at MFU of a device's peak, memory read at MBU of its bandwidth, and whichever takes longer.

    a decode step    the larger of weights read once and 2 FLOP per active parameter and row; then keys and values;
                     at least GRAPH or HOST seconds a layer, in which its kernels are started
    a token trained  2 FLOP per active parameter, and attention's, 3 times, or 4 with --activation-checkpointing
    an update        28 bytes per parameter: AdamW reads 16 and writes 12
    a publication    the weights once, at LINK

The same estimate is printed when a run starts on GPUs that are known here (`forecast`).

Left out: gathering of shards, which FSDP2 does during the arithmetic; prompts; verdicts; the spread of lengths; groups
that the zero-variance filter drops.

Run by settings.py, build.py and train.py. Test: pytest tests/test_plan.py
"""

import argparse
import copy
import re
from contextlib import suppress
from importlib.util import find_spec
from typing import NamedTuple

import torch

from decoding import WRITTEN
from pipeline import OFF_POLICY
from plumbing.arguments import check_model
from plumbing.costs import Costs
from plumbing.launch import refuse, torchrun, world_size
from recipes import PAPER

MFU = 0.4  # Llama 3 was trained at 0.38 to 0.43 (arXiv 2407.21783, Table 4)
MBU = 0.6  # assumed: the lower end of what tuned decoders are said to reach
# Seconds a layer at least, measured with Qwen3-0.6B's shapes and 16 slots on an H100 (docs/nodes.md).
GRAPH = 2e-4  # with CUDA graphs: TorchGenerator on the models that decoding.py writes out; assumed of vLLM too
HOST = 1e-3  # TorchGenerator on any other: the host launches each kernel
STARVED = 0.75  # another setting is named if its step takes at most so much of the time
LINK = 25e9  # bytes/s between two GPUs: PCIe 4, or a network of 200 Gbit/s; NVLink is faster
SHARE = 0.5  # assumed: mean length of a prompt and of a completion, of the longest


class Device(NamedTuple):
    """A GPU as in its data sheet."""

    flops: float  # peak in `dtype` without sparsity, FLOP/s
    bandwidth: float  # of its memory, bytes/s
    memory: float  # bytes
    dtype: str = "bfloat16"  # what a run there takes by default; older GPUs have no bf16


DEVICES = {  # the makers' data sheets; of several forms SXM; of GeForce with fp32 sums
    "A10": Device(125e12, 0.6e12, 24e9),
    "A100": Device(312e12, 2.039e12, 80e9),
    "A100-40": Device(312e12, 1.555e12, 40e9),
    "A40": Device(149.7e12, 0.696e12, 48e9),
    "A6000": Device(154.8e12, 0.768e12, 48e9),
    "B200": Device(2250e12, 8.0e12, 180e9),
    "H100": Device(989e12, 3.35e12, 80e9),
    "H200": Device(989e12, 4.8e12, 141e9),
    "L4": Device(121e12, 0.3e12, 24e9),
    "L40S": Device(362e12, 0.864e12, 48e9),
    "MI300X": Device(1307e12, 5.3e12, 192e9),
    "RTX3090": Device(71e12, 0.936e12, 24e9),
    "RTX4090": Device(165e12, 1.008e12, 24e9),
    "RTX5090": Device(209e12, 1.792e12, 32e9),
    "T4": Device(8.1e12, 0.32e12, 16e9, "float32"),
    "V100": Device(15.7e12, 0.9e12, 32e9, "float32"),
}
OTHER = re.compile(r"(\d+)GB:(\d+\.?\d*)TB/s:(\d+)TFLOPS", re.IGNORECASE)


class Fleet(NamedTuple):
    count: int
    name: str
    device: Device


def fleet(text):
    """The Fleet of a text like 16xH100; of a GPU that is not in DEVICES, of its numbers.

    >>> fleet("4xl40s")[:2], fleet("8x80GB:2.0TB/s:300TFLOPS").device[:3]
    ((4, 'L40S'), (300000000000000.0, 2000000000000.0, 80000000000.0))
    """
    count, _, name = text.partition("x")
    device = DEVICES.get(name.upper())
    other = OTHER.fullmatch(name)
    if other:
        memory, bandwidth, flops = map(float, other.groups())
        device = Device(1e12 * flops, 1e12 * bandwidth, 1e9 * memory)
    if not count.isdecimal() or not device or not min(int(count), *device[:3]):
        known = ", ".join(f"{one} ({device.memory / 1e9:.0f} GB)" for one, device in DEVICES.items())
        raise argparse.ArgumentTypeError(
            f"got {text}; expected NxGPU such as 8xH100, with a GPU of: {known}; or its numbers, such as "
            "8x80GB:2.0TB/s:300TFLOPS"
        )
    return Fleet(int(count), name if other else name.upper(), device)


def roofline(args, config, count, rows):
    """The Costs of a model with `count` parameters on the GPUs of --plan, where a generator decodes so many rows."""
    import experts
    from plumbing import memory  # here, since it loads transformers

    itemsize = getattr(torch, args.dtype).itemsize
    width, inner, heads, _ = memory.layer_widths(config)
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
        column=memory.position_bytes(config, itemsize) / rate,
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
    batches = rule.batches(0, args.k)  # in flight
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
    from plumbing import memory

    usable, itemsize = memory.USABLE * args.plan.device.memory, getattr(torch, args.dtype).itemsize
    other, flags = copy.copy(args), {}  # seconds of a step -> the flags
    while other.token_budget >= args.max_prompt_tokens + args.max_new_tokens:
        for other.trainers in range(1, min(args.plan.count, memory.MOST_TRAINERS)):
            if memory.trainer_bytes(other, config, count, itemsize, other.trainers) <= usable:
                text = f"--trainers {other.trainers} --token-budget {other.token_budget}"
                flags.setdefault(seconds(other, config, count).step, text)
        other.token_budget //= 2
    best = min(flags, default=float("inf"))
    if best >= STARVED * seconds(args, config, count).step:
        return []
    return [f"faster        {flags[best]}: {best:,.1f} seconds a step"]


def mixture(config):
    """The line on a mixture of experts, as a list; [] for a dense model."""
    import experts

    if experts.count(config)[0] == 1:
        return []
    return ["a mixture of experts decodes slowly here, through its Hugging Face model: such a run is for study"]


def generator_memory(args, config, count):
    """(bytes of a generator, its slots)"""
    from plumbing import memory

    itemsize = getattr(torch, args.dtype).itemsize
    fixed, slot = memory.generator_bytes(args, config, count, itemsize)
    if args.generator == "torch":
        return fixed + args.slots * slot, args.slots
    # It takes what is there, for completions as long as they are, and holds the weights twice.
    room = memory.USABLE * args.plan.device.memory * args.plan.count / world_size(args.plan)
    return room, min(int((room - fixed - count * itemsize) // (SHARE * slot)), args.slots)


def lines(args, config):
    """What --plan prints, with lengths, trainers and slots that fit. Raises ValueError for what cannot fit."""
    from plumbing import memory
    from vllm_rollout import check_dense

    if args.generator == "vllm":
        check_dense(config)
    args, changes = memory.fit(args, config, len(args.interrupt_phrase) // 4)  # about four letters are a token
    (gpus, name, device), count = args.plan, memory.parameters(config)
    trainer = memory.trainer_bytes(args, config, count, getattr(torch, args.dtype).itemsize, args.trainers)
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
    from plumbing import memory
    from plumbing.checkpoints import LATEST
    from plumbing.processes import gpus_of_ranks

    gpus = gpus_of_ranks(world_size())  # of this node's ranks: two may share one
    asked = copy.copy(args)
    asked.plan = Fleet(world_size() if len(set(gpus)) == len(gpus) else 1, known[-1], DEVICES[known[-1]])
    count = memory.parameters(config)
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
        memory.fit_slots(asked, config, **memory.neighbours(asked))
        other = seconds(asked, config, count)
        there = "it is installed" if find_spec("vllm") else "pip install -e '.[vllm]' installs it"
        line = f"with --generator vllm a step {other.step:,.1f} s, R_0 {other.evaluation / 60:,.1f} min; {there}"
        if other.step < now.step:
            return [text, line]
    return [text]


def show_plan(args, folder):
    """Print the plan for the model in `folder`; returns the exit code 0. Ends with code 2 and one line if it cannot."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    from plumbing.checkpoints import check_supported

    try:
        check_model("--model", folder)
        config = AutoConfig.from_pretrained(folder)
        check_supported(config)
        print(*args.notes, *lines(args, config), sep="\n")
    except (ValueError, OSError, StrictDataclassError) as error:
        refuse(" ".join(str(error).split()))
    return 0
