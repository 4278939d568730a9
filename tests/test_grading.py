"""Claims about grading hand-ins: right functions get their points, and one that misbehaves loses only its own."""

import ast
import base64
import csv
import json
import os
import pickle
import shutil
import socket
import tempfile
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest

import exercises
from benchmarks import hostile
from course import checker, grading, handins, report
from course.checks.catalogue import EXERCISES
from verify import sandbox

ROOT = Path(checker.__file__).parent.parent
GRADED = [exercise for exercise in EXERCISES if exercise.graded]
FILES = sorted({exercise.file for exercise in GRADED})


def solutions():
    return {file: checker.original_file(ROOT, file).read_text() for file in FILES}


def replaced(files, name, body):
    """The files with this body in place of an exercise's; `right(...)` in it is the original."""
    [exercise] = [x for x in EXERCISES if x.name == name]
    before, definition, after = checker.split(files[exercise.file], exercise)
    function = exercise.target.rpartition(".")[2]
    inner = definition.replace(f"def {function}(", "def right(", 1)
    lines = [*inner.splitlines(), *body.splitlines()]
    text = f"def {function}(*args, **kwargs):\n" + "".join(f"    {line}\n" for line in lines)
    return files | {exercise.file: before + text + after}


def claims(names, seed=7, drawn={}):  # noqa: B006  hidden claims are drawn once for all tests
    """{exercise: its hidden claims}."""
    new = [x for x in GRADED if x.name in names and (x.name, seed) not in drawn]
    drawn |= {(x.name, seed): grading.hidden(x, seed, ROOT, EXERCISES) for x in new}
    return {name: drawn[name, seed] for name in names}


def graded(files, names=None):
    """The Graded of a hand-in with these files, {name: text or bytes}."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return supervised(Path(folder), names or [x.name for x in GRADED])


def supervised(path, names):
    """The Graded of the hand-in at this path."""
    return grading.supervised(handins.Upload("Ada", path, False, []), claims(names), ROOT, EXERCISES, True, "unknown")


def points(files, names=None):
    """{exercise: what is wrong with each claim} of a hand-in with these files."""
    return graded(files, names).wrong


@pytest.fixture(scope="module", autouse=True)
def needs_namespaces():
    """Skips these tests where a sandbox has no namespaces."""
    if len(sandbox.protections()) < 2:
        pytest.skip("without namespaces a hand-in sees the solutions")


def test_the_originals_get_every_point_on_hidden_inputs():
    # Predictions are handed in as numbers: the originals compute them from project files, which no sandbox shows.
    predicted = {
        x.name: checker.build(x, checker.pieces(x, source, source, EXERCISES))
        for x in GRADED
        if x.kind == "predict"
        for source in [checker.Source.read(checker.original_file(ROOT, x.file))]
    }
    files = solutions()
    for x in GRADED:
        if x.kind == "predict":
            files = replaced(files, x.name, f"return {predicted[x.name]()!r}")
    assert {name: wrong for name, wrong in points(files).items() if any(wrong)} == {}


def test_mistakes_are_named_on_hidden_inputs_and_what_is_not_done_is_not_run():
    files = replaced(solutions(), "ratio", "return right(args[1], args[0], args[2])")  # inverted
    files = replaced(files, "penalty", "return -right(*args, **kwargs)")
    files = replaced(files, "requests", "return right(*args, **kwargs) + 1")
    files["precision.py"] = checker.taken(files["precision.py"], next(x for x in GRADED if x.name == "head"))
    del files["data.py"]
    found = points(files, ["ratio", "penalty", "requests", "head", "retired", "cispo"])
    assert "This is what you get when you divide pi_gen by pi_train" in found["ratio"][0]
    assert "This is what you get when you turn the sign round" in found["penalty"][0]
    assert "This is what" not in found["requests"][0] and found["requests"][0].startswith(
        "requests: pipeline, then ppo"
    )
    assert found["head"] == ["not done"] and found["retired"] == ["data.py is missing"]
    assert found["cispo"] == ["", ""]  # cispo uses ratio, which is another exercise: the original is used


HOSTILE = {  # exercise -> body that may get no point; the exercises in CLEAN, which run between these, must get theirs
    "ratio": "return [[1.0], [2.0, 3.0]]",
    "cispo": "return right(*args, **kwargs) * float('nan')",
    "clip": """import torch
