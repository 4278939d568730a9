"""Chapter 8: a whole run (Sec. 2.1, 4, A.3, A.16). Claims, wrong answers, exercises.

Test: pytest tests/test_exercises.py
"""

import inspect
import json
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import patch

from course.checks.claims import Chapter, numbers, values_at

RUN = Chapter()


# --- warm-up ---------------------------------------------------------------------------------------------------------


def warm_up_from_zero(version, lr, warmup):
    """start at learning rate 0: the first step changes nothing, and its batch is wasted."""
    return lr * min(1.0, version / warmup)


def warm_up_without_end(version, lr, warmup):
    """forget the end of the warm-up: the learning rate goes on growing."""
    return lr * (version + 1) / warmup


def warm_up_decays(version, lr, warmup):
    """let the learning rate fall after the warm-up: in the paper it stays constant."""
    return lr * min(1.0, (version + 1) / warmup, warmup / (version + 1))


# lr 1, warm-up 4 steps: 1/4 in the first step (version 0), 3/4 in the third, 1 from the fourth on.
RUN.write(
    name="warm-up",
    where="train.py:learning_rate",
    minutes=10,
    teaches="The first step must already change the weights; after the warm-up the learning rate stays.",
    hints=(
        "A.3, optimizer.",
        "`version` is the number of steps that are done.",
        "A straight line that reaches --lr in step --warmup, then stays.",
    ),
    says="1/4 of the learning rate in the first of 4 steps, all of it from the fourth on",
    probe=partial(values_at, lr=1.0, warmup=4),
    inputs=([0, 2, 3, 9],),
    expected=[0.25, 0.75, 1.0, 1.0],
    labels="first step, third, fourth, tenth",
    mistakes=(warm_up_from_zero, warm_up_without_end, warm_up_decays),
)


# --- clock -----------------------------------------------------------------------------------------------------------


def seconds(paused, before, inside, after):
    """Seconds on a running clock within a pause and some time after it, then the same for a clock that never ran."""
    now = [100.0]
    # A function may call self.read, time.perf_counter, or perf_counter after `from time import perf_counter`.
    space = inspect.unwrap(paused).__globals__
    imported = dict.fromkeys([name for name, value in space.items() if value is time.perf_counter], lambda: now[0])
    with patch.object(time, "perf_counter", lambda: now[0]), patch.dict(space, imported):
        times = []
        for running in (True, False):
            clock = SimpleNamespace(seconds=0.0, since=now[0] if running else None, devices=1)
            clock.read = lambda: now[0]
            clock.now = lambda: clock.seconds + (now[0] - clock.since if clock.since else 0.0)  # noqa: B023
            clock.start = lambda: setattr(clock, "since", now[0])  # noqa: B023
            now[0] += before
            with paused(clock):
                now[0] += inside
                times.append(clock.now())
            now[0] += after
            times.append(clock.now())
    return times


@contextmanager
def pause_that_counts(self):
    """count the time of validation: C would depend on how often one validates."""
    yield


@contextmanager
def pause_for_ever(self):
    """leave the clock stopped after the pause."""
    self.seconds, self.since = self.now(), None
    yield


@contextmanager
def pause_that_starts(self):
    """start the clock after the pause even if it did not run before it: the first evaluation would start the clock."""
    self.seconds, self.since = self.now(), None
    yield
    self.since = time.perf_counter()


# 3 s, a pause of 10 s, 2 s: the clock shows 3 within the pause, 5 at the end; one that did not run shows 0 twice.
RUN.write(
    name="clock",
    where="plumbing/log.py:Clock.paused",
    minutes=10,
    teaches="The x axis of a scaling law is a clock; what it counts has to be said.",
    hints=(
        "Sec. 2.1; what is open in the paper stands at the top of plumbing/log.py.",
        "Before the first step the clock does not run yet, but the first evaluation pauses it.",
        "Keep what it shows, stop it, yield, and start it again if it ran.",
    ),
    says="3 s, then a pause of 10 s: 3 in the pause, 5 after 2 s more; a clock that did not run stays at 0",
    probe=seconds,
    inputs=(3.0, 10.0, 2.0),
    expected=[3.0, 5.0, 0.0, 0.0],
    labels="in the pause, at the end, never started in the pause, at the end",
    mistakes=(pause_that_counts, pause_for_ever, pause_that_starts),
)


