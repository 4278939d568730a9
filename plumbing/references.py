"""Reference answers of `math` as data sets write them: what is around a value is taken off, and prose is refused.

    reduced("The answer is 5.") -> "5"          what is left is compared by verify/mathematics.py

A reference that is not right for itself would make every answer wrong, and nobody would notice. A text or a choice is
refused when the data is loaded, with its row (`right_for_itself`). Mathematics is tried in a sample (`unreadable`); an
answer to any other reference that cannot be compared gets no verdict (verify/graders.py).

Test: pytest tests/test_references.py
"""

import ast
import json
import re
import string
from contextlib import suppress
from unicodedata import category

from verify.graders import TASKS, UNREADABLE
from verify.mathematics import end_taken_off, stated
from verify.scorer import verdicts
from verify.spelling import unmarked
from verify.vocabulary import DENIES, FUNCTIONS

SAMPLE = 200  # math references that are tried when the data is loaded
FIELDS = ("ground_truth", "final_answer", "answer", "target", "value")  # of a reference that is an object
NO_ANSWER = {"proof", "notfound", "not found", "n/a", "nan", "null", "undefined answer"}
COUNTDOWN = "a Countdown game, for which any expression of that value is right: grade it with --reward"
FORMULA = re.compile(
    r"\\(?:text\w*|mathrm|mbox|operatorname\*?|begin|end)\s*\{[^{}]*\}|\$[^$]*\$|\\\(.*?\\\)|\\[A-Za-z]+", re.S
)
WORD = re.compile(r"[^\W\d_]{2,}")
SPELT = re.compile(r"\s*(?:\{\s*['\"].*\}|\[.*\])\s*", re.S)  # an object or a list, as JSON or Python writes it
# Not all of NFKC, which makes 102 of 10², and without ～, which LaTeX reads as a space.
FULL_WIDTH = {ord(one) + 0xFEE0: one for one in string.ascii_letters + string.digits + "+-*/=.,:%()[]<>|"}
GAP = r"(?:[\s~]|\\[ ,;:]|\\q?quad(?![a-z]))+"
LABEL = re.compile(rf"(?:\(([A-Za-h])\)|([A-Za-h])[).:]){GAP}(.+)", re.S)  # (B) 4, (a) 4
LABEL_WITHIN = re.compile(r"(?<![A-Za-z])(?:\([A-Za-z]\)|[A-Za-z][).:])\s")
SIMPLE = re.compile(  # a formula with nothing around it
    r"(?:[-+*/^_=<>0-9.,{}|!% ]|\\(?!blacksquare|qed)[a-z]+|(?<![A-Za-z])[a-z](?![A-Za-z])|\((?![A-Za-z]\)))+"
)
SAYS = re.compile(r"(?:\b(?:is|are|equals)|[:=])\W*$")  # not "A solution exists", whose lead says nothing
VALUED = re.compile(r"[0-9\\$]")
AROUND = [  # of a value: what is said before or behind it
    re.compile(
        r"(.*?)(?:[,.;]\s*(?:as|which|and we|hence)\s[^0-9\\$=]*|\s*(?:as (?:desired|required|claimed)|Q\.?E\.?D|"
        r"\\blacksquare|■|∎))[.\s]*",
        re.I | re.S,
    ),
    re.compile(r"(?:yes|no|true|false)[,:;.]\s+(.+)", re.I | re.S),
    re.compile(r"[A-Za-z][A-Za-z ]{2,30}:\s+([^:]+)", re.S),  # Max: 4
    re.compile(r"(?:about|approximately|approx\.?|roughly|around|nearly|ca\.)\s+(.+)", re.I | re.S),
]
MOST_LEFT_OUT = 0.05  # of a source's rows: more unusable references than that end the run
INTEGER = re.compile("-?[0-9]{1,99}")  # it can be read: no worker, which loads SymPy for a second, need try it
LONGEST = 5  # words of a reference that is no sentence; three of them beside a formula


class Unusable(ValueError):
    """A row whose reference no answer can be compared with; a few of them are left out (MOST_LEFT_OUT)."""


def reduced(answer) -> str:
    """The value of a reference, given as a text, a number, a list of one or an object. ValueError says why not.

    >>> reduced("about 9"), reduced("The answer is 5."), reduced("['72']"), reduced({"ground_truth": 5})
    ('9', '5', '72', '5')
    >>> reduced("There is no solution."), reduced("12 square metres"), reduced("[1, 2]")
    ('There is no solution.', '12 square metres', '[1, 2]')
    """
    text = unpacked(answer)
    if SIMPLE.fullmatch(text) or "\\boxed" in text or "\\fbox" in text:
        return text
    text, letter = without_label(text)
    value = stated(end_taken_off(text))
    if SAYS.search(text.partition(value)[0]):
        text = value
    for pattern in AROUND:
        if (inner := pattern.fullmatch(text)) and VALUED.search(inner[1]) and not prose(inner[1], 0):
            text = inner[1].strip()
    if text.casefold().strip(" .") in NO_ANSWER:
        raise ValueError(f"{text!r} stands for a missing answer")
    if prose(text):
        raise ValueError("a sentence, of which no answer but the same words would be right; keep the value alone")
    return f"({letter}) {text}" if letter else text


