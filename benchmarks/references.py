"""What the rules of `math` cost: references spelt otherwise that are refused, and questions given back that pay.

    python benchmarks/references.py FILE.jsonl       rows with the fields "reference" and "question"

Respelled: each reference, in the ways of SPELLINGS, must be right for itself. Given back: the last formula of each
question, boxed, must not be right, unless it is spelt like the reference. Neighbours: the next reference must
be wrong, unless the two are spelt alike; those that are right are printed, as some are equal.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from plumbing.references import reduced  # noqa: E402  (a script in benchmarks/ does not see the repository root)
from verify.mathematics import normalise, spelt  # noqa: E402
from verify.scorer import Scorer  # noqa: E402

FORMULA = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.S)
SPELLINGS = {
    "dfrac": lambda text: text.replace("\\frac", "\\dfrac"),
    "blanks": lambda text: re.sub(r"(?<![\\A-Za-z_^{,0-9])([-+=])(?=[0-9A-Za-z\\(])", r" \1 ", text),
    "left": lambda text: re.sub(r"(?<![\\A-Za-z])([()])", lambda m: {"(": "\\left(", ")": "\\right)"}[m[1]], text),
    "dollars": lambda text: f"${text.strip().strip('$')}$",
    "period": lambda text: text.rstrip(". ") + ".",
}


def last_formula(question):
    """The last formula of a question, between dollars or the like; "" without one."""
    found = [next(filter(None, match.groups())) for match in FORMULA.finditer(question)]
    return found[-1].strip(" .,;?") if found else ""


def graded(answers, blind):
    """{(kind, answer, reference): verdict} of boxes, by two workers."""
    scorer = Scorer(timeout=20.0, workers=2, think_end=None)
    verdicts = {}
    for kind, answer, reference, text in answers:
        prompt = SimpleNamespace(task="math", answer=reference, text="" if blind else text)
        scorer.submit(
            SimpleNamespace(text=f"\\boxed{{{answer}}}", truncated=False, key=(kind, answer, reference)), prompt
        )
    while scorer.pending:
        for score in scorer.finished():
            verdicts[score.completion.key] = score.correct
        time.sleep(0.001)
    scorer.close()
    return verdicts


def tests(rows):
    """(kind, answer, reference, prompt) of all tests; a reference that the data's loading refuses is left out."""
    for row, after in zip(rows, rows[1:] + rows[:1]):
        for kind, spell in SPELLINGS.items():
            yield kind, spell(row["reference"]), row["reference"], row["question"]
        formula = last_formula(row["question"])
        if formula and spelt(normalise(formula)) != spelt(normalise(row["reference"])):
            yield "given back", formula, row["reference"], row["question"]
        if spelt(normalise(after["reference"])) != spelt(normalise(row["reference"])):
            yield "neighbour", after["reference"], row["reference"], row["question"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--kinds", nargs="+", help="only these kinds of tests")
    parser.add_argument("--blind", action="store_true", help="the grader does not see the question")
    args = parser.parse_args()
    rows = []
    refused = 0
    for row in map(json.loads, args.file.read_text().splitlines()):
        try:
            rows.append(row | {"reference": reduced(row["reference"])})
        except ValueError:
            refused += 1
    print(f"{refused} references refused when loaded, {len(rows)} left")
    asked = [test for test in tests(rows) if not args.kinds or test[0] in args.kinds]
    verdicts = graded(asked, args.blind)
    for (kind, answer, reference), verdict in verdicts.items():
        if verdict is (kind in ("given back", "neighbour")) or verdict is False and kind in SPELLINGS:
            print(f"{kind}: {answer!r} for {reference!r}: {verdict}")
    for kind, count in Counter(kind for kind, *_ in verdicts).items():
        found = Counter(verdict for (of, *_), verdict in verdicts.items() if of == kind)
        print(f"{kind:10} {count:5} answers: right {found[True]}, wrong {found[False]}, no verdict {found[None]}")


if __name__ == "__main__":
    main()
