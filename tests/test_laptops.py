"""The course on macOS and Windows, rehearsed on Linux: what those systems lack is taken from the project's code.

Two things differ on a real Windows and are not rehearsed: open files cannot be deleted there, and paths.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parent.parent
TINY = "--data tiny --virtual exact --k 1 --prompts 8 --generations 4 --eval-prompts 8 --eval-every 2 --steps 4".split()
COMMANDS = """exercises.py next
exercises.py list
exercises.py hint cispo 2
exercises.py solve cispo
exercises.py next cispo
-m pytest -v -k cispo
exercises.py train --data tiny --virtual exact --loss cispo --k 0 --steps 2 --out runs/mine
exercises.py pack
"""
PROJECT = """train.py --data arithmetic --virtual exact --prompts 4 --generations 4 --eval-prompts 4 --steps 2 --out OUT
fit.py results/main_seed0.jsonl -o OUT/scaling.png"""
LOSS = """def mine(logprobs, gen_logprobs, advantages, mask):
    return advantages[:, None] * logprobs.masked_fill(~mask, 0)
"""


@pytest.fixture(scope="module", params=["macos", "windows"])
def python(request, tmp_path_factory):
    """A function that runs Python with these words on that system, in a student's folder or another one."""
    folder = tmp_path_factory.mktemp("laptop") / "a class"
    variables = {"REHEARSE": request.param, "PYTHONPATH": str(ROOT / "tests" / "laptop"), "OMP_NUM_THREADS": "1"}
    variables |= {"PYTHONIOENCODING": "cp1252"} if request.param == "windows" else {}

    def run(*words, cwd=folder, code=0):
        done = subprocess.run(
            [sys.executable, *words], cwd=cwd, env=os.environ | variables, capture_output=True, check=False
        )
        said = (done.stdout + done.stderr).decode("cp1252" if request.param == "windows" else "utf-8")
        assert done.returncode == code, said
        return said

    run.system, run.folder = request.param, folder
    run("exercises.py", "start", str(folder), cwd=ROOT)
    return run


def test_the_course_runs_from_start_to_pack(python):
    said = {line: python(*line.split()) for line in COMMANDS.splitlines()}
    assert "cispo: solved" in said["exercises.py next cispo"] and "1 passed" in said["-m pytest -v -k cispo"]
    assert "yours: cispo" in said[COMMANDS.splitlines()[6]]


def test_runs_and_fits_work_in_the_folder_of_the_project(python, tmp_path):
    for line in PROJECT.replace("OUT", str(tmp_path)).splitlines():
        python(*line.split(), cwd=ROOT)


def test_runs_of_tiny_are_compared_a_loss_of_ones_own_among_them(python, tmp_path):
    (tmp_path / "mine.py").write_text(LOSS, encoding="utf-8")
    words = ["cispo: --loss cispo", f"mine: --loss {tmp_path}/mine.py:mine", "--seeds", "1", "--out", str(tmp_path)]
    assert "2 of 2 runs" in python("-m", "lab.compare", *words, *TINY, cwd=ROOT)


def test_an_endless_loop_is_stopped_and_what_needs_linux_says_so_with_the_way_out(python, tmp_path):
    text = (python.folder / "loss.py").read_text(encoding="utf-8")
    stub = 'raise NotImplementedError("ratio is not written yet")'
    assert stub in text
    slow = "import course.checker as c; c.START_SECONDS = c.SECONDS = 6.0; from course.commands import main; main()"
    bodies = "while True: pass", "import os; os.sched_getaffinity(0)"
    endless, planted = (text.replace(stub, body) for body in bodies)
    (python.folder / "loss.py").write_text(endless, encoding="utf-8")
    assert "likely cause: an endless loop" in python("-c", slow, "next", "ratio")
    (python.folder / "loss.py").write_text(planted, encoding="utf-8")
    assert f"{python.system} has no os.sched_getaffinity" in python("exercises.py", "next", "ratio")
    (python.folder / "loss.py").write_text(text, encoding="utf-8")
    (tmp_path / "Ada").mkdir()
    assert "use WSL on Windows, or a container" in python("exercises.py", "grade", str(tmp_path), cwd=ROOT, code=1)
    assert "give --virtual exact" in python(
        "train.py", "--data", "tiny", "--out", str(tmp_path / "x"), cwd=ROOT, code=2
    )
