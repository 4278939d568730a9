"""Claims about plumbing/logs.py and fit.py's command line: formats, what is left out, files that are no logs."""

import gzip
import json
import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import fit
from plumbing import fit_cli, logs

C = [0, 1, 2, 3, 4, 6, 8, 12]
R = [0.2, 0.26, 0.35, 0.43, 0.5, 0.6, 0.66, 0.72]
ROWS = list(zip(C, R))


def write(path, text):
    """Write text, or bytes; return the path."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def delimited(mark, head=("step", "acc"), rows=ROWS):
    """A table as text, its cells separated by `mark`."""
    return "".join(mark.join(map(str, row)) + "\n" for row in (head, *rows))


def console(form):
    """Console output: a line for each row, with unrelated lines in between."""
    lines = ["WARNING: something, else; entirely\n"]
    for c, r in ROWS:
        lines += [form.format(c=c, r=r), "\x1b[36m(worker)\x1b[0m loading: 5 - done\n"]
    return "".join(lines)


LOG = [{"step": c, "loss": 1.0, "acc": r} for c, r in ROWS]
FORMATS = {
    "a.csv": (delimited(","), "acc"),
    "a.tsv": (delimited("\t"), "acc"),
    "semicolons.csv": (delimited(";"), "acc"),
    "tabs.txt": (delimited("\t"), "acc"),
    "decimal_commas.csv": (delimited(";").replace(".", ","), "acc"),
    "a.jsonl": ("".join(json.dumps(row) + "\n" for row in LOG), "acc"),
    "list.json": (json.dumps(LOG, indent=1), "acc"),
    "trainer_state.json": (json.dumps({"log_history": LOG, "global_step": 12}, indent=2), "acc"),
    "one_line_trainer_state.json": (json.dumps({"log_history": LOG, "global_step": 12}), "acc"),
    "verl.log": (console("(main pid=7) step:{c} - timing/gen:18.859 - val/acc:np.float64({r}) - x/y:nan\n"), "val/acc"),
    "trl.log": (console("  5%|# | 1/20 [00:01]{{'loss': '0', 'step': {c}, 'acc': '{r}', 'lr': nan}}\n"), "acc"),
    "trl_numbers.txt": (console("{{'loss': 1e-06, 'step': {c}, 'acc': {r}}}\n"), "acc"),
    "wandb.csv": (
        '"Step","run-1 - val/acc","run-1 - val/acc__MIN","run-1 - val/acc__MAX"\n'
        + "".join(f'"{c}","{r}","{r}","{r}"\n"{c + 0.5}","","",""\n' for c, r in ROWS),
        None,
    ),
    "tensorboard.csv": (delimited(",", ("Wall time", "Step", "Value"), [(1.7e9 + c, c, r) for c, r in ROWS]), None),
    "reward.csv": (delimited(",", ("step", "reward", "kl"), [(c, r, 9) for c, r in ROWS]), None),
    "pandas.csv": (delimited(",", ("", "step", "acc"), [(9 - c, c, r) for c, r in ROWS]), "acc"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_points(tmp_path, name, packed):
    text, reward = FORMATS[name]
    path = write(tmp_path / (name + ".gz" * packed), gzip.compress(text.encode()) if packed else text)
    run = logs.read_run(path, None, reward)
    assert list(run.compute) == C and list(run.reward) == R and run.unit.lower() == "step"
    assert run.name == Path(name).stem


def test_trl_lines_without_a_step_count_by_epoch(tmp_path):
    text = "".join(f"{{'reward': '{r}', 'epoch': '{c / 100}'}}\n" for c, r in ROWS)
    run = logs.read_run(write(tmp_path / "trl.log", text))
    assert run.unit == "epoch" and run.compute[-1] == 0.12 and list(run.reward) == R


def test_a_column_may_be_named_by_its_end_if_that_is_unique(tmp_path):
    path = write(tmp_path / "a.csv", delimited(",", ("a/hours", "b - val/acc", "c - val/acc"), [(1, 0.2, 0.3)]))
    assert logs.read_run(path, "hours", "b - val/acc").unit == "a/hours"
    assert list(logs.read_run(path, "hours", "c - val/acc").reward) == [0.3]
    with pytest.raises(fit.BadInput, match="--reward acc matches several columns; there is b - val/acc, c - val/acc"):
        logs.read_run(path, "hours", "acc")


def test_a_missing_column_names_the_nearest(tmp_path):
    path = write(tmp_path / "a.csv", delimited(",", ("hours", "accuracy", "loss"), [(1, 0.2, 3)]))
    with pytest.raises(fit.BadInput, match="--reward acuracy matches no column; there is accuracy$"):
        logs.read_run(path, "hours", "acuracy")
    with pytest.raises(fit.BadInput, match="--compute COLUMN is needed; there is hours, accuracy, loss"):
        logs.read_run(path, None, "accuracy")


def test_rows_without_numbers_and_half_a_last_line_are_left_out_and_counted(tmp_path):
    text = FORMATS["a.jsonl"][0] + '{"step": 13, "acc": NaN}\n{"step": 14, "acc": "nan"}\n{"step": 15, "ac'
    run = logs.read_run(write(tmp_path / "a.jsonl", text), None, "acc")
    assert list(run.compute) == C
    assert run.notes == ("left out what is no row, in line 11", "2 rows without a number are left out")
    run = logs.read_run(write(tmp_path / "a.csv", delimited(",") + "13,\n14"), None, "acc")
    # An empty cell means no evaluation and needs no note; a row that ends early does.
    assert list(run.compute) == C and run.notes == ("1 rows have fewer cells than the header",)


def test_the_command_shows_what_was_left_out(tmp_path, capsys):
    path = write(tmp_path / "a.csv", delimited(",") + "13,nan\n")
    fit_cli.main([str(path), "--reward", "acc", "--fit-from", "0"])
    assert "  note: 1 rows without a number are left out" in capsys.readouterr().out


def test_of_repeated_steps_the_last_counts(tmp_path):
    # The run died after step 4 and went on from step 2.
    rows = [(0, 0.2), (1, 0.3), (2, 0.4), (3, 0.9), (4, 0.9), (3, 0.5), (4, 0.6), (5, 0.7)]
    path = write(tmp_path / "a.csv", delimited(",", ("step", "acc", "hours"), [(*row, row[0] / 10) for row in rows]))
    for compute, unit in (("step", 1), ("hours", 0.1)):
        run = logs.read_run(path, compute, "acc")
        assert run.compute == pytest.approx(np.arange(6) * unit) and list(run.reward) == [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
        assert run.notes == ("2 rows of repeated steps are left out; of each step the last counts",)


def test_compute_of_each_row_is_refused_and_added_up_if_asked(tmp_path):
    rows = [(1, 30, ""), (2, 20, 0.2), (3, 40, ""), (4, 10, 0.3)]
    path = write(tmp_path / "a.csv", delimited(",", ("step", "seconds", "acc"), rows))
    with pytest.raises(fit.BadInput, match="seconds falls from 20 to 10; .* --cumulative"):
        logs.read_run(path, "seconds", "acc")
    # 30 + 20 = 50 at step 2, 50 + 40 + 10 = 100 at step 4: rows without an evaluation cost compute too.
    assert list(logs.read_run(path, "seconds", "acc", cumulative=True).compute) == [50, 100]


CLOCKS = {  # compute at eight steps -> what to do about it
    "a clock that a resumed run set back": ([1, 2, 3, 4, 5, 1, 2, 3], "5 to 1; did the clock start anew when the run"),
    "the last row first": ([9, 8, 7, 6, 5, 4, 3, 2], "9 to 8; is the last row the first\\? sort the rows"),
    "no order": (
        [5, 2, 7, 1, 8, 3, 6, 4],
        "5 to 2; if .* its own, add --cumulative; if .* running total, sort the rows",
    ),
}


@pytest.mark.parametrize("name", CLOCKS)
def test_compute_that_falls_is_refused_with_what_to_do(tmp_path, name):
    clock, remedy = CLOCKS[name]
    path = write(tmp_path / "a.csv", delimited(",", ("step", "hours", "acc"), zip(C, clock, R)))
    with pytest.raises(fit.BadInput, match=f"hours falls from {remedy}"):
        logs.read_run(path, "hours", "acc")


def test_an_iteration_that_falls_back_is_no_clock(tmp_path):
    path = write(tmp_path / "a.csv", delimited(",", ("iteration", "acc"), ROWS + ROWS[3:]))
    with pytest.raises(
        fit.BadInput, match="iteration falls from 12 to 3; if the run was resumed, call the column 'step'"
    ):
        logs.read_run(path, "iteration", "acc")


@pytest.mark.parametrize("clock", [C, [1, 2, 3, 4, 5, 1, 2, 3]], ids=["rises", "is set back once"])
def test_a_running_total_is_not_added_up(tmp_path, clock):
    path = write(tmp_path / "a.csv", delimited(",", ("step", "hours", "acc"), zip(C, clock, R)))
    with pytest.raises(fit.BadInput, match="got --cumulative, but hours rises like a running total"):
        logs.read_run(path, "hours", "acc", cumulative=True)


def test_the_same_compute_in_each_row_is_added_up(tmp_path):
    path = write(tmp_path / "a.csv", delimited(",", ("seconds", "acc"), [(10, r) for r in R]))
    assert list(logs.read_run(path, "seconds", "acc", cumulative=True).compute) == [10, 20, 30, 40, 50, 60, 70, 80]


def test_a_time_of_day_is_no_compute(tmp_path):
    for start, refused in ((1_700_000_000, True), (0, False)):
        path = write(tmp_path / "a.csv", delimited(",", ("time", "acc"), [(start + 60 * c, r) for c, r in ROWS]))
        with pytest.raises(fit.BadInput, match="since the start; is it a time") if refused else nullcontext():
            assert logs.read_run(path, "time", "acc").compute[-1] == 720


@pytest.mark.parametrize(
    ("scale", "rewards"),
    [("percent", [0, 25, 100]), ("pm1", [-1, -0.5, 1]), ("-2:6", [-2, 0, 6]), (None, [0, 0.25, 1])],
)
def test_rewards_of_another_scale_become_pass_rates(tmp_path, scale, rewards):
    path = write(tmp_path / "a.csv", delimited(",", rows=zip(range(3), rewards)))
    assert list(logs.read_run(path, None, "acc", scale).reward) == [0, 0.25, 1]


@pytest.mark.parametrize("rewards", [[-0.2, 0.1, 0.5, 0.6, 0.7, 0.8], [0.1, 0.2, 0.5, 0.9, 1.2, 1.5]])
def test_rewards_outside_0_to_1_name_the_scale(tmp_path, capsys, rewards):
    path = write(tmp_path / "a.csv", delimited(",", rows=zip(range(6), rewards)))
    with pytest.raises(SystemExit) as end:
        fit_cli.main([str(path), "--reward", "acc"])
    assert end.value.code == 2 and "--scale percent, --scale pm1 (-1 to 1) or --scale LO:HI" in capsys.readouterr().err


def test_r0_from_the_command_line_is_exact(tmp_path, capsys):
    path = write(tmp_path / "a.csv", delimited(",", rows=ROWS[1:]))
    fit_cli.main([str(path), "--reward", "acc", "--r0", "0.19", "--fit-from", "0", "--json"])
    found = json.loads(capsys.readouterr().out)["runs"][0]
    assert found["R_0"] == pytest.approx(0.19, abs=1e-9) and found["points"] == 7
    assert not any("R_0 assumed" in text for text in found["notes"])


def test_stop_rule_on_the_command_line(tmp_path, capsys):
    steps = range(40)
    early = [(c, fit.sigmoid(c, 0.8, 1.5, 40, 0.2)) for c in steps]  # the pass rate still rises fast
    done = [(c, fit.sigmoid(c, 0.8, 4, 3, 0.2)) for c in steps]  # at 13 C_mid 0.6 / 13^4 = 0.00002 is missing
    for rows, verdict in ((early, "go on"), (done, "stop")):
        path = write(tmp_path / "a.csv", delimited(",", rows=rows))
        fit_cli.main([str(path), "--reward", "acc", "--stop-rule", "--gain", "0.02", "--json"])
        (row,) = json.loads(capsys.readouterr().out)["stop_rule"]
        assert row["verdict"] == verdict and row["C"] == 39 and (row["P"] >= 0.9) == (verdict == "stop")


def test_log_f_of_a_jump_is_drawn(tmp_path, capsys):
    # B is in the thousands and C_mid is 1e18: C_mid^B overflows, its logarithm does not.
    rows = [(1e17 * c, 0.2 if c < 10 else 0.8 + 0.001 * (c % 3)) for c in range(1, 21)]
    path = write(tmp_path / "a.csv", delimited(",", rows=rows))
    fit_cli.main([str(path), "--reward", "acc", "--log-f", "-o", str(tmp_path / "a.png")])
    assert "B and C_mid are not determined" in capsys.readouterr().out and (tmp_path / "a.png").stat().st_size > 10000


@pytest.mark.parametrize("end", [0.95, 0.02])
def test_nothing_impossible_is_shown(tmp_path, capsys, end):
    rows = [(c, abs(end * c / 30 + 0.01 * (-1) ** c)) for c in range(31)]
    path = write(tmp_path / "a.csv", delimited(",", rows=[(c, min(r, 1)) for c, r in rows]))
    fit_cli.main([str(path), "--reward", "acc", "--json", "--until", "3000"])
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    (ahead,) = found["forecasts"]
    rates = [*found["bands"]["A"], found["R_0"], ahead["R"], ahead["low"], ahead["high"]]
    assert all(0 <= rate <= 1 for rate in rates)
    assert 0 < found["bands"]["C_mid"][0] <= found["C_mid"] <= found["bands"]["C_mid"][1] < 1.001e4 * 30


# fit.py; its last line on stderr: seconds of processor time, and the most memory that it held at once, in kB.
MEASURED = """
import atexit, os, re, runpy, sys
memory = lambda: re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]
atexit.register(lambda: print(os.times().user, memory(), file=sys.stderr))
runpy.run_path("fit.py", run_name="__main__")
"""


def test_a_million_rows_take_seconds_and_less_than_a_gigabyte(tmp_path):
    steps = np.arange(1, 10**6 + 1)
    noise = 0.1 * np.random.default_rng(0).normal(size=len(steps))
    rates = np.clip(fit.sigmoid(steps, 0.8, 1.5, 2e5, 0.2) + noise, 0, 1)
    write(tmp_path / "a.csv", "step,acc\n" + "".join(map("%d,%.4f\n".__mod__, zip(steps.tolist(), rates.tolist()))))
    command = [sys.executable, "-c", MEASURED, tmp_path / "a.csv", "--reward", "acc", "-o", tmp_path / "a.png"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(fit.__file__).parent)
    out, (seconds, memory) = done.stdout, map(float, done.stderr.split("\n")[-2].split())
    assert "averaged to 200 points, neighbours in log C" in out
    assert memory < 1e6 and seconds < 20
    A = float(next(line.split()[1] for line in out.splitlines() if line.split()[0] == "A"))
    assert A == pytest.approx(0.8, abs=0.005)


# ---- Files that are no logs: exit code 2, one line, no traceback ----

GOOD = delimited(",")
JSONL = FORMATS["a.jsonl"][0]
NOISE = random.Random(0).randbytes(5000)
BAD = {
    "empty.csv": "", "empty.jsonl": "", "empty.json": "", "empty.log": "", "blank.csv": "\n\n  \n",
    "spaces.txt": "   ", "bom.csv": "\ufeff", "noise.csv": NOISE, "noise.jsonl": NOISE, "noise.gz": NOISE,
    "zeros.csv": b"\0" * 5000, "zeros.json": b"\0" * 5000, "utf16.csv": GOOD.encode("utf-16"),
    "utf16_without_mark.csv": GOOD.encode("utf-16-le"), "utf32.csv": GOOD.encode("utf-32"),
    "utf16.jsonl": JSONL.encode("utf-16"), "latin.csv": GOOD.replace("acc", "précision").encode("latin-1"),
    "png.csv": b"\x89PNG\r\n\x1a\n" + NOISE, "half.csv.gz": gzip.compress(GOOD.encode())[:-12],
    "mark_only.gz": b"\x1f\x8b", "broken.csv.gz": gzip.compress(GOOD.encode())[:20] + NOISE,
    "gz_of_noise.csv.gz": gzip.compress(NOISE), "gz_of_nothing.csv.gz": gzip.compress(b""),
    "header.csv": "step,acc\n", "numbers_only.csv": delimited(",", rows=ROWS).split("\n", 1)[1],
    "one_column.csv": "acc\n0.2\n0.3\n0.4\n0.5\n0.6\n", "spaces.csv": GOOD.replace(",", " "),
    "megabyte_cell.csv": f"step,acc\n1,{'9' * 10**6}\n", "megabyte_header.csv": f"step,{'a' * 10**6}\n1,0.5\n",
    "megabyte_text.csv": f"step,acc\n1,{'x' * 10**5}\n", "megabyte_line.jsonl": '{"step": ' + "1" * 10**6 + "}\n",
    "open_quote.csv": 'step,acc\n"1,0.2\n' + GOOD * 3, "twice.csv": delimited(",", ("acc", "acc")),
    "twice_more.csv": delimited(",", ("step", "acc", "acc"), [(c, r, 1 - r) for c, r in ROWS]),
    "long_row.csv": GOOD + "13,0.7,0.8\n", "decimal_comma.csv": GOOD.replace(".", ","),
    "words.csv": GOOD.replace("0.5\n", "high\n"), "percent_sign.csv": GOOD.replace("0.5\n", "50%\n"),
    "dates.csv": GOOD.replace("\n4,", "\n2026-01-01,"), "hex.csv": GOOD.replace("\n4,", "\n0x4,"),
    "all_nan.csv": delimited(",", rows=[(c, "nan") for c in C]),
    "all_empty.csv": delimited(",", rows=[(c, "") for c in C]),
    "last_row_of_words.csv": GOOD + "x,0.7\n",
    "negative_compute.csv": GOOD.replace("\n0,", "\n-1,"),
    "per_cent.csv": delimited(",", rows=[(c, 100 * r) for c, r in ROWS]),
    "plus_minus.csv": delimited(",", rows=[(c, 2 * r - 1) for c, r in ROWS]),
    "falls.csv": delimited(",", ("gpu_hours", "acc"), [(12 - c, r) for c, r in ROWS]),
    "one_compute.csv": delimited(",", ("gpu_hours", "acc"), [(3, r) for _, r in ROWS]),
    "one_step.csv": delimited(",", rows=[(3, r) for _, r in ROWS]), "four_points.csv": delimited(",", rows=ROWS[:4]),
    "ones.csv": delimited(",", rows=[(c, 1) for c in C]),
    "number.json": "5", "text.json": '"acc"', "null.json": "null", "list_of_numbers.json": "[1, 2, 3]",
    "list_of_lists.json": "[[1, 0.2], [2, 0.3]]", "empty_list.json": "[]", "empty_object.json": "{}",
    "object.json": json.dumps({"step": C, "acc": R}), "history_of_numbers.json": '{"log_history": [1, 2]}',
    "history_is_text.json": '{"log_history": "acc"}', "cut.json": json.dumps(LOG)[:-20], "deep.json": "[" * 10**5,
    "deep.jsonl": '{"a":' * 10**5, "two_lists.json": "[1]\n[2]\n", "list_lines.jsonl": "[1, 0.2]\n[2, 0.3]\n",
    "bad_most.jsonl": JSONL.replace('{"step": ', '{"step" ', 7), "python.jsonl": JSONL.replace('"', "\u201c"),
    "list_cell.jsonl": JSONL.replace("0.5}", "[0.5]}"),
    "object_cell.jsonl": JSONL.replace("0.5}", '{"x": 0.5}}'),
    "huge_number.jsonl": JSONL.replace("0.5}", "1" * 400 + "}"),
    "text_cell.jsonl": JSONL.replace("0.5}", '"high"}'), "other_names.jsonl": JSONL.replace("acc", "perplexity"),
    "concatenated.jsonl": JSONL.replace("\n", ""), "console_without_numbers.log": "step 1\nstep 2\nstep 3\n",
    "verl_without_acc.log": "step:1 - loss:0.5\nstep:2 - loss:0.4\n",
    "html.csv": "<!DOCTYPE html>\n<html><body>404</body></html>\n",
    "traceback.log": "Traceback (most recent call last):\n  File x\nKeyError: 'acc'\n",
    "yaml.csv": "step: 1\nacc: 0.5\n",
    "markdown.csv": "| step | acc |\n|---|---|\n| 1 | 0.2 |\n",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_log_ends_with_code_2_and_one_line(tmp_path, capsys, name):
    path = write(tmp_path / name, BAD[name])
    with pytest.raises(SystemExit) as end:
        fit_cli.main([str(path), "--reward", "acc", "--fit-from", "0", "-o", str(tmp_path / "a.png")])
    out, error = capsys.readouterr()
    assert end.value.code == 2 and not out and not (tmp_path / "a.png").exists()
    assert error.startswith("fit.py: ") and error.count("\n") == 1
    assert error[:-1].isprintable() and len(error) < 1000


def test_there_are_sixty_bad_files():
    assert len(BAD) >= 60


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "."])
def test_what_is_no_file_is_not_read(path, capsys):
    with pytest.raises(SystemExit) as end:
        fit_cli.main([path, "--reward", "acc"])
    assert end.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_fit_needs_no_torch_no_matplotlib_and_nothing_that_only_unix_has():
    code = """
