r"""Conditions: "k \in \mathbb{Z}" behind "k\pi" says for which k the formula stands.

    apart(r"k\pi, k\in\mathbb{Z}") -> ("k\pi", [the condition that k is from Z])

What follows "where", "for all" or a comma is read as parameters with their set, and a bound. A condition that is not
understood makes another answer, as every other word does.

Test: pytest tests/test_graders.py
"""

import re
from itertools import permutations
from typing import NamedTuple

from verify.vocabulary import AFTER_WORD

ANY = r"(?:(?:the|an?|any|all|each|every|some|arbitrary|set of(?: all)?) )*"
SETS = {
    "Z": r"integers?|whole numbers?|\\mathbb ?Z|Z",
    "N": r"natural numbers?|positive (?:integers?|whole numbers?)|\\mathbb ?N|N|\\mathbb ?Z ?[\^_] ?\+",
    "N0": r"non-?negative integers?|\\mathbb ?N ?_ ?0",
    "R": r"real|reals|real numbers?|(?:real )?constants?(?: of integration)?|\\mathbb ?R|R",
    "Q": r"rational(?: numbers?)?|\\mathbb ?Q",
    "C": r"complex(?: numbers?| constants?)|\\mathbb ?C",
}
SET = "|".join(SETS.values())
LETTER = r"[A-Za-z](?: ?_ ?[0-9])?"
CONDITION = re.compile(
    rf"{ANY}(?:({SET}) )?({LETTER}(?:(?: ?, ?| and ){LETTER})*){AFTER_WORD}"
    rf"(?: ?(?:\\in|in|is|are|be|being) ?{ANY}({SET}))?(?: ?(<|>|\\(?:le|ge|ne)) ?(-?[0-9./]+))?"
)
WORDED = re.compile(  # how a condition begins
    r"\\forall|(?<![A-Za-z\\])(?:where(?![A-Za-z])|"
    r"for (?=(?:all|any|each|every|some)(?![A-Za-z]))|for(?=[\s$}]*[A-Za-z][\s$]*[<>\\]))"
)
BEFORE = re.compile(r"[,;(~\s]|\\q?quad(?![A-Za-z])|\\[ ,;:]")  # what stands before one that no word begins
LONGEST = 80  # characters of such a one
RELATION = re.compile(r"[=<>,]|\\(?:[lg]e|in|ne)")
NOISE = re.compile(r"\\(?:text[a-z]*|mathrm|mbox|q?quad|left|right)(?![A-Za-z])|\\[ ,;:!]|[\s()}$~]+")


class Condition(NamedTuple):
    """That letters are from a set (a key of SETS; "" says nothing, None is not understood), within a bound."""

    letters: str
    kind: str | None
    bound: str
    text: str  # the whole of it as it stands there


def flat(text: str) -> str:
    """A text in one spelling, without brackets, dollars, spaces and marks of type that say nothing."""
    text = NOISE.sub(" ", text.replace("{", ""))
    text = re.sub(r"\\([lgn]e)q(?:slant)?(?![A-Za-z])", r"\\\1", text.replace("<=", "\\le ").replace(">=", "\\ge "))
    return " ".join(text.split()).strip(" .,;")


def conditions(text: str) -> list[Condition]:
    """What a flat text states, part by part if it is not one condition."""
    parts = [text] if CONDITION.fullmatch(text) else re.split(r" ?, ?| and ", text)
    return [condition(part) for part in parts]


def condition(text: str) -> Condition:
    match = CONDITION.fullmatch(text)
    letters = re.findall(LETTER, match[2]) if match else []
    if not match or len(set(letters)) < len(letters):  # of "+ m, m \\in Z" the first m is no parameter
        return Condition("", None, "", text)
    words = match[1] or match[3]
    kind = next((name for name, names in SETS.items() if words and re.fullmatch(names, words)), "")
    return Condition(match[2], kind, f"{match[4]}{match[5]}" if match[4] else "", text)


