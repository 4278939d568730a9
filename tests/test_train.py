"""Claims about train.py, its flags and processes: flags, one optimizer step (Sec. 3.2), whole runs (Sec. 2, 3.1).

Whole runs are real processes on the CPU, with gloo. Runs that need no launcher are forked from one process that
has imported everything, since importing takes longer than such a run. Runs use base/ and small batches; runs that are
compared have a learning rate or a k at which nothing depends on timing.
"""

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
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
from plumbing import batches, build, run_folder, run_log, sizing, sources
from plumbing.build import make_generator, make_scorer, provenance
from plumbing.run_folder import finished
from plumbing.settings import read_settings
from recipes import EMBEDDED, RECIPES
from verify.graders import UNREADABLE

ROOT = Path(train.__file__).parent
BASE = ROOT / "base"
PATIENCE = 240  # seconds for a run of a few seconds, on a machine that is busy with something else


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Every test runs in an empty folder and without a launcher's variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


# --- Flags -----------------------------------------------------------------------------------------------------------


def refused(capsys, *argv):
    """The message with which these flags are refused; exit code 2 is that of a usage error."""
    with pytest.raises(SystemExit) as end:
        read_settings(argv)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_a_flag_beats_the_recipe_and_the_recipe_beats_the_presets():
    assert read_settings([]).prompts == 32  # the embedded task's preset
    assert read_settings(["--recipe", "qwen2.5"]).prompts == 80  # A.16
    assert read_settings(["--recipe", "qwen2.5", "--prompts", "7"]).prompts == 7
    assert read_settings(["--prompts", "7", "--recipe", "qwen2.5"]).prompts == 7
    assert read_settings(["--recipe", "scalerl", "--no-fp32-head", "--dtype", "bfloat16"]).fp32_head is False
    assert read_settings(["--no-positive-resampling", "off"]).no_positive_resampling is None


def test_a_recipe_sets_neither_learning_rate_nor_steps_nor_model():
    plain = vars(read_settings([]))
    for recipe in RECIPES:
        args = vars(read_settings(["--recipe", recipe]))
        assert {name: args[name] for name in ("lr", "warmup", "steps", "model", "generations", "weight_decay")} == {
            name: plain[name] for name in ("lr", "warmup", "steps", "model", "generations", "weight_decay")
        }


def test_a3_your_own_model_gets_the_papers_optimizer_and_lengths():
    args = read_settings(["--model", "M", "--data", "F"])
    assert (args.lr, args.warmup, args.weight_decay, args.prompts * args.generations) == (5e-7, 100, 0.01, 768)
    assert (args.max_new_tokens, args.max_prompt_tokens, args.interrupt_at) == (12288 + 2048, 2048, (10000, 12000))
    assert (args.eval_prompts, args.eval_generations, args.eval_every) == (1000, 16, 100)
    assert args.interrupt_phrase.endswith("final answer now. </think>")


DAPO = {"eps_low": 0.2, "eps_high": 0.26}


@pytest.mark.parametrize(
    "recipe, algorithm, clips",
    [
        # loss, average, normalisation, zero-variance filter, No-Positive-Resampling, FP32 head, off-policy, k, prompts
        ("baseline", ("dapo", "sample", "prompt", False, None, False, "ppo", 8, 48), DAPO),
        ("scalerl", ("cispo", "prompt", "batch", True, 0.9, True, "pipeline", 8, 48), {"eps_max": 5.0}),
        ("deepseek", ("grpo", "sample", "prompt", False, None, False, "ppo", 8, 48), {"eps": 0.2}),
        ("qwen2.5", ("dapo", "prompt", "prompt", True, None, False, "ppo", 8, 80), DAPO),
        ("magistral", ("dapo", "prompt", "prompt", True, None, False, "pipeline", 8, 80), DAPO),
        ("minimax", ("cispo", "prompt", "prompt", True, None, True, "ppo", 8, 80), {"eps_max": 5.0}),
    ],
)
@pytest.mark.parametrize("own", [[], ["--model", "M", "--data", "F"]])
def test_a16_every_recipe_sets_the_papers_algorithm_and_clips_for_any_model(recipe, algorithm, clips, own):
    args = read_settings(["--recipe", recipe, *own])
    assert (
        args.loss,
        args.aggregation,
        args.normalisation,
        args.zero_variance_filter,
        args.no_positive_resampling,
        args.fp32_head,
        args.off_policy,
        args.k,
        args.prompts,
    ) == algorithm
    assert args.clips == clips


def test_gspo_has_thresholds_of_its_own():
    assert read_settings(["--loss", "gspo"]).clips == {"eps_low": 3e-3, "eps_high": 5e-3}  # conference Fig. 20
    assert read_settings(["--loss", "gspo", "--eps-low", "0.01"]).clips == {"eps_low": 0.01, "eps_high": 5e-3}


def test_gspo_takes_the_sample_average_unless_another_one_or_a_recipe_is_asked_for():
    assert read_settings(["--loss", "gspo"]).average == "sample" and read_settings([]).average == "prompt"
    assert read_settings(["--loss", "gspo", "--aggregation", "token"]).average == "token"
    assert read_settings(["--loss", "gspo", "--recipe", "scalerl"]).average == "prompt"


def test_a10_only_the_chosen_length_control_is_checked():
    args = read_settings(["--length-control", "none", "--max-new-tokens", "64"])  # shorter than the preset's interruptions
    assert args.length_control == "none"


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--loss", "cispo", "--eps-high", "0.3"], ["--eps-high is not read by --loss cispo", "reads --eps-max"]),
        (["--recipe", "deepseek", "--eps-max", "4"], ["--eps-max is not read by --loss grpo", "reads --eps"]),
        (["--loss", "gspo", "--eps", "0.2"], ["--eps is not read by --loss gspo", "--eps-low, --eps-high"]),
        (["--length-max", "50"], ["--length-max is not read by --length-control interrupt", "--interrupt-at"]),
        (["--length-control", "none", "--interrupt-at", "8", "9"], ["--interrupt-at is not read", "none of these"]),
        (["--eps-max", "0.2"], ["eps_max is 0.2", "at least 1"]),
        (["--loss", "dapo", "--eps-low", "-0.2"], ["half-widths are -0.2", "expected 0 or more"]),
        (["--loss", "reinforce"], ["reinforce", "cispo"]),
        (["--off-policy", "ppo", "--k", "0"], ["--k is 0", ">= 1 with ppo"]),
        (["--k", "-1"], ["--k is -1", ">= 0"]),
        (["--off-policy", "ppo", "--k", "8", "--eval-every", "12"], ["--eval-every 12", "multiple of --k 8"]),
        (["--think-end", ""], ["--think-end", "empty", "or none"]),
        (
            ["--think-end", "none", "--length-control", "interrupt"],
            ["--length-control with --think-end none", "the mark"],
        ),
        (["--think-end", "none", "--interrupt-at", "8", "9"], ["--interrupt-at with --think-end none"]),
        (["--no-fp32-head", "--dtype", "float32"], ["--no-fp32-head with --dtype float32", "bfloat16"]),
        (["--lr", "0"], ["--lr is 0.0", "more than 0"]),
        (["--lr", "inf"], ["--lr is inf", "a finite number"]),
        (["--timeout", "inf"], ["--timeout is inf", "a finite number"]),
        (["--weight-decay", "-0.1"], ["--weight-decay is -0.1", "0 or more"]),
        (["--weight-decay", "inf"], ["--weight-decay is inf", "a finite number"]),
        (["--generations", "1"], ["--generations is 1", "2 or more"]),
        (["--trainers", "2"], ["--trainers 2 of 2 processes", "--nproc-per-node"]),
        (["--temperature", "-1"], ["--temperature is -1.0", "more than 0"]),
        (["--temperature", "nan"], ["--temperature is nan", "more than 0"]),
        (["--prompts", "0"], ["--prompts", "got 0", "1 or more"]),
        (["--prompts", "many"], ["--prompts", "many"]),
        (["--no-positive-resampling", "90"], ["--no-positive-resampling", "got 90", "up to 1"]),
        (["--data", "F"], ["--data", "needs --model"]),
        (["--resume"], ["--resume", "found no"]),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_got_and_expected(capsys, argv, said):
    message = refused(capsys, *argv)
    assert all(words in message for words in said), message


