"""Claims about plumbing/prompts.py: sources and their weights, rows and columns, files, folders, the hub."""

import json
import os
import string
import sys
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from conftest import CHARACTERS, TEMPLATE, character_tokenizer, jsonl, refuses, write_rows
from conftest import rows as data_rows

import data
from plumbing import prompts as sources
from verify import programs

CHAT = character_tokenizer(template=TEMPLATE, characters=string.printable + "′€\a\b")
loaded = partial(sources.read_sources, tokenizer=character_tokenizer(), budget=99)


def write(name, rows):
    write_rows(name, rows)
    return name


def load(rows, more="", **settings):
    """data.Data of a.jsonl with these rows; more: what follows its name on the command line."""
    return loaded(write("a.jsonl", rows) + more, **settings)


def every(found):
    """All prompts, those for training first."""
    return [*filter(None, found.train), *found.validation]


def answers(found):
    """{text: answer} of all prompts."""
    return {prompt.text: prompt.answer for prompt in every(found)}


def rows_of(**answers):
    return [{"prompt": prompt, "answer": answer} for prompt, answer in answers.items()]


def numbered(letter, count):
    return [{"prompt": f"{letter}{n}", "answer": n} for n in range(count)]


@pytest.mark.parametrize("task", data.EMBEDDED_TASKS)
def test_embedded_tasks_are_tokenised_as_they_are_whatever_their_weight(task):
    read = loaded(f"{task}:2", validation=100)
    assert (len(read.train), len(read.validation), read.too_long) == (data.EMBEDDED_TASKS[task].prompts, 100, 0)
    prompt = read.validation[0]
    assert prompt.ids == tuple(3 + CHARACTERS.index(character) for character in prompt.text)
    assert (prompt.task, prompt.curve) == (task, task)


# --- Rows ---


MALFORMED = [(row["line"].encode(), row["said"]) for row in data_rows("malformed")]
MALFORMED += [(b'{"prompt": "a", "answer": "1", "prompt": "b"}', "a name occurs twice")]
MALFORMED += [(b'{"prompt": "a", "answer": "\xff"}', "UTF-8"), ('{"prompt": "a"}'.encode("utf-16"), "UTF-8.* UTF-16")]


@pytest.mark.parametrize("line, words", MALFORMED, ids=count())
def test_a_malformed_line_stops_with_file_line_expected_got_and_cause(line, words):
    Path("bad.jsonl").write_bytes(b'{"prompt": "fine", "answer": 1}\n\n' + line + b"\n")
    refuses(f"(?s)^bad.jsonl:3: expected (?=.*got)(?=.*likely cause).*{words}", loaded, "bad.jsonl")


EATEN = {  # what JSON makes of \frac, \boxed and \neq anywhere; of \times and \right in a formula alone
    "\frac{1}{2}": True, "a \boxed{1}": True, "x\neq 1": True, "1\a": True, "\v2": True,
    "$2\times 3$": True, "\\(1\right)": False, "\\(1\right\\)": True, "a\tb": False, "1\r\n2": False,
    "$1$\tand $2$": False,
}  # fmt: skip


@pytest.mark.parametrize("text", EATEN)
def test_latex_that_json_has_eaten_is_refused_in_prompts_and_answers_with_its_line(text):
    def loads(prompt, answer, task):
        return len(every(load([{"prompt": prompt, "answer": answer, "task": task}], tokenizer=CHAT)))

    for prompt in (text, [{"role": "user", "content": text}]):
        if EATEN[text]:
            refuses(r"a.jsonl:1: .* double the backslash", loads, prompt, 1, "math")
        else:
            assert loads(prompt, 1, "math") == 1
    if "\t" in text or "\r" in text.replace("\r\n", ""):
        refuses(r"a.jsonl:1: .* double the backslash", loads, "1?", text, "math")
    assert loads(text, json.dumps({"inputs": [text], "outputs": [text]}), "code") == 1


