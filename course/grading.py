"""Grading hand-ins: behaviour on hidden inputs, measured in a sandbox; a row per student, files to send back.

The solutions are public, so what is graded is what code does, not who wrote it; equal syntax trees are flagged and cost
no points. Measurements are not graded, because logs can be forged.

Student code is untrusted. The grader's own process opens, unpacks and parses nothing of it: every hand-in has a process
of its own (`supervised`), which starts one under limits that reads it (handins.read), then a sandbox that runs it
(sandbox.py says what that protects against), and returns what is wrong with each claim. Whatever a hand-in does is a
row with a warning, and the grades of all others are as without it.

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
from pathlib import Path
from typing import NamedTuple

from course import checker, handins, report
from verify import sandbox

LIMITS = {"CPU": 2, "AS": 1 << 30}  # of one exercise: seconds; bytes beyond what the imports take
SECONDS, EACH = 20.0, 6.0  # of wall clock: for a submission; for one exercise, as it may sleep
HAND_IN_SECONDS = handins.READ_SECONDS + 2 * SECONDS + sandbox.START_SECONDS  # at most, for everything of a submission
WEAK = "no namespaces here: a hand-in can read the solutions on the disk, use the network, and outlive its sandbox"
NOTHING = "no answer"  # to a claim: the code raised an exception, or returned no numbers
KILLED = f"{NOTHING}, killed: time or memory"
PUBLIC_ONLY = "right on the course's own inputs, wrong on hidden ones"
# What the sandbox tells of an exception: minus its place here, minus 1. No answer begins with a number below 0.
RAISED = (
    "an exception", "ImportError", "NameError", "AttributeError", "TypeError", "LookupError", "ZeroDivisionError",
    "ValueError", "AssertionError", "OSError", "RecursionError", "NotImplementedError", "RuntimeError", "SystemExit",
)  # fmt: skip

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


def flags(argv):
    """The flags of `grade`."""
    parser = argparse.ArgumentParser(prog="exercises.py grade", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("submissions", type=Path, help="folder with a folder or zip per student, as Moodle or Canvas name them")
    add("--seed", type=int, default=0, help="seed of the hidden inputs; the same seed gives the same points")
    add("--csv", type=Path, help="file to write: a row per student")
    add("--json", type=Path, help="folder to write: a file per student in the form of Gradescope's autograder")
    add("--feedback", type=Path, help="folder to write: a Markdown file per student, to be sent back")
    add("--only", nargs="+", metavar="NAME", help="grade these exercises only")
    add("--points", nargs="+", default=[], metavar="NAME=POINTS", help="points of an exercise (default 1)")
    add("--weak-sandbox", action="store_true", help="grade even if Linux allows no namespaces")
    return parser.parse_args(argv)


class Graded(NamedTuple):
    """What came out of one hand-in."""

    student: str
    late: bool
    wrong: dict  # exercise -> for each claim what is wrong, "" if it holds
    shapes: dict  # exercise -> hash of the code's syntax tree
    warnings: list


# --- Hidden inputs ---------------------------------------------------------------------------------------------------


class Hidden(NamedTuple):
    """A claim on inputs that nobody has seen."""

    claim: object  # course.checks.claims.Claim
    inputs: tuple
    expected: list  # vector
    size: int  # floats that the sandbox returns: as many as the longest known answer has
    probe: tuple  # for the sandbox: the text of the function that calls the definition, its name, inputs in base64
    target: str  # name of the definition in the sandbox
    public: bool  # on the course's own inputs: gives no points, only a warning if hidden ones are wrong


def hidden(exercise, seed, originals, exercises):
    """For every claim a Hidden with inputs on which the original and all known mistakes give different numbers, then a
    second one with the course's own inputs.

    Raises ValueError if 200 draws give no such inputs.
    """
    original = checker.Source.read(checker.original_file(originals, exercise.file))
    definition = checker.build(exercise, checker.pieces(exercise, original, original, exercises))
    right = checker.expected(exercise, original, exercises, originals)
    found = []
    for claim, vector in zip(exercise.claims, right):
        inputs, answers = drawn(exercise, claim, definition, vector, seed)
        found.append(posed(exercise, claim, inputs, answers, public=False))
    for claim, vector in zip(exercise.claims, right):
        answers = [vector or claim.vector(definition), *(claim.vector(x) for x in claim.mistakes)]
        found.append(posed(exercise, claim, claim.inputs, answers, public=True))
    return found


def drawn(exercise, claim, definition, right, seed):
    """Inputs of a claim, and the vectors of the definition and of all mistakes on them, no two of which are the same.

    right: the definition's vector if it is the same on all inputs. Raises ValueError if 200 draws give no such inputs.
    """
    rng = random.Random(f"{seed}/{exercise.name}/{claim.says}")
    for _ in range(200):
        inputs = claim.draw(rng, claim.inputs)
        answers = [right or claim.vector(definition, inputs), *(claim.vector(x, inputs) for x in claim.mistakes)]
        if not any(claim.same(a, b) for i, a in enumerate(answers) for b in answers[:i]):
            return inputs, answers
    raise ValueError(f"{exercise.name}: in 200 draws no input on which all mistakes of {claim.says!r} differ")


def posed(exercise, claim, inputs, answers, public):
    """The Hidden of a claim with these inputs; answers: vectors, the right one first."""
    chapter = checker.Source.read(Path(inspect.getfile(claim.probe)))
    text = checker.as_text(checker.gathered(claim.probe.__name__, chapter, chapter))
    probe = text, claim.probe.__name__, base64.b64encode(pickle.dumps(inputs)).decode()
    target = exercise.target.rpartition(".")[2]
    return Hidden(claim, inputs, answers[0], max(map(len, answers)), probe, target, public)


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


def warm(originals, namespaces):
    """The argument `warm` of sandbox.run that loads torch once for all exercises of a submission."""
    from course.checks import claims

    source = checker.Source.read(Path(str(claims.__file__)))
    harness = checker.as_text(checker.gathered("answer", source, source))
    see = packages() if namespaces else {}
    path = ["/packages"] if namespaces else [str(Path(place).parent) for place in packages()]
    return {
        "source": LOADED % (sorted(set(path)), harness),
        "see": see,
        "hide": [str(originals)] if namespaces else [],
        "limits": LIMITS,
        "seconds": EACH,
    }


def outputs(cases, namespaces, loaded):
    """The bytes that each case wrote in one sandbox; cases that were killed are tried once more, each alone.

    None: killed again, or no time was left.
    """

    def tried(numbers, seconds):
        run = sandbox.run(
            HARNESS,
            None,
            [cases[i] for i in numbers],
            size=1 << 16,
            timeout=seconds,
            namespaces=namespaces,
            warm=loaded,
        )
        with suppress(TimeoutError):
            yield from zip(numbers, run)

    found = dict(tried(range(len(cases)), SECONDS)) if cases else {}
    end = time.monotonic() + SECONDS
    for i in range(len(cases)):
        if found.get(i) is None and (left := end - time.monotonic()) > 0:
            found |= dict(tried([i], left))
    return [found.get(i) for i in range(len(cases))]


def readable(data, sizes):
    """The vectors in the sandbox's output, bytes of as many float64 as `sizes` say; a text where one is no answer."""
    if data is None or len(data) != 8 * sum(sizes):
        return [NOTHING] * len(sizes)
    numbers = list(struct.unpack(f"{sum(sizes)}d", data))
    found: list[list[float] | str] = []
    for size in sizes:
        vector, numbers = numbers[:size], numbers[size:]
        length = claimed(vector[:6])
        if -len(RAISED) <= vector[0] <= -1 and vector[0] == int(vector[0]):
            found.append(f"{NOTHING}: raised {RAISED[-1 - int(vector[0])]}")
        else:
            found.append(vector[:length] if length is not None and length <= size else NOTHING)
    return found


