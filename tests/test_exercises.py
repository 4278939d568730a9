"""Claims about the course: every exercise can be solved, fails while unsolved, and names every known mistake."""

import json
import random
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import exercises
import fit
import loss
import pipeline
import reward
from course import checker, grading, race, staleness, timeline
from course.checks import answers, losses
from course.checks.catalogue import CHAPTERS, EXERCISES
from course.checks.claims import Claim, encode

ROOT = Path(checker.__file__).parent.parent
BY_NAME = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
TRAINS = {"six-steps"}  # takes half a minute; benchmarks/course.py checks it


def original(exercise):
    return checker.Source.read(checker.original_file(ROOT, exercise.file))


def unsolved(file):
    """A file as `start` leaves it, all of its exercises taken out."""
    text = checker.original_file(ROOT, file).read_text()
    for exercise in EXERCISES:
        if exercise.file == file:
            text = checker.taken(text, exercise)
    return text


def problems(exercise, text):
    """What the check says of a file with this text."""
    student = checker.Source(text, ROOT / exercise.file)
    return checker.judged(
        exercise,
        checker.vectors(exercise, student, original(exercise), EXERCISES),
        checker.expected(exercise, original(exercise), EXERCISES, ROOT),
    )


def claims(exercises=EXERCISES):
    return [(exercise, claim) for exercise in exercises for claim in exercise.claims]


