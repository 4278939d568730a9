"""Claims about study/stability.py: how many short runs are judged, on runs made up here, and on parts of them."""

import json
from math import isnan, nan

import numpy as np
import pytest

from study import grid, stability

STEPS = list(range(0, 161, 8))


def line(end, collapsed=None, *, plan="grid", seed=0, start=0.2, reason="finished", worst=None, **key):
    """A kept line of a run that rises to `end`, and is 0.1 after the step `collapsed`; worst: {column: its values}."""
    rates = [start + (end - start) * min(1, step / 80) for step in STEPS]
    rates = [0.1 if collapsed is not None and step > collapsed else rate for step, rate in zip(STEPS, rates)]
    columns = {"ess_min": [1.0] * 20, "rho_max": [1.0] * 20, "norm_max": [1.0] * 20} | (worst or {})
    columns |= {
        "seconds": [8.0] * 20,
        "seconds_generate": [6.0] * 20,
        "seconds_train": [4.0] * 20,
        "clipped": [0.01] * 20,
    }
    evaluations = {"step": STEPS, "pass_rate": rates, "stderr": [0.01] * 21}
    evaluations |= {"tokens": STEPS, "gpu_hours": [step / 100 for step in STEPS]}
    return {"run": {"plan": plan, **key, "seed": seed}, "evals": evaluations, "windows": columns, "reason": reason}


def kept(*lines):
    return {json.dumps(one["run"]): one for one in lines}


def cell(loss, k, rate, *ends, collapsed=()):
    """Lines of a cell: a seed for each end, the seeds in `collapsed` collapse after step 96."""
    return [
        line(end, 96 if seed in collapsed else None, loss=loss, k=k, rate=rate, seed=seed)
        for seed, end in enumerate(ends)
    ]


def test_the_end_is_the_last_quarter_and_a_run_that_diverged_fell():
    run = stability.one(line(0.6))
    assert run.end == pytest.approx(0.6) and run.collapsed is None
    assert stability.one(line(0.6, 96)).collapsed == 96
    cut = line(0.6, reason="no gradient of the last 5 steps was finite")
    assert stability.one(cut).collapsed == 160


def test_the_spread_is_that_of_cells_without_a_collapse():
    groups = stability.cells(
        kept(*cell("CISPO", 8, 1, 0.6, 0.62), *cell("DAPO", 8, 1, 0.2, 0.6, collapsed=[0])), "loss"
    )
    s, freedom = stability.spread(groups.values())
    assert (s, freedom) == (pytest.approx(0.02 / 2**0.5), 1)


def test_ends_are_compared_over_seeds_that_do_not_collapse_and_collapses_by_fishers_exact_test():
    runs = kept(
        *cell("CISPO", 8, 1, 0.6, 0.62, 0.6, 0.62), *cell("DAPO", 8, 1, 0.5, 0.9, 0.9, 0.9, collapsed=[1, 2, 3])
    )
    groups = stability.cells(runs, "loss")
    # 6.314 is t's 95 % quantile with one degree of freedom; 0.01 * sqrt(1/4 + 1/1)
    found = stability.difference(groups["CISPO",], groups["DAPO",], (0.01, 1))
    assert found == pytest.approx((0.11, 0.11 - 6.314 * 0.01118, 0.11 + 6.314 * 0.01118), abs=1e-4)
    # of 8 runs 3 collapse, all of one setting: 4 * 1 / C(8, 3) = 4 / 56
    assert stability.more_collapses(groups["DAPO",], groups["CISPO",]) == pytest.approx(4 / 56)
    assert stability.more_collapses(groups["CISPO",], groups["DAPO",]) == 1.0


def test_a_setting_whose_runs_all_collapse_has_no_difference():
    groups = stability.cells(kept(*cell("CISPO", 8, 1, 0.6, 0.62), *cell("DAPO", 8, 1, 0.6, collapsed=[0])), "loss")
    assert all(map(isnan, stability.difference(groups["CISPO",], groups["DAPO",], (0.01, 3))))


