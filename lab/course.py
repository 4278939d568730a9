"""The course, played through: a student who makes every named mistake once, and a class of 30 that is graded.

    python -m lab.course student       starts a copy, makes every mistake, solves every exercise, trains
    python -m lab.course class         grades 30 hand-ins, 12 of them hostile; prints how long it took
    python -m lab.course hostile       grades every hostile hand-in of hostile.py beside a right one

Fails unless every mistake is named as itself and as no other (in a `bug` it may go unnamed), and every grade is the
expected one; hostile hand-ins get no point and a warning. Takes minutes; part of .ci/run.
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

from course import checker, grading
from course.checks.catalogue import EXERCISES
from lab import hostile

ROOT = Path(__file__).resolve().parent.parent

SIZE = 30
SEED = 7
ATTACKS = (  # in the class, against the process that reads hand-ins; then against the sandbox
    "chain of targets", "plus signs", "a chain of calls", "methods", "a bomb", "many entries", "names of no encoding",
    "broken lzma", "latin-1 \udce9", "stops itself", "fills memory", "leaves daemons",
)  # fmt: skip


def command(folder, *words):
    """Run a student's exercises.py, or the project's, in a folder; returns what it prints. Fails if it fails."""
    program = folder / "exercises.py" if (folder / "exercises.py").exists() else ROOT / "exercises.py"
    done = subprocess.run(
        [sys.executable, program, *map(str, words)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}: {done.stderr[-2000:]}"
    return done.stdout


MINE = """
import torch


def objective(logprobs, gen_logprobs, advantages, mask):
    return torch.where(mask, advantages[:, None] * torch.where(mask, logprobs, 0.0), 0.0)
"""


def whole(exercise):
    return checker.original_file(exercise.file).read_text()


def split(text, exercise):
    return checker.Source(text, exercise.file).split(exercise.target)


def written(text, exercise, mistake):
    """The text with the exercise's definition replaced by a mistake, a function, with all that it needs inside."""
    source = checker.source_of(Path(inspect.getsourcefile(inspect.unwrap(mistake))))
    inner = checker.as_text(checker.gathered(mistake.__name__, source, source))
    before, _, after = split(text, exercise)
    body = (
        f"def {exercise.target.rpartition('.')[2]}(*args, **kwargs):\n{textwrap.indent(inner, '    ')}\n"
        f"    return {mistake.__name__}(*args, **kwargs)\n"
    )
    return before + textwrap.indent(body, "    " * exercise.target.count(".")) + after


def right(text, exercise):
    """The text with the exercise solved: by the original's definition, or, in predict and measure, by its result."""
    if exercise.kind not in ("predict", "measure"):
        return checker.restored(text, whole(exercise), exercise)
    before, _, after = split(text, exercise)
    return f"{before}def {exercise.target}():\n    return {checker.solution(exercise)()!r}\n{after}"


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
            say(command(folder, "train", *"--data tiny --virtual balanced --steps 20".split()))
        if exercise.name == "too-stale":
            short = "--data tiny --virtual exact --steps 10 --eval-every 2".split()
            for k in (0, 4, 32):
                say(command(folder, "train", *short, "--k", k, "--out", f"stale/k{k}"))
        if exercise.name == "own-loss":
            (folder / "mine.py").write_text(MINE)
            two = ["cispo: --loss cispo", f"mine: --loss {folder}/mine.py:objective", "--seeds", "1"]
            short = f"--data tiny --virtual exact --k 8 --steps 10 --eval-every 2 --out {folder}/race".split()
            subprocess.run([sys.executable, "-m", "lab.compare", *two, *short], cwd=ROOT, check=True)
        if exercise.kind != "measure":
            found = checker.check(exercise, folder)
            assert found and all(line.startswith(exercise.name) for line in found), (exercise.name, found)
        for mistake in {m.__name__: m for claim in exercise.claims for m in claim.mistakes}.values():
            path.write_text(written(text, exercise, mistake))
            said = "\n".join(checker.check(exercise, folder))
            named = set(
                re.findall("This is what you get when you .*|A nan has several causes; one is that you .*", said)
            )
            sentences = {exercise.claims[0].named(mistake, sure) for sure in (True, False)}
            assert named & sentences or exercise.kind == "bug" and not named, (exercise.name, mistake.__name__, said)
            mistakes += 1
        os.chdir(folder)
        path.write_text(right(text, exercise))
        found = checker.check(exercise, folder)
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
        assert f"{len(EXERCISES)} of {len(EXERCISES)} done" in listed
        assert "All exercises are done" in command(folder, "next")
        say(command(folder, "pack"))
        for exercise in EXERCISES:
            command(folder, "solve", exercise.name)
        for file in {exercise.file for exercise in EXERCISES}:
            assert (folder / file).read_bytes() == checker.original_file(file).read_bytes(), file
        flags = "--steps 2 --prompts 8 --eval-prompts 32 --out runs/plain".split()
        subprocess.run([sys.executable, "train.py", *flags], cwd=folder, check=True, capture_output=True)  # all solved
        say(f"{mistakes} mistakes made and named, {len(EXERCISES)} exercises solved, every file as it was")


# --- A class ---------------------------------------------------------------------------------------------------------


def expected_points(exercise, mistake, hidden):
    """Points that an exercise with this mistake has to get: none for claims that know the mistake; the other claims are
    checked on their hidden inputs, where they may hold.
    """
    student = checker.Source(written(whole(exercise), exercise, mistake), exercise.file)
    definition = checker.build(exercise, student, checker.original_of(exercise))
    held = []
    for one in (one for one in hidden if not one.public and mistake not in one.claim.mistakes):
        with suppress(ZeroDivisionError):  # a wrong law may divide by C = 0
            held.append(not one.problem(one.claim.vector(definition, one.inputs), True))
    return sum(held) / len(exercise.claims)


