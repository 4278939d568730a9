"""Claims about data.py: embedded tasks, sources, weights, the split (Sec. 2.1), No-Positive-Resampling (Sec. 3.2)."""

import doctest
import hashlib
import json
import random
import string
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import data
from verify import programs

CHARACTERS = "0123456789+-=abcdefghijklmnopqrstuvwxyz:?| "
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def character_tokenizer(*, template=None, wrap=False, characters=CHARACTERS):
    """One token per character, id = 3 + place in `characters`; `wrap` adds <bos> and <eos> as some models do."""
    vocabulary = {"<unk>": 0, "<bos>": 1, "<eos>": 2} | {c: 3 + i for i, c in enumerate(characters)}
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


def prompts(*counts):
    """A training set with counts[n] prompts of source n."""
    sources = [source for source, count in enumerate(counts) for _ in range(count)]
    return [data.Prompt(i, (i,), f"prompt {i}", "1", "math", source) for i, source in enumerate(sources)]


def indices(batch):
    return [prompt.index for prompt in batch]


def test_docstring_examples_run():
    assert doctest.testmod(data).failed == 0 < doctest.testmod(data).attempted


# --- The embedded tasks ---


def by_hand(text):
    """The value of a text like "7+5-3=", as one works it out with a pencil: from left to right."""
    total, sign = 0, 1
    for character in text:
        if character.isdigit():
            total += sign * int(character)
        sign = -1 if character == "-" else 1
    return total


def test_arithmetic_answers_are_what_a_pencil_says():
    assert by_hand("7+5-3+9=") == 18
    for text, answer in data.examples("arithmetic", 500, seed=1, held_out=False):
        assert answer == str(by_hand(text)), text


def test_sorting_answers_hold_the_digits_of_the_prompt_from_small_to_large():
    for text, answer in data.examples("sorting", 500, seed=1, held_out=False):
        assert text[0] == text[-1] == "=" and Counter(text) == Counter(answer) + Counter("==")
        assert all(int(a) <= int(b) for a, b in zip(answer, answer[1:]))
    assert ("=5274=", "2457") == data.unsorted(Fixed(0.5, 0.2, 0.7, 0.4), 4)


class Fixed(list):
    """A random number generator that returns the given numbers."""

    def __init__(self, *numbers):
        super().__init__(numbers)

    def random(self):
        return self.pop(0)


def lengths(task, count):
    """{operands or digits in a text: number of texts} among `count` examples of an embedded task."""
    return Counter(sum(c.isdigit() for c in text) for text, _ in data.examples(task, count, seed=0, held_out=False))


def test_digits_to_sort_are_uniform_from_3_to_12():
    seen = lengths("sorting", 10_000)
    assert sorted(seen) == list(range(3, 13))
    # 1,000 expected of each, standard deviation sqrt(10,000 · 1/10 · 9/10) = 30; five of them is 150. Examples
    # are distinct and only 900 texts of 3 digits are not held out: there are fewer of those, and more of the others.
    assert all(850 < seen[length] < 1_200 for length in range(5, 13)), seen


def test_sums_within_reach_and_beyond_it_are_many_and_the_edge_between_them_is_thin():
    seen = lengths("arithmetic", 10_000)
    assert sorted(seen) == list(range(3, 19))
    # 7 · 9 + 4 · 2 + 5 · 6 = 101 entries: 10,000 · 9/101 = 891, 198 and 594 expected of each, standard deviations of at
    # most 29, 14 and 24; five of them. Only 3,600 distinct texts of 3 operands are not held out, so there are fewer.
    assert all(abs(seen[length] - 891) < 145 for length in range(4, 10)), seen
    assert all(abs(seen[length] - 198) < 70 for length in range(10, 14)), seen
    assert all(abs(seen[length] - 594) < 120 for length in range(14, 19)), seen


def test_arithmetic_uses_all_digits_and_both_signs_in_every_place():
    texts = [text for text, _ in data.examples("arithmetic", 2_000, seed=0, held_out=False)]
    assert {text[0] for text in texts} == {text[-2] for text in texts} == set("0123456789")
    assert {text[1] for text in texts} == {text[-3] for text in texts} == {"+", "-"}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32), st.sampled_from(list(data.EMBEDDED)))
def test_no_seed_of_sft_or_rl_ever_draws_a_validation_text(seed, other, task):
    validation = {text for text, _ in data.examples(task, 20, seed=other, held_out=True)}
    ours = {text for text, _ in data.examples(task, 50, seed=seed, held_out=False)}
    assert not validation & ours
    assert all(map(data.is_held_out, validation)) and not any(map(data.is_held_out, ours))


