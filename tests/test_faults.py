"""Claims about faults: nothing is lost, no rank hangs, and every rank says why it ended.

Whole runs are real processes, forked as in test_train.py; no launcher ends the other ranks when one has failed.
"""

import os
import resource
import signal
import time
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from conftest import refuses, run_ranks, wait_until
from safetensors.torch import load_file
from started_runs import BASE, ENDLESS, at_version
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_map_only
from transformers import AutoModelForCausalLM, AutoTokenizer

import train
from plumbing import checkpoints, log
from plumbing.processes import Processes
from verify import sandbox

HEARD = 10.0  # seconds within which all ranks must have named the rank that died


# --- Processes that go wrong -----------------------------------------------------------------------------------------


def slow_farewell(seconds):
    """Make every rank take so many seconds longer to say why the run has failed."""
    farewell = Processes.farewell
    Processes.farewell = lambda processes, reason: time.sleep(seconds) or farewell(processes, reason)


def broken_pipe():
    """Let nobody read what this rank prints from here on."""
    reader, writer = os.pipe()
    os.close(reader)
    for stream in (1, 2):
        os.dup2(writer, stream)


# --- Frozen, out of reach, dead --------------------------------------------------------------------------------------


@pytest.mark.processes
def test_ranks_end_by_themselves_when_rank_0_is_frozen_and_say_which(start):
    """Any other rank: test_heartbeat.py."""
    run = start(3, ENDLESS + " --trainers 2 --timeout 10")  # starting takes longer on a busy machine
    run.reach(2)
    os.kill(run.processes[0].pid, signal.SIGSTOP)
    assert run.end(10 + 10, ended=[0]) == {1: 1, 2: 1}
    silent, stuck = "heard nothing of trainer rank 0 for 10 s", "trainer rank 0 made no"
    assert {*run.lines(silent), *run.lines(stuck)} == {1, 2}
    assert "trainer rank 1 made no" not in run.text and "Traceback" not in run.text


@pytest.mark.processes
def test_who_dies_is_named_on_all_ranks_at_once_and_the_last_periodic_checkpoint_stands(start):
    """A generator: test_nodes.py."""
    run = start(4, ENDLESS + " --trainers 2", fault=partial(slow_farewell, 1.0))
    run.reach(3)
    run.processes[1].kill()
    wait_until(lambda: set(run.lines("trainer rank 1 ended")) == {0, 2, 3}, lambda: run.text, HEARD)
    assert run.end(ended=[1]) == {0: 1, 2: 1, 3: 1}
    assert run.version % 2 == 0  # --checkpoint-every 2
    assert run.log[-1]["reason"] == "trainer rank 1 ended" and not run.log[-1]["final"]


@pytest.mark.processes
def test_a_signal_to_any_rank_ends_the_run_in_order_everywhere_though_nobody_reads_what_is_printed(start):
    """Ctrl-C ends the reader of the screen too."""
    run = start(3, ENDLESS, fault=partial(at_version, 1, broken_pipe))
    run.reach(3)
    os.kill(run.processes[2].pid, signal.SIGTERM)
    assert run.end(3 * HEARD) == {0: 0, 1: 0, 2: 0}
    end = run.log[-1]
    assert end["reason"].startswith("interrupted: generator rank 2 got SIGTERM")
    assert log.finished_checkpoints(run.out)[-1].name == f"checkpoint-{end['step']}"  # written when the run ended


# --- Checkpoints -----------------------------------------------------------------------------------------------------


def written(folder, scratch):
    """Everything in a checkpoint, read without the project's code."""
    dcp_to_torch_save(folder / "state", scratch)
    tensors = load_file(folder / "model.safetensors")
    return tensors, torch.load(scratch, weights_only=True), checkpoints.counters(folder)


def reshard(rank, source, out):
    """A trainer: reads base/, takes two AdamW steps and saves; or resumes from `source` and saves."""
    if rank or source:  # only rank 0 may read the weights of base/, and no rank when resuming
        AutoModelForCausalLM.from_pretrained = None
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    processes = SimpleNamespace(rank=rank, mesh=mesh, device=torch.device("cpu"), dtype=torch.float32)
    processes.trainers = processes.writers = dist.group.WORLD
    policy = checkpoints.load_policy(source or BASE, processes, resume=bool(source), dtype=torch.float32)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.01)
    if source:
        checkpoints.load_state(source, policy, optimizer, dist.group.WORLD, stepped=True)
    for _ in range(0 if source else 2):
        logprobs, _ = policy(torch.arange(8).view(2, 4) % 18)
        (-logprobs.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    named = dict(train.precision.full_tensors(policy))
    counters = {"version": 2, "stepped": True, "best": {}, "curriculum": {}}
    checkpoints.save(out, policy, optimizer, AutoTokenizer.from_pretrained(BASE), named, counters, processes)


plain = partial(tree_map_only, torch.Tensor, torch.Tensor.tolist)


@pytest.mark.processes
def test_weights_and_adamw_state_of_three_trainers_resume_on_two(forks, tmp_path):
    source, folders = None, []
    for world in (3, 2):
        out = tmp_path / str(world)
        run_ranks(forks, world, tmp_path / f"meet{world}", reshard, source, out)
        source = out / "checkpoint-2"
        folders.append(written(source, tmp_path / "state.pt"))
    assert plain(folders[0]) == plain(folders[1])
    weights, state, _ = folders[0]
    moments = state["optimizer"]["state"].values()
    assert any(moment["exp_avg"].any() for moment in moments) and {float(moment["step"]) for moment in moments} == {2.0}
    assert plain(weights) != plain(load_file(BASE / "model.safetensors"))  # after two steps they differ


@pytest.mark.processes
def test_without_room_for_a_checkpoint_the_last_one_stands_and_the_run_says_so(start):
    run = start(3, ENDLESS + " --trainers 2")
    run.reach(4)  # so there is a checkpoint of step 2
    limit = 1 << 18  # bytes per file: enough for the log, too few for state/ of base/tiny
    for process in run.processes:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    assert run.end() == {0: 1, 1: 1, 2: 1}
    assert not list(run.out.glob("*.tmp"))
    assert checkpoints.damage(log.finished_checkpoints(run.out)[-1]) == ""
    assert run.log[-1]["final"] and f"could be written to {run.out}: " in run.log[-1]["reason"]  # it is full again
    assert set(run.lines("File too large")) == {0, 1, 2}
    assert f"holds a checkpoint of step {run.version}:" in run.lines("File too large")[0]


# --- A sandbox that dies while a worker asks what it can do ----------------------------------------------------------


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_sandbox_that_dies_while_it_is_tried_is_not_one_without_namespaces(monkeypatch, deaths):
    run = Mock(side_effect=[sandbox.Died("killed by signal 9")] * deaths + [iter([b"free\n"])])
    monkeypatch.setattr(sandbox, "run", run)
    if deaths == 1:  # it is asked again
        assert sandbox.namespaces_work.__wrapped__() is True
    else:  # the worker ends, and another one asks again
        refuses("signal 9", sandbox.namespaces_work.__wrapped__, error=sandbox.Died)
    assert [call.kwargs["namespaces"] for call in run.call_args_list] == [True, True]
