"""Claims about settings.py, build.py and memory.py in plumbing/setup/: values, what is made of them or refused."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import Finished, given, launched, refuses, rows, write_rows
from test_train import BASE, ROOT, elsewhere, refused  # noqa: F401
from torch.distributed.checkpoint.metadata import Metadata
from transformers import AutoConfig

import data
import vllm_rollout
from plumbing import build, memory
from plumbing.build import make_generator, make_scorer, provenance
from plumbing.settings import FIELDS
from recipes import BASE as BASE_PRESET
from verify import sandbox

OWN = "--model M --data F"


def draft(flags):
    """The same, to be made to fit."""
    return SimpleNamespace(**vars(given(flags)))


# --- Which value wins ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags, expected", [
    ("", dict(prompts=32, model="base", think_end="</think>", length_control="interrupt")),  # the embedded task's
    ("--recipe qwen2.5", dict(prompts=80)),  # A.16
    ("--prompts 7 --recipe qwen2.5", dict(prompts=7)),
    ("--recipe scalerl --no-fp32-head --dtype bfloat16", dict(fp32_head=False)),
    ("--no-positive-resampling off", dict(no_positive_resampling=None)),
    (OWN, dict(lr=5e-7, warmup=100, weight_decay=0.01, prompts=48, generations=16)),  # A.3
    (OWN, dict(max_new_tokens=12288 + 2048, max_prompt_tokens=2048, interrupt_at=(10000, 12000))),
    (OWN, dict(eval_prompts=1000, eval_generations=16, eval_every=100)),
    (f"{OWN} --k 8", dict(eval_every=100)),
    (f"{OWN} --off-policy ppo --k 8", dict(eval_every=104)),  # 100 is no multiple of 8: generators do not get it
    ("--data arithmetic:1 sorting:1", dict(model="base/sorting")),  # the base that knows them
    ("--data tiny --lr 1e-3", dict(model="base/tiny", steps=320, k=1, generations=8, lr=1e-3)),
    (f"--data tiny --model {BASE}", dict(steps=BASE_PRESET["steps"])),
    ("--think-end none", dict(think_end=None, length_control="none")),  # interruptions were not asked for
    ("--think-end none --length-control penalty", dict(length_control="penalty")),
    ("--out=~/runs/a", dict(out="/home/me/runs/a")),
    # GSPO has thresholds of its own (conference Fig. 20), and the sample average unless another is asked for.
    ("--loss gspo", dict(clips={"eps_low": 3e-3, "eps_high": 5e-3}, aggregation="sample")),
    ("--loss gspo --aggregation token --eps-low 0", dict(clips={"eps_low": 0, "eps_high": 5e-3}, aggregation="token")),
    ("--loss gspo --recipe scalerl", dict(aggregation="prompt")),
])  # fmt: skip
def test_a_flag_beats_the_recipe_and_the_recipe_beats_the_presets(monkeypatch, flags, expected):
    monkeypatch.setenv("HOME", "/home/me")
    args = vars(given(flags))
    assert {name: args[name] for name in expected} == expected


def test_the_default_phrase_ends_in_any_mark():
    assert given(f"{OWN} --think-end ####").interrupt_phrase.endswith("final answer now. ####")


DAPO = {"eps_low": 0.2, "eps_high": 0.26}


@pytest.mark.parametrize("recipe, algorithm, clips", [
    # loss, aggregation, normalisation, zero-variance filter, No-Positive-Resampling, FP32 head, off-policy, k, P
    ("baseline", ("dapo", "sample", "prompt", False, None, False, "ppo", 8, 48), DAPO),
    ("scalerl", ("cispo", "prompt", "batch", True, 0.9, True, "pipeline", 8, 48), {"eps_max": 5.0}),
    ("deepseek", ("grpo", "sample", "prompt", False, None, False, "ppo", 8, 48), {"eps": 0.2}),
    ("qwen2.5", ("dapo", "prompt", "prompt", True, None, False, "ppo", 8, 80), DAPO),
    ("magistral", ("dapo", "prompt", "prompt", True, None, False, "pipeline", 8, 80), DAPO),
    ("minimax", ("cispo", "prompt", "prompt", True, None, True, "ppo", 8, 80), {"eps_max": 5.0}),
])  # fmt: skip
@pytest.mark.parametrize("own", ["", OWN])
def test_a16_every_recipe_sets_the_papers_algorithm_and_clips_for_any_model(recipe, algorithm, clips, own):
    args, plain = given(f"--recipe {recipe} {own}"), given(own)
    names = "loss aggregation normalisation zero_variance_filter no_positive_resampling fp32_head off_policy k prompts"
    assert tuple(getattr(args, name) for name in names.split()) == algorithm
    assert args.clips == clips
    for name in ("lr", "warmup", "steps", "model", "generations", "weight_decay"):  # not the algorithm
        assert getattr(args, name) == getattr(plain, name)


# --- What is refused -------------------------------------------------------------------------------------------------


def lines(name, count):
    """A JSONL file of sums."""
    write_rows(name, [{"prompt": f"1+{n}=", "answer": n + 1} for n in range(count)])


# 152 tokens are one of base's prompts and its answer: x 2 x 4 layers x 3 heads x 32 numbers x 4 bytes = 466,944 bytes
REFUSED = [pytest.param(row["flags"], row["said"], id=row["flags"]) for row in rows("refused_flags")]


@pytest.mark.parametrize("flags, said", REFUSED)
def test_what_cannot_work_is_refused_in_one_line_before_anything_starts(monkeypatch, capsys, flags, said):
    if "--slots" in flags:
        monkeypatch.setattr("plumbing.devices.available", lambda: 100_000_000)
    Path("file").touch()
    for folder in ("old", "sft/checkpoint-500"):
        Path(folder).mkdir(parents=True)
    for name in ("log.jsonl", "evaluation.jsonl"):
        Path("old", name).write_text("{}\n", encoding="utf-8")
    AutoConfig.for_model("gpt2").save_pretrained("gpt2")
    lines("rows.jsonl", 10)
    Path("bad.jsonl").write_text('{"prompt": "1+1=", "answer": 2}\n{"prompt": "1+2="}\n', encoding="utf-8")
    before = sorted(Path().rglob("*"))
    message = refused(capsys, flags.format(base=BASE))
    assert not [words for words in said if words not in message], message
    assert sorted(Path().rglob("*")) == before


def test_what_a_machine_lacks_is_said_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(vllm_rollout, "require_vllm", Mock(side_effect=ImportError("pip install it")))
    assert refused(capsys, "--generator vllm").endswith("error: pip install it")
    monkeypatch.setattr(sandbox, "protections", Mock(side_effect=RuntimeError("no sandbox works here")))
    row = {"answer": json.dumps({"input": ["1"], "output": ["1"]}), "task": "code"}
    write_rows("rows.jsonl", [{"prompt": f"{n}="} | row for n in range(30)])
    flags = f"--model {BASE} --data rows.jsonl --k 0 --prompts 3"
    assert refused(capsys, flags).endswith("error: no sandbox works here")
    launched(monkeypatch, WORLD_SIZE=2)
    assert "--virtual runs in a single process" in refused(capsys, "--virtual exact")


# --- Resumed and evaluated runs --------------------------------------------------------------------------------------


def past_run(out, flags="", **changes):
    """A folder like that of an earlier run with these flags."""
    state = Path(out, "checkpoint-2", "state")
    state.mkdir(parents=True)
    (state / "run.json").write_text('{"version": 2, "stepped": true, "curriculum": {}}')
    (state / ".metadata").write_bytes(pickle.dumps(Metadata({}, storage_data={})))
    flags = vars(given(f"--out new {flags}")) | {"out": out}
    write_rows(Path(out, "log.jsonl"), [{"kind": "config", "flags": flags | changes}])


@pytest.mark.parametrize("past, flags, expected", [
    ("--loss dapo --eps-high 0.3 --lr 0.5 --steps 7 --trainers 1 --eval-prompts 1000", "--resume --out run --steps 9",
     dict(loss="dapo", clips={"eps_low": 0.2, "eps_high": 0.3}, lr=0.5, steps=9, resume=True, protections=[])),
    ("--virtual exact --data tiny --k 0", "--resume --out run --seed 0", dict(checkpoint="run/checkpoint-2")),
    ("--interrupt-at 70 72", "--evaluate run/checkpoint-2", dict(length_control="interrupt", interrupt_at=[70, 72])),
    ("--virtual exact --k 0", "--evaluate run/checkpoint-2 --generator vllm", dict(virtual=None, k=8)),
    ("--interrupt-at 70 72", "--evaluate run/checkpoint-2 --think-end none", dict(length_control="none")),
    # An evaluation has no micro-batches, so --token-budget does not limit its lengths.
    ("", "--evaluate run/checkpoint-2 --max-new-tokens 4096", dict(max_new_tokens=4096)),
])  # fmt: skip
def test_a_run_gives_its_flags_unless_they_are_given_again(past, flags, expected):
    past_run("run", past, protections=["no network"])  # what belongs to a machine is not taken over
    args = vars(given(flags))
    assert {name: args[name] for name in expected} == expected


@pytest.mark.parametrize("past, flags, said", [
    ("--interrupt-at 70 72", "--interrupt-at 3 4", "--resume with --interrupt-at 3 4: the run in run has 70 72, and"),
    ("--virtual exact --data tiny --k 1", "", "--resume at step 2 of a run in virtual time"),  # half-finished rollouts
])  # fmt: skip
def test_what_would_not_be_the_same_run_is_not_resumed(capsys, past, flags, said):
    past_run("run", past)
    assert said in refused(capsys, f"--resume --out run {flags}")


def test_a_log_of_commit_ea195a2_is_resumed_with_all_its_flags():
    row = (ROOT / "tests" / "data" / "earlier_config.jsonl").read_text()
    flags = json.loads(row)["flags"]
    past_run("run")
    Path("run/log.jsonl").write_text(row, encoding="utf-8")
    args = given("--resume --out run")
    assert (args.aggregation, args.loss, args.clips) == ("token", "dapo", flags["clips"])
    assert all(vars(args)[name] == flags[name] for name in FIELDS.keys() & flags.keys() - {"out", "trainers", "resume"})


@pytest.mark.parametrize("log", [False, True])
def test_resuming_without_a_checkpoint_starts_anew_and_says_so(log):
    if log:
        past_run("run", "--lr 0.5")
        shutil.rmtree("run/checkpoint-2")
    args = given("--resume --out run")
    assert not args.resume and args.lr == (0.5 if log else given().lr)  # else one log would hold two runs
    assert args.notes == ["--resume: no checkpoint in run: starts anew"]


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


@pytest.mark.parametrize("flags, reward, think_budget", [
    ("--length-control penalty --length-max 4 --length-cache 2", 0.5, None),  # 1 + (4 - 3) / 2 - 1
    ("--length-control interrupt", 1.0, (96, 104)),
])  # fmt: skip
def test_a10_eq9_length_control_penalises_or_interrupts(flags, reward, think_budget):
    args = given(flags)
    scorer = make_scorer(args)
    scorer.submit(Finished("<think>1</think>1", ids=[0] * 3), data.Prompt(0, (1,), "", "1", "arithmetic"))
    assert [score.reward for score in scorer.finished()] == [reward]
    assert make_generator(args, torch.device("cpu"), torch.float32).think_budget == think_budget


def test_a_run_without_git_has_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance(data.Data(data.Prompts(None), data.Prompts(None)), 2)["commit"] is None


# --- Lengths and slots made to fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flags, positions, lengths, changes", [
    ("", 16384, [2048, 14336, (10000, 12000), 14000, 2000], ""),
    # 8,192 positions are half of the paper's 16,384.
    ("", 8192, [1024, 7168, (5000, 6000), 7000, 1000], "the model has 8192 positions: --max-prompt-tokens 1024 instead"
     " of 2048, --max-new-tokens 7168 instead of 14336, --interrupt-at 5000 6000 instead of 10000 12000"),
    # A prompt length that is given stays: 7,168 = 14,336 / 2 are left of 7,268.
    ("--max-prompt-tokens 100", 7268, [100, 7168, (5000, 6000), 7000, 1000], "the model has 7268 positions:"
     " --max-new-tokens 7168 instead of 14336, --interrupt-at 5000 6000 instead of 10000 12000"),
    # Default interruptions follow a given length that they would not fit, an eighth of the paper's.
    ("--max-new-tokens 1792", 8192, [2048, 1792, (1250, 1500), 1750, 250], "--max-new-tokens is 1792:"
     " --interrupt-at 1250 1500 instead of 10000 12000"),
    # Given ones never change; the rest has the positions that are left.
    ("--max-new-tokens 8000 --interrupt-at 70 90", 8192, [192, 8000, [70, 90], 14000, 2000],
     "the model has 8192 positions: --max-prompt-tokens 192 instead of 2048"),
    # 56 = 14,336 / 256 scales them to 39 and 46; but 46 + 19 tokens of phrase leave none for the answer: at most 36.
    ("--max-new-tokens 56", 8192, [2048, 56, (30, 36), 54, 7], "--max-new-tokens is 56:"
     " --interrupt-at 30 36 instead of 10000 12000"),
])  # fmt: skip
def test_lengths_that_are_not_given_shrink_to_the_models_positions_by_one_factor(flags, positions, lengths, changes):
    args = draft(f"{OWN} {flags}")
    said = memory.fit_lengths(args, positions, args.default_new, phrase=19)
    found = [args.max_prompt_tokens, args.max_new_tokens, args.interrupt_at, args.length_max, args.length_cache]
    assert found == lengths and said.removeprefix("Lengths made to fit, ") == changes


# The config of Qwen3-0.6B as published.
QWEN3 = AutoConfig.for_model(
    "qwen3",
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151936,
    tie_word_embeddings=True,
    max_position_embeddings=40960,
)


@pytest.mark.parametrize("flags, world, prompts", [
    (OWN, 8, 100),  # 2 trainers and 6 generators: 6 x 1,000 / 64 = 93.75, but 100 at least
    (f"{OWN} --eval-prompts 1000", 2, 1000),  # given
    (f"{OWN} --virtual exact --generators 16", 1, 250),
    ("--data F --evaluate M", 1, 1000),
])  # fmt: skip
def test_sec21_a_validation_has_the_papers_prompts_per_generator(monkeypatch, flags, world, prompts):
    launched(monkeypatch, WORLD_SIZE=world)
    args = draft(flags)
    assert bool(memory.fit_validation(args)) == (prompts < 1000) and args.eval_prompts == prompts


@pytest.mark.parametrize("trainers", [0, 1], ids=["a GPU of its own", "a GPU shared with the trainer"])
def test_the_papers_defaults_are_reduced_to_what_fits_qwen3_0_6b_into_80_gb(trainers):
    args = draft(f"{OWN} --dtype bfloat16")
    assert args.slots == 256  # x 16,384 positions x 2 x 28 layers x 8 heads x 128 numbers x 2 bytes = 481 GB
    said = memory.fit_slots(args, QWEN3, free=80_000_000_000, trainers=trainers, generators=1)
    slot, parameters = 16384 * 114_688, 596_049_920
    # A trainer needs 16 bytes per parameter, 9.5 GB, besides its micro-batch.
    needed = args.slots * slot + 2 * parameters + trainers * 16 * parameters
    assert 0.9 * 80e9 - needed < (3 + 3 * trainers) * slot  # left: less than one slot, prompts and the micro-batch
    assert needed < 0.9 * 80e9 and args.slots == (28 if trainers else 36)
    assert "256 slots x 16,384 positions x 114,688 bytes = 481.0 GB" in said and f"--slots {args.slots} " in said


def test_where_no_slot_fits_the_way_out_is_named():
    args = given(f"{OWN} --dtype bfloat16")
    refuses("0 would fit. Way out: ", memory.fit_slots, args, QWEN3, free=2_000_000_000, trainers=0, generators=1)


@pytest.fixture
def gpus(monkeypatch):
    """(world, visible, uuids, rank): as if so many processes had GPUs of 80 GB, of which each process sees some."""

    def pretend(world, visible, uuids="", rank=0, capability=(8, 0)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: visible > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 + device, 80_000_000_000))
        monkeypatch.setattr("plumbing.devices.uuids", lambda: [*uuids])
        launched(monkeypatch, WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, RANK=rank, LOCAL_RANK=rank)

    return pretend


@pytest.mark.parametrize("world, visible, uuids, rank, expected", [
    (2, 0, "", 0, (1, 2)),  # a trainer without a GPU decodes in evaluations too
    (4, 2, "abab", 0, (1, 1)),  # rank 0 is the trainer
    (8, 1, "abcdefgh", 5, (0, 1)),  # each process sees one GPU, another one, as under Slurm
    (4, 1, "aabb", 0, (1, 1)),  # a GPU for two
])  # fmt: skip
def test_ranks_on_one_gpu_or_without_a_gpu_share_its_memory(gpus, world, visible, uuids, rank, expected):
    gpus(world, visible, uuids, rank)
    found = memory.neighbours(given())
    assert (found["trainers"], found["generators"]) == expected
    assert found["free"] == 1000 + rank % visible if visible else found["free"] > 1e6


# Peaks that a meter of fake tensors found for Qwen3-8B, GB: 91.2 on two trainers, 69.4 on three, 58.5 on four.
QWEN3_8B = AutoConfig.for_model(
    "qwen3",
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151936,
    tie_word_embeddings=False,
)


BIG = f"{OWN} --dtype bfloat16 --max-new-tokens 14336"


@pytest.mark.parametrize("capability, dtype", [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")])
def test_a_gpu_without_bfloat16_trains_in_float32_and_says_so(gpus, capability, dtype):
    gpus(2, 2, capability=capability)
    args = given()
    assert args.dtype == dtype and any("no bfloat16" in note for note in args.notes) == (dtype == "float32")
    assert given("--dtype bfloat16").dtype == "bfloat16"


def test_the_heads_chunk_takes_no_more_memory_than_a_layer_does(gpus):
    gpus(8, 8)
    args, small = (
        given(BIG),
        given(f"{BIG} --token-budget 4096 --max-new-tokens 2048 --length-control none"),
    )  # a small micro-batch
    few = AutoConfig.for_model("llama", vocab_size=1000)
    cases = (args, QWEN3_8B), (args, QWEN3), (small, QWEN3_8B), (args, few)
    found = [memory.head_chunk(*case) for case in cases]
    gpus(8, 0)  # a CPU's results stay as they are
    assert [*found, memory.head_chunk(args, QWEN3_8B)] == [2560, 768, 256, 4096, 256]


@pytest.mark.parametrize("uuids, sharing", [("abcdefgh", 1), ("aabbccdd", 2)])
def test_vllm_leaves_room_for_the_processes_that_have_the_same_gpu(gpus, monkeypatch, uuids, sharing):
    gpus(8, 1, uuids)
    monkeypatch.setattr(vllm_rollout, "VLLMGenerator", lambda *_, **settings: settings["sharing"])
    assert build.make("vllm", "M", None, device=None, dtype=None) == sharing


@pytest.mark.parametrize("world, visible, uuids, trainers", [
    (8, 8, "", 3),
    (40, 40, "", 8),  # at least a fifth
    (8, 1, "abcdefgh", 3),  # as under Slurm
    (8, 1, "aabbccdd", 2),  # two on each: memory.fit_slots counts them
])  # fmt: skip
def test_the_default_number_of_trainers_is_the_smallest_that_fits(gpus, world, visible, uuids, trainers):
    gpus(world, visible, uuids)
    args = draft(BIG)
    said = memory.fit_trainers(args, QWEN3_8B)
    assert args.trainers == trainers and ("--trainers 3 instead of 2" in said) == (trainers == 3)


# --- The command line ------------------------------------------------------------------------------------------------


def test_a_wrong_flag_is_refused_without_slow_imports_and_without_prompts():
    probe = "import atexit, runpy, sys; atexit.register(lambda: print(*sys.modules)); import data; "
    probe += "data.examples = sys.exit; runpy.run_path(sys.argv[0], run_name='__main__')"
    code = f"import sys; sys.argv = ['{ROOT}/train.py', '--lr', '0']; sys.path.insert(0, '{ROOT}'); {probe}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    modules = set(done.stdout.splitlines()[-1].split())
    assert "plumbing.settings" in modules
    assert not modules & {"transformers", "matplotlib", "datasets", "torch.distributed.fsdp"}
