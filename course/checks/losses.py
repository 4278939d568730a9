"""Chapters 2 and 3: ratio and losses; advantages, filters, averages (Eq. 2 to 8, Sec. 3.2). Claims and exercises.

Each exercise stands in one place: wrong answers, claims, then the exercise. Wrong answers share no code with loss.py.
Inputs are small enough for mental arithmetic, which the comment above each claim shows.

Arguments as in loss.py: logprobs, gen_logprobs, mask (B, T); advantages, lengths, prompt_index (B,); rewards (P, G).
Test: pytest tests/test_exercises.py
"""

import math
from types import SimpleNamespace

import torch

from course.checks.claims import Chapter, Claim

LOSSES = Chapter()
ADVANTAGES = Chapter()


# --- ratio -----------------------------------------------------------------------------------------------------------


def ratio_inverted(logprobs, gen_logprobs, mask):
    """divide pi_gen by pi_train instead of pi_train by pi_gen."""
    return _ratio(gen_logprobs, logprobs, mask)


def ratio_recomputed(logprobs, gen_logprobs, mask):
    """divide pi_train by itself: the ratio is 1 everywhere, as if nothing were ever off-policy."""
    return _ratio(logprobs, logprobs, mask)


def ratio_of_logarithms(logprobs, gen_logprobs, mask):
    """divide the logarithms instead of the probabilities."""
    return (logprobs / gen_logprobs).masked_fill(~mask, 1.0)


def ratio_without_mask(logprobs, gen_logprobs, mask):
    """leave out the mask: padding becomes nan, and injected tokens get a ratio other than 1."""
    return (logprobs - gen_logprobs).exp()


def ratio_zero_outside_the_mask(logprobs, gen_logprobs, mask):
    """fill with 0 after the exponential instead of before it: masked tokens get the ratio 0, not 1."""
    return _fill(_ratio(logprobs, gen_logprobs, mask), mask)


def ratio_masked_too_late(logprobs, gen_logprobs, mask):
    """apply the mask after the exponential: the value is right, but the gradient at a masked nan is 0 * nan = nan."""
    return torch.where(mask, (logprobs - gen_logprobs).exp(), 1.0)


# Right pieces that the wrong answers share, written once more so that nothing of loss.py is used
def _fill(values, mask):
    return values.masked_fill(~mask, 0.0)


def _ratio(numerator, denominator, mask):
    return (_fill(numerator, mask) - _fill(denominator, mask)).exp()


NAN, INF = float("nan"), float("inf")


def inputs(pi_train, pi_gen, advantages, sampled):
    """Probabilities and strings of 0 and 1 -> logprobs, gen_logprobs (B, T) nats, advantages (B,), mask (B, T) bool."""
    mask = torch.tensor([[flag == "1" for flag in row] for row in sampled])
    return torch.tensor(pi_train).log(), torch.tensor(pi_gen).log(), torch.tensor(advantages), mask


# Both signs of the advantage; ratios 2, 8 and 1/2, 8, 1 lie on both sides of 1 and of the cap 4. The first completion's
# third token is injected (finite, but not sampled); the last column is padding: logprobs nan, gen_logprobs -inf.
CISPO_INPUT = inputs(
    [[1 / 2, 1 / 2, 1 / 4, NAN], [1 / 4, 1 / 2, 1 / 4, NAN]],
    [[1 / 4, 1 / 16, 1.0, 0.0], [1 / 2, 1 / 16, 1 / 4, 0.0]],
    [1.0, -2.0],
    ["1100", "1110"],
)


def ratio_and_gradient(ratio, logprobs, gen_logprobs, _, mask):
    """The ratio; where the mask is False plus its gradient, if it carries one."""
    logprobs = logprobs.clone().requires_grad_()
    found = ratio(logprobs, gen_logprobs, mask)
    if found.requires_grad:
        found.sum().backward()
        return found + logprobs.grad.masked_fill(mask, 0.0)
    return found


# exp(ln 1/2 - ln 1/4) = 2, (1/2) / (1/16) = 8 and so on; 1, the ratio of equal policies, where the mask is False.
RATIO = Claim(
    says="pi_train over pi_gen, and 1, with the gradient 0, where nothing was sampled",
    probe=ratio_and_gradient,
    inputs=CISPO_INPUT,
    expected=[[2.0, 8.0, 1.0, 1.0], [0.5, 8.0, 1.0, 1.0]],
    mistakes=(
        ratio_inverted,
        ratio_recomputed,
        ratio_of_logarithms,
        ratio_without_mask,
        ratio_zero_outside_the_mask,
        ratio_masked_too_late,
    ),
)


