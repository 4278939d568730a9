"""The experiments as tables of settings, {table: {setting: flags of train.py}}; the first setting is the reference.

    exact-1, recipes  the embedded task, every token at most one optimizer step old (Fig. 2, 5a, 6, 7 and 14). Recipes
                      with PPO-off-policy have --k 2: staleness 0 and 1
    exact-8           the same, every token eight steps old, where clips act (Fig. 5a, 7)
    balanced          PipelineRL-8 and PPO-off-policy-8 where generators and trainer are about equally fast (Fig. 4a)
    grid-kK-xR        `tiny`: the losses at staleness K and at R times the preset's learning rate
    variants-LOSS-xR  `tiny`, k = 8: one setting of a loss changed (Sec. 3.2, A.9, A.17)
    ceilings          `tiny`, k = 8: the losses for 400 steps
    efficiency-COSTS-kK   `tiny`: PipelineRL-K and PPO-off-policy-K in virtual device-hours (Fig. 4a)
    head-kK           `tiny` in bfloat16 with and without the FP32 head (Fig. 5b)
    axis-batch        `tiny`: prompts x generations, 40,960 completions in all (Fig. 10, 17)
    axis-length       `tiny`: the token budget of a completion (Fig. 9)
    axis-model        `tiny`: policies of 11,000 to 2.5 million parameters, one for each seed, made by sft.py's steps
    axis-mixture      sums of 4 or 5 and of 6 or 7 operands, two sources that train together (Fig. 11)
    axis-embedded     the embedded task: prompts a step, 69,120 completions in all (Fig. 10)

All losses of the grid take the prompt average but GSPO, whose objective is GSPO's only under the sample average. "no
ratio" is REINFORCE, "uncapped ratio" CISPO without its cap. {seed} in a flag stands for the seed of the run.

Run by compare.py. Test: pytest tests/test_lab.py
"""

import gzip
import json
import re
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from unittest.mock import patch

