"""Virtual time: claims about the clock, about who waits for what, and about runs that repeat."""

import copy
import signal
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import ended, read_rows, refuses
from started_runs import at_version

import rollout
import train
from plumbing import checks
from plumbing import log as log_file
from plumbing import virtual as costs
from plumbing.settings import FIELDS
from plumbing.virtual import InOneProcess

# --- What takes time -------------------------------------------------------------------------------------------------

COSTS = costs.TABLE["exact"]._replace(decode=1.0, row=0.25, column=0.125, turn=0.5, broadcast=2.0)


def generator(running, filled=0):
    """What a generator's life yields after a decode step in which so many completions go on, as a stand-in."""
    work = {"decode_seconds": 0.0, "slot_seconds": 0.0}
    return SimpleNamespace(_running=[None] * running, filled=filled, slots=6, work=work), SimpleNamespace(wait=int)


@pytest.fixture
def one_process(tmp_path, monkeypatch):
    """(life, generators) -> an InOneProcess whose generators live such a life, as train.generate is one."""
    assert FIELDS["virtual"].metadata["choices"] == (*costs.TABLE,)
    monkeypatch.setitem(costs.TABLE, "tested", COSTS)
    begun = []

    def make(life, generators=1):
        args = SimpleNamespace(
            virtual="tested", trainers=1, generators=generators, out=tmp_path, resume=False, dtype="float32"
        )
        begun.append(InOneProcess(args, life))
        begun[-1].agree(args)
        return begun[-1]

    yield make
    for processes in begun:
        processes.close()


def test_a_turn_with_a_decode_step_takes_the_seconds_of_the_step_and_of_the_turn(one_process):
    times = []
    decoding, scorer = generator(2, filled=4)

    def life(args, processes, queue):
        while True:
            times.append(processes.clock())
            yield decoding, scorer, [None]  # 2 go on, 1 has ended: 3 rows

    one_process(life).events.sleep(4.0)
    # 1 + 3 / 4 + 3 * 4 / 8 = 3.25 for the step, which decodes in half of the slots; 0.5 for the turn
    assert times == [0.0, 3.75] and decoding.work == {"decode_seconds": 6.5, "slot_seconds": 3.25}


def test_weights_arrive_at_all_receivers_at_once_as_copies(one_process):
    arrived = []

    def life(args, processes, queue):
        processes.receive({"w": (tensor := torch.zeros(2))})
        yield *generator(0), []
        arrived.append((processes.clock(), tensor))
        yield *generator(0), []

    processes = one_process(life, generators=2)
    processes.events.sleep(1.0)
    sent = torch.ones(2)
    processes.broadcast([("w", (2,), sent.dtype)], [sent])
    sent.zero_()  # as the next optimizer step may do before the receivers go on
    processes.events.sleep(1.0)
    assert [(seconds, tensor.tolist()) for seconds, tensor in arrived] == [(3.0, [1.0, 1.0])] * 2


# --- Whole runs ------------------------------------------------------------------------------------------------------

SMALL = (
    "--data tiny --prompts 4 --generations 4 --steps 6 --eval-every 8 --eval-prompts 4 --eval-generations 2 --slots 8 "
    "--lr 1e-3 --warmup 1"
)


def run(out, flags):
    """What a run of train.py in this process logs, without the folder's name and the machine's times."""
    ended(f"{SMALL} {flags} --out {out}")
    return logged(out)


def logged(out):
    """The rows of a run's log, its completions, the policy of its last checkpoint."""
    rows = read_rows(out / "log.jsonl")
    for row in rows:
        row.get("flags", {}).pop("out", None)
        row.pop("seconds" if row["kind"] == "end" else "fit", None)
    policy = sorted(out.glob("checkpoint-*/model.safetensors"))[-1]
    return rows, (out / "completions.jsonl").read_text(), policy.read_bytes()


@pytest.fixture
def at_step(monkeypatch):
    """(version, act): act() in the optimizer step that begins at this version."""

    def change(version, act):
        monkeypatch.setattr(train.Trainer, "gradient_norm", train.Trainer.gradient_norm)  # so that it is put back
        at_version(version, act)

    return change


