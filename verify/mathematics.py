"""Mathematics: what of an answer is compared, and whether it equals the reference. The rules stand in graders.py.

    final_expression(answer) -> the last boxes, or the whole answer
    equal(expression, reference) -> True, False, None: not readable

All of it runs in workers (scorer.py), as it has no time limit. Both sides go through `normalise`; then texts are
compared as texts, and formulas as SymPy objects (symbolic_equality.py). Every pattern takes a time linear in the text.

Test: pytest tests/test_graders.py
"""

import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from math import gcd
from string import ascii_letters, digits
from unicodedata import category, name, normalize

from verify.conditions import FAMILY, apart, renamed, same_conditions, with_constants
from verify.spelling import chosen, labelled, options, parted, plain, separate
from verify.vocabulary import (
    AFTER_WORD,
    BEHIND,
    CURRENCY,
    DENIES,
    FUNCTIONS,
    IS,
    PERCENT,
    RATIO,
    SCALED,
    SUBJECTS,
    TAIL,
    behind_lead,
    currency,
    same_units,
    scaled,
    stands_in,
    units,
)

BOX = "\\boxed{"
BOXES = re.compile(r"\\(?:boxed|fbox)\s*\{")  # BOX and its other spellings
MAX_CHARS = 10_000  # of a box, or of an answer without one
LONGEST, DEEPEST, HIGHEST = 400, 20, 9  # of a formula: characters, brackets within each other, power of a bracket
BETWEEN_CHARS = 40  # boxes further apart than this are never one list
BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;]|\\[][(), ;:]|\\q?quad|and|or|\\text\{[^{}]{0,20}(?:,|and|or)\s?\}|[A-Za-z][\w{}]{0,20}\s?=)*+"
)
# --- Of an answer without a box:
DELIMITER = re.compile(r"\\[][()]|\$\$")
DISPLAY = re.compile(r"(?<!\\)\\[][]|\$\$")
TAG = re.compile(r"</?[a-z]{1,20}>|<\|\w{1,20}\|>|\\(?:blacksquare|square|qed)(?![A-Za-z])|I hope it is correct\.?")
EMPTY = re.compile(r"[-\s*_=~`#.—$∎■□>]*")  # a line that says nothing
BULLET = re.compile(r"^[\s>#]*(?:[-*•+] +(?=\D))?")
MARKS = " \t*_`\"“”„'«»"
SENTENCES = re.compile(
    r"(?<=[.!?])(?<!(?<![A-Za-z])[A-Za-z]\.)(?<!^[0-9]\.)\s+(?=\S)|(?<=[。！？])"
)  # not behind "B." or a first "3."
CLAUSES = re.compile(  # of a sentence: the last may begin with a lead
    r"[,;，；]\s*(?=(?:so|thus|hence|therefore|the (?:final |correct )?answer is|所以|因此|故|donc|entonces|luego|also|"
    r"daher|quindi|portanto|значит)(?![a-zа-я]))"
)
SUPPOSES = re.compile(r"\b(?:if|unless|suppose|whether)\b", re.I)
PROSE = re.compile(
    rf"(?<![^\W\d_])(?<!\\)(?!(?:{FUNCTIONS}){AFTER_WORD})"
    r"(?:[^\W\d_]{3,}|(?:is|it|to|of|so|we|be|in|on|at|as|by|if|he|no|do|go|an|my|us)(?![^\W\d_]))"
)


def final_expression(answer: str) -> str:
    """The last \\boxed{...} of an answer, with the boxes before it in the same list; without any box the whole answer.

    "" if that is longer than MAX_CHARS, or if the last box is left open.

    >>> final_expression("Either \\\\boxed{1} or better \\\\boxed{\\\\frac{1}{2}}.")
    '\\\\boxed{\\\\frac{1}{2}}'
    >>> final_expression("x = \\\\boxed{1} and y = \\\\boxed{2}")
    '\\\\boxed{1, 2}'
    """
    answer = BOXES.sub(lambda _: BOX, re.sub(r"\\boxed\s*([0-9.]+)", r"\\boxed{\1}", answer))
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


def in_box(answer: str, start: int) -> str | None:
    """What is in the \\boxed{...} at `start`; None if that is too long or left open."""
    box = answer[start : start + MAX_CHARS]
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", box):  # an escaped brace is a printed one and opens nothing
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if brace.group() == "}" and depth == 0:
            return box[len(BOX) : brace.start()]
    return None


def last_sentence(prose: str) -> str:
    """The last sentence of an answer without a box: of what is tagged as the answer, or stands behind ####, if any.

    A formula in display is one line. Rules, marks of type and the signs around formulas are taken off.

    >>> [last_sentence(text) for text in ("One of three.\\nIt is **(B)**.\\n---", "$$\\n8\\n$$", "#### `8`<|im_end|>")]
    ['It is (B)', '8', '8']
    """
    text = tagged(prose).partition("<|im_start|>")[0].rpartition("####")[2].replace("\\$", "")
    lines = ["$ " + " ".join(part.split()) + " $" if n % 2 else part for n, part in enumerate(DISPLAY.split(text))]
    lines = [line for line in TAG.sub("\n", "".join(lines)).splitlines() if not EMPTY.fullmatch(line)]
    if not lines:
        return ""
    line = re.sub(r"\*\*|__|`|\\[()]|\$", "", BULLET.sub("", lines[-1]))
    last = [sentence for sentence in SENTENCES.split(line) if sentence.strip(MARKS)]
    return end_taken_off(last[-1]) if last else ""


