"""Grading: the points of each student's folder, by what its functions return on inputs that nobody has seen.

    python exercises.py grade submissions/ --seed 7 --csv grades.csv

The solutions are public: a grade says what code does, not who wrote it. Measurements are not graded, since logs can be
forged.

A student's code is untrusted. The grader reads its bytes, and neither parses nor runs it. Each hand-in gets a copy of
the project as `start` leaves it, with the hand-in's files in place, and a sandbox (verify/sandbox.py says what that
protects against), which forks for every exercise. In the fork submission.py imports the file and calls what it defines.
The sandbox knows no right answer and no solution of the exercise, and returns n float64 as bytes; anything else is no
answer. Hand-ins are graded one after the other, so that none can slow another one down.

Without namespaces (`sandbox.protections`) a hand-in can read the solutions on the disk, use the network, and outlive
its sandbox: `grade` says so, and then needs --weak-sandbox.

Test: pytest tests/test_grading.py
"""

import argparse
import base64
import csv
import inspect
import json
import math
import os
import pickle
import random
import re
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from course import checker, submission
from course.checks import claims
from course.checks.catalogue import EXERCISES

GRADED = [exercise for exercise in EXERCISES if exercise.graded]
LIMITS = {"CPU": 4, "AS": 1 << 30}  # of one exercise: seconds; bytes beyond what the imports take
EXERCISE_SECONDS, HAND_IN_SECONDS = 10.0, 180.0  # of wall clock
ENTRIES, BYTES = 2_000, 1 << 18  # at most: files and folders of a hand-in; bytes of a file
WEAK = "no namespaces here: a hand-in can read the solutions on the disk, use the network, and outlive its sandbox"
ONLY_LINUX = "grade runs hand-ins in a sandbox, which needs Linux; use WSL on Windows, or a container"
NOT_DONE, NO_ANSWER = "not done", "no answer"
MISTAKE = re.compile("This is what you get when you (.*)")

HARNESS = """
import base64, json, math, os, pickle, struct, sys
import submission
job, out = json.load(sys.stdin), os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
sys.path.insert(0, job["folder"])
definition = None
try:
    path = os.path.join(job["folder"], job["file"])
    with open(path, encoding="utf-8-sig") as file:
        tree = submission.merged(file.read(), *job["merge"])
    definition = submission.definition(submission.imported(job["module"], path, tree), job["merge"][-1])
except BaseException:
    pass
numbers = []
for text, probe, inputs, n in job["claims"]:
    vector = []
    try:
        own = {"__name__": "probe"}
        exec(compile(text, "probe", "exec"), own)
        given = pickle.loads(base64.b64decode(inputs))
        vector = [] if definition is None else submission.answer(own[probe], definition, given)
    except BaseException:
        pass
    numbers += [float(x) for x in vector][:n] + [math.nan] * (n - len(vector))
os.write(out, struct.pack(f"{len(numbers)}d", *numbers))
os._exit(0)
"""
LOADED = """
import importlib, os, sys, types
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
sys.path += %r
sys.path.insert(0, %r)
import contextlib, dataclasses, random, typing, unittest.mock
import numpy, scipy.special, torch
torch.set_num_threads(1)
submission = sys.modules["submission"] = types.ModuleType("submission")
exec(compile(%r, "submission", "exec"), vars(submission))
for name in %r:
    importlib.import_module(name)
for name, module in [*sys.modules.items()]:
    if (getattr(module, "__file__", None) or "").startswith(sys.path[0] + "/"):
        del sys.modules[name]
del sys.path[0]
"""


# --- Hidden inputs ---------------------------------------------------------------------------------------------------


