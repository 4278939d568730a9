"""Claims about --offload-optimizer: what it makes fit, and where it is refused. Its tensors: tests/test_gpu.py."""

from types import SimpleNamespace

import pytest
from conftest import given, qwen3

from plumbing import memory


@pytest.mark.parametrize("model, fleet, offloaded, trainers", [
    ("0.6B", "2xH100", False, 1),  # fits without
    ("4B", "2xH100", True, 1),  # 16 bytes a parameter and a micro-batch are 81 GB; 16 bytes alone 64 GB
    ("14B", "8xH100", True, 4),  # without it 7 trainers and one generator, and a step three times as long
])  # fmt: skip
def test_moments_leave_the_gpu_where_the_model_then_fits_or_runs_faster(model, fleet, offloaded, trainers):
    args = SimpleNamespace(**vars(given(f"--model M --data F --preset paper --plan {fleet}")))
    memory.fit_trainers(args, memory.Sizes(qwen3(model), "bfloat16"))
    assert (args.offload_optimizer, args.trainers) == (offloaded, trainers)


def test_without_the_moments_a_trainer_needs_half_of_its_states_until_the_optimizer_steps():
    args = SimpleNamespace(**vars(given("--model M --data F --preset paper --plan 2xH100")))
    sizes, tokens = memory.Sizes(qwen3("0.6B"), "bfloat16"), args.token_budget
    with_them = memory.trainer_bytes(args, sizes, 1, tokens)
    args.offload_optimizer = True
    assert with_them - memory.trainer_bytes(args, sizes, 1, tokens) == 8 * sizes.count


@pytest.mark.parametrize("flags", ["", "--virtual exact"])
def test_there_is_nothing_to_move_from_without_a_gpu(flags):
    args = SimpleNamespace(**vars(given(f"--offload-optimizer {flags}")))
    with pytest.raises(ValueError, match="--offload-optimizer: expected a real run on GPUs"):
        memory.fit_trainers(args, None)
