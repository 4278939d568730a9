# ruff: noqa: E501  (one attack after the other)
"""Wrong answers made by rules, 300 and more of each kind: none may earn a reward.

    python -m lab.attacks               all kinds; prints how many were graded right, and which
    python -m lab.attacks --count 60 words sets

A rule takes a reference and random numbers and makes an answer that a reader calls wrong. tests/test_attacks.py runs a
part of them.
"""

import argparse
import json
import random

from verify import graders, mathematics, programs

# fmt: off
WORDS = ["Paris", "Tuesday", "mice", "no", "yes", "IV", "Bücher", "miércoles", "три", "星期三", "converges", "even", "AB",
         "increasing", "true", "blue", "two words", "l'eau", "Äpfel", "none"]
# fmt: on


def words(r):
    """(answer, reference): words."""
    word, other = r.sample(WORDS, 2)
    letters = list(word)
    r.shuffle(letters)
    shuffled = "".join(letters)
    answers = [
        shuffled if shuffled.casefold() != word.casefold() else word + "x", word[:-1], word[1:], word + "s", word * 2, f"not {word}",
        f"{word} or {other}", f"{word}, {other}", f"{other} {word}", f"{word} {other}", f"\\text{{{word}}} \\text{{{other}}}",
        f"{other} = {word}", f"{word} = {other}", f"\\text{{{other}}} = \\text{{{word}}}", f"{word}^2", f"1 {word}", f"2{word}",
        f"-{word}", f"\\text{{not }}{word}", f"{other}: {word}", f"{other}/{word}", f"\\frac{{{word}}}{{{other}}}",
        f"{word} \\cdot {other}", f"{word}_1", f"{word}?? {other}", f"\\neg {word}", f"\\{{{word}, {other}\\}}", "", "\\text{}",
        f"\\lnot\\text{{{word}}}", f"{word} and {other}", word.replace("e", "е").replace("o", "о") + "а", f"un{word}", f"\\ne {word}",
    ]  # fmt: skip
    return r.choice(answers), word


def matrix(rows, kind="pmatrix"):
    return f"\\begin{{{kind}}}" + " \\\\ ".join(" & ".join(map(str, row)) for row in rows) + f"\\end{{{kind}}}"


def matrices(r):
    high, wide = r.randint(1, 3), r.randint(2, 3)
    rows = [[r.randint(-9, 9) for _ in range(wide)] for _ in range(high)]
    changed = [row[:] for row in rows]
    changed[-1][-1] += r.randint(1, 5)
    other = [[r.randint(10, 19) for _ in row] for row in rows]
    zero = [[0] * wide for _ in rows]
    m = matrix(rows)
    answers = [
        matrix(changed), f"x{matrix(other)}", f"x{m}", f"{m}, {matrix(changed)}", f"{m} \\text{{ or }} {matrix(changed)}", matrix(rows + [rows[0]]),
        matrix([row + [row[0]] for row in rows]), matrix([row[:-1] for row in rows]), f"{m}^{{-1}}", f"-{matrix(other)}", f"{matrix(other)}+{m}",
        f"2{matrix(other)}", f"{m}+{matrix(zero)}x + 1", "x", "0", matrix([[str(x) + "x" for x in row] for row in other]), matrix([["x"] * wide] * high),
        matrix([[]]), f"\\det{m}", matrix(other, "vmatrix"), f"{m} = {matrix(changed)}", f"{matrix(changed)} = {m}", f"k{matrix(zero)}",
        f"{m}{matrix(other)}", matrix([[f"\\pm {x}" for x in row] for row in changed]), ", ".join(str(x + 1) for row in rows for x in row),
        matrix([[f"\\frac{{{x}}}{{0}}" for x in row] for row in rows]), f"\\{{{matrix(changed)}\\}}", f"{matrix(other)} \\cdot y", f"A{m}",
    ]  # fmt: skip
    return r.choice(answers), m


def tuples(r):
    a, b, c = r.sample(range(-9, 30), 3)
    right = f"({a}, {b}, {c})" if r.random() < 0.5 else f"({a}, {b})"
    triple = right.count(",") == 2
    inside = right[1:-1]
    answers = [
        f"({b}, {a}, {c})" if triple else f"({b}, {a})", f"({inside}, {c})", f"({a})", f"{a}", f"({a}, {a}, {b})", f"({a}, {b + 1})",
        f"\\{{{inside}\\}}", f"({inside}), ({b}, {a})", f"({inside}) \\text{{ or }} ({c}, {b}, {a})", f"(({a}, {b}), {c}, {c})",
        f"(\\pm {a + 50}, {b})", f"({a}, {b}, \\ldots)", f"[{b}, {a}]", f"({a}; {b + 1})", f"{a}{b}", f"({a} + {b}, {c})",
        f"x({inside})", f"2({inside})", f"({inside}) + ({inside})", f"({a} , x)", "(x, y)", f"({a}, {b}, x)", "()", f"({a}, )", f"{a} \\cdot {b}",
        f"({inside}) = ({b}, {a}, {c})", f"({c + 1}, {a}) = {right}", f"({a}/0, {b}/0)", f"x = {a}", f"{b}, {a}" if not triple else f"{c}, {b}, {a}",
    ]  # fmt: skip
    return r.choice(answers), right


