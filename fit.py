"""The sigmoidal law of RL compute, its fit, and efficiency.

Paper: Eq. 1 and Sec. 2.1 (law), App. A.4 (power law), A.5 (fitting), A.6 and A.8 (reading it), A.7 (robustness),
Table 1, Fig. 7 (efficiency plot).

    R_C - R_0 = (A - R_0) / (1 + (C_mid / C)^B)              Eq. 1
    R_C       = A - D / C^B,  C >= C_0                       A.4: Eq. 1 for C >> C_mid, with D = (A - R_0) C_mid^B
    F(R)      = C_mid^B / ((A - R_0) / (R - R_0) - 1) = C^B  Fig. 7: log F against log C is a line of slope B

    C -> compute, in any unit (GPU-hours, tokens, FLOP, steps)    R_C -> reward, a pass rate in [0, 1]
    A -> A, asymptotic pass rate    B -> B, scaling exponent    C_mid -> C_mid, unit of C    R_0 -> R_0, R at C = 0

Deviation: the default does not use the grid of A.5 (`grid=PAPER_GRID` does). It searches B and C_mid only. Given
  these, Eq. 1 is linear in A and R_0, so both are solved for, A within (R_0, 1]. This keeps the joint fit stable.
Deviation: R_0 is fitted too, unless given: its measurement is as noisy as any other and counts as one more point.
Deviation: the command line and train.py leave out the first 10 % of the fitted range (the paper: the first epoch).
Open in the paper: R_0, noise and raw points are not published. R_0 = 0.39 for the 8B runs is inferred (PAPER_R_0 in
  plumbing/figures.py).

forecast.py: how sure a fit is, forecasts, and when to stop.
Run:   python fit.py runs/NAME -o scaling.png       (the whole command line: docs/forecasting.md)
Test:  pytest tests/test_fit.py
Page: docs/paper/law.md
"""

from collections import namedtuple
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from scipy.optimize import least_squares, leastsq
from scipy.special import expit, logit

PAPER_GRID = (np.linspace(0.450, 0.800, 71), np.linspace(100, 40000, 100))  # A.5: A, and C_mid in GPU-hours
B_MIN, B_MAX = 0.001, 10000  # Eq. 1 is flat at B_MIN and a step at B_MAX, over any range of compute that can be run
REACH = np.log(1e4)  # C_mid is searched up to this far (in log C) from the points
EXACT = 1e15  # weight, in evaluations, of an R_0 that is given as exact
MOST = 200  # largest number of points that is fitted; in longer runs neighbours in log C are averaged


class BadInput(ValueError):
    """The caller's input cannot be read or fitted. The message is one line: got, expected, likely cause."""


# ---- The law ----


def sigmoid(C, A, B, C_mid, R_0):
    """Eq. 1: pass rate at compute C >= 0 (unit of C_mid); all arguments broadcast.

    >>> print(round(sigmoid(2542, A=0.61, B=1.92, C_mid=2542, R_0=0.39), 3))  # half of the gain
    0.5
    """
    with np.errstate(divide="ignore"):
        return R_0 + (A - R_0) * expit(B * (np.log(C) - np.log(C_mid)))


def log_f(R, A, B, C_mid, R_0):
    """Fig. 7: natural log of F(R), equal to B log C, for R_0 < R < A; F itself overflows at large B and C_mid."""
    return B * np.log(C_mid) + logit((np.asarray(R) - R_0) / (A - R_0))


