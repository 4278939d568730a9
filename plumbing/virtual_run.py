"""train.py --virtual COSTS: a whole run in one process and in virtual time, the same twice whatever the machine does.

train.py's own loop and pipeline.py's `serve` run in threads, one at a time (plumbing/virtual.py); nothing of them is
repeated here. What they do is real: completions, verdicts, gradients. Only the time that it takes is a model
(plumbing/costs.py), and with it how old tokens are, who waits for whom, and `gpu_hours`.

The log repeats bit for bit on one type of machine with one version of torch: one thread of torch computes at a time,
and verdicts take no virtual time. Only verdicts that need a worker process may time out, which depends on the machine;
a line then says that the run will not repeat.

Outside `exact`, generators go on with their training completions during an evaluation while the clock of the log stands
still, as they do in reality; so ages depend on --eval-every too.

Test: pytest tests/test_virtual.py
"""

import signal
import sys
import threading
import time
from contextlib import closing, contextmanager, nullcontext
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import pipeline
from plumbing import virtual
from plumbing.batches import padded
from plumbing.flags import first_step, make_generator, make_scorer
from plumbing.fleet import ENDING, Fleet
from plumbing.timeline import Recorder

POLL = 0.002  # real seconds between two looks at a worker's verdicts


class TimedGenerator:
    """A generator whose decode steps take virtual time."""

    def __init__(self, generator, fleet, rank):
        self.generator = generator
        self.fleet = fleet
        self.rank = rank
        self.begun = {}  # (evaluation, request, index) of a running completion -> when it was begun
        self.stepped = False  # since the last look at verdicts, with which a turn ends

    def __getattr__(self, name):
        return getattr(self.generator, name)

    def step(self):
        self.stepped = True
        began = self.fleet.virtual.now
        done = self.generator.step()
        rows = len(self.generator._running) + len(done)
        self.fleet.virtual.sleep(self.fleet.costs.decode_step(rows, self.generator._cache.filled))
        if self.fleet.lifeline.stopped:  # by a signal, which may not touch the world: another actor has its turn
            self.fleet.virtual.note_write("stopped")
        if self.fleet.timeline:
            self.record(began, done)
        return done

    def record(self, began, done):
        """Put this decode step, and the completions that ended with it, into the timeline."""
        now = self.fleet.virtual.now
        for sequence in self.generator._running:
            request = sequence.group.request
            self.begun.setdefault((request.evaluation, request.number, sequence.index), began)
        for one in done:
            since = self.begun.pop((one.evaluation, one.request, one.index), began)
            self.fleet.timeline.completion(self.rank, since, now, one.versions[0], one.evaluation)
        self.fleet.timeline.decoding(self.rank, began, now)


class PromptScorer:
    """A scorer whose verdicts take no virtual time: all are there in the turn in which their completions end."""

    def __init__(self, scorer, generator, fleet):
        self.scorer = scorer
        self.generator = generator  # a TimedGenerator
        self.fleet = fleet
        self.late = False  # whether a verdict has timed out

    def submit(self, completion, prompt):
        self.scorer.submit(completion, prompt)

    def finished(self):
        if self.generator.stepped:  # a turn without a decode step only looks for news
            self.generator.stepped = False
            self.fleet.virtual.sleep(self.fleet.costs.turn)
        scores = self.scorer.finished()
        while self.scorer.pending:
            time.sleep(POLL)
            scores += self.scorer.finished()
        if not self.late and any(score.timed_out for score in scores):
            self.late = True
            print("WARNING: checking an answer took longer than --verify-timeout: this run may not repeat bit for bit")
        return sorted(scores, key=lambda score: (score.completion.request, score.completion.index))


