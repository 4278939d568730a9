"""Chapters 2 and 3: ratio and losses; advantages, filters, averages (Eq. 2 to 8, Sec. 3.2). Claims and exercises.

Wrong answers: losses_wrong.py. Inputs are small enough for mental arithmetic, which the comment above each shows.
Test: pytest tests/test_exercises.py
"""

import math
from typing import NamedTuple

import torch

from course.checker import Exercise
from course.checks import losses_wrong as wrong
from course.checks.claims import Claim

NAN, INF = float("nan"), float("inf")
LN2 = math.log(2)
CLIP = {"eps_low": 0.25, "eps_high": 0.75}


def inputs(pi_train, pi_gen, advantages, sampled):
    """Probabilities and strings of 0 and 1 -> logprobs, gen_logprobs (B, T) nats, advantages (B,), mask (B, T) bool."""
    mask = torch.tensor([[flag == "1" for flag in row] for row in sampled])
    return torch.tensor(pi_train).log(), torch.tensor(pi_gen).log(), torch.tensor(advantages), mask


def gradient(objective, logprobs, *rest, **eps):
    """d(sum of the objective) / d logprobs, (B, T)."""
    logprobs = logprobs.clone().requires_grad_()
    objective(logprobs, *rest, **eps).sum().backward()
    return logprobs.grad


# --- Eq. 2 and 4 -----------------------------------------------------------------------------------------------------

# Both signs of the advantage; ratios 2, 8 and 1/2, 8, 1 lie on both sides of 1 and of the cap 4. The first completion's
# third token is injected (finite, but not sampled); the last column is padding: logprobs nan, gen_logprobs -inf.
CISPO_INPUT = inputs(
    [[1 / 2, 1 / 2, 1 / 4, NAN], [1 / 4, 1 / 2, 1 / 4, NAN]],
    [[1 / 4, 1 / 16, 1.0, 0.0], [1 / 2, 1 / 16, 1 / 4, 0.0]],
    [1.0, -2.0],
    ["1100", "1110"],
)
CISPO_MISTAKES = (
    wrong.cispo_cap_is_one_plus_eps,
    wrong.cispo_cap_below_one,
    wrong.cispo_ratio_recomputed,
    wrong.cispo_ratio_inverted,
    wrong.cispo_min_after_the_advantage,
    wrong.cispo_drops_capped_tokens,
    wrong.cispo_to_be_minimised,
    wrong.cispo_injected_tokens_counted,
    wrong.cispo_mask_multiplied,
)


def ratio_of_tokens(ratio, logprobs, gen_logprobs, _, mask):
    return ratio(logprobs, gen_logprobs, mask)


def ratio_and_gradient(ratio, logprobs, gen_logprobs, _, mask):
    """The ratio; where the mask is False plus its gradient, if it carries one."""
    logprobs = logprobs.clone().requires_grad_()
    found = ratio(logprobs, gen_logprobs, mask)
    if found.requires_grad:
        found.sum().backward()
        return found + logprobs.grad.masked_fill(mask, 0.0)
    return found


def value_with_cap(objective, *batch):
    return objective(*batch, eps_max=4.0)


def gradient_with_cap(objective, *batch):
    return gradient(objective, *batch, eps_max=4.0)


