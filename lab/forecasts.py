"""Do the forecasts of fit.py hold, and how do they compare with simpler ways?

Every curve of tests/data/forecasts/ with 10 points or more is cut at 30, 50 and 70 % of its compute. From the points
before the cut, the mean of the curve's last k points is forecast, k = max(5, a tenth of all its points). Left out are
cuts with fewer than 5 points before them, and cuts that lie behind one of the points to be forecast.

inside   share of the forecasts whose 90 % band holds what was measured
width    median width of the band
score    mean interval score: width + 2 / 0.1 * (distance by which the measured value lies outside); less is better
error    mean |forecast - measured|

Ways, all from the points before the cut, and clipped to [0, 1]:
  ours          `forecast.Forecast.band` of a fit from 10 % of the cut's compute on
  random walk   the mean of the last m points +- 1.645 s sqrt(1/m + 1/k), and a walk in log C whose steps are those of
                the means of 3 to 8 blocks of points; s from successive differences; m is the larger of 5 and a tenth
                of the points, but at most a third of them
  rival law     log(1 - R) = E - k log C (arXiv 2509.25300) by least squares, and its prediction interval
Stop rule: with C the last fitted compute, "stop" is right if the mean pass rate over (1.8 C, 2 C] is above that over
(0.8 C, C] by less than the gain, else "go on" is. Judged at cuts up to 50 % if both stretches have points.

--frontier prints how wide A's band and the forecast from half are, by how many evaluations of how many completions, on
curves like the main job's and on simulated ones.

Run:  python -m lab.forecasts [--frontier]      (four minutes on one core)
"""

import argparse
from collections import defaultdict, namedtuple
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

import fit
import forecast
from plumbing.foreign_logs import read_run

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "forecasts"
CUTS = (0.3, 0.5, 0.7)


class Case(namedtuple("Case", "run cut last stop")):
    """A Run; the share of its compute at which it is cut; how many last points are forecast; the compute of the cut."""

    def part(self):
        """The Run up to the cut."""
        return fit.Run(*(x[self.run.compute <= self.stop] for x in self.run[:2]), start="10%", name=self.run.name)

    def end(self):
        """What is forecast: compute (k,) and the measured mean."""
        return self.run.compute[-self.last :], self.run.reward[-self.last :].mean()


