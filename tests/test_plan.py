"""Claims about plumbing/memory.py: what fits, by a model and its config alone; and train.py --plan."""

import re
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, given, launched, qwen3
from transformers import AutoConfig

import train
import vllm_rollout
from plumbing import build, evaluate, memory
from plumbing.devices import DEVICES
from plumbing.memory import Sizes

OWN = "--model M --data F --preset paper"
BIG = f"{OWN} --dtype bfloat16 --max-new-tokens 14336"


def draft(flags):
    """Settings to be made to fit."""
    return SimpleNamespace(**vars(given(flags)))


def sizes(model):
    return Sizes(qwen3(model), "bfloat16")


# --- What is computed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags, positions, lengths", [
    ("", 16384, [2048, 14336, (10000, 12000), 14000, 2000]),
    ("", 8192, [1024, 7168, (5000, 6000), 7000, 1000]),  # 8,192 positions are half of the paper's 16,384
    # A prompt length that is given stays: 7,168 = 14,336 / 2 are left of 7,268.
    ("--max-prompt-tokens 100", 7268, [100, 7168, (5000, 6000), 7000, 1000]),
    # Given ones never change; the prompt has the positions that are left.
    ("--max-new-tokens 8000 --interrupt-at 70 90", 8192, [192, 8000, [70, 90], 7812, 1116]),
    # 56 = 14,336 / 256 scales them to 39 and 46; but 46 + 19 tokens of phrase leave none for the answer: at most 36.
    ("--max-new-tokens 56", 8192, [2048, 56, (30, 36), 54, 7]),
])  # fmt: skip
def test_lengths_that_are_not_given_shrink_to_the_models_positions_by_one_factor(flags, positions, lengths):
    args = draft(f"{OWN} {flags}")
    memory.fit_lengths(args, positions, phrase=19)
    names = "max_prompt_tokens", "max_new_tokens", "interrupt_at", "length_max", "length_cache"
    assert [getattr(args, name) for name in names] == lengths


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

    def pretend(world, visible, uuids="", rank=0, capability=(8, 0), name="some other GPU"):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA {name}")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 + device, 80_000_000_000))
        monkeypatch.setattr("plumbing.devices.uuids", lambda: [*uuids])
        launched(monkeypatch, WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, RANK=rank, LOCAL_RANK=rank)

    return pretend


@pytest.mark.parametrize("world, visible, uuids, rank, expected", [
    (2, 0, "", 0, (1, 2)),  # a trainer without a GPU decodes in evaluations too
    (4, 2, "abab", 0, (1, 1)),  # rank 0 is the trainer
    (8, 1, "abcdefgh", 5, (0, 1)),  # each process sees one GPU, another one, as under Slurm
    (4, 1, "aabb", 0, (1, 1)),  # a GPU for two
])  # fmt: skip
def test_ranks_on_one_gpu_or_without_a_gpu_share_its_memory(gpus, world, visible, uuids, rank, expected):
    gpus(world, visible, uuids, rank)
    shared = memory.neighbours(given())
    assert (shared["trainers"], shared["generators"]) == expected
    assert shared["free"] == 1000 + rank % visible if visible else shared["free"] > 1e6


