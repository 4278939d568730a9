"""Texts as they are compared: words of any language in `plain`, formulas in `as_written`, which computes nothing.

Test: pytest tests/test_graders.py
"""

import re
from collections import Counter
from unicodedata import category, normalize

from verify.lists import BEFORE_LETTER, lead

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
CORRECT = re.compile(r"([A-Z]|\([A-Z]\)) is (?:the )?(?:correct|right|best)(?: (?:answer|option|choice))?$", re.I)
AGAINST = re.compile(  # behind the letter: "B. is wrong", "A. No, B", "(A)(B)", "B. A"
    r"^(?:\W*(?:is|are|was|or|and|isn't|wrong|incorrect)\b|"
    r".*\b(?i:no|not|nor|or|and|but|so|think|choose|answer)\b\W+\(?[A-Z]\b|.*\b(?i:wait|actually|sorry)\b|"
    r"\W*\(?[A-Z]\W*$|.*\([A-Z]\))",
    re.S,
)


def option(text: str) -> str | None:
    """The letter of "B", "(b)", "B. Paris", "I choose B."; None for another text, or one that names several.

    >>> [option(text) for text in ("(b)", "B. a dog", "B: Vitamin C", "So the answer is (B).", "B is correct")]
    ['B', 'B', 'B', 'B', 'B']
    >>> [option(text) for text in ("B or C", "A B", "", "B. is wrong", "B. A", "not B", "A? B", "never choose B")]
    [None, None, None, None, None, None, None, None]
    """
    letter, rest = labelled(text)
    return None if rest.strip(" .") and AGAINST.match(rest) else letter


def labelled(text: str) -> tuple[str | None, str]:
    """(letter, text) of an option, whatever its text says; (None, ...) for what begins with no letter.

    >>> labelled("**C.** Both A and B"), labelled("C - Rome"), labelled("Rome")
    (('C', ' Both A and B'), ('C', ' Rome'), (None, 'Rome'))
    """
    bare = unmarked(normalize("NFKC", text)).replace("\\ ", " ")
    bare = unmarked(re.sub(r"[{}]|\*\*", "", bare)).strip(" *`\"'\n")
    stated = lead(bare)
    bare = BEFORE_LETTER.sub("", bare if stated is None else stated, count=1).strip(" *`.\"'")
    bare = CORRECT.sub(r"\1", bare)
    found = OPTION.fullmatch(bare)
    return ((found[1] or found[2]).upper(), found[3]) if found else (None, bare)


# --- Formulas: one text for all spellings of a formula ---------------------------------------------------------------

# list = sum ([, =] sum)*     sum = [+-] product ([+-] product)*     product = factor ([* / or nothing] factor)*
# factor = atom ([^_] atom)*  atom = number, letter, command, (list), \frac atom atom, \sqrt [sum] atom
# A reader takes its tokens from the end of a list. A product is its factors above and below the fraction line.
TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|\.[0-9]+|\S")
TIMES = {"*", "\\cdot", "\\times"}
DIVIDED = {"/", ":", "\\div"}
OPENING = {"(", "[", "{", "\\{"}
SAME = {"%": "\\%", "\\lt": "<", "\\gt": ">", "\\leq": "\\le", "\\geq": "\\ge", "\\neq": "\\ne"}
SEPARATORS = {",", ";", "&", "\\\\", "=", "<", ">", "\\le", "\\ge", "\\ne"}
ENDS = {")", "]", "}", "\\}"} | SEPARATORS
NAME = re.compile(r"\\?[A-Za-z]+(?:_\w+)?|<[A-Za-z]\*[A-Za-z]>")  # y, \theta, x_1, f(x)
LONGEST = 400  # characters of a formula, which are read within some milliseconds


def as_written(latex: str) -> str:
    """A formula as a text that is the same for all its spellings, with nothing worked out; "" if it cannot be read.

    The order of terms and factors does not count, nor do signs of multiplication, brackets, y =, the 1 of 1 x, + 0.

    >>> as_written("(7+p)^{2}"), as_written("y = [+(p + 7)(p+7)]"), as_written("-\\\\frac{x}{2}")
    ('(7+p)^2', '(7+p)^2', '-<x/2>')
    >>> as_written("48:36"), as_written("\\\\frac{4}{3}"), as_written("(2")
    ('<48/36>', '<4/3>', '')
    """
    if not 0 < len(latex) <= LONGEST:
        return ""
    tokens = [SAME.get(token, token) for token in TOKEN.findall(latex)][::-1]
    try:
        products, signs = listed(tokens)
    except (IndexError, RecursionError):  # a bracket without its end, or hundreds within each other
        return ""
    sides = [fraction(*product) for product in products]
    if set(signs) == {"="}:
        sides = sorted([side for side in sides if not NAME.fullmatch(side)] or sides)
    return "" if tokens else joined(sides, signs)


