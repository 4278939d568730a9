"""Claims about plumbing/sources.py: sources and their weights, rows and columns, files, folders, the hub."""

import doctest
import gzip
import json
import random
import string
import sys
from collections import Counter
from pathlib import Path

import pytest
from test_data import CHARACTERS, TEMPLATE, character_tokenizer, indices, tokenizer  # noqa: F401

import data
from plumbing import sources
from verify import programs


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def load(tmp_path, tokenizer):
    """(rows of a.jsonl, what follows its name on the command line) -> data.Data."""

    def loaded(rows, more="", *, tokenizer=tokenizer, budget=99, **settings):
        return sources.load(write(tmp_path / "a.jsonl", rows) + more, tokenizer, budget=budget, **settings)

    return loaded


def answers(loaded):
    """{text: answer} of all prompts."""
    return {prompt.text: prompt.answer for prompt in loaded.train + loaded.validation}


def test_docstring_examples_run():
    assert doctest.testmod(sources).failed == 0 < doctest.testmod(sources).attempted


# --- The embedded tasks ---


@pytest.mark.parametrize("task", data.EMBEDDED)
def test_embedded_tasks_are_tokenised_as_they_are_and_the_same_in_every_run(task, tokenizer):
    loaded = sources.load(task, tokenizer, budget=64, validation=100)
    assert (len(loaded.train), len(loaded.validation), loaded.too_long) == (data.EMBEDDED_PROMPTS[task], 100, 0)
    for part in (loaded.train, loaded.validation):
        assert indices(part) == list(range(len(part)))
    for prompt in loaded.validation:
        assert prompt.ids == tuple(3 + CHARACTERS.index(character) for character in prompt.text)
        assert (prompt.task, prompt.curve, prompt.source) == (task, task, 0)
    assert not {p.text for p in loaded.train} & {p.text for p in loaded.validation}
    random.seed(5)  # the interpreter's own random state plays no part
    assert sources.load([f"{task}:2"], tokenizer, budget=64, validation=100) == loaded._replace(weights=(2.0,))


# --- JSON Lines ---


def test_jsonl_keeps_prompts_answers_and_tasks(load):
    rows = [{"prompt": f"what is {n}?", "answer": n} for n in range(20)]
    rows += [{"prompt": "1+1=", "answer": " 2 ", "task": "arithmetic", "source": "ignored"}]
    loaded = load(rows, validation=3)
    found = {p.text: (p.answer, p.task) for p in loaded.train + loaded.validation}
    assert found == {f"what is {n}?": (str(n), "math") for n in range(20)} | {"1+1=": ("2", "arithmetic")}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "a", "answer": 1', "many lines"),
        ('[{"prompt": "a", "answer": 1}]', "a list"),
        ("prompt,answer", "expected one JSON object"),
        ('{"question": "a", "answer": 1}', "'question'"),
        ('{"prompt": "a"}', "--answer-column NAME"),
        ('{"prompt": "", "answer": 1}', "it is empty"),
        ('{"prompt": 7, "answer": 1}', "prompt '7'"),
        ('{"prompt": [], "answer": 1}', "prompt '\\[\\]'"),
        ('{"prompt": [{"role": "user"}], "answer": 1}', "'role': 'user'"),
        ('{"prompt": [{"role": "assistant", "content": "1"}], "answer": 1}', "end with the answer"),
        ('{"prompt": "a", "answer": null}', "unlabelled"),
        ('{"prompt": "a", "answer": true}', "answer 'True'"),
        ('{"prompt": "a", "answer": 0.5}', "must be text"),
        ('{"prompt": "a", "answer": " "}', "unlabelled"),
        ('{"prompt": "a", "answer": 1, "task": "maths"}', "expected a task of \\['arithmetic', "),
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
    line = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(b'{"prompt": "fine", "answer": 1}\n\n' + line + b"\n")
    with pytest.raises(ValueError, match=words) as error:
        sources.load(str(path), tokenizer, budget=99)
    message = str(error.value)
    assert message.startswith(f"{path}:3: expected ") and "got" in message and "likely cause" in message


