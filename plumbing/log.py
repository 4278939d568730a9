"""log.jsonl and the clock: train.py hands over rows; all that follows from the time or adds up is put in here.

Whoever wants to know more is an observer, a function that is called with each row: the screen (screen.py), the monitor
(monitor.py), the figures. Only rank 0 logs. docs/running.md has a table of all columns.

Open in the paper: whether validation counts in C. Here it does not, although half-finished training rollouts continue
  during it.

Test: pytest tests/test_log.py
"""

import json
import math
import os
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

from plumbing import folder as run_folder
from plumbing.costs import TICKS
from plumbing.monitor import Monitor
from plumbing.screen import MINUTE, Screen, progress

WRITTEN = ("log.jsonl", "completions.jsonl", "scaling.png", "run.png")  # beside checkpoints
REDRAW = 20.0  # seconds between two drawings of the figures at least; at its end each run is drawn
REST = 50  # times as long as the last drawing took it waits for the next: a run spends at most 2 % of its time on them


class Clock:
    """The compute C of Eq. 1 in device-hours: devices x seconds on the clock / 3600. On CPU a process is a device."""

    def __init__(self, devices, gpu_hours=0.0, read=time.perf_counter):
        self.devices = devices
        self.seconds = round(gpu_hours * 3600 / devices * TICKS) / TICKS  # exact again after the division by 3600
        self.since = None  # when it was started, in seconds; None while it stands still
        self.read = read

    def start(self):
        self.since = self.read()

    @contextmanager
    def paused(self):
        """Inside `with clock.paused()` the clock stands still; it goes on afterwards if it was running."""
        since = self.since
        self.seconds = self.now()
        self.since = None
        yield
        self.since = None if since is None else self.read()

    def now(self):
        return self.seconds + (0.0 if self.since is None else self.read() - self.since)

    @property
    def gpu_hours(self):
        return self.devices * self.now() / 3600


