"""Prompts: loading, the split, No-Positive-Resampling (Sec. 3.2), and the embedded arithmetic task.

Paper: Sec. 2 and A.3 (prompts, several epochs over them), Sec. 2.1 (1,000 validation prompts held out at random),
Sec. 3.2 (No-Positive-Resampling: a prompt whose historical pass rate is >= 0.9 is never sampled in a later epoch).

    load(source, tokenizer, budget=...) -> Data(train, validation, too_long, duplicates), before anything is spawned
    Curriculum.next(n) -> the next n prompts of the epoch        Curriculum.update(i, pass_rate) -> the history

Sources
  "arithmetic"  expressions like "7+5-3+9=" of 3 to 12 one-digit operands. A fixed hash of the text puts one in HELD_OUT
                of them on validation's side, so neither SFT nor RL can meet a validation prompt, whatever their seeds.
  FILE.jsonl    one {"prompt": text or [{"role": ..., "content": ...}, ...], "answer": text or integer} per line, and
                optionally "task", a key of reward.TASKS (default "math"); other fields and empty lines are ignored.
                The prompt goes through the tokenizer's chat template, or, where it has none, through the tokenizer as
                it is. A line repeating a prompt is dropped and counted; with another answer it is refused.
The validation set and the training set are the same for every --seed, which only orders the training prompts: runs with
different seeds are measured on the same prompts.

Deviation: of a file of fewer than 10,000 prompts one tenth is held out, at least one, instead of 1,000.
Deviation: a prompt is never in flight twice, so the run ends when fewer than P prompts are both below 0.9 and not in
  flight; while prompts are many this is the paper's rule.
Open in the paper: the history of a pass rate; ours: the share of correct completions among the prompt's latest G.

Test: pytest tests/test_data.py
"""

import hashlib
import json
import os
import random
import re
from dataclasses import dataclass, replace
from itertools import islice
from typing import Iterable, NamedTuple

from reward import TASKS

MIN_OPERANDS, MAX_OPERANDS = 3, 12  # uniform, from easy to hard, so that the pass rate is a smooth mixture
HELD_OUT = 10  # one arithmetic text in so many is validation's, and one prompt in so many of a small file
ARITHMETIC_PROMPTS = 8_000  # training prompts of the embedded task
VALIDATION_PROMPTS = 1_000  # Sec. 2.1
EXPECTED = 'one JSON object like {"prompt": text or chat messages, "answer": text or integer}'


@dataclass(frozen=True)
class Prompt:
    """One prompt x, tokenised as the model gets it."""

    index: int  # position within the run's training or validation set
    ids: tuple[int, ...]  # prompt tokens
    text: str  # what `ids` spell, chat template included
    answer: str  # the verifier's reference
    task: str  # the verifier: a key of reward.TASKS


class Row(NamedTuple):
    """A prompt as it stands in its source."""

    where: str  # "file:line", for messages
    prompt: str | list[dict]
    answer: str
    task: str


class Data(NamedTuple):
    """A run's prompts, and how many were left out of them and why."""

    train: list[Prompt]
    validation: list[Prompt]
    too_long: int  # prompts of more tokens than the budget
    duplicates: int  # lines that repeat an earlier prompt


# --- The embedded task -----------------------------------------------------------------------------------------------


