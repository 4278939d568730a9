"""A decode step written out: what a Llama or a Qwen3 computes for one new token of each of n sequences.

Paper: Sec. 2 (generators decode most of the time). It is the architecture of the model that the trainer trains. With a
sequence's earlier keys K and values V in the cache, each layer computes

    q, k, v   = W_qkv norm(x)            heads of size d; several q share one k and v       (n, heads, d)
    q, k      = turn(q, p), turn(k, p)   pair i of p turns by the angle p theta^(-2i / d)
    x         = x + W_o softmax(q [K k]^T / sqrt(d)) [V v]
    x         = x + W_down (silu(W_gate norm(x)) * W_up norm(x))                            (n, H)
    norm(x)   = g x / sqrt(mean(x^2) + epsilon)        in fp32; Qwen3 takes it of each head's q and k too

The first x is the embedding of the newest token y; the head (precision.py) makes logits of the last norm(x).
y -> tokens, p -> positions, g -> weight.

Why it is written out: for one token in each row, a layer is thirty small operations, and calling the modules around
them takes as long as computing them. Here W_q, W_k and W_v are one product, and so are W_gate and W_up, and the angles
are computed once. Any other architecture decodes through its Hugging Face model.

Run by rollout.py. Test: pytest tests/test_decoding.py
Page: docs/paper/token.md
"""

import math
import sys

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, silu

WRITTEN = ("llama", "qwen3")  # Hugging Face model types
ROTARY = ("default", "linear", "llama3", "yarn")  # rotary positions whose angles do not depend on the sequence's length
READ = {  # all parameters of a layer that are computed with; q_norm and k_norm in Qwen3
    *(f"self_attn.{name}.weight" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"mlp.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj")),
    *("input_layernorm.weight", "post_attention_layernorm.weight"),
}
GRAPHS = 64  # shapes of a decode step that are kept; each takes some megabytes of a GPU's memory


def rounded(count, most=math.inf):
    """A size, or up to an eighth more, but less than `most` more: few shapes occur, since each costs time once.

    >>> [rounded(count) for count in (7, 17, 97, 129, 1000)], rounded(10_001, 256)
    ([7, 18, 104, 144, 1024], 10240)
    """
    step = min(most, max(1, 2 ** (count.bit_length() - 4)))
    return -(-count // step) * step


def unseen(cache, dtype):
    """(n, 1, 1, columns): added to attention's scores. -inf hides the columns behind a row's position, and 0 none."""
    columns = torch.arange(cache.filled, device=cache.positions.device)
    mask = torch.zeros(len(cache.positions), cache.filled, dtype=dtype, device=cache.positions.device)
    return mask.masked_fill_(columns > cache.positions[:, None], -torch.inf)[:, None, None]


def joined(*modules):
    """The weights of linear layers as one, (all outputs, inputs). Theirs become parts of it: new weights reach it."""
    whole = torch.cat([module.weight.data for module in modules])
    for module, part in zip(modules, whole.split([len(module.weight) for module in modules])):
        module.weight.data = part
    return whole


def norm(x, module):
    """RMSNorm over the last dimension. It rounds where the Hugging Face module does: pi_gen stays near pi_train."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + module.variance_epsilon)
    return module.weight * wide.to(x.dtype)


def turn(x, cos, sin):
    """Rotary positions: x (n, heads, d), whose dimensions i and i + d / 2 are a pair; cos, sin (n, 1, d)."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def decoder(model, positions):
    """The Decoder of a Hugging Face causal LM for sequences of so many positions, or None if it is none of WRITTEN."""
    config = model.config
    if config.model_type not in WRITTEN or config.hidden_act != "silu":
        return None
    body = model.get_decoder()
    names = {name for layer in body.layers for name, _ in layer.named_parameters()}
    return Decoder(body, config, positions) if names <= READ and body.rotary_emb.rope_type in ROTARY else None


class Decoder:
    """The layers of a Llama or Qwen3, for one new token a row. It reads the model's own parameters.

    body       the Hugging Face model without its head
    positions  of the longest sequence
    """

    def __init__(self, body, config, positions):
        self.body = body
        self.heads = config.num_attention_heads
        self.shared = config.num_key_value_heads  # each is used by heads / shared queries
        self.joined = [
            (
                joined(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
                joined(layer.mlp.gate_proj, layer.mlp.up_proj),
            )
            for layer in body.layers
        ]
        with torch.inference_mode():
            every = torch.arange(positions, device=body.embed_tokens.weight.device)
            cos, sin = body.rotary_emb(body.embed_tokens.weight, every[None])  # (1, positions, d) each
        self.angles = cos[0, :, None], sin[0, :, None]

    def __call__(self, tokens, cache):
        """(n, H) final hidden states of the tokens (n,); their keys and values go into the rollout.SlotCache."""
        body = self.body
        x = body.embed_tokens.weight[tokens]
        cos, sin = (table[cache.positions] for table in self.angles)
        mask = unseen(cache, x.dtype)
        for index, (layer, (qkv, gate_up)) in enumerate(zip(body.layers, self.joined)):
            attention = layer.self_attn
            states = linear(norm(x, layer.input_layernorm), qkv).unflatten(-1, (-1, attention.head_dim))
            q, k, v = states.split([self.heads, self.shared, self.shared], 1)
            if hasattr(attention, "q_norm"):
                q = norm(q, attention.q_norm)
                k = norm(k, attention.k_norm)
            k = turn(k, cos, sin)
            keys, values = cache.update(k[:, :, None], v[:, :, None], index)
            # The queries that share keys stand where attention expects positions of one head: (n, shared, .., d).
            q = turn(q, cos, sin).unflatten(1, (self.shared, -1))
            seen = scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=attention.scaling)
            x = x + linear(seen.flatten(1), attention.o_proj.weight)
            gate, up = linear(norm(x, layer.post_attention_layernorm), gate_up).chunk(2, -1)
            x = x + linear(silu(gate) * up, layer.mlp.down_proj.weight)
        return norm(x, body.norm)


class Graphs:
    """On a GPU: a decode step as one launch, a CUDA graph, instead of one for each of its thousand operations.

    step  a function of (inputs, columns) -> outputs that makes the same launches for equal shapes

    A shape is run as it is when it comes first, and captured when it comes again. If a capture fails, this is said
    once, and every step is run as it is.
    """

    def __init__(self, step):
        self.step = step
        self.shapes = {}  # (rows, columns) -> (graph, inputs, outputs), or None if it was only run; the latest last
        self.pool = None  # of memory, which the graphs share, since they never run at the same time
        self.fails = False

    def __call__(self, inputs, columns):
        shape = inputs.shape[1], columns
        came = shape in self.shapes
        captured = self.shapes.pop(shape, None)
        if came and not captured and not self.fails:
            captured = self.capture(inputs, columns)
        self.shapes[shape] = captured
        if len(self.shapes) > GRAPHS:
            del self.shapes[next(iter(self.shapes))]
        if not captured:
            return self.step(inputs, columns)
        graph, held, outputs = captured
        held.copy_(inputs)
        graph.replay()
        return outputs

    def capture(self, inputs, columns):
        """(graph, inputs that it reads, outputs that it writes), or None if the step cannot be captured."""
        held = inputs.clone()
        try:
            graph = torch.cuda.CUDAGraph()
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            # Other threads, such as NCCL's, go on using the GPU.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                outputs = self.step(held, columns)
        except RuntimeError as error:
            self.fails = True
            reason = str(error).partition("\n")[0]
            print(f"WARNING: decode steps are not captured as CUDA graphs, and slower: {reason}", file=sys.stderr)
            return None
        return graph, held, outputs