def hand_in(path, number, solutions, graded, hidden):
    """Write a hand-in with known mistakes; returns the points that it has to get, by exercise, and its mistakes."""
    rng = random.Random(number)
    files = dict(solutions)
    points = {}
    made = []
    for exercise in graded:
        known = [m for claim in exercise.claims for m in claim.mistakes] if exercise.kind != "bug" else []
        points[exercise.name] = 1.0
        if known and rng.random() < 0.3:
            mistake = known[rng.randrange(len(known))]
            files[exercise.file] = written(files[exercise.file], exercise, mistake)
            points[exercise.name] = round(expected_points(exercise, mistake, hidden[exercise.name]), 4)
            sure = [c for c in exercise.claims if mistake in c.mistakes and all(x == x for x in c.vector(mistake))]
            made += [(exercise.name, " ".join(mistake.__doc__.split()))] if sure else []  # a nan has several causes
        elif rng.random() < 0.1:
            before, _, after = split(files[exercise.file], exercise)
            left = split(checker.taken(whole(exercise), exercise), exercise)[1]
            files[exercise.file] = before + left + after
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
    """Grade SIZE hand-ins, named as Canvas does, the last of them hostile; all grades have to be the expected ones."""
    graded = [exercise for exercise in EXERCISES if exercise.graded]
    solutions = {file: checker.original_file(file).read_text() for file in {x.file for x in graded}}
    for exercise in graded:
        solutions[exercise.file] = right(solutions[exercise.file], exercise)
    hidden = {exercise.name: grading.posed(exercise, SEED) for exercise in graded}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "submissions"
        folder.mkdir()
        known = {
            f"student{n:02}": hand_in(folder / f"student{n:02}_{n}_1_handin.zip", n, solutions, graded, hidden)
            for n in range(SIZE - len(ATTACKS))
        }
        for attack in ATTACKS:
            (folder / f"{attack}.zip").write_bytes(attacking(attack, solutions))
        began = time.monotonic()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        tables = "--csv", "grades.csv", "--json", "json"  # relative paths, from a folder that is not the project's
        say(command(Path(temporary), "grade", "submissions", "--seed", SEED, *tables))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = {row["student"]: row for row in csv.DictReader(open(f"{temporary}/grades.csv"))}
        for name, (points, mistakes) in known.items():
            got = {exercise: float(rows[name][exercise]) for exercise in points}
            assert got == points, (name, {x: (got[x], points[x]) for x in points if got[x] != points[x]})
            for exercise, text in mistakes:
                assert f"{exercise}: {text}" in rows[name]["mistakes"], (name, exercise, text, rows[name]["mistakes"])
            assert json.loads(Path(temporary, "json", f"{name}.json").read_text())["tests"]
        assert "another" in rows["student03"]["warnings"] and len(rows) == SIZE
        for name in rows.keys() - known.keys():
            assert float(rows[name]["ratio"]) == 0 and rows[name]["warnings"], rows[name]
        cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        made = sum(len(mistakes) for _, mistakes in known.values())
        say(
            f"{SIZE} hand-ins, {len(ATTACKS)} hostile, {len(graded)} exercises, {made} mistakes: grades as expected; "
            f"{time.monotonic() - began:.0f} s, {cpu:.0f} s of CPU"
        )


def attacking(name, solutions):
    """The zip of a hostile hand-in: an archive of hostile.py, or solutions with a hostile body of `ratio`."""
    if name not in hostile.BODIES:
        return hostile.archives()[name]
    [exercise] = [x for x in EXERCISES if x.name == "ratio"]
    before, definition, after = split(solutions[exercise.file], exercise)
    own = definition.replace("def importance_ratio(", "def right(", 1) + "\n\n" + "def importance_ratio(*args):\n"
    text = before + own + textwrap.indent(hostile.BODIES[name], "    ") + after
    return hostile.zipped(solutions | {exercise.file: text})


def grade_hostile():
    """Grade every hand-in of hostile.py beside a right one, on one exercise."""
    solutions = {"loss.py": (ROOT / "loss.py").read_text()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "submissions"
        folder.mkdir()
        count = hostile.write(folder)
        for name in hostile.BODIES:
            (folder / f"{name}.zip").write_bytes(attacking(name, solutions))
        (folder / "ada.zip").write_bytes(hostile.zipped(solutions))
        began = time.monotonic()
        tables = [part for kind in ("csv", "json", "feedback") for part in (f"--{kind}", f"{temporary}/{kind}")]
        say(command(ROOT, "grade", folder, "--only", "ratio", "--seed", SEED, *tables))
        rows = {row["student"]: row for row in csv.DictReader(open(f"{temporary}/csv", newline=""))}
        assert len(rows) == count + len(hostile.BODIES) + 1 == len([*Path(temporary, "feedback").iterdir()])
        earned = {name: row["points"] for name, row in rows.items() if float(row["points"])}
        assert earned == {"ada": "1.0"}, earned
        say(f"{len(rows) - 1} hostile hand-ins: no point for them, one for ada; {time.monotonic() - began:.0f} s")


def say(text):
    print(text, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=("student", "class", "hostile"))
    {"student": student, "class": grade_class, "hostile": grade_hostile}[parser.parse_args().part]()
