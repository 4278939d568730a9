"""Rewards: +1 for a correct final answer, -1 for any other (Sec. 2), decided without ever blocking the generator.

    answer = what follows the last </think>; no </think>, or a truncated completion: no answer, which is wrong
    r = +1 if correct else -1                                       r -> reward(), correct -> Score.correct
    r = +1 + clip((L_max - |y|)/L_cache - 1, -1, 0) if correct      Eq. 9, A.10, A.15: instead of interruptions
    |y| -> tokens, L_max -> length_max, L_cache -> length_cache, the clip -> length_penalty()

`correct` is kept beside r because pass rates and both prompt filters are of correctness, never of a shaped reward.

Tasks (TASKS maps the name in a prompt's `task` to its verifier)
  arithmetic  the answer is the reference, character by character, but for ASCII whitespace around it: "18" and " 18\\n"
  sorting     are right for 18; "018", "+18", "18.0", "18." and digits of other scripts are wrong.
  math        LaTeX: the last \\boxed{...}, or without one the final expression, compared by math-verify (the paper's
              checker); boxes that only commas, "and", "or", "x =" stand between are one list. Equal strings are right
              at once; everything else goes to a worker process.
  code        a Python program: the last ```python block, or without one the last ``` block without a language. It is
              right if it passes all tests of the reference, a JSON text of one of the forms in use (`read_tests`):
                {"inputs": ["1 2\\n", ...], "outputs": ["3\\n", ...]}                   stdin and stdout (TACO, APPS)
                {"fn_name": "add", "inputs": [[1, 2], ...], "outputs": [3, ...]}        a call; if all outputs are lists
                                                                                        of one, these stand for that one
                [{"input": "1 2\n", "output": "3\n"}, ...]                            the same, a test at a time; with
                [{"input": "1\n2", "output": "3", "metadata": {"func_name": "add"}}]   arguments as JSON lines
              stdout: the same lines, trimmed; where a line differs, its words must be the same, but for decimal
              fractions, which allow a relative error of 1e-6. A result of a call is right if, as JSON, it == the
              expected one (so a tuple is a list). Every test must end with exit status 0. The program sees the
              standard library only; a function finds the names of `typing` defined, as starter codes expect.

Workers. SymPy can run for days on a short answer, and math-verify's own time limits are signals that fail off the main
thread, so they are off. A worker is a separate interpreter that loads this file (and SymPy at need), and works in a
fork of itself. The kernel kills the fork when one math answer has taken `timeout` seconds of wall clock, whatever it
computes and whether or not anybody polls: the answer is wrong, with `timed_out` set, and the worker forks again.
Without a parent it reads end-of-file and leaves. A worker that dies, or cannot start, says nothing about the answer,
which is tried once more on a fresh one, then handed back with `error` set and `correct` None, for the caller to drop
its group. It is never scored as wrong.

Programs run in a jail (jail.py says what it protects against and what not), which a worker starts and which never sees
the expected outputs. Their time counts from the moment the jail stands.

Deviation: a box, or an answer without one, of more than MAX_CHARS characters is wrong unread: reference answers are
  short, parsing time grows faster than length, and the end of a long number is not that number. Programs: CODE_CHARS.
Open in the paper: whether a truncated completion that already shows its answer is correct. Ours: it is wrong, unread;
  Sec. A.15 leaves it out of the loss, but the pass rate needs a value.
Known limits, math-verify's: "It is 17, not 18" has the final expression 18; "50" equals "50\\%"; an unquoted word is a
  product of letters, so that "Paris" equals "Pairs"; a last word that can be a unit is dropped (t of "\\cos^2 t");
  in a product, i is a letter: (1+2i)(3+4i) is not -5+10i. tests/test_reward.py lists where its own tests disagree.

Test: pytest tests/test_reward.py tests/test_code_reward.py; python benchmarks/soak.py. The file run as a script is a
worker and is started by Scorer only.
"""

import json
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from math import comb, isclose, nan
from statistics import mean, stdev

from plumbing import jail