import sys
sys.modules.update(dict.fromkeys(["torch", "matplotlib", "resource", "fcntl"]))  # None: importing it fails
import mmap
del mmap.MAP_SHARED
import fit
assert abs(fit.fit(range(9), [fit.sigmoid(c, 0.8, 1.5, 3, 0.2) for c in range(9)]).A - 0.8) < 1e-3
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(fit.__file__).parent)


@pytest.mark.parametrize(
    "head", ["[rank0]: NCCL up\n", "[2025-01-01 10:00:00] start\n", "# comment\n" * 2, "load\n" * 1500, "NCCL \0\n"]
)
def test_console_logs_are_read_whatever_stands_before_the_first_metric(tmp_path, head):
    path = tmp_path / "console.log"
    path.write_text(head + "".join(f"step:{n} - critic/score/mean:0.{n}\n" for n in range(1, 8)))
    run = logs.read_run(path, reward="critic/score/mean")
    assert list(run.compute) == list(range(1, 8)) and run.reward[0] == 0.1


def test_comments_and_truth_values_are_read(tmp_path):
    path = tmp_path / "monitor.csv"
    path.write_text('#{"t_start": 1.5}\nstep,reward\n1,0.5\n2,1.0\n')
    assert list(logs.read_run(path).reward) == [0.5, 1.0]
    (tmp_path / "solved.jsonl").write_text('{"step": 1, "solved": false}\n{"step": 2, "solved": true}\n')
    assert list(logs.read_run(tmp_path / "solved.jsonl", reward="solved").reward) == [0, 1]


