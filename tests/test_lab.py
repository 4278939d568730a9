"""Claims about lab/: which runs a comparison makes, how they are compared, and what is said of them."""

import json
import re
import shlex
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from conftest import ended, given, wait_until, write_rows
from scipy.stats import ttest_rel

import fit
import forecast
import recipes
from lab import compare, drawing, forecasts, fp32_head, generate, statistics, tables, trl_race
from plumbing.settings import read_settings

ROOT = Path(__file__).parent.parent
QUICK = (
    "--data tiny --virtual exact --k 0 --steps 2 --prompts 4 --generations 4 --eval-prompts 4 --eval-every 2".split()
)
LOSS = """
def mine(logprobs, gen_logprobs, advantages, mask):
    return advantages[:, None] * logprobs.masked_fill(~mask, 0)
"""


def run(rates, seed=0, stderr=0.0, clipped=0.5, reason="finished", tokens=None):
    """A statistics.Run with an evaluation each 8 steps and 100 tokens."""
    steps = tuple(8 * n for n in range(len(rates)))
    tokens = tokens or tuple(100 * n for n in range(len(rates)))
    errors = (stderr,) * len(rates)
    return statistics.Run(seed, steps, tokens, tokens, tuple(rates), errors, clipped, 1.0, {}, reason)


def rise(A=0.8, C_mid=300.0, seed=0, shift=0.0, n=25, **more):
    """A run along Eq. 1 with B = 3, all its rates shifted, with a noise of 0.001 of its own."""
    C = 100.0 * np.arange(n)
    noise = 0.001 * np.random.default_rng(round(1e6 * (A + C_mid + shift)) + seed).normal(size=n)
    with np.errstate(divide="ignore"):
        return run(0.2 + shift + (A - 0.2) / (1 + (C_mid / C) ** 3) + noise, seed, **more)


# --- Statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rates, error, peak, never",
    [
        ([0.2, 0.5, 0.6, 0.6, 0.6, 0.57, 0.56], 0.0, 4, False),  # loses 0.6 - 0.57667 = 0.0233
        ([0.2, 0.5, 0.6, 0.6, 0.6, 0.59, 0.57], 0.0, None, False),  # loses 0.6 - 0.58667 = 0.0133
        ([0.2, 0.5, 0.6, 0.6, 0.6, 0.5, 0.4], 0.05, None, False),  # 0.1 is less than 3 errors, 3 * 0.05 * 0.816
        ([0.3, 0.3, 0.3, 0.1, 0.0, 0.0], 0.0, 2, True),
    ],
)
def test_a_run_collapses_if_means_of_three_evaluations_lose_more_than_noise_does(rates, error, peak, never):
    one = run(rates, stderr=error)
    assert (statistics.peak(one), statistics.never_learns(one)) == (peak, never)
    assert statistics.collapses(one) == (peak is not None)


def test_a_run_that_diverges_collapses_where_it_ends_and_its_end_is_its_last_quarter():
    assert statistics.peak(run([0.2, 0.3, 0.4], reason="no gradient of the last 5 steps was finite")) == 2
    fell = run([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.3, 0.1])
    assert (statistics.end(fell), statistics.rising(fell)) == pytest.approx((0.2, 0.2 - 0.65))  # (0.3 + 0.1) / 2


def test_of_two_settings_it_is_the_paired_t_interval():
    one, other = [0.5, 0.62, 0.58, 0.71], [0.48, 0.55, 0.57, 0.66]
    values = {(name, seed): value for name, own in (("a", one), ("b", other)) for seed, value in enumerate(own)}
    paired = ttest_rel(one, other)
    for of in (1, 3):  # three that hold together in 90 %
        interval = paired.confidence_interval(1 - 0.1 / of)
        found = statistics.difference(values, "a", "b", ["a", "b"], of=of)
        assert found[:3] == pytest.approx((np.mean(one) - np.mean(other), *interval))
    assert np.isnan(statistics.difference({("a", 0): 0.5, ("b", 0): 0.6}, "a", "b", "ab").low)  # a single seed


