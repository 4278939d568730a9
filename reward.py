"""Rewards: +1 for a correct final answer, -1 for any other (Sec. 2), decided without ever blocking the generator.

    answer = what follows the last </think>; no </think>, or a truncated completion: no answer, which is wrong
    r = +1 if correct else -1                     r -> reward(), correct -> Score.correct

`correct` is kept beside r because pass rates and both prompt filters are of correctness, never of a shaped reward.

Tasks (TASKS maps the name in a prompt's `task` to its verifier)
  arithmetic  the answer is the reference integer, character by character, but for ASCII whitespace around it:
              "18" and " 18\\n" are right for 18; "018", "+18", "18.0", "18." and digits of other scripts are wrong.
  math        LaTeX: the last \\boxed{...}, or without one the final expression, compared by math-verify (the paper's
              checker). Equal strings are right at once; everything else goes to a worker process.

Workers. SymPy can run for days on a short answer, and math-verify's own time limits are signals that fail off the main
thread, so they are off. A worker is a separate interpreter that loads this file only; the kernel kills it when one
answer has taken `timeout` seconds of wall clock, whatever it computes and whether or not anybody polls, and an
interpreter without a parent reads end-of-file and leaves. A killed answer is wrong and counted in `Scorer.timeouts`.
A worker that dies of anything else says nothing about the answer: the answer is tried once more on a fresh worker, then
handed back with `error` set and `correct` None, for the caller to drop its group. It is never scored as wrong.

Deviation: a box, or an answer without one, of more than MAX_CHARS characters is wrong unread: reference answers are
  short, parsing time grows faster than length, and the end of a long number is not that number.
Open in the paper: whether a truncated completion that already shows its answer is correct. Ours: it is wrong, unread;
  Sec. A.15 leaves it out of the loss, but the pass rate needs a value.
Known limits, math-verify's: "It is 17, not 18" has the final expression 18; "50" equals "50\\%"; an unquoted word is a
  product of letters, so that "Paris" equals "Pairs"; a last word that can be a unit is dropped (t of "\\cos^2 t").

Test: pytest tests/test_reward.py. The file run as a script is a worker and is started by Scorer only.
"""

import logging
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from statistics import mean

THINK_END = "</think>"
BOX = "\\boxed{"
MAX_CHARS = 10_000
MEMORY_BYTES = 2 << 30  # address space of one worker (58 MB resident after its first answer)
START_SECONDS = 120.0  # a worker that needs longer than this above its limit to start and answer counts as dead
ANSWERS_PER_WORKER = 5_000  # then it leaves: SymPy's caches grow, and math-verify calls an answer wrong if memory ends
# Run once per worker before the first answer, because SymPy loads modules at first use: (answer, reference).
WARM_UP = (("\\boxed{\\frac{1}{2}}", "0.5"), ("\\boxed{(x+1)^2}", "x^2+2x+1"), ("\\boxed{(1,2]}", "(1,2]"))


def reward(correct: bool | None) -> float:
    """Sec. 2: r = +1 for a correct completion, -1 for a wrong one. Raises ValueError for None: not wrong, unknown."""
    if correct is None:
        raise ValueError("expected a verdict, got None; likely cause: the verifier failed (Score.error): drop it")
    return 1.0 if correct else -1.0


