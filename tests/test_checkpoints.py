"""Claims about plumbing/checkpoints.py: weights that nobody can explain are not trained, and no file runs code."""

import gzip
import io
import json
import math
import os
import pickle
import re
import shutil
import zipfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import TEMPLATE, character_tokenizer, ended, given, refuses, tiny_model, trained, write_rows
from safetensors.torch import load_file, save_file
from started_runs import BASE, refused
from transformers import AutoConfig

import fit
import train
from plumbing import build, checkpoints, foreign_logs
from plumbing import prompts as sources

TINY = BASE / "tiny"
WEIGHTS = load_file(TINY / "model.safetensors")
HEAD = WEIGHTS["model.embed_tokens.weight"]  # the config ties them
NORM = "model.norm.weight"
TENSORS = [  # what a file holds beside those of base/tiny, or in place of them, and what is said
    ({}, ""),
    ({"lm_head.weight": HEAD}, ""),  # the same weights twice are one
    ({"lm_head.weight": HEAD + 1}, "tie_word_embeddings: true ties them to: lm_head.weight"),
    ({"model.layers.0.self_attn.rotary_emb.inv_freq": HEAD[0]}, ""),  # of old Llama files
    ({"model.layers.2.mlp.up_proj.weight": HEAD}, "1 of 25 tensors are not of this model: model.layers.2.mlp.up_proj"),
    ({NORM: None}, "1 of 23 tensors are missing: model.norm.weight"),
    ({NORM: WEIGHTS[NORM][:3]}, "another shape: model.norm.weight (3,)"),
    ({NORM: WEIGHTS[NORM].to(torch.float8_e4m3fn)}, "quantised: give the others: model.norm.weight torch.float8"),
]


def wrong(folder, config):
    """What is said of the weights in a folder; "" if nothing."""
    try:
        checkpoints.check_weights(folder, config)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("changes, words", TENSORS)
def test_the_tensors_of_a_file_are_those_of_the_config_and_no_others(changes, words, tmp_path):
    tensors = {name: weight.clone() for name, weight in (WEIGHTS | changes).items() if weight is not None}
    save_file(tensors, tmp_path / "model.safetensors")
    message = wrong(tmp_path, AutoConfig.from_pretrained(TINY))
    assert words in message if words else not message


def test_all_shards_of_an_index_are_read(tmp_path):
    config = AutoConfig.from_pretrained(TINY)
    save_file(WEIGHTS, tmp_path / "consolidated.safetensors")  # no file that transformers reads
    assert "found none of model.safetensors, " in wrong(tmp_path, config)
    shards = {f"{n}.safetensors": sorted(WEIGHTS)[n::2] for n in (0, 1)}
    index = {"metadata": {}, "weight_map": {name: shard for shard, inside in shards.items() for name in inside}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for shard, inside in shards.items():
        assert f"{shard} cannot be read" in wrong(tmp_path, config)
        save_file({name: WEIGHTS[name] for name in inside}, tmp_path / shard)
    assert wrong(tmp_path, config) == ""
    os.truncate(tmp_path / "1.safetensors", 999)  # an unfinished download
    assert "1.safetensors cannot be read: SafetensorError" in wrong(tmp_path, config)


def test_experts_are_compared_by_their_names_in_files(tmp_path):
    model = tiny_model("mixtral")
    model.save_pretrained(tmp_path)
    assert wrong(tmp_path, model.config) == ""
    weights = load_file(tmp_path / "model.safetensors")
    moved = {name.replace("experts.7.", "experts.8."): weight for name, weight in weights.items()}
    save_file(moved, tmp_path / "model.safetensors")
    assert "6 of 65 tensors are missing: " in wrong(tmp_path, model.config)


def of(**changes):
    """The text of the config of base/tiny with changes."""
    return json.dumps(json.loads((TINY / "config.json").read_text(encoding="utf-8")) | changes)


LONGROPE = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 12, long_factor=[2.0] * 12)
LONGROPE["original_max_position_embeddings"] = 8


