"""Claims about forecast.py: the bands, every note, forecasts, when to stop, which run is better."""

import numpy as np
import pytest

import fit
import forecast
from tests.test_fit import clean, run_of

LINE = np.linspace(0, 25, 31), np.full(31, 0.1)


def law_of(C, R, *, A=None, **given):
    """The Forecast of pass rates R at C."""
    return forecast.forecast_run(fit.Run(C, R, **given), A=A)


def synthetic(seed, B, points):
    """A run of Eq. 1 with white noise, A in 0.4-0.9, C_mid from 6 to 100 % of the compute: (Run, its A)."""
    rng = np.random.default_rng([seed, points, int(10 * B), 0])
    A = rng.uniform(0.4, 0.9)
    C = np.linspace(0, 1000, points + 1)
    R = fit.sigmoid(C, A, B, np.exp(rng.uniform(np.log(60), np.log(1000))), A * rng.uniform(0.05, 0.35))
    return fit.Run(C, np.clip(R + 0.02 * rng.normal(size=len(C)), 0, 1), start="10%"), A


def narrow(points, **options):
    """A Forecast of TRUTH with little noise."""
    return law_of(*clean(noise=0.005, points=points, **options))


# ---- Bands ----


def test_bands_hold_nine_tenths_of_the_posterior_on_a_dense_grid():
    C, R = clean(noise=0.01, points=12)
    law = law_of(C[1:], R[1:], r0=0.2)
    # The oracle: every (A, B, C_mid, s) of a dense grid, weighed by the priors (1/s, and a residual of 0.01 as if seen;
    # normal ones of log B, log C_mid and G) and by the likelihood s^-12 exp(-S / 2 s^2), S the sum of 12 squares.
    A, B, C_mid = np.meshgrid(np.linspace(0.7, 1, 91), np.linspace(1, 2.6, 61), np.linspace(22, 48, 61), indexing="ij")
    S = 0.01**2 + sum((r - fit.sigmoid(c, A, B, C_mid, 0.2)) ** 2 for c, r in zip(C[1:], R[1:]))
    (log_B, sd_B), (log_C_mid, sd_C_mid) = forecast.LOG_B, forecast.LOG_C_MID
    weight = sum(s**-12 * np.exp(-S / 2 / s**2) for s in np.geomspace(0.002, 0.05, 60))
    weight /= B * C_mid * np.exp((A - 0.2 - 0.5) ** 2 / 2 / 0.5**2)
    weight *= np.exp(-(((np.log(B) - log_B) / sd_B) ** 2 + ((np.log(C_mid / 150) - log_C_mid) / sd_C_mid) ** 2) / 2)
    for name, values in (("A", A), ("B", B), ("C_mid", C_mid)):
        order = values.ravel().argsort()
        share = weight.ravel()[order].cumsum() / weight.sum()
        expected = values.ravel()[order][share.searchsorted([0.05, 0.95])]
        # A sixth of the width: 4,000 draws and the steps of both grids.
        assert law.bands[name] == pytest.approx(expected, abs=np.ptp(expected) / 6)


def test_an_A_that_is_a_number_is_clear_of_its_bound_and_not_below_the_forecast_at_twice_the_compute():
    laws = [forecast.forecast_run(synthetic(seed, B, 30)[0]) for B in (0.5, 1, 2, 3) for seed in range(3)]
    numbers = [law for law in laws if "A" not in forecast.known(law)]
    assert 3 <= len(numbers) <= 11
    for law in numbers:
        assert law.bands["A"][1] <= 0.995 and law.median(2 * law.span[1]) <= law.A
    # A straight line that ends at 0.7 without a bend: Eq. 1 fits it best with an A of 1.
    line = law_of(np.arange(31.0), np.linspace(0.1, 0.7, 31))
    assert line.A > 0.99 and "A is not determined" in forecast.known(line)["A"]
    assert law_of(*clean(noise=0.01), A=0.8).bands["A"] == pytest.approx((0.8, 0.8), abs=1e-5)


def test_bands_of_A_hold_the_truth_in_nine_of_ten_runs_and_are_narrow_where_the_rise_bends():
    runs = [synthetic(seed, 2, 30) for seed in range(20)]
    bands = [forecast.forecast_run(run).bands["A"] for run, _ in runs]
    held = sum(low <= A <= high for (low, high), (_, A) in zip(bands, runs))
    # Of 20 runs a band with coverage 0.9 holds 15 or more with probability 0.99.
    assert held >= 15 and np.median(np.ptp(bands, axis=1)) <= 0.15


