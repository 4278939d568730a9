"""Claims about data.py: embedded tasks, the split (Sec. 2.1), No-Positive-Resampling (Sec. 3.2), shares of sources."""

import hashlib
import json
import random
import re
from collections import Counter

import pytest
from conftest import ROOT, check_exercise, refuses
from transformers import AutoTokenizer

import data
from plumbing.prompts import TASKS
from plumbing.settings import preset_of
from recipes import PRESETS


class Ready:
    """Makes prompts as a Tokeniser does, with the row's number as its only token; texts in `long` are too long."""

    def __init__(self, long=()):
        self.long = long

    def __call__(self, row, index=0):
        return None if row.prompt in self.long else data.Prompt(index, (index,), *row[1:])


def prompts(*counts, long=(), rows=None):
    """A training set with counts[n] prompts of source n."""
    sources = [source for source, count in enumerate(counts) for _ in range(count)]
    rows = rows or [data.Row("a:1", f"prompt {i}", "1", "math", source) for i, source in enumerate(sources)]
    return data.Prompts(Ready(long), rows)


def curriculum_of(*counts, seed=0, threshold=0.9, weights=(1.0,), long=()):
    training = prompts(*counts, long=long)
    return data.Curriculum(training, seed=seed, threshold=threshold, weights=weights)


def indices(batch):
    return [prompt.index for prompt in batch]


# --- The embedded tasks ---


def test_answers_of_embedded_tasks_are_what_python_says():
    for text, answer in data.examples("arithmetic", 500, seed=1, held_out=False):
        assert answer == str(eval(text.strip("="))), text
    for text, answer in data.examples("tiny", 500, seed=1, held_out=False):
        assert answer == str(eval(text.strip(".=")) % 10), text
        # an operand with its sign is a token: seven of them, or dots, stand before =
        assert len(re.findall("[0-9.]", text)) == 7
    for text, answer in data.examples("sorting", 500, seed=1, held_out=False):
        assert text[0] == text[-1] == "=" and list(answer) == sorted(text[1:-1])


@pytest.mark.parametrize("task", data.EMBEDDED_TASKS)
def test_every_embedded_task_can_be_learnt(task):
    """Its prompts are the same again, apart from the held-out ones, and its policy can read them; answers are exact."""
    row = data.EMBEDDED_TASKS[task]
    train, again = (data.examples(task, row.prompts, seed=0, held_out=False) for _ in range(2))
    assert train == again and len({text for text, _ in train}) == row.prompts
    assert not any(data.is_held_out(text) for text, _ in train)  # nor is any of another seed
    assert all(data.is_held_out(text) for text, _ in data.examples(task, 50, seed=1, held_out=True))
    for _, answer in train:
        assert TASKS[task].grade(answer, answer) and not TASKS[task].grade(answer + "0", answer)
    tokens = AutoTokenizer.from_pretrained(ROOT / row.base)
    longest = PRESETS[preset_of((ROOT / row.base).resolve())]["max_prompt_tokens"]
    prompts, whole = ([*texts] for texts in zip(*((text, text + answer) for text, answer in train)))
    assert not any(tokens.unk_token_id in ids for ids in tokens(whole)["input_ids"])
    assert max(map(len, tokens(prompts)["input_ids"])) <= longest


def test_examples_are_those_of_the_committed_results():
    train = data.examples("arithmetic", 1_400, seed=0, held_out=False)
    assert hashlib.sha256(json.dumps(train).encode()).hexdigest().startswith("f3c4d6d857f44705")


# --- The split (Sec. 2.1) ---


@pytest.mark.parametrize("total, asked, held", [(50, 1000, 5), (5, 1000, 1), (50, 2, 2)])
def test_sec21_split_holds_out_the_number_asked_for_or_a_tenth_of_a_small_file(total, asked, held):
    train, validation, too_long = data.split(list(range(total)), asked)
    assert len(validation) == held and too_long == 0 and sorted(train + validation) == list(range(total))


def test_sec21_split_is_always_the_same_and_another_row_takes_the_place_of_one_that_is_too_long():
    assert data.split(list(range(30)), 3)[1] == [16, 2, 4]  # as in the runs whose results are committed
    train, held, too_long = data.split(list(range(30)), 3, fits=lambda row: row not in (16, 4))
    assert (held[0], len(held), too_long) == (2, 3, 2) and sorted([*train, *held, 16, 4]) == list(range(30))


# --- No-Positive-Resampling (Sec. 3.2) ---


def run(curriculum, batches, count, rate=lambda index: 0.5, lag=0):
    """Draw `batches` batches of `count` prompts; each comes back after `lag` more; returns their indices."""
    out, waiting = [], []
    for _ in range(batches):
        out.append(indices(curriculum.next(count)))
        waiting.append(out[-1])
        if len(waiting) > lag:
            for index in waiting.pop(0):
                curriculum.update_history(index, rate(index))
    return out


