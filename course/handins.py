"""Hand-ins: whose they are, by the names that Moodle and Canvas give, and what a folder or zip holds.

Whatever a student has written is hostile until proven otherwise: a zip may unpack to terabytes, a file of one line may
take the parser hours. So `uploads` looks at names only, and `read`, which unpacks and parses, runs in a process of its
own under limits (checker.isolated); what it returns is of bounded size and holds no code, only syntax trees as bytes.

Run by grading.py. Test: pytest tests/test_grading.py
"""

import base64
import hashlib
import io
import lzma
import os
import pickle
import re
import struct
import sys
import unicodedata
import zipfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from course import checker

READ_SECONDS, READ_MEMORY = 60.0, 1 << 30  # at most, to unpack and parse one hand-in
ENTRIES, UNPACKED = 2_000, 20_000_000  # at most: files, bytes of a hand-in, those of zips within it included
BYTES, PROGRAM = 1 << 18, 1 << 22  # at most: one file; the syntax tree of an exercise and what it uses
DEPTH = 5_000  # of calls while a syntax tree is turned into bytes: Python compiles trees deeper than its own default
# Folders without the student's work: originals, checks, runs.
BESIDE = {checker.HIDDEN, "tests", "checks", "runs", "__MACOSX", "__pycache__", ".git", ".venv", "venv"}
# What reading raises if a file is not a zip, cut short, encrypted, of an unknown compression, or made to break it.
UNREADABLE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, RuntimeError, ValueError,
    LookupError, OverflowError,
)  # fmt: skip
# How Moodle and Canvas rename what students upload.
NAMES = (
    r"(?P<who>.+?)_(?P<id>\d+)_assignsubmission_.*",
    r"(?P<who>[^_]+?)(?P<late>_LATE)?_(?P<id>\d+)_(?P<upload>\d+)_.*",
)


# --- Whose it is -----------------------------------------------------------------------------------------------------


class Upload(NamedTuple):
    """What a student uploaded; several uploads of one student are one of these, with the latest path."""

    student: str  # no two are equal; printable
    path: Path
    late: bool  # so marked by Canvas
    warnings: list


class Name(NamedTuple):
    """What the name of an upload says."""

    who: str
    id: str  # of the student, "" if the name has none
    late: bool
    upload: int  # Canvas numbers uploads as they come in; else 0


