"""How runs are compared: what is asked of a run, differences paired by seed, how many seeds would tell.

    end        mean pass rate of the last quarter of the evaluations, of all runs, also of those that collapse
    collapse   the mean of three evaluations in a row loses, to a later such mean, more than 0.02 and more than three
               standard errors; or the run diverged
    compute    to a common pass rate, the half-gain point: halfway from R_0 to the end of the setting that ends lower,
               read off Eq. 1, which is fitted up to the peak. Differences are of logarithms, shown as ratios

A seed sets the order of the prompts and all draws, so it is a block:

    value = of the setting + of the seed + rest                 by least squares over all runs of the comparison
    interval of D, a setting's minus the reference's:  D -+ t s sqrt(c' (X'X)^+ c)
        X  a column for each setting and seed, 1 where the run is of it;  c' (effects) = D
        s  standard deviation of the rest, over the settings none of whose runs collapses. If a run of the two does, s
           is of these two alone, which may have no such spread as the others
        t  quantile of Student's t distribution with the degrees of freedom of s

With two settings of n seeds this is the paired t interval. Of 90 % intervals one in ten errs; with m comparisons a
verdict asks for intervals that hold together in 90 % (Bonferroni: 1 - 0.1 / m each).

Test: pytest tests/test_lab.py
"""

from functools import cache
from math import inf, nan
from statistics import mean
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

import fit

LEVEL = 0.9  # of intervals
POWER = 0.8  # with which seeds are to find a difference of the size seen
LEAST_LOSS = 0.02  # of the mean of three evaluations, that counts as a collapse
MOST_SEEDS = 100  # that are named


class Run(NamedTuple):
    """What is kept of a run: its evaluations, (n,) each, and summaries of its steps."""

    seed: int
    step: tuple
    tokens: tuple
    gpu_hours: tuple
    pass_rate: tuple
    stderr: tuple
    clipped: float | None  # share of the trained tokens on which the clip acts; None: nobody says (a loss of one's own)
    staleness: float | None  # of the trained tokens, mean, in optimizer steps
    tasks: dict  # task -> its pass rate at the end
    reason: str  # why the run ended


def of_log(rows, seed):
    """The Run of a log, given as its rows."""
    evaluations = [row for row in rows if row["kind"] == "eval"]
    steps = [row for row in rows if row["kind"] == "step"]
    columns = {name: tuple(row.get(name) for row in evaluations) for name in Run._fields[1:6]}
    clipped = [row["clipped"] for row in steps if row.get("clipped") is not None]
    ages = [(int(age), tokens) for row in steps for age, tokens in row["staleness"].items()]
    return Run(
        seed,
        **columns,
        clipped=mean(clipped) if clipped else None,
        staleness=sum(age * tokens for age, tokens in ages) / sum(tokens for _, tokens in ages) if ages else None,
        tasks={task: last_quarter([row["tasks"][task] for row in evaluations]) for task in evaluations[0]["tasks"]},
        reason=rows[-1]["reason"],
    )


# --- What is asked of a run ------------------------------------------------------------------------------------------


