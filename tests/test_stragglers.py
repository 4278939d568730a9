"""Claims about slow generators: named, given no further requests, let in again; nothing is lost or done twice."""

import pickle
from types import SimpleNamespace

import pytest
from test_pipeline import lonely
from test_train import elsewhere  # noqa: F401

import pipeline
from benchmarks import simulated_fleet as fleet
from pipeline import Desk, News


def desk():
    """The desk of generator rank 1, which always wants more and what it takes; the store has 9 requests."""
    box = lonely(1)
    generator = SimpleNamespace(version=0, has_capacity=lambda evaluation: len(taken) < 3, busy=True)
    generator.add = lambda request: taken.append(request.number)
    taken = []
    box.put({f"request/train/{n}": pipeline.Request(n, 0, SimpleNamespace(text=str(n)), 1) for n in range(9)})
    return Desk(generator, box, None, None), taken


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(pipeline, "read", pickle.loads)  # stand-ins for prompts may be read here


def test_a_drained_generator_claims_nothing_but_fills_its_slots_once_a_probe_when_it_has_nothing_in_work():
    one, taken = desk()
    drained = frozenset({1})
    one.claim(News(requests=9, drained=drained, probes=1))
    assert taken == []  # it has no prompt yet
    one.claim(News(requests=1))
    one.claim(News(requests=9, drained=drained, probes=1))  # it honours number 1
    assert taken == [0, 1]
    one.generator.busy = False
    for probes in (1, 1, 2):
        one.claim(News(requests=9, drained=drained, probes=probes))
        assert taken == [0, 1, -1]
        taken[2:] = [-1] if probes == 1 else []
    assert one.mailbox.store.add("claimed/train", 0) == 2 and {*one.requests} == {(False, 0), (False, 1)}
    taken.clear()
    one.claim(News(requests=9, probes=2))  # it has recovered
    assert taken == [2, 3, 4]


def test_answers_to_a_probe_are_neither_judged_nor_delivered():
    one, _ = desk()
    one.claim(News(requests=1))
    ended = [SimpleNamespace(evaluation=False, request=number) for number in (-1, 0, -1)]
    one.generator = SimpleNamespace(
        version=0,
        has_capacity=lambda evaluation: False,
        busy=True,
        decode_steps=0,
        slot_steps=0,
        slots=3,
        step=lambda: ended,
    )
    judged = []
    one.scorer = SimpleNamespace(submit=lambda answer, prompt: judged.append(answer.request), finished=lambda: ())
    one.turn(News(requests=1))
    assert judged == [0]


def test_speeds_are_measured_over_enough_decode_steps_however_few_each_optimizer_step_has():
    box = lonely(0, world=5)
    pipe = pipeline.Pipeline(box, off_policy="pipeline", k=0, prompts=1, generations=1, steps=100)
    drained = {}
    for call in range(1, 40):
        slow = 3.0 if call < 20 else 1.0
        for rank in range(1, 5):
            seconds = slow if rank == 4 else 1.0
            box.store.add(f"decoding/{rank}", round(6e6 * seconds))
            box.store.add(f"steps/{rank}", 6)
        latest, _, now = pipe.drain()
        drained[call] = now
        assert latest == {1: 1.0, 2: 1.0, 3: 1.0, 4: slow}
    assert drained[3] == set() and drained[4] == {4} == drained[19]  # 24 steps are enough, 18 are not
    assert drained[39] == set()  # it has recovered
    assert pipe._news.probes == 2  # calls 8 and 16


def test_a_drained_generator_honours_the_number_that_it_has_claimed():
    one, taken = desk()
    one.claim(News(requests=1))  # takes request 0, and number 1, whose request does not exist yet
    assert taken == [0] and one.claims["train"] == 1
    one.claim(News(requests=9, drained=frozenset({1})))
    assert taken == [0, 1] and one.claims["train"] is None  # else request 1 would belong to nobody, for ever


@pytest.mark.parametrize("times", [3.0, 10.0])
def test_one_slow_generator_of_eight_doubles_the_time_or_worse_and_costs_nothing_once_it_is_drained(times):
    small = dict(k=8, prompts=24, generations=4, trainers=1, generators=8, slots=64, train=1.0, mean=150.0, cut=360)
    quick, slow, drained = (
        fleet.measure(fleet.Setting(**small, **more))["seconds"]
        for more in ({}, {"slow": times}, {"slow": times, "drain": True})
    )
    assert slow > 2.0 * quick
    assert drained < 1.01 * quick  # probes included: no batch waits for them
