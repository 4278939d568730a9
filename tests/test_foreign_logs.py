"""Claims about plumbing/foreign_logs.py, and fit.py's command line on logs of any trainer."""

import gzip
import json
import random
import shlex

import pytest
from conftest import DATA, jsonl
from conftest import rows as data_rows

import fit
from plumbing import curves, foreign_logs

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
        foreign_logs.read_run(*asked, **options)


GOOD = delimited()
LOG = [{"step": c, "loss": 1.0, "acc": r} for c, r in ROWS]
JSONL = jsonl(LOG)
STATE = json.dumps({"epoch": 1, "log_history": [*LOG, {"train_loss": 0.1}], "global_step": 12}, indent=2)
# Files that say the same in the forms of many trainers and tools; the columns of reward and compute in each.
TAKEN = [pytest.param(*row.values(), id=row["file"]) for row in data_rows("logs/taken")]


def pasted(refusal):
    """The flags of the command in which a refusal ends, as arguments of `foreign_logs.read_runs`."""
    words = shlex.split(str(refusal).partition("for instance: python fit.py ")[2])[1:]
    rewards = [word for flag, word in zip(words, words[1:]) if flag == "--reward"]
    return words[words.index("--x") + 1], rewards


@pytest.mark.parametrize("name, reward, compute, asks", TAKEN)
def test_a_log_is_read_at_once_or_by_the_command_in_which_its_refusal_ends(name, reward, compute, asks):
    given = {}
    if asks:
        with pytest.raises(fit.BadInput, match="--reward COLUMN is needed; there is .*for instance") as refusal:
            foreign_logs.read_runs(DATA / "logs" / name)
        x, rewards = pasted(refusal.value)
        assert (x, rewards) == (compute, [reward])
        given = {"compute": x, "reward": reward}
    (run,) = foreign_logs.read_runs(DATA / "logs" / name, **given)
    assert list(run.compute) == C and run.reward == pytest.approx(R)
    assert run.unit == compute and run.name == name.split(".")[0]
    assert told(run) == f"reward: {reward}, taken as a pass rate; compute: {compute}"


TWO = {"a": {"log": LOG}, "b": {"log": LOG}}
RESUMED = [(0, 0.2), (1, 0.3), (2, 0.4), (3, 0.9), (4, 0.9), (3, 0.5), (4, 0.6), (5, 0.7)]  # after step 4, from step 2
BACK = "back to .*split the file, or tell runs apart by a column called run"
ANSWERS = [(c, int(i < 4 * r)) for c, r in ROWS for i in range(4)]  # single completions: 1 of 4 right at step 0, …
ROUNDED = "reward,epoch\n" + "".join(f"{n / 500},{n / 9000:.2f}\n" for n in range(361))  # as TRL rounds epochs
REFUSED = [  # the file, its text (None: a log of DATA), the reward, the compute, what is said
    ("columns.json", None, "acc", "step", "got lists of cells, step, acc, betas, .*to_csv"),
    ("percent.csv", None, "acc", "step", "acc holds '20.00%'.*sed 's/%//g' .*percent.csv > .*percent.csv.csv$"),
    ("blanks.txt", None, "acc", "step", "a table between blanks becomes one by: tr -s .*blanks.txt.csv$"),
    ("resumed.csv", None, "acc", "step", "step goes from 12 back to 3 and on to 12, .*split the file"),
    ("a.csv", 'step,acc\n1,"0,5"\n2,0.5\n', "acc", "step", "acc holds '0,5', expected a number"),
    ("a.log", "step: 1 acc: 3/4\nstep: 2 acc: 0.5\n", "acc", "step", "acc holds '3/4', expected a number"),
    ("a.log", each("step: {c} train acc: {r} val acc: 0.1"), "acc", "step", "acc holds '0.2 and 0.1'"),
    ("a.txt", each("'reward': '{r}'"), None, None, "--reward reward --x row$"),
    ("a.txt", each("'reward': '{r}'"), "reward", None, "--x COLUMN is needed; .*--x row$"),
    ("a.json", json.dumps(TWO), "acc", None, "got 2 lists of rows, a.log, b.log, expected one"),
    ("a.json", STATE[:-130], "acc", None, "it was cut off"),
    ("a.csv", "0,0.2\n1,0.3\n", None, None, "expected the names of the columns; .*sed '1i step,pass_rate'"),
    ("events.out.tfevents.1", "x", None, None, "as CSV"),
    ("a.parquet", "PAR1", None, None, "as CSV"),
    (".", None, None, None, "as CSV"),
    ("a.csv", delimited(ROWS + AGAIN), "acc", None, BACK),
    ("a.csv", delimited(RESUMED[:-1]), "acc", None, BACK),
    ("a.csv", delimited(ROWS[::-1]), "acc", None, BACK),
    ("a.csv", delimited(ANSWERS), "acc", None, "average the rows of one step"),
    ("a.csv", delimited([(c, r, c) for c, r in ROWS], ("step", "acc", "seed")), "acc", None, "tell 8 runs apart"),
    ("a.csv", delimited([(1.7e9 + c, r) for c, r in ROWS], ("time", "acc")), "acc", "time", "expected compute since"),
    ("a.csv", ROUNDED, "reward", "epoch", "epoch has 5 values in 361 rows.*--x row counts"),
    ("a.csv", delimited([(c - 1, r) for c, r in ROWS]), "acc", None, "got step from -1 to 11, expected compute since"),
]


