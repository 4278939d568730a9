"""Named wrong answers to the equations of loss.py, and the check that recognises them by their numbers.

An `Exercise` is one claim: a fixed input, the numbers worked out by hand, and the mistakes whose numbers differ there.
`exercise.check(implementation)` passes or says what was expected, what came, and which mistake gives just that.
The docstring of every wrong answer completes "This is what you get when you ...". They share no code with loss.py, so
that whatever is broken there cannot change what is recognised here.

Arguments as in loss.py: logprobs, gen_logprobs, mask (B, T); advantages, lengths, prompt_index (B,); rewards (P, G).
Test: pytest tests/test_loss.py
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

# The hand numbers are exact; fp32 exp(log(x)) and sums of a few terms are off by about 1e-7.
RTOL, ATOL = 1e-5, 1e-6


class Exercise(NamedTuple):
    """One claim with its input, its hand-computed numbers and the mistakes that it tells apart."""

    claim: str  # "name: what has to hold"
    run: Callable  # implementation -> tensor, on one fixed input
    expected: list | float  # worked out by hand
    mistakes: tuple[Callable, ...]  # wrong implementations; no two give the same numbers

    def check(self, implementation):
        """Raise AssertionError, naming the mistake where its numbers are known, unless shape and numbers are right."""
        __tracebackhide__ = True
        expected, yours = torch.tensor(self.expected), self.run(implementation).detach()
        if not _same(yours, expected):
            raise AssertionError(self.message(expected, yours))

    def message(self, expected, yours):
        """What a failing exercise says: the claim, both numbers and shapes, the mistake."""
        width = max(len(_numbers(expected)), len(_numbers(yours)))
        lines = [self.claim]
        for whose, tensor in (("expected", expected), ("yours", yours)):
            lines.append(f"  {whose:8} {_numbers(tensor):{width}} shape {tuple(tensor.shape)}")
        for mistake in self.mistakes:
            if _same(self.run(mistake).detach(), yours):
                lines.append(f"  This is what you get when you {' '.join(mistake.__doc__.split())}")
        return "\n".join(lines)


def _same(a, b):
    """Equal in shape and, up to rounding, in numbers; nan equals nan, so that a mistake may be recognised by it."""
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=RTOL, atol=ATOL, equal_nan=True)


def _numbers(tensor):
    """All of a small tensor in one line, four significant digits."""
    if tensor.dim() == 0:
        return f"{tensor.item():.4g}"
    return "[" + ", ".join(_numbers(part) for part in tensor) + "]"


# CISPO, Eq. 4


def cispo_without_stop_gradient(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """let the gradient through the ratio, so a token's weight also depends on its own log-probability."""
    return _weighted_logprobs(_ratio(logprobs, gen_logprobs, mask).clamp(max=eps_max), logprobs, advantages, mask)


