"""Exercises on the project's own functions: taking solutions out of a copy, putting them back, checking one exercise.

An exercise is one definition (function, method, class or table) of a file whose solution is taken out of the student's
copy, with claims about what the definition returns. There are four kinds: `write` (a function's body is removed), `bug`
(a part is replaced by a wrong one), `predict` and `measure` (a function of answers.py has to return numbers). The
project's own file, here called the original, is the solution.

A check runs only the student's definition and what it uses (`pieces`). Other exercises of the same file are taken from
the original, so they can be solved in any order, and no check has to import the rest of the project.

Test: pytest tests/test_exercises.py
"""

import ast
import copy
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from contextlib import chdir, contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path

from course.checks.catalogue import EXERCISES
from course.checks.claims import ANSWERS

ROOT = Path(__file__).resolve().parents[1]  # of the project, or of a student's folder
HIDDEN = ".course"  # in a student's folder: originals, files that `solve` replaced, results of checks, a copy to train
FOLDERS = ("plumbing/**/*.py", "verify/**/*.py")  # what a run needs beside the top level
PROJECT = {path.stem for path in ROOT.glob("*.py")} | {path.parent.name for path in ROOT.glob("*/*.py")}  # modules
SIX_STEPS = "--data tiny --virtual exact --loss cispo --k 0 --steps 6 --eval-every 6".split()
UNWRITTEN, RAISED = "not written yet", "raised"  # beginnings of texts that stand in place of a vector
SECONDS, MEASURE_SECONDS = 10.0, 900.0  # of wall clock for one check; for one of kind measure, which may train
RESULT_BYTES = 1 << 25  # of what a process of `isolated` may return
LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")  # as Python's parser counts; splitlines finds more, as U+2028


class Broken(Exception):
    """The student's file or function cannot be used; the message is one clear line."""


# --- Definitions as text ---------------------------------------------------------------------------------------------


class Source:
    """A module as text: its lines, and for each top-level name and each Class.method the statements that bind it."""

    def __init__(self, text, path):
        self.lines = LINES.findall(text)
        self.path = str(path)
        self.names = {}
        try:
            body = ast.parse(text).body
        except SyntaxError as error:
            raise Broken(f"{Path(path).name}, line {error.lineno}: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nested too deeply
            raise Broken(f"{Path(path).name}: Python cannot read it ({type(error).__name__})") from None
        for node in body:
            for name in dict.fromkeys(bound(node)):
                self.names.setdefault(name, []).append(node)
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, ast.FunctionDef):
                    self.names[f"{node.name}.{member.name}"] = [member]

    def nodes(self, name):
        if name not in self.names:
            restore = "`python exercises.py solve EXERCISE` restores it"
            raise Broken(f"{Path(self.path).name} no longer defines {name}; {restore}")
        return self.names[name]

    def span(self, name):
        """The slice (first, end) of the lines that bind a name, decorators included; if several statements bind it, as
        with a table, from the first of them to the last.
        """
        nodes = self.nodes(name)
        return min(map(first_line, nodes)) - 1, max(node.end_lineno for node in nodes)

    def split(self, name):
        """The text before the definition of a name, the definition, the text after it."""
        first, end = self.span(name)
        return ["".join(lines) for lines in (self.lines[:first], self.lines[first:end], self.lines[end:])]

    def shape(self, name):
        """The syntax tree as text, without docstring, comments and layout: equal for equal code. None: too deep."""
        try:
            return "\n".join(map(shape, self.nodes(name)))
        except RecursionError:
            return None


@lru_cache(100)
def parsed(text, path):
    """The Source of a text, cached."""
    return Source(text, path)


def text_of(path):
    """The text of a file, without a byte order mark. Raises Broken if it cannot be read."""
    try:
        return decoded(path.read_bytes(), path.name)
    except OSError as error:
        raise Broken(f"{path.name} cannot be read: {error}") from None


def decoded(data, name):
    """The text of a file's bytes, without a byte order mark. Raises Broken unless they are UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Broken(f"{name} cannot be read: {error}; likely cause: saved in another encoding than UTF-8") from None


def shape(node):
    """A definition's syntax tree as text; of a function the arguments and the body without its docstring."""
    if not isinstance(node, ast.FunctionDef):
        return ast.dump(node)
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return "\n".join(map(ast.dump, (node.args, *body)))


