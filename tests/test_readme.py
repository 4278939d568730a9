"""What the README shows exists: files, functions, tests, flags, figures."""

import ast
import re
from pathlib import Path

import pytest

from plumbing import flags

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def names(path):
    """Functions and classes defined in a module, at any depth."""
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("file, name", sorted(set(re.findall(r"`((?:plumbing/)?[a-z0-9_]+\.py):(\w+)`", README))))
def test_every_function_that_the_readme_names_is_defined(file, name):
    path = ROOT / "tests" / file if file.startswith("test_") else ROOT / file
    assert name in names(path)


FOLDERS = r"\b((?:tests|figures|results|benchmarks|base|plumbing)/[\w./*-]*\w)"


@pytest.mark.parametrize("path", sorted(set(re.findall(FOLDERS, README))))
def test_every_path_that_the_readme_names_exists(path):
    assert list(ROOT.glob(path))


def test_every_flag_that_the_readme_names_is_read():
    known = {option for action in flags.flags()._actions for option in action.option_strings}
    # torchrun's and pip's own
    elsewhere = {"--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--index-url", "--no-deps",
                 "--shutdown-timeout"}
    files = *(ROOT / "plumbing").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")
    others = set(re.findall(r'"(--[\w-]+)"', "".join(file.read_text() for file in files)))
    assert set(re.findall(r"(?<![\w-])(--[a-z][\w-]*)", README)) <= known | elsewhere | others


def test_the_first_screen_shows_the_two_commands():
    first = README.split("\n")[:30]
    assert "    pip install -e . && torchrun train.py --loss cispo" in first
    assert "    pip install -e '.[test]' && pytest" in first