@pytest.mark.parametrize(
    "losses, expected",
    [
        ({0: (0.6, 0.6)}, (0, None)),  # nothing staler was made
        ({0: (0.6, 0.6), 1: (0.6, 0.59), 2: (0.5, 0.5)}, (1, 2)),
        ({0: (0.6, 0.6), 1: (0.5, 0.5), 2: (0.6, 0.6)}, (0, 1)),  # up to it all k must hold
        ({0: (0.6, 0.6), 1: (0.575, 0.575), 2: (0.6, 0.6)}, (0, None)),  # loses 0.016 to 0.034: open
        ({0: (0.6, 0.6), 1: (0.585, 0.585), 2: (0.5, 0.5)}, (0, 2)),  # 0.006 to 0.024: open too
        ({0: (0.6, 0.6), 1: (0.59, 0.59), 2: (0.7, 0.7)}, (2, None)),  # 0.001 to 0.019, and a gain
        ({k: (0.6, 0.6) for k in grid.STALENESS}, (32, None)),
        ({1: (0.6, 0.6)}, (None, None)),  # nothing to compare with
        ({}, (None, None)),
    ],
)
def test_a_loss_holds_to_the_largest_staleness_up_to_which_nothing_is_lost(losses, expected):
    lines = [one for k, ends in losses.items() for one in cell("CISPO", k, 1, *ends)]
    groups = stability.cells(kept(*lines), "loss", "k", "rate")
    assert stability.holds(groups, "CISPO", 1, (0.005, 10)) == expected  # 1.812 * 0.005 = 0.009


def test_where_a_quarter_of_the_seeds_collapse_a_loss_is_lost():
    for collapsed, expected in (([0], (0, 1)), ([], (1, None))):
        lines = [*cell("CISPO", 0, 1, 0.6), *cell("CISPO", 1, 1, 0.6, 0.6, 0.6, 0.6, collapsed=collapsed)]
        groups = stability.cells(kept(*lines), "loss", "k", "rate")
        assert stability.holds(groups, "CISPO", 1, (0.005, 10)) == expected


def test_how_far_says_what_was_not_made_and_how_wide_its_intervals_are():
    lines = [
        *cell("CISPO", 0, 2, 0.6, 0.62),
        *cell("CISPO", 1, 2, 0.5, 0.6, collapsed=[1]),
        *cell("CISPO", 2, 2, 0.5, 0.52),
    ]
    said = stability.how_far(kept(*lines))
    assert said[5] == "| x2 | CISPO | 0 | 1 | 0.610 | -0.110, 1/2 collapse | -0.100 | - | - | - | - |"
    # s = 0.0141 with 2 degrees of freedom, 2.92 * s * sqrt(2 / 2)
    assert said[-2:] == [
        "Half-widths of a difference: 0.041 at lr x2 (2 seeds per setting).",
        "Of 1 runs that collapse, 0 never learn, 0 have recovered at the end.",
    ]
    one_seed = stability.how_far(kept(*cell("CISPO", 0, 2, 0.6), *cell("CISPO", 1, 2, 0.3)))
    assert one_seed[5] == "| x2 | CISPO | 0 | - | 0.600 | - | - | - | - | - | - |"
    assert one_seed[-2] == "Half-widths of a difference: not yet known."


def test_a_run_that_regains_what_it_lost_collapsed_and_recovered():
    dip = line(0.6)
    dip["evals"]["pass_rate"][10:14] = [0.3] * 4
    run = stability.one(dip)
    assert run.collapsed is not None and run.recovered
    assert not stability.one(line(0.6, 96)).recovered and not stability.one(line(0.6)).recovered
    assert not stability.one({**dip, "reason": "no gradient of the last 5 steps was finite"}).recovered


def test_a_recovered_run_counts_among_the_ends_and_one_that_never_learns_does_not():
    dip = line(0.6, loss="CISPO", k=8, rate=1)
    dip["evals"]["pass_rate"][10:14] = [0.3] * 4
    never = line(0.6, loss="CISPO", k=8, rate=1, seed=1)
    never["evals"]["pass_rate"] = [0.4 - 0.015 * at for at in range(21)]
    runs = {seed: stability.one(one) for seed, one in enumerate((dip, never, line(0.6, 96), line(0.7)))}
    assert [run.collapsed is not None for run in runs.values()] == [True, True, True, False]
    assert [run.never_learnt for run in runs.values()] == [False, True, False, False]
    assert stability.ends(runs) == [runs[0].end, runs[3].end]
    said = stability.announced(kept(dip, never, line(0.6, loss="CISPO", k=8, rate=1, seed=2)))
    assert "never learn: 1 of 2 runs of seeds 0 to 3" in said[0]


