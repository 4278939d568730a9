"""The main job against TRL's GRPOTrainer: same model, prompts, batch (32 x 16), CISPO, no KL, on all cores.

    python benchmarks/trl_grpo.py                    about 6 minutes on two cores, after installing TRL

TRL gets an environment of its own (--venv, kept; a gigabyte), because it needs other packages than this project. TRL
generates and trains in turn in one process with all cores; train.py has a generator and a trainer with half of them
each. The first three steps of both sides are left out. Prints completions/s of both and their ratio.
TRL decodes without special tokens, and so without the mark; the reward function decodes the completion's ids instead.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
WARM = 3  # steps before the clock counts, on both sides
THEIRS = '''
import json, os, sys, time
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

base, prompts, steps, out = sys.argv[1], json.load(open(sys.argv[2])), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(os.cpu_count())
tokenizer = AutoTokenizer.from_pretrained(base)

def correct(completion_ids, answer, **_):
    texts = [tokenizer.decode(ids).split("</think>")[-1].removesuffix("<eos>") for ids in completion_ids]
    return [1.0 if text == reference else -1.0 for text, reference in zip(texts, answer)]

class Watch(TrainerCallback):
    times, rewards = [time.perf_counter()], []
    def on_step_end(self, *args, **kwargs):
        self.times.append(time.perf_counter())
    def on_log(self, args, state, control, logs=None, **kwargs):
        self.rewards.append(logs.get("reward"))

config = GRPOConfig(
    output_dir=out, use_cpu=True, bf16=False, per_device_train_batch_size=512, num_generations=16, max_steps=steps,
    max_completion_length=112, temperature=1.0, learning_rate=2e-4, lr_scheduler_type="constant", beta=0.0,
    loss_type="cispo", epsilon_high=5.0, scale_rewards="batch", num_iterations=1, gradient_checkpointing=False,
    logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, max_grad_norm=0.0)
trainer = GRPOTrainer(model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), reward_funcs=correct,
                      args=config, train_dataset=Dataset.from_list(prompts), processing_class=tokenizer,
                       callbacks=[Watch()])
trainer.train()
json.dump({"times": Watch.times, "rewards": Watch.rewards}, open(out + "/times.json", "w"))
'''


def environment(folder, version):
    """Path of Python in an environment with TRL, which is made on first use, with this environment's torch version."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        from importlib.metadata import version as installed

        torch = installed("torch").split("+")[0]
        subprocess.run([python, "-m", "pip", "install", "-q", f"torch=={torch}"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"trl=={version}", "datasets"], check=True)
    return str(python)


def theirs(python, steps, folder):
    """Seconds per step of GRPOTrainer, without the first WARM steps."""
    sys.path.insert(0, str(ROOT))
    import data

    pairs = data.examples("arithmetic", 32 * steps, seed=0, held_out=False)
    (folder / "prompts.json").write_text(json.dumps([{"prompt": text, "answer": answer} for text, answer in pairs]))
    (folder / "theirs.py").write_text(THEIRS)
    command = [python, str(folder / "theirs.py"), str(ROOT / "base"), str(folder / "prompts.json"), str(steps),
               str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL,
                   env=os.environ | {"OMP_NUM_THREADS": str(os.cpu_count())})
    found = json.loads((folder / "times.json").read_text())
    times = found["times"]
    return (times[-1] - times[WARM]) / (len(times) - 1 - WARM)


def ours(steps, folder):
    """Seconds per step of train.py, without the first WARM steps and without evaluations, which GRPOTrainer has not."""
    command = [sys.executable, str(ROOT / "train.py"), "--loss", "cispo", "--steps", str(steps), "--eval-every",
               str(steps),
               "--eval-prompts", "8", "--out", str(folder / "ours")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (folder / "ours" / "log.jsonl").open()]
    seconds = [row["seconds"] for row in rows if row["kind"] == "step"][WARM:]
    return sum(seconds) / len(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=23)
    parser.add_argument("--trl", default="1.16.0", help="version of TRL")
    parser.add_argument("--venv", type=Path, default=Path(tempfile.gettempdir()) / "scalerl-trl")
    args = parser.parse_args()
    python = environment(args.venv, args.trl)
    with tempfile.TemporaryDirectory() as folder:
        rows = {f"TRL {args.trl}": theirs(python, args.steps, Path(folder)), "train.py": ours(args.steps, Path(folder))}
    print(f"{'':12}{'s/step':>10}{'completions/s':>16}")
    for name, seconds in rows.items():
        print(f"{name:12}{seconds:10.2f}{32 * 16 / seconds:16.0f}")
    slow, fast = rows.values()
    print(f"completions/s, train.py / TRL: {slow / fast:.2f}")


if __name__ == "__main__":
    main()
