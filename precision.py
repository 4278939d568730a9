"""FP32 LM head, token log-probabilities in bounded memory, and the train/generate mismatch they are meant to remove.

Paper: Sec. 3.2 (FP32 at the LM head) and conference App. A.19 (log rho at step 0). With h the final hidden state of a
position, W the head weight and tau the sampling temperature:

    z = W h                                 logits: matmul in fp32 on the generator and on the trainer
    log pi(y) = z_y / tau - log sum_j exp(z_j / tau)                  always fp32
    H = - sum_j pi(j) log pi(j)                                       entropy, a statistic: carries no gradient
    d log pi(y) / d z_j = (1[j = y] - pi(j)) / tau                    what the backward pass recomputes chunk by chunk
    log rho = log pi_train(y) - log pi_gen(y)                         0 for equal weights and equal arithmetic
    k3 = mean(rho - 1 - log rho)            over tokens sampled from pi_gen: an estimate of KL(pi_gen || pi_train)

h -> hidden (N, H), W -> head_weight (V, H), y -> ids (N,), tau -> temperature, rho -> ratio.
Both sides multiply the same W, rounded to the generators' dtype, since fp32 products of different weights would not
agree.

Deviation: none known.
Open in the paper: whether the log-softmax is in fp32 when the head is not. Here it always is, in the sampler too.

Run by train.py. `python -m lab.fp32_head` repeats A.19 (for SmolLM2: figures/a19_smollm2.png).
Test: pytest tests/test_precision.py
Page: docs/paper/precision.md
"""

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

# Mean |log rho| (nats) that two backends with equal weights stay below. results/README.md has what bf16 bodies give
# (A.19); tests/test_vllm.py holds fp32 to a tenth of this.
MISMATCH_LIMIT = {torch.float32: 1e-3, torch.bfloat16: 0.1}

CHUNK = 256  # positions whose logits exist at once: on a CPU, and at least on a GPU


def forbid_tf32():
    """Keep fp32 products in fp32. Some containers set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which rounds them to TF32."""
    torch.set_float32_matmul_precision("highest")


# --- Head, log-probabilities, entropy --------------------------------------------------------------------------------


def head_logits(hidden, head_weight, fp32_head):
    """Sec. 3.2: logits (..., V), returned in fp32; the matmul runs in fp32 if `fp32_head`, else in head_weight's dtype.

    hidden       (..., H)  final hidden states, any float dtype
    head_weight  (V, H)    in the generators' dtype: this rounding is shared by both sides

    Autocast is switched off, since it would turn the fp32 product back into a bf16 one.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        if fp32_head:
            return _product(hidden, head_weight.T)
        return (hidden.to(head_weight.dtype) @ head_weight.T).float()


def _product(left, right):
    """left @ right, (n, H) and (H, m), in fp32.

    The product of two bf16 numbers is exact in fp32. So on a GPU, tensor cores that multiply bf16 and sum in fp32
    compute what an fp32 product of the same numbers does, in another order and about ten times as fast.
    """
    if left.is_cuda and left.dtype == right.dtype == torch.bfloat16:
        return torch.mm(left.flatten(0, -2), right, out_dtype=torch.float32).unflatten(0, left.shape[:-1])
    return left.float() @ right.float()


def as_factor(head_weight, fp32_head):
    """The head weight (V, H) as `head_logits` multiplies it: in fp32, unless tensor cores do the product.

    Converting costs about as much as a product: where one weight is multiplied often, keep the result.
    """
    on_tensor_cores = head_weight.is_cuda and head_weight.dtype == torch.bfloat16
    return head_weight.float() if fp32_head and not on_tensor_cores else head_weight


def split(values, dtype):
    """fp32 `values` as one or two tensors of `dtype` that add up to them.

    Two bf16 numbers hold 16 bits: their sum is off by at most 2^-16 of a value. So the gradients of an fp32 head on
    tensor cores have a relative error of 1e-6 (norms; tests/test_precision.py). With one bf16 number it is 8e-4.
    """
    if dtype == torch.float32:
        return [values]
    high = values.to(dtype)
    return [high, (values - high.float()).to(dtype)]


def _log_softmax(hidden, head_weight, temperature, fp32_head):
    """log pi (n, V), fp32 nats, of n positions; shared by forward and backward, so that both get the same values."""
    return torch.log_softmax(head_logits(hidden, head_weight, fp32_head).div_(temperature), dim=-1)


class _TokenLogprobs(torch.autograd.Function):
    """Only (chunk, V) logits exist at a time; autograd would keep all (N, V) of them (2.5 GB at N 4,096, V 151,936)."""

    @staticmethod
    def forward(ctx, hidden, head_weight, ids, chunk, temperature, fp32_head):
        ctx.save_for_backward(hidden, head_weight, ids)
        ctx.settings = chunk, temperature, fp32_head
        weight = as_factor(head_weight, fp32_head)
        logprobs = torch.empty(ids.shape, dtype=torch.float32, device=hidden.device)
        entropy = torch.empty_like(logprobs)
        for start in range(0, len(ids), chunk):
            part = slice(start, start + chunk)
            log_pi = _log_softmax(hidden[part], weight, temperature, fp32_head)
            logprobs[part] = log_pi.gather(-1, ids[part, None]).squeeze(-1)
            entropy[part] = -log_pi.exp().mul_(log_pi).sum(-1)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_logprobs, _):
        hidden, head_weight, ids = ctx.saved_tensors
        chunk, temperature, fp32_head = ctx.settings
        weight = as_factor(head_weight, fp32_head)
        grad_hidden = torch.empty_like(hidden)
        # fp32 whatever the weight's dtype: a bf16 sum over chunks would ignore terms smaller than its 8 bits resolve.
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(ids), chunk):
                part = slice(start, start + chunk)
                scale = grad_logprobs[part, None] / temperature
                grad_logits = _log_softmax(hidden[part], weight, temperature, fp32_head).exp_().mul_(-scale)
                grad_logits = grad_logits.scatter_add_(-1, ids[part, None], scale)
                pieces = split(grad_logits, weight.dtype) if fp32_head else [grad_logits.to(weight.dtype)]
                grad_hidden[part] = sum(_product(piece, weight) for piece in pieces).to(hidden.dtype)
                for piece in pieces:
                    _add_product(grad_weight, piece.T, hidden[part].to(weight.dtype))
        return grad_hidden, grad_weight.to(head_weight.dtype), None, None, None, None


def _add_product(total, left, right):
    """total += left @ right for an fp32 `total`; in place where the dtypes allow, which saves a (V, H) buffer."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += _product(left, right)


