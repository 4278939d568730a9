"""What the work of a run costs in virtual time (train.py --virtual): models of a fleet, in seconds, not measurements.

    a decode step     decode + row rows + column rows columns       rows: completions; columns: positions attended
    a generator's turn between two decode steps                    turn
    a micro-batch     (micro_batch + token padded tokens) / T      T trainer devices share the work evenly
    the rest of a step, weights to all generators                  optimizer, broadcast

"exact" is no model of a fleet: decoding is free, and all issued tickets are finished before each step, so that every
token is exactly k optimizer steps old (PPO-off-policy-k: 0 to k - 1) after the first k steps.

Test: pytest tests/test_virtual.py
"""

from typing import NamedTuple


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
    drain: bool = False  # whether all issued tickets are finished before each optimizer step

    def decode_step(self, rows, columns):
        """Seconds of a decode step: rows completions, positions up to columns."""
        return self.decode + self.row * rows + self.column * rows * columns


# In shape like the embedded task on a laptop core, one generator and one trainer. `generators` and `trainers` name the
# side that is slower: there the other one needs about half of its time.
BALANCED = Costs(
    decode=2.0e-3,
    row=2.2e-5,
    column=4.0e-8,
    turn=1.0e-4,
    micro_batch=1.0e-2,
    token=4.0e-5,
    optimizer=1.0e-2,
    broadcast=1.0e-2,
)
TABLE = {
    "exact": BALANCED._replace(decode=0.0, row=0.0, column=0.0, turn=0.0, broadcast=0.0, drain=True),
    "generators": BALANCED._replace(micro_batch=5e-3, token=2e-5),
    "balanced": BALANCED,
    "trainers": BALANCED._replace(micro_batch=2e-2, token=8e-5),
}


def named(name):
    """The Costs of a name in TABLE. Raises ValueError for any other name."""
    if name not in TABLE:
        raise ValueError(f"expected one of {', '.join(TABLE)} or measured:LOG")
    return TABLE[name]
