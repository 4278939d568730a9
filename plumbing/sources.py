"""Where prompts come from: the embedded tasks, files, folders and data sets of the hub, and the rows they hold.

    load(sources, tokenizer, budget=...) -> data.Data(train, validation, ...), before any process is started

A source is NAME[:WEIGHT][:TASK]: its share of the prompts drawn is its weight (default 1) over the sum of all weights;
TASK, a key of graders.TASKS, names the verifier of all its rows. NAME is one of
  arithmetic, sorting, tiny  the embedded tasks (data.py)
  FILE.jsonl  (or .ndjson) one {"prompt": text or [{"role": ..., "content": ...}, ...], "answer": text or integer} per
              line, and optionally "task" (default "math"); other fields and empty lines are ignored.
  FILE.csv    (or .tsv) such rows as a table whose first line names the columns; every cell is text.
  any other   such rows from `datasets.load_dataset`, train split: a .parquet, .json or .arrow file, a folder,
              OWNER/NAME or OWNER/NAME/CONFIG on the hub.
A file's name may be a pattern and have capitals; text files may be packed (.gz). The files of a pattern or a folder are
of one kind.
--prompt-column and --answer-column name other columns; several names may be given, for several sources, and the first
that a row has counts. "reward_model.ground_truth" is a field of that name, or ground_truth within reward_model. If an
answer holds "####" (GSM8K), only what follows is taken; references.py takes off what else is no value. The answer of a
code row is its tests, in a form that graders.py reads, as JSON text or as an object. A row without a usable prompt or
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
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from glob import glob
from itertools import chain, zip_longest
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
from plumbing import references, store
from plumbing.typed import beside, closest, is_path, meant
from verify.graders import TASKS
from verify.programs import read_tests

USUAL = {  # columns of well-known data sets, to be suggested
    "--prompt-column": ("question", "problem", "instruction", "query", "input", "messages"),
    "--answer-column": ("solution", "final_answer", "ground_truth", "output", "response", "target", "label"),
}
PARTS = 5  # sources in one folder; a shell makes more of a pattern without quotes
EXPECTED = 'one JSON object like {"prompt": text or chat messages, "answer": text or integer}'


# --- Sources ---------------------------------------------------------------------------------------------------------


def parse_source(text: str) -> tuple[str, float, str | None]:
    """(name, weight, task or None) of a source as --data takes it.

    Raises ValueError for an empty name, a weight of 0, or a task beside an embedded source.

    >>> parse_source("code.jsonl:3:code"), parse_source("sorting")
    (('code.jsonl', 3.0, 'code'), ('sorting', 1.0, None))
    """
    found = re.fullmatch(f"(.*?)(?::([0-9]+[.]?[0-9]*))?(?::({'|'.join(TASKS)}))?", text, re.S)
    assert found  # the first part takes any text
    name, weight, task = found.groups()
    if not name.strip():  # as a path it would be the working folder
        raise malformed("--data", repr(text), "a shell variable that is not set", "NAME[:WEIGHT][:TASK]")
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


def read_cells(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line that it begins in, cells) for each row of a CSV or TSV file that is not empty.

    The separator is the one of , ; | and tab that the first row has most of. Raises ValueError for what is no table and
    for a quote that opens a cell but is closed nowhere, or within it: its text would swallow the rows behind it.
    """
    csv.field_size_limit(MAX_ANSWER)
    with opened(path, encoding="utf-8-sig", newline="") as file:
        line = 1
        try:
            first = next(filter(str.strip, file), "")
            file.seek(0)
            table = csv.reader(file, delimiter=max(",;\t|", key=first.count), strict=True)
            for cells in table:
                if cells:
                    yield line, cells
                line = table.line_num + 1
        except csv.Error as error:
            got = f"a row that runs to line {table.line_num} ({error})"
            cause = "a quote that opens a text and is not closed, or that stands within one and is not written twice"
            raise malformed(f"{path}:{line}", got, cause, "a table") from error
        except UnicodeDecodeError as error:
            raise malformed(f"{path}:{line}", str(error), "a file of another kind", "a table in UTF-8") from error


def read_table(path: str) -> Iterator[tuple[str, dict]]:
    """Yield (place, row) for each row of a CSV or TSV file, every cell as the text it is: 007 stays 007.

    Raises ValueError for a name that two columns have, and for a row of more cells than names.
    """
    rows = read_cells(path)
    head, names = next(rows, (1, []))
    if repeated := [name for name, count in Counter(names).items() if name and count > 1]:
        cause = "a joined table; one of these columns would be read in place of the other"
        raise malformed(f"{path}:{head}", f"{', '.join(repeated)} more than once", cause, "a name for each column")
    for line, cells in rows:
        if len(cells) > len(names):
            got = f"{len(cells)} cells under {len(names)} names ({', '.join(names):.60})"
            cause = "a text that should stand in quotes, or a first line that does not name the columns"
            raise malformed(f"{path}:{line}", got, cause, "a table")
        yield f"{path}:{line}", dict(zip_longest(names, cells))


