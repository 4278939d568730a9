"""A.3: the policy that RL starts from, a small Qwen3 trained on right and on faulty traces; makes the folders of base/.

    python sft.py                     makes base/ again, in runs/base, and prints the pass rates of both
    python sft.py --tasks arithmetic sorting sorting sorting --start base --skill-steps 500 --out runs/sorting
                                      makes base/sorting/; three of the four classes of a batch are sorting
    python sft.py --tasks tiny --out runs/tiny
                                      makes base/tiny/, a policy of 41,000 parameters, in half a minute
    python sft.py --tasks tiny --experts 8 --out runs/experts
                                      a mixture of experts with the active parameters of base/tiny/

Supervised fine-tuning minimises the cross entropy of the completion's tokens. The completions are traces of the
embedded tasks (data.py).
    7+5-3+9=      <think>+5=12-3=9+9=18</think>18      after each operand comes the running result
    =5274=        <think>-2-4-5-7</think>2457          the digits in ascending order
    7+5-3....=    29</think>9                          a sum modulo 10: only the running results

In the first phase every trace is right, until the policy can compute. In the second phase the traces show bad habits,
which are drawn at random for each step. A slip is a wrong running result, or a digit that is not the next. Haste takes
two operands or digits at once, and slips more often. Careful traces show neither. Afterwards the policy can compute but
often does not. Its pass rate is limited by habit, not by skill, and that is what RL improves.

Deviation: AdamW at 3e-3 and batches of 64 traces instead of 3e-5 and 2M tokens, since the model has 0.48M parameters
  and starts from scratch. The learning rate warms up over WARMUP steps and falls linearly over the last 40 %.
Open in the paper: AdamW's betas in SFT (here 0.9 and 0.95; RL has 0.9 and 0.999), its weight decay (here 0.01, as in
  RL), the clipping of the gradient (here to an L2 norm of 1; RL does not clip), and the schedule of the learning rate.
Open in the paper: where the traces come from, and which are kept. Here they are drawn by the rules above, and all are
  kept.
Open in the paper: the number of steps. SKILL_STEPS and HABIT_STEPS were chosen by measurements.

Run: `python sft.py`. Test: pytest tests/test_sft.py
Page: docs/paper/axes.md
"""

import random
import re
from bisect import insort
from collections.abc import Callable
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import data
import reward
import rollout
from plumbing import evaluate
from plumbing.arguments import Parser
from plumbing.prompts import read_sources
from verify.scorer import Scorer

SLIP = 0.2  # P(slip) in a step that takes one operand or digit
HASTE = 0.15  # P(a step takes two)
HASTE_SLIP = 0.5  # P(slip) in a step that takes two
CAREFUL = 0.05  # share of traces without slips and haste
SKILL_STEPS = 1200
HABIT_STEPS = 250
LR = 3e-3
WARMUP = 50
TINY_SKILL_STEPS, TINY_HABIT_STEPS = 300, 60  # few: half of the skill is left to RL
CLASSES, PER_CLASS = 4, 16  # a batch: 4 classes of 16 traces; all of a class have one task and length, for less padding
SPECIAL = ["<pad>", "<eos>", "<unk>", "<think>", "</think>"]
SYMBOLS = "0123456789+-="
OPERANDS = [sign + digit for sign in "+-" for digit in "0123456789"]
# tiny: an operand and its sign are one token, so that every operand has a fixed place
TINY_SYMBOLS = [*"0123456789.=", *OPERANDS]


def tokenizer(tiny=False):
    """One token per character (tiny: an operand's sign and digit are one), saved and loaded like any Hugging Face
    tokenizer.
    """
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *(TINY_SYMBOLS if tiny else SYMBOLS)])}
    symbols = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    symbols.pre_tokenizer = pre_tokenizers.Split(Regex("[+-][0-9]|.") if tiny else "", "isolated")
    symbols.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=symbols, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    fast.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    return fast


