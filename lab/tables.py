"""The experiments as tables of settings, {table: {setting: flags of train.py}}; the first setting is the reference.

    exact-1, recipes  the embedded task, every token at most one optimizer step old (Fig. 2, 5a, 6, 7 and 14). Recipes
                      with PPO-off-policy have --k 2: staleness 0 and 1
    exact-8           the same, every token eight steps old, where clips act (Fig. 5a, 7)
    balanced          PipelineRL-8 and PPO-off-policy-8 where generators and trainer are about equally fast (Fig. 4a)
    grid-kK-xR        `tiny`: the losses at staleness K and at R times LEARNING_RATE
    best-kK-LOSS      `tiny`: CISPO and another loss, each at that one of the rates 1, 2 and 4 at which it ends highest
    cap               `tiny`, k = 8, twice the learning rate: CISPO with other caps (A.17)
    efficiency-COSTS-kK   `tiny`: PipelineRL-K and PPO-off-policy-K in virtual device-hours (Fig. 4a)
    head-kK           `tiny` in bfloat16 with and without the FP32 head (Fig. 5b)
    axis-batch        `tiny`: prompts x generations, 40,960 completions in all (Fig. 10, 17)
    axis-length       `tiny`: the token budget of a completion (Fig. 9)
    axis-model        `tiny`: policies of 11,000 to 2.5 million parameters, one for each seed
    axis-mixture      sums of 4 or 5 and of 6 or 7 operands, two sources that train together (Fig. 11)
    axis-embedded     the embedded task: prompts a step, 69,120 completions in all (Fig. 10)

All losses of the grid take the prompt average but GSPO, whose objective is GSPO's only under the sample average. "no
ratio" is REINFORCE. The policies of axis-model ({seed} is the seed of a run) and the prompts of axis-mixture are made
by lab/tables.py of commit 546db21.

Run by compare.py. Test: pytest tests/test_lab.py
"""

import gzip
import json
from functools import cache
from itertools import product
from math import prod
from pathlib import Path

from lab import statistics

KEPT = Path(__file__).resolve().parent.parent / "results" / "lab"
MADE = "runs/lab/made"  # policies and prompts that are not in the repository
TABLES: dict = {}

# --- The embedded task -----------------------------------------------------------------------------------------------

