"""The sigmoidal law of RL compute, its fit, and efficiency.

Paper: Eq. 1 and Sec. 2.1 (law), App. A.4 (power law), A.5 (fitting), A.6 and A.8 (reading it), A.7 (robustness),
Table 1, Fig. 7 (efficiency plot).

    R_C - R_0 = (A - R_0) / (1 + (C_mid / C)^B)              Eq. 1
    R_C       = A - D / C^B,  C >= C_0                       A.4: Eq. 1 for C >> C_mid, with D = (A - R_0) C_mid^B
    F(R)      = C_mid^B / ((A - R_0) / (R - R_0) - 1) = C^B  Fig. 7: log F against log C is a line of slope B

    C -> compute, in any unit (GPU-hours, tokens, FLOP, steps)    R_C -> reward, a pass rate in [0, 1]
    A -> A, asymptotic pass rate    B -> B, scaling exponent    C_mid -> C_mid, unit of C    R_0 -> R_0, R at C = 0

Deviation: the default does not use the grid of A.5 (`method="grid"` does). It searches B and C_mid only: given these,
  Eq. 1 is linear in A, limited to (R_0, 1], and R_0, so both are solved for. This keeps the joint fit stable.
Deviation: R_0 is fitted too, unless given: its measurement is as noisy as any other and counts as one more point.
Deviation: the command line and train.py leave out the first 10 % of the fitted range (the paper: the first epoch).
Open in the paper: R_0, noise and raw points are not published. R_0 = 0.39 for the 8B runs is inferred (PAPER_R_0 in
  plumbing/figures.py).

How sure one can be, forecasts, and when to stop: forecast.py.
Run:   python fit.py runs/NAME -o scaling.png       (the whole command line: docs/forecasting.md)
Test:  pytest tests/test_fit.py
"""

from collections import namedtuple
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from scipy.optimize import leastsq, minimize
from scipy.special import expit, logit

PAPER_GRID = (np.linspace(0.450, 0.800, 71), np.linspace(100, 40000, 100))  # A.5: A, and C_mid in GPU-hours
B_MIN, B_MAX = 0.001, 10000  # Eq. 1 is flat at B_MIN and a step at B_MAX, over any range of compute that can be run
JUMP = 20  # a B above it is a jump between two points: the data do not determine it
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
        "compute reward start stop r0 epoch tasks name unit notes completions",
        defaults=(None, None, None, None, None, "run", "", (), None),
    )
):
    """The evaluations of one run. A (compute, reward) pair becomes a Run by `Run(*pair)`.

    compute, reward, start, stop, r0, epoch: as in `fit`    name: of the run    unit: of compute
    tasks: names of the log's columns that hold the pass rate on one task    notes: what the reader of the log left out
    completions: how many each evaluation is the mean of, if known
    """


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
    averaged: int  # number of points after averaging; equals `points` if none were averaged
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


class PowerLaw(namedtuple("PowerLaw", "A B D ssr")):
    """A fitted R_C = A - D / C^B (A.4); D in (unit of C)^B, ssr the sum of squared residuals."""

    def predict(self, C):
        """Pass rate at compute C > 0, any shape."""
        return self.A - self.D * np.asarray(C, float) ** -self.B


# ---- Fitting ----


class Points(namedtuple("Points", "u R count R_0 weight A floor")):
    """What is fitted: u = log C, R, and count = how many evaluations each point is the mean of, each (n,); R_0 as
    measured or given, and its weight (in evaluations); A if the caller fixed it, else None; floor: the least standard
    deviation of one evaluation, from its number of completions, 0 if that is not known."""


def averaged(C, R):
    """At most MOST points from C > 0 (ascending) and R, each (n,): C, R and how many evaluations each is the mean of.

    If there are more than MOST, neighbours in log C are averaged: C geometrically, R arithmetically."""
    if len(C) <= MOST:
        return C, R, np.ones(len(C))
    u = np.log(C)
    cell = np.minimum((MOST * (u - u[0]) / (u[-1] - u[0])).astype(int), MOST - 1)
    count = np.bincount(cell, minlength=MOST)
    u = np.bincount(cell, u, MOST)
    R = np.bincount(cell, R, MOST)
    full = count > 0
    return np.exp(u[full] / count[full]), R[full] / count[full], count[full]


def shape(points, cells):
    """B (K,), log C_mid (K,) and h (K, n) of K cells (K, 2) = (log B, v).

    v in [-1, 1] places C_mid: -1 before all points, 1 after them. h = (A - R_C) / (A - R_0) is the share of the gain
    that is still to come at each point.
    """
    B = np.exp(cells[:, 0])
    half = np.ptp(points.u) / 2
    reach = half + np.minimum(25 / B, REACH)  # C_mid further out changes no point by more than e^-25 of the gain
    log_C_mid = points.u.min() + half + cells[:, 1] * reach
    return B, log_C_mid, expit(B[:, None] * (log_C_mid[:, None] - points.u))


