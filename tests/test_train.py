"""Claims about train.py and plumbing/batches.py: one optimizer step (Sec. 3.2), evaluations, whole runs (Sec. 2, 3.1).

Whole runs are real processes on the CPU, with gloo. Runs that need no launcher are forked from one process that
has imported everything, since importing takes longer than such a run. Runs use base/ and small batches; runs that are
compared have a learning rate or a k at which nothing depends on timing.
"""

import itertools
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import data
import loss
import pipeline
import precision
import reward
import sft
import train
from plumbing import batches, build, run_folder, run_log, sources
from plumbing.run_folder import finished
from plumbing.settings import read_settings
from verify.graders import OWN, UNREADABLE

ROOT = Path(train.__file__).parent
BASE = ROOT / "base"
PATIENCE = 240  # seconds for a run of a few seconds, on a machine that is busy with something else


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Every test runs in an empty folder and without a launcher's variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def refused(capsys, *argv):
    """The line with which train.py refuses these flags; exit code 2 is that of a usage error."""
    with pytest.raises(SystemExit) as end:
        build.load_prompts(read_settings(argv))
    assert end.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith(("usage: ", " ")) for line in said[:-1]), said
    return said[-1]


# --- One optimizer step ----------------------------------------------------------------------------------------------


def rollout(correct, prompt=0, *, value=None, tokens=4, injected=0, prompt_tokens=3, truncated=False, logprob=-1.0):
    """The rollout of a completion, all that trainers know at first; correct None: its verifier failed."""
    if value is None:
        value = math.nan if correct is None else reward.reward(correct)
    lengths = prompt_tokens, tokens, {0: tokens - injected}
    key = f"rollout/{next(made)}"
    return pipeline.RolloutMetadata(
        key, prompt, value, correct, truncated, injected > 0, *lengths, logprob, timed_out=False, error=""
    )


made = itertools.count()


def batch(*verdicts):
    """A group of rollouts for each list of verdicts."""
    return [[rollout(correct, p) for correct in group] for p, group in enumerate(verdicts)]


# loss.compute_advantages with ScaleRL's filter and normalisation
compute_advantages = partial(loss.compute_advantages, zero_variance_filter=True, normalisation="batch")


def make_plan(groups, rank=0, trainers=1, token_budget=10_000, **weighing):
    """A plan, by default for one trainer and with everything in one micro-batch."""
    kept, advantages = compute_advantages(groups, **weighing)
    trained = loss.carries_loss(groups, kept)
    return batches.make_plan(groups, advantages, trained, token_budget=token_budget, rank=rank, trainers=trainers)


def update(trainer, groups):
    """One optimizer step of a Trainer on these groups; returns its metrics."""
    kept, advantages = compute_advantages(groups)
    return trainer.update(groups, advantages, loss.carries_loss(groups, kept))


def planned(plan):
    """{key: (advantage, prompt_index)} of what a plan trains on."""
    items = [item for micro_batch in plan.micro_batches for item in micro_batch]
    return {item.rollout.key: (item.advantage, item.prompt_index) for item in items}


def test_sec3_2_prompts_all_right_or_all_wrong_are_dropped_before_the_batch_std():
    groups = batch([True, False], [True, True], [False, False])
    kept, advantages = compute_advantages(groups)
    assert kept.tolist() == [True, False, False]
    # The std of (1, -1) is 1; with the four zeros of the other prompts it would be sqrt(1/3), the advantages 1.73.
    assert advantages.tolist() == [[pytest.approx(1, abs=1e-5), pytest.approx(-1, abs=1e-5)], [0, 0], [0, 0]]
    kept, advantages = compute_advantages(groups, zero_variance_filter=False, normalisation="none")  # Sec. 2
    assert kept.all() and advantages.tolist() == [[1, -1], [0, 0], [0, 0]]


def test_the_filter_looks_at_correctness_and_not_at_a_shaped_reward():
    shaped = [[rollout(True, value=1.0), rollout(True, value=0.5)], [rollout(True, 1), rollout(False, 1)]]
    kept, _ = compute_advantages(shaped)
    assert kept.tolist() == [False, True]


@pytest.mark.parametrize("filtered", [True, False])
def test_a_group_whose_verifier_failed_is_dropped_and_leaves_no_nan(filtered):
    groups = batch([True, None], [True, False])
    plan = make_plan(groups, zero_variance_filter=filtered)
    assert set(planned(plan)) == {h.key for h in groups[1]} and plan.dropped == groups[0]
    assert sorted(advantage for advantage, _ in planned(plan).values()) == pytest.approx([-1, 1], abs=1e-5)


