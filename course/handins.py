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
from course.checks.catalogue import EXERCISES

READ_SECONDS, READ_MEMORY = 60.0, 1 << 30  # at most, to unpack and parse one hand-in
ENTRIES, UNPACKED = 2_000, 20_000_000  # at most: files, bytes of a hand-in, those of zips within it included
BYTES, PROGRAM = 1 << 18, 1 << 22  # at most: one file; the syntax tree of an exercise and what it uses
DEPTH = 5_000  # of calls while a syntax tree is turned into bytes: Python compiles trees deeper than its own default
NOT_DONE = "not done"  # as `start` left it; with a file's name behind it: the file was not handed in
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
    for pattern in NAMES:
        if match := re.fullmatch(pattern, path.name, re.DOTALL):
            found = match.groupdict()
            return Name(found["who"], found["id"], bool(found.get("late")), int(found.get("upload") or 0))
    return Name(path.stem if path.suffix.lower() == ".zip" else path.name, "", False, 0)


def uploads(folder, tables=()):
    """An Upload per student from the names in `folder`, but for `tables`, the paths that `grade` writes.

    Of several uploads of one student the latest counts: by Canvas's number, else by the time of the last change.
    Students of the same name are told apart by their numbers.
    """
    students = {}
    for path in sorted(folder.iterdir()):
        if path.name[0] != "." and path not in tables:
            students.setdefault(named(path)[:2], []).append(path)
    called = [shown(who) for who, _ in students]
    names = [f"{name} ({number})" if called.count(name) > 1 else name for name, (_, number) in zip(called, students)]
    return [upload(name, paths) for name, paths in zip(distinct(names), students.values())]


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
    found = {}
    for name in names:
        tried, number = name, 1
        while tried.casefold() in found:
            number += 1
            tried = f"{name} ({number})"
        found[tried.casefold()] = tried
    return [*found.values()]


def file_names(students):
    """For each student the name of a file, without its ending: readable, distinct, and good for every system.

    >>> file_names(["李明", "王芳", "A/../da", "a/../da", "Ada Lovelace"])
    ['李明', '王芳', 'A_.._da', 'a_.._da (2)', 'Ada Lovelace']
    """
    plain = [re.sub(r"[^-\w. ()]", "_", unicodedata.normalize("NFC", name))[:50].strip(" .") for name in students]
    return distinct([name or "_" for name in plain])


# --- What it holds: in a process of its own --------------------------------------------------------------------------


def files_in(source):
    """Yield (name, () -> open file) of the files in a folder or zip; links are not followed."""
    if not isinstance(source, Path) or source.is_file():
        archive = zipfile.ZipFile(source)
        for info in archive.infolist():
            yield info.filename.replace("\\", "/"), partial(archive.open, info)
        return
    for place, folders, names in os.walk(source):
        folders[:] = [name for name in folders if name not in BESIDE or name == checker.HIDDEN]
        for path in (Path(place, name) for name in names):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(source).as_posix(), partial(path.open, "rb")


def steepness(member):
    """How many folders deep a member lies, then its name."""
    return member[0].count("/"), member[0]


class Reader:
    """Unpacks one hand-in. Raises ValueError beyond ENTRIES files or UNPACKED bytes."""

    def __init__(self):
        self.entries, self.left = ENTRIES, UNPACKED

    def members(self, source, depth=2):
        """[(name, () -> open file)] of the files in a folder or zip and in the zips within it. Raises UNREADABLE.

        Files that a student's folder holds besides the student's work, such as the originals, are left out. If there is
        a handin.zip, only its files count (of several, the one in the fewest folders).
        depth: how many levels of zips within zips are opened
        """
        found = []
        for member in files_in(source):
            if not BESIDE & {*member[0].split("/")} or f"/{member[0]}".endswith(f"/{checker.HIDDEN}/commit"):
                found.append(member)
                self.entries -= 1
            if self.entries < 0:
                raise ValueError(f"more than {ENTRIES} files")
        packed = sorted((one for one in found if f"/{one[0]}".endswith("/handin.zip")), key=steepness)
        everything = []
        for name, opened in packed[:1] or found:
            if depth and name.lower().endswith(".zip"):
                inner = self.members(io.BytesIO(self.read(opened, UNPACKED)), depth - 1)
                everything += [(f"{name}/{within}", file) for within, file in inner]
            else:
                everything.append((name, opened))
        return everything

    def read(self, opened, most):
        """The first `most` bytes of a member and one more if there are more."""
        with opened() as file:
            data = file.read(min(most, self.left) + 1)
        self.left -= len(data)
        if self.left < 0:
            raise ValueError(f"more than {UNPACKED} bytes unpacked")
        return data


