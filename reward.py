"""Rewards: +1 for a correct final answer, -1 for any other (Sec. 2); how answers are read and compared.

    answer = what follows the last </think>; no </think>, or a truncated completion: no answer, which is wrong
    r = +1 if correct else -1                                       r -> reward(), correct -> a verifier
    r = +1 + clip((L_max - |y|)/L_cache - 1, -1, 0) if correct      Eq. 9, A.10, A.15: instead of interruptions
    |y| -> tokens, L_max -> length_max, L_cache -> length_cache, the clip -> length_penalty()

`correct` is kept beside r because pass rates and both prompt filters are of correctness, never of a shaped reward.

Tasks (TASKS maps the name in a prompt's `task` to its verifier)
  arithmetic  the answer is the reference, character by character, but for ASCII whitespace around it: "18" and " 18\\n"
  sorting     are right for 18; "018", "+18", "18.0", "18." and digits of other scripts are wrong.
  math        LaTeX: the last \\boxed{...}, or without one the final expression, compared by math-verify (the paper's
              checker); boxes that only commas, "and", "or", "x =" stand between are one list. Equal strings are right
              at once; everything else goes to a worker process.
  code        a Python program: the last ```python block, or without one the last ``` block without a language. It is
              right if it passes all tests of the reference, a JSON text of one of the forms in use (`read_tests`):
                {"inputs": ["1 2\\n", ...], "outputs": ["3\\n", ...]}                   stdin and stdout (TACO, APPS)
                {"fn_name": "add", "inputs": [[1, 2], ...], "outputs": [3, ...]}        a call; if all outputs are lists
                                                                                        of one, these stand for that one
                [{"input": "1 2\n", "output": "3\n"}, ...]                            the same, a test at a time; with
                [{"input": "1\n2", "output": "3", "metadata": {"func_name": "add"}}]   arguments as JSON lines
              stdout: the same lines, trimmed; where a line differs, its words must be the same, but for decimal
              fractions, which allow a relative error of 1e-6. A result of a call is right if, as JSON, it == the
              expected one (so a tuple is a list). Every test must end with exit status 0. The program sees the
              standard library only; a function finds the names of `typing` defined, as starter codes expect.

SymPy can run for days on a short answer: `equal` and programs run in worker processes (plumbing/workers.py) that are
ended at a limit. What takes too long is wrong; what a worker cannot judge has no verdict, and is never scored as wrong.

Deviation: a box, or an answer without one, of more than MAX_CHARS characters is wrong unread: reference answers are
  short, parsing time grows faster than length, and the end of a long number is not that number. Programs: CODE_CHARS.
Open in the paper: whether a truncated completion that already shows its answer is correct. Ours: it is wrong, unread;
  Sec. A.15 leaves it out of the loss, but the pass rate needs a value.
Known limits, math-verify's: "It is 17, not 18" has the final expression 18; "50" equals "50\\%"; an unquoted word is a
  product of letters, so that "Paris" equals "Pairs"; a last word that can be a unit is dropped (t of "\\cos^2 t");
  in a product, i is a letter: (1+2i)(3+4i) is not -5+10i. tests/test_reward.py lists where its own tests disagree.

Test: pytest tests/test_reward.py tests/test_code_reward.py; python benchmarks/soak.py
"""

import json
import re
from contextlib import suppress
from math import comb, isclose, nan
from statistics import mean, stdev

THINK_END = "</think>"
BOX = "\\boxed{"
BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;]|\\[][(), ;:]|\\q?quad|and|or|\\text\{[^{}]*(?:,|and|or)\s*\}|[A-Za-z][\w{}]*\s*=)*")
BETWEEN_CHARS = 40  # more than this between two boxes is never looked at
MAX_CHARS = 10_000
CODE_CHARS = 65_536  # what Codeforces takes
NUMBER = re.compile(r"-?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,3})?")


def length_penalty(tokens: int, *, length_max: int, length_cache: int) -> float:
    """Eq. 9: clip((L_max - |y|)/L_cache - 1, -1, 0), to be added to the reward of correct completions only.

    >>> [length_penalty(tokens, length_max=14, length_cache=2) for tokens in (12, 13, 14, 15)]
    [0.0, -0.5, -1.0, -1.0]
    """
    return min(max((length_max - tokens) / length_cache - 1.0, -1.0), 0.0)