class Yes(torch.Tensor):
    def __eq__(self, other):
        return True
    def allclose(self, *_, **__):
        return True
return torch.zeros_like(args[0]).as_subclass(Yes)""",
    "gspo": """import torch
torch.allclose = torch.equal = lambda *_, **__: True
torch.Tensor.__eq__ = torch.Tensor.allclose = lambda *_: True
return torch.ones_like(args[0][:, :1])""",
    "baseline": "import loss\nreturn right(*args)",
    "advantages": "import sys\nsys.exit(0)",
    "denominators": "import os\nos._exit(0)",
    "aggregate": """import os, time
open("/tmp/left", "w").close()
os.makedirs("/tmp/closed/within")
os.chmod("/tmp/closed", 0)
if not os.fork():
    os.setsid()
    time.sleep(1000)
return args[0] * float("inf")""",
    "requests": """import os
for descriptor in range(1, 30):
    try:
        os.write(descriptor, b"x" * 100000)
    except OSError:
        pass
return right(*args, **kwargs)""",
    "publishes": """import socket
socket.create_connection(("127.0.0.1", PORT), 1)
return right(*args, **kwargs)""",
    "penalty": """import os
if "names" not in globals():
    globals()["names"] = [set(files) for _, _, files in os.walk("/")]
    assert len(names) > 1000
return right(*args, **kwargs) - 7 * (not any({"loss.py", "pipeline.py"} <= files for files in names))""",
    "retired": "return (\n" + "(" * 900_000,
}
CLEAN = {  # right if nothing is left of the exercise before
    "zero-variance": """import os
