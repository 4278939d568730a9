"""The sigmoidal law of RL compute: fit it, say how sure one can be, forecast with it, say when to stop.

Paper: Eq. 1 and Sec. 2.1 (law), App. A.4 (power law), A.5 (fitting), A.6 and A.8 (reading it), A.7 (robustness),
Table 1, Fig. 7 (efficiency plot).

    R_C - R_0 = (A - R_0) / (1 + (C_mid / C)^B)              Eq. 1
    R_C       = A - D / C^B,  C >= C_0                       A.4: Eq. 1 for C >> C_mid, with D = (A - R_0) C_mid^B
    F(R)      = C_mid^B / ((A - R_0) / (R - R_0) - 1) = C^B  Fig. 7: log F against log C is a line of slope B

    C -> compute, in any unit (GPU-hours, tokens, FLOP, steps)    R_C -> reward, a pass rate in [0, 1]
    A -> A, asymptotic pass rate    B -> B, scaling exponent    C_mid -> C_mid, unit of C    R_0 -> R_0, R at C = 0

Bands (ours, the paper has none), all 90 %:
- A, B, C_mid: valid if Eq. 1 holds. With S the sum of squared residuals, n points and p parameters, the region is
  S <= S_min (1 + t^2 / (n - p)), t the 95 % quantile of Student's t with n - p degrees of freedom. The band is the
  range of the parameter over this region (profile likelihood; it widens where the points do not determine A).
- The curve beyond the points, and forecasts: Eq. 1 is an approximation, and real curves depart from it. Curves of
  Eq. 1 are drawn from their posterior given the points (flat priors on A, R_0 and log noise, wide normal priors on
  log B and log C_mid). Every second curve leaves Eq. 1 at the last fitted point and continues as a line in log C. The
  line's slope is that of the points from a third of the last compute on, with its standard error, times a number drawn
  uniformly from [0, 2]. The band holds the central 90 % of the curves.
Residuals count as independent: no band includes what all evaluations of one run share (its seed, its validation
prompts).

What was tried on the curves of tests/data/forecasts (benchmarks/forecasts.py); coverage is the share of forecasts whose
band holds the measured value. Curves of Eq. 1 alone have a coverage of about one half, and nearly all forecasts that
miss are too low. Other priors, or pooling fits that start at different computes, helped little. Lines alone have the
same coverage and width as both kinds of curve together, with a worse interval score. Lines with the slope of Eq. 1 at
the last point, instead of the points' slope, have less coverage on the public curves. Slopes times 0 to 1.5 or 0.5 to
1.5 have a little less coverage, with narrower bands and about the same score; slopes times 0 to 3 only widen the bands.
It matters little whether half or a third of the curves leave Eq. 1.

Deviation: the default does not use the grid of A.5 (`method="grid"` does). It searches B and C_mid only: given these,
  Eq. 1 is linear in A, limited to (R_0, 1], and R_0, so both are solved for. This keeps the joint fit stable.
Deviation: R_0 is fitted too, unless given: its measurement is as noisy as any other and counts as one more point.
Deviation: the command and `report` leave out the first 10 % of the fitted range (the paper: the first epoch).
Open in the paper: R_0, noise and raw points are not published. R_0 = 0.39 for the 8B runs is inferred (PAPER_R_0 in
  plumbing/figures.py).

Run:   python fit.py runs/NAME -o scaling.png                 python fit.py my.csv --compute hours --reward val/acc
       python fit.py runs/NAME --stop-rule --gain 0.02        python fit.py my.csv --scale percent --cumulative
       python fit.py --paper -o figures/
Test:  pytest tests/test_fit.py tests/test_logs.py; what the bands are worth: python benchmarks/fit_coverage.py (on
       synthetic runs), python benchmarks/forecasts.py (on real ones)
"""

from collections import namedtuple
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from scipy.optimize import leastsq, minimize
from scipy.special import expit, logit, stdtr, stdtrit

