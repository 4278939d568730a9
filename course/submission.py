"""A solved file as a module, and what its definitions return as numbers: the part of a check beside the student's code.

A solved file is imported as any module is: all its statements run, and what it defines is called. Only the definitions
of the file's other exercises are the original's, so that exercises can be solved in any order.

It imports nothing of the project. Test: pytest tests/test_exercises.py
"""

import ast
import copy
import functools
import importlib
import inspect
import os
import sys
import types
from numbers import Real

import torch

HEAD, DIMS = 6, 4  # a vector starts with 6 numbers: kind of dtype, number of dimensions, 4 sizes (-1: none)
SIMPLE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.AugAssign)
IMPORTS = (ast.Import, ast.ImportFrom)


# --- The module ------------------------------------------------------------------------------------------------------


def names_in(node):
    """The names that a statement binds, also within `if`, `try` and loops; of a class or function its own name only."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, IMPORTS):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    children = (child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.ExceptHandler)))
    return set().union(*map(names_in, children))


def merged(student, original, others, target):
    """The syntax tree of the student's file, in which the definitions of other exercises are the original's.

    student, original  texts of the file
    others             names of definitions ("cispo", "Curriculum.update_history") that the original provides
    target             the student's own definition
    Names that the original's definitions may use and the student's file binds nowhere are the original's as well.
    Raises SyntaxError.
    """
    tree, whole = ast.parse(student), ast.parse(original)
    known = set().union(*map(names_in, tree.body)) | {target.partition(".")[0]}
    lacking = [node for node in whole.body if (names := names_in(node)) and not names & known]
    first = 0  # behind the docstring and the imports at the top
    while first < len(tree.body) and isinstance(tree.body[first], (ast.Expr, *IMPORTS)):
        first += 1
    tree.body[first:first] = lacking
    for name in others:
        replace(tree.body, whole.body, name)
    return tree


def replace(body, original, name):
    """Put the original's statements that define `name` in the place of one's own, or at the end, if there are none."""
    outer, _, method = name.partition(".")
    theirs = [node for node in original if outer in names_in(node)]
    own = [node for node in body if isinstance(node, SIMPLE) and outer in names_in(node)]
    if method:
        if own and isinstance(own[-1], ast.ClassDef):
            replace(own[-1].body, theirs[-1].body, method)
        return
    place = body.index(own[0]) if own else len(body)
    body[place:place] = theirs
    for node in own:
        body.remove(node)


def imported(name, path, tree):
    """The module called `name` of a syntax tree, run as the file at `path`. Raises whatever its statements raise."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # torch.compile returns the function itself: a check needs no compiler
    module = types.ModuleType(name)
    module.__file__ = path
    if outer := name.rpartition(".")[0]:
        importlib.import_module(outer)
    sys.modules[name] = module
    exec(compile(tree, path, "exec"), vars(module))
    return module


def definition(module, target):
    """What a module calls `target`; a method as a function whose first argument is a stand-in for its object.

    Raises AttributeError if there is no such name.
    """
    outer, _, method = target.rpartition(".")
    if not outer:
        return getattr(module, target)
    owner = getattr(module, outer)
    function = getattr(owner, method)

    class StandIn:
        """An object with the fields that the check gave; the student's class has the rest."""

        def __getattr__(self, name):
            return inspect.getattr_static(owner, name).__get__(self, owner)

    @functools.wraps(function)
    def called(fields, *args, **kwargs):
        stand_in = StandIn()
        stand_in.__dict__ = vars(fields)
        return function(stand_in, *args, **kwargs)

    return called


# --- Its results -----------------------------------------------------------------------------------------------------


def answer(probe, implementation, inputs):
    """The vector of probe(implementation, *inputs); inputs are copied, since the implementation may write to them.

    An exception gets a note: the call that it came from, and the type of what this call returned, if it did.
    """
    call = [", ".join(map(shown, inputs))]

    def called(*args, **kwargs):
        given = [*map(shown, args), *(f"{name}={shown(value)}" for name, value in kwargs.items())]
        call[:] = [f"{implementation.__name__}({', '.join(given)})"]
        value = implementation(*args, **kwargs)
        call.append(f", which returned a {type(value).__name__}")
        return as_tensor(value)

    is_function = callable(implementation) and not isinstance(implementation, type)
    asked = functools.wraps(implementation)(called) if is_function else implementation
    try:
        return encode(probe(asked, *copy.deepcopy(inputs)))
    except BaseException as error:
        error.add_note("".join(call))
        raise


def shown(value):
    """An argument as text: numbers with four significant digits, tensors as lists, at most 200 characters."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"[:200]
    return f"{value:.4g}" if isinstance(value, float) else repr(value)[:200]


def as_tensor(value):
    """A list, or what numpy made, as a tensor; everything else as it is."""
    return stacked(value) if isinstance(value, list) or type(value).__module__ == "numpy" else value


def stacked(value):
    """A number, or numbers, tensors and arrays in lists and tuples, as one tensor with all their digits.

    Raises TypeError for anything else, and RuntimeError for ragged lists.
    """
    if isinstance(value, (list, tuple)):
        return torch.stack([stacked(part) for part in value]) if value else torch.tensor([])
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (bool, int)) or type(value).__module__ == "numpy":
        return torch.as_tensor(value)
    if isinstance(value, Real):
        return torch.tensor(float(value), dtype=torch.double)
    raise TypeError(f"expected a tensor or numbers, got a {type(value).__name__}")


def encode(value):
    """A tensor, a number or lists of numbers -> [kind, dimensions, 4 sizes, values ...].

    kind: 0 floats, 1 integers, 2 True and False. Raises what `stacked` raises, and TypeError for complex numbers.
    """
    value = stacked(value)
    if value.is_complex() or value.dim() > DIMS:
        raise TypeError(f"expected real numbers in up to {DIMS} dimensions, got {value.dtype} {tuple(value.shape)}")
    kind = 0 if value.is_floating_point() else 2 if value.dtype == torch.bool else 1
    sizes = [*value.shape] + [-1] * (DIMS - value.dim())
    return [float(x) for x in (kind, value.dim(), *sizes, *value.detach().double().flatten().tolist())]
