"""The course, played through: a student who makes every named mistake once, and a class of 30 that is graded.

    python benchmarks/course.py student       starts a copy, makes every mistake, solves every exercise, trains
    python benchmarks/course.py class         grades 30 hand-ins with known mistakes; prints how long it took

Fails unless every mistake is named as itself and as no other (in a `bug` it may go unnamed), and every grade is the
expected one. Takes minutes; part of .ci/run.
"""

import argparse
import csv
import inspect
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import textwrap
import time
import zipfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from course import checker, grading  # noqa: E402
from course.checks.catalogue import EXERCISES  # noqa: E402

SIZE, SEED = 30, 7


def command(folder, *words):
    """Run exercises.py in a folder; returns what it prints. Raises AssertionError if it fails."""
    done = subprocess.run(
        [sys.executable, "exercises.py", *map(str, words)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}: {done.stderr[-2000:]}"
    return done.stdout


def original(exercise):
    return checker.Source.read(checker.original_file(ROOT, exercise.file))


def written(text, exercise, mistake):
    """The text with the exercise's definition replaced by a mistake, a function, with all that it needs inside."""
    source = checker.Source.read(Path(inspect.getsourcefile(inspect.unwrap(mistake))))
    inner = checker.as_text(checker.gathered(mistake.__name__, source, source))
    before, _, after = checker.split(text, exercise)
    body = (
        f"def {exercise.target.rpartition('.')[2]}(*args, **kwargs):\n{textwrap.indent(inner, '    ')}\n"
        f"    return {mistake.__name__}(*args, **kwargs)\n"
    )
    return before + textwrap.indent(body, "    " * exercise.target.count(".")) + after


def right(text, exercise):
    """The text with the exercise solved: by the original's definition, or, in predict and measure, by its result."""
    if exercise.kind not in ("predict", "measure"):
        return checker.restored(text, original(exercise).path and Path(original(exercise).path).read_text(), exercise)
    value = checker.build(exercise, checker.pieces(exercise, original(exercise), original(exercise), EXERCISES))()
    before, _, after = checker.split(text, exercise)
    return f"{before}def {exercise.target}():\n    return {value!r}\n{after}"


# --- A student -------------------------------------------------------------------------------------------------------


def play(folder):
    """Check every exercise of a copy unsolved, with each mistake, and solved; returns the number of mistakes.

    Later exercises are unsolved meanwhile.
    """
    mistakes = 0
    for exercise in EXERCISES:
        path = folder / exercise.file
        text = path.read_text()
        if exercise.name == "staleness":
            say(command(folder, "train", "--steps", 4, "--prompts", 8, "--eval-every", 4, "--eval-prompts", 32))
        if exercise.kind != "measure":
            found = checker.check(exercise, folder, checker.originals_of(folder), EXERCISES)
            assert found and all(line.startswith(exercise.name) for line in found), (exercise.name, found)
        for mistake in {m.__name__: m for claim in exercise.claims for m in claim.mistakes}.values():
            path.write_text(written(text, exercise, mistake))
            said = "\n".join(checker.check(exercise, folder, checker.originals_of(folder), EXERCISES))
            named = set(re.findall("This is what you get when you .*", said))
            sentence = exercise.claims[0].named(mistake)
            assert named == {sentence} or exercise.kind == "bug" and not named, (exercise.name, mistake.__name__, said)
            mistakes += 1
        os.chdir(folder)
        path.write_text(right(text, exercise))
        found = checker.check(exercise, folder, checker.originals_of(folder), EXERCISES)
        assert found == [], (exercise.name, found)
        say(f"{exercise.name}: solved")
    return mistakes


def student():
    """Start a copy, play it, list, pack, solve all, train; in the end every file is the project's own again."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "class"
        say(command(ROOT, "start", folder))
        mistakes = play(folder)
        listed = command(folder, "list")
        say(listed)
        assert f"{len(EXERCISES) - 1} of {len(EXERCISES)} done" in listed  # six-steps trains: only `next` checks it
        assert "All exercises are done" in command(folder, "next")
        say(command(folder, "pack"))
        for exercise in EXERCISES:
            command(folder, "solve", exercise.name)
        for file in {exercise.file for exercise in EXERCISES}:
            assert (folder / file).read_bytes() == checker.original_file(ROOT, file).read_bytes(), file
        flags = "--steps 2 --prompts 8 --eval-prompts 32 --out runs/plain".split()
        subprocess.run([sys.executable, "train.py", *flags], cwd=folder, check=True, capture_output=True)  # all solved
        say(f"{mistakes} mistakes made and named, {len(EXERCISES)} exercises solved, every file as it was")


# --- A class ---------------------------------------------------------------------------------------------------------


def expected_points(exercise, mistake, hidden):
    """Points that an exercise with this mistake has to get: none for claims that know the mistake; the other claims are
    checked on their hidden inputs, where they may hold.
    """
    source, held = original(exercise), []
    student = checker.Source(written(Path(source.path).read_text(), exercise, mistake), exercise.file)
    definition = checker.build(exercise, checker.pieces(exercise, student, source, EXERCISES))
    for one in (one for one in hidden if not one.public and mistake not in one.claim.mistakes):
        with suppress(ZeroDivisionError):  # a wrong law may divide by C = 0
            held.append(not one.claim.problem(one.claim.vector(definition, one.inputs), one.expected, one.inputs))
    return exercise.points * sum(held) / len(exercise.claims)


def hand_in(path, number, solutions, graded, hidden):
    """Write a hand-in with known mistakes; returns the points that it has to get, by exercise, and its mistakes."""
    rng, files, points, made = random.Random(number), dict(solutions), {}, []
    for exercise in graded:
        known = [m for claim in exercise.claims for m in claim.mistakes] if exercise.kind != "bug" else []
        points[exercise.name] = exercise.points
        if known and rng.random() < 0.3:
            mistake = known[rng.randrange(len(known))]
            files[exercise.file] = written(files[exercise.file], exercise, mistake)
            points[exercise.name] = round(expected_points(exercise, mistake, hidden[exercise.name]), 4)
            made.append((exercise.name, " ".join(mistake.__doc__.split())))
        elif rng.random() < 0.1:
            files[exercise.file] = (
                checker.split(files[exercise.file], exercise)[0]
                + checker.split(checker.taken(Path(original(exercise).path).read_text(), exercise), exercise)[1]
                + checker.split(files[exercise.file], exercise)[2]
            )
            points[exercise.name] = 0.0
    if number % 10 == 9:
        del files["precision.py"]
        points |= {x.name: 0.0 for x in graded if x.file == "precision.py"}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr("commit", "another" if number == 3 else checker.commit_of(ROOT))
    return points, [
        (name, text)
        for name, text in made
        if points[name] < 1 and (number % 10 != 9 or next(x for x in graded if x.name == name).file != "precision.py")
    ]


def grade_class():
    """Grade SIZE hand-ins, named as Canvas does; the grades have to be exactly the expected ones."""
    graded = [exercise for exercise in EXERCISES if exercise.graded]
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    solutions = {file: checker.original_file(ROOT, file).read_text() for file in {x.file for x in graded}}
    for exercise in graded:
        solutions[exercise.file] = right(solutions[exercise.file], exercise)
    hidden = {exercise.name: grading.hidden(exercise, SEED, ROOT, EXERCISES) for exercise in graded}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "submissions"
        folder.mkdir()
        known = {
            f"student{n:02}": hand_in(folder / f"student{n:02}_{n}_1_handin.zip", n, solutions, graded, hidden)
            for n in range(SIZE)
        }
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        tables = "--csv", f"{temporary}/grades.csv", "--json", f"{temporary}/json"
        say(command(ROOT, "grade", folder, "--seed", SEED, *tables))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = {row["student"]: row for row in csv.DictReader(open(f"{temporary}/grades.csv"))}
        for name, (points, mistakes) in known.items():
            got = {exercise: float(rows[name][exercise]) for exercise in points}
            assert got == points, (name, {x: (got[x], points[x]) for x in points if got[x] != points[x]})
            for exercise, text in mistakes:
                assert f"{exercise}: {text}" in rows[name]["mistakes"], (name, exercise, text, rows[name]["mistakes"])
            assert json.loads(Path(temporary, "json", f"{name}.json").read_text())["tests"]
        assert "another" in rows["student03"]["warnings"]
        cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        made = sum(len(mistakes) for _, mistakes in known.values())
        say(
            f"{SIZE} hand-ins, {len(graded)} exercises, {made} mistakes: all grades as expected; "
            f"{time.monotonic() - began:.0f} s, {cpu:.0f} s of CPU"
        )


def say(text):
    print(text, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=("student", "class"))
    {"student": student, "class": grade_class}[parser.parse_args().part]()
