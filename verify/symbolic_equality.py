"""Values: whether two formulas, as SymPy objects, are the same answer. mathematics.py makes texts of them beforehand.

Importing this file loads SymPy. Nothing here has a time limit.

Test: pytest tests/test_graders.py
"""

import re
from functools import lru_cache

from antlr4 import PredictionMode
from latex2sympy2_extended import latex2sympy2 as its
from math_verify import verify
from math_verify.grader import is_assignment_relation, is_equation, take_last_relation
from sympy import (
    Abs,
    Expr,
    Float,
    Integral,
    Matrix,
    Mul,
    Rational,
    Symbol,
    Tuple,
    UnevaluatedExpr,
    expand_power_base,
    powdenest,
    signsimp,
)
from sympy.core.function import AppliedUndef, Function
from sympy.core.parameters import distribute
from sympy.core.relational import Equality
from sympy.functions.elementary.trigonometric import TrigonometricFunction
from sympy.logic.boolalg import And, Boolean, Or
from sympy.sets import FiniteSet, Interval, Union

from verify.spelling import after_equals, parted
from verify.unevaluated import built_again, left_to_do, with_i

SIGNS = r"\\(?:pm|mp)(?![A-Za-z])"
SPREAD = re.compile(r"^ ?-?[0-9]+ ?\\pm ?[1-9][0-9]* ?")  # 18 \pm 1 leaves nothing to be done, 9 + 9 \pm 1 does
BRACKET = re.compile(r" ?(?:[(\[]|\\\{|\\begin)")
# \gcd(a, b) =, and f(-2) =, of which latex2sympy makes a product:
NAMED_COMMAND = re.compile(r"^(?:\\[A-Za-z]+ ?\([^=]*[a-z][^=]*\)|[f-hF-HPp] ?\( ?-[0-9./]+ ?\)) ?=")


def same_formulas(right: str, answer: str) -> bool | None:
    """Whether an answer equals a reference, both normalised; None if the reference cannot be read."""
    expression, text = value_given(right)
    gold = tried(finished, expression)
    if gold is None or getattr(gold, "is_Boolean", False) and gold.is_Atom:
        return None  # no mathematics, or a statement such as 3 = 3 of which nothing is left
    allowed = tried(left_to_do, text, expression, has_letters(gold))
    return None if allowed is None else tried(same_value, gold, allowed, answer) is True


def has_letters(gold) -> bool:
    """Whether the value of a reference holds letters; x in x = 8 and x < 8 is only its name."""
    return bool((take_last_relation(gold).rhs if names_a_value(gold) else region(gold)).free_symbols)


def same_value(gold, allowed: set[str], answer: str) -> bool:
    """Whether an answer equals the reference, and leaves no more to be done than is allowed.

    Whatever it raises is the answer's fault: the reference has been read.
    """
    if isinstance(gold, Interval) and re.search(SIGNS, answer):
        return False  # the list of the ends
    expression, text = value_given(answer)
    return left_to_do(text, expression, has_letters(gold)) <= allowed and same(gold, finished(expression))


def value_given(text: str):
    """(object, its text) of a box; of P(X=2)=\\frac14, whose left side cannot be read, what follows the last "="."""
    expression = None if NAMED_COMMAND.match(text) else raw(text)
    sides = parted(text, "=")
    if expression is None and len(sides) > 1 and not all(map(BRACKET.match, (sides[0], sides[-1]))):  # (1, 2) = (2, 3)
        text = after_equals(text)
        expression = raw(text)
    return expression, text


def form(latex: str) -> str:
    """The numbers of a formula, or if it holds letters, the formula as SymPy builds it; "" if it cannot be read."""
    expression = raw(latex)
    if expression is not None and names_a_value(expression) and not isinstance(take_last_relation(expression).lhs, Abs):
        expression = take_last_relation(expression).rhs
    if expression is None or not expression.free_symbols:
        numbers = sorted(str(float(number)) for number in re.findall(r"[0-9]*\.?[0-9]+", latex))
        return " ".join(numbers + re.findall(rf"{SIGNS}|\\%", latex))
    with distribute(False):
        built = built_again(expression, roots=False)
    return str(signsimp(built))


def tried(function, *arguments):
    """function(*arguments), or None if it raises: what latex2sympy and SymPy raise on nonsense has no common class."""
    try:
        return function(*arguments)
    except Exception:  # of which class latex2sympy's own errors are; load_sympy checks that sound pairs raise none
        return None


def finished(expression):
    """The object with i as the imaginary unit, matrices written out, and x as the argument of a function: f(t) = t."""
    expression = with_i(expression)
    if isinstance(expression, Equality) and isinstance(expression.lhs, AppliedUndef) and len(expression.lhs.args) == 1:
        argument = Symbol("x", real=True)
        if argument not in expression.free_symbols:
            expression = expression.xreplace({name: argument for name in expression.lhs.args if name.is_Symbol})
    return Matrix(expression.doit()) if getattr(expression, "is_Matrix", False) else expression