def test_without_a_mark_interruptions_that_were_not_asked_for_are_none_and_the_default_phrase_ends_in_any_mark():
    assert (read_settings([]).think_end, read_settings([]).length_control) == ("</think>", "interrupt")
    args = read_settings(["--think-end", "none"])
    assert (args.think_end, args.length_control) == (None, "none")
    assert read_settings(["--think-end", "none", "--length-control", "penalty"]).length_control == "penalty"
    own = ["--model", "M", "--data", "F", "--think-end", "####"]
    assert read_settings(own).interrupt_phrase.endswith("final answer now. ####")
    assert read_settings([*own, "--interrupt-phrase", "So: ####"]).interrupt_phrase == "So: ####"


def test_a_checkpoint_of_a_run_with_interruptions_is_evaluated_without_a_mark(tmp_path):
    out = past_run(tmp_path / "run", "--interrupt-at", "70", "72")
    args = read_settings(["--evaluate", str(out / "checkpoint-2"), "--think-end", "none"])
    assert (args.think_end, args.length_control) == (None, "none")
    again = read_settings(["--evaluate", str(out / "checkpoint-2")])
    assert (again.length_control, again.interrupt_at) == ("interrupt", [70, 72])
    assert "interrupt_at" in again.asked and "slots" not in again.asked  # slots may be fitted to the machine


