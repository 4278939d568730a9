"""What staleness and step size do to losses: how the runs of study/grid.py are judged. Written before the first run.

    end       mean pass rate of the last quarter of a run's evaluations
    collapse  study/rule.py's, on the validation curve; or the run diverged. A result of its own: how many seeds of n.
              Of these some *never learn*: their peak is the mean of the first three evaluations; and some have
              *recovered* at the end, their last three evaluations being within what counts as a loss
    spread    standard deviation of the ends between seeds, pooled over those cells of one learning rate and one number
              of steps in which no seed collapses; never over learning rates

Two cells of one learning rate are compared by their ends, over the seeds that do not collapse or have recovered (at
first: do not collapse; found after the runs, since one verdict hung on two recovered runs): difference of the means
with a 90 % interval as in study/rule.py, margin 0.02; and by collapses: Fisher's exact test, the smaller of both
one-sided p, 5 %.
Idle, and so undecided: what they differ in leaves half or more of the runs as they are, seed by seed; how many is said.
(Found after the runs: No-Positive-Resampling hardly ever acts where few of the 4,000 prompts come twice.)

    how far     what a cell loses of the end at k = 0 of its loss and learning rate: it is "lost" if it loses more than
                0.02 by the whole interval, or a quarter of its seeds or more collapse; it "holds" if it loses less by
                the whole interval; else it is open. A loss holds to the largest k up to which all k hold, and is lost
                from the smallest k that is lost. (At first, what was not lost held, so that more noise held further)
    Fig. 4b     "k = 4 and k = 8 do equally well": CISPO, each learning rate, ends the same
    Fig. 5a     at k = 8, each learning rate: CISPO's end above DAPO's, GSPO's above DAPO's; with collapses beside it.
                With 160 steps speed and asymptote are one; the asymptotes (400 steps, A of Eq. 1) are compared the same
                way, over runs that level off, as in study/rule.py (found after the runs)
    Sec. 3.2    at k = 8: prompt average above sample and token average; normalisations the same; filter and
                No-Positive-Resampling lift the end. Verdicts by study/rule.py's `verdict`
    A.17        CISPO is the more robust to its hyperparameter than DAPO. Three values of the clip, which span a factor
                of two for each loss; ends of all seeds, collapsed too. V: variance of the mean ends over the values,
                less what chance adds to it, the mean square of what values and seeds leave over, / n. V of DAPO minus V
                of CISPO, 90 % by the jackknife over seeds: agrees above 0, disagrees below 0; undecided if a loss's
                clip acts on less than 0.1 % of the tokens (idle) at all three values. (At first the range of the means
                with a bootstrap. Found after the runs: a range is above 0 without any effect, and the bootstrap's
                interval of 90 % held it in 74 %)
    Fig. 20     GSPO with half-widths 3e-3 and 5e-3 ends above GSPO with 3e-4 and 4e-4
    Fig. 4a     virtual device-hours to the half-gain point (rule.py's E), PipelineRL-k against PPO-off-policy-k, for
                each k and each model of costs: more efficient in device-hours; and the idle shares
    FP32        bf16 bodies with and without the FP32 head, k = 0 and k = 8: ends the same

Does something announce a collapse? Each signal is one number for 8 steps: smallest effective sample size, largest rho,
largest gradient norm over the mean of its largest in steps 9 to 16 and 17 to 24. An alarm is the first 8 steps, from
step 9 on, in which it crosses a threshold. A hit is an alarm in or before the 8 steps in which the peak before the
collapse lies; a false alarm is any alarm in a run without a collapse. The threshold is the one with the largest hit
rate minus false-alarm rate on seeds 0 to 3; hits and false alarms are counted on seeds 4 to 7, over the cells of the
grid, for all losses together. A signal announces collapses if there it hits 80 % or more with 10 % false alarms or
fewer: a warning would be on in all steps of a run. Beside it stand the false alarms in as many steps as before the
peaks of the collapses, and what the cell alone says: an alarm in every run of the cells in which half or more of the
seeds 0 to 3 collapse. Runs that never learn are left out, since nothing comes before their peak (found after the runs).

Nothing of this says anything about GSPO's length-normalised ratio on long answers: those of `tiny` have about 7 tokens.

    python study/stability.py                    prints what the runs under results/tiny say, and which are missing
    python study/stability.py --into FOLDER      of the runs in another folder
    python study/stability.py --figures          draws figures/stability.png

Test: pytest tests/test_study_runs.py
"""