def test_an_empty_file_is_refused(load):
    with pytest.raises(ValueError, match="a.jsonl: expected a prompt of <= 99 tokens, got 0 .* an empty file"):
        load([])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("aritmetic", "did you mean arithmetic?"),
        ("mth.jsonl", "{here} holds math.jsonl, notes.txt; did you mean math.jsonl?"),
        ("./mth.jsonl", "did you mean math.jsonl?"),
        ("/no/folder", "there is no such file or folder; / holds"),
        ("no/folder/file.parquet", "{here} holds math.jsonl, notes.txt"),
        ("math.jsonl:maths", "maths is no weight and no task (arithmetic, "),
        ("notes.txt", "got a file ending in .txt; likely cause: lines of text, which have no answers"),
        ("math", "did you mean math.jsonl?"),
    ],
)
def test_what_is_not_there_is_refused_at_once_with_what_is(source, words, tmp_path, tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "read_dataset", lambda *_, **place: pytest.fail(f"asked the hub: {place}"))
    for name in ("math.jsonl", "notes.txt"):
        Path(name).touch()
    with pytest.raises(ValueError) as error:
        sources.load(source, tokenizer, budget=99)
    assert str(error.value).startswith(f"--data {source}: expected ")
    assert words.format(here=tmp_path) in str(error.value)


@pytest.mark.parametrize("source", ["", " ", ":2", ":math"])
def test_an_empty_name_as_of_an_unset_variable_is_refused_and_is_not_the_working_folder(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(ValueError, match=f"expected NAME.*, got '{source}'; likely cause: a shell variable"):
        sources.anchored(source)


@pytest.mark.parametrize("source", ["arithmetic:0", "a.jsonl:0.0", "sorting:math", "sorting:2:arithmetic"])
def test_a_weight_of_nothing_and_a_task_for_an_embedded_source_are_refused(source, tokenizer):
    with pytest.raises(ValueError, match=f"--data: expected NAME.* got '{source}'"):
        sources.load(source, tokenizer, budget=99)


def test_a_source_says_its_weight_and_its_task_in_either_form():
    for text, parts in {
        "a.jsonl": ("a.jsonl", 1.0, None),
        "a.jsonl:0.5": ("a.jsonl", 0.5, None),
        "a:b.jsonl:3": ("a:b.jsonl", 3.0, None),
        "a.jsonl:code": ("a.jsonl", 1.0, "code"),
        "x/y/z:10:math": ("x/y/z", 10.0, "math"),
    }.items():
        assert sources.parse_source(text) == parts


def test_a_source_given_twice_is_refused(tokenizer):
    with pytest.raises(ValueError, match="expected different sources, got .*add up its weights"):
        sources.load(["arithmetic:1", "sorting", "arithmetic:2"], tokenizer, budget=99)


def test_of_repeated_prompts_the_first_row_counts_and_the_others_are_counted(load):
    loaded = load([{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}, {"prompt": "a", "answer": 3}])
    assert answers(loaded) == {"a": "1", "b": "2"} and len(loaded.train + loaded.validation) == 2
    chat = [{"role": "user", "content": "a"}]
    same = load(
        [{"prompt": "a", "answer": 1}, {"prompt": chat, "answer": 1}], tokenizer=character_tokenizer(template=TEMPLATE)
    )
    assert loaded.duplicates == same.duplicates == 1  # the model reads both as "user:a|assistant:"


def test_the_task_of_a_source_wins_over_its_rows_and_the_columns_over_the_defaults(load):
    rows = [{"problem": f"{n}+1=", "x": {"y": n + 1}, "task": "of other meaning", "answer": "no"} for n in range(9)]
    columns = (("question", "problem"), ("reward_model.ground_truth", "x.y", "answer"))
    loaded = load(rows, ":arithmetic", columns=columns)
    assert answers(loaded) == {f"{n}+1=": str(n + 1) for n in range(9)}
    assert {p.task for p in loaded.train} == {"arithmetic"}
    expected = r"a.jsonl:1: .* got the fields \['answer', 'problem', 'task', 'x.y'\].*: --prompt-column problem"
    with pytest.raises(ValueError, match=expected):
        load(rows)


def test_tests_of_code_may_be_text_or_an_object_and_too_many_are_dropped(load, monkeypatch):
    tests = {"inputs": ["1\n", "2\n"], "outputs": ["2\n", "4\n"]}
    greek = json.dumps(tests).replace("4", "\u03b4")  # as many characters, but one byte more
    longer = tests | {"outputs": ["2\n", "4" * 99]}
    rows = [{"prompt": f"{n}", "answer": answer} for n, answer in enumerate([tests, json.dumps(tests), longer, greek])]
    monkeypatch.setattr(data, "MAX_ANSWER", len(json.dumps(tests)))
    loaded = load(rows, ":code")
    assert [json.loads(answer) for answer in answers(loaded).values()] == [tests, tests] and loaded.too_long == 2


def call(n, **more):
    return {"input": f"{n}\n[1]", "output": f"{n + 1}", **more}


FUNCTION_CALL = {"language": "python", "test_cases": [call(1, type="function_call", fn_name="f")]}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (
            {"tests": json.dumps([call(1, testtype="functional")]), "metadata": '{"func_name": "f"}'},
            "f",
        ),  # LiveCodeBench
        ({"tests": [call(1, testtype="functional")], "metadata": {"func_name": "f"}}, "f"),  # DeepCoder's lcbv5
        ({"tests": [call(1, testtype="stdin")], "metadata": "{}"}, None),
        ({"tests": json.dumps(FUNCTION_CALL)}, "f"),
        ({"tests": str({"test_cases": [call(1, type="stdin_stdout", fn_name=None)]})}, None),  # SYNTHETIC-1
        ({"tests": {"test_cases": '{"inputs": ["1\\n[1]"], "outputs": ["2"]}', "fn_name": "f"}}, "f"),
    ],
)
def test_the_name_of_a_function_is_read_wherever_data_sets_have_it(row, name, load):
    (prompt,) = load([{"prompt": "a"} | row], ":code", columns=(["prompt"], ["tests"])).validation
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
def test_other_forms_of_tests_are_refused_by_their_name(tests, words, load):
    with pytest.raises(ValueError, match=f"a.jsonl:1: expected an answer for `code`.*({words}).*--skip-unusable"):
        load([{"prompt": "a", "answer": tests}], ":code")


