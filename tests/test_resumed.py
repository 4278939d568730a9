"""Claims about a run beside or after another: what a resumed run keeps, logs that vanish, variables left behind."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from conftest import ended, given, read_rows, trained, write_rows
from runs import BASE, refused

import data
from plumbing import log as log_file
from plumbing.arguments import option
from plumbing.settings import FIELDS, FREE

TINY = "--virtual exact --data tiny --k 0 --prompts 4 --generations 4 --eval-prompts 4"


MAY = (
    "--steps 2 --slots 4 --token-budget 999 --activation-checkpointing --generator torch --eval-every 2 "
    "--checkpoint-every 1 --timeout 99 --verifiers 1 --lr 0.5 --warmup 9"
)
MUST = (
    "--k 1,--seed 1,--prompts 8,--generations 8,--eval-prompts 8,--eval-generations 8,--temperature 0.5,--eps-max 4,"
    "--weight-decay 0.1,--aggregation sample,--normalisation none,--no-positive-resampling 0.8,--verify-timeout 9,"
    "--max-new-tokens 9,--loss dapo,--recipe deepseek,--virtual balanced,--date 2026-01-31,--generators 2"
).split(",")


def test_resume_may_change_what_neither_samples_nor_gradients_depend_on_and_nothing_else(capsys):
    before = trained(f"{TINY} --steps 1 --eval-every 1", "a")[0]["flags"]
    for flags in MUST:
        message = refused(capsys, f"--resume --out a {flags}")
        assert f"--resume with {flags}" in message and ": the run in a has " in message
        assert "and this must stay. To change it, start a new run from its weights: --model a/checkpoint-1" in message
    names = {option(name) for name, setting in FIELDS.items() if FREE <= setting.metadata["marks"]}
    assert names == {"--data", "--model", "--offload-optimizer", *re.findall("--[a-z-]+", MAY)}
    notes = [row for row in trained(f"--resume {MAY}", "a") if row["kind"] == "config"][1]["flags"]["notes"]
    assert f"--resume: --lr 0.5 instead of {before['lr']}" in notes
    assert f"--resume: --warmup 9 instead of {before['warmup']}" in notes


@pytest.mark.parametrize("name, value", [
    ("k", "two"), ("loss", "cisp"), ("reward", 4), ("template", None),
])  # fmt: skip
def test_a_logged_value_that_its_flag_cannot_have_is_named(capsys, name, value):
    rows = trained(f"{TINY} --steps 1 --eval-every 1", "a")
    rows[0]["flags"][name] = value
    write_rows("a/log.jsonl", rows)
    assert f"got {option(name)} {value} in the last config row of a/log.jsonl; " in refused(capsys, "--resume --out a")


def test_a_run_goes_on_though_its_folder_its_model_and_its_data_lie_elsewhere_if_they_are_the_same(capsys):
    shutil.copytree(BASE / "tiny", "model")
    examples = dict(data.examples("tiny", 40, seed=1, held_out=False))
    sizes = "--max-prompt-tokens 9 --max-new-tokens 8 --length-control none --slots 8 --token-budget 999"

    def write(answers):
        write_rows(
            "rows.jsonl", [{"prompt": text, "answer": answer, "task": "arithmetic"} for text, answer in answers.items()]
        )

    write(examples)
    trained(f"{TINY} --model model --data rows.jsonl:2 {sizes} --eval-generations 1 --steps 1", "a")
    held_out = read_rows("a/completions.jsonl")[0]["prompt"]
    Path("there").mkdir()
    for name in ("a", "model", "rows.jsonl"):
        Path(name).rename(f"there/{name}")
    os.chdir("there")
    moved = "--resume --out a --steps 2 --model model --data rows.jsonl:2"
    assert not ended(moved)
    assert "expected the prompts and answers of the run in a" in refused(capsys, f"{moved} sorting:0")
    for text in (held_out, next(text for text in examples if text != held_out)):
        write(examples | {text: "0"})
        assert "expected the prompts and answers of the run in a" in refused(capsys, moved)
    config = json.loads(Path("model/config.json").read_text(encoding="utf-8"))
    Path("model/config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}), encoding="utf-8")
    Path("model").rename("other")
    expected = "expected the model of the run, with config and tokenizer as in a/checkpoint-2; "
    for model, words in {"other": "it has another config.json. ", "/nosuch": "Repo id must "}.items():
        assert expected + words in refused(capsys, f"--resume --out a --model {model}")


def test_a_second_run_beside_the_first_is_refused_as_in_use(capsys):
    trained(f"{TINY} --steps 1 --eval-every 1", "a")
    with log_file.lock_log("a"):
        assert refused(capsys, "--resume --out a") == "train.py: error: a is in use by another run"
    with log_file.lock_log("a", alone=False), log_file.lock_log("a", alone=False):  # many may look
        pass


@pytest.mark.parametrize("variables", [dict(RANK=1), dict(RANK="x", WORLD_SIZE=1), dict(RANK=0, WORLD_SIZE=2)], ids=str)
def test_variables_that_a_launcher_has_left_behind_are_one_line_before_anything_is_loaded(
    monkeypatch, capsys, variables
):
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(SystemExit):
        given("--evaluate base")
    said = capsys.readouterr().err
    assert ": expected " in said and "unset RANK" in said and said.count("\n") == 1