import argparse
import sys
from collections import defaultdict
from functools import partial
from itertools import product, takewhile
from math import inf, nan
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.special import stdtrit
from scipy.stats import fisher_exact

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import fit  # noqa: E402
from study import grid, rule  # noqa: E402

COLLAPSING = 0.25  # share of a cell's seeds from which on a loss does not hold there
HITS, FALSE_ALARMS = 0.8, 0.1  # at least, at most, of a signal that announces collapses
CHOSEN_ON, KEPT_ASIDE = range(4), range(4, 8)  # seeds
SETTLED = slice(1, 3)  # windows of 8 steps after the warm-up, steps 9 to 24: what a gradient norm is compared with
K = 8  # of the comparisons between losses
UNCLIPPED = ("no ratio", "uncapped ratio")
NONE = []  # the lines of a section without runs
BY_STALENESS = " | ".join(f"k = {k}" for k in grid.STALENESS)  # columns of tables
CHANGED, ITSELF = ("CISPO", "DAPO", "GSPO"), "-"  # the losses that have variants, and what stands for none
SIGNALS = {"effective sample size": "ess_min", "largest rho": "rho_max", "gradient norm": "norm_max"}


# --- Runs ------------------------------------------------------------------------------------------------------------


class One(NamedTuple):
    """What is asked of a run."""

    end: float  # mean pass rate of the last quarter of its evaluations
    collapsed: int | None  # optimizer steps done at the peak before the collapse, or when it diverged; None if neither
    never_learnt: bool  # whether it collapsed from its first evaluations on
    recovered: bool  # whether it collapsed, did not diverge, and regained at its end what it had lost
    windows: dict  # column -> a value for each grid.WINDOW steps


def one(line):
    """The One of a kept line."""
    evaluations = line["evals"]
    rows = [{"step": step, "pass_rate": rate, "stderr": e} for step, rate, e in zip(*map(evaluations.get, COLUMNS))]
    diverged = evaluations["step"][-1] if "finite" in line["reason"] else None
    collapsed = rule.collapse(rows)
    recovered = collapsed is not None and diverged is None and rule.recovered(rows)
    end = rule.last_quarter(evaluations["pass_rate"])
    never_learnt = collapsed is not None and collapsed == rows[2]["step"]
    return One(end, diverged if collapsed is None else collapsed, never_learnt, recovered, line["windows"])


COLUMNS = ("step", "pass_rate", "stderr")


def cells(lines, *names):
    """{(values of these names): {seed: One}} of kept lines ({Run.name: line})."""
    found = defaultdict(dict)
    for line in lines.values():
        run = line["run"]
        found[tuple(run[name] for name in names)][run["seed"]] = one(line)
    return dict(found)


def ends(runs):
    """Ends of the runs of a cell that do not collapse or have recovered."""
    return [run.end for run in runs.values() if run.collapsed is None or run.recovered]


def collapses(runs):
    """How many runs of a cell collapse."""
    return sum(run.collapsed is not None for run in runs.values())


def spread(groups):
    """rule.pooled over the ends of the cells in which no run collapses."""
    return rule.pooled([ends(runs) for runs in groups if len(runs) > 1 and not collapses(runs)])


def difference(one, other, spread):
    """(D, low, high) of the ends of two cells over the seeds that count (`ends`); nan if a setting has none."""
    settings = ends(one), ends(other)
    return rule.interval(*settings, *spread) if all(settings) and spread[1] else (nan, nan, nan)


def more_collapses(one, other):
    """Fisher's exact p, one-sided: that the first cell collapses more often than the second."""
    table = [[collapses(runs), len(runs) - collapses(runs)] for runs in (one, other)]
    return float(fisher_exact(table, alternative="greater").pvalue)


