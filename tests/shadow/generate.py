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

import loss  # noqa: E402
import pipeline  # noqa: E402
import precision  # noqa: E402
import rollout  # noqa: E402
from plumbing import batches, sources  # noqa: E402

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
            made.update_weights(1)
    return done, median(counts)


def on_the_cpu(made, name):
    """Plant a mistake: a tensor of the generator, or of its slots, lies on the CPU."""
    holder = made if hasattr(made, name) else made._slots
    setattr(holder, name, getattr(holder, name).inner)
    made.step()


def a_batch():
    """A micro-batch of two rows on the shadow GPU, and the policy."""
    model = AutoModelForCausalLM.from_pretrained(ROOT / "base", dtype=torch.float32)
    policy = precision.PolicyModel(model, dtype=torch.bfloat16).to("cuda")
    rows = [torch.zeros(2, 6, dtype=torch.long), torch.ones(2, 5).bool(), torch.zeros(2, 5), torch.ones(2)]
    rows += [torch.tensor([0, 1]), rows[1]]
    return policy, batches.Batch(*(row.to("cuda") for row in rows))


def log_probs_left_on_the_cpu():
    policy, batch = a_batch()
    logprobs, _ = policy(batch.input_ids, batch.mask)
    loss.cispo(logprobs, batch.gen_logprobs.cpu(), batch.advantages, batch.mask, eps_max=5.0)


MISTAKES = {
    "key": lambda: on_the_cpu(generator("cuda"), "key"),
    "_phrase": lambda: on_the_cpu(generator("cuda"), "_phrase"),
    "gen_logprobs": log_probs_left_on_the_cpu,
}


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
