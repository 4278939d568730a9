"""Claims about plumbing/curves/logs.py, and fit.py's command line on logs of any trainer."""

import gzip
import json
import random
import shlex

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
TAKEN = [pytest.param(*row.values(), id=row["file"]) for row in data_rows("logs/taken")]


def pasted(refusal):
    """The flags of the command in which a refusal ends, as arguments of `logs.read_runs`."""
    words = shlex.split(str(refusal).partition("for instance: python fit.py ")[2])[1:]
    rewards = [word for flag, word in zip(words, words[1:]) if flag == "--reward"]
    return words[words.index("--x") + 1], rewards


@pytest.mark.parametrize("name, reward, compute, asks", TAKEN)
def test_a_log_is_read_at_once_or_by_the_command_in_which_its_refusal_ends(name, reward, compute, asks):
    given = {}
    if asks:
        with pytest.raises(fit.BadInput, match="--reward COLUMN is needed; there is .*for instance") as refusal:
            logs.read_runs(DATA / "logs" / name)
        x, rewards = pasted(refusal.value)
        assert (x, rewards) == (compute, [reward])
        given = {"compute": x, "reward": reward}
    (run,) = logs.read_runs(DATA / "logs" / name, **given)
    assert list(run.compute) == C and run.reward == pytest.approx(R)
    assert run.unit == compute and run.name == name.split(".")[0]
    assert told(run) == f"reward: {reward}, taken as a pass rate; compute: {compute}"


LOST = {  # a log of a form that is not read -> the remedy
    "columns.json": "got lists of cells, step, acc, betas, .*to_csv",
    "percent.csv": "acc holds '20.00%'.*sed 's/%//g' .*percent.csv > .*percent.csv.csv$",
    "blanks.txt": r"a table between blanks becomes one by: tr -s .*blanks.txt > .*blanks.txt.csv$",
    "resumed.csv": "step goes from 12 back to 3 and on to 12, .*split the file, .*a column called run",
}


@pytest.mark.parametrize("name", LOST)
def test_what_is_not_read_is_refused_with_the_remedy(name):
    refused(LOST[name], DATA / "logs" / name, "step", "acc")


NO_NUMBERS = {"decimal comma": "0,5", "thousands": "500,000", "a fraction": "3/4", "a unit": "2.3s"}


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_a_cell_that_is_no_number_is_refused_with_its_name_and_text(tmp_path, name):
    cell = NO_NUMBERS[name]
    said = f"acc holds '{cell}', expected a number"
    refused(said, write(tmp_path / "a.csv", f'step,acc\n1,"{cell}"\n2,0.5\n'), "step", "acc")
    refused(said, write(tmp_path / "a.log", f"step: 1 acc: {cell}\nstep: 2 acc: 0.5\n"), "step", "acc")


def test_a_line_that_gives_a_name_two_values_is_refused_where_that_name_is_asked_for(tmp_path):
    path = write(tmp_path / "a.log", each("step: {c} train reward: {r} val reward: 0.1"))
    refused("reward holds '0.2 and 0.1'", path, "step", "reward")


def test_a_file_of_two_columns_needs_no_name_if_one_rises_and_the_other_lies_in_0_to_1(table):
    for names, rows in ((("flops", "rate"), ROWS[::1]), (("rate", "flops"), [(r, c) for c, r in ROWS])):
        (run,) = logs.read_runs(table(*names, rows=rows))
        assert run.unit == "flops" and list(run.reward) == R
    refused("--reward COLUMN is needed", table("a", "b", rows=[(r, r / 2) for r in R]))  # either could be the rate
    refused("--reward COLUMN is needed", table("step", "return", rows=[(c, 100 * r) for c, r in ROWS]))


def test_trls_reward_beside_an_equal_one_is_one_column(table):
    rows = [(c, r, r, 1 - r) for c, r in ROWS]
    path = table("step", "reward", "rewards/acc", "loss", rows=rows)
    refused("there is step, reward, loss; for instance", path)
    assert (
        list(logs.read_run(table("step", "a/acc", "b/acc", rows=[(c, r, r) for c, r in ROWS]), None, "acc").reward) == R
    )


