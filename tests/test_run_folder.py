"""Claims about plumbing/checkpoints.py: broken checkpoints and log lines, as a crash or a full disk leaves them."""

import json
import os
import pickle
import re
import resource
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp
from conftest import ended, given, trained, write_rows
from runs import SMALL, refused
from transformers import PreTrainedModel

import fit
import train
from plumbing import checkpoints, curves, foreign_logs
from plumbing import log as log_file
from plumbing.checkpoints import pick
from plumbing.log import best_checkpoint, finished_checkpoints, step_of
from plumbing.processes import Processes
from plumbing.settings import restored

# --- Checkpoints -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a run of two steps, in virtual time, with checkpoint-2."""
    out = tmp_path_factory.mktemp("written")
    trained(f"{SMALL} --virtual exact --k 0 --steps 2 --eval-every 2", str(out))
    return out


@pytest.fixture
def two(written, tmp_path):
    """A copy of that run in which checkpoint-4 is the newest, a copy of checkpoint-2."""
    shutil.copytree(written, out := tmp_path / "run")
    shutil.copytree(out / "checkpoint-2", out / "checkpoint-4")
    return out


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


SHARD = "state/__0_0.distcp"
COUNTERS = "state/run.json"
SPOILT = {  # what of checkpoint-4, what is done to it, what is said
    "weights cut": ("model.safetensors", cut, "model.safetensors cannot be read: SafetensorError"),
    "state cut": (SHARD, cut, f"{SHARD} has "),
    "state missing": (SHARD, Path.unlink, f"{SHARD} is missing"),
    "metadata cut": ("state/.metadata", cut, "state/.metadata cannot be read: "),
    "counters cut": (COUNTERS, cut, f"{COUNTERS} cannot be read: JSONDecodeError"),
    "counters of nothing": (COUNTERS, lambda path: path.write_text("{}"), f"{COUNTERS} cannot be read: KeyError"),
    "empty": (".", empty, f"{COUNTERS} is missing"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_broken_newest_checkpoint_is_named_and_set_aside_and_resume_takes_the_whole_one_before(two, capsys, case):
    assert given(f"--resume --out {two}").checkpoint == str(two / "checkpoint-4")
    place, spoil, words = SPOILT[case]
    for aside in ("checkpoint-4-broken1", "checkpoint-4-broken2"):  # again, when the run has come to step 4
        spoil(two / "checkpoint-4" / place)
        assert given(f"--resume --out {two}").checkpoint == str(two / "checkpoint-2")
        assert (two / "checkpoint-4").is_dir()  # until rank 0 has locked the log
        assert pick(two) == str(two / "checkpoint-2")
        line = capsys.readouterr().out
        assert line.startswith(f"{two}/checkpoint-4 is broken: {words}") and f"it is {aside} now" in line
        assert (two / aside).is_dir() and [folder.name for folder in finished_checkpoints(two)] == ["checkpoint-2"]
        shutil.copytree(two / "checkpoint-2", two / "checkpoint-4")


def test_where_all_checkpoints_are_broken_nothing_starts_anew(two, capsys):
    for step in (2, 4):
        cut(two / f"checkpoint-{step}" / "model.safetensors")
    message = refused(capsys, f"--resume --out {two}")
    assert (
        "found broken ones only: " in message and "checkpoint-2: model" in message and "checkpoint-4: model" in message
    )


def test_a_file_that_cannot_be_opened_ends_the_start_and_moves_nothing(two, capsys):
    counters = two / "checkpoint-4" / COUNTERS
    counters.unlink()
    counters.symlink_to(counters)  # as good as a missing permission, which root does not notice
    assert str(counters) in refused(capsys, f"--resume --out {two}")
    assert [folder.name for folder in finished_checkpoints(two)] == ["checkpoint-2", "checkpoint-4"]


def test_what_fails_while_a_checkpoint_is_loaded_ends_the_start_and_moves_nothing(two, capsys):
    metadata = two / "checkpoint-4" / "state" / ".metadata"
    state = pickle.loads(metadata.read_bytes())
    tensor = next(name for name in state.state_dict_metadata if name.endswith("norm.weight"))
    del state.state_dict_metadata[tensor]
    metadata.write_bytes(pickle.dumps(state))
    assert ended(f"--resume --out {two} --steps 6") == 1
    message = capsys.readouterr().err
    assert f"{two}/checkpoint-4/state cannot be read: Missing key" in message and tensor in message
    assert [folder.name for folder in finished_checkpoints(two)] == ["checkpoint-2", "checkpoint-4"]


def test_the_two_latest_checkpoints_stay_and_that_of_the_best_evaluation_which_a_fall_names(monkeypatch, capsys):
    rates = {2: 0.9, 4: 0.4, 8: 0.9, 12: 0.95}
    count = train.evaluate.metrics

    def metrics(groups, *args):
        at = {version for rollout in groups[0] for version in rollout.versions}
        return count(groups, *args) | {"pass_rate": rates.get(max(at), 0.2)}

    monkeypatch.setattr(train.evaluate, "metrics", metrics)
    flags = f"{SMALL} --virtual exact --k 0 --eval-every 2 --steps"
    for steps, kept, best in ((8, [2, 6, 8], 2), (10, [2, 8, 10], 2), (12, [10, 12], 12)):
        trained(f"{flags} {steps} --resume")
        assert [step_of(folder) for folder in finished_checkpoints("run")] == kept
        counters = checkpoints.counters(f"run/checkpoint-{steps}")
        assert counters["best"] == {"version": best, "pass_rate": rates[best]}
        assert str(best_checkpoint("run")) == f"run/checkpoint-{best}"
    best = re.findall("with a checkpoint the best is that of run/checkpoint-(.*)", capsys.readouterr().out)
    assert best == ["2", "2", "12"]
    rows = [dict(kind="eval", step=n, gpu_hours=n, pass_rate=0.1 * min(n, 14 - n)) for n in range(12)]
    write_rows("run/log.jsonl", [CONFIG, *rows])
    _, lines = curves.report(Path("run/log.jsonl"), Path("a.png"))
    assert "The points fall after a peak" in "".join(lines)
    assert "The best evaluation was that of run/checkpoint-12." in "".join(lines)


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
    trained(f"{SMALL} --virtual exact --k 0 --steps 1 --eval-every 1")
    assert finished_checkpoints("run")


def full():
    """From here on files end after 100 bytes, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


FAULTS = {"kill -9": partial(signal.raise_signal, signal.SIGKILL), "full disk": full}
WRITERS = {  # what writes each part
    "counters": (Path, "write_text"),
    "weights": (PreTrainedModel, "save_pretrained"),
    "trainer state": (dcp.FileSystemWriter, "write_data"),
}


def while_writing(out, owner, name, act):
    """Let act() happen just before a part of the second checkpoint is written."""
    write = getattr(owner, name)

    def late(*args, **settings):
        if (out / "checkpoint-2").exists():
            act()
        return write(*args, **settings)

    setattr(owner, name, late)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("part", WRITERS)
def test_a_run_that_fails_while_it_writes_a_checkpoint_goes_on_from_the_one_before(
    start, capsys, tmp_path, part, fault
):
    out = tmp_path / "run"
    flags = f"{SMALL} --virtual exact --k 0 --steps 6 --eval-every 2"
    run = start(1, flags, fault=partial(while_writing, out, *WRITERS[part], FAULTS[fault]))
    assert any(run.end().values())
    assert [folder.name for folder in finished_checkpoints(out)] == ["checkpoint-2"]
    assert ended(f"--resume --out {out}") == 0
    assert f"--resume: goes on from {out}/checkpoint-2" in capsys.readouterr().out
    assert [folder.name for folder in finished_checkpoints(out)][-1] == "checkpoint-6" and not [*out.glob("*.tmp")]


# --- Lines of a log --------------------------------------------------------------------------------------------------

CONFIG = {"kind": "config", "flags": {"loss": "cispo", "lr": 0.5, "clips": {"eps_max": 4.0}}}
TORN = b'{"kind": "st'
LINES = {
    "torn": TORN + b"\n",
    "binary": b"\x00" * 40 + b"\n",
    "not UTF-8": b'{"kind": "\xff"}\n',
    "deep": b'{"kind": ' + b"[" * 100_000 + b"\n",
    "at the end": b"",
}


def log_with(folder, line):
    """A log whose third line is this one and whose last one is torn."""
    folder.mkdir(exist_ok=True)
    rows = [{"kind": "eval", "step": n, "gpu_hours": n, "pass_rate": 0.1} for n in range(9)]
    lines = [json.dumps(row).encode() + b"\n" for row in (CONFIG, *rows)]
    (folder / "log.jsonl").write_bytes(b"".join([*lines[:2], line, *lines[2:], TORN]))
    return folder / "log.jsonl"


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_broken_line_is_skipped_with_a_word_by_resume_and_by_the_fit(tmp_path, line):
    log = log_with(tmp_path, line)
    assert restored(log, set()) == {"loss": "cispo", "lr": 0.5, "eps_max": 4.0}
    assert log_file.read_rows(log)[1] == ([3, 12] if line else [11])
    run = foreign_logs.read_run(log)
    assert list(run.compute) == list(range(9))
    bad = "3, 12" if line else "11"
    if line == LINES["not UTF-8"]:  # the fit takes such bytes for those of Windows
        bad = "12"
    assert run.notes[0].startswith("left out ") and run.notes[0].endswith(f" no row: {bad}")


@pytest.mark.parametrize(
    "text", [TORN, b'{"kind": "config", "flags": 3}', b'{"kind": "config", "flags": {"clips": 1}}']
)
def test_a_log_without_the_flags_of_its_start_says_so(tmp_path, capsys, text):
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "log.jsonl").write_bytes(text)
    assert "says with which flags" in refused(capsys, f"--resume --out {tmp_path}")
    with pytest.raises(fit.BadInput):
        foreign_logs.read_run(tmp_path / "log.jsonl")


# --- A whole run -----------------------------------------------------------------------------------------------------


def test_only_folders_named_as_checkpoints_are_taken_for_some(tmp_path):
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-10-copy", "checkpoint-best"):
        Path(tmp_path, name).mkdir()
    assert [folder.name for folder in finished_checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10"]


@pytest.mark.processes
def test_a_run_goes_on_past_a_broken_checkpoint_and_a_torn_line_and_counts_what_was_lost(start):
    flags = f"{SMALL} --eval-every 4 --checkpoint-every 2"
    first = start(2, f"{flags} --steps 4").finish()
    (first.out / "checkpoint-4" / "state" / "run.json").unlink()
    with (first.out / "log.jsonl").open("ab") as log:
        log.write(TORN)
    second = start(2, f"{flags} --resume --steps 6", out=first.out).finish()
    assert f"{first.out}/checkpoint-4 is broken: state/run.json is missing" in second.text
    steps, config = second.rows("step"), second.rows("config")[-1]
    assert second.log[-1]["reason"] == "finished" and [row["step"] for row in steps] == [1, 2, 3, 4, 3, 4, 5, 6]
    assert [folder.name for folder in finished_checkpoints(first.out)] == ["checkpoint-4", "checkpoint-6"]
    # What was spent between the checkpoint of step 2 and the end of the first run stays in C, and is named.
    assert steps[3]["gpu_hours"] <= config["gpu_hours"] and config["tokens"] == steps[3]["tokens"]
    spent = checkpoints.counters(first.out / "checkpoint-6")["totals"]["lost_gpu_hours"]
    at_2, at_3 = (config["gpu_hours"] - row["gpu_hours"] for row in steps[1:3])
    assert 0 < at_3 <= spent <= at_2  # the checkpoint was written between these two rows


def stopped_early():
    """Let a signal reach rank 0 before the ranks have agreed on where to start."""
    agree = Processes.agree

    def late(processes, args):
        processes.heartbeat.stopped = "interrupted: early" if processes.rank == 0 else None
        return agree(processes, args)

    Processes.agree = late


@pytest.mark.processes
def test_a_signal_before_the_ranks_have_agreed_ends_the_run_in_order_and_blames_no_folder(start):
    run = start(2, f"{SMALL} --steps 9 --eval-every 9", fault=stopped_early).finish()
    assert "is not the folder" not in run.text and "Traceback" not in run.text
    assert not list(run.out.glob(".start-*"))