def shown(text):
    """The text with everything that is not printable as an escape: nothing in it can steer a terminal or break a file.

    >>> shown("a\\x1b[2Jb"), shown("caf\\udce9"), shown("李明")
    ('a\\\\x1b[2Jb', 'caf\\\\udce9', '李明')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def named(path):
    """What the name of an upload says.

    >>> named(Path("Jane Doe_12345_assignsubmission_file_"))
    Name(who='Jane Doe', id='12345', late=False, upload=0)
    >>> named(Path("doejane_LATE_123_456_handin-1.zip"))
    Name(who='doejane', id='123', late=True, upload=456)
    """
    match = next(filter(None, (re.fullmatch(pattern, path.name, re.DOTALL) for pattern in NAMES)), None)
    if not match:
        return Name(path.stem if path.suffix.lower() == ".zip" else path.name, "", False, 0)
    found = match.groupdict()
    return Name(found["who"], found["id"], bool(found.get("late")), int(found.get("upload") or 0))


def uploads(folder, tables=()):
    """An Upload per student from the names in `folder`, but for `tables`, the files that `grade` writes.

    Of several uploads of one student the latest counts: by Canvas's number, else by the time of the last change.
    Students of the same name are told apart by their numbers.
    """
    tables = [table.resolve() for table in tables if table]
    paths = [path for path in sorted(folder.iterdir()) if path.name[0] != "." and path.resolve() not in tables]
    students = {}
    for path in paths:
        students.setdefault(named(path)[:2], []).append(path)
    called = [shown(who) for who, _ in students]
    names = [f"{name} ({number})" if called.count(name) > 1 else name for name, (_, number) in zip(called, students)]
    return [upload(name, found) for name, found in zip(distinct(names), students.values())]


def upload(student, paths):
    """The Upload of a student with these paths."""
    *earlier, path = sorted(paths, key=lambda path: (named(path).upload, path.lstat().st_mtime_ns, path.name))
    others = ", ".join(shown(other.name) for other in earlier)
    said = [f"{len(paths)} uploads, the latest counts: {shown(path.name)}; not: {others}"] if earlier else []
    return Upload(student, path, named(path).late, said)


def distinct(names):
    """The names, with a number behind each that equals an earlier one but for capitals, so that files can be called so.

    >>> distinct(["Ada", "ada", "Eve"])
    ['Ada', 'ada (2)', 'Eve']
    """
    found = []
    seen = set()
    for name in names:
        tried = (name if n == 1 else f"{name} ({n})" for n in range(1, len(names) + 2))
        found.append(next(one for one in tried if one.casefold() not in seen))
        seen.add(found[-1].casefold())
    return found


def file_names(students):
    """For each student the name of a file, without its ending: readable, distinct, and good for every system.

    >>> file_names(["李明", "王芳", "A/../da", "a/../da", "Ada Lovelace"])
    ['李明', '王芳', 'A_.._da', 'a_.._da (2)', 'Ada Lovelace']
    """
    plain = [re.sub(r"[^-\w. ()]", "_", unicodedata.normalize("NFC", name))[:50].strip(" .") for name in students]
    return distinct([name or "_" for name in plain])


# --- What it holds: in a process of its own --------------------------------------------------------------------------


class Allowance:
    """Counts what is unpacked. Raises ValueError beyond ENTRIES files or UNPACKED bytes."""

    def __init__(self):
        self.entries, self.left = ENTRIES, UNPACKED

    def count(self, found):
        """The list of members, which count as entries."""
        self.entries -= len(found)
        if self.entries < 0:
            raise ValueError(f"more than {ENTRIES} files")
        return found

    def read(self, opened, most):
        """The first `most` bytes of a member and one more if there are more."""
        with opened() as file:
            data = file.read(min(most, self.left) + 1)
        if len(data) > self.left:
            raise ValueError(f"more than {UNPACKED} bytes unpacked")
        self.left -= len(data)
        return data


def members(source, allowance, depth=2):
    """[(name, () -> open file)] of the files in a folder or zip and in the zips within it. Raises UNREADABLE.

    Files that a student's folder holds besides the student's work, such as the originals, are left out. If there is a
    handin.zip, only its files count (of several, the one in the fewest folders).
    depth: how many levels of zips within zips are opened
    """
    found = allowance.count(in_folder(source) if isinstance(source, Path) and source.is_dir() else in_zip(source))
    packed = sorted((one for one in found if f"/{one[0]}".endswith("/handin.zip")), key=steepness)
    everything = []
    for name, opened in packed[:1] or found:
        if depth and name.lower().endswith(".zip"):
            inner = io.BytesIO(allowance.read(opened, UNPACKED))
            everything += [(f"{name}/{within}", file) for within, file in members(inner, allowance, depth - 1)]
        else:
            everything.append((name, opened))
    return everything


def in_folder(folder):
    """(name, () -> open file) of the files in a folder; links are not followed."""
    found = []
    for place, folders, files in os.walk(folder):
        names = [Path(place, name) for name in files]
        files = [path for path in names if path.is_file() and not path.is_symlink()]
        found += [(path.relative_to(folder).as_posix(), partial(path.open, "rb")) for path in files]
        folders[:] = [name for name in folders if name not in BESIDE or name == checker.HIDDEN]
        if len(found) > ENTRIES:
            break
    return sorted(one for one in found if relevant(one[0]))


def in_zip(source):
    archive = zipfile.ZipFile(source)
    found = [(info.filename.replace("\\", "/"), partial(archive.open, info)) for info in archive.infolist()]
    return [one for one in found if relevant(one[0])]


def relevant(name):
    """Whether a file of this name may be the student's work, or says what the course was started from."""
    return not BESIDE & {*name.split("/")} or f"/{name}".endswith(f"/{checker.HIDDEN}/commit")