def test_truncated_completions_are_wrong_in_the_group_mean_but_carry_no_loss():
    [group] = batch([True, False, False, False])
    group[3] = replace(group[3], truncated=True)
    plan = make_plan([group], normalisation="none")
    # Rewards 1 -1 -1 -1 have mean -1/2. Without the truncated one it would be -1/3, and the first advantage 4/3.
    assert planned(plan) == {group[0].key: (1.5, 0), group[1].key: (-0.5, 0), group[2].key: (-0.5, 0)}
    assert plan.dropped == [group[3]]
    assert (plan.denominators.completions, plan.denominators.tokens) == (3, 12)


@st.composite
def groups_of_three(draw):
    """Groups of three rollouts: right, wrong, unverified or truncated; up to 9 prompt tokens and 30 of completion."""
    verdict, length, cut = st.sampled_from([True, True, False, False, None]), st.integers(1, 30), st.booleans()
    completions = st.tuples(verdict, length, st.integers(1, 9), cut, st.booleans())
    rows = draw(st.lists(st.lists(completions, min_size=3, max_size=3), min_size=1, max_size=7))
    return [
        [
            rollout(correct and not cut, p, tokens=n + 1, injected=forced, prompt_tokens=prompt, truncated=cut)
            for correct, n, prompt, cut, forced in row
        ]
        for p, row in enumerate(rows)
    ]


@trials(max_examples=60, deadline=None)
@given(groups_of_three(), st.integers(1, 4), st.integers(40, 120))
def test_ranks_share_the_batch_in_as_many_micro_batches_each_within_the_budget(groups, trainers, budget):
    plans = [make_plan(groups, rank, trainers, budget) for rank in range(trainers)]
    assert len({len(plan.micro_batches) for plan in plans}) == 1  # else the ranks would wait for each other for ever
    for micro_batch in (micro_batch for plan in plans for micro_batch in plan.micro_batches):
        assert len(micro_batch) * max((item.rollout.length for item in micro_batch), default=0) <= budget
    trained = [key for plan in plans for key in planned(plan)]
    kept, _ = compute_advantages(groups)
    wanted = [h for group, keep in zip(groups, kept) for h in group if keep and not h.truncated]
    assert sorted(trained) == sorted(h.key for h in wanted)
    counts = len(wanted), sum(sum(h.versions.values()) for h in wanted)  # over all ranks; without injected tokens
    for plan in plans:
        assert (plan.denominators.completions, plan.denominators.tokens) == counts
        # what is not trained on has to leave the store too
        assert sorted(trained + [h.key for h in plan.dropped]) == sorted(h.key for group in groups for h in group)


def sampled(prompt_ids, ids, logprobs, mask=None):
    """A pipeline.Rollout with these tokens."""
    mask = mask or [True] * len(ids)
    return pipeline.Rollout(0, 0, False, prompt_ids, ids, mask, logprobs, [0] * len(ids), "", False, False)


def test_a_micro_batch_puts_each_logprob_one_before_its_token_and_masks_prompt_injection_and_padding():
    longer = sampled([5, 6], [7, 8, 9], [-0.5, 0.0, -0.25], [True, False, True])
    items = [batches.Item(None, 1.5, 4), batches.Item(None, -0.5, 0)]
    found = batches.collate(items, [longer, sampled([1], [2], [-2.0])], "cpu")
    assert found.input_ids.tolist() == [[5, 6, 7, 8, 9], [1, 2, 0, 0, 0]]
    # Column i belongs to token i + 1, as the log-probs of input_ids[:, 1:] do.
    assert found.mask.tolist() == [[False, True, False, True], [True, False, False, False]]
    assert found.gen_logprobs.tolist() == [[0, -0.5, 0, -0.25], [-2, 0, 0, 0]]
    assert found.advantages.tolist() == [1.5, -0.5] and found.prompt_index.tolist() == [4, 0]


def test_the_youngest_tokens_are_those_of_the_newest_version_that_has_a_thousand_with_those_after_it():
    for versions, youngest in (
        ([{7: 999, 6: 1}], 6),
        ([{7: 600, 6: 5000}, {7: 400}], 7),
        ([{3: 2}, {5: 900}], 3),  # all tokens are fewer
        ([], 0),
    ):
        assert batches.youngest([replace(rollout(True), versions=one) for one in versions]) == youngest
    tokens = [replace(sampled([5], [7, 8, 9], [0.0] * 3), versions=[2, 3, 4])]
    assert batches.collate([batches.Item(None, 1.0, 0)], tokens, "cpu", 3).young.tolist() == [[False, True, True]]


