"""Claims about plumbing/settings.py and build.py: which value is in force, what is made of it, what is refused."""

import io
import json
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from conftest import DATA, ROOT, given, launched, qwen3, write_rows
from safetensors.torch import save_file
from started_runs import refused
from torch.distributed.checkpoint.metadata import Metadata
from transformers import AutoConfig

from plumbing import build
from plumbing.arguments import as_given, steady_streams
from plumbing.settings import FIELDS, default_text

OWN = "--model M --data F"
PAPER = f"{OWN} --preset paper"
BASE = ROOT / "base"


# --- Which value wins ------------------------------------------------------------------------------------------------


def texts(args, names):
    """The values of these settings, as one would write them."""
    return " ".join(str(as_given(getattr(args, name))).replace(",", ";") for name in names.split())


def in_force(args, expected):
    """The settings that a text like "k 8, prompts 48" names, written likewise."""
    names = [pair.split()[0] for pair in expected.split(", ")]
    return ", ".join(f"{name} {texts(args, name)}" for name in names)


IN_FORCE = {
    "": "prompts 32, model base, think_end </think>, length_control interrupt, preset base",
    "--recipe qwen2.5": "prompts 80",  # A.16
    "--recipe scalerl --no-fp32-head --dtype bfloat16": "fp32_head no",
    "--no-positive-resampling off": "no_positive_resampling None",
    # A.3, and 12,288 tokens to think beside 2,048 to answer
    OWN: "preset few, lr 1e-06, prompts 32, k 8, steps 400, eval_prompts 400, max_new_tokens 2048",
    PAPER: "lr 5e-07, warmup 100, weight_decay 0.01, prompts 48, generations 16, preset paper, max_new_tokens 14336, "
    "max_prompt_tokens 2048, interrupt_at 10000 12000, eval_prompts 1000, eval_generations 16, eval_every 100",
    f"{PAPER} --off-policy ppo --k 8": "eval_every 104",  # 100 is no multiple of 8: generators do not get it
    "--data arithmetic:1 sorting:1": "model base/sorting",  # the base that knows them
    "--data tiny --lr 1e-3": "model base/tiny, steps 320, k 1, generations 8, lr 0.001, preset tiny",
    "--think-end none": "think_end None, length_control none",  # interruptions were not asked for
    "--think-end ####": "interrupt_phrase ####",
    # GSPO has thresholds of its own (conference Fig. 20), and the sample average unless another is asked for.
    "--loss gspo": "clips {'eps_low': 0.003; 'eps_high': 0.005}, aggregation sample",
    "--loss gspo --aggregation token --eps-low 0": "clips {'eps_low': 0.0; 'eps_high': 0.005}, aggregation token",
}


@pytest.mark.parametrize("flags", IN_FORCE)
def test_a_flag_beats_the_recipe_and_the_recipe_beats_the_presets(flags):
    assert in_force(given(flags), IN_FORCE[flags]) == IN_FORCE[flags]


DAPO = "{'eps_low': 0.2; 'eps_high': 0.26}"
# loss, aggregation, normalisation, zero-variance filter, No-Positive-Resampling, FP32 head, off-policy, k, P, clips
ALGORITHM = "loss aggregation normalisation zero_variance_filter no_positive_resampling fp32_head off_policy k prompts"
RECIPE = {
    "baseline": f"dapo sample prompt no None no ppo 8 48 {DAPO}",
    "scalerl": "cispo prompt batch yes 0.9 yes pipeline 8 48 {'eps_max': 5.0}",
    "deepseek": "grpo sample prompt no None no ppo 8 48 {'eps': 0.2}",
    "qwen2.5": f"dapo prompt prompt yes None no ppo 8 80 {DAPO}",
    "magistral": f"dapo prompt prompt yes None no pipeline 8 80 {DAPO}",
    "minimax": "cispo prompt prompt yes None yes ppo 8 80 {'eps_max': 5.0}",
}


@pytest.mark.parametrize("recipe", RECIPE)
def test_a16_every_recipe_sets_the_papers_algorithm_and_clips_for_any_model(recipe):
    args, plain = given(f"--recipe {recipe} {PAPER}"), given(PAPER)
    assert texts(args, f"{ALGORITHM} clips") == RECIPE[recipe]
    others = "lr warmup steps model generations weight_decay"  # not the algorithm
    assert texts(args, others) == texts(plain, others)


@pytest.mark.parametrize("preset, flags", {"base": "", "tiny": "--data tiny", "paper": PAPER, "few": OWN}.items())
def test_help_shows_the_defaults_that_are_in_force(preset, flags):
    args = given(flags)
    for name in FIELDS.keys() - {"recipe", "data"}:  # the data decide on the preset
        ours, *others = default_text(name)[2:-1].split("; ")
        shown = dict(other.split(": ", 1) for other in others).get(preset, ours)
        assert shown in ("", str(as_given(getattr(args, name)))), name


# --- What is refused -------------------------------------------------------------------------------------------------


