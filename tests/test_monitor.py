"""Claims about plumbing/watch/monitor.py: what rows of the log it warns of, and which end a run."""

from types import SimpleNamespace

import pytest

from plumbing.watch.monitor import Monitor

STEP = dict(kind="step", gradient_norm=1.0, pass_rate=0.25, truncated=0.0, skipped=False, prompts=[0] * 20, failures=[])
STEP |= dict(failed_groups=0, decode_seconds={1: 0.1}, length_max=100, timed_out=0)
EVAL = dict(kind="eval", step=0, completions=400, unverified=0, answered=0.5, silent=0, timed_out=0, failures=[])


def failure(where, error="no memory", verifier=True, own=False):
    """A prompt without a verdict, as evaluation.grading_metrics has it."""
    return {"where": where, "error": error, "verifier": verifier, "own": own}


def watched(*rows, held_out=200, virtual=None, start=1):
    """(the lines that a monitor writes, why it ended the run or None) of rows, each as {changed column: value}."""
    said, ends = [], []
    heartbeat = SimpleNamespace(stop=lambda reason, failed: ends.append((reason, failed)))
    processes = SimpleNamespace(heartbeat=heartbeat, name=lambda rank: f"generator rank {rank}")
    watch = Monitor(said.append, processes, SimpleNamespace(virtual=virtual, think_end="</think>", generations=4))
    watch({"kind": "config", "step": start, "prompts": {"validation": held_out}})
    for number, row in enumerate(rows, 1):
        watch((EVAL if row.get("kind") == "eval" else STEP | {"step": number}) | row)
    assert all(failed for _, failed in ends)  # the run's end is a failure, for its exit code
    return said, ends[0][0] if ends else None


def test_nothing_is_said_of_rows_as_they_should_be():
    assert watched({"kind": "eval"}, *[{}] * 30, {"kind": "fit"}, {"kind": "end"}) == ([], None)


def test_weights_that_differ_are_warned_of_and_end_the_run_after_three_steps_in_a_row():
    far, near = {"log_rho_youngest": 0.7}, {"log_rho_youngest": 0.1}  # nats; ln 2 is 0.693
    said, reason = watched(far, far, near, {}, far)
    assert len(said) == 3 and reason is None and "0.70 nats" in said[0] and "factor of 2.0" in said[0]
    said, reason = watched(far, far, far)
    assert "do not load the weights" in reason and "0.70 nats, for 3 steps in a row" in reason
    slow = [{"log_rho_youngest": 0.1 * step} for step in range(20)]  # tokens that are more and more stale
    assert watched(*slow) == ([], None)


def test_a15_many_truncated_completions_are_warned_of_as_soon_as_ten_steps_are_lost():
    # 5 steps at 20 % are 10 % of 10 steps, which is not above the limit; 6 are.
    assert watched(*[{"truncated": 0.2}] * 5) == ([], None)
    said, _ = watched(*[{"truncated": 0.2}] * 11)  # after a warning they are counted anew
    assert len(said) == 1 and "--interrupt-at" in said[0]
    assert said[0].startswith("WARNING: 20% of the completions of the last 6 steps")


def test_ten_batches_without_gradient_in_a_row_are_warned_of():
    nine = [{"gradient_norm": 0.0}] * 9
    assert watched(*nine, {}, *nine) == ([], None)
    [said], _ = watched(*nine, {}, *nine, {"gradient_norm": 0.0})
    assert "10 batches in a row had no gradient" in said and "pass rate of the last batch 0.250" in said
    assert "--think-end" in said


def test_skipped_steps_are_named_and_five_in_a_row_end_the_run():
    skipped = {"skipped": True, "gradient_norm": float("nan")}
    said, end = watched(*[skipped] * 4, {}, *[skipped] * 4)
    assert end is None and len(said) == 8 and said[0].startswith("WARNING: the gradient of step 1 was not finite")
    _, end = watched(*[skipped] * 5)
    assert end.startswith("no gradient of the last 5 steps was finite")


