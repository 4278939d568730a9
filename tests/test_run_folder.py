"""Claims about plumbing/checkpoints.py: broken checkpoints and log lines, as a crash or a full disk leaves them."""

import json
import os
import resource
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp
from conftest import ended, given, trained
from started_runs import SMALL, refused
from transformers import PreTrainedModel

import train
from plumbing import checkpoints, foreign_logs
from plumbing import log as log_file
from plumbing.checkpoints import pick
from plumbing.log import best_checkpoint, finished_checkpoints, step_of
from plumbing.settings import restored

VIRTUAL = f"{SMALL} --virtual exact --k 0 --eval-every 2"


def names(out):
    return [folder.name for folder in finished_checkpoints(out)]


# --- Checkpoints -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a run of two steps, in virtual time, with checkpoint-2."""
    out = tmp_path_factory.mktemp("written")
    trained(f"{VIRTUAL} --steps 2", str(out))
    return out


@pytest.fixture
def two(written, tmp_path):
    """A copy of that run in which checkpoint-4 is the newest, a copy of checkpoint-2."""
    shutil.copytree(written, out := tmp_path / "run")
    shutil.copytree(out / "checkpoint-2", out / "checkpoint-4")
    return out


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


SHARD = "state/__0_0.distcp"
COUNTERS = "state/run.json"


@pytest.mark.parametrize("place, spoil, words", [
    ("model.safetensors", cut, "model.safetensors cannot be read: SafetensorError"),
    ("model.safetensors", Path.unlink, "model.safetensors is missing"),
    ("config.json", Path.unlink, "config.json is missing"),
    ("tokenizer.json", Path.unlink, "tokenizer.json is missing"),
    (SHARD, cut, f"{SHARD} has "),
    (SHARD, Path.unlink, f"{SHARD} is missing"),
    ("state/.metadata", cut, "state/.metadata cannot be read: "),
    (COUNTERS, cut, f"{COUNTERS} cannot be read: JSONDecodeError"),
])  # fmt: skip
def test_a_broken_newest_checkpoint_is_named_and_set_aside_and_resume_takes_the_whole_one_before(
    two, capsys, place, spoil, words
):
    assert given(f"--resume --out {two}").checkpoint == str(two / "checkpoint-4")
    for aside in ("checkpoint-4-broken1", "checkpoint-4-broken2"):  # again, when the run has come to step 4
        spoil(two / "checkpoint-4" / place)
        assert given(f"--resume --out {two}").checkpoint == str(two / "checkpoint-2")
        assert (two / "checkpoint-4").is_dir()  # until rank 0 has locked the log
        assert pick(two) == str(two / "checkpoint-2")
        assert capsys.readouterr().out.startswith(f"{two}/checkpoint-4 is broken: {words}")
        assert (two / aside).is_dir() and names(two) == ["checkpoint-2"]
        shutil.copytree(two / "checkpoint-2", two / "checkpoint-4")


def test_where_all_checkpoints_are_broken_nothing_starts_anew(two, capsys):
    for step in (2, 4):
        cut(two / f"checkpoint-{step}" / "model.safetensors")
    assert "found broken ones only: " in refused(capsys, f"--resume --out {two}")


def test_the_two_latest_checkpoints_stay_and_that_of_the_best_evaluation(monkeypatch):
    rates = {1: 0.9, 2: 0.4, 4: 0.9, 6: 0.95}
    count = train.evaluate.metrics

    def metrics(groups, *args):
        version = max(version for rollout in groups[0] for version in rollout.versions)
        return count(groups, *args) | {"pass_rate": rates.get(version, 0.2)}

    monkeypatch.setattr(train.evaluate, "metrics", metrics)
    for steps, kept, best in ((4, [1, 3, 4], 1), (6, [5, 6], 6)):
        trained(f"{SMALL} --virtual exact --k 0 --eval-every 1 --steps {steps} --resume")
        assert [step_of(folder) for folder in finished_checkpoints("run")] == kept
        counters = checkpoints.counters(f"run/checkpoint-{steps}")
        assert counters["best"] == {"version": best, "pass_rate": rates[best]}
        assert str(best_checkpoint("run")) == f"run/checkpoint-{best}"