def test_a_generator_must_be_left(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert read_settings(["--trainers", "3"]).trainers == 3
    message = refused(capsys, "--trainers", "4")
    assert "--trainers 4 of 4 processes" in message and "--nproc-per-node" in message


def past_run(out, *argv, checkpoint=True):
    """A folder like that of an earlier run with these flags."""
    args = read_settings(["--out", str(out), *argv])
    out.mkdir()
    (out / "log.jsonl").write_text(json.dumps({"kind": "config", "flags": vars(args)}) + "\n")
    for name in ("config.json", "state/.metadata", "state/run.json") if checkpoint else ():
        (out / "checkpoint-2" / name).parent.mkdir(parents=True, exist_ok=True)
        (out / "checkpoint-2" / name).write_text('{"version": 2}')
    return out


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(capsys, tmp_path):
    out = past_run(tmp_path / "run")
    before = (out / "log.jsonl").read_text()
    assert "holds a run already" in refused(capsys, "--out", str(out))
    assert (out / "log.jsonl").read_text() == before


def test_resuming_takes_the_flags_of_the_run_unless_given_again(tmp_path):
    out = past_run(tmp_path / "run", "--loss", "dapo", "--eps-high", "0.3", "--lr", "0.5", "--steps", "7")
    args = read_settings(["--resume", "--out", str(out), "--steps", "9"])
    assert (args.loss, args.clips, args.lr) == ("dapo", {"eps_low": 0.2, "eps_high": 0.3}, 0.5)
    assert args.steps == 9 and args.resume


def test_resuming_with_other_batches_is_refused(capsys, tmp_path):
    out = past_run(tmp_path / "run", "--seed", "3", "--prompts", "16")
    assert "--seed 4" in refused(capsys, "--resume", "--out", str(out), "--seed", "4")
    assert "has 16" in refused(capsys, "--resume", "--out", str(out), "--prompts", "8")
    assert read_settings(["--resume", "--out", str(out), "--prompts", "16"]).seed == 3


@pytest.mark.parametrize("log", [False, True])
def test_resuming_without_a_checkpoint_starts_anew_and_says_so(tmp_path, log):
    out = past_run(tmp_path / "run", "--lr", "0.5", checkpoint=False) if log else tmp_path / "run"
    args = read_settings(["--resume", "--out", str(out)])
    assert not args.resume and args.lr == read_settings([]).lr  # flags too are those of a first start
    assert args.notes == [f"--resume: no checkpoint in {out}: starts anew"]


# --- One optimizer step ----------------------------------------------------------------------------------------------


def rollout(correct, prompt=0, *, value=None, tokens=4, injected=0, prompt_tokens=3, truncated=False, logprob=-1.0):
    """The rollout of a completion, all that trainers know at first; correct None: its verifier failed."""
    if value is None:
        value = math.nan if correct is None else reward.reward(correct)
    rollout.made += 1
    return pipeline.RolloutMetadata(
        f"rollout/{rollout.made}",
        prompt,
        value,
        correct,
        truncated,
        injected > 0,
        prompt_tokens,
        tokens,
        {0: tokens - injected},
        logprob,
        timed_out=False,
        error="",
    )


rollout.made = 0


def batch(*verdicts):
    """A group of rollouts for each list of verdicts."""
    return [[rollout(correct, p) for correct in group] for p, group in enumerate(verdicts)]


def compute_advantages(groups, zero_variance_filter=True, normalisation="batch"):
    """loss.compute_advantages, by default with ScaleRL's filter and normalisation."""
    return loss.compute_advantages(groups, zero_variance_filter=zero_variance_filter, normalisation=normalisation)


def make_plan(groups, rank=0, trainers=1, token_budget=10_000, **weighing):
    """A plan, by default for one trainer and with everything in one micro-batch."""
    kept, advantages = compute_advantages(groups, **weighing)
    trained = loss.carries_loss(groups, kept)
    return batches.make_plan(groups, advantages, trained, token_budget=token_budget, rank=rank, trainers=trainers)


def planned(plan):
    """{key: (advantage, prompt_index)} of what a plan trains on."""
    return {item.key: (advantage, p) for micro_batch in plan.micro_batches for item, advantage, p in micro_batch}


def test_sec3_2_prompts_all_right_or_all_wrong_are_dropped_before_the_batch_std():
    groups = batch([True, False], [True, True], [False, False])
    kept, advantages = compute_advantages(groups)
    assert kept.tolist() == [True, False, False]
    # The std of (1, -1) is 1; with the four zeros of the other prompts it would be sqrt(1/3), the advantages 1.73.
    assert advantages.tolist() == [[pytest.approx(1, abs=1e-5), pytest.approx(-1, abs=1e-5)], [0, 0], [0, 0]]


def test_sec2_the_baseline_keeps_prompts_of_zero_variance():
    kept, advantages = compute_advantages(batch([True, False], [True, True]), zero_variance_filter=False, normalisation="none")
    assert kept.tolist() == [True, True] and advantages.tolist() == [[1, -1], [0, 0]]


def test_the_filter_looks_at_correctness_and_not_at_a_shaped_reward():
    shaped = [[rollout(True, value=1.0), rollout(True, value=0.5)], [rollout(True, 1), rollout(False, 1)]]
    kept, _ = compute_advantages(shaped)
    assert kept.tolist() == [False, True]


@pytest.mark.parametrize("filtered", [True, False])
def test_a_group_whose_verifier_failed_is_dropped_and_leaves_no_nan(filtered):
    groups = batch([True, None], [True, False])
    plan = make_plan(groups, zero_variance_filter=filtered)
    assert set(planned(plan)) == {h.key for h in groups[1]} and plan.dropped == groups[0] and plan.kept == 1
    assert sorted(advantage for advantage, _ in planned(plan).values()) == pytest.approx([-1, 1], abs=1e-5)


def test_truncated_completions_are_wrong_in_the_group_mean_but_carry_no_loss():
    [group] = batch([True, False, False, False])
    group[3] = replace(group[3], truncated=True)
    plan = make_plan([group], normalisation="none")
    # Rewards 1 -1 -1 -1 have mean -1/2. Without the truncated one it would be -1/3, and the first advantage 4/3.
    assert planned(plan) == {group[0].key: (1.5, 0), group[1].key: (-0.5, 0), group[2].key: (-0.5, 0)}
    assert plan.dropped == [group[3]]
    assert (plan.denominators.completions, plan.denominators.tokens) == (3, 12)


@pytest.mark.parametrize("trainers, budget", [(1, 10_000), (1, 20), (2, 20), (3, 20)])
def test_denominators_count_the_whole_batch_on_every_rank(trainers, budget):
    groups = [
        [rollout(True, 0, tokens=5), rollout(False, 0, tokens=9, injected=2)],  # 5 + 7 sampled tokens
        [rollout(True, 1), rollout(True, 1)],  # filtered
        [rollout(True, 2, tokens=1), rollout(False, 2, tokens=6, truncated=True)],  # 1 + 0: truncated
    ]
    for rank in range(trainers):
        found = make_plan(groups, rank, trainers, budget).denominators
        assert (found.completions, found.prompts, found.tokens) == (3, 2, 13)
        assert found.tokens_per_prompt.tolist() == [12, 0, 1]


@st.composite
def groups_of_three(draw):
    """Groups of three rollouts: right, wrong, unverified or truncated; up to 9 prompt tokens and 30 of completion."""
    verdict, length, cut = st.sampled_from([True, True, False, False, None]), st.integers(1, 30), st.booleans()
    completions = st.tuples(verdict, length, st.integers(1, 9), cut)
    rows = draw(st.lists(st.lists(completions, min_size=3, max_size=3), min_size=1, max_size=7))
    return [
        [
            rollout(correct and not cut, p, tokens=tokens, prompt_tokens=prompt, truncated=cut)
            for correct, tokens, prompt, cut in row
        ]
        for p, row in enumerate(rows)
    ]


@trials(max_examples=60, deadline=None)
@given(groups_of_three(), st.integers(1, 4), st.integers(39, 120))
def test_ranks_share_the_batch_in_as_many_micro_batches_each_within_the_budget(groups, trainers, budget):
    plans = [make_plan(groups, rank, trainers, budget) for rank in range(trainers)]
    assert len({len(plan.micro_batches) for plan in plans}) == 1  # else the ranks would wait for each other for ever
    for micro_batch in (micro_batch for plan in plans for micro_batch in plan.micro_batches):
        assert len(micro_batch) * max((h.prompt_tokens + h.tokens for h, *_ in micro_batch), default=0) <= budget
    trained = [key for plan in plans for key in planned(plan)]
    kept, _ = compute_advantages(groups)
    wanted = [h.key for group, keep in zip(groups, kept) for h in group if keep and not h.truncated]
    assert sorted(trained) == sorted(wanted)
    for plan in plans:  # what is not trained on has to leave the mailbox too
        assert sorted(trained + [h.key for h in plan.dropped]) == sorted(h.key for group in groups for h in group)


def completion(prompt_ids, ids, mask, logprobs):
    return pipeline.Rollout(0, 0, False, prompt_ids, ids, mask, logprobs, [0] * len(ids), "", False, False)


def test_a_micro_batch_puts_each_logprob_one_before_its_token_and_masks_prompt_injection_and_padding():
    longer = completion([5, 6], [7, 8, 9], [True, False, True], [-0.5, 0.0, -0.25])
    completions = [longer, completion([1], [2], [True], [-2.0])]
    items = [batches.Item(None, 1.5, 4), batches.Item(None, -0.5, 0)]
    input_ids, mask, gen_logprobs, advantages, prompt_index = batches.collate(items, completions, "cpu")
    assert input_ids.tolist() == [[5, 6, 7, 8, 9], [1, 2, 0, 0, 0]]
    # Column i belongs to token i + 1, as the log-probs of input_ids[:, 1:] do.
    assert mask.tolist() == [[False, True, False, True], [True, False, False, False]]
    assert gen_logprobs.tolist() == [[0, -0.5, 0, -0.25], [-2, 0, 0, 0]]
    assert advantages.tolist() == [1.5, -0.5] and prompt_index.tolist() == [4, 0]


def test_a_dummy_micro_batch_has_one_row_without_any_token_that_counts():
    input_ids, mask, gen_logprobs, advantages, prompt_index = batches.collate([], [], "cpu")
    assert input_ids.shape[0] == len(advantages) == len(prompt_index) == 1
    assert input_ids.shape[1] == mask.shape[1] + 1 and not mask.any()


def tiny_model():
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=18,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=32,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def lone_trainer():
    """A Trainer at version 6 in this process alone, with stand-ins for the queue and the other processes."""
    trainer = object.__new__(train.Trainer)
    trainer.args = SimpleNamespace(
        lr=0.1,
        warmup=1,
        weight_decay=0.5,
        loss="cispo",
        clips={"eps_max": 5.0},
        aggregation="prompt",
        token_budget=10_000,
    )
    trainer.policy = precision.PolicyModel(tiny_model(), dtype=torch.float32)
    trainer.optimizer = torch.optim.AdamW(trainer.policy.parameters(), lr=0.1, weight_decay=0.5)
    trainer.version = 6
    trainer.checked = False
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


def test_the_effective_sample_size_is_the_share_of_tokens_that_equal_weights_would_need():
    # rho 1 and 3: (1 + 3)^2 / (2 (1 + 9)) = 0.8; the masked third token counts nowhere
    logprobs = torch.tensor([[0.0, math.log(3.0), 5.0]])
    mask = torch.tensor([[True, True, False]])
    sums, largest = batches.statistics(logprobs, torch.zeros(1, 3), torch.zeros(1, 3), mask, mask)
    found = batches.means(sums.tolist(), largest)
    assert found["effective_sample_size"] == pytest.approx(0.8) and found["rho_mean"] == pytest.approx(2.0)
    assert batches.means([0.0] * 6, 0.0) == {}  # no token


def test_without_any_gradient_the_weights_stand_still_but_the_version_goes_on():
    trainer = lone_trainer()
    before = [parameter.clone() for parameter in trainer.policy.parameters()]
    metrics = trainer.gradient_step(make_plan(batch([True, True], [False, False])))
    assert trainer.version == 7 and metrics["gradient_norm"] == 0
    # An optimizer step on a zero gradient would still shrink the weights, by the weight decay.
    assert all(torch.equal(was, now) for was, now in zip(before, trainer.policy.parameters()))


@pytest.mark.parametrize("value, moves", [(1.0, True), (math.nan, False), (math.inf, False)])
def test_a_gradient_that_is_not_finite_leaves_the_weights_as_they_are(value, moves):
    trainer = lone_trainer()
    before = [parameter.clone() for parameter in trainer.policy.parameters()]
    for parameter in trainer.policy.parameters():
        parameter.grad = torch.ones_like(parameter)
    parameter.grad.view(-1)[0] = value  # one number of the last parameter
    plan = SimpleNamespace(micro_batches=[], denominators=SimpleNamespace(tokens=1))
    assert trainer.gradient_step(plan)["skipped"] == (not moves) and trainer.version == 7
    assert all(torch.equal(was, now) != moves for was, now in zip(before, trainer.policy.parameters()))


def test_learning_rate_and_weight_decay_of_a_step_are_those_of_the_flags_whatever_a_checkpoint_held():
    trainer = lone_trainer()
    trainer.optimizer = torch.optim.AdamW(trainer.policy.parameters(), lr=9.0, weight_decay=9.0)
    metrics = trainer.gradient_step(make_plan(batch([True, True], [False, False])))
    group = trainer.optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], metrics["lr"]) == (0.1, 0.5, 0.1)