# --- How far ---------------------------------------------------------------------------------------------------------


def state(runs, first, spread):
    """What a cell loses of the end of `first`, that at k = 0: "holds", "lost" or "open"."""
    if collapses(runs) >= COLLAPSING * len(runs):
        return "lost"
    if runs is first:
        return "holds"
    _, low, high = difference(runs, first, spread)
    if high < -rule.MARGIN["A"]:
        return "lost"
    return "holds" if low > -rule.MARGIN["A"] else "open"


def holds(groups, loss, rate, spread):
    """(largest k to which a loss holds, smallest k from which it is lost); None: there is none.

    groups: {(loss, k, rate): {seed: One}}
    """
    first = groups.get((loss, 0, rate), {})
    states = {k: state(runs, first, spread) for k in grid.STALENESS if (runs := groups.get((loss, k, rate)))}
    held = [k for k, _ in takewhile(lambda one: one[1] == "holds", states.items())]
    return max(held, default=None), min((k for k, word in states.items() if word == "lost"), default=None)


def at_staleness(runs, first, spread):
    """Words on a cell: its end, or the difference from `first`, that at k = 0; how many runs collapse."""
    if not runs:
        return "-"
    gap = difference(runs, first, spread)[0]
    value = f"{gap:+.3f}" if gap == gap else "-"
    if runs is first:
        value = f"{mean(ends(runs)):.3f}" if ends(runs) else "-"
    return value + (f", {collapses(runs)}/{len(runs)} collapse" if collapses(runs) else "")


def how_far(lines):
    """Lines of Markdown: how far each loss holds at each learning rate, what it loses and how often it collapses."""
    groups = cells(lines, "loss", "k", "rate")
    table = [
        "Differences from the end at k = 0, of the runs that do not collapse or have recovered. A run collapses if it",
        "loses pass rate that it had; one that only ends low does not.",
        "",
        f"| lr | loss | holds to k | lost from k | {BY_STALENESS} |",
        "|---" * 11 + "|",
    ]
    widths = []
    for rate in grid.RATES:
        own = {cell: runs for cell, runs in groups.items() if cell[-1] == rate}
        s = spread(own.values())
        n = max(map(len, own.values()), default=0)
        widths += [f"{rule.reach(s, n):.3f} at lr x{rate} ({n} seeds per setting)"] if s[1] else []
        for loss in grid.LOSSES:
            row = [own.get((loss, k, rate), {}) for k in grid.STALENESS]
            reached = ["-" if k is None else str(k) for k in holds(own, loss, rate, s)]
            said = [f"x{rate}", loss, *reached, *(at_staleness(runs, row[0], s) for runs in row)]
            table += [f"| {' | '.join(said)} |"] if any(row) else []
    collapsed = [run for runs in groups.values() for run in runs.values() if run.collapsed is not None]
    never, back = (sum(getattr(run, what) for run in collapsed) for what in ("never_learnt", "recovered"))
    table += ["", f"Half-widths of a difference: {', '.join(widths) or 'not yet known'}."]
    return [*table, f"Of {len(collapsed)} runs that collapse, {never} never learn, {back} have recovered at the end."]


def clipped(lines):
    """Lines of Markdown: the share of the tokens on which each loss's clip acts, mean over runs and steps."""
    groups = cells(lines, "loss", "k", "rate")
    table = [f"| lr | loss | {BY_STALENESS} |", "|---" * 9 + "|"]
    for rate, loss in product(grid.RATES, grid.LOSSES):
        row = [groups.get((loss, k, rate)) for k in grid.STALENESS]
        if any(row) and loss not in UNCLIPPED:
            table.append(f"| x{rate} | {loss} | {' | '.join(f'{clips(runs):.2%}' if runs else '-' for runs in row)} |")
    return table


# --- Findings --------------------------------------------------------------------------------------------------------


