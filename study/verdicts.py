"""What a laptop can and cannot say about the paper: verdicts by regime, and the smallest difference each could see.

    python study/verdicts.py                  prints, for each regime, the findings and what the runs made can tell
    python study/verdicts.py --into FOLDER    of the runs in another folder (study/order.py)
    python study/verdicts.py --write          draws figures/verdicts.png, a forest plot of the ten findings of FOREST,
                                                     figures/stability.png, heat maps (study/stability.py), and
                                                     figures/axes.png, curves (study/axes.py), and puts
                                                     what all three print into results/README.md

Works on what is there, and says what is missing. The asynchronous runs of results/study stand first, as they are. Never
is a run of one regime compared with one of another.

    smallest difference    that two settings of n runs each find four times in five: (t_95 + t_80) s sqrt(2 / n), with
                           the spread s between the regime's seeds and its degrees of freedom
    missed with one seed   a decided finding that its runs, taken one per setting, would leave undecided or decide
                           otherwise, with the same s
    ranking                of two configurations, at a quarter of the compute and at the end, by means over seeds: of
                           all pairs, and of those whose ends are more than the margin of 0.02 apart
    forecast error         |forecast - measured| of the last five evaluations from a part of the compute (forecast.py)

Test: pytest tests/test_study_runs.py
"""

import argparse
import sys
from collections import Counter, defaultdict
from itertools import combinations, product
from math import nan
from pathlib import Path
from statistics import mean, median

import numpy as np
from matplotlib.figure import Figure
from scipy.special import stdtrit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import forecast  # noqa: E402
from study import axes, comparisons, drawing, grid, pairs, regimes, rule, stability  # noqa: E402

ASYNCHRONOUS = "asynchronous, staleness as it came"
FOREST = (  # (regime, configuration, reference) of findings on A, chosen before the runs
    ("exact-1", "scalerl", "baseline"),
    ("exact-1", "scalerl", "deepseek"),
    ("balanced", "pipeline-8", "baseline"),
    ("exact-8", "cispo", "pipeline-8"),
    ("exact-8", "gspo", "pipeline-8"),
    ("exact-1", "prompt-average", "pipeline"),
    ("exact-1", "zero-variance-filter", "pipeline"),
    ("exact-1", "no-positive-resampling", "pipeline"),
    ("exact-1", "loo-prompt-normalisation", "scalerl"),
    ("exact-1", "loo-no-fp32-head", "scalerl-bf16"),
)
BEGIN, END = "<!-- python study/verdicts.py --write: begin -->", "<!-- end -->"  # in results/README.md
BLOCKED = ("exact-1", "exact-8")  # regimes of which is said what is left without what a seed does (study/pairs.py)
PAIRED = "exact-1"  # the one in which less is left
COMPUTE = {("balanced", "E"): "gpu_hours", ("balanced", "A"): "step"}  # in which a quantity counts, if not in tokens
QUANTITIES = {"A": "asymptote A", "end": "pass rate at the end", "E": "compute to the half-gain point"}
EDGE = 0.12  # of the forest plot
CUTS = (10, 20, 30, 50, 70)  # per cent of the compute


def everything(folder):
    """[(name, what is said of it, logs, findings, runs that three seeds of each configuration are)] of all regimes."""
    first = comparisons.kept(ROOT / "results" / "study")
    rows = [("study", ASYNCHRONOUS, first, comparisons.FINDINGS, len(first))]
    for name, own in regimes.REGIMES.items():
        asked = regimes.LEAST * len(own.names)
        rows.append((name, own.says, regimes.kept(folder, name), regimes.findings(name), asked))
    return rows


def made(regime):
    """Whether a regime of `everything` has runs."""
    return bool(regime[2])


# --- What the runs made can tell -------------------------------------------------------------------------------------


def smallest(spread, n):
    """The smallest difference that two settings of n runs each find four times in five; nan without degrees of freedom.

    >>> round(smallest((0.0085, 12), 3), 4)  # (1.782 + 0.873) 0.0085 sqrt(2/3)
    0.0184
    """
    s, freedom = spread
    return float((stdtrit(freedom, 0.95) + stdtrit(freedom, 0.8)) * s * (2 / n) ** 0.5) if freedom else nan


def can_tell(folder):
    """Lines of Markdown: spread between seeds and smallest difference, for each regime and quantity."""
    columns = ("regime", "quantity", "runs", "spread of seeds (degrees of freedom)", "half-width, 3 + 3 runs, 6 + 6")
    more = ("smallest difference, 3 + 3, 6 + 6", "in pairs of seeds: spread", "half-width, 3 + 3, 6 + 6")
    table = [f"| {' | '.join(columns + more)} |", "|---" * len(columns + more) + "|"]
    for name, says, logs, _, _ in filter(made, everything(folder)):
        for quantity, called in QUANTITIES.items():
            x = COMPUTE.get((name, quantity), "tokens")
            s = rule.spread(rule.grouped(logs, x), quantity)
            paired = pairs.spread(pairs.measured(logs, x)["pipeline"], quantity) if name in BLOCKED else (nan, 0)
            cells = [of(s, quantity), *(", ".join(reaches(how, s, quantity)) for how in (rule.reach, smallest))]
            cells += [of(paired, quantity), ", ".join(reaches(rule.reach, paired, quantity))]
            table.append(f"| {' | '.join((says, called, str(len(logs)), *cells))} |")
    return table