def token_logprobs(hidden, head_weight, ids, *, chunk, temperature=1.0, fp32_head=True):
    """log pi of the tokens `ids` and the entropy at their positions: two fp32 tensors shaped like `ids`, in nats.

    hidden       (..., H)  states that predict `ids`; carries a gradient
    head_weight  (V, H)    carries a gradient, summed over chunks in fp32
    ids          (...)     int64
    chunk        positions whose logits exist at once (head_bytes in plumbing/memory.py)
    temperature  the sampler's, > 0: log-probs are those of the distribution that was sampled
    fp32_head    False: the matmul runs in the dtype of `head_weight` (the leave-one-out of Sec. 4)

    Raises ValueError when chunk < 1 or temperature <= 0.
    """
    if chunk < 1 or not temperature > 0:
        raise ValueError(f"expected chunk >= 1 and temperature > 0, got chunk={chunk}, temperature={temperature}")
    logprobs, entropy = _TokenLogprobs.apply(
        hidden.reshape(-1, hidden.shape[-1]), head_weight, ids.reshape(-1), chunk, temperature, fp32_head
    )
    return logprobs.view(ids.shape), entropy.view(ids.shape)


# --- The trainer's model ---------------------------------------------------------------------------------------------


class PolicyModel(nn.Module):
    """pi_train: a Hugging Face causal LM whose forward gives log-probs and entropies instead of logits.

    model        an AutoModelForCausalLM as in checkpoints.SUPPORTED; its parameters are the master weights
    dtype        the generators' dtype: the head weight is rounded to it, weights are published in it
    temperature, fp32_head, chunk    as in token_logprobs; a larger chunk takes more memory and fewer kernel launches

    One module with one forward, because FSDP2 gathers the head weight only inside the forward of the module it wraps.
    """

    def __init__(self, model, *, dtype, temperature=1.0, fp32_head=True, chunk=CHUNK):
        super().__init__()
        forbid_tf32()
        self.model = model
        self.dtype = dtype
        self.temperature = temperature
        self.fp32_head = fp32_head
        self.chunk = chunk

    def forward(self, input_ids, mask=None):
        """Log-probs and entropies (B, T-1), fp32 nats, of input_ids[:, 1:] given the tokens before each.

        input_ids  (B, T)          padded on the right. No attention mask is needed: a causal position sees only the
                                   tokens to its left, and padding is to the right of every real token.
        mask       (B, T-1) bool   True on the tokens wanted (of the completion), default all. The head is not computed
                                   elsewhere, and 0 is returned there. With an all-False mask (a dummy micro-batch)
                                   the rank still takes part in FSDP's collectives, with gradient 0.
        """
        hidden = self.model.get_decoder()(input_ids=input_ids, use_cache=False).last_hidden_state[:, :-1]
        ids = input_ids[:, 1:]
        mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        # Right for tied weights too: there both uses share one parameter, in which autograd adds their gradients.
        head_weight = self.model.get_output_embeddings().weight.to(self.dtype)
        at = mask.nonzero(as_tuple=True)  # waits for a GPU here, and not at each index
        values = token_logprobs(
            hidden[at], head_weight, ids[at], chunk=self.chunk, temperature=self.temperature, fp32_head=self.fp32_head
        )
        blank = torch.zeros(ids.shape, dtype=torch.float32, device=ids.device)
        return tuple(blank.index_put(at, value) for value in values)


