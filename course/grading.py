"""Grading hand-ins: behaviour on hidden inputs, measured in a jail; a row per student, a JSON in Gradescope's form.

The solutions are public, so what is graded is what code does, not who wrote it; equal syntax trees are flagged and cost
no points. Measurements are not graded, because logs can be forged.

Student code is untrusted and runs in a jail only (jail.py says what that protects against). Each submission has one
jail, which imports torch once and forks for every exercise; after each fork, processes that it left are killed and the
temporary folder is emptied. The jail is given, as text, the exercise's definition and what it uses, the code that calls
it, and inputs drawn from --seed. It is given no expected number, no original of the definition and no file of the
project. It must return exactly n float64 as bytes; anything else counts as no answer. An exercise that is killed for
time or memory is run once more, alone.

Without namespaces (`jail.protections`) a hand-in can read the solutions on the disk, use the network, and outlive its
jail: `grade` says so, and then needs --weak-jail.

Run by exercises.py grade. Test: pytest tests/test_grading.py
"""

import argparse
import base64
import csv
import inspect
import io
import json
import math
import os
import pickle
import random
import re
import struct
import sys
import time
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from course import checker
from verify import jail

BYTES, ZIP_BYTES = 1 << 18, 1 << 24  # at most: one file of a hand-in, a zip within it
BESIDE = {
    checker.HIDDEN,
    "tests",
    "checks",
    "runs",
    "__MACOSX",
}  # folders without the student's work: originals, checks, runs
# What reading raises if a file is not a zip, cut short, encrypted, or of an unknown compression.
UNREADABLE = zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError
LIMITS = {"CPU": 2, "AS": 1 << 30}  # of one exercise: seconds; bytes beyond what the imports take
SECONDS, EACH = 20.0, 6.0  # of wall clock: for a submission; for one exercise, as it may sleep
HAND_IN_SECONDS = 120.0  # of wall clock for a submission: both tries, and everything around them
WEAK = "no namespaces here: a hand-in can read the solutions on the disk, use the network, and outlive its jail"
NOTHING = "no answer"  # to a claim: the code raised an exception, or returned no numbers
# How Moodle and Canvas rename what students upload.
NAMES = (r"(?P<who>.+?)_\d+_assignsubmission_.*", r"(?P<who>[^_]+?)(?:_LATE)?_\d+_\d+_.*")  # Moodle; Canvas