def tiny_model(kind="qwen3", **changes):
    torch.manual_seed(0)
    one = dict.fromkeys(["num_hidden_layers", "num_attention_heads", "num_key_value_heads"], 1)
    sizes = dict(vocab_size=18, hidden_size=32, intermediate_size=32, head_dim=32) | changes
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **one, **sizes), dtype=torch.float32)


def lone_trainer():
    """A Trainer at version 6 in this process alone, with stand-ins for the queue and the other processes."""
    trainer = object.__new__(train.Trainer)
    trainer.args = SimpleNamespace(lr=0.1, warmup=1, weight_decay=0.5, loss="cispo", clips={"eps_max": 5.0})
    vars(trainer.args).update(aggregation="prompt", token_budget=10_000)
    trainer.policy = precision.PolicyModel(tiny_model(), dtype=torch.float32)
    trainer.replay = lambda experts: None
    trainer.optimizer = torch.optim.AdamW(trainer.policy.parameters(), lr=0.1, weight_decay=0.5)
    trainer.version = 6
    trainer.same_weights = True
    trainer.queue = SimpleNamespace(tokens=lambda rollouts: [], drop=lambda rollouts: None)
    trainer.processes = SimpleNamespace(
        rank=0,
        trainer_ranks=range(1),
        device="cpu",
        dtype=torch.float32,
        clock=time.perf_counter,
        stop_together=lambda tokens: None,
        total=lambda sums, largest: (sums.tolist(), largest),
    )
    return trainer


def test_statistics_are_means_per_token_over_micro_batches_and_nothing_without_tokens():
    statistics = batches.Statistics()
    mask = torch.tensor([[True, False]])
    for rho, entropy, clipped in ((1.0, 2.0, False), (3.0, 1.0, True)):  # the masked second tokens count nowhere
        part = batches.Batch(None, mask, torch.zeros(1, 2), None, None, torch.tensor([[rho > 1, True]]))
        acts = torch.tensor([[clipped, True]])
        statistics.add(torch.tensor([[math.log(rho), 5.0]]), torch.tensor([[entropy, 9.0]]), part, acts)
    alone = lone_trainer().processes.total
    found = statistics.means(alone)
    expected = {"rho_mean": 2, "entropy": 1.5, "clipped": 0.5, "rho_max": 3, "log_rho": math.log(3) / 2}
    # (1 + 3)^2 / (2 (1 + 9)): the share of the tokens that equal weights would need
    expected |= {"log_rho_youngest": math.log(3), "effective_sample_size": 0.8}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert batches.Statistics().means(alone) == {}


def test_a_batchs_staleness_counts_sampled_tokens_and_its_means_leave_out_what_has_no_verdict():
    groups = [[replace(rollout(True, 4), versions={2: 3, 5: 1}), rollout(None, 4, tokens=8, injected=2)]]
    found = batches.batch_metrics(groups, 5)
    assert found["staleness"] == {0: 1, 3: 3, 5: 6} and found["prompts"] == [4]
    assert (found["reward"], found["pass_rate"], found["unverified"]) == (1.0, 1.0, 1)
    assert (found["tokens"], found["length_max"], found["interrupted"]) == (12, 8, 0.5)


def test_a_missing_verdict_is_the_verifiers_failure_or_bad_data_or_ones_own_function():
    errors = ["no memory", f"{UNREADABLE} in LaTeX", f"{OWN} raised KeyError", OWN]
    groups = [[rollout(True, p), replace(rollout(None, p), error=error)] for p, error in enumerate(errors)]
    prompts = [data.Prompt(p, (1,), "", "$", "math", where=f"a:{p}") for p in range(4)]
    found = batches.grading_metrics(groups, prompts)
    told = [(row["where"], row["verifier"], row["own"]) for row in found["failures"]]
    assert told == [("a:0", True, False), ("a:1", False, False), ("a:2", False, True)]
    assert found["failures"][0]["error"] == "no memory" and found["silent"] == 1  # no opinion is no failure


@pytest.mark.parametrize(
    "last, answered",
    [
        (dict(marked=True), True),
        (dict(marked=False), False),
        (dict(interrupted=True), False),  # the phrase holds the mark
        (dict(interrupted=True, value=1.0), True),
    ],
)
def test_a_completion_has_answered_if_it_wrote_the_mark_itself_or_is_right(last, answered):
    groups = [[replace(rollout(False), marked=False), replace(rollout(False), **last)]]
    assert batches.grading_metrics(groups, [None])["answered"] == answered / 2


def test_without_any_gradient_the_weights_stand_still_but_the_version_goes_on():
    trainer = lone_trainer()
    before = [parameter.clone() for parameter in trainer.policy.parameters()]
    metrics = update(trainer, batch([True, True], [False, False]))
    assert trainer.version == 7 and metrics["gradient_norm"] == 0
    # An optimizer step on a zero gradient would still shrink the weights, by the weight decay.
    assert all(torch.equal(was, now) for was, now in zip(before, trainer.policy.parameters()))


