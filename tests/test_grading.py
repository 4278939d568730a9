"""Claims about grading hand-ins: right functions get their points, and one that misbehaves loses only its own."""

import ast
import base64
import csv
import json
import os
import pickle
import shutil
import socket
import sys
import zipfile
from argparse import Namespace
from functools import cache
from pathlib import Path

import pytest
from conftest import rows

from course import checker, commands, grading, handins, report
from course.checks.catalogue import EXERCISES
from lab import hostile
from verify import sandbox

ROOT = checker.ROOT
GRADED = {exercise.name: exercise for exercise in EXERCISES if exercise.graded}
FILES = sorted({exercise.file for exercise in GRADED.values()})
posed = cache(lambda name: grading.posed(GRADED[name], 7))


def solutions():
    return {file: checker.original_file(file).read_text() for file in FILES}


def replaced(files, name, body):
    """The files with this body in place of an exercise's; `right(...)` in it is the original."""
    exercise = GRADED[name]
    before, definition, after = checker.Source(files[exercise.file], exercise.file).split(exercise.target)
    function = exercise.target.rpartition(".")[2]
    inner = definition.replace(f"def {function}(", "def right(", 1)
    lines = [*inner.splitlines(), *body.splitlines()]
    text = f"def {function}(*args, **kwargs):\n" + "".join(f"    {line}\n" for line in lines)
    return files | {exercise.file: before + text + after}


def graded(folder, files, names=tuple(GRADED)):
    """The Graded of a hand-in with these files, {name: text or bytes}, written to a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    upload = handins.Upload("Ada", folder, False, [])
    return grading.supervised(upload, {name: posed(name) for name in names}, True, "unknown")


@pytest.fixture(scope="module", autouse=True)
def needs_namespaces():
    """Skips these tests where a sandbox has no namespaces."""
    if len(sandbox.protections()) < 2:
        pytest.skip("without namespaces a hand-in sees the solutions")


def test_the_originals_get_every_point_on_hidden_inputs(tmp_path):
    # Predictions are handed in as numbers: the originals compute them from project files, which no sandbox shows.
    files = solutions()
    for name, exercise in GRADED.items():
        if exercise.kind == "predict":
            files = replaced(files, name, f"return {checker.solution(exercise)()!r}")
    assert {name: wrong for name, wrong in graded(tmp_path, files).wrong.items() if any(wrong)} == {}


def test_mistakes_are_named_on_hidden_inputs_and_what_is_not_done_is_not_run(tmp_path):
    files = replaced(solutions(), "ratio", "return right(args[1], args[0], args[2])")  # inverted
    files = replaced(files, "penalty", "return -right(*args, **kwargs)")
    files = replaced(files, "requests", "return right(*args, **kwargs) + 1")
    files["precision.py"] = checker.taken(files["precision.py"], GRADED["head"])
    del files["data.py"]
    found = graded(tmp_path, files, ["ratio", "penalty", "requests", "head", "retired", "cispo"])
    assert "This is what you get when you divide pi_gen by pi_train" in found.wrong["ratio"][0]
    assert "This is what you get when you turn the sign round" in found.wrong["penalty"][0]
    assert "This is what" not in found.wrong["requests"][0]
    assert found.wrong["head"] == ["not done"] and found.wrong["retired"] == ["not done: data.py is missing"]
    assert found.wrong["cispo"] == ["", ""]  # cispo uses ratio, which is another exercise: the original is used
    assert found.warnings[-1] == "not handed in: data.py"


# Exercise -> body that may get no point; the exercises in CLEAN, which run between these, must get theirs.
HOSTILE = {row["exercise"]: row["body"] for row in rows("misbehaving")} | {"retired": "return (\n" + "(" * 900_000}
CLEAN = {  # right if nothing is left of the exercise before
    "zero-variance": """import os
