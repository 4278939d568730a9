"""Takes from the project's own code what Windows or macOS lacks: a rehearsal on Linux, for tests/test_laptops.py.

Python imports this file at its start, in children too, if PYTHONPATH names this folder. REHEARSE says which system.
Libraries keep what they have here, since on those systems they have ways of their own.
"""

import builtins
import importlib.machinery
import io
import os
import signal
import socket
import sys
import sysconfig
import types

SYSTEM = os.environ.get("REHEARSE", "")
LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, "<frozen", "/usr/lib")
POSIX = """fork setsid killpg wait getuid getgid geteuid getppid_ register_at_fork mkfifo sysconf execve_ pread fchmod
memfd_create pidfd_open SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 SIGXCPU SIGSTOP SIGALRM alarm setitimer recv_fds send_fds
AF_UNIX MSG_DONTWAIT"""
LACKING = {
    "macos": {"sched_getaffinity", "memfd_create", "pidfd_open", "SIGPWR"},
    "windows": {"sched_getaffinity", *POSIX.split()},
}
NO_MODULES = {"macos": set(), "windows": {"fcntl", "resource", "pwd", "grp", "termios"}}
PLATFORM = {"macos": "darwin", "windows": "win32"}


def by_the_project():
    """Whether the project's code, and no library, asks for something."""
    return not sys._getframe(2).f_code.co_filename.startswith(LIBRARIES)


def without(lacking, instead):
    """A class of modules whose names in `lacking` are missing, and those in `instead` differ, for the project's code."""

    class Module(types.ModuleType):
        def __getattribute__(self, name):
            if name in lacking and by_the_project():
                raise AttributeError(f"{SYSTEM} has no {types.ModuleType.__getattribute__(self, '__name__')}.{name}")
            if name in instead and by_the_project():
                return instead[name]
            return types.ModuleType.__getattribute__(self, name)

    return Module


def rehearse():
    for module in (os, signal, socket):
        name = "nt" if SYSTEM == "windows" else "posix"
        module.__class__ = without(LACKING[SYSTEM], {"name": name} if module is os else {})
    sys.__class__ = without(set(), {"platform": PLATFORM[SYSTEM]})
    real_import, real_open, real_stat = builtins.__import__, io.open, os.stat

    def importing(name, *args, **options):
        if name in NO_MODULES[SYSTEM] and by_the_project():
            raise ModuleNotFoundError(f"{SYSTEM} has no module {name}", name=name)
        module = real_import(name, *args, **options)
        distributed = sys.modules.get("torch.distributed")
        if SYSTEM == "windows" and hasattr(distributed, "init_process_group"):
            vars(distributed).pop("HashStore", None)
        return module

    def opening(file, mode="r", buffering=-1, encoding=None, *args, **options):
        absent(file)
        if SYSTEM == "windows" and "b" not in mode and encoding in (None, "locale"):
            encoding = "cp1252"
        return real_open(file, mode, buffering, encoding, *args, **options)

    def looking(path, *args, **options):
        absent(path)
        return real_stat(path, *args, **options)

    def absent(path):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(2, f"{SYSTEM} has no /proc", os.fspath(path))

    builtins.__import__, os.stat = importing, looking
    io.open = builtins.open = opening


if SYSTEM:
    assert importlib.machinery  # loaded before anything is taken away
    rehearse()
