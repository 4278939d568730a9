"""The sigmoidal law of RL compute: fit it, say how sure one can be, forecast with it, draw it.

Paper: Eq. 1 and Sec. 2.1 (law), App. A.4 (power law), A.5 (fitting), A.6 and A.8 (reading it), A.7 (robustness),
Table 1, Fig. 7 (efficiency plot).

    R_C - R_0 = (A - R_0) / (1 + (C_mid / C)^B)              Eq. 1
    R_C       = A - D / C^B,  C >= C_0                       A.4: Eq. 1 for C >> C_mid, with D = (A - R_0) C_mid^B
    F(R)      = C_mid^B / ((A - R_0) / (R - R_0) - 1) = C^B  Fig. 7: log F against log C is a line of slope B

    C -> compute, in any unit (GPU-hours, tokens, FLOP, steps)    R_C -> reward, a pass rate in [0, 1]
    A -> A, asymptotic pass rate    B -> B, scaling exponent    C_mid -> C_mid, unit of C    R_0 -> R_0, R at C = 0

Bands (ours, the paper has none): with S the sum of squared residuals, n points and p parameters, the 90 % region is
S <= S_min (1 + t^2 / (n - p)), t the 95 % quantile of Student's t with n - p degrees of freedom. The band of A, B,
C_mid or the curve at C is the range of that quantity over the region (profile likelihood, which widens where A is not
pinned). A measured R_0 has noise too, so for the bands it may move like any other point. Residuals count as
independent: what all evaluations of one run share (its seed, its validation prompts) is in no band.

Deviation: the default has no grid. B and C_mid are searched, A in (R_0, 1] is linear given them and solved for, which
  keeps the joint fit stable. `method="grid"` is A.5.
Deviation: the command and `report` leave out the first 10 % of the fitted range (the paper: the first epoch).
Open in the paper: R_0, noise and raw points are not published. R_0 = 0.39 for the 8B runs is inferred (PAPER_R_0).
Open in the paper: whether R_0 is fitted. Here it is the measured value.

Run:   python fit.py runs/NAME -o scaling.png                 python fit.py my.csv --compute hours --reward val/acc
       python fit.py --paper -o figures/                      python fit.py --ours -o figures/
Test:  pytest tests/test_fit.py; coverage of the bands: python benchmarks/fit_coverage.py
"""

import argparse
import csv
import json
import warnings
from collections import namedtuple
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from scipy.optimize import OptimizeWarning, curve_fit, least_squares
from scipy.special import expit, logit, stdtrit

PAPER_GRID = (np.linspace(0.450, 0.800, 71), np.linspace(100, 40000, 100))  # A.5: A, and C_mid in GPU-hours
PAPER_R_0 = 0.39  # ours: at this R_0 the published bs2048 fit gives back the power-law asymptotes of A.4
TABLE_1 = {  # A, B, C_mid (GPU-hours)
    "ScaleRL": (0.610, 1.92, 2542), "ScaleRL-32k": (0.645, 1.89, 11272), "ScaleRL-8gen": (0.585, 2.44, 2542),
    "ScaleRL-24gen": (0.590, 2.22, 3054), "ScaleRL-32gen": (0.595, 2.07, 2936), "ScaleRL-Scout": (0.710, 1.65, 4242),
    "ScaleRL-bs512": (0.605, 1.77, 2818), "ScaleRL-bs2048": (0.645, 1.70, 10909),
    "math+code, math": (0.595, 2.05, 2896), "math+code, code": (0.615, 1.09, 1675),
}  # fmt: skip
A_7 = {(1500, 50000): (1.70, 0.645), (0, 100000): (1.56, 0.655), (0, 50000): (1.7, 0.645), (5000, 50000): (1.67, 0.645)}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe-Ito: colour-blind safe
FORECAST = ("share", "A", "A_low", "A_high", "C", "forecast", "low", "high", "measured", "error", "points", "inside")

B_MIN, B_MAX = 0.001, 10000  # a constant and a step over any range of compute that can be run
EXACT = 1e15  # weight, in evaluations, of an R_0 without noise


class BadInput(ValueError):
    """What the caller gave cannot be read or fitted; one line: what was got, what was expected, the likely cause."""


# ---- The law ----


def sigmoid(C, A, B, C_mid, R_0):
    """Eq. 1: pass rate at compute C >= 0 (unit of C_mid); all arguments broadcast.

    >>> print(round(sigmoid(2542, A=0.61, B=1.92, C_mid=2542, R_0=0.39), 3))  # half of the gain
    0.5
    """
    with np.errstate(divide="ignore"):
        return R_0 + (A - R_0) * expit(B * (np.log(C) - np.log(C_mid)))


def f_transform(R, A, B, C_mid, R_0):
    """Fig. 7: F(R) = C^B, in (unit of C_mid)^B; for R_0 < R < A."""
    return C_mid**B / ((A - R_0) / (np.asarray(R) - R_0) - 1)


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
    points: int  # fitted, R_0's not counted
    bands: dict  # "A", "B", "C_mid" -> (low, high), 90 %; empty if not asked for
    warnings: tuple  # "name: what it means here"
    region: np.ndarray = field(repr=False)  # (S, 4) A, B, C_mid, R_0: spans the 90 % region

    def predict(self, C):
        """Pass rate at compute C, any shape."""
        return sigmoid(C, self.A, self.B, self.C_mid, self.R_0)

    def compute_for(self, R):
        """Compute at which the curve reaches pass rate R, any shape: 0 at or below R_0, inf at or above A."""
        share = np.clip((np.asarray(R, float) - self.R_0) / (self.A - self.R_0), 0, 1)
        return self.C_mid * np.exp(logit(share) / self.B)

    def band(self, C, mean_of=np.inf):
        """90 % band (low, high) at C, any shape: of the mean of `mean_of` evaluations there (inf: of the curve)."""
        curves = sigmoid(np.asarray(C, float)[..., None], *self.region.T)
        low, high, centre, noise = curves.min(-1), curves.max(-1), self.predict(C), self.noise / np.sqrt(mean_of)
        return centre - np.hypot(centre - low, noise), centre + np.hypot(high - centre, noise)