class Run(
    namedtuple(
        "Run",
        "compute reward start stop r0 tasks name unit notes completions ends source",
        defaults=(None, None, None, None, "run", "", (), None, (0.0, 1.0), None),
    )
):
    """The evaluations of one run. A (compute, reward) pair becomes a Run by `Run(*pair)`.

    compute, reward, start, stop, r0: as in `fit`    name: of the run    unit: of compute
    tasks: names of the log's columns that hold the pass rate on one task    notes: what the reader of the log left out
    completions: how many each evaluation is the mean of, if known    ends: the user's rewards that became 0 and 1
    source: the Path of its file
    """

    def own(self, R):
        """Pass rates R, any shape, as rewards in the user's units."""
        low, high = self.ends
        return low + np.asarray(R) * (high - low)

    def rate(self, R):
        """Rewards R in the user's units, any shape, as pass rates."""
        low, high = self.ends
        return (np.asarray(R) - low) / (high - low)


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted Eq. 1: compute in the caller's unit, pass rates in [0, 1]."""

    A: float
    B: float
    C_mid: float
    R_0: float
    ssr: float  # sum of squared residuals of the fitted points
    span: tuple  # first and last fitted compute
    points: int  # fitted evaluations, without those that measure R_0
    fitted: "Points" = field(repr=False)
    kept: np.ndarray = field(repr=False)  # (n,) bool: the evaluations of `run` that are fitted
    run: Run = field(repr=False)  # the whole run, also outside `span`, sorted by compute

    def predict(self, C):
        """Pass rate at compute C, any shape."""
        return sigmoid(C, self.A, self.B, self.C_mid, self.R_0)

    def compute_for(self, R):
        """Compute at which the curve reaches pass rate R, any shape: 0 at or below R_0, inf at or above A."""
        share = np.clip((np.asarray(R, float) - self.R_0) / (self.A - self.R_0), 0, 1)
        return self.C_mid * np.exp(logit(share) / self.B)


class PowerLaw(namedtuple("PowerLaw", "A B D")):
    """A fitted R_C = A - D / C^B (A.4); D in (unit of C)^B."""

    def predict(self, C):
        """Pass rate at compute C > 0, any shape."""
        return self.A - self.D * np.asarray(C, float) ** -self.B


# ---- Fitting ----


class Points(namedtuple("Points", "u R count R_0 weight A")):
    """What is fitted: u = log C, R, and count = how many evaluations each point is the mean of, each (n,); R_0 as
    measured or given, and its weight (in evaluations); A if the caller fixed it, else None."""


def averaged(C, R, most=MOST):
    """At most `most` points from C > 0 (ascending) and R, each (n,): C, R and how many evaluations each is the mean of.

    If there are more, neighbours in log C are averaged: C geometrically, R arithmetically."""
    if len(C) <= most:
        return C, R, np.ones(len(C))
    u = np.log(C)
    cell = np.minimum((most * (u - u[0]) / (u[-1] - u[0])).astype(int), most - 1)
    _, cell, count = np.unique(cell, return_inverse=True, return_counts=True)
    return np.exp(np.bincount(cell, u) / count), np.bincount(cell, R) / count, count


def levels(points, h):
    """The best A and R_0, (K,) each, for h (K, n), the share of the gain still to come at each point.

    R = A (1 - h) + R_0 h is linear in A and R_0, so both are solved for."""
    n = points.count
    g = 1 - h
    hh = h**2 @ n + points.weight
    gh = (g * h) @ n
    pull = h @ (n * points.R) + points.weight * points.R_0
    A = np.full(len(h), points.A, float)
    if points.A is None:
        curvature = np.maximum(g**2 @ n - gh**2 / hh, 1e-30)
        flat = pull / (hh + gh)  # the best common value if A = R_0
        A = np.clip((g @ (n * points.R) - gh * pull / hh) / curvature, flat + 1e-6 * (1 - flat), 1)
    return A, np.clip((pull - gh * A) / hh, 0, A)


def residuals(points, h, A, R_0):
    """Weighted residuals (K, n + 1) of the points and of the measured R_0, for h (K, n), A (K,) and R_0 (K,)."""
    of_points = np.sqrt(points.count) * (points.R - A[:, None] + (A - R_0)[:, None] * h)
    return np.column_stack([of_points, np.sqrt(points.weight) * (R_0 - points.R_0)])


