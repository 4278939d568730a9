"""Which processes are alive and make progress: each rank has one connection to rank 0, and a thread that watches it.

    a process that ends          closes its connection; rank 0 reads end-of-file and tells all others at once
    one frozen or out of reach   sends nothing; after `timeout` seconds of silence it counts as lost
    one that hangs               says that it makes no progress; after `timeout` and LATE seconds it counts as lost
    one whose launcher is gone   says so, and rank 0 ends the run in order: nobody else would end it any more
    one that gets a signal       says so, and rank 0 ends the run in order

The main thread calls `tick` in every wait and every turn, and the heartbeat's thread sends whether it has. It uses
neither the store nor collectives, because their calls may never return. It prints who is lost and sets `lost`; the next
`tick` raises Lost. If the main thread has not noticed after GRACE seconds, it is blocked or busy for long, and the
thread ends the process.

Deviation: none known; the paper does not speak of processes.

Run by processes.py. Test: pytest tests/test_faults.py
"""

import json
import os
import selectors
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

import torch.distributed as dist

from pipeline import Fault

BEAT = 0.5  # seconds between two heartbeats
GRACE = 5.0  # seconds from a loss until the process is ended from here, if its main thread has not noticed
PATIENCE = 60.0  # further seconds if it has: it draws the fit so far, and ends verifiers and process groups
LATE = 2.0  # seconds that a rank may make no progress beyond `timeout`: it may itself wait for one that is silent


class Lost(RuntimeError):
    """A process has ended, hangs or is out of reach: the run cannot go on."""


# --- Connections -----------------------------------------------------------------------------------------------------


def address():
    """Where rank 0 is met: on loopback if all ranks are on one node, else at torchrun's MASTER_ADDR."""
    alone = os.environ["WORLD_SIZE"] == os.environ.get("LOCAL_WORLD_SIZE")
    return "127.0.0.1" if alone else os.environ["MASTER_ADDR"]


def listener(backlog):
    """A socket on which rank 0 listens at `address`: on no other interface, as whoever connects is believed."""
    family, _, _, _, place = socket.getaddrinfo(address(), 0, type=socket.SOCK_STREAM)[0]
    return socket.create_server(place[:2], family=family, backlog=backlog)


def connect(rank, world, timeout):
    """Connect rank 0 with all others; every rank calls this.

    Returns (the TCPStore that rank 0 hosts, {Connection: rank at its other end}). Needs the default process group.
    Raises OSError or dist.DistError if a rank cannot reach rank 0, TimeoutError there if nobody comes for `timeout` s.
    """
    servers = [listener(world), listener(world)] if rank == 0 else []
    ports = [server.getsockname()[1] for server in servers] or [0, 0]
    dist.broadcast_object_list(ports, 0)
    if rank:
        line = Connection(socket.create_connection((address(), ports[1])).detach())
        line.send_bytes(str(rank).encode())
        return dist.TCPStore(address(), ports[0], wait_for_workers=False), {line: 0}
    hosted, server = servers
    descriptor = hosted.detach()
    store = dist.TCPStore(address(), ports[0], is_master=True, master_listen_fd=descriptor, wait_for_workers=False)
    with server:
        server.settimeout(timeout)
        lines = [Connection(server.accept()[0].detach()) for _ in range(world - 1)]
    return store, {line: int(line.recv_bytes(9)) for line in lines}


# --- The heartbeat ---------------------------------------------------------------------------------------------------


