"""Claims about plumbing/log.py: what rows of the log it warns of, and which end a run."""

import math
import re
from types import SimpleNamespace

import pytest

from plumbing.log import Monitor

STEP = dict(kind="step", gradient_norm=1.0, pass_rate=0.25, truncated=0.0, skipped=False, prompts=[0] * 20, failures=[])
STEP |= dict(failed_groups=0, decode_seconds={1: 0.1}, length_max=100, timed_out=0)
EVAL = dict(kind="eval", step=0, completions=400, unverified=0, answered=0.5, silent=0, timed_out=0, failures=[])


def failure(where, error="no memory", verifier=True, own=False):
    """A prompt without a verdict, as evaluation.grading_metrics has it."""
    return {"where": where, "error": error, "verifier": verifier, "own": own}


def watched(*rows, held_out=200, virtual=None, start=1):
    """What a monitor says of rows, each as {changed column: value}, and why it ends the run."""
    said = []

    def stop(reason, failed):
        said.append(("FAILED " if failed else "ENDED ") + reason)

    processes = SimpleNamespace(heartbeat=SimpleNamespace(stop=stop), name=lambda rank: f"generator rank {rank}")
    watch = Monitor(said.append, processes, SimpleNamespace(virtual=virtual, think_end="</think>", generations=4))
    watch({"kind": "config", "step": start, "prompts": {"validation": held_out}})
    for number, row in enumerate(rows, 1):
        watch((EVAL if row.get("kind") == "eval" else STEP | {"step": number}) | row)
    return said


USUAL = {}
FAR, NEAR = {"log_rho_youngest": 0.7}, {"log_rho_youngest": 0.1}  # nats; ln 2 is 0.693
FLAT = {"gradient_norm": 0.0}
SKIPPED = {"gradient_norm": math.nan, "skipped": True}
CUT = {"truncated": 0.2}
EVEN, SLOW = ({"decode_seconds": {1: 0.1, 2: 0.1, 3: 0.1, 4: seconds}} for seconds in (0.1, 0.25))
UNREADABLE = failure("b:1", "unreadable", verifier=False)
BROKEN = [failure("a:1"), failure("a:2"), failure("a:3")]
RAISED = {"failures": [failure(f"b:{n}", "raised KeyError", verifier=False, own=True) for n in range(5)]}


def validation(**columns):
    return {"kind": "eval"} | columns


@pytest.mark.parametrize("rows, lines, said", [
    ([validation(), *[USUAL] * 30, {"kind": "fit"}, {"kind": "end"}], 0, ""),
    # Weights that differ, three steps in a row; not tokens that are more and more stale.
    ([FAR, FAR, NEAR, USUAL, FAR], 3, "^WARNING.*0.70 nats.*factor of 2.0"),
    ([FAR] * 3, 4, "FAILED .*0.70 nats, for 3 steps in a row.*do not load the weights"),
    ([{"log_rho_youngest": 0.1 * step} for step in range(20)], 0, ""),
    # A.15: 5 steps at 20 % are 10 % of 10 steps, which is not above the limit; after a warning they are counted anew.
    ([CUT] * 5, 0, ""),
    ([CUT] * 11, 1, "^WARNING: 20% of the completions of the last 6 steps.*--interrupt-at"),
    # Ten batches without gradient in a row.
    ([FLAT] * 9 + [USUAL] + [FLAT] * 9, 0, ""),
    ([FLAT] * 10, 1, "10 batches in a row had no gradient.*pass rate of the last batch 0.250.*--think-end"),
    ([SKIPPED] * 4 + [USUAL] + [SKIPPED] * 4, 8, "^WARNING: the gradient of step 1 was not finite"),
    ([SKIPPED] * 5, 6, "FAILED no gradient of the last 5 steps was finite"),
    # A first validation without any mark.
    ([validation(answered=0.0)], 1, "none of the 400 completions.*--think-end TEXT"),
    ([validation(answered=0.01), validation(answered=0.0, step=5)], 0, ""),
    # A verifier that fails on more than 1 % of the last 10 steps' 200 groups, of the first step's as of 100 ...
    ([USUAL] * 9 + [{"failed_groups": 2}], 0, ""),
    ([USUAL] * 9 + [{"failed_groups": 3, "failures": [*BROKEN[:2], UNREADABLE]}], 4,
     "FAILED the verifier failed on 3 groups: no memory$"),
    ([{"failed_groups": 1}], 0, ""),
    ([{"failed_groups": 2}], 1, "FAILED .*2 groups: see `failures` in the log"),
    # ... or of a validation's prompts, unlike references that cannot be read.
    ([validation(failures=BROKEN[:2] + [UNREADABLE] * 10)], 3, ""),
    ([validation(failures=BROKEN + [UNREADABLE] * 10)], 5, "FAILED the verifier failed on 3 groups: no memory"),
    ([validation(completions=0, failures=[UNREADABLE])], 2, "FAILED no validation prompt got verdicts: unreadable"),
    ([validation(completions=0, silent=200)], 1, "FAILED no .* verdicts: the function of --reward returned None"),
    # A prompt without a verdict is named once, and of one's own function only the first.
    ([{"failures": [UNREADABLE]}] * 2, 1, "^NO VERDICT b:1: unreadable$"),
    ([RAISED] * 3, 1, "^NO VERDICT b:0: raised KeyError$"),
    # More than a tenth of the verdicts time out: of 20 prompts of 4 generations, or of 400 completions.
    ([{"timed_out": 8}, validation(timed_out=40)], 0, ""),
    ([{"timed_out": 10}] * 2, 1, "^WARNING.*--verify-timeout for 12% of the completions"),
    ([validation(timed_out=50, completions=390, unverified=10)] * 2, 1, "^WARNING.*--verify-timeout for 12% of"),
    # A generator is named when it becomes slow, with what it costs: 100 tokens x (0.25 - 0.1) s.
    ([EVEN, SLOW, SLOW], 1, "^WARNING: generator rank 4 takes 2.5 times as long.*100 tokens takes 15.0 s longer"),
    ([SLOW, EVEN, SLOW], 2, ""),
])  # fmt: skip
def test_what_is_warned_of_and_what_ends_a_run(rows, lines, said):
    found = watched(*rows)
    assert len(found) == lines and re.search(said, " ".join(found))


def test_few_held_out_prompts_are_said_aloud_when_a_run_starts():
    [said] = watched(held_out=15, start=0)
    assert "only 15 held-out prompts" in said
    assert watched(held_out=16, start=0) == []


def test_in_virtual_time_every_verdict_that_times_out_is_warned_of():
    [said] = watched({"timed_out": 1}, {"timed_out": 1}, virtual="exact")
    assert "this run may not repeat bit for bit" in said
