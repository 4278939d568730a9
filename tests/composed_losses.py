"""Claims on compositions of loss.py's functions with their wrong answers; those on single functions are the course's.

Test: pytest tests/test_loss.py
"""

import torch

from course.checks.claims import Claim
from course.checks.losses import NAN, _clip, _fill, _length_with_injected, _ratio, inputs, of_rewards, value_with_clip


def gspo_without_length_normalisation(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """multiply the token ratios without the root: the ratio of whole sequences drifts from 1 with their length."""
    ratio = _ratio(logprobs, gen_logprobs, mask).prod(-1, keepdim=True).expand(mask.shape)
    return _clip(ratio, advantages, mask, eps_low, eps_high)


def gspo_arithmetic_mean(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """average the token ratios instead of their logarithms (the arithmetic mean instead of the geometric one)."""
    total = _fill(_ratio(logprobs, gen_logprobs, mask), mask).sum(-1, keepdim=True)
    ratio = (total / mask.sum(-1, keepdim=True)).expand(mask.shape)
    return _clip(ratio, advantages, mask, eps_low, eps_high)


def gspo_injected_tokens_in_the_length(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """count injected tokens in the length whose root is taken, so that interruptions pull the ratio towards 1."""
    log_ratio = _ratio(logprobs, gen_logprobs, mask).log().sum(-1, keepdim=True)
    ratio = (log_ratio / _length_with_injected(mask)[:, None]).exp().expand(mask.shape)
    return _clip(ratio, advantages, mask, eps_low, eps_high)


# Advantages: rewards (P, G) -> the batch-normalised advantages of the prompts that are kept
def advantages_over_std_of_rewards(rewards):
    """divide by the std of the raw rewards of the batch; the spread between prompts does not belong in it."""
    kept = _kept(rewards)
    return _centred(kept) / _std(kept)


def advantages_normalised_before_the_filter(rewards):
    """take the batch std before the zero-variance prompts are dropped: their zeros shrink it."""
    return _centred(_kept(rewards)) / _std(_centred(rewards))


def advantages_over_sample_std(rewards):
    """divide by the sample std (ddof 1, the default of torch.std) instead of the population std."""
    advantages = _centred(_kept(rewards))
    return advantages / advantages.std()


def advantages_over_group_std(rewards):
    """divide each prompt by its own std, so that hard and easy prompts weigh alike (that is prompt normalisation)."""
    advantages = _centred(_kept(rewards))
    return advantages / advantages.std(-1, correction=0, keepdim=True)


def advantages_from_the_batch_mean(rewards):
    """subtract the mean reward of the batch instead of each prompt's own."""
    kept = _kept(rewards)
    return (kept - kept.mean()) / _std(kept)


def _kept(rewards):
    return rewards[rewards.amax(-1) > rewards.amin(-1)]


def _centred(rewards):
    return rewards - rewards.mean(-1, keepdim=True)


def _std(values):
    return values.std(correction=0)


# Token ratios 4 and 1, or 1/4 and 1, with an injected token between: geometric means 2 and 1/2; clip [3/4, 7/4].
GSPO_INPUT = inputs(
    [[1 / 2, 1 / 4, 1 / 2, NAN]] * 2 + [[1 / 8, 1 / 4, 1 / 2, NAN]] * 2,
    [[1 / 8, 1.0, 1 / 2, 0.0]] * 2 + [[1 / 2, 1.0, 1 / 2, 0.0]] * 2,
    [1.0, -2.0, 1.0, -2.0],
    ["1010"] * 4,
)


# min(2, 7/4), min(-4, -7/2), min(1/2, 3/4), min(-1, -3/2), each on both sampled tokens.
GSPO_VALUE = Claim(
    says="gspo: the clipped geometric mean of the token ratios times the advantage, on every sampled token",
    probe=value_with_clip,
    inputs=GSPO_INPUT,
    expected=[[1.75, 0.0, 1.75, 0.0], [-4.0, 0.0, -4.0, 0.0], [0.5, 0.0, 0.5, 0.0], [-1.5, 0.0, -1.5, 0.0]],
    mistakes=(gspo_without_length_normalisation, gspo_arithmetic_mean, gspo_injected_tokens_in_the_length),
)


# Means 0, 2, 3, so advantages +-1, 0 and 0 (dropped), +-7; std of the four kept: sqrt((1 + 1 + 49 + 49) / 4) = 5.
BATCH_ADVANTAGES = Claim(
    says="batch_advantages: divided by the std of the kept advantages, 5",
    probe=of_rewards,
    inputs=(torch.tensor([[1.0, -1.0], [2.0, 2.0], [10.0, -4.0]]),),
    expected=[[0.2, -0.2], [1.4, -1.4]],
    mistakes=(
        advantages_over_std_of_rewards,
        advantages_normalised_before_the_filter,
        advantages_over_sample_std,
        advantages_over_group_std,
        advantages_from_the_batch_mean,
    ),
)
