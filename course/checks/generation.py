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


def sample_from_the_left(log_pi, uniforms):
    """take the first token whose running sum is at least u (not above it): u = 0 takes a token of probability 0."""
    return torch.searchsorted(_cdf(log_pi), uniforms[:, None]).squeeze(-1)


def sample_the_likeliest(log_pi, uniforms):
    """take the most probable token: nothing is explored, and every group has zero variance."""
    return log_pi.argmax(-1)


def sample_without_running_sum(log_pi, uniforms):
    """compare u with the probabilities instead of their running sum."""
    return (log_pi.double().exp() <= uniforms[:, None]).sum(-1).clamp(max=log_pi.shape[-1] - 1)


def sample_a_rank(log_pi, uniforms):
    """sort the tokens by probability first and return the rank instead of the id."""
    ranked = _cdf(log_pi.sort(-1, descending=True).values)
    return torch.searchsorted(ranked, uniforms[:, None], right=True).squeeze(-1)


def probabilities(rng, _):
    """Seven probabilities, the first 0; and u = 0, then one u inside the interval of some other tokens."""
    weights = [rng.uniform(0.05, 1.0) for _ in range(6)]
    pi = [0.0, *(weight / sum(weights) for weight in weights)]
    inside = [sum(pi[:token]) + rng.uniform(0.1, 0.9) * pi[token] for token in rng.choices(range(1, 7), k=6)]
    return pi, [0.0, *inside]


# Running sums 0, 1/4, 3/4, 1: u = 0 and 0.2 lie in token 1, 0.6 in 2, 0.8 in 3.
GENERATION.write(
    name="sample",
    where="rollout.py:sample",
    paper="Sec. 2",
    minutes=15,
    teaches="Sampling is a search in a running sum; its edges decide whether impossible tokens are possible.",
    hints=(
        "y_t at the top of rollout.py.",
        "u may be exactly 0, and the last running sum a little below 1.",
        "Running sum of the probabilities in float64, then the first place where it is strictly above u.",
    ),
    says="sample: the first token whose running sum exceeds u",
    probe=drawn,
    inputs=([0.0, 0.25, 0.5, 0.25], [0.0, 0.2, 0.6, 0.8]),
    expected=[1, 1, 2, 3],
    mistakes=(sample_from_the_left, sample_the_likeliest, sample_without_running_sum, sample_a_rank),
    draw=probabilities,
)


# --- ends ------------------------------------------------------------------------------------------------------------


def ended(ends, token, count, eos, budget):
    """(n,) bool: the rows that end, in a generator with these end tokens and this budget."""
    slots = SimpleNamespace(count=torch.tensor(count + [0]))
    generator = SimpleNamespace(_slots=slots, _eos=torch.tensor(eos), max_new_tokens=budget, eos_ids=eos)
    generator._rows = torch.arange(len(count) + 1)
    generator.slots = len(count) + 1
    return ends(generator, torch.tensor(token), len(token))


def ends_one_too_late(self, token, n):
    """let a completion have one token more than its budget."""
    return (token[:, None] == self._eos).any(-1) | (self._slots.count[:n] > self.max_new_tokens)


def ends_at_the_first_kind(self, token, n):
    """look for one end token only: completions that end with another one run on to the budget."""
    return (token == self._eos[0]) | (self._slots.count[:n] >= self.max_new_tokens)


def ends_at_the_budget_only(self, token, n):
    """ignore the end token: every completion is as long as the budget."""
    return self._slots.count[:n] >= self.max_new_tokens


def ends_by_itself_only(self, token, n):
    """forget the budget: a completion that never ends keeps its slot for ever."""
    return (token[:, None] == self._eos).any(-1)


# An ordinary token; each of the two end tokens; then 4 tokens (the whole budget), 3 (one left), 5 (one too many).
GENERATION.write(
    name="ends",
    where="rollout.py:TorchGenerator._ends",
    paper="Sec. 2",
    minutes=10,
    teaches="A completion ends by itself or by its budget, and the two are not the same for the reward.",
    hints=(
        "Sec. 2; A.15 on truncation.",
        "A model may have several end tokens. `count` already includes the new token.",
        "True where the token is any of the end tokens, or the count has reached the budget.",
    ),
    says="ends: at any of the end tokens, or when the budget of 4 tokens is used up",
    probe=ended,
    inputs=([7, 1, 2, 7, 7, 7], [1, 2, 3, 4, 3, 5], [1, 2], 4),
    expected=[False, True, True, True, False, True],
    mistakes=(ends_one_too_late, ends_at_the_first_kind, ends_at_the_budget_only, ends_by_itself_only),
    draw=lambda rng, _: (rng.choices([7, 1, 2, 9], k=9), [rng.randint(3, 7) for _ in range(9)], [1, 2], 5),
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
    paper="Sec. 3.1",
    minutes=20,
    teaches="Half-finished completions go on with stale keys and values; new ones must not start on them.",
    hints=(
        "Sec. 3.1 on stale caches; New weights at the top of rollout.py.",
        "A prompt is run once for all completions of its group, some of which start later.",
        "Who waits in a queue when the weights change?",
    ),
    says="update_weights: the version is the new one, and every waiting prompt loses its keys and values",
    probe=prompts_kept,
    inputs=(4, 1, 2),
    expected=[4, 0, 0, 0],
    draw=lambda rng, _: (rng.randint(2, 99), rng.randint(1, 4), rng.randint(1, 4)),
    bug=("for sequence in (*self._queue, *self._evaluations):", "for sequence in self._queue:"),
    symptom="Validation pass rates lag behind: they look like those of the previous weights.",
)


