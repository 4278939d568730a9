"""Claims about forecast.py: the posterior, every note, forecasts, when to stop, which run is better."""

from itertools import product

import numpy as np
import pytest
from conftest import clean, run_of
from scipy.special import ndtri
from scipy.stats import qmc

import fit
import forecast


def law_of(C, R, *, A=None, **given):
    """The Forecast of pass rates R at C."""
    return forecast.forecast_run(fit.Run(C, R, **given), A=A)


def narrow(points, **options):
    """A Forecast of TRUTH with little noise."""
    return law_of(*clean(noise=0.005, points=points, **options))


# ---- The posterior ----


def quantiles_by_sampling(law):
    """5, 50 and 95 % quantiles of A and of B by brute force: samples of B, C_mid, R_0 and the gain, each weighed by its
    priors and, summed over a grid of w and s, by the density of a normal distribution of the points."""
    data = forecast.observed(law)
    shares = qmc.Sobol(4, seed=0).random_base2(15).T
    B = np.exp(ndtri(shares[0]) * forecast.LOG_B[1] + forecast.LOG_B[0])
    C_mid = law.span[1] * np.exp(ndtri(shares[1]) * forecast.LOG_C_MID[1] + forecast.LOG_C_MID[0])
    R_0, gain = law.fitted.R_0 + 0.08 * (shares[2] - 0.5), shares[3]
    off = data.y[:, None] - fit.sigmoid(data.C[:, None], R_0 + gain, B, C_mid, R_0)
    inside = (R_0 >= 0) & (R_0 + gain <= 1)
    prior = forecast.HIGH * np.log(R_0 + gain, where=inside, out=np.full(len(B), -np.inf))
    prior -= np.log(1 - np.abs(R_0) ** (forecast.HIGH + 1)) + 2 * ((R_0 - 0.5) ** 2 + (gain - 0.5) ** 2)
    weight = np.full(len(B), -np.inf)
    for w, s in product(forecast.WALKS, np.geomspace(max(0.002, forecast.least_noise(law)), 0.2, 15)):
        K = w**2 * np.minimum.outer(data.walked, data.walked) + s**2 * np.diag(data.variance)
        root = np.linalg.cholesky(K + 1e-12 * np.eye(len(K)))
        more = prior - (np.linalg.solve(root, off) ** 2).sum(0) / 2 - np.log(np.diag(root)).sum() - np.log(s)
        more -= (forecast.NOISE / s) ** 2 / 2 + abs(np.log(w / forecast.WALK / gain)) / forecast.SPREAD
        weight = np.logaddexp(weight, more)
    weight = np.exp(weight - weight.max())
    for values in (R_0 + gain, B):
        order = values.argsort()
        share = weight[order].cumsum()
        yield values[order][np.searchsorted(share / share[-1], (0.05, 0.5, 0.95))]


FOOT = np.array([0, 1, 2, 3, 4, 5, 6, 8, 10.0]), [0.02, 0.021, 0.02, 0.022, 0.024, 0.03, 0.04, 0.09, 0.2]


@pytest.mark.parametrize(
    "points",
    [clean(noise=0.015, points=10), clean(noise=0.01, points=10, top=25.0), FOOT],
    ids=["bend", "rise", "foot"],
)
def test_bands_are_those_of_the_posterior_by_brute_force(points):
    law = law_of(*points, completions=200)
    A, B = quantiles_by_sampling(law)
    rising = law.draws.A[np.isfinite(law.draws.C_mid)], law.draws.B[np.isfinite(law.draws.C_mid)]
    assert np.quantile(rising[0], (0.05, 0.5, 0.95)) == pytest.approx(A, abs=0.02)
    assert np.quantile(rising[1], (0.05, 0.5, 0.95)) == pytest.approx(B, rel=0.1)
    assert law.bands["A"] == tuple(np.quantile(rising[0], (0.05, 0.95), method="inverted_cdf"))


def test_A_is_a_number_if_its_band_is_narrow_and_clear_of_the_bound_and_one_that_is_given_is_exact():
    law = narrow(400)
    assert law.bands["A"][0] < 0.8 < law.bands["A"][1] and not forecast.known(law)
    assert law_of(*clean(noise=0.01), A=0.8).bands["A"] == pytest.approx((0.8, 0.8), abs=1e-5)


