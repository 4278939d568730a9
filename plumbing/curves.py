"""The command line of fit.py, and the report of train.py at the end of a run: fits as text, JSON and figures."""

import json
from functools import lru_cache
from pathlib import Path

import fit
import forecast
from plumbing import figures
from plumbing.arguments import Parser
from plumbing.foreign_logs import read_run, read_runs
from plumbing.log import best_checkpoint


def with_tasks(run):
    """[Fit] of one of our logs and, if it has several tasks, of each task that can be fitted (Fig. 11)."""
    laws = [forecast.forecast_run(run)]
    if len(run.tasks) > 1:
        unit = run.unit.removeprefix("virtual ")  # the column's name
        for name in run.tasks:
            task = read_run(run.source, unit, name)._replace(start=run.start, stop=run.stop, name=f"{run.name} {name}")
            if law := forecast.fitted(task):
                laws.append(law)
    return laws


@lru_cache(64)
def first_half(law):
    """The Forecast from the first half of the fitted part of a run, without what lies behind it; None if that has too
    few points."""
    run = law.run
    part = run.compute <= law.span[1]
    return forecast.fitted(run._replace(compute=run.compute[part], reward=run.reward[part], stop="50%"))


LEVELS = {"A", "R_0", "R", "low", "high", "forecast", "measured", "now"}  # in rows: pass rates,
RISES = {"error", "gain", "close"}  # and differences of them


def in_units(run, row):
    """A row of pass rates and other numbers, and the rows in it, its pass rates as rewards in the user's units."""
    own = dict(row)
    for name, value in row.items():
        if isinstance(value, dict):
            own[name] = in_units(run, value)
        elif value is not None and name in LEVELS:
            own[name] = run.own(value).tolist()
        elif value is not None and name in RISES:
            own[name] = (run.own(value) - run.own(0)).item()
    return own


def summary(law, until=None, reach=None):
    """A fit as a dict for JSON: its numbers and its forecast at `until` (default: twice the run's compute); what
    `first_half` came to; and how much compute a reward of `reach` needs. Rewards are in the user's units."""
    run = law.run
    half = first_half(law)
    C = until or 2 * run.compute[-1]
    low, high = law.band(C)
    fall = forecast.peak(law)
    rises = forecast.rises(law)
    words = forecast.known(law)
    best = best_checkpoint(run.source.parent) if fall and run.source else None
    if best:
        words = {name: f"{text} The best evaluation was that of {best}." for name, text in words.items()}
    row = {
        "run": run.name,
        "unit": run.unit,
        "A": None if "A" in words else law.A,  # no number where it is not determined
        "B": law.B,
        "C_mid": law.C_mid,
        "R_0": law.R_0,
        "R_0_from": R_0_from(law),
        "span": law.span,
        "points": law.points,
        "ssr": law.ssr,
        "bands": law.bands if rises else {},
        "notes": run.notes,
        "forecast": {"C": C, "R": law.median(C), "low": low, "high": high},
        "readable": forecast.readable(law) if rises else None,
        "close": forecast.CLOSE,
        "peak": fall and fall._asdict(),
        "first_half": half and forecast.hindcast(half),
    }
    if reach is not None:
        row["reach"] = forecast.reach(law, run.rate(reach))
    return in_units(run, row) | {"known": words}


def R_0_from(law):
    """Where R_0 comes from, in words."""
    if law.run.r0 is not None:
        return "given"
    return "fitted" if (law.run.compute == 0).any() else "fitted, without a point at C = 0"


