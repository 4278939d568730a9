"""Claims about plumbing/tables.py, plumbing/logs.py and fit.py's command line on logs of any trainer."""

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fit
from plumbing import fit_cli, logs

C = [0, 1, 2, 3, 4, 6, 8, 12]
R = [0.2, 0.26, 0.35, 0.43, 0.5, 0.6, 0.66, 0.72]
ROWS = list(zip(C, R))
AGAIN = [(c, r / 2) for c, r in ROWS]


def write(path, text):
    """Write text, or bytes; return the path."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def delimited(mark=",", head=("step", "acc"), rows=ROWS):
    """A table as text, its cells separated by `mark`."""
    return "".join(mark.join(map(str, row)) + "\n" for row in (head, *rows))


def each(form, rows=ROWS):
    """A line for each row."""
    return "".join(form.format(c=c, r=r) + "\n" for c, r in rows)


def told(run):
    """What the reader says it took."""
    return next(note for note in run.notes if note.startswith("reward: "))


GOOD = delimited()
LOG = [{"step": c, "loss": 1.0, "acc": r} for c, r in ROWS]
JSONL = "".join(json.dumps(row) + "\n" for row in LOG)
STATE = json.dumps({"epoch": 1, "log_history": [*LOG, {"train_loss": 0.1}], "global_step": 12}, indent=2)
WANDB = '"Step","lr=1, kl=0 - val/acc","lr=1, kl=0 - val/acc__MIN","lr=1, kl=0 - val/acc__MAX"\n' + each(
    '"{c}","{r}","{r}","{r}"\n"{c}.5","","",""'
)
BOXES = each("| rollout/ | |\n|  success_rate | {r} |\n| time/ | |\n| step | {c} |\n-------------------")
BARS = each(" {c}%|# | {c}/20 [00:01]{{'loss': 1e-06, 'step': {c}, 'acc': '{r}', 'lr': nan}}\n[36mINFO[0m loading: 5")
AT_ONCE = {  # each says the same; its column of reward, of compute
    "a.csv": (GOOD, "acc", "step"),
    "a.csv.gz": (gzip.compress(GOOD.encode()), "acc", "step"),
    "a.tsv": (delimited("\t"), "acc", "step"),
    "resumed.csv": (delimited(rows=[*ROWS[:5], *AGAIN[5:], *ROWS[3:]]), "acc", "step"),
    "semicolons.csv": (delimited(";"), "acc", "step"),
    "blanks.txt": (each("{c:>5}   {r:<6}", [("step", "acc"), *ROWS]), "acc", "step"),
    "table.md": (
        "# Results, in short\n\n| step | **val acc** |\n|:--|--:|\n" + each("| {c} | {r} |"), "val acc", "step"),
    "percent.csv": (delimited(rows=[(c, f"{100 * r:.2f}%") for c, r in ROWS]), "acc", "step"),
    "latin1.csv": (GOOD.replace("acc", "précision acc").encode("latin-1"), "précision acc", "step"),
    "utf16.log": (each("iter={c} acc={r}").encode("utf-16"), "acc", "iter"),
    "bom.csv": ("\ufeff" + GOOD, "acc", "step"),
    "header_again.csv": (delimited(rows=ROWS[:4]) + delimited(rows=ROWS[4:]), "acc", "step"),
    "monitor.csv": ("#{'t': 1.5}\n" + GOOD, "acc", "step"),
    "cells.csv": ('step,acc,text\n"9","",""\n' + each('{c},{r},"a\nb"'), "acc", "step"),
    "a.jsonl": (JSONL, "acc", "step"),
    "pretty.jsonl": ("\n".join(json.dumps(row, indent=1) for row in LOG), "acc", "step"),
    "list.json": (json.dumps(LOG, indent=1), "acc", "step"),
    "columns.json": (json.dumps({"step": C, "acc": R, "betas": [0.9, 0.99]}), "acc", "step"),
    "parts.json": (json.dumps({"x": {"train": [{"step": 1, "loss": 2}], "eval": LOG}}), "acc", "step"),
    "trainer_state.json": (STATE, "acc", "step"),
    "nested.jsonl": (
        each('{{"global_step": {c}, "eval": {{"acc": {{"mean": {r}}}}}}}'), "eval.acc.mean", "global_step"),
    "verl.log": (each("(main pid=7) step:{c} - time/gen:18.8 - val/acc:np.float64({r}) - x/y:nan"), "val/acc", "step"),
    "trl.log": (BARS, "acc", "step"),
    "structured.log": (each('10:00 INFO {{"step": {c}, "acc": {r}}}'), "acc", "step"),
    "bars.log": (each("12:00 \x1b[32mOK\x1b[0m Step {c} | Time: 2.3s | Score: {r} | 93 tokens/s"), "Score", "Step"),
    "words.log": (each("[step {c}/20] train loss: 0.1, val acc: {r}, tokens: 1.5M"), "val acc", "step"),
    "boxes.log": (BOXES, "success_rate", "step"),
    "slime.log": (
        each("a.py:1 - rollout {c}: {{'rollout/raw_reward': {r}}}\nstep {c}: {{'loss': 1}}"),
        "rollout/raw_reward", "rollout"),
    "wandb.csv": (WANDB, "lr=1, kl=0 - val/acc", "Step"),
    "tensorboard.csv": (
        delimited(",", ("Wall time", "Step", "Value"), [(1e9 + c, c, r) for c, r in ROWS]), "Value", "Step"),
    "reward.csv": (delimited(",", ("step", "reward", "kl"), [(c, r, 9) for c, r in ROWS]), "reward", "step"),
    "mean.csv": (
        delimited(",", ("step", "mean_reward", "best_acc"), [(c, r, 1) for c, r in ROWS]), "mean_reward", "step"),
    "verl.csv": (
        delimited(",", ("step", "critic/score/mean", "critic/score/max", "critic/kl"), [(c, r, 1, 3) for c, r in ROWS]),
        "critic/score/mean", "step"),
    "wandb_steps.csv": (
        delimited(",", ("_step", "max_steps", "train/global_step", "acc"), [(3 * c, 60, c, r) for c, r in ROWS]),
        "acc", "train/global_step"),
    "one_function.csv": (
        delimited(",", ("step", "reward", "rewards/f/mean", "rewards/f/std"), [(c, r, r, 0.4) for c, r in ROWS]),
        "reward", "step"),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_ONCE)
def test_every_form_gives_the_same_points_and_says_what_was_taken(tmp_path, name):
    text, reward, compute = AT_ONCE[name]
    (run,) = logs.read_runs(write(tmp_path / name, text))
    assert list(run.compute) == C and run.reward == pytest.approx(R)
    assert run.unit == compute and run.name == name.split(".")[0]
    assert told(run) == f"reward: {reward}, taken as a pass rate; compute: {compute}"


def test_commas_divide_thousands_and_are_no_decimal_points(tmp_path):
    text = 'step,x,loss\n1,"500,000",\n2,"1,000,000",\n3,"1,500,000.5",\n'
    assert list(logs.read_run(write(tmp_path / "a.csv", text), "step", "x").reward) == [5e5, 1e6, 1500000.5]
    with pytest.raises(fit.BadInput, match="x holds '0,5', expected a number; a decimal point in place of the comma"):
        logs.read_run(write(tmp_path / "a.csv", text.replace("500,000", "0,5")), "step", "x")


def test_a_fraction_is_a_pass_rate_and_of_a_step_it_is_the_part_done(tmp_path):
    run = logs.read_run(write(tmp_path / "a.log", "".join(f"[step {n}/200] correct={n}/4\n" for n in range(5))))
    assert list(run.compute) == [0, 1, 2, 3, 4] and list(run.reward) == [0, 0.25, 0.5, 0.75, 1]


NEEDS_A_NAME = {  # a log that cannot be read at once -> the columns beside the step, what the refusal says
    "two rates": (("train/acc", "val/acc"), lambda r: (r, r), "; there is train/acc, val/acc$"),
    "a sum": (("reward", "rewards/a", "rewards/b"), lambda r: (r / 2, r / 4, r / 4),
              "there is rewards/a, so reward may be a sum"),
    "beside a format": (("mean_reward", "format_rate"), lambda r: (r, 0.5),
                        "there is format_rate, so mean_reward may be a sum"),
    "-1 to 1": (("critic/score/mean", "critic/score/min"), lambda r: (r, -1),
                "critic/score/min is not that of rewards from 0"),
    "0 to 2": (("reward", "reward_std"), lambda r: (r, (r * (2 - r)) ** 0.5),
               "reward_std is not that of rewards from 0 to 1"),
    "a return": (("ep_rew_mean", "fps"), lambda r: (r, 9), "there is step, ep_rew_mean, fps$"),
    "a return alone": (("episode_return",), lambda r: (r,), "there is step, episode_return$"),
    "per cent": (("accuracy (%)",), lambda r: (r,), r"there is step, accuracy \(%\)$"),
    "a loss": (("loss",), lambda r: (r,), "there is step, loss$"),
    "any": (tuple("abcdefghijklm") + ("rewards/z",), lambda r: [r] * 14, "there is step, a, .*k, rewards/z$"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDS_A_NAME)
def test_what_may_be_no_pass_rate_is_refused_with_the_columns_there_are(tmp_path, name):
    names, cells, said = NEEDS_A_NAME[name]
    path = write(tmp_path / "a.csv", delimited(",", ("step", *names), [(c, *cells(r)) for c, r in ROWS]))
    with pytest.raises(fit.BadInput, match=f"--reward COLUMN is needed.*{said}"):
        logs.read_run(path)
    run = logs.read_run(path, reward=names[0], scale="0:2")
    assert told(run) == f"reward: {names[0]}, as a pass rate by --scale 0:2; compute: step"


def test_a_table_without_a_header_loses_no_row(tmp_path):
    path = write(tmp_path / "a.csv", GOOD.partition("\n")[2])
    with pytest.raises(fit.BadInput, match="there is column 1, column 2; no header"):
        logs.read_run(path)
    assert list(logs.read_run(path, "column 1", "column 2").reward) == R


@pytest.mark.parametrize("text", [STATE[:-130], json.dumps(LOG)[:-20], JSONL[:-20]], ids=["state", "list", "lines"])
def test_of_a_log_that_is_cut_off_the_complete_entries_are_read(tmp_path, text):
    run = logs.read_run(write(tmp_path / "a.json", text))
    assert 5 <= len(run.compute) <= 7 and list(run.reward) == R[: len(run.compute)]
    assert run.notes[0].startswith("left out what is no row, in line ")


@pytest.mark.parametrize(("outer", "inner"), [("epoch", "step"), ("round", "batch")])
def test_steps_that_start_anew_in_each_epoch_are_one_run_whose_rows_count(tmp_path, outer, inner):
    rows = [(n // 5, n % 5, n / 20) for n in range(20)]
    (run,) = logs.read_runs(write(tmp_path / "a.csv", delimited(",", (outer, inner, "acc"), rows)))
    assert list(run.compute) == list(range(1, 21)) and list(run.reward) == [n / 20 for n in range(20)]
    assert run.notes[0] == f"{inner} starts anew with {outer}, so the rows are counted" and told(run).endswith(": row")


def test_rows_are_counted_where_no_column_of_compute_is_there(tmp_path):
    path = write(tmp_path / "a.txt", each("'reward': '{r}'"))
    with pytest.raises(fit.BadInput, match="COLUMN is needed; there is reward; --compute row counts the rows"):
        logs.read_run(path)
    assert list(logs.read_run(path, "row").compute) == list(range(1, 9))


@pytest.mark.parametrize("names", [("a - val/acc", "b - val/acc"), ("acc_seed1", "acc_seed2")])
def test_columns_of_several_runs_are_several_runs(tmp_path, names):
    rows = [(c, r, "" if c == 3 else r / 2) for c, r in ROWS]
    path = write(tmp_path / "w.csv", delimited(",", ("Step", *names), rows))
    one, other = logs.read_runs(path)
    assert list(one.reward) == R and list(other.reward) == [r / 2 for c, r in ROWS if c != 3]
    assert (one.name, other.name) == tuple("w " + name.partition(" - ")[0] for name in names)
    assert told(one).endswith("compute: Step; 2 runs")
    if "val" in names[0]:
        assert len(logs.read_runs(path, None, "acc")) == 2 and len(logs.read_runs(path, None, names[1])) == 1


def test_event_files_parquet_and_excel_are_refused_with_the_way_out(tmp_path):
    for name, data in (("events.out.tfevents.1", b"x"), ("a.parquet", b"PAR1\0\1"), ("a.xlsx", b"PK\3\4\0\1")):
        with pytest.raises(fit.BadInput, match="as CSV"):
            logs.read_run(write(tmp_path / name, data))
    with pytest.raises(fit.BadInput, match="download the scalar from TensorBoard as CSV"):
        logs.read_run(tmp_path)


def test_a_column_that_is_asked_for_matches_one_or_those_there_are_are_named(tmp_path):
    path = write(tmp_path / "a.csv", delimited(",", ("a/hours", "x/acc", "y/acc", "precision"), [(1, 0.2, 0.3, 0.4)]))
    run = logs.read_run(path, "hours", "x/acc")
    assert (run.unit, *run.reward) == ("a/hours", 0.2)
    for asked, said in (
        ("acc", "acc matches several columns; there is x/acc, y/acc$"),
        ("precison", "no column; there is a/hours, x/acc, y/acc, precision$"),
    ):
        with pytest.raises(fit.BadInput, match=f"--reward .*{said}"):
            logs.read_run(path, "hours", asked)


def test_what_is_left_out_is_counted(tmp_path):
    run = logs.read_run(write(tmp_path / "a.csv", GOOD + "13,nan\n14\n15,0."))
    cut, lost = "left out the last line, which ends within a number", "1 rows without a number are left out"
    assert run.notes[:-1] == (cut, lost) and list(run.reward) == R


def test_of_repeated_steps_the_last_counts(tmp_path):
    # The run died after step 4 and went on from step 2.
    rows = [(0, 0.2), (1, 0.3), (2, 0.4), (3, 0.9), (4, 0.9), (3, 0.5), (4, 0.6), (5, 0.7)]
    path = write(tmp_path / "a.csv", delimited(",", ("step", "acc", "hours"), [(*row, row[0] / 10) for row in rows]))
    for compute, unit in (("step", 1), ("hours", 0.1)):
        run = logs.read_run(path, compute, "acc")
        assert run.compute == pytest.approx(np.arange(6) * unit) and list(run.reward) == [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
        assert run.notes[:-1] == ("2 rows of repeated steps are left out; of each step the last counts",)


def test_compute_of_each_row_is_refused_and_added_up_if_asked(tmp_path):
    rows = [(1, 30, ""), (2, 20, 0.2), (3, 40, ""), (4, 10, 0.3)]
    path = write(tmp_path / "a.csv", delimited(",", ("step", "seconds", "acc"), rows))
    with pytest.raises(fit.BadInput, match="seconds falls, .*if each row holds only its own, add --cumulative"):
        logs.read_run(path, "seconds", "acc")
    # 30 + 20 = 50 at step 2, 50 + 40 + 10 = 100 at step 4: rows without an evaluation cost compute too.
    assert list(logs.read_run(path, "seconds", "acc", cumulative=True).compute) == [50, 100]


@pytest.mark.parametrize("clock", [C, [1, 2, 3, 4, 5, 1, 2, 3]], ids=["rises", "is set back once"])
def test_a_running_total_is_not_added_up(tmp_path, clock):
    path = write(tmp_path / "a.csv", delimited(",", ("step", "hours", "acc"), zip(C, clock, R)))
    with pytest.raises(fit.BadInput, match="got --cumulative, but hours rises like a running total"):
        logs.read_run(path, "hours", "acc", cumulative=True)


@pytest.mark.parametrize(("name", "start"), [("time", 1_700_000_000), ("step", -1)])
def test_a_time_of_day_and_steps_below_0_are_no_compute(tmp_path, name, start):
    path = write(tmp_path / "a.csv", delimited(",", (name, "acc"), [(start + 60 * c, r) for c, r in ROWS]))
    with pytest.raises(fit.BadInput, match=f"got {name} from {start} to .*, expected compute since the start"):
        logs.read_run(path, name, "acc")


@pytest.mark.parametrize(
    ("scale", "rewards"),
    [("percent", [0, 25, 100]), ("pm1", [-1, -0.5, 1]), ("-2:6", [-2, 0, 6]), (None, [0, 0.25, 1])],
)
def test_rewards_of_another_scale_become_pass_rates(tmp_path, scale, rewards):
    path = write(tmp_path / "a.csv", delimited(rows=zip(range(3), rewards)))
    assert list(logs.read_run(path, None, "acc", scale).reward) == [0, 0.25, 1]


def test_r0_from_the_command_line_is_exact(tmp_path, capsys):
    path = write(tmp_path / "a.csv", delimited(rows=ROWS[1:]))
    fit_cli.main([str(path), "--reward", "acc", "--r0", "0.19", "--fit-from", "0", "--json"])
    found = json.loads(capsys.readouterr().out)["runs"][0]
    assert found["R_0"] == pytest.approx(0.19, abs=1e-9) and found["points"] == 7
    assert not any("R_0 assumed" in text for text in found["notes"])


def test_log_f_of_a_jump_is_drawn(tmp_path, capsys):
    # B is in the thousands and C_mid is 1e18: C_mid^B overflows, its logarithm does not.
    rows = [(1e17 * c, 0.2 if c < 10 else 0.8 + 0.001 * (c % 3)) for c in range(1, 21)]
    path = write(tmp_path / "a.csv", delimited(rows=rows))
    fit_cli.main([str(path), "--reward", "acc", "--log-f", "-o", str(tmp_path / "a.png")])
    assert "B and C_mid are not determined" in capsys.readouterr().out and (tmp_path / "a.png").stat().st_size > 10000


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

NOISE = random.Random(0).randbytes(5000)
PACKED = gzip.compress(GOOD.encode())
BAD = {
    "empty": "", "bom": "\ufeff", "noise": NOISE, "zeros": b"\0" * 5000, "png": b"\x89PNG\r\n" + NOISE,
    "utf16_without_mark": GOOD.encode("utf-16-le"), "gz_of_nothing": gzip.compress(b""), "half.gz": PACKED[:-12],
    "broken.gz": PACKED[:20] + NOISE, "header": "step,acc\n", "numbers_only": GOOD.split("\n", 1)[1],
    "one_column": "acc\n0.2\n0.3\n0.4\n0.5\n0.6\n", "megabyte_cell": f"step,acc\n1,{'9' * 10**6}\n",
    "megabyte_header": f"step,{'a' * 10**6}\n1,0.5\n", "megabyte_line": '{"step": ' + "1" * 10**6 + "}\n",
    "megabyte_words": "a-" * 10**6, "open_quote": 'step,acc\n"1,0.2\n' + GOOD * 3,
    "twice": delimited(",", ("acc", "acc")), "long_row": GOOD + "13,0.7,0.8\n",
    "german": delimited(";").replace(".", ","), "decimal_comma": GOOD.replace(".", ","),
    "words": GOOD.replace("0.5\n", "high\n"), "dates": GOOD.replace("\n4,", "\n2026-01-01,"),
    "all_nan": delimited(rows=[(c, "nan") for c in C]), "all_empty": delimited(rows=[(c, "") for c in C]),
    "per_cent": delimited(rows=[(c, 100 * r) for c, r in ROWS]), "one_step": delimited(rows=[(3, r) for _, r in ROWS]),
    "falls": delimited(",", ("gpu_hours", "acc"), [(12 - c, r) for c, r in ROWS]),
    "ones": delimited(rows=[(c, 1) for c in C]), "four_points": delimited(rows=ROWS[:4]), "null": "null",
    "list_of_lists": "[[1, 0.2], [2, 0.3]]", "empty_object": "{}", "deep_list": "[" * 10**5, "deep": '{"a":' * 10**5,
    "history_of_numbers": '{"log_history": [1, 2]}', "bad_most": JSONL.replace('{"step": ', '{"step" ', 7),
    "list_cell": JSONL.replace("0.5}", "[0.5]}"), "object_cell": JSONL.replace("0.5}", '{"x": 0.5}}'),
    "other_names": JSONL.replace("acc", "perplexity"),
    "console_without_acc": "step:1 - loss:0.5\nstep:2 - loss:0.4\n", "html": "<html><body>404</body></html>\n",
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
    "before", ["[rank0]: NCCL up\n", "[2025-01-01 10:00:00] start\n", "# note\n" * 2, "load\n" * 1500, "NCCL \0\n"]
)
def test_console_logs_are_read_whatever_stands_before_the_first_metric(tmp_path, before):
    run = logs.read_run(write(tmp_path / "a.log", before + each("step:{c} - critic/score/mean:{r}")))
    assert list(run.compute) == C and list(run.reward) == R


# ---- Several runs in a file, epochs, counts ----


@pytest.mark.parametrize("compute", ["step", "hours"])
def test_a_file_in_which_the_compute_falls_back_to_the_start_holds_two_runs(tmp_path, compute, capsys):
    path = write(tmp_path / "a.csv", delimited(",", (compute, "acc"), ROWS + AGAIN + ROWS[:3]))
    one, other = logs.read_runs(path, compute)
    assert (list(one.reward), list(other.reward)) == (R, [r / 2 for r in R]) and list(one.compute) == C
    assert (one.name, other.name) == ("a (1 of 3)", "a (2 of 3)")
    assert one.notes[0] == "1 runs of fewer than 5 points are left out"
    assert told(one).endswith(f"compute: {compute}; 2 runs")
    fit_cli.main([str(path), "--x", compute, "--compare", "--fit-from", "0"])
    assert "a (1 of 3) scales better than a (2 of 3)" in capsys.readouterr().out


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
    assert one.notes[0] == "1 runs of fewer than 5 points are left out"
    assert told(one).endswith("; 2 runs")


@pytest.mark.parametrize("order", ORDERS)
def test_two_columns_tell_runs_apart_that_one_does_not(tmp_path, order):
    rows = labelled(run=["x", "x", "y", "y"], seed=[1, 2] * 2, model=["m", "m", "n", "n"])
    path = write(tmp_path / "a.csv", delimited(",", ("step", "acc", "run", "seed", "model"), ORDERS[order](rows)))
    runs = logs.read_runs(path, None, "acc")
    assert [run.name for run in runs] == [f"a run {run} seed {seed}" for run in "xy" for seed in (1, 2)]
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


@pytest.mark.parametrize("order", ["side by side", "the last row first", "shuffled"])
def test_rows_of_several_runs_or_of_single_completions_that_no_column_tells_apart_are_refused(tmp_path, order):
    answers = [(c, int(i < 4 * r)) for c, r in ROWS for i in range(4)]  # 1 of 4 right at step 0, …
    for rows in (ROWS + AGAIN, answers):
        path = write(tmp_path / "a.csv", delimited(rows=ORDERS[order](rows)))
        with pytest.raises(fit.BadInput, match="8 of .. rows repeat a step .*; average them, .* called 'run'"):
            logs.read_run(path)
    twice = [row for row in ROWS for _ in range(2)]
    assert list(logs.read_run(write(tmp_path / "a.csv", delimited(rows=twice)), None, "acc").compute) == C


def test_epochs_that_trl_rounds_become_rows(tmp_path):
    # 361 rows in 0.04 epochs, printed with two decimals: five values.
    rates = np.linspace(0.2, 0.7, 361)
    text = "".join(f"{{'reward': '{r:.4f}', 'epoch': '{n / 9000:.2f}'}}\n" for n, r in enumerate(rates))
    run = logs.read_run(write(tmp_path / "trl.log", text))
    assert run.unit == "row" and list(run.compute) == list(range(1, 362))
    assert run.notes[0] == "rows share a rounded epoch, so they are counted"
    assert logs.read_run(tmp_path / "trl.log", "epoch").unit == "epoch"
    twice = logs.read_runs(write(tmp_path / "twice.log", text * 2))
    assert [list(run.compute) for run in twice] == [list(range(1, 362))] * 2


def test_the_completions_of_an_evaluation_are_a_number_or_a_column(tmp_path):
    path = write(
        tmp_path / "a.csv", delimited(",", ("step", "acc", "n", "completions"), [(*row, 7, 12) for row in ROWS])
    )
    for asked, reads in ((None, 12), (20, 20), ("n", 7)):
        assert logs.read_run(path, None, "acc", completions=asked).completions == reads
    for asked in ("0", "-3", "m", "nan"):
        with pytest.raises(fit.BadInput, match="--completions"):
            logs.read_run(path, None, "acc", completions=asked)


# ---- Logs as crashes, pipes and editors leave them ----


def mangled(text, random):
    """The text of a log after one or two accidents."""
    lines = text.splitlines(keepends=True)

    def anywhere():
        return random.randrange(len(lines) + 1)

    accidents = [
        lambda: lines.insert(anywhere(), random.choice(["\n", "NCCL \0 INFO\n", "# note\n", "{\n"])),
        lambda: lines.extend(lines[: anywhere()]),  # started anew into the same file
        lambda: lines.__setitem__(slice(-1, None), [line[: len(line) // 2] for line in lines[-1:]]),  # a full disk
        lambda: lines.sort(key=lambda _: random.random()),
    ]
    for accident in random.choices(accidents, k=random.randint(1, 2)):
        accident()
    return "".join(lines)


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_mangled_log_gives_runs_or_one_line(tmp_path, name):
    text, reward, _ = AT_ONCE[name]
    text = text if isinstance(text, str) else text.decode("utf-16" if "utf16" in name else "latin-1")
    for seed in range(20):
        path = write(tmp_path / name, mangled(text, random.Random(seed)))
        try:
            runs = logs.read_runs(path, None, reward)
        except fit.BadInput as error:
            assert str(error).isprintable()
            continue
        for run in runs:
            assert len(run.compute) and np.isfinite(run.compute).all() and (np.diff(run.compute) >= 0).all()
