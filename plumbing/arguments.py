"""What a user typed and is not there: a flag, a path, a model; with what comes close and what is there.

Test: pytest tests/test_arguments.py
"""

import argparse
from difflib import get_close_matches
from pathlib import Path

SHOWN = 8  # names of what is there


class Parser(argparse.ArgumentParser):
    """A parser whose errors name the flag that a misspelt one comes close to."""

    def error(self, message):
        if message.startswith("unrecognized arguments: "):
            known = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            for word in message.partition(": ")[2].split():
                typed = "--" + word.partition("=")[0].lstrip("-")
                close = get_close_matches(typed.lower().replace("_", "-"), known, 1, 0.7)
                message += f"; did you mean {close[0]}?" if close else ""
        super().error(message)


def option(name):
    """A flag as it is written on the command line."""
    return "--" + name.replace("_", "-")


def as_given(value):
    """A value as one would write it on the command line; None stays None.

    >>> as_given((5, 6)), as_given(True)
    ('5 6', 'yes')
    """
    words = {True: "yes", False: "no"} if isinstance(value, bool) else {}
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else words.get(value, value)


# --- Paths -----------------------------------------------------------------------------------------------------------


def is_path(name, longest=2):
    """Whether a name can only be a path and none of the hub's, which are OWNER/NAME, of at most `longest` parts.

    >>> is_path("./model"), is_path("model/"), is_path("a/b/c"), is_path("a/b/c", longest=3), is_path("gpt2")
    (True, True, True, False, False)
    """
    first, *rest = name.rstrip("/").split("/")
    if name.startswith(("/", ".", "~")) or name.endswith("/") or len(rest) >= longest:
        return True
    return bool(rest) and (first == "runs" or Path(first).is_dir())


def beside(name):
    """What lies where a path that is not there was looked for, the closest names first."""
    path = Path(name).expanduser()
    folder = next(parent for parent in (path.absolute().parents) if parent.is_dir())
    missing = path.absolute().relative_to(folder).parts[0]
    shown = [path for path in folder.iterdir() if not path.name.startswith((".", "__"))]
    there = sorted(f"{path.name}/" if path.is_dir() else path.name for path in shown)
    close = get_close_matches(missing, there, 3, 0.5)
    names = [*close, *(name for name in there if name not in close)]
    listed = ", ".join(names[:SHOWN]) or "nothing"
    if len(names) > SHOWN:
        listed += f" and {len(names) - SHOWN} more"
    return f"{folder} holds {listed}"


def check_model(flag, name):
    """Raise ValueError unless `name` is a folder with a model, or may be a name on the hub.

    flag  by which it was given
    """
    path = Path(name).expanduser()
    if not path.exists():
        if is_path(name):
            raise ValueError(f"{flag} {name}: expected a folder, found none; {beside(name)}")
        return
    expected = "expected a folder as Hugging Face's save_pretrained writes it"
    if path.is_file():
        raise ValueError(f"{flag} {name}: {expected}, got a file")
    if not (path / "config.json").exists():
        raise ValueError(f"{flag} {name}: {expected}, found no config.json; {beside(path / 'config.json')}")
