"""A GPU that is none: tensors say that they are on "cuda", their numbers lie in CPU memory.

    python shadow.py SCRIPT ARGUMENTS       runs a script as on a machine with SHADOW_GPUS GPUs (default 1)

With fewer GPUs than ranks each rank sees GPUs of its own, as under Slurm.

Every operation is checked by CUDA's rule: operands on different devices are an error, with the line of the project that
has them. Whatever makes the host wait for the GPU is counted by its line, in `waits`. SHADOW_REPORT=FILE writes the
counts to FILE.RANK at the end. SHADOW_LESS is by how many bytes less of free memory each further rank sees.

It does not see kernels, races between streams, NCCL, memory (meter.py does), or vLLM. guard.cpp must be loaded before
torch. Run by test_shadow_gpu.py
"""

import atexit
import ctypes
import importlib.util
import json
import os
import runpy
import sys
import threading
import traceback
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
TORCH = Path(importlib.util.find_spec("torch").origin).parent  # not imported yet
GUARD = os.environ["SHADOW_GUARD"]  # guard.cpp, compiled
for library in (TORCH / "lib" / "libtorch_cpu.so", GUARD):
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten  # noqa: E402

MEMORY = 80 << 30
waits = Counter()  # line of the project -> how often the host waited for the GPU there
WAITING = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero", "_unique2"}
# Operations that may have operands on both devices.
MIXED = {"copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_", "set_", "lift_fresh"}
MIXED |= {"_foreach_copy_"}


def line():
    """The innermost line of the project that is being run."""
    for frame in reversed(traceback.extract_stack(limit=80)):
        if frame.filename.startswith(f"{ROOT}/") and "/tests/shadow/" not in frame.filename:
            return f"{Path(frame.filename).relative_to(ROOT)}:{frame.lineno} {frame.line}"
    return "?"


class Shadow(torch.Tensor):
    """A tensor on "cuda" whose numbers are in `inner`, on the CPU."""

    @staticmethod
    def __new__(cls, inner):
        like = dict(strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype)
        self = torch.Tensor._make_wrapper_subclass(cls, inner.size(), device="cuda:0", requires_grad=False, **like)
        self.inner = inner
        return self

    def __repr__(self, **_):
        return f"Shadow({self.inner})"

    def __tensor_flatten__(self):
        return ["inner"], None

    def tolist(self):
        waits[line()] += self.numel() > 0
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, types, args, kwargs or {})


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, types, args, kwargs or {})


def check(func, tensors):
    """CUDA's rule: all tensors on one device; CPU tensors without dimensions may come along."""
    name = func._schema.name.split("::")[1]
    on_gpu = [tuple(t.shape) for t in tensors if isinstance(t, Shadow)]
    on_cpu = [tuple(t.shape) for t in tensors if not isinstance(t, Shadow) and t.device.type == "cpu" and t.dim()]
    wrong_index = name.startswith("index") and on_gpu and not isinstance(tensors[0], Shadow)
    if wrong_index or (name not in MIXED and on_gpu and on_cpu):
        raise RuntimeError(f"tensors on different devices: {func} of {on_gpu} on cuda and {on_cpu} on cpu, {line()}")


def count(name, args, gpu):
    """Count what makes the host wait for the GPU."""
    masks = []
    if name in ("index", "index_put_"):
        masks = [i for i in args[1] if i is not None and i.dtype == torch.bool]
    from_gpu = name in ("_to_copy", "copy_") and isinstance(args[name == "copy_"], Shadow)
    if gpu and (name in WAITING or (masks and not (name == "index_put_" and args[2].numel() == 1))):
        waits[line()] += 1
    elif from_gpu and name == "copy_" and not isinstance(args[0], Shadow):
        waits[line()] += 1


