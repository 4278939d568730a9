"""Claims about the course: every exercise can be solved, fails while unsolved, and names every known mistake."""

import re
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from conftest import read_rows, write_rows

import fit
import loss
import pipeline
from course import checker, commands, timeline
from course.checks import answers, losses
from course.checks.catalogue import CHAPTERS, EXERCISES
from course.submission import definition

ROOT = checker.ROOT


def whole(exercise):
    return checker.original_text(exercise.file)


def solution(exercise):
    return definition(checker.original_module(exercise.file, ROOT), exercise.target)


@pytest.fixture(autouse=True)
def own_run(monkeypatch, tmp_path):
    """A folder with results/ and, in runs/own, stale/ and race/, logs that stand for a student's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    logs = {"runs/own": read_rows(ROOT / "results/main_seed0.jsonl")}
    for k in (0, 4, 32):
        rates = [0.02 * n - 0.001 * k * max(0, n - 8) for n in range(12)]
        logs[f"stale/k{k}"] = [{"kind": "eval", "pass_rate": rate} for rate in rates]
    for name, end in (("cispo", 0.8), ("mine.py:objective", 0.5)):
        logs[f"race/{name}"] = [{"kind": "config", "flags": {"loss": name}}, *[{"kind": "eval", "pass_rate": end}] * 6]
    for folder, rows in logs.items():
        (tmp_path / folder).mkdir(parents=True)
        write_rows(tmp_path / folder / "log.jsonl", rows)


# --- Every exercise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_a_solution_is_accepted_and_what_is_left_what_raises_and_every_known_mistake_is_told(exercise):
    left = checker.left(exercise.file)
    problems = checker.problems(exercise, left)
    assert problems and all(line.startswith(f"{exercise.name}: ") for line in problems)
    raising = f"\n\ndef raising(*_, **__):\n    raise ArithmeticError\n\n\n{exercise.target} = raising\n"
    assert checker.problems(exercise, whole(exercise) + raising)
    if exercise.name != "six-steps":  # which trains
        solved = checker.restored(left, whole(exercise), exercise)  # all others in the file are unsolved
        assert checker.problems(exercise, solved) == []
    assert exercise.kind != "write" or sum(len(claim.mistakes) for claim in exercise.claims) >= 3
    for claim in exercise.claims:
        right = claim.right(solution(exercise)) if claim.mistakes else ()
        for mistake in claim.mistakes:
            assert mistake.__doc__[0].islower() and mistake.__doc__.strip().endswith((".", "?"))
            told = re.findall("  This is what .*", claim.problem(claim.vector(mistake), right))
            assert told == [f"  {claim.named(mistake)}"], mistake.__name__


BODIES = re.findall(
    r"=== (right|wrong) ([\w-]+): ([^>\n]*?)(?: -> (.*))?\n((?:(?!===).*\n)*)",
    (ROOT / "tests/data/course_answers.txt").read_text(),
)


@pytest.mark.parametrize("kind, name, how, cause, body", BODIES, ids=[f"{x[1]}-{x[2]}" for x in BODIES])
def test_other_right_answers_are_accepted_and_near_misses_rejected(kind, name, how, cause, body):
    exercise = commands.find(name)
    problems = checker.problems(exercise, checker.with_body(checker.left(exercise.file), exercise, body))
    assert bool(problems) == (kind == "wrong") and cause in "".join(problems), problems


def test_the_predicted_numbers_are_those_that_the_project_computes():
    C = np.linspace(0, 100000, 75)
    law = fit.fit_power_law(C, fit.sigmoid(C, 0.645, 1.70, 10909, 0.39), start=5000, stop=50000)
    assert answers.power_law() == pytest.approx(law.A, abs=0.005)
    gradients = []
    for sign in (1.0, -1.0):
        batch = losses.inputs([[0.8]], [[0.1]], [sign], ["1"])
        gradients.append(losses.value_and_gradient(loss.cispo, *batch, eps_max=4.0)[1].item())
        gradients.append(losses.value_and_gradient(loss.dapo, *batch, eps_low=0.2, eps_high=0.26)[1].item())
    assert answers.weights() == pytest.approx(gradients)
    assert answers.staleness_bound() == tuple(pipeline.OFF_POLICY[rule].bound(8) for rule in ("pipeline", "ppo"))
    # 0.02 n - 0.032 max(0, n - 8), n = 7 to 11: 0.14, 0.16, 0.148, 0.136, 0.124; k = 0: 0.18; k = 4: 0.176 - ...
    assert answers.too_stale() == pytest.approx((0.0048, 0.18 - 0.1416))
    assert answers.own_loss()[1] == pytest.approx(0.3)


def test_a_timeline_of_stated_costs_has_the_idle_shares_that_one_draws_by_hand():
    shares = []
    for rule, k in (("pipeline", 0), ("pipeline", 1), ("ppo", 2)):
        rows = timeline.timeline(off_policy=rule, k=k, generate=30.0, train=20.0)
        shares += [timeline.idle(rows, what) for what in ("generated", "trained")]
    assert answers.idle() == pytest.approx(shares)
    assert [row["generated"] for row in rows[:3]] == [(0, 30), (30, 60), (100, 130)]  # ppo: the phase ends at 100 s
    slow = timeline.timeline(k=8, generate=30.0, train=60.0)
    assert max(row["staleness"] for row in slow) == 8  # a queue of k + 1 batches stands; never more


# --- A student's folder ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    folder = tmp_path_factory.mktemp("student") / "class"
    commands.start(folder)
    with pytest.raises(SystemExit, match="not empty"):
        commands.start(folder)
    return folder


@pytest.fixture
def student(started, monkeypatch):
    """The started folder, with every file as `start` left it; the commands run in it."""
    monkeypatch.setattr(commands, "ROOT", started)
    monkeypatch.setattr(commands, "HIDDEN", started / checker.HIDDEN)
    shutil.rmtree(started / checker.HIDDEN / "kept", ignore_errors=True)
    for file in ("helped.py", f"{checker.HIDDEN}/place"):
        (started / file).unlink(missing_ok=True)
    for file in checker.FILES:
        (started / file).write_text(checker.left(file))
    return started


def write(folder, name, body):
    """Replace the body of an exercise's function in a student's folder."""
    exercise = commands.find(name)
    path = folder / exercise.file
    path.write_text(checker.with_body(path.read_text(), exercise, f"{body}\n"))


def reports(folder, *names):
    """What the checks of these exercises say, one text for each."""
    return ["\n".join(lines) for lines in checker.checked(map(commands.find, names), folder)]


@pytest.fixture
def prints(capsys, monkeypatch):
    """A function that gives what a command prints."""

    def command(*argv):
        monkeypatch.setattr("sys.argv", ["exercises.py", *argv])
        commands.main()
        return capsys.readouterr().out

    return command


def test_start_copies_the_project_without_solutions_and_never_twice(student, tmp_path):
    assert not (student / "tests").exists() and not (student / "course" / "checks" / "answers.py").exists()
    text = (student / "loss.py").read_text()
    assert "Eq. 4: truncated importance weight" in text and ".clamp(max=eps_max).detach()" not in text
    with pytest.raises(SystemExit, match="a student's folder already"):
        commands.start(tmp_path / "another")


STUB = 'raise NotImplementedError("ratio is not written yet")'
CANNOT_RUN = {  # what stands in place of it, in importance_ratio -> what the check says
    STUB: r"not written yet \(loss.py, line \d+\)",
    "while True: pass": "stopped after 0.5 s; likely cause: an endless loop",
    "__import__('os')._exit(3)": r"the process ended \(3\)",
    "raise SystemExit(0)": r".*\n  .*\n  yours    SystemExit: 0 \(loss.py, line \d+\)\n  at  .*ratio\(\[\[.*",
    "return None": r".*\n.*\n  yours .* not what the docstring says: .*\n  at  .*, which returned a NoneType",
    "pass\n\n\nimport nothing_such": r"loss.py cannot be imported: ModuleNotFoundError: .* \(loss.py, line \d+\)",
}


@pytest.mark.parametrize("body", CANNOT_RUN)
def test_a_check_is_one_clear_text_for_what_cannot_run_and_the_next_check_runs(body, student, monkeypatch):
    monkeypatch.setattr(checker, "SECONDS", 0.5)
    path = student / "loss.py"
    path.write_text(path.read_text().replace(STUB, body))
    ratio, crossing = reports(student, "ratio", "crossing")
    assert re.fullmatch(f"ratio: {CANNOT_RUN[body]}", ratio) and crossing.startswith("crossing: not written yet")


@pytest.mark.parametrize("spoilt, line", [(b"\n\ndef later(:", "is not Python"), (b"\xff", "cannot be read as UTF-8")])
def test_a_spoilt_file_is_one_clear_line_and_solve_puts_it_back(spoilt, line, student):
    path = student / "loss.py"
    mine = path.read_bytes() + spoilt
    path.write_bytes(mine)
    assert re.fullmatch(f"ratio: loss.py {line}: .*", *reports(student, "ratio"))
    ratio = commands.find("ratio")
    solved = commands.solve(ratio)
    assert f"loss.py {line}" in solved and "everything else in loss.py was put back" in solved
    assert path.read_text() == checker.restored(checker.left("loss.py"), whole(ratio), ratio)
    assert (student / checker.HIDDEN / "kept" / "ratio-1.py").read_bytes() == mine


def test_a_wrong_prediction_shows_the_own_number_and_the_mistake_but_not_the_answer(student):
    write(student, "staleness-bound", "return 9, 9")
    [problem] = reports(student, "staleness-bound")
    assert "  yours    pipeline: 9, ppo: 9" in problem and "expected" not in problem
    assert "This is what you get when you count the batches" in problem


def test_a_mistake_is_named_and_the_students_own_helpers_count(student):
    write(student, "ratio", "from helped import unit\n\nreturn inverse(logprobs, gen_logprobs, mask).exp() * unit")
    (student / "helped.py").write_text("unit = 1\n")
    path = student / "loss.py"
    path.write_text(path.read_text() + "\n\nSIGN = -1\n\n\ndef inverse(*x):\n    return _log_ratio(*x) * SIGN\n")
    [problem] = reports(student, "ratio")
    assert "This is what you get when you divide pi_gen by pi_train" in problem
    path.write_text(path.read_text().replace("SIGN = -1", "SIGN = 1"))
    assert reports(student, "ratio") == [""]


def test_of_a_bug_only_the_symptom_is_told_until_something_was_tried(student):
    [problem] = reports(student, "zero-variance")
    assert "expected" in problem and "This is what" not in problem
    write(student, "zero-variance", "return (rewards > 0).any(-1)")
    [problem] = reports(student, "zero-variance")
    assert "This is what you get when you keep every prompt" in problem


def test_next_and_list_say_how_far_one_is_hint_has_two_steps_and_solve_keeps_what_was_written(student, prints):
    assert prints("next").startswith("sigmoid (write, about 10 minutes)")
    write(student, "sigmoid", "return R_0")
    assert "expected C_mid / 3: 0.25, C_mid: 0.45, 3 C_mid: 0.65" in prints("next")
    hints = commands.find("sigmoid").hints
    told = [f"sigmoid (fit.py:sigmoid): {hint}\n" for hint in hints[1:]]
    assert [prints("hint", "sigmoid"), prints("hint", "sigmoid", "2")] == told
    mine = (student / "fit.py").read_text()
    kept = [student / line.split(" ")[-1] for line in prints("solve", "sigmoid", "sigmoid").splitlines()]
    assert kept[0].read_text() == mine != kept[1].read_text()
    write(student, "baseline", "return rewards - rewards.sum(-1, keepdim=True) / rewards.shape[-1]")
    assert prints("next", "baseline") == "baseline: solved. Next: advantages (loss.py:normalise)\n"
    assert prints("next").startswith("advantages (") and prints("next", "1").startswith("efficiency (")
    assert (listed := prints("list")).endswith(f"2 of {len(EXERCISES)} done\n")
    assert "\n  solved    baseline" in listed and "\n  original  sigmoid" in listed
    (student / "loss.py").write_text(whole(commands.find("baseline")))  # right answers that equal the originals
    write(student, "sigmoid", "return R_0 + (A - R_0) * expit(B * (np.log(C) - np.log(C_mid)))")
    assert "\n  solved    sigmoid" in (listed := prints("list")) and "\n  solved    baseline" in listed
    for exercise in CHAPTERS["2. Ratio and losses"]:
        commands.solve(exercise)
    assert prints("next", "2") == "2: solved. The chapter is done: python exercises.py next\n"
    assert prints("next").startswith("dropped (")
    with pytest.raises(SystemExit, match="no exercise or chapter is called 9"):
        prints("next", "9")
    with pytest.raises(SystemExit, match=f"cd {student}"):
        prints("train", "--out", "x")


def test_what_trains_is_the_students_solved_functions_and_the_originals(student, tmp_path):
    write(student, "baseline", "return rewards - rewards.mean(-1)[:, None]  # mine")
    write(student, "ratio", "return 1  # wrong")
    commands.solve(commands.find("cispo"))  # which calls the ratio, and is checked with the original
    names = [x.name for x in commands.done(EXERCISES)]
    assert names == ["cispo", "baseline"]
    checker.assemble(student, tmp_path / "train", names)
    text = (tmp_path / "train" / "loss.py").read_text()
    assert "# mine" in text and "# wrong" not in text


@pytest.mark.processes
def test_a_student_who_has_solved_all_has_the_project_again_and_trains_with_it(student, tmp_path):
    shutil.copytree(tmp_path, student, dirs_exist_ok=True)  # with the logs of measurements
    for exercise in EXERCISES:
        commands.solve(exercise)
    assert "All exercises are done" in commands.following()
    for exercise in EXERCISES:
        assert (student / exercise.file).read_bytes() == checker.original_file(exercise.file).read_bytes()
    flags = "--data tiny --virtual exact --steps 2 --prompts 4 --generations 4 --eval-prompts 4".split()
    subprocess.run([sys.executable, "train.py", *flags], cwd=student, check=True, capture_output=True)


def test_a_hand_in_holds_changed_files_answers_and_added_ones(student, prints):
    write(student, "baseline", "return 1")
    write(student, "staleness-bound", "return 8, 7")
    (student / "helped.py").write_text("unit = 1\n")
    assert "holds answers.py, helped.py, loss.py: 1 of" in prints("pack")
    with zipfile.ZipFile(student / "handin.zip") as archive:
        assert sorted(archive.namelist()) == ["answers.py", "helped.py", "loss.py"]


PAGE = (ROOT / "exercises.md").read_text()
CHEAT = "import pathlib\npathlib.Path('grades.xml').write_text('<x/>')\nraise SystemExit(0)\n"
LOOPS = "\ndef sigmoid(C, A, B, C_mid, R_0):\n    while True:\n        pass\n"
NEVER = "conftest.py", "json.py", "course/checker.py", "pipeline/__init__.py", "../out.py"
HANDINS = {  # what stands in them, behind the originals of the exercises' files
    "good": {"fit.py": "\nfrom helped import nothing\n", "helped.py": "nothing = 1", "forecast.py": ""},
    "loops": {"fit.py": LOOPS, "forecast.py": ""},
    "cheats": dict.fromkeys(NEVER, CHEAT) | {"pytest.ini": "[pytest]\naddopts = --collect-only\n"},
}


@pytest.mark.processes
def test_the_script_for_teachers_grades_hand_ins_and_what_they_bring_beside_exercises_decides_nothing(
    tmp_path, monkeypatch
):
    [script] = re.findall(r"```py\n(.*?)```", PAGE, re.S)
    project, handins = tmp_path / "project", tmp_path / "handins"
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        if (ROOT / name).is_file() and not name.startswith(("tests/", "figures/")):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, project / name)
    (project / "grade.py").write_text(script)
    handins.mkdir()
    for student, files in HANDINS.items():
        with zipfile.ZipFile(handins / f"{student}.zip", "w") as archive:
            for name, text in files.items():
                original = (ROOT / name).read_text() if name in checker.FILES else ""
                archive.writestr(name, original + text)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k 'sigmoid or ahead'")
    command = [sys.executable, "grade.py", handins]
    graded = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True).stdout.split()
    assert {*graded} == {"student,sigmoid,ahead", "good,1,1", "loops,0,1", "cheats,0,0"}


# --- The page --------------------------------------------------------------------------------------------------------


def test_the_page_shows_the_chapters_as_they_are_and_names_commands_and_exercises_that_exist():
    rows = [(name, str(len(chapter)), str(sum(x.minutes for x in chapter))) for name, chapter in CHAPTERS.items()]
    assert re.findall(r"^\| (\d\. [^|]+?) \| (\d+) \| (\d+) \|", PAGE, re.M) == rows
    named = [f"`{x.name}`{'' if x.target == x.name.replace('-', '_') else f' (`{x.target}`)'}" for x in EXERCISES]
    assert re.findall(r"`[\w-]+`(?: \(`[\w.]+`\))?", PAGE.split("|---|---|\n")[-1].split("\n\n")[0]) == named
    assert {*re.findall(r"python exercises\.py (\w+)", PAGE)} == {"start", *"next list hint solve train pack".split()}
    [afternoon] = re.findall(r"\*\*One afternoon\*\*(.*?)then `python", PAGE, re.S)
    assert all(map(commands.find, re.findall(r"`([\w-]+)`", afternoon)))
