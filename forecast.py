"""How sure can one be of a fit of Eq. 1? Bands, forecasts, comparisons, and when to stop. Only A.5 is the paper's.

Paper: Sec. 2.1 (extrapolation), A.5 (comparing runs), A.7 (robustness). Symbols as in fit.py.

A run follows Eq. 1, plus a random walk in log C, plus the noise of each evaluation. The walk, by which real curves
leave Eq. 1, takes steps of about a fifth of the gain per e-fold of compute. There may also be no gain.

    R_i  = R_0 + G g(C_i) + d(log C_i) + e_i,    g(C) = 1 / (1 + (C_mid / C)^B),   G = A - R_0            (Eq. 1)
    d(u) = Wiener process of variance w^2 per e-fold of C, 0 at the first fitted point (the "discrepancy" of Kennedy &
           O'Hagan, 2001);  log w has a Laplace distribution about log(WALK G);  WALKS, each as likely, if G = 0
    e_i ~ N(0, s^2 / n_i)          point i is the mean of n_i evaluations; the measured R_0 is one more point with d = 0

Given B, C_mid, w and s, this is a linear regression on X = (1, g) with the covariance K = w^2 min(u_i, u_j) + s^2 / n_i
of the points. With y less X m, and R_0 and G each N(m, m^2), m = LEVELS, before they are cut to 0 <= R_0 <= A <= 1:

    (R_0, G) ~ N(m + M^-1 X'K^-1 y, M^-1),   M = X'K^-1 X + I / m^2
    weight of a cell (B, C_mid, w, s) = prior * exp(-(y'K^-1 y - y'K^-1 X M^-1 X'K^-1 y) / 2) / sqrt(det K det M)
    weight of a part of a cell = the weight of the cell  x  the mass of G in (0, 1) / PARTS
                                 x  the mass of R_0 in (0, 1 - G), given the G of the part
                                 x  the priors of A, A^HIGH, and of w, given that G

All that is said of a run comes from the same curves, drawn from the parts: A, B, C_mid and their bands, the forecast,
which is the level at the last fitted compute plus what Eq. 1 and the walk add, how far it reaches, and when to stop.
Residuals count as independent but for the walk: no band includes what all evaluations of one run share (its seed, its
validation prompts). How the constants were chosen, and what the forecasts are worth: results/forecasts.md.

Test:  pytest tests/test_forecast.py; on real and on synthetic runs: python -m lab.forecasts
Page: docs/forecasting.md
"""

from collections import namedtuple
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

import fit
from fit import BadInput, Fit, sigmoid

# Chosen by the interval score of forecasts of real runs, whole sources left out (results/forecasts.md).
LOG_B, LOG_C_MID = (np.log(2.5), 0.7), (0, 2)  # normal (mean, sd) of log B, and of log(C_mid / last C)
WALK, SPREAD = 0.2, 0.3  # median of w as a share of the gain, and the mean distance of its logarithm from there
WALKS = 0.005 * 2.0 ** np.arange(6)  # the w that are tried: 0.005 to 0.16
HIGH = 3  # the prior of A given R_0 goes with A^HIGH
FLAT = 0.2  # odds that there is no gain
NOISE = 0.01  # prior of s: 1/s, and one residual of this size as if seen
MOST, DRAWS = 50, 4000  # points, neighbours being averaged; curves
CELLS = 13, 29, 7  # of log B, log C_mid, log s; three times narrowed to where the probability lies
PARTS = 12  # of a cell, by the gain
REACHES = 3.5  # standard deviations of their priors, as far as log B and log C_mid are tried
LEVELS = 0.5  # prior mean and standard deviation of R_0 and of G
STOP, GO_ON = 0.9, 0.2  # of the stop rule
GAIN = 0.02  # its least rise
SAME_A = 0.02  # A.5: A that differ by no more are taken as one
WIDE = 0.25  # a wider band does not determine A
BOUND = 0.97  # nor does one that reaches so far
JUMP = 10  # a B above it is a jump between two points: the data do not determine it
SEEDS = "This compares runs, not recipes: in the paper seeds differed by 0.01 in A and 10 % in B, elsewhere by more."
NAMES = "A", "B", "C_mid"  # what a band is given for
CLOSE = 0.05  # a forecast within +- this can be read
FARTHEST = 100  # times the compute
SOUGHT = 10  # times the compute: as far as `reach` looks


class Draws(namedtuple("Draws", "A B C_mid R_0 walk noise level steps error")):
    """S equally likely curves, each field (S,).

    walk: w    noise: s, of one evaluation    level: R at the last fitted compute, without noise
    steps, error: standard normal numbers, for the walk beyond the points and the error of one evaluation
    """


