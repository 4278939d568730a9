"""Claims about loss.py, Eq. 2 to 8: hand numbers, finite differences, loops and limits.

The claims with named wrong answers, and the inputs of these claims, come from the course (course/checks/losses.py).
Test: pytest tests/test_loss.py
"""

import doctest
import inspect
import math

import pytest
import torch
from composed_losses import BATCH_ADVANTAGES, GSPO_INPUT, GSPO_VALUE

import loss
from course.checks import losses as wrong
from course.checks.losses import (
    CISPO_GRADIENT,
    CISPO_INPUT,
    CISPO_VALUE,
    CLIP_INPUT,
    DAPO_GRADIENT,
    DAPO_VALUE,
    DENOMINATORS,
    INF,
    MASK,
    MICRO_BATCHES,
    NAN,
    OBJECTIVE,
    PROMPT_AVERAGE,
    PROMPT_INDEX,
    RATIO,
    SEQUENCE_RATIO,
    WHOLE,
    gradient,
)

OBJECTIVE = OBJECTIVE.masked_fill(~MASK, NAN)  # the project's aggregate reads nothing where the mask is False

EPS = {  # clip arguments of each loss, for tests that run over all losses
    "cispo": {"eps_max": 4.0},
    "dapo": {"eps_low": 0.25, "eps_high": 0.75},
    "grpo": {"eps": 0.25},
    "gspo": {"eps_low": 0.25, "eps_high": 0.75},
}


def batch_advantages(rewards):
    """ScaleRL's advantages of the kept prompts: filter, subtract the group's mean, divide by the batch's std."""
    return loss.normalise(loss.group_advantages(rewards[loss.nonzero_variance(rewards)]), "batch")


# Claims on compositions of functions: their mistakes are tested here, those of all other claims in test_exercises.py.
COMPOSED = (BATCH_ADVANTAGES, GSPO_VALUE)


def random_batch(seed, prompts=3, generations=4, tokens=5):
    """Rewards (P, G) of +-1, prompt 0 all right; log-probs and mask (P G, T), the last completion truncated."""
    torch.manual_seed(seed)
    rewards = torch.randint(0, 2, (prompts, generations)).double() * 2 - 1
    rewards[0], rewards[1, 0], rewards[1, 1] = 1.0, 1.0, -1.0
    shape = (prompts * generations, tokens)
    gen_logprobs = -3 * torch.rand(shape, dtype=torch.double)
    logprobs = gen_logprobs + torch.randn(shape, dtype=torch.double)  # ratios from about 0.1 to 10
    mask = torch.rand(shape) < 0.7
    mask[-1] = False
    return rewards, logprobs, gen_logprobs, mask


# Eq. 2 to 8, per token


def test_eq2_ratio_is_train_over_generator():
    RATIO.check(loss.importance_ratio)


def test_gspo_sequence_ratio_is_the_geometric_mean_and_1_without_tokens():
    SEQUENCE_RATIO.check(loss.sequence_ratio)


def test_eq4_cispo_gradient_is_the_capped_ratio_times_the_advantage():
    CISPO_GRADIENT.check(loss.cispo)


def test_eq4_cispo_is_the_capped_ratio_times_the_advantage_times_logprob():
    CISPO_VALUE.check(loss.cispo)


def test_eq8_dapo_takes_the_min_for_both_signs_on_both_sides_of_the_clip():
    DAPO_VALUE.check(loss.dapo)


def test_eq8_dapo_gradient_vanishes_only_where_the_clip_acts():
    DAPO_GRADIENT.check(loss.dapo)


def test_eq7_grpo_has_one_half_width_for_both_sides():
    # With the clip [3/4, 5/4] only the first of DAPO's six numbers changes: min(2, 5/4) = 5/4.
    expected = torch.tensor([[1.25, 1.0, 0.5, 0.0], [-4.0, -2.0, -1.5, 0.0]])
    torch.testing.assert_close(loss.grpo(*CLIP_INPUT, eps=0.25), expected)


