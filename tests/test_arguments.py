"""Claims about plumbing/arguments.py: what is not there is named with what is. More: data/refused_flags.jsonl."""

from pathlib import Path

from test_train import elsewhere, refused  # noqa: F401
from transformers import AutoConfig

from plumbing import arguments


def test_of_many_files_the_first_eight_are_listed_and_a_name_on_the_hub_is_not_looked_for():
    for n in range(20):
        Path(f"file{n:02}").touch()
    assert arguments.beside("x").endswith("file06, file07 and 12 more")
    for name in ("Qwen/Qwen3-0.6B", "gpt2"):
        arguments.check_model("--model", name)


def test_what_the_hub_cannot_give_is_one_line_with_its_name(capsys, monkeypatch):
    def none(*_, **__):
        raise OSError("Couldn't connect.\nThree more lines")

    monkeypatch.setattr(AutoConfig, "from_pretrained", none)
    message = refused(capsys, "--model Qwen/Qwen9 --data tiny")
    assert "--model Qwen/Qwen9: expected a folder, or a model on the hub" in message and "Couldn't connect" in message
    assert "Three" not in message
