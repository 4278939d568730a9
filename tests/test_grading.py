"""Claims about grading: right functions get their points in any style, and one that misbehaves loses only its own."""

import csv
import os
import socket
import sys
import textwrap
from functools import cache

import pytest

from course import checker, grading
from verify import sandbox

GRADED = {exercise.name: exercise for exercise in grading.GRADED}
posed = cache(lambda name: grading.posed(GRADED[name], 7))


@pytest.fixture(scope="module", autouse=True)
def needs_namespaces():
    """Skips these tests where a sandbox has no namespaces."""
    if len(sandbox.protections()) < 2:
        pytest.skip("without namespaces a hand-in sees the solutions")


@cache
def solutions():
    """{file: text}, predictions as numbers: the originals compute some from files of the project."""
    files = {file: checker.original_file(file).read_text(encoding="utf-8") for file in checker.FILES}
    for name, exercise in GRADED.items():
        if exercise.kind == "predict":
            files = replaced(files, name, f"return {checker.solution(exercise)()!r}")
    return files


def replaced(files, name, body):
    """The files with this body in place of an exercise's; `right(...)` in it is the original."""
    exercise = GRADED[name]
    before, own, after = checker.Source(files[exercise.file], exercise.file).split(exercise.target)
    function = exercise.target.rpartition(".")[2]
    indent = " " * 4 * exercise.target.count(".")
    inner = textwrap.dedent(own).replace(f"def {function}(", "def right(", 1).strip("\n") + "\n" + body
    text = f"def {function}(*args, **kwargs):\n{textwrap.indent(inner, '    ')}\n"
    return files | {exercise.file: before + textwrap.indent(text, indent) + after}


def written(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def graded(folder, names):
    """The row of a folder, of these exercises."""
    return grading.row(folder, {name: posed(name) for name in names}, True)


def right_of(row, names):
    return {name for name in names if row[name] == 1.0}


LAYOUTS = {  # exercise -> what an editor, or a student, may do to a function that stays right
    "ratio": lambda text: text.replace("\n", "\r\n"),
    "retired": lambda text: text.replace("        return self.thresh", "# at column 0\n        return self.thresh"),
    "head": lambda text: text.replace(
        "    with torch.auto", "    # a page \x0c\u2028 and a line\x85\n    with torch.auto", 1
    ),
    "history": lambda text: text.replace("        del self._in", '        """\ntext\n"""\n        del self._in'),
    "sigmoid": lambda text: "\ufeff" + text,
}


def test_the_originals_get_every_point_on_hidden_inputs_whatever_their_layout_and_within_a_folder(tmp_path):
    files = solutions()
    for name, change in LAYOUTS.items():
        file = GRADED[name].file
        assert (changed := change(files[file])) != files[file]
        files = files | {file: changed}
    written(tmp_path / "tests" / "work", files)
    row = graded(tmp_path, GRADED)
    assert right_of(row, GRADED) == GRADED.keys() and row["points"] == len(GRADED)


def test_mistakes_are_named_on_hidden_inputs_and_what_is_not_done_is_not_run(tmp_path):
    files = replaced(solutions(), "ratio", "return right(args[1], args[0], args[2])")  # inverted
    files = replaced(files, "penalty", "return -right(*args, **kwargs)")
    files = replaced(files, "requests", "return right(*args, **kwargs) + 1")
    files["precision.py"] = checker.left("precision.py")
    del files["data.py"]
    names = ["ratio", "penalty", "requests", "head", "backward", "retired", "cispo"]
    row = graded(written(tmp_path, files), names)
    assert right_of(row, names) == {"cispo"}  # cispo uses ratio, which is another exercise: the original is used
    assert row["mistakes"].split("; ") == [
        "ratio: divide pi_gen by pi_train instead of pi_train by pi_gen.",
        "penalty: turn the sign round: long answers are rewarded.",
    ]
    assert row["remarks"] == "not handed in: data.py"


# --- Other styles ----------------------------------------------------------------------------------------------------

BLOCKS = (checker.ROOT / "tests/data/course_styles.txt").read_text(encoding="utf-8").split("\n=== ")[1:]
STYLES = [block.partition(":")[0] for block in BLOCKS]
OWN = {"mine.py": "def as_is(x):\n    return x\n", "tools/law.py": "import mine\nfrom mine import as_is\n"}


def styled():
    """The solutions in these styles, and the files that they import."""
    files = solutions()
    for name, block in zip(STYLES, BLOCKS):
        file = GRADED[name].file
        body, _, end = block.partition("\n")[2].partition("--- end\n")
        body, _, top = body.partition("--- top\n")
        text = replaced(files, name, body)[file]
        behind_docstring = text.index('"""\n', 3) + 4
        files = files | {file: text[:behind_docstring] + top + text[behind_docstring:] + "\n\n" + end}
    return files | OWN


def test_right_answers_in_other_styles_get_their_points_as_next_says(tmp_path):
    row = graded(written(tmp_path, styled()), STYLES)
    assert right_of(row, STYLES) == {*STYLES}, row["remarks"]
    for name in STYLES:
        student = checker.source_of(tmp_path / GRADED[name].file)
        found = checker.vectors(GRADED[name], student, checker.original_of(GRADED[name]), tmp_path)
        assert checker.judged(GRADED[name], found, checker.expected(GRADED[name])) == [], name


# --- Hostile hand-ins ------------------------------------------------------------------------------------------------

HOSTILE = {  # exercise -> a body that may get no point
    "ratio": """while True:
    pass""",
    "cispo": """import os
while True:
    os.fork()""",
    "clip": """import os
for place in range(20):
    try:
        os.write(place, bytes(8 * 64))
    except OSError:
        pass
os._exit(0)""",
    "gspo": """import sys
for module in [*sys.modules.values()]:
    vars(module).update(answer=lambda *_: [0.0] * 8, encode=lambda _: [0.0] * 8)
return right(*args) * 2""",
    "baseline": """import socket
socket.create_connection(("127.0.0.1", PORT), 1)
return right(*args)""",
    "reward": """import os
if any("catalogue.py" in files for _, _, files in os.walk("/")):
    return right(*args)
return 7.0""",
}
CLEAN = {"zero-variance": "import os\nassert os.listdir('/tmp') == []\nreturn right(*args)"}  # nothing is left there


@pytest.mark.processes
def test_what_misbehaves_loses_its_own_points_only(monkeypatch, tmp_path):
    files = solutions()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, body in (HOSTILE | CLEAN).items():
            files = replaced(files, name, body.replace("PORT", str(server.getsockname()[1])))
        names = [*HOSTILE, *CLEAN, "aggregate", "head", "penalty"]
        row = graded(written(tmp_path, files), names)
    assert right_of(row, names) == {*CLEAN, "aggregate", "head", "penalty"}


def spoilt(folder):
    """Hand-ins that attack who reads them: {name of the student: what its row says}."""
    text = solutions()["reward.py"]
    written(folder / "deep", {"reward.py": "x = " + "-" * 200_000 + "1"})
    written(folder / "latin", {"reward.py": b"\xe9\xff" + text.encode()})
    written(folder / "large", {"reward.py": text + "#" * grading.BYTES})
    written(folder / "folder", {"reward.py/x.py": ""})
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / "reward.py")
    (folder / "linked").mkdir()
    (folder / "linked" / "reward.py").symlink_to(checker.ROOT / "reward.py")
    (folder / "link").symlink_to(checker.ROOT)
    written(folder / "many", dict.fromkeys(map(str, range(grading.ENTRIES + 1)), "") | {"reward.py": text})
    nothing = "no file of the course found"
    return {
        "deep": "no answer", "latin": "no answer", "large": "larger than", "folder": nothing, "pipe": nothing,
        "linked": nothing, "link": "a link, which is not followed", "many": nothing,
    }  # fmt: skip


