"""How a finding of the paper is judged from kept runs: asymptotes, compute to a level, collapses.

Runs are compared within a regime only, which decides the staleness of the tokens. A run collapses if the mean pass rate
of three evaluations in a row loses, to a later such mean, more than 0.02 and more than 3 standard errors of the
difference. Eq. 1 never decreases, so such a run has no asymptote, whether it recovers or not. How many of n seeds
collapse, and after which step, is a result of its own.

    D = mean of the configuration's runs - mean of the reference's runs, in one of these quantities:
        A   the asymptote of Eq. 1, fitted to each run that does not collapse and levels off: neither is A on the fit's
            bound, 1, nor is its own 90 % band wider than WIDE, 0.2 (found after the first runs that are so)
        E   efficiency: -log of the compute at which a run's fitted curve reaches the level L. exp(D) is how many times
            more compute the reference takes. L, the half-gain point, lies halfway between R_0 and the pass rate at the
            end, of the setting where its mean is lower, so that both reach it. (At first: between R_0 and A, which the
            points of some runs do not determine; found after the runs.) A run that collapses counts until its peak
    90 % interval: D -+ t s sqrt(1/n + 1/m)
        n, m  numbers of runs of the two settings that have the quantity
        s     standard deviation between seeds, pooled over those configurations of the regime in which no run
              collapses and all runs have the quantity (the latter found after the runs); one for all of them, though
              at exact k = 8 seeds of CISPO end 0.03 apart and those of GSPO 0.003
        t     95 % quantile of Student's t distribution with the degrees of freedom of s

Beside E stands B, the paper's efficiency, where A.5 compares it: if the mean A of the two settings differ by less
than 0.02, B is fitted with A fixed to the mean A of all runs of both settings. It does not decide: B is blind to
constant factors of the compute. Nor does `end`, the pass rate at the end, which says nothing of what more compute would
bring; but seeds differ less in it (study/verdicts.py; found after the runs of exact-1).

The verdict is the first of these that applies:
    undecided  The finding is about a clip that acts on less than 0.1 % of the tokens in both settings. It is idle.
    undecided  A setting has no run with the quantity.
    undecided  E, and half or more of the configuration's runs are runs of the reference up to the level: what the
               settings differ in has not acted by then. (Found after the runs: uniform resampling at exact k = 1.)
    agrees     The whole interval lies on the paper's side of 0; where the paper says "the same", within the margin.
    disagrees  The whole interval lies on the other side of 0; where the paper says "the same", outside the margin.
               Where the paper names a difference in A, a whole interval within the margin does not agree either: by
               the paper's own margin, a difference in A is one of 0.02 or more.
    undecided  All other cases.
Margin, in both directions from 0: 0.02 for A (A.5); log(1.1) for E, a tenth of the compute (ours).

Test: pytest tests/test_study.py
"""

from collections import Counter
from functools import cache
from math import nan
from statistics import mean
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

import fit
import forecast
from study.comparisons import CONFIGURATIONS, FINDINGS

MARGIN = {"A": 0.02, "E": float(np.log(1.1))}
IDLE_CLIP = 0.001  # share of tokens
# Why a finding is undecided, so that more seeds do not help:
IDLE, SAME = "the clip is idle", "the same runs up to that level"
NO_ASYMPTOTE = "a setting has no run with an asymptote"
WIDE = 0.2  # a wider band of A, if Eq. 1 holds, does not say where the rise ends
JUMP = 20  # a B above it is a jump between two points
ON_BOUND = 0.999  # an A from here on is the fit's bound, 1: the points do not say where the rise ends
SAME_A = 0.02  # A.5: only methods whose A differ by less are compared by B
COLLAPSE = 0.02  # least loss of a mean of three evaluations that counts as a collapse


