"""Claims about plumbing/track.py: a tracker gets the log's numbers, in its local store; a run needs none."""

import sys
from types import SimpleNamespace

import pytest

from plumbing import track


def test_a_tracker_that_is_not_installed_is_named_with_what_to_type(monkeypatch):
    monkeypatch.setattr(track, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="--track wandb: .* type: pip install wandb"):
        track.check("wandb")


def tracked(name, out):
    """Show a tracker the log of two steps and an evaluation."""
    observe = track.observer(name, out)
    observe({"kind": "config", "step": 0, "flags": {"lr": 0.1}})
    observe({"kind": "step", "step": 1, "pass_rate": 0.5, "prompts": [1, 2]})
    observe({"kind": "step", "step": 2, "pass_rate": 0.75, "prompts": [1, 2]})
    observe({"kind": "eval", "step": 2, "pass_rate": 0.625})
    observe({"kind": "fit", "step": 2, "A": 0.5})
    observe({"kind": "end", "step": 2, "reason": "finished"})


def test_steps_and_evaluations_are_sent_with_the_optimizer_step_and_nothing_else(tmp_path, monkeypatch):
    sent = []
    module = SimpleNamespace(
        init=lambda **settings: sent.append(settings),
        log=lambda numbers, step: sent.append((step, numbers)),
        finish=lambda: sent.append("finish"),
    )
    monkeypatch.setitem(sys.modules, "wandb", module)
    tracked("wandb", tmp_path / "a-run")
    first, *steps, last = sent
    assert first == {"project": "scalerl", "name": "a-run", "config": {"lr": 0.1}} and last == "finish"
    assert [(step, sorted(found)[0].partition("/")[0]) for step, found in steps] == [
        (1, "step"),
        (2, "step"),
        (2, "eval"),
    ]
    assert steps[1][1]["step/pass_rate"] == 0.75 and "step/prompts" not in steps[1][1]