def test_the_start_up_check_stops_a_run_before_its_first_optimizer_step():
    trainer = lone_trainer()
    before = [parameter.clone() for parameter in trainer.policy.parameters()]
    sampled = pipeline.Rollout(0, 0, False, [3, 4], [5, 6], [True] * 2, [-9.0] * 2, [0] * 2, "", False, False)
    trainer.pipeline.take = lambda rollouts: [sampled] * len(rollouts)  # 18 tokens: near -2.9, not -9
    with pytest.raises(RuntimeError, match="start-up check.*temperature.*log-prob mode.*head dtype.*tokenizer"):
        trainer.gradient_step(make_plan(batch([True, False])))
    assert all(torch.equal(was, now) for was, now in zip(before, trainer.policy.parameters()))


def test_fewer_steps_on_resume_issue_only_what_they_need():
    issued = []
    box = SimpleNamespace(room=3, issue=issued.append)
    run = SimpleNamespace(pipeline=box, curriculum=SimpleNamespace(next=lambda count: ["new"] * count))
    train.Trainer.issue(run, waiting=["a", "b"])
    train.Trainer.issue(run, waiting=["a", "b", "c", "d"])
    assert issued == [["a", "b", "new"], ["a", "b", "c"]]


def test_a3_the_learning_rate_rises_linearly_over_the_warm_up_and_stays():
    args = SimpleNamespace(lr=0.8, warmup=4)
    runs = [SimpleNamespace(args=args, version=version) for version in (0, 1, 3, 4, 100)]
    assert [train.Trainer.warm_up(run) for run in runs] == pytest.approx([0.2, 0.4, 0.8, 0.8, 0.8])


def test_eq1_the_clock_counts_devices_and_leaves_out_what_is_paused():
    now = [1000.0]
    clock = fleet.Clock(devices=4, read=lambda: now[0])
    with clock.paused():  # R_0 is measured before the clock starts
        now[0] += 500
    assert clock.gpu_hours == 0
    clock.start()
    now[0] += 9
    with clock.paused():
        now[0] += 100
        assert clock.gpu_hours == pytest.approx(4 * 9 / 3600)
    now[0] += 9
    assert clock.gpu_hours == pytest.approx(0.02)  # 4 devices x 18 s / 3600
    resumed = fleet.Clock(devices=2, gpu_hours=0.02, read=lambda: now[0])
    resumed.start()
    now[0] += 18
    assert resumed.gpu_hours == pytest.approx(0.03)  # + 2 devices x 18 s / 3600


def test_sec2_1_pass_rate_is_the_mean_at_k_with_its_sampling_error():
    prompts = [data.Prompt(i, (1,), "", "", task) for i, task in enumerate(["easy", "hard"])]
    found = reward.pass_rates(batch([True, True, True, False], [False, False, False, True]), prompts)
    assert found["pass_rate"] == 0.5 and found["completions"] == 8 and found["tasks"] == {"easy": 0.75, "hard": 0.25}
    # Each prompt's verdicts have the unbiased variance 3/4 * 1/4 * 4/3 = 1/4, so the mean of 8 has 1/32.
    assert found["stderr"] == pytest.approx((1 / 32) ** 0.5)


def test_a_failed_verifier_is_no_wrong_answer_in_the_validation():
    prompts = [data.Prompt(i, (1,), "", "", "math") for i in range(2)]
    found = reward.pass_rates(batch([True, False, True, False], [True, None, None, None]), prompts)
    assert found["pass_rate"] == 0.5  # if the three unknown verdicts counted as wrong: 3/8


def test_a12_the_entropy_on_validation_is_minus_the_mean_log_prob_of_the_tokens_that_the_policy_sampled():
    prompts = [data.Prompt(i, (1,), "", "", "math") for i in range(2)]
    groups = [[rollout(True, 0, tokens=4, logprob=-1.0)], [rollout(False, 1, tokens=4, injected=2, logprob=-2.0)]]
    # 3 nats over 4 + 2 sampled tokens; averaged over completions it would be (1/4 + 2/2) / 2, with injected tokens 3/8
    assert reward.pass_rates(groups, prompts)["entropy_sampled"] == 0.5


# --- What the flags ask for ------------------------------------------------------------------------------------------


def test_eq9_the_penalty_reaches_the_scorer_only_with_length_control_penalty():
    prompt = data.Prompt(0, (1,), "", "1", "arithmetic")
    for control, expected in (("penalty", 0.5), ("interrupt", 1.0), ("none", 1.0)):
        lengths = ["--length-max", "4", "--length-cache", "2"] if control == "penalty" else []
        scorer = make_scorer(read_settings(["--length-control", control, *lengths]))
        scorer.submit(SimpleNamespace(text="<think>1</think>1", ids=[0] * 3, truncated=False), prompt)
        assert [score.reward for score in scorer.finished()] == [expected]  # 1 + (4 - 3) / 2 - 1


def test_verifiers_is_the_number_of_workers_beside_a_generator():
    assert [len(make_scorer(read_settings(asked))._workers) for asked in ([], ["--verifiers", "5"])] == [2, 5]


def test_a10_only_length_control_interrupt_interrupts():
    for control, expected in (("interrupt", (96, 104)), ("penalty", None), ("none", None)):
        args = read_settings(["--length-control", control])
        assert make_generator(args, torch.device("cpu"), torch.float32).think_budget == expected


def test_the_embedded_tasks_choose_the_base_that_knows_them():
    assert read_settings([]).model == "base" and read_settings(["--data", "arithmetic:1", "sorting:1"]).model == "base/sorting"
    tiny = read_settings(["--data", "tiny", "--lr", "1e-3"])  # with settings of its own, and a flag that wins
    assert (tiny.model, tiny.steps, tiny.generations, tiny.lr) == ("base/tiny", 160, 8, 1e-3)
    assert read_settings(["--data", "tiny", "--model", str(BASE)]).steps == EMBEDDED["steps"]


def test_a_run_without_git_has_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    prompts = data.Data([1, 2, 3], [4], 5, 6)
    found = provenance(prompts)
    assert found["commit"] is None and found["versions"]["torch"] == torch.__version__
    assert found["prompts"] == {"train": 3, "validation": 1, "too_long": 5, "repeated": 6, "unusable": 0}


def test_a_users_own_copies_of_checkpoints_are_none_of_the_runs():
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-10-copy", "checkpoint-best", "checkpoint.tmp"):
        Path("run", name).mkdir(parents=True)
    assert [folder.name for folder in finished("run")] == ["checkpoint-9", "checkpoint-10"]


def stored(**flags):
    """The folder of a run that was started with these flags."""
    Path("run/checkpoint-1").mkdir(parents=True)
    row = {"kind": "config", "flags": {"clips": {"eps_max": 4.0}, "resume": False, **flags}}
    Path("run/log.jsonl").write_text(json.dumps(row) + "\n")
    return Path("run")


def test_what_belongs_to_a_machine_is_not_resumed_and_what_the_state_depends_on_must_not_change():
    def stop(message):
        raise RuntimeError(message)

    stored(trainers=3, protections=["no network"], lr=0.5, eval_prompts=64)
    assert stored_flags(Path("run/log.jsonl")) == {"lr": 0.5, "eval_prompts": 64, "eps_max": 4.0}
    with pytest.raises(RuntimeError, match="--eval-prompts 32: the run in run has 64"):
        resumed_flags({"out": "run", "eval_prompts": 32}, stop)