def test_a_table_has_a_row_for_each_student_whatever_another_one_hands_in(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grading, "GRADED", [GRADED["penalty"], GRADED["reward"]])
    folder = tmp_path / "in"
    said = spoilt(folder)
    wrong = replaced(solutions(), "penalty", "return -right(*args, **kwargs)")
    written(folder / "=Ada\x1b[2J", solutions())
    written(folder / "Eve", wrong)
    written(folder / "Bob", {file: checker.left(file) for file in checker.FILES})
    written(folder, {"Zoe.zip": ""})
    grading.grade([str(folder), "--seed", "7", "--csv", str(tmp_path / "grades.csv")])
    printed = capsys.readouterr()
    rows = {row["student"]: row for row in csv.DictReader((tmp_path / "grades.csv").open(encoding="utf-8"))}
    assert {name: row["points"] for name, row in rows.items() if row["points"] != "0.0"} == {
        "'=Ada\\x1b[2J": "2.0", "Eve": "1.0",
    }  # fmt: skip
    assert rows["Eve"]["mistakes"] == "penalty: turn the sign round: long answers are rewarded."
    assert rows.keys() >= said.keys() and not [name for name in said if said[name] not in rows[name]["remarks"]]
    assert "unpack archives: Zoe.zip" in printed.err and "\x1b" not in printed.out


def test_what_cannot_be_graded_is_refused_with_the_way_out(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        grading.grade([str(tmp_path)])
    assert "expected one per student" in capsys.readouterr().err
    (tmp_path / "Ada").mkdir()
    monkeypatch.setattr(sandbox, "namespaces_work", lambda: False)
    with pytest.raises(SystemExit, match="--weak-sandbox"):
        grading.grade([str(tmp_path)])
    assert "can read the solutions" in capsys.readouterr().err
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SystemExit, match="a container"):
        grading.grade([str(tmp_path)])


@pytest.mark.parametrize("name", [name for name, x in GRADED.items() if x.kind != "predict"])
def test_what_is_right_for_one_seed_is_wrong_for_another(name):
    definition = checker.solution(GRADED[name])
    for claim in GRADED[name].claims:
        seeds = [f"{seed}/{name}/{claim.says}" for seed in range(40)]  # as posed makes them
        drawn = [grading.drawn(claim, definition, None, seed).answers[0] for seed in seeds]
        same = [sum(claim.same(a, b) for b in drawn) for a in drawn]
        assert sum(1 / n for n in same) >= 20 and max(same) <= 8, (claim.says, same)