@pytest.mark.parametrize("name, text, words", [
    ("adapter_config.json", "{", "is part of an adapter: merge it"),
    ("generation_config.json", "{", "is not a valid JSON file"),
    ("tokenizer.json", "{", "its tokenizer.json or tokenizer_config.json cannot be parsed"),
    ("model.safetensors", "version https://git-lfs.github.com/spec/v1\n", "model.safetensors is a pointer of git-lfs"),
    ("config.json", of(quantization_config={"quant_method": "awq"}), "give the unquantised weights"),
    ("config.json", of(transformers_weights="other.safetensors"), "names other.safetensors as its weights"),
    ("config.json", of(hidden_size="many"), "expected int, got str"),
    ("config.json", of(dtype="torch.bfloat16"), "dtype torch.bfloat16 in its config.json: write bfloat16"),
    ("config.json", of(auto_map={"AutoModel": "x.X"}), "names code of its own, which is never run"),
    ("config.json", of(is_causal=False), "is_causal is false in its config.json"),
    ("config.json", of(rope_parameters=LONGROPE), "all positions change beyond 8 tokens"),
])  # fmt: skip
def test_a_folder_that_would_be_read_wrongly_or_in_part_is_refused_in_one_line(name, text, words, capsys):
    shutil.copytree(TINY, "model")
    Path("model", name).write_text(text, encoding="utf-8")
    assert words in refused(capsys, "--model model --data tiny --virtual exact --max-prompt-tokens 8")


def test_weights_that_are_not_finite_end_the_run_before_anything_is_sampled(capsys):
    shutil.copytree(TINY, "model")
    nan = WEIGHTS[NORM].clone().fill_(math.nan)
    save_file(WEIGHTS | {NORM: nan}, "model/model.safetensors", metadata={"format": "pt"})
    flags = "--model model --data tiny --virtual exact --out run --max-prompt-tokens 8 --max-new-tokens 8"
    assert ended(f"{flags} --length-control none") == 1
    assert "expected finite weights" in capsys.readouterr().err
    assert not Path("run/completions.jsonl").exists()


# --- Which models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type, changes, reason", [
    ("gemma2", {}, "have not been checked"),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, "sliding_window=64"),
    ("qwen2", {"use_sliding_window": False, "sliding_window": 4096}, ""),
    ("mistral", {}, "sliding_window=4096"),
    ("llama", {"attention_dropout": 0.1}, "attention_dropout=0.1"),
])  # fmt: skip
def test_other_architectures_are_refused_by_name_with_the_reason(model_type, changes, reason):
    config = AutoConfig.for_model(model_type, **changes)
    if reason:
        refuses(f"'{model_type}' is not supported.*{reason}", checkpoints.check_supported, config)
    else:
        checkpoints.check_supported(config)


# --- The chat template ---

TEMPLATES = [  # template, flags, what is printed
    (TEMPLATE, "", "no completion ends where the chat template ends an answer, at '|'"),
    (TEMPLATE + "{% if thinks %}so{% endif %}", "--template thinks=true", "assistant:so'"),
    (TEMPLATE, "--template think=true", "--template think=true: expected NAME=VALUE"),
    ("{{ strftime_now('%d.%m.%Y') }}" + TEMPLATE, "--date 2026-01-31", "ends with '31.01.2026user:"),
]


@pytest.mark.parametrize("template, flags, words", TEMPLATES)
def test_what_a_chat_template_makes_of_prompts_is_said(template, flags, words, capsys):
    tokenizer = character_tokenizer(template=template)
    checkpoints.save_policy(Path("model"), tiny_model(vocab_size=64), tokenizer, None, torch.float32)
    write_rows("d.jsonl", [{"prompt": f"{n}+1=", "answer": n + 1} for n in range(9)])
    small = "--data d.jsonl --virtual exact --k 0 --prompts 1 --think-end none --max-prompt-tokens 40"
    with suppress(SystemExit):
        build.load_prompts(given(f"--model model {small} {flags}"))
    printed = "".join(capsys.readouterr()).replace(f"{Path.cwd()}/", "")
    assert words in re.sub(r"\d\+1=", "1+1=", printed)


# --- Files that somebody else has written ---


