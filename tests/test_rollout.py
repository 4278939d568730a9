"""Sec. 2, 3.1 and A.10: what a generator generates, how it keeps its slots full, and what new weights change.

Tests that take `make` or `build` hold for every generator: test_vllm.py imports them and has its own two fixtures.
"""

import copy
import math
from collections import Counter

import pytest
import torch
from conftest import KINDS, check_exercise, close, of_tokens, refuses, tiny_model
from tokenizers import Tokenizer, models
from transformers import DynamicCache, PreTrainedTokenizerFast

import rollout
from data import Prompt
from pipeline import Request
from plumbing.build import other_ends
from rollout import TorchGenerator

VOCABULARY, EOS, CLOSE = 24, 1, 3  # CLOSE is </think>
PHRASE = (20, 21, CLOSE)
EXACT = 1e-4  # nats; fp32 sums in another order differ by about 1e-6, wrong keys or values by more than 1e-2


def tokenizer():
    vocabulary = {"<pad>": 0, "<eos>": EOS, "<bos>": 2, "</think>": CLOSE}
    vocabulary |= {chr(ord("a") + i): 4 + i for i in range(VOCABULARY - 4)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", additional_special_tokens=["</think>"])


def generator(model, tokens=None, **settings):
    return TorchGenerator(model, tokens or tokenizer(), **dict(slots=5, max_new_tokens=24) | settings)


@pytest.fixture
def make():
    """make(model, **settings): a generator with the weights of `model`, at version 0 or later."""
    return generator


@pytest.fixture
def build():
    """build(model, tokens, **settings): the constructor, for arguments that it must refuse."""
    return generator


def requests(count, generations=1, evaluation=False, version=0, shortest=1):
    """Requests 0, 1, …; prompts of `shortest` to `shortest` + 15 random tokens, the same at every call."""
    random = torch.Generator().manual_seed(0)
    found = []
    for i in range(count):
        ids = torch.randint(4, VOCABULARY, (shortest + i % 16,), generator=random).tolist()
        found.append(Request(i, version, Prompt(i, tuple(ids), "", "", "arithmetic"), generations, evaluation))
    return found


def finish(gen, added=()):
    """Add requests and run to the end: {(request, index, evaluation): completion}."""
    for request in added:
        gen.add(request)
    done = []
    while gen.busy:
        done += gen.step()
    return {(c.request, c.index, c.evaluation): c for c in done}


def whole(completion):
    """(1, length) the tokens of a completion with its prompt."""
    return torch.tensor([completion.prompt_ids + completion.ids])


def full_forward(model, completion, temperature=1.0):
    """(T,) log-probabilities of the completion's tokens by one forward pass of the whole text, without any cache."""
    with torch.no_grad():
        logits = model(whole(completion), use_cache=False).logits[0, len(completion.prompt_ids) - 1 : -1]
    return of_tokens(logits / temperature, torch.tensor(completion.ids))


def forward_on_old_keys(old, new, completion, known, temperature=1.0):
    """(T - known,) log-probs under `new` of the tokens after the first `known`, on `old`'s keys and values for those.

    `new` also reads the last of the first `known` tokens: a token is read only when the next one is decoded.
    """
    ids = whole(completion)
    read = len(completion.prompt_ids) + known - 1
    cache = None, None, DynamicCache()  # by its place: transformers 5.24 has renamed it
    with torch.no_grad():
        old(ids[:, :read], *cache, use_cache=True)
        logits = new(ids[:, read:-1], *cache, use_cache=True).logits[0]
    return of_tokens(logits.float() / temperature, torch.tensor(completion.ids[known:]))


def perturb(gen, model):
    """A copy of `model` with new weights; `gen` gets them as from a broadcast: written in place, then announced."""
    torch.manual_seed(1)
    new = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in new.named_parameters():
            weight.add_(torch.randn_like(weight), alpha=0.05)
            gen.named_weights()[name].copy_(weight)
    gen.update_weights(gen.version + 3)
    return new


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
    states = []
    made = generator(model, slots=1, fp32_head=fp32_head)
    decode = made._decoder
    made._decoder = lambda *inputs: states.append(decode(*inputs)) or states[-1]
    for version, request in enumerate(requests(17)[::16]):
        assert len(request.prompt.ids) == 1  # nothing to prefill: each forward pass is one decode step
        states.clear()
        completion = finish(made, [request])[request.number, 0, False]
        logits = torch.cat(states).double() @ model.get_output_embeddings().weight.double().T
        exact = of_tokens(logits, torch.tensor(completion.ids))
        error = (exact - torch.tensor(completion.logprobs)).abs().max()
        # bf16 has 8 bits: logits of size 4 are off by about 4 / 2^9 = 0.008
        assert error < 1e-5 if fp32_head else error > 1e-3
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(-0.9)
        made.update_weights(version + 1)


# --- Sampling --------------------------------------------------------------------------------------------------------


def test_uniform_is_splitmix64():
    # The first outputs for seed 1234567, as published with the algorithm's test programs.
    published = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431)
    draws = rollout.uniform(torch.tensor([1234567] * 4), torch.arange(4))
    assert draws.tolist() == [(word >> 11) / 2**53 for word in published]