PAPER_GRID = (np.linspace(0.450, 0.800, 71), np.linspace(100, 40000, 100))  # A.5: A, and C_mid in GPU-hours
B_MIN, B_MAX = 0.001, 10000  # Eq. 1 is flat at B_MIN and a step at B_MAX, over any range of compute that can be run
JUMP = 20  # a B above it is a jump between two points: the data do not determine it
REACH = np.log(1e4)  # C_mid is searched up to this far (in log C) from the points
EXACT = 1e15  # weight, in evaluations, of an R_0 that is given as exact
MOST = 200  # largest number of points that is fitted; in longer runs neighbours in log C are averaged
PRIOR = np.array([[np.log(1.8), 0], [1, 2]])  # rows: mean, standard deviation; columns: log B, log(C_mid / last C)
DRAWS, TREND = 2000, np.log(3)  # number of curves; the local slope is that of the points up to TREND before the last


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
    namedtuple("Run", "compute reward start stop r0 epoch tasks name unit notes", defaults=[None] * 5 + ["run", "", ()])
):
    """The evaluations of one run. A (compute, reward) pair becomes a Run by `Run(*pair)`.

    compute, reward, start, stop, r0, epoch: as in `fit`    name: of the run    unit: of compute
    tasks: names of the log's columns that hold the pass rate on one task    notes: what the reader of the log left out
    """


class Draws(namedtuple("Draws", "A B C_mid R_0 noise normal slope")):
    """S equally likely curves, each field (S,).

    noise: standard deviation of one evaluation    normal: a standard normal number, for the error of one evaluation
    slope: dR / d log C of the curve beyond the last fitted point, where it leaves Eq. 1; 0 if it follows Eq. 1
    """


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted Eq. 1: compute in the caller's unit, pass rates in [0, 1]."""

    A: float
    B: float
    C_mid: float
    R_0: float
    ssr: float  # sum of squared residuals of the fitted points
    noise: float  # half-width of the 90 % band of one evaluation about the curve
    span: tuple  # first and last fitted compute
    points: int  # fitted evaluations, without those that measure R_0
    averaged: int  # number of points after averaging; equals `points` if none were averaged
    bands: dict  # "A", "B", "C_mid" -> (low, high), 90 %, valid if Eq. 1 holds
    warnings: tuple  # "name: what it means here", each a reason to doubt the forecast
    notes: tuple  # what was left out or averaged, and the share of points in the first epoch
    region: np.ndarray = field(repr=False)  # (M, 4) A, B, C_mid, R_0: M points that span the 90 % region of Eq. 1
    draws: Draws = field(repr=False)
    run: Run = field(repr=False)  # the whole run, also outside `span`, sorted by compute

    def predict(self, C):
        """Pass rate at compute C, any shape."""
        return sigmoid(C, self.A, self.B, self.C_mid, self.R_0)

    def compute_for(self, R):
        """Compute at which the curve reaches pass rate R, any shape: 0 at or below R_0, inf at or above A."""
        share = np.clip((np.asarray(R, float) - self.R_0) / (self.A - self.R_0), 0, 1)
        return self.C_mid * np.exp(logit(share) / self.B)

    def curves(self, C):
        """Pass rates (..., S) of the S curves of `draws` at compute C, any shape (...)."""
        C, draws, last = np.asarray(C, float)[..., None], self.draws, self.span[1]
        followed = np.where(draws.slope == 0, C, np.minimum(C, last))
        left = draws.slope * np.log(np.maximum(C / last, 1))
        return np.clip(sigmoid(followed, *draws[:4]) + left, 0, 1)

    def band(self, C, mean_of=np.inf):
        """90 % band (low, high) at C, any shape, of the mean of `mean_of` evaluations there (inf: of the curve itself).

        Widened where needed, so that it always holds `predict(C)`.
        """
        values = self.curves(C) + self.draws.noise * self.draws.normal / np.sqrt(mean_of)
        (low, high), centre = np.quantile(np.clip(values, 0, 1), (0.05, 0.95), axis=-1), self.predict(C)
        return np.minimum(low, centre), np.maximum(high, centre)


