"""What a user typed and is not there: a flag, a choice, a path, a column; with what comes close and what is there.

Test: pytest tests/test_typed.py
"""

import argparse
import re
from difflib import get_close_matches
from pathlib import Path

from plumbing import run_folder

SHOWN = 8  # names of what is there


class Parser(argparse.ArgumentParser):
    """A parser whose errors name the flag or the choice that a misspelt one comes close to."""

    renamed: dict = {}  # flags of earlier versions -> their names today

    def error(self, message):
        chosen = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message, re.S)
        if chosen:
            message += meant(chosen[1], [choice.strip("' ") for choice in chosen[2].split(",")])
        if message.startswith("unrecognized arguments: "):
            known = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            for word in message.partition(": ")[2].split():
                typed = "--" + word.partition("=")[0].lstrip("-")
                if typed in self.renamed:
                    super().error(f"{typed} is now {self.renamed[typed]}")
                message += meant(typed, known)
        super().error(message)


def meant(word, known):
    """The question whether `closest` was meant, to be put behind a message; "" if nothing comes close."""
    close = closest(word, known)
    return f"; did you mean {close}?" if close else ""


def closest(word, known):
    """The known word that comes closest, whatever its case and underscores; "" if none does.

    >>> closest("--Eval_evry", ["--eval-every", "--lr"]), closest("--x", ["--lr"])
    ('--eval-every', '')
    """
    plain = {str(one).lower().replace("_", "-"): one for one in known}
    close = get_close_matches(word.lower().replace("_", "-"), plain, 1, 0.7)
    return plain[close[0]] if close else ""


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
    there = sorted(one.name + "/" * one.is_dir() for one in folder.iterdir() if not one.name.startswith((".", "__")))
    close = get_close_matches(missing, there, 3, 0.5)
    names = [*close, *(one for one in there if one not in close)]
    listed = ", ".join(names[:SHOWN]) + f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
    return f"{folder} holds {listed or 'nothing'}" + (f"; did you mean {close[0]}?" if close else "")


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
        raise ValueError(f"{flag} {name}: {expected}, got a file; give the folder that it lies in, or convert it")
    if not (path / "config.json").exists():
        if steps := [str(folder) for folder in run_folder.finished(path)]:
            found = f"got the folder of a run, with {', '.join(steps)}; give one of them: {flag} {steps[-1]}"
        elif (path / "adapter_config.json").exists():
            found = "got a LoRA adapter; merge it into its model first (peft: merge_and_unload)"
        else:
            found = f"found no config.json; {beside(path / 'config.json')}"
        raise ValueError(f"{flag} {name}: {expected}, {found}")
