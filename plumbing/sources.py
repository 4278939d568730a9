"""Where prompts come from: the embedded tasks, files, folders and data sets of the hub, and the rows they hold.

    load(sources, tokenizer, budget=...) -> data.Data(train, validation, ...), before any process is started

A source is NAME[:WEIGHT][:TASK]: its share of the prompts drawn is its weight (default 1) over the sum of all weights;
TASK, a key of judges.TASKS, names the verifier of all its rows. NAME is one of
  arithmetic, sorting, tiny  the embedded tasks (data.py)
  FILE.jsonl  (or .ndjson) one {"prompt": text or [{"role": ..., "content": ...}, ...], "answer": text or integer} per
              line, and optionally "task" (default "math"); other fields and empty lines are ignored.
  FILE.csv    (or .tsv) such rows as a table whose first line names the columns; every cell is text.
  any other   such rows from `datasets.load_dataset`, train split: a .parquet, .json or .arrow file, a folder,
              OWNER/NAME or OWNER/NAME/CONFIG on the hub.
A file's name may be a pattern and have capitals; text files may be packed (.gz).
--prompt-column and --answer-column name other columns; several names may be given, for several sources, and the first
that a row has counts. "reward_model.ground_truth" is the field ground_truth within the field reward_model. If an answer
holds "####" (GSM8K), only what follows is taken; references.py takes off what else is no value. The answer of a
code row is its tests, in a form that judges.py reads, as JSON text or as an object. A row without a usable prompt or
answer ends the run, or is left out (--skip-unusable).
If rows of a source have the same prompt, the first is kept; the others are dropped and counted.

Test: pytest tests/test_sources.py
"""

import ast
import base64
import csv
import gzip
import json
import os
import pickle
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from glob import glob
from itertools import chain
from pathlib import Path

from data import (
    ANSWERS,
    EMBEDDED,
    EMBEDDED_PROMPTS,
    MAX_ANSWER,
    VALIDATION_PROMPTS,
    Data,
    Row,
    check_leakage,
    examples,
    malformed,
    render,
    split,
    tokenise,
)
from plumbing import references, unpickler
from plumbing.typed import beside, closest, is_path, meant
from verify.judges import TASKS
from verify.programs import read_tests

USUAL = {  # columns of well-known data sets, to be suggested
    "--prompt-column": ("question", "problem", "instruction", "query", "input", "messages"),
    "--answer-column": ("solution", "final_answer", "ground_truth", "output", "response", "target", "label"),
}
EXPECTED = 'one JSON object like {"prompt": text or chat messages, "answer": text or integer}'


# --- Sources ---------------------------------------------------------------------------------------------------------


def parse_source(text: str) -> tuple[str, float, str | None]:
    """(name, weight, task or None) of a source as --data takes it.

    Raises ValueError for a weight of 0, or for a task beside an embedded source.

    >>> parse_source("code.jsonl:3:code"), parse_source("sorting")
    (('code.jsonl', 3.0, 'code'), ('sorting', 1.0, None))
    """
    found = re.fullmatch(f"(.*?)(?::([0-9]+[.]?[0-9]*))?(?::({'|'.join(TASKS)}))?", text, re.S)
    assert found  # the first part takes any text
    name, weight, task = found.groups()
    if float(weight or 1) == 0 or task and name in EMBEDDED:
        expected = "NAME[:WEIGHT][:TASK] with a weight above 0, and no task for an embedded source, which has its own"
        raise malformed("--data", repr(text), "weight 0, or a task for an embedded source", expected)
    return name, float(weight or 1), task


def anchored(text: str) -> str:
    """A source as --data takes it, a file or folder with its whole path: it is found from any other folder too."""
    name, _, task = parse_source(text)
    path = os.path.abspath(os.path.expanduser(name))
    here = name not in EMBEDDED and (os.path.exists(path) or glob(path))
    return path + text[len(name) :] if here else text