def test_gspo_clips_one_length_normalised_ratio_per_completion():
    GSPO_VALUE.check(loss.gspo)


def test_gspo_under_sample_average_is_the_mean_over_completions():
    # (7/4 - 4 + 1/2 - 3/2) / 4 = -3.25 / 4
    mask, index = GSPO_INPUT[-1], torch.tensor([0, 0, 1, 1])
    objective = loss.gspo(*GSPO_INPUT, eps_low=0.25, eps_high=0.75)
    value = loss.aggregate(objective, mask, index, "sample", loss.global_denominators(mask.sum(-1), index))
    assert value.item() == pytest.approx(-3.25 / 4)


@pytest.mark.parametrize("name", ["dapo", "grpo", "gspo"])
def test_eq3_clipped_gradient_is_the_finite_difference(name):
    # Without CISPO: because of its stop-gradient, its gradient is not the slope of its value.
    _, logprobs, gen_logprobs, mask = random_batch(seed=0)
    advantages = torch.linspace(-2, 2, len(mask), dtype=torch.double)
    objective = loss.LOSSES[name].objective
    assert torch.autograd.gradcheck(
        lambda logprobs: objective(logprobs, gen_logprobs, advantages, mask, **EPS[name]), logprobs.requires_grad_()
    )


@pytest.mark.parametrize("name", loss.LOSSES)
def test_eq2_at_equal_policies_every_loss_has_the_gradient_of_reinforce(name):
    # rho = 1 lies inside every clip and below every cap, so the gradient is the advantage on each sampled token.
    _, logprobs, _, mask = random_batch(seed=0)
    advantages = torch.linspace(-2, 2, len(mask), dtype=torch.double)
    grad = gradient(loss.LOSSES[name].objective, logprobs, logprobs, advantages, mask, **EPS[name])
    torch.testing.assert_close(grad, advantages[:, None] * mask)


@pytest.mark.parametrize("poison", [-INF, INF, NAN])
@pytest.mark.parametrize("poisoned", [(0,), (1,), (0, 1), (2,)], ids=["logprobs", "gen_logprobs", "both", "advantages"])
@pytest.mark.parametrize("name", loss.LOSSES)
def test_masked_positions_leave_no_trace_whatever_they_hold(name, poisoned, poison):
    _, logprobs, gen_logprobs, mask = random_batch(seed=1)  # the last completion is masked on all its tokens
    advantages = torch.linspace(-2, 2, len(mask), dtype=torch.double)
    clean, bad = (logprobs, gen_logprobs, advantages, mask), [logprobs, gen_logprobs, advantages, mask]
    for i in poisoned:  # an advantage counts as masked when all its tokens are
        bad[i] = bad[i].masked_fill(~mask.any(-1) if i == 2 else ~mask, poison)
    objective = loss.LOSSES[name].objective
    value, grad = objective(*bad, **EPS[name]), gradient(objective, *bad, **EPS[name])
    assert (value[~mask] == 0).all() and (grad[~mask] == 0).all()
    assert torch.equal(value, objective(*clean, **EPS[name]))
    assert torch.equal(grad, gradient(objective, *clean, **EPS[name]))


