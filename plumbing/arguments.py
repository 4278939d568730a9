"""Flags as they are typed: the parser, which names what a misspelt flag comes close to.

Test: pytest tests/test_settings.py
"""

import argparse
import os
import sys
from collections import Counter
from contextlib import suppress
from difflib import get_close_matches


def steady_streams():
    """Let no text end a program: a screen that has not all characters shows escapes, a closed one nothing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        with suppress(AttributeError):  # a notebook's stream
            getattr(sys, name).reconfigure(errors="backslashreplace")


class Parser(argparse.ArgumentParser):
    """A parser whose errors name the flag that a misspelt one comes close to."""

    def __init__(self, **options):
        steady_streams()
        super().__init__(**options)

    def parse_known_args(self, args=None, namespace=None):
        """As argparse's; ends for a flag of several values that is given twice, of which the last alone would count."""
        typed = Counter(word.partition("=")[0] for word in (sys.argv[1:] if args is None else args))
        for action in self._actions:
            if action.nargs in ("+", "*") and sum(typed[flag] for flag in action.option_strings) > 1:
                self.error(f"{action.option_strings[-1]} is given twice; expected it once, with all its values")
        return super().parse_known_args(args, namespace)

    def error(self, message):
        if message.startswith("unrecognized arguments: "):
            known = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            for word in message.partition(": ")[2].split():
                typed = "--" + word.partition("=")[0].lstrip("-")
                close = get_close_matches(typed.lower().replace("_", "-"), known, 1, 0.7)
                message += f"; did you mean {close[0]}?" if close else f"; all flags: {self.prog} --help"
        super().error(message)


def option(name):
    """A flag as it is written on the command line."""
    return "--" + name.replace("_", "-")


def as_given(value):
    """A value as one would write it on the command line; None stays None.

    >>> as_given((5, 6)), as_given(True)
    ('5 6', 'yes')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
