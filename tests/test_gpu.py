"""What only a GPU can show. `pytest -m gpu` runs these tests; without a GPU they are skipped.

The tests on vLLM need vLLM as well. They send weights to vLLM within one GPU, which no other test covers.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import read_rows
from transformers import AutoModelForCausalLM, AutoTokenizer

import pipeline
import precision
import rollout
from plumbing.prompts import sources

if torch.cuda.is_available() and find_spec("vllm"):  # vLLM gets its weights within one GPU
    from test_vllm import (  # noqa: F401
        bf16_engine,
        engine,
        make,
        test_sec32_log_ratio_to_the_trainer_is_0_before_after_and_across_an_update,
        test_weights_that_are_being_received_are_not_used_yet,
    )

ROOT = Path(precision.__file__).parent
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["plain", "on tensor cores"])
def test_sec32_the_fp32_head_is_fp32_on_a_gpu(dtype):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 1024, generator=generator).to(dtype) for n in (512, 8192))
    ids = torch.randint(8192, (512,), generator=generator)
    results = []
    for device in ("cpu", "cuda"):
        leaves = [tensor.detach().to(device).requires_grad_() for tensor in (hidden, weight)]
        logprobs, _ = precision.token_logprobs(*leaves, ids.to(device), chunk=128)
        logprobs.sum().backward()
        results.append([tensor.detach().cpu().float() for tensor in (logprobs, *(leaf.grad for leaf in leaves))])
    (expected, *gradients), (found, *others) = results
    # fp32 sums of 1,024 products (their std is 32) round to about 1e-5; TF32 would be off by 1e-2, bf16 by 0.1.
    assert (found - expected).abs().max() < 5e-4
    for one, other in zip(gradients, others):  # in bf16 rounded to 8 bits at the end, by both
        assert (one - other).norm() < (1e-5 if dtype == torch.float32 else 2e-3) * one.norm()


def waves(device, graphs=True):
    """{(wave, prompt): greedy completion}. Other weights arrive between the two waves, after graphs were captured."""
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "base")
    prompts = sources.load("arithmetic", tokenizer, budget=32, validation=16).validation
    model = AutoModelForCausalLM.from_pretrained(ROOT / "base", dtype=torch.float32).to(device)
    generator = rollout.TorchGenerator(model, tokenizer, slots=8, max_new_tokens=96, temperature=0.0)
    if not graphs:
        generator._next = generator._sample
    done = {}
    for wave in (1, 2):
        for prompt in prompts:
            generator.add(pipeline.Request(prompt.index, 0, prompt, 1))
        while generator.busy:
            done |= {(wave, completion.request): completion for completion in generator.step()}
        with torch.no_grad():
            for weight in generator.named_weights().values():
                weight.mul_(1.05)
        generator.update_weights(wave)
    assert device == "cpu" or not graphs or any(generator._next.shapes.values())
    return done


def test_sec31_greedy_completions_on_a_gpu_are_those_of_the_cpu_with_graphs_and_without():
    expected = waves("cpu")
    for found in (waves("cuda"), waves("cuda", graphs=False)):
        assert found.keys() == expected.keys()
        for name, here in expected.items():
            there = found[name]
            for id, other, logprob, other_logprob in zip(here.ids, there.ids, here.logprobs, there.logprobs):
                assert abs(logprob - other_logprob) < 1e-3  # nats; where two tokens nearly tie, so do their log-probs
                if id != other:  # from here on the completions differ
                    break


def test_two_processes_share_one_gpu(tmp_path):
    torchrun = [sys.executable, *"-m torch.distributed.run --standalone --nproc-per-node 2".split()]
    command = [*torchrun, ROOT / "train.py", *"--loss cispo --steps 2 --eval-prompts 8 --out".split(), tmp_path / "run"]
    subprocess.run(command, check=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": "0"}, timeout=600)
    steps = read_rows(tmp_path / "run" / "log.jsonl", "step")
    assert len(steps) == 2 and all(0 < row["log_rho"] < 0.1 for row in steps)  # nats, bf16: see MISMATCH_LIMIT
