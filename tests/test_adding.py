"""Claims: each open table takes a row by one edit, and the tests of the table hold that row: broken ones fail.

One good and one broken row of each kind: a loss, an off-policy rule, an aggregation, an embedded task. This file is a
plugin of pytest, too, which adds them before the other files are collected.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from conftest import ROOT, given, rollout, trained
from transformers import AutoTokenizer

import batches
import data
import loss
import pipeline
from plumbing import prompts as sources
from plumbing.settings import known_flags

TINY = "--virtual generators --data tiny --steps 2 --eval-every 2 --eval-prompts 4 --eval-generations 1"
KINDS = "loss", "rule", "aggregation", "task"


def clipped(logprobs, gen_logprobs, advantages, mask, *, eps_root):
    return loss.cap_acts(logprobs, gen_logprobs, advantages, mask, eps_max=eps_root**2)


def add_loss(name, weigh):
    """Add a loss whose tokens weigh as `weigh` says, up to eps_root."""

    def objective(logprobs, gen_logprobs, advantages, mask, *, eps_root):
        weight = weigh(loss.importance_ratio(logprobs, gen_logprobs, mask)).clamp(max=eps_root)
        return (weight * advantages[:, None] * logprobs.masked_fill(~mask, 0)).masked_fill(~mask, 0)

    objective.__name__ = name
    loss.register_loss(clipped=clipped, eps_root=loss.Clip(1.5, "a cap on the root of the ratio"))(objective)


def constant(lengths, prompt_index, denominators):
    """Dr. GRPO's: every token is divided by the same number, as if each completion had all tokens that it may have."""
    return torch.full_like(lengths, denominators.completions * denominators.max_new_tokens)


def longest_first(rng, length):
    """(text, answer): digits to put in falling order."""
    digits = "".join(str(int(10 * rng.random())) for _ in range(length))
    return f"={digits}=", "".join(sorted(digits, reverse=True))


def by_chance(rng, length):
    return f"={int(999 * rng.random())}=", str(int(2 * rng.random()))


def pytest_configure():
    """Add all rows."""
    add_loss("good_loss", lambda ratio: ratio.sqrt().detach())
    add_loss("broken_loss", lambda ratio: (ratio / ratio.mean()).detach())  # depends on the rest of the micro-batch
    # One batch fewer ahead than pipeline: at most k - 1 steps old.
    early = pipeline.OFF_POLICY["pipeline"]._replace(
        least_k=2, bound=lambda k: k - 1, requested=lambda version, k: version + k
    )
    one_more = early._replace(requested=lambda version, k: version + k + 1)
    pipeline.OFF_POLICY.update(good_rule=early, broken_rule=one_more)
    loss.AGGREGATIONS.update(good_aggregation=constant, broken_aggregation=lambda of, *_: torch.full_like(of, of.sum()))
    for name, example in (("good_task", longest_first), ("broken_task", by_chance)):
        data.EMBEDDED_TASKS[name] = data.EmbeddedTask(example, range(3, 9), 100, base="base/sorting")
        data.GRADERS[name] = "exact"  # as when the row stands in data.py
        sources.TASKS[name] = sources.TASKS["sorting"]


def test_the_tests_of_a_table_pass_for_a_good_row_and_fail_for_a_broken_one():
    files = [ROOT / "tests" / f"test_{name}.py" for name in ("loss", "pipeline", "data")]
    rows = " or ".join(f"{state}_{kind}" for state in ("good", "broken") for kind in KINDS)
    command = [sys.executable, "-m", "pytest", "-p", "test_adding", "-k", rows, "--tb=no", "-rA", *files]
    variables = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    said = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True).stdout
    found = re.findall(r"^([A-Z]+) tests/.*\[(\w+)_(\w+?)[-\]]", said, re.M)
    assert {("PASSED", "good", kind) for kind in KINDS} <= {*found}, said
    failed = {(state, kind) for outcome, state, kind in found if outcome == "FAILED"}
    assert failed == {("broken", kind) for kind in KINDS}, said


@pytest.fixture(autouse=True)
def added():
    tables = loss.LOSSES, loss.AGGREGATIONS, pipeline.OFF_POLICY, data.EMBEDDED_TASKS, data.GRADERS, sources.TASKS
    before = [dict(table) for table in tables]
    pytest_configure()
    yield
    for table, rows in zip(tables, before):
        table.clear()
        table.update(rows)


def test_help_names_every_row_and_the_clip_of_a_loss():
    said = " ".join(known_flags().format_help().split())
    for table in (pipeline.OFF_POLICY, loss.AGGREGATIONS):
        assert f"{{{','.join(table)}}}" in said
    assert "|good_loss|" in said and "--eps-root EPS_ROOT good_loss: a cap on the root of the ratio [1.5]" in said


def test_a_run_clips_by_the_flag_of_a_loss_and_logs_the_share():
    rows = trained(f"{TINY} --loss good_loss --eps-root 0.01")
    found = [row["clipped"] for row in rows if row.get("kept")]
    assert found and all(0.5 < share <= 1 for share in found)


def test_a_run_keeps_the_bound_of_a_rule():
    rows = trained(f"{TINY} --off-policy good_rule --k 2")
    assert [[*row["staleness"]] for row in rows if row["kind"] == "step"] == [["0"], ["1"]]


def test_no_run_starts_with_a_rule_that_breaks_its_bound_or_sends_no_weights_at_any_interval(capsys):
    with pytest.raises(SystemExit):
        given("--off-policy broken_rule --k 12 --steps 200 --eval-every 200")
    assert "--off-policy broken_rule --k 12: " in capsys.readouterr().err
    odd = pipeline.OFF_POLICY["good_rule"]._replace(broadcasts=lambda version, k: version % 2 == 1, bound=lambda k: k)
    pipeline.OFF_POLICY["odd"] = odd
    with pytest.raises(SystemExit):
        given("--off-policy odd --k 2")
    assert "give --eval-every 120" in capsys.readouterr().err  # at the end only


def test_dr_grpos_aggregation_divides_by_the_most_tokens_also_if_no_completion_has_as_many():
    groups = [[rollout(True, tokens=2), rollout(False, tokens=3)]]
    weighing = dict(zero_variance_filter=True, normalisation="none", max_new_tokens=7, token_budget=99)
    share = batches.divide(groups, **weighing, rank=0, trainers=1, device="cpu")
    mask = torch.tensor([[True, True, False], [True, True, True]])
    objective, index = torch.tensor([[1.0, 2.0, 0.0], [4.0, 5.0, 6.0]]), torch.tensor([0, 0])
    found = loss.aggregate(objective, mask, index, "good_aggregation", share.denominators)
    assert float(found) == pytest.approx(18 / 14)  # 18 / (2 completions x 7 tokens)


def test_a_run_hands_its_most_tokens_to_the_aggregation():
    """A literal 7 gives the same gradients; a limit that train.py forgot would give nan, and a silent 1 others."""

    def gradients(out):
        rows = trained(f"{TINY} --aggregation good_aggregation", out)
        return [row["gradient_norm"] for row in rows if row["kind"] == "step"]

    given_limit = gradients("a")
    assert any(given_limit)
    seven = {"good_aggregation": lambda lengths, index, whole: torch.full_like(lengths, 7 * whole.completions)}
    with patch.dict(loss.AGGREGATIONS, seven):
        assert given_limit == gradients("b")


def test_an_embedded_task_is_one_row():
    assert given("--data good_task").model == "base/sorting"
    tokens = AutoTokenizer.from_pretrained(ROOT / "base" / "sorting")
    assert len(sources.read_sources("good_task", tokens, budget=40, validation=8).train) == 100
