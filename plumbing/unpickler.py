"""Reads the values of the mailbox (pipeline.py) safely: an ordinary pickle can have any function called.

Test: pytest tests/test_faults.py
"""

import io
import pickle

SENT = {*(("pipeline", name) for name in ("Request", "RolloutMetadata", "Rollout", "News")), ("data", "Prompt")}


class Unpickler(pickle.Unpickler):
    """Loads plain containers and the classes of SENT, nothing else."""

    def find_class(self, module, name):
        if (module, name) not in SENT:
            raise pickle.UnpicklingError(f"expected one of {sorted(SENT)} in the mailbox, got {module}.{name}")
        return super().find_class(module, name)


def read(value):
    """The object that a value's bytes encode. Raises pickle.UnpicklingError if they name anything but SENT."""
    return Unpickler(io.BytesIO(value)).load()
