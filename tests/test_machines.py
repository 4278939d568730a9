"""Claims about other people's machines: screens, notebooks, launchers."""

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest
from conftest import ROOT, write_rows
from torch.distributed.run import get_args_parser

from plumbing.arguments import option
from plumbing.settings import Settings


def program(*words, **environment):
    """What a program of ours ends with in an environment with these variables."""
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, check=False)


def test_a_screen_without_the_characters_shows_escapes_and_a_notebooks_backend_is_not_loaded(tmp_path):
    table, figure = tmp_path / "a.csv", tmp_path / "a.png"
    table.write_text("step,奖励\n" + "".join(f"{n},{n / 20}\n" for n in range(9)), encoding="utf-8")
    words = "fit.py", str(table), "--x=step", "--reward=奖励", "-o", str(figure)
    screen = {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    ended = program(*words, MPLBACKEND="module://matplotlib_inline.backend_inline", PYTHONSAFEPATH="1", **screen)
    assert ended.returncode == 0 and rb"\u5956\u52b1" in ended.stdout and figure.exists()
    assert program("train.py", "--help", PYTHONSAFEPATH="1").returncode == 0


@pytest.mark.parametrize("name", [field.name for field in fields(Settings) if field.name != "virtual"])
def test_torchrun_hands_our_flags_on(name):
    """--virtual is the start of two of its own; a virtual run is started with python."""
    words = ["train.py", "--loss", "cispo", option(name), "1"]
    with contextlib.redirect_stderr(io.StringIO()):
        parsed = get_args_parser().parse_args(words)
    assert [parsed.training_script, *parsed.training_script_args] == words


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the lines stand in docs/")
def test_the_lines_of_the_docs_follow_a_log_into_a_dashboard(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    lines = page.partition("## A dashboard")[2].partition("    import json")[2].partition("\n\n")[0]
    rows = [
        {"kind": "eval", "step": 0, "pass_rate": 0.5, "tasks": {}},
        {"kind": "end", "step": 3, "reason": "finished"},
    ]
    write_rows(tmp_path / "log.jsonl", rows)
    sent = []
    dashboard = SimpleNamespace(init=lambda **_: None, log=lambda numbers, step: sent.append((numbers, step)))
    monkeypatch.setitem(sys.modules, "wandb", dashboard)
    exec(f"import json{lines}".replace("\n    ", "\n").replace("runs/NAME", str(tmp_path)), {})
    assert sent == [({"eval/step": 0, "eval/pass_rate": 0.5}, 0), ({"end/step": 3}, 3)]
