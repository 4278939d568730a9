"""Named wrong answers to the equations of loss.py; the claims that recognise them are in losses.py.

The docstring of each completes "This is what you get when you ...". They share no code with loss.py.

Arguments as in loss.py: logprobs, gen_logprobs, mask (B, T); advantages, lengths, prompt_index (B,); rewards (P, G).
Test: pytest tests/test_exercises.py
"""

import torch

# Ratio, Eq. 2


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


# CISPO, Eq. 4


def cispo_without_stop_gradient(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """let the gradient through the ratio, so a token's weight also depends on its own log-probability."""
    return _weighted_logprobs(_ratio(logprobs, gen_logprobs, mask).clamp(max=eps_max), logprobs, advantages, mask)


def cispo_cap_is_one_plus_eps(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """cap the ratio at 1 + eps_max instead of eps_max (the half-width of a clip, not a cap)."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    return _weighted_logprobs(ratio.clamp(max=1 + eps_max), logprobs, advantages, mask)


def cispo_cap_below_one(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """cap the ratio at 0.2 (the half-width of a clip, not a cap): on-policy tokens lose 4/5 of their weight."""
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
    """multiply by the advantage before taking the min, as a clipped loss does: where A < 0 the cap becomes a floor."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    advantages = advantages[:, None]
    return _fill(torch.minimum(ratio * advantages, eps_max * advantages) * _fill(logprobs, mask), mask)


def cispo_drops_capped_tokens(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """drop tokens above the cap, as a clip does, whereas CISPO keeps them with the weight eps_max."""
    ratio = _ratio(logprobs, gen_logprobs, mask).detach()
    return _weighted_logprobs(ratio * (ratio <= eps_max), logprobs, advantages, mask)


def cispo_to_be_minimised(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """return a loss to be minimised: what is asked for is the objective, to be maximised."""
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
    """take the max instead of the min where A < 0: tokens with a ratio above the clip lose their gradient."""
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


# The clip alone: (ratio, advantages, mask, eps_low, eps_high)


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


def clipped_of_bad_completions_only(how, logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """count a token only where the advantage is negative: CISPO's cap acts whatever its sign."""
    return mask & (advantages[:, None] < 0) & (_ratio(logprobs, gen_logprobs, mask) > eps_max)


# GSPO, Sec. 3.2


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


# Baseline and normalisation


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


def filter_keeps_solved_prompts(rewards):
    """keep every prompt with a correct answer, solved ones too: they have no gradient but enlarge the denominators."""
    return (rewards > 0).any(-1)


def filter_keeps_what_has_a_std(rewards):
    """ask whether the std is above 0: rounding in the mean of equal rewards can leave a std just above 0."""
    return rewards.std(-1) > 0


def weigh_by_the_shaped_reward(groups, *, zero_variance_filter, normalisation):
    """filter by the shaped reward: two right answers of different length look unequal, so the prompt is kept."""
    known = torch.tensor([all(header.correct is not None for header in group) for group in groups])
    return known & torch.tensor([len({header.reward for header in group}) > 1 for group in groups]), None


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
    if how != "prompt":
        divisor = denominators.completions * mask.sum(-1) if how == "sample" else denominators.tokens
        return (_fill(objective, mask).sum(-1) / divisor).sum()
    share = len(mask) / denominators.completions * mask.any()
    return share * _prompt_average(objective, mask, prompt_index, mask.sum(-1))


# Denominators


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


# Predictions


def weights_dapo_keeps_capped():
    """take DAPO's clip for the weight: what is the derivative of a constant?"""
    return 4, 1.26, -4, -8


def weights_dapo_drops_both():
    """let DAPO drop the token for both signs: which of the two terms is the smaller, for each sign?"""
    return 4, 0, -4, 0


def weights_cispo_drops():
    """let CISPO drop the token too: it never takes a token's gradient away."""
    return 0, 0, 0, -8


def dropped_all_right_only():
    """count only prompts whose answers are all right: where all are wrong there is no gradient either."""
    return 0.5**4, 0.9**16


def dropped_pass_rate():
    """take the pass rate itself for the share of prompts that are always solved."""
    return 0.5, 0.9


def dropped_is_kept():
    """give the share that is kept instead of the share that is dropped."""
    return 1 - 2 * 0.5**4, 1 - 0.9**16


# Right pieces that the wrong answers share, written once more so that nothing of loss.py is used


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
    """(B,): the position after the last sampled token, which is the length if injected tokens before it count."""
    return (mask * torch.arange(1, mask.shape[-1] + 1)).amax(-1)


def _prompt_average(objective, mask, prompt_index, lengths):
    averages = []
    for prompt in prompt_index.unique():
        rows = prompt_index == prompt
        averages.append(_fill(objective[rows], mask[rows]).sum() / lengths[rows].sum())
    return torch.stack(averages).mean()
