"""Many short runs on the task `tiny`: which runs are made, and what is kept of each, a line of JSON.

    grid        stability: k x learning rate x loss, 8 seeds, 160 steps, every token exactly k steps old
    variants    at k = 8 with lr x1 and x2: averages, normalisations, filters, clips; 8 seeds
    ceilings    the losses at k = 8, lr x1, for 400 steps; 4 seeds
    efficiency  PipelineRL-k and PPO-off-policy-k against virtual device-hours (Fig. 4a); 3 seeds
    head        bf16 with and without the FP32 head, k = 0 and 8; 3 seeds

Written before the first run of any of them; study/stability.py says how they are judged. Learning rates are multiples
of the preset's (recipes.TINY). All losses take the prompt average but GSPO, whose objective is GSPO's only under the
sample average. "no ratio" is REINFORCE, "uncapped ratio" is CISPO without its cap. The rest of a run is ScaleRL:
batch normalisation, zero-variance filter, No-Positive-Resampling at 0.9. A staleness of k is reached after k steps.
Clips: CISPO's eps_max 4, 5 and 8 are A.17's; DAPO's upper 0.2, 0.26 and 0.4 span the same factor of two; GSPO's are
those of Fig. 20 and those of its own paper, an order of magnitude smaller.

A line is appended when its run has ended, and the key of its configuration stands in it: what was interrupted is made
anew, what is there is not made twice. A line of another base (SHA-256 of its weights) counts as not there. `rounding`
tells lines of machines that round alike from others (warm.rounding; the first 700 lines do not have it).

Test: pytest tests/test_study_runs.py
"""

import hashlib
import json
import time
from itertools import product
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import recipes
from plumbing.run_folder import rows as rows_of
from plumbing.run_log import append
from study import warm

ROOT = Path(__file__).resolve().parent.parent
TINY = ["--data", "tiny", "--dtype", "float32"]
LOSSES = {  # name -> its flags; warm.no_ratio takes the place of the loss in NO_RATIO
    "CISPO": "--loss cispo --aggregation prompt",
    "DAPO": "--loss dapo --aggregation prompt",
    "GSPO": "--loss gspo --aggregation sample",
    "GRPO": "--loss grpo --aggregation prompt",
    "no ratio": "--loss cispo --aggregation prompt",
    "uncapped ratio": "--loss cispo --aggregation prompt --eps-max inf",
}
NO_RATIO = "no ratio"
STALENESS = (0, 1, 2, 4, 8, 16, 32)
RATES = (1, 2, 4)  # times the preset's learning rate
VARIANTS = {  # name -> (loss, its flags)
    "sample average": ("CISPO", "--aggregation sample"),
    "token average": ("CISPO", "--aggregation token"),
    "prompt normalisation": ("CISPO", "--normalisation prompt"),
    "no normalisation": ("CISPO", "--normalisation none"),
    "no filter": ("CISPO", "--no-zero-variance-filter"),
    "uniform resampling": ("CISPO", "--no-positive-resampling off"),
    "eps_max 4": ("CISPO", "--eps-max 4"),
    "eps_max 8": ("CISPO", "--eps-max 8"),
    "eps_high 0.2": ("DAPO", "--eps-high 0.2"),
    "eps_high 0.4": ("DAPO", "--eps-high 0.4"),
    "clips of GSPO's paper": ("GSPO", "--eps-low 3e-4 --eps-high 4e-4"),
}
COSTS = ("balanced", "generators", "trainers")
SETUPS = {"PipelineRL": "pipeline", "PPO-off-policy": "ppo"}
WINDOW = 8  # optimizer steps that share a value in a kept line
DIGITS = 4


class Run(NamedTuple):
    """A run to be made. `key` is its configuration; flags are train.py's, without --seed."""

    plan: str
    key: tuple  # ((name, value), ...)
    seed: int
    flags: str

    def name(self):
        """The key of its line."""
        return json.dumps(self.named())

    def named(self):
        """What a line says of its configuration."""
        return {"plan": self.plan, **dict(self.key), "seed": self.seed}


def learning_rate(times):
    """--lr of so many times the preset's."""
    return f"--lr {times * recipes.TINY['lr']:.6g}"


def grid(seeds=8, rates=RATES):
    """Losses x k x learning rates: one seed of all before the next of any."""
    return [
        Run(
            "grid",
            (("loss", loss), ("k", k), ("rate", rate)),
            seed,
            f"--virtual exact --k {k} {learning_rate(rate)} {LOSSES[loss]} --steps 160 --eval-every 8",
        )
        for seed, rate, loss, k in product(range(seeds), rates, LOSSES, STALENESS)
    ]


def variants(seeds=8):
    """One setting of a loss changed at k = 8; the loss itself is in the grid."""
    return [
        Run(
            "variants",
            (("variant", name), ("loss", loss), ("k", 8), ("rate", rate)),
            seed,
            f"--virtual exact --k 8 {learning_rate(rate)} {LOSSES[loss]} {flags} --steps 160 --eval-every 8",
        )
        for seed, rate, (name, (loss, flags)) in product(range(seeds), RATES[:2], VARIANTS.items())
    ]


