"""Mixtures of experts: which parameters a token uses, and routing replay.

In such a model a layer has many multilayer perceptrons, its experts, and a router that sends each token to a few of
them, with a gate value for each. A token costs the compute of these few (the active parameters), but the memory has to
hold all experts.

Routing replay. Where two experts are nearly equal, trainer and generator may round to different ones, and log rho
jumps. The generator therefore records its choice for every token of prompt and completion in every layer (`Recorder`).
The record goes with the rollout, and the trainer's routers choose the same experts (`Replay`). The gate values of the
chosen experts are the trainer's own, so that routers learn.

    a record     layers x chosen experts bytes per token (above 256 experts twice that); 384 for a Qwen3-30B-A3B
    kept in      rollout.SlotCache like keys and values, Rollout.experts, batches.Batch.experts

Deviation: the paper does not mention it for its mixture of experts (Fig. 1).

Run by train.py. Test: pytest tests/test_experts.py
Page: docs/paper/precision.md
"""

from functools import partial

import torch

BESIDE = 64  # bytes per token of all else in a rollout, at most


def blocks(model):
    """The layers' mixtures, from first to last; each has a router, `gate`, and its `experts`. [] for a dense model."""
    return [module for module in model.modules() if type(module).__name__.endswith("SparseMoeBlock")]


def active_parameters(model):
    """Number of parameters that a token uses: all but those of the experts that its routers do not choose."""
    idle = 0
    for block in blocks(model):
        router = block.gate
        size = sum(parameter.numel() for parameter in block.experts.parameters())
        idle += size // router.num_experts * (router.num_experts - router.top_k)
    return sum(parameter.numel() for parameter in model.parameters()) - idle


def count(config):
    """(experts of a layer, experts that a token uses), by Hugging Face's config; (1, 1) for a dense model."""
    every = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 1
    return every, getattr(config, "num_experts_per_tok", None) or 1


def implementation(config, dtype):
    """How transformers multiplies with experts. None: by grouped_mm, its fast default, which needs rows of 16 bytes."""
    widths = config.hidden_size, getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    return "eager" if any(width * dtype.itemsize % 16 for width in widths) else None


# --- Routing replay --------------------------------------------------------------------------------------------------


def dtype(every):
    """Of a record: the smallest that holds the number of an expert."""
    return torch.uint8 if every <= 256 else torch.int16


def check_record(config, longest, limit):
    """Raise ValueError if the record of `longest` tokens, prompt and completion, takes more than `limit` bytes."""
    every, chosen = count(config)
    record = config.num_hidden_layers * chosen * dtype(every).itemsize if every > 1 else 0
    if longest * (record + BESIDE) > limit and record:
        raise ValueError(
            f"expected at most {limit // (record + BESIDE):,} tokens of prompt and completion, got {longest:,}: "
            f"the record of chosen experts takes {record} bytes a token. Lower --max-prompt-tokens or --max-new-tokens"
        )


class Recorder:
    """On a generator: notes which experts each forward pass chooses. For a dense model its methods do nothing."""

    def __init__(self, model):
        self.noted = []  # (tokens, chosen) per layer, of the last forward pass
        self.layer = model.config.num_hidden_layers  # where SlotCache keeps the record: behind the layers' keys
        for block in blocks(model):
            block.gate.register_forward_hook(self.note)

    def note(self, router, _, output):
        self.noted.append(output[2].to(dtype(router.num_experts)))

    def states(self, rows):
        """What the last pass chose, shaped like keys and values: [(two tensors of `rows` rows)], the second empty."""
        noted, self.noted = self.noted, []
        if not noted:
            return []
        chosen = torch.stack(noted).unflatten(1, (rows, -1)).transpose(0, 1)  # (rows, layers, positions, chosen)
        return [(chosen, chosen[..., :0])]

    def keep(self, cache):
        """After a decode step: keep its choices beside the keys and values of the same positions."""
        for pair in self.states(len(cache.positions)):
            cache.update(*pair, self.layer)

    def record(self, cache, row, length):
        """Rollout.experts of the completion in this row, of so many tokens with its prompt. Its last was never read."""
        if self.layer not in cache.buffers:
            return b""
        return cache.buffers[self.layer][0][row, :, : length - 1].transpose(0, 1).cpu().numpy().tobytes()


def collate(rollouts, width, device):
    """The records of a micro-batch as bytes, (B, width, bytes of a token) uint8; None without any.

    Zeros, expert 0, stand behind them: no token that counts attends to these positions.
    """
    if not rollouts or not rollouts[0].experts:
        return None
    rows = []
    for rollout in rollouts:
        record = torch.frombuffer(bytearray(rollout.experts), dtype=torch.uint8)
        rows.append(record.view(len(rollout.prompt_ids) + len(rollout.ids) - 1, -1))
    batch = torch.zeros(len(rows), width, rows[0].shape[1], dtype=torch.uint8)
    for row, record in zip(batch, rows):
        row[: len(record)] = record
    return batch.to(device)


class Replay:
    """On a trainer: call it with what `collate` gives before a forward pass, whose routers then choose these experts.

    With None they choose themselves. It holds until the next call: activation checkpointing asks the routers again.
    """

    def __init__(self, model):
        self.experts = None
        routers = [block.gate for block in blocks(model)]
        for layer, router in enumerate(routers):
            router.register_forward_hook(partial(self.force, layer, len(routers)))

    def __call__(self, experts):
        self.experts = experts

    def force(self, layer, layers, router, _, output):
        """Hook of a router, which returns logits, gate values and experts: the same, with the experts of the record."""
        if self.experts is None:
            return None
        logits, own, _ = output
        record = self.experts.flatten(0, 1).view(dtype(router.num_experts))
        chosen = record.unflatten(1, (layers, -1))[:, layer].long()
        gates = torch.softmax(logits.float(), -1).gather(-1, chosen)
        if getattr(router, "norm_topk_prob", True):  # of Mixtral always
            gates = gates / gates.sum(-1, keepdim=True)
        return logits, gates.to(own.dtype), chosen