@pytest.fixture(autouse=True)
def own_run(monkeypatch, tmp_path):
    """A folder with results/ and, in runs/own and stale/, logs that stand for a student's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    (tmp_path / "runs" / "own").mkdir(parents=True)
    for k in (0, 4, 32):
        rows = [{"kind": "config", "flags": {"k": k}}]
        rows += [{"kind": "eval", "step": 8 * n, "pass_rate": 0.02 * n - 0.001 * k * max(0, n - 8)} for n in range(12)]
        (tmp_path / "stale" / f"k{k}").mkdir(parents=True)
        (tmp_path / "stale" / f"k{k}" / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "runs" / "own" / "log.jsonl").symlink_to(ROOT / "results" / "main_seed0.jsonl")


def test_the_course_has_what_it_promises():
    kinds = [exercise.kind for exercise in EXERCISES]
    assert len(CHAPTERS) == 8 and len(kinds) >= 32 and len({exercise.name for exercise in EXERCISES}) == len(kinds)
    assert kinds.count("write") >= 16 and kinds.count("bug") >= 8
    assert kinds.count("predict") >= 4 and kinds.count("measure") >= 4
    assert sum(exercise.graded for exercise in EXERCISES) >= 28
    named = {mistake.__name__ for _, claim in claims() for mistake in claim.mistakes}
    assert len(named) >= 80
    for exercise in EXERCISES:
        own = {mistake.__name__ for claim in exercise.claims for mistake in claim.mistakes}
        assert exercise.kind != "write" or len(own) >= 3, exercise.name
        assert len(exercise.hints) == 3 and exercise.minutes > 0 and exercise.teaches.endswith(".")
        assert bool(exercise.bug) == bool(exercise.symptom) == (exercise.kind == "bug")


def test_no_two_exercises_touch_the_same_definition():
    places = [exercise.where for exercise in EXERCISES]
    assert len(set(places)) == len(places)
    assert not {where for where in places if any(other.startswith(where + ".") for other in places)}


@BY_NAME
def test_the_original_passes_while_all_others_in_its_file_are_unsolved(exercise):
    if exercise.name in TRAINS:
        pytest.skip("trains")
    text = checker.restored(unsolved(exercise.file), checker.original_file(ROOT, exercise.file).read_text(), exercise)
    assert problems(exercise, text) == []


def test_the_predicted_numbers_are_those_that_the_project_computes():
    C = np.linspace(0, 100000, 75)
    assert answers.power_law() == pytest.approx(
        fit.fit_power_law(C, fit.sigmoid(C, 0.645, 1.70, 10909, 0.39), start=5000, stop=50000).A, abs=0.005
    )
    found = []
    for sign in (1.0, -1.0):
        for objective, eps in ((loss.cispo, {"eps_max": 4.0}), (loss.dapo, {"eps_low": 0.2, "eps_high": 0.26})):
            batch = (
                torch.tensor([[0.8]]).log(),
                torch.tensor([[0.1]]).log(),
                torch.tensor([sign]),
                torch.tensor([[True]]),
            )
            found.append(losses.gradient(objective, *batch, **eps).item())
    assert answers.weights() == pytest.approx(found)
    largest = []
    for rule in ("pipeline", "ppo"):  # one prompt a step: request v, for step v, is issued at the first such version
        issued = [pipeline.admission_limit(u, off_policy=rule, k=8, steps=100, prompts=1) for u in range(100)]
        largest.append(max(v - next(u for u in range(100) if issued[u] > v) for v in range(50)))
    assert answers.staleness_bound() == tuple(largest)
    assert answers.bias()[1] == reward.pass_at_k([[True, False, False, False]], 2)[0]


def test_a_wrong_prediction_is_told_no_number_of_the_right_one():
    for exercise in EXERCISES:
        if exercise.kind == "predict":
            function = checker.build(
                exercise, checker.pieces(exercise, original(exercise), original(exercise), EXERCISES)
            )
            right = {f"{x:g}" for x in np.atleast_1d(np.array(losses.numbers(function)))}
            sentences = [exercise.claims[0].says, *(mistake.__doc__ for mistake in exercise.claims[0].mistakes)]
            told = set(re.findall(r"(?<![\^\w])\d+(?:\.\d+)?(?![\w^])", " ".join(sentences)))
            asked = set(re.findall(r"\d+(?:\.\d+)?", function.__doc__))
            assert not (told & right) - asked, (exercise.name, told & right)


def test_an_infinite_result_is_no_known_mistake():
    said = losses.RATIO.problem(encode([[float("inf")] * 4] * 2))
    assert "inf" in said and "This is what you get" not in said


def test_a_timeline_of_stated_costs_has_the_idle_shares_that_one_draws_by_hand():
    found = []
    for rule, k in (("pipeline", 0), ("pipeline", 1), ("ppo", 2)):
        rows = timeline.timeline(off_policy=rule, k=k, generate=30.0, train=20.0)
        found += [timeline.idle(rows, what) for what in ("generated", "trained")]
    assert answers.idle() == pytest.approx(found)
    assert [row["generated"] for row in rows[:3]] == [(0, 30), (30, 60), (80, 110)]  # ppo: the phase ends at 80 s
    slow = timeline.timeline(k=8, generate=30.0, train=60.0)
    assert max(row["staleness"] for row in slow) == 8  # a queue of k + 1 batches stands; never more


def test_a_race_is_decided_by_its_seed_and_judged_by_an_interval_of_the_differences():
    assert race.race.__wrapped__("cispo", 3, steps=5) == race.race.__wrapped__("cispo", 3, steps=5)
    mean, low, high = race.interval([0.01 * n for n in range(10)])  # variance 82.5 / 9 x 1e-4, t = 2.262
    assert (mean, high - mean, mean - low) == pytest.approx((0.045, 0.0216570, 0.0216570), abs=1e-6)
    _, low, _ = answers.seeds()
    assert low > 0


def test_staleness_tells_where_a_run_ends_from_where_it_was_best(capsys, monkeypatch):
    k, found = staleness.rates("stale/k32")
    # 0.02 n - 0.032 max(0, n - 8): from n = 7 to 11 0.14, 0.16, 0.148, 0.136, 0.124; from n = 6 0.12 comes for 0.124
    assert k == 32 and staleness.end(found) == pytest.approx(0.1416) and staleness.best(found) == staleness.end(found)
    assert staleness.best([0.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.1]) == 0.5
    monkeypatch.setattr(sys, "argv", ["course.staleness", "stale/k32", "stale/k0", "stale/k4"])
    staleness.main()
    assert capsys.readouterr().out.split()[3:9] == ["0", "0.180", "0.180", "4", "0.175", "0.175"]
    assert Path("staleness.png").stat().st_size > 10_000
    Path("stale/k4/log.jsonl").write_text('{"kind": "config", "flags": {"k": 4}}\n{"kind": "eval", "pass_rate": 0.2}\n')
    with pytest.raises(ValueError, match="stale/k4: 1 evaluations, expected at least 5"):
        staleness.rates("stale/k4")


def test_without_torch_the_commands_say_what_to_install():
    program = "import sys; sys.modules['torch'] = None; import exercises"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("torch is missing; ") and done.stderr.count("\n") == 1


@BY_NAME
def test_what_the_student_gets_fails_and_names_the_exercise(exercise):
    if exercise.name in TRAINS:
        pytest.skip("trains")
    found = problems(exercise, unsolved(exercise.file))
    assert found and all(text.startswith(f"{exercise.name}: ") for text in found)


@pytest.mark.parametrize(
    "exercise, claim, mistake",
    [
        pytest.param(exercise, claim, mistake, id=f"{exercise.name}-{claim.says.split(':')[0]}-{mistake.__name__}")
        for exercise, claim in claims()
        for mistake in claim.mistakes
    ],
)
def test_a_wrong_answer_is_recognised_as_itself_and_no_other(exercise, claim, mistake):
    assert mistake.__doc__[0].islower() and mistake.__doc__.strip().endswith((".", "?"))
    [right] = [
        vector or encode(claim.expected)
        for one, vector in zip(exercise.claims, checker.expected(exercise, original(exercise), EXERCISES, ROOT))
        if one is claim
    ]
    said = claim.problem(claim.vector(mistake), right)
    assert re.findall("This is what you get when you .*", said) == [claim.named(mistake)]


@pytest.mark.parametrize("file", sorted({exercise.file for exercise in EXERCISES}))
def test_what_was_taken_out_goes_back_byte_for_byte(file):
    whole = checker.original_file(ROOT, file).read_text()
    text = unsolved(file)
    for exercise in random.Random(0).sample(EXERCISES, len(EXERCISES)):
        if exercise.file == file:
            assert text != whole
            text = checker.restored(text, whole, exercise)
    assert text == whole


def is_mistake(value):
    """Whether a thing of a chapter is a wrong answer: its docstring completes a sentence."""
    return bool(re.fullmatch(r"[a-z].*[.?]", (getattr(value, "__doc__", None) or ""), re.S)) and callable(value)


def test_every_wrong_answer_on_the_losses_belongs_to_a_claim():
    written = {name for name, value in vars(losses).items() if is_mistake(value)}
    composed = {mistake for claim in (losses.BATCH_ADVANTAGES, losses.GSPO_VALUE) for mistake in claim.mistakes}
    used = {mistake.__name__ for _, claim in claims() for mistake in claim.mistakes}
    assert written <= used | {mistake.__name__ for mistake in composed}


# --- A student's folder ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    folder = tmp_path_factory.mktemp("student") / "class"
    exercises.start(folder)
    with pytest.raises(SystemExit, match="not empty"):
        exercises.start(folder)
    return folder


@pytest.fixture
def student(started, monkeypatch):
    """The started folder, with every file as `start` left it; the commands run in it."""
    monkeypatch.setattr(exercises, "ROOT", started)
    monkeypatch.setattr(exercises, "HIDDEN", started / checker.HIDDEN)
    monkeypatch.setattr(exercises, "ORIGINALS", started / checker.HIDDEN / "original")
    (started / checker.HIDDEN / "shown").unlink(missing_ok=True)
    for file in exercises.FILES:
        (started / file).write_text(exercises.left(file))
    return started


def write(folder, name, body):
    """Replace the body of an exercise's function."""
    exercise = exercises.find(name)
    path = folder / exercise.file
    before, definition, after = checker.split(path.read_text(), exercise)
    head = definition[: definition.index('"""', definition.index('"""') + 3) + 3]
    path.write_text(f"{before}{head}\n    {body}\n{after}")


