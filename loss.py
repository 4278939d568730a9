"""What the policy maximises: importance ratio, CISPO, DAPO, GRPO and GSPO per token, advantages, averages.

arXiv 2510.13786: Eq. 2 to 5, 7 and 8; Sec. 2 (baseline), 3.2 (each choice compared), 4 (ScaleRL), A.17 (clips).

    ratio      rho_it = pi_train(y_it) / pi_gen(y_it)                                                       Eq. 2
    baseline   min(rho_it A_i, clip(rho_it, 1 - eps_low, 1 + eps_high) A_i), sample average                 Eq. 3
    CISPO      sg(min(rho_it, eps_max)) A_i log pi_train(y_it)            (sg: stop-gradient)               Eq. 4
    advantage  A_i = r_i - mean_j r_j over the G completions of a prompt; A_i / (std_j r_j + 1e-6)          Eq. 5
    GRPO       Eq. 3 with eps_low = eps_high, sample average                                                Eq. 7
    DAPO       Eq. 3 with prompt average                                                                    Eq. 8
    GSPO       min(s_i A_i, clip(s_i, 1 - eps_low, 1 + eps_high) A_i),  s_i = (prod_t rho_it)^(1 / |y_i|)   Sec. 3.2
    ScaleRL    CISPO, prompt average, A_i / std of all A in the batch, zero-variance prompts dropped        Sec. 4

Each recipe is put together from four choices: a per-token objective, `nonzero_variance`, `normalise` and `aggregate`
(GSPO's objective is its paper's under the sample average only). The baseline of Eq. 3 is `dapo` under
`aggregate(how="sample")`. Everything here is to be maximised.

    log pi_train -> logprobs (B, T) nats        A_i -> advantages (P, G), flattened to (B,) for the objectives
    log pi_gen   -> gen_logprobs (B, T) nats    r_i -> rewards (P, G)
    rho_it       -> ratio (B, T)                |y_i| -> lengths (B,) sampled tokens
    B completions, T completion tokens (prompts are left out), P prompts, G completions per prompt.
    mask (B, T) bool is True on tokens that the policy sampled. It is False on padding, on injected phrases, and on
    whole completions that carry no loss. Where it is False, value and gradient are 0, and no denominator counts the
    token.

Open in the paper: how injected phrases count. Here they do not count, since the policy did not choose them.

Deviation: GSPO's ratio is the geometric mean over the tokens, as in GSPO's own paper. The paper writes the ratio of
    whole sequences, which moves further from 1 with every token, so that half-widths of 3e-3 and 5e-3 make no sense.

ScaleRL's J (Sec. 4), worked through for three prompts of two completions each. Every pi_train is 1/2. The four
completions kept have ratios 4 (capped at 2), 1, 1 and 1/2, and 1, 3, 2 and 2 tokens:

>>> rewards = torch.tensor([[2.0, -2.0], [2.0, 2.0], [-2.0, 2.0]])  # (P, G); +-2, not +-1, to see the std of 2 act
>>> kept = nonzero_variance(rewards)                                # the second prompt is dropped
>>> advantages = normalise(group_advantages(rewards[kept]), "batch").flatten()  # (B,): 1, -1, -1, 1
>>> mask = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]]).bool()    # (B, T)
>>> logprobs = torch.full((4, 3), 1 / 2).log()
>>> gen_logprobs = torch.tensor([1 / 8, 1 / 2, 1 / 2, 1])[:, None].expand(4, 3).log()
>>> per_token = cispo(logprobs, gen_logprobs, advantages, mask, eps_max=2.0)
>>> prompt_index = torch.tensor([0, 0, 1, 1])
>>> whole_batch = global_denominators(mask.sum(-1), prompt_index)
>>> J = aggregate(per_token, mask, prompt_index, "prompt", whole_batch)
>>> # In units of log 2: ((-2 + 3) / 4 tokens + (2 - 1) / 4 tokens) / 2 prompts
>>> f"{J.item() / torch.log(torch.tensor(2.0)).item():.4f}"
'0.2500'

Test: pytest tests/test_loss.py, and `python -m doctest loss.py` for the examples.
Page: docs/paper/losses.md
"""

from collections.abc import Callable
from functools import wraps
from math import inf, nan
from typing import NamedTuple

