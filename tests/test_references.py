"""Claims about the references of plumbing/prompts.py: read in five forms, placed among options, or unusable."""

import pytest
from conftest import refuses, write_rows

import data
from plumbing import prompts as sources
from verify.graders import right

READ = {  # a reference -> what is compared
    "7": "7", "\ufeff8\u200b": "8", "（－１．５，２）": "(-1.5,2)", "10²": "10²", "می\u200cشود": "می\u200cشود",
    "She has 3 + 4 = 7 left.\n#### 7": "7",
    "['34']": "34", '{"ground_truth": 5}': "5", "{'answer': ['x=2'], 'style': 'rule'}": "x=2", "[72]": "72",
    r"\textbf{(B)}\ 4": "(B) 4", r"$\textbf{(B) }\frac12$": r"(B) \frac12", "C. 4": "(C) 4",
    "The answer is 5.": "5", "x is 4": "4", "Solution: no solution": "no solution", "answer = Paris": "Paris",
    "The value of $x$ is $4$.": "$4$",
}  # fmt: skip
STAY = (
    r"[1, 2]|(3, 4]|\{1, 2\}|{1, 2}|x = 2 or x = 3|There is no solution.|12 square metres|does not exist|236 adult, 34"
    r"2 child|5:30 pm|3 million|50 percent|10和11之间|\begin{pmatrix} 1 \\ 2 \end{pmatrix}|Thus it is \boxed{5}.|x^2"
    r" + C|3 \text{ cm and } 4|\sin x \cos y \tan z|if x > 0 or y < 0|A and C|3 \pmod 7|2 (3)|f (x)|P(A)|12_5|"
    r"9 (3 apples)|A solution exists and is unique.|x = 7|n \ge 3|Sum = 7|Area = 7"
)


@pytest.mark.parametrize("answer", [*READ, *STAY.split("|")])
def test_a_reference_is_the_text_behind_a_lead_or_four_crosses_in_a_list_of_one_or_an_object_or_beside_a_letter(answer):
    assert sources.math_reference(answer, "What is it?") == READ.get(answer, answer)


UNUSABLE = {  # a reference -> the cause
    **dict.fromkeys(
        "only 7|7 (C)|7 (seven)|C - 7|about 7|7 as desired|Max: 7|(a) 7|18 or more".split("|"),
        "more than its value: the answer [0-9]+ ?.? ?would be wrong",
    ),
    "Proof.": "a missing answer", "The answer is notfound": "a missing answer", "['7', '8']": "a list of 2 answers",
    '{"numbers": [1, 2], "target": 3}': "Countdown", '{"a": 1, "b": 2}': "the fields .'a', 'b'.",
    '{"answer": 1, "value": 2}': "the fields .'answer', 'value'.",
}  # fmt: skip


@pytest.mark.parametrize("reference", UNUSABLE)
def test_what_says_more_than_its_only_value_or_has_none_is_unusable(reference, tmp_path, tokenizer):
    write_rows(path := tmp_path / "a.jsonl", [{"prompt": f"{n}", "answer": a} for n, a in enumerate([1, reference])])
    refuses(f"a.jsonl:2: .*`math`.*{UNUSABLE[reference]}", sources.read_sources, str(path), tokenizer, budget=9)


@pytest.mark.parametrize("reference, value", [("Area = 7", "7"), ("7 since 3+4=7", "7"), ("Sum = 7", "")])
def test_what_only_sympy_finds_unusable_gets_no_verdict(reference, value):
    verdict = right(r"\boxed{8}", reference, "What is it?")
    assert verdict is False if not value else verdict.startswith("expected a reference answer")


def test_up_to_a_20th_of_the_rows_are_left_out_for_their_reference_and_more_end_the_run(tmp_path, tokenizer):
    def left_out(unusable):
        answers = ["exactly 7"] * unusable + [1] * (20 - unusable)
        write_rows(path := tmp_path / "a.jsonl", [{"prompt": f"{n}", "answer": a} for n, a in enumerate(answers)])
        return sources.read_sources(str(path), tokenizer, budget=9).unusable

    assert ["a.jsonl:1: " in error for error in left_out(1)] == [True]
    refuses("a.jsonl:1: .*; 2 of 20 rows .*--skip-unusable", left_out, 2)


