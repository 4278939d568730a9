"""Claims about the study's runs in virtual time: which are made, that they are train.py's, and that they resume."""

import doctest
import json
import math
import os
import signal

import pytest
import torch
from test_train import elsewhere  # noqa: F401

import loss
import train
from plumbing import settings
from study import comparisons, grid, order, regimes, rule, stability, verdicts, warm

SHORT = " --steps 2 --eval-every 2 --eval-prompts 4 --eval-generations 2"


def asked(regime, name):
    return settings.read_settings(regimes.flags(regime, name))


# --- Regimes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime, bound", [("exact-1", 1), ("exact-8", 8)])
def test_no_token_of_an_exact_regime_is_staler_than_its_k(regime, bound):
    for name in regimes.names(regime):
        args = asked(regime, name)
        assert args.virtual == "exact", name
        # PPO-off-policy-k: staleness 0 to k - 1
        assert (args.k if args.off_policy == "pipeline" else args.k - 1) == bound, name


def test_recipes_that_take_turns_are_those_of_the_paper():
    taking = {name for name in regimes.REGIMES["exact-1"].names if regimes.ppo(name)}
    assert taking == {"baseline", "deepseek", "qwen2.5", "minimax", "loo-ppo-8"}


def test_but_for_staleness_and_evaluations_a_configuration_is_the_asynchronous_one():
    for regime, own in regimes.REGIMES.items():
        for original, name in zip(own.names, regimes.names(regime)):
            here, there = vars(asked(regime, name)), vars(settings.read_settings(comparisons.flags(original)))
            changed = {flag for flag in here if here[flag] != there.get(flag)}
            expected = {"k", "steps", "eval_every", "checkpoint_every", "asked", "virtual", "generators", "costs"}
            sizes = {"slots", "eval_generations"} if "exact" in own.flags else set()
            assert changed <= expected | sizes | {"trainers"}, name


def test_every_figure_of_the_paper_is_asked_in_a_regime_and_names_say_its_k():
    figures = {finding.figure for regime in regimes.REGIMES for finding in regimes.findings(regime)}
    assert figures == set(comparisons.FIGURES)
    assert "pipeline" in regimes.names("exact-1") and "pipeline-8" in regimes.names("exact-8")
    assert not [name for name in regimes.names("exact-1") if name.endswith("-8") or name == "pipeline-1"]
    assert not [one.says for one in regimes.findings("exact-1") if "-8" in one.says]
    settings = {name for one in regimes.findings("exact-1") for name in (one.configuration, one.reference)}
    assert settings == {*regimes.names("exact-1")}


def law(A, clipped=0.01):
    """Rows of a run on Eq. 1 with this asymptote."""
    rows = [{"kind": "config", "flags": {"virtual": "exact", "off_policy": "pipeline"}}]
    for n in range(17):
        rate = 0.2 + (A - 0.2) / (1 + (3 / n) ** 2) if n else 0.2
        rows.append({"kind": "eval", "step": n, "tokens": n, "gpu_hours": n, "pass_rate": rate, "stderr": 0.005})
        rows.append({"kind": "step", "step": n, "clipped": clipped, "staleness": {"1": 1}})
    return rows


def logs(**asymptotes):
    """{(name, seed): rows} of exact-8, each seed 0.002 above the one before."""
    names = {name: 0.6 for name in regimes.names("exact-8")} | {k.replace("_", "-"): A for k, A in asymptotes.items()}
    return {(name, seed): law(A + 0.002 * seed) for name, A in names.items() for seed in range(regimes.LEAST)}


def test_the_stopping_rule_asks_for_nothing_until_all_have_three_seeds():
    some = logs()
    some.pop(("gspo", 2))
    assert regimes.due(some, "exact-8") == []


