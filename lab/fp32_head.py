"""Conference App. A.19, measured: log rho at step 0 for both heads on both sides.

    python -m lab.fp32_head                             the embedded policy; a table, and figures/a19_base.png
    python -m lab.fp32_head --model DIR --data PROMPTS  your own model and prompts; figures/a19_DIR.png

The LM head runs in bf16 or fp32 on the generator and on the trainer; the bodies are bf16. The trainer's forward pass is
compared with TorchGenerator and, where it is installed, with vLLM. "outside" is the share of tokens whose ratio lies
outside of DAPO's clip.

Test: pytest tests/test_precision.py
"""

import argparse
from contextlib import closing
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path

import torch
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM, AutoTokenizer

import batches
import loss
import pipeline
import precision
from plumbing.build import make
from plumbing.figures import COLOURS
from plumbing.prompts import read_sources

ROOT = Path(__file__).resolve().parent.parent
HEADS = {False: "bf16", True: "fp32"}
PROMPTS, GENERATIONS, COMPLETION_TOKENS = 16, 4, 32
CLIPS = loss.LOSSES["dapo"].clips
LOW, HIGH = 1 - CLIPS["eps_low"].default, 1 + CLIPS["eps_high"].default
LONGEST = 512  # tokens of a prompt
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def completions(backend, folder, fp32_head, prompts):
    """The pipeline.Rollouts that `backend` ("torch" or "vllm") samples in bf16, GENERATIONS per prompt."""
    sizes = {"slots": PROMPTS * GENERATIONS, "max_new_tokens": COMPLETION_TOKENS}
    precise = {"device": DEVICE, "dtype": torch.bfloat16, "fp32_head": fp32_head}
    done = []
    with closing(make(backend, folder, AutoTokenizer.from_pretrained(folder), **precise, **sizes)) as generator:
        for n, prompt in enumerate(prompts):
            generator.add(pipeline.Request(n, 0, prompt, GENERATIONS))
        while generator.busy:
            done += generator.step()
    return done


@torch.no_grad()
def recompute(folder, done, fp32_head):
    """The trainer's side: log pi_train and log pi_gen of the N sampled tokens, (N,) nats each."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(DEVICE)  # type: ignore[arg-type]
    policy = precision.PolicyModel(model, dtype=torch.bfloat16, fp32_head=fp32_head)
    ids, mask, gen_logprobs, *_ = batches.collate([batches.Item(None, 0.0, 0)] * len(done), lambda _: done, DEVICE)  # type: ignore[arg-type]
    return policy(ids, mask)[0][mask].cpu(), gen_logprobs[mask].cpu()


def measured(folder, prompts, backends):
    """Print a line for each backend and pair of heads; {(backend, its head, the trainer's): (log pi_gen, log rho, m)}.

    m: what precision.mismatch returns
    """
    cells = {}
    print("backend  generator trainer  mean |log rho|  min rho  max rho  outside")
    for backend, generator_head in product(backends, HEADS):
        done = completions(backend, folder, generator_head, prompts)
        for trainer_head in HEADS:
            logprobs, gen_logprobs = recompute(folder, done, trainer_head)
            every = torch.ones_like(logprobs).bool()
            m = precision.mismatch(logprobs, gen_logprobs, every, low=LOW, high=HIGH)
            cells[backend, generator_head, trainer_head] = gen_logprobs, logprobs - gen_logprobs, m
            print(
                f"{backend:8} {HEADS[generator_head]:9} {HEADS[trainer_head]:7}  "
                f"{m['mean_abs_log_ratio']:14.5f} {m['min_ratio']:8.3f} {m['max_ratio']:8.3f} {m['clipped']:8.2%}",
                flush=True,
            )
    return cells


def main():
    """Print the table, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("figures"), help="folder for the figure")
    parser.add_argument("--model", type=Path, default=ROOT / "base", help="folder of a model (default: base)")
    parser.add_argument("--data", metavar="NAME", default="arithmetic", help="the prompts, as of train.py --data")
    args = parser.parse_args()
    backends = ["torch", "vllm"] if find_spec("vllm") else ["torch"]
    source = read_sources([args.data], AutoTokenizer.from_pretrained(args.model), budget=LONGEST)
    cells = measured(args.model, list(islice(source.train, PROMPTS)), backends)
    draw(cells, backends, args.out / f"a19_{args.model.resolve().name}.png")


def draw(cells, backends, path):
    """Scatter of log rho against the generator's log-prob: a row per backend, a column per pair of heads."""
    drawn = Figure(figsize=(14, 3.6 * len(backends)), layout="constrained")
    drawn.suptitle(
        f"log rho at step 0 by the precision of both heads (outside: share of the rho outside {LOW:g} to {HIGH:g})"
    )
    axes = drawn.subplots(len(backends), 4, sharex=True, sharey=True, squeeze=False)
    for axis, (key, (gen_logprobs, log_ratio, m)) in zip(axes.flat, cells.items()):
        axis.scatter(gen_logprobs, log_ratio, s=2, alpha=0.3, color=COLOURS[0])
        axis.grid(alpha=0.25)
        axis.set_title(
            f"{key[0]} {HEADS[key[1]]}, trainer {HEADS[key[2]]}\n"
            f"mean |log rho| {m['mean_abs_log_ratio']:.4f}, outside {m['clipped']:.2%}",
            fontsize=10,
        )
    drawn.supxlabel("generator's log-prob of the sampled token (nats)", fontsize=10)
    drawn.supylabel("log rho (nats)", fontsize=10)
    drawn.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
