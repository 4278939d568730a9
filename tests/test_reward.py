"""Claims about reward.py (Sec. 2) and verify/: exact integers, mathematics in workers that no answer can hold up."""

import doctest
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from math import isnan
from pathlib import Path

import pytest
import sympy

import reward
from data import Prompt
from verify import graders, mathematics, programs, sandbox
from verify.scorer import Scorer

DATA = Path(__file__).parent / "data"
ROOT = DATA.parents[1]


@dataclass
class Finished:
    """The fields of pipeline.Rollout that the scorer reads."""

    text: str
    truncated: bool = False
    ids: tuple = ()


def prompt(answer, task="math"):
    return Prompt(0, (1,), "?", answer, task)


def thought(answer):
    return Finished(f"<think>7+5=12, so 12</think>{answer}")


def wait(scorer):
    """All pending scores, in the order in which they are ready."""
    scorer.wait()
    return scorer.finished()


def answered(score):
    return score.completion.text.rpartition("</think>")[2]


def verdicts(scorer, pairs, task="math"):
    """{answer: Score} of (answer, reference) pairs that are scored together."""
    for answer, reference in pairs:
        scorer.submit(thought(answer), prompt(reference, task))
    return {score.completion.text.partition("</think>")[2]: score for score in wait(scorer)}


def running(scorer):
    """Ids of the running worker processes."""
    return [worker.process.pid for worker in scorer._workers if worker.process and worker.process.poll() is None]


