"""The course as tests, in a student's folder: `pytest -k cispo` says what `python exercises.py next cispo` says."""

from pathlib import Path

import pytest

from course import checker
from course.checks.catalogue import EXERCISES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", [x.name for x in EXERCISES] if (ROOT / checker.HIDDEN).exists() else [])
def test_exercise(name):
    __tracebackhide__ = True
    [exercise] = [x for x in EXERCISES if x.name == name]
    if problems := checker.check(exercise, ROOT, checker.originals_of(ROOT), EXERCISES):
        pytest.fail("\n\n".join(problems), pytrace=False)
