"""Which devices there are, who has them, and what is known of them: torchrun's variables, cores, GPUs, their memory.

Run by settings.py, build.py, memory.py and processes.py. Test: pytest tests/test_restarts.py tests/test_plan.py
"""

import os
import re
import signal
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

BFLOAT16 = (8, 0)  # NVIDIA's first compute capability with it (Ampere)
# torchrun's variables -> their values in a process that torchrun has not started.
ALONE = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}


def torchrun(name):
    """One of torchrun's variables."""
    return int(os.environ.get(name, ALONE[name]))


def check_launcher():
    """End with code 2 and one line if torchrun's variables contradict each other: an earlier launcher has left them."""
    try:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", torchrun("WORLD_SIZE")))  # other launchers leave it out
        fit = torchrun("RANK") < torchrun("WORLD_SIZE") and torchrun("LOCAL_RANK") < local
    except ValueError:
        fit = False
    if not fit or torchrun("WORLD_SIZE") > 1 and not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        expected = "expected the variables RANK to MASTER_PORT as torchrun sets them; likely cause: an earlier launcher"
        way_out = f"has left some in this shell: unset {' '.join(ALONE)}, or start it by torchrun"
        print(f"train.py: error: {expected} {way_out}", file=sys.stderr)
        sys.exit(2)


def restarts():
    """torchrun's --max-restarts, 0 without it."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))


def end_launcher():
    """Called when a new start would fail for the same reason: torchrun, told to end, uses up no --max-restarts."""
    if restarts() and torchrun("LOCAL_RANK") == 0:
        os.kill(os.getppid(), signal.SIGTERM)


def refuse(reason):
    """End before anything has begun, with code 2 and one line. What is refused now would be refused again."""
    if torchrun("LOCAL_RANK") == 0:
        print(f"train.py: error: {reason}", file=sys.stderr)
    end_launcher()
    sys.exit(2)


def cores():
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def threads():
    """Threads for this process: OMP_NUM_THREADS if the user has set it, else its share of the cores that it may use.

    torchrun puts OMP_NUM_THREADS=1 into the ranks' environment if its own has none.
    """
    with suppress(OSError):
        if b"OMP_NUM_THREADS=" in Path(f"/proc/{os.getppid()}/environ").read_bytes():
            return torch.get_num_threads()  # OpenMP's own reading, of 4,2 or auto too
    return max(1, cores() // torchrun("LOCAL_WORLD_SIZE"))


def world_size(plan=None):
    """How many processes the run has, or will have once `launch` has started them: one per GPU, at least two.

    plan    the plan.Fleet of --plan, whose GPUs count then
    """
    if plan:
        return max(2, plan.count)
    world = torchrun("WORLD_SIZE")
    return world if world > 1 else max(2, gpus())


def alone(args):
    """Whether this process is all of the run: in virtual time; or with --evaluate, without GPUs for more of them."""
    single = args.virtual or args.evaluate and gpus() < 2
    return bool(single) and torchrun("WORLD_SIZE") == 1


STORES: list = []  # kept open: rank 0 serves the others


def gpus():
    """How many GPUs this process sees."""
    return torch.cuda.device_count()


def device(local):
    """The device of the process with this local rank: a GPU, of which there may be fewer than processes, or the CPU."""
    return torch.device("cuda", local % gpus()) if gpus() else torch.device("cpu")


def own_gpu():
    """This process's GPU. To ask one of another is to start a CUDA context there, half a GB for every rank."""
    return device(torchrun("LOCAL_RANK")).index


def default_dtype():
    """bfloat16 on a GPU that has it, else float32."""
    return "bfloat16" if gpus() and torch.cuda.get_device_capability(own_gpu()) >= BFLOAT16 else "float32"


def uuid(place):
    """What tells a GPU from all others, whatever number a process knows it by; None for the CPU."""
    return str(torch.cuda.get_device_properties(place).uuid) if place.type == "cuda" else None


def gpus_of_ranks(unstarted=1):
    """What tells apart the GPUs of this node's ranks, by local rank; None for each without GPUs.

    unstarted  how many ranks there will be, if they have not been started yet
    """
    count = int(os.environ.get("LOCAL_WORLD_SIZE", unstarted))
    if 0 < gpus() < count and torchrun("WORLD_SIZE") > 1:
        return uuids()  # they share GPUs, or each sees another one only, as under Slurm
    return [rank % gpus() if gpus() else None for rank in range(count)]


@cache  # a process exchanges them once
def uuids():
    """Of the GPUs of this node's ranks, by local rank; exchanged before there is a process group."""
    store, rank, _ = next(dist.rendezvous("env://"))
    STORES.append(store)
    local = torchrun("LOCAL_RANK")
    named = dist.PrefixStore("gpus", store)
    named.set(str(rank), uuid(device(local)))
    ranks = range(rank - local, rank - local + torchrun("LOCAL_WORLD_SIZE"))
    return [named.get(str(other)).decode() for other in ranks]


