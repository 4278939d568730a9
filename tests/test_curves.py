"""Claims about the command line of fit.py, its report and its figures."""

import json
import warnings

import numpy as np
import pytest
from conftest import clean, run_of, write_rows
from matplotlib.figure import Figure

import fit
import forecast
from plumbing import curves, figures, foreign_logs
from plumbing.evaluate import draw

# ---- Files and the command line ----


def log_rows(points=14, noise=0.005, tasks=False):
    """Rows of one of our logs: config, then for each evaluation its step row, with the epoch, and its eval row."""
    C, R = clean(noise=noise, points=points, top=1.4, C_mid=0.3)
    rows = []
    for i, (c, r) in enumerate(zip(C.tolist(), R.tolist())):
        x = {"step": 10 * i, "gpu_hours": c, "tokens": int(1e6 * c), "flops": 1e15 * c}
        if i > 0:
            rows.append({"kind": "step", **x, "epoch": i / 20, "pass_rate": 0.99})
        known = {"code": r / 2, "easy": 1.0, "math": 0.9 * r} if tasks else {"math": r}
        rows.append({"kind": "eval", **x, "pass_rate": r, "tasks": known})
    return rows


def write_log(path, rows=None, **options):
    """Write rows, or those of `log_rows`, as JSONL, behind the first row of our logs."""
    rows = log_rows(**options) if rows is None else rows
    write_rows(path, [{"kind": "config", "flags": {"virtual": None}}, *rows])
    return path


def test_our_logs_are_read_with_every_x(tmp_path):
    write_log(tmp_path / "log.jsonl")
    run = foreign_logs.read_run(tmp_path)
    assert run.name == tmp_path.name
    for compute, last in (("gpu_hours", 1.4), ("tokens", 1.4e6), ("step", 140), ("flops", 1.4e15)):
        run = foreign_logs.read_run(tmp_path / "log.jsonl", None if compute == "gpu_hours" else compute)
        assert run.unit == compute and len(run.compute) == 15 and run.compute[-1] == pytest.approx(last)
        assert run.reward.max() < 0.9  # its evaluations only: the rows of steps have a pass rate of 0.99


def test_fig11_a_log_of_several_tasks_is_a_run_and_one_for_each_task_that_can_be_fitted(tmp_path):
    path = write_log(tmp_path / "log.jsonl", tasks=True)
    run = foreign_logs.read_run(path)._replace(start="10%")
    whole, code, math = curves.with_tasks(run, path)  # "easy" starts at 1: nothing is left to gain
    assert [law.run.start for law in (whole, code, math)] == ["10%"] * 3
    assert [code.run.name, math.run.name] == [f"{tmp_path.name} tasks.code", f"{tmp_path.name} tasks.math"]
    assert code.run.reward == pytest.approx(run.reward / 2) and math.run.reward == pytest.approx(0.9 * run.reward)


SIX = "".join(f"{n},{n / 20}\n" for n in range(6))
ACC = ["--compute", "hours", "--reward", "acc"]
NO_COMMAND = [  # the rows of a table with the columns hours and acc, the flags, what the message says
    (SIX, ["--paper"], "got --paper beside others"),
    (SIX, [*ACC, "--until", "4y"], "above 0, or a multiple of the run's such as 4x"),
    (SIX, [*ACC, "--compare"], "got 1 RUNs, expected 2 or more"),
    (SIX, [*ACC, "--until", "0.5x"], "expected a compute beyond the fitted one, 5"),
    (SIX, [*ACC, "--reach", "70"], "got --reach 70, expected a reward from 0 to 1"),
    (SIX, [*ACC, "--fit-from", "90%", "--fit-to", "3", "--fit-from", "4"], "(--fit-from) of 4"),
    (None, [], "No such file"),
    (SIX, [*ACC, "-o", "a.xyz"], "Format 'xyz' is not supported"),
]


@pytest.mark.parametrize(("rows", "flags", "message"), NO_COMMAND)
def test_command_ends_with_code_2_and_one_line_for_bad_input(tmp_path, capsys, rows, flags, message):
    if rows:
        (tmp_path / "a.csv").write_text("hours,acc\n" + rows)
    with pytest.raises(SystemExit) as end:
        curves.main([str(tmp_path / "a.csv"), *flags])
    error = capsys.readouterr().err
    assert end.value.code == 2 and message in error
    assert error.count("\n") == 1 and error.startswith("fit.py: ")


def test_command_prints_json_and_draws(tmp_path, capsys):
    one, two = (write_log(tmp_path / f"{name}.jsonl", noise=x) for name, x in (("one", 0.003), ("two", 0.005)))
    figure = tmp_path / "new" / "both.svg"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curves.main([one, two, "--compare", "--fit-from", "0.15", "--fit-to", "90%", "--json", "-o", figure])
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # NaN and Infinity are no JSON
    first, second = found["runs"]
    assert first["span"] == pytest.approx([0.2, 1.2]) and first["forecast"]["C"] == 2.8
    assert "scales better" in found["sentences"][0] and {first["run"], second["run"]} == {"one", "two"}
    assert b"<svg" in figure.read_bytes()


