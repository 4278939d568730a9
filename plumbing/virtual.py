"""Virtual time: a clock that advances by stated costs, and a mailbox's store in memory, for a run in one process.

Actors (a trainer, generators) are threads of which one runs at a time. Time passes only while all of them wait; then
the one that is due first goes on. So what happens, and when, depends on the costs alone and not on the machine.

    world.sleep(seconds)    an actor works, or waits, for so long
    world.pause()           until another actor writes a key of the store that this one has read since its last pause
    Store(world)            the methods of a TCPStore that pipeline.Mailbox uses; a call takes no time
    Wire(world, seconds)    weights as in a broadcast: all generators receive at once, so many seconds after all joined

A pause takes the place of polling: it costs nothing, and ends at the moment at which polling would see the change. What
was written after an actor read it, and before it pauses, ends the pause at once. When all actors wait and none is due,
nothing can happen any more: the error says who waits for what.

Run by benchmarks and tests. Test: pytest tests/test_virtual.py tests/test_pipeline.py
"""

import heapq
import itertools
import math
import threading

import torch

import pipeline

TICKS = 2.0**24  # per second; times are multiples of one, so that sums of times are exact, in whatever parts
# Keys that are written all the time: reading them makes no pause end.
UNWATCHED = ("beat/", "idle/", "decoding/", "steps/", "used/")


class Abort(BaseException):
    """Ends an actor because another one has failed."""


class Actor:
    """One of the threads: what it waits for."""

    def __init__(self, name):
        self.name = name
        self.read = {}  # key -> number of its last write when this actor read it, since its last pause
        self.keys = ()  # one of which ends its pause
        self.due = math.inf  # virtual time at which it goes on
        self.entry = None  # of its entries in the heap, the valid one
        self.turn = threading.Lock()  # released to let it run
        self.turn.acquire()


class World:
    """A clock and its actors. `run` starts them; an actor calls `clock`, `sleep`, `pause` and `wait`."""

    def __init__(self):
        self.now = 0.0  # virtual seconds
        self.error = None  # what the first failing actor raised
        self._heap = []  # (time, entry, actor)
        self._count = itertools.count(1)
        self._alive = []  # actors; until it has left, the leader is the first
        self._leader = self._running = Actor("leader")  # whose turn it is
        self._own = threading.local()
        self._own.actor = self._leader
        self._readers = {}  # key -> {actor whose pause it ends: None}, in order
        self._writes = {}  # key -> number of its last write

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self._wait((), seconds)

    def pause(self, seconds=math.inf):
        """Until a key that this actor has read since its last pause is written, `seconds` at most."""
        actor = self._own.actor
        read = actor.read
        actor.read = {}
        self._until(read, seconds)

    def wait(self, keys, seconds=math.inf):
        """Until one of these keys is written (since this actor has read it, if it has), `seconds` at most.

        What the actor has read before still ends its next pause.
        """
        read = self._own.actor.read
        self._until({key: read.get(key, self._writes.get(key, 0)) for key in keys}, seconds)

    def _until(self, read, seconds):
        """Until one of the keys is written after the write whose number {key: number} has, `seconds` at most."""
        actor = self._own.actor
        if any(self._writes.get(key, 0) != number for key, number in read.items()):
            return
        for key in read:
            self._readers.setdefault(key, {})[actor] = None
        self._wait(read, seconds)
        for key in read:
            del self._readers[key][actor]
            if not self._readers[key]:
                del self._readers[key]

    def note_read(self, key):
        self._own.actor.read[key] = self._writes.get(key, 0)

    def note_write(self, key):
        self._writes[key] = next(self._count)
        for actor in self._readers.get(key, ()):
            self._schedule(actor, self.now)

    def forget(self, key):
        """A key is deleted: without this, the numbers of all keys of a run would stay."""
        self._writes.pop(key, None)

    def run(self, actors):
        """Run {name: function} until all have returned; returns what the first of them, the leader, returned.

        The leader runs in the calling thread, which is the one that signals reach. When another actor fails, the leader
        raises that error where it waits; all others end where they wait, by Abort, so that they can clear up.
        """
        (name, lead), *others = actors.items()
        leader = self._own.actor = self._leader = self._running = Actor(name)
        self._alive = [leader]
        for name, function in others:
            actor = Actor(name)
            self._alive.append(actor)
            self._schedule(actor, self.now)
            threading.Thread(target=self._live, args=(actor, function), name=name, daemon=True).start()
        try:
            result = lead()
            handled = self.error
        except BaseException as error:
            handled = self.error = self.error or error
            raise
        finally:
            self._leave(leader)
            if self._alive:
                leader.turn.acquire()  # the last to leave releases it
        if self.error is not handled:
            raise self.error
        return result

    def _live(self, actor, function):
        """A thread's life."""
        self._own.actor = actor
        actor.turn.acquire()
        try:
            if not self.error:
                function()
        except Abort:
            pass
        except BaseException as error:  # raised again in the leader's thread
            self.error = self.error or error
        self._leave(actor)
        if not self._alive:
            self._leader.turn.release()

    def _wait(self, keys, seconds):
        """Hand over to others until this actor is due: in `seconds`, or when `note_write` says so."""
        actor = self._own.actor
        actor.keys = keys
        actor.due = math.inf
        self._schedule(actor, self.now + (seconds if seconds == math.inf else round(seconds * TICKS) / TICKS))
        self._running = self._choose()
        if self._running is not actor:
            self._running.turn.release()
            actor.turn.acquire()
        if self.error:
            raise self.error if actor is self._leader else Abort

    def _schedule(self, actor, time):
        if time < actor.due:
            actor.due = time
            actor.entry = next(self._count)
            heapq.heappush(self._heap, (time, actor.entry, actor))

    def _choose(self):
        """Who goes on: the actor that is due first; after an error the leader, then one after the other."""
        while self._heap and not self.error:
            time, entry, actor = heapq.heappop(self._heap)
            if entry == actor.entry:  # else it has been woken earlier, or has left
                self.now = time
                actor.entry = None
                return actor
        self.error = self.error or RuntimeError(self._deadlock())
        return self._alive[0]

    def _deadlock(self):
        waits = [f"{actor.name} for {', '.join(list(actor.keys)[:3]) or 'nothing'}" for actor in self._alive]
        return f"all actors wait, at {self.now:.3f} virtual seconds: {'; '.join(waits)}"

    def _leave(self, actor):
        """This actor has ended; if it is its turn, another one goes on."""
        actor.entry = None
        self._alive.remove(actor)
        if self._alive and self._running is actor:
            self._running = self._choose()
            self._running.turn.release()