def test_evaluation_refuses_what_it_does_not_read_and_more_processes_than_one(capsys, monkeypatch):
    assert "it does not read --lr, --steps" in refused(capsys, "--evaluate", str(BASE), "--steps", "3", "--lr", "1")
    # An evaluation has no micro-batches, so --token-budget does not limit its lengths.
    assert read_settings(["--evaluate", str(BASE), "--max-new-tokens", "4096"]).max_new_tokens == 4096
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "--evaluate runs in a single process" in refused(capsys, "--evaluate", str(BASE))


# --- Before anything is spawned --------------------------------------------------------------------------------------


def unspawned(monkeypatch, capsys, *argv):
    """The message with which `torchrun train.py ARGV` stops before it starts processes or writes anything."""
    monkeypatch.setattr(train, "launch", lambda *_: pytest.fail("processes were started"))
    with pytest.raises(SystemExit) as end:
        train.main([*argv, "--out", "run"])
    assert end.value.code == 2 and not Path("run").exists()
    return capsys.readouterr().err


def test_a_model_that_is_not_supported_is_refused_by_name(monkeypatch, capsys):
    AutoConfig.for_model("gpt2").save_pretrained("model")
    Path("rows.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n')
    message = unspawned(monkeypatch, capsys, "--model", "model", "--data", "rows.jsonl")
    assert "'gpt2' is not supported" in message and "qwen3" in message


def test_a_malformed_line_is_refused_with_file_and_line(monkeypatch, capsys):
    Path("rows.jsonl").write_text('{"prompt": "1+1=", "answer": 2}\n{"prompt": "1+2="}\n')
    message = unspawned(monkeypatch, capsys, "--model", str(BASE), "--data", "rows.jsonl")
    assert "rows.jsonl:2: expected" in message and "answer" in message and "Traceback" not in message


def test_too_few_prompts_are_refused(monkeypatch, capsys):
    Path("rows.jsonl").write_text("".join(f'{{"prompt": "1+{n}=", "answer": {n + 1}}}\n' for n in range(10)))
    message = unspawned(monkeypatch, capsys, "--model", str(BASE), "--data", "rows.jsonl", "--k", "2", "--prompts", "3")
    assert "more than (k + 1)·P = 9 training prompts, got 9" in message


def sized(*argv, positions, phrase=19):
    """(max_prompt_tokens, max_new_tokens, interrupt_at, length_max, length_cache), and what is said about them."""
    args = read_settings(["--model", "M", "--data", "F", *argv])
    said = sizing.fit_lengths(args, positions, args.default_new, phrase)
    return [args.max_prompt_tokens, args.max_new_tokens, args.interrupt_at, args.length_max, args.length_cache], said


def test_lengths_that_are_not_given_shrink_to_the_models_positions_by_one_factor():
    assert sized(positions=16384) == ([2048, 14336, (10000, 12000), 14000, 2000], "")
    # 8,192 positions are half of the paper's 16,384.
    lengths, said = sized(positions=8192)
    assert lengths == [1024, 7168, (5000, 6000), 7000, 1000]
    assert "8192 positions" in said and "--max-new-tokens 7168 instead of 14336" in said
    assert "--interrupt-at 5000 6000 instead of 10000 12000" in said
    # A prompt length that is given stays: 7,168 = 14,336 / 2 are left of 7,268.
    lengths, said = sized("--max-prompt-tokens", "100", positions=7268)
    assert lengths == [100, 7168, (5000, 6000), 7000, 1000] and "--max-prompt-tokens" not in said
    lengths, _ = sized("--interrupt-at", "6000", "6500", positions=8192)
    assert lengths == [1024, 7168, [6000, 6500], 7000, 1000]


def test_default_interruptions_follow_a_given_length_that_they_would_not_fit():
    lengths, said = sized("--max-new-tokens", "1792", positions=8192)  # an eighth of the paper's
    assert lengths[:3] == [2048, 1792, (1250, 1500)]
    assert said == ("Lengths made to fit, --max-new-tokens is 1792: --interrupt-at 1250 1500 instead of 10000 12000")
    assert sized("--max-new-tokens", "13000", positions=16384) == ([2048, 13000, (10000, 12000), 14000, 2000], "")
    # 56 = 14,336 / 256 scales them to 39 and 46; but 46 + 19 tokens of phrase leave none for the answer: at most 36.
    lengths, _ = sized("--max-new-tokens", "56", positions=8192)
    assert lengths[2] == (30, 36)


def test_given_lengths_are_never_changed():
    lengths, _ = sized("--max-new-tokens", "8000", "--interrupt-at", "70", "90", positions=8192)
    assert lengths[:3] == [2048, 8000, [70, 90]]  # `prepare` refuses them if the prompts at hand are too long
    with pytest.raises(ValueError, match="--max-prompt-tokens 600 leaves no position.*512"):
        sized("--max-prompt-tokens", "600", positions=512)


# The config of Qwen3-0.6B as published.
QWEN3 = AutoConfig.for_model(
    "qwen3",
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151936,
    max_position_embeddings=40960,
    tie_word_embeddings=True,
)


@pytest.mark.parametrize("trainers", [0, 1], ids=["a GPU of its own", "a GPU shared with the trainer"])
def test_the_papers_defaults_are_reduced_to_what_fits_qwen3_0_6b_into_80_gb(trainers):
    args = read_settings(["--model", "M", "--data", "F", "--dtype", "bfloat16"])
    assert args.slots == 256  # x 16,384 positions x 2 x 28 layers x 8 heads x 128 numbers x 2 bytes = 481 GB
    said = sizing.fit_slots(args, QWEN3, free=80_000_000_000, trainers=trainers, generators=1)
    slot, parameters = 16384 * 114_688, 596_049_920
    # A trainer needs 16 bytes per parameter, 9.5 GB, besides its micro-batch.
    needed = args.slots * slot + 2 * parameters + trainers * 16 * parameters
    assert 0.9 * 80e9 - needed < (1 + 3 * trainers) * slot  # left: less than one slot and the micro-batch
    assert needed < 0.9 * 80e9 and args.slots == (29 if trainers else 37)
    assert "256 slots x 16,384 positions x 114,688 bytes = 481.0 GB" in said and f"--slots {args.slots} " in said
    assert "80.0 GB are free" in said and "a trainer needs about" in said


def test_slots_that_are_given_and_do_not_fit_are_refused_with_what_would_fit():
    args = read_settings(["--model", "M", "--data", "F", "--dtype", "bfloat16", "--slots", "256"])
    with pytest.raises(ValueError, match="--slots 256 does not fit: .*481.0 GB; 80.0 GB are free.*; 37 would fit"):
        sizing.fit_slots(args, QWEN3, free=80_000_000_000, trainers=0, generators=1)
    args = read_settings(["--model", "M", "--data", "F", "--dtype", "bfloat16"])
    with pytest.raises(ValueError, match="0 would fit. Lower --slots or --max-new-tokens"):
        sizing.fit_slots(args, QWEN3, free=2_000_000_000, trainers=0, generators=1)
    assert args.slots == 256


@pytest.mark.parametrize(
    "gpus, rank, world, expected",
    [
        (0, 0, 2, (1, 1)),
        (0, 4, 5, (1, 4)),  # without a GPU all ranks share the machine's memory
        (1, 1, 2, (1, 1)),
        (8, 5, 8, (0, 1)),
        (2, 1, 4, (0, 2)),
        (2, 0, 4, (1, 1)),  # rank 0 is the trainer
    ],
)
def test_ranks_on_one_gpu_or_without_a_gpu_on_one_machine_share_its_memory(monkeypatch, gpus, rank, world, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 + device, 2000))
    for name, value in {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "RANK": rank, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, str(value))
    found = sizing.neighbours(read_settings([]))
    assert (found["trainers"], found["generators"]) == expected
    assert found["free"] == 1000 + rank % gpus if gpus else found["free"] > 1e6