def test_a_tenth_of_all_three_operand_texts_is_held_out():
    texts = [f"{a}{p}{b}{q}{c}=" for a in range(10) for b in range(10) for c in range(10) for p in "+-" for q in "+-"]
    # 400 expected of 4,000, standard deviation sqrt(4,000 · 0.1 · 0.9) = 19
    assert abs(sum(map(data.is_held_out, texts)) - 400) < 57


def test_the_hash_that_holds_out_never_changes():
    # if it did, base models trained before would have seen what are validation prompts now
    assert [data.is_held_out(text) for text in ("9+2-2+8-9+8+8-4-6=", "7-3-2-8-1-3-0-2-8=")] == [True, False]


def test_examples_are_distinct_reproducible_and_those_of_the_committed_results():
    one, two = (data.examples("arithmetic", 1_000, seed=0, held_out=True) for _ in range(2))
    assert one == two and len({text for text, _ in one}) == 1_000
    assert one != data.examples("arithmetic", 1_000, seed=1, held_out=True)
    train = data.examples("arithmetic", 1_400, seed=0, held_out=False)
    assert train[:2] == [("7+3+2+8=", "20"), ("8-5-7=", "-4")]
    assert hashlib.sha256(json.dumps(train).encode()).hexdigest().startswith("f3c4d6d857f44705")


@pytest.mark.parametrize("task", data.EMBEDDED)
def test_embedded_tasks_are_tokenised_as_they_are_and_the_same_in_every_run(task, tokenizer):
    loaded = data.load(task, tokenizer, budget=64, validation=100)
    assert (len(loaded.train), len(loaded.validation), loaded.too_long) == (data.EMBEDDED_PROMPTS[task], 100, 0)
    for part in (loaded.train, loaded.validation):
        assert indices(part) == list(range(len(part)))
    for prompt in loaded.validation:
        assert prompt.ids == tuple(3 + CHARACTERS.index(character) for character in prompt.text)
        assert (prompt.task, prompt.curve, prompt.source) == (task, task, 0)
    assert not {p.text for p in loaded.train} & {p.text for p in loaded.validation}
    random.seed(5)  # the interpreter's own random state plays no part
    assert data.load([f"{task}:2"], tokenizer, budget=64, validation=100) == loaded._replace(weights=(2.0,))


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
        ('{"prompt": "", "answer": 1}', "it is empty"),
        ('{"prompt": 7, "answer": 1}', "prompt '7'"),
        ('{"prompt": [], "answer": 1}', "prompt '\\[\\]'"),
        ('{"prompt": [{"role": "user"}], "answer": 1}', "'role': 'user'"),
        ('{"prompt": [{"role": "assistant", "content": "1"}], "answer": 1}', "end with the answer"),
        ('{"prompt": "a", "answer": null}', "unlabelled"),
        ('{"prompt": "a", "answer": true}', "answer 'True'"),
        ('{"prompt": "a", "answer": 0.5}', "must be text"),
        ('{"prompt": "a", "answer": " "}', "unlabelled"),
        ('{"prompt": "a", "answer": 1, "task": "maths"}', "'arithmetic', 'code', 'math', 'sorting'"),
        ('{"prompt": "a", "answer": 1, "task": ["math"]}', "means something else"),
        ('{"prompt": "a", "answer": "018", "task": "arithmetic"}', "notation"),
        ('{"prompt": "a", "answer": "5274", "task": "sorting"}', "notation"),
        ('{"prompt": "a", "answer": "so 7 ####"}', "unlabelled"),
        ('{"prompt": "a", "answer": "4", "task": "code"}', "answer for `code`"),
        ('{"prompt": "a", "answer": {"inputs": [], "outputs": []}, "task": "code"}', "answer for `code`"),
        ('{"prompt": "a", "answer": {"inputs": ["1"], "outputs": []}, "task": "code"}', "answer for `code`"),
        ('{"prompt": "a", "answer": "%s", "task": "code"}' % ("[" * 100_000), "answer for `code`"),
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


def test_an_empty_file_is_refused(tmp_path, tokenizer):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ValueError, match="empty.jsonl: expected a prompt of <= 99 tokens, got 0 .* an empty file"):
        data.load(str(tmp_path / "empty.jsonl"), tokenizer, budget=99)


