"""Claims about code answers (Sec. 2: unit tests): which are right; none leaves anything behind or forges a verdict."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest
from conftest import ROOT, Finished, alive, rows, wait_until

import reward
from data import Prompt
from verify import programs, sandbox
from verify.scorer import Scorer

LIMIT = 0.3  # seconds per test that the `strict` scorer allows
NAMESPACES = len(sandbox.protections()) > 1
NEEDS_NAMESPACES = pytest.mark.skipif(not NAMESPACES, reason="this machine allows no namespaces")


def printed(*outputs, inputs=None):
    """The reference of a program that has to print these, each for an input (default: none)."""
    return json.dumps({"inputs": list(inputs or [""] * len(outputs)), "outputs": list(outputs)})


SUM = printed("3\n", "0\n", inputs=["1 2\n", "-5 5\n"])
ADD = json.dumps({"fn_name": "add", "inputs": [[1, 2], [-5, 5]], "outputs": [[3], [0]]})


def named(kind):
    """{name: program}"""
    return {row["name"]: row["program"] for row in rows("programs", kind)}


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
        scorer = Scorer(timeout=timeout, workers=1, namespaces=NAMESPACES, answer_of=reward.final_answer)
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


@pytest.mark.parametrize(
    "tests", [row["tests"] for row in rows("programs", "unreadable tests")] + ["[" * 100_000], ids=count()
)
def test_tests_that_cannot_be_read_or_are_none_are_a_failure_not_a_verdict(scorer, tests):
    failed = score(scorer, "pass", tests)
    assert failed.correct is None and re.match(r"the grader raised .*\.py, line", failed.error)


POWER = f'{{"fn_name": "f", "inputs": [[1{"0" * 9_000}]], "outputs": [1{"0" * 9_000}]}}'
LARGE = [
    (printed("5000000", inputs=["x" * 5_000_000]), "print(len(input()))", True),
    (POWER, "f = lambda n: 10**9000 if n == 10**9000 else 0", True),
]


def test_a_program_is_right_if_it_passes_all_tests(scorer):
    cases = LARGE + [(row["tests"], row["program"], row["right"]) for row in rows("programs", "graded")]
    assert [case for case in cases if score(scorer, case[1], case[0]).correct is not case[2]] == []


# --- What a program cannot do: forge a verdict, go on, grow, leave something behind ---

# Against ADD and SUM: neither is right for one output alone.
HOSTILE = named("hostile") | {"deep nesting": "(" * 20_000 + ")" * 20_000, "a long sum": "1" + "+1" * 30_000}
if not NAMESPACES:
    HOSTILE |= dict.fromkeys(["shared memory", "kill everybody"], "raise OSError")
ENDLESS = named("endless")
LOOKS = named("looks around")


@pytest.mark.parametrize("name", HOSTILE)
def test_no_verdict_is_forged_and_nothing_is_left(scorer, folder, name):
    for tests in (ADD, SUM):
        hostile = score(scorer, HOSTILE[name], tests)
        assert hostile.correct is False and not hostile.timed_out and nothing_left(scorer, folder)
    assert not os.path.exists("/dev/shm/left-by-a-test")


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.processes
def test_an_endless_program_costs_the_limit_and_leaves_nothing(strict, folder, name):
    start = time.monotonic()
    endless = score(strict, ENDLESS[name])
    assert (endless.correct, endless.timed_out) == (False, True)
    assert time.monotonic() - start < LIMIT + 4.0  # 4 s of slack: a busy machine is slow to start a sandbox
    assert nothing_left(strict, folder)


def test_expected_outputs_never_enter_the_sandbox(scorer):
    # The search works: it finds the input. Then what the program would print if it found the expected output.
    for expected, right in (("given-1", True), ("expected-1 given-1", False)):
        assert score(scorer, LOOKS["hunt"], printed(expected, inputs=["given-1"])).correct is right


def test_what_one_test_leaves_the_next_does_not_find_and_nothing_is_left_though_it_is_right(scorer, folder):
    expected = f"[] None {2 if NAMESPACES else 3}"  # processes: the sandbox's first, and the test's own
    assert score(scorer, LOOKS["leave"], printed(*[expected] * 5)).correct is True and nothing_left(scorer, folder)


def test_limits_environment_and_folder_are_set_in_the_sandbox(scorer):
    limits = [(1 << 30,) * 2, (16 << 20,) * 2, (64, 64), (0, 0), (22, 22)]
    assert score(scorer, LOOKS["look"], printed(f"{limits} ['LC_CTYPE'] [] True True\nno more")).correct is True


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


@pytest.mark.processes
def test_without_namespaces_nothing_is_left_either(tmp_path):
    """`sandbox.run` is called in a separate process, because it kills all children of the process that calls it."""
    cases = [("print(input())", 30.0), (HOSTILE["deep folders"], 30.0)]
    cases += [(ENDLESS[name], LIMIT) for name in ("fork bomb", "fork bomb of daemons")]
    script = f"""
