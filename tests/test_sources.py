"""Claims about plumbing/prompts/sources.py: sources and their weights, rows and columns, files, folders, the hub."""

import base64
import gzip
import json
import pickle
import string
import sys
import zlib
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
from conftest import jsonl, refuses
from conftest import rows as data_rows
from test_data import CHARACTERS, TEMPLATE, character_tokenizer, indices, tokenizer  # noqa: F401

import data
from plumbing.prompts import sources
from verify import programs

CHAT = character_tokenizer(template=TEMPLATE, characters=string.printable + "′€")


def every(loaded):
    """All prompts, those for training first."""
    return [*filter(None, loaded.train), *loaded.validation]


def answers(loaded):
    """{text: answer} of all prompts."""
    return {prompt.text: prompt.answer for prompt in every(loaded)}


def rows_of(**answers):
    return [{"prompt": prompt, "answer": answer} for prompt, answer in answers.items()]


def numbered(letter, count):
    return [{"prompt": f"{letter}{n}", "answer": n} for n in range(count)]


def write(path, rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def load(tmp_path, tokenizer):
    """(rows of a.jsonl, what follows its name on the command line) -> data.Data."""

    def loaded(rows, more="", *, tokenizer=tokenizer, budget=99, **settings):
        return sources.load(write(tmp_path / "a.jsonl", rows) + more, tokenizer, budget=budget, **settings)

    return loaded


@pytest.mark.parametrize("task", data.EMBEDDED)
def test_embedded_tasks_are_tokenised_as_they_are_whatever_their_weight(task, tokenizer):
    loaded = sources.load([f"{task}:2"], tokenizer, budget=64, validation=100)
    assert (len(loaded.train), len(loaded.validation), loaded.too_long) == (data.EMBEDDED[task].prompts, 100, 0)
    for prompt in loaded.validation:
        assert prompt.ids == tuple(3 + CHARACTERS.index(character) for character in prompt.text)
        assert (prompt.task, prompt.curve) == (task, task)


# --- Rows ---


MALFORMED = [(row["line"].encode(), row["said"]) for row in data_rows("malformed")]
MALFORMED += [(b'{"prompt": "a", "answer": "\xff"}', "UTF-8"), ('{"prompt": "a"}'.encode("utf-16"), "UTF-8.* UTF-16")]


@pytest.mark.parametrize(("line", "words"), MALFORMED, ids=count())
def test_a_malformed_line_stops_with_file_line_expected_got_and_cause(line, words, tmp_path, tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"prompt": "fine", "answer": 1}\n\n' + line + b"\n")
    with pytest.raises(ValueError, match=f"^{path}:3: expected .*{words}") as error:
        sources.load(str(path), tokenizer, budget=99)
    assert "got" in str(error.value) and "likely cause" in str(error.value)
    assert not Path("ran").exists()  # what one of the lines would make if it were unpickled


LATEX = r"\frac{1}{2} \boxed{1} \right) \neq{}1 h\nu x\ne1 2\to{3} (\tan $\forall{x}$"


@pytest.mark.parametrize("text", LATEX.split())
@pytest.mark.parametrize("row", ['{"prompt": "1?", "answer": "X"}', '{"prompt": [{"role": "user", "content": "X"}]}'])
def test_latex_that_json_has_eaten_is_refused_in_prompts_and_answers_with_its_line(text, row, load):
    rows = ['{"prompt": "0?", "answer": "0"}\n', row.replace("]}", '], "answer": 1}') + "\n"]
    refuses(r"a.jsonl:2: .* double the backslash", load, [line.replace("X", text) for line in rows], tokenizer=CHAT)
    assert len(every(load([line.replace("X", text.replace("\\", "\\\\")) for line in rows], tokenizer=CHAT))) == 2


def test_tabs_and_lines_of_prose_tables_and_programs_are_no_latex(load):
    prose = "one\ntwo|a\tb\n1\t2|Find\nthe rest of\nnumbers|so x = 1.\nu = 2|d) 1\ne) 2|the\nu-shaped|\r\n1".split("|")
    assert len(every(load([{"prompt": text, "answer": 1} for text in prose], tokenizer=CHAT))) == len(prose)
    row = {"prompt": "\tan\n\nu\x0c", "answer": json.dumps({"inputs": ["\x0c\ne"], "outputs": ["\tan"]})}
    assert len(every(load([row], ":code", tokenizer=CHAT))) == 1


def test_the_task_of_a_source_wins_over_its_rows_and_the_first_column_that_a_row_has_counts(load):
    rows = [{"problem": f"{n}+1=", "x": {"y": n + 1}, "task": "of other meaning", "answer": "no"} for n in range(9)]
    columns = (("question", "problem"), ("reward_model.ground_truth", "x.y", "answer"))
    loaded = load(rows, ":arithmetic", columns=columns)
    assert answers(loaded) == {f"{n}+1=": str(n + 1) for n in range(9)} and loaded.tasks == {"arithmetic"}
    row = {"x.y": 1, "x": {"y": 2, "z": 3}}  # a name with a dot is a column of that name first
    assert [sources.field(row, [name]) for name in ("x.y", "x.z", "y", "x.y.z")] == [1, 3, None, None]


def test_columns_of_which_a_prompt_may_need_something_are_named(load):
    rows = [{"id": n, "question": f"{n}?", "choices": {"text": ["a"]}, "x": {"y": n}, "task": "math"} for n in range(3)]
    assert load(rows, columns=(["prompt", "question"], ["answer", "x.y"])).unread == {0: ["id", "choices"]}


@pytest.mark.parametrize("case", data_rows("code_rows"), ids=lambda case: case["of"])
def test_tests_and_the_name_of_a_function_are_read_in_the_forms_of_public_data_sets(case, load):
    (prompt,) = load([case["row"]], ":code", columns=(["prompt"], ["tests"])).validation
    # Arguments are JSON, a line each: 1 and [1]. Without a name they are standard input.
    name, given = case["function"], ([1, [1]], 2) if case["function"] else ("1\n[1]", "2")
    assert programs.read_tests(prompt.answer) == (name, [given])


def test_packed_tests_of_more_bytes_than_are_ever_used_are_left_out_and_counted(load):
    packed = base64.b64encode(zlib.compress(pickle.dumps(" " * (300 << 20)))).decode()
    assert len(packed) < 500_000
    loaded = load(rows_of(a={"inputs": ["1"], "outputs": ["1"]}, b=packed), ":code")
    assert answers(loaded).keys() == {"a"} and loaded.too_long == 1


MESSAGES = [{"role": "user", "content": "1?"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "?"}]}]


