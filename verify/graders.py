"""Graders: which answers are right, by task, and what of an answer a worker has to look at.

Paper: Sec. 2, which has math and code, and leaves open how answers are read and compared.

TASKS maps the name in a prompt's `task` to its grader
  exact       right if equal to the reference, character by character, but for ASCII whitespace around it: "18" and
              " 18\\n" are right for 18; "018", "+18", "18.0", "18." and digits of other scripts are wrong. The scorer's
              `graders` names it for tasks that have other names (data.GRADERS: the embedded ones)
  math        LaTeX: the last \\boxed{...} or \\fbox{...}, or without one the final expression; boxes with nothing but
              commas, "and", "or", "x =" between them are one list; a last line that is one formula is read like a
              box. `equal` compares answer and reference after `normalise`. A reference is read whole, or from its last
              "=" on: no answer is right for a part of it, and a wrong answer to a reference that is not right for
              itself gets no verdict.
                numbers   are compared exactly; 6 places are enough if one is a decimal and the other no whole number;
                          48 + 46 is no answer to "What is 48 + 46?": a model would learn to repeat the question, so an
                          answer may leave nothing to be done that the reference does not (unevaluated.py), and
                          where a formula of the prompt would be right, the prompt asks for another form of it: then
                          only the reference's form is right (given_back)
                (a, b)    keeps its order, and so does 1, 2 as answer to x = 1, y = 2; a, b and {a, b} are sets
                12_5      is right only for the same digits and base; 12/05 and 2024-01-05 for the same numbers
                x = b/a   is right for the same name and value or for the value, and no other equation is, but for a
                          line's y = 2x + 1
                words     of any language must be the same, whatever their case
                the rest  is compared by math-verify, the paper's checker
  text        words and sentences of any language: the last box, or the whole answer, is the reference line by line,
              after NFKC and without case, spaces and outer punctuation ("The plural is mice." is not "mice")
  choice      a label alone, a label with its own option's text, or the text of an option: A, (B), "I choose D.",
              "The answer is (E). Paris" in a box or the last sentence; so in the reference. The options are those that
              the prompt offers; where none can be found, only the letter alone counts
  code        a Python program: the last ```python (or ~~~python) block, or without one the last block without a
              language. It is right if it passes all tests of the reference, a JSON text of one of the forms in use
              (`read_tests`):
                {"inputs": ["1 2\\n", ...], "outputs": ["3\\n", ...]}                   stdin and stdout (TACO, APPS)
                {"fn_name": "add", "inputs": [[1, 2], ...], "outputs": [3, ...]}        calls; if all outputs are lists
                                                                                        of one, their elements will do
                [{"input": "1 2\\n", "output": "3\\n"}, ...]                          the same, one object per test; the
                [{"input": "1\\n2", "output": "3", "metadata": {"func_name": "add"}}]  arguments are a JSON text a line
              stdout must have the same words on the same lines, whatever the spaces between; a decimal fraction may be
              off by 1e-6 of its size or by 1e-9, and 1.0 is right for 1. The result of a call is right if, as JSON, it
              is == the expected one (so a tuple is a list), but for floats, which may be off by 1e-9. Every test must
              end with exit status 0. The program can import the standard library only, and finds what graders import
              beforehand (verify/sandbox.py: PRELUDE).
With --reward FILE.py:FUNCTION a function of one's own grades all rows, whatever their task (user_reward.py).

In the generator's process, answers are only compared with == (`at_once`). All else runs in worker processes
(scorer.py) with a time limit: SymPy can run for days on a short answer. An answer that takes longer is wrong; one that
a worker cannot grade has no verdict, and is never scored as wrong.

Deviation: a box, or an answer without one, of more than MAX_CHARS characters is not read and is wrong: references are
  short, parsing time grows faster than length, and the end of a long number is not that number. Programs: CODE_CHARS.
Known limits: docs/rewards.md.

Test: pytest tests/test_graders.py
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from verify.mathematics import (
    BOX,
    CHARACTERS,
    COMMA,
    DELIMITER,
    LABEL,
    MAX_CHARS,
    canonical_form,
    equal,
    final_expression,
    final_formula,
    in_lowest_terms,
    last_sentence,
    only_formula_is_right,
    right_for_itself,
    tagged,
    value_of,
)
from verify.programs import program
from verify.spelling import after_equals, chosen, labelled, options, plain, unmarked
from verify.vocabulary import behind_lead

UNREADABLE = "expected a reference answer"  # how the reason for a missing verdict begins if the data are at fault
OWN = "the reward of --reward"  # how the reason begins if one's own function (user_reward.py) gives no verdict
DOLLARS = re.compile(r"\$([^$]+)\$")
SIGN = r"\\[A-Za-z]+|\\%|,(?=[0-9]{3})|[-+*/^_:(){}\[\]%.√=<>|!0-9²³⁰-⁹¼-¾]"
RELATION = re.compile(r"[=<>]|\\(?:[lg]eq?|[lg]t)(?![A-Za-z])")
LETTER = r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])"
# Formulas without dollars: with single letters, and without, as "a 3/4 cup" holds the number 3/4.
RUNS = [re.compile(rf"(?:{sign})(?:\s*(?:{sign}))*") for sign in (f"{SIGN}|{LETTER}", SIGN)]
SIDES = re.compile(r"[=<>;&]|,(?![0-9]{3})|\\(?:[lg]eq?|[lg]t|neq?|approx|q?quad|text ?\{[^{}]*\}|\\)(?![A-Za-z])")
OFFERS = re.compile(r"(?<![A-Za-z])\(A\)|^A[).:]\s", re.M)  # where the options of a prompt begin; not P(A)
LOWEST = re.compile(
    r"simplest|lowest terms|fully reduced|irr[ée]ductible|irreduc[ií]ble|gekürzt|最简|既約|несократим", re.I
)
NO_FAILURE = (UNREADABLE, OWN)  # reasons that say nothing of this machine

# Each grader takes (answer, reference, prompt) and returns True or False, or a text that a worker has to compare.


def exact(answer: str, reference: str, prompt: str = "") -> bool:
    """Whether the answer is exactly the reference, but for ASCII whitespace around it: "018" is wrong for 18."""
    return answer.strip(" \t\r\n") == reference


def at_once(answer: str, reference: str, task: str) -> bool | None:
    """The verdict where equality of characters finds one, as the generator waits; else None: a worker has to look."""
    if TASKS[task].grade is exact:
        return exact(answer, reference)
    same = task == "math" and answer.strip(" \n$") == reference.strip(" \n$") != ""
    return True if same else None


def math(answer: str, reference: str, prompt: str = "") -> bool | str:
    """The final expression, or False without one."""
    return final_expression(answer) or False


def right(expression: str, reference: str, prompt: str) -> bool | str:
    """The verdict on a final expression, or a text: why there is none. No time limit."""
    verdict = equal(expression, reference, prompt)
    if (
        verdict is None
        or not verdict
        and not (right_for_itself(reference) and only_formula_is_right(reference, prompt))
    ):
        cause = "a broken row of the data, or one that says more than its value"
        return f"{UNREADABLE} in LaTeX, got {reference[:80]!r}; likely cause: {cause}"
    return verdict and not given_back(expression, reference, prompt)


def given_back(expression: str, reference: str, prompt: str) -> bool:
    r"""Whether a right answer is the question in other words, and not in the form of the reference (`canonical_form`).

    Equality cannot tell "Expand (p+7)^2" from its answer; the prompt can. If one of its expressions would be right, it
    asks for another form: then nothing but the reference's form is an answer. Where the prompt asks for lowest terms, a
    fraction that is not in them is none. An equation asks for its solution, in any
    form but its own. No time limit.

    >>> given_back(r"\boxed{(7+p)^{2}}", "p^2+14p+49", "Expand $(p + 7)^2$."), given_back("6/8", "3/4", "Reduce 6/8.")
    (True, True)
    >>> [given_back(text, r"y=\frac23x+2", "Solve $3y=2x+6$.") for text in (r"y=\frac{2x+6}{3}", "3y-2x=6")]
    [False, True]
    >>> given_back("4:6", "2:3", "Give 8 to 12 in lowest terms."), given_back("2:3", "2/3", "In lowest terms?")
    (True, False)
    >>> given_back("0.375", r"\frac38", "Write 0.375 as a fraction."), given_back("p^2", "p^{2}", "Is it $p^2$?")
    (True, False)
    """
    right = canonical_form(value_of(reference))
    answer = final_formula(expression)
    if LABEL.match(reference):
        answer = labelled(answer)[1]
    if "." in reference:
        answer = COMMA.sub(r"\1.\2", answer)
    given = canonical_form(answer)
    forms = {form.removesuffix(r" \%") for form in (given, canonical_form(after_equals(answer)))}
    if right.removesuffix(r" \%") in forms or not answer.strip():
        return False
    if LOWEST.search(prompt) and not in_lowest_terms(answer):
        return True
    questions = [formula for formula in asked(prompt) if canonical_form(formula) not in ("", right)]
    name = re.match(r"([A-Za-z]) ?=", value_of(reference).lstrip())
    if solves(answer) and (not name or "=" not in answer or answer.strip().startswith(name[1])):
        questions = [
            formula for formula in questions if not RELATION.search(formula) or canonical_form(formula) == given
        ]
    return any(canonical_form(formula) == given or is_right(formula, reference) for formula in questions)


def solves(answer: str) -> bool:
    r"""Whether an answer says what letters are, or holds no relation.

    >>> [solves(text) for text in (r"x=\pm3", "y = 2x + 1", "-3<x<3", r"x=1 \text{ or } x=2", "3y=2x", "y=7-3y")]
    [True, True, True, True, False, False]
    """
    for part in re.split(r",|;|\\text ?\{[^{}]*\}|\band\b|\bor\b", answer):
        first, *others = (side.strip() for side in RELATION.split(part))
        names = [first] if "=" in part else [first, *others]
        letters = [name for name in names if re.fullmatch(r"[A-Za-z]", name)]
        if others and (
            not letters or re.search(rf"(?<![A-Za-z\\]){letters[0]}(?![A-Za-z])", others[-1]) and "=" in part
        ):
            return False
    return True


@lru_cache(maxsize=256)  # a prompt is asked for each of its answers
def is_right(formula: str, reference: str) -> bool:
    """Whether a formula of a prompt would be right as an answer: then only a spelling of the reference is one."""
    return equal(f"{BOX}{formula}}}", reference) is True


def parts(formula: str) -> set[str]:
    """A formula, and what stands on each side of its signs."""
    formula = formula.strip("$ \n.,:?!=*")
    return {formula, *(part.strip() for part in SIDES.split(formula))} - {""}


@lru_cache(maxsize=64)
def asked(prompt: str) -> set[str]:
    """The prompt's formulas, but for those of the options that it offers."""
    text = OFFERS.split(DELIMITER.sub("$", prompt.translate(CHARACTERS))[-MAX_CHARS:], maxsplit=1)[0]
    prose = DOLLARS.sub(lambda match: "$" * len(match[0]), text)
    formulas = set()
    for pattern, where in ((DOLLARS, text), *((run, prose) for run in RUNS)):
        for match in pattern.finditer(where):
            formulas |= parts(match[0])
    return formulas