def ceilings(seeds=4):
    """The losses for 400 steps."""
    return [
        Run(
            "ceilings",
            (("loss", loss), ("k", 8), ("rate", 1)),
            seed,
            f"--virtual exact --k 8 {learning_rate(1)} {LOSSES[loss]} --steps 400 --eval-every 16",
        )
        for seed, loss in product(range(seeds), LOSSES)
    ]


def efficiency(seeds=3):
    """PipelineRL and PPO-off-policy where generators, trainer or neither are slower. One generator with 24 slots."""
    return [
        Run(
            "efficiency",
            (("setup", setup), ("k", k), ("costs", costs)),
            seed,
            f"--virtual {costs} --slots 24 --off-policy {SETUPS[setup]} --k {k} --steps 160 --eval-every 16",
        )
        for seed, costs, k, setup in product(range(seeds), COSTS, (1, 4, 8, 16), SETUPS)
    ]


def head(seeds=3):
    """What the FP32 head changes in a policy with bf16 bodies."""
    return [
        Run(
            "head",
            (("head", name), ("k", k)),
            seed,
            f"--virtual exact --k {k} --loss cispo --dtype bfloat16 {flag} --steps 160 --eval-every 8",
        )
        for seed, k, (name, flag) in product(
            range(seeds), (0, 8), {"FP32": "--fp32-head", "bf16": "--no-fp32-head"}.items()
        )
    ]


PLANS = {"grid": grid, "variants": variants, "ceilings": ceilings, "efficiency": efficiency, "head": head}


def base():
    """What the runs start from: the first digits of the SHA-256 of the weights and of the preset."""
    weights = (ROOT / "base" / "tiny" / "model.safetensors").read_bytes()
    return hashlib.sha256(weights + repr(recipes.TINY).encode()).hexdigest()[:12]


def place(folder, plan):
    """The file of a plan's lines."""
    return folder / "tiny" / f"{plan}.jsonl"


def kept(folder, plan):
    """{Run.name: line} of the runs of a plan that are there and start from today's base; broken lines are left out."""
    path = place(folder, plan)
    lines = rows_of(path)[0] if path.exists() else []
    return {json.dumps(line["run"]): line for line in lines if line["base"] == base()}


def missing(folder, plan, seeds=None, rates=RATES):
    """The Runs of a plan that are not there, of the first `seeds` seeds (None: of all) and these learning rates."""
    there = kept(folder, plan)
    wanted = [run for run in PLANS[plan]() if seeds is None or run.seed < seeds]
    wanted = [run for run in wanted if dict(run.key).get("rate", rates[0]) in rates]
    return [run for run in wanted if run.name() not in there]


def make(train, run, folder):
    """Make a Run and append its line. train: the module train.py."""
    began = time.process_time()
    objective = warm.no_ratio if dict(run.key).get("loss") == NO_RATIO else None
    rows = warm.run(train, [*TINY, *run.flags.split(), "--seed", str(run.seed)], objective)
    keep(folder, run, rows, {"cpu_seconds": round(time.process_time() - began, 1)})


def keep(folder, run, rows, further):
    """Append the line of a Run, given the rows of its log. further: what else it says, {name: value}"""
    line = {"kind": "run", "run": run.named(), "base": base(), "commit": rows[0]["commit"], "rounding": warm.rounding()}
    path = place(folder, run.plan)
    path.parent.mkdir(parents=True, exist_ok=True)
    append(path, line | summary(rows) | further)


def summary(rows):
    """What is kept of a log: evaluations in full, steps as one value for each WINDOW of them, why it ended.

    null stands for a value that was not finite. A step on which no token was trained has the last element of a column.
    """
    evaluations = [row for row in rows if row["kind"] == "eval"]
    steps = [row for row in rows if row["kind"] == "step"]
    windows = [steps[at : at + WINDOW] for at in range(0, len(steps), WINDOW)]
    columns = {
        "ess_min": ("effective_sample_size", min, 1.0),
        "rho_max": ("rho_max", max, 1.0),
        "norm_max": ("gradient_norm", max, 0.0),
        "norm": ("gradient_norm", mean, 0.0),
        "entropy": ("entropy", mean, 0.0),
        "clipped": ("clipped", mean, 0.0),
        "rate": ("pass_rate", mean, 0.0),
        "seconds": ("seconds", sum, 0.0),  # virtual; in some lines of the grid idle shares stand instead, unweighted
        "seconds_generate": ("seconds_generate", sum, 0.0),
        "seconds_train": ("seconds_train", sum, 0.0),
    }
    kept = ("step", "tokens", "gpu_hours", "pass_rate", "stderr")
    return {
        "evals": {name: [digits(row[name]) for row in evaluations] for name in kept},
        "windows": {name: [over(window, *how) for window in windows] for name, how in columns.items()},
        "reason": rows[-1]["reason"],
    }


def over(window, name, how, otherwise):
    """One value for a column of several steps; None if one of them is not finite."""
    known = [row.get(name, otherwise) for row in window]
    return None if None in known else digits(how(known))


def digits(value):
    """The value with so many significant digits as a line has; what is 0 but for rounding is 0."""
    return float(f"{round(value, 12):.{DIGITS}g}") if isinstance(value, float) else value
