"""Runs that tests start: their flags, their ranks in forked processes or under torchrun, and what they leave.

Runs that need no launcher are forked from one process that has imported everything, since importing takes longer than
such a run.
"""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, ended, given, ranks_of, wait_until

import train
from plumbing import build, checkpoints
from plumbing import log as log_file
from plumbing.log import finished_checkpoints

BASE = ROOT / "base"
TORCHRUN = [sys.executable, *"-m torch.distributed.run --standalone --nproc-per-node 2".split(), str(ROOT / "train.py")]
PATIENCE = 240  # seconds for a run of a few seconds, on a machine that is busy with something else
SMALL = (
    "--data tiny --k 1 --prompts 2 --generations 4 --slots 8 --lr 1e-4 --warmup 1 --eval-prompts 2 --eval-generations 1"
    " --no-zero-variance-filter --token-budget 1024"
)
ENDLESS = SMALL + " --steps 10000 --eval-every 10000 --checkpoint-every 2"


def refused(capsys, flags=""):
    """The line with which train.py refuses these flags; exit code 2 is that of a usage error."""
    with pytest.raises(SystemExit) as end:
        (build.show_plan if "--plan" in flags else build.load_prompts)(given(flags))
    assert end.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith(("usage: ", " ")) for line in said[:-1]), said
    return said[-1]


def rank_process(flags, variables, output, fault):
    """What a forked rank runs in place of torchrun's process: train.py with its own environment and output file."""
    os.environ.update(variables)
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    if fault:
        fault()
    sys.exit(ended(flags))


def at_version(version, act):
    """A fault: trainers call act() in the optimizer step that begins at this version."""
    measure = train.Trainer.gradient_norm

    def norm(trainer):
        if trainer.version == version:
            act()
        return measure(trainer)

    train.Trainer.gradient_norm = norm


class Run:
    """The forked ranks of one run, its folder, and the file with what it prints."""

    def __init__(self, out):
        self.out, self.printed = Path(out), Path(f"{out}.txt")
        self.printed.touch()

    def fork(self, forks, world, flags, fault=None):
        """Start the ranks; each calls `fault` before it begins."""
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        common = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        common |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        self.processes = []
        for rank in range(world):
            variables = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            arguments = (f"{flags} --out {self.out}", variables, str(self.printed), fault)
            self.processes.append(forks.Process(target=rank_process, args=arguments, daemon=True))
            self.processes[-1].start()
        return self

    def end(self, seconds=PATIENCE, *, ended=()):
        """{rank: exit code} without the ranks in `ended`; fails if one of the others runs on after so many seconds."""
        until, codes = time.monotonic() + seconds, {}
        for rank, process in enumerate(self.processes):
            if rank not in ended:
                process.join(max(0.0, until - time.monotonic()))
                codes[rank] = process.exitcode
        for process in self.processes:
            process.kill()  # does nothing to a process that has ended
        assert None not in codes.values(), f"after {seconds} s: {codes}, {self.text}"
        return codes

    def finish(self):
        """Wait until all ranks have ended without an error; returns the run."""
        assert not any(self.end().values()), self.text
        return self

    def launch(self, launchers, flags):
        """torchrun with two processes, in a process group of its own."""
        command = [*TORCHRUN, *flags.split(), "--out", self.out]
        with self.printed.open("a") as file:
            self.launcher = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        launchers.append(self.launcher)
        return self

    @property
    def ranks(self):
        """{rank: process id}"""
        return ranks_of(self.launcher)

    @property
    def text(self):
        return self.printed.read_text()

    @property
    def log(self):
        """The rows of log.jsonl."""
        path = self.out / "log.jsonl"
        return log_file.read_rows(path)[0] if path.exists() else []

    def rows(self, kind):
        return [row for row in self.log if row["kind"] == kind]

    def lines(self, words):
        """{rank: error line} of the ranks whose error line contains these words."""
        said = re.findall(r"train[.]py: error: .*? [(]\w+ rank \d[)]", self.text)  # often after a progress bar
        return {int(line[-2]): line for line in said if words in line}

    def reach(self, step):
        """Wait until this optimizer step is logged."""
        wait_until(lambda: any(row["step"] >= step for row in self.rows("step")), lambda: self.text, PATIENCE)

    @property
    def version(self):
        """Optimizer steps of the last checkpoint."""
        return checkpoints.counters(finished_checkpoints(self.out)[-1])["version"]
