"""Claims about a reward of one's own (verify/user_reward.py, --reward): graded, within its limit, whatever it does."""

import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Finished, ended, read_rows, refuses, rows

import loss
import reward
from data import Prompt
from plumbing import build
from plumbing import prompts as sources
from verify import user_reward
from verify.graders import OWN
from verify.scorer import Scorer

MANY = """
import os, signal, time
import numpy as np

loaded = []

def grade(completion, answer, prompt):
    assert (prompt, answer) == ("?", "18")
    if not loaded:
        time.sleep(0.6)
        loaded.append(True)
    return eval(completion)

def alarm():
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(100)
"""
LATE = "too late"
VALUES = {row["completion"]: row["found"] for row in rows("own_values")}  # a completion for MANY -> v, or why none


@pytest.fixture
def write(tmp_path):
    def written(source, name="grade"):
        path = tmp_path / "rewards.py"
        path.write_text(source)
        return f"{path}:{name}"

    return written


def scores(spec, completions, **options):
    """{text: Score} of completions that a scorer with this reward has graded."""
    by = Scorer(own=spec, **{"workers": 1, "timeout": 20.0} | options)
    for completion in completions:
        by.submit(completion, Prompt(0, (1,), "?", "18", "own"))
    by.wait()
    by.close()
    return {score.completion.text: score for score in by.finished()}


@pytest.mark.processes
def test_each_completion_gets_its_value_or_a_reason_within_the_limit_though_a_first_call_takes_longer(write):
    start = time.monotonic()
    found = scores(write(MANY), map(Finished, VALUES), timeout=0.4)
    assert time.monotonic() - start < 60.0  # of the 200 s that it asks for
    for text, expected in VALUES.items():
        value = LATE if found[text].timed_out else found[text].error or found[text].value
        assert value == expected if isinstance(expected, float) else expected in value, text
        assert found[text].correct is (None if found[text].error else expected == 1.0)


def test_a_graded_reward_is_2_v_minus_1_and_eq9s_penalty_counts_where_v_is_1_and_what_is_truncated_has_0(write):
    spec = write("def grade(prompt, completion, answer): return float(completion)")
    completions = [Finished("1"), Finished("0.75"), Finished("0"), Finished("0.5", truncated=True)]
    found = scores(spec, completions, reward_of=lambda value, tokens: reward.reward(value, -0.25))
    assert [(score.value, score.reward) for score in found.values()] == [(0.0, -1.0), (1.0, 0.75), (0.75, 0.5), (0, -1)]


def test_a_graded_group_counts_with_its_mean_is_dropped_if_its_values_are_equal_and_passes_where_one_is_1():
    values = [[0.25, 0.75], [0.5, 0.5], [1.0, 0.5]]
    shaped = [0.9, 0.8]  # equal values are dropped whatever a penalty makes of their rewards
    groups = [
        [SimpleNamespace(prompt=p, value=v, reward=r, logprob=-1.0, versions={0: 1}) for v, r in zip(group, shaped)]
        for p, group in enumerate(values)
    ]
    kept, advantages = loss.compute_advantages(groups, zero_variance_filter=True, normalisation="none")
    assert kept.tolist() == [True, False, True] and advantages.abs().sum() == pytest.approx(0.2)
    found = reward.pass_rates(groups, [Prompt(p, (1,), "?", "", "own") for p in range(3)])
    assert found["pass_rate"] == pytest.approx(1.75 / 3)
    # Sample variances 1/8, 0 and 1/8 of an answer, half of that of a mean of two: the sum of three has 1/8.
    assert found["stderr"] == pytest.approx((1 / 8) ** 0.5 / 3)
    assert reward.pass_at_k(values, 2)[0] == 1 / 3


def test_without_the_mark_a_completion_is_wrong_unasked_and_with_it_handed_over_whole(write):
    spec = write("def grade(prompt, completion, answer): return completion == '<think>a</think>b'")
    found = scores(spec, map(Finished, ["b", "<think>a</think>b", "</think>b"]), answer_of=reward.final_answer)
    assert {text for text, score in found.items() if score.correct} == {"<think>a</think>b"}


def tried(spec, answer="18"):
    """The warning on a reward as a run makes it at its start, in a list."""
    return build.try_reward(SimpleNamespace(reward=spec, verify_timeout=5.0), Prompt(0, (1,), "?", answer, "own"))


@pytest.mark.parametrize("row", rows("own_refused"), ids=lambda row: row["error"])
def test_what_cannot_be_a_reward_is_one_line(write, row):
    spec = row["source"] if row["source"] == "nowhere.py:f" else write(row["source"])
    with pytest.raises(ValueError) as error:
        tried(spec)
    assert row["error"] in str(error.value) and "\n" not in str(error.value)