@pytest.mark.parametrize("prompt", [MESSAGES, json.dumps(MESSAGES), str(MESSAGES), PARTS, "1?"])
def test_chat_messages_may_be_stored_as_text_or_in_parts(prompt, load):
    rows = [{"prompt": prompt, "answer": 1}]
    (found,) = load(rows, tokenizer=character_tokenizer(template=TEMPLATE, wrap=True)).validation
    assert found.text == "user:1?|assistant:" and len(found.ids) == len(found.text)  # no <bos>, no <eos> on top


# --- What is left out, and what is said of it ---


def test_of_repeated_prompts_the_first_row_counts_and_another_answer_is_reported(load):
    rows = [*rows_of(a=1, b=2), {"prompt": "a ", "answer": 3}]
    rows += [{"prompt": [{"role": "user", "content": "b"}], "answer": 2}]  # the model reads both as the same
    loaded = load(rows, tokenizer=CHAT)
    assert answers(loaded) == {"user:a|assistant:": "1", "user:b|assistant:": "2"} and loaded.duplicates == 2
    assert "a.jsonl:3, repeat a prompt with another answer" in loaded.warnings[0]
    asked = load(rows, tokenizer=CHAT, evaluate=True)  # there each is a question
    assert sorted(p.answer for p in [*every(asked), *asked.others]) == ["1", "2", "2", "3"]


