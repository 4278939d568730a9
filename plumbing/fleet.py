"""The processes of a run: trainers and generators under torchrun, their groups, and how they end together.

Paper: Sec. 2 and A.3, generators and trainers on separate devices, 64 + 16 of 80.

Ranks 0 ... T-1 are trainers (FSDP2 among themselves), the rest generators. Only weights, gradients and a few sums per
step use collectives; everything else goes through the mailbox of pipeline.py, which rank 0 hosts. Two processes on one
GPU, or without one, use gloo; one process per GPU uses NCCL, on nodes with equally many GPUs. When a process dies or
freezes, lifeline.py tells all others.

Deviation: none known.

Run by train.py. Test: pytest tests/test_train.py tests/test_pipeline.py tests/test_faults.py
"""

import hashlib
import os
import secrets
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import DeviceMesh

import pipeline
from plumbing import checkpoints, lifeline
from plumbing.batches import means
from plumbing.virtual import TICKS

# What may differ between nodes: where they find files, what was asked for in other words, what their sandboxes can do.
OF_THE_NODE = ("model", "data", "out", "resume", "checkpoint", "notes", "asked", "protections", "fitted")
# Signals that end a run in order: Ctrl-C, a closed terminal, Ctrl-\\, a scheduler before it kills, a used-up CPU limit.
ENDING = ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGXCPU")


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
    return max(1, cores() // int(os.environ["LOCAL_WORLD_SIZE"]))


def device(local):
    """The device of the process with this local rank: a GPU, of which there may be fewer than processes, or the CPU."""
    gpus = torch.cuda.device_count()
    return torch.device("cuda", local % gpus) if gpus else torch.device("cpu")


def uuid(place):
    """What tells a GPU from all others, whatever number a process knows it by; None for the CPU."""
    return str(torch.cuda.get_device_properties(place).uuid) if place.type == "cuda" else None


def backend(gpus):
    """What carries weights and gradients: NCCL if every process has a GPU of its own, else gloo.

    gpus  as from `uuid`, of every rank. Their numbers would not do: under Slurm each process may see one GPU, number 0.
    """
    return "cpu:gloo,cuda:nccl" if None not in gpus and len(set(gpus)) == len(gpus) else "gloo"


def stamp(args):
    """{name: text} of what all ranks must have alike: flags, versions, and the code itself."""
    flags = {name: str(value) for name, value in vars(args).items() if name not in OF_THE_NODE}
    root = Path(__file__).resolve().parent.parent
    files = sorted([*root.glob("*.py"), *root.glob("plumbing/*.py"), *root.glob("verify/*.py")])
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    return flags | {"torch": str(torch.__version__), "transformers": transformers.__version__, "code": code}


def end_launcher():
    """Called when a new start would fail for the same reason: torchrun, told to end, uses up no --max-restarts."""
    if restarts() and os.environ["LOCAL_RANK"] == "0":
        os.kill(os.getppid(), signal.SIGTERM)


def restarts():
    """torchrun's --max-restarts, 0 without it."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))


def processes():
    """How many processes the run has, or will have once `launch` has started them: one per GPU, at least two."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    return world if world > 1 else max(2, torch.cuda.device_count())


def launch(script, argv):
    """Replace this process by torchrun with `processes()` ranks; the launcher's variables must not reach them."""
    inherited = (
        "TORCHELASTIC_",
        "TORCH_NCCL_ASYNC",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_",
        "ROLE_",
        "RANK",
        "WORLD_SIZE",
        "MASTER_",
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes())))
    environment.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600")  # seconds to write a checkpoint after Ctrl-C
    # Under nohup SIGHUP is ignored: torchrun must not handle it, and so end, all the same.
    handled = [name for name in ENDING if name != "SIGHUP" or signal.getsignal(signal.SIGHUP) != signal.SIG_IGN]
    command = ["-m", "torch.distributed.run", "--standalone", "--signals-to-handle", ",".join(handled)]
    command += ["--nproc-per-node", str(processes()), script, *argv]
    os.execve(sys.executable, [sys.executable, *command], environment)


class Clock:
    """The compute C of Eq. 1 in device-hours: devices x seconds on the clock / 3600. On CPU a process is a device."""

    def __init__(self, devices, gpu_hours=0.0, read=time.perf_counter):
        self.devices = devices
        self.seconds = round(gpu_hours * 3600 / devices * TICKS) / TICKS  # exact again after the division by 3600
        self.since = None  # when it was started, in seconds; None while it stands still
        self.read = read

    def start(self):
        self.since = self.read()

    @contextmanager
    def paused(self):
        """Inside `with clock.paused()` the clock stands still; it goes on afterwards if it was running."""
        since = self.since
        self.seconds = self.now()
        self.since = None
        yield
        self.since = None if since is None else self.read()

    def now(self):
        return self.seconds + (0.0 if self.since is None else self.read() - self.since)

    @property
    def gpu_hours(self):
        return self.devices * self.now() / 3600


