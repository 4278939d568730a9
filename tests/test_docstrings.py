"""Claim: the examples in docstrings give what they show."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = [
    path.relative_to(ROOT)
    for folder in (".", "plumbing", "verify", "course", "lab")
    for path in ROOT.glob(f"{folder}/*.py")
]
SHOWN = [".".join(file.with_suffix("").parts) for file in FILES if ">>> " in (ROOT / file).read_text()]


@pytest.mark.parametrize("module", SHOWN)
def test_docstring_examples_run(module):
    found = doctest.testmod(import_module(module))
    assert found.attempted > 0 == found.failed
