"""A loss of one's own: --loss FILE.py:FUNCTION, called as FUNCTION(logprobs, gen_logprobs, advantages, mask).

It returns (B, T), per token, to be maximised; arguments as for loss.cispo. Its parameters are the function's keyword
defaults. The log's `clipped` is null, since nobody says where its bound acts. The file is trusted: it runs with all
rights of its user.

Deviation: losses of one's own are no part of the paper.

Run by settings.py. Test: pytest tests/test_own_loss.py
"""

import torch

import loss
from verify import own


def register(spec):
    """Load the function and put it into loss.LOSSES under `spec`. Raises ValueError if it cannot be a loss."""
    function = own.load(spec, ("logprobs", "gen_logprobs", "advantages", "mask"))
    check(function, spec)
    loss.LOSSES[spec] = loss.Loss(function, unknown, {})


def unknown(logprobs, gen_logprobs, advantages, mask):
    """Where its cap or clip acts: nobody says."""
    return torch.full(mask.shape, float("nan"), device=mask.device)


def check(function, spec):
    """Try the loss on two completions of two and three tokens. A gradient of zero is no reason to refuse it."""
    logprobs = torch.tensor([[-0.5, -1.0, -2.0], [-3.0, -0.1, -1.5]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    try:
        found = function(logprobs, torch.full((2, 3), -1.2), torch.tensor([1.0, -1.0]), mask)
    except Exception as error:  # whatever the user's function raises
        raise ValueError(f"--loss {spec} raised {own.place(error, own.parsed(spec)[0])}") from error
    if not isinstance(found, torch.Tensor) or found.shape != mask.shape:
        got = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise ValueError(f"--loss {spec}: expected a tensor of the shape of mask, (B, T); got {got}")
    if not found[mask].isfinite().all():
        raise ValueError(f"--loss {spec}: expected finite values where mask is True, got {found[mask].tolist()}")
    if found.grad_fn is None:
        raise ValueError(f"--loss {spec}: expected a value that depends on logprobs, got one without a gradient")
