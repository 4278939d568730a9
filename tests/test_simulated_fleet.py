"""The simulated fleet: times, shares and staleness that can be worked out by hand."""

import json

import pytest

from lab import simulated_fleet as fleet

# One generator; all 16 completions of a batch have 1,000 tokens: 20 s of decoding. An optimizer step takes 5 s.
SMALL = dict(prompts=1, trainers=1, generators=1, slots=16, train=5.0, mean=1000.0, sigma=1e-9)


@pytest.mark.parametrize(
    "row, seconds, limit",
    [
        (dict(k=0), 20 + 5, "longest answer"),
        (dict(k=1), 20, "slots"),  # 16,000 tokens of a batch, 800 tokens a second
        (dict(k=8, slots=160, broadcast=1.0), 5 + 1, "trainers"),
        (dict(off_policy="ppo", k=2, slots=32), (20 + 5 + 5) / 2, None),  # one phase: decode, then two steps
        (dict(k=0, slow=3.0), 60 + 5, "slots"),
    ],
)
def test_a_step_takes_as_long_as_its_bound_says(row, seconds, limit):
    measured = fleet.measure(fleet.Setting(**SMALL | row))
    assert measured["seconds"] == pytest.approx(seconds, rel=0.005)
    assert measured["limit"] == limit


def test_shares_and_ages_are_those_of_the_schedule():
    measured = fleet.measure(fleet.Setting(**SMALL | dict(k=0, slots=32)))
    # of 25 s decoding takes 20 and training 5; half of the 32 slots are used; k = 0 is on-policy
    assert measured["idle_generators"] == pytest.approx(5 / 25, abs=0.01)
    assert measured["idle_trainers"] == pytest.approx(20 / 25, abs=0.01)
    assert measured["slots_used"] == pytest.approx(0.5 * 20 / 25, abs=0.01)
    assert measured["ages"] == {0: 1.0}
    # A phase of two steps is decoded before its first: tokens are 0 steps old at the first and 1 at the second.
    measured = fleet.measure(fleet.Setting(**SMALL | dict(off_policy="ppo", k=2, slots=32)))
    assert measured["ages"] == {0: 0.5, 1: 0.5}


def test_lengths_are_those_of_the_paper_and_of_the_request_alone():
    drawn = [fleet.tokens(fleet.Setting(), request, index) for request in range(500) for index in range(16)]
    # A lognormal of mean 6,000 and sigma 0.7 exceeds 14,336 with probability 1 - Phi((ln(14336 / 6000) + 0.245) / 0.7).
    assert sum(n == 14336 for n in drawn) / len(drawn) == pytest.approx(0.0553, abs=0.01)
    assert sum(drawn) / len(drawn) == pytest.approx(5665, rel=0.03)
    assert fleet.tokens(fleet.Setting(slots=8, generators=3), 7, 3) == drawn[7 * 16 + 3]


def test_the_page_shows_the_kept_measurements():
    measured = json.loads((fleet.ROOT / "results" / "simulated_fleet.json").read_text())
    page = (fleet.ROOT / "results" / "fleet.md").read_text().split("\n")
    shown = [line for line in page if line.startswith("| ") and "%" in line]
    assert shown == [line for line in fleet.table(measured) if line in shown] and len(shown) >= 9
