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
from collections import namedtuple
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from scipy.optimize import leastsq, minimize
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
CUT_OFFS = {"start": (2, 5, 10, 20, 30, 40), "stop": (30, 40, 50, 60, 70, 80, 90, 100)}  # per cent, drawn as in A.7
RATE, HOURS = "pass rate R", "compute C (GPU-hours)"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe-Ito: colour-blind safe

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


class Run(namedtuple("Run", "compute reward start stop r0 epoch tasks name unit", defaults=[None] * 5 + ["run", ""])):
    """The evaluations of one run; a plain (compute, reward) pair is one too: `Run(*pair)`.

    compute, reward, start, stop, r0, epoch as in `fit`; tasks: the columns of its log with the pass rates of one task.
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
    points: int  # fitted, R_0's not counted
    bands: dict  # "A", "B", "C_mid" -> (low, high), 90 %
    warnings: tuple  # "name: what it means here"
    region: np.ndarray = field(repr=False)  # (S, 4) A, B, C_mid, R_0: spans the 90 % region
    run: Run = field(repr=False)  # what was fitted, in order of compute

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


# ---- Fitting ----


class _Points(namedtuple("_Points", "u R R_0 weight low high")):
    """What is fitted: u (n,) = log C, R (n,), R_0 and its weight in evaluations; low <= A <= high."""


def _shape(points, cells):
    """Of cells (K, 2) = log B, v: B, log C_mid (K,), and h (K, n) = 1 - rise.

    v in [-1, 1] moves C_mid from before all points to after them.
    """
    B, half = np.exp(cells[:, 0]), np.ptp(points.u) / 2
    reach = np.minimum(half + 25 / B, 500)  # e^-25: no rise; e^500: C_mid stays finite
    log_C_mid = points.u.min() + half + cells[:, 1] * reach
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


LIMITS = np.array([[np.log(B_MIN), -1], [np.log(B_MAX), 1]])  # of the cells


def _search(points, factor=1.0, keep=200, levels=4):
    """All over B and C_mid: cells (K, 2) = log B, v and their S (K,), so fine that many have S <= factor * the least S.

    From a coarse grid the best cells are split in nine, level by level.
    """
    cells = np.stack(np.meshgrid(np.linspace(*LIMITS[:, 0], 45), np.linspace(*LIMITS[:, 1], 81)), -1).reshape(-1, 2)
    size, around = np.ptp(LIMITS, 0) / [44, 80], np.stack(np.meshgrid([-1, 0, 1], [-1, 0, 1]), -1).reshape(9, 2)
    for level in range(levels):
        S = _profile(points, _shape(points, cells)[2])[2]
        if (S <= factor * S.min()).sum() >= 400 or level == levels - 1:
            return cells, S
        best, size = cells[np.argsort(S)[:keep]], size / 3
        cells = np.clip((best[:, None] + around * size).reshape(-1, 2), *LIMITS)


def _region(points, factor):
    """Points (S, 4) = A, B, C_mid, R_0 that span the region S <= factor * S_min."""
    cells, S = _search(points, factor, keep=800, levels=12)
    cells, limit = cells[S <= factor * S.min()], factor * S.min()
    B, log_C_mid, h = _shape(points, cells)
    A, R_0, S, free, curvature, slope, hh = _profile(points, h)
    reach = np.sqrt(np.maximum(limit - S + curvature * (A - free) ** 2, 0) / curvature)
    ends, room = np.clip([free - reach, free + reach], points.low, points.high), np.sqrt(np.maximum(limit - S, 0) / hh)
    A, R_0 = np.stack([A, A, *ends]), np.stack([R_0 - room, R_0 + room, *(R_0 + slope * (ends - A))])
    return np.stack(np.broadcast_arrays(A, B, np.exp(log_C_mid), R_0), -1).reshape(-1, 4)


def _grid(points, grid):
    """A.5 to the letter: for every pair (A, C_mid) fit B alone from `curve_fit`'s default start, 1; the best pair."""
    R_0, best = points.R_0, (np.inf, np.nan, np.nan, np.nan)
    for A, C_mid in product(*grid):
        residuals = lambda B: R_0 + (A - R_0) * expit(B * (points.u - np.log(C_mid))) - points.R  # noqa: B023, E731
        # What `curve_fit` calls; without the covariance of B, which A.5 does not use, and its warnings.
        (B,), *_, status = leastsq(residuals, 1.0, full_output=True)
        if status in (1, 2, 3, 4):  # else no convergence from the default start: this pair has no fit
            best = min(best, ((residuals(B) ** 2).sum(), A, B, C_mid))
    return best[1:]


