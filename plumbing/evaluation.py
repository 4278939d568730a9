"""train.py --evaluate: mean@k and pass@k of a policy, without training (Sec. 2.1).

Test: pytest tests/test_train.py
"""

import sys
import time
from contextlib import closing
from pathlib import Path
from statistics import mean

import torch

import reward
from pipeline import Request
from plumbing import screen
from plumbing.build import make_generator, make_scorer
from plumbing.run_log import append
from plumbing.store import POLL


def complete(generator, scorer, prompts, generations):
    """Yield the scorer.Score of `generations` completions of each prompt, in the order of the verdicts; no queue.

    prompts            data.Prompts with the indices 0, 1, …
    generator, scorer  as in train.generate; the caller closes both
    """
    for prompt in prompts:
        generator.add(Request(prompt.index, generator.version, prompt, generations, evaluation=True))
    while generator.busy or scorer.pending:
        for completion in generator.step() if generator.busy else ():
            scorer.submit(completion, prompts[completion.request])
        yield from scorer.finished()
        time.sleep(0.0 if generator.busy else POLL)


def evaluate_policy(args, prompts):
    """--evaluate: print mean@k and pass@k of a policy for each validation curve, with standard errors over prompts.

    Each completion becomes a row of OUT/evaluation.jsonl. Prompts whose verifier failed are left out of the means.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    groups = [[] for _ in prompts]
    rows = Path(args.out) / "evaluation.part"  # what an interrupted evaluation leaves
    rows.unlink(missing_ok=True)
    with (
        closing(make_generator(args, device, getattr(torch, args.dtype))) as generator,
        closing(make_scorer(args)) as scorer,
        progress(len(prompts) * args.generations) as bar,
    ):
        for score in complete(generator, scorer, prompts, args.generations):
            prompt = prompts[score.completion.request]
            groups[prompt.index].append(score.value)
            append(rows, answered(prompt, score.completion, score.value))
            bar.update()
    rows.rename(rows.with_suffix(".jsonl"))
    for curve in sorted({prompt.curve for prompt in prompts}):
        known = [group for prompt, group in zip(prompts, groups) if prompt.curve == curve and None not in group]
        asked = screen.counted(len(known), "prompt")
        print(f"{curve}: {asked}, {screen.counted(args.generations, 'completion')} each")
        if not known:
            continue
        found = {f"mean@{args.generations}": reward.over_prompts([*map(mean, known)])}
        graded = any(value not in (0, 1) for group in known for value in group)  # else pass@1 is mean@k
        for k in (2**power for power in range(0 if graded else 1, args.generations.bit_length())):
            found[f"pass@{k}"] = reward.pass_at_k(known, k)
        for name, (value, stderr) in found.items():
            print(f"  {name:8} {value:.4f} +- {stderr:.4f}")


def progress(completions):
    """A progress bar; rate and remaining time come from the mean so far, because completions end in bursts."""
    return screen.progress(sys.stderr, total=completions, unit=" completions", smoothing=0.0)


def answered(prompt, completion, value):
    """A completion as a row of completions.jsonl or evaluation.jsonl. value: v from 0 to 1; None: unknown."""
    return {
        "prompt": prompt.text,
        "completion": completion.text,
        "answer": prompt.answer,
        "correct": None if value is None else value == 1,
        "value": value,
        "truncated": completion.truncated,
        "task": prompt.curve,
    }
