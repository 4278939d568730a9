"""Claims about plumbing/log.py: the clock C of Eq. 1, what rows say, what is warned of, what ends a run."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import check_exercise, read_rows

from plumbing import log as run_log
from plumbing.log import Monitor, RunLog, append

CONFIG = {"kind": "config", "step": 0, "prompts": {"validation": 200}}
STEP = dict(kind="step", step=7, gradient_norm=1.0, pass_rate=0.5, kept=0, truncated=0.0, skipped=False, failures=[])
STEP |= {"prompts": [0] * 20}
EVAL = dict(kind="eval", step=0, pass_rate=0.5, stderr=0.25, completions=400, answered=0.5, failures=[])


def failure(where, error="no memory", verifier=True, own=False):
    """A prompt without a verdict, as evaluation.grading_metrics has it."""
    return {"where": where, "error": error, "verifier": verifier, "own": own}


# --- Rows ------------------------------------------------------------------------------------------------------------


def test_eq1_the_clock_counts_devices_and_leaves_out_what_is_paused():
    check_exercise(run_log, "clock")


def started(now, work=None, state=None):
    """The log of one trainer and two generators at the seconds of now[0]; work: what each generator has done."""
    append(Path("log.jsonl"), CONFIG)
    processes = SimpleNamespace(rank=0, devices=3, generator_ranks=range(1, 3), hours="", clock=lambda: now[0])
    processes.heartbeat = SimpleNamespace(stop=print)
    args = SimpleNamespace(out=".", virtual=None, steps=9, loss="cispo")
    log = RunLog(args, processes, 1000, state or {}, lambda: work or {}, draw=None)
    log.observers = []
    log.clock.start()
    return log


def test_a_row_says_where_the_time_went_and_the_totals_so_far_and_evaluations_take_none():
    now, work = [0.0], {}
    log = started(now, work)

    def step(number, train, publish, decoded):
        with log.timed("train"):
            now[0] += train
        work.update({rank: {"decode_seconds": s, "slot_seconds": s / 2} for rank, s in enumerate(decoded, 1)})
        log(**STEP | dict(step=number, tokens=100, tokens_trained=50, failures=[failure("a:1")]))
        with log.timed("publish"):
            now[0] += publish

    now[0] += 6.0  # the trainer waits
    step(1, train=4.0, publish=1.0, decoded=(8.0, 4.0))
    with log.clock.paused():
        now[0] += 50.0
        log(**EVAL)
    now[0] += 5.0
    step(2, train=4.0, publish=0.0, decoded=(18.0, 12.0))
    first, evaluation, second = read_rows("log.jsonl")[1:]
    assert (first["seconds"], first["seconds_train"], first["seconds_publish"]) == pytest.approx((10.0, 4.0, 0.0))
    # The generators decoded 8 and 4 of 10 seconds, with half of their slots.
    assert (first["idle_trainers"], first["idle_generators"], first["slots_used"]) == pytest.approx((0.6, 0.4, 0.3))
    assert (second["seconds"], second["seconds_publish"]) == pytest.approx((10.0, 1.0))
    assert second["seconds_generate"] == pytest.approx(9.0)  # 10 and 8
    assert (evaluation["tokens"], evaluation["tokens_trained"], evaluation["failed_groups"]) == (100, 50, 1)
    assert evaluation["flops"] == 1000 * (2 * 100 + 6 * 50)  # 2 N a generated token, 6 N a trained one
    assert evaluation["gpu_hours"] == pytest.approx(3 * 11 / 3600)
    assert second["flops"] == 2 * evaluation["flops"] and log.state()["totals"]["tokens"] == 200


def test_a_resumed_log_adds_to_the_totals_of_its_checkpoint_and_to_what_a_crash_cost():
    append(Path("log.jsonl"), {"kind": "step", "gpu_hours": 1.25, "tokens": 130, "tokens_trained": 60})
    totals = {"tokens": 100, "tokens_trained": 50, "lost_gpu_hours": 0.5, "failed_groups": 2}
    state = started([0.0], state={"totals": totals, "gpu_hours": 1.0}).state()
    assert state["totals"] == {"tokens": 130, "tokens_trained": 60, "lost_gpu_hours": 0.75, "failed_groups": 2}
    assert state["gpu_hours"] == 1.25


def test_a_log_line_is_json_also_without_a_number_at_any_depth(tmp_path):
    append(tmp_path / "a", {"entropy": math.nan, "tasks": {"math": math.inf, "code": [0.5, {"pass_rate": -math.inf}]}})
    written = json.loads((tmp_path / "a").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert written == {"entropy": None, "tasks": {"math": None, "code": [0.5, {"pass_rate": None}]}}


# --- What is warned of, and what ends a run --------------------------------------------------------------------------

USUAL = {}
FAR, NEAR = {"log_rho_youngest": 0.7}, {"log_rho_youngest": 0.1}  # nats; ln 2 is 0.693
FLAT = {"gradient_norm": 0.0}
SKIPPED = {"gradient_norm": math.nan, "skipped": True}
CUT = {"truncated": 0.2}
UNREADABLE = failure("b:1", "unreadable", verifier=False)
BROKEN = [failure("a:1"), failure("a:2"), failure("a:3")]
RAISED = {"failures": [failure(f"b:{n}", "raised KeyError", verifier=False, own=True) for n in range(5)]}


@pytest.mark.parametrize("rows, count, words", [
    ([EVAL, *[USUAL] * 30, {"kind": "fit"}, {"kind": "end"}], 0, ""),
    # Weights that differ, three steps in a row; not tokens that are more and more stale.
    ([FAR, FAR, NEAR, USUAL, FAR], 3, "^WARNING.*0.70 nats"),
    ([NEAR] * 3 + [FAR] * 3, 4, "ENDED .*0.70 nats, for 3 steps"),
    ([{"log_rho_youngest": 0.1 * step} for step in range(20)], 0, ""),
    # A.15: 5 steps at 20 % are 10 % of 10 steps, which is not above the limit; after a warning they are counted anew.
    ([CUT] * 11, 1, "^WARNING: 20% .*last 6 steps"),
    # Ten batches without gradient in a row.
    ([FLAT] * 9 + [USUAL] + [FLAT] * 10, 1, "10 batches in a row"),
    ([SKIPPED] * 4 + [USUAL] + [SKIPPED] * 5, 10, "^WARNING: the gradient of step 1 .*ENDED no gradient of the last 5"),
    # A verifier that fails on more than 1 % of the last 10 steps' 200 groups, of the first step's as of 100 ...
    ([USUAL] * 9 + [{"failed_groups": 2}], 0, ""),
    ([USUAL] * 9 + [{"failed_groups": 3, "failures": [*BROKEN[:2], UNREADABLE]}], 4,
     "ENDED the verifier failed on 3 groups: no memory$"),
    # ... or of a validation's prompts, unlike references that cannot be read.
    ([EVAL | {"failures": BROKEN[:2] + [UNREADABLE] * 10}], 3, ""),
    ([EVAL | {"failures": BROKEN + [UNREADABLE] * 10}], 5, "ENDED the verifier failed on 3 groups: no memory"),
    ([EVAL | {"completions": 0, "failures": [UNREADABLE]}], 2, "ENDED no validation prompt got verdicts: unreadable"),
    # A prompt without a verdict is named once, and of one's own function only the first.
    ([{"failures": [UNREADABLE]}] * 2, 1, "^NO VERDICT b:1: unreadable$"),
    ([RAISED] * 3, 1, "^NO VERDICT b:0: raised KeyError$"),
])  # fmt: skip
def test_what_is_warned_of_and_what_ends_a_run(rows, count, words):
    lines = []
    monitor = Monitor(lines.append, lambda reason: lines.append(f"ENDED {reason}"), "cispo")
    monitor(CONFIG)
    for number, row in enumerate(rows, 1):
        monitor(STEP | {"step": number, "failed_groups": 0} | row)
    assert len(lines) == count and re.search(words, " ".join(lines))