# exp(ln 1/2 - ln 1/4) = 2, (1/2) / (1/16) = 8 and so on; 1, the ratio of equal policies, where the mask is False.
RATIO = Claim(
    "ratio: pi_train over pi_gen, and 1, with the gradient 0, where nothing was sampled",
    ratio_and_gradient, CISPO_INPUT,
    [[2.0, 8.0, 1.0, 1.0], [0.5, 8.0, 1.0, 1.0]],
    (wrong.ratio_inverted, wrong.ratio_recomputed, wrong.ratio_of_logarithms, wrong.ratio_without_mask,
     wrong.ratio_zero_outside_the_mask, wrong.ratio_masked_too_late),
)  # fmt: skip
# Capped at 4 the ratios are 2, 4, times +1, and 1/2, 4, 1, times -2: that is the weight of log pi_train.
CISPO_GRADIENT = Claim(
    "cispo_gradient: the capped ratio times the advantage",
    gradient_with_cap, CISPO_INPUT,
    [[2.0, 4.0, 0.0, 0.0], [-1.0, -8.0, -2.0, 0.0]],
    (wrong.cispo_without_stop_gradient, *CISPO_MISTAKES),
)  # fmt: skip
# The weights above times log 1/2 = -ln 2 and log 1/4 = -2 ln 2.
CISPO_VALUE = Claim(
    "cispo: the capped ratio times the advantage times log pi_train",
    value_with_cap, CISPO_INPUT,
    [[-2 * LN2, -4 * LN2, 0.0, 0.0], [2 * LN2, 8 * LN2, 4 * LN2, 0.0]],
    CISPO_MISTAKES,
)  # fmt: skip

# --- Eq. 3, 7, 8 and GSPO --------------------------------------------------------------------------------------------

# Ratios 2, 1, 1/2 and padding, once with a positive and once with a negative advantage; the clip is [3/4, 7/4].
CLIP_INPUT = inputs(
    [[1 / 2, 1 / 2, 1 / 2, NAN], [1 / 2, 1 / 2, 1 / 2, NAN]],
    [[1 / 4, 1 / 2, 1.0, 0.0], [1 / 4, 1 / 2, 1.0, 0.0]],
    [1.0, -2.0],
    ["1110", "1110"],
)
CLIP_MISTAKES = (
    wrong.dapo_max_for_negative_advantages,
    wrong.dapo_without_min,
    wrong.dapo_half_widths_swapped,
    wrong.dapo_ratio_recomputed,
    wrong.dapo_ratio_inverted,
)
# For exercises on the clip alone, which is given the ratio and so cannot get the ratio wrong.
RATIO_MISTAKES = (wrong.clip_max_for_negative_advantages, wrong.clip_without_min, wrong.clip_half_widths_swapped)


def value_with_clip(objective, *batch):
    return objective(*batch, eps_low=0.25, eps_high=0.75)


def gradient_with_clip(objective, *batch):
    return gradient(objective, *batch, eps_low=0.25, eps_high=0.75)


def clip_of_ratio(clip, logprobs, gen_logprobs, advantages, mask):
    return clip((logprobs - gen_logprobs).masked_fill(~mask, 0.0).exp(), advantages, mask, 0.25, 0.75)


def gradient_of_clip(clip, logprobs, gen_logprobs, advantages, mask):
    logprobs = logprobs.clone().requires_grad_()
    clip_of_ratio(clip, logprobs, gen_logprobs, advantages, mask).sum().backward()
    return logprobs.grad


# A = +1: min(2, 7/4), min(1, 1), min(1/2, 3/4).  A = -2: min(-4, -7/2), min(-2, -2), min(-1, -3/2).
CLIPPED = [[1.75, 1.0, 0.5, 0.0], [-4.0, -2.0, -1.5, 0.0]]
# d ratio / d log pi_train = ratio: so ratio times advantage, and 0 in the two places where the clipped term is smaller.
CLIPPED_GRADIENT = [[0.0, 1.0, 0.5, 0.0], [-4.0, -2.0, 0.0, 0.0]]
DAPO_VALUE = Claim(
    "dapo: the smaller of ratio and clipped ratio times the advantage, for both signs",
    value_with_clip, CLIP_INPUT, CLIPPED, (wrong.dapo_upper_half_width_ignored, *CLIP_MISTAKES),
)  # fmt: skip
DAPO_GRADIENT = Claim(
    "dapo_gradient: ratio times the advantage, and 0 where the clip acts",
    gradient_with_clip, CLIP_INPUT, CLIPPED_GRADIENT, CLIP_MISTAKES,
)  # fmt: skip
CLIP_VALUE = Claim(
    "clip: the smaller of ratio and clipped ratio times the advantage, for both signs",
    clip_of_ratio, CLIP_INPUT, CLIPPED, (wrong.clip_upper_half_width_ignored, *RATIO_MISTAKES),
)  # fmt: skip
CLIP_GRADIENT = Claim(
    "clip_gradient: ratio times the advantage, and 0 where the clip acts",
    gradient_of_clip, CLIP_INPUT, CLIPPED_GRADIENT, RATIO_MISTAKES,
)  # fmt: skip