@pytest.mark.parametrize("value, moves", [(1.0, True), (math.nan, False)])
def test_a_gradient_that_is_not_finite_leaves_the_weights_as_they_are(value, moves):
    trainer = lone_trainer()
    trainer.same_weights = False
    trainer.queue.tokens = lambda rollouts: [sampled([3, 4], [5, 6], [-2.9, -2.9])] * len(rollouts)
    parameters = list(trainer.policy.parameters())
    before = [parameter.clone() for parameter in parameters]
    measure = trainer.gradient_norm

    def poisoned():
        parameters[-1].grad.view(-1)[0] = value  # one number of the last parameter
        return measure()

    trainer.gradient_norm = poisoned
    assert update(trainer, batch([True, False]))["skipped"] == (not moves) and trainer.version == 7
    assert all(torch.equal(was, now) != moves for was, now in zip(before, parameters))


def test_a3_the_learning_rate_rises_linearly_whatever_a_checkpoint_held():
    trainer = lone_trainer()
    trainer.optimizer = torch.optim.AdamW(trainer.policy.parameters(), lr=9.0, weight_decay=9.0)
    trainer.args.lr, trainer.args.warmup = 0.8, 4
    for trainer.version, lr in ((0, 0.2), (1, 0.4), (3, 0.8), (4, 0.8), (100, 0.8)):
        metrics = update(trainer, batch([True, True], [False, False]))
        group = trainer.optimizer.param_groups[0]
        assert (group["lr"], group["weight_decay"], metrics["lr"]) == pytest.approx((lr, 0.5, lr))


def test_the_start_up_check_stops_a_run_before_its_first_optimizer_step():
    trainer = lone_trainer()
    before = [parameter.clone() for parameter in trainer.policy.parameters()]
    # 18 tokens: near -2.9, not -9
    trainer.queue.tokens = lambda rollouts: [sampled([3, 4], [5, 6], [-9.0, -9.0])] * len(rollouts)
    with pytest.raises(RuntimeError, match="start-up check"):
        update(trainer, batch([True, False]))
    assert all(torch.equal(was, now) for was, now in zip(before, trainer.policy.parameters()))


# --- Evaluations -----------------------------------------------------------------------------------------------------


def test_sec2_1_pass_rate_is_the_mean_at_k_with_its_sampling_error():
    prompts = [data.Prompt(i, (1,), "", "", task) for i, task in enumerate(["easy", "hard"])]
    found = reward.pass_rates(batch([True, True, True, False], [False, False, False, True]), prompts)
    assert found["pass_rate"] == 0.5 and found["completions"] == 8 and found["tasks"] == {"easy": 0.75, "hard": 0.25}
    # Each prompt's verdicts have the unbiased variance 3/4 * 1/4 * 4/3 = 1/4, so the mean of 8 has 1/32.
    assert found["stderr"] == pytest.approx((1 / 32) ** 0.5)
    assert found["tasks_stderr"] == pytest.approx({"easy": 1 / 4, "hard": 1 / 4})  # the mean of 4 has 1/16


def test_a_failed_verifier_is_no_wrong_answer_in_the_validation():
    prompts = [data.Prompt(i, (1,), "", "", "math") for i in range(2)]
    found = reward.pass_rates(batch([True, False, True, False], [True, None, None, None]), prompts)
    assert found["pass_rate"] == 0.5  # if the three unknown verdicts counted as wrong: 3/8


def test_a12_the_entropy_on_validation_is_minus_the_mean_log_prob_of_the_tokens_that_the_policy_sampled():
    prompts = [data.Prompt(i, (1,), "", "", "math") for i in range(2)]
    groups = [[rollout(True, 0, tokens=4, logprob=-1.0)], [rollout(False, 1, tokens=4, injected=2, logprob=-2.0)]]
    # 3 nats over 4 + 2 sampled tokens; averaged over completions it would be (1/4 + 2/2) / 2, with injected tokens 3/8
    assert reward.pass_rates(groups, prompts)["entropy_sampled"] == 0.5


