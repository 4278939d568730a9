"""The processes of a run: how they start, which groups they form, and how they end together.

Paper: Sec. 2 and A.3, generators and trainers on separate devices, 64 + 16 of 80.

Ranks 0 ... T-1 are trainers (FSDP2 among themselves), the rest generators. Only weights, gradients and a few sums per
step use collectives; everything else goes through the store (store.py), which rank 0 hosts. Two processes on one GPU,
or without one, use gloo; one process per GPU uses NCCL, on nodes with equally many GPUs. heartbeat.py tells who is
alive.

Deviation: none known.

Run by train.py. Test: pytest tests/test_faults.py tests/test_restarts.py tests/test_nodes.py
"""

import hashlib
import os
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import DeviceMesh

from pipeline import RequestQueue
from plumbing import heartbeat
from plumbing.checkpoints import pick
from plumbing.devices import backend, cores, device, end_launcher, refuse, threads, torchrun, uuid, world_size
from plumbing.log import finished_checkpoints, lock_log, step_of
from plumbing.settings import ROOT
from plumbing.store import LONGEST_POLL, POLL, SLOWER, Interrupted, Store, paces
from verify import sandbox

# What may differ between nodes: where they find files, what was asked for in other words, what their sandboxes can do.
OF_THE_NODE = ("model", "data", "out", "resume", "checkpoint", "notes", "asked", "protections")

UNREACHABLE = (
    "cannot reach the other ranks: {error}; likely cause: one has ended; or with several nodes, a node's name leads to "
    "loopback: set GLOO_SOCKET_IFNAME to the network interface, and give each launcher --local-addr with its address"
)

# --- torchrun --------------------------------------------------------------------------------------------------------


# Signals that end a run in order: Ctrl-C, a closed terminal, Ctrl-\\, a scheduler before it kills, a used-up CPU limit.
ENDING = ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGXCPU")


class Unbroken:
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


def handled():
    """The signals of ENDING that the system has and that end a run: under nohup SIGHUP is ignored, and stays so."""
    known = [name for name in ENDING if hasattr(signal, name)]  # Windows has two
    return [name for name in known if name != "SIGHUP" or signal.getsignal(signal.SIGHUP) != signal.SIG_IGN]


