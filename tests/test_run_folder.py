"""Claims about plumbing/checkpoints.py: broken checkpoints and log lines, as a crash or a full disk leaves them."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import given, trained
from test_faults import SMALL
from test_train import elsewhere, refused, start  # noqa: F401

import fit
from plumbing import checkpoints, foreign_logs
from plumbing import log as log_file
from plumbing.checkpoints import pick
from plumbing.log import append, finished_checkpoints
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


SHARD = "state/__0_0.distcp"


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


SPOILT = {  # what of checkpoint-4, what is done to it, what is said; old: of earlier versions, without contents.json
    "weights cut": ("model.safetensors", cut, "model.safetensors has "),
    "state missing": (SHARD, Path.unlink, ".distcp is missing"),
    "state cut": (SHARD, cut, ".distcp has "),
    "counters torn": ("state/run.json", lambda path: path.write_text('{"ver'), "run.json has 5 bytes"),
    "list torn": ("contents.json", cut, "its files cannot be read"),
    "list of nothing": ("contents.json", lambda path: path.write_text("{}"), "its files cannot be read: KeyError"),
    "list too deep": ("contents.json", lambda path: path.write_text("[" * 10**5), "its files cannot be read"),
    "empty": (".", empty, "config.json is missing"),
    "old, weights cut": ("model.safetensors", cut, "its files cannot be read: SafetensorError"),
    "old, state missing": ("state/.metadata", Path.unlink, "state/.metadata is missing"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_broken_newest_checkpoint_is_named_and_resume_goes_on_from_the_intact_one_before(two, case):
    if case.startswith("old"):
        for folder in two.glob("checkpoint-*"):
            (folder / "contents.json").unlink()
    assert given(f"--resume --out {two}").checkpoint == str(two / "checkpoint-4")
    place, spoil, said = SPOILT[case]
    spoil(two / "checkpoint-4" / place)
    args = given(f"--resume --out {two}")
    assert args.checkpoint == str(two / "checkpoint-2") and args.resume
    assert args.notes[0].startswith(f"{two}/checkpoint-4 is broken: ") and said in args.notes[0]
    assert args.notes[1] == f"--resume: goes on from {two}/checkpoint-2"
    farewell = Processes.farewell(SimpleNamespace(out=two, rank=1, name=str), "gone")
    assert "holds a checkpoint of step 2: go on with --resume" in farewell


def test_other_bytes_of_the_same_number_are_found_by_checksum_and_the_checkpoint_is_set_aside(two, capsys):
    path = two / "checkpoint-4" / SHARD
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    expected = given(f"--resume --out {two}").checkpoint
    assert expected == str(two / "checkpoint-4")  # checksums are compared later, by rank 0 alone
    assert pick(two, expected) == str(two / "checkpoint-2")
    assert "checkpoint-4 is broken: state/__0_0.distcp holds other bytes" in capsys.readouterr().out
    assert (two / "checkpoint-4-broken").is_dir() and [f.name for f in finished_checkpoints(two)] == ["checkpoint-2"]
    shutil.copytree(two / "checkpoint-4-broken", two / "checkpoint-4")  # again, when the run has come to step 4
    assert pick(two, expected) == str(two / "checkpoint-2") and (two / "checkpoint-4-broken2").is_dir()


def test_where_all_checkpoints_are_broken_nothing_starts_anew(two, capsys):
    for step in (2, 4):
        cut(two / f"checkpoint-{step}" / "model.safetensors")
    said = refused(capsys, f"--resume --out {two}")
    assert "no intact checkpoint" in said and "checkpoint-2 is broken" in said and "checkpoint-4 is broken" in said


def test_evaluating_a_broken_checkpoint_or_starting_from_broken_weights_ends_in_one_line(two, capsys):
    cut(two / "checkpoint-4" / "model.safetensors")
    for flag in ("--evaluate", f"--out {two}-new --model"):
        said = refused(capsys, f"{flag} {two}/checkpoint-4 --data arithmetic")
        assert f"{two}/checkpoint-4 is broken: model.safetensors has" in said


# --- Lines of a log --------------------------------------------------------------------------------------------------

CONFIG = {"kind": "config", "flags": {"loss": "cispo", "lr": 0.5, "clips": {"eps_max": 4.0}}}
TORN = b'{"kind": "st'
LINES = {
    "torn": TORN + b"\n",
    "joined": TORN + b'{"kind": "step", "step": 3}\n',
    "binary": b"\x00" * 40 + b"\n",
    "not UTF-8": b'{"kind": "\xff"}\n',
    "no row": b"7\n",
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


def test_a_torn_line_is_ended_before_the_next_row_and_no_byte_is_removed(tmp_path):
    log = log_with(tmp_path, b"")
    before = log.read_bytes()
    append(log, {"kind": "end"})
    append(log, {"kind": "end"})
    assert log.read_bytes() == before + b'\n{"kind": "end"}\n{"kind": "end"}\n'


def test_a_log_without_any_row_says_so(tmp_path, capsys):
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "log.jsonl").write_bytes(TORN)
    assert "says with which flags" in refused(capsys, f"--resume --out {tmp_path}")
    with pytest.raises(fit.BadInput):
        foreign_logs.read_run(tmp_path / "log.jsonl")


def test_only_folders_named_as_checkpoints_are_taken_for_some(tmp_path):
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-10-copy", "checkpoint-best"):
        Path(tmp_path, name).mkdir()
    assert [folder.name for folder in finished_checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10"]


# --- A whole run -----------------------------------------------------------------------------------------------------


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