THINK_END = "</think>"
BOX = "\\boxed{"
BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;]|\\[][(), ;:]|\\q?quad|and|or|\\text\{[^{}]*(?:,|and|or)\s*\}|[A-Za-z][\w{}]*\s*=)*")
BETWEEN_CHARS = 40  # more than this between two boxes is never looked at
MAX_CHARS = 10_000
CODE_CHARS = 65_536  # what Codeforces takes
MEMORY_BYTES = 2 << 30  # address space of one worker
START_SECONDS = 120.0  # a worker or jail that needs longer than this above its limit to start and answer counts as dead
# Compared before a worker's first math answer: (answer, reference).
WARM_UP = (("\\boxed{\\frac{1}{2}}", "0.5"), ("\\boxed{(x+1)^2}", "x^2+2x+1"), ("\\boxed{(1,2]}", "(1,2]"))
ANSWERS_PER_FORK = 5_000  # SymPy's caches grow, and math-verify calls an answer wrong if memory ends
NUMBER = re.compile(r"-?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,3})?")
MESSAGE_BYTES = 4_096  # more than any verdict or error
SPARE_BYTES = 1 << 16  # output that is this much longer than the expected one is not read to its end


def length_penalty(tokens: int, *, length_max: int, length_cache: int) -> float:
    """Eq. 9: clip((L_max - |y|)/L_cache - 1, -1, 0), to be added to the reward of correct completions only.

    >>> [length_penalty(tokens, length_max=14, length_cache=2) for tokens in (12, 13, 14, 15)]
    [0.0, -0.5, -1.0, -1.0]
    """
    return min(max((length_max - tokens) / length_cache - 1.0, -1.0), 0.0)


def reward(correct: bool | None, penalty: float = 0.0) -> float:
    """Sec. 2: r = +1 for a correct completion (plus Eq. 9's penalty), -1 for a wrong one, nan if that is unknown."""
    if correct is None:
        return nan
    return 1.0 + penalty if correct else -1.0


def pass_rates(groups, prompts) -> dict:
    """Sec. 2.1: mean@k over the headers of the validation set, one list of k per prompt, and the same per task.

    stderr is the sampling error on these prompts; which prompts were drawn is not in it. A prompt whose verifier failed
    is left out and its completions are counted as unverified: they are not wrong. Raises ValueError if none is left.
    entropy_sampled is -mean log pi_gen of the sampled tokens, nats: an estimate of the entropy on validation (A.12).
    """
    known = [group for group in groups if all(header.correct is not None for header in group)]
    if not known:
        raise ValueError(f"expected verdicts on {len(groups)} prompts, got none; likely cause: a broken verifier")
    means = [sum(header.correct for header in group) / len(group) for group in known]
    curves = [prompt.curve or prompt.task for prompt in (prompts[group[0].prompt] for group in known)]
    tasks = {curve: mean(rate for rate, of in zip(means, curves) if of == curve) for curve in dict.fromkeys(curves)}
    k = len(groups[0])  # the mean of k answers varies by p (1 - p) / k; k - 1 makes the estimate from these k unbiased
    stderr = (sum(p * (1 - p) for p in means) / (k - 1)) ** 0.5 / len(means) if k > 1 else nan
    tokens = sum(sum(header.versions.values()) for group in groups for header in group)
    surprise = -sum(header.logprob for group in groups for header in group)
    return {"pass_rate": mean(means), "stderr": stderr, "entropy_sampled": surprise / tokens,
            "completions": k * len(known), "unverified": k * (len(groups) - len(known)), "tasks": tasks}


def pass_at_k(groups, k: int) -> tuple[float, float]:
    """The chance that one of k answers to a prompt is correct, and its standard error over prompts.

    groups  a list of n >= k verdicts per prompt; with c of n correct, 1 - C(n - c, k) / C(n, k) is unbiased

    >>> pass_at_k([[True, False], [False, False]], 1), pass_at_k([[True, False], [False, False]], 2)
    ((0.25, 0.25), (0.5, 0.5))
    """
    chances = [1 - comb(len(group) - sum(group), k) / comb(len(group), k) for group in groups]
    return mean(chances), stdev(chances) / len(chances) ** 0.5 if len(chances) > 1 else nan


def final_answer(text: str) -> str | None:
    """What follows the last </think> of a completion's text, or None without one.

    >>> final_answer("<think>7+5=12 12-3=9</think>9")
    '9'
    """
    _, mark, answer = text.rpartition(THINK_END)
    return answer if mark else None


