"""Chapter 3: advantages and filters (Eq. 5, Sec. 3.2). Claims, wrong answers, exercises.

Arguments as in loss.py: rewards, advantages (P, G). Test: pytest tests/test_exercises.py
"""

import math
from operator import call
from types import SimpleNamespace

import torch

from course.checks.claims import Chapter

ADVANTAGES = Chapter()


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


def baseline_over_the_std(rewards):
    """divide by the std as well, which is `normalise`'s task."""
    return (rewards - rewards.mean(-1, keepdim=True)) / rewards.std(-1, keepdim=True)


def baseline_over_the_population_std(rewards):
    """divide by the population std as well, which is `normalise`'s task."""
    return (rewards - rewards.mean(-1, keepdim=True)) / rewards.std(-1, keepdim=True, correction=0)


# Means (1 - 1 + 1 - 1) / 4 = 0 and (1 - 1 - 1 - 1) / 4 = -1/2.
ADVANTAGES.write(
    name="baseline",
    where="loss.py:group_advantages",
    minutes=5,
    teaches="A completion is compared with the other completions of its own prompt.",
    hints=(
        "Sec. 2; A_i at the top of loss.py.",
        "Rewards are (P, G): one row per prompt.",
        "Subtract from every reward the mean of its row, the reward itself included.",
    ),
    says="rewards minus the mean of their own prompt",
    probe=call,
    inputs=(torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, -1.0, -1.0, -1.0]]),),
    expected=[[1.0, -1.0, 1.0, -1.0], [1.5, -0.5, -0.5, -0.5]],
    mistakes=(
        baseline_of_the_batch,
        baseline_leave_one_out,
        baseline_subtracts_the_rewards,
        baseline_over_the_wrong_axis,
        baseline_over_the_std,
        baseline_over_the_population_std,
    ),
)


# --- advantages ------------------------------------------------------------------------------------------------------


def _spread(advantages, how, **std):
    return advantages.std(-1, keepdim=True, **std) if how == "prompt" else advantages.std(**std)


def normalise_sample_std(advantages, how):
    """divide by the sample std (ddof 1, the default of torch.std) instead of the population std."""
    return advantages if how == "none" else advantages / (_spread(advantages, how) + 1e-6)


def normalise_variance(advantages, how):
    """divide by the variance instead of its square root, the std."""
    return advantages if how == "none" else advantages / (_spread(advantages, how, correction=0) ** 2 + 1e-6)


def normalise_batch_as_prompt(advantages, how):
    """use each prompt's own std for batch normalisation too: hard and easy prompts weigh alike."""
    return advantages if how == "none" else advantages / (_spread(advantages, "prompt", correction=0) + 1e-6)


def normalise_over_the_wrong_axis(advantages, how):
    """take the std over the prompts instead of over the completions of a prompt."""
    return advantages if how == "none" else advantages / (advantages.std(0, correction=0) + 1e-6)


def normalised(normalise, advantages):
    return torch.stack([normalise(advantages, how) for how in ("batch", "prompt", "none")])


# batch: std sqrt((1 + 1 + 49 + 49 + 0 + 0) / 6) = sqrt(50 / 3); prompt: std 1, 7, 0; none: as they are.
BATCH_STD = math.sqrt(50 / 3)


ADVANTAGES.write(
    name="advantages",
    where="loss.py:normalise",
    minutes=15,
    teaches="Prompt, batch or no normalisation: who shares a std decides whether hard and easy prompts weigh alike.",
    hints=(
        "Eq. 5; Sec. 3.2 compares the three; what is open in the paper stands above STD_EPS.",
        "torch.std divides by n - 1 unless told otherwise, and a group of equal rewards has the std 0.",
        "Divide by a population std plus the module's epsilon; the std is of the row or of everything.",
    ),
    undefined="divide by the std alone: that of equal rewards is 0, and 0 / 0 is nan",
    says="over the std of the batch, of each prompt, or not at all; equal rewards stay 0",
    probe=normalised,
    inputs=(torch.tensor([[1.0, -1.0], [7.0, -7.0], [0.0, 0.0]]),),
    expected=[
        [[1 / BATCH_STD, -1 / BATCH_STD], [7 / BATCH_STD, -7 / BATCH_STD], [0.0, 0.0]],
        [[1.0, -1.0], [1.0, -1.0], [0.0, 0.0]],
        [[1.0, -1.0], [7.0, -7.0], [0.0, 0.0]],
    ],
    labels="batch, prompt, none",
    mistakes=(normalise_sample_std, normalise_variance, normalise_batch_as_prompt, normalise_over_the_wrong_axis),
)


# --- zero-variance ---------------------------------------------------------------------------------------------------


def filter_keeps_solved_prompts(rewards):
    """keep every prompt with a correct answer, solved ones too: they have no gradient but enlarge the denominators."""
    return (rewards > 0).any(-1)