class Profile(namedtuple("Profile", "A R_0 S low high free curvature base follow weight")):
    """The best A and R_0 for each of K shapes (pairs of B and C_mid), and how S grows away from them; each field (K,).

    S: the weighted sum of squared residuals at A, R_0    low, high: limits of A    free: the best A without limits
    curvature: d2S/dA2 / 2 where R_0 is the best for each A    base + follow * A: the best R_0 for A, without limits
    weight: d2S/dR_0^2 / 2 at fixed A
    """


def best_R_0(base, follow, A):
    """The best R_0 (K,) within 0 <= R_0 <= A for given A (K,); base, follow: see `Profile`."""
    return np.clip(base + follow * A, 0, A)


def squares(points, h, A, R_0):
    """The weighted sum of squared residuals S (K,) for h (K, n), A (K,) and R_0 (K,)."""
    residuals = points.R - A[:, None] + (A - R_0)[:, None] * h
    return residuals**2 @ points.count + points.weight * (R_0 - points.R_0) ** 2


def profile(points, h):
    """The `Profile` for h (K, n): R = A (1 - h) + R_0 h is linear in A and R_0, so both are solved for."""
    n = points.count
    g = 1 - h
    hh = h**2 @ n + points.weight
    gh = (g * h) @ n
    pull = h @ (n * points.R) + points.weight * points.R_0
    curvature = np.maximum(g**2 @ n - gh**2 / hh, 1e-30)
    free = (g @ (n * points.R) - gh * pull / hh) / curvature
    if points.A is None:
        flat = pull / (hh + gh)  # the best common value if A = R_0
        low = flat + 1e-6 * (1 - flat)
        high = np.ones(len(h))
    else:
        low = high = np.full(len(h), points.A)
    A = np.clip(free, low, high)
    base = pull / hh
    follow = -gh / hh
    R_0 = best_R_0(base, follow, A)
    S = squares(points, h, A, R_0)
    return Profile(
        A=A, R_0=R_0, S=S, low=low, high=high, free=free, curvature=curvature, base=base, follow=follow, weight=hh
    )


LIMITS = np.array([[np.log(B_MIN), -1], [np.log(B_MAX), 1]])  # of a cell (log B, v): least, greatest


def search(points, factor=1.0, keep=200, levels=4, room=0.0):
    """Search the whole range of B and C_mid. Returns cells (K, 2) = (log B, v) and their S (K,).

    The first level is a coarse grid; each further level splits the best `keep` cells in nine. The search ends at the
    first level with 400 cells within factor x S_min or S_min + room, at the latest after `levels` levels.
    """
    cells = np.stack(np.meshgrid(np.linspace(*LIMITS[:, 0], 45), np.linspace(*LIMITS[:, 1], 81)), -1).reshape(-1, 2)
    size = np.ptp(LIMITS, 0) / [44, 80]
    around = np.stack(np.meshgrid([-1, 0, 1], [-1, 0, 1]), -1).reshape(9, 2)
    for level in range(levels):
        S = profile(points, shape(points, cells)[2]).S
        if (S <= max(factor * S.min(), S.min() + room)).sum() >= 400 or level == levels - 1:
            return cells, S
        best = cells[np.argsort(S)[:keep]]
        size = size / 3
        cells = np.clip((best[:, None] + around * size).reshape(-1, 2), *LIMITS)


def _grid(points, grid):
    """A.5 to the letter: for every pair (A, C_mid), fit B alone from 1, the default start of `curve_fit`.

    Returns A, B, C_mid, R_0 of the pair with the least sum of squares.
    """
    R_0 = points.R_0
    weight = np.sqrt(points.count)
    best = np.inf, np.nan, np.nan, np.nan
    for A, C_mid in product(*grid):
        x = points.u - np.log(C_mid)
        residuals = lambda B: weight * (R_0 + (A - R_0) * expit(B * x) - points.R)  # noqa: B023, E731
        # `curve_fit` calls leastsq too, and adds the covariance of B, which A.5 does not use, and warnings about it.
        (B,), *_, status = leastsq(residuals, 1.0, full_output=True)
        if status in (1, 2, 3, 4):  # otherwise leastsq did not converge: this pair has no fit
            best = min(best, ((residuals(B) ** 2).sum(), A, B, C_mid))
    return *best[1:], R_0