def last_quarter(rates):
    """The mean of the last quarter of the values, of one at least."""
    return mean(rates[-max(1, len(rates) // 4) :])


def end(run):
    return last_quarter(run.pass_rate)


def rising(run):
    """What the last quarter of the evaluations has gained on the quarter before it."""
    part = max(1, len(run.pass_rate) // 4)
    return end(run) - mean(run.pass_rate[-2 * part : -part] or run.pass_rate[:1])


def peak(run):
    """Index of the evaluation from which a run collapses (of a diverged run the last one), or None."""
    if len(run.pass_rate) > 3:
        means = np.convolve(run.pass_rate, np.ones(3) / 3, "valid")
        lost = np.maximum.accumulate(means) - means
        if lost.max() > max(LEAST_LOSS, 3 * mean(error or 0.0 for error in run.stderr) * (2 / 3) ** 0.5):
            return int(means[: lost.argmax()].argmax()) + 2  # the last of its three
    return len(run.pass_rate) - 1 if "finite" in run.reason else None


def collapses(run):
    return peak(run) is not None


@cache
def law(compute, pass_rate):
    """The fit.Fit of a curve (tuples of equal length), or None if it cannot be fitted."""
    try:
        return fit.fit_run(fit.Run(compute, pass_rate, start="10%"))
    except fit.BadInput:
        return None


def log_compute(run, x, level):
    """log of the compute, column x, at which Eq. 1 reaches a pass rate; nan if it does not.

    It is fitted up to the peak if the run collapses.
    """
    until = len(run.step) if peak(run) is None else peak(run) + 1
    curve = law(getattr(run, x)[:until], run.pass_rate[:until])
    compute = curve.compute_for(level) if curve else nan
    return float(np.log(compute)) if 0 < compute < inf else nan


def half_gain(*settings):
    """The half-gain point of settings, lists of Runs: halfway from their R_0 to the lower of their mean ends."""
    first = mean(run.pass_rate[0] for runs in settings for run in runs)
    return (first + min(mean(map(end, runs)) for runs in settings)) / 2


# --- Differences -----------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """Of a setting minus the reference, with an interval (nan: too few seeds)."""

    D: float
    low: float
    high: float
    s: float = nan  # standard deviation of a run, without what its setting and seed say
    seeds: int = 0  # that both have


def least_squares(values):
    """(columns, effects, (X'X)^+, standard deviation of the rest, its degrees of freedom) of {(setting, seed): value}.

    >>> two = {("a", 0): 1.0, ("a", 1): 3.0, ("b", 0): 2.0, ("b", 1): 5.0}
    >>> columns, effects, inverse, s, freedom = least_squares(two)
    >>> round(float(effects[1] - effects[0]), 6), round(s, 6), freedom  # (1 + 2) / 2; four rests of 1/4
    (1.5, 0.5, 1)
    """
    columns = [*dict.fromkeys(name for name, _ in values), *dict.fromkeys(seed for _, seed in values)]
    X = np.array([[float(column in pair) for column in columns] for pair in values])
    y = np.array([*values.values()])
    inverse = np.linalg.pinv(X.T @ X)
    effects = inverse @ X.T @ y
    freedom = len(y) - int(np.linalg.matrix_rank(X))
    rest = y - X @ effects
    return columns, effects, inverse, float((rest @ rest / freedom) ** 0.5) if freedom else nan, freedom


def difference(values, name, reference, steady, of=1):
    """The Difference of the setting `name` minus `reference`.

    values  {(setting, seed): value}, all finite     steady  the settings none of whose runs collapses
    of      how many comparisons the interval holds together with
    """
    compared = steady if {name, reference} <= {*steady} else (name, reference)
    values = {pair: value for pair, value in values.items() if pair[0] in compared}
    columns, effects, inverse, s, freedom = least_squares(values)
    c = np.array([(column == name) - float(column == reference) for column in columns])
    D = round(float(c @ effects), 12)
    common = sum((reference, seed) in values for setting, seed in values if setting == name)
    if not freedom or not common:
        return Difference(D, nan, nan, nan, common)
    reach = float(stdtrit(freedom, 1 - (1 - LEVEL) / 2 / of) * s * (c @ inverse @ c) ** 0.5)
    return Difference(D, D - reach, D + reach, s, common)


def seeds_needed(D, s):
    """How many seeds of each of two settings find a difference D in 80 % of repetitions, by 90 % intervals; inf: more
    than MOST_SEEDS.

    >>> seeds_needed(0.02, 0.0105)  # (t_95 + t_80) 0.0105 sqrt(2 / n) = 0.0204 for n = 5, 0.0178 for n = 6
    6
    """
    for n in range(2, MOST_SEEDS + 1):
        if (stdtrit(n - 1, (1 + LEVEL) / 2) + stdtrit(n - 1, POWER)) * s * (2 / n) ** 0.5 <= abs(D):
            return n
    return inf


# --- A comparison ----------------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """A setting against the reference."""

    name: str
    end: Difference
    joint: Difference  # the same; its interval holds together with those of all other comparisons
    level: float  # the common pass rate
    compute: Difference | None  # of the logarithm of the compute to it; None: a run does not get there
    alike: int  # how many of its seeds give the same run in the reference


def compare(groups, x):
    """[Compared] of each setting of {setting: [Run]} against the first; x: the column that counts as compute."""
    first, *others = groups
    steady = [name for name, runs in groups.items() if not any(map(collapses, runs))]
    ends = {(name, run.seed): end(run) for name, runs in groups.items() for run in runs}
    same = {(run.seed, run.pass_rate, run.tokens) for run in groups[first]}
    rows = []
    for name in others:
        level = half_gain(groups[first], groups[name])
        reached = {(own, run.seed): log_compute(run, x, level) for own, runs in groups.items() for run in runs}
        lacking = {own for (own, _), value in reached.items() if np.isnan(value)}
        compute = None
        if not {name, first} & lacking:
            whole = {pair: value for pair, value in reached.items() if pair[0] not in lacking}
            compute = difference(whole, name, first, steady)
        alone, joint = (difference(ends, name, first, steady, of) for of in (1, len(others)))
        alike = sum((run.seed, run.pass_rate, run.tokens) in same for run in groups[name])
        rows.append(Compared(name, alone, joint, level, compute, alike))
    return rows