def code(answer: str, reference: str, prompt: str = "") -> bool | str:
    """The program, or False without one."""
    return program(answer) or False


def text(answer: str, reference: str, prompt: str = "") -> bool:
    """Whether the answer is the reference, line by line, whatever the case, the spaces and the punctuation around it.

    What counts is the last box, or without one what is tagged as the answer, or the whole answer, or what stands in its
    last line behind a lead with a colon. A sentence around the word is another text.

    >>> text("Mice.", "mice"), text("\\\\boxed{Bücher}", "bücher"), text("a b\\n\\nC", "A  b\\nc")
    (True, True, True)
    >>> text("Two are plural.\\n**Answer:** mice", "mice"), text("The answer is: mice or rats", "mice")
    (True, False)
    >>> text("The plural is mice.", "mice"), text("mices", "mice"), text("c\\na b", "a b\\nc"), text("", "mice")
    (False, False, False, False)
    """
    answer = tagged(answer)
    lines, right = ([plain(line) for line in inner(side).splitlines() if plain(line)] for side in (answer, reference))
    last = inner(answer).strip().rpartition("\n")[2]
    rest = behind_lead(last) or ""
    if re.search("[:：]", last.removesuffix(rest)) and [plain(rest)] == right:
        return True
    return bool(right) and lines == right