import torch

# Open in the paper: which std and which epsilon. Here the population std (ddof 0) plus STD_EPS, for groups and batch
# alike. It keeps the division finite, and is far below the std of any unequal rewards of +1 and -1.
STD_EPS = 1e-6
NORMALISATIONS = ("prompt", "batch", "none")


# What a loss is. To add one, write its equation under the decorator `register_loss`: --loss, --help and the log follow


class Clip(NamedTuple):
    """A clip argument of a loss, and so a flag of train.py: eps_max is --eps-max."""

    default: float  # the paper's
    help: str
    off: float = inf  # the value at which it never acts


class Loss(NamedTuple):
    """A loss that --loss can name."""

    objective: Callable  # (logprobs, gen_logprobs, advantages, mask, **clips) -> (B, T) per token, to be maximised
    clipped: Callable  # the same arguments -> (B, T) bool, where cap or clip acts; its share of the mask is logged
    clips: dict[str, Clip]


LOSSES: dict[str, Loss] = {}  # by name; filled by `register_loss`


def register_loss(clipped, **clips):
    """Decorator: the objective is known to --loss by its function's name. clipped, clips: as in Loss.

    Each call raises ValueError for shapes that disagree.
    """

    def register(objective):
        @wraps(objective)
        def checked(logprobs, gen_logprobs, advantages, mask, **thresholds):
            _check_shapes(logprobs, gen_logprobs, advantages, mask)
            return objective(logprobs, gen_logprobs, advantages, mask, **thresholds)

        LOSSES[objective.__name__] = Loss(checked, clipped, clips)
        return checked

    return register


# Objectives per token, Eq. 2 to 8


def importance_ratio(logprobs, gen_logprobs, mask):
    """Eq. 2: rho = pi_train / pi_gen per token, (B, T); 1 where mask is False.

    logprobs      (B, T) nats  log pi_train of the sampled tokens
    gen_logprobs  (B, T) nats  log pi_gen, stored at sampling; recomputed by the trainer, rho would always be 1
    mask          (B, T) bool  True on tokens the policy sampled
    """
    return _log_ratio(logprobs, gen_logprobs, mask).exp()


def sequence_ratio(logprobs, gen_logprobs, mask):
    """GSPO's ratio: geometric mean of rho over the sampled tokens of a completion, (B, 1); 1 where there are none.

    Arguments as in importance_ratio.
    """
    total = _log_ratio(logprobs, gen_logprobs, mask).sum(-1, keepdim=True)
    return (total / mask.sum(-1, keepdim=True).clamp(min=1)).exp()