def test_until_is_a_compute_or_a_multiple_of_the_shortest_run(tmp_path, capsys):
    paths = [write_log(tmp_path / f"{points}.jsonl", points=points) for points in (14, 28)]
    curves.main([*paths, "--until", "4x", "--stop-rule", "--json"])  # the shortest run ends at 1.4
    shown = json.loads(capsys.readouterr().out)
    assert {run["forecast"]["C"] for run in shown["runs"]} == {row["until"] for row in shown["stop_rule"]} == {5.6}


RISES = fit.sigmoid(np.arange(13.0), A=0.7, B=1.5, C_mid=4, R_0=0.2)
MANY = fit.sigmoid(np.arange(400.0), A=0.7, B=1.5, C_mid=4, R_0=0.2)


@pytest.mark.parametrize(
    "rewards, label, A",
    [
        (MANY, "A = 0.7", 0.7),
        (RISES[:6], "A is not determined", None),
        ([0.2, 0.24, 0.17, 0.22, 0.19, 0.23, 0.16, 0.24, 0.18, 0.24, 0.25], "No gain yet", None),
        ([*RISES, 0.5, 0.4, 0.3], "The points fall after a peak", None),
    ],
)
def test_nothing_is_drawn_that_the_text_does_not_claim(rewards, label, A):
    law = forecast.forecast_run(fit.Run(np.arange(float(len(rewards))), np.array(rewards)))
    curve = figures.scaling(law, 2 * law.span[1])
    assert curve.label.startswith(f"run: {label}")
    assert [float(one.law(1.0)) for one in figures.asymptote(law, 999.0)] == ([pytest.approx(A, abs=0.01)] if A else [])
    shown = curve.law(np.geomspace(1, 2 * law.span[1], 400))
    there = np.isfinite(shown)
    # Where the points fall, or do not rise, there is no curve; else it has no jump, at the last point neither.
    assert there.any() == there.all() == label.startswith("A")
    assert np.abs(np.diff(shown[there])).max(initial=0) < 0.02


def test_what_is_drawn_is_what_was_measured_and_forecast_and_its_band_begins_at_the_last_fitted_point():
    run = run_of(noise=0.005)
    whole, part = forecast.forecast_run(run), forecast.forecast_run(run._replace(start="20%", stop="60%"))
    ahead, early = figures.scaling(whole, 300.0), figures.scaling(part, 150.0)
    assert ahead.span == (5, 150, 300) and ahead.law(200.0) == whole.median(200.0)
    assert early.span == (20, 90, 150) and early.law(20.0) == part.predict(20.0)
    assert early.band(90.0) == part.band(90.0) and np.isnan(early.band(89.9)).all()
    ax = Figure().add_subplot(xscale="log")
    figures.draw(ax, "title", "compute C (hours)", "R", [early])
    fitted, hollow, met = (dots.get_offsets()[:, 0] for dots in ax.collections[-3:])
    assert (min(fitted), max(fitted), max(hollow), min(met)) == (20, 90, 15, 95)
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert words[1:] == ["dashed: forecast", "hollow: not fitted", "crosses: met later"]


def test_questions_that_people_ask_are_answered_on_the_screen(tmp_path, capsys):
    n = np.arange(1, 41)
    rise = fit.sigmoid(n, A=0.8, B=1.7, C_mid=10, R_0=0.2) + 0.005 * np.sin(7 * n)
    falls = np.where(n > 30, rise - 0.02 * (n - 30), rise)
    rows = zip(n, rise, falls, 100 * rise, 0 * n)
    names = "step,reward,falls,percent,zeros"
    path = tmp_path / "a.csv"
    path.write_text("\n".join([names, *(",".join(map(str, row)) for row in rows)]))

    def screen(*asked):
        curves.main([str(path), "--x", "step", *asked])
        return capsys.readouterr().out

    asked = {
        ("--reward=reward", "--reach=0.75"): "R = 0.75 is reached at C = ",
        ("--reward=reward", "--reach=0.95"): "R = 0.95 is not reached within 10 times this compute: the probability",
        ("--reward=falls",): "The points fall after a peak: from 0.7",
        ("--reward=zeros",): "No gain yet: nothing was ever right.",
    }
    for flags, words in asked.items():
        assert words in screen(*flags)
    assert "Forecast of R" not in screen("--reward=zeros")  # nothing is known of a take-off
    own, rates = (
        json.loads(screen(*flags, "--stop-rule", "--json"))["stop_rule"][0]
        for flags in (("--reward=percent", "--scale=percent"), ("--reward=reward",))
    )
    assert own["gain"] == pytest.approx(2) and own["P"] == rates["P"]