def choice(answer: str, reference: str, prompt: str = "") -> bool:
    """Whether the answer names the reference's option (`chosen`), in a box or in its last sentence.

    >>> [choice(answer, "B") for answer in ("(b)", "Not A.\\nAnswer: B.", "\\\\boxed{\\\\textbf{(B)}}", "B. Rome")]
    [True, True, True, False]
    >>> [choice(answer, "B", "Which?\\nA. Paris\\nB. Rome") for answer in ("B. Rome", "Rome", "A. Rome", "B. Not sure")]
    [True, True, False, False]
    """
    given, right = (last_sentence(inner(side)) for side in (answer, reference))
    offered = options(prompt)
    letter, own = labelled(right)
    label = chosen(right, offered) or letter
    if not label:
        return plain(given) == plain(right) != ""
    if not offered and own.strip():
        offered = {label: own}
    return chosen(given, offered) == label


def inner(text: str) -> str:
    """What is in the last box of an answer or a reference, or all of it; without marks of type."""
    boxed = final_expression(text)
    return unmarked(final_formula(boxed) if boxed.startswith(BOX) else boxed)


class Task(NamedTuple):
    """A task's grader, and the examples that tests/test_graders.py holds it to.

    grade       takes (answer, reference, prompt); returns True or False, or a text that a worker has to compare
    right       (answer, reference) pairs
    wrong       likewise; besides, each right answer is wrong for the reference of the pair before it
    unreadable  a reference that is refused, or named, when the data is loaded
    """

    grade: Callable[..., bool | str]
    right: list[tuple[str, str]]
    wrong: list[tuple[str, str]]
    unreadable: str


