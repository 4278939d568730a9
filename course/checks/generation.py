"""Chapter 5: generation (Sec. 2, 3.1, A.10). Claims, wrong answers, exercises. Test: pytest tests/test_exercises.py"""

from types import SimpleNamespace

import torch

from course.checks.claims import Chapter

GENERATION = Chapter()


# --- sample ----------------------------------------------------------------------------------------------------------


def drawn(sample, pi, u):
    log_pi = torch.tensor(pi).log().expand(len(u), -1).contiguous()
    return sample(log_pi, torch.tensor(u, dtype=torch.double)).long()


def _cdf(log_pi):
    return log_pi.double().exp().cumsum(-1)


def _above(cdf, uniforms):
    return torch.searchsorted(cdf, uniforms[:, None], right=True).squeeze(-1)


def sample_from_the_left(log_pi, uniforms):
    """take the first token whose running sum is at least u (not above it): u = 0 takes a token of probability 0."""
    return torch.searchsorted(_cdf(log_pi), uniforms[:, None]).squeeze(-1)


def sample_the_likeliest(log_pi, uniforms):
    """take the most probable token: nothing is explored, and every group has zero variance."""
    return log_pi.argmax(-1)


def sample_without_running_sum(log_pi, uniforms):
    """compare u with the probabilities instead of their running sum."""
    return (log_pi.double().exp() <= uniforms[:, None]).sum(-1).clamp(max=log_pi.shape[-1] - 1)


def sample_the_last_at_the_end(log_pi, uniforms):
    """take the last token where rounding keeps all sums below u: its probability may be 0."""
    return sample_past_the_end(log_pi, uniforms).clamp(max=log_pi.shape[-1] - 1)


def sample_past_the_end(log_pi, uniforms):
    """forget that rounding may keep the last running sum below u: then there is no such token."""
    return _above(_cdf(log_pi), uniforms)


def sample_none_is_the_first(log_pi, uniforms):
    """take the first True of a row that may have none: argmax of nothing but False is token 0."""
    return (_cdf(log_pi) > uniforms[:, None]).int().argmax(-1)


LARGEST = 1 - 2**-53  # that rollout.uniform gives


# Running sums 0, 1/4, 3/4, 0.9999, 0.9999: u = 0 lies in token 1, 0.6 in 2, 0.8 in 3; so does the largest u.
GENERATION.write(
    name="sample",
    where="rollout.py:sample",
    minutes=15,
    teaches="Sampling is a search in a running sum; its edges decide whether impossible tokens are possible.",
    hints=(
        "Sec. 2; y_t at the top of rollout.py.",
        "u may be exactly 0, and the last running sum a little below 1.",
        "Running sum of the probabilities in float64, then the first place where it is strictly above u.",
    ),
    says="the first token whose running sum exceeds u; if rounding keeps all below u, the last possible one",
    probe=drawn,
    inputs=([0.0, 0.25, 0.5, 0.2499, 0.0], [0.0, 0.6, 0.8, LARGEST]),
    expected=[1, 2, 3, 3],
    labels="u = 0, u = 0.6, u = 0.8, the largest u",
    mistakes=(
        sample_from_the_left,
        sample_the_likeliest,
        sample_without_running_sum,
        sample_past_the_end,
        sample_the_last_at_the_end,
        sample_none_is_the_first,
    ),
)


# --- turn ------------------------------------------------------------------------------------------------------------


def turned(turn, x, angles):
    """(n, heads, d): x, turned by these angles (n, d / 2)."""
    angles = torch.tensor(angles)[:, None].repeat(1, 1, 2)
    return turn(torch.tensor(x), angles.cos(), angles.sin())


def turn_neighbours(x, cos, sin):
    """take dimensions 2i and 2i + 1 for a pair: other weights than the model's were trained so."""
    other = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cos + other * sin


def turn_backwards(x, cos, sin):
    """turn the other way round: what a token attends to would depend on the distance in the wrong direction."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((second, -first), -1) * sin


def turn_without_sign(x, cos, sin):
    """forget the minus sign: vectors change their length with their position."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


# The pairs (1, 3) and (2, 4), turned by a right angle and by none: (-3, 1) and (2, 4).
GENERATION.write(
    name="turn",
    where="decoding.py:turn",
    minutes=15,
    teaches="Where a token stands is the angle by which its queries and keys are turned, so only distances count.",
    hints=(
        "Sec. 2; the equations at the top of decoding.py.",
        "Dimensions i and i + d / 2 are the two coordinates of one point.",
        "A point (a, b), turned by an angle: (a cos - b sin, b cos + a sin).",
    ),
    says="a right angle takes the pair (1, 3) to (-3, 1); no angle leaves (2, 4) as it is",
    probe=turned,
    inputs=([[[1.0, 2.0, 3.0, 4.0]]], [[1.5707963, 0.0]]),
    expected=[[[-3.0, 2.0, 1.0, 4.0]]],
    mistakes=(turn_neighbours, turn_backwards, turn_without_sign),
)


# --- stale-kv --------------------------------------------------------------------------------------------------------