def sharing(unstarted=1):
    """The local ranks that share this process's device: its GPU, or the CPU; unstarted as in `gpus_of_ranks`."""
    places = gpus_of_ranks(unstarted)
    mine = places[torchrun("LOCAL_RANK")]
    return [rank for rank, place in enumerate(places) if place == mine]


def backend(gpus):
    """What carries weights and gradients: NCCL if every process has a GPU of its own, else gloo.

    gpus  as from `uuid`, of every rank. Their numbers would not do: under Slurm each process may see one GPU, number 0.
    """
    return "nccl" if None not in gpus and len(set(gpus)) == len(gpus) else "gloo"


def gpu_bytes(args):
    """Bytes of a GPU for each process that uses it: an equal part, where several do."""
    if args.plan:
        return args.plan.device.memory * args.plan.count / world_size(args.plan)
    places = gpus_of_ranks(world_size())
    return torch.cuda.mem_get_info(own_gpu())[1] / max(map(places.count, places))


def free_bytes(local):
    """Free memory of the device of the local-th process of this node."""
    return torch.cuda.mem_get_info(local % gpus())[0] if gpus() else available()


def available():
    """Bytes of memory that are still available; where there is no /proc/meminfo, all memory of the machine."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        return 1024 * int(meminfo.read_text(encoding="utf-8").partition("MemAvailable:")[2].split()[0])
    if not hasattr(os, "sysconf"):  # Windows does not say; laptops have more than this
        return 4 << 30
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Device(NamedTuple):
    """A GPU as in its data sheet."""

    flops: float  # peak in `dtype` without sparsity, FLOP/s
    bandwidth: float  # of its memory, bytes/s
    memory: float  # bytes
    dtype: str = "bfloat16"  # what a run there takes by default; older GPUs have no bf16


DEVICES = {  # the makers' data sheets; of several forms SXM; of GeForce with fp32 sums
    "A10": Device(125e12, 0.6e12, 24e9),
    "A100": Device(312e12, 2.039e12, 80e9),
    "A100-40": Device(312e12, 1.555e12, 40e9),
    "A40": Device(149.7e12, 0.696e12, 48e9),
    "A6000": Device(154.8e12, 0.768e12, 48e9),
    "B200": Device(2250e12, 8.0e12, 180e9),
    "H100": Device(989e12, 3.35e12, 80e9),
    "H200": Device(989e12, 4.8e12, 141e9),
    "L4": Device(121e12, 0.3e12, 24e9),
    "L40S": Device(362e12, 0.864e12, 48e9),
    "MI300X": Device(1307e12, 5.3e12, 192e9),
    "RTX3090": Device(71e12, 0.936e12, 24e9),
    "RTX4090": Device(165e12, 1.008e12, 24e9),
    "RTX5090": Device(209e12, 1.792e12, 32e9),
    "T4": Device(8.1e12, 0.32e12, 16e9, "float32"),
    "V100": Device(15.7e12, 0.9e12, 32e9, "float32"),
}
OTHER = re.compile(r"(\d+)GB:(\d+\.?\d*)TB/s:(\d+)TFLOPS", re.IGNORECASE)


class Fleet(NamedTuple):
    """The GPUs of a run."""

    count: int
    name: str
    device: Device


def fleet_here():
    """The Fleet that the processes of a run find here, of one GPU if they share GPUs; None without GPUs.

    Of a GPU that is not in DEVICES nothing is known: its numbers are 0.
    """
    if not gpus():
        return None
    name = torch.cuda.get_device_name(own_gpu())
    words = re.sub(r"RTX (?=\d)", "RTX", name)
    known = [device for device in DEVICES if re.search(rf"\b{device}\b", words)]
    places = gpus_of_ranks(world_size())
    count = world_size() if len(set(places)) == len(places) else 1
    return Fleet(count, known[-1], DEVICES[known[-1]]) if known else Fleet(count, name, Device(0, 0, 0))


def fleet(text):
    """The Fleet of a text like 16xH100; of a GPU that is not in DEVICES, of its numbers.

    >>> fleet("4xl40s")[:2], fleet("8x80GB:2.0TB/s:300TFLOPS").device[:3]
    ((4, 'L40S'), (300000000000000.0, 2000000000000.0, 80000000000.0))
    """
    count, _, name = text.partition("x")
    device = DEVICES.get(name.upper())
    other = OTHER.fullmatch(name)
    if other:
        memory, bandwidth, flops = map(float, other.groups())
        device = Device(1e12 * flops, 1e12 * bandwidth, 1e9 * memory)
    if not count.isdecimal() or not device or not min(int(count), *device[:3]):
        names = ", ".join(f"{known} ({device.memory / 1e9:.0f} GB)" for known, device in DEVICES.items())
        numbers = "8x80GB:2.0TB/s:300TFLOPS"
        raise ValueError(f"expected NxGPU such as 8xH100, with a GPU of: {names}; or its numbers, such as {numbers}")
    return Fleet(int(count), name if other else name.upper(), device)
