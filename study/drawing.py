"""The figures of the paper's comparisons (Fig. 2, 4a, 5a, 6, 7) on the embedded task, and of drops against staleness.

    python study/run.py --figures          draws them into figures/, from the logs of results/study

Test: pytest tests/test_study.py
"""

from functools import partial
from textwrap import fill

import numpy as np
from matplotlib.figure import Figure

import fit
from plumbing import figures
from study import comparisons as study
from study import rule

VERDICTS = {"agrees": "#009E73", "disagrees": "#D55E00", "undecided": "#4D4D4D"}
QUANTITIES = {"A": "difference in A", "E": "log of the compute saved"}


def draw_all(logs, folder):
    """A figure for each of the paper's comparisons that has runs among `study.kept` logs, and one on the staleness of
    tokens; returns their paths.
    """
    found = rule.judged(logs)
    paths = []
    for figure, title in study.FIGURES.items():
        own = {finding: row for finding, row in found.items() if finding.figure == figure}
        if own:
            path = folder / f"ours_fig{figure}.png"
            differences = [partial(draw_differences, panel=panel) for panel in differences_of(own)]
            title = f"Fig. {figure}, {title}: the embedded task"
            figures.save(path, title, curves_of(own, logs, figure == "7"), differences, width=6.8)
            paths.append(path)
    path = folder / "ours_staleness.png"
    draw_drops(path, drops_by_staleness(logs))
    return [*paths, path]


def curves_of(findings, logs, with_log_f):
    """A panel of fitted means over the seeds for each compute that the findings name; Fig. 7's lines if asked for."""
    panels = []
    for x in dict.fromkeys(finding.x for finding in findings):
        own = [finding for finding in findings if finding.x == x]
        names = dict.fromkeys(name for finding in own for name in (finding.reference, finding.configuration))
        laws = [fit.fit_run(rule.averaged(logs, name, x)) for name in names]
        curves = [figures.scaling(law, law.span[1])._replace(band=None) for law in laws]
        panels.append(("means over (so many) seeds", f"compute C ({figures.called(x)})", figures.RATE, curves))
        if with_log_f:
            A = float(np.mean([law.A for law in laws]))
            same = [fit.fit_run(law.run, A=A) for law in laws]
            title = f"Fig. 7 with one A = {A:.3f}: F = C^B"
            panels.append(
                (
                    title,
                    f"compute C ({figures.called(x)})",
                    f"log10 F(R), F in {figures.called(x)}^B",
                    [*map(figures.log_f, same)],
                )
            )
    return panels


def differences_of(findings):
    """A panel (see `draw_differences`) for each quantity of {finding: rule.Judged}."""
    rows = {}
    for one, judged in findings.items():
        rows.setdefault(one.quantity, []).append((one.says, judged))
    return [
        (f"{QUANTITIES[name]} (grey: within {rule.MARGIN[name]:.2g})", rule.MARGIN[name], own)
        for name, own in rows.items()
    ]


def draw_differences(ax, panel):
    """Draw a panel (title, margin, rows): rows (label, rule.Judged), one above the other.

    Lines: 90 % intervals; thin, with a square: of the pass rates at the end. Grey area: within the margin.
    """
    title, margin, rows = panel
    ax.axvspan(-margin, margin, color="#7F7F7F", alpha=0.15, lw=0)
    ax.axvline(0, color="black", lw=0.6)
    for y, (_, one) in enumerate(rows):
        colour = VERDICTS[one.verdict]
        if one.D != one.D:
            ax.text(
                0.01, y, "A not determined", transform=ax.get_yaxis_transform(), va="center", fontsize=7, color=colour
            )
        reach = [[one.D - one.low], [one.high - one.D]]
        ax.errorbar(one.D, y, xerr=reach, fmt="o", ms=4, lw=1.3, capsize=3, color=colour)
        if one.ends:
            D, low, high = one.ends
            ax.errorbar(D, y + 0.3, xerr=[[D - low], [high - D]], fmt="s", ms=2.5, lw=0.7, capsize=2, color="black")
    ax.set_yticks(range(len(rows)), [fill(label, 30) for label, _ in rows], fontsize=8)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    for verdict in dict.fromkeys(one.verdict for _, one in rows):
        ax.plot([], [], "o-", ms=4, color=VERDICTS[verdict], label=verdict)
    if any(one.ends for _, one in rows):
        ax.plot([], [], "s-", ms=2.5, lw=0.7, color="black", label="pass rates at the end")
    ax.set_title(title, fontsize=10)
    ax.set_xlabel("the setting named first minus the other")
    ax.locator_params(axis="x", nbins=5)
    ax.grid(alpha=0.25, axis="x")
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)


def drops_by_staleness(logs):
    """{loss, dtype: (mean staleness of the tokens, largest drops to a later evaluation)}, a point for each run."""
    points = {}
    for rows in logs.values():
        one = rule.measure(rows)
        flags = rows[0]["flags"]
        drop = max(np.maximum.accumulate(one.rates) - one.rates)
        points.setdefault(f"{flags['loss']}, {flags['dtype']}", []).append((one.staleness, drop))
    return {label: tuple(zip(*own)) for label, own in points.items()}


def draw_drops(path, groups):
    """Write a figure of the points of `drops_by_staleness`, in a folder that exists."""
    figure = Figure(figsize=(6.8, 4.2), layout="constrained")
    ax = figure.add_subplot(
        title="each run of the study on the embedded task",
        xlabel="mean staleness of the trained tokens (optimizer steps)",
        ylabel="largest drop of the pass rate",
    )
    for (label, (x, y)), colour, marker in zip(groups.items(), figures.COLOURS, figures.MARKERS):
        ax.plot(x, y, marker, color=colour, ms=5, label=label)
    ax.grid(alpha=0.25)
    ax.legend()
    figure.savefig(path, dpi=120)