class Posed(NamedTuple):
    """A claim on inputs that nobody has seen."""

    claim: claims.Claim
    inputs: tuple
    answers: list  # vectors of the original and of all known mistakes

    @property
    def size(self):
        """How many floats the sandbox returns: as many as the longest known answer has."""
        return max(map(len, self.answers))

    def task(self):
        """For the sandbox: the text of the function that calls the definition, its name, inputs in base64, size."""
        probe = self.claim.probe
        source = checker.source_of(Path(inspect.getfile(probe)))
        text = checker.text_for(probe.__name__, source)
        return text, probe.__name__, base64.b64encode(pickle.dumps(self.inputs)).decode(), self.size

    def problem(self, vector, tell):
        """What is wrong with a vector, or a text that stands in place of one; "" if the claim holds."""
        if isinstance(vector, str):
            return vector
        return self.claim.problem(vector, self.answers[0], self.inputs, tell)


def posed(exercise, seed):
    """[Posed] of an exercise; the same seed gives the same inputs."""
    definition = checker.solution(exercise)
    right = zip(exercise.claims, checker.expected(exercise))
    return [drawn(claim, definition, vector, f"{seed}/{exercise.name}/{claim.says}") for claim, vector in right]


def drawn(claim, definition, right, seed):
    """The claim on inputs on which the definition and all known mistakes give different numbers.

    right: the definition's vector if it is the same on all inputs. Raises ValueError if 200 draws give no such inputs.
    """
    rng = random.Random(seed)
    for _ in range(200):
        inputs = claim.draw(rng, claim.inputs)
        answers = [right or claim.vector(definition, inputs)]
        answers += [claim.vector(mistake, inputs) for mistake in claim.mistakes]
        if not any(claim.same(a, b) for i, a in enumerate(answers) for b in answers[:i]):
            return Posed(claim, inputs, answers)
    raise ValueError(f"in 200 draws no input on which all mistakes of {claim.says!r} differ")


# --- A hand-in -------------------------------------------------------------------------------------------------------


def printable(text):
    """The text with everything that is not printable as an escape: nothing in it can steer a terminal.

    >>> printable("a\\x1b[2Jb"), printable("caf\\udce9"), printable("李明")
    ('a\\\\x1b[2Jb', 'caf\\\\udce9', '李明')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def python_files(folder):
    """Yield the paths of the files of Python in a folder, relative to it; links and hidden folders are not followed.

    Stops after ENTRIES files and folders.
    """
    left = ENTRIES
    for place, folders, names in os.walk(folder):
        inside = Path(place).relative_to(folder)
        folders[:] = sorted(name for name in folders if name[0] != ".")
        left -= len(folders) + len(names)
        if left < 0:
            return
        for name in sorted(names):
            path = Path(place, name)
            if name.endswith(".py") and path.is_file() and not path.is_symlink():
                yield inside / name


def handed_in(folder):
    """({file: its bytes}, [remark]): the files of Python beside those of the course that lie in the fewest folders."""
    if folder.is_symlink():
        return {}, ["a link, which is not followed"]
    paths = [*python_files(folder)]
    tops = {}
    for path in paths:
        for file in checker.FILES:
            if f"/{path.as_posix()}".endswith(f"/{file}"):
                tops.setdefault(path.parents[file.count("/")], []).append(file)
    if not tops:
        return {}, ["no file of the course found"]
    top = min(tops, key=lambda path: (len(path.parts), path.as_posix()))
    remarks = [f"several copies: the one in {top}/ counts"] if len(tops) > 1 else []
    files = {}
    for path in (path for path in paths if path.is_relative_to(top)):
        name = path.relative_to(top)
        if name.parts[0] not in checker.BESIDE:
            with (folder / path).open("rb") as file:
                files[name.as_posix()] = file.read(BYTES + 1)
    for name in [name for name, data in files.items() if len(data) > BYTES]:
        del files[name]
        remarks.append(f"{name} is larger than {BYTES} bytes")
    if missing := [file for file in checker.FILES if file not in files]:
        remarks.append(f"not handed in: {', '.join(missing)}")
    return files, remarks


def write(folder, files):
    """Write {file: bytes} into a folder that every user may read: a sandbox may have a user of its own."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    folder.chmod(0o755)


