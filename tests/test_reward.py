"""Claims about reward.py: Sec. 2's +1 and -1, exact integers, math-verify in workers that no answer can hold up."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import reward
from data import Prompt


@dataclass
class Finished:
    """What the scorer reads of a pipeline.Completion."""

    text: str
    truncated: bool = False


def prompt(answer, task="math"):
    return Prompt(0, (1,), "?", answer, task)


def thought(answer):
    return Finished(f"<think>7+5=12, so 12</think>{answer}")


def wait(scorer, seconds=60.0):
    """All pending scores, in the order of completion."""
    scores, end = [], time.monotonic() + seconds
    while scorer.pending:
        assert time.monotonic() < end, "no verdict in time"
        scores += scorer.finished()
        time.sleep(0.01)
    return scores


def verdicts(scorer, pairs, task="math"):
    """{answer: Score} of (answer, reference) pairs scored together."""
    for answer, reference in pairs:
        scorer.submit(thought(answer), prompt(reference, task))
    return {score.completion.text.partition("</think>")[2]: score for score in wait(scorer)}


def workers(scorer):
    """Ids of the worker processes that run."""
    return [worker.process.pid for worker in scorer._workers if worker.process and worker.process.poll() is None]


def gone(pid):
    """True if no process has this id any more, or only a zombie that others than us have to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture(scope="module")
def strict():
    """One worker with a short limit, started: starting takes a second and is no part of the limit."""
    strict = reward.Scorer(timeout=0.7, workers=1)
    verdicts(strict, [("\\boxed{0.5}", "1/2")])
    yield strict
    strict.close()


@pytest.fixture(scope="module")
def scorer():
    """A limit no honest answer below comes near, on a machine however busy."""
    scorer = reward.Scorer(timeout=20.0)
    yield scorer
    scorer.close()


# --- Sec. 2 ---


def test_sec2_reward_is_plus_or_minus_one_and_never_stands_for_a_failure():
    assert (reward.reward(True), reward.reward(False)) == (1.0, -1.0)
    with pytest.raises(ValueError, match="expected a verdict, got None"):
        reward.reward(None)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>12 18</think>18", "18"),
        ("<think>1</think>17<think>2</think> 18 ", " 18 "),  # the last one counts
        ("18", None),
        ("<think>18", None),
        ("</think>", ""),
        ("18</think", None),
    ],
)
def test_sec2_the_answer_is_what_follows_the_last_end_of_thinking(text, answer):
    assert reward.final_answer(text) == answer


# --- Arithmetic ---


@pytest.mark.parametrize("answer", ["18", " 18", "18\n", "\t18 \r\n"])
def test_arithmetic_takes_the_integer_and_ascii_whitespace_around_it(answer):
    assert reward.arithmetic(answer, "18") is True


@pytest.mark.parametrize(
    "answer",
    ["", "018", "+18", "18.0", "18.", "1 8", "1_8", "18 18", "-18", "17", "x18", "=18", "0x12", "18\x00", "1e1", "１８"]
    + ["१८", "\u00a018", "\u200b18", "18\u2003", "<think>18", "\\boxed{18}", "18" * 500_000, "1" + "0" * 1_000_000],
)
def test_arithmetic_takes_nothing_else(answer):
    assert reward.arithmetic(answer, "18") is False


def test_arithmetic_negative_numbers_and_zero():
    assert reward.arithmetic("-4", "-4") and reward.arithmetic("0", "0")
    for answer, reference in (("4", "-4"), ("- 4", "-4"), ("\u22124", "-4"), ("-0", "0"), ("", "0")):
        assert not reward.arithmetic(answer, reference)


def test_arithmetic_and_equal_strings_need_no_worker_and_are_scored_at_once():
    scorer = reward.Scorer(timeout=5.0)
    completions = [thought("18"), thought("19"), Finished("18"), Finished("<think></think>18", truncated=True)]
    for completion in completions:
        scorer.submit(completion, prompt("18", "arithmetic"))
    for answer in ("18", "$18$", "so \\boxed{18}", ""):
        scorer.submit(thought(answer), prompt("18"))
    assert scorer.pending == 8
    scores = scorer.finished()
    assert [score.correct for score in scores] == [True, False, False, False, True, True, True, False]
    assert [id(score.completion) for score in scores[:4]] == [id(completion) for completion in completions]
    assert scorer.pending == 0 and scorer.finished() == [] and workers(scorer) == []


def test_an_unknown_task_is_an_error_not_a_wrong_answer():
    with pytest.raises(KeyError, match="sorting"):
        reward.Scorer(timeout=5.0).submit(thought("18"), prompt("18", "sorting"))


# --- Math ---