def final_expression(answer: str) -> str:
    """The last \\boxed{...} of an answer, or run of boxes; the whole answer without any; "" if too long or left open.

    >>> final_expression("Either \\\\boxed{1} or better \\\\boxed{\\\\frac{1}{2}}.")
    '\\\\boxed{\\\\frac{1}{2}}'
    >>> final_expression("x = \\\\boxed{1} and y = \\\\boxed{2}")
    '\\\\boxed{1, 2}'
    """
    start = answer.rfind(BOX)
    if start < 0:
        return answer.strip() if len(answer) <= MAX_CHARS else ""
    inside, first = [in_box(answer, start)], max(start - MAX_CHARS, 0)
    if inside[0] is None:
        return ""
    while (before := answer.rfind(BOX, first, start)) >= 0 and (content := in_box(answer, before)) is not None:
        end = before + len(BOX) + len(content) + 1
        if not 0 <= start - end <= BETWEEN_CHARS or not BETWEEN_BOXES.fullmatch(answer, end, start):
            break
        inside.insert(0, content)
        start = before
    return f"{BOX}{', '.join(dict.fromkeys(inside))}}}"


def in_box(answer: str, start: int) -> str | None:
    """What is in the \\boxed{...} at `start`; None if that is too long or left open."""
    box, depth = answer[start : start + MAX_CHARS], 0
    for brace in re.finditer(r"\\.|[{}]", box):  # an escaped brace is a printed one and opens nothing
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if brace.group() == "}" and depth == 0:
            return box[len(BOX) : brace.start()]
    return None


def program(answer: str) -> str:
    """The last ```python block of an answer, without one the last block that names no language, else "".

    >>> program("```python\\nprint(1)\\n```\\nprints\\n```\\n1\\n```")
    'print(1)\\n'
    """
    blocks = re.findall(r"^[ \t]*```([^`\n]*)\n(.*?)^[ \t]*```", answer, re.M | re.S)
    for languages in (("python", "python3", "py"), ("",)):
        if found := [block for language, block in blocks if language.strip().lower() in languages]:
            return found[-1] if len(found[-1]) <= CODE_CHARS else ""
    return ""


# Each verifier takes (answer, reference) and returns True or False, or the text that a worker has to judge.


def exact(answer: str, reference: str) -> bool:
    """Exactly the reference, ASCII whitespace around it aside; leading zeros, signs, points are wrong."""
    return answer.strip(" \t\r\n") == reference


def math(answer: str, reference: str) -> bool | str:
    """True for an equal string, False for no expression at all, otherwise the final expression."""
    expression = final_expression(answer)
    bare, plain = expression.strip(" \n$"), reference.strip(" \n$")
    return bool(bare) and (bare in (plain, f"{BOX}{plain}}}") or expression)


def code(answer: str, reference: str) -> bool | str:
    """False without a program."""
    return program(answer) or False


TASKS = {"arithmetic": exact, "sorting": exact, "math": math, "code": code}


# --- In a worker process: math ---------------------------------------------------------------------------------------


def equal(expression: str, reference: str) -> bool | None:
    """Does math-verify take `expression` for `reference`? None if it cannot read the reference. No time limit."""
    from math_verify import parse, verify

    marked = reference if "$" in reference or BOX in reference else f"${reference}$"
    gold = parse(marked, parsing_timeout=None)
    return verify(gold, parse(expression, parsing_timeout=None), timeout_seconds=None) if gold else None


@cache
def warm_up() -> None:
    """Load what SymPy loads at first use, which is no part of an answer's time."""
    for expression, reference in WARM_UP:
        equal(expression, reference)


def judge_math(expression: str, reference: str, timeout: float) -> bool | str:
    """`equal`; text = why it cannot be said. After `timeout` seconds SIGALRM, left to the kernel, ends this process."""
    signal.setitimer(signal.ITIMER_REAL, timeout)
    verdict = equal(expression, reference)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if verdict is None:
        return f"expected a reference answer in LaTeX, got {reference[:80]!r}; likely cause: a broken row of the data"
    return verdict


# --- In a worker process: code ---------------------------------------------------------------------------------------


def read_tests(reference: str) -> tuple[str | None, list]:
    """The tests of a code prompt: (name of the function or None, [(input, expected output), ...]); forms: see the top.

    Raises ValueError, LookupError, TypeError or AttributeError for another form, and for no tests: every program would
    be right.
    """
    tests = json.loads(reference)
    if isinstance(tests, list):
        [name] = {test.get("fn_name") or (test.get("metadata") or {}).get("func_name") for test in tests}
        cases = [(test["input"], test["output"]) for test in tests]
    else:
        name, cases = tests.get("fn_name"), list(zip(tests["inputs"], tests["outputs"], strict=True))
    if not cases:
        raise ValueError("no tests")
    if name and all(isinstance(result, list) and len(result) == 1 for _, result in cases):
        cases = [(arguments, result[0]) for arguments, result in cases]
    return name, [call_case(*case) if name else tuple(map(as_text, case)) for case in cases]


