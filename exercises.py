"""The course: exercises on this project's own functions, from the scaling law to a whole run. See exercises.md.

    python exercises.py start ~/scalerl-class      a copy of the project with the solutions taken out; in the copy:
    python exercises.py next                       what to do and why; --watch checks again at every save
    python exercises.py list                       all exercises, and how far you are
    python exercises.py hint NAME                  the first of three hints; then hint NAME 2, hint NAME 3
    python exercises.py solve NAME                 puts the original back; what you wrote is kept
    python exercises.py train --loss cispo         a run with your solved functions, and the originals of all others
    python exercises.py pack                       your hand-in
    python exercises.py grade submissions/ --seed 7 --csv grades.csv --json results/       for teachers

`pytest -k NAME` is the same check as `next`, in the same words.

Test: pytest tests/test_exercises.py
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # import this folder's files, whatever is installed

try:
    from course import checker
    from course.checks.catalogue import CHAPTERS, EXERCISES
except ModuleNotFoundError as error:
    if error.name not in ("torch", "numpy", "scipy"):
        raise
    sys.exit(f"{error.name} is missing; install what the course needs, here: pip install -e '.[test]'")

HIDDEN = ROOT / checker.HIDDEN
ORIGINALS = checker.originals_of(ROOT)
HAND_IN = "handin.zip"
COPIED = ("*.py", "*.toml", "LICENSE", *checker.FOLDERS, "course/**/*.py", "base/**/*", "results/*")
COPIED += ("docs/running.md",)  # what the columns of a log are
FILES = sorted({exercise.file for exercise in EXERCISES})


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
            code = path.suffix == ".py"
            for target in (folder / name, *([folder / checker.HIDDEN / "original" / name] if code else [])):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
    shutil.copyfile(ROOT / "exercises.md", folder / "README.md")
    checker.original_file(folder, checker.ANSWERS).unlink()
    for file in FILES:
        (folder / file).write_bytes(left(file).encode())
    (folder / checker.HIDDEN / "commit").write_text(checker.commit_of(ROOT))
    return f"{len(EXERCISES)} exercises in {folder}; continue there with: python exercises.py next"


def left(file):
    """The text of a file as `start` leaves it, without the solutions."""
    text = checker.text_of(checker.original_file(ORIGINALS, file))
    for exercise in EXERCISES:
        if exercise.file == file:
            text = checker.taken(text, exercise)
    return text


def find(name):
    """The exercise of this name; exits if there is none."""
    for exercise in EXERCISES:
        if exercise.name == name:
            return exercise
    sys.exit(f"no exercise is called {name}; this lists them: python exercises.py list")


# --- How far one is --------------------------------------------------------------------------------------------------


def problems(exercise):
    """What the check finds wrong, as lines of text; [] if nothing is.

    Cached under a hash of all files that the check depends on; measurements are not cached, since they read logs too.
    """
    checks = sorted((ROOT / "course").rglob("*.py"))
    files = [ROOT / exercise.file, checker.original_file(ORIGINALS, exercise.file), *checks]
    text = b"\0".join(path.read_bytes() for path in files if path.exists())
    key = hashlib.sha256(text).hexdigest()
    path = HIDDEN / "checked.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if exercise.kind == "measure" or known.get(exercise.name, [""])[0] != key:
        known[exercise.name] = key, checker.check(exercise, ROOT, ORIGINALS, EXERCISES)
        path.write_text(json.dumps(known))
    return known[exercise.name][1]


def state(exercise):
    """ "solved", "original" (the same code as the solution), "started", or "" if it is as `start` left it."""
    try:
        student = checker.Source.read(ROOT / exercise.file)
        original = checker.Source.read(checker.original_file(ORIGINALS, exercise.file))
        if not checker.touched(exercise, student, original):
            return ""
        if exercise.kind != "bug" and student.shape(exercise.target) == original.shape(exercise.target):
            return "original"
    except checker.Broken:
        return "started"
    if exercise.name == "six-steps":  # its check trains: only `next` and pytest run it
        return "started"
    return "started" if problems(exercise) else "solved"


def listed():
    """All exercises by chapter, each with its state, and how many are done."""
    lines = []
    done = 0
    for chapter, exercises in CHAPTERS.items():
        lines.append(chapter)
        for x in exercises:
            found = state(x)
            done += found in ("solved", "original")
            lines.append(f"  {found or '-':9} {x.name:15} {x.kind:8} {x.minutes:3} min  {x.paper:19} {x.where}")
    return "\n".join([*lines, f"{done} of {len(EXERCISES)} done"])


def described(exercise):
    """What to do in this exercise and why, where, and how to get hints and check it."""
    file = exercise.file
    target = exercise.target
    try:
        line = checker.Source.read(ROOT / file).span(target)[0] + 1
    except checker.Broken:
        line = 1
    task = {
        "write": f"Write the body of {target}; its docstring says what it returns.",
        "bug": f"One line of {target} is wrong. What was noticed: {exercise.symptom}",
        "predict": f"Let {target} return your prediction; its docstring asks the question.",
        "measure": f"Let {target} return what you measure; its docstring says where.",
    }[exercise.kind]
    return (
        f"{exercise.name} ({exercise.kind}, about {exercise.minutes} minutes, {exercise.paper})\n"
        f"  {exercise.teaches}\n  {file}:{line}  {task}\n"
        f"  Stuck: python exercises.py hint {exercise.name}\n"
        f"  Check: python exercises.py next, or pytest -k {exercise.name}"
    )


def done(exercise):
    """Whether the exercise is solved or original. For six-steps this trains, once it was begun."""
    found = state(exercise)
    return found in ("solved", "original") or bool(found) and exercise.name == "six-steps" and not problems(exercise)


def following(name=None):
    """Describe the first exercise that is not done, or `name`, and say what its check finds if it was begun.

    If the exercise shown last (or `name`) is done, this is said first.
    """
    shown = HIDDEN / "shown"
    before = name or (shown.read_text() if shown.exists() else None)
    upcoming = next((x.name for x in EXERCISES if not done(x)), None)
    said = []
    if before and before != upcoming and done(find(before)):
        number = sum(state(x) in ("solved", "original") for x in EXERCISES)
        said = [f"{before}: solved ({number} of {len(EXERCISES)}). Next: {upcoming or 'nothing, all are done'}"]
    current = upcoming if said or not name else name
    shown.write_text(current or "")
    if name and said:
        return said[0]
    if current is None:
        return "All exercises are done. Now plain `torchrun train.py --loss cispo` runs with your functions."
    exercise = find(current)
    found = problems(exercise) if state(exercise) else []
    return "\n\n".join([*said, described(exercise), *found])


def watch(name):
    """Print what `following` says, and again whenever a file with exercises is saved."""
    shown = None
    while True:
        stamps = [(ROOT / file).stat().st_mtime_ns for file in FILES if (ROOT / file).exists()]
        if stamps != shown:
            print("\n" + "-" * 100 + "\n" + following(name), flush=True)
            shown = stamps
        time.sleep(0.3)


def solve(exercise):
    """Put the original definition back; a copy of the student's file is kept.

    A file whose exercises all have the original's text becomes the original file, byte for byte. If the definition
    cannot be found in the file, everything else in it goes back to what `start` left.
    """
    path = ROOT / exercise.file
    original = checker.text_of(checker.original_file(ORIGINALS, exercise.file))
    said = f"{exercise.name} now has the original's code"
    if path.exists():
        kept = next(p for n in range(1, 10**9) if not (p := HIDDEN / "kept" / f"{exercise.name}-{n}.py").exists())
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(path.read_bytes())
        said += f"; your {exercise.file} is kept in {kept.relative_to(ROOT)}"
    try:
        checker.Source.read(path)  # Broken if the file is missing or cannot be parsed
        text = checker.restored(checker.text_of(path), original, exercise)
    except checker.Broken as error:
        text = checker.restored(left(exercise.file), original, exercise)
        said = f"{error}\nSo everything else in {exercise.file} was put back as start left it. {said}"
    with suppress(checker.Broken):  # another definition may be missing
        now, then = (checker.Source(x, exercise.file) for x in (text, original))
        if all(now.text(x.target) == then.text(x.target) for x in EXERCISES if x.file == exercise.file):
            text = original
    path.write_bytes(text.encode())
    return said


# --- Training and handing in -----------------------------------------------------------------------------------------


def train(flags):
    """Become train.py with the student's solved functions and the originals of all others, and these flags."""
    yours = checker.solved(ROOT, EXERCISES)
    checker.assemble(ROOT, HIDDEN / "run", EXERCISES, yours)
    code = [x.name for x in EXERCISES if x.kind in ("write", "bug")]
    print(
        f"yours: {', '.join(x for x in code if x in yours) or 'none'}\n"
        f"the original's: {', '.join(x for x in code if x not in yours) or 'none'}",
        flush=True,
    )
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, str(HIDDEN / "run" / "train.py"), *flags])


