"""The layout: the top level is the paper, the folders are trades."""

import ast
import mmap
import os
import runpy
import sys

import pytest
import torch  # noqa: F401  before a test hides what it needs
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


def room(name):
    return name.partition(".")[0]


MODULES = modules()
IMPORTS = {name: set(imports(text)) for name, text in MODULES.items()}


def test_the_top_level_is_the_paper():
    assert {"plumbing.devices", "course.checks.run"} <= MODULES.keys()  # folders of any depth are seen
    assert PAPER <= (top := {name for name in MODULES if "." not in name} - ROOMS) <= PAPER | OTHERS
    for name in top - OTHERS:
        assert not {*map(room, IMPORTS[name])} & NOT_THE_PAPER, name


def test_no_imports_run_in_a_circle():
    left = {name: found & MODULES.keys() for name, found in IMPORTS.items()}
    while free := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in free:
            del left[name]
    assert not left


def test_nothing_but_the_lab_imports_train():
    assert not [name for name, found in IMPORTS.items() if "train" in found and not name.startswith("lab.")]


def test_training_needs_neither_the_lab_nor_the_course():
    beside = {"lab", "course", *OTHERS}
    needed = {module for name, found in IMPORTS.items() if room(name) not in beside for module in found}
    assert not {"lab", "course"} & {*map(room, needed)}


def test_imports_point_one_way():
    assert not [name for name in PAPER - PROGRAMS if {*map(room, IMPORTS[name])} & {*ROOMS, *PROGRAMS}]


def test_plumbing_is_one_flat_room_whose_readme_says_what_each_file_holds():
    names = {path.name for path in ROOT.glob("plumbing/*.py")} - {"__init__.py"}
    assert not [*ROOT.glob("plumbing/*/*.py")]
    lines = (ROOT / "plumbing" / "README.md").read_text().splitlines()
    assert {line.split("`")[1] for line in lines if line.startswith("| `")} == names


@pytest.mark.parametrize("name", ["loss", "precision", "fit", "reward", "data"])
def test_what_a_classroom_needs_imports_without_the_folders_and_what_only_unix_or_linux_has(name, monkeypatch):
    for missing in {"resource", "fcntl", *ROOMS, *(one for one in sys.modules if room(one) in ROOMS)}:
        monkeypatch.setitem(sys.modules, missing, None)
    for module, attribute in ((os, "memfd_create"), (os, "fork"), (mmap, "MAP_SHARED")):
        monkeypatch.delattr(module, attribute)
    runpy.run_path(str(ROOT / f"{name}.py"))