def test_a_refusal_names_the_columns_of_several_runs_and_the_range_of_the_rewards(table):
    path = table("Step", "a - val/acc", "b - val/acc", rows=[(c, r, r / 2) for c, r in ROWS])
    with pytest.raises(fit.BadInput) as refusal:
        logs.read_runs(path, reward="val/acc")
    assert pasted(refusal.value) == ("Step", ["a - val/acc", "b - val/acc"])
    refused("--scale=-1:2", table("step", "score", "loss", rows=[(c, 3 * r - 1, 0) for c, r in ROWS]))


def test_without_a_column_of_compute_the_rows_are_counted_if_asked(tmp_path):
    path = write(tmp_path / "a.txt", each("'reward': '{r}'"))
    refused("--reward reward --x row$", path)
    refused("--x COLUMN is needed; .*--x row$", path, None, "reward")
    assert list(logs.read_run(path, "row", "reward").compute) == list(range(1, 9))


def test_of_json_lines_that_are_cut_off_the_complete_ones_are_read_and_a_cut_off_state_is_refused(tmp_path):
    run = logs.read_run(write(tmp_path / "a.jsonl", JSONL[:-20]), None, "acc")
    assert list(run.reward) == R[:-1] and run.notes[0] == "left out 1 lines that are no row: 8"
    refused("it was cut off", write(tmp_path / "a.json", STATE[:-130]), None, "acc")


def test_several_lists_in_one_object_are_refused_by_name_and_one_is_found_wherever_it_stands(tmp_path):
    two = {"a": {"log": LOG}, "b": {"log": LOG}}
    refused("got 2 lists of rows, a.log, b.log, expected one", write(tmp_path / "a.json", json.dumps(two)), None, "acc")
    for one in ({"a": {"log": LOG}, "n": [1, 2]}, LOG):
        assert list(logs.read_run(write(tmp_path / "a.json", json.dumps(one, indent=1)), None, "acc").reward) == R


def test_a_table_without_names_is_refused_with_the_line_that_adds_them(tmp_path):
    refused("expected the names of the columns; .*sed '1i step,pass_rate'", write(tmp_path / "a.csv", "0,0.2\n1,0.3\n"))


