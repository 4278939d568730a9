"""Values: whether two formulas, as SymPy objects, are the same answer. mathematics.py makes texts of them beforehand.

Importing this file loads SymPy. Nothing here has a time limit.

Test: pytest tests/test_graders.py
"""

import re
from functools import lru_cache

from latex2sympy2_extended import latex2sympy2 as its
from math_verify import verify
from math_verify.grader import is_assignment_relation, is_equation, take_last_relation
from sympy import Float, Matrix, Mul, Rational, Symbol, Tuple, UnevaluatedExpr, signsimp
from sympy.core.function import AppliedUndef, Function
from sympy.core.parameters import distribute
from sympy.core.relational import Equality, Relational
from sympy.logic.boolalg import And, Boolean, Or
from sympy.sets import FiniteSet, Interval, Set, Union

from verify.texts import after_equals, parted
from verify.unfinished import built_again, left_to_do, with_i

SIGNS = r"\\(?:pm|mp)(?![A-Za-z])"
SPREAD = re.compile(r"^ ?-?[0-9]+ ?\\pm ?[1-9][0-9]* ?")  # 18 \pm 1 leaves nothing to be done, 9 + 9 \pm 1 does
BRACKET = re.compile(r" ?(?:[(\[]|\\\{|\\begin)")
NAMED_VALUE = re.compile(r"^(?:\\?[A-Za-z]+|\\operatorname\{[A-Za-z]+\}) ?\([^=]*(?:=[^=)]*)*\) ?=")  # P(X=2)=, f(2)=
NAMED_COMMAND = re.compile(r"^\\[A-Za-z]+ ?\([^=]*[a-z][^=]*\) ?=")  # \gcd(a, b) =


def same_formulas(right: str, answer: str) -> bool | None:
    """Whether an answer equals a reference, both normalised; None if the reference cannot be read."""
    gold = reading(right)
    if gold is None or getattr(gold, "is_Boolean", False) and gold.is_Atom:
        return None  # no mathematics, or a statement such as 3 = 3 of which nothing is left
    allowed = tried(may_be_left, gold, right)
    return None if allowed is None else tried(same_value, gold, allowed, answer) is True


def same_value(gold, allowed: set[str], answer: str) -> bool:
    """Whether an answer equals the reference, and leaves no more to be done than is allowed.

    Whatever it raises is the answer's fault: the reference has been read.
    """
    found, text = value_given(answer)
    if found is None or not left_to_do(text, found, letters=has_letters(gold)) <= allowed:
        return False
    return same(gold, finished(found))


def value_given(text: str):
    """(object, its text) of a box; of P(X=2)=\\frac14, whose left side cannot be read, what follows the last "="."""
    found = None if NAMED_COMMAND.match(text) else raw(text)
    sides = parted(text, "=")
    if found is None and len(sides) > 1 and not all(map(BRACKET.match, (sides[0], sides[-1]))):  # (1, 2) = (2, 3)
        text = after_equals(text)
        found = raw(text)
    return found, text


def has_letters(gold) -> bool:
    """Whether the value of a reference, or one of its values, holds letters; x in x = 8 and x < 8 is only its name."""
    if names_a_value(gold):
        return has_letters(take_last_relation(gold).rhs)
    if isinstance(gold, (And, Or, FiniteSet, Tuple)):
        return any(map(has_letters, gold.args))
    if isinstance(gold, Relational):
        return any(has_letters(side) for side in gold.args if not isinstance(side, Symbol))
    return bool(getattr(gold, "free_symbols", None))


def may_be_left(gold, right: str) -> set[str]:
    """What an answer may leave to be done, since the reference does (unfinished.py)."""
    asked = left_to_do(right, value_given(right)[0], letters=has_letters(gold))
    return asked if isinstance(gold, (FiniteSet, Interval)) else asked | {"union"}  # of intervals: all numbers but 0


def form(latex: str) -> str:
    """The numbers of a formula, or if it holds letters, the formula as SymPy builds it; "" if it cannot be read."""
    found = raw(latex)
    if found is not None and names_a_value(found):
        found = take_last_relation(found).rhs
    if found is None or not has_letters(found):
        return " ".join(sorted(str(float(number)) for number in re.findall(r"[0-9]*\.?[0-9]+", latex)))
    with distribute(False):
        built = built_again(found, roots=False)
    return str(signsimp(built))


def tried(function, *arguments):
    """function(*arguments), or None if it raises: what latex2sympy and SymPy raise on nonsense has no common class."""
    try:
        return function(*arguments)
    except Exception:  # of which class latex2sympy's own errors are; load_sympy checks that sound pairs raise none
        return None


