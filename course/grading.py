"""Grading hand-ins: behaviour on hidden inputs, measured in a sandbox; a row per student, files to send back.

The solutions are public, so what is graded is what code does, not who wrote it; equal syntax trees are flagged and cost
no points. Measurements are not graded, because logs can be forged.

Student code is untrusted. The grader itself opens, unpacks and parses nothing of it: a process under limits reads
a hand-in (handins.read), then another one runs it in a sandbox (sandbox.py says what that protects against) and returns
what is wrong with each claim. Whatever a hand-in does is a row with a warning, and all others are graded as without it.

Each submission has one sandbox, which imports torch once and forks for every exercise; after each fork, processes that
it left are killed and the temporary folder is emptied. The sandbox is given the syntax trees of the exercise's
definition and of what it uses, the code that calls it, and inputs, hidden ones drawn from --seed and the course's own.
It is given no expected number, no original of the definition and no file of the project. It must return exactly n
float64 as bytes; anything else counts as no answer. An exercise that is killed for time or memory is run once more,
alone. One that is right on the course's own inputs and wrong on hidden ones gets a warning.

Without namespaces (`sandbox.protections`) a hand-in can read the solutions on the disk, use the network, and outlive
its sandbox: `grade` says so, and then needs --weak-sandbox.

Run by exercises.py grade. Test: pytest tests/test_grading.py
"""

import argparse
import base64
import inspect
import json
import math
import os
import pickle
import random
import re
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from course import checker, handins, report
from course.checks import claims
from course.checks.catalogue import EXERCISES
from verify import sandbox

NAMES = [exercise.name for exercise in EXERCISES if exercise.graded]
LIMITS = {"CPU": 2, "AS": 1 << 30}  # of one exercise: seconds; bytes beyond what the imports take
SECONDS, EACH = 20.0, 6.0  # of wall clock: for a submission; for one exercise, as it may sleep
RUN_SECONDS = 2 * SECONDS + sandbox.START_SECONDS  # at most, to run everything of a submission
WEAK = "no namespaces here: a hand-in can read the solutions on the disk, use the network, and outlive its sandbox"
NOTHING = "no answer"  # to a claim: the code raised an exception, or returned no numbers
KILLED = f"{NOTHING}, killed: time or memory"
PUBLIC_ONLY = "right on the course's own inputs, wrong on hidden ones"
# What the sandbox tells of an exception: minus its place here, minus 1. No answer begins with a number below 0.
RAISED = (
    "an exception", "ImportError", "NameError", "AttributeError", "TypeError", "LookupError", "ZeroDivisionError",
    "ValueError", "AssertionError", "OSError", "RecursionError", "NotImplementedError", "RuntimeError", "SystemExit",
)  # fmt: skip
IMPORTS = f"{NOTHING}: raised ImportError"

HARNESS = """
import ast, base64, builtins, json, math, os, pickle, struct, sys
from harness import answer
job, out, null = json.load(sys.stdin), os.dup(1), os.open(os.devnull, os.O_WRONLY)
raised = [getattr(builtins, name, None) for name in job["raised"]]
os.dup2(null, 1)

def code(error):
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        os._exit(1)
    return -1.0 - next((n for n, kind in enumerate(raised) if kind and isinstance(error, kind)), 0)

failed, space = None, {"__name__": "exercise"}
try:
    for node in pickle.loads(base64.b64decode(job["program"])):
        exec(compile(ast.Module([node], []), "exercise", "exec"), space)
except BaseException as error:
    failed = code(error)
numbers = []
for text, probe, inputs, n in job["claims"]:
    own = {"__name__": "probe"}
    try:
        exec(compile(text, "probe", "exec"), own)
        given = pickle.loads(base64.b64decode(inputs))
        vector = [failed] if failed else answer(own[probe], space[job["target"]], given)
    except BaseException as error:
        vector = [code(error)]
    numbers += [float(x) for x in vector][:n] + [math.nan] * (n - len(vector))
os.write(out, struct.pack(f"{len(numbers)}d", *numbers))
os._exit(0)
"""
LOADED = """
import os, sys
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
sys.path += %r
import contextlib, dataclasses, random, types, typing, unittest.mock
import numpy, scipy.special, torch
torch.set_num_threads(1)
harness = sys.modules["harness"] = types.ModuleType("harness")
exec(compile(%r, "harness", "exec"), vars(harness))
"""