class Heartbeat(threading.Thread):
    """The thread that watches this rank's connections; it starts when it is made.

    lines     as from `connect`; without any, a run in one process, there is no thread
    name      rank -> what to call it
    timeout   seconds of silence, or without progress, after which a rank counts as lost
    farewell  reason -> what to print when the run cannot go on

    `lost` is why the run cannot go on, `stopped` why it is to end in order; None as long as there is no such reason.
    `failed`: the end in order is a failure. `final`: a new start would fail for the same reason as this one.
    """

    def __init__(self, lines, rank, name, timeout, farewell):
        super().__init__(daemon=True)
        self.lines = lines
        self.arrivals = selectors.DefaultSelector()
        for line in lines:
            self.arrivals.register(line, selectors.EVENT_READ)
        self.rank = rank
        self.name_of = name
        self.timeout = timeout
        self.farewell = farewell
        self.needed = set(lines.values())  # ranks whose end is a loss
        now = time.monotonic()
        self.heard = dict.fromkeys(self.needed, now)  # rank -> when it last said anything
        self.advanced = dict.fromkeys(self.needed, now)  # rank -> when it last said that it makes progress
        self.progress = False  # of the main thread, since the last heartbeat
        self.busy = 0  # how many `working` are open
        self.what = ""  # what the main thread waits for
        self.due = now  # when to send the next heartbeat
        self.launcher = os.getppid()
        self.lost = None
        self.stopped = None
        self.failed = False
        self.final = False
        self.noticed = False  # the main thread knows of the loss
        self.printed = threading.Event()  # the loss is on the screen
        if lines:
            os.register_at_fork(after_in_child=lambda: [line.close() for line in lines])  # else a child keeps them open
            self.start()

    # --- What the main thread calls

    def tick(self):
        """Say that the main thread makes progress. Raises Lost if a rank is lost."""
        self.progress = True
        if self.lost:
            self.noticed = True
            raise Lost(self.lost)

    @contextmanager
    def working(self):
        """Inside `with`, the main thread counts as making progress: loading and writing take long."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    @contextmanager
    def waiting(self, what):
        """Inside `with`, the main thread waits for this; messages name it."""
        self.what = what
        try:
            yield
        finally:
            self.what = ""

    def stop(self, reason, failed=False):
        """Ask for an end in order; only the first reason counts."""
        if not self.stopped:
            self.failed = failed
            self.stopped = reason

    def blame(self, error):
        """After `error`: why the run cannot go on, told to all ranks.

        An OSError, FloatingPointError or Fault is itself the reason. Other errors come from a collective or the store
        when a rank is lost, which is known within seconds of its end, or after its silence. Any other error is then a
        mistake in the program and is raised again.
        """
        if isinstance(error, (OSError, FloatingPointError, Fault)):
            self.final = not isinstance(error, (ConnectionError, TimeoutError))  # a full disk is full again
            self.lose(str(error) or type(error).__name__)
        until = time.monotonic() + LATE + 3 * BEAT
        while self.lines and not self.lost and (time.monotonic() < until or self.late(self.heard, 4 * BEAT)):
            time.sleep(0.02)  # later on only for a rank that is silent: its name comes after `timeout`
        if not self.lost:
            raise error
        self.noticed = True
        return self.lost

    def end(self, patience):
        """Tell the others that this rank ends in order; wait up to `patience` seconds until all have said so too.

        Rank 0 waits first: a rank that has not yet looked at the control state would take its end for a loss. If a rank
        is lost, first let the thread say so: it ends with this process.
        """
        self.noticed = True
        self.needed = set()
        if self.rank:
            self.tell("left")
        if self.lost:
            self.printed.wait(LATE)
        until = time.monotonic() + patience
        while self.lines and not self.lost and time.monotonic() < until:
            time.sleep(0.01)
        if not self.rank:
            self.tell("left")

    # --- What the thread does

    def run(self):
        while not self.lost:
            self.turn()
        time.sleep(GRACE)
        time.sleep(PATIENCE if self.noticed else 0.0)
        os._exit(1)

    def turn(self):
        """Send a heartbeat if one is due, check the launcher, listen for up to BEAT seconds, look who is late."""
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + BEAT
            self.tell("beat", progress=self.progress or self.busy > 0)
            self.progress = False
            if self.stopped and self.rank:
                self.tell("stop", reason=self.stopped)
        if os.getppid() != self.launcher:
            self.stop(f"interrupted: the launcher of {self.name_of(self.rank)} ended")
        for key, _ in self.arrivals.select(BEAT):
            self.listen(key.fileobj)
        me = self.name_of(self.rank)
        # What rank 0 waits for is silent itself, or known to rank 0 a little earlier than here.
        stuck = self.late(self.advanced, self.timeout + (2 * LATE if self.rank else LATE))
        if silent := self.late(self.heard, self.timeout):
            cause = "frozen, or out of reach"
            self.lose(f"{me} has heard nothing of {silent} for {self.timeout:g} s; likely cause: {cause}")
        elif stuck:
            waits = f"{me} waits for {self.what}, but " if self.what else ""
            cause = "it hangs, or a step or checkpoint takes longer than --timeout"
            self.lose(f"{waits}{stuck} made no progress for {self.timeout:g} s; likely cause: {cause}")

    def late(self, times, seconds):
        """Names of the ranks whose end is a loss and whose time, {rank: monotonic time}, is longer ago; "" if none."""
        now = time.monotonic()
        late = [rank for rank, at in times.items() if rank in self.needed and now - at > seconds]
        return " and ".join(map(self.name_of, late))

    def listen(self, line):
        """Read one message; end-of-file without "left" before it means that the process died."""
        rank = self.lines[line]
        try:
            message = json.loads(line.recv_bytes())
        except (EOFError, OSError):
            message = {"kind": "lost", "reason": f"{self.name_of(rank)} ended"}
        self.heard[rank] = time.monotonic()
        if message["kind"] == "beat":
            if message["progress"]:
                self.advanced[rank] = self.heard[rank]
        elif message["kind"] == "stop":
            self.stop(message["reason"])
        else:  # lost, or left
            self.arrivals.unregister(line)
            del self.lines[line]
            self.final = self.final or message.get("final", False)
            if rank in self.needed and (message["kind"] == "lost" or self.rank):  # rank 0 should leave last
                self.lose(message.get("reason") or f"{self.name_of(rank)} has ended the run")

    def tell(self, kind, **more):
        """Send a message on all lines."""
        for line in list(self.lines):
            with suppress(OSError):  # it is closed: `listen` reads its end next
                line.send_bytes(json.dumps({"kind": kind, **more}).encode())

    def lose(self, reason):
        """Note why the run cannot go on, tell all ranks and print it; only the first reason counts."""
        if not self.lost:
            self.lost = reason
            self.tell("lost", reason=reason, final=self.final)
            print(self.farewell(reason), file=sys.stderr, flush=True)
            self.printed.set()