def first_line(node):
    """The line on which a statement begins, decorators included."""
    return min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))


def bound(node):
    """The names that a top-level statement binds; RECIPES["x"] = … counts as binding RECIPES."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = (part for target in targets for part in ast.walk(target))
        return [part.id for part in parts if isinstance(part, ast.Name)]
    if isinstance(node, (ast.With, ast.Try)):  # around an import that may fail
        return [name for statement in node.body for name in bound(statement)]
    return []


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
    [node] = source.nodes(exercise.target)
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


def source_of(path):
    """The Source of a file."""
    return parsed(text_of(path), path)


def original_of(exercise, root=ROOT):
    """The Source of the exercise's file with its solutions."""
    return source_of(original_file(exercise.file, root))


def place(text):
    """A path that the user gives, seen from where the command was typed."""
    return Path(text).expanduser().resolve()


# --- The student's definition inside the original --------------------------------------------------------------------


def pieces(exercise, student, original):
    """[(Source, node)] in an order that can be run: the student's definition and everything that it uses.

    Helpers, constants and imports are the student's; the definitions of other exercises, and names that the student's
    file lacks, are the original's.
    """
    others = {x.target.partition(".")[0] for x in EXERCISES if x.file == exercise.file and x.name != exercise.name}
    parts = gathered(exercise.target, student, original, others - {exercise.target})
    return [(source, node if source is student else rewired(node, exercise, student)) for source, node in parts]


def rewired(node, exercise, student):
    """A node of the original; if it is the class of the exercise's method, that method is the student's."""
    outer, _, method = exercise.target.rpartition(".")
    if not (isinstance(node, ast.ClassDef) and node.name == outer):
        return node
    [own] = student.nodes(exercise.target)
    node = copy.copy(node)
    node.body = [own if getattr(part, "name", None) == method else part for part in node.body]
    return node


def gathered(target, student, original, others=frozenset()):
    """[(Source, node)]: a definition of `student` and everything that it uses, taken from `student` where possible;
    names in `others`, and names that `student` lacks, are taken from `original`.
    """
    found = {}
    asked = {target}

    def take(source, nodes):
        for node in nodes:
            for name in sorted({part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - asked):
                where = original if name in others or name not in student.names else student
                if name not in asked and name in where.names:
                    asked.add(name)
                    take(where, where.names[name])
            found.setdefault(id(node), (source, node))

    take(student, student.nodes(target))
    return [*found.values()]


def as_text(parts):
    """Pieces of the project's own code, [(Source, node)], as the text of a program."""
    lines = (source.lines[first_line(node) - 1 : node.end_lineno] for source, node in parts)
    return "\n".join(textwrap.dedent("".join(part)) for part in lines)


def build(exercise, student, original):
    """Run the pieces and return the exercise's definition (a method as a function); tracebacks show the right lines.

    The sandbox runs the same nodes (HARNESS in grading.py), so that what counts as a definition cannot differ there.
    """
    space = {"__name__": "exercise"}
    for source, node in pieces(exercise, student, original):
        exec(compile(ast.Module([node], []), source.path, "exec"), space)
    return space[exercise.target.rpartition(".")[2]]


def solution(exercise, root=ROOT):
    """The original's definition."""
    return build(exercise, original_of(exercise, root), original_of(exercise, root))


# --- One check -------------------------------------------------------------------------------------------------------


def vectors(exercise, student, original):
    """For each claim the vector that the student's definition gives, or a text that says why there is none.

    Where the exercise is graded, no module of the project can be imported, since there is none in the sandbox either.
    """
    found = []
    with unimportable(PROJECT) if exercise.graded and student is not original else nullcontext():
        try:
            definition = build(exercise, student, original)
        except BaseException as error:  # noqa: BLE001  a student's code may raise anything, SystemExit too
            return [described(error, student.path)] * len(exercise.claims)
        for claim in exercise.claims:
            try:
                found.append(claim.vector(definition))
            except BaseException as error:  # noqa: BLE001
                text = described(error, student.path)
                found.append(text if text.startswith(UNWRITTEN) else f"{RAISED} {text}")
    return found


@contextmanager
def unimportable(names):
    """Inside, importing one of these modules raises ImportError."""
    hidden = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in names}
    sys.modules.update(dict.fromkeys(names))
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(hidden)


