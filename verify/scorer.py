"""Scorer: verdicts on completions without ever blocking the generator, by worker processes with a time limit.

Paper: Sec. 2 (rewards), which leaves open how answers are checked. graders.py says when an answer is right.

The Scorer, in the generator's process, starts workers and hands out jobs. A worker is a separate interpreter that loads
this file (and SymPy if needed) and grades answers in a fork of itself. SymPy can run for days on a short answer, and
math-verify's own time limits are signals, which fail off the main thread. So the worker kills the fork when one answer
has taken `timeout` seconds of wall clock, whatever the fork computes, whatever signals it uses and whether or not
anybody polls: the answer is then wrong, with `timed_out` set, and the worker forks again. When its parent has ended, a
worker reads end-of-file and leaves.

A worker that dies, or cannot start, says nothing about the answer: the answer is tried once more on a fresh worker,
then handed back with `error` set and `value` None, and the caller drops its group. It is never scored as wrong.

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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from multiprocessing import connection
from types import SimpleNamespace
from typing import Any

from verify import sandbox, user_reward
from verify.graders import TASKS, at_once, right
from verify.mathematics import equal
from verify.programs import read_tests, readings, right_output

try:
    import resource
except ImportError:  # Windows
    resource = None

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A worker's interpreter runs this. It takes modules from ROOT, even if others are installed or on PYTHONPATH.
START_WORKER = "import sys; sys.path.insert(0, sys.argv[1]); from verify.scorer import work; work(*sys.argv[2:])"
START_SECONDS = 120.0  # to start worker and sandbox: a worker without a verdict so long after the limit counts as dead
JOBS = {"math": b"m", "code": b"c"}  # the kind of a job by its grader ; b"t": texts; b"o": --reward
POLL = 0.05  # seconds between two looks of `wait` at workers that say nothing: one may be too late, or not have started
MESSAGE_BYTES = 4_096  # more than any verdict or error
MEMORY_BYTES = 2 << 30  # address space of one worker
ANSWERS_PER_FORK = 5_000  # SymPy's caches grow, and math-verify calls an answer wrong when memory runs out
SECONDS_PER_TEST = 0.1  # five times what starting a program costs, so that many tests are no reason to be wrong
MORE_SECONDS = 100.0  # less than the time after which the scorer gives a worker up (START_SECONDS)
FORK_POLL = 0.02  # seconds between two looks of a worker at its fork
SPARE_BYTES = 1 << 16  # a program's output is wrong, unread, if longer than the longest expected one by more than this
FIRST_PAIRS = (  # (answer, reference), all equal: compared before a worker's first math answer
    ("\\boxed{\\frac{1}{2}}", "0.5"),
    ("\\boxed{(x+1)^2}", "x^2+2x+1"),
    ("\\boxed{(1.0,2]}", "(1,2]"),
    ("\\boxed{\\begin{pmatrix}-1\\\\2\\end{pmatrix}}", "\\begin{pmatrix}i^2\\\\2\\end{pmatrix}"),
    ("\\boxed{2, x=1}", "1, 2"),
    ("It is 7", "7"),
)


# --- In the generator's process --------------------------------------------------------------------------------------


@dataclass
class Score:
    """A completion on its way to a verdict."""

    completion: Any  # the pipeline.Rollout that was submitted
    prompt: Any  # its data.Prompt
    text: str  # what a worker grades: an expression or a program
    value: float | None  # the verdict, v from 0 to 1; in what `finished` returns, None means that the verifier failed
    grader: str = ""  # the key in graders.TASKS
    marked: bool = True  # it has an answer, even if it is truncated
    timed_out: bool = False  # wrong because checking it took longer than the limit
    tried: bool = False  # a worker has ended with this answer unchecked
    error: str = ""  # why there is no verdict
    reward: float = math.nan  # in what `finished` returns

    @property
    def correct(self) -> bool | None:
        """Whether v is 1; None without a verdict."""
        return None if self.value is None else self.value == 1


class Worker:
    """One worker process, started at its first job and again after each death; `job` is the Score it works on."""

    def __init__(self, timeout: float, namespaces: bool, own: str | None):
        self.timeout = timeout
        self.namespaces = namespaces
        self.own = own
        self.job: Score = None
        self.process: subprocess.Popen = None

    def _start_interpreter(self) -> None:
        """Start an interpreter that runs `work`, in its own session; returns at once (it loads SymPy for a second).

        Not by multiprocessing, whose children first load the parent's main file: here train.py, and with it torch.
        """
        if not hasattr(socket, "send_fds"):
            raise RuntimeError("a verdict of a worker process needs Linux or macOS; use WSL on Windows, or a container")
        self.close()
        self.channel, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-c", START_WORKER, ROOT, str(theirs.fileno())]
        command += [str(self.timeout), "yes" if self.namespaces else "", self.own or ""]
        # The way that SymPy takes, and so its time, depends on the hash seed.
        with theirs:  # closed here, else the worker's death would not read as end-of-file
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONHASHSEED": "0"},
                start_new_session=True,
            )

    def start(self, score: Score) -> None:
        """Give the worker a job. If that fails, `decided` treats it as the worker's death."""
        self.job = score
        self._deadline = time.monotonic() + self.timeout + START_SECONDS
        self.failure = None
        try:
            if self.process is None or self.process.poll() is not None:
                self._start_interpreter()
            with sandbox.as_file(json.dumps([score.text, score.prompt.answer])) as file:
                with suppress(BrokenPipeError, ConnectionResetError):  # it has just left: `decided` reads end-of-file
                    kind = b"o" if self.own else JOBS.get(score.grader, b"t")
                    socket.send_fds(self.channel, [kind], [file.fileno()])
        except OSError as error:  # no memory, processes, file descriptors or disk left
            self.failure = f"{error}: a worker or its file in {tempfile.gettempdir()}"

    def decided(self) -> Score | None:
        """Look, without waiting, for a verdict or the worker's death; returns the job once it is settled, else None."""
        score = self.job
        message = b""
        try:
            message = b"" if self.failure else self.channel.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if time.monotonic() > self._deadline:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)  # the fork too, which holds the channel open
            return None
        except ConnectionResetError:
            pass
        if message:
            verdict = json.loads(message.partition(b"\n")[0])
            score.value, score.error = (None, verdict) if isinstance(verdict, str) else (float(verdict or 0), "")
            score.timed_out = verdict is None
        else:
            cause = self.failure or f"exit code {self.process.wait()}"
            self.close()
            if not score.tried:
                score.tried = True
                self.start(score)
                return None
            score.error = (
                f"two workers died without a verdict ({cause}); likely cause: no memory, or see the traceback above"
            )
        self.job = None
        return score

    def close(self) -> None:
        """End and reap the process and its children; SIGTERM comes first, as a worker may clear up after a program."""
        if not self.process:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=5.0)
            self.channel.close()