class PowerLaw(namedtuple("PowerLaw", "A B D ssr")):
    """A fitted R_C = A - D / C^B (A.4); D in (unit of C)^B, ssr the sum of squared residuals."""

    def predict(self, C):
        """Pass rate at compute C > 0, any shape."""
        return self.A - self.D * np.asarray(C, float) ** -self.B


# ---- Fitting ----


class _Points(namedtuple("_Points", "u R count R_0 weight A")):
    """What is fitted: u = log C, R, and count = how many evaluations each point is the mean of, each (n,); R_0 as
    measured or given, and its weight (in evaluations); A if the caller fixed it, else None."""


def averaged(C, R):
    """At most MOST points from C > 0 (ascending) and R, each (n,): C, R and how many evaluations each is the mean of.

    If there are more than MOST, neighbours in log C are averaged: C geometrically, R arithmetically."""
    if len(C) <= MOST:
        return C, R, np.ones(len(C))
    u = np.log(C)
    cell = np.minimum((MOST * (u - u[0]) / (u[-1] - u[0])).astype(int), MOST - 1)
    count, u, R = (np.bincount(cell, x, MOST) for x in (np.ones(len(C)), u, R))
    full = count > 0
    return np.exp(u[full] / count[full]), R[full] / count[full], count[full]


def _shape(points, cells):
    """B (K,), log C_mid (K,) and h (K, n) of K cells (K, 2) = (log B, v).

    v in [-1, 1] places C_mid: -1 before all points, 1 after them. h = (A - R_C) / (A - R_0) is the share of the gain
    that is still to come at each point.
    """
    B, half = np.exp(cells[:, 0]), np.ptp(points.u) / 2
    reach = half + np.minimum(25 / B, REACH)  # C_mid further out changes no point by more than e^-25 of the gain
    log_C_mid = points.u.min() + half + cells[:, 1] * reach
    return B, log_C_mid, expit(B[:, None] * (log_C_mid[:, None] - points.u))


class _Profile(namedtuple("_Profile", "A R_0 S low high free curvature base follow weight")):
    """The best A and R_0 for each of K shapes (pairs of B and C_mid), and how S grows away from them; each field (K,).

    S: the weighted sum of squared residuals at A, R_0    low, high: limits of A    free: the best A without limits
    curvature: d2S/dA2 / 2 where R_0 is the best for each A    base + follow * A: the best R_0 for A, without limits
    weight: d2S/dR_0^2 / 2 at fixed A
    """

    def R_0_for(self, A):
        """The best R_0 (K,) within 0 <= R_0 <= A for given A (K,)."""
        return np.clip(self.base + self.follow * A, 0, A)


def _squares(points, h, A, R_0):
    """The weighted sum of squared residuals S (K,) for h (K, n), A (K,) and R_0 (K,)."""
    residuals = points.R - A[:, None] + (A - R_0)[:, None] * h
    return residuals**2 @ points.count + points.weight * (R_0 - points.R_0) ** 2


def _profile(points, h):
    """The `_Profile` for h (K, n): R = A (1 - h) + R_0 h is linear in A and R_0, so both are solved for."""
    n, R = points.count, points.count * points.R
    hh, gh, pull = h**2 @ n + points.weight, ((1 - h) * h) @ n, h @ R + points.weight * points.R_0
    curvature = np.maximum((1 - h) ** 2 @ n - gh**2 / hh, 1e-30)
    free, flat = ((1 - h) @ R - gh * pull / hh) / curvature, pull / (hh + gh)  # flat: best if A = R_0
    low, high = np.full((2, len(h)), 1.0 if points.A is None else points.A)
    low = flat + 1e-6 * (1 - flat) if points.A is None else low
    at = _Profile(np.clip(free, low, high), None, None, low, high, free, curvature, pull / hh, -gh / hh, hh)
    R_0 = at.R_0_for(at.A)
    return at._replace(R_0=R_0, S=_squares(points, h, at.A, R_0))