def listed(tokens: list) -> tuple[list, list]:
    """The sums of a list, each as a product, and the signs between them."""
    sums, signs = [added(tokens)], []
    while tokens and tokens[-1] in SEPARATORS:
        signs.append(tokens.pop())
        sums.append(added(tokens))
    return sums, signs


def joined(parts: list[str], signs: list[str]) -> str:
    return parts[0] + "".join(f" {sign} {part}" for sign, part in zip(signs, parts[1:]))


def added(tokens: list) -> tuple[list, list]:
    """A sum as a product: if it has several terms, of one factor, whose first term has no minus, and a sign."""
    terms, minus = [], False
    while tokens and tokens[-1] not in ENDS:
        if tokens[-1] in ("+", "-"):
            minus ^= tokens.pop() == "-"
            continue
        above, below = multiplied(tokens)
        terms.append(([*above, "-1"] if minus else above, below))
        minus = False
    terms = [term for term in terms if fraction(*term) != "0"] or terms[:1]
    if len(terms) == 1:
        return terms[0]
    texts = sorted((fraction(*term) for term in terms), key=lambda text: text.removeprefix("-"))
    if turned := texts[0].startswith("-"):
        texts = [text[1:] if text.startswith("-") else f"-{text}" for text in texts]
    return [f"({'+'.join(texts)})"] + ["-1"] * turned, []


def multiplied(tokens: list) -> tuple[list, list]:
    """A product: its factors above and below the fraction line. A sign behind an operator is a factor's: 2 * -3."""
    above, below = [], []
    divided = operator = False
    while tokens and tokens[-1] not in ENDS and (operator or tokens[-1] not in ("+", "-")):
        token = tokens[-1]
        if operator := token in TIMES or token in DIVIDED or token in ("+", "-"):
            divided |= token in DIVIDED
            above += ["-1"] if tokens.pop() == "-" else []
            continue
        up, down = factor(tokens)
        above += down if divided else up
        below += up if divided else down
        divided = False
    return above, below


def factor(tokens: list) -> tuple[list, list]:
    """An atom with what is raised or lowered behind it."""
    found = atom(tokens)
    while tokens and tokens[-1] in ("^", "_"):
        sign = tokens.pop()
        raised = fraction(*atom(tokens))
        name = fraction(*found)
        if sign == "^" and raised in ("1", "-1"):
            found = found if raised == "1" else found[::-1]
        elif name.startswith("-(") and raised.isdigit():  # (3 - x)^2 is (x - 3)^2
            found = ([f"{name[1:]}{sign}{raised}"] + ["-1"] * (int(raised) % 2), [])
        else:
            found = ([f"{name}{sign}{raised}"], [])
    return found


def atom(tokens: list) -> tuple[list, list]:
    """A number, a letter, a command, or what stands between brackets."""
    token = tokens.pop()
    if token == "\\frac":
        (top, under_top), (bottom, under_bottom) = atom(tokens), atom(tokens)
        return top + under_bottom, bottom + under_top
    if token == "\\sqrt":
        degree = fraction(*atom(tokens)) if tokens[-1] == "[" else "2"
        return [f"{fraction(*atom(tokens))}^<1/{degree}>"], []
    if token in OPENING:
        products, signs = listed(tokens)
        end = tokens.pop()
        if not signs:
            return products[0]
        return [token + joined([fraction(*product) for product in products], signs) + end], []
    if token[0] in "0123456789.":
        token = token.lstrip("0") or "0"  # 018 is 18, 0.50 is .5
        token = token.rstrip("0").rstrip(".") or "0" if "." in token[:-1] else token
    return [token], []


def fraction(above: list, below: list) -> str:
    """A product as a text: its sign, then the factors in order, equal ones as a power."""
    if len(above) == 1 and not below:
        return above[0]
    counted = [Counter(factor for factor in side if factor not in ("1", "-1")) for side in (above, below)]
    over, under = ("*".join(sorted(f"{name}^{n}" if n > 1 else name for name, n in side.items())) for side in counted)
    text = f"{over or 1}/{under}" if under else over or "1"
    sign = "-" if (above + below).count("-1") % 2 else ""
    return f"{sign}<{text}>" if under or len(counted[0]) > 1 else sign + text
