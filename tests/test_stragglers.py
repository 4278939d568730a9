"""Claims about slow generators: named, given no further tickets, let in again; nothing is lost or done twice."""

import pickle
from types import SimpleNamespace

import pytest
from test_pipeline import lonely
from test_train import elsewhere  # noqa: F401

import pipeline
from benchmarks import simulated_fleet as fleet
from pipeline import Desk, News


def desk():
    """The desk of generator rank 1, which always wants more and what it takes; the store has 9 tickets."""
    box = lonely(1)
    generator = SimpleNamespace(version=0, wants=lambda evaluation: len(taken) < 3)
    generator.add = lambda ticket: taken.append(ticket.number)
    taken = []
    box.put({f"ticket/train/{n}": pipeline.Ticket(n, 0, SimpleNamespace(text=str(n)), 1) for n in range(9)})
    return Desk(generator, box, None, None), taken


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(pipeline, "read", pickle.loads)  # stand-ins for prompts may be read here


def test_a_drained_generator_takes_no_further_number_but_one_a_probe():
    one, taken = desk()
    drained = frozenset({1})
    one.claim(News(tickets=9, drained=drained))
    assert taken == [] and one.mailbox.store.add("claimed/train", 0) == 0
    one.claim(News(tickets=9, drained=drained, probes=1))
    one.claim(News(tickets=9, drained=drained, probes=1))
    assert taken == [0]
    one.claim(News(tickets=9, probes=1))  # it has recovered
    assert taken == [0, 1, 2]


def test_a_drained_generator_honours_the_number_that_it_has_claimed():
    one, taken = desk()
    one.claim(News(tickets=1))  # takes ticket 0, and number 1, whose ticket does not exist yet
    assert taken == [0] and one.claims["train"] == 1
    one.claim(News(tickets=9, drained=frozenset({1})))
    assert taken == [0, 1] and one.claims["train"] is None  # else ticket 1 would belong to nobody, for ever


def test_one_of_eight_generators_three_times_slower_costs_a_fifth_of_the_time_without_and_little_with_draining():
    small = dict(k=8, prompts=24, generations=4, trainers=1, generators=8, slots=16, train=1.0, mean=150.0, cut=360)
    quick, slow, drained = (
        fleet.measure(fleet.Setting(**small, **more))["seconds"]
        for more in ({}, {"slow": 3.0}, {"slow": 3.0, "drain": True})
    )
    assert slow > 1.2 * quick
    assert drained < 1.05 * quick  # the slots that are gone were not what limits it