@pytest.mark.parametrize("name, text, reward, compute, said", REFUSED)
def test_what_is_not_read_is_refused_with_the_remedy(tmp_path, name, text, reward, compute, said):
    path = DATA / "logs" / name if text is None else write(tmp_path / name, text)
    refused(said, path, compute, reward)


def test_a_file_of_two_columns_needs_no_name_if_one_rises_and_the_other_lies_in_0_to_1(table):
    for names, rows in ((("flops", "rate"), ROWS[::1]), (("rate", "flops"), [(r, c) for c, r in ROWS])):
        (run,) = foreign_logs.read_runs(table(*names, rows=rows))
        assert run.unit == "flops" and list(run.reward) == R
    refused("--reward COLUMN is needed", table("a", "b", rows=[(r, r / 2) for r in R]))  # either could be the rate
    refused("--reward COLUMN is needed", table("step", "return", rows=[(c, 100 * r) for c, r in ROWS]))


def test_trls_reward_beside_an_equal_one_is_one_column(table):
    rows = [(c, r, r, 1 - r) for c, r in ROWS]
    path = table("step", "reward", "rewards/acc", "loss", rows=rows)
    refused("there is step, reward, loss; for instance", path)
    assert (
        list(
            foreign_logs.read_run(
                table("step", "a/acc", "b/acc", rows=[(c, r, r) for c, r in ROWS]), None, "acc"
            ).reward
        )
        == R
    )


def test_a_refusal_names_the_columns_of_several_runs_and_the_range_of_the_rewards(table):
    path = table("Step", "a - val/acc", "b - val/acc", rows=[(c, r, r / 2) for c, r in ROWS])
    with pytest.raises(fit.BadInput) as refusal:
        foreign_logs.read_runs(path, reward="val/acc")
    assert pasted(refusal.value) == ("Step", ["a - val/acc", "b - val/acc"])
    refused("--scale=-1:2", table("step", "score", "loss", rows=[(c, 3 * r - 1, 0) for c, r in ROWS]))


def test_of_json_lines_that_are_cut_off_the_complete_ones_are_read_and_a_list_wherever_it_stands(tmp_path):
    run = foreign_logs.read_run(write(tmp_path / "a.jsonl", JSONL[:-20]), None, "acc")
    assert list(run.reward) == R[:-1] and run.notes[0] == "left out 1 lines that are no row: 8"
    for one in ({"a": {"log": LOG}, "n": [1, 2]}, LOG):
        assert (
            list(foreign_logs.read_run(write(tmp_path / "a.json", json.dumps(one, indent=1)), None, "acc").reward) == R
        )


