"""How sure can one be of a fit of Eq. 1? Bands, forecasts, comparisons, and when to stop. Only A.5 is the paper's.

Paper: Sec. 2.1 (extrapolation), A.5 (comparing runs), A.7 (robustness). Symbols as in fit.py.

Bands of A, B, C_mid, 90 %: the central nine tenths of the posterior of Eq. 1 given the points. Those of B and C_mid are
valid if Eq. 1 holds. Real curves leave Eq. 1, so the band of A reaches at least up to the 95 % quantile of the forecast
at AHEAD times the compute. If it is wider than WIDE, `known` reports A only as "at least" `Forecast.least`.

Forecasts: their centre is the median of many drawn curves, their 90 % band holds the central nine tenths. A curve is

    R(C) = Eq. 1 + w(log C)                    up to the last fitted compute C_n
    R(C) = R(C_n) + ahead(C) + w's steps       beyond it

- Eq. 1: its parameters are drawn from their posterior given the points (prior A^HIGH if they rise, wide normal ones on
  log B and log C_mid, and one residual of size NOISE as if seen: few points on a curve do not make it exact).
- w, a random walk in log C: real curves drift from Eq. 1, and fall. Its size is weighed by how well it explains the
  fit's residuals (a Kalman filter; prior DRIFT), its value at C_n follows from the residuals.
- ahead: a part of the curves goes on along Eq. 1 (SHARES[0]), a part along a line in log C (SHARES[1]), the rest stays
  where it is. The line has the slope of the points from a third of C_n on, drawn towards 0 (SLOPE) the more the less
  certain it is, times a number drawn uniformly from 0 to DAMPED, or to STEEP if the line rises and the curve has C_mid
  still ahead, where Eq. 1 too gets steeper in log C.
- An evaluation adds noise. If it is known of how many completions it is the mean, the noise is binomial at least, in
  the bands of A, B and C_mid too.
Residuals count as independent but for w: no band includes what all evaluations of one run share (its seed, its
validation prompts). What was tried, and what the numbers above rest on: results/forecasts.md.

Test:  pytest tests/test_forecast.py; what the bands are worth: python -m lab.fit_coverage (on synthetic runs),
       python -m lab.forecasts (on real ones)
"""

from collections import namedtuple
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from scipy.special import expit, fdtri, stdtr, stdtrit

import fit
from fit import BadInput, Fit, Run, levels, residuals, sigmoid

PRIOR = np.array([[np.log(1.8), 0.7], [1, 2]])  # rows: mean, standard deviation; columns: log B, log(C_mid / last C)
DRAWS = 4000  # number of curves
HIGH = 3  # density of A, if the points rise: A^HIGH, the likeliest power on complete curves that rose
NOISE = 0.01  # standard deviation of an evaluation, as one residual would show it before any point is seen
STOP, GO_ON = 0.9, 0.2  # of the stop rule
SAME_A = 0.02  # A.5: A that differ by no more are taken as one
WIDE = 0.25  # a wider band does not determine A
AHEAD = 3  # times the compute: as far ahead as forecasts of real runs were measured, from 30 % to the end
JUMP = 10  # a B above it is a jump between two points: the data do not determine it
SEEDS = {"A": 0.01, "log B": 0.1}  # usual spread between seeds (our runs: 0.009, 0.07)
SEEN = 4  # the weight of SEEDS, in runs
RUNS = "This compares runs, not recipes: with one run a side the spread between seeds is a guess, 0.01 in A, 10 % in B."
RECIPES = "The interval holds the spread between seeds."
CLOSE = 0.05  # a forecast within +- this can be read
FARTHEST = 100  # times the compute
TREND = np.log(3)  # the local slope is that of the points up to TREND before the last
# Chosen by the interval score of forecasts of real runs (results/forecasts.md).
SHARES = 0.6, 0.3  # of the curves that go on along Eq. 1, and along a line; the others stay
SLOPE = 0.2  # standard deviation, before the points are seen, of dR / d log C
DAMPED, STEEP = 1, 5.5
DRIFT = {0: 0.1, 0.01: 0.2, 0.02: 1, 0.04: 2, 0.08: 1, 0.16: 0.3, 0.32: 0.1}  # size of w: sd per e-fold of C
NOISES = np.array([0.5, 0.7, 1.0])  # noise beside w, as a share of the noise without w