def said(folder, name):
    return "\n".join(checker.check(exercises.find(name), folder, checker.originals_of(folder), EXERCISES))


def test_start_copies_the_project_without_solutions_and_never_twice(student, tmp_path):
    assert not (student / "tests").exists()
    assert not (student / "course" / "checks" / "answers.py").exists()
    assert (student / "base" / "config.json").exists() and (student / checker.HIDDEN / "commit").read_text()
    text = (student / "loss.py").read_text()
    assert "Eq. 4: truncated importance weight" in text and ".clamp(max=eps_max).detach()" not in text
    with pytest.raises(SystemExit, match="a student's folder already"):
        exercises.start(tmp_path / "another")


def test_a_check_is_one_clear_line_for_what_cannot_run(student, monkeypatch):
    monkeypatch.setattr(checker, "SECONDS", 2.0)
    assert said(student, "ratio").startswith("ratio: not written yet (loss.py, line ")
    write(student, "ratio", "while True: pass")
    assert said(student, "ratio") == "ratio: stopped after 2 s; likely cause: an endless loop"
    write(student, "ratio", "raise SystemExit(0)")
    lines = said(student, "ratio").split("\n")
    assert lines[0].startswith("ratio: ratio: ") and lines[1].startswith("  expected [[")
    assert lines[2].startswith("  yours    raised SystemExit: 0 (loss.py, line ") and len(lines) == 3
    write(student, "ratio", "import os; os._exit(3)")
    assert said(student, "ratio").startswith("ratio: the process ended")
    write(student, "ratio", "return logprobs[")
    line = line_of(student, "return logprobs[")
    assert said(student, "ratio") == f"ratio: loss.py, line {line}: '[' was never closed"