def pack():
    """Write the hand-in: the files that the student changed, and the commit that the course was started from."""
    changed = [file for file in FILES if (ROOT / file).exists() and (ROOT / file).read_bytes() != left(file).encode()]
    with zipfile.ZipFile(ROOT / HAND_IN, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in changed:
            archive.write(ROOT / file, file)
        archive.write(HIDDEN / "commit", "commit")
    number = sum(state(x) in ("solved", "original") for x in EXERCISES)
    return f"{HAND_IN} holds {', '.join(changed) or 'nothing changed'}: {number} of {len(EXERCISES)} done"


def main():
    parser = argparse.ArgumentParser(prog="exercises.py", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("start", help="a student's folder").add_argument("folder", type=Path)
    more = commands.add_parser("next", help="what to do and why")
    more.add_argument("name", nargs="?", help="this exercise instead of the first that is not done")
    more.add_argument("--watch", action="store_true", help="again at every save")
    commands.add_parser("list", help="all exercises, and how far you are")
    hint = commands.add_parser("hint", help="where in the paper (1), the pitfall (2), the idea in words (3)")
    hint.add_argument("name")
    hint.add_argument("number", nargs="?", type=int, choices=(1, 2, 3), default=1)
    commands.add_parser("solve", help="put the original back").add_argument("name")
    commands.add_parser("train", help="a run with your functions; all flags of train.py", add_help=False)
    commands.add_parser("pack", help="your hand-in")
    commands.add_parser("grade", help="for teachers: grade hand-ins; flags: grade --help", add_help=False)
    args, rest = parser.parse_known_args()
    if args.command == "grade":
        from course import grading  # needs Linux

        return grading.grade(grading.flags(rest), EXERCISES, ORIGINALS)
    if rest and args.command != "train":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if args.command == "start":
        return print(start(args.folder.expanduser().resolve()))
    if not HIDDEN.exists():
        sys.exit("this is the project, not a student's folder; first: python exercises.py start FOLDER")
    os.chdir(ROOT)
    if args.command == "train":
        train(sys.argv[sys.argv.index("train") + 1 :])
    elif args.command == "next" and args.watch:
        with suppress(KeyboardInterrupt):
            watch(args.name)
    else:
        does = {
            "next": lambda: following(args.name),
            "list": listed,
            "pack": pack,
            "hint": lambda: find(args.name).hints[args.number - 1],
            "solve": lambda: solve(find(args.name)),
        }
        print(does[args.command]())


if __name__ == "__main__":
    try:
        main()
    except checker.Broken as error:
        sys.exit(str(error))