def _checked(run):
    """The run with its arrays (n,) sorted by compute. Raises BadInput for unequal lengths, C < 0, R outside [0, 1]."""
    C, R, epoch = (np.asarray(x, float) for x in (run.compute, run.reward, run.epoch))  # an epoch of None becomes nan
    if C.ndim != 1 or C.shape != R.shape:
        raise BadInput(f"{run.name}: got compute {C.shape} and reward {R.shape}, expected lists of one length")
    slack = 1e-6  # for pass rates rounded to single precision
    wrong = ~(np.isfinite(C + R) & (C >= 0) & (R >= -slack) & (R <= 1 + slack))
    if wrong.any():
        got = f"{run.name}: got compute {C[wrong][0]:g} and reward {R[wrong][0]:g} at point {wrong.argmax() + 1}"
        remedy = "other rewards need --scale percent, --scale pm1 (-1 to 1) or --scale LO:HI"
        raise BadInput(f"{got}, expected C >= 0 and a pass rate in [0, 1]; {remedy}")
    order = np.argsort(C, kind="stable")
    R = np.clip(R, 0, 1)
    return run._replace(compute=C[order], reward=R[order], epoch=np.broadcast_to(epoch, C.shape)[order])


def _amount(value, whole, name):
    """`value` as a compute: it is one, or a share of the compute `whole` such as "10%". Raises BadInput otherwise."""
    text = str(value)
    with suppress(ValueError):
        amount = float(text[:-1]) / 100 * whole if text.endswith("%") else float(text)
        if amount >= 0:
            return amount
    raise BadInput(f"got {name} {text}, expected a compute or a share such as 10%")


def _in_range(run, taken):
    """Mask (n,) of the points to fit: start <= C <= stop, C > 0, and not in the mask `taken` (they measure R_0).

    Raises BadInput for fewer than 5 points (R_0 counts as one) or fewer than 3 different computes.
    """
    C = run.compute
    last = C.max(initial=0.0)
    high = last if run.stop is None else min(last, _amount(run.stop, last, "stop (--fit-to)"))
    low = _amount(run.start or 0.0, high, "start (--fit-from)")
    keep = (C > 0) & (C >= low) & (C <= high) & ~taken
    points = keep.sum() + taken.any()
    values = len(np.unique(C[keep]))
    if points < 5 or values < 3:
        got = f"{run.name}: got {points} points (R_0 counts) at {values} values of compute from {low:g} to {high:g}"
        raise BadInput(f"{got}, expected 5 points or more at 3 or more values; widen the range or run on")
    return keep


