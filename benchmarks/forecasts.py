"""Do the forecasts of fit.py hold on real runs, and how do they compare with simpler ones?

Every curve of tests/data/forecasts/ with 10 points or more is cut at 30, 50 and 70 % of its compute. From the points
before the cut, the mean of the curve's last k points is forecast, k = max(5, a tenth of all its points). Left out are
cuts with fewer than 5 points before them, and cuts that lie behind one of the points to be forecast.

inside   share of the forecasts whose 90 % band holds what was measured
width    median width of the band
score    mean interval score: width + 2 / 0.1 * (distance by which the measured value lies outside); less is better
error    mean |forecast - measured|

Rows, all from the points before the cut, and clipped to [0, 1]:
  ours            `forecast.Forecast.band` of a fit from 10 % of the cut's compute on
  Eq. 1 of ours   only those of its curves that go on along Eq. 1
  trend of ours   only those that go on along a line
  Eq. 1's region  the band by profile likelihood, which takes no account of how well Eq. 1 holds
  persistence     the mean of the last m points +- 1.645 s sqrt(1/m + 1/k), s from successive differences; m is the
                  larger of 5 and a tenth of the points, but at most a third of them
  line in log C   least squares from 10 % of the cut's compute on, and its prediction interval
Stop rule: with C the last fitted compute, "stop" is right if the mean pass rate over (1.8 C, 2 C] is above that over
(0.8 C, C] by less than the gain, else "go on" is. Judged at cuts up to 50 % if both stretches have points.

Run:  python benchmarks/forecasts.py      (ten seconds on one core)
      git show f4ae21b:fit.py > /tmp/fit.py && python benchmarks/forecasts.py --fit /tmp/fit.py     (row "before")
"""

import argparse
import csv
import importlib.util
import sys
from collections import Counter, namedtuple
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import fit  # noqa: E402  (the modules lie one folder up, whatever the working folder is)
import forecast  # noqa: E402

CUTS = (0.3, 0.5, 0.7)
GAIN = 0.02


class Case(namedtuple("Case", "run cut last stop")):
    """A Run; the share of its compute at which it is cut; how many last points are forecast; the compute of the cut."""

    def part(self):
        """The Run up to the cut."""
        return fit.Run(*(x[self.run.compute <= self.stop] for x in self.run[:2]), start="10%", name=self.run.name)

    def end(self):
        """What is forecast: compute (k,) and the measured mean."""
        return self.run.compute[-self.last :], self.run.reward[-self.last :].mean()


