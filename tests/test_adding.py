"""Claims: a loss and an off-policy rule are each added in one place, and the command line, a run and the log follow."""

import pytest
import torch
from conftest import read_rows
from test_train import elsewhere  # noqa: F401

import loss
import pipeline
import train
from plumbing.setup.settings import known_flags, read_settings

pytestmark = pytest.mark.usefixtures("losses_as_before")

TINY = "--virtual generators --data tiny --steps 2 --eval-every 2 --eval-prompts 4 --eval-generations 1".split()


def steps(*flags):
    """The rows of a run's optimizer steps."""
    assert train.main(read_settings([*TINY, *flags, "--out", "run"])) == 0
    return read_rows("run/log.jsonl", "step")


def test_a_loss_added_under_the_decorator_has_its_name_and_clip_flag_in_the_help_and_its_clipped_share_in_the_log():
    def acts(logprobs, gen_logprobs, advantages, mask, *, eps_half):
        return mask & (torch.arange(mask.shape[1]) % 2 == 0)

    @loss.loss(clipped=acts, eps_half=loss.Clip(0.25, "a made-up width"))
    def halved(logprobs, gen_logprobs, advantages, mask, *, eps_half):
        return torch.where(mask, eps_half * advantages[:, None] * logprobs, 0.0)

    text = " ".join(known_flags().format_help().split())
    assert "|halved|" in text and "--eps-half EPS_HALF halved: a made-up width [0.25]" in text
    assert read_settings(["--loss", "halved", "--eps-half", "0.5"]).clips == {"eps_half": 0.5}
    found = [row["clipped"] for row in steps("--loss", "halved") if row["kept"]]
    assert found and all(0.4 < share < 0.7 for share in found)  # every second token


def test_a_rule_added_to_the_table_is_a_choice_with_its_bound(monkeypatch):
    rule = pipeline.Rule(
        least_k=2, batches=lambda version, k: version + k, publishes=lambda version, k: True, alternates=False
    )
    monkeypatch.setitem(pipeline.OFF_POLICY, "early", rule)
    assert "{pipeline,ppo,early}" in known_flags().format_help()
    found = steps("--off-policy", "early", "--k", "2")  # one batch fewer ahead than pipeline: at most k - 1 steps old
    assert len(found) == 2 and max(int(age) for row in found for age in row["staleness"]) == 1