@pytest.mark.parametrize("source", ["aritmetic", "none.jsonl", "/no/folder", "/no/file.parquet", "math.jsonl:x"])
def test_a_misspelt_source_and_a_missing_file_are_refused_at_once(source, tokenizer):
    with pytest.raises(ValueError, match=f"--data {source}: expected arithmetic, sorting, a JSONL .* misspelt"):
        data.load(source, tokenizer, budget=99)


@pytest.mark.parametrize("source", ["arithmetic:0", "a.jsonl:0.0", "sorting:math", "sorting:2:arithmetic"])
def test_a_weight_of_nothing_and_a_task_for_an_embedded_source_are_refused(source, tokenizer):
    with pytest.raises(ValueError, match=f"--data: expected NAME.* got '{source}'"):
        data.load(source, tokenizer, budget=99)


def test_a_source_says_its_weight_and_its_task_in_either_form():
    for text, parts in {
        "a.jsonl": ("a.jsonl", 1.0, None),
        "a.jsonl:0.5": ("a.jsonl", 0.5, None),
        "a:b.jsonl:3": ("a:b.jsonl", 3.0, None),
        "a.jsonl:code": ("a.jsonl", 1.0, "code"),
        "x/y/z:10:math": ("x/y/z", 10.0, "math"),
    }.items():
        assert data.parse_source(text) == parts


def test_a_source_given_twice_is_refused(tokenizer):
    with pytest.raises(ValueError, match="expected different sources, got .*add up its weights"):
        data.load(["arithmetic:1", "sorting", "arithmetic:2"], tokenizer, budget=99)


def test_of_repeated_prompts_the_first_row_counts_and_the_others_are_counted(tmp_path, tokenizer):
    rows = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}, {"prompt": "a", "answer": 3}]
    loaded = data.load(write(tmp_path / "a.jsonl", rows), tokenizer, budget=9)
    found = {p.text: p.answer for p in loaded.train + loaded.validation}
    assert found == {"a": "1", "b": "2"} and loaded.duplicates == 1 and len(loaded.train + loaded.validation) == 2


def test_prompts_are_the_same_if_the_model_reads_the_same(tmp_path):
    chat = [{"role": "user", "content": "a"}]
    path = write(tmp_path / "a.jsonl", [{"prompt": "a", "answer": 1}, {"prompt": chat, "answer": 1}])
    loaded = data.load(path, character_tokenizer(template=TEMPLATE), budget=99)
    assert (len(loaded.train + loaded.validation), loaded.duplicates) == (1, 1)  # both "user:a|assistant:"


def test_the_task_of_a_source_wins_over_its_rows_and_the_columns_over_the_defaults(tmp_path, tokenizer):
    rows = [{"problem": f"{n}+1=", "x": {"y": n + 1}, "task": "of other meaning", "answer": "no"} for n in range(9)]
    path = write(tmp_path / "a.jsonl", rows)
    columns = (("question", "problem"), ("reward_model.ground_truth", "x.y", "answer"))
    loaded = data.load(f"{path}:arithmetic", tokenizer, budget=9, columns=columns)
    found = {p.text: (p.answer, p.task) for p in loaded.train + loaded.validation}
    assert found == {f"{n}+1=": (str(n + 1), "arithmetic") for n in range(9)}
    with pytest.raises(ValueError, match=r"a.jsonl:1: .* got the fields \['answer', 'problem', 'task', 'x'\]"):
        data.load(path, tokenizer, budget=9)


def test_tests_of_code_may_be_text_or_an_object_and_too_many_are_dropped(tmp_path, tokenizer, monkeypatch):
    tests = {"inputs": ["1\n", "2\n"], "outputs": ["2\n", "4\n"]}
    greek = json.dumps(tests).replace("4", "\u03b4")  # as many characters, but one byte more
    rows = [
        {"prompt": "a", "answer": tests},
        {"prompt": "b", "answer": json.dumps(tests)},
        {"prompt": "c", "answer": tests | {"outputs": ["2\n", "4" * 99]}},
        {"prompt": "d", "answer": greek},
    ]
    monkeypatch.setattr(data, "MAX_ANSWER", len(json.dumps(tests)))
    loaded = data.load(write(tmp_path / "a.jsonl", rows) + ":code", tokenizer, budget=9)
    assert [json.loads(p.answer) for p in loaded.train + loaded.validation] == [tests, tests] and loaded.too_long == 2


