"""A.3: claims about the traces, the tokenizer and the committed base policy."""

import doctest
import random
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import data
import sft

BASE = Path(sft.__file__).parent / "base"


@pytest.fixture(scope="module")
def base():
    return AutoTokenizer.from_pretrained(BASE), AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)


def results(trace):
    """The running results that a trace shows."""
    return [int(n) for n in re.findall("=(-?[0-9]+)", trace)]


def test_docstring_examples_run():
    assert doctest.testmod(sft).failed == 0 < doctest.testmod(sft).attempted


def test_a_trace_without_habits_shows_every_running_result():
    # 7+5 = 12, 12-3 = 9, 9+9 = 18
    trace = sft.trace("7+5-3+9=", random.Random(0), habits=False)
    assert results(trace) == [12, 9, 18]
    assert trace.endswith("</think>18<eos>")


def test_habits_are_slips_haste_and_careful_traces_in_the_stated_shares():
    rng, careful, hasty, off, steps = random.Random(0), 0, 0, 0, 0
    for _ in range(2000):
        trace = sft.trace("1+1+1+1+1+1+1+1+1=", rng, habits=True)
        totals, taken = results(trace), [len(s) // 2 for s in re.findall(r"((?:\+1)+)=", trace)]
        wrong = [b - a != n for a, b, n in zip([1, *totals], totals, taken)]
        careful += max(taken) == 1 and not any(wrong)
        hasty, off, steps = hasty + sum(n == 2 for n in taken), off + sum(wrong), steps + len(taken)
        assert trace.endswith(f"</think>{totals[-1]}<eos>"), "the answer repeats the last running result"
    # P(hasty step) = 0.95 * 0.15 = 0.143, less for each trace's last operand; P(off) = 0.95 * (0.85 * 0.2 + 0.15 * 0.5) = 0.233
    assert 0.11 < hasty / steps < 0.15
    assert 0.21 < off / steps < 0.25
    # CAREFUL, and the few others that happen to be faultless: 0.95 * (0.85 * 0.8) ** 7 * 0.8 = 0.05
    assert 0.07 < careful / 2000 < 0.13


def test_sft_never_sees_a_validation_prompt():
    tokens, rng = sft.tokenizer(), random.Random(1)
    texts = [tokens.decode(row[: (row == tokens.convert_tokens_to_ids("<think>")).nonzero()[0]])
             for _ in range(40) for ids, _ in sft.batch(tokens, rng, habits=True) for row in ids]
    assert len(texts) == 40 * sft.CLASSES * sft.PER_CLASS
    assert not any(map(data.is_held_out, texts))


def test_labels_are_the_completion_and_nothing_else():
    tokens = sft.tokenizer()
    for ids, labels in sft.batch(tokens, random.Random(2), habits=False):
        for row, label in zip(ids, labels):
            kept = tokens.decode(label[label != -100])
            assert kept.startswith("<think>") and kept.endswith("<eos>")
            assert tokens.decode(row[label == -100]).replace("<pad>", "").endswith("=")
            assert torch.equal(row[label != -100], label[label != -100])


def test_tokenizer_reads_a_character_a_token_and_knows_what_it_does_not_know(base):
    tokens, _ = base
    ids = tokens.encode("7+5=<think>+5=12</think>12<eos>")
    assert len(ids) == 4 + 1 + 5 + 1 + 2 + 1 and tokens.decode(ids) == "7+5=<think>+5=12</think>12<eos>"
    assert tokens.unk_token_id in tokens.encode("7x5=")


def test_base_is_small_and_of_the_stated_shape(base):
    _, model = base
    assert sum(file.stat().st_size for file in BASE.iterdir()) <= 4_000_000
    assert 300_000 <= model.num_parameters() <= 1_000_000 and model.config.head_dim in (32, 64)
    assert model.config.to_dict()["rope_parameters"] == sft.untrained().config.to_dict()["rope_parameters"]


def test_base_can_compute_but_often_does_not(base):
    rate, best = sft.measure(base[1], base[0], prompts=64)
    # 1,024 completions: standard error 0.014; the README's numbers are 0.2 to 0.3 and above 0.9
    assert 0.15 < rate < 0.35
    assert best > 0.75
