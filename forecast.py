"""How sure can one be of a fit of Eq. 1? Bands, forecasts, comparisons, and when to stop. Only A.5 is the paper's.

Paper: Sec. 2.1 (extrapolation), A.5 (comparing runs), A.7 (robustness). Symbols as in fit.py.

A run follows Eq. 1, plus a random walk in log C, plus the noise of each evaluation. The walk, by which real curves
leave Eq. 1, takes steps of about a fifth of the gain per e-fold of compute. With probability FLAT there is no gain.

    R_i  = R_0 + G g(C_i) + d(log C_i) + e_i,    g(C) = 1 / (1 + (C_mid / C)^B),   G = A - R_0            (Eq. 1)
    d(u) = Wiener process of variance w^2 per e-fold of C, 0 at the first fitted point (the "discrepancy" of Kennedy &
           O'Hagan, 2001);  log w has a Laplace distribution about log(WALK G);  WALKS, each as likely, if G = 0
    e_i ~ N(0, s^2 / n_i)          point i is the mean of n_i evaluations; the measured R_0 is one more point with d = 0

Given B, C_mid, w and s, all is linear and Gaussian in R_0, G and d. With K = w^2 min(u_i, u_j) + s^2 diag(1 / n_i)
= L L', and y, E, H = L^-1 (R, 1, g), flat priors on R_0 and G give

    G   ~ N((H'y - H'E E'y / E'E) / c, 1 / c),  c = H'H - (H'E)^2 / E'E,  cut to [0, 1]
    R_0 ~ N((E'y - E'H G) / E'E, 1 / E'E) given G;  draws with R_0 < 0 or A > 1 are left out
    weight of a cell (B, C_mid, w, s) = prior * exp(-S / 2) / (det L sqrt(E'E c)) * (share of G's normal in [0, 1])

where S is the residual sum of squares. The prior of A given R_0 is proportional to A^HIGH, or uniform without a walk. A
forecast is the level at the last fitted compute, plus what Eq. 1 adds, plus the walk's further steps, which are smaller
by LATER.

Bands of A, B and C_mid, 90 %, hold if Eq. 1 does: they come from the draws without a walk.
Residuals count as independent but for the walk: no band includes what all evaluations of one run share (its seed, its
validation prompts). How the constants were chosen, and what the forecasts are worth: results/forecasts.md.

Test:  pytest tests/test_forecast.py; on real and on synthetic runs: python -m lab.forecasts
"""

from collections import namedtuple
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import expit, ndtr, ndtri

import fit
from fit import BadInput, Fit, sigmoid

# Chosen by the interval score of forecasts of real runs, whole sources left out (results/forecasts.md).
PRIOR = np.array([[np.log(3), 0.65], [0, 2]])  # normal (mean, sd) of log B, and of log(C_mid / last C)
PRIOR_OF_LAW = np.array([[np.log(2), 0.8], [0, 2]])  # the same without a walk, where A is uniform
WALK, SPREAD = 0.2, 0.3  # median of w as a share of the gain, and the mean distance of its logarithm from there
WALKS = 0.005 * 2.0 ** np.arange(6)  # the w that are tried: 0.005 to 0.16
LATER = 0.6  # size of the walk's steps beyond the points, as a share of those between them
HIGH, FLAT = 5, 0.3
NOISE = 0.01  # prior of s: 1/s, and one residual of this size as if seen
MOST, DRAWS = 50, 4000  # points, neighbours being averaged; curves
CELLS = np.array([11, 17, 9])  # of log B, log C_mid, log s
STOP, GO_ON = 0.9, 0.2  # of the stop rule
GAIN = 0.02  # its least rise
SAME_A = 0.02  # A.5: A that differ by no more are taken as one
WIDE = 0.25  # a wider band does not determine A
FEW = 8  # nor do fewer points
BOUND = 0.995  # an A that may lie above it is at its bound of 1
JUMP = 10  # a B above it is a jump between two points: the data do not determine it
SEEDS = "This compares runs, not recipes: between seeds A differs by about 0.01, and B by 10 %."
CLOSE = 0.05  # a forecast within +- this can be read
FARTHEST = 100  # times the compute
SOUGHT = 10  # times the compute: as far as `reach` looks


class Draws(namedtuple("Draws", "A B C_mid R_0 walk noise level steps error")):
    """S equally likely curves, each field (S,).

    walk: w    noise: s, of one evaluation    level: R at the last fitted compute, without noise
    steps, error: standard normal numbers, for the walk beyond the points and the error of one evaluation
    """


# ---- The posterior ----