def sets(r):
    members = sorted(r.sample(range(-9, 30), r.randint(2, 4)))
    inside = ", ".join(map(str, members))
    right = f"\\{{{inside}\\}}" if r.random() < 0.5 else inside
    other = members[-1] + r.randint(1, 9)
    less = ", ".join(map(str, members[:-1]))
    answers = [
        less, f"\\{{{less}\\}}", f"\\{{{inside}, {other}\\}}", f"{inside}, {other}", f"\\{{{less}, {other}\\}}", f"{less}, \\ldots", f"[{members[0]}, {members[-1]}]",
        "\\mathbb{R}", "\\mathbb{Z}", "\\emptyset", f"{members[0]} \\le x \\le {members[-1]}", f"x \\in [{members[0]}, {members[-1]}]",
        f"\\{{{less}\\}} \\cup \\{{{other}\\}}", f"\\{{{inside}\\}} \\cup \\{{{other}\\}}", f"\\pm {members[-1] + 50}", f"\\{{x, {inside}\\}}", f"\\{{{inside}, x\\}}",
        f"\\{{\\{{{less}\\}}, {members[-1] + 1}\\}}", f"x \\ne {members[0]}", f"{inside} \\text{{ and more}}", f"\\{{{inside}, ...\\}}", f"x = {members[0]}", f"{members[0]}",
        f"{sum(members) + 100}", f"\\{{{inside}\\}} \\setminus \\{{{members[0]}\\}}", f"\\{{x : x > {members[0]}\\}}", f"\\{{{less}, {less}\\}}", f"\\mathbb{{R}} \\setminus \\{{{inside}\\}}",
        f"\\text{{not }} \\{{{inside}\\}}", f"\\{{{inside}\\}}^c", f"{members[0]} \\text{{ to }} {members[-1] + 1}", f"\\{{{', '.join(str(-m - 40) for m in members)}\\}}",
    ]  # fmt: skip
    return r.choice(answers), right


def intervals(r):
    a = r.randint(-20, 10)
    b = a + r.randint(2, 20)
    opening, closing = r.choice("[("), r.choice("])")
    right = f"{opening}{a}, {b}{closing}"
    turned = {"[": "(", "(": "[", "]": ")", ")": "]"}
    less = {"[": "\\le", "(": "<", "]": "\\le", ")": "<"}
    answers = [
        f"{turned[opening]}{a}, {b}{closing}", f"{opening}{a}, {b}{turned[closing]}", f"{opening}{b}, {a}{closing}", f"{opening}{a}, {b + 1}{closing}", f"{opening}{a - 1}, {b}{closing}",
        f"x {less[closing]} {b}", f"x > {a}", f"{a} {less[turned[opening]]} x {less[closing]} {b}", f"{opening}{a}, {b}{closing} \\cup ({b + 1}, {b + 2})", "\\mathbb{R}", "\\emptyset",
        "(-\\infty, \\infty)", f"(-\\infty, {a}) \\cup ({b}, \\infty)", f"{opening}{a}, \\infty)", f"(-\\infty, {b}{closing}", f"2 \\cdot {a} {less[opening]} 2x {less[closing]} 2 \\cdot {b}",
        f"x {less[closing]} {b} \\text{{ or }} x {less[opening]} {a}", f"{opening}{a}, x{closing}", f"{a}", f"{b}", f"{a} - {b}", f"\\{{{a}, {b}\\}}", f"{opening}{a}, {b}{closing}, {opening}{b}, {b + 1}{closing}",
        f"x \\in {opening}{a}, {b + 1}{closing}", f"y {less[opening]} {a}", f"|x| < {abs(a) + abs(b) + 1}", f"{a} {less[opening]} {b}", f"{b} {less[opening]} x {less[closing]} {a}",
        f"{opening}{a}, {b}{closing} \\setminus \\{{{a + 1}\\}}", f"({a}, {a + 1}) \\cup ({a + 1}, {b})", f"x \\ne {a}", f"\\mathbb{{R}} \\setminus {opening}{a}, {b}{closing}",
    ]  # fmt: skip
    return r.choice(answers), right