def test_a17_clipped_tokens_are_those_that_cap_or_clip_changes():
    # CISPO: ratio 8 for both signs of the advantage. DAPO: ratio 2 for a positive, 1/2 for a negative advantage.
    cispo = loss.LOSSES["cispo"].clipped(*CISPO_INPUT, eps_max=4.0)
    assert cispo.tolist() == [[False, True, False, False], [False, True, False, False]]
    assert not loss.LOSSES["cispo"].clipped(*CISPO_INPUT, eps_max=9.0).any()
    dapo = loss.LOSSES["dapo"].clipped(*CLIP_INPUT, eps_low=0.25, eps_high=0.75)
    assert dapo.tolist() == [[True, False, False, False], [False, False, True, False]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", loss.LOSSES)
def test_a17_clipped_tokens_are_those_whose_objective_would_be_another_without_the_bound(name, seed):
    _, logprobs, gen_logprobs, mask = random_batch(seed)
    advantages = torch.linspace(-2, 2, len(mask), dtype=torch.double)
    advantages[3] = 0  # nothing to clip
    objective = loss.LOSSES[name].objective
    batch = logprobs, gen_logprobs, advantages, mask
    unbounded = objective(*batch, **dict.fromkeys(EPS[name], INF))
    expected = (objective(*batch, **EPS[name]) - unbounded).abs() > 1e-9  # beside rounding
    assert expected.any() and torch.equal(loss.LOSSES[name].clipped(*batch, **EPS[name]), expected)


# Advantages


def test_eq5_group_advantages_are_rewards_minus_the_mean_of_the_prompt():
    # means (1 - 1 + 1 - 1) / 4 = 0 and (1 - 1 - 1 - 1) / 4 = -1/2
    rewards = torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, -1.0, -1.0, -1.0]])
    expected = torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.5, -0.5, -0.5, -0.5]])
    assert torch.equal(loss.group_advantages(rewards), expected)


def test_eq5_prompt_normalisation_divides_by_the_std_of_the_group():
    # stds sqrt((1 + 1) / 2) = 1 and sqrt((9 + 9) / 2) = 3, each plus 1e-6; a group of zeros stays 0
    advantages = loss.normalise(torch.tensor([[1.0, -1.0], [3.0, -3.0], [0.0, 0.0]]), "prompt")
    torch.testing.assert_close(advantages, torch.tensor([[1.0, -1.0], [1.0, -1.0], [0.0, 0.0]]))


def test_sec4_batch_normalisation_divides_by_the_std_of_the_kept_advantages():
    BATCH_ADVANTAGES.check(batch_advantages)


def test_sec32_no_normalisation_leaves_the_advantages_alone():
    advantages = torch.tensor([[1.0, -1.0], [3.0, -3.0]])
    assert torch.equal(loss.normalise(advantages, "none"), advantages)


def test_sec32_filter_keeps_the_prompts_whose_rewards_differ():
    rewards = torch.tensor([[1.0, 1.0, 1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, -1.0]])
    assert loss.nonzero_variance(rewards).tolist() == [False, True, False]


def test_sec32_filter_is_not_fooled_by_rounding():
    # In fp32 the mean of eight rewards of 0.7 is not 0.7, so that the std is above 0 though all rewards are equal.
    rewards = torch.full((1, 8), 0.7)
    assert rewards.std() > 0 and not loss.nonzero_variance(rewards).any()


# Averages


def test_sec32_prompt_average_gives_every_prompt_the_same_weight():
    PROMPT_AVERAGE.check(loss.aggregate)


def test_sec32_sample_average_gives_every_completion_the_same_weight():
    # (4 + 8 + (1 + 3) / 2 + (2 - 1 + 2) / 3) / 4 = 15 / 4
    assert loss.aggregate(OBJECTIVE, MASK, PROMPT_INDEX, "sample", WHOLE).item() == pytest.approx(15 / 4)


def test_sec32_token_average_gives_every_token_the_same_weight():
    # (4 + 8 + 1 + 3 + 2 - 1 + 2) / 7
    assert loss.aggregate(OBJECTIVE, MASK, PROMPT_INDEX, "token", WHOLE).item() == pytest.approx(19 / 7)


def test_sec32_shares_of_micro_batches_add_up_to_the_whole_batch():
    MICRO_BATCHES.check(loss.aggregate)


def test_sec32_denominators_leave_out_filtered_prompts_and_truncated_completions():
    DENOMINATORS.check(loss.global_denominators)


