"""Sec. 2, 3.1 and A.10: what a generator generates, how it keeps its slots full, and what new weights change.

What holds for every generator stands in rollouts.py: here it is held by TorchGenerator, in test_vllm.py by the other.
"""

import pytest
import torch
from conftest import KINDS, check_exercise, close, of_tokens, refuses, tiny_model
from rollouts import (
    CLOSE,
    EOS,
    EXACT,
    PHRASE,
    VOCABULARY,
    EveryGenerator,
    finish,
    full_forward,
    generator,
    requests,
    tokenizer,
    whole,
)

import rollout


@pytest.fixture
def make():
    return generator


class TestTorchGenerator(EveryGenerator):
    pass


# --- The same tokens and probabilities as the model itself -----------------------------------------------------------


def test_greedy_takes_the_most_probable_token_of_a_full_forward_and_gives_log_probs_of_temperature_1():
    model = tiny_model()
    done = finish(generator(model, slots=10, temperature=0), requests(64))
    for completion in done.values():
        log_pi = model(whole(completion)).logits[0, len(completion.prompt_ids) - 1 : -1].log_softmax(-1)
        assert close(completion.logprobs, log_pi.max(-1).values, EXACT)
    assert 0 < sum(c.truncated for c in done.values()) < 64  # both ways to end occur


@pytest.mark.parametrize("kind, attention", [*((kind, "sdpa") for kind in KINDS), ("qwen3", "eager")])
def test_sec3_logprobs_are_those_of_a_full_forward_at_the_sampling_temperature(kind, attention, monkeypatch):
    monkeypatch.setattr(rollout, "PREFILL_TOKENS", 32)  # prompts of 1 to 16 tokens share a few passes
    monkeypatch.setattr(rollout, "KV_BLOCK", 4)  # buffers have to grow
    model = tiny_model(kind)
    model.set_attn_implementation(attention)
    done = finish(generator(model, slots=20, temperature=0.7), requests(16, generations=2))
    assert len(done) == 32
    for completion in done.values():
        expected = full_forward(model, completion, temperature=0.7)
        assert close(completion.logprobs, expected, EXACT)
        assert all(completion.mask) and set(completion.versions) == {0}
        assert len(completion.ids) == len(completion.mask) == len(completion.logprobs) == len(completion.versions)


@pytest.mark.parametrize("fp32_head", [True, False])
def test_sec32_fp32_head_multiplies_bf16_states_and_weights_in_fp32(fp32_head):
    model = tiny_model().to(torch.bfloat16)
    made, states = generator(model, slots=1, fp32_head=fp32_head), []
    decode = made._decoder
    made._decoder = lambda *inputs: states.append(decode(*inputs)) or states[-1]
    for version in (1, 2):
        states.clear()
        completion = finish(made, requests(1))[0, 0, False]  # of one prompt token: each pass is one decode step
        logits = torch.cat(states).double() @ model.get_output_embeddings().weight.double().T
        exact = of_tokens(logits, torch.tensor(completion.ids))
        error = (exact - torch.tensor(completion.logprobs)).abs().max()
        # bf16 has 8 bits: logits of size 4 are off by about 4 / 2^9 = 0.008
        assert error < 1e-5 if fp32_head else error > 1e-3
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(-0.9)
        made.update_weights(version)


# --- Sampling --------------------------------------------------------------------------------------------------------


def test_uniform_is_splitmix64():
    # The first outputs for seed 1234567, as published with the algorithm's test programs.
    published = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431)
    draws = rollout.uniform(torch.tensor([1234567] * 4), torch.arange(4))
    assert draws.tolist() == [(word >> 11) / 2**53 for word in published]


def test_sampled_frequencies_match_the_probabilities():
    check_exercise(rollout, "sample")


def test_each_completion_has_its_own_random_numbers():
    streams = [requests(50, 8, evaluation, version) for evaluation, version in ((False, 0), (True, 0), (True, 1))]
    keys = [rollout.completion_keys(seed, one) for seed in (0, 1) for stream in streams for one in stream]
    assert len(torch.cat(keys).unique()) == 2 * 3 * 50 * 8


