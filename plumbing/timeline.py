"""Who did what when in a virtual run: recorded, read again, and drawn (python fit.py --timeline RUN [RUN]).

A virtual run writes OUT/timeline.jsonl, one line per optimizer step with what ended since the last one:
    {"step": v, "gradient": [began, ended], "broadcast": [[began, ended]],
     "completions": {rank: [[began, ended, version that began it, 1 in an evaluation], ...]}}
in virtual seconds since the start of the run, evaluations included.

Test: pytest tests/test_timeline.py
"""

import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import fit

FILE = "timeline.jsonl"
COLOURS = colormaps["viridis"]  # of policy versions
BROADCAST, EVALUATION = "black", "tab:pink"


# --- Recorded --------------------------------------------------------------------------------------------------------


class Recorder:
    """Writes the timeline of a virtual run into its folder. A resumed run goes on where the file ends.

    step  of the next optimizer step, counted from 0
    """

    def __init__(self, folder, step=0):
        self.path = Path(folder) / FILE
        self.step = step
        self.start = max((row["gradient"][1] for row in rows_of(self.path)), default=0.0)  # seconds
        self.clear()

    def clear(self):
        self.row: dict = {"broadcast": [], "completions": defaultdict(list)}

    def gradient(self, began, ended):
        """An optimizer step has ended; writes the line of this step."""
        with self.path.open("a") as file:
            file.write(json.dumps({"step": self.step, "gradient": self.span(began, ended)} | self.row) + "\n")
        self.step += 1
        self.clear()

    def broadcast(self, began, ended):
        self.row["broadcast"].append(self.span(began, ended))

    def completion(self, rank, began, ended, version, evaluation):
        self.row["completions"][rank].append([*self.span(began, ended), version, int(evaluation)])

    def span(self, began, ended):
        return [round(self.start + began, 6), round(self.start + ended, 6)]


def rows_of(path):
    """The lines of a JSONL file as dicts, [] if there is none; whatever else is in it is left out."""
    rows = []
    for text in path.read_text().splitlines() if path.exists() else []:
        with suppress(ValueError):
            rows.append(json.loads(text))
    return [row for row in rows if isinstance(row, dict)]


# --- Read ------------------------------------------------------------------------------------------------------------


@dataclass
class Timeline:
    """Bars in seconds: (began, ended), and for some a third number."""

    name: str
    gradients: dict = field(default_factory=dict)  # step, counted from 0 -> (began, ended)
    broadcasts: list = field(default_factory=list)
    evaluations: list = field(default_factory=list)
    completions: dict = field(default_factory=dict)  # rank -> [(began, ended, version that began it)]


def read(path):
    """The Timeline that a Recorder wrote into a run's folder. Raises fit.BadInput if there is none."""
    path = Path(path)
    folder = path.parent if path.name == "log.jsonl" else path
    rows = rows_of(folder / FILE)
    if not rows:
        expected = "the folder of a run with --virtual COSTS, which writes one; --virtual exact does not"
        raise fit.BadInput(f"{path}: found no {FILE}; expected {expected}")
    found = Timeline(folder.name)
    begun = defaultdict(list)  # version -> the evaluation completions that began under it
    for row in rows:
        found.gradients[row["step"]] = tuple(row["gradient"])
        found.broadcasts += map(tuple, row["broadcast"])
        for rank, completions in row["completions"].items():
            own = found.completions.setdefault(int(rank), [])
            for began, ended, version, evaluation in completions:
                if evaluation:
                    begun[version].append((began, ended))
                own.append((began, ended, version))
    found.evaluations = [(min(b for b, _ in spans), max(e for _, e in spans)) for spans in begun.values()]
    return found


