"""Claims about lab/: which runs a comparison makes, how they are compared, and what is said of them."""

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from conftest import ended, given, wait_until, write_rows
from scipy.stats import ttest_rel

import fit
import forecast
from lab import compare, forecasts, fp32_head, generate, statistics, tables, trl_race
from plumbing.settings import read_settings

ROOT = Path(__file__).parent.parent
QUICK = (
    "--data tiny --virtual exact --k 0 --steps 2 --prompts 4 --generations 4 --eval-prompts 4 --eval-every 2".split()
)
LOSS = """
def mine(logprobs, gen_logprobs, advantages, mask):
    return advantages[:, None] * logprobs.masked_fill(~mask, 0)
"""


def run(rates, seed=0, stderr=0.0, reason="finished"):
    """A statistics.Run with an evaluation each 100 tokens."""
    tokens = tuple(100 * n for n in range(len(rates)))
    errors = (stderr,) * len(rates)
    return statistics.Run(seed, tokens, tokens, tokens, tuple(rates), errors, 0.5, 1.0, {}, reason)


def rise(C_mid=300.0, seed=0, shift=0.0, n=25):
    """A run along Eq. 1 from 0.2 to 0.8 with B = 3, all its rates shifted, with a noise of 0.001 of its own."""
    noise = 0.001 * np.random.default_rng(round(1e6 * (C_mid + shift)) + seed).normal(size=n)
    return run(fit.sigmoid(100.0 * np.arange(n), 0.8, 3, C_mid, 0.2) + shift + noise, seed)


# --- Statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rates, error, reason, peak",
    [
        ([0.2, 0.5, 0.6, 0.6, 0.6, 0.57, 0.56], 0.0, "finished", 4),  # loses 0.6 - 0.57667 = 0.0233
        ([0.2, 0.5, 0.6, 0.6, 0.6, 0.59, 0.57], 0.0, "finished", None),  # loses 0.6 - 0.58667 = 0.0133
        ([0.2, 0.5, 0.6, 0.6, 0.6, 0.5, 0.4], 0.05, "finished", None),  # 0.1 is less than 3 errors, 3 * 0.05 * 0.816
        ([0.2, 0.3, 0.4], 0.0, "no gradient of the last 5 steps was finite", 2),
    ],
)
def test_a_run_collapses_if_means_of_three_evaluations_lose_more_than_noise_does_or_if_it_diverges(
    rates, error, reason, peak
):
    assert statistics.peak(run(rates, stderr=error, reason=reason)) == peak


def test_of_two_settings_it_is_the_paired_t_interval():
    ends = {"a": [0.5, 0.62, 0.58, 0.71], "b": [0.48, 0.55, 0.57, 0.66]}
    values = {(name, seed): value for name, own in ends.items() for seed, value in enumerate(own)}
    for of in (1, 3):  # three that hold together in 90 %
        interval = ttest_rel(*ends.values()).confidence_interval(1 - 0.1 / of)
        assert statistics.difference(values, "a", "b", ["a", "b"], of)[1:3] == pytest.approx(tuple(interval))


def test_a_setting_that_collapses_does_not_widen_the_intervals_of_others_and_has_one_of_its_own_pairs():
    noise = np.random.default_rng(0).normal(size=(3, 4)) * [[0.01], [0.01], [1.0]]
    values = {(name, seed): noise[at, seed] for at, name in enumerate(("a", "b", "wild")) for seed in range(4)}
    steady = statistics.difference(values, "b", "a", ["a", "b"])
    assert steady.high - steady.low < 0.1
    interval = ttest_rel(noise[2], noise[0]).confidence_interval(0.9)
    assert statistics.difference(values, "wild", "a", ["a", "b"])[1:3] == pytest.approx(tuple(interval))


