"""Claims about plumbing/prompts.py: sources and their weights, rows and columns, files, folders, the hub."""

import json
import os
import string
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from conftest import TEMPLATE, character_tokenizer, jsonl, refuses, write_rows
from conftest import rows as data_rows

from plumbing import prompts as sources
from verify import programs

loaded = partial(sources.read_sources, tokenizer=character_tokenizer(), budget=99)


def templated(template=TEMPLATE, **options):
    """A tokenizer with a chat template."""
    return character_tokenizer(template=template, characters=string.printable + "\a\b", **options)


def write(name, rows):
    write_rows(name, rows)
    return name


def load(rows, more="", **settings):
    """data.Data of a.jsonl with these rows; more: what follows its name on the command line."""
    return loaded(write("a.jsonl", rows) + more, **settings)


def every(prompts):
    """All prompts, those for training first."""
    return [*filter(None, prompts.train), *prompts.validation]


def answers(prompts):
    """{text: answer} of all prompts."""
    return {prompt.text: prompt.answer for prompt in every(prompts)}


def rows_of(**answers):
    return [{"prompt": prompt, "answer": answer} for prompt, answer in answers.items()]


def numbered(letter, count):
    return [{"prompt": f"{letter}{n}", "answer": n} for n in range(count)]


# --- Rows ---


MALFORMED = [(row["line"].encode(), row["said"]) for row in data_rows("malformed")]
MALFORMED += [(b'{"prompt": "a", "answer": "1", "prompt": "b"}', "a name occurs twice"), (b"\xff", "UTF-8")]


@pytest.mark.parametrize("line, words", MALFORMED, ids=count())
def test_a_malformed_line_stops_with_file_line_expected_got_and_cause(line, words):
    Path("bad.jsonl").write_bytes(b'{"prompt": "fine", "answer": 1}\n\n' + line + b"\n")
    refuses(f"(?s)^bad.jsonl:3: expected (?=.*got)(?=.*likely cause).*{words}", loaded, "bad.jsonl")


def test_latex_that_json_has_eaten_is_refused_in_prompts_and_answers_with_its_line():
    def loads(prompt, answer=1, task="math"):
        return load([{"prompt": prompt, "answer": answer, "task": task}], tokenizer=templated())

    # \frac, \boxed and \neq anywhere; \times and \right in a formula alone
    for eaten in ("\frac{1}{2}", "a \boxed{1}", "x\neq 1", "$2\times 3$", "\\(1\right\\)"):
        refuses("a.jsonl:1: .* double the backslash", loads, [{"role": "user", "content": eaten}])
        refuses("a.jsonl:1: .* double the backslash", loads, "1?", eaten)
    for fine in ("a\tb", "1\r\n2", "$1$\tand $2$"):
        loads(fine)
    loads("\frac", json.dumps({"inputs": ["\frac"], "outputs": ["1"]}), "code")


def test_the_task_of_a_source_wins_over_its_rows_and_the_first_column_that_a_row_has_counts():
    rows = [{"problem": f"{n}+1=", "x": {"y": n + 1}, "task": "of other meaning", "answer": "no"} for n in range(9)]
    columns = (("question", "problem", "prompt"), ("reward_model.ground_truth", "x.y", "answer"))
    assert answers(load(rows, ":arithmetic", columns=columns)) == {f"{n}+1=": str(n + 1) for n in range(9)}


@pytest.mark.parametrize("case", data_rows("code_rows"), ids=lambda case: case["of"])
def test_tests_and_the_name_of_a_function_are_read_in_the_forms_of_public_data_sets(case):
    (prompt,) = load([case["row"]], ":code", columns=(["prompt"], ["tests"])).validation
    # Arguments are JSON, a line each: 1 and [1]. Without a name they are standard input.
    name, given = case["function"], ([1, [1]], 2) if case["function"] else ("1\n[1]", "2")
    assert programs.read_tests(prompt.answer) == (name, [given])


MESSAGES = [{"role": "user", "content": "1?"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "?"}]}]


