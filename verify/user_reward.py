"""A reward of one's own: --reward FILE.py:FUNCTION, called as FUNCTION(prompt, completion, answer) in a worker.

Paper: Sec. 2 has math and code; other tasks have other rewards.

    prompt      the text that the policy was given, with its chat template
    completion  the text that it wrote, its thinking included
    answer      the row's answer, "" if it has none
    result      v from 0 to 1, for a reward of 2 v - 1. True is 1: right; False is 0: wrong. None: no verdict, and the
                prompt's group is left out

Parameters of these names get their values whatever their order; others go by position. What the function raises counts
as no verdict, and so does any other result. A call takes at most --verify-timeout seconds, else the completion is
wrong; the first one of a process may take FIRST_SECONDS. A completion that is truncated, or has no --think-end, is
wrong without being asked. The file is trusted: it runs with all rights of its user.

Deviation: rewards of one's own, and graded ones, are no part of the paper. Dense rewards are its open question.

Test: pytest tests/test_user_reward.py
"""

import inspect
import os
import sys
from contextlib import suppress
from numbers import Real
from traceback import extract_tb
from types import ModuleType

from verify.graders import OWN

FIRST_SECONDS = 60.0  # to load the file and call the function once: a first call may load models or data
PARAMETERS = ("prompt", "completion", "answer")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
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
    """The error in one line, with the file and the line where it came from.

    path  of the file, or of a folder that holds it
    """
    places = [(frame.filename, frame.lineno) for frame in extract_tb(error.__traceback__)]
    places = [(name, line) for name, line in places if name.startswith(path)]
    if isinstance(error, SyntaxError):
        places = [(path, error.lineno)]
    try:
        said = " ".join(str(error).split())
    except Exception:  # its text is made by the user's file too
        said = "an error without a text"
    where = f" ({os.path.basename(places[-1][0])}, line {places[-1][1]})" if places else ""
    return f"{type(error).__name__}: {said}{where}"[:LONGEST]


def end_copy(original: int) -> None:
    """End this process if it is no longer the original one, but a copy of it that the user's file has forked.

    original  its id
    """
    if os.getpid() != original:
        message = f"WARNING: {OWN} forked, and the copy came back from its code; it is ended: call os._exit in a fork"
        print(message, file=sys.stderr, flush=True)
        os._exit(0)


def load(spec: str, parameters=PARAMETERS):
    """A file, which is run -> its function, to be called by position. Raises ValueError with one line if that fails.

    parameters  names of its arguments. If it has them all, whatever their order, it is called by name.
    """
    path, name = parsed(spec)
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path}")
    module = ModuleType("own_reward")
    module.__file__ = os.path.abspath(path)
    sys.modules[module.__name__] = module  # dataclasses look for it
    sys.path.append(os.path.dirname(path))  # its neighbours; behind our modules, which may have the same names
    us = os.getpid()
    try:
        with open(path, "rb") as file:
            exec(compile(file.read(), path, "exec"), vars(module))
        end_copy(us)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise ValueError(f"{path} cannot be loaded: {place(error, path)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        there = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise ValueError(f"{path} has no function {name}; it has: {', '.join(there) or 'none'}")
    signature = inspect.signature(function)
    with suppress(TypeError):
        if set(parameters) <= set(signature.parameters):
            signature.bind(**dict.fromkeys(parameters))
            return lambda *values: function(**dict(zip(parameters, values)))
        signature.bind(*parameters)
        if all(name == place or name not in parameters for name, place in zip(signature.parameters, parameters)):
            return function
    raise ValueError(f"expected a function of ({', '.join(parameters)}), got {name}{signature}")


def called(function, spec: str, job: tuple[str, str, str]) -> float | str:
    """The function's v for (prompt, completion, answer), or, beginning with OWN, why there is none."""
    us = os.getpid()
    try:
        value = function(*job)
        end_copy(us)
        value = value.item() if getattr(value, "shape", None) == () else value  # NumPy's numbers and booleans
        if value is None:
            return OWN
        if isinstance(value, Real) and 0 <= float(value) <= 1:
            return float(value)
        return f"{OWN}: expected a number from 0 to 1, a bool or None, got {value!r:.80} of type {type(value).__name__}"
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        end_copy(us)
        return f"{OWN} raised {place(error, parsed(spec)[0])}"