def test_the_task_of_a_source_wins_over_its_rows_and_the_first_column_that_a_row_has_counts():
    rows = [{"problem": f"{n}+1=", "x": {"y": n + 1}, "task": "of other meaning", "answer": "no"} for n in range(9)]
    columns = (("question", "problem", "prompt"), ("reward_model.ground_truth", "x.y", "answer"))
    found = load(rows, ":arithmetic", columns=columns)
    assert answers(found) == {f"{n}+1=": str(n + 1) for n in range(9)} and found.tasks == {"arithmetic"}
    dotted = {"prompt": "a", "x.y": 1, "x": {"y": 2}, "id": 3}  # a name with a dot is a column of that name first
    found = load([dotted], columns=columns)
    assert answers(found) == {"a": "1"} and found.unread == {0: ["id"]}


@pytest.mark.parametrize("case", data_rows("code_rows"), ids=lambda case: case["of"])
def test_tests_and_the_name_of_a_function_are_read_in_the_forms_of_public_data_sets(case):
    (prompt,) = load([case["row"]], ":code", columns=(["prompt"], ["tests"])).validation
    # Arguments are JSON, a line each: 1 and [1]. Without a name they are standard input.
    name, given = case["function"], ([1, [1]], 2) if case["function"] else ("1\n[1]", "2")
    assert programs.read_tests(prompt.answer) == (name, [given])


MESSAGES = [{"role": "user", "content": "1?"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "?"}]}]


@pytest.mark.parametrize("prompt", [MESSAGES, json.dumps(MESSAGES), str(MESSAGES), PARTS, "1?"])
def test_chat_messages_may_be_stored_as_text_or_in_parts(prompt):
    rows = [{"prompt": prompt, "answer": 1}]
    (read,) = load(rows, tokenizer=character_tokenizer(template=TEMPLATE, wrap=True)).validation
    assert read.text == "user:1?|assistant:" and len(read.ids) == len(read.text)  # no <bos>, no <eos> on top
    (bare,) = load(rows_of(ab=1), tokenizer=character_tokenizer(wrap=True)).validation
    assert bare.text == "ab" and len(bare.ids) == 3  # <bos>, and no <eos>, which would end it


# --- What is left out, and what is said of it ---


def test_of_repeated_prompts_the_first_row_counts_and_another_answer_is_reported():
    chat = [{"role": "user", "content": "b"}]  # the model reads both as the same
    rows = [*rows_of(a=1, b=2), {"prompt": "a ", "answer": 3}, {"prompt": chat, "answer": 2}]
    found = load(rows, tokenizer=CHAT)
    assert answers(found) == {"user:a|assistant:": "1", "user:b|assistant:": "2"} and found.duplicates == 2
    assert "a.jsonl:3, repeat a prompt with another answer" in found.warnings[0]
    asked = load(rows, tokenizer=CHAT, evaluate=True)  # there each is a question
    assert len([*every(asked), *asked.others]) == 4


def test_prompts_over_the_budget_are_left_out_when_they_are_drawn(monkeypatch):
    rows = [{"prompt": "a" * n, "answer": n} for n in range(1, 11)]
    found = load(rows, budget=7)
    assert len(every(found)) == 7 and found.too_long + [*found.train].count(None) == 3  # of 8, 9 and 10 characters
    refuses("<= 0 tokens, got 10 longer", load, rows, budget=0)
    refuses("a.jsonl: .* got 0 .* an empty file", load, [])
    monkeypatch.setattr(data, "MAX_ANSWER", 2)  # bytes: π has two
    assert answers(load(rows_of(a="12", c="1π"), ":text")) == {"a": "12"}


def test_unusable_rows_end_the_run_or_are_left_out_and_named():
    good = {"inputs": ["1"], "outputs": ["1"]}
    rows = rows_of(a=good, b="", c=good, d=[])
    refuses("a.jsonl:2: .*; --skip-unusable leaves such rows out", load, rows, ":code")
    found = load(rows, ":code", skip_unusable=True)
    assert answers(found).keys() == {"a", "c"}
    assert [message.partition(": ")[0] for message in found.unusable] == ["a.jsonl:2", "a.jsonl:4"]
    refuses("0 longer ones; .*no tests.*only unusable rows", load, rows[1:2], ":code", skip_unusable=True)


STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE


def test_a_chat_that_the_template_refuses_is_named_with_its_row_or_left_out():
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1?"}]
    rows = [*rows_of(a=0), {"prompt": chat, "answer": 1}]
    strict = character_tokenizer(template=STRICT)
    refuses("a.jsonl:2: .* got no system role .*--skip-unusable", load, rows, tokenizer=strict)
    found = load(rows, tokenizer=strict, skip_unusable=True)
    assert len(every(found)) == len(found.unusable) == 1


def test_a_token_beyond_the_models_vocabulary_is_refused_with_its_row_and_only_if_a_row_has_it():
    rows = [*rows_of(a=0), {"prompt": "a|", "answer": 1}]
    refuses(r"a.jsonl:2: .* got the token '\|' with the id 45; .*another model", load, rows, vocabulary=45)
    assert len(every(load(rows[:1], vocabulary=45))) == 1


PARTS_ONLY = "{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}|assistant:"
FIRST_ALONE = "{{ messages[0].content }}|{% if add_generation_prompt %}assistant:{% endif %}"
NO_TEXTS = "{% if messages[0].content is string %}{{ raise_exception('no texts') }}{% endif %}" + PARTS_ONLY


def test_the_question_must_stand_in_the_rendered_prompt_as_a_text_or_as_a_part():
    pair = [{"role": "system", "content": "be brief"}, {"role": "user", "content": " what   is it?"}]
    for template in (PARTS_ONLY, NO_TEXTS, TEMPLATE):
        (prompt,) = load([{"prompt": pair, "answer": 1}], tokenizer=character_tokenizer(template=template)).validation
        assert "what   is it?|assistant:" in prompt.text
    first = character_tokenizer(template=FIRST_ALONE)
    refuses("a.jsonl:1: expected the text of the last user", load, [{"prompt": pair, "answer": 1}], tokenizer=first)
    # A later row of the same roles is looked at when it is drawn, and counts as one that is too long.
    last = character_tokenizer(template="{{ messages[-1].content | replace('b', '') }}|")
    found = load(rows_of(a=1, b=2), tokenizer=last, validation=2)
    assert len(every(found)) == 1 and found.too_long + [*found.train].count(None) == 1


@pytest.mark.parametrize("prompt", ["<bos>1?", [{"role": "user", "content": "<bos>1?"}]])
def test_rows_that_are_rendered_already_are_warned_of_once(prompt):
    tokenizer = character_tokenizer(template=TEMPLATE, wrap=True)
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    [warning] = load([{"prompt": prompt, "answer": 1}, *rows_of(a=1)], tokenizer=tokenizer).warnings
    assert "1 rows, the first a.jsonl:1," in warning


def test_a_token_for_unknown_characters_that_is_also_the_first_token_is_no_unknown_character():
    tokenizer = character_tokenizer(template="<unk>" + TEMPLATE)  # OLMo 2: bos = eos = unk, and its template writes it
    tokenizer.bos_token = tokenizer.eos_token = "<unk>"
    (prompt,) = load(rows_of(a=1), tokenizer=tokenizer).validation
    assert prompt.ids[0] == tokenizer.unk_token_id == 0 and prompt.text == "<unk>user:a|assistant:"


# --- Names, files, folders, the hub ---


def test_a_file_is_the_same_source_however_its_path_is_written(tmp_path, monkeypatch):
    (tmp_path / "x[1]").mkdir()
    monkeypatch.chdir("x[1]")
    monkeypatch.setenv("HOME", str(tmp_path / "x[1]"))
    whole = f"{tmp_path}/x[1]/{write('chat.jsonl', ROWS)}"
    assert {sources.anchored(name) for name in ("chat.jsonl", "./chat.jsonl", "~/chat.jsonl", whole)} == {whole}
    monkeypatch.chdir("/")
    assert len(list(sources.read(whole))) == 10
    assert sources.anchored("openai/gsm8k/main") == "openai/gsm8k/main"
    assert sources.names_in_log([whole, "sorting"]) == ["chat.jsonl", "sorting"]
    assert sources.names_in_log(["/a/x.jsonl", "/b/x.jsonl"]) == ["/a/x.jsonl", "/b/x.jsonl"]


