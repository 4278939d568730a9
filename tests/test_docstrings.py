"""Claim: the examples in docstrings give what they show."""

import doctest
from importlib import import_module

import pytest
from conftest import modules

EXAMPLES = sorted(name for name, text in modules().items() if ">>> " in text)


@pytest.mark.parametrize("module", EXAMPLES)
def test_docstring_examples_run(module):
    found = doctest.testmod(import_module(module))
    assert found.attempted > 0 == found.failed