def curves():
    """Yield the Runs of tests/data/forecasts/: one for each file, and for our own one for each of its tasks."""
    for path in sorted((ROOT / "tests" / "data" / "forecasts").glob("*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        columns = dict(zip(rows[0], np.array(rows[1:], float).T))
        compute = next(name for name in ("gpu_hours", "progress/total_tokens", "step") if name in columns)
        for name in columns.keys() - {"gpu_hours", "progress/total_tokens", "step", "stderr"}:
            yield fit.Run(columns[compute], columns[name], name=f"{path.stem} {name}")


def cases(run, cuts=CUTS):
    """Yield the Cases of a Run."""
    last = max(5, len(run.compute) // 10)
    for cut in cuts if len(run.compute) >= 10 else ():
        stop = cut * run.compute[-1]
        if (run.compute <= stop).sum() >= 5 and stop < run.compute[-last]:
            yield Case(run, cut, last, stop)


# ---- Ways to forecast: (Case, its fit) -> (low, forecast, high) ----


def ours(case, law):
    """`forecast.Forecast.band`."""
    C = case.end()[0].mean()
    low, high = law.band(C, case.last)
    return low, law.median(C), high


def of_draws(law, C, last, part):
    """The 5, 50 and 95 % quantiles of the mean of `last` evaluations at C, over `part` (a mask) of the fit's draws."""
    values = law.curves(C) + law.draws.noise * law.draws.normal / np.sqrt(last)
    if not part.any():
        part = np.full(len(values), True)
    return np.quantile(np.clip(values[part], 0, 1), (0.05, 0.5, 0.95))


def eq1(case, law):
    """The draws that go on along Eq. 1."""
    return of_draws(law, case.end()[0].mean(), case.last, law.draws.along)


def trend(case, law):
    """The draws that go on along a line."""
    return of_draws(law, case.end()[0].mean(), case.last, law.draws.slope != 0)


def region(case, law):
    """Profile likelihood of Eq. 1."""
    C = case.end()[0].mean()
    values = fit.sigmoid(C, *law.region.T)
    noise = law.noise / np.sqrt(case.last)
    centre = law.predict(C)
    return centre - np.hypot(centre - values.min(), noise), centre, centre + np.hypot(values.max() - centre, noise)


def persistence(case, law):
    """The mean of the last points stays as it is."""
    R = case.part().reward
    m = max(1, min(max(5, len(R) // 10), len(R) // 3))
    half = 1.645 * np.sqrt((np.diff(R) ** 2).mean() / 2 * (1 / m + 1 / case.last))
    return R[-m:].mean() + half * np.array([-1, 0, 1])


def line(case, law):
    """Least squares of R in log C."""
    part = case.part()
    end = np.log(case.end()[0]).mean()
    keep = (part.compute > 0) & (part.compute >= 0.1 * case.stop)
    u = np.log(part.compute[keep])
    R = part.reward[keep]
    slope, level = np.polyfit(u, R, 1)
    variance = ((R - level - slope * u) ** 2).sum() / (len(u) - 2)
    error = variance * (1 / len(u) + (end - u.mean()) ** 2 / ((u - u.mean()) ** 2).sum() + 1 / case.last)
    return level + slope * end + stdtrit(len(u) - 2, 0.95) * np.sqrt(error) * np.array([-1, 0, 1])


WAYS = {"ours": ours, "Eq. 1 of ours": eq1, "trend of ours": trend, "Eq. 1's region": region,
        "persistence": persistence, "line in log C": line}  # fmt: skip


# ---- Tables ----


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


def by_warning(laws, inside):
    """{warning: (hits, misses)}, with "none" for forecasts without one."""
    count = Counter()
    for law, hit in zip(laws, inside):
        count.update((name, bool(hit)) for name in {text.split(":")[0] for text in law.notes} or {"none"})
    return {name: (count[name, True], count[name, False]) for name in sorted({name for name, _ in count})}


def stops(pairs):
    """[(what the rule said, what was right)] for the cuts up to 50 %; pairs: [(Case, its fit)]."""
    verdicts = []
    for case, law in pairs:
        C = case.run.compute
        last = law.span[1]
        now = case.run.reward[(C > 0.8 * last) & (C <= last)]
        later = case.run.reward[(C > 1.8 * last) & (C <= 2 * last)]
        if case.cut <= 0.5 and len(later) and len(now):
            verdicts.append((forecast.stop_rule(law, GAIN)[1], "stop" if later.mean() - now.mean() < GAIN else "go on"))
    return verdicts


def other(path):
    """The module that another version of fit.py is."""
    spec = importlib.util.spec_from_file_location("fit", path)
    sys.modules["fit"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    """Print the table of forecasts, how often those with each warning hold, and how often the stop rule is right."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fit", metavar="FILE", help="another version of fit.py; only its bands are measured")
    if path := parser.parse_args().fit:
        global fit, forecast
        fit = forecast = other(path)  # before forecast.py, all was in fit.py
        forecast.forecast_run = fit.fit_run
        fit.Fit.median = fit.Fit.predict
    pairs = [(case, forecast.forecast_run(case.part())) for run in curves() for case in cases(run)]
    measured = np.array([case.end()[1] for case, _ in pairs])
    mine = np.array([case.run.name.startswith("ours") for case, _ in pairs])
    groups = {"our runs": mine, "public runs": ~mine, "all": mine | True}
    heads = (f" | {name}, {chosen.sum()}: inside, width, score, error" for name, chosen in groups.items())
    print(" " * 15 + "".join(heads))
    for name, way in [*WAYS.items()][: 1 if path else None]:
        bands = np.clip([way(*pair) for pair in pairs], 0, 1)
        cells = [scores(bands[chosen], measured[chosen]) for chosen in groups.values()]
        print(f"{name:15}" + "".join(" | {:.2f}  {:.3f}  {:.3f}  {:.3f}".format(*cell) for cell in cells))
        if way is ours:
            inside = (bands[:, 0] <= measured) & (measured <= bands[:, 2])
    if path:
        return
    print("warnings of ours: forecasts inside, outside")
    for name, (hits, misses) in by_warning([law for _, law in pairs], inside).items():
        print(f"  {name:32}{hits:3}{misses:3}")
    verdicts = stops(pairs)
    print(f"stop rule, gain {GAIN}, {len(verdicts)} times: ", end="")
    for word in ("stop", "go on"):
        right = [answer == word for said, answer in verdicts if said == word]
        print(f"{word} {len(right)}, right {sum(right)}", end="; ")
    print("else it cannot tell")


if __name__ == "__main__":
    main()