HARNESS = """
import base64, json, math, os, pickle, struct, sys
from harness import answer
job, out, null = json.load(sys.stdin), os.dup(1), os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 1)
try:
    space = {"__name__": "exercise"}
    exec(compile(job["program"], "exercise", "exec"), space)
except MemoryError:
    os._exit(1)
except BaseException:
    os._exit(0)
numbers = []
for text, probe, inputs, n in job["claims"]:
    vector, own = [], {"__name__": "probe"}
    try:
        exec(compile(text, "probe", "exec"), own)
        vector = answer(own[probe], space[job["target"]], pickle.loads(base64.b64decode(inputs)))
    except BaseException as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            os._exit(1)
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
    add("--only", nargs="+", metavar="NAME", help="grade these exercises only")
    add("--points", nargs="+", default=[], metavar="NAME=POINTS", help="points of an exercise (default 1)")
    add("--weak-jail", action="store_true", help="grade even if Linux allows no namespaces")
    return parser.parse_args(argv)


# --- Hand-ins --------------------------------------------------------------------------------------------------------


class HandIn(NamedTuple):
    """What a student handed in."""

    student: str
    files: dict  # name within the project -> text
    warnings: list


def student_of(path):
    """The student's name, from the name that Moodle or Canvas gave the file.

    >>> student_of(Path("Jane Doe_12345_assignsubmission_file_")), student_of(Path("doejane_LATE_123_456_handin-1.zip"))
    ('Jane Doe', 'doejane')
    """
    match = next(filter(None, (re.fullmatch(pattern, path.name) for pattern in NAMES)), None)
    return match["who"] if match else path.stem if path.suffix.lower() == ".zip" else path.name


def members(source, depth=2):
    """Yield (name, () -> open file) of the files in a folder or zip and in the zips within it. Raises UNREADABLE.

    Files that a student's folder holds besides the student's work, such as the originals, are left out. If there is a
    handin.zip, only its files count (of several, the one in the fewest folders).
    depth: how many levels of zips within zips are opened
    """
    if isinstance(source, Path) and source.is_dir():
        found = [
            (file.relative_to(source).as_posix(), partial(file.open, "rb"))
            for file in sorted(source.rglob("*"))
            if file.is_file() and not file.is_symlink()
        ]
    else:
        archive = zipfile.ZipFile(source)
        found = [(info.filename.replace("\\", "/"), partial(archive.open, info)) for info in archive.infolist()]
    found = [
        (name, opened)
        for name, opened in found
        if not BESIDE & {*name.split("/")} or f"/{name}".endswith(f"/{checker.HIDDEN}/commit")
    ]
    packed = sorted(((name, opened) for name, opened in found if f"/{name}".endswith("/handin.zip")), key=steepness)
    for name, opened in packed[:1] or found:
        if depth and name.lower().endswith(".zip"):
            inner = io.BytesIO(opened().read(ZIP_BYTES))  # a longer zip is cut short, which raises BadZipFile
            yield from ((f"{name}/{within}", file) for within, file in members(inner, depth - 1))
        else:
            yield name, opened


def steepness(member):
    """How many folders deep a member lies."""
    return member[0].count("/")


def read_hand_in(path, files, commit):
    """A HandIn from a folder or zip: of each of `files` the copy in the fewest folders. Its warnings say what is wrong.

    commit  of the project; a hand-in that was started from another one gets a warning
    """
    if not path.is_dir() and path.suffix.lower() != ".zip":
        return HandIn(student_of(path), {}, [f"{path.name}: neither a folder nor a .zip"])
    found, warnings = {}, []
    try:
        inside = sorted(members(path), key=steepness)
        for known in [*files, "commit"]:
            places = [opened for name, opened in inside if f"/{name}".endswith(f"/{known}")]
            if places:
                data = places[0]().read(BYTES + 1)
                found[known] = data.decode(errors="replace") if len(data) <= BYTES else ""
                warnings += [f"{known} is larger than {BYTES} bytes"] if len(data) > BYTES else []
            if len(places) > 1 and known != "commit":
                warnings.append(f"{known} occurs {len(places)} times: the one in the fewest folders counts")
    except UNREADABLE as error:
        warnings.append(f"{path.name} cannot be read: {error}")
    theirs = found.pop("commit", "").strip()
    if not found:
        warnings.append("no file of the course found")
    elif theirs != commit:
        warnings.append(f"started from another commit: {theirs[:40] or 'unknown'} instead of {commit}")
    return HandIn(student_of(path), found, warnings)


def hand_ins(folder, files, commit, tables=()):
    """A HandIn per upload in `folder`, but for `tables`, the files that `grade` writes. Students of the same name are
    called by the names of their files.
    """
    tables = [table.resolve() for table in tables if table]
    paths = [path for path in sorted(folder.iterdir()) if path.name[0] != "." and path.resolve() not in tables]
    found = [read_hand_in(path, files, commit) for path in paths]
    names = [one.student for one in found]
    return [one._replace(student=path.name) if names.count(one.student) > 1 else one for one, path in zip(found, paths)]


# --- Hidden inputs ---------------------------------------------------------------------------------------------------


class Hidden(NamedTuple):
    """A claim on inputs that nobody has seen."""

    claim: object  # course.checks.claims.Claim
    inputs: tuple
    expected: list  # vector
    size: int  # floats that the jail returns: as many as the longest known answer has
    probe: tuple  # for the jail: the text of the function that calls the definition, its name, inputs in base64


def hidden(exercise, seed, originals, exercises):
    """A Hidden for every claim, with inputs on which the original and all known mistakes give different numbers.

    Raises ValueError if 200 draws give no such inputs.
    """
    original = checker.Source.read(checker.original_file(originals, exercise.file))
    definition = checker.build(exercise, checker.pieces(exercise, original, original, exercises))
    right, found = checker.expected(exercise, original, exercises, originals), []
    for claim, vector in zip(exercise.claims, right):
        rng = random.Random(f"{seed}/{exercise.name}/{claim.says}")
        for _ in range(200):
            inputs = claim.draw(rng, claim.inputs)
            answers = [vector or claim.vector(definition, inputs), *(claim.vector(x, inputs) for x in claim.mistakes)]
            if not any(claim.same(a, b) for i, a in enumerate(answers) for b in answers[:i]):
                break
        else:
            raise ValueError(f"{exercise.name}: in 200 draws no input on which all mistakes of {claim.says!r} differ")
        chapter = checker.Source.read(Path(inspect.getsourcefile(claim.probe)))
        text = checker.as_text(checker.gathered(claim.probe.__name__, chapter, chapter))
        probe = text, claim.probe.__name__, base64.b64encode(pickle.dumps(inputs)).decode()
        found.append(Hidden(claim, inputs, answers[0], max(map(len, answers)), probe))
    return found


# --- In the jail -----------------------------------------------------------------------------------------------------


def packages():
    """{path: path in the jail} of torch, numpy, scipy and all that is installed beside them.

    Of the project an installation holds no module (pyproject.toml), but metadata that name its folder: left out.
    """
    import numpy
    import scipy
    import torch

    places = dict.fromkeys(Path(module.__file__).parents[1] for module in (torch, numpy, scipy))
    return {
        str(entry): f"/packages/{entry.name}"
        for place in places
        for entry in place.iterdir()
        if not re.match("scalerl|__editable__|__pycache__", entry.name) and entry.suffix != ".pth"
    }


def warm(originals, namespaces):
    """The argument `warm` of jail.run that loads torch once for all exercises of a submission."""
    from course.checks import claims

    source = checker.Source.read(Path(claims.__file__))
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
    """The bytes that each case wrote in one jail; cases that were killed are tried once more, each alone.

    None: killed again, or no time was left.
    """

    def tried(numbers, seconds):
        run = jail.run(
            HARNESS,
            None,
            [cases[i][0] for i in numbers],
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
    """The vectors in the jail's output, bytes of so many float64 as `sizes` say; None for each that is no answer."""
    if data is None or len(data) != 8 * sum(sizes):
        return [None] * len(sizes)
    numbers, found = list(struct.unpack(f"{sum(sizes)}d", data)), []
    for size in sizes:
        vector, numbers = numbers[:size], numbers[size:]
        length = claimed(vector[:6])
        found.append(vector[:length] if length is not None and length <= size else None)
    return found