def test_a_scale_that_begins_with_a_minus_sign_is_no_flag(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("step,reward\n" + "".join(f"{n},{n / 4 - 1}\n" for n in range(12)))
    fit_cli.main([str(path), "--scale", "-2:4"])
    assert capsys.readouterr().out.startswith("a: ")


def test_all_columns_that_look_like_rewards_are_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(",".join(["step", *(f"x{n}" for n in range(20)), "val/acc"]) + "\n" + ",".join(["1"] * 22) + "\n")
    with pytest.raises(fit.BadInput, match="there is .*x10, val/acc$"):
        logs.read_run(path)


# ---- Several runs in a file, epochs, counts ----

AGAIN = [(c, r / 2) for c, r in ROWS]


@pytest.mark.parametrize("compute", [None, "step"])
def test_a_file_in_which_the_step_falls_back_to_the_start_holds_two_runs(tmp_path, compute, capsys):
    path = write(tmp_path / "a.csv", delimited(",", rows=ROWS + AGAIN))
    one, other = logs.read_runs(path, compute, "acc")
    assert (list(one.reward), list(other.reward)) == (R, [r / 2 for r in R]) and list(one.compute) == C
    assert (one.name, other.name) == ("a (1 of 2)", "a (2 of 2)") and one.notes == ()
    fit_cli.main([str(path), "--reward", "acc", "--fit-from", "0"])
    out = capsys.readouterr().out
    assert "a (1 of 2): 7 points" in out and "a (2 of 2): 7 points" in out


def test_a_file_of_two_runs_can_be_compared(tmp_path, capsys):
    path = write(tmp_path / "a.csv", delimited(",", rows=ROWS + AGAIN))
    fit_cli.main([str(path), "--reward", "acc", "--compare", "--fit-from", "0"])
    assert "a (1 of 2) scales better than a (2 of 2)" in capsys.readouterr().out


def test_compute_that_is_no_step_may_fall_back_too(tmp_path):
    path = write(tmp_path / "a.csv", delimited(",", ("hours", "acc"), ROWS + AGAIN))
    assert [list(run.compute) for run in logs.read_runs(path, "hours", "acc")] == [C, C]


def test_a_resumed_run_is_one_run(tmp_path):
    # It went on from step 3, which is not where it began.
    path = write(tmp_path / "a.csv", delimited(",", rows=ROWS + ROWS[3:]))
    (run,) = logs.read_runs(path, None, "acc")
    assert list(run.compute) == C


@pytest.mark.parametrize(("name", "values"), [("seed", (0, 1)), ("algo", ("x", "y")), ("who", ("ada", "bob"))])
def test_a_column_that_separates_runs_is_found(tmp_path, name, values):
    rows = [(*row, value) for pair in zip(ROWS, AGAIN) for row, value in zip(pair, values)]  # one beside the other
    path = write(tmp_path / "a.csv", delimited(",", ("step", "acc", name), rows))
    one, other = logs.read_runs(path, None, "acc")
    assert (one.name, other.name) == tuple(f"a {name} {value}" for value in values)
    assert (list(one.reward), list(other.reward)) == (R, [r / 2 for r in R])


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
def test_a_column_tells_runs_apart_whatever_the_order_of_the_rows(tmp_path, order):
    rows = ORDERS[order](labelled(run=["a", "b"]) + [(1, 0.1, "c"), (2, 0.1, "c")])  # the third run crashed
    one, other = logs.read_runs(write(tmp_path / "a.csv", delimited(",", ("step", "acc", "run"), rows)), None, "acc")
    assert (one.name, other.name) == ("a run a", "a run b")
    assert (list(one.reward), list(other.reward)) == (R, [r / 2 for r in R]) and list(other.compute) == C
    assert one.notes == other.notes == ("runs of fewer than 5 points are left out: run c (2)",)


def test_a_run_that_was_resumed_stays_one_of_several(tmp_path):
    rows = labelled(run=["a", "b"]) + [(c, r, "b") for c, r in AGAIN[3:]]
    one, other = logs.read_runs(write(tmp_path / "a.csv", delimited(",", ("step", "acc", "run"), rows)), None, "acc")
    assert (one.name, other.name) == ("a run a", "a run b") and list(other.reward) == [r / 2 for r in R]


@pytest.mark.parametrize("order", ORDERS)
def test_two_columns_tell_runs_apart_that_one_does_not(tmp_path, order):
    rows = labelled(run=["x", "x", "y", "y"], who=["ada", "bob"] * 2, model=["m", "m", "n", "n"])
    path = write(tmp_path / "a.csv", delimited(",", ("step", "acc", "run", "who", "model"), ORDERS[order](rows)))
    runs = logs.read_runs(path, None, "acc")
    assert [run.name for run in runs] == [f"a run {run} who {who}" for run in "xy" for who in ("ada", "bob")]
    assert [list(run.reward) for run in runs] == [[r / n for r in R] for n in (1, 2, 3, 4)]


def test_runs_side_by_side_in_hours_are_told_apart_though_the_hours_rise(tmp_path):
    rows = sorted((c + 0.1 * (run == "b"), r, run) for c, r, run in labelled(run=["a", "b"]))
    path = write(tmp_path / "a.csv", delimited(",", ("hours", "acc", "run"), rows))
    assert [run.name for run in logs.read_runs(path, "hours", "acc")] == ["a run a", "a run b"]


def test_a_column_that_changes_within_a_run_does_not_split_it(tmp_path):
    resumed = ROWS[:7] + [(c, r + 0.01) for c, r in ROWS[3:]]  # at odd places both times: no column parts these
    for rows in (ROWS, resumed):
        rows = [(*row, "xy"[i % 2], "xy"[i % 2]) for i, row in enumerate(rows)]
        path = write(tmp_path / "a.csv", delimited(",", ("step", "acc", "group", "note"), rows))
        assert [list(run.compute) for run in logs.read_runs(path, None, "acc")] == [C]


def test_a_short_run_does_not_hide_the_others_that_no_column_tells_apart(tmp_path):
    path = write(tmp_path / "a.csv", delimited(",", rows=ROWS + AGAIN + ROWS[:3]))
    one, other = logs.read_runs(path, None, "acc")
    assert (list(one.reward), list(other.reward)) == (R, [r / 2 for r in R])
    assert one.notes == ("runs of fewer than 5 points are left out: (3 of 3) (3)",)


@pytest.mark.parametrize("step", ["step", "iteration"])
@pytest.mark.parametrize("order", ["side by side", "the last row first", "shuffled"])
def test_runs_that_only_a_number_tells_apart_are_refused_and_the_column_is_named(tmp_path, step, order):
    rows = ORDERS[order](labelled(lr=[0.1, 0.2], beta=[7, 7]))
    path = write(tmp_path / "a.csv", delimited(",", (step, "acc", "lr", "beta"), rows))
    with pytest.raises(fit.BadInput, match="8 of 16 rows repeat a step .* apart 'run'; at step 0 these differ: lr$"):
        logs.read_run(path, step, "acc")


def test_rows_of_single_completions_are_refused_and_rows_printed_twice_are_not(tmp_path):
    answers = [(c, int(i < 4 * r)) for c, r in ROWS for i in range(4)]  # 1 of 4 right at step 0, …
    with pytest.raises(
        fit.BadInput, match="24 of 32 rows repeat a step .*; average them, .* no other column tells them"
    ):
        logs.read_run(write(tmp_path / "a.csv", delimited(",", rows=answers)), None, "acc")
    twice = [row for row in ROWS for _ in range(2)]
    assert list(logs.read_run(write(tmp_path / "a.csv", delimited(",", rows=twice)), None, "acc").compute) == C


def test_cells_that_hold_lists_do_not_hinder_the_search_for_runs(tmp_path):
    rows = [{"step": c, "acc": r, "ids": [1], "kind": [2]} for c, r in ROWS + ROWS[3:]]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert list(logs.read_run(path, None, "acc").compute) == C


def test_evaluations_of_another_trainer_are_told_apart_by_run_too(tmp_path):
    rows = [dict(kind="eval", step=c, acc=r, run=run) for c, r, run in labelled(run=["a", "b"])]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert [list(run.reward) for run in logs.read_runs(path, None, "acc")] == [R, [r / 2 for r in R]]


def test_a_last_row_that_ends_within_a_number_is_left_out(tmp_path):
    run = logs.read_run(write(tmp_path / "a.csv", delimited(",") + "13,0."), None, "acc")
    assert list(run.reward) == R and run.notes == ("left out the last row, which ends within a number: '13,0.'",)
    assert logs.read_run(write(tmp_path / "a.csv", delimited(",") + "13,1.\n"), None, "acc").reward[-1] == 1


def test_epochs_that_trl_rounds_become_rows(tmp_path):
    # 361 rows in 0.04 epochs, printed with two decimals: five values.
    rates = np.linspace(0.2, 0.7, 361)
    text = "".join(f"{{'reward': '{r:.4f}', 'epoch': '{n / 9000:.2f}'}}\n" for n, r in enumerate(rates))
    path = write(tmp_path / "trl.log", text)
    run = logs.read_run(path)
    assert run.unit == "row" and list(run.compute) == list(range(1, 362))
    assert run.notes == ("rows share a rounded epoch: their numbers count as compute (--x epoch for the epoch)",)
    assert logs.read_run(path, "epoch").unit == "epoch"
    twice = logs.read_runs(write(tmp_path / "twice.log", text * 2))
    assert [list(run.compute) for run in twice] == [list(range(1, 362))] * 2


def test_a_count_of_completions_is_read_if_the_rewards_are_such_counts(tmp_path):
    rows = [(c, round(12 * r) / 12, 12) for c, r in ROWS]
    for name, reads in (("completions", 12), ("num_samples", 12), ("loss", None)):
        path = write(tmp_path / "a.csv", delimited(",", ("step", "acc", name), rows))
        assert logs.read_run(path, None, "acc").completions == reads
    path = write(tmp_path / "a.csv", delimited(",", ("step", "acc", "n"), [(c, r, 7) for c, r in ROWS]))
    assert logs.read_run(path, None, "acc").completions is None  # 0.26 * 7 is no count
    for asked, reads in ((12, 12), ("20", 20), ("n", 7)):
        assert logs.read_run(path, None, "acc", completions=asked).completions == reads
    for asked in ("0", "-3", "m", "nan"):
        with pytest.raises(fit.BadInput, match="--completions"):
            logs.read_run(path, None, "acc", completions=asked)


def test_seven_evaluations_without_a_success_say_nothing_of_A(tmp_path, capsys):
    path = write(tmp_path / "a.csv", delimited(",", ("step", "acc", "completions"), [(c, 0, 12) for c in range(7)]))
    fit_cli.main([str(path), "--reward", "acc", "--fit-from", "0"])
    out = capsys.readouterr().out
    assert "no gain yet: nothing to fit" in out and "1e-06" not in out
    assert float(out.split("R at 12 step")[1].split()[2]) > 0.03  # the band: binomial noise of 12 completions


# ---- Logs as crashes, pipes and editors leave them ----


def mangled(text, random):
    """The text of a log after one or two accidents."""
    lines = text.splitlines(keepends=True)

    def anywhere():
        return random.randrange(len(lines) + 1)

    accidents = [
        lambda: lines.insert(
            anywhere(), random.choice(["\n", "NCCL \0 INFO\n", "[rank0]: W0101 x\n", "# note\n", "{\n"])
        ),
        lambda: lines.extend(lines[: anywhere()]),  # started anew into the same file
        lambda: lines.pop(random.randrange(len(lines))) if lines else None,
        lambda: lines.insert(anywhere(), random.choice(lines)) if lines else None,
        lambda: lines.__setitem__(slice(-1, None), [line[: len(line) // 2] for line in lines[-1:]]),  # a full disk
        lambda: lines.sort(key=lambda _: random.random()),
        lambda: lines.__setitem__(
            slice(None), [line.replace("0.5", random.choice(["nan", "", "1e999", "-1"])) for line in lines]
        ),
        lambda: lines.__setitem__(slice(None), [line.replace("\n", "\r\n") for line in lines]),
    ]
    for accident in random.choices(accidents, k=random.randint(1, 2)):
        accident()
    return "".join(lines)


@pytest.mark.parametrize("name", FORMATS)
def test_a_mangled_log_gives_runs_or_one_line(tmp_path, name):
    text, reward = FORMATS[name]
    for seed in range(40):
        path = write(tmp_path / name, mangled(text, random.Random(seed)))
        try:
            runs = logs.read_runs(path, None, reward)
        except fit.BadInput as error:
            assert str(error).isprintable()
            continue
        for run in runs:
            assert len(run.compute) and np.isfinite(run.compute).all() and (np.diff(run.compute) >= 0).all()
