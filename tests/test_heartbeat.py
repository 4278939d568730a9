"""Claims about the heartbeat that real processes would take long to show: who is silent, who hangs, who may leave.

The heartbeats of several ranks are joined by pipes and take turns on a clock that the test moves. test_faults.py kills
and freezes real processes.
"""

import multiprocessing
import time
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
from conftest import refuses

from plumbing import heartbeat
from plumbing.heartbeat import LATE, Heartbeat, Lost

TIMEOUT = 5.0  # seconds


class Ranks:
    """The heartbeats of so many ranks, and their clock."""

    def __init__(self, world, monkeypatch):
        self.now = 0.0  # seconds
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=lambda _: self.live(0.5))
        monkeypatch.setattr(heartbeat, "time", clock)
        monkeypatch.setattr(heartbeat, "BEAT", 0.001)
        monkeypatch.setattr(Heartbeat, "start", lambda self: None)
        pairs = [Pipe() for _ in range(1, world)]
        lines = [{near: rank for rank, (near, _) in enumerate(pairs, 1)}, *({far: 0} for _, far in pairs)]
        self.beats = [Heartbeat(own, rank, "rank {}".format, TIMEOUT, str) for rank, own in enumerate(lines)]
        self.alive = [*self.beats]

    def live(self, seconds, ticking=()):
        """Let so many seconds pass, in which those that are alive take turns and these make progress."""
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            for beat in ticking:
                if not beat.lost:
                    beat.tick()
            for beat in self.alive:
                beat.turn()


@pytest.fixture
def group(monkeypatch):
    return Ranks(3, monkeypatch)


def test_a_rank_that_sends_nothing_is_lost_on_all_others_after_the_timeout(group):
    first, second, third = group.alive
    group.alive.remove(second)  # frozen
    group.live(TIMEOUT - 1, ticking=[first, third])
    assert not first.lost
    group.live(2, ticking=[first, third])
    assert first.lost == third.lost and first.lost.startswith("rank 0 has heard nothing of rank 1 for 5 s")


def test_a_rank_without_progress_is_lost_with_what_is_waited_for_and_one_that_works_or_waits_is_not(group):
    first, second, third = group.beats
    with first.waiting("version 1"), third.working():  # loading and writing take long
        group.live(4 * TIMEOUT, ticking=[first, second])
        group.live(TIMEOUT, ticking=[first])
        assert [beat.lost for beat in group.beats] == [None] * 3
        group.live(LATE + 2, ticking=[first])
    refuses("^rank 0 waits for version 1, but rank 1 made no progress for 5 s", third.tick, error=Lost)


def test_a_generator_may_leave_and_rank_0_leaves_last_but_waits_for_none_that_stays(group, monkeypatch):
    first, second, third = group.beats
    third.end(patience=0.0)
    group.alive.remove(third)
    for line in third.lines:
        line.close()
    monkeypatch.setattr(heartbeat.time, "sleep", lambda _: [group.live(1.0), second.end(0.0)])
    first.end(patience=60.0)
    group.live(1.0)
    assert group.now < 60 and first.lost is second.lost is None


def test_a_forked_child_keeps_no_connection_open(group):
    first, second, _ = group.beats
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60.0,), daemon=True)
    child.start()
    for line in first.lines:
        line.close()
    [line] = second.lines
    assert line.poll(10.0), "no end-of-file: nobody would notice that a rank has died whose child lives on"
    child.kill()
