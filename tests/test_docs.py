"""The reading edition (docs/) shows every function of the reading path (docs/paper/path.md) with what holds it."""

import ast
import re
from pathlib import Path

import pytest

from course.checks.catalogue import EXERCISES

ROOT = Path(__file__).parent.parent
PASSAGE = re.compile(r"^:::\{passage\} (\S+)\n((?::\w+: [^\n]*\n)*)\n(.*?)^:::$", re.M | re.S)
PASSAGES = {
    where: (dict(re.findall(r"^:(\w+): (.*)$", options, re.M)), text)
    for page in sorted(ROOT.glob("docs/paper/*.md"))
    for where, options, text in PASSAGE.findall(page.read_text())
}
READING_PATH = re.findall(
    r"`([\w/]+\.py:[\w.]+)`", (ROOT / "docs" / "paper" / "path.md").read_text().partition("\n## ")[0]
)


def defined(file):
    """Dotted names of the functions and classes of a file."""

    def walk(body, prefix):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield prefix + node.name
                yield from walk(node.body, f"{prefix}{node.name}.")

    return set(walk(ast.parse((ROOT / file).read_text()).body, ""))


@pytest.mark.parametrize("where", sorted(set(READING_PATH) | PASSAGES.keys()))
def test_every_function_of_the_reading_path_has_text_code_test_exercise_and_what_to_look_for(where):
    options, text = PASSAGES[where]
    file, _, name = where.partition(":")
    assert name in defined(file)
    assert {"test", "exercise", "look"} <= options.keys() and len(text.split()) >= 8
    path, _, test = options["test"].partition(":")
    assert test in defined(path) if test else (ROOT / path).exists()
    assert options["exercise"] in {exercise.name for exercise in EXERCISES}


def test_the_builder_copies_no_code():
    pages = "".join(page.read_text() for page in ROOT.glob("docs/paper/*.md"))
    assert "```python" not in pages and "\n    def " not in pages