def pass_rates(groups, prompts) -> dict:
    """Sec. 2.1: mean@k over the headers of the validation set, one list of k per prompt, and the same per task.

    stderr is the sampling error on these prompts; which prompts were drawn is not in it. A prompt whose verifier failed
    is left out and its completions are counted as unverified: they are not wrong. Raises ValueError if none is left.
    """
    known = [group for group in groups if all(header.correct is not None for header in group)]
    if not known:
        raise ValueError(f"expected a verdict on some of {len(groups)} prompts, got none; likely cause: the verifier is broken")
    means = [sum(header.correct for header in group) / len(group) for group in known]
    tasks = {prompts[group[0].prompt].task: [] for group in known}
    for group, rate in zip(known, means):
        tasks[prompts[group[0].prompt].task].append(rate)
    k = len(groups[0])  # the mean of k answers varies by p (1 - p) / k; with k - 1 the estimate from the same k is unbiased
    stderr = (sum(p * (1 - p) for p in means) / (k - 1)) ** 0.5 / len(means) if k > 1 else float("nan")
    return {"pass_rate": mean(means), "stderr": stderr, "completions": k * len(known), "unverified": k * (len(groups) - len(known)),
            "tasks": {task: mean(rates) for task, rates in tasks.items()}}


def final_answer(text: str) -> str | None:
    """What follows the last </think> of a completion's text, or None without one.

    >>> final_answer("<think>7+5=12 12-3=9</think>9")
    '9'
    """
    _, mark, answer = text.rpartition(THINK_END)
    return answer if mark else None


def final_expression(answer: str) -> str:
    """The last \\boxed{...} of an answer, box included; the whole answer without any; "" if too long or left open.

    >>> final_expression("Either \\\\boxed{1} or better \\\\boxed{\\\\frac{1}{2}}.")
    '\\\\boxed{\\\\frac{1}{2}}'
    """
    start = answer.rfind(BOX)
    if start < 0:
        return answer.strip() if len(answer) <= MAX_CHARS else ""
    box, depth = answer[start : start + MAX_CHARS], 0
    for brace in re.finditer(r"\\.|[{}]", box):  # an escaped brace is a printed one and opens nothing
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if brace.group() == "}" and depth == 0:
            return box[: brace.end()]
    return ""


def arithmetic(answer: str, reference: str) -> bool:
    """Exactly the reference integer, ASCII whitespace around it aside; leading zeros, signs, points are wrong."""
    return answer.strip(" \t\r\n") == reference


def math(answer: str, reference: str) -> bool | None:
    """True for an equal string, False for no expression at all, None where only a worker can tell."""
    expression, plain = final_expression(answer).strip(" \n$"), reference.strip(" \n$")
    if not expression:
        return False
    return True if expression in (plain, f"{BOX}{plain}}}") else None


TASKS = {"arithmetic": arithmetic, "math": math}


# --- In a worker process ---------------------------------------------------------------------------------------------


def equal(expression: str, reference: str) -> bool | str:
    """Does math-verify take `expression` for `reference`? Text = the reason why that cannot be said. No time limit."""
    from math_verify import parse, verify

    marked = reference if "$" in reference or BOX in reference else f"${reference}$"
    gold = parse(marked, parsing_timeout=None)
    if not gold:
        return f"expected a reference answer in LaTeX, got {reference[:80]!r}; likely cause: a broken row of the data"
    return verify(gold, parse(expression, parsing_timeout=None), timeout_seconds=None)