class RunLog:
    """Call it with the kind of a row and its values.

    args, processes  settings.Settings, processes.Processes
    parameters       N that a token uses, for flops: 2 N per generated and 6 N per trained token
    state            counters of the checkpoint to resume from, {} without one
    work             () -> {generator rank: what it has done so far}, as RolloutQueue.generator_work
    """

    def __init__(self, args, processes, parameters, state, work):
        self.args = args
        self.out = Path(args.out)
        self.processes = processes
        self.parameters = parameters
        self.work = work
        self.virtual = bool(args.virtual)
        self.totals = {"tokens": 0, "tokens_trained": 0, "lost_gpu_hours": 0.0, "failed_groups": 0}
        self.totals |= {name: state["totals"][name] for name in self.totals if name in state.get("totals", {})}
        hours = state.get("gpu_hours", 0.0) + self.count_lost(state)
        self.clock = Clock(processes.devices, hours, processes.clock)
        self.size = 0  # bytes of the log, as written
        self.seconds = {"publish": 0.0}  # of the last time
        self.before = {}  # work at the last `step` row
        self.used = {"decode_seconds": 0.0, "slot_seconds": 0.0}  # of this work, in rows so far
        self.logged = self.published = self.clock.gpu_hours  # at the last `step` row; after the last publication
        if processes.rank == 0:
            self.screen = Screen(args.steps, processes.hours, virtual=bool(args.virtual))
            self.observers: list = [self.screen, Monitor(self.screen.write, processes, args), Figure(self.out)]

    def count_lost(self, state):
        """Keep in the totals what a crash cost since the checkpoint with these counters; returns its device-hours."""
        # Virtual time is a model, and repeats.
        lost = {} if self.processes.rank or self.virtual else run_folder.lost(self.out, state)
        hours = lost.pop("gpu_hours", 0.0)
        for name, more in lost.items():
            self.totals[name] += more
        self.totals["lost_gpu_hours"] += hours
        return hours

    def state(self):
        """What a checkpoint keeps of the log. A virtual run repeats what it was interrupted in: that does not count."""
        return {"totals": self.totals, "gpu_hours": self.published if self.virtual else self.clock.gpu_hours}

    def __call__(self, kind, *, step, **row):
        """Write a row with its step, gpu_hours, the totals so far, and for a step where its time went."""
        if self.processes.rank:
            return
        if kind == "step":  # evaluations do not count
            self.totals["tokens"] += row.pop("tokens")
            self.totals["tokens_trained"] += row.pop("tokens_trained")
            self.totals["failed_groups"] += sum(failure["verifier"] for failure in row["failures"])
            row |= self.timing()
        flops = self.parameters * (2.0 * self.totals["tokens"] + 6.0 * self.totals["tokens_trained"])
        row = {"kind": kind, "step": step, "gpu_hours": self.clock.gpu_hours, **self.totals, "flops": flops} | row
        log = self.out / "log.jsonl"
        if kind == "config":
            self.config = row
        elif not run_folder.is_locked(self.processes.lock, self.out) or log.stat().st_size < self.size:
            self.begin_anew()
        append(log, row)
        self.size = log.stat().st_size
        for observe in self.observers:
            observe(row)

    def begin_anew(self):
        """The log or a part is gone: say it, and begin another with the flags, without which no run is resumed."""
        self.processes.lock.close()
        self.processes.lock = run_folder.lock_log(self.out)
        self.screen.write(
            f"WARNING: {self.out / 'log.jsonl'} was removed, moved or cut while the run writes it. A new one begins "
            "with the run's flags; put the earlier rows before them to fit the whole run"
        )
        append(self.out / "log.jsonl", self.config)

    @contextmanager
    def validation(self, completions, decoder):
        """Inside `with`, a function to call while a validation is waited for, with the number of finished completions.

        It shows them in a bar, from a minute on, and has the decoder, an evaluation.TrainerDecodes or None, decode.
        """
        if self.processes.rank:
            yield None
            return
        look = {"desc": "validation", "unit": " completions", "leave": False, "delay": MINUTE}
        with progress(sys.stdout, total=completions, **look) as bar:

            def waited(finished):
                bar.update(finished - bar.n)
                if decoder:
                    decoder.decode()

            yield waited

    @contextmanager
    def timed(self, name):
        """Inside `with`, seconds are counted, for a `step` row."""
        began = self.processes.clock()
        yield
        self.seconds[name] = self.processes.clock() - began
        self.published = self.clock.gpu_hours if name == "publish" else self.published

    def timing(self):
        """Where the time since the last `step` row went, evaluations left out: seconds, idle shares, slots in use."""
        wall = (self.clock.gpu_hours - self.logged) * 3600 / self.clock.devices
        self.logged = self.clock.gpu_hours
        work = {rank: Counter(counts) for rank, counts in self.work().items()}
        more = {rank: counts - self.before.get(rank, Counter()) for rank, counts in work.items()}
        decoded = {rank: counts for rank, counts in more.items() if counts["decode_steps"]}
        self.before = work
        generating = self.counted("decode_seconds", wall)
        return {
            "seconds": wall,
            "seconds_generate": generating,
            "seconds_train": self.seconds["train"],
            "seconds_publish": self.seconds["publish"],
            "slots_used": self.counted("slot_seconds", wall) / wall,
            "decode_seconds": {
                rank: counts["decode_seconds"] / counts["decode_steps"] for rank, counts in decoded.items()
            },
            "idle_generators": max(0.0, 1 - generating / wall),
            "idle_trainers": max(0.0, 1 - self.seconds["train"] / wall),
        }

    def counted(self, name, wall):
        """Seconds of work, mean over the generators, of this row. Reports come late: the rest counts in the next."""
        done = sum(counts[name] for counts in self.before.values()) / len(self.processes.generator_ranks)
        more = min(wall, done - self.used[name])
        self.used[name] += more
        return more

    def finish(self, reason, step, seconds):
        """Draw and print the fit so far; log it, and why the run ended. seconds: since the start."""
        if self.processes.rank:
            return
        self.screen.close()
        with suppress(OSError):  # on a full disk, write what still fits
            values, lines = draw(self.out)
            if values:  # None with too few evaluations
                self("fit", step=step, **values)
            there = [name for name in WRITTEN if (self.out / name).exists()]
            print(*lines, f"written to {self.out}: {', '.join(there)}", sep="\n")
        with suppress(OSError):
            self("end", step=step, reason=reason, final=self.processes.heartbeat.final, seconds=seconds)


class Figure:
    """An observer that draws the figures anew after an evaluation; together they take about a second."""

    def __init__(self, out):
        self.out = out
        self.due = time.monotonic() + REDRAW

    def __call__(self, row):
        began = time.monotonic()
        if row["kind"] == "eval" and began >= self.due:
            with suppress(OSError):  # on a full disk
                draw(self.out)
            self.due = began + max(REDRAW, REST * (time.monotonic() - began))


def draw(out):
    """Draw run.png, if there is a step, and scaling.png, if a fit is possible; returns what `curves.report` does."""
    from fit import BadInput  # here, since these load scipy and matplotlib
    from plumbing import curves, figures

    with suppress(BadInput):
        figures.page(out / "log.jsonl", out / "run.png")
    return curves.report(out / "log.jsonl", out / "scaling.png")


def append(path, row):
    """Append a row to a file as one line of JSON; nan and inf, which JSON lacks, become null at every depth.

    A half-written last line, as a crash leaves it, is ended first, so that it spoils no other. Raises OSError.
    """
    line = json.dumps(finite(row)) + "\n"
    try:
        with path.open("ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(line.encode())
    except OSError as error:
        raise OSError(error.errno, f"a row of {path} could not be written: {error}") from error


def finite(value):
    """The value with None in place of nan and inf, also inside dicts and lists."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
