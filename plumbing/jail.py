"""A jail: runs a Python program that nobody has read, once per input, and lets out nothing but what it writes.

Paper: Sec. 2, code is checked by running unit tests. workers.py starts a jail per program and compares what comes out
with the expected outputs, which never get in. So there is no verdict to forge: an early exit, a false result, a write
to some file descriptor are wrong unless they are the right output.

Everywhere: a bare interpreter (standard library only) in its own session, with an empty environment; limits on the wall
clock (all inputs together), CPU, memory, file sizes, processes and output; at the end everything that it has started is
killed and reaped, and its folder is gone. Where Linux allows namespaces (to root, or where `unshare -rn` works), also
no network, no sight of other processes, and no files but the interpreter's and the system's libraries, read-only, and
an empty folder in memory. Elsewhere a temporary folder and, if we are root, a user without rights. `protections` tells.

What it does not protect against: a hole in the kernel; a machine brought to its knees within the limits (PROCESSES,
each of LIMITS["AS"], for `timeout` seconds); System V shared memory, which no limit counts (it is freed at the end).
And without namespaces: a program that reads, writes or kills whatever its user may, finds the tests on the disk, uses
the network, or outlives a worker that somebody kills. For code that was written to break out take a virtual machine.
Where the machine's memory ends, whoever used it up, the kernel kills jails first, and their programs count as wrong.

Linux only. Deviation: none known.
Open in the paper: how programs are run.

Test: pytest tests/test_code_reward.py. As a script, the file is a jail started by `run`, or prints `protections`.
"""

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import nullcontext, suppress
from functools import cache

START_SECONDS = 60.0  # for the interpreter and the namespaces; not part of a program's time
PROCESSES = 8  # and threads, the jail's own included
LIMITS = {"AS": 1 << 30, "FSIZE": 16 << 20, "NOFILE": 64, "CORE": 0}  # of each process; bytes, but for NOFILE
USERS = range(61184, 65520)  # ids that nobody has: a jail started by root takes one
FILES = ("/usr", "/lib", "/lib64", "/dev/null", "/dev/zero", "/dev/urandom")  # to be seen beside the interpreter's own
# Everywhere; with namespaces.
PROTECTIONS = ("own session, folder and empty environment; limits on time, memory, file size, output and processes",
               "no network; sees and leaves no other process; sees no files but system libraries, read-only")
# What graders define before a program, and so programs expect: star imports, with the interpreter's own names on top.
PRELUDE = "".join(f"from {name} import *\nimport {name}\n" for name in (
    "string", "re", "collections", "heapq", "bisect", "math", "itertools", "functools", "typing", "builtins"))
PRELUDE += "import copy, datetime, operator, random, sys\n"
PROBE = "import threading\nthreading.Thread(target=print, args=['free']).start()"  # programs may start threads


# --- Outside: in a worker of workers.py ------------------------------------------------------------------------------
# Modules that a jail does not need are imported where they are used: a bare interpreter starts in half the time.


def as_file(content: str):
    """An open nameless file: unlike a pipe it takes any size at once, so that nobody waits for its reader."""
    import tempfile

    file = tempfile.TemporaryFile()
    file.write(content.encode())
    file.seek(0)
    return file


