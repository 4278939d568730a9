"""Claim: the examples in docstrings give what they show."""

import doctest
from importlib import import_module

import pytest
from conftest import modules


def with_examples(texts):
    """Names of the modules {name: text} that show an example."""
    return sorted(name for name, text in texts.items() if ">>> " in text)


@pytest.mark.parametrize("module", with_examples(modules()))
def test_docstring_examples_run(module):
    found = doctest.testmod(import_module(module))
    assert found.attempted > 0 == found.failed