def test_compute_to_a_common_pass_rate_is_read_where_both_are_half_way():
    groups = {name: [rise(C_mid, seed) for seed in range(3)] for name, C_mid in (("slow", 600), ("fast", 300))}
    [row] = statistics.compare(groups, "tokens")
    assert row.level == pytest.approx(0.5, abs=0.01)  # halfway from 0.2 to 0.8
    assert np.exp(row.compute.D) == pytest.approx(0.5, abs=0.02)  # 300 / 600


@pytest.mark.parametrize(
    "other, words",
    [
        (lambda seed: rise(seed=seed, shift=0.05), "b ends higher than a: by 0.050"),
        (lambda seed: rise(seed=seed, shift=0.005 + 0.04 * (seed % 2)), "these 4 seeds cannot tell"),
        (lambda seed: rise(seed=seed, shift=0.05 * (seed > 1)), "no verdict, since 2 of 4 seeds give the same run"),
    ],
)
def test_an_answer_says_which_ends_higher_or_why_these_seeds_cannot_tell(other, words):
    [row] = statistics.compare({"a": [rise(seed=n) for n in range(4)], "b": [other(n) for n in range(4)]}, "tokens")
    assert words in compare.answer(row, "a")


# --- Tables of settings ----------------------------------------------------------------------------------------------


def test_the_settings_of_all_tables_are_runs_that_train_py_takes_as_the_name_of_their_table_says(
    monkeypatch, losses_as_before, tmp_path
):
    monkeypatch.chdir(ROOT)
    for table, own in tables.TABLES.items():
        assert len(set(own.values())) == len(own), table
        for flags in own.values():
            args = read_settings([*flags.replace("{seed}", "0").split(), "--out", str(tmp_path)])
            assert args.steps // args.eval_every >= 10
            assert args.k == int((re.findall(r"-k(\d+)", table) or [args.k])[0])


def test_every_kept_run_is_of_a_table_and_gives_the_ends_of_the_results():
    named = {flags for own in tables.TABLES.values() for flags in own.values()}
    assert {flags for flags, _ in tables.kept_runs()} <= named
    for line in re.findall(r"^\| (\w[\w ]+) \|(.* ×[124].*)\|$", (ROOT / "results" / "README.md").read_text(), re.M):
        for k, (end, rate) in zip(tables.STALENESS, re.findall(r"([\d.]+) ×(\d)", line[1])):
            runs = tables.kept_groups(f"grid-k{k}-x{rate}")[line[0].replace("No", "no")]
            assert float(end) == pytest.approx(np.mean(list(map(statistics.end, runs))), abs=0.005)


# --- The tool --------------------------------------------------------------------------------------------------------


def test_a_run_is_known_by_its_settings_seed_code_and_files_and_not_by_its_name(tmp_path, losses_as_before):
    file = tmp_path / "mine.py"
    file.write_text(LOSS)

    def key(*flags, seed=0, code="code"):
        return compare.key(compare.checked([*QUICK, *flags], seed, tmp_path), code)

    same = key()
    assert same == key("--loss", "cispo", "--checkpoint-every", "2")
    others = [key("--eps-max", "4"), key(seed=1), key(code="other"), key("--loss", f"{file}:mine")]
    file.write_text(LOSS + "# changed\n")
    assert len({same, *others, key("--loss", f"{file}:mine")}) == 6