import data
from lab import statistics

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "results" / "lab"
MADE = Path("runs/lab/made")  # policies and prompts that are not in the repository
TINY = "--data tiny --dtype float32"
# Fewer, larger decode steps and half the completions of an evaluation save a fifth of the CPU seconds: its binomial
# error rises from 0.011 to 0.015.
WIDE = "--slots 1024 --eval-generations 4"
LOSSES = {
    "CISPO": "--loss cispo --aggregation prompt",
    "DAPO": "--loss dapo --aggregation prompt",
    "GSPO": "--loss gspo --aggregation sample",
    "GRPO": "--loss grpo --aggregation prompt",
    "no ratio": "--loss lab/reinforce.py:no_ratio --aggregation prompt",
    "uncapped ratio": "--loss cispo --aggregation prompt --eps-max inf",
}
STALENESS = (0, 1, 2, 4, 8, 16, 32)
LEARNING_RATE = 3e-4  # of `tiny`
RATES = (1, 2, 4)  # times LEARNING_RATE
HALF = {0.5: ("CISPO", "DAPO", "GRPO")}  # a lower rate, where x1 was the best of RATES: at k = 8, 16, 32
VARIANTS = {
    "CISPO": {
        "sample average": "--aggregation sample",
        "token average": "--aggregation token",
        "prompt normalisation": "--normalisation prompt",
        "no normalisation": "--normalisation none",
        "no filter": "--no-zero-variance-filter",
        "uniform resampling": "--no-positive-resampling off",
        "eps_max 4": "--eps-max 4",
        "eps_max 8": "--eps-max 8",
    },
    "DAPO": {"eps_high 0.2": "--eps-high 0.2", "eps_high 0.4": "--eps-high 0.4"},
    "GSPO": {"clips of GSPO's paper": "--eps-low 3e-4 --eps-high 4e-4"},
}
ON_BASE = {
    "baseline": "--recipe baseline",
    "deepseek": "--recipe deepseek",
    "qwen2.5": "--recipe qwen2.5",
    "magistral": "--recipe magistral",
    "minimax": "--recipe minimax",
    "scalerl": "--recipe scalerl",
    "pipeline": "--recipe baseline --off-policy pipeline",
}
FORWARD = {  # a change of `pipeline`: the baseline under PipelineRL
    "cispo": "--loss cispo",
    "gspo": "--loss gspo",
    "prompt-average": "--aggregation prompt",
    "token-average": "--aggregation token",
    "zero-variance-filter": "--zero-variance-filter",
    "no-positive-resampling": "--no-positive-resampling 0.9",
    "batch-normalisation": "--normalisation batch",
    "no-normalisation": "--normalisation none",
}
LEFT_OUT = {  # a change of `scalerl` (Sec. 4, leave one out)
    "loo-dapo": "--loss dapo",
    "loo-no-filter": "--no-zero-variance-filter",
    "loo-sample-average": "--aggregation sample",
    "loo-prompt-normalisation": "--normalisation prompt",
    "loo-uniform-resampling": "--no-positive-resampling off",
    "loo-length-penalty": "--length-control penalty",
    "loo-ppo": "--off-policy ppo",
    "scalerl-bf16": "--dtype bfloat16",
    "loo-no-fp32-head": "--dtype bfloat16 --no-fp32-head",
}
PPO = ("baseline", "deepseek", "qwen2.5", "minimax", "loo-ppo")
# What a run of a table takes from no flag and no recipe, as the kept tables were run: the presets of then.
ARITHMETIC = (
    "--lr 2e-4 --warmup 8 --steps 120 --prompts 32 --generations 16 --max-new-tokens 112 --max-prompt-tokens 40 "
    "--slots 128 --length-control interrupt --interrupt-at 96 104 --interrupt-phrase </think> --length-max 112 "
    "--length-cache 16 --eval-every 8 --eval-prompts 256 --eval-generations 8 --token-budget 2048 "
    "--no-activation-checkpointing"
)
OF_TINY = (
    "--lr 3e-4 --warmup 8 --steps 160 --prompts 16 --generations 8 --max-new-tokens 12 --max-prompt-tokens 8 "
    "--slots 128 --length-control interrupt --interrupt-at 8 9 --interrupt-phrase </think> --length-max 112 "
    "--length-cache 16 --eval-every 16 --eval-prompts 128 --eval-generations 4 --token-budget 4096 "
    "--no-activation-checkpointing"
)
SOURCES = {"shorter": (4, 5), "longer": (6, 7)}  # operands of the sums
ROWS = 4000  # of a source: a tenth of them are held out


# --- The embedded task -----------------------------------------------------------------------------------------------


def embedded(name):
    """Flags of a setting, without those of its regime."""
    own = ON_BASE | {one: f"{ON_BASE['pipeline']} {more}" for one, more in FORWARD.items()}
    own |= {one: f"{ON_BASE['scalerl']} {more}" for one, more in LEFT_OUT.items()}
    return f"--prompts 32 --dtype float32 {own[name]}"


def exact(k, names):
    """A table at exact staleness k (PPO-off-policy: k at most)."""
    flags = f"--steps 90 --eval-every 6 {WIDE}"
    steps = {name: k + 1 if name in PPO and k == 1 else k for name in names}
    return {name: f"{embedded(name)} --virtual exact --k {steps[name]} {flags}" for name in names}


def on_embedded():
    left_out = [name for name in LEFT_OUT if name not in PPO]
    yield "exact-1", exact(1, ["pipeline", "scalerl", "magistral", *FORWARD, *left_out])
    yield "recipes", exact(1, ["scalerl", "magistral", *PPO])
    yield "exact-8", exact(8, ["scalerl", "loo-dapo", "pipeline", "cispo", "gspo"])
    flags = "--virtual balanced --k 8 --steps 96 --eval-every 8"
    yield "balanced", {name: f"{embedded(name)} {flags}" for name in ("pipeline", "baseline")}
    per_step = {}
    for prompts in (16, 48, 144):
        steps = 69_120 // (16 * prompts)
        flags = f"--virtual exact --k 1 --steps {steps} --eval-every {steps // 15} --prompts {prompts}"
        per_step[f"{prompts} prompts"] = f"--recipe scalerl --dtype float32 {flags} --eval-prompts 256 {WIDE}"
    yield "axis-embedded", per_step


