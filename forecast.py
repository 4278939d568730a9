"""How sure can one be of a fit of Eq. 1? Bands, forecasts, warnings, and when to stop. Ours; the paper has none of it.

Paper: Sec. 2.1 (extrapolation), A.5 (comparing runs), A.7 (robustness). Symbols as in fit.py.

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

Test:  pytest tests/test_forecast.py; what the bands are worth: python benchmarks/fit_coverage.py (on synthetic runs),
       python benchmarks/forecasts.py (on real ones)
"""

from collections import namedtuple
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import expit, stdtr, stdtrit

import fit
from fit import JUMP, BadInput, Fit, Run, best_R_0, peak, profile, search, shape, sigmoid, squares

PRIOR = np.array([[np.log(1.8), 0], [1, 2]])  # rows: mean, standard deviation; columns: log B, log(C_mid / last C)
DRAWS = 2000  # number of curves
TREND = np.log(3)  # the local slope is that of the points up to TREND before the last


class Draws(namedtuple("Draws", "A B C_mid R_0 noise normal slope")):
    """S equally likely curves, each field (S,).

    noise: standard deviation of one evaluation    normal: a standard normal number, for the error of one evaluation
    slope: dR / d log C of the curve beyond the last fitted point, where it leaves Eq. 1; 0 if it follows Eq. 1
    """


@dataclass(frozen=True, eq=False)
class Forecast(Fit):
    """A Fit with its bands, and curves that may come true. Computes and pass rates as in Fit."""

    noise: float  # half-width of the 90 % band of one evaluation about the curve
    bands: dict  # "A", "B", "C_mid" -> (low, high), 90 %, valid if Eq. 1 holds
    warnings: tuple  # "name: what it means here", each a reason to doubt the forecast
    notes: tuple  # what was left out or averaged, and the share of points in the first epoch
    region: np.ndarray = field(repr=False)  # (M, 4) A, B, C_mid, R_0: M points that span the 90 % region of Eq. 1
    draws: Draws = field(repr=False)

    def curves(self, C):
        """Pass rates (..., S) of the S curves of `draws` at compute C, any shape (...)."""
        C = np.asarray(C, float)[..., None]
        draws = self.draws
        last = self.span[1]
        followed = np.where(draws.slope == 0, C, np.minimum(C, last))
        left = draws.slope * np.log(np.maximum(C / last, 1))
        return np.clip(sigmoid(followed, *draws[:4]) + left, 0, 1)

    def band(self, C, mean_of=np.inf):
        """90 % band (low, high) at C, any shape, of the mean of `mean_of` evaluations there (inf: of the curve itself).

        Widened where needed, so that it always holds `predict(C)`.
        """
        values = self.curves(C) + self.draws.noise * self.draws.normal / np.sqrt(mean_of)
        low, high = np.quantile(np.clip(values, 0, 1), (0.05, 0.95), axis=-1)
        centre = self.predict(C)
        return np.minimum(low, centre), np.maximum(high, centre)


def forecast(compute, reward, r0=None, start=None, stop=None, method="continuous", *, A=None, epoch=None, **grid):
    """`fit.fit`, with the same arguments and errors, and its bands: a Forecast."""
    return forecast_run(Run(compute, reward, start, stop, r0, epoch=epoch), method, A=A, **grid)


def forecast_run(run, method="continuous", *, grid=fit.PAPER_GRID, A=None):
    """`forecast` of a Run, or of a pair (compute, reward), with the Run's own start, stop, r0 and epoch."""
    law = fit.fit_run(run, method, grid=grid, A=A)
    points = law.fitted
    freedom = len(points.u) - (3 if A is None else 2)
    S = law.ssr + points.weight * (law.R_0 - points.R_0) ** 2
    quantile = stdtrit(freedom, 0.95)
    best = law.A, law.B, law.C_mid, law.R_0
    region = np.concatenate([[best], _region(points, 1 + quantile**2 / freedom)])
    bands = dict(zip(("A", "B", "C_mid"), zip(region.min(0).tolist(), region.max(0).tolist())))
    noise = float(quantile * np.sqrt(S / freedom))
    found = Forecast(
        **vars(law), noise=noise, bands=bands, warnings=(), notes=_notes(law), region=region, draws=_draws(points)
    )
    edges = {"A": (law.R_0, 1.0) if A is None else (A, A), "B": (fit.B_MIN, fit.B_MAX)}
    edges = edges if method == "continuous" else dict(zip(("A", "C_mid"), grid))
    return replace(found, warnings=_warnings(found, edges))