def test_the_band_of_evaluations_adds_their_noise():
    law = narrow(100)
    curve, one, four = (np.ptp(law.band(300.0, mean_of)) / 2 for mean_of in (np.inf, 1, 4))
    noise = np.median(law.draws.noise)
    # In quadrature: 1.645 standard deviations of one evaluation, or of a mean of four.
    assert one == pytest.approx(np.hypot(curve, 1.645 * noise), rel=0.1)
    assert four == pytest.approx(np.hypot(curve, 1.645 * noise / 2), rel=0.1)


# ---- What the points say ----


def fallen(name="", loss=0.15):
    """A Run of TRUTH whose last eight points fall."""
    C, R = clean(noise=0.005)
    R[-8:] -= np.linspace(0.01, loss, 8)
    return fit.Run(C, R, name=name)


def test_a_run_that_falls_has_no_A_but_a_peak_to_go_on_from_and_a_dip_within_its_noise_is_no_fall():
    law = forecast.forecast_run(fallen())
    peak = forecast.peak(law)
    # The points are 5 apart, and the last before the fall is at 110; the mean of three points rises until there.
    assert 95 <= peak.C <= 120 and peak.R - peak.now == pytest.approx(0.11, abs=0.03)
    said = forecast.known(law)["A"]
    assert "The points fall after a peak" in said and f"Go on from a checkpoint near C = {peak.C:.4g}" in said
    assert np.ptp(law.band(300.0)) > 1.5 * np.ptp(narrow(30).band(300.0))
    assert abs(law.median(160.0) - law.run.reward[-1]) < abs(law.predict(160.0) - law.run.reward[-1])
    C, R = clean(noise=0.004, points=60, top=600.0)
    R[-7:] -= 0.013  # of a gain of 0.6
    assert forecast.peak(law_of(C, R)) is None


@pytest.mark.parametrize(
    "R, name, known",
    [
        ([0.210, 0.276, 0.389, 0.462, 0.536], "A", "A is not determined"),  # the first evaluations of the main job
        ([0.21, 0.22, 0.19, 0.23, 0.20, 0.22, 0.21, 0.23], "A", "No gain yet"),
        ([0.0] * 8, "A", "No gain: nothing was ever right"),
        ([0.999] * 8, "A", "No gain: nothing is left to learn"),
        ([0.2, 0.21] * 5 + [0.7, 0.71] * 5, "B", "B and C_mid are not determined: the rise is a jump"),
    ],
)
def test_what_the_points_do_not_determine_is_said_in_words(R, name, known):
    law = law_of(np.arange(float(len(R))), R)
    assert forecast.known(law)[name].startswith(known)


# ---- Forecasts and comparisons ----


def test_ahead_a_curve_adds_the_rise_of_eq1_and_the_steps_of_a_walk_to_its_level():
    law = narrow(30)
    now, ahead = law.curves(np.array([150.0, 600.0]))
    draws = law.draws
    assert now == pytest.approx(np.clip(draws.level, 0, 1), abs=1e-12)
    rise = fit.sigmoid(600.0, *draws[:4]) - fit.sigmoid(150.0, *draws[:4])
    walked = forecast.LATER * draws.walk * np.sqrt(np.log(4)) * draws.steps  # log 4 e-folds of compute
    assert ahead == pytest.approx(np.clip(draws.level + rise + walked, 0, 1), abs=1e-12)


def test_the_same_run_has_the_same_forecast_twice_bit_for_bit():
    one, other = narrow(30), narrow(30)
    assert (one.curves(300.0) == other.curves(300.0)).all() and one.bands == other.bands


def test_reach_says_when_a_curve_gets_to_a_reward_and_how_likely_that_is():
    law = narrow(30, top=60.0)
    near, far, never = (forecast.reach(law, R) for R in (0.7, 0.79, 0.99))
    # Eq. 1 with A = 0.8, B = 1.7, C_mid = 30, R_0 = 0.2 is at 0.7 where (C / 30)^1.7 = 5: C = 77.3.
    assert near["C_low"] <= 77.3 <= near["C_high"] and near["C"] == pytest.approx(77.3, rel=0.15)
    assert near["P"] > far["P"] > never["P"] and never["C"] is None and never["P"] < 0.5


def test_no_band_is_narrower_than_the_binomial_noise_of_the_evaluations():
    run = fit.Run(np.arange(7.0), np.zeros(7))
    unknown, counted = (forecast.forecast_run(run._replace(completions=n)) for n in (None, 12))
    # All of 6 * 12 fitted ones failed; with one right and one wrong added p = 1/74, and sqrt(p (1 - p) / 12) = 0.033.
    assert forecast.least_noise(counted) == pytest.approx(0.0333, abs=0.001) and forecast.least_noise(unknown) == 0
    assert counted.band(12.0, 1)[1] > 0.04
    # The best A lies at 0, but nothing is known of it, counted or not.
    assert counted.bands["A"][1] > 0.9 and unknown.bands["A"][1] > 0.9