def test_unusable_rows_end_the_run_or_are_left_out_and_named(load):
    good = {"inputs": ["1"], "outputs": ["1"]}
    given = {"a": good, "b": "", "c": good, "": good, "d": {"inputs": [], "outputs": []}}
    rows = [{"prompt": prompt, "answer": answer} for prompt, answer in given.items()]
    with pytest.raises(ValueError, match="a.jsonl:2: .*; --skip-unusable leaves such rows out"):
        load(rows, ":code")
    loaded = load(rows, ":code", skip_unusable=True)
    assert answers(loaded).keys() == {"a", "c"} and (loaded.too_long, loaded.duplicates) == (0, 0)
    assert [message.partition(": ")[0][-1] for message in loaded.unusable] == ["2", "4", "5"]  # lines
    with pytest.raises(ValueError, match="0 longer ones and 1 unusable rows .*no tests"):
        load(rows[1:2], ":code", skip_unusable=True)


def test_prompts_over_the_budget_are_dropped_and_counted(load):
    rows = [{"prompt": "a" * n, "answer": n} for n in range(1, 11)]
    loaded = load(rows, budget=7)
    assert loaded.too_long == 3  # of 8, 9 and 10 characters
    assert sorted(len(p.ids) for p in loaded.train + loaded.validation) == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(ValueError, match="<= 0 tokens, got 10 longer"):
        load(rows, budget=0)


def test_characters_unknown_to_the_tokenizer_are_refused(load):
    with pytest.raises(ValueError, match="a.jsonl:2: .*the tokenizer can spell"):
        load([{"prompt": "fine", "answer": 1}, {"prompt": "\\frac", "answer": 1}])


def test_a_token_for_unknown_characters_that_is_also_the_first_token_is_no_unknown_character(load):
    tokenizer = character_tokenizer(template="<unk>" + TEMPLATE)  # OLMo 2: bos = eos = unk, and its template writes it
    tokenizer.bos_token = tokenizer.eos_token = "<unk>"
    (prompt,) = load([{"prompt": "a", "answer": 1}], tokenizer=tokenizer).validation
    assert prompt.ids[0] == tokenizer.unk_token_id == 0 and prompt.text == "<unk>user:a|assistant:"