def test_a_task_that_is_none_is_refused_with_the_tasks():
    for name in ("q.jsonl:1:intger", "q.jsonl:maths"):
        refuses("expected one of exact, math, .*choice, arithmetic", sources.parse_source, name)


ROWS = [{"prompt": f"{n}+0=", "answer": f"0{n}"} for n in range(10)]
LINES = jsonl(ROWS)
TABLE = "".join(",".join(row) + "\n" for row in (("prompt", "answer"), *(row.values() for row in ROWS)))
FILES = {
    "a.jsonl": "\ufeff" + LINES,  # as Windows' editor writes it
    "a.tsv": TABLE.replace(",", "\t"),
    "a.CSV": "\ufeff" + TABLE.replace(",", ";"),
    "a.json": json.dumps(ROWS),
    "a[1].jsonl": LINES,
}


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    module = pytest.importorskip("datasets", reason="the optional package `datasets` is not installed")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return module


@pytest.mark.parametrize("name", FILES)
def test_files_of_every_kind_in_use_are_read_with_answers_letter_by_letter(name, datasets):
    Path(name).write_text(FILES[name], encoding="utf-8")
    assert sorted((p.text, p.answer) for p in every(loaded(name))) == [(*row.values(),) for row in ROWS]


def test_cells_of_a_table_are_text_and_each_row_has_the_line_in_which_it_ends():
    cells = ["007", "NA", "None", "2020-01-05", "1e3", "true", "1.0", ""]
    rows = [(2, "1+1=|", "2"), (5, 'two\nlines, "so"', "3"), (6, '4" or 5"', "4"), (7, "short", None)]
    rows += [(8 + n, "a", cell) for n, cell in enumerate(cells)]
    text = 'prompt|answer||\n"1+1=|"|2\n\n"two\nlines, ""so"""|3\n4" or 5"|4\nshort\n'
    Path("a.csv").write_text(text + "".join(f"a|{cell}\n" for cell in cells), encoding="utf-8")
    read = [(place, row["prompt"], row["answer"]) for place, row in sources.read("a.csv")]
    assert read == [(f"a.csv:{line}", *row) for line, *row in rows]


BROKEN = [  # a file, what it holds, what is said
    ("a.csv", b"prompt,answer,answer\n1,2,3", "a.csv:1: expected a name for each column, got .*'answer', 'answer'"),
    ("a.csv", b"sep=;\nprompt;answer\n1;2", "a.csv:1: .*a line for Excel"),
    ("a.csv", "prompt,answer\n1,2\n".encode("utf-16"), "a.csv:1: expected text in UTF-8"),
    ("a.csv", b"# mine\nprompt,answer\n", "a.csv:2: .* more cells than the names .'# mine'.; .* does not name"),
    ("a.csv", b'prompt,answer\n0,1\n"1+1=,2\n3,3\n', "a.csv:3: .* a row that runs to line 4 .* a quote"),  # not closed
    ("a.jsonl.gz", b"", "expected .*, got a packed file"),
    ("a.json", b'{"prompt": "a"\n{"x', "got ArrowInvalid: JSON parse error.*; likely cause"),
    ("a.json", b'[{"prompt": "a", "answer": "2020-01-05T00:00:00"}]', "row 1: .* it is a datetime, and must be text"),
    ("*.jsonl", None, "no such file or folder"),
]


@pytest.mark.parametrize("name, content, words", BROKEN, ids=count())
def test_files_of_other_kinds_broken_and_converted_ones_are_refused(name, content, words, datasets):
    if content is not None:
        Path(name).write_bytes(content)
    refuses(words, loaded, name)