def choices(r):
    letter, other = r.sample("ABCDE", 2)
    answers = [
        other, f"({other})", f"{letter} or {other}", f"{other}, {letter}", f"{letter}{other}", f"not {letter}", f"The answer is {other}.", f"{letter}\n{other}", f"I think {letter}, so {other}",
        f"{letter} and {other}", f"The answer is ({letter}) or ({other}).", f"({letter})({other})", "ABCDE", "A B C D E", f"\\boxed{{{letter}}} or \\boxed{{{other}}}", f"{letter}1", f"{letter}?{other}",
        f"The answer is not {letter}.", f"\\boxed{{{other}}} {letter}", f"\\boxed{{{letter},{other}}}", "", "None", f"{letter}/{other}", f"Option {other}, not {letter}", f"{other}: {letter}", f"{other}. {letter}",
    ]  # fmt: skip
    return r.choice(answers), letter


def texts(r):
    answer, reference = words(r)
    lines = f"{reference}\n{r.choice(WORDS)}x"
    if r.random() < 0.3:
        first, second = lines.split("\n")
        return r.choice(
            [first, second, f"{second}\n{first}", f"{first} {second}", f"{lines}\n{first}", f"{first}\n\n{first}"]
        ), lines
    if answer in (f"-{reference}", ""):
        answer = f"The answer is {reference}."
    return answer, reference


OUTPUTS = [  # (what a program writes, what is expected), made of a number
    lambda n, d: (f"{n + 1}", f"{n}"), lambda n, d: (f"{n} {n}", f"{n}"), lambda n, d: (f"{n}\n{n + 1}", f"{n}"), lambda n, d: ("", f"{n}"), lambda n, d: (f"0{n}", f"{n}"),
    lambda n, d: (f"{n}.{d}1", f"{n}.{d}"), lambda n, d: (f"{n}e1", f"{n}"), lambda n, d: ("nan", f"{n}.{d}"), lambda n, d: ("inf", f"{n}.{d}"), lambda n, d: (f"-{n}", f"{n}"),
    lambda n, d: (f"{n} {d}", f"{n}\n{d}"), lambda n, d: (f"{n}\n{d}", f"{n} {d}"), lambda n, d: (f"{n}\x00", f"{n}"), lambda n, d: (f"{n}_0", f"{n}0"), lambda n, d: ("YES NO", "YES"), lambda n, d: ("yes", "YES"),
    lambda n, d: (f"1e{400 + n}", f"{n}.5"), lambda n, d: (f"{n},{d}", f"{n}.{d}"), lambda n, d: (f"+{n}", f"{n}"), lambda n, d: (f"{n}.1", f"{n}"), lambda n, d: (f"{n}\n\n{n}", f"{n}\n{n}"), lambda n, d: (f"0x{n:x}", f"{n}"),
]  # fmt: skip
RESULTS = [  # (a call's result, the expected one)
    lambda n, d: (str(n), n), lambda n, d: ([n], n), lambda n, d: (n + 1, n), lambda n, d: (None, n), lambda n, d: ([n, d], [d, n]), lambda n, d: ([n], [n, n]), lambda n, d: ({"0": n}, [n]),
    lambda n, d: (n + 1e-6, n), lambda n, d: ([[n, d]], [n, d]), lambda n, d: (True, n + 1), lambda n, d: (float("nan"), n), lambda n, d: ("", []), lambda n, d: (0, None), lambda n, d: (False, []), lambda n, d: (f"{n}", [n]),
]  # fmt: skip


def code(r):
    """(what a program writes, expected, name of the function or None)."""
    n, d = r.randint(11, 999), r.randint(1, 9)
    if r.random() < 0.5:
        written, expected = r.choice(OUTPUTS)(n, d)
        return (written, expected, None)
    written, expected = r.choice(RESULTS)(n, d)
    return (json.dumps(written), expected, "f")


def math_verdict(answer, reference):
    found = graders.math(f"\\boxed{{{answer}}}", reference)
    return mathematics.equal(found, reference) if isinstance(found, str) else found