from verify import sandbox
def outcome(program, seconds):
    try:
        return list(sandbox.run(program, None, ['x'], size=9, timeout=seconds, namespaces=False))
    except TimeoutError:
        return 'timeout'
for case in {cases!r}:
    print(outcome(*case))
print([process for process in sandbox.all_processes() if process[1] == sandbox.os.getpid()])
"""
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE) as process:
        written, _ = process.communicate(timeout=100)
    assert written == b"[b'x\\n']\n[None]\ntimeout\ntimeout\n[]\n" and not any(tmp_path.iterdir())
    if os.getuid() == 0:  # only its programs have this user id
        user = sandbox.USERS[process.pid % len(sandbox.USERS)]
        assert not [pid for pid, _, owner, _ in sandbox.all_processes() if owner == user]


# --- Beside the generator; a failed verifier is not a wrong answer ---


@pytest.mark.parametrize(
    "end", [lambda scorer, pid: os.killpg(pid, signal.SIGKILL), lambda scorer, pid: scorer.close()]
)
def test_a_sandbox_ends_with_its_worker(folder, end):
    scorer = started(folder, 60.0)
    submit(scorer, ENDLESS["sleep"], SUM)
    scorer.finished()
    pid = scorer._workers[0].process.pid
    wait_until(lambda: len(descendants(pid)) >= (4 if NAMESPACES else 3), "the program does not start")
    below = descendants(pid)
    end(scorer, pid)
    wait_until(lambda: not any(map(alive, below)), "a program outlives its worker")  # zombies have ended
    assert not any(folder.iterdir())
    scorer.close()


def test_a_sandbox_that_does_not_start_is_a_failure_not_a_wrong_answer(monkeypatch, tmp_path):
    shutil.copytree(Path(sandbox.__file__).parent, tmp_path / "verify")
    works, first = Path(sandbox.__file__).read_text(encoding="utf-8"), "def drop_rights(user):\n"
    (tmp_path / "verify" / "sandbox.py").write_text(works.replace(first, f"{first}    raise OSError\n"))
    monkeypatch.setattr("verify.scorer.ROOT", str(tmp_path))
    scorer = Scorer(timeout=5.0, workers=1, answer_of=reward.final_answer)
    failed = score(scorer, "print(3)")
    assert failed.correct is None and "the grader raised RuntimeError: expected a sandbox" in failed.error
    scorer.close()


KEYS = """
import ctypes
call = ctypes.CDLL(None).syscall
print(*(call(250, 10, ring, b"user", b"left", 0) < 0 for ring in (-4, -5)), end=" ")  # whether none is found
call(248, b"user", b"left", b"x", 1, -4)
call(248, b"user", b"left", b"x", 1, -5)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="KEYS has the numbers of x86_64")
def test_keys_of_the_kernels_keyring_do_not_outlive_a_program(monkeypatch):
    monkeypatch.setattr(sandbox, "USERS", [61_200])  # the same for both programs
    runs = [list(sandbox.run(KEYS, None, [""], size=99, timeout=20.0, namespaces=NAMESPACES)) for _ in range(2)]
    assert runs == [[b"True True "]] * 2


@pytest.mark.processes
def test_the_limit_is_per_test_and_the_total_grows_with_their_number(strict):
    many = printed(*map(str, range(12)), inputs=map(str, range(12)))
    slow = score(strict, "import time\ntime.sleep(0.05)\nprint(input())", many)  # 0.6 s in all: twice LIMIT
    assert (slow.correct, slow.timed_out) == (True, False)
    one = score(strict, f"import time\nn = input()\ntime.sleep({2 * LIMIT} * (n == '3'))\nprint(n)", many)
    assert (one.correct, one.timed_out) == (False, True)
