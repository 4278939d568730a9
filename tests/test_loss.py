"""Claims about loss.py, Eq. 2 to 8: hand numbers, finite differences, loops and limits.

The claims with named wrong answers are those of the course (course/checks/losses.py).
Test: pytest tests/test_loss.py
"""

import math
from functools import partial

import pytest
import torch
from conftest import batch, check_exercise, refuses

import loss

NAN, INF = float("nan"), float("inf")


def inputs(pi_train, pi_gen, advantages, sampled):
    """Probabilities and strings of 0 and 1 -> logprobs, gen_logprobs (B, T) nats, advantages (B,), mask (B, T) bool."""
    mask = torch.tensor([[flag == "1" for flag in row] for row in sampled])
    return torch.tensor(pi_train).log(), torch.tensor(pi_gen).log(), torch.tensor(advantages), mask


def value_and_gradient(objective, logprobs, *rest, **eps):
    """(2, B, T): the objective, and the gradient of its sum with respect to logprobs."""
    logprobs = logprobs.clone().requires_grad_()
    value = objective(logprobs, *rest, **eps)
    value.sum().backward()
    return torch.stack([value.detach(), logprobs.grad])


# Both signs of the advantage; ratios 2, 1 and 1/2, where pi_train is 1/2; the last column is padding.
BATCH = inputs([[1 / 2, 1 / 2, 1 / 2, NAN]] * 2, [[1 / 4, 1 / 2, 1.0, 0.0]] * 2, [1.0, -2.0], ["1110", "1110"])
# The clip [3/4, 7/4]. The objective: 7/4, 1, 1/2, and -2 times 2, 1, 3/4. The gradient is 0 where the bound is taken.
CLIPPED = [[[1.75, 1.0, 0.5, 0.0], [-4.0, -2.0, -1.5, 0.0]], [[0.0, 1.0, 0.5, 0.0], [-4.0, -2.0, 0.0, 0.0]]]

every_loss = pytest.mark.parametrize("name", loss.LOSSES)
every_aggregation = pytest.mark.parametrize("how", loss.AGGREGATIONS)


def clips(name):
    """The clip arguments of a loss: the defaults that its row states."""
    return {clip: one.default for clip, one in loss.LOSSES[name].clips.items()}


# Token ratios 4 and 1, or 1/4 and 1, with an injected token between: geometric means 2 and 1/2; clip [3/4, 7/4].
GSPO_INPUT = inputs(
    [[1 / 2, 1 / 4, 1 / 2, NAN]] * 2 + [[1 / 8, 1 / 4, 1 / 2, NAN]] * 2,
    [[1 / 8, 1.0, 1 / 2, 0.0]] * 2 + [[1 / 2, 1.0, 1 / 2, 0.0]] * 2,
    [1.0, -2.0, 1.0, -2.0],
    ["1010"] * 4,
)


def random_batch(seed):
    """[logprobs, gen_logprobs (B, T), advantages (B,), mask (B, T)] of 12 completions, the last one truncated."""
    torch.manual_seed(seed)
    gen_logprobs = -3 * torch.rand((12, 5), dtype=torch.double)
    logprobs = gen_logprobs + torch.randn((12, 5), dtype=torch.double)  # ratios from about 0.1 to 10
    mask = torch.rand((12, 5)) < 0.7
    mask[-1] = False
    return [logprobs, gen_logprobs, torch.linspace(-2, 2, 12, dtype=torch.double), mask]


def objective(name):
    """The objective of a loss with its default clips."""
    return partial(loss.LOSSES[name].objective, **clips(name))


# Eq. 2 to 8, per token


def test_eq2_ratio_is_train_over_generator():
    check_exercise(loss, "ratio")


def test_gspo_sequence_ratio_is_the_geometric_mean_and_1_without_tokens():
    check_exercise(loss, "gspo")


def test_eq4_cispo_gradient_is_the_capped_ratio_times_the_advantage():
    check_exercise(loss, "cispo")


def test_eq8_dapo_takes_the_min_for_both_signs_on_both_sides_of_the_clip():
    found = value_and_gradient(loss.dapo, *BATCH, eps_low=0.25, eps_high=0.75)
    torch.testing.assert_close(found, torch.tensor(CLIPPED))


