"""Claims about the heartbeat: who counts as lost and when, what the others are told, how a run ends in order.

No thread and no clock of its own runs here: each test has the thread's turns taken one by one, on pipes in place of
connections. test_faults.py has the same on real processes, with signals and launchers.
"""

import json
import multiprocessing
import time
from multiprocessing import Pipe

import pytest
from conftest import refuses

from plumbing import heartbeat
from plumbing.heartbeat import LATE, Heartbeat, Lost


@pytest.fixture
def connected(monkeypatch):
    """(rank, *others) -> the Heartbeat of a rank, with a timeout of 5 s, and {other rank: the far end of its line}."""
    monkeypatch.setattr(Heartbeat, "start", lambda self: None)
    monkeypatch.setattr(heartbeat, "BEAT", 0.01)

    def connect(rank, *others):
        pairs = {other: Pipe() for other in others}
        near = {pair[0]: other for other, pair in pairs.items()}
        own = Heartbeat(near, rank, "rank {}".format, 5.0, "lost: {}".format)
        return own, {other: pair[1] for other, pair in pairs.items()}

    return connect


def say(line, kind, **more):
    line.send_bytes(json.dumps({"kind": kind, **more}).encode())


def messages(line):
    """The messages that have come through a line."""
    while line.poll():
        yield json.loads(line.recv_bytes())


def heard(line):
    return [message for message in messages(line) if message["kind"] != "beat"]


def turns(own, count=3):
    for _ in range(count):
        own.turn(time.monotonic())


def long_ago(own, rank, seconds):
    """As if this rank had been heard last, and made progress last, so many seconds ago."""
    own.heard[rank] -= seconds
    count, since = own.progress[rank]
    own.progress[rank] = count, since - seconds


# --- Frozen, hanging, dead -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate, reason", [
    (lambda own, lines: long_ago(own, 2, 5.1),
     "rank 0 has heard nothing of rank 2 for 5 s; likely cause: frozen, or out of reach"),
    (lambda own, lines: lines[2].close(), "rank 2 ended"),
])  # fmt: skip
def test_a_rank_that_is_silent_or_ends_is_lost_and_all_others_are_told(connected, capsys, fate, reason):
    own, lines = connected(0, 1, 2)
    long_ago(own, 1, 4.0)
    turns(own)
    own.tick()  # the timeout is 5 s
    fate(own, lines)
    turns(own)
    refuses(f"^{reason}$", own.tick, error=Lost)
    assert capsys.readouterr().err == f"lost: {reason}\n"
    assert heard(lines[1]) == [{"kind": "lost", "reason": reason, "final": False}]


def test_a_rank_without_progress_is_named_with_what_is_waited_for_and_a_working_one_is_not(connected):
    own, lines = connected(0, 1, 2, 3)
    for rank in lines:
        long_ago(own, rank, 5.0 + LATE)
        say(lines[rank], "beat", count=1 if rank == 2 else 0)  # rank 2 makes progress, however slowly
    with own.waiting("the generators to join version 1"):
        turns(own, 4)
    said = "rank 0 waits for the generators to join version 1, but rank 1 and rank 3 made no progress for 5 s; likely"
    assert own.lost.startswith(said)


@pytest.mark.parametrize("rank, other, reason", [(0, 1, None), (1, 0, "rank 0 has ended the run")])
def test_a_generator_that_says_goodbye_is_no_loss_but_rank_0_should_leave_last(connected, rank, other, reason):
    own, lines = connected(rank, other)
    say(lines[other], "left")
    lines[other].close()
    turns(own)
    assert own.lost == reason


def test_ticks_and_work_count_as_progress_and_idleness_does_not(connected, monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT", 0.0)  # a heartbeat each turn
    own, lines = connected(0, 1)
    turns(own, 2)
    own.tick()
    turns(own, 2)
    with own.working(), own.working():  # loading and writing take long
        turns(own, 2)
    turns(own, 2)
    assert [beat["count"] for beat in messages(lines[1])] == [0, 0, 1, 1, 2, 3, 3, 3]


# --- An end in order -------------------------------------------------------------------------------------------------


def test_torchrun_may_end_before_a_rank_looks_for_it(connected, monkeypatch):
    own, _ = connected(1, 0)
    turns(own, 1)
    assert own.stopped is None
    own.launcher = 1
    monkeypatch.setattr(heartbeat.os, "getppid", lambda: 1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    turns(own, 1)
    assert own.stopped == "interrupted: the launcher of rank 1 ended"


def test_rank_0_leaves_after_the_others_but_waits_for_none_that_stays(connected, monkeypatch):
    own, lines = connected(0, 1)
    before = []

    def leave(seconds):
        before.extend(heard(lines[1]))  # else a rank that has not seen the end yet would take rank 0's for a loss
        say(lines[1], "left")
        turns(own)

    monkeypatch.setattr(time, "sleep", leave)
    own.end(patience=60.0)
    assert before == [] and own.lost is None
    for rank, other in ((0, 1), (1, 0)):
        own, lines = connected(rank, other)
        own.end(patience=0.0)
        assert heard(lines[other]) == [{"kind": "left"}]


def test_a_forked_child_keeps_no_connection_open(connected):
    own, lines = connected(0, 1)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60.0,), daemon=True)
    child.start()
    for line in own.lines:
        line.close()
    assert lines[1].poll(10.0), "no end-of-file: nobody would notice that a rank has died whose child lives on"
    child.kill()


# --- Blame -----------------------------------------------------------------------------------------------------------


def test_a_collective_that_fails_waits_for_the_name_of_a_silent_rank_but_not_for_ever(connected, monkeypatch):
    monkeypatch.setattr(heartbeat, "LATE", 0.0)
    own, _ = connected(1, 0)
    for silent, error in ((-60.0, "our mistake"), (64.0, "timed out")):
        long_ago(own, 0, silent)
        own.timeout = 0.1
        refuses(error, own.blame, RuntimeError(error), error=RuntimeError)
    monkeypatch.setattr(time, "sleep", lambda seconds: own.lose("rank 0 is frozen"))
    assert own.blame(RuntimeError("timed out")) == "rank 0 is frozen"