def run(func, types, args, kwargs):
    """An operation on the numbers behind the shadows; its results are shadows again."""
    if any(not issubclass(t, (Shadow, torch.nn.Parameter)) and t is not torch.Tensor for t in types):
        return NotImplemented  # DTensor: its local operations come here
    flat, spec = tree_flatten((args, kwargs))
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
    gpu = any(isinstance(t, Shadow) for t in tensors)
    name = func._schema.name.split("::")[1]
    if name == "_fused_sdp_choice" and gpu:
        return 0
    check(func, tensors)
    count(name, args, gpu)
    wanted = kwargs.get("device")
    there = torch.device(wanted).type == "cuda" if wanted is not None else gpu
    if name == "_to_copy" and gpu and not there:
        waits[line()] += 1
    flat = [x.inner if isinstance(x, Shadow) else x for x in flat]
    flat = [torch.device("cpu") if isinstance(x, torch.device) and x.type == "cuda" else x for x in flat]
    inner_args, inner_kwargs = tree_unflatten(flat, spec)
    if func is torch.ops.aten.mm.dtype:  # tensor cores: factors in bf16, sums in fp32; only CUDA has it
        out = inner_args[0].float() @ inner_args[1].float()
    else:
        out = func(*inner_args, **inner_kwargs)
    if not there or name == "_pin_memory":
        return out
    if name == "_to_copy" and not gpu and out is inner_args[0]:
        out = out.clone()
    out = tree_map(lambda x: Shadow(x) if isinstance(x, torch.Tensor) and not isinstance(x, Shadow) else x, out)
    if func.namespace in ("c10d", "_c10d_functional", "fsdp") or not gpu:
        return out
    return return_and_correct_aliasing(func, args, kwargs, out)


# --- torch.cuda, FSDP2 and process groups ----------------------------------------------------------------------------


class Idle:
    """A stream or an event: there is nothing to wait for."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        return lambda *_, **__: Idle()


def patch(gpus=1):
    """What the project and FSDP2 call of torch.cuda."""
    cuda = torch.cuda
    rank, world = (int(os.environ.get(name, 0)) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    less = int(os.environ.get("SHADOW_LESS", 0)) * rank

    def properties(place=0):
        index = torch.device("cuda", place).index if isinstance(place, int) else place.index
        facts = dict(major=9, minor=0, name="shadow", total_memory=MEMORY, multi_processor_count=132)
        return SimpleNamespace(uuid=f"GPU-{index + rank * (gpus < world)}", **facts)

    for name in ("set_device", "synchronize", "init", "_lazy_init", "empty_cache", "set_rng_state"):
        setattr(cuda, name, lambda *_, **__: None)
    cuda.is_available = lambda: True
    cuda.is_initialized = lambda: True
    cuda.device_count = lambda: gpus
    cuda.current_device = lambda: 0  # all shadows are on cuda:0
    cuda.get_device_properties = properties
    cuda.mem_get_info = lambda place=None: (MEMORY - less, MEMORY)
    cuda.current_stream = cuda.default_stream = cuda.Stream = cuda.Event = Idle
    cuda.stream = lambda _: nullcontext()
    cuda.get_rng_state = lambda *_: torch.get_rng_state()
    cuda.is_current_stream_capturing = lambda: False
    torch._C._cuda_isCurrentStreamCapturing = lambda: False


def sharding():
    """The modules of FSDP2 that allocate and free storages."""
    from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_param, _fsdp_param_group

    return _fsdp_common, _fsdp_param, _fsdp_param_group


def install(gpus=1):
    """Put shadows in place of CUDA tensors from here on, in all threads; gloo carries what NCCL would."""
    patch(gpus)
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") makes a CPU tensor first, which we see
    # Views of wrappers cannot be made under the real inference mode.
    torch.inference_mode = lambda mode=True: torch.no_grad()(mode) if callable(mode) else torch.no_grad()
    torch.__future__.set_swap_module_params_on_conversion(True)  # a Parameter cannot take the data of a wrapper
    for module in sharding():
        for name in {"alloc_storage", "free_storage"} & set(vars(module)):
            setattr(module, name, lambda tensor: None)
    new_group = dist.new_group
    dist.new_group = lambda *a, backend=None, **k: new_group(*a, backend="gloo" if backend else None, **k)
    run_thread = threading.Thread.run

    def run_in_mode(self):  # a mode belongs to one thread
        torch._C._set_only_lift_cpu_tensors(True)
        with Mode():
            run_thread(self)

    threading.Thread.run = run_in_mode
    Mode().__enter__()


@contextmanager
def counted():
    """The waits of a block, in a Counter by line."""
    before = waits.copy()
    found = Counter()
    yield found
    found.update(waits - before)


if __name__ == "__main__":
    install(int(os.environ.get("SHADOW_GPUS", 1)))
    if report := os.environ.get("SHADOW_REPORT"):
        rank = os.environ.get("RANK", 0)
        atexit.register(lambda: Path(f"{report}.{rank}").write_text(json.dumps(waits)))
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