def walk_prior(w, gain):
    """Log density of w given the gain, times the number of WALKS, each as likely without a gain."""
    off = abs(np.log(np.maximum(w, 1e-9) / WALK / np.maximum(gain, 1e-3)))
    return np.log(len(WALKS) * np.log(2) / 2 / SPREAD) - off / SPREAD


class Grid:
    """Cells of B, C_mid, w and s with their weights: N points of a Fit, P pairs (w, s), K pairs (B, C_mid).

    walks: the w that are tried; [0.0] if Eq. 1 holds
    """

    def __init__(self, law, walks):
        self.walks = walks
        self.exact = not any(walks)
        self.prior = PRIOR_OF_LAW if self.exact else PRIOR
        self.cells = CELLS * [2, 2, 1] if self.exact else CELLS
        C, R, count = fit.averaged(law.run.compute[law.kept], law.run.reward[law.kept], MOST)
        points = law.fitted
        self.last = np.log(law.span[1])
        self.u = np.log(C) - self.last
        self.y = np.append(points.R_0, R)
        self.variance = 1 / np.append(points.weight, count)  # of a point, in units of s^2
        self.walked = np.append(0, self.u - self.u[0])
        floor = least_noise(law)
        low, high = self.prior @ [1, -2.7], self.prior @ [1, 2.7]
        low, high = np.append(low, np.log(max(0.002, floor))), np.append(high, np.log(max(0.45, 2 * floor)))
        for _ in range(5 if self.exact else 3):  # narrowed to where the probability lies
            axes = [np.linspace(*ends) for ends in zip(low, high, self.cells)]
            self.weigh(*axes)
            low, high = self.narrowed(axes)

    def weigh(self, log_B, mid, log_s):
        """Weigh the cells of these axes. Sets all that `draws` needs."""
        self.step = np.array([np.ptp(log_B), np.ptp(mid)]) / (self.cells[:2] - 1)
        self.B_mid = np.stack(np.meshgrid(log_B, mid, indexing="ij"), -1).reshape(-1, 2)
        g = expit(np.exp(self.B_mid[:, 0]) * (self.u[:, None] - self.B_mid[:, 1]))
        w, s = (x.ravel() for x in np.meshgrid(self.walks, np.exp(log_s), indexing="ij"))
        K = w[:, None, None] ** 2 * np.minimum.outer(self.walked, self.walked)
        K = K + s[:, None, None] ** 2 * np.diag(self.variance) + 1e-12 * np.eye(len(self.y))
        whiten = np.linalg.inv(np.linalg.cholesky(K))
        y, E, H = whiten @ self.y, whiten.sum(2), whiten[:, :, 1:] @ g  # R_0's row of g is 0
        EE, Ey = (E * E).sum(1)[:, None], (E * y).sum(1)[:, None]
        EH, yH = np.einsum("pn,pnk->pk", E, H), np.einsum("pn,pnk->pk", y, H)
        c = np.maximum((H**2).sum(1) - EH**2 / EE, 1e-9)
        G, root = (yH - EH * Ey / EE) / c, np.sqrt(c)
        side = np.where(G < 0, -1, 1)  # a G < 0 is mirrored: ndtr is precise in the lower tail
        tail, upper = (ndtr(np.where(G < 0, a, b) * root) for a, b in ((G - 1, -G), (G, 1 - G)))
        share = np.maximum(upper - tail, 1e-300)
        flat = (Ey**2 / EE - (y * y).sum(1)[:, None] - np.log(EE)) / 2
        flat += np.log(np.diagonal(whiten, axis1=1, axis2=2)).sum(1)[:, None]
        flat += (-np.log(s) - (NOISE / s) ** 2 / 2)[:, None]
        mean, deviation = self.prior.T
        prior = -(((self.B_mid - mean) / deviation) ** 2).sum(1) / 2 - np.log(2 * np.pi * deviation.prod())
        prior += np.log(self.step.prod())
        rise = flat + G**2 * c / 2 + np.log(2 * np.pi / c) / 2 + np.log(share) + prior
        none = np.full_like(flat, -np.inf) if self.exact else flat + np.log(FLAT / (1 - FLAT))
        self.weight = np.hstack([rise, none])  # logs; the last column for G = 0
        v = np.einsum("pnm,pm->pn", whiten, w[:, None] ** 2 * self.walked)  # of d at the last point
        self.of_d = (
            (v * y).sum(1),
            (v * E).sum(1),
            np.einsum("pn,pnk->pk", v, H),
            w**2 * self.walked[-1] - (v * v).sum(1),
        )
        self.of_G, self.of_R_0, self.w, self.s = (G, root, side, tail, share), (Ey, EH, EE), w, s
        self.of_walk = np.maximum(walk_prior(w[:, None], np.clip(np.maximum(G, 1 / root), 0, 1)), -5)

    def narrowed(self, axes):
        """Limits of the axes, one cell wider than where the probability lies."""
        low, high = np.array([(axis[0], axis[-1]) for axis in axes]).T
        mass = np.exp(self.weight[:, :-1] - self.weight[:, :-1].max()).reshape(-1, *self.cells[[2, 0, 1]]).sum(0)
        for j, others in enumerate([(0, 2), (0, 1), (1, 2)]):
            likely = axes[j][mass.sum(others) > 3e-4 * mass.sum()]
            step = axes[j][1] - axes[j][0]
            low[j], high[j] = max(low[j], likely[0] - 0.7 * step), min(high[j], likely[-1] + 0.7 * step)
        return low, high

    def draws(self, random):
        """`Draws`: four times as many from the cells, and of these DRAWS by the priors of A and w and the limits of R_0
        and A."""
        weight = self.weight.copy()
        if not self.exact:
            weight[:, :-1] += self.of_walk
        cells = np.exp(weight - weight.max()).ravel()
        p, k = np.unravel_index(random.choice(len(cells), 4 * DRAWS, p=cells / cells.sum()), weight.shape)
        none = k == len(self.B_mid)
        k = np.where(none, 0, k)
        G, root, side, tail, share = (x[p, k] for x in self.of_G)
        x = ndtri(np.clip(tail + share * random.random(len(p)), 1e-300, 1 - 1e-16))
        gain = np.where(none, 0, np.clip(G + side * x / root, 0, 1))
        Ey, EH, EE = self.of_R_0
        R_0 = (Ey[p, 0] - EH[p, k] * gain) / EE[p, 0] + random.normal(size=len(p)) / np.sqrt(EE[p, 0])
        A = R_0 + gain
        prior = 1
        if not self.exact:  # the cells were drawn by the walk's prior at their likeliest gain
            prior = (HIGH + 1) * np.clip(A, 0, 1) ** HIGH / (1 - np.clip(R_0, 0, 0.999) ** (HIGH + 1))
            prior *= np.exp(walk_prior(self.w[p], gain) - self.of_walk[p, k])
        chance = ((R_0 >= 0) & (A <= 1)) * np.where(none, 1, prior) + 1e-12
        i = random.choice(len(p), DRAWS, p=chance / chance.sum())
        p, k, gain, R_0 = p[i], k[i], gain[i], np.clip(R_0[i], 0, 1)
        log_B, mid = self.B_mid[k].T  # mid: log(C_mid / last C)
        of_y, of_E, of_H, variance = self.of_d
        error_of_d, steps, error = random.normal(size=(3, DRAWS))
        d = of_y[p] - of_E[p] * R_0 - of_H[p, k] * gain + np.sqrt(np.maximum(variance[p], 0)) * error_of_d
        level = R_0 + gain * expit(-np.exp(log_B) * mid) + d
        A = np.minimum(R_0 + gain, 1)
        log_B, mid = self.B_mid[k].T + self.step[:, None] * random.uniform(
            -0.5, 0.5, (2, DRAWS)
        )  # anywhere in the cell
        return Draws(A, np.exp(log_B), np.exp(mid + self.last), R_0, self.w[p], self.s[p], level, steps, error)


