"""Claims about plumbing/log.py: the clock C of Eq. 1, what rows say, what is warned of and shown, what ends a run."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from conftest import check_exercise, read_rows

from plumbing import evaluate
from plumbing import log as run_log
from plumbing.log import Clock, Monitor, RunLog, Screen, append, lock_log

CONFIG = {"kind": "config", "step": 0, "flags": {"eval_every": 3, "eval_generations": 4}}
CONFIG |= {"prompts": {"train": 9, "validation": 200, "too_long": 0, "repeated": 0, "unusable": 0}}
STEP = dict(kind="step", step=7, gradient_norm=1.0, pass_rate=0.5, kept=0, truncated=0.0, skipped=False, failures=[])
STEP |= {"prompts": [0] * 20}
TIMES = {"idle_generators": 0.1, "idle_trainers": 0.2, "gpu_hours": 0.25, "failed_groups": 0}
EVAL = dict(kind="eval", step=7, pass_rate=0.5, stderr=0.25, completions=400, answered=0.5, failures=[])


def failure(where, error="no memory", verifier=True, own=False):
    """A prompt without a verdict, as evaluation.grading_metrics has it."""
    return {"where": where, "error": error, "verifier": verifier, "own": own}


# --- Rows ------------------------------------------------------------------------------------------------------------


def test_eq1_the_clock_counts_devices_and_leaves_out_what_is_paused():
    check_exercise(run_log, "clock")
    now = [1000.0]
    clock = Clock(devices=4, gpu_hours=0.02, read=lambda: now[0])
    now[0] += 7  # R_0 is measured before the clock starts
    clock.start()
    now[0] += 18
    assert clock.gpu_hours == pytest.approx(0.04)  # a resumed run's 0.02 + 4 devices x 18 s / 3600


class Logged:
    """The log of a run of one trainer and two generators whose clock and work the test sets."""

    def __init__(self, out, rank=0, state=None):
        self.now = 0.0
        self.work = {}
        processes = MagicMock(rank=rank, devices=3, generator_ranks=range(1, 3), hours="device-hours")
        processes.clock, processes.heartbeat.final = lambda: self.now, False
        processes.lock = None if rank else lock_log(out)
        args = SimpleNamespace(out=str(out), virtual=None, steps=9, loss="cispo")
        self.log = RunLog(args, processes, 1000, state or {}, lambda: self.work, evaluate.draw)
        self.log(**CONFIG)
        self.log.clock.start()

    def step(self, number, *, train, publish=0.0, decoding=(), failures=()):
        """An optimizer step after `train` seconds, and its publication; decoding: the generators' seconds so far."""
        for rank, seconds in enumerate(decoding, 1):
            self.work[rank] = {"decode_seconds": seconds, "slot_seconds": seconds / 2}  # half of the slots in use
        with self.log.timed("train"):
            self.now += train
        self.log(**STEP | dict(step=number, tokens=100, tokens_trained=50, failures=failures))
        with self.log.timed("publish"):
            self.now += publish

    def rows(self, kind):
        return read_rows(self.log.out / "log.jsonl", kind)


def test_every_row_has_the_totals_of_the_steps_so_far_and_only_rank_0_writes(tmp_path):
    run = Logged(tmp_path)
    run.step(1, train=36.0, failures=[failure("a:1")])
    run.log(**EVAL)
    run.step(2, train=36.0)
    [row] = run.rows("eval")
    assert (row["tokens"], row["tokens_trained"], row["failed_groups"]) == (100, 50, 1)
    assert row["flops"] == 1000 * (2 * 100 + 6 * 50)  # 2 N a generated token, 6 N a trained one
    assert row["gpu_hours"] == pytest.approx(3 * 36 / 3600)
    assert run.rows("step")[1]["flops"] == 2 * row["flops"]
    assert run.log.state()["totals"]["tokens"] == 200
    other = Logged(tmp_path / "other", rank=1)
    other.step(1, train=1.0)
    other.log.finish("finished", 1, 1.0)
    assert not (tmp_path / "other").exists()


