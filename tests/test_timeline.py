"""The timeline: what a run of known times says, recorded in virtual time."""

import json

import pytest

import fit
import train
from plumbing import fit_cli, settings, timeline


@pytest.fixture
def recorded(tmp_path):
    """A run of three steps: 4 s of decoding by two generators, 1 s of training, 0.5 s of broadcast; k = 0."""
    folder = tmp_path / "pipeline-0"
    folder.mkdir()
    recorder = timeline.Recorder(folder)
    for step in range(3):
        began = 5.5 * step
        for rank in (1, 2):
            recorder.completion(rank, began, began + 2, step, False)
            recorder.completion(rank, began, began + 4, step, False)
            recorder.completion(rank, began + 2, began + 3, step, step == 1)
        recorder.gradient(began + 4, began + 5)
        recorder.broadcast(began + 5, began + 5.5)
    return folder


def test_what_is_recorded_is_read_again(recorded):
    found = timeline.read(recorded)
    assert found.name == "pipeline-0" and found.gradients == {0: (4, 5), 1: (9.5, 10.5), 2: (15, 16)}
    assert found.broadcasts == [(5, 5.5), (10.5, 11)]  # the last has no later optimizer step
    assert found.completions[1][:3] == (three := [(0, 2, 0), (0, 4, 0), (2, 3, 0)])
    assert timeline.lanes(three) == [(0, three[0]), (1, three[1]), (0, three[2])]  # where they overlap
    assert found.evaluations == [(7.5, 8.5)]


def test_a_resumed_run_goes_on_where_its_timeline_ends_and_half_a_line_is_left_out(recorded):
    with (recorded / timeline.FILE).open("a") as file:
        file.write('{"step": 3, "gra')
    recorder = timeline.Recorder(recorded, step=3)
    recorder.gradient(1.0, 2.0)  # joins the half line
    recorder.gradient(3.0, 4.0)
    assert timeline.read(recorded).gradients == {0: (4, 5), 1: (9.5, 10.5), 2: (15, 16), 4: (19, 20)}


def test_the_time_of_some_steps_begins_where_the_step_before_them_ends(recorded):
    found = timeline.read(recorded)
    assert timeline.window(found, (1, 3)) == (5, 16)
    with pytest.raises(fit.BadInput, match="--steps 7 9, expected steps below 3"):
        timeline.window(found, (7, 9))


def test_the_command_draws_runs_and_refuses_what_it_does_not_read(recorded, tmp_path, capsys):
    fit_cli.main(["--timeline", str(recorded), str(recorded), "-o", str(tmp_path / "two.png")])
    assert (tmp_path / "two.png").stat().st_size > 10_000
    for wrong, message in (
        (["--timeline", str(recorded), "--json"], "--json, which has no effect here"),
        (["--timeline"], "got no RUN"),
        (["--timeline", str(tmp_path)], "found no timeline.jsonl"),
    ):
        with pytest.raises(SystemExit):
            fit_cli.main(wrong)
        assert message in capsys.readouterr().err


def test_a_virtual_run_writes_its_timeline_and_is_fitted_by_its_virtual_device_hours(tmp_path, capsys):
    small = "--prompts 2 --generations 2 --k 1 --steps 6 --eval-every 1 --eval-prompts 4 --eval-generations 2 --slots 3"
    argv = ["--data", "tiny", "--virtual", "balanced", *small.split(), "--out", str(tmp_path)]
    train.main(settings.read_settings(argv))
    found = timeline.read(tmp_path)
    steps = [row for row in map(json.loads, (tmp_path / "log.jsonl").open()) if row["kind"] == "step"]
    assert sorted(found.gradients) == list(range(6)) and len(found.evaluations) >= 5
    for row, (began, ended) in zip(steps, found.gradients.values()):
        assert ended - began == pytest.approx(row["seconds_train"], rel=0.05)
    begun = [version for bars in found.completions.values() for *_, version in bars]
    assert len(begun) >= 6 * 2 * 2 and set(begun) <= set(range(7))
    # as many at a time as there are slots
    assert max(lane for bars in found.completions.values() for lane, _ in timeline.lanes(bars)) == 3 - 1
    assert "no fit: " not in capsys.readouterr().out