class VirtualFleet(Fleet):
    """What train.py asks of a fleet, for a run in one process: trainer rank 0, and generators beside it."""

    hours = "virtual device-hours"

    def __init__(self, args, world):
        self.costs = args.costs
        self.ranks = 1 + args.generators
        self.trainer_devices = args.trainers
        self.devices = args.trainers + args.generators
        self.drain = args.costs.drain
        self.rank = 0
        self.lock = None
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = getattr(torch, args.dtype)
        self.out = args.out
        self.virtual = world
        self.world = 1  # processes
        self.clock = world.clock
        self.store = virtual.Store(world)
        self.wire = virtual.Wire(world, args.costs.broadcast)
        # With `exact` generators take no time: there is nothing to see.
        self.timeline = None if self.drain else Recorder(args.out, step=first_step(args))
        self.stepping = None  # when the optimizer step under way began
        self.beating = nullcontext
        self.lifeline = SimpleNamespace(stopped=None, lost=None, final=False, needed=set(), blame=self.blame)
        self.mailbox = self.box(0, interrupted=self.stopped)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.trainers = self.writers = dist.group.WORLD
        self.mesh = DeviceMesh.from_group(self.trainers, self.device.type)

    def close(self):
        """For a notebook, in which further runs may follow."""
        dist.destroy_process_group()
        if self.lock:
            self.lock.close()

    def box(self, rank, **more):
        return virtual.mailbox(self.virtual, self.store, rank, trainers=1, ranks=self.ranks, **more)

    def blame(self, error):
        """Why the run cannot go on; any error but the system's is a mistake in the program and is raised again."""
        if not isinstance(error, OSError):
            raise error
        return str(error)

    def stopped(self):
        self.virtual.note_read("stopped")  # so that Ctrl-C ends a pause; the generators look for it
        return self.lifeline.stopped

    def stop_together(self, items):
        """Before each micro-batch: the trainers' devices share its work."""
        self.mailbox.beat()
        if self.lifeline.stopped:
            raise pipeline.Interrupted(self.lifeline.stopped)
        self.stepping = self.virtual.now if self.stepping is None else self.stepping
        self.virtual.sleep((self.costs.micro_batch + self.costs.token * padded(items)) / self.trainer_devices)

    def total(self, sums, rho_max):
        self.virtual.sleep(self.costs.optimizer)
        if self.timeline:
            self.timeline.gradient(self.stepping, self.virtual.now)
        self.stepping = None
        return super().total(sums, rho_max)

    def broadcast(self, named):
        began = self.virtual.now
        self.wire.send(named)
        if self.timeline:
            self.timeline.broadcast(began, self.virtual.now)

    def generate(self, args, rank):
        """A generator's life."""
        with closing(make_generator(args, self.device, self.dtype)) as generator, closing(make_scorer(args)) as scorer:
            timed = TimedGenerator(generator, self, rank)
            pipeline.serve(timed, self.box(rank), self.wire.receive, PromptScorer(scorer, timed, self))


@contextmanager
def signals_go_to(handler):
    """Inside, Ctrl-C and the like call `handler`, if this is the thread that they reach (in a notebook it is)."""
    main = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in ENDING if main and hasattr(signal, name)]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class Failed(Exception):
    """The trainer has ended with a failure; raised so that generators end too, which may wait for it."""


def led(lead, fleet):
    """Why the trainer's life, lead(fleet), ended; raises Failed if that is a failure."""
    reason, failed = lead(fleet)
    if failed:
        raise Failed(reason)
    return reason


def run(args, lead):
    """A run in virtual time; lead(fleet) trains and returns (why it ended, whether that is a failure).

    Returns the exit code: 0, or 128 + the number of the signal that ended it, so that a loop in a shell ends too. Exits
    with code 1 after a failure.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of a sum depends on the number of threads
    world = virtual.World()
    fleet = VirtualFleet(args, world)
    actors = {"the trainer": lambda: led(lead, fleet)}
    for rank in range(1, fleet.ranks):
        actors[f"generator rank {rank}"] = lambda rank=rank: fleet.generate(args, rank)
    try:
        with signals_go_to(fleet.on_signal):
            reason = world.run(actors)
    except Failed as end:
        sys.exit(fleet.farewell(str(end)))
    finally:
        fleet.close()
        torch.set_num_threads(threads)
    if reason != "finished":
        print(f"train.py: {reason}")
    return 128 + signal.Signals[reason.split()[-1]] if reason == fleet.lifeline.stopped else 0  # ends in its name