def tagged(prose: str) -> str:
    """What stands in the last <answer> tags; without them all of it."""
    return prose.rpartition("</answer>")[0].rpartition("<answer>")[2] if "</answer>" in prose else prose


def end_taken_off(sentence: str) -> str:
    """The sentence without its point and the marks around it."""
    sentence = sentence.strip(MARKS)
    if not sentence.endswith(".."):
        sentence = sentence.rstrip("。").removesuffix(".")
    return TAIL.sub("", sentence).rstrip(MARKS)


def final_formula(expression: str, known: str = "") -> str:
    """The formula of an answer: its box; or its last sentence without a lead, or what it says that something is.

    known  the reference and the prompt in small letters, whose words a sentence may hold

    >>> [final_formula(text) for text in ("\\\\boxed{8}", "So the answer is *x+1*.", "It is $x$.", "It is not 7.")]
    ['8', 'x+1', 'x', 'It is not 7']
    """
    if expression.startswith(BOX):
        content = in_box(expression, 0) or ""
        sentence = re.fullmatch(r"\\text ?\{([^{}]*)\}(.*)", content)
        return predicate(sentence[1] + sentence[2], known) or content if sentence else content
    return strip_lead(last_sentence(expression), known)


def strip_lead(sentence: str, known: str = "") -> str:
    """The formula that a sentence states: what stands behind a lead, or behind its last is, are or equals; or all."""
    *before, last = CLAUSES.split(sentence)
    rest = behind_lead(sentence if SUPPOSES.search(" ".join(before)) else last)
    rest = sentence if rest is None else end_taken_off(rest)
    asserted = "" if is_formula(rest, known) else predicate(rest, known)
    return asserted if is_formula(asserted, known) else rest


def predicate(sentence: str, known: str) -> str:
    """What follows the last is, are or equals of a sentence without a number before it, a negation or a strange word.

    >>> predicate("The area is 12", ""), predicate("The square of it is 12", ""), predicate("It is not 12", "")
    ('12', '', '')
    """
    verbs = [*IS.finditer(sentence)]
    if not verbs or DENIES.search(sentence):
        return ""
    before = sentence[: verbs[-1].start()]
    words = re.findall(r"[^\W\d_]{2,}", before.casefold())
    if re.search("[0-9]", before) or not all(word in SUBJECTS or stands_in(word, known) for word in words):
        return ""
    return sentence[verbs[-1].end() :].strip()


def is_formula(text: str, known: str) -> bool:
    """Whether a text holds no words but units, conditions, and nouns of the reference or the prompt behind a number."""
    text = apart(text)[0]
    return bool(text.strip()) and not prose_in(BEHIND.sub(partial(units, known=known, powers=set()), text))


def prose_in(text: str) -> bool:
    return PROSE.search(re.sub(r"\\text ?\{[^{}]*\}|\\[A-Za-z]+(?: ?\{[a-z]+\})?", "", text)) is not None


# fmt: off
CHARACTERS = str.maketrans({
    "−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "÷": "\\div ", "±": "\\pm ", "π": "\\pi ",
    "∞": "\\infty ", "≈": "\\approx ", "≤": "\\leq ", "≥": "\\geq ", "≠": "\\neq ", "∪": "\\cup ", "∩": "\\cap ",
    "∅": "\\emptyset ", "∈": "\\in ", **dict.fromkeys("°˚º", "^\\circ "), "∨": " or ", "∧": " and ",
    "…": "\\ldots ", "’": "'", "∕": "/", "⁄": "/", "≡": "=",
    "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", **{chr(0x2080 + digit): f"_{{{digit}}}" for digit in range(10)},
    **{ord(sign) + 0xFEE0: sign for sign in ascii_letters + digits + "+-*/=()%<>|"}})
# fmt: on
LABEL = re.compile(r"\(([A-Z])\) (?=.)")  # of a reference: (B) 4 (plumbing/prompts.py)
POINT = re.compile(r"(?<![A-Za-z\\])[A-Z] ?(?=\()")  # M(2, 3)
BASES = {"2": "binary", "8": "octal", "16": "hexadecimal"}
BASE = re.compile(r"(?<![A-Za-z_0-9^])[0-9][0-9A-F]*_\{?(?:\\text\{)?[0-9a-z]")  # 12_5: compared as text, never as 12
PAIR = re.compile(r"^(?:\(|\\\{|\[(?=[^,]*,[^,]*\]$))")  # [5, 2] is not the pair (5, 2)
N = "[0-9]{1,4}"
QUOTIENT = re.compile(rf"(^|=) ?({N}) ?: ?({N})$")
DATE = re.compile(  # or a time, a range, or numbers of which one begins with 0
    rf" ?(?:{N} ?([-/.:]) ?{N} ?\1 ?{N}|{N} ?- ?{N}|{N} ?: ?[0-9]{{2}}|0[0-9]{{1,3}} ?[/:] ?{N}|"
    rf"{N} ?[/:] ?0[0-9]{{1,3}})(?: [ap]m)? ?"
)
MONTH = re.compile(r"\b(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)[a-z]{0,6}\b", re.I)
# 3 h 20 min:
QUANTITIES = re.compile(r"^-?[0-9.]+ ?(?:\\text ?\{[^{}]*\}|[A-Za-z]+)[ ,]*(?:and )?[0-9.]+ ?(?:[A-Za-z\\]|$)")
TWO_LETTERS = {"as", "at", "am", "an", "ah", "ad", "ha", "by", "my", "hm", "mm", "pa", "ma", "ta", "ya"}  # words
DEGREES = {None: "", "√": "", "∛": "[3]", "∜": "[4]"}
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
COMMA = re.compile(r"^(-?(?:0|[1-9][0-9]{0,99}(?!,[0-9]{3}$))),([0-9]{1,99})$")  # 22,5 but not 22,500
WHOLE = "[0-9]{1,999}"  # Python makes no int of more than 4,300 digits
EXPONENT = r" ?\^ ?(?:\{ ?(-?[0-9]{1,2}) ?\}|(-?[0-9])(?![0-9]))"
RAISED = r"(?: ?\^ ?\{?-?[0-9]{1,2}\}?)?"
TEXT = rf"\\text ?\{{[^{{}}]*\}}{RAISED}"


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