@pytest.mark.parametrize(
    "spoil, line",
    [
        (
            lambda text: text.replace("def importance_ratio(", "def renamed("),
            "loss.py no longer defines importance_ratio",
        ),
        (lambda text: text + "\n\ndef later(:\n    pass\n", r"loss.py, line \d+: "),
        (lambda text: None, "loss.py cannot be read: "),
    ],
    ids=["renamed", "syntax", "deleted"],
)
def test_a_spoilt_file_is_one_clear_line_and_solve_puts_it_back(spoil, line, student):
    path, mine = student / "loss.py", spoil((student / "loss.py").read_text())
    path.write_text(mine) if mine else path.unlink()
    assert re.match(f"ratio: {line}", said(student, "ratio")) and "\n" not in said(student, "ratio")
    assert re.search(f"ratio: {line}", exercises.following("ratio"))
    assert f"of {len(EXERCISES)} done" in exercises.listed()
    solved = exercises.solve(exercises.find("ratio"))
    assert re.match(line, solved) and "everything else in loss.py was put back" in solved
    assert path.read_text() == checker.restored(
        exercises.left("loss.py"), (ROOT / "loss.py").read_text(), exercises.find("ratio")
    )
    assert not mine or mine in [kept.read_text() for kept in (student / checker.HIDDEN / "kept").iterdir()]


def test_a_wrong_prediction_shows_the_own_number_and_the_mistake_but_not_the_answer(student):
    name = "staleness-bound"
    write(student, name, "return 9, 9")
    assert "expected" not in said(student, name) and "  yours    [9, 9]" in said(student, name)
    write(student, name, "return 1 / 0")
    assert "expected" not in said(student, name) and "yours    raised ZeroDivisionError" in said(student, name)
    write(student, name, "return 8, 7")
    assert said(student, name) == ""


def line_of(folder, text):
    return next(n for n, line in enumerate((folder / "loss.py").read_text().split("\n"), 1) if text in line)


def test_a_mistake_is_named_and_the_students_own_helpers_count(student):
    write(student, "ratio", "return inverse(logprobs, gen_logprobs, mask).exp()")
    path = student / "loss.py"
    path.write_text(path.read_text() + "\n\nSIGN = -1\n\n\ndef inverse(*x):\n    return _log_ratio(*x) * SIGN\n")
    assert "This is what you get when you divide pi_gen by pi_train" in said(student, "ratio")
    path.write_text(path.read_text().replace("SIGN = -1", "SIGN = 1"))
    assert said(student, "ratio") == ""