def as_text(lines) -> str:
    """Standard input or output that may be given as a list of lines."""
    return lines if isinstance(lines, str) else "\n".join(map(str, lines))


def call_case(arguments, result) -> tuple[list, object]:
    """(arguments, expected result) of a call, which may be given as text: a JSON value a line."""
    if isinstance(arguments, str):
        return [json.loads(line) for line in arguments.splitlines() if line.strip()], json.loads(result)
    return arguments, result


def same_output(output: str, expected: str) -> bool:
    """The rule for stdout: see the top.

    >>> same_output("1 2 \\n0.3333333\\n\\n", "1 2\\n0.3333334"), same_output("1.0", "1"), same_output("1 2", "1\\n2")
    (True, False, False)
    """
    lines, right = ([line.split() for line in text.strip().split("\n")] for text in (output, expected))
    same_shape = list(map(len, lines)) == list(map(len, right))
    return same_shape and all(same_word(*words) for pair in zip(lines, right) for words in zip(*pair))


def same_word(word: str, right: str) -> bool:
    numbers = "." in right and NUMBER.fullmatch(word) and NUMBER.fullmatch(right)
    return word == right or bool(numbers) and isclose(float(word), float(right), rel_tol=1e-6)


def judge_code(source: str, reference: str, timeout: float) -> bool | None:
    """Does a program pass all tests? None = not within `timeout` seconds. Raises what `read_tests` does."""
    name, cases = read_tests(reference)
    size = max(len(json.dumps(expected)) for _, expected in cases) + SPARE_BYTES
    inputs, namespaces = [given for given, _ in cases], jail.namespaces_work()
    with closing(jail.run(source, name, inputs, size=size, timeout=timeout, namespaces=namespaces)) as outputs:
        with suppress(TimeoutError):
            return all(right_output(name, output, expected) for output, (_, expected) in zip(outputs, cases))
    return None


def right_output(name: str | None, output: bytes | None, expected) -> bool:
    """One test: what the program wrote, None if it failed, against what is expected."""
    if output is None or name is None:
        return output is not None and same_output(output.decode(errors="replace"), expected)
    with suppress(ValueError, RecursionError):  # no result, or none that we can read
        return json.loads(output) == expected
    return False


# --- A worker's life -------------------------------------------------------------------------------------------------

# By the byte that comes with a job: what to do before the first one, which is no part of its time; what decides it.
JUDGES = {b"m": (warm_up, judge_math), b"c": (jail.namespaces_work, judge_code)}


def work(descriptor: str, timeout: str) -> None:
    """A worker: forks, and again when the fork has done its share or run into the limit. Ends with any other one.

    descriptor  file descriptor of our end of the channel
    timeout     seconds of wall clock per answer
    """
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable(logging.CRITICAL)  # math-verify warns that its time limits are off
    channel = socket.socket(fileno=int(descriptor))
    with suppress(BrokenPipeError, ConnectionResetError):
        while task := channel.recv(1, socket.MSG_PEEK):
            JUDGES[task][0]()  # once, here: the forks to come have it
            child = os.fork()
            if not child:
                return serve(channel, float(timeout))
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the fork gets it too, and may have to clear up: wait for it
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if status == -signal.SIGALRM:
                channel.send(b"null")
            elif status:
                sys.exit(status)


def serve(channel, timeout: float) -> None:
    """Read (text, reference), answer with the verdict, null for one that took too long; then again."""
    for _ in range(ANSWERS_PER_FORK):
        task, files, *_ = socket.recv_fds(channel, 1, 1)
        if not files:
            break
        with open(files[0]) as file:
            text, reference = json.load(file)
        prepare, judge = JUDGES[task]
        prepare()
        channel.send(json.dumps(judge(text, reference, timeout)).encode())


# --- In the generator's process --------------------------------------------------------------------------------------


@dataclass
class Score:
    """A completion on its way to a verdict."""

    completion: object  # the pipeline.Completion that was submitted
    prompt: object  # its data.Prompt
    text: str  # what a worker judges: an expression or a program
    penalty: float  # of Eq. 9, if it is correct
    correct: bool | None  # the verdict; in what `finished` returns, None means that the verifier failed
    timed_out: bool = False  # wrong because checking it took longer than the limit
    tried: bool = False  # a worker has ended with this answer unchecked
    error: str = ""  # why there is no verdict

    @property
    def reward(self) -> float:
        """r of Sec. 2; nan without a verdict."""
        return reward(self.correct, self.penalty)