# What a run takes from no recipe, as the kept runs had it; presets have changed since.
ON_BASE = (
    "--lr 2e-4 --warmup 8 --prompts 32 --generations 16 --max-new-tokens 112 --max-prompt-tokens 40 --slots 128 "
    "--eval-prompts 256 --eval-generations 8 --token-budget 2048 --no-activation-checkpointing --dtype float32"
)
# Fewer, larger decode steps and half the completions of an evaluation save a fifth of the CPU seconds: its binomial
# error rises from 0.011 to 0.015.
WIDE = "--slots 1024 --eval-generations 4"
EXACT = f"--virtual exact --steps 90 --eval-every 6 {WIDE}"
BASELINE = "--recipe baseline --off-policy pipeline"
SETTINGS = {
    "pipeline": BASELINE,
    "scalerl": "--recipe scalerl",
    "magistral": "--recipe magistral",
    "cispo": f"{BASELINE} --loss cispo",
    "gspo": f"{BASELINE} --loss gspo",
    "prompt-average": f"{BASELINE} --aggregation prompt",
    "token-average": f"{BASELINE} --aggregation token",
    "zero-variance-filter": f"{BASELINE} --zero-variance-filter",
    "no-positive-resampling": f"{BASELINE} --no-positive-resampling 0.9",
    "batch-normalisation": f"{BASELINE} --normalisation batch",
    "no-normalisation": f"{BASELINE} --normalisation none",
    "loo-dapo": "--recipe scalerl --loss dapo",
    "loo-no-filter": "--recipe scalerl --no-zero-variance-filter",
    "loo-sample-average": "--recipe scalerl --aggregation sample",
    "loo-prompt-normalisation": "--recipe scalerl --normalisation prompt",
    "loo-uniform-resampling": "--recipe scalerl --no-positive-resampling off",
    "loo-length-penalty": "--recipe scalerl --length-control penalty --length-max 112 --length-cache 16",
    "scalerl-bf16": "--recipe scalerl --dtype bfloat16",
    "loo-no-fp32-head": "--recipe scalerl --dtype bfloat16 --no-fp32-head",
}
PPO = {
    "baseline": "--recipe baseline",
    "deepseek": "--recipe deepseek",
    "qwen2.5": "--recipe qwen2.5",
    "minimax": "--recipe minimax",
    "loo-ppo": "--recipe scalerl --off-policy ppo",
}
TABLES["exact-1"] = {name: f"{ON_BASE} {own} --k 1 {EXACT}" for name, own in SETTINGS.items()}
TABLES["recipes"] = {name: TABLES["exact-1"][name] for name in ("scalerl", "magistral")}
TABLES["recipes"] |= {name: f"{ON_BASE} {own} --k 2 {EXACT}" for name, own in PPO.items()}
TABLES["exact-8"] = {
    name: f"{ON_BASE} {SETTINGS[name]} --k 8 {EXACT}" for name in ("scalerl", "loo-dapo", "pipeline", "cispo", "gspo")
}
flags = f"{ON_BASE} --virtual balanced --k 8 --steps 96 --eval-every 8"
TABLES["balanced"] = {name: f"{flags} {own}" for name, own in (("pipeline", BASELINE), ("baseline", PPO["baseline"]))}
flags = f"{ON_BASE} --recipe scalerl --virtual exact --k 1 {WIDE}"
TABLES["axis-embedded"] = {
    f"{prompts} prompts": f"{flags} --prompts {prompts} --steps {4320 // prompts} --eval-every {288 // prompts}"
    for prompts in (16, 48, 144)
}

# --- The task tiny ---------------------------------------------------------------------------------------------------

TINY = (
    "--warmup 8 --prompts 16 --generations 8 --max-new-tokens 12 --max-prompt-tokens 8 --slots 128 "
    "--interrupt-at 8 9 --interrupt-phrase </think> --eval-prompts 128 --eval-generations 4 --token-budget 4096 "
    "--no-activation-checkpointing --lr 3e-4 --dtype float32 --steps 160"
)
GRID = f"--data tiny {TINY} --virtual exact --eval-every 8"
LOSSES = {
    "CISPO": "--loss cispo --aggregation prompt",
    "DAPO": "--loss dapo --aggregation prompt",
    "GSPO": "--loss gspo --aggregation sample",
    "GRPO": "--loss grpo --aggregation prompt",
    "no ratio": "--loss lab/reinforce.py:no_ratio --aggregation prompt",
    "uncapped ratio": "--loss cispo --aggregation prompt --eps-max inf",
}
STALENESS = (0, 1, 2, 4, 8, 16, 32)
LEARNING_RATE = 3e-4
RATES = (1, 2, 4)  # times LEARNING_RATE
BEST = {  # for each of STALENESS the one of RATES at which a loss ends highest
    "CISPO": (2, 2, 2, 1, 1, 1, 1),
    "DAPO": (2, 2, 2, 2, 1, 1, 1),
    "GRPO": (2, 2, 2, 2, 1, 1, 1),
}


def grid(k, rate, losses):
    """A table of the grid: losses {name: flags} at exact staleness k and at `rate` times LEARNING_RATE."""
    return {name: f"{GRID} --k {k} --lr {rate * LEARNING_RATE:.6g} {own}" for name, own in losses.items()}


for k, rate in product(STALENESS, RATES):
    TABLES[f"grid-k{k}-x{rate}"] = grid(k, rate, LOSSES)