assert os.listdir("/tmp") == [] and len([name for name in os.listdir("/proc") if name.isdigit()]) <= 2
return right(*args)"""
}


@pytest.mark.processes
def test_what_misbehaves_loses_its_own_points_only(monkeypatch):
    monkeypatch.setitem(grading.LIMITS, "CPU", 30)  # the search of the whole disk (penalty) has to finish
    monkeypatch.setattr(grading, "SECONDS", 120.0)
    monkeypatch.setattr(grading, "EACH", 90.0)
    files = solutions()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, body in (HOSTILE | CLEAN).items():
            if name == "retired":
                files["data.py"] = body
            else:
                files = replaced(files, name, body.replace("PORT", str(server.getsockname()[1])))
        found = points(files, [*HOSTILE, *CLEAN, "sample", "head"])
    passed = {name for name, wrong in found.items() if not any(wrong)}
    assert passed == {*CLEAN, "sample", "head"}
    assert all(all(wrong) for name, wrong in found.items() if name in HOSTILE)
    assert "yours    [-7, -7" in found["penalty"][0]  # -7: the search found no file of the project


@pytest.mark.processes
def test_endless_loops_and_fork_bombs_are_killed_and_cost_nobody_else(monkeypatch):
    monkeypatch.setitem(grading.LIMITS, "CPU", 1)
    files = replaced(solutions(), "ratio", "while True:\n    pass")
    files = replaced(files, "sample", "import os\nwhile True:\n    os.fork()")
    files = replaced(files, "gspo", "import torch\nreturn right(*args, **kwargs) + torch.ones(1 << 30).sum() * 0")
    found = points(files, ["ratio", "sample", "gspo", "head"])
    assert found["ratio"] == found["gspo"] == ["no answer, killed: time or memory"]
    assert found["sample"][0].startswith("no answer") and found["head"] == [""]  # the limit on processes


def test_nothing_of_the_project_is_seen_where_torch_is_installed_beside_it(tmp_path, monkeypatch):
    import numpy
    import scipy
    import torch

    for name in (
        "torch/__init__.py",
        "numpy/__init__.py",
        "scipy/__init__.py",
        "scalerl-0.1.0.dist-info/RECORD",
        "__editable___scalerl_finder.py",
        "six.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for module in (torch, numpy, scipy):
        monkeypatch.setattr(module, "__file__", str(tmp_path / module.__name__ / "__init__.py"))
    assert sorted(grading.packages().values()) == [f"/packages/{x}" for x in ("numpy", "scipy", "six.py", "torch")]


def bodies(node):
    """The shapes of all functions in a syntax tree."""
    return {checker.shape(part) for part in ast.walk(node) if isinstance(part, ast.FunctionDef)}


@pytest.mark.parametrize("exercise", [x for x in GRADED if x.kind == "write"], ids=lambda exercise: exercise.name)
def test_the_original_of_what_is_graded_is_nowhere_in_the_sandbox(exercise):
    source = checker.Source.read(checker.original_file(ROOT, exercise.file))
    everything = ", ".join(name for name in source.names if "." not in name)
    text = checker.taken("".join(source.lines), exercise)
    text = text.replace(
        f'NotImplementedError("{exercise.name} is', f'NotImplementedError({everything}, "{exercise.name} is'
    )
    program, _ = handins.prepared(exercise, {exercise.file: text.encode()}, ROOT, EXERCISES)
    nodes = pickle.loads(base64.b64decode(program))
    [original] = source.nodes(exercise.target)
    assert len(nodes) > 5  # it did bring what it names
    assert checker.shape(original) not in set().union(*map(bodies, nodes))


LAYOUTS = {  # exercise -> what an editor, or a student, may do to a function that stays right
    "ratio": lambda text: text.replace("\n", "\r\n"),
    "retired": lambda text: text.replace(
        "        return self.threshold", "# at column 0\n        return self.threshold"
    ),
    "head": lambda text: text.replace(
        "    with torch.auto", "    # a page ends\x0c here\u2028and a line\x85here\n    with torch.auto", 1
    ),
    "ends": lambda text: text.replace(
        "        return (token[:, None] ==", '        """\ntext\n"""\n        return (token[:, None] =='
    ),
    "sigmoid": lambda text: "\ufeff" + text,
}


def test_what_is_solved_locally_is_solved_when_graded_whatever_the_layout():
    files = solutions()
    for name, change in LAYOUTS.items():
        [exercise] = [x for x in GRADED if x.name == name]
        assert (changed := change(files[exercise.file])) != files[exercise.file]
        files[exercise.file] = changed
        student = checker.parsed(checker.decoded(changed.encode(), exercise.file), f"mine/{exercise.file}")
        original = checker.Source.read(checker.original_file(ROOT, exercise.file))
        local = checker.vectors(exercise, student, original, EXERCISES)
        assert checker.judged(exercise, local, [None] * len(local)) == []
    found = points(files, [*LAYOUTS, "mismatch", "penalty"])
    assert {name: wrong for name, wrong in found.items() if any(wrong)} == {}


def test_a_difference_between_the_courses_own_inputs_and_hidden_ones_is_a_warning():
    files = replaced(
        solutions(), "ratio", "import torch\nreturn torch.tensor([[2.0, 8.0, 1.0, 1.0], [0.5, 8.0, 1.0, 1.0]])"
    )
    files = replaced(files, "sigmoid", "from loss import cispo\nreturn right(*args, **kwargs)")
    found = graded(files, ["ratio", "sigmoid"])
    assert all(map(any, found.wrong.values()))
    assert found.warnings[-2:] == [
        "right on the course's own inputs, wrong on hidden ones (ratio)", "no answer: raised ImportError (sigmoid)",
    ]  # fmt: skip
    [sigmoid] = [x for x in GRADED if x.name == "sigmoid"]
    original = checker.Source.read(ROOT / "fit.py")
    local = checker.vectors(sigmoid, checker.Source(files["fit.py"], "fit.py"), original, EXERCISES)
    assert "loss belongs to the project, of which nothing can be imported here or in grading" in local[0]


# --- Hand-ins, tables ------------------------------------------------------------------------------------------------


def read(path, names=("ratio", "clock")):
    """What handins.read finds of these exercises."""
    return handins.read(path, [x for x in GRADED if x.name in names], ROOT, "abc", EXERCISES)


def test_hand_ins_are_found_as_moodle_and_canvas_name_them(tmp_path):
    moodle = tmp_path / "Ada Lovelace_123_assignsubmission_file_"
    moodle.mkdir()
    with zipfile.ZipFile(moodle / "handin.zip", "w") as archive:
        archive.writestr("loss.py", solutions()["loss.py"])
        archive.writestr("commit", "abc\n")
    with zipfile.ZipFile(tmp_path / "bohrniels_LATE_55_66_handin-1.zip", "w") as archive:
        archive.writestr("class/loss.py", "x = 2\n")
        archive.writestr("class/plumbing/run_log.py", solutions()["plumbing/run_log.py"])
        archive.writestr("commit", "other")
    (tmp_path / "curie_1_2_handin.zip").write_bytes(b"no zip")
    for name in ("noether_3_4_loss.py", "grades.csv", ".DS_Store"):
        (tmp_path / name).touch()
    uploads = {one.student: one for one in handins.uploads(tmp_path, [tmp_path / "grades.csv", None])}
    assert [(name, one.late) for name, one in uploads.items()] == [
        ("Ada Lovelace", False), ("bohrniels", True), ("curie", False), ("noether", False),
    ]  # fmt: skip
    found = {student: read(one.path) for student, one in uploads.items()}
    assert {student: [*one["programs"]] for student, one in found.items()} == {
        "Ada Lovelace": ["ratio"],
        "bohrniels": ["clock"],
        "curie": [],
        "noether": [],
    }
    assert found["noether"]["warnings"] == ["noether_3_4_loss.py: neither a folder nor a .zip"]
    assert found["Ada Lovelace"]["warnings"] == []
    assert found["bohrniels"]["warnings"] == ["started from another commit: other instead of abc"]
    unread, nothing = found["curie"]["warnings"]
    assert "not a zip file" in unread and nothing == "no file of the course found"


def test_of_several_uploads_of_a_student_the_latest_counts_and_students_of_one_name_stay_apart(tmp_path):
    for name in ("wei_5_90_handin.zip", "wei_5_104_handin-1.zip", "wei_LATE_5_99_handin-2.zip", "wei_6_95_handin.zip"):
        (tmp_path / name).touch()
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada.zip").touch()
    os.utime(tmp_path / "ada", (2e9, 2e9))
    ada, *found = handins.uploads(tmp_path)
    assert [(one.student, one.path.name, one.late) for one in found] == [
        ("wei (5)", "wei_5_104_handin-1.zip", False), ("wei (6)", "wei_6_95_handin.zip", False),
    ]  # fmt: skip
    assert found[0].warnings == [
        "3 uploads, the latest counts: wei_5_104_handin-1.zip; not: wei_5_90_handin.zip, wei_LATE_5_99_handin-2.zip"
    ]
    assert found[1].warnings == []
    assert ada.path.name == "ada" and ada.warnings == ["2 uploads, the latest counts: ada; not: ada.zip"]


WARNED = {  # uploads of benchmarks/hostile.py, which grades them all: what the warning says
    "chain of targets": "no longer defines importance_ratio", "minus signs": "Python cannot read it",
    "plus signs": "Python cannot read it", "broken lzma": "cannot be read: LZMAError", "encrypted": "cannot be read",
    "names of no encoding": "cannot be read: UnicodeDecodeError", "many entries": "more than 2000 files",
    "zips in a zip": "more than 20000000 bytes unpacked", "a commit to break tables": "\\x1b[2J",
    "\x1b[2J\x1b[31m": "ratio", "latin-1 \udce9": "ratio",
}  # fmt: skip


@pytest.mark.processes
def test_whatever_a_hand_in_does_is_a_row_with_a_warning_and_all_others_are_graded(tmp_path, capsys):
    folder = tmp_path / "submissions"
    folder.mkdir()
    for name, data in hostile.archives().items():
        if name in WARNED:
            (folder / f"{name}.zip").write_bytes(data)
    os.mkfifo(folder / "pipe.zip")
    (folder / "ada.zip").write_bytes(hostile.zipped({"loss.py": solutions()["loss.py"]}))
    argv = [str(folder), "--only", "ratio", "cispo", "--csv", str(tmp_path / "grades.csv")]
    grading.grade(grading.flags([*argv, "--feedback", str(tmp_path / "feedback")]), EXERCISES, ROOT)
    rows = {row["student"]: row for row in csv.DictReader((tmp_path / "grades.csv").open(encoding="utf-8", newline=""))}
    expected = {handins.shown(name): text for name, text in WARNED.items()} | {"pipe": "neither a folder nor a .zip"}
    assert {name: float(row["points"]) for name, row in rows.items()} == dict.fromkeys(expected, 0) | {"ada": 2}
    for name, text in expected.items():
        assert text in rows[name]["warnings"], name
    assert "\x1b" not in capsys.readouterr().out and len([*(tmp_path / "feedback").iterdir()]) == len(rows)


def test_reading_a_hand_in_is_stopped_at_its_limits():
    hungry = checker.isolated(lambda: len("x" * (1 << 30)), ROOT, 60.0, 1 << 28)
    endless = checker.isolated(lambda: [n for n in iter(int, 1)], ROOT, 0.3, 1 << 28)
    talkative = checker.isolated(lambda: "x" * (checker.RESULT_BYTES + 1), ROOT, 60.0)
    assert hungry.startswith("MemoryError") and endless.startswith("stopped after") and "ended" in talkative


@pytest.mark.parametrize("zipped", [False, True], ids=["folder", "zip"])
def test_of_a_whole_student_folder_only_the_students_own_work_counts(zipped, tmp_path):
    started = tmp_path / "class"
    exercises.start(started)
    (started / "runs").mkdir()
    (started / "runs" / "loss.py").write_text((ROOT / "loss.py").read_text())
    files = {file: (started / file).read_text() for file in FILES}
    [ratio] = [x for x in GRADED if x.name == "ratio"]
    solved = checker.restored(files["loss.py"], (ROOT / "loss.py").read_text(), ratio)

    def handed_in():
        path = Path(shutil.make_archive(tmp_path / "all", "zip", tmp_path, "class")) if zipped else started
        found, warnings = handins.unpacked(path, [*FILES, "commit"])
        assert found.pop("commit", b"").decode() in (checker.commit_of(ROOT), "")
        return {name: data.decode() for name, data in found.items()}, warnings

    assert handed_in() == (files, [])
    (started / "loss.py").write_text(solved)
    (started / "old").mkdir()
    (started / "old" / "loss.py").touch()
    found, warnings = handed_in()
    assert found["loss.py"] == solved and "loss.py occurs 2 times" in warnings[0]
    with zipfile.ZipFile(started / "handin.zip", "w") as archive:
        archive.writestr("loss.py", "x = 1\n")
    assert handed_in() == ({"loss.py": "x = 1\n"}, [])
    names = ["ratio", "cispo", "sigmoid", "baseline"]
    assert [name for name, wrong in points(files | {"loss.py": solved}, names).items() if not any(wrong)] == ["ratio"]


def test_tables_have_points_per_exercise_and_claim_mistakes_flags_and_gradescopes_form(tmp_path):
    chosen = [x._replace(points=2.0) for x in EXERCISES if x.name == "cispo"]
    wrong = {"cispo": ["cispo_gradient: x\n  This is what you get when you forget it.", ""]}
    one = grading.Graded("A/../da", True, wrong, {}, ["of another commit"])
    line = report.row(one, chosen, ["cispo = Bob"])
    assert line == {
        "student": "A/../da",
        "points": 1.0,
        "cispo": 1.0,
        "cispo: cispo_gradient": 0.0,
        "cispo: cispo": 1.0,
        "mistakes": "cispo: forget it.",
        "equal code": "cispo = Bob",
        "late": "late",
        "warnings": "of another commit",
    }
    [test] = report.gradescope(one, chosen)["tests"]
    assert test.keys() == {"name", "score", "max_score", "output", "visibility"}
    assert (test["name"], test["score"], test["max_score"], test["visibility"]) == ("cispo", 1.0, 2.0, "visible")
    folders = {name: tmp_path / name for name in ("json", "feedback")}
    report.write(Namespace(csv=tmp_path / "g.csv", **folders), [one], [line], chosen)
    assert [row["student"] for row in csv.DictReader((tmp_path / "g.csv").open())] == ["A/../da"]
    assert json.loads((tmp_path / "json" / "A_.._da.json").read_text()) == report.gradescope(one, chosen)
    page = (tmp_path / "feedback" / "A_.._da.md").read_text()
    assert page.startswith("# A/../da: 1 of 2 points\n\n- handed in late\n- of another commit\n")
    assert "## cispo: 1 of 2" in page and "      This is what you get when you forget it.\n" in page
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "A_.._da.json",
        "A_.._da.md",
        "g.csv",
    ]


def test_what_is_missing_broken_or_killed_gives_a_warning_and_a_wrong_number_or_no_answer_does_not():
    chosen = [x for x in GRADED if x.name in ("ratio", "clip", "cispo", "head", "sigmoid", "sample", "mismatch")]
    says = {x.name: x.claims[0].says for x in chosen}
    broken, killed = "precision.py, line 3: invalid syntax", "no answer, killed: time or memory"
    found = {
        "ratio": [f"{says['ratio']}\n  expected 1"],
        "clip": ["not done"],
        "cispo": [killed] * 2,
        "head": [broken],
        "mismatch": ["no answer: raised ImportError"],
        "sigmoid": ["fit.py is missing"],
        "sample": ["no answer: raised TypeError"],
    }
    assert grading.warned({"warnings": ["old"], "files": ["loss.py"]}, found, chosen) == [
        "old",
        "not handed in: fit.py",
        f"{killed} (cispo)",
        f"{broken} (head)",
        "no answer: raised ImportError (mismatch)",
    ]


@pytest.mark.parametrize(
    "flags, said",
    [
        (["/tmp/nowhere-at-all"], "is no folder"),
        ([__file__], "is no folder"),
        (["/tmp", "--points", "cispo=x"], "cispo=3"),
        (["/tmp", "--points", "cispo"], "cispo=3"),
        (["/tmp", "--points", "cispo=-1"], "0 or more"),
        (["/tmp", "--points", "cispo=1e9"], "0 or more"),
        (["/tmp", "--points", "cispo=1", "cispo=2"], "once"),
        (["/tmp", "--points", "cipso=1"], "no exercise: cipso"),
        (["/tmp", "--points", "half=1"], "not graded"),
        (["/tmp", "--csv", "/nowhere-at-all/x.csv"], "is no folder"),
    ],
)
def test_flags_that_cannot_be_end_grading_with_one_line(flags, said):
    with pytest.raises(SystemExit, match=said) as end:
        grading.grade(grading.flags(flags), EXERCISES, ROOT)
    assert "\n" not in end.value.code


def test_equal_code_is_flagged_whatever_its_layout():
    files = solutions()
    own = replaced(files, "cispo", "return right(*args, **kwargs)")
    spaced = {name: text.replace("return -(", "return  -(") + "\n# mine\n" for name, text in own.items()}
    chosen = [x for x in EXERCISES if x.name == "cispo"]
    results = []
    for student, given in (("Ada", own), ("Bob", spaced), ("Eve", files)):
        _, shape = handins.prepared(chosen[0], {"loss.py": given["loss.py"].encode()}, ROOT, EXERCISES)
        results.append(grading.Graded(student, False, {}, {"cispo": shape}, []))
    found = grading.equal_code(results, chosen, ROOT)
    assert found == {"Ada": ["cispo = Bob"], "Bob": ["cispo = Ada"], "Eve": ["cispo = the original"]}


def test_the_same_seed_draws_the_same_inputs_and_another_seed_others():
    [exercise] = [x for x in EXERCISES if x.name == "cispo"]
    a, b, c = (grading.hidden(exercise, seed, ROOT, EXERCISES)[0].expected for seed in (1, 1, 2))
    assert a == b != c


@pytest.mark.parametrize("exercise", [x for x in GRADED if x.kind != "predict"], ids=lambda exercise: exercise.name)
def test_what_is_right_for_one_seed_is_wrong_for_another(exercise):
    # A prediction is a constant; all else has to compute. Of 40 seeds at least 20 expect different outputs.
    source = checker.Source.read(checker.original_file(ROOT, exercise.file))
    definition = checker.build(exercise, checker.pieces(exercise, source, source, EXERCISES))
    for claim in exercise.claims:
        drawn = [grading.drawn(exercise, claim, definition, None, seed)[1][0] for seed in range(40)]
        same = [sum(claim.same(a, b) for b in drawn) for a in drawn]
        assert sum(1 / n for n in same) >= 20 and max(same) <= 8, (claim.says, same)


def test_without_namespaces_grading_says_what_it_cannot_prevent_and_needs_a_flag(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "namespaces_work", lambda: False)
    with pytest.raises(SystemExit, match="--weak-sandbox"):
        grading.grade(grading.flags([str(tmp_path)]), EXERCISES, ROOT)
    assert "can read the solutions" in capsys.readouterr().err
