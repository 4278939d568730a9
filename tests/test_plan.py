"""Claims about plumbing/memory.py: what fits, by a model and its config alone; and train.py --plan."""

import re
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, given, launched, qwen3

import train
from plumbing import memory
from plumbing.memory import Sizes

OWN = "--model M --data F --preset paper"
BIG = f"{OWN} --dtype bfloat16 --max-new-tokens 14336"


def draft(flags):
    """Settings to be made to fit."""
    return SimpleNamespace(**vars(given(flags)))


def sizes(model):
    return Sizes(qwen3(model), "bfloat16")


@pytest.mark.parametrize("flags, positions, lengths", [
    ("", 8192, [1024, 7168, 5000, 6000]),  # 8,192 positions are half of the paper's 16,384
    ("--length-control penalty", 8192, [1024, 7168, 7000, 1000]),
    # A prompt length that is given stays: 7,168 = 14,336 / 2 are left of 7,268.
    ("--max-prompt-tokens 100", 7268, [100, 7168, 5000, 6000]),
    # Given ones never change; the prompt has the positions that are left.
    ("--max-new-tokens 8000 --interrupt-at 70 90", 8192, [192, 8000, 70, 90]),
    # 56 = 14,336 / 256 scales them to 39 and 46; but 46 + 19 tokens of phrase leave none for the answer: at most 36.
    ("--max-new-tokens 56", 8192, [2048, 56, 30, 36]),
    ("--max-new-tokens 56 --length-control penalty", 8192, [2048, 56, 54, 7]),
])  # fmt: skip
def test_lengths_that_are_not_given_shrink_to_the_models_positions_by_one_factor(flags, positions, lengths):
    args = draft(f"{OWN} {flags}")
    memory.fit_lengths(args, positions, phrase=19)
    read = (args.length_max, args.length_cache) if args.length_control == "penalty" else args.interrupt_at
    assert [args.max_prompt_tokens, args.max_new_tokens, *read] == lengths


@pytest.mark.parametrize("trainers", [0, 1], ids=["a GPU of its own", "a GPU shared with the trainer"])
def test_the_papers_slots_are_reduced_to_what_fits_qwen3_0_6b_into_80_gb(trainers):
    args = draft(f"{OWN} --dtype bfloat16")
    assert args.slots == 256  # x 16,384 positions x 2 x 28 layers x 8 heads x 128 numbers x 2 bytes = 481 GB
    memory.fit_slots(args, sizes("0.6B"), free=80_000_000_000, trainers=trainers, generators=1)
    slot, parameters = 16384 * 114_688, 596_049_920
    # A trainer needs 16 bytes per parameter, 9.5 GB, besides its micro-batch.
    needed = args.slots * slot + 2 * parameters + trainers * 16 * parameters
    assert 0.9 * 80e9 - needed < (3 + 3 * trainers) * slot  # left: less than one slot, prompts and the micro-batch
    assert needed < 0.9 * 80e9 and args.slots == (28 if trainers else 36)


@pytest.fixture
def gpus(monkeypatch):
    """(world, visible, uuids, rank, name): as if so many processes had GPUs of 80 GB, of which each sees some."""

    def pretend(world, visible, uuids="", rank=0, name="some other GPU"):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA {name}")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 + device, 80_000_000_000))
        monkeypatch.setattr("plumbing.devices.uuids", lambda: [*uuids])
        launched(monkeypatch, WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, RANK=rank, LOCAL_RANK=rank)

    return pretend


@pytest.mark.parametrize("world, visible, uuids, rank, expected", [
    (2, 0, "", 0, (1, 2)),  # a trainer without a GPU decodes in evaluations too
    (4, 2, "abab", 0, (1, 1)),  # rank 0 is the trainer
    (8, 1, "abcdefgh", 5, (0, 1)),  # each process sees one GPU, another one, as under Slurm
])  # fmt: skip
def test_ranks_on_one_gpu_or_without_a_gpu_share_its_memory(gpus, world, visible, uuids, rank, expected):
    gpus(world, visible, uuids, rank)
    shared = memory.neighbours(given())
    assert (shared["trainers"], shared["generators"]) == expected
    assert shared["free"] == 1000 + rank % visible if visible else shared["free"] > 1e6