# ---- The posterior ----


class Data(namedtuple("Data", "C y variance walked")):
    """What is explained, each (n,): compute, 0 of R_0 and 1e300 of a given A; pass rates, and their variances in units
    of s^2; how far the walk has come, in e-folds of C."""


def observed(law):
    """The `Data` of a Fit: the measured R_0, the points, and A if it is given."""
    C, R, count = fit.averaged(law.run.compute[law.kept], law.run.reward[law.kept], MOST)
    rows = [(0, law.fitted.R_0, 1 / law.fitted.weight, 0), *zip(C, R, 1 / count, np.log(C / C[0]))]
    if law.fitted.A is not None:
        rows.append((1e300, law.fitted.A, 0, 0))  # where Eq. 1 is at A, but for a curve that never rises
    return Data(*np.transpose(rows))


class Cells(namedtuple("Cells", "shapes steps sizes weight mean variance gain inverse")):
    """S shapes (log B, log C_mid), (S, 2), steps (2,) apart, and P sizes (w, s), (P, 2); of their PARTS the logs of the
    weights and the gains, (PARTS, P, S); of R_0 and G without limits the mean (P, S, 2) and the covariance
    (P, S, 2, 2); the inverse covariance K of the pass rates (P, n, n)."""


def weigh(data, prior, axes):
    """The `Cells` of these axes, log B, log C_mid and log s. In each the pass rates are linear in R_0 and G.

    prior: the means and the standard deviations of log B and log C_mid"""
    shapes = np.array([*product(*axes[:2])])
    sizes = np.array([*product(WALKS, np.exp(axes[2]))])
    steps = np.array([axis[1] - axis[0] for axis in axes[:2]])
    of_shape = np.log(steps / prior[1] / np.sqrt(2 * np.pi)).sum() - (((shapes - prior[0]) / prior[1]) ** 2).sum(1) / 2
    shapes = np.vstack([shapes, (0, np.inf)])  # the last one never rises
    of_shape = np.append(of_shape, np.log(FLAT))
    B, C_mid = np.exp(shapes.T)
    g = sigmoid(data.C[:, None], 1, B, C_mid, 0)
    X = np.stack([np.ones_like(g), g])  # (2, n, S)
    y = data.y[:, None] - LEVELS * X.sum(0)
    w, s = sizes.T[:, :, None, None]
    covariance = (
        w**2 * np.minimum.outer(data.walked, data.walked) + s**2 * np.diag(data.variance) + 1e-12 * np.eye(len(y))
    )
    inverse = np.linalg.inv(covariance)
    precision = np.einsum("ink,pjnk->pkij", X, inverse[:, None] @ X) + np.eye(2) / LEVELS**2
    pulled = inverse @ y
    b = np.einsum("pnk,ink->pki", pulled, X)
    beta = np.linalg.solve(precision, b[..., None])[..., 0]
    weight = (b * beta).sum(2) - (y * pulled).sum(1) - np.linalg.slogdet(precision)[1]
    weight -= (np.linalg.slogdet(covariance)[1] + 2 * np.log(sizes[:, 1]) + (NOISE / sizes[:, 1]) ** 2)[:, None]
    mean, variance = beta + LEVELS, np.linalg.inv(precision)
    parts = ((np.arange(PARTS) + 0.5) / PARTS)[:, None, None]
    gain, mass = truncated(mean[..., 1], np.sqrt(variance[..., 1, 1]), 1, parts)
    middle, deviation = R_0_given(gain, mean, variance)
    _, mass_of_R_0 = truncated(middle, deviation, 1 - gain, 0.5)
    rises = mass + mass_of_R_0 + prior_of(mean[..., 0], gain, w[..., 0])
    weight = weight / 2 + of_shape + np.where(np.isfinite(C_mid), rises, 0)
    return Cells(shapes, steps, sizes, weight, mean, variance, gain, inverse)


def truncated(mean, deviation, high, share):
    """(the quantile `share` of a normal distribution that is cut to (0, high), the log of its mass there)."""
    low, high = -mean / deviation, (high - mean) / deviation
    side = np.where(low > 0, -1, 1)  # of the mirrored distribution, where differences of the tails are exact
    low, high = np.where(low > 0, -high, low), np.where(low > 0, -low, high)
    outside = np.minimum(np.exp(log_ndtr(low) - log_ndtr(high)), 1 - 1e-12)
    share = np.where(side > 0, share, 1 - share)
    value = mean + side * deviation * ndtri_exp(log_ndtr(high) + np.log(outside + (1 - outside) * share))
    return value, log_ndtr(high) + np.log1p(-outside)


