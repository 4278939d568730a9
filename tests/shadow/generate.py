"""TorchGenerator on a CPU and on the shadow GPU; prints as JSON how many completions are equal, and the waits.

python generate.py            then each of MISTAKES is planted, and what was said of it is printed
"""

import json
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
import shadow  # noqa: E402  loads guard.cpp before torch

shadow.install()
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

import pipeline  # noqa: E402
import rollout  # noqa: E402
from plumbing.prompts import sources  # noqa: E402

TOKENIZER = AutoTokenizer.from_pretrained(ROOT / "base")
PROMPTS = sources.load("arithmetic", TOKENIZER, budget=32, validation=8).validation


def generator(device):
    model = AutoModelForCausalLM.from_pretrained(ROOT / "base", dtype=torch.float32).to(device)
    phrase = TOKENIZER.encode("</think>", add_special_tokens=False)
    made = rollout.TorchGenerator(
        model, TOKENIZER, slots=8, max_new_tokens=64, max_prompt_tokens=32, think_budget=(20, 40), phrase_ids=phrase
    )
    for prompt in PROMPTS:
        made.add(pipeline.Request(prompt.index, 0, prompt, 2))
    return made


def completions(device):
    """{completion: token ids}, and the median of the waits of a decode step in which none ended."""
    made = generator(device)
    done = {}
    counts = []
    while made.busy:
        with shadow.counted() as waits:
            ended = made.step()
        done |= {str((one.request, one.index)): one.ids for one in ended}
        counts += [] if ended else [sum(waits.values())]
        if len(done) == 4:  # new weights, while completions are running
            with torch.no_grad():
                for weight in made.named_weights().values():
                    weight.mul_(1.05)
            made.update_weights(1)
    return done, median(counts)


def on_the_cpu(made, holder, name):
    """Plant a mistake: a tensor of the generator lies on the CPU."""
    holder[name] = holder[name].inner
    made.step()


def angles(made):
    made._decoder.angles = list(made._decoder.angles)
    on_the_cpu(made, made._decoder.angles, 0)


def keys(made):
    made.step()
    on_the_cpu(made, made._cache.buffers[1], 0)


MISTAKES = {made.__name__: lambda made=made: made(generator("cuda")) for made in (angles, keys)}


def said(mistake):
    try:
        mistake()
    except RuntimeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    (on_cpu, _), (on_gpu, waits) = completions("cpu"), completions("cuda")
    found = {name: said(mistake) for name, mistake in MISTAKES.items()}
    same = sum(on_cpu[name] == on_gpu[name] for name in on_cpu)
    print(json.dumps({"same": same, "of": len(on_cpu), "waits": waits, "mistakes": found}))