def test_results_depend_on_the_seed_but_not_on_slots_order_or_timing():
    model, added = tiny_model(), requests(12, generations=3)
    settings = dict(seed=5, think_budget=(6, 12), phrase_ids=PHRASE)
    one = finish(generator(model, slots=2, **settings), added)
    other = generator(model, slots=17, **settings)
    early = []
    for request in reversed(added):  # one request per step
        other.add(request)
        early += other.step()
    other = finish(other) | {(c.request, c.index, False): c for c in early}
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].ids == other[name].ids and one[name].mask == other[name].mask
        assert one[name].logprobs == pytest.approx(other[name].logprobs, abs=EXACT)
    again = finish(generator(model, **settings | {"seed": 6}), added)
    assert sum(again[name].ids == one[name].ids for name in one) < 5


# --- Slots (continuous batching) -------------------------------------------------------------------------------------


def test_finished_slots_are_refilled_at_once_and_only_live_rows_are_computed():
    """Oracle: list scheduling of the same lengths in 4 slots gives the rows and the longest row of every step."""
    gen, decoded = generator(tiny_model(), slots=4, max_prompt_tokens=18), []
    added = requests(12, generations=3, shortest=3)
    decode = gen._decode
    gen._decode = lambda n: (decode(n), decoded.append((n, gen.filled)))[0]
    done = finish(gen, added)
    waiting = [done[request.number, index, False] for request in added for index in range(3)]
    live, expected = [], []
    while waiting or live:
        while waiting and len(live) < 4:
            first = waiting.pop(0)
            live.append((len(first.prompt_ids), len(first.prompt_ids) + len(first.ids)))
        expected.append((len(live), max(length for length, _ in live)))
        live = [(length + 1, end) for length, end in live if length + 1 < end]
    assert decoded == expected and min(decoded)[0] < 4  # the last steps have fewer rows


def test_rows_move_whole_though_a_step_is_replayed_and_runs_no_code():
    """So it is with a CUDA graph: `place`, which the step calls, does not say how many columns are filled."""
    model, added = tiny_model(), requests(12, generations=3)
    expected, gen = finish(generator(model, slots=4), added), generator(model, slots=4)

    def replay(inputs, columns):
        filled = gen._cache.filled
        outputs = gen._sample(inputs, columns)
        gen._cache.filled = filled
        return outputs

    gen._next = replay
    assert {name: c.ids for name, c in finish(gen, added).items()} == {name: c.ids for name, c in expected.items()}


# --- Interruption, truncation, text (A.10) ---------------------------------------------------------------------------


@pytest.mark.parametrize("settings, message", [
    (dict(think_budget=(5, 9), phrase_ids=PHRASE, think_end="c d"), "ends in 'c d', got 'q r </think>'"),
    (dict(think_budget=(5, 21), phrase_ids=PHRASE), "got 5 21"),
])  # fmt: skip
def test_contradictory_settings_are_refused(settings, message):
    refuses(message, generator, tiny_model(), **settings)


def test_what_ends_a_turn_in_any_one_place_ends_a_completion():
    def ends(generation=None, config=None, token=None, template=None):
        model, tok = tiny_model(), tokenizer()
        model.generation_config.eos_token_id, model.config.eos_token_id = generation, config
        tok.eos_token, tok.chat_template = token, template
        return rollout.eos_ids(model, tok)

    assert ends(generation=EOS) == ends(config=EOS) == ends(token="<eos>") == [EOS]
    template = "{% for m in messages %}{{ m.content }} </think> {% endfor %}"  # its only special token
    assert {*ends(8, [9, 10], "<eos>", template)} == {8, 9, 10, EOS, CLOSE}  # none of them hides another


@pytest.mark.parametrize(
    "ids, message", [(None, "eos_token_id.*truncated"), ([EOS, VOCABULARY], "below 24, .*; got 24")]
)
def test_a_model_without_eos_or_with_one_beyond_the_vocabulary_is_refused(ids, message):
    model, tok = tiny_model(), tokenizer()
    model.generation_config.eos_token_id = model.config.eos_token_id = ids
    tok.eos_token = None
    refuses(message, generator, model, tok)
