"""Claims about what graders count as right (verify/), by kinds of answers, and about the time that it takes.

Each kind of answer that once got a wrong verdict has members made by a rule (data/kinds.jsonl): examples alone are
easily mended. Single cases are rows of data/verdicts.jsonl (test_scorer.py) and the known limits of docs/rewards.md.
"""

import ast
import doctest
import pkgutil
import random
import re
import time
from importlib import import_module
from pathlib import Path

import pytest
from conftest import rows

import verify
from verify import graders, mathematics, texts, unfinished, workers

ROOT = Path(__file__).parents[1]


def verdict(answer, reference, prompt="", box="\\boxed{{{}}}"):
    """The verdict on a box, in this process: only answers that are quickly compared are asked for here."""
    found = graders.math(box.format(answer), reference)
    if isinstance(found, str):
        found = mathematics.equal(found, reference) and not graders.given_back(found, reference, prompt)
    return found


def vector(*entries):
    """Used by rules."""
    return "\\begin{pmatrix}" + "\\\\".join(map(str, entries)) + "\\end{pmatrix}"


def test_examples_in_docstrings_are_true():
    for module in (graders, texts, unfinished):
        results = doctest.testmod(module)
        assert results.failed == 0 < results.attempted, module


def test_what_a_worker_compares_before_its_first_answer_is_equal():
    assert [pair for pair in workers.FIRST_PAIRS if mathematics.equal(*pair) is not True] == []


# --- Characters; which expression ---

WRONG_18 = [
    "",
    "018",
    "+18",
    "18.0",
    "1 8",
    "-18",
    "18\x00",
    "１８",
    "\u00a018",
    "<think>18",
    "\\boxed{18}",
    "18" * 500_000,
]


@pytest.mark.parametrize(
    ("reference", "right", "wrong"),
    [
        ("18", ["18", " 18", "18\n", "\t18 \r\n"], WRONG_18),
        ("-4", ["-4"], ["4", "- 4", "\u22124"]),
        ("02357", ["02357\n"], ["2357", "0 2 3 5 7", "02375", "023577"]),
    ],
)
def test_arithmetic_and_sorting_take_the_same_characters_with_ascii_whitespace_around_them(reference, right, wrong):
    assert all(graders.exact(answer, reference) for answer in right)
    assert not any(graders.exact(answer, reference) for answer in wrong)


@pytest.mark.parametrize(
    ("answer", "expression"),
    [
        ("\\boxed{1} no, \\boxed{\\frac{1}{2}}.", "\\boxed{\\frac{1}{2}}"),
        ("\\boxed{\\{1, 2\\}} done }", "\\boxed{\\{1, 2\\}}"),
        ("\\boxed{\\left\\{ x \\right.}", "\\boxed{\\left\\{ x \\right.}"),  # an escaped brace needs no partner
        ("\\boxed{1} then \\boxed{2", ""),
        # Boxes with nothing but a joining word between them are a list, in their order.
        ("\\boxed{1}, \\boxed{2}, and $\\boxed{3}$.", "\\boxed{1, 2, 3}"),
        ("$x = \\boxed{1}$ or $x = \\boxed{-2}$", "\\boxed{1, -2}"),
        ("\\boxed{7}\n\n$\\boxed{7}$", "\\boxed{7}"),  # the same answer twice
        ("\\boxed{5} is wrong, and \\boxed{6}", "\\boxed{6}"),
        ("\\boxed{1}" + " " * 99 + "\\boxed{2}", "\\boxed{2}"),
        ("\\boxed{1}, " * 100_000 + "\\boxed{2}", "\\boxed{1, 2}"),
        ("\\boxed{}", "\\boxed{}"),
        ("\\boxed{" + "{" * 1_000_000, ""),
        (" it is 18 ", "it is 18"),
        ("9" + "0" * 1_000_000 + "18", ""),  # its end, read alone, would be 18
    ],
)
def test_math_expression_is_the_last_whole_box_or_the_whole_short_answer(answer, expression):
    assert mathematics.final_expression(answer) == expression


# --- Rules -----------------------------------------------------------------------------------------------------------


def made(rule):
    """Different (answer, reference, prompt) of a rule: f-strings of numbers from 2 to 9."""
    seed, cases = random.Random(rule["kind"]), set()
    for _ in range(9):
        numbers = {name: seed.randint(2, 9) for name in "abcd"}
        parts = (rule["answer"], rule["reference"], rule.get("prompt", ""))
        cases.add(tuple(eval(f"f{part!r}", {"vector": vector}, numbers) for part in parts))
    return cases


@pytest.mark.parametrize("rule", rows("kinds"), ids=lambda rule: rule["kind"])
def test_every_answer_of_a_right_kind_is_right_and_none_of_a_wrong_kind_is(rule):
    assert [case for case in made(rule) if verdict(*case) is not rule["correct"]] == []


# --- The question given back -----------------------------------------------------------------------------------------

QUESTIONS = rows("questions")  # what is asked, the same in other words, and what is to be found
SPELLINGS = ["{}", "y = {}", "[{}]", "\\left({}\\right)", "{} + 0", "\\displaystyle {}"]


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: row["asked"])
def test_a_question_is_no_answer_in_any_spelling_and_its_value_is_one(row):
    question, value = row["asked"], row["value"]
    for prompt in ("Rewrite {}.", "It costs \\$5. What is ${}$ here, please?"):
        asked = prompt.format(question)
        for spelt in [form.format(formula) for formula in (question, *row["others"]) for form in SPELLINGS]:
            assert verdict(spelt, value, asked) is False, (spelt, asked)
        for said in ("The answer is ${}$.", "\\[{}\\]", "Answer: {}"):
            assert verdict(question, value, asked, said) is not True, (said, asked)
        assert verdict(value, value, asked) is True and not graders.given_back(f"\\boxed{{{value}}}", value, asked)