def unpacked(path, files):
    """({file: its bytes}, warnings): of each of `files` the copy in the fewest folders."""
    found = {}
    warnings = []
    reader = Reader()
    try:
        inside = sorted(reader.members(path), key=steepness)
        for known in files:
            places = [opened for name, opened in inside if f"/{name}".endswith(f"/{known}")]
            if places:
                found[known] = reader.read(places[0], BYTES)
            if len(found.get(known, b"")) > BYTES:
                found[known] = b""
                warnings.append(f"{known} is larger than {BYTES} bytes")
            if len(places) > 1 and known != "commit":
                warnings.append(f"{known} occurs {len(places)} times: the one in the fewest folders counts")
    except UNREADABLE as error:
        warnings.append(f"{path.name} cannot be read: {type(error).__name__}: {error}"[:300])
    return found, warnings


def read(path, chosen, commit):
    """A hand-in as JSON: what the sandbox can run of each of the `chosen` exercises, or why nothing; what is odd is a
    warning.

    commit  of the project; a hand-in that was started from another one gets a warning
    Returns {"warnings": [text], "files": [name], "programs": {exercise: base64}, "problems": {exercise: text},
    "shapes": {exercise: hash}}: a program is a pickled list of syntax trees, and equal code has equal shapes.
    """
    sys.setrecursionlimit(DEPTH)
    found = {}
    if path.is_symlink():
        warnings = [f"{path.name}: a link, which is not followed; hand in the folder or .zip itself"]
    elif not (path.is_dir() or path.is_file() and path.suffix.lower() == ".zip"):
        warnings = [f"{path.name}: neither a folder nor a .zip"]
    else:
        found, warnings = unpacked(path, [*sorted({x.file for x in EXERCISES}), "commit"])
        theirs = found.pop("commit", b"").decode(errors="replace").strip()[:40] or "unknown"
        if not found:
            warnings.append("no file of the course found")
        elif theirs != commit:
            warnings.append(f"started from another commit: {theirs} instead of {commit}")
    missing = sorted({x.file for x in chosen} - found.keys())
    if found and missing:
        warnings.append(f"not handed in: {', '.join(missing)}")
    result: dict[str, Any] = {
        "warnings": [*map(shown, warnings)],
        "files": [*found],
        "programs": {},
        "problems": {},
        "shapes": {},
    }
    for exercise in chosen:
        try:
            result["programs"][exercise.name], result["shapes"][exercise.name] = prepared(exercise, found)
        except (checker.Broken, RecursionError, MemoryError) as error:
            result["problems"][exercise.name] = shown(str(error) or type(error).__name__)[:300]
    return result


def prepared(exercise, found):
    """(program, shape) of an exercise of a hand-in, {file: bytes}. Raises checker.Broken if nothing can be run."""
    if exercise.file not in found:
        raise checker.Broken(f"{NOT_DONE}: {exercise.file} is missing")
    student = checker.parsed(checker.decoded(found[exercise.file], exercise.file), exercise.file)
    original = checker.original_of(exercise)
    if not checker.touched(exercise, student, original):
        raise checker.Broken(NOT_DONE)
    program = pickle.dumps([node for _, node in checker.pieces(exercise, student, original)])
    if len(program) > PROGRAM:
        raise checker.Broken(f"{exercise.where} and what it uses are too large")
    return base64.b64encode(program).decode(), hashed(student.shape(exercise.target))


def hashed(shape):
    """The hash of a text; None of None."""
    return shape and hashlib.sha256(shape.encode(errors="replace")).hexdigest()