def test_the_chat_template_writes_the_prompt_once_and_all_its_special_tokens(load):
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is 1?"}]
    rows = [{"prompt": "what is 2?", "answer": 2}, {"prompt": chat, "answer": 1}]
    loaded = load(rows, tokenizer=character_tokenizer(template=TEMPLATE, wrap=True))
    assert answers(loaded) == {"user:what is 2?|assistant:": "2", "system:be brief|user:what is 1?|assistant:": "1"}
    assert all(len(p.ids) == len(p.text) for p in loaded.train + loaded.validation)  # no <bos>, no <eos> on top


def test_without_a_template_the_tokenizer_adds_its_first_token_but_no_end(load):
    (prompt,) = load([{"prompt": "ab", "answer": 1}], tokenizer=character_tokenizer(wrap=True)).validation
    assert prompt.ids == (1, 3 + CHARACTERS.index("a"), 3 + CHARACTERS.index("b"))  # 1 = <bos>; 2 = <eos> would end it
    with pytest.raises(ValueError, match="a.jsonl:1: .*no chat template"):
        load([{"prompt": [{"role": "user", "content": "a"}], "answer": 1}])


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
    loaded = sources.load(f"{tmp_path}/folder:2:{task}", tokenizer, budget=99, validation=1, columns=columns)
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
        loaded = sources.load(str(tmp_path / name), tokenizer, budget=9)
        assert len(loaded.train) + len(loaded.validation) == count
    save(tmp_path / "f" / "a3.parquet", [{"prompt": "a", "answer": None}])
    with pytest.raises(ValueError, match="a3.parquet, row 1: expected .* an unlabelled row"):
        sources.load(str(tmp_path / "f" / "a3.parquet"), tokenizer, budget=9)


