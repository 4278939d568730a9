"""log.jsonl and the clock: train.py hands over rows; all that follows from the time or adds up is put in here.

Whoever wants to know more is an observer, a function that is called with each row: the screen, the monitor of faults,
the figures. Only rank 0 logs. docs/running.md has a table of all columns.

Open in the paper: whether validation counts in C. Here it does not, although half-finished training rollouts continue
  during it.

Test: pytest tests/test_log.py
"""

import json
import math
import os
import statistics
import sys
import time
from collections import deque
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

TICKS = 2.0**24  # per second; virtual times are multiples of one, so that sums of times are exact, in whatever parts

WRITTEN = ("log.jsonl", "completions.jsonl", "scaling.png", "run.png")  # beside checkpoints


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
    draw             as evaluate.draw
    """

    def __init__(self, args, processes, parameters, state, work, draw):
        self.out = Path(args.out)
        self.processes = processes
        self.parameters = parameters
        self.work = work
        self.draw = draw
        self.virtual = bool(args.virtual)
        self.totals = {"tokens": 0, "tokens_trained": 0, "lost_gpu_hours": 0.0, "failed_groups": 0}
        self.totals |= state.get("totals", {})
        hours = self.count_lost(state.get("gpu_hours", 0.0))
        self.clock = Clock(processes.devices, hours, processes.clock)
        self.seconds = {"publish": 0.0}  # of the last time
        self.used = {"decode_seconds": 0.0, "slot_seconds": 0.0}  # of the generators' work, in rows so far
        self.logged = self.published = self.clock.gpu_hours  # at the last `step` row; after the last publication
        self.withdrawn = False
        if processes.rank == 0:
            self.size_before = (self.out / "log.jsonl").stat().st_size  # it is there since it was locked
            self.screen = Screen(args.steps, processes.hours, virtual=self.virtual)
            stop = partial(processes.heartbeat.stop, failed=True)
            monitor = Monitor(self.screen.write, stop, args.loss)
            self.observers: list = [self.screen, monitor]

    def count_lost(self, hours):
        """Count in the totals what a crash cost since a checkpoint of so many device-hours; returns those spent."""
        if self.processes.rank or self.virtual:  # virtual time is a model, and repeats
            return hours
        rows = [row for row in read_rows(self.out / "log.jsonl")[0] if "gpu_hours" in row]
        for name in ("tokens", "tokens_trained"):
            self.totals[name] = max([self.totals[name], *(row.get(name, 0) for row in rows)])
        spent = max([hours, *(row["gpu_hours"] for row in rows)])
        self.totals["lost_gpu_hours"] += spent - hours
        return spent

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
        append(self.out / "log.jsonl", row)
        for observe in self.observers:
            observe(row)

    @contextmanager
    def validation(self, completions, decoder):
        """Inside `with`, a function to call while a validation is waited for, with the number of finished completions.

        It shows them in a bar, from a minute on, and has the decoder, an evaluate.TrainerDecodes or None, decode.
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
        work = self.work().values()
        generating = self.spent("decode_seconds", work, wall)
        return {
            "seconds": wall,
            "seconds_generate": generating,
            "seconds_train": self.seconds["train"],
            "seconds_publish": self.seconds["publish"],
            "slots_used": self.spent("slot_seconds", work, wall) / wall,
            "idle_generators": max(0.0, 1 - generating / wall),
            "idle_trainers": max(0.0, 1 - self.seconds["train"] / wall),
        }

    def spent(self, name, work, wall):
        """Seconds of work, mean over the generators, of this row. Reports come late: the rest counts in the next."""
        done = sum(counts[name] for counts in work) / len(self.processes.generator_ranks)
        more = min(wall, done - self.used[name])
        self.used[name] += more
        return more

    def take_back(self):
        """Remove what this start has logged, so that the same --out can be started anew."""
        os.truncate(self.out / "log.jsonl", self.size_before)
        self.withdrawn = True

    def finish(self, reason, step, seconds):
        """Draw and print the fit so far; log it, and why the run ended. seconds: since the start."""
        if self.processes.rank:
            return
        self.screen.close()
        if self.withdrawn:
            return
        with suppress(OSError):  # on a full disk, write what still fits
            values, lines = self.draw(self.out)
            if values:  # None with too few evaluations
                self("fit", step=step, **values)
            there = [name for name in WRITTEN if (self.out / name).exists()]
            if best := best_checkpoint(self.out):
                lines.append(f"The best evaluation with a checkpoint is that of {best}.")
            print(*lines, f"written to {self.out}: {', '.join(there)}", sep="\n")
        with suppress(OSError):
            self("end", step=step, reason=reason, final=self.processes.heartbeat.final, seconds=seconds)


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


