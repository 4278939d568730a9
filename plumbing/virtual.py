"""train.py --virtual COSTS: a whole run in one process and in virtual time, the same twice whatever the machine does.

train.py's own `train` and `generate` run here, by turns; nothing of them is repeated. What they do is real: rollouts,
verdicts, gradients. Only the time that it takes is a model (TABLE), and with it how stale tokens are, who waits for
whom, and `gpu_hours`. The trainer is the program; each generator is a Python generator that is resumed when its time
has come. Time passes only while the trainer works or waits: then the generator that is due first takes its turn.

    trainer works for s seconds           generators act that are due in these seconds
    trainer waits for something           the next generator acts, until it is there
    a generator has decoded a step        it goes on after the step's and the turn's seconds
    a generator receives weights          it goes on when they are sent
    a generator has nothing to decode     it goes on when the control state changes

The log repeats bit for bit on one type of machine with one version of torch: one thread of torch computes at a time,
and verdicts take no virtual time. Only verdicts that need a worker process may time out, which depends on the machine:
where `timed_out` in the log is not 0, the run may not repeat.

Outside `exact`, generators go on with their training rollouts during an evaluation while the clock of the log stands
still, as they do in reality; so staleness depends on --eval-every too.

Test: pytest tests/test_virtual.py
"""

import heapq
import itertools
import math
import signal
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pipeline import RequestQueue
from plumbing.checkpoints import pick
from plumbing.devices import device
from plumbing.heartbeat import Heartbeat
from plumbing.log import TICKS, lock_log
from plumbing.processes import Processes, handled
from plumbing.store import Interrupted, Store


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


def ticks(seconds):
    """The nearest multiple of a tick: sums of such times are exact."""
    return round(seconds * TICKS) / TICKS


class Memory(dist.Store):
    """What stands for the TCPStore in one process; `written` is called with each key that is set.

    Not a dist.HashStore, which Windows lacks.
    """

    def __init__(self, written=bool):
        super().__init__()
        self.written = written
        self.values = {}

    def set(self, key, value):
        self.values[key] = value
        self.written(key)

    def get(self, key):
        return self.values[key]

    def multi_get(self, keys):
        return [self.values[key] for key in keys]

    def check(self, keys):
        return all(key in self.values for key in keys)

    def add(self, key, more):
        self.values[key] = self.values.get(key, 0) + more
        return self.values[key]

    def wait(self, keys, *_):
        """For gloo, which alone in its group finds its own keys."""

    def delete_key(self, key):
        return self.values.pop(key, None) is not None


class Events:
    """A clock, and what happens when: functions in the order of their times, and of their entry at equal times."""

    def __init__(self):
        self.now = 0.0  # virtual seconds
        self._heap = []  # (time, entry, function)
        self._entries = itertools.count()

    def after(self, seconds, function):
        """Have the function called so many seconds from now."""
        heapq.heappush(self._heap, (self.now + ticks(seconds), next(self._entries), function))

    def next(self):
        """Call the function that is due first. Raises IndexError if there is none."""
        self.now, _, function = heapq.heappop(self._heap)
        function()

    def sleep(self, seconds):
        """Let so many seconds pass, with what is due in them."""
        until = self.now + ticks(seconds), next(self._entries)
        while self._heap and self._heap[0][:2] < until:
            self.next()
        self.now = until[0]


class Turns:
    """A generator rank's life, train.generate, resumed turn by turn.

    processes  the InOneProcess that it belongs to
    """

    def __init__(self, life, processes):
        self.life = life
        self.processes = processes
        self.events = processes.events
        self.receiving = None  # {name: tensor} while it waits for weights
        self.idle = False
        self.events.after(0.0, self.resume)

    def resume(self):
        """One turn: deliver what the last decode step has finished, start the next one; then wait (see above)."""
        self.processes.acting = self
        turn = next(self.life, None)
        if turn is None:  # the run has ended
            return
        generator, scorer, done = turn
        scorer.wait()  # verdicts take no virtual time
        rows = 0 if self.receiving else len(generator._running) + len(done)
        if rows:
            costs = self.processes.costs
            seconds = ticks(costs.decode_step(rows, generator.filled))
            generator.work["decode_seconds"] += seconds
            generator.work["slot_seconds"] += seconds * rows / generator.slots
            self.events.after(seconds, self.decoded)
        self.idle = not rows and not self.receiving

    def decoded(self):
        """A decode step has ended; what comes of it follows after the turn's seconds."""
        self.events.after(self.processes.costs.turn, self.resume)


