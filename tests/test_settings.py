"""Claims about settings.py, build.py and sizing.py in plumbing/setup/: values, what is made of them or refused."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import refuses, rows
from test_train import BASE, ROOT, elsewhere, refused  # noqa: F401
from transformers import AutoConfig

import data
import loss
import vllm_rollout
from plumbing.run import processes
from plumbing.setup import build, sizing
from plumbing.setup.build import make_generator, make_scorer, provenance
from plumbing.setup.settings import FIELDS, known_flags, read_settings
from plumbing.setup.typed import option
from recipes import EMBEDDED
from verify import sandbox

OWN = ["--model", "M", "--data", "F"]


# --- Which value wins ------------------------------------------------------------------------------------------------


def test_a_flag_beats_the_recipe_and_the_recipe_beats_the_presets():
    assert read_settings([]).prompts == 32  # the embedded task's preset
    assert read_settings(["--recipe", "qwen2.5"]).prompts == 80  # A.16
    assert read_settings(["--prompts", "7", "--recipe", "qwen2.5"]).prompts == 7
    assert read_settings(["--recipe", "scalerl", "--no-fp32-head", "--dtype", "bfloat16"]).fp32_head is False
    assert read_settings(["--no-positive-resampling", "off"]).no_positive_resampling is None


def test_a3_your_own_model_gets_the_papers_optimizer_and_lengths():
    args = read_settings(OWN)
    assert (args.lr, args.warmup, args.weight_decay, args.prompts * args.generations) == (5e-7, 100, 0.01, 768)
    assert (args.max_new_tokens, args.max_prompt_tokens, args.interrupt_at) == (12288 + 2048, 2048, (10000, 12000))
    assert (args.eval_prompts, args.eval_generations, args.eval_every) == (1000, 16, 100)


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
@pytest.mark.parametrize("own", [[], OWN])
def test_a16_every_recipe_sets_the_papers_algorithm_and_clips_for_any_model(recipe, algorithm, clips, own):
    args, plain = read_settings(["--recipe", recipe, *own]), read_settings(own)
    names = "loss aggregation normalisation zero_variance_filter no_positive_resampling fp32_head off_policy k prompts"
    assert tuple(getattr(args, name) for name in names.split()) == algorithm
    assert args.clips == clips
    for name in ("lr", "warmup", "steps", "model", "generations", "weight_decay"):  # not the algorithm
        assert getattr(args, name) == getattr(plain, name)


def test_gspo_has_thresholds_of_its_own_and_the_sample_average_unless_another_or_a_recipe_is_asked_for():
    args = read_settings(["--loss", "gspo"])
    assert (args.clips, args.aggregation) == ({"eps_low": 3e-3, "eps_high": 5e-3}, "sample")  # conference Fig. 20
    assert read_settings(["--loss", "gspo", "--eps-low", "0.01"]).clips == {"eps_low": 0.01, "eps_high": 5e-3}
    assert read_settings(["--loss", "gspo", "--aggregation", "token"]).aggregation == "token"
    assert read_settings(["--loss", "gspo", "--recipe", "scalerl"]).aggregation == "prompt"


def test_a_default_eval_every_is_rounded_up_to_a_version_that_the_generators_get():
    assert read_settings([*OWN, "--off-policy", "ppo", "--k", "8"]).eval_every == 104  # 100 is no multiple of 8
    assert read_settings([*OWN, "--k", "8"]).eval_every == 100


def test_the_embedded_tasks_choose_the_base_that_knows_them():
    assert read_settings([]).model == "base"
    assert read_settings(["--data", "arithmetic:1", "sorting:1"]).model == "base/sorting"
    tiny = read_settings(["--data", "tiny", "--lr", "1e-3"])  # with settings of its own, and a flag that wins
    assert (tiny.model, tiny.steps, tiny.generations, tiny.lr) == ("base/tiny", 160, 8, 1e-3)
    assert read_settings(["--data", "tiny", "--model", str(BASE)]).steps == EMBEDDED["steps"]


def test_without_a_mark_interruptions_that_were_not_asked_for_are_none_and_the_default_phrase_ends_in_any_mark():
    assert (read_settings([]).think_end, read_settings([]).length_control) == ("</think>", "interrupt")
    args = read_settings(["--think-end", "none"])
    assert (args.think_end, args.length_control) == (None, "none")
    assert read_settings(["--think-end", "none", "--length-control", "penalty"]).length_control == "penalty"
    assert read_settings([*OWN, "--think-end", "####"]).interrupt_phrase.endswith("final answer now. ####")


def test_out_has_its_home_folder_filled_in_also_behind_an_equals_sign(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_settings(["--out=~/runs/a"]).out == f"{tmp_path}/runs/a"


# --- What is refused -------------------------------------------------------------------------------------------------


def lines(name, count):
    """A JSONL file of sums."""
    Path(name).write_text("".join(f'{{"prompt": "1+{n}=", "answer": {n + 1}}}\n' for n in range(count)))


# 152 tokens are one of base's prompts and its answer: x 2 x 4 layers x 3 heads x 32 numbers x 4 bytes = 466,944 bytes
REFUSED = [pytest.param(row["flags"], row["said"], id=row["flags"]) for row in rows("refused_flags")]


@pytest.mark.parametrize("flags, said", REFUSED)
def test_what_cannot_work_is_refused_in_one_line_before_anything_starts(monkeypatch, capsys, flags, said):
    if "--slots" in flags:
        monkeypatch.setattr(sizing, "available", lambda: 100_000_000)
    Path("file").touch()
    for folder in ("old", "sft/checkpoint-500"):
        Path(folder).mkdir(parents=True)
    for name in ("log.jsonl", "evaluation.jsonl"):
        Path("old", name).write_text("{}\n")
    AutoConfig.for_model("gpt2").save_pretrained("gpt2")
    lines("rows.jsonl", 10)
    Path("bad.jsonl").write_text('{"prompt": "1+1=", "answer": 2}\n{"prompt": "1+2="}\n')
    before = sorted(Path().rglob("*"))
    message = refused(capsys, *flags.format(base=BASE).split())
    assert not [words for words in said if words not in message], message
    assert sorted(Path().rglob("*")) == before


def test_what_a_machine_lacks_is_said_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(vllm_rollout, "require_vllm", lambda *_: exec("raise ImportError('pip install it')"))
    assert refused(capsys, "--generator", "vllm").endswith("error: pip install it")
    monkeypatch.setattr(sandbox, "protections", lambda: exec("raise RuntimeError('no sandbox works here')"))
    row = {"answer": json.dumps({"input": ["1"], "output": ["1"]}), "task": "code"}
    Path("rows.jsonl").write_text("\n".join(json.dumps({"prompt": f"{n}="} | row) for n in range(30)))
    argv = f"--model {BASE} --data rows.jsonl --k 0 --prompts 3".split()
    assert refused(capsys, *argv).endswith("error: no sandbox works here")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "--virtual runs in a single process" in refused(capsys, "--virtual", "exact")


# --- Resumed and evaluated runs --------------------------------------------------------------------------------------


def past_run(out, *argv, checkpoint=True, **flags):
    """A folder like that of an earlier run with these flags."""
    args = read_settings(["--out", str(out), *argv])
    Path(out).mkdir()
    row = {"kind": "config", "flags": vars(args) | flags}
    Path(out, "log.jsonl").write_text(json.dumps(row) + "\n")
    for name in ("config.json", "state/.metadata", "state/run.json") if checkpoint else ():
        path = Path(out, "checkpoint-2", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"version": 2}')
    return Path(out)


def test_resuming_takes_the_flags_of_the_run_unless_given_again():
    flags = "--loss dapo --eps-high 0.3 --lr 0.5 --steps 7 --trainers 1 --eval-prompts 1000"
    past_run("run", *flags.split(), protections=["no network"])
    args = read_settings("--resume --out run --steps 9".split())
    assert (args.loss, args.clips, args.lr) == ("dapo", {"eps_low": 0.2, "eps_high": 0.3}, 0.5)
    assert args.steps == 9 and args.resume and args.protections == []  # what belongs to a machine is not resumed


def test_a_log_of_an_earlier_version_is_resumed_with_todays_names_and_without_flags_that_are_gone():
    row = (ROOT / "tests" / "data" / "earlier_config.jsonl").read_text()
    flags = json.loads(row)["flags"]
    assert flags["average"] == "token" and "default_new" in flags and "fitted" in flags
    past_run("run")
    Path("run/log.jsonl").write_text(row)
    args = read_settings("--resume --out run".split())
    assert (args.aggregation, args.loss, args.clips) == ("token", "dapo", flags["clips"])
    assert all(vars(args)[name] == flags[name] for name in FIELDS.keys() & flags.keys() - {"out", "trainers", "resume"})


def test_resuming_with_other_batches_and_a_virtual_run_with_half_finished_rollouts_is_refused(capsys):
    past_run("run", "--seed", "3")
    assert "--resume with --seed 4: the run in run has 3" in refused(capsys, *"--resume --out run --seed 4".split())
    past_run("one", *"--virtual exact --data tiny --k 1".split())
    assert "--resume at step 2 of a run in virtual time" in refused(capsys, "--resume", "--out", "one")
    past_run("zero", *"--virtual exact --data tiny --k 0".split())
    assert read_settings("--resume --out zero --seed 0".split()).checkpoint == "zero/checkpoint-2"


@pytest.mark.parametrize("log", [False, True])
def test_resuming_without_a_checkpoint_starts_anew_and_says_so(log):
    if log:
        past_run("run", "--lr", "0.5", checkpoint=False)
    args = read_settings("--resume --out run".split())
    assert not args.resume and args.lr == read_settings([]).lr  # flags too are those of a first start
    assert args.notes == ["--resume: no checkpoint in run: starts anew"]


def test_a_checkpoint_of_a_run_with_interruptions_is_evaluated_without_a_mark():
    past_run("run", "--interrupt-at", "70", "72")
    args = read_settings("--evaluate run/checkpoint-2 --think-end none".split())
    assert (args.think_end, args.length_control) == (None, "none")
    again = read_settings("--evaluate run/checkpoint-2".split())
    assert (again.length_control, again.interrupt_at) == ("interrupt", [70, 72])
    # An evaluation has no micro-batches, so --token-budget does not limit its lengths.
    assert read_settings("--evaluate run/checkpoint-2 --max-new-tokens 4096".split()).max_new_tokens == 4096


def test_data_of_a_run_are_found_from_another_folder_however_they_were_written(tmp_path, monkeypatch):
    Path("here").mkdir()
    monkeypatch.chdir("here")
    lines("chat.jsonl", 9)
    args = read_settings(["--model", str(BASE), "--data", "./chat.jsonl:2", "sorting"])
    assert args.data == [f"{tmp_path}/here/chat.jsonl:2", "sorting"]
    path = f"{tmp_path}/here/chat.jsonl"
    found = past_run("run", "--model", str(BASE), "--data", path).absolute()
    assert read_settings("--resume --out run --data ./chat.jsonl".split()).data == [path]  # the same, not refused
    monkeypatch.chdir("..")
    assert read_settings(["--resume", "--out", str(found)]).data == [path]
    assert read_settings(["--evaluate", str(found / "checkpoint-2")]).data == [path]


# --- What the settings ask for ---------------------------------------------------------------------------------------


def test_eq9_the_penalty_reaches_the_scorer_only_with_length_control_penalty():
    prompt = data.Prompt(0, (1,), "", "1", "arithmetic")
    for control, expected in (("penalty", 0.5), ("interrupt", 1.0)):
        lengths = ["--length-max", "4", "--length-cache", "2"] if control == "penalty" else []
        scorer = make_scorer(read_settings(["--length-control", control, *lengths]))
        scorer.submit(SimpleNamespace(text="<think>1</think>1", ids=[0] * 3, truncated=False), prompt)
        assert [score.reward for score in scorer.finished()] == [expected]  # 1 + (4 - 3) / 2 - 1


def test_a10_only_length_control_interrupt_interrupts():
    for control, expected in (("interrupt", (96, 104)), ("penalty", None)):
        args = read_settings(["--length-control", control])
        assert make_generator(args, torch.device("cpu"), torch.float32).think_budget == expected


def test_a_run_without_git_has_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance(data.Data([], [], []), 2)["commit"] is None


# --- Lengths and slots made to fit -----------------------------------------------------------------------------------


def sized(*argv, positions, phrase=19):
    """(max_prompt_tokens, max_new_tokens, interrupt_at, length_max, length_cache), and what is said about them."""
    args = read_settings([*OWN, *argv])
    said = sizing.fit_lengths(args, positions, args.default_new, phrase)
    return [args.max_prompt_tokens, args.max_new_tokens, args.interrupt_at, args.length_max, args.length_cache], said


def test_lengths_that_are_not_given_shrink_to_the_models_positions_by_one_factor():
    assert sized(positions=16384) == ([2048, 14336, (10000, 12000), 14000, 2000], "")
    # 8,192 positions are half of the paper's 16,384.
    lengths, said = sized(positions=8192)
    assert lengths == [1024, 7168, (5000, 6000), 7000, 1000]
    assert "8192 positions" in said and "--interrupt-at 5000 6000 instead of 10000 12000" in said
    # A prompt length that is given stays: 7,168 = 14,336 / 2 are left of 7,268.
    lengths, said = sized("--max-prompt-tokens", "100", positions=7268)
    assert lengths == [100, 7168, (5000, 6000), 7000, 1000] and "--max-prompt-tokens" not in said


def test_default_interruptions_follow_a_given_length_that_they_would_not_fit():
    lengths, said = sized("--max-new-tokens", "1792", positions=8192)  # an eighth of the paper's
    assert lengths[:3] == [2048, 1792, (1250, 1500)]
    assert said == "Lengths made to fit, --max-new-tokens is 1792: --interrupt-at 1250 1500 instead of 10000 12000"
    lengths, _ = sized("--max-new-tokens", "8000", "--interrupt-at", "70", "90", positions=8192)
    assert lengths[:3] == [192, 8000, [70, 90]]  # given ones never change; the rest has the positions that are left
    # 56 = 14,336 / 256 scales them to 39 and 46; but 46 + 19 tokens of phrase leave none for the answer: at most 36.
    assert sized("--max-new-tokens", "56", positions=8192)[0][2] == (30, 36)


# The config of Qwen3-0.6B as published.
QWEN3 = AutoConfig.for_model(
    "qwen3",
    **dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, vocab_size=151936, tie_word_embeddings=True),
    **dict(num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960),
)


@pytest.mark.parametrize("argv, world, prompts", [
    ("", 8, 100),  # 2 trainers and 6 generators: 6 x 1,000 / 64 = 93.75, but 100 at least
    ("--eval-prompts 1000", 2, 1000),  # given
    ("--virtual exact --generators 16", 1, 250),
    ("--evaluate M", 1, 1000),
])  # fmt: skip
def test_sec21_a_validation_has_the_papers_prompts_per_generator_unless_they_are_given(
    monkeypatch, argv, world, prompts
):
    monkeypatch.setenv("WORLD_SIZE", str(world))
    args = read_settings([*(OWN[2 * ("--evaluate" in argv) :]), *argv.split()])
    assert bool(sizing.fit_validation(args)) == (prompts < 1000) and args.eval_prompts == prompts


@pytest.mark.parametrize("trainers", [0, 1], ids=["a GPU of its own", "a GPU shared with the trainer"])
def test_the_papers_defaults_are_reduced_to_what_fits_qwen3_0_6b_into_80_gb(trainers):
    args = read_settings([*OWN, "--dtype", "bfloat16"])
    assert args.slots == 256  # x 16,384 positions x 2 x 28 layers x 8 heads x 128 numbers x 2 bytes = 481 GB
    said = sizing.fit_slots(args, QWEN3, free=80_000_000_000, trainers=trainers, generators=1)
    slot, parameters = 16384 * 114_688, 596_049_920
    # A trainer needs 16 bytes per parameter, 9.5 GB, besides its micro-batch.
    needed = args.slots * slot + 2 * parameters + trainers * 16 * parameters
    assert 0.9 * 80e9 - needed < (3 + 3 * trainers) * slot  # left: less than one slot, prompts and the micro-batch
    assert needed < 0.9 * 80e9 and args.slots == (28 if trainers else 36)
    assert "256 slots x 16,384 positions x 114,688 bytes = 481.0 GB" in said and f"--slots {args.slots} " in said


def test_where_no_slot_fits_the_way_out_is_named():
    args = read_settings([*OWN, "--dtype", "bfloat16"])
    refuses("0 would fit. Lower --slots", sizing.fit_slots, args, QWEN3, free=2_000_000_000, trainers=0, generators=1)


@pytest.mark.parametrize(
    "gpus, rank, world, expected",
    [
        (0, 0, 2, (1, 2)),  # a trainer without a GPU decodes in evaluations too
        (2, 0, 4, (1, 1)),  # rank 0 is the trainer
        ("abcdefgh", 5, 8, (0, 1)),  # each process sees one GPU, another one, as under Slurm
        ("aabb", 0, 4, (1, 1)),  # a GPU for two
    ],
)
def test_ranks_on_one_gpu_or_without_a_gpu_on_one_machine_share_its_memory(monkeypatch, gpus, rank, world, expected):
    seen = [*gpus] if isinstance(gpus, str) else [str(rank % gpus) for rank in range(world)] if gpus else []
    gpus = 1 if isinstance(gpus, str) else gpus
    monkeypatch.setattr(processes, "uuids", lambda: seen)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 + device, 2000))
    for name, value in {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "RANK": rank, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, str(value))
    found = sizing.neighbours(read_settings([]))
    assert (found["trainers"], found["generators"]) == expected
    assert found["free"] == 1000 + rank % gpus if gpus else found["free"] > 1e6


def on_gpus(monkeypatch, count):
    """Pretend that each of `count` processes has a GPU of 80 GB; returns the settings of rank 0."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 80_000_000_000))  # free memory is not read
    monkeypatch.setenv("WORLD_SIZE", str(count))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(count))
    return read_settings([*OWN, "--dtype", "bfloat16", "--max-new-tokens", "14336"])