def shard(policy, mesh):
    """Wrap each decoder layer and the root of `policy` in FSDP2 over the trainer ranks of `mesh`; returns `policy`.

    The layers compute in policy.dtype; master weights, gradient reduction and optimizer state are fp32. Gradients are
    *summed* over ranks, not averaged: the loss is divided by global denominators already. A single rank in fp32 has
    nothing to gather or to round, so it is only moved to the device: FSDP's hooks would cost time.
    """
    policy.float()
    if mesh.size() == 1 and policy.dtype == torch.float32:
        return policy.to(mesh.device_type)
    precision = MixedPrecisionPolicy(param_dtype=policy.dtype, reduce_dtype=torch.float32)
    for module in (*policy.model.get_decoder().layers, policy):
        # reshard_after_forward also at the root: otherwise a forward without backward leaves gathered copies behind,
        # which later forwards and full_tensors would still use after an optimizer step.
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=precision)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum
        module.set_gradient_divide_factor(1.0)
    return policy


def full_tensors(policy, dtype=None):
    """Yield (Hugging Face parameter name, whole tensor in `dtype`, default policy.dtype), by name; tied ones once.

    For publishing and for Hugging Face checkpoints. Collective under FSDP2: every trainer rank must iterate to the end.
    Without FSDP2 a tensor may share memory with its parameter; do not write to it.
    """
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # an interrupted forward leaves gathered, rounded weights behind
    for name, parameter in sorted(policy.model.named_parameters()):
        tensor = parameter.detach().to(dtype or policy.dtype)  # rounded before it is gathered: half the traffic in bf16
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def move_moments(optimizer, device):
    """Move AdamW's moments to `device`, "cuda" before an optimizer step and "cpu" after it (--offload-optimizer).

    On the host they lie in pinned memory, so that PyTorch need not wait for each copy.
    """
    for state in optimizer.state.values():
        for name, value in state.items():
            if value.dim():  # not the number of steps
                state[name] = value.to(device, non_blocking=True)
    torch.cuda.synchronize()  # a checkpoint reads them next


# --- Mismatch between pi_train and pi_gen ----------------------------------------------------------------------------


def mismatch(logprobs, gen_logprobs, mask, *, low, high):
    """How far pi_train is from pi_gen on the tokens of `mask`, sampled from pi_gen: a dict of floats.

    logprobs, gen_logprobs  (...)       nats; where mask is False any value, also -inf or nan
    mask                    (...) bool  True on tokens the policy sampled
    low, high               ratios outside [low, high] count as clipped: 0 and eps_max for CISPO, 1 - eps_low and
                            1 + eps_high for DAPO and GRPO

    Keys: tokens; mean_abs_log_ratio, max_abs_log_ratio in nats; min_ratio, max_ratio of rho = pi_train / pi_gen; k3,
    which estimates KL(pi_gen || pi_train), in nats; clipped, a share of the tokens; effective_sample_size =
    (sum rho)^2 / sum rho^2 as a share of the tokens, 1 for equal policies. Raises ValueError if mask has no True.
    """
    if not mask.any():
        raise ValueError("mismatch: expected at least one token in mask, got none (every completion filtered out?)")
    log_ratio = logprobs.detach()[mask].double() - gen_logprobs[mask].double()
    ratio = log_ratio.exp()
    return {
        "tokens": float(mask.sum()),
        "mean_abs_log_ratio": log_ratio.abs().mean().item(),
        "max_abs_log_ratio": log_ratio.abs().max().item(),
        "min_ratio": ratio.min().item(),
        "max_ratio": ratio.max().item(),
        "k3": (log_ratio.expm1() - log_ratio).mean().item(),  # rho - 1 - log rho without cancellation near 0
        "clipped": ((ratio < low) | (ratio > high)).double().mean().item(),
        "effective_sample_size": (ratio.sum() ** 2 / (ratio**2).sum() / len(ratio)).item(),
    }


def startup_check(logprobs, gen_logprobs, mask, dtype):
    """Mean |log rho| (nats) of completions sampled with the same weights that the trainer holds; it should be near 0.

    Arguments as for `mismatch`; dtype is the generators'. Raises RuntimeError if the mean exceeds MISMATCH_LIMIT[dtype]
    or is nan.
    """
    measured = mismatch(logprobs, gen_logprobs, mask, low=0.0, high=float("inf"))["mean_abs_log_ratio"]
    if not measured <= MISMATCH_LIMIT[dtype]:  # written so that nan fails too
        raise RuntimeError(
            f"start-up check: trainer and generator hold the same weights, so mean |log rho| should be at most "
            f"{MISMATCH_LIMIT[dtype]} in {dtype}; got {measured:.3g}. Likely causes: the generator does not load the "
            f"weights that it is sent; it samples at another temperature than --temperature, or with top-p or top-k; "
            f"its log-prob mode gives raw log-probs instead of those of the sampling distribution; the head dtype "
            f"differs between the two (--fp32-head on one side only); the tokenizer is not the model's, so that the "
            f"ids differ."
        )
    return measured
