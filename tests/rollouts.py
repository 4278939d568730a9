"""What every generator promises, with requests, tokens and probabilities that are known without it (Sec. 3.1, A.10)."""

import copy
import math
from collections import Counter

import pytest
import torch
from conftest import close, of_tokens, refuses, tiny_model
from tokenizers import Tokenizer, models
from transformers import DynamicCache, PreTrainedTokenizerFast

from data import Prompt
from pipeline import Request
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


def agree(counts, expected):
    """Whether {cell: count} has these expectations, by chi-square: its mean and 4.5 standard deviations."""
    chi_square = sum((counts[cell] - mean) ** 2 / mean for cell, mean in expected.items())
    return abs(chi_square - len(expected)) < 4.5 * (2 * len(expected)) ** 0.5


class EveryGenerator:
    """Collected by a file that has the fixtures `make` and `build`.

    make(model, **settings): a generator with the weights of `model`, at version 0 or later.
    build(model, tokens, **settings): the constructor, for arguments that it must refuse.
    """

    def test_sampled_first_tokens_match_the_model(self, make):
        model, request = tiny_model(), requests(5, generations=4000)[4]
        done = finish(make(model, slots=500, max_new_tokens=2, temperature=1.5), [request])
        logits = model(torch.tensor([request.prompt.ids])).logits[0, -1].detach() / 1.5
        expected = dict(enumerate((4000 * torch.softmax(logits, -1)).tolist()))
        frequent = {token: mean for token, mean in expected.items() if mean > 5}
        assert len(frequent) > 10 and agree(Counter(completion.ids[0] for completion in done.values()), frequent)

    def test_tokens_of_a_completion_are_drawn_independently(self, make):
        """With equal logits all pairs of neighbouring tokens whose first is not EOS are equally likely."""
        model = tiny_model()
        with torch.no_grad():
            model.model.norm.weight.zero_()
        done = finish(make(model, slots=500, max_new_tokens=12), requests(1, generations=1000)).values()
        pairs = Counter(pair for completion in done for pair in zip(completion.ids, completion.ids[1:]))
        cells = [(first, second) for first in range(VOCABULARY) if first != EOS for second in range(VOCABULARY)]
        expected = pairs.total() / len(cells)
        assert expected > 5 and agree(pairs, dict.fromkeys(cells, expected))

    def test_wants_a_request_while_a_slot_would_stay_empty(self, make):
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

    def test_evaluation_goes_first_and_running_completions_go_on(self, make):
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

    @pytest.mark.gpu
    def test_sec31_running_completions_keep_their_keys_and_values_over_an_update(self, make):
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

    def test_sec31_no_completion_starts_on_keys_and_values_of_older_weights(self, make):
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

    def test_updates_reach_the_model_through_named_weights_with_tied_ones_once(self, make):
        gen = make(tiny_model("qwen3"))
        assert "lm_head.weight" not in gen.named_weights() and "model.embed_tokens.weight" in gen.named_weights()
        with torch.no_grad():
            gen.named_weights()["model.norm.weight"].zero_()
        gen.update_weights(gen.version + 1)
        completion = finish(gen, requests(1, version=gen.version))[0, 0, False]
        # Hidden states of 0 give equal logits: every token has log-prob -log V.
        assert completion.logprobs == pytest.approx([-math.log(VOCABULARY)] * len(completion.ids))

    @pytest.mark.parametrize("budget", [(5, 9), (4, 4), (0, 2)])
    def test_a10_interruption_forces_exactly_the_phrase_at_a_length_drawn_in_the_budget(self, make, budget):
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

    def test_a10_a_mark_of_several_tokens_is_looked_for_in_the_text_and_its_last_token_is_not_the_mark(self, make):
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
                assert c.ids[8:11] == [20, *pair] and c.mask[:12] == [True] * 8 + [False] * 3 + [True] * len(
                    c.mask[11:12]
                )
        assert any(not c.interrupted and len(c.ids) > 8 for c in done)
        assert any(c.interrupted and pair[1] in c.ids[:8] for c in done)  # the last token of the mark, but not the mark

    def test_truncated_means_the_budget_ended_without_eos(self, make):
        done = finish(make(tiny_model(), max_new_tokens=6), requests(64, generations=4)).values()
        for completion in done:
            assert completion.truncated == (EOS not in completion.ids) and EOS not in completion.ids[:-1]
            assert completion.ids[-1] == EOS or len(completion.ids) == 6
        assert {(len(c.ids) == 6, c.truncated) for c in done} == {(True, True), (True, False), (False, False)}

    def test_any_of_several_eos_ids_ends_a_completion_and_none_is_in_the_text(self, make):
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

    @pytest.mark.parametrize("settings, message", [
        (dict(think_budget=(5, 9), phrase_ids=PHRASE, think_end="c d"), "ends in 'c d', got 'q r </think>'"),
        (dict(think_budget=(9, 5), phrase_ids=PHRASE), "got 9 5"),
        (dict(think_budget=(5, 21), phrase_ids=PHRASE), "got 5 21"),
    ])  # fmt: skip
    def test_contradictory_settings_are_refused(self, build, settings, message):
        refuses(message, build, tiny_model(), **settings)

    @pytest.mark.parametrize("ids, message", [
        (None, "eos_token_id.*truncated"),
        ([EOS, VOCABULARY], f"eos_token_id below {VOCABULARY}, .*; got {VOCABULARY}"),
    ])  # fmt: skip
    def test_a_model_without_eos_or_with_one_beyond_the_vocabulary_is_refused(self, build, ids, message):
        model, tok = tiny_model(), tokenizer()
        model.generation_config.eos_token_id = model.config.eos_token_id = ids
        tok.eos_token = None
        refuses(message, build, model, tok)

    def test_requests_that_cannot_be_served_are_refused(self, make):
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
