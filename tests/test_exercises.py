"""The course is proven: every exercise can be solved, fails unsolved, and knows its mistakes by name."""

import random
import re
from pathlib import Path

import pytest
from course.catalogue import CHAPTERS, EXERCISES
from course.claims import encode

from plumbing import course

ROOT = Path(course.__file__).parent.parent
BY_NAME = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
TRAINS = {"six-steps"}  # half a minute: benchmarks/course.py
OWN_RUN = {"staleness"}


def original(exercise):
    return course.Source.read(course.original_file(ROOT, exercise.file))


def unsolved(file):
    """A file as `start` leaves it, all of its exercises taken out."""
    text = course.original_file(ROOT, file).read_text()
    for exercise in EXERCISES:
        if exercise.file == file:
            text = course.taken(text, exercise)
    return text


def problems(exercise, text):
    """What the check says of a file with this text."""
    student = course.Source(text, ROOT / exercise.file)
    return course.judged(exercise, course.vectors(exercise, student, original(exercise), EXERCISES),
                         course.expected(exercise, original(exercise), EXERCISES, ROOT))


def claims(exercises=EXERCISES):
    return [(exercise, claim) for exercise in exercises for claim in exercise.claims]


@pytest.fixture(autouse=True)
def own_run(monkeypatch, tmp_path):
    """A student's folder with a run of their own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    (tmp_path / "runs" / "own").mkdir(parents=True)
    (tmp_path / "runs" / "own" / "log.jsonl").symlink_to(ROOT / "results" / "main_seed0.jsonl")


def test_the_course_has_what_it_promises():
    kinds = [exercise.kind for exercise in EXERCISES]
    assert len(CHAPTERS) == 8 and len(kinds) >= 32 and len({exercise.name for exercise in EXERCISES}) == len(kinds)
    assert kinds.count("write") >= 16 and kinds.count("bug") >= 8
    assert kinds.count("predict") >= 4 and kinds.count("measure") >= 4
    assert sum(exercise.graded for exercise in EXERCISES) >= 28
    named = {mistake.__name__ for _, claim in claims() for mistake in claim.mistakes}
    assert len(named) >= 80
    for exercise in EXERCISES:
        own = {mistake.__name__ for claim in exercise.claims for mistake in claim.mistakes}
        assert exercise.kind != "write" or len(own) >= 3, exercise.name
        assert len(exercise.hints) == 3 and exercise.minutes > 0 and exercise.teaches.endswith(".")
        assert bool(exercise.bug) == bool(exercise.symptom) == (exercise.kind == "bug")


def test_no_two_exercises_touch_the_same_definition():
    places = [exercise.where for exercise in EXERCISES]
    assert len(set(places)) == len(places)
    assert not {where for where in places if any(other.startswith(where + ".") for other in places)}


@BY_NAME
def test_the_original_passes_while_all_others_in_its_file_are_unsolved(exercise):
    if exercise.name in TRAINS:
        pytest.skip("trains")
    text = course.restored(unsolved(exercise.file), course.original_file(ROOT, exercise.file).read_text(), exercise)
    assert problems(exercise, text) == []


@BY_NAME
def test_what_the_student_gets_fails_and_names_the_exercise(exercise):
    if exercise.name in TRAINS:
        pytest.skip("trains")
    found = problems(exercise, unsolved(exercise.file))
    assert found and all(text.startswith(f"{exercise.name}: ") for text in found)


@pytest.mark.parametrize("exercise, claim, mistake", [
    pytest.param(exercise, claim, mistake, id=f"{exercise.name}-{claim.says.split(':')[0]}-{mistake.__name__}")
    for exercise, claim in claims() for mistake in claim.mistakes])
def test_a_wrong_answer_is_recognised_as_itself_and_no_other(exercise, claim, mistake):
    assert mistake.__doc__[0].islower() and mistake.__doc__.strip().endswith(".")
    [right] = [vector or encode(claim.expected) for one, vector in zip(
        exercise.claims, course.expected(exercise, original(exercise), EXERCISES, ROOT)) if one is claim]
    said = claim.problem(claim.vector(mistake), right)
    assert re.findall("This is what you get when you .*", said) == [claim.named(mistake)]


@pytest.mark.parametrize("file", sorted({exercise.file for exercise in EXERCISES}))
def test_what_was_taken_out_goes_back_byte_for_byte(file):
    whole = course.original_file(ROOT, file).read_text()
    text = unsolved(file)
    for exercise in random.Random(0).sample(EXERCISES, len(EXERCISES)):
        if exercise.file == file:
            assert text != whole
            text = course.restored(text, whole, exercise)
    assert text == whole