def test_steps_that_start_anew_in_each_epoch_are_one_run_whose_rows_count(table):
    (run,) = foreign_logs.read_runs(
        table("epoch", "step", "acc", rows=[(n // 5, n % 5, n / 20) for n in range(20)]), None, "acc"
    )
    assert list(run.compute) == list(range(1, 21)) and list(run.reward) == [n / 20 for n in range(20)]
    assert "step starts anew with each epoch, so the rows are counted" in run.notes and told(run).endswith(": row")


def test_a_column_that_is_asked_for_matches_one_or_those_there_are_are_named(table):
    path = table("a/hours", "x/acc", "y/acc", "precision", rows=[(1, 0.2, 0.3, 0.4)])
    run = foreign_logs.read_run(path, "hours", "x/acc")
    assert (run.unit, *run.reward) == ("a/hours", 0.2)
    refused("--reward acc matches several columns; there is .*--reward x/acc --reward y/acc", path, "hours", "acc")
    refused("--reward .*no column; there is a/hours, x/acc, y/acc, precision; for", path, "hours", "precison")


def test_what_is_left_out_is_counted(tmp_path):
    run = foreign_logs.read_run(write(tmp_path / "a.csv", GOOD + "13,nan\n14\n"), None, "acc")
    assert run.notes[:-1] == ("rows left out without a number for acc or step: 2",) and list(run.reward) == R


def test_of_a_run_that_was_resumed_once_or_many_times_the_last_of_repeated_steps_counts(table):
    run = foreign_logs.read_run(table("step", "acc", rows=RESUMED), None, "acc")
    assert list(run.compute) == [0, 1, 2, 3, 4, 5] and list(run.reward) == [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert run.notes[:-1] == ("rows left out of repeated steps, of which the last counts: 2",)
    twice = foreign_logs.read_run(table("step", "acc", rows=[*RESUMED, (5, 0.8), (6, 0.9)]), None, "acc")
    assert list(twice.compute) == list(range(7)) and list(twice.reward)[-2:] == [0.8, 0.9]


def test_compute_of_each_row_is_refused_and_added_up_if_asked_but_no_running_total(table):
    path = table("step", "seconds", "acc", rows=[(1, 30, ""), (2, 20, 0.2), (3, 40, ""), (4, 10, 0.3)])
    refused("seconds falls, .*if each row holds only its own, add --cumulative", path, "seconds", "acc")
    # 30 + 20 = 50 at step 2, 50 + 40 + 10 = 100 at step 4: rows without an evaluation cost compute too.
    assert list(foreign_logs.read_run(path, "seconds", "acc", cumulative=True).compute) == [50, 100]
    for clock in (C, [1, 2, 3, 4, 5, 1, 2, 3]):  # also one that is set back once
        path = table("step", "hours", "acc", rows=zip(C, clock, R))
        refused("got --cumulative, but hours rises like a running total", path, "hours", "acc", cumulative=True)


@pytest.mark.parametrize(
    ("scale", "rewards"), [("percent", [0, 25, 100]), ("pm1", [-1, -0.5, 1]), ("-2:6", [-2, 0, 6])]
)
def test_rewards_of_another_scale_become_pass_rates(table, scale, rewards):
    path = table("step", "acc", rows=zip(range(3), rewards))
    assert list(foreign_logs.read_run(path, None, "acc", scale).reward) == [0, 0.25, 1]


def test_r0_from_the_command_line_is_exact(table, capsys):
    path = table("step", "acc", rows=[(c, 2 * r - 1) for c, r in ROWS[1:]])
    curves.main([path, "--reward=acc", "--r0=-0.62", "--fit-from=0", "--json", "--scale", "pm1"])
    found = json.loads(capsys.readouterr().out)["runs"][0]
    assert found["R_0"] == pytest.approx(-0.62, abs=1e-9) and found["points"] == 7


# ---- Files that are no logs: exit code 2, one line, no traceback ----

NOISE = random.Random(0).randbytes(5000)
PACKED = gzip.compress(GOOD.encode(), mtime=0)
BAD = {
    "empty": "", "noise": NOISE, "half.gz": PACKED[:-12], "broken.gz": PACKED[:20] + NOISE,
    "utf16_without_mark": GOOD.encode("utf-16-le"), "header": "step,acc\n",
    "megabyte_header": f"step,{'a' * 10**6}\n1,0.5\n", "megabyte_line": '{"step": ' + "1" * 10**6 + "}\n",
    "open_quote": 'step,acc\n"1,0.2\n' + GOOD * 3, "twice": delimited(names=("acc", "acc")),
    "long_row": GOOD + "13,0.7,0.8\n",
    "words": GOOD.replace("0.5\n", "high\n"),
    "deep": '{"a":' * 10**5,
    "list_cell": JSONL.replace("0.5}", "[0.5]}"),
    "other_names": JSONL.replace("acc", "perplexity"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*BAD, "/dev/zero", "."])
def test_a_file_that_is_no_log_ends_with_code_2_and_one_line(tmp_path, capsys, name):
    path = write(tmp_path / name, BAD[name]) if name in BAD else name
    with pytest.raises(SystemExit) as end:
        curves.main([str(path), "--reward", "acc", "--fit-from", "0", "-o", str(tmp_path / "a.png")])
    out, error = capsys.readouterr()
    assert end.value.code == 2 and not out and not (tmp_path / "a.png").exists()
    assert error.startswith("fit.py: ") and error.count("\n") == 1
    assert error[:-1].isprintable() and len(error) < 1000


# ---- Several runs in a file, epochs, counts ----


@pytest.mark.parametrize("order", [lambda row: row[2], lambda row: row[0]], ids=["one by one", "side by side"])
def test_columns_called_run_and_seed_tell_runs_apart(table, order):
    rows = [(c, r / n, run, seed) for n, run, seed in ((1, "a", 1), (2, "a", 2), (3, "b", 2)) for c, r in ROWS]
    rows = sorted([*rows, (1, 0.1, "c", 1), (2, 0.1, "c", 1)], key=order)  # the fourth run crashed
    runs = foreign_logs.read_runs(table("step", "acc", "run", "seed", rows=rows), None, "acc")
    assert [run.name for run in runs] == ["a run a seed 1", "a run a seed 2", "a run b seed 2"]
    assert [list(run.reward) for run in runs] == [[r / n for r in R] for n in (1, 2, 3)]
    assert list(runs[2].compute) == C and "left out 2 rows of run c seed 1: 2 points" in runs[0].notes


def test_rows_that_are_written_twice_are_read_once(table):
    twice = table("step", "acc", rows=[row for row in ROWS for _ in range(2)])
    assert list(foreign_logs.read_run(twice, None, "acc").compute) == C


def test_the_completions_of_an_evaluation_are_a_number_or_a_column(table):
    path = table("step", "acc", "n", "completions", rows=[(*row, 7, 12) for row in ROWS])
    for asked, reads in ((None, 12), (20, 20), ("n", 7)):
        assert foreign_logs.read_run(path, None, "acc", completions=asked).completions == reads
    for asked in ("0", "m", "nan"):
        refused("--completions", path, None, "acc", completions=asked)


@pytest.mark.parametrize("virtual, unit", [(None, "gpu_hours"), ("exact", "virtual gpu_hours")])
def test_device_hours_are_called_virtual_in_a_log_of_virtual_time_alone(tmp_path, virtual, unit):
    rows = [{"kind": "config", "flags": {"virtual": virtual}}]
    rows += [{"kind": "eval", "step": n, "gpu_hours": n / 10, "pass_rate": n / 50, "tokens": n} for n in range(12)]
    (tmp_path / "log.jsonl").write_text(jsonl(rows))
    [run] = foreign_logs.read_runs(tmp_path)
    assert run.unit == unit