# --- Rows of a log, and the checkpoints beside it --------------------------------------------------------------------


def step_of(folder):
    """The number of a checkpoint-STEP folder."""
    return int(Path(folder).name.partition("-")[2])


def finished_checkpoints(out):
    """The checkpoint-STEP folders of a run, oldest first; not a user's own checkpoint-best, or a file."""
    folders = [folder for folder in Path(out).glob("checkpoint-*") if folder.is_dir()]
    return sorted((folder for folder in folders if folder.name.partition("-")[2].isdigit()), key=step_of)


def counters(folder):
    """The `counters` that checkpoints.save wrote into a checkpoint folder."""
    return json.loads((Path(folder) / "state" / "run.json").read_text(encoding="utf-8"))


def best_checkpoint(out):
    """The checkpoint of a run's best evaluation, as the newest one names it, or None."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        last = finished_checkpoints(out)[-1]
        return last.with_name(f"checkpoint-{counters(last)['best']['version']}")


def others(out):
    """Names in a folder without a log that a run would overwrite, rename or delete."""
    folder = Path(out)
    ours = [*finished_checkpoints(out), folder / "checkpoint.tmp", *(folder / name for name in WRITTEN[1:])]
    return [path.name for path in ours if path.exists()]


def lock_log(out, *, alone=True):
    """Open the log of a run and lock it until it is closed. Raises OSError if it is held or cannot be opened.

    alone  False: only find out whether a run holds it; several processes may at the same time
    """
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        log = (Path(out) / "log.jsonl").open("ab")
    except OSError as error:
        cause = "a file or a broken link of that name, or a folder that may not be written"
        raise OSError(error.errno, f"--out {out} cannot hold a run: {error}; likely cause: {cause}") from error
    try:
        with suppress(ImportError):  # Windows has no such lock: there nothing notices a second run
            import fcntl

            fcntl.flock(log, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(f"{out} is in use by another run") from error
    return log


def read_rows(log):
    """(the rows of a run's log, the numbers of lines that are none: a crash or a full disk may leave such lines)."""
    intact = []
    broken = []
    for place, line in enumerate(Path(log).read_bytes().split(b"\n"), 1):
        try:
            row = json.loads(line.decode() or "null")
            intact += [row] if row and row["kind"] else []
        except (ValueError, KeyError, TypeError, RecursionError):
            broken.append(place)
    return intact, broken


def last_start(log):
    """The config row of the last start that this log knows, {} without one."""
    return next((row for row in reversed(read_rows(log)[0]) if row["kind"] == "config"), {})


def stored_flags(log):
    """The settings with which the run of this log was last started, as logged. Raises ValueError if it does not say."""
    try:
        flags = last_start(log)["flags"]
        return flags | flags["clips"]
    except (LookupError, TypeError) as error:
        raise ValueError(f"expected the flags of the run in the last config row of {log}; found none intact") from error


# --- Warnings --------------------------------------------------------------------------------------------------------


TRUNCATION = 0.1  # A.15
TRUNCATED_STEPS = 10  # steps whose shares of truncated completions are averaged
FLAT_STEPS = 10  # batches in a row without gradient before a warning
UNVERIFIED = 0.01  # a run stops when the verifier failed on a larger share of its groups (of 100, if it has had fewer)
UNGRADED = 0.1  # or a --reward on a larger share of the prompts of an evaluation
SKIPPED_STEPS = 5  # in a row without a finite gradient, after which a run stops
FAR = math.log(2)  # nats: a step is warned of with a larger mean |log rho| of its youngest tokens (kept runs: <= 0.56),
JUMP = 5.0  # if it is so many times the median of the last ten. With stale tokens it rises too, but step by step
FAR_STEPS = 3  # steps in a row, after which a run stops


class Monitor:
    """An observer of the log: it warns of faults, three of which end the run if they stay.

    write  a function of a text, for the screen
    stop   a function of a reason: asks for the end of the run
    loss   its name, or FILE.py:FUNCTION of the user's own
    """

    def __init__(self, write, stop, loss):
        self.write = write
        self.stop = stop
        self.loss = loss
        self.truncated = deque(maxlen=TRUNCATED_STEPS)
        self.flat = self.skipped = self.far = 0  # steps in a row
        self.near = deque(maxlen=10)  # log_rho_youngest of earlier steps, as it should be
        self.shown = set()  # prompts without a verdict that are on the screen

    def __call__(self, row):
        if row["kind"] == "config":
            self.held_out = row["prompts"]["validation"]
        elif row["kind"] == "step":
            self.check_gradient(row)
            self.check_weights(row)
            self.check_truncation(row)
            self.check_verifier(row, row["failed_groups"], row["step"] * len(row["prompts"]))
        elif row["kind"] == "eval":
            self.check_verifier(row, sum(failure["verifier"] for failure in row["failures"]), self.held_out)
            self.check_answers(row)

    def warn(self, text):
        self.write(f"WARNING: {text}")

    def check_weights(self, row):
        """Weights lost: the generators seem to have other weights than the trainers; stop the run if that stays so."""
        if (far := row.get("log_rho_youngest")) is None:  # not a token could be compared
            return
        usual = statistics.median(self.near or [0.0])
        if far > max(FAR, JUMP * usual):
            self.far += 1
        elif math.isfinite(far):
            self.far = 0
            self.near.append(far)
        measured = f"mean |log rho| of the youngest tokens is {far:.2f} nats"
        if self.far:
            self.warn(f"in step {row['step']} {measured}: trainers and generators differ too much")
        if self.far >= FAR_STEPS:
            cause = "the generators do not load the weights that they are sent, or --lr is too large"
            self.stop(f"{measured}, for {FAR_STEPS} steps in a row; before it was {usual:.2g}; likely cause: {cause}")

    def check_gradient(self, row):
        """Not finite: an update is skipped, and the run stops if that stays so. Or nothing to learn from."""
        self.skipped = self.skipped + 1 if row["skipped"] else 0
        if self.skipped:
            self.warn(f"the gradient of step {row['step']} was not finite; its update was skipped")
        if self.skipped >= SKIPPED_STEPS:
            cause = "an importance ratio without upper bound (dapo and grpo have none where the advantage is negative)"
            if ":" in self.loss:
                cause = f"nan or inf in what --loss {self.loss} returns"
            self.stop(f"no gradient of the last {SKIPPED_STEPS} steps was finite; likely cause: {cause}, or --lr")
        self.flat = 0 if row["gradient_norm"] else self.flat + 1
        if self.flat == FLAT_STEPS:
            self.flat = 0
            self.warn(
                f"{FLAT_STEPS} batches in a row had no gradient: in every group all completions were right, or all "
                f"wrong, as truncated ones are (pass rate of the last batch {row['pass_rate']:.3f}). All wrong: easier "
                "--data, more --generations, or answers that are not found (completions.jsonl; --think-end). All "
                "right: harder --data"
            )

    def check_truncation(self, row):
        """A.15: runs destabilise if more than a tenth of the completions is truncated."""
        self.truncated.append(row["truncated"])
        if sum(self.truncated) > TRUNCATION * TRUNCATED_STEPS:
            self.warn(
                f"{statistics.fmean(self.truncated):.0%} of the completions of the last {len(self.truncated)} steps "
                f"were truncated and carry no loss. Runs destabilise above {TRUNCATION:.0%} (A.15): raise "
                "--max-new-tokens, or interrupt earlier (--interrupt-at)"
            )
            self.truncated.clear()

    def check_verifier(self, row, failed, groups):
        """Show each prompt without a verdict once, of a --reward the first; stop if the verifier failed on too many.

        failed  of how many `groups` (of 100 if there are fewer); more than UNVERIFIED of them stop the run
        """
        for failure in row["failures"]:
            shown = "own" if failure["own"] else (failure["where"], failure["error"])
            if shown not in self.shown:
                self.shown.add(shown)
                self.write("NO VERDICT {where}: {error}".format(**failure))
        own = sum(failure["own"] for failure in row["failures"])
        if failed > UNVERIFIED * max(100, groups) or row["kind"] == "eval" and own > UNGRADED * groups:
            errors = [failure["error"] for failure in row["failures"] if failure["verifier"] or failure["own"]]
            error = statistics.mode(errors or ["see `failures` in the log"])
            self.stop(f"the verifier failed on {failed or own} groups: {error}")

    def check_answers(self, row):
        """A validation without any verdict ends the run."""
        if not row["completions"]:
            error = row["failures"][0]["error"] if row["failures"] else "the function of --reward returned None"
            self.stop(f"no validation prompt got verdicts: {error}")


# --- The screen ------------------------------------------------------------------------------------------------------


LINES = {  # kind of a row of the log -> how the row is shown
    "config": "{prompts[train]} training prompts, {prompts[validation]} held out; left out so far: "
    "{prompts[too_long]} too long, {prompts[repeated]} repeated, {prompts[unusable]} unusable\n"
    "a validation runs before step 1 and after every {flags[eval_every]} steps, with {flags[eval_generations]} "
    "completions of each held-out prompt; a longer one than a minute says how far it is",
    "step": "step {step:4d}  pass rate {pass_rate:.3f}  kept {kept}  entropy {entropy:.3f}  rho {rho_mean:.3f} "
    "(max {rho_max:.2f})  idle: generators {idle_generators:.0%}, trainers {idle_trainers:.0%}  "
    "{gpu_hours:.4f} {hours}",
    "step without gradient": "step {step:4d}  pass rate {pass_rate:.3f}  kept {kept}, no gradient  "
    "idle: generators {idle_generators:.0%}, trainers {idle_trainers:.0%}  {gpu_hours:.4f} {hours}",
    "eval": "step {step:4d}  VALIDATION pass rate {pass_rate:.3f} +- {stderr:.3f}  ({completions} completions)  "
    "{gpu_hours:.4f} {hours}",
}
MINUTE = 60.0  # seconds


def progress_bar(**settings):
    from tqdm import tqdm  # here, as fit.py reads logs without it

    return tqdm(**settings)


class Screen:
    """An observer of the log: a line for a row, above a progress bar.

    steps    of the run;  hours  what the unit of gpu_hours is called
    virtual  in virtual time steps follow each other too fast to be read: only evaluations get a line
    """

    def __init__(self, steps, hours, *, virtual=False):
        self.hours = hours
        self.virtual = virtual
        # Without a terminal there is no bar: its carriage returns would hide the lines from grep.
        self.bar = progress_bar(total=steps, unit="step", disable=None)

    def __call__(self, row):
        self.bar.update(row["step"] - self.bar.n)
        text = shown(row, self.hours)
        if text and not (self.virtual and row["kind"] == "step"):
            self.write(text)

    def write(self, text):
        self.bar.write(text, file=sys.stdout)

    def close(self):
        self.bar.close()


def shown(row, hours):
    """A row of the log as it is shown, or None if its kind is not; hours: what the unit of its gpu_hours is called."""
    kind = "step without gradient" if row["kind"] == "step" and "entropy" not in row else row["kind"]
    if kind not in LINES:
        return None
    curves = row.get("tasks", {}) if kind == "eval" else {}
    lines = [f"\n{'':11}{curve}  {rate:.3f} +- {row['tasks_stderr'][curve]:.3f}" for curve, rate in curves.items()]
    return LINES[kind].format(**row, hours=hours) + "".join(lines if len(lines) > 1 else [])


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
        return progress_bar(file=stream, **bar)
    return progress_bar(file=Lines(stream), mininterval=MINUTE, maxinterval=MINUTE, ncols=80, **bar)