class Worker:
    """One worker process, started at its first job and again after each death; `job` is the Score it works on."""

    def __init__(self, timeout: float):
        self.timeout, self.job, self.process = timeout, None, None

    def _launch(self) -> None:
        """Start an interpreter that runs `work`, in its own session; returns at once (loading SymPy takes it a second).

        Not multiprocessing: its children load the parent's main file first, here train.py with torch and all.
        """
        self.close()
        self._channel, theirs = socket.socketpair()
        command = [sys.executable, os.path.abspath(__file__), str(theirs.fileno()), str(self.timeout)]
        # SymPy's path, and so its time, depends on the hash seed.
        with theirs:  # closed here, else the worker's death would not read as end-of-file
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                                            env=os.environ | {"PYTHONHASHSEED": "0"}, start_new_session=True)

    def start(self, score: Score) -> None:
        """Give it a job. Where that fails, `decided` takes it for the worker's death."""
        self.job, self._deadline, self._failure = score, time.monotonic() + self.timeout + START_SECONDS, None
        try:
            if self.process is None or self.process.poll() is not None:
                self._launch()
            with jail.as_file(json.dumps([score.text, score.prompt.answer])) as file:
                with suppress(BrokenPipeError, ConnectionResetError):  # it has just left: `decided` reads end-of-file
                    socket.send_fds(self._channel, [score.prompt.task[:1].encode()], [file.fileno()])
        except OSError as error:  # no memory, processes, file descriptors or disk left
            self._failure = error

    def decided(self) -> Score | None:
        """Look, without waiting, for the verdict or the worker's death; returns the job once it has its outcome."""
        score, message = self.job, b""
        try:
            message = b"" if self._failure else self._channel.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if time.monotonic() > self._deadline:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)  # the fork too, which holds the channel open
            return None
        except ConnectionResetError:
            pass
        if message:
            verdict = json.loads(message)
            score.correct, score.error = (None, verdict) if isinstance(verdict, str) else (bool(verdict), "")
            score.timed_out = verdict is None
        else:
            cause = self._failure or f"exit code {self.process.wait()}"
            self.close()
            if not score.tried:
                score.tried = True
                self.start(score)
                return None
            score.error = (f"expected a verdict, got two dead workers ({cause}); "
                           "likely cause: no memory, or see the traceback above")
        self.job = None
        return score

    def close(self) -> None:
        """End and reap the process and its children; asked first, for it may have to clear up after a program."""
        for sign in (signal.SIGTERM, signal.SIGKILL) if self.process else ():
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=5.0)
            self._channel.close()


class Scorer:
    """Scores completions beside the generator: `submit` and `finished` return at once, verdicts come when they come.

    timeout  seconds of wall clock per answer
    workers  worker processes at most; none is started before the first answer that needs one
    penalty  |y| -> Eq. 9's penalty, or None for rewards of +1 and -1
    """

    def __init__(self, *, timeout: float, workers: int = 2, penalty=None):
        self._workers, self._penalty = [Worker(timeout) for _ in range(workers)], penalty
        self._queue, self._done = [], []

    @property
    def pending(self) -> int:
        """Completions submitted and not yet handed back by `finished`."""
        return len(self._queue) + len(self._done) + sum(worker.job is not None for worker in self._workers)

    def submit(self, completion, prompt) -> None:
        """Take a finished pipeline.Completion of a data.Prompt (.task, .answer). KeyError: unknown task."""
        answer = None if completion.truncated else final_answer(completion.text)
        verdict = False if answer is None else TASKS[prompt.task](answer, prompt.answer)
        text, correct = (verdict, None) if isinstance(verdict, str) else ("", verdict)
        penalty = self._penalty(len(completion.ids)) if self._penalty else 0.0
        score = Score(completion, prompt, text, penalty, correct)
        (self._queue if correct is None else self._done).append(score)

    def finished(self) -> list[Score]:
        """The verdicts that have come in since the last call, in any order."""
        for worker in self._workers:
            if worker.job and (score := worker.decided()):
                self._done.append(score)
            if worker.job is None and self._queue:
                worker.start(self._queue.pop(0))
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """End and reap every worker; what is pending is lost, and nothing may be submitted any more."""
        for worker in self._workers:
            worker.close()


if __name__ == "__main__":
    work(*sys.argv[1:])
