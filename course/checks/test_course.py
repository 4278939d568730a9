"""The course as tests, in a student's folder: `pytest -k cispo` says what `python exercises.py next cispo` says."""

import pytest

from course import checker
from course.checks.catalogue import EXERCISES

IN_A_STUDENTS_FOLDER = (checker.ROOT / checker.HIDDEN).exists()


@pytest.mark.parametrize("exercise", EXERCISES if IN_A_STUDENTS_FOLDER else [], ids=lambda exercise: exercise.name)
def test_exercise(exercise):
    __tracebackhide__ = True
    [problems] = checker.checked([exercise])
    if problems:
        pytest.fail("\n\n".join(problems), pytrace=False)