def test_sampled_frequencies_match_the_probabilities():
    check_exercise(rollout, "sample")


def agree(counts, expected):
    """Whether {cell: count} has these expectations, by chi-square: its mean and 4.5 standard deviations."""
    chi_square = sum((counts[cell] - mean) ** 2 / mean for cell, mean in expected.items())
    return abs(chi_square - len(expected)) < 4.5 * (2 * len(expected)) ** 0.5


def test_sampled_first_tokens_match_the_model(make):
    model, request = tiny_model(), requests(5, generations=4000)[4]
    done = finish(make(model, slots=500, max_new_tokens=2, temperature=1.5), [request])
    logits = model(torch.tensor([request.prompt.ids])).logits[0, -1].detach() / 1.5
    expected = dict(enumerate((4000 * torch.softmax(logits, -1)).tolist()))
    frequent = {token: mean for token, mean in expected.items() if mean > 5}
    assert len(frequent) > 10 and agree(Counter(completion.ids[0] for completion in done.values()), frequent)


def test_tokens_of_a_completion_are_drawn_independently(make):
    """With equal logits all pairs of neighbouring tokens whose first is not EOS are equally likely."""
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight.zero_()
    done = finish(make(model, slots=500, max_new_tokens=12), requests(1, generations=1000)).values()
    pairs = Counter(pair for completion in done for pair in zip(completion.ids, completion.ids[1:]))
    cells = [(first, second) for first in range(VOCABULARY) if first != EOS for second in range(VOCABULARY)]
    expected = pairs.total() / len(cells)
    assert expected > 5 and agree(pairs, dict.fromkeys(cells, expected))


def test_each_completion_has_its_own_random_numbers():
    streams = [requests(50, 8, evaluation, version) for evaluation, version in ((False, 0), (True, 0), (True, 1))]
    asked = [(seed, request) for seed in (0, 1) for stream in streams for request in stream]
    keys = torch.cat([rollout.completion_keys(*one) for one in asked])
    assert len(keys.unique()) == len(keys) == 2 * 3 * 50 * 8


def test_results_depend_on_the_seed_but_not_on_slots_order_or_timing(make):
    model, added = tiny_model(), requests(12, generations=3)
    settings = dict(seed=5, think_budget=(6, 12), phrase_ids=PHRASE)
    one = finish(make(model, slots=2, **settings), added)
    other = make(model, slots=17, **settings)
    early = []
    for request in reversed(added):  # one request per step
        other.add(request)
        early += other.step()
    other = finish(other) | {(c.request, c.index, False): c for c in early}
    assert one.keys() == other.keys() and len(one) == 36
    for name in one:
        assert one[name].ids == other[name].ids and one[name].mask == other[name].mask
        assert one[name].logprobs == pytest.approx(other[name].logprobs, abs=EXACT)
    again = finish(make(model, slots=2, **settings | {"seed": 6}), added)
    assert sum(again[name].ids == one[name].ids for name in one) < 5


# --- Slots (continuous batching) -------------------------------------------------------------------------------------


