"""Which processes are alive: each rank has one connection to rank 0, and a thread that watches it.

    a process that ends          closes its connection; rank 0 reads end-of-file and tells all others at once
    one frozen or out of reach   sends no sign of life; after `timeout` seconds of silence it counts as lost
    one whose launcher is gone   says so, and rank 0 ends the run in order: nobody else would end it any more
    one that gets a signal       says so, and rank 0 ends the run in order

The thread uses neither the mailbox nor collectives, because their calls may never return: those of the store ignore
their timeout. It prints who is lost and sets `lost`, which the main thread checks while it waits (pipeline.py). If the
main thread has not noticed after GRACE seconds, it is blocked or busy for long, and the thread ends the process.

Deviation: none known; the paper does not speak of processes.

Run by train.py. Test: pytest tests/test_faults.py
"""

import ipaddress
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait

import torch.distributed as dist

from pipeline import Stalled

SIGN = 0.5  # seconds between two signs of life
GRACE = 5.0  # seconds from a loss until the process is ended from here, if its main thread has not noticed
PATIENCE = 60.0  # further seconds if it has: it draws the fit so far, and ends verifiers and process groups
LATE = 2.0  # seconds of silence beyond `timeout`: the main thread, which knows what it waits for, is to say it first


def address():
    """Where rank 0 is met: on loopback if all ranks are on one node, else at torchrun's MASTER_ADDR."""
    alone = os.environ["WORLD_SIZE"] == os.environ.get("LOCAL_WORLD_SIZE")
    return "127.0.0.1" if alone else os.environ["MASTER_ADDR"]


def listener(backlog):
    """A socket on which rank 0 listens at `address`: on no other interface, as whoever connects is believed.

    Where a node's own name leads to loopback, or the address is not the node's own, other nodes could not connect: then
    it listens on all interfaces.
    """
    with suppress(OSError):
        family, _, _, _, place = socket.getaddrinfo(address(), 0, type=socket.SOCK_STREAM)[0]
        if address() == place[0] or not ipaddress.ip_address(place[0]).is_loopback:
            return socket.create_server(place[:2], family=family, backlog=backlog)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=backlog, dualstack_ipv6=both)


def connect(rank, world, timeout):
    """Connect rank 0 with all others; every rank calls this. Returns {Connection: rank at its other end}.

    Needs the default process group. Rank 0 raises TimeoutError if nobody connects for `timeout` seconds.
    """
    if rank:
        port = [None]
        dist.broadcast_object_list(port, 0)
        line = Connection(socket.create_connection((address(), port[0])).detach())
        line.send_bytes(str(rank).encode())
        return {line: 0}
    with listener(world) as server:
        server.settimeout(timeout)
        dist.broadcast_object_list([server.getsockname()[1]], 0)
        lines = [Connection(server.accept()[0].detach()) for _ in range(world - 1)]
    return {line: int(line.recv_bytes(9)) for line in lines}


def orphaned():
    """Whether torchrun ended before this process looked for it: then the first process of the system is its parent."""
    if os.getppid() != 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    with suppress(OSError), open("/proc/1/cmdline", "rb") as file:
        return b"torch" not in file.read()  # in a container torchrun may be the first process itself
    return False


