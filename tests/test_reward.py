"""Claims about reward.py (Sec. 2, A.10): rewards of +1 and -1, the final answer, Eq. 9's penalty, mean@k, pass@k."""

from math import isnan

import pytest
from conftest import Finished, batch, check_exercise, given, rollout

import reward
from data import Prompt
from plumbing import build


def test_sec2_reward_is_plus_or_minus_one_and_no_number_for_a_failure():
    check_exercise(reward, "reward")
    assert reward.reward(0.25) == -0.5  # of graded values, 2 v - 1
    assert isnan(reward.reward(None, -0.5))


@pytest.mark.parametrize(
    ("text", "mark", "answer"),
    [
        ("<think>1</think>17<think>2</think> 18 ", "</think>", " 18 "),  # the last one counts
        ("<think>18", "</think>", None),
        ("</think>", "</think>", ""),
        ("18</think", "</think>", None),
        ("a</think>b #### 18", "####", " 18"),
        ("a</think>18", None, "a</think>18"),
    ],
)
def test_sec2_the_answer_is_what_follows_the_last_end_of_thinking(text, mark, answer):
    assert reward.final_answer(text, mark) == answer


def test_eq9_length_penalty_falls_from_0_to_minus_1_over_the_last_length_cache_tokens():
    check_exercise(reward, "penalty")


def test_eq9_is_added_to_correct_completions_only():
    args = given("--length-control penalty --model M --data F --preset paper")
    scorer = build.make_scorer(args)
    for answer, tokens in (("18", 11_000), ("18", 13_500), ("17", 13_500)):
        scorer.submit(Finished(f"</think>{answer}", ids=(0,) * tokens), Prompt(0, (1,), "?", "18", "exact"))
    assert [(score.correct, score.reward) for score in scorer.finished()] == [(True, 1.0), (True, 0.25), (False, -1.0)]


def test_sec2_1_pass_rate_is_the_mean_at_k_with_its_sampling_error():
    prompts = [Prompt(i, (1,), "", "", task) for i, task in enumerate(["easy", "hard"])]
    found = reward.pass_rates(batch([True, True, True, False], [False, False, False, True]), prompts)
    assert found["pass_rate"] == 0.5 and found["completions"] == 8 and found["tasks"] == {"easy": 0.75, "hard": 0.25}
    # Each prompt's verdicts have the unbiased variance 3/4 * 1/4 * 4/3 = 1/4, so the mean of 8 has 1/32.
    assert found["stderr"] == pytest.approx((1 / 32) ** 0.5)
    assert found["tasks_stderr"] == pytest.approx({"easy": 1 / 4, "hard": 1 / 4})  # the mean of 4 has 1/16


def test_mean_at_k_of_graded_values_has_the_error_of_their_spread():
    # 0, 1/2 and 1 have the unbiased variance (1/4 + 0 + 1/4) / 2 = 1/4, so their mean has 1/12.
    assert reward.mean_at_k([[0.0, 0.5, 1.0]]) == pytest.approx((0.5, (1 / 12) ** 0.5))


def test_a_failed_verifier_is_no_wrong_answer_in_the_validation():
    prompts = [Prompt(i, (1,), "", "", "math") for i in range(2)]
    found = reward.pass_rates(batch([True, False, True, False], [True, None, None, None]), prompts)
    assert (found["completions"], found["unverified"]) == (4, 4)
    assert found["pass_rate"] == 0.5  # if the three unknown verdicts counted as wrong: 3/8


def test_a12_the_entropy_on_validation_is_minus_the_mean_log_prob_of_the_tokens_that_the_policy_sampled():
    prompts = [Prompt(i, (1,), "", "", "math") for i in range(2)]
    groups = [[rollout(True, 0, tokens=4, logprob=-1.0)], [rollout(False, 1, tokens=4, injected=2, logprob=-2.0)]]
    # 3 nats over 4 + 2 sampled tokens; averaged over completions it would be (1/4 + 2/2) / 2, with injected tokens 3/8
    assert reward.pass_rates(groups, prompts)["entropy_sampled"] == 0.5


def test_pass_at_k_is_the_share_of_k_subsets_with_a_correct_answer():
    check_exercise(reward, "pass-at-k")