class PowerLaw(namedtuple("PowerLaw", "A B D ssr")):
    """A fitted R_C = A - D / C^B (A.4); D in (unit of C)^B, ssr the sum of squared residuals."""

    def predict(self, C):
        """Pass rate at compute C > 0, any shape."""
        return self.A - self.D * np.asarray(C, float) ** -self.B


class Run(namedtuple("Run", "compute reward r0 start stop name unit epoch", defaults=(None,) * 3 + ("run", "", None))):
    """The evaluations of one run; a plain (compute, reward) pair is one too: `Run(*pair)`.

    compute, reward, epoch (n,) or None, and r0 as in `fit`; start, stop: the range to fit, in the unit of compute.
    """


# ---- Fitting ----


class _Points(namedtuple("_Points", "u R R_0 weight low high")):
    """What is fitted: u (n,) = log C, R (n,), R_0 and its weight in evaluations; low <= A <= high."""


def _shape(points, log_B, v):
    """B, log C_mid (K,), and h (K, n) = 1 - rise. v in [-1, 1] moves C_mid from before all points to after them."""
    B, half = np.exp(log_B), np.ptp(points.u) / 2
    log_C_mid = points.u.min() + half + v * np.minimum(half + 25 / B, 500)  # e^-25: no rise; e^500: C_mid stays finite
    return B, log_C_mid, expit(B[:, None] * (log_C_mid[:, None] - points.u))


def _profile(points, h):
    """For each h (K, n) the best A within its limits and R_0: R = A (1 - h) + R_0 h is linear in both.

    Returns A, R_0, S, then what tells how far A may move: its best value without limits, d2S/dA2 / 2 (R_0 following),
    dR_0/dA and d2S/dR_0^2 / 2; each (K,).
    """
    hh, gh = (h * h).sum(1) + points.weight, ((1 - h) * h).sum(1)
    pull = h @ points.R + points.weight * points.R_0
    curvature = np.maximum(((1 - h) ** 2).sum(1) - gh**2 / hh, 1e-30)
    free = ((1 - h) @ points.R - gh * pull / hh) / curvature
    A = np.clip(free, points.low, points.high)
    R_0 = (pull - A * gh) / hh
    S = ((points.R - A[:, None] + (A - R_0)[:, None] * h) ** 2).sum(1) + points.weight * (R_0 - points.R_0) ** 2
    return A, R_0, S, free, curvature, -gh / hh, hh


def _search(points, factor=1.0, keep=200, levels=4):
    """All over B and C_mid: cells (K, 2) = log B, v and their S (K,), so fine that many have S <= factor * the least S.

    From a coarse grid the best cells are split in nine, level by level.
    """
    low, top = np.array([np.log(B_MIN), -1]), np.array([np.log(B_MAX), 1])
    cells = np.stack(np.meshgrid(np.linspace(low[0], top[0], 45), np.linspace(-1, 1, 81)), -1).reshape(-1, 2)
    size, around = (top - low) / [44, 80], np.stack(np.meshgrid([-1, 0, 1], [-1, 0, 1]), -1).reshape(9, 2)
    for level in range(levels):
        S = _profile(points, _shape(points, *cells.T)[2])[2]
        if (S <= factor * S.min()).sum() >= 400 or level == levels - 1:
            return cells, S
        best, size = cells[np.argsort(S)[:keep]], size / 3
        cells = np.clip((best[:, None] + around * size).reshape(-1, 2), low, top)


def _region(points, factor):
    """Points (S, 4) = A, B, C_mid, R_0 that span the region S <= factor * S_min."""
    cells, S = _search(points, factor, keep=800, levels=12)
    cells, limit = cells[S <= factor * S.min()], factor * S.min()
    B, log_C_mid, h = _shape(points, *cells.T)
    A, R_0, S, free, curvature, slope, hh = _profile(points, h)
    reach = np.sqrt(np.maximum(limit - S + curvature * (A - free) ** 2, 0) / curvature)
    ends, room = np.clip([free - reach, free + reach], points.low, points.high), np.sqrt(np.maximum(limit - S, 0) / hh)
    A, R_0 = np.stack([A, A, *ends]), np.stack([R_0 - room, R_0 + room, *(R_0 + slope * (ends - A))])
    return np.stack(np.broadcast_arrays(A, B, np.exp(log_C_mid), R_0), -1).reshape(-1, 4)


def _grid(C, R, R_0, grid):
    """A.5 to the letter: for every pair (A, C_mid) fit B alone by `curve_fit` from its default start; the best pair."""
    best = (np.inf, np.nan, np.nan, np.nan)
    # The warnings are about the covariance of B, which A.5 does not use.
    with warnings.catch_warnings(action="ignore", category=OptimizeWarning):
        for A, C_mid in ((A, C_mid) for A in grid[0] for C_mid in grid[1]):
            x = np.log(C / C_mid)
            try:
                (B,), _ = curve_fit(lambda x, B: R_0 + (A - R_0) * expit(B * x), x, R)
            except RuntimeError:  # no convergence from the default start: this pair has no fit
                continue
            best = min(best, (((R - R_0 - (A - R_0) * expit(B * x)) ** 2).sum(), A, B, C_mid))
    return best[1:]


