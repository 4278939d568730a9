"""What an answer leaves to be done: operators that its reference does not have make it a question, not an answer.

A model in training learns to give the question back: "What is 48/8?" "48/8". So, beside being equal, an answer may hold
no operator that the reference lacks (`left_to_do`), where operators are named by what has to be done:
  addition      two terms that make one: 48 + 46, 3\\sqrt{6} - \\sqrt{6}; a sum of numbers within a sum: 7i - (3 - 2i)
  multiplication  two factors that make one: 2 \\cdot 47, x \\cdot x, \\sqrt{2}\\sqrt{3}, and of numbers (1 + i)(2 - i)
  quotient      a fraction of two numbers that is a whole number, or a fraction of decimals or of fractions: 48/8
  power, root   of numbers, where the root is a number: 2^{10}, 8^{1/3}, 3\\sqrt{16}, \\sqrt{50}/\\sqrt{2}, i^2; e^0
  mantissa      of a power of ten, below 0.1 or not below 10: 25 \\times 10^3, if the reference has no power of ten
  relation      an inequality that is not solved: 2x < 6
  matrix        a sum, product or power of matrices
  \\gcd, !, ...  any function: gcd, lim, sum, int, mod, binomials, factorials, absolute values, ...
Another spelling of a value stays right: 2/4 for 1/2, \\sqrt{8} for 2\\sqrt{2}, 3 \\times 10^5, 2\\pi, 1 + \\sqrt{2};
and, as a whole answer, a root or a power of ten: \\sqrt{16} for 4, 10^3 for 1000. One that stands in the prompt
is the question: given_back in graders.py.
If the reference's value holds letters, (x+1)^2 and x^2+2x+1, or \\sin and \\cos, may stand for each other.

Test: pytest tests/test_graders.py
"""

import re

from math_verify.grader import take_last_relation
from sympy import Add, Derivative, Integral, Mul, Pow, Rational, Tuple, UnevaluatedExpr, exp, preorder_traversal
from sympy.concrete import Product, Sum
from sympy.core.relational import Equality, Relational
from sympy.logic.boolalg import And
from sympy.matrices.expressions import MatAdd, MatMul, MatPow
from sympy.sets import FiniteSet

from verify.texts import after_equals, parted

# Commands that spell a value, a name or a list. Every other command is an operator of its own, or one of FAMILIES.
PLAIN = re.compile(
    "d?frac|sqrt|pi|c?dot|times|pm|mp|infty|text|begin|end|omega|emptyset|le|ge|leq|geq|lt|gt|ne|neq|in|approx|leqslant|"
    "geqslant|alpha|beta|gamma|Gamma|delta|Delta|epsilon|varepsilon|zeta|eta|theta|Theta|vartheta|iota|kappa|lambda|"
    "Lambda|mu|nu|xi|rho|sigma|Sigma|tau|upsilon|phi|Phi|varphi|chi|psi|Psi|Omega|vec|hat|mathbf|mathbb|mathcal|ell|"
    "degree|circ|prime|langle|rangle|quad|cdots|ldots|dots|lbrace|rbrace|lbrack|rbrack|displaystyle|limits|nolimits"
)
FAMILIES = {  # one may be written for another: \\log_2 3 = \\ln 3 / \\ln 2
    "log": "log|ln|lg",
    "sine": "sin|cos|tan|cot|sec|csc",
    "arc": "arc(?:sin|cos|tan|cot|sec|csc)",
    "union": "cup|setminus",
    "count": "!|binom|choose",
}
IDENTITIES = {"log", "sine", "arc", "count"}  # of expressions with letters
NAMED = re.compile(
    r"(?<![A-Za-z\\])(gcd|lcm|hcf|mod|max|min|abs|floor|ceil|log|ln|lg|sin|cos|tan|cot|sec|csc|det|lim|choose)(?![A-Za-z])"
)
NUMBER = r"(-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+))"
INSIDE = rf"[({{] ?{NUMBER} ?[)}}]"
QUOTIENT = re.compile(
    rf"\\frac ?\{{ ?{NUMBER} ?\}} ?\{{ ?{NUMBER} ?\}}|"
    rf"(?:(?<![0-9.^_A-Za-z]){NUMBER}|(?<![0-9A-Za-z^_}}\]]){INSIDE}) ?(?:/|:|\\div) ?(?:{NUMBER}|{INSIDE})(?![0-9.])"
)


