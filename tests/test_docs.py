"""The reading edition (docs/) shows every function of the reading path (docs/paper/path.md) with what holds it."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from course.checks.catalogue import EXERCISES

EXERCISE_NAMES = {exercise.name for exercise in EXERCISES}
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
    assert {"test", "look"} <= options.keys() and len(text.split()) >= 8
    for path, _, test in (test.partition(":") for test in options["test"].split(", ")):
        assert test in defined(path)
    # Off the path there are functions that no exercise asks for.
    assert "exercise" in options or where not in READING_PATH
    assert set(options.get("exercise", "sigmoid").split(", ")) <= EXERCISE_NAMES


def test_every_exercise_is_named_beside_the_idea_that_it_asks_for():
    pages = "".join(page.read_text() for page in ROOT.glob("docs/paper/*.md"))
    named = set(", ".join(re.findall(r"^:exercise: (.*)$", pages, re.M)).split(", "))
    assert EXERCISE_NAMES == named | set(re.findall(r"exercise: `([\w-]+)`", pages))


def builder():
    spec = importlib.util.spec_from_file_location("build", ROOT / "docs" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_link_of_the_texts_leads_somewhere():
    assert list(builder().broken_texts()) == []


def test_links_to_a_missing_file_heading_or_place_are_found(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "exercises.md").write_text("# The course\n")
    (tmp_path / "README.md").write_text(
        "[a](exercises.md) [b](exercises.md#the-course) [c](exercises.md#no) [d](no.png) "
        "[e](https://x.org/no) `docs/no.md`"
    )
    assert list(builder().broken_texts(tmp_path)) == [
        f"README.md: {x}" for x in ("exercises.md#no", "no.png", "docs/no.md")
    ]
    built = tmp_path / "built"
    built.mkdir()
    (built / "one.html").write_text('<a href="#x" id="x"></a><a href="two.html#y"></a><a href="two.html#z"></a>')
    (built / "two.html").write_text('<a id="y" href="one.html"></a><img src="no.png"><a href="#n"></a>')
    assert list(builder().broken_pages(built)) == ["one.html: two.html#z", "two.html: no.png", "two.html: #n"]


def test_the_builder_copies_no_code():
    pages = "".join(page.read_text() for page in ROOT.glob("docs/paper/*.md"))
    assert "```python" not in pages and "\n    def " not in pages
