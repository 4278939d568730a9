"""Virtual time: claims about the clock, about pauses that end when they should, and about runs that repeat."""

import math

import pytest
import test_pipeline
import torch

from plumbing.virtual import Store, Wire, World

# --- Clock, store, weights -------------------------------------------------------------------------------------------


def played(*actors):
    """What actors (world, store, note) noted, as (virtual seconds, text), when they ran together."""
    world, noted = World(), []
    store = Store(world)

    def bound(actor):
        return lambda: actor(world, store, lambda text: noted.append((world.now, text)))

    world.run({f"actor {number}": bound(actor) for number, actor in enumerate(actors)})
    return noted


def sleeper(*seconds):
    def act(world, store, note):
        for wait in seconds:
            world.sleep(wait)
            note(f"slept {wait}")

    return act


def test_time_passes_only_while_all_sleep_and_the_first_due_goes_on():
    noted = played(sleeper(3.0, 3.0), sleeper(4.0), sleeper(0.0))
    assert noted == [(0.0, "slept 0.0"), (3.0, "slept 3.0"), (4.0, "slept 4.0"), (6.0, "slept 3.0")]


def writer(wait, key):
    def act(world, store, note):
        world.sleep(wait)
        store.set(key, b"")

    return act


def reader(key, work, other=()):
    def act(world, store, note):
        while not store.check([*other, key]):
            world.sleep(work)  # as a generator decodes between a look at the news and its pause
            world.pause()
            note("woken")

    return act


def test_a_pause_ends_when_a_key_is_written_that_was_missing_when_it_was_read():
    assert played(reader("a", 0.0), writer(2.0, "a")) == [(2.0, "woken")]
    assert played(reader("a", 0.0), writer(2.0, "b"), writer(3.0, "a")) == [(3.0, "woken")]


def test_what_is_written_between_a_look_and_the_pause_ends_the_pause_at_once():
    assert played(reader("a", 5.0), writer(2.0, "a")) == [(5.0, "woken")]  # not never: it was written at 2


def test_what_an_actor_has_read_ends_its_pause_though_it_has_waited_for_another_key_meanwhile():
    def act(world, store, note):
        assert not store.check(["a"])
        world.wait(["b"], 3.0)
        world.pause()
        note("woken")

    assert played(act, writer(2.0, "a")) == [(3.0, "woken")]
    assert played(act, writer(4.0, "a")) == [(4.0, "woken")]


def test_of_several_missing_keys_a_reader_waits_for_one_after_the_other():
    assert played(reader("b", 0.0, ["a"]), writer(1.0, "b"), writer(2.0, "a")) == [(2.0, "woken")]


def test_a_counter_read_with_add_0_wakes_its_readers_but_beats_wake_nobody():
    def act(world, store, note):
        for key in ("beat/1", "news/count"):
            store.add(key, 0)
        world.pause()
        note("woken")

    def count(key):
        return lambda world, store, note: store.add(key, 1)

    def late(world, store, note):
        world.sleep(7.0)
        store.add("news/count", 1)

    assert played(act, count("beat/1"), late) == [(7.0, "woken")]


def test_when_all_wait_the_error_says_who_waits_for_what():
    with pytest.raises(RuntimeError, match=r"all actors wait, at 2.000 .*: actor 0 for a; actor 1 for b, c$"):
        played(reader("a", 2.0), lambda world, store, note: world.wait(["b", "c"]))


def test_the_error_of_an_actor_is_raised_where_the_leader_waits_and_the_others_clear_up():
    cleared = []

    def leader(world, store, note):
        with pytest.raises(ZeroDivisionError):
            world.pause()
        cleared.append("leader")

    def failing(world, store, note):
        world.sleep(1.0)
        raise ZeroDivisionError

    def third(world, store, note):
        try:
            world.sleep(math.inf)
        finally:
            cleared.append("third")

    played(leader, failing, third)
    assert cleared == ["leader", "third"]


def test_an_error_after_the_leader_has_ended_is_raised_by_run():
    def failing(world, store, note):
        world.sleep(1.0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        played(sleeper(0.0), failing)


def test_weights_arrive_at_all_receivers_at_once_and_are_copies():
    tensors = [torch.zeros(2) for _ in range(2)]
    sent = torch.ones(2)
    world = World()
    wire = Wire(world, 0.5)
    times = []

    def lead():
        world.sleep(1.0)
        wire.send({"w": sent})
        sent.zero_()  # as the next optimizer step may do before the receivers go on

    def receive(tensor):
        wire.receive({"w": tensor})
        times.append(world.now)

    world.run({"lead": lead} | {f"generator {n}": lambda tensor=t: receive(tensor) for n, t in enumerate(tensors)})
    assert times == [1.5, 1.5]
    assert all(torch.equal(tensor, torch.ones(2)) for tensor in tensors)


@pytest.mark.parametrize("k", [0, 3])
def test_waking_and_polling_take_the_same_time_within_1_percent(k):
    # Equal generators: of unequal ones, who sees a ticket first claims it, so that a poll can move whole completions.
    setting = test_pipeline.Setting(k=k, steps=4, training=360, generators=((120, 4), (120, 4)), prompts=3)
    polled, woken = (test_pipeline.simulate(setting, waking=waking)[0] for waking in (False, True))
    assert woken.elapsed == pytest.approx(polled.elapsed, rel=0.01)
    assert woken.decoding == pytest.approx(polled.decoding, rel=0.01)
    assert woken.batches.keys() == polled.batches.keys()