def test_a_setting_that_collapses_does_not_widen_the_intervals_of_others_and_has_one_of_its_own_pairs():
    noise = np.random.default_rng(0).normal(size=(3, 4)) * [[0.01], [0.01], [1.0]]
    values = {(name, seed): noise[at, seed] for at, name in enumerate(("a", "b", "wild")) for seed in range(4)}
    steady = statistics.difference(values, "b", "a", ["a", "b"])
    assert steady.high - steady.low < 0.1
    interval = ttest_rel(noise[2], noise[0]).confidence_interval(0.9)
    assert statistics.difference(values, "wild", "a", ["a", "b"])[1:3] == pytest.approx(tuple(interval))


def test_compute_to_a_common_pass_rate_is_read_where_both_are_half_way():
    groups = {
        name: [rise(C_mid=C_mid, seed=seed) for seed in range(3)] for name, C_mid in (("slow", 600), ("fast", 300))
    }
    [row] = statistics.compare(groups, "tokens")
    assert row.level == pytest.approx(0.5, abs=0.01)  # halfway from 0.2 to 0.8
    assert np.exp(row.compute.D) == pytest.approx(0.5, abs=0.02)  # 300 / 600
    assert row.A.D == pytest.approx(0.0, abs=0.02)


def test_runs_that_collapse_count_at_the_end_and_have_no_asymptote():
    fallen = [0.2, 0.3, 0.5, 0.6, 0.7, 0.7, 0.7, 0.7, 0.5, 0.3, 0.2, 0.2]
    groups = {
        "steady": [rise(n=12, seed=seed) for seed in range(3)],
        "mixed": [rise(n=12, seed=0), run(fallen, 1), run(fallen, 2)],
    }
    [row] = statistics.compare(groups, "tokens")
    ends = [statistics.end(one) for one in groups["mixed"]]
    assert row.end.D == pytest.approx(np.mean(ends) - np.mean([statistics.end(one) for one in groups["steady"]]))
    assert row.A is None and row.end.D < -0.3
    assert "2 of 3" in compare.settings_lines(groups)[2]


def test_there_is_no_verdict_where_a_clip_is_idle_or_half_of_the_seeds_give_the_same_run():
    one = [rise(seed=seed, clipped=0.0005) for seed in range(4)]
    other = [rise(seed=seed, shift=0.05, clipped=0.0005) for seed in range(4)]
    [row] = statistics.compare({"one": one, "other": other}, "tokens", clip_alone=["other"])
    assert "clips act on less than 0.1%" in row.why_not and "no verdict" in compare.answer(row, "one", 1)
    [row] = statistics.compare({"one": one, "other": other}, "tokens")  # they differ in something else too
    assert row.why_not == "" and "other ends higher than one: by 0.050" in compare.answer(row, "one", 1)
    for same, why in ((2, "2 of 4 seeds give the same run"), (1, "")):
        [row] = statistics.compare({"one": one, "other": [*one[:same], *other[same:]]}, "tokens")
        assert row.why_not.startswith(why) and bool(row.why_not) == bool(why)
    noisy = [[rise(seed=seed, shift=0.012 * n + 0.01 * ((seed + n) % 2)) for seed in range(4)] for n in range(2)]
    [row] = statistics.compare(dict(zip("ab", noisy)), "tokens")
    assert "these 4 seeds cannot tell" in compare.answer(row, "a", 1)


# --- Tables of settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", sorted(tables.TABLES))
def test_the_settings_of_a_table_are_runs_that_train_py_takes_with_the_staleness_that_its_name_says(
    table, monkeypatch, losses_as_before
):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("plumbing.settings.anchored", lambda name: name)
    for name, flags in tables.TABLES[table].items():
        args = compare.checked(compare.with_seed(flags.split(), 3), 3, Path("/none"))
        assert args.seed == 3 and args.steps // args.eval_every >= 10
        if found := re.search(r"-k(\d+)", table):
            assert args.k == int(found[1])
        if found := re.search(r"-x([\d.]+)", table):
            assert args.lr == pytest.approx(float(found[1]) * tables.LEARNING_RATE)
        if table in ("exact-1", "recipes"):  # PPO-off-policy: at most k - 1
            assert args.k - (args.off_policy == "ppo") == 1, name


