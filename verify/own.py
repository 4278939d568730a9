"""A reward of one's own: --reward FILE.py:FUNCTION, called as FUNCTION(prompt, completion, answer) in a worker.

Paper: Sec. 2 has math and code; other tasks have other rewards.

    prompt      the text that the policy was given, with its chat template
    completion  the text that it wrote, its thinking included
    answer      the row's answer, "" if it has none
    result      True: right, +1; False: wrong, -1; None: no verdict, and the prompt's group is left out

What the function raises counts as no verdict, and so does any other result. It takes at most --verify-timeout seconds,
else the completion is wrong. A completion that is truncated, or has no --think-end, is wrong without being asked. The
file is trusted: it runs with all rights of its user.

Deviation: rewards of one's own are no part of the paper.

Test: pytest tests/test_own_reward.py
"""

import inspect
import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from traceback import extract_tb

from verify.graders import OWN

START_SECONDS = 120.0  # to load the file, with whatever it imports
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TRIAL = "import sys; sys.path.insert(0, sys.argv[1]); from verify.own import trial; trial(*sys.argv[2:])"
LONGEST = 500  # characters of an error


def parsed(spec: str) -> tuple[str, str]:
    """(path, name) of FILE.py:FUNCTION. Raises ValueError for another form.

    >>> parsed("my/rewards.py:five_words")
    ('my/rewards.py', 'five_words')
    """
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name.isidentifier():
        raise ValueError(f"expected FILE.py:FUNCTION, got {spec!r}")
    return path, name


def place(error: BaseException, path: str) -> str:
    """The error in one line, with the line of the file where it came from.

    path  of the file
    """
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == path]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    said = " ".join(str(error).split())
    where = f" ({os.path.basename(path)}, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {said}{where}"[:LONGEST]


def load(spec: str, parameters=("prompt", "completion", "answer")):
    """The function of a file, which is run. Raises ValueError with one line if that cannot be.

    parameters  names of what it will be called with, by position
    """
    path, name = parsed(spec)
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path}")
    described = spec_from_file_location("own_reward", path)
    if described is None or described.loader is None:
        raise ValueError(f"expected a file that ends in .py, got {path}")
    module = module_from_spec(described)
    sys.modules["own_reward"] = module  # dataclasses look for it
    sys.path.insert(0, os.path.dirname(path))
    try:
        described.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise ValueError(f"{path} cannot be loaded: {place(error, path)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        there = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise ValueError(f"{path} has no function {name}; it has: {', '.join(there) or 'none'}")
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError as error:
        got = f"{name}{inspect.signature(function)}"
        raise ValueError(f"expected a function of ({', '.join(parameters)}), got {got}") from error
    return function


def called(function, spec: str, job: tuple[str, str, str]) -> bool | str:
    """The function's verdict on (prompt, completion, answer), or, beginning with OWN, why there is none."""
    try:
        verdict = function(*job)
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        return f"{OWN} raised {place(error, parsed(spec)[0])}"
    if verdict is None:
        return OWN
    if verdict is True or verdict is False:
        return verdict
    return f"{OWN}: expected True, False or None, got {verdict!r:.80} of type {type(verdict).__name__}"


def check(spec: str, job: tuple[str, str, str], timeout: float) -> None:
    """Load and call the function once, in a process of its own. Raises ValueError with one line if that cannot be.

    job      (prompt, completion, answer), for example of the first row
    timeout  seconds of one call. A call that takes longer is no reason, and one that raises is one to print a warning:
             it may be this row.
    """
    command = [sys.executable, "-P", "-c", TRIAL, ROOT, spec, json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS + timeout, check=False)
    except subprocess.TimeoutExpired:
        return
    lines = done.stderr.strip().splitlines() or [f"its process ended with exit code {done.returncode}"]
    if done.returncode:
        raise ValueError(f"--reward {spec}: {lines[-1]}")
    if lines[-1].startswith(f"{OWN} raised"):
        print(
            f"WARNING: {lines[-1]} on the first row, with its answer as completion. What it raises is no verdict, and "
            "the prompt's group is left out: if it always raises, nothing can be learnt",
            file=sys.stderr,
        )


def trial(spec: str, job: str) -> None:
    """What `check` runs; its last line on stderr says what the function raised, or why it can never be a reward."""
    try:
        function = load(spec)
    except ValueError as wrong:
        sys.exit(str(wrong))
    found = called(function, spec, tuple(json.loads(job)))
    if isinstance(found, str) and found.startswith(f"{OWN}: "):
        sys.exit(found.removeprefix(f"{OWN}: "))
    if isinstance(found, str):
        print(found, file=sys.stderr)
