"""Everything that fit.py draws. A figure is a list of panels; a panel is (title, x label, y label, [Curve, ...]).

`page` draws the columns of a run's log against its optimizer steps.
"""

import os
from collections import defaultdict, namedtuple
from functools import partial
from itertools import compress, cycle
from pathlib import Path

import numpy as np

import fit
import forecast
from plumbing.foreign_logs import led_on
from plumbing.log import read_rows

os.environ["MPLBACKEND"] = "agg"  # figures are files; a notebook's backend may not even be there

PAPER_R_0 = 0.39  # ours: at this R_0 the published bs2048 fit gives back the power-law asymptotes of A.4
TABLE_1 = {  # A, B, C_mid (GPU-hours)
    "ScaleRL": (0.610, 1.92, 2542), "ScaleRL-32k": (0.645, 1.89, 11272), "ScaleRL-8gen": (0.585, 2.44, 2542),
    "ScaleRL-24gen": (0.590, 2.22, 3054), "ScaleRL-32gen": (0.595, 2.07, 2936), "ScaleRL-Scout": (0.710, 1.65, 4242),
    "ScaleRL-bs512": (0.605, 1.77, 2818), "ScaleRL-bs2048": (0.645, 1.70, 10909),
    "math+code, math": (0.595, 2.05, 2896), "math+code, code": (0.615, 1.09, 1675),
}  # fmt: skip
# A.7, published: first and last fitted GPU-hours -> (B, A)
A_7 = {(1500, 50000): (1.70, 0.645), (0, 100000): (1.56, 0.655), (0, 50000): (1.7, 0.645), (5000, 50000): (1.67, 0.645)}
RATE = "pass rate R"
HOURS = "compute C (GPU-hours)"
LEGEND = "dashed: median forecast, and the 90 % band of the curve\nhollow: not fitted; crosses: measured later"
# Okabe and Ito's colours, which colour-blind readers can tell apart; grey replaces their yellow, too faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = "os^DvPX"  # seven, so that with eight colours no two of 56 curves look alike


class Curve(namedtuple("Curve", "label law span points band", defaults=(((), ()), None))):
    """A curve law(x), solid from span[0] to span[1], dashed on to span[2]; points (x, y); band(x) -> (low, high)."""


def called(unit):
    """What a column of compute is called on the screen and in figures: not every device is a GPU."""
    return unit.replace("gpu_hours", "device-hours")


def draw(ax, title, xlabel, ylabel, curves):
    """Draw a panel, its legend below it. Of the points that the fit left out those before it are hollow, and those that
    came later are crosses."""
    from matplotlib.ticker import LogLocator  # here, as most calls of fit.py draw nothing

    styles = zip(cycle(COLOURS), cycle(MARKERS))
    for (label, law, (start, fitted_to, end), points, band), (colour, marker) in zip(curves, styles):
        for style, *span in (("-", start, fitted_to), ("--", fitted_to, end)):
            x = np.geomspace(*span, 200)
            ax.plot(x, law(x), style, color=colour, lw=1.3)
        if band:
            ax.fill_between(x, *band(x), color=colour, alpha=0.2, lw=0)
        x, y = np.array(points)
        looks = {"color": colour, "ms": 4}
        before, later = x < start, x > fitted_to
        fitted = ~before & ~later
        ax.plot(x[fitted], y[fitted], marker, **looks)
        ax.plot(x[before], y[before], marker, **looks, mfc="none")
        ax.plot(x[later], y[later], "x", **looks)
        ax.plot([], [], "-", marker=marker if len(x) else "", **looks, label=label)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.xaxis.set(major_locator=LogLocator(subs=(1, 3)), major_formatter="{x:g}", minor_formatter="")
    ax.set_title(title, fontsize=10)
    ax.grid(alpha=0.25)
    ax.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=1 + (len(curves) > 4))


