"""Peak memory of a trainer or a generator on a GPU, measured on fake tensors: any model, any number, no memory.

    python meter.py MODEL TRAINERS TOKENS     prints the peaks of rank 0's phases in bytes, as JSON
    python meter.py MODEL SLOTS               the peak of a TorchGenerator, with the paper's lengths

Every storage on "cuda" counts from its making to its end, in blocks of 512 bytes as PyTorch's allocator gives them out.
The allocator's own losses do not count. Collectives of the fake process group return at once. Run by
test_shadow_gpu.py
"""

import json
import sys
import weakref
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import shadow  # noqa: E402  loads guard.cpp before torch
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._tools.fake_collectives  # noqa: E402, F401
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

aten = torch.ops.aten


class Meter(TorchDispatchMode):
    """Counts the bytes on "cuda" that live; answers what depends on numbers, of which fake tensors have none."""

    def __init__(self):
        super().__init__()
        self.live = {}  # a storage -> its bytes
        self.now = self.peak = 0
        self.tokens = 0  # True entries of the mask
        self.number = 1  # that a tensor's only entry is said to be

    def set(self, storage, size):
        key = storage._cdata
        if key not in self.live:
            weakref.finalize(storage, self.drop, key)
        new = -(-size // 512) * 512
        self.now += new - self.live.get(key, 0)
        self.live[key] = new
        self.peak = max(self.peak, self.now)

    def drop(self, key):
        self.now -= self.live.pop(key, 0)

    def take(self):
        """The peak since the last call."""
        peak, self.peak = self.peak, self.now
        return peak

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t.__name__ in ("DTensor", "AsyncCollectiveTensor") for t in types):
            return NotImplemented  # its local operations come here
        name = func._schema.name.split("::")[1]
        if name in ("_local_scalar_dense", "equal"):
            return self.number
        if name == "nonzero":
            return torch.empty((self.tokens, args[0].dim()), dtype=torch.int64, device=args[0].device)
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cuda" and not hasattr(leaf, "_local_tensor"):
                storage = leaf.untyped_storage()
                if storage._cdata not in self.live and not planning(storage):
                    self.set(storage, storage.nbytes())
        return out


def planning(storage):
    """Whether DTensor makes a large storage only to try an operation out: with real tensors it does so on "meta"."""
    if storage.nbytes() < 1 << 20:
        return False
    frame = sys._getframe()
    while frame := frame.f_back:
        if "sharding_prop" in frame.f_code.co_filename or "_op_schema" in frame.f_code.co_filename:
            return True
    return False