def test_the_band_of_evaluations_adds_their_noise():
    law = narrow(100)
    curve, four = (np.ptp(law.band(300.0, mean_of)) / 2 for mean_of in (np.inf, 4))
    # In quadrature: 1.645 standard deviations of a mean of four evaluations.
    assert four == pytest.approx(np.hypot(curve, 1.645 * np.median(law.draws.noise) / 2), rel=0.1)


def test_no_band_is_narrower_than_the_binomial_noise_of_the_evaluations():
    run = fit.Run(np.arange(7.0), np.zeros(7))
    unknown, counted = (forecast.forecast_run(run._replace(completions=n)) for n in (None, 12))
    # All of 6 * 12 fitted ones failed; with one right and one wrong added p = 1/74, and sqrt(p (1 - p) / 12) = 0.033.
    assert forecast.least_noise(counted) == pytest.approx(0.0333, abs=0.001) and forecast.least_noise(unknown) == 0
    assert counted.band(12.0, 1)[1] > 0.04


# ---- What the points say ----


def test_a_run_that_falls_has_no_A_but_a_peak_to_go_on_from_and_a_dip_within_its_noise_is_no_fall():
    C, R = clean(noise=0.005)
    R[-8:] -= np.linspace(0.01, 0.15, 8)
    law = law_of(C, R)
    peak = forecast.peak(law)
    # The points are 5 apart, and the last before the fall is at 110; the mean of three points rises until there.
    assert 95 <= peak.C <= 120 and peak.R - peak.now == pytest.approx(0.11, abs=0.03)
    words = forecast.known(law)["A"]
    assert "The points fall after a peak" in words and f"Go on from a checkpoint near C = {peak.C:.4g}" in words
    C, R = clean(noise=0.004, points=60, top=600.0)
    R[-7:] -= 0.013  # of a gain of 0.6
    assert forecast.peak(law_of(C, R)) is None


def test_the_peak_of_a_collapse_is_the_evaluation_before_it():
    C = np.arange(12.0)
    R = np.array([0.05, 0.06, 0.08, 0.1, 0.11, 0.14, 0.156, 0.408, 0, 0, 0, 0])
    assert forecast.peak(law_of(C, R)) == pytest.approx((7, 0.408, 0))


@pytest.mark.parametrize(
    "R, name, words",
    [
        ([0.210, 0.276, 0.389, 0.462, 0.536], "A", "A is not determined"),  # the first evaluations of the main job
        ([0.21, 0.22, 0.19, 0.23, 0.20, 0.22, 0.21, 0.23], "A", "No gain yet"),
        ([0.0] * 8, "A", "No gain yet: nothing was ever right, or so little that it needs --scale"),
        ([0.999] * 8, "A", "No gain: nothing is left to learn"),
        ([0.2, 0.21] * 5 + [0.7, 0.71] * 5, "B", "B and C_mid are not determined: the rise is a jump"),
    ],
)
def test_what_the_points_do_not_determine_is_said_in_words(R, name, words):
    law = law_of(np.arange(float(len(R))), R)
    assert forecast.known(law)[name].startswith(words)
    if words.startswith("No gain"):  # which says nothing of a take-off
        assert forecast.stop_rule(law) == (None, "no gain yet")


# ---- Forecasts and comparisons ----


def test_ahead_a_curve_adds_the_rise_of_eq1_and_the_steps_of_a_walk_to_its_level():
    law = narrow(30)
    half_way, now, ahead = law.curves(np.array([np.sqrt(5 * 150), 150.0, 600.0]))
    draws = law.draws
    assert now == pytest.approx(np.clip(draws.level, 0, 1), abs=1e-12)
    rise = fit.sigmoid(600.0, *draws[:4]) - fit.sigmoid(150.0, *draws[:4])
    walked = draws.walk * np.sqrt(np.log(4)) * draws.steps  # log 4 e-folds of compute
    assert ahead == pytest.approx(np.clip(draws.level + rise + walked, 0, 1), abs=1e-12)
    # In log C the walk's mean is straight from 0 at the first fitted point, C = 5, to the last.
    come = draws.level - fit.sigmoid(150.0, *draws[:4])
    assert half_way == pytest.approx(np.clip(fit.sigmoid(np.sqrt(750), *draws[:4]) + come / 2, 0, 1), abs=1e-12)