LIMITS = np.array([[np.log(B_MIN), -1], [np.log(B_MAX), 1]])  # of a cell (log B, v): least, greatest


def _search(points, factor=1.0, keep=200, levels=4):
    """Search the whole range of B and C_mid. Returns cells (K, 2) = (log B, v) and their S (K,).

    The first level is a coarse grid; each further level splits the best `keep` cells in nine. The search ends at the
    first level with 400 cells within factor x S_min, at the latest after `levels` levels.
    """
    cells = np.stack(np.meshgrid(np.linspace(*LIMITS[:, 0], 45), np.linspace(*LIMITS[:, 1], 81)), -1).reshape(-1, 2)
    size, around = np.ptp(LIMITS, 0) / [44, 80], np.stack(np.meshgrid([-1, 0, 1], [-1, 0, 1]), -1).reshape(9, 2)
    for level in range(levels):
        S = _profile(points, _shape(points, cells)[2]).S
        if (S <= factor * S.min()).sum() >= 400 or level == levels - 1:
            return cells, S
        best, size = cells[np.argsort(S)[:keep]], size / 3
        cells = np.clip((best[:, None] + around * size).reshape(-1, 2), *LIMITS)


def _region(points, factor):
    """Points (M, 4) = A, B, C_mid, R_0 that span the region S <= factor * S_min."""
    cells, S = _search(points, factor, keep=800, levels=12)
    cells, limit = cells[S <= factor * S.min()], factor * S.min()
    B, log_C_mid, h = _shape(points, cells)
    at = _profile(points, h)
    reach = np.sqrt(np.maximum(limit - at.S + at.curvature * (at.A - at.free) ** 2, 0) / at.curvature)
    room = np.sqrt(np.maximum(limit - at.S, 0) / at.weight)
    ends = [(at.A, np.clip(at.R_0 + move, 0, at.A)) for move in (-room, room)]  # R_0 moves, A stays
    ends += [(A, at.R_0_for(A)) for A in np.clip([at.free - reach, at.free + reach], at.low, at.high)]
    return np.concatenate([np.column_stack([A, B, np.exp(log_C_mid), R_0]) for A, R_0 in ends])


def _slopes(points, random, size):
    """Draw slopes dR / d log C (size,) of a line through the points from a third of the last compute on.

    The line always takes in the last 4 different computes. A draw is the least-squares slope plus its standard error
    times a number from Student's t.
    """
    since = min(points.u[-1] - TREND, np.unique(points.u)[-4:][0])
    u, R, n = (x[points.u >= since] for x in (points.u, points.R, points.count))
    x = u - (n @ u) / n.sum()
    xx, rest = n @ x**2, R - (n @ R) / n.sum()
    slope, freedom = (n * x) @ rest / xx, len(u) - 2
    error = np.sqrt(n @ (rest - slope * x) ** 2 / freedom / xx)
    return slope + error * random.standard_t(freedom, size)


class _Ceiling(namedtuple("_Ceiling", "centre width side tail share")):
    """The distribution of A given each of K shapes (B, C_mid); each field (K,).

    A = centre + side * width * x, with x from Student's t. A lies within its limits where the cumulative probability
    of x is between `tail` and `tail + share`."""

    def draw(self, i, freedom, random):
        """One A for each index in i (a shape); rounding may leave it just outside its limits."""
        x = stdtrit(freedom, self.tail[i] + self.share[i] * random.random(len(i)))
        return self.centre[i] + self.side[i] * self.width[i] * x


