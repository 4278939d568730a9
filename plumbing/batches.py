"""From the groups of an optimizer step to micro-batches of tensors, and what is logged about them.

Denominators are those of the whole batch (loss.global_denominators), so that micro-batches and ranks only change speed.

Run by train.py. Test: pytest tests/test_loss.py
"""

from typing import NamedTuple

import torch

import loss
from pipeline import Header


class Item(NamedTuple):
    """A completion that carries loss."""

    header: Header
    advantage: float  # normalised
    prompt_index: int  # of its prompt in the batch


class Plan(NamedTuple):
    """What one trainer rank does in one optimizer step."""

    micro_batches: list  # of lists of Item; an empty one keeps the ranks of FSDP in step
    denominators: loss.Denominators  # of the whole batch, all ranks
    dropped: list  # headers whose completions carry no loss
    kept: int  # prompts with a gradient
    tokens: int  # trained on, prompts included, all ranks


def make_plan(groups, kept, advantages, *, token_budget, rank, trainers):
    """P groups of G headers, weighed -> Plan of trainer `rank`: as many micro-batches as every other rank's.

    Every rank sorts the whole batch by length, so that little is padding, fills micro-batches up to `token_budget`
    padded tokens and takes every T-th (`trainers`).
    """
    items = [Item(header, advantages[p, g].item(), p)
             for p, group in enumerate(groups) for g, header in enumerate(group)]
    chosen = [item for item in items if kept[item.prompt_index] and not item.header.truncated]
    dropped = [item.header for item in items if not kept[item.prompt_index] or item.header.truncated]
    # The 0 gives every prompt a place in the denominators, also when none is left: a dummy micro-batch names prompt 0.
    counts = torch.tensor([(sum(header.versions.values()), p) for header, _, p in chosen] + [(0, len(groups) - 1)])
    micro_batches = [[]]
    for item in sorted(chosen, key=lambda item: (item.header.length, item.header.key)):
        if (len(micro_batches[-1]) + 1) * item.header.length > token_budget:
            micro_batches.append([])
        micro_batches[-1].append(item)
    micro_batches += [[]] * (-len(micro_batches) % trainers)
    return Plan(micro_batches[rank::trainers], loss.global_denominators(counts[:, 0], counts[:, 1]), dropped,
                int(kept.sum()), sum(header.length for header, *_ in chosen))


def collate(items, completions, device):
    """One micro-batch, right-padded: input_ids (B, T), mask and gen_logprobs (B, T-1), advantages, prompt_index (B,).

    gen_logprobs in nats; mask and gen_logprobs are of input_ids[:, 1:]. Without items a dummy whose mask is all False.
    """
    width = max((len(c.prompt_ids) + len(c.ids) for c in completions), default=2)
    input_ids = torch.zeros(max(len(items), 1), width, dtype=torch.long)
    mask, gen_logprobs = torch.zeros(input_ids.shape, dtype=torch.bool), torch.zeros(input_ids.shape)
    for row, c in enumerate(completions):
        begin, end = len(c.prompt_ids), len(c.prompt_ids) + len(c.ids)
        input_ids[row, :end] = torch.tensor(c.prompt_ids + c.ids)
        mask[row, begin:end], gen_logprobs[row, begin:end] = torch.tensor(c.mask), torch.tensor(c.logprobs)
    advantages = torch.tensor([item.advantage for item in items] or [0.0])
    prompt_index = torch.tensor([item.prompt_index for item in items] or [0])
    return [tensor.to(device) for tensor in (input_ids, mask[:, 1:], gen_logprobs[:, 1:], advantages, prompt_index)]


# The sums of `statistics` in order, by the names that their means over tokens have in the log (entropy, log_rho: nats).
STATISTICS = ("tokens", "entropy", "rho_mean", "log_rho", "clipped")


def statistics(logprobs, gen_logprobs, entropy, clipped, mask):
    """STATISTICS of a micro-batch, summed over its trained tokens, and the largest rho; arguments (B, T), nats."""
    log_ratio = (logprobs.detach() - gen_logprobs)[mask].double()
    rho = log_ratio.exp()
    sums = [mask.sum(), entropy[mask].sum(), rho.sum(), log_ratio.abs().sum(), (clipped & mask).sum()]
    return torch.stack([s.double() for s in sums]).cpu(), max(rho.tolist(), default=0.0)