def claimed(head):
    """The length of a vector according to its first six numbers (claims.encode); None if they make no sense."""
    if not all(abs(x) < 1e6 and x == int(x) for x in head if x == x) or any(x != x for x in head):
        return None
    kind, dimensions, *sizes = map(int, head)
    sizes = sizes[: max(dimensions, 0)]
    possible = kind in (0, 1, 2) and 0 <= dimensions <= 4 and min(sizes, default=0) >= 0
    return 6 + math.prod(sizes) if possible else None


# --- Points ---------------------------------------------------------------------------------------------------------


def graded(reading, claims, originals, exercises, namespaces):
    """Grade what was read of a hand-in in one sandbox: {exercise: [for each claim what is wrong, "" if it holds]}.

    reading  from handins.read;  claims  {exercise: its Hidden ones}
    The warnings of `reading` get one for every exercise that only the course's own inputs do not show to be wrong.
    """
    chosen = [exercise for exercise in exercises if exercise.name in claims]
    cases = {name: job(reading["programs"][name], claims[name]) for name in reading["programs"]}
    written = dict(zip(cases, outputs([*cases.values()], namespaces, warm(originals, namespaces))))
    found = {}
    for exercise in chosen:
        hidden_claims = claims[exercise.name]
        if exercise.name not in cases:
            found[exercise.name] = [reading["problems"][exercise.name]] * len(exercise.claims)
            continue
        data = written[exercise.name]
        vectors = readable(data, [one.size for one in hidden_claims])
        problems = [
            KILLED if data is None else problem(one, vector, exercise) for one, vector in zip(hidden_claims, vectors)
        ]
        found[exercise.name] = [text for one, text in zip(hidden_claims, problems) if not one.public]
        if any(found[exercise.name]) and not any(t for one, t in zip(hidden_claims, problems) if one.public):
            if exercise.kind != "predict":
                reading["warnings"].append(f"{PUBLIC_ONLY} ({exercise.name})")
    return found


