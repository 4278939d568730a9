"""Claims about a run beside or after another: what a resumed run keeps, logs that vanish, variables left behind."""

import socket
from pathlib import Path

import pytest
from conftest import given, launched, trained
from test_train import elsewhere, refused  # noqa: F401

import train
from plumbing import devices
from plumbing import log as log_file
from plumbing.settings import EVALUATION, FIELDS, FIXED, START

TINY = "--virtual exact --data tiny --k 0 --prompts 4 --generations 4 --eval-prompts 4"


LEFT = dict(RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2, TORCHELASTIC_USE_AGENT_STORE=True)


# What --evaluate reads, and a run's evaluations do not.
SPEED = {"slots", "verifiers", "generator", "generations", "timeout"}


def test_whatever_an_evaluation_depends_on_is_fixed():
    assert SPEED == {
        name
        for name, one in FIELDS.items()
        if EVALUATION <= one.metadata["marks"] and not (FIXED | START) & one.metadata["marks"]
    }


def test_a_second_run_beside_the_first_is_refused_as_in_use(capsys):
    trained(f"{TINY} --steps 1 --eval-every 1", "a")
    with log_file.lock_log("a"):
        assert refused(capsys, "--resume --out a") == "train.py: error: a is in use by another run"
    with log_file.lock_log("a", alone=False), log_file.lock_log("a", alone=False):  # many may look
        pass


VANISH = {
    "removed": Path.unlink,
    "moved": lambda log: log.rename("elsewhere.jsonl"),
    "cut": lambda log: log.write_text(""),
}


@pytest.mark.parametrize("vanish", VANISH.values(), ids=VANISH)
def test_a_log_that_vanishes_is_named_and_begun_anew_so_that_the_run_can_be_resumed(vanish, monkeypatch, capsys):
    def update(self, plan, original=train.Trainer.update):
        if self.version == 1:
            vanish(Path("a/log.jsonl"))
        return original(self, plan)

    with monkeypatch.context() as patch:
        patch.setattr(train.Trainer, "update", update)
        rows = trained(f"{TINY} --steps 3 --eval-every 1", "a")
    assert [(row["kind"], row["step"]) for row in rows[:3]] == [("config", 0), ("step", 2), ("eval", 2)]
    assert "a/log.jsonl was removed, moved or cut while the run writes it" in capsys.readouterr().out
    assert trained("--resume --steps 4", "a")[-1]["step"] == 4


def test_a_launcher_that_answers_is_no_reason_to_end(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        launched(monkeypatch, **LEFT, MASTER_PORT=server.getsockname()[1])
        devices.check_launcher()


def test_ranks_without_torchrun_say_at_once_for_whom_they_wait(monkeypatch, capsys):
    launched(monkeypatch, WORLD_SIZE=2, RANK=1)
    given()
    said = capsys.readouterr().err
    assert "waits for the other ranks at 127.0.0.1:29500" in said and "unset RANK" in said


@pytest.mark.parametrize("flags", ["--evaluate base", "--loss cispo"])
@pytest.mark.parametrize("variables", [
    dict(RANK=1), dict(RANK="x", WORLD_SIZE=1), dict(RANK=0, WORLD_SIZE=2), dict(LOCAL_RANK=1),
    LEFT | dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=1),  # where nobody listens
], ids=str)  # fmt: skip
def test_variables_that_a_launcher_has_left_behind_are_one_line_before_anything_is_loaded(
    monkeypatch, capsys, variables, flags
):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(SystemExit):
        given(flags)
    said = capsys.readouterr().err
    assert ": expected " in said and "unset RANK" in said and said.count("\n") == 1