def cases(run, cuts=CUTS):
    """Yield the Cases of a Run."""
    if len(run.compute) < 10:
        return
    last = max(5, len(run.compute) // 10)
    for cut in cuts:
        stop = cut * run.compute[-1]
        if (run.compute <= stop).sum() >= 5 and stop < run.compute[-last]:
            yield Case(run, cut, last, stop)


def table(folder):
    """Yield (source, Run) of a folder: its README.md has the source and the range of each file."""
    for row in (folder / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if cells[0].endswith(".csv"):
            low, high = map(float, cells[4].split(":"))
            C, R = np.genfromtxt(folder / cells[0], delimiter=",", skip_header=1).T
            full = np.isfinite(C + R)
            order = np.argsort(C[full], kind="stable")
            R = (R[full][order] - low) / (high - low)
            yield cells[1], fit.Run(C[full][order], R, name=cells[0].removesuffix(".csv"))


# ---- Ways to forecast: (Case, its fit) -> (low, forecast, high) ----


def ours(case, law):
    """`forecast.Forecast.band`."""
    C = case.end()[0].mean()
    low, high = law.band(C, case.last)
    return low, law.median(C), high


def level(case):
    """The mean of the last m points, m, and the standard deviation of one."""
    R = case.part().reward
    m = max(1, min(max(5, len(R) // 10), len(R) // 3))
    return R[-m:].mean(), m, np.sqrt((np.diff(R) ** 2).mean() / 2)


def random_walk(case, law):
    """The level as it is, and a walk in log C from there."""
    mean, m, s = level(case)
    part = case.part()
    u, R = np.log(part.compute[part.compute > 0]), part.reward[part.compute > 0]
    blocks = np.array_split(np.arange(len(u)), max(3, min(8, len(u) // m)))
    at, means = (np.array([x[block].mean() for block in blocks]) for x in (u, R))
    steps = np.maximum(np.diff(means) ** 2 - 2 * s**2 / m, 0) / np.diff(at)
    ahead = max(np.log(case.end()[0].mean()) - u[-m:].mean(), 0)
    half = 1.645 * np.sqrt(s**2 * (1 / m + 1 / case.last) + steps.mean() * ahead)
    return mean + half * np.array([-1, 0, 1])


def rival_law(case, law):
    """Least squares of log(1 - R) in log C."""
    part = case.part()
    keep = (part.compute > 0) & (part.compute >= 0.1 * case.stop)
    u = np.log(part.compute[keep])
    v = np.log(np.maximum(1 - part.reward[keep], 1e-3))
    ahead = np.log(case.end()[0].mean()) - u.mean()
    slope, middle = np.polyfit(u - u.mean(), v, 1)
    variance = ((v - middle - slope * (u - u.mean())) ** 2).sum() / (len(u) - 2)
    error = variance * (1 / len(u) + ahead**2 / ((u - u.mean()) ** 2).sum() + 1 / case.last)
    return 1 - np.exp(middle + slope * ahead + stdtrit(len(u) - 2, 0.95) * np.sqrt(error) * np.array([1, 0, -1]))


WAYS = {"ours": ours, "random walk": random_walk, "rival law": rival_law}


# ---- Scores ----


def interval_score(low, high, measured, share=0.1):
    """Width + 2 / share * the distance by which `measured` lies outside.

    >>> interval_score(0.25, 0.5, 0.75)  # 0.25 wide and 0.25 off: 0.25 + 20 * 0.25
    5.25
    """
    return high - low + 2 / share * max(low - measured, measured - high, 0)


def scores(bands, measured):
    """(share inside, median width, mean interval score, mean |error|) of bands (n, 3) and measured values (n,)."""
    low, value, high = np.array(bands).T
    inside = (low <= measured) & (measured <= high)
    score = list(map(interval_score, low, high, measured))
    return inside.mean(), np.median(high - low), np.mean(score), abs(value - measured).mean()


def stops(pairs):
    """[(what the rule said, what was right)] for the cuts up to 50 % behind a first gain; pairs: [(Case, its fit)]."""
    verdicts = []
    for case, law in pairs:
        C = case.run.compute
        last = law.span[1]
        now = case.run.reward[(C > 0.8 * last) & (C <= last)]
        later = case.run.reward[(C > 1.8 * last) & (C <= 2 * last)]
        if case.cut <= 0.5 and len(later) and len(now):
            right = "stop" if later.mean() - now.mean() < forecast.GAIN else "go on"
            verdicts.append((forecast.stop_rule(law)[1], right))
    return verdicts


def judged(curves, ways):
    """{source: [(Case, its fit, {way: its band (low, forecast, high)})]} of curves, [(source, Run)]."""
    rows = defaultdict(list)
    for source, run in curves:
        for case in cases(run):
            law = forecast.forecast_run(case.part())
            rows[source].append((case, law, {name: np.clip(way(case, law), 0, 1) for name, way in ways.items()}))
    return rows


def by_source(curves):
    """Print the scores of all WAYS and the verdicts of the stop rule by source; curves: [(source, Run)]."""
    rows = judged(curves, WAYS)
    for source in [*rows]:
        kind = "all of ours" if source.startswith("our ") else "all but post-training"
        if source != "post-training":
            rows[kind] = rows[kind] + rows[source]
    print(f"{'source':24}forecasts" + "".join(f" | {name}: inside width score error" for name in WAYS))
    print(" " * 24 + "stop rule: stop, right; go on, right | A is a number | A's band below the end, of these a number")
    for source in sorted(rows, key=lambda name: (name.startswith("all"), name)):
        measured = np.array([case.end()[1] for case, _, _ in rows[source]])
        number = np.array(["A" not in forecast.known(law) for _, law, _ in rows[source]])
        below = np.array([law.bands["A"][1] for _, law, _ in rows[source]]) < measured
        cells = [scores([bands[name] for _, _, bands in rows[source]], measured) for name in WAYS]
        print(f"{source:24}{len(number):6}" + "".join(" | {:.2f} {:.3f} {:.3f} {:.4f}".format(*cell) for cell in cells))
        pairs = stops([(case, law) for case, law, _ in rows[source]])
        counts = [[answer == word for what, answer in pairs if what == word] for word in ("stop", "go on")]
        verdicts = "; ".join(f"{len(right)}, {sum(right)}" for right in counts)
        print(f"{'':24}{verdicts} | {sum(number)} | {sum(below)}, {sum(below & number)}")


# ---- How many evaluations? ----


def main_runs(points, n):
    """Yield runs like results/main_seed*.jsonl: their fits at so many computes, each the mean of n completions."""
    for seed in range(6):
        run = read_run(ROOT / "results" / f"main_seed{seed}.jsonl", "tokens")._replace(start="10%")
        C = np.linspace(0, run.compute[-1], points)
        R = fit.fit_run(run).predict(C)
        for draw in range(3):
            yield C, np.random.default_rng([seed, points * n, points, draw]).binomial(n, R) / n


def walking_runs(points, n):
    """Yield 50 runs as forecast.py expects them: Eq. 1, a random walk in log C, and binomial noise."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        A, B, C_mid = rng.uniform(0.4, 0.9), rng.uniform(0.8, 2.5), rng.uniform(0.1, 0.4)
        R_0 = A * rng.uniform(0.1, 0.5)
        step = forecast.WALK * (A - R_0) * np.exp(rng.laplace(0, forecast.SPREAD))
        C = np.arange(points + 1) / points
        fine = np.arange(1, 97) / 96  # the same walk at any number of points; it begins at the first fitted one
        walk = np.cumsum(
            np.where(fine > 0.1, step * np.sqrt(np.diff(np.log(fine), prepend=np.log(1 / 97))), 0) * rng.normal(size=96)
        )
        R = fit.sigmoid(C, A, B, C_mid, R_0) + np.interp(C, fine, walk)
        yield C, rng.binomial(n, np.clip(R, 0, 1)) / n


def frontier(make, sizes):
    """Print how wide A's band and the forecast from half are; make: (points, n) -> computes and pass rates of runs;
    sizes: [(points, n completions of each)]."""
    print("evaluations completions | A's band, a number | forecast from half")
    for points, n in sizes:
        rows = []
        for C, R in make(points, n):
            made = fit.Run(C, R, start="10%", completions=n)
            law, half = forecast.forecast_run(made), forecast.forecast_run(made._replace(stop="50%"))
            rows.append((np.ptp(law.bands["A"]), "A" not in forecast.known(law), np.ptp(half.band(C[-1]))))
        widths, numbers, ahead = np.array(rows, float).T
        print(f"{points:11} {n:11} | {np.median(widths):.2f} {numbers.mean():.2f} | {np.median(ahead):.2f}", flush=True)


def main():
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frontier", action="store_true", help="how many evaluations narrow A and the forecast")
    if parser.parse_args().frontier:
        frontier(main_runs, [(points, n // points) for n in (16384, 32768, 131072) for points in (16, 32)])
        frontier(walking_runs, [(points, n) for points in (16, 32) for n in (400, 1600)])
    else:
        by_source([pair for folder in ("more", "post", "ours") for pair in table(DATA / folder)])


if __name__ == "__main__":
    main()