def job(program, hidden_claims):
    """The sandbox's input for an exercise of a hand-in."""
    [target] = {one.target for one in hidden_claims}
    claims = [[*one.probe, one.size] for one in hidden_claims]
    return json.dumps({"program": program, "target": target, "claims": claims, "raised": RAISED})


def problem(one, vector, exercise):
    """What is wrong with a claim, "" if it holds. vector: from `readable`"""
    if isinstance(vector, str):
        return vector
    return one.claim.problem(vector, one.expected, one.inputs, exercise.kind != "predict")


def supervised(upload, claims, originals, exercises, namespaces, commit):
    """The Graded of an upload: a process under limits reads it, a sandbox runs it, and a process above both starts
    them, so that whatever is left can be killed with it.
    """
    chosen = [exercise for exercise in exercises if exercise.name in claims]
    found = checker.isolated(
        lambda: judged(upload.path, claims, originals, exercises, namespaces, commit), originals, HAND_IN_SECONDS
    )
    if isinstance(found, str):
        text = handins.shown(f"cannot be graded: {found}")
        found = {"wrong": {x.name: [text] * len(x.claims) for x in chosen}, "shapes": {}, "warnings": [text]}
    return Graded(upload.student, upload.late, **found | {"warnings": [*upload.warnings, *found["warnings"]]})


def judged(path, claims, originals, exercises, namespaces, commit):
    """The fields of a Graded, but for the student's, as JSON."""
    sandbox.die_with_parent()
    chosen = [exercise for exercise in exercises if exercise.name in claims]

    def read():
        sandbox.die_with_parent()
        return handins.read(path, chosen, originals, commit, exercises)

    reading = checker.isolated(read, originals, handins.READ_SECONDS, handins.READ_MEMORY)
    if isinstance(reading, str):
        text = handins.shown(f"cannot be unpacked and parsed: {reading}")[:300]
        return {"wrong": {x.name: [text] * len(x.claims) for x in chosen}, "shapes": {}, "warnings": [text]}
    wrong = graded(reading, claims, originals, exercises, namespaces)
    return {"wrong": wrong, "shapes": reading["shapes"], "warnings": warned(reading, wrong, chosen)}


