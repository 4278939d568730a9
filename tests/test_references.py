"""Claims about plumbing/references.py: math references become their value, or are refused with their row."""

import json
import random

import pytest
from conftest import refuses, write_rows
from test_data import tokenizer  # noqa: F401

import data
from plumbing import prompts as sources
from plumbing import references

RANDOM = random.Random(28)
WORDS = ["Paris", "Tuesday", "três", "Bücher", "yes"]
FORMS = ["{0}", "-{0}", "{0}.5", "${0}$", "\\frac{{{0}}}{{7}}", "{0}/11", "{0}%", "{0},000"]


def values(count=50):
    number = [RANDOM.randint(2, 9999) for _ in range(count)]
    return [FORMS[n % 8].format(n) for n in number]


PHRASES = "The answer is {}|the answer is: {}.|Answer: {}|So the final answer is {}.|Solution: {}|The result is {}"


@pytest.mark.parametrize(
    "phrase", f"{PHRASES}|answer = {{}}|Therefore, the value is {{}}.|The answer is: the answer is {{}}".split("|")
)
def test_a_phrase_before_a_value_or_a_word_is_taken_off(phrase):
    for value in values(10) + WORDS + ["x=2", "\\{1, 2\\}", "no solution"]:
        assert references.reduced(phrase.format(value)) == value


def test_lists_of_one_and_objects_are_unpacked():
    for value in values(20) + WORDS:
        for packed in ([value], {"ground_truth": value}, {"answer": value, "style": "rule"}, {"target": [value]}):
            for spelt in (packed, json.dumps(packed), str(packed)):
                assert references.reduced(spelt) == value
    assert references.reduced("[72]") == references.reduced([72]) == references.reduced({"value": 72}) == "72"


PLAIN = {
    "\ufeff8\u200b": "8",
    "（－１．５，２）": "(-1.5,2)",
    "10²": "10²",  # NFKC would make it 102
    "（1，2）": "（1，2）",  # its digits are plain: a model may write it so
    "می\u200cشود": "می\u200cشود",  # joiners spell words
}


@pytest.mark.parametrize(("given", "value"), PLAIN.items())
def test_invisible_characters_and_full_width_digits_are_none_of_a_value(given, value):
    assert references.reduced(given) == value
    row = {"prompt": "a", "answer": given, "task": "text"}
    assert sources.parse_row(row, "f:1", None, (["prompt"], ["answer"])).answer == value


LABELLED = {
    r"\textbf{(B)}\ 4": "(B) 4",
    r"$\textbf{(B) }\frac12$": r"(B) \frac12",
    "C. 4": "(C) 4",
    "(a) 4": "4",
    "x is 4": "4",
    "The value of $x$ is $4$.": "$4$",
    "about 4": "4",
    "Max: 4": "4",
    "4, as desired": "4",
    "Yes, 4": "4",
}


@pytest.mark.parametrize(("given", "value"), LABELLED.items())
def test_labels_and_phrases_around_a_value_are_taken_off_and_a_capital_letter_stays_as_another_answer(given, value):
    assert references.reduced(given) == value


def test_integers_of_a_choice_are_letters():
    row = {"prompt": "a", "answer": 2, "task": "choice"}
    assert sources.parse_row(row, "f:1", None, (["prompt"], ["answer"])).answer == "C"


def test_up_to_a_20th_of_the_rows_are_left_out_for_their_reference_and_more_end_the_run(tmp_path, tokenizer):
    path = tmp_path / "a.jsonl"
    sentence = "It is the largest of all the numbers that there are"
    for unusable in (1, 2):
        answers = [sentence] * unusable + [1] * (20 - unusable)
        write_rows(path, [{"prompt": f"{n}", "answer": answer} for n, answer in enumerate(answers)])
        if unusable == 1:
            [error] = sources.read_sources(str(path), tokenizer, budget=9).unusable
            assert "a.jsonl:1: " in error and "a sentence" in error
    refuses("a.jsonl:1: .*; 2 of 20 rows .*--skip-unusable", sources.read_sources, str(path), tokenizer, budget=9)


REFUSED = {
    "Proof.": "a missing answer",
    "The answer is notfound": "a missing answer",
    "He has 3 apples and 4 pears left": "a sentence",
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
    rows = [{"prompt": f"{n}", "answer": answer} for n, answer in enumerate([1, reference])]
    write_rows(path, rows)
    refuses(f"a.jsonl:2: .*`math`.*{REFUSED[reference]}", sources.read_sources, str(path), tokenizer, budget=9)


def test_references_that_no_answer_can_be_compared_with_are_warned_of_and_refused_if_more_than_a_20th_are(monkeypatch):
    monkeypatch.setattr(references, "SAMPLE", 20)  # of 40 rows every second is tried

    def found(broken, skip=False):
        answers = ["<answer>1</answer>" if n < broken else f"{n}" for n in range(39)]
        rows = [data.Prompt(n, (1,), "1?", answer, "math") for n, answer in enumerate(answers)]
        return references.unreadable([*rows, data.Prompt(39, (1,), "1?", "<answer>", "text")], 5.0, skip)

    [warning] = found(broken=2)
    assert warning.startswith("WARNING: 1 of 20 references cannot")
    refuses("2 of 20 references cannot be compared with any answer: expected a refer.*--skip-unusable", found, broken=3)
    assert "WARNING: 2 of 20" in found(broken=3, skip=True)[0]


KEPT = (
    r"[1, 2]|(3, 4]|\{1, 2\}|{1, 2}|x = 2 or x = 3|no solution|There is no solution.|12 square metres|does not exist"
    r"|\text{the function is even for all x and odd for none}|236 adult, 342 child|5:30 pm|10和11之间|3 hours|undefined"
    r"|\begin{pmatrix} 1 \\ 2 \end{pmatrix}|The whole solution of many words ends in \boxed{5}|3 \text{ cm and } 4|none"
    r"|\sin x \cos y \tan z|if x > 0 or y < 0|[x, y]|A and C|1,000 miles per hour|No|(2)|2 (3)|f (x)|3(x+1)|P(A)"
    r"|sin (x)|(1, 2)|x (1)|9 (3 apples)|A solution exists and is unique."
)


@pytest.mark.parametrize("text", KEPT.split("|"))
def test_other_values_stay_as_they_are(text):
    assert references.reduced(text) == text