def R_0_given(gain, mean, variance):
    """Mean and standard deviation of R_0 for a gain, of these means (..., 2) and covariances (..., 2, 2)."""
    slope = variance[..., 0, 1] / variance[..., 1, 1]
    rest = variance[..., 0, 0] - slope * variance[..., 0, 1]
    return mean[..., 0] + slope * (gain - mean[..., 1]), np.sqrt(np.maximum(rest, 1e-14))


def likely_cells(law, data):
    """The `Cells` where the probability lies."""
    mean, deviation = np.transpose([LOG_B, LOG_C_MID])
    mean = mean + (0, np.log(law.span[1]))
    least = max(0.002, least_noise(law))
    limits = [*zip(mean - REACHES * deviation, mean + REACHES * deviation), np.log([least, max(0.45, 2 * least)])]
    axes = [np.linspace(*ends, n) for ends, n in zip(limits, CELLS)]
    for _ in range(3):
        weight = weigh(data, (mean, deviation), axes).weight[..., :-1]
        mass = np.exp(weight - weight.max()).sum(0).reshape(len(WALKS), CELLS[2], *CELLS[:2])
        for j, others in enumerate([(0, 1, 3), (0, 1, 2), (0, 2, 3)]):
            axis = axes[j]
            likely = axis[mass.sum(others) > 3e-4 * mass.sum()]
            step = 0.7 * (axis[1] - axis[0])
            axes[j] = np.linspace(max(axis[0], likely[0] - step), min(axis[-1], likely[-1] + step), len(axis))
    return weigh(data, (mean, deviation), axes)


def prior_of(R_0, gain, w):
    """Log of the density of A given R_0, in proportion to A^HIGH, and of the walk's w given the gain."""
    R_0 = np.clip(R_0, 0, 0.999)
    of_A = np.log((HIGH + 1) / (1 - R_0 ** (HIGH + 1))) + HIGH * np.log(R_0 + gain)
    off = abs(np.log(w / WALK / np.maximum(gain, 1e-3)))
    return of_A - off / SPREAD + np.log(len(WALKS) * np.log(2) / 2 / SPREAD)


def posterior(law):
    """`Draws` of the curve of a Fit."""
    data = observed(law)
    cells = likely_cells(law, data)
    random = np.random.default_rng(0)
    chance = np.exp(cells.weight - cells.weight.max()).ravel()
    drawn = random.choice(len(chance), DRAWS, p=chance / chance.sum())
    part, p, k = np.unravel_index(drawn, cells.weight.shape)
    mean, variance = cells.mean[p, k], cells.variance[p, k]
    B, C_mid = np.exp(cells.shapes[k] + cells.steps * random.uniform(-0.5, 0.5, (DRAWS, 2))).T
    share = (part + random.uniform(size=DRAWS)) / PARTS
    gain, _ = truncated(mean[:, 1], np.sqrt(variance[:, 1, 1]), 1, share)
    gain = np.where(np.isfinite(C_mid), gain, 0)
    middle, deviation = R_0_given(gain, mean, variance)
    R_0, _ = truncated(middle, deviation, 1 - gain, random.uniform(size=DRAWS))
    A = R_0 + gain
    shared = cells.sizes[:, :1] ** 2 * data.walked  # covariance of the walk at the last point with that at each
    pull = (cells.inverse @ shared[..., None])[..., 0]
    deviation = np.sqrt(np.maximum(shared.max(1) - (pull * shared).sum(1), 0))
    off = data.y - sigmoid(data.C, *(x[:, None] for x in (A, B, C_mid, R_0)))
    d, steps, error = random.normal(size=(3, DRAWS))
    level = sigmoid(law.span[1], A, B, C_mid, R_0) + (pull[p] * off).sum(1) + deviation[p] * d
    w, s = cells.sizes[p].T
    return Draws(A, B, C_mid, R_0, w, s, level, steps, error)


@dataclass(frozen=True, eq=False)
class Forecast(Fit):
    """A Fit with its bands, and the curves that they are drawn from. Computes and pass rates as in Fit."""

    bands: dict  # "A", "B", "C_mid" -> (low, high), 90 % of the curves that rise
    draws: Draws = field(repr=False)

    def curves(self, C):
        """Pass rates (..., S) at compute C, any shape (...): Eq. 1 plus the walk.

        Up to the last fitted compute it is the walk's mean, given where it is there: straight in log C."""
        C = np.asarray(C, float)[..., None]
        draws = self.draws
        first, last = self.span
        come = np.log(np.clip(C, first, last) / first) / np.log(last / first)
        off = come * (draws.level - sigmoid(last, *draws[:4]))
        walked = draws.walk * np.sqrt(np.log(np.maximum(C / last, 1))) * draws.steps
        return np.clip(sigmoid(C, *draws[:4]) + off + walked, 0, 1)

    def median(self, C):
        """The forecast at C, any shape: the median of the curves."""
        return np.quantile(self.curves(C), 0.5, axis=-1)

    def band(self, C, mean_of=np.inf):
        """90 % band (low, high) at C, any shape, of the mean of `mean_of` evaluations there (inf: of the curve)."""
        values = self.curves(C) + self.draws.noise * self.draws.error / np.sqrt(mean_of)
        return tuple(np.quantile(np.clip(values, 0, 1), (0.05, 0.95), axis=-1))