@pytest.mark.parametrize(
    "words, message",
    [
        ("'a: --k 1'", "expected two or more settings"),
        ("'a: --k 1' 'a: --k 2'", "settings of different names"),
        ("exact-8 --lr 0.1", "got --lr, but the flags of a table are those of lab/tables.py"),
        ("results --seeds 4", "or results alone"),
        ("axis-model --seeds 4", "are made by lab/tables.py of commit"),
        ("'a: --k 1' 'b: --k 2' --data tiny", "add --virtual exact"),
        ("'a: --k 1' 'b: --k 2' --out x --resume --virtual exact", "got --resume, which the lab sets itself"),
        ("'a: --k 1' 'b: --eps-hihg 2' --data tiny --virtual exact", "unrecognized arguments: --eps-hihg 2"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_a_run_is_made(words, message, monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(SystemExit) as end:
        compare.main(shlex.split(words))
    assert message in capsys.readouterr().err + str(end.value)


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
    screen = capsys.readouterr().out
    assert "2 runs in runs: 2 to be made" in screen and "minus cispo, paired by seed" in screen
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


@pytest.mark.processes
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


def test_a_table_is_compared_and_drawn_by_its_kept_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "TABLES", {"efficiency-balanced-k8": tables.TABLES["efficiency-balanced-k8"]})
    monkeypatch.setattr(compare, "FIGURES", tmp_path)
    compare.main(["results"])
    assert re.search(r"PPO-off-policy +.* to 0\.\d+: x1\.[6-9]", capsys.readouterr().out)  # PipelineRL's device-hours
    assert len(list(tmp_path.glob("*.png"))) == 4


def test_the_race_of_generators_decodes_as_many_tokens_as_it_was_told_to(monkeypatch):
    monkeypatch.setattr(sys, "argv", f"generate --model {ROOT}/base/tiny --slots 3 --lengths 1 9 --rounds 1".split())
    prompts = [[4, 5, 6], [7], [8, 9]] * 3
    lengths = [1, 9, 4] * 3
    assert generate.ours(generate.arguments(), 9)(prompts, lengths) == sum(lengths)


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


@pytest.mark.processes
def test_the_race_with_trl_runs_both_sides_and_tells_the_kept_results(tmp_path, monkeypatch, capsys):
    """The side of TRL with what stands for its trainer: all that it takes from this project is there."""
    (tmp_path / "trl.py").write_text(TRL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    small = dict(eval_every=2, eval_prompts=2, eval_generations=1, max_new_tokens=8, interrupt_at=(4, 6), slots=2)
    flags = vars(given("")) | small
    assert [seconds > 0 for seconds, _ in trl_race.theirs(sys.executable, flags, seed=0)] == [False, True]
    rows = [dict(kind="config", world=2), dict(kind="eval", gpu_hours=1 / 1800, pass_rate=0.25)]

    def run(words, check):
        given(" ".join(map(str, words[2:])))  # flags that there are
        out = Path(words[words.index("--out") + 1])
        out.mkdir()
        write_rows(out / "log.jsonl", rows)

    with patch.object(trl_race.subprocess, "run", run):
        assert trl_race.ours(flags, seed=3) == [(1.0, 0.25)]
    monkeypatch.setattr(trl_race, "FIGURES", tmp_path)
    monkeypatch.setattr(sys, "argv", ["trl_race"])
    trl_race.main()
    assert "TRL / train.py: 3.12 +- 0.27" in capsys.readouterr().out


def test_a19_a_model_of_ones_own_is_measured_on_its_own_prompts(tmp_path, monkeypatch, capsys):
    tiny = ROOT / "base" / "tiny"
    monkeypatch.setattr(fp32_head, "find_spec", lambda name: None)  # vLLM has tests of its own
    monkeypatch.setattr("sys.argv", f"fp32_head.py --model {tiny} --data tiny -o {tmp_path}".split())
    fp32_head.main()
    assert capsys.readouterr().out.count("torch") == 4  # pairs of heads
    assert (tmp_path / "a19_tiny.png").exists()


def test_forecasts_of_real_runs_hold_and_beat_simpler_ways():
    curves = [run for _, run in forecasts.table(forecasts.DATA / "more")][::9]
    pairs = [(case, forecast.forecast_run(case.part())) for run in curves for case in forecasts.cases(run)]
    measured = np.array([case.end()[1] for case, _ in pairs])
    scores = {
        name: forecasts.scores(np.clip([way(*pair) for pair in pairs], 0, 1), measured)
        for name, way in forecasts.WAYS.items()
    }
    assert len(pairs) > 35 and scores["ours"][0] >= 0.8
    assert scores["ours"][2] < min(scores[name][2] for name in ("random walk", "rival law"))