def past_run(out, flags="", **changes):
    """A folder like that of an earlier run with these flags."""
    state = Path(out, "checkpoint-2", "state")
    state.mkdir(parents=True)
    (state / "run.json").write_text('{"version": 2, "stepped": true, "curriculum": {}}')
    (state / ".metadata").write_bytes(pickle.dumps(Metadata({}, storage_data={})))
    flags = vars(given(f"--out new {flags}")) | {"out": out}
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        (state.parent / name).write_text("{}")
    save_file({}, state.parent / "model.safetensors")
    write_rows(Path(out, "log.jsonl"), [{"kind": "config", "flags": flags | changes}])


def lines(name, count):
    """A JSONL file of sums."""
    write_rows(name, [{"prompt": f"1+{n}=", "answer": n + 1} for n in range(count)])


@pytest.fixture
def folders():
    """Files and folders of many kinds."""
    Path("file").touch()
    Path("sft/checkpoint-500").mkdir(parents=True)
    Path("old").mkdir()
    for name in ("log.jsonl", "evaluation.jsonl"):
        Path("old", name).write_text("{}\n", encoding="utf-8")
    AutoConfig.for_model("gpt2").save_pretrained("gpt2")
    qwen3("8B").save_pretrained("Qwen3-8B")
    lines("rows.jsonl", 10)
    past_run("run", "--interrupt-at 70 72")
    past_run("ahead", "--virtual exact --data tiny --k 1")  # with half-finished rollouts


REFUSED = json.loads((DATA / "refused_flags.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("words", REFUSED)  # variables of a launcher, and flags
def test_what_cannot_work_is_refused_in_one_line_before_anything_starts(monkeypatch, capsys, folders, words):
    variables = dict(word.split("=") for word in words.split() if word[0].isupper() and "=" in word)
    if variables:
        monkeypatch.setattr("plumbing.devices.end_launcher", lambda: None)
        launched(monkeypatch, **variables)
    before = sorted(Path().rglob("*"))
    flags = " ".join(word for word in words.split() if word.partition("=")[0] not in variables)
    assert REFUSED[words] in refused(capsys, flags.format(base=BASE))
    assert sorted(Path().rglob("*")) == before


def test_a_screen_that_lacks_characters_shows_escapes(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown := io.BytesIO(), encoding="cp1252"))
    steady_streams()
    print("奖励", flush=True)
    assert shown.getvalue().startswith(rb"\u5956\u52b1")


# --- Resumed and evaluated runs --------------------------------------------------------------------------------------


RUN = "--resume --out run"
EVALUATED = "--evaluate run/checkpoint-2"
TAKEN = {  # flags of a run, those of the next start -> what is in force
    (
        "--loss dapo --eps-high 0.3 --lr 0.5 --steps 7 --trainers 1 --eval-prompts 1000",
        f"{RUN} --steps 9",
    ): "loss dapo, "
    "clips {'eps_low': 0.2; 'eps_high': 0.3}, lr 0.5, steps 9, resume yes, protections , eval_prompts 1000",
    ("--virtual exact --data tiny --k 0", f"{RUN} --seed 0"): "checkpoint run/checkpoint-2",
    ("--data tiny", RUN): "prompts 16, recipe scalerl, recipe_given no, preset tiny",
    ("--virtual exact --k 0", f"{EVALUATED} --generator vllm"): "virtual None, k 8",
    ("--interrupt-at 70 72", f"{EVALUATED} --think-end none"): "length_control none",
}


@pytest.mark.parametrize("past, flags", TAKEN)
def test_a_run_gives_its_flags_unless_they_are_given_again(past, flags):
    past_run("run", past, protections=["no network"])  # what belongs to a machine is not taken over
    assert in_force(given(flags), TAKEN[past, flags]) == TAKEN[past, flags]


def test_a_log_of_commit_ea195a2_is_resumed_with_all_its_flags():
    past_run("run")
    shutil.copy(DATA / "earlier_config.jsonl", "run/log.jsonl")
    flags = json.loads(Path("run/log.jsonl").read_text(encoding="utf-8"))["flags"]
    args = vars(given(RUN))
    names = FIELDS.keys() & flags.keys() - {"out", "trainers", "resume"}
    assert {name: args[name] for name in (*names, "clips")} == {name: flags[name] for name in (*names, "clips")}


@pytest.mark.parametrize("log", [False, True])
def test_resuming_without_a_checkpoint_starts_anew_and_says_so(log):
    if log:
        past_run("run", "--lr 0.5")
        shutil.rmtree("run/checkpoint-2")
    args = given(RUN)
    assert not args.resume and args.lr == (0.5 if log else given().lr)  # else one log would hold two runs
    assert args.notes[:-1] == ["--resume: no checkpoint in run: starts anew"]


def test_data_of_a_run_are_found_from_another_folder(tmp_path, monkeypatch):
    lines("chat.jsonl", 9)
    past_run("run", f"--model {BASE} --data ./chat.jsonl")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    for flags in ("--resume --out ../run", "--evaluate ../run/checkpoint-2"):
        assert given(flags).data == [f"{tmp_path}/chat.jsonl"]


@pytest.mark.parametrize("way, think_budget", [("penalty", None), ("interrupt", (96, 104))])
def test_a10_length_control_interrupts_or_does_not(way, think_budget):
    """What is penalised: test_reward.py."""
    made = build.make_generator(given(f"--length-control {way}"), torch.device("cpu"), torch.float32)
    assert made.think_budget == think_budget
