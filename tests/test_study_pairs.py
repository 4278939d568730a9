"""study/pairs.py: differences between runs of one seed."""

import doctest
import math

import pytest
from scipy.stats import ttest_rel

from study import pairs, regimes, rule
from tests.test_study_runs import law

ONE, OTHER = (0.61, 0.66, 0.70), (0.60, 0.63, 0.69)  # seeds 0.03 to 0.09 apart, settings 0.01 to 0.03
LONE = {("one", 0): 0.5, ("other", 1): 0.6}


def runs(**asymptotes):
    """{(name, seed): rule.Measured} of runs on Eq. 1 with these asymptotes, seed after seed."""
    return {(name, seed): rule.measure(law(A)) for name, own in asymptotes.items() for seed, A in enumerate(own)}


def test_the_examples_hold():
    assert doctest.testmod(pairs).failed == 0 < doctest.testmod(pairs).attempted


def test_of_two_configurations_it_is_the_paired_t_interval():
    two = runs(one=ONE, other=OTHER)
    D, low, high = pairs.paired(two, "one", "other", "A")
    theirs = ttest_rel(ONE, OTHER).confidence_interval(0.9)
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=1e-3)  # the fits find A to 1e-4
    assert (D, pairs.spread(two, "A")[1]) == (pytest.approx(0.05 / 3, abs=1e-3), 2)


def test_what_a_seed_adds_to_every_run_changes_nothing_and_the_rule_of_means_takes_it_for_noise():
    apart = runs(one=ONE, other=OTHER)
    alike = runs(one=[A - shift for A, shift in zip(ONE, (0, 0.04, 0.09))], other=(0.60, 0.59, 0.60))
    assert pairs.paired(apart, "one", "other", "A") == pytest.approx(pairs.paired(alike, "one", "other", "A"), abs=1e-3)
    settings = [[run for (name, _), run in apart.items() if name == one] for one in ("one", "other")]
    s = rule.spread({"one": settings[0], "other": settings[1]}, "A")
    assert rule.reach(s, 3) > 3 * (pairs.paired(apart, "one", "other", "A")[2] - 0.05 / 3)


def test_all_configurations_say_what_a_seed_does_and_how_much_is_left():
    # rests of each seed: one and other +-0.001, third and fourth none; 4 x 3 runs, 4 + 3 - 1 effects: 6 degrees
    four = runs(
        one=(0.601, 0.609, 0.62), other=(0.599, 0.611, 0.62), third=(0.6, 0.61, 0.62), fourth=(0.65, 0.66, 0.67)
    )
    D, _, high = pairs.paired(four, "fourth", "third", "A")
    s, freedom = pairs.spread(four, "A")
    assert freedom == 6 and s == pytest.approx((4e-6 / 6) ** 0.5, rel=0.1)
    assert D == pytest.approx(0.05, abs=1e-3)
    assert high - D == pytest.approx(1.943 * s * (2 / 3) ** 0.5, rel=1e-3)  # t of 6 degrees of freedom


def test_sides_with_other_seeds_are_compared_through_what_others_say_of_these_seeds_or_not_at_all():
    fit = pairs.least_squares(LONE)
    assert all(map(math.isnan, pairs.difference(fit, "one", "other")))
    chain = LONE | {("third", 0): 0.5, ("third", 1): 0.7}  # seed 1 adds 0.2: 0.6 - 0.2 - 0.5
    fit = pairs.least_squares(chain)
    D, factor = pairs.difference(fit, "other", "one")
    assert D == pytest.approx(-0.1) and factor == pytest.approx(2.0)  # four runs, each with weight 1
    assert math.isnan(pairs.paired(runs(one=[0.6]), "one", "other", "A")[0])


def test_a_configuration_with_a_run_that_collapses_does_not_say_how_much_is_left():
    three = runs(one=ONE, other=OTHER, third=(0.4, 0.8, 0.5))
    assert pairs.spread(three, "A")[1] == 4
    three["third", 0] = three["third", 0]._replace(collapsed=9)
    assert pairs.spread(three, "A") == pytest.approx(pairs.spread(runs(one=ONE, other=OTHER), "A"))
    assert pairs.spread({}, "A")[1] == 0


def test_the_column_has_the_interval_of_settings_of_one_off_policy_setup_and_no_verdict():
    findings = [one for one in regimes.findings("exact-8") if one.figure == "5a"]
    names = {"cispo": 0.63, "pipeline-8": 0.6, "gspo": 0.6}
    there = {(name, seed): law(A + 0.03 * seed) for name, A in names.items() for seed in range(3)}
    table = rule.table(there, findings, pairs.column(there, findings))
    assert table[0].endswith("| runs that collapse | in pairs of seeds |") and len(table[1].split("|")) == 9
    assert "| undecided" in table[2] and "| A +0.030 (+0.0" in table[2] and "agrees" not in table[2]
    mixed = there | {("gspo", seed): taking_turns(0.6) for seed in range(3)}
    assert rule.table(mixed, findings, pairs.column(mixed, findings))[3].endswith("| two setups |")
    assert rule.table(there, findings)[0].endswith("| runs that collapse |")


def taking_turns(A):
    """Rows as `law`, of a run with PPO-off-policy."""
    head, *rows = law(A)
    return [{**head, "flags": {**head["flags"], "off_policy": "ppo"}}, *rows]


def test_runs_that_do_not_reach_the_level_or_all_collapse_leave_no_interval():
    rising = runs(one=(0.66, 0.67, 0.26), other=(0.66, 0.66, 0.67))  # half of the lower gain is 0.36
    assert all(map(math.isnan, pairs.paired(rising, "one", "other", "E")))
    collapsing = {pair: one._replace(collapsed=9) if pair[1] == 0 else one for pair, one in rising.items()}
    assert all(map(math.isnan, pairs.paired(collapsing, "one", "other", "A")))
    assert pairs.spread(collapsing, "A")[1] == 0