def _checked(run):
    """The run with arrays (n,) in order of compute; BadInput if they are not compute and pass rates."""
    C, R, epoch = (np.asarray(x, float) for x in (run.compute, run.reward, run.epoch))  # epoch None: nan
    if C.ndim != 1 or C.shape != R.shape:
        raise BadInput(f"{run.name}: got compute {C.shape} and reward {R.shape}, expected lists of one length")
    wrong = ~(np.isfinite(C + R) & (C >= 0) & (abs(R) <= 1.5))
    if wrong.any():
        got = f"{run.name}: got compute {C[wrong][0]:g} and reward {R[wrong][0]:g} at point {wrong.argmax() + 1}"
        raise BadInput(f"{got}, expected C >= 0 and a pass rate in [0, 1]; likely a gap, a logarithm, or per cent")
    order = np.argsort(C, kind="stable")
    return run._replace(compute=C[order], reward=R[order], epoch=np.broadcast_to(epoch, C.shape)[order])


def _amount(value, whole):
    """A compute, or a share of `whole` such as "10%", as a compute."""
    return float(value[:-1]) / 100 * whole if str(value).endswith("%") else float(value)


def _in_range(run, taken):
    """Mask (n,) of what to fit: start <= C <= stop, C > 0, not `taken` for R_0; BadInput if that is too little."""
    C, last = run.compute, run.compute.max(initial=0.0)
    high = last if run.stop is None else min(last, _amount(run.stop, last))
    low = _amount(run.start or 0.0, high)
    keep = (C > 0) & (C >= low) & (C <= high) & ~taken
    points, values = keep.sum() + taken.any(), len(np.unique(C[keep]))
    if points < 5 or values < 3:
        got = f"{run.name}: got {points} points (R_0 counts) at {values} values of compute from {low:g} to {high:g}"
        raise BadInput(f"{got}, expected 5 points or more at 3 or more values; widen the range or run on")
    return keep


