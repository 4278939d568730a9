"""The differences of rule.py again, between runs of the same seed: what a seed does to every run is taken out first.

In virtual time the seed sets the order of the prompts and all random draws, so that runs of one seed have more in
common than the setting: the first evaluation is the same, the next ones rise and dip together. rule.py counts that as
noise. Here a seed is a block:

    value = of the configuration + of the seed + rest       by least squares, over the runs of a regime
    90 % interval of D, the configuration's minus the reference's:  D -+ t s sqrt(c' (X'X)^+ c)
        X   one column for each configuration and seed, 1 where the run is of it;  c' (effects) = D
        s   standard deviation of the rest, over the configurations in which no run falls; t as in rule.py

Where both sides have the same n seeds, D is the mean of the n differences, and sqrt(c' (X'X)^+ c) is sqrt(2/n). Found
after the runs (of three seeds of exact-1, which differed by 0.02 in A, all configurations alike), so it has no say: a
verdict is rule.py's. What this one would be stands beside it.

Test: pytest tests/test_study_pairs.py
"""

from collections import Counter, defaultdict
from math import nan
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from study import rule


class Fit(NamedTuple):
    """Least squares of values on configurations and seeds."""

    columns: tuple  # names of configurations, then seeds
    effects: np.ndarray  # (columns,) only differences of configurations, or of seeds, mean something
    inverse: np.ndarray  # (columns, columns) (X'X)^+
    deviation: float  # of the rest; nan without degrees of freedom
    freedom: int


def least_squares(values):
    """The Fit of {(name, seed): value}.

    >>> fit = least_squares({("one", 0): 1.0, ("one", 1): 3.0, ("other", 0): 2.0, ("other", 1): 5.0})
    >>> difference(fit, "other", "one")[0], fit.freedom  # (1 + 2) / 2; the rests are -+1/4, four of them
    (1.5, 1)
    >>> round(fit.deviation, 3)
    0.5
    """
    names, seeds = (tuple(dict.fromkeys(pair[at] for pair in values)) for at in (0, 1))
    columns = names + seeds
    X = np.array([[float(column in pair) for column in columns] for pair in values])
    y = np.array([*values.values()])
    inverse = np.linalg.pinv(X.T @ X)
    effects = inverse @ X.T @ y
    freedom = len(y) - int(np.linalg.matrix_rank(X))
    rest = y - X @ effects
    return Fit(columns, effects, inverse, float((rest @ rest / freedom) ** 0.5) if freedom else nan, freedom)


def difference(fit, one, other):
    """(D, sqrt(c' (X'X)^+ c)) of two configurations of a Fit; nan, nan if no chain of common seeds connects them."""
    c = np.array([(column == one) - float(column == other) for column in fit.columns])
    known = fit.inverse @ np.linalg.pinv(fit.inverse) @ c  # c, if the runs determine its effect
    if not np.allclose(known, c):
        return nan, nan
    return round(float(c @ fit.effects), 12), float((c @ fit.inverse @ c) ** 0.5)


def values(runs, quantity, L):
    """{(name, seed): A, end or E} of the runs that have the quantity. runs: {(name, seed): rule.Measured}"""
    own = {pair: rule.values(rule.having([one], quantity), quantity, L) for pair, one in runs.items()}
    return {pair: found[0] for pair, found in own.items() if found and np.isfinite(found[0])}


def steady(runs):
    """Of {(name, seed): rule.Measured} those of configurations in which no run falls."""
    falling = {name for (name, _), one in runs.items() if one.fell is not None}
    return {pair: one for pair, one in runs.items() if pair[0] not in falling}


def paired(runs, one, other, quantity):
    """(D, low, high, Fit of the steady configurations) of two configurations; nan where the runs do not tell.

    runs  {(name, seed): rule.Measured} of one regime
    """
    sides = [rule.having([run for (name, _), run in runs.items() if name == side], quantity) for side in (one, other)]
    if not all(sides):
        return nan, nan, nan, None
    L = rule.level(*sides) if quantity == "E" else nan
    quiet = steady(runs)
    used = {pair: run for pair, run in runs.items() if pair in quiet or pair[0] in (one, other)}
    spread = least_squares(values(quiet, quantity, L))
    D, factor = difference(least_squares(values(used, quantity, L)), one, other)
    reach = stdtrit(spread.freedom, 0.95) * spread.deviation * factor if spread.freedom else nan
    return D, D - reach, D + reach, spread


def spread(runs, quantity):
    """(s, degrees of freedom) of the steady configurations, E at a level that all of them reach."""
    quiet = steady(runs)
    sides = defaultdict(list)
    for (name, _), one in quiet.items():
        sides[name] += rule.having([one], quantity)
    whole = [side for side in sides.values() if side]
    if not whole:
        return nan, 0
    L = rule.level(*whole) if quantity == "E" else nan
    fit = least_squares(values(quiet, quantity, L))
    return fit.deviation, fit.freedom


def judged(logs, findings):
    """rule.judged with D, interval and verdict of pairs; what leaves a finding undecided there does so here."""
    runs = {x: {pair: rule.measure(rows, x) for pair, rows in logs.items()} for x in {one.x for one in findings}}
    found = {}
    for finding, row in rule.judged(logs, findings).items():
        D, low, high, _ = paired(runs[finding.x], finding.configuration, finding.reference, finding.quantity)
        word, why = rule.verdict(low, high, direction=finding.direction, quantity=finding.quantity)
        if row.why in (rule.IDLE, rule.NO_CEILING):
            word, why = row.verdict, row.why
        found[finding] = row._replace(D=D, low=low, high=high, verdict=word, why=why)
    return found


def column(found):
    """(head, {finding: words}) for rule.table, of what `judged` returns."""
    said = {one: f"{rule.shown(one.quantity, row)}: {row.verdict}" for one, row in found.items()}
    return "in pairs of seeds", said


def counted(found):
    """A line: how many findings would be decided in pairs of seeds."""
    count = Counter(row.verdict for row in found.values())
    return (
        f"in pairs of seeds (study/pairs.py; no say in the verdicts): {count['agrees']} agree, {count['disagrees']} "
        f"disagree, {count['undecided']} undecided"
    )
