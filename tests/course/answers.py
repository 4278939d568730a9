"""Predictions and measurements: every function returns a number, or several. Delete the `raise` and return yours.

Think first, then look: `python exercises.py next` says whether it is right, and what is wrong if it is not.
"""

import json
from pathlib import Path


def crossing():
    """Table 1: run 0 has A = 0.585, B = 2.44, C_mid = 2,542, run 1 A = 0.645, B = 1.70, C_mid = 10,909; R_0 = 0.39.

    Returns which of them (0 or 1) has the higher pass rate at 5,000 GPU-hours, and which at 50,000.
    """
    from fit import sigmoid

    runs = (0.585, 2.44, 2542, 0.39), (0.645, 1.70, 10909, 0.39)
    return tuple(int(sigmoid(C, *runs[1]) > sigmoid(C, *runs[0])) for C in (5000, 50000))


def power_law():
    """Run 1 above ends at A = 0.645. Somebody has its points from 5,000 to 50,000 GPU-hours and fits R = A - D / C^B.

    Returns the A that this power law finds (A.4), to 0.03.
    """
    import numpy as np

    from fit import fit_power_law, sigmoid

    C = np.linspace(0, 100000, 75)
    return fit_power_law(C, sigmoid(C, 0.645, 1.70, 10909, 0.39), start=5000, stop=50000).A


def half():
    """results/long_seed0.jsonl, fitted to the first half of its compute (fit.py --forecast-error, share 0.5).

    Returns the forecast of the mean of the last five evaluations, what was measured, and forecast - measured.
    """
    from fit import forecast_error
    from plumbing.logs import read_run

    [row] = forecast_error(read_run("results/long_seed0.jsonl"), cuts=(50,))
    return row["forecast"], row["measured"], row["error"]


def weights():
    """A sampled token has become 8 times as likely as it was. CISPO has eps_max = 4, DAPO eps 0.2 and 0.26.

    Returns d objective / d log pi_train: (CISPO's, DAPO's for A = +1, CISPO's, DAPO's for A = -1).
    """
    import torch

    import loss

    found = []
    for sign in (1.0, -1.0):
        for objective, eps in ((loss.cispo, {"eps_max": 4.0}), (loss.dapo, {"eps_low": 0.2, "eps_high": 0.26})):
            logprobs = torch.tensor([[0.8]]).log().requires_grad_()
            batch = logprobs, torch.tensor([[0.1]]).log(), torch.tensor([sign]), torch.tensor([[True]])
            objective(*batch, **eps).sum().backward()
            found.append(round(logprobs.grad.item(), 3) + 0.0)
    return tuple(found)


def dropped():
    """A prompt that the policy solves with probability p gets G answers.

    Returns the probability that it has no gradient (Sec. 3.2), for p = 1/2, G = 4 and for p = 0.9, G = 16.
    """
    return tuple(p**G + (1 - p) ** G for p, G in ((0.5, 4), (0.9, 16)))


def age():
    """A token is sampled at one version and trained on at another; k = 8.

    Returns the largest difference, in optimizer steps, that can occur under (pipeline, ppo).
    """
    from pipeline import tickets_issued

    found = []
    for rule in ("pipeline", "ppo"):
        rules = dict(off_policy=rule, k=8, steps=100, prompts=1)
        # The batch of step v is ticket v, issued at the first version that allows it.
        found.append(max(v - next(u for u in range(100) if tickets_issued(u, **rules) > v) for v in range(50)))
    return tuple(found)


def staleness():
    """`python exercises.py train --steps 10` (or longer), then look into the newest runs/*/log.jsonl.

    Returns the largest age of a token (`staleness`, in optimizer steps) and the share of the tokens older than 0 steps.
    """
    ages = {}
    for row in steps():
        for age, tokens in row["staleness"].items():
            ages[int(age)] = ages.get(int(age), 0) + tokens
    return max(ages), 1 - ages.get(0, 0) / sum(ages.values())


def phrase():
    """A completion thinks for 80 tokens, gets a phrase of 17 tokens injected, and answers with 5.

    Returns how many of its tokens have a loss, and how many of the budget (--max-new-tokens) it has used.
    """
    return 80 + 5, 80 + 17 + 5


def rounding():
    """Add 1 and 2^-9 in bf16, and in fp32. Returns both sums."""
    import torch

    kinds = torch.bfloat16, torch.float32
    return tuple((torch.tensor(1.0, dtype=kind) + torch.tensor(2.0**-9, dtype=kind)).item() for kind in kinds)


def bias():
    """Of n = 4 answers c = 1 is right; pass@2 by plugging the share into 1 - (1 - p)^2, and without bias.

    Returns both.
    """
    from reward import pass_at_k

    return 1 - (1 - 1 / 4) ** 2, pass_at_k([[True, False, False, False]], 2)[0]


def flops():
    """A step of an 8B model: 768 completions of 10,000 tokens are generated, of prompts of 500 tokens, and trained on.

    Returns the floating-point operations of the step by the log's rule (`flops` in the glossary of train.py).
    """
    generated, trained = 768 * 10_000, 768 * 10_500
    return 8e9 * (2 * generated + 6 * trained)


def kept():
    """results/main_seed0.jsonl: 32 prompts a step, of which `kept` have a gradient.

    Returns the mean share kept over the first ten steps, and over the last ten.
    """
    rows = steps("results/main_seed0.jsonl")
    return tuple(sum(row["kept"] for row in part) / 320 for part in (rows[:10], rows[-10:]))


def six_steps():
    """A run of six steps with k = 0 does not depend on timing. Yours and the original's are compared by their logs.

    Returns the largest difference you expect between any two numbers of the logs, once your loss.py is right.
    """
    return 0.0


def steps(log=None):
    """For your own use: the `step` rows of a log (its path), by default of the newest one in runs/."""
    logs = sorted(Path("runs").glob("*/log.jsonl"), key=lambda path: path.stat().st_mtime)
    if not log and not logs:
        raise FileNotFoundError("no run in runs/ yet: python exercises.py train --steps 10")
    return [row for row in map(json.loads, Path(log or logs[-1]).open()) if row["kind"] == "step"]