def test_the_stopping_rule_gives_both_settings_of_an_undecided_pair_one_seed_more_up_to_six():
    # s = 0.002 with 10 degrees of freedom: +-0.003; "the same" is within 0.02, "higher" is beyond 0
    there = logs(cispo=0.65, gspo=0.65, scalerl=0.6, loo_dapo=0.619)
    assert regimes.due(there, "exact-8") == [("scalerl", 3), ("loo-dapo", 3)]
    for seed in range(3, regimes.MOST):
        there |= {(name, seed): there[name, seed - 3] for name in ("scalerl", "loo-dapo")}
        wanted = regimes.due(there, "exact-8")
        assert wanted == ([("scalerl", seed + 1), ("loo-dapo", seed + 1)] if seed + 1 < regimes.MOST else [])
    [finding] = [one for one in regimes.findings("exact-8") if one.configuration == "loo-dapo" and one.quantity == "A"]
    assert regimes.looks(there, finding) == 4


def test_idle_shares_weigh_by_time_and_leave_out_what_was_before_the_first_evaluation():
    def rows(*seconds):
        return [{"kind": "step", "seconds": n, "seconds_generate": 2.0, "seconds_train": 1.0} for n in seconds]

    found = {
        ("pipeline-8", 0): rows(99.0, 4.0, 8.0),
        ("pipeline-8", 1): rows(99.0, 4.0),
        ("baseline", 0): rows(9.0, 2.0),
    }
    assert verdicts.idle(found) == [  # 6 of 16 seconds generate, 3 train
        "idle in pipeline-8 (2 runs): generators 62%, trainer 81%",
        "idle in baseline (1 runs): generators 0%, trainer 50%",
    ]


def test_where_the_first_of_two_ends_both_have_a_pass_rate():
    slow = [row | {"gpu_hours": 2 * row["gpu_hours"]} if row["kind"] == "eval" else row for row in law(0.6)]
    fast, half = 0.2 + 0.4 / (1 + (3 / 16) ** 2), 0.2 + 0.4 / (1 + (3 / 8) ** 2)  # of `law`, after 16 steps and 8
    said = verdicts.meet({("one", 0): law(0.6), ("other", 0): slow})
    assert said == (f"pass rate at 16.000 device-hours, where the first ends: one (1) {fast:.3f}, other (1) {half:.3f}")


def test_the_stopping_rule_leaves_idle_clips_alone():
    idle = {pair: law(0.6 + 0.002 * pair[1], clipped=0.0) for pair in logs()}
    assert regimes.due(idle, "exact-8") == []
    found = rule.judged(idle, regimes.findings("exact-8"))
    assert {row.why for row in found.values()} == {rule.IDLE}


def test_virtual_device_hours_always_count():
    rows = law(0.6)
    assert rule.counts("baseline", 5, "gpu_hours", rows)
    assert not rule.counts("baseline", 5, "gpu_hours", rows[1:])


# --- The task `tiny` -------------------------------------------------------------------------------------------------


def test_the_plans_have_the_runs_that_were_announced():
    sizes = {plan: len(runs()) for plan, runs in grid.PLANS.items()}
    # 6 losses x 7 k x 3 rates x 8 seeds; 11 variants x 2 x 8; 6 x 4; 2 x 4 x 3 x 3; 2 x 2 x 3
    assert sizes == {"grid": 1008, "variants": 176, "ceilings": 24, "efficiency": 72, "head": 12}
    for plan, runs in grid.PLANS.items():
        assert len({run.name() for run in runs()}) == sizes[plan]


def test_every_run_of_a_plan_has_flags_that_train_takes_and_its_own_staleness_and_rate():
    for run in {(run.plan, run.key): run for plan in grid.PLANS.values() for run in plan()}.values():
        args = settings.read_settings([*grid.TINY, *run.flags.split()])
        own = dict(run.key)
        assert args.k == own["k"]
        assert args.lr == pytest.approx(own.get("rate", 1) * 3e-4)
        assert args.off_policy == grid.SETUPS.get(own.get("setup"), "pipeline")


def test_the_losses_differ_in_the_loss_alone():
    common = []
    for name, given in grid.LOSSES.items():
        args = vars(settings.read_settings([*grid.TINY, *given.split()]))
        own = ("loss", "aggregation", "clips", "eps_max", "asked", "out")
        common.append({flag: args[flag] for flag in args if flag not in own})
        assert args["aggregation"] == ("sample" if name == "GSPO" else "prompt")
    assert all(one == common[0] for one in common)