def scientific(match) -> str:
    """3.2 \\times 10^5 as 320000, and 10^{-3} as a whole answer as 0.001."""
    return f"{Decimal(f'{match[1] or 1}e{match[2] or match[3]}'):f}"


def greek(match) -> str:
    """\\theta for θ, \\Omega for Ω."""
    _, size, _, letter = name(match[0]).replace("LAMDA", "LAMBDA").split()[:4]
    return f"\\{letter.lower() if size == 'SMALL' else letter.title()} "


SIGN = r"(<|>|\\[lg]eq?(?![A-Za-z]))"
SIDE = r"-?[0-9./]+"


def french_interval(match) -> str:
    """]2, 5[ as (2, 5), which is how French and German books write an open end."""
    start, inside, end = match.groups()
    interval = f"{'(' if start == ']' else '['}{inside}{')' if end == '[' else ']'}"
    return rf"x\in{interval}" if (start, end) == ("]", "[") else interval  # (2, 5) alone may be a pair


def double_inequality(match) -> str:
    """x > 2 and x \\le 5 as 2 < x \\le 5."""
    letter, *bounds = match.groups()
    lower, upper = sorted((bounds[:2], bounds[2:]), key=lambda bound: "<" in bound[0] or "l" in bound[0])
    turned = "<" if lower[0] == ">" else "\\le "
    return f"{lower[1]} {turned} {letter} {upper[0]} {upper[1]}"