def test_too_many_slots_stop_a_run_before_weights_are_loaded(monkeypatch, capsys):
    monkeypatch.setattr(sizing, "available", lambda: 100_000_000)
    # 152 positions x 2 x 4 layers x 3 heads x 32 numbers x 4 bytes = 466,944 bytes a slot
    message = unspawned(monkeypatch, capsys, "--slots", "1000")
    assert "--slots 1000 does not fit: 1000 slots x 152 positions x 3,072 bytes = 0.5 GB; 0.1 GB are free" in message


def test_the_simple_generator_on_a_gpu_names_the_fast_one(monkeypatch):
    model, args = (AutoConfig.from_pretrained(BASE), AutoTokenizer.from_pretrained(BASE)), read_settings([])
    assert flags.fit(args, *model) == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "--generator vllm" in "".join(flags.fit(args, *model))
    assert flags.fit(read_settings(["--generator", "vllm"]), *model) == []


def test_a_model_with_too_few_positions_is_refused(monkeypatch, capsys):
    Path("rows.jsonl").write_text("".join(f'{{"prompt": "1+{n}=", "answer": {n + 1}}}\n' for n in range(30)))
    own = ["--model", str(BASE), "--data", "rows.jsonl", "--k", "1", "--prompts", "3"]
    message = unspawned(monkeypatch, capsys, *own, "--max-new-tokens", "510", "--interrupt-at", "8", "9")
    assert "within the 512 positions" in message and "got 5 + 510 tokens" in message and "--max-new-tokens" in message


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--interrupt-phrase", "="], "ends in '</think>', got '='"),
        (["--interrupt-at", "80", "111"], "got (80, 111): no token would be left"),
        (["--interrupt-at", "72", "64"], "--interrupt-at 72 64: expected LO <= HI"),
        (["--interrupt-at", "80", "88", "--max-new-tokens", "64"], "< --max-new-tokens 64"),
        (["--token-budget", "100"], "--token-budget 100 is smaller than one prompt with its completion, 152"),
    ],
)
def test_a10_an_interruption_that_cannot_be_injected_is_refused(monkeypatch, capsys, flags, said):
    assert said in unspawned(monkeypatch, capsys, *flags)


def test_an_interrupted_evaluation_is_repeated(monkeypatch):
    calls = []
    run = SimpleNamespace(
        version=20,
        evaluated=10,
        args=SimpleNamespace(eval_every=10, steps=20),
        calls=calls,
        validate=lambda: calls.append("evaluate"),
        issue=lambda waiting: None,
        publish=lambda final: setattr(run, "evaluated", 20),
        clock=SimpleNamespace(start=lambda: None),
        curriculum=SimpleNamespace(in_flight=[]),
    )
    train.train(run)
    assert calls == ["evaluate"]
    train.train(run)  # now the evaluation has been made
    assert calls == ["evaluate"]


def watched(**state):
    """A stand-in for rank 0's Trainer with what `watch`, `warn` and `validate` read; its warnings go to stdout."""
    run = SimpleNamespace(
        truncated=deque(maxlen=10),
        standing=0,
        skipped=0,
        unverified=0,
        fleet=SimpleNamespace(rank=0),
        bar=SimpleNamespace(write=print, set_description=lambda *_: None),
        draw=lambda: None,
    )
    run.warn = lambda name, **values: train.Trainer.warn(run, name, **values)
    vars(run).update(state)
    return run


def test_a15_many_truncated_completions_are_warned_of_after_ten_steps(capsys):
    run = watched(version=9, args=SimpleNamespace(prompts=1))
    rollouts = [rollout(False, truncated=n < 2) for n in range(10)]  # 20 %
    for _ in range(5):
        train.Trainer.watch(run, rollouts, 1.0)
    assert "WARNING" not in capsys.readouterr().out  # 5 steps at 20 % are 10 % of 10 steps: not above the limit
    train.Trainer.watch(run, rollouts, 1.0)
    said = capsys.readouterr().out
    assert "WARNING: 20% of the completions of the last 6 steps" in said and "--interrupt-at" in said


def test_ten_batches_without_gradient_in_a_row_are_warned_of(capsys):
    run = watched(version=99, args=SimpleNamespace(prompts=1))
    for norm in (*[0.0] * 9, 0.5, *[0.0] * 9):
        train.Trainer.watch(run, [rollout(False)] * 3 + [rollout(True)], norm)
    assert "WARNING" not in capsys.readouterr().out  # twice nine, with a gradient in between
    train.Trainer.watch(run, [rollout(False)] * 3 + [rollout(True)], 0.0)
    said = capsys.readouterr().out
    assert "10 batches in a row had no gradient" in said and "pass rate of the last batch 0.250" in said
    assert "--think-end" in said


@pytest.mark.parametrize(
    "last, version, warned",
    [
        ({"marked": False}, 0, True),
        ({"marked": True}, 0, False),
        ({"marked": False}, 5, False),
        ({"interrupted": True}, 0, True),  # the phrase holds the mark
        ({"interrupted": True, "correct": True}, 0, False),
    ],
)
def test_a_validation_without_any_mark_or_of_few_prompts_is_said_aloud_at_step_0(
    monkeypatch, capsys, last, version, warned
):
    without = replace(rollout(False), marked=False)
    rollouts = [[without] * 2, [without, replace(rollout(False), **last)]]
    run = watched(
        pipeline=SimpleNamespace(evaluate=lambda *_: (rollouts, [], {})),
        validation=[None] * 2,
        version=version,
        args=SimpleNamespace(eval_generations=2, think_end="</think>"),
        clock=fleet.Clock(1),
        log=lambda *_, **__: None,
    )
    monkeypatch.setattr(reward, "pass_rates", lambda *_: {})
    train.Trainer.validate(run)
    said = capsys.readouterr().out
    assert ("none of the 4 completions of the validation holds '</think>'" in said) == warned
    assert all(words in said for words in ("every reward is -1", "--think-end none", "--think-end TEXT")) == warned
    assert ("only 2 held-out prompts" in said) == (version == 0)


def test_failing_verifiers_stop_the_run_above_one_percent_of_the_groups():
    run = watched(unverified=2, version=10, args=SimpleNamespace(prompts=20))
    train.Trainer.watch(run, [rollout(True)], 1.0)  # 2 of 200: 1 %
    run.unverified = 3
    with pytest.raises(train.Unverifiable, match="failed on 3 groups"):
        train.Trainer.watch(run, [rollout(True)], 1.0)


def test_a_reference_that_cannot_be_read_is_named_once_and_is_no_failure_of_the_verifier():
    errors, lines = [f"{UNREADABLE} in LaTeX, got '$'", "no memory", ""], []
    groups = [
        [replace(of, error=errors[p] if of.correct is None else "") for of in group]
        for p, group in enumerate(batch([True, None], [None, None], [True, False]))
    ]
    prompts = [data.Prompt(i, (1,), f"prompt {i}", "$", "math", where=f"a.jsonl:{i}") for i in range(3)]
    run = SimpleNamespace(
        unverified=0,
        named=set(),
        log=lambda kind, **row: lines.append((kind, row)),
        curriculum=SimpleNamespace(update_history=lambda *_: None, prompts=prompts),
    )
    run.name_unverified = lambda *what: train.Trainer.name_unverified(run, *what)
    for _ in range(2):
        train.Trainer.learned(run, groups)
    assert run.unverified == 2  # the second group, in two steps
    named = [{"prompt": f"prompt {i}", "where": f"a.jsonl:{i}", "error": groups[i][-1].error} for i in range(2)]
    assert lines == [("unverified", row) for row in named]


