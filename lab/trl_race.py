"""Which learns faster, train.py or TRL's GRPOTrainer? The main job by both, in seconds on the same two cores.

    python -m lab.trl_race                    three seeds of both, the table, figures/trl_race.png
    python -m lab.trl_race --steps 120        the same to the end of the main job

The main job is the README's main run. Measures seconds on the clock until the validation pass rate is 0.1 and 0.2
above R_0, by linear interpolation between two evaluations; "not reached" is a result. Both trainers have the same
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

TRL gets an environment of its own (--venv, kept; a gigabyte), because it needs other packages than this project. TRL
decodes without special tokens, and so without </think>; the reward function decodes its `completion_ids` instead.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev

from plumbing.settings import read_settings

ROOT = Path(__file__).resolve().parent.parent

GAINS = (0.1, 0.2)  # above R_0
SEEDS = range(3)
LIMIT = 1800.0  # seconds on TRL's clock
TRL = "1.16.0"
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
        control.should_training_stop |= self.seconds > settings["limit"]

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


def environment(folder):
    """Path of Python in an environment with TRL, made on first use with our versions of torch and transformers."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        own = [f"{name}=={version(name)}".split("+")[0] for name in ("torch", "transformers")]
        subprocess.run([python, "-m", "pip", "install", "-q", *own, f"trl=={TRL}", "datasets"], check=True)
    return str(python)


def theirs(python, flags, seed):
    """[(seconds, pass rate), ...] of the evaluations of GRPOTrainer, which stops after LIMIT seconds."""
    with tempfile.TemporaryDirectory() as out:
        Path(out, "theirs.py").write_text(THEIRS, encoding="utf-8")
        passed = dict(flags=flags, seed=seed, out=out, layout=LAYOUT, limit=LIMIT)
        passed |= {"root": str(ROOT), "model": str(ROOT / flags["model"])}
        threads = {"OMP_NUM_THREADS": str(os.cpu_count())}
        subprocess.run([python, Path(out, "theirs.py"), json.dumps(passed)], check=True, env=os.environ | threads)
        return json.loads(Path(out, "found.json").read_text(encoding="utf-8"))


def ours(flags, seed):
    """The same for train.py."""
    with tempfile.TemporaryDirectory() as out:
        words = f"--loss cispo --steps {flags['steps']} --seed {seed} --out {out}/run"
        words += f" --token-budget {BUDGET} --slots {SLOTS}"
        subprocess.run([sys.executable, ROOT / "train.py", *words.split()], check=True)
        rows = [json.loads(line) for line in Path(out, "run", "log.jsonl").open(encoding="utf-8")]
    devices = rows[0]["world"]
    return [(row["gpu_hours"] * 3600 / devices, row["pass_rate"]) for row in rows if row["kind"] == "eval"]


def reached(evaluations, rate):
    """Seconds until the pass rate first stands at `rate`; None if it never does.

    >>> reached([(0, 0.25), (10, 0.5), (20, 1.0)], 0.75), reached([(0, 0.25), (10, 0.5)], 0.75)
    (15.0, None)
    """
    for (before, low), (after, high) in zip(evaluations, evaluations[1:]):
        if high >= rate:
            return before + (after - before) * (rate - low) / (high - low)
    return None


def kept(path, run, *arguments):
    """[(seconds, pass rate), ...] of a run, from its CSV file; if there is none, run(*arguments) is called first."""
    if not path.exists():
        rows = run(*arguments)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("seconds", "pass_rate"), *rows])
    with path.open(encoding="utf-8") as file:
        return [(float(row["seconds"]), float(row["pass_rate"])) for row in csv.DictReader(file)]


def report(curves):
    """Print the times, and their ratio with its spread over the seeds; curves {(trainer, seed): evaluations}."""
    start = mean(evaluations[0][1] for evaluations in curves.values())  # the same policy: one R_0 for all
    print(f"R_0 {start:.3f}, the mean of {len(curves)} measurements")
    for gain in GAINS:
        times = {name: reached(evaluations, start + gain) for name, evaluations in curves.items()}
        for (trainer, seed), seconds in times.items():
            print(f"+{gain}  {trainer:9} seed {seed}  " + (f"{seconds:7.0f} s" if seconds else "not reached"))
        pairs = [(times["TRL", seed], times["train.py", seed]) for trainer, seed in curves if trainer == "TRL"]
        ratios = [slow / fast for slow, fast in pairs if slow and fast]
        if ratios:
            spread = f"{stdev(ratios):.2f}" if len(ratios) > 1 else "unknown"
            print(
                f"+{gain}  TRL / train.py: {mean(ratios):.2f}, spread (standard deviation over seeds) {spread}, "
                f"{len(ratios)} of {len(pairs)} pairs"
            )


def draw(curves, path):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for (trainer, seed), evaluations in sorted(curves.items()):
        color = "C0" if trainer == "train.py" else "C1"
        axes.plot(*zip(*evaluations), "o-", color=color, markersize=3, label=trainer if seed == 0 else None)
    axes.set(xlabel="seconds on two cores, without validation", ylabel="validation pass rate")
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=32, help="of both trainers")
    parser.add_argument("--venv", type=Path, default=Path(tempfile.gettempdir()) / "scalerl-trl")
    args = parser.parse_args()
    python = environment(args.venv)
    flags = vars(read_settings([])) | {"steps": args.steps}  # train.py's flags when none is given
    curves = {}
    for seed in SEEDS:
        results = ROOT / "results"
        paths = [results / f"trl_race_{trainer}_seed{seed}.csv" for trainer in ("trl", "ours")]
        curves["TRL", seed] = kept(paths[0], theirs, python, flags, seed)
        curves["train.py", seed] = kept(paths[1], ours, flags, seed)
    report(curves)
    draw(curves, ROOT / "figures" / "trl_race.png")


if __name__ == "__main__":
    main()