def test_prompts_over_the_budget_are_left_out_when_they_are_drawn(load, monkeypatch):
    rows = [{"prompt": "a" * n, "answer": n} for n in range(1, 11)]
    loaded = load(rows, budget=7)
    assert sorted(len(p.ids) for p in every(loaded)) == [1, 2, 3, 4, 5, 6, 7]
    assert loaded.too_long + sum(prompt is None for prompt in loaded.train) == 3  # of 8, 9 and 10 characters
    refuses("<= 0 tokens, got 10 longer", load, rows, budget=0)
    refuses("a.jsonl: .* got 0 .* an empty file", load, [])
    monkeypatch.setattr(data, "MAX_ANSWER", 2)  # bytes: π has two
    assert answers(load(rows_of(a="12", c="1π"), ":text")) == {"a": "12"}


def test_unusable_rows_end_the_run_or_are_left_out_and_named(load):
    good = {"inputs": ["1"], "outputs": ["1"]}
    rows = [*rows_of(a=good, b="", c=good), {"prompt": "", "answer": good}, *rows_of(d=[])]
    refuses("a.jsonl:2: .*; --skip-unusable leaves such rows out", load, rows, ":code")
    loaded = load(rows, ":code", skip_unusable=True)
    assert answers(loaded).keys() == {"a", "c"} and (loaded.too_long, loaded.duplicates) == (0, 0)
    assert [message.partition(": ")[0][-1] for message in loaded.unusable] == ["2", "4", "5"]  # lines
    refuses("0 longer ones; .*no tests.*only unusable rows", load, rows[1:2], ":code", skip_unusable=True)


STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE


def test_a_chat_that_the_template_refuses_is_named_with_its_row_or_left_out(load):
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1?"}]
    rows = [{"prompt": "0?", "answer": 0}, {"prompt": chat, "answer": 1}, {"prompt": chat, "answer": 2}]
    strict = character_tokenizer(template=STRICT)
    refuses("a.jsonl:2: .* got no system role .*--skip-unusable", load, rows, tokenizer=strict)
    loaded = load(rows, tokenizer=strict, skip_unusable=True)
    assert len(every(loaded)) == 1 and len(loaded.unusable) == 2


def test_a_token_beyond_the_models_vocabulary_is_refused_with_its_row_and_only_if_a_row_has_it(load):
    rows = [{"prompt": "0", "answer": 0}, {"prompt": "a|", "answer": 1}]
    refuses(r"a.jsonl:2: .* got the token '\|' with the id 45; .*another model", load, rows, vocabulary=45)
    assert len(every(load(rows[:1], vocabulary=45))) == 1


RENDERED = [  # prompt, template, whether it has twice what is written around it
    ("user:1?|assistant:", TEMPLATE, True),
    ([{"role": "user", "content": "<bos>1?"}], "<bos>" + TEMPLATE, True),
    ("<bos>1?", None, True),  # the tokenizer adds its own
    ("is it user: or assistant?", TEMPLATE, False),
]


@pytest.mark.parametrize(("prompt", "template", "twice"), RENDERED)
def test_rows_that_are_rendered_already_are_warned_of_once(prompt, template, twice, load):
    tokenizer = character_tokenizer(template=template, wrap=True)
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    rows = [{"prompt": prompt, "answer": 1}, {"prompt": "2?", "answer": 1}, {"prompt": "2?", "answer": 1}]
    warnings = load(rows, tokenizer=tokenizer).warnings
    assert [warning[:8] for warning in warnings] == (["1 rows, "] if twice else [])


def test_a_token_for_unknown_characters_that_is_also_the_first_token_is_no_unknown_character(load):
    tokenizer = character_tokenizer(template="<unk>" + TEMPLATE)  # OLMo 2: bos = eos = unk, and its template writes it
    tokenizer.bos_token = tokenizer.eos_token = "<unk>"
    (prompt,) = load(rows_of(a=1), tokenizer=tokenizer).validation
    assert prompt.ids[0] == tokenizer.unk_token_id == 0 and prompt.text == "<unk>user:a|assistant:"