# Peaks that tests/shadow/meter.py found for Qwen3-8B, GB: 91.2 on two trainers, 69.4 on three, 58.5 on four.
QWEN3_8B = AutoConfig.for_model(
    "qwen3",
    **dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, vocab_size=151936),
    **dict(num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False),
)


def test_the_heads_chunk_takes_no_more_memory_than_a_layer_does(monkeypatch):
    args = on_gpus(monkeypatch, 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert sizing.head_chunk(args, QWEN3_8B) == 2560 and sizing.head_chunk(args, QWEN3) == 768
    args.token_budget = 4096  # a small micro-batch
    assert sizing.head_chunk(args, QWEN3_8B) == 256
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sizing.head_chunk(on_gpus(monkeypatch, 8), QWEN3_8B) == 256  # a CPU's results stay as they are


@pytest.mark.parametrize("uuids, sharing", [("abcdefgh", 1), ("aabbccdd", 2)])
def test_vllm_leaves_room_for_the_processes_that_have_the_same_gpu(monkeypatch, uuids, sharing):
    on_gpus(monkeypatch, 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # each process sees one
    monkeypatch.setattr(processes, "uuids", lambda: [*uuids])
    monkeypatch.setattr(vllm_rollout, "VLLMGenerator", lambda *_, **settings: settings["sharing"])
    assert build.make("vllm", "M", None, device=None, dtype=None) == sharing


def test_a_trainer_is_checked_where_each_process_sees_only_its_own_gpu(monkeypatch):
    args = on_gpus(monkeypatch, 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # as under Slurm
    monkeypatch.setattr(processes, "uuids", lambda: [*"abcdefgh"])
    assert "--trainers 3 instead of 2" in sizing.fit_trainers(args, QWEN3_8B)
    monkeypatch.setattr(processes, "uuids", lambda: [*"aabbccdd"])  # two on each: sizing.fit_slots counts them
    assert sizing.fit_trainers(args, QWEN3_8B) == ""


def test_the_default_number_of_trainers_is_the_smallest_that_fits_at_least_a_fifth(monkeypatch):
    args = on_gpus(monkeypatch, 8)
    assert args.trainers == 2 and "--trainers 3 instead of 2" in sizing.fit_trainers(args, QWEN3_8B)
    assert args.trainers == 3 and sizing.fit_trainers(args, QWEN3_8B) == ""
    args = on_gpus(monkeypatch, 40)
    assert sizing.fit_trainers(args, QWEN3_8B) == "" and args.trainers == 8


@pytest.mark.parametrize(
    "gpus, trainers, way_out",
    [(8, 2, "--trainers 3, a smaller --token-budget"), (3, None, "4 GPUs, a smaller --token-budget")],
)
def test_a_model_that_cannot_be_trained_on_these_gpus_is_refused_with_what_would_fit(
    monkeypatch, gpus, trainers, way_out
):
    args = on_gpus(monkeypatch, gpus)
    if trainers:
        args.asked = {*args.asked, "trainers"}
    refuses(f"8.19B parameters.*Way out: {way_out}", sizing.fit_trainers, args, QWEN3_8B)


# --- The command line ------------------------------------------------------------------------------------------------


def test_every_flag_stands_once_in_the_help_with_words_of_its_own():
    clips = {name: clip for known in loss.LOSSES.values() for name, clip in known.clips.items()}
    assert all([*(one.metadata["help"] for one in FIELDS.values()), *(clip.help for clip in clips.values())])
    starts = [line.split()[0].rstrip(",") for line in known_flags().format_help().splitlines() if line[:3] == "  -"]
    assert Counter(starts) == Counter(["-h", *map(option, [*FIELDS, *clips])])


def test_a_wrong_flag_is_refused_without_slow_imports_and_without_prompts():
    probe = "import atexit, runpy, sys; atexit.register(lambda: print(*sys.modules)); import data; "
    probe += "data.examples = sys.exit; runpy.run_path(sys.argv[0], run_name='__main__')"
    code = f"import sys; sys.argv = ['{ROOT}/train.py', '--lr', '0']; sys.path.insert(0, '{ROOT}'); {probe}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    modules = set(done.stdout.splitlines()[-1].split())
    assert "plumbing.setup.settings" in modules
    assert not modules & {"transformers", "matplotlib", "datasets", "torch.distributed.fsdp"}
