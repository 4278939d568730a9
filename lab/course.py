"""The course, played through: a student who makes every named mistake once, solves every exercise, measures and trains.

    python -m lab.course student

Fails unless every mistake is named as itself and as no other (in a `bug` it may go unnamed), and every file is the
original again in the end. Takes minutes; part of .ci/run.
"""

import argparse
import inspect
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from course import checker
from course.checks.catalogue import EXERCISES

ROOT = Path(__file__).resolve().parent.parent


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
    return checker.original_file(exercise.file).read_text(encoding="utf-8")


def split(text, exercise):
    return checker.Source(text, exercise.file).split(exercise.target)


def written(text, exercise, mistake):
    """The text with the exercise's definition replaced by a mistake, a function, with all that it needs inside."""
    source = checker.source_of(Path(inspect.getsourcefile(inspect.unwrap(mistake))))
    inner = checker.text_for(mistake.__name__, source)
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
        text = path.read_text(encoding="utf-8")
        if exercise.name == "staleness":
            say(command(folder, "train", *"--data tiny --virtual balanced --steps 20".split()))
        if exercise.name == "too-stale":
            short = "--data tiny --virtual exact --steps 10 --eval-every 2".split()
            for k in (0, 4, 32):
                say(command(folder, "train", *short, "--k", k, "--out", f"stale/k{k}"))
        if exercise.name == "own-loss":
            (folder / "mine.py").write_text(MINE, encoding="utf-8")
            two = ["cispo: --loss cispo", f"mine: --loss {folder}/mine.py:objective", "--seeds", "1"]
            short = f"--data tiny --virtual exact --k 8 --steps 10 --eval-every 2 --out {folder}/race".split()
            subprocess.run([sys.executable, "-m", "lab.compare", *two, *short], cwd=ROOT, check=True)
        if exercise.kind != "measure":
            found = checker.check(exercise, folder)
            assert found and all(line.startswith(exercise.name) for line in found), (exercise.name, found)
        for mistake in {m.__name__: m for claim in exercise.claims for m in claim.mistakes}.values():
            path.write_text(written(text, exercise, mistake), encoding="utf-8")
            said = "\n".join(checker.check(exercise, folder))
            named = set(
                re.findall("This is what you get when you .*|A nan has several causes; one is that you .*", said)
            )
            sentences = {exercise.claims[0].named(mistake, sure) for sure in (True, False)}
            assert named & sentences or exercise.kind == "bug" and not named, (exercise.name, mistake.__name__, said)
            mistakes += 1
        os.chdir(folder)
        path.write_text(right(text, exercise), encoding="utf-8")
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
        command(folder, "solve", *[exercise.name for exercise in EXERCISES])
        for file in {exercise.file for exercise in EXERCISES}:
            assert (folder / file).read_bytes() == checker.original_file(file).read_bytes(), file
        flags = "--steps 2 --prompts 8 --eval-prompts 32 --out runs/plain".split()
        subprocess.run([sys.executable, "train.py", *flags], cwd=folder, check=True, capture_output=True)  # all solved
        say(f"{mistakes} mistakes made and named, {len(EXERCISES)} exercises solved, every file as it was")


def say(text):
    print(text, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=("student",))
    parser.parse_args()
    student()