def test_a_resumed_log_adds_to_the_totals_of_its_checkpoint_and_to_what_a_crash_cost(tmp_path):
    totals = {"tokens": 100, "tokens_trained": 50, "lost_gpu_hours": 0.5, "failed_groups": 2}
    append(tmp_path / "log.jsonl", {"kind": "step", "gpu_hours": 1.25, "tokens": 130, "tokens_trained": 60})
    [row] = Logged(tmp_path, state={"totals": totals, "gpu_hours": 1.0}).rows("config")
    assert (row["tokens"], row["tokens_trained"], row["failed_groups"]) == (130, 60, 2)
    assert (row["gpu_hours"], row["lost_gpu_hours"]) == (1.25, 0.75)


def test_a_step_says_where_its_time_went_and_an_evaluation_takes_none(tmp_path):
    run = Logged(tmp_path)
    run.now += 6.0  # the trainer waits
    run.step(1, train=4.0, publish=1.0, decoding=(8.0, 4.0))
    with run.log.clock.paused():
        run.now += 50.0
    run.now += 5.0
    run.step(2, train=4.0, decoding=(18.0, 12.0))
    first, second = run.rows("step")
    assert (first["seconds"], first["seconds_train"], first["seconds_publish"]) == pytest.approx((10.0, 4.0, 0.0))
    # The generators decoded 8 and 4 of 10 seconds, with half of their slots.
    assert (first["idle_trainers"], first["idle_generators"], first["slots_used"]) == pytest.approx((0.6, 0.4, 0.3))
    assert (second["seconds"], second["seconds_publish"]) == pytest.approx((10.0, 1.0))
    assert second["seconds_generate"] == pytest.approx(9.0)  # 10 and 8


def test_a_log_ends_with_the_reason_and_the_screen_with_what_was_written(tmp_path, capsys):
    run = Logged(tmp_path)
    run.step(1, train=1.0)
    run.log.finish("finished", 1, 7.5)
    [end] = run.rows("end")
    assert (end["reason"], end["step"], end["seconds"], end["final"]) == ("finished", 1, 7.5, False)
    printed = capsys.readouterr().out
    assert "step    1  pass rate 0.500" in printed and "no fit: " in printed and not run.rows("fit")
    assert printed.endswith(f"written to {tmp_path}: log.jsonl, run.png\n")