def test_a_setting_is_left_out_of_scalerl_alone_and_all_of_a_table_are_different_runs():
    for table, own in tables.TABLES.items():
        assert len(set(own.values())) == len(own), table
    scalerl, other = (vars(read_settings(tables.TABLES["exact-1"][n].split())) for n in ("scalerl", "loo-no-filter"))
    assert {name for name in scalerl if scalerl[name] != other[name]} - {"asked"} == {"zero_variance_filter"}


def test_prompts_and_policies_that_a_run_names_are_made_once_and_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MADE", tmp_path)
    for name in ("TINY_SKILL_STEPS", "TINY_HABIT_STEPS"):
        monkeypatch.setattr(f"sft.{name}", 1)
    named = [f"{tmp_path}/longer.jsonl:3:tiny", f"{tmp_path}/tiny-24-seed1"]
    tables.make_inputs(["--data", *named, "elsewhere.jsonl"])
    rows = [json.loads(line) for line in (tmp_path / "longer.jsonl").open()]
    assert {len(re.findall(r"\d", row["prompt"])) for row in rows} == {6, 7}
    assert json.loads((tmp_path / "tiny-24-seed1" / "config.json").read_text())["hidden_size"] == 24
    for name in ("write_prompts", "make_policy"):
        monkeypatch.setattr(tables, name, None)
    tables.make_inputs(["--data", *named])  # they are there


def test_no_setting_of_a_table_takes_anything_from_a_preset(monkeypatch, losses_as_before):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("plumbing.settings.anchored", lambda name: name)
    flags = {flags for own in tables.TABLES.values() for flags in own.values()}
    now = {text: vars(read_settings(text.split())) for text in flags}
    other = dict.fromkeys(recipes.PRESETS["base"], 1) | {"k": 64, "interrupt_phrase": "so: </think>"}
    other |= {"length_control": "penalty", "interrupt_at": (1, 1)}
    for preset, (name, value) in product((recipes.PRESETS["base"], recipes.PRESETS["tiny"]), other.items()):
        monkeypatch.setitem(preset, name, value)
    unread = {"asked", "length_max", "length_cache", "interrupt_at", "interrupt_phrase", "default_new"}
    for text, before in now.items():
        after = vars(read_settings(text.split()))
        assert {name for name in before if before[name] != after[name]} <= unread, text


def test_the_kept_runs_are_those_of_the_tables_and_collapse_as_they_did():
    named = {flags for own in tables.TABLES.values() for flags in own.values()}
    assert {flags for flags, _ in tables.kept_runs()} <= named
    rates = [f"grid-k{k}-x{rate}" for k, rate in product(tables.STALENESS, tables.RATES)]
    runs = [one for table in rates for own in tables.kept_groups(table).values() for one in own]
    fallen = [one for one in runs if statistics.collapses(one)]
    assert len(runs) == 1008 and (len(fallen), sum(map(statistics.never_learns, fallen))) == (320, 161)


# --- The tool --------------------------------------------------------------------------------------------------------


def test_a_run_is_known_by_its_settings_seed_code_and_files_and_not_by_its_name(
    tmp_path, monkeypatch, losses_as_before
):
    file = tmp_path / "mine.py"
    file.write_text(LOSS)

    def key(*flags, seed=0, code="code"):
        return compare.key(compare.checked([*QUICK, *flags], seed, tmp_path), code)

    same = key()
    assert same == key("--loss", "cispo") == key("--checkpoint-every", "2")
    own = key("--loss", f"{file}:mine")
    others = [key("--k", "1"), key("--eps-max", "4"), key(seed=1), key(code="other"), own]
    file.write_text(LOSS + "# changed\n")
    assert len({same, *others, key("--loss", f"{file}:mine")}) == 7


def test_settings_that_differ_in_how_they_clip_alone_are_told_from_others():
    pairs = {
        ("--loss cispo", "--loss dapo"): True,
        ("--loss cispo", "--loss gspo"): False,  # its ratio is a sequence's
        ("--loss cispo", "--loss dapo --aggregation token"): False,
        ("--recipe baseline", "--recipe baseline --loss grpo"): True,
    }
    assert {pair: compare.clip_alone(*map(str.split, pair)) for pair in pairs} == pairs


