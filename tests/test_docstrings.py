"""Claim: the examples in docstrings give what they show."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = "plumbing", "verify", "course", "lab"


def modules_with_examples(root):
    """Dotted names of the modules below `root`, in folders of any depth, whose text holds an example."""
    files = [*root.glob("*.py"), *(file for room in ROOMS for file in root.glob(f"{room}/**/*.py"))]
    shown = [file.relative_to(root) for file in files if ">>> " in file.read_text()]
    return [".".join(file.with_suffix("").parts) for file in shown]


@pytest.mark.parametrize("module", modules_with_examples(ROOT))
def test_docstring_examples_run(module):
    found = doctest.testmod(import_module(module))
    assert found.attempted > 0 == found.failed
