"""The course as tests, in a student's folder: `pytest -k cispo` says what `python exercises.py next cispo` says."""

from pathlib import Path

import pytest

from course.catalogue import EXERCISES
from plumbing import course

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", [x.name for x in EXERCISES] if (ROOT / course.HIDDEN).exists() else [])
def test_exercise(name):
    __tracebackhide__ = True
    [exercise] = [x for x in EXERCISES if x.name == name]
    if problems := course.check(exercise, ROOT, course.originals_of(ROOT), EXERCISES):
        pytest.fail("\n\n".join(problems), pytrace=False)