def save(path, title, panels, alike=False):
    """Write a figure: the panels that have curves, on logarithmic x axes, at most three in a row.

    alike: they get one y axis, so that they can be compared by eye"""
    from matplotlib.figure import Figure

    panels = [panel for panel in panels if panel[-1]]
    most = max(len(panel[-1]) for panel in panels)
    rows = -(-len(panels) // 3)
    columns = -(-len(panels) // rows)
    height = 4.2 + 0.18 * (most if most < 5 else -(-most // 2))  # the legend's lines
    figure = Figure(figsize=(5.6 * columns, height * rows), layout="constrained")
    figure.suptitle(title, wrap=True)
    for place, panel in enumerate(panels, 1):
        shared = figure.axes[0] if alike and figure.axes else None
        draw(figure.add_subplot(rows, columns, place, xscale="log", sharey=shared), *panel)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def scaling(law, end):
    """A Forecast as a Curve up to `end`: the fit, led to the median of the forecast at the last fitted point as the
    walk's mean is, straight in log C; from there on the median and its 90 % band. If the fit is a jump it is the median
    throughout. A run that falls or has no gain yet is drawn as its running mean."""
    own = law.run.own
    C, R, _ = fit.averaged(*np.stack(law.run[:2])[:, law.run.compute > 0])
    known = forecast.known(law)
    first, last = law.span
    if not forecast.rises(law):
        label = f"{law.run.name}: {known['A'].partition(':')[0]} (line: running mean)"
        line = lambda at: np.interp(np.log(at), np.log(C), own(running_mean(R)))  # noqa: E731
        return Curve(label, line, (first, last, last), (C, own(R)))
    told = known.get("A", f"A = {own(law.A):.3f}")
    label = f"{law.run.name}: {told.rstrip('.')}"
    if not known:
        label += f", B = {law.B:.2f}"
    off = law.median(last) - law.predict(last)

    def value(C):
        line = law.median(C)
        if "B" not in known:
            line = np.where(C < last, law.predict(C) + off * np.log(C / first) / np.log(last / first), line)
        return own(line)

    return Curve(label, value, (first, last, end), (C, own(R)), lambda C: own(law.band(C)))


def asymptote(law, end):
    """[A of a Forecast as a Curve from the last point to `end`], or [] if the points do not tell A."""
    if "A" in forecast.known(law):
        return []
    A, low, high = law.run.own([law.A, *law.bands["A"]])
    return [Curve(f"A, 90 % band {low:.3f} to {high:.3f}", lambda C: A + 0 * C, (law.span[1], end, end))]


def power_law(law, end):
    """A.4: the power law, fitted on the same range as Eq. 1, as a Curve up to `end`."""
    power = fit.fit_power_law(*law.run[:4])
    own = law.run.own
    label = f"{law.run.name}, power law: A = {own(power.A):.3f}, B = {power.B:.2f}"
    return Curve(label, lambda C: own(power.predict(C)), (*law.span, end))


# ---- The page of a run ----

PAGE = {  # title -> columns of the log's rows
    "pass rate": ["pass_rate", "evaluated"],
    "entropy (nats)": ["entropy"],
    "mean |log rho| (nats)": ["log_rho"],
    "effective sample size (share)": ["effective_sample_size"],
    "gradient norm": ["gradient_norm"],
    "length (tokens)": ["length_max", "length_mean"],
    "share of rollouts (interrupted: made to answer)": ["truncated", "interrupted"],
    "mean staleness (optimizer steps)": ["staleness"],
    "share of the time without work": ["idle_generators", "idle_trainers"],
    "seconds": ["seconds", "seconds_generate", "seconds_train", "seconds_publish"],
}
PARTS = 25  # a running mean is over a part of the run


def running_mean(y):
    """y (n,) averaged over a PARTS-th of the run about each point."""
    window = np.ones(1 + len(y) // PARTS)
    return np.convolve(y, window, "same") / np.convolve(np.ones(len(y)), window, "same")


def columns(rows):
    """{column of `PAGE`: [(step, value)]} of the rows of a log that led to its end."""
    rows = [row for row in rows if row.get("kind") in ("step", "eval")]
    led = led_on(np.array([row["step"] + (row["kind"] == "eval") / 2 for row in rows]))  # an evaluation ends its step
    series = defaultdict(list)
    for row in compress(rows, led):
        values = row
        if row["kind"] == "eval":
            values = {"evaluated": row["pass_rate"]}
        elif stale := row.get("staleness"):
            values = row | {"staleness": np.average(list(map(int, stale)), weights=list(stale.values()))}
        for name, value in values.items():
            if isinstance(value, (int, float)):  # None: it was nan, or the step trained on no token
                series[name].append((row["step"], value))
    return series


def page(log, path):
    """Draw what a run's log.jsonl says of each step: thin as logged, thick as a running mean.

    What the log lacks is left out. Raises BadInput for a log without any step."""
    from matplotlib.figure import Figure

    series = columns(read_rows(log)[0])
    if "pass_rate" not in series:
        raise fit.BadInput(f"{log}: found no optimizer step of our logs (kind step)")
    panels = {title: there for title, names in PAGE.items() if (there := [name for name in names if name in series])}
    figure = Figure(figsize=(21, 7.2))
    # Room for the titles and the numbers at the axes; to measure these would double the time of the drawing.
    figure.subplots_adjust(0.03, 0.05, 0.99)
    figure.suptitle(f"{log}, by optimizer step (thick: running mean)")
    for place, (panel, names) in enumerate(panels.items(), 1):
        ax = figure.add_subplot(2, -(-len(panels) // 2), place, title=panel)
        for name, colour in zip(names, COLOURS):
            x, y = np.transpose(series[name])
            ax.plot(x, y, ".-", color=colour, lw=0.5, ms=2, alpha=0.4)
            ax.plot(x, running_mean(y), color=colour, label=name)
        ax.legend()
        ax.set_ylim(0)
        ax.grid(alpha=0.25)
    figure.savefig(path, dpi=80)


# ---- The paper's figures, from what it publishes ----


def table_1(title, names, *spans, gain=False):
    """A panel of published fits.

    names  of TABLE_1, joined by "/"
    spans  (see Curve) in GPU-hours, one for each name; the last serves all further names
    gain   draw (R - R_0) / (A - R_0), which needs no R_0
    """
    curves = []
    for i, name in enumerate(names.split("/")):
        A, B, C_mid = TABLE_1[name]
        law = partial(fit.sigmoid, A=1 if gain else A, B=B, C_mid=C_mid, R_0=0 if gain else PAPER_R_0)
        curves.append(Curve(f"{name}: A = {A:.3f}, B = {B:.2f}", law, spans[min(i, len(spans) - 1)]))
    return title, HOURS, "gain (R - R_0) / (A - R_0)" if gain else RATE, curves


def samples(noise):
    """A fit.Run of samples of the published bs2048 fit, at step 0 and every 100 of 7,400 steps.

    noise  standard deviation of one pass rate; the noise, R_0 and the spacing are our choices
    """
    C = np.linspace(0, 100000, 75)
    R = fit.sigmoid(C, *TABLE_1["ScaleRL-bs2048"], PAPER_R_0)
    R += noise * np.random.default_rng(0).normal(size=75) * (C > 0)
    return fit.Run(C, R, name="samples", unit="GPU-hours")


def published(folder):
    """Draw into `folder` every figure that the published numbers allow."""

    def write(figure, title, *panels):
        save(folder / f"paper_{figure}.png", f"{title}: published fit, not data", panels)

    wide = (100, 1e5, 1e5)
    big = (1500, 5e4, 1e5)
    scout = (1500, 16000, 45000)
    write("fig1", "Fig. 1, dashed: extrapolated (source: Table 1; R_0 = 0.39 is ours)",
          table_1("8B, batch 2048", "ScaleRL-bs2048", big),
          table_1("both, as gain", "ScaleRL-bs2048/ScaleRL-Scout", big, scout, gain=True))  # fmt: skip
    base = dict(zip(("A", "B", "C_mid", "R_0"), (*TABLE_1["ScaleRL"], PAPER_R_0)))
    panels = []
    for name, low, high in (("A", 0.55, 0.7), ("B", 1, 4), ("C_mid", 1000, 8000), ("R_0", 0.3, 0.45)):
        laws = {f"{name} = {x}": partial(fit.sigmoid, **base | {name: x}) for x in (low, base[name], high)}
        panels.append((f"the role of {name}", HOURS, RATE, [Curve(*law, wide) for law in laws.items()]))
    panels.append(table_1("A.8: less efficient, ahead in the end", "ScaleRL-8gen/ScaleRL-bs2048", wide))
    write("fig3", "Fig. 3 and A.8 (source: Table 1; R_0 = 0.39 and the varied values are ours)", *panels)
    write("sec5", "Sec. 5 (source: Table 1; where a pass rate is drawn, R_0 = 0.39 is ours)",
          table_1("generation length (14k, 32k)", "ScaleRL/ScaleRL-32k", wide),
          table_1("batch size (768, 512, 2048)", "ScaleRL/ScaleRL-bs512/ScaleRL-bs2048", wide),
          table_1("generations per prompt (16, 8, 24, 32)", "ScaleRL/ScaleRL-8gen/ScaleRL-24gen/ScaleRL-32gen", wide),
          table_1("model size (8B, Scout)", "ScaleRL/ScaleRL-Scout", wide, gain=True),
          table_1("math and code", "math+code, math/math+code, code", wide, gain=True))  # fmt: skip
    slopes = ("CISPO", 2.01), ("DAPO", 1.77)
    curves = [
        Curve(f"{name}: slope B = {B}", lambda C, B=B: B * np.log10(C), (1500, 8000, 16000)) for name, B in slopes
    ]
    write("fig7", "Fig. 7 (source: text)", ("leave one out", HOURS, "log10 F(R), F in GPU-hours^B", curves))
    panels = []
    for start, stop, A in ((1500, 50000, "A = 1.0"), (5000, 50000, "A = 0.74"), (30000, 60000, "right")):
        law = forecast.forecast_run(samples(0.0005)._replace(start=start, stop=stop))
        title = f"fitted on {start:,} to {stop:,} (paper's power law: {A})\n{LEGEND}"
        panels.append((title, HOURS, RATE, [scaling(law, 1e5), power_law(law, 1e5)]))
    write("a4", "A.4 (samples of the bs2048 fit of Table 1; R_0 = 0.39 and noise 0.0005 are ours)", *panels)