def labels(names: Sequence[str]) -> Sequence[str]:
    """What sources are called in the log: files and folders without their path, if that tells all sources apart."""
    short = [os.path.basename(name) if os.path.isabs(name) else name for name in names]
    return short if len(set(short)) == len(short) else names


def ending(name: str) -> str:
    """The ending of a file's name in lower case, without .gz.

    >>> ending("a/B.JSONL"), ending("b.csv.gz"), ending("a.b/c")
    ('.jsonl', '.csv', '')
    """
    return Path(name.lower().removesuffix(".gz")).suffix


def opened(path: str, **text):
    """A text file to be read; one that gzip packed is told by its first bytes."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return (gzip.open if packed else open)(path, "rt", **text)


def read_lines(path: str) -> Iterator[tuple[str, object]]:
    """Yield (place, row) for each non-empty line of a JSONL file. Raises ValueError for a line that is not JSON."""
    with opened(path, encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line) if line.strip() else None
                json.dumps(row, ensure_ascii=False).encode()  # the tokenizer would fail on half a surrogate pair
            except (ValueError, RecursionError) as error:
                cause = "one JSON document over many lines, a file that is not UTF-8, or nesting too deep to read"
                raise malformed(f"{path}:{number}", f"{line[:60]!r} ({error})", cause, EXPECTED) from error
            if line.strip():
                yield f"{path}:{number}", row


def read_table(path: str) -> Iterator[tuple[str, dict]]:
    """Yield (place, row) for each row of a CSV or TSV file, every cell as the text it is: 007 stays 007.

    The separator is the one of , ; and tab that its first line has most of. Raises ValueError for a row of more cells.
    """
    csv.field_size_limit(MAX_ANSWER)
    with opened(path, encoding="utf-8-sig", newline="") as file:
        number = 1
        try:
            separator = max(",;\t", key=file.readline().count)
            file.seek(0)
            table = csv.DictReader(file, delimiter=separator)
            for row in table:
                number = table.line_num
                if None in row:
                    got = f"{len(row) - 1 + len(row[None])} cells under {len(row) - 1} names"
                    raise malformed(f"{path}:{number}", got, "a text that should stand in quotes", "a table")
                yield f"{path}:{number}", row
        except (UnicodeDecodeError, csv.Error) as error:
            raise malformed(f"{path}:{number}", str(error), "a file of another kind", "a table in UTF-8") from error


READERS = {".jsonl": read_lines, ".ndjson": read_lines, ".csv": read_table, ".tsv": read_table}
OWN = "own"  # the task of rows that --reward judges
BUILDERS = {".parquet": "parquet", ".json": "json", ".arrow": "arrow"}  # that `datasets` has


def read(name: str) -> Iterator[tuple[str, object]]:
    """(place, row) of a source that is not embedded. Raises ValueError, with what is there, if there is none."""
    kind = ending(name)
    files = [path for path in sorted(glob(name)) or [name] if os.path.isfile(path)]
    if files and kind in READERS:
        return chain.from_iterable(map(READERS[kind], files))
    if files and kind not in BUILDERS:
        cause = "lines of text, which have no answers" if kind == ".txt" else "a file of another kind"
        known = ", ".join((*READERS, *BUILDERS))
        expected = f"a file of a kind that is read ({known}; all but .parquet and .arrow also as .gz)"
        raise malformed(f"--data {name}", f"a file ending in {kind or 'nothing'}", cause, expected)
    hub = re.fullmatch("([^/]+/[^/]+)(?:/([^/]+))?", name)
    path_only = is_path(name, longest=3) or kind in (READERS | BUILDERS) or not hub
    if not files and not os.path.isdir(name) and path_only:
        head, colon, end = name.rpartition(":")
        wrong = f"; {end} is no weight and no task ({', '.join(TASKS)})" if colon and os.path.exists(head) else ""
        guess = wrong or meant(name, EMBEDDED) or f"; {beside(name)}"
        expected = f"{', '.join(EMBEDDED)}, a file, a folder or OWNER/NAME on the hub"
        raise ValueError(f"--data {name}: expected {expected}; there is no such file or folder{guess}")
    if files:
        return read_dataset(name, path=BUILDERS[kind], data_files=files)
    if hub and not os.path.isdir(name):
        return read_dataset(name, path=hub[1], name=hub[2])
    return read_dataset(name, path=name)


def read_dataset(source: str, **place) -> Iterator[tuple[str, dict]]:
    """(place, row) of the rows that `datasets.load_dataset` finds; ValueError if it finds none or is not installed."""
    cause = "a misspelt name, no network, no train split, several configurations, or: pip install datasets"
    failures = (ImportError, OSError, ValueError)
    try:
        import datasets  # not a requirement: the embedded tasks, JSONL and CSV do without it

        failures += (datasets.exceptions.DatasetsError,)
        rows = datasets.load_dataset(**place, split="train")
    except failures as error:
        expected = f"{', '.join(EMBEDDED)}, a file, or what datasets.load_dataset reads (see plumbing/sources.py)"
        raise malformed(f"--data {source}", f"{type(error).__name__}: {error}", cause, expected) from error
    return ((f"{source}, row {number}", row) for number, row in enumerate(rows, 1))


def field(row: dict, names: Iterable[str]):
    """The first of the named fields that the row has, or None if it has none; "a.b" is field b of field a."""

    def step(value, key):
        return value.get(key) if isinstance(value, dict) else None

    found = (reduce(step, name.split("."), row) for name in names)
    return next((value for value in found if value is not None), None)


def loaded(text):
    """The value that a text spells in JSON or as a Python literal; anything else is returned unchanged."""
    for load_text in (json.loads, ast.literal_eval) if isinstance(text, str) else ():
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return load_text(text)
    return text


def math_answer(answer, row: dict) -> str:
    """A math row's reference (references.py). Raises ValueError for a row of another kind, or one without a value."""
    if {"nums", "numbers"} & row.keys() and "target" in row:
        raise ValueError(references.COUNTDOWN)
    return references.reduced(answer.rpartition("####")[2] if isinstance(answer, str) else answer)


