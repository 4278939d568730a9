"""A claim: an input, the right result on it worked out by hand, and known mistakes, each with a different result.

`claim.problem(yours, expected)` is "", or says what was expected, what the implementation gave, and which known mistake
gives that, or a row of it. The docstring of every wrong answer completes "This is what you get when you ...". Wrong
answers share no code with the project, so that a bug in the project cannot change which mistakes are recognised.

submission.py turns every result into a list of floats, the vector, and only vectors are compared.

Test: pytest tests/test_exercises.py
"""

import math
from collections.abc import Callable
from functools import partialmethod
from typing import NamedTuple

import numpy as np

from course.submission import HEAD, answer, encode, shown

# The hand numbers are exact; fp32 exp(log(x)) and sums of a few terms are off by about 1e-7.
RTOL, ATOL = 1e-5, 1e-6
# In the message of an exception: the arithmetic had no result
UNDEFINED = "ZeroDivision", "Overflow", "math domain", "positive input", "complex"
SHAPE = "A tensor has another shape than is asked for: keepdim=True or [:, None] keeps or adds a dimension."
ANSWERS = "answers.py"  # holds the functions of predict and measure; its original lies in course/checks/


# --- Where the result is judged --------------------------------------------------------------------------------------


def numbers(prediction):
    """A prediction, one number or several. Raises TypeError if it is a text."""
    value = prediction()
    return [x + 0.0 for x in value] if isinstance(value, (tuple, list)) else value + 0.0  # a text is no number


def values_at(function, values, **settings):
    """The function at each of these values of its first argument."""
    return [float(function(value, **settings)) for value in values]


def prediction(text, answer):
    """A wrong answer to a question, as a function with this docstring."""

    def mistake():
        return answer

    mistake.__doc__ = text
    return mistake


class Claim(NamedTuple):
    """What has to hold on one fixed input."""

    says: str  # what has to hold
    probe: Callable = numbers  # (implementation, *inputs) -> tensor or numbers
    inputs: tuple = ()  # small enough for mental arithmetic
    expected: list | float | None = None  # worked out by hand; None: what the original gives, computed at each check
    mistakes: tuple = ()  # wrong implementations; no two give the same numbers
    atol: float = ATOL
    labels: str = ""  # what the numbers are, or the rows, in order: "forecast, measured"
    undefined: str = ""  # what leads to a nan, or to arithmetic without a result: "divide by C = 0"

    def vector(self, implementation):
        return answer(self.probe, implementation, self.inputs)

    def right(self, original):
        """The expected vector, worked out by hand or what the original gives."""
        return self.vector(original) if self.expected is None else encode(self.expected)

    def problem(self, yours, expected, tell=True):
        """The message of a failed claim: the claim, numbers and shapes, expected and yours, the causes; "" if right.

        yours  vector, or a text that says why there is none
        tell   whether the message shows the expected numbers
        """
        lines = [f"{self.says}, to within {self.atol:g}" if self.atol > ATOL else self.says]
        if tell:
            lines.append(f"  expected {self.told(expected)}")
        if isinstance(yours, str):
            lines.append(f"  yours    {yours}")
            undefined = any(word in yours for word in UNDEFINED)
        else:
            if self.same(yours, expected) and all(map(math.isfinite, yours)):
                return ""
            lines.append(f"  yours    {self.told(yours)}")
            if yours[1:] == expected[1:]:
                kinds = "floats", "integers", "True and False"
                lines.append(
                    f"  The numbers are right, but {kinds[int(yours[0])]} in place of {kinds[int(expected[0])]}."
                )
            undefined = any(map(math.isnan, yours))
            lines += [f"  {cause}" for cause in self.causes(yours, expected, tell)]
        if undefined and self.undefined:
            lines.append(f"  The likely cause is that you {self.undefined}.")
        return "\n".join(lines)

    def causes(self, yours, expected, tell):
        """What a wrong vector comes from, in sentences; [] if nothing is known."""

        def filled(vector):
            """A nan hides what else is wrong, so it counts as right here."""
            alike = vector[1:HEAD] == expected[1:HEAD]
            return [y if x != x else x for x, y in zip(vector, expected)] if alike else vector

        yours = filled(yours)
        with np.errstate(all="ignore"):
            known = {self.named(mistake): filled(self.vector(mistake)) for mistake in self.mistakes}
        comparable = yours[1:HEAD] == expected[1:HEAD]
        if comparable and self.near(yours[1:], expected[1:]):
            return []
        if whole := [text for text, vector in known.items() if self.same(vector, yours)]:
            return whole
        if not comparable:
            return [SHAPE] if len(yours) == len(expected) else []
        return (self.by_row(known, yours, expected) or self.by_factor(yours, expected)) if tell else []

    def by_row(self, known, yours, expected):
        """The mistakes that give a wrong row, and most of the others too; rows are what the labels name."""
        agree = {}
        for text, vector in known.items():
            if len(vector) == len(yours):
                rows = [*zip(self.labels.split(", "), *map(self.rows, (vector, yours, expected)))]
                if names := [name for name, x, y, z in rows if self.near(x, y) and not self.near(y, z)]:
                    agree[f"{', '.join(names)}: {text}"] = sum(self.near(x, y) for _, x, y, _ in rows)
        return [text for text, count in agree.items() if count == max(agree.values())]

    def by_factor(self, yours, expected):
        """That all numbers are n times what they should be, or an n-th of it; n may be -1."""
        yours, expected = np.array(yours[HEAD:]), np.array(expected[HEAD:])
        factor = next((y / x for x, y in zip(expected, yours) if x and math.isfinite(y)), 0)
        if not factor or not self.near(yours, factor * expected):
            return []
        n = max(factor, 1 / factor, key=abs)
        if abs(n - round(n)) > 1e-4:
            return []
        return [f"That is {factor:.4g} times what is expected: look at signs, and whether a sum or a mean is meant."]

    def rows(self, vector):
        """The numbers of a vector, a list for each label."""
        return np.reshape(vector[HEAD:], (self.labels.count(",") + 1, -1))

    def told(self, vector):
        """All values and the shape in one line, four significant digits, with the labels if their number fits."""
        shape = tuple(int(size) for size in vector[2:HEAD][: int(vector[1])])
        values = np.reshape(vector[HEAD:], shape)
        labels = self.labels.split(", ")
        if not self.labels or shape[:1] != (len(labels),):
            return f"{shown(values)} shape {shape}"
        rows = [f"{label}: {shown(row)}" for label, row in zip(labels, values)]
        return f"{', '.join(rows)} shape {shape}"

    def same(self, a, b):
        """Equal in kind, shape and, up to rounding, numbers; nan equals nan (a mistake may give it), inf inf."""
        return a[:HEAD] == b[:HEAD] and self.near(a, b)

    def near(self, a, b):
        return np.allclose(a, b, rtol=RTOL, atol=self.atol, equal_nan=True)

    @staticmethod
    def named(mistake):
        return f"This is what you get when you {' '.join(mistake.__doc__.split())}"