def middle(timelines):
    """(first, last + 1): 20 optimizer steps in the middle of the shortest run, or all of a shorter one."""
    steps = 1 + min(max(found.gradients) for found in timelines)
    first = max(0, steps // 2 - 10)
    return first, min(steps, first + 20)


# --- Drawn -----------------------------------------------------------------------------------------------------------


def lanes(bars):
    """[(lane, bar)]: each bar, a (began, ended, ...), in the first lane that is free when it begins."""
    free = []  # the time at which each lane becomes free
    placed = []
    for bar in sorted(bars):
        lane = next((n for n, end in enumerate(free) if end <= bar[0] + 1e-9), len(free))
        free[lane : lane + 1] = [bar[1]]
        placed.append((lane, bar))
    return placed


def window(found, steps):
    """(began, ended) in seconds of the optimizer steps from steps[0] to steps[1] - 1, waiting before them included."""
    inside = [step for step in found.gradients if steps[0] <= step < steps[1]]
    if not inside:
        raise fit.BadInput(f"{found.name}: --steps {steps[0]} {steps[1]}, expected steps below {len(found.gradients)}")
    before = found.gradients.get(min(inside) - 1, (0.0, 0.0))
    return before[1], found.gradients[max(inside)][1]


def draw_run(ax, found, span, colour):
    """One run: the trainer in the first row, then a row for each generator with its completions."""

    def bars(spans, place, height, **how):
        """Bars between these times, cut at the ends of the span."""
        inside = [(max(began, span[0]), min(ended, span[1])) for began, ended, *_ in spans]
        own = [(began - span[0], ended - began) for began, ended in inside if ended > began]
        ax.broken_barh(own, (place, height), **how)

    for step, bar in found.gradients.items():
        bars([bar], 0.1, 0.8, color=colour(step))
    bars(found.broadcasts, 0.1, 0.8, color=BROADCAST)
    ranks = sorted(found.completions)
    for row, rank in enumerate(ranks, 1):
        placed = lanes([one for one in found.completions[rank] if one[1] > span[0] and one[0] < span[1]])
        height = 0.9 / (1 + max((lane for lane, _ in placed), default=0))
        for lane, bar in placed:
            bars([bar], -row + 0.05 + lane * height, height, color=colour(bar[2]), lw=0)
    for began, ended in found.evaluations:
        if ended > span[0] and began < span[1]:
            ax.axvspan(began - span[0], ended - span[0], color=EVALUATION, alpha=0.35, lw=1)
    names = [f"generator {rank}" for rank in ranks]
    ax.set_yticks([0.5, *(0.5 - row for row in range(1, len(names) + 1))], ["trainer", *names])
    ax.set(title=found.name, ylim=(-len(names), 1.0), ylabel="")


def draw(timelines, path, steps):
    """Draw the same optimizer steps of the timelines, one run above the other, on one scale of seconds."""
    rows = [1 + len(found.completions) for found in timelines]
    figure = Figure(figsize=(13, 1.2 + 1.1 * sum(rows)), layout="constrained")
    axes = figure.subplots(len(timelines), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": rows})[:, 0]
    scale = Normalize(max(0, steps[0] - 9), steps[1])
    spans = [window(found, steps) for found in timelines]
    longest = max(ended - began for began, ended in spans)
    for ax, found, span in zip(axes, timelines, spans):
        draw_run(ax, found, span, lambda version: COLOURS(scale(version)))
    axes[0].set_xlim(0, longest)
    axes[-1].set_xlabel("seconds on the run's clock, from the first of these optimizer steps on")
    mark = [Patch(color=BROADCAST, label="broadcast"), Patch(color=EVALUATION, alpha=0.35, label="evaluation")]
    mark += [Patch(fc="white", ec="0.7", label="waiting")]
    figure.legend(handles=mark, loc="outside upper right", ncols=3, fontsize=8)
    versions = figure.colorbar(ScalarMappable(scale, COLOURS), ax=list(axes), pad=0.01, fraction=0.02)
    versions.set_label("version that began a completion; of a gradient step: that it starts from", fontsize=8)
    figure.savefig(path, dpi=120)
