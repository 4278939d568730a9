"""Claims about study/run.py: what is run, what is kept of a log, and the rule of its verdicts."""

import doctest
import json
import math
import os
from pathlib import Path

import pytest
from test_train import elsewhere  # noqa: F401

from plumbing import run_folder, settings
from study import comparisons as study
from study import drawing, rule
from study import run as runner


def test_docstring_examples_run():
    assert doctest.testmod(rule).failed == 0 < doctest.testmod(rule).attempted


# --- What is run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", study.CONFIGURATIONS)
def test_every_configuration_has_the_steps_prompts_and_learning_rate_of_the_default_run(name):
    args, default = settings.read_settings(study.flags(name)), settings.read_settings([])
    for flag in ("steps", "prompts", "lr", "warmup", "generations", "eval_every", "eval_prompts", "model"):
        assert getattr(args, flag) == getattr(default, flag), flag


def test_leaving_one_out_changes_one_setting_of_scalerl():
    scalerl = vars(settings.read_settings(study.flags("scalerl")))
    changed = {}
    for name in study.CONFIGURATIONS:
        if name.startswith("loo-") and name != "loo-no-fp32-head":
            own = vars(settings.read_settings(study.flags(name)))
            changed[name] = {flag for flag in own if own[flag] != scalerl.get(flag)} - {"out", "clips", "asked"}
    assert changed == {
        "loo-dapo": {"loss"},
        "loo-sample-average": {"aggregation"},
        "loo-prompt-normalisation": {"normalisation"},
        "loo-no-filter": {"zero_variance_filter"},
        "loo-uniform-resampling": {"no_positive_resampling"},
        "loo-length-penalty": {"length_control"},
        "loo-ppo-8": {"off_policy"},
    }


def test_the_head_is_compared_between_runs_with_bf16_bodies():
    with_it, without = (settings.read_settings(study.flags(name)) for name in ("scalerl-bf16", "loo-no-fp32-head"))
    assert (with_it.dtype, with_it.fp32_head, without.dtype, without.fp32_head) == ("bfloat16", True, "bfloat16", False)


def test_findings_are_about_configurations_that_are_run_and_each_pair_and_quantity_is_judged_once():
    asked = [(f.configuration, f.reference, f.quantity, f.x) for f in study.FINDINGS]
    assert len(set(asked)) == len(asked)
    control = {"pipeline-1"}
    assert set(study.CONFIGURATIONS) == {name for pair in asked for name in pair[:2]} | control


def test_the_first_seed_of_all_comes_before_the_second_of_any():
    assert runner.wanted("scalerl") == [("scalerl", seed) for seed in range(5)]
    assert runner.wanted("*gspo", seeds=[1]) == [("gspo", 1)]
    first = runner.wanted("[cg]*")
    assert first == [("cispo", 0), ("gspo", 0), ("cispo", 1), ("gspo", 1)]


def test_device_hours_count_of_the_runs_that_had_the_machine_to_themselves():
    quiet = [("baseline", 0), ("pipeline-8", 0), ("baseline", 1), ("pipeline-8", 1)]
    assert runner.wanted(quiet=True) == quiet and not set(runner.wanted()) & set(quiet)
    logs = {(name, seed): curve(0.6) for name in ("baseline", "pipeline-8", "cispo") for seed in (0, 1, 4)}
    hours, steps = ({name: len(runs) for name, runs in rule.grouped(logs, x).items()} for x in ("gpu_hours", "step"))
    assert hours == {"baseline": 2, "pipeline-8": 2} and steps == {"baseline": 3, "pipeline-8": 3, "cispo": 3}


# --- What is kept of a log -------------------------------------------------------------------------------------------


def step(n, clipped, staleness, tokens):
    return {
        "kind": "step",
        "step": n,
        "gpu_hours": n / 10,
        "tokens": 100 * n,
        "tokens_trained": 90 * n,
        "flops": 1.0,
        "prompts": [1, 2],
        "retired": n,
        "epoch": n / 3,
        "reward": 0.0,
        "pass_rate": 0.123456789,
        "kept": 2,
        "entropy": None,
        "log_rho": 0.0,
        "clipped": clipped,
        "gradient_norm": 1.0,
        "truncated": 0.0,
        "interrupted": 0.0,
        "seconds_generate": 1.0,
        "seconds_train": 1.0,
        "seconds": 1.0,
        "rho_max": 1.0 + n,
        "staleness": {staleness: tokens},
    }


