"""Exercises on the project's own functions: taking solutions out of a copy, putting them back, checking one exercise.

An exercise is one definition (function, method, class or table) of a file whose solution is taken out of the student's
copy, with claims about what the definition returns. There are four kinds: `write` (a function's body is removed), `bug`
(a part is replaced by a wrong one), `predict` and `measure` (a function of answers.py has to return numbers). The
project's own file, here called the original, is the solution.

A check imports the student's file and calls what it defines (submission.py). Other exercises of the same file are taken
from the original, so they can be solved in any order.

Test: pytest tests/test_exercises.py
"""

import ast
import importlib
import multiprocessing
import os
import re
import shutil
import sys
import textwrap
import traceback
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from course.checks.catalogue import EXERCISES
from course.checks.claims import ANSWERS
from course.submission import definition, imported, merged, names_in

ROOT = Path(__file__).resolve().parents[1]  # of the project, or of a student's folder
HIDDEN = ".course"  # in a student's folder: originals, files that `solve` replaced, results of checks, a copy to train
FOLDERS = ("plumbing/**/*.py", "verify/**/*.py")  # what a run needs beside the top level
PROJECT = {path.stem for path in ROOT.glob("*.py")} | {path.parent.name for path in ROOT.glob("*/*.py")}  # modules
BESIDE = {"course", "tests", "lab", "docs", "__pycache__"}  # folders that a run and a hand-in do without
FILES = sorted({exercise.file for exercise in EXERCISES})
UNWRITTEN, RAISED = "not written yet", "raised"  # beginnings of texts that stand in place of a vector
SECONDS, MEASURE_SECONDS = 10.0, 900.0  # of wall clock for one check; for one of kind measure, which may train
START_SECONDS = 60.0  # at most, to start an interpreter and load torch
IMPORTED = re.compile(r"^ *(?:import|from) +([\w.]+)", re.MULTILINE)
LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")  # as Python's parser counts; splitlines finds more, as U+2028


class Broken(Exception):
    """The student's file or function cannot be used; the message is one clear line."""


# --- Definitions as text ---------------------------------------------------------------------------------------------


class Source:
    """A module as text: its lines, and for each top-level name and Class.method the last statement that binds it."""

    def __init__(self, text, path):
        self.lines = LINES.findall(text)
        self.path = str(path)
        self.names = {}
        try:
            body = ast.parse(text, Path(path).name).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # also null bytes; nested too deeply
            raise Broken(f"{Path(path).name} is not Python: {type(error).__name__}: {error}") from None
        for node in body:
            self.names |= dict.fromkeys(names_in(node), node)
            if isinstance(node, ast.ClassDef):
                methods = [member for member in node.body if isinstance(member, ast.FunctionDef)]
                self.names |= {f"{node.name}.{method.name}": method for method in methods}

    def node(self, name):
        if name not in self.names:
            raise no_longer(self.path, name)
        return self.names[name]

    def span(self, name):
        """The slice (first, end) of the lines that bind a name, decorators included."""
        node = self.node(name)
        return first_line(node) - 1, node.end_lineno

    def split(self, name):
        """The text before the definition of a name, the definition, the text after it."""
        first, end = self.span(name)
        return ["".join(lines) for lines in (self.lines[:first], self.lines[first:end], self.lines[end:])]

    def shape(self, name):
        """The syntax tree as text, without comments and layout: equal for equal code."""
        return ast.dump(self.names[name]) if name in self.names else ""


def no_longer(path, name):
    restore = "`python exercises.py solve EXERCISE` restores it"
    return Broken(f"{Path(path).name} no longer defines {name}; {restore}")


@lru_cache(100)
def parsed(text, path):
    """The Source of a text, cached."""
    return Source(text, path)


def text_of(path):
    """The text of a file, without a byte order mark. Raises Broken if it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Broken(f"{path.name} cannot be read as UTF-8: {error}") from None


def first_line(node):
    """The line on which a statement begins, decorators included."""
    return min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))


def taken(text, exercise):
    """The text as the student gets it: a bug's right text is replaced by the wrong one; of other functions only the
    signature, decorators and docstring stay. Raises ValueError unless a bug's right text occurs exactly once.
    """
    source = parsed(text, exercise.file)
    if exercise.kind == "bug":
        right, wrong = exercise.bug
        before, definition, after = source.split(exercise.target)
        if text.count(right) != 1 or right not in definition:
            raise ValueError(f"{exercise.name}: expected {right!r} once in {exercise.where}, got {text.count(right)}")
        return before + definition.replace(right, wrong) + after
    node = source.node(exercise.target)
    first = node.body[0].end_lineno if ast.get_docstring(node) else node.body[0].lineno - 1
    stub = f'{" " * (node.col_offset + 4)}raise NotImplementedError("{exercise.name} is not written yet")\n'
    return "".join([*source.lines[:first], stub, *source.lines[node.end_lineno :]])


def restored(text, original, exercise):
    """The text with the exercise's definition replaced by the one in the text `original`."""
    before, _, after = parsed(text, exercise.file).split(exercise.target)
    return before + parsed(original, exercise.file).split(exercise.target)[1] + after


