"""Warnings of what ruins runs, read from the rows of the log; train.py does not know of them.

    Monitor(...)(row)   prints a warning, or asks for the end of the run: verifiers that fail, gradients not finite

Paper: A.15 (truncations above 10 to 15 % of the completions destabilise runs).

Run by log.py. Test: pytest tests/test_monitor.py
"""

import math
import statistics
from collections import deque

from plumbing.screen import counted

TRUNCATION = 0.1  # A.15
TRUNCATED_STEPS = 10  # steps whose shares of truncated completions are averaged
STANDING = 10  # batches in a row without gradient before a warning
FEW_HELD_OUT = 16  # with fewer held-out prompts a warning says that they are too few for a curve
LATE = 0.1  # share of the verdicts of a batch or validation that time out above which a warning says so
UNVERIFIED = 0.01  # a run stops when the verifier failed on a larger share of its groups (of 100, if it has had fewer)
SKIPPED = 5  # steps in a row without a finite gradient, after which a run stops
FAR = math.log(2)  # nats: a step is warned of with a larger mean |log rho| of its youngest tokens (kept runs: <= 0.56),
JUMP = 5.0  # if it is so many times the median of the last ten. With stale tokens it rises too, but step by step
FAR_STEPS = 3  # steps in a row, after which a run stops
SLOW = 2.0  # a generator is slow whose decode steps take so many times the median, of 4 generators or more

WARNINGS = {
    "far": "in step {step} mean |log rho| of the youngest tokens is {log_rho:.2f} nats: trainers and generators differ "
    "by a factor of {factor:.1f}",
    "few held out": "only {count}: too few for a curve or a forecast. A tenth of a small file is held out; "
    "train.py --evaluate MODEL --data FILE asks all of its rows",
    "late": "checking took longer than --verify-timeout for {share:.0%} of the completions; they count as wrong. "
    "Unless the policy writes endless programs or formulas, raise it, or lower --verifiers",
    "no gradient": "{batches} batches in a row had no gradient: in every group all completions were right, or all "
    "wrong, as truncated ones are (pass rate of the last batch {pass_rate:.3f}). All wrong: easier --data, more "
    "--generations, or answers that are not found (completions.jsonl; --think-end). All right: harder --data",
    "no mark": "none of the {completions} completions of the validation holds {mark!r}, unless an interruption put it "
    "there, and none is right: every reward is -1, and nothing will be learnt. If the model uses no mark: --think-end "
    "none; if another one: --think-end TEXT; if it thinks for longer: a larger --max-new-tokens or --interrupt-at",
    "repeat": "checking an answer took longer than --verify-timeout: this run may not repeat bit for bit",
    "skipped": "the gradient of step {step} was not finite; its update was skipped",
    "slow": "{name} takes {times:.1f} times as long for a decode step as is usual. A completion of {tokens} tokens "
    "takes {seconds:.1f} s longer there, for which each step waits. End the run and go on without it: --resume",
    "truncated": "{share:.0%} of the completions of the last {steps} steps were truncated and carry no loss. Runs "
    "destabilise above {limit:.0%} (A.15): raise --max-new-tokens, or interrupt earlier (--interrupt-at)",
}


