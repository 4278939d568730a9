"""Claims about a reward of one's own (verify/own.py, --reward)."""

import doctest
import json
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import train
from data import Prompt
from plumbing import sources
from plumbing.settings import read_settings
from verify import own
from verify.graders import OWN
from verify.scorer import Scorer

FIVE_WORDS = "def five_words(prompt, completion, answer):\n    return len(completion.split()) == 5\n"
MANY = """
import time

def grade(prompt, completion, answer):
    if completion == "None":
        return None
    if completion == "raise":
        return {}["key\\nof two lines"]
    if completion == "exit":
        exit(3)
    if completion == "number":
        return 0.5
    if completion == "sleep":
        time.sleep(100)
    return (prompt, completion, answer) == ("?", "right", "18")
"""


@dataclass
class Finished:
    text: str
    truncated: bool = False
    ids: tuple = ()


@pytest.fixture
def write(tmp_path):
    def written(source, name="grade"):
        path = tmp_path / "rewards.py"
        path.write_text(source)
        return f"{path}:{name}"

    return written


def scores(spec, texts, timeout=20.0, **options):
    """{text: Score} of completions that a scorer with this reward has graded."""
    scorer = Scorer(timeout=timeout, workers=1, own=spec, **{"think_end": None} | options)
    for text in texts:
        scorer.submit(Finished(text), Prompt(0, (1,), "?", "18", "own"))
    found, end = {}, time.monotonic() + 60
    while scorer.pending:
        assert time.monotonic() < end
        found |= {score.completion.text: score for score in scorer.finished()}
        time.sleep(0.01)
    scorer.close()
    return found


def test_examples_in_docstrings_are_true():
    assert doctest.testmod(own).failed == 0


def test_the_function_grades_every_completion_in_a_worker(write):
    found = scores(write(MANY), ["right", "wrong", "None", "raise", "exit", "number"])
    assert [found[text].correct for text in found] == [True, False, None, None, None, None]
    assert found["None"].error == OWN and not any(score.tried for score in found.values())
    assert found["raise"].error == f"{OWN} raised KeyError: 'key\\nof two lines' (rewards.py, line 8)"
    assert found["exit"].error == f"{OWN} raised SystemExit: 3 (rewards.py, line 10)"
    assert found["number"].error == f"{OWN}: expected True, False or None, got 0.5 of type float"


def test_it_has_the_time_limit_and_the_next_completion_is_graded(write):
    found = scores(write(MANY), ["right", "sleep", "wrong"], timeout=0.5)
    assert [(found[text].correct, found[text].timed_out) for text in ("right", "sleep", "wrong")] == [
        (True, False),
        (False, True),
        (False, False),
    ]


def test_without_the_mark_or_truncated_a_completion_is_wrong_unasked_and_with_it_handed_over_whole(write):
    spec = write("def grade(prompt, completion, answer): return completion == '<think>a</think>b'")
    found = scores(spec, ["b", "<think>a</think>b", "</think>b"], think_end="</think>")
    assert [score.correct for score in found.values()] == [False, True, False]
    scorer = Scorer(timeout=5.0, think_end=None, own=spec)
    scorer.submit(Finished("<think>a</think>b", truncated=True), Prompt(0, (1,), "?", "18", "own"))
    assert [score.correct for score in scorer.finished()] == [False]


REFUSED = {
    "nothing": "expected FILE.py:FUNCTION, got 'nothing'",
    "nowhere.py:f": "there is no file nowhere.py",
    "def other(a, b, c): pass": "has no function grade; it has: other",
    "grade = 3": "has no function grade; it has: none",
    "def grade(a, b): pass": "expected a function of (prompt, completion, answer), got grade(a, b)",
    "def grade(a, b, c, d): pass": "got grade(a, b, c, d)",
    "def grade(*, prompt, completion, answer): pass": "expected a function of (prompt, completion, answer)",
    "def grade(a, b, c): return 0.5": "expected True, False or None, got 0.5 of type float",
    "def grade(a, b, c): return 1": "expected True, False or None, got 1 of type int",
    "def grade(a, b, c): return [True]": "expected True, False or None, got [True] of type list",
    "import nothing_of_this_name": "cannot be loaded: ModuleNotFoundError: No module named 'nothing_of_this_name'",
    "x = 1\ny = x / 0": "cannot be loaded: ZeroDivisionError: division by zero (rewards.py, line 2)",
    "def grade(a, b, c:\n  pass": "cannot be loaded: SyntaxError:",
    "exit(1)": "cannot be loaded: SystemExit: 1 (rewards.py, line 1)",
    "import os\nos._exit(3)": "its process ended with exit code 3",
}


