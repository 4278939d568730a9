"""Claims about batches.py: what trains, micro-batches that ranks share, what the log says of a batch."""

import math
import random
from dataclasses import replace

import pytest
import torch
from conftest import alone, batch, rollout, sampled

import batches


def share_of(groups, rank=0, trainers=1, token_budget=10_000, **weighing):
    """A share, by default ScaleRL's for one trainer and with everything in one micro-batch."""
    weighing = {"zero_variance_filter": True, "normalisation": "batch", "max_new_tokens": 99} | weighing
    ranks = dict(rank=rank, trainers=trainers, device="cpu") | weighing
    return batches.divide(groups, token_budget=token_budget, **ranks)


def planned(share):
    """{key: (advantage, prompt_index)} of what a share trains on."""
    items = [item for micro_batch in share.micro_batches for item in micro_batch]
    return {item.rollout.key: (item.advantage, item.prompt_index) for item in items}


@pytest.mark.parametrize("filtered", [True, False])
def test_a_group_whose_verifier_failed_is_dropped_and_leaves_no_nan(filtered):
    groups = batch([True, None], [True, False])
    share = share_of(groups, zero_variance_filter=filtered)
    assert set(planned(share)) == {h.key for h in groups[1]} and share.dropped == groups[0]
    assert sorted(advantage for advantage, _ in planned(share).values()) == pytest.approx([-1, 1], abs=1e-5)


def test_truncated_completions_are_wrong_in_the_group_mean_but_carry_no_loss():
    [group] = batch([True, False, False, False])
    group[3] = replace(group[3], truncated=True)
    share = share_of([group], normalisation="none")
    # Rewards 1 -1 -1 -1 have mean -1/2. Without the truncated one it would be -1/3, and the first advantage 4/3.
    assert planned(share) == {group[0].key: (1.5, 0), group[1].key: (-0.5, 0), group[2].key: (-0.5, 0)}
    assert share.dropped == [group[3]]
    assert (share.denominators.completions, share.denominators.tokens) == (3, 12)
    assert share.denominators.max_new_tokens == 99  # of an aggregation: as given, whatever the completions' lengths


def groups_of_three(rng):
    """Groups of three rollouts: right, wrong, unverified or truncated; up to 9 prompt tokens and 30 of completion."""

    def drawn(p):
        cut, injected = rng.random() < 0.5, rng.random() < 0.5
        correct = rng.choice([True, True, False, False, None]) and not cut
        lengths = dict(tokens=rng.randint(2, 31), prompt_tokens=rng.randint(1, 9))
        return rollout(correct, p, injected=injected, truncated=cut, **lengths)

    return [[drawn(p) for _ in range(3)] for p in range(rng.randint(1, 7))]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("seed", range(20))
def test_ranks_share_the_batch_in_as_many_micro_batches_each_within_the_budget(seed, device):
    rng = random.Random(seed)
    groups, trainers, budget = groups_of_three(rng), rng.randint(1, 4), rng.randint(40, 120)
    shares = [share_of(groups, rank, trainers, budget, device=device) for rank in range(trainers)]
    assert len({len(share.micro_batches) for share in shares}) == 1  # else the ranks would wait for each other for ever
    for micro_batch in (micro_batch for share in shares for micro_batch in share.micro_batches):
        assert batches.padded(micro_batch, device) <= budget or len(micro_batch) == 1
    read = [key for share in shares for key in planned(share)]
    wanted = [h for group, keep in zip(groups, shares[0].kept) for h in group if keep and not h.truncated]
    if wanted:
        assert sorted(read) == sorted(h.key for h in wanted)
    else:  # log-probs of the newest rollouts are compared all the same
        assert len(read) == len({*read}) > 0 and {share.tokens for share in shares} == {0}
    counts = len(wanted), sum(sum(h.versions.values()) for h in wanted)  # over all ranks; without injected tokens
    for share in shares:
        assert (share.denominators.completions, share.denominators.tokens) == counts
        # what no rank reads has to leave the store too
        assert sorted(read + [h.key for h in share.dropped]) == sorted(h.key for group in groups for h in group)


def test_a_micro_batch_puts_each_logprob_one_before_its_token_and_masks_prompt_injection_and_padding():
    longer = sampled([5, 6], [7, 8, 9], [-0.5, 0.0, -0.25], [True, False, True])
    items = [batches.Item(None, 1.5, 4), batches.Item(None, -0.5, 0)]
    found = batches.collate(items, lambda _: [longer, sampled([1], [2], [-2.0])], "cpu")
    assert found.input_ids.tolist() == [[5, 6, 7, 8, 9], [1, 2, 0, 0, 0]]
    # Column i belongs to token i + 1, as the log-probs of input_ids[:, 1:] do.
    assert found.mask.tolist() == [[False, True, False, True], [True, False, False, False]]
    assert found.gen_logprobs.tolist() == [[0, -0.5, 0, -0.25], [-2, 0, 0, 0]]
    assert found.advantages.tolist() == [1.5, -0.5] and found.prompt_index.tolist() == [4, 0]


def test_statistics_are_means_per_token_over_micro_batches_and_nothing_without_tokens():
    statistics = batches.Statistics()
    mask = torch.tensor([[True, False]])
    for rho, entropy, clipped in ((1.0, 2.0, False), (3.0, 1.0, True)):  # the masked second tokens count nowhere
        part = batches.Batch(None, mask, torch.zeros(1, 2), None, None, torch.tensor([[rho > 1, True]]))
        acts = torch.tensor([[clipped, True]])
        statistics.add(torch.tensor([[math.log(rho), 5.0]]), torch.tensor([[entropy, 9.0]]), part, acts)
    found = statistics.means(alone)
    expected = {"rho_mean": 2, "entropy": 1.5, "clipped": 0.5, "rho_max": 3, "log_rho": math.log(3) / 2}
    # (1 + 3)^2 / (2 (1 + 9)): the share of the tokens that equal weights would need
    expected |= {"log_rho_youngest": math.log(3), "effective_sample_size": 0.8}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert batches.Statistics().means(alone) == {}


def test_a_batchs_staleness_counts_sampled_tokens_and_its_means_leave_out_what_has_no_verdict():
    groups = [[replace(rollout(True, 4), versions={2: 3, 5: 1}), rollout(None, 4, tokens=8, injected=2)]]
    found = batches.batch_metrics(groups, 5)
    assert found["staleness"] == {0: 1, 3: 3, 5: 6} and found["prompts"] == [4]
    assert (found["reward"], found["pass_rate"], found["unverified"]) == (1.0, 1.0, 1)
    assert (found["tokens"], found["length_max"], found["interrupted"]) == (12, 8, 0.5)
