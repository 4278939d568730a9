"""Claims: each open table takes a row by one edit, and its tests then hold that row: broken ones fail.

One good and one broken row of each kind: a loss, an off-policy rule, an aggregation, an embedded task.
"""

import random

import pytest
import test_loss
import test_pipeline
import torch
from conftest import given, rollout, trained
from test_train import elsewhere  # noqa: F401
from transformers import AutoTokenizer

import batches
import data
import loss
import pipeline
from plumbing import prompts as sources
from plumbing.settings import ROOT, known_flags, preset_of
from recipes import PRESETS

pytestmark = pytest.mark.usefixtures("losses_as_before")

TINY = "--virtual generators --data tiny --steps 2 --eval-every 2 --eval-prompts 4 --eval-generations 1"


def help_text():
    return " ".join(known_flags().format_help().split())


# --- A loss ----------------------------------------------------------------------------------------------------------


def check_loss(name):
    """What test_loss.py asks of every loss."""
    test_loss.test_eq2_at_equal_policies_every_loss_has_the_gradient_of_reinforce(name)
    test_loss.test_masked_positions_leave_no_trace_whatever_they_hold(name, (0, 1), float("nan"))
    test_loss.test_a17_clipped_tokens_are_those_whose_objective_would_be_another_without_the_bound(name)
    test_loss.test_a_completion_is_worth_the_same_alone_and_with_more_padding(name)


def root_acts(logprobs, gen_logprobs, advantages, mask, *, eps_root):
    return loss.cap_acts(logprobs, gen_logprobs, advantages, mask, eps_max=eps_root**2)


def add_loss(name, clipped, weigh):
    """Add a loss whose tokens weigh as `weigh` says, up to eps_root."""

    def objective(logprobs, gen_logprobs, advantages, mask, *, eps_root):
        weight = weigh(loss.importance_ratio(logprobs, gen_logprobs, mask)).clamp(max=eps_root)
        return (weight * advantages[:, None] * logprobs.masked_fill(~mask, 0)).masked_fill(~mask, 0)

    objective.__name__ = name
    loss.register_loss(clipped=clipped, eps_root=loss.Clip(1.5, "a cap on the root of the ratio"))(objective)


def test_a_loss_has_its_name_and_clip_flag_in_the_help_and_its_clipped_share_in_the_log():
    add_loss("root", root_acts, lambda ratio: ratio.sqrt().detach())
    check_loss("root")
    assert "|root|" in help_text() and "--eps-root EPS_ROOT root: a cap on the root of the ratio [1.5]" in help_text()
    assert given("--loss root --eps-root 2").clips == {"eps_root": 2.0}
    rows = trained(f"{TINY} --loss root --eps-root 0.01")
    found = [row["clipped"] for row in rows if row.get("kept")]
    assert found and all(0.5 < share <= 1 for share in found)


def test_a_loss_that_depends_on_the_rest_of_the_micro_batch_fails():
    add_loss("root", root_acts, lambda ratio: (ratio / ratio.mean()).detach())
    with pytest.raises(AssertionError):
        check_loss("root")


# --- An off-policy rule ----------------------------------------------------------------------------------------------

# One batch fewer ahead than pipeline: at most k - 1 steps old.
EARLY = pipeline.Rule(
    least_k=2,
    bound=lambda k: k - 1,
    requested=lambda version, k: version + k,
    broadcasts=lambda version, k: True,
    alternates=False,
)


def test_a_rule_is_a_choice_with_its_bound(monkeypatch):
    monkeypatch.setitem(pipeline.OFF_POLICY, "early", EARLY)
    test_pipeline.check_rule("early", runs=20)
    assert f"{{{','.join(pipeline.OFF_POLICY)}}}" in help_text()
    rows = trained(f"{TINY} --off-policy early --k 2")
    assert [[*row["staleness"]] for row in rows if row["kind"] == "step"] == [["0"], ["1"]]


def test_a_rule_that_requests_one_batch_too_many_fails_and_no_run_starts_with_it(monkeypatch, capsys):
    many = EARLY._replace(requested=lambda version, k: version + k + 1)
    monkeypatch.setitem(pipeline.OFF_POLICY, "early", many)
    with pytest.raises(AssertionError):
        test_pipeline.check_rule("early")
    with pytest.raises(SystemExit):
        given("--off-policy early --k 12 --steps 200 --eval-every 200")
    assert "--off-policy early --k 12: " in capsys.readouterr().err


def test_a_rule_that_sends_no_weights_at_any_interval_is_named_with_what_remains(monkeypatch, capsys):
    odd = EARLY._replace(broadcasts=lambda version, k: version % 2 == 1, bound=lambda k: k)
    monkeypatch.setitem(pipeline.OFF_POLICY, "early", odd)
    with pytest.raises(SystemExit):
        given("--off-policy early --k 2")
    assert "with --off-policy early --k 2: expected an interval" in (said := capsys.readouterr().err)
    assert "give --eval-every 120" in said  # at the end only


# --- An aggregation --------------------------------------------------------------------------------------------------