def test_false_alarms_are_counted_over_as_many_steps_as_the_collapses_were_watched():
    """The peak before the collapse is at step 96: 11 times 8 steps from step 9 on; the other alarm comes later."""
    collapse, late = line(0.6, 96), line(0.6, worst={"rho_max": [1.0] * 15 + [50.0] + [1.0] * 4})
    runs = [stability.one(collapse), stability.one(late)]
    assert stability.watched(runs[0]) == 11 and stability.watched(runs[1]) == 19
    assert stability.alarm_at(runs[1], "largest rho", 10) == 14
    assert stability.alarmed(runs[1], "largest rho", 10) and stability.matched(runs, "largest rho", 10) == 0


def test_what_the_clip_acts_on_stands_by_loss_and_staleness():
    _, _, row = stability.clipped(kept(*cell("CISPO", 8, 1, 0.6), *cell("no ratio", 8, 1, 0.6)))
    assert row == "| x1 | CISPO | - | - | - | - | 1.00% | - | - |"


def test_a_finding_is_judged_by_the_interval_and_stands_beside_its_collapses():
    groups = stability.cells(kept(*cell("CISPO", 8, 1, 0.7, 0.7), *cell("DAPO", 8, 1, 0.6, 0.6, collapsed=[1])), "loss")
    said = stability.compared("CISPO above DAPO", groups["CISPO",], groups["DAPO",], +1, (0.01, 10))
    assert "+0.100" in said and "agrees" in said and "0 of 2 against 1 of 2, p = 0.5" in said
    assert "not made yet" in stability.compared("CISPO above DAPO", groups["CISPO",], None, +1, (0.01, 10))
    four = [0.6, 0.6, 0.6, 0.6]
    lines = [*cell("CISPO", 8, 1, *four, collapsed=range(4)), *cell("DAPO", 8, 1, *four)]
    groups = stability.cells(kept(*lines), "loss")
    assert "p = 0.014: collapses more often" in stability.compared(
        "", groups["CISPO",], groups["DAPO",], +1, (0.01, 10)
    )
    assert "p = 0.014: collapses less often" in stability.compared(
        "", groups["DAPO",], groups["CISPO",], +1, (0.01, 10)
    )


def test_what_half_of_the_runs_do_not_notice_is_idle():
    cells = cell("CISPO", 8, 1, 0.7, 0.7, 0.6), cell("DAPO", 8, 1, 0.7, 0.7, 0.65), cell("GSPO", 8, 1, 0.7, 0.6, 0.5)
    groups = stability.cells(kept(*sum(cells, [])), "loss")
    cispo, dapo, gspo = groups["CISPO",], groups["DAPO",], groups["GSPO",]
    assert stability.never_acts(cispo, dapo) and not stability.never_acts(cispo, gspo)
    said = stability.compared("the same", cispo, dapo, 0, (0.001, 10))
    assert "undecided: idle: 2 of 3 seeds give the same run" in said
    assert "disagrees" in stability.compared("the same", cispo, gspo, 0, (0.001, 10))


def test_what_a_clip_moves_is_judged_beyond_what_chance_gives():
    steady = np.array([[0.6] * 4, [0.5] * 4, [0.1] * 4])
    assert stability.moves(steady) == pytest.approx(np.var([0.6, 0.5, 0.1], ddof=1))
    assert stability.moves(steady + np.arange(4)) == pytest.approx(np.var([0.6, 0.5, 0.1], ddof=1))  # seeds alone
    assert stability.more_robust(steady, steady) == (0.0, 0.0, 0.0)
    assert isnan(stability.more_robust(steady[:, :2], steady[:, :2])[1])
    source = np.random.default_rng(1)

    def drawn(noise, effect):
        return source.normal(0.6, noise, (3, 8)) + np.array([[0], [effect], [0]])

    for effect in (0, 0.03, 0.06):  # as much for a loss whose seeds differ little as for one whose seeds differ much
        found = [stability.more_robust(drawn(0.02, effect), drawn(0.04, effect)) for _ in range(300)]
        assert abs(np.mean([D for D, _, _ in found])) < 3e-4 / 4
        assert 0.84 < np.mean([low <= 0 <= high for _, low, high in found])
    found = [stability.more_robust(drawn(0.01, 0), drawn(0.01, 0.06)) for _ in range(100)]
    assert np.mean([low > 0 for _, low, _ in found]) > 0.9