# Token ratios 4 and 1, or 1/4 and 1, with an injected token between: geometric means 2 and 1/2; clip [3/4, 7/4].
GSPO_INPUT = inputs(
    [[1 / 2, 1 / 4, 1 / 2, NAN]] * 2 + [[1 / 8, 1 / 4, 1 / 2, NAN]] * 2,
    [[1 / 8, 1.0, 1 / 2, 0.0]] * 2 + [[1 / 2, 1.0, 1 / 2, 0.0]] * 2,
    [1.0, -2.0, 1.0, -2.0],
    ["1010"] * 4,
)
# min(2, 7/4), min(-4, -7/2), min(1/2, 3/4), min(-1, -3/2), each on both sampled tokens.
GSPO_VALUE = Claim(
    "gspo: the clipped geometric mean of the token ratios times the advantage, on every sampled token",
    value_with_clip, GSPO_INPUT,
    [[1.75, 0.0, 1.75, 0.0], [-4.0, 0.0, -4.0, 0.0], [0.5, 0.0, 0.5, 0.0], [-1.5, 0.0, -1.5, 0.0]],
    (wrong.gspo_without_length_normalisation, wrong.gspo_arithmetic_mean, wrong.gspo_injected_tokens_in_the_length),
)  # fmt: skip
# sqrt(4 * 1) = 2, sqrt(1/4 * 1) = 1/2; the last completion is truncated, so its mask is False everywhere.
SEQUENCE_RATIO = Claim(
    "sequence_ratio: the geometric mean over the sampled tokens, and 1 where there are none",
    ratio_of_tokens, inputs(
        [[1 / 2, 1 / 4, 1 / 2, NAN], [1 / 8, 1 / 4, 1 / 2, NAN], [1 / 2, 1 / 4, 1 / 2, NAN]],
        [[1 / 8, 1.0, 1 / 2, 0.0], [1 / 2, 1.0, 1 / 2, 0.0], [1 / 8, 1.0, 1 / 2, 0.0]],
        [1.0, 1.0, 1.0], ["1010", "1010", "0000"]),
    [[2.0], [0.5], [1.0]],
    (wrong.sequence_ratio_without_root, wrong.sequence_ratio_arithmetic, wrong.sequence_ratio_over_the_whole_width,
     wrong.sequence_ratio_inverted),
)  # fmt: skip


def capped_tokens(clipped, *batch):
    """What clipped() says, (B, T) bool, of CISPO with a cap at 4."""
    return clipped("cispo", *batch, eps_max=4.0)


def ratios_around_the_cap(rng, _):
    """Three completions of four tokens with ratios on both sides of the cap 4, in any order; then padding."""
    ratios = [[rng.choice((0.5, 1.0, 3.0, 5.0, 8.0)) * rng.uniform(0.9, 1.1) for _ in range(4)] for _ in range(3)]
    gen = [[rng.uniform(0.05, 0.1) for _ in row] + [0.0] for row in ratios]
    train = [[a * b for a, b in zip(*rows)] + [NAN] for rows in zip(ratios, gen)]
    return inputs(train, gen, rng.sample([1.0, -2.0, 0.5], 3), ["11110", "11010", "11110"])


# The two ratios of 8 exceed the cap, one under a positive and one under a negative advantage.
CAPPED = Claim(
    "clipped: tokens that the cap changes, whatever the sign of the advantage",
    capped_tokens, CISPO_INPUT, [[False, True, False, False], [False, True, False, False]],
    (wrong.clipped_of_bad_completions_only,), draw=ratios_around_the_cap,
)  # fmt: skip