def claimed(head):
    """The length of a vector according to its first six numbers (claims.encode); None if they make no sense."""
    if not all(abs(x) < 1e6 and x == int(x) for x in head if x == x) or any(x != x for x in head):
        return None
    kind, dimensions, *sizes = map(int, head)
    sizes = sizes[: max(dimensions, 0)]
    possible = kind in (0, 1, 2) and 0 <= dimensions <= 4 and min(sizes, default=0) >= 0
    return 6 + math.prod(sizes) if possible else None


# --- Points ----------------------------------------------------------------------------------------------------------


def prepared(exercise, hidden_claims, hand_in, originals, exercises):
    """What the jail gets for an exercise of a hand-in: ((text, sizes), None), or (None, why nothing can be run)."""
    if exercise.file not in hand_in.files:
        return None, f"{exercise.file} is missing"
    try:
        student = checker.Source(hand_in.files[exercise.file], exercise.file)
        original = checker.Source.read(checker.original_file(originals, exercise.file))
        if not checker.touched(exercise, student, original):
            return None, "not done"
        program = checker.as_text(checker.pieces(exercise, student, original, exercises))
    except (checker.Broken, RecursionError, MemoryError) as error:
        return None, str(error) or type(error).__name__
    sizes = [one.size for one in hidden_claims]
    job = {
        "program": program,
        "target": exercise.target.rpartition(".")[2],
        "claims": [[*one.probe, one.size] for one in hidden_claims],
    }
    return (json.dumps(job), sizes), None


