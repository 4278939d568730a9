"""Claims about fit.py: Eq. 1 and its limits, A.4 and A.5, what is fitted, every error."""

import numpy as np
import pytest
from conftest import TRUTH, check_exercise, clean

import fit
from plumbing import figures

# ---- Eq. 1 and what follows from it ----


def test_eq1_gives_half_of_the_gain_at_C_mid_and_four_fifths_at_twice_C_mid_if_B_is_2():
    # R_0 + (A - R_0) / (1 + (C_mid / C)^B): 0.2 + 0.6 / (1 + (1/2)^2) = 0.2 + 0.6 * 0.8 = 0.68
    assert fit.sigmoid(60.0, A=0.8, B=2.0, C_mid=30.0, R_0=0.2) == pytest.approx(0.68, abs=1e-12)
    # At C_mid half of the gain: 0.2 + 0.6 / 2 = 0.5, whatever B is.
    assert fit.sigmoid(30.0, A=0.8, B=np.array([0.4, 4.0]), C_mid=30.0, R_0=0.2) == pytest.approx([0.5, 0.5], abs=1e-12)
    assert fit.sigmoid([0.0, 1e12], **TRUTH) == pytest.approx([0.2, 0.8], abs=1e-9)  # both ends


def test_fig7_log_F_is_B_log_C():
    check_exercise(fit, "efficiency")


def test_eq1_solved_for_the_compute():
    check_exercise(fit, "compute-for")


def test_a4_power_law_fit_finds_the_law_that_made_the_points():
    C = np.linspace(1, 50, 40)
    law = fit.fit_power_law(C, 0.7 - 0.5 / C**0.8)
    assert (law.A, law.B, law.D) == pytest.approx((0.7, 0.8, 0.5), rel=1e-6)


def test_a4_power_law_fails_where_the_paper_says_and_the_sigmoid_does_not():
    run = figures.samples(0)
    ranges = ((1500, 50000), (5000, 50000), (30000, 60000))
    power = [fit.fit_power_law(run.compute, run.reward, *ends).A for ends in ranges]
    # Published: 1.0, 0.74, "right" (0.645). With R_0 = 0.3 the second would be 0.77, so this also pins PAPER_R_0.
    assert power == [pytest.approx(1.0, abs=0.011), pytest.approx(0.74, abs=0.005), pytest.approx(0.645, abs=0.005)]
    for start, stop in ranges:
        assert fit.fit_run(run._replace(start=start, stop=stop)).A == pytest.approx(0.645, abs=1e-4)


# ---- The fit ----


@pytest.mark.parametrize("unit", [1e-4, 1e18])
def test_the_unit_of_compute_scales_C_mid_and_nothing_else(unit):
    C, R = clean(noise=0.01)
    law, other = fit.fit(C, R), fit.fit(C * unit, R)
    for name, scale in (("A", 1), ("B", 1), ("C_mid", unit)):
        # 1e-5: the tolerance of the search.
        assert getattr(other, name) == pytest.approx(getattr(law, name) * scale, rel=1e-5)


def test_never_worse_than_any_point_of_a_grid():
    C, R_0 = np.arange(1.0, 10), 0.1
    A, B, C_mid = np.meshgrid(np.linspace(0.11, 1, 40), np.geomspace(0.01, 300, 40), np.geomspace(0.05, 200, 40))
    grid = fit.sigmoid(C, A[..., None], B[..., None], C_mid[..., None], R_0)
    for R in np.random.default_rng(0).uniform(size=(6, 9)).round(1):
        law = fit.fit(C, R, r0=R_0)
        # 1e-6 of the sum of squares: the fit only comes close to a step function, which is B = infinity.
        assert law.ssr <= ((R - grid) ** 2).sum(-1).min() * (1 + 1e-6) + 1e-12
        assert R_0 < law.A <= 1 and law.B > 0


def test_a5_grid_returns_the_best_pair_with_B_fitted_alone():
    law = fit.fit(*clean(), grid=([0.7, 0.8, 0.85], [20.0, 30.0, 36.0]))
    assert (law.A, law.C_mid, law.R_0) == (0.8, 30, 0.2) and law.B == pytest.approx(1.7)


def test_R_0_is_fitted_to_its_measurement_and_the_points_unless_given():
    C, R = clean(noise=0.01)
    R[0] = 0.25
    # The points say 0.2; the measurement counts like any other point, so the estimate lies between the two.
    assert 0.2 < fit.fit(C, R).R_0 < 0.25
    assert fit.fit(C, R, r0=0.19).R_0 == pytest.approx(0.19, abs=1e-12)
    # With a hundred measurements of 0.25 at C = 0 the estimate is 0.25.
    many = fit.fit(np.append(C, np.zeros(99)), np.append(R, np.full(99, 0.25)))
    assert many.R_0 == pytest.approx(0.25, abs=1e-3)


def test_shares_of_compute_and_a_stop_beyond_the_run():
    C, R = clean()  # 0, 5, ..., 150
    assert fit.fit(C, R, start="10%", stop="50%").span == (10, 75)  # 10 % of 75 is 7.5, so the first is 10
    # If the stop lies beyond the run, the start in per cent is a share of the compute that there is: 10 % of 150 is 15.
    assert fit.fit(C, R, start="10%", stop=100000).span == (15, 150)


# ---- Errors ----


@pytest.mark.parametrize(("compute", "reward", "options", "message"), [
    ([0, 1, 2, 3], [0.1, 0.2, 0.3, 0.4], {}, "got 4 points"),
    (range(8), np.linspace(0, 0.5, 7), {}, "lists of one length"),
    ([0, 1, 2, 3, 4, 5], [0.1, 0.2, np.nan, 0.3, 0.4, 0.5], {}, "compute 2 and reward nan at point 3"),
    ([-1, 1, 2, 3, 4, 5], [0.1] * 6, {}, "C >= 0"),
    ([3] * 4 + [5] * 4, np.linspace(0, 1, 8), {}, "1 values of compute"),
    (range(8), np.linspace(0, 80, 8), {}, "--scale percent"),
    (range(8), [1.0] * 8, {}, "got R_0 = 1, expected 0 <= R_0 < A <= 1: otherwise nothing is left to gain"),
    (range(8), np.linspace(0, 0.5, 8), {"r0": np.nan}, "R_0 = nan"),
    (range(8), np.linspace(0.5, 0.9, 8), {"A": 0.4}, "R_0 < A <= 0.4"),
])  # fmt: skip
def test_errors_say_what_is_wrong(compute, reward, options, message):
    with pytest.raises(fit.BadInput, match=message):
        fit.fit(compute, reward, **options)