def test_a_log_line_is_json_also_without_a_number_at_any_depth(tmp_path):
    row = {"entropy": math.nan, "step": 1, "tasks": {"math": math.inf, "code": [0.5, {"pass_rate": -math.inf}]}}
    append(tmp_path / "log.jsonl", row)
    tasks = {"math": None, "code": [0.5, {"pass_rate": None}]}
    written = json.loads(Path(tmp_path, "log.jsonl").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert written == {"entropy": None, "step": 1, "tasks": tasks}


# --- What is warned of, and what ends a run --------------------------------------------------------------------------

USUAL = {}
FAR, NEAR = {"log_rho_youngest": 0.7}, {"log_rho_youngest": 0.1}  # nats; ln 2 is 0.693
FLAT = {"gradient_norm": 0.0}
SKIPPED = {"gradient_norm": math.nan, "skipped": True}
CUT = {"truncated": 0.2}
UNREADABLE = failure("b:1", "unreadable", verifier=False)
BROKEN = [failure("a:1"), failure("a:2"), failure("a:3")]
RAISED = {"failures": [failure(f"b:{n}", "raised KeyError", verifier=False, own=True) for n in range(5)]}


def validation(**columns):
    return EVAL | {"step": 0} | columns


@pytest.mark.parametrize("rows, count, words", [
    ([validation(), *[USUAL] * 30, {"kind": "fit"}, {"kind": "end"}], 0, ""),
    # Weights that differ, three steps in a row; not tokens that are more and more stale.
    ([FAR, FAR, NEAR, USUAL, FAR], 3, "^WARNING.*0.70 nats"),
    ([NEAR] * 3 + [FAR] * 3, 4, "ENDED .*0.70 nats, for 3 steps"),
    ([{"log_rho_youngest": 0.1 * step} for step in range(20)], 0, ""),
    # A.15: 5 steps at 20 % are 10 % of 10 steps, which is not above the limit; after a warning they are counted anew.
    ([CUT] * 11, 1, "^WARNING: 20% .*last 6 steps"),
    # Ten batches without gradient in a row.
    ([FLAT] * 9 + [USUAL] + [FLAT] * 9, 0, ""),
    ([FLAT] * 19, 1, "10 batches in a row"),
    ([SKIPPED] * 4 + [USUAL] + [SKIPPED] * 4, 8, "^WARNING: the gradient of step 1 was not finite"),
    ([SKIPPED] * 5, 6, "ENDED .*; likely cause: nan or inf in what --loss losses.py:mine returns"),
    # A verifier that fails on more than 1 % of the last 10 steps' 200 groups, of the first step's as of 100 ...
    ([USUAL] * 9 + [{"failed_groups": 2}], 0, ""),
    ([USUAL] * 9 + [{"failed_groups": 3, "failures": [*BROKEN[:2], UNREADABLE]}], 4,
     "ENDED the verifier failed on 3 groups: no memory$"),
    # ... or of a validation's prompts, unlike references that cannot be read.
    ([validation(failures=BROKEN[:2] + [UNREADABLE] * 10)], 3, ""),
    ([validation(failures=BROKEN + [UNREADABLE] * 10)], 5, "ENDED the verifier failed on 3 groups: no memory"),
    ([validation(completions=0, failures=[UNREADABLE])], 2, "ENDED no validation prompt got verdicts: unreadable"),
    ([validation(completions=0)], 1, "ENDED no .* verdicts: the function of --reward returned None"),
    # A prompt without a verdict is named once, and of one's own function only the first.
    ([{"failures": [UNREADABLE]}] * 2, 1, "^NO VERDICT b:1: unreadable$"),
    ([RAISED] * 3, 1, "^NO VERDICT b:0: raised KeyError$"),
])  # fmt: skip
def test_what_is_warned_of_and_what_ends_a_run(rows, count, words):
    loss = "losses.py:mine" if "losses.py" in words else "cispo"
    lines = []
    monitor = Monitor(lines.append, lambda reason: lines.append(f"ENDED {reason}"), loss)
    monitor(CONFIG)
    for number, row in enumerate(rows, 1):
        monitor(STEP | TIMES | {"step": number} | row)
    assert len(lines) == count and re.search(words, " ".join(lines))


# --- What is shown ---------------------------------------------------------------------------------------------------

CURVES = {"tasks": {"math": 0.5, "aime.jsonl": 0.125}, "tasks_stderr": {"math": 0.25, "aime.jsonl": 0.0625}}


@pytest.mark.parametrize("row, shown", [
    (STEP, ["kept 0, no gradient", "generators 10%, trainers 20%", "0.2500 device-hours"]),
    (STEP | {"kept": 3, "entropy": 1.25, "rho_mean": 1.0, "rho_max": 2.0}, ["entropy 1.250", "1.000 (max 2.00)"]),
    (EVAL | CURVES, ["0.500 +- 0.250", "400 completions", "aime.jsonl  0.125 +- 0.062"]),
])  # fmt: skip
def test_a_row_as_it_is_shown_without_a_terminal(row, shown, capsys):
    screen = Screen(9, "device-hours")
    screen(row | TIMES)
    screen({"kind": "end", "step": 7})
    screen.close()
    printed = capsys.readouterr()
    assert not [words for words in shown if words not in printed.out] and printed.err == ""


def test_in_virtual_time_only_evaluations_get_a_line(capsys):
    screen = Screen(9, "virtual device-hours", virtual=True)
    for row in (STEP, EVAL, STEP):
        screen(row | TIMES)
    assert capsys.readouterr().out.count("\n") == 1