def compared(says, one, other, direction, spread):
    """A line of Markdown: a finding, D with its interval, the verdict, collapses with Fisher's p."""
    if not one or not other:
        return f"| {says} | - | not made yet | |"
    D, low, high = difference(one, other, spread)
    word, why = rule.verdict(low, high, direction=direction, quantity="A")
    if alike := never_acts(one, other):
        word, why = "undecided", f"idle: {alike} seeds give the same run in both settings"
    shown = f"{D:+.3f} ({low:+.3f} to {high:+.3f}); {len(ends(one))} and {len(ends(other))} runs" if D == D else "-"
    counted = f"{collapses(one)} of {len(one)} against {collapses(other)} of {len(other)}"
    p, often = min((more_collapses(one, other), "more often"), (more_collapses(other, one), "less often"))
    counted += f", p = {p:.2g}" if collapses(one) + collapses(other) else ""
    counted += f": collapses {often}" if p <= 0.05 else ""
    return f"| {says} | {shown} | {word}: {why} | {counted} |"


def never_acts(one, other):
    """Words, such as "3 of 4", if what two cells differ in leaves half or more of the seeds as they are; else ""."""
    seeds = one.keys() & other.keys()
    alike = sum(one[seed] == other[seed] for seed in seeds)
    return f"{alike} of {len(seeds)}" if 2 * alike >= len(seeds) > 0 else ""


def clips(runs):
    """The share of the tokens on which the clip acts in the runs of a cell."""
    return mean(mean(value or 0.0 for value in run.windows["clipped"]) for run in runs.values())


def findings(folder):
    """Lines of Markdown: the findings of Fig. 4b, 5a, Sec. 3.2 and Fig. 20 at each learning rate."""
    kept = grid.kept(folder, "grid")
    groups = cells(kept, "loss", "k", "rate")
    changed = cells(grid.kept(folder, "variants"), "variant", "rate")
    table = ["| finding | difference of the ends (90 % interval) | verdict | runs that collapse |", "|---" * 4 + "|"]
    waiting = 0
    for rate in grid.RATES:
        steady = spread(runs for where in (groups, changed) for cell, runs in where.items() if cell[-1] == rate)
        at = partial(lambda loss, k, rate: groups.get((loss, k, rate)), rate=rate)
        for says, one, other, direction in asked(at, partial(lambda name, rate: changed.get((name, rate)), rate=rate)):
            if one and other:
                table.append(compared(f"lr x{rate}: {says}", one, other, direction, steady))
            else:
                waiting += 1
    return [
        *table,
        *(
            ["", f"{waiting} more findings lack runs of a setting (Sec. 3.2 and Fig. 20 are not asked at lr x4)."]
            if waiting
            else []
        ),
    ]


def asked(loss_at, variant):
    """(what the paper says, the cell, its reference, direction) for one learning rate."""
    cispo = loss_at("CISPO", K)
    yield "Fig. 4b, k = 8 does as well as k = 4", cispo, loss_at("CISPO", 4), 0
    yield "Fig. 5a, CISPO above DAPO at k = 8", cispo, loss_at("DAPO", K), +1
    yield "Fig. 5a, GSPO above DAPO at k = 8", loss_at("GSPO", K), loss_at("DAPO", K), +1
    yield "Sec. 3.2, prompt average above sample average", cispo, variant("sample average"), +1
    yield "Sec. 3.2, prompt average above token average", cispo, variant("token average"), +1
    yield "Sec. 3.2, batch and prompt normalisation the same", cispo, variant("prompt normalisation"), 0
    yield "Sec. 3.2, batch and no normalisation the same", cispo, variant("no normalisation"), 0
    yield "Sec. 3.2, the zero-variance filter lifts the end", cispo, variant("no filter"), +1
    yield "Sec. 3.2, No-Positive-Resampling lifts the end", cispo, variant("uniform resampling"), +1
    yield "Fig. 20, GSPO's half-widths above GSPO's paper's", loss_at("GSPO", K), variant("clips of GSPO's paper"), +1


CLIPS = {"CISPO": ("eps_max 4", "eps_max 8"), "DAPO": ("eps_high 0.2", "eps_high 0.4")}  # beside the grid's own value


