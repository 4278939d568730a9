"""Claims about plumbing/run/checkpoints.py: weights that a folder lacks, or holds in another shape, are not made up."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_train import BASE, elsewhere, refused  # noqa: F401
from transformers import AutoConfig

from plumbing.run import checkpoints

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
