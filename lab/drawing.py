"""The lab's figures: both families of curves of a comparison, and what the kept runs say of staleness and of the axes.

    python -m lab.drawing        draws figures/staleness.png and figures/axes.png from the runs kept in results/lab

Test: pytest tests/test_lab.py
"""

from math import isfinite
from pathlib import Path
from statistics import mean

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from scipy.special import stdtrit

from lab import statistics
from lab.tables import RATES, STALENESS, kept_groups
from plumbing.figures import COLOURS, RATE, called

ROOT = Path(__file__).resolve().parent.parent
GREY = "#7F7F7F"
AXES = {  # table -> title of its panel
    "axis-batch": "prompts x generations of a step",
    "axis-length": "token budget of a completion",
    "axis-model": "policy",
    "axis-mixture": "two sources: sums of 4 or 5, of 6 or 7 operands",
    "axis-embedded": "prompts of a step, the embedded task",
}
LOSSES = {"CISPO": "#D55E00", "DAPO": "#0072B2", "GRPO": "#56B4E9", "GSPO": "#009E73", "no ratio": GREY}


def colour(place, count):
    """Of the setting at this place; of many settings along a scale, in their order."""
    return COLOURS[place] if count <= len(COLOURS) else colormaps["viridis"](0.95 * place / count)


def families(ax, groups, x, thin=True):
    """Draw the curves of each setting: thin its runs, thick their mean over what all have run."""
    scale = 1000 if x == "tokens" else 1
    styles = ("-", "--", ":") if len(groups) > len(COLOURS) else ("-",)
    for place, (name, runs) in enumerate(groups.items()):
        look = {"color": colour(place, len(groups)), "ls": styles[place % len(styles)]}
        if thin:
            for run in runs:
                ax.plot(np.divide(getattr(run, x), scale), run.pass_rate, lw=0.6, alpha=0.5, **look)
        shared = min(len(run.pass_rate) for run in runs)
        C, R = (np.mean([getattr(run, what)[:shared] for run in runs], 0) for what in (x, "pass_rate"))
        ax.plot(C / scale, R, lw=2 if thin else 1.2, label=f"{name} ({len(runs)})", **look)
    ax.set(xlabel="thousands of tokens" if scale > 1 else f"virtual {called(x)}", ylabel=RATE)
    ax.grid(alpha=0.25)


def differences(ax, rows):
    """Draw the differences of the ends from the reference with their 90 % intervals, one below the other."""
    ax.axvline(0, color="black", lw=0.6)
    for y, row in enumerate(rows):
        D, low, high = row.end[:3]
        reach = [[D - low], [high - D]] if isfinite(low) else None
        ax.errorbar(
            D, y, xerr=reach, fmt="o", ms=5, capsize=3, color=GREY if row.why_not else colour(y + 1, 1 + len(rows))
        )
    ax.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlabel("difference of the pass rate at the end, 90 %")
    ax.grid(alpha=0.25, axis="x")


def comparison(path, groups, rows, x):
    """Write the figure of a comparison; returns its path."""
    height = max(4.2, 1.6 + 0.28 * len(groups))
    drawn = Figure(figsize=(11, height), layout="constrained")
    left, right = drawn.subplots(1, 2, width_ratios=(3, 2))
    families(left, groups, x, thin=len(groups) < 5)
    left.set_title("runs (thin) and their means over seeds" if len(groups) < 5 else "means over seeds", fontsize=10)
    left.legend(fontsize=8, ncols=1 + (len(groups) > 12))
    differences(right, rows)
    right.set_title(f"minus {next(iter(groups))}, paired by seed", fontsize=10)
    drawn.savefig(path, dpi=120)
    return path


# --- Of the kept runs ------------------------------------------------------------------------------------------------


def against_staleness(ax, losses):
    """Draw the ends of each loss against staleness, with 90 % intervals. losses: {loss: {k: [Run]}}"""
    for loss, own in losses.items():
        ends = [[statistics.end(run) for run in runs] for runs in own.values()]
        means = [mean(values) for values in ends]
        reach = [stdtrit(len(values) - 1, 0.95) * np.std(values, ddof=1) / len(values) ** 0.5 for values in ends]
        places = [STALENESS.index(k) for k in own]
        ax.errorbar(places, means, yerr=reach, color=LOSSES[loss], lw=1.3, capsize=2)
        for place, value, runs in zip(places, means, own.values()):
            open_ = 2 * sum(map(statistics.collapses, runs)) >= len(runs)
            ax.plot(place, value, "o", ms=6, color=LOSSES[loss], mfc="white" if open_ else LOSSES[loss], zorder=3)
        ax.plot([], [], "o-", color=LOSSES[loss], label=loss)
    ax.set_xticks(range(len(STALENESS)), STALENESS)
    ax.set_xlabel("staleness of every token (optimizer steps)")
    ax.grid(alpha=0.25)


def staleness(path, of_table):
    """Write the figure of the grid, a panel a learning rate. of_table: a table's name -> {setting: [Run]}"""
    drawn = Figure(figsize=(12, 4), layout="constrained")
    panels = drawn.subplots(1, len(RATES), sharey=True)
    for ax, rate in zip(panels, RATES):
        cells = {k: of_table(f"grid-k{k}-x{rate}") for k in STALENESS}
        against_staleness(ax, {loss: {k: own[loss] for k, own in cells.items()} for loss in LOSSES})
        ax.set_title(f"learning rate x{rate}")
    panels[0].set_ylabel("pass rate at the end, 8 seeds, 90 %")
    panels[0].text(
        0.02, 0.03, "open circle: half or more of the runs collapse", transform=panels[0].transAxes, fontsize=8
    )
    panels[-1].legend(fontsize=8)
    drawn.savefig(path, dpi=120)


def axes(path, of_table):
    """Write the figure of the axes, a panel each: mean curves over the seeds."""
    drawn = Figure(figsize=(15, 8.4), layout="constrained")
    for place, (table, title) in enumerate(AXES.items(), 1):
        ax = drawn.add_subplot(2, 3, place, title=title)
        groups = of_table(table)
        families(ax, groups, "tokens", thin=False)
        ax.legend(fontsize=7, ncols=3 + (len(groups) > 8), loc="upper center", bbox_to_anchor=(0.5, -0.16))
    drawn.savefig(path, dpi=120)


def main():
    staleness(ROOT / "figures" / "staleness.png", kept_groups)
    axes(ROOT / "figures" / "axes.png", kept_groups)


if __name__ == "__main__":
    main()