def originals_of(root):
    """The folder with all solutions in place: hidden in the student's folder, or `root` itself in the project."""
    hidden = root / HIDDEN / "original"
    return hidden if hidden.exists() else root


def original_file(file, root=ROOT):
    """The path of a file with its solutions; ANSWERS lies with the claims, as it is no module of the project."""
    return originals_of(root) / ("course/checks" if file == ANSWERS else "") / file


def left(file, root=ROOT):
    """The text of a file as `start` leaves it, without the solutions."""
    text = text_of(original_file(file, root))
    for exercise in EXERCISES:
        if exercise.file == file:
            text = taken(text, exercise)
    return text


def begun(file, root=ROOT):
    """The bytes of a file as `start` left it; None if it is the student's own."""
    return left(file, root).encode() if original_file(file, root).exists() else None


def source_of(path):
    """The Source of a file."""
    return parsed(text_of(path), path)


def original_of(exercise, root=ROOT):
    """The Source of the exercise's file with its solutions."""
    return source_of(original_file(exercise.file, root))


def modules_of(root):
    """The files of Python in a folder that a run may import, as "plumbing/store.py": the project's, and one's own
    at the top and in folders of the top.
    """
    found = {path.relative_to(root) for pattern in ("*.py", "*/*.py", *FOLDERS) for path in root.glob(pattern)}
    return sorted(path.as_posix() for path in found if path.parts[0] not in BESIDE and path.parts[0][0] != ".")


def imports_of(file, root):
    """[file] that a file in folder `root` imports: modules of the folder, itself and all that these import included,
    also within functions.
    """
    modules = {module_name(name): name for name in modules_of(root)}
    files = [file]
    for name in files:
        with suppress(Broken):
            for module in IMPORTED.findall(text_of(root / name)):
                own = [other for known, other in modules.items() if f"{known}.".startswith(f"{module}.")]
                files += [other for other in own if other not in files]
    return files


def place(text):
    """A path that the user gives, seen from where the command was typed."""
    return Path(text).expanduser().resolve()


def text_for(name, source):
    """The text of the definition of a name in a Source, and of all in the file that it uses, in an order that runs."""
    parts = {}
    asked = {name}

    def take(node):
        used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        for other in sorted(used & source.names.keys()):
            if other not in asked:
                asked.add(other)
                take(source.names[other])
        parts[id(node)] = "".join(source.lines[first_line(node) - 1 : node.end_lineno])

    take(source.names[name])
    return "\n".join(map(textwrap.dedent, parts.values()))


# --- The student's definition as a function --------------------------------------------------------------------------


def module_name(file):
    """What a file is imported as: plumbing/log.py as plumbing.log."""
    return file.removesuffix(".py").replace("/", ".")


def others_in(exercise):
    """The definitions of the other exercises of the same file."""
    return [x.target for x in EXERCISES if x.file == exercise.file and x.name != exercise.name]


def build(exercise, student, original):
    """Import the student's file; returns the exercise's definition. Tracebacks show the right lines.

    Raises Broken if the file does not define it, and whatever its statements raise.
    """
    solution_taken = taken("".join(original.lines), exercise)
    tree = merged("".join(student.lines), solution_taken, others_in(exercise), exercise.target)
    module = imported(module_name(exercise.file), student.path, tree)
    try:
        return definition(module, exercise.target)
    except AttributeError:
        raise no_longer(student.path, exercise.target) from None


def solution(exercise):
    """The project's own definition."""
    name = "course.checks.answers" if exercise.file == ANSWERS else module_name(exercise.file)
    return definition(importlib.import_module(name), exercise.target)


@contextmanager
def project_in(folder, closed=False):
    """Inside, modules of the project are imported anew, from this folder; afterwards they are as before.

    closed  whether the course cannot be imported: it holds the solutions
    """
    kept = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in PROJECT}
    sys.path.insert(0, str(folder))
    if closed:
        sys.modules["course"] = None
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] in PROJECT]:
            del sys.modules[name]
        sys.modules.update(kept)


# --- One check -------------------------------------------------------------------------------------------------------


def vectors(exercise, student, original, root=ROOT):
    """For each claim the vector that the student's definition gives, or a text that says why there is none.

    root  folder that other modules of the project, and the student's own, are imported from
    """
    found = []
    with project_in(root, closed=exercise.kind != "measure"):
        try:
            definition = build(exercise, student, original)
        except BaseException as error:  # noqa: BLE001  a student's code may raise anything, SystemExit too
            return [described(error, root)] * len(exercise.claims)
        for claim in exercise.claims:
            try:
                found.append(claim.vector(definition))
            except BaseException as error:  # noqa: BLE001
                text = described(error, root)
                found.append(text if text.startswith(UNWRITTEN) else f"{RAISED} {text}")
    return found