@pytest.mark.parametrize("waiting, admitted", [(["a", "b"], ["a", "b", "new"]), ([*"abcd"], ["a", "b", "c"])])
def test_a_resumed_run_repeats_an_interrupted_evaluation_and_admits_only_what_its_steps_need(waiting, admitted):
    calls = []

    def admit(prompts):
        calls.append(prompts)
        queue.room -= len(prompts)

    queue = SimpleNamespace(room=3, admit=admit, publish=lambda *_, **__: None, deliver=lambda *_: None)
    run = SimpleNamespace(version=20, evaluated=10, args=SimpleNamespace(eval_every=10, steps=20), queue=queue)
    run.evaluate = lambda: [setattr(run, "evaluated", run.version), calls.append(run.log.clock.gpu_hours)]
    run.log, run.send = SimpleNamespace(clock=run_log.Clock(1)), None
    run.curriculum = SimpleNamespace(in_flight=waiting, next=lambda count: ["new"] * count)
    assert train.train(run, run.args) == "finished" and run.evaluated == 20
    assert calls[0] == 0.0 and sum(calls[1:], []) == admitted


def evaluating(groups, **more):
    """A run that has worked for 9 s, been evaluated for 100 s, with these groups, and worked for 9 s again."""
    now = [0.0]

    def evaluate(*_):
        now[0] += 100
        return groups, []

    class Log(list):
        clock = run_log.Clock(2, read=lambda: now[0])

        def __call__(self, kind, **row):
            self.append(row)

        def validation(self, *_):
            return nullcontext()

    run = SimpleNamespace(queue=SimpleNamespace(evaluate=evaluate), version=7, log=Log(), meanwhile=None, **more)
    run.args = SimpleNamespace(eval_generations=4, out=".")
    run.log.clock.start()
    now[0] += 9
    train.Trainer.evaluate(run)
    now[0] += 9
    return run


def test_a_benchmark_has_its_own_curve_and_is_no_part_of_the_pass_rate_that_is_fitted():
    curves = [data.Prompt(0, (1,), "", "", "math"), data.Prompt(1, (1,), "", "", "math", 1, curve="aime.jsonl")]
    groups = batch([True, True, False, False], [True, False, False, False])
    [row] = evaluating(groups, validation=curves, benchmarks={1}).log
    assert row["pass_rate"] == 0.5 and row["completions"] == 4 and row["tasks"] == {"math": 0.5, "aime.jsonl": 0.25}
    # 1/2 * 1/2 over 3, and 1/4 * 3/4 over 3
    assert row["tasks_stderr"] == pytest.approx({"math": (1 / 12) ** 0.5, "aime.jsonl": 1 / 4})


def test_eq1_a_validation_costs_no_compute():
    run = evaluating([], validation=[None])
    assert run.log.clock.gpu_hours == pytest.approx(2 * 18 / 3600) and run.evaluated == 7


def evaluated(capsys, *argv):
    """(what --evaluate prints, on both streams; the rows it writes)"""
    args = read_settings(["--evaluate", str(BASE), "--generations", "4", "--slots", "32", "--out", "found", *argv])
    assert not train.main(args)
    return capsys.readouterr(), [json.loads(line) for line in Path("found/evaluation.jsonl").open()]


def sums(count):
    """rows.jsonl with so many sums that are held out of the embedded task; returns their prompts."""
    examples = data.examples("arithmetic", count, seed=1, held_out=True)
    rows = [{"prompt": text, "answer": answer, "task": "arithmetic"} for text, answer in examples]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [row["prompt"] for row in rows]