class Store:
    """The methods of a TCPStore that the mailbox uses; where a TCPStore would block, this one raises KeyError."""

    def __init__(self, world):
        self.world = world
        self.values = {}

    def set(self, key, value):
        self.values[key] = value
        self.world.note_write(key)

    def get(self, key):
        return self.values[key]

    def multi_get(self, keys):
        return [self.values[key] for key in keys]

    def check(self, keys):
        for key in keys:
            if key not in self.values:
                self.world.note_read(key)  # this one has to come before all are there
                return False
        return True

    def add(self, key, amount):
        self.values[key] = int(self.values.get(key, 0)) + amount
        if amount:
            self.world.note_write(key)
        elif not key.startswith(UNWATCHED):
            self.world.note_read(key)
        return self.values[key]

    def delete_key(self, key):
        self.world.forget(key)
        return self.values.pop(key, None) is not None

    def num_keys(self):
        return len(self.values)

    def clone(self):
        return self


class Wire:
    """Weights as in a broadcast. Rank 0 calls `send` when all generators have joined, each of which calls `receive`."""

    def __init__(self, world, seconds):
        self.world = world
        self.seconds = seconds
        self.receivers = []  # {name: tensor} of each generator that waits

    def receive(self, named):
        self.receivers.append(named)
        self.world.wait(["wire"])

    @torch.no_grad()
    def send(self, named):
        self.world.sleep(self.seconds)
        for theirs in self.receivers:
            for name, tensor in theirs.items():
                tensor.copy_(named[name])
        self.receivers = []
        self.world.note_write("wire")


def mailbox(world, store, rank, *, trainers, ranks, **more):
    """A pipeline.Mailbox in virtual time: it pauses instead of polling, sees news at once, and nobody is ever late."""
    box = pipeline.Mailbox(store, rank, trainers=trainers, world=ranks, timeout=math.inf, **more)
    box.clock = world.clock
    box.pause = lambda seconds: world.pause()
    box.look = 0.0
    box.beat_every = 0.0
    return box
