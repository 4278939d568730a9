"""Claims about a run beside or after another: what a resumed run keeps, logs that vanish, variables left behind."""

import socket
import time
from pathlib import Path

import pytest
from conftest import launched, read_rows
from test_train import elsewhere, refused  # noqa: F401

import train
from plumbing.run import folder as run_folder
from plumbing.run import launch
from plumbing.setup.settings import EVALUATION, FIELDS, FIXED, START, read_settings

TINY = "--virtual exact --data tiny --k 0 --prompts 4 --generations 4 --eval-prompts 4 --out a".split()


def run(*flags):
    assert train.main(read_settings(flags)) == 0
    return read_rows("a/log.jsonl")


@pytest.mark.parametrize(
    "flags", ["--temperature 0.7", "--max-new-tokens 9", "--length-control none", "--interrupt-at 2 3"]
)
def test_what_evaluations_depend_on_cannot_change_on_resume(capsys, flags):
    run(*TINY, "--steps", "1", "--eval-every", "1")
    message = refused(capsys, "--resume", "--out", "a", *flags.split())
    assert message.startswith(f"train.py: error: --resume with {flags}: the run in a has ")
    assert message.endswith("start a new run from its weights: --model a/checkpoint-1")


SPEED = {"slots", "verifiers", "generator", "generations"}  # what --evaluate reads, and a run's evaluations do not


def test_whatever_an_evaluation_depends_on_is_fixed():
    assert SPEED == {
        name
        for name, one in FIELDS.items()
        if EVALUATION <= one.metadata["marks"] and not (FIXED | START) & one.metadata["marks"]
    }


def test_a_second_run_beside_the_first_is_refused_as_in_use(capsys):
    run(*TINY, "--steps", "1", "--eval-every", "1")
    with run_folder.lock_log("a"):
        assert refused(capsys, "--resume", "--out", "a") == "train.py: error: a is in use by another run"
    with run_folder.lock_log("a", alone=False), run_folder.lock_log("a", alone=False):  # many may look
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
        rows = run(*TINY, "--steps", "3", "--eval-every", "1")
    assert [(row["kind"], row["step"]) for row in rows[:3]] == [("config", 0), ("step", 2), ("eval", 2)]
    assert "a/log.jsonl was removed, moved or cut while the run writes it" in capsys.readouterr().out
    assert run("--resume", "--out", "a", "--steps", "4")[-1]["step"] == 4


LEFT = dict(RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2)  # variables of a torchrun


@pytest.mark.parametrize("flags", ["--evaluate base", "--loss cispo"])
def test_variables_that_a_launcher_has_left_behind_are_named_before_anything_is_loaded(monkeypatch, capsys, flags):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        launched(monkeypatch, **LEFT, MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE=True)
        launch.check_launcher()
    with pytest.raises(SystemExit):
        read_settings(flags.split())
    said = capsys.readouterr().err
    assert f"no launcher answers at 127.0.0.1:{port}" in said and "unset RANK" in said


@pytest.mark.parametrize("variables", [
    dict(RANK=1), dict(RANK="x", WORLD_SIZE=1), dict(RANK=0, WORLD_SIZE=2), dict(LOCAL_RANK=1),
], ids=str)  # fmt: skip
def test_variables_that_contradict_each_other_are_one_line(monkeypatch, capsys, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(SystemExit):
        read_settings(["--evaluate", "base"])
    said = capsys.readouterr().err
    assert ": expected " in said and "unset RANK" in said and said.count("\n") == 1


def test_a_rank_that_waits_long_for_the_others_says_so(monkeypatch, capsys):
    launched(monkeypatch, **LEFT)
    monkeypatch.setattr(launch, "WORD", 0.01)
    with launch.meeting():
        time.sleep(0.2)
    assert "rank 0 of 2 waits for the others" in capsys.readouterr().err