# --- flops -----------------------------------------------------------------------------------------------------------


RUN.predict(
    name="flops",
    minutes=10,
    teaches="Generation is cheap in operations and dear in time.",
    hints=(
        "Sec. 2.1; `flops` in the table of the log's columns in docs/running.md.",
        "Prompts are trained on (they pass through the model) but not generated.",
        "2 N for a forward pass of one token, 4 N more for its backward pass.",
    ),
    says="floating-point operations of one step",
    mistakes={
        "forget the generators.": 8e9 * 6 * 768 * 10_500,
        "count a generated token like a trained one: generating has no backward pass.": 8e9
        * 6
        * 768
        * (10_000 + 10_500),
        "count the completions only in training: the prompts pass through the trainer as well.": 8e9
        * (2 + 6)
        * 768
        * 10_000,
    },
    atol=2e15,
)


# --- kept ------------------------------------------------------------------------------------------------------------


RUN.measure(
    name="kept",
    minutes=10,
    teaches="As the policy improves, its batches shrink by themselves.",
    hints=(
        "Sec. 3.2, zero-variance filtering.",
        "A `step` line has `kept`, prompts with a gradient, and `prompts`, the indices of all.",
        "Mean of `kept` over the number of prompts, ten lines each.",
    ),
    says="the share of prompts with a gradient in the first ten steps of results/main_seed0.jsonl, and the last ten",
    labels="first ten, last ten",
    atol=2e-3,
)


# --- own-loss --------------------------------------------------------------------------------------------------------


def end_of_mine(answer):
    """The difference that was measured, without the prediction, which is the student's own."""
    return numbers(answer)[1:]


RUN.measure(
    name="own-loss",
    minutes=30,
    teaches="A new loss is judged by runs with the same seeds, and by an interval of their differences.",
    hints=(
        "Sec. 3.2; docs/paper/losses.md in the folder of the project.",
        "Tokens outside the mask get 0, also where a log-prob is not finite: torch.where.",
        "What does lab.compare say? Which tokens are too likely or too rare in old data, and what does the ratio do?",
    ),
    says="CISPO's end minus that of the loss without a ratio, k = 8, mean over three seeds, in your own runs",
    probe=end_of_mine,
    atol=2e-3,
)


# --- six-steps -------------------------------------------------------------------------------------------------------


SIX_STEPS = "--data tiny --virtual exact --k 0 --steps 6 --eval-every 6".split()


def compared_runs():
    """Largest difference between the logs of two runs of six steps, with the student's solved functions and without.

    Both run in virtual time, so that no number depends on how long anything took.
    """
    logs = []
    with TemporaryDirectory() as temporary:
        for program in (["exercises.py", "train"], [".course/original/train.py"]):
            out = Path(temporary) / program[-1].replace("/", "-")
            subprocess.run([sys.executable, *program, *SIX_STEPS, "--out", out], check=True, capture_output=True)
            rows = map(json.loads, (out / "log.jsonl").read_text(encoding="utf-8").splitlines())
            values = [x for row in rows if row["kind"] in ("step", "eval") for _, x in sorted(row.items())]
            logs.append([x for x in values if isinstance(x, (int, float))])
    return max(abs(x - y) for x, y in zip(*logs, strict=True))


def largest_difference(answer):
    """The difference that the student expects, and the largest between the logs of two runs."""
    return [numbers(answer), compared_runs()]


RUN.measure(
    name="six-steps",
    minutes=15,
    teaches="The objective is the only thing that your functions change: a run that does not "
    "depend on timing shows it.",
    hints=(
        "Sec. 4: the whole objective.",
        "In virtual time nothing depends on what else the machine does (docs/virtual.md).",
        "The check trains twice, some seconds each, once with your solved functions and once with the originals, "
        "and compares every number of the logs. Sums in another order differ in their last digits.",
    ),
    says="the logs of six steps, with your functions and with the originals, differ by less than 1e-4",
    probe=largest_difference,
    expected=[0.0, 0.0],
    labels="expected by you, found in the logs",
    atol=1e-4,
)
