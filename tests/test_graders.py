"""Claims about what graders count as right (verify/), by kinds of answers, and about the time that it takes.

Each kind of answer that once got a wrong verdict has members made by a rule (data/kinds.jsonl): examples alone are
easily mended. Single cases are rows of data/verdicts.jsonl (test_scorer.py), and of the forms in docs/rewards.md.
"""

import json
import random
import re
import time
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from string import Formatter

import pytest
from conftest import refuses, rows, write_rows

from data import Prompt
from plumbing import prompts as sources
from verify import graders, mathematics, programs, vocabulary
from verify.scorer import verdicts

ROOT = Path(__file__).parents[1]


def verdict(answer, reference, prompt="", box="\\boxed{{{}}}"):
    """The verdict on a box, in this process: only answers that are quickly compared are asked for here."""
    found = graders.math(box.format(answer), reference)
    if isinstance(found, str):
        found = mathematics.equal(found, reference, prompt) and not graders.given_back(found, reference, prompt)
    return found


# --- The contract of every task --------------------------------------------------------------------------------------


def scored(cases):
    """The Score of each (task, answer, reference), in order."""
    pairs = [(answer, Prompt(n, (1,), "?", reference, task)) for n, (task, answer, reference) in enumerate(cases)]
    return sorted(verdicts(pairs, timeout=20.0), key=lambda score: score.prompt.index)


@pytest.mark.parametrize("task", graders.TASKS)
def test_a_tasks_answers_are_right_for_themselves_and_wrong_for_their_neighbours(task):
    examples = graders.TASKS[task]
    neighbours = [(answer, before[1]) for before, (answer, _) in zip(examples.right, examples.right[1:])]
    assert len(examples.right) > 1 and (task == "code" or any(right in answer for answer, right in examples.wrong))
    for expected, pairs in ((True, examples.right), (False, [*examples.wrong, *neighbours])):
        scores = scored([(task, *pair) for pair in pairs])
        assert [pair for pair, score in zip(pairs, scores) if score.correct is not expected] == []


@pytest.mark.parametrize("task", graders.TASKS)
def test_a_tasks_unreadable_reference_is_found_and_named_when_the_data_is_loaded(task, tmp_path, tokenizer):
    examples = graders.TASKS[task]
    path = tmp_path / "rows.jsonl"
    answers = [examples.right[0][1], examples.unreadable]
    write_rows(path, [{"prompt": f"{n}", "answer": answer, "task": task} for n, answer in enumerate(answers)])
    refuses("rows.jsonl:2: ", sources.read_sources, str(path), tokenizer, budget=9)


# --- Which expression ---


LONG_ANSWERS = [
    {"answer": "\\boxed{1}, " * 100_000 + "\\boxed{2}", "expression": "\\boxed{1, 2}"},
    {"answer": "9" + "0" * 1_000_000 + "18", "expression": ""},  # its end, read alone, would be 18
]


@pytest.mark.parametrize("row", LONG_ANSWERS + rows("expressions"), ids=count())
def test_the_final_expression_is_the_last_boxes_in_one_list_or_the_whole_short_answer(row):
    assert mathematics.final_expression(row["answer"]) == row["expression"]


@pytest.mark.parametrize("pattern, replacement, before, after", mathematics.NORMALISE, ids=count())
def test_every_rule_of_normalise_does_what_stands_beside_it(pattern, replacement, before, after):
    if replacement is vocabulary.units:
        replacement = partial(vocabulary.units, known="", powers=set())
    elif replacement is vocabulary.currency:
        replacement = partial(vocabulary.currency, powers=set())
    assert pattern.sub(replacement, before) == after != before


# --- Rules -----------------------------------------------------------------------------------------------------------


def made(rule):
    """Different (answer, reference, prompt) of a rule: f-strings of numbers from 2 to 9."""
    seed, cases = random.Random(rule["kind"]), set()
    for _ in range(5):
        numbers = {name: seed.randint(2, 9) for name in "abcd"}
        parts = (rule["answer"], rule["reference"], rule.get("prompt", ""))
        cases.add(tuple(eval(f"f{part!r}", numbers) for part in parts))
    return cases


@pytest.mark.parametrize("rule", rows("kinds"), ids=lambda rule: rule["kind"])
def test_every_answer_of_a_right_kind_is_right_and_none_of_a_wrong_kind_is(rule):
    assert [case for case in made(rule) if verdict(*case) is not rule["correct"]] == []


