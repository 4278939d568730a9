"""--loss FILE.py:FUNCTION: a loss of the user's own, which is trusted: it runs with all rights of its user.

It is called with logprobs, gen_logprobs, advantages and mask, as for loss.cispo, or with those of them that it names.
It returns (B, T), per token, to be maximised. Its parameters are the function's keyword defaults. The log's `clipped`
is null, since nobody says where its bound acts.

Deviation: losses of one's own are no part of the paper.

Run by settings.py. Test: pytest tests/test_user_loss.py
"""

import os
import sys
import threading

import torch

from loss import LOSSES, Loss
from pipeline import Fault
from verify import user_reward

HANGS = 600.0  # seconds after which a call counts as hanging, in virtual time too, where no heartbeat watches it


def register_own_loss(spec):
    """Load the function and put it into loss.LOSSES under `spec`. Raises ValueError if it cannot be loaded."""
    function = user_reward.load(spec, ("logprobs", "gen_logprobs", "advantages", "mask"))
    LOSSES[spec] = Loss(objective_of(function, spec), unknown, {})


def unknown(logprobs, gen_logprobs, advantages, mask):
    """Where its cap or clip acts: nobody says."""
    return torch.full(mask.shape, float("nan"), device=mask.device)


def objective_of(function, spec):
    """The objective with this function. It raises Fault if a call raises, exits, or returns what is no loss."""

    def hangs():
        print(f"train.py: error: --loss {spec} has not returned for {HANGS:g} s", file=sys.stderr, flush=True)
        os._exit(1)  # the main thread is in its code

    def objective(*inputs):
        logprobs, *_, mask = inputs
        watch = threading.Timer(HANGS, hangs)
        watch.daemon = True
        watch.start()
        try:
            values = function(*inputs)
        except (Exception, SystemExit) as error:  # whatever the user's function raises
            raise Fault(f"--loss {spec} raised {user_reward.place(error, user_reward.parsed(spec)[0])}") from error
        finally:
            watch.cancel()
        if not isinstance(values, torch.Tensor) or values.shape != mask.shape:
            got = f"shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
            raise Fault(f"--loss {spec}: expected a tensor of the shape of mask, (B, T); got {got}")
        if not values.is_floating_point():
            raise Fault(f"--loss {spec}: expected real numbers, got {values.dtype}")
        if logprobs.requires_grad and values.grad_fn is None:
            raise Fault(f"--loss {spec}: expected a value that depends on logprobs, got one without a gradient")
        return values

    return objective