def test_a_reward_that_raises_in_the_trial_is_warned_of_with_its_error_and_its_line(write):
    [warning] = tried(
        write("print('noise')\ndef grade(prompt, completion, answer):\n  raise KeyError(completion)"), "17"
    )
    assert warning.startswith(f"WARNING: {OWN} raised KeyError: '17' (rewards.py, line 3)")
    assert tried(write("def grade(prompt, completion, answer): return None")) == []
    refuses(
        "got -1 of type int", tried, write("def grade(completion, answer): return 1 if answer in completion else -1")
    )


TAKEN = {  # a signature -> what it gets of prompt "?", completion "17" and answer "18"
    "prompt, completion, answer": ("?", "17", "18"),
    "more='', *, answer, completion, prompt": ("?", "17", "18"),
    "completion": ("17",),
}


@pytest.mark.parametrize("signature", TAKEN)
def test_a_function_gets_those_of_the_three_that_it_names_in_any_order(write, signature):
    names = [name for name in user_reward.PARAMETERS if name in signature]
    assert (
        user_reward.load(write(f"def grade({signature}): return ({', '.join(names)},)"))("?", "17", "18")
        == TAKEN[signature]
    )


@pytest.mark.parametrize("signature", [
    "solution_str, ground_truth, method='strict'", "completions, **kwargs", "prompt, completion, gold", "",
    "prompt, /, completion",
])  # fmt: skip
def test_a_function_with_other_names_is_refused_with_the_two_lines_to_write(write, signature):
    lines = r"add `def named\(prompt, completion, answer\):` and `    return grade\(…\)`.*:named"
    refuses(
        rf"(?s)got grade\({re.escape(signature)}\); {lines}", user_reward.load, write(f"def grade({signature}): pass")
    )


def test_a_file_beside_one_that_is_called_like_ours_gets_its_own_neighbour_and_we_keep_ours(write, tmp_path):
    (tmp_path / "data.py").write_text("import reward\nWHO = reward.WHO")
    (tmp_path / "reward.py").write_text("WHO = 'theirs'")
    late = "import data\ndef grade(completion):\n  from reward import WHO\n  return data.WHO, WHO"
    assert user_reward.load(write(late))("?", "17", "18") == ("theirs", "theirs")
    import data
    import reward as ours

    assert data.Prompt is Prompt and ours is reward


def test_rows_need_no_answer_and_may_have_any():
    given = [{"prompt": "a"}, {"prompt": "c", "answer": {"x": [1]}, "task": "mine"}]
    kept = [sources.parse_row(row, "f:1", None, sources.Reading(own=True), 0) for row in given]
    assert [row.answer for row in kept] == ["", '{"x": [1]}'] and {row.task for row in kept} == {"own"}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """(reward) -> exit status, rows of the log and what is shown of two steps with it, in this process."""

    def ran(spec, more=""):
        monkeypatch.chdir(tmp_path)
        flags = f"--virtual exact --data tiny --steps 2 --eval-prompts 8 --eval-generations 2 --out run --reward {spec}"
        return ended(f"{flags} {more}"), read_rows("run/log.jsonl"), "".join(capsys.readouterr())

    return ran


def test_a_run_trains_on_a_graded_reward_and_names_the_rows_on_which_it_fails(write, run):
    spec = write("def grade(answer, prompt, completion): return 0.125 + (prompt[0] == '7')")
    status, log, shown = run(Path(spec).name)  # found from the working folder
    steps = [row for row in log if row["kind"] == "step"]
    assert status == 0 and len(steps) == 2 and all(row["unverified"] for row in steps)
    assert all(row["pass_rate"] == 0.125 and row["reward"] == -0.75 for row in steps)
    failures = [failure for row in steps for failure in row["failures"]]
    assert all("got 1.125" in failure["error"] and failure["where"].startswith("tiny") for failure in failures)
    assert shown.count("NO VERDICT tiny") == 1


def test_a_reward_that_fails_on_many_completions_ends_the_run_before_it_trains(write, run):
    spec = write("def grade(completion, answer): return 1 if answer in completion else -1 if completion else 0")
    status, log, shown = run(spec)
    assert status == 1 and not log and "completions" in shown and "no verdict" in shown and "got -1" in shown


def test_a_validation_without_any_verdict_ends_in_one_line(write, run):
    status, _, shown = run(write("def grade(prompt, completion, answer):\n    return None\n"), "--k 0")
    assert status == 1
    assert "no validation prompt got verdicts: the function of --reward returned None" in shown.splitlines()[-1]
