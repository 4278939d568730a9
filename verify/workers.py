"""Workers: the processes that grade answers within a time limit.

Paper: Sec. 2 (rewards), which leaves open how answers are checked. graders.py says when an answer is right; scorer.py
starts workers, in the generator's process; this file is what a worker runs.

SymPy can run for days on a short answer. math-verify's own time limits are switched off: they are signals, which fail
off the main thread. Instead, a worker is a separate interpreter that loads this file (and SymPy if needed) and grades
answers in a fork of itself. It kills the fork when one answer has taken `timeout` seconds of wall clock, whatever the
fork computes, whatever signals it uses and whether or not anybody polls: the answer is then wrong, with `timed_out`
set, and the worker forks again. When its parent has ended, a worker reads end-of-file and leaves.

A worker runs programs in a sandbox (sandbox.py says what it protects against and what not), which never sees the
expected outputs. A program's time counts from the moment when the sandbox is ready.

Deviation: none known (those of verdicts: graders.py).

Test: pytest tests/test_scorer.py tests/test_sandbox.py
"""

import json
import logging
import math
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache, partial
from itertools import count

from verify import sandbox, user_reward
from verify.graders import TASKS, right
from verify.mathematics import equal
from verify.programs import read_tests, readings, right_output

try:
    import resource
except ImportError:  # Windows
    resource = None

MEMORY_BYTES = 2 << 30  # address space of one worker
ANSWERS_PER_FORK = 5_000  # SymPy's caches grow, and math-verify calls an answer wrong when memory runs out
SECONDS_PER_TEST = 0.1  # five times what starting a program costs, so that many tests are no reason to be wrong
MORE_SECONDS = 100.0  # less than the time after which the scorer gives a worker up (START_SECONDS in scorer.py)
POLL = 0.02  # seconds between two looks of a worker at its fork
SPARE_BYTES = 1 << 16  # a program's output is wrong, unread, if longer than the longest expected one by more than this
FIRST_PAIRS = (  # (answer, reference), all equal: compared before a worker's first math answer
    ("\\boxed{\\frac{1}{2}}", "0.5"),
    ("\\boxed{(x+1)^2}", "x^2+2x+1"),
    ("\\boxed{(1.0,2]}", "(1,2]"),
    ("\\boxed{\\begin{pmatrix}-1\\\\2\\end{pmatrix}}", "\\begin{pmatrix}i^2\\\\2\\end{pmatrix}"),
    ("\\boxed{2, x=1}", "1, 2"),
    ("It is 7", "7"),
)


@cache
def deadline():
    """[time.monotonic() when the fork's answer has to be ready], shared by worker and forks; 0.0 between answers."""
    return memoryview(mmap.mmap(-1, 8)).cast("d")


def allow(seconds: float) -> None:
    """Say that what the fork does now may take so many seconds."""
    deadline()[0] = time.monotonic() + seconds


# --- In a worker process: math ---------------------------------------------------------------------------------------


@cache
def load_sympy() -> None:
    """Compare FIRST_PAIRS, so that SymPy loads what it loads at first use, outside any answer's time.

    Raises RuntimeError if a pair is not found equal.
    """
    for pair in FIRST_PAIRS:
        if not equal(*pair):
            raise RuntimeError(f"expected {pair} to be equal, got not; likely cause: another version of math-verify")


def grade_answer(text: str, reference: str, timeout: float) -> bool | str:
    """The verdict on a JSON list of task, answer and prompt, or a text: why there is none."""
    allow(timeout)
    task, answer, prompt = json.loads(text)
    verdict = TASKS[task].grade(answer, reference, prompt)
    return right(verdict, reference, prompt) if isinstance(verdict, str) else verdict


# --- In a worker process: code ---------------------------------------------------------------------------------------


def grade_code(text: str, reference: str, timeout: float, namespaces: bool) -> bool | None:
    """Whether the program of an answer passes all tests; None: it took too long. Raises as `read_tests`.

    text        a JSON list of task, answer and prompt; finding the program may take `timeout` seconds
    namespaces  whether its sandbox has them; it never runs without, if they are known to work
    The program may take `timeout` seconds for each test, and for all together as much and SECONDS_PER_TEST for each
    besides, of which MORE_SECONDS is the most. The first test that it fails is the last.
    """
    allow(timeout)
    source = TASKS["code"].grade(json.loads(text)[1], reference)
    if not source:
        return False
    allow(math.inf)  # the sandbox has its limits
    name, cases = read_tests(reference)
    size = max(len(json.dumps(expected)) for _, expected in cases) + SPARE_BYTES
    inputs = [given for given, _ in cases]
    right = readings(name, cases)
    total = timeout + min(SECONDS_PER_TEST * len(cases), MORE_SECONDS)
    run = sandbox.run(source, name, inputs, size=size, timeout=total, each=timeout, namespaces=namespaces)
    with closing(run) as outputs:
        with suppress(TimeoutError):
            for test, output in enumerate(outputs):
                right = [results for results in right if right_output(name, output, results[test])]
                if not right:
                    return False
            return True
    return None


