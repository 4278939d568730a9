"""What every generator promises, with requests, tokens and probabilities that are known without it (Sec. 3.1, A.10)."""

import copy
from collections import Counter

import pytest
import torch
from conftest import close, of_tokens, tiny_model
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


class EveryGenerator:
    """Collected by a file that has the fixture `make`.

    make(model, **settings): a generator with the weights of `model`, at version 0 or later.
    """

    def test_sampled_pairs_of_tokens_match_the_model(self, make):
        """By chi-square. The second token is drawn from its own distribution, independently of the first one's draw."""
        model, request = tiny_model(), requests(5, generations=4000)[4]
        done = finish(make(model, slots=500, max_new_tokens=2, temperature=1.5), [request]).values()
        ids = torch.tensor([[*request.prompt.ids, first] for first in range(VOCABULARY)])
        first, second = (model(ids).logits[:, -2:].detach() / 1.5).softmax(-1).transpose(0, 1)
        expected = 4000 * first[0, :, None] * second
        expected[EOS] = 0
        cells = [tuple(cell) for cell in (expected > 5).nonzero().tolist()]
        counts = Counter(tuple(completion.ids) for completion in done)
        chi_square = sum((counts[cell] - expected[cell]) ** 2 / expected[cell] for cell in cells)
        assert len(cells) > 50 and abs(chi_square - len(cells)) < 4.5 * (2 * len(cells)) ** 0.5  # 4.5 of its stds

    @pytest.mark.gpu
    def test_sec31_running_completions_keep_their_keys_and_values_over_an_update(self, make):
        model = tiny_model()
        old, gen = copy.deepcopy(model), make(model, slots=6)
        start, known = gen.version, 7
        for request in requests(6, shortest=4):
            gen.add(request)
        early = [c for _ in range(known) for c in gen.step()]
        new = perturb(gen, model)
        done = finish(gen)
        assert len(early) + len(done) == 6 and len(done) >= 3
        for completion in done.values():
            assert completion.versions == [start] * known + [start + 3] * (len(completion.ids) - known)
            logprobs = torch.tensor(completion.logprobs)
            assert close(logprobs[:known], full_forward(old, completion)[:known], EXACT)
            assert close(logprobs[known:], forward_on_old_keys(old, new, completion, known), EXACT)
            recomputed = full_forward(new, completion)[known:]  # what a new cache would have given
            assert (logprobs[known:] - recomputed).abs().max() > 1e-2
        assert all(set(c.versions) == {start} for c in early)

    def test_sec31_no_completion_starts_on_keys_and_values_of_older_weights(self, make):
        """2 slots, 8 completions of one prompt and 2 of the next, which was run ahead: completions that start after the
        update depend on the new weights only."""
        model = tiny_model()
        old, gen = copy.deepcopy(model), make(model, slots=2)
        start = gen.version
        gen.add(requests(12, generations=8, shortest=80)[10])
        gen.add(requests(12, generations=2, shortest=80)[11])
        gen.step()
        new = perturb(gen, model)
        fresh = [c for c in finish(gen).values() if start not in c.versions]
        assert len(fresh) == 8 and {len(c.prompt_ids) for c in fresh} == {90, 91}
        for completion in fresh:
            logprobs = torch.tensor(completion.logprobs)
            assert close(logprobs, full_forward(new, completion), EXACT)
            # The old prompt cache would have given this: all but the prompt's last token read by the old weights.
            assert (logprobs - forward_on_old_keys(old, new, completion, known=0)).abs().max() > 1e-2

    @pytest.mark.parametrize("budget", [(5, 9), (0, 2)])
    def test_a10_interruption_forces_exactly_the_phrase_at_a_length_drawn_in_the_budget(self, make, budget):
        model = tiny_model()
        settings = dict(slots=30, think_budget=budget, phrase_ids=PHRASE, temperature=1.2)
        lengths = set()
        for completion in finish(make(model, **settings), requests(24, generations=8)).values():
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

    def test_truncated_means_the_budget_ended_without_eos(self, make):
        """Any of several EOS ids ends a completion, and none is in the text."""
        model = tiny_model()
        model.generation_config.eos_token_id = [EOS, 9]
        gen = make(model, max_new_tokens=6)
        seen = set()
        for completion in finish(gen, requests(64, generations=4)).values():
            *body, last = completion.ids
            seen.add((last if last in (EOS, 9) else None, len(completion.ids) == 6, completion.truncated))
            body += [last] * completion.truncated
            assert not {EOS, 9} & {*body} and completion.text.split() == gen.tokenizer.convert_ids_to_tokens(body)
        assert seen == {(None, True, True), *((end, full, False) for end in (EOS, 9) for full in (True, False))}
