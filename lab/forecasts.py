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
  persistence     the mean of the last m points +- 1.645 s sqrt(1/m + 1/k), s from successive differences; m is the
                  larger of 5 and a tenth of the points, but at most a third of them
  line in log C   least squares from 10 % of the cut's compute on, and its prediction interval
--sources does so with the 110 curves of tests/data/forecasts/more and with our own of tests/data/forecasts/ours, by
source, and in two halves of the public sources: those at odd places of the alphabet, on which constants are chosen, and
those at even places.
--compare counts how often `forecast.compare` tells apart two seeds of one recipe, which it should not.
--pairs takes all pairs of public curves within a source and asks `forecast.compare` about their first halves. An end
is the mean of the last max(5, n / 10) points. Equal: the ends differ by at most 0.03 and two standard errors.
Different: by 0.05 and two standard errors or more.
--early says how often A is a number (`forecast.known`) from 30 and 50 %, and how often its band is too low; and where
it is "at least" a number, also from 70 %, how often that lies above the end.
--early and --pairs take other folders too: each has a README.md with the table of its files (file, group, range).
Stop rule: with C the last fitted compute, "stop" is right if the mean pass rate over (1.8 C, 2 C] is above that over
(0.8 C, C] by less than the gain, else "go on" is. Judged at cuts up to 50 % if both stretches have points.

Run:  python -m lab.forecasts      (ten seconds on one core)
      python -m lab.forecasts --sources | --compare | --pairs | --early    (half a minute to two minutes each)