def wide_grid(compute):
    """A.5's grid for any unit: A in steps of 0.005 up to 1, C_mid 100 values from the least compute to 10x the most."""
    return np.linspace(0.005, 1, 200), np.linspace(min(C for C in compute if C > 0), 10 * max(compute), 100)


def _checked(compute, reward):
    """Both as arrays (n,) in order of compute, and that order; BadInput if they are not compute and pass rates."""
    C, R = np.asarray(compute, float), np.asarray(reward, float)
    if C.ndim != 1 or C.shape != R.shape:
        raise BadInput(f"got compute of shape {C.shape} and reward of shape {R.shape}, expected lists of one length")
    wrong = ~(np.isfinite(C + R) & (C >= 0) & (abs(R) <= 1.5))
    if wrong.any():
        got = f"point {wrong.argmax() + 1} has compute {C[wrong][0]:g} and reward {R[wrong][0]:g}"
        raise BadInput(f"{got}, expected numbers, C >= 0 and a pass rate; not measured, a logarithm, per cent?")
    order = np.argsort(C, kind="stable")
    return C[order], R[order], order


def _in_range(C, start, stop, taken):
    """Mask (n,) of what to fit: start <= C <= stop, C > 0, not `taken` for R_0; BadInput if that is too little."""
    low, high = start or 0.0, np.inf if stop is None else stop
    keep = (C > 0) & (C >= low) & (C <= high) & ~taken
    points, values = keep.sum() + taken.any(), len(np.unique(C[keep]))
    if points < 5 or values < 3:
        got = f"{points} points (R_0 counts) at {values} values of compute from {low:g} to {high:g}"
        raise BadInput(f"got {got}, expected 5 points or more at 3 or more values; widen the range or run on")
    return keep


