"""Chapter 1: the scaling law and its fit (Eq. 1, Sec. 2.1, A.4 to A.8). Claims, wrong answers, exercises.

This chapter needs neither a sandbox nor a run: it works on every system. Test: pytest tests/test_exercises.py
"""

import math
from collections import namedtuple
from functools import partial
from types import SimpleNamespace

import numpy as np

from course.checks.claims import Chapter, Claim, values_at

LAW = Chapter()
CURVE = {"A": 0.7, "B": 2.0, "C_mid": 30.0, "R_0": 0.2}
ON_CURVE = partial(values_at, **CURVE)


# --- sigmoid ---------------------------------------------------------------------------------------------------------


def sigmoid_inverted(C, A, B, C_mid, R_0):
    """turn the ratio round, (C / C_mid)^B: the curve falls with compute."""
    return R_0 + (A - R_0) / (1 + (C / C_mid) ** B)


def sigmoid_without_start(C, A, B, C_mid, R_0):
    """leave out R_0 on the left: the curve starts at 0."""
    return (A - R_0) / (1 + (C_mid / C) ** B)


def sigmoid_without_R_0(C, A, B, C_mid, R_0):
    """leave out R_0, on the left and in the gain: the curve runs from 0 to A."""
    return A / (1 + (C_mid / C) ** B)


def sigmoid_gain_is_A(C, A, B, C_mid, R_0):
    """multiply by A instead of the gain A - R_0: the asymptote becomes A + R_0."""
    return R_0 + A / (1 + (C_mid / C) ** B)


def sigmoid_B_in_front(C, A, B, C_mid, R_0):
    """multiply the ratio by B instead of raising it to the power B."""
    return R_0 + (A - R_0) / (1 + B * (C_mid / C))


def sigmoid_of_C(C, A, B, C_mid, R_0):
    """take the logistic function of C: Eq. 1 is one of log C."""
    return R_0 + (A - R_0) / (1 + math.exp(-B * (C - C_mid)))


def sigmoid_power_law(C, A, B, C_mid, R_0):
    """use the power law of A.4, which agrees with Eq. 1 only far above C_mid."""
    return A - (A - R_0) * (C_mid / C) ** B


# C = C_mid / 3, C_mid, 3 C_mid with B = 2: shares 1 / (1 + 9), 1/2, 1 / (1 + 1/9) of the gain 0.5, plus R_0 = 0.2.
SIGMOID = Claim(
    says="R_0 plus 1/10, 1/2, 9/10 of the gain at C_mid / 3, C_mid, 3 C_mid for B = 2",
    probe=ON_CURVE,
    inputs=([10.0, 30.0, 90.0],),
    expected=[0.25, 0.45, 0.65],
    labels="C_mid / 3, C_mid, 3 C_mid",
    mistakes=(
        sigmoid_inverted,
        sigmoid_without_start,
        sigmoid_without_R_0,
        sigmoid_gain_is_A,
        sigmoid_B_in_front,
        sigmoid_of_C,
        sigmoid_power_law,
    ),
)


START = Claim(
    says="R_0 at C = 0",
    probe=ON_CURVE,
    inputs=([0.0],),
    expected=[0.2],
    undefined="divide by C, or take its logarithm, where C is 0: there the share of the gain is 0",
)


LAW.write(
    name="sigmoid",
    where="fit.py:sigmoid",
    minutes=10,
    teaches="Four numbers say what a recipe will reach and how fast: A, B, C_mid and R_0.",
    hints=(
        "Eq. 1; the symbols stand at the top of fit.py.",
        "At C = 0 one ratio is 0 / x and the other x / 0: the result must be R_0, without a warning. Arguments "
        "broadcast.",
        "The share of the gain that is reached at compute C is the logistic function of B (log C - log C_mid); "
        "scipy's expit is one that never overflows.",
    ),
    claims=(SIGMOID, START),
)


# --- efficiency ------------------------------------------------------------------------------------------------------


def efficiency_inverted(R, A, B, C_mid, R_0):
    """turn the odds round: F falls where the pass rate rises."""
    return B * math.log(C_mid) + math.log((A - R) / (R - R_0))


def efficiency_without_start(R, A, B, C_mid, R_0):
    """leave out R_0: the gain is counted from pass rate 0."""
    return B * math.log(C_mid) + math.log(R / (A - R))


def efficiency_without_unit(R, A, B, C_mid, R_0):
    """leave out C_mid^B: F is in units of C_mid^B, and runs with another C_mid cannot be compared."""
    return math.log((R - R_0) / (A - R))