def _region(points, factor):
    """Points (M, 4) = A, B, C_mid, R_0 that span the region S <= factor * S_min."""
    cells, S = search(points, factor, keep=800, levels=12)
    cells, limit = cells[S <= factor * S.min()], factor * S.min()
    B, log_C_mid, h = shape(points, cells)
    at = profile(points, h)
    reach = np.sqrt(np.maximum(limit - at.S + at.curvature * (at.A - at.free) ** 2, 0) / at.curvature)
    room = np.sqrt(np.maximum(limit - at.S, 0) / at.weight)
    ends = [(at.A, np.clip(at.R_0 + move, 0, at.A)) for move in (-room, room)]  # R_0 moves, A stays
    ends += [(A, best_R_0(at.base, at.follow, A)) for A in np.clip([at.free - reach, at.free + reach], at.low, at.high)]
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
    """The `_Ceiling` of shapes whose `Profile` is `at` and whose sum of squares at A = at.free is S (K,)."""
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
        at = profile(points, h)
        S = np.maximum(squares(points, h, at.free, at.base + at.follow * at.free), 1e-10)
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


def _notes(law):
    """The notes of the run, and those on the fitted points."""
    early = (law.run.epoch[law.kept] < 1).mean()
    known = {
        f"averaged to {law.averaged} points, neighbours in log C": law.averaged < law.points,
        f"{early:.0%} of the fitted points lie in the first epoch, which the paper leaves out": early > 0,
    }
    return *law.run.notes, *(text for text, holds in known.items() if holds)


def _warnings(law, edges):
    """The warnings of the Forecast `law`.

    edges: parameter name -> the values searched, ascending; its first and last are equal if the caller fixed it.
    """
    points = law.fitted
    R = points.R
    low, high = law.bands["A"]
    _, drop, limit = peak(R)
    assumed = law.run.r0 is None and not (law.run.compute == 0).any()
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
    """[Forecast] of the run with these fields replaced, or [] if it cannot be fitted (too few points, say)."""
    with suppress(BadInput):
        return [forecast_run(run._replace(**changes))]
    return []


def hindcast(law, last=1):
    """Compare a law that was fitted to a part of its run with the run's end, the mean of the `last` evaluations.

    Returns a dict: A, A_low, A_high; C (mean compute of these evaluations); forecast and its 90 % band low, high for
    such a mean; measured; error = forecast - measured; points (fitted ones); inside (is measured in the band?).
    """
    C, measured = law.run.compute[-last:].mean(), law.run.reward[-last:].mean()
    value, (low, high) = law.predict(C), law.band(C, mean_of=last)
    names = ("A", "A_low", "A_high", "C", "forecast", "low", "high", "measured", "error")
    row = zip(names, map(float, (law.A, *law.bands["A"], C, value, low, high, measured, value - measured)))
    return dict(row) | {"points": law.points, "inside": bool(low <= measured <= high)}


def hindcasts(run, cuts=(10, 20, 30, 50, 70), last=5):
    """How early can the end of a run be forecast? One `hindcast` from the first part of its compute for each of `cuts`.

    cuts: per cent of the compute. Returns a list of `hindcast`'s dicts, each with "run" and "share" added. A cut is
    left out if too few points lie before it, or if one of the evaluations to be forecast does.
    """
    laws = [(cut, law) for cut in cuts for law in fitted(run, stop=f"{cut}%") if law.span[1] < law.run.compute[-last]]
    return [{"run": run.name, "share": cut / 100} | hindcast(law, last) for cut, law in laws]


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
        laws[: len(close)] = sorted([forecast_run(law.run, A=A) for law in close], key=lambda law: -law.B)
        name, why = "B", f"with a common A = {A:.3f}"
    (x, x_low, x_high), (y, y_low, y_high) = ((getattr(law, name), *law.bands[name]) for law in laws[:2])
    low, high = x - y - np.hypot(x - x_low, y_high - y), x - y + np.hypot(x_high - x, y - y_low)
    tell = "and the data can tell" if low > 0 else "but the data cannot tell"
    better = f"{laws[0].run.name} scales better than {laws[1].run.name}, {tell}: {why}, its {name} is higher by"
    return laws, f"{better} {x - y:.3f} (90 % interval {low:.3f} to {high:.3f}, spread of seeds not counted)."