class Scorer:
    """Scores completions while the generator goes on: `submit` and `finished` return at once, whatever is decided.

    timeout    seconds of wall clock per answer
    workers    worker processes at most; none is started before the first answer that needs one
    answer_of  the text of a completion -> its answer, or None; by default all of it
    reward_of  (v, None without a verdict; number of the completion's tokens) -> its reward
    namespaces whether programs run in sandboxes with namespaces; if these do not work, none gets a verdict
    graders    {task: its grader in graders.TASKS}, for tasks that have other names than their graders
    own        None, or FILE.py:FUNCTION, which grades all completions instead of their tasks' graders (user_reward.py)
    """

    def __init__(
        self,
        *,
        timeout: float,
        workers: int = 2,
        answer_of: Callable[[str], str | None] = str,
        reward_of: Callable[[float | None, int], float] | None = None,
        namespaces: bool = True,
        graders: Mapping[str, str] | None = None,
        own: str | None = None,
    ):
        self._graders = graders or {}
        self._workers = [Worker(timeout, namespaces, own) for _ in range(workers)]
        self._own = own
        self._answer_of = answer_of
        self._reward_of = reward_of
        self._queue = []
        self._done = []

    @property
    def pending(self) -> int:
        """Completions submitted and not yet handed back by `finished`."""
        return len(self._queue) + len(self._done) + sum(worker.job is not None for worker in self._workers)

    def submit(self, completion, prompt) -> None:
        """Take a finished pipeline.Rollout of a data.Prompt (.task, .answer, .text). Raises KeyError: unknown task."""
        behind_mark = self._answer_of(completion.text)
        answer = None if completion.truncated else behind_mark
        grader = self._graders.get(prompt.task, prompt.task)
        if answer is None:
            text, correct = "", False
        elif self._own:
            text, correct = json.dumps([prompt.text, completion.text]), None
        else:
            text = json.dumps([grader, answer, prompt.text])
            correct = at_once(answer, prompt.answer, grader)
        score = Score(completion, prompt, text, correct, grader, marked=behind_mark is not None)
        (self._queue if correct is None else self._done).append(score)

    def finished(self) -> list[Score]:
        """The verdicts that have come in since the last call, in any order."""
        for worker in self._workers:
            if worker.job and (score := worker.decided()):
                self._done.append(score)
            if worker.job is None and self._queue:
                worker.start(self._queue.pop(0))
        done = self._done
        self._done = []
        for score in done:
            if self._reward_of:
                score.reward = self._reward_of(score.value, len(score.completion.ids))
        return done

    def wait(self) -> None:
        """Return when all is decided; the next `finished` hands it back."""
        done = []
        while self.pending:
            done += self.finished()
            busy = [worker.channel for worker in self._workers if worker.job and not worker.failure]
            connection.wait(busy, POLL if busy else 0.0)
        self._done = done

    def close(self) -> None:
        """End and reap every worker; what is pending is lost, and nothing may be submitted any more."""
        for worker in self._workers:
            worker.close()


def verdicts(pairs, **settings) -> list[Score]:
    """The Scores of (answer, data.Prompt) pairs, in any order, by a Scorer with these settings and one worker."""
    with closing(Scorer(workers=1, **settings)) as scorer:
        for text, prompt in pairs:
            scorer.submit(SimpleNamespace(text=text, truncated=False, ids=()), prompt)
        scorer.wait()
        return scorer.finished()


# --- In a worker process: time ----------------------------------------------------------------------------------------


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
    run = sandbox.run(source, name, inputs, size=size, timeout=total, seconds_each=timeout, namespaces=namespaces)
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
                time.sleep(FORK_POLL)
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