LOSSES.write(
    name="ratio",
    where="loss.py:importance_ratio",
    paper="Eq. 2",
    minutes=10,
    teaches="The importance ratio compares the policy that trains with the policy that sampled, token by token.",
    hints=(
        "Eq. 2; the module docstring names both log-probabilities.",
        "Padding holds nan and -inf. What happens to a sum over tokens if one position is nan?",
        "A ratio of probabilities is the exponential of a difference of logarithms. A helper in the same file "
        "takes that difference and leaves 0 where the mask is False.",
    ),
    claims=(RATIO,),
)


# --- cispo -----------------------------------------------------------------------------------------------------------


def cispo_without_stop_gradient(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """let the gradient through the ratio, so a token's weight also depends on its own log-probability."""
    return _weighted_logprobs(_ratio(logprobs, gen_logprobs, mask).clamp(max=eps_max), logprobs, advantages, mask)


def cispo_cap_is_one_plus_eps(*batch, eps_max):
    """cap the ratio at 1 + eps_max instead of eps_max (the half-width of a clip, not a cap)."""
    return _capped(*batch, cap=1 + eps_max)


def cispo_cap_below_one(*batch, eps_max):
    """cap the ratio at 0.2 (the half-width of a clip, not a cap): on-policy tokens lose 4/5 of their weight."""
    return _capped(*batch, cap=0.2)


def cispo_ratio_recomputed(logprobs, gen_logprobs, *rest, eps_max):
    """recompute the old log-probs with the trainer: the ratio is 1 everywhere and the cap never acts."""
    return _capped(logprobs, logprobs, *rest, cap=eps_max)


def cispo_ratio_inverted(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """divide pi_gen by pi_train instead of pi_train by pi_gen."""
    ratio = _ratio(gen_logprobs, logprobs, mask).detach()
    return _weighted_logprobs(ratio.clamp(max=eps_max), logprobs, advantages, mask)


def cispo_min_after_the_advantage(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """multiply by the advantage before taking the min, as a clipped loss does: where A < 0 the cap becomes a floor."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    advantages = advantages[:, None]
    return _fill(torch.minimum(ratio * advantages, eps_max * advantages) * _fill(logprobs, mask), mask)


def cispo_drops_capped_tokens(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """drop tokens above the cap, as a clip does, whereas CISPO keeps them with the weight eps_max."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    return _weighted_logprobs(ratio * (ratio <= eps_max), logprobs, advantages, mask)


def cispo_to_be_minimised(*batch, eps_max):
    """return a loss to be minimised: what is asked for is the objective, to be maximised."""
    return -_capped(*batch, cap=eps_max)


def cispo_injected_tokens_counted(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """count every finite position: the phrase injected by an interruption is trained as if it had been sampled."""
    return _capped(logprobs, gen_logprobs, advantages, logprobs.isfinite() & gen_logprobs.isfinite(), cap=eps_max)


def cispo_mask_multiplied(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """multiply by the mask at the end: 0 * inf and 0 * nan are nan, so padding must be filled before any arithmetic."""
    ratio = (logprobs - gen_logprobs).exp().clamp(max=eps_max).detach()
    return ratio * advantages[:, None] * logprobs * mask


def _capped(logprobs, gen_logprobs, advantages, mask, *, cap):
    """Right, if the cap is."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    return _weighted_logprobs(ratio.clamp(max=cap), logprobs, advantages, mask)


def _weighted_logprobs(weight, logprobs, advantages, mask):
    return _fill(weight * advantages[:, None] * _fill(logprobs, mask), mask)


LN2 = math.log(2)


def value_and_gradient(objective, logprobs, *rest, **eps):
    """(2, B, T): the objective, and the gradient of its sum with respect to logprobs."""
    logprobs = logprobs.clone().requires_grad_()
    value = objective(logprobs, *rest, **eps)
    value.sum().backward()
    return torch.stack([value.detach(), logprobs.grad])


def with_cap(objective, *batch):
    return value_and_gradient(objective, *batch, eps_max=4.0)


# Capped at 4 the ratios are 2, 4, times +1, and 1/2, 4, 1, times -2: that is the weight of log pi_train, which is
# log 1/2 = -ln 2 and log 1/4 = -2 ln 2, and so the gradient.
LOSSES.write(
    name="cispo",
    where="loss.py:cispo",
    paper="Eq. 4",
    minutes=25,
    teaches="CISPO caps the weight of a token and never takes its gradient away.",
    hints=(
        "Eq. 4 and the symbols at the top of loss.py; sg is a stop-gradient.",
        "The cap is on the ratio itself, and the ratio must not carry a gradient of its own. Masked positions may "
        "hold nan: fill them before any product.",
        "Ratio, capped from above, detached; times the advantage; times log pi_train; 0 outside the mask.",
    ),
    says="the capped ratio times the advantage times log pi_train; then its gradient, without that factor",
    probe=with_cap,
    inputs=CISPO_INPUT,
    expected=[
        [[-2 * LN2, -4 * LN2, 0.0, 0.0], [2 * LN2, 8 * LN2, 4 * LN2, 0.0]],
        [[2.0, 4.0, 0.0, 0.0], [-1.0, -8.0, -2.0, 0.0]],
    ],
    labels="objective, gradient",
    mistakes=(
        cispo_without_stop_gradient,
        cispo_cap_is_one_plus_eps,
        cispo_cap_below_one,
        cispo_ratio_recomputed,
        cispo_ratio_inverted,
        cispo_min_after_the_advantage,
        cispo_drops_capped_tokens,
        cispo_to_be_minimised,
        cispo_injected_tokens_counted,
        cispo_mask_multiplied,
    ),
)


# --- clip ------------------------------------------------------------------------------------------------------------


def clip_max_for_negative_advantages(ratio, advantages, mask, eps_low, eps_high):
    """take the max instead of the min where A < 0: tokens with a ratio above the clip lose their gradient."""
    advantages = advantages[:, None]
    free, bound = ratio * advantages, ratio.clamp(1 - eps_low, 1 + eps_high) * advantages
    return _fill(torch.where(advantages < 0, torch.maximum(free, bound), torch.minimum(free, bound)), mask)


def clip_without_min(ratio, advantages, mask, eps_low, eps_high):
    """clip the ratio on both sides and leave out the min: tokens that moved the wrong way lose their gradient."""
    return _fill(ratio.clamp(1 - eps_low, 1 + eps_high) * advantages[:, None], mask)


def clip_half_widths_swapped(ratio, advantages, mask, eps_low, eps_high):
    """swap the half-widths, so that eps_high lies below 1 and eps_low above."""
    return _clip(ratio, advantages, mask, eps_high, eps_low)


def clip_upper_half_width_ignored(ratio, advantages, mask, eps_low, eps_high):
    """use the lower half-width for both sides, which is GRPO's symmetric clip."""
    return _clip(ratio, advantages, mask, eps_low, eps_low)


def _clip(ratio, advantages, mask, eps_low, eps_high):
    advantages = advantages[:, None]
    return _fill(torch.minimum(ratio * advantages, ratio.clamp(1 - eps_low, 1 + eps_high) * advantages), mask)


# Ratios 2, 1, 1/2 and padding, once with a positive and once with a negative advantage; the clip is [3/4, 7/4].
CLIP_INPUT = inputs(
    [[1 / 2, 1 / 2, 1 / 2, NAN], [1 / 2, 1 / 2, 1 / 2, NAN]],
    [[1 / 4, 1 / 2, 1.0, 0.0], [1 / 4, 1 / 2, 1.0, 0.0]],
    [1.0, -2.0],
    ["1110", "1110"],
)


def clip_of_ratio(clip, *batch):
    """The clip is given the ratio, and so cannot get it wrong."""

    def objective(logprobs, gen_logprobs, advantages, mask):
        return clip((logprobs - gen_logprobs).masked_fill(~mask, 0.0).exp(), advantages, mask, 0.25, 0.75)

    return value_and_gradient(objective, *batch)


# A = +1: min(2, 7/4), min(1, 1), min(1/2, 3/4).  A = -2: min(-4, -7/2), min(-2, -2), min(-1, -3/2). The gradient:
# d ratio / d log pi_train = ratio, so ratio times advantage, and 0 in the two places where the clipped term is smaller.
CLIPPED = [[[1.75, 1.0, 0.5, 0.0], [-4.0, -2.0, -1.5, 0.0]], [[0.0, 1.0, 0.5, 0.0], [-4.0, -2.0, 0.0, 0.0]]]


LOSSES.write(
    name="clip",
    where="loss.py:_clip",
    paper="Eq. 3, 7, 8",
    minutes=20,
    teaches="The min of PPO's clip leaves one side open for each sign of the advantage.",
    hints=(
        "Eq. 3; DAPO's two half-widths are in Eq. 8.",
        "What should happen to a bad token (negative advantage) that has become eight times likelier?",
        "Two candidates per token, ratio and bounded ratio, each times the advantage; the smaller one counts, for "
        "both signs; 0 outside the mask. Half-widths below 0 are refused.",
    ),
    says="the smaller of ratio and clipped ratio times the advantage; then its gradient, 0 where the clip acts",
    probe=clip_of_ratio,
    inputs=CLIP_INPUT,
    expected=CLIPPED,
    labels="objective, gradient",
    mistakes=(
        clip_max_for_negative_advantages,
        clip_without_min,
        clip_half_widths_swapped,
        clip_upper_half_width_ignored,
    ),
)


# --- gspo ------------------------------------------------------------------------------------------------------------


def sequence_ratio_without_root(logprobs, gen_logprobs, mask):
    """multiply the token ratios without the root: the ratio of whole sequences drifts from 1 with their length."""
    return _ratio(logprobs, gen_logprobs, mask).prod(-1, keepdim=True)


def sequence_ratio_arithmetic(logprobs, gen_logprobs, mask):
    """average the token ratios instead of their logarithms (the arithmetic mean instead of the geometric one)."""
    total = _fill(_ratio(logprobs, gen_logprobs, mask), mask).sum(-1, keepdim=True)
    return torch.where(mask.any(-1, keepdim=True), total / mask.sum(-1, keepdim=True).clamp(min=1), 1.0)


def sequence_ratio_over_the_whole_width(logprobs, gen_logprobs, mask):
    """take the T-th root, T the padded width, not the number of sampled tokens: padding pulls the ratio towards 1."""
    return _ratio(logprobs, gen_logprobs, mask).log().mean(-1, keepdim=True).exp()


def sequence_ratio_inverted(logprobs, gen_logprobs, mask):
    """divide pi_gen by pi_train instead of pi_train by pi_gen."""
    total = _ratio(gen_logprobs, logprobs, mask).log().sum(-1, keepdim=True)
    return (total / mask.sum(-1, keepdim=True).clamp(min=1)).exp()


def ratio_of_tokens(ratio, logprobs, gen_logprobs, _, mask):
    return ratio(logprobs, gen_logprobs, mask)


# sqrt(4 * 1) = 2, sqrt(1/4 * 1) = 1/2; the last completion is truncated, so its mask is False everywhere.
LOSSES.write(
    name="gspo",
    where="loss.py:sequence_ratio",
    paper="Sec. 3.2",
    minutes=15,
    teaches="GSPO clips a completion by one ratio, the geometric mean of its tokens'.",
    hints=(
        "Sec. 3.2, and the Deviation line at the top of loss.py.",
        "The length is that of the sampled tokens; a completion without any must not divide by 0.",
        "The geometric mean is the exponential of the mean logarithm. Keep the last dimension, for broadcasting.",
    ),
    says="the geometric mean over the sampled tokens, and 1 where there are none",
    probe=ratio_of_tokens,
    inputs=inputs(
        [[1 / 2, 1 / 4, 1 / 2, NAN], [1 / 8, 1 / 4, 1 / 2, NAN], [1 / 2, 1 / 4, 1 / 2, NAN]],
        [[1 / 8, 1.0, 1 / 2, 0.0], [1 / 2, 1.0, 1 / 2, 0.0], [1 / 8, 1.0, 1 / 2, 0.0]],
        [1.0, 1.0, 1.0],
        ["1010", "1010", "0000"],
    ),
    expected=[[2.0], [0.5], [1.0]],
    mistakes=(
        sequence_ratio_without_root,
        sequence_ratio_arithmetic,
        sequence_ratio_over_the_whole_width,
        sequence_ratio_inverted,
    ),
)


# --- weights ---------------------------------------------------------------------------------------------------------


def weights_dapo_keeps_capped():
    """take DAPO's clip for the weight: what is the derivative of a constant?"""
    return 4, 1.26, -4, -8


def weights_dapo_drops_both():
    """let DAPO drop the token for both signs: which of the two terms is the smaller, for each sign?"""
    return 4, 0, -4, 0


def weights_cispo_drops():
    """let CISPO drop the token too: it never takes a token's gradient away."""
    return 0, 0, 0, -8


LOSSES.predict(
    name="weights",
    paper="Eq. 3, 4",
    minutes=10,
    teaches="Where DAPO drops a token CISPO keeps it with a capped weight; where DAPO keeps it, its weight has no cap.",
    hints=(
        "Eq. 3 and 4.",
        "The min of Eq. 3 depends on the sign of the advantage.",
        "The weight is d objective / d log pi_train. Where the clip is the smaller it does not depend on pi_train.",
    ),
    says="d objective / d log pi_train of a token 8 times as likely as when sampled: (CISPO, DAPO) for A = +1, "
    "then A = -1",
    mistakes=(weights_dapo_keeps_capped, weights_dapo_drops_both, weights_cispo_drops),
    labels="CISPO for A = +1, DAPO for A = +1, CISPO for A = -1, DAPO for A = -1",
    atol=1e-3,
)


# --- baseline --------------------------------------------------------------------------------------------------------


def baseline_of_the_batch(rewards):
    """subtract the mean reward of the batch: completions of hard prompts are blamed for their prompt."""
    return rewards - rewards.mean()


def baseline_leave_one_out(rewards):
    """subtract the mean of the other completions (leave one out): the advantages are G / (G - 1) times as large."""
    others = (rewards.sum(-1, keepdim=True) - rewards) / (rewards.shape[-1] - 1)
    return rewards - others


def baseline_subtracts_the_rewards(rewards):
    """subtract the reward from the mean: good answers are punished."""
    return rewards.mean(-1, keepdim=True) - rewards


def baseline_over_the_wrong_axis(rewards):
    """average over the prompts instead of over the completions of a prompt."""
    return rewards - rewards.mean(0, keepdim=True)


def of_rewards(function, rewards):
    return function(rewards)


# Means (1 - 1 + 1 - 1) / 4 = 0 and (1 - 1 - 1 - 1) / 4 = -1/2.
ADVANTAGES.write(
    name="baseline",
    where="loss.py:group_advantages",
    paper="Sec. 2",
    minutes=5,
    teaches="A completion is compared with the other completions of its own prompt.",
    hints=(
        "Sec. 2; A_i at the top of loss.py.",
        "Rewards are (P, G): one row per prompt.",
        "Subtract from every reward the mean of its row, the reward itself included.",
    ),
    says="rewards minus the mean of their own prompt",
    probe=of_rewards,
    inputs=(torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, -1.0, -1.0, -1.0]]),),
    expected=[[1.0, -1.0, 1.0, -1.0], [1.5, -0.5, -0.5, -0.5]],
    mistakes=(
        baseline_of_the_batch,
        baseline_leave_one_out,
        baseline_subtracts_the_rewards,
        baseline_over_the_wrong_axis,
    ),
)


# --- advantages ------------------------------------------------------------------------------------------------------


def _spread(advantages, how, **std):
    return advantages.std(-1, keepdim=True, **std) if how == "prompt" else advantages.std(**std)


def normalise_sample_std(advantages, how):
    """divide by the sample std (ddof 1, the default of torch.std) instead of the population std."""
    return advantages if how == "none" else advantages / (_spread(advantages, how) + 1e-6)


def normalise_without_epsilon(advantages, how):
    """leave out the 1e-6: a prompt with equal rewards becomes 0 / 0, which is nan."""
    return advantages if how == "none" else advantages / _spread(advantages, how, correction=0)


def normalise_variance(advantages, how):
    """divide by the variance instead of its square root, the std."""
    return advantages if how == "none" else advantages / (_spread(advantages, how, correction=0) ** 2 + 1e-6)


def normalise_batch_as_prompt(advantages, how):
    """use each prompt's own std for batch normalisation too: hard and easy prompts weigh alike."""
    return advantages if how == "none" else advantages / (_spread(advantages, "prompt", correction=0) + 1e-6)


def normalise_by_the_largest(advantages, how):
    """divide by the largest advantage instead of the std."""
    largest = advantages.abs().amax(-1, keepdim=True) if how == "prompt" else advantages.abs().max()
    return advantages if how == "none" else advantages / (largest + 1e-6)


def normalised(normalise, advantages):
    return torch.stack([normalise(advantages, how) for how in ("batch", "prompt", "none")])


# batch: std sqrt((1 + 1 + 49 + 49 + 0 + 0) / 6) = sqrt(50 / 3); prompt: std 1, 7, 0; none: as they are.
BATCH_STD = math.sqrt(50 / 3)


ADVANTAGES.write(
    name="advantages",
    where="loss.py:normalise",
    paper="Eq. 5, Sec. 3.2",
    minutes=15,
    teaches="Prompt, batch or no normalisation: who shares a std decides whether hard and easy prompts weigh alike.",
    hints=(
        "Eq. 5; Sec. 3.2 compares the three; what is open in the paper stands above STD_EPS.",
        "torch.std divides by n - 1 unless told otherwise, and a group of equal rewards has the std 0.",
        "Divide by a population std plus the module's epsilon; the std is of the row or of everything.",
    ),
    says="over the std of the batch, of each prompt, or not at all; equal rewards stay 0",
    probe=normalised,
    inputs=(torch.tensor([[1.0, -1.0], [7.0, -7.0], [0.0, 0.0]]),),
    expected=[
        [[1 / BATCH_STD, -1 / BATCH_STD], [7 / BATCH_STD, -7 / BATCH_STD], [0.0, 0.0]],
        [[1.0, -1.0], [1.0, -1.0], [0.0, 0.0]],
        [[1.0, -1.0], [7.0, -7.0], [0.0, 0.0]],
    ],
    labels="batch, prompt, none",
    mistakes=(
        normalise_sample_std,
        normalise_without_epsilon,
        normalise_variance,
        normalise_batch_as_prompt,
        normalise_by_the_largest,
    ),
)


# --- zero-variance ---------------------------------------------------------------------------------------------------


def filter_keeps_solved_prompts(rewards):
    """keep every prompt with a correct answer, solved ones too: they have no gradient but enlarge the denominators."""
    return (rewards > 0).any(-1)


def filter_keeps_what_has_a_std(rewards):
    """ask whether the std is above 0: rounding in the mean of equal rewards can leave a std just above 0."""
    return rewards.std(-1) > 0


def one_by_one(nonzero_variance, rewards):
    """The filter (P,) bool, with each prompt given as a batch of its own."""
    return torch.cat([nonzero_variance(rewards[prompt, None]) for prompt in range(len(rewards))])


# In fp32 the mean of eight rewards of 0.7 is not 0.7, so that a std comes out above 0 though all rewards are equal.
ADVANTAGES.bug(
    name="zero-variance",
    where="loss.py:nonzero_variance",
    paper="Sec. 3.2",
    minutes=10,
    teaches="A std computed from a rounded mean cannot be compared with 0.",
    hints=(
        "Sec. 3.2, zero-variance filtering.",
        "How is the mean of eight times 0.7 rounded in fp32?",
        "Whether numbers are equal can be asked without computing anything.",
    ),
    says="only prompts whose rewards differ are kept, also where the mean is rounded",
    probe=one_by_one,
    inputs=(torch.tensor([[0.7] * 8, [0.7] * 7 + [-1.0], [-1.0] * 8, [0.5] * 8]),),
    expected=[False, True, False, False],
    labels="eight times 0.7, seven times 0.7 and -1, eight times -1, eight times 0.5",
    mistakes=(filter_keeps_solved_prompts, filter_keeps_what_has_a_std),
    bug=("return (rewards != rewards[:, :1]).any(-1)", "return rewards.std(-1) > 0"),
    symptom="With rewards of 0.7 the filter keeps prompts whose rewards are all equal; their advantages blow up.",
)


# --- shaped-filter ---------------------------------------------------------------------------------------------------


def filter_by_the_shaped_reward(groups, *, zero_variance_filter, normalisation):
    """filter by the shaped reward: two right answers of different length look unequal, so the prompt is kept."""
    known = torch.tensor([all(rollout.value is not None for rollout in group) for group in groups])
    return known & torch.tensor([len({rollout.reward for rollout in group}) > 1 for group in groups]), None


def kept_prompts(compute_advantages, rewards):
    """Of groups of rollouts, correct where the reward is above 0; the last prompt's verifier failed."""
    groups = [[SimpleNamespace(reward=r, value=r > 0) for r in group] for group in rewards.tolist()]
    for rollout in groups[-1]:
        rollout.value = None
    return compute_advantages(groups, zero_variance_filter=True, normalisation="none")[0]


# Prompt 0: both answers right, one with a length penalty, so its correctness has no variance. Prompt 2: no verdict.
ADVANTAGES.bug(
    name="shaped-filter",
    where="loss.py:compute_advantages",
    paper="Sec. 3.2",
    minutes=15,
    teaches="Filters ask whether an answer was correct, never how it was rewarded.",
    hints=(
        "Sec. 3.2, and Eq. 9 in Sec. A.10, A.15.",
        "With a length penalty two correct answers can have different rewards.",
        "Follow the two tensors made from the rollouts to where the prompts are chosen.",
    ),
    says="it looks at correctness, not at a shaped reward, and drops a group whose verifier failed",
    probe=kept_prompts,
    inputs=(torch.tensor([[1.0, 0.5], [1.0, -1.0], [1.0, -1.0]]),),
    expected=[False, True, False],
    labels="both right, right and wrong, no verdict",
    mistakes=(filter_by_the_shaped_reward,),
    bug=("kept = graded & nonzero_variance(correct) if", "kept = graded & nonzero_variance(rewards) if"),
    symptom="With --length-control penalty hardly any prompt is filtered, though many are always solved.",
)


# --- denominators ----------------------------------------------------------------------------------------------------


def _counts(lengths, prompt_index):
    """Right: the number of completions, prompts, tokens, and tokens per prompt."""
    sums = [int(lengths[prompt_index == prompt].sum()) for prompt in range(int(prompt_index.max()) + 1)]
    return int((lengths > 0).sum()), sum(tokens > 0 for tokens in sums), sum(sums), torch.tensor(sums)


def denominators_with_filtered_prompts(lengths, prompt_index):
    """count the filtered prompts too: the more prompts are filtered, the smaller the objective."""
    completions, _, *tokens = _counts(lengths, prompt_index)
    return completions, int(prompt_index.max()) + 1, *tokens


def denominators_with_truncated_completions(lengths, prompt_index):
    """count completions that carry no loss (truncated ones), so that truncation shrinks the objective."""
    kept_prompts = set(prompt_index[lengths > 0].tolist())
    completions = sum(prompt in kept_prompts for prompt in prompt_index.tolist())
    return completions, *_counts(lengths, prompt_index)[1:]


def denominators_of_completions_as_prompts(lengths, prompt_index):
    """count completions where prompts are meant: every prompt's weight is too small."""
    completions, _, *tokens = _counts(lengths, prompt_index)
    return completions, completions, *tokens


def denominators_of_kept_prompts_only(lengths, prompt_index):
    """list only the kept prompts: every prompt after a dropped one moves to the wrong index."""
    *counts, tokens_per_prompt = _counts(lengths, prompt_index)
    return *counts, tokens_per_prompt[tokens_per_prompt > 0]


def counted(count, lengths, prompt_index):
    """The three counts, then the tokens of each prompt."""
    completions, prompts, tokens, tokens_per_prompt, *_ = count(lengths, prompt_index)
    return [completions, prompts, tokens, *tokens_per_prompt]


# Prompt 1 was filtered, completion 5 truncated; left are completions 0, 1, 4, 6, 7, prompts 0, 2, 3 and
# 3 + 2 + 4 + 1 + 1 tokens.
ADVANTAGES.write(
    name="denominators",
    where="loss.py:global_denominators",
    paper="Sec. 3.2",
    minutes=15,
    teaches="An average needs to know what it divides by before the first micro-batch is there.",
    hints=(
        "Sec. 3.2; A.6 on the effective batch.",
        "A completion of length 0 carries no loss; a prompt all of whose completions have length 0 is not counted.",
        "Add the lengths up at each prompt's index, then count what is above 0.",
    ),
    says="completions, prompts, tokens that carry a loss; then the tokens of each prompt",
    probe=counted,
    inputs=(torch.tensor([3, 2, 0, 0, 4, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])),
    expected=[5, 3, 11, 5, 0, 4, 2],
    labels="completions, prompts, tokens, of prompt 0, of prompt 1, of prompt 2, of prompt 3",
    mistakes=(
        denominators_with_filtered_prompts,
        denominators_with_truncated_completions,
        denominators_of_completions_as_prompts,
        denominators_of_kept_prompts_only,
    ),
)


# --- aggregate -------------------------------------------------------------------------------------------------------


# Averages: (objective, mask, prompt_index, how, denominators) -> scalar
def average_over_tokens(objective, mask, *_):
    """average over all tokens at once, so long prompts weigh more (that is token averaging)."""
    return _fill(objective, mask).sum() / mask.sum()


def average_over_completions(objective, mask, *_):
    """average each completion first, so that in a prompt short completions weigh more (that is sample averaging)."""
    return (_fill(objective, mask).sum(-1) / mask.sum(-1)).mean()


def average_with_injected_tokens_in_the_length(objective, mask, prompt_index, *_):
    """divide by the whole length of the completions, the injected phrase included."""
    return _prompt_average(objective, mask, prompt_index, _length_with_injected(mask))


def average_divided_by_generations(objective, mask, prompt_index, *_):
    """divide a prompt's sum by its number of completions instead of tokens, so that length is rewarded."""
    return _prompt_average(objective, mask, prompt_index, torch.ones_like(prompt_index))


def _share(objective, mask, prompt_index, denominators):
    """Right: what a micro-batch adds to the prompt average of the whole batch."""
    tokens = denominators.tokens_per_prompt[prompt_index]
    return (_fill(objective, mask).sum(-1) / tokens).sum() / denominators.prompts


def aggregate_always_prompt(objective, mask, prompt_index, how, denominators):
    """take the prompt average whatever `how` says."""
    return _share(objective, mask, prompt_index, denominators)


def aggregate_names_swapped(objective, mask, prompt_index, how, denominators):
    """mix up sample and token average."""
    if how == "prompt":
        return _share(objective, mask, prompt_index, denominators)
    divisor = denominators.tokens if how == "sample" else denominators.completions * mask.sum(-1).clamp(min=1)
    return (_fill(objective, mask).sum(-1) / divisor).sum()


def aggregate_without_dummies(objective, mask, prompt_index, how, denominators):
    """divide by the length of every completion: a dummy, which has none, gives 0 / 0 = nan and spoils the step."""
    if how == "prompt":
        return _share(objective, mask, prompt_index, denominators)
    divisor = denominators.completions * mask.sum(-1) if how == "sample" else denominators.tokens
    return (_fill(objective, mask).sum(-1) / divisor).sum()


def aggregate_with_micro_batch_denominators(objective, mask, prompt_index, how, denominators):
    """take the denominators of each micro-batch and average the micro-batches, weighted by their completions."""
    share = len(mask) / denominators.completions * mask.any()
    lengths = mask.sum(-1).clamp(min=1)
    if how == "prompt":
        return share * _prompt_average(objective, mask, prompt_index, lengths)
    sums = _fill(objective, mask).sum(-1)
    return share * ((sums / lengths).mean() if how == "sample" else sums.sum() / lengths.sum())


def _length_with_injected(mask):
    """(B,): the position after the last sampled token, which is the length if injected tokens before it count."""
    return (mask * torch.arange(1, mask.shape[-1] + 1)).amax(-1)


def _prompt_average(objective, mask, prompt_index, lengths):
    averages = []
    for prompt in prompt_index.unique():
        rows = prompt_index == prompt
        averages.append(_fill(objective[rows], mask[rows]).sum() / lengths[rows].sum())
    return torch.stack(averages).mean()


# Two prompts of two completions, with 2 and 5 sampled tokens; the third completion has an injected token inside.
# The objectives of loss.py are 0 where nothing was sampled.
OBJECTIVE = torch.tensor([[4.0, 0.0, 0.0], [8.0, 0.0, 0.0], [1.0, 0.0, 3.0], [2.0, -1.0, 2.0]])
MASK = OBJECTIVE != 0
PROMPT_INDEX = torch.tensor([0, 0, 1, 1])


WHOLE = SimpleNamespace(completions=4, prompts=2, tokens=7, tokens_per_prompt=torch.tensor([2, 5]))


def prompt_average(aggregate, objective, mask, prompt_index, whole):
    return aggregate(objective, mask, prompt_index, "prompt", whole)


def micro_batches(aggregate, objective, mask, prompt_index, whole):
    """The prompt, sample and token average from two micro-batches and a dummy."""
    parts = [(objective[rows], mask[rows], prompt_index[rows]) for rows in ([0, 1, 2], [3])]
    dummy = objective[:1], mask[:1] & False, prompt_index[:1]
    return [
        sum(float(aggregate(*part, how, whole)) for part in (*parts, dummy)) for how in ("prompt", "sample", "token")
    ]


BATCH = OBJECTIVE, MASK, PROMPT_INDEX


# (12 / 2 + 7 / 5) / 2 = 3.7
PROMPT_AVERAGE = Claim(
    says="every prompt has weight 1/2, whatever its length",
    probe=prompt_average,
    inputs=(*BATCH, WHOLE),
    expected=3.7,
    mistakes=(
        average_over_tokens,
        average_over_completions,
        average_with_injected_tokens_in_the_length,
        average_divided_by_generations,
    ),
)


# (4 + 8 + (1 + 3) / 2 + (2 - 1 + 2) / 3) / 4 = 15 / 4; (4 + 8 + 1 + 3 + 2 - 1 + 2) / 7 = 19 / 7
# The second prompt is split between the micro-batches: (12 / 2 + 4 / 5) / 2 + (0 + 3 / 5) / 2 = 3.4 + 0.3
MICRO_BATCHES = Claim(
    says="the shares of micro-batches add up to the prompt, sample and token average of the batch; a dummy adds 0",
    probe=micro_batches,
    inputs=(*BATCH, WHOLE),
    expected=[3.7, 15 / 4, 19 / 7],
    labels="prompt, sample, token",
    mistakes=(
        aggregate_always_prompt,
        aggregate_names_swapped,
        aggregate_without_dummies,
        aggregate_with_micro_batch_denominators,
    ),
)


ADVANTAGES.write(
    name="aggregate",
    where="loss.py:aggregate",
    paper="Sec. 3.2, Eq. 3, 8",
    minutes=25,
    teaches="Sample, prompt and token average differ in whether a long answer weighs more.",
    hints=(
        "Sec. 3.2, loss aggregation.",
        "The denominators are those of the whole batch: shares of micro-batches are added, never averaged. "
        "A dummy has no tokens, and 0 / 0 is nan.",
        "Each completion has one weight: 1 / (completions x its tokens), 1 / (prompts x its prompt's tokens) or "
        "1 / tokens; the result is the sum over completions of weight times sum over sampled tokens.",
    ),
    claims=(PROMPT_AVERAGE, MICRO_BATCHES),
)


# --- dropped ---------------------------------------------------------------------------------------------------------


def dropped_all_right_only():
    """count only prompts whose answers are all right: where all are wrong there is no gradient either."""
    return 0.5**4, 0.9**16


def dropped_pass_rate():
    """take the pass rate itself for the share of prompts that are always solved."""
    return 0.5, 0.9


def dropped_is_kept():
    """give the share that is kept instead of the share that is dropped."""
    return 1 - 2 * 0.5**4, 1 - 0.9**16


ADVANTAGES.predict(
    name="dropped",
    paper="Sec. 3.2",
    minutes=5,
    teaches="The better the policy, the fewer prompts of a batch teach anything.",
    hints=(
        "Sec. 3.2, zero-variance filtering and No-Positive-Resampling.",
        "All wrong has no gradient either.",
        "Independent answers, all of them right or all of them wrong.",
    ),
    says="the share of prompts without a gradient at pass rate 1/2 with 4 completions, and at 0.9 with 16",
    mistakes=(dropped_all_right_only, dropped_pass_rate, dropped_is_kept),
    labels="1/2 and 4, 0.9 and 16",
    atol=1e-3,
)