def work(descriptor: str, timeout: str) -> None:
    """A worker's life: read (expression, reference), answer with `equal`, until the other end of the pipe closes.

    descriptor  file descriptor of our end of the pipe
    timeout     seconds of wall clock per answer; then SIGALRM, left to the kernel, ends this process
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches us too, but it is the parent that closes us
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable(logging.CRITICAL)  # math-verify warns that its time limits are off
    for expression, reference in WARM_UP:
        equal(expression, reference)
    connection = Connection(int(descriptor))
    for _ in range(ANSWERS_PER_WORKER):
        try:
            expression, reference = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        signal.setitimer(signal.ITIMER_REAL, float(timeout))
        verdict = equal(expression, reference)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send(verdict)


# --- In the generator's process --------------------------------------------------------------------------------------


@dataclass
class Score:
    """A completion on its way to a verdict."""

    completion: object  # the pipeline.Completion that was submitted
    expression: str  # what a worker compares with the reference
    reference: str
    correct: bool | None = None  # the verdict; in what `finished` returns, None means that the verifier failed
    timed_out: bool = False  # wrong because checking it took longer than the limit
    tried: bool = False  # a worker has ended with this answer unchecked
    error: str = ""  # why there is no verdict

    @property
    def reward(self) -> float:
        """r of Sec. 2. Raises ValueError without a verdict."""
        return reward(self.correct)


class Worker:
    """One worker process, started at its first job and again after each death; `job` is the Score it works on."""

    def __init__(self, timeout: float):
        self.timeout, self.job, self.process = timeout, None, None

    def _launch(self) -> None:
        """Start an interpreter that runs `work`; returns at once (loading SymPy takes it a second).

        Not multiprocessing: its children load the parent's main file first, here train.py with torch and all.
        """
        self.close()
        self._connection, theirs = Pipe()
        command = [sys.executable, os.path.abspath(__file__), str(theirs.fileno()), str(self.timeout)]
        environment = os.environ | {"PYTHONHASHSEED": "0"}  # SymPy's path, and so its time, depends on the hash seed
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment)
        theirs.close()  # else the worker's death would not read as end-of-file

    def start(self, score: Score) -> None:
        """Give it a job."""
        if self.process is None or self.process.poll() is not None:
            self._launch()
        self.job, self._deadline = score, time.monotonic() + self.timeout + START_SECONDS
        with suppress(BrokenPipeError, ConnectionResetError):  # it has just left: `decided` reads the end-of-file
            self._connection.send((score.expression, score.reference))

    def decided(self) -> bool:
        """Look, without waiting, for the verdict or the worker's death. True: the job has its outcome and is gone."""
        score = self.job
        if time.monotonic() > self._deadline:
            self.process.kill()
        if not self._connection.poll():
            return False
        try:
            verdict = self._connection.recv()
            score.correct, score.error = (None, verdict) if isinstance(verdict, str) else (verdict, "")
        except (EOFError, ConnectionResetError):
            code = self.process.wait()
            if code == -signal.SIGALRM:
                score.correct, score.timed_out = False, True
            elif not score.tried:
                score.tried = True
                self.start(score)
                return False
            else:
                score.error = f"expected a verdict, got two dead workers (exit code {code}); likely cause: no memory"
        self.job = None
        return True

    def close(self) -> None:
        """End and reap the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self._connection.close()


class Scorer:
    """Scores completions beside the generator: `submit` and `finished` return at once, verdicts come when they come.

    timeout  seconds of wall clock per answer
    workers  worker processes at most; none is started before the first answer that needs one
    """

    def __init__(self, *, timeout: float, workers: int = 2):
        self.timeouts = 0  # answers that hit the limit so far
        self._workers = [Worker(timeout) for _ in range(workers)]
        self._queue, self._done = deque(), []

    @property
    def pending(self) -> int:
        """Completions submitted and not yet handed back by `finished`."""
        return len(self._queue) + len(self._done) + sum(worker.job is not None for worker in self._workers)

    def submit(self, completion, prompt) -> None:
        """Take a finished completion (.text, .truncated) of a data.Prompt (.task, .answer). KeyError: unknown task."""
        answer = None if completion.truncated else final_answer(completion.text)
        score = Score(completion, final_expression(answer or ""), prompt.answer)
        score.correct = False if answer is None else TASKS[prompt.task](answer, prompt.answer)
        (self._queue if score.correct is None else self._done).append(score)

    def finished(self) -> list[Score]:
        """The verdicts that have come in since the last call, in any order."""
        for worker in self._workers:
            score = worker.job
            if score is not None and worker.decided():
                self.timeouts += score.timed_out
                self._done.append(score)
            if worker.job is None and self._queue:
                worker.start(self._queue.popleft())
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """End and reap every worker; what is pending is forgotten."""
        self._queue.clear()
        for worker in self._workers:
            worker.close()
            worker.job = None


if __name__ == "__main__":
    work(*sys.argv[1:])
