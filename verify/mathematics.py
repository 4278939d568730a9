"""Mathematics: what of an answer is compared, and whether it equals the reference. The rules stand in graders.py.

    final_expression(answer) -> the last boxes, or the whole answer   in the generator's process
    equal(expression, reference) -> True, False, None: not readable   in a worker (workers.py): it has no time limit

Both sides go through `normalise`; then texts are compared as texts, and formulas as SymPy objects (`same`).

Test: pytest tests/test_reward.py; python benchmarks/soak.py --verdicts
"""

import re
from fractions import Fraction
from functools import lru_cache
from unicodedata import category, normalize

from verify.texts import as_written, plain
from verify.unfinished import after_equals, left_to_do, parted

BOX = "\\boxed{"
BOXES = re.compile(r"\\(?:boxed|fbox)\s*\{")  # BOX and its other spellings
FORMULA = re.compile(r"\s*(?:\$\$?[^$]+\$\$?|\\\((?:(?!\\[()]).)+\\\)|\\\[(?:(?!\\[\[\]]).)+\\\])[\s.]*", re.S)
BASE = re.compile(r"(?<![A-Za-z_0-9^])[0-9][0-9A-F]*_\{?(?:\\text\{)?[0-9a-z]")  # 12_5: compared as text, never as 12
SIGNS = r"\\(?:pm|mp)(?![A-Za-z])"
SPREAD = re.compile(r"\s*-?[0-9]+\s*\\pm\s*[1-9][0-9]*\s*")  # 18 \pm 1 leaves nothing to be done, 9 + 9 \pm 1 does
BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;]|\\[][(), ;:]|\\q?quad|and|or|\\text\{[^{}]*(?:,|and|or)\s*\}|[A-Za-z][\w{}]*\s*=)*"
)
BETWEEN_CHARS = 40  # boxes further apart than this are never one list
MAX_CHARS = 10_000  # of a box, or of an answer without one
BRACKET = re.compile(r"\s*(?:[(\[]|\\\{|\\begin)")
PAIR = re.compile(r"\(|\\\{")
PHRASE = re.compile(  # before an answer without a box
    r"^(?:\W*(?:so|thus|hence|therefore|then)\b,?)?\W*(?:the\s+)?(?:final\s+|correct\s+|right\s+|best\s+)?"
    r"(?:answer|choice|option|solution|result)\b(?:\s+is\b|\s+are\b)?\s*[:=]?\s*"
    r"(?:(?:option|choice)\b\s*)?",
    re.I,
)
NAMED_VALUE = re.compile(r"(?:\\?[A-Za-z]+|\\operatorname\{[A-Za-z]+\})\s*\([^=]*(?:=[^=)]*)*\)\s*=")  # P(X=2)=, f(2)=
TWO_LETTERS = {"as", "at", "am", "an", "ah", "ad", "ha", "by", "my", "hm", "mm", "pa", "ma", "ta", "ya"}  # words


def final_expression(answer: str) -> str:
    """The last \\boxed{...} of an answer, with the boxes before it in the same list; without any box the whole answer.

    "" if that is longer than MAX_CHARS, or if the last box is left open.

    >>> final_expression("Either \\\\boxed{1} or better \\\\boxed{\\\\frac{1}{2}}.")
    '\\\\boxed{\\\\frac{1}{2}}'
    >>> final_expression("x = \\\\boxed{1} and y = \\\\boxed{2}")
    '\\\\boxed{1, 2}'
    """
    answer = BOXES.sub(lambda _: BOX, answer)
    if (start := answer.rfind(BOX)) < 0:
        return answer.strip() if len(answer) <= MAX_CHARS else ""
    if (last := in_box(answer, start)) is None:
        return ""
    inside = [last]
    first = max(start - MAX_CHARS, 0)
    while (before := answer.rfind(BOX, first, start)) >= 0 and (content := in_box(answer, before)) is not None:
        end = before + len(BOX) + len(content) + 1
        if not 0 <= start - end <= BETWEEN_CHARS or not BETWEEN_BOXES.fullmatch(answer, end, start):
            break
        inside.insert(0, content)
        start = before
    return f"{BOX}{', '.join(dict.fromkeys(inside))}}}"


