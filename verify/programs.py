"""Programs: which block of an answer is one, what its tests are, and when an output is right. Rules: graders.py.

    program(answer) -> its source text                                     in a worker (scorer.py)
    read_tests(reference), right_output(...)                               in a worker (scorer.py)

Test: pytest tests/test_programs.py
"""

import json
import re
from contextlib import suppress
from decimal import Decimal
from math import isclose
from textwrap import dedent

CODE_CHARS = 65_536  # of a program: the limit of Codeforces
OPENS = re.compile(  # a block's first line; behind text only if it names Python
    r"^(?:[ \t\ufeff]*(?:(?:[-*+]|[0-9]+[.)])[ \t]+)?(```++|~~~++)([^`\n]*)\n|"
    r"[^`~\n]*[ \t](```++|~~~++)((?i:py)[^`\n]*)\n)"
)
PYTHON = re.compile(r"\{?\.?py(thon)?[0-9.]*\b", re.I)  # the language of a block, as its first word
NUMBER = re.compile(r"-?(?:[0-9]{1,30}(?:\.[0-9]{1,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,3})?")
DECIMAL = re.compile("[.eE]")
ABSOLUTE = 1e-9  # error of a decimal fraction beside the relative one, so that 1e-16 is right for 0.0


def program(answer: str) -> str:
    """The last ```python block of an answer, without one the last block that names no language, else "".

    Also "" if that block is longer than CODE_CHARS.

    >>> program("```python\\nprint(1)\\n```\\nprints\\n```\\n1\\n```")
    'print(1)\\n'
    """
    blocks = fenced_blocks(answer)
    named = [block for language, block in blocks if PYTHON.match(language.strip())]
    chosen = named or [block for language, block in blocks if not language.strip()]
    return dedent(chosen[-1].lstrip("\ufeff")) if chosen and len(chosen[-1]) <= CODE_CHARS else ""


def fenced_blocks(answer: str) -> list[tuple[str, str]]:
    """(language, text) of each ``` or ~~~ block that is closed; linear in the answer, even one written to waste time.

    A block may stand in a list item, indented with it, and be closed at the end of its last line. It is closed by a
    fence as long as the one that opened it, or longer.
    """
    blocks = []
    language = None
    lines = []
    for line in re.findall(r"[^\n]*\n|[^\n]+", answer):
        bare = line.strip(" \t\r\n")
        if language is None:
            if start := OPENS.match(line):
                fence, language = start[1] or start[3], start[2] or start[4] or ""
                lines = []
        elif bare.startswith(fence) or bare.endswith(fence):
            last = "" if bare.startswith(fence) else line.rstrip()[: -len(fence)]
            blocks.append((language, "".join([*lines, last])))
            language = None
        else:
            lines.append(line)
    return blocks


def read_tests(reference: str) -> tuple[str | None, list]:
    """The tests of a code prompt: (name of the function or None, [(input, expected output), ...]); forms: see the top.

    Raises ValueError, LookupError, TypeError or AttributeError for another form, and ValueError for an empty list of
    tests: every program would be right.
    """
    tests = json.loads(reference)
    if isinstance(tests, list):
        [name] = {test.get("fn_name") or (test.get("metadata") or {}).get("func_name") for test in tests}
        cases = [(test["input"], test["output"]) for test in tests]
        kinds = {test.get("testtype") or test.get("type") for test in tests}
        if name is None and kinds & {"functional", "function_call"}:
            raise ValueError("functional tests without the name of the function")
    else:
        name = tests.get("fn_name")
        cases = list(zip(tests["inputs"], tests["outputs"], strict=True))
    if not cases:
        raise ValueError("no tests")
    return name, [call_case(*case) if name else tuple(map(as_text, case)) for case in cases]


def readings(name: str | None, cases: list) -> list[list]:
    """The lists of results that are right: the expected ones, and if a function's are all lists of one, their elements.

    >>> readings("f", [([2], [4]), ([3], [9])]), readings("f", [([2], [4]), ([3], 9)])
    ([[[4], [9]], [4, 9]], [[[4], 9]])
    """
    results = [result for _, result in cases]
    wrapped = name and all(isinstance(result, list) and len(result) == 1 for result in results)
    return [results, [result[0] for result in results]] if wrapped else [results]


def as_text(lines) -> str:
    """Standard input or output as one text; it may be given as a list of lines."""
    return (lines if isinstance(lines, str) else "\n".join(map(str, lines))).removeprefix("\ufeff")


def call_case(arguments, result) -> tuple[list, object]:
    """(arguments, expected result) of a call. As text, arguments are one JSON value a line, and the result is one."""
    if isinstance(arguments, str):
        return [json.loads(line) for line in arguments.splitlines() if line.strip()], json.loads(result)
    return arguments, result


def same_output(output: str, expected: str) -> bool:
    """Whether a program's stdout is right, by the rule at the top.

    >>> same_output("1 2 \\n0.3333333\\n\\n", "1 2\\n0.3333334"), same_output("1.0", "1"), same_output("1 2", "1\\n2")
    (True, True, False)
    """
    lines, right = ([line.split() for line in text.strip().split("\n")] for text in (output, expected))
    fractions = any(NUMBER.fullmatch(word) and DECIMAL.search(word) for line in right for word in line)
    same_shape = list(map(len, lines)) == list(map(len, right))
    return same_shape and all(same_word(*words, fractions) for pair in zip(lines, right) for words in zip(*pair))


def same_word(word: str, right: str, fractions: bool) -> bool:
    """fractions: whether the expected text holds a decimal fraction; then 2.9999999999 is right for 3."""
    if word == "-0":  # as print(-0.0 // 1) and formats of rounded numbers write 0
        word = "0"
    if word == right or not (NUMBER.fullmatch(word) and NUMBER.fullmatch(right)):
        return word == right
    if DECIMAL.search(right):
        return isclose(float(word), float(right), rel_tol=1e-6, abs_tol=ABSOLUTE)
    error = abs(Decimal(word) - Decimal(right))
    return DECIMAL.search(word) is not None and error <= ABSOLUTE * fractions  # 1.0 and 1e+20 are whole; not 01 for 1


def same_result(result, expected) -> bool:
    """Whether a call's result, as JSON, is the expected one; floats that are expected may be off by 1e-9."""
    if isinstance(expected, list):
        same_length = isinstance(result, list) and len(result) == len(expected)
        return same_length and all(map(same_result, result, expected))
    if isinstance(expected, dict):
        same_keys = isinstance(result, dict) and result.keys() == expected.keys()
        return same_keys and all(same_result(result[key], value) for key, value in expected.items())
    if isinstance(expected, float) and isinstance(result, int | float):
        return isclose(result, expected, rel_tol=1e-9, abs_tol=ABSOLUTE)
    return result == expected


def right_output(name: str | None, output: bytes | None, expected) -> bool:
    """Whether one test is passed. output: what the program wrote, or None if it failed."""
    if output is None or name is None:
        return output is not None and same_output(output.decode(errors="replace"), expected)
    with suppress(ValueError, RecursionError, OverflowError):  # no result, or none that we can read
        return same_result(json.loads(output), expected)
    return False