def evaluation(n):
    return {"kind": "eval", "step": n, "gpu_hours": n / 10, "tokens": 100 * n, "pass_rate": n / 10, "tasks": {"a": 0.5}}


def test_a_kept_log_has_all_evaluations_and_between_two_of_them_one_row_of_means():
    rows = [
        {"kind": "config", "step": 0},
        evaluation(0),
        step(1, 0.0, "0", 5),
        step(2, 0.5, "1", 7),
        evaluation(2),
        step(3, 0.25, "1", 9),
        {"kind": "end", "step": 3, "reason": "killed"},
        # resumed from the checkpoint of step 2
        {"kind": "config", "step": 2},
        step(3, 0.75, "1", 9),
        step(4, 0.25, "1", 1),
        evaluation(4),
        {"kind": "fit", "step": 4},
        {"kind": "end", "step": 4, "reason": "finished"},
    ]
    kept = runner.reduced(rows)
    assert [row["kind"] for row in kept] == ["config", "eval", "step", "eval", "end", "step", "eval", "end"]
    assert [row for row in kept if row["kind"] == "eval"] == [evaluation(0), evaluation(2), evaluation(4)]
    first, second = (row for row in kept if row["kind"] == "step")
    # (0 + 0.5) / 2, and the second try of step 3: (0.75 + 0.25) / 2
    assert (first["clipped"], second["clipped"]) == (0.25, 0.5)
    assert first["staleness"] == {"0": 5, "1": 7} and second["staleness"] == {"1": 10}
    assert (first["step"], first["retired"], first["rho_max"], first["pass_rate"]) == (2, 2, 3.0, 0.12346)
    assert "entropy" not in first and "prompts" not in first


def test_the_log_of_a_real_run_is_kept_in_15_kb_and_fits_as_it_did():
    rows = study.rows_of(runner.ROOT / "results" / "main_seed0.jsonl")
    kept = runner.reduced(rows)
    assert sum(len(json.dumps(row)) + 1 for row in kept) <= 15_000
    # five digits of every number: a thousandth of A's band
    assert rule.measure(kept).law.A == pytest.approx(rule.measure(rows).law.A, abs=1e-4)


