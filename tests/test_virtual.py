"""Virtual time: claims about the clock, about pauses that end when they should, and about runs that repeat."""

import ast
import json
import math
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import test_pipeline
import torch

import pipeline
import train
from plumbing import checkpoints, costs, flags, logs, virtual_run
from plumbing.virtual import Store, Wire, World

# --- Clock, store, weights -------------------------------------------------------------------------------------------


def played(*actors):
    """What actors (world, store, note) noted, as (virtual seconds, text), when they ran together."""
    world, noted = World(), []
    store = Store(world)

    def bound(actor):
        return lambda: actor(world, store, lambda text: noted.append((world.now, text)))

    world.run({f"actor {number}": bound(actor) for number, actor in enumerate(actors)})
    return noted


def sleeper(*seconds):
    def act(world, store, note):
        for wait in seconds:
            world.sleep(wait)
            note(f"slept {wait}")

    return act


def test_time_passes_only_while_all_sleep_and_the_first_due_goes_on():
    noted = played(sleeper(3.0, 3.0), sleeper(4.0), sleeper(0.0))
    assert noted == [(0.0, "slept 0.0"), (3.0, "slept 3.0"), (4.0, "slept 4.0"), (6.0, "slept 3.0")]


def writer(wait, key):
    def act(world, store, note):
        world.sleep(wait)
        store.set(key, b"")

    return act


def reader(key, work, other=()):
    def act(world, store, note):
        while not store.check([*other, key]):
            world.sleep(work)  # as a generator decodes between a look at the news and its pause
            world.pause()
            note("woken")

    return act


def test_a_pause_ends_when_a_key_is_written_that_was_missing_when_it_was_read():
    assert played(reader("a", 0.0), writer(2.0, "a")) == [(2.0, "woken")]
    assert played(reader("a", 0.0), writer(2.0, "b"), writer(3.0, "a")) == [(3.0, "woken")]


def test_what_is_written_between_a_look_and_the_pause_ends_the_pause_at_once():
    assert played(reader("a", 5.0), writer(2.0, "a")) == [(5.0, "woken")]  # not never: it was written at 2


def test_what_an_actor_has_read_ends_its_pause_though_it_has_waited_for_another_key_meanwhile():
    def act(world, store, note):
        assert not store.check(["a"])
        world.wait(["b"], 3.0)
        world.pause()
        note("woken")

    assert played(act, writer(2.0, "a")) == [(3.0, "woken")]
    assert played(act, writer(4.0, "a")) == [(4.0, "woken")]


def test_of_several_missing_keys_a_reader_waits_for_one_after_the_other():
    assert played(reader("b", 0.0, ["a"]), writer(1.0, "b"), writer(2.0, "a")) == [(2.0, "woken")]


def test_a_counter_read_with_add_0_wakes_its_readers_but_beats_wake_nobody():
    def act(world, store, note):
        for key in ("beat/1", "news/count"):
            store.add(key, 0)
        world.pause()
        note("woken")

    def count(key):
        return lambda world, store, note: store.add(key, 1)

    def late(world, store, note):
        world.sleep(7.0)
        store.add("news/count", 1)

    assert played(act, count("beat/1"), late) == [(7.0, "woken")]


def test_when_all_wait_the_error_says_who_waits_for_what():
    with pytest.raises(RuntimeError, match=r"all actors wait, at 2.000 .*: actor 0 for a; actor 1 for b, c$"):
        played(reader("a", 2.0), lambda world, store, note: world.wait(["b", "c"]))


def test_the_error_of_an_actor_is_raised_where_the_leader_waits_and_the_others_clear_up():
    cleared = []

    def leader(world, store, note):
        with pytest.raises(ZeroDivisionError):
            world.pause()
        cleared.append("leader")

    def failing(world, store, note):
        world.sleep(1.0)
        raise ZeroDivisionError

    def third(world, store, note):
        try:
            world.sleep(math.inf)
        finally:
            cleared.append("third")

    played(leader, failing, third)
    assert cleared == ["leader", "third"]


