"""What `python exercises.py COMMAND` does: a student's folder, what to do next, training, the hand-in.

Test: pytest tests/test_exercises.py
"""

import argparse
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
COPIED = (*checker.MODULES, "*.toml", "LICENSE", "course/**/*.py", "base/**/*", "results/*")
COPIED += "docs/running.md", "docs/virtual.md"  # what the columns of a log are, and virtual time


# --- A student's folder ----------------------------------------------------------------------------------------------


def start(folder):
    """Copy the project to `folder` and take the solutions out. Exits if it is not empty: nothing is overwritten."""
    if HIDDEN.exists():
        sys.exit(f"{ROOT} is a student's folder already; start is for the project's folder")
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty; nothing is overwritten: give another folder")
    for pattern in COPIED:
        for path in filter(Path.is_file, ROOT.glob(pattern)):
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    shutil.copytree(folder, folder / checker.HIDDEN / "original")
    shutil.copyfile(ROOT / "exercises.md", folder / "README.md")
    (folder / "course" / "checks" / checker.ANSWERS).unlink()
    for file in checker.FILES:
        (folder / file).write_text(checker.left(file, ROOT), encoding="utf-8", newline="\n")
    return f"{len(EXERCISES)} exercises in {folder}; continue there with: python exercises.py next"


def find(name):
    """The exercise of this name; exits if there is none."""
    for exercise in EXERCISES:
        if exercise.name == name:
            return exercise
    sys.exit(f"no exercise or chapter is called {name}; this lists them: python exercises.py list")


# --- How far one is --------------------------------------------------------------------------------------------------


def checks(exercises):
    """Each of the exercises with what its check finds wrong, lines of text; with None if it was not begun."""
    begun = [x for x in exercises if checker.begun(x, ROOT)]
    results = checker.checked(begun, ROOT)  # one after the other, as far as they are asked for
    for exercise in exercises:
        yield exercise, next(results) if exercise in begun else None


def done(exercises):
    """Those of the exercises in which nothing is wrong."""
    return [exercise for exercise, problems in checks(exercises) if problems == []]


def upcoming(exercises):
    """The first of the exercises that is not done, and what is wrong; None, None if all are."""
    return next(((exercise, problems) for exercise, problems in checks(exercises) if problems != []), (None, None))


def listed():
    """All exercises by chapter, each with its state, and how many are done."""
    results = {exercise.name: problems for exercise, problems in checks(EXERCISES)}
    lines = []
    for chapter, exercises in CHAPTERS.items():
        lines.append(chapter)
        for x in exercises:
            problems = results[x.name]
            state = "-" if problems is None else "started" if problems else "original" if is_given(x) else "solved"
            lines.append(f"  {state:9} {x.name:15} {x.kind:8} {x.minutes:3} min  {x.where}")
    return "\n".join([*lines, f"{list(results.values()).count([])} of {len(EXERCISES)} done"])


def is_given(exercise):
    """Whether `solve` put the definition there."""
    texts = checker.text_of(ROOT / exercise.file), checker.original_text(exercise.file, ROOT)
    mine, original = (checker.split(text, exercise)[1] for text in texts)
    return mine == original and any(HIDDEN.glob(f"kept/{exercise.name}-[0-9]*.py"))


def following(name=""):
    """Describe the first exercise that is not done, of the chapter with this number, or the exercise `name`; without a
    name of all, from the student's chapter on. Say what its check finds if it was begun.
    """
    numbers = [title[0] for title in CHAPTERS]
    chapters = [*CHAPTERS.values()]
    asked = chapters[numbers.index(name)] if name in numbers else [find(name)] if name else []
    if asked:
        place().write_text(asked[0].name)
    here = next(n for n, chapter in enumerate(chapters) if current() in chapter)
    exercise, problems = upcoming(asked or sum(chapters[here:] + chapters[:here], []))
    if exercise:
        return "\n\n".join([described(exercise), *(problems or [])])
    if not name:
        return "All exercises are done. Now plain `torchrun train.py` runs with your functions."
    then, _ = upcoming(chapters[here])
    return f"{name}: solved. {f'Next: {titled(then)}' if then else 'The chapter is done: python exercises.py next'}"


def place():
    """The file with the name of the exercise, or of the first one of the chapter, that was last asked for or solved."""
    return HIDDEN / "place"


def current():
    """The exercise at which the student is: the one last asked for, or the first of all."""
    return find(place().read_text()) if place().exists() else EXERCISES[0]


