"""Claims about plumbing/typed.py: what is misspelt or not there is named with what is, before a start."""

import json
from pathlib import Path

import pytest
from test_train import elsewhere, refused  # noqa: F401
from transformers import AutoConfig

from plumbing import typed

PARSER = typed.Parser(prog="it")
PARSER.add_argument("--eval-every", type=int)
PARSER.add_argument("--loss", choices=("cispo", "dapo"))


@pytest.mark.parametrize("argv, meant", [(["eval-every=3"], "--eval-every"), (["-loss", "dapo"], "--loss")])
def test_a_misspelt_flag_gets_a_suggestion(capsys, argv, meant):
    with pytest.raises(SystemExit) as end:
        PARSER.parse_args(argv)
    assert end.value.code == 2 and capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")


def model(folder, *files):
    """A folder with these files, empty but for the brackets of an object."""
    Path(folder).mkdir(parents=True)
    for name in files:
        (Path(folder) / name).write_text(json.dumps({}))


def said(name, flag="--model"):
    with pytest.raises(ValueError) as error:
        typed.check_model(flag, name)
    message = str(error.value)
    assert message.startswith(f"{flag} {name}: expected ")
    return message


def test_a_path_that_is_not_there_is_answered_with_what_lies_beside_it():
    model("runs/smollm2", "config.json", "model.safetensors")
    for name in ("runs/smolm2", str(Path("runs/smolm2").absolute())):
        assert said(name).endswith(f"{Path('runs').absolute()} holds smollm2/")
    for name in ("runs/smollm2", "Qwen/Qwen3-0.6B", "gpt2"):  # the last two: names on the hub
        typed.check_model("--model", name)
    for n in range(20):
        Path(f"file{n:02}").touch()
    assert typed.beside("x").endswith("file06, file07 and 13 more")


def test_a_folder_that_is_no_model_says_what_it_is():
    model("runs/a/checkpoint-8", "config.json")
    assert said("runs/a", "--evaluate").endswith(
        "found no config.json; " + f"{Path('runs/a').absolute()} holds checkpoint-8/"
    )
    Path("model.gguf").touch()
    assert "got a file" in said("model.gguf")


# --- In train.py -----------------------------------------------------------------------------------------------------


def test_what_the_hub_cannot_give_is_one_line_with_its_name(capsys, monkeypatch):
    def none(*_, **__):
        raise OSError("Couldn't connect.\nThree more lines")

    monkeypatch.setattr(AutoConfig, "from_pretrained", none)
    message = refused(capsys, "--model", "Qwen/Qwen9", "--data", "tiny")
    assert "--model Qwen/Qwen9: expected a folder, or a model on the hub" in message and "Couldn't connect" in message
    assert "Three" not in message
    model("runs/smollm2", "config.json", "model.safetensors")  # the hub is not asked for a misspelt folder
    message = refused(capsys, "--model", "runs/smolm2", "--data", "tiny")
    assert "--model runs/smolm2: expected a folder, found none; " in message and "holds smollm2/" in message