def graded(hand_in, claims, originals, exercises, namespaces):
    """Grade a hand-in in one jail: {exercise: [for each claim what is wrong, "" if it holds]}."""
    chosen = [exercise for exercise in exercises if exercise.name in claims]
    jobs = {x.name: prepared(x, claims[x.name], hand_in, originals, exercises) for x in chosen}
    cases = {name: case for name, (case, _) in jobs.items() if case}
    written = dict(zip(cases, outputs([*cases.values()], namespaces, warm(originals, namespaces))))
    found = {}
    for exercise in chosen:
        case, why = jobs[exercise.name]
        if not case:
            found[exercise.name] = [why] * len(claims[exercise.name])
            continue
        vectors = readable(written[exercise.name], case[1])
        killed = written[exercise.name] is None
        found[exercise.name] = [
            one.claim.problem(vector, one.expected, one.inputs, exercise.kind != "predict")
            if vector
            else NOTHING + ", killed: time or memory" * killed
            for one, vector in zip(claims[exercise.name], vectors)
        ]
    return found


def alone(hand_in, claims, originals, exercises, namespaces):
    """`graded` in a process of its own, because a hand-in may crash it, say with text that crashes Python's parser."""
    job = lambda: graded(hand_in, claims, originals, exercises, namespaces)  # noqa: E731
    found = checker.isolated(job, originals, HAND_IN_SECONDS)
    return found if isinstance(found, dict) else {name: [f"no answer: {found}"] * len(claims[name]) for name in claims}


def equal_code(collected, exercises, originals):
    """{student: [exercises of kind write whose code equals the original's or another student's, and whose]}."""
    found, seen = {one.student: [] for one in collected}, {}
    for exercise in (x for x in exercises if x.kind == "write"):
        shape = checker.Source.read(checker.original_file(originals, exercise.file)).shape(exercise.target)
        seen.setdefault((exercise.name, shape), []).append("the original")
        for one in collected:
            with suppress(checker.Broken):
                source = checker.Source(one.files.get(exercise.file, ""), exercise.file)
                if theirs := source.shape(exercise.target):
                    seen.setdefault((exercise.name, theirs), []).append(one.student)
    for (name, shape), students in seen.items():
        for student in students if shape and "NotImplementedError" not in shape else ():
            if student in found and (others := [x for x in students if x != student]):
                found[student].append(f"{name} = {', '.join(others[:3])}")
    return found


def warned(hand_in, found, exercises):
    """The hand-in with warnings for missing files, and for exercises that could not be run or were killed."""
    missing, others = set(), {}
    for exercise in (x for x in exercises if x.name in found):
        for claim, problem in zip(exercise.claims, found[exercise.name]):
            if problem == f"{exercise.file} is missing":
                missing.add(exercise.file)
            elif problem not in ("", "not done", NOTHING) and not problem.startswith(claim.says):
                others.setdefault(" ".join(problem.split()), {})[exercise.name] = True
    warnings = [f"not handed in: {', '.join(sorted(missing))}"] if missing and hand_in.files else []
    warnings += [f"{problem} ({', '.join(names)})" for problem, names in others.items()]
    return hand_in._replace(warnings=[*hand_in.warnings, *warnings])


def row(hand_in, found, exercises, flagged):
    """A line of the table: points by exercise, then by claim, named mistakes, equal code, warnings."""
    line, by_claim, named = {"student": hand_in.student, "points": 0.0}, {}, []
    for exercise in (x for x in exercises if x.name in found):
        wrong = found[exercise.name]
        each = exercise.points / len(wrong)
        line[exercise.name] = round(sum(each for problem in wrong if not problem), 4)
        by_claim |= {
            f"{exercise.name}: {claim.says.split(':')[0]}": 0.0 if problem else round(each, 4)
            for claim, problem in zip(exercise.claims, wrong)
        }
        named += [
            f"{exercise.name}: {text}"
            for problem in wrong
            for text in re.findall("This is what you get when you (.*)", problem)
        ]
        line["points"] += line[exercise.name]
    line["points"] = round(line["points"], 4)
    return (
        line
        | by_claim
        | {
            "mistakes": "; ".join(dict.fromkeys(named)),
            "equal code": "; ".join(flagged),
            "warnings": "; ".join(hand_in.warnings),
        }
    )