def test_without_a_ratio_the_gradient_is_the_advantage_whatever_the_weights_that_sampled():
    logprobs = torch.log(torch.tensor([[0.5, 0.25], [0.5, 0.5]])).requires_grad_()
    sampled = torch.log(torch.tensor([[0.125, 0.5], [1.0, 1.0]]))
    mask = torch.tensor([[True, True], [True, False]])
    given = logprobs, sampled, torch.tensor([2.0, -1.0]), mask
    warm.no_ratio(*given, eps_max=5.0).sum().backward()
    assert logprobs.grad.tolist() == [[2.0, 2.0], [-1.0, 0.0]]
    logprobs.grad = None
    loss.cispo(*given, eps_max=float("inf")).sum().backward()  # ratios 4, 1/2, 1/2
    assert logprobs.grad.tolist() == [[8.0, 1.0], [-0.5, 0.0]]


def test_a_run_in_this_process_has_the_log_of_train_py_and_leaves_nothing(tmp_path, capsys):
    argv = [*grid.TINY, *("--virtual exact --k 1 --loss cispo" + SHORT).split()]
    rows = warm.run(train, argv)
    assert capsys.readouterr() == ("", "")
    train.main(settings.read_settings([*argv, "--out", str(tmp_path / "run")]))
    theirs = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").open()]

    def told(rows):
        return [row for row in rows if row["kind"] in ("eval", "step")]

    assert told(rows) == told(theirs) != []
    assert rows[-1]["reason"] == "finished"


def test_an_objective_takes_the_place_of_the_loss_for_one_run_only():
    argv = [*grid.TINY, *("--virtual exact --k 1 --loss cispo" + SHORT).split()]
    called = []

    def objective(*given, eps_max):
        called.append(eps_max)
        return warm.no_ratio(*given, eps_max=eps_max)

    warm.run(train, argv, objective)
    assert len(called) > 1 and loss.LOSSES["cispo"].objective is loss.cispo  # once when the flags are read


def test_a_run_that_a_signal_ends_is_no_result_and_ends_the_queue(tmp_path, monkeypatch):
    [run] = grid.grid(1, (1,))[:1]
    monkeypatch.setitem(grid.PLANS, "grid", lambda: [run._replace(flags=run.flags + SHORT)])
    monkeypatch.setattr(order, "ORDER", {"grid": order.tiny("grid")})
    step = train.Trainer.update

    def killed(trainer, *batch):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(trainer, *batch)

    monkeypatch.setattr(train.Trainer, "update", killed)
    with pytest.raises(SystemExit, match="the study ends: .*SIGTERM"):
        order.make_all(train, tmp_path)
    assert grid.kept(tmp_path, "grid") == {}


def test_flags_that_are_refused_are_an_error_of_the_study():
    with pytest.raises(RuntimeError, match="--k is -1"):
        warm.run(train, [*grid.TINY, "--virtual", "exact", "--k", "-1"])


def test_what_is_there_is_not_made_twice_and_a_half_written_line_counts_as_not_there(tmp_path, monkeypatch):
    two = [run._replace(flags=run.flags + SHORT) for run in grid.grid(1, (1,))[:2]]
    monkeypatch.setitem(grid.PLANS, "grid", lambda: two)
    monkeypatch.setattr(order, "ORDER", {"grid": order.tiny("grid")})
    order.make_all(train, tmp_path)
    path = grid.place(tmp_path, "grid")
    lines = path.read_text().splitlines()
    assert len(lines) == 2 and grid.missing(tmp_path, "grid") == []
    assert {json.loads(one)["rounding"] for one in lines} == {warm.rounding()}
    path.write_text(lines[0] + "\n" + lines[1][:40])  # killed while it wrote
    assert grid.missing(tmp_path, "grid") == two[1:]
    order.make_all(train, tmp_path)
    again = list(grid.kept(tmp_path, "grid").values())
    assert [{**line, "cpu_seconds": 0} for line in again] == [{**json.loads(line), "cpu_seconds": 0} for line in lines]


