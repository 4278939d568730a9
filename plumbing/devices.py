"""Which devices there are, who has them, and what is known of them: torchrun's variables, cores, GPUs, their memory.

Run by settings.py, build.py, memory.py and processes.py. Test: pytest tests/test_restarts.py tests/test_plan.py
"""

import argparse
import os
import re
import signal
import socket
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

# torchrun's variables -> their values in a process that torchrun has not started.
ALONE = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}


def torchrun(name):
    """One of torchrun's variables."""
    return int(os.environ.get(name, ALONE[name]))


ANSWER = 10.0  # seconds in which a launcher accepts a connection
WAY_OUT = f"unset {' '.join(ALONE)}, or start it by torchrun"


def check_launcher():
    """End with code 2 and one line if torchrun's variables contradict each other, or if their torchrun is gone.

    Its agent hosts the store at which the ranks meet; where it is gone, nobody listens there.
    """
    if fault := misfit():
        cause = "likely cause: variables that an earlier launcher has left in this shell"
        print(f"train.py: error: {variables()}: {fault}; {cause}: {WAY_OUT}", file=sys.stderr)
        sys.exit(2)


def variables():
    """torchrun's variables as a shell writes them."""
    return " ".join(f"{name}={os.environ[name]}" for name in ALONE if name in os.environ)


def say_who_is_awaited():
    """A line if torchrun has not started this rank: nobody can tell yet whether something starts the others."""
    if torchrun("WORLD_SIZE") > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        wait = f"waits for the other ranks at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        print(f"train.py: {variables()}, without torchrun: {wait}. If nothing starts them: {WAY_OUT}", file=sys.stderr)


def misfit():
    """What is wrong with torchrun's variables, in words; "" if nothing is."""
    if not all(os.environ.get(name, "0").isdecimal() for name in ALONE):
        return "expected whole numbers"
    local = int(
        os.environ.get("LOCAL_WORLD_SIZE", torchrun("WORLD_SIZE"))
    )  # other launchers than torchrun leave it out
    if torchrun("RANK") >= torchrun("WORLD_SIZE") or torchrun("LOCAL_RANK") >= local:
        return "expected a rank below the number of ranks"
    if torchrun("WORLD_SIZE") == 1:
        return ""
    if not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return "expected MASTER_ADDR and MASTER_PORT beside them"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        try:
            socket.create_connection(place, timeout=ANSWER).close()
        except OSError as error:
            return f"expected a launcher that answers at {place[0]}:{place[1]}, got {error}"
    return ""


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
            return int(os.environ["OMP_NUM_THREADS"])
    return max(1, cores() // torchrun("LOCAL_WORLD_SIZE"))


def world_size(plan=None):
    """How many processes the run has, or will have once `launch` has started them: one per GPU, at least two.

    plan    the plan.Fleet of --plan, whose GPUs count then
    """
    if plan:
        return max(2, plan.count)
    world = torchrun("WORLD_SIZE")
    return world if world > 1 else max(2, torch.cuda.device_count())


def alone(args):
    """Whether this process is all of the run: in virtual time; or with --evaluate, without GPUs for more of them."""
    single = args.virtual or args.evaluate and torch.cuda.device_count() < 2
    return bool(single) and torchrun("WORLD_SIZE") == 1


STORES: list = []  # kept open: rank 0 serves the others


def device(local):
    """The device of the process with this local rank: a GPU, of which there may be fewer than processes, or the CPU."""
    gpus = torch.cuda.device_count()
    return torch.device("cuda", local % gpus) if gpus else torch.device("cpu")


def uuid(place):
    """What tells a GPU from all others, whatever number a process knows it by; None for the CPU."""
    return str(torch.cuda.get_device_properties(place).uuid) if place.type == "cuda" else None


def gpus_of_ranks(unstarted=1):
    """What tells apart the GPUs of this node's ranks, by local rank; None for each without GPUs.

    unstarted  how many ranks there will be, if they have not been started yet
    """
    count = int(os.environ.get("LOCAL_WORLD_SIZE", unstarted))
    gpus = torch.cuda.device_count()
    if 0 < gpus < count and torchrun("WORLD_SIZE") > 1:
        return uuids()  # they share GPUs, or each sees another one only, as under Slurm
    return [rank % gpus if gpus else None for rank in range(count)]


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
    return "cpu:gloo,cuda:nccl" if None not in gpus and len(set(gpus)) == len(gpus) else "gloo"


def own_memory(args):
    """Bytes of the GPU that each process has for itself; 0 if processes share one, or have none."""
    if args.plan:
        return args.plan.device.memory if args.plan.count == world_size(args.plan) else 0
    gpus = gpus_of_ranks(world_size())
    if args.virtual or args.evaluate or None in gpus or len(set(gpus)) < len(gpus):
        return 0
    # Of this process's own GPU: to ask one of another is to start a CUDA context there, half a GB for every rank.
    return torch.cuda.mem_get_info(torchrun("LOCAL_RANK") % torch.cuda.device_count())[1]


def free_bytes(local):
    """Free memory of the device of the local-th process of this node."""
    gpus = torch.cuda.device_count()
    return torch.cuda.mem_get_info(local % gpus)[0] if gpus else available()


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
    count: int
    name: str
    device: Device


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
        known = ", ".join(f"{one} ({device.memory / 1e9:.0f} GB)" for one, device in DEVICES.items())
        raise argparse.ArgumentTypeError(
            f"got {text}; expected NxGPU such as 8xH100, with a GPU of: {known}; or its numbers, such as "
            "8x80GB:2.0TB/s:300TFLOPS"
        )
    return Fleet(int(count), name if other else name.upper(), device)


BFLOAT16 = (8, 0)  # NVIDIA's first compute capability with it (Ampere)
OLD_GPU = "this GPU has no bfloat16; weights, keys and values take twice the memory, and a step takes longer"