# --- Advantages, Sec. 2 and 3.2, Eq. 5 -------------------------------------------------------------------------------


def of_rewards(function, rewards):
    return function(rewards)


def normalised(normalise, advantages):
    return torch.stack([normalise(advantages, how) for how in ("batch", "prompt", "none")])


# Means (1 - 1 + 1 - 1) / 4 = 0 and (1 - 1 - 1 - 1) / 4 = -1/2.
BASELINE = Claim(
    "baseline: rewards minus the mean of their own prompt",
    of_rewards, (torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, -1.0, -1.0, -1.0]]),),
    [[1.0, -1.0, 1.0, -1.0], [1.5, -0.5, -0.5, -0.5]],
    (wrong.baseline_of_the_batch, wrong.baseline_leave_one_out, wrong.baseline_subtracts_the_rewards,
     wrong.baseline_over_the_wrong_axis),
)  # fmt: skip
# Means 0, 2, 3, so advantages +-1, 0 and 0 (dropped), +-7; std of the four kept: sqrt((1 + 1 + 49 + 49) / 4) = 5.
BATCH_ADVANTAGES = Claim(
    "batch_advantages: divided by the std of the kept advantages, 5",
    of_rewards, (torch.tensor([[1.0, -1.0], [2.0, 2.0], [10.0, -4.0]]),),
    [[0.2, -0.2], [1.4, -1.4]],
    (
        wrong.advantages_over_std_of_rewards,
        wrong.advantages_normalised_before_the_filter,
        wrong.advantages_over_sample_std,
        wrong.advantages_over_group_std,
        wrong.advantages_from_the_batch_mean,
    ),
)  # fmt: skip
# batch: std sqrt((1 + 1 + 49 + 49 + 0 + 0) / 6) = sqrt(50 / 3); prompt: std 1, 7, 0; none: as they are.
BATCH_STD = math.sqrt(50 / 3)
NORMALISED = Claim(
    "normalise: over the std of the batch, of each prompt, or not at all; equal rewards stay 0",
    normalised, (torch.tensor([[1.0, -1.0], [7.0, -7.0], [0.0, 0.0]]),),
    [[[1 / BATCH_STD, -1 / BATCH_STD], [7 / BATCH_STD, -7 / BATCH_STD], [0.0, 0.0]],
     [[1.0, -1.0], [1.0, -1.0], [0.0, 0.0]], [[1.0, -1.0], [7.0, -7.0], [0.0, 0.0]]],
    (wrong.normalise_sample_std, wrong.normalise_without_epsilon, wrong.normalise_variance,
     wrong.normalise_batch_as_prompt, wrong.normalise_by_the_largest),
)  # fmt: skip


def one_by_one(nonzero_variance, rewards):
    """The filter (P,) bool, with each prompt given as a batch of its own."""
    return torch.cat([nonzero_variance(rewards[prompt, None]) for prompt in range(len(rewards))])


def groups_of_eight(rng, _):
    """Nine prompts in any order, some with equal rewards."""
    equal = [[reward] * 8 for reward in rng.sample((0.7, 0.1, 1.0, -1.0, 0.3, 0.9), rng.randint(3, 6))]
    varied = [rng.sample([1.0, -1.0, 0.7, 0.7] * 2, 8) for _ in range(9 - len(equal))]
    groups = [[0.7] * 8, *equal, *varied]
    return (torch.tensor(rng.sample(groups, 9)),)


# In fp32 the mean of eight rewards of 0.7 is not 0.7, so that a std comes out above 0 though all rewards are equal.
VARIED = Claim(
    "zero_variance: only prompts whose rewards differ are kept, also where the mean is rounded",
    one_by_one, (torch.tensor([[0.7] * 8, [0.7] * 7 + [-1.0], [-1.0] * 8, [0.5] * 8]),), [False, True, False, False],
    (wrong.filter_keeps_solved_prompts, wrong.filter_keeps_what_has_a_std),
    draw=groups_of_eight,
)  # fmt: skip