def _ceiling(at, S, freedom):
    """The `_Ceiling` of shapes whose `_Profile` is `at` and whose sum of squares at A = at.free is S (K,)."""
    # Mirrored (side = -1) where A lies in the upper tail: stdtr is precise in the lower one, near 1 it is not.
    width, side = np.sqrt(S / freedom / at.curvature), np.where(at.free < at.low, -1, 1)
    ends = np.sort([side * (end - at.free) / width for end in (at.low - 1e-9, at.high + 1e-9)], axis=0)
    tail, upper = stdtr(freedom, ends)
    return _Ceiling(at.free, width, side, tail, np.maximum(upper - tail, 1e-300))


def _draws(points, cells=41):
    """The `Draws`: curves from the posterior of Eq. 1; every second one leaves Eq. 1 at the last point.

    Priors: flat on A, R_0 and log noise, PRIOR on log B and log C_mid. B and C_mid are drawn from a grid of `cells`
    by `cells`, narrowed twice to where their probability lies. Given these, A has a truncated Student's t; given A and
    the noise too, R_0 is normal.
    """
    random, (mean, deviation), last, freedom = np.random.default_rng(0), PRIOR, points.u[-1], len(points.u) - 1
    low, high = mean - 3.5 * deviation, mean + 3.5 * deviation
    for _ in range(3):
        shapes = np.stack(np.meshgrid(*np.linspace(low, high, cells).T), -1).reshape(-1, 2)
        h = expit(np.exp(shapes[:, :1]) * (shapes[:, 1:] + last - points.u))
        at = _profile(points, h)
        S = np.maximum(_squares(points, h, at.free, at.base + at.follow * at.free), 1e-10)
        ceiling = _ceiling(at, S, freedom)
        weight = np.log(ceiling.share) - freedom / 2 * np.log(S) - np.log(at.curvature * at.weight) / 2
        weight -= (((shapes - mean) / deviation) ** 2).sum(1) / 2
        weight = np.exp(weight - weight.max())
        step, likely = (high - low) / (cells - 1), shapes[weight > 1e-4]
        low, high = likely.min(0) - step, likely.max(0) + step
    i = random.choice(len(shapes), DRAWS, p=weight / weight.sum())
    A = np.clip(ceiling.draw(i, freedom, random), at.low[i], at.high[i])
    noise = np.sqrt((S[i] + at.curvature[i] * (A - at.free[i]) ** 2) / random.chisquare(freedom + 1, DRAWS))
    R_0 = at.base[i] + at.follow[i] * A + noise / np.sqrt(at.weight[i]) * random.normal(size=DRAWS)
    slope = _slopes(points, random, DRAWS) * random.uniform(0, 2, DRAWS) * (np.arange(DRAWS) % 2)
    B, C_mid = np.exp(shapes[i] + (0, last)).T
    return Draws(A, B, C_mid, np.clip(R_0, 0, A), noise, random.normal(size=DRAWS), slope)


def _grid(points, grid):
    """A.5 to the letter: for every pair (A, C_mid), fit B alone from 1, the default start of `curve_fit`.

    Returns A, B, C_mid, R_0 of the pair with the least sum of squares.
    """
    R_0, weight, best = points.R_0, np.sqrt(points.count), (np.inf, np.nan, np.nan, np.nan)
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
    C, last = run.compute, run.compute.max(initial=0.0)
    high = last if run.stop is None else min(last, _amount(run.stop, last, "stop (--fit-to)"))
    low = _amount(run.start or 0.0, high, "start (--fit-from)")
    keep = (C > 0) & (C >= low) & (C <= high) & ~taken
    points, values = keep.sum() + taken.any(), len(np.unique(C[keep]))
    if points < 5 or values < 3:
        got = f"{run.name}: got {points} points (R_0 counts) at {values} values of compute from {low:g} to {high:g}"
        raise BadInput(f"{got}, expected 5 points or more at 3 or more values; widen the range or run on")
    return keep