def private_tests(text: str):
    """The tests that LiveCodeBench keeps packed (base64 of zlib of a pickled JSON text), or any other text as it is."""
    with suppress(ValueError, zlib.error, pickle.UnpicklingError, EOFError):
        return unpickler.read(zlib.decompress(base64.b64decode(text, validate=True)))
    return text


def code_answer(answer, row: dict) -> str:
    """A code row's tests, text or objects, as JSON text in a form that the verifier reads.

    A function's name may stand in the row's `metadata` (LiveCodeBench, DeepCoder's lcbv5) or beside the tests. Tests in
    another form raise ValueError (which may name the form), LookupError, TypeError or AttributeError.
    """
    tests = found = loaded(private_tests(answer) if isinstance(answer, str) else answer)
    if isinstance(found, dict) and {"input", "output"} <= found.keys() and "inputs" not in found:  # CodeContests
        tests = {"inputs": found["input"], "outputs": found["output"]}
    if isinstance(found, dict) and "test_cases" in found:  # SYNTHETIC-1: the text holds more than the tests
        tests = loaded(found["test_cases"])
    if not isinstance(tests, dict) and "assert " in str(tests[:1] if isinstance(tests, list) else tests):
        raise ValueError("tests are asserts (MBPP, AceCode, KodCode, check(candidate)); write calls and results")
    name = (
        field({"metadata": loaded(row.get("metadata"))}, ["metadata.func_name", "metadata.fn_name"])
        or isinstance(found, dict)
        and found.get("fn_name")
    )
    if name and isinstance(tests, list):
        tests = [{"fn_name": name} | test for test in tests]
    elif name and tests is not found:
        tests = {"fn_name": name} | tests
    text = answer if isinstance(answer, str) and tests is loaded(answer) and not name else json.dumps(tests)
    read_tests(text)
    return text


