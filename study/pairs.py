"""The differences of rule.py again, between runs of the same seed: what a seed does to runs is taken out first.

In virtual time the seed sets the order of the prompts and all random draws, so runs of one seed and one off-policy
setup have more in common than a setting: they begin with the same evaluation (but in bf16), and rise and dip together.
rule.py counts that as noise. Here a seed is a block:

    value = of the configuration + of the seed + rest       by least squares, over the runs of one off-policy setup
    90 % interval of D, the configuration's minus the reference's:  D -+ t s sqrt(c' (X'X)^+ c)
        X   one column for each configuration and seed, 1 where the run is of it;  c' (effects) = D
        s   standard deviation of the rest, over the configurations that rule.spread takes; t as in rule.py

Where both settings have the same n seeds, D is the mean of the n differences, and sqrt(c' (X'X)^+ c) is sqrt(2/n). Not
asked across setups, PipelineRL against PPO-off-policy, whose draws differ: there a seed is no common block. Shown for
exact-1 alone: in exact-8 it leaves no smaller spread of the ends (study/verdicts.py prints both), and balanced
compares the two setups. Found after the runs, so it has no say: a verdict is rule.py's, and this stands beside it.

Test: pytest tests/test_study_pairs.py
"""

from collections import defaultdict
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
    """The Fit of {(name, seed): value}, which holds one run at least.

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
    own = {pair: rule.having([one], quantity) for pair, one in runs.items()}
    return {pair: rule.values(have, quantity, L)[0] for pair, have in own.items() if have}


def steady(found, runs):
    """Of what `values` found, the configurations that rule.spread takes: no run collapses, all have it and reach L."""
    apart = {
        pair[0] for pair, one in runs.items() if one.collapsed is not None or not np.isfinite(found.get(pair, nan))
    }
    return {pair: value for pair, value in found.items() if pair[0] not in apart}


def paired(runs, one, other, quantity):
    """(D, low, high) of two configurations; nan where the runs do not tell.

    runs  {(name, seed): rule.Measured} of one regime and one off-policy setup
    """
    own = {name: [run for (its, _), run in runs.items() if its == name] for name in (one, other)}
    settings = [rule.having(of_one, quantity) for of_one in own.values()]
    if not all(settings):
        return nan, nan, nan
    found = values(runs, quantity, rule.level(*settings) if quantity == "E" else nan)
    quiet = steady(found, runs)
    used = {pair: value for pair, value in found.items() if pair in quiet or pair[0] in (one, other)}
    if not quiet or not np.isfinite([*used.values()]).all():
        return nan, nan, nan
    spread = least_squares(quiet)
    D, factor = difference(least_squares(used), one, other)
    reach = stdtrit(spread.freedom, 0.95) * spread.deviation * factor if spread.freedom else nan
    return D, D - reach, D + reach


def spread(runs, quantity):
    """(s, degrees of freedom) of the configurations that rule.spread takes, E at one level for all of them."""
    settings = defaultdict(list)
    for (name, _), one in runs.items():
        settings[name] += rule.having([one], quantity)
    whole = [one for one in settings.values() if one]
    found = values(runs, quantity, rule.level(*whole)) if whole else {}
    quiet = steady(found, runs)
    if not quiet:
        return nan, 0
    fit = least_squares(quiet)
    return fit.deviation, fit.freedom


def measured(logs, x):
    """{off-policy setup: {(name, seed): rule.Measured}} of {(name, seed): rows}."""
    found = defaultdict(dict)
    for pair, rows in logs.items():
        found[rows[0]["flags"]["off_policy"]][pair] = rule.measure(rows, x)
    return dict(found)


def column(logs, findings):
    """(head, {finding: words}) for rule.table: D and its interval. logs: {(name, seed): rows}"""
    setups = {x: measured(logs, x).values() for x in {one.x for one in findings}}
    words = {}
    for finding, row in rule.judged(logs, findings).items():
        settings = {finding.configuration, finding.reference}
        own = [runs for runs in setups[finding.x] if settings <= {name for name, _ in runs}]
        D, low, high = paired(own[0], finding.configuration, finding.reference, finding.quantity) if own else [nan] * 3
        words[finding] = rule.shown(finding.quantity, row._replace(D=D, low=low, high=high)) if own else "two setups"
    return "in pairs of seeds", words