READERS = {".jsonl": read_lines, ".ndjson": read_lines, ".csv": read_table, ".tsv": read_table}
OWN = "own"  # the task of rows that --reward grades
BUILDERS = {".parquet": "parquet", ".json": "json", ".arrow": "arrow"}  # that `datasets` has
DESCRIPTIONS = {"config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}  # no rows


def one_kind(name: str, files: Iterable[str]) -> str:
    """The ending of all files, "" if there are none. Raises ValueError if they differ, naming one of each kind."""
    kinds = {ending(path): os.path.basename(path) for path in sorted(files)}
    if len(kinds) > 1:
        got = f"{len(kinds)} kinds: {', '.join(kinds.values())}"
        cause = "other files beside the data; a pattern in quotes, as 'FOLDER/*.jsonl', names those of one kind"
        raise malformed(f"--data {name}", got, cause, "files of one kind")
    return next(iter(kinds), "")


def check_folder(name: str) -> None:
    """Raise ValueError for a folder of which `datasets` would read nothing, or one kind of its files without a word."""
    if {"dataset_info.json", "state.json"} <= set(os.listdir(name)):
        cause = f"load_dataset does not read such folders; it reads their files: --data '{name}/data-*.arrow'"
        raise malformed(f"--data {name}", "what save_to_disk wrote", cause, "a folder of data files")
    files = glob("**", root_dir=name, recursive=True)  # without hidden ones
    data = [path for path in files if os.path.basename(path) not in DESCRIPTIONS]
    one_kind(name, [path for path in data if ending(path) in READERS | BUILDERS])


def read(name: str) -> Iterator[tuple[str, object]]:
    """(place, row) of a source that is not embedded. Raises ValueError, with what is there, if there is none."""
    files = [path for path in sorted(glob(name)) or [name] if os.path.isfile(path)]
    kind = one_kind(name, files or [name])
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
    if os.path.isdir(name):
        check_folder(name)
    elif hub:
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
    """The first of the named fields that the row has, or None; "a.b" is the field "a.b", else field b of field a."""

    def step(value, key):
        return value.get(key) if isinstance(value, dict) else None

    found = (row[name] if name in row else reduce(step, name.split("."), row) for name in names)
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
        return store.unpickled(zlib.decompress(base64.b64decode(text, validate=True)))
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
        if name in row or isinstance(parent, dict) and name.rpartition(".")[2] in parent:
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


def spelt_chat(text: str):
    """The chat messages that a text spells in JSON or Python; any other text as it is."""
    found = loaded(text) if re.match(r"\s*\[\s*\{", text) else text
    messages = [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []
    return found if {"role", "content", "from"} & set().union(*messages) else text


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
    prompt = spelt_chat(prompt) if isinstance(prompt, str) else prompt
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
        reference = references.legible(str(answer)).rpartition("####")[2].strip()
    sound = reference and references.right_for_itself(reference, task)
    if not sound or not re.fullmatch(ANSWERS.get(task, ".*"), reference, re.S):
        raise malformed(
            where, f"answer {str(answer)[:60]!r}", cause, f"an answer for `{task}` (see plumbing/sources.py)"
        )
    return Row(where, prompt, reference, task)


# --- Prompts of all sources ------------------------------------------------------------------------------------------


def warn_of_parts(names: Sequence[str]) -> None:
    """Print a warning if more than PARTS sources are files of one folder."""
    folders = Counter(os.path.dirname(name) for name in names if os.path.isfile(name))
    folder, count = max(folders.items(), key=lambda item: item[1], default=("", 0))
    if count > PARTS and int(os.environ.get("RANK", "0")) == 0:
        print(
            f"WARNING: {count} files of {folder or '.'} are as many sources, each with its own share of the prompts "
            "and its own validation curve; a pattern in quotes, as 'FOLDER/*.jsonl', is one source",
            file=sys.stderr,
        )


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
    own         a function of one's own grades the completions (--reward): answers may have any form, or be missing
    Raises ValueError for a malformed or repeated source, a malformed row, a prompt in training and validation, or if no
    prompt of a source fits the budget.
    """
    names, weights, tasks = zip(*map(parse_source, [sources] if isinstance(sources, str) else sources))
    if len(set(names)) < len(names):
        raise malformed("--data", str(names), "a source given twice: add up its weights", "different sources")
    warn_of_parts(names)
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