SETUPS = {
    "pipeline 0": "--virtual balanced --k 0",
    "pipeline 8": "--virtual generators --k 8 --generators 2",
    "ppo 1": "--virtual balanced --off-policy ppo --k 1",
    "exact 2": "--virtual exact --k 2",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{setup: what it logged}"""
    return {name: run(tmp_path_factory.mktemp("run") / "a", flags) for name, flags in SETUPS.items()}


def test_the_same_run_twice_is_the_same_bit_for_bit(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # from another folder
    assert run(tmp_path / "b", SETUPS["pipeline 8"]) == runs["pipeline 8"]


def test_sec31_ppo_off_policy_1_is_pipeline_rl_0_in_every_number(runs):
    (phased, *rest), (pipelined, *expected) = runs["ppo 1"], runs["pipeline 0"]
    assert phased[1:] == pipelined[1:] and rest == expected


def test_exact_makes_every_token_k_steps_old_after_the_first_k_steps(runs):
    rows = [row for row in runs["exact 2"][0] if row["kind"] == "step"]
    assert [set(row["staleness"]) for row in rows] == [{"0"}, {"1"}, {"2"}, {"2"}, {"2"}, {"2"}]


@pytest.mark.parametrize(
    "policy, k, last, half", [("ppo", 4, 8, 7), ("pipeline", 0, 3, None), ("pipeline", 1, None, 3)]
)
def test_a_virtual_run_is_resumed_only_from_where_nothing_was_half_finished(policy, k, last, half):
    args = SimpleNamespace(off_policy=policy, k=k)
    if last:
        checks.check_repeatable(args, last)
    if half:
        refuses("would not repeat", checks.check_repeatable, args, half)


@pytest.mark.parametrize("since", [0, 1])
def test_weights_that_a_generator_does_not_load_as_they_were_sent_end_the_run(tmp_path, monkeypatch, since):
    # Nearly nothing is right then: the comparison may not depend on tokens that carry loss.
    def load(self, version, original=rollout.TorchGenerator.update_weights):
        original(self, version)
        if version >= since:  # what is sent goes elsewhere; the model has others, as after a wrong conversion
            received, model = self.named_weights(), copy.deepcopy(self.model)
            rng = torch.Generator().manual_seed(0)
            for parameter in model.parameters():
                parameter.data += 0.15 * torch.randn(parameter.shape, generator=rng)
            self.model, self.named_weights = model, lambda: received

    monkeypatch.setattr(rollout.TorchGenerator, "update_weights", load)
    flags = f"{SMALL} --virtual balanced --off-policy ppo --k 1 --prompts 8 --lr 1e-4"
    if since:
        assert ended(f"{flags} --out {tmp_path}") == 1
        end = read_rows(tmp_path / "log.jsonl")[-1]
        assert "|log rho| of the youngest tokens" in end["reason"] and end["step"] == 4
    else:
        refuses("does not load the weights", ended, f"{flags} --out {tmp_path}", error=RuntimeError)


def test_a_run_deletes_its_own_older_checkpoints_only(tmp_path, at_step):
    at_step(1, (tmp_path / "checkpoint-1").mkdir)  # without state/: another program's
    run(tmp_path, "--virtual exact --k 0 --checkpoint-every 2")
    assert [folder.name for folder in log_file.finished_checkpoints(tmp_path)] == [f"checkpoint-{n}" for n in (1, 4, 6)]


def test_ctrl_c_ends_a_virtual_run_in_order_and_resumed_it_repeats_every_later_line(runs, tmp_path, at_step):
    at_step(2, partial(signal.raise_signal, signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    assert ended(f"{SMALL} {SETUPS['pipeline 0']} --resume --out {tmp_path}") == 128 + signal.SIGINT  # as shells expect
    assert signal.getsignal(signal.SIGINT) is before
    rows, *_ = logged(tmp_path)
    assert rows[-1]["reason"] == "interrupted: trainer rank 0 got SIGINT"
    (tmp_path / "checkpoint-6" / "state").mkdir(parents=True)  # broken, and in the way of the last one
    ended(f"--resume --out {tmp_path}")
    assert (tmp_path / "checkpoint-3").exists() and (tmp_path / "checkpoint-6-broken1").is_dir()
    again, *rest = logged(tmp_path)
    expected, *whole = runs["pipeline 0"]
    assert rest == whole
    assert again[-3:] == expected[-3:]  # step 6, its evaluation, the end