ROWS = [{"prompt": f"{n}+0=", "answer": f"0{n}"} for n in range(10)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
CUT = gzip.compress(LINES.encode(), mtime=0)[:-20]


def table(separator):
    return "".join(separator.join(row) + "\n" for row in (("prompt", "answer"), *(row.values() for row in ROWS)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", "\ufeff" + LINES),  # as Windows' editor writes it
        ("A.JSONL", LINES),
        ("a.ndjson", LINES),
        ("a.jsonl.gz", LINES),
        ("a.csv", table(",")),
        ("a.CSV", "\ufeff" + table(";")),
        ("a.tsv", table("\t")),
        ("a.csv.gz", table(",")),
        ("a.json", json.dumps(ROWS)),
        ("a.json.gz", json.dumps(ROWS)),
    ],
)
def test_files_of_every_kind_in_use_are_read_with_answers_letter_by_letter(name, text, tmp_path, tokenizer, request):
    if ".json" in name and "jsonl" not in name:
        request.getfixturevalue("datasets")
    raw = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    loaded = sources.load(str(tmp_path / name), tokenizer, budget=9)
    assert sorted((p.text, p.answer) for p in loaded.train + loaded.validation) == [(*row.values(),) for row in ROWS]


def read_csv(tmp_path, text):
    """[(line, prompt, answer)] of the rows of a table with this text."""
    (tmp_path / "a.csv").write_text(text)
    found = sources.read(str(tmp_path / "a.csv"))
    return [(int(place.rpartition(":")[2]), row["prompt"], row["answer"]) for place, row in found]


def test_a_table_may_begin_with_empty_lines_be_parted_by_bars_and_have_texts_over_several_lines(tmp_path):
    text = '\n\nprompt|answer\n"1+1=|"|2\n"two\nlines, ""so"""|3\n\n4" or 5"|4\nshort\n'
    assert read_csv(tmp_path, text) == [
        (4, "1+1=|", "2"),
        (5, 'two\nlines, "so"', "3"),
        (8, '4" or 5"', "4"),
        (9, "short", None),
    ]


def test_a_table_with_two_columns_of_one_name_is_refused_unless_the_name_is_empty(tmp_path):
    with pytest.raises(ValueError, match="a.csv:1: expected a name for each column, got answer more than once"):
        read_csv(tmp_path, "prompt,answer,answer\n1+1=,2,model said 7\n")
    assert read_csv(tmp_path, "prompt,answer,,\n1+1=,2,,\n") == [(2, "1+1=", "2")]  # as spreadsheets end lines


@pytest.mark.parametrize(
    ("line", "last"),
    [
        ('"1+1=,2', 6),  # never closed: its text would be the rest of the file
        ('"one" and 1=,2', 3),  # would lose its quotes
        ('"1+1=,2\n2+2=,4\nis 5" or 6" more?,6', 5),  # closed by a quote two rows on: one row of three
    ],
)
def test_a_quote_that_would_swallow_rows_is_refused_with_the_line_where_it_opens(line, last, tmp_path):
    with pytest.raises(ValueError, match=f"a.csv:3: expected a table, got a row that runs to line {last} .* a quote"):
        read_csv(tmp_path, f"prompt,answer\n0+1=,1\n{line}\n" + "3+3=,6\n" * 3)


def test_files_of_two_kinds_in_a_folder_or_pattern_are_refused_by_name_and_descriptions_are_no_data(
    tmp_path, monkeypatch
):
    read = []
    monkeypatch.setattr(sources, "read_dataset", lambda name, **place: read.append(place))
    write(tmp_path / "a.jsonl", ROWS)
    for name in ("README.md", "dataset_info.json", ".hidden.csv"):
        (tmp_path / name).touch()
    sources.read(str(tmp_path))
    assert read == [{"path": str(tmp_path)}]
    with pytest.raises(ValueError, match="expected files of one kind, got 3 kinds: README.md, a.jsonl, dataset_info"):
        sources.read(f"{tmp_path}/*")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.csv.gz").touch()
    with pytest.raises(ValueError, match="expected files of one kind, got 2 kinds: a.jsonl, b.csv.gz"):
        sources.read(str(tmp_path))


def test_what_save_to_disk_wrote_is_refused_with_the_name_under_which_it_is_read(tmp_path, datasets, tokenizer):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match="got what save_to_disk wrote; .*/saved/data-\\*.arrow'"):
        sources.load(f"{tmp_path}/saved", tokenizer, budget=9)
    loaded = sources.load(f"{tmp_path}/saved/data-*.arrow", tokenizer, budget=9)
    assert len(loaded.train + loaded.validation) == 10


def test_more_than_five_files_of_a_folder_as_sources_are_warned_of_once_per_run(
    tmp_path, tokenizer, monkeypatch, capsys
):
    names = [
        write(tmp_path / f"{n}.jsonl", [{"prompt": f"{n}+{m}=", "answer": n + m} for m in (0, 1)]) for n in range(6)
    ]
    sources.load(names[:5], tokenizer, budget=9)
    monkeypatch.setenv("RANK", "1")
    sources.load(names, tokenizer, budget=9)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "0")
    sources.load(names, tokenizer, budget=9)
    assert f"WARNING: 6 files of {tmp_path} are as many sources" in capsys.readouterr().err


def test_a_pattern_reads_all_its_files_also_without_an_ending(tmp_path, tokenizer):
    for name, rows in (("a1.jsonl", ROWS[:4]), ("a2.jsonl", ROWS[4:]), ("b.jsonl", [{"prompt": "no"}])):
        write(tmp_path / name, rows)
    for pattern in ("a*.jsonl", "a*"):
        assert len(answers(sources.load(f"{tmp_path}/{pattern}", tokenizer, budget=9))) == 10


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"1+1=", "a file ending in .txt; likely cause: lines of text, which have no answers"),
        ("a.xlsx", b"PK", "a file ending in .xlsx; likely cause: a file of another kind"),
        ("a", b"{}", "a file ending in nothing"),
        ("a.csv", b"prompt,answer\n1,5+1=,6\n", "a.csv:2: .* got 3 cells under 2 names .prompt, answer.; .* in quotes"),
        ("a.csv", b"# mine\nprompt,answer\n", "a.csv:2: .* 1 names .# mine.; .* a first line that does not name"),
        ("a.csv", b"prompt,answer\n\xff\xfe,1\n", "a.csv:[0-9]: .* a file of another kind"),
        ("a.jsonl.gz", CUT, "expected a whole .gz file.* an interrupted download"),
    ],
)
def test_files_of_other_kinds_and_broken_ones_are_refused_by_their_kind(name, content, words, tmp_path, tokenizer):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        sources.load(str(tmp_path / name), tokenizer, budget=9)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"qestion": "a", "answer": 1}, "got the fields .'answer', 'qestion'., none of which is question.*n qestion"),
        ({"problem": "a", "answer": 1}, "--prompt-column problem"),
        ({"question": "a", "solution": "1"}, "--answer-column solution"),
        ({"question": "a", "answer": None}, "got answer without a value; likely cause: an unlabelled row"),
        ({"question": "a", "meta": {"gold": 1}}, "'meta.gold'"),
    ],
)
def test_a_missing_column_is_named_with_those_there_are_and_a_null_is_not_called_one(row, words, load):
    with pytest.raises(ValueError, match=words):
        load([row], columns=(["question"], ["answer"]))