def reading(latex: str):
    """The whole LaTeX text as a SymPy object, its i and its matrices worked out, or None if that fails."""
    found = raw(latex)
    if found is None and NAMED_VALUE.match(latex):
        found = raw(after_equals(latex))
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


def raw(latex: str):
    """The whole LaTeX text as latex2sympy reads it, or None if that fails.

    An expression with \\pm deep inside, which latex2sympy does not read, becomes the set of its two values.
    """
    if not re.search(SIGNS, latex):
        return tried(read, latex)
    latex = after_equals(latex)
    found = tried(read, latex)
    if found is not None:
        return found.doit() if SPREAD.fullmatch(latex) else found
    either = [tried(read, re.sub(SIGNS, lambda m: pm["pm".index(m[0][1])], latex)) for pm in ("+-", "-+")]
    return None if None in either else tried(FiniteSet, *either)


@lru_cache(maxsize=256)  # a reference is read twice for each of a prompt's answers
def read(latex: str):
    """`raw` without the rule for \\pm; raises for what latex2sympy cannot read."""
    config = its.NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    return its.latex2sympy(
        its.normalize_latex(latex, config),
        is_real=True,
        convert_degrees=False,
        normalization_config=None,
        conversion_config=its.ConversionConfig(lowercase_symbols=False),
    )


def same(gold, given) -> bool:
    """Whether two SymPy objects are the same answer: we compare numbers, order and names, math-verify the rest."""
    if any(isinstance(side, FiniteSet) for side in (gold, given)) and any(map(lies_within, (gold, given))):
        return False
    if names_a_value(gold) and not is_equation(given):
        return same(take_last_relation(gold).rhs, given)
    if is_equation(given) and not is_equation(gold):  # 2x = 10 is not 10, but 1 + 9 = 10 is
        last = take_last_relation(given)
        return same(gold, last.rhs) and (names_a_value(given) or same(last.lhs, last.rhs))
    if is_equation(gold) and not (is_equation(given) and gold.free_symbols and given.free_symbols):
        return gold == given  # x^2 = 4 is not 2, -2; \\log_3 9 = 2 is not \\log_2 4 = 2
    if is_solution(gold) and not is_line(gold, given):
        return same_solution(gold, given)
    if all(getattr(side, "is_number", False) for side in (gold, given)):
        return close(gold, given)
    if any(getattr(side, "is_Matrix", False) for side in (gold, given)):
        return same_entries(gold, given)
    if isinstance(gold, Union) and isinstance(given, FiniteSet) and all(map(is_statement, given.args)):
        given = Or(*given.args)  # x < 1 or x > 4
    if isinstance(gold, Set) and not isinstance(gold, FiniteSet) and is_statement(given):
        given = given.as_set()  # x > 0 is right for (0, oo); one that is not solved is no answer (unfinished.py)
    if is_statement(gold) and isinstance(given, Set) and not isinstance(given, FiniteSet):
        found = tried(gold.as_set)
        if found is None:  # 0 < f(x) < 1
            return verify(gold, given, timeout_seconds=None, allow_set_relation_comp=True)
        gold = found
    if is_statement(gold) != is_statement(given):
        return False
    if isinstance(gold, Symbol) and isinstance(given, Symbol):
        return gold == given  # math-verify takes \\Theta for \\theta
    if isinstance(gold, Interval) and isinstance(given, Interval):
        ends = (gold.left_open, gold.right_open) == (given.left_open, given.right_open)
        return ends and same(gold.start, given.start) and same(gold.end, given.end)
    if any(members(side) for side in (gold, given)) and all(
        members(side) or not isinstance(side, Set) and not is_statement(side) for side in (gold, given)
    ):
        return same_members(gold, given)
    if getattr(gold, "free_symbols", None) != getattr(given, "free_symbols", None):
        return False  # at once: math-verify can take minutes
    if verify(gold, given, timeout_seconds=None):
        return True
    if is_statement(gold) and gold.free_symbols == given.free_symbols:
        return tried(gold.as_set) == tried(given.as_set) is not None  # 1 > x > 0 is 0 < x < 1
    spread = [roots_of_factors(side) for side in (gold, given)]
    return spread != [gold, given] and verify(*spread, timeout_seconds=None)


def roots_of_factors(found):
    """sqrt(a/b) as sqrt(a)/sqrt(b): letters of physics are positive. But sqrt(a^2) is not a."""

    def is_root(node) -> bool:
        factors = node.base.as_powers_dict() if node.is_Pow and node.exp.is_Rational and node.base.is_Mul else {}
        return len(factors) > 1 and -1 not in factors and all(exponent in (1, -1) for exponent in factors.values())

    def spread(node):
        return Mul(*(base ** (exponent * node.exp) for base, exponent in node.base.as_powers_dict().items()))

    return found.replace(is_root, spread) if hasattr(found, "replace") else found


