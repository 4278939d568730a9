"""What the README shows exists: files, functions, tests, flags, figures."""

import re

import pytest
from conftest import ROOT

from plumbing import settings

README = (ROOT / "README.md").read_text()
PAGES = README + "".join(page.read_text() for page in sorted(ROOT.glob("docs/**/*.md")))

NAMES = r"`((?:(?:plumbing|verify|lab|course)/(?:\w+/)*)?[a-z0-9_]+\.py):([\w.]+)`"


@pytest.mark.parametrize("file, name", sorted(set(re.findall(NAMES, PAGES))))
def test_every_function_that_the_readme_names_is_defined(file, name):
    path = ROOT / "tests" / file if file.startswith("test_") else ROOT / file
    last = name.rpartition(".")[2]
    assert re.search(rf"^ *(def|class) {last}\b|^{name} = ", path.read_text(), re.M)


def test_every_place_of_the_paper_is_found_by_one_search():
    """In a table, which names the code, or says that it is not covered."""
    table = (ROOT / "docs" / "paper" / "map.md").read_text()
    places = [f"Eq. {n}" for n in range(1, 10)] + [f"Fig. {n}" for n in range(1, 12)] + ["Table 1", "A.19"]
    places += [f"Sec. {n}" for n in ("2", "2.1", "3.1", "3.2", "4", "5")] + [f"A.{n}" for n in range(3, 18)]
    assert not [place for place in places if not re.search(rf"{re.escape(place)}(?![0-9.]*[0-9])", table)]


def test_every_flag_that_the_readme_names_is_read():
    known = {option for action in settings.known_flags()._actions for option in action.option_strings}
    files = (path for folder in ("plumbing", "lab") for path in (ROOT / folder).rglob("*.py"))
    others = set(re.findall(r'"(--[\w-]+)"', "".join(file.read_text() for file in files)))
    assert set(re.findall(r"(?<![\w-])(--[a-z][\w-]*)", README)) <= known | others | {"--index-url"}  # of pip