@dataclass(frozen=True, eq=False)
class Forecast(Fit):
    """A Fit with its bands, and curves that may come true. Computes and pass rates as in Fit."""

    bands: dict  # "A", "B", "C_mid" -> (low, high), 90 %, if Eq. 1 holds
    notes: tuple  # what was left out, averaged or assumed
    draws: Draws = field(repr=False)
    most: float = 1.0  # no median lies above it: A, if it is a number

    def curves(self, C):
        """Pass rates (..., S) at compute C, any shape (...): the present level plus what Eq. 1 and the walk add."""
        C = np.asarray(C, float)[..., None]
        draws = self.draws
        last = self.span[1]
        rise = sigmoid(C, *draws[:4]) - sigmoid(last, *draws[:4])
        walked = LATER * draws.walk * np.sqrt(np.log(np.maximum(C / last, 1))) * draws.steps
        return np.clip(draws.level + rise + walked, 0, 1)

    def quantiles(self, C, shares, mean_of=np.inf):
        """Quantiles (len(shares), ...) at C, any shape, of the mean of `mean_of` evaluations (inf: of the curve)."""
        values = self.curves(C) + self.draws.noise * self.draws.error / np.sqrt(mean_of)
        return np.quantile(np.clip(values, 0, 1), shares, axis=-1)

    def median(self, C):
        """The forecast at C, any shape: the median of the curves."""
        return np.minimum(self.quantiles(C, [0.5])[0], self.most)

    def band(self, C, mean_of=np.inf):
        """90 % band (low, high) at C, any shape, of the mean of `mean_of` evaluations there (inf: of the curve)."""
        return tuple(self.quantiles(C, (0.05, 0.95), mean_of))