def _warnings(law, R, edges, assumed, epoch):
    """The named warnings. edges: name -> values searched, the least first; one value: the caller fixed it."""
    # How far R (n,) ends below its highest stretch of n/8 points, against what noise could do.
    mean = np.convolve(R, np.ones(width := max(3, len(R) // 8)) / width, "valid")
    noise = np.median(abs(np.diff(R))) / 0.954  # the median |difference| of two numbers with normal noise 1
    drop, limit = mean.max() - mean[-1], max(0.01, 4 * noise * np.sqrt(2 / width))
    (low, high), early = law.bands["A"], (epoch < 1).mean()
    on = [n for n, x in edges.items() if x[0] < x[-1] and np.isclose(getattr(law, n), (x[0], x[-1]), rtol=1e-6).any()]
    known = {
        f"on a bound: {', '.join(f'{n} = {getattr(law, n):.4g}' for n in on)}, an end of the range searched": on,
        f"outside Eq. 1: A = {law.A:.4g}, R_0 = {law.R_0:.4g}, B = {law.B:.4g}": law.A <= law.R_0 or law.B <= 0,
        f"reward falls after a peak: by {drop:.3f}; Eq. 1 can only rise, so the forecast does not hold": drop > limit,
        f"not yet forecastable: A is anywhere in [{low:.2f}, {high:.2f}]": high - low > 0.2,
        f"R_0 assumed: nothing at C = 0 and no r0, so the first point, {law.R_0:.4g}, stands for it": assumed,
        f"fit range inside the first epoch: {early:.0%} of its points; the paper leaves that epoch out": early > 0,
    }
    return tuple(text for text, holds in known.items() if holds)


def fit(compute, reward, r0=None, start=None, stop=None, method="continuous", *, grid=PAPER_GRID, A=None, epoch=None):
    """Fit Eq. 1 to the points with start <= C <= stop.

    compute (n,)      C >= 0, any one unit, any order     reward (n,)  pass rates
    r0                pass rate at C = 0, taken as exact; default: the mean of the points at C = 0, with the noise of
                      a measurement, else the first point (warning)
    start, stop       computes, or shares: stop="50%" of the last compute, start="10%" of stop; default: all points
    method            "continuous": least squares, A in (R_0, 1], B > 0; "grid": A.5
    grid              for "grid": rising values of A and of C_mid; default: the paper's, in GPU-hours
    A                 fixes A; "continuous" only
    epoch (n,)        epochs over the training prompts done at each point, nan: not known; only for a warning
    Raises BadInput: fewer than 5 points (R_0's included), nan, C < 0, all C equal, no pass rates, R_0 not under A.

    >>> C = np.array([0, 1, 2, 4, 8, 16, 32])
    >>> law = fit(C, sigmoid(C, A=0.8, B=1.5, C_mid=5, R_0=0.2))
    >>> print(f"{law.A:.3f} {law.B:.3f} {law.C_mid:.3f}")
    0.800 1.500 5.000
    """
    return fit_run(Run(compute, reward, start, stop, r0, epoch=epoch), method, grid=grid, A=A)


def fit_run(run, method="continuous", *, grid=PAPER_GRID, A=None):
    """`fit` of a Run (or a pair of compute and reward) over its own range."""
    if method != "continuous" and (method != "grid" or A is not None):
        raise BadInput(f"got method {method!r}, expected 'continuous', or 'grid' with A not fixed")
    run = _checked(Run(*run))
    C, R, r0 = run.compute, run.reward, run.r0
    taken = (C == 0 if (C == 0).any() else np.arange(len(C)) == 0) & (r0 is None)
    keep, assumed = _in_range(run, taken), bool((C[taken] > 0).any())
    R_0, weight = (float(R[taken].mean()), float(taken.sum())) if r0 is None else (float(r0), EXACT)
    low, high = (R_0 + 1e-6 * (1 - R_0), 1.0) if A is None else (A, A)
    if not R_0 < high:
        raise BadInput(f"{run.name}: got R_0 = {R_0:g}, expected less than A <= {high:g}: nothing is left to gain")
    C, R, freedom = C[keep], R[keep], int(keep.sum()) - (3 if A is None else 2)
    points = _Points(np.log(C), R, R_0, EXACT, low, high)
    best = _grid(points, grid) if method == "grid" else _estimate(points)
    edges = {"A": (low, high), "B": (B_MIN, B_MAX)} if method == "continuous" else dict(zip(("A", "C_mid"), grid))
    ssr, quantile = ((R - sigmoid(C, *best, R_0)) ** 2).sum(), stdtrit(freedom, 0.95)
    region = np.concatenate([[[*best, R_0]], _region(points._replace(weight=weight), 1 + quantile**2 / freedom)])
    bands = dict(zip(("A", "B", "C_mid"), zip(region.min(0).tolist(), region.max(0).tolist())))
    numbers = map(float, (*best, R_0, ssr, quantile * np.sqrt(ssr / freedom)))
    law = Fit(*numbers, (C[0].item(), C[-1].item()), len(C), bands, (), region, run)
    return replace(law, warnings=_warnings(law, R, edges, assumed, run.epoch[keep]))


def _estimate(points):
    """The continuous point estimate A, B, C_mid."""
    cells, S = _search(points)
    precise = {"method": "Nelder-Mead", "bounds": LIMITS.T, "options": {"xatol": 1e-8, "fatol": 1e-9}}
    best = minimize(lambda cell: _profile(points, _shape(points, cell[None])[2])[2][0], cells[S.argmin()], **precise)
    B, log_C_mid, h = _shape(points, best.x[None])
    return _profile(points, h)[0][0], B[0], np.exp(log_C_mid[0])


def fit_power_law(compute, reward, start=None, stop=None):
    """A.4: least squares of R_C = A - D / C^B, A <= 1, B > 0; compute, reward, start, stop and BadInput as in `fit`."""
    run = _checked(Run(compute, reward, start, stop))
    keep = _in_range(run, np.zeros(len(run.compute), bool))
    C, B = run.compute[keep], np.geomspace(B_MIN, 20, 10000)
    points, centre = _Points(np.log(C), run.reward[keep], 0.0, 0.0, -np.inf, 1.0), np.exp(np.log(C).mean())
    # R = A - (A - R_0) h with R_0 free, so D = A - R_0; in units of the centre, h neither over- nor underflows.
    A, R_0, S, *_ = _profile(points, (C / centre) ** -B[:, None])
    i = S.argmin()
    return PowerLaw(*map(float, (A[i], B[i], (A[i] - R_0[i]) * centre ** B[i], S[i])))


# ---- Forecasts and comparisons ----


def fitted(run, **changes):
    """[Fit] of the run with its fields changed, or [] where that cannot be fitted, say for too few points."""
    with suppress(BadInput):
        return [fit_run(run._replace(**changes))]
    return []


def forecast(law, last=1):
    """What a law fitted to a part of its run says of the end, the mean of the `last` evaluations, as a dict.

    A with its band, C (mean compute of those evaluations), the forecast with the 90 % band of such a mean, what was
    measured, error = forecast - measured, the number of fitted points, whether the band holds what was measured.
    """
    C, measured = law.run.compute[-last:].mean(), law.run.reward[-last:].mean()
    value, (low, high) = law.predict(C), law.band(C, mean_of=last)
    names = ("A", "A_low", "A_high", "C", "forecast", "low", "high", "measured", "error")
    row = zip(names, map(float, (law.A, *law.bands["A"], C, value, low, high, measured, value - measured)))
    return dict(row) | {"points": law.points, "inside": bool(low <= measured <= high)}


def forecast_error(run, cuts=(10, 20, 30, 50, 70), last=5):
    """When can one stop? A `forecast` of the last evaluations from each share of the compute, `cuts` in per cent.

    Left out: shares with too few points, and those that hold one of the evaluations to be forecast.
    """
    laws = [(cut, law) for cut in cuts for law in fitted(run, stop=f"{cut}%") if law.span[1] < law.run.compute[-last]]
    return [{"run": run.name, "share": cut / 100} | forecast(law, last) for cut, law in laws]


def refit_B(runs, A):
    """A.5: each run (a Run, or a pair of compute and reward) fitted again with A fixed, so that B can be compared."""
    return [fit_run(run, A=A) for run in runs]


def compare(laws, same_A=0.02):
    """A.5: where the highest asymptotes lie within `same_A`, those runs get their mean A and B decides, else A does.

    A decides too if that mean is not above the R_0 of each: a run that learned nothing has no B.
    Returns the fits compared, best first, and one sentence: which run scales better, and whether the data can tell.
    The interval of x - y is [x - y - hypot(x - x_low, y_high - y), x - y + hypot(x_high - x, y - y_low)] (MOVER).
    """
    laws, name, why = sorted(laws, key=lambda law: -law.A), "A", f"with no common A (within {same_A}, above each R_0)"
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


# ---- Reading runs ----


def _json_rows(lines):
    """The objects of the lines of a JSONL file; what is in an inner object has a column too, such as tasks.math."""
    for number, line in enumerate(lines, 1):
        try:
            row = dict(json.loads(line.strip() or "{}"))
        except (ValueError, TypeError):
            if number > 1 and not line.endswith("\n"):  # a crash, or a run that is writing, tore the last line
                return
            raise BadInput(f"line {number} is {line[:40]!r}, expected one JSON object (or a file *.csv)") from None
        yield row | {f"{name}.{key}": x for name, obj in row.items() if isinstance(obj, dict) for key, x in obj.items()}


def _evaluations(rows):
    """The `eval` rows of our log, with the "epoch" of the step before; of any other file all rows.

    An empty cell of a CSV and a null are no value, and left out. Numbers may be text, as they are in a CSV.
    A resumed run repeats the steps after its checkpoint: a row undoes the evaluations of its step or later before it.
    """
    rows, kept, epoch = [{name: x for name, x in row.items() if x not in (None, "")} for row in rows], [], np.nan
    for row in (row for row in rows if row.get("kind") in ("step", "eval") and "step" in row):
        kept, epoch = [x for x in kept if float(x["step"]) < float(row["step"])], row.get("epoch", epoch)
        if row["kind"] == "eval":
            kept.append(row | {"epoch": epoch})
    return kept or rows


def read_run(path, compute="gpu_hours", reward="pass_rate"):
    """A Run from one of our logs (or its folder), or from any CSV or JSONL file.

    compute   the column of compute; in our logs gpu_hours, tokens, tokens_trained, flops or step
    reward    the column of pass rates; in our logs pass_rate, or tasks.NAME for one task
    Rows that lack one of the two are left out. Raises BadInput for what cannot be read, OSError for what cannot be
    opened.
    """
    path = Path(path) / "log.jsonl" if Path(path).is_dir() else Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = _evaluations(csv.DictReader(file) if path.suffix.lower() == ".csv" else _json_rows(file))
        full = [row for row in rows if compute in row and reward in row]
        if not full:
            known = ", ".join(dict.fromkeys(str(name) for row in rows for name in row)) or "nothing"
            raise BadInput(f"no row has {compute} and {reward} (--compute, --reward); got {len(rows)} rows of {known}")
        C, R, epoch = np.array([[float(row.get(name, "nan")) for row in full] for name in (compute, reward, "epoch")])
    except (ValueError, TypeError, csv.Error) as error:  # no UTF-8, no number, no CSV
        raise BadInput(f"{path}: {error}") from None
    tasks = tuple(sorted({name for row in rows for name in row if str(name).startswith("tasks.")}))
    name = (path.parent.name if path.name == "log.jsonl" else path.stem) + f" {reward}" * (reward in tasks)
    return Run(C, R, name=name, unit=compute, epoch=epoch, tasks=tasks)


def with_tasks(run, path):
    """The fit of one of our logs and, if it has several tasks, of each task that can be fitted (Fig. 11)."""
    tasks = [read_run(path, run.unit, name)._replace(start=run.start, stop=run.stop) for name in run.tasks]
    return [fit_run(run), *(law for task in tasks if len(tasks) > 1 for law in fitted(task))]


# ---- Text ----


def summary(law, first_half=None, until=None):
    """A fit as a dict for JSON: its numbers, forecasts at 2x and 10x the compute (or at `until`), and, as it is given,
    the `forecast` of the last evaluation from the first half (None: too few points)."""
    C = np.array([until] if until else [2 * law.run.compute[-1], 10 * law.run.compute[-1]])
    ahead = [dict(zip(("C", "R", "low", "high"), row)) for row in zip(C, law.predict(C), *law.band(C))]
    found = {name: value for name, value in vars(law).items() if name != "region"}
    return found | {"run": law.run.name, "unit": law.run.unit, "forecasts": ahead, "first_half": first_half}


def table(rows):
    """Aligned lines, the header first; floats with four digits."""
    cells = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]


def lines_of(found):
    """A `summary` as lines for the screen."""
    rows = [("", "fit", "90 % low", "high"), *((name, found[name], *band) for name, band in found["bands"].items())]
    rows += [(f"R at {row['C']:.4g} {found['unit']}", row["R"], row["low"], row["high"]) for row in found["forecasts"]]
    if half := found["first_half"]:
        label = f"last R, from the first half (measured {half['measured']:.4g})"
        rows.append((label, half["forecast"], half["low"], half["high"]))
    head = "{run}: {points} points, C = {span[0]:.4g} to {span[1]:.4g} {unit}, R_0 = {R_0:.4g}, noise +-{noise:.4f}"
    return [head.format(**found), *table(rows), *map("  warning: {}".format, found["warnings"])]


# ---- Figures: a figure is panels, a panel (title, x label, y label, curves) ----


class Curve(namedtuple("Curve", "label law span points band", defaults=(((), ()), None))):
    """law(x), solid from span[0] to span[1], dashed to span[2]; points (x, y); band(x) = (low, high)."""


def draw(ax, title, xlabel, ylabel, curves):
    """A panel. Points are hollow where the curve is not solid: they were left out of its fit."""
    for (label, law, (start, fitted_to, end), points, band), colour in zip(curves, COLOURS * len(curves)):
        for style, span in (("-", (start, fitted_to)), ("--", (fitted_to, max(end, fitted_to)))):
            ax.plot(x := np.geomspace(*span, 200), law(x), style, color=colour, label=label if style == "-" else None)
            if band:
                ax.fill_between(x, *band(x), color=colour, alpha=0.15, lw=0)
        x, y = np.array(points)
        ax.scatter(x, y, 16, np.where((x >= start) & (x <= fitted_to), colour, "none"), edgecolors=colour)
    ax.set(xlabel=xlabel, ylabel=ylabel, title=title)
    ax.xaxis.set(major_locator=LogLocator(subs=(1, 3)), major_formatter="{x:,g}", minor_formatter="")
    ax.grid(alpha=0.25)
    ax.legend(fontsize=8)


def save(path, title, panels):
    """Draw the panels that have curves, three in a row, on logarithmic x axes; write them."""
    panels = [panel for panel in panels if panel[-1]]
    rows, columns = -(-len(panels) // 3), min(3, len(panels))
    figure = Figure(figsize=(5.6 * columns, 4.2 * rows), layout="constrained")
    figure.suptitle(title)
    for place, panel in enumerate(panels, 1):
        draw(figure.add_subplot(rows, columns, place, xscale="log"), *panel)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def scaling(law, end, mean_of=np.inf):
    """Eq. 1 up to `end`, the 90 % band of the curve (or of the mean of evaluations), the points of the run."""
    points = np.stack(law.run[:2])[:, law.run.compute > 0]
    label = f"{law.run.name}: A = {law.A:.3f}, B = {law.B:.2f}"
    return Curve(label, law.predict, (*law.span, end), points, lambda C: law.band(C, mean_of))


def power_law(law, end):
    """A.4: the power law on the range on which Eq. 1 was fitted."""
    power = fit_power_law(*law.run[:4])
    return Curve(f"{law.run.name}, power law: A = {power.A:.3f}, B = {power.B:.2f}", power.predict, (*law.span, end))


def log_f(law):
    """Fig. 7: log10 F of the fitted points and the line of slope B."""
    C, R = np.stack(law.run[:2])[:, (law.run.reward > law.R_0) & (law.run.reward < law.A)]
    points = C, np.log10(f_transform(R, law.A, law.B, law.C_mid, law.R_0))
    label = f"{law.run.name}: slope B = {law.B:.2f}"
    return Curve(label, lambda C: law.B * np.log10(C), (*law.span, law.span[1]), points)


def through(label, rows):
    """Straight (on the logarithmic axis) from row to row (x, value, low, high), values with a 90 % band."""
    x, *values = np.array(rows, float).T
    value, low, high = (lambda at, y=y: np.interp(np.log(at), np.log(x), y) for y in values)
    return Curve(label, value, (x[0], x[-1], x[-1]), (x, values[0]), lambda x: (low(x), high(x)))


def error_panels(tables, run):
    """(name, `forecast_error`) pairs against the fitted share; A and B of `run` against its cut-offs."""
    ends, series = ("forecast", "low", "high"), []
    for name, rows in tables:
        series.append((name, [(100 * row["share"], *(row[end] - row["measured"] for end in ends)) for row in rows]))
    panels = [("forecasts of the end", "share of the compute that is fitted (%)", "forecast - measured", series)]
    laws = {end: [(x, law) for x in cuts for law in fitted(run, **{end: f"{x}%"})] for end, cuts in CUT_OFFS.items()}
    for name in ("A", "B"):
        series = [(f"{end} moves", [(x, getattr(at, name), *at.bands[name]) for x, at in laws[end]]) for end in laws]
        panels.append((f"{run.name}: {name} by fit range", "cut-off (% of the compute)", name, series))
    return [(*labels, [through(*one) for one in series if one[1]]) for *labels, series in panels]


def analyse(laws, flags=(), until=None, path=None):
    """Sum up the fits and do what the flags (compare, log_f, power_law, forecast_error) ask for; draw it to path.

    Returns a dict for JSON and lines for the screen.
    """
    runs, most = [law.run for law in laws], max(law.run.compute[-1] for law in laws)
    axis, halves = f"compute C ({runs[0].unit})", [fitted(run, stop="50%") for run in runs]
    found = {"runs": [summary(law, next(map(forecast, half), None), until) for law, half in zip(laws, halves)]}
    curves, early = [scaling(x, until or 10 * most) for x in laws], [scaling(x, most, 1) for x in sum(halves, [])]
    panels, tables = [("Eq. 1, 90 % band of the curve (hollow: not fitted)", axis, RATE, curves)], {}
    panels.append(("from the first half, 90 % band of evaluations", axis, RATE, early))
    if "power_law" in flags:
        rows = [{"run": run.name} | fit_power_law(*run[:4])._asdict() for run in runs]
        tables["power laws (A.4)"] = found["power_law"] = rows
        curves = [draws(law, most) for draws in (scaling, power_law) for law in laws]
        panels.append(("A.4: the power law on the same range", axis, RATE, curves))
    if "forecast_error" in flags:
        pairs = [(run.name, forecast_error(run)) for run in runs]
        tables["forecasts of the mean of the last 5"] = found["forecast_error"] = [x for _, rows in pairs for x in rows]
        panels += error_panels(pairs, runs[0])
    if "compare" in flags:
        laws, found["compare"] = compare(laws)
        rows = [{"run": x.run.name, "A": x.A} | dict(zip(("B", "B_low", "B_high"), (x.B, *x.bands["B"]))) for x in laws]
        tables[found["compare"]] = found["compared"] = rows
    if "log_f" in flags:
        panels.append(("Fig. 7: F = C^B", axis, f"log10 F(R), F in {runs[0].unit}^B", list(map(log_f, laws))))
    if path:
        save(path, ", ".join(run.name for run in runs), panels)
    lines = [line for row in found["runs"] for line in lines_of(row)]
    for title, rows in tables.items():
        lines += [title, *table([*rows[:1], *map(dict.values, rows)])]
    return found, lines


def report(log_path, figure_path):
    """Fit the log of a run and each of its tasks (from 10 % of its compute on), draw it to figure_path.

    Returns the `summary` dict, those of several tasks under "tasks", and the lines to print. Too few points for a fit:
    (None, one line that says so), and no figure.
    """
    try:
        found, lines = analyse(with_tasks(read_run(log_path)._replace(start="10%"), log_path), path=figure_path)
    except BadInput as error:
        return None, [f"no fit: {error}"]
    return found["runs"][0] | {"tasks": found["runs"][1:]}, lines


def ours(laws, folder):
    """A figure for each group of seeds (NAME_seed0, NAME_seed1, ...) and one for all groups; returns lines."""
    groups, flags = {}, ("log_f", "power_law", "forecast_error")
    for law in laws:
        groups.setdefault(law.run.name.split("_seed")[0], []).append(law)
    groups |= {"all": [seeds[0] for seeds in groups.values()]} if len(groups) > 1 else {}
    return [line for name in groups for line in analyse(groups[name], flags, None, folder / f"ours_{name}.png")[1]]


# ---- The paper's figures, from what it publishes ----


def table_1(title, names, *spans, gain=False):
    """Panel of curves of Table 1 over spans (see Curve) of GPU-hours, the last for all further curves.

    gain: draw (R - R_0) / (A - R_0), which needs no R_0.
    """
    curves = []
    for i, name in enumerate(names.split("/")):
        A, B, C_mid = TABLE_1[name]
        law = partial(sigmoid, A=1 if gain else A, B=B, C_mid=C_mid, R_0=0 if gain else PAPER_R_0)
        curves.append(Curve(f"{name}: A = {A:.3f}, B = {B:.2f}", law, spans[min(i, len(spans) - 1)]))
    return title, HOURS, "gain (R - R_0) / (A - R_0)" if gain else RATE, curves


def samples(noise):
    """Samples of the published bs2048 fit, one for each 100 of 7,400 steps; R_0, noise and spacing are our choices."""
    C = np.linspace(0, 100000, 75)
    R = sigmoid(C, *TABLE_1["ScaleRL-bs2048"], PAPER_R_0) + noise * np.random.default_rng(0).normal(size=75) * (C > 0)
    return Run(C, R, name="samples", unit="GPU-hours")


def paper_tables():
    """Table 1, and A.7 beside what fits of samples of one sigmoid say, as lines."""
    rows = [("fitted", "B", "A", "check: B", "A", "B, 90 % band", "A, 90 % band")]
    for (start, stop), (B, A) in A_7.items():
        law = fit_run(samples(0.002)._replace(start=start, stop=stop), "grid")
        bands = ("{:.3f} to {:.3f}".format(*law.bands[name]) for name in "BA")
        rows.append((f"{start:,} to {stop:,}", B, A, law.B, law.A, *bands))
    lines = ["Table 1, published fits", *table([("run", "A", "B", "C_mid"), *((n, *TABLE_1[n]) for n in TABLE_1)])]
    lines.append("A.7: published; our check by A.5 on samples of the bs2048 fit with R_0 = 0.39, noise 0.002 (ours)")
    return lines + table(rows)


def published(folder):
    """Draw every figure that the published numbers allow; returns `paper_tables`."""

    def write(figure, title, *panels):
        save(folder / f"paper_{figure}.png", f"{title}: published fit, not data", panels)

    wide, big, scout, leave_one_out = (100, 1e5, 1e5), (1500, 5e4, 1e5), (1500, 16000, 45000), (1500, 8000, 16000)
    write("fig1", "Fig. 1, dashed: extrapolated (source: Table 1; R_0 = 0.39 is ours)",
          table_1("8B, batch 2048", "ScaleRL-bs2048", big),
          table_1("both, as gain", "ScaleRL-bs2048/ScaleRL-Scout", big, scout, gain=True))  # fmt: skip
    base, panels = dict(zip(("A", "B", "C_mid", "R_0"), (*TABLE_1["ScaleRL"], PAPER_R_0))), []
    for name, low, high in (("A", 0.55, 0.7), ("B", 1, 4), ("C_mid", 1000, 8000), ("R_0", 0.3, 0.45)):
        laws = {f"{name} = {x}": partial(sigmoid, **base | {name: x}) for x in (low, base[name], high)}
        panels.append((f"the role of {name}", HOURS, RATE, [Curve(*law, wide) for law in laws.items()]))
    panels.append(table_1("A.8: less efficient, ahead in the end", "ScaleRL-8gen/ScaleRL-bs2048", wide))
    write("fig3", "Fig. 3 and A.8 (source: Table 1; R_0 = 0.39 and the varied values are ours)", *panels)
    write("sec5", "Sec. 5 (source: Table 1; where a pass rate is drawn, R_0 = 0.39 is ours)",
          table_1("generation length (14k, 32k)", "ScaleRL/ScaleRL-32k", wide),
          table_1("batch size (768, 512, 2048)", "ScaleRL/ScaleRL-bs512/ScaleRL-bs2048", wide),
          table_1("generations per prompt (16, 8, 24, 32)", "ScaleRL/ScaleRL-8gen/ScaleRL-24gen/ScaleRL-32gen", wide),
          table_1("model size (8B, Scout)", "ScaleRL/ScaleRL-Scout", wide, gain=True),
          table_1("math and code", "math+code, math/math+code, code", wide, gain=True))  # fmt: skip
    slopes = ("CISPO", 2.01), ("DAPO", 1.77)
    curves = [Curve(f"{name}: slope B = {B}", lambda C, B=B: B * np.log10(C), leave_one_out) for name, B in slopes]
    write("fig7", "Fig. 7 (source: text)", ("leave one out", HOURS, "log10 F(R), F in GPU-hours^B", curves))
    panels = []
    for start, stop, A in ((1500, 50000, "A = 1.0"), (5000, 50000, "A = 0.74"), (30000, 60000, "right")):
        law = fit_run(samples(0.0005)._replace(start=start, stop=stop))
        title = f"fitted on {start:,} to {stop:,} (paper's power law: {A})"
        panels.append((title, HOURS, RATE, [scaling(law, 1e5), power_law(law, 1e5)]))
    write("a4", "A.4 (samples of the bs2048 fit of Table 1; R_0 = 0.39 and noise 0.0005 are ours)", *panels)
    return paper_tables()


# ---- Command ----


def command(args, defaults):
    """The lines that the command line asks for; a flag that would be left unread is an error."""
    reads = {"paper", "o"} if args.paper else {"ours", "o", "runs"} if args.ours else set(vars(args))
    reads -= set() if args.o else {"log_f"}
    if unread := [name for name, value in vars(args).items() if value != defaults[name] and name not in reads]:
        raise BadInput(f"got {unread[0]}, which does nothing with --paper or --ours, or (log_f) without -o")
    folder = Path(args.o or "figures")
    if args.paper:
        return published(folder)
    paths = args.runs or (sorted(Path("results").glob("*.jsonl")) if args.ours else [])
    if len(paths) < 1 + args.compare:
        raise BadInput(f"got {len(paths)} RUNs (--ours: results/*.jsonl), expected {1 + args.compare} or more")
    if args.until is not None and not 0 < args.until < np.inf:
        raise BadInput(f"got --until {args.until:g}, expected a compute above 0")
    runs = [read_run(path, args.compute, args.reward)._replace(start=args.fit_from, stop=args.fit_to) for path in paths]
    if args.ours:
        return ours([*map(fit_run, runs)], folder)
    laws = with_tasks(runs[0], paths[0]) if len(runs) == 1 and args.reward == "pass_rate" else [*map(fit_run, runs)]
    found, lines = analyse(laws, [name for name, value in vars(args).items() if value is True], args.until, args.o)
    return [json.dumps(found, indent=1, allow_nan=False)] if args.json else lines


def main(argv=None):
    """The command line; exits with code 2 and one line for what cannot be read, fitted or written."""
    parser = argparse.ArgumentParser(prog="fit.py", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="log.jsonl, its folder, or any CSV or JSONL file")
    add("--x", "--compute", dest="compute", metavar="COL", default="gpu_hours", help="tokens, flops, step, any column")
    add("--reward", metavar="COL", default="pass_rate", help="pass rates (default: pass_rate; of one RUN tasks too)")
    add("--fit-from", default="10%", help="start of the fit: a compute, or a share of its end (default: 10%%)")
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