def launch(script, argv):
    """Replace this process by torchrun with `world_size()` ranks; a launcher's variables must not reach them."""
    if sys.platform != "linux":
        refuse(
            "torchrun's processes need Linux: give --virtual exact for a run in one process, or use WSL or a container"
        )
    inherited = ("TORCHELASTIC_", "TORCH_NCCL_ASYNC", "LOCAL_", "GROUP_", "ROLE_", "RANK", "WORLD_SIZE", "MASTER_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // world_size())))
    environment.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600")  # seconds to write a checkpoint after Ctrl-C
    command = ["-m", "torch.distributed.run", "--standalone", "--signals-to-handle", ",".join(handled())]
    command += ["--nproc-per-node", str(world_size()), script, *argv]
    os.execve(sys.executable, [sys.executable, *command], environment)


# --- Start -----------------------------------------------------------------------------------------------------------


def stamp(args):
    """{name: text} of what all ranks must have alike: settings, versions, and the code itself."""
    local = OF_THE_NODE if "slots" in args.asked else (*OF_THE_NODE, "slots")
    settings = {name: str(value) for name, value in vars(args).items() if name not in local}
    code = code_digest()[:12]
    return settings | {"torch": str(torch.__version__), "transformers": transformers.__version__, "code": code}


def code_digest(root=ROOT):
    """A digest of the files of train.py and of what it imports."""
    files = [*root.glob("*.py"), *root.glob("plumbing/*.py"), *root.glob("verify/*.py")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()


# --- This process among the others -----------------------------------------------------------------------------------


class Processes:
    """This process among the others: its rank, device and groups, the store, and the heartbeat."""

    clock = staticmethod(time.perf_counter)  # seconds
    hours = "device-hours"  # what they are called on the screen
    reached = ""  # the step at which rank 0's training has ended, of how many
    drain = False  # whether all admitted requests are finished before each step: only with --virtual exact

    def __init__(self, args):
        import resource  # here: Windows, where a run in virtual time works too, has none

        sys.stdout, sys.stderr = Unbroken(sys.stdout), Unbroken(sys.stderr)
        self.local, self.rank, self.world = map(torchrun, ("LOCAL_RANK", "RANK", "WORLD_SIZE"))
        self.devices = self.world  # on a CPU one process counts as one device
        self.out = args.out
        self.dtype = getattr(torch, args.dtype)
        self.trainer_ranks = range(args.trainers)
        self.generator_ranks = range(args.trainers, self.world)
        self.device = device(self.local)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            if (
                self.rank in self.trainer_ranks
                and not {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} & os.environ.keys()
            ):
                # Micro-batches differ in shape: else a tenth of the memory is holes. The variables are read when CUDA
                # starts, which it has by now; this call holds for what is allocated from here on.
                torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
            elif args.generator == "vllm" and self.rank in self.generator_ranks:
                # Such memory can be handed to the worker of vLLM only where containers allow it.
                torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
                for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
                    os.environ.pop(name, None)  # for the worker
        torch.set_num_threads(threads())
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # rank 0 has five sockets for each of the others
        limit = timedelta(seconds=args.timeout)
        places = [None] * self.world
        try:
            dist.init_process_group("gloo", timeout=limit)
            dist.all_gather_object(places, (uuid(self.device), socket.gethostname()))
            tcp_store, lines = heartbeat.connect(self.rank, self.world, args.timeout)
        except (OSError, RuntimeError) as error:
            host = socket.gethostname()
            sys.exit(f"train.py: error: rank {self.rank} on {host} {UNREACHABLE.format(error=error)}")
        kind = backend([gpu for gpu, _ in places])
        self.hosts = [host for _, host in places]
        self.heartbeat = heartbeat.Heartbeat(lines, self.rank, self.name, args.timeout, self.farewell)
        self.store = Store(tcp_store, self.rank, self.heartbeat)
        self.trainers = dist.new_group(self.trainer_ranks, timeout=limit, backend=kind)
        # Writing to a disk may take long; if a process dies meanwhile, the heartbeat tells.
        self.writers = dist.new_group(self.trainer_ranks, backend="gloo", timeout=timedelta(days=1))
        self.receivers = dist.new_group([0, *self.generator_ranks], timeout=limit, backend=kind)
        self.mesh = DeviceMesh.from_group(self.trainers, self.device.type) if self.rank in self.trainer_ranks else None
        self.end_in_order()

    def name(self, rank):
        """What messages call a rank."""
        role = "trainer" if rank in self.trainer_ranks else "generator"
        return f"{role} rank {rank}" + (f" on {self.hosts[rank]}" if len({*self.hosts}) > 1 else "")

    def end_in_order(self):
        """Until here a signal ends the process at once; from here on all ranks end in order, led by rank 0."""
        for name in handled():
            signal.signal(signal.Signals[name], self.on_signal)

    def on_signal(self, number, _):
        """One of ENDING, on any rank, maybe from the launcher: all trainers end at their next micro-batch or wait."""
        self.heartbeat.stop(f"interrupted: {self.name(self.rank)} got {signal.Signals(number).name}")

    def agree(self, args):
        """The Settings that all ranks agree on, before anything is loaded; every rank calls this.

        Rank 0 locks --out and picks the newest whole checkpoint. All look whether they see a file that it has just
        made there, and say with what they started and which protections their sandboxes have.
        Raises OSError if --out is in use, is not one folder for all nodes, or holds broken checkpoints only, or if a
        rank was started with other settings, versions or code.
        """
        out = Path(args.out)
        if self.rank == 0:
            with self.heartbeat.working():
                self.lock = lock_log(out)  # until this process ends
                picked = pick(out) if args.resume else None
            mark = NamedTemporaryFile(dir=out, prefix=".start-")  # removed when it is closed
            self.store.put({"start": (Path(mark.name).name, picked, bool(args.protections))})
        self.store.wait("rank 0 to pick a checkpoint", lambda: self.store.has(["start"]))
        mark_name, picked, sandboxed = self.store.read("start")
        protections = args.protections
        if sandboxed and self.local == 0 and not protections:  # a node of generators, which know no prompts yet
            protections = sandbox.protections()
        start = {"stamp": stamp(args), "out": str(out), "shared": (out / mark_name).exists()}
        self.store.put({f"started/{self.rank}": start | {"protections": protections, "slots": args.slots}})
        names = [f"started/{rank}" for rank in range(self.world)]
        self.store.wait("the others to start", lambda: self.store.has(names))
        starts = [self.store.read(name) for name in names]
        if self.rank == 0:
            mark.close()
        self.compare(starts)
        slots = min(start["slots"] for start in starts)  # each has made its own fit the memory that it saw
        protections = starts[self.rank - self.local]["protections"]  # a node's first rank has tried out its sandboxes
        if self.rank == 0:  # which logs those of all nodes
            tried = [start["protections"] for start in starts if start["protections"]]
            protections = [line for line in protections if all(line in lines for lines in tried)]
        return replace(args, checkpoint=picked, slots=slots, protections=protections)

    def compare(self, starts):
        """Raise OSError if a rank was started with other settings, versions or code than rank 0, or in another folder.

        starts  what each rank says of its start in `agree`
        """
        expected = starts[0]["stamp"]
        for rank, start in enumerate(starts):
            if not start["shared"]:
                folder = f"--out {start['out']} on {self.hosts[rank]}"
                raise OSError(f"{folder} is not the folder that rank 0 has; expected one folder that all nodes share")
            differences = [
                f"{name} {value} instead of {expected.get(name)}"
                for name, value in start["stamp"].items()
                if value != expected.get(name)
            ]
            if differences:
                started = f"{self.name(rank)} was started with {', '.join(differences)}"
                raise OSError(f"{started}: expected the same on all nodes")

    def farewell(self, reason):
        """What this rank prints when the run has failed: the reason, and which checkpoint is left to resume from."""
        checkpoint = "no checkpoint yet"
        if finished := finished_checkpoints(self.out):
            mended = "once this is mended, " if self.heartbeat.final else ""  # a new start would fail alike
            checkpoint = f"a checkpoint of step {step_of(finished[-1])}: {mended}go on with --resume"
        return f"train.py: error: {reason}; {self.out} holds {checkpoint} ({self.name(self.rank)})"

    def end(self, reason):
        """The last call on every rank: say why the run ends, and end in order. Returns the exit code.

        Rank 0, which hosts the store, waits until the others have ended, so that its line is the last.
        """
        beat = self.heartbeat
        if reason != "finished" and not (beat.lost or beat.failed):
            print(f"train.py: {reason} ({self.name(self.rank)})", flush=True)
        beat.end(patience=0.0 if self.rank else 5.0)
        beat.final |= beat.failed  # the verifier, or gradients that are not finite
        if dist.is_initialized():  # vLLM destroys the group when it closes
            dist.destroy_process_group()
        if beat.lost or beat.failed:
            if beat.final:
                end_launcher()
            if not beat.lost:  # else the reason is printed already
                print(self.farewell(reason), file=sys.stderr)
            return 1
        if reason.startswith("interrupted") and self.rank == 0:
            print(f"stopped at step {self.reached}; go on with --resume")
        return 0

    def close(self):
        """Nothing is left to do: the process ends."""

    # --- Collectives of the trainers, the identity on one

    def any_trainer(self, flag):
        """Whether a flag is set on any trainer."""
        flag = torch.tensor(float(bool(flag)), device=self.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.trainers)
        return bool(flag)

    def stop_together(self, tokens):
        """Called before each micro-batch, of so many tokens: if any trainer was asked to stop, all raise Interrupted.

        If only some of them left, the others would hang in FSDP.
        """
        self.heartbeat.tick()
        if self.any_trainer(self.heartbeat.stopped):
            raise Interrupted(self.heartbeat.stopped or "interrupted")

    def total(self, sums, largest):
        """(the sums added, the largest) over all trainers.

        sums  (n,) float64, and largest (), on the device; both are overwritten
        """
        dist.all_reduce(sums, group=self.trainers)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.trainers)
        return sums.tolist(), largest.item()

    # --- Weights

    def broadcast(self, layout, tensors):
        """Copy the trainers' weights into those of the generators, all of which call `receive`.

        Every trainer rank calls this, with the arguments of `broadcast_weights`: to make a whole tensor takes all.
        """
        if self.rank == 0:
            self.store.put({f"weights/{rank}": True for rank in self.generator_ranks})
            broadcast_weights(layout, tensors, self.receivers, self.device)
        else:
            deque(tensors, maxlen=0)  # makes each, and keeps none

    def receive(self, named):
        """Have rank 0's weights copied into {name: contiguous tensor}."""
        # Not in a collective, whose time limit would run: others may still load the model, or download it.
        self.store.wait("rank 0 to send the weights", lambda: self.store.has([f"weights/{self.rank}"]))
        self.store.delete([f"weights/{self.rank}"])
        tensors = [named[name] for name in sorted(named)]
        broadcast_weights(layout_of(named), tensors, self.receivers, tensors[0].device)


# --- The lives of both roles, from start to end ----------------------------------------------------------------------


def run_trainer(args, processes, make, train):
    """A trainer rank's life. Returns why it ended.

    make   Settings -> its train.Trainer
    train  train.train

    An orderly end (finished, Ctrl-C, a verdict of the monitor) writes a checkpoint. After the loss of a process, on a
    full disk, or with weights that are not finite, the previous checkpoint remains.
    """
    began = time.perf_counter()
    heartbeat = processes.heartbeat
    trainer = None
    try:
        args = processes.agree(args)
        with heartbeat.working():
            trainer = make(args)
        try:
            reason = train(trainer, args)
            reason = heartbeat.stopped if heartbeat.failed else reason
        except Interrupted as end:
            reason = str(end)
            heartbeat.tick()  # raises Lost if a process died: then the launcher, not Ctrl-C, interrupted us
        heartbeat.needed &= {*processes.trainer_ranks}  # from here on generators may end
        trainer.queue.stop(reason)
        if trainer.decoder:
            trainer.decoder.close()
        trainer.checkpoint()
    except (OSError, RuntimeError, FloatingPointError) as error:
        reason = heartbeat.blame(error)
    if trainer:
        trainer.log.finish(reason, trainer.version, time.perf_counter() - began)
        processes.reached = f"{trainer.version} of {args.steps}"
    return reason


def run_generator(args, processes, generate):
    """A generator rank's life. Returns why it ended. generate: train.generate."""
    queue = RequestQueue(processes.store, *paces())
    pause = POLL
    seen = None
    try:
        args = processes.agree(args)
        for generator, *_ in generate(args, processes, queue):
            if generator.busy or queue.latest != seen:
                pause = POLL
            else:
                time.sleep(pause)
                pause = min(LONGEST_POLL, SLOWER * pause)
            seen = queue.latest
        return queue.latest.stop
    except (OSError, RuntimeError) as error:
        return processes.heartbeat.blame(error)


# --- Weights ---------------------------------------------------------------------------------------------------------


def layout_of(named, dtype=None):
    """[(name, shape, dtype)] of {name: tensor} in the order in which weights are sent; dtype: if not the tensors'."""
    return [(name, tuple(tensor.shape), dtype or tensor.dtype) for name, tensor in sorted(named.items())]


def broadcast_weights(layout, tensors, group, device):
    """Copy contiguous tensors from the group's first rank to the others, bit for bit; all ranks of it call this.

    layout   of all of them (layout_of)
    tensors  an iterable in this order; on the first rank each may be made when it is asked for: no more than two exist
             at once
    group    a ProcessGroup of rank 0 and the generators that can send from `device`, where the tensors are
    Raises ValueError on a receiver whose names, shapes or dtypes are not the sender's.
    """
    own = torch.tensor(list(hashlib.sha256(str(layout).encode()).digest()), dtype=torch.uint8, device=device)
    group.broadcast(sent := own.clone(), 0).wait()
    if not torch.equal(own, sent):  # else the two sides would send and expect different sizes, and hang
        cause = "a generator's model or dtype is not the trainers'"
        differ = "tensors differ from rank 0's in name, shape or dtype"
        raise ValueError(f"{differ}; likely cause: {cause}. Here: {layout}")
    for tensor in tensors:
        group.broadcast(tensor.detach().view(-1).view(torch.uint8), 0).wait()  # as bytes: gloo knows few dtypes
