"""The decode step written out: it computes what the Hugging Face model computes, and refuses what it does not know."""

import copy
from contextlib import contextmanager
from itertools import product

import pytest
import torch
from conftest import close, tiny_model
from rollouts import EXACT, finish, generator, perturb, requests

import decoding
from decoding import WRITTEN, Decoder, Graphs, decoder, turn

MODELS = [
    *product(WRITTEN, [dict(), dict(num_attention_heads=8, num_key_value_heads=2)]),
    ("qwen3", dict(rms_norm_eps=0.1)),
]


@pytest.mark.parametrize("kind, changes", MODELS)
def test_a_decode_step_computes_the_states_of_the_hugging_face_model(kind, changes):
    """So equal seeds give the same completions, before and after new weights."""
    model = tiny_model(kind, **changes)
    written, library = (generator(copy.deepcopy(model), slots=7) for _ in range(2))
    library._decoder = library._hugging_face
    assert isinstance(written._decoder, Decoder)
    for _ in range(2):
        done, expected = (finish(side, requests(12, generations=3)) for side in (written, library))
        for name, completion in done.items():
            assert completion.ids == expected[name].ids
            # Each sums in its own order, which processors choose.
            assert close(completion.logprobs, torch.tensor(expected[name].logprobs), EXACT)
        for side in (written, library):
            perturb(side, model)


def test_turn_by_hand():
    # The pairs are (1, 3) and (2, 4): a right angle, and an angle of which cos = 0.6 and sin = 0.8.
    cos, sin = torch.tensor([[[0.0, 0.6, 0.0, 0.6]]]), torch.tensor([[[1.0, 0.8, 1.0, 0.8]]])
    assert close(turn(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), cos, sin), torch.tensor([[[-3.0, -2.0, 1.0, 4.0]]]), 1e-6)


@pytest.mark.parametrize("kind, changes", [
    ("gemma", {}), ("mistral", {}), ("qwen3_moe", {}), ("llama", dict(attention_bias=True)),
    ("llama", dict(mlp_bias=True)), ("llama", dict(hidden_act="gelu")),
    ("llama", dict(rope_parameters=dict(rope_type="dynamic", rope_theta=100.0, factor=2.0))),
])  # fmt: skip
def test_any_other_architecture_decodes_through_its_own_model(kind, changes):
    assert decoder(tiny_model(kind, **changes), 128) is None


# --- CUDA graphs, with a fake in the place of torch's: tests/test_gpu.py has the real ones ----------------------------


@pytest.fixture
def doubled(monkeypatch):
    """(Graphs of a step that doubles its inputs, the shapes of the steps that were run one operation after another)."""
    calls = []
    last = []

    def step(inputs, columns):
        calls.append((inputs.shape[1], columns))
        last[:] = inputs, 2 * inputs
        return last[1]

    class Captured:
        def replay(self):
            self.outputs.copy_(2 * self.inputs)

    @contextmanager
    def capture(graph, **settings):
        yield
        graph.inputs, graph.outputs = last

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Captured)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", int)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return Graphs(step), calls


def test_a_shape_is_run_then_captured_then_replayed_on_its_new_inputs(doubled, monkeypatch):
    monkeypatch.setattr(decoding, "GRAPHS", 2)
    made, calls = doubled
    for number, columns in enumerate((8, 8, 8, 16, 16, 8, 24, 24, 8, 16)):
        assert made(torch.full((3, 2), float(number)), columns).tolist() == [[2.0 * number] * 2] * 3
    assert [columns for _, columns in calls] == [8, 8, 16, 16, 24, 24, 16] and len(made.shapes) == 2