def project():
    """{file: bytes} of the project as `start` leaves it."""
    return {file: checker.begun(file) for file in {*checker.modules_of(checker.ROOT), *checker.FILES}}


# --- In the sandbox --------------------------------------------------------------------------------------------------


def packages():
    """The folders that torch, numpy and scipy are installed in. Of the project they hold no module (pyproject.toml)."""
    import numpy
    import scipy
    import torch

    return sorted({str(Path(str(module.__file__)).parents[1]) for module in (torch, numpy, scipy)})


def warm(base, student, modules, namespaces):
    """The argument `warm` of sandbox.run that loads torch, and what the modules import, once for a hand-in.

    base, student  folders: the project as `start` leaves it, without and with the files of the hand-in
    """
    seen = {place: f"/packages/{number}" for number, place in enumerate(packages())}
    path = [*(seen.values() if namespaces else seen)]
    text = checker.text_of(Path(submission.__file__))
    return {
        "source": LOADED % (path, "/base" if namespaces else str(base), text, modules),
        "see": seen | {str(base): "/base", str(student): "/student"} if namespaces else {},
        "hide": [str(checker.ROOT)] if namespaces else [],
        "limits": LIMITS,
        "seconds": EXERCISE_SECONDS,
    }


def case(exercise, hidden, folder):
    """An exercise as an input of the HARNESS."""
    original = "".join(checker.original_of(exercise).lines)
    return json.dumps({
        "folder": folder,
        "file": exercise.file,
        "module": checker.module_name(exercise.file),
        "merge": [checker.taken(original, exercise), checker.others_in(exercise), exercise.target],
        "claims": [one.task() for one in hidden],
    })  # fmt: skip


def readable(data, sizes):
    """The vectors in the sandbox's output, bytes of as many float64 as `sizes` say; a text where one is no answer."""
    if data is None or len(data) != 8 * sum(sizes):
        return [NO_ANSWER] * len(sizes)
    numbers = iter(struct.unpack(f"{sum(sizes)}d", data))
    return [understood([next(numbers) for _ in range(size)]) for size in sizes]


def understood(vector):
    """The vector without what lies behind its end; a text if its head (submission.encode) makes no sense."""
    head = vector[: submission.HEAD]
    if any(x != x or abs(x) >= 1e6 or x != int(x) for x in head):
        return NO_ANSWER
    kind, dimensions, *sizes = map(int, head)
    if kind not in (0, 1, 2) or not 0 <= dimensions <= submission.DIMS or min(sizes[:dimensions], default=0) < 0:
        return NO_ANSWER
    length = submission.HEAD + math.prod(sizes[:dimensions])
    return vector[:length] if length <= len(vector) else NO_ANSWER


def begun(exercise, files):
    """Whether there is something to run of an exercise, not only the file, or the bug, that `start` left."""
    text = files.get(exercise.file)
    if text is None or text == checker.left(exercise.file).encode():
        return False
    if exercise.kind != "bug":
        return True
    right, wrong = (part.encode() for part in exercise.bug)
    return right in text or wrong not in text


def graded(files, hidden, namespaces):
    """Run a hand-in, {file: bytes}, in one sandbox: {exercise: [for each Posed what is wrong, "" if it holds]}."""
    from verify import sandbox

    wrong = {name: [NOT_DONE] * len(claims) for name, claims in hidden.items()}
    chosen = [exercise for exercise in GRADED if exercise.name in hidden and begun(exercise, files)]
    if not chosen:
        return wrong
    wrong |= {exercise.name: [NO_ANSWER] * len(exercise.claims) for exercise in chosen}
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as student:
        left = project()
        write(Path(base), left)
        write(Path(student), left | files)
        modules = sorted({checker.module_name(exercise.file) for exercise in chosen})
        started = warm(base, student, modules, namespaces)
        cases = [case(one, hidden[one.name], "/student" if namespaces else student) for one in chosen]
        run = sandbox.run(
            HARNESS, None, cases, size=1 << 16, timeout=HAND_IN_SECONDS, namespaces=namespaces, warm=started
        )
        with suppress(TimeoutError):
            for exercise, data in zip(chosen, run):
                own = hidden[exercise.name]
                vectors = readable(data, [one.size for one in own])
                tell = exercise.kind != "predict"  # a wrong prediction must not reveal the right one
                wrong[exercise.name] = [one.problem(vector, tell) for one, vector in zip(own, vectors)]
    return wrong


