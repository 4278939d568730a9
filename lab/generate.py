"""Tokens per second of TorchGenerator (of CPU time, or of a GPU), beside those of the libraries one could take instead.

    OMP_NUM_THREADS=1 python -m lab.generate                 the embedded base policy
    OMP_NUM_THREADS=1 python -m lab.generate --model DIR --slots 64 --dtype bfloat16
    python -m lab.generate --device cuda --dtype bfloat16 --model DIR         a GPU
    python -m lab.generate --help                            sizes

Sides: TorchGenerator (rollout.py); transformers' continuous batching; vLLM, compiled, where it is installed.
All have the same weights, slots and prompts, and sample at temperature 1. The length of each completion is drawn
uniformly beforehand, and EOS does not end it. TorchGenerator and vLLM return log-probs too. The sides take turns; the
table has the median of the rounds, with the least and the largest.
"""

import argparse
import os
import random
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from data import Prompt
from pipeline import Request
from rollout import TorchGenerator
from vllm_rollout import ENVIRONMENT

PROMPTS_PER_SLOT = 8
PROMPT_TOKENS = (6, 28)  # drawn uniformly, both included
PAGE = 256  # of transformers' cache, and tokens in one of its forward passes
BASE = Path(__file__).resolve().parent.parent / "base"


class NoText:
    """Stands in for a tokenizer: no side decodes text here."""

    eos_token_id = 1
    chat_template = None
    added_tokens_decoder: dict = {}

    def get_vocab(self):
        return {}

    def decode(self, ids, skip_special_tokens=False):
        return ""


class GivenLengths(TorchGenerator):
    """The completion of request i ends after lengths[i] tokens."""

    lengths: list = []

    def _ends(self, sequence):
        return len(sequence.tokens) >= self.lengths[sequence.group.request.number]


def ours(args, longest):
    """The side TorchGenerator: a function of prompts (lists of ids) and lengths that returns the tokens sampled."""
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=args.dtype).eval().to(args.device)

    def run(prompts, lengths):
        generator = GivenLengths(
            model, NoText(), slots=args.slots, max_new_tokens=longest, max_prompt_tokens=PROMPT_TOKENS[1]
        )
        generator.lengths = lengths
        for number, ids in enumerate(prompts):
            generator.add(Request(number, 0, Prompt(number, tuple(ids), "", "", "arithmetic"), 1))
        tokens = 0
        while generator.busy:
            tokens += sum(len(rollout.ids) for rollout in generator.step())
        return tokens

    return run


def transformers_batching(args, longest):
    """The side of transformers; as `ours`."""
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=args.dtype).eval().to(args.device)
    sampling = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=longest)
    pages = args.slots * (1 + (PROMPT_TOKENS[1] + longest) // PAGE)  # by default it takes most of the memory
    batching = ContinuousBatchingConfig(
        page_size=PAGE, num_blocks=pages, max_batch_tokens=PAGE, max_requests_per_batch=args.slots
    )

    def run(prompts, lengths):
        settings = {"generation_config": sampling, "continuous_batching_config": batching}
        with model.continuous_batching_context_manager(**settings) as manager:
            for ids, length in zip(prompts, lengths):
                manager.add_request(ids, max_new_tokens=length, eos_token_id=-1)
            finished = []
            while len(finished) < len(prompts) and manager.is_running():
                result = manager.get_result(timeout=1)
                if result and result.is_finished():
                    finished.append(len(result.generated_tokens))
        return sum(finished)

    return run


def vllm_batching(args, longest):
    """The side of vLLM; as `ours`."""
    os.environ.update(ENVIRONMENT | {"VLLM_CPU_KVCACHE_SPACE": "4"} | os.environ)
    from vllm import LLM, SamplingParams

    room = PROMPT_TOKENS[1] + longest
    engine = LLM(args.model, skip_tokenizer_init=True, dtype=args.dtype, max_num_seqs=args.slots, max_model_len=room)

    def run(prompts, lengths):
        sampling = [SamplingParams(max_tokens=n, ignore_eos=True, logprobs=0, detokenize=False) for n in lengths]
        results = engine.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        return sum(len(result.outputs[0].token_ids) for result in results)

    return run


def arguments():
    """The parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--model", default=str(BASE), help="folder of a Hugging Face causal LM (default: the embedded base)")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: seconds are those of the clock")
    add("--slots", type=int, default=16, help="completions at a time")
    add("--lengths", type=int, nargs=2, default=(20, 200), metavar=("LO", "HI"), help="completion tokens, uniform")
    add("--rounds", type=int, default=5, help="of each side")
    return parser.parse_args()


def main():
    """Run the sides in turn and print the table."""
    args = arguments()
    sides = {"TorchGenerator": ours, "transformers": transformers_batching}
    if find_spec("vllm"):
        sides["vLLM"] = vllm_batching
    draw = random.Random(0)
    vocabulary = AutoConfig.from_pretrained(args.model).vocab_size
    count = args.slots * PROMPTS_PER_SLOT
    prompts = [draw.choices(range(4, vocabulary), k=draw.randint(*PROMPT_TOKENS)) for _ in range(count)]
    lengths = [draw.randint(*args.lengths) for _ in prompts]
    runs = {name: build(args, max(lengths)) for name, build in sides.items()}
    seconds = {name: [] for name in runs}
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    for round_ in range(args.rounds + 1):  # the first one warms up
        for name, run in runs.items():
            before = clock()
            tokens = run(prompts, lengths)
            if tokens != sum(lengths):
                raise RuntimeError(f"{name}: expected {sum(lengths)} tokens, got {tokens}")
            if round_:
                seconds[name].append(clock() - before)
    print(f"{count} prompts, {sum(lengths)} tokens, {args.slots} slots, {args.dtype}, {args.rounds} rounds")
    print(f"{'':16}{'s':>8}{'least':>8}{'largest':>9}{'tokens/s':>10}")
    for name, own in seconds.items():
        print(f"{name:16}{median(own):8.2f}{min(own):8.2f}{max(own):9.2f}{sum(lengths) / median(own):10.0f}")


if __name__ == "__main__":
    main()
