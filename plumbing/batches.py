"""From the rollouts of a batch to tensors: which rank trains on which completions in which micro-batch, and statistics.

    make_plan    P groups of G rollouts -> micro-batches for each trainer, denominators, what carries no loss
    collate      a micro-batch's completions -> padded tensors
    statistics   sums over a micro-batch, from which the log's means per token come

Denominators are those of the whole batch (loss.global_denominators), so the number of micro-batches and of ranks
changes nothing but speed.

Run by train.py. Test: pytest tests/test_loss.py
"""

from typing import NamedTuple

import torch

import loss
from pipeline import RolloutMetadata


class Item(NamedTuple):
    """A completion that carries loss."""

    rollout: RolloutMetadata
    advantage: float  # normalised
    prompt_index: int  # position of its prompt in the batch


class Plan(NamedTuple):
    """What one trainer rank does in one optimizer step."""

    micro_batches: list  # of lists of Item; an empty list is a dummy: under FSDP all ranks must run equally many
    denominators: loss.Denominators  # of the whole batch, all ranks
    dropped: list  # rollouts whose completions carry no loss
    kept: int  # prompts that the filter kept
    tokens: int  # of the completions that carry loss, their prompts included, over all ranks


def make_plan(groups, kept, advantages, *, token_budget, rank, trainers):
    """The Plan of trainer `rank` for one batch; all ranks get equally many micro-batches.

    groups            P lists of G rollouts (pipeline.RolloutMetadata)
    kept, advantages  (P,) bool and (P, G), as loss.compute_advantages returns them
    token_budget      padded tokens per micro-batch; at least the longest completion with its prompt

    Every rank does the same work: it sorts the whole batch by length, so that little is padding, fills micro-batches
    up to `token_budget`, and takes every T-th of them (T = `trainers`).
    """
    items = [
        Item(rollout, advantages[p, g].item(), p) for p, group in enumerate(groups) for g, rollout in enumerate(group)
    ]
    chosen = [item for item in items if kept[item.prompt_index] and not item.rollout.truncated]
    dropped = [item.rollout for item in items if not kept[item.prompt_index] or item.rollout.truncated]
    # The extra row, 0 tokens of the last prompt, makes room in the denominators for every prompt even if no completion
    # is left: a dummy micro-batch looks up prompt 0.
    counts = torch.tensor([(sum(rollout.versions.values()), p) for rollout, _, p in chosen] + [(0, len(groups) - 1)])
    micro_batches = [[]]
    for item in sorted(chosen, key=lambda item: (item.rollout.length, item.rollout.key)):
        if (len(micro_batches[-1]) + 1) * item.rollout.length > token_budget:
            micro_batches.append([])
        micro_batches[-1].append(item)
    micro_batches += [[]] * (-len(micro_batches) % trainers)
    return Plan(
        micro_batches[rank::trainers],
        loss.global_denominators(counts[:, 0], counts[:, 1]),
        dropped,
        int(kept.sum()),
        sum(rollout.length for rollout, *_ in chosen),
    )


def padded(items):
    """Tokens of a micro-batch, padding included; 0 of a dummy."""
    return len(items) * max((item.rollout.length for item in items), default=0)


def collate(items, completions, device):
    """One micro-batch, right-padded: input_ids (B, T), mask and gen_logprobs (B, T-1), advantages, prompt_index (B,).

    items        Items of the micro-batch; without any, the result is a dummy of one row whose mask is all False
    completions  the pipeline.Completions of the items, in the same order
    mask and gen_logprobs (nats) belong to the tokens input_ids[:, 1:].
    """
    width = max((len(c.prompt_ids) + len(c.ids) for c in completions), default=2)
    input_ids = torch.zeros(max(len(items), 1), width, dtype=torch.long)
    mask = torch.zeros(input_ids.shape, dtype=torch.bool)
    gen_logprobs = torch.zeros(input_ids.shape)
    for row, c in enumerate(completions):
        begin = len(c.prompt_ids)
        end = begin + len(c.ids)
        input_ids[row, :end] = torch.tensor(c.prompt_ids + c.ids)
        mask[row, begin:end] = torch.tensor(c.mask)
        gen_logprobs[row, begin:end] = torch.tensor(c.logprobs)
    advantages = torch.tensor([item.advantage for item in items] or [0.0])
    prompt_index = torch.tensor([item.prompt_index for item in items] or [0])
    return [tensor.to(device) for tensor in (input_ids, mask[:, 1:], gen_logprobs[:, 1:], advantages, prompt_index)]


# Names of the sums that `statistics` returns. Divided by the first, each is the log's mean over tokens under that name
# (entropy and log_rho in nats); of rho_squared the log only has what `effective_sample_size` makes of it.
STATISTICS = ("tokens", "entropy", "rho_mean", "log_rho", "clipped", "rho_squared")


def statistics(logprobs, gen_logprobs, entropy, clipped, mask):
    """(sums named in STATISTICS over the trained tokens of a micro-batch, (6,) float64; largest rho, 0.0 without any).

    logprobs, gen_logprobs, entropy  (B, T) nats
    clipped, mask                    (B, T) bool
    """
    log_ratio = (logprobs.detach() - gen_logprobs)[mask].double()
    rho = log_ratio.exp()
    sums = [mask.sum(), entropy[mask].sum(), rho.sum(), log_ratio.abs().sum(), (clipped & mask).sum(), (rho**2).sum()]
    return torch.stack([s.double() for s in sums]).cpu(), max(rho.tolist(), default=0.0)


def means(sums, rho_max):
    """The log's statistics of a step from the sums of all micro-batches (STATISTICS); {} without tokens.

    effective_sample_size = (sum rho)^2 / (n sum rho^2), a share of the n trained tokens; 1 if all have the same weight.
    """
    found = dict(zip(STATISTICS, sums))
    tokens = found.pop("tokens")
    if not tokens:
        return {}
    found = {name: value / tokens for name, value in found.items()}
    share = found["rho_mean"] ** 2 / found.pop("rho_squared")
    return found | {"effective_sample_size": share, "rho_max": rho_max}
