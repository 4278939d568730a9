"""Claims about plumbing/log.py: what a run shows, on a terminal and without one."""

import pytest

from plumbing import log as screen

STEP = {"kind": "step", "step": 7, "pass_rate": 0.5, "kept": 0, "gpu_hours": 0.25}
STEP |= {"idle_generators": 0.1, "idle_trainers": 0.2}
IDLE = "idle: generators 10%, trainers 20%  0.2500 device-hours"


EVAL = {"kind": "eval", "step": 7, "pass_rate": 0.5, "stderr": 0.25, "completions": 8, "gpu_hours": 0.25}
VALIDATION = "step    7  VALIDATION pass rate 0.500 +- 0.250  (8 completions)  0.2500 device-hours"
TASKS = {"tasks": {"math": 0.5, "aime.jsonl": 0.125}, "tasks_stderr": {"math": 0.25, "aime.jsonl": 0.0625}}


@pytest.mark.parametrize("row, shown", [
    (STEP, f"step    7  pass rate 0.500  kept 0, no gradient  {IDLE}"),
    (STEP | {"kept": 3, "entropy": 1.25, "rho_mean": 1.0, "rho_max": 2.0},
     f"step    7  pass rate 0.500  kept 3  entropy 1.250  rho 1.000 (max 2.00)  {IDLE}"),
    (EVAL | TASKS | {"tasks": {"math": 0.5}}, VALIDATION),
    (EVAL | TASKS, f"{VALIDATION}\n           math  0.500 +- 0.250\n           aime.jsonl  0.125 +- 0.062"),
    ({"kind": "end"}, None),
])  # fmt: skip
def test_a_row_of_the_log_as_it_is_shown(row, shown):
    assert screen.shown(row, "device-hours") == shown


def test_in_virtual_time_only_evaluations_get_a_line(capsys):
    show = screen.Screen(9, "virtual device-hours", virtual=True)
    for row in (STEP, EVAL, STEP):
        show(row)
    show.close()
    assert capsys.readouterr().out == VALIDATION.replace("device", "virtual device") + "\n"


def test_without_a_terminal_every_step_begins_a_line(capsys):
    show = screen.Screen(9, "device-hours")
    for _ in range(2):
        show(STEP)
    show.close()
    printed = capsys.readouterr()
    assert [line[:11] for line in printed.out.splitlines()] == ["step    7  "] * 2
    assert printed.err == "" and "\r" not in printed.out