def is_statement(found) -> bool:
    """x < 3 and the like; not a letter alone, which SymPy takes for one that is true everywhere."""
    return isinstance(found, Boolean) and not isinstance(found, Symbol)


def lies_within(found) -> bool:
    """x \\in (1, 3), which latex2sympy reads as an equation: never the list of the ends."""
    return isinstance(found, Equality) and isinstance(found.rhs, (Interval, Union))


def names_a_value(found) -> bool:
    """x = 3, m + n = 113, f(2) = 5 or \\log_2 x = 3, of which the last value counts; not 2x = 10."""
    if is_assignment_relation(found):
        return True
    if not is_equation(found):
        return False
    left = take_last_relation(found).lhs
    return isinstance(left, AppliedUndef) or isinstance(left, Function) and bool(left.free_symbols)


def is_solution(found) -> bool:
    """x = b/a, but not ax = b or x = x^2: an equation with a letter on its left that is not on its right."""
    return isinstance(found, Equality) and isinstance(found.lhs, Symbol) and found.lhs not in found.rhs.free_symbols


def is_line(gold, given) -> bool:
    """Whether the two may be equations of a line or a curve, of which 2x + 4y - 3 = 0 is as good as y = -x/2 + 3/4.

    So is the form of a point and a slope, y - 3 = 2(x - 1).
    """
    letters = {symbol.name for symbol in gold.free_symbols}
    if letters != {"x", "y"} or gold.lhs.name != "y" or not isinstance(given, Equality):
        return False
    return given.rhs.is_number or gold.lhs not in given.rhs.free_symbols and (given.lhs - gold.lhs).is_number


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
    if not all(getattr(side, "is_Matrix", False) for side in (gold, given)) or gold.shape != given.shape:
        return False
    return len(gold) > 0 and all(map(same, gold, given))


def as_column(found):
    """(1, 2) as a column vector; another object as it is."""
    return Matrix(members(found)) if isinstance(found, (Interval, Tuple)) and members(found) else found


def members(found) -> list:
    """The members of a list, set or tuple as written; of an open interval, written like a pair, its ends; else []."""
    if isinstance(found, Interval) and found.is_open:
        return [found.start, found.end]
    return list(getattr(found, "_unsorted_args", found.args)) if isinstance(found, (FiniteSet, Tuple)) else []


def same_members(gold, given) -> bool:
    """Whether members agree: in order within parentheses, or for 1, 2 as answer to x = 1, y = 2; else in any order."""
    right, answer = (members(side) or [side] for side in (gold, given))
    if isinstance(gold, (Interval, Tuple)) and all(map(is_assignment_relation, answer)):
        answer.sort(key=lambda member: member.lhs.name)  # (3, 4) is x = 3, y = 4
    names = {member.lhs for member in right if is_assignment_relation(member)}
    free = not isinstance(gold, (Interval, Tuple)) and not isinstance(given, (Interval, Tuple))
    if not free or len(names) > 1 and not any(map(is_assignment_relation, answer)):
        return len(right) == len(answer) > 0 and all(map(same_member, right, answer))
    right, answer = (list(dict.fromkeys(side)) for side in (right, answer))  # repeated ones of a set count once
    if len(right) != len(answer):
        return False
    for member in right:
        found = next((other for other in answer if same_member(member, other)), None)
        if found is None:
            return False
        answer.remove(found)
    return True


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
    if not (gold.is_finite and given.is_finite):
        return gold == given and bool(gold.is_extended_real)  # infinity is right for itself, 1/0 is not
    decimals = [side.has(Float) for side in (gold, given)]
    if not any(decimals) or any(side.is_integer and not decimal for side, decimal in zip((gold, given), decimals)):
        return is_zero(exact(gold) - exact(given))
    return bool(abs((gold - given).evalf(20)) <= min(1e-6, 2e-5 * abs(gold).evalf()))


def exact(number):
    """The number with its decimals as fractions."""
    return number.replace(lambda part: isinstance(part, Float), lambda part: Rational(str(part)))


def is_zero(number) -> bool:
    """Whether a number is 0 as far as twice the digits that it is written with can tell, and 100 more."""
    if number.is_Rational:
        return number == 0
    bits = sum(part.p.bit_length() + part.q.bit_length() for part in number.atoms(Rational))
    parts = number.evalf(5, maxn=2 * bits // 3 + 100).as_real_imag()
    return all(part == 0 or part.is_Float and part._prec == 1 for part in parts)  # 1: no digit is known