def _estimate(points):
    """The least-squares A, B, C_mid, R_0: B and C_mid are searched from several starts, A and R_0 are solved for.

    Each of 21 values of B comes with the best of many C_mid at, between, before and after the points: no slope of S
    leads to a jump between two points. The search goes on from the best eight of these pairs."""
    u = points.u
    around = np.linspace(0, REACH, 20)
    centres = np.concatenate([(u[1:] + u[:-1]) / 2, u, u[0] - around, u[-1] + around])
    limits = np.log([B_MIN, B_MAX]), (u[0] - REACH, u[-1] + REACH)

    def solved(log_B, log_C_mid):
        B = np.exp(np.clip(log_B, *limits[0]))
        C_mid = np.clip(log_C_mid, *limits[1])
        h = expit(B[:, None] * (C_mid[:, None] - u))
        A, R_0 = levels(points, h)
        return residuals(points, h, A, R_0), (A, B, np.exp(C_mid), R_0)

    starts = []
    for log_B in np.linspace(*limits[0], 21):
        S = (solved(np.full(len(centres), log_B), centres)[0] ** 2).sum(1).round(12)
        starts.append((S.min(), log_B, centres[S.argmin()]))
    tries = []
    for _, *start in sorted(starts)[:8]:
        solution = least_squares(lambda x: solved(x[:1], x[1:])[0][0], start, method="lm", xtol=1e-10, ftol=1e-12)
        tries.append((round(solution.cost, 12), *np.ravel(solved(solution.x[:1], solution.x[1:])[1])))
    return min(tries)[1:]  # of equally good ones that with the lowest A


def _grid(points, grid):
    """A.5 to the letter: for every pair (A, C_mid), fit B alone from 1, the default start of `curve_fit`.

    Returns A, B, C_mid, R_0 of the pair with the least sum of squares.
    """
    R_0 = points.R_0
    weight = np.sqrt(points.count)
    best = np.inf, np.nan, np.nan, np.nan
    for A, C_mid in product(grid[0] if points.A is None else [points.A], grid[1]):
        x = points.u - np.log(C_mid)
        misses = lambda B: weight * (R_0 + (A - R_0) * expit(B * x) - points.R)  # noqa: B023, E731
        # `curve_fit` calls leastsq too, and adds the covariance of B, which A.5 does not use, and warnings about it.
        (B,) = leastsq(misses, 1.0, full_output=True)[0]
        best = min(best, ((misses(B) ** 2).sum(), A, B, C_mid))
    return *best[1:], R_0


def _checked(run):
    """The run with its arrays (n,) sorted by compute. Raises BadInput for unequal lengths, C < 0, R outside [0, 1]."""
    C, R = np.asarray(run.compute, float), np.asarray(run.reward, float)
    if C.ndim != 1 or C.shape != R.shape:
        raise BadInput(f"{run.name}: got compute {C.shape} and reward {R.shape}, expected lists of one length")
    unusable = ~(np.isfinite(C + R) & (C >= 0) & (abs(R - 0.5) <= 0.5 + 1e-6))  # 1e-6: rounded to single precision
    if unusable.any():
        got = (
            f"{run.name}: got compute {C[unusable][0]:g} and reward {R[unusable][0]:g} at point {unusable.argmax() + 1}"
        )
        remedy = "other rewards need --scale percent, --scale pm1 (-1 to 1) or --scale LO:HI"
        raise BadInput(f"{got}, expected C >= 0 and a pass rate in [0, 1]; {remedy}")
    order = np.argsort(C, kind="stable")
    return run._replace(compute=C[order], reward=np.clip(R, 0, 1)[order])


def amount(text, whole, flag):
    """A compute: as given, or a share or a multiple of the compute `whole`, as 10% or 4x. Raises BadInput otherwise."""
    text = str(text)
    parts = {"%": 100, "x": 1}.get(text[-1:])
    with suppress(ValueError):
        compute = float(text[:-1]) / parts * whole if parts else float(text)
        if 0 <= compute < np.inf:
            return compute
    raise BadInput(f"got {flag} {text}, expected a compute, or a share or a multiple of the run's, as 10% or 4x")


def _in_range(run, taken):
    """Mask (n,) of the points to fit: start <= C <= stop, C > 0, and not in the mask `taken` (they measure R_0).

    Raises BadInput for fewer than 5 points (R_0 counts as one) or fewer than 3 different computes.
    """
    C = run.compute
    last = C.max(initial=0.0)
    high = last if run.stop is None else min(last, amount(run.stop, last, "stop (--fit-to)"))
    low = amount(run.start or 0.0, high, "start (--fit-from)")
    if low > high:
        raise BadInput(f"{run.name}: got a start (--fit-from) of {low:g}, expected one before the stop, {high:g}")
    keep = (C > 0) & (C >= low) & (C <= high) & ~taken
    points, values = keep.sum() + taken.any(), len(np.unique(C[keep]))
    if points < 5 or values < 3:
        got = f"{run.name}: got {points} points (R_0 counts) at {values} values of compute from {low:g} to {high:g}"
        raise BadInput(f"{got}, expected 5 points or more at 3 or more values; widen the range or run on")
    return keep


