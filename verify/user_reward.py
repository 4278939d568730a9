"""A reward of one's own: --reward FILE.py:FUNCTION, called with prompt, completion and answer in a worker.

Paper: Sec. 2 has math and code; other tasks have other rewards.

    prompt      the text that the policy was given, with its chat template
    completion  the text that it wrote, its thinking included
    answer      the row's answer, "" if it has none
    result      v from 0 to 1, for a reward of 2 v - 1. True is 1: right; False is 0: wrong. None: no verdict, and the
                prompt's group is left out

The function is called by these names, or by those of them that it has; parameters with a default are left alone. What
it raises counts as no verdict, and so does any other result. A call takes at most --verify-timeout seconds, else the
completion is wrong; the first one of a process may take FIRST_SECONDS. A completion that is truncated, or has no
--think-end, is wrong without being asked. The file is trusted: it runs with all rights of its user.

Deviation: rewards of one's own, and graded ones, are no part of the paper. Dense rewards are its open question.

Test: pytest tests/test_user_reward.py
"""

import builtins
import inspect
import os
import sys
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
        reason = " ".join(str(error).split())
    except Exception:  # its text is made by the user's file too
        reason = "an error without a text"
    where = f" ({os.path.basename(places[-1][0])}, line {places[-1][1]})" if places else ""
    return f"{type(error).__name__}: {reason}{where}"[:LONGEST]


def load(spec: str, parameters=PARAMETERS):
    """A file, which is run -> its function, to be called with the values of all `parameters`, in this order.

    parameters  names by which it gets those values that it takes
    Raises ValueError with one line if the file cannot be loaded, or the function needs a parameter of another name.
    """
    path, name = parsed(spec)
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path}")
    module = ModuleType("own_reward")
    module.__file__ = os.path.abspath(path)
    sys.modules[module.__name__] = module  # dataclasses look for it
    folder = os.path.dirname(module.__file__)
    sys.path.append(folder)  # its neighbours; behind our modules, for those that are imported late by others
    vars(module)["__builtins__"] = vars(builtins) | {"__import__": neighbours_first(folder)}
    try:
        with open(path, "rb") as file:
            exec(compile(file.read(), path, "exec"), vars(module))
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise ValueError(f"{path} cannot be loaded: {place(error, path)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        there = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise ValueError(f"{path} has no function {name}; it has: {', '.join(there) or 'none'}")
    taken = by_name(function, name, parameters)
    return lambda *values: function(**{known: value for known, value in zip(parameters, values) if known in taken})


def by_name(function, name: str, parameters) -> set[str]:
    """Which of the parameters the function takes. Raises ValueError if that is none, or if it needs another one."""
    signature = inspect.signature(function)
    required = {
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    named = {
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    taken = named & set(parameters)
    if taken and required <= taken:
        return taken
    known = ", ".join(parameters)
    lines = f"`def named({known}):` and `    return {name}(…)` with these values in its own order, and give :named"
    raise ValueError(f"expected a function of ({known}), or some of these names, got {name}{signature}; add {lines}")


def neighbours_first(folder: str):
    """The `import` of a file in this folder: a module beside it comes before one of ours that has the same name."""
    names = (modules_in(folder) & modules_in(ROOT)) if folder != ROOT else set()
    theirs: dict[str, ModuleType] = {}

    def imported(name, *rest):
        if name.partition(".")[0] not in names:
            return __import__(name, *rest)
        ours = taken_out(names)
        sys.modules.update(theirs)
        sys.path.insert(0, folder)
        try:
            return __import__(name, *rest)
        finally:
            sys.path.remove(folder)
            theirs.update(taken_out(names))
            sys.modules.update(ours)

    return imported


def modules_in(folder: str) -> set[str]:
    """Names of the modules and packages in a folder."""
    entries = [os.path.join(folder, entry) for entry in os.listdir(folder)]
    packages = {os.path.basename(entry) for entry in entries if os.path.isfile(os.path.join(entry, "__init__.py"))}
    return packages | {os.path.basename(entry).removesuffix(".py") for entry in entries if entry.endswith(".py")}


def taken_out(names: set[str]) -> dict[str, ModuleType]:
    """Modules of these names, and those within them, which are taken out of sys.modules."""
    return {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in names}


def called(function, spec: str, job: tuple[str, str, str]) -> float | str:
    """The function's v for (prompt, completion, answer), or, beginning with OWN, why there is none."""
    try:
        value = function(*job)
        value = value.item() if getattr(value, "shape", None) == () else value  # NumPy's numbers and booleans
        if value is None:
            return OWN
        if isinstance(value, Real) and 0 <= float(value) <= 1:
            return float(value)
        return f"{OWN}: expected a number from 0 to 1, a bool or None, got {value!r:.80} of type {type(value).__name__}"
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        return f"{OWN} raised {place(error, parsed(spec)[0])}"