def test_without_a_template_the_tokenizer_adds_its_first_token_but_no_end(load):
    (prompt,) = load(rows_of(ab=1), tokenizer=character_tokenizer(wrap=True)).validation
    assert prompt.ids == (1, 3 + CHARACTERS.index("a"), 3 + CHARACTERS.index("b"))  # 1 = <bos>; 2 = <eos> would end it


# --- Names, files, folders, the hub ---

MISSING = {
    "mth.jsonl": "{here} holds math.jsonl, notes.txt",
    "no/folder/file.parquet": "{here} holds math.jsonl, notes.txt",
    "notes.txt": "got a file ending in .txt; likely cause: lines of text, which have no answers",
}


@pytest.mark.parametrize(("source", "words"), MISSING.items())
def test_what_is_not_there_is_refused_at_once_with_what_is(source, words, tmp_path, tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "read_dataset", lambda *_, **place: pytest.fail(f"asked the hub: {place}"))
    for name in ("math.jsonl", "notes.txt"):
        Path(name).touch()
    with pytest.raises(ValueError) as error:
        sources.load(source, tokenizer, budget=99)
    assert str(error.value).startswith(f"--data {source}: expected ")
    assert words.format(here=tmp_path) in str(error.value)


WRONG = {
    ":2": "expected NAME.* got ':2'",
    "arithmetic:1 sorting arithmetic:2": "expected different sources, got .*add up its weights",
}


@pytest.mark.parametrize("given", WRONG)
def test_an_empty_name_and_a_source_given_twice_are_refused(given, tokenizer):
    refuses(f"--data: {WRONG[given]}", sources.load, given.split() or [given], tokenizer, budget=99)


def test_a_file_is_the_same_source_however_its_path_is_written(tmp_path, monkeypatch):
    (tmp_path / "x[1]").mkdir()
    monkeypatch.chdir(tmp_path / "x[1]")  # a folder that is a pattern too
    monkeypatch.setenv("HOME", str(tmp_path / "x[1]"))
    whole = write(tmp_path / "x[1]" / "chat.jsonl", ROWS)
    assert {sources.anchored(name) for name in ("chat.jsonl", "./chat.jsonl", "~/chat.jsonl", whole)} == {whole}
    pattern = sources.anchored("./chat*.jsonl:2:math")
    monkeypatch.chdir("/")
    assert len(list(sources.read(sources.parse_source(pattern)[0]))) == 10
    assert sources.anchored("openai/gsm8k/main") == "openai/gsm8k/main"


def test_in_the_log_a_file_has_its_name_without_the_path_if_that_tells_all_apart():
    assert sources.labels(["/a/chat.jsonl", "sorting"]) == ["chat.jsonl", "sorting"]
    assert sources.labels(["/a/x.jsonl", "/b/x.jsonl"]) == ["/a/x.jsonl", "/b/x.jsonl"]


ROWS = [{"prompt": f"{n}+0=", "answer": f"0{n}"} for n in range(10)]
LINES = jsonl(ROWS)
TABLE = "".join(",".join(row) + "\n" for row in (("prompt", "answer"), *(row.values() for row in ROWS)))
FILES = {
    "a.jsonl": "\ufeff" + LINES,  # as Windows' editor writes it
    "a.jsonl.gz": LINES,
    "a.tsv.gz": TABLE.replace(",", "\t"),
    "a.CSV": "\ufeff" + TABLE.replace(",", ";"),
    "a.json": json.dumps(ROWS),
    "a[1].jsonl": LINES,  # which is also a pattern: a1.jsonl
    "a[1].json": json.dumps(ROWS),
}


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    module = pytest.importorskip("datasets", reason="the optional package `datasets` is not installed")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return module


@pytest.mark.parametrize(("name", "text"), FILES.items(), ids=FILES)
def test_files_of_every_kind_in_use_are_read_with_answers_letter_by_letter(name, text, tmp_path, tokenizer, request):
    if sources.ending(name) == ".json":
        request.getfixturevalue("datasets")
    raw = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    for kind in ("jsonl", "json"):
        (tmp_path / f"a1.{kind}").write_text("another file")
    loaded = sources.load(str(tmp_path / name), tokenizer, budget=9)
    assert sorted((p.text, p.answer) for p in every(loaded)) == [(*row.values(),) for row in ROWS]