# --- Wrong answers made by rules -------------------------------------------------------------------------------------

ATTACKS = rows("attacks")
WORDS = "Paris Tuesday mice no yes IV Bücher miércoles три 星期三 converges even AB increasing true blue none".split()
WORDS += ["two words", "l'eau", "Äpfel"]


def filled(template, names):
    """The text with the values of its expressions."""
    parts = Formatter().parse(template)
    return "".join(text + (format(eval(name, names), spec) if name else "") for text, name, spec, _ in parts)


def matrix(entries, kind="pmatrix"):
    return f"\\begin{{{kind}}}" + " \\\\ ".join(" & ".join(map(str, row)) for row in entries) + f"\\end{{{kind}}}"


def drawn(r):
    """A value for each name that the rules hold."""
    a, b, c = r.sample(range(2, 10), 3)
    low, high = sorted(r.sample(range(-20, 30), 2))  # low + 1 lies between them
    members = sorted(r.sample(range(-9, 30), r.randint(2, 4)))
    opening, closing = r.choice("[("), r.choice("])")
    word, another = r.sample(WORDS, 2)
    letter, unlike = r.sample("ABCDE", 2)
    tall, wide = r.randint(1, 3), r.randint(2, 3)
    entries = [[r.randint(-9, 9) for _ in range(wide)] for _ in range(tall)]
    inside, listed = (", ".join(map(str, some)) for some in ([a, b, c][: r.randint(2, 3)], members))
    x = r.choice("xtkmp")
    names = dict(a=a, b=b, c=c, d=c, n=11 * low + 300, low=low, high=high, huge=170 + 90 * c, long=20 + 4 * a, x=x)
    names |= dict(word=word, another=another)
    names |= dict(letter=letter, unlike=unlike, opening=opening, closing=closing)
    names |= dict(sign={"[": "\\le", "(": "<", "]": "\\le", ")": "<"})
    names |= dict(members=members, listed=listed, fewer=", ".join(map(str, members[:-1])), beyond=members[-1] + a)
    names |= dict(whole=r.choice([listed, f"\\{{{listed}\\}}"]))
    names |= dict(inside=inside, json=json, matrix=matrix)
    names |= dict(rows=entries, m=matrix(entries), changed=[*entries[:-1], [*entries[-1][:-1], entries[-1][-1] + a]])
    names |= dict(unequal=[[10 + a + one % 3 for one in row] for row in entries])
    names |= dict(top=a * b * c, bottom=11 * b * c)
    names |= dict(product=f"({x}+{a})({x}-{a + b})", total=f"{x}^2-{b}{x}-{a * (a + b)}")
    question, asked = (r.choice(of_kind(f"{kind} asked")) for kind in ("questions", "calculations"))
    names |= dict(question=filled(question["answer"], names), found=filled(question["reference"], names))
    names |= dict(wanted=filled(r.choice(of_kind("questions prompts"))["answer"], names))
    result = filled(asked["reference"], names)
    return names | dict(calculation=filled(asked["answer"], names), worked=r.choice([result, f"x = {result}"]))


def of_kind(kind):
    return [row for row in ATTACKS if row["kind"] == kind]


GRADERS = {
    "choice": graders.choice,
    "lines": graders.text,
    "outputs": lambda written, expected: programs.right_output(None, written.encode(), expected),
    "results": lambda written, expected: programs.right_output("f", written.encode(), json.loads(expected)),
}  # else: mathematics


@pytest.mark.parametrize("kind", dict.fromkeys(row["kind"] for row in ATTACKS if " " not in row["kind"]))
def test_no_wrong_answer_that_a_rule_makes_gets_a_reward(kind):
    r = random.Random(kind)
    rewarded = []
    for row in of_kind(kind):
        for _ in range(9 if kind in GRADERS else 2):
            names = drawn(r)
            parts = [filled(row[part], names) for part in ("answer", "reference", "prompt") if part in row]
            rewarded += [parts] if GRADERS.get(kind, verdict)(*parts) is True else []
    assert rewarded == []


# --- The question given back -----------------------------------------------------------------------------------------