# The three points of SIGMOID, from pass rate to compute: log F = B log C = 2 log 10, 2 log 30, 2 log 90.
LAW.write(
    name="efficiency",
    where="fit.py:log_f",
    minutes=10,
    teaches="In the right coordinates Eq. 1 is a straight line, and B its slope.",
    hints=(
        "Fig. 7; F(R) at the top of fit.py.",
        "Solve Eq. 1 for C^B, not for C; then take the logarithm.",
        "The log odds of the gain, (R - R_0) to (A - R), plus B log C_mid; scipy has a logit.",
    ),
    says="log F(R) = B log C on the curve, so twice the logarithm of C = 10, 30, 90 for B = 2",
    probe=ON_CURVE,
    inputs=([0.25, 0.45, 0.65],),
    expected=[2 * math.log(C) for C in (10, 30, 90)],
    labels="R = 0.25, 0.45, 0.65",
    mistakes=(efficiency_inverted, efficiency_without_start, efficiency_without_unit),
)


# --- compute-for -----------------------------------------------------------------------------------------------------


def needed(compute_for, R):
    return values_at(partial(compute_for, SimpleNamespace(**CURVE)), np.array(R))


def _share(law, R):
    return np.clip((R - law.R_0) / (law.A - law.R_0), 0, 1)


def needed_inverted(law, R):
    """turn the odds round: a higher pass rate would need less compute."""
    return law.C_mid * ((law.A - R) / (R - law.R_0)) ** (1 / law.B)


def needed_without_root(law, R):
    """leave out the B-th root."""
    share = _share(law, R)
    return law.C_mid * share / (1 - share)


def needed_of_the_asymptote(law, R):
    """take R / A for the share of the gain: R_0 needed no compute, so it is no part of the gain."""
    share = R / law.A
    return law.C_mid * (share / (1 - share)) ** (1 / law.B)


def needed_to_the_power(law, R):
    """raise the odds to the power B instead of 1 / B."""
    share = _share(law, R)
    return law.C_mid * (share / (1 - share)) ** law.B


def needed_of_the_rate(law, R):
    """take the pass rate itself for the share of the gain."""
    return law.C_mid * (R / (1 - R)) ** (1 / law.B)


# The three points of SIGMOID, and a pass rate below R_0, which needs no compute.
LAW.write(
    name="compute-for",
    where="fit.py:Fit.compute_for",
    minutes=15,
    teaches="The law read backwards: what a pass rate costs.",
    hints=(
        "Eq. 1, solved for C.",
        "Below R_0 nothing is needed, at A none is enough: clip the share to [0, 1], then the logit gives both.",
        "C_mid times the exponential of the share's logit over B.",
    ),
    undefined="leave out the clip: below R_0 the share of the gain is negative, so its root or logarithm is no number",
    says="Eq. 1 solved for C: 10, 30, 90, and 0 where the pass rate is below R_0",
    probe=needed,
    inputs=([0.25, 0.45, 0.65, 0.1],),
    expected=[10.0, 30.0, 90.0, 0.0],
    labels="R = 0.25, 0.45, 0.65, 0.1",
    mistakes=(needed_inverted, needed_without_root, needed_of_the_asymptote, needed_to_the_power, needed_of_the_rate),
)


# --- forecast-error --------------------------------------------------------------------------------------------------


def end_of_run(forecast, C, R):
    """[C, forecast, measured, error] over the last two evaluations (C, R) of a run whose law is R = C / 100."""
    law = SimpleNamespace(
        points=5,
        median=lambda c: c / 100,
        band=lambda c, mean_of: (c / 100 - 0.1, c / 100 + 0.1),
        run=SimpleNamespace(compute=np.array(C), reward=np.array(R)),
    )
    row = forecast(law, last=2)
    return [row["C"], row["forecast"], row["measured"], row["error"]]


# The last two evaluations: C = 30 and 40, mean 35; R = 0.3 and 0.4, mean 0.35, which is the law at 35.
LAW.bug(
    name="forecast-error",
    where="forecast.py:hindcast",
    minutes=15,
    teaches="A forecast can only be judged at the compute it was made for.",
    hints=(
        "Sec. 2.1, extrapolation.",
        "The measured value is a mean of several evaluations. At which compute?",
        "Mean of the pass rates against the law at the mean of the computes.",
    ),
    says="the mean of the last evaluations is compared with the law at their mean compute",
    probe=end_of_run,
    inputs=([10.0, 20.0, 30.0, 40.0], [0.1, 0.2, 0.3, 0.4]),
    expected=[35.0, 0.35, 0.35, 0.0],
    labels="C, forecast, measured, error",
    bug=("law.run.compute[-last:].mean()", "law.run.compute[-1]"),
    symptom="Forecasts of the mean of the last evaluations come out too high, even of points that lie on the law.",
)


# --- ahead -----------------------------------------------------------------------------------------------------------


Draws = namedtuple("Draws", "A B C_mid R_0 walk level steps")