def described(error, path):
    """An exception in one line of text, with the number of the innermost line of the file `path` that it came from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    place = f" ({Path(path).name}, line {lines[-1]})" if lines else ""
    text = str(error)[:500]
    if isinstance(error, NotImplementedError) and "is not written yet" in text:
        return f"{UNWRITTEN}{place}"
    if isinstance(error, Broken):
        return text
    if "None in sys.modules" in text:
        text = f"{error.name} belongs to the project, of which nothing can be imported here or in grading"
    return f"{type(error).__name__}{': ' * bool(text)}{text}{place}"


def isolated(function, root, seconds, memory=None):
    """The result of function(), called in a forked process in folder `root`; a text if it loops, exits or crashes.

    The result must be JSON of at most RESULT_BYTES. The fork is killed after `seconds` of wall clock; it may take
    `memory` bytes more than this process has (None: no limit). On systems without fork, function is called in this
    process, without limits.
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
                limit(seconds, memory)
                found = function()
            except Exception as error:  # noqa: BLE001  the parent has to be told
                found = f"{type(error).__name__}: {error}"
            json.dump(found, file)
        os._exit(0)
    os.close(write)
    data = bytearray()
    end = time.monotonic() + seconds
    while select.select([read], [], [], max(0.0, end - time.monotonic()))[0] and (more := os.read(read, 1 << 16)):
        data += more
        if len(data) > RESULT_BYTES:
            break
    late = time.monotonic() >= end
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.close(read)
    status = os.waitpid(child, 0)[1]
    if late:
        return f"stopped after {seconds:g} s; likely cause: an endless loop"
    with suppress(ValueError):  # killed, or out of memory, while it was writing
        if len(data) <= RESULT_BYTES:
            return json.loads(data)
    return f"the process ended ({status})"


def limit(seconds, memory):
    """Bound the CPU time of this process, and, unless `memory` is None, the bytes that it may take from now on."""
    if memory is None:
        return
    import resource  # Windows has none

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1,) * 2)


def expected(exercise, root=ROOT):
    """For each claim: None if its expected value was worked out by hand, else the vector that the original gives."""
    if not exercise.computed:
        return [None] * len(exercise.claims)
    sys.path.insert(0, str(originals_of(root)))  # its modules are imported
    original = original_of(exercise, root)
    found = zip(exercise.claims, vectors(exercise, original, original))
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
    found = isolated(lambda: vectors(exercise, student, original), root, seconds)
    if isinstance(found, str):
        return [f"{exercise.name}: {found}"]
    right = isolated(lambda: expected(exercise, root), root, seconds) if exercise.computed else expected(exercise, root)
    return judged(exercise, found, [right] * len(found) if isinstance(right, str) else right, told)


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


def solved(root):
    """Names of the `write` and `bug` exercises whose claims all hold in folder `root`."""
    return {x.name for x in EXERCISES if x.kind in ("write", "bug") and not check(x, root)}


def assemble(root, folder, names):
    """Write the student's modules to `folder`, emptied first; exercises not in `names` get the original's code."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in (path for pattern in ("*.py", *FOLDERS) for path in root.glob(pattern)):
        file = path.relative_to(root).as_posix()
        text = text_of(path)
        for exercise in EXERCISES:
            if exercise.file == file != ANSWERS and exercise.name not in names:
                text = restored(text, text_of(original_file(file, root)), exercise)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(text.encode())


def commit_of(root):
    """What `git describe` calls the commit of a folder; "unknown" if the folder is no checkout or git is missing."""
    if not (root / ".git").exists() or not shutil.which("git"):
        return "unknown"
    command = "git describe --always --dirty".split()
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.strip()


def compared_runs(root):
    """Largest difference between the logs of two runs of six steps, with the student's solved functions and without.

    Both run in virtual time, so that no number depends on how long anything took.
    """
    logs = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, names in (("yours", solved(root)), ("original", ())):
            assemble(root, folder := Path(temporary) / name, names)
            command = [sys.executable, str(folder / "train.py"), *SIX_STEPS, "--out", str(folder / "out")]
            subprocess.run(command, cwd=root, check=True, capture_output=True)
            rows = map(json.loads, (folder / "out" / "log.jsonl").open())
            logs.append([sorted(row.items()) for row in rows if row["kind"] in ("step", "eval")])
    pairs = zip(*([x for row in log for _, x in row if isinstance(x, (int, float))] for log in logs), strict=True)
    return max(abs(x - y) for x, y in pairs)
