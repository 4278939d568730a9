"""Exercises on the project's own functions: taking solutions out of a copy, putting them back, checking exercises.

An exercise is one definition (function, method, class or table) of a file whose solution is taken out of the student's
copy, with claims about what the definition returns. There are four kinds: `write` (a function's body is removed), `bug`
(a part is replaced by a wrong one), `predict` and `measure` (a function of answers.py has to return numbers). The
project's own file, here called the original, is the solution.

A check imports the originals, runs the student's file as a module of the same name, sets the originals of the file's
other exercises into it, so that exercises can be solved in any order, and calls what the student defines.

Test: pytest tests/test_exercises.py
"""

import ast
import importlib
import io
import multiprocessing
import os
import shutil
import sys
import textwrap
import traceback
from pathlib import Path

from course.checks.catalogue import EXERCISES
from course.checks.claims import ANSWERS, SHAPE
from course.submission import definition, imported

ROOT = Path(__file__).resolve().parents[1]  # of the project, or of a student's folder
HIDDEN = ".course"  # in a student's folder: originals, files that `solve` replaced, a copy to train
MODULES = ("*.py", "plumbing/*.py", "verify/*.py")  # what a run may import
FILES = sorted({exercise.file for exercise in EXERCISES})
UNWRITTEN = "not written yet"
SECONDS, MEASURE_SECONDS = 10.0, 900.0  # of wall clock for one check; for one of kind measure, which may train
START_SECONDS = 60.0  # at most, to start a process and load torch and the originals


class Broken(Exception):
    """The student's file or function cannot be used; the message is one clear line."""


# --- Definitions as text ---------------------------------------------------------------------------------------------


def text_of(path):
    """The text of a file, without a byte order mark. Raises Broken if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Broken(f"{path.name} cannot be read as UTF-8: {error}") from None


def parsed(text, file):
    """The statements of a module. Raises Broken if it is not Python."""
    try:
        return ast.parse(text, file).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # also null bytes; nested too deeply
        raise Broken(f"{file} is not Python: {type(error).__name__}: {error}") from None


def located(text, exercise):
    """The last statement of the text that defines the exercise's target. Raises Broken if there is none."""
    body = parsed(text, exercise.file)
    for name in exercise.target.split("."):
        node = next((node for node in reversed(body) if name in names_of(node)), None)
        if node is None:
            restore = f"`python exercises.py solve {exercise.name}` restores it"
            raise Broken(f"{exercise.file} no longer defines {exercise.target}; {restore}")
        body = getattr(node, "body", [])
    return node


def names_of(node):
    """The names that a definition or an assignment binds."""
    return [getattr(part, "id", "") for part in getattr(node, "targets", ())] + [getattr(node, "name", "")]


def cut(text, first, last):
    """The text before line `first`, from there to line `last`, and after it; lines are counted from 1."""
    lines = io.StringIO(text).readlines()  # as Python's parser counts; splitlines finds more, as U+2028
    return ["".join(part) for part in (lines[: first - 1], lines[first - 1 : last], lines[last:])]


def split(text, exercise):
    """The text before the exercise's definition, the definition with its decorators, and the text after it."""
    node = located(text, exercise)
    first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
    return cut(text, first, node.end_lineno)


def with_body(text, exercise, body):
    """The text with another body of the exercise's function; signature, decorators and docstring stay."""
    node = located(text, exercise)
    first = node.body[0].end_lineno + 1 if ast.get_docstring(node) else node.body[0].lineno
    before, _, after = cut(text, first, node.end_lineno)
    return before + textwrap.indent(body, " " * node.body[0].col_offset) + after


def taken(text, exercise):
    """The text as the student gets it: a bug's right text is replaced by the wrong one; a function has no body.

    Raises ValueError unless a bug's right text occurs exactly once.
    """
    if exercise.kind != "bug":
        return with_body(text, exercise, f'raise NotImplementedError("{exercise.name} is not written yet")\n')
    right, bug = exercise.bug
    if text.count(right) != 1:
        raise ValueError(f"{exercise.name}: expected {right!r} once in {exercise.file}, got {text.count(right)}")
    return text.replace(right, bug)


def restored(text, original, exercise):
    """The text with the exercise's definition replaced by the one in the text `original`."""
    before, _, after = split(text, exercise)
    return before + split(original, exercise)[1] + after


def originals_of(root):
    """The folder of the files with their solutions: hidden in a student's folder; the project's own."""
    hidden = root / HIDDEN / "original"
    return hidden if hidden.exists() else root


def original_file(file, root=ROOT):
    """The path of a file with its solutions; ANSWERS lies with the claims, as it is no module of the project."""
    return originals_of(root) / ("course/checks" if file == ANSWERS else "") / file


def original_text(file, root=ROOT):
    return text_of(original_file(file, root))


def left(file, root=ROOT):
    """The text of a file as `start` leaves it, without the solutions."""
    text = original_text(file, root)
    for exercise in EXERCISES:
        if exercise.file == file:
            text = taken(text, exercise)
    return text


def changed(exercise, text, root=ROOT):
    """Whether the text defines the exercise's target otherwise than `start` left it. Raises Broken if it does not."""
    start = taken(original_text(exercise.file, root), exercise)
    return split(text, exercise)[1] != split(start, exercise)[1]


def begun(exercise, root=ROOT):
    """Whether the student has changed the exercise's definition, or spoilt its file."""
    try:
        return changed(exercise, text_of(root / exercise.file), root)
    except Broken:
        return True


# --- The student's definition as a function --------------------------------------------------------------------------