def robustness(folder):
    """Lines: how much more DAPO's ends move with its clip than CISPO's, at each learning rate, with A.17's verdict."""
    groups = cells(grid.kept(folder, "grid"), "loss", "k", "rate")
    changed = cells(grid.kept(folder, "variants"), "variant", "rate")
    lines = []
    for rate in grid.RATES[:2]:
        values = {
            loss: [groups.get((loss, K, rate)), *(changed.get((name, rate)) for name in names)]
            for loss, names in CLIPS.items()
        }
        if not all(all(own) for own in values.values()):
            continue
        seeds = sorted(set.intersection(*(set(runs) for own in values.values() for runs in own)))
        samples = {loss: np.array([[runs[seed].end for seed in seeds] for runs in own]) for loss, own in values.items()}
        D, low, high = more_robust(samples["CISPO"], samples["DAPO"])
        word = "agrees" if low > 0 else "disagrees" if high < 0 else "undecided"
        if unused := [loss for loss, own in values.items() if max(map(clips, own)) < rule.IDLE_CLIP]:
            word = f"undecided, the clip of {' and '.join(unused)} is idle"
        moved = ", ".join(f"{loss} {max(0.0, moves(own)) ** 0.5:.3f}" for loss, own in samples.items())
        lines.append(
            f"- lr x{rate}: A.17, CISPO is the more robust to its clip than DAPO: {word}; over {len(seeds)} seeds the "
            f"clip moves the end by {moved} (standard deviation); difference of the variances {D:+.1e} ({low:+.1e} to "
            f"{high:+.1e})"
        )
    return ["", *lines] if lines else []


def moves(ends):
    """The variance that the value of a clip gives to the mean end; below 0 by chance. ends: (values, seeds)"""
    values, n = ends.shape
    left = ends - ends.mean(1, keepdims=True) - ends.mean(0) + ends.mean()
    return float(ends.mean(1).var(ddof=1) - (left**2).sum() / ((values - 1) * (n - 1)) / n)


def more_robust(one, other):
    """(D, low, high): moves(other) - moves(one) with its 90 % interval; nan with fewer than three seeds.

    one, other: (values, seeds) ends, of the same seeds
    """
    n = one.shape[1]
    D = moves(other) - moves(one)
    if n < 3:
        return D, nan, nan
    without = [moves(np.delete(other, seed, 1)) - moves(np.delete(one, seed, 1)) for seed in range(n)]
    reach = stdtrit(n - 1, 0.95) * (n - 1) * np.std(without, ddof=1) / n**0.5
    return D, float(D - reach), float(D + reach)


def variants(folder):
    """Lines of Markdown: ends of the variants and of the loss itself, of runs that do not collapse and of all."""
    groups = cells(grid.kept(folder, "variants"), "loss", "variant", "rate")
    if not groups:
        return NONE
    plain = cells(grid.kept(folder, "grid"), "loss", "k", "rate")
    names = [(loss, ITSELF) for loss in CHANGED] + [(loss, name) for name, (loss, _) in grid.VARIANTS.items()]
    table = ["| lr | loss | variant | end | end of all runs | runs that collapse | tokens clipped |", "|---" * 7 + "|"]
    for rate, (loss, name) in product(grid.RATES[:2], sorted(names, key=lambda one: CHANGED.index(one[0]))):
        if runs := plain.get((loss, K, rate)) if name == ITSELF else groups.get((loss, name, rate)):
            end = f"{mean(ends(runs)):.3f}" if ends(runs) else "-"
            whole = f"{mean(run.end for run in runs.values()):.3f}"
            counted = f"{collapses(runs)} of {len(runs)}"
            table.append(f"| x{rate} | {loss} | {name} | {end} | {whole} | {counted} | {clips(runs):.2%} |")
    return table


# --- What announces a collapse ---------------------------------------------------------------------------------------


def signal(run, name):
    """(windows,) from step 9 on: a signal that is high where something is wrong."""
    column = run.windows[SIGNALS[name]]
    known = [inf if value is None else value for value in column]
    if name == "effective sample size":
        return np.array([-inf if value is None else -value for value in column][1:]) * 1.0
    if name == "gradient norm":
        usual = median(known[SETTLED]) or 1.0
        return np.array(known[1:]) / usual
    return np.array(known[1:])