def reward(correct: bool | None, penalty: float = 0.0) -> float:
    """Sec. 2: r = +1 for a correct completion (plus Eq. 9's penalty), -1 for a wrong one, nan if that is unknown."""
    if correct is None:
        return nan
    return 1.0 + penalty if correct else -1.0


def pass_rates(groups, prompts) -> dict:
    """Sec. 2.1: mean@k over the headers of the validation set, one list of k per prompt, and the same per task.

    stderr is the sampling error on these prompts; which prompts were drawn is not in it. A prompt whose verifier failed
    is left out and its completions are counted as unverified: they are not wrong. Raises ValueError if none is left.
    """
    known = [group for group in groups if all(header.correct is not None for header in group)]
    if not known:
        raise ValueError(f"expected verdicts on {len(groups)} prompts, got none; likely cause: a broken verifier")
    means = [sum(header.correct for header in group) / len(group) for group in known]
    curves = [prompt.curve or prompt.task for prompt in (prompts[group[0].prompt] for group in known)]
    tasks = {curve: mean(rate for rate, of in zip(means, curves) if of == curve) for curve in dict.fromkeys(curves)}
    k = len(groups[0])  # the mean of k answers varies by p (1 - p) / k; k - 1 makes the estimate from these k unbiased
    stderr = (sum(p * (1 - p) for p in means) / (k - 1)) ** 0.5 / len(means) if k > 1 else nan
    return {"pass_rate": mean(means), "stderr": stderr, "completions": k * len(known),
            "unverified": k * (len(groups) - len(known)), "tasks": tasks}


def pass_at_k(groups, k: int) -> tuple[float, float]:
    """The chance that one of k answers to a prompt is correct, and its standard error over prompts.

    groups  a list of n >= k verdicts per prompt; with c of n correct, 1 - C(n - c, k) / C(n, k) is unbiased

    >>> pass_at_k([[True, False], [False, False]], 1), pass_at_k([[True, False], [False, False]], 2)
    ((0.25, 0.25), (0.5, 0.5))
    """
    chances = [1 - comb(len(group) - sum(group), k) / comb(len(group), k) for group in groups]
    return mean(chances), stdev(chances) / len(chances) ** 0.5 if len(chances) > 1 else nan


def final_answer(text: str) -> str | None:
    """What follows the last </think> of a completion's text, or None without one.

    >>> final_answer("<think>7+5=12 12-3=9</think>9")
    '9'
    """
    _, mark, answer = text.rpartition(THINK_END)
    return answer if mark else None


def final_expression(answer: str) -> str:
    """The last \\boxed{...} of an answer, or run of boxes; the whole answer without any; "" if too long or left open.

    >>> final_expression("Either \\\\boxed{1} or better \\\\boxed{\\\\frac{1}{2}}.")
    '\\\\boxed{\\\\frac{1}{2}}'
    >>> final_expression("x = \\\\boxed{1} and y = \\\\boxed{2}")
    '\\\\boxed{1, 2}'
    """
    start = answer.rfind(BOX)
    if start < 0:
        return answer.strip() if len(answer) <= MAX_CHARS else ""
    inside, first = [in_box(answer, start)], max(start - MAX_CHARS, 0)
    if inside[0] is None:
        return ""
    while (before := answer.rfind(BOX, first, start)) >= 0 and (content := in_box(answer, before)) is not None:
        end = before + len(BOX) + len(content) + 1
        if not 0 <= start - end <= BETWEEN_CHARS or not BETWEEN_BOXES.fullmatch(answer, end, start):
            break
        inside.insert(0, content)
        start = before
    return f"{BOX}{', '.join(dict.fromkeys(inside))}}}"


def in_box(answer: str, start: int) -> str | None:
    """What is in the \\boxed{...} at `start`; None if that is too long or left open."""
    box, depth = answer[start : start + MAX_CHARS], 0
    for brace in re.finditer(r"\\.|[{}]", box):  # an escaped brace is a printed one and opens nothing
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if brace.group() == "}" and depth == 0:
            return box[len(BOX) : brace.start()]
    return None


