"""Fig. 1's question on the task `tiny`: what does RL make of a mixture of experts, and what does routing replay change?

    python -m lab.experts            makes the runs that results/lab/experts.jsonl lacks (about 20 minutes)
    python -m lab.experts --figure   draws figures/experts.png, and prints the numbers

Each seed has bases of its own, made as base/tiny is: dense; 8 experts, of which a token uses two of half the width, so
that it has the dense base's active parameters; dense with as many parameters as the experts have in all. The runs on
bases with experts are made again in bf16, half as long, with and without routing replay.
"""

import sys
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import experts
import fit
import forecast
import recipes
import sft
import train
from lab.settings import supervise
from plumbing.curves import figures
from plumbing.run import folder as run_folder
from plumbing.setup import settings
from plumbing.watch.run_log import append

ROOT = Path(__file__).resolve().parent.parent
DENSE, EXPERTS, WIDE = "dense", "8 experts, same active parameters", "dense, same parameters in all"
WIDTH = 291  # of the larger dense model's perceptrons: 8 experts of 36, and their router
REPLAY, FREE = "experts in bf16, with replay", "experts in bf16, without replay"
BASES = {DENSE: DENSE, EXPERTS: EXPERTS, WIDE: WIDE, REPLAY: EXPERTS, FREE: EXPERTS}
SEEDS = range(3)
FLAGS = "--virtual exact --data tiny --k 1 --steps 160 --eval-every 10 --eval-prompts 256 --eval-generations 1"
KEPT = ROOT / "results" / "lab" / "experts.jsonl"
LEVEL = 0.6  # pass rate


def base(name, seed):
    """The folder of a base, made if it is not there."""
    place = ROOT / "runs" / "experts" / f"{list(BASES).index(name)}-{seed}"
    if not place.exists():
        torch.manual_seed(seed)
        model = sft.untrained(tiny=True, experts=8 * (name == EXPERTS))
        if name == WIDE:
            model.config.intermediate_size = WIDTH
            model = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
        supervise(model, place, seed)
    return place


def make(name, seed):
    """Make a run and append its line."""
    folder = base(BASES[name], seed)
    model = sft.load(folder)
    flags = [*FLAGS.split(), "--model", str(folder), "--seed", str(seed), "--dtype"]
    flags += ["bfloat16", "--steps", "80"] if name in (REPLAY, FREE) else ["float32"]
    collate = (lambda *_: None) if name == FREE else experts.collate  # without a record routers choose themselves
    with patch.object(settings, "preset_of", lambda folder: recipes.TINY), patch.object(experts, "collate", collate):
        out = ROOT / "runs" / "experts" / f"run-{list(BASES).index(name)}-{seed}"
        train.main(settings.read_settings([*flags, "--out", str(out)]))
    rows = run_folder.rows(out / "log.jsonl")[0]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    steps = [row for row in rows if row["kind"] == "step" and "log_rho" in row]
    line = {"kind": "run", "policy": name, "seed": seed, "all": model.num_parameters()}
    line["active"] = experts.active_parameters(model)
    line |= {key: [row[key] for row in evaluations] for key in ("flops", "tokens", "pass_rate")}
    append(KEPT, line | {key: [float(f"{row[key]:.4g}") for row in steps] for key in ("log_rho", "rho_max")})


def draw(found):
    """figures/experts.png of {policy: [line by seed]}: means over the seeds, and the lowest and highest of them."""
    panels = []
    for title, names in (("fp32", (DENSE, EXPERTS, WIDE)), ("8 experts, bf16", (REPLAY, FREE))):
        curves = []
        for name in [name for name in names if name in found]:
            compute, rates = (np.array([line[key][1:] for line in found[name]]) for key in ("flops", "pass_rate"))
            rows = zip(compute.mean(0), rates.mean(0), rates.min(0), rates.max(0))
            curves.append(figures.through(name, list(rows)))
        panels.append((title, "compute C (FLOPs of active parameters)", figures.RATE, curves))
    figures.save(ROOT / "figures" / "experts.png", "`tiny`: mean, lowest and highest of three bases", panels)


def say(line):
    """A run's numbers on one line."""
    compute, rates = np.array(line["flops"]), np.array(line["pass_rate"])
    reached = compute[rates >= LEVEL][:1]
    law = forecast.forecast_run(fit.Run(compute[1:], rates[1:], r0=rates[0], completions=256))
    A = forecast.known(law).get("A") or "A = {:.3f} ({:.3f} to {:.3f})".format(law.A, *law.bands["A"])
    print(
        f"{line['policy']}, seed {line['seed']}: {line['active']:,} of {line['all']:,} parameters; R_0 {rates[0]:.3f}, "
        f"end {rates[-3:].mean():.3f}, {LEVEL} at {reached} FLOPs of {compute[-1]:.3g}; log rho "
        f"{np.mean(line['log_rho']):.2g}, largest rho {max(line['rho_max']):.3f}; {A}"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    lines = run_folder.rows(KEPT)[0] if KEPT.exists() else []
    if sys.argv[1:] == ["--figure"]:
        draw({name: [line for line in lines if line["policy"] == name] for name in BASES})
        for line in sorted(lines, key=lambda line: list(BASES).index(line["policy"])):
            say(line)
    else:
        there = {(line["policy"], line["seed"]) for line in lines}
        for seed, name in product(SEEDS, BASES):
            if (name, seed) not in there:
                make(name, seed)