class Screen:
    """A stream to which writing never fails: text that nobody reads any more, as by tee after Ctrl-C, is lost."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        with suppress(OSError):
            self.stream.write(text)

    def flush(self):
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name):
        return getattr(self.stream, name)


class Fleet:
    """This process among the others: its rank, device and groups, the mailbox, and the lifeline to the others."""

    clock = staticmethod(time.perf_counter)  # seconds
    hours = "device-hours"  # what they are called on the screen
    drain = False  # whether all issued requests are finished before each step: only in virtual time

    def __init__(self, args):
        local, self.rank, world = (int(os.environ[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))
        self.device = device(local)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        torch.set_num_threads(threads())
        wait = timedelta(seconds=args.timeout)
        dist.init_process_group("gloo", timeout=wait)
        dist.all_gather_object(ranks := [None] * world, (uuid(self.device), socket.gethostname()))
        kind = backend([gpu for gpu, _ in ranks])
        self.dtype = getattr(torch, args.dtype)
        self.out = args.out
        self.world = self.devices = world
        self.mailbox = pipeline.Mailbox(
            pipeline.connect(lifeline.address(), partial(lifeline.listener, world)),
            self.rank,
            trainers=args.trainers,
            world=world,
            timeout=args.timeout,
            interrupted=lambda: self.lifeline.stopped if self.rank == 0 else None,
            lost=lambda: self.lifeline.lost,
            hosts=[host for _, host in ranks],
        )
        self.lifeline = lifeline.Lifeline(
            lifeline.connect(self.rank, world, args.timeout),
            self.rank,
            name=self.mailbox.name,
            timeout=args.timeout,
            farewell=self.farewell,
        )
        self.trainers = dist.new_group(range(args.trainers), timeout=wait, backend=kind)
        # Writing to a disk may take long; if a process dies meanwhile, the lifeline tells.
        self.writers = dist.new_group(range(args.trainers), backend="gloo", timeout=timedelta(days=1))
        self.publishers = dist.new_group([0, *range(args.trainers, world)], timeout=wait, backend=kind)
        self.mesh = DeviceMesh.from_group(self.trainers, self.device.type) if self.rank < args.trainers else None
        self.end_in_order()

    def end_in_order(self):
        """Until here a signal ends the process at once; from here on all ranks end in order, led by rank 0."""
        for name in ENDING:
            if name != "SIGHUP" or signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under nohup
                signal.signal(signal.Signals[name], self.on_signal)

    def on_signal(self, number, _):
        """One of ENDING, on any rank, maybe from the launcher: all trainers end at their next micro-batch or wait."""
        name = self.mailbox.name(self.rank)
        self.lifeline.stopped = self.lifeline.stopped or f"interrupted: {name} got {signal.Signals(number).name}"

    @contextmanager
    def beating(self):
        """Inside `with`, a thread counts progress for this rank: loading and writing take long and have no steps."""
        done = threading.Event()
        store = self.mailbox.store.clone()

        def beat():
            with suppress(dist.DistError):  # rank 0 is gone: the lifeline says so
                while not done.wait(pipeline.BEAT):
                    store.add(f"beat/{self.rank}", 1)

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def settle(self, args):
        """Agree on where the run starts, before anything is loaded; every rank calls this.

        Rank 0 locks --out and picks the newest intact checkpoint, now by checksums too. All others look whether they
        see a file that it has just made there, and say which protections their sandboxes have, and with what they started.
        Raises OSError if --out is in use, is not one folder for all nodes, or holds broken checkpoints only, or if a
        rank was started with other flags, versions or code.
        """
        box = self.mailbox
        out = Path(args.out)
        local = int(os.environ.get("LOCAL_RANK", 0))
        if not local:  # the first rank of each node has tried out sandboxes
            others = range(self.rank + 1, self.rank + int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
            box.put({f"sandboxes/{rank}": args.protections for rank in others})
        else:
            args.protections = box.receive(
                f"sandboxes/{self.rank}", "what sandboxes can do here", [self.rank - local], interruptible=False
            )
        if self.rank:
            seen, args.checkpoint = box.receive(
                f"start/{self.rank}", "rank 0 to pick a checkpoint", [0], interruptible=False
            )
            if not (out / seen).exists():
                expected = "expected one folder that all nodes share"
                raise OSError(f"--out {out} on {socket.gethostname()} is not the folder that rank 0 has; {expected}")
            return box.put({f"started/{self.rank}": (args.protections, stamp(args))})
        with self.beating():
            self.lock = checkpoints.own(out)
            args.checkpoint = self.pick(args) if args.resume else None
            for stale in out.glob(".start-*"):
                stale.unlink()
            mark = out / f".start-{secrets.token_hex(8)}"
            mark.touch()
            box.put({f"start/{rank}": (mark.name, args.checkpoint) for rank in range(1, self.world)})
            # A signal is heeded later. If a rank is lost here, the mark stays: its absence would blame the folder.
            started = [
                box.receive(f"started/{rank}", "the others to start", [rank], interruptible=False)
                for rank in range(1, self.world)
            ]
            mark.unlink()
        for rank, (lines, theirs) in enumerate(started, 1):
            args.protections = [line for line in args.protections if line in lines]  # logged
            self.compare(rank, theirs, stamp(args))

    def compare(self, rank, theirs, ours):
        """Raise OSError if this rank was started with other flags, versions or code than rank 0."""
        differ = [name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)]
        if differ:
            said = ", ".join(f"{name} {theirs.get(name)} instead of {ours.get(name)}" for name in differ)
            raise OSError(f"{self.mailbox.name(rank)} was started with {said}: expected the same on all nodes")

    def pick(self, args):
        """Rank 0's choice of the newest intact checkpoint; sets broken ones after it aside."""
        folder, broken = checkpoints.newest(args.out, thorough=True)
        words = "; ".join(f"{name} is broken: {wrong}" for name, wrong in broken.items())
        if not folder:
            raise OSError(f"--resume: found no intact checkpoint in {args.out}: {words}")
        if str(folder) != args.checkpoint:
            print(f"{words}; --resume: goes on from {folder}")
        checkpoints.set_aside(args.out, folder)
        return str(folder)

    def farewell(self, reason):
        """What this rank prints when the run has failed: the reason, and which checkpoint is left to resume from."""
        last = [folder.name.partition("-")[2] for folder in [checkpoints.newest(self.out)[0]] if folder]
        left = f"holds a checkpoint of step {last[0]}: go on with --resume" if last else "holds no checkpoint yet"
        return f"train.py: error: {reason}; {self.out} {left} ({self.mailbox.name(self.rank)})"

    def broadcast(self, named):
        """Copy rank 0's weights into the generators' tensors."""
        broadcast_weights(named, self.publishers)

    def any(self, flag):
        """Whether a flag is set on any trainer."""
        flag = torch.tensor(float(bool(flag)), device=self.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.trainers)
        return bool(flag)

    def stop_together(self, items):
        """Called before each micro-batch (of batches.Items): if any trainer was asked to stop, all raise Interrupted.

        If only some of them left, the others would hang in FSDP.
        """
        self.mailbox.beat()
        self.mailbox.watch([], "the trainers")
        if self.any(self.lifeline.stopped):
            raise pipeline.Interrupted(self.lifeline.stopped or "interrupted")

    def total(self, sums, rho_max):
        """Means of one optimizer step over the trained tokens of all trainer ranks, and rho_max; {} without tokens.

        sums     (6,) as in `batches.statistics`, added over this rank's micro-batches
        rho_max  the largest rho of this rank
        """
        sums = sums.to(self.device)
        rho_max = torch.tensor(rho_max, device=self.device)
        dist.all_reduce(sums, group=self.trainers)
        dist.all_reduce(rho_max, dist.ReduceOp.MAX, group=self.trainers)
        return means(sums.tolist(), rho_max.item())


