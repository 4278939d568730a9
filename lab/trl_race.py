"""Which learns faster, train.py or TRL's GRPOTrainer? The main job by both, in seconds on the same two cores.

    python -m lab.trl_race                    three seeds of both, the table, figures/trl_race.png
    python -m lab.trl_race --python PYTHON    the same, where runs of TRL are missing: the Python that has it

The main job is the README's main run. Measures seconds on the clock until the validation pass rate is 0.1 above R_0, by
linear interpolation between two evaluations. Both trainers have the same
model, prompts, batch, learning rate, warm-up, AdamW, CISPO with the same cap, the same validation prompts and the same
code to evaluate them. Both clocks stand still during validation. Each trainer uses the batch layout that took it the
fewest seconds a step on two cores (LAYOUT, BUDGET, SLOTS). One of them runs at a time. The result of a run is kept in
results/; as long as its file is there, the run is not repeated.

What differs, because it is TRL's own way:
    TRL generates and trains in turn in one process on all cores; train.py has a process for each, on half of the cores
    TRL's batches are on policy, and its ratio is 1; train.py's tokens are up to k steps old
    TRL averages over the batch's tokens, train.py over each prompt's (--aggregation prompt)
    TRL keeps prompts without variance in the denominators, and repeats prompts that are learnt
    TRL does not interrupt in training (truncated completions carry no loss in either)
    the order of the prompts

TRL needs other packages than this project, so it takes an environment of its own, of the same torch and transformers
(`pip install torch==VERSION transformers==VERSION trl==1.16.0 datasets`). TRL decodes without special tokens, and so
without </think>; the reward function decodes its `completion_ids` instead.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from math import nan
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace

import numpy as np
from scipy.special import stdtrit

from lab.compare import FIGURES, ROOT, panel
from plumbing.figures import save
from plumbing.log import read_rows
from plumbing.settings import read_settings

GAIN = 0.1  # above R_0
SEEDS = range(3)
STEPS = 32  # of both trainers
LAYOUT = 32  # TRL's completions per forward and backward pass, chosen among 32 to 512
BUDGET = 2048  # our padded tokens per micro-batch, chosen among 1,024 to 4,096
SLOTS = 256  # of our generator, chosen among 128 and 256
THEIRS = '''
import json, os, sys, time
from contextlib import closing

settings = json.loads(sys.argv[1])
sys.path.insert(0, settings["root"])
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import data
import rollout
from plumbing import evaluate
from plumbing.prompts import read_sources
from reward import final_answer
from verify.scorer import Scorer


torch.set_num_threads(os.cpu_count())
flags = settings["flags"]
tokenizer = AutoTokenizer.from_pretrained(settings["model"])
prompts = read_sources(flags["data"], tokenizer, budget=flags["max_prompt_tokens"], validation=flags["eval_prompts"])
phrase_ids = tokenizer.encode(flags["interrupt_phrase"], add_special_tokens=False)
lengths = dict(slots=flags["slots"], max_new_tokens=flags["max_new_tokens"], think_budget=flags["interrupt_at"],
               phrase_ids=phrase_ids)

def correct(completion_ids, answer, **_):
    texts = [tokenizer.decode(ids).split("</think>")[-1].removesuffix("<eos>") for ids in completion_ids]
    return [1.0 if text == reference else -1.0 for text, reference in zip(texts, answer)]

class Watch(TrainerCallback):
    """The clock, which stands still during validation."""
    seconds, since, evaluations = 0.0, None, []

    def measure(self, model, step):
        if self.since is not None:
            self.seconds += time.perf_counter() - self.since
        if step % flags["eval_every"] == 0:
            model.eval()
            generator = rollout.TorchGenerator(model, tokenizer, version=step, **lengths)
            with torch.no_grad(), closing(Scorer(
                    timeout=5.0, graders=data.GRADERS, answer_of=final_answer)) as scorer:
                found = [score.correct for score in evaluate.complete(
                    generator, scorer, prompts.validation, flags["eval_generations"])]
            model.train()
            self.evaluations.append((self.seconds, sum(found) / len(found)))
            print(step, *self.evaluations[-1], flush=True)
        self.since = time.perf_counter()

    def on_train_begin(self, args, state, control, model=None, **_):
        self.measure(model, 0)

    def on_step_end(self, args, state, control, model=None, **_):
        self.measure(model, state.global_step)

batch = flags["prompts"] * flags["generations"]
config = GRPOConfig(
    output_dir=settings["out"], use_cpu=True, bf16=False, per_device_train_batch_size=settings["layout"],
    gradient_accumulation_steps=batch // settings["layout"], num_generations=flags["generations"],
    max_steps=flags["steps"], max_completion_length=flags["max_new_tokens"], temperature=1.0, top_p=1.0, top_k=0,
    learning_rate=flags["lr"], lr_scheduler_type="constant_with_warmup", warmup_steps=flags["warmup"],
    weight_decay=flags["weight_decay"], adam_epsilon=1e-15, beta=0.0, loss_type="cispo",
    epsilon_high=flags["clips"]["eps_max"], scale_rewards="batch", num_iterations=1, mask_truncated_completions=True,
    gradient_checkpointing=False, max_grad_norm=0.0, seed=settings["seed"], logging_steps=1000, save_strategy="no",
    report_to="none", disable_tqdm=True)
rows = [{"prompt": prompt.text, "answer": prompt.answer} for prompt in prompts.train]
watch = Watch()
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32), reward_funcs=correct,
    args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, callbacks=[watch])
trainer.train()
json.dump(watch.evaluations, open(settings["out"] + "/found.json", "w", encoding="utf-8"))
'''


def theirs(python, flags, seed):
    """[(seconds, pass rate), ...] of the evaluations of GRPOTrainer."""
    with tempfile.TemporaryDirectory() as out:
        Path(out, "theirs.py").write_text(THEIRS, encoding="utf-8")
        passed = dict(flags=flags, seed=seed, out=out, layout=LAYOUT, root=str(ROOT), model=str(ROOT / flags["model"]))
        threads = {"OMP_NUM_THREADS": str(os.cpu_count())}
        subprocess.run([python, f"{out}/theirs.py", json.dumps(passed)], check=True, env=os.environ | threads)
        return json.loads(Path(out, "found.json").read_text(encoding="utf-8"))


def ours(flags, seed):
    """The same for train.py."""
    with tempfile.TemporaryDirectory() as out:
        words = f"--steps {flags['steps']} --seed {seed} --out {out}/run"
        words += f" --token-budget {BUDGET} --slots {SLOTS}"
        subprocess.run([sys.executable, ROOT / "train.py", *words.split()], check=True)
        rows = read_rows(Path(out, "run", "log.jsonl"))[0]
    devices = rows[0]["world"]
    return [(row["gpu_hours"] * 3600 / devices, row["pass_rate"]) for row in rows if row["kind"] == "eval"]


def reached(evaluations, rate):
    """Seconds until the pass rate first stands at `rate`; nan if it never does.

    >>> float(reached([(0, 0.25), (10, 0.5), (20, 1.0)], 0.75)), float(reached([(0, 0.25), (10, 0.5)], 0.75))
    (15.0, nan)
    """
    seconds, rates = zip(*evaluations)
    return np.interp(rate, np.maximum.accumulate(rates), seconds, right=nan)


def kept(path, run, *arguments):
    """[(seconds, pass rate), ...] of a run, from its CSV file; if there is none, run(*arguments) is called first."""
    if not path.exists():
        np.savetxt(path, run(*arguments), fmt="%s", delimiter=",", header="seconds,pass_rate", comments="")
    return np.loadtxt(path, delimiter=",", skiprows=1).tolist()


def report(race):
    """Print the times, and their ratio with half of its 90 % interval; race {trainer: [evaluations of each seed]}."""
    start = mean(evaluations[0][1] for runs in race.values() for evaluations in runs)  # the same policy: one R_0
    times = {name: [reached(evaluations, start + GAIN) for evaluations in runs] for name, runs in race.items()}
    for name, seconds in times.items():
        print(f"{name:9} {GAIN} above R_0 = {start:.3f} after " + ", ".join(f"{value:.0f} s" for value in seconds))
    ratios = [slow / fast for slow, fast in zip(times["TRL"], times["train.py"])]
    half = stdtrit(len(ratios) - 1, 0.95) * stdev(ratios) / len(ratios) ** 0.5
    print(f"TRL / train.py: {mean(ratios):.2f} +- {half:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="of an environment with TRL 1.16")
    args = parser.parse_args()
    flags = vars(read_settings([])) | {"steps": STEPS}  # train.py's flags when none is given
    race = {"train.py": [], "TRL": []}
    for seed in SEEDS:
        paths = [ROOT / "results" / f"trl_race_{side}_seed{seed}.csv" for side in ("ours", "trl")]
        race["train.py"].append(kept(paths[0], ours, flags, seed))
        race["TRL"].append(kept(paths[1], theirs, args.python, flags, seed))
    report(race)
    panels = []
    for seed in SEEDS:
        columns = {name: zip(*runs[seed]) for name, runs in race.items()}
        runs = {name: [SimpleNamespace(**dict(zip(("seconds", "pass_rate"), own)))] for name, own in columns.items()}
        panels.append(panel(f"seed {seed}", runs, "seconds"))
    title = "train.py and TRL's GRPOTrainer on the embedded task: seconds on two cores, without validation"
    save(FIGURES / "trl_race.png", title, panels, alike=True)


if __name__ == "__main__":
    main()
