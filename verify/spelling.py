"""Texts as they are compared: words of any language in `plain`, the letters of options in `option`.

Test: pytest tests/test_graders.py
"""

import re
from unicodedata import category, normalize

from verify.vocabulary import BEFORE_LETTER, behind_lead

TYPE = re.compile(r"\\(?:text|math)(?:bf|it|rm|sf|tt|normal)?[ ]?\{([^{}]*)\}")


def plain(text: str) -> str:
    """A text of any language as it is compared: NFKC, without case, single spaces, no punctuation around it.

    >>> plain("  „Bücher“! "), plain("NO\\n solution."), plain("Ⅳ"), plain("-3")
    ('bücher', 'no solution', 'iv', '-3')
    """
    folded = " ".join(normalize("NFKC", normalize("NFKC", text).casefold()).split())
    start, end = 0, len(folded)
    while start < end and is_mark(folded[start]) and folded[start] not in "-%°\\":
        start += 1
    while start < end and is_mark(folded[end - 1]) and folded[end - 1] not in "%#":
        end -= 1
    return folded[start:end]


def is_mark(character: str) -> bool:
    """Punctuation, a space, or a sign of Markdown."""
    return category(character)[0] in "PZ" or character == "`"


def unmarked(latex: str) -> str:
    """A text without LaTeX's marks of type, and without dollars around all of it.

    >>> unmarked("\\\\textbf{(B)}"), unmarked("$\\\\mathrm{B}$."), unmarked("50\\\\%"), unmarked("$5")
    ('(B)', 'B', '50%', '$5')
    """
    text = TYPE.sub(r"\1", latex).strip()
    if (bare := text.rstrip(" .")).startswith("$") and bare.find("$", 1) == len(bare) - 1 > 1:
        text = bare[1:-1]
    elif bare.startswith("\\(") and bare.endswith("\\)"):
        text = bare[2:-2]
    return re.sub(r"\\([%$&#_])", r"\1", text)


def separate(text: str) -> tuple:
    """The numbers, words and signs of a text one by one, so that 5/12 is 05/12 but not 10/24."""
    return tuple(part.lstrip("0") or "0" for part in re.findall(r"[0-9]+|[a-z]+|[^0-9\s]", text))


def parted(text: str, signs: str) -> list[str]:
    """The text cut at each of the signs that stands outside all brackets.

    >>> parted("f(1,2), \\\\{3, 4\\\\}", ","), parted("P(X=2)=\\\\frac14", "=")
    (['f(1,2)', ' \\\\{3, 4\\\\}'], ['P(X=2)', '\\\\frac14'])
    """
    parts = [""]
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character in signs and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def after_equals(text: str) -> str:
    """What follows the last "=" outside brackets."""
    return parted(text, "=")[-1]


# --- Options: A, (B), C. Paris ---------------------------------------------------------------------------------------

OPTION = re.compile(r"(?:\(([A-Z])\)[.:]?|([A-Z])(?:[).:](?![a-z])| +[-–—](?= )|$))(.*)", re.I | re.S)
LETTER_OR_NUMBER = r"(?:[A-Z]|[0-9]{1,2})"
CORRECT = re.compile(
    rf"({LETTER_OR_NUMBER}|\({LETTER_OR_NUMBER}\)) is (?:the )?(?:correct|right|best)(?: (?:answer|option|choice))?$",
    re.I,
)
CHOSEN = re.compile(rf"[\[(]?({LETTER_OR_NUMBER})(?![^\W_])[\])]?[\s.:,*–—-]*(.*)", re.I | re.S)


LABEL = r"([A-Za-z]|[0-9]{1,2})"
MARKS = (  # what stands before an option: at the beginning of a line, or within it
    re.compile(rf"^[ \t>•*-]*(?:(?i:option|choice) +)?(?:\({LABEL}\)|\[{LABEL}\]|{LABEL}[).:、](?![0-9]))[.:*]*", re.M),
    re.compile(rf"(?<![^\W_])(?:\({LABEL}\)|{LABEL}(?:[).:](?=\s)|、))".replace("[A-Za-z]|[0-9]{1,2}", "[A-Za-z]")),
)
BEHIND = re.compile(r"(?<![\s>\]])(?:<[^<>\s]{1,40}>|\[/?[A-Z_]{1,40}\]|\s)++$")  # tokens of a chat template