# --- Weights ---------------------------------------------------------------------------------------------------------


def buckets(parts, bucket_bytes):
    """Group flat byte tensors into lists of at most `bucket_bytes` each; a larger tensor gets a list of its own.

    >>> [[part.numel() for part in bucket] for bucket in buckets([torch.zeros(n) for n in (3, 4, 9, 2)], 8)]
    [[3, 4], [9], [2]]
    """
    bucket = []
    filled = 0
    for part in parts:
        if bucket and filled + part.numel() > bucket_bytes:
            yield bucket
            bucket = []
            filled = 0
        bucket.append(part)
        filled += part.numel()
    yield bucket


def broadcast_weights(named, group, *, bucket_bytes=64 << 20):
    """Copy {name: contiguous tensor} from the group's first rank to the others, bit for bit; all ranks of it call this.

    group  a ProcessGroup of rank 0 and the generators that can send from the device of the tensors
    Raises ValueError on a receiver whose names, shapes or dtypes are not the sender's.
    """
    items = sorted(named.items())
    layout = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in items]
    digest = list(hashlib.sha256(str(layout).encode()).digest())
    own = torch.tensor(digest, dtype=torch.uint8, device=items[0][1].device)
    group.broadcast(sent := own.clone(), 0).wait()
    if not torch.equal(own, sent):  # else the two sides would cut different buckets and hang
        cause = "a generator's model or dtype is not the trainers'"
        differ = "tensors differ from rank 0's in name, shape or dtype"
        raise ValueError(f"{differ}; likely cause: {cause}. Here: {layout}")
    for bucket in buckets([tensor.detach().view(-1).view(torch.uint8) for _, tensor in items], bucket_bytes):
        group.broadcast(flat := torch.cat(bucket), 0).wait()
        for part, new in zip(bucket, flat.split([len(part) for part in bucket])) if group.rank() else ():
            part.copy_(new)