def of(spread, quantity):
    """A spread with its degrees of freedom, as text."""
    return f"{shown(spread[0], quantity)} ({spread[1]})" if spread[1] else "-"


def reaches(how, spread, quantity):
    """What two settings of three runs each, and of six, can tell with a spread, as texts."""
    return [shown(how(spread, n), quantity) for n in (regimes.LEAST, regimes.MOST)] if spread[1] else ["-"]


def shown(value, quantity):
    """A difference in A or of ends, or a share of compute."""
    return f"{np.expm1(value):.1%}" if quantity == "E" else f"{value:.3f}"


def missed(logs, findings):
    """(pairs of single runs, those that miss) of the findings that all runs decide: see the head of this file."""
    groups = {x: rule.grouped(logs, x) for x in {finding.x for finding in findings}}
    pairs = wrong = 0
    for finding, row in rule.judged(logs, findings).items():
        if row.verdict == "undecided":
            continue
        own = groups[finding.x]
        s = rule.spread(own, finding.quantity)
        for one, other in product(own[finding.configuration], own[finding.reference]):
            pairs += 1
            wrong += rule.judge(finding, [one], [other], s).verdict != row.verdict
    return pairs, wrong


def ranking(logs, x="tokens"):
    """[(differences of two configurations at a quarter of the compute, and at the end)] for all pairs of them."""
    early, late = defaultdict(list), defaultdict(list)
    for (name, _), rows in logs.items():
        evaluations = [row for row in rows if row["kind"] == "eval"]
        C = [row[x] for row in evaluations]
        R = [row["pass_rate"] for row in evaluations]
        early[name].append(float(np.interp(C[-1] / 4, C, R)))
        late[name].append(mean(R[-(len(R) // 4) :]))
    return [(mean(early[a]) - mean(early[b]), mean(late[a]) - mean(late[b])) for a, b in combinations(early, 2)]


def forecasts(logs):
    """{share of the compute: [|forecast - measured|]} of the runs that do not collapse."""
    errors = defaultdict(list)
    for rows in logs.values():
        one = rule.measure(rows)
        for row in forecast.hindcasts(one.run, CUTS) if one.collapsed is None else ():
            errors[row["share"]].append(abs(row["error"]))
    return dict(errors)


def summary(logs, findings):
    """Lines: what one seed would have missed, how often a quarter ranks as the end, how well the end is forecast."""
    pairs, wrong = missed(logs, findings)
    said = "leave undecided, or decide otherwise, what all runs decide"
    lines = [f"one run per setting misleads: {wrong} of {pairs} pairs of single runs {said}"] if pairs else []
    ranked = ranking(logs)
    apart = [one for one in ranked if abs(one[1]) > rule.MARGIN["A"]]
    for which, own in (("", ranked), (f" whose ends are more than {rule.MARGIN['A']} apart", apart)):
        same = sum(early * late > 0 for early, late in own)
        said = f"two configurations{which} rank at a quarter of the compute as at the end"
        lines += [f"{said} in {same} of {len(own)} pairs"] if own else []
    errors = [f"{share:.0%}: {median(own):.3f} ({len(own)} runs)" for share, own in sorted(forecasts(logs).items())]
    return lines + (["median error of the forecast from a part of the compute: " + ", ".join(errors)] if errors else [])


def idle(logs):
    """Lines: for each configuration, shares of the time after the first evaluation in which its processes are idle."""
    lines = []
    for name in dict.fromkeys(name for name, _ in logs):
        own = [[row for row in rows if row["kind"] == "step"][1:] for (other, _), rows in logs.items() if other == name]
        seconds, *busy = (
            sum(row[column] for rows in own for row in rows)
            for column in ("seconds", "seconds_generate", "seconds_train")
        )
        shares = [1 - value / seconds for value in busy]
        lines.append("idle in {} ({} runs): generators {:.0%}, trainer {:.0%}".format(name, len(own), *shares))
    return lines


def meet(logs):
    """A line: the pass rates at the device-hours at which the first configuration ends, means over the seeds."""
    runs = [rule.averaged(logs, name, "gpu_hours") for name in dict.fromkeys(name for name, _ in logs)]
    hours = min(run.compute[-1] for run in runs)
    rates = ", ".join(f"{run.name} {np.interp(hours, run.compute, run.reward):.3f}" for run in runs)
    return f"pass rate at {hours:.3f} device-hours, where the first ends: {rates}"


# --- Text and figure -------------------------------------------------------------------------------------------------


def report(folder):
    """Lines of Markdown: each regime but the asynchronous one with its findings; then what each could have seen."""
    lines = []
    for name, says, logs, findings, asked in filter(made, everything(folder)):
        if name != "study":
            lines += [f"### {says}: {len(logs)} runs, {asked} asked before the stopping rule", ""]
            beside = pairs.column(logs, findings) if name == PAIRED else None
            lines += [*rule.table(logs, findings, beside), ""]
        lines += [*idle(logs), meet(logs), ""] if name == "balanced" else []
        looked = Counter(regimes.looks(logs, one) for one in findings) if name in regimes.REGIMES else {}
        times = [f"{count} of {len(findings)} findings {n} times" for n, count in sorted(looked.items()) if n > 1]
        lines += [f"Looked at more than once: {', '.join(times)}", ""] if times else []
    waiting = [f"{says} (0 of {asked} runs)" for _, says, logs, _, asked in everything(folder) if not logs]
    lines += [f"Embedded task, not made yet: {'; '.join(waiting)}.", ""] if waiting else []
    lines += ["### What each could have seen", "", *can_tell(folder), ""]
    for _, says, logs, findings, _ in everything(folder):
        lines += [f"- {says}: {line}" for line in summary(logs, findings)]
    return lines


def forest_rows(folder):
    """[(label, rule.Judged)] of the findings of FOREST with an interval of A or of the ends; labels of the others."""
    rows, waiting = [], []
    for name, says, logs, findings, _ in everything(folder):
        found = rule.judged(logs, [one for one in findings if one.quantity == "A"])
        for one in findings:
            if one.quantity == "A" and (name, one.configuration, one.reference) in FOREST:
                label = f"{one.says} ({says.removeprefix('virtual time, ')})"
                row = found.get(one)
                told = row is not None and any(np.isfinite([row.low, *row.ends[1:]]))
                rows += [(label, row)] if told else []
                waiting += [] if told else [label]
    return rows, waiting


def forest(folder, path):
    """Draw the findings of FOREST that can be drawn; returns the path (None: nothing to draw), labels of the others."""
    rows, waiting = forest_rows(folder)
    if not rows:
        return None, waiting
    figure = Figure(figsize=(8.2, 1.9 + 0.5 * len(rows)), layout="constrained")
    title = f"what the paper says; difference in A, 90 % interval (grey area: within {rule.MARGIN['A']:.2g})"
    ax = figure.add_subplot()
    drawing.draw_differences(ax, (title, rule.MARGIN["A"], rows))
    low, high = ax.get_xlim()
    ax.set_xlim(max(low, -EDGE), min(high, EDGE))
    for y, (_, one) in enumerate(rows):  # arrows: the interval goes on
        for x, arrow, beyond in ((-EDGE, "<", one.low < -EDGE), (EDGE, ">", one.high > EDGE)):
            ax.plot(x, y, arrow if beyond else "", ms=6, clip_on=False, color=drawing.VERDICTS[one.verdict])
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.9 / len(rows)), ncols=4)
    figure.savefig(path, dpi=120)
    return path, waiting


def drawn(folder, into):
    """Lines of Markdown that show the figures there are runs for, which are drawn into a folder."""
    path, waiting = forest(folder, into / "verdicts.png")
    lines = [f"![Differences in A with 90 % intervals](../figures/{path.name})", ""] if path else []
    if path and waiting:
        lines += [f"{len(waiting)} of this figure's {len(FOREST)} findings have no interval yet.", ""]
    if path:
        lines += ["A row with a square only: a setting has no run that levels off, or too few do.", ""]
    if runs := grid.kept(folder, "grid"):
        path = stability.heat_maps(runs, into / "stability.png")
        lines += [f"![Pass rate at the end by loss, staleness and learning rate](../figures/{path.name})", ""]
    if grid.kept(folder, axes.PLAN):
        path = axes.curves(folder, into / "axes.png")
        lines += [f"![Pass rate against tokens along each axis](../figures/{path.name})", ""]
    return lines


def written(text, lines):
    """The text with these lines between the marks BEGIN and END."""
    before, _, rest = text.partition(BEGIN)
    return "\n".join([before + BEGIN, "", *lines, "", END]) + rest.partition(END)[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "results", metavar="FOLDER", help="where the runs are")
    parser.add_argument("--write", action="store_true", help="draw the figures, put all lines into results/README.md")
    args = parser.parse_args()
    lines = report(args.into)
    if args.write:
        readme = ROOT / "results" / "README.md"
        shown = drawn(args.into, ROOT / "figures") + lines + stability.report(args.into) + axes.report(args.into)
        readme.write_text(written(readme.read_text(), shown))
    else:
        print(*lines, sep="\n")


if __name__ == "__main__":
    main()
