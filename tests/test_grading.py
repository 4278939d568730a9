"""Claims about grading hand-ins: right functions get their points, and one that misbehaves loses only its own."""

import csv
import json
import shutil
import socket
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest

import exercises
from course import checker, grading
from course.checks.catalogue import EXERCISES
from verify import jail

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


def points(files, names=None, student="Ada", claims={}):  # noqa: B006  hidden claims are drawn once for all tests
    """{exercise: what is wrong with each claim} of a hand-in with these files."""
    names = names or [x.name for x in GRADED]
    new = [x for x in GRADED if x.name in names and x.name not in claims]
    claims |= {x.name: grading.hidden(x, 7, ROOT, EXERCISES) for x in new}
    chosen = {name: claims[name] for name in names}
    return grading.alone(grading.HandIn(student, files, []), chosen, ROOT, EXERCISES, True)


@pytest.fixture(scope="module", autouse=True)
def needs_namespaces():
    """Skips these tests where a jail has no namespaces."""
    if len(jail.protections()) < 2:
        pytest.skip("without namespaces a hand-in sees the solutions")


def test_the_originals_get_every_point_on_hidden_inputs():
    # Predictions are handed in as numbers: the originals compute them from project files, which the jail does not show.
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
    files = replaced(files, "tickets", "return right(*args, **kwargs) + 1")
    files["precision.py"] = checker.taken(files["precision.py"], next(x for x in GRADED if x.name == "head"))
    del files["data.py"]
    found = points(files, ["ratio", "penalty", "tickets", "head", "retired", "cispo"])
    assert "This is what you get when you divide pi_gen by pi_train" in found["ratio"][0]
    assert "This is what you get when you turn the sign round" in found["penalty"][0]
    assert "This is what" not in found["tickets"][0] and found["tickets"][0].startswith("tickets: pipeline, then ppo")
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
    "tickets": """import os
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


# --- Hand-ins, tables ------------------------------------------------------------------------------------------------


def test_hand_ins_are_found_as_moodle_and_canvas_name_them(tmp_path):
    moodle = tmp_path / "Ada Lovelace_123_assignsubmission_file_"
    moodle.mkdir()
    with zipfile.ZipFile(moodle / "handin.zip", "w") as archive:
        archive.writestr("loss.py", "x = 1\n")
        archive.writestr("commit", "abc\n")
    with zipfile.ZipFile(tmp_path / "bohrniels_LATE_55_66_handin-1.zip", "w") as archive:
        archive.writestr("class/loss.py", "x = 2\n")
        archive.writestr("class/plumbing/fleet.py", "x = 3\n")
        archive.writestr("commit", "other")
    (tmp_path / "curie_1_2_handin.zip").write_bytes(b"no zip")
    for name in ("noether_3_4_loss.py", "grades.csv", ".DS_Store"):
        (tmp_path / name).touch()
    files, table = ["loss.py", "plumbing/fleet.py"], tmp_path / "grades.csv"
    found = {one.student: one for one in grading.hand_ins(tmp_path, files, "abc", [table, None])}
    assert {student: one.files for student, one in found.items()} == {
        "Ada Lovelace": {"loss.py": "x = 1\n"},
        "bohrniels": {"loss.py": "x = 2\n", "plumbing/fleet.py": "x = 3\n"},
        "curie": {},
        "noether": {},
    }
    assert found["noether"].warnings == ["noether_3_4_loss.py: neither a folder nor a .zip"]
    assert found["Ada Lovelace"].warnings == []
    assert found["bohrniels"].warnings == ["started from another commit: other instead of abc"]
    unread, nothing = found["curie"].warnings
    assert "not a zip file" in unread and nothing == "no file of the course found"


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
        return grading.read_hand_in(path, FILES, checker.commit_of(ROOT))

    names = ["ratio", "cispo", "sigmoid", "baseline"]
    untouched = handed_in()
    assert untouched.files == files and untouched.warnings == []
    assert all(wrong[0] == "not done" for wrong in points(untouched.files, names).values())
    (started / "loss.py").write_text(solved)
    found = points(handed_in().files, names)
    assert [name for name in names if not any(found[name])] == ["ratio"]
    (started / "old").mkdir()
    (started / "old" / "loss.py").touch()
    again = handed_in()
    assert again.files["loss.py"] == solved and "loss.py occurs 2 times" in again.warnings[0]
    with zipfile.ZipFile(started / "handin.zip", "w") as archive:
        archive.writestr("loss.py", "x = 1\n")
    assert handed_in().files == {"loss.py": "x = 1\n"}


def test_tables_have_points_per_exercise_and_claim_mistakes_flags_and_gradescopes_form(tmp_path):
    chosen = [x._replace(points=2.0) for x in EXERCISES if x.name == "cispo"]
    wrong = {"cispo": ["cispo_gradient: x\n  This is what you get when you forget it.", ""]}
    one = grading.HandIn("Ada", {}, ["of another commit"])
    line = grading.row(one, wrong, chosen, ["cispo = Bob"])
    assert line == {
        "student": "Ada",
        "points": 1.0,
        "cispo": 1.0,
        "cispo: cispo_gradient": 0.0,
        "cispo: cispo": 1.0,
        "mistakes": "cispo: forget it.",
        "equal code": "cispo = Bob",
        "warnings": "of another commit",
    }
    report = grading.report(one, wrong, chosen)
    [test] = report["tests"]
    assert test.keys() == {"name", "score", "max_score", "output", "visibility"}
    assert (test["name"], test["score"], test["max_score"], test["visibility"]) == ("cispo", 1.0, 2.0, "visible")
    grading.write(Namespace(csv=tmp_path / "g.csv", json=tmp_path / "j"), [line], {"A/../da": report})
    assert [row["student"] for row in csv.DictReader((tmp_path / "g.csv").open())] == ["Ada"]
    assert json.loads((tmp_path / "j" / "A_.._da.json").read_text()) == report


def test_what_is_missing_broken_or_killed_gives_a_warning_and_a_wrong_number_or_no_answer_does_not():
    chosen = [x for x in GRADED if x.name in ("ratio", "clip", "cispo", "head", "sigmoid", "sample")]
    says = {x.name: x.claims[0].says for x in chosen}
    broken, killed = "precision.py, line 3: invalid syntax", "no answer, killed: time or memory"
    found = {
        "ratio": [f"{says['ratio']}\n  expected 1"],
        "clip": ["not done"],
        "cispo": [killed] * 2,
        "head": [broken],
        "sigmoid": ["fit.py is missing"],
        "sample": ["no answer"],
    }
    assert grading.warned(grading.HandIn("Ada", {"loss.py": ""}, ["old"]), found, chosen).warnings == [
        "old",
        "not handed in: fit.py",
        f"{killed} (cispo)",
        f"{broken} (head)",
    ]


@pytest.mark.parametrize(
    "flags, said",
    [
        (["/tmp/nowhere-at-all"], "is no folder"),
        ([__file__], "is no folder"),
        (["/tmp", "--points", "cispo=x"], "cispo=3"),
        (["/tmp", "--points", "cispo"], "cispo=3"),
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
    collected = [grading.HandIn("Ada", own, []), grading.HandIn("Bob", spaced, []), grading.HandIn("Eve", files, [])]
    found = grading.equal_code(collected, [x for x in EXERCISES if x.name == "cispo"], ROOT)
    assert found == {"Ada": ["cispo = Bob"], "Bob": ["cispo = Ada"], "Eve": ["cispo = the original"]}


def test_the_same_seed_draws_the_same_inputs_and_another_seed_others():
    [exercise] = [x for x in EXERCISES if x.name == "cispo"]
    a, b, c = (grading.hidden(exercise, seed, ROOT, EXERCISES)[0].expected for seed in (1, 1, 2))
    assert a == b != c


def test_without_namespaces_grading_says_what_it_cannot_prevent_and_needs_a_flag(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jail, "namespaces_work", lambda: False)
    with pytest.raises(SystemExit, match="--weak-jail"):
        grading.grade(grading.flags([str(tmp_path)]), EXERCISES, ROOT)
    assert "can read the solutions" in capsys.readouterr().err
