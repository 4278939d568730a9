"""Chapter 7: rewards and data (Sec. 2, 2.1, 3.2, Eq. 9). Claims, wrong answers, exercises.

Test: pytest tests/test_exercises.py
"""

from functools import partial
from math import comb, nan
from operator import call
from statistics import fmean, stdev
from types import SimpleNamespace

from course.checks.claims import Chapter, values_at

REWARDS = Chapter()


# --- reward ----------------------------------------------------------------------------------------------------------


def rewards(reward, penalty):
    """Rewards: wrong, right, right with a penalty, wrong with a penalty; then 1 if that of a failed verifier is nan."""
    unknown = reward(None)
    values = [reward(False), reward(True), reward(True, penalty), reward(False, penalty)]
    return [*map(float, values), float(unknown != unknown)]


def reward_zero_or_one(correct, penalty=0.0):
    """give 0 and 1: after the baseline only the scale differs, but Eq. 9's penalty weighs twice as much."""
    return nan if correct is None else float(correct) + penalty * correct


def reward_penalty_for_all(correct, penalty=0.0):
    """penalise wrong answers for their length as well: the policy learns to give short wrong answers."""
    return nan if correct is None else (1.0 if correct else -1.0) + penalty


def reward_unknown_is_wrong(correct, penalty=0.0):
    """count an answer whose verifier failed as wrong."""
    return 1.0 + penalty if correct else -1.0


def reward_without_penalty(correct, penalty=0.0):
    """forget the penalty."""
    return nan if correct is None else 1.0 if correct else -1.0


REWARDS.write(
    name="reward",
    where="reward.py:reward",
    minutes=5,
    teaches="The reward is a verdict; a verdict that is missing is not a wrong answer.",
    hints=(
        "Sec. 2, and Eq. 9 for the penalty.",
        "The penalty is for correct completions only.",
        "Three cases: unknown, right, wrong.",
    ),
    says="-1, +1, +1 with the penalty -1/4, -1 whatever the penalty, nan for an unknown verdict",
    probe=rewards,
    inputs=(-0.25,),
    expected=[-1.0, 1.0, 0.75, -1.0, 1.0],
    labels="wrong, right, right with penalty, wrong with penalty, whether nan if unknown",
    mistakes=(reward_zero_or_one, reward_penalty_for_all, reward_unknown_is_wrong, reward_without_penalty),
)


# --- penalty ---------------------------------------------------------------------------------------------------------


def penalty_without_floor(tokens, length_max, length_cache):
    """forget the clip at -1: a long right answer can get less than a wrong one."""
    return min((length_max - tokens) / length_cache - 1, 0.0)


def penalty_with_bonus(tokens, length_max, length_cache):
    """forget the clip at 0: short answers get a bonus."""
    return max((length_max - tokens) / length_cache - 1, -1.0)


def penalty_without_minus_one(tokens, length_max, length_cache):
    """leave out the - 1: the penalty starts at L_max instead of L_max - L_cache."""
    return min(max((length_max - tokens) / length_cache, -1.0), 0.0)


# From 12 = 14 - 2 tokens on the penalty falls by 1/2 per token, to -1 at 14.
REWARDS.write(
    name="penalty",
    where="reward.py:length_penalty",
    minutes=10,
    teaches="A length penalty with two clips can neither reward brevity nor make a right answer "
    "worse than a wrong one.",
    hints=(
        "Eq. 9, A.10.",
        "At which length does it start, at which does it end?",
        "A straight line in the length, clipped at 0 from above and at -1 from below.",
    ),
    says="0 up to L_max - L_cache = 12 tokens, -1 from L_max = 14 on, a straight line between",
    probe=partial(values_at, length_max=14, length_cache=2),
    inputs=([8, 12, 13, 14, 16],),
    expected=[0.0, 0.0, -0.5, -1.0, -1.0],
    labels="8 tokens, 12 tokens, 13 tokens, 14 tokens, 16 tokens",
    mistakes=(penalty_without_floor, penalty_with_bonus, penalty_without_minus_one),
)


# --- pass-at-k -------------------------------------------------------------------------------------------------------


def _over_prompts(chances):
    return fmean(chances), stdev(chances) / len(chances) ** 0.5


def _right(group):
    return sum(value == 1 for value in group)


def chance_plugged_in(groups, k):
    """put the share c/n into 1 - (1 - p)^k: biased downwards, most for small n."""
    return _over_prompts([1 - (1 - _right(group) / len(group)) ** k for group in groups])


def chance_is_mean(groups, k):
    """return mean@k, whatever k is."""
    return _over_prompts([_right(group) / len(group) for group in groups])


def chance_of_the_first(groups, k):
    """look at the first k answers only: unbiased, but the other n - k answers are wasted."""
    return _over_prompts([float(_right(group[:k]) > 0) for group in groups])


def chance_of_all(groups, k):
    """ask that all k answers are correct instead of at least one."""
    return _over_prompts([comb(_right(group), k) / comb(len(group), k) for group in groups])


def chance_with_partial_credit(groups, k):
    """count every value above 0 as right: of graded answers only those with the value 1 are."""
    return _over_prompts([1 - comb(sum(value == 0 for value in group), k) / comb(len(group), k) for group in groups])