@pytest.mark.parametrize("answered, step, warned", [(0.0, 0, True), (0.01, 0, False), (0.0, 5, False)])
def test_a_first_validation_without_any_mark_is_said_aloud(answered, step, warned):
    said, _ = watched({"kind": "eval", "answered": answered, "step": step})
    assert ["none of the 400 completions" in line and "--think-end TEXT" in line for line in said] == [True] * warned


@pytest.mark.parametrize("held_out, warned", [(15, True), (16, False)])
def test_few_held_out_prompts_are_said_aloud_when_a_run_starts(held_out, warned):
    assert ["only 15 held-out prompts" in line for line in watched(held_out=held_out, start=0)[0]] == [True] * warned


def test_failing_verifiers_end_the_run_above_one_percent_of_the_groups():
    steps = [{}] * 9  # of 20 groups each: 200 with the last
    assert watched(*steps, {"failed_groups": 2})[1] is None
    broken = [failure("a:1"), failure("a:2"), failure("a:3", "", verifier=False)]
    assert "the verifier failed on 3 groups: no memory" == watched(*steps, {"failed_groups": 3, "failures": broken})[1]
    assert watched({"failed_groups": 1})[1] is None  # of 20: counted as 1 of 100
    assert "2 groups: see `failures` in the log" in watched({"failed_groups": 2})[1]


def test_a_verifier_that_fails_on_one_percent_of_the_validation_ends_the_run_but_a_bad_reference_does_not():
    failures = [failure("a:1"), failure("a:2"), *[failure(f"b:{n}", "unreadable", verifier=False) for n in range(10)]]
    assert watched({"kind": "eval", "failures": failures})[1] is None
    _, end = watched({"kind": "eval", "failures": [*failures, failure("a:3")]})
    assert end == "the verifier failed on 3 groups: no memory"


def test_a_validation_without_any_verdict_ends_the_run_and_says_why():
    none = {"kind": "eval", "completions": 0, "step": 8}
    _, end = watched(none | {"failures": [failure("a:1", "unreadable", verifier=False)]})
    assert end == "no validation prompt got verdicts: unreadable"
    _, end = watched(none | {"silent": 200})
    assert end.startswith("no validation prompt got verdicts: the function of --reward returned None")


def test_a_prompt_without_a_verdict_is_named_once_and_of_ones_own_function_only_the_first():
    again = {"failures": [failure("a:1", "unreadable", verifier=False)]}
    assert watched(again, again) == (["NO VERDICT a:1: unreadable"], None)
    raised = [failure(f"b:{n}", "raised KeyError", verifier=False, own=True) for n in range(5)]
    said, _ = watched(*[{"failures": raised}] * 3)
    assert said == ["NO VERDICT b:0: raised KeyError"]


def test_more_than_a_tenth_of_verdicts_that_time_out_are_warned_of_once_and_each_in_virtual_time():
    # 20 prompts of 4 generations: 8 are a tenth. Of 400 in the validation, 40 are.
    assert watched({"timed_out": 8}, {"kind": "eval", "timed_out": 40}) == ([], None)
    for late in ({"timed_out": 10}, {"kind": "eval", "timed_out": 50, "completions": 390, "unverified": 10}):
        [said], _ = watched(late, late)
        assert said.startswith("WARNING") and "--verify-timeout for 12% of the completions" in said
    [said], _ = watched({"timed_out": 1}, {"timed_out": 1}, virtual="exact")
    assert "this run may not repeat bit for bit" in said


def test_a_slow_generator_is_named_when_it_becomes_slow_with_what_it_costs():
    usual, slow = {1: 0.1, 2: 0.1, 3: 0.1, 4: 0.1}, {1: 0.1, 2: 0.1, 3: 0.1, 4: 0.25}
    said, _ = watched(*[{"decode_seconds": one} for one in (usual, slow, slow)])
    # 100 tokens x (0.25 - 0.1) s
    assert len(said) == 1 and said[0].startswith("WARNING: generator rank 4 takes 2.5 times as long")
    assert "100 tokens takes 15.0 s longer" in said[0]
    assert len(watched(*[{"decode_seconds": one} for one in (slow, usual, slow)])[0]) == 2