def test_a_name_with_a_dot_is_a_column_of_that_name_before_a_field_in_a_field():
    row = {"x.y": 1, "x": {"y": 2, "z": 3}}
    assert [sources.field(row, [name]) for name in ("x.y", "x.z", "y", "x.y.z")] == [1, 3, None, None]
    error = sources.missing({"x.y": None}, "f:1", ["x.y"], "--answer-column")
    assert "x.y without a value" in str(error)


def test_content_in_parts_is_joined_and_parts_that_are_no_text_and_other_chats_are_named(load):
    def chat(message):
        return load([{"prompt": [message], "answer": 1}], tokenizer=character_tokenizer(template=TEMPLATE))

    parts = [{"type": "text", "text": "what is "}, {"type": "text", "text": "1?"}]
    assert answers(chat({"role": "user", "content": parts})) == {"user:what is 1?|assistant:": "1"}
    with pytest.raises(ValueError, match="got content of image, text; likely cause: an image or sound"):
        chat({"role": "user", "content": [*parts, {"type": "image", "image": "cat.png"}]})
    with pytest.raises(ValueError, match="'from': 'human'.* another form of chat"):
        chat({"from": "human", "value": "what is 1?"})


def test_a_file_is_the_same_source_however_its_path_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "chat.jsonl", ROWS)
    whole = f"{tmp_path}/chat.jsonl"
    assert {sources.anchored(name) for name in ("chat.jsonl", "./chat.jsonl", "~/chat.jsonl", whole)} == {whole}
    assert sources.anchored("./chat*.jsonl:2:math") == f"{tmp_path}/chat*.jsonl:2:math"
    for name in ("sorting:2", "openai/gsm8k/main", "none.jsonl"):
        assert sources.anchored(name) == name
    assert sources.labels([whole, "sorting"]) == ["chat.jsonl", "sorting"]
    assert sources.labels(["/a/x.jsonl", "/b/x.jsonl"]) == ["/a/x.jsonl", "/b/x.jsonl"]


def test_files_that_datasets_cannot_read_are_refused_with_its_reason(tmp_path, datasets, tokenizer):
    (tmp_path / "broken.json").write_text('{"prompt": "a"\n{"x')
    with pytest.raises(ValueError, match=r"broken.json: expected .* got Dataset\w*Error: .*; likely cause"):
        sources.load(str(tmp_path / "broken.json"), tokenizer, budget=9)


def test_names_on_the_hub_may_carry_a_configuration(datasets, tokenizer, monkeypatch):
    asked = []

    def load_dataset(path, name, split):
        asked.append((path, name, split))
        return [gsm8k(n) for n in range(10)]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for name in ("openai/gsm8k/main", "POLARIS-Project/Polaris-Dataset-53K:4"):
        sources.load(name, tokenizer, budget=99, columns=(["question"], ["answer"]))
    assert asked == [("openai/gsm8k", "main", "train"), ("POLARIS-Project/Polaris-Dataset-53K", None, "train")]

    def unreachable(path, name, split):
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ValueError, match="--data a/b: .* got ConnectionError: Couldn't reach it; .* no network"):
        sources.load("a/b", tokenizer, budget=99)


