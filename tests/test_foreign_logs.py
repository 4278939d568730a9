"""Claims about plumbing/foreign_logs.py: logs of any trainer, and our own."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DATA, ROOT, jsonl, refuses
from conftest import rows as data_rows

import fit
from plumbing import foreign_logs

C = [0, 1, 2, 3, 4, 6, 8, 12]
R = [0.2, 0.26, 0.35, 0.43, 0.5, 0.6, 0.66, 0.72]
ROWS = list(zip(C, R))
LOG = [{"step": c, "loss": 1.0, "acc": r} for c, r in ROWS]
JSONL = jsonl(LOG)


def table(rows=ROWS, names="step acc"):
    """The text of a CSV."""
    return "".join(",".join(map(str, row)) + "\n" for row in (names.split(), *rows))


def written(text, name="a.csv"):
    """The name of a file with this text, or these bytes."""
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


def read(text, compute="step", reward="acc", name="a.csv", **options):
    """The fit.Run of a file with this text."""
    return foreign_logs.read_run(written(text, name), compute, reward, **options)


def points(*args, **options):
    """[(compute, reward)] of what `read` reads."""
    run = read(*args, **options)
    return [(c, pytest.approx(r)) for c, r in zip(run.compute, run.reward)]


@pytest.mark.parametrize("row", data_rows("logs/taken"), ids=lambda row: row["file"])
def test_files_that_say_the_same_in_the_forms_of_many_trainers_are_read_by_two_names(row):
    run = foreign_logs.read_run(DATA / "logs" / row["file"], row["compute"], row["reward"])
    assert list(run.compute) == C and run.reward == pytest.approx(R) and run.unit == row["compute"]


def test_an_event_file_is_read():
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("events") as writer:
        for c, r in ROWS:
            writer.add_scalar("val/acc", r, c)
    run = foreign_logs.read_run(next(Path("events").iterdir()), "step", "acc")
    assert list(run.compute) == C and run.reward == pytest.approx(R)


TEXTS = [(c, r / n, kind) for c, r in ROWS for n, kind in ((1, "train"), (2, "test"))]
RESUMED = [(0, 0.2), (1, 0.3), (2, 0.4), (3, 0.9), (4, 0.9), (3, 0.5), (4, 0.6), (5, 0.7)]  # after step 4, from step 2
RISE = "expected steps that rise, or a run that was resumed"
FORMS = "'Other forms of logs'.*--reward NAME --x NAME$"
ROUNDED = "acc,epoch\n" + "".join(f"{n / 500},{n / 9000:.2f}\n" for n in range(361))  # as TRL rounds epochs
SEVERAL = table([(c, r, 9 * r) for c, r in ROWS], "step val/acc train/acc")
REFUSED = [  # what is said, what a file holds, options
    (FORMS, random.Random(0).randbytes(5000), {"name": "noise"}),
    (f"got 0 lists of objects, expected one.*{FORMS}", json.dumps({"step": C, "acc": R}), {"name": "a.json"}),
    ("the first line holds numbers", "0,0.2\n1,0.3\n"),
    ("names a column twice", table(names="acc acc")),
    ("more cells than the first line", table() + "13,0.7,0.8\n"),
    ("acc holds '20.0%', expected .* no %", table([(c, f"{100 * r}%") for c, r in ROWS])),
    ("acc holds '0,5', expected .*--decimal ,", 'step,acc\n1,"0,5"\n2,0.5\n'),
    (RISE, table([row for row in ROWS for _ in range(2)])),
    (RISE, table([*ROWS, *ROWS[2::2]])),  # no range of steps: another series, and a rarer one
    ("tell 8 runs apart", table([(*row, row[0]) for row in ROWS], "step acc seed")),
    (r"split .*'train' \(8 rows\), 'test' \(8 rows\); keep", table(TEXTS, "step acc split")),
    ("keeps no row; the values are .*'test'", table(TEXTS, "step acc split"), {"conditions": ["split=x"]}),
    ("expected compute since", table([(1.7e9 + c, r) for c, r in ROWS])),
    ("epoch has 5 values in 361 rows.*--x row counts", ROUNDED, {"compute": "epoch"}),
    (
        "falls while the rows .*--cumulative",
        table([(*row, 9 - row[0]) for row in ROWS], "step acc s"),
        {"compute": "s"},
    ),
    ("is a running total", table(), {"cumulative": "rows"}),
    ("no row has both x and acc", table([(c, "", r) for c, r in ROWS], "step x acc"), {"compute": "x"}),
    ("got --completions 0", table(), {"completions": "0"}),
    ("--x NAME are needed", table(), {"compute": None}),
    ("--x cc names no column", table([(c, r, "a" * 10**5) for c, r in ROWS], "step acc text"), {"compute": "cc"}),
    ("(?s)--reward acc names several columns.* 0.2 +0.72 +8 +yes +yes +'val/acc'\n", SEVERAL),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0])
def test_what_is_not_read_is_refused_in_few_printable_words_with_the_remedy(case):
    words, text, *options = case
    with pytest.raises(fit.BadInput, match=words) as refusal:
        read(text, **dict(*options))
    assert str(refusal.value).replace("\n", "").isprintable() and len(str(refusal.value)) < 1000


def test_a_column_is_named_whole_or_by_its_last_part():
    assert points(SEVERAL, reward="val/acc") == points(SEVERAL.replace("train/acc", "kl")) == ROWS


def test_where_keeps_the_rows_of_the_values_that_it_names():
    phases = table([(c, r, "warm" if c < 3 else "main") for c, r in ROWS], "step acc phase")
    assert points(phases, conditions=["phase=warm", "phase=main"]) == ROWS
    logged = [{"step": c, "acc": r / n, "eval": n == 1} for c, r in ROWS for n in (1, 2)]
    assert points(jsonl(logged), name="a.jsonl", conditions=["eval=true"]) == ROWS


def test_decimal_commas_are_read_if_the_flag_says_so():
    text = "step;acc\n" + "".join(f"{c};{str(r).replace('.', ',')}\n" for c, r in ROWS)
    assert points(text, decimal=",") == ROWS


def test_of_json_lines_that_are_cut_off_the_complete_ones_are_read_and_a_list_wherever_it_stands():
    run = read(JSONL[:-20], name="a.jsonl")
    assert list(run.reward) == R[:-1] and run.notes[0] == "left out 1 lines that are no row: 8"
    assert points(json.dumps({"a": {"log": LOG}, "n": [1, 2]}, indent=1), name="a.json") == ROWS


def test_what_is_left_out_or_sorted_is_said():
    run = read(table() + "13,nan\n14\n")
    assert run.notes[:-1] == ("rows left out without a number for acc or step: 2",) and list(run.reward) == R
    run = read(table([*ROWS[:3], ROWS[4], ROWS[3], *ROWS[5:]]))
    assert run.notes[:-1] == ("the rows were sorted by step",) and list(run.reward) == R
    run = read(table(reversed(ROWS), "hours acc"), "hours")  # a compute puts them in order too
    assert run.notes[:-1] == ("the rows were sorted by hours",) and list(run.reward) == R


def test_of_a_run_that_was_resumed_once_or_many_times_the_last_of_repeated_steps_counts():
    assert points(table(RESUMED)) == [*RESUMED[:3], *RESUMED[5:]]
    again = [(2, 0.8), (3, 0.8), (2, 0.9), (3, 0.9), (4, 0.9), (5, 1)]  # twice from one step: the first came no further
    assert points(table([*RESUMED, *again])) == [*RESUMED[:2], *again[2:]]


def test_a_compute_that_each_row_holds_for_itself_or_that_starts_anew_is_added_up_if_asked():
    rows = [(1, 30, ""), (2, 20, 0.2), (3, 40, ""), (4, 10, 0.3)]
    # 30 + 20 = 50 at step 2, 50 + 40 + 10 = 100 at step 4: rows without an evaluation cost compute too.
    assert points(table(rows, "step s acc"), "s", cumulative="rows") == [(50, 0.2), (100, 0.3)]
    rows = zip(range(8), [1, 2, 3, 4, 5, 1, 2, 3], R)  # a total that starts anew after 5 hours
    assert [*read(table(rows, "step h acc"), "h", cumulative="parts").compute] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("scale", "rewards"), [("percent", [0, 25, 100]), ("pm1", [-1, -0.5, 1]), ("-2:6", [-2, 0, 6])]
)
def test_rewards_of_another_scale_become_pass_rates(scale, rewards):
    assert list(read(table(zip(range(3), rewards)), scale=scale).reward) == [0, 0.25, 1]


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the lines stand in docs/")
def test_the_lines_of_python_in_the_docs_make_a_table_of_a_console():
    page = (ROOT / "docs" / "forecasting.md").read_text(encoding="utf-8")
    lines = page.partition("## Other forms of logs")[2].partition("\n    import csv")[2].partition("\n\n")[0]
    program = "import csv" + lines.replace("\n    ", "\n").replace("train.log", str(DATA / "logs" / "verl.log"))
    subprocess.run([sys.executable, "-c", program], check=True)
    assert points(Path("train.csv").read_text(encoding="utf-8"), reward="val/acc") == ROWS


def test_columns_called_run_and_seed_tell_runs_apart():
    rows = [(c, r / n, run, seed) for c, r in ROWS for n, run, seed in ((1, "a", 1), (2, "a", 2), (3, "b", 2))]
    runs = foreign_logs.read_runs(written(table(rows, "step acc run seed")), "step", "acc")
    assert [run.name for run in runs] == ["a run a seed 1", "a run a seed 2", "a run b seed 2"]
    assert [(*run.compute, *run.reward) for run in runs] == [(*C, *(r / n for r in R)) for n in (1, 2, 3)]


def test_the_completions_of_an_evaluation_are_a_number_or_a_column():
    text = table([(*row, 7, 12) for row in ROWS], "step acc n completions")
    for asked, count in ((None, 12), (20, 20), ("n", 7)):
        assert read(text, completions=asked).completions == count


def test_of_our_own_log_which_begins_with_flags_the_evaluations_are_read_with_every_x():
    evals = [{"kind": "eval", "step": n, "gpu_hours": n / 10, "pass_rate": n / 50, "tokens": n} for n in range(12)]
    rows = [row for at in evals for row in (at | {"kind": "step", "pass_rate": 0.99}, at)]
    for virtual, asked, unit in (
        (None, None, "gpu_hours"),
        ("exact", None, "virtual gpu_hours"),
        (None, "tokens", "tokens"),
    ):
        run = read(jsonl([{"kind": "config", "flags": {"virtual": virtual}}, *rows]), asked, None, "log.jsonl")
        assert run.unit == unit and list(run.reward) == [n / 50 for n in range(12)]
    refuses("--reward NAME and --x NAME are needed", read, jsonl(evals), None, None, "log.jsonl", error=fit.BadInput)