class Graded(NamedTuple):
    """The fields of pipeline.Header that weigh reads."""

    reward: float
    correct: bool | None


def headers(rewards, unverified):
    """Groups of headers, correct where the reward is above 0; if `unverified`, the last prompt's verifier failed."""
    groups = [[Graded(r, r > 0) for r in group] for group in rewards.tolist()]
    return groups[:-1] + [[Graded(r, None) for r in rewards[-1].tolist()]] if unverified else groups


def kept_prompts(weigh, rewards, unverified):
    return weigh(headers(rewards, unverified), zero_variance_filter=True, normalisation="none")[0]


def shaped_rewards(rng, _):
    """Seven prompts in any order: solved with a length penalty, or solved by one of two; the last has no verdict."""
    kinds = [[1.0, rng.uniform(0.1, 0.9)], [1.0, -1.0], [rng.uniform(0.1, 0.9), -1.0], [-1.0, -1.0]]
    return torch.tensor([*(rng.choice(kinds) for _ in range(6)), [1.0, -1.0]]), True


# Prompt 0: both answers right, one with a length penalty, so its correctness has no variance. Prompt 2: no verdict.
SHAPED = Claim(
    "weigh: the filter looks at correctness, not at a shaped reward, and drops a group whose verifier failed",
    kept_prompts, (torch.tensor([[1.0, 0.5], [1.0, -1.0], [1.0, -1.0]]), True), [False, True, False],
    (wrong.weigh_by_the_shaped_reward,),
    draw=shaped_rewards,
)  # fmt: skip


# --- Averages, Sec. 3.2 ----------------------------------------------------------------------------------------------


class Counts(NamedTuple):
    """The fields of loss.Denominators, written once more so that nothing of loss.py is used here."""

    completions: int
    prompts: int
    tokens: int
    tokens_per_prompt: torch.Tensor


# Two prompts of two completions, with 2 and 5 sampled tokens; the third completion has an injected token inside.
OBJECTIVE = torch.tensor([[4.0, NAN, NAN], [8.0, NAN, NAN], [1.0, NAN, 3.0], [2.0, -1.0, 2.0]])
MASK = OBJECTIVE.isfinite()
PROMPT_INDEX = torch.tensor([0, 0, 1, 1])
WHOLE = Counts(completions=4, prompts=2, tokens=7, tokens_per_prompt=torch.tensor([2, 5]))


def prompt_average(aggregate, objective, mask, prompt_index, whole):
    return aggregate(objective, mask, prompt_index, "prompt", Counts(*whole))


def other_averages(aggregate, objective, mask, prompt_index, whole):
    """The sample and the token average, each with the share of a dummy: a micro-batch without any sampled token."""
    batches = (objective, mask, prompt_index), (objective[:1], mask[:1] & False, prompt_index[:1])
    return [sum(float(aggregate(*batch, how, Counts(*whole))) for batch in batches) for how in ("sample", "token")]


def micro_batches(aggregate, objective, mask, prompt_index, whole):
    """The prompt average from two micro-batches and a dummy."""
    parts = [(objective[rows], mask[rows], prompt_index[rows]) for rows in ([0, 1, 2], [3])]
    dummy = objective[:1], mask[:1] & False, prompt_index[:1]
    return sum(float(aggregate(*part, "prompt", Counts(*whole))) for part in (*parts, dummy))