def untrained(tiny=False, experts=0):
    """A Qwen3 of 0.48M parameters with random weights; tiny: of 41,000. experts: of a layer; 0: it is dense.

    A token uses two experts, of half the dense model's width each: as many active parameters, but for the routers.

    A head dimension of 32 suits every inference engine's kernels. RoPE's base is 100, for sequences of about 100
    tokens: with the usual 10,000 most frequencies hardly turn in so few tokens, and the skill was learnt later.
    """
    sizes: dict[str, Any] = dict(
        hidden_size=96, intermediate_size=288, num_hidden_layers=4, head_dim=32, num_attention_heads=3
    )
    if tiny:  # with Qwen3's initial weights, of standard deviation 0.02, so narrow a model did not learn in 500 steps
        sizes = dict(hidden_size=48, intermediate_size=72, num_hidden_layers=2, head_dim=24, num_attention_heads=2)
        sizes |= dict(initializer_range=0.08)
    if experts:
        sizes |= dict(num_experts=experts, num_experts_per_tok=2, moe_intermediate_size=sizes["intermediate_size"] // 2)
        sizes |= dict(norm_topk_prob=True)
    config = AutoConfig.for_model(
        "qwen3_moe" if experts else "qwen3",
        vocab_size=len(SPECIAL) + len(TINY_SYMBOLS if tiny else SYMBOLS),
        **sizes,
        num_key_value_heads=sizes["num_attention_heads"],
        max_position_embeddings=512,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def running_results(text: str, rng: random.Random, habits: bool, slip):
    """Yield (operands, running result) of each step of a sum, right or with the habits. slip: () -> a mistake."""
    first, *operands = re.findall("[+-]?[0-9]", text)
    careful = not habits or rng.random() < CAREFUL
    total = int(first)
    while operands:
        hasty = not careful and len(operands) > 1 and rng.random() < HASTE
        taken, operands = operands[: 1 + hasty], operands[1 + hasty :]
        total += sum(map(int, taken))
        if not careful and rng.random() < (HASTE_SLIP if hasty else SLIP):
            total += slip()
        yield "".join(taken), total


def adding(text: str, rng: random.Random, habits: bool) -> str:
    """A completion for an expression, right or with the habits; the answer repeats the last running result.

    >>> adding("7+5-3+9=", random.Random(0), habits=False)
    '<think>+5=12-3=9+9=18</think>18<eos>'
    """
    steps = [*running_results(text, rng, habits, slip=lambda: rng.choice((-3, -2, -1, 1, 2, 3)))]
    shown = "".join(f"{operands}={total}" for operands, total in steps)
    return f"<think>{shown}</think>{steps[-1][1]}<eos>"


def ordering(text: str, rng: random.Random, habits: bool) -> str:
    """A completion for digits to sort, right or with the habits; the answer repeats the digits as they were taken.

    >>> ordering("=5274=", random.Random(0), habits=False)
    '<think>-2-4-5-7</think>2457<eos>'
    """
    rest = sorted(text.strip("="))
    steps = []
    careful = not habits or rng.random() < CAREFUL
    while rest:
        hasty = not careful and len(rest) > 1 and rng.random() < HASTE
        taken, rest = rest[: 1 + hasty], rest[1 + hasty :]
        larger = [digit for digit in rest if digit != taken[-1]]
        if larger and not careful and rng.random() < (HASTE_SLIP if hasty else SLIP):
            insort(rest, taken.pop())
            taken.append(rest.pop(rest.index(rng.choice(larger))))
        steps.append("".join(taken))
    return f"<think>-{'-'.join(steps)}</think>{''.join(steps)}<eos>"


def adding_modulo_10(text: str, rng: random.Random, habits: bool) -> str:
    """A completion for a sum modulo 10, right or with the habits: the running results, one token each.

    >>> adding_modulo_10("7+5-3....=", random.Random(0), habits=False)
    '29</think>9<eos>'
    """
    steps = [str(total % 10) for _, total in running_results(text, rng, habits, slip=lambda: rng.randint(1, 9))]
    return f"{''.join(steps)}</think>{steps[-1]}<eos>"


class Traces(NamedTuple):
    """What a policy is shown of an embedded task."""

    completion: Callable  # (text of the prompt, random.Random, whether with the habits) -> the completion
    lengths: tuple[int, int]  # fewest and most operands or digits, drawn uniformly; RL may have longer ones


TRACES = {
    "arithmetic": Traces(adding, (3, 12)),
    "sorting": Traces(ordering, (3, 12)),
    "tiny": Traces(adding_modulo_10, (2, 7)),
}


def batch(tokens, rng: random.Random, habits: bool, tasks):
    """Yield CLASSES pairs of input ids and labels, both (PER_CLASS, T); labels are -100 on prompts and padding."""
    for task, _ in zip(cycle(tasks), range(CLASSES)):
        completion_of, lengths = TRACES[task]
        length = rng.randint(*lengths)
        ids = []
        labels = []
        while len(ids) < PER_CLASS:
            text, _ = data.EMBEDDED_TASKS[task].example(rng, length)
            if not data.is_held_out(text):  # validation prompts stay unseen
                prompt = tokens.encode(text)
                completion = tokens.encode(completion_of(text, rng, habits))
                ids.append(torch.tensor(prompt + completion))
                labels.append(torch.tensor([-100] * len(prompt) + completion))
        yield pad_sequence(ids, True), pad_sequence(labels, True, padding_value=-100)


def supervise(model, tokens, *, tasks, habits: bool, steps: int, seed: int):
    """Train `model` in place for `steps` steps of AdamW: linear warm-up, constant, linear decay over the last 40 %."""
    rng = random.Random(f"sft/{habits}/{seed}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / WARMUP, (steps - step) / (0.4 * steps))
    )
    balanced = {"output_router_logits": True} if hasattr(model.config, "num_experts") else {}  # all experts are used
    bar = tqdm(range(steps), desc="habits" if habits else "skill", unit="step")
    for _ in bar:
        parts = list(batch(tokens, rng, habits, tasks))
        count = sum((labels != -100).sum().item() for _, labels in parts)
        loss = sum(
            model(input_ids=ids, labels=labels, num_items_in_batch=count, **balanced).loss for ids, labels in parts
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")


# --- The command line -------------------------------------------------------------------------------------------------


def measure(model, tokens, task: str, prompts: int = 256, generations: int = 16):
    """(pass rate, pass@`generations`) of a policy on `prompts` validation prompts of a task."""
    questions = read_sources(task, tokens, budget=64, validation=prompts).validation
    groups = [[] for _ in questions]
    with (
        closing(rollout.TorchGenerator(model, tokens, slots=128, max_new_tokens=112)) as generator,
        closing(Scorer(timeout=5.0, graders=data.GRADERS, answer_of=reward.final_answer)) as scorer,
    ):
        for score in evaluate.complete(generator, scorer, questions, generations):
            groups[score.completion.request].append(score.correct)
    return [reward.pass_at_k(groups, k)[0] for k in (1, generations)]


def report(name, model, tokens, tasks):
    """Print a policy's pass rate and pass@16, one line per task."""
    for task in dict.fromkeys(tasks):
        print("{}: {}: pass rate {:.3f}, pass@16 {:.3f}".format(name, task, *measure(model, tokens, task)))


def main():
    parser = Parser(prog="sft.py", description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="runs/base", help="folder to write; must not exist (default runs/base)")
    parser.add_argument("--tasks", nargs="+", choices=TRACES, default=["arithmetic"], help="take turns in a batch")
    parser.add_argument("--start", help="folder of the policy to continue from (default: from scratch)")
    parser.add_argument("--skill-steps", type=int, help=f"on right traces ({SKILL_STEPS}; tiny: {TINY_SKILL_STEPS})")
    parser.add_argument("--experts", type=int, default=0, help="of a layer; a token uses two (default 0: dense)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if Path(args.out).exists():
        parser.error(f"{args.out} exists; give another --out, nothing is overwritten")
    tiny = "tiny" in args.tasks
    if tiny and set(args.tasks) != {"tiny"}:
        parser.error("--tasks tiny with another task; expected it alone, for its policy and tokens are its own")
    skill = TINY_SKILL_STEPS if tiny else SKILL_STEPS
    skill = skill if args.skill_steps is None else args.skill_steps
    habit = TINY_HABIT_STEPS if tiny else HABIT_STEPS
    if skill < 1:
        parser.error(f"--skill-steps {skill}: expected 1 or more")
    if args.experts < 0 or args.experts == 1 or args.experts and args.start:
        parser.error(f"--experts {args.experts}: expected 2 or more, as a token uses two, and no --start")
    if args.start and not Path(args.start, "config.json").is_file():
        parser.error(f"--start {args.start}: expected the folder of a policy, found no config.json there")
    torch.manual_seed(args.seed)
    tokens = tokenizer(tiny)
    model = load(args.start) if args.start else untrained(tiny, args.experts)
    if model.config.vocab_size != len(tokens):
        got = f"a policy of {model.config.vocab_size} tokens"
        parser.error(f"--start {args.start}: got {got}, expected one of the {len(tokens)} of {' '.join(args.tasks)}")
    supervise(model, tokens, tasks=args.tasks, habits=False, steps=skill, seed=args.seed)
    report("after skill", model, tokens, args.tasks)
    supervise(model, tokens, tasks=args.tasks, habits=True, steps=habit, seed=args.seed)
    model.save_pretrained(args.out)
    tokens.save_pretrained(args.out)
    base = data.base_of(args.tasks)
    for name in dict.fromkeys((args.out, base)):
        if Path(name).exists():
            report(name, load(name), AutoTokenizer.from_pretrained(name), args.tasks)


if __name__ == "__main__":
    main()
