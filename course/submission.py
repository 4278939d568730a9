"""A student's file as a module, and what its definitions return as numbers.

It imports nothing of the project. Test: pytest tests/test_exercises.py
"""

import copy
import functools
import os
import sys
import types
from numbers import Real

import torch

HEAD, DIMS = 6, 4  # a vector starts with 6 numbers: kind of dtype, number of dimensions, 4 sizes (-1: none)


# --- The module ------------------------------------------------------------------------------------------------------


def imported(name, path, text):
    """The module called `name`, run from its text as the file at `path`. Raises whatever its statements raise."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # torch.compile returns the function itself: a check needs no compiler
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(text, path, "exec"), vars(module))
    return module


def definition(module, target):
    """What a module calls `target`; a method as a function of the fields of its object.

    Raises AttributeError if there is no such name.
    """
    outer, _, method = target.rpartition(".")
    if not outer:
        return getattr(module, target)
    owner = getattr(module, outer)
    function = getattr(owner, method)

    @functools.wraps(function)
    def called(fields, *args, **kwargs):
        instance = object.__new__(owner)
        object.__setattr__(instance, "__dict__", vars(fields))  # the class may be frozen
        return function(instance, *args, **kwargs)

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
    """A value as text: numbers with four significant digits, tensors as lists, at most 300 characters."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"[:300]
    return f"{value:.4g}" if isinstance(value, float) else repr(value)[:300]


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