def call(n, **more):
    return {"input": f"{n}\n[1]", "output": f"{n + 1}", **more}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (
            {"tests": json.dumps([call(1, testtype="functional")]), "metadata": '{"func_name": "f"}'},
            "f",
        ),  # LiveCodeBench
        ({"tests": [call(1, testtype="functional")], "metadata": {"func_name": "f"}}, "f"),  # DeepCoder's lcbv5
        ({"tests": [call(1, testtype="stdin")], "metadata": "{}"}, None),
        (
            {"tests": json.dumps({"language": "python", "test_cases": [call(1, type="function_call", fn_name="f")]})},
            "f",
        ),
        ({"tests": str({"test_cases": [call(1, type="stdin_stdout", fn_name=None)]})}, None),  # SYNTHETIC-1
        ({"tests": {"test_cases": '{"inputs": ["1\\n[1]"], "outputs": ["2"]}', "fn_name": "f"}}, "f"),
    ],
)
def test_the_name_of_a_function_is_read_wherever_data_sets_have_it(row, name, tmp_path, tokenizer):
    (prompt,) = data.load(
        write(tmp_path / "a.jsonl", [{"prompt": "a"} | row]) + ":code",
        tokenizer,
        budget=9,
        columns=(["prompt"], ["tests"]),
    ).validation
    # Arguments are JSON, a line each: 1 and [1]. Without a name they are standard input.
    assert programs.read_tests(prompt.answer) == (name, [([1, [1]], 2)] if name else [("1\n[1]", "2")])


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ([call(1, testtype="functional")], "functional tests without the name of the function"),
        (["assert f(1) == 2", "assert f(2) == 3"], "tests are asserts"),
        ("from solution import f\n\ndef test_f():\n    assert f(1) == 2", "KodCode"),
        ("def check(candidate):\n    assert candidate(n = 1) == 2", r"check\(candidate\)"),
        ("", "unlabelled|no tests"),
        ({"inputs": [], "outputs": []}, "no tests"),
        ([], "no tests"),
        ({}, "no tests"),
    ],
)
def test_other_forms_of_tests_are_refused_by_their_name(tests, words, tmp_path, tokenizer):
    path = write(tmp_path / "a.jsonl", [{"prompt": "a", "answer": tests}])
    with pytest.raises(ValueError, match=f"a.jsonl:1: expected an answer for `code`.*({words}).*--skip-unusable"):
        data.load(f"{path}:code", tokenizer, budget=9)


def test_unusable_rows_end_the_run_or_are_left_out_and_named(tmp_path, tokenizer):
    good = {"inputs": ["1"], "outputs": ["1"]}
    rows = [
        {"prompt": "a", "answer": good},
        {"prompt": "b", "answer": ""},
        {"prompt": "c", "answer": good},
        {"prompt": "", "answer": good},
        {"prompt": "d", "answer": {"inputs": [], "outputs": []}},
    ]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(ValueError, match="a.jsonl:2: .*; --skip-unusable leaves such rows out"):
        data.load(f"{path}:code", tokenizer, budget=9)
    loaded = data.load(f"{path}:code", tokenizer, budget=9, skip_unusable=True)
    assert sorted(p.text for p in loaded.train + loaded.validation) == ["a", "c"]
    assert [message.partition(": ")[0] for message in loaded.unusable] == [f"{path}:{line}" for line in (2, 4, 5)]
    assert (loaded.too_long, loaded.duplicates) == (0, 0)
    with pytest.raises(ValueError, match="0 longer ones and 1 unusable rows .*no tests"):
        data.load(write(tmp_path / "b.jsonl", rows[1:2]) + ":code", tokenizer, budget=9, skip_unusable=True)


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


def test_a_token_for_unknown_characters_that_is_also_the_first_token_is_no_unknown_character(tmp_path):
    tokenizer = character_tokenizer(template="<unk>" + TEMPLATE)  # OLMo 2: bos = eos = unk, and its template writes it
    tokenizer.bos_token = tokenizer.eos_token = "<unk>"
    (prompt,) = data.load(write(tmp_path / "a.jsonl", [{"prompt": "a", "answer": 1}]), tokenizer, budget=99).validation
    assert prompt.ids[0] == tokenizer.unk_token_id == 0 and prompt.text == "<unk>user:a|assistant:"


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


# --- Other files, folders and hubs ---


def polaris(n):
    return {"problem": f"problem {n}", "answer": str(n), "difficulty": "3/8"}


