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
from typing import NamedTuple

from plumbing import folder as run_folder

TICKS = 2.0**24  # per second; virtual times are multiples of one, so that sums of times are exact, in whatever parts
# Columns of a measured log.
NEEDED = ("seconds_generate", "seconds_train", "seconds_publish", "tokens", "length_max", "micro_batches", "padded")


class Costs(NamedTuple):
    """Seconds, unless it says otherwise."""

    decode: float = 0.0  # of a decode step, whatever its size
    row: float = 0.0  # per completion decoded
    column: float = 0.0  # per completion and position attended
    turn: float = 0.0  # of a generator between two decode steps
    micro_batch: float = 0.0  # whatever its size
    token: float = 0.0  # per token of a micro-batch, padding included
    optimizer: float = 0.0  # per optimizer step
    broadcast: float = 0.0  # per version of the weights
    drain: bool = False  # whether all issued requests are finished before each optimizer step

    def decode_step(self, rows, columns):
        """Seconds of a decode step: rows completions, positions up to columns."""
        return self.decode + self.row * rows + self.column * rows * columns

    def gradient_step(self, micro_batches, padded):
        """Seconds of an optimizer step of one trainer: its micro-batches, and their tokens with padding."""
        return self.micro_batch * micro_batches + self.token * padded + self.optimizer


# In shape like the embedded task on a laptop core, one generator and one trainer. `generators` and `trainers` name the
# side that is slower: there the other one needs about half of its time.
BALANCED = Costs(
    decode=2e-3, row=2.2e-5, column=4e-8, turn=1e-4, micro_batch=1e-2, token=4e-5, optimizer=1e-2, broadcast=1e-2
)
TABLE = {
    "exact": Costs(micro_batch=1.0e-2, token=4.0e-5, optimizer=1.0e-2, drain=True),
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
    """BALANCED with two factors, for a generator's work and for training, after the seconds of a real run's steps.

    A broadcast takes the shortest time of a publication: in the others the trainer waited for the end of a decode step.
    Decoding is compared with full slots, so the fit is closest where the generators seldom wait (PipelineRL, k > 0).
    log    log.jsonl of a real run, or its folder; its first step, in which much is done for the first time, is left out
    """
    path = Path(log) / "log.jsonl" if Path(log).is_dir() else Path(log)
    rows, _ = run_folder.rows(path)
    configs = [row for row in rows if row["kind"] == "config"]
    steps = [row for row in rows if row["kind"] == "step"]
    complete = all(any(name in row for row in steps) for name in NEEDED)
    flags = configs[-1]["flags"] if configs else {}
    if not complete or not flags or flags.get("virtual") or len(steps) < 3:
        raise ValueError(f"expected the log of a real run of 3 steps or more, with the columns {', '.join(NEEDED)}")
    generators = configs[-1]["world"] - flags["trainers"]
    timed = steps[1:]
    generated = (steps[-1]["tokens"] - steps[0]["tokens"]) / generators
    in_work = (flags["k"] + 1) * flags["prompts"] * flags["generations"] / generators
    slots = min(flags["slots"], in_work)
    columns = flags["max_prompt_tokens"] / 2 + max(row["length_max"] for row in timed)
    decoding = generated / slots * BALANCED.decode_step(slots, columns)
    training = sum(BALANCED.gradient_step(row["micro_batches"], row["padded"]) for row in timed)
    slower = sum(row["seconds_generate"] for row in timed) / decoding
    longer = sum(row["seconds_train"] for row in timed) / training
    return BALANCED._replace(
        **{name: slower * getattr(BALANCED, name) for name in ("decode", "row", "column", "turn")},
        **{name: longer * getattr(BALANCED, name) for name in ("micro_batch", "token", "optimizer")},
        broadcast=min(row["seconds_publish"] for row in timed),
    )