def test_eq7_grpo_has_one_half_width_for_both_sides():
    # With the clip [3/4, 5/4] only the first of DAPO's six numbers changes: min(2, 5/4) = 5/4.
    expected = torch.tensor([[1.25, 1.0, 0.5, 0.0], [-4.0, -2.0, -1.5, 0.0]])
    torch.testing.assert_close(loss.grpo(*BATCH, eps=0.25), expected)


def test_gspo_clips_one_length_normalised_ratio_per_completion():
    # min(2, 7/4), min(-4, -7/2), min(1/2, 3/4), min(-1, -3/2), each on both sampled tokens
    expected = torch.tensor([1.75, -4.0, 0.5, -1.5])[:, None] * GSPO_INPUT[-1]
    torch.testing.assert_close(loss.gspo(*GSPO_INPUT, eps_low=0.25, eps_high=0.75), expected)


@pytest.mark.parametrize("name", ["dapo", "grpo", "gspo"])
def test_eq3_clipped_gradient_is_the_finite_difference(name):
    # Without CISPO: because of its stop-gradient, its gradient is not the slope of its value.
    logprobs, *rest = random_batch(seed=0)
    assert torch.autograd.gradcheck(lambda logprobs: objective(name)(logprobs, *rest), logprobs.requires_grad_())


@every_loss
def test_eq2_at_equal_policies_every_loss_has_the_gradient_of_reinforce(name):
    # rho = 1 lies inside every clip and below every cap, so the gradient is the advantage on each sampled token.
    logprobs, _, advantages, mask = random_batch(seed=0)
    _, grad = value_and_gradient(objective(name), logprobs, logprobs, advantages, mask)
    torch.testing.assert_close(grad, advantages[:, None] * mask)


@pytest.mark.parametrize("poison", [-INF, NAN])
@pytest.mark.parametrize("poisoned", [(0, 1), (0,), (1,), (2,)])  # both log-probs, or one of the first three arguments
@every_loss
def test_masked_positions_leave_no_trace_whatever_they_hold(name, poisoned, poison):
    clean = random_batch(seed=1)  # the last completion is masked on all its tokens
    mask = clean[-1]
    counts = mask, mask, mask.any(-1)  # an advantage is masked when all its tokens are
    bad = [x.masked_fill(~counts[i], poison) if i in poisoned else x for i, x in enumerate(clean)]
    found = value_and_gradient(objective(name), *bad)
    assert (found[:, ~mask] == 0).all() and torch.equal(found, value_and_gradient(objective(name), *clean))


@every_loss
def test_a_completion_is_worth_the_same_alone_and_with_more_padding(name):
    # So neither the cut into micro-batches nor their width changes what is learnt.
    batch = random_batch(seed=3)
    for row, expected in enumerate(objective(name)(*batch)):
        one = [x[row : row + 1] for x in batch]
        wider = [torch.nn.functional.pad(x, (0, 3)) if x.dim() == 2 else x for x in one]
        torch.testing.assert_close(objective(name)(*wider)[0, : len(expected)], expected)


@every_loss
def test_a17_clipped_tokens_are_those_whose_objective_would_be_another_without_the_bound(name):
    batch = random_batch(seed=0)
    batch[2][3] = 0  # nothing to clip
    known = loss.LOSSES[name]
    unbounded = known.objective(*batch, **{clip: one.off for clip, one in known.clips.items()})
    expected = (objective(name)(*batch) - unbounded).abs() > 1e-9  # beside rounding
    assert expected.any() == bool(known.clips) and torch.equal(known.clipped(*batch, **clips(name)), expected)


# Advantages


def test_eq5_group_advantages_are_rewards_minus_the_mean_of_the_prompt():
    check_exercise(loss, "baseline")


def test_eq5_normalisation_divides_by_the_std_of_the_batch_or_of_the_prompt_or_not_at_all():
    check_exercise(loss, "advantages")


def test_sec32_filter_keeps_the_prompts_whose_rewards_differ_and_is_not_fooled_by_rounding():
    check_exercise(loss, "zero-variance")


def test_sec3_2_prompts_all_right_or_all_wrong_are_dropped_before_the_batch_std():
    groups = batch([True, False], [True, True], [False, False])
    kept, advantages = loss.compute_advantages(groups, zero_variance_filter=True, normalisation="batch")
    assert kept.tolist() == [True, False, False]
    # The std of (1, -1) is 1; with the four zeros of the other prompts it would be sqrt(1/3), the advantages 1.73.
    assert advantages.tolist() == [[pytest.approx(1, abs=1e-5), pytest.approx(-1, abs=1e-5)], [0, 0], [0, 0]]


