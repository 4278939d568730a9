"""Claims about plumbing/memory.py, train.py --plan: what a run needs, by a model and from its config alone."""

import re
from types import SimpleNamespace

import pytest
import torch
from test_settings import QWEN3, QWEN3_8B
from test_train import ROOT

import train
from plumbing import memory
from plumbing.settings import read_settings

LARGE = QWEN3_8B.to_dict() | dict(max_position_embeddings=40960, layer_types=None)
MANY = LARGE | dict(hidden_size=5120, intermediate_size=25600, num_hidden_layers=64, num_attention_heads=64)
# The config of each Qwen3, and peaks that a meter of fake tensors found, GB: of each of so many trainers, and of a
# generator with so many slots. The factors of memory.py were fitted on 0.6B and 8B, those of a trainer on 1.7B and 4B
# too; 32B had no part in them.
MODELS = {
    "0.6B": (QWEN3.to_dict(), {1: 16.3}, {32: 63.6}),
    "4B": (LARGE | dict(hidden_size=2560, intermediate_size=9728, tie_word_embeddings=True), {1: 83.3}, {24: 69.7}),
    "8B": (LARGE, {2: 91.2, 4: 58.5, 16: 33.9}, {20: 68.9}),
    "32B": (MANY, {16: 82.8}, {12: 124.6}),
}


def settings(*argv):
    return SimpleNamespace(**vars(read_settings(["--model", "Qwen3-8B", "--plan", *argv])))


def config(size):
    return type(QWEN3)(**MODELS[size][0])


@pytest.mark.parametrize("size", MODELS)
def test_the_memory_of_a_trainer_and_a_generator_is_within_a_tenth_of_the_meters(size):
    (_, trainers, slots), args, count = MODELS[size], settings("80xH100"), memory.parameters(config(size))
    fixed, slot = memory.generator_bytes(args, config(size), count, 2)
    found = [memory.trainer_bytes(args, config(size), count, 2, number) for number in trainers]
    found += [fixed + number * slot for number in slots]
    assert [one / 1e9 for one in found] == pytest.approx([*trainers.values(), *slots.values()], rel=0.1)
    args.generator = "vllm"  # without 64 CUDA graphs of 8 MB, and a step's fp32 and twice fp64 that they hold
    without = memory.generator_bytes(args, config(size), count, 2)
    assert (fixed - without[0], slot - without[1]) == (64 * 8e6, (4 + 8 + 8) * 151_936)


def test_the_roofline_of_an_8b_model_by_hand():
    costs = memory.roofline(settings("8xH100"), config("8B"), 8_190_735_360, 1)
    # 8.19e9 - 151,936 x 4,096 parameters are multiplied; 60% of 3.35e12 bytes/s, 40% of 989e12 FLOP/s.
    assert costs.decode == pytest.approx(2 * 7.5684e9 / 2.01e12, rel=1e-3)
    # Attention: 4 x 36 layers x 4,096 x 4,096 positions on average; forward, backward twice as much, once recomputed.
    assert costs.token == pytest.approx(4 * (2 * 7.5684e9 + 2.4159e9) / 395.6e12, rel=1e-3)


def planned(folder, monkeypatch, argv):
    """Plan in a folder of models that have a config only."""
    monkeypatch.chdir(folder)
    for size in MODELS:
        config(size).save_pretrained(f"Qwen3-{size}")
    return train.main(settings(*argv.split()))


def test_the_example_of_the_docs_is_what_is_printed(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "nodes.md").read_text()
    argv, shown = re.search(r"\$ python train.py --plan (.+)\n((?:[^`]+\n)+)", text).groups()
    assert planned(tmp_path, monkeypatch, argv) == 0
    assert capsys.readouterr().out.split() == shown.split()
    assert all(name in text for name in memory.DEVICES)
    assert {one.name for one in tmp_path.iterdir()} == {f"Qwen3-{size}" for size in MODELS}  # nothing else is written


def test_where_a_side_starves_the_fastest_division_of_the_gpus_is_named(tmp_path, monkeypatch, capsys):
    vllm = "16xH100 --generator vllm"
    assert planned(tmp_path, monkeypatch, f"{vllm} --trainers 12") == 0
    (line,) = re.findall(r"faster +--trainers (\d+) --token-budget (\d+): ([\d.]+) seconds", capsys.readouterr().out)
    trainers, budget, seconds = line
    assert planned(tmp_path, monkeypatch, f"{vllm} --trainers {trainers} --token-budget {budget}") == 0
    said = capsys.readouterr().out
    assert f"tokens: {seconds} seconds\n" in said and "faster" not in said