def steepness(member):
    """How many folders deep a member lies."""
    return member[0].count("/")


def unpacked(path, files):
    """({file: its bytes}, warnings): of each of `files` the copy in the fewest folders."""
    found = {}
    warnings = []
    allowance = Allowance()
    try:
        inside = sorted(members(path, allowance), key=steepness)
        for known in files:
            places = [opened for name, opened in inside if f"/{name}".endswith(f"/{known}")]
            if places:
                data = allowance.read(places[0], BYTES)
                found[known] = data if len(data) <= BYTES else b""
                warnings += [f"{known} is larger than {BYTES} bytes"] if len(data) > BYTES else []
            if len(places) > 1 and known != "commit":
                warnings.append(f"{known} occurs {len(places)} times: the one in the fewest folders counts")
    except UNREADABLE as error:
        warnings.append(f"{path.name} cannot be read: {type(error).__name__}: {error}"[:300])
    return found, warnings


def read(path, chosen, originals, commit, exercises):
    """A hand-in as JSON: what the sandbox can run of each of the `chosen` exercises, or why nothing; what is odd is a
    warning.

    commit     of the project; a hand-in that was started from another one gets a warning
    exercises  all of the course
    Returns {"warnings": [text], "files": [name], "programs": {exercise: base64}, "problems": {exercise: text},
    "shapes": {exercise: hash}}: a program is a pickled list of syntax trees, and equal code has equal shapes.
    """
    sys.setrecursionlimit(DEPTH)
    result: dict[str, Any] = {"warnings": [], "files": [], "programs": {}, "problems": {}, "shapes": {}}
    if not (path.is_dir() or path.is_file() and path.suffix.lower() == ".zip"):
        said = shown(f"{path.name}: neither a folder nor a .zip")
        return result | {"warnings": [said], "problems": {x.name: f"{x.file} is missing" for x in chosen}}
    found, warnings = unpacked(path, [*sorted({x.file for x in exercises}), "commit"])
    theirs = found.pop("commit", b"").decode(errors="replace").strip()[:40]
    if not found:
        warnings.append("no file of the course found")
    elif theirs != commit:
        warnings.append(f"started from another commit: {theirs or 'unknown'} instead of {commit}")
    result |= {"warnings": [shown(text) for text in warnings], "files": [*found]}
    for exercise in chosen:
        try:
            program, shape = prepared(exercise, found, originals, exercises)
            result["programs"][exercise.name] = program
            result["shapes"][exercise.name] = shape
        except (checker.Broken, RecursionError, MemoryError) as error:
            result["problems"][exercise.name] = shown(str(error) or type(error).__name__)[:300]
    return result


def prepared(exercise, found, originals, exercises):
    """(program, shape) of an exercise of a hand-in, {file: bytes}. Raises checker.Broken if nothing can be run."""
    if exercise.file not in found:
        raise checker.Broken(f"{exercise.file} is missing")
    student = checker.parsed(checker.decoded(found[exercise.file], exercise.file), exercise.file)
    original = checker.Source.read(checker.original_file(originals, exercise.file))
    if not checker.touched(exercise, student, original):
        raise checker.Broken("not done")
    parts = checker.pieces(exercise, student, original, exercises)
    program = pickle.dumps([node for _, node in parts])
    if len(program) > PROGRAM:
        raise checker.Broken(f"{exercise.where} and what it uses are too large")
    return base64.b64encode(program).decode(), hashed(student.shape(exercise.target))


def hashed(shape):
    """The hash of a text; None of None."""
    return shape and hashlib.sha256(shape.encode(errors="replace")).hexdigest()
