"""Chapter 6: precision (Sec. 3.2, A.19). Claims, wrong answers, exercises. Test: pytest tests/test_exercises.py"""

import math

import torch

from course.checks.claims import Chapter
from course.checks.losses import MASKED_LATE, NAN

PRECISION = Chapter()


# --- head ------------------------------------------------------------------------------------------------------------


def heads(head_logits, small, factor):
    """`factor` (1 + `small`) by an fp32 head, a bf16 head, an fp32 head under autocast; whether all three are fp32."""
    hidden = torch.tensor([[1.0, small]]).bfloat16()
    weight = torch.tensor([[factor, factor]]).bfloat16()
    logits = [head_logits(hidden, weight, True), head_logits(hidden, weight, False)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits.append(head_logits(hidden, weight, True))
    return [*map(float, logits), float(all(x.dtype == torch.float32 for x in logits))]


def head_cast_afterwards(hidden, head_weight, fp32_head):
    """cast after the product: what bf16 has rounded away does not come back."""
    with torch.autocast("cpu", enabled=False):
        return (hidden @ head_weight.T).float()


def head_under_autocast(hidden, head_weight, fp32_head):
    """leave autocast on: it computes the fp32 product in bf16 again."""
    dtype = torch.float32 if fp32_head else head_weight.dtype
    return (hidden.to(dtype) @ head_weight.to(dtype).T).float()


def head_always_fp32(hidden, head_weight, fp32_head):
    """ignore fp32_head: the ablation without the FP32 head would be ScaleRL itself."""
    with torch.autocast("cpu", enabled=False):
        return hidden.float() @ head_weight.float().T


def head_gives_bf16(hidden, head_weight, fp32_head):
    """return the logits in the model's dtype: the log-softmax would round them again."""
    return head_always_fp32(hidden, head_weight, fp32_head).to(head_weight.dtype)


# bf16 has 8 significant bits: 1 + 2^-9 is 1.
PRECISION.write(
    name="head",
    where="precision.py:head_logits",
    minutes=15,
    teaches="The last matrix product is where bf16 hurts: its rounding is a random importance ratio.",
    hints=(
        "Sec. 3.2, FP32 at the LM head; A.19.",
        "Autocast changes what `@` does, whatever the dtypes of its operands.",
        "Choose the dtype, switch autocast off, multiply in that dtype, return fp32.",
    ),
    says="1 + 2^-9 with an fp32 head, 1 with a bf16 head, 1 + 2^-9 under autocast too; logits are fp32",
    probe=heads,
    inputs=(2.0**-9, 1.0),
    expected=[1 + 2**-9, 1.0, 1 + 2**-9, 1.0],
    labels="fp32 head, bf16 head, fp32 head under autocast, whether all are fp32",
    mistakes=(head_cast_afterwards, head_under_autocast, head_always_fp32, head_gives_bf16),
    atol=1e-7,
)


# --- mismatch --------------------------------------------------------------------------------------------------------


SIZES = "mean_abs_log_ratio, k3, clipped, effective_sample_size"


def apart(mismatch, logprobs, gen_logprobs, mask, low, high):
    sizes = mismatch(logprobs, gen_logprobs, mask, low=low, high=high)
    return [float(sizes[name]) for name in SIZES.split(", ")]


def _apart(log_ratio, low, high):
    ratio = log_ratio.exp()
    return {
        "mean_abs_log_ratio": log_ratio.abs().mean(),
        "k3": (ratio - 1 - log_ratio).mean(),
        "clipped": ((ratio < low) | (ratio > high)).double().mean(),
        "effective_sample_size": ratio.sum() ** 2 / (ratio**2).sum() / len(ratio),
    }


def mismatch_reversed(logprobs, gen_logprobs, mask, **bounds):
    """turn the ratio round: that is k3 for KL(pi_train || pi_gen), which needs samples of pi_train."""
    return _apart((gen_logprobs - logprobs)[mask], **bounds)


def mismatch_k1(logprobs, gen_logprobs, mask, **bounds):
    """use k1 = -log rho: unbiased, but some values are negative and the mean is noisy."""
    log_ratio = (logprobs - gen_logprobs)[mask]
    return _apart(log_ratio, **bounds) | {"k3": -log_ratio.mean()}


def mismatch_size_in_tokens(logprobs, gen_logprobs, mask, **bounds):
    """leave out the division by the number of tokens: the effective sample size is asked for as a share."""
    sizes = _apart((logprobs - gen_logprobs)[mask], **bounds)
    return sizes | {"effective_sample_size": sizes["effective_sample_size"] * mask.sum()}


# Ratios 2, 4 and 1/2; the last position is padding. Mean |log rho| = ln 2 (1 + 2 + 1) / 3. k3 is the mean of
# rho - 1 - log rho = 1 - ln 2, 3 - 2 ln 2, -1/2 + ln 2, so (3.5 - 2 ln 2) / 3. Clipped: 4 and 1/2 lie outside [0.8, 3].
# Effective sample size: (2 + 4 + 1/2)^2 / (4 + 16 + 1/4) / 3.
PRECISION.write(
    name="mismatch",
    where="precision.py:mismatch",
    minutes=20,
    teaches="Equal weights on two backends are two policies; these numbers say how different.",
    hints=(
        "A.19; k3 at the top of precision.py.",
        "Masked positions may be nan. Which policy sampled the tokens, so which KL can be estimated from them?",
        "Everything is a mean over sampled tokens of a function of log rho; the docstring has the formulas. "
        "`expm1` keeps k3 exact near 0.",
    ),
    says="mean |log rho|, k3, clipped share, effective sample size of the ratios 2, 4, 1/2",
    probe=apart,
    inputs=(
        torch.tensor([[2.0, 4.0, 0.5, NAN]]).log(),
        torch.zeros(1, 4),
        torch.tensor([[True, True, True, False]]),
        0.8,
        3.0,
    ),
    expected=[4 * math.log(2) / 3, (3.5 - 2 * math.log(2)) / 3, 2 / 3, 6.5**2 / 20.25 / 3],
    labels=SIZES,
    undefined=MASKED_LATE,
    mistakes=(mismatch_reversed, mismatch_k1, mismatch_size_in_tokens),
)


# --- backward --------------------------------------------------------------------------------------------------------


def token_gradient(function, logits, temperature):
    """(2, V): d log pi(token 1) / d logits at two positions, one per chunk; the head is the identity matrix."""
    hidden = torch.tensor([logits, logits]).requires_grad_()
    logprobs, _ = function.apply(hidden, torch.eye(len(logits)), torch.tensor([1, 1]), 1, temperature, True)
    logprobs.sum().backward()
    return hidden.grad


# pi = 1/4, 1/4, 1/2 at tau = 2, y = 1: (1[j = y] - pi_j) / tau = -1/8, 3/8, -1/4 at both positions.
PRECISION.bug(
    name="backward",
    where="precision.py:_TokenLogprobs",
    minutes=25,
    teaches="A hand-written backward pass is right only for the temperatures that were tried.",
    hints=(
        "Sec. 3.2; d log pi / d z at the top of precision.py.",
        "At temperature 1 nothing is wrong.",
        "By the chain rule everything that stands between logits and log-probs appears in the gradient too.",
    ),
    says="(1[j = y] - pi_j) / tau, here for pi = 1/4, 1/4, 1/2 and tau = 2",
    probe=token_gradient,
    inputs=([0.0, 0.0, 2 * math.log(2)], 2.0),
    expected=[[-0.125, 0.375, -0.25]] * 2,
    bug=("scale = grad_logprobs[part, None] / temperature", "scale = grad_logprobs[part, None]"),
    symptom="With --temperature 0.5 gradients are half of what finite differences give; with 1.0 all is well.",
)


# --- rounding --------------------------------------------------------------------------------------------------------


PRECISION.predict(
    name="rounding",
    minutes=5,
    teaches="bf16 has 8 significant bits.",
    hints=(
        "Sec. 3.2; the test of head_logits in tests.",
        "Count significant bits, not bits after the point.",
        "The next number above 1 is 1 + 2^-7 in bf16 and 1 + 2^-23 in fp32.",
    ),
    says="1 + 2^-9 as a sum in bf16, then in fp32",
    mistakes={
        "expect bf16 to keep 2^-9: count its significant bits, from the first one of the sum.": (1 + 2**-9, 1 + 2**-9),
        "expect fp32 to lose 2^-9 too: count its significant bits.": (1.0, 1.0),
        "mix up bf16 and fp32.": (1 + 2**-9, 1.0),
    },
    labels="bf16, fp32",
    atol=1e-4,
)
