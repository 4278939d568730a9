"""Claims about plumbing/references.py: math references are reduced to their value, or refused with their row."""

import base64
import doctest
import json
import pickle
import random
import zlib

import pytest
from test_data import TEMPLATE, character_tokenizer, tokenizer  # noqa: F401
from test_sources import every

from plumbing import references, sources
from verify import programs

RANDOM = random.Random(28)
NOUNS = "apples dollars hours km square metres liters per minute people m² ft/s children Äpfel 元".split()
WORDS = ["Paris", "Tuesday", "três", "Bücher", "yes"]


def values(count=50):
    number = [RANDOM.randint(2, 9999) for _ in range(count)]
    return [
        [f"{n}", f"-{n}", f"{n}.5", f"${n}$", f"\\frac{{{n}}}{{7}}", f"{n}/11", f"{n}%", f"{n},000"][n % 8]
        for n in number
    ]


def test_examples_in_docstrings_are_true():
    assert doctest.testmod(references).failed == 0 < doctest.testmod(references).attempted


def test_a_unit_in_brackets_is_taken_off():
    for value in values():
        for unit in NOUNS:
            assert references.reduced(f"{value} ({unit})") == value, unit
    assert references.reduced("Tuesday (weekday)") == "Tuesday"
    for kept in ("(2)", "2 (3)", "f (x)", "3(x+1)", "P(A)", "sin (x)", "(1, 2)", "x (1)", "9 (3 apples)"):
        assert references.reduced(kept) == kept


@pytest.mark.parametrize(
    "phrase",
    [
        "The answer is {}",
        "the answer is: {}.",
        "Answer: {}",
        "So the final answer is {}.",
        "Solution: {}",
        "The result is {}",
        "answer = {}",
        "Therefore, the value is {}.",
        "The answer is: the answer is {}",
    ],
)
def test_a_phrase_before_a_value_or_a_word_is_taken_off(phrase):
    for value in values(10) + WORDS + ["x=2", "\\{1, 2\\}", "no solution"]:
        assert references.reduced(phrase.format(value)) == value


def test_lists_of_one_and_objects_are_unpacked():
    for value in values(20) + WORDS:
        for packed in (
            [value],
            json.dumps([value]),
            str([value]),
            {"ground_truth": value},
            json.dumps({"ground_truth": value}),
            str({"answer": value, "style": "rule"}),
            json.dumps({"target": [value]}),
        ):
            assert references.reduced(packed) == value
    assert references.reduced("[72]") == references.reduced([72]) == references.reduced({"value": 72}) == "72"


def test_invisible_characters_and_full_width_digits_are_none_of_a_value_and_joiners_and_raised_digits_are():
    for given, value in {
        "\ufeff8\u200b": "8",
        "１２": "12",
        "（－１．５，２）": "(-1.5,2)",
        "10²": "10²",  # NFKC would make it 102
        "½": "½",
        "（1，2）": "（1，2）",  # its digits are plain: a model may write it so
        "می\u200cشود": "می\u200cشود",
    }.items():
        assert references.reduced(given) == value
    row = {"prompt": "a", "answer": "mice\u200b", "task": "text"}
    assert sources.parse_row(row, "f:1", None, (["prompt"], ["answer"])).answer == "mice"


REFUSED = {
    "proof": "a missing answer",
    "notfound": "a missing answer",
    "Proof.": "a missing answer",
    "The answer is notfound": "a missing answer",
    "He has 3 apples and 4 pears left": "a sentence",
    "The area is 5 and its edge is 3": "a sentence",
    "Because $x$ is even, $x = 2$ is the only one": "a sentence",
    "It converges because the terms fall to zero": "a sentence",
    "['7', '8']": "a list of 2 answers",
    '{"numbers": [1, 2], "target": 3}': "Countdown",
    '{"a": 1, "b": 2}': "the fields .'a', 'b'.",
    '{"answer": 1, "value": 2}': "the fields .'answer', 'value'.",
}