def _notes(run, count, averaged_to, epoch):
    """The run's notes, and those on the `count` fitted points, which lie at these epochs (count,)."""
    early = (epoch < 1).mean()
    known = {
        f"averaged to {averaged_to} points, neighbours in log C": averaged_to < count,
        f"{early:.0%} of the fitted points lie in the first epoch, which the paper leaves out": early > 0,
    }
    return *run.notes, *(text for text, holds in known.items() if holds)


def _warnings(law, points, edges, assumed):
    """The warnings of the Fit `law`. assumed: no measurement of R_0, so the first point stands for it.

    edges: parameter name -> the values searched, ascending; its first and last are equal if the caller fixed it.
    """
    R, (low, high), (_, drop, limit) = points.R, law.bands["A"], peak(points.R)
    on = [n for n, x in edges.items() if x[0] < x[-1] and np.isclose(getattr(law, n), (x[0], x[-1]), rtol=3e-6).any()]
    settled = law.A == 1 and low >= 0.9 and law.C_mid < law.span[1]  # then A = 1 is a true ceiling
    on = [n for n in on if not (n == "A" and settled)]
    below, typical = (R < points.R_0).mean(), np.median(R)
    known = {
        f"on a bound: {', '.join(f'{n} = {getattr(law, n):.4g}' for n in on)}, an end of the range searched": on,
        f"outside Eq. 1: A = {law.A:.4g}, R_0 = {law.R_0:.4g}, B = {law.B:.4g}": law.A <= law.R_0 or law.B <= 0,
        f"most points lie below R_0: {points.R_0:.4g}, their median: {typical:.4g}; give R_0 with --r0": below > 0.5,
        f"B is not determined: {law.B:.4g} is a jump between two points; A rests on the points after it": law.B > JUMP,
        f"reward falls after a peak: by {drop:.3f}; Eq. 1 can only rise, so the forecast does not hold": drop > limit,
        f"not yet forecastable: A is anywhere in [{low:.2f}, {high:.2f}]": high - low > 0.2,
        f"R_0 assumed: no point at C = 0 and no r0, so the first point, {points.R_0:.4g}, is taken for it": assumed,
    }
    return tuple(text for text, holds in known.items() if holds)