def raw(latex: str):
    """The whole LaTeX text as latex2sympy reads it, or None if that fails.

    An expression with \\pm deep inside, which latex2sympy does not read, becomes the set of its two values.
    """
    if "\\cup" in latex and re.search(r"\( ?([^(),]+?) ?, ?\1 ?\)", latex):
        return None  # latex2sympy makes {5} of the empty (5, 5)
    if not re.search(SIGNS, latex):
        return tried(read, latex)
    latex = after_equals(latex)
    led = re.match(f" ?{SIGNS}", latex) and "," not in latex and len(parted(latex, "+-")) > 1
    expression = None if led else tried(read, latex)  # it would read \pm a + b as \pm(a + b)
    if expression is not None:
        return expression.doit() if SPREAD.fullmatch(latex) else expression
    either = [tried(read, re.sub(SIGNS, lambda m: pm["pm".index(m[0][1])], latex)) for pm in ("+-", "-+")]
    return None if None in either else tried(FiniteSet, *either)


class Reader(its._Latex2Sympy):
    """latex2sympy with the cheaper prediction of its ANTLR parser, and with the full one where that reads nothing.

    To choose between two rules, SLL looks at the texts that may follow either in any context, and LL at those that may
    follow in this one, which takes longer. What SLL reads, LL reads as the same. Some texts only LL can read.
    """

    def parse(self, latex_str):
        self.prediction = PredictionMode.SLL
        expression = tried(super().parse, latex_str)
        if expression is not None:
            return expression
        self.prediction = PredictionMode.LL
        return super().parse(latex_str)

    def create_parser(self, latex_str):
        parser = super().create_parser(latex_str)
        parser._interp.predictionMode = self.prediction
        return parser


@lru_cache(maxsize=256)  # a reference is read twice for each of a prompt's answers
def read(latex: str):
    """`raw` without the rule for \\pm; raises for what latex2sympy cannot read."""
    config = its.NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    reader = Reader(is_real=True, config=its.ConversionConfig(lowercase_symbols=False))
    return reader.parse(its.normalize_latex(latex, config))


def same(gold, given) -> bool:
    """Whether two SymPy objects are the same answer: we compare numbers, order and names, math-verify the rest."""
    if gold == given or gold.has(Integral):
        return gold == given  # working an integral out can take minutes
    where = [says_where(side) for side in (gold, given)]
    if any(where) and any(isinstance(side, FiniteSet) and not says_where(side) for side in (gold, given)):
        return False  # the list of the ends
    if all(where) and gold.free_symbols != given.free_symbols:
        return False
    if any(where):
        gold, given = map(region, (gold, given))
    if names_a_value(gold) and not is_equation(given):
        return same(take_last_relation(gold).rhs, given)
    if is_equation(given) and not is_equation(gold):  # 2x = 10 is not 10, but 1 + 9 = 10 is
        last = take_last_relation(given)
        named = getattr(gold, "is_Matrix", False) and all(base.is_Symbol for base in last.lhs.as_powers_dict())
        return same(gold, last.rhs) and (names_a_value(given) or named or same(last.lhs, last.rhs))
    if is_equation(gold) and not (is_equation(given) and gold.free_symbols and given.free_symbols):
        return gold == given  # x^2 = 4 is not 2, -2; \\log_3 9 = 2 is not \\log_2 4 = 2
    if is_solution(gold) and not is_line(gold):
        return same_solution(gold, given)
    if is_equation(gold) and gold.has(TrigonometricFunction) and len(gold.free_symbols) > 1:
        return all(map(same, gold.args, given.args))  # math-verify would solve it, which takes seconds
    if all(getattr(side, "is_number", False) for side in (gold, given)):
        return close(gold, given)
    if any(getattr(side, "is_Matrix", False) for side in (gold, given)):
        return same_entries(gold, given)
    if isinstance(gold, Interval) and isinstance(given, Interval):
        ends = (gold.left_open, gold.right_open) == (given.left_open, given.right_open)
        return ends and same(gold.start, given.start) and same(gold.end, given.end)
    if any(map(members, (gold, given))) and all(members(side) or isinstance(side, Expr) for side in (gold, given)):
        return same_members(gold, given)
    if gold.free_symbols != given.free_symbols:
        return False  # at once: math-verify can take minutes
    return verify(*map(roots_apart, (gold, given)), timeout_seconds=None)


def roots_apart(expression):
    """sqrt(a/b) as sqrt(a)/sqrt(b): letters of physics are positive. But sqrt(a^2) is not a."""
    if not isinstance(expression, Expr) or expression.doit().has(Abs):
        return expression
    return powdenest(expand_power_base(expression, force=True), force=True)


def says_where(expression) -> bool:
    """x < 3 or x \\in (1, 3), which latex2sympy reads as an equation, or some of them."""
    if isinstance(expression, FiniteSet):
        return len(expression) > 0 and all(map(says_where, expression.args))
    if isinstance(expression, Equality):
        return isinstance(expression.rhs, (Interval, Union))
    return isinstance(expression, Boolean) and not isinstance(expression, Symbol)


@lru_cache(maxsize=256)  # SymPy solves inequalities slowly
def set_of(inequality):
    """The numbers for which it holds."""
    return inequality.as_set()