def missing(row: dict, where: str, names: Sequence[str], flag: str) -> ValueError:
    """The error for a row without a value under any of these names, which `flag` gives."""
    parents = {name: field(row, [name.rpartition(".")[0]]) if "." in name else row for name in names}
    for name, parent in parents.items():
        if isinstance(parent, dict) and name.rpartition(".")[2] in parent:
            return malformed(where, f"{name} without a value", "an unlabelled row", EXPECTED)
    there = [name for name, value in row.items() if not isinstance(value, dict)]
    there += [f"{name}.{inner}" for name, value in row.items() if isinstance(value, dict) for inner in value]
    usual = [name for name in USUAL[flag] if name in there]
    guess = closest(names[0], there) or next(iter(usual), "NAME")
    got = f"the fields {sorted(there)}, none of which is {' or '.join(names)}"
    return malformed(where, got, f"another name of the column: {flag} {guess}", EXPECTED)


def chat(prompt: list, where: str) -> list[dict]:
    """Chat messages, each with its content as one text. Raises ValueError for another form, or parts without text."""
    whole = []
    for message in prompt:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            cause = "another form of chat, or a field that is missing"
            expected = 'messages like {"role": "user", "content": text}'
            raise malformed(where, f"prompt {str(message)[:60]!r}", cause, expected)
        parts = message["content"] if isinstance(message["content"], list) else [message["content"]]
        texts: list = [part.get("text") if isinstance(part, dict) else part for part in parts]
        if not all(isinstance(text, str) for text in texts):
            kinds = sorted({str(part.get("type") if isinstance(part, dict) else part)[:60] for part in parts})
            raise malformed(where, f"content of {', '.join(kinds)}", "an image or sound", "text: nothing else is read")
        whole.append({"role": message["role"], "content": "".join(texts)})
    return whole


def parse_row(row, where: str, task: str | None, columns, own: bool = False) -> Row:
    """Check a row's fields. task, columns: those of its source. Raises ValueError naming `where` if it is unusable.

    own  as in `load`: any answer will do, and none
    """
    if not isinstance(row, dict):
        raise malformed(where, f"a {type(row).__name__}", "one JSON array instead of a line per row", EXPECTED)
    values = [field(row, names) for names in columns]
    for flag, names, value in zip(USUAL, columns, values):
        if value is None and not (own and flag == "--answer-column"):
            raise missing(row, where, names, flag)
    prompt, answer = values
    task = str(task or row.get("task") or "math")
    if isinstance(prompt, str) and re.match(r"\s*\[\s*\{\s*['\"](?:role|content)['\"]", prompt):
        prompt = loaded(prompt)  # chat messages as JSON text
    prompt = chat(prompt, where) if isinstance(prompt, list) else prompt
    text = prompt.strip() if isinstance(prompt, str) else isinstance(prompt, list) and prompt
    if not text or isinstance(prompt, list) and prompt[-1]["role"] == "assistant":
        cause = "it is empty, or its messages end with the answer"
        raise malformed(where, f"prompt {str(prompt)[:60]!r}", cause, EXPECTED)
    if own:
        return Row(
            where, prompt, "" if answer is None else answer if isinstance(answer, str) else json.dumps(answer), OWN
        )
    if task not in TASKS:
        cause = "a misspelt name, or a column that means something else: override it with NAME:WEIGHT:TASK"
        raise malformed(where, f"task {task!r}", cause, f"a task of {sorted(TASKS)}")
    reference = None
    cause = "an unlabelled row, or another notation"
    if task == "code":
        try:
            reference = code_answer(answer, row)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            cause = f"no tests, or tests of another form ({error})"
    elif task == "math":
        try:
            reference = math_answer(answer, row)
        except ValueError as error:
            cause = str(error)
    elif isinstance(answer, (str, int)) and not isinstance(answer, bool):
        reference = str(answer).rpartition("####")[2].strip()
    if not reference or not re.fullmatch(ANSWERS.get(task, ".*"), reference, re.S):
        raise malformed(
            where, f"answer {str(answer)[:60]!r}", cause, f"an answer for `{task}` (see plumbing/sources.py)"
        )
    return Row(where, prompt, reference, task)