@pytest.mark.parametrize(
    "words, said",
    [
        ("'a: --k 1'", "expected two or more settings"),
        ("'a: --k 1' 'a: --k 2'", "two settings have the same name"),
        ("exact-8 --lr 0.1", "got --lr, but the flags of a table are those of lab/tables.py"),
        ("'a: --k 1' 'b: --k 2' --data tiny", "add --virtual exact"),
        ("'a: --k 1' 'b: --k 2' --out x --resume --virtual exact", "got --resume, which the lab sets itself"),
        ("'a: --k 1' 'b: --eps-hihg 2' --data tiny --virtual exact", "unrecognized arguments: --eps-hihg 2"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_a_run_is_made(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(SystemExit) as end:
        compare.main(shlex.split(words))
    assert said in capsys.readouterr().err + str(end.value)
    assert not list(tmp_path.rglob("log.jsonl"))


def made_here(folder, flags):
    """compare.make in this process."""
    assert not ended(" ".join([*flags, "--out", str(folder)]))
    return SimpleNamespace(poll=lambda: 0)


def test_missing_runs_are_made_once_and_compared(tmp_path, monkeypatch, capsys, losses_as_before):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "make", made_here)
    Path("mine.py").write_text(LOSS, encoding="utf-8")
    words = ["cispo: --loss cispo", "mine: --loss mine.py:mine", "--seeds", "1", "--out", "runs", *QUICK]
    compare.main(words)
    said = capsys.readouterr().out
    assert "2 runs in runs: 2 to be made" in said and "2 of 2 runs" in said
    assert "minus cispo, paired by seed" in said and "What so small a task cannot tell" in said
    assert Path("runs/comparison.png").exists()
    compare.main(["a: --loss cispo", *words[1:]])  # by another name, nothing is made
    assert "2 runs in runs: 0 to be made" in capsys.readouterr().out


ENDLESS = """#!/bin/sh
for folder; do :; done  # the last argument
mkdir -p "$folder"
while sleep 0.02; do echo '{"kind": "step"}' >> "$folder/log.jsonl"; done
"""


# lab.compare as `python -m` runs it, with another program in place of Python for its runs
COMPARE = "import runpy, sys; sys.executable = sys.argv.pop(1); runpy.run_module('lab.compare', run_name='__main__')"


def test_a_stopped_comparison_ends_its_runs(tmp_path):
    python, out = tmp_path / "python", tmp_path / "out"
    python.write_text(ENDLESS)
    python.chmod(0o755)
    words = ["a: --k 0", "b: --k 1", "--seeds", "1", "--out", str(out), *QUICK]
    with subprocess.Popen([sys.executable, "-c", COMPARE, python, *words], cwd=ROOT) as tool:
        wait_until(lambda: list(out.glob("*/log.jsonl")), "no run has begun")
        tool.terminate()
    [log, *_] = out.glob("*/log.jsonl")
    assert tool.returncode == 143 and compare.ended(log.parent) is None
    size = log.stat().st_size
    time.sleep(0.2)
    assert log.stat().st_size == size  # no run is left at work


def test_a_table_is_compared_by_its_kept_runs(tmp_path, capsys):
    compare.main(["efficiency-balanced-k8", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "6 runs of efficiency-balanced-k8 are kept" in said
    assert re.search(r"PPO-off-policy +.* to 0\.\d+: x1\.[6-9]", said)  # of PipelineRL's device-hours


def test_the_figures_of_the_kept_runs_have_a_panel_a_rate_and_an_axis(tmp_path):
    def few(table):
        return {name: runs[:2] for name, runs in tables.kept_groups(table).items()}

    drawing.staleness(tmp_path / "staleness.png", few)
    drawing.axes(tmp_path / "axes.png", few)
    assert all(path.stat().st_size > 50_000 for path in tmp_path.glob("*.png"))


def test_the_race_of_generators_decodes_as_many_tokens_as_it_was_told_to(monkeypatch):
    monkeypatch.setattr(sys, "argv", f"generate --model {ROOT}/base/tiny --slots 3 --lengths 1 9 --rounds 1".split())
    args = generate.arguments()
    prompts = [[4, 5, 6], [7], [8, 9]] * 3
    lengths = [1, 9, 4] * 3
    assert generate.ours(args, 9)(prompts, lengths) == sum(lengths)


TRL = """
class GRPOConfig:
    def __init__(self, **settings):
        vars(self).update(settings)

class GRPOTrainer:
    def __init__(self, model, reward_funcs, args, train_dataset, processing_class, callbacks):
        vars(self).update(locals())

    def train(self):
        [watch] = self.callbacks
        state, control = type("State", (), {"global_step": 2}), type("Control", (), {"should_training_stop": False})
        watch.on_train_begin(self.args, state, control, model=self.model)
        row = self.train_dataset[0]
        ids = self.processing_class.encode("1</think>" + row["answer"], add_special_tokens=False)
        assert self.reward_funcs([ids, ids[:1]], [row["answer"]] * 2) == [1.0, -1.0]
        watch.on_step_end(self.args, state, control, model=self.model)
"""


def test_the_race_with_trl_runs_both_sides_and_draws_the_kept_results(tmp_path, monkeypatch, capsys):
    """The side of TRL with what stands for its trainer: all that it takes from this project is there."""
    (tmp_path / "trl.py").write_text(TRL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    small = dict(eval_every=2, eval_prompts=2, eval_generations=1, max_new_tokens=8, interrupt_at=(4, 6), slots=2)
    flags = vars(given("")) | small
    found = trl_race.theirs(sys.executable, flags, seed=0)
    assert [0 <= rate <= 1 for _, rate in found] == [True, True] and found[0][0] == 0.0
    started = []
    rows = [dict(kind="config", world=2), dict(kind="eval", gpu_hours=1 / 1800, pass_rate=0.25)]

    def run(words, check):
        started.append(words)
        out = Path(words[words.index("--out") + 1])
        out.mkdir()
        write_rows(out / "log.jsonl", rows)

    with patch.object(trl_race.subprocess, "run", run):
        assert trl_race.ours(flags, seed=3) == [(1.0, 0.25)]
    given(" ".join(map(str, started[0][2:])))  # flags that there are
    drawn = []
    monkeypatch.setattr(trl_race, "environment", lambda folder: "python")
    monkeypatch.setattr(trl_race, "draw", lambda curves, path: drawn.append(len(curves)))
    monkeypatch.setattr(sys, "argv", ["trl_race"])
    trl_race.main()
    assert drawn == [6] and "TRL / train.py: " in capsys.readouterr().out


def test_a19_a_model_of_ones_own_is_measured_on_its_own_prompts(tmp_path, monkeypatch, capsys):
    tiny = ROOT / "base" / "tiny"
    monkeypatch.setattr(fp32_head, "find_spec", lambda name: None)  # vLLM has tests of its own
    monkeypatch.setattr("sys.argv", f"fp32_head.py --model {tiny} --data tiny -o {tmp_path}".split())
    fp32_head.main()
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[2:5] for row in rows] == [["torch", *heads] for heads in product(("bf16", "fp32"), repeat=2)]
    assert (tmp_path / "a19_tiny.png").read_bytes().startswith(b"\x89PNG")


def test_the_protocol_by_hand():
    # Of 20 points the last five are forecast, and 70 % of 19 is 13.3 < 15: all cuts count. Of 10 points only 50 %.
    run = fit.Run(np.arange(20.0), np.linspace(0.1, 0.5, 20))
    assert [(case.cut, case.last) for case in forecasts.cases(run)] == [(0.3, 5), (0.5, 5), (0.7, 5)]
    short = fit.Run(np.arange(10.0), np.linspace(0.1, 0.5, 10))
    assert [case.cut for case in forecasts.cases(short)] == [0.5]  # 30 %: 3 points; 70 %: among the last five


def test_forecasts_of_real_runs_hold_and_beat_simpler_ways():
    curves = [run for _, run in forecasts.table(forecasts.DATA / "more")][::9]
    pairs = [(case, forecast.forecast_run(case.part())) for run in curves for case in forecasts.cases(run)]
    measured = np.array([case.end()[1] for case, _ in pairs])
    found = {}
    for name, way in forecasts.WAYS.items():
        found[name] = forecasts.scores(np.clip([way(*pair) for pair in pairs], 0, 1), measured)
    assert len(pairs) > 35 and found["ours"][0] >= 0.8
    assert found["ours"][2] < min(found[name][2] for name in ("as now", "random walk", "rival law"))