BATCH = OBJECTIVE, MASK, PROMPT_INDEX
# (12 / 2 + 7 / 5) / 2 = 3.7
PROMPT_AVERAGE = Claim(
    "prompt_average: every prompt has weight 1/2, whatever its length",
    prompt_average, (*BATCH, tuple(WHOLE)), 3.7,
    (
        wrong.average_over_tokens,
        wrong.average_over_completions,
        wrong.average_with_injected_tokens_in_the_length,
        wrong.average_divided_by_generations,
    ),
)  # fmt: skip
# (4 + 8 + (1 + 3) / 2 + (2 - 1 + 2) / 3) / 4 = 15 / 4; (4 + 8 + 1 + 3 + 2 - 1 + 2) / 7 = 19 / 7
AVERAGES = Claim(
    "averages: sample gives every completion the same weight, token every token; a dummy without tokens adds 0",
    other_averages, (*BATCH, tuple(WHOLE)), [15 / 4, 19 / 7],
    (wrong.aggregate_always_prompt, wrong.aggregate_names_swapped, wrong.aggregate_without_dummies),
)  # fmt: skip
# The second prompt is split between the micro-batches: (12 / 2 + 4 / 5) / 2 + (0 + 3 / 5) / 2 = 3.4 + 0.3
MICRO_BATCHES = Claim(
    "micro_batches: their shares add up to the prompt average of the whole batch",
    micro_batches, (*BATCH, tuple(WHOLE)), 3.7, (wrong.aggregate_with_micro_batch_denominators,),
)  # fmt: skip


def counted(count, lengths, prompt_index):
    return torch.tensor(count(lengths, prompt_index)[:3])


def counted_per_prompt(count, lengths, prompt_index):
    return count(lengths, prompt_index)[3]


def lengths_and_prompts(rng, _):
    """Lengths, prompt_index of four to seven prompts of two completions, some filtered or truncated."""
    prompts = [[rng.randint(2, 99), rng.randint(0, 1) * rng.randint(2, 99)] for _ in range(rng.randint(3, 6))]
    lengths = sum([*prompts[:1], [0, 0], *prompts[1:]], [])
    return torch.tensor(lengths), torch.arange(len(lengths)) // 2