@pytest.mark.parametrize("capability, dtype", [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")])
def test_a_gpu_without_bfloat16_trains_in_float32_and_says_so(gpus, capability, dtype):
    gpus(2, 2, capability=capability)
    args = given()
    assert args.dtype == dtype and any("no bfloat16" in note for note in args.notes) == (dtype == "float32")
    assert given("--dtype bfloat16").dtype == "bfloat16"


def test_the_heads_chunk_takes_no_more_memory_than_a_layer_does(gpus):
    gpus(8, 8)
    few = AutoConfig.for_model("llama", vocab_size=1000)
    small = f"{BIG} --token-budget 4096 --max-new-tokens 2048 --length-control none"  # a small micro-batch
    cases = (BIG, qwen3("8B")), (BIG, qwen3()), (small, qwen3("8B")), (BIG, few)
    chunks = [memory.head_chunk(given(flags), config) for flags, config in cases]
    gpus(8, 0)  # a CPU's results stay as they are
    assert [*chunks, memory.head_chunk(given(BIG), qwen3())] == [2560, 768, 256, 4096, 256]


@pytest.mark.parametrize("uuids, sharing", [("abcdefgh", 1), ("aabbccdd", 2)])
def test_vllm_leaves_room_for_the_processes_that_have_the_same_gpu(gpus, monkeypatch, uuids, sharing):
    gpus(8, 1, uuids)
    monkeypatch.setattr(vllm_rollout, "VLLMGenerator", lambda *_, **settings: settings["sharing"])
    assert build.make("vllm", "M", None, device=None, dtype=None) == sharing


@pytest.mark.parametrize("world, visible, uuids, name, trainers, budget", [
    (8, 8, "", "some other GPU", 3, 32_768),  # the smallest number that fits
    (8, 1, "abcdefgh", "some other GPU", 3, 32_768),  # as under Slurm
    (8, 1, "aabbccdd", "H100 80GB HBM3", 2, 16_384),  # two on each: the least, for which fit_slots finds no memory
    (80, 80, "", "H100 80GB HBM3", 25, 32_768),  # the fastest: see test_the_fastest_division_is_taken
])  # fmt: skip
def test_trainers_and_their_micro_batches_follow_from_the_gpus(gpus, world, visible, uuids, name, trainers, budget):
    gpus(world, visible, uuids, name=name)
    args = draft(f"{BIG} --generator vllm")
    memory.fit_trainers(args, sizes("8B"))
    assert (args.trainers, args.token_budget) == (trainers, budget)


# --- The model behind --plan -----------------------------------------------------------------------------------------

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


def test_the_roofline_of_an_8b_model_by_hand():
    costs = memory.roofline(given("--model M --preset paper --plan 8xH100"), sizes("8B"), DEVICES["H100"], 1)
    # 8.19e9 - 151,936 x 4,096 parameters are multiplied; 60% of 3.35e12 bytes/s, 30% of 989e12 FLOP/s.
    assert costs.decode == pytest.approx(2 * 7.5684e9 / 2.01e12, rel=1e-3)
    # Attention: 4 x 36 layers x 4,096 x 4,096 positions on average; forward, backward twice as much, once recomputed.
    assert costs.token == pytest.approx(4 * (2 * 7.5684e9 + 2.4159e9) / 296.7e12, rel=1e-3)


@pytest.fixture
def planned(models, capsys):
    """(flags) -> what --plan prints for a model that has a config only."""

    def plan(flags):
        assert train.main(given(f"--model Qwen3-8B --preset paper --plan {flags}")) == 0
        return capsys.readouterr().out

    return plan


def test_the_fastest_division_is_taken_where_none_is_given(planned):
    def step(flags):
        return float(re.search(r"tokens: ([\d.,]+) seconds", planned(flags))[1].replace(",", ""))

    flags = "16xH100 --generator vllm"
    times = {trainers: step(f"{flags} --trainers {trainers}") for trainers in range(3, 16)}  # two do not fit
    fastest = min(times, key=times.get)
    assert step(flags) == times[fastest] and f"trainers      {fastest}," in planned(flags)
    assert times[3] > times[fastest] < times[15]


def test_a_run_says_when_it_will_end_and_again_when_that_has_moved():
    times, told = iter([0, 320, *range(370, 3370, 50), 3970, 4170, 4370, 4570, 4770]), []
    args = given(f"{OWN} --steps 5000 --prompts 8 --generations 4 --eval-every 100")
    projection = evaluate.Projection(args, told.append, lambda: next(times))
    projection({"kind": "eval", "step": 0, "completions": 640})
    for step in range(1, 66):
        projection({"kind": "step", "step": step})
    # R_0: 320 s for 640 completions, so 16 s for 32, and 3.2 s of each 100th step's evaluation: 5,000 x 19.2 s.
    # Five steps of 50 s: 53.2 s each for the other 4,995. Step 61 takes 600 s, the next 200 s: means of 160 to 280 s.
    assert len(told) == 5 and "in 26.7 hours; --steps 4,500 " in told[0] and "in 73.8 hours" in told[1]


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="a copy without docs/")
def test_the_example_of_the_docs_is_what_is_printed(tmp_path, planned):
    text = (ROOT / "docs" / "nodes.md").read_text()
    argv, shown = re.search(r"\$ python train.py --plan (.+)\n((?:[^`]+\n)+)", text).groups()
    before = sorted(tmp_path.rglob("*"))
    assert planned(argv).split() == shown.split()
    assert all(name in text for name in DEVICES)
    assert sorted(tmp_path.rglob("*")) == before  # nothing is written


def test_the_papers_run_took_as_many_times_longer_as_the_plan_says(planned):
    # 2,048 completions a step on 16 + 64 GPUs (GB200): 100,000 GPU-hours for 7,400 steps.
    printed = planned("80xB200 --generator vllm --trainers 16 --prompts 128")
    hours = float(re.search(r"([\d,]+) device-hours", printed)[1].replace(",", ""))
    assert memory.OFF == pytest.approx(1e5 / hours, rel=0.02)


def test_a_step_takes_as_long_as_its_longest_completion(planned):
    few = "--prompts 3 --generations 4 --k 0 --max-new-tokens 2000 --length-control none"  # one on each generator
    # 2,000 tokens of the longest, at 0.2 ms for each of 28 layers
    assert "  decode      11.2 seconds\n" in planned(f"16xH100 --model Qwen3-0.6B --trainers 4 {few}")