def fit(compute, reward, r0=None, start=None, stop=None, *, A=None, grid=None):
    """Fit Eq. 1 to the points with start <= C <= stop.

    compute (n,)      C >= 0, any one unit, any order     reward (n,)  pass rates
    r0                pass rate at C = 0, taken as exact; default: R_0 is fitted, and the points at C = 0 count as
                      measurements of it (if there are none, the first point does, with a warning)
    start, stop       computes, or shares: stop="50%" of the last compute, start="10%" of stop; default: all points
    A                 fixes A
    grid              A.5: ascending values of A and of C_mid (PAPER_GRID); default: least squares, A in (R_0, 1], B > 0
    Returns a Fit. Raises BadInput for fewer than 5 points (R_0 counts as one) or 3 different computes, nan, C < 0,
    R outside [0, 1], R_0 not below A, and a start or stop that cannot be read.

    >>> C = np.array([0, 1, 2, 4, 8, 16, 32])
    >>> law = fit(C, sigmoid(C, A=0.8, B=1.5, C_mid=5, R_0=0.2))
    >>> print(f"{law.A:.3f} {law.B:.3f} {law.C_mid:.3f}")
    0.800 1.500 5.000
    """
    return fit_run(Run(compute, reward, start, stop, r0), A=A, grid=grid)


def _taken(run, A):
    """The `Points` of a run, and the mask (n,) of its fitted evaluations.

    Raises BadInput for too few points, and for R_0 outside [0, A).
    """
    C, R = run.compute, run.reward
    taken = (C == C[:1]) & (run.r0 is None)  # C = 0, or the first if that is missing
    keep = _in_range(run, taken)
    R_0 = R[taken].mean() if run.r0 is None else run.r0
    least = min(R_0, R[keep].min()) if run.r0 is None else R_0
    high = 1.0 if A is None else A
    if not 0 <= least < high:
        bounds = f"expected {run.own(0):g} <= R_0 < A <= {run.own(high):g}"
        raise BadInput(f"{run.name}: got R_0 = {run.own(least):g}, {bounds}: otherwise nothing is left to gain")
    at, means, count = averaged(C[keep], R[keep])
    return Points(np.log(at), means, count, R_0, taken.sum() or EXACT, A), keep


def fit_run(run, *, A=None, grid=None):
    """`fit` of a Run, or of a pair (compute, reward), with the Run's own start, stop and r0. Returns a Fit."""
    run = _checked(Run(*run))
    points, kept = _taken(run, A)
    best = _grid(points, grid) if grid else _estimate(points)
    A, B, C_mid, R_0 = map(float, best)
    ssr = float((points.R - sigmoid(np.exp(points.u), *best)) ** 2 @ points.count)
    C = run.compute[kept]
    return Fit(A, B, C_mid, R_0, ssr, (C[0].item(), C[-1].item()), len(C), points, kept, run)


def fit_power_law(compute, reward, start=None, stop=None):
    """A.4: the PowerLaw R_C = A - D / C^B by least squares, A in [0, 1], B > 0; arguments and BadInput as in `fit`."""
    run = _checked(Run(compute, reward, start, stop))
    keep = _in_range(run, np.zeros(len(run.compute), bool))
    C, R, n = averaged(run.compute[keep], run.reward[keep])
    middle = np.exp(np.log(C).mean())  # C^-B with C in units of it, against over- and underflow

    def cost(x):
        return np.sqrt(n) * (PowerLaw(*x).predict(C / middle) - R)

    bounds = (0, B_MIN, -np.inf), (1, 20, np.inf)
    tries = [least_squares(cost, (R.mean(), B, 0.0), bounds=bounds) for B in (0.1, 0.5, 2)]
    best = min(tries, key=lambda solution: solution.cost)
    A, B, D = best.x.tolist()
    return PowerLaw(A, B, D * middle**B)


if __name__ == "__main__":  # the command line imports this file, never the other way round
    import runpy
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent))  # which PYTHONSAFEPATH leaves out
    runpy.run_module("plumbing.curves", run_name="__main__")