def test_a_run_on_known_gpus_begins_with_an_estimate(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(memory, "find_spec", lambda name: None)
    args = settings("8xH100", "--trainers", "2", "--slots", "32", "--eval-prompts", "100")
    args.plan = None
    ours, vllm = memory.forecast(args, config("8B"))
    times = r"a step [\d,.]+ s, R_0 [\d,.]+ min"
    assert re.fullmatch(f"estimated from H100's data sheet: {times}, a checkpoint every 30 min", ours)
    assert re.fullmatch(f"with --generator vllm {times}; pip install .* installs it", vllm)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "some other GPU")
    assert memory.forecast(args, config("8B")) == []


def test_slots_are_made_to_fit_and_the_torch_generator_is_no_faster_than_its_host(tmp_path, monkeypatch, capsys):
    few = "--prompts 3 --generations 4 --k 0 --max-new-tokens 2000 --length-control none"  # one on each generator
    assert planned(tmp_path, monkeypatch, f"16xH100 {few}") == 0
    said = capsys.readouterr().out
    assert "instead of 256, to fit the memory: 256 slots x 4,048 positions x 147,456 bytes = 152.8 GB" in said
    assert planned(tmp_path, monkeypatch, f"16xH100 --model Qwen3-0.6B {few}") == 0
    # 1,000 tokens, half of the longest, at 0.2 ms for each of 28 layers
    assert "  decode      5.6 seconds\n" in capsys.readouterr().out
    assert planned(tmp_path, monkeypatch, "1xRTX4090 --model Qwen3-0.6B") == 0
    said = capsys.readouterr().out
    (flags,) = re.findall("8 or more fit with (.+)", said)
    assert ", 1 slots\n" in said and planned(tmp_path, monkeypatch, f"1xRTX4090 --model Qwen3-0.6B {flags}") == 0
    said = capsys.readouterr().out
    assert int(re.search(r"(\d+) slots\n", said)[1]) >= 8 and "fit with" not in said


REFUSED = {
    "8xT5": "expected NxGPU such as 8xH100, with a GPU of: A10 (24 GB), A100 (80 GB)",
    "8x80GB": "or its numbers, such as 8x80GB:2.0TB/s:300TFLOPS",
    "2xH100 --model Qwen3-4B --max-new-tokens 6144": "Way out: 3 GPUs, ",
    "H100": "got H100; expected NxGPU",
    "8xH100 --trainers 2": "Way out: --trainers 3,",
    "3xH100": "Way out: 4 GPUs,",
    "80xL40S --model Qwen3-32B": "with 16 trainer(s) each needs about 81.2 GB for 32.76B parameters",
    "80xH100 --token-budget 16384 --generator vllm --model Qwen3-32B": "which vLLM holds twice; 0 would fit",
    "8xH100 --slots 22": "21 would fit",
    "8xH100 --model .": "found no config.json",
    "2xT4 --model Qwen3-0.6B": "Way out: 5 GPUs, ",
    "2xT4 --model Qwen3-0.6B --generator vllm": "Way out: 5 GPUs, ",
    "1xRTX4090 --model Qwen3-0.6B --generator vllm": "Way out: --generator torch, ",
}
# Refusals that name flags with which the same GPUs do.
SMALLER = [argv for argv in REFUSED if argv.startswith(("2x", "8xH100 --slots"))]


@pytest.mark.parametrize("argv", REFUSED)
def test_what_cannot_be_planned_is_refused_in_one_line_that_says_what_would_fit(tmp_path, monkeypatch, capsys, argv):
    with pytest.raises(SystemExit, match="2"):
        planned(tmp_path, monkeypatch, argv)
    said = capsys.readouterr().err.splitlines()[-1]
    assert REFUSED[argv] in said
    assert ("These fit" in said) == (argv in SMALLER)
    ways = [f"{argv} {flags}" for flags in re.findall("(?:Way out|These fit): (--[^,]+)", said)]
    ways += [re.sub(r"^\d+", gpus, argv) for gpus in re.findall(r"Way out: (\d+) GPUs", said)]
    assert all(planned(tmp_path, monkeypatch, way) == 0 for way in ways)