"""

import argparse
import csv
import re
from collections import Counter, defaultdict, namedtuple
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

import fit
import forecast
from plumbing.curves import logs

ROOT = Path(__file__).resolve().parent.parent

CUTS = (0.3, 0.5, 0.7)
GAIN = 0.02
MORE = ROOT / "tests" / "data" / "forecasts" / "more"
OURS = ROOT / "tests" / "data" / "forecasts" / "ours"


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


WAYS = {"ours": ours, "persistence": persistence, "line in log C": line}


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


# ---- More sources, and comparisons ----


def table(folder):
    """Yield (source, Run) of a folder: its README.md has the source and the range of each file."""
    for row in (folder / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if cells[0].endswith(".csv"):
            low, high = map(float, cells[4].split(":"))
            C, R = np.genfromtxt(folder / cells[0], delimiter=",", skip_header=1).T
            full = np.isfinite(C + R)
            order = np.argsort(C[full], kind="stable")
            R = (R[full][order] - low) / (high - low)
            yield cells[1], fit.Run(C[full][order], R, name=cells[0].removesuffix(".csv"))


def races():
    """Yield (source, Run) of results/trl_race_*.csv, compute in seconds."""
    for path in sorted((ROOT / "results").glob("trl_race_*.csv")):
        yield "our race with TRL", logs.read_run(path, "seconds")


def by_source():
    """Print the scores and the verdicts of the stop rule by source."""
    rows = defaultdict(list)
    public = list(table(MORE))
    odd = sorted({source for source, _ in public})[::2]
    for source, run in [*public, *table(OURS)]:
        for case in cases(run):
            law = forecast.forecast_run(case.part())
            found = (ours(case, law), case.end()[1], stops([(case, law)]))
            half = "all at odd places" if source in odd else "all at even places"
            for name in (source, "all of ours" if source.startswith("our ") else half):
                rows[name].append(found)
    print(f"{'source':28}forecasts inside width score error | stop rule: stop, right; go on, right")
    for name in sorted(rows, key=lambda name: (name.startswith("all"), name)):
        bands, measured, said = zip(*rows[name])
        inside, width, score, error = scores(np.clip(bands, 0, 1), np.array(measured))
        pairs = [pair for one in said for pair in one]
        counts = [[answer == word for what, answer in pairs if what == word] for word in ("stop", "go on")]
        verdicts = "; ".join(f"{len(right)}, {sum(right)}" for right in counts)
        print(f"{name:28}{len(bands):6}   {inside:.3f}  {width:.3f} {score:.3f} {error:.4f} | {verdicts}")


def recipes():
    """{(source, recipe): [Forecast of each seed]} of those with two seeds or more."""
    found = defaultdict(list)
    for source, run in [*table(MORE), *table(OURS), *races()]:
        seed = re.fullmatch(r"(.*?)(?:_seed|_s|-)(\d+)", run.name)
        if seed and not run.name.startswith("charbull"):
            found[source, seed[1]].append(forecast.forecast_run(run._replace(start="10%")))
    return {key: laws for key, laws in found.items() if len(laws) > 1}


def told(one, other):
    """Can the data tell the settings, lists of Forecasts, apart?"""
    return "and the data can tell" in forecast.compare([one, other])[1]


def comparisons():
    """Print how often two seeds of one recipe are told apart."""
    laws = recipes()
    counts = defaultdict(lambda: [0, 0, 0, 0])
    for (source, _), seeds in laws.items():
        for one, other in combinations(seeds, 2):
            counts[source][0] += told([one], [other])
            counts[source][1] += 1
        for four in combinations(seeds, 4):
            for two in ((0, 1), (0, 2), (0, 3)):
                counts[source][2] += told([four[i] for i in two], [four[i] for i in {0, 1, 2, 3} - {*two}])
                counts[source][3] += 1
    print("seeds of one recipe told apart, of pairs; two against two, of divisions")
    for source, (single, pairs, double, divisions) in counts.items():
        print(f"  {source:24}{single:3} of {pairs:3} ({single / pairs:.0%}); {double} of {divisions}")


def end(run):
    """The mean of the last max(5, n / 10) points of a Run, and the square of its standard error."""
    R = run.reward[-max(5, len(run.reward) // 10) :]
    return R.mean(), R.var(ddof=1) / len(R)


def kind(one, other):
    """Whether two Runs end "equal" or "different", or None between the two; which has the higher end (1 or -1)."""
    (x, x_error), (y, y_error) = end(one), end(other)
    gap = abs(x - y)
    certain = gap / max(np.sqrt(x_error + y_error), 1e-12)
    name = "equal" if gap <= 0.03 and certain <= 2 else "different" if gap >= 0.05 and certain >= 2 else None
    return name, np.sign(x - y)


def first_halves(folders):
    """Print how often the first halves of curves that end alike, and of those that do not, are told apart."""
    groups = defaultdict(list)
    for source, run in (row for folder in folders for row in table(folder)):
        groups[source].extend(forecast.fitted(run, start="10%", stop="50%"))
    count = defaultdict(Counter)
    for one, other in (pair for laws in groups.values() for pair in combinations(laws, 2)):
        name, higher = kind(one.run, other.run)
        ranked, sentence = forecast.compare([one, other])
        right = higher == (1 if ranked[0].run.name == one.run.name else -1)
        told = "and the data can tell" in sentence
        count[name][("told, higher end first" if right else "told, lower end first") if told else "not told"] += 1
    for name in ("equal", "different"):
        print(f"{name}, {count[name].total()} pairs: ", ", ".join(f"{what} {n}" for what, n in count[name].items()))


def early(folders):
    """Print how often A is a number from 30 and 50 % of the curves, and how often its band lies below their end; and
    how often A is "at least" a number above their end."""
    laws = [law for folder in folders for _, run in table(folder) for cut in ("30%", "50%", "70%")
            for law in forecast.fitted(run, start="10%", stop=cut)]  # fmt: skip
    early = [law for law in laws if law.run.stop != "70%"]
    printed = [law for law in early if "A" not in forecast.known(law)]
    below = sum(law.bands["A"][1] < end(law.run)[0] for law in printed)
    print(f"from 30 and 50 %: {len(early)} fits, A is a number in {len(printed)}, its band below the end in {below}")
    for cut in ("30%", "50%", "70%"):
        bounds = [law for law in laws if law.run.stop == cut and "at least" in forecast.known(law).get("A", "")]
        above = sum(law.least > end(law.run)[0] for law in bounds)
        print(f"from {cut}: A is at least a number in {len(bounds)}, which lies above the end in {above}")


def main():
    """Print the table of forecasts, and how often the stop rule is right."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sources", action="store_true", help="the table by source")
    parser.add_argument("--compare", action="store_true", help="the table of comparisons")
    folders = {"nargs": "*", "type": Path, "metavar": "FOLDER"}
    parser.add_argument("--pairs", help="are the first halves of curves that end alike told apart?", **folders)
    parser.add_argument("--early", help="how often is A a number too early?", **folders)
    args = parser.parse_args()
    if args.pairs is not None:
        return first_halves(args.pairs or [MORE])
    if args.early is not None:
        return early(args.early or [MORE])
    if args.sources:
        return by_source()
    if args.compare:
        return comparisons()
    pairs = [(case, forecast.forecast_run(case.part())) for run in curves() for case in cases(run)]
    measured = np.array([case.end()[1] for case, _ in pairs])
    mine = np.array([case.run.name.startswith("ours") for case, _ in pairs])
    groups = {"our runs": mine, "public runs": ~mine, "all": mine | True}
    heads = (f" | {name}, {chosen.sum()}: inside, width, score, error" for name, chosen in groups.items())
    print(" " * 15 + "".join(heads))
    for name, way in WAYS.items():
        bands = np.clip([way(*pair) for pair in pairs], 0, 1)
        cells = [scores(bands[chosen], measured[chosen]) for chosen in groups.values()]
        print(f"{name:15}" + "".join(" | {:.2f}  {:.3f}  {:.3f}  {:.3f}".format(*cell) for cell in cells))
    verdicts = stops(pairs)
    print(f"stop rule, gain {GAIN}, {len(verdicts)} times: ", end="")
    for word in ("stop", "go on"):
        right = [answer == word for said, answer in verdicts if said == word]
        print(f"{word} {len(right)}, right {sum(right)}", end="; ")
    print("else it cannot tell")


if __name__ == "__main__":
    main()
