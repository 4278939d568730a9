"""The pages of docs/ show every function of the reading path (docs/paper/path.md) with what holds it."""

import re
import runpy
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from conftest import given, trained

import loss
from course.checks.catalogue import EXERCISES

ROOT = Path(__file__).parent.parent
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
def test_every_function_of_the_reading_path_has_code_test_exercise_and_what_to_look_for(where):
    prose, code, _ = PASSAGES[where].partition("```python\n")
    about, tests, _ = prose.partition("Code: [")
    assert code and tests
    assert len(about.split()) > 5
    for test, path in re.findall(r"\[`(test_\w+)`\]\(../../(\S+)\)", prose):
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")
    # Off the path there are functions that no exercise asks for.
    assert exercises_of(prose) or where not in READING_PATH


def test_every_exercise_is_named_beside_the_idea_that_it_asks_for():
    assert exercises_of("".join(PAGES.values())) == {exercise.name for exercise in EXERCISES}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_code_of_today_and_at_most_600_words_of_prose(page):
    text = PAGES[page]
    assert BUILD["filled"](text) == text, "run python docs/build.py --fill"
    assert len(re.sub(r"^```.*?^```$|^\|.*?$", "", text, flags=re.M | re.S).split()) <= 600


def test_every_link_of_the_texts_leads_somewhere():
    assert list(BUILD["broken_texts"]()) == []


def test_the_loss_that_the_page_shows_is_one_and_its_floor_acts(tmp_path, monkeypatch, losses_as_before):
    monkeypatch.chdir(tmp_path)
    [code, spec] = re.findall(r"```py\n(.*?)```\n\n```\ntorchrun train\.py --loss (\S+)\n", PAGES["losses.md"], re.S)[0]
    Path(spec.partition(":")[0]).write_text(code, encoding="utf-8")
    given(f"--loss {spec}")  # which tries it too
    floored = loss.LOSSES[str(tmp_path / spec)].objective
    logprobs = torch.tensor([[0.1, 0.5, 0.5]]).log().requires_grad_()  # ratios 1/8, 1 and 10
    mask = torch.tensor([[True, True, True]])
    floored(logprobs, torch.tensor([[0.8, 0.5, 0.05]]).log(), torch.tensor([2.0]), mask).sum().backward()
    assert logprobs.grad[0].tolist() == pytest.approx([1.0, 2.0, 10.0])  # weights 0.5, 1 and 5


def test_the_table_of_the_log_names_the_columns_that_a_run_logs(tmp_path):
    text = (ROOT / "docs" / "running.md").read_text()
    table = defaultdict(set)
    for kinds, columns in re.findall(r"^\| ([a-z, ]+) \| (`\w+`(?:, `\w+`)*) \|", text, re.M):
        for kind in kinds.split(", "):
            table[kind] |= set(re.findall(r"\w+", columns))
    every = table.pop("all")
    small = "--prompts 2 --generations 4 --steps 6 --eval-every 1 --eval-prompts 4 --eval-generations 2 --slots 8"
    logged = defaultdict(set)
    for row in trained(f"--data tiny --virtual balanced {small}", tmp_path / "run"):
        assert every <= row.keys()
        logged[row["kind"]] |= row.keys() - every
    assert logged == table
