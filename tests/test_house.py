"""The layout: the top level is the paper, the folders are trades."""

import ast
import subprocess
import sys

import pytest
from conftest import ROOMS, ROOT, modules

SEVEN = {"loss", "pipeline", "rollout", "reward", "precision", "fit", "train"}  # components of the paper
# bands; real engine; rollouts to tensors; mixtures; prompts; A.3; A.16, A.17
PAPER = SEVEN | {"forecast", "vllm_rollout", "batches", "decoding", "experts", "data", "sft", "recipes"}
PROGRAMS = {"train", "sft"}  # they stand above plumbing/
OTHERS = {"exercises"}  # the course, with a command line of its own
# Modules for parsing arguments, handling processes, reading foreign files and drawing: the top level imports none.
NOT_THE_PAPER = {"argparse", "subprocess", "multiprocessing", "socket", "csv", "gzip", "matplotlib"}


def imports(text):
    """Dotted names of what a module imports, wherever it does: `from verify import sandbox` is verify.sandbox."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)  # a module, or a name in it


IMPORTS = {name: set(imports(text)) for name, text in modules().items()}


def rooms(name):
    """First parts of the dotted names of what a module imports."""
    return {found.partition(".")[0] for found in IMPORTS[name]}


def test_the_top_level_is_the_paper():
    assert PAPER <= (top := {name for name in IMPORTS if "." not in name} - ROOMS) <= PAPER | OTHERS
    assert not [name for name in top - OTHERS if rooms(name) & NOT_THE_PAPER]


def test_imports_point_one_way():
    """The paper's files import no room, training neither lab nor course, nothing but the lab a program."""
    assert not [name for name in PAPER - PROGRAMS if rooms(name) & {*ROOMS, *PROGRAMS}]
    beside = ("lab", "course", *OTHERS)
    assert not [name for name in IMPORTS if not name.startswith(beside) and rooms(name) & {"lab", "course"}]
    assert not [name for name in IMPORTS if not name.startswith("lab.") and "train" in IMPORTS[name]]
    # A notebook's backend, which MPLBACKEND names, is loaded by pyplot alone.
    assert not [name for name in IMPORTS if "matplotlib.pyplot" in IMPORTS[name]]


def test_no_imports_run_in_a_circle():
    left = {name: found & IMPORTS.keys() for name, found in IMPORTS.items()}
    while free := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in free:
            del left[name]
    assert not left


def test_plumbing_is_one_flat_room_whose_readme_says_what_each_file_holds():
    names = {path.name for path in ROOT.glob("plumbing/**/*.py")} - {"__init__.py"}
    lines = (ROOT / "plumbing" / "README.md").read_text().splitlines()
    assert {line.split("`")[1] for line in lines if line.startswith("| `")} == names


def alone(code):
    """Run this code in a process of its own, in the project's folder."""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_fit_py_its_readers_and_its_figures_load_no_torch():
    alone(
        "import sys; sys.modules |= dict.fromkeys(('torch', 'safetensors', 'transformers', 'tqdm'))\n"
        "import fit, forecast\nfrom plumbing import curves, figures, foreign_logs"
    )


@pytest.mark.processes
def test_virtual_time_fit_py_and_the_course_work_without_what_macos_and_windows_lack(tmp_path):
    flags = f"--data tiny --virtual exact --steps 1 --prompts 2 --generations 2 --eval-prompts 2 --out {tmp_path}/run"
    alone(
        "import os, sys, multiprocessing, matplotlib.figure, scipy.optimize, torch.distributed.checkpoint\n"
        "sys.modules |= dict.fromkeys(('fcntl', 'resource', 'pwd', 'termios'))\n"  # libraries have theirs by now
        "for name in 'fork', 'memfd_create', 'register_at_fork', 'killpg', 'getpgid', 'setsid': delattr(os, name)\n"
        "import fit, train\nfrom course import commands\nfrom plumbing import curves, settings\n"
        f"sys.exit(train.main(settings.read_settings({flags.split()!r})))"
    )
    assert (tmp_path / "run" / "checkpoint-1").exists()