def test_sec32_prompts_at_0_9_are_never_sampled_again_and_those_below_are():
    rates = [1.0, 15 / 16, 0.8999999761581421, 0.8999, 14 / 16, 0.0]  # the third is 9 of 10 as a float32 mean
    curriculum = curriculum_of(6)
    run(curriculum, 3, 2, rates.__getitem__)
    assert curriculum.retired == 3
    for epoch in (2, 3, 4):  # from now on an epoch is prompts 3, 4 and 5
        assert sorted(sum(run(curriculum, 1, 3, rates.__getitem__), [])) == [3, 4, 5] and curriculum.epoch == epoch


def test_sec32_history_is_the_latest_pass_rate_not_the_best_or_the_mean():
    check_exercise(data, "history")  # a group without a verdict leaves no trace
    refuses("expected a prompt in flight, got 1", curriculum_of(2).update_history, 1, 0.5)  # it was delivered twice


def test_a_prompt_still_in_flight_at_an_epoch_boundary_keeps_its_turn():
    # 10 prompts, 6 in flight: the first batches of epoch 2 pass over those in flight and give them out later
    curriculum = curriculum_of(10, seed=3)
    given_out = sum(run(curriculum, 20, 2, lag=3), [])
    for epoch in range(4):
        assert sorted(given_out[10 * epoch : 10 * epoch + 10]) == list(range(10))


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_timing_nothing_is_in_flight_twice_and_the_first_epoch_never_changes(seed):
    rng = random.Random(seed)
    total, count, threshold = rng.randint(1, 30), rng.randint(1, 7), rng.choice([0.9, None])
    curriculum = curriculum_of(total, seed=1, threshold=threshold)
    prompt_order = sum(run(curriculum_of(total, seed=1, threshold=threshold), total, 1), [])
    out, given_out, retired = [], [], set()
    for _ in range(30):
        batch = indices(curriculum.next(count))
        free = total - len(retired) - len(set(out) - retired)
        assert len(batch) == min(count, free) and not set(batch) & (set(out) | retired)
        out += batch
        given_out += batch
        for index in rng.sample(out, rng.randint(0, len(out))):
            rate = rng.choice([0.0, 0.5, 1.0])
            out.remove(index)
            curriculum.update_history(index, rate)
            if threshold is not None and rate >= threshold:
                retired.add(index)
    assert given_out[:total] == prompt_order[: len(given_out)]
    assert curriculum.retired == len(retired) and indices(curriculum.in_flight) == out


def test_resume_through_json_goes_on_with_the_same_prompts():
    def rate(index):
        return 1.0 if index % 5 == 0 else 0.25

    whole, resumed = (
        curriculum_of(40, 20, 20, seed=2, weights=(0.1, 0.7, 0.2), long=("prompt 3", "prompt 44")) for _ in range(2)
    )
    run(whole, 17, 3, rate, lag=2)
    saved = json.dumps(whole.state_dict())
    resumed.load_state_dict(json.loads(saved))
    assert indices(resumed.in_flight) == indices(whole.in_flight) != []
    for curriculum in (whole, resumed):
        for prompt in curriculum.in_flight:
            curriculum.update_history(prompt.index, 0.5)
    assert run(whole, 30, 3, rate, lag=2) == run(resumed, 30, 3, rate, lag=2)


@pytest.mark.parametrize("other", [{"seed": 1}, {"weight": 2.0}, {"answer": "2"}, {"task": "text"}])
def test_resume_with_other_prompts_answers_tasks_weights_or_another_seed_is_refused(other):
    def fresh(seed=0, weight=1.0, **changed):
        row = data.Row("a:1", "prompt", "1", "math")
        rows = prompts(rows=[row._replace(**changed), row])
        return data.Curriculum(rows, seed=seed, threshold=0.9, weights=[weight])

    state = fresh().state_dict()
    fresh(where="moved:7").load_state_dict(state)
    refuses("these prompts, answers and seed", fresh(**other).load_state_dict, state)


def test_a_prompt_that_is_too_long_is_left_out_when_it_is_drawn_and_counted():
    curriculum = curriculum_of(12, long=("prompt 3", "prompt 8"))
    given_out = run(curriculum, 20, 1)
    assert Counter(sum(given_out, [])) == {index: 2 for index in range(12) if index not in (3, 8)}
    assert curriculum.too_long == {3, 8}


# --- Weights ---


def sources(batch):
    return Counter(prompt.source for prompt in batch)


@pytest.mark.parametrize("one, two", [(1, 1), (1, 2.5), (0.01, 7), (99, 2)])
def test_of_two_sources_any_run_of_draws_is_within_one_prompt_of_the_shares(one, two):
    curriculum = curriculum_of(99, 99, seed=0, threshold=None, weights=[one, two])
    drawn, total = Counter(), 0
    for count in (1, 2, 9, 1, 1, 7, 3, 1, 8, 2):
        batch = curriculum.next(count)
        drawn, total = drawn + sources(batch), total + count
        assert len(batch) == count and abs(drawn[0] - total * one / (one + two)) < 1 + 1e-9
        for prompt in batch:
            curriculum.update_history(prompt.index, None)
