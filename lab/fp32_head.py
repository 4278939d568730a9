"""Conference App. A.19, measured: log rho at step 0 for both heads on both sides, on random models.

    python -m lab.fp32_head                             random models; a table, and figures/a19.png
    python -m lab.fp32_head --model DIR --data PROMPTS  your own model and prompts; figures/a19_DIR.png

The LM head runs in bf16 or fp32 on the generator and on the trainer; the bodies are bf16. The random models have a
vocabulary of 32,000 and logits of one of three spreads. The trainer's forward pass is compared with TorchGenerator and,
where it is installed, with vLLM. "clipped" is the share of tokens whose ratio lies outside DAPO's clip.

Test: pytest tests/test_precision.py
"""

import argparse
import tempfile
from contextlib import closing
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import batches
import data
import loss
import pipeline
import precision
from plumbing.build import make
from plumbing.prompts import read_sources

SPREADS = (1.0, 4.0, 8.0)  # std of the logits, nats: from nearly uniform to a mean top-1 probability near 0.6
HEADS = {False: "bf16", True: "fp32"}
PROMPTS, PROMPT_TOKENS, GENERATIONS, COMPLETION_TOKENS = 16, 16, 4, 32
LONGEST = 512  # tokens of a prompt of --data
VOCABULARY = 32_000
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def random_policy(folder, spread):
    """Save a random bf16 Qwen3 whose logits have a std of `spread` nats, and a tokenizer."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=0,
    )
    model = Qwen3ForCausalLM(config)
    model.lm_head.weight.data.normal_(std=spread / config.hidden_size**0.5)  # the final norm makes |h|^2 = hidden size
    model.bfloat16().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(i): i for i in range(VOCABULARY)}, unk_token="1"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="0", unk_token="1").save_pretrained(folder)


def random_prompts():
    """PROMPTS prompts of random tokens."""
    rng = torch.Generator().manual_seed(1)
    rows = torch.randint(2, VOCABULARY, (PROMPTS, PROMPT_TOKENS), generator=rng).tolist()
    return [data.Prompt(n, tuple(ids), "", "", "math") for n, ids in enumerate(rows)]


def prompts_of(source, folder):
    """The first PROMPTS prompts of a source of --data, as the model in this folder reads them."""
    return list(islice(read_sources([source], AutoTokenizer.from_pretrained(folder), budget=LONGEST).train, PROMPTS))


def completions(backend, folder, fp32_head, prompts):
    """The pipeline.Rollouts that `backend` ("torch" or "vllm") samples in bf16, GENERATIONS per prompt."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    done = []
    with closing(
        make(
            backend,
            folder,
            tokenizer,
            device=DEVICE,
            dtype=torch.bfloat16,
            fp32_head=fp32_head,
            slots=PROMPTS * GENERATIONS,
            max_new_tokens=COMPLETION_TOKENS,
        )
    ) as generator:
        for n, prompt in enumerate(prompts):
            generator.add(pipeline.Request(n, 0, prompt, GENERATIONS))
        while generator.busy:
            done += generator.step()
    return done


@torch.no_grad()
def recompute(folder, done, fp32_head):
    """The trainer's side: log pi_train and log pi_gen of the N sampled tokens, (N,) nats each, and the mean top-1
    probability over the first 16 completions.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(DEVICE)  # type: ignore[arg-type]
    policy = precision.PolicyModel(model, dtype=torch.bfloat16, fp32_head=fp32_head)
    ids, mask, gen_logprobs, *_ = batches.collate([batches.Item(None, 0.0, 0)] * len(done), lambda _: done, DEVICE)  # type: ignore[arg-type]
    top = model(input_ids=ids[:16]).logits[:, :-1][mask[:16]].float().softmax(-1).amax(-1).mean().item()
    return policy(ids, mask)[0][mask].cpu(), gen_logprobs[mask].cpu(), top


def measured(folder, prompts, backends, label):
    """Print a line for each backend and pair of heads; {(backend, its head, the trainer's): (log pi_gen, log rho, m)}.

    m: what precision.mismatch returns
    """
    cells = {}
    for backend, generator_head in product(backends, HEADS):
        done = completions(backend, folder, generator_head, prompts)
        for trainer_head in HEADS:
            logprobs, gen_logprobs, top = recompute(folder, done, trainer_head)
            every = torch.ones_like(logprobs).bool()
            low = 1 - loss.LOSSES["dapo"].clips["eps_low"].default
            high = 1 + loss.LOSSES["dapo"].clips["eps_high"].default
            m = precision.mismatch(logprobs, gen_logprobs, every, low=low, high=high)
            r = torch.corrcoef(torch.stack([logprobs, gen_logprobs]))[0, 1].item()
            cells[backend, generator_head, trainer_head] = gen_logprobs, logprobs - gen_logprobs, m
            print(
                f"{label:>8} {top:5.2f} {backend:8} {HEADS[generator_head]:9} {HEADS[trainer_head]:7}  "
                f"{m['mean_abs_log_ratio']:14.5f} {m['max_abs_log_ratio']:7.3f} {m['min_ratio']:8.3f} "
                f"{m['max_ratio']:8.3f} {m['clipped']:8.2%} {m['effective_sample_size']:7.4f} {r:10.6f}",
                flush=True,
            )
    return cells


def main():
    """Print the table of all models; draw the scatter plots of the last one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("figures"), help="folder for the figure")
    parser.add_argument("--model", help="folder of a model, instead of the random ones")
    parser.add_argument("--data", metavar="NAME", help="the prompts for --model, as of train.py --data")
    args = parser.parse_args()
    if bool(args.model) != bool(args.data):
        parser.error("--model and --data go together: expected both or neither")
    backends = ["torch", "vllm"] if find_spec("vllm") else ["torch"]
    print(
        "  spread top-1 backend  generator trainer  mean |log rho|  max     min rho  max rho  clipped   ESS    "
        "correlation"
    )
    name = ""
    if args.model:
        name = f"_{Path(args.model).resolve().name}"
        cells = measured(args.model, prompts_of(args.data, args.model), backends, "-")
    else:
        for spread in SPREADS:
            with tempfile.TemporaryDirectory() as folder:
                random_policy(folder, spread)
                cells = measured(folder, random_prompts(), backends, f"{spread:g}")
    draw(cells, backends, args.out / f"a19{name}.png")


def draw(cells, backends, path):
    """Scatter of log rho against the generator's log-prob: a row per backend, a column per pair of heads."""
    figure, axes = plt.subplots(
        len(backends), 4, figsize=(14, 3.4 * len(backends)), sharex=True, sharey=True, squeeze=False
    )
    for axis, (key, (gen_logprobs, log_ratio, m)) in zip(axes.flat, cells.items()):
        axis.scatter(gen_logprobs, log_ratio, s=2, alpha=0.3, color="#0072B2", rasterized=True)
        axis.axhline(0, color="black", linewidth=0.6)
        axis.set_title(
            f"{key[0]} {HEADS[key[1]]} head, trainer {HEADS[key[2]]} head\n"
            f"mean |log rho| {m['mean_abs_log_ratio']:.4f}, clipped {m['clipped']:.2%}",
            fontsize=9,
        )
    figure.supxlabel("generator's log-prob of the sampled token (nats)")
    figure.supylabel("log rho at step 0 (nats)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
