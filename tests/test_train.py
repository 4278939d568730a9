"""Claims about train.py: one optimizer step (Sec. 3.2), evaluations, whole runs (Sec. 2, 3.1).

Whole runs are real processes on the CPU, with gloo. Runs that need no launcher are forked from one process that
has imported everything, since importing takes longer than such a run. Runs use base/ and small batches; runs that are
compared have a learning rate or a k at which nothing depends on timing.
"""

import math
import signal
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from conftest import (
    alone,
    batch,
    check_exercise,
    ended,
    given,
    read_rows,
    refuses,
    sampled,
    tiny_model,
    trained,
    write_rows,
)
from started_runs import BASE, Run, at_version
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from transformers import AutoModelForCausalLM

import data
import precision
import sft
import train
from plumbing import checkpoints
from plumbing import log as run_log

# --- One optimizer step ----------------------------------------------------------------------------------------------


RIGHT, WRONG = ([3, 4, 5, 6], [3, 4, 7, 8])  # a prompt of two tokens, and two answers


def update(trainer, groups):
    """One optimizer step of a Trainer on these groups; returns its metrics."""
    return trainer.update(trainer.divide(groups))


def lone_trainer():
    """A Trainer at version 6 in this process alone, with stand-ins for the queue and the other processes."""
    trainer = object.__new__(train.Trainer)
    trainer.args = given("--lr 0.1 --warmup 14 --weight-decay 0.5")
    trainer.policy = precision.PolicyModel(tiny_model(num_hidden_layers=1), dtype=torch.float32)
    trainer.replay = lambda experts: None
    trainer.optimizer = torch.optim.AdamW(trainer.policy.parameters(), lr=9.0, weight_decay=9.0)
    trainer.version = 6
    trainer.first_weights = trainer.saved_version = None
    answers = {correct: sampled(ids[:2], ids[2:], [-2.9, -2.9]) for correct, ids in ((True, RIGHT), (False, WRONG))}
    taken = lambda rollouts: [answers[rollout.correct] for rollout in rollouts]  # noqa: E731
    trainer.queue = SimpleNamespace(tokens=taken, drop=lambda rollouts: None)
    one = dict(rank=0, trainer_ranks=range(1), device="cpu", dtype=torch.float32)
    trainer.processes = SimpleNamespace(**one, stop_together=lambda tokens: None, total=alone, any_trainer=bool)
    return trainer


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.policy.parameters()])


def test_a_step_makes_right_answers_likelier_and_wrong_ones_less_likely():
    trainer = lone_trainer()

    def chances():
        return trainer.policy(torch.tensor([RIGHT, WRONG]))[0][:, 1:].sum(-1).tolist()

    right, wrong = chances()
    update(trainer, batch([True, False]))
    assert chances()[0] > right and chances()[1] < wrong


def test_without_any_gradient_the_weights_stand_still_but_the_version_goes_on():
    trainer = lone_trainer()
    before = weights(trainer)
    metrics = update(trainer, batch([True, True], [False, False]))
    assert trainer.version == 7 and metrics.gradient_norm == 0
    # An optimizer step on a zero gradient would still shrink the weights, by the weight decay.
    assert torch.equal(before, weights(trainer))


@pytest.mark.parametrize("value", [1.0, math.nan])
def test_a_gradient_that_is_not_finite_leaves_the_weights_as_they_are(value):
    trainer = lone_trainer()
    before, measure = weights(trainer), trainer.gradient_norm

    def poisoned():
        trainer.policy.model.model.norm.weight.grad[0] = value  # one number of one parameter
        return measure()

    trainer.gradient_norm = poisoned
    assert update(trainer, batch([True, False])).skipped == math.isnan(value) and trainer.version == 7
    assert torch.equal(before, weights(trainer)) == math.isnan(value)


def test_weights_that_are_not_finite_are_never_written(monkeypatch):
    trainer = lone_trainer()
    monkeypatch.setattr(checkpoints, "save", lambda *_, **__: pytest.fail("written"))
    list(trainer.policy.parameters())[-1].data[0] = float("inf")
    refuses("weights of step 6 are not finite", trainer.checkpoint, error=FloatingPointError)


def test_a3_the_learning_rate_rises_linearly_whatever_a_checkpoint_held():
    check_exercise(train, "warm-up")
    trainer = lone_trainer()  # the seventh step of fourteen
    assert update(trainer, batch([True, True])).lr == 0.05
    [group] = trainer.optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.05, 0.5)


# --- Evaluations -----------------------------------------------------------------------------------------------------