def forecast_run(run, *, A=None, grid=None):
    """`fit.fit_run`, with the same arguments and errors, as a Forecast. A fixes A in the curves too."""
    law = fit.fit_run(run, A=A, grid=grid)
    draws = posterior(law)
    rising = np.isfinite(draws.C_mid)
    of = {name: getattr(draws, name)[rising | ~rising.any()] for name in NAMES}
    bands = {name: tuple(np.quantile(of[name], (0.05, 0.95), method="inverted_cdf").tolist()) for name in NAMES}
    return Forecast(**vars(law), bands=bands, draws=draws)


def least_noise(law):
    """The binomial standard deviation of an evaluation, if it is known of how many completions it is the mean; else 0.
    One right and one wrong completion are added to all, so that it is above 0 where all failed."""
    n = law.run.completions
    if n is None:
        return 0.0
    R = law.run.reward[law.kept]
    mean = (n * R.sum() + 1) / (n * len(R) + 2)
    return np.sqrt(mean * (1 - mean) / n)


# ---- What the points say ----


class Peak(namedtuple("Peak", "C R now")):
    """Compute C and pass rate R of the highest evaluation, and the mean `now` of the last few, all behind it."""


def peak(law):
    """The `Peak` before which a run that falls should be taken up again; None if it does not fall.

    A fall is a loss beyond what noise would make of a steady run, and of a tenth of the gain up to the peak or more."""
    R = law.fitted.R
    width = max(3, len(R) // 8)
    mean = np.convolve(R, np.ones(width) / width, "valid")
    bends = np.diff(R, 2)  # 0 on a straight line: a steady rise is no noise
    noise = np.median(abs(bends)) / 1.652  # 1.652: their median size for standard normal R
    best = mean.argmax()
    loss = mean[best] - mean[-1]
    if loss <= max(0.01, 4 * noise * np.sqrt(2 / width), 0.1 * (mean[best] - law.fitted.R_0)):
        return None
    top = best + R[best : best + width].argmax()  # not the mean of evaluations on both sides of a collapse
    return Peak(np.exp(law.fitted.u[top]), R[top], R[max(top + 1, len(R) - width) :].mean())


def gains(law):
    """Do the points rise? True if the level now lies above R_0 in 95 % of the curves, and some rewards are not small.

    The priors of the walk and of the noise do not go below 0.005 and 0.002: with small rewards they explain it all."""
    return law.fitted.R.max() >= GAIN and (law.draws.level > law.draws.R_0).mean() >= 0.95


def rises(law):
    """Does the run gain, and not fall?"""
    return gains(law) and not peak(law)


def known(law):
    """{name: what is known of it} for those of A, B, C_mid that the points do not determine.

    A is a number if its band is no wider than WIDE and ends below BOUND."""
    if fall := peak(law):
        best, now = law.run.own(fall.R), law.run.own(fall.now)
        lost = f"from {best:.3g} at C = {fall.C:.4g} to {now:.3g}, a loss of {best - now:.3g}. Eq. 1 only rises"
        text = f"The points fall after a peak: {lost}. Go on from a checkpoint near C = {fall.C:.4g}."
        return dict.fromkeys(NAMES, text)
    if not gains(law):
        text = "No gain yet: nothing to fit."
        if law.fitted.R.min() > 0.99:
            text = "No gain: nothing is left to learn."
        elif law.fitted.R.max() < GAIN:
            text = "No gain yet: nothing was ever right, or so little that it needs --scale LO:HI, HI near the most."
        return dict.fromkeys(NAMES, text)
    low, high = law.bands["A"]
    unknown = {}
    if law.fitted.A is None and (high - low > WIDE or high > BOUND):
        unknown["A"] = f"A is not determined: its 90 % band is {law.run.own(low):.3g} to {law.run.own(high):.3g}."
    if law.B > JUMP:
        unknown["B"] = unknown["C_mid"] = "B and C_mid are not determined: the rise is a jump between two points."
    return unknown


def readable(law):
    """The largest multiple of the last fitted compute, at most FARTHEST, up to which the band is CLOSE to its middle;
    1 if it is not even there."""
    multiples = np.geomspace(1, FARTHEST, 61)
    low, high = law.band(multiples * law.span[1])
    far = np.cumsum(high - low > 2 * CLOSE)
    return multiples[far == 0].max(initial=1)


def reach(law, R):
    """How much compute until a pass rate of R, without the noise of evaluations?

    Returns a dict: P, the share of the curves that get there within SOUGHT times the last fitted compute; C, C_low
    and C_high, the median compute and its 90 % band over all curves, None where that lies farther off."""
    C = law.span[1] * np.geomspace(1, SOUGHT, 201)
    there = law.curves(C) >= R
    first = np.where(there.any(0), C[there.argmax(0)], np.inf)
    ends = np.quantile(first, (0.05, 0.5, 0.95), method="inverted_cdf").tolist()
    low, middle, high = (x if np.isfinite(x) else None for x in ends)
    return {"R": R, "P": there.any(0).mean(), "C_low": low, "C": middle, "C_high": high}


def stop_rule(law, times=2):
    """Is it worth going on from the last fitted compute C to `times` C?

    P is the chance that the evaluations of the last fifth of the way to times C lie less than GAIN above those of the
    last fifth of the way to C, counted over the curves with their noise: what the user will see, not what holds of a
    curve without noise. Returns (P, verdict): "stop" if P >= STOP, "go on" if P <= GO_ON, else "cannot tell yet" and
    when to look again. Before a first gain nothing is known of a take-off, so the verdict is "no gain yet", and P None.
    """
    last = law.span[1]
    if not gains(law):
        return None, "the points fall" if peak(law) else "no gain yet"
    late = law.kept & (law.run.compute > 0.8 * last)
    then = law.curves((times - 0.1) * last) + law.draws.noise * law.draws.error / np.sqrt(late.sum())
    P = (then - law.run.reward[late].mean() < GAIN).mean()
    unclear = f"cannot tell yet; look again at C = {1.5 * last:.4g}"
    return P, "stop" if P >= STOP else "go on" if P <= GO_ON else unclear


def fitted(run):
    """The Forecast of a Run, or None if it cannot be fitted (too few points, say)."""
    with suppress(BadInput):
        return forecast_run(run)


def hindcast(law, last=1):
    """Compare a law that was fitted to a part of its run with the run's end, the mean of the `last` evaluations.

    Returns a dict: C (mean compute of these evaluations); forecast and its 90 % band low, high for such a mean;
    measured; error = forecast - measured; points (fitted ones); inside (is measured in the band?).
    """
    C = law.run.compute[-last:].mean()
    measured = law.run.reward[-last:].mean()
    value = law.median(C)
    low, high = law.band(C, mean_of=last)
    return {
        "C": C,
        "forecast": value,
        "low": low,
        "high": high,
        "measured": measured,
        "error": value - measured,
        "points": law.points,
        "inside": bool(low <= measured <= high),
    }


# ---- Which is better? ----


def compare(laws, C=None):
    """A.5: which of two or more runs scales better, and can the data tell?

    Compared is the median of A, where each is a number. Runs within SAME_A of the highest A are refitted with A fixed
    to their mean and compared by B. If some A is no number, the forecasts at C are compared (default: at twice the
    compute of the shortest run). Returns the Forecasts, refitted where A was fixed, and a sentence about the best two.
    """
    C = C or 2 * min(law.span[1] for law in laws)
    what, others = f"the forecast at C = {C:.4g}", []
    values = {law: (law.median(C), *law.band(C)) for law in laws}
    if not any("A" in known(law) for law in laws):
        what = "A"
        values = {law: (np.median(law.draws.A), *law.bands["A"]) for law in laws}
        most = max(values.values())[0]
        close = [law for law in laws if most - values[law][0] <= SAME_A]
        if len(close) > 1:
            common = np.mean([values[law][0] for law in close])
            what = f"B at the common A = {common:.3f}"
            others = [law for law in laws if law not in close]
            fixed = [forecast_run(law.run, A=common) for law in close]
            values = {law: (np.median(law.draws.B), *law.bands["B"]) for law in fixed}
    laws = sorted(values, key=lambda law: values[law][0], reverse=True)
    best, second = laws[:2]
    tell = "but the data cannot tell: the bands overlap"
    if values[best][1] > values[second][2]:
        tell = "and the data can tell"
    return laws + others, f"{best.run.name} scales better than {second.run.name} by {what}, {tell}. {SEEDS}"