class Attack:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def poison(state, *, metadata):
    """Put a call into the metadata of a checkpoint's state/, or into a value that is no tensor."""
    whole = pickle.loads((state / ".metadata").read_bytes())
    place = next(place for key, place in whole.storage_data.items() if key.fqn.endswith(".lr"))
    with (state / place.relative_path).open("ab") as file:
        place.offset = file.tell()
        torch.save(Attack(), file)
        place.length = file.tell() - place.offset
    (state / ".metadata").write_bytes(pickle.dumps(Attack() if metadata else whole))


TWO = "--virtual exact --data tiny --k 0 --steps 2 --prompts 4 --generations 4 --eval-prompts 4 --eval-every 2"


@pytest.mark.parametrize("way", ["metadata", "value", "log", "weights"])
def test_nothing_in_a_folder_that_is_read_can_run_code(way, capsys):
    rows = trained(TWO)
    checkpoint = Path("run/checkpoint-2")
    if way == "weights":
        (checkpoint / "model.safetensors").unlink()
        torch.save({NORM: Attack()}, checkpoint / "pytorch_model.bin")
        assert "pytorch_model.bin cannot be read" in refused(capsys, f"--model {checkpoint} --data tiny")
    elif way == "log":
        Path("code.py").write_text("import os\nos.mkdir('ran')", encoding="utf-8")
        rows[0]["flags"]["reward"] = "code.py:f"  # a loss: test_user_loss.py
        write_rows("run/log.jsonl", rows)
        words = "names code, which runs only if you name it too: --reward code.py:f"
        assert words in refused(capsys, "--resume --out run")
    else:
        poison(checkpoint / "state", metadata=way == "metadata")
        with suppress(SystemExit):  # rank 0 refuses such metadata before anything is loaded
            ended("--resume --out run --steps 3")
        words = {"metadata": "state/.metadata cannot be read", "value": "run/checkpoint-2/state cannot be read"}[way]
        assert words in capsys.readouterr().err
        assert checkpoint.is_dir()
    assert not Path("ran").exists()


CODE = "__import__('os').mkdir('ran')"
with zipfile.ZipFile(ZIP := io.BytesIO(), "w") as archive:
    archive.writestr("data.pkl", pickle.dumps(Attack()))
CONTENTS = {
    "pickle": pickle.dumps(Attack()),
    "zip of a pickle": ZIP.getvalue(),
    "gzip of a pickle": gzip.compress(pickle.dumps(Attack())),
    "code as a value": json.dumps({"prompt": CODE, "answer": CODE, "step": CODE, "pass_rate": CODE}).encode(),
    "code as a cell": f'prompt,answer,step,pass_rate\n"{CODE}","={CODE}",1,{CODE}\n'.encode(),
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.json", "a.log", "a.jsonl.gz", "a.npz"])
def test_no_file_of_prompts_or_log_runs_code_whatever_its_name_says(name, content):
    Path(name).write_bytes(CONTENTS[content])
    with suppress(ValueError):
        sources.read_sources([name], character_tokenizer(), budget=40, validation=1)
    with suppress(fit.BadInput):
        foreign_logs.read_runs(name, "step", "pass_rate")
    assert not Path("ran").exists()


@pytest.mark.parametrize("change", [
    {}, dict(seconds=1799), dict(version=5),  # within a phase
    dict(rank=1),  # another trainer's clock has no say
])  # fmt: skip
def test_a_checkpoint_is_late_after_half_an_hour_by_the_clock_of_rank_0(monkeypatch, change):
    one = SimpleNamespace(**dict(seconds=1801, virtual=None, asked=[], version=4, rank=0) | change)
    monkeypatch.setattr(train.time, "monotonic", lambda: 100.0 + one.seconds)
    processes = SimpleNamespace(rank=one.rank, any_trainer=bool)
    trainer = SimpleNamespace(args=one, version=one.version, saved_at=100.0, processes=processes)
    trainer.queue = SimpleNamespace(setup={"off_policy": "ppo", "k": 2})
    assert train.Trainer.late_for_a_checkpoint(trainer) == (not change)
