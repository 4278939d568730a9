"""Tokens per second of TorchGenerator's continuous batching against `model.generate` on batches, in one run.

    OMP_NUM_THREADS=1 python -m lab.generate            a random model of the embedded base's shape
    python -m lab.generate --model DIR                  your model, on a GPU if there is one
    python -m lab.generate --help                       sizes

Both sample the same number of tokens for the same prompts: a completion's length is drawn uniformly, EOS does not
end it, and each row stops at its own length (in `generate` by a stopping criterion). `generate` gets batches
of as many prompts as TorchGenerator has slots, padded on the left; a batch lasts as long as its longest row.
TorchGenerator gets one request per prompt and also returns log-probs, which `generate` does not. Rounds alternate
between the two; the table shows each one's least wall time and least CPU time. On a CPU that others use too, compare
the CPU times. Target: 1.5 times the tokens per second.
"""

import argparse
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from data import Prompt
from pipeline import Request
from rollout import TorchGenerator, completion_keys, uniform


def lengths(keys, bounds):
    """Completion lengths in tokens, one per key in `keys`, uniform in `bounds`: from draw -2, which no token uses."""
    return bounds[0] + (uniform(keys, -2) * (bounds[1] - bounds[0] + 1)).long()


class FixedLengths(TorchGenerator):
    """Each row ends at its drawn length instead of at EOS."""

    bounds = None

    def _ends(self, token, n):
        return self._slots.count[:n] >= lengths(self._slots.key[:n], self.bounds)


class RowLengths(StoppingCriteria):
    """The same for `model.generate`: row i of the batch ends after row_lengths[i] new tokens."""

    def __init__(self, row_lengths, prompt_width):
        self.row_lengths = row_lengths
        self.prompt_width = prompt_width

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids.shape[1] - self.prompt_width >= self.row_lengths


class NoText:
    """Stands in for a tokenizer: neither of the two decodes text here."""

    eos_token_id = 1
    chat_template = None

    def get_vocab(self):
        return {}

    def decode(self, ids, skip_special_tokens=False):
        return ""


def load(args):
    """The model on its device, random unless --model names one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if args.model:
        return AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(device).eval()
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=32,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    return AutoModelForCausalLM.from_config(config, dtype=dtype).to(device).eval()


def make_requests(count, model, args):
    """`count` requests of one completion each, with prompts of random tokens, always the same."""
    random = torch.Generator().manual_seed(0)
    lo, hi = args.prompt_tokens

    def prompt(index):
        length = int(torch.randint(lo, hi + 1, (), generator=random))
        ids = torch.randint(4, model.config.vocab_size, (length,), generator=random)
        return Prompt(index, tuple(ids.tolist()), "", "", "arithmetic")

    return [Request(number, 0, prompt(number), 1) for number in range(count)]


def continuous(model, requests, args):
    """Run TorchGenerator on the requests; returns the lengths of the completions, in the order of the requests."""
    generator = FixedLengths(model, NoText(), slots=args.slots, max_new_tokens=args.lengths[1])
    generator.bounds = args.lengths
    for request in requests:
        generator.add(request)
    done = {}
    while generator.busy:
        done |= {completion.request: len(completion.ids) for completion in generator.step()}
    return [done[request.number] for request in requests]


def batched(model, requests, args):
    """Run model.generate on batches of the requests; returns the lengths of the completions, in the same order."""
    model.generation_config.eos_token_id = None
    done = []
    for first in range(0, len(requests), args.slots):
        batch = requests[first : first + args.slots]
        width = max(len(request.prompt.ids) for request in batch)
        ids = torch.tensor([(0,) * (width - len(t.prompt.ids)) + t.prompt.ids for t in batch], device=model.device)
        mask = torch.tensor([[column >= width - len(t.prompt.ids) for column in range(width)] for t in batch])
        keys = torch.cat([completion_keys(0, request) for request in batch]).to(model.device)
        row_lengths = lengths(keys, args.lengths)
        rows = model.generate(
            ids,
            attention_mask=mask.long().to(model.device),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=args.lengths[1],
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([RowLengths(row_lengths, width)]),
        )
        if rows.shape[1] - width != int(row_lengths.max()):
            raise RuntimeError(f"expected {int(row_lengths.max())} new tokens, got {rows.shape[1] - width}: EOS is on")
        done += row_lengths.tolist()
    return done


def measure(method, model, requests, args):
    """(tokens, wall seconds, CPU seconds, decode steps: forward passes of one token per row) of one round."""
    passes = []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda module, inputs, kwargs: passes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = sum(method(model, requests, args))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    hook.remove()
    return tokens, wall, cpu, passes.count(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="folder of a Hugging Face causal LM (default: random, the base's shape)")
    parser.add_argument("--slots", type=int, default=32, help="slots of TorchGenerator, batch size of generate")
    parser.add_argument("--prompts-per-slot", type=int, default=8, help="prompts / slots")
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=(6, 28), metavar=("LO", "HI"), help="uniform")
    parser.add_argument(
        "--lengths", type=int, nargs=2, default=(20, 200), metavar=("LO", "HI"), help="completion tokens, uniform"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each")
    args = parser.parse_args()
    model = load(args)
    results = {continuous: [], batched: []}
    requests = make_requests(args.slots * args.prompts_per_slot, model, args)
    for method in (continuous, batched):
        method(model, requests[: args.slots // 4], args)  # warm-up
    for _ in range(args.rounds):
        for method in (continuous, batched):
            results[method].append(measure(method, model, requests, args))
    print(
        f"{len(requests)} prompts of {args.prompt_tokens[0]}-{args.prompt_tokens[1]} tokens, completions of "
        f"{args.lengths[0]}-{args.lengths[1]}, {args.slots} slots, {model.dtype} on {model.device}, "
        f"{torch.get_num_threads()} threads, best of {args.rounds} rounds"
    )
    print(f"{'':16}{'tokens':>8}{'decode steps':>14}{'wall s':>9}{'CPU s':>9}{'tokens/s':>10}{'tokens/CPU s':>14}")
    rates = {}
    for name, method in (("TorchGenerator", continuous), ("model.generate", batched)):
        tokens, walls, cpus, steps = zip(*results[method])
        rates[method] = tokens[0] / min(walls), tokens[0] / min(cpus)
        print(
            f"{name:16}{tokens[0]:8}{steps[0]:14}{min(walls):9.2f}{min(cpus):9.2f}"
            f"{rates[method][0]:10.0f}{rates[method][1]:14.0f}"
        )
    ratios = [ours / theirs for ours, theirs in zip(rates[continuous], rates[batched])]
    print(f"{'ratio':16}{'':40}{ratios[0]:10.2f}{ratios[1]:14.2f}")


if __name__ == "__main__":
    main()
