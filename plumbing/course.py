"""Exercises on the project's own functions: what is taken out of a copy, what is put back, and one check of one exercise.

An exercise is a definition (function, method, class or table) of one file from which something was taken, and claims on
what it gives. Four kinds: `write` (a function's body is gone), `bug` (a piece of it is replaced by a wrong one),
`predict` and `measure` (a function of answers.py that returns numbers). The untaken file is the solution.

A check runs nothing but the student's definition and what that uses (`pieces`): the other exercises of the file count as
solved, so each can be done while all others are not, and no check has to import the rest of the project.

Test: pytest tests/test_exercises.py
"""

import ast
import json
import os
import select
import signal
import sys
import textwrap
import time
import traceback
from contextlib import chdir, suppress
from pathlib import Path
from typing import NamedTuple

ANSWERS = "answers.py"  # of predict and measure; its original stands with the claims
SECONDS = 10.0  # of wall clock for one check; measure may train
MEASURE_SECONDS = 900.0


class Exercise(NamedTuple):
    """What a student does at one place; `where` is the only place that names module and definition."""

    name: str
    kind: str  # write, bug, predict, measure
    where: str  # "loss.py:cispo", "data.py:Curriculum._is_retired", "answers.py:age"
    paper: str  # section or equation
    minutes: int
    teaches: str  # one sentence
    hints: tuple  # where in the paper; the pitfall; the idea in words
    claims: tuple
    bug: tuple = ()  # what stands there exactly once, and what is planted instead
    symptom: str = ""  # of the bug: all that is told
    points: float = 1.0

    @property
    def file(self):
        return self.where.partition(":")[0]

    @property
    def target(self):
        """The definition: "cispo", or "Class.method"."""
        return self.where.partition(":")[2]

    @property
    def graded(self):
        """Measurements are not: logs can be forged."""
        return self.kind != "measure"


class Broken(Exception):
    """The student's file or function cannot be used; the message is one clear line."""


# --- Definitions as text ---------------------------------------------------------------------------------------------


class Source:
    """A module as text: its lines, and for every name at its top level, or Class.method, the statements that bind it."""

    def __init__(self, text, path):
        self.lines, self.path, self.names = text.splitlines(keepends=True), str(path), {}
        try:
            body = ast.parse(text).body
        except SyntaxError as error:
            raise Broken(f"{Path(path).name}, line {error.lineno}: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:  # null bytes; brackets within brackets
            raise Broken(f"{Path(path).name}: Python cannot read it ({type(error).__name__})") from None
        for node in body:
            for name in bound(node):
                self.names.setdefault(name, []).append(node)
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, ast.FunctionDef):
                    self.names[f"{node.name}.{member.name}"] = [member]

    @classmethod
    def read(cls, path):
        try:
            return cls(path.read_bytes().decode(), path)
        except (OSError, UnicodeDecodeError) as error:
            raise Broken(f"{path.name} cannot be read: {error}") from None

    def nodes(self, name):
        if name not in self.names:
            raise Broken(f"{Path(self.path).name} has no {name} any more; solve puts the original back")
        return self.names[name]

    def span(self, name):
        """Its lines as (first, end), decorators included; all between the first and last statement of a table."""
        nodes = self.nodes(name)
        first = min(x.lineno for node in nodes for x in (node, *getattr(node, "decorator_list", ())))
        return first - 1, max(node.end_lineno for node in nodes)

    def text(self, name):
        return "".join(self.lines[slice(*self.span(name))])

    def shape(self, name):
        """The syntax tree as text, without docstring, comments and layout: equal for equal code."""
        try:
            return "\n".join(ast.dump(ast.Module(node.body[1:], []) if ast.get_docstring(node) else node)
                             if isinstance(node, ast.FunctionDef) else ast.dump(node) for node in self.nodes(name))
        except RecursionError:
            return None


def bound(node):
    """Names that a statement at the top level binds; RECIPES["x"] = … belongs to RECIPES."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        parts = (part for target in getattr(node, "targets", None) or [node.target] for part in ast.walk(target))
        return [part.id for part in parts if isinstance(part, ast.Name)]
    if isinstance(node, (ast.With, ast.Try)):  # an import that may be missing
        return [name for statement in node.body for name in bound(statement)]
    return []


def cut(text, exercise):
    """The text without the function's body; signature, decorators and docstring stay, comments behind it go."""
    source = Source(text, exercise.file)
    [node] = source.nodes(exercise.target)
    first = node.body[0].end_lineno if ast.get_docstring(node) else node.body[0].lineno - 1
    stub = f'{" " * (node.col_offset + 4)}raise NotImplementedError("{exercise.name}: not written yet")\n'
    return "".join([*source.lines[:first], stub, *source.lines[node.end_lineno:]])


def taken(text, exercise):
    """The text as the student gets it."""
    if exercise.kind != "bug":
        return cut(text, exercise)
    right, wrong = exercise.bug
    before, definition, after = split(text, exercise)
    if text.count(right) != 1 or definition.count(right) != 1:
        raise ValueError(f"{exercise.name}: {right!r} is to stand once in {exercise.where}, got {text.count(right)}")
    return before + definition.replace(right, wrong) + after