def test_steps_that_start_anew_in_each_epoch_are_one_run_whose_rows_count(table):
    (run,) = logs.read_runs(
        table("epoch", "step", "acc", rows=[(n // 5, n % 5, n / 20) for n in range(20)]), None, "acc"
    )
    assert list(run.compute) == list(range(1, 21)) and list(run.reward) == [n / 20 for n in range(20)]
    assert "step starts anew with each epoch, so the rows are counted" in run.notes and told(run).endswith(": row")


def test_event_files_parquet_and_excel_are_refused_with_the_way_out(tmp_path):
    for name, data in (("events.out.tfevents.1", b"x"), ("a.parquet", b"PAR1\0\1"), ("a.xlsx", b"PK\3\4\0\1")):
        refused("as CSV", write(tmp_path / name, data))
    refused("as CSV", tmp_path)


def test_a_column_that_is_asked_for_matches_one_or_those_there_are_are_named(table):
    path = table("a/hours", "x/acc", "y/acc", "precision", rows=[(1, 0.2, 0.3, 0.4)])
    run = logs.read_run(path, "hours", "x/acc")
    assert (run.unit, *run.reward) == ("a/hours", 0.2)
    refused("--reward acc matches several columns; there is .*--reward x/acc --reward y/acc", path, "hours", "acc")
    refused("--reward .*no column; there is a/hours, x/acc, y/acc, precision; for", path, "hours", "precison")


def test_what_is_left_out_is_counted(tmp_path):
    run = logs.read_run(write(tmp_path / "a.csv", GOOD + "13,nan\n14\n"), None, "acc")
    assert run.notes[:-1] == ("rows left out without a number for acc or step: 2",) and list(run.reward) == R


RESUMED = [(0, 0.2), (1, 0.3), (2, 0.4), (3, 0.9), (4, 0.9), (3, 0.5), (4, 0.6), (5, 0.7)]  # after step 4, from step 2


def test_of_a_run_that_was_resumed_once_or_many_times_the_last_of_repeated_steps_counts(table):
    run = logs.read_run(table("step", "acc", rows=RESUMED), None, "acc")
    assert list(run.compute) == [0, 1, 2, 3, 4, 5] and list(run.reward) == [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert run.notes[:-1] == ("rows left out of repeated steps, of which the last counts: 2",)
    twice = logs.read_run(table("step", "acc", rows=[*RESUMED, (5, 0.8), (6, 0.9)]), None, "acc")
    assert list(twice.compute) == list(range(7)) and list(twice.reward)[-2:] == [0.8, 0.9]


@pytest.mark.parametrize("rows", [ROWS + AGAIN, RESUMED[:-1], RESUMED[:-2], ROWS[::-1]])
def test_other_steps_that_fall_back_are_refused_with_the_way_out(table, rows):
    refused(
        "back to .*split the file, or tell runs apart by a column called run",
        table("step", "acc", rows=rows),
        None,
        "acc",
    )


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
    for r0, scale in ((0.19, ()), (-0.62, ("--scale", "pm1"))):  # -0.62 is 0.19 of the way from -1 to 1
        rows = [(c, 2 * r - 1 if scale else r) for c, r in ROWS[1:]]
        cli.main([str(table("step", "acc", rows=rows)), "--reward=acc", f"--r0={r0}", "--fit-from=0", "--json", *scale])
        found = json.loads(capsys.readouterr().out)["runs"][0]
        assert found["R_0"] == pytest.approx(r0, abs=1e-9) and found["points"] == 7


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


ORDERS = {"one after the other": lambda rows: rows, "side by side": lambda rows: sorted(rows, key=lambda row: row[0])}


@pytest.mark.parametrize("order", ORDERS)
def test_columns_called_run_and_seed_tell_runs_apart(table, order):
    rows = ORDERS[order](labelled(run=["a", "b"]) + [(1, 0.1, "c"), (2, 0.1, "c")])  # the third run crashed
    one, other = logs.read_runs(table("step", "acc", "run", rows=rows), None, "acc")
    assert (one.name, other.name) == ("a run a", "a run b")
    assert (list(one.reward), list(other.reward)) == (R, [r / 2 for r in R]) and list(other.compute) == C
    assert "left out 2 rows of run c: 2 points" in one.notes
    rows = ORDERS[order](labelled(run=["x", "x", "y", "y"], seed=[1, 2] * 2))
    runs = logs.read_runs(table("step", "acc", "run", "seed", rows=rows), None, "acc")
    assert [run.name for run in runs] == [f"a run {run} seed {seed}" for run in "xy" for seed in (1, 2)]
    assert [list(run.reward) for run in runs] == [[r / n for r in R] for n in (1, 2, 3, 4)]


def test_a_seed_that_changes_in_each_row_is_refused(table):
    refused(
        "tell 8 runs apart, none of 5 points",
        table("step", "acc", "seed", rows=[(*row, row[0]) for row in ROWS]),
        None,
        "acc",
    )


def test_single_completions_are_refused_and_rows_that_are_written_twice_are_not(table):
    answers = [(c, int(i < 4 * r)) for c, r in ROWS for i in range(4)]  # 1 of 4 right at step 0, …
    refused("average the rows of one step", table("step", "acc", rows=answers), None, "acc")
    twice = table("step", "acc", rows=[row for row in ROWS for _ in range(2)])
    assert list(logs.read_run(twice, None, "acc").compute) == C


def test_epochs_that_trl_rounds_are_refused_and_the_command_counts_rows(tmp_path):
    # 361 rows in 0.04 epochs, printed with two decimals: five values.
    rates = np.linspace(0.2, 0.7, 361)
    text = "".join(f"{{'reward': '{r:.4f}', 'epoch': '{n / 9000:.2f}'}}\n" for n, r in enumerate(rates))
    path = write(tmp_path / "a.log", text)
    refused("epoch has 5 values in 361 rows.*--x row counts", path, "epoch", "reward")
    refused("--reward reward --x row$", path)
    assert list(logs.read_run(path, "row", "reward").compute) == list(range(1, 362))


def test_the_completions_of_an_evaluation_are_a_number_or_a_column(table):
    path = table("step", "acc", "n", "completions", rows=[(*row, 7, 12) for row in ROWS])
    for asked, reads in ((None, 12), (20, 20), ("n", 7)):
        assert logs.read_run(path, None, "acc", completions=asked).completions == reads
    for asked in ("0", "m", "nan"):
        refused("--completions", path, None, "acc", completions=asked)
