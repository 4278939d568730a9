"""Claims about plumbing/log.py: the clock C of Eq. 1, what a row adds up and says of time, a log's end."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from conftest import check_exercise, read_rows
from test_monitor import EVAL, STEP, failure

from plumbing import evaluate
from plumbing import log as run_log
from plumbing.log import Clock, RunLog, append, lock_log


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
        args = SimpleNamespace(out=str(out), virtual=None, steps=9, think_end=None, generations=8)
        self.log = RunLog(args, processes, 1000, state or {}, lambda: self.work, evaluate.draw)
        prompts = dict(train=9, validation=99, too_long=0, repeated=0, unusable=0)
        self.log("config", step=0, prompts=prompts, flags=dict(eval_every=3, eval_generations=4))
        self.log.clock.start()

    def step(self, number, *, train, publish=0.0, decoding=(), failures=()):
        """An optimizer step after `train` seconds, and its publication; decoding: the generators' seconds so far."""
        for rank, seconds in enumerate(decoding, 1):
            half = {"decode_steps": round(10 * seconds), "decode_seconds": seconds, "slot_seconds": seconds / 2}
            self.work = self.work | {rank: half}  # 0.1 s a decode step, half of the slots in use
        with self.log.timed("train"):
            self.now += train
        row = {name: value for name, value in STEP.items() if name not in ("failed_groups", "decode_seconds")}
        self.log(**row | dict(step=number, tokens=100, tokens_trained=50, kept=0, failures=failures))
        with self.log.timed("publish"):
            self.now += publish

    def rows(self, kind):
        return read_rows(self.log.out / "log.jsonl", kind)


def test_every_row_has_the_totals_of_the_steps_so_far_and_only_rank_0_writes(tmp_path):
    run = Logged(tmp_path)
    run.step(1, train=36.0, failures=[failure("a:1")])
    run.log(**EVAL | dict(step=1, pass_rate=0.5, stderr=0.1))
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
    assert second["decode_seconds"] == pytest.approx({"1": 0.1, "2": 0.1})


def test_a_log_ends_with_the_reason_and_the_screen_with_what_was_written(tmp_path, capsys):
    run = Logged(tmp_path)
    run.step(1, train=1.0)
    run.log.finish("finished", 1, 7.5)
    [end] = run.rows("end")
    assert (end["reason"], end["step"], end["seconds"], end["final"]) == ("finished", 1, 7.5, False)
    printed = capsys.readouterr().out
    assert "step    1  pass rate 0.250" in printed and "no fit: " in printed and not run.rows("fit")
    assert printed.endswith(f"written to {tmp_path}: log.jsonl, run.png\n")


def test_a_log_line_is_json_also_without_a_number_at_any_depth(tmp_path):
    row = {"entropy": math.nan, "step": 1, "tasks": {"math": math.inf, "code": [0.5, {"pass_rate": -math.inf}]}}
    append(tmp_path / "log.jsonl", row)
    tasks = {"math": None, "code": [0.5, {"pass_rate": None}]}
    found = json.loads(Path(tmp_path, "log.jsonl").read_text(), parse_constant=pytest.fail)
    assert found == {"entropy": None, "step": 1, "tasks": tasks}