def test_the_stop_rule_counts_the_curves_whose_evaluations_rise_by_less_than_the_gain_when_compute_doubles():
    law = narrow(30)
    # The evaluations are 5 apart: six lie in the last fifth, above 120, of the way to 150 (125 to 150).
    later = law.curves(285.0) + law.draws.noise * law.draws.error / np.sqrt(6)
    rises = later - law.run.reward[-6:].mean()
    median = float(np.median(rises))
    P, verdict = forecast.stop_rule(law, median)
    assert P == pytest.approx(0.5, abs=0.01) and verdict == "cannot tell yet; look again at C = 225"
    assert forecast.stop_rule(law, float(rises.max()) + 0.01) == (1.0, "stop")
    assert forecast.stop_rule(law, float(rises.min()) - 0.01) == (0.0, "go on")


def test_many_points_are_averaged_and_say_the_same():
    law = law_of(*clean(noise=0.02, points=2000))
    assert law.points == 2000 and len(law.fitted.u) <= 200
    assert law.A == pytest.approx(0.8, abs=0.005) and law.B == pytest.approx(1.7, abs=0.05)
    # The noise is that of one evaluation, not of the averaged points, of which each is the mean of 40.
    assert 0.012 < np.median(law.draws.noise) < 0.024
    # Means of neighbours by hand: 300 points, 1 % apart; each of the 200 cells holds one or two.
    at, means, count = fit.averaged(1.01 ** np.arange(300), np.arange(300.0))
    assert set(count) == {1, 2} and (count @ means) == pytest.approx(299 * 300 / 2)
    assert at[1] == pytest.approx(1.01 ** means[1])


def test_the_end_is_forecast_from_a_part_and_met_by_a_run_that_follows_eq1_alone():
    run = run_of(noise=0.005, points=40)._replace(start="10%")
    row = forecast.hindcast(forecast.forecast_run(run._replace(stop="50%")))
    # 40 points, 3.75 apart; the first half from 10 % of that half on is C = 7.5 to 75: points 2 to 20.
    assert row["points"] == 19 and row["C"] == 150 and row["inside"]
    assert row["measured"] == run.reward[-1] and row["error"] == pytest.approx(row["forecast"] - row["measured"])
    run.reward[-5:] -= 0.1
    assert not forecast.hindcast(forecast.forecast_run(run._replace(start=None, stop="50%")))["inside"]
    # The run's own start counts: from 40 on, 30 % (45) holds one point, half (75) holds six and 70 % (105) ten.
    rows = forecast.hindcasts(run_of(noise=0.005, points=24)._replace(start=40))
    assert [row["share"] for row in rows] == [0.5, 0.7]


def named(name, **options):
    """A Forecast of a run made by `clean`."""
    return forecast.forecast_run(run_of(name, **options))


def test_compare_by_B_at_a_common_A_and_by_A_otherwise():
    slow, fast, higher = (
        named("slow", noise=0.003),
        named("fast", noise=0.003, B=2.4),
        named("higher", noise=0.003, A=0.9),
    )
    laws, sentence = forecast.compare([slow, named("low", A=0.6), fast])
    # The A of slow and fast differ by less than 0.02: they get their mean, and B decides. 0.6 is farther off.
    assert [law.run.name for law in laws] == ["fast", "slow", "low"]
    assert laws[0].A == laws[1].A == pytest.approx((slow.A + fast.A) / 2) and laws[2].A == pytest.approx(0.6, abs=1e-3)
    assert sentence.startswith("fast scales better than slow by B at the common A = 0.80")
    assert "and the data can tell" in sentence
    _, sentence = forecast.compare([fast, higher])
    assert sentence.startswith("higher scales better than fast by A, and the data can tell")
    _, sentence = forecast.compare([slow, named("again", noise=0.003, seed=1)])
    assert "but the data cannot tell" in sentence


def test_compare_goes_by_the_forecasts_where_an_A_is_not_determined():
    early, flat = named("early", noise=0.01, top=25.0), forecast.forecast_run(fit.Run(*LINE, name="flat"))
    laws, sentence = forecast.compare([flat, early])
    assert laws[0] is early and "by the forecast at C = 50, and the data can tell" in sentence
    _, sentence = forecast.compare([forecast.forecast_run(fallen()), named("run")])
    assert "by the forecast at C = 300" in sentence