def content(expression: str) -> str:
    """What a box, or \\( \\) or \\[ \\] around a formula, holds; other text as it is."""
    if expression.startswith(BOX):
        return in_box(expression, 0) or ""
    return re.sub(r"^\\[(\[]|\\[)\]][\s.]*$", "", expression.strip())


def in_box(answer: str, start: int) -> str | None:
    """What is in the \\boxed{...} at `start`; None if that is too long or left open."""
    box = answer[start : start + MAX_CHARS]
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", box):  # an escaped brace is a printed one and opens nothing
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if brace.group() == "}" and depth == 0:
            return box[len(BOX) : brace.start()]
    return None


# fmt: off
CHARACTERS = str.maketrans({
    "−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "÷": "\\div ", "±": "\\pm ", "π": "\\pi ", "∞": "\\infty ",
    "≈": "\\approx ", "≤": "\\leq ", "≥": "\\geq ", "≠": "\\neq ", "∪": "\\cup ", "∩": "\\cap ", "∅": "\\emptyset ",
    "∈": "\\in ", "°": "^\\circ ", "…": "\\ldots ", "’": "'", "\u00a0": " "})
# fmt: on
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
UNIT = (
    "(?!(?:and|or|pi|sqrt|sin|cos|tan|cot|sec|csc|log|exp|inf|infinity|if|mod|choose|over|percent|percentage|"
    "pct)(?![A-Za-z]))(?:[A-Za-z]{4,}|days?|min|sec|hrs?|lbs?|mph|men|[cmk]m|m[gl]|kg|ft|in|yd|mi|oz|sq|of)"
)
WHOLE = "[0-9]{1,999}"  # Python makes no int of more than 4,300 digits
UNITS = rf"(?:{UNIT.replace('4', '2')}\s+)*{UNIT}"


def degrees(match) -> str:
    """In an expression with sines, radians; elsewhere the sign is a unit and is dropped: 45 is right for 45 degrees."""
    return f"{{\\frac{{{match[1]}\\pi}}{{180}}}}" if re.search("sin|cos|tan|cot|sec|csc", match.string) else match[1]


def after_number(match) -> str:
    """Drop a unit, but not a word that follows another: \\text{mice} \\text{rats} is two words."""
    before = re.sub(r"(?:\\text\s*\{[^{}]*\}\s*)+$", "", match.string[: match.start()])
    return match[0] if not before or before[-1] in ",;" else ""


def mixed(match) -> str:
    """A mixed number as a fraction, 1 1/2 = 3/2; without a proper fraction it is none, and 3 7/2 a product."""
    whole, top, bottom = map(int, match.groups())
    if not 0 < top < bottom:
        return f"{whole}\\cdot\\frac{{{top}}}{{{bottom}}}"
    return f"\\frac{{{whole * bottom + top}}}{{{bottom}}}"


def repeating(match) -> str:
    """A repeating decimal as a fraction: 0.1\\overline{6} = (16 - 1) / 90 = 1/6."""
    whole, fraction, period = match.groups()
    top = int(f"{whole or 0}{fraction}{period}") - int(f"{whole or 0}{fraction}")
    value = Fraction(top, 10 ** len(fraction) * (10 ** len(period) - 1))
    return str(value.numerator) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