def questions(r):
    """(answer, reference, prompt): what the prompt asks, in one spelling or another."""
    a, b, c = r.sample(range(2, 10), 3)
    asked, right = r.choice([
        (f"(x+{a})^2", f"x^2+{2 * a}x+{a * a}"), (f"(x-{a})(y+{b})", f"xy+{b}x-{a}y-{a * b}"), (f"{a}(x+{b}y)-{c}y", f"{a}x+{a * b - c}y"), (f"\\frac{{x^2-{a * a}}}{{x-{a}}}", f"x+{a}"),
        (f"\\sqrt{{{a * a * 11}}}", f"{a}\\sqrt{{11}}"), (f"\\frac{{{a * b}}}{{{11 * b}}}", f"\\frac{{{a}}}{{11}}"), (f"{a * b}/{11 * b}", f"{a}/11"), (f"{a * b}:{11 * b}", f"{a}:11"), (f"{a * b} ÷ {11 * b}", f"\\frac{{{a}}}{{11}}"),
        (f"{a} \\frac{{1}}{{{b}}}", f"\\frac{{{a * b + 1}}}{{{b}}}"), (f"{a}.{b} × 10^{c}", f"{a}{b}{'0' * (c - 1)}"), (f"{a}{b}.5\\%", f"\\frac{{{20 * a + 2 * b + 1}}}{{200}}"), (f"\\frac{{{a}}}{{8}}", f"{a / 8}"), (f"0.{a}{b}{c}", f"\\frac{{{a}{b}{c}}}{{1000}}"),
    ])  # fmt: skip
    spelt = r.choice(["{}", "+{}", "y = {}", "f(x)={}", "[{}]", "{{{}}}", "\\left({}\\right)", "1 \\cdot {}", "{} + 0", "\\displaystyle {}", "0 + {}", "\\large {}", "{}.", "\\,{}\\,"])  # fmt: skip
    prompt = r.choice(["Rewrite ${}$.", "What is {}?", "Find \\({}\\), please.", "It costs $5. Rewrite\n\\[{}\\]", "Simplify: {}", "a) $${}$$"])  # fmt: skip
    return spelt.format(asked), right, prompt.format(asked)


def rewrites(r):
    """(answer, reference, prompt): what the prompt asks, rewritten trivially, or not far enough."""
    a, b, c = r.sample(range(2, 10), 3)
    x = r.choice("xtkmp")
    product, total = f"({x}+{a})({x}-{a + b})", f"{x}^2-{b}{x}-{a * (a + b)}"
    top, bottom = a * b * c, 11 * b * c
    expanded = [
        f"-({x}+{a})({a + b}-{x})", f"({x}+{a})^1({x}-{a + b})", f"{x}({x}-{a + b})+{a}({x}-{a + b})", f"({x}-{a + b})\\cdot({a}+{x})", f"(-{x}-{a})({a + b}-{x})", f"\\frac{{({x}+{a})({x}-{a + b})}}{{1}}",
    ]  # fmt: skip
    factored = [
        f"{x}^2-{b}{x}^1-{a * (a + b)}", f"{x}({x}-{b})-{a * (a + b)}", f"-{a * (a + b)}+{x}({x}-{b})", f"{x}^2-({b}{x}+{a * (a + b)})", f"{x}^{{2}}-{a * (a + b)}-{b}\\cdot {x}", f"-({b}{x}-{x}^2+{a * (a + b)})",
    ]  # fmt: skip
    reduced = [
        f"\\frac{{0{top}}}{{{bottom}}}", f"{top}\\cdot {bottom}^{{-1}}", f"\\frac{{{top}}}{{0{bottom}}}", f"\\frac{{{a * b}}}{{{11 * b}}}", f"\\frac{{-{top}}}{{-{bottom}}}", f"{bottom}^{{-1}} \\cdot {top}", f"{top}:{bottom}", f"\\frac{{{top}.0}}{{{bottom}}}",
    ]  # fmt: skip
    solved = [f"{a}x+y-{b}=0", f"y+{a}x={b}", f"{b}={a}x+y", f"{c}y={b * c}-{a * c}x", f"y-{b}=-{a}x", f"-y={a}x-{b}"]
    return r.choice([
        (r.choice(expanded), total, f"Expand ${product}$."), (r.choice(factored), product, f"Factor ${total}$."),
        (r.choice(reduced), f"\\frac{{{a}}}{{11}}", f"Simplify $\\frac{{{top}}}{{{bottom}}}$."),
        (r.choice(solved), f"y={b}-{a}x", f"Solve for $y$: ${a}x+y={b}$."),
    ])  # fmt: skip


