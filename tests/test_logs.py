"""Claims about plumbing/curves/tables.py, plumbing/curves/logs.py and fit.py's command line on logs of any trainer."""

import gzip
import json
import random

import numpy as np
import pytest
from conftest import DATA, jsonl
from conftest import rows as data_rows

import fit
from plumbing.curves import cli, logs

C = [0, 1, 2, 3, 4, 6, 8, 12]
R = [0.2, 0.26, 0.35, 0.43, 0.5, 0.6, 0.66, 0.72]
ROWS = list(zip(C, R))
AGAIN = [(c, r / 2) for c, r in ROWS]


def write(path, text):
    """Write text, or bytes; return the path."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def delimited(rows=ROWS, names=("step", "acc")):
    """A table as text, its cells separated by commas."""
    return "".join(",".join(map(str, row)) + "\n" for row in (names, *rows))


def each(form, rows=ROWS):
    """A line for each row."""
    return "".join(form.format(c=c, r=r) + "\n" for c, r in rows)


def told(run):
    """What the reader says it took."""
    return next(note for note in run.notes if note.startswith("reward: "))


@pytest.fixture
def table(tmp_path):
    """(columns beside the step, rows) -> the path of a.csv."""
    return lambda *names, rows: write(tmp_path / "a.csv", delimited(rows, names))


def refused(said, *asked, **options):
    """The log is refused with these words."""
    with pytest.raises(fit.BadInput, match=said):
        logs.read_run(*asked, **options)


GOOD = delimited()
LOG = [{"step": c, "loss": 1.0, "acc": r} for c, r in ROWS]
JSONL = jsonl(LOG)
STATE = json.dumps({"epoch": 1, "log_history": [*LOG, {"train_loss": 0.1}], "global_step": 12}, indent=2)
# Files that say the same in the forms of many trainers and tools; the columns of reward and compute in each.
AT_ONCE = [pytest.param(*row.values(), id=row["file"]) for row in data_rows("logs/taken")]


@pytest.mark.parametrize("name, reward, compute", AT_ONCE)
def test_every_form_gives_the_same_points_and_says_what_was_taken(name, reward, compute):
    (run,) = logs.read_runs(DATA / "logs" / name)
    assert list(run.compute) == C and run.reward == pytest.approx(R)
    assert run.unit == compute and run.name == name.split(".")[0]
    assert told(run) == f"reward: {reward}, taken as a pass rate; compute: {compute}"


def test_commas_divide_thousands_and_are_no_decimal_points_and_fractions_are_rates(tmp_path):
    text = 'step,x,loss\n1,"500,000",\n2,"1,000,000",\n3,"1,500,000.5",\n'
    assert list(logs.read_run(write(tmp_path / "a.csv", text), "step", "x").reward) == [5e5, 1e6, 1500000.5]
    half = write(tmp_path / "a.csv", text.replace("500,000", "0,5"))
    refused("x holds '0,5', expected a number; a decimal point in place of the comma", half, "step", "x")
    run = logs.read_run(write(tmp_path / "a.log", "".join(f"[step {n}/200] correct={n}/4\n" for n in range(5))))
    assert list(run.compute) == [0, 1, 2, 3, 4] and list(run.reward) == [0, 0.25, 0.5, 0.75, 1]  # of a step: the part


NEEDS_A_NAME = {  # a log that cannot be read at once -> the columns beside the step, what the refusal says
    "two rates": (("train/acc", "val/acc"), lambda r: (r, r), "; there is train/acc, val/acc$"),
    "a sum": (("reward", "rewards/a", "rewards/b"), lambda r: (r / 2, r / 4, r / 4),
              "there is reward, rewards/a, rewards/b"),
    "0 to 2": (("reward", "reward_std"), lambda r: (r, (r * (2 - r)) ** 0.5), "reward is none from 0 to 1, by its std"),
    "a return": (("ep_rew_mean", "fps"), lambda r: (r, 9), "there is step, ep_rew_mean, fps$"),
    "per cent": (("accuracy (%)",), lambda r: (r,), r"there is step, accuracy \(%\)$"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDS_A_NAME)
def test_what_may_be_no_pass_rate_is_refused_with_the_columns_there_are(table, name):
    names, cells, said = NEEDS_A_NAME[name]
    path = table("step", *names, rows=[(c, *cells(r)) for c, r in ROWS])
    refused(f"--reward COLUMN is needed.*{said}", path)
    run = logs.read_run(path, reward=names[0], scale="0:2")
    assert told(run) == f"reward: {names[0]}, as a pass rate by --scale 0:2; compute: step"


def test_without_a_column_of_compute_the_rows_are_counted_if_asked(tmp_path):
    path = write(tmp_path / "a.txt", each("'reward': '{r}'"))
    refused("COLUMN is needed; there is reward; --compute row counts the rows", path)
    assert list(logs.read_run(path, "row").compute) == list(range(1, 9))


@pytest.mark.parametrize("text", [STATE[:-130], JSONL[:-20]], ids=["state", "lines"])
def test_of_a_log_that_is_cut_off_the_complete_entries_are_read(tmp_path, text):
    run = logs.read_run(write(tmp_path / "a.json", text))
    assert 5 <= len(run.compute) <= 7 and list(run.reward) == R[: len(run.compute)]
    assert run.notes[0].startswith("left out what is no row, in line ")


@pytest.mark.parametrize(("outer", "inner"), [("epoch", "step"), ("round", "batch")])
def test_steps_that_start_anew_in_each_epoch_are_one_run_whose_rows_count(table, outer, inner):
    (run,) = logs.read_runs(table(outer, inner, "acc", rows=[(n // 5, n % 5, n / 20) for n in range(20)]))
    assert list(run.compute) == list(range(1, 21)) and list(run.reward) == [n / 20 for n in range(20)]
    assert run.notes[0] == f"{inner} starts anew with {outer}, so the rows are counted" and told(run).endswith(": row")


@pytest.mark.parametrize("names", [("a - val/acc", "b - val/acc"), ("acc_seed1", "acc_seed2")])
def test_columns_of_several_runs_are_several_runs(table, names):
    one, other = logs.read_runs(table("Step", *names, rows=[(c, r, "" if c == 3 else r / 2) for c, r in ROWS]))
    assert list(one.reward) == R and list(other.reward) == [r / 2 for c, r in ROWS if c != 3]
    assert (one.name, other.name) == tuple("a " + name.partition(" - ")[0] for name in names)
    assert told(one).endswith("compute: Step; 2 runs")


def test_event_files_parquet_and_excel_are_refused_with_the_way_out(tmp_path):
    for name, data in (("events.out.tfevents.1", b"x"), ("a.parquet", b"PAR1\0\1"), ("a.xlsx", b"PK\3\4\0\1")):
        refused("as CSV", write(tmp_path / name, data))
    refused("as CSV", tmp_path)


def test_a_column_that_is_asked_for_matches_one_or_those_there_are_are_named(table):
    path = table("a/hours", "x/acc", "y/acc", "precision", rows=[(1, 0.2, 0.3, 0.4)])
    run = logs.read_run(path, "hours", "x/acc")
    assert (run.unit, *run.reward) == ("a/hours", 0.2)
    refused("--reward .*acc matches several columns; there is x/acc, y/acc$", path, "hours", "acc")
    refused("--reward .*no column; there is a/hours, x/acc, y/acc, precision$", path, "hours", "precison")


def test_what_is_left_out_is_counted(tmp_path):
    run = logs.read_run(write(tmp_path / "a.csv", GOOD + "13,nan\n14\n"))
    assert run.notes[:-1] == ("1 rows without a number are left out",) and list(run.reward) == R


def test_of_repeated_steps_the_last_counts(table):
    # The run died after step 4 and went on from step 2.
    rows = [(0, 0.2), (1, 0.3), (2, 0.4), (3, 0.9), (4, 0.9), (3, 0.5), (4, 0.6), (5, 0.7)]
    run = logs.read_run(table("step", "acc", rows=rows))
    assert list(run.compute) == [0, 1, 2, 3, 4, 5] and list(run.reward) == [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert run.notes[:-1] == ("2 rows of repeated steps are left out; of each step the last counts",)


def test_compute_of_each_row_is_refused_and_added_up_if_asked_but_no_running_total(table):
    path = table("step", "seconds", "acc", rows=[(1, 30, ""), (2, 20, 0.2), (3, 40, ""), (4, 10, 0.3)])
    refused("seconds falls, .*if each row holds only its own, add --cumulative", path, "seconds", "acc")
    # 30 + 20 = 50 at step 2, 50 + 40 + 10 = 100 at step 4: rows without an evaluation cost compute too.
    assert list(logs.read_run(path, "seconds", "acc", cumulative=True).compute) == [50, 100]
    for clock in (C, [1, 2, 3, 4, 5, 1, 2, 3]):  # also one that is set back once
        path = table("step", "hours", "acc", rows=zip(C, clock, R))
        refused("got --cumulative, but hours rises like a running total", path, "hours", "acc", cumulative=True)


@pytest.mark.parametrize(("name", "start"), [("time", 1_700_000_000), ("step", -1)])
def test_a_time_of_day_and_steps_below_0_are_no_compute(table, name, start):
    path = table(name, "acc", rows=[(start + 60 * c, r) for c, r in ROWS])
    refused(f"got {name} from {start} to .*, expected compute since the start", path, name, "acc")


@pytest.mark.parametrize(
    ("scale", "rewards"), [("percent", [0, 25, 100]), ("pm1", [-1, -0.5, 1]), ("-2:6", [-2, 0, 6])]
)
def test_rewards_of_another_scale_become_pass_rates(table, scale, rewards):
    path = table("step", "acc", rows=zip(range(3), rewards))
    assert list(logs.read_run(path, None, "acc", scale).reward) == [0, 0.25, 1]


def test_r0_from_the_command_line_is_exact(table, capsys):
    cli.main([str(table("step", "acc", rows=ROWS[1:])), "--r0", "0.19", "--fit-from", "0", "--json"])
    found = json.loads(capsys.readouterr().out)["runs"][0]
    assert found["R_0"] == pytest.approx(0.19, abs=1e-9) and found["points"] == 7


# ---- Files that are no logs: exit code 2, one line, no traceback ----

NOISE = random.Random(0).randbytes(5000)
PACKED = gzip.compress(GOOD.encode())
BAD = {
    "empty": "", "noise": NOISE, "half.gz": PACKED[:-12], "broken.gz": PACKED[:20] + NOISE,
    "utf16_without_mark": GOOD.encode("utf-16-le"), "header": "step,acc\n",
    "megabyte_header": f"step,{'a' * 10**6}\n1,0.5\n", "megabyte_line": '{"step": ' + "1" * 10**6 + "}\n",
    "open_quote": 'step,acc\n"1,0.2\n' + GOOD * 3, "twice": delimited(names=("acc", "acc")),
    "long_row": GOOD + "13,0.7,0.8\n", "decimal_comma": GOOD.replace(".", ","),
    "words": GOOD.replace("0.5\n", "high\n"),
    "all_nan": delimited([(c, "nan") for c in C]), "one_step": delimited([(3, r) for _, r in ROWS]),
    "falls": delimited([(12 - c, r) for c, r in ROWS], ("gpu_hours", "acc")),
    "ones": delimited([(c, 1) for c in C]), "null": "null", "deep": '{"a":' * 10**5,
    "list_cell": JSONL.replace("0.5}", "[0.5]}"),
    "other_names": JSONL.replace("acc", "perplexity"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*BAD, "/dev/zero", "."])
def test_a_file_that_is_no_log_ends_with_code_2_and_one_line(tmp_path, capsys, name):
    path = write(tmp_path / name, BAD[name]) if name in BAD else name
    with pytest.raises(SystemExit) as end:
        cli.main([str(path), "--reward", "acc", "--fit-from", "0", "-o", str(tmp_path / "a.png")])
    out, error = capsys.readouterr()
    assert end.value.code == 2 and not out and not (tmp_path / "a.png").exists()
    assert error.startswith("fit.py: ") and error.count("\n") == 1
    assert error[:-1].isprintable() and len(error) < 1000


@pytest.mark.parametrize("before", ["[2025-01-01 10:00:00] start\n", "load\n" * 1500, "NCCL \0\n"])
def test_console_logs_are_read_whatever_stands_before_the_first_metric(tmp_path, before):
    run = logs.read_run(write(tmp_path / "a.log", before + each("step:{c} - critic/score/mean:{r}")))
    assert list(run.compute) == C and list(run.reward) == R


# ---- Several runs in a file, epochs, counts ----


def labelled(**values):
    """Rows (step, acc, a cell for each column) of up to four runs, one for each entry of the lists: the first is ROWS,
    the others have 1/2, 1/3, 1/4 of its pass rates."""
    return [(c, r / n, *cells) for n, cells in enumerate(zip(*values.values()), 1) for c, r in ROWS]


ORDERS = {
    "one after the other": lambda rows: rows,
    "side by side": lambda rows: sorted(rows, key=lambda row: row[0]),
    "the last row first": lambda rows: rows[::-1],
    "shuffled": lambda rows: random.Random(0).sample(rows, len(rows)),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_column_tells_runs_apart_whatever_the_order_of_the_rows(table, order):
    rows = ORDERS[order](labelled(run=["a", "b"]) + [(1, 0.1, "c"), (2, 0.1, "c")])  # the third run crashed
    one, other = logs.read_runs(table("step", "acc", "run", rows=rows), None, "acc")
    assert (one.name, other.name) == ("a run a", "a run b")
    assert (list(one.reward), list(other.reward)) == (R, [r / 2 for r in R]) and list(other.compute) == C


def test_two_columns_tell_runs_apart_that_one_does_not(table):
    rows = ORDERS["shuffled"](labelled(run=["x", "x", "y", "y"], seed=[1, 2] * 2, model=["m", "m", "n", "n"]))
    runs = logs.read_runs(table("step", "acc", "run", "seed", "model", rows=rows), None, "acc")
    assert [run.name for run in runs] == [f"a run {run} seed {seed}" for run in "xy" for seed in (1, 2)]
    assert [list(run.reward) for run in runs] == [[r / n for r in R] for n in (1, 2, 3, 4)]


def test_a_column_that_changes_within_a_run_does_not_split_it(table):
    resumed = ROWS[:7] + [(c, r + 0.01) for c, r in ROWS[3:]]  # at odd places both times: no column parts these
    for rows in (ROWS, resumed):
        rows = [(*row, "xy"[i % 2], "xy"[i % 2]) for i, row in enumerate(rows)]
        path = table("step", "acc", "group", "note", rows=rows)
        assert [list(run.compute) for run in logs.read_runs(path, None, "acc")] == [C]


@pytest.mark.parametrize("order", ["side by side", "the last row first", "shuffled"])
def test_rows_of_several_runs_or_of_single_completions_that_no_column_tells_apart_are_refused(table, order):
    answers = [(c, int(i < 4 * r)) for c, r in ROWS for i in range(4)]  # 1 of 4 right at step 0, …
    for rows in (ROWS + AGAIN, answers):
        path = table("step", "acc", rows=ORDERS[order](rows))
        refused("8 of .. rows repeat a step .*; average them, .* called 'run'", path)
    twice = table("step", "acc", rows=[row for row in ROWS for _ in range(2)])
    assert list(logs.read_run(twice, None, "acc").compute) == C


def test_epochs_that_trl_rounds_become_rows(tmp_path):
    # 361 rows in 0.04 epochs, printed with two decimals: five values.
    rates = np.linspace(0.2, 0.7, 361)
    text = "".join(f"{{'reward': '{r:.4f}', 'epoch': '{n / 9000:.2f}'}}\n" for n, r in enumerate(rates))
    run = logs.read_run(write(tmp_path / "a.log", text))
    assert list(run.compute) == list(range(1, 362))
    assert run.unit == "row" and run.notes[0] == "rows share a rounded epoch, so they are counted"


def test_the_completions_of_an_evaluation_are_a_number_or_a_column(table):
    path = table("step", "acc", "n", "completions", rows=[(*row, 7, 12) for row in ROWS])
    for asked, reads in ((None, 12), (20, 20), ("n", 7)):
        assert logs.read_run(path, None, "acc", completions=asked).completions == reads
    for asked in ("0", "m", "nan"):
        refused("--completions", path, None, "acc", completions=asked)
