"""Claims about a run beside or after another: what a resumed run keeps, and who holds a folder."""

import json
import os
import re
import shutil
from pathlib import Path

from conftest import ended, given, read_rows, refuses, trained, write_rows
from started_runs import BASE, refused

import data
from plumbing.arguments import option
from plumbing.log import lock_log
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
        assert re.search(f"--resume with {flags}.*: the run in a has ", refused(capsys, f"--resume --out a {flags}"))
    names = {option(name) for name, setting in FIELDS.items() if FREE <= setting.metadata["marks"]}
    assert names == {"--data", "--model", "--offload-optimizer", *re.findall("--[a-z-]+", MAY)}
    assert f"--resume: --lr 0.5 instead of {before['lr']}" in given(f"--resume --out a {MAY}").notes


def test_a_run_goes_on_though_its_folder_its_model_and_its_data_lie_elsewhere_if_they_are_the_same(capsys):
    shutil.copytree(BASE / "tiny", "model")
    examples = dict(data.examples("tiny", 40, seed=1, held_out=False))
    sizes = "--max-prompt-tokens 9 --max-new-tokens 8 --length-control none --slots 8 --token-budget 999"

    def write(answers):
        write_rows(
            "rows.jsonl", [{"prompt": text, "answer": answer, "task": "arithmetic"} for text, answer in answers.items()]
        )

    write(examples)
    tiny = TINY.replace(" --data tiny", "")
    trained(f"{tiny} --model model --data rows.jsonl {sizes} --eval-generations 1 --steps 1", "a")
    held_out = read_rows("a/completions.jsonl")[0]["prompt"]
    Path("there").mkdir()
    for name in ("a", "model", "rows.jsonl"):
        Path(name).rename(f"there/{name}")
    os.chdir("there")
    moved = "--resume --out a --steps 2 --model model --data rows.jsonl"
    assert not ended(moved)
    for text in (held_out, next(text for text in examples if text != held_out)):
        write(examples | {text: "0"})
        assert "expected the prompts and answers of the run in a" in refused(capsys, moved)
    config = json.loads(Path("model/config.json").read_text(encoding="utf-8"))
    Path("model/config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}), encoding="utf-8")
    Path("model").rename("other")
    assert "it has another config.json. " in refused(capsys, "--resume --out a --model other")


def test_a_second_run_beside_the_first_is_refused_as_in_use(capsys):
    lock_log("a").close()
    assert "--resume: no checkpoint in a: starts anew" in given("--resume --out a").notes  # its start left no row
    with lock_log("a"):
        assert refused(capsys, "--resume --out a") == "train.py: error: a is in use by another run"
        refuses("a is in use", lock_log, "a", error=OSError)
    with lock_log("a", alone=False), lock_log("a", alone=False):  # many may look
        pass