def test_a_machine_that_rounds_otherwise_has_other_digits(monkeypatch):
    here = warm.rounding()
    assert len(here) == 12 and warm.rounding.__wrapped__() == here  # the same when computed again
    monkeypatch.setattr(torch.Tensor, "logsumexp", lambda logits, dim: logits.double().exp().sum(dim).log().float())
    assert warm.rounding.__wrapped__() != here


def test_lines_of_another_base_count_as_not_there(tmp_path, monkeypatch):
    [run] = grid.grid(1, (1,))[:1]
    grid.place(tmp_path, "grid").parent.mkdir()
    line = {"kind": "run", "run": run.named(), "base": grid.base()}
    grid.place(tmp_path, "grid").write_text(json.dumps(line) + "\n" + json.dumps(line | {"base": "another"}) + "\n")
    assert len(grid.kept(tmp_path, "grid")) == 1
    monkeypatch.setattr(grid, "base", lambda: "a third")
    assert grid.kept(tmp_path, "grid") == {}


def test_windows_keep_the_worst_step_and_say_what_was_not_finite():
    steps = [{"kind": "step", "step": n + 1, "gradient_norm": float(n), "pass_rate": 0.5} for n in range(16)]
    for n in range(8):
        steps[n] |= {"effective_sample_size": 1 - n / 10, "rho_max": 1.0 + n, "entropy": 0.5, "clipped": 0.0}
    steps[9] |= {"rho_max": None}  # inf
    steps = [step | {"seconds": 2.0, "seconds_generate": 1.0, "seconds_train": 0.5} for step in steps]
    found = grid.summary([*steps, {"kind": "end", "reason": "finished"}])["windows"]
    assert found["ess_min"] == [0.3, 1.0] and found["rho_max"] == [8.0, None]
    assert (found["norm"], found["norm_max"]) == ([3.5, 11.5], [7.0, 15.0])
    assert (found["seconds"], found["seconds_train"]) == ([16.0, 16.0], [4.0, 4.0])


def test_a_run_of_the_embedded_task_is_kept_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(warm, "run", lambda train, argv: law(0.6) + [{"kind": "end", "step": 16, "reason": "finished"}])
    monkeypatch.setattr(order, "reduced", lambda rows: rows)
    monkeypatch.setattr(order, "ORDER", {"exact-8, 1 seed": order.exact("exact-8", 1)})
    order.make_all(train, tmp_path)
    assert sorted(regimes.kept(tmp_path, "exact-8")) == sorted((name, 0) for name in regimes.names("exact-8"))
    assert regimes.missing(tmp_path, "exact-8", 1) == [] and not list(tmp_path.glob("*/*.part"))


def test_two_processes_do_not_make_the_same_runs(tmp_path):
    with order.locked(tmp_path), pytest.raises(SystemExit, match="another process"):
        order.locked(tmp_path)