def test_of_a_bug_only_the_symptom_is_told_until_something_was_tried(student):
    assert "expected" in said(student, "dapo-direction") and "This is what" not in said(student, "dapo-direction")
    path = student / "loss.py"
    path.write_text(
        path.read_text().replace(
            "importance_ratio(gen_logprobs, logprobs, mask), advantages",
            "importance_ratio(gen_logprobs, logprobs, mask) + 0, advantages",
        )
    )
    assert "This is what you get when you divide pi_gen" in said(student, "dapo-direction")


def test_a_check_works_without_fork(student, monkeypatch):
    monkeypatch.delattr("os.fork")
    assert said(student, "sigmoid").startswith("sigmoid: not written yet")
    write(student, "sigmoid", "return R_0 + (A - R_0) * expit(B * (np.log(C + 1e-300) - np.log(C_mid)))")
    assert said(student, "sigmoid") == ""


@pytest.fixture
def hinted(student, monkeypatch, capsys):
    """(name, number) -> what `python exercises.py hint` prints in the student's folder."""

    def hinted(*argv):
        monkeypatch.setattr("sys.argv", ["exercises.py", "hint", *argv])
        exercises.main()
        return capsys.readouterr().out

    return hinted


def test_next_and_list_say_how_far_one_is_hint_has_three_steps_and_solve_keeps_what_was_written(student, hinted):
    assert exercises.following().startswith("sigmoid (write, about 10 minutes, Eq. 1)")
    write(student, "sigmoid", "return R_0")
    assert "expected [0.25, 0.45, 0.65]" in exercises.following()
    assert hinted("sigmoid") == hinted("sigmoid", "1") == "Eq. 1; the symbols stand at the top of fit.py.\n"
    assert hinted("sigmoid", "2").startswith("At C = 0 one ratio is 0 / x and the other x / 0")
    assert hinted("sigmoid", "3").startswith("The share of the gain that is reached at compute C")
    mine = (student / "fit.py").read_text()
    assert "is kept in .course/kept/sigmoid-" in exercises.solve(exercises.find("sigmoid"))
    assert mine in [path.read_text() for path in (student / checker.HIDDEN / "kept").iterdir()]
    assert exercises.state(exercises.find("sigmoid")) == "original"
    write(student, "baseline", "return rewards - rewards.sum(-1, keepdim=True) / rewards.shape[-1]")
    assert exercises.state(exercises.find("baseline")) == "solved"
    assert f"2 of {len(EXERCISES)} done" in exercises.listed().splitlines()
    assert "efficiency (write" in exercises.following()


def test_solving_twice_within_a_second_keeps_both_files(student):
    write(student, "sigmoid", "return R_0")
    mine = (student / "fit.py").read_text()
    said = [exercises.solve(exercises.find("sigmoid")) for _ in range(2)]
    first, second = (student / text.rpartition(" ")[2] for text in said)
    assert first.read_text() == mine != second.read_text()


def test_next_says_what_is_solved_now(student):
    assert exercises.following("baseline").startswith("baseline (write")
    write(student, "baseline", "return rewards - rewards.mean(-1, keepdim=True)")
    assert exercises.following("baseline") == f"baseline: solved (1 of {len(EXERCISES)}). Next: sigmoid"
    assert exercises.following().startswith("sigmoid (write")
    exercises.solve(exercises.find("sigmoid"))
    said, task = exercises.following().split("\n\n")
    assert re.fullmatch(rf"sigmoid: solved \(2 of {len(EXERCISES)}\). Next: ([a-z-]+)", said)[1] == task.split(" ")[0]
    assert "solved" not in exercises.following()


def test_solving_everything_in_a_file_gives_the_original_byte_for_byte(student):
    path = student / "pipeline.py"
    path.write_text(path.read_text() + "\n# a note\n")
    for name in ("phases", "requests", "publishes", "metadata"):
        exercises.solve(exercises.find(name))
    assert path.read_bytes() == (ROOT / "pipeline.py").read_bytes()


