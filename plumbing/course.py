"""Exercises on the project's own functions: what is taken out of a copy, what is put back, one check of one exercise.

An exercise is a definition (function, method, class or table) of one file from which something was taken, and claims on
what it gives. Four kinds: `write` (a function's body is gone), `bug` (a piece of it is replaced by a wrong one),
`predict` and `measure` (a function of answers.py that returns numbers). The untaken file is the solution.

A check runs nothing but the student's definition and what that uses (`pieces`): the other exercises of the file count
as solved, so each can be done while all others are not, and no check has to import the rest of the project.

Test: pytest tests/test_exercises.py
"""

import ast
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from contextlib import chdir, suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

HIDDEN = ".course"  # in a student's folder: the originals, what `solve` replaced, what was checked, what is trained
ANSWERS = "answers.py"  # of predict and measure; its original stands with the claims
SIX_STEPS = "--loss cispo --k 0 --prompts 8 --steps 6 --eval-every 6 --eval-prompts 32 --eval-generations 2".split()
TIMES = ("seconds", "gpu_hours", "idle")  # and what is computed from them
UNWRITTEN, RAISED = "not written yet", "raised"  # how texts in place of a vector begin
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

    @property
    def computed(self):
        """Whether the original has to run for what is expected."""
        return any(claim.expected is None for claim in self.claims)


class Broken(Exception):
    """The student's file or function cannot be used; the message is one clear line."""


# --- Definitions as text ---------------------------------------------------------------------------------------------


class Source:
    """A module as text: its lines, and for each name at its top level, or Class.method, the statements that bind it."""

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
            return parsed(path.read_bytes().decode(), path)
        except (OSError, UnicodeDecodeError) as error:
            raise Broken(f"{path.name} cannot be read: {error}") from None

    def nodes(self, name):
        if name not in self.names:
            raise Broken(f"{Path(self.path).name} has no {name} any more; solve puts the original back")
        return self.names[name]

    def span(self, name):
        """Its lines as (first, end), decorators included; all between the first and last statement of a table."""
        nodes = self.nodes(name)
        return min(map(first_line, nodes)) - 1, max(node.end_lineno for node in nodes)

    def text(self, name):
        return "".join(self.lines[slice(*self.span(name))])

    def shape(self, name):
        """The syntax tree as text, without docstring, comments and layout: equal for equal code."""
        try:
            return "\n".join(ast.dump(ast.Module(node.body[1:], []) if ast.get_docstring(node) else node)
                             if isinstance(node, ast.FunctionDef) else ast.dump(node) for node in self.nodes(name))
        except RecursionError:
            return None


@lru_cache(100)
def parsed(text, path):
    """A Source, once for the same text."""
    return Source(text, path)


def first_line(node):
    """Of a statement, decorators included."""
    return min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))


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
    source = parsed(text, exercise.file)
    [node] = source.nodes(exercise.target)
    first = node.body[0].end_lineno if ast.get_docstring(node) else node.body[0].lineno - 1
    stub = f'{" " * (node.col_offset + 4)}raise NotImplementedError("{exercise.name} is not written yet")\n'
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
    source = parsed(text, exercise.file)
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
    """(Source, node) in an order that can be run: the student's definition and all that it uses.

    That is the student's own helpers, constants and imports; other exercises, and what is missing, are the original's.
    """
    others = {x.target.partition(".")[0] for x in exercises if x.file == exercise.file and x.name != exercise.name}
    return gathered(exercise.target, student, original, others - {exercise.target})


def gathered(target, student, original, others=frozenset()):
    """A definition of `student` and all that it uses, there or in `original`, where the `others` are taken from."""
    found, asked = [], {target}

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

    take(student, student.nodes(target))
    return found


def as_text(parts):
    """Pieces as a program."""
    lines = (source.lines[first_line(node) - 1:node.end_lineno] for source, node in parts)
    return "\n".join(textwrap.dedent("".join(part)) for part in lines)


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
            text = described(error, student.path)
            found.append(text if text.startswith(UNWRITTEN) else f"{RAISED} {text}")
    return found


