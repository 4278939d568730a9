"""Wrong answers made by rules, 300 and more of each kind: none may earn a reward.

    python -m lab.attacks               all kinds; prints how many were graded right, and which
    python -m lab.attacks --count 60 words sets

The rules are rows of lab/attacks.jsonl: texts with expressions in braces, of names that a function below makes with
random numbers. tests/test_attacks.py runs a part of them.
"""

import argparse
import json
import random
from pathlib import Path
from string import Formatter

from verify import graders, mathematics, programs

DATA = Path(__file__).with_suffix(".jsonl")
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
# fmt: off
WORDS = ["Paris", "Tuesday", "mice", "no", "yes", "IV", "Bücher", "miércoles", "три", "星期三", "converges", "even",
         "AB", "increasing", "true", "blue", "two words", "l'eau", "Äpfel", "none"]
# fmt: on


def filled(template, names):
    """The text with the values of its expressions.

    >>> filled("\\\\frac{{{a}}}{{{b + 1}}}", {"a": 3, "b": 4})
    '\\\\frac{3}{5}'
    """
    parts = Formatter().parse(template)
    return "".join(text + (format(eval(name, {**names}), spec) if name else "") for text, name, spec, _ in parts)


def picked(r, kind):
    return r.choice([row for row in ROWS if row["kind"] == kind])


def attack(r, kind, names, reference=None):
    """(answer, reference), and the prompt if the row has one, of a random row of this kind."""
    row = picked(r, kind)
    parts = [row["answer"], row.get("reference", reference), row.get("prompt")]
    return tuple(filled(part, names) for part in parts if part is not None)


# --- Names of each kind ---


def words(r):
    """(answer, reference): words."""
    word, other = r.sample(WORDS, 2)
    shuffled = "".join(r.sample(word, len(word)))
    if shuffled.casefold() == word.casefold():
        shuffled = word + "x"
    return attack(r, "words", {"word": word, "other": other, "shuffled": shuffled}, "{word}")


def matrix(rows, kind="pmatrix"):
    return f"\\begin{{{kind}}}" + " \\\\ ".join(" & ".join(map(str, row)) for row in rows) + f"\\end{{{kind}}}"


def matrices(r):
    high, wide = r.randint(1, 3), r.randint(2, 3)
    rows = [[r.randint(-9, 9) for _ in range(wide)] for _ in range(high)]
    changed = [row[:] for row in rows]
    changed[-1][-1] += r.randint(1, 5)
    other = [[r.randint(10, 19) for _ in row] for row in rows]
    zero = [[0] * wide for _ in rows]
    names = {"rows": rows, "changed": changed, "other": other, "zero": zero, "high": high, "wide": wide}
    names["either"] = [[f"\\pm {entry}" for entry in row] for row in changed]
    names["over_zero"] = [[f"\\frac{{{entry}}}{{0}}" for entry in row] for row in rows]
    return attack(r, "matrices", names | {"matrix": matrix, "m": matrix(rows)}, "{m}")


def tuples(r):
    a, b, c = r.sample(range(-9, 30), 3)
    triple = r.random() < 0.5
    inside = f"{a}, {b}, {c}" if triple else f"{a}, {b}"
    turned = f"{c}, {b}, {a}" if triple else f"{b}, {a}"
    names = {"a": a, "b": b, "c": c, "turned": turned, "inside": inside, "right": f"({inside})"}
    return attack(r, "tuples", names, "{right}")


def sets(r):
    members = sorted(r.sample(range(-9, 30), r.randint(2, 4)))
    inside = ", ".join(map(str, members))
    right = f"\\{{{inside}\\}}" if r.random() < 0.5 else inside
    less = ", ".join(map(str, members[:-1]))
    negated = ", ".join(str(-member - 40) for member in members)
    names = {"members": members, "inside": inside, "less": less, "negated": negated}
    return attack(r, "sets", names | {"other": members[-1] + r.randint(1, 9), "right": right}, "{right}")


def intervals(r):
    a = r.randint(-20, 10)
    b = a + r.randint(2, 20)
    opening, closing = r.choice("[("), r.choice("])")
    turned = {"[": "(", "(": "[", "]": ")", ")": "]"}
    less = {"[": "\\le", "(": "<", "]": "\\le", ")": "<"}
    names = {"a": a, "b": b, "opening": opening, "closing": closing, "turned": turned, "less": less}
    return attack(r, "intervals", names, "{opening}{a}, {b}{closing}")


def choices(r):
    letter, other = r.sample("ABCDE", 2)
    return attack(r, "choice", {"letter": letter, "other": other}, "{letter}")


def texts(r):
    """Words; or lines, of which one is missing, or has another place."""
    answer, reference = words(r)
    if r.random() < 0.3:
        second = f"{r.choice(WORDS)}x"
        lines = f"{reference}\n{second}"
        wrong = [reference, second, f"{second}\n{reference}", f"{reference} {second}", f"{lines}\n{reference}"]
        return r.choice(wrong), lines
    if answer in (f"-{reference}", ""):
        answer = f"The answer is {reference}."
    return answer, reference


def code(r):
    """(what a program writes, expected, name of the function or None)."""
    names = {"n": r.randint(11, 999), "d": r.randint(1, 9)}
    if r.random() < 0.5:
        return (*attack(r, "outputs", names), None)
    row = picked(r, "results")
    written, expected = (eval(row[side], {}, names) for side in ("answer", "reference"))
    return json.dumps(written), expected, "f"


def questions(r):
    """(answer, reference, prompt): what the prompt asks, in one spelling or another."""
    a, b, c = r.sample(range(2, 10), 3)
    asked, right = attack(r, "questions asked", {"a": a, "b": b, "c": c})
    [spelt], [prompt] = (attack(r, f"questions {part}", {"asked": asked}) for part in ("spellings", "prompts"))
    return spelt, right, prompt


def rewrites(r):
    """(answer, reference, prompt): what the prompt asks, rewritten trivially, or not far enough."""
    a, b, c = r.sample(range(2, 10), 3)
    x = r.choice("xtkmp")
    names = {"a": a, "b": b, "c": c, "x": x, "top": a * b * c, "bottom": 11 * b * c}
    names["product"], names["total"] = f"({x}+{a})({x}-{a + b})", f"{x}^2-{b}{x}-{a * (a + b)}"
    return attack(r, "rewrites", names)


def signs(r):
    """(answer, reference): a number behind signs, names or digits that a reader calls wrong."""
    a, b = r.sample(range(2, 99), 2)
    return attack(r, "signs", {"a": a, "b": b})


def large(r):
    """(answer, reference): a number of many digits, and one near it."""
    return attack(r, "large", {"a": r.randint(2, 9), "b": r.randint(170, 3000), "c": r.randint(20, 60)})


def calculations(r):
    """(answer, reference): a calculation, in what hides that it is not carried out."""
    a, b, c = r.sample(range(2, 10), 3)
    asked, right = attack(r, "calculations asked", {"a": a, "b": b, "c": c})
    [hidden] = attack(r, "calculations hidden", {"asked": asked})
    [reference] = attack(r, "calculations references", {"right": right})
    return hidden, reference


def math_verdict(answer, reference):
    found = graders.math(f"\\boxed{{{answer}}}", reference)
    return mathematics.equal(found, reference) if isinstance(found, str) else found


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
