"""A loss of the lab's own, and an example of one: REINFORCE, as if the weights that sampled were the trainer's.

    python -m lab.compare "cispo: --loss cispo" "no ratio: --loss lab/reinforce.py:no_ratio" --data tiny --virtual exact

Test: pytest tests/test_lab.py
"""

import torch


def no_ratio(logprobs, gen_logprobs, advantages, mask):
    """The advantage times log pi_train, per token (B, T), to be maximised; arguments as in loss.cispo."""
    return torch.where(mask, advantages[:, None] * torch.where(mask, logprobs, 0.0), 0.0)