def split(text, exercise):
    """The text before an exercise's definition, the definition, the text after it."""
    source = Source(text, exercise.file)
    first, end = source.span(exercise.target)
    return "".join(source.lines[:first]), "".join(source.lines[first:end]), "".join(source.lines[end:])


def restored(text, original, exercise):
    """The text with the original's definition."""
    before, _, after = split(text, exercise)
    return before + split(original, exercise)[1] + after


def original_file(folder, name):
    """Where the original of a file lies; that of the answers is no module of the project."""
    return folder / name if name != ANSWERS else folder / "tests" / "course" / name


# --- The student's definition inside the original ---------------------------------------------------------------------


def pieces(exercise, student, original, exercises):
    """(Source, node) in an order that can be run: the student's definition and, of all that it uses, the student's

    own helpers, constants and imports; other exercises are the original's.
    """
    others = {x.target.partition(".")[0] for x in exercises if x.file == exercise.file and x.name != exercise.name}
    found, asked = [], {exercise.target}

    def need(name):
        source = original if name in others or name not in student.names else student
        if name not in asked and name in source.names:
            asked.add(name)
            take(source, source.names[name])

    def take(source, nodes):
        for node in nodes:
            for name in sorted({part.id for part in ast.walk(node) if isinstance(part, ast.Name)}):
                need(name)
            if (source, node) not in found:
                found.append((source, node))

    take(student, student.nodes(exercise.target))
    return found


def as_text(parts):
    """Pieces as a program."""
    spans = ((source, min(x.lineno for x in (node, *getattr(node, "decorator_list", ()))), node) for source, node in parts)
    return "\n".join(textwrap.dedent("".join(source.lines[first - 1:node.end_lineno])) for source, first, node in spans)


def build(exercise, parts):
    """The definition, run; tracebacks show the student's own lines."""
    space = {"__name__": "exercise"}
    for source, node in parts:
        exec(compile(ast.Module([node], []), source.path, "exec"), space)
    return space[exercise.target.rpartition(".")[2]]


# --- One check -------------------------------------------------------------------------------------------------------


def vectors(exercise, student, original, exercises):
    """What each claim gets from the student's definition: a vector, or text that says why there is none."""
    try:
        definition = build(exercise, pieces(exercise, student, original, exercises))
    except BaseException as error:  # noqa: BLE001: a student's code may raise anything, SystemExit too
        return [described(error, student.path)] * len(exercise.claims)
    found = []
    for claim in exercise.claims:
        try:
            found.append(claim.vector(definition))
        except BaseException as error:  # noqa: BLE001
            found.append(described(error, student.path))
    return found


def described(error, path):
    """An exception in one line, with the last line of the student's file that it came through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    place = f" ({Path(path).name}, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}{': ' * bool(str(error))}{str(error)[:500]}{place}"


def isolated(function, root, seconds):
    """function() as JSON from a fork in folder `root`, which may loop, exit or crash; a text says so. No fork: called."""
    if not hasattr(os, "fork"):
        with chdir(root):
            return function()
    read, write = os.pipe()
    sys.stdout.flush()
    if not (child := os.fork()):
        with suppress(BaseException), os.fdopen(write, "w") as file:
            os.setsid()
            os.chdir(root)
            json.dump(function(), file)
        os._exit(0)
    os.close(write)
    data, end = b"", time.monotonic() + seconds
    while select.select([read], [], [], max(0.0, end - time.monotonic()))[0] and (more := os.read(read, 1 << 16)):
        data += more
    late = time.monotonic() >= end
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.close(read)
    status = os.waitpid(child, 0)[1]
    if late or not data:
        return f"stopped after {seconds:g} s; likely cause: an endless loop" if late else f"the process ended ({status})"
    return json.loads(data)


def expected(exercise, original, exercises, folder):
    """What each claim without a hand number gets from the original, with the modules of the originals' folder."""
    if all(claim.expected is not None for claim in exercise.claims):
        return [None] * len(exercise.claims)
    sys.path.insert(0, str(folder))
    return [None if claim.expected is not None else vector
            for claim, vector in zip(exercise.claims, vectors(exercise, original, original, exercises))]


def check(exercise, root, originals, exercises):
    """What is wrong with the student's definition in folder `root`, as lines of text; [] if all claims hold.

    originals: the folder of the untaken project
    """
    try:
        student, original = Source.read(root / exercise.file), Source.read(original_file(originals, exercise.file))
    except Broken as error:
        return [f"{exercise.name}: {error}"]
    seconds = MEASURE_SECONDS if exercise.kind == "measure" else SECONDS
    found = isolated(lambda: vectors(exercise, student, original, exercises), root, seconds)
    if isinstance(found, str):
        return [f"{exercise.name}: {found}"]
    right = isolated(lambda: expected(exercise, original, exercises, originals), root, seconds)
    return judged(exercise, found, right)


def judged(exercise, found, right):
    """Problems of vectors (or texts) against the expected ones (None: the claim's own)."""
    problems = []
    for claim, yours, vector in zip(exercise.claims, found, right):
        if isinstance(vector, str):
            problems.append(f"{exercise.name}: nothing to compare with yet: {vector}")
        elif isinstance(yours, str):
            problems.append(f"{exercise.name}: {yours}\n  in: {claim.says}")
        elif problem := claim.problem(yours, vector):
            problems.append(f"{exercise.name}: {problem}")
    return problems