def test_a_run_that_is_missing_though_it_was_made_ends_the_queue(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(order, "ORDER", {"one": (lambda folder: ["a"], lambda train, what, folder: made.append(what))})
    with pytest.raises(RuntimeError, match="a was made and is still missing"):
        order.make_all(train, tmp_path)
    assert made == ["a"]


def test_the_list_says_what_is_there(tmp_path):
    lines = order.listed(tmp_path)
    assert "exact-1, 1 seed: 24 missing" in lines and "grid: 0 of 1008 runs" in lines


# --- What the runs can tell ------------------------------------------------------------------------------------------


def test_the_smallest_difference_follows_from_spread_and_runs():
    assert doctest.testmod(verdicts).failed == 0 < doctest.testmod(verdicts).attempted
    assert rule.reach((0.0085, 12), 3) == pytest.approx(1.782 * 0.0085 * (2 / 3) ** 0.5, abs=1e-4)
    assert math.isnan(verdicts.smallest((math.nan, 0), 3))


def test_a_decided_finding_is_missed_with_one_seed_where_seeds_differ_more_than_settings():
    # s = 0.01 with 10 degrees of freedom: one run per setting +-1.812 * 0.01 * sqrt(2) = 0.026, three +-0.015
    spread = {0: -0.01, 1: 0.0, 2: 0.01}
    there = {pair: law(0.6 + 0.02 * (pair[0] == "cispo") + spread[pair[1]]) for pair in logs()}
    cispo = [one for one in regimes.findings("exact-8") if one.configuration == "cispo"]
    [row] = rule.judged(there, cispo).values()
    assert row.verdict == "agrees"
    # of nine pairs D is 0.02 (three), 0.03 (two), 0.01 (two), 0.04 and 0: six are not beyond 0.026
    assert verdicts.missed({pair: there[pair] for pair in there}, cispo) == (9, 6)


def test_the_ranking_at_a_quarter_is_compared_with_that_at_the_end():
    slow = law(0.8)
    for row in slow:
        if row["kind"] == "eval" and row["step"] <= 8:
            row["pass_rate"] = 0.2
    (early, late), *others = verdicts.ranking({("one", 0): law(0.6), ("other", 0): law(0.7)})
    assert not others and early < 0 and late < -0.02
    [(early, late)] = verdicts.ranking({("one", 0): law(0.6), ("other", 0): slow})
    assert early > 0 > late


def test_ranks_are_counted_of_all_pairs_and_of_those_that_end_apart():
    there = {("one", 0): law(0.6), ("near", 0): law(0.601), ("other", 0): law(0.7)}
    lines = verdicts.summary(there, [])
    assert "two configurations rank at a quarter of the compute as at the end in 3 of 3 pairs" in lines
    assert any("whose ends are more than 0.02 apart" in line and line.endswith("in 2 of 2 pairs") for line in lines)


def keep(folder, there):
    """Write the logs of `logs` where regimes.kept looks for them."""
    for (name, seed), own in there.items():
        text = "".join(json.dumps(row) + "\n" for row in own)
        regimes.place(folder, "exact-8", name, seed).write_text(text)


def test_the_forest_has_ten_rows_of_findings_that_are_asked_and_says_which_are_not_made(tmp_path):
    rows, waiting = verdicts.forest_rows(tmp_path)
    assert (len(rows), len(waiting)) == (0, 10)
    (tmp_path / "exact-8").mkdir()
    keep(tmp_path, {pair: rows for pair, rows in logs(cispo=0.65).items() if pair[1] == 0})
    assert verdicts.forest(tmp_path, tmp_path / "forest.png")[0] is None  # one seed gives no interval
    keep(tmp_path, logs(cispo=0.65))
    path, waiting = verdicts.forest(tmp_path, tmp_path / "forest.png")
    assert path.read_bytes().startswith(b"\x89PNG") and len(waiting) == 8
    said = verdicts.report(tmp_path)
    [waiting] = [line for line in said if "not made yet" in line]
    assert "exact, k = 1 (0 of 72 runs)" in waiting and "exact, k = 8" not in waiting
    assert not any(line.startswith("### exact, k = 1") for line in said)
    assert "### exact, k = 8: 15 runs, 15 asked before the stopping rule" in said


def test_what_is_written_stands_between_the_marks_and_replaces_what_stood_there():
    text = f"before\n{verdicts.BEGIN}\nold\n{verdicts.END}\nafter\n"
    once = verdicts.written(text, ["new"])
    assert once == f"before\n{verdicts.BEGIN}\n\nnew\n\n{verdicts.END}\nafter\n" == verdicts.written(once, ["new"])


def test_the_tables_in_results_are_of_the_runs_that_are_there():
    results = grid.ROOT / "results"
    text = (results / "README.md").read_text().partition(verdicts.BEGIN)[2].partition(verdicts.END)[0]
    assert [line for line in stability.counts(results) if line not in text.splitlines()] == []
    for regime, own in regimes.REGIMES.items():
        count = len(regimes.kept(results, regime))
        assert (f"### {own.says}: {count} runs, " if count else f"{own.says} (0 of ") in text
