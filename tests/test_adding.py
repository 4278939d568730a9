"""Claims: each open table takes a row by one edit: a loss, an off-policy rule, an aggregation.

The tests of the tables run over all rows: test_loss.py, test_pipeline.py.
"""

from unittest.mock import patch

import pytest
import torch
from conftest import given, trained

import loss
import pipeline

TINY = "--virtual generators --data tiny --steps 2 --eval-every 2 --eval-prompts 4 --eval-generations 1"


def objective(logprobs, gen_logprobs, advantages, mask, *, eps_root):
    weight = loss.importance_ratio(logprobs, gen_logprobs, mask).sqrt().clamp(max=eps_root).detach()
    return (weight * advantages[:, None] * logprobs.masked_fill(~mask, 0)).masked_fill(~mask, 0)


def clipped(logprobs, gen_logprobs, advantages, mask, *, eps_root):
    return loss.cap_acts(logprobs, gen_logprobs, advantages, mask, eps_max=eps_root**2)


def constant(lengths, prompt_index, denominators):
    """Dr. GRPO's: every token is divided by the same number, as if each completion had all tokens that it may have."""
    return torch.full_like(lengths, denominators.completions * denominators.max_new_tokens)


# One batch fewer ahead than pipeline: at most k - 1 steps old.
RULE = pipeline.OFF_POLICY["pipeline"]._replace(
    least_k=2, bound=lambda k: k - 1, requested=lambda version, k: version + k
)
ROWS = {
    "new_rule": (pipeline.OFF_POLICY, RULE),
    "broken_rule": (pipeline.OFF_POLICY, RULE._replace(requested=lambda version, k: version + k + 1)),
    "odd_rule": (pipeline.OFF_POLICY, RULE._replace(broadcasts=lambda version, k: version % 2 == 1, bound=lambda k: k)),
    "new_aggregation": (loss.AGGREGATIONS, constant),
}


@pytest.fixture(autouse=True)
def added(monkeypatch, losses_as_before):
    for name, (table, row) in ROWS.items():
        monkeypatch.setitem(table, name, row)
    objective.__name__ = "new_loss"
    loss.register_loss(clipped=clipped, eps_root=loss.Clip(1.5, "a cap on the root of the ratio"))(objective)


def test_a_run_clips_by_the_flag_of_a_loss_and_logs_the_share():
    rows = trained(f"{TINY} --loss new_loss --eps-root 0.01")
    found = [row["clipped"] for row in rows if row.get("kept")]
    assert found and all(0.5 < share <= 1 for share in found)


def test_a_run_keeps_the_bound_of_a_rule():
    rows = trained(f"{TINY} --off-policy new_rule --k 2")
    assert [[*row["staleness"]] for row in rows if row["kind"] == "step"] == [["0"], ["1"]]


def test_no_run_starts_with_a_rule_that_breaks_its_bound_or_sends_no_weights_at_any_interval(capsys):
    with pytest.raises(SystemExit):
        given("--off-policy broken_rule --k 12 --steps 200 --eval-every 200")
    assert "--off-policy broken_rule --k 12: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        given("--off-policy odd_rule --k 2")
    assert "give --eval-every 120" in capsys.readouterr().err  # at the end only


def test_a_run_hands_its_most_tokens_to_the_aggregation():
    """A literal 7 gives the same gradients; a forgotten one ends the run, and a silent 1 gives others."""

    def gradients(out):
        rows = trained(f"{TINY} --aggregation new_aggregation", out)
        return [row["gradient_norm"] for row in rows if row["kind"] == "step"]

    given_limit = gradients("a")
    assert any(given_limit)
    seven = {"new_aggregation": lambda lengths, index, whole: torch.full_like(lengths, 7 * whole.completions)}
    with patch.dict(loss.AGGREGATIONS, seven):
        assert given_limit == gradients("b")