def test_eq1_a_validation_costs_no_compute_and_a_benchmark_in_it_has_its_own_curve():
    now = [0.0]
    curves = [data.Prompt(0, (1,), "", "", "math"), data.Prompt(1, (1,), "", "", "math", 1, curve="aime.jsonl")]
    groups = batch([True, True, False, False], [True, False, False, False])
    queue = SimpleNamespace(evaluate=lambda *_: now.append(now.pop() + 100) or (groups, []))
    log = MagicMock(clock=run_log.Clock(2, read=lambda: now[0]))
    args = SimpleNamespace(eval_generations=4, out=".")
    run = SimpleNamespace(args=args, queue=queue, log=log, version=7, decoder=None, validation=curves, benchmarks={1})
    log.clock.start()
    train.Trainer.evaluate(run)
    now[0] += 18
    assert log.clock.gpu_hours == pytest.approx(2 * 18 / 3600) and run.evaluated_version == 7
    row = log.call_args.kwargs
    assert row["pass_rate"] == 0.5 and row["completions"] == 4 and row["tasks"] == {"math": 0.5, "aime.jsonl": 0.25}


@pytest.mark.processes
def test_an_evaluation_by_several_ranks_is_that_of_one_and_says_mean_and_pass_at_k(capsys, start):
    sums = data.examples("arithmetic", 7, seed=1, held_out=True)
    write_rows("rows.jsonl", [{"prompt": text, "answer": answer, "task": "arithmetic"} for text, answer in sums])
    flags = f"--evaluate {BASE} --generations 4 --slots 32 --data rows.jsonl"
    assert not ended(f"{flags} --out found")
    printed, alone = capsys.readouterr().out, read_rows("found/evaluation.jsonl")
    shared = start(2, flags).finish()
    together = read_rows(shared.out / "evaluation.jsonl")
    assert sorted(map(str, together)) == sorted(map(str, alone))  # the same seeds: only the order differs
    assert all(shared.text.count(line) == 1 for line in printed.splitlines())  # one rank says it
    right = [sum(row["correct"] for row in alone if row["prompt"] == text) for text, _ in sums]
    assert f"mean@4   {sum(right) / 28:.4f} +- " in printed
    assert f"pass@4   {sum(map(bool, right)) / 7:.4f} +- " in printed


# --- Whole runs ------------------------------------------------------------------------------------------------------


# k = 0: each batch is sampled with the weights that it then updates, whatever the timing.
ON_POLICY = (
    "--data tiny --k 0 --prompts 8 --generations 12 --slots 96 --eval-every 1 --eval-prompts 2 --eval-generations 1 "
    "--token-budget 8192"
)


@pytest.fixture(scope="module")
def one_trainer(forks, tmp_path_factory):
    """A step of pipeline --k 0 with one trainer and one generator, in one micro-batch."""
    return Run(tmp_path_factory.mktemp("one") / "run").fork(forks, 2, f"{ON_POLICY} --steps 1").finish()


def first_moment(run, version):
    """AdamW's running mean of gradients, all parameters in one vector; after the first step 0.9 * 0 + 0.1 g."""
    dcp_to_torch_save(run.out / f"checkpoint-{version}" / "state", run.out / "state.pt")
    state = torch.load(run.out / "state.pt", weights_only=True)["optimizer"]["state"]
    return torch.cat([moments["exp_avg"].flatten() for _, moments in sorted(state.items())])


def assert_close(got, expected, relative):
    """The difference of two vectors is shorter than `relative` times the expected vector."""
    assert torch.linalg.norm(got - expected) < relative * torch.linalg.norm(expected)


@pytest.mark.processes
def test_two_trainers_have_the_gradient_of_one(one_trainer, start):
    # With a budget of 32 tokens the first step needs four micro-batches on each of two ranks.
    pair = start(3, f"{ON_POLICY} --steps 1 --trainers 2 --token-budget 32").finish()
    first, reference = pair.rows("step")[0], one_trainer.rows("step")[0]
    assert first["kept"] > 0 and first["tokens_trained"] / 32 > 6
    assert all(first[name] == reference[name] for name in ("prompts", "pass_rate", "tokens"))
    # fp32 sums in another order; a mean over ranks instead of the sum would be off by 0.5.
    gradient = first_moment(one_trainer, 1) / 0.1
    assert_close(first_moment(pair, 1) / 0.1, gradient, 1e-4)
    assert first["gradient_norm"] == pytest.approx(torch.linalg.norm(gradient).item(), rel=1e-4)
    assert first["gradient_norm"] == pytest.approx(reference["gradient_norm"], rel=1e-4)