def test_denominators_per_prompt_follow_the_prompt_index_across_gaps():
    # prompt 2 has 3 + 2 tokens, prompt 0 has 4; prompt 1 was dropped, so no completion has its index
    count = loss.global_denominators(torch.tensor([3, 4, 2]), torch.tensor([2, 0, 2]))
    assert (count.completions, count.prompts, count.tokens) == (3, 2, 9)
    assert count.tokens_per_prompt.tolist() == [4, 0, 5]


PARTITIONS = {
    "one by one": [[row] for row in range(12)],
    "uneven, cutting prompts": [[0, 1, 2, 3, 4], [5], [6, 7, 8, 9, 10, 11]],
    "two ranks with two micro-batches each": [[0, 2, 4], [6, 8, 10], [1, 3, 5, 7], [9, 11]],
}


@pytest.mark.parametrize("how", loss.AGGREGATIONS)
@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
def test_gradient_does_not_depend_on_micro_batches_or_ranks(how, partition):
    _, logprobs, gen_logprobs, mask = random_batch(seed=2)
    advantages, index = torch.linspace(-2, 2, 12, dtype=torch.double), torch.arange(12) // 4
    whole = loss.global_denominators(mask.sum(-1), index)

    def value_and_gradient(parts):
        parameter, total = logprobs.clone().requires_grad_(), 0.0
        for rows in parts:
            objective = loss.cispo(parameter[rows], gen_logprobs[rows], advantages[rows], mask[rows], eps_max=4.0)
            share = loss.aggregate(objective, mask[rows], index[rows], how, whole)
            share.backward()
            total += share.item()
        return total, parameter.grad

    (value, grad), (expected, expected_grad) = value_and_gradient(partition), value_and_gradient([list(range(12))])
    assert value == pytest.approx(expected, rel=1e-12) and expected != 0  # float64; only the order of adding differs
    torch.testing.assert_close(grad, expected_grad, rtol=1e-12, atol=0)


def test_completion_missing_from_the_denominators_is_not_averaged_by_a_guess():
    forgotten = loss.Denominators(4, 2, 7, torch.tensor([2, 0]))
    assert not loss.aggregate(OBJECTIVE, MASK, PROMPT_INDEX, "prompt", forgotten).isfinite()


@pytest.mark.parametrize("how", loss.AGGREGATIONS)
def test_dummy_micro_batch_adds_nothing_but_can_be_differentiated(how):
    # A rank without completions still runs forward and backward, on a dummy; prompt 1 has no tokens in the whole batch.
    logprobs = torch.full((2, 3), NAN).requires_grad_()
    mask, index = torch.zeros(2, 3, dtype=torch.bool), torch.tensor([0, 1])
    whole = loss.Denominators(completions=1, prompts=1, tokens=3, tokens_per_prompt=torch.tensor([3, 0]))
    objective = loss.cispo(logprobs, torch.full((2, 3), -INF), torch.ones(2), mask, eps_max=4.0)
    share = loss.aggregate(objective, mask, index, how, whole)
    share.backward()
    assert share.item() == 0 and (logprobs.grad == 0).all()


# Recipes, put together from the parts


def kept_terms(rewards, logprobs, gen_logprobs, mask, term):
    """Per prompt i a list, per completion j with tokens, of lists of term(log pi_train, log pi_gen, i, j) per token."""
    generations = rewards.shape[1]
    for i in range(len(rewards)):
        rows = [(j, i * generations + j) for j in range(generations) if mask[i * generations + j].any()]
        yield [
            [term(x.item(), g.item(), i, j) for x, g, m in zip(logprobs[row], gen_logprobs[row], mask[row]) if m]
            for j, row in rows
        ]