def alarm_at(run, name, threshold):
    """The number of 8 steps, from step 9 on, before the first in which a signal crosses a threshold; inf: never."""
    crossed = signal(run, name) > threshold
    return int(crossed.argmax()) if crossed.any() else inf


def watched(run):
    """How many times 8 steps, from step 9 on, an alarm is in time: to that of the peak if a run collapses, else all."""
    every = len(run.windows[SIGNALS["largest rho"]]) - 1
    return every if run.collapsed is None else min(every, max(1, -(-run.collapsed // grid.WINDOW) - 1))


def alarmed(run, name, threshold):
    """Whether an alarm comes in time."""
    return alarm_at(run, name, threshold) < watched(run)


def matched(runs, name, threshold):
    """The false-alarm rate of runs without a collapse if watched as long as those with one, up to their peaks."""
    times = [watched(run) for run in runs if run.collapsed is not None]
    first = [alarm_at(run, name, threshold) for run in runs if run.collapsed is None]
    return mean(at < time for at, time in product(first, times))


def rates_of(runs, alarm):
    """(share of collapses that `alarm` hits, share of other runs in which it is false); nan where there are none."""
    collapsed = [alarm(run) for run in runs if run.collapsed is not None]
    others = [alarm(run) for run in runs if run.collapsed is None]
    return tuple(mean(map(float, own)) if own else nan for own in (collapsed, others))


def threshold(runs, name):
    """The threshold with the largest hit rate minus false-alarm rate."""
    levels = sorted({float(value) for run in runs for value in signal(run, name) if np.isfinite(value)})
    levels = levels[:: max(1, len(levels) // 200)]
    return max(levels, key=lambda level: np.subtract(*rates_of(runs, partial(alarmed, name=name, threshold=level))))


def on_signal(name, chosen, aside):
    """A line: does a signal announce collapses? chosen, aside: runs that set its threshold, and runs that test it."""
    alarm = partial(alarmed, name=name, threshold=(level := threshold(chosen, name)))
    if np.subtract(*rates_of(chosen, alarm)) <= 0:
        return f"- {name}: no threshold hits more often than it alarms falsely: does not announce collapses"
    hits, false = rates_of(aside, alarm)
    word = "announces collapses" if hits >= HITS and false <= FALSE_ALARMS else "does not announce collapses"
    short = f"{matched(aside, name, level):.0%} in as many steps as before the peaks"
    return f"- {name} beyond {abs(level):.3g}: hits {hits:.0%}, false alarms {false:.0%} ({short}): {word}"


def announced(lines):
    """Lines: hits and false alarms of each signal on the seeds kept aside, and what the cell alone says."""
    runs = {
        seeds: [
            (cell, run)
            for cell, own in cells(lines, "loss", "k", "rate").items()
            for seed, run in own.items()
            if seed in seeds and not run.never_learnt
        ]
        for seeds in (CHOSEN_ON, KEPT_ASIDE)
    }
    chosen, aside = ([run for _, run in runs[seeds]] for seeds in (CHOSEN_ON, KEPT_ASIDE))
    counts = [(sum(run.collapsed is not None for run in own), len(own)) for own in (chosen, aside)]
    said = "Collapses, without runs that never learn: {} of {} runs of seeds 0 to 3, {} of {} of seeds 4 to 7."
    lines = [said.format(*sum(counts, ()))]
    if not 0 < counts[0][0] < counts[0][1] or not 0 < counts[1][0] < counts[1][1]:
        return [*lines, "Too few to say what announces a collapse."]
    lines += [on_signal(name, chosen, aside) for name in SIGNALS]
    often = defaultdict(list)
    for cell, run in runs[CHOSEN_ON]:
        often[cell].append(run.collapsed is not None)
    known = {
        id(run): mean(map(float, often[cell])) >= 0.5 if cell in often else False for cell, run in runs[KEPT_ASIDE]
    }
    hits, false = rates_of(aside, lambda run: known[id(run)])
    return [
        *lines,
        f"- the cell alone (half or more of its seeds 0 to 3 collapse): hits {hits:.0%}, false alarms {false:.0%}",
    ]


# --- Asymptotes, efficiency, head ------------------------------------------------------------------------------------


def measured(line, x):
    """The rule.Measured of a line that has a curve worth fitting, with compute x."""
    evaluations = line["evals"]
    run = one(line)
    shown = [at for at, step in enumerate(evaluations["step"]) if run.collapsed is None or step <= run.collapsed]
    curve = fit.Run(*([evaluations[name][at] for at in shown] for name in (x, "pass_rate")), start="10%")
    rates = np.array(evaluations["pass_rate"])
    return rule.Measured(curve, rates, rule.fitted(curve), run.collapsed, run.end, nan, nan, 0)


def groups_of(lines, x, *names):
    """{(values of these names): [rule.Measured]}"""
    found = defaultdict(list)
    for line in lines.values():
        found[tuple(line["run"][name] for name in names)].append(measured(line, x))
    return dict(found)


def asymptotes(folder):
    """Lines of Markdown: A of each loss after 400 steps against DAPO's, over the runs whose points determine it."""
    groups = groups_of(grid.kept(folder, "ceilings"), "tokens", "loss")
    if ("DAPO",) not in groups:
        return NONE
    s = rule.spread(groups, "A")
    table = [
        "| loss | end, mean of all runs | A, mean (runs with one) | A minus DAPO's (90 % interval) "
        "| runs that collapse |",
        "|---" * 5 + "|",
    ]
    for (loss,), runs in groups.items():
        own, other = (rule.values(rule.having(one, "A"), "A") for one in (runs, groups["DAPO",]))
        level = f"{mean(own):.3f} ({len(own)} of {len(runs)})" if own else "-"
        counted = f"{sum(run.collapsed is not None for run in runs)} of {len(runs)}"
        gap = apart(own, other, s, "A") if own and other and loss != "DAPO" else "-"
        table.append(f"| {loss} | {mean(run.end for run in runs):.3f} | {level} | {gap} | {counted} |")
    return table


def apart(one, other, spread, quantity):
    """The difference of the means of two samples of a quantity with its interval, as text."""
    D, low, high = rule.interval(one, other, *spread)
    return rule.shown(quantity, rule.Judged(D, low, high, "", "", "", nan))


def efficiency(folder):
    """Lines of Markdown: device-hours to the half-gain point, PipelineRL-k against PPO-off-policy-k; idle shares."""
    lines = grid.kept(folder, "efficiency")
    groups = groups_of(lines, "gpu_hours", "setup", "k", "costs")
    if not groups:
        return NONE
    s = rule.spread(groups, "E")
    table = [
        "| slower side | k | device-hours of PipelineRL, of PPO-off-policy's (90 %) | verdict | idle: generators, "
        "trainer (PipelineRL) | (PPO-off-policy) |",
        "|---" * 6 + "|",
    ]
    for costs, k in product(grid.COSTS, (1, 4, 8, 16)):
        settings = [rule.having(groups.get((setup, k, costs), []), "E") for setup in grid.SETUPS]
        if not all(settings):
            continue
        L = rule.level(*settings)
        one, other = (rule.values(runs, "E", L) for runs in settings)
        _, low, high = rule.interval(one, other, *s)
        word = rule.verdict(low, high, direction=+1, quantity="E")[0]
        shares = " | ".join(idle(lines, setup, k, costs) for setup in grid.SETUPS)
        table.append(f"| {costs} | {k} | {apart(one, other, s, 'E')} | {word} | {shares} |")
    return table


def idle(lines, setup, k, costs):
    """Shares of the time after the first 16 steps in which generators and trainer are idle, as text."""
    own = [
        line["windows"]
        for line in lines.values()
        if [line["run"][n] for n in ("setup", "k", "costs")] == [setup, k, costs]
    ]
    seconds, *busy = (
        sum(value for windows in own for value in windows[column][2:])
        for column in ("seconds", "seconds_generate", "seconds_train")
    )
    return "{:.0%}, {:.0%}".format(*(1 - value / seconds for value in busy))


def head(folder):
    """Lines of Markdown: bf16 bodies with and without the FP32 head."""
    groups = cells(grid.kept(folder, "head"), "head", "k")
    if not groups:
        return NONE
    table = ["| finding | difference of the ends (90 % interval) | verdict | runs that collapse |", "|---" * 4 + "|"]
    s = spread(groups.values())
    return table + [
        compared(f"FP32 head, k = {k}: ends the same", groups.get(("FP32", k)), groups.get(("bf16", k)), 0, s)
        for k in (0, K)
    ]


# --- Figure and text -------------------------------------------------------------------------------------------------


def heat_maps(lines, path):
    """Draw a heat map a loss: ends over staleness and learning rate, with the runs that collapse. Returns the path."""
    groups = cells(lines, "loss", "k", "rate")
    drawn = Figure(figsize=(13, 6.6), layout="constrained")
    seeds = max(map(len, groups.values()), default=0)
    drawn.suptitle(
        f"Task tiny, 160 steps: pass rate at the end, mean of {seeds} seeds; below it, how many collapse, if any do"
    )
    tops = [mean(run.end for run in runs.values()) for runs in groups.values()]
    for place, loss in enumerate(grid.LOSSES, 1):
        ax = drawn.add_subplot(2, 3, place, title=loss)
        image = heat_map(ax, loss, groups, max(tops, default=1.0))
    drawn.colorbar(image, ax=drawn.axes, label="pass rate at the end", shrink=0.8)
    drawn.savefig(path, dpi=120)
    return path


def heat_map(ax, loss, groups, top):
    """One loss: a square for each staleness and learning rate; returns the image."""
    values = np.full((len(grid.RATES), len(grid.STALENESS)), nan)
    for (row, rate), (column, k) in product(enumerate(grid.RATES), enumerate(grid.STALENESS)):
        if runs := groups.get((loss, k, rate)):
            values[row, column] = mean(run.end for run in runs.values())
            dark = values[row, column] < 0.6 * top
            count = f"\n{collapses(runs)}/{len(runs)} collapse" if collapses(runs) else ""
            text = f"{values[row, column]:.2f}" + count
            ax.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    image = ax.imshow(values, vmin=0, vmax=top, cmap="viridis", aspect="auto", origin="lower")
    ax.set_xticks(range(len(grid.STALENESS)), grid.STALENESS)
    ax.set_yticks(range(len(grid.RATES)), [f"lr x{rate}" for rate in grid.RATES])
    ax.set_xlabel("staleness of every token (optimizer steps)")
    return image


def report(folder):
    """All lines: what the runs that are there say, and which are missing."""
    lines = grid.kept(folder, "grid")
    sections = {
        "How far": how_far(lines) if lines else NONE,
        "Tokens on which the clip acts": clipped(lines) if lines else NONE,
        "Findings": findings(folder) + robustness(folder) if lines else NONE,
        "Variants": variants(folder),
        "What announces a collapse": announced(lines) if lines else NONE,
        "Asymptotes": asymptotes(folder),
        "Efficiency": efficiency(folder),
        "FP32 head": head(folder),
    }
    said = section("The task `tiny`: runs made", counts(folder))
    said += [line for title, own in sections.items() if own != NONE for line in section(title, own)]
    waiting = [title for title, own in sections.items() if own == NONE]
    return [*said, "", f"Task `tiny`, not made yet: {', '.join(waiting)}."] if waiting else said


def counts(folder):
    """Lines: how many runs of each plan are there."""
    return [f"- {plan}: {len(grid.kept(folder, plan))} of {len(runs())}" for plan, runs in grid.PLANS.items()]


def section(title, lines):
    """Lines under a title, with blank lines as Markdown needs them."""
    return ["", f"### {title}", "", *lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "results", metavar="FOLDER", help="where the runs are")
    parser.add_argument("--figures", action="store_true", help="draw the heat maps into figures/")
    args = parser.parse_args()
    if args.figures:
        print(heat_maps(grid.kept(args.into, "grid"), ROOT / "figures" / "stability.png"))
    else:
        print(*report(args.into), sep="\n")


if __name__ == "__main__":
    main()