def test_cispo_is_more_robust_if_daposs_ends_move_more_with_the_clip(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "base", lambda: "here")
    lines = [*cell("CISPO", 8, 1, *[0.6] * 4), *cell("DAPO", 8, 1, *[0.6] * 4)]
    for name, loss, end in (("eps_max 4", "CISPO", 0.6), ("eps_max 8", "CISPO", 0.61), ("eps_high 0.2", "DAPO", 0.5)):
        lines += [line(end, plan="variants", variant=name, loss=loss, k=8, rate=1, seed=seed) for seed in range(4)]
    lines += [
        line(0.6, plan="variants", variant="eps_high 0.4", loss="DAPO", k=8, rate=1, seed=seed) for seed in range(4)
    ]
    (tmp_path / "tiny").mkdir()
    for one in lines:
        path = tmp_path / "tiny" / f"{one['run']['plan']}.jsonl"
        with path.open("a") as file:
            file.write(json.dumps({"kind": "run", "base": "here", **one}) + "\n")
    _, first = stability.robustness(tmp_path)  # nothing at lr x2
    assert "lr x1" in first
    moved = "over 4 seeds the clip moves the end by CISPO 0.006, DAPO 0.058 (standard deviation)"
    assert f"agrees; {moved}; difference of the variances +3.3e-03 (+3.3e-03 to +3.3e-03)" in first
    path = tmp_path / "tiny" / "variants.jsonl"
    path.write_text(path.read_text().replace("0.01, 0.01", "0.0005, 0.0005"))  # the grid's own value acts on 1 %
    assert "undecided" not in stability.robustness(tmp_path)[1]
    path = tmp_path / "tiny" / "grid.jsonl"
    path.write_text(path.read_text().replace("0.01, 0.01", "0.0005, 0.0005"))
    assert "undecided, the clip of CISPO and DAPO is idle; over" in stability.robustness(tmp_path)[1]
    rows = stability.variants(tmp_path)[2:]
    assert rows[0] == "| x1 | CISPO | - | 0.600 | 0.600 | 0 of 4 | 0.05% |"
    assert [row.split(" | ")[2] for row in rows] == ["-", "eps_max 4", "eps_max 8", "-", "eps_high 0.2", "eps_high 0.4"]
    assert any("Fig. 5a, CISPO above DAPO" in row and "+0.000" in row for row in stability.findings(tmp_path))
    assert "- grid: 8 of 1008" in stability.report(tmp_path)


def test_an_alarm_counts_if_it_comes_by_the_window_of_the_peak():
    # the peak before the collapse lies in steps 89 to 96, the 12th window; windows count from step 9 on
    at = {
        n: stability.one(line(0.6, 96, worst={"rho_max": [1.0] * n + [50.0] + [1.0] * (19 - n)})) for n in (0, 11, 12)
    }
    assert [stability.alarmed(run, "largest rho", 10.0) for run in at.values()] == [False, True, False]
    standing = stability.one(line(0.6, worst={"rho_max": [1.0] * 12 + [None] + [1.0] * 7}))  # null is inf
    assert stability.alarmed(standing, "largest rho", 10.0)


def test_signals_are_high_where_something_is_wrong():
    run = stability.one(
        line(0.6, worst={"ess_min": [0.9, 0.2, None, *[1.0] * 17], "norm_max": [9.0, 2.0, 2.0, 6.0] + [1.0] * 16})
    )
    assert stability.signal(run, "effective sample size")[:3].tolist() == [-0.2, -float("inf"), -1.0][:3]
    assert stability.signal(run, "gradient norm")[:3].tolist() == [1.0, 1.0, 3.0]