def test_reach_says_when_a_curve_gets_to_a_reward_and_how_likely_that_is():
    law = narrow(30, top=60.0)
    near, far, never = (forecast.reach(law, R) for R in (0.7, 0.79, 0.99))
    # Eq. 1 with A = 0.8, B = 1.7, C_mid = 30, R_0 = 0.2 is at 0.7 where (C / 30)^1.7 = 5: C = 77.3.
    assert near["C_low"] <= 77.3 <= near["C_high"] and near["C"] == pytest.approx(77.3, rel=0.15)
    assert near["P"] > far["P"] > never["P"] and never["C"] is None and never["P"] < 0.5


def test_the_stop_rule_counts_the_curves_whose_evaluations_rise_by_less_than_the_gain(monkeypatch):
    law = narrow(30)
    # The evaluations are 5 apart: six lie in the last fifth, above 120, of the way to 150 (125 to 150).
    later = law.curves(285.0) + law.draws.noise * law.draws.error / np.sqrt(6)
    rises = later - law.run.reward[-6:].mean()
    for gain, P, verdict in (
        (np.median(rises), 0.5, "cannot tell yet; look again at C = 225"),
        (rises.max() + 0.01, 1, "stop"),
        (rises.min() - 0.01, 0, "go on"),
    ):
        monkeypatch.setattr(forecast, "GAIN", gain)
        assert forecast.stop_rule(law) == (pytest.approx(P, abs=0.01), verdict)


def test_many_points_are_averaged_and_say_the_same():
    law = law_of(*clean(noise=0.02, points=2000))
    assert law.points == 2000 and len(law.fitted.u) <= 200
    assert law.A == pytest.approx(0.8, abs=0.005) and law.B == pytest.approx(1.7, abs=0.05)
    # The noise is that of one evaluation, not of the averaged points, of which each is the mean of 40.
    assert 0.012 < np.median(law.draws.noise) < 0.024


def test_the_end_is_forecast_from_a_part_and_met_by_a_run_that_follows_eq1_alone():
    run = run_of(noise=0.005, points=40)._replace(start="10%")
    row = forecast.hindcast(forecast.forecast_run(run._replace(stop="50%")))
    # 40 points, 3.75 apart; the first half from 10 % of that half on is C = 7.5 to 75: points 2 to 20.
    assert row["points"] == 19 and row["C"] == 150 and row["inside"]
    run.reward[-1] -= 0.3
    assert not forecast.hindcast(forecast.forecast_run(run._replace(stop="50%")))["inside"]


def named(name, **options):
    """A Forecast of a run made by `clean`."""
    return forecast.forecast_run(run_of(name, **{"points": 100, "noise": 0.003} | options))


def test_compare_by_B_at_a_common_A_and_by_A_otherwise():
    slow, fast = named("slow"), named("fast", B=2.4)
    laws, sentence = forecast.compare([slow, named("low", A=0.6), fast])
    # The A of slow and fast differ by less than 0.02: they get their mean, and B decides. 0.6 is farther off.
    assert [law.run.name for law in laws] == ["fast", "slow", "low"]
    common = np.mean([np.median(law.draws.A) for law in (slow, fast)])
    assert laws[0].A == laws[1].A == pytest.approx(common) and laws[2].A == pytest.approx(0.6, abs=2e-3)
    assert sentence.startswith(f"fast scales better than slow by B at the common A = {common:.3f}")
    _, sentence = forecast.compare([fast, named("higher", A=0.9)])
    assert sentence.startswith("higher scales better than fast by A")
    _, sentence = forecast.compare([slow, named("again", seed=1)])
    assert "but the data cannot tell" in sentence


def test_compare_goes_by_the_forecasts_where_an_A_is_not_determined():
    flat = np.linspace(0, 25, 31), np.full(31, 0.1)
    early, flat = named("early", noise=0.01, top=25.0, points=30), forecast.forecast_run(fit.Run(*flat, name="flat"))
    laws, sentence = forecast.compare([flat, early])
    assert laws[0] is early and "by the forecast at C = 50, and the data can tell" in sentence
