"""Sec. 3.2 and App. A.19: the FP32 head, chunked log-probs, FSDP2 and the mismatch statistics, as claims."""

from itertools import product

import conftest
import pytest
import torch
import torch.distributed as dist
from conftest import check_exercise, close, of_tokens, refuses, run_ranks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.testing import assert_close

import precision
from plumbing.checkpoints import SUPPORTED

NAN, INF = float("nan"), float("inf")
DENSE = ("qwen3", "llama", "gemma")


tied_or_not = pytest.mark.parametrize("tied", [False, True])


def tiny_model(kind="qwen3", tied=False):
    return conftest.tiny_model(kind, tie_word_embeddings=tied, sliding_window=None)


def token_ids(rows=4, length=7):
    return torch.randint(3, 24, (rows, length), generator=torch.Generator().manual_seed(1))


def gradients(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}


# --- Sec. 3.2: the head ----------------------------------------------------------------------------------------------


def test_sec32_fp32_head_keeps_what_bf16_rounds_away():
    check_exercise(precision, "head")


def test_tf32_products_that_a_container_allows_are_switched_off():
    torch.set_float32_matmul_precision("high")
    try:
        precision.PolicyModel(tiny_model(), dtype=torch.float32)
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_fp32_head_on_tensor_cores_has_the_gradients_of_an_fp32_product(monkeypatch):
    torch.manual_seed(0)
    hidden, weight = torch.randn(64, 128).bfloat16().float(), torch.randn(500, 128).bfloat16().float()
    ids = torch.randint(0, 500, (64,))

    def gradients_of_the_head():
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        precision.token_logprobs(*leaves, ids, chunk=16)[0].sum().backward()
        return [leaf.grad for leaf in leaves]

    expected = gradients_of_the_head()
    # The factors that tensor cores get; their sums in fp32 are those of the CPU, in another order.
    monkeypatch.setattr(precision, "as_factor", lambda head_weight, fp32_head: head_weight.bfloat16())
    for found, wanted in zip(gradients_of_the_head(), expected):
        assert 0 < (found - wanted).norm() <= 2**-16 * wanted.norm()  # one bf16 number in place of two: 8e-4


