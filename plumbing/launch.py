"""Starting and ending processes: torchrun, its environment, and the signals that end a run.

Run by settings.py, processes.py and train.py. Test: pytest tests/test_restarts.py
"""

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import torch

# Signals that end a run in order: Ctrl-C, a closed terminal, Ctrl-\\, a scheduler before it kills, a used-up CPU limit.
ENDING = ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGXCPU")


ANSWER = 10.0  # seconds in which a launcher accepts a connection

# torchrun's variables -> their values in a process that torchrun has not started.
ALONE = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
WAY_OUT = f"unset {' '.join(ALONE)}, or start it by torchrun"


def torchrun(name):
    """One of torchrun's variables."""
    return int(os.environ.get(name, ALONE[name]))


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