def test_the_formulas_of_other_questions_are_no_question():
    for question in (row["asked"] for row in QUESTIONS):
        for other in (f"{question} + 1", f"2({question})", "x"):
            assert not graders.given_back(f"\\boxed{{{question}}}", question, f"What is ${other}$?"), other


# --- Words -----------------------------------------------------------------------------------------------------------


def test_the_letters_of_a_word_keep_their_order():
    words = "no on IV VI us is it if of me up so to at am be ox US UN el aei orn tsl".split()
    assert [word for word in words if verdict(word[::-1], word) is not False] == []


def test_words_of_any_language_are_compared_after_folding():
    words = {
        "Bücher": "bücher",
        "Три.": "три",
        "星期三。": "星期三",
        "Ｗｅｄｎｅｓｄａｙ": "Wednesday",
        "STRASSE": "straße",
    }
    words |= {"ñandú": "N\u0303andu\u0301", "सोमवार": "सोमवार", "„Mäuse“": "Mäuse"}
    for answer, same in words.items():
        assert [word for word in words.values() if verdict(answer, word)] == [same]


TEXTS = ["mice", "星期三", "l'eau", "two words", "first\nsecond line", "C#", "50%", "-3"]
TYPED = ["{}", " {}.\n", '"{}"', "\\boxed{{\\text{{{}}}}}", "$\\mathrm{{{}}}$.", "`{}`"]


@pytest.mark.parametrize("word", TEXTS)
def test_the_task_text_takes_the_whole_answer_and_nothing_around_it(word):
    assert [form for form in TYPED if not graders.text(form.format(word), word)] == []
    assert graders.text(word.upper(), word) and graders.text(word, f"\\boxed{{{word}}}")
    others = (f"The plural is {word}.", f"{word} or {word}x", word + "s", word[::-1] + "q", "", "\\boxed{}")
    assert [other for other in others if graders.text(other, word)] == []


# --- Hostile answers -------------------------------------------------------------------------------------------------

LONG = "7" * 5_000  # digits: Python makes no int of them
NUMBERS = ["{}", "1\\frac{{{}}}{{3}}", "0.\\overline{{{}}}", "{}-01-05", "x={}", "{}\\%", "{}/{}", "{}_5", "({}, 2)"]
RAISES = ["x<\\frac{-b\\pm\\sqrt{-3}}{2}", "x < \\pm\\sqrt{-4}", "\\pm (i<3)", "1 < \\pm i x < 3"]


@pytest.mark.parametrize("answer", [form.format(LONG, LONG) for form in NUMBERS] + RAISES, ids=range(13))
def test_what_python_or_sympy_raise_on_an_answer_makes_it_wrong(answer):
    for reference in ("5", "\\frac{1}{2}", "Paris", "2024-01-05", "(1,2)", "12_5", "x<3", "\\pm 2"):
        assert verdict(answer, reference) is False, reference


def patterns():
    """(where, pattern) of all regular expressions of verify/: compiled ones, and texts given to the functions of re."""
    found = {}

    def collect(where, value):
        if isinstance(value, re.Pattern):
            found[value] = where
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            collect(where, inner)

    for module in pkgutil.iter_modules(verify.__path__):
        where = import_module(f"verify.{module.name}")
        for name, value in vars(where).items():
            collect(f"{module.name}.{name}", value)
        for call in ast.walk(ast.parse(Path(where.__file__).read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("re.") and call.args:
                if isinstance(call.args[0], ast.Constant):
                    found[re.compile(call.args[0].value)] = f"{module.name}, line {call.lineno}"
    return sorted((where, pattern.pattern, pattern.flags) for pattern, where in found.items())


def slowest(pattern, length, seed=0):
    """(seconds of CPU, text) of the slowest search on `length` characters of repeated pieces of the pattern."""
    pieces = re.findall(r"[A-Za-z]{2,}|\\?[^A-Za-z0-9]", pattern.pattern) + list(" ax17\\${}\n~°.") + ["cm ", "\\text{"]
    r = random.Random(seed)
    texts = ["".join(r.choices(pieces, k=r.randint(1, 3))).replace("\\\\", "\\") for _ in range(60)] + pieces[-16:]
    took = []
    for piece in texts:
        text = (piece * length)[:length] + "!"
        start = time.thread_time()
        for _ in pattern.finditer(text):
            pass
        took.append((time.thread_time() - start, piece))
    return max(took)


@pytest.mark.parametrize("where, pattern, flags", patterns())
def test_every_regular_expression_of_the_graders_takes_a_time_linear_in_the_text(where, pattern, flags):
    compiled = re.compile(pattern, flags)
    assert slowest(compiled, 3_000)[0] < 0.2  # else the next line would take minutes
    assert slowest(compiled, 100_000)[0] < 0.2


# --- Known limits ----------------------------------------------------------------------------------------------------

LIMIT = re.compile(r"^\d+\. `(.+?)` for `(.+?)`(?: of \"(.+?)\")? is (right|wrong)", re.M)
LIMITS = LIMIT.findall((ROOT / "docs" / "rewards.md").read_text())


@pytest.mark.parametrize("answer, reference, prompt, given", LIMITS)
def test_the_known_limits_of_the_docs_are_as_they_say(answer, reference, prompt, given):
    assert verdict(answer, reference, prompt, box="{}") is (given == "right")


def test_the_docs_list_all_their_known_limits():
    listed = (ROOT / "docs" / "rewards.md").read_text().partition("## Known limits")[2].partition("\n## ")[0]
    assert len(LIMITS) == len(re.findall(r"^\d+\. ", listed, re.M)) > 5