def is_held_out(text: str) -> bool:
    """True for the arithmetic texts kept for validation: decided by the text alone, so no seed moves one across."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % HELD_OUT == 0


def expression(rng: random.Random, operands: int) -> tuple[str, str]:
    """(text, answer) with `operands` one-digit numbers joined by + and -, for example ("7+5-3+9=", "18").

    Only `rng.random()` is used: it alone is promised to give the same numbers in every Python version.
    """
    digits = [int(10 * rng.random()) for _ in range(operands)]
    signs = [1] + [1 if rng.random() < 0.5 else -1 for _ in digits[1:]]
    text = "".join(f"{'+' if sign > 0 else '-'}{digit}" for sign, digit in zip(signs, digits))[1:] + "="
    return text, str(sum(sign * digit for sign, digit in zip(signs, digits)))


def arithmetic(rng: random.Random, *, held_out: bool) -> tuple[str, str]:
    """(text, answer) of the embedded task, from validation's side of the hash (held_out) or from the other.

    Repeats itself now and then (there are 4,000 texts of three operands): `arithmetic_set` gives distinct ones.
    """
    operands = MIN_OPERANDS + int((MAX_OPERANDS - MIN_OPERANDS + 1) * rng.random())
    while True:
        text, answer = expression(rng, operands)
        if is_held_out(text) == held_out:
            return text, answer


def arithmetic_set(count: int, *, seed: int, held_out: bool) -> list[tuple[str, str]]:
    """`count` distinct (text, answer) pairs, always the same for the same arguments."""
    rng, pairs = random.Random(f"arithmetic/{seed}"), {}
    while len(pairs) < count:
        text, answer = arithmetic(rng, held_out=held_out)
        pairs[text] = answer
    return list(pairs.items())


# --- JSON Lines ------------------------------------------------------------------------------------------------------


def malformed(where: str, got: str, cause: str, expected: str = EXPECTED) -> ValueError:
    """The error for a line that cannot be used: file and line, what was expected, what stands there, likely why."""
    return ValueError(f"{where}: expected {expected}, got {got}; likely cause: {cause}")


def parse_line(raw: bytes, where: str) -> Row:
    """One line of a JSONL file. Raises ValueError naming `where`, the line's place, if it is not a usable row."""
    try:
        row = json.loads(raw)
        json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair would fail only in the tokenizer
    except ValueError as error:
        raise malformed(where, f"{raw[:60]!r} ({error})", "one document over many lines, or not UTF-8") from error
    if not isinstance(row, dict) or not {"prompt", "answer"} <= row.keys():
        got = f"the fields {sorted(row)}" if isinstance(row, dict) else f"a {type(row).__name__}"
        raise malformed(where, got, "other column names, or one JSON array instead of a line per row")
    prompt, answer, task = row["prompt"], row["answer"], row.get("task", "math")
    if not is_chat(prompt) and not (isinstance(prompt, str) and prompt.strip()):
        raise malformed(where, f"prompt {str(prompt)[:60]!r}", "nothing in it, or messages ending with the answer")
    if isinstance(answer, bool) or not isinstance(answer, (str, int)) or not str(answer).strip():
        raise malformed(where, f"answer {answer!r}", "an unlabelled row, or a number to be written as text")
    if task not in TASKS:
        raise malformed(where, f"task {task!r}", "a misspelt name", f"a task of {sorted(TASKS)}")
    if task == "arithmetic" and not re.fullmatch("0|-?[1-9][0-9]*", str(answer).strip()):
        raise malformed(where, f"answer {answer!r}", "another notation", "an integer as Python writes it")
    return Row(where, prompt, str(answer).strip(), task)


def is_chat(prompt) -> bool:
    """True for a list of {"role": text, "content": text} that waits for the assistant's turn."""
    if not isinstance(prompt, list) or not prompt:
        return False
    whole = (isinstance(m, dict) and isinstance(m.get("content"), str) and "role" in m for m in prompt)
    return all(whole) and prompt[-1]["role"] != "assistant"



def read_lines(path: str) -> list[Row]:
    """All rows of a JSONL file. Raises ValueError for a malformed line and for a file without rows."""
    with open(path, "rb") as file:
        rows = [parse_line(raw, f"{path}:{line}") for line, raw in enumerate(file, 1) if raw.strip()]
    if not rows:
        raise malformed(path, "a file without rows", "an interrupted download or export", f"{EXPECTED} per line")
    return rows


def distinct(rows: list[Row]) -> list[Row]:
    """The rows without later repetitions of a prompt. Raises ValueError if a repetition has another answer."""
    first = {}
    for row in rows:
        known = first.setdefault(json.dumps(row.prompt), row)
        if (known.answer, known.task) != (row.answer, row.task):
            expected = f"answer {known.answer!r} as for the same prompt in {known.where}"
            raise malformed(row.where, f"{row.answer!r} ({row.task})", "a wrong label in one of the two", expected)
    return list(first.values())


# --- Prompts as tokens -----------------------------------------------------------------------------------------------