class Measured(NamedTuple):
    """What the findings need to know of a run."""

    run: fit.Run  # until the peak if it collapses
    rates: np.ndarray  # (n,) pass rates of all evaluations
    law: fit.Fit | None  # Eq. 1, until the peak if the run collapses; None if it cannot be fitted
    collapsed: int | None  # optimizer steps done at the peak from which it collapses; None if it does not
    end: float  # mean pass rate of the last quarter of the evaluations
    clipped: float  # share of the trained tokens on which the clip acts
    staleness: float  # of the trained tokens, mean, in optimizer steps
    max_staleness: int  # of any token


def measure(rows, x="tokens"):
    """The Measured of a kept log, given as its rows; x: column of the compute."""
    evaluations = [row for row in rows if row["kind"] == "eval"]
    steps = [row for row in rows if row["kind"] == "step"]
    rates = [row["pass_rate"] for row in evaluations]
    collapsed = collapse(evaluations)
    rise = [row for row in evaluations if collapsed is None or row["step"] <= collapsed]
    run = fit.Run([row[x] for row in rise], [row["pass_rate"] for row in rise], start="10%")
    tokens = sum((Counter({int(k): n for k, n in row["staleness"].items()}) for row in steps), Counter())
    return Measured(
        run=run,
        rates=np.array(rates),
        law=fitted(run),
        collapsed=collapsed,
        end=last_quarter(rates),
        clipped=mean([row["clipped"] for row in steps if "clipped" in row] or [nan]),  # absent: no batch had a gradient
        staleness=sum(k * n for k, n in tokens.items()) / tokens.total(),
        max_staleness=max(tokens),
    )


def losses(evaluations):
    """(means of three evaluations in a row, what each has lost since the highest before it, the least loss that counts)

    evaluations: at least three rows of kind `eval`, in order
    """
    means = np.convolve([row["pass_rate"] for row in evaluations], np.ones(3) / 3, "valid")
    error = mean(row.get("stderr") or 0.0 for row in evaluations)
    return means, np.maximum.accumulate(means) - means, max(COLLAPSE, 3 * error * (2 / 3) ** 0.5)


def collapse(evaluations):
    """The step of the peak from which a run collapses, or None. evaluations: its rows of kind `eval`, in order.

    >>> rows = [{"step": 8 * n, "pass_rate": rate} for n, rate in enumerate([0.2, 0.5, 0.6, 0.6, 0.6, 0.5, 0.4])]
    >>> collapse(rows)
    32
    """
    if len(evaluations) < 4:
        return None
    means, lost, least = losses(evaluations)
    if lost.max() <= least:
        return None
    peak = int(means[: lost.argmax()].argmax()) + 2  # index of the last of its three evaluations
    return evaluations[peak]["step"]


def recovered(evaluations):
    """Whether at its end a run has regained what it lost: the last three evaluations are within the least loss."""
    _, lost, least = losses(evaluations)
    return bool(lost[-1] <= least)


def fitted(run, A=None):
    """The Fit of a fit.Run, with A fixed if given; None if it cannot be fitted, or B with this A is a mere jump."""
    return _fitted(hashable(run), A)


def hashable(run):
    """A fit.Run with tuples for arrays."""
    return run._replace(compute=tuple(run.compute), reward=tuple(run.reward))


@cache  # findings and tables ask for the same fits again and again
def _fitted(run, A):
    try:
        law = fit.fit_run(run, A=A)
    except fit.BadInput:
        return None
    return None if A is not None and law.B > JUMP else law


def having(runs, quantity):
    """The runs that have the quantity: Eq. 1 can be fitted (but for `end`); the run does not collapse (but for E),
    and levels off (for A).
    """
    if quantity == "end":
        return [one for one in runs if one.collapsed is None]
    fitted = [one for one in runs if one.law is not None]
    if quantity == "E":
        return fitted
    return [one for one in fitted if one.collapsed is None and levels_off(hashable(one.run))]


@cache
def levels_off(run):
    """Whether the points of a run, as `hashable` gives it, say where its rise ends."""
    law = forecast.forecast_run(run)
    low, high = np.quantile(law.draws.A, (0.05, 0.95))
    return law.A < ON_BOUND and high - low <= WIDE