def test_references_that_no_answer_can_be_compared_with_are_warned_of_and_refused_if_more_than_a_20th_are():
    def warnings(broken, skip=False):
        answers = ["<answer>1</answer>"] * broken + ["1"] * (20 - broken)
        rows = [data.Prompt(n, (1,), "1?", answer, "math") for n, answer in enumerate(answers)]
        return sources.unreadable(rows, 5.0, skip)

    assert warnings(1)[0].startswith("WARNING: 1 of 20 references cannot")
    refuses("2 of 20 references cannot be compared with any answer: expected a refer.*--skip-unusable", warnings, 2)
    assert "WARNING: 2 of 20" in warnings(2, skip=True)[0]


# --- choice ---

LETTERS, DIGITS, NUMBERS = "A. Mars\nB. Venus\nC. Earth", "1. Mars\n2. Venus\n3. Earth", "A. 2\nB. 3\nC. 4"
PLACED = {  # options, references, --choice-index -> labels, and how they were read
    (LETTERS, "A|(b)|C.|c|mars|B. Venus|The answer is (C).", None): "A B C C A B C",
    (DIGITS, "3|(2)|Mars|2. Venus", None): "3 2 1 2",
    (LETTERS, "2|0", None): "C A",
    (LETTERS, "2.0|1|0", None): "C B A",
    (LETTERS, "3|1", "1"): "C A",
    (LETTERS, "|".join("12" * 10), "0"): " ".join("BC" * 10),
    (NUMBERS, "3|4", None): "B C",
    (NUMBERS, "2|2", "words"): "A A",
    (DIGITS, "1|2", "0"): "2 3",
    ("", "A|B", None): "A B",
}


def choices(offered, references, index):
    rows = [data.Row("a:1", f"Which ({n})?\n{offered}", answer, "choice") for n, answer in enumerate(references)]
    return sources.place_choices("a", rows, index)


@pytest.mark.parametrize("case", PLACED, ids=str)
def test_a_reference_of_choice_is_an_option_of_its_prompt_by_label_words_or_an_index_of_the_whole_source(case):
    labels, how = choices(case[0], case[1].split("|"), case[2])
    assert labels == PLACED[case].split()
    numbers = case[1][0].isdigit() and (case[0] == LETTERS or case[2] == "0")
    assert how == (f"indices from {case[2] or 0}" if numbers else "labels or words of options")


@pytest.mark.parametrize("offered, references, words", [
    (LETTERS, "3|1", "no option as an index from 0 .a:1.: .*--choice-index 1 or"),  # as KMMLU counts
    (LETTERS, "|".join("12" * 10), "never 0"),
    (DIGITS, "1|2", "by their labels or words, and as indices from 0 other ones"),
    (NUMBERS, "2|2", "by their labels or words, and as indices"),
])  # fmt: skip
def test_whole_numbers_that_may_be_read_in_two_ways_are_refused_with_the_flag(offered, references, words):
    refuses(f"--data a: .*{words}", choices, offered, references.split("|"), None)


def test_what_is_no_option_is_unusable_and_options_in_a_column_of_their_own_are_refused(tmp_path, tokenizer):
    def load(*rows):
        write_rows(tmp_path / "a.jsonl", rows)
        return sources.read_sources(f"{tmp_path}/a.jsonl:1:choice", tokenizer, budget=99)

    asked = [{"prompt": f"which {n}|a: one b: two", "answer": "one"} for n in range(20)]
    read = load(*asked, asked[0] | {"answer": "three"})
    assert {prompt.answer for prompt in read.validation} == {"A"} and "'three'" in read.unusable[0]
    for more in ({"choices": ["one", "two"]}, {"A": "one", "B": "two"}):
        refuses("a.jsonl:1: .*options that the model would not see", load, {"prompt": "w", "answer": "A"} | more)