def run(program, name, inputs, *, size, timeout, namespaces, warm=None):
    """Run a program on each input; yields the bytes it wrote each time, None if it failed or wrote more than `size`.

    program     Python source
    name        of the function in it that is called with each input, a list of arguments, and whose result, as JSON, is
                what it wrote; None: the inputs are texts for stdin, and what it wrote is stdout
    timeout     seconds of wall clock, for all inputs together
    namespaces  see the top
    warm        None, or what programs get that share a slow import; between two inputs all is killed and emptied:
                "source" (trusted, run once; the programs are forks that have its modules), "see" ({path: where it is
                seen in the jail}, read-only) and "hide" (paths of which nothing is seen; both with namespaces only),
                "limits" (as LIMITS and "CPU", of each fork; "AS" above what the source takes), "seconds" (per input)

    Raises TimeoutError, and RuntimeError if the jail does not start. When this generator ends or is closed, no process
    and no file of the jail is left. The caller must have no other children: it inherits orphans, and kills them all.
    """
    import tempfile

    us, user = os.getuid(), USERS[os.getpid() % len(USERS)]
    # The limit on processes counts all of a user's, but by namespace; a jail started by root is a user of its own.
    others = 0 if us == 0 or namespaces else sum(threads for *_, owner, threads in all_processes() if owner == us)
    limits = LIMITS | {"CPU": int(timeout) + 2, "NPROC": PROCESSES + others}
    job = {"program": program, "name": name, "inputs": inputs, "limits": limits | (warm["limits"] if warm else {}),
           "user": None if us else user, "parent": os.getpid(), "prefix": namespaces and sys.base_prefix,
           "warm": warm}  # only root can become another user
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # whoever ends us lets us leave through `finally`
    ours, theirs = socket.socketpair()
    with ours, as_file("") as errors, nullcontext("/tmp") if namespaces else tempfile.TemporaryDirectory() as folder:
        if us == 0 and not namespaces:
            os.chown(folder, user, user)
        process = start_jail(job | {"folder": folder}, theirs, errors)
        try:
            if not (select.select([ours], [], [], START_SECONDS)[0] and ours.recv(1)):
                errors.seek(0)
                raise RuntimeError(f"expected a jail, got {errors.read()[-2000:].decode()}; likely cause: no memory")
            end = time.monotonic() + timeout
            for _ in inputs:
                ours.settimeout(max(end - time.monotonic(), 1e-3))
                status, files, *_ = socket.recv_fds(ours, 1, 1)
                written = os.pread(files[0], size + 1, 0) if status == b"0" and files else None
                for file in files:
                    os.close(file)
                yield None if written is None or len(written) > size else written
        finally:
            sweep(process, namespaces)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def start_jail(job, channel, errors):
    """Start a jail's interpreter; we adopt what its processes leave behind."""
    import subprocess

    call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with channel, as_file(json.dumps(job)) as file:
        command = [sys.executable, "-I", "-S", "-X", "utf8", os.path.abspath(__file__), str(channel.fileno())]
        return subprocess.Popen(command, stdin=file, stdout=subprocess.DEVNULL, stderr=errors, cwd="/", env={},
                                pass_fds=[channel.fileno()], start_new_session=True)


def all_processes():
    """(id, parent's id, user's id, threads) of each process of the machine."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            yield int(pid), int(fields[1]), os.fstat(file.fileno()).st_uid, int(fields[17])


def sweep(process, namespaces):
    """Kill and reap a jail and all that descends from it.

    Its first process takes the namespace along. Without one, a killed process leaves us its children, to be killed in
    turn; they do not outrun us, because the limit on processes is low.
    """
    process.kill()
    with suppress(ChildProcessError):
        while True:
            for pid, parent, *_ in () if namespaces else all_processes():
                if parent == os.getpid():
                    os.kill(pid, signal.SIGKILL)
            os.wait()
    process.wait()  # reaped above; now `process` knows


@cache
def namespaces_work():
    """Whether a program runs in a jail with namespaces, False if only without. Raises RuntimeError if neither works."""
    for namespaces in (True, False):
        try:
            if list(run(PROBE, None, [""], size=99, timeout=START_SECONDS, namespaces=namespaces)) == [b"free\n"]:
                return namespaces
            failure = "its output is wrong"
        except RuntimeError as error:
            failure = error
    cause = "we are root without namespaces, and Python lies in a folder that only root can read: use another user"
    raise RuntimeError(f"expected a program to run in a jail, got: {failure}; likely cause: {cause}")


def protections():
    """What protects this machine, one line each, for the log; takes a moment. Raises RuntimeError without a jail."""
    import subprocess

    tried = subprocess.run([sys.executable, os.path.abspath(__file__)], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise RuntimeError(tried.stderr.strip().rpartition("\n")[2])
    return tried.stdout.splitlines()


# --- Inside ----------------------------------------------------------------------------------------------------------
# Of the kernel's headers:
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 1 << 17, 1 << 27, 1 << 28, 1 << 29, 1 << 30
MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID_NODEV = 0x1000, 0x4000, 0x40000, 2 | 4


def call(name, *arguments):
    """A function of the C library that Python does not offer. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def die_with_parent():
    call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def enclose(prefix, see, hide):
    """Go on as the first process of new namespaces, below a new root folder.

    No file of the machine's is changed: the new root is mounted over /proc, and seen in the namespace only.
    """
    user, group = os.getuid(), os.getgid()
    call("unshare", CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET | (CLONE_NEWUSER if user else 0))
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, line in maps.items() if user else ():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
    if os.fork():
        os.wait()
        os._exit(0)
    die_with_parent()
    call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)  # else the mounts below would be the machine's
    call("mount", b"tmpfs", b"/proc", b"tmpfs", MS_NOSUID_NODEV, b"size=1m,mode=755")
    for path, seen in ({path: path for path in (prefix, *FILES) if os.path.exists(path)} | see).items():
        os.makedirs(f"/proc{seen}" if os.path.isdir(path) else os.path.dirname(f"/proc{seen}"), exist_ok=True)
        if not os.path.isdir(path):
            open(f"/proc{seen}", "w").close()
        call("mount", path.encode(), f"/proc{seen}".encode(), None, MS_BIND | MS_REC, None)
    for path in filter(os.path.exists, (f"/proc{path}" for path in hide)):
        if os.path.isdir(path):
            call("mount", b"tmpfs", path.encode(), b"tmpfs", MS_NOSUID_NODEV, b"size=1m,mode=755")
        else:
            call("mount", b"/dev/null", path.encode(), None, MS_BIND, None)
    os.symlink("/proc/self/fd/0", "/proc/dev/stdin")  # some programs open it
    os.mkdir("/proc/proc")
    os.mkdir("/proc/tmp")
    # mount_setattr(AT_FDCWD, "/proc", AT_RECURSIVE, MOUNT_ATTR_RDONLY): read-only, all of it so far
    call("syscall", 442, -100, b"/proc", 0x8000, (ctypes.c_uint64 * 4)(1), 32)
    call("mount", b"tmpfs", b"/proc/tmp", b"tmpfs", MS_NOSUID_NODEV, b"size=64m,mode=1777")
    call("mount", b"proc", b"/proc/proc", b"proc", MS_NOSUID_NODEV, None)
    os.chroot("/proc")


