"""Claims about the heartbeat: who counts as lost and when, what the others are told, how a run ends in order.

No thread and no clock of its own runs here: each test has the thread's turns taken one by one, on pipes in place of
connections. test_faults.py has the same on real processes.
"""

import json
import multiprocessing
import threading
import time
from multiprocessing import Pipe

import pytest

from plumbing.run import heartbeat
from plumbing.run.heartbeat import LATE, Heartbeat, Lost


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


def heard(line):
    """The messages that have come through a line, without heartbeats."""
    messages = []
    while line.poll():
        messages.append(json.loads(line.recv_bytes()))
    return [message for message in messages if message["kind"] != "beat"]


def turns(own, count=3):
    for _ in range(count):
        own.turn(time.monotonic())


def long_ago(own, rank, seconds):
    """As if this rank had been heard last, and made progress last, so many seconds ago."""
    own.heard[rank] -= seconds
    count, since = own.progress[rank]
    own.progress[rank] = count, since - seconds


# --- Frozen, hanging, dead -------------------------------------------------------------------------------------------


def test_a_silent_rank_is_lost_after_the_timeout_and_all_others_are_told(connected, capsys):
    own, lines = connected(0, 1, 2)
    long_ago(own, 2, 4.5)
    turns(own)
    assert own.lost is None
    long_ago(own, 2, 1.0)
    turns(own)
    reason = "rank 0 has heard nothing of rank 2 for 5 s; likely cause: frozen, or out of reach"
    assert own.lost == reason and capsys.readouterr().err == f"lost: {reason}\n"
    assert heard(lines[1]) == [{"kind": "lost", "reason": reason, "final": False}]


def test_a_rank_that_makes_no_progress_is_named_with_what_is_waited_for_and_a_working_one_is_not(connected):
    own, lines = connected(0, 1, 2, 3)
    for rank in lines:
        long_ago(own, rank, 5.0 + LATE)
        say(lines[rank], "beat", count=1 if rank == 2 else 0)  # rank 2 makes progress, however slowly
    with own.waiting("the generators to join version 1"):
        turns(own, 4)
    said = "rank 0 waits for the generators to join version 1, but rank 1 and rank 3 made no progress for 5 s; likely"
    assert own.lost.startswith(said)


def test_a_rank_that_ends_is_lost_at_once_and_the_next_turn_of_the_others_says_so(connected):
    own, lines = connected(0, 1, 2)
    own.tick()
    lines[2].close()
    turns(own)
    with pytest.raises(Lost, match="^rank 2 ended$"):
        own.tick()
    assert heard(lines[1]) == [{"kind": "lost", "reason": "rank 2 ended", "final": False}]
    other, line = connected(1, 0)
    say(line[0], "lost", reason="rank 2 ended", final=False)
    turns(other)
    with pytest.raises(Lost, match="^rank 2 ended$"):
        other.tick()


@pytest.mark.parametrize("rank, other, reason", [(0, 1, None), (1, 0, "rank 0 has ended the run")])
def test_a_generator_that_says_goodbye_is_no_loss_but_rank_0_should_leave_last(connected, rank, other, reason):
    own, lines = connected(rank, other)
    say(lines[other], "left")
    lines[other].close()
    turns(own)
    assert own.lost == reason


# --- Progress --------------------------------------------------------------------------------------------------------


def counts(line):
    found = []
    while line.poll():
        found.append(json.loads(line.recv_bytes())["count"])
    return found