def forecast_run(run, *, A=None, grid=None):
    """`fit.fit_run`, with the same arguments and errors, and its bands: a Forecast.

    A fixes A in Eq. 1 and in the bands, not in the forecasts."""
    law = fit.fit_run(run, A=A, grid=grid)
    draws, exact = (Grid(law, walks).draws(np.random.default_rng(0)) for walks in (WALKS, [0.0]))
    bands = {}
    for name in ("A", "B", "C_mid"):
        values = np.log(getattr(exact, name))
        if A is not None:  # as if each draw had this A: moved along the regression on A (Beaumont et al., 2002)
            off = exact.A - exact.A.mean()
            values = values + (off @ values / (off @ off)) * (A - exact.A)
        best = getattr(law, name)
        low, high = np.exp(np.quantile(values, (0.05, 0.95))).tolist()
        bands[name] = min(low, best), max(high, best)
    if A is not None:
        bands["A"] = A, A
    notes = law.run.notes
    if len(law.fitted.u) < law.points:
        notes = (*notes, f"averaged to {len(law.fitted.u)} points, neighbours in log C")
    law = Forecast(**vars(law), bands=bands, notes=notes, draws=draws)
    return law if "A" in known(law) else replace(law, most=law.A)


def least_noise(law):
    """The binomial standard deviation of an evaluation, if it is known of how many completions it is the mean; else 0.
    One right and one wrong completion are added to all, so that it is above 0 where all failed."""
    n = law.run.completions
    if n is None:
        return 0.0
    R = law.run.reward[law.kept]
    mean = (n * R.sum() + 1) / (n * len(R) + 2)
    return float(np.sqrt(mean * (1 - mean) / n))


# ---- What the points say ----


class Peak(namedtuple("Peak", "C R now")):
    """The highest mean R of a few evaluations in a row, their mean compute C, and the mean of the last as many."""