# --- The task tiny ---------------------------------------------------------------------------------------------------


def tiny(flags, k=8, rate=1, steps="--steps 160 --eval-every 8"):
    """Flags of a run on `tiny` at exact staleness k and `rate` times the preset's learning rate."""
    return f"{TINY} --virtual exact --k {k} --lr {rate * LEARNING_RATE:.6g} {flags} {steps}"


def on_tiny():
    for k, rate in product(STALENESS, RATES):
        yield f"grid-k{k}-x{rate}", {loss: tiny(own, k, rate) for loss, own in LOSSES.items()}
    for (rate, losses), k in product(HALF.items(), (8, 16, 32)):
        yield f"grid-k{k}-x{rate}", {loss: tiny(LOSSES[loss], k, rate) for loss in losses}
    for (loss, variants), rate in product(VARIANTS.items(), RATES[:2]):
        own = {loss: LOSSES[loss]} | {name: f"{LOSSES[loss]} {more}" for name, more in variants.items()}
        yield f"variants-{loss.lower()}-x{rate}", {name: tiny(flags, 8, rate) for name, flags in own.items()}
    yield "ceilings", {loss: tiny(own, steps="--steps 400 --eval-every 16") for loss, own in LOSSES.items()}
    for costs, k in product(("balanced", "generators", "trainers"), (1, 4, 8, 16)):
        flags = f"{TINY} --virtual {costs} --slots 24 --k {k} --steps 160 --eval-every 16"
        setups = {"PipelineRL": "pipeline", "PPO-off-policy": "ppo"}
        yield f"efficiency-{costs}-k{k}", {name: f"{flags} --off-policy {rule}" for name, rule in setups.items()}
    for k in (0, 8):
        flags = f"--data tiny --dtype bfloat16 --loss cispo --virtual exact --k {k} --steps 160 --eval-every 8"
        yield f"head-k{k}", {"FP32": f"{flags} --fp32-head", "bf16": f"{flags} --no-fp32-head"}


# --- Axes on tiny ----------------------------------------------------------------------------------------------------


def axes():
    ask = "--eval-prompts 512 --eval-generations 1"
    batch = {}
    for prompts, generations in sorted(product((4, 8, 16, 32, 64), (4, 8, 16, 32)), key=prod):
        if 32 <= prompts * generations <= 1024:
            steps = 40_960 // (prompts * generations)
            flags = f"--prompts {prompts} --generations {generations} --steps {steps} --eval-every {steps // 20}"
            batch[f"{prompts} x {generations}"] = f"{TINY} --virtual exact --k 1 {flags} {ask}"
    yield "axis-batch", batch
    usual = "--dtype float32 --virtual exact --k 1 --steps 160 --eval-every 8"
    budgets = {f"{n} tokens": f"--max-new-tokens {n} --interrupt-at {n - 4} {n - 3}" for n in (6, 7, 8, 10, 12)}
    yield "axis-length", {name: f"--data tiny {usual} {ask} {flags}" for name, flags in budgets.items()}
    like = (
        "--lr 0.0003 --warmup 8 --prompts 16 --generations 8 --max-new-tokens 12 --max-prompt-tokens 8 --slots 128 "
        "--token-budget 4096 --interrupt-at 8 9 --interrupt-phrase </think>"
    )
    models = {n: f"--data tiny --model {MADE}/tiny-{n}-seed{{seed}} {like}" for n in (24, 48, 96, 192, 384)}
    yield "axis-model", {f"hidden size {n}": f"{flags} {usual} {ask}" for n, flags in models.items()}
    mixtures = {}
    for share, pair in {0: (1, 0), 25: (3, 1), 50: (1, 1), 75: (1, 3), 100: (0, 1)}.items():
        named = [f"{MADE}/{name}.jsonl:{weight}:tiny" for name, weight in zip(SOURCES, pair) if weight]
        flags = f"--model base/tiny --data {' '.join(named)} {usual}"
        mixtures[f"{share}% longer"] = f"{flags} --eval-prompts 256 --eval-generations 2"
    yield "axis-mixture", mixtures


