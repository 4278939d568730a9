"""Claims about verify/programs.py: which block is the program, which tests are read, which output is right."""

import time
from functools import partial
from itertools import count

import pytest
from conftest import rows

from verify import graders, programs

of = partial(rows, "programs")  # the cases of a kind


LONG = "```python\n" + "#" * programs.CODE_CHARS + "\n```"


@pytest.mark.parametrize(
    "row",
    of("block") + [{"answer": LONG, "program": ""}, {"answer": "```python\n" * 100_000, "program": ""}],
    ids=count(),
)
def test_sec2_the_program_is_the_last_python_block(row):
    assert (graders.code(row["answer"], "") or "") == row["program"]


@pytest.mark.parametrize("piece", ["- ```python\n", "```python\nx", "\n```python", " ~~~py", "```\n" + " " * 99])
def test_a_megabyte_of_open_blocks_is_read_in_a_second(piece):
    start = time.thread_time()
    assert not programs.program(piece * (1_000_000 // len(piece))).strip("x\n")[:1].isdigit()
    assert time.thread_time() - start < 2.0  # seconds of CPU; in quadratic time: minutes


@pytest.mark.parametrize("row", of("tests"), ids=count())
def test_the_forms_of_tests_in_use_are_read(row):
    assert programs.read_tests(row["tests"]) == (row["name"], [tuple(case) for case in row["cases"]])


@pytest.mark.parametrize("row", of("output"), ids=count())
def test_stdout_is_right_with_the_same_words_on_the_same_lines_and_fractions_within_1e_6(row):
    assert programs.same_output(row["output"], row["expected"]) is row["right"]