QUESTIONS = rows("questions")  # what is asked, the same in other words, and what is to be found
SPELLINGS = ["{}", "y = {}", "[{}]", "\\left({}\\right)", "{} + 0", "\\displaystyle {}"]


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: row["asked"])
def test_a_question_is_no_answer_in_any_spelling_and_its_value_is_one(row):
    question, value = row["asked"], row["value"]
    asked = f"It costs \\$5. What is ${question}$ here, please?"
    for spelt in [form.format(formula) for formula in (question, *row["others"]) for form in SPELLINGS]:
        assert verdict(spelt, value, asked) is False, spelt
    for box in ("The answer is ${}$.", "Answer: {}"):
        assert verdict(question, value, asked, box) is not True, box
    assert verdict(value, value, asked) is True and not graders.given_back(f"\\boxed{{{value}}}", value, asked)


def test_the_formulas_of_other_questions_are_no_question():
    for question in (row["asked"] for row in QUESTIONS):
        for other in (f"{question} + 1", f"2({question})", "x"):
            assert not graders.given_back(f"\\boxed{{{question}}}", question, f"What is ${other}$?"), other


# --- Hostile answers -------------------------------------------------------------------------------------------------

LONG = "7" * 5_000  # digits: Python makes no int of them
NUMBERS = ["{}", "1\\frac{{{}}}{{3}}", "0.\\overline{{{}}}", "{}-01-05", "x={}", "{}\\%", "{}/{}", "{}_5", "({}, 2)"]
RAISES = ["x<\\frac{-b\\pm\\sqrt{-3}}{2}", "x < \\pm\\sqrt{-4}", "\\pm (i<3)", "1 < \\pm i x < 3"]


@pytest.mark.parametrize("answer", [form.format(LONG, LONG) for form in NUMBERS] + RAISES, ids=range(13))
def test_what_python_or_sympy_raise_on_an_answer_makes_it_wrong(answer):
    for reference in ("\\frac{1}{2}", "2024-01-05", "(1,2)", "x<3", "\\pm 2"):
        assert verdict(answer, reference) is False, reference


def patterns():
    """{pattern: where it stands} of the compiled regular expressions of verify/."""
    places = {pattern: "NORMALISE" for pattern, *_ in mathematics.NORMALISE}
    for path in (ROOT / "verify").glob("*.py"):
        constants = vars(import_module(f"verify.{path.stem}")).items()
        places |= {value: f"{path.stem}.{name}" for name, value in constants if isinstance(value, re.Pattern)}
    return places


def seconds(pattern, piece, length):
    """Seconds of CPU that the pattern takes for `length` characters of a repeated piece."""
    text = (piece * length)[:length] + "!"
    start = time.thread_time()
    for _ in pattern.finditer(text):
        pass
    return time.thread_time() - start


def test_every_regular_expression_of_the_graders_takes_a_time_linear_in_the_text():
    r = random.Random(0)
    for pattern, where in patterns().items():
        parts = (
            re.findall(r"[A-Za-z]{2,}|\\?[^A-Za-z0-9]", pattern.pattern) + list(" ax17\\${}\n~°.") + ["cm ", "\\text{"]
        )
        pieces = ["".join(r.choices(parts, k=r.randint(1, 3))).replace("\\\\", "\\") for _ in range(40)] + parts[-16:]
        # The slowest of 1,000 characters, in 20,000: what grows with the square takes seconds there.
        slowest = sorted(pieces, key=lambda piece: seconds(pattern, piece, 1_000))[-3:]
        assert max(seconds(pattern, piece, 20_000) for piece in slowest) < 0.5, (where, pattern)


# --- What the docs say ------------------------------------------------------------------------------------------------

FORM = re.compile(r"^\| ([^|]+) \| `(.+?)` for `(.+?)`(?: of \"(.+?)\")? \| `(.+?)` \|$", re.M)
REWARDS = ROOT / "docs" / "rewards.md"
FORMS = FORM.findall(REWARDS.read_text()) if REWARDS.exists() else []


@pytest.mark.parametrize("kind, answer, reference, prompt, wrong", FORMS, ids=[form[0] for form in FORMS])
def test_the_forms_of_the_docs_are_read_as_they_say(kind, answer, reference, prompt, wrong):
    assert verdict(answer, reference, prompt, box="{}") is True
    assert verdict(wrong, reference, prompt, box="{}") is not True
