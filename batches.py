"""From a batch's rollouts to tensors, which ranks train on in micro-batches; and statistics over a batch.

    divide          P groups of G -> the Share of one trainer rank: advantages, micro-batches, denominators of the batch
    collate         a micro-batch -> padded tensors, with the tokens that it takes out of the queue
    Statistics      sums over a trainer's micro-batches -> the log's means per token
    batch_metrics   what the log says of rollouts, whatever was trained on

Denominators are those of the whole batch (loss.global_denominators), so the number of micro-batches and of ranks
changes nothing but speed.

Run by train.py. Test: pytest tests/test_batches.py
Page: docs/paper/batch.md
"""

from collections import Counter
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

import torch

import experts
import loss
from decoding import rounded
from pipeline import RolloutMetadata

ENOUGH = 1000  # tokens: their mean |log rho| can be told from chance


class Item(NamedTuple):
    """A rollout that carries loss."""

    rollout: RolloutMetadata
    advantage: float  # normalised
    prompt_index: int  # position of its prompt in the batch


class Share(NamedTuple):
    """What one trainer rank does in one optimizer step."""

    kept: torch.Tensor  # (P,) bool: prompts whose groups carry loss
    micro_batches: list  # of lists of Item; an empty list is a dummy: under FSDP all ranks must run equally many
    padded: list  # tokens of each micro-batch, padding included; 0 where nothing is trained on
    denominators: loss.Denominators  # of the whole batch, all ranks
    dropped: list  # RolloutMetadata whose tokens no rank needs
    newest: int  # policy version; see `newest_version_with`
    tokens: int  # of the rollouts that carry loss, their prompts included, all ranks

    @property
    def trains(self):
        """Whether any token carries loss. If none does, log-probs are only compared."""
        return self.denominators.tokens > 0


class Batch(NamedTuple):
    """A micro-batch as tensors. mask and gen_logprobs (nats) belong to the tokens input_ids[:, 1:]."""

    input_ids: torch.Tensor  # (B, T)
    mask: torch.Tensor  # (B, T-1) bool
    gen_logprobs: torch.Tensor  # (B, T-1)
    advantages: torch.Tensor  # (B,)
    prompt_index: torch.Tensor  # (B,)
    young: torch.Tensor  # (B, T-1) bool: sampled by Share.newest or a newer version, wherever mask is True
    experts: torch.Tensor | None = None  # that the generator chose, for experts.Replay; None for a dense model


def divide(groups, *, zero_variance_filter, normalisation, max_new_tokens, token_budget, rank, trainers, device):
    """Sec. 3.2: filter, normalise, and the Share of trainer `rank` in one batch; all ranks get equally many parts.

    groups        P lists of G pipeline.RolloutMetadata
    zero_variance_filter, normalisation    as in loss.compute_advantages. Truncated rollouts carry no loss (A.15)
    max_new_tokens   a completion's most tokens, for aggregations that divide by it
    token_budget     padded tokens per micro-batch; at least the longest rollout with its prompt
    device           of the trainers, as in `columns`

    Every rank sorts the whole batch by length, so that little is padding, fills micro-batches up to `token_budget`, and
    takes every T-th of them (T = `trainers`).
    """
    kept, advantages = loss.compute_advantages(
        groups, zero_variance_filter=zero_variance_filter, normalisation=normalisation
    )
    trained = loss.carries_loss(groups, kept)
    items = [Item(groups[p][g], advantages[p, g].item(), p) for p, g in trained.nonzero().tolist()]
    sampled = torch.tensor([[sum(rollout.versions.values()) for rollout in group] for group in groups]) * trained
    prompt_index = torch.arange(len(groups))[:, None].expand(sampled.shape)
    micro_batches = [[]]
    for item in sorted(items, key=lambda item: (item.rollout.length, item.rollout.key)):
        if (len(micro_batches[-1]) + 1) * columns(item.rollout.length, device) > token_budget:
            micro_batches.append([])
        micro_batches[-1].append(item)
    micro_batches += [[]] * (-len(micro_batches) % trainers)
    dropped = [groups[p][g] for p, g in (~trained).nonzero().tolist()]
    read = items  # rollouts that some rank reads the tokens of
    if not items:
        micro_batches, read, dropped = compared_only(dropped, token_budget, trainers, device)
    denominators = loss.global_denominators(sampled.flatten(), prompt_index.flatten())
    mine = micro_batches[rank::trainers]
    return Share(
        kept,
        mine,
        [padded(items, device) if denominators.tokens else 0 for items in mine],
        denominators._replace(max_new_tokens=max_new_tokens),
        dropped,
        newest_version_with([item.rollout for item in read]),
        sum(item.rollout.length for item in items),
    )