# --- Exercises --------


class Exercise(NamedTuple):
    """One exercise; its module and definition are named by `where` and nowhere else."""

    name: str
    kind: str  # write, bug, predict, measure
    where: str  # "loss.py:cispo", "data.py:Curriculum._is_retired", "answers.py:idle"
    minutes: int
    teaches: str  # one sentence
    hints: tuple  # where in the paper, which `next` says; the pitfall; the idea in words
    claims: tuple  # of course.checks.claims.Claim
    bug: tuple = ()  # (right, wrong): a text that occurs exactly once in the file, and its replacement
    symptom: str = ""  # of the bug: all that the student is told about it

    @property
    def file(self):
        return self.where.partition(":")[0]

    @property
    def target(self):
        """The definition: "cispo", or "Class.method"."""
        return self.where.partition(":")[2]


class Chapter(list):
    """The exercises of a chapter, in order, added by their kind: `write`, `bug`, `predict`, `measure`."""

    def add(self, kind, **fields):
        """The fields of an Exercise; in place of its claims there may be the fields of the only one."""
        claim = {name: fields.pop(name) for name in Claim._fields if name in fields}
        self.append(Exercise(kind=kind, **fields | ({"claims": (Claim(**claim),)} if claim else {})))

    def answer(self, kind, *, name, mistakes=None, **fields):
        """An exercise whose function in ANSWERS, called as the exercise, returns numbers; mistakes: {text: numbers}."""
        known = [prediction(text, answer) for text, answer in (mistakes or {}).items()]
        self.add(kind, name=name, where=f"{ANSWERS}:{name.replace('-', '_')}", mistakes=known, **fields)

    write, bug = partialmethod(add, "write"), partialmethod(add, "bug")
    predict, measure = partialmethod(answer, "predict"), partialmethod(answer, "measure")
