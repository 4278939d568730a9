"""Claims about code answers (Sec. 2: unit tests): which are right; none leaves anything behind or forges a verdict."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from data import Prompt
from verify import graders, programs, sandbox
from verify.scorer import Scorer

LIMIT = 0.5  # seconds per test that the `strict` scorer allows
NAMESPACES = len(sandbox.protections()) > 1
NEEDS_NAMESPACES = pytest.mark.skipif(not NAMESPACES, reason="this machine allows no namespaces")


def printed(*outputs, inputs=None):
    """The reference of a program that has to print these, each for an input (default: none)."""
    return json.dumps({"inputs": list(inputs or [""] * len(outputs)), "outputs": list(outputs)})


def returned(name, *calls):
    """The reference of a function; calls: (arguments, result)."""
    return json.dumps({"fn_name": name, "inputs": [call[0] for call in calls], "outputs": [call[1] for call in calls]})


SUM = printed("3\n", "0\n", inputs=["1 2\n", "-5 5\n"])
ADD = returned("add", ([1, 2], [3]), ([-5, 5], [0]))
THREE = printed("3")


@dataclass
class Finished:
    """The fields of pipeline.Rollout that the scorer reads."""

    text: str
    truncated: bool = False


def submit(scorer, program, tests):
    text = f"<think>```python\nprint(3)\n```</think>So:\n```python\n{program}\n```\n"
    scorer.submit(Finished(text), Prompt(0, (1,), "?", tests, "code"))


def score(scorer, program, tests=SUM):
    """The Score of one program."""
    submit(scorer, program, tests)
    scorer.wait()
    return scorer.finished()[0]


def descendants(pid):
    """Ids of all processes below this one."""
    below, known = {pid}, list(sandbox.all_processes())
    while more := {child for child, parent, *_ in known if parent in below} - below:
        below |= more
    return below - {pid}


def wait_until(true, what, seconds=30.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def nothing_left(scorer, folder):
    """Whether only the worker's own fork is below it, which adopts what programs leave, and the folder is empty."""
    return len(descendants(scorer._workers[0].process.pid)) == 1 and not any(folder.iterdir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where workers make their temporary files."""
    return tmp_path_factory.mktemp("temporary")


def started(folder, timeout):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        scorer = Scorer(timeout=timeout, workers=1)
        assert score(scorer, "print(sum(map(int, input().split())))").correct is True
    return scorer


@pytest.fixture(scope="module")
def scorer(folder):
    """A Scorer with a limit (20 s) that no honest program below comes near, however busy the machine is."""
    scorer = started(folder, 20.0)
    yield scorer
    scorer.close()


@pytest.fixture(scope="module")
def strict(folder):
    """A Scorer with a short limit, for endless programs: each takes all of it."""
    scorer = started(folder, LIMIT)
    yield scorer
    scorer.close()


# --- Which program, which tests ---


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("```python\na\n```\nor better\n```python\nb\n```", "b\n"),  # the last block
        ("```python\na\n```\nwhich prints\n```\n3\n```", "a\n"),  # python wins over a later block without a language
        ("```py\na\n```\n```cpp\nb\n```", "a\n"),
        ("```\na\n```\nor\n```\nb\n```", "b\n"),
        ("  ```Python3 \r\na\n  ```", "a\n"),
        ("1. ```python\n   if a:\n       b\n   ```", "if a:\n    b\n"),  # in a list item
        ("```python\na\nb```", "a\nb"),  # closing fence on the last line of code
        ("```python\na = '```'\nb\n```", "a = '```'\nb\n"),
        ("Here: ```python\na\n```", "a\n"),  # behind text
        ("It prints ```3\n```python\na\n```", "a\n"),  # what is no opening
        ("~~~python\na\n~~~", "a\n"),
        ("````python\na = '```'\n```\n````", "a = '```'\n```\n"),  # closed by a fence as long
        ('```python title="a.py"\na\n```', "a\n"),
        ("```py3\na\n```\n```{.python}\nb\n```\n```pycon\n>>> c\n```", "b\n"),
        ("\ufeff```python\n\ufeffa = '\ufeff'\n```", "a = '\ufeff'\n"),  # a byte order mark, and one that is text
        ("```python\na\n", ""),  # never closed
        ("```cpp\na\n```", ""),
        ("```python\n" + "#" * programs.CODE_CHARS + "\n```", ""),  # too long
        ("```python\n" * 100_000, ""),
    ],
)
def test_sec2_the_program_is_the_last_python_block(answer, program):
    assert (graders.code(answer, SUM) or "") == program


PIECES = ["- ```python", "- ```python\n", "```python\nx", "```", "```\n", " ", "\n```python", "- ```python "]


@pytest.mark.parametrize("piece", [*PIECES, "~", "\n~", " ~~~py", "1", "```\n" + " " * 99, "\ufeff"])
def test_a_megabyte_of_open_blocks_is_read_in_a_second(piece):
    start = time.thread_time()
    assert not programs.program(piece * (1_000_000 // len(piece))).strip("x\n")[:1].isdigit()
    assert time.thread_time() - start < 2.0  # seconds of CPU; in quadratic time: minutes


@pytest.mark.parametrize(
    ("tests", "read"),
    [
        (SUM, (None, [("1 2\n", "3\n"), ("-5 5\n", "0\n")])),
        ('{"inputs": [["1", "2"]], "outputs": [["3"]], "fn_name": null}', (None, [("1\n2", "3")])),  # lines as lists
        ('[{"input": "1 2", "output": "3", "testtype": "stdin", "metadata": {}}]', (None, [("1 2", "3")])),
        ('[{"input": "1 2", "output": "3", "type": "stdin_stdout", "fn_name": null}]', (None, [("1 2", "3")])),
        (ADD, ("add", [([1, 2], [3]), ([-5, 5], [0])])),
        ('[{"input": [1, 2], "output": 3, "fn_name": "add"}]', ("add", [([1, 2], 3)])),
        ('[{"input": "[1]\\n\\"a\\"", "output": "[3]", "metadata": {"func_name": "f"}}]', ("f", [([[1], "a"], [3])])),
    ],
)
def test_the_forms_of_tests_in_use_are_read(tests, read):
    assert programs.read_tests(tests) == read


@pytest.mark.parametrize(
    "tests",
    ["", "3", "[]", '{"inputs": [], "outputs": []}', '{"inputs": ["1"], "outputs": []}', '{"inputs": ["1"]}', "[3]"]
    + ['[{"input": "1", "output": "1"}, {"input": [1], "output": 1, "fn_name": "f"}]', "[" * 100_000]
    + ['[{"input": "1", "output": "1", "testtype": "functional"}]', '[{"input": "1", "output": "1", "type": "call"}']
    + ['[{"input": "1", "output": "1", "type": "function_call"}]'],
)
def test_tests_that_cannot_be_read_or_are_none_are_a_failure_not_a_verdict(scorer, tests):
    failed = score(scorer, "pass", tests)
    assert failed.correct is None and failed.error.startswith("two workers died without a verdict (exit code 1)")


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        ("  1 2 \r\n3 \n\n", "1 2\n3\n", True),  # trimmed
        ("1\n2", "1 2", False),
        ("", "0", False),
        ("yes", "YES", False),
        ("1  2", "1 2", True),  # word by word
        ("1.0", "1", True),
        ("1e+20", "1" + "0" * 20, True),
        ("1.0000001", "1", False),  # a whole number is exact
        ("2.9999999999", "3", False),
        ("2.9999999999 .5", "3 0.5", True),  # but beside a decimal fraction it may come from floats
        ("100000001.0 .5", "100000000 0.5", False),
        ("100000000000000000001.0", "100000000000000000000", False),
        ("01", "1", False),
        ("1.", "1", False),
        ("1", "1.0", True),
        ("0.33333333", "0.333333", True),
        ("x 2 1e-9", "x 2.000000 0.000000001", True),
        ("-.5 1" + "0" * 20, "-0.5 1e+20", True),
        ("0.3334", "0.333333", False),
        ("1e-16 -0.0", "0.0 0.0", True),
        ("0.0000001", "0.0", False),
        ("nan", "0.5", False),
        ("٠.٥", "0.5", False),  # digits, but not ASCII
        ("0.5" + "0" * 1_000_000, "0.5", False),
    ],
)
def test_stdout_is_right_with_the_same_words_on_the_same_lines_and_fractions_within_1e_6(output, expected, same):
    assert programs.same_output(output, expected) is same


MAPPED = returned("f", ([{"1": 5, "2": {"3": 4}}], [[1, 2]]), ([{"a": 5}], [["a"]]))
LONG = printed("7" * 9_000, inputs=["7" * 9_000])
POWER = f'{{"fn_name": "f", "inputs": [[1{"0" * 9_000}]], "outputs": [1{"0" * 9_000}]}}'
GCD = returned("gcd", ([4, 6], 2))
FLOATS = returned("f", ([0.1], [0.3, {"a": 0.0}]))
GRADED = {  # {tests: {program: whether it is right}}
    SUM: {
        "print(sum(map(int, input().split())))": True,
        "import sys\nfor line in open(0): print(sum(map(int, line.split())))": True,
        "print(sum(map(int, open('/dev/stdin').read().split())))": True,
        "import os, sys\nprint(sum(map(int, input().split())), flush=True)\nos._exit(0)": True,
        "sys.setrecursionlimit(10**6)\nf = lambda n: n and f(n - 1)\n"
        "print(f(9**4) + sum(map(int, input().split())))": True,
        "print(3)": False,  # right on the first test
        "print(sum(map(int, input().split())) or 1)": False,  # wrong on the second
        "import numpy\nprint(sum(map(int, input().split())))": False,  # not in the standard library
        "os.getcwd()\nprint(sum(map(int, input().split())))": False,  # the sandbox imports os, not the program
        # Names that graders import before the program are there; pow, open and compile are still the built-in ones.
        "d = deque(map(int, input().split()))\nheapify(h := list(d))\nprint(reduce(lambda a, b: a + b, d))": True,
        "assert gcd(4, 6) == 2 and pow(3, 4, 5) == 1 and math.inf > 9 and bisect.bisect([1, 3], 2) == 1\n"
        "print(sum(map(int, sys.stdin.read().split())))": True,
        "assert re.split(',', 'a,b') == list(ascii_lowercase[:2])\n"
        "assert Counter('aa')['a'] == eval(compile('2', '', 'eval'))\n"
        "print(sum(map(int, input().split())), *islice(chain([]), 3))": True,
        "print(3)\0": False,
        "print('\\ud800')": False,
        "": False,
    },
    THREE: {  # a program ends as the interpreter would end it: it waits for threads and exit functions
        "import atexit\natexit.register(print, 3)": True,
        "class End:\n  def __del__(self): print(3)\nend = End()\nend.me = end": True,
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print(3))).start()": True,
        "import threading, time\nthreading.Thread(target=time.sleep, args=[9], daemon=True).start()\nprint(3)": True,
        "import io, os\nsys.stdout = io.StringIO()\nimport atexit\n"
        "atexit.register(lambda: os.write(1, sys.stdout.getvalue().encode()))\nprint(3)": True,
        "print(3)\nsys.stdout.close()": True,
        "print(3)\nquit()": True,
        "def main():\n  print(3)\n  exit(0)\nmain()": True,
        "print(3)\nexit(1)": False,
        "print(3)\nquit('done')": False,
        "print(3)\nraise ValueError": False,
        "print(3)\nimport os\nos.abort()": False,
        "print(3)\nimport os\nos.kill(os.getpid(), 9)": False,
    },
    printed("1", inputs=["\ufeff1"]): {"print(int(input()))": True},
    printed("5000000", inputs=["x" * 5_000_000]): {"print(len(input()))": True},
    LONG: {"print(int(input()))": True, "print(int(input()) + 1)": False},
    POWER: {"f = lambda n: 10**9000 if n == 10**9000 else 0": True, "f = lambda n: n + 1": False},
    ADD: {
        "def add(a, b): return a + b": True,
        "def add(a: int, b: Optional[int]) -> int: return a + b": True,  # graders import typing
        "class Solution:\n    def add(self, a, b):\n        return a + b": True,
        "print(99)\ndef add(a, b):\n    print(7)\n    return a + b": True,  # what a function prints is ignored
        "add = lambda a, b: float(a + b)": True,  # 3.0 == 3, as in Python
        "add = lambda a, b: a + b + 1e-12": False,  # a whole number is exact
        "from dataclasses import dataclass\n@dataclass\nclass P:\n  x: 'int'\nadd = lambda a, b: P(a).x + b": True,
        "def add(a, b): return [a + b]": True,  # if all expected results are lists of one, their elements will do
        "def add(a, b): return a + b if a > 0 else [a + b]": False,  # but not mixed
        "def add(a, b): return str(a + b)": False,
        "def add(a, b): return 3": False,
        "def add(a, b): return {a + b}": False,  # a set is not JSON
    },
    returned("f", ([1], [1]), ([2], [2, 2])): {
        "def f(n): return [n] * n": True,
        "def f(n): return 1 if n == 1 else [2, 2]": False,
    },
    returned("f", ([[1, "é"], {"k": None}], [[{"k": None}, 1, "é"]])): {
        "def f(x, y): return (y, *x)": True,  # a tuple is a list
        "def f(x, y): return [y, *x, 0]": False,
    },
    FLOATS: {
        "def f(x): return x * 3, {'a': .1 + .2 - .3}": True,
        "def f(x): return x * 3, {'a': 1e-8}": False,
        "def f(x): return 0.30000001, {'a': 0}": False,
        "def f(x): return 10**400, {'a': 0}": False,
        "def f(x): return x * 3, {'a': float('nan')}": False,
    },
    MAPPED: {"def f(d): return list(d)": True, "def f(d): return list(map(str, d))": False},  # whole numbers as keys
    GCD: {  # what graders import is not there if it is asked for
        "pass": False,
        "from math import gcd": True,
        "class Solution:\n  def gcd(self, a, b): return math.gcd(a, b)": True,
    },
}


@pytest.mark.parametrize("tests", GRADED)
def test_a_program_is_right_if_it_passes_all_tests(scorer, tests):
    assert {program: score(scorer, program, tests).correct for program in GRADED[tests]} == GRADED[tests]


# --- What a program cannot do: forge a verdict, go on, grow, leave something behind ---

PARENT = "import ctypes, os\ncall = ctypes.CDLL(None).syscall\np = os.getppid()\n"
FDS = "import os, socket\nfor fd in range(3, 64):\n  try: {}\n  except OSError: pass\nos._exit({})"
HUNT = "import sys\nseen = []\nsys.settrace(lambda frame, *_: seen.append(frame.f_back.f_locals))\n"
HOSTILE = {  # against ADD and SUM: neither is right for one output alone
    "an end before anything": "import os\nos._exit(0)",
    "a false result": FDS.format("os.write(fd, b'7')", 0),
    "a false status": FDS.format("socket.send_fds(socket.socket(fileno=os.dup(fd)), [b'0'], [1])", 1),
    "equal to all": "class All(int): __eq__ = lambda self, other: True\nadd = lambda a, b: All(7)\nprint(All(7))",
    "another json.dumps": "import json\njson.dumps = json.JSONEncoder.encode = lambda *a: 'true'\ndef add(a, b): pass",
    "a result nobody can read": "import os\nos.write(3, b'[' * 60_000)\nos._exit(0)",
    "a result of many digits": "import os\nos.write(3, b'9' * 60_000)\nos._exit(0)",
    "not a number": "add = lambda a, b: float('nan')",
    "an end of the sandbox": "import os\nos.kill(os.getppid(), 9)\nos.kill(os.getppid(), 19)",
    "a hunt by settrace": HUNT + "def add(a, b): return seen[-1].get('expected')",
    "the sandbox's socket": "import gc, socket\n[socket.send_fds(s, [b'0'], [1]) for s in gc.get_objects() if "
    "isinstance(s, socket.socket)]",
    "ptrace": PARENT + "call(101, 16, p, 0, 0)\nprint(open(f'/proc/{p}/mem', 'rb').read(9))",
    "the parent's descriptors": PARENT + "for fd in range(64): os.write(call(438, os.pidfd_open(p), fd, 0), b'0')",
    "the parent's limits": PARENT + "import resource\nresource.prlimit(p, resource.RLIMIT_NOFILE, (3, 3))",
    "new namespaces": PARENT + "assert call(272, 1 << 28 | 1 << 17) == 0\nos.chroot('/proc/1/root')",
    "a real-time priority": "import os\nos.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99))",
    "higher limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "shared memory": "open('/dev/shm/left-by-a-test', 'w').write('x')" if NAMESPACES else "raise OSError",
    "a large object": "x = b'x' * (1 << 31)",
    "output flood": "print('x' * (1 << 25))",
    "too long an output": "print(sum(map(int, input().split())))\nprint(' ' * 100_000)",
    "a hole in the output": "import os\nprint(3, flush=True)\nos.lseek(1, 1 << 23, 0)\nos.write(1, b' ')",
    "deep nesting": "(" * 20_000 + ")" * 20_000,
    "a long sum": "1" + "+1" * 30_000,
    "deep folders": "import os\nfor _ in range(1500):\n  os.mkdir('d')\n  os.chdir('d')",
    "a link that comes and goes": "import os\nos.mkdir('a')\nwhile not os.fork(): os.symlink('/', 'd'), os.unlink('d')",
    "kill everybody": "import os\nos.kill(-1, 9)" if NAMESPACES else "raise OSError",
}
ALWAYS = "import os\nx = []\nwhile True:\n  try: {}\n  except (OSError, MemoryError): pass"
ENDLESS = {
    "loop": "while True: pass",
    "sleep": "import time\ntime.sleep(100)",
    "fork bomb": ALWAYS.format("os.fork()"),
    "fork bomb of daemons": ALWAYS.format("os.fork() or os.setsid()"),
    "spawned programs": ALWAYS.format("os.posix_spawn(sys.executable, ['p', '-c', 'while 1: pass'], {})"),
    "memory bomb": ALWAYS.format("x.append(b'x' * (1 << 24))"),
    "bomb of nameless files": ALWAYS.format("x.append(os.memfd_create('x')), os.write(x[-1], bytes(1 << 24))"),
    "bomb of pipes": ALWAYS.format("os.write(os.pipe()[1], b'x' * 65536)"),
    "output flood": ALWAYS.format("print('x' * 1000)"),
    "file flood": ALWAYS.format("x.append(open(str(len(x)), 'w').write('x' * 1000000))"),
    "signal handlers": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=[100]).start()",
    "an exit function": "import atexit, time\natexit.register(time.sleep, 100)\nprint(sum(map(int, input().split())))",
    "a finaliser": "class End:\n  def __del__(self):\n    while True: pass\nend = End()",
    "a number's digits": "print(10**(10**8))",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_verdict_is_forged_and_nothing_is_left(scorer, folder, name):
    for tests in (ADD, SUM):
        hostile = score(scorer, HOSTILE[name], tests)
        assert hostile.correct is False and not hostile.timed_out and nothing_left(scorer, folder)
    assert not os.path.exists("/dev/shm/left-by-a-test")


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_program_costs_the_limit_and_leaves_nothing(strict, folder, name):
    start = time.monotonic()
    endless = score(strict, ENDLESS[name])
    assert (endless.correct, endless.timed_out) == (False, True)
    assert LIMIT <= time.monotonic() - start < LIMIT + 4.0  # 4 s of slack: a busy machine is slow to start a sandbox
    assert nothing_left(strict, folder)


def test_expected_outputs_never_enter_the_sandbox(scorer):
    hunt = """
import re
seen = open('/proc/1/cmdline').read()
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
    for start, end in re.findall('^(.+?)-(.+?) rw', maps.read(), re.M):
        memory.seek(int(start, 16))
        seen += memory.read(int(end, 16) - int(start, 16)).decode(errors='replace')
print(*sorted(set(re.findall('(?:giv' 'en|expec' 'ted)-[0-9]+', seen))))
"""
    given = ["given-1", "given-2"]  # the search works: it finds the inputs
    assert score(scorer, hunt, printed(*["given-1 given-2"] * 2, inputs=given)).correct is True
    # What the program would print if it found an expected output:
    assert score(scorer, hunt, printed(*["expected-1 given-1 given-2"] * 2, inputs=given)).correct is False


def test_what_one_test_leaves_the_next_does_not_find_and_nothing_is_left_though_it_is_right(scorer, folder):
    leave = """
import os, signal, time
print(os.listdir('/tmp' if os.getcwd() == '/tmp' else '.'), os.environ.get('x'), end=' ')
print(sum(name.isdigit() for name in os.listdir('/proc')) if os.getcwd() == '/tmp' else 3)
os.environ['x'] = 'seen'
os.mkdir('d'); open('d/file', 'w').write('x'); os.chmod('d', 0); open('.hidden', 'w')
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(2):
  if not os.fork():
    os.setsid()
    os.fork() or time.sleep(100)
    time.sleep(100)
"""
    expected = f"[] None {2 if NAMESPACES else 3}"  # processes: the sandbox's first, and the test's own
    assert score(scorer, leave, printed(*[expected] * 5)).correct is True and nothing_left(scorer, folder)


def test_limits_environment_and_folder_are_set_in_the_sandbox(scorer):
    look = """
import os, resource
limits = [resource.getrlimit(getattr(resource, 'RLIMIT_' + name)) for name in ('AS', 'FSIZE', 'NOFILE', 'CORE', 'CPU')]
print(limits, sorted(os.environ), os.listdir(), os.getsid(0) == os.getpgrp(), os.getuid() > 0)
try:
  for _ in range(500):
    if not os.fork(): __import__('time').sleep(100)
except BlockingIOError:
  print('no more')
"""
    limits = [(1 << 30,) * 2, (16 << 20,) * 2, (64, 64), (0, 0), (22, 22)]
    assert score(scorer, look, printed(f"{limits} ['LC_CTYPE'] [] True True\nno more")).correct is True


@NEEDS_NAMESPACES
def test_nothing_outside_the_folder_is_seen_or_written(scorer, folder):
    name = f"left-by-a-test-{os.getpid()}"
    places = ["/", "/tmp", "/var/tmp", "/dev/shm", "/usr", str(Path.home()), str(folder), os.getcwd(), sys.base_prefix]
    write = f"""
import os
for place in {places!r}:
  try: open(os.path.join(place, {name!r}), 'w').write('x')
  except OSError: print(place)
try: open(os.__file__, 'a')
except OSError: print('read-only')
print(os.path.exists({str(Path(programs.__file__))!r}), set(os.listdir('/proc')) & {{{str(os.getpid())!r}, '9999999'}})
"""
    expected = "\n".join([place for place in places if place != "/tmp"] + ["read-only", "False set()"])
    assert score(scorer, write, printed(expected)).correct is True
    assert not any(os.path.exists(os.path.join(place, name)) for place in places)


@NEEDS_NAMESPACES
def test_there_is_no_network(scorer):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            pass  # outside the sandbox the server can be reached
        call = f"import socket\ntry: socket.create_connection(('127.0.0.1', {port}), 5)\nexcept OSError: print('no')"
        assert score(scorer, call, printed("no")).correct is True


def test_protections_are_named_for_the_log():
    assert tuple(sandbox.protections()) == sandbox.PROTECTIONS[: 2 if NAMESPACES else 1]


@pytest.mark.parametrize("name", ["sleep", "fork bomb", "fork bomb of daemons", "deep folders"])
def test_without_namespaces_nothing_is_left_either(name, tmp_path):
    """`sandbox.run` is called in a separate process, because it kills all children of the process that calls it."""
    script = f"""
from verify import sandbox
def outcome(program):
    try:
        return list(sandbox.run(program, None, ['x'], size=9, timeout={LIMIT}, namespaces=False))
    except TimeoutError:
        return 'timeout'
print(outcome('print(input())'), outcome({(ENDLESS | HOSTILE)[name]!r}),
      [process for process in sandbox.all_processes() if process[1] == sandbox.os.getpid()])
"""
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(sandbox.__file__).parent.parent)}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", script], env=environment, **pipes) as process:
        printed, errors = process.communicate(timeout=60)
    assert printed == f"[b'x\\n'] {'timeout' if name in ENDLESS else '[None]'} []\n", errors
    assert not any(tmp_path.iterdir())
    if os.getuid() == 0:  # only its programs have this user id
        user = sandbox.USERS[process.pid % len(sandbox.USERS)]
        assert not [pid for pid, _, owner, _ in sandbox.all_processes() if owner == user]


# --- Beside the generator; a failed verifier is not a wrong answer ---


@pytest.mark.parametrize("sign", [signal.SIGKILL, None])
def test_a_sandbox_ends_with_its_worker(folder, sign):
    scorer = started(folder, 60.0)
    submit(scorer, "import time\ntime.sleep(100)", SUM)
    scorer.finished()
    pid = scorer._workers[0].process.pid
    wait_until(lambda: len(descendants(pid)) >= (4 if NAMESPACES else 3), "the program does not start")
    below = descendants(pid)
    start = time.monotonic()
    if sign:
        os.killpg(pid, sign)
    else:
        scorer.close()
        assert time.monotonic() - start < 30.0  # the program would take 100 s
    wait_until(lambda: not below & {known for known, *_ in sandbox.all_processes()}, "a program outlives its worker")
    assert not any(folder.iterdir())
    scorer.close()


def test_a_sandbox_leaves_other_children_of_its_process_alone():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        outputs = sandbox.run("print(3)", None, [""], size=99, timeout=5.0, namespaces=sandbox.namespaces_work())
        assert list(outputs) == [b"3\n"]
        assert other.poll() is None
        other.kill()


def test_a_sandbox_that_does_not_start_is_a_failure_not_a_wrong_answer(monkeypatch, tmp_path):
    shutil.copytree(Path(sandbox.__file__).parent, tmp_path / "verify")
    works, first = Path(sandbox.__file__).read_text(), "def drop_rights(user):\n"
    (tmp_path / "verify" / "sandbox.py").write_text(works.replace(first, f"{first}    raise OSError\n"))
    monkeypatch.setattr("verify.scorer.ROOT", str(tmp_path))
    scorer = Scorer(timeout=5.0, workers=1)
    failed = score(scorer, "print(3)")
    assert failed.correct is None and failed.tried
    assert "two workers died without a verdict (exit code 1)" in failed.error
    scorer.close()


def test_the_limit_is_per_test_and_the_total_grows_with_their_number(strict):
    many = printed(*map(str, range(25)), inputs=map(str, range(25)))
    slow = score(strict, "import time\ntime.sleep(0.04)\nprint(input())", many)  # 1 s in all: twice LIMIT
    assert (slow.correct, slow.timed_out) == (True, False)
    one = score(strict, f"import time\nn = input()\ntime.sleep({2 * LIMIT} * (n == '3'))\nprint(n)", many)
    assert (one.correct, one.timed_out) == (False, True)