def test_finished_slots_are_refilled_at_once_and_only_live_rows_are_computed():
    """Oracle: list scheduling of the same lengths in 4 slots gives the rows and the longest row of every step."""
    model, added = tiny_model(), requests(12, generations=3, shortest=3)
    prompts, decoded = [], []
    model.get_decoder().register_forward_pre_hook(
        lambda module, _, kwargs: prompts.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    gen = generator(model, slots=4)
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
    assert decoded == expected
    assert min(rows for rows, _ in decoded) < 4  # the last steps have fewer rows
    assert sum(prompts) == 12  # each prompt was run once for its 3 completions


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


def test_keys_and_values_never_take_more_room_than_the_longest_sequence(monkeypatch):
    monkeypatch.setattr(rollout, "KV_BLOCK", 32)
    gen = generator(tiny_model(), max_prompt_tokens=16, max_new_tokens=24)
    assert any(len(c.prompt_ids) + len(c.ids) > 38 for c in finish(gen, requests(64)).values())
    # 39 positions and a quarter, in blocks of 32, would be 64; but no sequence is longer than 16 + 24 = 40.
    assert {buffer.shape[2] for pair in gen._cache.buffers.values() for buffer in pair} == {40}


def test_wants_a_request_while_a_slot_would_stay_empty(make):
    gen = make(tiny_model(), slots=5)
    taken = []
    for request in requests(4, generations=2):
        taken.append(gen.has_capacity(False))
        gen.add(request)
    assert taken == [True, True, True, False]  # 0, 2, 4, 6 queued completions for 5 slots
    assert gen.has_capacity(True)  # an evaluation would go first
    gen.add(requests(1, generations=5, evaluation=True)[0])
    assert not gen.has_capacity(True)
    finish(gen)
    assert gen.has_capacity(False) and gen.has_capacity(True) and not gen.busy and gen.step() == []
    gen = make(tiny_model(), slots=5, max_new_tokens=1)
    gen.add(requests(1, generations=8)[0])
    assert not gen.has_capacity(False) and len(gen.step()) == 5 and gen.has_capacity(False)  # 3 left for 5 slots


def test_evaluation_goes_first_and_running_completions_go_on(make):
    gen = make(tiny_model(), slots=4)
    for request in requests(3, generations=4):
        gen.add(request)
    done = [(1, completion) for completion in gen.step()]  # completions 0 to 3 of request 0 are running now
    for request in requests(5, generations=2, evaluation=True):
        gen.add(request)
    step = 1
    while gen.busy:
        step += 1
        done += [(step, completion) for completion in gen.step()]
    assert len(done) == 3 * 4 + 5 * 2 and len({(c.request, c.index, c.evaluation) for _, c in done}) == 22
    evaluated = max(step for step, c in done if c.evaluation)
    assert any(step < evaluated for step, c in done if not c.evaluation)  # the running ones went on
    started = [step - len(c.ids) + 1 for step, c in done if not c.evaluation and c.request > 0]
    assert min(started) == evaluated + 1


# --- New weights between two decode steps (Sec. 3.1, A.11) -----------------------------------------------------------


def test_sec31_running_completions_keep_their_keys_and_values_over_an_update(make):
    model = tiny_model()
    old, gen = copy.deepcopy(model), make(model, slots=6)
    start = gen.version
    for request in requests(6, shortest=4):
        gen.add(request)
    known = 7
    early = [c for _ in range(known) for c in gen.step()]
    new = perturb(gen, model)
    done = finish(gen)
    assert len(early) + len(done) == 6 and len(done) >= 3
    stale = []
    for completion in done.values():
        assert completion.versions == [start] * known + [start + 3] * (len(completion.ids) - known)
        logprobs = torch.tensor(completion.logprobs)
        assert close(logprobs[:known], full_forward(old, completion)[:known], EXACT)
        continued = forward_on_old_keys(old, new, completion, known)
        assert close(logprobs[known:], continued, EXACT)
        stale.append((logprobs[known:] - full_forward(new, completion)[known:]).abs().max())
    assert min(stale) > 1e-2  # a recomputed cache would have given 0
    assert all(set(c.versions) == {start} for c in early)


def test_sec31_no_completion_starts_on_keys_and_values_of_older_weights(make):
    """2 slots, 8 completions of one prompt and 2 of the next, which was run ahead: completions that start after the
    update depend on the new weights only."""
    model = tiny_model()
    old, gen = copy.deepcopy(model), make(model, slots=2)
    start = gen.version
    gen.add(requests(12, generations=8, shortest=80)[10])
    gen.add(requests(12, generations=2, shortest=80)[11])
    before = gen.step()
    new = perturb(gen, model)
    done = list(finish(gen).values())
    fresh = [c for c in done if start not in c.versions]
    assert len(before) + len(done) == 10 and len(fresh) == 8 and {len(c.prompt_ids) for c in fresh} == {90, 91}
    for completion in fresh:
        logprobs = torch.tensor(completion.logprobs)
        assert close(logprobs, full_forward(new, completion), EXACT)
        # The old prompt cache would have given this: all but the prompt's last token read by the old weights.
        assert (logprobs - forward_on_old_keys(old, new, completion, known=0)).abs().max() > 1e-2


def test_updates_reach_the_model_through_named_weights_with_tied_ones_once(make):
    gen = make(tiny_model("qwen3"))
    assert "lm_head.weight" not in gen.named_weights() and "model.embed_tokens.weight" in gen.named_weights()
    with torch.no_grad():
        gen.named_weights()["model.norm.weight"].zero_()
    gen.update_weights(gen.version + 1)
    completion = finish(gen, requests(1, version=gen.version))[0, 0, False]
    # Hidden states of 0 give equal logits: every token has log-prob -log V.
    assert completion.logprobs == pytest.approx([-math.log(VOCABULARY)] * len(completion.ids))


# --- Interruption, truncation, text (A.10) ---------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [(5, 9), (4, 4), (0, 2)])
def test_a10_interruption_forces_exactly_the_phrase_at_a_length_drawn_in_the_budget(make, budget):
    model = tiny_model()
    settings = dict(slots=30, think_budget=budget, phrase_ids=PHRASE, temperature=1.2)
    done = finish(make(model, **settings), requests(24, generations=8)).values()
    lengths = set()
    for completion in done:
        ids, mask = completion.ids, torch.tensor(completion.mask)
        logprobs, expected = torch.tensor(completion.logprobs), full_forward(model, completion, temperature=1.2)
        # Tokens after the phrase are conditioned on the phrase, as they are in a full forward pass of the text.
        assert close(logprobs[mask], expected[mask], EXACT) and not logprobs[~mask].any()
        thinking = [*ids, CLOSE].index(CLOSE)
        assert completion.interrupted == (not mask.all())
        if completion.interrupted:
            length = completion.mask.index(False)
            lengths.add(length)
            assert ids[length : length + 3] == [*PHRASE] and thinking == length + 2
            assert completion.mask == [True] * length + [False] * 3 + [True] * (len(ids) - length - 3)
            assert len(ids) > length + 3  # it answers
        else:  # ended, or stopped thinking, no later than the last length at which it could have been interrupted
            assert thinking <= budget[1]
    assert lengths == {*range(budget[0], budget[1] + 1)}
    assert any(CLOSE in c.ids and not c.interrupted for c in done) or budget[0] == 0


def test_a10_a_mark_of_several_tokens_is_looked_for_in_the_text_and_its_last_token_is_not_the_mark(make):
    model = tiny_model()
    bare = finish(make(model, slots=30), requests(24, generations=8)).values()
    pairs = Counter((p, q) for c in bare for p, q in zip(c.ids[:8], c.ids[1:8]) if EOS not in (p, q) and p != q)
    [(pair, _)] = pairs.most_common(1)
    mark = tokenizer().decode(pair)
    gen = make(model, slots=30, think_budget=(8, 8), phrase_ids=(20, *pair), think_end=mark)
    done = finish(gen, requests(24, generations=8)).values()
    for c in done:
        assert c.interrupted == (len(c.ids) > 8 and mark not in tokenizer().decode(c.ids[:8]))
        if c.interrupted:
            assert c.ids[8:11] == [20, *pair] and c.mask[:12] == [True] * 8 + [False] * 3 + [True] * len(c.mask[11:12])
    assert any(not c.interrupted and len(c.ids) > 8 for c in done)
    assert any(c.interrupted and pair[1] in c.ids[:8] for c in done)  # the last token of the mark, but not the mark


def test_truncated_means_the_budget_ended_without_eos(make):
    done = finish(make(tiny_model(), max_new_tokens=6), requests(64, generations=4)).values()
    for completion in done:
        assert completion.truncated == (EOS not in completion.ids) and EOS not in completion.ids[:-1]
        assert completion.ids[-1] == EOS or len(completion.ids) == 6
    assert {(len(c.ids) == 6, c.truncated) for c in done} == {(True, True), (True, False), (False, False)}


def test_any_of_several_eos_ids_ends_a_completion_and_none_is_in_the_text(make):
    model = tiny_model()
    model.generation_config.eos_token_id = [EOS, 9]
    gen = make(model, think_budget=(3, 3), phrase_ids=PHRASE)
    done = list(finish(gen, requests(64, generations=2)).values())
    assert {c.ids[-1] for c in done if not c.truncated} == {EOS, 9}
    for completion in done:
        body = completion.ids if completion.truncated else completion.ids[:-1]
        assert EOS not in body and 9 not in body
        assert completion.text.split() == gen.tokenizer.convert_ids_to_tokens(body)
        assert ("</think>" in completion.text) == (CLOSE in body)  # the verifier looks for it


def test_what_ends_a_turn_in_any_one_place_ends_a_completion():
    def ends(generation=None, config=None, token=None, template=None):
        model, tok = tiny_model(), tokenizer()
        model.generation_config.eos_token_id, model.config.eos_token_id = generation, config
        tok.eos_token, tok.chat_template = token, template
        return rollout.eos_ids(model, tok)

    assert ends(generation=EOS) == ends(config=EOS) == ends(token="<eos>") == [EOS]
    template = "{% for m in messages %}{{ m.content }} </think> {% endfor %}"  # its only special token
    assert {*ends(8, [9, 10], "<eos>", template)} == {8, 9, 10, EOS, CLOSE}  # none of them hides another


def test_a_completion_that_goes_on_behind_the_end_of_a_turn_is_warned_of_once(capsys):
    model, tok = tiny_model(), tokenizer()
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    tok.eos_token = "p"
    asked = generator(model, tok)
    asked.other_ends = other_ends(tok, asked.eos_ids)
    done = finish(asked, requests(64)).values()
    assert sum(EOS in completion.ids[:-1] for completion in done) > 1
    said = capsys.readouterr().err
    assert said.count("WARNING") == 1 and "went on behind <eos>, which" in said and f"its id {EOS} to" in said
    assert not other_ends(tokenizer(), [EOS])


# --- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings, message", [
    (dict(think_budget=(5, 9), phrase_ids=PHRASE, think_end="c d"), "ends in 'c d', got 'q r </think>'"),
    (dict(think_budget=(9, 5), phrase_ids=PHRASE), "got 9 5"),
    (dict(think_budget=(5, 21), phrase_ids=PHRASE), "got 5 21"),
])  # fmt: skip
def test_contradictory_settings_are_refused(build, settings, message):
    refuses(message, build, tiny_model(), **settings)