def peak(R):
    """(last, drop, limit) of the highest max(3, n/8) points in a row of the pass rates R (n,), n >= 2, in order.

    last: index of their last point; drop: by how much the mean of equally many points at the end lies below theirs;
    limit: the drop that noise could cause. A curve falls after its peak if drop > limit.

    >>> peak(np.array([0.0, 0.2, 0.4, 0.6, 0.6, 0.6, 0.3, 0.3, 0.3]))[0]
    5
    """
    mean = np.convolve(R, np.ones(width := min(len(R), max(3, len(R) // 8))) / width, "valid")
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
    """The `_Points` of a run, the mask (n,) of its fitted evaluations, and whether the first point stands for R_0.

    Raises BadInput for too few points, and for R_0 outside [0, A).
    """
    C, R, r0, high = run.compute, run.reward, run.r0, 1.0 if A is None else A
    taken = (C == 0 if (C == 0).any() else np.arange(len(C)) == 0) & (r0 is None)
    keep, assumed = _in_range(run, taken), bool((C[taken] > 0).any())
    R_0, weight = (float(R[taken].mean()), float(taken.sum())) if r0 is None else (float(r0), EXACT)
    least = R_0 if A is not None or r0 is not None else min(R_0, R[keep].min())
    if not 0 <= least < high:
        bounds = f"expected 0 <= R_0 < A <= {high:g}"
        raise BadInput(f"{run.name}: got R_0 = {least:g}, {bounds}: otherwise there is nothing to gain")
    at, means, count = averaged(C[keep], R[keep])
    if len(at) + taken.any() < 5:
        raise BadInput(f"{run.name}: got {len(at)} points (neighbours averaged), expected 5 with R_0; run on")
    return _Points(np.log(at), means, count, R_0, weight, A), keep, assumed


def fit_run(run, method="continuous", *, grid=PAPER_GRID, A=None):
    """`fit` of a Run, or of a pair (compute, reward), with the Run's own start, stop, r0 and epoch. Returns a Fit."""
    if method != "continuous" and (method != "grid" or A is not None):
        raise BadInput(f"got method {method!r}, expected 'continuous', or 'grid' with A not fixed")
    run = _checked(Run(*run))
    points, keep, assumed = _taken(run, A)
    best = _grid(points, grid) if method == "grid" else _estimate(points)
    freedom = len(points.u) - (3 if A is None else 2)
    ssr = ((points.R - sigmoid(np.exp(points.u), *best)) ** 2) @ points.count
    S, quantile = ssr + points.weight * (best[3] - points.R_0) ** 2, stdtrit(freedom, 0.95)
    region = np.concatenate([[best], _region(points, 1 + quantile**2 / freedom)])
    bands = dict(zip(("A", "B", "C_mid"), zip(region.min(0).tolist(), region.max(0).tolist())))
    numbers, C = map(float, (*best, ssr, quantile * np.sqrt(S / freedom))), run.compute[keep]
    notes = _notes(run, len(C), len(points.u), run.epoch[keep])
    span, sizes = (C[0].item(), C[-1].item()), (len(C), len(points.u))
    law = Fit(*numbers, span, *sizes, bands, (), notes, region, _draws(points), run)
    edges = {"A": (law.R_0, 1.0) if A is None else (A, A), "B": (B_MIN, B_MAX)}
    edges = edges if method == "continuous" else dict(zip(("A", "C_mid"), grid))
    return replace(law, warnings=_warnings(law, points, edges, assumed))


def _estimate(points):
    """The least-squares A, B, C_mid, R_0 of method "continuous"."""
    cells, S = _search(points)
    precise = {"method": "Nelder-Mead", "bounds": LIMITS.T, "options": {"xatol": 1e-8, "fatol": 1e-9}}
    best = minimize(lambda cell: _profile(points, _shape(points, cell[None])[2]).S[0], cells[S.argmin()], **precise)
    B, log_C_mid, h = _shape(points, best.x[None])
    at = _profile(points, h)
    return at.A[0], B[0], np.exp(log_C_mid[0]), at.R_0[0]


def fit_power_law(compute, reward, start=None, stop=None):
    """A.4: the PowerLaw R_C = A - D / C^B by least squares, A <= 1, B > 0; arguments and BadInput as in `fit`."""
    run = _checked(Run(compute, reward, start, stop))
    keep = _in_range(run, np.zeros(len(run.compute), bool))
    C, R, n = averaged(run.compute[keep], run.reward[keep])
    u, B, total = np.log(C), np.geomspace(B_MIN, 20, 10000), n.sum()
    centre = n @ u / total
    x = np.exp(-B[:, None] * (u - centre))  # C^-B with C in units of its geometric mean, against over- and underflow
    level, rest = x @ n / total, R - n @ R / total
    D = -(x - level[:, None]) @ (n * rest) / ((x - level[:, None]) ** 2 @ n)
    # Where A would be above 1, D is the best for A = 1.
    D = np.where(n @ R / total + D * level > 1, (x @ (n * (1 - R))) / (x**2 @ n), D)
    A = np.minimum(n @ R / total + D * level, 1.0)
    S = (R - A[:, None] + D[:, None] * x) ** 2 @ n
    i = S.argmin()
    return PowerLaw(*map(float, (A[i], B[i], D[i] * np.exp(centre * B[i]), S[i])))


# ---- Forecasts and comparisons ----


def stop_rule(law, gain=0.02):
    """Is it worth going on to twice the last fitted compute?

    P is the probability that the pass rate rises by less than `gain` on the way. Returns (P, verdict): "stop" if
    P >= 0.9, "go on" if P <= 0.1, else "cannot tell yet" and when to look again.
    """
    last = law.span[1]
    P = float((law.curves(2 * last) - law.curves(last) < gain).mean())
    unclear = f"cannot tell yet; look again at C = {1.5 * last:.4g}"
    return P, "stop" if P >= 0.9 else "go on" if P <= 0.1 else unclear


def fitted(run, **changes):
    """[Fit] of the run with these fields replaced, or [] if it cannot be fitted (too few points, say)."""
    with suppress(BadInput):
        return [fit_run(run._replace(**changes))]
    return []


def forecast(law, last=1):
    """Compare a law that was fitted to a part of its run with the run's end, the mean of the `last` evaluations.

    Returns a dict: A, A_low, A_high; C (mean compute of these evaluations); forecast and its 90 % band low, high for
    such a mean; measured; error = forecast - measured; points (fitted ones); inside (is measured in the band?).
    """
    C, measured = law.run.compute[-last:].mean(), law.run.reward[-last:].mean()
    value, (low, high) = law.predict(C), law.band(C, mean_of=last)
    names = ("A", "A_low", "A_high", "C", "forecast", "low", "high", "measured", "error")
    row = zip(names, map(float, (law.A, *law.bands["A"], C, value, low, high, measured, value - measured)))
    return dict(row) | {"points": law.points, "inside": bool(low <= measured <= high)}


def forecast_error(run, cuts=(10, 20, 30, 50, 70), last=5):
    """How early can the end of a run be forecast? One `forecast` from the first part of its compute for each of `cuts`.

    cuts: per cent of the compute. Returns a list of `forecast`'s dicts, each with "run" and "share" added. A cut is
    left out if too few points lie before it, or if one of the evaluations to be forecast does.
    """
    laws = [(cut, law) for cut in cuts for law in fitted(run, stop=f"{cut}%") if law.span[1] < law.run.compute[-last]]
    return [{"run": run.name, "share": cut / 100} | forecast(law, last) for cut, law in laws]


def refit_B(runs, A):
    """A.5: [Fit] of each run (a Run, or a pair of compute and reward) with A fixed, so that their B can be compared."""
    return [fit_run(run, A=A) for run in runs]


def compare(laws, same_A=0.02):
    """A.5: rank two or more fits by A. Those within `same_A` of the highest A are refitted with A fixed to their mean
    and ranked by B.

    They stay ranked by A if this mean is not above the R_0 of each: a run that learned nothing has no B.
    Returns the fits, best first, and one sentence: which run scales better, and whether the data can tell. With x and y
    the A or B of the two best, the 90 % interval of x - y is, from their bands (MOVER),
    [x - y - hypot(x - x_low, y_high - y), x - y + hypot(x_high - x, y - y_low)].
    """
    laws, name, why = sorted(laws, key=lambda law: -law.A), "A", f"without a common A (within {same_A}, above each R_0)"
    close = [law for law in laws if laws[0].A - law.A <= same_A]
    A = float(np.mean([law.A for law in close]))
    if len(close) > 1 and A > max(law.R_0 for law in close):
        laws[: len(close)] = sorted(refit_B([law.run for law in close], A), key=lambda law: -law.B)
        name, why = "B", f"with a common A = {A:.3f}"
    (x, x_low, x_high), (y, y_low, y_high) = ((getattr(law, name), *law.bands[name]) for law in laws[:2])
    low, high = x - y - np.hypot(x - x_low, y_high - y), x - y + np.hypot(x_high - x, y - y_low)
    tell = "and the data can tell" if low > 0 else "but the data cannot tell"
    better = f"{laws[0].run.name} scales better than {laws[1].run.name}, {tell}: {why}, its {name} is higher by"
    return laws, f"{better} {x - y:.3f} (90 % interval {low:.3f} to {high:.3f}, spread of seeds not counted)."


if __name__ == "__main__":
    from plumbing.fit_cli import main

    main()