# --- In a worker process: a function of one's own --------------------------------------------------------------------

load_own = cache(user_reward.load)
CALLS = count()  # answers that this fork has graded


def grade_own(text: str, reference: str, timeout: float, spec: str) -> float | str:
    """v as --reward gives it to a JSON list of prompt and completion, or why there is none.

    In each fork the file is loaded and called once without a say, in FIRST_SECONDS: it may load models or data. This is
    not done before the fork, which would inherit neither threads nor a GPU.
    """
    prompt, completion = json.loads(text)
    first = not next(CALLS)
    allow(user_reward.FIRST_SECONDS if first else timeout)
    try:
        function = load_own(spec)
    except ValueError as error:
        return f"{user_reward.OWN}: {error}"
    if first:
        user_reward.called(function, spec, (prompt, reference, reference))
        allow(timeout)
    return user_reward.called(function, spec, (prompt, completion, reference))


# --- The worker's loop -----------------------------------------------------------------------------------------------


def work(descriptor: str, timeout: str, namespaces: str, spec: str = "") -> None:
    """The worker's loop: it forks to answer jobs, and again when the fork has done its share or hit the time limit.

    It ends when the channel is closed, and, with the exit status of the fork, when a fork ends in any other way.
    descriptor  file descriptor of our end of the channel
    timeout     seconds of wall clock per answer
    namespaces  whether sandboxes have them, as found when the run started: "" if not
    spec        FILE.py:FUNCTION of --reward, which may take as much memory as it likes
    """
    # The byte that comes with a job -> (what prepares the first such job, outside its time; what grades a job).
    graders: dict[bytes, tuple[Callable, Callable]] = {
        b"m": (load_sympy, grade_answer),
        b"c": (bool, partial(grade_code, namespaces=bool(namespaces))),
        b"o": (bool, partial(grade_own, spec=spec)),
        b"t": (bool, grade_answer),
    }
    if sys.platform == "linux" and not spec:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable(logging.CRITICAL)  # math-verify warns that its time limits are off
    channel = socket.socket(fileno=int(descriptor))
    with suppress(BrokenPipeError, ConnectionResetError):
        while task := channel.recv(1, socket.MSG_PEEK):
            graders[task][0]()  # once, here: all later forks have it
            deadline()[0] = 0.0
            child = os.fork()
            if not child:
                return answer_jobs(channel, float(timeout), graders)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the fork gets it too, and may clear up: await it
            late = False
            while not (ended := os.waitpid(child, os.WNOHANG))[0]:
                if late := 0 < deadline()[0] < time.monotonic():
                    os.kill(child, signal.SIGKILL)
                time.sleep(POLL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            answering = deadline()[0] > 0
            deadline()[0] = 0.0
            if late and answering:
                channel.send(b"null\n")
            elif answering or ended[1]:
                sys.exit(os.waitstatus_to_exitcode(ended[1]))


def answer_jobs(channel, timeout: float, graders) -> None:
    """Read jobs (text, reference), at most ANSWERS_PER_FORK, and send each verdict as a line; null: too late."""
    for _ in range(ANSWERS_PER_FORK):
        task, files, *_ = socket.recv_fds(channel, 1, 1)
        if not files:
            break
        with open(files[0], encoding="utf-8") as file:
            text, reference = json.load(file)
        prepare, grade = graders[task]
        prepare()
        # Tests hold longer integers. SymPy must not write such: that takes long.
        sys.set_int_max_str_digits(0 if task == b"c" else sys.int_info.default_max_str_digits)
        try:
            verdict = grade(text, reference, timeout)
        except (MemoryError, OSError, sandbox.Died):  # this machine's fault: another worker tries the answer
            raise
        except Exception as error:  # whatever a grader raises
            verdict = f"the grader raised {user_reward.place(error, user_reward.ROOT)}"
        deadline()[0] = 0.0
        channel.send(json.dumps(verdict).encode() + b"\n")