def gone(pid):
    """True if no process has this id any more, or only a zombie that another process has to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def children(pid):
    return [child for child, parent, *_ in sandbox.all_processes() if parent == pid]


def wait_until(true, what, seconds=30.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@pytest.fixture(scope="module")
def strict():
    """A Scorer with a short limit and one worker, already started: the second it takes to start does not count."""
    strict = Scorer(timeout=0.7, workers=1)
    verdicts(strict, [("\\boxed{0.5}", "1/2")])
    yield strict
    strict.close()


@pytest.fixture(scope="module")
def scorer():
    """A Scorer with a limit (20 s) that no honest answer below comes near, however busy the machine is."""
    scorer = Scorer(timeout=20.0)
    yield scorer
    scorer.close()


@pytest.mark.parametrize("module", [reward, mathematics, programs])
def test_examples_in_docstrings_are_true(module):
    assert doctest.testmod(module).failed == 0 < doctest.testmod(module).attempted


# --- Sec. 2 ---


def test_sec2_reward_is_plus_or_minus_one_and_no_number_for_a_failure():
    assert (reward.reward(True), reward.reward(False)) == (1.0, -1.0)
    assert isnan(reward.reward(None)) and isnan(reward.reward(None, -0.5))


@pytest.mark.parametrize(
    ("text", "mark", "answer"),
    [
        ("<think>12 18</think>18", "</think>", "18"),
        ("<think>1</think>17<think>2</think> 18 ", "</think>", " 18 "),  # the last one counts
        ("18", "</think>", None),
        ("<think>18", "</think>", None),
        ("</think>", "</think>", ""),
        ("18</think", "</think>", None),
        ("a</think>b #### 18", "####", " 18"),
        ("18", "####", None),
        ("a</think>18", None, "a</think>18"),
    ],
)
def test_sec2_the_answer_is_what_follows_the_last_end_of_thinking(text, mark, answer):
    assert reward.final_answer(text, mark) == answer


@pytest.mark.parametrize(
    (
        "mark",
        "scores",
    ),  # (holds the mark, is right) of three completions; what is truncated is wrong without being read
    [
        ("</think>", [(True, True), (False, False), (True, False)]),
        ("####", [(False, False)] * 3),
        (None, [(True, False), (True, True), (True, False)]),
    ],
)
def test_a_score_says_whether_its_text_holds_the_mark_also_when_it_is_truncated(mark, scores):
    scorer = Scorer(timeout=5.0, think_end=mark)
    for text, cut in (("</think>18", False), ("18", False), ("</think>18", True)):
        scorer.submit(Finished(text, truncated=cut), prompt("18", "arithmetic"))
    assert [(score.marked, score.correct) for score in scorer.finished()] == scores


EQ9 = partial(reward.length_penalty, length_max=14_000, length_cache=2_000)  # the paper's numbers


@pytest.mark.parametrize(
    ("tokens", "penalty"),  # (14,000 - |y|) / 2,000 - 1, clipped
    [(0, 0.0), (12_000, 0.0), (12_001, -0.0005), (13_000, -0.5), (14_000, -1.0), (14_001, -1.0), (1_000_000, -1.0)],
)
def test_eq9_length_penalty_falls_from_0_to_minus_1_over_the_last_length_cache_tokens(tokens, penalty):
    assert EQ9(tokens) == pytest.approx(penalty, abs=1e-12)


def test_eq9_is_added_to_correct_completions_only():
    scorer = Scorer(timeout=5.0, penalty=EQ9)
    for answer, tokens in (("18", 11_000), ("18", 13_500), ("17", 13_500)):
        scorer.submit(Finished(f"</think>{answer}", ids=(0,) * tokens), prompt("18", "arithmetic"))
    assert [(score.correct, score.reward) for score in scorer.finished()] == [(True, 1.0), (True, 0.25), (False, -1.0)]


def test_pass_at_k_is_the_share_of_k_subsets_with_a_correct_answer():
    # One of four is correct: 3 of the 6 pairs and 3 of the 4 triples hold it. If none or all are: 0 or 1.
    one, none, all_four = [True, False, False, False], [False] * 4, [True] * 4
    assert [reward.pass_at_k([one], k)[0] for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    mean, error = reward.pass_at_k([one, none, all_four], 2)
    assert mean == 0.5 and error == pytest.approx(0.5 / 3**0.5)  # 0.5, 0, 1: standard deviation 0.5


# --- Arithmetic ---

WRONG_18 = ["", "018", "+18", "18.0", "18.", "1 8", "18 18", "-18", "17", "x18", "=18", "0x12", "18\x00", "１８", "१८"]
WRONG_18 += ["\u00a018", "\u200b18", "18\u2003", "<think>18", "\\boxed{18}", "18" * 500_000, "1" + "0" * 1_000_000]


@pytest.mark.parametrize(
    ("reference", "right", "wrong"),
    [
        ("18", ["18", " 18", "18\n", "\t18 \r\n"], WRONG_18),
        ("-4", ["-4"], ["4", "- 4", "\u22124"]),
        ("0", ["0"], ["-0", ""]),
        ("02357", ["02357\n"], ["2357", "0 2 3 5 7", "02375", "023577", "0,2,3,5,7", "=02357", "２3"]),
    ],
)
def test_arithmetic_and_sorting_take_the_same_characters_with_ascii_whitespace_around_them(reference, right, wrong):
    assert all(graders.exact(answer, reference) for answer in right)
    assert not any(graders.exact(answer, reference) for answer in wrong)


def test_arithmetic_and_equal_strings_need_no_worker_and_are_scored_at_once():
    scorer = Scorer(timeout=5.0)
    for answer, task in (("18", "arithmetic"), ("19", "arithmetic"), ("18", "math"), ("so \\boxed{18}", "math")):
        scorer.submit(thought(answer), prompt("18", task))
    assert [score.correct for score in scorer.finished()] == [True, False, True, True]
    assert scorer.pending == 0 and running(scorer) == []


def test_an_unknown_task_is_an_error_not_a_wrong_answer():
    with pytest.raises(KeyError, match="chess"):
        Scorer(timeout=5.0).submit(thought("18"), prompt("18", "chess"))


def test_exact_matches_are_short_cut_at_5000_per_second():
    scorer, start = Scorer(timeout=5.0), time.thread_time()
    for n in range(2_000):
        scorer.submit(thought(f"Therefore $\\boxed{{{n}}}$."), prompt(str(n)))
    assert sum(score.correct for score in scorer.finished()) == 2_000
    assert time.thread_time() - start < 2_000 / 5_000  # seconds of CPU, whatever else the machine does


# --- Math ---


@pytest.mark.parametrize(
    ("answer", "expression"),
    [
        ("\\boxed{1} no, \\boxed{\\frac{1}{2}}.", "\\boxed{\\frac{1}{2}}"),
        ("\\boxed{\\{1, 2\\}} done }", "\\boxed{\\{1, 2\\}}"),
        ("\\boxed{\\left\\{ x \\right.}", "\\boxed{\\left\\{ x \\right.}"),  # an escaped brace needs no partner
        ("\\boxed{1} then \\boxed{2", ""),
        # Boxes with nothing but a joining word between them are a list, in their order.
        ("\\boxed{1}, \\boxed{2}, and $\\boxed{3}$.", "\\boxed{1, 2, 3}"),
        ("$x = \\boxed{1}$ or $x = \\boxed{-2}$", "\\boxed{1, -2}"),
        ("\\[\\boxed{(1,2)} \\quad \\text{and} \\quad \\boxed{(2,1)}\\]", "\\boxed{(1,2), (2,1)}"),
        ("\\boxed{7}\n\n$\\boxed{7}$", "\\boxed{7}"),  # the same answer twice
        ("\\boxed{5} is wrong, and \\boxed{6}", "\\boxed{6}"),
        ("\\boxed{5}. So \\boxed{6}", "\\boxed{6}"),
        ("\\boxed{1}" + " " * 99 + "\\boxed{2}", "\\boxed{2}"),
        ("\\boxed{\\boxed{5}}", "\\boxed{5}"),
        ("\\boxed{1}, " * 100_000 + "\\boxed{2}", "\\boxed{1, 2}"),
        ("\\boxed{}", "\\boxed{}"),
        ("\\boxed{" + "{" * 1_000_000, ""),
        ("\\boxed{" + "1" * 1_000_000 + "}", ""),
        (" it is 18 ", "it is 18"),
        ("9" + "0" * 1_000_000 + "18", ""),  # its end, read alone, would be 18
    ],
)
def test_math_expression_is_the_last_whole_box_or_the_whole_short_answer(answer, expression):
    assert mathematics.final_expression(answer) == expression


def test_math_a_reference_that_cannot_be_read_is_a_failure_not_a_wrong_answer(scorer):
    for reference in ("$", "n \\equiv 18 \\pmod{24}", "\\frac{18}{"):
        (score,) = verdicts(scorer, [("\\boxed{18}", reference)]).values()
        assert score.correct is None and f"expected a reference answer in LaTeX, got {reference!r}" in score.error
    (score,) = verdicts(scorer, [("\\boxed{n\\equiv18\\pmod{24}}", "$n \\equiv 18 \\pmod{24}$.")]).values()
    assert score.correct is True  # the reference, apart from spaces, dollars and the period


# --- Agreement with others ---

DISAGREEMENTS = {  # (end of the answer, end of the reference): why our verdict differs from math-verify's published one
    ("1.22", "1,22"): "to it, this reference has a decimal comma; here references are LaTeX, and it is a pair",
    ("is $10,455$. I hope it is correct.", "$10455$"): "here the last box, which holds another number, counts",
    ("\\$ = \\frac{10}{9} $", "$10/9$"): "1/2 = 10/9, which the answer says, is wrong",
    ("$0$", "$1 = \\zzz = x = 0$"): "a reference that cannot be read as a whole has no verdict",
    ("\\boxed{28\\%}$.", "The correct approach is as follows:"): "the same: a page of prose without a box",
    ("W(x)=1orW(x)=-1", "W(n) = -1"): "the same: a box left open",
    ("${35 cm,4}$", "++++++ \\\\boxed{4}$"): "boxes with plus signs between them are no list",
    ("$\\boxed{1,2}$", "\\boxed{1} papers and \\boxed{2} bins"): "boxes with other words between them are no list",
    ("$1 + \\frac{1}{\\mathrm{e}}$", "$1 - \\frac{1}{\\mathrm{e}}$"): "they are different numbers",
    ("Answer \\( (9+1) \\)", "$10$"): "a calculation is no number: a model that repeats the question would be right",
    ("$\\frac3{3} $", "$1$"): "the same: a division that is not carried out",
    ("$-x > -1$", "$x < 1$"): "the same: an inequality that is not solved",
    ("$-x >= -1$", "$x <= 1$"): "the same",
    ("$(0,1)$", "$0<f(x)<1$"): "an interval is no statement about a function",
    ("+ \\begin{pmatrix}5 & 6 \\\\ 7 & 8\\end{pmatrix}$", "12\\end{pmatrix}$"): "the same: a sum of matrices",
    (" \\begin{pmatrix}1 & 0 \\\\ 0 & 1\\end{pmatrix}$", "0 & 1\\end{pmatrix}$"): "the same: a product of matrices",
    ("$-2 \\\\le x \\\\le 7$", "$x \\in [-2,7]$"): "they are the same numbers",
}


def test_at_least_93_percent_of_math_verifys_published_cases_agree_and_the_others_are_listed(scorer):
    source, *cases = map(json.loads, (DATA / "math_verify_cases.jsonl").read_text().splitlines())
    assert len(cases) == 265 and source["source"].startswith("math-verify 0.9.0")
    for case in cases:
        scorer.submit(thought(case["answer"].rpartition("</think>")[2]), prompt(case["reference"]))
    found = {(answered(score), score.prompt.answer): score.correct for score in wait(scorer)}
    verdict = {(case["answer"].rpartition("</think>")[2], case["reference"]): case["correct"] for case in cases}
    other = [key for key, correct in verdict.items() if found[key] is not correct]
    listed = [[end for end in DISAGREEMENTS if all(map(str.endswith, key, end))] for key in other]
    assert all(len(ends) == 1 for ends in listed), [key for key, ends in zip(other, listed) if not ends]
    assert len(other) == len(DISAGREEMENTS) <= 0.07 * len(cases)


def test_the_verdicts_of_our_own_list_are_right_and_over_half_of_its_answers_are_wrong(scorer):
    rows = [json.loads(line) for line in (DATA / "verdicts.jsonl").read_text().splitlines()]
    assert len(rows) >= 700 and sum(not row["correct"] for row in rows) > len(rows) / 2
    for row in rows:
        asked = Prompt(0, (1,), row.get("prompt", "?"), row["reference"], row.get("task", "math"))
        scorer.submit(thought(row["answer"]), asked)
    found = {(answered(score), *asked_of(score)): score.correct for score in wait(scorer)}
    key = [(row["answer"], row["reference"], row.get("prompt", "?"), row.get("task", "math")) for row in rows]
    assert [row for row, case in zip(rows, key) if found[case] is not row["correct"]] == []


def asked_of(score):
    return score.prompt.answer, score.prompt.text, score.prompt.task


def expressions(r):
    """(a, b): random expressions; in half of the cases b is a in another form, else a different value."""
    x, y = sympy.symbols("x y")
    p, q, m, n = (sympy.Integer(r.randint(1, 12)) for _ in range(4))
    form = r.choice(
        [
            lambda: ((x + p) * (x - q), sympy.expand((x + p) * (x - q))),
            lambda: (p / q + m / n, sympy.UnevaluatedExpr(p / q) + sympy.UnevaluatedExpr(m / n)),
            lambda: (1 / (sympy.sqrt(q) + n), sympy.radsimp(1 / (sympy.sqrt(q) + n))),
            lambda: (sympy.sin(x) ** 2 * p, p - p * sympy.cos(x) ** 2),
            lambda: (sympy.log(p * x) + m, sympy.log(p) + sympy.log(x) + m),
            lambda: ((x**2 - p**2) / (x - p), x + p),
            lambda: (sympy.apart(1 / (x * (x + p))), 1 / (x * (x + p))),
            lambda: ((x + y) ** 3, sympy.expand((x + y) ** 3)),
            lambda: (sympy.exp(x + p), sympy.exp(x) * sympy.exp(p)),
            lambda: (sympy.cos(2 * x) * n, n * (2 * sympy.cos(x) ** 2 - 1)),
        ]
    )
    a, b = form()
    return a, b if r.random() < 0.5 else b + r.choice([1, -1, x, sympy.Rational(1, 7)])


def test_verdicts_are_sympys_on_generated_expressions(scorer):
    r, equal = random.Random(5), {}
    while len(equal) < 40:
        a, b = expressions(r)
        answer, reference = f"$\\boxed{{{sympy.latex(b)}}}$", sympy.latex(a)
        if reference != sympy.latex(b):
            calculation = a.is_Number and b.is_Add  # 3/5 + 7/3 is not the answer 44/15
            equal[answer, reference] = not calculation and sympy.simplify((a - b).doit()) == 0
    assert 10 < sum(equal.values()) < 30
    for answer, reference in equal:
        scorer.submit(thought(answer), prompt(reference))
    found = {(answered(score), score.prompt.answer): score.correct for score in wait(scorer)}
    assert found == equal


def test_the_500_answers_of_the_benchmark_are_graded_as_they_were_made(scorer):
    rows = [json.loads(line) for line in (DATA / "answers_500.jsonl").read_text().splitlines()]
    assert len(rows) == 500 and sum(row["correct"] for row in rows) == 260
    assert all(isinstance(graders.math(row["answer"], row["reference"]), str) for row in rows)  # none is equal as text
    rows = rows[::7]  # every kind, right and wrong
    for row in rows:
        scorer.submit(thought(row["answer"]), prompt(row["reference"]))
    found = {(answered(score), score.prompt.answer): score.correct for score in wait(scorer)}
    assert [row for row in rows if found[row["answer"], row["reference"]] is not row["correct"]] == []


# --- Hostile answers ---

CHEAP = {  # refused without being read, or read at once
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
    "a number of digits no one can convert": "\\boxed{" + "9" * 9_000 + "}",
    "joined boxes": "\\boxed{18}, " * 5_000 + "\\boxed{17}",
    "words between boxes": "\\boxed{18}" + "and" * 100_000 + "\\boxed{17}",
    "shell": "\\boxed{18; rm -rf /}",
    "division by nothing": "\\boxed{\\frac{18}{0}}",
    "infinity": "\\boxed{\\infty}",
    "a tower of powers": "\\boxed{9^{9^{9^9}}}",
    "lone surrogates": "\\boxed{\ud800}",
}
ENDLESS = {  # without a limit each runs for longer than 6 s
    "9,000 characters of nested radicals": "\\boxed{" + "\\sqrt{2+" * 900 + "2" + "}" * 901,
    "900 braces": "\\boxed{" + "{" * 900 + "18" + "}" * 901,
}


def test_hostile_answers_are_wrong_and_most_are_read_in_no_time(scorer):
    verdicts(scorer, [("\\boxed{0.5}", "1/2"), ("\\boxed{0.5}", "1/2")])
    pids = running(scorer)
    scores = verdicts(scorer, [(text, "18") for text in CHEAP.values()])
    assert {name: scores[text].correct for name, text in CHEAP.items()} == dict.fromkeys(CHEAP, False)
    assert running(scorer) == pids and len(pids) == 2 and not any(score.timed_out for score in scores.values())


@pytest.mark.parametrize("name", ENDLESS)
def test_hostile_answers_cost_at_most_the_limit_though_nobody_polls_and_nothing_blocks_meanwhile(strict, name):
    verdicts(strict, [("\\boxed{\\frac{36}{2}}", "18")])  # starts a worker if the last was killed
    (pid,) = running(strict)
    start, fork = time.monotonic(), children(pid)
    strict.submit(thought(ENDLESS[name]), prompt("18"))
    strict.submit(thought("18"), prompt("18", "arithmetic"))
    (quick,) = strict.finished()
    assert quick.correct and strict.pending == 1  # whoever had waited for the limit would have found both
    wait_until(lambda: not set(fork) & set(children(pid)), "the limit does not hold")  # without polling the scorer
    assert strict.pending == 1 and 0.6 < time.monotonic() - start < 0.7 + 4.0  # slack for a busy machine
    (slow,) = wait(strict)
    assert (slow.correct, slow.timed_out) == (False, True)
    assert running(strict) == [pid]  # the worker stays: loading SymPy takes a second


# --- A failed verifier is not a wrong answer ---


def kill(scorer):
    """Kill the only worker while it starts or has nothing to do; returns its id."""
    scorer.finished()
    (pid,) = running(scorer)
    os.killpg(pid, signal.SIGKILL)
    return pid


def test_a_worker_that_dies_costs_no_answer(monkeypatch):
    scorer = Scorer(timeout=20.0, workers=1)
    scorer.submit(thought("\\boxed{0.5}"), prompt("\\frac{1}{2}"))
    first = kill(scorer)
    (score,) = wait(scorer)
    assert score.correct is True and score.tried and not score.error and running(scorer) != [first]
    os.waitid(os.P_PID, kill(scorer), os.WEXITED | os.WNOWAIT)  # idle, now dead, and not yet noticed
    process = scorer._workers[0].process
    monkeypatch.setattr(process, "poll", lambda: process.returncode)  # only wait() sets it: poll() sees no death
    (score,) = verdicts(scorer, [("\\boxed{0.25}", "1/4")]).values()
    assert score.correct is True
    scorer.close()


@pytest.mark.parametrize(
    "program, cause",
    [("exec kill -9 $$", "exit code -9"), ("exec sleep 600", "exit code -9"), ("exit 1", "exit code 1")],
)
def test_an_answer_of_which_two_workers_die_or_say_nothing_is_a_failure(monkeypatch, tmp_path, program, cause):
    (tmp_path / "worker").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "worker").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "worker"))
    monkeypatch.setattr("verify.scorer.START_SECONDS", 0.1)
    scorer = Scorer(timeout=0.1, workers=1)
    (score,) = verdicts(scorer, [("\\boxed{0.5}", "1/2")]).values()
    assert score.correct is None and cause in score.error and not score.timed_out and running(scorer) == []
    scorer.close()


def test_a_stopped_fork_costs_the_limit_and_does_not_hold_the_scorer_up():
    scorer = Scorer(timeout=5.0, workers=1)
    scorer.submit(thought(ENDLESS["900 braces"]), prompt("18"))
    wait_until(lambda: scorer.finished() or any(map(children, running(scorer))), "nobody computes", 60.0)
    [[fork]] = map(children, running(scorer))
    os.kill(fork, signal.SIGSTOP)
    (score,) = wait(scorer)
    assert score.timed_out and gone(fork)
    scorer.close()


# As with too many processes; as on a full disk.
@pytest.mark.parametrize("module, name", [(subprocess, "Popen"), (sandbox, "as_file")])
@pytest.mark.parametrize("times", [1, 2])
def test_what_fails_to_start_is_tried_once_more_and_never_raises_in_the_generator(monkeypatch, module, name, times):
    works, failures = getattr(module, name), [OSError(11, "no more")] * times

    def fails(*args, **kwargs):
        if failures:
            raise failures.pop()
        return works(*args, **kwargs)

    scorer = Scorer(timeout=20.0, workers=1)
    monkeypatch.setattr(module, name, fails)
    (score,) = verdicts(scorer, [("\\boxed{0.5}", "1/2")]).values()
    assert score.tried and score.correct is (True if times == 1 else None)
    said = "two workers died without a verdict ([Errno 11] no more: a worker was to be started, or to get its job"
    assert times == 1 or said in score.error
    (score,) = verdicts(scorer, [("\\boxed{0.25}", "1/4")]).values()
    assert score.correct is True and not score.tried
    scorer.close()


# --- Processes ---


def test_no_process_remains_after_close_and_files_stay_few():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        scorer = Scorer(timeout=20.0, workers=1)
        for answer in (ENDLESS["900 braces"], "\\boxed{0.5}"):
            scorer.submit(thought(answer), prompt("1/2"))
        scorer.finished()
        pids = running(scorer)
        assert len(pids) == 1
        wait_until(lambda: children(pids[0]), "nobody computes", 30.0)
        pids += children(pids[0])
        scorer.close()
        wait_until(lambda: all(map(gone, pids)), "a process is left")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_worker_loads_no_torch_and_ends_soon_after_a_parent_that_was_killed():
    program = """
