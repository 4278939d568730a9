"""Chapter 2: ratio and losses (Eq. 2 to 4, 7 and 8). Claims, wrong answers, exercises.

Arguments as in loss.py: logprobs, gen_logprobs, mask (B, T); advantages (B,). Test: pytest tests/test_exercises.py
"""

import math
from functools import partial

import torch

from course.checks.claims import Chapter, Claim

LOSSES = Chapter()


# --- ratio -----------------------------------------------------------------------------------------------------------


def ratio_inverted(logprobs, gen_logprobs, mask):
    """divide pi_gen by pi_train instead of pi_train by pi_gen."""
    return _ratio(gen_logprobs, logprobs, mask)


def ratio_of_logarithms(logprobs, gen_logprobs, mask):
    """divide the logarithms instead of the probabilities."""
    return (logprobs / gen_logprobs).masked_fill(~mask, 1.0)


def ratio_without_mask(logprobs, gen_logprobs, mask):
    """leave out the mask: padding becomes nan, and injected tokens get a ratio other than 1."""
    return (logprobs - gen_logprobs).exp()


def ratio_zero_outside_the_mask(logprobs, gen_logprobs, mask):
    """fill with 0 after the exponential instead of before it: masked tokens get the ratio 0, not 1."""
    return _fill(_ratio(logprobs, gen_logprobs, mask), mask)


def ratio_without_gradient(logprobs, gen_logprobs, mask):
    """stop the gradient of the ratio: a loss that clips the ratio would have none. CISPO stops it by itself."""
    return _ratio(logprobs, gen_logprobs, mask).detach()


MASKED_LATE = (  # padding is nan
    "leave out the mask, or use it last: nan * 0 is nan, in a gradient too; fill masked positions before any arithmetic"
)


# Right pieces that the wrong answers share, written once more so that nothing of loss.py is used
def _fill(values, mask):
    return values.masked_fill(~mask, 0.0)


def _ratio(numerator, denominator, mask):
    return (_fill(numerator, mask) - _fill(denominator, mask)).exp()


NAN = float("nan")


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
    """(2, B, T): the ratio, and the gradient of its sum with respect to logprobs, 0 for one without."""
    logprobs = logprobs.clone().requires_grad_()
    rho = ratio(logprobs, gen_logprobs, mask)
    if rho.requires_grad:
        rho.sum().backward()
    return torch.stack([rho.detach(), torch.zeros_like(rho) if logprobs.grad is None else logprobs.grad])


# exp(ln 1/2 - ln 1/4) = 2, (1/2) / (1/16) = 8 and so on; 1, the ratio of equal policies, where the mask is False.
LOSSES.write(
    name="ratio",
    where="loss.py:importance_ratio",
    minutes=10,
    teaches="The importance ratio compares the policy that trains with the policy that sampled, token by token.",
    hints=(
        "Eq. 2; the module docstring names both log-probabilities.",
        "Padding holds nan and -inf. What happens to a sum over tokens if one position is nan?",
        "A ratio of probabilities is the exponential of a difference of logarithms. A helper in the same file "
        "takes that difference and leaves 0 where the mask is False.",
    ),
    undefined=MASKED_LATE,
    says="pi_train over pi_gen, and 1 where nothing was sampled; then its gradient, which is the ratio, and 0 there",
    probe=ratio_and_gradient,
    inputs=CISPO_INPUT,
    expected=[[[2.0, 8.0, 1.0, 1.0], [0.5, 8.0, 1.0, 1.0]], [[2.0, 8.0, 0.0, 0.0], [0.5, 8.0, 1.0, 0.0]]],
    labels="ratio, gradient",
    mistakes=(
        ratio_inverted,
        ratio_of_logarithms,
        ratio_without_mask,
        ratio_zero_outside_the_mask,
        ratio_without_gradient,
    ),
)


# --- cispo -----------------------------------------------------------------------------------------------------------


def cispo_without_stop_gradient(logprobs, gen_logprobs, advantages, mask, eps_max):
    """let the gradient through the ratio, so a token's weight also depends on its own log-probability."""
    return _weighted_logprobs(_ratio(logprobs, gen_logprobs, mask).clamp(max=eps_max), logprobs, advantages, mask)


def cispo_cap_is_one_plus_eps(*batch, eps_max):
    """cap the ratio at 1 + eps_max instead of eps_max (the half-width of a clip, not a cap)."""
    return _capped(*batch, cap=1 + eps_max)


def cispo_without_cap(*batch, eps_max):
    """leave out the cap: a single token that became much likelier outweighs all others."""
    return _capped(*batch, cap=math.inf)


def cispo_ratio_inverted(logprobs, gen_logprobs, advantages, mask, eps_max):
    """divide pi_gen by pi_train instead of pi_train by pi_gen."""
    ratio = _ratio(gen_logprobs, logprobs, mask).detach()
    return _weighted_logprobs(ratio.clamp(max=eps_max), logprobs, advantages, mask)