@pytest.mark.parametrize("prompt", [json.dumps(MESSAGES), str(MESSAGES), PARTS, "1?"])
def test_chat_messages_may_be_stored_as_text_or_in_parts(prompt):
    (read,) = load([{"prompt": prompt, "answer": 1}], tokenizer=templated(wrap=True)).validation
    assert read.text == "user:1?|assistant:" and len(read.ids) == len(read.text)  # no <bos>, no <eos> on top
    (bare,) = load(rows_of(ab=1), tokenizer=character_tokenizer(wrap=True)).validation
    assert bare.text == "ab" and len(bare.ids) == 3  # <bos>, and no <eos>, which would end it


# --- What is left out, and what is said of it ---


def test_of_repeated_prompts_the_first_row_counts_and_another_answer_is_reported():
    prompts = load([*rows_of(a=1, b=2), {"prompt": "a ", "answer": 3}])  # the model reads both as the same
    assert answers(prompts) == {"a": "1", "b": "2"} and prompts.duplicates == 1
    assert "a.jsonl:3, repeat a prompt with another answer" in prompts.notes[0]


def test_prompts_over_the_budget_are_left_out_when_they_are_drawn():
    prompts = load([{"prompt": "a" * n, "answer": n} for n in range(1, 11)], budget=7)
    assert len(every(prompts)) == 7 and prompts.too_long + [*prompts.train].count(None) == 3


def test_unusable_rows_end_the_run_or_are_left_out_and_named():
    good = {"inputs": ["1"], "outputs": ["1"]}
    rows = rows_of(a=good, b="", c=good)
    refuses("a.jsonl:2: .*; --skip-unusable leaves such rows out", load, rows, ":code")
    prompts = load(rows, ":code", skip_unusable=True)
    assert answers(prompts).keys() == {"a", "c"} and prompts.unusable[0].startswith("a.jsonl:2: ")


PAIR = [{"role": "system", "content": "be brief"}, {"role": "user", "content": " what   is it?"}]
PARTS_ONLY = "{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}|assistant:"


def test_what_system_and_user_say_must_stand_in_the_rendered_prompt_as_a_text_or_as_a_part():
    (prompt,) = load([{"prompt": PAIR, "answer": 1}], tokenizer=templated(PARTS_ONLY)).validation
    assert prompt.text.endswith("what   is it?|assistant:")
    cut = "{% for m in messages %}{{ m.content[3:] if m.content is string else m.content }}{% endfor %}|"
    for template in ("{{ messages[0].content }}|", "{{ messages[1].content }}|", cut):
        words = "a.jsonl:1: expected the texts of the system and the user"
        refuses(words, load, [{"prompt": PAIR, "answer": 1}], tokenizer=templated(template))


def test_a_later_row_whose_question_the_template_loses_is_left_out_when_it_is_drawn():
    prompts = load(rows_of(a=1, b=2), tokenizer=templated("{{ messages[-1].content | replace('b', '') }}|"))
    assert len(every(prompts)) == 1


# --- Names, files, folders, the hub ---