@pytest.mark.parametrize("source", REFUSED)
def test_what_cannot_be_a_reward_is_one_line(write, source):
    spec = source if source in ("nothing", "nowhere.py:f") else write(source)
    with pytest.raises(ValueError) as error:
        own.check(spec, ("?", "18", "18"), 5.0)
    assert REFUSED[source] in str(error.value) and "\n" not in str(error.value)


def test_a_reward_that_raises_in_the_trial_is_warned_of_with_its_error_and_its_line(write, capsys):
    noise = "import sys\nprint('noise')\nprint('noise', file=sys.stderr)\n"
    own.check(write(noise + "def grade(a, b, c): raise KeyError(b)"), ("?", "17", "18"), 5.0)
    shown = capsys.readouterr().err
    assert shown.startswith(f"WARNING: {OWN} raised KeyError: '17' (rewards.py, line 4)") and shown.count("\n") == 1
    own.check(write(noise + "def grade(a, b, c): return None"), ("?", "17", "18"), 5.0)
    assert capsys.readouterr().err == ""


def test_what_may_be_a_reward_passes_the_trial(write):
    for source in (
        FIVE_WORDS.replace("five_words", "grade"),
        "grade = lambda *words: None",
        "def grade(a, b, c='', d=3): return False",
        "def grade(a, b, c): raise ValueError",  # it may be this row
        "class Grade:\n  def __call__(self, a, b, c): return True\ngrade = Grade()",
    ):
        own.check(write(source), ("?", "18", "18"), 5.0)


def test_rows_need_no_answer_and_may_have_any(tmp_path):
    rows = [{"prompt": "a"}, {"prompt": "b", "answer": 1.5}, {"prompt": "c", "answer": {"x": [1]}, "task": "mine"}]
    kept = [sources.parse_row(row, "f:1", None, (["prompt"], ["answer"]), own=True) for row in rows]
    assert [row.answer for row in kept] == ["", "1.5", '{"x": [1]}'] and {row.task for row in kept} == {"own"}
    with pytest.raises(ValueError):
        sources.parse_row(rows[0], "f:1", None, (["prompt"], ["answer"]))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """(reward) -> exit status, stdout and stderr of two steps with it, in this process."""

    def ran(spec, *more):
        monkeypatch.chdir(tmp_path)
        flags = f"--virtual exact --data tiny --steps 2 --eval-prompts 8 --eval-generations 2 --out run --reward {spec}"
        try:
            status = train.main(read_settings([*flags.split(), *more]))
        except SystemExit as error:
            status = error.code
        return status, *capsys.readouterr()

    return ran


def test_a_run_trains_on_it_and_counts_what_it_raises(tmp_path, write, run):
    source = "def grade(prompt, completion, answer):\n    return completion[-1] in '02468' if answer > '2' else 1 / 0\n"
    spec = write(source)
    status, out, err = run(Path(spec).name)  # found from the working folder
    assert status == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").open()]
    steps = [row for row in rows if row["kind"] == "step"]
    assert len(steps) == 2 and all(row["unverified"] for row in steps) and {row["pass_rate"] for row in steps} - {0, 1}
    assert {failure["error"] for row in steps for failure in row["failures"]} == {
        f"{OWN} raised ZeroDivisionError: division by zero (rewards.py, line 2)"
    }
    assert out.count("NO VERDICT tiny") == 1 and "has failed on 10 prompts so far" in out + err


def test_a_validation_without_any_verdict_ends_in_one_line_and_is_repeated_on_resume(tmp_path, write, run):
    status, _, err = run(write("def grade(prompt, completion, answer):\n    return None\n"), "--k", "0")
    assert status == 1 and err.count("\n") == 1
    assert "no validation prompt got verdicts: the function of --reward returned None" in err
    status, *_ = run(
        write("def grade(prompt, completion, answer):\n    return completion.endswith(answer)"), "--resume"
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").open()]
    assert status == 0 and [row["step"] for row in rows if row["kind"] == "eval"] == [0, 0, 2]


def test_a_wrong_function_ends_in_one_line_before_the_first_step(tmp_path, run):
    status, _, err = run("nothing.py:grade")
    assert status == 2 and not (tmp_path / "run").exists()
    assert f"--reward {tmp_path}/nothing.py:grade: there is no file" in err


@pytest.mark.parametrize("last, told", [("", True), ("    return False\n", False)])
def test_a_function_that_forgets_to_say_false_is_told_at_the_first_validation(write, run, last, told):
    begins = (
        "def grade(prompt, completion, answer):\n    if answer < '5':\n        return completion.endswith(answer)\n"
    )
    _, out, err = run(write(begins + last))
    assert ("returned None, no verdict, on " in out + err) == told