@pytest.mark.parametrize("reference", REFUSED)
def test_what_is_no_value_is_refused_with_its_row_and_cause(reference, tmp_path, tokenizer):
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": f"{n}", "answer": answer}) + "\n" for n, answer in enumerate([1, reference]))
    )
    with pytest.raises(ValueError, match=f"a.jsonl:2: expected an answer for `math`.*{REFUSED[reference]}"):
        sources.load(str(path), tokenizer, budget=9)


def test_other_values_stay_as_they_are():
    kept = [
        "[1, 2]",
        "(3, 4]",
        "\\{1, 2\\}",
        "{1, 2}",
        "x = 2 or x = 3",
        "no solution",
        "There is no solution.",
        "12 square metres",
        "does not exist",
        "\\text{the function is even for all x and odd for none}",
        "236 adult, 342 child",
        "5:30 pm",
        "10和11之间",
        "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}",
        "The whole solution of many words ends in \\boxed{5}",
        "3 \\text{ cm and } 4",
        "\\sin x \\cos y \\tan z",
        "if x > 0 or y < 0",
        "[x, y]",
        "A and C",
        "1,000 miles per hour",
        "3 hours",
        "undefined",
        "none",
        "No",
    ]
    assert [references.reduced(text) for text in kept] == kept


def load(rows, tmp_path, tokens, task="math", **columns):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = sources.load(f"{path}:{task}", tokens, budget=99, **columns)
    return every(data)


def test_rows_of_countdown_are_refused_with_the_cause(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="rows.jsonl:1: .*Countdown game.* --reward"):
        load(
            [{"prompt": "1+2=", "target": 98, "nums": [44, 19, 35]}],
            tmp_path,
            tokenizer,
            columns=(["prompt"], ["target"]),
        )


@pytest.mark.parametrize("spell", [json.dumps, str])
def test_chat_messages_stored_as_text_are_messages(spell, tmp_path):
    messages = [{"role": "user", "content": "what is 1?"}]
    (prompt,) = load([{"prompt": spell(messages), "answer": 1}], tmp_path, character_tokenizer(template=TEMPLATE))
    assert prompt.text == "user:what is 1?|assistant:"


def test_chat_messages_as_text_may_begin_with_another_field_and_other_lists_are_text():
    for text in ('[{"name": "x", "role": "user", "content": "1?"}]', " [ {'content': '1?', 'role': 'user'}]"):
        assert sources.spelt_chat(text)[0]["content"] == "1?"
    for text in ('[{"role": "user"', '[{"x": 1}, 2] is a list', '[{"x": 1}, 2, [3]]', "[1, 2]", "1?"):
        assert sources.spelt_chat(text) == text
    row = {"prompt": '[{"from": "human", "value": "1?"}]', "answer": 1}
    with pytest.raises(ValueError, match="another form of chat"):
        sources.parse_row(row, "f:1", None, (["prompt"], ["answer"]))


def packed(tests):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def test_tests_of_codecontests_and_the_packed_ones_of_livecodebench_are_read(tmp_path, tokenizer):
    contest = {"input": ["1 2\n", "3 4\n"], "output": ["3\n", "7\n"]}
    cases = [
        {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
        {"input": "3 4\n", "output": "7\n", "testtype": "stdin"},
    ]
    expected = (None, [("1 2\n", "3\n"), ("3 4\n", "7\n")])
    for answer in (contest, json.dumps(contest), packed(cases), cases):
        (prompt,) = load([{"prompt": "a", "answer": answer}], tmp_path, tokenizer, "code")
        assert programs.read_tests(prompt.answer) == expected
    functional = packed([{"input": "1\n[1]", "output": "2", "testtype": "functional"}])
    row = {"prompt": "a", "answer": functional, "metadata": '{"func_name": "f"}'}
    assert programs.read_tests(load([row], tmp_path, tokenizer, "code")[0].answer) == ("f", [([1, [1]], 2)])


def test_a_packed_text_that_names_a_function_is_not_run(tmp_path, tokenizer):
    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "written"), "w"))

    attack = base64.b64encode(zlib.compress(pickle.dumps(Attack()))).decode()
    with pytest.raises(ValueError, match="rows.jsonl:1"):
        load([{"prompt": "a", "answer": attack}], tmp_path, tokenizer, "code")
    assert not (tmp_path / "written").exists()