def warned(reading, wrong, exercises):
    """The warnings of a hand-in, with those on missing files and on exercises that could not be run or were killed."""
    missing = set()
    others = {}
    for exercise in exercises:
        for claim, text in zip(exercise.claims, wrong[exercise.name]):
            if text == f"{exercise.file} is missing":
                missing.add(exercise.file)
            elif text not in ("", "not done") and not text.startswith((claim.says, f"{NOTHING}: ")) and text != NOTHING:
                others.setdefault(" ".join(text.split()), {})[exercise.name] = True
            elif text.startswith(f"{NOTHING}: raised ImportError"):
                others.setdefault(text, {})[exercise.name] = True
    warnings = [f"not handed in: {', '.join(sorted(missing))}"] if missing and reading["files"] else []
    warnings += [f"{text} ({', '.join(names)})" for text, names in others.items()]
    return [*reading["warnings"], *warnings]


def equal_code(results, exercises, originals):
    """{student: [exercises of kind write whose code equals the original's or another student's, and whose]}."""
    found = {one.student: [] for one in results}
    seen = {}
    for exercise in (x for x in exercises if x.kind == "write"):
        original = checker.Source.read(checker.original_file(originals, exercise.file))
        seen.setdefault((exercise.name, handins.hashed(original.shape(exercise.target))), []).append("the original")
        for one in results:
            if theirs := one.shapes.get(exercise.name):
                seen.setdefault((exercise.name, theirs), []).append(one.student)
    for (name, _), students in seen.items():
        for student in students:
            if student in found and (others := [x for x in students if x != student]):
                found[student].append(f"{name} = {', '.join(others[:3])}")
    return found


# --- The command -----------------------------------------------------------------------------------------------------


def checked(args, exercises):
    """The exercises with the points that --points sets. Exits with one line for flags that cannot be."""
    if not args.submissions.is_dir():
        sys.exit(f"{args.submissions} is no folder; give the one with a folder or zip per student")
    if wrong := [entry for entry in args.points if not re.fullmatch(r"[^=]+=(\d{1,6}\.?\d*|\.\d+)", entry, re.ASCII)]:
        sys.exit(f"expected --points NAME=POINTS, 0 or more, such as cispo=3; got {', '.join(wrong)}")
    points = dict(entry.split("=") for entry in args.points)
    if len(points) < len(args.points):
        sys.exit(f"expected --points to name an exercise once, got {' '.join(args.points)}")
    names = {exercise.name for exercise in exercises if exercise.graded}
    if unknown := sorted({*(args.only or ()), *points} - names):
        sys.exit(f"not graded, or no exercise: {', '.join(unknown)}; known: {', '.join(sorted(names))}")
    for path in (args.csv,):
        if path and not path.resolve().parent.is_dir():
            sys.exit(f"{path} cannot be written: {path.resolve().parent} is no folder")
    return [x._replace(points=float(points.get(x.name, x.points))) for x in exercises]


def grade(args, exercises, originals):
    """The command: prints a line per student, writes CSV, JSON and Markdown. Exits for what cannot be graded."""
    exercises = checked(args, exercises)
    namespaces = sandbox.namespaces_work()
    if not namespaces:
        print(f"weak sandbox: {WEAK}", file=sys.stderr)
        if not args.weak_sandbox:
            sys.exit("give --weak-sandbox to grade nevertheless, best on a machine with nothing else on it")
    began = time.monotonic()
    chosen = [x for x in exercises if x.graded and x.name in (args.only or [x.name])]
    claims = {x.name: hidden(x, args.seed, originals, exercises) for x in chosen}
    found = handins.uploads(args.submissions, (args.csv, args.json, args.feedback))
    rest = claims, originals, exercises, namespaces, checker.commit_of(originals)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = [*pool.map(lambda upload: supervised(upload, *rest), found)]
    flagged = equal_code(results, chosen, originals)
    rows = [report.row(one, chosen, flagged[one.student]) for one in results]
    report.write(args, results, rows, chosen)
    for line in rows:
        print(report.line(line, sum(x.points for x in chosen)))
    print(f"{len(rows)} hand-ins, {len(chosen)} exercises, seed {args.seed}: {time.monotonic() - began:.0f} s")