def compared_only(rollouts, token_budget, trainers, device):
    """(a micro-batch for each trainer, the Items in them, the other rollouts) of a batch in which nothing carries loss.

    Its log-probs are compared all the same: where the generators have wrong weights, every answer may be wrong, and no
    batch would ever carry loss. The rollouts with the newest tokens are chosen.
    """
    newest_first = sorted(rollouts, key=lambda rollout: max(rollout.versions, default=0), reverse=True)
    rows = max(1, token_budget // columns(max(rollout.length for rollout in rollouts), device))
    items = [Item(rollout, 0.0, 0) for rollout in newest_first[: rows * trainers]]
    return [items[rank::trainers] for rank in range(trainers)], items, newest_first[len(items) :]


def newest_version_with(rollouts, tokens=ENOUGH):
    """The newest policy version that, with all later ones, sampled at least `tokens` of these rollouts' tokens.

    If there are fewer tokens, the oldest version.
    """
    counts = sum((Counter(rollout.versions) for rollout in rollouts), Counter())
    newest_first = sorted(counts, reverse=True)
    total = dict(zip(newest_first, accumulate(counts[version] for version in newest_first)))
    return next((version for version in total if total[version] >= tokens), min(counts, default=0))


def columns(length, device):
    """How wide a micro-batch is whose longest rollout has this length: on a GPU few widths occur (`rounded`).

    There each shape of attention costs cuDNN 25 to 450 ms, once.
    """
    return rounded(length, 256) if torch.device(device).type == "cuda" else length


def padded(items, device):
    """Tokens of a micro-batch, padding included; 0 of a dummy."""
    return len(items) * max((columns(item.rollout.length, device) for item in items), default=0)


def collate(items, take, device, newest=0):
    """One right-padded Batch on `device`; without items a dummy of one row whose mask is all False.

    take    pipeline.RolloutQueue.tokens, a function of RolloutMetadata that returns their Rollouts
    newest  of the Share
    """
    rollouts = take([item.rollout for item in items])
    width = columns(max((len(r.prompt_ids) + len(r.ids) for r in rollouts), default=2), device)
    input_ids = torch.zeros(max(len(items), 1), width, dtype=torch.long)
    mask = torch.zeros(input_ids.shape, dtype=torch.bool)
    gen_logprobs = torch.zeros(input_ids.shape)
    versions = torch.zeros(input_ids.shape, dtype=torch.long)
    for row, r in enumerate(rollouts):
        begin = len(r.prompt_ids)
        end = begin + len(r.ids)
        input_ids[row, :end] = torch.tensor(r.prompt_ids + r.ids)
        mask[row, begin:end] = torch.tensor(r.mask)
        gen_logprobs[row, begin:end] = torch.tensor(r.logprobs)
        versions[row, begin:end] = torch.tensor(r.versions)
    advantages = torch.tensor([item.advantage for item in items] or [0.0])
    prompt_index = torch.tensor([item.prompt_index for item in items] or [0])
    tensors = input_ids, mask[:, 1:], gen_logprobs[:, 1:], advantages, prompt_index, versions[:, 1:] >= newest
    return Batch(*(tensor.to(device) for tensor in tensors), experts=experts.collate(rollouts, width, device))


class Statistics:
    """Sums over the trained tokens of a trainer's micro-batches; `means` gives the log's numbers over all trainers."""

    names = ("tokens", "entropy", "rho_mean", "log_rho", "clipped", "rho_squared", "young", "log_rho_youngest")

    def __init__(self, trains=True, device="cpu"):
        self.trains = trains  # False: the tokens were compared, not trained on
        self.sums = torch.zeros(len(self.names), dtype=torch.float64, device=device)  # a GPU is not waited for
        self.rho_max = torch.zeros((), device=device)

    def add(self, logprobs, entropy, batch, clipped):
        """Add a micro-batch: logprobs, entropy (nats) and clipped (bool) are (B, T-1), as the mask of the Batch."""
        mask = batch.mask
        log_ratio = torch.where(mask, logprobs.detach() - batch.gen_logprobs, 0.0).double()
        rho = torch.where(mask, log_ratio.exp(), 0.0)
        young = mask & batch.young
        values = [mask, entropy.where(mask, 0.0), rho, log_ratio.abs(), clipped * mask, rho**2]
        values += [young, log_ratio.abs() * young]
        self.sums += torch.stack([value.double().sum() for value in values])
        self.rho_max = torch.maximum(self.rho_max, rho.max().float())

    def means(self, total):
        """Means per token (entropy; |log rho| as log_rho and log_rho_youngest; nats), rho_max, effective_sample_size =
        (sum rho)^2 / (n sum rho^2), a share of the n tokens; {} without tokens. Of tokens that were not trained on,
        log_rho_youngest alone. total: processes.Processes.total.
        """
        sums, rho_max = total(self.sums, self.rho_max)
        means = dict(zip(self.names, sums))
        tokens, young = means.pop("tokens"), means.pop("young")
        if not tokens:
            return {}
        means = {name: value / (young if name == "log_rho_youngest" else tokens) for name, value in means.items()}
        if not self.trains:
            return {"log_rho_youngest": means["log_rho_youngest"]}
        means["effective_sample_size"] = means["rho_mean"] ** 2 / means.pop("rho_squared")
        return means | {"rho_max": rho_max}


def mean(values):
    """The mean of the values; nan if there are none."""
    return fmean(values) if (values := list(values)) else float("nan")


def batch_metrics(groups, version):
    """What the log says of the rollouts of a batch that is trained on at `version`: P lists of RolloutMetadata."""
    rollouts = sum(groups, [])
    known = [rollout for rollout in rollouts if rollout.value is not None]
    sampled = sum((Counter(rollout.versions) for rollout in rollouts), Counter())
    return {
        "prompts": [group[0].prompt for group in groups],
        "reward": mean(rollout.reward for rollout in known),
        "pass_rate": mean(rollout.value for rollout in known),
        "tokens": sum(rollout.tokens for rollout in rollouts),
        "staleness": {version - sampled_by: n for sampled_by, n in sorted(sampled.items(), reverse=True)},
        "length_mean": mean(rollout.tokens for rollout in rollouts),
        "length_max": max(rollout.tokens for rollout in rollouts),
        "truncated": mean(rollout.truncated for rollout in rollouts),
        "interrupted": mean(rollout.interrupted for rollout in rollouts),
        "unverified": len(rollouts) - len(known),
    }
