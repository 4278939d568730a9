"""Mixtures of experts: the same probabilities on both sides, routing replay, checkpoints, what is counted."""

from types import SimpleNamespace

import conftest
import pytest
import torch
from rollouts import finish, requests
from started_runs import refused
from transformers import AutoModelForCausalLM

import batches
import experts
import precision
import sft
from plumbing import build, memory
from rollout import TorchGenerator

EXPERTS, CHOSEN = 8, 2  # of a layer; of them, by a token
KINDS = ("qwen3_moe", "mixtral", "olmoe")
every_kind = pytest.mark.parametrize("kind", KINDS)


def tiny_model(kind, **changes):
    """A random mixture whose tokens are those of the task `tiny`."""
    sizes = dict(vocab_size=len(sft.tokenizer(tiny=True)), max_position_embeddings=64, bos_token_id=None)
    return conftest.tiny_model(kind, **sizes | changes)


def generator(model, **settings):
    return TorchGenerator(model, sft.tokenizer(tiny=True), slots=5, max_new_tokens=24, **settings)


# --- Routing replay --------------------------------------------------------------------------------------------------


def chosen_by(model, ids):
    """(tokens, layers, chosen): the experts with the largest logits in a forward pass of the whole text."""
    with torch.no_grad():
        logits = model(torch.tensor([ids]), output_router_logits=True).router_logits
    return torch.stack(logits, 1).topk(CHOSEN).indices


@pytest.mark.parametrize("kind, changes", [*((kind, {}) for kind in KINDS), ("qwen3_moe", {"num_experts": 300})])
def test_the_record_is_the_choice_for_every_token_that_was_read_in_every_layer(kind, changes):
    """Prompts, and rows that move to other slots, included; the last token of a completion is never read."""
    model = tiny_model(kind, **changes)
    done = finish(generator(model), requests(12, generations=2))
    assert len({len(completion.ids) for completion in done.values()}) > 3  # so rows have moved
    for completion in done.values():
        expected = chosen_by(model, (completion.prompt_ids + completion.ids)[:-1])
        kept = torch.int16 if changes else torch.uint8  # of 300 experts
        assert torch.frombuffer(bytearray(completion.experts), dtype=kept).tolist() == expected.flatten().tolist()


@pytest.mark.parametrize("kind, gates", [("qwen3_moe", [0.25, 0.75]), ("mixtral", [0.25, 0.75]), ("olmoe", [0.1, 0.3])])
def test_a_forced_choice_has_the_trainers_own_gate_values(kind, gates):
    # Logits log 1 ... log 4 of four experts: probabilities 0.1 ... 0.4, of which 2 and 3 would be chosen.
    four = {"num_local_experts" if kind == "mixtral" else "num_experts": 4}
    model = tiny_model(kind, hidden_size=1, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, **four)
    replay = experts.Replay(model)
    router = experts.blocks(model)[0].gate
    router.weight.data = torch.tensor([1.0, 2.0, 3.0, 4.0]).log()[:, None]

    def route():
        """(gate values, experts) of a token."""
        _, values, chosen = router(torch.ones(1, 1))
        return values[0], chosen[0].tolist()

    assert sorted(route()[1]) == [2, 3]
    replay(torch.tensor([[[0, 2]]], dtype=torch.uint8))
    values, chosen = route()
    assert values.tolist() == pytest.approx(gates) and chosen == [0, 2]
    assert values.requires_grad


def log_ratios(replayed):
    """|log rho| (tokens,) of a trainer in bf16 with the generator's weights, on one padded micro-batch.

    Its routers round as on another machine: their weights are off by 1%, of which bf16 resolves 0.4%.
    """
    model = tiny_model("qwen3_moe").bfloat16()
    done = [*finish(generator(model), requests(40)).values()]
    noise = torch.Generator().manual_seed(0)
    for block in experts.blocks(model):
        block.gate.weight.data *= 1 + 0.01 * torch.randn(block.gate.weight.shape, generator=noise).bfloat16()
    items = [SimpleNamespace(rollout=None, advantage=1.0, prompt_index=0)] * len(done)
    batch = batches.collate(items, lambda rollouts: done, "cpu")
    policy = precision.PolicyModel(model, dtype=torch.bfloat16)
    experts.Replay(model)(batch.experts if replayed else None)
    with torch.no_grad():
        logprobs, _ = policy(batch.input_ids, batch.mask)
    return (logprobs - batch.gen_logprobs)[batch.mask].abs()


def test_with_replay_the_largest_log_ratio_in_bf16_is_that_of_rounding():
    free, replayed = log_ratios(False), log_ratios(True)
    assert replayed.max() < 0.6 * free.max() and replayed.mean() < free.mean()


# --- Runs ------------------------------------------------------------------------------------------------------------

SMALL = (
    "--virtual exact --data tiny --k 0 --steps 2 --prompts 4 --generations 4 --lr 1e-2 --warmup 1 --max-prompt-tokens 8"
    " --max-new-tokens 12 --slots 16 --length-control none --eval-prompts 4 --eval-generations 1 --token-budget 4096"
)


def run(folder, flags=""):
    """train.py on a random model that is saved in `folder`; the log's rows."""
    return conftest.trained(f"{SMALL} --model {folder}/model {flags}", f"{folder}/run")


def saved(kind, folder, **changes):
    """A random model of the kind, and its tokenizer, in `folder`/model."""
    model = tiny_model(kind, **changes)
    model.save_pretrained(folder / "model")
    sft.tokenizer(tiny=True).save_pretrained(folder / "model")
    return model


def test_a_run_trains_and_its_checkpoint_loads_again(tmp_path, signs):
    model = saved("qwen3_moe", tmp_path)
    run(tmp_path, "--steps 1")
    moved = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint-1", dtype=torch.float32)
    assert moved.config._experts_implementation == "grouped_mm"  # transformers' default, the fast one on a GPU
    for (name, old), new in zip(model.named_parameters(), moved.parameters(), strict=True):
        # The first step of AdamW moves every weight with a gradient by lr = 0.01; weight decay alone by 1e-4 of it.
        assert 0.009 < (new - old).abs().max() < 0.011, name
    last = run(tmp_path, "--resume")[-2]
    assert last["kind"] == "eval" and last["step"] == 2
    assert last["flops"] == experts.active_parameters(model) * (2 * last["tokens"] + 6 * last["tokens_trained"])


# --- What is counted, what is refused --------------------------------------------------------------------------------


@every_kind
def test_flops_count_the_parameters_that_a_token_uses_and_memory_counts_all(kind):
    model = tiny_model(kind)
    # An expert has three matrices of 32 x 16; a token uses 2 of the 8 in each of 2 layers.
    assert experts.active_parameters(model) == model.num_parameters() - 2 * 6 * 3 * 32 * 16
    assert memory.Sizes(model.config, "float32").count == model.num_parameters()
    assert experts.count(model.config) == (EXPERTS, CHOSEN)


def test_vllm_is_refused_with_the_reason(tmp_path, monkeypatch, capsys):
    saved("olmoe", tmp_path)
    monkeypatch.setattr(build.vllm_rollout, "require_vllm", lambda: None)
    flags = f"{SMALL.partition('exact')[2]} --generator vllm --model {tmp_path}/model"
    assert "--generator vllm with experts (olmoe)" in refused(capsys, flags)