PART = rf"\s*(?:\{{({WHOLE})\}}|([0-9]))"  # of \frac
MIXED = re.compile(rf"(?<![_^0-9.A-Za-z}}])({WHOLE})(?:\s+({WHOLE})\s*/\s*({WHOLE})|\s*\\[dtc]?frac{PART}{PART})")
THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
# What is rewritten before an answer or a reference is read, in this order: (pattern, replacement, why).
# fmt: off
NORMALISE = [(re.compile(pattern), replacement, why) for pattern, replacement, why in (
    (r"\s+", " ", "white space"), (r"\\?\$|[€£]", "", "signs of mathematics or of money"),
    (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*\.?", "", "the size of a bracket"),
    (r"(?:\\{2}|(?<!\\)\\[,:;! ]|\s)+$|^\s+", "", "a line's end"),
    (r"(?:(?<!\\)\\[,:;! ]|\s)*(?<![.\\])[.,;:]$", "", "a sentence's end: with it a number is not read as one"),
    (r"\\[lcd]?dots(?![A-Za-z])|\.{3}", r"\\omega_{0}", "something left out: 1, 2, ... is not 1, 2"),
    (r"(?<=[0-9])(?:,\\!|\{,\}|(?<!\\)\\[,;: ]|~)\s*(?=[0-9]{3}(?![0-9]))", "", "thousands"),
    (r"(?<=\{)[1-9][0-9]{0,2}(?:,[0-9]{3})+(?=\})", lambda m: m[0].replace(",", ""), "thousands in a fraction"),
    (r"(?<![0-9.])[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9])", lambda m: m[0].replace(" ", ""), "thousands with spaces"),
    (r"(?<![_A-Za-z0-9.^{])([0-9.]+|\))\s*\(\s*(-?[0-9.]+)\s*\)", r"\1\\cdot(\2)", "2(3) is 6, not a mixed number"),
    (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi", "2*pi"),
    (r"\\(?:displaystyle|textstyle|large|Large|huge|bf|rm)(?![A-Za-z])|\\text\s*\{\s*\}", "", "sizes"),
    (r"\\(?:text)?color\s*\{[a-z]+\}|\\checkmark(?![A-Za-z])", "", "colours, a tick"),
    (r"\\!", "", "space"), (r"\*\*", "^", "2**3"), (r"^\s*(?:\\approx|=)", "", "a sign before the value"),
    (r"(?<!\\)\\[,:; ]|\\q?quad(?![A-Za-z])|~", " ", "space"),
    (r"\\(?:math(?:bf|it|sf|tt)|boldsymbol|bm|underline)\s*\{([^{}]*)\}", r"\1", "bold or slanted symbols"),
    (r"\\(?:text(?:rm|bf|it|sf|tt|normal|up)|mbox|hbox|mathrm)(?=\s*\{)", r"\\text", "kinds of type"),
    (r"\\text\s*\{\s*((?=[^{}]*[0-9])(?:[^{}A-Za-z]|and|or)*|[ei])\s*\}", r"\1", "upright numbers, e, i"),
    (r"\\text\s*\{\s*(-?[0-9][0-9./,]*)\s", r"\1\\text{", "a number and its unit as one text"),
    (r"\\(?:begin|end)\s*\{(?:cases|aligned)\}", "", "a list"),
    (r"\\{2}(?![A-Za-z])", lambda m: m[0] if re.search("matrix|array", m.string) else ", ", "a list, line by line"),
    (r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda m: f"^{{{m[0].translate(SUPERSCRIPTS)}}}", "raised characters"),
    (r"[¼-¾⅐-⅞]", lambda m: f"\\frac{{{normalize('NFKC', m[0]).replace(chr(0x2044), '}{')}}}", "½"),
    (r"√\s*([0-9.]+|[A-Za-z]|\\pi)", r"\\sqrt{\1}", "√2"),
    (r"(?:√|\\?(?<![A-Za-z])sqrt)\s*(?=[({])\(?((?<=\()[^()]*(?=\)))\)", r"\\sqrt{\1}", "√(2)"),
    (r"\\[dtc](frac|binom)", r"\\\1", "sizes of fractions"),
    (r"\\(frac|binom)\s*([0-9A-Za-z]|\\(?!frac|sqrt)[A-Za-z]+)\s*(?=[\\{0-9A-Za-z])", r"\\\1{\2}", "\\frac\\pi 2"),
    (r"(\\(?:frac|binom)\{(?:[^{}]|\{[^{}]*\})*\})\s*([0-9A-Za-z]|\\(?!frac|sqrt)[A-Za-z]+)", r"\1{\2}", "\\frac{1}2"),
    (rf"(?<![0-9.}}])({WHOLE})\s+({WHOLE})\s*/\s*({WHOLE})(?![0-9.])", mixed, "1 1/2"),
    (rf"(?<![_^0-9.A-Za-z}}])({WHOLE})\s*\\frac\{{({WHOLE})\}}\{{({WHOLE})\}}", mixed, "33\\frac13 %"),
    (r"(?<![_^0-9.])([0-9.]+)\s+(?=[0-9])", r"\1\\omega_{0}", "two numbers side by side are not one: 2 3 is not 23"),
    (r"(?<=[})])\s*\\?%", r"\\cdot 1\\%", "latex2sympy reads % after a number only"),
    (rf"(?<![0-9])({WHOLE}|)\.({WHOLE}|)\\(?:overline|bar)\s*\{{({WHOLE})\}}", repeating, "0.3 with a bar"),
    (r"(?<![A-Za-z_^0-9.])([0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE]([-+]?[0-9]+)(?![\w.])", r"\1\\times10^{\2}", "1e-7"),
    (r"(^|[=(\[{,]|\\text\{ ?(?:and|or) ?\})\s*\+(?=\s*[0-9.\\A-Za-z(])", r"\1", "+7 is 7"),
    (r"\s*\^\s*\{?\s*\\circ\s*\}?\s*(?:\\text\{\s*[CF]\s*\}|[CF](?![A-Za-z]))", "", "degrees Celsius"),
    (r"((?<![0-9.])[0-9.]+|[A-Za-z])\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degrees?(?![A-Za-z])|\s(?:\\text\{)?degrees?\}?)",
     degrees, "90 degrees"),
    (r"(?:(?<=[0-9)}\]])|(?<=\\pi))\s*\\text\s*\{(?!\s*(?:and|or|if|mod)[\s}])[^{}]*\}(?:\s*/\s*\\text\s*\{[^{}]*\})*"
     r"(?:\s*\^\s*\{?[-0-9]+\}?)?(?=\s*(?:$|[,;)\]]|\\text|and|or))", after_number, "units"),
    (rf"(?<=[0-9}}])(?:\s+|(?=[cmk]m|kg)){UNITS}(?:\s*\^\s*\{{?[23]\}}?)?(?=\s*(?:$|[,;)\]]))",
     "", "units as plain words"),
    (r"(?<=[0-9])(?:\s*\^)?\s*\{?\s*(?:\\text\s*\{\s*)?(?:st|nd|rd|th)\s*\}{0,2}$", "", "the 12th"),
    (r"\\langle", "(", "a vector is a tuple"), (r"\\rangle", ")", "a vector is a tuple"),
    (r"\\mathbb\s*\{?R\}?", r"(-\\infty,\\infty)", "all real numbers"),
    (r"\\varnothing|\\\{\s*\\\}", r"\\emptyset", "the empty set"),
    (r"^\\\{\s*[a-z]\s*(?:\\in\s*\(-\\infty,\\infty\)\s*)?(?:\\mid|[:|])(?=.*[<>]|.*\\[lg]e)(.*)\\\}$", r"\1",
     "{x | x > 3}"),
    (r"\(([0-9][0-9A-F]*)\)\s*(?=_\{?[0-9])", r"\1", "(1011)_2"),
    (r"([A-Za-z])'(?![A-Za-z]{2})", r"\1_{0}", "a derivative is not its function: math-verify drops the quote"),
)]
# fmt: on


def normalise(latex: str) -> str:
    """The text with one spelling for what LaTeX spells in several ways; see NORMALISE.

    >>> normalise("$30^\\\\circ.$"), normalise("\\\\$18.90"), normalise("1 1/2"), normalise("10 weeks")
    ('30', '18.90', '\\\\frac{3}{2}', '10')
    """
    text = latex.translate(CHARACTERS)
    for pattern, replacement, _ in NORMALISE:
        text = pattern.sub(replacement, text)
    return text.strip()


@lru_cache(maxsize=256)
def spelling(latex: str) -> str:
    """`as_written` of the text after NORMALISE, but with mixed numbers and repeating decimals as they are.

    >>> spelling("2\\\\tfrac13"), spelling("2 1/3"), spelling("45,000"), spelling("3.2 × 10^{5}")
    ('(2+<1/3>)', '(2+<1/3>)', '45000', '<10^5*3.2>')
    """
    text = re.sub(r"\\?\$", "", latex.translate(CHARACTERS))
    text = re.sub(r"\\(?:overline|bar)(?![A-Za-z])", r"\\ddot", text)
    text = MIXED.sub(lambda match: "({}+\\frac{{{}}}{{{}}})".format(*filter(None, match.groups())), text)
    return as_written(normalise(THOUSANDS.sub("", text)))


def words(text: str) -> list[str] | None:
    """The words of an answer (Paris, \\text{no solution}, (B), A and C, три), `plain` and sorted; None for a formula.

    Two small letters without e, i, o or u are a product: ab is ba, but no is not on; TWO_LETTERS are words too.

    >>> words("Paris"), words("\\\\text{(B)}"), words("2x"), words("xy"), words("no"), words("IV")
    (['paris'], ['b'], None, None, ['no'], ['iv'])
    """
    bare = re.sub(r"\\text|[{}()]", " ", text).strip(" .!?;:„“”«»¿¡。！？、")
    named = "\\text" in text or len(bare) > 2 or re.search(r"[A-Z]|(?!^)[eiou]|[eiou](?!$)", bare)
    if not bare.isascii() or bare in TWO_LETTERS:
        named = True
    if (
        not named
        or not any(map(str.isalpha, bare))
        or not all(category(letter)[0] in "LMZ" or letter in " ,'-、，" for letter in bare)
    ):
        return None
    parts = [plain(part).replace(" ", "") for part in re.split(r"[,、，]|\band\b|\bor\b", bare)]
    return sorted(parts if all(parts) else [plain(bare)])


def variables(text: str) -> bool:
    """Whether letters may be a product of variables rather than a word: abc, xyz, but not yes."""
    letters = re.sub(r"[\s{}]", "", text)
    return letters not in TWO_LETTERS and re.fullmatch(r"[abcdfghkmnpqrstvwxyz]+", letters) is not None


def as_date(text: str) -> tuple | None:
    """The numbers and the sign of a date, a time or a range such as 2024-01-05, 12/05, 3-5 and 12:30; else None.

    >>> as_date("2024-01-05"), as_date("12/5"), as_date("12/05"), as_date("10-12")
    (('2024', '-', '1', '-', '5'), None, ('12', '/', '5'), ('10', '-', '12'))
    """
    numbers = re.findall(r"[0-9]+", text)
    signs = set(re.sub(r"[0-9\s]", "", text))
    if not re.fullmatch(r"\s*[0-9]{1,4}(?:\s*[-/.:]\s*[0-9]{1,4})+\s*", text) or len(signs) > 1:
        return None
    (sign,) = signs
    if sign == "." and len(numbers) == 2:
        return None
    padded = any(len(number) > 1 and number[0] == "0" for number in numbers)
    if len(numbers) > 2 or padded or sign == "-" or sign == ":" and len(numbers[1]) == 2:
        return separate(text)
    return None


def separate(text: str) -> tuple:
    """The numbers and signs of a text one by one, so that 5/12 is 05/12 but not 10/24."""
    return tuple(part.lstrip("0") or "0" for part in re.findall(r"[0-9]+|[^0-9\s]", text))


def spelt(text: str) -> str:
    """The text without spaces and without \\text{} around its words."""
    return "".join(re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).split())


def equal(expression: str, reference: str) -> bool | None:
    """Whether `expression`, from final_expression, equals the reference; None if that cannot be read. No time limit."""
    right = normalise(content(final_expression(reference) if BOXES.search(reference) else reference))
    boxed = BOXES.match(expression) or FORMULA.fullmatch(expression)
    answer = normalise(content(expression))
    if boxed and spelt(answer) == spelt(right) != "":
        return True
    if BASE.search(right) or boxed and BASE.search(answer):
        return len({re.sub(r"\\text|[\s{}]", "", side) for side in (right, answer)}) == 1
    said = answer if boxed else normalise(last_line(expression))
    if (texts := same_texts(right, said)) is not None:
        return texts
    gold = reading(right, not boxed)
    if gold is None or getattr(gold, "is_Boolean", False) and gold.is_Atom:
        return None  # no mathematics, or a statement such as 3 = 3 of which nothing is left
    allowed = tried(may_be_left, gold, right, not boxed)
    if allowed is None:
        return None
    if boxed:
        return tried(same_value, gold, allowed, value_given, answer) is True
    return tried(same_value, gold, allowed, last_value, expression) is True


def same_texts(right: str, said: str) -> bool | None:
    """The verdict where one side is no formula: words, dates, {1, 2} beside (1, 2); None: both are to be read."""
    answer = words(said)
    if right == "\\emptyset" and answer:
        return answer[0] in ("nosolution", "nosolutions")
    if words(right) and (answer or not variables(right)):
        return words(right) == (answer or [plain(re.sub(r"\\c?dot|\\times|[\s*{}]", "", said))])
    if as_date(right):
        return separate(right) == separate(said)
    brackets = [bracket[0] for side in (right, said) if (bracket := PAIR.match(side))]
    return False if len(set(brackets)) == 2 else None


def same_value(gold, allowed: set[str], read_value, answer: str) -> bool:
    """Whether what read_value finds in the answer equals the reference, and leaves no more to be done than is allowed.

    Whatever it raises is the answer's fault: the reference has been read.
    """
    found, text = read_value(answer)
    if found is None or not left_to_do(normalise(text), found, letters=has_letters(gold)) <= allowed:
        return False
    return same(gold, finished(found))


def value_given(text: str, lower: bool = False):
    """(object, its text) of a box; of P(X=2)=\\frac14, whose left side cannot be read, what follows the last "="."""
    found = raw(text, lower)
    sides = parted(text, "=")
    if found is None and len(sides) > 1 and not all(map(BRACKET.match, (sides[0], sides[-1]))):  # (1, 2) = (2, 3)
        text = after_equals(text)
        found = raw(text, lower)
    return found, text


def has_letters(gold) -> bool:
    """Whether the value of a reference, or one of its values, holds letters; x in x = 8 and x < 8 is only its name."""
    from math_verify.grader import take_last_relation
    from sympy import And, FiniteSet, Or, Symbol, Tuple
    from sympy.core.relational import Relational

    if names_a_value(gold):
        return has_letters(take_last_relation(gold).rhs)
    if isinstance(gold, (And, Or, FiniteSet, Tuple)):
        return any(map(has_letters, gold.args))
    if isinstance(gold, Relational):
        return any(has_letters(side) for side in gold.args if not isinstance(side, Symbol))
    return bool(getattr(gold, "free_symbols", None))


def may_be_left(gold, right: str, lower: bool) -> set[str]:
    """What an answer may leave to be done, since the reference does (unfinished.py)."""
    from sympy import FiniteSet, Interval

    asked = left_to_do(right, value_given(right, lower)[0], letters=has_letters(gold))
    if re.search(r"10\s*\^", right):
        asked.add("mantissa")
    return asked if isinstance(gold, (FiniteSet, Interval)) else asked | {"union"}  # of intervals: all numbers but 0


def last_line(prose: str) -> str:
    """The last line of an answer without a box, without "The answer is" and the like before it.

    >>> last_line("It is one of three.\\nAnswer: A"), last_line("So the answer is (B).")
    ('A', '(B).')
    """
    lines = [line for line in prose.splitlines() if line.strip()]
    return PHRASE.sub("", lines[-1]).strip(" *") if lines else ""


def tried(function, *arguments):
    """function(*arguments), or None if it raises: what latex2sympy and SymPy raise on nonsense has no common class."""
    try:
        return function(*arguments)
    except Exception:  # load_sympy in workers.py checks that sound pairs do not raise
        return None


def reading(latex: str, lower: bool):
    """The whole LaTeX text as a SymPy object, its i and its matrices worked out, or None if that fails."""
    found = raw(latex, lower)
    if found is None and NAMED_VALUE.match(latex):
        found = raw(after_equals(latex), lower)
    return None if found is None else tried(finished, found)


def finished(found):
    """The object with i as the imaginary unit and matrices written out; ValueError for one that cannot be."""
    found = with_i(found)
    if not getattr(found, "is_Matrix", False):
        return found
    written = found.doit()
    if hasattr(written, "as_explicit"):
        written = written.as_explicit()
    if not hasattr(written, "tolist") or 0 in written.shape:
        raise ValueError(f"expected a matrix with entries, got {found}")
    return written


def raw(latex: str, lower: bool):
    """The whole LaTeX text as latex2sympy reads it, or None if that fails.

    lower  read capitals as small letters, as math-verify does in prose
    An expression with \\pm deep inside, which latex2sympy does not read, becomes the set of its two values.
    """
    from sympy import FiniteSet

    if not re.search(SIGNS, latex):
        return tried(read, latex, lower)
    latex = after_equals(latex)
    found = tried(read, latex, lower)
    if found is not None:
        return found.doit() if SPREAD.fullmatch(latex) else found
    either = [tried(read, re.sub(SIGNS, lambda m: pm["pm".index(m[0][1])], latex), lower) for pm in ("+-", "-+")]
    return None if None in either else tried(FiniteSet, *either)


@lru_cache(maxsize=256)  # a reference is read twice for each of a prompt's answers
def read(latex: str, lower: bool):
    """`raw` without the rule for \\pm; raises for what latex2sympy cannot read."""
    from latex2sympy2_extended import latex2sympy2 as its

    config = its.NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    letters = its.ConversionConfig(lowercase_symbols=lower)
    return its.latex2sympy(
        its.normalize_latex(latex, config),
        is_real=True,
        convert_degrees=False,
        normalization_config=None,
        conversion_config=letters,
    )


def with_i(found):
    """The object with the imaginary unit in place of the letter i, which latex2sympy reads as a mere symbol."""
    from sympy import I

    letters = {symbol: I for symbol in getattr(found, "free_symbols", ()) if symbol.name == "i"}
    return found.xreplace(letters) if letters else found


def last_value(prose: str):
    """(object, text) of what math-verify finds in an answer without a box: its last formula, or number."""
    from math_verify import parse

    prose = re.sub(r"(?:(?<=\bis )|(?<=[=:] )|(?<=[=:]))\+(?=[0-9.])", "", prose.translate(CHARACTERS))
    found, text = parse(prose, parsing_timeout=None)
    return found, text


def same(gold, given) -> bool:
    """Whether two SymPy objects are the same answer: we compare numbers, order and names, math-verify the rest."""
    from math_verify import verify
    from math_verify.grader import is_equation, take_last_relation
    from sympy import Interval, Set

    if names_a_value(given) and not is_equation(gold):
        return same(gold, take_last_relation(given).rhs)
    if names_a_value(gold) and not is_equation(given):
        return same(take_last_relation(gold).rhs, given)
    if is_equation(given) and not is_equation(gold):  # 2x = 10 is not 10, but 1 + 9 = 10 is
        last = take_last_relation(given)
        return same(gold, last.rhs) and same(last.lhs, last.rhs)
    if is_equation(gold) and not (is_equation(given) and gold.free_symbols and given.free_symbols):
        return gold == given  # x^2 = 4 is not 2, -2; \\log_3 9 = 2 is not \\log_2 4 = 2
    if is_solution(gold) and not is_line(gold, given):
        return same_solution(gold, given)
    if all(getattr(side, "is_number", False) for side in (gold, given)):
        return close(gold, given)
    if any(getattr(side, "is_Matrix", False) for side in (gold, given)):
        return same_entries(gold, given)
    if isinstance(gold, Set) and is_statement(given):
        given = given.as_set()  # x > 0 is right for (0, oo); one that is not solved is no answer (unfinished.py)
    if is_statement(gold) and isinstance(given, Set):
        found = tried(gold.as_set)
        if found is None:  # 0 < f(x) < 1
            return verify(gold, given, timeout_seconds=None, allow_set_relation_comp=True)
        gold = found
    if is_statement(gold) != is_statement(given):
        return False
    if isinstance(gold, Interval) and isinstance(given, Interval):
        ends = (gold.left_open, gold.right_open) == (given.left_open, given.right_open)
        return ends and same(gold.start, given.start) and same(gold.end, given.end)
    if any(members(side) for side in (gold, given)) and all(
        members(side) or not isinstance(side, Set) and not is_statement(side) for side in (gold, given)
    ):
        return same_members(gold, given)
    return verify(gold, given, timeout_seconds=None)


def is_statement(found) -> bool:
    """x < 3 and the like; not a letter alone, which SymPy takes for one that is true everywhere."""
    from sympy import Symbol
    from sympy.logic.boolalg import Boolean

    return isinstance(found, Boolean) and not isinstance(found, Symbol)


def names_a_value(found) -> bool:
    """x = 3, m + n = 113, f(2) = 5 or \\log_2 x = 3, of which the last value counts; not 2x = 10."""
    from math_verify.grader import is_assignment_relation, is_equation, take_last_relation
    from sympy import Function
    from sympy.core.function import AppliedUndef

    if is_assignment_relation(found):
        return True
    if not is_equation(found):
        return False
    left = take_last_relation(found).lhs
    return isinstance(left, AppliedUndef) or isinstance(left, Function) and bool(left.free_symbols)


def is_solution(found) -> bool:
    """x = b/a, but not ax = b or x = x^2: an equation with a letter on its left that is not on its right."""
    from sympy import Equality, Symbol

    return isinstance(found, Equality) and isinstance(found.lhs, Symbol) and found.lhs not in found.rhs.free_symbols


def is_line(gold, given) -> bool:
    """Whether the two may be equations of a line or a curve, of which 2x + 4y - 3 = 0 is as good as y = -x/2 + 3/4."""
    from sympy import Equality

    letters = {symbol.name for symbol in gold.free_symbols}
    return letters == {"x", "y"} and gold.lhs.name == "y" and isinstance(given, Equality) and given.rhs.is_number


def same_solution(gold, given) -> bool:
    """Whether an equation is the solution, from left to right or from right to left: not b = ax for x = b/a.

    Of x = 2 * 5 = 10 the last value counts.
    """
    from math_verify.grader import take_last_relation
    from sympy import And

    equations = given.args if isinstance(given, And) else [given]
    named = any(gold.lhs in equation.args for equation in equations)
    last = take_last_relation(given)
    value = last.lhs if last.rhs == gold.lhs else last.rhs
    return named and same(finished(gold.rhs), finished(value))


def same_entries(gold, given) -> bool:
    """Whether both are matrices with the same entries; they are written out and have entries (`finished`)."""
    if not all(getattr(side, "is_Matrix", False) for side in (gold, given)) or gold.shape != given.shape:
        return False
    return len(gold) > 0 and all(map(same, gold, given))


def members(found) -> list:
    """The members of a list, set or tuple as written; of an open interval, written like a pair, its ends; else []."""
    from sympy import FiniteSet, Interval, Tuple

    if isinstance(found, Interval) and found.is_open:
        return [found.start, found.end]
    return list(getattr(found, "_unsorted_args", found.args)) if isinstance(found, (FiniteSet, Tuple)) else []


def same_members(gold, given) -> bool:
    """Whether members agree: in order within parentheses, or for 1, 2 as answer to x = 1, y = 2; else in any order."""
    from math_verify.grader import is_assignment_relation
    from sympy import Interval, Tuple

    right, answer = (members(side) or [side] for side in (gold, given))
    names = {member.lhs for member in right if is_assignment_relation(member)}
    free = not isinstance(gold, (Interval, Tuple)) and not isinstance(given, (Interval, Tuple))
    if not free or len(names) > 1 and not any(map(is_assignment_relation, answer)):
        return len(right) == len(answer) > 0 and all(map(same, right, answer))
    right, answer = (list(dict.fromkeys(side)) for side in (right, answer))  # repeated ones of a set count once
    if len(right) != len(answer):
        return False
    for member in right:
        found = next((other for other in answer if same(member, other)), None)
        if found is None:
            return False
        answer.remove(found)
    return True


def without_percent(number):
    """28 of 28%; None for a number without the sign, and for one of which only a part has it: 48 + 46%."""
    from sympy import Mul, Rational, UnevaluatedExpr

    percent = UnevaluatedExpr(Rational(1, 100))
    if not number.is_Mul or percent not in number.args:
        return None
    return Mul(*(factor for factor in number.args if factor != percent))


def close(gold, given) -> bool:
    """Whether two numbers are equal. If one is a decimal and the other not a whole number, they may differ by 1e-6, or
    by 2e-5 of the reference's size if that is less.

    28 and 0.28 are both right for 28%.
    """
    from sympy import Float

    bare = [without_percent(side) for side in (gold, given)]
    if bare.count(None) == 1 and close(bare[0] or gold, bare[1] or given):
        return True
    gold, given = gold.doit(), given.doit()
    if not (gold.is_finite and given.is_finite):
        return gold == given and bool(gold.is_extended_real)  # infinity is right for itself, 1/0 is not
    size = abs(gold).evalf()
    difference = abs((gold - given).evalf(20))
    decimals = [side.has(Float) for side in (gold, given)]
    whole = any(side.is_integer and not decimal for side, decimal in zip((gold, given), decimals))
    tolerance = 1e-50 * size if not any(decimals) else 1e-12 * size if whole else min(1e-6, 2e-5 * size)
    return bool(difference <= tolerance)
