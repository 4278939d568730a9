"""Claims about the first evaluation of a run (plumbing/evaluate.py): what it shows, and when nothing can be learnt."""

from pathlib import Path

import pytest
from conftest import TEMPLATE, character_tokenizer, ended, tiny_model, write_rows
from started_runs import refused

RUN = (
    "--virtual exact --model model --data rows.jsonl --steps 1 --prompts 4 --k 1 --generations 4 "
    "--max-prompt-tokens 28 --slots 32 --eval-generations 4 --length-control none --eval-every 100"
)


def made(template):
    """The flags of a run of a random model with this chat template, to which nothing is right."""
    character_tokenizer(template=template).save_pretrained("model")
    tiny_model(eos_token_id=2, vocab_size=47, num_hidden_layers=1).save_pretrained("model")
    write_rows("rows.jsonl", [{"prompt": f"{n + 1}-{n}", "answer": 77} for n in range(300)])
    return RUN


KNOWN = "{# </think> #}" + TEMPLATE  # a template that writes the mark


def test_a_model_without_the_default_mark_is_refused_with_both_flags(capsys):
    flags = made(TEMPLATE)
    capsys.readouterr()  # saving a model draws a bar
    message = refused(capsys, flags)
    assert "no </think>" in message and "--think-end none" in message and "--think-end TEXT" in message
    for flags in ("--think-end none", "--think-end </think>"):
        assert not ended(f"{RUN} {flags} --max-new-tokens 4 --eval-prompts 4 --out {flags[-3:]}")


ENDS = {  # template, flags -> what the end says
    (KNOWN, "--max-new-tokens 8"): "of the first 1.. completions is right, and none has written '</think>'",
    (KNOWN, "--max-new-tokens 1 --temperature 0.01"): "all of the first 1.. completions are truncated",
}


@pytest.mark.parametrize("template, flags", ENDS)
def test_a_run_in_which_every_reward_is_minus_1_ends_with_three_completions_and_leaves_out_free(
    template, flags, capsys
):
    made(template)
    for _ in range(2):  # --out is free again
        assert ended(f"{RUN} {flags} --out run") == 1
        shown = capsys.readouterr()
        assert shown.out.count("A completion of ") == 3
        assert ENDS[template, flags].split("1..")[1] in shown.err and "holds no checkpoint yet" in shown.err
        assert [path.stat().st_size for path in Path("run").iterdir()] == [0]  # the log


def test_a_run_shows_a_right_a_wrong_and_a_truncated_completion_with_what_was_read(capsys):
    small = "--steps 1 --prompts 2 --generations 2 --eval-prompts 40 --eval-generations 4"
    assert not ended(f"--virtual exact --data arithmetic {small} --out run")
    shown = capsys.readouterr().out
    right = next(part for part in shown.split("A completion of ") if ", right:" in part)
    lines = dict(line.strip().split("  ", 1) for line in right.splitlines()[1:5])
    assert lines["read as the answer"].strip() == lines["the reference"].strip()
    assert "</think>" in lines["the completion ends with"] and lines["the prompt ends with"].endswith("='")
    assert shown.count("A completion of ") == 3