class OnMeta(TorchDispatchMode):
    """FSDP2 makes an empty tensor on the GPU while it shards a model on "meta"."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """The kernel that CUDA takes without a mask."""
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, scale=scale)[0]


@contextmanager
def metered(meter, trainers):
    """Run a block on fake tensors, as rank 0 of so many trainers; a model on "meta" becomes a fake one in to_empty."""
    shadow.patch(gpus=8)

    def resize(tensor, size):
        storage = tensor.untyped_storage()
        if storage.size() != size:
            storage.resize_(size)
            meter.set(storage, size)

    for module in shadow.sharding():
        for name, size in (("alloc_storage", lambda t: t.numel() * t.itemsize), ("free_storage", lambda t: 0)):
            if hasattr(module, name):
                setattr(module, name, lambda tensor, size=size: resize(tensor, size(tensor)))
    import transformers.masking_utils

    transformers.masking_utils.find_packed_sequence_indices = lambda *a, **k: None
    torch.nn.functional.scaled_dot_product_attention = attention
    if trainers == 1:
        torch.nn.Module.float = lambda self: self  # fp32 already; fake parameters cannot be swapped
    dist.init_process_group("fake", rank=0, world_size=trainers, store=FakeStore())
    FakeTensorMode.avoid_device_init = property(lambda self: True)  # torch.cuda says that it is there
    early, fake, to_empty = OnMeta(), FakeTensorMode(allow_non_fake_inputs=True), torch.nn.Module.to_empty

    def enter(self, **how):
        torch.nn.Module.to_empty = to_empty
        early.__exit__(None, None, None)
        fake.__enter__()
        meter.__enter__()
        return to_empty(self, **how)

    torch.nn.Module.to_empty = enter
    early.__enter__()
    yield
    meter.__exit__(None, None, None)
    fake.__exit__(None, None, None)


def main(folder, trainers, tokens):
    import loss
    import precision
    from plumbing.run import checkpoints, processes
    from plumbing.setup import sizing

    meter = Meter()
    peaks = {}
    plain = loss.global_denominators(torch.tensor([1, 1]), torch.tensor([0, 1]))
    with metered(meter, trainers):
        mesh = DeviceMesh("cuda", list(range(trainers)), _init_backend=True)
        place = dict(mesh=mesh, device=torch.device("cuda", 0), rank=0, trainers=dist.group.WORLD)
        settings = dict(resume=True, activation_checkpointing=True, dtype=torch.bfloat16)
        policy = checkpoints.load_policy(folder, SimpleNamespace(**place), **settings)
        flags = SimpleNamespace(token_budget=tokens, dtype="bfloat16", max_prompt_tokens=0, max_new_tokens=0)
        policy.chunk = sizing.head_chunk(flags, policy.model.config)
        optimizer = torch.optim.AdamW(policy.parameters(), fused=True)
        peaks["load"] = meter.take()
        width = min(16384, tokens)
        rows = tokens // width
        ids = torch.zeros(rows, width, dtype=torch.long, device="cuda:0")
        mask = torch.ones(rows, width - 1, dtype=torch.bool, device="cuda:0")
        meter.tokens = mask.numel()
        advantages, index = (torch.zeros(rows, dtype=d, device="cuda:0") for d in (torch.float32, torch.long))
        for step in (1, 2):  # the optimizer's state is made in the first
            for _ in (1, 2):  # micro-batches: the second adds to gradients
                logprobs, entropy = policy(ids, mask)
                per_token = loss.cispo(logprobs, logprobs.detach(), advantages, mask, eps_max=5.0)
                (-loss.aggregate(per_token, mask, index, "prompt", plain)).backward()
                del logprobs, entropy, per_token
            peaks[f"gradients {step}"] = meter.take()
            optimizer.step()
            optimizer.zero_grad()
            peaks[f"optimizer {step}"] = meter.take()
        tensors = (tensor for _, tensor in precision.full_tensors(policy))
        named = dict(policy.model.named_parameters())
        group = SimpleNamespace(broadcast=lambda *_: SimpleNamespace(wait=lambda: None), rank=lambda: 0)
        processes.broadcast_weights(processes.layout_of(named, policy.dtype), tensors, group, place["device"])
        peaks["publish"] = meter.take()
    print(json.dumps({"parameters": sum(p.numel() for p in policy.parameters()), **peaks}))


def generator(folder, slots):
    import rollout

    meter = Meter()
    config = AutoConfig.from_pretrained(folder)
    with metered(meter, 2), torch.no_grad():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model = model.to_empty(device="cuda:0")
        model.tie_weights()
        meter.take()
        tokenizer = SimpleNamespace(eos_token_id=1, chat_template=None, get_vocab=dict)
        made = rollout.TorchGenerator(model, tokenizer, slots=slots, max_new_tokens=14336, max_prompt_tokens=2048)
        prompt = SimpleNamespace(prompt=SimpleNamespace(ids=[0] * 2048), generations=slots)
        groups = [rollout.Group(prompt) for _ in range(rollout.PREFILL_AHEAD)]
        made._prefill(groups)
        for row in range(slots):
            made._cache.load(row, groups[0].prompt_kv)
        made._sample(torch.zeros(3, slots, dtype=torch.float64, device="cuda:0"), 2048 + 14336)
        made._prefill(groups)
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters()), "peak": meter.peak}))


if __name__ == "__main__":
    (main if len(sys.argv) > 3 else generator)(sys.argv[1], *map(int, sys.argv[2:]))