def apart(latex: str) -> tuple[str, list[Condition]]:
    r"""A formula, and the conditions behind it.

    >>> apart(r"x^2 \text{ for all real } x")[0], apart(r"2n+1, n\ge1")[0], apart("x>2, x<5")[0]
    ('x^2', '2n+1', 'x>2, x<5')
    """
    if (match := WORDED.search(latex)) and match.start():
        body = re.sub(r"\\(?:text[a-z]*|mathrm|mbox)\s?\{\s?$", "", latex[: match.start()].rstrip(" ,;("))
        return body.rstrip(" ,;("), conditions(flat(latex[match.end() :]))
    for match in BEFORE.finditer(latex, max(1, len(latex) - LONGEST)):
        body = latex[: match.start()].rstrip(" ,;(")
        behind = conditions(flat(latex[match.end() :]))
        if body and all(part.kind or part.bound and not RELATION.search(body) for part in behind):
            return body, behind
    return latex, []


def same_conditions(given: list[Condition], wanted: list[Condition], body: str, known: str) -> bool:
    """Whether an answer's conditions leave it the answer that it is without them.

    They are the reference's; or if that has none that is understood, each is free.
    body   the answer's formula
    known  the reference and the prompt in small letters
    """
    meant, right = ({part[1:3] if part.kind is not None else part.text for part in side} for side in (given, wanted))
    if not given or meant == right:
        return True
    return not any(part.kind is not None for part in wanted) and all(is_free(part, body, known) for part in given)


def is_free(part: Condition, body: str, known: str) -> bool:
    """Whether a condition goes without saying: a letter is whole, real, any, or a function's argument; or is known."""
    if part.text.casefold().replace(" ", "") in flat(known).replace(" ", ""):
        return True
    return not part.bound and (
        part.kind in ("", "Z", "R") or part.kind is not None and f"({part.letters})=" in body.replace(" ", "")
    )


def renamed(body: str, given: list[Condition], right: str, wanted: list[Condition]) -> str:
    """A formula with the reference's letter for its only parameter, whose name is free.

    right, wanted  the reference's formula and conditions; without any, its only letter that the formula lacks
    """
    letters, others = (set(re.findall(rf"(?<![A-Za-z\\]){LETTER}(?![A-Za-z])", side)) for side in (body, right))
    names = {part.letters for part in wanted if part.kind} or (others - letters)
    old = {part.letters for part in given if part.kind}
    if (
        len(names) != 1
        or len(old) != 1
        or not old.isdisjoint(others)
        or "," in (both := "".join(old | names))
        or " " in both
    ):
        return body
    return re.sub(rf"(?<![A-Za-z\\]){old.pop()}(?![A-Za-z])", names.pop(), body)


# A prompt that asks for a family of functions, whose arbitrary constants have no names of their own:
FAMILY = re.compile(
    r"general \w* ?(?:solution|term)|differential|antiderivative|indefinite|recurrence|\\int(?![a-z])|[a-z]'(?![a-z])",
    re.I,
)
CONSTANT = re.compile(r"(?<![A-Za-z\\])(?:[A-DKck](?: ?_ ?\{?[0-9]\}?)?)(?![A-Za-z]{2})")


def with_constants(body: str, right: str, prompt: str) -> list[str]:
    """A formula with the reference's names for its arbitrary constants, in each order; [] if they are not as many.

    >>> with_constants("Ax+B", "C_1x+C_2", "Find y.")
    ['{C_1}x+{C_2}', '{C_2}x+{C_1}']
    """
    old, new = (sorted({*CONSTANT.findall(side)} - {*CONSTANT.findall(prompt)}) for side in (body, right))
    if (
        len(old) != len(new)
        or len(old) > 3
        or not re.search(r"(?<![A-Za-z])[a-z](?![A-Za-z])", CONSTANT.sub("", right))
    ):
        return []
    return [
        CONSTANT.sub(lambda m: f"{{{names.get(m[0], m[0])}}}", body)
        for order in permutations(new)
        if (names := dict(zip(old, order)))
    ]