# --- token_logprobs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [5, 1000])
def test_token_logprobs_and_gradients_equal_the_unchunked_ones(chunk):
    torch.manual_seed(0)
    hidden, weight = torch.randn(3, 4, 8), torch.randn(40, 8)
    ids, upstream = torch.randint(0, 40, (3, 4)), torch.randn(3, 4)
    leaves = [[one.clone().requires_grad_() for one in (hidden, weight)] for _ in range(2)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        chunked, entropy = precision.token_logprobs(*leaves[0], ids, chunk=chunk, temperature=0.7)
        (chunked * upstream).sum().backward()
    logits = leaves[1][0] @ leaves[1][1].T / 0.7
    naive = of_tokens(logits, ids)
    (naive * upstream).sum().backward()
    # in fp32 only the order of summation differs (a bf16 product under autocast would be off by 1e-2)
    assert close(chunked, naive, 1e-5) and not entropy.requires_grad
    assert close(entropy, torch.distributions.Categorical(logits=logits).entropy(), 1e-5)
    ours, theirs = ([leaf.grad for leaf in pair] for pair in leaves)
    assert_close(ours, theirs, rtol=0, atol=1e-5)


# --- PolicyModel -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, tied", [*product(SUPPORTED, [False]), ("qwen3", True)])
def test_policy_logprobs_are_those_of_the_hugging_face_model(kind, tied):
    """And its entropies and gradients. Its own are computed in fp64, which its experts do not know."""
    ids, model, other = token_ids(), tiny_model(kind, tied), tiny_model(kind, tied)
    other.to(torch.float64 if kind in DENSE else torch.float32)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    logprobs, entropy = precision.PolicyModel(model, dtype=torch.float32, chunk=5)(ids)
    logits = other(ids).logits[:, :-1]  # position t predicts token t + 1
    expected = of_tokens(logits, ids[:, 1:])
    # fp32 rounds these log-probabilities to 6e-6.
    assert close(logprobs, expected.float(), 3e-5)
    assert close(entropy, torch.distributions.Categorical(logits=logits).entropy().float(), 3e-5)
    logprobs.sum().backward()
    expected.sum().backward()
    wanted = {name: gradient.float() for name, gradient in gradients(other).items()}
    assert wanted["model.embed_tokens.weight"].abs().max() > 0.1
    # fp32 rounds these sums of 24 tokens to 2e-5; a token left out would be 0.01 off.
    assert_close(gradients(model), wanted, rtol=1e-4, atol=1e-4)


def test_mask_selects_positions_and_right_padding_changes_nothing():
    ids, lengths = token_ids(), torch.tensor([7, 5, 3, 6])
    mask = torch.arange(6)[None] + 1 < lengths[:, None]
    mask[:, 0] = False  # a prompt token
    policies = [precision.PolicyModel(tiny_model(), dtype=torch.float32) for _ in range(2)]
    expected = torch.where(mask, policies[0](ids)[0], 0.0)
    for policy, padding in zip(policies, (0, 23)):
        logprobs, _ = policy(torch.where(torch.arange(7)[None] < lengths[:, None], ids, padding), mask)
        assert close(logprobs, expected, 1e-6)
        logprobs.sum().backward()
    # Equal bit for bit: the shapes are the same, and what another padding adds is exactly 0.
    assert_close(*map(gradients, policies), rtol=0, atol=0)


def test_sec32_head_weight_is_rounded_to_the_generators_dtype_while_the_master_stays_fp32():
    model, rounded = tiny_model(), tiny_model()
    rounded.lm_head.weight.data = rounded.lm_head.weight.data.bfloat16().float()
    logprobs, _ = precision.PolicyModel(model, dtype=torch.bfloat16)(token_ids())
    of_rounded, of_master = (
        precision.PolicyModel(one, dtype=torch.float32)(token_ids())[0] for one in (rounded, model)
    )
    assert close(logprobs, of_rounded, 1e-6) and (logprobs - of_master).abs().max() > 1e-3
    assert model.lm_head.weight.dtype == torch.float32


@tied_or_not
def test_full_tensors_are_a_hugging_face_checkpoint_with_tied_weights_once(tied):
    policy = precision.PolicyModel(tiny_model(tied=tied), dtype=torch.bfloat16)
    tensors = dict(precision.full_tensors(policy))
    assert ("lm_head.weight" in tensors) == (not tied) and not any(one.requires_grad for one in tensors.values())
    assert_close(tensors, {name: one.data.bfloat16() for name, one in policy.model.named_parameters()}, rtol=0, atol=0)


# --- FSDP2 -----------------------------------------------------------------------------------------------------------


def _step(policy, ids, mask):
    """Forward and backward of sum (position + 1) * log pi; (logprobs, whole gradients by name)."""
    logprobs, _ = policy(ids, mask)
    (logprobs * torch.arange(1, ids.shape[1])).sum().backward()
    grads = gradients(policy.model)
    whole = {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in grads.items()}
    return logprobs.detach(), whole


def _after_update(policy, ids, mask):
    """A forward without backward, then one SGD step: (log-probs, published tensors) under the new weights."""
    with torch.no_grad():
        policy(ids, mask)
    torch.optim.SGD(policy.parameters(), lr=0.01).step()
    with torch.no_grad():
        return policy(ids, mask)[0], dict(precision.full_tensors(policy))


DTYPES = torch.float32, torch.bfloat16
CASES = [("mixtral", False, torch.float32), *product(["qwen3"], [False, True], DTYPES)]


def _rank(rank, folder):
    """One of two gloo ranks: every case, on rows 0, 2 and 1, 3."""
    both = DeviceMesh("cpu", [0, 1])
    ids, mask = token_ids(), torch.ones(4, 6, dtype=torch.bool)
    idle = torch.zeros(2, 6, dtype=torch.bool) if rank else mask[:2]
    results = {}
    for kind, tied, dtype in CASES:
        models = [precision.PolicyModel(tiny_model(kind, tied), dtype=dtype, chunk=5) for _ in range(2)]
        split, idling = (precision.shard(model, both) for model in models)
        results[kind, tied, dtype] = {
            "step": _step(split, ids[rank::2], mask[:2]),
            "after": _after_update(split, ids, mask),
            "idle": _step(idling, ids[rank::2], idle),
        }
    torch.save(results, f"{folder}/rank{rank}.pt")


@pytest.fixture(scope="module")
def ranks(forks, tmp_path_factory):
    """The results of `_rank` on both ranks, made once."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(forks, 2, folder / "meet", _rank, folder)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


def _reference(tied, ids, kind="qwen3"):
    """Plain autograd on one process without FSDP2: (policy, logprobs, gradients)."""
    policy = precision.PolicyModel(tiny_model(kind, tied), dtype=torch.float32)
    return policy, *_step(policy, ids, torch.ones(len(ids), 6, dtype=torch.bool))


@pytest.mark.parametrize("way", ["step", "idle"])
@pytest.mark.parametrize("kind, tied, dtype", CASES)
def test_fsdp2_on_two_ranks_has_the_logprobs_and_the_summed_gradients_of_one_process(ranks, kind, tied, dtype, way):
    """Idle: rank 1 masks everything, takes part and adds nothing, so the gradient is that of rank 0's rows 0 and 2."""
    _, expected, gradients = _reference(tied, token_ids()[:: 1 if way == "step" else 2], kind)
    found = [results[kind, tied, dtype][way] for results in ranks]
    if way == "idle":
        assert not found[1][0].any()
    elif dtype == torch.float32:
        for rank, (logprobs, _) in enumerate(found):
            assert close(logprobs, expected[rank::2], 1e-5)
    for name, gradient in [*found[0][1].items(), *found[1][1].items()]:
        within = 1e-4 if dtype == torch.float32 else 0.05  # sums in another order; in bf16 the body is
        assert gradient.dtype == torch.float32  # masters and reduction
        assert (gradient - gradients[name]).norm() <= within * gradients[name].norm(), name


@tied_or_not
def test_sec32_fsdp2_with_bf16_layers_still_multiplies_the_head_in_fp32(ranks, tied):
    model, ids = tiny_model(tied=tied), token_ids()
    for parameter in model.parameters():  # not model.bfloat16(): the rotary frequencies stay fp32
        parameter.data = parameter.data.bfloat16()
    with torch.no_grad():
        hidden = model.model(ids).last_hidden_state[:, :-1]
        expected = of_tokens(hidden.float() @ model.lm_head.weight.float().T, ids[:, 1:])
    got, _ = ranks[0]["qwen3", tied, torch.bfloat16]["step"]
    assert close(got, expected[0::2], 1e-5)  # a bf16 product would be off by more than 1e-3


@tied_or_not
def test_fsdp2_weights_are_fresh_after_a_forward_without_backward_and_a_step(ranks, tied):
    policy, _, _ = _reference(tied, token_ids())
    expected, published = _after_update(policy, token_ids(), torch.ones(4, 6, dtype=torch.bool))
    for results in ranks:
        logprobs, tensors = results["qwen3", tied, torch.float32]["after"]
        assert close(logprobs, expected, 1e-4)
        assert_close(tensors, published, rtol=0, atol=1e-5)


def test_a_single_rank_needs_fsdp2_only_to_compute_in_bf16():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for dtype in DTYPES:
            sharded = precision.shard(precision.PolicyModel(tiny_model(), dtype=dtype), DeviceMesh("cpu", [0]))
            assert isinstance(sharded, FSDPModule) == (dtype == torch.bfloat16)
    finally:
        dist.destroy_process_group()


# --- App. A.19: mismatch ---------------------------------------------------------------------------------------------


def test_a19_mismatch_by_hand_with_rubbish_outside_the_mask():
    check_exercise(precision, "mismatch")


@pytest.mark.parametrize("dtype, limit", [(torch.float32, 1e-3), (torch.bfloat16, 0.1)])
def test_startup_check_stops_the_run_above_its_limit_and_names_the_likely_causes(dtype, limit):
    gen_logprobs, mask = torch.tensor([-1.0, -2.0, -INF]), torch.tensor([True, True, False])

    def measured(difference):  # the signs must not cancel
        logprobs = gen_logprobs + torch.tensor([difference, -difference, 0.0])
        return precision.startup_check(logprobs, gen_logprobs, mask, dtype)

    assert measured(0.9 * limit) == pytest.approx(0.9 * limit, rel=1e-2)  # fp32 numbers near 2
    for difference in (1.1 * limit, NAN):
        refuses("temperature", measured, difference, error=RuntimeError)
