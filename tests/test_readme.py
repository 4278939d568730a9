"""What the README shows exists: files, functions, tests, flags, figures."""

import re
from pathlib import Path

import pytest
from conftest import defined

from plumbing import settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = README + "".join(page.read_text() for page in sorted(ROOT.glob("docs/**/*.md")))

NAMES = r"`((?:(?:plumbing|verify|lab|course)/(?:\w+/)*)?[a-z0-9_]+\.py):([\w.]+)`"
READING_PATH = (ROOT / "docs" / "paper" / "path.md").read_text()


@pytest.mark.parametrize("file, name", sorted(set(re.findall(NAMES, PAGES))))
def test_every_function_that_the_readme_names_is_defined(file, name):
    path = ROOT / "tests" / file if file.startswith("test_") else ROOT / file
    assert name in defined(path) or re.search(rf"^{name} = ", path.read_text(), re.M)


def test_the_readme_is_short():
    assert len(re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S).split()) <= 900


@pytest.mark.parametrize(
    "part, patterns", [("The paper", ["*.py"]), ("The rest of a run", ["plumbing/*.py", "verify/*.py"])]
)
def test_the_tree_says_how_many_lines_there_are_to_read(part, patterns):
    files = (path for pattern in patterns for path in ROOT.glob(pattern) if path.name != "exercises.py")
    lines = sum(path.read_text().count("\n") for path in files)
    said = int(re.search(rf"{part}, in ([\d,]+) lines", README)[1].replace(",", ""))
    assert said == pytest.approx(lines, rel=0.05)


@pytest.mark.parametrize(
    "place",
    [
        *(f"Eq. {n}" for n in range(1, 10)),
        *(f"Fig. {n}" for n in range(1, 12)),
        "Table 1",
        *(f"Sec. {n}" for n in ("2", "2.1", "3.1", "3.2", "4", "5")),
        *(f"A.{n}" for n in range(3, 18)),
        "A.19",
    ],
)
def test_every_place_of_the_paper_is_found_by_one_search(place):
    """In a table, which names the code, or says that it is not covered."""
    table = (ROOT / "docs" / "paper" / "map.md").read_text()
    assert re.search(rf"{re.escape(place)}(?![0-9.]*[0-9])", table)


def test_every_flag_that_the_readme_names_is_read():
    known = {option for action in settings.known_flags()._actions for option in action.option_strings}
    of_pip = {"--index-url"}
    files = (path for folder in ("plumbing", "lab") for path in (ROOT / folder).rglob("*.py"))
    others = set(re.findall(r'"(--[\w-]+)"', "".join(file.read_text() for file in files)))
    assert set(re.findall(r"(?<![\w-])(--[a-z][\w-]*)", README)) <= known | of_pip | others


def test_every_figure_is_shown_or_named_in_a_text():
    texts = "".join(
        path.read_text() for path in (ROOT / "README.md", *ROOT.glob("results/*.md"), *ROOT.glob("docs/**/*.md"))
    )
    assert not [path.name for path in ROOT.glob("figures/*") if f"figures/{path.name}" not in texts]