# --- Prompts of all sources -------------------------------------------------------------------------------------------


def usable(found, task: str | None, columns, skipped: list[str] | None, own: bool) -> Iterator[Row]:
    """Yield the usable rows of `found`. The error of another is added to `skipped`, or raised if `skipped` is None."""
    for where, row in found:
        try:
            yield parse_row(row, where, task, columns, own)
        except ValueError as error:
            if skipped is None:
                raise ValueError(f"{error}; --skip-unusable leaves such rows out") from error
            skipped.append(str(error))


def load_source(
    name: str, task: str | None, columns, tokenizer, *, budget: int, validation: int, skip: bool, own: bool
) -> Data:
    """One source's prompts, tokenised and split; `load` numbers them."""
    if name in EMBEDDED:
        counts = ((EMBEDDED_PROMPTS[name], False), (validation, True))
        sets = (examples(name, count, seed=0, held_out=held) for count, held in counts)
        rows = ([render(Row(name, *pair, name), tokenizer) for pair in pairs] for pairs in sets)
        (train, long), (held, long_held) = (tokenise(part, tokenizer, budget=budget) for part in rows)
        return Data(train, held, long + long_held, 0)
    found = read(name)
    count = 0
    first = {}
    skipped = []
    try:
        for count, row in enumerate(usable(found, task, columns, skipped if skip else None, own), 1):
            row = render(row, tokenizer)
            first.setdefault(row.prompt, row)
    except (EOFError, zlib.error) as error:
        raise malformed(f"--data {name}", str(error), "an interrupted download", "a whole .gz file") from error
    prompts, too_long = tokenise(list(first.values()), tokenizer, budget=budget)
    if not prompts:
        cause = "an empty file, an interrupted download, or a small budget"
        got = f"{too_long} longer ones" + (f" and {len(skipped)} unusable rows ({skipped[0]})" if skipped else "")
        raise malformed(name, got, cause, f"a prompt of <= {budget} tokens")
    return Data(*split(prompts, validation), too_long, count - len(first), unusable=tuple(skipped))


def load(
    sources,
    tokenizer,
    *,
    budget: int,
    validation=VALIDATION_PROMPTS,
    columns=(("prompt",), ("answer",)),
    skip_unusable: bool = False,
    own: bool = False,
) -> Data:
    """The prompts of a run, tokenised and split (see the top of this file).

    sources     one or several, as --data takes them
    budget      tokens per prompt; longer prompts are left out before the split
    validation  prompts to hold out of every source
    columns     (names for the prompt's column, names for the answer's); of each, the first that a row has counts
    skip_unusable  leave out rows without a usable prompt or answer (some of APPS and TACO have no tests)
    own         a function of one's own judges the completions (--reward): answers may have any form, or be missing
    Raises ValueError for a malformed or repeated source, a malformed row, a prompt in training and validation, or if no
    prompt of a source fits the budget.
    """
    names, weights, tasks = zip(*map(parse_source, [sources] if isinstance(sources, str) else sources))
    if len(set(names)) < len(names):
        raise malformed("--data", str(names), "a source given twice: add up its weights", "different sources")
    parts = [
        load_source(*pair, columns, tokenizer, budget=budget, validation=validation, skip=skip_unusable, own=own)
        for pair in zip(names, tasks)
    ]
    called = labels(names)
    owners = Counter(task for part in parts for task in {prompt.task for prompt in (*part.train, *part.validation)})

    def numbered(sets):
        every = [(source, prompt) for source, prompts in enumerate(sets) for prompt in prompts]
        return [
            replace(prompt, index=i, source=source, curve=called[source] if owners[prompt.task] > 1 else prompt.task)
            for i, (source, prompt) in enumerate(every)
        ]

    train, held, too_long, duplicates, _, unusable = zip(*parts)
    data = Data(numbered(train), numbered(held), sum(too_long), sum(duplicates), weights, sum(unusable, ()))
    check_leakage(data)
    return data