def test_a_verifier_that_fails_on_the_validation_set_stops_every_trainer_and_the_evaluation_does_not_count():
    for rank, groups in (0, [[rollout(True)]] * 200), (1, []):
        failed = {3: "no sandbox", 4: "no sandbox"}
        run = SimpleNamespace(
            pipeline=SimpleNamespace(evaluate=lambda *_: (groups, [], failed)),
            validation=[None] * 200,
            version=7,
            evaluated=None,
            args=SimpleNamespace(eval_generations=1),
            clock=fleet.Clock(1),
            log=lambda *_, **__: None,
            draw=lambda: None,
            name_unverified=lambda *_: None,
            bar=SimpleNamespace(set_description=lambda *_: None),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reward, "pass_rates", lambda *_: {})
            train.Trainer.validate(run)  # 1 %
            failed |= dict.fromkeys(range(50, 60), f"{UNREADABLE} in LaTeX, got ''")  # bad data, no failure
            train.Trainer.validate(run)
        assert run.evaluated == 7
        run.evaluated, failed[5] = None, "no memory"
        with pytest.raises(train.Unverifiable, match="failed on 3 groups: no sandbox"):
            train.Trainer.validate(run)
        assert run.evaluated is None


def test_eq1_a_validation_costs_no_compute():
    now = [0.0]

    def evaluate(*_):
        now[0] += 100
        return [], [], {}

    run = SimpleNamespace(
        pipeline=SimpleNamespace(evaluate=evaluate),
        validation=[None],
        version=7,
        args=SimpleNamespace(eval_generations=1),
        clock=fleet.Clock(2, read=lambda: now[0]),
        bar=SimpleNamespace(set_description=lambda *_: None),
    )
    run.clock.start()
    now[0] += 9
    train.Trainer.validate(run)
    now[0] += 9
    assert run.clock.gpu_hours == pytest.approx(2 * 18 / 3600)


def evaluated(capsys, *argv):
    """(what --evaluate prints, the rows it writes)"""
    train.main(["--evaluate", str(BASE), "--generations", "4", "--slots", "32", "--out", "found", *argv])
    return capsys.readouterr().out, [json.loads(line) for line in Path("found/evaluation.jsonl").open()]


def test_evaluation_asks_every_row_of_a_file_and_keeps_every_completion(capsys):
    rows = [
        {"prompt": text, "answer": answer, "task": "arithmetic"}
        for text, answer in data.examples("arithmetic", 12, seed=1, held_out=True)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    printed, found = evaluated(capsys, "--data", "rows.jsonl")
    assert {row["prompt"] for row in found} == {row["prompt"] for row in rows} and len(found) == 12 * 4
    right = sum(row["correct"] for row in found) / len(found)
    assert "arithmetic: 12 prompts, 4 completions each" in printed and f"mean@4   {right:.4f} +- " in printed
    some = sum(any(row["correct"] for row in found if row["prompt"] == x["prompt"]) for x in rows) / 12
    assert f"pass@4   {some:.4f} +- " in printed
    assert "holds an evaluation already" in refused(capsys, "--evaluate", str(BASE), "--out", "found")


def test_evaluation_asks_as_many_rows_of_a_file_as_eval_prompts_says_and_shows_rate_and_time_left(capsys):
    rows = [
        {"prompt": text, "answer": answer, "task": "arithmetic"}
        for text, answer in data.examples("arithmetic", 30, seed=1, held_out=True)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train.main(
        [
            "--evaluate",
            str(BASE),
            "--generations",
            "2",
            "--slots",
            "4",
            "--out",
            "found",
            "--data",
            "rows.jsonl",
            "sorting",
            "--eval-prompts",
            "5",
        ]
    )
    asked = [json.loads(line)["prompt"] for line in Path("found/evaluation.jsonl").open()]
    printed = capsys.readouterr()
    held = set(
        prompt.text
        for prompt in sources.load(
            ["rows.jsonl"], AutoTokenizer.from_pretrained(BASE), budget=40, validation=5
        ).validation
    )
    assert len(set(asked)) == 10 and len(asked) == 20 and len(held) == 3
    assert held < set(asked)  # 3 of 30 prompts are held out; asked are 2 more of the file, and 5 to sort
    assert sum(prompt in {row["prompt"] for row in rows} for prompt in set(asked)) == 5
    assert "20/20" in printed.err and " completions/s" in printed.err and "<00:" in printed.err


def test_evaluation_of_an_embedded_task_asks_held_out_prompts_only(capsys):
    _, found = evaluated(capsys, "--data", "arithmetic", "--eval-prompts", "3")
    assert len(found) == 3 * 4 and all(data.is_held_out(row["prompt"]) for row in found)


def test_a_log_line_is_json_also_without_a_number_at_any_depth(tmp_path):
    row = {"entropy": math.nan, "step": 1, "tasks": {"math": math.inf, "code": [0.5, {"pass_rate": -math.inf}]}}
    evaluation.append(tmp_path / "log.jsonl", row)
    assert json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=pytest.fail) == {
        "entropy": None,
        "step": 1,
        "tasks": {"math": None, "code": [0.5, {"pass_rate": None}]},
    }


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
    """The ranks of one run, forked or under a launcher, its folder, and the file with what it prints."""

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

    def reach(self, step, after=0):
        """Wait until this optimizer step is logged, not counting the first `after` characters of the log."""
        until, log = time.monotonic() + PATIENCE, self.out / "log.jsonl"
        while not any(
            json.loads(line)["step"] >= step
            for line in (log.read_text()[after:] if log.exists() else "").splitlines()
            if '"kind": "step"' in line
        ):
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
    "--data",
    "tiny",
    "--k",
    "0",
    "--prompts",
    "8",
    "--generations",
    "12",
    "--slots",
    "96",
    "--eval-every",
    "1",
    "--eval-prompts",
    "2",
    "--eval-generations",
    "1",
    "--token-budget",
    "8192",
)


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


def test_sec3_1_ppo_off_policy_1_trains_the_batches_of_pipeline_0(one_trainer, forks, tmp_path):
    ppo = Run(tmp_path / "run").fork(forks, 2, *ON_POLICY, "--steps", "2", "--off-policy", "ppo", "--k", "1")
    assert ppo.wait() == [0, 0], ppo.text
    for mine, reference in zip(ppo.rows("step"), one_trainer.rows("step"), strict=True):
        assert mine["staleness"] == reference["staleness"] and list(mine["staleness"]) == ["0"]
        assert (mine["prompts"], mine["pass_rate"]) == (reference["prompts"], reference["pass_rate"])
        assert mine["gradient_norm"] == pytest.approx(reference["gradient_norm"], rel=1e-4) and mine["kept"] > 0


def test_fig11_two_tasks_train_together_with_a_curve_for_each(forks, tmp_path):
    run = Run(tmp_path / "run").fork(forks, 2, *ON_POLICY, "--steps", "1", "--data", "arithmetic:1", "sorting:1")
    assert run.wait() == [0, 0], run.text
    config, (first, last) = run.rows("config")[0], run.rows("eval")
    assert config["flags"]["model"] == "base/sorting"
    assert set(first["tasks"]) == set(last["tasks"]) == {"arithmetic", "sorting"}
    assert sum(index < data.EMBEDDED_PROMPTS["arithmetic"] for index in run.rows("step")[0]["prompts"]) == 4  # of 8


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
        "--model",
        str(BASE / "tiny"),
        "--data",
        str(file),
        "--lr",
        "1e-12",
        "--prompts",
        "4",
        "--k",
        "1",
        "--generations",
        "4",
        "--no-positive-resampling",
        "0.5",
        "--max-new-tokens",
        "12",
        "--max-prompt-tokens",
        "8",
        "--interrupt-at",
        "8",
        "9",
        "--interrupt-phrase",
        "</think>",
        "--slots",
        "32",
        "--token-budget",
        "4096",
        "--eval-every",
        "2",
        "--eval-generations",
        "2",
    )