def read_csv(tmp_path, text):
    """[(line, prompt, answer)] of the rows of a table with this text."""
    (tmp_path / "a.csv").write_bytes(text)
    found = sources.read(str(tmp_path / "a.csv"))
    return [(int(place.rpartition(":")[2]), row["prompt"], row["answer"]) for place, row in found]


def test_a_table_may_be_parted_by_bars_and_have_texts_over_several_lines(tmp_path):
    text = 'prompt|answer||\n"1+1=|"|2\n\n"two\nlines, ""so"""|3\n4" or 5"|4\nshort\n'
    rows = [(2, "1+1=|", "2"), (5, 'two\nlines, "so"', "3"), (6, '4" or 5"', "4"), (7, "short", None)]
    assert read_csv(tmp_path, text.encode()) == rows  # each with the line in which it ends


LOST = {
    b"prompt,answer,answer\n1,2,3": "a.csv:1: expected a name for each column, got .*'answer', 'answer'",
    "prompt,answer\n1,2\n".encode("utf-16"): "a.csv:1: expected text in UTF-8",
    b"# mine\nprompt,answer\n": "a.csv:2: .* more cells than the names .'# mine'.; .* a first line that does not name",
    b'prompt,answer\n0,1\n"1+1=,2\n3,3\n': "a.csv:3: .* a row that runs to line 4 .* a quote",  # never closed
    b'prompt,answer\n0,1\n"one" and 1=,2\n': "a.csv:3: .* a row that runs to line 3 .* a quote",  # would lose it
}


@pytest.mark.parametrize(("text", "words"), LOST.items())
def test_a_table_of_which_a_part_would_be_lost_is_refused_with_its_line(text, words, tmp_path):
    refuses(words, read_csv, tmp_path, text)