class Lifeline(threading.Thread):
    """The thread that watches this rank's connections; it starts when it is made.

    lines     as from `connect`
    name      rank -> what to call it
    timeout   seconds of silence after which a rank counts as frozen or out of reach
    farewell  reason -> what to print when the run cannot go on

    `lost` is why the run cannot go on, `stopped` why it is to end in order; None as long as there is no such reason.
    `final`: a new start would fail for the same reason as this one.
    """

    def __init__(self, lines, rank, *, name, timeout, farewell):
        super().__init__(daemon=True)
        self.lines = lines
        self.rank = rank
        self.name_of = name
        self.timeout = timeout
        self.farewell = farewell
        self.heard = dict.fromkeys(lines, time.monotonic())
        self.needed = set(lines.values())  # ranks whose end is a loss
        self.launcher = os.getppid()
        self.signed = float("-inf")
        self.lost = None
        self.stopped = None
        self.said = threading.Event()
        self.final = False
        self.noticed = False
        os.register_at_fork(after_in_child=lambda: [line.close() for line in lines])  # else a child keeps them open
        self.start()

    def run(self):
        while not self.lost:
            self.turn(time.monotonic())
        time.sleep(GRACE)
        time.sleep(PATIENCE if self.noticed else 0.0)
        os._exit(1)

    def turn(self, now):
        """Send a sign of life if one is due, check the launcher, then listen for up to SIGN seconds."""
        if now - self.signed >= SIGN:
            self.signed = now
            self.tell(f"stop {self.stopped}" if self.stopped and self.rank else "")
        if os.getppid() != self.launcher or orphaned():
            self.stopped = self.stopped or f"interrupted: the launcher of {self.name_of(self.rank)} ended"
        for line in wait(list(self.lines), SIGN):
            self.listen(line)
        if silent := self.silent(self.timeout + LATE):
            self.lose(
                f"{self.name_of(self.rank)} has heard nothing of {' and '.join(map(self.name_of, silent))} for "
                f"{self.timeout:g} s; likely cause: frozen, or out of reach"
            )

    def silent(self, seconds):
        """The ranks whose end is a loss and that have sent nothing for longer than this."""
        now = time.monotonic()
        return [
            rank for line, rank in list(self.lines.items()) if rank in self.needed and now - self.heard[line] > seconds
        ]

    def listen(self, line):
        """Read one message: empty (a sign of life), "left", or "stop", "lost" or "final" followed by a reason."""
        rank = self.lines[line]
        self.heard[line] = time.monotonic()
        try:
            kind, _, reason = line.recv_bytes().decode().partition(" ")
        except (EOFError, OSError):
            kind = "lost"
            reason = f"{self.name_of(rank)} ended"
        if kind == "stop":
            self.stopped = self.stopped or reason
        elif kind:
            del self.lines[line]
            self.final = self.final or kind == "final"
            if rank in self.needed and (kind in ("lost", "final") or self.rank):  # rank 0 should leave last
                self.lose(reason or f"{self.name_of(rank)} has ended the run")

    def tell(self, message):
        for line in list(self.lines):
            with suppress(OSError):  # it is closed: `listen` reads its end next
                line.send_bytes(message.encode())

    def lose(self, reason):
        """Note why the run cannot go on, tell all ranks and print it; only the first reason counts."""
        if not self.lost:
            self.lost = reason
            self.tell(f"{'final' if self.final else 'lost'} {reason}")
            print(self.farewell(reason), file=sys.stderr, flush=True)
            self.said.set()

    def blame(self, error):
        """After `error`: why the run cannot go on, told to all ranks.

        An OSError is itself the reason. Other errors come from a collective or the mailbox when some rank is lost,
        which is known within seconds of its end, or after its silence. Stalled is the reason if none is: the rank that
        it names may itself wait for a frozen one, which only rank 0 hears. Any other error is then a mistake in the
        program and is raised again.
        """
        if isinstance(error, OSError):
            self.final = not isinstance(error, (ConnectionError, TimeoutError))  # a full disk is full again
            self.lose(str(error) or type(error).__name__)
        until = time.monotonic() + LATE + 2 * SIGN
        while not self.lost and (time.monotonic() < until or self.silent(4 * SIGN)):
            time.sleep(0.02)
        if not self.lost and not isinstance(error, Stalled):
            raise error
        self.lose(str(error))
        self.noticed = True
        return self.lost

    def leave(self):
        """Tell the others that this rank ends in order, so that its end does not count as a loss.

        If a rank is lost, first let the thread say so: it ends with this process.
        """
        self.noticed = True
        self.needed = set()
        self.tell("left")
        if self.lost:
            self.said.wait(LATE)