@pytest.mark.processes
@pytest.mark.parametrize("rows", [7, 1], ids=["7 prompts", "more ranks than prompts"])
def test_an_evaluation_by_several_ranks_is_that_of_one(capsys, rows):
    sums(rows)
    printed, alone = evaluated(capsys, "--data", "rows.jsonl")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", ROOT / "train.py"]
    flags = ["--evaluate", BASE, "--generations", "4", "--slots", "32", "--data", "rows.jsonl", "--out", "shared"]
    done = subprocess.run([sys.executable, *command, *flags], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    together = [json.loads(line) for line in Path("shared/evaluation.jsonl").open()]
    assert sorted(map(str, together)) == sorted(map(str, alone))  # the same seeds: only the order differs
    assert done.stdout == printed.out and [path.name for path in Path("shared").iterdir()] == ["evaluation.jsonl"]


def test_evaluation_asks_every_row_of_a_file_and_keeps_every_completion(capsys):
    prompts = sums(12)
    printed, found = evaluated(capsys, "--data", "rows.jsonl")
    assert {row["prompt"] for row in found} == set(prompts) and len(found) == 12 * 4
    right = sum(row["correct"] for row in found) / len(found)
    assert "arithmetic: 12 prompts, 4 completions each" in printed.out and f"mean@4   {right:.4f} +- " in printed.out
    some = sum(any(row["correct"] for row in found if row["prompt"] == prompt) for prompt in prompts) / 12
    assert f"pass@4   {some:.4f} +- " in printed.out


def test_evaluation_asks_as_many_rows_of_a_file_as_eval_prompts_says_and_shows_rate_and_time_left(capsys):
    prompts = set(sums(30))
    printed, found = evaluated(capsys, *"--generations 2 --slots 4 --data rows.jsonl sorting --eval-prompts 5".split())
    asked = {row["prompt"] for row in found}
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    held = {prompt.text for prompt in sources.load(["rows.jsonl"], tokenizer, budget=40, validation=5).validation}
    assert len(asked) == 10 and len(found) == 20 and len(held) == 3
    assert held < asked and len(prompts & asked) == 5  # 3 of 30 prompts are held out; 2 more of the file, 5 to sort
    assert all(map(data.is_held_out, asked - prompts))  # of an embedded task only these
    assert "20/20" in printed.err and " completions/s" in printed.err and "<00:" in printed.err


# --- Whole runs ------------------------------------------------------------------------------------------------------


def rank_process(argv, variables, output):
    """What a forked rank runs in place of torchrun's process: train.py with its own environment and output file."""
    os.environ.update(variables)
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    sys.exit(train.main(read_settings(argv)))


def killed_rank(version, *arguments):
    """A rank that is killed in the optimizer step that begins at this version, if it is a trainer."""
    measure = train.Trainer.gradient_norm

    def last(trainer):
        if trainer.version == version:
            os.kill(os.getpid(), signal.SIGKILL)
        return measure(trainer)

    train.Trainer.gradient_norm = last
    rank_process(*arguments)


class Run:
    """The forked ranks of one run, its folder, and the file with what it prints."""

    def __init__(self, out):
        self.out, self.printed = Path(out), Path(f"{out}.txt")
        self.printed.touch()

    def fork(self, forks, world, *argv, target=rank_process):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        common = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        common |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        self.processes = []
        for rank in range(world):
            variables = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            arguments = ([*argv, "--out", str(self.out)], variables, str(self.printed))
            self.processes.append(forks.Process(target=target, args=arguments, daemon=True))
            self.processes[-1].start()
        return self

    def wait(self):
        """Exit codes of the forked ranks."""
        for process in self.processes:
            process.join(PATIENCE)
        stuck = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
        for rank in stuck:
            self.processes[rank].kill()
        assert not stuck, f"ranks {stuck} did not end: {self.text}"
        return [process.exitcode for process in self.processes]

    def launch(self, launchers, *argv):
        """torchrun with two processes, in a process group of its own."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with self.printed.open("a") as file:
            self.launcher = subprocess.Popen(
                [*torchrun, ROOT / "train.py", *argv, "--out", self.out],
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
        launchers.append(self.launcher)
        return self

    @property
    def ranks(self):
        """{rank: process id} of the launcher's children."""
        found = {}
        for child in Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children").read_text().split():
            variables = Path(f"/proc/{child}/environ").read_text().split("\0")
            found |= {int(text[5:]): int(child) for text in variables if text.startswith("RANK=")}
        return found

    @property
    def text(self):
        return self.printed.read_text()

    @property
    def log(self):
        """The rows of log.jsonl, each of which must be readable."""
        path = self.out / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def rows(self, kind):
        return [row for row in self.log if row["kind"] == kind]

    def reach(self, step):
        """Wait until this optimizer step is logged."""
        until, log = time.monotonic() + PATIENCE, self.out / "log.jsonl"
        while not (log.exists() and f'"kind": "step", "step": {step},' in log.read_text()):
            assert time.monotonic() < until, f"step {step} was not reached: {self.text}"
            time.sleep(0.02)

    @property
    def version(self):
        """Optimizer steps of the last checkpoint."""
        return run_folder.counters(finished(self.out)[-1])["version"]


@pytest.fixture(scope="module")
def launchers():
    """The launchers that tests start; those that a failed test leaves running are ended with this module."""
    started = []
    yield started
    for launcher in started:
        launcher.terminate()  # a launcher ends its ranks too; does nothing if it has ended
        launcher.wait(PATIENCE)


# k = 0: each batch is sampled with the weights that it then updates, whatever the timing.
ON_POLICY = (
    "--data tiny --k 0 --prompts 8 --generations 12 --slots 96 --eval-every 1 --eval-prompts 2 --eval-generations 1 "
    "--token-budget 8192"
).split()


@pytest.fixture(scope="module")
def one_trainer(forks, tmp_path_factory):
    """Two steps of pipeline --k 0 with one trainer and one generator, each in one micro-batch."""
    run = Run(tmp_path_factory.mktemp("one") / "run").fork(forks, 2, *ON_POLICY, "--steps", "2")
    assert run.wait() == [0, 0], run.text
    return run


def first_moment(run, version):
    """AdamW's running mean of gradients, all parameters in one vector; after the first step 0.9 * 0 + 0.1 g."""
    dcp_to_torch_save(run.out / f"checkpoint-{version}" / "state", run.out / "state.pt")
    state = torch.load(run.out / "state.pt", weights_only=True)["optimizer"]["state"]
    return torch.cat([moments["exp_avg"].flatten() for _, moments in sorted(state.items())])


def assert_close(got, expected, relative):
    """The difference of two vectors is shorter than `relative` times the expected vector."""
    assert torch.linalg.norm(got - expected) < relative * torch.linalg.norm(expected)


# With a budget of 32 tokens the first step needs four micro-batches on each of two ranks.
@pytest.mark.parametrize("budget", [8192, 32], ids=["one micro-batch and a dummy", "four micro-batches each"])
def test_two_trainers_have_the_gradient_of_one(one_trainer, forks, tmp_path, budget):
    changes = ("--steps", "1", "--trainers", "2", "--token-budget", str(budget))
    pair = Run(tmp_path / "run").fork(forks, 3, *ON_POLICY, *changes)
    assert pair.wait() == [0, 0, 0], pair.text
    first, reference = pair.rows("step")[0], one_trainer.rows("step")[0]
    assert first["kept"] > 0 and first["tokens_trained"] / budget > (6 if budget == 32 else 0)
    assert (first["prompts"], first["pass_rate"], first["tokens"]) == tuple(
        reference[name] for name in ("prompts", "pass_rate", "tokens")
    )
    # fp32 sums in another order; a mean over ranks instead of the sum would be off by 0.5.
    gradient = first_moment(one_trainer, 1) / 0.1
    assert_close(first_moment(pair, 1) / 0.1, gradient, 1e-4)
    assert first["gradient_norm"] == pytest.approx(torch.linalg.norm(gradient).item(), rel=1e-4)
    assert first["gradient_norm"] == pytest.approx(reference["gradient_norm"], rel=1e-4)


def test_a_run_resumed_with_two_trainers_goes_on_as_with_one(one_trainer, forks, tmp_path):
    shutil.copytree(one_trainer.out, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint-2"))
    pair = Run(tmp_path / "run").fork(forks, 3, "--resume", "--trainers", "2")
    assert pair.wait() == [0, 0, 0], pair.text
    assert [row["step"] for row in pair.rows("step")] == [1, 2, 2]
    assert_close(first_moment(pair, 2), first_moment(one_trainer, 2), 1e-4)


def test_a_finished_run_leaves_a_log_samples_of_every_evaluation_and_a_checkpoint(one_trainer):
    kinds = [row["kind"] for row in one_trainer.log]
    assert kinds == ["config", "eval", "step", "eval", "step", "eval", "end"]
    first, *_, last = one_trainer.rows("eval")
    assert (first["step"], first["gpu_hours"], first["tokens"]) == (0, 0, 0)  # R_0, at C = 0
    assert last["step"] == 2 and last["gpu_hours"] > 0
    assert one_trainer.rows("end")[0]["reason"] == "finished" and "no fit: " in one_trainer.text
    samples = [json.loads(line) for line in (one_trainer.out / "completions.jsonl").read_text().splitlines()]
    assert {sample["step"] for sample in samples} == {0, 1, 2}
    assert AutoModelForCausalLM.from_pretrained(one_trainer.out / "checkpoint-2").config.model_type == "qwen3"


# --- Ends and new beginnings -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short_epochs(tmp_path_factory):
    """Flags of a run into its second epoch; it depends on its history, not on timing: its weights hardly move."""
    file = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = [
        {"prompt": text, "answer": answer, "task": "arithmetic"}
        for text, answer in data.examples("tiny", 32, seed=1, held_out=False)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return (
        f"--model {BASE}/tiny --data {file} --lr 1e-12 --prompts 4 --k 1 --generations 4 --no-positive-resampling 0.5 "
        "--max-new-tokens 12 --max-prompt-tokens 8 --interrupt-at 8 9 --interrupt-phrase </think> --slots 32 "
        "--token-budget 4096 --eval-every 2 --eval-generations 2"
    ).split()


@pytest.fixture(scope="module")
def uninterrupted(forks, short_epochs, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("uninterrupted") / "run").fork(forks, 2, *short_epochs, "--steps", "12")
    assert run.wait() == [0, 0], run.text
    assert run.rows("step")[-1]["retired"] > 0 and run.rows("step")[-1]["epoch"] > 1.5
    return run


@pytest.mark.processes
def test_ctrl_c_in_a_terminal_ends_torchrun_in_order_with_a_checkpoint(short_epochs, tmp_path):
    run = Run(tmp_path / "run")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        ROOT / "train.py",
    ]
    command += [*short_epochs, "--steps", "600", "--out", run.out]
    with (
        run.printed.open("a") as file,
        subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True) as launcher,
    ):
        try:
            run.reach(2)
        finally:
            os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does: the ranks get it too
        launcher.wait(60)  # it gives ranks that do not end 600 s
    assert "interrupted" in run.log[-1]["reason"] and run.version == run.log[-1]["step"]


@pytest.mark.processes
def test_a_killed_trainer_is_named_and_its_run_goes_on_with_the_same_batches(
    forks, short_epochs, uninterrupted, tmp_path
):
    killed = partial(killed_rank, 4)
    run = Run(tmp_path / "run").fork(forks, 2, *short_epochs, "--steps", "12", target=killed)
    assert run.wait() == [-signal.SIGKILL, 1]
    assert f"trainer rank 0 ended; {run.out} holds a checkpoint of step {run.version}" in run.text
    before, version = len(run.log), run.version
    run.fork(forks, 2, "--resume")
    assert run.wait() == [0, 0], run.text
    assert run.log[-1]["reason"] == uninterrupted.log[-1]["reason"]
    for row, wanted in ((row, uninterrupted.rows("step")[row["step"] - 1]) for row in run.rows("step")):
        for name in ("step", "prompts", "pass_rate", "retired", "lr"):
            assert row[name] == wanted[name], (row["step"], name)
    counted = [row for row in run.log[:before] if row["step"] <= version] + run.log[before:]
    steps = [row for row in counted if row["kind"] == "step"]
    assert [row["step"] for row in steps] == list(range(1, 13))
    for name in ("gpu_hours", "tokens", "tokens_trained", "flops"):  # these continue to grow
        assert [row[name] for row in steps] == sorted(row[name] for row in steps)
    # Equal batches and weights give equal gradients; the optimizer must still hold those from before the interruption.
    assert_close(first_moment(run, 12), first_moment(uninterrupted, 12), 1e-3)


# --- Your own model and data -----------------------------------------------------------------------------------------


def save_stranger(folder, model_type):
    """A random one-layer model with a chat template, biased to write 1 after </think> and to stop after 1.

    Without this bias no answer would be right, and nothing would be trained.
    """
    tokenizer = sft.tokenizer()
    model = tiny_model(
        model_type,
        vocab_size=len(tokenizer),
        max_position_embeddings=128,
        tie_word_embeddings=False,
        **dict(pad_token_id=0, bos_token_id=None, eos_token_id=tokenizer.eos_token_id),
    )
    embedding, head = (part.weight.data for part in (model.get_input_embeddings(), model.get_output_embeddings()))
    embedding.normal_()
    think, one, end = tokenizer.convert_tokens_to_ids(["</think>", "1", "<eos>"])
    for token, follower in ((think, one), (one, end)):
        head[follower] += embedding[token] / embedding[token].norm()
    tokenizer.chat_template = "{{ messages[0].content }}{% if add_generation_prompt %}={% endif %}"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    "model_type, task, lengths",
    [
        ("qwen3", "math", ("--interrupt-at", "1", "3", "--interrupt-phrase", "</think>")),
        ("llama", "arithmetic", ("--think-end", "none")),
    ],
)
def test_a_model_folder_and_a_jsonl_file_train(forks, tmp_path, model_type, task, lengths):
    save_stranger(tmp_path / "model", model_type)
    rows = [{"prompt": f"{n + 1}-{n}", "answer": 1, "task": task} for n in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = (
        f"--model {tmp_path}/model --data {tmp_path}/rows.jsonl --steps 1 --prompts 4 --k 1 --generations 8 "
        "--max-new-tokens 8 --max-prompt-tokens 8 --slots 32 --eval-generations 2"
    ).split()
    run = Run(tmp_path / "run").fork(forks, 2, *flags, *lengths)
    assert run.wait() == [0, 0], run.text
    [step] = run.rows("step")
    assert step["kept"] > 0 and step["gradient_norm"] > 0 and step["unverified"] == 0
    assert step["log_rho"] < 1e-4  # nats: both sides hold the same fp32 weights at step 0
    assert [row["step"] for row in run.rows("eval")] == [0, 1] and run.log[-1]["reason"] == "finished"
    sample = json.loads((run.out / "completions.jsonl").read_text().splitlines()[0])
    assert sample["prompt"].endswith("=") and sample["answer"] == "1"  # the chat template wrote the =
    trained = AutoModelForCausalLM.from_pretrained(run.out / "checkpoint-1")
    assert trained.config.model_type == model_type