def test_a_signal_that_precedes_every_collapse_and_no_other_run_announces_collapses():
    bad = {"rho_max": [1.0] * 9 + [50.0] + [1.0] * 10}
    lines = [
        line(0.6, 96 if seed % 2 else None, worst=bad if seed % 2 else None, loss="CISPO", k=8, rate=1, seed=seed)
        for seed in range(8)
    ]
    said = stability.announced(kept(*lines))
    assert said[0].endswith("that never learn: 2 of 4 runs of seeds 0 to 3, 2 of 4 of seeds 4 to 7.")
    by = {row[2:].split(" beyond")[0].split(":")[0]: row for row in said[1:-1]}
    assert by["largest rho"].endswith(
        "hits 100%, false alarms 0% (0% in as many steps as before the peaks): announces collapses"
    )
    assert by["gradient norm"].endswith(
        "no threshold hits more often than it alarms falsely: does not announce collapses"
    )
    # the cell collapses in half of its seeds: an alarm in each of its runs
    assert said[-1].endswith("hits 100%, false alarms 100%")


def test_without_collapses_nothing_is_said_of_what_announces_them():
    assert stability.announced(kept(*cell("CISPO", 8, 1, 0.6, 0.6)))[1].startswith("Too few")


def test_efficiency_is_device_hours_to_half_of_the_gain(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "base", lambda: "here")
    (tmp_path / "tiny").mkdir()
    for seed in (0, 1):
        for setup, speed in (("PipelineRL", 2), ("PPO-off-policy", 1)):
            one = line(0.6, plan="efficiency", setup=setup, k=8, costs="balanced", seed=seed)
            one["evals"]["pass_rate"] = [0.2 + 0.4 / (1 + (40 / s) ** 2) if s else 0.2 for s in STEPS]
            one["evals"]["gpu_hours"] = [step / speed * (1 + 0.01 * seed) for step in STEPS]
            with (tmp_path / "tiny" / "efficiency.jsonl").open("a") as file:
                file.write(json.dumps({"kind": "run", "base": "here", **one}) + "\n")
    [row] = stability.efficiency(tmp_path)[2:]
    assert row.startswith("| balanced | 8 | compute x0.50 (") and "| agrees | 25%, 50% | 25%, 50% |" in row


def test_a_run_that_does_not_level_off_has_no_asymptote(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "base", lambda: "here")
    (tmp_path / "tiny").mkdir()
    for loss, seed, A in (
        ("CISPO", 0, 0.7),
        ("CISPO", 1, 0.72),
        ("DAPO", 0, 0.6),
        ("DAPO", 1, 0.62),
        ("GSPO", 0, None),
    ):
        one = line(0.6, plan="ceilings", loss=loss, k=8, rate=1, seed=seed)
        one["evals"]["tokens"] = STEPS
        rises = [0.2 + (A - 0.2) / (1 + (20 / s) ** 2) if s else 0.2 for s in STEPS] if A else None
        one["evals"]["pass_rate"] = rises or [0.2 + 0.003 * s for s in STEPS]
        with (tmp_path / "tiny" / "ceilings.jsonl").open("a") as file:
            file.write(json.dumps({"kind": "run", "base": "here", **one}) + "\n")
    cispo, dapo, gspo = stability.asymptotes(tmp_path)[2:]
    # s = 0.0141 with 2 degrees of freedom: 2.92 s sqrt(1/2 + 1/2) = 0.041
    assert "| 0.710 (2 of 2) | A +0.100 (+0.059 to +0.141) | 0 of 2 |" in cispo
    assert "| 0.610 (2 of 2) | - |" in dapo and "| - | - | 0 of 1 |" in gspo


def test_the_heat_maps_are_drawn_from_what_is_there(tmp_path):
    lines = kept(*cell("CISPO", 8, 1, 0.6, 0.6, collapsed=[0]))
    path = stability.heat_maps(lines, tmp_path / "maps.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert stability.heat_maps({}, tmp_path / "none.png").exists()


def test_nothing_is_said_of_runs_that_were_not_made(tmp_path):
    said = stability.report(tmp_path)
    assert stability.counts(tmp_path)[:2] == ["- grid: 0 of 1008", "- variants: 0 of 176"]
    waiting = "How far, Tokens on which the clip acts, Findings, Variants, What announces a collapse, Asymptotes, "
    waiting += "Efficiency, FP32 head"
    assert said[-1] == f"Task `tiny`, not made yet: {waiting}." and nan not in said
    assert not [line for line in said if line.startswith("### ") and "runs made" not in line]