def original_module(file, root):
    """A file of exercises with its solutions, as a module; those of a student's folder have to be on sys.path."""
    if file != ANSWERS:
        return importlib.import_module(file.removesuffix(".py").replace("/", "."))
    return imported("answers", original_file(file, root), original_text(file, root))


def build(exercise, text, original, root):
    """The definition that a student's file with this text makes, where the file's other exercises are the original's.

    Raises Broken if the file does not define it, and whatever its statements raise.
    """
    located(text, exercise)
    module = imported(original.__name__, root / exercise.file, text)
    for other in EXERCISES:
        if other.file == exercise.file and other is not exercise:
            owner, _, name = other.target.rpartition(".")
            setattr(getattr(module, owner, module), name, getattr(getattr(original, owner, original), name))
    return definition(module, exercise.target)


# --- One check -------------------------------------------------------------------------------------------------------


def problems(exercise, text, root=ROOT):
    """What is wrong with the definition in a student's file with this text, as lines of text; [] if all claims hold."""
    original = original_module(exercise.file, root)
    try:
        student = build(exercise, text, original, root)
    except Broken as error:
        lines = [str(error)]
    except BaseException as error:  # noqa: BLE001  a student's code may raise anything, SystemExit too
        lines = [f"{exercise.file} cannot be imported: {described(error, root)}"]
    else:
        told = changed(exercise, text, root)
        lines = [problem(exercise, claim, student, original, told, root) for claim in exercise.claims]
    finally:
        sys.modules[original.__name__] = original
    return [f"{exercise.name}: {line}" for line in dict.fromkeys(lines) if line]


def problem(exercise, claim, student, original, told, root):
    """What is wrong with the student's definition by this claim, "" if it holds.

    told  whether known mistakes are named
    """
    try:
        right = claim.right(definition(original, exercise.target))
    except Exception as error:  # noqa: BLE001  as a log that is not there yet
        return f"there is nothing to compare with yet, the question says what to run: {type(error).__name__}: {error}"
    try:
        yours = claim.vector(student)
    except BaseException as error:  # noqa: BLE001
        yours = described(error, root)
        if yours.startswith(UNWRITTEN):
            return yours
    tell = exercise.kind != "predict"  # a wrong prediction must not reveal the right one
    return (claim if told else claim._replace(mistakes=())).problem(yours, right, tell=tell)


def described(error, root):
    """An exception as text: its innermost line of a file in folder `root`; then a line with the call it came from."""
    own = [str(root / file) for file in modules_of(root)]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in own]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, NotImplementedError) and "is not written yet" in text:
        return f"{UNWRITTEN}{place}"
    if "does not require grad" in text:
        text = "it returned a result without a gradient; expected torch's own operations from logprobs to the result"
    if "must match the size" in text or "equal size" in text:
        text = f"{text}. {SHAPE}"
    calls = getattr(error, "__notes__", [])
    if calls and not frames:
        text = f"not what the docstring says: {text}"
    return (
        ": ".join(filter(None, [type(error).__name__, text])) + place + "".join(f"\n  at       {x}" for x in calls[-1:])
    )


# --- Checks in a process of their own --------------------------------------------------------------------------------


def checked(exercises, root=ROOT):
    """For each exercise what is wrong with the definition in the folder `root`, as lines of text; [] if nothing is.

    All are checked in one process. One that loops, exits or crashes ends it; the next one starts another. It is a fork
    on Linux. Elsewhere it is a new interpreter: Windows has no forks, and on macOS one that has loaded torch is unsafe.
    """
    linux = sys.platform == "linux"
    context = multiprocessing.get_context("fork") if linux else multiprocessing.get_context("spawn")
    waiting = [*exercises]
    while waiting:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=report, args=([x.name for x in waiting], root, sender))
        process.start()
        sender.close()
        ended = ""
        try:
            while waiting and not ended:
                exercise = waiting.pop(0)
                limit = MEASURE_SECONDS if exercise.kind == "measure" else SECONDS
                try:
                    for seconds in (START_SECONDS, limit):
                        lines = receiver.recv() if receiver.poll(seconds) else None
                    if lines is None:
                        ended = f"stopped after {limit:g} s; likely cause: an endless loop"
                except EOFError:
                    process.join()
                    ended = f"the process ended ({process.exitcode})"
                yield [f"{exercise.name}: {ended}"] if ended else lines
        finally:
            process.kill()
            process.join()


def report(names, root, sender):
    """In the process of checks: for each exercise send None when its originals are loaded, then what is wrong."""
    os.chdir(root)
    sys.path[:0] = map(str, (originals_of(root), root))
    for name in names:
        [exercise] = [x for x in EXERCISES if x.name == name]
        original_module(exercise.file, root)
        sender.send(None)
        try:
            sender.send(problems(exercise, text_of(root / exercise.file), root))
        except Broken as error:
            sender.send([f"{name}: {error}"])


# --- Files that a run imports ----------------------------------------------------------------------------------------


def modules_of(root):
    """The files of Python that a run imports, as "plumbing/store.py": the project's, and one's own beside them."""
    return sorted(path.relative_to(root).as_posix() for pattern in MODULES for path in root.glob(pattern))


def is_changed(file, root):
    """Whether a file is the student's own, or another one than `start` left."""
    return not original_file(file, root).exists() or text_of(root / file) != left(file, root)


def assemble(root, folder, names):
    """Write the student's modules to `folder`, emptied first; exercises not in `names` get the original's code."""
    shutil.rmtree(folder, ignore_errors=True)
    for file in modules_of(root):
        text = text_of(root / file)
        for exercise in EXERCISES:
            if exercise.file == file and exercise.name not in names:
                text = restored(text, original_text(file, root), exercise)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8", newline="\n")