@pytest.mark.parametrize("rewards", [RISES, [*RISES, 0.5, 0.4, 0.3]], ids=["rise", "fall"])
def test_every_reward_of_a_summary_is_in_the_users_units(rewards):
    run = fit.Run(np.arange(float(len(rewards))), np.array(rewards))
    rates, own = (
        curves.summary(law, curves.first_half(law), reach=law.run.own(0.5))
        for law in (forecast.forecast_run(run._replace(ends=ends)) for ends in ((0, 1), (-1, 1)))
    )

    def numbers(row, names):
        for name, value in row.items():
            if isinstance(value, dict):
                yield from numbers(value, names)
            elif name in names and value is not None:
                yield from np.ravel(value)

    levels = {"A", "R_0", "R", "low", "high", "forecast", "measured", "now"}
    del rates["known"], own["known"]
    for names, unit in (
        (levels, lambda R: 2 * R - 1),
        ({"error", "close"}, lambda R: 2 * R),
        ({"C", "P"}, lambda R: R),
    ):
        expected = [unit(R) for R in numbers(rates, names)]
        assert expected and list(numbers(own, names)) == pytest.approx(expected)


def test_a_page_has_the_columns_of_the_steps_that_led_to_the_end_of_a_run(tmp_path):
    step = {"kind": "step", "pass_rate": 0.5, "entropy": None, "staleness": {"0": 10, "3": 20}, "prompts": [7]}
    lost = {"kind": "eval", "pass_rate": 0.4, "step": 3}  # resumed from step 1, it is at step 2
    rows = [step | {"step": 1}, lost | {"step": 1}, lost, {"kind": "config", "step": 1}, step | {"step": 2}]
    found = figures.columns(rows)
    assert found["pass_rate"] == [(2, 0.5), (1, 0.5)] and found["evaluated"] == [(1, 0.4)]
    assert found["staleness"] == [(2, 2.0), (1, 2.0)]  # (0 x 10 + 3 x 20) / 30
    assert not found.keys() & {"entropy", "seconds"}  # nan in every row; an old log without the column
    write_log(tmp_path / "log.jsonl", rows)
    figures.page(tmp_path / "log.jsonl", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_report_fits_draws_and_says_what_a_run_needs_to_know(tmp_path):
    log, figure = write_log(tmp_path / "log.jsonl", points=24), tmp_path / "scaling.png"
    found, lines = curves.report(log, figure)
    assert json.loads(json.dumps(found))["points"] == 22  # from 10 % of 1.4 on
    for words in ("  fit  ", "90 % band from  to", "  A  ", "  B  ", "Forecast of R at 2.8 device-hours: 0.7"):
        assert words in "\n".join(lines)
    half = (
        "Final R, forecast at half of the compute: {forecast:.3g} ({low:.3g} to {high:.3g}); measured: {measured:.3g}."
    )
    assert half.format(**found["first_half"]) in "\n".join(lines)
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("rewards, fits", [([0.0] * 9, True), ([1.0] * 9, False), ([0.1, 0.2, 0.3], False)])
def test_report_of_what_cannot_be_fitted_is_a_line_and_no_figure(tmp_path, rewards, fits):
    rows = [{"kind": "eval", "step": i, "gpu_hours": 0.1 * i, "pass_rate": r} for i, r in enumerate(rewards)]
    found, lines = curves.report(write_log(tmp_path / "log.jsonl", rows), tmp_path / "scaling.png")
    assert (found is not None) == fits == (tmp_path / "scaling.png").exists()
    assert fits or (len(lines) == 1 and lines[0].startswith("no fit: "))


def test_paper_figures(tmp_path, monkeypatch):
    # one of four ranges, and four pairs of the grid: all take 15 s
    monkeypatch.setattr(figures, "A_7", {(1500, 50000): (1.70, 0.645)})
    monkeypatch.setitem(forecast.forecast_run.__kwdefaults__, "grid", ([0.64, 0.645], [10900.0, 11300.0]))
    drawn = {}
    monkeypatch.setattr(figures, "save", lambda path, title, panels: drawn.update({path.stem: panels}))
    curves.main(["--paper", "-o", tmp_path])
    assert sorted(drawn) == [f"paper_{name}" for name in ("a4", "fig1", "fig3", "fig7", "sec5")]
    (_, _, _, (bs2048,)), (_, _, _, (gain, scout)) = drawn["paper_fig1"]
    # Published: bs2048 fitted to 50k and extrapolated to 100k, Scout to 16k and 45k; at C_mid half of the gain.
    assert bs2048.span == gain.span == (1500, 50000, 100000) and scout.span == (1500, 16000, 45000)
    assert bs2048.law(10909) == pytest.approx((0.39 + 0.645) / 2) and scout.law(4242) == 0.5


def test_no_run_ends_for_a_figure_that_cannot_be_drawn(tmp_path, monkeypatch):
    write_log(tmp_path / "log.jsonl", points=24)
    for name in ("save", "page"):
        monkeypatch.setattr(figures, name, lambda *_, **__: 1 / 0)
    values, lines = draw(tmp_path)
    assert (
        values["points"] == 22
        and [f"WARNING: {x}.png was not drawn: division by zero" for x in ("scaling", "run")] == lines[-2:]
    )
