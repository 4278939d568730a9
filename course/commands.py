"""What `python exercises.py COMMAND` does: a student's folder, what to do next, training, the hand-in.

Test: pytest tests/test_exercises.py
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

from course import checker
from course.checks.catalogue import CHAPTERS, EXERCISES

ROOT = checker.ROOT
HIDDEN = ROOT / checker.HIDDEN
COPIED = ("*.py", "*.toml", "LICENSE", *checker.FOLDERS, "course/**/*.py", "base/**/*", "results/*")
COPIED += "docs/running.md", "docs/virtual.md"  # what the columns of a log are, and virtual time
DONE = "solved", "original"


# --- A student's folder ----------------------------------------------------------------------------------------------


def start(folder):
    """Copy the project to `folder` and take the solutions out. Exits if it is not empty: nothing is overwritten."""
    if HIDDEN.exists():
        sys.exit(f"{ROOT} is a student's folder already; start is for the project's folder")
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty; nothing is overwritten: give another folder")
    for pattern in COPIED:
        for path in filter(Path.is_file, ROOT.glob(pattern)):
            name = path.relative_to(ROOT)
            originals = [folder / checker.HIDDEN / "original" / name] if path.suffix == ".py" else []
            for target in (folder / name, *originals):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
    shutil.copyfile(ROOT / "exercises.md", folder / "README.md")
    (folder / "course" / "checks" / checker.ANSWERS).unlink()
    for file in checker.FILES:
        (folder / file).write_bytes(checker.left(file, ROOT).encode())
    return f"{len(EXERCISES)} exercises in {folder}; continue there with: python exercises.py next"


def find(name):
    """The exercise of this name; exits if there is none."""
    for exercise in EXERCISES:
        if exercise.name == name:
            return exercise
    sys.exit(f"no exercise or chapter is called {name}; this lists them: python exercises.py list")


# --- How far one is --------------------------------------------------------------------------------------------------


def problems(exercise):
    """What the check finds wrong, as lines of text; [] if nothing is.

    Cached under a hash of all files that the check imports; a measurement may read every log and run every function.
    """
    files = [ROOT / file for file in checker.imports_of(exercise.file, ROOT)]
    files += [checker.original_file(exercise.file, ROOT), *sorted(ROOT.glob("course/**/*.py"))]
    if exercise.kind == "measure":
        files += [ROOT / file for file in checker.FILES] + sorted(ROOT.glob("*/*/log.jsonl"))
    key = hashlib.sha256(b"\0".join(path.read_bytes() for path in files if path.exists())).hexdigest()
    path = HIDDEN / "checked.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if known.get(exercise.name, [""])[0] != key:
        known[exercise.name] = key, checker.check(exercise, ROOT)
        path.write_text(json.dumps(known), encoding="utf-8")
    return known[exercise.name][1]


def state(exercise):
    """ "solved", "original" (`solve` put it there), "started", or "" if it is as `start` left it."""
    try:
        student = checker.source_of(ROOT / exercise.file)
        original = checker.original_of(exercise, ROOT)
        if not checker.touched(exercise, student, original):
            return ""
        given = student.shape(exercise.target) == original.shape(exercise.target)
        if given and [*HIDDEN.glob(f"kept/{exercise.name}-[0-9]*.py")]:
            return "original"
    except checker.Broken:
        return "started"
    return "started" if problems(exercise) else "solved"


def number_done():
    """How many exercises are done, and of how many."""
    return f"{sum(state(x) in DONE for x in EXERCISES)} of {len(EXERCISES)}"


def listed():
    """All exercises by chapter, each with its state, and how many are done."""
    lines = []
    for chapter, exercises in CHAPTERS.items():
        lines.append(chapter)
        for x in exercises:
            lines.append(f"  {state(x) or '-':9} {x.name:15} {x.kind:8} {x.minutes:3} min  {x.paper:19} {x.where}")
    return "\n".join([*lines, f"{number_done()} done"])


def described(exercise):
    """What to do in this exercise and why, where, and how to get hints and check it."""
    target = exercise.target
    line = 1
    with suppress(checker.Broken):
        line += checker.source_of(ROOT / exercise.file).span(target)[0]
    task = {
        "write": f"Write the body of {target}; its docstring says what it returns.",
        "bug": f"One line of {target} is wrong. What was noticed: {exercise.symptom}",
        "predict": f"Let {target} return your prediction; its docstring asks the question.",
        "measure": f"Let {target} return what you measure; its docstring says where.",
    }[exercise.kind]
    return (
        f"{exercise.name} ({exercise.kind}, about {exercise.minutes} minutes, {exercise.paper})\n"
        f"  {exercise.teaches}\n  {exercise.file}:{line}  {task}\n"
        f"  Stuck: python exercises.py hint {exercise.name}\n"
        f"  Check: python exercises.py next, or pytest -k {exercise.name}"
    )


def upcoming(exercises):
    """The first of these exercises that is not done; None if all are."""
    return next((x for x in exercises if state(x) not in DONE), None)


def following(name=""):
    """Describe the first exercise that is not done, of the chapter with this number or of all, or the exercise `name`;
    and say what its check finds if it was begun.
    """
    chapter = next((exercises for title, exercises in CHAPTERS.items() if title.startswith(f"{name}.")), EXERCISES)
    if name and chapter is EXERCISES:
        exercise = find(name)
        chapter = next(exercises for exercises in CHAPTERS.values() if exercise in exercises)
        if state(exercise) in DONE:
            then = upcoming(chapter) or upcoming(EXERCISES)
            return f"{name}: solved ({number_done()}). Next: {then.name if then else 'nothing, all are done'}"
    else:
        exercise = upcoming(chapter)
    if not exercise and chapter is not EXERCISES and upcoming(EXERCISES):
        return f"Chapter {name} is done ({number_done()}). Next: {upcoming(EXERCISES).name}"
    if not exercise:
        return "All exercises are done. Now plain `torchrun train.py --loss cispo` runs with your functions."
    found = problems(exercise) if state(exercise) else []
    return "\n\n".join([f"{described(exercise)}\n  Done:  {number_done()}", *found])


def solve(exercise):
    """Put the original definition back; a copy of the student's file is kept.

    If the definition cannot be found in the file, everything else in it goes back to what `start` left.
    """
    path = ROOT / exercise.file
    original = checker.text_of(checker.original_file(exercise.file, ROOT))
    said = f"{exercise.name} now has the original's code"
    if path.exists():
        kept = HIDDEN / "kept"
        kept.mkdir(exist_ok=True)
        copy = kept / f"{exercise.name}-{len([*kept.iterdir()]) + 1}.py"
        copy.write_bytes(path.read_bytes())
        said += f"; your {exercise.file} is kept in {copy.relative_to(ROOT)}"
    try:
        text = checker.restored(checker.text_of(path), original, exercise)
    except checker.Broken as error:  # the file is missing or cannot be parsed
        text = checker.restored(checker.left(exercise.file, ROOT), original, exercise)
        said = f"{error}\nSo everything else in {exercise.file} was put back as start left it. {said}"
    path.write_bytes(text.encode())
    return said


# --- Training and handing in -----------------------------------------------------------------------------------------


def train(flags):
    """Become train.py with the student's solved functions and the originals of all others, and these flags."""
    if Path.cwd() != ROOT:  # where a relative path in the flags would be looked for
        sys.exit(f"train in your folder of the course: cd {ROOT}")
    code = [x for x in EXERCISES if x.kind in ("write", "bug")]
    yours = [x.name for x in code if state(x) in DONE]
    checker.assemble(ROOT, HIDDEN / "run", yours)
    others = [x.name for x in code if x.name not in yours]
    print(f"yours: {', '.join(yours) or 'none'}\nthe original's: {', '.join(others) or 'none'}", flush=True)
    command = [sys.executable, str(HIDDEN / "run" / "train.py"), *flags]
    if os.name == "posix":
        os.execv(command[0], command)
    sys.exit(subprocess.call(command))  # Windows cannot replace a process


