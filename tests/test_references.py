"""Claims about the references of plumbing/prompts.py: read in five forms, placed among options, or unusable."""

import pytest
from conftest import refuses, write_rows

import data
from plumbing import prompts as sources
from verify.graders import right

READ = {  # a reference -> what is compared
    "\ufeff8\u200b": "8", "（－１．５，２）": "(-1.5,2)", "می\u200cشود": "می\u200cشود",
    "She has 3 + 4 = 7 left.\n#### 7": "7", "['34']": "34", "{'answer': ['x=2'], 'style': 'rule'}": "x=2",
    r"$\textbf{(B) }\frac12$": r"(B) \frac12", "C. 4": "(C) 4", "The answer is 5.": "5", "answer = Paris": "Paris",
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
    "The answer is notfound": "a missing answer", "['7', '8']": "a list of 2 answers",
    '{"numbers": [1, 2], "target": 3}': "the fields .'numbers', 'target'.", '{"a": 1, "b": 2}': "the fields .'a', 'b'.",
}  # fmt: skip


def read(tokenizer, answers):
    """data.Data of rows with these answers."""
    write_rows("a.jsonl", [{"prompt": f"{n}", "answer": answer} for n, answer in enumerate(answers)])
    return sources.read_sources("a.jsonl", tokenizer, budget=9)


@pytest.mark.parametrize("reference", UNUSABLE)
def test_what_says_more_than_its_only_value_or_has_none_is_unusable(reference, tokenizer):
    refuses(f"a.jsonl:2: .*`math`.*{UNUSABLE[reference]}", read, tokenizer, [1, reference])


@pytest.mark.parametrize("reference, value", [("Area = 7", "7"), ("7 since 3+4=7", "7"), ("Sum = 7", "")])
def test_what_only_sympy_finds_unusable_gets_no_verdict(reference, value):
    verdict = right(r"\boxed{8}", reference, "What is it?")
    assert verdict is False if not value else verdict.startswith("expected a reference answer")


def test_up_to_a_20th_of_the_rows_are_left_out_for_their_reference_and_more_end_the_run(tokenizer):
    assert len(read(tokenizer, ["exactly 7", *[1] * 19]).unusable) == 1
    refuses("a.jsonl:1: .*; 2 of 20 rows .*--skip-unusable", read, tokenizer, ["exactly 7"] * 2 + [1] * 18)


def test_references_that_no_answer_can_be_compared_with_are_refused_if_more_than_a_20th_are():
    rows = [data.Prompt(n, (1,), "1?", answer, "math") for n, answer in enumerate(["<answer>1</answer>", "1"])]
    refuses("1 of 2 references cannot be compared with .*--skip-unusable", sources.unreadable, rows, 5.0, False)


# --- choice ---

LETTERS, DIGITS, NUMBERS = "A. Mars\nB. Venus\nC. Earth", "1. Mars\n2. Venus\n3. Earth", "A. 2\nB. 3\nC. 4"
PLACED = {  # options, references, --choice-index -> labels
    (LETTERS, "A|(b)|C.|c|mars|B. Venus|The answer is (C).", None): "A B C C A B C",
    (DIGITS, "3|(2)|Mars|2. Venus", None): "3 2 1 2",
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
    assert choices(case[0], case[1].split("|"), case[2])[0] == PLACED[case].split()


@pytest.mark.parametrize("offered, references", [
    (LETTERS, "3|1"),  # no index from 0: KMMLU counts from 1
    (LETTERS, "|".join("12" * 10)),  # never 0
    (DIGITS, "1|2"),  # labels, and indices of other options
    (NUMBERS, "2|2"),  # words, and indices
])  # fmt: skip
def test_whole_numbers_that_may_be_read_in_two_ways_or_in_none_are_refused_with_the_flag(offered, references):
    refuses("--data a: .*both or neither: give --choice-index 0, 1 or", choices, offered, references.split("|"), None)


def test_what_is_no_option_is_unusable_and_options_in_a_column_of_their_own_are_refused(tokenizer):
    def load(*rows):
        write_rows("a.jsonl", rows)
        return sources.read_sources("a.jsonl:1:choice", tokenizer, budget=99)

    asked = [{"prompt": f"which {n}|a: one b: two", "answer": "one"} for n in range(20)]
    prompts = load(*asked, asked[0] | {"answer": "three"})
    assert {prompt.answer for prompt in prompts.validation} == {"A"} and "'three'" in prompts.unusable[0]
    for more in ({"choices": ["one", "two"]}, {"A": "one", "B": "two"}):
        refuses("a.jsonl:1: .*options that the model would not see", load, {"prompt": "w", "answer": "A"} | more)