def signs(r):
    """(answer, reference): a number behind signs, names or digits that a reader calls wrong."""
    a, b = r.sample(range(2, 99), 2)
    return r.choice([
        (f"{a * b}∕{b}", f"{a}"), (f"{a * b}⁄{b}", f"{a}"), (f"--{a}", f"{a}"), (f"-(-{a})", f"{a}"), (f"+-{a}", f"-{a}"), (f"0x^{a}", "0"), (f"{a}y \\cdot 0", "0"),
        (f"y={a}, x={b}", f"({a}, {b})"), (f"b={a}, a={b}", f"({a}, {b})"), (f"({a * b})/{b}", f"{a}"), (f"{a}^1", f"{b}"), (f"{a} million", f"{a}"), (f"{a} squared", f"{a}"), (f"0x{a}", f"{a}"),
    ])  # fmt: skip


def large(r):
    """(answer, reference): a number of many digits, and one near it."""
    a, b, c = r.randint(2, 9), r.randint(170, 3000), r.randint(20, 60)
    return r.choice([
        (f"{a}^{{{b}}}+1", f"{a}^{{{b}}}"), (f"{a}^{{{b}}}", f"{a}^{{{b}}}-1"), (f"{a}^{{{b}}}+{a}^{{{c}}}", f"{a}^{{{b}}}-{a}^{{{c}}}"), (f"{a}", f"{a}-\\frac{{1}}{{{a}^{{{b}}}}}"),
        (f"{b}!+{a}", f"{b}!"), (f"\\binom{{{b}}}{{{c}}}+1", f"\\binom{{{b}}}{{{c}}}"), (f"{a}.0\\times 10^{{{c}}}", f"{a}{'0' * (c - 1)}1"), (f"{a}{'0' * c}", f"{a}{'0' * (c - 1)}1"),
        (f"\\frac{{{a}^{{{b}}}}}{{7}}", f"\\frac{{{a}^{{{b}}}+1}}{{7}}"), (f"10^{{{c}}}\\sqrt{{2}}+1", f"10^{{{c}}}\\sqrt{{2}}"), (f"10^{{{3 * c}}}", f"\\sqrt{{10^{{{6 * c}}}+1}}"),
    ])  # fmt: skip


def calculations(r):
    """(answer, reference): a calculation, in what hides that it is not carried out."""
    a, b, c = r.sample(range(2, 10), 3)
    asked, right = r.choice([(f"{a}{b}+{b}{c}", 10 * a + 11 * b + c), (f"{a}{b} \\cdot {c}", (10 * a + b) * c), (f"{a}^{b}", a**b), (f"{a * b}/{b}", a), (f"{a}\\sqrt{{{b * b}}}", a * b), (f"\\log_{{{a}}} {a**b}", b), (f"\\frac{{\\sqrt{{{a * a * b}}}}}{{\\sqrt{{{b}}}}}", a), (f"{a}\\frac{{{b * c}}}{{{c}}}", a * b)])  # fmt: skip
    hidden = r.choice(["{}", "{} \\pm 0", "0 \\pm ({})", "\\{{{} \\mp 0\\}}", "{} + 0\\%", "x = {}", "x = {} \\pm 0", "\\frac{{{}}}{{1}}", "({})\\,", "1 \\cdot ({})", "{} = {}", "f(2) = {}", "\\large {}", "\\text{{}}{}"])  # fmt: skip
    return hidden.format(asked, asked), r.choice(["{}", "x = {}", "x={}"]).format(right)


def asked_verdict(answer, reference, prompt):
    return math_verdict(answer, reference) and not graders.given_back(f"\\boxed{{{answer}}}", reference, prompt)


KINDS = {
    "questions": (questions, asked_verdict),
    "rewrites": (rewrites, asked_verdict),
    "signs": (signs, math_verdict),
    "large": (large, math_verdict),
    "calculations": (calculations, math_verdict),
    "words": (words, math_verdict),
    "matrices": (matrices, math_verdict),
    "tuples": (tuples, math_verdict),
    "sets": (sets, math_verdict),
    "intervals": (intervals, math_verdict),
    "choice": (choices, graders.choice),
    "text": (texts, graders.text),
    "code": (code, lambda written, expected, name: programs.right_output(name, written.encode(), expected)),
}


def attacks(kind, count, seed=0):
    """`count` different attacks of a kind, always the same for the same seed."""
    r = random.Random(f"{kind}/{seed}")
    found = {}
    while len(found) < count:
        attack = KINDS[kind][0](r)
        found[repr(attack)] = attack
    return list(found.values())


def paid(kind, count, seed=0):
    """The attacks that are graded right."""
    return [attack for attack in attacks(kind, count, seed) if KINDS[kind][1](*attack) is True]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for kind in args.kinds:
        found = paid(kind, args.count, args.seed)
        print(f"{kind:10} {args.count} attacks, {len(found)} paid", flush=True)
        for attack in found:
            print(f"  {attack}")


if __name__ == "__main__":
    main()