def options(prompt: str) -> dict[str, str]:
    """{label: text} of the options that a prompt offers last, labels in capitals; {} if none can be found.

    Labels go on from A, 1 or 0, at least two of them, each at the beginning of its line, or, with letters, within one.

    >>> options("Which (of two)?\\nA. Rome\\nB) Paris, (A) or not"), options("It is (a) 2 (b) $x$")
    ({'A': 'Rome', 'B': 'Paris, (A) or not'}, {'A': '2', 'B': '$x$'})
    >>> options("Is it 1 or 2?\\n1. no\\n2. yes"), options("Choose A or B.")
    ({'1': 'no', '2': 'yes'}, {})
    """
    text = unmarked(re.sub(r"\\q?quad|\\[ ,;:!]|~", " ", normalize("NFKC", prompt)))
    for marks in MARKS:
        runs: list[list] = []
        for match in marks.finditer(text):
            label = next(filter(None, match.groups())).upper()
            last = runs[-1] if runs else []
            if last and label == following(last[-1][0]):
                last.append((label, match))
            elif label in ("A", "1", "0"):
                runs.append([(label, match)])
        runs = [run for run in runs if len(run) > 1]
        if runs := [run for run in runs if run[0][0] == "A"] or runs:  # letters, not a list of rules behind them
            longest = max(map(len, runs))
            run = runs[-1] if marks is MARKS[0] else [run for run in runs if len(run) == longest][-1]
            ends = [match.start() for _, match in run[1:]] + [len(text)]
            return {
                label: own_text(text[match.end() : end], end == len(text)) for (label, match), end in zip(run, ends)
            }
    return {}


def following(label: str) -> str:
    """The label that comes next."""
    return str(int(label) + 1) if label.isdigit() else chr(ord(label) + 1)


def own_text(text: str, last: bool) -> str:
    """The text of an option; of the last one, its first line."""
    text = text.strip()
    return BEHIND.sub("", text.partition("\n")[0] if last else text).strip(" *")


def chosen(text: str, offered: dict[str, str]) -> str | None:
    """The label of the option that a text names: by its label alone, its label and its own text, or its text alone.

    offered  {label: text}, from `options`; {}: none are known, and only a letter alone names one

    >>> rome = {"A": "Rome", "B": "Both A and C", "C": "Paris"}
    >>> [chosen(text, rome) for text in ("(a)", "So the answer is (B).", "B. both A and C", "Paris", "B is correct")]
    ['A', 'B', 'B', 'C', 'B']
    >>> [chosen(text, rome) for text in ("A. Paris", "B. The answer is C.", "B or C", "never choose B", "D", "")]
    [None, None, None, None, None, None]
    """
    bare = without_lead(text)
    named = {label for label, own in offered.items() if same_words(own, bare)}
    if match := CHOSEN.fullmatch(bare):
        label, rest = match[1].upper(), match[2].strip(" .*")
        if not rest and (label in offered or not offered and label.isalpha()):
            return label
        if same_words(offered.get(label, ""), rest):
            named.add(label)
    return named.pop() if len(named) == 1 else None


def same_words(text: str, other: str) -> bool:
    """Whether two texts of an option are the same, whatever the case, the spaces and the signs around formulas."""
    bare = [
        re.sub(r"[\s$]|\\[()]", "", unmarked(normalize("NFKC", side)).casefold()).strip(".!;,*`\"'")
        for side in (text, other)
    ]
    return bare[0] == bare[1] != ""


def without_lead(text: str) -> str:
    """A text without marks of type, a lead, "option" before a letter and "is correct" behind it."""
    bare = unmarked(normalize("NFKC", text)).replace("\\ ", " ")
    bare = unmarked(re.sub(r"[{}]|\*\*", "", bare)).strip(" *`\"'\n")
    rest = behind_lead(bare)
    bare = BEFORE_LETTER.sub("", bare if rest is None else rest, count=1).strip(" *`.\"'")
    return CORRECT.sub(r"\1", bare)


def labelled(text: str) -> tuple[str | None, str]:
    """(letter, text) of an option, whatever its text says; (None, ...) for what begins with no letter.

    >>> labelled("**C.** Both A and B"), labelled("C - Rome"), labelled("Rome")
    (('C', ' Both A and B'), ('C', ' Rome'), (None, 'Rome'))
    """
    bare = without_lead(text)
    option = OPTION.fullmatch(bare)
    return ((option[1] or option[2]).upper(), option[3]) if option else (None, bare)
