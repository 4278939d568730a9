"""What train.py shows of its log: lines, above a progress bar on a terminal.

Test: pytest tests/test_screen.py
"""

import sys
import time
from contextlib import suppress

from tqdm import tqdm

LINES = {  # kind of a row of the log -> how the row is shown
    "config": "{prompts[train]} training prompts, {prompts[validation]} held out; left out so far: "
    "{prompts[too_long]} too long, {prompts[repeated]} repeated, {prompts[unusable]} unusable",
    "step": "step {step:4d}  pass rate {pass_rate:.3f}  kept {kept}  entropy {entropy:.3f}  rho {rho_mean:.3f} "
    "(max {rho_max:.2f})  idle: generators {idle_generators:.0%}, trainers {idle_trainers:.0%}  "
    "{gpu_hours:.4f} {hours}",
    "step without gradient": "step {step:4d}  pass rate {pass_rate:.3f}  kept {kept}, no gradient  "
    "idle: generators {idle_generators:.0%}, trainers {idle_trainers:.0%}  {gpu_hours:.4f} {hours}",
    "eval": "step {step:4d}  VALIDATION pass rate {pass_rate:.3f} +- {stderr:.3f}  ({completions} completions)  "
    "{gpu_hours:.4f} {hours}",
}


MINUTE = 60.0  # seconds


class Validation:
    """Says before a validation how long it may take, and once a minute how far it is. Call it as often as you like.

    write      a function of a text
    total      completions
    expected   seconds that they may take
    clock      seconds
    """

    def __init__(self, write, total, expected, clock=time.monotonic):
        self.write = write
        self.total = total
        self.clock = clock
        self.began = self.told = clock()
        if expected >= MINUTE:
            self.write(f"validation: {total:,} completions, roughly {duration(expected)}; measured from a minute on")

    def __call__(self, finished):
        """finished: completions so far; the rest is taken to be as fast as those."""
        now = self.clock()
        if now - self.told < MINUTE:
            return
        self.told = now
        rest = (now - self.began) * (self.total - finished) / finished if finished else 0.0
        left = f"about {duration(rest)} left" if finished else "none is finished yet"
        self.write(f"validation: {finished:,} of {self.total:,}, {left}")


def duration(seconds):
    """A time as one would say it.

    >>> duration(50), duration(1500), duration(9000)
    ('1 min', '25 min', '2.5 h')
    """
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{max(1, round(seconds / 60))} min"


class Screen:
    """An observer of the log: a line for a row, above a progress bar.

    steps  of the run;  hours  what the unit of gpu_hours is called
    """

    def __init__(self, steps, hours):
        self.hours = hours
        # Without a terminal there is no bar: its carriage returns would hide the lines from grep.
        self.bar = tqdm(total=steps, unit="step", disable=None)

    def __call__(self, row):
        self.bar.update(row["step"] - self.bar.n)
        if shown := line(row, self.hours):
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
    each = [f"\n{'':11}{curve}  {rate:.3f} +- {row['tasks_stderr'][curve]:.3f}" for curve, rate in curves.items()]
    return LINES[kind].format(**row, hours=hours) + "".join(each if len(each) > 1 else [])


class Unbroken:
    """A stream to which writing never fails: text that nobody reads any more, as by tee after Ctrl-C, is lost."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        with suppress(OSError):
            self.stream.write(text)

    def flush(self):
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name):
        return getattr(self.stream, name)


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