@pytest.mark.parametrize("seed", range(5))
def test_sec4_scalerl_objective_is_the_loop_over_prompts_completions_and_tokens(seed):
    rewards, logprobs, gen_logprobs, mask = random_batch(seed)
    kept = loss.nonzero_variance(rewards)
    rows = kept.repeat_interleave(4)
    advantages, index = batch_advantages(rewards).flatten(), torch.arange(len(rewards)).repeat_interleave(4)[rows]
    objective = loss.cispo(logprobs[rows], gen_logprobs[rows], advantages, mask[rows], eps_max=4.0)
    whole = loss.global_denominators(mask[rows].sum(-1), index)
    value = loss.aggregate(objective, mask[rows], index, "prompt", whole).item()

    groups = [group for group in rewards.tolist() if len(set(group)) > 1]
    centred = [[r - sum(group) / 4 for r in group] for group in groups]
    std = math.sqrt(sum(a * a for group in centred for a in group) / (4 * len(groups)))  # centred: their mean is 0
    keep = kept.repeat_interleave(4)
    terms = kept_terms(
        rewards[kept], logprobs[keep], gen_logprobs[keep], mask[keep],
        lambda x, g, i, j: min(math.exp(x - g), 4.0) * centred[i][j] / (std + 1e-6) * x,
    )  # fmt: skip
    averages = [sum(map(sum, prompt)) / sum(map(len, prompt)) for prompt in terms if prompt]
    assert value == pytest.approx(sum(averages) / len(averages), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_eq3_baseline_is_the_loop_over_completions_and_tokens(seed):
    rewards, logprobs, gen_logprobs, mask = random_batch(seed)
    advantages, index = loss.normalise(loss.group_advantages(rewards), "prompt"), torch.arange(12) // 4
    objective = loss.dapo(logprobs, gen_logprobs, advantages.flatten(), mask, eps_low=0.2, eps_high=0.26)
    whole = loss.global_denominators(mask.sum(-1), index)
    value = loss.aggregate(objective, mask, index, "sample", whole).item()

    def term(x, g, i, j):
        group, ratio = rewards[i].tolist(), math.exp(x - g)
        mean = sum(group) / 4
        advantage = (group[j] - mean) / (math.sqrt(sum((r - mean) ** 2 for r in group) / 4) + 1e-6)
        return min(ratio * advantage, min(max(ratio, 0.8), 1.26) * advantage)

    prompts = kept_terms(rewards, logprobs, gen_logprobs, mask, term)
    averages = [sum(completion) / len(completion) for prompt in prompts for completion in prompt]
    assert value == pytest.approx(sum(averages) / len(averages), rel=1e-12)


# What is refused


@pytest.mark.parametrize("eps_max", [0.2, 0.0, -1.0, NAN])
def test_eq4_cap_below_one_is_refused(eps_max):
    with pytest.raises(ValueError, match="expected a cap on the ratio itself, at least 1"):
        loss.cispo(*CISPO_INPUT, eps_max=eps_max)


@pytest.mark.parametrize("name, flag", [(name, flag) for name in ("dapo", "grpo", "gspo") for flag in EPS[name]])
@pytest.mark.parametrize("half_width", [-0.2, NAN])
def test_eq3_negative_half_widths_are_refused(name, flag, half_width):
    with pytest.raises(ValueError, match=rf"half-widths are .*{half_width}.*; expected 0 or more"):
        loss.LOSSES[name].objective(*CLIP_INPUT, **EPS[name] | {flag: half_width})


@pytest.mark.parametrize("name", loss.LOSSES)
def test_shapes_that_would_broadcast_are_refused(name):
    logprobs, gen_logprobs, advantages, mask = CISPO_INPUT
    for wrong_shapes in (
        (logprobs, gen_logprobs, advantages[:, None], mask),  # (B, 1)
        (logprobs, gen_logprobs[:1], advantages, mask),  # one row for all completions
        (logprobs, gen_logprobs, advantages[:1], mask),  # one advantage for all completions
        (logprobs[0], gen_logprobs[0], advantages[0], mask[0]),  # one completion, without the dimension B
    ):
        with pytest.raises(ValueError, match=r"expected \(B, T\), \(B, T\), \(B,\), \(B, T\)"):
            loss.LOSSES[name].objective(*wrong_shapes, **EPS[name])


def test_rewards_without_groups_are_refused():
    for function, how in ((loss.group_advantages, ()), (loss.nonzero_variance, ()), (loss.normalise, ("prompt",))):
        with pytest.raises(ValueError, match=r"got shape \(4,\); expected \(P, G\)"):
            function(torch.ones(4), *how)


def test_mask_in_place_of_lengths_is_refused():
    with pytest.raises(ValueError, match=r"lengths \(4, 3\)"):
        loss.global_denominators(MASK, PROMPT_INDEX)


def test_unknown_average_and_normalisation_are_refused_naming_the_choices():
    with pytest.raises(ValueError, match="'prompts'; expected one of sample, prompt, token"):
        loss.aggregate(OBJECTIVE, MASK, PROMPT_INDEX, "prompts", WHOLE)
    with pytest.raises(ValueError, match="'std'; expected one of prompt, batch, none"):
        loss.normalise(torch.ones(2, 2), "std")


# The module as a whole


def test_inputs_are_never_written_to():
    rewards, index = torch.tensor([[1.0, -1.0], [1.0, 1.0]]), PROMPT_INDEX
    calls = [(objective, CISPO_INPUT, EPS[name]) for name, (objective, *_) in loss.LOSSES.items()]
    calls += [(clipped, CISPO_INPUT, EPS[name]) for name, (_, clipped, _) in loss.LOSSES.items()]
    calls += [(loss.normalise, (rewards, how), {}) for how in loss.NORMALISATIONS]
    calls += [(loss.group_advantages, (rewards,), {}), (loss.nonzero_variance, (rewards,), {})]
    calls += [(loss.aggregate, (OBJECTIVE, MASK, index, how, WHOLE), {}) for how in loss.AGGREGATIONS]
    calls += [(loss.global_denominators, (MASK.sum(-1), index), {})]
    for function, arguments, eps in calls:
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        before = [tensor.clone() for tensor in tensors]
        function(*arguments, **eps)
        for tensor, copy in zip(tensors, before):
            torch.testing.assert_close(tensor, copy, rtol=0, atol=0, equal_nan=True)


def test_losses_name_exactly_the_clip_arguments_that_each_reads():
    for name, (objective, _, clips) in loss.LOSSES.items():
        parameters = inspect.signature(objective).parameters.values()
        assert objective.__name__ == name
        assert list(clips) == [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]


def test_docstring_examples_run():
    results = doctest.testmod(loss)
    assert results.attempted > 0 and results.failed == 0


# The wrong answers


@pytest.mark.parametrize(
    "claim, mistake",
    [pytest.param(claim, mistake, id=mistake.__name__) for claim in COMPOSED for mistake in claim.mistakes],
)
def test_wrong_answer_is_caught_and_named(claim, mistake):
    with pytest.raises(AssertionError) as failure:
        claim.check(mistake)
    named = [line.strip() for line in str(failure.value).splitlines() if "This is what" in line]
    assert named == [claim.named(mistake)]  # this one and no other: no two mistakes give the same numbers


def test_failing_claim_says_expected_yours_and_the_mistake():
    with pytest.raises(AssertionError) as failure:
        PROMPT_AVERAGE.check(wrong.average_over_tokens)
    assert str(failure.value).splitlines() == [
        "prompt_average: every prompt has weight 1/2, whatever its length",
        "  expected 3.7   shape ()",
        "  yours    2.714 shape ()",  # 19 / 7
        "  This is what you get when you average over all tokens at once, so long prompts weigh more "
        "(that is token averaging).",
    ]


def test_claim_refuses_right_numbers_in_a_wrong_shape():
    with pytest.raises(AssertionError, match=r"yours    \[3.7\] shape \(1,\)"):
        PROMPT_AVERAGE.check(lambda *_: torch.tensor([3.7]))