class Graded(NamedTuple):
    """What came out of one hand-in."""

    student: str
    late: bool
    files: list  # those of the course that it holds
    wrong: dict  # exercise -> for each claim what is wrong, "" if it holds
    shapes: dict  # exercise -> hash of the code's syntax tree
    warnings: list


# --- Hidden inputs ---------------------------------------------------------------------------------------------------


class Posed(NamedTuple):
    """A claim on inputs that nobody has seen, or, if public, on the course's own.

    Public ones give no points, only a warning if the hidden ones are wrong.
    """

    claim: claims.Claim
    inputs: tuple
    answers: list  # vectors of the original and of all known mistakes
    public: bool

    @property
    def size(self):
        """How many floats the sandbox returns: as many as the longest known answer has."""
        return max(map(len, self.answers))

    def task(self):
        """For the sandbox: the text of the function that calls the definition, its name, inputs in base64, size."""
        probe = self.claim.probe
        source = checker.source_of(Path(inspect.getfile(probe)))
        text = checker.as_text(checker.gathered(probe.__name__, source, source))
        return text, probe.__name__, base64.b64encode(pickle.dumps(self.inputs)).decode(), self.size

    def problem(self, yours, tell):
        """What is wrong with a vector, or a text that stands in place of one; "" if the claim holds."""
        return yours if isinstance(yours, str) else self.claim.problem(yours, self.answers[0], self.inputs, tell)


def posed(exercise, seed):
    """Every claim on hidden inputs, then every claim on the course's own: [Posed]."""
    definition = checker.solution(exercise)
    right = [*zip(exercise.claims, checker.expected(exercise))]
    hidden = [drawn(claim, definition, vector, f"{seed}/{exercise.name}/{claim.says}") for claim, vector in right]
    return hidden + [answered(claim, claim.inputs, definition, vector, True) for claim, vector in right]


def drawn(claim, definition, right, seed):
    """The claim on inputs on which the definition and all known mistakes give different numbers.

    right: the definition's vector if it is the same on all inputs. Raises ValueError if 200 draws give no such inputs.
    """
    rng = random.Random(seed)
    for _ in range(200):
        one = answered(claim, claim.draw(rng, claim.inputs), definition, right, False)
        if not any(claim.same(a, b) for i, a in enumerate(one.answers) for b in one.answers[:i]):
            return one
    raise ValueError(f"in 200 draws no input on which all mistakes of {claim.says!r} differ")


def answered(claim, inputs, definition, right, public):
    mistakes = [claim.vector(mistake, inputs) for mistake in claim.mistakes]
    return Posed(claim, inputs, [right or claim.vector(definition, inputs), *mistakes], public)


# --- In the sandbox --------------------------------------------------------------------------------------------------


def packages():
    """{path: path in the sandbox} of torch, numpy, scipy and all that is installed beside them.

    Of the project an installation holds no module (pyproject.toml), but metadata that name its folder: left out.
    """
    import numpy
    import scipy
    import torch

    places = dict.fromkeys(Path(str(module.__file__)).parents[1] for module in (torch, numpy, scipy))
    return {
        str(entry): f"/packages/{entry.name}"
        for place in places
        for entry in place.iterdir()
        if not re.match("scalerl|__editable__|__pycache__", entry.name) and entry.suffix != ".pth"
    }


def warm(namespaces):
    """The argument `warm` of sandbox.run that loads torch once for all exercises of a submission."""
    source = checker.source_of(Path(claims.__file__))
    harness = checker.as_text(checker.gathered("answer", source, source))
    see = packages()
    path = ["/packages"] if namespaces else sorted({str(Path(place).parent) for place in see})
    return {
        "source": LOADED % (path, harness),
        "see": see if namespaces else {},
        "hide": [str(checker.originals_of(checker.ROOT))] if namespaces else [],
        "limits": LIMITS,
        "seconds": EACH,
    }


