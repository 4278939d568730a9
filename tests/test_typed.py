"""Claims about plumbing/typed.py: what is misspelt or not there is named with what is, before anything is started."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_train import BASE, elsewhere, refused  # noqa: F401
from transformers import AutoConfig

from plumbing import checkpoints, typed

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


SAVED = {"model.safetensors": save_file, "pytorch_model.bin": torch.save}


@pytest.mark.parametrize(("name", "save"), SAVED.items())
def test_weights_that_a_config_ties_and_a_file_holds_apart_are_refused(name, save, tmp_path):
    config, weights = AutoConfig.from_pretrained(BASE / "tiny"), load_file(BASE / "tiny" / "model.safetensors")
    assert config.tie_word_embeddings and "lm_head.weight" not in weights
    head = weights["model.embed_tokens.weight"].clone()
    save(weights | {"lm_head.weight": head}, tmp_path / name)
    assert checkpoints.lacking(tmp_path, config) == ""  # the same weights twice are one
    head[0, 0] += 1
    save(weights | {"lm_head.weight": head}, tmp_path / name)
    assert "lm_head.weight differs from model.embed_tokens.weight" in checkpoints.lacking(tmp_path, config)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")  # transformers reads it if there is nothing better
    assert ("pytorch_model.bin cannot be read" in checkpoints.lacking(tmp_path, config)) == (save is torch.save)


def test_weights_that_a_config_asks_for_and_files_lack_are_not_made_up(capsys):
    tiny = BASE / "tiny"
    config, weights = AutoConfig.from_pretrained(tiny), load_file(tiny / "model.safetensors")
    assert checkpoints.lacking(tiny, config) == ""
    Path("part").mkdir()
    kept = {name: weight for name, weight in weights.items() if "mlp" not in name}
    save_file(kept, "part/model.safetensors")
    lost = len(weights) - len(kept)
    said = f"{lost} of {len(weights)} tensors are missing, such as model.layers.0.mlp.gate_proj.weight"
    assert checkpoints.lacking("part", config) == said
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        Path("part", name).write_bytes((tiny / name).read_bytes())
    assert f"--model {Path('part').absolute()}: expected the weights that its config.json asks for; {said}" in refused(
        capsys, "--model", "part", "--data", "tiny"
    )
    Path("part/model.safetensors").unlink()
    assert checkpoints.lacking("part", config).startswith(f"{len(weights)} of {len(weights)} tensors are missing")
    save_file(weights | {"model.norm.weight": weights["model.norm.weight"][:3].clone()}, "part/model.safetensors")
    assert checkpoints.lacking("part", config) == "model.norm.weight has the shape (3,), not (48,)"


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
