"""What the work of a run costs in virtual time (train.py --virtual): models of a fleet, in seconds, not measurements.

    a decode step     decode + row rows + column rows columns       rows: completions; columns: positions attended
    a generator's turn between two decode steps                    turn
    a micro-batch     (micro_batch + token padded tokens) / T      T trainer devices share the work evenly
    the rest of a step, weights to all generators                  optimizer, broadcast

"exact" is no model of a fleet: decoding is free, and all issued requests are finished before each step, so that every
token is exactly k optimizer steps old (PPO-off-policy-k: 0 to k - 1) after the first k steps.

Test: pytest tests/test_virtual.py
"""

from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from plumbing import run_folder

NEEDED = (
    *("seconds_generate", "seconds_train", "seconds_publish", "idle_trainers", "idle_generators"),
    *("tokens", "length_max", "micro_batches", "padded"),
)  # columns of a measured log


class Costs(NamedTuple):
    """Seconds, unless it says otherwise."""

    decode: float  # of a decode step, whatever its size
    row: float  # per completion decoded
    column: float  # per completion and position attended
    turn: float  # of a generator between two decode steps
    micro_batch: float  # whatever its size
    token: float  # per token of a micro-batch, padding included
    optimizer: float  # per optimizer step
    broadcast: float  # per version of the weights
    drain: bool = False  # whether all issued requests are finished before each optimizer step

    def decode_step(self, rows, columns):
        """Seconds of a decode step: rows completions, positions up to columns."""
        return self.decode + self.row * rows + self.column * rows * columns

    def gradient_step(self, micro_batches, padded):
        """Seconds of an optimizer step of one trainer: its micro-batches, and their tokens with padding."""
        return self.micro_batch * micro_batches + self.token * padded + self.optimizer


# In shape like the embedded task on a laptop core, one generator and one trainer. `generators` and `trainers` name the
# side that is slower: there the other one needs about half of its time.
GENERATOR: dict = dict(decode=2.0e-3, row=2.2e-5, column=4.0e-8, turn=1.0e-4)
BALANCED = Costs(**GENERATOR, micro_batch=1.0e-2, token=4.0e-5, optimizer=1.0e-2, broadcast=1.0e-2)
TABLE = {
    "exact": BALANCED._replace(decode=0.0, row=0.0, column=0.0, turn=0.0, broadcast=0.0, drain=True),
    "generators": BALANCED._replace(micro_batch=5e-3, token=2e-5),
    "balanced": BALANCED,
    "trainers": BALANCED._replace(micro_batch=2e-2, token=8e-5),
}


def named(name):
    """The Costs of a name in TABLE, or of "measured:LOG".

    Raises ValueError for any other name and for a log that does not say enough, OSError for one that cannot be read.
    """
    kind, _, log = name.partition(":")
    if kind == "measured" and log:
        return measured(log)
    if name not in TABLE:
        raise ValueError(f"expected one of {', '.join(TABLE)} or measured:LOG")
    return TABLE[name]


def measured(log):
    """BALANCED with two factors, for decoding and for training, after the seconds of a real run's steps; turn and
    broadcast are its own (`between`).

    Decoding is compared with full slots, so the fit is closest where the generators seldom wait (PipelineRL, k > 0).
    log    log.jsonl of a real run, or its folder; its first step, in which much is done for the first time, is left out
    """
    path = Path(log) / "log.jsonl" if Path(log).is_dir() else Path(log)
    rows, _ = run_folder.rows(path)
    configs = [row for row in rows if row["kind"] == "config"]
    steps = [row for row in rows if row["kind"] == "step"]
    if missing := [name for name in NEEDED if not any(name in row for row in steps)]:
        raise ValueError(f"expected a real run's log with the columns {', '.join(NEEDED)}; without {missing[0]}")
    if len(steps) < 3:
        raise ValueError(f"expected the log of 3 optimizer steps or more, got {len(steps)}")
    flags = configs[-1]["flags"]
    world = configs[-1]["world"]
    if flags.get("virtual"):
        raise ValueError("expected the log of a real run; this one is of a run in virtual time")
    trainers = flags["trainers"] or max(1, world // 5)
    first = steps[0]
    last = steps[-1]
    timed = steps[1:]
    generated = (last["tokens"] - first["tokens"]) / (world - trainers)
    in_work = (flags["k"] + 1) * flags["prompts"] * flags["generations"] / (world - trainers)
    slots = min(flags["slots"], in_work)
    columns = flags["max_prompt_tokens"] / 2 + max(row["length_max"] for row in timed)
    decoding = generated / slots * BALANCED.decode_step(slots, columns)
    training = sum(BALANCED.gradient_step(row["micro_batches"], row["padded"]) for row in timed)
    slower = sum(row["seconds_generate"] for row in timed) / decoding
    longer = sum(row["seconds_train"] for row in timed) / training
    return BALANCED._replace(
        **{name: slower * getattr(BALANCED, name) for name in ("decode", "row", "column")},
        **{name: longer * getattr(BALANCED, name) for name in ("micro_batch", "token", "optimizer")},
        **between(timed, slower),
    )


def between(timed, slower):
    """{"turn", "broadcast"} in seconds: what a generator's time went to that no decode step took.

    Before a broadcast the trainer waits until the last generator has ended its decode step: n/(n + 1) of a step on
    average, with n generators. Turns are seen where the trainers wait more than the generators do, so that no generator
    is idle for want of requests.
    timed   rows of kind `step`; without one that shows turns, turn is BALANCED's, and broadcast seconds_publish
    slower  factor for BALANCED's turn then
    """
    publish = fmean(row["seconds_publish"] for row in timed)
    busy = [row for row in timed if row["idle_trainers"] > row["idle_generators"] and row.get("decode_seconds")]
    if not busy:
        return {"turn": slower * BALANCED.turn, "broadcast": publish}
    decode = fmean(fmean(row["decode_seconds"].values()) for row in busy)
    generators = max(len(row["decode_seconds"]) for row in busy)
    broadcast = max(0.0, publish - decode * generators / (generators + 1))
    idle = sum(row["idle_generators"] * row["seconds"] - broadcast for row in busy)
    turns = sum(row["seconds_generate"] for row in busy) / decode
    return {"turn": max(0.0, idle / turns), "broadcast": broadcast}