def prompts_kept(update, version, training, evaluations):
    """[version, then per group (the first wait for training, the others for evaluation) whether its KV is kept]."""
    groups = [SimpleNamespace(prompt_kv=[n]) for n in range(training + evaluations)]
    sequences = [SimpleNamespace(group=group) for group in groups]
    generator = SimpleNamespace(version=version - 1, _queue=sequences[:training], _evaluations=sequences[training:])
    update(generator, version)
    return [generator.version, *(group.prompt_kv is not None for group in groups)]


GENERATION.bug(
    name="stale-kv",
    where="rollout.py:TorchGenerator.update_weights",
    minutes=20,
    teaches="Half-finished completions go on with stale keys and values; new ones must not start on them.",
    hints=(
        "Sec. 3.1 on stale caches; New weights at the top of rollout.py.",
        "A prompt is run once for all completions of its group, some of which start later.",
        "Who waits in a queue when the weights change?",
    ),
    says="the version is the new one, and every waiting prompt loses its keys and values",
    probe=prompts_kept,
    inputs=(4, 1, 2),
    expected=[4, 0, 0, 0],
    labels="version, kept by training, kept by an evaluation, kept by another one",
    bug=("for sequence in (*self._queue, *self._evaluations):", "for sequence in self._queue:"),
    symptom="Validation pass rates lag behind: they look like those of the previous weights.",
)


# --- forced ----------------------------------------------------------------------------------------------------------


def interruption(choose, start, counts, phrase):
    """Per count [token, flag, log-prob]: what follows so many tokens, if an interruption begins at `start`."""
    generator = SimpleNamespace(phrase_ids=phrase, version=0, think_budget=(start, start), _thinks=lambda ids: True)
    kept = []
    for count in counts:
        tokens = [(9, True, -1.0, 0)] * count
        sequence = SimpleNamespace(tokens=tokens, interrupt_at=start, ids=[9] * count)
        kept.append([float(value) for value in choose(generator, sequence, 1, -0.5)[:3]])
    return kept


# The policy takes token 1 with log-prob -0.5. Behind 4 and 5 tokens the phrase 0, 3 is forced: log-prob 0, flag 0.
GENERATION.bug(
    name="forced",
    where="rollout.py:TorchGenerator._choose",
    minutes=15,
    teaches="What the policy did not choose must not be learned from.",
    hints=(
        "A.10; what is open in the paper stands at the top of rollout.py.",
        "Three things are kept per token: its id, its log-prob, and whether the policy sampled it.",
        "Look at the entry of a forced token.",
    ),
    says="forced tokens are those of the phrase, with log-prob 0 and the flag False; all others are the policy's",
    probe=interruption,
    inputs=(4, [3, 4, 5, 6], [0, 3]),
    expected=[[1.0, 1.0, -0.5], [0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [1.0, 1.0, -0.5]],
    labels="after 3 tokens, after 4, after 5, after 6",
    bug=("self.phrase_ids[offset], False, 0.0", "self.phrase_ids[offset], True, 0.0"),
    symptom="After some hundred steps the policy writes the interruption phrase by itself, long before its time.",
)


# --- streams ---------------------------------------------------------------------------------------------------------


def streams(completion_keys, seed, requests):
    """For each pair of requests (evaluation, version, number): whether their two completions share random numbers."""
    keys = [
        completion_keys(seed, SimpleNamespace(evaluation=evaluation, version=version, number=number, generations=2))
        for evaluation, version, number in requests
    ]
    return [bool((a[:, None] == b).any()) for place, a in enumerate(keys) for b in keys[:place]]


# An evaluation at version 0, training, the same request of training once more, an evaluation at version 3.
GENERATION.bug(
    name="streams",
    where="rollout.py:completion_keys",
    minutes=15,
    teaches="A validation set is only independent if its random numbers are.",
    hints=(
        "Sec. 2.1; the docstring of completion_keys.",
        "Versions count from 0.",
        "Which streams do evaluations get, and which one training?",
    ),
    says="no evaluation shares random numbers with training or another one; the same request always does",
    probe=streams,
    inputs=(1, [(True, 0, 5), (False, 0, 5), (False, 0, 5), (True, 3, 5)]),
    expected=[False, False, True] + [False] * 3,
    bug=("request.version + 1 if request.evaluation else 0", "request.version if request.evaluation else 0"),
    symptom="The evaluation before the first step uses the very random numbers of training; later ones do not.",
)


# --- phrase ----------------------------------------------------------------------------------------------------------


GENERATION.predict(
    name="phrase",
    minutes=5,
    teaches="An interruption costs budget and teaches nothing.",
    hints=(
        "A.10.",
        "Two different counts are asked for.",
        "The policy sampled the thinking and the answer; the budget paid for everything.",
    ),
    says="of a completion of 80 tokens, 17 injected and 5 more: tokens with a loss, tokens of the budget",
    mistakes={
        "count the injected phrase as sampled by the policy: it carries no loss.": (102, 102),
        "let the phrase cost nothing: it carries no loss, but it uses up the token budget.": (85, 85),
        "stop at the interruption: the policy samples the answer after it, so the answer carries a loss.": (80, 102),
    },
    labels="with a loss, of the budget",
)