def cispo_min_after_the_advantage(logprobs, gen_logprobs, advantages, mask, eps_max):
    """multiply by the advantage before taking the min, as a clipped loss does: where A < 0 the cap becomes a floor."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    advantages = advantages[:, None]
    return _fill(torch.minimum(ratio * advantages, eps_max * advantages) * _fill(logprobs, mask), mask)


def cispo_ratio_alone(logprobs, gen_logprobs, advantages, mask, eps_max):
    """leave out log pi_train and let the gradient through the capped ratio, as PPO does."""
    return _fill(_ratio(logprobs, gen_logprobs, mask).clamp(max=eps_max) * advantages[:, None], mask)


def cispo_drops_capped_tokens(logprobs, gen_logprobs, advantages, mask, eps_max):
    """drop tokens above the cap, as a clip does, whereas CISPO keeps them with the weight eps_max."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    return _weighted_logprobs(ratio * (ratio <= eps_max), logprobs, advantages, mask)


def cispo_to_be_minimised(*batch, eps_max):
    """return a loss to be minimised: what is asked for is the objective, to be maximised."""
    return -_capped(*batch, cap=eps_max)


def cispo_injected_tokens_counted(logprobs, gen_logprobs, advantages, mask, eps_max):
    """count every finite position: the phrase injected by an interruption is trained as if it had been sampled."""
    return _capped(logprobs, gen_logprobs, advantages, logprobs.isfinite() & gen_logprobs.isfinite(), cap=eps_max)


def _capped(logprobs, gen_logprobs, advantages, mask, cap):
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


# Capped at 4 the ratios are 2, 4, times +1, and 1/2, 4, 1, times -2: that is the weight of log pi_train, which is
# log 1/2 = -ln 2 and log 1/4 = -2 ln 2, and so the gradient.
LOSSES.write(
    name="cispo",
    where="loss.py:cispo",
    minutes=25,
    teaches="CISPO caps the weight of a token and never takes its gradient away.",
    hints=(
        "Eq. 4 and the symbols at the top of loss.py; sg is a stop-gradient.",
        "The cap is on the ratio itself, and the ratio must not carry a gradient of its own. Masked positions may "
        "hold nan: fill them before any product.",
        "Ratio, capped from above, detached; times the advantage; times log pi_train; 0 outside the mask.",
    ),
    undefined=MASKED_LATE,
    says="the capped ratio times the advantage times log pi_train; then its gradient, without that factor",
    probe=partial(value_and_gradient, eps_max=4.0),
    inputs=CISPO_INPUT,
    expected=[
        [[-2 * LN2, -4 * LN2, 0.0, 0.0], [2 * LN2, 8 * LN2, 4 * LN2, 0.0]],
        [[2.0, 4.0, 0.0, 0.0], [-1.0, -8.0, -2.0, 0.0]],
    ],
    labels="objective, gradient",
    mistakes=(
        cispo_without_stop_gradient,
        cispo_cap_is_one_plus_eps,
        cispo_without_cap,
        cispo_ratio_inverted,
        cispo_min_after_the_advantage,
        cispo_ratio_alone,
        cispo_drops_capped_tokens,
        cispo_to_be_minimised,
        cispo_injected_tokens_counted,
    ),
)


# --- clip ------------------------------------------------------------------------------------------------------------


def clip_max(ratio, advantages, mask, eps_low, eps_high):
    """take the max instead of the min: a bad token that became likelier has no gradient."""
    advantages = advantages[:, None]
    return _fill(torch.maximum(ratio * advantages, ratio.clamp(1 - eps_low, 1 + eps_high) * advantages), mask)


def clip_without_min(ratio, advantages, mask, eps_low, eps_high):
    """clip the ratio on both sides and leave out the min: tokens that moved the wrong way lose their gradient."""
    return _fill(ratio.clamp(1 - eps_low, 1 + eps_high) * advantages[:, None], mask)


def clip_without_mask(ratio, advantages, mask, eps_low, eps_high):
    """leave out the mask: the ratio of padding is 1, so that its objective is the advantage."""
    return _clip(ratio, advantages, mask | True, eps_low, eps_high)


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
    minutes=20,
    teaches="The min of PPO's clip leaves one side open for each sign of the advantage.",
    hints=(
        "Eq. 3, 7; DAPO's two half-widths are in Eq. 8.",
        "What should happen to a bad token (negative advantage) that has become eight times likelier?",
        "Two candidates per token, ratio and bounded ratio, each times the advantage; the smaller one counts, for "
        "both signs; 0 outside the mask. Half-widths below 0 are refused.",
    ),
    says="the smaller of ratio and clipped ratio times the advantage; then its gradient, 0 where the clip acts",
    probe=clip_of_ratio,
    inputs=CLIP_INPUT,
    expected=CLIPPED,
    labels="objective, gradient",
    mistakes=(clip_max, clip_without_min, clip_without_mask, clip_upper_half_width_ignored),
)


# --- gspo ------------------------------------------------------------------------------------------------------------


