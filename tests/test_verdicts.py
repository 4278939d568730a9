# ruff: noqa: E501  (a case a line)
"""Claims about what graders count as right (verify/), by kinds of answers, and about the time that it takes.

Each kind of answer that once got a wrong verdict has members made by a rule: examples alone are easily mended. Single
cases are rows of data/verdicts.jsonl (test_reward.py) and the known limits of docs/rewards.md.
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

import verify
from verify import graders, mathematics, texts, unfinished, workers

ROOT = Path(__file__).parents[1]
SEED = random.Random(28)


def verdict(answer, reference, prompt="", box="\\boxed{{{}}}"):
    """The verdict on a box, in this process: only answers that are quickly compared are asked for here."""
    found = graders.math(box.format(answer), reference)
    if isinstance(found, str):
        found = mathematics.equal(found, reference) and not graders.given_back(found, reference, prompt)
    return found


def made(rule, count):
    """`count` different cases of a rule that takes random numbers from 2 to 9."""
    cases = {}
    while len(cases) < count:
        case = rule(*(SEED.randint(2, 9) for _ in range(4)))
        cases[case] = None
    return list(cases)


def vector(*entries):
    return "\\begin{pmatrix}" + "\\\\".join(map(str, entries)) + "\\end{pmatrix}"


def test_examples_in_docstrings_are_true():
    for module in (graders, texts, unfinished):
        results = doctest.testmod(module)
        assert results.failed == 0 < results.attempted, module


def test_what_a_worker_compares_before_its_first_answer_is_equal():
    assert [pair for pair in workers.FIRST_PAIRS if mathematics.equal(*pair) is not True] == []


# --- Rules: (answer, reference) of random numbers --------------------------------------------------------------------

# fmt: off
WRONG = {
    "a matrix with a letter": lambda a, b, c, d: (f"{'xyt'[a % 3]}{vector(1, 1, d)}", vector(a, -b, c)),
    "another vector": lambda a, b, c, d: (f"({a}, {b}, {c})", vector(a, b, c + d)),
    "repeated members": lambda a, b, c, d: (f"({a}, {b}, {a}, {c})", f"({a}, {a}, {b}, {c + 9})"),
    "repeated members, turned": lambda a, b, c, d: (f"({a}, {b + 9}, {a})", f"({a}, {a}, {b + 9})"),
    "repeated another": lambda a, b, c, d: (f"({a}, {a}, {b + 9})", f"({a}, {b + 9}, {b + 9})"),
    "one for two": lambda a, b, c, d: (f"{a}{b}", f"({a}{b}, {a}{b})"),
    "quotient": lambda a, b, c, d: (f"\\frac{{{a * b}}}{{{b}}}", f"{a}"),
    "quotient in a line": lambda a, b, c, d: (f"({a * b})/{b}", f"{a}"),
    "division": lambda a, b, c, d: (f"{a * b} \\div {b}", f"{a}"),
    "divisor": lambda a, b, c, d: (f"\\gcd({a * b}, {a * b + a})", f"{a}"),
    "limit": lambda a, b, c, d: (f"\\lim_{{x \\to {a}}} (x + {b})", f"{a + b}"),
    "sum": lambda a, b, c, d: (f"\\sum_{{k=1}}^{{{a}}} {b}", f"{a * b}"),
    "integral": lambda a, b, c, d: (f"\\int_0^{a} {b} dx", f"{a * b}"),
    "remainder": lambda a, b, c, d: (f"{a * b + a - 1} \\mod {a}", f"{a - 1}"),
    "power": lambda a, b, c, d: (f"{a}^{{{b}}}", f"{a**b}"),
    "root": lambda a, b, c, d: (f"{a}\\sqrt{{{b * b}}}", f"{a * b}"),
    "absolute": lambda a, b, c, d: (f"|{a} - {a + b}|", f"{b}"),
    "complex": lambda a, b, c, d: (f"({a} + {b}i)({c} - {d}i)", f"{a * c + b * d} + {b * c - a * d}i"),
    "fractions": lambda a, b, c, d: (f"\\frac{{{a}}}{{{b}}} + \\frac{{{c}}}{{{b}}}", f"\\frac{{{a + c}}}{{{b}}}"),
    "roots": lambda a, b, c, d: (f"{a}\\sqrt{{{d}}} + {b}\\sqrt{{{d}}}", f"{a + b}\\sqrt{{{d}}}"),
    "terms": lambda a, b, c, d: (f"{a + 9}x + {b} - {c}x + {d}", f"{a + 9 - c}x + {b + d}"),
    "unsolved, an interval": lambda a, b, c, d: (f"{a}x < {a * b}", f"(-\\infty, {b})"),
    "unsolved": lambda a, b, c, d: (f"{a}x < {a * b}", f"x < {b}"),
    "intersection": lambda a, b, c, d: (f"[{a}, {a + b}] \\cap [{a + 1}, {a + b + c}]", f"[{a + 1}, {a + b}]"),
    "maximum": lambda a, b, c, d: (f"\\max({a}, {a + b})", f"{a + b}"),
    "floor": lambda a, b, c, d: (f"\\lfloor {a}.{b} \\rfloor", f"{a}"),
    "determinant": lambda a, b, c, d: (f"\\begin{{vmatrix}}{a} & 0 \\\\ {b} & {c}\\end{{vmatrix}}", f"{a * c}"),
    "two signs": lambda a, b, c, d: (f"--{a}{b}", f"{a}{b}"), "nothing": lambda a, b, c, d: (f"0x^{a}y^{b}", "0"),
    "off by one": lambda a, b, c, d: (f"{a}^{{{b}{c}{d}}} + 1", f"{a}^{{{b}{c}{d}}}"),
    "all but": lambda a, b, c, d: (f"{a}", f"{a} - \\frac{{1}}{{{b}^{{{c}{d}9}}}}"),
    "rounded": lambda a, b, c, d: (f"{a}.{b}\\times 10^{{2{c}}}", f"{a}{b}{'0' * (18 + c)}{d}"),
    "set for a pair": lambda a, b, c, d: (f"\\{{{a}, {a + b}\\}}", f"({a}, {a + b})"),
    "pair for a set": lambda a, b, c, d: (f"({a}, {a + b})", f"\\{{{a}, {a + b}\\}}"),
    "names turned": lambda a, b, c, d: (f"y = {a}, x = {a + b}", f"({a}, {a + b})"),
    "its roots": lambda a, b, c, d: (f"\\pm \\frac{{1}}{{{a}}}", f"{a * a}x^2 - 1 = 0"),
    "another statement": lambda a, b, c, d: (f"\\log_{a} {a**b} = {b}", f"\\log_{{{a + 1}}} {(a + 1) ** c} = {c}"),
    "a date as a quotient": lambda a, b, c, d: (f"{12 * c}/{b * c}", f"12/0{b}"),
    "a date as a sum": lambda a, b, c, d: (f"{2000 + a - b - c}", f"{2000 + a}-0{b}-0{c}"),
    "a range as a sum": lambda a, b, c, d: (f"{a - b}", f"{a}-{b}"),
    "a time as a ratio": lambda a, b, c, d: (f"{2 * a}:{20 + 2 * b}", f"{a}:{10 + b}"),
    "another time of day": lambda a, b, c, d: (f"{a}:1{b} pm", f"{a}:1{b} a.m."),
}
RIGHT = {
    "a product": lambda a, b, c, d: (f"{a}{vector(b, c)}", vector(a * b, a * c)),
    "a tuple": lambda a, b, c, d: (f"({a}, -{b}, \\frac{{{c}}}{{11}})", vector(a, -b, f"{c}/11")),
    "fraction": lambda a, b, c, d: (f"\\frac{{{a * c}}}{{{11 * c}}}", f"\\frac{{{a}}}{{11}}"),
    "root": lambda a, b, c, d: (f"\\sqrt{{{a * a * 7}}}", f"{a}\\sqrt{{7}}"),
    "root of a square": lambda a, b, c, d: (f"\\sqrt{{{a * a * b * b}}}", f"{a * b}"),
    "cube root": lambda a, b, c, d: (f"-\\sqrt[3]{{{a**3 * b**3}}}", f"-{a * b}"),
    "power of ten": lambda a, b, c, d: (f"10^{{{a + b}}}", f"{10 ** (a + b)}"),
    "decimal": lambda a, b, c, d: (f"10^{{-{a}}}", f"0.{'0' * (a - 1)}1"),
    "rationalised": lambda a, b, c, d: (f"\\frac{{{a}}}{{\\sqrt{{7}}}}", f"\\frac{{{a}\\sqrt{{7}}}}{{7}}"),
    "halves": lambda a, b, c, d: (f"-{a}.5\\pi", f"-\\frac{{{2 * a + 1}\\pi}}{{2}}"),
    "factor": lambda a, b, c, d: (f"{a}(1 + \\sqrt{{11}})", f"{a} + {a}\\sqrt{{11}}"),
    "scientific": lambda a, b, c, d: (f"{a} \\times 10^{{{b}}}", f"{a}{'0' * b}"),
    "unit": lambda a, b, c, d: (f"{a}.{b}{c} \\text{{ cm}}", f"{a}.{b}{c}"),
    "two units": lambda a, b, c, d: (f"{a}{b} km/h", f"{a}{b}"), "root in a line": lambda a, b, c, d: (f"\\sqrt{{{a}1}}/{b}", f"\\frac{{\\sqrt{{{a}1}}}}{{{b}}}"),
    "exponential": lambda a, b, c, d: (f"\\frac{{e^2}}{{{a}}}", f"\\frac{{1}}{{{a}}}\\exp(2)"),
    "interval": lambda a, b, c, d: (f"x < {a}.0", f"(-\\infty, {a})"),
    "chain": lambda a, b, c, d: (f"x = {a} \\cdot {b} = {a * b}", f"{a * b}"),
    "large": lambda a, b, c, d: (f"{a}\\cdot {a}^{{{b}{c}{d}}}", f"{a}^{{{10 * (10 * b + c) + d + 1}}}"),
    "names": lambda a, b, c, d: (f"x = {a}, y = {a + b}", f"({a}, {a + b})"),
    "line": lambda a, b, c, d: (f"y - {a * b + c} = {a}(x - {b})", f"y = {a}x + {c}"),
    "complex": lambda a, b, c, d: (f"{a}i + {b}", f"z = {b} + {a}i"), "positive": lambda a, b, c, d: (f"\\sqrt{{\\frac{{{a}h}}{{g}}}}", f"\\frac{{\\sqrt{{{a}h}}}}{{\\sqrt{{g}}}}"),
    "pairs": lambda a, b, c, d: (f"\\{{({a}, {b}), ({c}, 1)\\}}", f"({c}, 1), ({a}, {b})"),
}
# fmt: on


@pytest.mark.parametrize("kind", WRONG)
def test_no_answer_of_a_wrong_kind_is_paid(kind):
    assert [pair for pair in made(WRONG[kind], 8) if verdict(*pair) is not False] == []


@pytest.mark.parametrize("kind", RIGHT)
def test_every_answer_of_a_right_kind_is_right(kind):
    assert [pair for pair in made(RIGHT[kind], 8) if verdict(*pair) is not True] == []


# --- The question given back -----------------------------------------------------------------------------------------

# fmt: off
SPELLINGS = ["{}", "+{}", "y = {}", "f(x) = {}", "[{}]", "{{{}}}", "\\left({}\\right)", "1 \\cdot {}", "{} + 0", "\\displaystyle {}"]
FORMS = [  # (asked, the same in other words, what is to be found)
    ("(p+7)^2", ["(7+p)^2", "(p+7)^{2}", "(p+7)(p+7)", "(p + 7) \\cdot (7 + p)", "(-p-7)^2"], "p^2+14p+49"),
    ("(x+4)(x-9)", ["-(x+4)(9-x)", "(x+4)^1(x-9)", "x(x-9)+4(x-9)", "(-4-x)(9-x)"], "x^2-5x-36"),
    ("x^2+5x+6", ["6+5x+x^2", "x^{2}+5 \\cdot x+6", "x(x+5)+6", "x^2+5x^1+6", "x^2-(-5x-6)"], "(x+2)(x+3)"),
    ("\\frac{x^2-1}{x-1}", ["(x^2-1)/(x-1)", "\\dfrac{-1+x^2}{x-1}"], "x+1"),
    ("3(a+2b)-b", ["-b+3(2b+a)", "3 \\cdot (a+2b)-b"], "3a+5b"), ("(x+3)²", ["(x+3)^2", "(3+x)²"], "x^2+6x+9"),
    ("\\sqrt{72}", ["72^{1/2}", "\\sqrt[2]{72}", "√72", "2\\sqrt{18}"], "6\\sqrt{2}"),
    ("48 ÷ 36", ["48/36", "48:36", "\\frac{48}{36}", "48 \\div 36", "\\frac{048}{36}", "48\\cdot 36^{-1}"], "\\frac{4}{3}"),
    ("3.2 × 10^5", ["3.2 \\times 10^{5}", "3.2e5", "3.20 \\cdot 10^5"], "320000"),
    ("2 1/3", ["2\\frac{1}{3}", "2\\frac13"], "\\frac{7}{3}"), ("7/3", ["\\frac73"], "2\\frac{1}{3}"),
    ("3/8", ["\\frac{3}{8}"], "0.375"), ("0.375", [".375", "0.3750"], "\\frac{3}{8}"), ("62.5%", ["62.5\\%"], "\\frac{5}{8}"),
    ("45,000", ["45000", "45 000"], "4.5 \\times 10^4"), ("4x+y=9", ["4x+y-9=0", "y-9=-4x", "2y=18-8x", "9=y+4x"], "y=9-4x"),
]
OFFERED = [  # (prompt, answer, reference): right, though it stands in the prompt
    ("Which is larger, $\\frac{3}{4}$ or $\\frac{2}{3}$?", "\\frac{3}{4}", "3/4"), ("At 12:30 or at 1?", "12:30", "12:30"),
    ("Is $\\frac{a+b}{2}$ or $\\sqrt{ab}$ larger?", "\\frac{a+b}{2}", "\\frac{1}{2}(a+b)"), ("Which line, $AB$ or $BC$?", "AB", "AB"),
    ("Which is even: $x^2+1$, $x^3$?", "x^{2}+1", "1+x^2"), ("Let $f(x)=2x+1$ be known. Find $f$.", "f(x)=2x+1", "2x+1"),
    ("(A) $\\frac{1}{4}$ (B) $\\frac{1}{3}$", "\\frac13", "1/3"), ("It was 20% off. What percentage is that?", "20\\%", "20"),
    ("He got 80 of 100. What percentage is that?", "80", "80\\%"), ("Simplify $\\frac{6}{8}$.", "\\frac68=\\frac34", "\\frac34"),
]
# fmt: on


@pytest.mark.parametrize("question, others, value", FORMS)
def test_a_question_is_no_answer_in_any_spelling_and_its_value_is_one(question, others, value):
    for prompt in ("Rewrite {}.", "Rewrite ${}$.", "It costs \\$5. What is {} here, please?"):
        asked = prompt.format(question)
        for spelt in [form.format(formula) for formula in (question, *others) for form in SPELLINGS]:
            assert verdict(spelt, value, asked) is False, (spelt, asked)
        for said in ("The answer is ${}$.", "So $5$ is wrong.\n\n$${}$$", "\\[{}\\]", "Answer: {}"):
            assert verdict(question, value, asked, said) is not True, (said, asked)
        assert verdict(value, value, asked) is True and not graders.given_back(f"\\boxed{{{value}}}", value, asked)


def test_the_formulas_of_other_questions_are_no_question():
    for question, _, value in FORMS:
        for other in (f"{question} + 1", f"3 - ({question})", f"2({question})", "x", "5"):
            assert not graders.given_back(f"\\boxed{{{question}}}", question, f"What is ${other}$?"), other


@pytest.mark.parametrize("prompt, answer, reference", OFFERED)
def test_a_right_answer_that_stands_in_the_prompt_is_right_in_any_spelling(prompt, answer, reference):
    assert verdict(answer, reference, prompt) is True


# --- Words -----------------------------------------------------------------------------------------------------------


def test_the_letters_of_a_word_keep_their_order():
    two = "no on IV VI XI IX us is it if of or we me he up go so to at as an by my am do be ox id oh US EU UN un el de"
    words = two.split() + ["".join(SEED.sample("aeioulnrst", 3)) for _ in range(20)]
    turned = [(word[::-1], word) for word in words if word != word[::-1]]
    assert len(turned) > 50 and [pair for pair in turned if verdict(*pair) is not False] == []


def test_words_of_any_language_are_compared_after_folding():
    # fmt: off
    words = {"Bücher": "bücher", "Три.": "три", "星期三。": "星期三", "Ｗｅｄｎｅｓｄａｙ": "Wednesday", "STRASSE": "straße",
             "ñandú": "N\u0303andu\u0301", "\u0645\u0631\u062d\u0628\u0627": "\u0645\u0631\u062d\u0628\u0627", "सोमवार": "सोमवार", "„Mäuse“": "Mäuse"}
    # fmt: on
    for answer, same in words.items():
        assert [word for word in words.values() if verdict(answer, word)] == [same]


TEXTS = ["mice", "Bücher", "три", "星期三", "no", "l'eau", "two words", "first\nsecond line", "C#", "50%", "-3"]
TYPED = ["{}", " {}.\n", '"{}"', "\\boxed{{{}}}", "\\boxed{{\\text{{{}}}}}", "\\boxed{{\\textbf{{{}}}}}", "$\\mathrm{{{}}}$.", "`{}`"]  # fmt: skip


@pytest.mark.parametrize("word", TEXTS)
def test_the_task_text_takes_the_whole_answer_and_nothing_around_it(word):
    assert [form for form in TYPED if not graders.text(form.format(word), word)] == []
    assert graders.text(word.upper(), word) and graders.text(word, f"\\boxed{{{word}}}")
    others = (f"The plural is {word}.", f"{word} or {word}x", word + "s", word[::-1] + "q", "", "\\boxed{}")
    assert [other for other in others if graders.text(other, word)] == []


# --- Hostile answers -------------------------------------------------------------------------------------------------

LONG = "7" * 5_000  # digits: Python makes no int of them
NUMBERS = ["{}", "1 {}/3", "1\\frac{{{}}}{{3}}", "0.\\overline{{{}}}", "{}-01-05", "x={}", "{}\\%", "{}/{}", "{}_5", "({}, 2)"]  # fmt: skip
RAISES = ["x<\\frac{-b\\pm\\sqrt{-3}}{2}", "x < \\pm\\sqrt{-4}", "\\pm (i<3)", "1 < \\pm i x < 3"]


@pytest.mark.parametrize("answer", [form.format(LONG, LONG) for form in NUMBERS] + RAISES, ids=range(14))
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