# --- forced ----------------------------------------------------------------------------------------------------------


def interruption(choose, pi, start, count, phrase):
    """(3, rows): tokens, log-probs and flags of rows before, in and behind an interruption that begins at `start`."""
    rows = len(count)
    slots = SimpleNamespace(
        count=torch.tensor(count),
        key=torch.arange(rows),
        interrupt_at=torch.full((rows,), start),
        mask=torch.ones(rows, 20, dtype=torch.bool),
        tokens=torch.ones(rows, 20, dtype=torch.int64),
    )
    generator = SimpleNamespace(
        _slots=slots,
        temperature=0.0,
        think_budget=(start, start),
        _phrase=torch.tensor(phrase),
        _rows=torch.arange(rows),
        _thinks=lambda ids: True,
    )
    token, logprob = choose(generator, torch.tensor([pi] * rows).log(), rows)
    flags = slots.mask[torch.arange(rows), slots.count]
    return torch.stack([token.double(), logprob.double(), flags.double()])


def interruptions(rng, _):
    """Five probabilities, the start, lengths around it in any order, a phrase of two to four tokens."""
    weights = rng.sample((1.0, 2.0, 3.0, 5.0, 8.0), 5)
    start = rng.randint(3, 9)
    phrase = [rng.randint(0, 4) for _ in range(rng.randint(2, 4))]
    return [weight / 19 for weight in weights], start, rng.sample(range(start - 2, start + 6), 8), phrase


# The policy would take token 1 (probability 1/2). At lengths 4 and 5 the phrase 0, 3 is forced: log-prob 0, flag 0.
GENERATION.bug(
    name="forced",
    where="rollout.py:TorchGenerator._choose",
    paper="A.10",
    minutes=15,
    teaches="What the policy did not choose must not be learned from.",
    hints=(
        "A.10; what is open in the paper stands at the top of rollout.py.",
        "Three things are kept per token: its id, its log-prob, and whether the policy sampled it.",
        "Follow `forced` to each of the three.",
    ),
    says="interruption: forced tokens are those of the phrase, with log-prob 0 and the flag False; all others are the "
    "policy's",
    probe=interruption,
    inputs=([0.25, 0.5, 0.125, 0.125], 4, [3, 4, 5, 6], [0, 3]),
    expected=[[1.0, 0.0, 3.0, 1.0], [-0.6931472, 0.0, 0.0, -0.6931472], [1.0, 0.0, 0.0, 1.0]],
    draw=interruptions,
    bug=("slots.mask[self._rows[:n], count] = ~forced", "slots.mask[self._rows[:n], count] = True"),
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


def some_requests(rng, _):
    """A seed and seven requests of one number, the first two and others alike."""
    kinds = [(True, 0, number := rng.randint(0, 99)), (False, 0, number), (True, rng.randint(1, 9), number)]
    return rng.randint(0, 99), kinds[:2] + rng.choices(kinds, k=5)


# An evaluation at version 0, training, the same request of training once more, an evaluation at version 3.
GENERATION.bug(
    name="streams",
    where="rollout.py:completion_keys",
    paper="Sec. 2.1",
    minutes=15,
    teaches="A validation set is only independent if its random numbers are.",
    hints=(
        "The docstring of completion_keys.",
        "Versions count from 0.",
        "Which streams do evaluations get, and which one training?",
    ),
    says="streams: no evaluation shares random numbers with training or another one; the same request always does",
    probe=streams,
    inputs=(1, [(True, 0, 5), (False, 0, 5), (False, 0, 5), (True, 3, 5)]),
    expected=[False, False, True] + [False] * 3,
    draw=some_requests,
    bug=("request.version + 1 if request.evaluation else 0", "request.version if request.evaluation else 0"),
    symptom="The evaluation before the first step uses the very random numbers of training; later ones do not.",
)


# --- phrase ----------------------------------------------------------------------------------------------------------


def phrase_trained():
    """count the injected phrase as sampled by the policy: it carries no loss."""
    return 102, 102


def phrase_free():
    """let the phrase cost nothing: it carries no loss, but it uses up the token budget."""
    return 85, 85


def phrase_ends_the_loss():
    """stop at the interruption: the policy samples the answer after it, so the answer carries a loss."""
    return 80, 102


GENERATION.predict(
    name="phrase",
    paper="A.10",
    minutes=5,
    teaches="An interruption costs budget and teaches nothing.",
    hints=(
        "A.10.",
        "Two different counts are asked for.",
        "The policy sampled the thinking and the answer; the budget paid for everything.",
    ),
    says="of a completion of 80 tokens, 17 injected and 5 more: tokens with a loss, tokens of the budget",
    mistakes=(phrase_trained, phrase_free, phrase_ends_the_loss),
)
