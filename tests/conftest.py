"""One thread a process: the pools of a run's processes would fight for the cores, and base/ is too small for two.

Imported modules are frozen: otherwise every full garbage collection would walk through all of them again.
"""

import ast
import gc
import json
import multiprocessing.forkserver
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, by this process and by those that tests start
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # what forks after tokenising need not be told so


DATA = Path(__file__).parent / "data"


def rows(name):
    """The rows of data/NAME.jsonl."""
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def alive(pid):
    """Whether the process runs: it exists and is no zombie, which another process has to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(true, what, seconds=30.0):
    """Fails with `what` (a text, or a function that says it) if it does not come true in time."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.02)


@dataclass
class Finished:
    """The fields of pipeline.Rollout that the scorer reads."""

    text: str
    truncated: bool = False
    ids: tuple = ()


def defined(path):
    """{dotted name: its node} of the functions and classes of a module."""

    def walk(body, prefix):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield prefix + node.name, node
                yield from walk(node.body, f"{prefix}{node.name}.")

    return dict(walk(ast.parse(path.read_text()).body, ""))


def code_lines(path, node):
    """Lines of a function of a file without docstrings, comments and blanks."""
    parts = [one for one in ast.walk(node) if isinstance(one, (ast.ClassDef, ast.FunctionDef))]
    docs = [one.body[0] for one in parts if ast.get_docstring(one)]
    inside = {number for doc in docs for number in range(doc.lineno, doc.end_lineno + 1)}
    lines = [line.strip() for line in path.read_text().split("\n")]
    return sum(n not in inside and lines[n - 1][:1] not in ("", "#") for n in range(node.lineno, node.end_lineno + 1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """`pytest -n 2`: the tests of a file stay together, since they share its runs."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


def pytest_configure(config):
    """A plain pytest on a machine with GPUs tests what it does on any other: only `pytest -m gpu` may see them."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_finish():
    gc.freeze()


@pytest.fixture(scope="session")
def forks():
    """A context that forks ranks from a fresh process, which has imported train.py and has no threads yet.

    Importing takes longer than most runs of the tests.
    """
    context = multiprocessing.get_context("forkserver")
    here = Path(__file__).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(here.parent), str(here)]))
        context.set_forkserver_preload(["train", "test_train"])
        multiprocessing.forkserver.ensure_running()
    return context