def sequence_ratio_as_product(logprobs, gen_logprobs, mask):
    """multiply the ratios: the product drifts from 1 with the length, and 400 factors over- or underflow, whatever the
    root; so add logarithms, divide, then exponentiate."""
    return _ratio(logprobs, gen_logprobs, mask).prod(-1, keepdim=True)


def sequence_ratio_without_exponential(logprobs, gen_logprobs, mask):
    """forget the exponential: the mean of the logarithms is the ratio's logarithm."""
    return _ratio(logprobs, gen_logprobs, mask).log().sum(-1, keepdim=True) / _length(mask)


def sequence_ratio_arithmetic(logprobs, gen_logprobs, mask):
    """average the token ratios instead of their logarithms (the arithmetic mean instead of the geometric one)."""
    return _fill(_ratio(logprobs, gen_logprobs, mask), mask).sum(-1, keepdim=True) / _length(mask)


def sequence_ratio_over_the_whole_width(logprobs, gen_logprobs, mask):
    """take the T-th root, T the padded width, not the number of sampled tokens: padding pulls the ratio towards 1."""
    return _ratio(logprobs, gen_logprobs, mask).log().mean(-1, keepdim=True).exp()


def sequence_ratio_inverted(logprobs, gen_logprobs, mask):
    """divide pi_gen by pi_train instead of pi_train by pi_gen."""
    total = _ratio(gen_logprobs, logprobs, mask).log().sum(-1, keepdim=True)
    return (total / _length(mask)).exp()


def _length(mask):
    return mask.sum(-1, keepdim=True).clamp(min=1)


def ratio_of_tokens(ratio, logprobs, gen_logprobs, _, mask):
    return ratio(logprobs, gen_logprobs, mask)


# sqrt(4 * 1) = 2, sqrt(1/4 * 1) = 1/2; the last completion is truncated, so its mask is False everywhere.
GEOMETRIC_MEAN = Claim(
    says="the geometric mean over the sampled tokens, and 1 where there are none",
    probe=ratio_of_tokens,
    inputs=inputs(
        [[1 / 2, 1 / 4, 1 / 2, NAN], [1 / 8, 1 / 4, 1 / 2, NAN], [1 / 2, 1 / 4, 1 / 2, NAN]],
        [[1 / 8, 1.0, 1 / 2, 0.0], [1 / 2, 1.0, 1 / 2, 0.0], [1 / 8, 1.0, 1 / 2, 0.0]],
        [1.0, 1.0, 1.0],
        ["1010", "1010", "0000"],
    ),
    expected=[[2.0], [0.5], [1.0]],
    labels="ratios 4 and 1, 1/4 and 1, none",
    mistakes=(
        sequence_ratio_as_product,
        sequence_ratio_without_exponential,
        sequence_ratio_arithmetic,
        sequence_ratio_over_the_whole_width,
        sequence_ratio_inverted,
    ),
    undefined="let masked tokens in, which are nan, or divide by the length of a completion without sampled tokens",
)


LONG = Claim(
    says="1/8 for 400 tokens of ratio 1/8",
    probe=ratio_of_tokens,
    inputs=inputs([[1 / 16] * 400], [[1 / 2] * 400], [1.0], ["1" * 400]),
    expected=[[1 / 8]],
    mistakes=(sequence_ratio_as_product,),
)


LOSSES.write(
    name="gspo",
    where="loss.py:sequence_ratio",
    minutes=15,
    teaches="GSPO clips a completion by one ratio, the geometric mean of its tokens'.",
    hints=(
        "Sec. 3.2, and the Deviation line at the top of loss.py.",
        "The length is that of the sampled tokens; a completion without any must not divide by 0.",
        "The geometric mean is the exponential of the mean logarithm. Keep the last dimension, for broadcasting.",
    ),
    claims=(GEOMETRIC_MEAN, LONG),
)


# --- weights ---------------------------------------------------------------------------------------------------------


LOSSES.predict(
    name="weights",
    minutes=10,
    teaches="Where DAPO drops a token CISPO keeps it with a capped weight; where DAPO keeps it, its weight has no cap.",
    hints=(
        "Eq. 3 and 4.",
        "The min of Eq. 3 depends on the sign of the advantage.",
        "The weight is d objective / d log pi_train. Where the clip is the smaller it does not depend on pi_train.",
    ),
    says="d objective / d log pi_train of a token 8 times as likely as when sampled: (CISPO, DAPO) for A = +1, "
    "then A = -1",
    mistakes={
        "take DAPO's clip for the weight: what is the derivative of a constant?": (4, 1.26, -4, -8),
        "let DAPO drop the token for both signs: which of the two terms is the smaller, for each sign?": (4, 0, -4, 0),
        "let CISPO drop the token too: it never takes a token's gradient away.": (0, 0, 0, -8),
    },
    labels="CISPO for A = +1, DAPO for A = +1, CISPO for A = -1, DAPO for A = -1",
    atol=1e-3,
)