def described(error, path):
    """An exception in one line, with the last line of the student's file that it came through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    place = f" ({Path(path).name}, line {lines[-1]})" if lines else ""
    if isinstance(error, NotImplementedError) and "is not written yet" in str(error):
        return f"{UNWRITTEN}{place}"
    return f"{type(error).__name__}{': ' * bool(str(error))}{str(error)[:500]}{place}"


def isolated(function, root, seconds):
    """What function() gives, as JSON, from a fork in folder `root`; a text if that loops, exits or crashes.

    Systems without fork: function is called here.
    """
    if not hasattr(os, "fork"):
        with chdir(root):
            return function()
    read, write = os.pipe()
    sys.stdout.flush()
    if not (child := os.fork()):
        with suppress(BaseException), os.fdopen(write, "w") as file:
            os.setsid()
            os.chdir(root)
            try:
                found = function()
            except Exception as error:  # noqa: BLE001: it would end here unseen
                found = f"{type(error).__name__}: {error}"
            json.dump(found, file)
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
    if late:
        return f"stopped after {seconds:g} s; likely cause: an endless loop"
    if not data:
        return f"the process ended ({status})"
    return json.loads(data)


def expected(exercise, original, exercises, folder):
    """What each claim without a hand number gets from the original, with the modules of the originals' folder."""
    if not exercise.computed:
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
        told = touched(exercise, student, original)
    except Broken as error:
        return [f"{exercise.name}: {error}"]
    seconds = MEASURE_SECONDS if exercise.kind == "measure" else SECONDS
    found = isolated(lambda: vectors(exercise, student, original, exercises), root, seconds)
    if isinstance(found, str):
        return [f"{exercise.name}: {found}"]
    right = [None] * len(exercise.claims)
    if exercise.computed:
        right = isolated(lambda: expected(exercise, original, exercises, originals), root, seconds)
    return judged(exercise, found, right, told)


def touched(exercise, student, original):
    """Whether the student has changed what `start` left."""
    left = parsed(taken("".join(original.lines), exercise), exercise.file)
    return student.text(exercise.target) != left.text(exercise.target)


def judged(exercise, found, right, told=True):
    """Problems of vectors (or texts) with the expected ones (None: the claim's own); mistakes are named if `told`."""
    problems, tell = [], exercise.kind != "predict"  # the first wrong try is not to end a prediction
    for claim, yours, vector in zip(exercise.claims, found, right):
        if isinstance(vector, str):
            problems.append(f"{exercise.name}: nothing to compare with yet: {vector}")
        elif isinstance(yours, str) and not yours.startswith(RAISED):
            problems.append(f"{exercise.name}: {yours}")
        elif problem := (claim if told else claim._replace(mistakes=())).problem(yours, vector, tell=tell):
            problems.append(f"{exercise.name}: {problem}")
    return list(dict.fromkeys(problems))


# --- Training with the student's functions ----------------------------------------------------------------------------


def originals_of(root):
    """The untaken project: beside the student's copy, or the folder itself."""
    hidden = root / HIDDEN / "original"
    return hidden if hidden.exists() else root


def assemble(root, folder, exercises, solved):
    """The student's modules in `folder`, with the original's definition wherever the exercise is not in `solved`."""
    originals = originals_of(root)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in (*root.glob("*.py"), *root.glob("plumbing/*.py")):
        name, text = path.relative_to(root).as_posix(), path.read_bytes().decode()
        for exercise in exercises:
            if exercise.file == name != ANSWERS and exercise.name not in solved:
                text = restored(text, original_file(originals, name).read_bytes().decode(), exercise)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode())


def commit_of(root):
    """What `git describe` calls the project in a folder; "unknown" where that is no checkout."""
    if not (root / ".git").exists() or not shutil.which("git"):
        return "unknown"
    return subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True,
                          check=False).stdout.strip()


def solved(root, exercises):
    """Names of the exercises on code whose claims all hold in folder `root`."""
    originals = originals_of(root)
    return {x.name for x in exercises if x.kind in ("write", "bug") and not check(x, root, originals, exercises)}


def compared_runs(exercises):
    """Largest difference between the logs of two runs of six steps: the student's functions and the originals.

    In the student's folder, the present one; times, and what is computed from them, do not count.
    """
    root, rows = Path.cwd(), []
    with tempfile.TemporaryDirectory() as temporary:
        for name, names in (("yours", solved(root, exercises)), ("original", ())):
            assemble(root, folder := Path(temporary) / name, exercises, names)
            command = [sys.executable, str(folder / "train.py"), *SIX_STEPS, "--out", str(folder / "out")]
            subprocess.run(command, cwd=root, check=True, capture_output=True)
            rows.append([json.loads(line) for line in (folder / "out" / "log.jsonl").open()])
    rows = [(timeless(a), timeless(b)) for a, b in zip(*rows, strict=True) if a["kind"] in ("step", "eval")]
    return max(abs(x - y) for pair in rows for x, y in zip(*pair, strict=True))


def timeless(row):
    """The numbers of a row of the log that do not depend on how long anything took."""
    return [float(x) for name, x in sorted(row.items()) if isinstance(x, (int, float)) and not name.startswith(TIMES)]