ROWS = [{"prompt": f"{n}+0=", "answer": f"0{n}"} for n in range(10)]
TABLE = "".join(",".join(row) + "\n" for row in (("prompt", "answer"), *(row.values() for row in ROWS)))
FILES = {
    "a.jsonl": "\ufeff" + jsonl(ROWS),  # as Windows' editor writes it
    "a.tsv": TABLE.replace(",", "\t"),
    "a.CSV": "\ufeff" + TABLE.replace(",", ";"),
    "a.json": json.dumps(ROWS),
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
    rows = [(2, "1+1=|", "2"), (5, 'two\nlines, "so"', "3"), (6, '4" or 5"', "4"), (7, "short", None)]
    rows += [(8 + n, "a", cell) for n, cell in enumerate(["007", "NA", "2020-01-05", "1e3", "true", "1.0", ""])]
    text = 'prompt|answer||\n"1+1=|"|2\n\n"two\nlines, ""so"""|3\n4" or 5"|4\nshort\n'
    Path("a.csv").write_text(text + "".join(f"a|{cell}\n" for *_, cell in rows[4:]), encoding="utf-8")
    read = [(place, row["prompt"], row["answer"]) for place, row in sources.read("a.csv")]
    assert read == [(f"a.csv:{line}", *row) for line, *row in rows]


BROKEN = [  # a source, what it holds, what is said
    (
        "a.csv",
        b"prompt,answer,answer\n1,2,3",
        "a.csv:1: expected a name of its own for each column, got .*'answer', 'answer'",
    ),
    ("a.csv", b"sep=;\nprompt;answer\n1;2", "a.csv:1: .*a line for Excel"),
    ("a.csv", "prompt,answer\n1,2\n".encode("utf-16"), "a.csv:1: expected text in UTF-8"),
    ("a.csv", b"# mine\nprompt,answer\n", "a.csv:2: .* more cells than the names .'# mine'.; .* does not name"),
    ("a.csv", b'prompt,answer\n0,1\n"1+1=,2\n3,3\n', "a.csv:3: .* a row that runs to line 4 .* a quote"),  # not closed
    ("a.jsonl.gz", b"", "expected .*, got a packed file"),
    ("a.json", b"{", "got ArrowInvalid: JSON parse error.*; likely cause"),
    ("a.json", b'[{"prompt": "a", "answer": "2020-01-05T00:00:00"}]', "row 1: .* it is a datetime, and must be text"),
    ("*.jsonl", None, "no such file or folder"),
    ("a.jsonl:maths", None, "expected one of exact, math, .*arithmetic"),
]


@pytest.mark.parametrize("name, content, words", BROKEN, ids=count())
def test_files_of_other_kinds_broken_and_converted_ones_are_refused(name, content, words, datasets):
    if content is not None:
        Path(name).write_bytes(content)
    refuses(words, loaded, name)


def test_folders_hold_files_of_one_kind_and_none_of_save_to_disk(datasets):
    datasets.Dataset.from_list(ROWS).save_to_disk("disk")
    refuses("save_to_disk: .*to_parquet", loaded, "disk")
    for name in ("a.jsonl", "b.csv"):
        Path(name).touch()
    refuses("4 kinds of data: a.jsonl, b.csv", loaded, str(Path.cwd()))


def test_a_folder_of_parquet_is_read_in_its_train_split_and_anew_when_it_was_changed_in_place(datasets):
    for letter in "ab":
        for name, rows in (("train", numbered(letter, 20)), ("test", numbered("t", 9))):  # no other split is read
            path = f"folder/{name}-0-of-1.parquet"
            datasets.Dataset.from_list(rows).to_parquet(path)
            os.utime(path, (1e9, 1e9))
        Path("folder/README.md").touch()
        assert answers(loaded("folder")) == {f"{letter}{n}": str(n) for n in range(20)}


# --- Several sources ---


def test_every_source_has_its_own_validation_prompts_and_its_own_curve():
    names = ["sorting", write("one.jsonl", numbered("a", 50)), write("two.jsonl", numbered("b", 30)) + ":5"]
    prompts = loaded(names, validation=4)
    held = {"sorting": 4, "one.jsonl": 4, "two.jsonl": 3}  # 3: a tenth of 30
    assert Counter(p.curve for p in prompts.validation) == held
    assert Counter(row.source for row in prompts.train.rows) == {0: 8_000, 1: 46, 2: 27} and prompts.weights == (
        1.0,
        1.0,
        5.0,
    )
    alone = loaded("two.jsonl", validation=4)  # held out is the same without the other sources
    assert {p.text for p in alone.validation} == {p.text for p in prompts.validation if p.source == 2}


def test_a_source_of_weight_0_is_validated_as_a_whole_on_its_own_curve_and_never_trained_on():
    names = [write("one.jsonl", numbered("a", 50)), write("aime.jsonl", numbered("b", 7)) + ":0"]
    prompts = loaded(names, validation=6)
    assert Counter(p.curve for p in prompts.validation) == {"math": 5, "aime.jsonl": 6}  # at most --eval-prompts
    assert [p.source for p in prompts.train] == [0] * 45


def test_a_prompt_in_training_and_validation_of_two_sources_is_refused_with_both_places():
    pair = [write("one.jsonl", numbered("a", 20)), "two.jsonl"]
    held = loaded("one.jsonl").validation[0]
    write("two.jsonl", [{"prompt": held.text, "answer": "1"}, *numbered("b", 9)])  # of ten rows the third is held out
    for names in (pair, pair[::-1]):
        refuses(f"two.jsonl:1: .*no validation prompt.* {held.where} is one", loaded, names)