def left_to_do(text: str, found, *, letters: bool) -> set[str]:
    """The operators in an answer or a reference that leave something to be done.

    text     as normalised LaTeX; only what follows the last "=" of each part counts
    found    what was read from it, unevaluated
    letters  whether the reference holds letters: then IDENTITIES and products of sums leave nothing to be done
    """
    values = " ".join(map(after_equals, parted(text, ",;")))
    todo = functions(values) | ({"quotient"} if any(map(reducible, QUOTIENT.finditer(values))) else set())
    for part in value_parts(found):
        if not part.is_Atom and spells(part):
            continue
        nodes = preorder_traversal(part)
        for node in nodes:
            mantissa = scientific(node.args) if node.is_Mul else 0
            if not mantissa:
                todo |= kinds(node, letters)
                continue
            nodes.skip()
            if not 0.1 <= abs(mantissa) < 10:
                todo.add("mantissa")
    return todo - IDENTITIES if letters else todo


def spells(part) -> bool:
    """Whether a value as a whole is a root of a whole number, or a power of ten, apart from its sign."""
    if part.is_Mul and len(part.args) == 2 and part.args[0] == -1:
        part = part.args[1]
    if not (part.is_Pow and part.base.is_Integer and part.exp.is_Rational):
        return False
    return 0 < part.exp < 1 and part.exp.p == 1 or part.base == 10 and part.exp.is_Integer and part.exp != 0


def functions(text: str) -> set[str]:
    """The functions and other commands in a text that are no PLAIN ones.

    >>> sorted(functions("\\\\gcd(48,46)+\\\\frac{\\\\ln 3}{2}")), sorted(functions("3! + |-5|"))
    (['gcd', 'log'], ['count', '|'])
    """
    signs = [sign for sign in "!|" if sign in text.replace("\\|", "|")]
    commands = {*re.findall(r"\\([A-Za-z]+)", text), *NAMED.findall(text), *signs}
    found = {command for command in commands if not PLAIN.fullmatch(command)}
    for family, members in FAMILIES.items():
        if any(re.fullmatch(members, command) for command in found):
            found = {command for command in found if not re.fullmatch(members, command)} | {family}
    if re.search(r"(?<![A-Za-z\\])i ?\^|\^ ?\{? ?0 ?(?:\}|(?![0-9.]))", text):
        found.add("power")
    if re.search(r"\{[vV]matrix\}", text):
        found.add("det")
    if re.search(r"[-+] ?[({]? ?[-+]", text):
        found.add("addition")
    return found


def reducible(match) -> bool:
    """Whether a fraction of two numbers is a whole number, or has decimals: 48/8, 4.8/8; not 12/5."""
    top, bottom = [number for number in match.groups() if number]
    if "." in top + bottom:
        return True
    return int(bottom) == 0 or int(top) % int(bottom) == 0


def value_parts(found):
    """The values within a list, set or tuple; of an equation, its right side."""
    if isinstance(found, And) and all(isinstance(part, Equality) for part in found.args):  # x = 2 \\cdot 5 = 10
        found = take_last_relation(found)
    if isinstance(found, Equality):
        yield from value_parts(found.rhs)
    elif hasattr(found, "as_immutable"):
        yield found.as_immutable()
    elif isinstance(found, (FiniteSet, Tuple)):
        for part in found.args:
            yield from value_parts(part)
    else:
        yield found


def kinds(node, letters: bool) -> set[str]:
    """What this node itself, not those below it, leaves to be done."""
    if isinstance(node, (Derivative, Integral, Sum, Product)):
        return {type(node).__name__.lower()}
    if isinstance(node, (MatAdd, MatPow)) or isinstance(node, MatMul) and sum(a.is_Matrix for a in node.args) > 1:
        return {"matrix"}
    if isinstance(node, Relational):
        return set() if node.is_Equality or solved(node) else {"relation"}
    if isinstance(node, Add) and (adds_up(node) or not letters and bracketed(node)):
        return {"addition"}
    if isinstance(node, Mul):
        return products(node, letters)
    if isinstance(node, exp) and node.exp != 1 and node.exp.is_number:
        return set() if isinstance(exp(node.exp), exp) else {"power"}
    if isinstance(node, Pow) and is_constant(node.base) and node.exp.is_Rational:
        return powers(node)
    return set()


def solved(relation) -> bool:
    """x < 3, but not 2x < 6 or x < y + 1 or x < x."""
    sides = [(relation.lhs, relation.rhs), (relation.rhs, relation.lhs)]
    return any(name.is_Symbol and not value.free_symbols for name, value in sides)


def plain_number(node) -> bool:
    """A whole number, fraction, decimal or percentage, however latex2sympy builds it."""
    if node.is_Number or is_percent(node):
        return True
    if node.is_Pow:
        return node.base.is_Number and node.exp == -1
    return node.is_Mul and all(map(plain_number, node.args)) and bool(node.args)


def is_constant(node) -> bool:
    """Whether a node is a number; latex2sympy reads the imaginary unit as a letter."""
    return not node.free_symbols or is_complex(node)


def is_complex(node) -> bool:
    return {letter.name for letter in node.free_symbols} == {"i"}


