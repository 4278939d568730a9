"""The words that train.py shows, beside a progress bar on a terminal and as plain lines elsewhere.

Test: pytest tests/test_screen.py
"""

from tqdm import tqdm

LINES = {  # kind of a row of the log -> how the row is shown
    "config": "{prompts[train]} training prompts, {prompts[validation]} held out; left out: "
    "{prompts[too_long]} too long, {prompts[repeated]} repeated, {prompts[unusable]} unusable",
    "step": "step {step:4d}  pass rate {pass_rate:.3f}  kept {kept}  entropy {entropy:.3f}  rho {rho_mean:.3f} "
    "(max {rho_max:.2f})  idle: generators {idle_generators:.0%}, trainers {idle_trainers:.0%}  "
    "{gpu_hours:.4f} {hours}",
    "step without gradient": "step {step:4d}  pass rate {pass_rate:.3f}  kept {kept}, no gradient  "
    "idle: generators {idle_generators:.0%}, trainers {idle_trainers:.0%}  {gpu_hours:.4f} {hours}",
    "unverified": "NO VERDICT {where}: {error}",
    "eval": "step {step:4d}  VALIDATION pass rate {pass_rate:.3f} +- {stderr:.3f}  ({completions} completions)  "
    "{gpu_hours:.4f} {hours}",
}
WARNINGS = {
    "reward": "the function of --reward has failed on {count} prompts so far (the first: NO VERDICT, above); their "
    "groups are left out",
    "slow": "{name} is more than twice as slow as is usual among the generators (decode_seconds in the log), and every "
    "batch would wait for it. It finishes what it holds and takes no further requests; now and then it decodes answers "
    "that no batch waits for, which show whether it has recovered",
    "recovered": "{name} is as fast as the other generators again, and takes requests again",
    "truncated": "{share:.0%} of the completions of the last {steps} steps were truncated and carry no loss. Runs "
    "destabilise above {limit:.0%} (A.15): raise --max-new-tokens, or interrupt earlier (--interrupt-at)",
    "skipped": "the gradient of step {step} was not finite; its update was skipped",
    "few held out": "only {count}, and every evaluation asks the same: too few for a curve or a "
    "forecast. A tenth of a small file is held out; train.py --evaluate MODEL --data FILE asks all of "
    "its rows",
    "no mark": "none of the {completions} completions of the validation holds {mark!r}, behind which the answer "
    "begins, unless an interruption put it there, and none is right. Without an answer every reward is -1, "
    "and nothing will be learnt. If the model uses no marks, --think-end none takes its whole completion "
    "as the answer; if it uses another mark, --think-end TEXT; if it thinks for longer, a larger "
    "--max-new-tokens or --length-control interrupt with a later --interrupt-at",
    "silent": "the function of --reward returned None, no verdict, on {share:.0%} of the validation prompts; their "
    "groups are left out, here and in training. If it should not: every path through it has to return True or False",
    "no gradient": "{batches} batches in a row had no gradient: in every group all completions were right or all were "
    "wrong, as truncated ones always are (pass rate of the last batch {pass_rate:.3f}), and the policy "
    "stands still. All wrong: easier --data, more --generations, or answers that are not found "
    "(completions.jsonl shows what the model writes; --think-end). All right: harder --data",
}


def line(row, hours):
    """A row of the log as it is shown, or None if its kind is not; hours: what the unit of its gpu_hours is called."""
    kind = "step without gradient" if row["kind"] == "step" and "entropy" not in row else row["kind"]
    return LINES[kind].format(**row, hours=hours) if kind in LINES else None


def counted(count, noun):
    """A number of things.

    >>> counted(1, "held-out prompt"), counted(2, "row")
    ('1 held-out prompt', '2 rows')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


class Lines:
    """A stream for a progress bar where no terminal is: each state that the bar shows is a line of its own."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        if text := text.strip("\r\n "):
            self.stream.write(text + "\n")

    def flush(self):
        self.stream.flush()


def progress(stream, **bar):
    """A progress bar on a terminal; elsewhere a line a minute, without carriage returns."""
    if stream.isatty():
        return tqdm(file=stream, **bar)
    return tqdm(file=Lines(stream), mininterval=60, maxinterval=60, ncols=80, **bar)