@pytest.mark.parametrize(
    ("answer", "expression"),
    [
        ("\\boxed{1} no, \\boxed{\\frac{1}{2}}.", "\\boxed{\\frac{1}{2}}"),
        ("\\boxed{\\{1, 2\\}} done }", "\\boxed{\\{1, 2\\}}"),
        ("\\boxed{\\left\\{ x \\right.}", "\\boxed{\\left\\{ x \\right.}"),  # an escaped brace needs no partner
        ("\\boxed{1} then \\boxed{2", ""),
        ("\\boxed{" + "{" * 1_000_000, ""),
        ("\\boxed{" + "1" * 1_000_000 + "}", ""),
        (" it is 18 ", "it is 18"),
        ("9" + "0" * 1_000_000 + "18", ""),  # its end, read alone, would be 18
    ],
)
def test_math_expression_is_the_last_whole_box_or_the_whole_short_answer(answer, expression):
    assert reward.final_expression(answer) == expression


RIGHT = [
    ("\\boxed{0.5}", "\\frac{1}{2}"),
    ("\\boxed{\\frac{2}{4}}", "$\\frac12$"),
    ("\\boxed{(x+1)^2}", "x^2+2x+1"),
    ("\\boxed{2^{1/2}}", "\\sqrt{2}"),
    ("\\boxed{3} or rather $\\boxed{\\sqrt{8}}$.", "2\\sqrt{2}"),
    ("\\boxed{x = 5}", "5"),
    ("\\boxed{\\{2, 1\\}}", "\\{1,2\\}"),
    ("The answer is $\\frac{3}{4}$.", "3/4"),
    ("So it is 18.", "18"),
    ("\\boxed{10000}", "10,000"),
    ("\\boxed{\\sin^2 x+\\cos^2 x}", "1"),
]
WRONG = [
    ("\\boxed{0.4}", "\\frac{1}{2}"),
    ("\\boxed{5} no, \\boxed{6}", "5"),
    ("\\boxed{(x-1)^2}", "x^2+2x+1"),
    ("\\boxed{(1,3)}", "(1,2)"),
    ("\\boxed{\\{1,2,3\\}}", "\\{1,2\\}"),
    ("\\boxed{18, 19}", "18"),
    ("\\boxed{18 \\text{ or } 19}", "18"),
    ("\\boxed{-18}", "18"),
    ("\\boxed{x}", "18"),
    ("I do not know.", "18"),
]


def test_math_equal_expressions_are_right_and_others_wrong(scorer):
    scores = verdicts(scorer, RIGHT + WRONG)
    assert {answer: score.correct for answer, score in scores.items()} == {
        **{answer: True for answer, _ in RIGHT},
        **{answer: False for answer, _ in WRONG},
    }
    assert scorer.timeouts == 0 and not any(score.error for score in scores.values())


def test_math_a_reference_that_cannot_be_read_is_a_failure_not_a_wrong_answer(scorer):
    (score,) = verdicts(scorer, [("\\boxed{18}", "$")]).values()
    assert score.correct is None and "expected a reference answer in LaTeX, got '$'" in score.error


CHEAP = {  # refused unread or read in no time
    "a megabyte of braces": "\\boxed{" + "{" * 500_000 + "18" + "}" * 500_000 + "}",
    "a megabyte of open braces": "\\boxed{" + "{" * 1_000_000,
    "a million digits": "9" * 1_000_000,
    "a million boxed digits": "\\boxed{18" + "0" * 1_000_000 + "}",
    "zeros that end in the answer": "1" + "0" * 1_000_000 + "18",
    "a million boxes": "\\boxed{" * 150_000,
    "binary garbage": bytes(range(256)).decode("latin1") * 10,
    "binary garbage in a box": "\\boxed{" + bytes(set(range(256)) - set(b"{}")).decode("latin1") + "}",
    "unbalanced LaTeX": "\\boxed{\\frac{18}{1}",
    "unbalanced inside": "\\boxed{\\left(\\frac{36}{2\\right)}}",
    "superscripts": "\\boxed{¹⁸}",
    "other digits": "\\boxed{१८}",
    "nothing in the box": "\\boxed{}",
    "a null": "\\boxed{18\x00}",
    "code": "\\boxed{__import__('os')._exit(18)}",
    "more code": "eval('9*2') or exit(0)",
    "dollars": "$" * 9_000,
}
ENDLESS = {  # each runs for longer than 6 s where nobody ends it
    "a tower of powers": "\\boxed{9^{9^{9^9}}}",
    "9,000 characters of nested radicals": "\\boxed{" + "\\sqrt{2+" * 900 + "2" + "}" * 901,
    "900 braces": "\\boxed{" + "{" * 900 + "18" + "}" * 901,
}


def test_hostile_answers_are_wrong_and_most_are_read_in_no_time(scorer):
    verdicts(scorer, [("\\boxed{0.5}", "1/2"), ("\\boxed{0.5}", "1/2")])
    pids = workers(scorer)
    scores = verdicts(scorer, [(text, "18") for text in CHEAP.values()])
    assert {name: scores[text].correct for name, text in CHEAP.items()} == dict.fromkeys(CHEAP, False)
    assert workers(scorer) == pids and len(pids) == 2 and scorer.timeouts == 0  # none ran into the limit and was killed


