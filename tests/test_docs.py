"""The pages of docs/ show every function of the reading path (docs/paper/path.md) with what holds it."""

import re
import runpy
from collections import defaultdict
from pathlib import Path

import pytest
from conftest import ROOT, given, trained

from course.checks.catalogue import EXERCISES

PAGES = {page.name: page.read_text() for page in sorted(ROOT.glob("docs/paper/*.md"))}
BUILD = runpy.run_path(str(ROOT / "docs" / "build.py"))
READING_PATH = set(re.findall(r"`([\w/]+\.py:[\w.]+)`", PAGES["path.md"]))
PASSAGES = {}  # "file.py:name" -> what stands below that heading
for text in PAGES.values():
    PASSAGES |= re.findall(r"^##+ `(\S+\.py:\S+)`\n(.*?)(?=^##|\Z)", text, re.M | re.S)


def exercises_of(text):
    named = re.findall(r"\[Exercises?\]\S*: ([^.]*)\.", text)
    return set(re.findall(r"`([\w-]+)`", " ".join(named)))


@pytest.mark.parametrize("where", sorted(READING_PATH | PASSAGES.keys()))
def test_every_function_of_the_reading_path_has_code_tests_and_an_exercise(where):
    prose, code, _ = PASSAGES[where].partition("```python\n")
    _, tests, _ = prose.partition("Code: [")
    assert code and tests
    for test, path in re.findall(r"\[`(test_\w+)`\]\(../../(\S+)\)", prose):
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")
    # Off the path there are functions that no exercise asks for.
    assert exercises_of(prose) or where not in READING_PATH


def test_every_exercise_is_named_beside_the_idea_that_it_asks_for():
    assert exercises_of("".join(PAGES.values())) == {exercise.name for exercise in EXERCISES}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_code_of_today(page):
    assert BUILD["filled"](PAGES[page]) == PAGES[page], "run python docs/build.py --fill"


def test_every_link_of_the_texts_leads_somewhere():
    assert list(BUILD["broken_texts"]()) == []


def test_the_loss_that_the_page_shows_can_be_trained_on(losses_as_before):
    [code, spec] = re.findall(r"```py\n(.*?)```\n\n```\ntorchrun train\.py --loss (\S+)\n", PAGES["losses.md"], re.S)[0]
    Path(spec.partition(":")[0]).write_text(code, encoding="utf-8")
    assert given(f"--loss {spec}").loss.endswith(spec)  # which tries it too


def test_the_table_of_the_log_names_the_columns_that_a_run_logs():
    text = (ROOT / "docs" / "running.md").read_text()
    table, logged = defaultdict(set), defaultdict(set)
    for kinds, columns in re.findall(r"^\| ([a-z, ]+) \| (`\w+`(?:, `\w+`)*) \|", text, re.M):
        for kind in kinds.split(", "):
            table[kind] |= set(re.findall(r"\w+", columns))
    every = table.pop("all")
    small = "--prompts 2 --generations 4 --steps 6 --eval-every 1 --eval-prompts 4 --eval-generations 2 --slots 8"
    for row in trained(f"--data tiny --virtual balanced {small}"):
        assert every <= row.keys()
        logged[row["kind"]] |= row.keys() - every
    assert logged == table
