"""A TorchGenerator at work: test_gpu.py compares it on a GPU and on the CPU.

python generate.py      prints as JSON, of the shadow GPU, waits and decode steps, and what is said of a mistake
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
if __name__ == "__main__":
    import shadow  # loads guard.cpp before torch

    shadow.install()

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

import pipeline  # noqa: E402
import rollout  # noqa: E402
from plumbing.prompts import sources  # noqa: E402


def generator(device):
    """A greedy generator with fewer slots than prompts, which have been added."""
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "base")
    model = AutoModelForCausalLM.from_pretrained(ROOT / "base", dtype=torch.float32).to(device)
    phrase = tokenizer.encode("</think>", add_special_tokens=False)
    settings = dict(max_new_tokens=64, max_prompt_tokens=32, think_budget=(20, 40), phrase_ids=phrase)
    made = rollout.TorchGenerator(model, tokenizer, slots=8, temperature=0.0, **settings)
    for prompt in sources.load("arithmetic", tokenizer, budget=32, validation=12).validation:
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


def mistake(made):
    """What is said where a tensor of the generator lies on the CPU."""
    made.step()
    buffers = made._cache.buffers[1]
    buffers[0] = buffers[0].inner
    try:
        made.step()
    except RuntimeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    made = generator("cuda")
    with shadow.counted() as waits:
        completions(made)
    found = {"waits": waits.total(), "steps": made.work["decode_steps"], "mistake": mistake(generator("cuda"))}
    print(json.dumps(found))