class Monitor:
    """An observer of the log.

    write      a function of a text, for the screen
    processes  processes.Processes: its names of ranks, and the heartbeat that is asked for the end of the run
    args       settings.Settings
    """

    def __init__(self, write, processes, args):
        self.write = write
        self.processes = processes
        self.args = args
        self.truncated = deque(maxlen=TRUNCATED_STEPS)
        self.standing = self.skipped = self.far = 0  # batches, steps, steps in a row
        self.near = deque(maxlen=10)  # log_rho_youngest of earlier steps, as it should be
        self.raised = False  # --reward has failed on a group
        self.slow = {}  # those named already
        self.shown = set()  # (where, error)
        self.late = self.often = False  # a verdict has timed out; more than LATE of them have
        self.of_kind = {"config": self.on_config, "step": self.on_step, "eval": self.on_evaluation}

    def __call__(self, row):
        if row["kind"] in self.of_kind:
            self.of_kind[row["kind"]](row)

    def warn(self, which, **values):
        self.write(f"WARNING: {WARNINGS[which].format(**values)}")

    def stop(self, reason):
        self.processes.heartbeat.stop(reason, failed=True)

    def on_config(self, row):
        self.held_out = row["prompts"]["validation"]
        if self.held_out < FEW_HELD_OUT and row["step"] == 0:
            self.warn("few held out", count=counted(self.held_out, "held-out prompt"))

    def on_step(self, row):
        self.standing = 0 if row["gradient_norm"] else self.standing + 1
        if self.standing == STANDING:
            self.warn("no gradient", batches=STANDING, pass_rate=row["pass_rate"])
            self.standing = 0
        self.truncated.append(row["truncated"])
        if sum(self.truncated) > TRUNCATION * TRUNCATED_STEPS:
            share = statistics.fmean(self.truncated)
            self.warn("truncated", share=share, steps=len(self.truncated), limit=TRUNCATION)
            self.truncated.clear()
        self.skipped = self.skipped + 1 if row["skipped"] else 0
        if self.skipped:
            self.warn("skipped", step=row["step"])
        if self.skipped >= SKIPPED:
            cause = "an importance ratio without upper bound (dapo and grpo have none where the advantage is negative)"
            self.stop(f"no gradient of the last {SKIPPED} steps was finite; likely cause: {cause}, or --lr")
        self.check_weights(row)
        self.check_speed(row)
        self.check_late(row, len(row["prompts"]) * self.args.generations)
        self.show_failures(row)
        self.check_verifier(row, row["failed_groups"], row["step"] * len(row["prompts"]))

    def on_evaluation(self, row):
        failed = sum(failure["verifier"] for failure in row["failures"])
        self.check_late(row, row["completions"] + row["unverified"])
        self.show_failures(row)
        self.check_verifier(row, failed, self.held_out)
        if not row["completions"]:
            error = row["failures"][0]["error"] if row["failures"] else "the function of --reward returned None"
            self.stop(f"no validation prompt got verdicts: {error}")
        if row["step"] == 0 and not row["answered"]:
            self.warn("no mark", completions=row["completions"], mark=self.args.think_end)

    def check_weights(self, row):
        """Warn if the generators seem to have other weights than the trainers; stop the run if that stays so."""
        if (far := row.get("log_rho_youngest")) is None:  # not a token could be compared
            return
        if far > max(FAR, JUMP * statistics.median(self.near or [0.0])):
            self.far += 1
        elif math.isfinite(far):
            self.far = 0
            self.near.append(far)
        if self.far:
            self.warn("far", step=row["step"], log_rho=far, factor=math.exp(far))
        if self.far >= FAR_STEPS:
            expected = f"before it was {statistics.median(self.near or [0.0]):.2g}"
            causes = "the generators do not load the weights that they are sent, or --lr is too large"
            measured = f"mean |log rho| of the youngest tokens is {far:.2f} nats, for {FAR_STEPS} steps in a row"
            self.stop(f"{measured}; {expected}; likely cause: {causes}")

    def check_speed(self, row):
        """Name slow generators once, with what they cost."""
        slow = stragglers(row["decode_seconds"])
        for rank in slow.keys() - self.slow.keys():
            mine = row["decode_seconds"][rank]
            usual = slow[rank]
            longer = row["length_max"] * (mine - usual)
            name = self.processes.name(rank)
            self.warn("slow", name=name, times=mine / usual, tokens=row["length_max"], seconds=longer)
        self.slow = slow

    def check_late(self, row, completions):
        """Say once that a verdict has timed out, if the run shall repeat; and once that many have."""
        if row["timed_out"] and self.args.virtual and not self.late:
            self.late = True
            self.warn("repeat")
        if row["timed_out"] > LATE * completions and not self.often:
            self.often = True
            self.warn("late", share=row["timed_out"] / completions)

    def show_failures(self, row):
        """Show each prompt without a verdict once; of failures of --reward only the first."""
        for failure in row["failures"]:
            known = failure["own"] and self.raised or (failure["where"], failure["error"]) in self.shown
            self.raised |= failure["own"]
            if not known:
                self.shown.add((failure["where"], failure["error"]))
                self.write("NO VERDICT {where}: {error}".format(**failure))

    def check_verifier(self, row, failed, groups):
        """Stop the run if `failed` is more than UNVERIFIED of `groups`, or of 100 if there are fewer groups."""
        if failed > UNVERIFIED * max(100, groups):
            errors = [failure["error"] for failure in row["failures"] if failure["verifier"]]
            error = statistics.mode(errors or ["see `failures` in the log"])
            self.stop(f"the verifier failed on {failed} groups: {error}")


def stragglers(seconds):
    """{slow generator: the usual seconds}: those whose decode steps take more than SLOW times the median, of 4 or more.

    >>> stragglers({1: 1.0, 2: 1.1, 3: 0.9, 4: 2.3}), stragglers({1: 1.0, 2: 9.0, 3: 1.0})
    ({4: 1.05}, {})
    """
    usual = statistics.median(seconds.values()) if len(seconds) >= 4 else float("inf")
    return {rank: usual for rank, mine in seconds.items() if mine > SLOW * usual}
