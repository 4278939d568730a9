"""What only a GPU can show. `pytest -m gpu` runs these tests; without a GPU they are skipped.

Those of test_vllm.py send weights to vLLM within one GPU.
"""

import pytest
import torch
from conftest import ROOT, close
from transformers import AutoModelForCausalLM, AutoTokenizer

import pipeline
import precision
import rollout
from plumbing import prompts as sources

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")]


def head(device, leaves, ids):
    """Log-probabilities of these ids, and the gradients of their sum, as fp32 on the CPU."""
    leaves = [leaf.detach().to(device).requires_grad_() for leaf in leaves]
    logprobs, _ = precision.token_logprobs(*leaves, ids.to(device), chunk=128)
    logprobs.sum().backward()
    return [tensor.detach().cpu().float() for tensor in (logprobs, *(leaf.grad for leaf in leaves))]


# fp32 gradients, or those that both round to bf16's 8 bits at the end.
@pytest.mark.parametrize("dtype, within", [(torch.float32, 1e-5), (torch.bfloat16, 2e-3)])
def test_sec32_the_fp32_head_is_fp32_on_a_gpu_on_tensor_cores_too(dtype, within):
    torch.manual_seed(0)
    leaves = [torch.randn(n, 1024).to(dtype) for n in (256, 2048)]  # hidden states, weight
    ids = torch.randint(2048, (256,))
    (expected, *gradients), (found, *others) = (head(device, leaves, ids) for device in ("cpu", "cuda"))
    # fp32 sums of 1,024 products (their std is 32) round to about 1e-5; TF32 would be off by 1e-2, bf16 by 0.1.
    assert close(found, expected, 5e-4)
    for one, other in zip(gradients, others):
        assert (one - other).norm() < within * one.norm()


def generator(device):
    """A greedy generator with fewer slots than prompts, which have been added."""
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "base")
    model = AutoModelForCausalLM.from_pretrained(ROOT / "base", dtype=torch.float32).to(device)
    phrase = tokenizer.encode("</think>", add_special_tokens=False)
    settings = dict(max_new_tokens=64, max_prompt_tokens=32, think_budget=(20, 40), phrase_ids=phrase)
    made = rollout.TorchGenerator(model, tokenizer, slots=4, temperature=0.0, **settings)
    for prompt in sources.read_sources("arithmetic", tokenizer, budget=32, validation=8).validation:
        made.add(pipeline.Request(prompt.index, 0, prompt, 1))
    return made


def completions(made):
    """{request: completion}. Other weights arrive while completions are running, after graphs were captured."""
    done = {}
    while made.busy:
        done |= {completion.request: completion for completion in made.step()}
        if made.version == 0 and len(done) >= 4:
            with torch.no_grad():
                for weight in made.named_weights().values():
                    weight.mul_(1.05)
            made.update_weights(1)
    return done


def test_sec31_greedy_completions_on_a_gpu_are_those_of_the_cpu_with_graphs_and_without():
    expected = completions(generator("cpu"))
    graphs, eager = generator("cuda"), generator("cuda")
    eager._next = eager._sample
    for made in (graphs, eager):
        found = completions(made)
        assert found.keys() == expected.keys()
        for name, here in expected.items():
            there = found[name]
            for id, other, logprob, other_logprob in zip(here.ids, there.ids, here.logprobs, there.logprobs):
                assert abs(logprob - other_logprob) < 1e-3  # nats; where two tokens nearly tie, so do their log-probs
                if id != other:  # from here on the completions differ
                    break
    assert any(graphs._next.shapes.values())  # captured


def test_an_optimizer_step_with_offloaded_moments_is_the_same_and_leaves_none_on_the_gpu():
    results = []
    for offload in (False, True):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(1000, 1000, device="cuda"))
        optimizer = torch.optim.AdamW([weight], eps=1e-15, fused=True)
        for step in range(3):
            (weight**2).sum().backward()
            if offload:
                precision.move_moments(optimizer, "cuda")
            optimizer.step()
            if offload:
                precision.move_moments(optimizer, "cpu")
                moments = [optimizer.state[weight][name] for name in ("exp_avg", "exp_avg_sq")]
                assert all(moment.device.type == "cpu" and moment.is_pinned() for moment in moments)
            optimizer.zero_grad()
        results.append(weight.detach().cpu())
    assert torch.equal(*results)