def gsm8k(n):
    return {"question": f"problem {n}", "answer": f"{n} + 0 = <<{n}+0={n}>>{n}\n#### {n}"}


def dapo(n):
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": f"problem {n}", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(n), "style": "rule"},
        "extra_info": {"index": str(n)},
    }


def deepcoder(n):
    tests = [{"input": f"{n}\n", "output": f"{n}\n", "type": "stdin_stdout"}]
    return {"problem": f"problem {n}", "tests": json.dumps(tests)}


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    module = pytest.importorskip("datasets", reason="the optional package `datasets` is not installed")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return module


def save(path, rows):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist(rows), path)


@pytest.mark.parametrize(
    ("row", "columns", "task"),
    [
        (polaris, (["problem"], ["answer"]), "math"),
        (gsm8k, (["question"], ["answer"]), "math"),
        (dapo, (["prompt"], ["reward_model.ground_truth"]), "math"),
        (deepcoder, (["problem"], ["tests"]), "code"),
    ],
)
def test_a_folder_of_parquet_with_the_columns_of_well_known_datasets(row, columns, task, tmp_path, datasets):
    save(tmp_path / "folder" / "train-00000-of-00001.parquet", [row(n) for n in range(20)])
    save(tmp_path / "folder" / "test-00000-of-00001.parquet", [row(99)])  # the other split is not read
    tokenizer = character_tokenizer(template=TEMPLATE)
    loaded = data.load(f"{tmp_path}/folder:2:{task}", tokenizer, budget=99, validation=1, columns=columns)
    assert (len(loaded.train), len(loaded.validation), loaded.weights) == (19, 1, (2.0,))
    for prompt in loaded.train + loaded.validation:
        n = prompt.text.removeprefix("user:problem ").removesuffix("|assistant:")
        assert prompt.where == f"{tmp_path}/folder, row {int(n) + 1}" and prompt.task == task
        assert prompt.answer == (n if task == "math" else deepcoder(int(n))["tests"])


def test_files_by_their_ending_and_patterns_of_them(tmp_path, datasets, tokenizer):
    save(tmp_path / "f" / "a1.parquet", [{"prompt": f"a{n}", "answer": n} for n in range(3)])
    save(tmp_path / "f" / "a2.parquet", [{"prompt": f"b{n}", "answer": n} for n in range(4)])
    (tmp_path / "c.json").write_text(json.dumps([{"prompt": f"c{n}", "answer": n} for n in range(5)]))
    for name, count in (("f/a1.parquet", 3), ("f/*.parquet", 7), ("c.json", 5)):
        loaded = data.load(str(tmp_path / name), tokenizer, budget=9)
        assert len(loaded.train) + len(loaded.validation) == count
    save(tmp_path / "f" / "a3.parquet", [{"prompt": "a", "answer": None}])
    with pytest.raises(ValueError, match="a3.parquet, row 1: expected .* an unlabelled row"):
        data.load(str(tmp_path / "f" / "a3.parquet"), tokenizer, budget=9)


def test_files_that_datasets_cannot_read_are_refused_with_its_reason(tmp_path, datasets, tokenizer):
    (tmp_path / "broken.json").write_text('{"prompt": "a"\n{"x')
    with pytest.raises(ValueError, match=r"broken.json: expected .* got Dataset\w*Error: .*; likely cause"):
        data.load(str(tmp_path / "broken.json"), tokenizer, budget=9)


def test_names_on_the_hub_may_carry_a_configuration(datasets, tokenizer, monkeypatch):
    asked = []

    def load_dataset(path, name, split):
        asked.append((path, name, split))
        return [gsm8k(n) for n in range(10)]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for name in ("openai/gsm8k/main", "POLARIS-Project/Polaris-Dataset-53K:4"):
        data.load(name, tokenizer, budget=99, columns=(["question"], ["answer"]))
    assert asked == [("openai/gsm8k", "main", "train"), ("POLARIS-Project/Polaris-Dataset-53K", None, "train")]

    def unreachable(path, name, split):
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ValueError, match="--data a/b: .* got ConnectionError: Couldn't reach it; .* no network"):
        data.load("a/b", tokenizer, budget=99)


