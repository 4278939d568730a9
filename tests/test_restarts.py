"""Claims about starting again: what is refused or clamped, what is not tried again, which signals end a run."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import alive, given, launched, refuses, wait_until
from runs import SMALL, Run, refused

from plumbing import devices, processes
from plumbing.heartbeat import Heartbeat
from plumbing.log import finished_checkpoints
from plumbing.processes import Processes

# --- torchrun's --max-restarts ---------------------------------------------------------------------------------------


def test_restarts_need_resume_and_a_store_of_their_own(monkeypatch, capsys):
    launched(monkeypatch, TORCHELASTIC_MAX_RESTARTS=3)
    monkeypatch.setattr(devices, "end_launcher", lambda: None)
    assert "--max-restarts needs --resume" in refused(capsys)
    given("--resume --out new")
    launched(monkeypatch, TORCHELASTIC_USE_AGENT_STORE=True)
    assert "--max-restarts needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in refused(capsys, "--resume --out new")
    launched(monkeypatch, TORCHELASTIC_MAX_RESTARTS=0)
    given("")


def test_a_smaller_restarted_group_keeps_a_generator_and_says_so(monkeypatch):
    launched(monkeypatch, WORLD_SIZE=3)
    args = given("--resume --out new --trainers 4")
    assert args.trainers == 2 and "--trainers 4 of 3 processes: 2 train" in args.notes
    assert given("--resume --out new --trainers 2").trainers == 2


@pytest.mark.parametrize("restarts, local, told", [(3, 0, [signal.SIGTERM]), (3, 1, []), (0, 0, [])])
def test_what_would_fail_again_ends_the_launcher_once_a_node(monkeypatch, restarts, local, told):
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number) if pid == os.getppid() else None)
    launched(monkeypatch, TORCHELASTIC_MAX_RESTARTS=restarts, LOCAL_RANK=local)
    with pytest.raises(SystemExit):
        given("--lr 0")
    assert sent == told


# --- Signals ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def rank():
    """Generator rank 1 without its groups; the handlers of signals are put back."""
    before = {name: signal.signal(signal.Signals[name], signal.SIG_DFL) for name in processes.ENDING}  # nohup's, say
    rank = object.__new__(Processes)
    rank.rank, rank.trainer_ranks, rank.hosts = 1, range(1), ["nodea", "nodea"]
    rank.heartbeat = Heartbeat({}, 1, name=rank.name, timeout=5.0, farewell=str)
    yield rank
    for name, handler in before.items():
        signal.signal(signal.Signals[name], handler)


def test_signals_end_a_run_in_order(rank):
    """All by which people and schedulers end a run, but for the one that nohup ignores; only the first counts."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    rank.end_in_order()
    signal.raise_signal(signal.SIGHUP)
    assert rank.heartbeat.stopped is None
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    rank.end_in_order()
    for name in processes.ENDING:
        rank.heartbeat.stopped = None
        signal.raise_signal(signal.Signals[name])
        assert rank.heartbeat.stopped == f"interrupted: generator rank 1 got {name}"
    signal.raise_signal(signal.SIGINT)
    assert rank.heartbeat.stopped.endswith(name)


def test_a_relaunch_hands_the_signals_on(monkeypatch):
    seen = []
    monkeypatch.setattr(os, "execve", lambda program, command, environment: seen.extend(command))
    monkeypatch.setattr(processes, "handled", lambda: ["SIGINT", "SIGUSR1"])
    processes.launch("train.py", [])
    assert seen[seen.index("--signals-to-handle") + 1] == "SIGINT,SIGUSR1"


def listening(process):
    """Hexadecimal addresses of the interfaces on which a process listens."""
    links = [os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir()]
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text(encoding="utf-8").splitlines()[1:]:
            _, own, _, state, *_, number = line.split()[:10]
            if state == "0A" and f"socket:[{number}]" in links:
                yield own.split(":")[0]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["SIGUSR1", "SIGINT"])
def test_a_terminal_or_a_scheduler_ends_a_torchrun_in_order(name, tmp_path, launchers):
    run = Run(tmp_path / "run").launch(launchers, f"{SMALL} --steps 9999 --eval-every 9999")
    run.reach(1)
    ranks = run.ranks.values()
    assert len(ranks) == 2 and {place for rank in ranks for place in listening(rank)} == {"0100007F"}  # 127.0.0.1
    # Ctrl-C reaches the ranks too; the session is the launcher's own.
    send = os.killpg if name == "SIGINT" else os.kill
    send(run.launcher.pid, signal.Signals[name])
    wait_until(lambda: not any(map(alive, ranks)), lambda: run.text, 60)
    end = run.log[-1]
    # torchrun itself dies of SIGUSR1, as of SIGKILL: nobody tells the ranks.
    reason = "interrupted: the launcher of " if name == "SIGUSR1" else "interrupted: "
    assert end["kind"] == "end" and end["reason"].startswith(reason), run.text
    assert finished_checkpoints(run.out)[-1].name == f"checkpoint-{end['step']}"


# --- gloo or NCCL, threads, names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seen, expected",  # per process: the UUIDs of the GPUs that it sees
    [
        ([["a"], ["a"]], "gloo"),  # two processes on one GPU
        ([["a"], ["b"]], "nccl"),  # Slurm shows each process its own GPU, as number 0
    ],
)
def test_nccl_needs_a_gpu_of_its_own_for_every_process_whatever_its_number(monkeypatch, seen, expected):
    gpus = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: SimpleNamespace(uuid=uuids[place.index]))
    for local, uuids in enumerate(seen):
        gpus.append(devices.uuid(devices.device(local)))
    assert devices.backend(gpus) == expected


def test_a_rank_with_other_flags_versions_or_code_is_named_with_them_but_paths_may_differ(rank, monkeypatch):
    def start(flags, **stamp):
        return {"stamp": processes.stamp(given(flags)) | stamp, "out": "/there", "shared": True}

    first = start("--out here")
    rank.compare([first, start("--out /there")])  # slots were made to fit here, and there
    others = {
        "generator rank 1 was started with temperature 0.5 instead of 1.0: expected": start("--temperature 0.5"),
        "with torch 1.0 instead of .*, code other instead of ": start("", torch="1.0", code="other"),
        "with .*slots 8 instead of": start("--slots 8"),
        "--out /there on nodea is not the folder that rank 0 has": start("") | {"shared": False},
    }
    for words, other in others.items():
        refuses(words, rank.compare, [first, other], error=OSError)


def test_ranks_that_cannot_reach_each_other_say_what_several_nodes_need(monkeypatch):
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, getattr(sys, stream))  # so that they are put back
    monkeypatch.setattr(processes.dist, "init_process_group", Mock(side_effect=RuntimeError("Connection refused")))
    words = "rank 0 on .* cannot reach the other ranks: Connection refused; .* GLOO_SOCKET_IFNAME .*--local-addr"
    refuses(words, Processes, given(), error=SystemExit)


def test_the_code_that_nodes_compare_is_every_file_that_train_py_imports(tmp_path):
    digests = {processes.code_digest(tmp_path)}
    for place in ("loss.py", "plumbing/log.py", "verify/sandbox.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("x = 1")
        digests.add(processes.code_digest(tmp_path))
    assert len(digests) == 4