PRINTS = '{"inputs": [""], "outputs": ["%s"]}'
TASKS = {
    "exact": Task(exact, [("18", "18"), (" 9\n", "9")], [("018", "18"), ("18.0", "18")], ""),
    "math": Task(
        math,
        [("It is \\boxed{\\frac{1}{2}}.", "0.5"), ("Answer: $x+1$", "1+x"), ("\\boxed{12\\text{ cm}}", "12")],
        [("It is not 12.", "12"), ("\\boxed{12\\text{ crore}}", "12"), ("\\boxed{5+7}", "12")],
        "exactly 7",
    ),
    "code": Task(
        code,
        [("```python\nprint(1)\n```", PRINTS % 1), ("```python\nprint(2)\n```", PRINTS % 2)],
        [("```python\nprint(1 / 0)\n```", PRINTS % 1), ("1", PRINTS % 1)],
        '{"inputs": [], "outputs": []}',
    ),
    "text": Task(text, [("Mice.", "mice"), ("\\boxed{a b}", "A b")], [("The plural is mice.", "mice")], "..."),
    "choice": Task(
        choice,
        [("The answer is (B).", "B. Rome"), ("A", "A")],
        [("B or C", "B"), ("I would never choose B", "B"), ("not B", "B")],
        "?",
    ),
}
