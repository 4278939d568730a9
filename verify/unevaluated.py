"""What an answer leaves to be done: operators that its reference does not have make it a question, not an answer.

A model in training learns to give the question back: "What is 48/8?" "48/8". So, beside being equal, an answer may
leave nothing to be done that its reference does not (`left_to_do`):
  commands     all but those that spell a value, a name or a list (PLAIN): \\gcd, !, |, \\lim, \\sum, \\int, mod, ...
  quotient     a fraction of two numbers that is a whole number, or has decimals: 48/8, 4.8/8
  calculation  what SymPy makes shorter by itself: 48 + 46, 2 \\cdot 47, 3\\sqrt{6} - \\sqrt{6}, \\sqrt{50}/\\sqrt{2},
               if the reference holds no letters, also (1 + i)(2 - i); and each power of a number,
               25 \\times 10^3 too; but mathematics.py writes out 2.5 \\times 10^4
  relation     an inequality that is not solved: 2x < 6
Another spelling of a value stays right: 2/4 for 1/2, \\sqrt{8} for 2\\sqrt{2}, 3 \\times 10^5, 2\\pi, 1 + \\sqrt{2};
and, as a whole value, \\sqrt{16} and 10^3. One that stands in the prompt is the question: given_back in graders.py.

Test: pytest tests/test_graders.py
"""

import re

from math_verify.grader import take_last_relation
from sympy import (
    Abs,
    Add,
    Derivative,
    Expr,
    Function,
    I,
    Mul,
    Pow,
    Tuple,
    UnevaluatedExpr,
    expand,
    log,
    preorder_traversal,
)
from sympy.core.parameters import distribute
from sympy.core.relational import Equality, Relational
from sympy.logic.boolalg import And
from sympy.matrices import ImmutableDenseMatrix
from sympy.matrices.expressions import MatPow, MatrixExpr
from sympy.sets import FiniteSet

from verify.spelling import after_equals, parted

PLAIN = re.compile(
    "cup|setminus|d?frac|sqrt|pi|c?dot|times|pm|mp|infty|text|begin|end|omega|emptyset|le|ge|leq|geq|lt|gt|ne|neq|in|"
    "approx|leqslant|geqslant|alpha|beta|gamma|Gamma|delta|Delta|epsilon|"
    "varepsilon|zeta|eta|theta|Theta|vartheta|iota|kappa|lambda|"
    "Lambda|mu|nu|xi|rho|sigma|Sigma|tau|upsilon|phi|Phi|varphi|chi|psi|Psi|Omega|vec|hat|mathbf|mathbb|mathcal|ell|"
    "degree|circ|prime|langle|rangle|quad|cdots|ldots|dots|lbrace|rbrace|lbrack|rbrack|displaystyle|limits|nolimits"
)
FAMILIES = {  # one may be written for another: \\log_2 3 = \\ln 3 / \\ln 2
    "log": "log|ln|lg",
    "sine": "sin|cos|tan|cot|sec|csc",
    "arc": "arc(?:sin|cos|tan|cot|sec|csc)",
    "count": "!|binom|choose",
}
IDENTITIES = {"log", "sine", "arc", "count"}  # of expressions with letters
OPERATOR = re.compile(
    r"\\([A-Za-z]+)|(?<![A-Za-z])(gcd|lcm|hcf|mod|max|min|abs|floor|ceil|log|ln|lg|sin|cos|tan|cot|sec|csc|det|lim|"
    r"choose|[vV]matrix)(?![A-Za-z])|([!|])"
)
NUMBER = r"(-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+))"
INSIDE = rf"[({{] ?{NUMBER} ?[)}}]"
QUOTIENT = re.compile(
    rf"\\frac ?\{{ ?{NUMBER} ?\}} ?\{{ ?{NUMBER} ?\}}|"
    rf"(?:(?<![0-9.^_A-Za-z]){NUMBER}|(?<![0-9A-Za-z^_}}\]]){INSIDE}) ?(?:/|:|\\div) ?(?:{NUMBER}|{INSIDE})(?![0-9.])"
)


def left_to_do(text: str, expression, letters: bool) -> set[str]:
    """The operators in an answer or a reference that leave something to be done.

    text     as normalised LaTeX; only what follows the last "=" of each part counts
    expression  what was read from it, unevaluated
    letters  whether the reference holds letters: then IDENTITIES and products of sums leave nothing to be done
    """
    values = " ".join(map(after_equals, parted(re.sub(r"\|( ?[a-zA-Z] ?)\|", r"\1", text), ",;")))
    todo = commands(values)
    if any(map(reducible, QUOTIENT.finditer(values))):
        todo.add("quotient")
    if re.search(r"[-+] ?[({]? ?[-+]", values):
        todo.add("sign")
    if expression.has(Derivative):
        todo.add("derivative")
    if any(isinstance(node, Relational) and not solved(node) for node in preorder_traversal(expression)):
        todo.add("relation")
    if any(calculates(part, letters) for part in value_parts(expression)):
        todo.add("calculation")
    return todo - IDENTITIES if letters else todo


