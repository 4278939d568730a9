"""Claims about verify/scorer.py: verdicts that no answer can hold up; a failure is no wrong answer."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT, Finished, alive, rows, wait_until

import reward
from data import Prompt
from verify import sandbox, scorer

Scorer = partial(scorer.Scorer, answer_of=reward.final_answer)


def prompt(answer, task="math"):
    return Prompt(0, (1,), "?", answer, task)


def thought(answer):
    return Finished(f"<think>7+5=12, so 12</think>{answer}")


def wait(scorer):
    """All pending scores, in the order in which they are ready."""
    scorer.wait()
    return scorer.finished()


def verdicts(scorer, pairs, task="math"):
    """{answer: Score} of (answer, reference) pairs of a task that are scored together."""
    for answer, reference in pairs:
        scorer.submit(thought(answer), prompt(reference, task))
    return {score.completion.text.partition("</think>")[2]: score for score in wait(scorer)}


def running(scorer):
    """Ids of the running worker processes."""
    return [worker.process.pid for worker in scorer._workers if worker.process and worker.process.poll() is None]


def children(pid):
    return [child for child, parent, *_ in sandbox.all_processes() if parent == pid]


@pytest.fixture(scope="module")
def scorer():
    """A Scorer with a limit (20 s) that no honest answer below comes near, however busy the machine is.

    One worker: each of two would have to learn the grammar of LaTeX, which takes it seconds.
    """
    scorer = Scorer(timeout=20.0, workers=1)
    yield scorer
    scorer.close()


@pytest.mark.parametrize(
    "mark, scores",  # (holds the mark, is right) of three completions
    [("</think>", [(True, True), (False, False), (True, False)]), (None, [(True, False), (True, True), (True, False)])],
)
def test_a_score_says_whether_its_text_holds_the_mark_and_what_is_truncated_is_wrong_unread(mark, scores):
    scorer = Scorer(timeout=5.0, answer_of=partial(reward.final_answer, think_end=mark))
    for text, cut in (("</think>18", False), ("18", False), ("</think>18", True)):
        scorer.submit(Finished(text, truncated=cut), prompt("18", "exact"))
    assert [(score.marked, score.correct) for score in scorer.finished()] == scores


def test_a_reference_that_cannot_be_read_is_a_failure_not_a_wrong_answer(scorer):
    for reference in ("$", "1 \\le \\le 2"):
        (score,) = verdicts(scorer, [("\\boxed{18}", reference)]).values()
        assert score.correct is None and f"expected a reference answer in LaTeX, got {reference!r}" in score.error


# --- Agreement with others ---


def differing(scorer, cases):
    """Those whose verdict is another one than they say."""
    for n, case in enumerate(cases):
        asked = Prompt(n, (1,), case.get("prompt", "?"), case["reference"], case.get("task", "math"))
        scorer.submit(thought(case["answer"].rpartition("</think>")[2]), asked)
    verdict_of = {score.prompt.index: score.correct for score in wait(scorer)}
    return [case for n, case in enumerate(cases) if verdict_of[n] is not case["correct"]]


def test_at_least_85_percent_of_math_verifys_published_cases_agree_and_the_others_say_why(scorer):
    _, *cases = rows("math_verify_cases")
    other = differing(scorer, cases)
    assert other == [case for case in cases if "why ours differs" in case] and len(other) <= 0.15 * len(cases)


def test_the_verdicts_of_our_own_list_are_right(scorer):
    assert differing(scorer, rows("verdicts")) == []


# --- Hostile answers ---

CHEAP = {  # refused without being read, or read at once
    "a megabyte of braces": "\\boxed{" + "{" * 500_000 + "18" + "}" * 500_000 + "}",
    "a million digits": "\\boxed{18" + "0" * 1_000_000 + "}",
    "a million boxes": "\\boxed{" * 150_000,
    "binary garbage": "\\boxed{" + bytes(set(range(256)) - set(b"{}")).decode("latin1") + "}",
    "dollars": "$" * 9_000,
    "joined boxes": "\\boxed{18}, " * 5_000 + "\\boxed{17}",
    "nested radicals": "\\boxed{" + "\\sqrt{2+" * 900 + "2" + "}" * 901,
} | {row["name"]: row["answer"] for row in rows("hostile_answers")}
SUM = "a+b+c+d+x+y+z"
ENDLESS = (
    "\\boxed{" + "".join(f"({letter}+1)^9" for letter in "abcdxyz") + "}"
)  # for SUM; without a limit: 6 s and more


def test_hostile_answers_are_wrong_and_most_are_read_in_no_time(scorer):
    scores = verdicts(scorer, [(text, "18") for text in CHEAP.values()])
    assert {name: scores[text].correct for name, text in CHEAP.items()} == dict.fromkeys(CHEAP, False)
    assert not any(score.timed_out for score in scores.values())


@pytest.mark.processes
def test_hostile_answers_cost_at_most_the_limit_though_nobody_polls_and_nothing_blocks_meanwhile():
    strict = Scorer(timeout=0.7, workers=1)
    verdicts(strict, [("\\boxed{\\frac{36}{2}}", "18")])  # starts the worker: that second does not count
    (pid,) = running(strict)
    start, fork = time.monotonic(), children(pid)
    strict.submit(thought(ENDLESS), prompt(SUM))
    strict.submit(thought("18"), prompt("18", "exact"))
    (quick,) = strict.finished()
    assert quick.correct and strict.pending == 1  # whoever had waited for the limit would have found both
    wait_until(lambda: not {*fork} & {*children(pid)}, "the limit does not hold")  # without polling the scorer
    assert strict.pending == 1 and 0.6 < time.monotonic() - start < 0.7 + 4.0  # slack for a busy machine
    (slow,) = wait(strict)
    assert (slow.correct, slow.timed_out) == (False, True)
    assert running(strict) == [pid]  # the worker stays: loading SymPy takes a second
    strict.close()


# --- A failed verifier is not a wrong answer ---


def test_a_worker_that_dies_costs_no_answer():
    scorer = Scorer(timeout=20.0, workers=1)
    scorer.submit(thought("Mice."), prompt("mice", "text"))  # for which a worker loads no SymPy
    scorer.finished()
    (pid,) = running(scorer)
    os.killpg(pid, signal.SIGKILL)
    (score,) = wait(scorer)
    assert score.correct is True and score.tried and not score.error and running(scorer) != [pid]
    scorer.close()


@pytest.mark.parametrize("program, cause", [("exec sleep 600", "exit code -9"), ("exit 1", "exit code 1")])
def test_an_answer_of_which_two_workers_die_or_say_nothing_is_a_failure(monkeypatch, tmp_path, program, cause):
    (tmp_path / "worker").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "worker").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "worker"))
    monkeypatch.setattr("verify.scorer.START_SECONDS", 0.1)
    scorer = Scorer(timeout=0.1, workers=1)
    (score,) = verdicts(scorer, [("\\boxed{0.5}", "1/2")]).values()
    assert score.correct is None and cause in score.error and not score.timed_out and running(scorer) == []
    scorer.close()


def test_what_fails_to_start_twice_is_a_failure_and_never_raises_in_the_generator(monkeypatch):
    def full(_):
        raise OSError(28, "disk is full")

    scorer = Scorer(timeout=20.0, workers=1)
    monkeypatch.setattr(sandbox, "as_file", full)
    (score,) = verdicts(scorer, [("Mice.", "mice")], "text").values()
    assert score.correct is None and "disk is full" in score.error
    scorer.close()


# --- Processes ---


@pytest.mark.processes
def test_a_worker_ends_soon_after_a_parent_that_was_killed():
    program = """
import time
from verify.scorer import Scorer
from types import SimpleNamespace as S
scorer = Scorer(timeout=1.0, workers=1)
for answer in ("0.5", "(a+1)^9(b+1)^9(c+1)^9(d+1)^9(x+1)^9"):  # the worker computes and does not look at its pipe
    scorer.wait()
    text = "\\\\boxed{" + answer + "}"
    scorer.submit(S(text=text, truncated=False), S(task="math", answer="a+b+c+d+x", text=""))
    scorer.finished()
print(scorer._workers[0].process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not alive(pid), "a worker outlives its parent")


# --- Which files a worker runs ---

VERDICT = """
from verify import scorer
from types import SimpleNamespace as S
[score] = scorer.verdicts([("7", S(task="math", answer="7.0", text=""))], timeout=20.0)
print(score.correct, score.error)
"""


def test_files_of_the_working_folder_are_not_run_in_place_of_the_verifiers():
    for name in ("reward.py", "json.py", "sympy.py"):
        Path(name).write_text("raise OSError", encoding="utf-8")
    Path("folder").mkdir()
    Path("folder/verdicts.py").write_text(VERDICT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "folder/verdicts.py"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True \n", done.stderr