def ahead(curves, times, walk, level, steps):
    """Two curves, of which the second walks, at multiples of the last fitted compute."""
    alike = np.repeat([[*CURVE.values(), walk, level]], 2, 0).T
    draws = Draws._make([*alike, np.array([0.0, steps])])
    return curves(SimpleNamespace(draws=draws, span=(1.0, 10.0)), 10.0 * np.array(times))


def _ahead(law, C, spread, level):
    """Right, if `spread`, the size of the walk at so many e-folds, and the present `level` are."""
    A, B, C_mid, R_0, walk, _, steps = law.draws
    last = law.span[1]
    C = C[:, None]
    gain, past = ((A - R_0) / (1 + (C_mid / compute) ** B) for compute in (C, last))
    return np.clip(level + gain - past + walk * spread(np.log(C / last)) * steps, 0, 1)


def ahead_on_the_law(law, C):
    """start from Eq. 1 instead of the present level: the walk has led away from it."""
    A, B, C_mid, R_0, *_ = law.draws
    return _ahead(law, C, np.sqrt, R_0 + (A - R_0) / (1 + (C_mid / law.span[1]) ** B))


def ahead_in_proportion(law, C):
    """let the walk grow with log C: its variance does, so its size grows with the root."""
    return _ahead(law, C, lambda u: u, law.draws.level)


def ahead_without_walk(law, C):
    """leave out the walk: no real run follows Eq. 1 so closely."""
    return _ahead(law, C, np.zeros_like, law.draws.level)


# The law of SIGMOID: 1/10 of the gain at C = 10, 9/10 at 90, so 0.4 more; the walk: 0.1 * sqrt(log 9) * 1/2.
LAW.write(
    name="ahead",
    where="forecast.py:Forecast.curves",
    minutes=20,
    teaches="A forecast starts from where the run is, and gets less sure with every e-fold of compute.",
    hints=(
        "Sec. 2.1; the model at the top of forecast.py.",
        "`draws` holds arrays (S,) and C has any shape: give C one more dimension. The check asks from the "
        "last fitted compute on.",
        "Beyond: the level, plus what Eq. 1 adds since the last fitted compute, plus the walk's size times the root of "
        "the e-folds times its steps; pass rates lie in [0, 1]. Before, the walk's mean is straight in log C.",
    ),
    says="from 0.3 at the last compute, 0.4 more by Eq. 1 at 9 times as much, and there the walk",
    probe=ahead,
    inputs=([1, 9.0], 0.1, 0.3, 0.5),
    expected=[[0.3, 0.3], [0.7, 0.7 + 0.05 * math.log(9) ** 0.5]],
    labels="at the last compute, at 9 times as much",
    mistakes=(ahead_on_the_law, ahead_in_proportion, ahead_without_walk),
)


# --- crossing --------------------------------------------------------------------------------------------------------


LAW.predict(
    name="crossing",
    minutes=10,
    teaches="What looks better early can end lower.",
    hints=(
        "A.8 and Table 1.",
        "R_0 is the same for both; compare the curves at both computes, not A or C_mid alone.",
        "Put the published numbers into Eq. 1: (A, B, C_mid), 5,000 and 50,000 GPU-hours.",
    ),
    says="which run (0 or 1) has the higher pass rate at 5,000 GPU-hours, and which at 50,000",
    mistakes={
        "expect the run that is ahead at 5,000 GPU-hours to stay ahead.": (0, 0),
        "look at the asymptotes A only: far below its C_mid a run with a high asymptote can be behind.": (1, 1),
        "mix up the two runs.": (1, 0),
    },
    labels="at 5000, at 50000",
)


# --- power-law -------------------------------------------------------------------------------------------------------


LAW.predict(
    name="power-law",
    minutes=10,
    teaches="A law without a bend, fitted while the curve still bends, gives too high an asymptote.",
    hints=(
        "A.4.",
        "The sigmoid is close to a power law only far above C_mid, which is 10,909 GPU-hours here.",
        "The power law has to explain a steep start by an asymptote further away. The paper gives the number.",
    ),
    says="the asymptote A of a power law fitted between 5,000 and 50,000 GPU-hours",
    mistakes={
        "give the sigmoid's A: a power law fitted while the curve still bends finds a higher one.": 0.645,
        "give the paper's number for the fit from 1,500 GPU-hours on.": 1.0,
    },
    atol=0.03,
)


# --- half ------------------------------------------------------------------------------------------------------------


LAW.measure(
    name="half",
    minutes=15,
    teaches="The whole point: the first half of a run says where it will end.",
    hints=(
        "Sec. 2.1; `python fit.py --help`.",
        "`python fit.py results/main_seed4.jsonl`, in the project's folder, or in yours once its functions are solved, "
        "forecasts the end from the first half.",
        "The line that begins with: Final R, forecast at half of the compute.",
    ),
    says="forecast of the end from the first half of the compute, what was measured, forecast - measured",
    atol=2e-3,
    labels="forecast, measured, difference",
)
