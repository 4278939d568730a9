"""Claims about the command line of fit.py, its report and its figures."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import clean, run_of, write_rows

import fit
import forecast
from plumbing import curves, figures, foreign_logs
from plumbing.evaluate import draw

# ---- Files and the command line ----


def write_log(path, rows=None, points=14, noise=0.005, tasks=False):
    """One of our logs with these rows, or with evaluations; the path."""
    C, R = clean(noise=noise, points=points, top=1.4, C_mid=0.3)
    rows = rows or [
        {"kind": "eval", "step": 10 * i, "gpu_hours": c, "pass_rate": r}
        | ({"tasks": {"code": r / 2, "easy": 1.0, "math": 0.9 * r}} if tasks else {})
        for i, (c, r) in enumerate(zip(C, R))
    ]
    write_rows(path, [{"kind": "config", "flags": {"virtual": None}}, *rows])
    return path


def test_fig11_a_log_of_several_tasks_is_a_run_and_one_for_each_task_that_can_be_fitted():
    path = write_log("two.jsonl", tasks=True)
    run = foreign_logs.read_run(path)._replace(start="10%")
    whole, code, math = curves.with_tasks(run)  # "easy" starts at 1: nothing is left to gain
    assert [law.run.start for law in (whole, code, math)] == ["10%"] * 3
    assert [code.run.name, math.run.name] == ["two tasks.code", "two tasks.math"]
    assert code.run.reward == pytest.approx(run.reward / 2) and math.run.reward == pytest.approx(0.9 * run.reward)


ACC = "--compute hours --reward acc "
NO_COMMAND = {  # flags -> what is said of six evaluations up to 5 hours
    "--paper": "got --paper beside others",
    ACC + "--until 4y": "got --until 4y, expected a compute, or a share or a multiple of the run's",
    ACC + "--compare": "got 1 RUNs, expected 2 or more",
    ACC + "--until 0.5x": "expected 1.1 times the fitted compute, 5, or more",
    ACC + "--reach 70": "got --reach 70, expected a reward from 0 to 1",
    ACC + "-o a.xyz": "Format 'xyz' is not supported",
}


@pytest.mark.parametrize("flags", NO_COMMAND)
def test_command_ends_with_code_2_and_one_line_for_bad_input(capsys, flags):
    Path("a.csv").write_text("hours,acc\n" + "".join(f"{n},{n / 20}\n" for n in range(6)), encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        curves.main(["a.csv", *flags.split()])
    error = capsys.readouterr().err
    assert end.value.code == 2 and NO_COMMAND[flags] in error
    assert error.count("\n") == 1 and error.startswith("fit.py: ")


def test_command_prints_json_and_draws(capsys):
    one, two = (write_log(f"{name}.jsonl", noise=x) for name, x in (("one", 0.003), ("two", 0.005)))
    flags = "--compare --stop-rule --until 4x --fit-from 0.15 --fit-to 90% --json -o new/both.svg"
    curves.main([one, two, *flags.split()])
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # NaN and Infinity are no JSON
    assert {run["run"] for run in told["runs"]} == {"one", "two"} and "scales better" in told["sentences"][0]
    assert told["runs"][0]["span"] == pytest.approx([0.2, 1.2])
    # Four times the shortest run, which ends at 1.4.
    assert {run["forecast"]["C"] for run in told["runs"]} == {row["until"] for row in told["stop_rule"]} == {5.6}
    assert b"<svg" in Path("new/both.svg").read_bytes()


RISES = fit.sigmoid(np.arange(13.0), A=0.7, B=1.5, C_mid=4, R_0=0.2)


@pytest.mark.parametrize(
    "rewards, label, A",
    [
        (fit.sigmoid(np.arange(400.0), A=0.7, B=1.5, C_mid=4, R_0=0.2), "A = 0.7", 0.7),
        (RISES[:6], "A is not determined", None),
        ([*RISES, 0.5, 0.4, 0.3], "The points fall after a peak", None),
    ],
)
def test_nothing_is_drawn_that_the_text_does_not_claim(rewards, label, A):
    law = forecast.forecast_run(fit.Run(np.arange(float(len(rewards))), np.array(rewards)))
    curve = figures.scaling(law, 2 * law.span[1])
    assert curve.label.startswith(f"run: {label}")
    assert [float(one.law(1.0)) for one in figures.asymptote(law, 999.0)] == ([pytest.approx(A, abs=0.01)] if A else [])
    if label.startswith("The points fall"):  # no forecast, and not the fit
        assert "(line: running mean)" in curve.label and curve.law(15.0) == rewards[15] and not curve.band


def test_what_is_drawn_is_the_fit_up_to_the_last_fitted_point_and_from_there_on_the_forecast_with_its_band():
    law = forecast.forecast_run(run_of(noise=0.005)._replace(start="20%", stop="60%"))
    curve = figures.scaling(law, 300.0)
    assert curve.span == (20, 90, 300)
    assert curve.law(20.0) == law.predict(20.0) and curve.law(200.0) == law.median(200.0)
    assert tuple(curve.band(90.0)) == law.band(90.0)


def test_questions_that_people_ask_are_answered_on_the_screen(capsys):
    rows = "".join(f"{n},{R},0\n" for n, R in enumerate(RISES))
    Path("a.csv").write_text("step,reward,zeros\n" + rows, encoding="utf-8")

    def screen(flags):
        curves.main(["a.csv", "--x", "step", *flags.split()])
        return capsys.readouterr().out

    assert "R = 0.65 is reached at C = " in screen("--reward reward --reach 0.65")
    zeros = screen("--reward zeros")  # nothing is known of a take-off
    assert "No gain yet" in zeros and "Forecast of R" not in zeros


@pytest.mark.parametrize("rewards", [RISES, [*RISES, 0.5, 0.4, 0.3]], ids=["rise", "fall"])
def test_every_reward_of_a_summary_is_in_the_users_units(rewards):
    run = fit.Run(np.arange(float(len(rewards))), np.array(rewards))
    rates, own = (
        curves.summary(law, reach=law.run.own(0.5)) | {"stop": curves.stop_row(law, None)}
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
        ({"error", "close", "gain"}, lambda R: 2 * R),
        ({"C", "P"}, lambda R: R),
    ):
        expected = [unit(R) for R in numbers(rates, names)]
        assert expected and list(numbers(own, names)) == pytest.approx(expected)


def test_report_fits_draws_and_says_what_a_run_needs_to_know():
    figure = Path("scaling.png")
    told, lines = curves.report(write_log("log.jsonl", points=24), figure)
    assert json.loads(json.dumps(told))["points"] == 22  # from 10 % of 1.4 on
    assert "Forecast of R at 2.8 device-hours: 0.7" in "\n".join(lines)
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_paper_figures(monkeypatch):
    # one of four ranges, and four pairs of the grid: all take 15 s
    monkeypatch.setattr(figures, "A_7", {(1500, 50000): (1.70, 0.645)})
    monkeypatch.setitem(forecast.forecast_run.__kwdefaults__, "grid", ([0.64, 0.645], [10900.0, 11300.0]))
    drawn = []
    monkeypatch.setattr(figures, "save", lambda path, *_: drawn.append(path.stem))
    curves.main(["--paper", "-o", "figures"])
    assert sorted(drawn) == [f"paper_{name}" for name in ("a4", "fig1", "fig3", "fig7", "sec5")]


def test_no_run_ends_for_a_figure_that_cannot_be_drawn(monkeypatch):
    write_log("log.jsonl", points=24)
    for name in ("save", "page"):
        monkeypatch.setattr(figures, name, lambda *_, **__: 1 / 0)
    values, lines = draw(Path())
    assert values["points"] == 22 and [line.partition(":")[0] for line in lines[-2:]] == ["WARNING"] * 2