@pytest.mark.parametrize("ids, message", [
    (None, "eos_token_id.*truncated"), ([EOS, VOCABULARY], f"eos_token_id below {VOCABULARY}, .*; got {VOCABULARY}"),
])  # fmt: skip
def test_a_model_without_eos_or_with_one_beyond_the_vocabulary_is_refused(build, ids, message):
    model, tok = tiny_model(), tokenizer()
    model.generation_config.eos_token_id = model.config.eos_token_id = ids
    tok.eos_token = None
    refuses(message, build, model, tok)


def test_requests_that_cannot_be_served_are_refused(make):
    gen = make(tiny_model(), max_prompt_tokens=10)  # of 128 positions
    prompt, now = requests(1)[0].prompt, gen.version
    for wrong, message in (
        (Request(0, now + 2, prompt, 1), f"request 0 expects weights of version >= {now + 2}, got {now}"),
        (Request(0, 0, prompt, 0), "generations >= 1"),
        (Request(7, 0, Prompt(0, (), "", "", "arithmetic"), 1), r"request 7.*got 1, 0 \+ 24"),
        (Request(7, 0, Prompt(0, (5,) * 11, "", "", "arithmetic"), 1), r"<= 34 positions; got 1, 11 .*max_prompt"),
    ):
        refuses(message, gen.add, wrong)
    gen.add(Request(0, 0, Prompt(0, (5,) * 10, "", "", "arithmetic"), 1))  # just fits
    assert len(finish(gen)) == 1