def commands(text: str) -> set[str]:
    """The functions and other commands in a text that are no PLAIN ones, by family.

    >>> sorted(commands("\\\\gcd(48,46)+\\\\frac{\\\\ln 3}{2}")), sorted(commands("3! + |-5|"))
    (['gcd', 'log'], ['count', '|'])
    """
    names = {"".join(names) for names in OPERATOR.findall(text.replace("\\|", "|"))}
    names = {name for name in names if not PLAIN.fullmatch(name)}
    return {next((family for family, names in FAMILIES.items() if re.fullmatch(names, name)), name) for name in names}


def reducible(match) -> bool:
    """Whether a fraction of two numbers is a whole number, or has decimals: 48/8, 4.8/8; not 12/5."""
    top, bottom = [number for number in match.groups() if number]
    if "." in top + bottom:
        return True
    return int(bottom) == 0 or int(top) % int(bottom) == 0


def value_parts(expression):
    """The values within a list, set, interval, inequality or matrix; of an equation, its right side."""
    if isinstance(expression, And) and all(
        isinstance(part, Equality) for part in expression.args
    ):  # x = 2 \\cdot 5 = 10
        expression = take_last_relation(expression)
    if isinstance(expression, Equality):
        expression = expression.rhs
    if isinstance(expression, Expr) and not isinstance(expression, ImmutableDenseMatrix):
        yield expression
    else:
        for part in getattr(expression, "args", expression):  # a matrix has entries instead
            yield from value_parts(part)


def solved(relation) -> bool:
    """x < 3 or |x| < 3, but not 2x < 6 or x < y + 1 or x < x."""
    sides = [(relation.lhs, relation.rhs), (relation.rhs, relation.lhs)]
    names = [(name.args[0] if isinstance(name, Abs) else name, value) for name, value in sides]
    return relation.is_Equality or any(name.is_Symbol and not value.free_symbols for name, value in names)


def calculates(part, letters: bool) -> bool:
    """Whether SymPy makes a value shorter by itself, or could: whether it holds a power of a number."""
    if isinstance(part, MatrixExpr):
        return sum(node.is_Matrix for node in part.args) > 1 or isinstance(part, MatPow)
    if spells(part):
        return False
    if any(map(is_power, preorder_traversal(part))):
        return True
    with distribute(not letters):
        built = built_again(part)
    return length(built if letters else expand(built, complex=built.has(I))) < length(part)


def spells(part) -> bool:
    """Whether a value as a whole is a root of a whole number, apart from its sign."""
    root = part.args[1] if part.is_Mul and len(part.args) == 2 and part.args[0] == -1 else part
    return root.is_Pow and root.base.is_Integer and is_root(root)


def is_root(power) -> bool:
    return power.exp.is_Rational and power.exp.p == 1 < power.exp.q


def is_power(node) -> bool:
    """A number to a whole exponent, but for one over a whole number."""
    if not node.is_Pow or not node.exp.is_Integer or with_i(node).free_symbols:
        return False
    return node.exp != -1 or node.base.is_Rational and not node.base.is_Integer


def length(node) -> int:
    """Numbers, letters and functions; a fraction is two numbers, and 1 over something one."""
    if node.is_Atom:
        return 2 if node.is_Rational and not node.is_Integer else 1
    if node.is_Pow and (node.exp == -1 or is_root(node)):
        return length(node.base) + (node.exp != -1)
    if isinstance(node, log):  # of which the base is a part of the name
        return 1 + length(node.args[0])
    ones = (
        (-1, 1)
        if node.is_Mul
        and any(part.is_Pow and part.exp == -1 or isinstance(part, UnevaluatedExpr) for part in node.args)
        else (-1,)
    )
    parts = [part for part in node.args if node.is_Add or part not in ones]
    return sum(map(length, parts)) + (not isinstance(node, (Add, Mul, Pow)))


def built_again(node, roots: bool = True):
    """The value as SymPy builds it, with all sums, products and powers worked out that it works out by itself.

    roots  whether roots are worked out too
    """
    if not isinstance(node, (Add, Mul, Pow, Function)):
        return with_i(node)
    parts = [built_again(part, roots) for part in node.args]
    return node.func(*parts, evaluate=isinstance(node, (Add, Mul)) or node.is_Pow and (roots or not is_root(node)))


def with_i(expression):
    """The object with the imaginary unit in place of the letter i, which latex2sympy reads as a mere symbol."""
    letters = {symbol: I for symbol in getattr(expression, "free_symbols", ()) if symbol.name == "i"}
    if isinstance(expression, Equality) and letters:  # z is read as a real number, so z = 2i would become False
        return Equality(*map(with_i, expression.args), evaluate=False)
    if isinstance(expression, (And, FiniteSet, Tuple)) and letters:
        return expression.func(*map(with_i, expression.args), evaluate=False)
    return expression.xreplace(letters) if letters else expression