def without_label(text: str) -> tuple[str, str]:
    """(value, letter of its option or "") of a reference; a small letter is the part of a question, and goes.

    >>> without_label(r"\\textbf{(B)}\\ 4"), without_label("(a) 4"), without_label("C. 5"), without_label("(A) 1 (B) 2")
    (('4', 'B'), ('4', ''), ('5', 'C'), ('(A) 1 (B) 2', ''))
    """
    bare = unmarked(text) if text.lstrip("$").startswith("\\text") or text.startswith("\\math") else text
    label = LABEL.fullmatch(bare.strip("$"))
    if not label or LABEL_WITHIN.search(label[3]):
        return text, ""
    letter = label[1] or label[2]
    return label[3].strip(), letter if letter.isupper() else ""


def letter(answer) -> str:
    """The reference of a choice: MMLU's integers, which count from 0, as letters; another text as `legible`.

    >>> letter(0), letter("C. Both A and B"), letter("2")
    ('A', 'C. Both A and B', '2')
    """
    return string.ascii_uppercase[answer] if type(answer) is int and 0 <= answer < 10 else legible(str(answer))


def unpacked(answer) -> str:
    """The text of a value that may stand in a list of one, or under one of FIELDS; given so, or spelt as text."""
    found = spelt(answer) if isinstance(answer, str) else answer
    if isinstance(found, dict):
        if {"numbers", "nums"} & found.keys():
            raise ValueError(COUNTDOWN)
        names = [name for name in FIELDS if name in found]
        if len(names) != 1:
            fields = sorted(map(str, found))
            raise ValueError(f"an object with the fields {fields}; name one of them as the column, or the task (:code)")
        return unpacked(found[names[0]])
    if isinstance(found, list):
        if len(found) != 1:
            raise ValueError(f"a list of {len(found)} answers")
        return unpacked(found[0])
    if isinstance(found, bool) or not isinstance(found, (str, int)):
        raise ValueError(f"it is a {type(found).__name__}, and must be text or an integer")
    return legible(str(found))


def legible(text: str) -> str:
    """The text as models write it, behind "####" (GSM8K): nothing invisible, and in plain width if its digits are wide.

    The invisible ones that join letters or keep them apart stay: they spell words of Persian or Hindi.

    >>> legible("8\\u200b"), legible("（１，２）"), legible("10²"), legible("是，不是")
    ('8', '(1,2)', '10²', '是，不是')
    """
    text = text.rpartition("####")[2].strip()
    if text.isascii():
        return text
    if re.search("[０-９]", text):
        text = text.translate(FULL_WIDTH)
    return "".join(one for one in text if category(one) != "Cf" or one in "\u200c\u200d").strip()


def loaded(text):
    """The value that a text spells in JSON or as a Python literal; anything else is returned unchanged."""
    if not isinstance(text, str):
        return text
    for load_text in (json.loads, ast.literal_eval):
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return load_text(text)
    return text


def spelt(text: str):
    """The object, or the list of one or of texts, that a text spells; another, as [1, 2], stays as it is."""
    found = loaded(text) if SPELT.fullmatch(text) else text
    numbers = isinstance(found, list) and len(found) != 1 and not all(isinstance(one, str) for one in found)
    return found if isinstance(found, (dict, list)) and found and not numbers else text


def prose(text: str, beside: int = 3) -> bool:
    """Whether the text is a sentence that states a value, or says more than LONGEST words, or `beside` with a formula.

    >>> prose("The hypotenuse has length $4$"), prose("x = 2 or x = 3"), prose("three apples"), prose("3 red, 4 blue")
    (True, False, False, False)
    """
    words = [word for word in WORD.findall(FORMULA.sub(" 1 ", text)) if not re.fullmatch(FUNCTIONS, word.casefold())]
    mixed = re.search(r"[0-9=]", FORMULA.sub(" 1 ", text))
    return len(words) > (beside if mixed else LONGEST) or bool(mixed and words and DENIES.search(text))


def right_for_itself(reference: str, task: str) -> bool:
    """Whether a reference of the tasks `text` and `choice` would be right as an answer; others are not looked at.

    >>> right_for_itself("(C) Rome", "choice"), right_for_itself("...", "text")
    (True, False)
    """
    return task not in ("text", "choice") or TASKS[task].grade(reference, reference) is True


def unreadable(prompts, timeout: float, skip_unusable: bool) -> list[str]:
    """A warning about the math references in a sample of data.Prompts that no answer can be compared with, or [].

    They are read in a worker. Raises ValueError for more than MOST_LEFT_OUT of the sample, unless
    skip_unusable.
    """
    asked = [prompt for prompt in prompts if prompt.task == "math"]
    asked = asked[:: len(asked) // SAMPLE + 1]
    pairs = [("\\boxed{?}", prompt) for prompt in asked if not INTEGER.fullmatch(prompt.answer)]
    wrong = [score.error for score in verdicts(pairs, timeout=timeout) if score.error.startswith(UNREADABLE)]
    if len(wrong) > MOST_LEFT_OUT * len(asked) and not skip_unusable:
        found = f"{len(wrong)} of {len(asked)} references cannot be compared with any answer: {wrong[0]}"
        raise ValueError(f"{found}; --skip-unusable goes on, and answers to such rows get no verdict")
    said = f"WARNING: {len(wrong)} of {len(asked)} references cannot be compared, and get no verdict. The first:"
    return ["\n  ".join([said, *wrong[:3]])] if wrong else []