def test_without_the_package_datasets_the_error_says_what_to_install(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # makes `import datasets` fail as if it were not installed
    with pytest.raises(ValueError, match="--data .*: expected .* got ModuleNotFoundError: .* pip install datasets"):
        sources.load(str(tmp_path), tokenizer, budget=99)


def test_the_samples_in_tests_data_are_read_as_two_tasks():
    folder = Path(__file__).parent / "data"
    names = [str(folder / name) for name in ("math_sample.jsonl", "code_sample.jsonl")]
    tokenizer = character_tokenizer(characters=string.printable)
    loaded = sources.load([f"{names[0]}:3", names[1]], tokenizer, budget=500, validation=2)
    assert loaded.weights == (3.0, 1.0) and (loaded.too_long, loaded.duplicates) == (0, 0)
    for source, task in enumerate(("math", "code")):
        part = [p for p in loaded.train + loaded.validation if p.source == source]
        assert len(part) >= 20 and {(p.task, p.curve) for p in part} == {(task, task)}
    named = ["fn_name" in json.loads(p.answer) for p in loaded.train if p.task == "code"]
    assert 5 < sum(named) < len(named) - 5  # both kinds of tests


# --- Several sources ---


def test_every_source_has_its_own_validation_prompts_and_its_own_curve(tmp_path, tokenizer):
    one = write(tmp_path / "one.jsonl", [{"prompt": f"a{n}", "answer": n} for n in range(50)])
    two = write(tmp_path / "two.jsonl", [{"prompt": f"b{n}", "answer": n} for n in range(30)])
    loaded = sources.load(["sorting", one, f"{two}:5"], tokenizer, budget=30, validation=4)
    held = {"sorting": 4, "one.jsonl": 4, "two.jsonl": 3}  # 3: a tenth of 30
    assert Counter(p.curve for p in loaded.validation) == held
    assert Counter(p.source for p in loaded.train) == {0: 8_000, 1: 46, 2: 27} and loaded.weights == (1.0, 1.0, 5.0)
    for part in (loaded.train, loaded.validation):
        assert indices(part) == list(range(len(part)))
    alone = sources.load(two, tokenizer, budget=30, validation=4)  # held out is the same without the other sources
    assert {p.text for p in alone.validation} == {p.text for p in loaded.validation if p.source == 2}
    assert {p.curve for p in alone.train} == {"math"}


def file_with(row, tmp_path, tokenizer, budget=9):
    """Path of a file of ten rows in which this row is at a place that puts it into the training set."""
    others = [{"prompt": f"b{n}", "answer": n} for n in range(9)]
    for place in range(10):
        path = write(tmp_path / f"{row['prompt']}.jsonl", [*others[:place], row, *others[place:]])
        if row["prompt"] in {p.text for p in sources.load(path, tokenizer, budget=budget).train}:
            return path


def test_a_prompt_in_training_and_validation_of_two_sources_is_refused_with_both_places(tmp_path, tokenizer):
    rows = [{"prompt": f"a{n}", "answer": n} for n in range(20)]
    one = write(tmp_path / "one.jsonl", rows)
    loaded = sources.load(one, tokenizer, budget=9)
    held, trained = loaded.validation[0], loaded.train[0]
    two = file_with(rows[int(held.answer)], tmp_path, tokenizer)
    for pair in ([one, two], [two, one]):
        with pytest.raises(ValueError, match=f"{two}:[0-9]+: expected no validation prompt.* {held.where} is one"):
            sources.load(pair, tokenizer, budget=9)
    two = file_with(rows[int(trained.answer)], tmp_path, tokenizer)
    both = sources.load([one, two], tokenizer, budget=9).train  # that both sources train on a prompt is no leak
    assert [p.source for p in both if p.text == trained.text] == [0, 1]


def test_an_embedded_validation_text_in_a_file_is_refused(tmp_path, tokenizer):
    (text, answer), *_ = data.examples("arithmetic", 5, seed=0, held_out=True)
    path = file_with({"prompt": text, "answer": answer}, tmp_path, tokenizer, budget=30)
    with pytest.raises(ValueError, match="jsonl:[0-9]+: .* and arithmetic is one"):
        sources.load(["arithmetic", path], tokenizer, budget=30, validation=5)