assert os.listdir("/tmp") == [] and len([name for name in os.listdir("/proc") if name.isdigit()]) <= 2
return right(*args)"""
}


@pytest.mark.processes
def test_what_misbehaves_loses_its_own_points_only(monkeypatch, tmp_path):
    monkeypatch.setitem(grading.LIMITS, "CPU", 30)  # the search of the whole disk (penalty) has to finish
    monkeypatch.setattr(grading, "SECONDS", 120.0)
    monkeypatch.setattr(grading, "EACH", 90.0)
    monkeypatch.setattr(grading, "RUN_SECONDS", 300.0)
    files = solutions()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, body in (HOSTILE | CLEAN).items():
            if name == "retired":
                files["data.py"] = body
            else:
                files = replaced(files, name, body.replace("PORT", str(server.getsockname()[1])))
        found = graded(tmp_path, files, [*HOSTILE, *CLEAN, "sample", "head"]).wrong
    passed = {name for name, wrong in found.items() if not any(wrong)}
    assert passed == {*CLEAN, "sample", "head"}
    assert all(all(wrong) for name, wrong in found.items() if name in HOSTILE)
    assert "yours    [-7, -7" in found["penalty"][0]  # -7: the search found no file of the project


@pytest.mark.processes
def test_endless_loops_and_fork_bombs_are_killed_and_cost_nobody_else(monkeypatch, tmp_path):
    monkeypatch.setitem(grading.LIMITS, "CPU", 1)
    files = replaced(solutions(), "ratio", "while True:\n    pass")
    files = replaced(files, "sample", "import os\nwhile True:\n    os.fork()")
    files = replaced(files, "gspo", "import torch\nreturn right(*args, **kwargs) + torch.ones(1 << 30).sum() * 0")
    found = graded(tmp_path, files, ["ratio", "sample", "gspo", "head"])
    assert found.wrong["ratio"] == found.wrong["gspo"] == ["no answer, killed: time or memory"]
    assert found.wrong["sample"][0].startswith("no answer") and found.wrong["head"] == [""]  # the limit on processes
    assert any(text.startswith("no answer, killed: time or memory (ratio") for text in found.warnings)


def test_nothing_of_the_project_is_seen_where_torch_is_installed_beside_it(tmp_path, monkeypatch):
    for name in ("six.py", "scalerl-0.1.0.dist-info", "__editable___scalerl_finder.py", "scalerl.pth"):
        (tmp_path / name).touch()
    for name in ("torch", "numpy", "scipy"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(sys.modules[name], "__file__", str(tmp_path / name / "__init__.py"))
    assert sorted(grading.packages().values()) == [f"/packages/{x}" for x in ("numpy", "scipy", "six.py", "torch")]


def bodies(node):
    """The shapes of all functions in a syntax tree."""
    return {checker.shape(part) for part in ast.walk(node) if isinstance(part, ast.FunctionDef)}


@pytest.mark.parametrize(
    "exercise", [x for x in GRADED.values() if x.kind == "write"], ids=lambda exercise: exercise.name
)
def test_the_original_of_what_is_graded_is_nowhere_in_the_sandbox(exercise):
    source = checker.original_of(exercise)
    everything = ", ".join(name for name in source.names if "." not in name)
    text = checker.taken("".join(source.lines), exercise)
    text = text.replace(
        f'NotImplementedError("{exercise.name} is', f'NotImplementedError({everything}, "{exercise.name} is'
    )
    program, _ = handins.prepared(exercise, {exercise.file: text.encode()})
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


def test_what_is_solved_locally_is_solved_when_graded_whatever_the_layout(tmp_path):
    files = solutions()
    for name, change in LAYOUTS.items():
        exercise = GRADED[name]
        assert (changed := change(files[exercise.file])) != files[exercise.file]
        files[exercise.file] = changed
        student = checker.parsed(checker.decoded(changed.encode(), exercise.file), f"mine/{exercise.file}")
        local = checker.vectors(exercise, student, checker.original_of(exercise))
        assert checker.judged(exercise, local, [None] * len(local)) == []
    found = graded(tmp_path, files, [*LAYOUTS, "mismatch", "penalty"]).wrong
    assert {name: wrong for name, wrong in found.items() if any(wrong)} == {}


def test_a_difference_between_the_courses_own_inputs_and_hidden_ones_is_a_warning(tmp_path):
    files = solutions()
    own = "import torch\nreturn torch.tensor([[2.0, 8.0, 1.0, 1.0], [0.5, 8.0, 1.0, 1.0]])"
    files = replaced(files, "ratio", own)
    files = replaced(files, "sigmoid", "from loss import cispo\nreturn right(*args, **kwargs)")
    files = replaced(files, "head", "import torch\nreturn torch.jit.script(right)(*args, **kwargs)")
    found = graded(tmp_path, files, ["ratio", "sigmoid", "head"])
    assert all(map(any, found.wrong.values()))
    assert found.warnings[-2:] == [
        "no answer: raised ImportError (sigmoid)",
        "right on the course's own inputs, wrong on hidden ones (ratio)",
    ]


# --- Hand-ins, tables ------------------------------------------------------------------------------------------------


def read(path, names=("ratio", "clock")):
    """What handins.read finds of these exercises."""
    return handins.read(path, [GRADED[name] for name in names], "abc")


def archived(path, **files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def test_hand_ins_are_found_as_moodle_and_canvas_name_them(tmp_path):
    moodle = tmp_path / "Ada Lovelace_123_assignsubmission_file_"
    moodle.mkdir()
    archived(moodle / "handin.zip", **{"loss.py": solutions()["loss.py"], "commit": "abc\n"})
    archived(
        tmp_path / "bohrniels_LATE_55_66_handin-1.zip",
        **{"class/plumbing/watch/run_log.py": solutions()["plumbing/watch/run_log.py"], "commit": "other"},
    )
    (tmp_path / "curie_1_2_handin.zip").write_bytes(b"no zip")
    for name in ("noether_3_4_loss.py", "grades.csv", ".DS_Store"):
        (tmp_path / name).touch()
    (tmp_path / "zoe_7_8_handin.zip").symlink_to(moodle / "handin.zip")
    os.mkfifo(tmp_path / "pipe.zip")
    warned = {  # student -> whether late, what is graded, what a warning says
        "Ada Lovelace": (False, ["ratio"], "not handed in: plumbing/watch/run_log.py"),
        "bohrniels": (True, ["clock"], "started from another commit: other instead of abc"),
        "curie": (False, [], "no file of the course found"),
        "noether": (False, [], "neither a folder nor a .zip"),
        "pipe": (False, [], "neither a folder nor a .zip"),
        "zoe": (False, [], "a link, which is not followed"),
    }
    for one in handins.uploads(tmp_path, [tmp_path / "grades.csv", None]):
        late, programs, said = warned.pop(one.student)
        found = read(one.path)
        assert (one.late, [*found["programs"]]) == (late, programs) and said in " ".join(found["warnings"])
    assert not warned


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
    [warning] = found[0].warnings
    assert warning.startswith("3 uploads, the latest counts: wei_5_104_handin-1.zip") and found[1].warnings == []
    assert ada.path.name == "ada" and ada.warnings == ["2 uploads, the latest counts: ada; not: ada.zip"]


WARNED = {  # hand-ins of lab/hostile.py: what the warning says
    "chain of targets": "no longer defines importance_ratio", "minus signs": "Python cannot read it",
    "broken lzma": "cannot be read: LZMAError", "encrypted": "cannot be read",
    "names of no encoding": "cannot be read: UnicodeDecodeError", "many entries": "more than 2000 files",
    "zips in a zip": "more than 20000000 bytes unpacked", "a commit to break tables": "\\x1b[2J",
}  # fmt: skip
archives = cache(hostile.archives)


@pytest.mark.processes
@pytest.mark.parametrize("name", WARNED)
def test_a_hostile_hand_in_gets_no_point_and_a_warning(name, tmp_path):
    path = tmp_path / "ada.zip"
    path.write_bytes(archives()[name])
    one = grading.supervised(handins.Upload("Ada", path, False, []), {"ratio": posed("ratio")}, True, "unknown")
    assert all(one.wrong["ratio"]) and WARNED[name] in " ".join(one.warnings)


def test_where_no_hand_in_is_found_grading_fails(tmp_path):
    (tmp_path / "grades.txt").touch()
    with pytest.raises(SystemExit, match="holds a file of the course"):
        grading.grade(grading.flags([str(tmp_path), "--only", "ratio"]))


def test_reading_a_hand_in_is_stopped_at_its_limits():
    hungry = checker.isolated(lambda: len("x" * (1 << 30)), ROOT, 60.0, 1 << 28)
    endless = checker.isolated(lambda: [n for n in iter(int, 1)], ROOT, 0.3, 1 << 28)
    talkative = checker.isolated(lambda: "x" * (checker.RESULT_BYTES + 1), ROOT, 60.0)
    assert hungry.startswith("MemoryError") and endless.startswith("stopped after") and "ended" in talkative


@pytest.mark.parametrize("zipped", [False, True], ids=["folder", "zip"])
def test_of_a_whole_student_folder_only_the_students_own_work_counts(zipped, tmp_path):
    started = tmp_path / "class"
    commands.start(started)
    files = {file: (started / file).read_text() for file in FILES}

    def handed_in():
        path = Path(shutil.make_archive(tmp_path / "all", "zip", tmp_path, "class")) if zipped else started
        found, warnings = handins.unpacked(path, FILES)
        return {name: data.decode() for name, data in found.items()}, warnings

    assert handed_in() == (files, [])
    solved = checker.restored(files["loss.py"], (ROOT / "loss.py").read_text(), GRADED["ratio"])
    (started / "loss.py").write_text(solved)
    (started / "old").mkdir()
    (started / "old" / "loss.py").touch()
    found, [warning] = handed_in()
    assert found["loss.py"] == solved and "loss.py occurs 2 times" in warning
    archived(started / "handin.zip", **{"loss.py": "x = 1\n"})
    assert handed_in() == ({"loss.py": "x = 1\n"}, [])


def test_tables_have_points_per_exercise_and_claim_mistakes_flags_and_gradescopes_form(tmp_path):
    chosen = [x for x in EXERCISES if x.name == "cispo"]
    wrong = {"cispo": ["cispo_gradient: x\n  This is what you get when you forget it.", ""]}
    one = grading.Graded("A/../da", True, ["loss.py"], wrong, {}, ["of another commit"])
    line = report.row(one, chosen, ["cispo = Bob"])
    points = {"points": 0.5, "cispo": 0.5, "cispo: cispo_gradient": 0.0, "cispo: cispo": 0.5}
    said = {"mistakes": "cispo: forget it.", "equal code": "cispo = Bob", "warnings": "of another commit"}
    assert line == {"student": "A/../da", "late": "late"} | points | said
    [test] = report.gradescope(one, chosen)["tests"]
    assert (test["name"], test["score"], test["max_score"], test["visibility"]) == ("cispo", 0.5, 1.0, "visible")
    folders = {name: tmp_path / name for name in ("json", "feedback")}
    report.write(Namespace(csv=tmp_path / "g.csv", **folders), [one], [line], chosen)
    assert [row["student"] for row in csv.DictReader((tmp_path / "g.csv").open())] == ["A/../da"]
    assert json.loads((tmp_path / "json" / "A_.._da.json").read_text()) == report.gradescope(one, chosen)
    page = (tmp_path / "feedback" / "A_.._da.md").read_text()
    assert page.startswith("# A/../da: 0.5 of 1 points\n\n- handed in late\n- of another commit\n")
    assert "This is what you get when you forget it." in page


@pytest.mark.parametrize(
    "flags, said",
    [
        (["/tmp", "--only", "cipso"], "invalid choice: 'cipso' (choose from 'sigmoid'"),
        (["/tmp/nowhere-at-all"], "/tmp/nowhere-at-all is no folder"),
    ],
)
def test_flags_that_cannot_be_end_grading_with_one_line(flags, said, capsys):
    with pytest.raises(SystemExit):
        grading.flags(flags)
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_equal_code_is_flagged_whatever_its_layout():
    own = replaced(solutions(), "cispo", "return right(*args, **kwargs)")["loss.py"]
    texts = {"Ada": own, "Bob": own.replace("right(", "right( ") + "\n# mine\n", "Eve": solutions()["loss.py"]}
    results = []
    for student, text in texts.items():
        _, shape = handins.prepared(GRADED["cispo"], {"loss.py": text.encode()})
        results.append(grading.Graded(student, False, ["loss.py"], {}, {"cispo": shape}, []))
    found = grading.equal_code(results, [GRADED["cispo"]])
    assert found == {"Ada": ["cispo = Bob"], "Bob": ["cispo = Ada"], "Eve": ["cispo = the original"]}


@pytest.mark.parametrize("name", [name for name, x in GRADED.items() if x.kind != "predict"])
def test_what_is_right_for_one_seed_is_wrong_for_another(name):
    # A prediction is a constant; all else has to compute. Of 40 seeds at least 20 expect different outputs.
    definition = checker.solution(GRADED[name])
    for claim in GRADED[name].claims:
        seeds = [f"{seed}/{name}/{claim.says}" for seed in range(40)]  # as posed makes them
        drawn = [grading.drawn(claim, definition, None, seed).answers[0] for seed in seeds]
        same = [sum(claim.same(a, b) for b in drawn) for a in drawn]
        assert sum(1 / n for n in same) >= 20 and max(same) <= 8, (claim.says, same)


def test_without_namespaces_grading_says_what_it_cannot_prevent_and_needs_a_flag(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "namespaces_work", lambda: False)
    with pytest.raises(SystemExit, match="--weak-sandbox"):
        grading.grade(grading.flags([str(tmp_path)]))
    assert "can read the solutions" in capsys.readouterr().err