class InOneProcess(Processes):
    """What train.py asks of its processes, for a run in one: trainer rank 0, and generators beside it.

    generate  train.generate
    """

    hours = "virtual device-hours"

    def __init__(self, args, generate):
        self.events = Events()
        self.costs = TABLE[args.virtual]
        self.generate = generate
        self.lives = []  # Turns of the generators
        self.acting: Any = None  # whose Turns goes on
        self.rank = self.local = 0
        self.world = 1  # processes
        self.trainer_devices = args.trainers
        self.devices = args.trainers + args.generators
        self.drain = self.costs.drain
        self.out = args.out
        self.dtype = getattr(torch, args.dtype)
        self.device = device(0)
        self.trainer_ranks = range(1)
        self.generator_ranks = range(1, 1 + args.generators)
        self.hosts = [""] * (1 + args.generators)
        self.lock = None
        self.heartbeat = Heartbeat({}, 0, self.name, math.inf, self.farewell)
        self.memory = Memory(self.written)
        self.store = Store(self.memory, 0, self.heartbeat, pause=self.wait)
        self.threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the order of a sum depends on the number of threads
        dist.init_process_group("gloo", store=Memory(), rank=0, world_size=1)
        self.trainers = self.writers = dist.group.WORLD
        self.mesh = DeviceMesh.from_group(self.trainers, self.device.type)
        self.signals = {name: signal.getsignal(signal.Signals[name]) for name in handled()}
        self.end_in_order()

    def agree(self, args):
        """Lock --out, pick the checkpoint to resume from, and begin the generators' lives."""
        self.lock = lock_log(args.out)
        if args.resume:
            args = replace(args, checkpoint=pick(args.out))
        for rank in self.generator_ranks:
            queue = RequestQueue(Store(self.memory, rank, self.heartbeat))
            life = self.generate(args, self, queue)
            self.lives.append(Turns(life, self))
        return args

    def clock(self):
        return self.events.now

    # --- What happens while the trainer works or waits

    def wait(self, _):
        """The trainer waits for something: the generator that is due first acts."""
        try:
            self.events.next()
        except IndexError:
            what = f"the trainer waits for {self.heartbeat.what}, and no generator has anything to do"
            raise RuntimeError(f"{what}, at {self.events.now:.3f} virtual seconds") from None

    def written(self, key):
        """Generators that have nothing to decode look at each new control state."""
        for turns in [turns for turns in self.lives if turns.idle and key == "state"]:
            turns.idle = False
            self.events.after(0.0, turns.resume)

    def stop_together(self, tokens):
        """Before each micro-batch: the trainers' devices share its work."""
        if self.heartbeat.stopped:
            raise Interrupted(self.heartbeat.stopped)
        self.events.sleep((self.costs.micro_batch + self.costs.token * tokens) / self.trainer_devices)

    def total(self, sums, largest):
        """After the last micro-batch: the rest of an optimizer step."""
        self.events.sleep(self.costs.optimizer)
        return super().total(sums, largest)

    def receive(self, named):
        """Called in a generator's turn, which ends after it; `broadcast` then fills the tensors."""
        self.acting.receiving = named

    @torch.no_grad()
    def broadcast(self, layout, tensors):
        """All generators receive at once, the broadcast's seconds after all have joined."""
        self.events.sleep(self.costs.broadcast)
        for (name, *_), tensor in zip(layout, tensors):
            for turns in self.lives:
                turns.receiving[name].copy_(tensor)
        for turns in self.lives:
            turns.receiving = None
            self.events.after(0.0, turns.resume)

    def end(self, reason):
        """Returns the exit code: 0, 1, or 128 + the number of the signal that ended the run, as shells expect."""
        code = super().end(reason)
        return 128 + signal.Signals[reason.split()[-1]] if reason.startswith("interrupted") else code

    def close(self):
        """Leave the process as it was, after an error too: in a notebook further runs may follow."""
        for turns in self.lives:
            turns.life.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        for name, handler in self.signals.items():
            signal.signal(signal.Signals[name], handler)
        torch.set_num_threads(self.threads)
        if self.lock:
            self.lock.close()