@torch.no_grad()
def cap_acts(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """(B, T) bool: sampled tokens with a ratio above the cap; tokens of advantage 0 do not count.

    Arguments as in cispo.
    """
    return mask & (advantages[:, None] != 0) & (importance_ratio(logprobs, gen_logprobs, mask) > eps_max)


@register_loss(clipped=cap_acts, eps_max=Clip(5.0, "cap on the ratio itself, >= 1 (Eq. 4)"))
def cispo(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """Eq. 4: truncated importance weight times REINFORCE, per token (B, T), not averaged.

    logprobs      (B, T) nats  log pi_train of the sampled tokens; the only input that carries a gradient
    gen_logprobs  (B, T) nats  log pi_gen when the token was sampled
    advantages    (B,)         one per completion, already normalised
    mask          (B, T) bool  True on tokens the policy sampled (not prompt, padding or injected phrase)
    eps_max       float        cap on the ratio itself, not 1 + eps; the paper tried 4, 5 and 8
    Raises ValueError if eps_max < 1 or the shapes disagree.
    """
    if not eps_max >= 1:
        raise ValueError(
            f"eps_max is {eps_max}; expected a cap on the ratio itself, at least 1 (the paper tried 4, 5 and 8). "
            "Likely cause: the half-width of a clip, as in 1 + eps. A cap below 1 would shrink even on-policy tokens."
        )
    # Detached: the ratio weighs the gradient of log pi_train and has none of its own. The cap bounds a token's
    # weight and never removes it, whatever the sign of the advantage. logprobs are filled too, since 0 * -inf is nan.
    weight = importance_ratio(logprobs, gen_logprobs, mask).clamp(max=eps_max).detach()
    return _fill(weight * advantages[:, None] * _fill(logprobs, mask), mask)


@torch.no_grad()
def clip_acts(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high, ratio=importance_ratio):
    """(B, T) bool: sampled tokens that have no gradient because of the clip of Eq. 3.

    A token beyond the side that the min leaves open does not count, nor does one whose advantage is 0. ratio is the
    function that the objective clips; the other arguments are as in dapo.
    """
    values = ratio(logprobs, gen_logprobs, mask)
    good = advantages[:, None] > 0
    bad = advantages[:, None] < 0
    return mask & (good & (values > 1 + eps_high) | bad & (values < 1 - eps_low))


@register_loss(
    clipped=clip_acts,
    eps_low=Clip(0.2, "lower half-width of the clip (Eq. 3, 8)"),
    eps_high=Clip(0.26, "upper half-width of the clip (Eq. 3, 8; A.17)"),
)
def dapo(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """Eq. 8, and under sample average Eq. 3: clipped ratio times advantage, per token (B, T), not averaged.

    eps_low       float        lower half-width: no gradient if the advantage is negative and the ratio < 1 - eps_low
    eps_high      float        upper half-width: no gradient if the advantage is positive and the ratio > 1 + eps_high
    The other arguments are as in cispo. Raises ValueError if a half-width is negative or the shapes disagree.
    """
    return _clip(importance_ratio(logprobs, gen_logprobs, mask), advantages, mask, eps_low, eps_high)


@register_loss(
    clipped=lambda *batch, eps: clip_acts(*batch, eps_low=eps, eps_high=eps),
    eps=Clip(0.2, "half-width of the clip on both sides (Eq. 7)"),
)
def grpo(logprobs, gen_logprobs, advantages, mask, *, eps):
    """Eq. 7: DAPO's objective with one half-width eps for both sides, per token (B, T), not averaged.

    Arguments and errors as in dapo.
    """
    return dapo(logprobs, gen_logprobs, advantages, mask, eps_low=eps, eps_high=eps)


@register_loss(
    clipped=lambda *batch, **clips: clip_acts(*batch, **clips, ratio=sequence_ratio),
    eps_low=Clip(3e-3, "lower half-width of the clip (conference Fig. 20)"),
    eps_high=Clip(5e-3, "upper half-width of the clip (conference Fig. 20)"),
)
def gspo(logprobs, gen_logprobs, advantages, mask, *, eps_low, eps_high):
    """GSPO (Sec. 3.2): one clipped ratio per completion, repeated over its tokens, (B, T), not averaged.

    This is GSPO only under sample average, where the equal terms of a completion's tokens average to one term; under
    prompt or token average long completions weigh more. Arguments and errors as in dapo; conference Fig. 20 found
    eps_low 3e-3 and eps_high 5e-3 best.
    Deviation: length-normalised ratio (module docstring).
    """
    ratio = sequence_ratio(logprobs, gen_logprobs, mask).expand(mask.shape)
    return _clip(ratio, advantages, mask, eps_low, eps_high)


# Advantages, Sec. 2 and 3.2


def group_advantages(rewards):
    """Reward minus the mean reward of the same prompt: rewards (P, G) -> advantages (P, G), not normalised.

    Raises ValueError if rewards is not (P, G).
    """
    _check_groups(rewards)
    return rewards - rewards.mean(-1, keepdim=True)


def normalise(advantages, how):
    """Divide advantages (P, G) by a population std plus 1e-6; returns (P, G).

    how  "prompt"  std of the prompt's own group (Eq. 5)
         "batch"   std of all advantages given, never of raw rewards; give only the prompts that were kept (ScaleRL)
         "none"    as they are (Dr. GRPO)
    Raises ValueError if how is none of these or advantages is not (P, G).
    """
    _check_groups(advantages)
    if how == "none":
        return advantages
    if how == "prompt":
        std = advantages.std(-1, keepdim=True, correction=0)
    elif how == "batch":
        std = advantages.std(correction=0)
    else:
        raise ValueError(f"unknown normalisation {how!r}; expected one of {', '.join(NORMALISATIONS)}")
    return advantages / (std + STD_EPS)


def nonzero_variance(rewards):
    """Zero-variance filter (Sec. 3.2): rewards (P, G) -> (P,) bool, True where the group's rewards are not all equal.

    Give it 2 v - 1 (+1 or -1), never a reward shaped by length: the paper's filter is 0 < mean(correct) < 1.
    Raises ValueError if rewards is not (P, G).
    """
    _check_groups(rewards)
    # Rewards are compared directly: rounding in the mean of equal rewards could leave a std just above 0.
    return (rewards != rewards[:, :1]).any(-1)


def compute_advantages(groups, *, zero_variance_filter, normalisation):
    """Sec. 3.2: filter, then normalise: P groups of G pipeline.RolloutMetadata -> kept (P,) bool, advantages (P, G).

    The filter looks at correctness (a graded reward: at v), never at a shaped reward. A group with a rollout on which
    the verifier failed is dropped too. Advantages are 0 in dropped groups. Truncated rollouts count as wrong answers.
    """
    graded = torch.tensor([all(rollout.value is not None for rollout in group) for group in groups])
    correct = torch.tensor([[2.0 * (rollout.value or 0.0) - 1 for rollout in group] for group in groups])
    # Open in the paper: whether truncated completions enter the group mean and the std. Here they enter both, as wrong
    # answers, and only their loss is masked. Without them the other rewards of a group could be equal, with a std of 0.
    rewards = torch.tensor([[rollout.reward for rollout in group] for group in groups])
    # Open in the paper: the order of filter and batch std. Here the batch std is that of the prompts kept.
    kept = graded & nonzero_variance(correct) if zero_variance_filter else graded
    advantages = torch.zeros_like(rewards)
    if kept.any():
        advantages[kept] = normalise(group_advantages(rewards[kept]), normalisation)
    return kept, advantages


def carries_loss(groups, kept):
    """A.15: (P, G) bool, True for the rollouts that train: those of kept prompts that are not truncated.

    groups, kept  as in compute_advantages
    """
    truncated = torch.tensor([[rollout.truncated for rollout in group] for group in groups])
    return kept[:, None] & ~truncated


# Averages, Sec. 3.2


class Denominators(NamedTuple):
    """What the averages divide by: counts over the whole batch of an optimizer step, all micro-batches and ranks."""

    completions: int  # with at least one sampled token
    prompts: int  # with at least one sampled token
    tokens: int  # sampled
    tokens_per_prompt: torch.Tensor  # (P,) int64, by prompt_index
    max_new_tokens: float = nan  # --max-new-tokens, which is no count: batches.divide sets it


def global_denominators(lengths, prompt_index):
    """Count the Denominators(completions, prompts, tokens, tokens_per_prompt) of a whole batch from its lengths alone.

    lengths       (B,) int  sampled tokens per completion (mask.sum(-1)); 0 if it carries no loss (truncated, dropped)
    prompt_index  (B,) int  which prompt of the batch a completion belongs to; gaps left by dropped prompts are fine
    Raises ValueError if the two are not of one length.
    """
    if lengths.dim() != 1 or lengths.shape != prompt_index.shape:
        raise ValueError(
            f"lengths {tuple(lengths.shape)} and prompt_index {tuple(prompt_index.shape)}; expected both (B,). "
            "Likely cause: the mask itself where mask.sum(-1) is meant."
        )
    tokens_per_prompt = torch.bincount(prompt_index, weights=lengths).long()  # exact: float64 holds such integers
    completions = (lengths > 0).sum()
    prompts = (tokens_per_prompt > 0).sum()
    return Denominators(int(completions), int(prompts), int(lengths.sum()), tokens_per_prompt)


def sample_divisor(lengths, prompt_index, denominators):
    """Eq. 3, 7: the mean over a completion's tokens, then over completions."""
    return denominators.completions * lengths


def prompt_divisor(lengths, prompt_index, denominators):
    """Eq. 8, ScaleRL: the mean over all tokens of a prompt's completions, then over prompts."""
    return denominators.prompts * denominators.tokens_per_prompt.to(lengths.device)[prompt_index]


def token_divisor(lengths, prompt_index, denominators):
    """The mean over all tokens."""
    return torch.full_like(lengths, denominators.tokens)


# What the tokens of each completion are divided by: (lengths (B,) sampled tokens, prompt_index (B,), denominators)
# -> (B,). To add an aggregation, add its row: --aggregation, --help and the tests follow. The divisor of a completion
# may depend on its own length, its prompt and the denominators, on nothing else of the micro-batch: else the shares of
# micro-batches do not add up to the average of the batch.
AGGREGATIONS = {"sample": sample_divisor, "prompt": prompt_divisor, "token": token_divisor}


def aggregate(objective, mask, prompt_index, how, denominators):
    """A micro-batch's share (a scalar) of the average over the whole batch.

    The shares of all micro-batches and ranks add up to that average.

    objective     (B, T)       from cispo, dapo, grpo or gspo
    mask          (B, T) bool  as in cispo; a mask without any True (a dummy to keep ranks in step) gives 0
    prompt_index  (B,) int     position of each completion's prompt in denominators.tokens_per_prompt
    how           a name in AGGREGATIONS
    denominators  from global_denominators on the whole batch, whatever part of it objective holds
    Raises ValueError if how is no such name.

    >>> objective, prompt_index = torch.tensor([[4.0, 8.0], [1.0, 0.0]]), torch.tensor([0, 1])
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> whole = global_denominators(mask.sum(-1), prompt_index)
    >>> aggregate(objective, mask, prompt_index, "prompt", whole).item()  # (12 / 2 + 1 / 1) / 2
    3.5
    >>> [aggregate(objective[i], mask[i], prompt_index[i], "prompt", whole).item() for i in ([0], [1])]
    [3.0, 0.5]
    """
    lengths = mask.sum(-1)  # (B,)
    if how not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation {how!r}; expected one of {', '.join(AGGREGATIONS)}")
    divisor = AGGREGATIONS[how](lengths, prompt_index, denominators)
    # A completion without tokens has weight 0. If it has tokens but divisor 0 (wrong denominators), inf shows it.
    weights = torch.where(lengths > 0, 1 / divisor.to(objective.dtype), 0.0)
    return (_fill(objective, mask).sum(-1) * weights).sum()


# Shared pieces


def _fill(values, mask):
    """values with 0 where mask is False; the gradient there is exactly 0 whatever values holds."""
    return values.masked_fill(~mask, 0.0)


def _log_ratio(logprobs, gen_logprobs, mask):
    """log pi_train - log pi_gen, (B, T) nats; 0 where mask is False."""
    # Filled before any exp: masked inputs may be -inf or nan, and a 0 gradient times exp of those would be nan.
    return _fill(logprobs - gen_logprobs, mask)


def _clip(ratio, advantages, mask, eps_low, eps_high):
    """min(ratio A, clip(ratio, 1 - eps_low, 1 + eps_high) A), (B, T); 0 where mask is False."""
    if not (eps_low >= 0 and eps_high >= 0):
        raise ValueError(
            f"the clip's half-widths are {eps_low} (below 1) and {eps_high} (above 1); expected 0 or more, as in "
            "clip(ratio, 1 - eps_low, 1 + eps_high). Likely cause: a signed offset, such as -0.2."
        )
    advantages = advantages[:, None]
    # min leaves one side of the clip open for each sign of A: a bad token that became likelier (A < 0, ratio far above
    # 1) must still be pushed down in full. With max it would have no gradient.
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - eps_low, 1 + eps_high) * advantages)
    return _fill(objective, mask)


def _check_shapes(logprobs, gen_logprobs, advantages, mask):
    """Raise ValueError unless the shapes are (B, T), (B, T), (B,), (B, T); broadcasting would hide a mix-up."""
    got = [tuple(tensor.shape) for tensor in (logprobs, gen_logprobs, advantages, mask)]
    expected = [got[0], got[0], got[0][:1], got[0]]
    if got != expected or len(got[0]) != 2:
        raise ValueError(
            f"logprobs, gen_logprobs, advantages, mask have shapes {got}; expected (B, T), (B, T), (B,), (B, T). "
            "Likely cause: advantages still (P, G), or prompt tokens left in one of the others."
        )


def _check_groups(values):
    """Raise ValueError unless values is (P, G): a flattened batch would silently become one big group."""
    if values.dim() != 2:
        raise ValueError(
            f"got shape {tuple(values.shape)}; expected (P, G), one row per prompt. Likely cause: flattened to (B,)."
        )
