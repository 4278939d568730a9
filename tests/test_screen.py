"""Claims about plumbing/screen.py: what a run shows, on a terminal and without one."""

import doctest
import io
import json
from pathlib import Path
from types import SimpleNamespace

import torch
from tqdm import tqdm

import train
from plumbing import fleet, screen

STEP = {"kind": "step", "step": 7, "pass_rate": 0.5, "kept": 3, "gpu_hours": 0.25}
STEP |= {"idle_generators": 0.1, "idle_trainers": 0.2}


def test_docstring_examples_run():
    assert doctest.testmod(screen).failed == 0 < doctest.testmod(screen).attempted


def test_compute_is_called_device_hours():
    row = STEP | {"entropy": 1.25, "rho_mean": 1.0, "rho_max": 2.0}
    shown = "step    7  pass rate 0.500  kept 3  entropy 1.250  rho 1.000 (max 2.00)  "
    assert screen.line(row, "device-hours") == shown + "idle: generators 10%, trainers 20%  0.2500 device-hours"


def test_a_step_without_gradient_shows_no_numbers_of_one():
    shown = "step    7  pass rate 0.500  kept 0, no gradient  idle: generators 10%, trainers 20%  0.2500 device-hours"
    assert screen.line(STEP | {"kept": 0}, "device-hours") == shown
    assert screen.line({"kind": "end"}, "device-hours") is None


def test_one_held_out_prompt_is_one():
    assert screen.counted(1, "held-out prompt") == "1 held-out prompt"
    assert screen.WARNINGS["few held out"].format(count="1 held-out prompt").startswith("only 1 held-out prompt, ")


def test_a_step_that_trains_on_no_token_has_no_entropy_and_no_ratio(monkeypatch):
    monkeypatch.setattr(fleet.dist, "all_reduce", lambda *_, **__: None)
    alone = SimpleNamespace(device="cpu", trainers=None)
    assert fleet.Fleet.total(alone, torch.zeros(6).double(), 0.0) == {}
    found = fleet.Fleet.total(alone, torch.tensor([2.0, 3.0, 2.0, 1.0, 0.0, 2.5]).double(), 1.5)
    # rho 0.5 and 1.5: the effective sample size is 2^2 / (2 * 2.5)
    assert found.pop("effective_sample_size") == 0.8
    assert found == {"entropy": 1.5, "rho_mean": 1.0, "log_rho": 0.5, "clipped": 0.0, "rho_max": 1.5}


def test_without_a_terminal_a_bar_is_lines_with_rate_and_time_left():
    stream = io.StringIO()
    with screen.progress(stream, total=4, unit=" completions") as bar:
        bar.update(3)
        bar.refresh()
    assert "\r" not in stream.getvalue()
    first, *_, last = stream.getvalue().splitlines()
    assert "0/4" in first and "3/4 [" in last and "completions/s" in last


def trainer(out, bar):
    """A Trainer of rank 0 that only logs."""
    run = object.__new__(train.Trainer)
    run.fleet = SimpleNamespace(rank=0, hours="device-hours")
    run.clock = SimpleNamespace(gpu_hours=0.25)
    run.totals = {"tokens": 1, "lost_gpu_hours": 0.0}
    run.version, run.out, run.bar, run.tracker = 7, Path(out), bar, None
    return run


def test_without_a_terminal_every_step_begins_a_line(tmp_path, capsys):
    with tqdm(total=9, disable=None) as bar:  # as Trainer makes it
        run = trainer(tmp_path, bar)
        for _ in range(2):
            run.log(**STEP | {"kept": 0})
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert len(lines) == 2 and all(line.startswith("step    7  ") for line in lines) and printed.err == ""
    assert "\r" not in printed.out


def test_the_figure_of_a_run_is_drawn_again_after_20_seconds(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(train.time, "monotonic", lambda: now)
    run = trainer(tmp_path, None)
    run.drawn = now
    rows = [
        {"kind": "eval", "step": n, "gpu_hours": n / 10, "pass_rate": 0.1 + 0.6 * n / (n + 4), "stderr": 0.01}
        for n in range(12)
    ]
    sizes = []
    for count, now in ((3, 120), (10, 140), (12, 159), (12, 160)):  # three are too few
        text = "".join(json.dumps(row) + "\n" for row in rows[:count])
        (tmp_path / "log.jsonl").write_text(text)
        run.draw()
        drawn = tmp_path / "scaling.png"
        sizes.append(drawn.read_bytes() if drawn.exists() else None)
    assert sizes[0] is None and sizes[1] and sizes[2] == sizes[1] != sizes[3]