def report(hand_in, found, exercises):
    """The student's JSON, in the form of Gradescope's autograder."""
    tests = []
    for exercise in (x for x in exercises if x.name in found):
        wrong = found[exercise.name]
        said = [
            problem or f"{claim.says.split(':')[0]}: holds on hidden inputs"
            for claim, problem in zip(exercise.claims, wrong)
        ]
        score = exercise.points * sum(not problem for problem in wrong) / len(wrong)
        tests.append(
            {
                "name": exercise.name,
                "score": round(score, 4),
                "max_score": exercise.points,
                "output": "\n".join(said),
                "visibility": "visible",
            }
        )
    return {"tests": tests, "output": "\n".join(hand_in.warnings)}


def grade(args, exercises, originals):
    """The command: prints a line per student, writes CSV and JSON. Exits with one line for what cannot be graded."""
    if not args.submissions.is_dir():
        sys.exit(f"{args.submissions} is no folder; give the one with a folder or zip per student")
    if wrong := [entry for entry in args.points if not re.fullmatch(r"[^=]+=(\d+\.?\d*|\.\d+)", entry)]:
        sys.exit(f"expected --points NAME=POINTS, such as cispo=3, got {', '.join(wrong)}")
    points = dict(entry.split("=") for entry in args.points)
    names = {exercise.name for exercise in exercises if exercise.graded}
    if unknown := sorted({*(args.only or ()), *points} - names):
        sys.exit(f"not graded, or no exercise: {', '.join(unknown)}; known: {', '.join(sorted(names))}")
    exercises = [x._replace(points=float(points.get(x.name, x.points))) for x in exercises]
    namespaces = jail.namespaces_work()
    if not namespaces:
        print(f"weak jail: {WEAK}", file=sys.stderr)
        if not args.weak_jail:
            sys.exit("give --weak-jail to grade nevertheless, best on a machine with nothing else on it")
    began, chosen = time.monotonic(), [x for x in exercises if x.graded and x.name in (args.only or names)]
    claims = {x.name: hidden(x, args.seed, originals, exercises) for x in chosen}
    files = sorted({x.file for x in exercises})
    collected = hand_ins(args.submissions, files, checker.commit_of(originals), (args.csv, args.json))
    flagged = equal_code(collected, chosen, originals)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # `alone` forks: jail.run kills all children
        results = [*pool.map(lambda one: alone(one, claims, originals, exercises, namespaces), collected)]
    collected = [warned(one, found, exercises) for one, found in zip(collected, results)]
    rows = [row(one, found, exercises, flagged[one.student]) for one, found in zip(collected, results)]
    write(args, rows, {one.student: report(one, found, exercises) for one, found in zip(collected, results)})
    most = sum(x.points for x in chosen)
    for line in rows:
        print(f"{line['student']:30} {line['points']:6g} of {most:g}  {line['mistakes'][:120]}")
        if line["warnings"]:
            print(f"    warning: {' '.join(line['warnings'].split())[:500]}")
    print(f"{len(rows)} hand-ins, {len(chosen)} exercises, seed {args.seed}: {time.monotonic() - began:.0f} s")


def write(args, rows, reports):
    """Write the CSV and the JSON files that the flags ask for."""
    if args.csv and rows:
        with args.csv.open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
    for student, content in reports.items() if args.json else ():
        args.json.mkdir(parents=True, exist_ok=True)
        (args.json / f"{re.sub('[^-. 0-9A-Za-z_]', '_', student)}.json").write_text(json.dumps(content, indent=1))