def outputs(cases, namespaces):
    """The bytes that each case wrote in one sandbox; cases that were killed are tried once more, each alone.

    None: killed again, or no time was left.
    """
    run = partial(sandbox.run, HARNESS, None, size=1 << 16, namespaces=namespaces, warm=warm(namespaces))
    found = {}
    with suppress(TimeoutError):
        for case, data in zip(cases, run(cases, timeout=SECONDS)):
            found[case] = data
    end = time.monotonic() + SECONDS
    for case in cases:
        left = end - time.monotonic()
        if found.get(case) is None and left > 0:
            with suppress(TimeoutError):
                [found[case]] = run([case], timeout=left)
    return [found.get(case) for case in cases]


def readable(data, sizes):
    """The vectors in the sandbox's output, bytes of as many float64 as `sizes` say; a text where one is no answer."""
    if data is None or len(data) != 8 * sum(sizes):
        return [KILLED if data is None else NOTHING] * len(sizes)
    numbers = iter(struct.unpack(f"{sum(sizes)}d", data))
    return [understood([next(numbers) for _ in range(size)]) for size in sizes]


def understood(vector):
    """The vector without what lies behind its end; a text if its head (claims.encode) makes no sense."""
    if vector[0] in range(-len(RAISED), 0):
        return f"{NOTHING}: raised {RAISED[-1 - int(vector[0])]}"
    head = vector[: claims.HEAD]
    if any(x != x or abs(x) >= 1e6 or x != int(x) for x in head):
        return NOTHING
    kind, dimensions, *sizes = map(int, head)
    if kind not in (0, 1, 2) or not 0 <= dimensions <= claims.DIMS or min(sizes[:dimensions], default=0) < 0:
        return NOTHING
    length = claims.HEAD + math.prod(sizes[:dimensions])
    return vector[:length] if length <= len(vector) else NOTHING


# --- Points ---------------------------------------------------------------------------------------------------------


def graded(programs, hidden, namespaces):
    """Run the programs of a hand-in in one sandbox: {exercise: [for each Posed what is wrong, "" if it holds]}."""
    sandbox.die_with_parent()
    chosen = {x.name: x for x in EXERCISES if x.name in programs}
    cases = []
    for name, exercise in chosen.items():
        job = {"program": programs[name], "target": exercise.target.rpartition(".")[2], "raised": RAISED}
        cases.append(json.dumps(job | {"claims": [one.task() for one in hidden[name]]}))
    found = {}
    for (name, exercise), data in zip(chosen.items(), outputs(cases, namespaces) if cases else ()):
        vectors = readable(data, [one.size for one in hidden[name]])
        tell = exercise.kind != "predict"  # a wrong prediction must not reveal the right one
        found[name] = [one.problem(vector, tell) for one, vector in zip(hidden[name], vectors)]
    return found


def supervised(upload, hidden, namespaces, commit):
    """The Graded of an upload: a process under limits reads it, then a process runs it in a sandbox."""
    chosen = [exercise for exercise in EXERCISES if exercise.name in hidden]

    def read():
        sandbox.die_with_parent()
        return handins.read(upload.path, chosen, commit)

    reading = checker.isolated(read, checker.ROOT, handins.READ_SECONDS, handins.READ_MEMORY)
    if isinstance(reading, str):
        text = handins.shown(f"cannot be unpacked and parsed: {reading}")[:300]
        reading = {
            "warnings": [],
            "files": [],
            "programs": {},
            "problems": {x.name: text for x in chosen},
            "shapes": {},
        }
    programs = reading["programs"]
    found = checker.isolated(partial(graded, programs, hidden, namespaces), checker.ROOT, RUN_SECONDS)
    if isinstance(found, str):
        reading["problems"] |= dict.fromkeys(programs, handins.shown(f"cannot be graded: {found}"))
        found = {}
    wrong = {x.name: [reading["problems"].get(x.name, NOTHING)] * len(x.claims) for x in chosen}
    wrong |= {name: texts[: len(wrong[name])] for name, texts in found.items()}
    warnings = upload.warnings + reading["warnings"] + warned(wrong, reading["problems"], found)
    return Graded(upload.student, upload.late, reading["files"], wrong, reading["shapes"], warnings)


