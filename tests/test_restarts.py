"""Claims about starting again: what is clamped, what is not tried again, which signals end a run, who may take part."""

import os
import signal

import pytest
from conftest import alive, given, launched, refuses, wait_until
from started_runs import SMALL, Run

from plumbing import devices, heartbeat, processes
from plumbing.log import finished_checkpoints
from plumbing.processes import Processes

# --- torchrun's --max-restarts ---------------------------------------------------------------------------------------


def test_a_smaller_restarted_group_keeps_a_generator_and_says_so(monkeypatch):
    launched(monkeypatch, WORLD_SIZE=3)
    args = given("--resume --out new --trainers 4")
    assert args.trainers == 2 and "--trainers 4 of 3 processes: 2 train" in args.notes


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
    rank.heartbeat = heartbeat.Heartbeat({}, 1, name=rank.name, timeout=5.0, farewell=str)
    yield rank
    for name, handler in before.items():
        signal.signal(signal.Signals[name], handler)


def test_signals_end_a_run_in_order(rank):
    """All by which people and schedulers end a run, but for the one that nohup ignores; only the first counts."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    rank.end_in_order()
    signal.raise_signal(signal.SIGHUP)
    assert rank.heartbeat.stopped is None
    for name in {*processes.ENDING} - {"SIGHUP"}:
        rank.heartbeat.stopped = None
        signal.raise_signal(signal.Signals[name])
        assert rank.heartbeat.stopped == f"interrupted: generator rank 1 got {name}"


@pytest.mark.processes
@pytest.mark.parametrize("name", ["SIGUSR1", "SIGINT"])
def test_a_terminal_or_a_scheduler_ends_a_torchrun_in_order(name, tmp_path, launchers):
    run = Run(tmp_path / "run").launch(launchers, f"{SMALL} --steps 9999 --eval-every 9999")
    run.reach(1)
    ranks = run.ranks.values()
    # Ctrl-C reaches the ranks too; the session is the launcher's own.
    send = os.killpg if name == "SIGINT" else os.kill
    send(run.launcher.pid, signal.Signals[name])
    wait_until(lambda: not any(map(alive, ranks)), lambda: run.text, 60)
    end = run.log[-1]
    # torchrun itself dies of SIGUSR1, as of SIGKILL: nobody tells the ranks.
    reason = "interrupted: the launcher of " if name == "SIGUSR1" else "interrupted: "
    assert end["kind"] == "end" and end["reason"].startswith(reason), run.text
    assert finished_checkpoints(run.out)[-1].name == f"checkpoint-{end['step']}"


# --- Who takes part --------------------------------------------------------------------------------------------------


def test_rank_0_listens_on_loopback_only_where_all_ranks_are_on_one_node(monkeypatch):
    """Whoever connects is believed."""
    launched(monkeypatch, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2, MASTER_ADDR="0.0.0.0")
    with heartbeat.listener(1) as server:
        assert server.getsockname()[0] == "127.0.0.1"


def test_nccl_needs_a_gpu_of_its_own_for_every_process_whatever_its_number():
    # Slurm shows each process its own GPU, as number 0: their UUIDs are compared.
    assert [devices.backend(gpus) for gpus in (["a", "a"], ["a", "b"], [None, None])] == ["gloo", "nccl", "gloo"]


def test_a_rank_with_other_flags_versions_or_code_is_named_with_them_but_paths_may_differ(rank):
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


def test_the_code_that_nodes_compare_is_every_file_that_train_py_imports(tmp_path):
    digests = set()
    for place in ("loss.py", "plumbing/log.py", "verify/sandbox.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("x = 1")
        digests.add(processes.code_digest(tmp_path))
    assert len(digests) == 3