def titled(exercise):
    """An exercise with the definition that it is about: "baseline (loss.py:group_advantages)"."""
    return f"{exercise.name} ({exercise.where})"


def described(exercise):
    """What to do in this exercise and why, where, and how to get hints and check it."""
    target = exercise.target
    line = 1
    with suppress(checker.Broken):
        before, *_ = checker.split(checker.text_of(ROOT / exercise.file), exercise)
        line += before.count("\n")
    task = {
        "write": f"Write the body of {target}; its docstring says what it returns.",
        "bug": f"One line of {target} is wrong. What was noticed: {exercise.symptom}",
        "predict": f"Let {target} return your prediction; its docstring asks the question.",
        "measure": f"Let {target} return what you measure; its docstring says where.",
    }[exercise.kind]
    return (
        f"{exercise.name} ({exercise.kind}, about {exercise.minutes} minutes)\n"
        f"  {exercise.teaches}\n  {exercise.file}:{line}  {task}\n"
        f"  Read:  {exercise.hints[0]}\n"
        f"  Stuck: python exercises.py hint {exercise.name}\n"
        f"  Check: python exercises.py next, or pytest -k {exercise.name}"
    )


def solve(exercise):
    """Put the original definition back; a copy of the student's file is kept.

    If the definition cannot be found in the file, everything else in it goes back to what `start` left.
    """
    place().write_text(exercise.name)
    path = ROOT / exercise.file
    original = checker.original_text(exercise.file, ROOT)
    message = f"{exercise.name} now has the original's code"
    if path.exists():
        kept = HIDDEN / "kept"
        kept.mkdir(exist_ok=True)
        copy = kept / f"{exercise.name}-{len([*kept.iterdir()]) + 1}.py"
        shutil.copyfile(path, copy)
        message += f"; your {exercise.file} is kept in {copy.relative_to(ROOT)}"
    try:
        text = checker.restored(checker.text_of(path), original, exercise)
    except checker.Broken as error:  # the file is missing or cannot be parsed
        text = checker.restored(checker.left(exercise.file, ROOT), original, exercise)
        message = f"{error}\nSo everything else in {exercise.file} was put back as start left it. {message}"
    path.write_text(text, encoding="utf-8", newline="\n")
    return message


# --- Training and handing in -----------------------------------------------------------------------------------------


def train(flags):
    """Become train.py with the student's solved functions and the originals of all others, and these flags."""
    if Path.cwd() != ROOT:  # where a relative path in the flags would be looked for
        sys.exit(f"train in your folder of the course: cd {ROOT}")
    code = [x for x in EXERCISES if x.kind in ("write", "bug")]
    yours = [x.name for x in done(code)]
    checker.assemble(ROOT, HIDDEN / "run", yours)
    print(f"yours: {', '.join(yours) or 'none'}; all others are the originals", flush=True)
    command = [sys.executable, str(HIDDEN / "run" / "train.py"), *flags]
    if os.name == "posix":
        os.execv(command[0], command)
    sys.exit(subprocess.call(command))  # Windows cannot replace a process


def pack():
    """Write the hand-in: the files that the student changed or added."""
    changed = [file for file in checker.modules_of(ROOT) if checker.is_changed(file, ROOT)]
    with zipfile.ZipFile(ROOT / "handin.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in changed:
            archive.write(ROOT / file, file)
    return (
        f"handin.zip holds {', '.join(changed) or 'nothing changed'}: {len(done(EXERCISES))} of {len(EXERCISES)} done"
    )


# --- The command line ------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(prog="exercises.py", description="The course; exercises.md explains it.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("start", help="a student's folder").add_argument(
        "folder", type=lambda text: Path(text).expanduser().resolve()
    )
    more = commands.add_parser("next", help="what to do and why")
    more.add_argument("name", nargs="?", default="", help="an exercise, or a chapter by its number, instead of all")
    commands.add_parser("list", help="all exercises, and how far you are")
    hint = commands.add_parser("hint", help="the pitfall (1), the idea in words (2)")
    hint.add_argument("name")
    hint.add_argument("number", nargs="?", type=int, choices=(1, 2), default=1)
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
        "train": lambda: train(rest),
        "next": lambda: following(args.name),
        "list": listed,
        "pack": pack,
        "hint": lambda: f"{titled(find(args.name))}: {find(args.name).hints[args.number]}",
        "solve": lambda: "\n".join(map(solve, [find(name) for name in args.names])),
    }
    try:
        print(does[args.command]())
    except checker.Broken as error:
        sys.exit(str(error))
