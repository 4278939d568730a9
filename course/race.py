"""Two losses raced on a policy of 640 numbers: seconds instead of hours, so that ten seeds and an interval are cheap.

    python -m course.race cispo dapo      the final pass rates of both on ten seeds, and the mean difference

The policy is a table: for each of 16 prompts and 4 places a distribution over 10 tokens, all equal at first. An answer
is right if it has the prompt's token at two given places. Everything else is the project's own: objective (loss.py),
advantages, filter, prompt average; completions are sampled by a policy that is `staleness` optimizer steps old.

What it says holds for this policy and this task only: a table cannot generalise, and its steps are large.

Test: pytest tests/test_exercises.py -k race
"""

import argparse
import functools
import math

import torch

import loss

PROMPTS, PLACES, TOKENS, GENERATIONS = 16, 4, 10, 16
SEEDS = 10


@functools.cache
def race(name, seed, *, steps=50, staleness=8, lr=0.2):
    """The pass rate, exact, of a policy trained with this loss. name: in loss.LOSSES; staleness: optimizer steps"""
    draws = torch.Generator().manual_seed(seed)
    right = torch.randint(TOKENS, (PROMPTS, 2), generator=draws)
    table = torch.zeros(PROMPTS, PLACES, TOKENS, requires_grad=True)
    optimizer = torch.optim.Adam([table], lr=lr)
    past = []
    chosen = loss.LOSSES[name]
    mask = torch.ones(PROMPTS * GENERATIONS, PLACES, dtype=torch.bool)
    index = torch.arange(PROMPTS).repeat_interleave(GENERATIONS)
    for _ in range(steps):
        past = [*past[-staleness:], table.detach().clone()]
        gen = past[0].log_softmax(-1)[index]  # (B, places, tokens): the weights of `staleness` steps ago
        tokens = torch.multinomial(gen.exp().flatten(0, 1), 1, generator=draws).view(mask.shape)
        rewards = (tokens[:, :2] == right[index]).all(-1).view(PROMPTS, GENERATIONS) * 2.0 - 1
        kept = loss.nonzero_variance(rewards)
        advantages = torch.zeros_like(rewards)
        if kept.any():
            advantages[kept] = loss.normalise(loss.group_advantages(rewards[kept]), "batch")
        used = mask & kept[index][:, None]
        logprobs = table.log_softmax(-1)[index].gather(-1, tokens[..., None])[..., 0]
        gen_logprobs = gen.gather(-1, tokens[..., None])[..., 0]
        clips = {clip: one.default for clip, one in chosen.clips.items()}
        values = chosen.objective(logprobs, gen_logprobs, advantages.flatten(), used, **clips)
        whole = loss.global_denominators(used.sum(-1), index)
        optimizer.zero_grad()
        (-loss.aggregate(values, used, index, "prompt", whole)).backward()
        optimizer.step()
    chances = table.detach().softmax(-1)[:, :2].gather(-1, right[..., None])[..., 0]
    return float(chances.prod(-1).mean())


def interval(differences):
    """(mean, low, high) of paired differences: the mean and its 95 % interval by Student's t, for ten seeds."""
    mean = sum(differences) / len(differences)
    variance = sum((x - mean) ** 2 for x in differences) / (len(differences) - 1)
    half = 2.262 * math.sqrt(variance / len(differences))  # t of 9 degrees of freedom
    return mean, mean - half, mean + half


def main():
    parser = argparse.ArgumentParser(prog="python -m course.race", description=__doc__.split("\n")[0])
    parser.add_argument("losses", nargs=2, choices=loss.LOSSES)
    first, second = parser.parse_args().losses
    rates = [[race(name, seed) for seed in range(SEEDS)] for name in (first, second)]
    for name, values in zip((first, second), rates):
        print(f"{name:6} {' '.join(f'{x:.3f}' for x in values)}")
    mean, low, high = interval([a - b for a, b in zip(*rates)])
    print(f"{first} - {second}: {mean:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}")


if __name__ == "__main__":
    main()