for k in (8, 16, 32):  # where x1 was the best of RATES
    TABLES[f"grid-k{k}-x0.5"] = grid(k, 0.5, {name: LOSSES[name] for name in ("CISPO", "DAPO", "GRPO")})
for place, k in enumerate(STALENESS):
    best = {loss: TABLES[f"grid-k{k}-x{rates[place]}"][loss] for loss, rates in BEST.items()}
    for loss in ("DAPO", "GRPO"):
        TABLES[f"best-k{k}-{loss}"] = {"CISPO": best["CISPO"], loss: best[loss]}
caps = {f"eps_max {cap}": f"{LOSSES['CISPO']} --eps-max {cap}" for cap in (4, 8)}
TABLES["cap"] = grid(8, 2, {name: LOSSES[name] for name in ("CISPO", "uncapped ratio")} | caps)
for costs, k in product(("balanced", "generators", "trainers"), (1, 4, 8, 16)):
    flags = f"--data tiny {TINY} --virtual {costs} --slots 24 --k {k} --eval-every 16"
    TABLES[f"efficiency-{costs}-k{k}"] = {
        "PipelineRL": f"{flags} --off-policy pipeline",
        "PPO-off-policy": f"{flags} --off-policy ppo",
    }
for k in (0, 8):
    flags = f"{GRID} --k {k} --loss cispo --dtype bfloat16"
    TABLES[f"head-k{k}"] = {"FP32": f"{flags} --fp32-head", "bf16": f"{flags} --no-fp32-head"}

# --- Axes on tiny ----------------------------------------------------------------------------------------------------

AXIS = f"{TINY} --virtual exact --eval-every 8 --k 1"
ASK = "--eval-prompts 512 --eval-generations 1"
sizes = [pair for pair in product((4, 8, 16, 32, 64), (4, 8, 16, 32)) if 32 <= prod(pair) <= 1024]
TABLES["axis-batch"] = {
    f"{P} x {G}": f"--data tiny {AXIS} {ASK} --prompts {P} --generations {G} --steps {40_960 // (P * G)} "
    f"--eval-every {2048 // (P * G)}"
    for P, G in sorted(sizes, key=prod)
}
TABLES["axis-length"] = {
    f"{n} tokens": f"--data tiny {AXIS} {ASK} --max-new-tokens {n} --interrupt-at {n - 4} {n - 3}"
    for n in (6, 7, 8, 10, 12)
}
TABLES["axis-model"] = {
    f"hidden size {n}": f"--data tiny {AXIS} {ASK} --model {MADE}/tiny-{n}-seed{{seed}}" for n in (24, 48, 96, 192, 384)
}
SHORTER, LONGER = f"{MADE}/shorter.jsonl", f"{MADE}/longer.jsonl"
mixtures = {
    0: f"{SHORTER}:1:tiny",
    25: f"{SHORTER}:3:tiny {LONGER}:1:tiny",
    50: f"{SHORTER}:1:tiny {LONGER}:1:tiny",
    75: f"{SHORTER}:1:tiny {LONGER}:3:tiny",
    100: f"{LONGER}:1:tiny",
}
TABLES["axis-mixture"] = {
    f"{share}% longer": f"{AXIS} --eval-prompts 256 --eval-generations 2 --model base/tiny --data {files}"
    for share, files in mixtures.items()
}


# --- Kept runs -------------------------------------------------------------------------------------------------------


@cache
def kept_runs():
    """{(flags, seed): Run} of results/lab, made by earlier code."""
    runs = {}
    for path in sorted(KEPT.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            row = json.loads(line)
            run: dict = {name: tuple(value) if isinstance(value, list) else value for name, value in row["run"].items()}
            runs[row["flags"], run["seed"]] = statistics.Run(**run)
    return runs


def kept_groups(table):
    """{setting: [Run]} of a table's kept runs."""
    kept = kept_runs()
    return {name: [kept[pair] for pair in kept if pair[0] == flags] for name, flags in TABLES[table].items()}