# n = 4, k = 2, c = 1, 0, 3 right answers: of the 6 pairs of answers 3, 0 and 6 hold at least one right answer.
REWARDS.write(
    name="pass-at-k",
    where="reward.py:pass_at_k",
    minutes=15,
    teaches="A probability to the k-th power must be estimated from subsets of k answers, not "
    "from the share of right "
    "answers.",
    hints=(
        "Sec. 2.1; the docstring has the formula.",
        "Return the mean over prompts and its standard error, which is nan for a single prompt.",
        "Of all subsets of k answers, the share without a right one is a quotient of two binomials.",
    ),
    says="the share of pairs with a right answer (value 1): 1/2, 0 and 1, so 1/2 +- 1/sqrt(12) on average",
    probe=call,
    inputs=([[1.0, 0.5, 0.0, 0.0], [0.0] * 4, [1.0, 1.0, 1.0, 0.0]], 2),
    expected=[0.5, 12**-0.5],
    labels="mean, standard error",
    mistakes=(chance_plugged_in, chance_is_mean, chance_of_the_first, chance_of_all, chance_with_partial_credit),
)


# --- last-answer -----------------------------------------------------------------------------------------------------


def answers(final_answer, texts):
    """Lengths of the answers in texts, -1 without an answer."""
    return [-1 if answer is None else len(answer) for answer in map(final_answer, texts)]


REWARDS.bug(
    name="last-answer",
    where="reward.py:final_answer",
    minutes=10,
    teaches="What counts as the answer is part of the reward.",
    hints=("Sec. 2.", "Some completions end their thinking more than once.", "The first or the last mark?"),
    says="what follows the last </think>, here of 3 and of 2 characters; nothing without one",
    probe=answers,
    inputs=(["7+5", "so</think>$18", "7</think>12345</think>18"],),
    expected=[-1, 3, 2],
    labels="no mark, one mark, two marks",
    bug=("text.rpartition(think_end)", "text.partition(think_end)"),
    symptom="Completions that close their thinking twice are wrong, though what follows the last mark is right.",
)


# --- retired ---------------------------------------------------------------------------------------------------------


def retired(is_retired, rates, threshold):
    """Whether retired: prompts with these pass rates, one never sampled, and a solved one without a threshold."""
    curriculum = SimpleNamespace(threshold=threshold, pass_rates=dict(enumerate(rates)))
    answers = [is_retired(curriculum, index) for index in range(len(rates) + 1)]
    return [float(x) for x in (*answers, is_retired(SimpleNamespace(threshold=None, pass_rates={0: 1.0}), 0))]


def _retired(self, index, above, unknown=0.0):
    return self.threshold is not None and self.pass_rates.get(index, unknown) >= self.threshold + above


def retired_strictly_above(self, index):
    """ask for more than the threshold: a prompt at exactly 9 of 10 would be sampled again."""
    return _retired(self, index, 1e-6)


def retired_without_margin(self, index):
    """leave no room for rounding: 9 of 10 may arrive as 0.89999998."""
    return _retired(self, index, 0.0)


def retired_when_unknown(self, index):
    """retire prompts that were never sampled."""
    return _retired(self, index, -1e-6, unknown=1.0)


# Pass rates 1/2, the threshold, the threshold as a float32 mean, 1; then one unknown; then 1 without a threshold.
REWARDS.write(
    name="retired",
    where="data.py:Curriculum._is_retired",
    minutes=10,
    teaches="A prompt that is learnt is never sampled again.",
    hints=(
        "Sec. 3.2, No-Positive-Resampling.",
        "A pass rate of 9/10 may have been computed in float32. Without a threshold nothing is ever retired.",
        "At the threshold or above, with a margin that is smaller than any difference of shares.",
    ),
    says="at a pass rate of 0.9 or above, also if 0.9 was rounded; never a prompt that was not sampled",
    probe=retired,
    inputs=([0.5, 0.9, 0.89999998, 1.0], 0.9),
    expected=[0.0, 1.0, 1.0, 1.0, 0.0, 0.0],
    labels="0.5, 0.9, 0.9 rounded, 1, not sampled, without a threshold",
    mistakes=(retired_strictly_above, retired_without_margin, retired_when_unknown),
)


# --- history ---------------------------------------------------------------------------------------------------------


def history(update_history, rates):
    """The history of a prompt after it came back with each of these pass rates, and whether it is still in flight."""
    curriculum = SimpleNamespace(pass_rates={}, _in_flight={})
    for rate in rates:
        curriculum._in_flight[7] = None
        update_history(curriculum, 7, rate)
    return [curriculum.pass_rates[7], float(7 in curriculum._in_flight)]


REWARDS.bug(
    name="history",
    where="data.py:Curriculum.update_history",
    minutes=10,
    teaches="A history that keeps the best pass rate retires prompts that were solved by luck.",
    hints=(
        "Sec. 3.2; what is open in the paper stands at the top of data.py.",
        "What happens to a prompt that was solved once, by chance?",
        "Ours is the share of correct completions among the latest G.",
    ),
    says="the latest pass rate counts, and an unknown one changes nothing",
    probe=history,
    inputs=([1.0, 0.25, None],),
    expected=[0.25, 0.0],
    labels="pass rate, whether in flight",
    bug=(
        "self.pass_rates[index] = float(pass_rate)",
        "self.pass_rates[index] = max(float(pass_rate), self.pass_rates.get(index, 0.0))",
    ),
    symptom="More and more prompts are retired, though the policy gets some of them wrong again.",
)