@pytest.mark.processes
def test_a_finished_run_leaves_a_log_samples_of_every_evaluation_and_a_checkpoint(one_trainer):
    assert [row["kind"] for row in one_trainer.log] == ["config", "eval", "step", "eval", "end"]
    first, last = one_trainer.rows("eval")
    assert (first["step"], first["gpu_hours"], first["tokens"]) == (0, 0, 0)  # R_0, at C = 0
    assert last["step"] == 1 and last["gpu_hours"] > 0
    assert one_trainer.log[-1]["reason"] == "finished"
    assert {sample["step"] for sample in read_rows(one_trainer.out / "completions.jsonl")} == {0, 1}
    assert AutoModelForCausalLM.from_pretrained(one_trainer.out / "checkpoint-1").config.model_type == "qwen3"


# --- Ends and new beginnings -----------------------------------------------------------------------------------------


@pytest.fixture
def short_epochs(tmp_path):
    """Flags of a run into its second epoch; it depends on its history, not on timing: its weights hardly move."""
    file = tmp_path / "rows.jsonl"
    rows = [
        {"prompt": text, "answer": answer, "task": "arithmetic"}
        for text, answer in data.examples("tiny", 32, seed=1, held_out=False)
    ]
    write_rows(file, rows)
    return (
        f"--model {BASE}/tiny --data {file} --lr 1e-12 --prompts 4 --k 1 --generations 4 --no-positive-resampling 0.5 "
        "--max-new-tokens 12 --max-prompt-tokens 8 --interrupt-at 8 9 --interrupt-phrase </think> --slots 32 "
        "--token-budget 4096 --eval-every 2 --eval-generations 2 --steps 12"
    )


@pytest.mark.processes
def test_a_killed_trainer_is_named_and_its_run_goes_on_with_the_same_batches(start, short_epochs, tmp_path, forks):
    uninterrupted = start(2, short_epochs, out=tmp_path / "uninterrupted").finish()
    assert uninterrupted.rows("step")[-1]["retired"] > 0 and uninterrupted.rows("step")[-1]["epoch"] > 1.5
    run = start(2, short_epochs, fault=partial(at_version, 4, partial(signal.raise_signal, signal.SIGKILL)))
    assert run.end() == {0: -signal.SIGKILL, 1: 1}
    assert f"trainer rank 0 ended; {run.out} holds a checkpoint of step {run.version}" in run.text
    before, version = len(run.log), run.version
    run.fork(forks, 2, "--resume").finish()
    assert run.log[-1]["reason"] == uninterrupted.log[-1]["reason"]
    for row in run.rows("step"):
        wanted = uninterrupted.rows("step")[row["step"] - 1]
        assert all(row[name] == wanted[name] for name in ("step", "prompts", "pass_rate", "retired", "lr")), row
    counted = [row for row in run.log[:before] if row["step"] <= version] + run.log[before:]
    assert [row["step"] for row in counted if row["kind"] == "step"] == list(range(1, 13))
    # Equal batches and weights give equal gradients; the optimizer must still hold those from before the interruption.
    assert_close(first_moment(run, 12), first_moment(uninterrupted, 12), 1e-3)


# --- Your own model and data -----------------------------------------------------------------------------------------


def test_a_model_folder_and_a_jsonl_file_train(signs):
    tokenizer = sft.tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{% if add_generation_prompt %}={% endif %}"
    tokenizer.save_pretrained("model")
    sizes = dict(vocab_size=len(tokenizer), num_hidden_layers=1, bos_token_id=None)
    tiny_model("llama", eos_token_id=tokenizer.eos_token_id, **sizes).save_pretrained("model")
    write_rows("rows.jsonl", [{"prompt": f"{n + 1}-{n}", "answer": 1, "task": "math"} for n in range(12)])
    flags = (
        "--virtual exact --model model --data rows.jsonl --steps 1 --prompts 4 --k 1 --generations 4 "
        "--max-new-tokens 8 --max-prompt-tokens 8 --slots 32 --eval-generations 2 "
        "--interrupt-at 1 3 --interrupt-phrase </think>"
    )
    _, first, step, second, _ = trained(flags)
    assert step["kept"] > 0 and step["gradient_norm"] > 0 and step["unverified"] == 0
    assert step["log_rho"] < 1e-4  # nats: both sides hold the same fp32 weights at step 0
    assert (first["step"], second["step"], second["kind"]) == (0, 1, "eval")
    sample = read_rows("run/completions.jsonl")[0]
    assert sample["prompt"].endswith("=") and sample["answer"] == "1"  # the chat template wrote the =
    assert AutoModelForCausalLM.from_pretrained("run/checkpoint-1").config.model_type == "llama"