def warned(wrong, problems, found):
    """Warnings on exercises that could not be run or were killed, or that hold on the course's own inputs only."""
    said = {}
    for name, texts in wrong.items():
        for text in dict.fromkeys(texts):
            if text in (KILLED, IMPORTS) or name in problems and not text.startswith(handins.NOT_DONE):
                said.setdefault(" ".join(text.split()), []).append(name)
        if any(texts) and name in found and not any(found[name][len(texts) :]):
            said.setdefault(PUBLIC_ONLY, []).append(name)
    return [f"{text} ({', '.join(names)})" if len(names) < len(wrong) else text for text, names in said.items()]


def equal_code(results, chosen):
    """{student: [exercises of kind write whose code equals the original's or another student's, and whose]}."""
    found = {one.student: [] for one in results}
    for exercise in (x for x in chosen if x.kind == "write"):
        own = handins.hashed(checker.original_of(exercise).shape(exercise.target))
        seen = {own: ["the original"]}
        for one in results:
            if shape := one.shapes.get(exercise.name):
                seen.setdefault(shape, []).append(one.student)
        for students in seen.values():
            for student in students:
                others = [other for other in students if other != student]
                if student in found and others:
                    found[student].append(f"{exercise.name} = {', '.join(others[:3])}")
    return found


# --- The command -----------------------------------------------------------------------------------------------------


def flags(argv):
    """The flags of `grade`. Exits with one line for flags that cannot be."""
    parser = argparse.ArgumentParser(prog="exercises.py grade", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add(
        "submissions", type=checker.place, help="folder with a folder or zip per student, as Moodle or Canvas name them"
    )
    add("--seed", type=int, default=0, help="seed of the hidden inputs; the same seed gives the same points")
    add("--csv", type=checker.place, help="file to write: a row per student")
    add("--json", type=checker.place, help="folder to write: a file per student in the form of Gradescope's autograder")
    add("--feedback", type=checker.place, help="folder to write: a Markdown file per student, to be sent back")
    add("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help="grade these exercises only")
    add("--weak-sandbox", action="store_true", help="grade even if Linux allows no namespaces")
    args = parser.parse_args(argv)
    if not args.submissions.is_dir():
        parser.error(f"{args.submissions} is no folder; give the one with a folder or zip per student")
    return args


def grade(args):
    """The command: prints a line per student, writes CSV, JSON and Markdown. Exits for what cannot be graded."""
    namespaces = sandbox.namespaces_work()
    if not namespaces:
        print(f"weak sandbox: {WEAK}", file=sys.stderr)
        if not args.weak_sandbox:
            sys.exit("give --weak-sandbox to grade nevertheless, best on a machine with nothing else on it")
    began = time.monotonic()
    uploads = handins.uploads(args.submissions, (args.csv, args.json, args.feedback))
    if not uploads:
        sys.exit(f"{args.submissions} is empty; expected a folder or zip per student")
    chosen = [x for x in EXERCISES if x.name in args.only]
    hidden = {x.name: posed(x, args.seed) for x in chosen}
    commit = checker.commit_of(checker.ROOT)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = [*pool.map(lambda upload: supervised(upload, hidden, namespaces, commit), uploads)]
    flagged = equal_code(results, chosen)
    rows = [report.row(one, chosen, flagged[one.student]) for one in results]
    report.write(args, results, rows, chosen)
    for row in rows:
        print(report.line(row, len(chosen)))
    print(f"{len(rows)} hand-ins, {len(chosen)} exercises, seed {args.seed}: {time.monotonic() - began:.0f} s")
    if not any(one.files for one in results):
        sys.exit(f"no hand-in in {args.submissions} holds a file of the course; is it the folder with all hand-ins?")