@pytest.fixture(scope="module")
def uninterrupted(forks, short_epochs, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("uninterrupted") / "run").fork(forks, 2, *short_epochs, "--steps", "12")
    assert run.wait() == [0, 0], run.text
    assert run.rows("step")[-1]["retired"] > 0 and run.rows("step")[-1]["epoch"] > 1.5
    return run


def assert_same_batches(run, reference):
    """Every step logged, before and after the interruption, trained on the batch of the uninterrupted run."""
    for wanted in reference.rows("step"):
        for row in (row for row in run.rows("step") if row["step"] == wanted["step"]):
            for name in ("prompts", "pass_rate", "retired", "lr"):
                assert row[name] == wanted[name], (row["step"], name)


@pytest.fixture(scope="module")
def orphaned(forks, short_epochs, tmp_path_factory):
    """A run whose generator was killed after the third step."""
    run = Run(tmp_path_factory.mktemp("orphaned") / "run").fork(forks, 2, *short_epochs, "--steps", "600")
    run.reach(3)
    run.processes[1].kill()
    assert run.wait() == [1, -signal.SIGKILL]
    return run


def test_a_killed_generator_ends_the_run_with_its_name_a_log_and_a_checkpoint(orphaned):
    assert f"generator rank 1 ended; {orphaned.out} holds a checkpoint of step {orphaned.version}" in orphaned.text
    assert "generator rank 1" in orphaned.log[-1]["reason"] and orphaned.log[-1]["kind"] == "end"
    assert orphaned.version >= 2 and orphaned.version % 2 == 0  # the last periodic checkpoint


@pytest.mark.processes
def test_a_launcher_ends_with_an_error_when_a_generator_is_killed(launchers, short_epochs, tmp_path):
    run = Run(tmp_path / "run").launch(launchers, *short_epochs, "--steps", "600")
    run.reach(3)
    os.kill(run.ranks[1], signal.SIGKILL)
    assert run.launcher.wait(PATIENCE) != 0 and "generator rank 1 ended" in run.text


@pytest.mark.processes
def test_a_resumed_run_trains_the_same_batches_and_ctrl_c_ends_it(launchers, orphaned, uninterrupted):
    before, version = (orphaned.out / "log.jsonl").read_text(), orphaned.version
    resumed = Run(orphaned.out).launch(launchers, "--resume")
    resumed.reach(version + 2, after=len(before))
    ranks, began = resumed.ranks, time.monotonic()
    os.killpg(resumed.launcher.pid, signal.SIGINT)
    resumed.launcher.wait(PATIENCE)
    assert time.monotonic() - began < 60  # a launcher waits for ranks that do not end for 600 s
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())
    assert (resumed.out / "log.jsonl").read_text().startswith(before)
    assert resumed.log[-1]["kind"] == "end" and "interrupted" in resumed.log[-1]["reason"]
    assert resumed.text.count("no fit: ") == 2 or "C_mid" in resumed.text
    older = [row for row in resumed.rows("step")[: before.count('"kind": "step"')] if row["step"] <= version]
    steps = older + resumed.rows("step")[before.count('"kind": "step"') :]
    assert [row["step"] for row in steps] == list(range(1, resumed.version + 1))
    for name in ("gpu_hours", "tokens", "tokens_trained", "flops"):  # these continue to grow
        assert [row[name] for row in steps] == sorted(row[name] for row in steps)
    assert_same_batches(resumed, uninterrupted)


@pytest.mark.processes
def test_a_killed_trainer_is_named_and_its_run_goes_on(forks, short_epochs, uninterrupted, tmp_path):
    killed = partial(killed_rank, 4)
    run = Run(tmp_path / "run").fork(forks, 2, *short_epochs, "--steps", "12", target=killed)
    assert run.wait() == [-signal.SIGKILL, 1]
    assert f"trainer rank 0 ended; {run.out} holds a checkpoint of step {run.version}" in run.text
    run.fork(forks, 2, "--resume")
    assert run.wait() == [0, 0], run.text
    assert run.log[-1]["reason"] == uninterrupted.log[-1]["reason"]
    assert {row["step"] for row in run.rows("step")} == {row["step"] for row in uninterrupted.rows("step")}
    assert_same_batches(run, uninterrupted)
    # Equal batches and weights give equal gradients; the optimizer must still hold those from before the interruption.
    assert_close(first_moment(run, 12), first_moment(uninterrupted, 12), 1e-3)


# --- Your own model and data -----------------------------------------------------------------------------------------


def save_stranger(folder, model_type):
    """A random one-layer model with a chat template, biased to write 1 after </think> and to stop after 1.

    Without this bias no answer would be right, and nothing would be trained.
    """
    torch.manual_seed(0)
    tokenizer = sft.tokenizer()
    config = AutoConfig.for_model(
        model_type,
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        head_dim=32,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = AutoModelForCausalLM.from_config(config)
    embedding, head = (part.weight.data for part in (model.get_input_embeddings(), model.get_output_embeddings()))
    embedding.normal_()
    think, one, end = tokenizer.convert_tokens_to_ids(["</think>", "1", "<eos>"])
    for token, follower in ((think, one), (one, end)):
        head[follower] += embedding[token] / embedding[token].norm()
    tokenizer.chat_template = "{{ messages[0].content }}{% if add_generation_prompt %}={% endif %}"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


INTERRUPTED = ("--interrupt-at", "1", "3", "--interrupt-phrase", "</think>")


@pytest.mark.parametrize(
    "model_type, task, lengths",
    [
        ("qwen3", "math", INTERRUPTED),
        ("llama", "arithmetic", ("--think-end", "none")),
        ("gemma", "arithmetic", INTERRUPTED),
    ],
)
def test_a_model_folder_and_a_jsonl_file_train(forks, tmp_path, model_type, task, lengths):
    save_stranger(tmp_path / "model", model_type)
    rows = [{"prompt": f"{n + 1}-{n}", "answer": 1, "task": task} for n in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = Run(tmp_path / "run").fork(
        forks,
        2,
        "--model",
        str(tmp_path / "model"),
        "--data",
        str(tmp_path / "rows.jsonl"),
        "--steps",
        "1",
        "--prompts",
        "4",
        "--k",
        "1",
        "--generations",
        "8",
        "--max-new-tokens",
        "8",
        "--max-prompt-tokens",
        "8",
        "--slots",
        "32",
        "--eval-generations",
        "2",
        *lengths,
    )
    assert run.wait() == [0, 0], run.text
    [step] = run.rows("step")
    assert step["kept"] > 0 and step["gradient_norm"] > 0 and step["unverified"] == 0
    assert step["log_rho"] < 1e-4  # nats: both sides hold the same fp32 weights at step 0
    assert [row["step"] for row in run.rows("eval")] == [0, 1] and run.log[-1]["reason"] == "finished"
    sample = json.loads((run.out / "completions.jsonl").read_text().splitlines()[0])
    assert sample["prompt"].endswith("=") and sample["answer"] == "1"  # the chat template wrote the =
    trained = AutoModelForCausalLM.from_pretrained(run.out / "checkpoint-1")
    assert trained.config.model_type == model_type