def test_without_the_package_datasets_the_error_says_what_to_install(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # makes `import datasets` fail as if it were not installed
    with pytest.raises(ValueError, match="--data .*: expected .* got ModuleNotFoundError: .* pip install datasets"):
        data.load(str(tmp_path), tokenizer, budget=99)


def test_the_samples_in_tests_data_are_read_as_two_tasks():
    folder = Path(__file__).parent / "data"
    names = [str(folder / name) for name in ("math_sample.jsonl", "code_sample.jsonl")]
    tokenizer = character_tokenizer(characters=string.printable)
    loaded = data.load([f"{names[0]}:3", names[1]], tokenizer, budget=500, validation=2)
    assert loaded.weights == (3.0, 1.0) and (loaded.too_long, loaded.duplicates) == (0, 0)
    for source, task in enumerate(("math", "code")):
        part = [p for p in loaded.train + loaded.validation if p.source == source]
        assert len(part) >= 20 and {(p.task, p.curve) for p in part} == {(task, task)}
    named = ["fn_name" in json.loads(p.answer) for p in loaded.train if p.task == "code"]
    assert 5 < sum(named) < len(named) - 5  # both kinds of tests


# --- The split (Sec. 2.1) ---


def test_sec21_split_holds_out_the_number_asked_for_or_a_tenth_of_a_small_file():
    for total, asked, held in ((20_000, 1_000, 1_000), (5_000, 1_000, 500), (50, 1_000, 5), (5, 1_000, 1), (50, 2, 2)):
        train, validation = data.split(prompts(total), asked)
        assert (len(train), len(validation)) == (total - held, held)
        assert len({p.text for p in train + validation}) == total


def test_sec21_split_is_random_and_always_the_same():
    _, validation = data.split(prompts(1_000), 100)
    assert validation == data.split(prompts(1_000), 100)[1]
    assert indices(data.split(prompts(30), 3)[1]) == [16, 2, 4]  # as in the runs whose results are committed
    numbers = [p.ids[0] for p in validation]
    # The mean of 100 of 0..999 is 499.5, standard deviation 29/sqrt(1.1); that of the first or last 100, 49.5 or 949.5.
    assert abs(sum(numbers) / 100 - 499.5) < 110 and numbers != sorted(numbers)


def test_more_than_k_plus_1_times_p_training_prompts_are_needed():
    enough = data.Data(prompts(289), prompts(9), 4, 5)
    data.check_size(enough, prompts=32, k=8)  # 9 · 32 = 288
    message = r"more than \(k \+ 1\)·P = 289 .*got 289 \(held out: 9, too long: 4, repeated: 5\)"
    with pytest.raises(ValueError, match=message):
        data.check_size(enough, prompts=289, k=0)


def test_every_source_has_its_own_validation_prompts_and_its_own_curve(tmp_path, tokenizer):
    one = write(tmp_path / "one.jsonl", [{"prompt": f"a{n}", "answer": n} for n in range(50)])
    two = write(tmp_path / "two.jsonl", [{"prompt": f"b{n}", "answer": n} for n in range(30)])
    loaded = data.load(["sorting", one, f"{two}:5"], tokenizer, budget=30, validation=4)
    assert Counter(p.curve for p in loaded.validation) == {"sorting": 4, one: 4, two: 3}  # 3: a tenth of 30
    assert Counter(p.source for p in loaded.train) == {0: 8_000, 1: 46, 2: 27} and loaded.weights == (1.0, 1.0, 5.0)
    for part in (loaded.train, loaded.validation):
        assert indices(part) == list(range(len(part)))
    alone = data.load(two, tokenizer, budget=30, validation=4)  # what is held out does not depend on the other sources
    assert {p.text for p in alone.validation} == {p.text for p in loaded.validation if p.source == 2}
    assert {p.curve for p in alone.train} == {"math"}


def file_with(row, tmp_path, tokenizer, budget=9):
    """Path of a file of ten rows in which this row is at a place that puts it into the training set."""
    others = [{"prompt": f"b{n}", "answer": n} for n in range(9)]
    for place in range(10):
        path = write(tmp_path / f"{row['prompt']}.jsonl", [*others[:place], row, *others[place:]])
        if row["prompt"] in {p.text for p in data.load(path, tokenizer, budget=budget).train}:
            return path


def test_a_prompt_in_training_and_validation_of_two_sources_is_refused_with_both_places(tmp_path, tokenizer):
    rows = [{"prompt": f"a{n}", "answer": n} for n in range(20)]
    one = write(tmp_path / "one.jsonl", rows)
    loaded = data.load(one, tokenizer, budget=9)
    held, trained = loaded.validation[0], loaded.train[0]
    two = file_with(rows[int(held.answer)], tmp_path, tokenizer)
    for pair in ([one, two], [two, one]):
        with pytest.raises(ValueError, match=f"{two}:[0-9]+: expected no validation prompt.* {held.where} is one"):
            data.load(pair, tokenizer, budget=9)
    two = file_with(rows[int(trained.answer)], tmp_path, tokenizer)
    both = data.load([one, two], tokenizer, budget=9).train  # that both sources train on a prompt is no leak
    assert [p.source for p in both if p.text == trained.text] == [0, 1]


def test_an_embedded_validation_text_in_a_file_is_refused(tmp_path, tokenizer):
    (text, answer), *_ = data.examples("arithmetic", 5, seed=0, held_out=True)
    path = file_with({"prompt": text, "answer": answer}, tmp_path, tokenizer, budget=30)
    with pytest.raises(ValueError, match="jsonl:[0-9]+: .* and arithmetic is one"):
        data.load(["arithmetic", path], tokenizer, budget=30, validation=5)


# --- No-Positive-Resampling (Sec. 3.2) ---


def run(curriculum, batches, count, rate=lambda index: 0.5, lag=0):
    """Draw `batches` batches of `count` prompts; each comes back after `lag` more; returns their indices."""
    out, waiting = [], []
    for _ in range(batches):
        out.append(indices(curriculum.next(count)))
        waiting.append(out[-1])
        if len(waiting) > lag:
            for index in waiting.pop(0):
                curriculum.came_back(index, rate(index))
    return out


def test_epochs_give_every_prompt_once_in_another_order():
    curriculum = data.Curriculum(prompts(12), seed=0, threshold=0.9)
    assert curriculum.epoch == 0.0
    first, second = (sum(run(curriculum, 3, 4), []) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second and first != list(range(12)) and curriculum.epoch == 2.0
    run(curriculum, 1, 3)
    assert curriculum.epoch == 2.25


def test_one_source_keeps_the_order_of_the_runs_of_which_the_results_are_committed():
    # The order of the code without weights: 10 prompts, 3 a batch, back after one more batch; 0, 4 and 8 always solved.
    curriculum = data.Curriculum(prompts(10), seed=3, threshold=0.9)
    assert run(curriculum, 8, 3, lambda index: 1.0 if index % 4 == 0 else 0.5, lag=1) == [
        [8, 1, 5],
        [2, 4, 6],
        [3, 7, 9],
        [0, 5, 6],
        [3, 9, 2],
        [1, 7, 5],
        [2, 3, 6],
        [1, 7, 9],
    ]


def test_order_depends_on_the_seed_alone():
    def order(seed):
        return run(data.Curriculum(prompts(12), seed=seed, threshold=0.9), 6, 4)

    assert order(0) == order(0) != order(1)


def test_sec32_prompts_at_0_9_are_never_sampled_again_and_those_below_are():
    rates = {0: 1.0, 1: 15 / 16, 2: 0.9, 3: 0.8999, 4: 14 / 16, 5: 0.0}
    curriculum = data.Curriculum(prompts(6), seed=0, threshold=0.9)
    run(curriculum, 3, 2, rates.get)
    assert curriculum.retired == 3
    for epoch in (2, 3, 4):  # from now on an epoch is prompts 3, 4 and 5
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
    curriculum.came_back(3, 0.0)
    assert indices(curriculum.next(1)) == [3]


def test_a_batch_across_two_epochs_holds_no_prompt_twice():
    for seed in range(20):
        curriculum = data.Curriculum(prompts(5), seed=seed, threshold=0.9)
        batches = run(curriculum, 5, 4)
        assert all(len(set(batch)) == 4 for batch in batches)
        assert Counter(sum(batches, [])) == {index: 4 for index in range(5)}  # 20 draws = 4 whole epochs


def test_a_prompt_still_in_flight_at_an_epoch_boundary_keeps_its_turn():
    # 10 prompts, 6 in flight: the first batches of epoch 2 pass over those in flight and give them out later
    curriculum = data.Curriculum(prompts(10), seed=3, threshold=0.9)
    given_out = sum(run(curriculum, 20, 2, lag=3), [])
    for epoch in range(4):
        assert sorted(given_out[10 * epoch : 10 * epoch + 10]) == list(range(10))


def test_delivering_a_group_twice_is_an_error():
    curriculum = data.Curriculum(prompts(3), seed=0, threshold=0.9)
    (prompt,) = curriculum.next(1)
    curriculum.came_back(prompt.index, 0.5)
    with pytest.raises(ValueError, match="expected a prompt in flight, got"):
        curriculum.came_back(prompt.index, 0.5)


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
            curriculum.came_back(index, rate)
            if threshold is not None and rate >= threshold:
                retired.add(index)
    assert given_out[:total] == prompt_order[: len(given_out)]
    assert curriculum.retired == len(retired) and indices(curriculum.in_flight) == out


@pytest.mark.parametrize("weights", [(1.0,), (3.0, 1.0), (0.1, 0.7, 0.2)])
def test_resume_through_json_goes_on_with_the_same_prompts(weights):
    def fresh():
        return data.Curriculum(prompts(40, *(20 for _ in weights[1:])), seed=2, threshold=0.9, weights=weights)

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
            curriculum.came_back(prompt.index, 0.5)
    assert run(whole, 30, 3, rate, lag=2) == run(resumed, 30, 3, rate, lag=2)


def test_resume_with_other_prompts_or_another_seed_is_refused():
    state = data.Curriculum(prompts(4), seed=0, threshold=0.9).state_dict()
    for total, seed, weights in ((5, 0, [1.0]), (4, 1, [1.0]), (4, 0, [2.0])):
        other = data.Curriculum(prompts(total), seed=seed, threshold=0.9, weights=weights)
        with pytest.raises(ValueError, match="these prompts and seed"):
            other.load_state_dict(state)


def test_a_saved_state_does_not_change_as_the_run_goes_on():
    curriculum = data.Curriculum(prompts(9), seed=0, threshold=0.9)
    run(curriculum, 2, 2)
    state = curriculum.state_dict()
    frozen = json.dumps(state)
    run(curriculum, 2, 2)
    assert json.dumps(state) == frozen


# --- Weights ---


def sources(batch):
    return Counter(prompt.source for prompt in batch)


def test_every_batch_holds_the_shares_whatever_the_sizes_of_the_sources():
    curriculum = data.Curriculum(prompts(40, 400), seed=0, threshold=0.9, weights=[3, 1])
    seen = Counter()
    for _ in range(20):
        batch = curriculum.next(8)
        assert sources(batch) == {0: 6, 1: 2}
        seen.update(indices(batch))
        for prompt in batch:
            curriculum.came_back(prompt.index, 0.5)
    # 120 draws from 40 prompts are 3 epochs, 40 draws from 400 are 0.1; the epoch is their mean, 1.55
    assert {seen[index] for index in range(40)} == {3} and seen.total() == 160
    assert curriculum.epoch == pytest.approx(1.55)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 100), st.floats(0.01, 100), st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_of_two_sources_any_run_of_draws_is_within_one_prompt_of_the_shares(one, two, batches):
    curriculum = data.Curriculum(prompts(99, 99), seed=0, threshold=None, weights=[one, two])
    drawn, total = Counter(), 0
    for count in batches:
        batch = curriculum.next(count)
        drawn, total = drawn + sources(batch), total + count
        assert len(batch) == count and abs(drawn[0] - total * one / (one + two)) < 1 + 1e-9
        for prompt in batch:
            curriculum.came_back(prompt.index, None)


def test_a_source_that_is_learnt_leaves_its_share_to_the_others():
    curriculum = data.Curriculum(prompts(4, 100, 100), seed=0, threshold=0.9, weights=[2, 3, 1])
    for batch in (curriculum.next(12), curriculum.next(8), curriculum.next(8)):
        for prompt in batch:
            curriculum.came_back(prompt.index, 1.0 if prompt.source == 0 else 0.5)
    assert curriculum.retired == 4 and sources(curriculum.next(8)) == {1: 6, 2: 2}


def test_a_source_all_in_flight_is_not_made_up_for_later():
    curriculum = data.Curriculum(prompts(100, 4), seed=0, threshold=0.9, weights=[1, 1])
    first = curriculum.next(8)
    assert sources(first) == {0: 4, 1: 4} and sources(curriculum.next(8)) == {0: 8}
    for prompt in first:
        curriculum.came_back(prompt.index, 0.5)
    assert sources(curriculum.next(4)) == {0: 2, 1: 2}


def test_all_sources_together_are_exhausted_before_a_batch_is_short():
    curriculum = data.Curriculum(prompts(3, 5), seed=0, threshold=0.9, weights=[5, 1])
    assert sorted(indices(curriculum.next(9))) == list(range(8)) and curriculum.next(1) == []
