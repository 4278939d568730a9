"""What train.py shows of its log: lines, above a progress bar on a terminal.

Test: pytest tests/test_screen.py
"""

import sys

from tqdm import tqdm

LINES = {  # kind of a row of the log -> how the row is shown
    "config": "{prompts[train]} training prompts, {prompts[validation]} held out; left out so far: "
    "{prompts[too_long]} too long, {prompts[repeated]} repeated, {prompts[unusable]} unusable\n"
    "a validation runs before step 1 and after every {flags[eval_every]} steps, with {flags[eval_generations]} "
    "completions of each held-out prompt; one line a minute says how far it is",
    "step": "step {step:4d}  pass rate {pass_rate:.3f}  kept {kept}  entropy {entropy:.3f}  rho {rho_mean:.3f} "
    "(max {rho_max:.2f})  idle: generators {idle_generators:.0%}, trainers {idle_trainers:.0%}  "
    "{gpu_hours:.4f} {hours}",
    "step without gradient": "step {step:4d}  pass rate {pass_rate:.3f}  kept {kept}, no gradient  "
    "idle: generators {idle_generators:.0%}, trainers {idle_trainers:.0%}  {gpu_hours:.4f} {hours}",
    "eval": "step {step:4d}  VALIDATION pass rate {pass_rate:.3f} +- {stderr:.3f}  ({completions} completions)  "
    "{gpu_hours:.4f} {hours}",
}
MINUTE = 60.0  # seconds


class Screen:
    """An observer of the log: a line for a row, above a progress bar.

    steps    of the run;  hours  what the unit of gpu_hours is called
    virtual  in virtual time steps follow each other too fast to be read: only evaluations get a line
    """

    def __init__(self, steps, hours, *, virtual=False):
        self.hours = hours
        self.virtual = virtual
        # Without a terminal there is no bar: its carriage returns would hide the lines from grep.
        self.bar = tqdm(total=steps, unit="step", disable=None)

    def __call__(self, row):
        self.bar.update(row["step"] - self.bar.n)
        shown = line(row, self.hours)
        if shown and not (self.virtual and row["kind"] == "step"):
            self.write(shown)

    def write(self, text):
        self.bar.write(text, file=sys.stdout)

    def close(self):
        self.bar.close()


def line(row, hours):
    """A row of the log as it is shown, or None if its kind is not; hours: what the unit of its gpu_hours is called."""
    kind = "step without gradient" if row["kind"] == "step" and "entropy" not in row else row["kind"]
    if kind not in LINES:
        return None
    curves = row.get("tasks", {}) if kind == "eval" else {}
    lines = [f"\n{'':11}{curve}  {rate:.3f} +- {row['tasks_stderr'][curve]:.3f}" for curve, rate in curves.items()]
    return LINES[kind].format(**row, hours=hours) + "".join(lines if len(lines) > 1 else [])


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
    return tqdm(file=Lines(stream), mininterval=MINUTE, maxinterval=MINUTE, ncols=80, **bar)