def render(row: Row, tokenizer) -> str:
    """The prompt's text up to where the completion starts. Raises ValueError for chat messages without a template."""
    chat = isinstance(row.prompt, list)
    if tokenizer.chat_template:
        messages = row.prompt if chat else [{"role": "user", "content": row.prompt}]
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    if chat:
        raise malformed(row.where, "chat messages", "a base model, which has no chat template", "a prompt as one text")
    return row.prompt


def tokenise(rows: list[Row], tokenizer, *, budget: int) -> tuple[list[Prompt], int]:
    """(prompts of at most `budget` tokens, how many were longer), in order.

    A chat template writes the special tokens itself; without one the tokenizer adds its own (Llama's and Gemma's first
    token; the embedded tokenizer has none), except for an end-of-text at the end, after which nothing would follow.
    Raises ValueError for a prompt with characters the tokenizer does not know.
    """
    texts = [render(row, tokenizer) for row in rows]
    special = not tokenizer.chat_template
    prompts = []
    for row, text, ids in zip(rows, texts, tokenizer(texts, add_special_tokens=special)["input_ids"]):
        ids = ids[:-1] if special and ids[-1:] == [tokenizer.eos_token_id] else ids
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
            cause = "the embedded base model's tokenizer, which knows arithmetic only: give another --model"
            raise malformed(row.where, f"{text[:60]!r}", cause, "text that the tokenizer can spell")
        if len(ids) <= budget:
            prompts.append(Prompt(len(prompts), tuple(ids), text, row.answer, row.task))
    return prompts, len(rows) - len(prompts)


def shuffled(items: Iterable, seed: str) -> list:
    """The items in an order that depends on nothing but their number and the seed."""
    rng = random.Random(seed)
    return sorted(items, key=lambda _: rng.random())