def test_ticks_and_work_count_as_progress_and_idleness_does_not(connected, monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT", 0.0)  # a heartbeat each turn
    own, lines = connected(0, 1)
    turns(own, 2)
    own.tick()
    turns(own, 2)
    with own.working(), own.working():  # loading and writing take long
        turns(own, 2)
    turns(own, 2)
    assert counts(lines[1]) == [0, 0, 1, 1, 2, 3, 3, 3]


# --- An end in order -------------------------------------------------------------------------------------------------


def test_a_signal_on_any_rank_is_told_to_rank_0_and_only_the_first_reason_counts(connected):
    own, line = connected(1, 0)
    own.stop("interrupted: rank 1 got SIGTERM")
    own.stop("interrupted: rank 1 got SIGINT")
    turns(own, 1)
    assert heard(line[0]) == [{"kind": "stop", "reason": "interrupted: rank 1 got SIGTERM"}]
    lead, lines = connected(0, 1, 2)
    say(lines[1], "stop", reason="interrupted: rank 1 got SIGTERM")
    turns(lead)
    lead.tick()
    assert lead.stopped == "interrupted: rank 1 got SIGTERM" and not lead.failed
    assert heard(lines[2]) == []  # the others hear of it through the control state


def test_a_rank_whose_launcher_is_gone_asks_for_an_end_in_order(connected, monkeypatch):
    own, _ = connected(1, 0)
    turns(own)
    assert own.stopped is None
    own.launcher = -1
    turns(own, 1)
    assert own.stopped == "interrupted: the launcher of rank 1 ended"
    own, _ = connected(1, 0)
    monkeypatch.setattr(heartbeat.os, "getppid", lambda: 1)  # torchrun ended before this process looked for it
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    own.launcher = 1
    turns(own, 1)
    assert own.stopped == "interrupted: the launcher of rank 1 ended"


def test_rank_0_leaves_after_the_others_but_waits_for_none_that_stays(connected):
    other, line = connected(1, 0)
    other.end(patience=0.0)
    assert heard(line[0]) == [{"kind": "left"}]
    own, lines = connected(0, 1)
    before = []

    def leave():
        before.extend(heard(lines[1]))  # else a rank that has not seen the end yet would take rank 0's for a loss
        say(lines[1], "left")
        turns(own)

    timer = threading.Timer(0.2, leave)
    timer.start()
    own.end(patience=60.0)
    timer.join(30.0)
    assert before == [] and not timer.is_alive()
    own, lines = connected(0, 1)
    began = time.monotonic()
    own.end(patience=0.3)
    assert 0.3 <= time.monotonic() - began < 30.0 and heard(lines[1]) == [{"kind": "left"}]
    lines[1].close()
    turns(own)
    assert own.lost is None  # nobody is needed any more


def test_a_forked_child_keeps_no_connection_open(connected):
    own, lines = connected(0, 1)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60.0,))
    child.start()
    try:
        for line in own.lines:
            line.close()
        with pytest.raises(EOFError):  # else nobody would notice that a rank has died whose verifier lives on
            lines[1].poll(10.0) and lines[1].recv_bytes()
    finally:
        child.kill()
        child.join()


# --- Blame -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error, final", [(OSError(28, "No space left"), True), (ConnectionResetError("gone"), False)])
def test_a_full_disk_is_full_again_but_a_lost_connection_is_not(connected, error, final):
    own, lines = connected(0, 1)
    assert own.blame(error) == str(error)
    assert heard(lines[1]) == [{"kind": "lost", "reason": str(error), "final": final}]
    other, line = connected(1, 0)
    say(line[0], "lost", reason=str(error), final=final)
    turns(other)
    assert (other.lost, other.final) == (str(error), final)


def test_a_collective_that_fails_before_silence_is_known_waits_for_the_name_but_not_for_ever(connected, monkeypatch):
    own, _ = connected(1, 0)
    monkeypatch.setattr(heartbeat, "LATE", 0.0)
    monkeypatch.setattr(heartbeat, "BEAT", 0.1)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="our mistake"):  # rank 0 has just been heard
        own.blame(RuntimeError("our mistake"))
    assert time.monotonic() - began < own.timeout
    long_ago(own, 0, 4.0)
    timer = threading.Timer(0.5, lambda: own.lose("rank 0 is frozen"))
    timer.start()
    assert own.blame(RuntimeError("timed out")) == "rank 0 is frozen"
    timer.join()
    own, _ = connected(1, 0)
    own.timeout = 0.3
    long_ago(own, 0, 4.0)
    with pytest.raises(RuntimeError, match="timed out"):
        own.blame(RuntimeError("timed out"))