def table(rows):
    """Rows, the header first, as aligned lines; floats with four significant digits, None as -."""
    cells = [[f"{x:.4g}" if isinstance(x, float) else "-" if x is None else str(x) for x in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]


def lines_of(row):
    """A `summary` as lines for the screen."""
    unit = figures.called(row["unit"])
    head = "{run}: {points} points, C = {span[0]:.4g} to {span[1]:.4g} {called}, R_0 = {R_0:.4g} ({R_0_from})"
    lines = [head.format(**row, called=unit)]
    numbers = [(name, row[name], *band) for name, band in row["bands"].items() if name not in row["known"]]
    if numbers:
        lines += table([("", "fit", "90 % band from", "to"), *numbers])
    lines += [f"  {text}" for text in dict.fromkeys(row["known"].values())]
    if row["bands"]:  # else the run falls, or has no gain yet
        ahead = "  Forecast of R at {C:.4g} {unit}: {R:.3g} ({low:.3g} to {high:.3g})."
        lines.append(ahead.format(**row["forecast"], unit=unit))
        if half := row["first_half"]:
            met = "  Final R, forecast at half of the compute: {forecast:.3g} ({low:.3g} to {high:.3g}); "
            met += "measured: {measured:.3g}."
            lines.append(met.format(**half))
        lines.append("  A forecast is a median, with its 90 % band. Runs may deviate from Eq. 1.")
        near = "  The forecast is not within ±{close:.3g} even now."
        if row["readable"] > 1:
            near = "  The forecast stays within ±{close:.3g} up to {readable:.3g} times this compute."
        lines.append(near.format(**row))
    if "reach" in row:
        lines.append(f"  {reach_sentence(row['reach'], unit)}")
    return lines + [f"  note: {note}" for note in row["notes"]]


def reach_sentence(row, unit):
    """How much compute until a reward R, as a sentence; row: see `forecast.reach`."""
    chance = f"the probability of that is {row['P']:.2f}"
    within = f"within {forecast.SOUGHT} times this compute"
    if row["C"] is None:
        return f"R = {row['R']:.4g} is not reached {within}: {chance}."
    high = f"{row['C_high']:.4g}" if row["C_high"] else f"more than {forecast.SOUGHT} times this compute"
    band = f"90 % band {row['C_low']:.4g} to {high}"
    return f"R = {row['R']:.4g} is reached at C = {row['C']:.4g} {unit} ({band}), if {within}: {chance}."


def stop_row(law, until):
    """What `forecast.stop_rule` says of a fit, up to the compute `until` (default: twice the fitted one)."""
    C = law.span[1]
    until = until or 2 * C
    P, verdict = forecast.stop_rule(law, until / C)
    row = {"run": law.run.name, "C": C, "until": until, "gain": forecast.GAIN, "P": P, "verdict": verdict}
    return in_units(law.run, row)


def draw(laws, path, until=None):
    """Draw the fits to `path`: all points with the forecasts up to the compute `until`, for one run A too; beside it,
    for runs that are fitted to their ends, the forecasts made at half of the compute and what followed."""
    most = max(law.run.compute[-1] for law in laws)
    end = until or 2 * most
    curves = [figures.scaling(law, end) for law in laws]
    if len(laws) == 1:
        curves += figures.asymptote(laws[0], end)
    early = []
    if all(law.span[1] == law.run.compute[-1] for law in laws):
        early = [figures.scaling(half, most) for half in map(first_half, laws) if half]
    rate = figures.RATE if all(law.run.ends == (0, 1) for law in laws) else "reward R"
    axis = f"compute C ({figures.called(laws[0].run.unit)})"
    panels = [
        (f"Fit of all points, and the forecast\n{figures.LEGEND}", axis, rate, curves),
        (f"Forecast made at half of the compute, and what followed\n{figures.LEGEND}", axis, rate, early),
    ]
    figures.save(path, ", ".join(law.run.name for law in laws), panels, alike=True)


def analyse(laws, until=None, reach=None, compare=False, stop_rule=False):
    """Sum up the fits, and answer what is asked of them.

    until    compute to forecast and to compare at, and up to which stop_rule asks (default: twice the run's)
    reach    a reward, in the user's units: how much compute until there?
    compare, stop_rule    whether to answer with the functions of forecast.py that are called so
    Returns the fits, which a comparison sorts, a dict for JSON, and lines for the screen.
    """
    for low, high in {law.run.ends for law in laws}:
        if reach is not None and not low <= reach <= high:
            raise fit.BadInput(f"got --reach {reach:g}, expected a reward from {low:g} to {high:g}")
    last = max(law.span[1] for law in laws)
    if until is not None and until < 1.1 * last:
        raise fit.BadInput(f"got --until {until:g}, expected 1.1 times the fitted compute, {last:g}, or more")
    sentences = []
    if compare:
        laws, sentence = forecast.compare(laws, until)
        sentences.append(sentence)
    rows = [summary(law, until, reach) for law in laws]
    told: dict = {"runs": rows, "sentences": sentences}
    lines = [line for row in rows for line in lines_of(row)] + sentences
    if stop_rule:
        told["stop_rule"] = stops = [stop_row(law, until) for law in laws]
        lines.append("stop? P: probability that the evaluations rise by less than the gain from C on")
        lines += table([stops[0], *map(dict.values, stops)])
    return laws, told, lines


def report(log_path, figure_path):
    """Fit the log of a run and each of its tasks, from 10 % of the compute on, and draw the fits to figure_path.

    Returns (`summary` of the run, with those of several tasks under "tasks"; the lines to print). If nothing can be
    fitted, returns (None, [a line that says why]) and draws nothing. A figure that cannot be drawn is a line.
    """
    try:
        laws, told, lines = analyse(with_tasks(read_run(log_path)._replace(start="10%")))
    except fit.BadInput as error:
        return None, [f"no fit: {error}"]
    try:
        draw(laws, figure_path)
    except Exception as error:  # whatever matplotlib raises: no run ends for a picture
        lines.append(f"WARNING: {figure_path.name} was not drawn: {error}")
    return told["runs"][0] | {"tasks": told["runs"][1:]}, lines


def paper_tables():
    """As lines: Table 1, and A.7's published numbers beside our fits of samples of one sigmoid."""
    rows = [("fitted", "B", "A", "check: B", "A", "B, 90 % band", "A, 90 % band")]
    for (start, stop), (B, A) in figures.A_7.items():
        law = forecast.forecast_run(figures.samples(0.002)._replace(start=start, stop=stop), grid=fit.PAPER_GRID)
        bands = ("{:.3f} to {:.3f}".format(*law.bands[name]) for name in "BA")
        rows.append((f"{start:,} to {stop:,}", B, A, law.B, law.A, *bands))
    published = [(name, *numbers) for name, numbers in figures.TABLE_1.items()]
    lines = ["Table 1, published fits", *table([("run", "A", "B", "C_mid"), *published])]
    lines.append("A.7: published; our check by A.5 on samples of the bs2048 fit with R_0 = 0.39, noise 0.002 (ours)")
    return lines + table(rows)


def command(args, defaults):
    """Do what the command line asks for; returns the lines to print. Raises BadInput for a flag that has no effect."""
    if args.paper and vars(args) != defaults | {"paper": True, "o": args.o}:
        raise fit.BadInput("got --paper beside others than -o, expected it alone: it reads no RUN")
    if args.paper:
        folder = Path(args.o or "figures")
        figures.published(folder)
        return [*paper_tables(), f"written to {folder}"]
    laws = fits(args)
    shortest = min(law.run.compute[-1] for law in laws)  # all are read at one compute
    until = args.until and fit.amount(args.until, shortest, "--until")
    laws, told, lines = analyse(laws, until, args.reach, args.compare, args.stop_rule)
    if args.o:
        draw(laws, args.o, until)
        lines.append(f"written to {args.o}")
    return [json.dumps(told, indent=1, allow_nan=False)] if args.json else lines


def fits(args):
    """The fits of all runs in the files of the command line."""
    runs = []
    for path in args.runs:
        for reward in args.reward or [None]:
            taken = (args.scale, args.cumulative, args.completions, args.where, args.decimal)
            for run in read_runs(path, args.compute, reward, *taken):
                r0 = None if args.r0 is None else run.rate(args.r0)
                name = f"{run.name} {reward}" if len(args.reward or ()) > 1 else run.name
                runs.append(run._replace(start=args.fit_from, stop=args.fit_to, r0=r0, name=name))
    least = 1 + args.compare
    if len(runs) < least:
        raise fit.BadInput(f"got {len(runs)} RUNs, expected {least} or more")
    if len(units := {run.unit for run in runs}) > 1:
        raise fit.BadInput(f"got runs by {', '.join(sorted(units))}, expected one unit of compute; name it: --x COL")
    if len(runs) == 1 and args.reward is None:
        return with_tasks(runs[0])
    return [forecast.forecast_run(run) for run in runs]


def flags():
    """The parser of the command line."""
    parser = Parser(prog="fit.py", description=fit.__doc__.split("\n")[0])
    add = parser.add_argument
    add(
        "runs",
        nargs="*",
        metavar="RUN",
        help="log.jsonl or its folder; JSON Lines, JSON, CSV or TSV of another trainer",
    )
    more = "column, or the last part of its name; row counts the rows (our own logs: gpu_hours)"
    add("--x", "--compute", dest="compute", metavar="NAME", help=more)
    more = "likewise (our own logs: pass_rate, with one RUN its tasks too); may be given several times"
    add("--reward", action="append", help=more, metavar="NAME")
    add(
        "--where", action="append", default=[], metavar="NAME=VALUE",
        help="keep the rows with this value of a column; give it again for another value",
    )  # fmt: skip
    add("--decimal", choices=[".", ","], default=".", help="the decimal mark of the numbers (default: .)")
    add("--scale", help="rewards that are no pass rates: percent, pm1 (-1 to 1) or LO:HI (--scale=-2:4)")
    add("--cumulative", choices=("rows", "parts"), help="add up a compute of which each row, or part, holds its own")
    add("--completions", metavar="N", help="each reward is the mean of N, a number or column (default: completions)")
    add("--r0", type=float, metavar="R", help="reward at C = 0 (default: fitted)")
    add("--fit-from", default="10%", help="least compute that is fitted, or a share of --fit-to (default: 10%%)")
    add("--fit-to", default="100%", help="greatest compute that is fitted, or a share of it, as 50%% (default: all)")
    add("--until", metavar="C", help="forecast and compare at this compute, or at 4x the shortest run's")
    add("--compare", action="store_true", help="which run scales better, at a common A if they are within 0.02 (A.5)")
    add("--stop-rule", action="store_true", help="is it worth going on to twice the compute, or to --until?")
    add("--reach", type=float, metavar="R", help="how much compute until this reward?")
    add("--json", action="store_true", help="print JSON")
    add("-o", metavar="FILE", help="figure to write (png, svg, pdf); a folder (figures) for --paper")
    add("--paper", action="store_true", help="draw the paper's figures from its published fits")
    return parser


def main(argv=None):
    """The command line; exits with code 2 and one line for what cannot be read, fitted or written."""
    parser = flags()
    try:
        args = parser.parse_args(argv)
        print("\n".join(command(args, vars(parser.parse_args([])))))
    except (ValueError, OSError) as error:  # BadInput too; a file that cannot be opened or written
        parser.exit(2, f"fit.py: {error}\n")


if __name__ == "__main__":
    main()