def make_inputs(argv):
    """Make the policies and prompts that a command line names and that are not there."""
    for word in argv:
        path = Path(word.partition(":")[0])
        if path.parent == MADE and not path.exists():
            MADE.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            if path.suffix == ".jsonl":
                write_prompts(part, SOURCES[path.stem])
            else:
                _, hidden, seed = path.name.split("-")
                make_policy(part, int(hidden), int(seed.removeprefix("seed")))
            part.rename(path)  # whole or not at all


def write_prompts(path, lengths):
    """Sums of so many operands, each number of them equally likely."""
    with patch.dict(data.EMBEDDED_TASKS, tiny=data.EMBEDDED_TASKS["tiny"]._replace(lengths=lengths)):
        pairs = data.examples("tiny", ROWS, seed=0, held_out=False)
    path.write_text(
        "".join(json.dumps({"prompt": text, "answer": answer}) + "\n" for text, answer in pairs), encoding="utf-8"
    )


def make_policy(folder, hidden, seed):
    """A policy of this hidden size, made as base/tiny is, which has 48 and seed 0."""
    import torch  # here and below, as few tables need policies
    from transformers import Qwen3ForCausalLM

    import sft

    torch.set_num_threads(1)
    config = sft.untrained(tiny=True).config
    config.initializer_range *= (config.hidden_size / hidden) ** 0.5
    config.num_attention_heads = config.num_key_value_heads = hidden // config.head_dim
    config.intermediate_size = hidden * config.intermediate_size // config.hidden_size
    config.hidden_size = hidden
    torch.manual_seed(seed)
    supervise(Qwen3ForCausalLM(config), folder, seed)


def supervise(policy, folder, seed):
    """Train an untrained policy of `tiny` by the two steps of sft.py, and save it with its tokenizer."""
    import sft

    tokens = sft.tokenizer(tiny=True)
    for habits, steps in ((False, sft.TINY_SKILL_STEPS), (True, sft.TINY_HABIT_STEPS)):
        sft.supervise(policy, tokens, tasks=["tiny"], habits=habits, steps=steps, seed=seed)
    policy.save_pretrained(folder)
    tokens.save_pretrained(folder)


def stated(flags):
    """The flags of a run with those that it took from a preset when the kept tables were run."""
    if f"--model {MADE}" in flags:  # no preset of base/
        return flags
    given = {word for word in flags.split() if word.startswith("--")}
    unread = {"--length-max", "--length-cache"}
    if "--length-control penalty" in flags:
        unread = {"--interrupt-at", "--interrupt-phrase"}
    preset = OF_TINY if "--data tiny" in flags or "--model base/tiny" in flags else ARITHMETIC
    taken = [text for text in re.split(r" (?=--)", preset) if text.split()[0] not in given | unread]
    return " ".join([flags, *taken])


TABLES = {
    name: {setting: stated(flags) for setting, flags in settings.items()}
    for part in (on_embedded, on_tiny, axes)
    for name, settings in part()
}


# --- Kept runs --------------------------------------------------------------------------------------------------------


@cache
def kept_runs():
    """{(flags, seed): Run} of results/lab, made by earlier code."""
    found = {}
    for path in sorted(KEPT.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            row = json.loads(line)
            values: dict = {name: row["run"][name] for name in statistics.Run._fields}
            lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
            found[stated(row["flags"]), values["seed"]] = statistics.Run(**values | lists)
    return found


def kept_groups(table):
    """{setting: [Run]} of a table's kept runs."""
    kept = kept_runs()
    return {name: [kept[pair] for pair in kept if pair[0] == flags] for name, flags in TABLES[table].items()}