def peak(law):
    """The `Peak` before which a run that falls should be taken up again; None if it does not fall.

    A fall is a loss beyond what noise would make of a steady run, and of a tenth of the gain up to the peak or more."""
    R = law.fitted.R
    width = min(len(R), max(3, len(R) // 8))
    mean = np.convolve(R, np.ones(width) / width, "valid")
    bends = np.diff(R, min(2, len(R) - 1))  # 0 on a straight line: a steady rise is no noise
    noise = np.median(abs(bends)) / 1.652  # 1.652: their median size for standard normal R
    best = mean.argmax()
    loss = mean[best] - mean[-1]
    if loss <= max(0.01, 4 * noise * np.sqrt(2 / width), 0.1 * (mean[best] - law.fitted.R_0)):
        return None
    return Peak(float(np.exp(law.fitted.u[best : best + width].mean())), float(mean[best]), float(mean[-1]))


def gains(law):
    """Do the points rise? True if the level now lies above R_0 in 95 % of the curves."""
    return bool((law.draws.level > law.draws.R_0).mean() >= 0.95)


def known(law):
    """{name: what is known of it} for those of A, B, C_mid that the points do not determine.

    A is a number if the points show where the rise bends: they are FEW or more, the band of A is no wider than WIDE and
    clear of the bound at 1, C_mid lies within the points, and the forecast at twice the compute is not above A. (If it
    is by less than CLOSE / 5, it is lowered to A.)"""
    if fall := peak(law):
        best, now = law.run.own(fall.R), law.run.own(fall.now)
        lost = f"from {best:.3g} at C = {fall.C:.4g} to {now:.3g}, a loss of {best - now:.3g}"
        advice = f"Eq. 1 only rises. Go on from a checkpoint near C = {fall.C:.4g}"
        return dict.fromkeys(("A", "B", "C_mid"), f"The points fall after a peak: {lost}. {advice}.")
    if not gains(law):
        text = "No gain yet: nothing to fit."
        if law.fitted.R.min() > 0.99:
            text = "No gain: nothing is left to learn."
        elif not law.run.reward.any():
            text = "No gain: nothing was ever right."
        return dict.fromkeys(("A", "B", "C_mid"), text)
    low, high = law.bands["A"]
    found = {}
    if law.fitted.A is None and (
        law.points < FEW
        or high - low > WIDE
        or high > BOUND
        or law.bands["C_mid"][1] > law.span[1]
        or law.median(2 * law.span[1]) > law.A + CLOSE / 5
    ):
        found["A"] = "A is not determined: the points do not say where the rise ends."
        found["C_mid"] = "C_mid is not determined: half of the gain is not known."
    if law.B > JUMP:
        found["B"] = found["C_mid"] = "B and C_mid are not determined: the rise is a jump between two points."
    return found


def readable(law):
    """The largest multiple of the last fitted compute, at most FARTHEST, up to which the band is CLOSE to its middle;
    1 if it is not even there."""
    multiples = np.geomspace(1, FARTHEST, 61)
    low, high = law.band(multiples * law.span[1])
    far = np.append(high - low > 2 * CLOSE, True)
    return float(multiples[max(far.argmax() - 1, 0)])


def reach(law, R):
    """How much compute until a pass rate of R, without the noise of evaluations?

    Returns a dict: P, the share of the curves that get there within SOUGHT times the last fitted compute; C, C_low
    and C_high, the median compute and its 90 % band over all curves, None where that lies farther off."""
    C = law.span[1] * np.geomspace(1, SOUGHT, 201)
    there = law.curves(C) >= R
    first = np.where(there.any(0), C[there.argmax(0)], np.inf)
    found = dict(zip(("C_low", "C", "C_high"), np.quantile(first, (0.05, 0.5, 0.95), method="inverted_cdf").tolist()))
    return {"R": R, "P": float(there.any(0).mean())} | {k: x if np.isfinite(x) else None for k, x in found.items()}


def stop_rule(law, gain=GAIN, times=2):
    """Is it worth going on from the last fitted compute C to `times` C?

    P is the chance that the evaluations of the last fifth of the way to times C lie less than `gain` above those of the
    last fifth of the way to C, counted over the curves with their noise: what the user will see, not what holds of a
    curve without noise. Returns (P, verdict): "stop" if P >= STOP, "go on" if P <= GO_ON, else "cannot tell yet" and
    when to look again.
    """
    last = law.span[1]
    late = law.kept & (law.run.compute > 0.8 * last)
    then = law.curves((times - 0.1) * last) + law.draws.noise * law.draws.error / np.sqrt(late.sum())
    P = float((then - law.run.reward[late].mean() < gain).mean())
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
    row = {"C": C, "forecast": value, "low": low, "high": high, "measured": measured, "error": value - measured}
    found = {name: float(x) for name, x in row.items()}
    return found | {"points": law.points, "inside": bool(low <= measured <= high)}


def hindcasts(run, cuts=(10, 20, 30, 50, 70), last=5):
    """How early can the end of a run be forecast? One `hindcast` from the first part of its compute for each of `cuts`.

    cuts: per cent of the compute. Returns a list of `hindcast`'s dicts, each with "run" and "share" added. A cut is
    left out if too few points lie before it, or if one of the evaluations to be forecast does.
    """
    rows = []
    for cut in cuts:
        law = fitted(run._replace(stop=f"{cut}%"))
        if law and law.span[1] < run.compute[-last]:
            rows.append({"run": run.name, "share": cut / 100} | hindcast(law, last))
    return rows


# ---- Which is better? ----


def compare(laws, C=None):
    """A.5: which of two or more runs scales better, and can the data tell?

    Compared is A, where each is a number. Runs within SAME_A of the highest A are refitted with A fixed to their mean
    and compared by B. If some A is no number, the forecasts at C are compared (default: at twice the compute of the
    shortest run). Returns the Forecasts, refitted where A was fixed, and a sentence about the best two.
    """
    C = C or 2 * min(law.span[1] for law in laws)
    words, value, band = f"the forecast at C = {C:.4g}", (lambda law: law.median(C)), (lambda law: law.band(C))
    compared, rest = laws, []
    if not any("A" in known(law) for law in laws):
        words, value, band = "A", (lambda law: law.A), (lambda law: law.bands["A"])
        most = max(map(value, laws))
        close = [law for law in laws if most - law.A <= SAME_A]
        if len(close) > 1:
            A = np.mean([law.A for law in close])
            words, value, band = f"B at the common A = {A:.3f}", (lambda law: law.B), (lambda law: law.bands["B"])
            compared = [forecast_run(law.run, A=A) for law in close]
            rest = [law for law in laws if law not in close]
    one, other, *more = sorted(compared, key=value, reverse=True)
    tell = "and the data can tell" if band(one)[0] > band(other)[1] else "but the data cannot tell: the bands overlap"
    better = f"{one.run.name} scales better than {other.run.name} by {words}, {tell}. {SEEDS}"
    return [one, other, *more, *rest], better