def peak(R):
    """(last, drop, limit) of the highest max(3, n/8) points in a row of the pass rates R (n,), n >= 2, in order.

    last: index of their last point; drop: by how much the mean of equally many points at the end lies below theirs;
    limit: the drop that noise could cause. A curve falls after its peak if drop > limit.

    >>> peak(np.array([0.0, 0.2, 0.4, 0.6, 0.6, 0.6, 0.3, 0.3, 0.3]))[0]
    5
    """
    width = min(len(R), max(3, len(R) // 8))
    mean = np.convolve(R, np.ones(width) / width, "valid")
    bends = np.diff(R, min(2, len(R) - 1))  # R_i - 2 R_i+1 + R_i+2, 0 on a straight line: a steady rise is no noise
    noise = np.median(abs(bends)) / 1.652  # 1.652: their median size for standard normal R
    limit = max(0.01, 4 * noise * np.sqrt(2 / width))
    return int(mean.argmax()) + width - 1, mean.max() - mean[-1], limit


def fit(compute, reward, r0=None, start=None, stop=None, method="continuous", *, grid=PAPER_GRID, A=None, epoch=None):
    """Fit Eq. 1 to the points with start <= C <= stop.

    compute (n,)      C >= 0, any one unit, any order     reward (n,)  pass rates
    r0                pass rate at C = 0, taken as exact; default: R_0 is fitted, and the points at C = 0 count as
                      measurements of it (if there are none, the first point does, with a warning)
    start, stop       computes, or shares: stop="50%" of the last compute, start="10%" of stop; default: all points
    method            "continuous": least squares, A in (R_0, 1], B > 0; "grid": A.5
    grid              for "grid": ascending values of A and of C_mid; default: the paper's, in GPU-hours
    A                 fixes A; "continuous" only
    epoch (n,)        epochs over the training prompts done at each point, nan if not known; used for a note only
    Returns a Fit. Raises BadInput for fewer than 5 points (R_0 counts as one) or 3 different computes, nan, C < 0,
    R outside [0, 1], R_0 not below A, and a start, stop or method that cannot be read.

    >>> C = np.array([0, 1, 2, 4, 8, 16, 32])
    >>> law = fit(C, sigmoid(C, A=0.8, B=1.5, C_mid=5, R_0=0.2))
    >>> print(f"{law.A:.3f} {law.B:.3f} {law.C_mid:.3f}")
    0.800 1.500 5.000
    """
    return fit_run(Run(compute, reward, start, stop, r0, epoch=epoch), method, grid=grid, A=A)


def _taken(run, A):
    """The `Points` of a run, and the mask (n,) of its fitted evaluations.

    Raises BadInput for too few points, and for R_0 outside [0, A).
    """
    C, R = run.compute, run.reward
    first = C == 0 if (C == 0).any() else np.arange(len(C)) == 0
    taken = first & (run.r0 is None)
    keep = _in_range(run, taken)
    if run.r0 is None:
        R_0 = float(R[taken].mean())
        weight = float(taken.sum())
        least = min(R_0, R[keep].min())
    else:
        R_0 = least = float(run.r0)
        weight = EXACT
    high = 1.0 if A is None else A
    if not 0 <= least < high:
        bounds = f"expected 0 <= R_0 < A <= {high:g}"
        raise BadInput(f"{run.name}: got R_0 = {least:g}, {bounds}: otherwise there is nothing to gain")
    at, means, count = averaged(C[keep], R[keep])
    if len(at) + taken.any() < 5:
        raise BadInput(f"{run.name}: got {len(at)} points (neighbours averaged), expected 5 with R_0; run on")
    return Points(np.log(at), means, count, R_0, weight, A, _floor(R[keep], run.completions)), keep


def _floor(R, completions):
    """The binomial standard deviation of an evaluation, the mean of so many completions (None: unknown) of pass rates
    R (n,). One right and one wrong completion are added to all, so that it is above 0 where all failed."""
    if completions is None:
        return 0.0
    total = completions * len(R)
    mean = (R.mean() * total + 1) / (total + 2)
    return float(np.sqrt(mean * (1 - mean) / completions))


def fit_run(run, method="continuous", *, grid=PAPER_GRID, A=None):
    """`fit` of a Run, or of a pair (compute, reward), with the Run's own start, stop, r0 and epoch. Returns a Fit."""
    if method != "continuous" and (method != "grid" or A is not None):
        raise BadInput(f"got method {method!r}, expected 'continuous', or 'grid' with A not fixed")
    run = _checked(Run(*run))
    points, kept = _taken(run, A)
    best = _grid(points, grid) if method == "grid" else _estimate(points)
    residuals = points.R - sigmoid(np.exp(points.u), *best)
    A, B, C_mid, R_0, ssr = map(float, (*best, residuals**2 @ points.count))
    C = run.compute[kept]
    span = C[0].item(), C[-1].item()
    return Fit(A, B, C_mid, R_0, ssr, span, len(C), len(points.u), points, kept, run)


def _estimate(points):
    """The least-squares A, B, C_mid, R_0 of method "continuous"."""
    cells, S = search(points)
    precise = {"method": "Nelder-Mead", "bounds": LIMITS.T, "options": {"xatol": 1e-8, "fatol": 1e-9}}
    best = minimize(lambda cell: profile(points, shape(points, cell[None])[2]).S[0], cells[S.argmin()], **precise)
    B, log_C_mid, h = shape(points, best.x[None])
    at = profile(points, h)
    return at.A[0], B[0], np.exp(log_C_mid[0]), at.R_0[0]


def refit_B(runs, A):
    """A.5: [Fit] of each run (a Run, or a pair of compute and reward) with A fixed, so that their B can be compared."""
    return [fit_run(run, A=A) for run in runs]


def fit_power_law(compute, reward, start=None, stop=None):
    """A.4: the PowerLaw R_C = A - D / C^B by least squares, A <= 1, B > 0; arguments and BadInput as in `fit`."""
    run = _checked(Run(compute, reward, start, stop))
    keep = _in_range(run, np.zeros(len(run.compute), bool))
    C, R, n = averaged(run.compute[keep], run.reward[keep])
    u = np.log(C)
    B = np.geomspace(B_MIN, 20, 10000)
    centre = n @ u / n.sum()
    x = np.exp(-B[:, None] * (u - centre))  # C^-B with C in units of its geometric mean, against over- and underflow
    level = x @ n / n.sum()
    mean = n @ R / n.sum()
    D = -(x - level[:, None]) @ (n * (R - mean)) / ((x - level[:, None]) ** 2 @ n)
    # Where A would be above 1, D is the best for A = 1; below 0, A = 0 is the best within [0, 1].
    D = np.where(mean + D * level > 1, (x @ (n * (1 - R))) / (x**2 @ n), D)
    D = np.where(mean + D * level < 0, -(x @ (n * R)) / (x**2 @ n), D)
    A = np.clip(mean + D * level, 0.0, 1.0)
    S = (R - A[:, None] + D[:, None] * x) ** 2 @ n
    i = S.argmin()
    return PowerLaw(*map(float, (A[i], B[i], D[i] * np.exp(centre * B[i]), S[i])))


if __name__ == "__main__":  # the command line imports this file, never the other way round
    import runpy

    runpy.run_module("plumbing.fit_cli", run_name="__main__")