def filter_keeps_what_has_a_std(rewards):
    """ask whether the std is above 0: rounding in the mean of equal rewards can leave a std just above 0."""
    return rewards.std(-1) > 0


def filter_by_the_mean(rewards):
    """ask whether the mean lies between 0 and 1: rewards are 1, -1 or between, and equal ones may have such a mean."""
    return (rewards.mean(-1) > 0) & (rewards.mean(-1) < 1)


def one_by_one(nonzero_variance, rewards):
    """The filter (P,) bool, with each prompt given as a batch of its own."""
    return torch.cat([nonzero_variance(rewards[prompt, None]) for prompt in range(len(rewards))])


# In fp32 the mean of eight rewards of 0.7 is not 0.7, so that a std comes out above 0 though all rewards are equal.
ADVANTAGES.bug(
    name="zero-variance",
    where="loss.py:nonzero_variance",
    minutes=10,
    teaches="A std computed from a rounded mean cannot be compared with 0.",
    hints=(
        "Sec. 3.2, zero-variance filtering.",
        "How is the mean of eight times 0.7 rounded in fp32?",
        "Whether numbers are equal can be asked without computing anything.",
    ),
    says="only prompts whose rewards differ are kept, also where the mean is rounded",
    probe=one_by_one,
    inputs=(torch.tensor([[0.7] * 8, [0.7] * 7 + [-1.0], [-1.0] * 8, [0.5] * 8, [1.0] * 8]),),
    expected=[False, True, False, False, False],
    labels="eight times 0.7, seven times 0.7 and -1, eight times -1, eight times 0.5, eight times 1",
    mistakes=(filter_keeps_solved_prompts, filter_keeps_what_has_a_std, filter_by_the_mean),
    bug=("return (rewards != rewards[:, :1]).any(-1)", "return rewards.std(-1) > 0"),
    symptom="With rewards of 0.7 the filter keeps prompts whose rewards are all equal; their advantages blow up.",
)


# --- shaped-filter ---------------------------------------------------------------------------------------------------


def kept_prompts(compute_advantages, rewards, values):
    """Of groups of rollouts; where the value is -1, the verifier failed."""
    pairs = [zip(*group) for group in zip(rewards.tolist(), values.tolist())]
    groups = [[SimpleNamespace(reward=r, value=v if v >= 0 else None) for r, v in group] for group in pairs]
    return compute_advantages(groups, zero_variance_filter=True, normalisation="none")[0]


# Prompt 0: both answers right, one with a length penalty, so its correctness has no variance. The last: no verdict.
ADVANTAGES.bug(
    name="shaped-filter",
    where="loss.py:compute_advantages",
    minutes=15,
    teaches="Filters ask whether an answer was correct, never how it was rewarded.",
    hints=(
        "Sec. 3.2, and Eq. 9 in Sec. A.10, A.15.",
        "With a length penalty two correct answers can have different rewards.",
        "Follow the two tensors made from the rollouts to where the prompts are chosen.",
    ),
    says="it looks at correctness, not at a shaped reward, and drops a group whose verifier failed",
    probe=kept_prompts,
    inputs=(
        torch.tensor([[1.0, 0.5], [1.0, -1.0], [-0.5, 0.5], [1.0, -1.0]]),
        torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.25, 0.75], [-1.0, -1.0]]),
    ),
    expected=[False, True, True, False],
    labels="both right, right and wrong, graded 0.25 and 0.75, no verdict",
    bug=("kept = graded & nonzero_variance(correct) if", "kept = graded & nonzero_variance(rewards) if"),
    symptom="With --length-control penalty hardly any prompt is filtered, though many are always solved.",
)


# --- dropped ---------------------------------------------------------------------------------------------------------


ADVANTAGES.predict(
    name="dropped",
    minutes=5,
    teaches="The better the policy, the fewer prompts of a batch teach anything.",
    hints=(
        "Sec. 3.2, zero-variance filtering and No-Positive-Resampling.",
        "All wrong has no gradient either.",
        "Independent answers, all of them right or all of them wrong.",
    ),
    says="the share of prompts without a gradient at pass rate 1/2 with 4 completions, and at 0.9 with 16",
    mistakes={
        "count only prompts whose answers are all right: where all are wrong there is no gradient either.": (
            0.5**4,
            0.9**16,
        ),
        "count only prompts whose answers are all wrong: where all are right there is no gradient either.": (
            0.5**4,
            0.1**16,
        ),
        "double the share of prompts that are always solved: always failed ones are as many only at 1/2.": (
            2 * 0.5**4,
            2 * 0.9**16,
        ),
        "take the pass rate itself for the share of prompts that are always solved.": (0.5, 0.9),
        "give the share that is kept instead of the share that is dropped.": (1 - 2 * 0.5**4, 1 - 0.9**16),
    },
    labels="1/2 and 4, 0.9 and 16",
    atol=1e-3,
)
