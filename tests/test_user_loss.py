"""Claims about a loss of one's own (--loss FILE.py:FUNCTION)."""

from pathlib import Path

import pytest
from conftest import given, trained
from started_runs import refused

import loss

pytestmark = pytest.mark.usefixtures("losses_as_before")

CISPO = """
def mine(logprobs, gen_logprobs, advantages, mask, eps_max=5.0):
    ratio = (logprobs - gen_logprobs).masked_fill(~mask, 0).exp()
    per_token = ratio.clamp(max=eps_max).detach() * advantages[:, None] * logprobs.masked_fill(~mask, 0)
    return per_token.masked_fill(~mask, 0)
"""
TINY = "--virtual exact --data tiny --k 0 --steps 2 --prompts 4 --generations 4 --eval-prompts 4 --eval-every 2"


def test_a_function_that_computes_cispo_trains_as_cispo_does_and_is_named_again_on_resume(capsys):
    Path("losses.py").write_text(CISPO, encoding="utf-8")
    names = {"a": "cispo", "b": "losses.py:mine"}
    reference, mine = (trained(f"{TINY} --loss {name}", out) for out, name in names.items())
    flags = mine[0]["flags"]
    assert flags["loss"] == f"{Path.cwd()}/losses.py:mine" and flags["clips"] == {}
    assert [row["kind"] for row in mine] == [row["kind"] for row in reference]
    for theirs, ours in zip(reference, mine):
        assert ours.get("clipped") is None  # nobody says where its bound acts
        machines = {"seconds"} if ours["kind"] == "end" else set()
        for name in ours.keys() - {"flags", "clipped", "own_code"} - machines:
            assert ours[name] == theirs[name], name
    del loss.LOSSES[flags["loss"]]  # as in another process
    assert "log.jsonl names code" in refused(capsys, "--resume --out b") and flags["loss"] not in loss.LOSSES
    resumed = trained("--resume --steps 3 --loss losses.py:mine", "b")
    assert resumed[len(mine)]["flags"]["loss"] == flags["loss"] and resumed[-1]["step"] == 3
    Path("losses.py").write_text(f"{CISPO}# changed\n", encoding="utf-8")
    assert "files that have changed since" in refused(capsys, "--resume --steps 4 --loss losses.py:mine --out b")


REFUSED = {
    "return logprobs.sum(-1)": "in a tensor of the shape of mask, (B, T); got shape (2,)",
    "return 3.0": "got float",
    "advantages -= advantages.mean(); return logprobs * 2": "expected its arguments unchanged",
    "return logprobs.log()": "expected finite values where mask is True, got [nan, ",
    "return logprobs.detach()": "expected a value that depends on logprobs, got one without a gradient",
    "return logprobs / nothing": "raised NameError: name 'nothing' is not defined (losses.py, line 2)",
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_cannot_be_a_loss_is_one_line(capsys, body):
    Path("losses.py").write_text(f"def f(logprobs, gen_logprobs, advantages, mask):\n    {body}\n", encoding="utf-8")
    message = refused(capsys, "--loss losses.py:f")
    assert f"--loss {Path.cwd()}/losses.py:f" in message and REFUSED[body] in message


def test_other_parameters_are_one_line(capsys):
    """Files and functions that are not there: data/own_refused.jsonl."""
    Path("losses.py").write_text("def f(logprobs, old): pass\n", encoding="utf-8")
    expected = (
        "expected a function of (logprobs, gen_logprobs, advantages, mask), or some of these names, got f(logprobs, "
    )
    assert expected in refused(capsys, "--loss losses.py:f")
    Path("losses.py").write_text(
        "def f(*, advantages, logprobs): return logprobs * advantages[:, None]", encoding="utf-8"
    )
    assert given("--loss losses.py:f").loss.endswith("losses.py:f")