# Prompt 1 was filtered, completion 5 truncated; left are completions 0, 1, 4, 6, 7, prompts 0, 2, 3 and
# 3 + 2 + 4 + 1 + 1 tokens.
LENGTHS = torch.tensor([3, 2, 0, 0, 4, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
DENOMINATORS = Claim(
    "denominators: completions, prompts, tokens that carry a loss",
    counted, LENGTHS, [5, 3, 11],
    (wrong.denominators_with_filtered_prompts, wrong.denominators_with_truncated_completions,
     wrong.denominators_of_completions_as_prompts),
    draw=lengths_and_prompts,
)  # fmt: skip
TOKENS_PER_PROMPT = Claim(
    "tokens_per_prompt: the sum of the lengths at each prompt's index, 0 where nothing is left",
    counted_per_prompt, LENGTHS, [5, 0, 4, 2], (wrong.denominators_of_kept_prompts_only,), draw=lengths_and_prompts,
)  # fmt: skip


# --- Predictions -----------------------------------------------------------------------------------------------------


def numbers(answer):
    """A prediction, one number or several, as floats."""
    value = answer()
    value = value.tolist() if hasattr(value, "tolist") else value
    return [float(x) for x in value] if isinstance(value, (tuple, list)) else float(value)


WEIGHTS = Claim(
    "weights: d objective / d log pi_train of a token 8 times as likely as when sampled: (CISPO, DAPO) for A = +1, "
    "then A = -1",
    numbers, (), None, (wrong.weights_dapo_keeps_capped, wrong.weights_dapo_drops_both, wrong.weights_cispo_drops),
    atol=1e-3,
)  # fmt: skip
DROPPED = Claim(
    "dropped: the share of prompts without a gradient at pass rate 1/2 with 4 completions, and at 0.9 with 16",
    numbers, (), None, (wrong.dropped_all_right_only, wrong.dropped_pass_rate, wrong.dropped_is_kept), atol=1e-3,
)  # fmt: skip


# --- The exercises ---------------------------------------------------------------------------------------------------

LOSSES = (
    Exercise(
        "ratio",
        "write",
        "loss.py:importance_ratio",
        "Eq. 2",
        10,
        "The importance ratio compares the policy that trains with the policy that sampled, token by token.",
        (
            "Eq. 2; the module docstring names both log-probabilities.",
            "Padding holds nan and -inf. What happens to a sum over tokens if one position is nan?",
            "A ratio of probabilities is the exponential of a difference of logarithms. A helper in the same file "
            "takes that difference and leaves 0 where the mask is False.",
        ),
        (RATIO,),
    ),
    Exercise(
        "cispo",
        "write",
        "loss.py:cispo",
        "Eq. 4",
        25,
        "CISPO caps the weight of a token and never takes its gradient away.",
        (
            "Eq. 4 and the symbols at the top of loss.py; sg is a stop-gradient.",
            "The cap is on the ratio itself, and the ratio must not carry a gradient of its own. Masked positions may "
            "hold nan: fill them before any product.",
            "Ratio, capped from above, detached; times the advantage; times log pi_train; 0 outside the mask.",
        ),
        (CISPO_GRADIENT, CISPO_VALUE),
    ),
    Exercise(
        "clip",
        "write",
        "loss.py:_clip",
        "Eq. 3, 7, 8",
        20,
        "The min of PPO's clip leaves one side open for each sign of the advantage.",
        (
            "Eq. 3; DAPO's two half-widths are in Eq. 8.",
            "What should happen to a bad token (negative advantage) that has become eight times likelier?",
            "Two candidates per token, ratio and bounded ratio, each times the advantage; the smaller one counts, for "
            "both signs; 0 outside the mask. Half-widths below 0 are refused.",
        ),
        (CLIP_VALUE, CLIP_GRADIENT),
    ),
    Exercise(
        "gspo",
        "write",
        "loss.py:sequence_ratio",
        "Sec. 3.2",
        15,
        "GSPO judges a completion by one ratio, the geometric mean of its tokens'.",
        (
            "Sec. 3.2, and the Deviation line at the top of loss.py.",
            "The length is that of the sampled tokens; a completion without any must not divide by 0.",
            "The geometric mean is the exponential of the mean logarithm. Keep the last dimension, for broadcasting.",
        ),
        (SEQUENCE_RATIO,),
    ),
    Exercise(
        "dapo-direction",
        "bug",
        "loss.py:dapo",
        "Eq. 8",
        15,
        "A ratio turned round still trains for a while, in the wrong direction.",
        (
            "Eq. 8 and Eq. 2.",
            "On-policy both directions give 1, so the first step looks right.",
            "Which policy stands above the line, which below?",
        ),
        (DAPO_VALUE, DAPO_GRADIENT),
        bug=(
            "return _clip(importance_ratio(logprobs, gen_logprobs, mask), advantages",
            "return _clip(importance_ratio(gen_logprobs, logprobs, mask), advantages",
        ),
        symptom="With --loss dapo the first optimizer step is right; after a few steps off-policy the reward falls.",
    ),
    Exercise(
        "clipped",
        "bug",
        "loss.py:clipped",
        "A.17",
        15,
        "What a log counts has to be what the objective does.",
        (
            "A.17; the docstring of clipped.",
            "For each loss and each sign of the advantage: which bound acts?",
            "A clip acts on one side, which the sign of the advantage decides. A cap does not ask for the sign.",
        ),
        (CAPPED,),
        bug=("return mask & (good | bad) & (ratio > eps_max)", "return mask & bad & (ratio > eps_max)"),
        symptom="The log's `clipped` is about half of what one expects: only bad completions seem to count.",
    ),
    Exercise(
        "weights",
        "predict",
        "answers.py:weights",
        "Eq. 3, 4",
        10,
        "Where DAPO drops a token CISPO keeps it with a capped weight; where DAPO keeps it, its weight has no cap.",
        (
            "Eq. 3 and 4.",
            "The min of Eq. 3 depends on the sign of the advantage.",
            "The weight is d objective / d log pi_train. Where the clip is the smaller it does not depend on pi_train.",
        ),
        (WEIGHTS,),
    ),
)
ADVANTAGES = (
    Exercise(
        "baseline",
        "write",
        "loss.py:group_advantages",
        "Sec. 2",
        5,
        "A completion is compared with the other completions of its own prompt.",
        (
            "Sec. 2; A_i at the top of loss.py.",
            "Rewards are (P, G): one row per prompt.",
            "Subtract from every reward the mean of its row, the reward itself included.",
        ),
        (BASELINE,),
    ),
    Exercise(
        "advantages",
        "write",
        "loss.py:normalise",
        "Eq. 5, Sec. 3.2",
        15,
        "Prompt, batch or no normalisation: who shares a std decides whether hard and easy prompts weigh alike.",
        (
            "Eq. 5; Sec. 3.2 compares the three; what is open in the paper stands at the top of loss.py.",
            "torch.std divides by n - 1 unless told otherwise, and a group of equal rewards has the std 0.",
            "Divide by a population std plus the module's epsilon; the std is of the row or of everything.",
        ),
        (NORMALISED,),
    ),
    Exercise(
        "zero-variance",
        "bug",
        "loss.py:nonzero_variance",
        "Sec. 3.2",
        10,
        "A std computed from a rounded mean cannot be compared with 0.",
        (
            "Sec. 3.2, zero-variance filtering.",
            "How is the mean of eight times 0.7 rounded in fp32?",
            "Whether numbers are equal can be asked without computing anything.",
        ),
        (VARIED,),
        bug=("return (rewards != rewards[:, :1]).any(-1)", "return rewards.std(-1) > 0"),
        symptom="With rewards of 0.7 the filter keeps prompts whose rewards are all equal; their advantages blow up.",
    ),
    Exercise(
        "shaped-filter",
        "bug",
        "loss.py:weigh",
        "Sec. 3.2",
        15,
        "Filters ask whether an answer was correct, never how it was rewarded.",
        (
            "Sec. 3.2, and Eq. 9 in Sec. A.10, A.15.",
            "With a length penalty two correct answers can have different rewards.",
            "Follow the two tensors made from the headers to where the prompts are chosen.",
        ),
        (SHAPED,),
        bug=("kept = judged & nonzero_variance(correct) if", "kept = judged & nonzero_variance(rewards) if"),
        symptom="With --length-control penalty hardly any prompt is filtered, though many are always solved.",
    ),
    Exercise(
        "denominators",
        "write",
        "loss.py:global_denominators",
        "Sec. 3.2",
        15,
        "An average needs to know what it divides by before the first micro-batch is there.",
        (
            "Sec. 3.2; A.6 on the effective batch.",
            "A completion of length 0 carries no loss; a prompt all of whose completions have length 0 is not counted.",
            "Add the lengths up at each prompt's index, then count what is above 0.",
        ),
        (DENOMINATORS, TOKENS_PER_PROMPT),
    ),
    Exercise(
        "aggregate",
        "write",
        "loss.py:aggregate",
        "Sec. 3.2, Eq. 3, 8",
        25,
        "Sample, prompt and token average differ in whether a long answer weighs more.",
        (
            "Sec. 3.2, loss aggregation.",
            "The denominators are those of the whole batch: shares of micro-batches are added, never averaged. "
            "Objective may be nan outside the mask.",
            "Each completion has one weight: 1 / (completions x its tokens), 1 / (prompts x its prompt's tokens) or "
            "1 / tokens; the result is the sum over completions of weight times sum over sampled tokens.",
        ),
        (PROMPT_AVERAGE, AVERAGES, MICRO_BATCHES),
    ),
    Exercise(
        "dropped",
        "predict",
        "answers.py:dropped",
        "Sec. 3.2",
        5,
        "The better the policy, the fewer prompts of a batch teach anything.",
        (
            "Sec. 3.2, zero-variance filtering and No-Positive-Resampling.",
            "All wrong has no gradient either.",
            "Independent answers, all of them right or all of them wrong.",
        ),
        (DROPPED,),
    ),
)
