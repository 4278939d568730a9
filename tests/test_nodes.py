"""Claims about runs on several nodes: two launchers on one machine, each with a host name of its own.

Needs root, for the names. The rows of the run's log and what both launchers print are all that is looked at.
"""

import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, ranks_of, wait_until
from runs import PATIENCE, SMALL, Run

NODES = ("nodea", "nodeb")


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="host names of one's own need root")
def test_a_kill_on_the_second_node_is_named_on_both_and_the_restarted_run_ends_alike_on_both(tmp_path, launchers):
    run = Run(tmp_path / "run")
    printed = {node: tmp_path / node for node in NODES}
    for node in NODES:
        command = f"unshare -u sh -c 'hostname {node}; exec \"$@\"' sh {sys.executable} -m torch.distributed.run"
        command += " --nnodes 2 --nproc-per-node 2 --max-restarts 1 --local-addr 127.0.0.1 --rdzv-id x"
        command += (
            f" --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29555 {ROOT}/train.py {SMALL} --trainers 2 --timeout 8"
        )
        # of longer steps than those of the tiny task, so that the kill comes before the last
        command += f" --data arithmetic --resume --steps 12 --eval-every 12 --checkpoint-every 2 --out {run.out}"
        variables = dict(GLOO_SOCKET_IFNAME="lo", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", CUDA_VISIBLE_DEVICES="")
        with printed[node].open("w") as file:
            streams = dict(stdout=file, stderr=file, env=os.environ | variables)
            launchers.append(subprocess.Popen(f"exec {command}", shell=True, **streams))
    run.reach(3)
    os.kill((ranks_of(launchers[0]) | ranks_of(launchers[1]))[3], signal.SIGKILL)
    dead = "generator rank 3 on nodeb ended"
    wait_until(lambda: all(dead in printed[node].read_text() for node in NODES), printed["nodea"].read_text, 10.0)
    assert [launcher.wait(PATIENCE) for launcher in launchers] == [0, 0], printed["nodea"].read_text()
    first, second = run.rows("config")
    assert first["world"] == second["world"] == 4 and second["step"] >= 2  # it went on from a checkpoint
    assert second["lost_gpu_hours"] > 0 and run.rows("step")[-1]["step"] == 12
    assert run.log[-1]["reason"] == "finished"