def program(answer: str) -> str:
    """The last ```python block of an answer, without one the last block that names no language, else "".

    >>> program("```python\\nprint(1)\\n```\\nprints\\n```\\n1\\n```")
    'print(1)\\n'
    """
    blocks = re.findall(r"^[ \t]*```([^`\n]*)\n(.*?)^[ \t]*```", answer, re.M | re.S)
    for languages in (("python", "python3", "py"), ("",)):
        if found := [block for language, block in blocks if language.strip().lower() in languages]:
            return found[-1] if len(found[-1]) <= CODE_CHARS else ""
    return ""


# Each verifier takes (answer, reference) and returns True or False, or the text that a worker has to judge.


def exact(answer: str, reference: str) -> bool:
    """Exactly the reference, ASCII whitespace around it aside; leading zeros, signs, points are wrong."""
    return answer.strip(" \t\r\n") == reference


def math(answer: str, reference: str) -> bool | str:
    """True for an equal string, False for no expression at all, otherwise the final expression."""
    expression = final_expression(answer)
    bare, plain = expression.strip(" \n$"), reference.strip(" \n$")
    return bool(bare) and (bare in (plain, f"{BOX}{plain}}}") or expression)


def code(answer: str, reference: str) -> bool | str:
    """False without a program."""
    return program(answer) or False


TASKS = {"arithmetic": exact, "sorting": exact, "math": math, "code": code}


# --- Comparing, in a worker process: math ----------------------------------------------------------------------------


def equal(expression: str, reference: str) -> bool | None:
    """Does math-verify take `expression` for `reference`? None if it cannot read the reference. No time limit."""
    from math_verify import parse, verify

    marked = reference if "$" in reference or BOX in reference else f"${reference}$"
    gold = parse(marked, parsing_timeout=None)
    return verify(gold, parse(expression, parsing_timeout=None), timeout_seconds=None) if gold else None


# --- Comparing, in a worker process: code ----------------------------------------------------------------------------


def read_tests(reference: str) -> tuple[str | None, list]:
    """The tests of a code prompt: (name of the function or None, [(input, expected output), ...]); forms: see the top.

    Raises ValueError, LookupError, TypeError or AttributeError for another form, and for no tests: every program would
    be right.
    """
    tests = json.loads(reference)
    if isinstance(tests, list):
        [name] = {test.get("fn_name") or (test.get("metadata") or {}).get("func_name") for test in tests}
        cases = [(test["input"], test["output"]) for test in tests]
    else:
        name, cases = tests.get("fn_name"), list(zip(tests["inputs"], tests["outputs"], strict=True))
    if not cases:
        raise ValueError("no tests")
    if name and all(isinstance(result, list) and len(result) == 1 for _, result in cases):
        cases = [(arguments, result[0]) for arguments, result in cases]
    return name, [call_case(*case) if name else tuple(map(as_text, case)) for case in cases]


def as_text(lines) -> str:
    """Standard input or output that may be given as a list of lines."""
    return lines if isinstance(lines, str) else "\n".join(map(str, lines))


def call_case(arguments, result) -> tuple[list, object]:
    """(arguments, expected result) of a call, which may be given as text: a JSON value a line."""
    if isinstance(arguments, str):
        return [json.loads(line) for line in arguments.splitlines() if line.strip()], json.loads(result)
    return arguments, result


def same_output(output: str, expected: str) -> bool:
    """The rule for stdout: see the top.

    >>> same_output("1 2 \\n0.3333333\\n\\n", "1 2\\n0.3333334"), same_output("1.0", "1"), same_output("1 2", "1\\n2")
    (True, False, False)
    """
    lines, right = ([line.split() for line in text.strip().split("\n")] for text in (output, expected))
    same_shape = list(map(len, lines)) == list(map(len, right))
    return same_shape and all(same_word(*words) for pair in zip(lines, right) for words in zip(*pair))


def same_word(word: str, right: str) -> bool:
    numbers = "." in right and NUMBER.fullmatch(word) and NUMBER.fullmatch(right)
    return word == right or bool(numbers) and isclose(float(word), float(right), rel_tol=1e-6)


def right_output(name: str | None, output: bytes | None, expected) -> bool:
    """One test: what the program wrote, None if it failed, against what is expected."""
    if output is None or name is None:
        return output is not None and same_output(output.decode(errors="replace"), expected)
    with suppress(ValueError, RecursionError):  # no result, or none that we can read
        return json.loads(output) == expected
    return False