def _drop_after_peak(R):
    """How far R (n,) ends below its highest stretch of n/8 points (at least 3); 0 if noise could do that."""
    mean = np.convolve(R, np.ones(width := max(3, len(R) // 8)) / width, "valid")
    noise = np.median(abs(np.diff(R))) / 0.954  # the median |difference| of two numbers with normal noise 1
    drop = mean.max() - mean[-1]
    return drop if drop > max(0.01, 4 * noise * np.sqrt(2 / width)) else 0.0


def _warnings(law, R, edges, assumed, epoch):
    """The named warnings. edges: name -> (low, high) of the search; without "A" in it, the caller fixed A."""
    drop, (low, high), early = _drop_after_peak(R), law.bands.get("A", (0, 0)), (epoch < 1).mean()
    on = [name for name, ends in edges.items() if np.isclose(getattr(law, name), ends, rtol=1e-6).any()]
    known = {
        f"on a bound: {', '.join('{} of {:.4g} to {:.4g}'.format(n, *edges[n]) for n in on)}; not pinned by data": on,
        f"outside Eq. 1: A = {law.A:.4g}, R_0 = {law.R_0:.4g}, B = {law.B:.4g}": law.A <= law.R_0 or law.B <= 0,
        f"reward falls after a peak: by {drop:.3f}; Eq. 1 can only rise, so the forecast does not hold": drop,
        f"not yet forecastable: A is anywhere in [{low:.2f}, {high:.2f}]": high - low > 0.2 and "A" in edges,
        f"R_0 assumed: nothing at C = 0 and no r0, so the first point, {law.R_0:.4g}, stands for it": assumed,
        f"fit range inside the first epoch: {early:.0%} of its points; the paper leaves that epoch out": early > 0,
    }
    return tuple(text for text, holds in known.items() if holds)


def fit(compute, reward, r0=None, start=None, stop=None, method="continuous", *,
        grid=PAPER_GRID, A=None, epoch=None, bands=True):  # fmt: skip
    """Fit Eq. 1 to the points with start <= C <= stop.

    compute (n,)      C >= 0, any one unit, any order     reward (n,)  pass rates
    r0                pass rate at C = 0, taken as exact; default: the mean of the points at C = 0, with the noise of
                      a measurement, else the first point (warning)
    start, stop       in the unit of compute; default: all points
    method            "continuous": least squares, A in (R_0, 1], B > 0; "grid": A.5
    grid              for "grid": rising values of A and of C_mid; default: the paper's, in GPU-hours; see `wide_grid`
    A                 fixes A; "continuous" only
    epoch (n,)        epochs over the training prompts done at each point, if known; only for a warning
    bands             False leaves them out, which takes a fifth of the time
    Raises BadInput: fewer than 5 points (R_0's included), nan, C < 0, all C equal, no pass rates, R_0 not under A.

    >>> C = np.array([0, 1, 2, 4, 8, 16, 32])
    >>> law = fit(C, sigmoid(C, A=0.8, B=1.5, C_mid=5, R_0=0.2))
    >>> print(f"{law.A:.3f} {law.B:.3f} {law.C_mid:.3f}")
    0.800 1.500 5.000
    """
    C, R, order = _checked(compute, reward)
    taken = (C == 0 if (C == 0).any() else np.arange(len(C)) == 0) & (r0 is None)
    keep, assumed = _in_range(C, start, stop, taken), bool((C[taken] > 0).any())
    R_0, weight = (float(R[taken].mean()), float(taken.sum())) if r0 is None else (float(r0), EXACT)
    low, high = (R_0 + 1e-6 * (1 - R_0), 1.0) if A is None else (A, A)
    if not R_0 < high:
        raise BadInput(f"got R_0 = {R_0:g}, expected less than A <= {high:g}: nothing is left to gain")
    C, R, freedom = C[keep], R[keep], int(keep.sum()) - (3 if A is None else 2)
    points = _Points(np.log(C), R, R_0, EXACT, low, high)
    best, edges = _estimate(points, C, method, grid)
    ssr, quantile = ((R - sigmoid(C, *best, R_0)) ** 2).sum(), stdtrit(freedom, 0.95)
    spans = [_region(points._replace(weight=weight), 1 + quantile**2 / freedom)] if bands else []
    region = np.concatenate([[[*best, R_0]], *spans])
    ranges = zip(("A", "B", "C_mid"), zip(region.min(0).tolist(), region.max(0).tolist()))
    numbers = map(float, (*best, R_0, ssr, quantile * np.sqrt(ssr / freedom)))
    law = Fit(*numbers, (C[0].item(), C[-1].item()), len(C), dict(ranges) if bands else {}, (), region)
    epoch = np.full(len(order), np.inf) if epoch is None else np.asarray(epoch, float)[order]
    return replace(law, warnings=_warnings(law, R, edges, assumed, epoch[keep]))


def _polished(points, cell):
    """The cell (log B, v) of the least S near the given one."""

    def residuals(cell):
        h = _shape(points, *cell[:, None])[2]
        A, R_0, *_ = _profile(points, h)
        return points.R - A + (A - R_0) * h[0]

    limits = ((np.log(B_MIN), -1), (np.log(B_MAX), 1))
    return least_squares(residuals, cell, bounds=limits, xtol=1e-15, ftol=1e-15, gtol=1e-15).x


def _estimate(points, C, method, grid):
    """The point estimate A, B, C_mid by either method, and the edges of its search: name -> (low, high)."""
    if method == "continuous":
        cells, S = _search(points)
        B, log_C_mid, h = _shape(points, *_polished(points, cells[S.argmin()])[:, None])
        edges = {"A": (points.low, points.high)} if points.low < points.high else {}
        return (_profile(points, h)[0][0], B[0], np.exp(log_C_mid[0])), edges | {"B": (B_MIN, B_MAX)}
    if method != "grid" or points.low == points.high:
        raise BadInput(f"got method {method!r}, expected 'continuous', or 'grid' with A not fixed")
    return _grid(C, points.R, points.R_0, grid), {n: (float(x[0]), float(x[-1])) for n, x in zip(("A", "C_mid"), grid)}


def fit_run(run, **options):
    """`fit` of a Run over its own range; BadInput names the run."""
    try:
        return fit(run.compute, run.reward, run.r0, run.start, run.stop, epoch=run.epoch, **options)
    except BadInput as error:
        raise BadInput(f"{run.name}: {error}") from None


def fit_power_law(compute, reward, start=None, stop=None):
    """A.4: least squares of R_C = A - D / C^B over start <= C <= stop, A <= 1, B > 0; BadInput as in `fit`."""
    C, R, _ = _checked(compute, reward)
    keep = _in_range(C, start, stop, np.zeros(len(C), bool))
    C, B, centre = C[keep], np.geomspace(B_MIN, 20, 10000), np.exp(np.log(C[keep]).mean())
    points = _Points(np.log(C), R[keep], 0.0, 0.0, -np.inf, 1.0)  # R = A - (A - R_0) h with R_0 free, so D = A - R_0
    A, R_0, S, *_ = _profile(points, (C / centre) ** -B[:, None])
    i = S.argmin()
    return PowerLaw(*map(float, (A[i], B[i], (A[i] - R_0[i]) * centre ** B[i], S[i])))


def attempt(function, *args):
    """The function's result, or the BadInput that it raised."""
    try:
        return function(*args)
    except BadInput as error:
        return error


# ---- Forecasts and comparisons ----


def between(run, fit_from="10%", fit_to="100%"):
    """The run with its range to fit set, in its unit or as shares: of its compute (fit_to), of fit_to (fit_from)."""

    def amount(value, whole):
        return float(value[:-1]) / 100 * whole if str(value).endswith("%") else float(value)

    stop = amount(fit_to, np.max(run.compute, initial=0.0))
    return run._replace(start=amount(fit_from, stop), stop=stop)


def forecast(run, share=0.5, last=1, fit_from="10%"):
    """Fit the first `share` of the run's compute; compare its forecast of the mean of the `last` evaluations with it.

    Returns a row FORECAST: A with its band, C (mean compute of those evaluations), the forecast with the 90 % band of
    such a mean, what was measured, error = forecast - measured. Raises BadInput if the share holds too few points.
    """
    law = fit_run(between(run, fit_from, f"{100 * share}%"))
    C, measured, _ = (values[-last:].mean() for values in _checked(run.compute, run.reward))
    value, (low, high) = law.predict(C), law.band(C, mean_of=last)
    numbers = (share, law.A, *law.bands["A"], C, value, low, high, measured, value - measured)
    return dict(zip(FORECAST, (*map(float, numbers), law.points, bool(low <= measured <= high))))


def forecast_error(run, shares=(0.1, 0.2, 0.3, 0.5, 0.7), last=5, fit_from="10%"):
    """When can one stop? The rows of `forecast` from each share; shares with too few points are left out."""
    rows = [attempt(forecast, run, share, last, fit_from) for share in shares]
    return [row for row in rows if isinstance(row, dict)]


def cutoff_sensitivity(run, starts=(2, 5, 10, 20, 30, 40), stops=(30, 40, 50, 60, 70, 80, 90, 100)):
    """Fits by cut-off in per cent of the run's compute: {"start": [(cut-off, Fit), ...], "stop": [...]}.

    For "start" the fit goes on to the end, for "stop" it begins at 10 %. A cut-off with too few points is left out.
    """
    laws = {"start": [(cut, attempt(fit_run, between(run, f"{cut}%"))) for cut in starts]}
    laws["stop"] = [(cut, attempt(fit_run, between(run, "10%", f"{cut}%"))) for cut in stops]
    return {name: [pair for pair in pairs if isinstance(pair[1], Fit)] for name, pairs in laws.items()}


def refit_B(runs, A):
    """A.5: each run (a Run, or a pair of compute and reward) fitted again with A fixed, so that B can be compared."""
    return [fit_run(Run(*run), A=A) for run in runs]


def compare(runs, laws, same_A=0.02):
    """A.5: asymptotes within `same_A` give way to their mean and B decides, else A does.

    Returns the fits compared and one sentence: which run scales better, and whether the data can tell. The interval of
    the difference x - y is [x - y - hypot(x - x_low, y_high - y), x - y + hypot(x_high - x, y - y_low)] (MOVER).
    """
    A, name, why = [law.A for law in laws], "A", f"with asymptotes more than {same_A} apart"
    if max(A) - min(A) <= same_A:
        laws, name, why = refit_B(runs, float(np.mean(A))), "B", f"with a common A = {np.mean(A):.3f}"
    first, second = sorted(range(len(laws)), key=lambda i: -getattr(laws[i], name))[:2]
    (x, x_low, x_high), (y, y_low, y_high) = ((getattr(laws[i], name), *laws[i].bands[name]) for i in (first, second))
    low, high = x - y - np.hypot(x - x_low, y_high - y), x - y + np.hypot(x_high - x, y - y_low)
    tell, gap = "and the data can tell" if low > 0 else "but the data cannot tell", f"{low:.3f} to {high:.3f}"
    better = f"{runs[first].name} scales better than {runs[second].name}, {tell}: {why}, its {name} is higher by"
    return laws, f"{better} {x - y:.3f} (90 % interval {gap})."


# ---- Reading runs ----


def _json_rows(text):
    """The objects of a JSONL text."""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            yield dict(json.loads(line or "{}"))
        except (ValueError, TypeError):
            raise BadInput(f"line {number} is {line[:40]!r}, expected a JSON object (or a file *.csv)") from None


def _evaluations(rows):
    """The `eval` rows of our log, "epoch" from its `step` rows. A resumed run repeats steps: the later rows count."""
    steps = sorted((row["step"], row["epoch"]) for row in rows if row.get("kind") == "step" and "epoch" in row)
    rows = [row for row in rows if row.get("kind") == "eval" and "step" in row]
    rows = [row for i, row in enumerate(rows) if all(row["step"] < later["step"] for later in rows[i + 1 :])]
    return [row | {"epoch": np.interp(row["step"], *zip(*steps))} for row in rows] if steps else rows


def _columns(rows, names):
    """The named columns, each floats (n,), of the rows that have them all."""
    known = dict.fromkeys(name for row in rows for name in row)
    if missing := [name for name in names if name not in known]:
        raise BadInput(f"no column {missing[0]!r} (--compute, --reward), but {', '.join(map(str, known)) or 'no rows'}")
    rows = [row for row in rows if all(row.get(name) not in (None, "") for name in names)]
    return [np.array([float(row[name]) for row in rows]) for name in names]


def read_run(path, x="gpu_hours", compute=None, reward=None):
    """A Run from one of our logs (or its folder), or from any CSV or JSONL file.

    x         the column of compute in our logs: gpu_hours, tokens, flops or step
    compute   the column of compute in any file; reward: of pass rates. Rows that lack one of the two are left out.
    Raises BadInput for what cannot be read, OSError for what cannot be opened.
    """
    path = Path(path) / "log.jsonl" if Path(path).is_dir() else Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        rows = list(csv.DictReader(text.splitlines()) if path.suffix == ".csv" else _json_rows(text))
        rows = _evaluations(rows) if compute is None and any("kind" in row for row in rows) else rows
        whole = all(row.get("epoch") not in (None, "") for row in rows)
        C, R, *epoch = _columns(rows, [compute or x, reward or "pass_rate", *["epoch"] * whole])
    except (ValueError, TypeError, csv.Error) as error:  # no UTF-8, no number, no CSV
        raise BadInput(f"{path}: {error}") from None
    name = path.parent.name if path.name == "log.jsonl" else path.stem
    return Run(C, R, name=name, unit=compute or x, epoch=epoch[0] if epoch else None)


# ---- Text ----


def summary(run, law, until=None):
    """A fitted run as a dict for JSON: the law, forecasts at 2x and 10x the compute (or at `until`), and the
    `forecast` of the last evaluation from the first half (None: too few points)."""
    C = np.array([until] if until else [2 * np.max(run.compute), 10 * np.max(run.compute)])
    ahead = np.stack([C, law.predict(C), *law.band(C)], 1).tolist()
    found = {"run": run.name, "unit": run.unit} | {name: x for name, x in vars(law).items() if name != "region"}
    found["forecasts"] = [dict(zip(("C", "R", "low", "high"), row)) for row in ahead]
    return found | {"first_half": next(iter(forecast_error(run, (0.5,), last=1)), None)}


def table(header, rows):
    """Aligned lines; floats with four digits."""
    cells = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]


def lines_of(found):
    """A `summary` as lines for the screen."""
    unit, half = found["unit"], found["first_half"]
    rows = [(name, found[name], *band) for name, band in found["bands"].items()]
    rows += [(f"R at {row['C']:.4g} {unit}", row["R"], row["low"], row["high"]) for row in found["forecasts"]]
    if half:
        where = f"measured {half['measured']:.4g}, {'inside' if half['inside'] else 'outside'}"
        rows.append((f"last R, from the first half ({where})", half["forecast"], half["low"], half["high"]))
    head = "{run}: {points} points, C = {span[0]:.4g} to {span[1]:.4g} {unit}, R_0 = {R_0:.4g}, noise +-{noise:.4f}"
    warned = [f"  warning: {text}" for text in found["warnings"]]
    return [head.format(**found), *table(("", "fit", "90 % low", "high"), rows), *warned]


# ---- Figures: a panel is a function that draws on the axes it is given ----


def save(path, title, panels):
    """Draw the panels, each a function and its arguments after the axes, on logarithmic axes of compute; write them."""
    rows, columns = -(-len(panels) // 3), min(3, len(panels))
    figure = Figure(figsize=(5.6 * columns, 4.2 * rows), layout="constrained")
    figure.suptitle(title)
    for place, (draw, *given) in enumerate(panels, 1):
        ax = figure.add_subplot(rows, columns, place, xscale="log")
        draw(ax, *given)
        ax.xaxis.set(major_locator=LogLocator(subs=(1, 3)), major_formatter="{x:,g}", minor_formatter="")
        ax.grid(alpha=0.25)
        ax.legend(fontsize=8)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def curve(ax, law, start, fitted_to, end, colour, label):
    """law(C) solid over the fitted range, dashed beyond."""
    for span, style in (((start, fitted_to), "-"), ((fitted_to, max(end, fitted_to)), "--")):
        ax.plot(C := np.geomspace(*span, 200), law(C), style, color=colour, label=label if style == "-" else None)


def scaling_panel(ax, runs, laws, title, end=None, mean_of=np.inf):
    """Points (hollow outside the fitted range), curve and 90 % band (of the curve or of evaluations) up to `end`."""
    for run, law, colour in zip(runs, laws, COLOURS * len(runs)):
        C, R, _ = _checked(run.compute, run.reward)
        fitted, wide = (C >= law.span[0]) & (C <= law.span[1]), np.geomspace(law.span[0], end or 10 * C[-1], 200)
        ax.scatter(C[C > 0], R[C > 0], 16, np.where(fitted, colour, "none")[C > 0], edgecolors=colour)
        curve(ax, law.predict, *law.span, wide[-1], colour, f"{run.name}: A = {law.A:.3f}, B = {law.B:.2f}")
        ax.fill_between(wide, *law.band(wide, mean_of), color=colour, alpha=0.15, lw=0)
    ax.set(xlabel=f"compute C ({runs[0].unit})", ylabel="pass rate R", title=title)


def log_f_panel(ax, runs, laws):
    """Fig. 7: F of the fitted points and the line C^B."""
    for run, law, colour in zip(runs, laws, COLOURS * len(runs)):
        C, R, _ = _checked(run.compute, run.reward)
        keep = (C >= law.span[0]) & (C <= law.span[1]) & (R > law.R_0) & (R < law.A)
        ax.plot(C[keep], f_transform(R[keep], law.A, law.B, law.C_mid, law.R_0), "o", ms=4, color=colour)
        curve(ax, lambda C: C**law.B, *law.span, law.span[1], colour, f"{run.name}: slope B = {law.B:.2f}")
    ax.set(yscale="log", xlabel=f"compute C ({runs[0].unit})", ylabel="F(R) (unit of C, to the B)", title="F = C^B")


def two_laws_panel(ax, run):
    """A.4: the sigmoid with its band and the power law, fitted on the run's range, over all points."""
    law, power = fit_run(run), fit_power_law(*run[:2], run.start, run.stop)
    title, end = f"A.4: fitted on {run.start:,g} to {run.stop:,g} {run.unit}", np.max(run.compute)
    scaling_panel(ax, [run._replace(name="sigmoid")], [law], title, end)
    curve(ax, power.predict, *law.span, end, COLOURS[1], f"power law: A = {power.A:.3f}, B = {power.B:.2f}")


def bars_panel(ax, series, xlabel, ylabel, title):
    """Values with 90 % bands, series {label: rows (x, value, low, high)}, a little apart from each other."""
    for place, (label, rows) in enumerate(series.items()):
        x, y, low, high = np.array(rows).reshape(-1, 4).T
        ax.errorbar(x * 1.02**place, y, [y - low, high - y], fmt="o-", c=COLOURS[place % 7], capsize=3, label=label)
    ax.set(xlabel=xlabel, ylabel=ylabel, title=title)


def error_panels(runs, tables):
    """`forecast_error` of all runs against the fitted share; A and B of the first run against its cut-offs."""
    series, ends = {}, ("forecast", "low", "high")
    for run, rows in zip(runs, tables):
        series[run.name] = [(100 * row["share"], *(row[end] - row["measured"] for end in ends)) for row in rows]
    yield bars_panel, series, "share of the compute that is fitted (%)", "forecast - measured", "forecasts of the end"
    cuts = cutoff_sensitivity(runs[0])
    for name in ("A", "B"):
        series = {f"{cut} moves": [(x, getattr(law, name), *law.bands[name]) for x, law in cuts[cut]] for cut in cuts}
        yield bars_panel, series, "cut-off (% of the compute)", name, f"{runs[0].name}: {name} by fit range"


def analyse(runs, flags=(), until=None, path=None):
    """Fit the runs and do what the flags (compare, log_f, power_law, forecast_error) ask for; draw it to path.

    Returns a dict for JSON and lines for the screen.
    """
    laws = [fit_run(run) for run in runs]
    found = {"runs": [summary(run, law, until) for run, law in zip(runs, laws)]}
    lines = [line for row in found["runs"] for line in lines_of(row)]
    panels = [(scaling_panel, runs, laws, "Eq. 1, 90 % band of the curve", until)]
    if all(row["first_half"] for row in found["runs"]):
        half, end = [fit_run(between(run, fit_to="50%")) for run in runs], max(np.max(run.compute) for run in runs)
        panels.append((scaling_panel, runs, half, "from the first half, 90 % band of evaluations", end, 1))
    if "compare" in flags:
        laws, found["compare"] = compare(runs, laws)
        lines.append(found["compare"])
    if "log_f" in flags:
        panels.append((log_f_panel, runs, laws))
    if "power_law" in flags:
        powers = found["power_law"] = [fit_power_law(*run[:2], run.start, run.stop)._asdict() for run in runs]
        lines += table(("power law", "A", "B", "D", "ssr"), [(r.name, *law.values()) for r, law in zip(runs, powers)])
        panels += [(two_laws_panel, run) for run in runs]
    if "forecast_error" in flags:
        tables = found["forecast_error"] = [forecast_error(run) for run in runs]
        rows = [[run.name, *row.values()] for run, rows in zip(runs, tables) for row in rows]
        lines += table(("mean of the last 5", *FORECAST), rows)
        panels += error_panels(runs, tables)
    if path:
        save(path, ", ".join(run.name for run in runs), panels)
    return found, lines


def report(log_path, figure_path):
    """Fit the log of a run (from 10 % of its compute on), draw it; returns the `summary` dict and the lines to print.

    Too few points for a fit: (None, one line that says so), and no figure.
    """
    run = attempt(read_run, log_path)
    found = run if isinstance(run, BadInput) else attempt(analyse, [between(run)], (), None, figure_path)
    return (None, [f"no fit: {found}"]) if isinstance(found, BadInput) else (found[0]["runs"][0], found[1])


def ours(folder, paths):
    """A figure for each group of seeds (NAME_seed0, NAME_seed1, ...) and one for all groups; returns lines."""
    groups, flags = {}, ("log_f", "power_law", "forecast_error")
    for run in (between(read_run(path)) for path in paths):
        groups.setdefault(run.name.split("_seed")[0], []).append(run)
    if not groups:
        raise BadInput("found no results/*.jsonl, expected the logs of our runs there, or RUNs after --ours")
    groups |= {"all": [runs[0] for runs in groups.values()]} if len(groups) > 1 else {}
    return [line for name in groups for line in analyse(groups[name], flags, None, folder / f"ours_{name}.png")[1]]


# ---- The paper's figures, from what it publishes ----


def published_panel(ax, title, ylabel, laws, *spans):
    """Curves {label: law(C)}: solid from spans[i][0] to [1], dashed to [2] GPU-hours; the last span serves the rest."""
    for i, (label, law) in enumerate(laws.items()):
        curve(ax, law, *spans[min(i, len(spans) - 1)], COLOURS[i], label)
    ax.set(xlabel="compute C (GPU-hours)", ylabel=ylabel, title=title)


def table_1(names, R_0=None):
    """Curves of Table 1 for `published_panel`; without R_0 the gain (R - R_0) / (A - R_0), which needs none."""
    rows = {name: dict(zip(("A", "B", "C_mid"), TABLE_1[name])) for name in names.split("/")}
    rows = {"{}: A = {A:.3f}, B = {B:.2f}".format(name, **row): row for name, row in rows.items()}
    moved = {"A": 1, "R_0": 0} if R_0 is None else {"R_0": R_0}
    return {label: lambda C, law=row | moved: sigmoid(C, **law) for label, row in rows.items()}


def samples(noise):
    """Samples of the published bs2048 fit, one for each 100 of 7,400 steps; R_0, noise and spacing are our choices."""
    C = np.linspace(0, 100000, 75)
    R = sigmoid(C, *TABLE_1["ScaleRL-bs2048"], PAPER_R_0) + noise * np.random.default_rng(0).normal(size=75) * (C > 0)
    return Run(C, R, name="samples", unit="GPU-hours")


def paper_tables():
    """Table 1, and A.7 beside what fits of samples of one sigmoid say, as lines."""
    rows = []
    for (start, stop), (B, A) in A_7.items():
        law = fit_run(samples(0.002)._replace(start=start, stop=stop), method="grid")
        bands = ("{:.3f} to {:.3f}".format(*law.bands[name]) for name in "BA")
        rows.append((f"{start:,} to {stop:,}", B, A, law.B, law.A, *bands))
    lines = ["Table 1, published fits", *table(("run", "A", "B", "C_mid"), [(n, *row) for n, row in TABLE_1.items()])]
    lines.append("A.7: published; our check by A.5 on samples of the bs2048 fit with R_0 = 0.39, noise 0.002 (ours)")
    return lines + table(("fitted", "B", "A", "check: B", "A", "B, 90 % band", "A, 90 % band"), rows)


def published(folder):
    """Draw every figure that the published numbers allow; returns `paper_tables`."""
    gain, rate, wide, big = "gain (R - R_0) / (A - R_0)", "pass rate R", (100, 100000, 100000), (1500, 50000, 100000)
    base = {"A": 0.610, "B": 1.92, "C_mid": 2542, "R_0": PAPER_R_0}
    roles = {"A": (0.55, 0.61, 0.70), "B": (1, 1.92, 4), "C_mid": (1000, 2542, 8000), "R_0": (0.3, PAPER_R_0, 0.45)}
    roles = {n: {f"{n} = {x}": lambda C, law=base | {n: x}: sigmoid(C, **law) for x in roles[n]} for n in roles}
    slopes = {f"{n}: slope B = {B}": lambda C, B=B: B * np.log10(C) for n, B in (("CISPO", 2.01), ("DAPO", 1.77))}
    figures = {
        "fig1: Fig. 1, dashed: extrapolated (source: Table 1; R_0 = 0.39 is ours)": [
            ("8B, batch 2048", rate, table_1("ScaleRL-bs2048", PAPER_R_0), big),
            ("both, as gain", gain, table_1("ScaleRL-bs2048/ScaleRL-Scout"), big, (1500, 16000, 45000)),
        ],
        "fig3: Fig. 3 and A.8 (source: Table 1, row ScaleRL; R_0 = 0.39 and the varied values are ours)": [
            *((f"the role of {name}", rate, laws, wide) for name, laws in roles.items()),
            ("A.8: less efficient, ahead in the end", rate, table_1("ScaleRL-8gen/ScaleRL-bs2048", PAPER_R_0), wide),
        ],
        "sec5: Sec. 5 (source: Table 1; where a pass rate is drawn, R_0 = 0.39 is ours)": [
            ("generation length (14k, 32k)", rate, table_1("ScaleRL/ScaleRL-32k", PAPER_R_0), wide),
            ("batch size (768, 512, 2048)", rate, table_1("ScaleRL/ScaleRL-bs512/ScaleRL-bs2048", PAPER_R_0), wide),
            ("generations/prompt", rate, table_1("ScaleRL/ScaleRL-8gen/ScaleRL-24gen/ScaleRL-32gen", PAPER_R_0), wide),
            ("model size", gain, table_1("ScaleRL/ScaleRL-Scout"), wide),
            ("math and code", gain, table_1("math+code, math/math+code, code"), wide),
        ],
        "fig7: Fig. 7 (source: text)": [("leave one out", "log10 F(R), F in GPU-hours^B", slopes, (1500, 8000, 16000))],
    }
    for key, panels in figures.items():
        (name, title), panels = key.split(": ", 1), [(published_panel, *panel) for panel in panels]
        save(folder / f"paper_{name}.png", f"{title}: published fit, not data", panels)
    ranges = ((1500, 50000), (5000, 50000), (30000, 60000))  # the published A of the power law: 1.0, 0.74, right
    panels = [(two_laws_panel, samples(0.0005)._replace(start=start, stop=stop)) for start, stop in ranges]
    title = "A.4: samples of the published bs2048 fit (Table 1), not data; R_0 = 0.39, noise 0.0005: ours"
    save(folder / "paper_a4.png", title, panels)
    return paper_tables()


# ---- Command ----


def command(args, defaults):
    """The lines that the command line asks for; a flag that would be left unread is an error."""
    reads = {"paper", "o"} if args.paper else {"ours", "o", "runs"} if args.ours else set(vars(args))
    reads -= {name for name, used in (("log_f", args.o), ("x", not args.compute)) if not used}
    if unread := [name for name, value in vars(args).items() if value != defaults[name] and name not in reads]:
        raise BadInput(f"got {unread[0]}, which --paper, --ours, --compute (for x) or no -o (for log_f) leave unread")
    if args.paper or args.ours:
        folder, paths = Path(args.o or "figures"), args.runs or sorted(Path("results").glob("*.jsonl"))
        return published(folder) if args.paper else ours(folder, paths)
    if len(args.runs) < 1 + args.compare:
        raise BadInput(f"got {len(args.runs)} RUNs, expected {1 + args.compare} or more, --paper or --ours")
    runs = [read_run(path, args.x, args.compute, args.reward) for path in args.runs]
    runs = [between(run, args.fit_from, args.fit_to) for run in runs]
    asked = [name for name in ("compare", "power_law", "log_f", "forecast_error") if getattr(args, name)]
    found, lines = analyse(runs, asked, args.until, args.o)
    return [json.dumps(found, indent=1)] if args.json else lines


def main(argv=None):
    """The command line; exits with code 2 and one line for what cannot be read, fitted or written."""
    parser = argparse.ArgumentParser(prog="fit.py", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="log.jsonl, its folder, or any CSV or JSONL file")
    add("--x", default="gpu_hours", choices=("gpu_hours", "tokens", "flops", "step"), help="compute of our logs")
    add("--compute", metavar="COL", help="column of compute of any file, in any unit")
    add("--reward", metavar="COL", help="column of pass rates (default: pass_rate)")
    add("--fit-from", default="10%", help="start of the fit: a compute, or a share of the range (default: 10%%)")
    add("--fit-to", default="100%", help="end of the fit: a compute, or a share of the run's compute such as 50%%")
    add("--until", type=float, metavar="C", help="forecast at this compute (default: at 2x and 10x the run's)")
    add("--compare", action="store_true", help="which run scales better, at a common A if they are within 0.02 (A.5)")
    add("--power-law", action="store_true", help="fit the power law of A.4 too")
    add("--log-f", action="store_true", help="draw F(R) = C^B (Fig. 7)")
    add("--forecast-error", action="store_true", help="forecasts from 10 to 70 %% of the compute; A and B by fit range")
    add("--json", action="store_true", help="print JSON")
    add("-o", metavar="FILE", help="figure to write (png, svg, pdf); a folder (figures) for --paper, --ours")
    add("--paper", action="store_true", help="draw the paper's figures from its published fits")
    add("--ours", action="store_true", help="draw the same kinds of figures from RUNs (default: results/*.jsonl)")
    try:
        print("\n".join(command(parser.parse_args(argv), vars(parser.parse_args([])))))
    except (ValueError, OSError) as error:  # a flag that is no number, a file that cannot be opened or written
        parser.exit(2, f"fit.py: {error}\n")


if __name__ == "__main__":
    main()