BROKEN = {
    "a.xlsx": (b"PK", "a file ending in .xlsx; likely cause: .* another kind of table"),
    "a.jsonl.gz": (gzip.compress(LINES.encode())[:-20], "expected a whole .gz file.* an interrupted download"),
    "a.json": (b'{"prompt": "a"\n{"x', "got ArrowInvalid: JSON parse error.*; likely cause"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_files_of_other_kinds_and_broken_ones_are_refused_by_their_kind(name, tmp_path, tokenizer, request):
    if name == "a.json":
        request.getfixturevalue("datasets")
    content, words = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    refuses(words, sources.load, str(tmp_path / name), tokenizer, budget=9)


def test_a_pattern_reads_all_its_files_and_folders_hold_files_of_one_kind(tmp_path, tokenizer, monkeypatch):
    for name, rows in (("a1.jsonl", ROWS[:4]), ("a2.jsonl", ROWS[4:]), ("b.jsonl", [{"prompt": "no"}])):
        write(tmp_path / name, rows)
    assert len(answers(sources.load(f"{tmp_path}/a*", tokenizer, budget=9))) == 10
    read = []
    monkeypatch.setattr(sources, "read_dataset", lambda name, **place: read.append(place))
    for name in ("README.md", "dataset_info.json", ".hidden.csv"):  # no data
        (tmp_path / name).touch()
    sources.read(str(tmp_path))
    assert read == [{"path": str(tmp_path)}]
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.csv.gz").touch()
    for name, words in {"": "2 kinds: .*jsonl, b.csv.gz", "*": "3 kinds: README.md, b.jsonl"}.items():
        refuses(words, sources.read, f"{tmp_path}/{name}")


DAPO = '{"prompt": [{"content": "problem N", "role": "user"}], "reward_model": {"ground_truth": "N"}}'


def test_a_folder_of_parquet_is_read_in_its_train_split(tmp_path, datasets):
    (tmp_path / "folder").mkdir()
    for name, numbers in (("train", range(20)), ("test", [99])):  # no other split is read
        rows = [json.loads(DAPO.replace("N", f"{n}")) for n in numbers]
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "folder" / f"{name}-0-of-1.parquet")
    columns = (["prompt"], ["reward_model.ground_truth"])
    loaded = sources.load(f"{tmp_path}/folder:2:math", CHAT, budget=99, validation=1, columns=columns)
    assert (len(loaded.train), len(loaded.validation), loaded.weights) == (19, 1, (2.0,))
    for prompt in every(loaded):
        n = prompt.text.removeprefix("user:problem ").removesuffix("|assistant:")
        assert (prompt.where, prompt.answer) == (f"{tmp_path}/folder, row {int(n) + 1}", n)


def test_names_on_the_hub_may_carry_a_configuration_and_its_failures_are_said(datasets, tokenizer, monkeypatch):
    def load_dataset(path, name, split):
        if path == "a/b":
            raise ConnectionError("Couldn't reach it")
        assert (path, name, split) == ("openai/gsm8k", "main", "train")
        return numbered("a", 10)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(every(sources.load("openai/gsm8k/main:4", tokenizer, budget=99))) == 10
    refuses("--data a/b: .* Couldn't reach it; .* no network", sources.load, "a/b", tokenizer, budget=99)
    monkeypatch.setitem(sys.modules, "datasets", None)  # makes `import datasets` fail as if it were not installed
    refuses("--data a/b: .* pip install datasets", sources.load, "a/b", tokenizer, budget=99)


# --- Several sources ---


def test_every_source_has_its_own_validation_prompts_and_its_own_curve(tmp_path, tokenizer):
    one = write(tmp_path / "one.jsonl", numbered("a", 50))
    two = write(tmp_path / "two.jsonl", numbered("b", 30))
    loaded = sources.load(["sorting", one, f"{two}:5"], tokenizer, budget=30, validation=4)
    held = {"sorting": 4, "one.jsonl": 4, "two.jsonl": 3}  # 3: a tenth of 30
    assert Counter(p.curve for p in loaded.validation) == held
    assert loaded.sizes == [8_000, 46, 27] and loaded.weights == (1.0, 1.0, 5.0)
    alone = sources.load(two, tokenizer, budget=30, validation=4)  # held out is the same without the other sources
    assert {p.text for p in alone.validation} == {p.text for p in loaded.validation if p.source == 2}


def test_a_source_of_weight_0_is_validated_as_a_whole_on_its_own_curve_and_never_trained_on(tmp_path, tokenizer):
    one = write(tmp_path / "one.jsonl", numbered("a", 50))
    aime = write(tmp_path / "aime.jsonl", numbered("b", 7))
    loaded = sources.load([one, f"{aime}:0"], tokenizer, budget=30, validation=6)
    assert Counter(p.curve for p in loaded.validation) == {"math": 5, "aime.jsonl": 6}  # at most --eval-prompts
    assert loaded.sizes == [45, 0] and {p.source for p in loaded.train} == {0}
    write(tmp_path / "aime.jsonl", [{"prompt": every(loaded)[0].text, "answer": 1}])
    refuses(
        "one.jsonl:[0-9]+: .*no validation prompt in training, and .*aime",
        sources.load,
        [one, f"{aime}:0"],
        tokenizer,
        budget=30,
    )


def test_a_prompt_in_training_and_validation_of_two_sources_is_refused_with_both_places(tmp_path, tokenizer):
    one = write(tmp_path / "one.jsonl", numbered("a", 20))
    loaded = sources.load(one, tokenizer, budget=9)
    two = tmp_path / "two.jsonl"
    held = loaded.validation[0]
    write(two, [{"prompt": held.text, "answer": "1"}, *numbered("b", 9)])  # of ten rows the third is held out
    for pair in ([one, str(two)], [str(two), one]):
        refuses(f"{two}:1: .*no validation prompt.* {held.where} is one", sources.load, pair, tokenizer, budget=30)
    write(two, [{"prompt": loaded.train[0].text, "answer": 1}, *numbered("b", 9)])
    sources.load([one, str(two)], tokenizer, budget=9)  # that both sources train on a prompt is no leak