# --- Points ----------------------------------------------------------------------------------------------------------


def row(folder, hidden, namespaces):
    """A line of the table: a point per exercise, shared equally by its claims; mistakes by name; remarks."""
    wrong = {name: [NO_ANSWER] * len(claims) for name, claims in hidden.items()}
    try:
        files, remarks = handed_in(folder)
        wrong = graded(files, hidden, namespaces)
    except (OSError, RuntimeError) as error:  # it cannot be read, or its sandbox does not start
        remarks = [f"cannot be graded: {type(error).__name__}: {error}"[:300]]
    if silent := [name for name, texts in wrong.items() if NO_ANSWER in texts]:
        remarks.append(f"{NO_ANSWER}, as an exception, a result that is no number, or the limits: {', '.join(silent)}")
    points = {name: round(texts.count("") / len(texts), 4) for name, texts in wrong.items()}
    mistakes = [f"{name}: {text}" for name, texts in wrong.items() for text in MISTAKE.findall("\n".join(texts))]
    return {
        "student": printable(folder.name),
        "points": round(sum(points.values()), 4),
        **points,
        "mistakes": "; ".join(dict.fromkeys(mistakes)),
        "remarks": printable("; ".join(remarks)),
    }


def write_table(path, rows):
    """The rows as CSV. A cell that a spreadsheet would take for a formula begins with a quotation mark."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        for found in rows:
            writer.writerow({key: f"'{x}" if str(x)[:1] in ("=", "+", "-", "@") else x for key, x in found.items()})


def grade(argv):
    """The command: prints a line per student, and writes a table with --csv. Exits for what cannot be graded."""
    parser = argparse.ArgumentParser(prog="exercises.py grade", description=__doc__.split("\n")[0])
    parser.add_argument("submissions", type=checker.place, help="folder with a folder per student")
    parser.add_argument("--seed", type=int, default=0, help="of the hidden inputs; the same seed gives the same points")
    parser.add_argument("--csv", type=checker.place, help="file to write: a row per student")
    parser.add_argument("--weak-sandbox", action="store_true", help="grade even if Linux allows no namespaces")
    args = parser.parse_args(argv)
    if sys.platform != "linux":
        sys.exit(ONLY_LINUX)
    if not args.submissions.is_dir():
        parser.error(f"{args.submissions} is no folder; give the one with a folder per student")
    folders = sorted(path for path in args.submissions.iterdir() if path.is_dir() and path.name[0] != ".")
    others = [path.name for path in args.submissions.iterdir() if path.is_file() and path != args.csv]
    if others:
        print(f"no folders, so not graded; unpack archives: {printable(', '.join(sorted(others)))}", file=sys.stderr)
    if not folders:
        parser.error(f"{args.submissions} holds no folder; expected one per student, with the files of handin.zip")
    from verify import sandbox

    namespaces = sandbox.namespaces_work()
    if not namespaces:
        print(f"weak sandbox: {WEAK}", file=sys.stderr)
        if not args.weak_sandbox:
            sys.exit("give --weak-sandbox to grade nevertheless, best on a machine with nothing else on it")
    hidden = {exercise.name: posed(exercise, args.seed) for exercise in GRADED}
    rows = []
    for folder in folders:
        rows.append(row(folder, hidden, namespaces))
        print("{student:30} {points:6g} of {most}  {mistakes:.120}".format(most=len(GRADED), **rows[-1]))
        print(f"    {rows[-1]['remarks']:.500}", flush=True)
    if args.csv:
        write_table(args.csv, rows)