PER_CENT = r"(?:\\?%(?! ?[0-9])|(?:per ?cent(?:age)?|pct)(?![A-Za-z]))"  # 17 % 5 is a remainder
RADIANS = r"{\\frac{\1\\pi}{180}}"  # of degrees, beside sines; elsewhere the sign is a unit
COMMANDS = dict(  # other names of a command
    pair.split()
    for pair in r"lbrace \{|rbrace \}|langle (|rangle )|bigcup \cup|bigcap \cap|backslash \setminus|varphi \phi|"
    r"vartheta \theta|varrho \rho|varsigma \sigma".split("|")
)
COMMANDS |= {"lor": " or ", "vee": " or ", "land": " and ", "wedge": " and "} | dict.fromkeys(
    ("vert", "lvert", "rvert"), "|"
)
# What is rewritten before an answer or a reference is read, in this order: (pattern, replacement, an example before and
# after). The rule for spaces leaves single ones, so that no pattern has to look for more: each takes a time linear in
# the text.
# fmt: off
NORMALISE = [(re.compile(pattern), *rest) for pattern, *rest in (
    (r"(?<=[0-9])\{,\}(?=[0-9]{1,2}(?![0-9])|[0-9]{4})|(?<=(?<![0-9])0)\{,\}(?=[0-9])", ".", "37{,}5", "37.5"),
    (r"(?<=[0-9])(?:,\\!|\{(?:,|\\,)\}|(?<!\\)\\[,;: ]|~)\s?(?=[0-9]{3}(?![0-9]))", "", "12{,}345", "12345"),
    (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\s?\.?|\\!", "", r"\left(1\right)", "(1)"),
    (CURRENCY, currency, r"US\$8", "8"),
    (r"\\(?:displaystyle|textstyle|large|Large|huge|bf|rm)(?![A-Za-z])|\\text\s?\{\s?\}", "",
     r"\displaystyle 5", " 5"),
    (r"\\(?:text)?color\s?\{[a-z]+\}|\\checkmark(?![A-Za-z])", "", r"\color{red}5", "5"),
    (r"\\([A-Za-z]+)", lambda m: COMMANDS.get(m[1], m[0]), r"\lbrace 1, 2\rbrace", r"\{ 1, 2\}"),
    (r"(?:\s|~|(?<!\\)\\[,:; ]|\\q?quad(?![A-Za-z]))+", " ", r"a\quad b", "a b"),
    (r"(?<![.\\])[.,;:] ?$", "", "18.", "18"),
    (r"\\[lcd]?dots(?![A-Za-z])|\.{3}", r"\\omega_{0}", r"1, \ldots", r"1, \omega_{0}"),
    (r"\{:\}", ":", "2{:}45", "2:45"),
    (r"(?<=[(\]\[])([^][(){},;]*);([^][(){},;]*)(?=[)\]\[])", r"\1,\2", "(2;5]", "(2,5]"),
    (r"^(?:[A-Z] ?= ?)?([\]\[])([^][(){}]*,[^][(){}]*)([\]\[])$", french_interval, "]2,5]", "(2,5]"),
    (r"^[A-Z]? ?\((?:[^()|A-Z]{1,99}\|)+[^()|A-Z]{1,99}\)$", lambda m: m[0].replace("|", ","), "(2|5)", "(2,5)"),
    (rf"([a-z]) ?{SIGN} ?({SIDE}) ?(?:\\text ?\{{ ?)?and ?\}}? ?\1 ?{SIGN} ?({SIDE})$", double_inequality,
     r"x>2\text{ and }x<5", "2 < x < 5"),
    (r"\\text ?\{ ?all real(?:s| numbers)?(?: [a-z])? ?\}|^all real(?:s| numbers)$", r"\\mathbb{R}",
     r"\text{all real numbers}", r"\mathbb{R}"),
    (r"(?<![0-9.])1(?=i(?![A-Za-z]))", "", "-1i", "-i"),
    (r"\\not ?=", r"\\ne ", r"x \not= 1", r"x \ne  1"),
    (r"\\(?:text(?:rm|bf|it|sf|tt|normal|up)|mbox|hbox|mathrm)(?= ?\{)", r"\\text", r"\mathrm{cm}", r"\text{cm}"),
    (r" ?\(? ?(?:\\[pb]?mod|(?:\\text ?\{ ?\(?)?(?<![a-z])mod) ?\}? ?\{?([0-9]+|[a-z])(?![0-9A-Za-z]) ?\}? ?\)?$",
     r"\\pmod{\1}",
     r"3 (\text{mod }7)", r"3\pmod{7}"),
    (r"\\text ?\{ ?(-?[0-9][0-9./,:]*) ", r"\1\\text{", r"\text{18 apples}", r"18\text{apples}"),
    (rf"(?<=[0-9]) ?\\[dtc]?frac ?\{{ ?({TEXT}) ?\}} ?\{{ ?({TEXT}) ?\}}", r"\1/\2",
     r"9 \frac{\text{km}}{\text{h}}", r"9\text{km}/\text{h}"),
    (r"(?<=:[0-9]{2}) ?(?:\\text ?\{ ?)?([apAP])\.? ?[mM]\.?(?: ?\})?$", lambda m: f" {m[1].lower()}m",
     r"10:00\text{ a.m.}", "10:00 am"),
    (r"(?<![0-9.])[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9])", lambda m: m[0].replace(" ", ""), "12 345 678", "12345678"),
    (r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda m: f"^{{{m[0].translate(SUPERSCRIPTS)}}}", "x²", "x^{2}"),
    (r"[¼-¾⅐-⅞]", lambda m: f"\\frac{{{normalize('NFKC', m[0]).replace(chr(0x2044), '}{')}}}", "½", r"\frac{1}{2}"),
    (rf"(?<=[0-9}})]) ?(?:\\text ?\{{ ?{PER_CENT} ?\}}|{PER_CENT})", r"\\%", r"5\text{ percent}", r"5\%"),
    (r"(?<=[0-9]) ?(?:\\text ?\{ ?)?(?<![A-Za-z])to ?\}? ?(?=[0-9])", ":", r"3\text{ to }4", "3:4"),
    (SCALED, scaled, r"3\text{ million}", r"3000000\text{}"),
    (BEHIND, units, r"3\text{ cm}", "3"),
    (r"\*\*", "^", "2**3", "2^3"),
    (r"^ ?(?:\\approx|=)", "", r"\approx 3", " 3"),
    (r"\\(?:begin|end) ?\{(?:cases|aligned)\}", "", r"\begin{cases}1", "1"),
    (r"(?<![^\W\d_])[α-ωΓΔΘΛΞΠΣΦΨΩ](?![^\W\d_])", greek, "θ", r"\theta "),
    (r"([√∛∜]) ?(?:([0-9.]+|[A-Za-z]|\\pi)|\(([^()]*)\))|\\?(?<![A-Za-z])sqrt ?\(([^()]*)\)",
     lambda m: f"\\sqrt{DEGREES[m[1]]}{{{m[2] or m[3] or m[4]}}}",
     "√2", r"\sqrt{2}"),
    (r"\\operatorname ?\{([A-Za-z]+)\}", r"\\\1 ", r"\operatorname{sin}x", r"\sin x"),
    (r"(?<![A-Za-z\\])(?:pi|ln|log|sin|cos|tan)(?![A-Za-z])", r"\\\g<0>", "2pi", r"2\pi"),
    (r"\\?(?<![A-Za-z])exp ?(?:\(([^()]*)\)|\\?\{([^{}]*?)\\?\}|([0-9a-z]|\\pi))",
     lambda m: f"e^{{{m[1] or m[2] or m[3]}}}",
     "exp(2)", "e^{2}"),
    (r"\\log ?_ ?\{? ?e(?![A-Za-z]) ?\}?", r"\\ln ", r"\log_e 2", r"\ln 2"),
    (r"\\(sin|cos|tan|cot|sec|csc) ?\^ ?\{ ?-1 ?\}", r"\\arc\1", r"\sin^{-1}x", r"\arcsinx"),
    (r"(\\sqrt(?: ?\[[^][]{1,9}\])?) ?([0-9A-Za-z]|\\pi(?![A-Za-z]))", r"\1{\2}", r"\sqrt[3]2", r"\sqrt[3]{2}"),
    (r"(?:(?<!\\)\{|^)([^{}\\]*)\\(over|choose)(?![A-Za-z])([^{}\\]*)(?:\}|$)",
     lambda m: f"\\{'frac' if m[2] == 'over' else 'binom'}{{{m[1]}}}{{{m[3]}}}",
     r"{1 \over 2}", r"\frac{1 }{ 2}"),
    (r"\\(?:[dtc]|nice|s)(frac|binom)", r"\\\1", r"\dfrac{1}{2}", r"\frac{1}{2}"),
    (r"\\(frac|binom) ?([0-9A-Za-z]|\\(?!frac|sqrt)[A-Za-z]+) ?(?=[\\{0-9A-Za-z])", r"\\\1{\2}",
     r"\frac1{2}", r"\frac{1}{2}"),
    (r"(\\(?:frac|binom)\{(?:[^{}]|\{[^{}]*\})*+\}) ?([0-9A-Za-z]|\\(?!frac|sqrt)[A-Za-z]+)", r"\1{\2}",
     r"\frac{1}2", r"\frac{1}{2}"),
    (rf"(?<![0-9.}}])({WHOLE}) ({WHOLE}) ?/ ?({WHOLE})(?![0-9.])", mixed, "1 1/2", r"\frac{3}{2}"),
    (rf"(?<![_^0-9.A-Za-z}}])({WHOLE}) ?\\frac\{{({WHOLE})\}}\{{({WHOLE})\}}", mixed,
     r"33\frac{1}{3}", r"\frac{100}{3}"),
    (r"(?<![_^0-9.])([0-9.]+) (?=[0-9])", r"\1\\omega_{0}", "2 3", r"2\omega_{0}3"),
    (r"(?<=[})])\\%", r"\\cdot 1\\%", r"\frac{1}{2}\%", r"\frac{1}{2}\cdot 1\%"),
    (r"\\dot ?\{?([0-9])\}?([0-9]*)\\dot ?\{?([0-9])\}?", r"\\bar{\1\2\3}", r"0.\dot{1}8\dot{5}", r"0.\bar{185}"),
    (r"\\dot(?= ?\{?[0-9])", r"\\bar", r"0.\dot 3", r"0.\bar 3"),
    (r"\\bar ?([0-9])", r"\\bar{\1}", r"0.\bar 3", r"0.\bar{3}"),
    (rf"(?<![0-9])({WHOLE}|)\.({WHOLE}|)\\(?:overline|bar) ?\{{({WHOLE})\}}", repeating,
     r"0.1\overline{6}", r"\frac{1}{6}"),
    (r"(?<![A-Za-z_^0-9.])([0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE]([-+]?[0-9]+)(?![\w.])", r"\1\\times10^{\2}",
     "1e-7", r"1\times10^{-7}"),
    (r"(?<=[0-9]) ?[*x] ?10 ?\^ ?[({]? ?(-?[0-9]{1,2})(?![0-9]) ?[)}]?", r"\\times10^{\1}", "3 x 10^(-5)",
     r"3\times10^{-5}"),
    (rf"(?<![0-9.])([0-9](?:\.[0-9]{{0,99}})?|\.[0-9]{{1,99}}) ?\\(?:times|cdot) ?10{EXPONENT}", scientific,
     r"3.2\times 10^{5}", "320000"),
    (rf"(?<![^-=, ])()10{EXPONENT}(?= ?(?:$|[,=]))", scientific, "x=10^3", "x=1000"),
    (r"((?<![0-9.])[0-9.]+|[A-Za-z]) ?(?:\^ ?\{? ?\\circ ?\}?|\\degrees?(?![A-Za-z])| (?:\\text\{ ?)?degrees?\}?)",
     RADIANS, r"90^\circ", r"{\frac{90\pi}{180}}"),
    (r"(?<=[0-9])(?: ?\^)? ?(?:\{ ?\\text ?\{ ?(?:st|nd|rd|th) ?\} ?\}|(?:\\text ?)?\{ ?(?:st|nd|rd|th) ?\}|"
     r"(?:(?<=1)st|(?<=2)nd|(?<=3)rd|th)(?= ?(?:[},]|$| [A-Z])))", "", r"12\text{th}", "12"),
    (r"\\mathbb ?\{?R\}?", r"(-\\infty,\\infty)", r"\mathbb{R}", r"(-\infty,\infty)"),
    (r"\\varnothing|\\\{ ?\\\}", r"\\emptyset", r"\varnothing", r"\emptyset"),
    (r"^\\\{ ?[a-z] ?(?:\\in ?\(-\\infty,\\infty\) ?)?(?:\\mid|[:|])(?=.*[<>]|.*\\(?:[lg]|n)e)(.*)\\\}$", r"\1",
     r"\{x \mid x>3\}", " x>3"),
    (r"(?<=[0-9]) ?_ ?(?:10|\{ ?10 ?\})$", "", "12_{10}", "12"),
    (r"\\text ?\{ ?(?:und|oder|et|ou|y|o|e|и|или|或|和|与|及|または|と|그리고|또는) ?\}", r"\\text{ and }",
     r"2\text{ und }3", r"2\text{ and }3"),
    (r"\(([0-9][0-9A-F]*)\) ?(?=_\{?[0-9])", r"\1", "(1011)_2", "1011_2"),
    (r"(?<![A-Za-z])([f-h]) ?\^ ?\{? ?-1 ?\}? ?(?=\( ?[a-z] ?\) ?=)", r"\1_{0}", "f^{-1}(x)=x", "f_{0}(x)=x"),
    (r"^ ?([x-z]) ?\( ?[a-z] ?\) ?=", r"\1=", "y(x)=2x", "y=2x"),
    (r"([A-Za-z])'(?![A-Za-z]{2})|\\(?:bar|overline) ?\{? ?([A-Za-z])(?: ?\}|(?![A-Za-z]))",
     lambda m: f"{m[1] or m[2]}_{{0}}",
     "f'", "f_{0}"),
    (r"(?<=\+) ?c$", "C", "x+c", "x+C"),
)]
# fmt: on
TYPED = re.compile(  # a command of type before braces that are no words, a brace, or another character
    r"(\\(?:math(?:bf|it|sf|tt|normal)|boldsymbol|bm|pmb|underline|emph) ?\{|\\(?:text|mathrm)[a-z]{0,6} ?\{"
    r"(?=[^{}]*[\\{=]|(?:[^{}\w]|and|or)*[0-9](?:[^{}A-Za-z]|and|or)*\}| ?[ei] ?\}))|\\?.",
    re.S,
)


def without_type(text: str) -> str:
    """The text without commands such as \\mathbf{} around formulas.

    >>> without_type("\\\\mathbf{\\\\frac{1}{2}}"), without_type("\\\\text{a cat}^{\\\\text{2}}")
    ('\\\\frac{1}{2}', '\\\\text{a cat}^{2}')
    """
    kept = []
    ends = []
    for token in TYPED.finditer(text):
        if token[0] == "{" or token[0].endswith("{") and token[1]:
            ends.append("" if token[1] else "}")
        kept.append("" if token[1] else ends.pop() if token[0] == "}" and ends else token[0])
    return "".join(kept)


def normalise(latex: str, known: str = "", kept: tuple = (), powers: set | None = None) -> str:
    """The text with one spelling for what LaTeX spells in several ways; see NORMALISE.

    known  the reference, a line end and the prompt, in small letters: their nouns may stand behind a number
    powers  gets the units, as (unit, power)

    >>> normalise("$30^\\\\circ.$"), normalise("\\\\$18.90"), normalise("1 1/2"), normalise("10 weeks")
    ('30', '18.90', '\\\\frac{3}{2}', '10')
    """
    text = without_type(apart(latex.translate(CHARACTERS))[0])
    if not re.search("matrix|array", text):
        text = re.sub(r"\\{2}(?![A-Za-z]{2})", ", ", text)  # a list, line by line
    if "mod" not in text:
        text = text.replace("\\equiv", "=")
    angles = re.search("sin|cos|tan|cot|sec|csc", text)
    text = text.strip().removesuffix("\\")
    powers = set() if powers is None else powers
    for pattern, replacement, *_ in NORMALISE:
        if replacement is units:
            replacement = partial(units, known=known, powers=powers)
        elif replacement is currency:
            replacement = partial(currency, powers=powers)
        elif replacement is RADIANS and not angles:
            replacement = r"\1"
        if replacement not in kept:
            text = pattern.sub(replacement, text)
    return text.strip(" ,")


@lru_cache(maxsize=256)
def canonical_form(latex: str) -> str:
    """What the spellings of a formula share, if they do not differ in form: its numbers, or with letters its terms.

    >>> canonical_form("(7+p)^{2}") == canonical_form("y = (p + 7)(p+7)"), canonical_form("48:36")
    (True, '36.0 48.0')
    """
    from verify.symbolic_equality import form, tried  # loads SymPy

    bare = re.sub(r"\\?\$|(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", "", latex)
    return tried(form, normalise(bare, kept=(mixed, repeating, scientific))) or ""


def in_lowest_terms(latex: str) -> bool:
    """Whether no fraction or ratio of whole numbers can be reduced.

    >>> in_lowest_terms("\\frac{3}{4}"), in_lowest_terms("x = 6/8"), in_lowest_terms("6:8")
    (True, False, False)
    """
    text = normalise(latex, kept=(mixed, repeating))
    pairs = re.findall(
        rf"\\frac\{{({WHOLE})(?:\\sqrt\{{{WHOLE}\}})?\}}\{{({WHOLE})\}}|({WHOLE}) ?[:/] ?({WHOLE})", text
    )
    return all(gcd(*map(int, filter(None, pair))) == 1 for pair in pairs)


def words(text: str) -> list[str] | None:
    """The words of an answer (Paris, \\text{no solution}, (B), A and C, три), `plain` and sorted; None for a formula.

    Two small letters without e, i, o or u are a product: ab is ba, but no is not on; TWO_LETTERS are words too.

    >>> words("Paris"), words("\\\\text{(B)}"), words("2x"), words("xy"), words("p-q"), words("no"), words("IV")
    (['paris'], ['b'], None, None, None, ['no'], ['iv'])
    """
    bare = re.sub(r"\\text|[{}()]", " ", text).strip(" .!?;:„“”«»¿¡。！？、")
    bare = re.sub("^there (?:is|are|exists?) ", "", bare, flags=re.I)
    named = "\\text" in text or len(bare) > 2 or not bare.isascii() or bare in TWO_LETTERS
    named = named or re.search(r"[A-Z]|(?!^)[eiou]|[eiou](?!$)", bare)
    if (
        not named
        or not any(map(str.isalpha, bare))
        or not all(category(letter)[0] in "LMZ" or letter in " ,'-、，" for letter in bare)
        or re.search(r"(?<![^\W\d_])[^\W\d_]-[^\W\d_](?![^\W\d_])", bare)
    ):
        return None
    parts = [plain(part).replace(" ", "") for part in re.split(r"[,、，]|\band\b|\bor\b", bare)]
    return sorted(parts if all(parts) else [plain(bare)])


# --- Words beside the value of a reference

MAY_HAVE_WORDS = re.compile(r"[^\W\d_]{2}|[A-Ha-h][).:-]|[A-H]")
WORDS = re.compile(
    rf"\\text ?\{{[^{{}}]*\}}|(?<![\w\\{{+*/^_-])(?<![{{+*/^_] )(?!(?:{FUNCTIONS}|max|min){AFTER_WORD})"
    r"[^\W\d_]{2,}(?![\w}+*/^_-])(?! [}+*/^_])"
)
OPTION_LETTER = re.compile(  # before or behind a value
    r"^(?:[A-H](?: ?[-–—] ?| )|\(?[A-Ha-h](?:[).:] ?))(?=[-0-9.\\]+)|(?<=[0-9}]) ?\([A-H]\)$"
)
VALUED = re.compile(r"[0-9]|(?<![A-Za-z\\])[b-zB-Z](?![A-Za-z])|\\(?:pi|infty|frac|sqrt|oslash|emptyset)")


def variables(text: str) -> bool:
    """Whether letters may be a product of variables rather than a word: abc, xyz, but not yes."""
    letters = re.sub(r"[\s{}-]", "", text)
    return letters not in TWO_LETTERS and re.fullmatch(r"[abcdfghkmnpqrstvwxyz]+", letters) is not None


def spelt(text: str) -> str:
    """The text without spaces and without \\text{} around its words."""
    return "".join(re.sub(r"\\text ?\{([^{}]*)\}", r"\1", text).split())


CLOCK = re.compile("([0-9]{1,2}):([0-9]{2})(?: ([ap])m)?")


def same_time(right: str, answer: str) -> bool:
    """Whether one is a time with am or pm, and the other the same time of 24 hours.

    >>> same_time("22:05", "10:05 pm"), same_time("12:30 am", "0:30"), same_time("10:05 pm", "10:05")
    (True, True, False)
    """
    one, other = CLOCK.fullmatch(right), CLOCK.fullmatch(answer)
    if not one or not other or bool(one[3]) == bool(other[3]):
        return False
    hours = [int(time[1]) % 12 + 12 * (time[3] == "p") if time[3] else int(time[1]) for time in (one, other)]
    return hours[0] == hours[1] and one[2] == other[2]


def same_digits(right: str, answer: str, known: str) -> bool:
    """Whether two numbers are the same but for a base that one of them leaves out, and the prompt states.

    >>> same_digits("1101", "1101_2", "13 in base 2?"), same_digits("BEE_{16}", "BEE", "in hexadecimal?")
    (True, True)
    >>> same_digits("1101_2", "1101", "what is 13?"), same_digits("1101", "1101_3", "13 in base 2?")
    (False, False)
    """
    (other, none), (number, base) = sorted((side.partition("_")[::2] for side in (right, answer)), key=lambda x: x[1])
    base = base.strip("{}")
    if number != other or none or not base.isdigit() or not re.fullmatch("[0-9A-F]+", number):
        return False
    return re.search(rf"\bbase\W{{0,9}}{base}(?![0-9])", known) is not None or BASES.get(base, known + "?") in known


def equal(expression: str, reference: str, prompt: str = "", symbolic: bool = True) -> bool | None:
    """Whether `expression`, from final_expression, equals the reference; None if that cannot be read. No time limit.

    symbolic  False: None, too, where only SymPy would know
    """
    known = f"{reference}\n{prompt}".casefold()
    text = final_formula(expression, known)
    if label := LABEL.match(reference):
        letter, rest = labelled(text)
        value = value_of(reference)
        if letter and rest.strip():
            return letter == label[1] and equal(f"{BOX}{rest}}}", value, prompt, symbolic)
        return letter == label[1] or equal(expression, value, prompt, symbolic)
    letter, rest = labelled(value_of(reference))
    if letter and letter in reference and not rest.strip() and chosen(text, options(prompt)) == letter:
        return True
    if degenerate(text, len(reference)):
        return spelt(normalise(text)) == spelt(normalise(value_of(reference))) != ""
    wanted: set = set()
    given: set = set()
    value, wanted_for = apart(value_of(reference).translate(CHARACTERS))
    text, given_for = apart(text.translate(CHARACTERS))
    if not same_conditions(given_for, wanted_for, text, known):
        return False
    text = renamed(text, given_for, value, wanted_for)
    named, *rest = parted(text, "=")
    if len(rest) == 1 and "=" not in value and f"${spelt(named)}$" in spelt(prompt):
        text = rest[0]  # a^2 + b^2 = 28, where the prompt asks for $a^2+b^2$
    right = normalise(value, known, powers=wanted)
    answer = normalise(text, known, powers=given)
    if not same_units(given, wanted, prompt) or "\\%" in right and given - wanted:
        return False
    if "\\%" not in right and re.search(r"\w", prompt) and not PERCENT.search(prompt):
        answer = re.sub(r"(?<![0-9.])([0-9]{1,99}(?:\.[0-9]{1,99})?)\\%", lambda m: f"{Decimal(m[1]) / 100:f}", answer)
        answer = re.sub(rf"(\\frac\{{{WHOLE}\}}\{{{WHOLE})\}}\\cdot 0\.01", r"\g<1>00}", answer)
    if RATIO.search(prompt):
        right, answer = (QUOTIENT.sub(r"\1\\frac{\2}{\3}", side) for side in (right, answer))
    if re.match(r"\([^A-Z]*$", right):
        answer = POINT.sub("", answer)
    if "." in right and prompt:
        answer = COMMA.sub(r"\1.\2", answer)
    if spelt(answer) == spelt(right) != "":
        return True
    if same_digits(spelt(right), spelt(answer), known) or same_time(right, answer):
        return True
    if not expression.startswith(BOX) and not is_formula(text, known):
        return words(right) is not None and words(right) == words(answer)
    if not symbolic:
        return None
    verdict = equal_normalised(right, answer)
    if verdict is False and FAMILY.search(prompt):
        return any(equal_normalised(right, other) for other in with_constants(answer, right, prompt))
    return verdict


def only_formula(reference: str, prompt: str = "") -> str | None:
    """The only number or formula of a reference that has words or an option's letter beside it; None for another.

    An answer that holds it alone should be right: else the reference says more than its value, or is no value.

    >>> [only_formula(text) for text in ("Area = 7", "7 since 3+4=7", "It is $x=1, y=2$.", "7 (C)", "C - 7")]
    ['7', '7', 'x=1, y=2', '7', '7']
    >>> [only_formula(text) for text in ("x = 7", "x^2 + C", "x=2 or x=3", "2:45 PM", "no solution", "3x, 7")]
    [None, None, None, None, None, None]
    """
    value = value_of(reference)
    if not MAY_HAVE_WORDS.search(re.sub(r"\\(?!text)[A-Za-z]+", "", value)):
        return None
    formulas = re.findall(r"\$([^$]+)\$", value)
    if formulas and WORDS.search(re.sub(r"\$[^$]+\$", ";", value)):
        values = {formula.strip(" .,") for formula in formulas}
    else:
        text = normalise(value, f"{reference}\n{prompt}".casefold())
        kept = (
            DATE.fullmatch(text)
            or MONTH.search(text)
            or QUANTITIES.match(text)
            or BASE.search(text)
            or re.search(r"\\(?:pmod|begin)", text)
        )
        rest = OPTION_LETTER.sub(";", WORDS.sub(";", text).strip())
        if kept or rest == text.strip():
            return None
        parts = [part for piece in re.split(r";|\band\b|\bor\b", rest) for part in parted(piece, ",")]
        values = {parted(part, "=")[-1].strip(" .:-") for part in parts}
    values = {value for value in values if VALUED.search(value) and not re.fullmatch("[(]?[A-H][)]?", value)}
    return values.pop() if len(values) == 1 else None


@lru_cache(maxsize=256)
def only_formula_is_right(reference: str, prompt: str) -> bool:
    """Whether an answer that holds the reference's only number or formula alone is right, if there is one."""
    value = only_formula(reference, prompt)
    return value is None or equal(f"{BOX}{value}}}", reference, prompt) is True


def degenerate(text: str, length: int) -> bool:
    """Whether a formula has the shape of what is written to hold up a worker: long, deep, or a high power of a sum.

    length  of the reference

    >>> degenerate("(x+y+z)^{400}", 9), degenerate("." * 9_900, 9), degenerate("{" * 600 + "}" * 600, 9)
    (True, True, True)
    >>> degenerate("(x+y+z)^{4}", 9), degenerate("\\\\frac{1}{\\\\sqrt{2}}", 9)
    (False, False)
    """
    if len(text) > max(LONGEST, 3 * length):
        return True
    depth = deepest = 0
    for brace in re.findall(r"[{}()]", text):
        depth += 1 if brace in "{(" else -1
        deepest = max(deepest, depth)
    powers = re.findall(r"[)}] ?\^ ?\{? ?([0-9]+)", text)
    return deepest > DEEPEST or any(len(power) > 2 or int(power) > HIGHEST for power in powers)


@lru_cache(maxsize=256)
def right_for_itself(reference: str) -> bool:
    """Whether a reference can be compared at all: its own text, read and compared, is right."""
    right = normalise(value_of(reference), reference.casefold())
    return equal_normalised(right, right) is True


def equal_normalised(right: str, answer: str) -> bool | None:
    """`equal` of two normalised texts that are not spelt alike."""
    from verify.symbolic_equality import same_formulas  # loads SymPy

    if "\\pmod" in right:
        return spelt(right) == spelt(answer)
    if BASE.search(right) or BASE.search(answer):
        return len({re.sub(r"\\text|[\s{}]", "", side) for side in (right, answer)}) == 1
    texts = same_texts(right, answer)
    return same_formulas(right, answer) if texts is None else texts


def value_of(reference: str) -> str:
    """A reference without its letter, its box or the signs around a formula."""
    reference = LABEL.sub("", reference)
    if BOXES.search(reference):
        return final_formula(final_expression(reference))
    return re.sub(r"^\\[(\[]|\\[)\]][\s.]*$", "", reference.strip())


def same_texts(right: str, answer: str) -> bool | None:
    """The verdict where one side is no formula: words, dates, {1, 2} beside (1, 2); None: both are to be read."""
    spoken = words(answer)
    for side, others_words in ((right, spoken), (answer, words(right))):
        if side == "\\emptyset" and others_words:
            return others_words[0] in ("nosolution", "nosolutions")
    if named := words(right):
        if spoken or not variables(right):
            return named == (spoken or [plain(re.sub(r"\\c?dot|\\times|[\s*{}]", "", answer))])
    if DATE.fullmatch(right):  # 12/05 is no 12/5
        return separate(right) == separate(answer)
    if MONTH.search(right) and re.search("[0-9]", right):  # 14 July 1789 is July 14, 1789
        return (
            len(
                {
                    tuple(sorted(re.findall("[0-9]+|[a-z]+", side.replace("\\text", "").casefold())))
                    for side in (right, answer)
                }
            )
            == 1
        )
    if QUANTITIES.match(right):
        return len({re.sub(r"\\text|and|[\s{},]", "", side) for side in (right, answer)}) == 1
    whole = [side for side in (right, answer) if len(parted(side, ",")) == 1 and not re.search("and|or|text", side)]
    brackets = [bracket[0] for bracket in map(PAIR.match, whole) if bracket]
    return False if len(set(brackets)) == 2 else None