def test_only_folders_named_as_checkpoints_are_taken_for_some(tmp_path):
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-10-copy", "checkpoint-best"):
        Path(tmp_path, name).mkdir()
    assert names(tmp_path) == ["checkpoint-9", "checkpoint-10"]


# --- While a checkpoint is written -----------------------------------------------------------------------------------


def test_a_checkpoint_gets_its_name_when_all_its_files_are_on_the_disk(monkeypatch):
    flushed = set()
    fsync, rename = os.fsync, Path.rename

    def note(descriptor):
        flushed.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def renamed(folder, target):
        assert {path.stat().st_ino for path in (folder, *folder.rglob("*"))} <= flushed
        return rename(folder, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", renamed)
    trained(f"{VIRTUAL} --steps 1")
    assert finished_checkpoints("run")


def full():
    """From here on files end after 100 bytes, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


def while_writing(out, owner, name, act):
    """Let act() happen just before a part of the second checkpoint is written."""
    write = getattr(owner, name)

    def late(*args, **settings):
        if (out / "checkpoint-2").exists():
            act()
        return write(*args, **settings)

    setattr(owner, name, late)


@pytest.mark.processes
@pytest.mark.parametrize("owner, name, fault", [
    (dcp.FileSystemWriter, "write_data", partial(signal.raise_signal, signal.SIGKILL)),
    (PreTrainedModel, "save_pretrained", full),
], ids=["killed at the trainer's state", "full disk at the weights"])  # fmt: skip
def test_a_run_that_fails_while_it_writes_a_checkpoint_goes_on_from_the_one_before(start, tmp_path, owner, name, fault):
    out = tmp_path / "run"
    run = start(1, f"{VIRTUAL} --steps 6", fault=partial(while_writing, out, owner, name, fault))
    assert any(run.end().values())
    assert names(out) == ["checkpoint-2"]
    assert ended(f"--resume --out {out}") == 0
    assert names(out)[-1] == "checkpoint-6" and not [*out.glob("*.tmp")]


# --- Lines of a log --------------------------------------------------------------------------------------------------

CONFIG = {"kind": "config", "flags": {"loss": "cispo", "lr": 0.5, "clips": {"eps_max": 4.0}}}
TORN = b'{"kind": "st'


@pytest.mark.parametrize("line", [TORN + b"\n", b"\x00" * 40 + b"\n", b'{"kind": ' + b"[" * 100_000 + b"\n"])
def test_a_broken_line_is_skipped_with_a_word_by_resume_and_by_the_fit(line):
    rows = [{"kind": "eval", "step": n, "gpu_hours": n, "pass_rate": 0.1} for n in range(9)]
    lines = [json.dumps(row).encode() + b"\n" for row in (CONFIG, *rows)]
    log = Path("log.jsonl")
    log.write_bytes(b"".join([*lines[:2], line, *lines[2:], TORN]))
    assert restored(log, set()) == {"loss": "cispo", "lr": 0.5, "eps_max": 4.0}
    assert log_file.read_rows(log)[1] == [3, 12]
    run = foreign_logs.read_run(log)
    assert list(run.compute) == list(range(9)) and run.notes[0].endswith(" no row: 3, 12")


@pytest.mark.processes
def test_a_run_goes_on_past_a_broken_checkpoint_and_a_torn_line_and_counts_what_was_lost(start):
    flags = f"{SMALL} --eval-every 4 --checkpoint-every 2"
    first = start(2, f"{flags} --steps 4").finish()
    (first.out / "checkpoint-4" / "state" / "run.json").unlink()
    with (first.out / "log.jsonl").open("ab") as log:
        log.write(TORN)
    second = start(2, f"{flags} --resume --steps 6", out=first.out).finish()
    steps, config = second.rows("step"), second.rows("config")[-1]
    assert second.log[-1]["reason"] == "finished" and [row["step"] for row in steps] == [1, 2, 3, 4, 3, 4, 5, 6]
    assert names(first.out) == ["checkpoint-4", "checkpoint-6"]
    # What was spent between the checkpoint, which was written between these two rows, and the end is named.
    at_2, at_3 = (config["gpu_hours"] - row["gpu_hours"] for row in steps[1:3])
    assert 0 < at_3 <= config["lost_gpu_hours"] <= at_2 and config["tokens"] == steps[3]["tokens"]
