"""Python objects under names, in one key-value store that rank 0 hosts: how ranks talk, but for weights and gradients.

Values are pickled. `Unpickler` loads plain containers and the project's own classes, nothing else: an ordinary pickle
can have any function called. One value per rollout, deleted after use: the store drops a connection for a value above
MAX_BYTES, and what is left would fill rank 0's memory.

The methods call rank 0's store, whose calls have no time limit: they block while rank 0 is frozen or out of reach. Then
the heartbeat's thread (heartbeat.py) ends the process.

Run by pipeline.py. Test: pytest tests/test_store.py
"""

import io
import pickle
import time
from enum import EnumMeta

MAX_BYTES = 8 << 20  # of one value
POLL = 0.005  # seconds between two polls of a rank with nothing else to do; each is a round trip to rank 0
LONGEST_POLL = 0.05  # to which they grow while nothing changes
SLOWER = 1.25  # by which factor, from one poll to the next
POLL_WHILE_DECODING = 0.025  # seconds between two polls of the control state by a generator that is decoding
REPORT = 0.25  # seconds between two reports of a generator's work
SENT = {("data", "Prompt"), *(("pipeline", name) for name in ("Request", "RolloutMetadata", "Rollout", "ControlState"))}


class Interrupted(Exception):
    """The run shall end in order (a signal, a verdict of the monitor): it writes a checkpoint. The message says why."""


class Pace:
    """Call it: whether so many seconds have passed since it last said so."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.last = float("-inf")

    def __call__(self):
        now = time.monotonic()
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True


def paces():
    """How often a generator polls the control state, and reports its work: arguments of pipeline.RequestQueue."""
    return Pace(POLL_WHILE_DECODING), Pace(REPORT)


def member(owner, name):
    """`getattr` in a pickle: the member `name` of an enumeration. Raises pickle.UnpicklingError for all else."""
    if not isinstance(owner, EnumMeta) or name not in owner.__members__:
        raise pickle.UnpicklingError(f"expected plain containers or known classes, got getattr of {owner!r:.80}")
    return owner[name]


class Unpickler(pickle.Unpickler):
    """Loads plain containers, what `names` lists, and members of enumerations that it lists; nothing else.

    names  {(module, name)}
    Raises pickle.UnpicklingError for anything else.
    """

    def __init__(self, value, names):
        super().__init__(io.BytesIO(value))
        self.names = names

    def find_class(self, module, name):
        if (module, name) == ("builtins", "getattr"):
            return member  # a process may have been told to pickle members of enumerations by name
        if (module, name) not in self.names:
            raise pickle.UnpicklingError(f"expected plain containers or known classes, got {module}.{name}")
        return super().find_class(module, name)


def unpickled(value, names=SENT):
    """The object that a value's bytes encode. names: as in Unpickler."""
    return Unpickler(value, names).load()


class Store:
    """Objects under names. Only `wait` waits for another rank to act.

    backend    a TCPStore, or anything with its set, get, multi_get, check, add and delete_key
    rank       of this process
    heartbeat  heartbeat.Heartbeat, told of progress while waiting; it raises Lost when a rank is lost
    pause      called with seconds between two polls; in virtual time the generators act meanwhile (virtual.py)
    """

    def __init__(self, backend, rank, heartbeat, pause=time.sleep):
        self.backend = backend
        self.rank = rank
        self.heartbeat = heartbeat
        self.pause = pause

    def put(self, values):
        """Store {key: value}, in this order. Raises ValueError for a value above MAX_BYTES."""
        for key, value in values.items():
            data = pickle.dumps(value)
            if len(data) > MAX_BYTES:
                cause = "a completion of too many tokens (lower --max-new-tokens), or a long reference answer"
                raise ValueError(f"expected <= {MAX_BYTES} bytes for {key}, got {len(data)}; likely cause: {cause}")
            self.backend.set(key, data)  # waits for no answer

    def has(self, keys):
        """Whether all these keys are in the store."""
        return self.backend.check(list(keys))

    def read(self, key):
        """The value of this key, which must be there; it stays."""
        return unpickled(self.backend.get(key))

    def take(self, keys):
        """The values of these keys, in order; all must be there, and are deleted."""
        values = [unpickled(data) for data in self.backend.multi_get(keys)]
        self.delete(keys)
        return values

    def delete(self, keys):
        for key in keys:
            self.backend.delete_key(key)

    def count(self, name, more=0):
        """Add to a counter, atomically; returns its new value."""
        return self.backend.add(name, more)

    def wait(self, what, done, stopped=lambda: None):
        """Poll until done().

        what     for messages: what this rank waits for
        stopped  () -> why the run shall end, or None
        Raises Interrupted if the run shall end first, heartbeat.Lost if a rank is lost or makes no progress.
        """
        pause = POLL
        with self.heartbeat.waiting(what):
            while True:
                reason = stopped()  # asked before `done`, which then sees all that rank 0 put before it told of the end
                if done():
                    return
                if reason:
                    raise Interrupted(reason)
                self.heartbeat.tick()
                self.pause(pause)
                pause = min(LONGEST_POLL, SLOWER * pause)
