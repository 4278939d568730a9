"""Claims about plumbing/settings.py and build.py: which value is in force, what is made of it, what is refused."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from conftest import DATA, ROOT, given, launched, read_rows, write_rows
from runs import refused
from torch.distributed.checkpoint.metadata import Metadata
from transformers import AutoConfig

import data
import vllm_rollout
from loss import LOSSES
from plumbing import build
from plumbing.arguments import as_given, option
from plumbing.settings import FIELDS, default_text, read_settings
from recipes import RECIPES
from verify import sandbox

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
    "--out=~/runs/a": "out /home/me/runs/a",
    # GSPO has thresholds of its own (conference Fig. 20), and the sample average unless another is asked for.
    "--loss gspo": "clips {'eps_low': 0.003; 'eps_high': 0.005}, aggregation sample",
    "--loss gspo --aggregation token --eps-low 0": "clips {'eps_low': 0.0; 'eps_high': 0.005}, aggregation token",
}


@pytest.mark.parametrize("flags", IN_FORCE)
def test_a_flag_beats_the_recipe_and_the_recipe_beats_the_presets(monkeypatch, flags):
    monkeypatch.setenv("HOME", "/home/me")
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


ON = {"base": "", "tiny": "--data tiny", "paper": PAPER, "few": OWN}


@pytest.mark.parametrize("preset", ON)
def test_what_help_shows_as_a_default_is_what_typing_it_gives(preset, capsys):
    def typing(*words):
        args = vars(read_settings(["--virtual", "exact", *ON[preset].split(), *words])) | {"asked": None}
        return json.loads(json.dumps(args))

    with pytest.raises(SystemExit, match="0"):
        read_settings(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    plain, recipe = typing(), typing("--recipe", "scalerl")
    assert "[scalerl, with P and k of the preset]" in printed and plain["notes"][0].startswith(f"preset {preset} (")
    changed = {"recipe_given": True, "notes": None}
    taken = ("k",) if preset == "few" else ("k", "prompts")
    assert recipe | {"notes": None} == plain | changed | {name: RECIPES["scalerl"][name] for name in taken}
    cases = []  # what a flag is read with, the flag, its default, what --help says
    for name in FIELDS.keys() - {"recipe", "data", "preset"}:  # the data decide on the preset
        shown = default_text(name)
        ours, *others = shown[2:-1].split("; ")
        mode, value = FIELDS[name].metadata.get("read_with", ("virtual", "exact"))
        default = dict(other.split(": ", 1) for other in others).get(preset, ours)
        words = default.split() if isinstance(plain[name], list) else [default]
        cases.append(([option(mode), value], option(name), words, shown))
    for name, loss in LOSSES.items():
        for clip, declared in loss.clips.items():
            default = f"{declared.default:g}"
            cases.append((["--loss", name], option(clip), [default], f"{name}: {declared.help} [{default}]"))
    for mode, flag, words, shown in cases:
        assert shown in printed
        typed = {"yes": [flag], "no": [f"--no{flag[1:]}"], "": []}.get(" ".join(words), [flag, *words])
        assert typing(*mode, *typed) == typing(*mode), typed


# --- What is refused -------------------------------------------------------------------------------------------------


def past_run(out, flags="", **changes):
    """A folder like that of an earlier run with these flags."""
    state = Path(out, "checkpoint-2", "state")
    state.mkdir(parents=True)
    (state / "run.json").write_text('{"version": 2, "stepped": true, "curriculum": {}}')
    (state / ".metadata").write_bytes(pickle.dumps(Metadata({}, storage_data={})))
    flags = vars(given(f"--out new {flags}")) | {"out": out}
    write_rows(Path(out, "log.jsonl"), [{"kind": "config", "flags": flags | changes}])


def lines(name, count):
    """A JSONL file of sums."""
    write_rows(name, [{"prompt": f"1+{n}=", "answer": n + 1} for n in range(count)])


@pytest.fixture
def folders(models):
    """Files and folders of many kinds beside the models."""
    Path("file").touch()
    for folder in ("old", "sft/checkpoint-500"):
        Path(folder).mkdir(parents=True)
    for name in ("log.jsonl", "evaluation.jsonl"):
        Path("old", name).write_text("{}\n", encoding="utf-8")
    AutoConfig.for_model("gpt2").save_pretrained("gpt2")
    lines("rows.jsonl", 10)
    Path("bad.jsonl").write_text('{"prompt": "1+1=", "answer": 2}\n{"prompt": "1+2="}\n', encoding="utf-8")
    past_run("run", "--interrupt-at 70 72")
    past_run("ahead", "--virtual exact --data tiny --k 1")  # with half-finished rollouts


# 152 tokens are one of base's prompts and its answer: x 2 x 4 layers x 3 heads x 32 numbers x 4 bytes = 466,944 bytes
@pytest.mark.parametrize("row", read_rows(DATA / "refused_flags.jsonl"), ids=lambda row: row["flags"])
def test_what_cannot_work_is_refused_in_one_line_before_anything_starts(monkeypatch, capsys, folders, row):
    if "--slots 1000" in row["flags"]:
        monkeypatch.setattr("plumbing.devices.available", lambda: 100_000_000)
    before = sorted(Path().rglob("*"))
    message = refused(capsys, row["flags"].format(base=BASE))
    assert not [words for words in row["said"] if words not in message], message
    assert sorted(Path().rglob("*")) == before


def test_what_this_machine_cannot_do_is_said_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(vllm_rollout, "require_vllm", Mock(side_effect=ImportError("pip install it")))
    assert refused(capsys, "--generator vllm").endswith("error: pip install it")
    with monkeypatch.context() as patch:
        patch.setattr(
            build.PreTrainedConfig, "get_config_dict", Mock(side_effect=OSError("Couldn't connect.\nThree more lines"))
        )
        message = refused(capsys, "--model Qwen/Qwen9 --data tiny")
    assert "--model Qwen/Qwen9: expected a folder, or a model on the hub" in message and "Couldn't connect" in message
    monkeypatch.setattr(sandbox, "protections", Mock(side_effect=RuntimeError("no sandbox works here")))
    row = {"answer": json.dumps({"input": ["1"], "output": ["1"]}), "task": "code"}
    write_rows("rows.jsonl", [{"prompt": f"{n}="} | row for n in range(30)])
    flags = f"--model {BASE} --data rows.jsonl --k 0 --prompts 3 --out out"
    assert refused(capsys, flags).endswith("error: no sandbox works here")
    launched(monkeypatch, WORLD_SIZE=2)
    assert "--virtual runs in a single process" in refused(capsys, "--virtual exact")


def test_a_wrong_flag_is_refused_without_slow_imports_and_without_prompts():
    probe = "import atexit, runpy, sys; atexit.register(lambda: print(*sys.modules)); import data; "
    probe += "data.examples = sys.exit; runpy.run_path(sys.argv[0], run_name='__main__')"
    code = f"import sys; sys.argv = ['{ROOT}/train.py', '--lr', '0']; sys.path.insert(0, '{ROOT}'); {probe}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    modules = set(ended.stdout.splitlines()[-1].split())
    assert "plumbing.settings" in modules
    assert not modules & {"transformers", "matplotlib", "datasets", "torch.distributed.fsdp"}


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
    # An evaluation has no micro-batches, so --token-budget does not limit its lengths.
    ("", f"{EVALUATED} --max-new-tokens 4096"): "max_new_tokens 4096",
}


@pytest.mark.parametrize("past, flags", TAKEN)
def test_a_run_gives_its_flags_unless_they_are_given_again(past, flags):
    past_run("run", past, protections=["no network"])  # what belongs to a machine is not taken over
    assert in_force(given(flags), TAKEN[past, flags]) == TAKEN[past, flags]


def test_a_log_of_commit_ea195a2_is_resumed_with_all_its_flags():
    row = (DATA / "earlier_config.jsonl").read_text(encoding="utf-8")
    flags = json.loads(row)["flags"]
    assert "recipe_given" not in flags
    past_run("run")
    Path("run/log.jsonl").write_text(row, encoding="utf-8")
    args = given("--resume --out run")
    assert (args.aggregation, args.loss, args.clips, args.recipe_given) == ("token", "dapo", flags["clips"], False)
    assert all(vars(args)[name] == flags[name] for name in FIELDS.keys() & flags.keys() - {"out", "trainers", "resume"})


@pytest.mark.parametrize("log", [False, True])
def test_resuming_without_a_checkpoint_starts_anew_and_says_so(log):
    if log:
        past_run("run", "--lr 0.5")
        shutil.rmtree("run/checkpoint-2")
    args = given("--resume --out run")
    assert not args.resume and args.lr == (0.5 if log else given().lr)  # else one log would hold two runs
    assert args.notes[:-1] == ["--resume: no checkpoint in run: starts anew"]


def test_data_of_a_run_are_found_from_another_folder_however_they_were_written(tmp_path, monkeypatch):
    Path("here").mkdir()
    monkeypatch.chdir("here")
    lines("chat.jsonl", 9)
    args = given(f"--model {BASE} --data ./chat.jsonl:2 sorting")
    assert args.data == [f"{tmp_path}/here/chat.jsonl:2", "sorting"]
    path = f"{tmp_path}/here/chat.jsonl"
    past_run("run", f"--model {BASE} --data {path}")
    assert given("--resume --out run --data ./chat.jsonl").data == [path]  # the same, not refused
    monkeypatch.chdir("..")
    assert given("--resume --out here/run").data == [path]
    assert given("--evaluate here/run/checkpoint-2").data == [path]


# --- What the settings ask for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way, think_budget", [("penalty", None), ("interrupt", (96, 104))])
def test_a10_length_control_interrupts_or_does_not(way, think_budget):
    """What is penalised: test_reward.py."""
    made = build.make_generator(given(f"--length-control {way}"), torch.device("cpu"), torch.float32)
    assert made.think_budget == think_budget


def test_a_run_without_git_has_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert build.provenance(data.Data(data.Prompts(None), data.Prompts(None)), 2)["commit"] is None