def test_folders_hold_files_of_one_kind_and_none_of_save_to_disk(datasets):
    table = datasets.Dataset.from_list(ROWS)
    table.to_parquet("folder/train-0-of-1.parquet")
    table.save_to_disk("disk")
    Path("folder/README.md").touch()
    assert len(answers(loaded("folder"))) == 10
    refuses("save_to_disk: .*to_parquet", loaded, "disk")
    Path("folder/more").mkdir()
    Path("folder/more/b.csv").touch()
    refuses("2 kinds of data: .*b.csv", loaded, "folder")


DAPO = '{"prompt": [{"content": "problem N", "role": "user"}], "reward_model": {"ground_truth": "N"}}'


def test_a_folder_of_parquet_is_read_in_its_train_split_and_anew_when_it_was_changed_in_place(datasets):
    columns = (["prompt"], ["reward_model.ground_truth"])
    for more in (0, 100):
        for name, numbers in (("train", range(20)), ("test", [99])):  # no other split is read
            rows = [json.loads(DAPO.replace("N", f"{n + more}")) for n in numbers]
            path = f"folder/{name}-0-of-1.parquet"
            datasets.Dataset.from_list(rows).to_parquet(path)
            os.utime(path, (1e9, 1e9))
        read = every(loaded("folder:2:math", tokenizer=CHAT, columns=columns))
        expected = {(f"folder, row {n + 1}", f"user:problem {n + more}|assistant:", f"{n + more}") for n in range(20)}
        assert {(prompt.where, prompt.text, prompt.answer) for prompt in read} == expected


def test_names_on_the_hub_may_carry_a_configuration_and_its_failures_are_said(datasets, monkeypatch):
    def load_dataset(path, name, split, **_):
        if path == "a/b":
            raise ConnectionError("Couldn't reach it")
        assert (path, name, split) == ("openai/gsm8k", "main", "train")
        return numbered("a", 10)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(every(loaded("openai/gsm8k/main:4"))) == 10
    refuses("--data a/b: .* Couldn't reach it; .* no network", loaded, "a/b")
    monkeypatch.setitem(sys.modules, "datasets", None)  # makes `import datasets` fail as if it were not installed
    refuses("--data a/b: .*: pip install -e", loaded, "a/b")


# --- Several sources ---


def test_every_source_has_its_own_validation_prompts_and_its_own_curve():
    names = ["sorting", write("one.jsonl", numbered("a", 50)), write("two.jsonl", numbered("b", 30)) + ":5"]
    found = loaded(names, validation=4)
    held = {"sorting": 4, "one.jsonl": 4, "two.jsonl": 3}  # 3: a tenth of 30
    assert Counter(p.curve for p in found.validation) == held
    assert found.sizes == [8_000, 46, 27] and found.weights == (1.0, 1.0, 5.0)
    alone = loaded("two.jsonl", validation=4)  # held out is the same without the other sources
    assert {p.text for p in alone.validation} == {p.text for p in found.validation if p.source == 2}


def test_a_source_of_weight_0_is_validated_as_a_whole_on_its_own_curve_and_never_trained_on():
    names = [write("one.jsonl", numbered("a", 50)), write("aime.jsonl", numbered("b", 7)) + ":0"]
    found = loaded(names, validation=6)
    assert Counter(p.curve for p in found.validation) == {"math": 5, "aime.jsonl": 6}  # at most --eval-prompts
    assert found.sizes == [45, 0] and {p.source for p in found.train} == {0}


def test_a_prompt_in_training_and_validation_of_two_sources_is_refused_with_both_places():
    pair = [write("one.jsonl", numbered("a", 20)), "two.jsonl"]
    found = loaded("one.jsonl")
    held = found.validation[0]
    write("two.jsonl", [{"prompt": held.text, "answer": "1"}, *numbered("b", 9)])  # of ten rows the third is held out
    for names in (pair, pair[::-1]):
        refuses(f"two.jsonl:1: .*no validation prompt.* {held.where} is one", loaded, names)
    write("two.jsonl", [{"prompt": found.train[0].text, "answer": 1}, *numbered("b", 9)])
    loaded(pair)  # that both sources train on a prompt is no leak
