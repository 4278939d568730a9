"""Claims about data.py: the embedded task, JSON Lines, the split (Sec. 2.1), No-Positive-Resampling (Sec. 3.2)."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import data

CHARACTERS = "0123456789+-=abcdefghijklmnopqrstuvwxyz:?| "
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def character_tokenizer(*, template=None, wrap=False):
    """One token per character, id = 3 + place in CHARACTERS; `wrap` puts <bos>, <eos> around like some checkpoints."""
    vocabulary = {"<unk>": 0, "<bos>": 1, "<eos>": 2} | {c: 3 + i for i, c in enumerate(CHARACTERS)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    if wrap:
        core.post_processor = processors.TemplateProcessing(
            single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>")
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer()


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def prompts(count):
    return [data.Prompt(i, (i,), f"prompt {i}", "1", "math") for i in range(count)]


def indices(batch):
    return [prompt.index for prompt in batch]


# --- The embedded task ---


def by_hand(text):
    """Left to right with a pencil, character by character."""
    total, sign = 0, 1
    for character in text:
        if character.isdigit():
            total += sign * int(character)
        sign = -1 if character == "-" else 1
    return total


def test_arithmetic_answers_are_what_a_pencil_says():
    assert by_hand("7+5-3+9=") == 18
    for text, answer in data.arithmetic_set(500, seed=1, held_out=False):
        assert answer == str(by_hand(text)), text


def test_arithmetic_number_of_operands_is_uniform_from_3_to_12():
    rng = random.Random(0)
    seen = Counter(len(data.arithmetic(rng, held_out=False)[0]) // 2 for _ in range(10_000))
    assert sorted(seen) == list(range(3, 13))
    # 1,000 expected of each, standard deviation sqrt(10,000 · 1/10 · 9/10) = 30; five of them is 150
    assert all(abs(count - 1_000) < 150 for count in seen.values()), seen


def test_arithmetic_uses_all_digits_and_both_signs_in_every_place():
    texts = [text for text, _ in data.arithmetic_set(2_000, seed=0, held_out=False)]
    assert {text[0] for text in texts} == {text[-2] for text in texts} == set("0123456789")
    assert {text[1] for text in texts} == {text[-3] for text in texts} == {"+", "-"}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_no_seed_of_sft_or_rl_ever_draws_a_validation_text(seed, other):
    rng = random.Random(seed)
    validation = {text for text, _ in data.arithmetic_set(20, seed=other, held_out=True)}
    ours = {data.arithmetic(rng, held_out=False)[0] for _ in range(50)}
    ours |= {text for text, _ in data.arithmetic_set(50, seed=seed, held_out=False)}
    assert not validation & ours
    assert all(map(data.is_held_out, validation)) and not any(map(data.is_held_out, ours))


def test_a_tenth_of_all_three_operand_texts_is_held_out():
    texts = [f"{a}{p}{b}{q}{c}=" for a in range(10) for b in range(10) for c in range(10) for p in "+-" for q in "+-"]
    # 400 expected of 4,000, standard deviation sqrt(4,000 · 0.1 · 0.9) = 19
    assert abs(sum(map(data.is_held_out, texts)) - 400) < 57


def test_the_hash_that_holds_out_never_changes():
    # if it did, validation prompts would have been seen by base models trained before
    assert [data.is_held_out(text) for text in ("9+2-2+8-9+8+8-4-6=", "7-3-2-8-1-3-0-2-8=")] == [True, False]


def test_arithmetic_set_is_distinct_and_reproducible():
    one, two = (data.arithmetic_set(1_000, seed=0, held_out=True) for _ in range(2))
    assert one == two and len({text for text, _ in one}) == 1_000
    assert one != data.arithmetic_set(1_000, seed=1, held_out=True)


def test_embedded_task_is_tokenised_as_it_is_and_the_same_in_every_run(tokenizer):
    loaded = data.load("arithmetic", tokenizer, budget=64, validation=100)
    assert (len(loaded.train), len(loaded.validation), loaded.too_long) == (data.ARITHMETIC_PROMPTS, 100, 0)
    for part in (loaded.train, loaded.validation):
        assert indices(part) == list(range(len(part)))
    for prompt in loaded.validation:
        assert prompt.ids == tuple(3 + CHARACTERS.index(character) for character in prompt.text)
        assert (prompt.answer, prompt.task) == (str(by_hand(prompt.text)), "arithmetic")
    assert not {p.text for p in loaded.train} & {p.text for p in loaded.validation}
    random.seed(5)  # the interpreter's own random state plays no part
    assert data.load("arithmetic", tokenizer, budget=64, validation=100) == loaded


# --- JSON Lines ---


def test_jsonl_keeps_prompts_answers_and_tasks(tmp_path, tokenizer):
    rows = [{"prompt": f"what is {n}?", "answer": n} for n in range(20)]
    rows += [{"prompt": "1+1=", "answer": " 2 ", "task": "arithmetic", "source": "ignored"}]
    loaded = data.load(write(tmp_path / "a.jsonl", rows), tokenizer, budget=99, validation=3)
    found = {p.text: (p.answer, p.task) for p in loaded.train + loaded.validation}
    assert found == {f"what is {n}?": (str(n), "math") for n in range(20)} | {"1+1=": ("2", "arithmetic")}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "a", "answer": 1', "many lines"),
        ('[{"prompt": "a", "answer": 1}]', "a list"),
        ("prompt,answer", "expected one JSON object"),
        ('{"question": "a", "answer": 1}', "'question'"),
        ('{"prompt": "a"}', "column names"),
        ('{"prompt": "", "answer": 1}', "nothing in it"),
        ('{"prompt": 7, "answer": 1}', "prompt '7'"),
        ('{"prompt": [], "answer": 1}', "prompt '\\[\\]'"),
        ('{"prompt": [{"role": "user"}], "answer": 1}', "'role': 'user'"),
        ('{"prompt": [{"role": "assistant", "content": "1"}], "answer": 1}', "ending with the answer"),
        ('{"prompt": "a", "answer": null}', "unlabelled"),
        ('{"prompt": "a", "answer": true}', "answer True"),
        ('{"prompt": "a", "answer": 0.5}', "written as text"),
        ('{"prompt": "a", "answer": " "}', "unlabelled"),
        ('{"prompt": "a", "answer": 1, "task": "maths"}', "'arithmetic', 'math'"),
        ('{"prompt": "a", "answer": "018", "task": "arithmetic"}', "notation"),
        ('{"prompt": "\\ud800", "answer": 1}', "UTF-8"),
        (b'{"prompt": "\xff", "answer": 1}', "UTF-8"),
    ],
)
def test_a_malformed_line_stops_with_file_line_expected_got_and_cause(tmp_path, tokenizer, line, words):
    path = tmp_path / "bad.jsonl"
    good = b'{"prompt": "fine", "answer": 1}\n\n'
    path.write_bytes(good + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(ValueError, match=words) as error:
        data.load(str(path), tokenizer, budget=99)
    message = str(error.value)
    assert message.startswith(f"{path}:3: expected ") and "got" in message and "likely cause" in message


def test_an_empty_file_a_missing_one_and_a_misspelt_source_are_refused(tmp_path, tokenizer):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ValueError, match="empty.jsonl: expected .* got a file without rows"):
        data.load(str(tmp_path / "empty.jsonl"), tokenizer, budget=99)
    for source in ("aritmetic", str(tmp_path / "none.jsonl")):
        with pytest.raises(ValueError, match="expected 'arithmetic' or an existing JSONL file, got"):
            data.load(source, tokenizer, budget=99)


def test_repeated_prompts_are_counted_and_contradictions_refused(tmp_path, tokenizer):
    rows = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}, {"prompt": "a", "answer": "1"}]
    loaded = data.load(write(tmp_path / "a.jsonl", rows), tokenizer, budget=9)
    assert (loaded.duplicates, len(loaded.train) + len(loaded.validation)) == (1, 2)
    with pytest.raises(ValueError, match=r"b.jsonl:4: expected answer '1' as .*b.jsonl:1, got '3'"):
        data.load(write(tmp_path / "b.jsonl", [*rows, {"prompt": "a", "answer": 3}]), tokenizer, budget=9)


def test_prompts_over_the_budget_are_dropped_and_counted(tmp_path, tokenizer):
    path = write(tmp_path / "a.jsonl", [{"prompt": "a" * n, "answer": n} for n in range(1, 11)])
    loaded = data.load(path, tokenizer, budget=7)
    assert loaded.too_long == 3  # of 8, 9 and 10 characters
    assert sorted(len(p.ids) for p in loaded.train + loaded.validation) == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(ValueError, match="<= 0 tokens, got 10 longer"):
        data.load(path, tokenizer, budget=0)


def test_characters_unknown_to_the_tokenizer_are_refused(tmp_path, tokenizer):
    path = write(tmp_path / "a.jsonl", [{"prompt": "fine", "answer": 1}, {"prompt": "\\frac", "answer": 1}])
    with pytest.raises(ValueError, match="a.jsonl:2: .*the tokenizer can spell"):
        data.load(path, tokenizer, budget=99)


def test_the_chat_template_writes_the_prompt_once_and_all_its_special_tokens(tmp_path):
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is 1?"}]
    path = write(tmp_path / "a.jsonl", [{"prompt": "what is 2?", "answer": 2}, {"prompt": chat, "answer": 1}])
    loaded = data.load(path, character_tokenizer(template=TEMPLATE, wrap=True), budget=99)
    texts = {p.answer: p.text for p in loaded.train + loaded.validation}
    assert texts == {"2": "user:what is 2?|assistant:", "1": "system:be brief|user:what is 1?|assistant:"}
    assert all(len(p.ids) == len(p.text) for p in loaded.train + loaded.validation)  # no <bos>, no <eos> on top


def test_without_a_template_the_tokenizer_adds_its_first_token_but_no_end(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"prompt": "ab", "answer": 1}])
    (prompt,) = data.load(path, character_tokenizer(wrap=True), budget=9).validation
    assert prompt.ids == (1, 3 + CHARACTERS.index("a"), 3 + CHARACTERS.index("b"))  # 1 = <bos>; 2 = <eos> would end it
    chat = write(tmp_path / "b.jsonl", [{"prompt": [{"role": "user", "content": "a"}], "answer": 1}])
    with pytest.raises(ValueError, match="b.jsonl:1: .*no chat template"):
        data.load(chat, character_tokenizer(), budget=9)


# --- The split (Sec. 2.1) ---


def test_sec21_split_holds_out_the_number_asked_for_or_a_tenth_of_a_small_file():
    for total, asked, held in ((20_000, 1_000, 1_000), (5_000, 1_000, 500), (50, 1_000, 5), (5, 1_000, 1), (50, 2, 2)):
        train, validation = data.split(prompts(total), asked)
        assert (len(train), len(validation)) == (total - held, held)
        assert len({p.text for p in train + validation}) == total
        assert indices(train) == list(range(total - held)) and indices(validation) == list(range(held))


def test_sec21_split_is_random_and_always_the_same():
    _, validation = data.split(prompts(1_000), 100)
    assert validation == data.split(prompts(1_000), 100)[1]
    numbers = [p.ids[0] for p in validation]
    # means of 100 of 0..999: 499.5 with standard deviation 29/sqrt(1.1); the first or last 100 would have 49.5 or 949.5
    assert abs(sum(numbers) / 100 - 499.5) < 110 and numbers != sorted(numbers)


def test_more_than_k_plus_1_times_p_training_prompts_are_needed():
    enough = data.Data(prompts(289), prompts(9), 4, 5)
    data.check_size(enough, prompts=32, k=8)  # 9 · 32 = 288
    message = r"more than \(k \+ 1\)·P = 289 .*got 289 \(held out: 9, too long: 4, repeated: 5\)"
    with pytest.raises(ValueError, match=message):
        data.check_size(enough, prompts=289, k=0)


# --- No-Positive-Resampling (Sec. 3.2) ---


def run(curriculum, batches, count, rate=lambda index: 0.5, lag=0):
    """`batches` batches of `count` prompts, each coming back after `lag` others; the indices that were given out."""
    out, waiting = [], []
    for _ in range(batches):
        out.append(indices(curriculum.next(count)))
        waiting.append(out[-1])
        if len(waiting) > lag:
            for index in waiting.pop(0):
                curriculum.update(index, rate(index))
    return out


def test_epochs_give_every_prompt_once_in_another_order():
    curriculum = data.Curriculum(prompts(12), seed=0, threshold=0.9)
    assert curriculum.epoch == 0.0
    first, second = (sum(run(curriculum, 3, 4), []) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second and first != list(range(12)) and curriculum.epoch == 2.0
    run(curriculum, 1, 3)
    assert curriculum.epoch == 2.25


def test_order_depends_on_the_seed_alone():
    def order(seed):
        return run(data.Curriculum(prompts(12), seed=seed, threshold=0.9), 6, 4)

    assert order(0) == order(0) != order(1)


def test_sec32_prompts_at_0_9_are_never_sampled_again_and_those_below_are():
    rates = {0: 1.0, 1: 15 / 16, 2: 0.9, 3: 0.8999, 4: 14 / 16, 5: 0.0}
    curriculum = data.Curriculum(prompts(6), seed=0, threshold=0.9)
    run(curriculum, 3, 2, rates.get)
    assert curriculum.retired == 3
    for epoch in (2, 3, 4):  # an epoch is 3, 4 and 5 from now on
        assert sorted(sum(run(curriculum, 1, 3, rates.get), [])) == [3, 4, 5] and curriculum.epoch == epoch


def test_sec32_nine_of_ten_retires_even_as_a_float32_mean():
    curriculum = data.Curriculum(prompts(1), seed=0, threshold=0.9)
    run(curriculum, 1, 1, lambda index: 0.8999999761581421)
    assert curriculum.retired == 1


def test_sec32_history_is_the_latest_pass_rate_not_the_best_or_the_mean():
    curriculum = data.Curriculum(prompts(2), seed=0, threshold=0.9)
    for rate in (0.2, 0.7, 0.4):
        run(curriculum, 1, 2, lambda index, rate=rate: rate)
    assert curriculum.pass_rates == {0: 0.4, 1: 0.4}
    run(curriculum, 1, 2, lambda index: None)  # groups without a verdict leave no trace
    assert curriculum.pass_rates == {0: 0.4, 1: 0.4} and curriculum.in_flight == []


def test_uniform_resampling_retires_nothing():
    curriculum = data.Curriculum(prompts(4), seed=0, threshold=None)
    assert sorted(sum(run(curriculum, 4, 2, lambda index: 1.0), [])) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert curriculum.retired == 0


def test_fewer_prompts_than_asked_for_means_exhausted():
    curriculum = data.Curriculum(prompts(5), seed=0, threshold=0.9)
    run(curriculum, 1, 5, lambda index: 1.0 if index < 3 else 0.0)
    assert sorted(indices(curriculum.next(4))) == [3, 4]
    assert curriculum.next(1) == []  # both are in flight
    curriculum.update(3, 0.0)
    assert indices(curriculum.next(1)) == [3]


def test_a_batch_across_two_epochs_holds_no_prompt_twice():
    for seed in range(20):
        curriculum = data.Curriculum(prompts(5), seed=seed, threshold=0.9)
        batches = run(curriculum, 5, 4)
        assert all(len(set(batch)) == 4 for batch in batches)
        assert Counter(sum(batches, [])) == {index: 4 for index in range(5)}  # 20 draws = 4 whole epochs


def test_a_prompt_still_in_flight_at_an_epoch_boundary_keeps_its_turn():
    # 10 prompts, 6 in flight: the first batches of epoch 2 have to pass over what is out, and come back to it
    curriculum = data.Curriculum(prompts(10), seed=3, threshold=0.9)
    given_out = sum(run(curriculum, 20, 2, lag=3), [])
    for epoch in range(4):
        assert sorted(given_out[10 * epoch : 10 * epoch + 10]) == list(range(10))


def test_delivering_a_group_twice_is_an_error():
    curriculum = data.Curriculum(prompts(3), seed=0, threshold=0.9)
    (prompt,) = curriculum.next(1)
    curriculum.update(prompt.index, 0.5)
    with pytest.raises(ValueError, match="expected a prompt in flight, got"):
        curriculum.update(prompt.index, 0.5)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 30), st.integers(1, 7), st.sampled_from([0.9, None]))
def test_whatever_the_timing_nothing_is_in_flight_twice_and_the_first_epoch_never_changes(rng, total, count, threshold):
    curriculum = data.Curriculum(prompts(total), seed=1, threshold=threshold)
    prompt_order = sum(run(data.Curriculum(prompts(total), seed=1, threshold=threshold), total, 1), [])
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
            curriculum.update(index, rate)
            if threshold is not None and rate >= threshold:
                retired.add(index)
    assert given_out[:total] == prompt_order[: len(given_out)]
    assert curriculum.retired == len(retired) and indices(curriculum.in_flight) == out


def test_resume_through_json_goes_on_with_the_same_prompts():
    def fresh():
        return data.Curriculum(prompts(40), seed=2, threshold=0.9)

    def rate(index):
        return 1.0 if index % 5 == 0 else 0.25

    whole = fresh()
    run(whole, 17, 3, rate, lag=2)
    resumed = fresh()
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert indices(resumed.in_flight) == indices(whole.in_flight) != []
    assert (resumed.epoch, resumed.retired) == (whole.epoch, whole.retired)
    for curriculum in (whole, resumed):
        for prompt in curriculum.in_flight:
            curriculum.update(prompt.index, 0.5)
    assert run(whole, 30, 3, rate, lag=2) == run(resumed, 30, 3, rate, lag=2)


def test_resume_with_other_prompts_or_another_seed_is_refused():
    state = data.Curriculum(prompts(4), seed=0, threshold=0.9).state_dict()
    for total, seed in ((5, 0), (4, 1)):
        other = data.Curriculum(prompts(total), seed=seed, threshold=0.9)
        with pytest.raises(ValueError, match="these prompts and seed"):
            other.load_state_dict(state)


def test_a_saved_state_does_not_change_as_the_run_goes_on():
    curriculum = data.Curriculum(prompts(9), seed=0, threshold=0.9)
    run(curriculum, 2, 2)
    state = curriculum.state_dict()
    frozen = json.dumps(state)
    run(curriculum, 2, 2)
    assert json.dumps(state) == frozen