import time
from verify.scorer import Scorer
from types import SimpleNamespace as S
scorer = Scorer(timeout=1.0, workers=1)
for answer in ("0.5", "{" * 900 + "18" + "}" * 900):  # the worker computes and does not look at its pipe
    scorer.wait()
    scorer.submit(S(text="</think>\\\\boxed{" + answer + "}", truncated=False), S(task="math", answer="1/2", text=""))
    scorer.finished()
print(scorer._workers[0].process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        modules = Path(f"/proc/{pid}/maps").read_text()
        parent.kill()
    assert "python" in modules and "libtorch" not in modules
    wait_until(lambda: gone(pid), "a worker outlives its parent")


# --- Which files a worker runs ---

VERDICTS = """
import sys
from verify.scorer import Scorer
from types import SimpleNamespace as S
scorer = Scorer(timeout=20.0, workers=1)
program = "```python\\nimport sys\\nprint(sys.argv[0])\\n```"
tests = '{"inputs": [""], "outputs": ["the copy"]}'
scorer.submit(S(text="</think>7", truncated=False), S(task="math", answer="8", text=""))
scorer.submit(S(text="</think>" + program, truncated=False), S(task="code", answer=tests, text=""))
scorer.wait()
scorer.close()
print([(score.correct, score.error) for score in scorer.finished()], sys.modules[Scorer.__module__].__file__)
"""


def copied_tree(folder, says, equal):
    """A copy of the project whose `mathematics.equal` returns `equal` and whose sandbox names programs `says`."""
    folder.mkdir()
    shutil.copytree(ROOT / "verify", folder / "verify")
    shutil.copy(ROOT / "reward.py", folder)
    mathematics = folder / "verify" / "mathematics.py"
    mathematics.write_text(f"{mathematics.read_text()}\n\nequal = lambda *_: {equal}\n")
    sandboxed = folder / "verify" / "sandbox.py"
    assert sandboxed.read_text().count('["answer.py"]') == 1
    sandboxed.write_text(sandboxed.read_text().replace('["answer.py"]', f'["{says}"]'))
    return folder


def test_a_copied_tree_uses_its_own_verifier_and_sandbox_wherever_it_is_started_and_whatever_is_on_the_path(tmp_path):
    copy, other = copied_tree(tmp_path / "copy", "the copy", True), copied_tree(tmp_path / "other", "another", False)
    (copy / "verdicts.py").write_text(VERDICTS)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    for name in ("reward.py", "json.py"):  # files in the current folder must not be used
        (elsewhere / name).write_text("raise OSError")
    pipes = dict(text=True, capture_output=True, timeout=120, check=False, env=os.environ | {"PYTHONPATH": str(other)})
    done = subprocess.run([sys.executable, copy / "verdicts.py"], cwd=elsewhere, **pipes)
    assert done.stdout == f"[(True, ''), (True, '')] {copy}/verify/scorer.py\n", done.stderr