def split(prompts: list[Prompt], count: int) -> tuple[list[Prompt], list[Prompt]]:
    """(train, validation): `count` prompts drawn at random, always the same; at most a HELD_OUT-th, at least one."""
    count = min(count, max(1, len(prompts) // HELD_OUT))
    drawn = shuffled(prompts, "split")
    train, held = ([replace(x, index=i) for i, x in enumerate(part)] for part in (drawn[count:], drawn[:count]))
    return train, held


def load(source: str, tokenizer, *, budget: int, validation: int = VALIDATION_PROMPTS) -> Data:
    """The prompts of a run: "arithmetic" or a JSONL file, tokenised and split (see the top of this file).

    budget      tokens per prompt; longer prompts are left out before the split
    validation  prompts to hold out
    Raises ValueError for another source, a malformed line, or if no prompt fits the budget.
    """
    if source == "arithmetic":
        sets = [(ARITHMETIC_PROMPTS, False), (validation, True)]
        pairs = [arithmetic_set(count, seed=0, held_out=held_out) for count, held_out in sets]
        parts = [[Row(source, *pair, "arithmetic") for pair in part] for part in pairs]
        (train, long), (held, long_held) = (tokenise(part, tokenizer, budget=budget) for part in parts)
        return Data(train, held, long + long_held, 0)
    if not os.path.isfile(source):
        raise ValueError(f"expected 'arithmetic' or an existing JSONL file, got {source!r}; likely cause: a wrong path")
    lines = read_lines(source)
    rows = distinct(lines)
    prompts, too_long = tokenise(rows, tokenizer, budget=budget)
    if not prompts:
        raise malformed(source, f"{too_long} longer ones", "a small budget", f"a prompt of <= {budget} tokens")
    return Data(*split(prompts, validation), too_long, len(lines) - len(rows))


def check_size(data: Data, *, prompts: int, k: int) -> None:
    """Raise ValueError unless more than (k + 1)·P training prompts are left: so many are in flight at once."""
    needed = (k + 1) * prompts
    if len(data.train) <= needed:
        raise ValueError(
            f"expected more than (k + 1)·P = {needed} training prompts, got {len(data.train)} (held out: "
            f"{len(data.validation)}, too long: {data.too_long}, repeated: {data.duplicates}); "
            "likely cause: a small file or prompt budget; lower k or the prompts per step"
        )


# --- No-Positive-Resampling (Sec. 3.2) -------------------------------------------------------------------------------


class Curriculum:
    """Which prompts come next: epochs in a seeded order, without those that the policy has already learnt.

    prompts    the training set, index = position
    seed       orders the epochs
    threshold  a prompt whose latest pass rate is >= this is never sampled again; None: uniform resampling

    A prompt that is out (`next`) and not back (`update`) is in flight and is not given out a second time: if it comes
    up in the next epoch before it is back, those behind it go first; if only such prompts remain, the epoch is over.
    """

    def __init__(self, prompts: list[Prompt], *, seed: int, threshold: float | None):
        self.prompts, self.seed, self.threshold = prompts, seed, threshold
        self.pass_rates: dict[int, float] = {}  # index -> share of correct among the latest G completions
        self._epoch, self._size, self._queue = -1, 1, []  # the epoch's number, its prompts, those still to come
        self._in_flight: dict[int, None] = {}  # an ordered set

    @property
    def epoch(self) -> float:
        """Epochs sampled so far, counting the share of the current one."""
        return self._epoch + 1 - len(self._queue) / self._size

    @property
    def retired(self) -> int:
        """Prompts at or above the threshold."""
        return sum(self._is_retired(index) for index in self.pass_rates)

    @property
    def in_flight(self) -> list[Prompt]:
        """Prompts given out and not back, in the order they were given out (what a resumed run has to start again)."""
        return [self.prompts[index] for index in self._in_flight]

    def next(self, count: int) -> list[Prompt]:
        """The next `count` prompts; fewer only if fewer are neither in flight nor retired ("curriculum exhausted")."""
        chosen = self._take(count)
        while len(chosen) < count and any(map(self._is_free, range(len(self.prompts)))):
            self._epoch += 1
            active = [index for index in range(len(self.prompts)) if not self._is_retired(index)]
            self._queue, self._size = shuffled(active, f"epoch/{self.seed}/{self._epoch}"), len(active)
            chosen += self._take(count - len(chosen))
        return [self.prompts[index] for index in chosen]

    def update(self, index: int, pass_rate: float | None) -> None:
        """Prompt `index` is back: the share of its G completions that were correct, None if that is unknown.

        Raises ValueError if it is not in flight.
        """
        if index not in self._in_flight:
            raise ValueError(f"expected a prompt in flight, got {index}; likely cause: its group was delivered twice")
        del self._in_flight[index]
        if pass_rate is not None:
            self.pass_rates[index] = float(pass_rate)

    def state_dict(self) -> dict:
        """Everything that decides the prompts to come, as JSON can hold it."""
        state = {"data": self._fingerprint(), "epoch": self._epoch, "size": self._size, "queue": list(self._queue)}
        return state | {"in_flight": list(self._in_flight), "pass_rates": list(self.pass_rates.items())}

    def load_state_dict(self, state: dict) -> None:
        """Go on where `state_dict` was taken. Raises ValueError for a state of other prompts or another seed."""
        if state["data"] != self._fingerprint():
            raise ValueError("expected the state of these prompts and seed, got another; likely cause: a changed flag")
        self._epoch, self._size, self._queue = state["epoch"], state["size"], list(state["queue"])
        self._in_flight, self.pass_rates = dict.fromkeys(state["in_flight"]), dict(state["pass_rates"])

    def _fingerprint(self) -> str:
        """Stands for the training prompts, their order, and the seed."""
        texts = [str(self.seed), *(prompt.text for prompt in self.prompts)]
        return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]

    def _is_retired(self, index: int) -> bool:
        """At the threshold or above, with room for a float32 mean: 9 correct of 10 may arrive as 0.89999998."""
        return self.threshold is not None and self.pass_rates.get(index, 0.0) >= self.threshold - 1e-6

    def _is_free(self, index: int) -> bool:
        return index not in self._in_flight and not self._is_retired(index)

    def _take(self, count: int) -> list[int]:
        """Move up to `count` free prompts from the front of the epoch's queue into flight."""
        chosen = dict.fromkeys(islice(filter(self._is_free, self._queue), count))
        self._in_flight |= chosen
        self._queue = [index for index in self._queue if index not in chosen]
        return list(chosen)