def check_aggregation(how):
    """What test_loss.py asks of every aggregation."""
    test_loss.test_shares_of_any_parts_add_up_to_the_whole_batch_and_empty_rows_weigh_nothing(how)
    test_loss.test_dummy_micro_batch_adds_nothing_but_can_be_differentiated(how)
    test_loss.test_every_token_is_divided_by_a_positive_number(how)


def constant(lengths, prompt_index, denominators):
    """Dr. GRPO's: every token is divided by the same number, as if each completion had all tokens that it may have."""
    return torch.full_like(lengths, denominators.completions * denominators.max_new_tokens)


def test_dr_grpos_aggregation_divides_by_the_most_tokens_also_if_no_completion_has_as_many(monkeypatch):
    monkeypatch.setitem(loss.AGGREGATIONS, "constant", constant)
    check_aggregation("constant")
    assert f"{{{','.join(loss.AGGREGATIONS)}}}" in help_text()
    groups = [[rollout(True, tokens=2), rollout(False, tokens=3)]]
    weighing = dict(zero_variance_filter=True, normalisation="none", max_new_tokens=7, token_budget=99)
    share = batches.divide(groups, **weighing, rank=0, trainers=1, device="cpu")
    mask = torch.tensor([[True, True, False], [True, True, True]])
    objective, index = torch.tensor([[1.0, 2.0, 0.0], [4.0, 5.0, 6.0]]), torch.tensor([0, 0])
    # 18 / (2 completions x 7 tokens)
    assert float(loss.aggregate(objective, mask, index, "constant", share.denominators)) == pytest.approx(18 / 14)


def test_a_run_hands_its_most_tokens_to_the_aggregation(monkeypatch):
    """A literal 7 gives the same gradients; a limit that train.py forgot would give nan, and a silent 1 others."""

    def gradients(divisor, out):
        monkeypatch.setitem(loss.AGGREGATIONS, "constant", divisor)
        return [row["gradient_norm"] for row in trained(f"{TINY} --aggregation constant", out) if row["kind"] == "step"]

    given_limit = gradients(constant, "a")
    assert any(given_limit)
    assert given_limit == gradients(lambda lengths, index, whole: torch.full_like(lengths, 7 * whole.completions), "b")


def test_an_aggregation_that_divides_by_the_micro_batchs_tokens_fails(monkeypatch):
    monkeypatch.setitem(loss.AGGREGATIONS, "own", lambda lengths, *_: torch.full_like(lengths, lengths.sum()))
    with pytest.raises(AssertionError):
        check_aggregation("own")


# --- An embedded task ------------------------------------------------------------------------------------------------


def check_embedded(task):
    """Its prompts are the same again, apart from the held-out ones, and its policy can read them; answers are exact."""
    row = data.EMBEDDED_TASKS[task]
    train, held, again = (data.examples(task, row.prompts, seed=0, held_out=held_out) for held_out in (0, 1, 0))
    assert train == again and not {text for text, _ in train} & {text for text, _ in held}
    for _, answer in train:
        assert sources.TASKS[task].grade(answer, answer) and not sources.TASKS[task].grade(answer + "0", answer)
    rng = random.Random(1)
    answers = {}  # of short texts, which repeat
    for text, answer in (row.example(rng, min(row.lengths)) for _ in range(5000)):
        assert answer and answers.setdefault(text, answer) == answer
    tokens = AutoTokenizer.from_pretrained(ROOT / row.base)
    longest = PRESETS[preset_of((ROOT / row.base).resolve())]["max_prompt_tokens"]
    texts, whole = zip(*((text, text + answer) for text, answer in train))
    assert not any(tokens.unk_token_id in ids for ids in tokens([*whole])["input_ids"])
    assert max(map(len, tokens([*texts])["input_ids"])) <= longest


@pytest.mark.parametrize("task", data.EMBEDDED_TASKS)
def test_every_embedded_task_can_be_learnt(task):
    check_embedded(task)


def longest_first(rng, length):
    """(text, answer): digits to put in falling order."""
    digits = "".join(str(int(10 * rng.random())) for _ in range(length))
    return f"={digits}=", "".join(sorted(digits, reverse=True))


def add_task(monkeypatch, example):
    row = data.EmbeddedTask(example, range(3, 9), 100, base="base/sorting")
    monkeypatch.setitem(data.EMBEDDED_TASKS, "falling", row)
    monkeypatch.setitem(data.GRADERS, "falling", "exact")  # as when the row stands in data.py
    monkeypatch.setitem(sources.TASKS, "falling", sources.TASKS["sorting"])


def test_an_embedded_task_is_one_row(monkeypatch):
    add_task(monkeypatch, longest_first)
    check_embedded("falling")
    assert given("--data falling").model == "base/sorting"
    tokens = AutoTokenizer.from_pretrained(ROOT / "base" / "sorting")
    assert len(sources.read_sources("falling", tokens, budget=40, validation=8).train) == 100


def test_an_embedded_task_whose_answers_come_by_chance_fails(monkeypatch):
    add_task(monkeypatch, lambda rng, length: (f"={int(999 * rng.random())}=", str(int(2 * rng.random()))))
    with pytest.raises(AssertionError):
        check_embedded("falling")