def test_an_error_after_the_leader_has_ended_is_raised_by_run():
    def failing(world, store, note):
        world.sleep(1.0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        played(sleeper(0.0), failing)


def test_weights_arrive_at_all_receivers_at_once_and_are_copies():
    tensors = [torch.zeros(2) for _ in range(2)]
    sent = torch.ones(2)
    world = World()
    wire = Wire(world, 0.5)
    times = []

    def lead():
        world.sleep(1.0)
        wire.send({"w": sent})
        sent.zero_()  # as the next optimizer step may do before the receivers go on

    def receive(tensor):
        wire.receive({"w": tensor})
        times.append(world.now)

    world.run({"lead": lead} | {f"generator {n}": lambda tensor=t: receive(tensor) for n, t in enumerate(tensors)})
    assert times == [1.5, 1.5]
    assert all(torch.equal(tensor, torch.ones(2)) for tensor in tensors)


@pytest.mark.parametrize("k", [0, 3])
def test_waking_and_polling_take_the_same_time_within_1_percent(k, monkeypatch):
    monkeypatch.setattr(pipeline, "LONGEST_POLL", pipeline.POLL)  # else a poll comes up to 50 ms late
    # Equal generators: of unequal ones, who sees a request first claims it, so that a poll can move whole completions.
    setting = test_pipeline.Setting(k=k, steps=4, training=360, generators=((120, 4), (120, 4)), prompts=3)
    polled, woken = (test_pipeline.simulate(setting, waking=waking)[0] for waking in (False, True))
    assert woken.elapsed == pytest.approx(polled.elapsed, rel=0.01)
    assert woken.decoding == pytest.approx(polled.decoding, rel=0.01)
    assert woken.batches.keys() == polled.batches.keys()


def test_a_verdict_that_timed_out_is_said_once_to_break_the_repetition(capsys):
    def score(number):
        completion = SimpleNamespace(request=0, index=number)
        return SimpleNamespace(completion=completion, timed_out=True)

    scorer = SimpleNamespace(finished=lambda: [score(1), score(0)], pending=0)
    fleet = SimpleNamespace(virtual=SimpleNamespace(sleep=lambda seconds: None), costs=costs.BALANCED)
    prompt = virtual_run.PromptScorer(scorer, SimpleNamespace(stepped=True), fleet)
    assert [one.completion.index for one in prompt.finished() + prompt.finished()] == [0, 1, 0, 1]
    assert capsys.readouterr().out.count("this run may not repeat bit for bit") == 1


# --- Whole runs ------------------------------------------------------------------------------------------------------

SMALL = (
    "--data tiny --prompts 4 --generations 4 --steps 6 --eval-every 8 --eval-prompts 4 --eval-generations 2 --slots 8 "
    "--lr 1e-3 --warmup 1"
).split()


def run(out, *flags):
    """Run train.py in this process; returns what it logged, without the folder's name and the machine's times."""
    train.main([*SMALL, *flags, "--out", str(out)])
    return logged(out)


def logged(out):
    """The rows of a run's log, its completions, the policy of its last checkpoint."""
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    for row in rows:
        row.get("flags", {}).pop("out", None)
        row.pop("seconds" if row["kind"] == "end" else "fit", None)
    return (
        rows,
        (out / "completions.jsonl").read_text(),
        sorted(out.glob("checkpoint-*/model.safetensors"))[-1].read_bytes(),
    )


def ages(rows):
    """[{age: tokens} of each step]"""
    return [row["staleness"] for row in rows if row["kind"] == "step"]


SETUPS = {
    "pipeline 0": "--virtual balanced --k 0",
    "pipeline 8": "--virtual generators --k 8 --generators 2",
    "ppo 1": "--virtual balanced --off-policy ppo --k 1",
    "ppo 8": "--virtual trainers --off-policy ppo --k 8",
    "exact 2": "--virtual exact --k 2",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{setup: what it logged}"""
    return {name: run(tmp_path_factory.mktemp("run") / "a", *flags.split()) for name, flags in SETUPS.items()}


@pytest.mark.parametrize("setup", ["pipeline 0", "pipeline 8", "ppo 8"])
def test_the_same_run_twice_is_the_same_bit_for_bit_beside_a_busy_core_and_from_another_folder(
    runs, setup, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        again = run(tmp_path / "b", *SETUPS[setup].split())
    finally:
        busy.kill()
        busy.wait()
    assert again == runs[setup]


def test_the_log_has_lengths_and_the_effective_sample_size(runs):
    rows = [row for row in runs["exact 2"][0] if row["kind"] == "step"]
    assert all(0 < row["length_mean"] <= row["length_max"] <= 12 for row in rows)
    sizes = [row["effective_sample_size"] for row in rows if "rho_mean" in row]
    assert sizes[0] == pytest.approx(1.0, abs=1e-6) and all(0 < size <= 1.0 for size in sizes)


def test_a_small_run_does_train(runs):
    for rows, _, weights in runs.values():
        assert sum(row["kept"] for row in rows if row["kind"] == "step") > 0
        assert weights != (flags.ROOT / "base" / "tiny" / "model.safetensors").read_bytes()


def test_sec31_ppo_off_policy_1_is_pipeline_rl_0_in_every_number(runs):
    (phased, *rest), (pipelined, *expected) = runs["ppo 1"], runs["pipeline 0"]
    assert phased[1:] == pipelined[1:] and rest == expected


def test_exact_makes_every_token_k_steps_old_after_the_first_k_steps(runs):
    assert [set(found) for found in ages(runs["exact 2"][0])] == [{"0"}, {"1"}, {"2"}, {"2"}, {"2"}, {"2"}]


def test_the_log_says_with_which_costs_it_is_virtual(runs):
    config = runs["pipeline 8"][0][0]
    assert config["flags"]["virtual"] == "generators" and config["flags"]["generators"] == 2
    assert costs.Costs(*config["flags"]["costs"]) == costs.TABLE["generators"]
    assert (config["world"], config["threads"]) == (1, 1)


def test_the_figures_axis_says_that_device_hours_are_virtual(runs, tmp_path):
    rows = runs["pipeline 0"][0]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert logs.read_run(tmp_path).unit == "virtual gpu_hours"
    assert logs.read_run(tmp_path, "tokens").unit == "tokens"


@pytest.mark.parametrize("off_policy, k, version, goes_on", [
    ("pipeline", 0, 3, True), ("ppo", 1, 3, True), ("ppo", 4, 8, True), ("ppo", 4, 7, False), ("pipeline", 1, 3, False),
])  # fmt: skip
def test_a_virtual_run_is_resumed_only_from_where_nothing_was_half_finished(off_policy, k, version, goes_on):
    refusals = []
    flags.check_repeatable(SimpleNamespace(off_policy=off_policy, k=k), version, refusals.append)
    assert bool(refusals) != goes_on


def test_a_folder_that_another_run_has_taken_or_a_full_disk_is_what_a_virtual_run_says(tmp_path, monkeypatch):
    def full(out):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "own", full)
    with pytest.raises(SystemExit, match="train.py: error: .*No space left on device; .* holds no checkpoint yet"):
        run(tmp_path / "a", *"--virtual exact --k 0".split())


def test_a_run_deletes_its_own_older_checkpoints_only(tmp_path, monkeypatch):
    def step(self, plan, original=train.Trainer.gradient_step):
        (tmp_path / "a" / "checkpoint-1").mkdir(exist_ok=True)  # without state/: another program's
        return original(self, plan)

    monkeypatch.setattr(train.Trainer, "gradient_step", step)
    run(tmp_path / "a", *"--virtual exact --k 0 --checkpoint-every 2".split())
    assert [folder.name for folder in checkpoints.finished(tmp_path / "a")] == [f"checkpoint-{n}" for n in (1, 4, 6)]


def test_lines_about_changed_settings_are_printed_in_virtual_time_too(tmp_path, capsys):
    run(tmp_path / "a", *"--virtual exact --k 0 --resume --steps 1".split())
    assert f"--resume: no checkpoint in {tmp_path / 'a'}: starts anew" in capsys.readouterr().out


def test_ctrl_c_ends_a_virtual_run_in_order_with_a_checkpoint(tmp_path, monkeypatch):
    steps = []

    def step(self, plan, original=train.Trainer.gradient_step):
        steps.append(self.version)
        if self.version == 2:
            signal.raise_signal(signal.SIGINT)
        return original(self, plan)

    monkeypatch.setattr(train.Trainer, "gradient_step", step)
    before = signal.getsignal(signal.SIGINT)
    code = train.main([*SMALL, *"--virtual balanced --k 0".split(), "--out", str(tmp_path / "a")])
    assert code == 128 + signal.SIGINT  # so that a loop in a shell ends too
    rows, *_ = logged(tmp_path / "a")
    assert steps == [0, 1, 2] and (tmp_path / "a" / "checkpoint-2").exists()
    assert rows[-1]["reason"] == "interrupted: trainer rank 0 got SIGINT"
    assert signal.getsignal(signal.SIGINT) is before  # a notebook goes on


def test_a_virtual_run_resumed_after_ctrl_c_repeats_every_later_line(runs, tmp_path, monkeypatch):
    def step(self, plan, original=train.Trainer.gradient_step):
        if self.version == 3 and "resume" not in self.args.asked:
            signal.raise_signal(signal.SIGINT)
        return original(self, plan)

    monkeypatch.setattr(train.Trainer, "gradient_step", step)
    run(tmp_path / "a", *SETUPS["pipeline 0"].split())
    train.main(["--resume", "--out", str(tmp_path / "a")])
    rows, completions, weights = logged(tmp_path / "a")
    expected, *rest = runs["pipeline 0"]
    assert rest == [completions, weights]
    first = rows[next(n for n, row in enumerate(rows) if row["kind"] == "end") + 2]  # after a second config
    whole = next(row for row in expected if row["kind"] == "step" and row["step"] == 4)
    of_its_clock = {"seconds", "seconds_generate", "seconds_publish", "idle_generators", "idle_trainers"}
    of_its_clock |= {"slots_used", "decode_seconds"}
    assert {name for name in whole if first[name] != whole[name]} <= of_its_clock  # it begins after a broadcast
    assert rows[-3:] == expected[-3:]  # step 6, its evaluation, the end


def disguised(rows, path, *, generators=1, without=()):
    """The log of a run in virtual time as if the run had been real, with one trainer."""
    rows = [{name: value for name, value in row.items() if name not in without} for row in rows]
    own = {name: value for name, value in rows[0]["flags"].items() if name not in ("virtual", "generators", "costs")}
    rows[0] |= {"flags": own, "world": 1 + generators}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"measured:{path}"


def test_measured_finds_the_costs_of_a_run_again(runs, tmp_path):
    training = costs.named(disguised(runs["pipeline 0"][0], tmp_path / "a.jsonl"))
    assert training.token == pytest.approx(costs.BALANCED.token)  # counted, so the factor is 1
    decoding = costs.named(disguised(runs["pipeline 8"][0], tmp_path / "b.jsonl", generators=2))
    assert decoding.decode == pytest.approx(costs.BALANCED.decode, rel=0.3)  # slots are not always full
    assert decoding.broadcast == pytest.approx(costs.BALANCED.broadcast, rel=0.15)
    assert decoding.turn == pytest.approx(costs.BALANCED.turn, abs=0.1 * costs.BALANCED.decode)


def test_what_a_log_says_of_turns_is_read_where_trainers_wait_longer_than_generators():
    row = {"seconds": 2.0, "seconds_publish": 0.11, "seconds_generate": 1.5, "decode_seconds": {"1": 0.01, "2": 0.02}}
    waits = row | {"idle_trainers": 0.3, "idle_generators": 0.2}
    other = row | {"idle_trainers": 0.0, "idle_generators": 0.9}
    found = costs.between([waits, other], slower=3.0)
    assert found == {"turn": pytest.approx(0.3 / 100), "broadcast": pytest.approx(0.1)}  # 0.11 - 2 / 3 * 0.015
    assert costs.between([other], slower=3.0)["turn"] == pytest.approx(3 * costs.BALANCED.turn)


def test_a_virtual_run_needs_nothing_that_other_systems_lack(tmp_path, monkeypatch):
    for module, name in ((os, "fork"), (os, "setsid"), (os, "killpg"), (signal, "SIGUSR1"), (checkpoints, "fcntl")):
        monkeypatch.delattr(module, name)
    monkeypatch.setattr(checkpoints, "fcntl", None, raising=False)
    rows, *_ = run(tmp_path / "a", *SETUPS["exact 2"].split())
    assert rows[-1]["reason"] == "finished"


def test_no_module_that_train_needs_imports_at_its_top_what_windows_lacks():
    found = []
    for path in [*flags.ROOT.glob("*.py"), *flags.ROOT.glob("plumbing/*.py"), *flags.ROOT.glob("verify/*.py")]:
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.Import):
                found += [path.name for one in statement.names if one.name in ("fcntl", "resource", "pwd", "termios")]
    assert not found


def test_measured_says_which_column_a_log_lacks_and_refuses_virtual_logs(runs, tmp_path):
    with pytest.raises(ValueError, match="without seconds_train"):
        costs.named(disguised(runs["ppo 8"][0], tmp_path / "a.jsonl", without=("seconds_train",)))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in runs["ppo 8"][0]))
    with pytest.raises(ValueError, match="expected the log of a real run"):
        costs.named(f"measured:{tmp_path / 'b.jsonl'}")
    with pytest.raises(OSError):
        costs.named(f"measured:{tmp_path / 'none'}")


@pytest.mark.parametrize(
    "argv, said",
    [
        ("--virtual fast", "--virtual fast: expected one of exact, generators, balanced, trainers"),
        ("--generators 2", "--generators is read with --virtual only"),
        ("--virtual exact --generator vllm", "--virtual with --generator vllm"),
    ],
)
def test_what_virtual_time_cannot_do_is_refused(capsys, argv, said):
    with pytest.raises(SystemExit) as end:
        flags.settings(argv.split())
    assert end.value.code == 2 and said in capsys.readouterr().err


def test_several_processes_are_refused(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        flags.settings(["--virtual", "exact"])
    assert "single process" in capsys.readouterr().err
