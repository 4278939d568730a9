"""Claims about plumbing/foreign_logs.py, and fit.py's command line on logs of any trainer."""

import json
import random
import subprocess
import sys

import pytest
from conftest import DATA, ROOT, jsonl
from conftest import rows as data_rows

import fit
from plumbing import curves, foreign_logs

C = [0, 1, 2, 3, 4, 6, 8, 12]
R = [0.2, 0.26, 0.35, 0.43, 0.5, 0.6, 0.66, 0.72]
ROWS = list(zip(C, R))


def write(path, text):
    """Write text, or bytes; return the path."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def delimited(rows=ROWS, names=("step", "acc")):
    """A table as text, its cells separated by commas."""
    return "".join(",".join(map(str, row)) + "\n" for row in (names, *rows))


def points(path, compute="step", reward="acc", **options):
    """[(compute, reward)] of a file."""
    run = foreign_logs.read_run(path, compute, reward, **options)
    return [(c, pytest.approx(r)) for c, r in zip(run.compute, run.reward)]


@pytest.fixture
def table(tmp_path):
    """(columns, rows) -> the path of a.csv."""
    return lambda *names, rows: write(tmp_path / "a.csv", delimited(rows, names))


LOG = [{"step": c, "loss": 1.0, "acc": r} for c, r in ROWS]
JSONL = jsonl(LOG)
STATE = json.dumps({"epoch": 1, "log_history": [*LOG, {"train_loss": 0.1}], "global_step": 12}, indent=2)


@pytest.mark.parametrize("row", data_rows("logs/taken"), ids=lambda row: row["file"])
def test_files_that_say_the_same_in_the_forms_of_many_trainers_are_read_by_two_names(row):
    path = DATA / "logs" / row["file"]
    run = foreign_logs.read_run(path, row["compute"], row["reward"])
    assert list(run.compute) == C and run.reward == pytest.approx(R)
    assert run.unit == row["compute"] and run.name == path.stem
    assert run.notes[-1] == f"reward: {row['reward']}, taken as a pass rate; compute: {row['compute']}"


def test_an_event_file_is_read_if_tensorboard_is_there_else_the_refusal_says_how(tmp_path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        with pytest.raises(fit.BadInput, match="pip install tensorboard"):
            points(write(tmp_path / "events.out.tfevents.1", "x"))
        return
    with SummaryWriter(tmp_path) as writer:
        for c, r in ROWS:
            writer.add_scalar("val/acc", r, c)
    assert points(next(tmp_path.glob("*tfevents*"))) == ROWS


TEXTS = [(c, r / n, kind) for c, r in ROWS for n, kind in ((1, "train"), (2, "test"))]
RESUMED = [(0, 0.2), (1, 0.3), (2, 0.4), (3, 0.9), (4, 0.9), (3, 0.5), (4, 0.6), (5, 0.7)]  # after step 4, from step 2
RISE = "expected steps that rise, or a run that was resumed"
FORMS = "'Other forms of logs'.*--reward NAME --x NAME$"
ROUNDED = "acc,epoch\n" + "".join(f"{n / 500},{n / 9000:.2f}\n" for n in range(361))  # as TRL rounds epochs
REFUSED = [  # the file, its text (None: a log of DATA), the compute, what is said
    ("trl.log", None, "step", FORMS),
    ("a.parquet", "PAR1", "step", FORMS),
    (".", None, "step", FORMS),
    ("a.json", json.dumps({"step": C, "acc": R}), "step", f"got 0 lists of objects, expected one.*{FORMS}"),
    ("a.json", STATE[:-130], "step", "it was cut off"),
    ("a.csv", "0,0.2\n1,0.3\n", "step", "the first line holds numbers"),
    ("a.csv", delimited([(c, f"{100 * r}%") for c, r in ROWS]), "step", "acc holds '20.0%', expected .* no %"),
    ("a.csv", 'step,acc\n1,"0,5"\n2,0.5\n', "step", "acc holds '0,5', expected .*--decimal ,"),
    ("a.csv", delimited([row for row in ROWS for _ in range(2)]), "step", RISE),
    ("a.csv", delimited([*ROWS, *ROWS[2::2]]), "step", RISE),  # no range of steps: another series, and a rarer one
    ("a.csv", delimited([(c, r, c) for c, r in ROWS], ("step", "acc", "seed")), "step", "tell 8 runs apart"),
    (
        "a.csv",
        delimited(TEXTS, ("step", "acc", "split")),
        "step",
        r"split .*'train' \(8 rows\), 'test' \(8 rows\); keep",
    ),
    ("a.csv", delimited([(1.7e9 + c, r) for c, r in ROWS], ("time", "acc")), "time", "expected compute since"),
    ("a.csv", ROUNDED, "epoch", "epoch has 5 values in 361 rows.*--x row counts"),
    ("a.csv", delimited([(c - 1, r) for c, r in ROWS]), "step", "got step from -1 to 11, expected compute since"),
    ("a.csv", delimited([(c, "", r) for c, r in ROWS], ("step", "x", "acc")), "x", "no row has both x and acc"),
]


@pytest.mark.parametrize("name, text, compute, words", REFUSED)
def test_what_is_not_read_is_refused_with_the_remedy(tmp_path, name, text, compute, words):
    path = DATA / "logs" / name if text is None else write(tmp_path / name, text)
    with pytest.raises(fit.BadInput, match=words):
        foreign_logs.read_run(path, compute, "acc")


@pytest.mark.parametrize(("compute", "reward", "words"), [
    (None, "val/acc", "--x NAME are needed"), ("step", None, "--reward NAME and"),
    ("step", "acc", "--reward acc names several columns"), ("tep", "val/acc", "--x tep names no column"),
    ("step", "cc", "--reward cc names no column"),
])  # fmt: skip
def test_a_column_is_named_whole_or_by_its_last_part_else_the_refusal_has_a_table(table, compute, reward, words):
    path = table("step", "val/acc", "train/acc", "note", rows=[(c, r, 9 * r, "-" if c else "") for c, r in ROWS])
    assert points(path, reward="val/acc") == ROWS
    with pytest.raises(fit.BadInput) as refusal:
        foreign_logs.read_run(path, compute, reward)
    first, _, *lines = str(refusal.value).splitlines()
    assert words in first and [line.split() for line in lines] == [
        ["1", "8", "8", "yes", "row"], ["0", "12", "8", "yes", "step"], ["0.2", "0.72", "8", "yes", "yes", "val/acc"],
        ["1.8", "6.48", "8", "yes", "train/acc"], ["no", "numbers", "note"],
    ]  # fmt: skip


def test_where_keeps_the_rows_of_the_values_that_it_names(table, tmp_path):
    path = table("step", "acc", "split", rows=TEXTS)
    assert points(path, conditions=["split=train"]) == ROWS
    path = table("step", "acc", "phase", rows=[(c, r, "warm" if c < 3 else "main") for c, r in ROWS])
    assert points(path, conditions=["phase=warm", "phase=main"]) == ROWS
    logged = [{"step": c, "acc": r / n, "eval": n == 1} for c, r in ROWS for n in (1, 2)]
    assert points(write(tmp_path / "a.jsonl", jsonl(logged)), conditions=["eval=true"]) == ROWS
    for condition, words in (("phase", "expected NAME=VALUE"), ("phase=x", "keeps no row; the values are .*'main'")):
        with pytest.raises(fit.BadInput, match=words):
            points(path, conditions=[condition])


def test_decimal_commas_are_read_if_the_flag_says_so_and_points_then_are_no_numbers(tmp_path):
    text = "step;acc\n" + "".join(f"{c};{str(r).replace('.', ',')}\n" for c, r in ROWS)
    path = write(tmp_path / "a.csv", text)
    assert points(path, decimal=",") == ROWS
    with pytest.raises(fit.BadInput, match="acc holds '0,72', expected"):
        points(write(path, text.replace("0,72", "0.72")), decimal=",")


def test_of_json_lines_that_are_cut_off_the_complete_ones_are_read_and_a_list_wherever_it_stands(tmp_path):
    run = foreign_logs.read_run(write(tmp_path / "a.jsonl", JSONL[:-20]), "step", "acc")
    assert list(run.reward) == R[:-1] and run.notes[0] == "left out 1 lines that are no row: 8"
    for value in ({"a": {"log": LOG}, "n": [1, 2]}, LOG):
        assert points(write(tmp_path / "a.json", json.dumps(value, indent=1))) == ROWS


def test_what_is_left_out_or_sorted_is_said(tmp_path, table):
    run = foreign_logs.read_run(write(tmp_path / "a.csv", delimited() + "13,nan\n14\n"), "step", "acc")
    assert run.notes[:-1] == ("rows left out without a number for acc or step: 2",) and list(run.reward) == R
    run = foreign_logs.read_run(table("step", "acc", rows=[*ROWS[:3], ROWS[4], ROWS[3], *ROWS[5:]]), "step", "acc")
    assert run.notes[:-1] == ("the rows were sorted by step",) and list(run.reward) == R


def test_of_a_run_that_was_resumed_once_or_many_times_the_last_of_repeated_steps_counts(table):
    run = foreign_logs.read_run(table("step", "acc", rows=RESUMED), "step", "acc")
    assert list(run.compute) == [0, 1, 2, 3, 4, 5] and list(run.reward) == [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert run.notes[:-1] == ("rows left out of repeated steps, of which the last counts: 2",)
    again = [(2, 0.8), (3, 0.8), (2, 0.9), (3, 0.9), (4, 0.9), (5, 1)]  # twice from one step: the first came no further
    assert points(table("step", "acc", rows=[*RESUMED, *again])) == [*RESUMED[:2], *again[2:]]
    assert points(DATA / "logs" / "resumed.csv") == ROWS  # it came no further


def test_a_compute_that_falls_is_refused_and_added_up_if_asked(table):
    rows = [(1, 30, ""), (2, 20, 0.2), (3, 40, ""), (4, 10, 0.3)]
    path = table("step", "seconds", "acc", rows=rows)
    with pytest.raises(fit.BadInput, match="seconds falls while the steps go on.*--cumulative adds up"):
        points(path, "seconds")
    # 30 + 20 = 50 at step 2, 50 + 40 + 10 = 100 at step 4: rows without an evaluation cost compute too.
    assert points(path, "seconds", cumulative=True) == [(50, 0.2), (100, 0.3)]
    # A total that starts anew after 5 hours.
    path = table("step", "hours", "acc", rows=zip(range(8), [1, 2, 3, 4, 5, 1, 2, 3], R))
    assert [c for c, _ in points(path, "hours", cumulative=True)] == [1, 2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(fit.BadInput, match="got --cumulative, but hours is a running total"):
        points(table("step", "hours", "acc", rows=zip(C, C, R)), "hours", cumulative=True)


@pytest.mark.parametrize(
    ("scale", "rewards"), [("percent", [0, 25, 100]), ("pm1", [-1, -0.5, 1]), ("-2:6", [-2, 0, 6])]
)
def test_rewards_of_another_scale_become_pass_rates(table, scale, rewards):
    path = table("step", "acc", rows=zip(range(3), rewards))
    assert [r for _, r in points(path, scale=scale)] == [0, 0.25, 1]


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the lines stand in docs/")
@pytest.mark.parametrize(("name", "reward"), [("verl.log", "val/acc"), ("trl.log", "acc")])
def test_the_lines_of_python_in_the_docs_make_a_table_of_a_console(tmp_path, name, reward):
    page = (ROOT / "docs" / "forecasting.md").read_text(encoding="utf-8")
    lines = page.partition("## Other forms of logs")[2].partition("\n    import csv")[2].partition("\n\n")[0]
    program = "import csv" + lines.replace("\n    ", "\n").replace("train.log", str(DATA / "logs" / name))
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert points(tmp_path / "train.csv", reward=reward) == ROWS


# ---- Files that are no logs: exit code 2, no traceback ----

NOISE = random.Random(0).randbytes(5000)
GOOD = delimited()
BAD = {
    "empty.csv": "", "noise.csv": NOISE, "noise": NOISE, "utf16.csv": GOOD.encode("utf-16-le"),
    "header.csv": "step,acc\n", "megabyte.csv": f"step,{'a' * 10**6}\n1,0.5\n",
    "quote.csv": 'step,acc\n"1,0.2\n' + GOOD * 3, "twice.csv": delimited(names=("acc", "acc")),
    "long_row.csv": GOOD + "13,0.7,0.8\n", "words.csv": GOOD.replace("0.5\n", "high\n"), "deep.json": '{"a":' * 10**5,
    "list_cell.jsonl": JSONL.replace("0.5}", "[0.5]}"), "other_names.jsonl": JSONL.replace("acc", "perplexity"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*BAD, "/dev/zero", "."])
def test_a_file_that_is_no_log_ends_with_code_2_and_few_printable_lines(tmp_path, capsys, name):
    path = write(tmp_path / name, BAD[name]) if name in BAD else name
    with pytest.raises(SystemExit) as end:
        curves.main([path, "--reward=acc", "--x=step", "--fit-from", "0", "-o", str(tmp_path / "a.png")])
    out, error = capsys.readouterr()
    assert end.value.code == 2 and not out and not (tmp_path / "a.png").exists()
    assert error.startswith("fit.py: ") and error.count("\n") < 7
    assert error.replace("\n", "").isprintable() and len(error) < 1000


# ---- Several runs in a file, counts, our own logs ----


@pytest.mark.parametrize("order", [lambda row: row[2], lambda row: row[0]], ids=["one by one", "side by side"])
def test_columns_called_run_and_seed_tell_runs_apart(table, order):
    rows = [(c, r / n, run, seed) for n, run, seed in ((1, "a", 1), (2, "a", 2), (3, "b", 2)) for c, r in ROWS]
    rows = sorted([*rows, (1, 0.1, "c", 1), (2, 0.1, "c", 1)], key=order)  # the fourth run crashed
    runs = foreign_logs.read_runs(table("step", "acc", "run", "seed", rows=rows), "step", "acc")
    assert [run.name for run in runs] == ["a run a seed 1", "a run a seed 2", "a run b seed 2"]
    assert [list(run.reward) for run in runs] == [[r / n for r in R] for n in (1, 2, 3)]
    assert list(runs[2].compute) == C and "left out 2 rows of run c seed 1: 2 points" in runs[0].notes


def test_the_completions_of_an_evaluation_are_a_number_or_a_column(table):
    path = table("step", "acc", "n", "completions", rows=[(*row, 7, 12) for row in ROWS])
    for asked, count in ((None, 12), (20, 20), ("n", 7)):
        assert foreign_logs.read_run(path, "step", "acc", completions=asked).completions == count
    for asked in ("0", "m", "nan"):
        with pytest.raises(fit.BadInput, match="--completions"):
            foreign_logs.read_run(path, "step", "acc", completions=asked)


def test_only_a_log_that_begins_with_our_flags_is_taken_for_ours(tmp_path):
    start = {"kind": "config", "flags": {"virtual": None, "lr": 1}}
    evals = [{"kind": "eval", "step": n, "gpu_hours": n / 10, "pass_rate": n / 50, "tokens": n} for n in range(12)]
    for virtual, unit in ((None, "gpu_hours"), ("exact", "virtual gpu_hours")):
        start["flags"]["virtual"] = virtual
        (tmp_path / "log.jsonl").write_text(jsonl([start, *evals]))
        [run] = foreign_logs.read_runs(tmp_path)
        assert run.unit == unit
    (tmp_path / "log.jsonl").write_text(jsonl(evals))
    with pytest.raises(fit.BadInput, match="--reward NAME and --x NAME are needed"):
        foreign_logs.read_runs(tmp_path)
