"""Scorer: verdicts on completions without ever blocking the generator.

Paper: Sec. 2 (rewards), which leaves open how answers are checked. graders.py says when an answer is right; workers.py
is the worker process; this file starts workers and hands out jobs.

When a math answer has taken longer than `timeout` seconds, it is wrong, with `timed_out` set. A worker that dies, or
cannot start, says nothing about the answer: the answer is tried once more on a fresh worker, then handed back with
`error` set and `value` None, and the caller drops its group. It is never scored as wrong.

Deviation: none known (those of verdicts: graders.py).

Test: pytest tests/test_scorer.py
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing import connection
from types import SimpleNamespace
from typing import Any

import reward
from verify import sandbox
from verify.graders import at_once

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A worker's interpreter runs this. It takes modules from ROOT, even if others are installed or on PYTHONPATH.
START_WORKER = "import sys; sys.path.insert(0, sys.argv[1]); from verify.workers import work; work(*sys.argv[2:])"
START_SECONDS = 120.0  # to start worker and sandbox: a worker without a verdict so long after the limit counts as dead
JOBS = {"math": b"m", "code": b"c"}  # the kind of a job by its grader (workers.py); b"t": texts; b"o": --reward
POLL = 0.05  # seconds between two looks of `wait` at workers that say nothing: one may be too late, or not have started
MESSAGE_BYTES = 4_096  # more than any verdict or error


@dataclass
class Score:
    """A completion on its way to a verdict."""

    completion: Any  # the pipeline.Rollout that was submitted
    prompt: Any  # its data.Prompt
    text: str  # what a worker grades: an expression or a program
    penalty: float  # of Eq. 9, if it is correct
    value: float | None  # the verdict, v from 0 to 1; in what `finished` returns, None means that the verifier failed
    grader: str = ""  # the key in graders.TASKS
    marked: bool = True  # its text holds the mark behind which the answer begins, or there is no such mark
    timed_out: bool = False  # wrong because checking it took longer than the limit
    tried: bool = False  # a worker has ended with this answer unchecked
    error: str = ""  # why there is no verdict

    @property
    def correct(self) -> bool | None:
        """Whether v is 1; None without a verdict."""
        return None if self.value is None else self.value == 1

    @property
    def reward(self) -> float:
        """r of Sec. 2; nan without a verdict."""
        return reward.reward(self.value, self.penalty)


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
    penalty    |y| -> Eq. 9's penalty, or None for rewards of +1 and -1
    think_end  the text behind which the answer begins; None: the whole text is the answer
    namespaces whether programs run in sandboxes with namespaces; if these do not work, none gets a verdict
    graders    {task: its grader in graders.TASKS}, for tasks that have other names than their graders
    own        None, or FILE.py:FUNCTION, which grades all completions instead of their tasks' graders (user_reward.py)
    """

    def __init__(
        self,
        *,
        timeout: float,
        workers: int = 2,
        penalty=None,
        think_end: str | None = reward.THINK_END,
        namespaces: bool = True,
        graders: Mapping[str, str] | None = None,
        own: str | None = None,
    ):
        self._graders = graders or {}
        self._workers = [Worker(timeout, namespaces, own) for _ in range(workers)]
        self._own = own
        self._penalty = penalty
        self._think_end = think_end
        self._queue = []
        self._done = []

    @property
    def pending(self) -> int:
        """Completions submitted and not yet handed back by `finished`."""
        return len(self._queue) + len(self._done) + sum(worker.job is not None for worker in self._workers)

    def submit(self, completion, prompt) -> None:
        """Take a finished pipeline.Rollout of a data.Prompt (.task, .answer, .text). Raises KeyError: unknown task."""
        found = reward.final_answer(completion.text, self._think_end)
        answer = None if completion.truncated else found
        grader = self._graders.get(prompt.task, prompt.task)
        if answer is None:
            text, correct = "", False
        elif self._own:
            text, correct = json.dumps([prompt.text, completion.text]), None
        else:
            text = json.dumps([grader, answer, prompt.text])
            correct = at_once(answer, prompt.answer, grader)
        penalty = self._penalty(len(completion.ids)) if self._penalty else 0.0
        score = Score(completion, prompt, text, penalty, correct, grader, marked=found is not None)
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
    with closing(Scorer(workers=1, think_end=None, **settings)) as scorer:
        for text, prompt in pairs:
            scorer.submit(SimpleNamespace(text=text, truncated=False, ids=()), prompt)
        scorer.wait()
        return scorer.finished()