def drop_rights(user):
    """Become `user`, or, as an ordinary user, give back the rights that an own namespace gave."""
    if user:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    else:
        call("capset", (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)())
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)  # a program must not trace the process that starts it
    die_with_parent()  # a change of rights has undone it


def jail(descriptor):
    """Lock this process up, then run the program once per input and hand out a descriptor of what it wrote."""
    with open(0, closefd=False) as file:
        job = json.load(file, object_hook=whole_keys)
    channel = socket.socket(fileno=int(descriptor))
    die_with_parent()
    if os.getppid() != job["parent"]:
        return
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory ends, the kernel takes us first
    exec(PRELUDE, {})  # once and here: each test finds it loaded, wherever the library lies
    os.umask(0o022)
    warm = job["warm"]
    if job["prefix"]:
        enclose(job["prefix"], warm["see"] if warm else {}, warm["hide"] if warm else [])
    os.chdir(job["folder"])
    drop_rights(job["user"])
    if warm:
        call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        exec(compile(warm["source"], "warm.py", "exec"), {})
        job["limits"]["AS"] += address_space()
    channel.send(b"!")
    for case in job["inputs"]:
        given, written = os.memfd_create("given"), os.memfd_create("written")
        with open(given, "w", errors="replace", closefd=False) as file:
            file.write("" if job["name"] else case)
        child = os.fork()
        if not child:
            channel.close()
            return answer(job, case, given, written)  # and end as interpreters do: threads, buffers, exit status
        if warm and not select.select([alive := os.pidfd_open(child)], [], [], warm["seconds"])[0]:
            os.kill(child, signal.SIGKILL)
        failed = os.waitpid(child, 0)[1]
        if warm:
            os.close(alive)
            clear(job["folder"])
        socket.send_fds(channel, [b"1" if failed else b"0"], [written])
        os.close(given)
        os.close(written)


def whole_keys(found):
    """Keys of arguments that are whole numbers, which JSON makes texts, are numbers again."""
    return {int(key): value for key, value in found.items()} if all(map(str.isdecimal, found)) else found


def address_space():
    """Of this process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def clear(folder):
    """Kill and reap what a fork has left running, orphans too, and empty the folder."""
    import shutil

    with suppress(ChildProcessError):
        while True:
            for pid, parent, *_ in all_processes():
                if parent == os.getpid():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            os.wait()
    for place, folders, _ in os.walk(folder):
        for path in (os.path.join(place, name) for name in folders):
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    for entry in os.scandir(folder):
        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)


def answer(job, case, given, written):
    """Run the program on one input; what counts is its stdout, or the result that is put on descriptor 3."""
    die_with_parent()
    call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)
    name, null = job["name"], os.open("/dev/null", os.O_RDWR)
    os.lseek(given, 0, 0)
    for place, descriptor in enumerate((given, null if name else written, null, written if name else null)):
        os.dup2(descriptor, place)
    os.closerange(4, 1024)
    for limit, value in job["limits"].items():
        kind = getattr(resource, f"RLIMIT_{limit}")
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (value if hard < 0 else min(value, hard),) * 2)
    sys.argv = ["answer.py"]
    module = sys.modules["__main__"] = type(sys)("answer" if name else "__main__")
    exec(PRELUDE, vars(module))
    vars(module).pop(name, None)  # what is asked for is no part of it
    exec(compile(job["program"], "answer.py", "exec"), vars(module))
    if name:
        function = vars(module).get(name) or getattr(module.Solution(), name)
        os.write(3, json.dumps(function(*case)).encode())


if __name__ == "__main__":
    if sys.argv[1:]:
        jail(sys.argv[1])
    else:
        print(*PROTECTIONS[: 1 + namespaces_work()], sep="\n")
