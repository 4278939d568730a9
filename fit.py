"""The sigmoidal law of RL compute: fit it, say how sure one can be, forecast with it.

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

from collections import namedtuple
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from scipy.optimize import leastsq, minimize
from scipy.special import expit, logit, stdtrit

PAPER_GRID = (np.linspace(0.450, 0.800, 71), np.linspace(100, 40000, 100))  # A.5: A, and C_mid in GPU-hours
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


class _Profile(namedtuple("_Profile", "A R_0 S free curvature follow weight")):
    """The best A within its limits and R_0 of K shapes, each (K,), their S, and how far A and R_0 may move from there.

    free: the best A without limits    curvature: d2S/dA2 / 2, R_0 following    follow: dR_0/dA    weight: d2S/dR_0^2 / 2
    """


def _profile(points, h):
    """The `_Profile` of h (K, n): R = A (1 - h) + R_0 h is linear in A and R_0."""
    hh, gh = (h * h).sum(1) + points.weight, ((1 - h) * h).sum(1)
    pull = h @ points.R + points.weight * points.R_0
    curvature = np.maximum(((1 - h) ** 2).sum(1) - gh**2 / hh, 1e-30)
    free = ((1 - h) @ points.R - gh * pull / hh) / curvature
    A = np.clip(free, points.low, points.high)
    R_0 = (pull - A * gh) / hh
    S = ((points.R - A[:, None] + (A - R_0)[:, None] * h) ** 2).sum(1) + points.weight * (R_0 - points.R_0) ** 2
    return _Profile(A, R_0, S, free, curvature, -gh / hh, hh)


LIMITS = np.array([[np.log(B_MIN), -1], [np.log(B_MAX), 1]])  # of the cells


def _search(points, factor=1.0, keep=200, levels=4):
    """All over B and C_mid: cells (K, 2) = log B, v and their S (K,), so fine that many have S <= factor * the least S.

    From a coarse grid the best cells are split in nine, level by level.
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
    """Points (S, 4) = A, B, C_mid, R_0 that span the region S <= factor * S_min."""
    cells, S = _search(points, factor, keep=800, levels=12)
    cells, limit = cells[S <= factor * S.min()], factor * S.min()
    B, log_C_mid, h = _shape(points, cells)
    at = _profile(points, h)
    reach = np.sqrt(np.maximum(limit - at.S + at.curvature * (at.A - at.free) ** 2, 0) / at.curvature)
    room = np.sqrt(np.maximum(limit - at.S, 0) / at.weight)
    ends = [(at.A, at.R_0 - room), (at.A, at.R_0 + room)]  # R_0 moves alone, or A moves and R_0 follows
    for A in np.clip([at.free - reach, at.free + reach], points.low, points.high):
        ends.append((A, at.R_0 + at.follow * (A - at.A)))
    return np.concatenate([np.column_stack([A, B, np.exp(log_C_mid), R_0]) for A, R_0 in ends])


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
    best = minimize(lambda cell: _profile(points, _shape(points, cell[None])[2]).S[0], cells[S.argmin()], **precise)
    B, log_C_mid, h = _shape(points, best.x[None])
    return _profile(points, h).A[0], B[0], np.exp(log_C_mid[0])


def fit_power_law(compute, reward, start=None, stop=None):
    """A.4: least squares of R_C = A - D / C^B, A <= 1, B > 0; compute, reward, start, stop and BadInput as in `fit`."""
    run = _checked(Run(compute, reward, start, stop))
    keep = _in_range(run, np.zeros(len(run.compute), bool))
    C, B = run.compute[keep], np.geomspace(B_MIN, 20, 10000)
    points, centre = _Points(np.log(C), run.reward[keep], 0.0, 0.0, -np.inf, 1.0), np.exp(np.log(C).mean())
    # R = A - (A - R_0) h with R_0 free, so D = A - R_0; in units of the centre, h neither over- nor underflows.
    at = _profile(points, (C / centre) ** -B[:, None])
    i = at.S.argmin()
    return PowerLaw(*map(float, (at.A[i], B[i], (at.A[i] - at.R_0[i]) * centre ** B[i], at.S[i])))


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


if __name__ == "__main__":
    from plumbing.fit_cli import main

    main()