def level(*settings):
    """The half-gain point, a pass rate: halfway between R_0 and the lower of the settings' mean ends."""
    R_0 = mean(one.law.R_0 for runs in settings for one in runs)
    return (R_0 + min(mean(last_quarter(one.run.reward) for one in runs) for runs in settings)) / 2


def last_quarter(rates):
    """The mean of the last quarter of a run's pass rates, of one at least."""
    return mean(rates[-max(1, len(rates) // 4) :])


def values(runs, quantity, L=nan):
    """A, end, or E with the level L, of each Measured run; E is -inf for a run that does not reach L."""
    if quantity == "A":
        return [one.law.A for one in runs]
    if quantity == "end":
        return [one.end for one in runs]
    return [-float(np.log(one.law.compute_for(L))) for one in runs]


def pooled(samples):
    """(standard deviation, degrees of freedom) within samples, assuming one standard deviation for all of them.

    >>> pooled([[1, 3], [4, 6, 8]])  # squares 1 + 1 and 4 + 0 + 4, over 1 + 2 degrees of freedom
    (1.8257418583505538, 3)
    """
    squares = sum(sum((value - mean(sample)) ** 2 for value in sample) for sample in samples)
    freedom = sum(len(sample) - 1 for sample in samples)
    return ((squares / freedom) ** 0.5, freedom) if freedom else (nan, 0)


def spread(groups, quantity):
    """`pooled` over the configurations none of whose runs collapses, and all of whose runs have the quantity.

    groups: {configuration: [Measured]} of one regime
    """
    steady = [runs for runs in groups.values() if all(one.collapsed is None for one in runs)]
    steady = [runs for runs in steady if len(having(runs, quantity)) == len(runs)]
    samples = [values(runs, quantity, level(runs) if quantity == "E" else nan) for runs in steady]
    return pooled([sample for sample in samples if np.isfinite(sample).all()])


def interval(one, other, deviation, freedom):
    """(D, low, high): the difference of the means of two samples, and its 90 % interval."""
    difference = mean(one) - mean(other)
    reach = stdtrit(freedom, 0.95) * deviation * (1 / len(one) + 1 / len(other)) ** 0.5
    return difference, difference - reach, difference + reach


def reach(spread, n):
    """Half the width of the 90 % interval of the difference of two settings of n runs each."""
    s, freedom = spread
    return float(stdtrit(freedom, 0.95) * s * (2 / n) ** 0.5) if freedom else nan


def verdict(low, high, *, direction, quantity):
    """(verdict, why) by the rule at the top of this file. low, high: the 90 % interval of configuration - reference.

    >>> verdict(0.01, 0.03, direction=+1, quantity="A")
    ('agrees', 'beyond 0 that way')
    """
    margin = MARGIN[quantity]
    none, small = ("x1", "a tenth") if quantity == "E" else ("0", f"{margin:.2g}")  # as `shown` shows them
    inside = -margin <= low and high <= margin
    if not np.isfinite([low, high]).all():
        return "undecided", "no interval"
    if direction == 0:
        if inside:
            return "agrees", f"within {small}"
        if low > margin or high < -margin:
            return "disagrees", f"outside {small}"
        return "undecided", "neither within nor outside the margin" + ("" if low <= 0 <= high else f"; not {none}")
    if min(low * direction, high * direction) > 0:
        return "agrees", f"beyond {none} that way" + (f", but within {small}" if inside else "")
    if max(low * direction, high * direction) < 0:
        return "disagrees", f"beyond {none} the other way"
    if quantity == "A" and inside:
        return "disagrees", f"within {small}"
    return "undecided", f"the interval holds {none}"


class Judged(NamedTuple):
    """What is said of a finding; D, low and high are nan where a setting has no asymptote."""

    D: float
    low: float
    high: float
    verdict: str
    why: str
    collapses: str  # such as "2 of 5 (steps 88, 88) against 0 of 2"; "" if no run collapses
    B: float  # difference of B with a common A, of findings on efficiency; nan where A.5 does not compare it
    ends: tuple = ()  # of findings on A: (D, low, high) of the pass rates at the end, where no run collapses


def judged(logs, findings=FINDINGS):
    """{finding: Judged} of the findings whose two settings have runs of one regime. logs: {(name, seed): rows}"""
    groups = {x: grouped(logs, x) for x in {finding.x for finding in findings}}
    tested = [f for f in findings if {f.configuration, f.reference} <= groups[f.x].keys()]
    found = {}
    for f in tested:
        settings = groups[f.x][f.configuration], groups[f.x][f.reference]
        row = judge(f, *settings, spread(groups[f.x], f.quantity))
        ends = [values(having(runs, "end"), "end") for runs in settings]
        if f.quantity == "A" and all(ends):
            row = row._replace(ends=interval(*ends, *spread(groups[f.x], "end")))
        found[f] = row
    return found


def judge(finding, one, other, spread_of_seeds):
    """The Judged of a finding, from the Measured runs of its configuration and of its reference."""
    quantity = finding.quantity
    settings = having(one, quantity), having(other, quantity)
    D = low = high = B = nan
    word, why = "undecided", NO_ASYMPTOTE
    if all(settings):
        L = level(*settings)
        D, low, high = interval(*(values(runs, quantity, L) for runs in settings), *spread_of_seeds)
        word, why = verdict(low, high, direction=finding.direction, quantity=quantity)
        B = difference_of_B(*settings) if quantity == "E" else nan
        if quantity == "E" and 2 * alike(*settings, L) >= len(settings[0]):
            word, why = "undecided", SAME
    if finding.clip and all(run.clipped < IDLE_CLIP for run in one + other):
        word, why = "undecided", IDLE
    return Judged(D, low, high, word, why, collapses_of(one, other), B)


def alike(one, other, L):
    """How many of the runs `one` are a run of `other` up to the evaluation that first reaches the level L."""

    def start(run):
        R = np.array(run.run.reward)
        count = int(np.argmax(R >= L)) + 1 if (R >= L).any() else len(R)
        return tuple(run.run.compute[:count]), tuple(R[:count])

    theirs = {start(run) for run in other}
    return sum(start(run) in theirs for run in one)


def collapses_of(one, other):
    """How many runs of each setting collapse, and after which step; "" if none does."""

    def counted(runs):
        steps = sorted(run.collapsed for run in runs if run.collapsed is not None)
        at = f" (after step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))})" if steps else ""
        return f"{len(steps)} of {len(runs)}{at}"

    return f"{counted(one)} against {counted(other)}" if any(run.collapsed is not None for run in one + other) else ""


def difference_of_B(one, other):
    """A.5: the difference of the mean B with A fixed to the mean of all runs.

    nan if the settings' mean A differ by SAME_A or more, or if a B is a mere jump.
    """
    asymptotes = values(one, "A"), values(other, "A")
    if abs(mean(asymptotes[0]) - mean(asymptotes[1])) >= SAME_A:
        return nan
    A = mean(asymptotes[0] + asymptotes[1])
    B = [[law.B for run in runs if (law := fitted(run.run, A))] for runs in (one, other)]
    return mean(B[0]) - mean(B[1]) if all(B) else nan


def grouped(logs, x):
    """{configuration: [Measured]} of the runs that count for compute x."""
    groups = {}
    for (name, seed), rows in logs.items():
        if counts(name, seed, x, rows):
            groups.setdefault(name, []).append(measure(rows, x))
    return groups


def counts(name, seed, x, rows):
    """Whether a run counts for compute x. Device-hours count if they are virtual, or the machine did nothing else."""
    return x != "gpu_hours" or rows[0].get("flags", {}).get("virtual") or seed < CONFIGURATIONS[name].quiet


def averaged(logs, name, x):
    """A fit.Run of a configuration's mean over its seeds, up to the last evaluation that all of these have.

    Runs that collapse are left out; if all collapse, each counts until its peak.
    """
    own = [rows for (one, seed), rows in logs.items() if one == name and counts(name, seed, x, rows)]
    runs = [measure(rows, x) for rows in own]
    shown = [one for one in runs if one.collapsed is None] or runs
    count = min(len(one.run.compute) for one in shown)
    C = np.mean([one.run.compute[:count] for one in shown], 0)
    R = np.mean([one.run.reward[:count] for one in shown], 0)
    of = f" of {len(runs)}" if len(shown) < len(runs) else ""
    return fit.Run(C, R, start="10%", name=f"{name} ({len(shown)}{of})", unit=x)


# --- As text ---------------------------------------------------------------------------------------------------------


def table(logs, findings=FINDINGS, beside=None):
    """The findings as lines of Markdown, then what else is to be known of them.

    beside  one column more: (its head, {finding: words})
    """
    found = judged(logs, findings)
    head, words = beside or (None, {})
    names = ("Fig.", "finding", "paper", "ours (90 % interval)", "verdict", "runs that collapse")
    names += (head,) if head else ()
    more = {finding: f" {words[finding]} |" if head else "" for finding in found}
    return [
        f"| {' | '.join(names)} |",
        "|---" * len(names) + "|",
        *(line(finding, row) + more[finding] for finding, row in found.items()),
        "",
        *remarks(logs, found, len(findings)),
    ]


def line(finding, row):
    """A line of the table: row is a Judged."""
    said = {-1: "lower", 0: "the same", 1: "higher"}[finding.direction]
    paper = f"{'asymptote' if finding.quantity == 'A' else 'efficiency'} {said}"
    if finding.paper:
        paper += ", B {} against {}".format(*finding.paper)
    ours = shown(finding.quantity, row)
    if row.B == row.B:
        ours += f"; B {row.B:+.2f}"
    if row.ends:
        ours += "; ends" + shown("A", row._replace(D=row.ends[0], low=row.ends[1], high=row.ends[2])).removeprefix("A")
    return f"| {finding.figure} | {finding.says} | {paper} | {ours} | {row.verdict}: {row.why} | {row.collapses} |"


def shown(quantity, row):
    """D as text: a difference in A, or how many times the reference's compute the configuration takes."""
    if row.D != row.D:
        return "-"
    if quantity == "A":
        value, low, high = (f"{value:+.3f}" for value in (row.D, row.low, row.high))
    else:
        value, low, high = (f"{np.exp(-value):.2f}" for value in (row.D, row.high, row.low))
    known = f"{low} to {high}" if np.isfinite([row.low, row.high]).all() else "no interval"
    return f"{'A ' if quantity == 'A' else 'compute x'}{value} ({known})"


def remarks(logs, found, asked):
    """Lines: findings tested of those asked, the spread of seeds; each configuration's clip, staleness, end."""
    count = Counter(row.verdict for row in found.values())
    groups = grouped(logs, "tokens")
    A = spread(groups, "A")
    E = spread(groups, "E")
    known = f"A {A[0]:.4f} ({A[1]} degrees of freedom), tokens to the half-gain point {E[0]:.1%} ({E[1]})"
    lines = [
        f"{len(found)} of {asked} findings tested: {count['agrees']} agree, {count['disagrees']} disagree, "
        f"{count['undecided']} undecided. Of 90 % intervals one in ten errs, and findings with a common reference err "
        "together.",
        "spread between seeds, over configurations in which no run collapses: "
        + (known if A[1] else "not known before two seeds of one"),
    ]
    for name, runs in groups.items():
        clipped, staleness, end = (mean(getattr(one, what) for one in runs) for what in ("clipped", "staleness", "end"))
        each = ", ".join(f"{one.end:.3f}" for one in runs)
        lines.append(
            f"{name} ({len(runs)}): {clipped:.3%} of tokens clipped, staleness {staleness:.1f} steps, at most "
            f"{max(one.max_staleness for one in runs)}; pass rate at the end {end:.3f} ({each})"
        )
    return lines