def described(error, root):
    """An exception as text: its innermost line of a file in folder `root`; then a line with the call it came from."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename, root)]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    text = str(error)[:500]
    if isinstance(error, NotImplementedError) and "is not written yet" in text:
        return f"{UNWRITTEN}{place}"
    if isinstance(error, Broken):
        return text
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "course":
        text = f"{error.name} belongs to the course, of which nothing can be imported here"
    if "does not require grad" in text:
        text = "it returned a result without a gradient; expected torch's own operations from logprobs to the result"
    calls = getattr(error, "__notes__", [])
    if calls and not frames:
        text = f"not what the docstring says: {text}"
    return (
        ": ".join(filter(None, [type(error).__name__, text])) + place + "".join(f"\n  at       {x}" for x in calls[-1:])
    )


def is_own(file, root):
    """Whether a file lies in a student's folder and is none of the course."""
    path = Path(file)
    return path.is_relative_to(root) and path.relative_to(root).parts[0] not in ("course", HIDDEN)


# --- A check in a process of its own ---------------------------------------------------------------------------------


def isolated(exercise, root, seconds):
    """What `judged` compares, from a process of its own; a text if it loops, exits or crashes.

    The process is killed after `seconds` of wall clock. It is a fork on Linux. Elsewhere it is a new interpreter, since
    Windows has no forks, and a fork of a process that has loaded torch is not safe on macOS.
    """
    forks = hasattr(os, "fork") and sys.platform == "linux"
    context = multiprocessing.get_context("fork") if forks else multiprocessing.get_context("spawn")
    results, sender = context.Pipe(duplex=False)
    process = context.Process(target=report, args=(exercise.name, root, sender))
    process.start()
    sender.close()
    try:
        if results.poll(seconds if forks else seconds + START_SECONDS):
            return results.recv()
        return f"stopped after {seconds:g} s; likely cause: an endless loop"
    except EOFError:
        process.join()
        return f"the process ended ({process.exitcode})"
    finally:
        process.kill()
        process.join()


def report(name, root, sender):
    """In the process of a check: send the vectors of the student's file, and what is expected."""
    [exercise] = [x for x in EXERCISES if x.name == name]
    os.chdir(root)
    try:
        right = expected(exercise, root)
        found = vectors(exercise, source_of(root / exercise.file), original_of(exercise, root), root), right
    except Exception as error:  # noqa: BLE001  the parent has to be told
        found = f"{type(error).__name__}: {error}"
    sender.send(found)


def expected(exercise, root=ROOT):
    """For each claim: None if its expected value was worked out by hand, else the vector that the original gives."""
    if all(claim.expected is not None for claim in exercise.claims):
        return [None] * len(exercise.claims)
    original = original_of(exercise, root)
    found = zip(exercise.claims, vectors(exercise, original, original, originals_of(root)))
    return [vector if claim.expected is None else None for claim, vector in found]


def check(exercise, root=ROOT):
    """What is wrong with the student's definition in folder `root`, as lines of text; [] if all claims hold."""
    try:
        student = source_of(root / exercise.file)
        original = original_of(exercise, root)
        told = touched(exercise, student, original)
    except Broken as error:
        return [f"{exercise.name}: {error}"]
    seconds = MEASURE_SECONDS if exercise.kind == "measure" else SECONDS
    with project_in(originals_of(root)):
        solution(exercise)  # loads the packages that it needs, so that no fork has to: some take seconds
    found = isolated(exercise, root, seconds)
    if isinstance(found, str):
        return [f"{exercise.name}: {found}"]
    yours, right = found
    return judged(exercise, yours, right, told)


def touched(exercise, student, original):
    """Whether the student has changed what `start` left."""
    left = parsed(taken("".join(original.lines), exercise), exercise.file)
    return student.shape(exercise.target) != left.shape(exercise.target)


def judged(exercise, found, right, told=True):
    """The problems as lines of text, [] if all claims hold.

    found  for each claim the student's vector, or a text that says why there is none
    right  for each claim the expected vector, or a text that says why there is none; None: the claim's own
    told   whether known mistakes are named
    """
    problems = []
    tell = exercise.kind != "predict"  # a wrong prediction must not reveal the right one
    for claim, yours, vector in zip(exercise.claims, found, right):
        if isinstance(vector, str):
            problems.append(f"{exercise.name}: the expected value cannot be computed yet: {vector}")
        elif isinstance(yours, str) and not yours.startswith(RAISED):
            problems.append(f"{exercise.name}: {yours}")
        elif problem := (claim if told else claim._replace(mistakes=())).problem(yours, vector, tell=tell):
            problems.append(f"{exercise.name}: {problem}")
    return list(dict.fromkeys(problems))


# --- Training with the student's functions ---------------------------------------------------------------------------


def assemble(root, folder, names):
    """Write the student's modules to `folder`, emptied first; exercises not in `names` get the original's code."""
    shutil.rmtree(folder, ignore_errors=True)
    for file in modules_of(root):
        text = text_of(root / file)
        for exercise in EXERCISES:
            if exercise.file == file != ANSWERS and exercise.name not in names:
                text = restored(text, text_of(original_file(file, root)), exercise)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(text.encode())
