"""Claims about runs on several nodes: two network namespaces, joined by a virtual cable, each with its own launcher.

The namespaces share the machine's processes and files; host names are their own. Needs root and iproute2. The rows of
the runs' logs and what both launchers print are all that is looked at.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, alive, ranks_of, wait_until
from started_runs import ENDLESS, PATIENCE, SMALL, Run

from plumbing import log as log_file

NODES = ("nodea", "nodeb")
TIMEOUT = 8
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        os.name != "posix" or os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and ip"
    ),
]


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def space(node):
    """The namespace of a node: what another run of these tests has left does not matter."""
    return f"{node}-{os.getpid()}"


@pytest.fixture(scope="module")
def cable():
    """Two namespaces with a cable between them; removed, with their processes, when the tests end."""
    made = []
    try:
        for node in NODES:
            try:
                ip("netns", "add", space(node))
            except subprocess.CalledProcessError:
                pytest.skip("network namespaces are not allowed here")
            made.append(node)
            Path(f"/etc/netns/{space(node)}").mkdir(parents=True, exist_ok=True)
            hosts = "127.0.0.1 localhost\n10.77.0.1 nodea\n10.77.0.2 nodeb\n"
            Path(f"/etc/netns/{space(node)}/hosts").write_text(hosts, encoding="utf-8")
        ip(*f"link add va netns {space('nodea')} type veth peer name vb netns {space('nodeb')}".split())
        for node, end, address in (("nodea", "va", "10.77.0.1/24"), ("nodeb", "vb", "10.77.0.2/24")):
            for words in (f"addr add {address} dev {end}", "link set lo up", f"link set {end} up"):
                ip("-n", space(node), *words.split())
        yield
    finally:
        for node in made:
            listed = ["ip", "netns", "pids", space(node)]
            pids = subprocess.run(listed, capture_output=True, text=True).stdout
            for pid in pids.split():
                os.kill(int(pid), signal.SIGKILL)
            ip("netns", "delete", space(node))
            shutil.rmtree(f"/etc/netns/{space(node)}")


class Nodes(Run):
    """A run of two processes on each of the two nodes."""

    def __init__(self, place, port, flags, restarts=0):
        super().__init__(place / "run")
        self.launchers = []
        for node in NODES:
            rendezvous = f"--rdzv-backend c10d --rdzv-endpoint nodea:{port} --rdzv-id x --max-restarts {restarts}"
            command = [sys.executable, *"-m torch.distributed.run --nnodes 2 --nproc-per-node 2".split()]
            command += [*rendezvous.split(), str(ROOT / "train.py")]
            command += f"{flags} --trainers 2 --out {self.out} --timeout {TIMEOUT}".split()
            named = f"ip netns exec {space(node)} unshare -u sh -c".split()
            named += [f'hostname {node}; exec "$@"', "sh"]
            variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            with Path(f"{self.out}.{node}").open("w", encoding="utf-8") as file:
                streams = dict(stdout=file, stderr=file, env=os.environ | variables)
                self.launchers.append(subprocess.Popen(named + command, **streams))

    def printed_on(self, node):
        return Path(f"{self.out}.{node}").read_text(encoding="utf-8")

    @property
    def text(self):
        return "\n".join(map(self.printed_on, NODES))

    @property
    def ranks(self):
        """{rank: process id} of the living ranks."""
        return ranks_of(self.launchers[0]) | ranks_of(self.launchers[1])


def test_a_kill_on_the_second_node_is_named_on_both_and_the_restarted_run_ends_alike_on_both(cable, tmp_path):
    # of longer steps than those of the tiny task, so that the kill comes before the last
    longer = SMALL.replace("--data tiny", "--data arithmetic")
    flags = f"{longer} --resume --steps 12 --eval-every 12 --checkpoint-every 2"
    run = Nodes(tmp_path, 29555, flags, restarts=1)
    run.reach(3)
    os.kill(run.ranks[3], signal.SIGKILL)
    dead = "generator rank 3 on nodeb ended"
    wait_until(lambda: all(dead in run.printed_on(node) for node in NODES), lambda: run.text, 10.0)
    assert [launcher.wait(PATIENCE) for launcher in run.launchers] == [0, 0], run.text
    assert run.log[-1]["reason"] == "finished" and not log_file.read_rows(run.out / "log.jsonl")[1]
    first, second = run.rows("config")
    assert first["world"] == second["world"] == 4 and second["step"] >= 2  # it went on from a checkpoint
    assert second["lost_gpu_hours"] > 0 and run.rows("step")[-1]["step"] == 12


def test_after_the_cable_is_cut_all_ranks_are_gone_within_the_timeout_and_ten_seconds(cable, tmp_path):
    run = Nodes(tmp_path, 29556, ENDLESS)
    run.reach(2)
    ranks = run.ranks
    assert sorted(ranks) == [0, 1, 2, 3]
    ip("-n", space("nodea"), "link", "set", "va", "down")
    try:
        wait_until(lambda: not any(map(alive, ranks.values())), lambda: run.text, TIMEOUT + 10.0)
        assert re.search("generator rank [23] on nodeb", run.printed_on("nodea"))
        assert "rank 0 on nodea" in run.printed_on("nodeb")
    finally:
        for launcher in run.launchers:
            launcher.kill()
        ip("-n", space("nodea"), "link", "set", "va", "up")
