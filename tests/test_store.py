"""Claims about the store: what it takes and refuses, what it loads, and how a rank waits."""

import os
import pickle
from enum import Enum
from functools import partial
from unittest.mock import MagicMock, Mock

import pytest
import torch.distributed as dist
from conftest import refuses, sampled

import pipeline
from data import Prompt
from plumbing import store
from plumbing.store import Interrupted, Store
from plumbing.virtual import Memory
from verify.scorer import Score


def quiet():
    """A heartbeat of a rank whose run goes well."""
    return MagicMock(stopped=None)


COMPLETION = sampled([1, 2], [5, 6, 7], [-1.0, 0.0, -2.0], [True, False, True])


@pytest.fixture(scope="module")
def host():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(params=["memory", "tcp"])
def stored(request):
    """A Store of rank 1, in memory and on a server."""
    backend = Memory() if request.param == "memory" else request.getfixturevalue("host").clone()
    return Store(backend, 1, quiet())


# --- Values ----------------------------------------------------------------------------------------------------------


def test_everything_that_is_sent_is_read_and_a_counter_hands_out_each_number_once(stored):
    request = pipeline.Request(1, 0, Prompt(3, (1,), "1+3=", "4", "arithmetic"), 2)
    sent = {
        "request": request,
        "metadata": [pipeline.metadata(Score(COMPLETION, None, "", True, reward=1.0), request)],
        "rollout": COMPLETION,
        "state": pipeline.ControlState(stop="finished"),
    }
    stored.put(sent)
    assert stored.has(sent) and stored.read("state") == sent["state"]
    assert stored.take(list(sent)) == list(sent.values())
    assert not any(stored.has([key]) for key in sent)
    assert [stored.count("claimed", more) for more in (0, 1, 1, 5)] == [0, 1, 2, 7]


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("hostile",)


def test_a_hostile_value_in_the_store_calls_nothing(stored, tmp_path):
    stored.backend.set("state", pickle.dumps([Hostile()]))
    for read, key in ((stored.read, "state"), (stored.take, ["state"])):
        refuses("posix.mkdir", read, key, error=pickle.UnpicklingError)
    assert not any(tmp_path.iterdir())


class Colour(Enum):
    RED = 1


class Gets:
    """Pickles as getattr(*of)."""

    def __init__(self, *of):
        self.of = of

    def __reduce__(self):
        return getattr, self.of


def test_of_getattr_in_a_pickle_only_members_of_known_enumerations_are_loaded():
    known = {(__name__, "Colour")}
    assert store.unpickled(pickle.dumps(Gets(Colour, "RED")), known) is Colour.RED
    for of in ((Colour, "mro"), ("text", "join")):
        refuses("got getattr of", store.unpickled, pickle.dumps(Gets(*of)), known, error=pickle.UnpicklingError)
    refuses("Colour", store.unpickled, pickle.dumps(Gets(Colour, "RED")), set(), error=pickle.UnpicklingError)


def test_a_completion_over_8_mib_is_refused_before_it_breaks_the_connection(host):
    stored = Store(host.clone(), 0, quiet())
    refuses("<= 8388608 bytes for rollout/0, got .* too many tokens", stored.put, {"rollout/0": "x" * (8 << 20)})
    stored.put({"fits": "x" * ((8 << 20) - 1000)})
    stored.take(["fits"])


# --- Waiting ---------------------------------------------------------------------------------------------------------


def test_a_wait_tells_the_heartbeat_for_what_counts_as_progress_and_polls_less_and_less_often():
    calls = Mock(waiting=MagicMock())
    polls = iter([False] * 40 + [True])
    Store(Memory(), 0, calls, pause=calls.pause).wait("the batch", polls.__next__)
    calls.waiting.assert_called_once_with("the batch")
    pauses = [call.args[0] for call in calls.pause.call_args_list]
    assert calls.tick.call_count == len(pauses) == 40
    assert pauses == sorted(pauses) and pauses[-1] == store.LONGEST_POLL
    assert pauses[:2] == [store.POLL, store.SLOWER * store.POLL]


def test_a_wait_ends_with_the_reason_why_the_run_ends():
    stored = Store(Memory(), 0, quiet(), pause=float)
    reasons = iter([None, None, "interrupted"])
    refuses("^interrupted$", stored.wait, "", bool, reasons.__next__, error=Interrupted)
    # What rank 0 put before it told of the end is there: both happen between this rank's two looks.
    there = partial(stored.has, ["batch"])
    assert stored.wait("the batch", there, lambda: stored.put({"batch": []}) or "interrupted") is None