def test_the_filter_looks_at_correctness_and_not_at_a_shaped_reward():
    check_exercise(loss, "shaped-filter")


# Averages


def test_sec32_averages_give_every_prompt_completion_or_token_the_same_weight():
    check_exercise(loss, "aggregate")


@every_aggregation
def test_shares_of_any_parts_add_up_to_the_whole_batch_and_empty_rows_weigh_nothing(how):
    objective, _, _, mask = random_batch(seed=2)  # the last completion has no tokens, as a rank's dummy has none
    index = torch.arange(3).repeat_interleave(4)
    whole = loss.global_denominators(mask.sum(-1), index)._replace(max_new_tokens=9)
    expected = loss.aggregate(objective, mask, index, how, whole)
    for sizes in ([12], [1] * 12, [5, 4, 3]):
        parts = zip(objective.split(sizes), mask.split(sizes), index.split(sizes))
        shares = [loss.aggregate(*part, how, whole) for part in parts]
        assert math.isfinite(expected) and sum(shares).item() == pytest.approx(expected.item(), rel=1e-12)


def test_sec32_denominators_leave_out_filtered_prompts_and_truncated_completions():
    check_exercise(loss, "denominators")


# Recipes, put together from the parts


def test_sec4_scalerl_objective_is_the_loop_over_prompts_completions_and_tokens():
    logprobs, gen_logprobs, _, mask = random_batch(seed=0)
    groups = batch([True] * 4, [True, False, False, False], [True, True, False, True])
    kept, advantages = loss.compute_advantages(groups, zero_variance_filter=True, normalisation="batch")
    mask &= kept.repeat_interleave(4)[:, None]
    index = torch.arange(3).repeat_interleave(4)
    objective = loss.cispo(logprobs, gen_logprobs, advantages.flatten(), mask, eps_max=4.0)
    whole = loss.global_denominators(mask.sum(-1), index)
    value = loss.aggregate(objective, mask, index, "prompt", whole).item()

    std = math.sqrt(6 / 8) + 1e-6  # of 3/2, -1/2, -1/2, -1/2 and 1/2, 1/2, -3/2, 1/2, whose mean is 0
    averages = []
    for first, centred in ((4, (1.5, -0.5, -0.5, -0.5)), (8, (0.5, 0.5, -1.5, 0.5))):
        terms = []
        for row, advantage in enumerate(centred, first):
            pairs = zip(logprobs[row][mask[row]].tolist(), gen_logprobs[row][mask[row]].tolist())
            terms += [min(math.exp(x - g), 4.0) * advantage / std * x for x, g in pairs]
        averages.append(sum(terms) / len(terms))
    assert value == pytest.approx(sum(averages) / 2, rel=1e-6)  # rewards are fp32


# What is refused


@pytest.mark.parametrize("name, clip", [
    ("cispo", {"eps_max": 0.2}), ("cispo", {"eps_max": NAN}), ("dapo", {"eps_low": -0.2}), ("grpo", {"eps": NAN}),
    ("gspo", {"eps_high": -0.2}),
])  # fmt: skip
def test_eq3_eq4_a_cap_below_one_and_a_negative_half_width_are_refused(name, clip):
    objective(name)(*BATCH, **dict.fromkeys(clip, float(name == "cispo")))  # the least that is none
    refuses("expected|at least", objective(name), *BATCH, **clip)


@every_loss
def test_shapes_that_would_broadcast_are_refused(name):
    logprobs, gen_logprobs, advantages, mask = BATCH
    for wrong_shapes in (
        (logprobs, gen_logprobs, advantages[:, None], mask),  # (B, 1)
        (logprobs, gen_logprobs[:1], advantages, mask),  # one row for all completions
        (logprobs[0], gen_logprobs[0], advantages[0], mask[0]),  # one completion, without the dimension B
    ):
        refuses("expected", objective(name), *wrong_shapes)


@pytest.mark.parametrize("function, arguments", [
    (loss.group_advantages, [torch.ones(4)]),
    (loss.global_denominators, [torch.ones(2, 2) > 0, torch.tensor([0, 1])]),  # the mask in place of the lengths
])  # fmt: skip
def test_other_shapes_are_refused(function, arguments):
    refuses("expected", function, *arguments)
