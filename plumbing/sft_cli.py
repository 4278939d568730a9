"""sft.py's command line: makes a base policy and measures it against the one in base/.

Test: pytest tests/test_sft.py
"""

from contextlib import closing
from pathlib import Path

import torch
from transformers import AutoTokenizer

import reward
import rollout
import sft
from plumbing.prompts import sources
from plumbing.setup import evaluation
from plumbing.setup.settings import BASES
from plumbing.setup.typed import Parser
from verify.scorer import Scorer


def measure(model, tokens, task: str, prompts: int = 256, generations: int = 16):
    """(pass rate, pass@`generations`) of a policy on `prompts` validation prompts of a task."""
    questions = sources.load(task, tokens, budget=64, validation=prompts).validation
    groups = [[] for _ in questions]
    with (
        closing(rollout.TorchGenerator(model, tokens, slots=128, max_new_tokens=112)) as generator,
        closing(Scorer(timeout=5.0)) as scorer,
    ):
        for score in evaluation.complete(generator, scorer, questions, generations):
            groups[score.completion.request].append(score.correct)
    return [reward.pass_at_k(groups, k)[0] for k in (1, generations)]


def report(name, model, tokens, tasks):
    """Print a policy's pass rate and pass@16, one line per task."""
    for task in dict.fromkeys(tasks):
        print("{}: {}: pass rate {:.3f}, pass@16 {:.3f}".format(name, task, *measure(model, tokens, task)))


def main():
    parser = Parser(prog="sft.py", description=sft.__doc__.split("\n")[0])
    parser.add_argument("--out", default="runs/base", help="folder to write; must not exist (default runs/base)")
    parser.add_argument("--tasks", nargs="+", choices=sft.TRACES, default=["arithmetic"], help="take turns in a batch")
    parser.add_argument("--start", help="folder of the policy to continue from (default: from scratch)")
    parser.add_argument(
        "--skill-steps", type=int, help=f"on right traces ({sft.SKILL_STEPS}; tiny: {sft.TINY_SKILL_STEPS})"
    )
    parser.add_argument("--experts", type=int, default=0, help="of a layer; a token uses two (default 0: dense)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if Path(args.out).exists():
        parser.error(f"{args.out} exists; give another --out, nothing is overwritten")
    tiny = "tiny" in args.tasks
    if tiny and set(args.tasks) != {"tiny"}:
        parser.error("--tasks tiny with another task; expected it alone, for its policy and tokens are its own")
    skill = sft.TINY_SKILL_STEPS if tiny else sft.SKILL_STEPS
    skill = skill if args.skill_steps is None else args.skill_steps
    habit = sft.TINY_HABIT_STEPS if tiny else sft.HABIT_STEPS
    torch.manual_seed(args.seed)
    tokens = sft.tokenizer(tiny)
    model = sft.load(args.start) if args.start else sft.untrained(tiny, args.experts)
    sft.supervise(model, tokens, tasks=args.tasks, habits=False, steps=skill, seed=args.seed)
    report("after skill", model, tokens, args.tasks)
    sft.supervise(model, tokens, tasks=args.tasks, habits=True, steps=habit, seed=args.seed)
    model.save_pretrained(args.out)
    tokens.save_pretrained(args.out)
    base = next((BASES[task] for task in args.tasks if task in BASES), "base")
    for name in dict.fromkeys((args.out, base)):
        if Path(name).exists():
            report(name, sft.load(name), AutoTokenizer.from_pretrained(name), args.tasks)


if __name__ == "__main__":
    main()