@pytest.mark.parametrize("world, visible, uuids, name, trainers, budget", [
    (8, 8, "", "some other GPU", 3, 32_768),  # the smallest number that fits
    (8, 1, "aabbccdd", "H100 80GB HBM3", 2, 16_384),  # two on each: the least, for which fit_slots finds no memory
    (80, 80, "", "H100 80GB HBM3", 25, 32_768),  # the fastest
])  # fmt: skip
def test_trainers_and_their_micro_batches_follow_from_the_gpus(gpus, world, visible, uuids, name, trainers, budget):
    gpus(world, visible, uuids, name=name)
    args = draft(f"{BIG} --generator vllm")
    memory.fit_trainers(args, sizes("8B"))
    assert (args.trainers, args.token_budget) == (trainers, budget)


@pytest.mark.parametrize("model, fleet, offloaded, trainers", [
    ("0.6B", "2xH100", False, 1),  # fits without
    ("4B", "2xH100", True, 1),  # 16 bytes a parameter and a micro-batch are 81 GB; 16 bytes alone 64 GB
    ("14B", "8xH100", True, 4),  # without it 7 trainers and one generator, and a step three times as long
])  # fmt: skip
def test_moments_leave_the_gpu_where_the_model_then_fits_or_runs_faster(model, fleet, offloaded, trainers):
    """The tensors themselves: tests/test_gpu.py."""
    args = draft(f"{OWN} --plan {fleet}")
    memory.fit_trainers(args, sizes(model))
    assert (args.offload_optimizer, args.trainers) == (offloaded, trainers)


# Peaks that a meter of fake tensors measured for each Qwen3, GB: of each of so many trainers, and of a generator with
# so many slots. The factors of memory.py were fitted on 0.6B and 8B, those of a trainer on 1.7B and 4B too; 32B had no
# part in them.
PEAKS = {
    "0.6B": ({1: 16.3}, {32: 63.6}),
    "4B": ({1: 83.3}, {24: 69.7}),
    "8B": ({2: 91.2, 4: 58.5, 16: 33.9}, {20: 68.9}),
    "32B": ({16: 82.8}, {12: 124.6}),
}


@pytest.mark.parametrize("model", PEAKS)
def test_the_memory_of_a_trainer_and_a_generator_is_within_a_tenth_of_the_meters(model):
    (trainers, slots), args, those = PEAKS[model], draft("--model M --preset paper --plan 80xH100"), sizes(model)
    fixed, slot = memory.generator_bytes(args, those)
    bytes = [memory.trainer_bytes(args, those, number, args.token_budget) for number in trainers]
    bytes += [fixed + number * slot for number in slots]
    assert [one / 1e9 for one in bytes] == pytest.approx([*trainers.values(), *slots.values()], rel=0.1)


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="a copy without docs/")
def test_the_example_of_the_docs_is_what_is_printed(capsys):
    text = (ROOT / "docs" / "nodes.md").read_text()
    argv, shown = re.search(r"\$ python train.py --plan (.+)\n((?:[^`]+\n)+)", text).groups()
    qwen3("8B").save_pretrained("Qwen3-8B")
    assert train.main(given(f"--model Qwen3-8B --preset paper --plan {argv}")) == 0
    assert capsys.readouterr().out.split() == shown.split()


@pytest.mark.parametrize(
    "flags, pattern, printed",
    [
        # 2,048 completions a step on 16 + 64 GPUs (GB200): 100,000 GPU-hours for 7,400 steps.
        ("8B --plan 80xB200 --generator vllm --trainers 16 --prompts 128", r"([\d,]+) device-hours", 1e5 / memory.OFF),
        # 2,000 tokens of the longest, at 0.2 ms for each of 28 layers; a completion on each generator
        (
            "0.6B --plan 16xH100 --trainers 4 --prompts 3 --generations 4 --k 0 --max-new-tokens 2000 "
            "--length-control none",
            r"decode +([\d.]+) seconds",
            11.2,
        ),
    ],
)
def test_the_papers_run_and_the_longest_completion_take_what_the_plan_says(flags, pattern, printed, capsys):
    qwen3(flags.split()[0]).save_pretrained(f"Qwen3-{flags.split()[0]}")
    train.main(given(f"--preset paper --model Qwen3-{flags}"))
    [number] = re.findall(pattern, capsys.readouterr().out)
    assert float(number.replace(",", "")) == pytest.approx(printed, rel=0.02)
