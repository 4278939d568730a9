"""A.3: claims about the traces, the tokenizer and the two committed base policies."""

import random
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import data
import sft

BASE = Path(sft.__file__).parent / "base"


def results(trace):
    """The running results that a trace shows."""
    return [int(n) for n in re.findall("=(-?[0-9]+)", trace)]


def test_a_trace_without_habits_shows_every_running_result():
    # 7+5 = 12, 12-3 = 9, 9+9 = 18
    trace = sft.adding("7+5-3+9=", random.Random(0), habits=False)
    assert results(trace) == [12, 9, 18]
    assert trace.endswith("</think>18<eos>")
    assert sft.ordering("=70270=", random.Random(0), habits=False) == "<think>-0-0-2-7-7</think>00277<eos>"
    assert sft.adding_modulo_10("7-5-3....=", random.Random(0), habits=False) == "29</think>9<eos>"  # 7-5 = 2, 2-3 = -1


def examples(rng, tasks, batches=1, habits=False):
    """(prompt, completion) of every row of these batches, as their tokens and labels say."""
    tokens = sft.tokenizer()
    for _ in range(batches):
        for ids, labels in sft.batch(tokens, rng, habits, tasks):
            assert torch.equal(ids[labels != -100], labels[labels != -100])
            for row, label in zip(ids, labels):
                yield tokens.decode(row[label == -100]).replace("<pad>", ""), tokens.decode(row[label != -100])


def test_labels_are_the_completion_and_nothing_else():
    """And no prompt is one of validation."""
    shown = [*examples(random.Random(1), ["arithmetic", "sorting"], batches=40, habits=True)]
    assert len(shown) == 40 * sft.CLASSES * sft.PER_CLASS
    for prompt, completion in shown:
        assert prompt.endswith("=") and not data.is_held_out(prompt)
        assert completion.startswith("<think>") and completion.endswith("<eos>")


def test_sft_minimises_the_mean_cross_entropy_of_the_completions_tokens_over_the_batch(monkeypatch):
    tokens, rng, seen = sft.tokenizer(), random.Random("sft/False/7"), []
    torch.manual_seed(0)
    model = sft.untrained()
    for ids, labels in sft.batch(tokens, rng, False, ["arithmetic"]):  # the batch that `supervise` draws first
        logprobs = model(input_ids=ids).logits.log_softmax(-1)
        for row, label, logprob in zip(ids, labels, logprobs):
            seen += [-logprob[t - 1, row[t]] for t in range(1, len(row)) if label[t] != -100]
    torch.stack(seen).mean().backward()
    expected, found = [p.grad.clone() for p in model.parameters()], []

    def unclipped(parameters, _):
        found.extend(p.grad.clone() for p in parameters)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", unclipped)
    model.zero_grad()
    sft.supervise(model, tokens, tasks=["arithmetic"], habits=False, steps=1, seed=7)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)  # float32, summed in another order


@pytest.mark.parametrize("folder, task, generations, highest, solvable", [
    # 320 completions: standard error 0.03, and more since those of one prompt are alike; sft.py states the rates.
    # Three tenths of the sums are longer than any in SFT; with 32 prompts the standard error is 0.08.
    (".", "arithmetic", 10, 0.4, 0.6), ("sorting", "sorting", 10, 0.4, 0.75), ("tiny", "tiny", 16, 0.45, 0.7),
])  # fmt: skip
def test_base_can_compute_but_often_does_not(folder, task, generations, highest, solvable):
    tokens, model = AutoTokenizer.from_pretrained(BASE / folder), sft.load(BASE / folder)
    rate, best = sft.measure(model, tokens, task, prompts=32, generations=generations)
    assert 0.13 < rate < highest and best > solvable