class Draws(namedtuple("Draws", "A B C_mid R_0 noise normal slope along offset drift walk")):
    """S equally likely curves, each field (S,).

    noise: standard deviation of one evaluation    normal: a standard normal number, for the error of one evaluation
    slope: dR / d log C beyond the last fitted point of a curve that leaves Eq. 1 there; else 0    along: follows Eq. 1
    offset: w at the last fitted point; before it, w is drawn as growing evenly in log C
    drift: standard deviation of w's steps per e-fold of C    walk: a standard normal number, for w beyond the points
    """


@dataclass(frozen=True, eq=False)
class Forecast(Fit):
    """A Fit with its bands, and curves that may come true. Computes and pass rates as in Fit."""

    bands: dict  # "A", "B", "C_mid" -> (low, high), 90 %; B and C_mid: valid if Eq. 1 holds
    notes: tuple  # "name: what it means here": what was left out, averaged or assumed
    draws: Draws = field(repr=False)

    @property
    def least(self):
        """A is at least this: the lower end of its band, or that of the forecast at AHEAD times the compute."""
        return min(self.bands["A"][0], float(self.quantiles(AHEAD * self.span[1], 0.05)))

    @property
    def falls(self):
        """Whether the fitted points fall after a peak by more than noise would make them. Eq. 1 can only rise.

        Compared are the highest and the last mean of max(3, n/8) points in a row."""
        R = self.fitted.R
        width = min(len(R), max(3, len(R) // 8))
        mean = np.convolve(R, np.ones(width) / width, "valid")
        bends = np.diff(R, min(2, len(R) - 1))  # 0 on a straight line: a steady rise is no noise
        noise = np.median(abs(bends)) / 1.652  # 1.652: their median size for standard normal R
        return bool(mean.max() - mean[-1] > max(0.01, 4 * noise * np.sqrt(2 / width)))

    def curves(self, C):
        """Pass rates (..., S) of the S curves of `draws` at compute C, any shape (...)."""
        C = np.asarray(C, float)[..., None]
        draws = self.draws
        first, last = self.span
        law = sigmoid(np.where(draws.along, C, np.minimum(C, last)), *draws[:4])
        within = np.clip(np.log(np.maximum(C, first) / first) / np.log(last / first), 0, 1)
        ahead = np.log(np.maximum(C / last, 1))
        left = draws.slope * ahead + draws.offset * within + draws.drift * draws.walk * np.sqrt(ahead)
        return np.clip(law + left, 0, 1)

    def quantiles(self, C, shares, mean_of=np.inf):
        """Quantiles (len(shares), ...) at C, any shape, of the mean of `mean_of` evaluations (inf: of the curve)."""
        values = self.curves(C) + self.draws.noise * self.draws.normal / np.sqrt(mean_of)
        return np.quantile(np.clip(values, 0, 1), shares, axis=-1)

    def median(self, C):
        """The forecast at C, any shape: the median of the curves."""
        return self.quantiles(C, [0.5])[0]

    def band(self, C, mean_of=np.inf):
        """90 % band (low, high) at C, any shape, of the mean of `mean_of` evaluations there (inf: of the curve)."""
        return tuple(self.quantiles(C, (0.05, 0.95), mean_of))


def forecast(compute, reward, r0=None, start=None, stop=None, *, A=None, grid=None):
    """`fit.fit`, with the same arguments and errors, and its bands: a Forecast."""
    return forecast_run(Run(compute, reward, start, stop, r0), A=A, grid=grid)


def forecast_run(run, *, A=None, grid=None):
    """`forecast` of a Run, or of a pair (compute, reward), with the Run's own start, stop and r0."""
    law = fit.fit_run(run, A=A, grid=grid)
    draws = _draws(law)
    bands = {}
    for name in ("A", "B", "C_mid"):
        best = getattr(law, name)
        low, high = np.quantile(getattr(draws, name), (0.05, 0.95)).tolist()
        bands[name] = min(low, best), max(high, best)
    law = Forecast(**vars(law), bands=bands, notes=_notes(law), draws=draws)
    if A is None:
        low, high = bands["A"]
        bands["A"] = low, max(high, float(law.quantiles(AHEAD * law.span[1], 0.95)))
    return law


def least_noise(law):
    """The binomial standard deviation of an evaluation, if it is known of how many completions it is the mean; else 0.
    One right and one wrong completion are added to all, so that it is above 0 where all failed."""
    n = law.run.completions
    if n is None:
        return 0.0
    R = law.run.reward[law.kept]
    mean = (n * R.sum() + 1) / (n * len(R) + 2)
    return float(np.sqrt(mean * (1 - mean) / n))


def _slope(points, jump, noise):
    """The slope dR / d log C of a line through the points from a third of the last compute on, or through the last 4
    different computes: its mean, its standard deviation and degrees of freedom.

    The line takes in no points before a jump (at log C = `jump`) that 20 points follow. Its slope is drawn towards 0 by
    the prior SLOPE. noise: standard deviation of one evaluation; the scatter about the line counts as at least that.
    """
    since = min(points.u[-1] - TREND, np.unique(points.u)[-4:][0])
    if (points.u > jump).sum() >= 20:
        since = max(since, jump)
    late = points.u >= since
    u, R, n = (x[late] for x in points[:3])
    (slope, level), unscaled = np.polyfit(u, R, 1, w=np.sqrt(n), cov="unscaled")
    freedom = len(u) - 2
    scatter = n @ (R - level - slope * u) ** 2 / freedom
    variance = max(scatter, noise**2) * unscaled[0, 0]
    share = SLOPE**2 / (SLOPE**2 + variance)
    return share * slope, np.sqrt(share * variance), max(freedom, 3)


def _walk(points, misses, noise, floor, random):
    """Draw the walk w of S curves: its value at the last point, its size, and the noise beside it; each (S,).

    misses (n, S): of the points, from each curve    noise: standard deviation of one evaluation without w, at least
    floor. The size and the noise are weighed by the likelihood of the median misses (a Kalman filter over the points).
    """
    sizes, noises = (x.ravel() for x in np.meshgrid(list(DRIFT), np.maximum(noise * NOISES, floor)))
    middle = np.median(misses, axis=1)
    state = np.zeros(len(sizes))
    variance = np.zeros(len(sizes))
    likelihood = np.log(np.tile(list(DRIFT.values()), len(NOISES)))
    weights = np.zeros((len(sizes), len(points.u)))  # the state is a weighted sum of the misses
    for i, step in enumerate(np.diff(points.u, prepend=points.u[0])):
        variance = variance + sizes**2 * step
        total = variance + noises**2 / points.count[i]
        gain = variance / total
        surprise = middle[i] - state
        likelihood = likelihood - (np.log(total) + surprise**2 / total) / 2
        state = state + gain * surprise
        weights *= (1 - gain)[:, None]
        weights[:, i] = gain
        variance = variance * (1 - gain)
    chance = np.exp(likelihood - likelihood.max())
    k = random.choice(len(sizes), DRAWS, p=chance / chance.sum())
    offset = (weights[k] * misses.T).sum(1) + np.sqrt(variance[k]) * random.normal(size=DRAWS)
    return offset, sizes[k], noises[k]


def _posterior(points, floor, power, random, cells=41):
    """Draw A, B, C_mid, R_0 and noise, (DRAWS,) each, from the posterior of Eq. 1.

    Priors: A^power on A, flat on R_0, PRIOR on log B and log C_mid, a residual of NOISE on the noise, which is at least
    `floor`. B and C_mid are drawn from a grid of `cells` by `cells`, narrowed twice to where their probability lies.
    Given these, A has a truncated Student's t (times A^power); given A and the noise too, R_0 is normal.
    """
    mean, deviation = PRIOR
    last = points.u[-1]
    freedom = len(points.u)  # less one for A, R_0 and the noise, and one for the residual of NOISE
    low, high = mean - 3.5 * deviation, mean + 3.5 * deviation
    for _ in range(3):
        shapes = np.stack(np.meshgrid(*np.linspace(low, high, cells).T), -1).reshape(-1, 2)
        h = expit(np.exp(shapes[:, :1]) * (shapes[:, 1:] + last - points.u))
        at = levels(points, h)
        S = (residuals(points, h, at.free, at.base + at.follow * at.free) ** 2).sum(1) + NOISE**2
        least = freedom * floor**2
        below = np.minimum(S - least, 0) / max(least, NOISE**2)  # there the noise is known, and S counts as if normal
        S = np.maximum(S, least)
        width = np.sqrt(S / freedom / at.curvature)
        side = np.where(at.free < at.low, -1, 1)  # A in the upper tail is mirrored: stdtr is precise in the lower one
        ends = np.sort([side * (end - at.free) / width for end in (at.low - 1e-9, at.high + 1e-9)], axis=0)
        tail, upper = stdtr(freedom, ends)
        share = np.maximum(upper - tail, 1e-300)  # of Student's t that lies within the limits of A
        weight = np.log(share) - freedom / 2 * (np.log(S) + below) - np.log(at.curvature * at.weight) / 2
        weight -= (((shapes - mean) / deviation) ** 2).sum(1) / 2
        weight = np.exp(weight - weight.max())
        step = (high - low) / (cells - 1)
        likely = shapes[weight > 1e-4]
        low, high = likely.min(0) - step, likely.max(0) + step
    i = random.choice(len(shapes), 4 * DRAWS, p=weight / weight.sum())
    x = stdtrit(freedom, tail[i] + share[i] * random.random(len(i)))
    A = np.clip(at.free[i] + side[i] * width[i] * x, at.low[i], at.high[i])
    chosen = random.choice(len(A), DRAWS, p=A**power / (A**power).sum())
    i, A = i[chosen], A[chosen]
    noise = np.sqrt((S[i] + at.curvature[i] * (A - at.free[i]) ** 2) / random.chisquare(freedom + 1, DRAWS))
    R_0 = at.base[i] + at.follow[i] * A + noise / np.sqrt(at.weight[i]) * random.normal(size=DRAWS)
    B, C_mid = np.exp(shapes[i] + (0, last)).T
    return A, B, C_mid, np.clip(R_0, 0, A), noise


def _draws(law):
    """The `Draws` for the Fit `law`, as the head of this file says."""
    points = law.fitted
    random = np.random.default_rng(0)
    floor = least_noise(law)
    A, B, C_mid, R_0, noise = _posterior(points, floor, HIGH if gains(law) else 0, random)
    misses = points.R[:, None] - sigmoid(np.exp(points.u)[:, None], A, B, C_mid, R_0)
    offset, drift, noise = _walk(points, misses, np.median(noise), floor, random)
    jump = np.log(law.C_mid) if law.B > JUMP else -np.inf
    mean, deviation, freedom = _slope(points, jump, np.median(noise))
    slope = mean + deviation * random.standard_t(freedom, DRAWS)
    ahead = C_mid > np.exp(points.u[-1])  # beyond the points
    slope *= random.uniform(0, 1, DRAWS) * np.where((slope > 0) & ahead, STEEP, DAMPED)
    kind = np.arange(DRAWS) / DRAWS
    along = kind < SHARES[0]
    slope[along | (kind >= sum(SHARES))] = 0
    normal, walk = random.normal(size=(2, DRAWS))
    return Draws(A, B, C_mid, R_0, noise, normal, slope, along, offset, drift, walk)


def _notes(law):
    """The notes of the run, and those on the fitted points. No note predicts whether the forecast will miss."""
    points = law.fitted
    assumed = law.run.r0 is None and not (law.run.compute == 0).any()
    known = {
        f"averaged to {len(points.u)} points, neighbours in log C": len(points.u) < law.points,
        f"R_0 assumed: no point at C = 0 and no r0, so the first point, {points.R_0:.4g}, is taken for it": assumed,
    }
    return *law.run.notes, *(text for text, holds in known.items() if holds)


def reach(law):
    """The largest multiple of the last fitted compute, at most FARTHEST, up to which the band is CLOSE to its middle;
    1 if it is not even there."""
    multiples = np.geomspace(1, FARTHEST, 61)
    low, high = law.band(multiples * law.span[1])
    far = np.append(high - low > 2 * CLOSE, True)
    return float(multiples[max(far.argmax() - 1, 0)])


def known(law):
    """{name: what is known of it} for those of A, B, C_mid that the points do not determine."""
    if law.falls or not gains(law):
        fall = "the points fall after a peak: Eq. 1 only rises, so it does not hold"
        return dict.fromkeys(("A", "B", "C_mid"), fall if law.falls else "no gain yet: nothing to fit")
    low, high = law.bands["A"]
    found = {}
    if high - low > WIDE or law.fitted.A is None and law.median(AHEAD * law.span[1]) > law.A + CLOSE:
        found["A"] = f"A is at least {law.least:.3f}: the points do not say where the rise ends"
        found["C_mid"] = "C_mid is not determined: half of the gain is not known"
    if law.B > JUMP:
        found["B"] = found["C_mid"] = "B and C_mid are not determined: the rise is a jump between two points"
    return found


def gains(law):
    """Do the points rise? True if a constant fits them worse than Eq. 1 by more than chance (F test, 5 %).

    As in the posterior, one residual of NOISE counts as seen: a few points that Eq. 1 meets exactly can rise too."""
    points = law.fitted
    R = np.append(points.R, points.R_0)
    n = np.append(points.count, points.weight)
    flat = n @ (R - n @ R / n.sum()) ** 2
    freedom = len(points.u) - 2  # points and R_0 and that residual, less four parameters
    squares = law.ssr + points.weight * (law.R_0 - points.R_0) ** 2 + NOISE**2
    least = max(squares, freedom * least_noise(law) ** 2)
    return bool((flat - least) / 3 > least / freedom * fdtri(3, freedom, 0.95))


def stop_rule(law, gain=0.02, times=2):
    """Is it worth going on from the last fitted compute C to `times` C?

    P is the chance that the evaluations of the last fifth of the way to times C lie less than `gain` above those of the
    last fifth of the way to C, counted over the curves with their noise: what the user will see, not what holds of a
    curve without noise. Returns (P, verdict): "stop" if P >= STOP, "go on" if P <= GO_ON, else "cannot tell yet" and
    when to look again.
    """
    last = law.span[1]
    count = law.fitted.count[law.fitted.u > np.log(0.8 * last)].sum()
    rise = law.curves((times - 0.1) * last) - law.curves(0.9 * last)
    P = float((rise + law.draws.noise * law.draws.normal * np.sqrt(2 / count) < gain).mean())
    unclear = f"cannot tell yet; look again at C = {1.5 * last:.4g}"
    return P, "stop" if P >= STOP else "go on" if P <= GO_ON else unclear


def fitted(run, **changes):
    """[Forecast] of the run with these fields replaced, or [] if it cannot be fitted (too few points, say)."""
    with suppress(BadInput):
        return [forecast_run(run._replace(**changes))]
    return []


def hindcast(law, last=1):
    """Compare a law that was fitted to a part of its run with the run's end, the mean of the `last` evaluations.

    Returns a dict: C (mean compute of these evaluations); forecast and its 90 % band low, high for such a mean;
    measured; error = forecast - measured; points (fitted ones); inside (is measured in the band?).
    """
    C = law.run.compute[-last:].mean()
    measured = law.run.reward[-last:].mean()
    value = law.median(C)
    low, high = law.band(C, mean_of=last)
    row = {"C": C, "forecast": value, "low": low, "high": high, "measured": measured, "error": value - measured}
    found = {name: float(x) for name, x in row.items()}
    return found | {"points": law.points, "inside": bool(low <= measured <= high)}


def hindcasts(run, cuts=(10, 20, 30, 50, 70), last=5):
    """How early can the end of a run be forecast? One `hindcast` from the first part of its compute for each of `cuts`.

    cuts: per cent of the compute. Returns a list of `hindcast`'s dicts, each with "run" and "share" added. A cut is
    left out if too few points lie before it, or if one of the evaluations to be forecast does.
    """
    laws = [(cut, law) for cut in cuts for law in fitted(run, stop=f"{cut}%") if law.span[1] < law.run.compute[-last]]
    return [{"run": run.name, "share": cut / 100} | hindcast(law, last) for cut, law in laws]


# ---- Which is better? ----


def compare(sides, C=None):
    """A.5: rank two or more sides, each a Forecast or a list of them (runs of one recipe); can the data tell?

    Compared are the means over the runs of a side, in the first of these quantities that all runs have:
        A             where it is a number (`known`). Sides within SAME_A of the highest mean A are refitted with A
                      fixed to their mean and compared in
        log B         if the data determine the B of all of them, and each A within CLOSE if Eq. 1 holds
        the forecast  at twice the compute of the shortest run, where some A is no number; at C if that is given
    Runs that fall after a peak are left out, as Eq. 1 cannot: a side without any other run cannot be compared.
    Returns the Forecasts, the best side's first (refitted where A was fixed), and a sentence about the two best sides.
    """
    sides = [side if isinstance(side, list) else [side] for side in sides]
    fallen = ", ".join(law.run.name for side in sides for law in side if law.falls)
    rising = [[law for law in side if not law.falls] for side in sides]
    if not all(rising):
        return sum(sides, []), f"The data cannot tell which scales better: {fallen}: falls after a peak, Eq. 1 does not"
    ranked, values, name, unit = _quantity(rising, C)
    gap, low, high = difference(values[0], values[1], SEEDS[unit])
    tell = "and the data can tell" if low > 0 else "but the data cannot tell"
    by = "higher"
    if unit == "log B":
        gap, low, high = np.exp([gap, low, high])
        by = "times as high"
    one, other = (side[0].run.name + f" and {len(side) - 1} more" * (len(side) > 1) for side in ranked[:2])
    better = f"{one} scales better than {other}, {tell}: {name} is {gap:.3f} {by}"
    out = f" Left out, as they fall after a peak: {fallen}." if fallen else ""
    seeds = RUNS if max(map(len, ranked[:2])) == 1 else RECIPES
    return sum(ranked, []), f"{better} (90 % interval {low:.3f} to {high:.3f}).{out} {seeds}"


def _ranked(sides, value):
    """The sides, the highest mean value first, and for each its values (n, 3) with their bands."""
    rows = [np.array([value(law) for law in side], float) for side in sides]
    order = sorted(range(len(sides)), key=lambda i: -rows[i][:, 0].mean())
    return [sides[i] for i in order], [rows[i] for i in order]


def _quantity(sides, C):
    """What `compare` compares: the sides, best first; for each its values (n, 3) with their bands; words; the unit."""
    unknown = any("A" in known(law) for side in sides for law in side)
    if C or unknown:
        C = C or 2 * min(law.span[1] for side in sides for law in side)
        words = "as some A are not determined, " * unknown + f"by the forecasts: at C = {C:.4g} it"
        return *_ranked(sides, lambda law: law.quantiles(C, (0.5, 0.05, 0.95))), words, "A"
    sides, values = _ranked(sides, lambda law: (law.A, *law.bands["A"]))
    means = [rows[:, 0].mean() for rows in values]
    close = sum(means[0] - mean <= SAME_A for mean in means)
    A = float(np.mean(means[:close]))
    spread = [np.ptp(np.quantile(law.draws.A, (0.05, 0.95))) for side in sides[:close] for law in side]
    if close > 1 and max(spread) <= 2 * CLOSE and (common := _with_common_A(sides[:close], A)):
        common, values = _ranked(common, lambda law: np.log([law.B, *law.bands["B"]]))
        return common + sides[close:], values, f"with a common A = {A:.3f}, its B", "log B"
    return sides, values, f"without a common A (within {SAME_A}, each B determined), its A", "A"


def _with_common_A(sides, A):
    """The sides refitted with A fixed; None if that is not above the points of each, or a B may be a mere jump."""
    try:
        sides = [[forecast_run(law.run, A=A) for law in side] for side in sides]
    except BadInput:
        return None
    return sides if all(law.bands["B"][1] <= JUMP for side in sides for law in side) else None


def difference(one, other, typical):
    """(mean of one - mean of other, low, high), 90 %. one (n, 3), other (m, 3): value, low and high of each run.

    The interval joins the bands of the runs (MOVER, asymmetric) with t s sqrt(1/n + 1/m). s is the standard deviation
    between seeds: the runs' scatter about their side's mean, without what their bands explain, and, as if SEEN runs
    more had shown it, `typical`.
    """
    x, y = one[:, 0], other[:, 0]
    gap = x.mean() - y.mean()
    fits = ((np.ptp(np.concatenate([one, other])[:, 1:], axis=1) / 3.29) ** 2).mean()  # 90 % of a normal: 3.29 wide
    freedom = len(x) + len(y) - 2
    squares = len(x) * x.var() + len(y) * y.var() - freedom * fits
    s = np.sqrt((SEEN * typical**2 + max(squares, 0)) / (SEEN + freedom))
    seeds = stdtrit(SEEN + freedom, 0.95) * s * np.sqrt(1 / len(x) + 1 / len(y))
    reach = [np.sqrt(((rows[:, :1] - rows[:, 1:]) ** 2).sum(0)) / len(rows) for rows in (one, other)]
    (x_low, x_high), (y_low, y_high) = reach
    return gap, gap - np.sqrt(x_low**2 + y_high**2 + seeds**2), gap + np.sqrt(x_high**2 + y_low**2 + seeds**2)