def pack():
    """Write the hand-in: the files that the student changed or added."""
    changed = [file for file in checker.modules_of(ROOT) if (ROOT / file).read_bytes() != checker.begun(file, ROOT)]
    with zipfile.ZipFile(ROOT / "handin.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in changed:
            archive.write(ROOT / file, file)
    return f"handin.zip holds {', '.join(changed) or 'nothing changed'}: {number_done()} done"


# --- The command line ------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(prog="exercises.py", description="The course; exercises.md explains it.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("start", help="a student's folder").add_argument("folder", type=checker.place)
    more = commands.add_parser("next", help="what to do and why")
    more.add_argument("name", nargs="?", help="an exercise, or a chapter by its number, instead of all")
    commands.add_parser("list", help="all exercises, and how far you are")
    hint = commands.add_parser("hint", help="where in the paper (1), the pitfall (2), the idea in words (3)")
    hint.add_argument("name")
    hint.add_argument("number", nargs="?", type=int, choices=(1, 2, 3), default=1)
    commands.add_parser("solve", help="put the originals back").add_argument("names", nargs="+", metavar="name")
    commands.add_parser("train", help="a run with your functions; all flags of train.py", add_help=False)
    commands.add_parser("pack", help="your hand-in")
    args, rest = parser.parse_known_args()
    if rest and args.command != "train":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if args.command == "start":
        return print(start(args.folder))
    if not HIDDEN.exists():
        sys.exit("this is the project, not a student's folder; first: python exercises.py start FOLDER")
    does = {
        "train": lambda: train(sys.argv[sys.argv.index("train") + 1 :]),
        "next": lambda: following(args.name),
        "list": listed,
        "pack": pack,
        "hint": lambda: find(args.name).hints[args.number - 1],
        "solve": lambda: "\n".join(map(solve, [find(name) for name in args.names])),
    }
    try:
        print(does[args.command]())
    except checker.Broken as error:
        sys.exit(str(error))