def test_a_run_that_diverged_is_kept_and_the_queue_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results")

    def train(argv):  # the log of each run: an evaluation, a step without a finite gradient, its end
        out = tmp_path / "runs" / Path(argv[-1]).name
        out.mkdir(parents=True)
        end = {"kind": "end", "step": 1, "reason": "the weights of step 1 are not finite", "seconds": 60}
        bad = step(1, 0.0, "0", 5) | {"rho_max": None}
        rows = [{"kind": "config", "step": 0}, evaluation(0), bad, evaluation(1), end]
        (out / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr(runner, "train", train)
    runner.run_missing([("gspo", 1), ("cispo", 1)])
    for name in ("gspo", "cispo"):
        assert study.rows_of(runner.place(name, 1))[-1]["reason"] == "the weights of step 1 are not finite"


def test_an_interrupted_run_goes_on_and_a_finished_one_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results")
    calls, ends = [], ["interrupted", "finished"]

    def train(argv):
        calls.append(argv)
        out = tmp_path / "runs" / "gspo-1"
        (out / "checkpoint-8").mkdir(parents=True, exist_ok=True)
        with (out / "log.jsonl").open("a") as file:
            rows = [{"kind": "config", "step": 0}, {"kind": "end", "step": 1, "reason": ends.pop(0), "seconds": 60}]
            file.write("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr(runner, "train", train)
    with pytest.raises(SystemExit, match="interrupted"):
        runner.run_missing([("gspo", 1)])
    assert not runner.place("gspo", 1).exists()
    runner.run_missing([("gspo", 1)])
    assert study.rows_of(runner.place("gspo", 1))[-1]["reason"] == "finished"
    runner.run_missing([("gspo", 1)])
    out = os.path.relpath(tmp_path / "runs" / "gspo-1", runner.ROOT)
    assert calls == [[*study.flags("gspo"), "--seed", "1", "--out", out], ["--resume", "--out", out]]


@pytest.mark.parametrize("path", sorted(runner.RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_log_of_the_study_is_small_and_ran_to_its_end_with_the_flags_of_its_configuration(path):
    rows, (name, seed) = study.rows_of(path), path.stem.rsplit("-", 1)
    assert path.stat().st_size <= 15_000
    assert rows[-1]["reason"] in ("finished", "curriculum exhausted") or "finite" in rows[-1]["reason"]
    asked, own = vars(settings.read_settings([*study.flags(name), "--seed", seed])), rows[0]["flags"]
    decided = (
        "loss",
        "aggregation",
        "normalisation",
        "zero_variance_filter",
        "no_positive_resampling",
        "fp32_head",
        "off_policy",
        "k",
        "prompts",
        "steps",
        "lr",
        "seed",
        "length_control",
        "dtype",
    )
    assert {flag: own[flag] for flag in decided} == {flag: asked[flag] for flag in decided}


def test_flags_with_an_old_name_in_a_kept_log_are_read_under_todays():
    assert not run_folder.RENAMED.keys() & vars(settings.read_settings([])).keys()  # what is old is no flag today
    assert set(run_folder.RENAMED.values()) <= vars(settings.read_settings([])).keys()


# --- Verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "low, high, direction, quantity, expected",
    [
        (0.001, 0.3, +1, "A", "agrees"),
        (0.001, 0.3, -1, "A", "disagrees"),
        (-0.3, -0.001, -1, "A", "agrees"),
        (0.001, 0.01, +1, "A", "agrees"),  # a difference, though a small one
        (-0.019, 0.019, +1, "A", "disagrees"),
        (-0.019, 0.021, +1, "A", "undecided"),
        (-0.019, 0.019, -1, "E", "undecided"),
        (-0.019, 0.019, 0, "A", "agrees"),
        (-0.019, 0.021, 0, "A", "undecided"),
        (0.021, 0.1, 0, "A", "disagrees"),
        (-0.09, 0.09, 0, "E", "agrees"),  # a tenth of the compute is log(1.1) = 0.0953
        (0.09, 0.1, 0, "E", "undecided"),
        (0.1, 0.3, 0, "E", "disagrees"),
        (float("nan"), float("nan"), 0, "A", "undecided"),
        (float("-inf"), 0.0, -1, "E", "undecided"),
    ],
)
def test_a_verdict_follows_from_the_interval_the_direction_and_the_margin(low, high, direction, quantity, expected):
    assert rule.verdict(low, high, direction=direction, quantity=quantity)[0] == expected


def test_the_interval_is_of_the_difference_of_means_with_the_spread_of_all_seeds():
    # D = 0.6 - 0.5; s = 0.01 with 4 degrees of freedom, of which t = 2.132; 2.132 * 0.01 * sqrt(1/2 + 1/2) = 0.0213
    found = rule.interval([0.59, 0.61], [0.5, 0.5], 0.01, 4)
    assert found == pytest.approx((0.1, 0.0787, 0.1213), abs=1e-4)


@pytest.mark.parametrize(
    "rates, peak",
    [
        ([0.2, 0.5, 0.6, 0.6, 0.6, 0.4, 0.3, 0.3], 4),
        ([0.2, 0.5, 0.6, 0.6, 0.6, 0.63, 0.3, 0.6], 5),  # it recovers; means of three lose 0.1
        ([0.2, 0.5, 0.6, 0.6, 0.6, 0.585, 0.585, 0.585], None),  # they lose 0.015
        ([0.2, 0.4, 0.3, 0.5, 0.6, 0.6, 0.6, 0.6], None),  # one low evaluation on the way up
        ([0.6, 0.3, 0.1], None),  # three evaluations are one mean
    ],
)
def test_a_run_collapses_if_means_of_three_evaluations_lose_more_than_noise_does(rates, peak):
    rows = [{"step": n, "pass_rate": rate, "stderr": 0.005} for n, rate in enumerate(rates)]
    assert rule.collapse(rows) == peak
    noisy = [row | {"stderr": 0.2} for row in rows]  # three standard errors: 3 * 0.2 * sqrt(2 / 3) = 0.49
    assert rule.collapse(noisy) is None


def test_the_ends_stand_beside_the_asymptotes_and_do_not_decide():
    # last four of 17 evaluations, C = 1,300 to 1,600: A = 0.7 ends at 0.678, 0.6 at 0.5823; seeds do not differ in A
    logs = {(name, seed): curve(A, 0.01) for name, A in (("cispo", 0.7), ("pipeline-8", 0.6)) for seed in (0, 1)}
    ends = [row | {"pass_rate": row["pass_rate"] + 0.02} if row["step"] > 12 else row for row in curve(0.7, 0.01)]
    [(finding, row)] = rule.judged(logs | {("cispo", 1): ends}).items()
    s, t = 0.02 / 2**0.5 / 2**0.5, 2.920  # one setting of two differs by 0.02: pooled over both, 2 degrees of freedom
    D = 0.678 - 0.5823 + 0.01
    assert row.ends == pytest.approx((D, D - t * s, D + t * s), abs=2e-3)
    assert "; ends +0.106 (" in rule.line(finding, row) and rule.judge(finding, [], [], (math.nan, 0)).ends == ()


def test_a_run_that_collapses_has_no_asymptote_but_reached_the_level_before_and_its_collapse_is_counted():
    rows = curve(0.7, points=25)
    collapsed = [row | {"pass_rate": 0.3} if row["step"] >= 20 else row for row in rows]
    logs = {("pipeline-8", 0): rows, ("pipeline-8", 1): collapsed, ("baseline", 0): curve(0.7, points=25)}
    logs |= {("baseline", 1): curve(0.71, points=25)}
    by = {(f.quantity, f.x): row for f, row in rule.judged(logs).items()}
    assert {row.collapses for row in by.values()} == {"1 of 2 (after step 19) against 0 of 2"}
    asymptote, efficiency = by["A", "step"], by["E", "step"]
    assert asymptote.D == pytest.approx(-0.005, abs=1e-3)  # 0.7, without the run that collapsed, against 0.7 and 0.71
    assert efficiency.D == pytest.approx(0, abs=0.02)  # all take 3 steps to the half-gain point


def test_a_run_that_does_not_level_off_has_no_asymptote_but_reached_the_level():
    rising = [row | {"pass_rate": 0.2 + 0.02 * row["step"]} for row in curve(0.7)]  # as fast at the end as at first
    runs = [rule.measure(rows) for rows in (curve(0.7), rising)]
    assert [len(rule.having(runs, quantity)) for quantity in ("A", "E")] == [1, 2]
    early = rule.measure(study.rows_of(runner.ROOT / "results" / "exact-8" / "gspo-0.jsonl"))
    assert early.law.A < 0.95 and not rule.having([early], "A")  # half of its gain lies near its last evaluation
    assert rule.spread({"one": runs}, "A")[1] == 0 and rule.spread({"one": runs}, "E")[1] == 1


def test_the_spread_of_seeds_is_that_of_configurations_in_which_no_run_collapses():
    collapsed = [row | {"pass_rate": 0.3} if row["step"] >= 20 else row for row in curve(0.9, points=25)]
    groups = {
        "steady": [rule.measure(curve(A, points=25)) for A in (0.70, 0.72)],
        "collapsing": [rule.measure(curve(0.6, points=25)), rule.measure(collapsed)],
    }
    deviation, freedom = rule.spread(groups, "A")
    assert (deviation, freedom) == (pytest.approx(0.02 / 2**0.5, abs=1e-3), 1)


def test_efficiency_is_compute_to_a_level_that_both_reach_and_b_stands_beside_it_where_a5_compares_it():
    # Eq. 1 with C_mid = 300 tokens; twice the speed in device-hours is half the device-hours, at the same A and B
    logs = {("baseline", seed): curve(0.6) for seed in (0, 1)}
    logs |= {("pipeline-8", seed): curve(0.6, speed=2) for seed in (0, 1)}
    [hours] = [row for f, row in rule.judged(logs).items() if f.x == "gpu_hours"]
    assert math.exp(-hours.D) == pytest.approx(0.5, abs=0.01)
    assert hours.B == pytest.approx(0, abs=0.01)
    higher = logs | {("pipeline-8", seed): curve(0.65, speed=2) for seed in (0, 1)}
    [hours] = [row for f, row in rule.judged(higher).items() if f.x == "gpu_hours"]
    assert math.isnan(hours.B)  # A differ by 0.05
    # L = (0.2 + 0.6) / 2 = 0.4: for A = 0.65, (300 / C)^2 = 0.45 / 0.2 - 1, C = 268; half of the device-hours: 0.447
    assert math.exp(-hours.D) == pytest.approx(0.447, abs=0.01)


def test_one_seed_per_setting_gives_a_difference_and_no_interval():
    row = rule.Judged(0.01, math.nan, math.nan, "undecided", "no interval", "", math.nan)
    assert rule.shown("A", row) == "A +0.010 (no interval)"
    assert rule.shown("E", row) == "compute x0.99 (no interval)"
    assert rule.shown("A", row._replace(D=math.nan)) == "-"


def test_a_clip_that_is_idle_in_both_settings_leaves_a_finding_undecided():
    settings = {name: [rule.measure(curve(A, 0.0005)) for A in (A0, A0)] for name, A0 in (("one", 0.7), ("other", 0.6))}
    [finding] = [f for f in study.FINDINGS if f.configuration == "cispo"]
    row = rule.judge(finding, settings["one"], settings["other"], (0.01, 4))
    assert (row.verdict, row.why) == ("undecided", "the clip is idle") and row.low > 0.05
    acting = [one._replace(clipped=0.002) for one in settings["one"]]
    assert rule.judge(finding, acting, settings["other"], (0.01, 4)).verdict == "agrees"


def test_settings_that_are_the_same_runs_up_to_the_level_leave_efficiency_undecided():
    same, late = curve(0.6), [row | {"pass_rate": 0.59} if row["step"] == 16 else row for row in curve(0.6)]
    settings = [[rule.measure(rows) for rows in runs] for runs in ([same, curve(0.61)], [late, curve(0.62)])]
    assert rule.alike(*settings, 0.4) == 1 and rule.alike(*settings, 0.59) == 0  # 0.59 is not reached before they part
    [finding] = [f for f in study.FINDINGS if f.configuration == "loo-uniform-resampling" and f.quantity == "E"]
    row = rule.judge(finding, *settings, (0.01, 4))
    assert (row.verdict, row.why) == ("undecided", "the same runs up to that level")
    assert rule.judge(finding, settings[0], [settings[1][1]] * 2, (0.01, 4)).why != row.why


def test_runs_that_cannot_be_fitted_leave_a_finding_undecided():
    short = curve(0.6)[:6]  # three evaluations: no fit
    logs = {("cispo", 0): curve(0.7, 0.01), ("pipeline-8", 0): short, ("pipeline-8", 1): short}
    [row] = rule.judged(logs).values()
    assert (row.verdict, row.why) == ("undecided", "a setting has no run with an asymptote")
    assert "| -; ends " in rule.table(logs)[2]


def test_findings_are_judged_by_the_means_over_seeds():
    # A: 0.70 and 0.71 against 0.60 and 0.61. s = sqrt((2 * 0.005^2) * 2 / 2) = 0.00707 with 2 degrees of freedom, of
    # which t = 2.920: +-2.920 * 0.00707 * sqrt(1/2 + 1/2) = 0.0206
    logs = {
        (name, seed): curve(A + 0.01 * seed, 0.01)
        for name, A in (("cispo", 0.7), ("pipeline-8", 0.6))
        for seed in (0, 1)
    }
    [(finding, row)] = rule.judged(logs).items()
    assert (finding.configuration, finding.quantity, row.verdict) == ("cispo", "A", "agrees")
    assert (row.D, row.low, row.high) == pytest.approx((0.1, 0.0794, 0.1206), abs=2e-3)


def test_the_table_says_how_many_were_tested_what_was_clipped_and_the_staleness():
    logs = {
        (name, seed): curve(A, 0.01, staleness=staleness)
        for name, A, staleness in (("cispo", 0.7, "5"), ("pipeline-8", 0.6, "8"))
        for seed in (0, 1)
    }
    lines = rule.table(logs)
    assert f"1 of {len(study.FINDINGS)} findings tested: 1 agree, 0 disagree, 0 undecided." in lines[4]
    assert "cispo (2): 1.000% of tokens clipped, staleness 5.0 steps, at most 5; pass rate at the end" in lines[6]


def test_a_line_shows_efficiency_as_how_many_times_the_compute_of_the_reference():
    row = rule.Judged(math.log(2), math.log(1.6), math.log(2.5), "agrees", "beyond 0 that way", "", -0.1)
    assert rule.shown("E", row) == "compute x0.50 (0.40 to 0.62)"
    assert rule.shown("A", row._replace(D=0.05, low=0.03, high=0.07)) == "A +0.050 (+0.030 to +0.070)"


def test_the_figure_of_staleness_has_a_point_for_each_run_in_the_group_of_its_loss_and_dtype():
    head = {"kind": "config", "flags": {"loss": "dapo", "dtype": "float32"}}
    logs = {("pipeline-8", seed): [head, *curve(0.6, staleness=k)] for seed, k in enumerate("15")}
    evaluations = [row for row in logs["pipeline-8", 1] if row["kind"] == "eval"]
    evaluations[8]["pass_rate"], evaluations[16]["pass_rate"] = 0.4, 0.5
    [(label, (staleness, drops))] = drawing.drops_by_staleness(logs).items()
    assert (label, staleness) == ("dapo, float32", (1, 5))
    before = 0.2 + 0.4 / (1 + (3 / 7) ** 2)  # it drops from 0.54 to 0.4 and later from 0.58 to 0.5
    assert drops == pytest.approx((0, before - 0.4))
    logs["pipeline-8", 1][1]["rho_max"] = None  # stands for inf
    for (_, seed), drop, line in zip(logs, drops, runner.collapses(logs)):
        assert line.startswith(f"pipeline-8-{seed}: staleness {'15'[seed]}.00 steps; largest drop {drop:.3f}; ")
        assert ("; collapses after step 7; largest rho 17; " in line) == (seed == 1)


def test_the_mean_over_seeds_is_drawn_without_runs_that_collapse_or_until_the_first_collapse_if_all_do():
    rows = curve(0.7, points=25)
    collapsed = [row | {"pass_rate": 0.3} if row["step"] >= 20 else row for row in rows]
    mixed = rule.averaged({("gspo", 0): rows, ("gspo", 1): collapsed}, "gspo", "step")
    assert (len(mixed.compute), mixed.name) == (25, "gspo (1 of 2)") and min(mixed.reward[10:]) > 0.6
    both = rule.averaged({("gspo", 0): collapsed, ("gspo", 1): collapsed}, "gspo", "step")
    assert (len(both.compute), both.name) == (20, "gspo (2)")


def test_a_figure_for_each_comparison_that_has_runs_and_one_of_staleness(tmp_path):
    head = {"kind": "config", "flags": {"loss": "cispo", "dtype": "float32"}}
    logs = {(name, seed): [head, *curve(0.6)] for name in ("scalerl", "baseline") for seed in (0, 1)}
    drawn = drawing.draw_all(logs, tmp_path)
    assert [path.name for path in drawn] == ["ours_fig2.png", "ours_staleness.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def curve(A, clipped=0.0, *, staleness="3", points=17, speed=1):
    """The rows of a run on Eq. 1 with B = 2 and C_mid = 300 tokens: R = 0.2 + (A - 0.2) / (1 + (300 / C)^2)."""
    rows = []
    for n in range(points):
        C = 100.0 * n
        rate = 0.2 + (A - 0.2) / (1 + (300 / C) ** 2) if C else 0.2
        rows.append(evaluation(n) | {"pass_rate": rate, "gpu_hours": n / 10 / speed})
        rows.append(step(n, clipped, staleness, 1))
    return rows