def region(expression):
    """The set that a text which says where says; another object as it is."""
    if not says_where(expression):
        return expression
    if isinstance(expression, Equality):
        return expression.rhs
    expression = Or(*expression.args) if isinstance(expression, FiniteSet) else expression
    return tried(set_of, expression) or expression


def names_a_value(expression) -> bool:
    """x = 3, m + n = 113, f(2) = 5 or \\log_2 x = 3, of which the last value counts; not 2x = 10."""
    if is_assignment_relation(expression):
        return True
    if not is_equation(expression):
        return False
    left = take_last_relation(expression).lhs
    return isinstance(left, AppliedUndef) or isinstance(left, Function) and bool(left.free_symbols)


def is_solution(expression) -> bool:
    """x = b/a, but not ax = b or x = x^2: an equation with a letter on its left that is not on its right."""
    return (
        isinstance(expression, Equality)
        and isinstance(expression.lhs, Symbol)
        and expression.lhs not in expression.rhs.free_symbols
    )


def is_line(gold) -> bool:
    """Whether an equation may be that of a line or a curve, of which 2x + 4y - 3 = 0 is as good as y = -x/2 + 3/4."""
    return gold.lhs.name == "y" and {symbol.name for symbol in gold.free_symbols} == {"x", "y"}


def same_solution(gold, given) -> bool:
    """Whether an equation is the solution, from left to right or from right to left: not b = ax for x = b/a.

    Of x = 2 * 5 = 10 the last value counts.
    """
    equations = given.args if isinstance(given, And) else [given]
    named = any(gold.lhs in equation.args for equation in equations)
    last = take_last_relation(given)
    value = last.lhs if last.rhs == gold.lhs else last.rhs
    return named and same(finished(gold.rhs), finished(value))


def same_entries(gold, given) -> bool:
    """Whether both are matrices with the same entries; they are written out and have entries (`finished`)."""
    gold, given = map(as_column, (gold, given))
    return gold.shape == given.shape and all(map(same, gold, given))


def as_column(expression):
    """(1, 2) as a column vector; another object as it is."""
    return (
        Matrix(members(expression)) if isinstance(expression, (Interval, Tuple)) and members(expression) else expression
    )


def members(expression) -> list:
    """The members of a list, set or tuple as written; of an open interval, written like a pair, its ends; else []."""
    if isinstance(expression, Interval) and expression.is_open:
        return [expression.start, expression.end]
    return (
        list(getattr(expression, "_unsorted_args", expression.args))
        if isinstance(expression, (FiniteSet, Tuple))
        else []
    )


def same_members(gold, given) -> bool:
    """Whether members agree: in order within parentheses, or for 1, 2 as answer to x = 1, y = 2; else in any order."""
    right, answer = (members(side) or [side] for side in (gold, given))
    if isinstance(gold, (Interval, Tuple)) and all(map(is_assignment_relation, answer)):
        if len({member.lhs for member in answer}) < len(answer):
            return False
        answer.sort(key=lambda member: member.lhs.name)  # (3, 4) is x = 3, y = 4
    names = {member.lhs for member in right if is_assignment_relation(member)}
    free = not isinstance(gold, (Interval, Tuple)) and not isinstance(given, (Interval, Tuple))
    if not free or len(names) > 1 and not any(map(is_assignment_relation, answer)):
        return len(right) == len(answer) > 0 and all(map(same_member, right, answer))
    matches = [[same_member(member, other) for other in answer] for member in right]
    return all(map(any, matches)) and all(map(any, zip(*matches)))


def same_member(gold, given) -> bool:
    return isinstance(gold, FiniteSet) == isinstance(given, FiniteSet) and same(gold, given)


def without_percent(number):
    """28 of 28%; None for a number without the sign, and for one of which only a part has it: 48 + 46%."""
    percent = UnevaluatedExpr(Rational(1, 100))
    if not number.is_Mul or percent not in number.args:
        return None
    return Mul(*(factor for factor in number.args if factor != percent))


def close(gold, given) -> bool:
    """Whether two numbers are equal: exactly, unless one is a decimal and the other is no whole number; then they may
    differ by 1e-6, or by 2e-5 of the reference's size if that is less.

    28 and 0.28 are both right for 28%.
    """
    bare = [without_percent(side) for side in (gold, given)]
    fraction = bare[0] is None and abs(gold) < 1  # 0.4 is no 0.4%
    if bare.count(None) == 1 and not fraction and close(bare[0] or gold, bare[1] or given):
        return True
    gold, given = gold.doit(), given.doit()
    if not gold.is_finite:
        return gold == given
    decimals = [side.has(Float) for side in (gold, given)]
    if not any(decimals) or any(side.is_integer and not decimal for side, decimal in zip((gold, given), decimals)):
        gold, given = map(exact, (gold, given))
        return (gold - given).equals(0) is True
    return bool(abs((gold - given).evalf(20)) <= min(1e-6, 2e-5 * abs(gold).evalf()))


def exact(number):
    """The number with its decimals as fractions."""
    return number.replace(lambda part: isinstance(part, Float), lambda part: Rational(str(part)))