def test_what_trains_is_the_students_solved_functions_and_the_originals(student, tmp_path):
    write(student, "baseline", "return rewards - rewards.mean(-1)[:, None]  # mine")
    write(student, "ratio", "return 1  # wrong")
    checker.assemble(
        student,
        tmp_path / "train",
        EXERCISES,
        checker.solved(student, [x for x in EXERCISES if x.name in ("baseline", "ratio", "clip")]),
    )
    text = (tmp_path / "train" / "loss.py").read_text()
    assert "# mine" in text and "# wrong" not in text and "NotImplementedError" not in text
    assert (tmp_path / "train" / "train.py").read_bytes() == (ROOT / "train.py").read_bytes()


def test_a_hand_in_holds_changed_files_answers_and_the_commit(student):
    write(student, "baseline", "return 1")
    write(student, "staleness-bound", "return 8, 7")
    assert "holds answers.py, loss.py" in exercises.pack()
    with zipfile.ZipFile(student / "handin.zip") as archive:
        assert sorted(archive.namelist()) == ["answers.py", "commit", "loss.py"]


# --- The page --------------------------------------------------------------------------------------------------------

PAGE = (ROOT / "exercises.md").read_text()


def test_the_exercise_that_the_page_adds_is_a_whole_one_of_at_most_25_lines(tmp_path):
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert sum(line.strip() != "" for line in code.split("\n")) <= 25
    path = tmp_path / "added.py"
    path.write_text(code)
    space = {"Exercise": checker.Exercise, "Claim": Claim, "ASYNCHRONY": (added := [])}
    exec(compile(code, path, "exec"), space)
    [exercise] = added
    [claim] = exercise.claims
    assert exercise.where not in [x.where for x in EXERCISES] and "Steps count from 0." in exercise.hints
    whole = original(exercise).path and Path(original(exercise).path).read_text()
    assert problems(exercise, whole) == [] != problems(exercise, checker.taken(whole, exercise))
    for mistake in claim.mistakes:
        assert claim.named(mistake) in claim.problem(claim.vector(mistake))
    definition = checker.build(exercise, checker.pieces(exercise, original(exercise), original(exercise), EXERCISES))
    right = [grading.drawn(exercise, claim, definition, None, seed)[1][0] for seed in range(40)]
    assert len(set(map(tuple, right))) >= 20
    [hidden, public] = grading.hidden(exercise, 7, ROOT, EXERCISES)
    assert "def requests_of" in hidden.probe[0] and public.expected == encode([6, 7, 8])


def test_the_page_shows_the_chapters_as_they_are():
    rows = [(name, str(len(chapter)), str(sum(x.minutes for x in chapter))) for name, chapter in CHAPTERS.items()]
    assert re.findall(r"^\| (\d\. [^|]+?) \| (\d+) \| (\d+) \|", PAGE, re.M) == rows


def test_the_page_names_commands_exercises_and_paths_that_exist():
    known = set(re.findall(r'add_parser\("(\w+)"', (ROOT / "exercises.py").read_text()))
    assert set(re.findall(r"python exercises\.py (\w+)", PAGE)) == known
    [afternoon] = re.findall(r"\*\*One afternoon\*\*(.*?)then `python", PAGE, re.S)
    assert {x.name for x in EXERCISES} >= (named := set(re.findall(r"`([\w-]+)`", afternoon))) and len(named) == 12
    for path in set(re.findall(r"(?<!\.)\b((?:tests|plumbing|verify|course|benchmarks)/[\w/.]*\w)", PAGE)):
        assert (ROOT / path).exists(), path
    [message] = re.findall(r"    (cispo: cispo_gradient.*?)\n\n", PAGE, re.S)
    wrong = losses.CISPO_GRADIENT.vector(losses.cispo_cap_is_one_plus_eps)
    assert re.sub(" +", " ", "cispo: " + losses.CISPO_GRADIENT.problem(wrong)) == re.sub(" +", " ", message)
