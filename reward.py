"""Rewards: +1 for a correct final answer, -1 for any other (Sec. 2), or graded between them; pass rates.

    answer = what follows the last </think>; a completion without </think>, or truncated, has no answer and is wrong
             (--think-end: another mark, or none, and then the whole text is the answer)
    r = 2 v - 1                              v = 1 if correct, else 0 (verify/graders.py); r -> reward(), v -> value
    r = 2 v - 1 + clip((L_max - |y|)/L_cache - 1, -1, 0) if v = 1   Eq. 9, A.10, A.15: instead of interruptions
    |y| -> tokens, L_max -> length_max, L_cache -> length_cache, the clip -> length_penalty()

v is kept beside r because pass rates and both prompt filters use v, never a shaped reward. `correct` means v = 1.

Deviation: with --reward, v may be any number from 0 to 1 (verify/user_reward.py). The paper has only right and wrong,
  and Eq. 1 needs no more than a bounded metric. Deviations of the verdicts: verify/graders.py.
Open in the paper: whether a truncated completion that already shows its answer is correct. Here it is not read, and it
  is wrong. A.15 leaves it out of the loss, but the pass rate needs a value.

Test: pytest tests/test_reward.py
Page: docs/paper/rewards.md
"""

from math import comb, nan
from statistics import mean, stdev

THINK_END = "</think>"  # Sec. 2


def length_penalty(tokens: int, *, length_max: int, length_cache: int) -> float:
    """Eq. 9: clip((L_max - |y|)/L_cache - 1, -1, 0), to be added to the reward of correct completions only.

    tokens |y|, length_max L_max and length_cache L_cache are numbers of tokens; the penalty is without unit.

    >>> [length_penalty(tokens, length_max=14, length_cache=2) for tokens in (12, 13, 14, 15)]
    [0.0, -0.5, -1.0, -1.0]
    """
    return min(max((length_max - tokens) / length_cache - 1.0, -1.0), 0.0)


def reward(value: float | None, penalty: float = 0.0) -> float:
    """Sec. 2: r = 2 v - 1, so +1 for a correct completion (plus Eq. 9's penalty) and -1 for a wrong one.

    value  v from 0 to 1, True and False included; None: unknown, and r is nan
    """
    if value is None:
        return nan
    return 1.0 + penalty if value == 1 else 2.0 * value - 1.0


def group_pass_rate(group) -> float | None:
    """The mean of a group's v; None if the verifier failed on a rollout. No-Positive-Resampling needs it."""
    values = [rollout.value for rollout in group]
    return None if None in values else mean(values)


def pass_rates(groups, prompts) -> dict:
    """Sec. 2.1: mean@k over the rollouts of the validation set, one list of k per prompt, and the same per curve.

    A prompt whose verifier failed is left out, and its completions are counted as unverified, not as wrong. If no
    prompt is left, pass_rate and stderr are nan.
    entropy_sampled is -mean log pi_gen of the sampled tokens, nats: an estimate of the entropy on validation (A.12).
    """
    known = [[rollout.value for rollout in group] for group in groups]
    curves: dict[str, list] = {}
    for group, values in zip(groups, known):
        prompt = prompts[group[0].prompt]
        if None not in values:
            curves.setdefault(prompt.curve or prompt.task, []).append(values)
    known = [values for values in known if None not in values]
    means = {curve: mean_at_k(values) for curve, values in curves.items()}
    rollouts = [rollout for group in groups for rollout in group]
    tokens = sum(sum(rollout.versions.values()) for rollout in rollouts)
    pass_rate, stderr = mean_at_k(known)
    return {
        "pass_rate": pass_rate,
        "stderr": stderr,
        "entropy_sampled": -sum(rollout.logprob for rollout in rollouts) / tokens,
        "completions": len(groups[0]) * len(known),
        "unverified": len(groups[0]) * (len(groups) - len(known)),
        "tasks": {curve: rate for curve, (rate, _) in means.items()},
        "tasks_stderr": {curve: stderr for curve, (_, stderr) in means.items()},
    }


def mean_at_k(groups) -> tuple[float, float]:
    """The mean of the values v, k for each prompt, and its standard error from sampling k answers to these prompts.

    The error leaves out the choice of the prompts. nan without prompts; the error also if k is 1.
    """
    if not groups:
        return nan, nan
    k = len(groups[0])  # a mean of k answers has the variance of an answer over k; its estimate is unbiased with k - 1
    means = [sum(values) / k for values in groups]
    # mean(v^2) - p^2, written so that nothing is taken off p (1 - p) where every v is 0 or 1.
    spread = [p * (1 - p) - mean(v * (1 - v) for v in values) for p, values in zip(means, groups)]
    return mean(means), (sum(spread) / (k - 1)) ** 0.5 / len(means) if k > 1 else nan


def pass_at_k(groups, k: int) -> tuple[float, float]:
    """The chance that at least one of k answers to a prompt is correct, and its standard error over prompts.

    The error comes from the std between prompts (ddof 1), and is nan with one prompt.

    groups  a list of n >= k values v per prompt; with c of n correct (v = 1), 1 - C(n - c, k) / C(n, k) is unbiased

    >>> pass_at_k([[True, False], [False, False]], 1), pass_at_k([[True, False], [False, False]], 2)
    ((0.25, 0.25), (0.5, 0.5))
    """
    failures = [sum(value != 1 for value in group) for group in groups]
    chances = [1 - comb(no, k) / comb(len(group), k) for no, group in zip(failures, groups)]
    return over_prompts(chances)


def over_prompts(numbers) -> tuple[float, float]:
    """The mean of one number per prompt, and its standard error; nan with one prompt."""
    return mean(numbers), stdev(numbers) / len(numbers) ** 0.5 if len(numbers) > 1 else nan


def final_answer(text: str, think_end: str | None = THINK_END) -> str | None:
    """What follows the last `think_end` of a completion's text, or None without one; if think_end is None, all of it.

    >>> final_answer("<think>7+5=12 12-3=9</think>9"), final_answer("9"), final_answer("9", None)
    ('9', None, '9')
    """
    if think_end is None:
        return text
    _, mark, answer = text.rpartition(think_end)
    return answer if mark else None