def cispo_cap_is_one_plus_eps(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """cap the ratio at 1 + eps_max instead of eps_max (the half-width of a clip, not a cap)."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    return _weighted_logprobs(ratio.clamp(max=1 + eps_max), logprobs, advantages, mask)


def cispo_cap_below_one(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """cap the ratio at 0.2, below 1 (a clip's half-width for a cap); on-policy tokens lose 4/5 of their weight."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    return _weighted_logprobs(ratio.clamp(max=0.2), logprobs, advantages, mask)


def cispo_ratio_recomputed(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """recompute the old log-probs with the trainer: the ratio is 1 everywhere and the cap never acts."""
    ratio = _ratio(logprobs, logprobs, mask).detach()
    return _weighted_logprobs(ratio.clamp(max=eps_max), logprobs, advantages, mask)


def cispo_ratio_inverted(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """divide pi_gen by pi_train instead of pi_train by pi_gen."""
    ratio = _ratio(gen_logprobs, logprobs, mask).detach()
    return _weighted_logprobs(ratio.clamp(max=eps_max), logprobs, advantages, mask)


def cispo_min_after_the_advantage(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """multiply by the advantage before taking the min, as a clipped loss does: negative ones get at least the cap."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    advantages = advantages[:, None]
    return _fill(torch.minimum(ratio * advantages, eps_max * advantages) * _fill(logprobs, mask), mask)


def cispo_drops_capped_tokens(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """drop tokens above the cap, as a clip does, where CISPO keeps them with the weight eps_max."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    return _weighted_logprobs(ratio * (ratio <= eps_max), logprobs, advantages, mask)


def cispo_to_be_minimised(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """return a loss to be minimised; here the sign is that of an objective to be maximised."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    return -_weighted_logprobs(ratio.clamp(max=eps_max), logprobs, advantages, mask)


def cispo_injected_tokens_counted(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """count every finite position: the phrase injected by an interruption is trained as if it had been sampled."""
    mask = logprobs.isfinite() & gen_logprobs.isfinite()
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    return _weighted_logprobs(ratio.clamp(max=eps_max), logprobs, advantages, mask)


def cispo_mask_multiplied(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """multiply by the mask at the end: 0 * inf and 0 * nan are nan, so padding must be filled before any arithmetic."""
    ratio = (logprobs - gen_logprobs).exp().clamp(max=eps_max).detach()
    return ratio * advantages[:, None] * logprobs * mask


# DAPO and GRPO, Eq. 3, 7 and 8


def dapo_max_for_negative_advantages(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """take the max instead of the min where the advantage is negative: bad tokens above the clip are let go."""
    ratio, advantages = _ratio(logprobs, gen_logprobs, mask), advantages[:, None]
    free, bound = ratio * advantages, ratio.clamp(1 - eps_low, 1 + eps_high) * advantages
    return _fill(torch.where(advantages < 0, torch.maximum(free, bound), torch.minimum(free, bound)), mask)


def dapo_without_min(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """clip the ratio on both sides and leave out the min: tokens that moved the wrong way lose their gradient."""
    return _fill(_ratio(logprobs, gen_logprobs, mask).clamp(1 - eps_low, 1 + eps_high) * advantages[:, None], mask)


def dapo_half_widths_swapped(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """swap the half-widths, so that eps_high lies below 1 and eps_low above."""
    return _clip(_ratio(logprobs, gen_logprobs, mask), advantages, mask, eps_high, eps_low)


def dapo_upper_half_width_ignored(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """use the lower half-width for both sides, which is GRPO's symmetric clip."""
    return _clip(_ratio(logprobs, gen_logprobs, mask), advantages, mask, eps_low, eps_low)


def dapo_ratio_recomputed(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """recompute the old log-probs with the trainer: the ratio is 1 everywhere and nothing is ever clipped."""
    return _clip(_ratio(logprobs, logprobs.detach(), mask), advantages, mask, eps_low, eps_high)


def dapo_ratio_inverted(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """divide pi_gen by pi_train instead of pi_train by pi_gen."""
    return _clip(_ratio(gen_logprobs, logprobs, mask), advantages, mask, eps_low, eps_high)


# GSPO, Sec. 3.2


def gspo_without_length_normalisation(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """multiply the token ratios without the root: the ratio of whole sequences, which grows with their length."""
    ratio = _ratio(logprobs, gen_logprobs, mask).prod(-1, keepdim=True).expand(mask.shape)
    return _clip(ratio, advantages, mask, eps_low, eps_high)


def gspo_arithmetic_mean(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """average the token ratios instead of their logarithms (arithmetic for geometric mean)."""
    total = _fill(_ratio(logprobs, gen_logprobs, mask), mask).sum(-1, keepdim=True)
    ratio = (total / mask.sum(-1, keepdim=True)).expand(mask.shape)
    return _clip(ratio, advantages, mask, eps_low, eps_high)


def gspo_injected_tokens_in_the_length(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """take the root of the whole length, injected phrase included, so that interruptions pull the ratio towards 1."""
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


# Prompt average of one whole batch: (objective, mask, prompt_index) -> scalar


def average_over_tokens(objective, mask, prompt_index):
    """average over all tokens at once, so long prompts weigh more (that is token averaging)."""
    return _fill(objective, mask).sum() / mask.sum()


def average_over_completions(objective, mask, prompt_index):
    """average each completion first, so that in a prompt short completions weigh more (that is sample averaging)."""
    return (_fill(objective, mask).sum(-1) / mask.sum(-1)).mean()


def average_with_injected_tokens_in_the_length(objective, mask, prompt_index):
    """divide by the whole length of the completions, the injected phrase included."""
    return _prompt_average(objective, mask, prompt_index, _length_with_injected(mask))


def average_divided_by_generations(objective, mask, prompt_index):
    """divide a prompt's sum by its number of completions instead of tokens, so that length is rewarded."""
    return _prompt_average(objective, mask, prompt_index, torch.ones_like(prompt_index))


# Denominators


def aggregate_with_micro_batch_denominators(objective, mask, prompt_index, how, denominators):
    """take the denominators from each micro-batch and then average the micro-batches by their number of completions."""
    share = len(mask) / denominators.completions
    return share * _prompt_average(objective, mask, prompt_index, mask.sum(-1))


def denominators_with_filtered_prompts(lengths, prompt_index):
    """leave the filtered prompts in the number of prompts: the objective shrinks the more prompts are filtered."""
    return int((lengths > 0).sum()), int(prompt_index.max()) + 1, int(lengths.sum())


def denominators_with_truncated_completions(lengths, prompt_index):
    """count completions that carry no loss (truncated ones), so that truncation shrinks the objective."""
    kept_prompts = set(prompt_index[lengths > 0].tolist())
    completions = sum(prompt in kept_prompts for prompt in prompt_index.tolist())
    return completions, len(kept_prompts), int(lengths.sum())


# What the wrong answers share: the right pieces, written once more


def _fill(values, mask):
    return values.masked_fill(~mask, 0.0)


def _ratio(numerator, denominator, mask):
    return (_fill(numerator, mask) - _fill(denominator, mask)).exp()


def _weighted_logprobs(weight, logprobs, advantages, mask):
    return _fill(weight * advantages[:, None] * _fill(logprobs, mask), mask)


def _clip(ratio, advantages, mask, eps_low, eps_high):
    advantages = advantages[:, None]
    return _fill(torch.minimum(ratio * advantages, ratio.clamp(1 - eps_low, 1 + eps_high) * advantages), mask)


def _kept(rewards):
    return rewards[rewards.amax(-1) > rewards.amin(-1)]


def _centred(rewards):
    return rewards - rewards.mean(-1, keepdim=True)


def _std(values):
    return values.std(correction=0)


def _length_with_injected(mask):
    """Position after the last sampled token: what the completion's length is if injected tokens in between count."""
    return (mask * torch.arange(1, mask.shape[-1] + 1)).amax(-1)


def _prompt_average(objective, mask, prompt_index, lengths):
    averages = []
    for prompt in prompt_index.unique():
        rows = prompt_index == prompt
        averages.append(_fill(objective[rows], mask[rows]).sum() / lengths[rows].sum())
    return torch.stack(averages).mean()