def is_percent(node) -> bool:
    """Whether this is the sign, which latex2sympy reads as 1/100 that nothing works out."""
    return isinstance(node, UnevaluatedExpr)


def adds_up(total) -> bool:
    """Whether two terms of a sum make one: two numbers, or multiples of the same, or anything and 0."""
    if sum(map(plain_number, total.args)) > 1 or 0 in total.args:
        return True
    powers = (node for node in total.atoms(Pow) if node.base.is_Number and node.exp.is_Integer)
    if any(abs(node.exp) > 99 for node in powers):
        return False  # too large to be worked out here, and a power of its own
    settled = Add(*map(settle, total.args))
    return settled == 0 or len(Add.make_args(settled)) < len(total.args)


def bracketed(total) -> bool:
    """Whether a term of a sum is a sum itself, or minus a sum."""
    return any(
        term.is_Add or term.is_Mul and -1 in term.args and any(a.is_Add for a in term.args) for term in total.args
    )


def settle(node):
    """The node built again, so that SymPy does what it does by itself: numbers, equal terms, equal bases."""
    return node.func(*map(settle, node.args)) if type(node) in (Add, Mul, Pow) else node


def factors(node, upward: bool = True):
    """Yield (factor, whether it stands above the fraction line) of a product within products."""
    for factor in node.args if node.is_Mul else [node]:
        if factor.is_Mul:
            yield from factors(factor, upward)
        elif factor.is_Pow and factor.exp == -1:
            yield from factors(factor.base, not upward)
        else:
            yield factor, upward


def products(node, letters: bool) -> set[str]:
    """What a product leaves to be done."""
    every = list(factors(node))
    above = [factor for factor, up in every if up and factor != -1]  # -1 is a sign
    below = [factor for factor, up in every if not up]
    percent = any(map(is_percent, above))  # behind a fraction or a bracket it is read as times 1 %
    numbers = [factor for factor in above if factor.is_Number and not (percent and factor == 1)]
    divisors = [factor for factor in below if factor.is_Number and abs(factor) != 1]
    todo = set()
    if 0 in numbers and len(every) > 1 and not percent:
        todo.add("zero")
    if len(numbers) > 1 or len(divisors) > 1 or sum(factor.is_Matrix for factor in above) > 1:
        todo.add("multiplication")
    if divisors and any(number % 1 != 0 or number % divisors[0] == 0 for number in (*numbers, *divisors[1:])):
        todo.add("quotient")
    if any(divisor % 1 != 0 for divisor in divisors):  # not 3., the end of a sentence
        todo.add("quotient")
    parts = [(base(factor), up) for factor, up in every if not factor.is_Number and not factor.is_Add]
    bases = [part for part, up in parts if up or not isinstance(part, str)]  # \\sqrt{3} over \\sqrt{2} is a fraction
    if len(set(bases)) < len(bases):
        todo.add("multiplication")
    sums = [factor for factor in above if factor.is_Add]
    if not letters and (len(sums) > 1 or sums and "root" in bases):
        todo.add("multiplication")
    if any(map(is_complex, below)) and any(map(is_complex, above)):
        todo.add("quotient")
    if any(map(is_complex, sums)) and sum(map(is_complex, above)) > 1:
        todo.add("multiplication")
    return todo | ({"root"} if cancel(above, below) else set())


def cancel(above: list, below: list) -> bool:
    """Whether a root over another one is a rational number: \\sqrt{50} over \\sqrt{2}."""
    over, under = ([factor for factor in side if base(factor) == "root"] for side in (above, below))
    pairs = ((up, down) for up in over for down in under if up.exp == down.exp)
    return any(((up.base / down.base) ** up.exp).is_Rational for up, down in pairs)


def base(factor):
    """What two factors must share to be one power: x of x^2; all roots of numbers, all powers of e count as one."""
    if isinstance(factor, exp):
        return "e" if factor.exp.is_number else factor
    if factor.is_Pow and factor.base.is_Number and factor.exp.is_Rational and not factor.exp.is_Integer:
        return "root"
    return factor.base if factor.is_Pow else factor


def scientific(above):
    """The number of two factors that are a number and a power of ten: 3 of 3 \\times 10^5; 0 for 3 \\times 10^0."""
    if len(unsigned := [factor for factor in above if factor != -1]) != 2:
        return 0
    mantissa, power = unsigned
    ten = power.is_Pow and power.base == 10 and power.exp.is_Integer and power.exp != 0
    return mantissa if ten and mantissa.is_Number else 0


def powers(node) -> set[str]:
    """Of a number to a rational power: "power" for a whole exponent, "root" for a root that is a number."""
    if node.exp == -1:
        return set()
    if node.exp.is_Integer:
        return {"power"}
    if not node.base.is_Number:
        return set()
    root = abs(Rational(str(node.base))) ** node.exp
    return {"root"} if root.is_Rational else set()