@pytest.mark.parametrize("name", ENDLESS)
def test_hostile_answers_cost_at_most_the_limit_and_are_wrong(strict, name):
    verdicts(strict, [("\\boxed{\\frac{36}{2}}", "18")])  # starts a worker if the last was killed
    start, timeouts = time.monotonic(), strict.timeouts
    (score,) = verdicts(strict, [(ENDLESS[name], "18")]).values()
    assert (score.correct, score.timed_out, strict.timeouts) == (False, True, timeouts + 1)
    assert 0.6 < time.monotonic() - start < 0.7 + 2.0  # a busy machine looks late; unlimited they take over 6 s


def test_the_limit_holds_though_nobody_polls_and_nothing_blocks_meanwhile(strict):
    verdicts(strict, [("\\boxed{0.5}", "1/2")])
    (pid,) = workers(strict)
    time.sleep(0.8)
    assert workers(strict) == [pid]  # the limit is for answers, not for waiting
    start = time.monotonic()
    strict.submit(thought(ENDLESS["a tower of powers"]), prompt("18"))
    strict.submit(thought("18"), prompt("18", "arithmetic"))
    (quick,) = strict.finished()
    assert quick.correct and time.monotonic() - start < 0.6 and strict.pending == 1
    while workers(strict):  # asks whether the process lives, and does nothing to it
        assert time.monotonic() - start < 5.0
        time.sleep(0.05)
    assert strict.pending == 1
    (slow,) = strict.finished()
    assert slow.timed_out and strict.pending == 0 and gone(pid)


# --- Failure is not zero ---


def kill(scorer):
    """Kill the only worker: while it starts, or while it has nothing to do."""
    scorer.finished()
    (pid,) = workers(scorer)
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_worker_that_dies_costs_no_answer(monkeypatch):
    scorer = reward.Scorer(timeout=20.0, workers=1)
    scorer.submit(thought("\\boxed{0.5}"), prompt("\\frac{1}{2}"))
    first = kill(scorer)
    (score,) = wait(scorer)
    assert score.correct is True and score.tried and not score.error and workers(scorer) != [first]
    os.waitid(os.P_PID, kill(scorer), os.WEXITED | os.WNOWAIT)  # idle now, and dead before anybody notices
    process = scorer._workers[0].process
    monkeypatch.setattr(process, "poll", lambda: process.returncode)  # set by wait()
    (score,) = verdicts(scorer, [("\\boxed{0.25}", "1/4")]).values()
    assert score.correct is True
    scorer.close()


def test_an_answer_that_two_workers_die_of_is_a_failure_not_a_wrong_answer():
    scorer = reward.Scorer(timeout=20.0, workers=1)
    scorer.submit(thought("\\boxed{0.5}"), prompt("\\frac{1}{2}"))
    first = kill(scorer)
    while workers(scorer) in ([], [first]):
        assert scorer.finished() == []
    kill(scorer)
    (score,) = wait(scorer)
    assert score.correct is None and "exit code -9" in score.error and scorer.timeouts == 0
    scorer.close()


def test_a_verifier_that_cannot_start_is_a_failure_not_a_wrong_answer(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    scorer = reward.Scorer(timeout=5.0, workers=1)
    (score,) = verdicts(scorer, [("\\boxed{0.5}", "1/2")]).values()
    assert score.correct is None and "exit code 1" in score.error
    scorer.close()


def test_a_worker_that_never_answers_is_given_up(monkeypatch, tmp_path):
    (tmp_path / "hang").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "hang").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "hang"))
    monkeypatch.setattr(reward, "START_SECONDS", 0.1)
    scorer = reward.Scorer(timeout=0.1, workers=1)
    (score,) = verdicts(scorer, [("\\boxed{0.5}", "1/2")]).values()
    assert score.correct is None and "exit code -9" in score.error and workers(scorer) == []
    scorer.close()


# --- Processes ---


def test_no_process_remains_after_close_and_files_stay_few():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        scorer = reward.Scorer(timeout=20.0)
        for answer in (ENDLESS["a tower of powers"], "\\boxed{0.5}"):
            scorer.submit(thought(answer), prompt("1/2"))
        scorer.finished()
        pids = workers(scorer)
        assert len(pids) == 2
        scorer.close()
        assert scorer.pending == 0 and not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_worker_loads_no_torch_and_ends_soon_after_a_parent_that_was_killed():
    program = """
import time, reward
from types import SimpleNamespace as S
scorer = reward.Scorer(timeout=1.0, workers=1)
def check(answer):
    completion = S(text="</think>\\\\boxed{" + answer + "}", truncated=False)
    scorer.submit(completion, S(task="math", answer="1/2"))
    return scorer.finished()
check("0.5")
while not scorer.finished():
    time.sleep(0.01)
check("9^{9^{9^9}}")  # the worker computes and does not look at its pipe
print(scorer._workers[0].process.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    modules = Path(f"/proc/{pid}/maps").read_text()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert "python" in modules and "libtorch" not in modules
    end = time.monotonic() + 5.0
    while not gone(pid):
        assert time.monotonic() < end, "a worker outlives its parent"
        time.sleep(0.05)
