"""--loss FILE.py:FUNCTION: a loss of the user's own, which is trusted: it runs with all rights of its user.

It is called as FUNCTION(logprobs, gen_logprobs, advantages, mask), with arguments as for loss.cispo. It returns (B, T),
per token, to be maximised. Its parameters are the function's keyword defaults. The log's `clipped` is null, since
nobody says where its bound acts.

Deviation: losses of one's own are no part of the paper.

Run by settings.py. Test: pytest tests/test_user_loss.py
"""

import os

import torch

from loss import LOSSES, Loss
from pipeline import Fault
from verify import user_reward


def register_own_loss(spec):
    """Load the function and put it into loss.LOSSES under `spec`. Raises ValueError if it cannot be loaded."""
    function = user_reward.load(spec, ("logprobs", "gen_logprobs", "advantages", "mask"))
    LOSSES[spec] = Loss(checked_at_each_call(function, spec), unknown, {})


def unknown(logprobs, gen_logprobs, advantages, mask):
    """Where its cap or clip acts: nobody says."""
    return torch.full(mask.shape, float("nan"), device=mask.device)


def checked_at_each_call(function, spec):
    """The objective with this function: raises Fault if a call raises, ends the process, forks it or has another shape.

    Training would otherwise go on with what is no loss, or end without a word.
    """
    calling = False
    forked = False

    def in_parent():
        nonlocal forked
        forked = forked or calling

    def in_child():
        if calling:  # it would go on as a second rank of the same number
            os._exit(1)

    if hasattr(os, "fork"):
        os.register_at_fork(after_in_parent=in_parent, after_in_child=in_child)

    def objective(*inputs):
        nonlocal calling
        logprobs, *_, mask = inputs
        versions = [tensor._version for tensor in inputs]  # autograd counts the writes into a tensor
        calling = True
        try:
            values = function(*inputs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever the user's function raises, sys.exit too
            raise Fault(f"--loss {spec} raised {user_reward.place(error, user_reward.parsed(spec)[0])}") from error
        finally:
            calling = False
        if forked:
            raise Fault(f"--loss {spec} started a process by os.fork: expected a function of its arguments alone")
        if versions != [tensor._version for tensor in inputs]:
            raise Fault(f"--loss {spec} wrote into its arguments: expected a function that leaves them as they are")
        if not isinstance(values, torch.Tensor) or values.shape != mask.shape:
            got = f"shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
            raise Fault(f"--loss {spec}: expected a tensor of the shape of mask, (B, T); got {got}")
        if not values.is_floating_point():
            raise Fault(f"--loss {spec}: expected real numbers, got {values.dtype}")
        if logprobs.requires_grad and values.grad_fn is None:
            raise Fault(f"--loss {spec}: expected a value that depends on logprobs, got one without a gradient")
        return values

    return objective
