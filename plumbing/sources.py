"""Where prompts come from: the embedded tasks, files, folders and data sets of the hub, and the rows they hold.

    load(sources, tokenizer, budget=...) -> data.Data(train, validation, ...), before any process is started

A source is NAME[:WEIGHT][:TASK]: its share of the prompts drawn is its weight (default 1) over the sum of all weights;
with weight 0 it is validated and never trained on. TASK, a key of graders.TASKS, names the verifier of all its rows.
NAME is one of
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
If rows of a source have the same prompt, the first is trained on; the others are counted, and all are evaluated.

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
from functools import partial, reduce
from glob import escape, glob
from itertools import chain, zip_longest
from pathlib import Path

import data
from data import Row, malformed
from plumbing import references, store
from plumbing.typed import beside, closest, is_path, meant
from verify.graders import TASKS
from verify.programs import read_tests

FLAGS = ("--prompt-column", "--answer-column")
EXPECTED = 'one JSON object like {"prompt": text or chat messages, "answer": text or integer}'


# --- Sources ---------------------------------------------------------------------------------------------------------


def parse_source(text: str) -> tuple[str, float, str | None]:
    """(name, weight, task or None) of a source as --data takes it.

    Raises ValueError for an empty name, or a task beside an embedded source.

    >>> parse_source("code.jsonl:3:code"), parse_source("aime.jsonl:0"), parse_source("sorting")
    (('code.jsonl', 3.0, 'code'), ('aime.jsonl', 0.0, None), ('sorting', 1.0, None))
    """
    found = re.fullmatch(f"(.*?)(?::([0-9]+[.]?[0-9]*))?(?::({'|'.join(TASKS)}))?", text, re.S)
    assert found  # the first part takes any text
    name, weight, task = found.groups()
    if not name.strip():  # as a path it would be the working folder
        raise malformed("--data", repr(text), "a shell variable that is not set", "NAME[:WEIGHT][:TASK]")
    if task and name in data.EMBEDDED:
        expected = "NAME[:WEIGHT], without a task, for an embedded source"
        raise malformed("--data", repr(text), "it has its own task", expected)
    return name, float(weight or 1), task


def anchored(text: str) -> str:
    """A source as --data takes it, a file or folder with its whole path: it is found from any other folder too."""
    name, _, task = parse_source(text)
    path = os.path.abspath(os.path.expanduser(name))
    if name not in data.EMBEDDED and os.path.exists(path):
        return path + text[len(name) :]
    # A pattern, in a folder whose own name is none.
    path = os.path.join(escape(os.getcwd()), os.path.expanduser(name))
    return os.path.normpath(path) + text[len(name) :] if name not in data.EMBEDDED and glob(path) else text


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


def opened(path: str, newline: str):
    """A text file to be read; one that gzip packed is told by its first bytes."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    reader = gzip.open if packed else open
    return reader(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline=newline)  # check_text finds those


def read_lines(path: str) -> Iterator[tuple[str, object]]:
    """Yield (place, row) for each non-empty line of a JSONL file. Raises ValueError for a line that is not JSON."""
    with opened(path, newline="\n") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError) as error:
                cause = "one JSON document over many lines, or nesting too deep to read"
                if "escape" in str(error):
                    cause = "a backslash that is not doubled, as LaTeX needs it in JSON"
                raise malformed(f"{path}:{number}", f"{line[:60]!r} ({error})", cause, EXPECTED) from error
            if line.strip():
                yield f"{path}:{number}", row


def read_table(path: str) -> Iterator[tuple[str, dict]]:
    """Yield (place, row) for each row of a CSV or TSV file, every cell as the text it is: 007 stays 007.

    The separator is the one of , ; | and tab that the first row has most of. Raises ValueError for what is no table, a
    name that two columns have, a row of more cells than names, and for a quote that opens a cell but is closed nowhere,
    or within it: its text would swallow the rows behind it.
    """
    csv.field_size_limit(data.MAX_ANSWER)
    line = 0
    with opened(path, newline="") as file:
        first = next(filter(str.strip, file), "")
        file.seek(0)
        table = csv.reader(file, delimiter=max(",;\t|", key=first.count), strict=True)
        try:
            names = next(filter(None, table), [])
            if repeated := [name for name, count in Counter(names).items() if name and count > 1]:
                cause = "a joined table; one of these columns would be read in place of the other"
                got = f"{', '.join(repeated)} more than once"
                raise malformed(f"{path}:{table.line_num}", got, cause, "a name for each column")
            line = table.line_num
            for cells in filter(None, table):
                line = table.line_num
                if len(cells) > len(names):
                    got = f"{len(cells)} cells under {len(names)} names ({', '.join(names):.60})"
                    cause = "a text that should stand in quotes, or a first line that does not name the columns"
                    raise malformed(f"{path}:{line}", got, cause, "a table")
                yield f"{path}:{line}", dict(zip_longest(names, cells))
        except csv.Error as error:
            got = f"a row that runs to line {table.line_num} ({error})"
            cause = "a quote that opens a text and is not closed, or that stands within one and is not written twice"
            raise malformed(f"{path}:{line + 1}", got, cause, "a table") from error


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
    """Raise ValueError for a folder of which `datasets` reads nothing, or one kind of its files, or another folder."""
    files = glob("**", root_dir=escape(name), recursive=True)  # without hidden ones
    cause = ""
    if {"dataset_info.json", "state.json"} <= set(files):
        cause = f"save_to_disk wrote it, and load_dataset reads its files only: --data '{name}/data-*.arrow'"
    elif escape(name) != name:
        cause = "the name is a pattern too, by which `datasets` may read another folder: give it another name"
    if cause:
        raise malformed(f"--data {name}", "another kind of folder", cause, "a folder of data files")
    data_files = [path for path in files if os.path.basename(path) not in DESCRIPTIONS]
    one_kind(name, [path for path in data_files if ending(path) in READERS | BUILDERS])


def read(name: str) -> Iterator[tuple[str, object]]:
    """(place, row) of a source that is not embedded. Raises ValueError, with what is there, if there is none."""
    # A file of this very name comes first: data[1].jsonl is also a pattern, which data1.jsonl matches.
    files = [name] if os.path.isfile(name) else sorted(filter(os.path.isfile, glob(name)))
    kind = one_kind(name, files or [name])
    if files and kind in READERS:
        return chain.from_iterable(map(READERS[kind], files))
    if files and kind in BUILDERS:
        return read_dataset(name, path=BUILDERS[kind], data_files=[escape(path) for path in files])
    if files:
        cause = "lines of text, which have no answers" if kind == ".txt" else "a file of another kind"
        expected = f"a file of a kind that is read ({', '.join((*READERS, *BUILDERS))})"
        raise malformed(f"--data {name}", f"a file ending in {kind or 'nothing'}", cause, expected)
    if os.path.isdir(name):
        check_folder(name)
        return read_dataset(name, path=name)
    hub = re.fullmatch("([^/]+/[^/]+)(?:/([^/]+))?", name)
    if hub and not is_path(name, longest=3) and kind not in READERS | BUILDERS:
        return read_dataset(name, path=hub[1], name=hub[2])
    head, colon, end = name.rpartition(":")
    wrong = f"; {end} is no weight and no task ({', '.join(TASKS)})" if colon and os.path.exists(head) else ""
    guess = wrong or meant(name, data.EMBEDDED) or f"; {beside(name)}"
    expected = f"{', '.join(data.EMBEDDED)}, a file, a folder or OWNER/NAME on the hub"
    raise ValueError(f"--data {name}: expected {expected}; there is no such file or folder{guess}")


def read_dataset(source: str, **place) -> Iterator[tuple[str, dict]]:
    """(place, row) of the rows that `datasets.load_dataset` finds; ValueError if it finds none or is not installed."""
    cause = "a misspelt name, no network, no train split, several configurations, or: pip install datasets"
    failures = (ImportError, OSError, ValueError)
    try:
        import datasets  # not a requirement: the embedded tasks, JSONL and CSV do without it

        failures += (datasets.exceptions.DatasetsError,)
        rows = datasets.load_dataset(**place, split="train")
    except failures as error:
        expected = f"{', '.join(data.EMBEDDED)}, a file, or what datasets.load_dataset reads (see plumbing/sources.py)"
        raise malformed(f"--data {source}", f"{type(error).__name__}: {error}", cause, expected) from error
    return ((f"{source}, row {number}", row) for number, row in enumerate(rows, 1))


def field(row: dict, names: Iterable[str]):
    """The first of the named fields that the row has, or None; "a.b" is the field "a.b", else field b of field a."""
    for name in names:
        value = row[name] if name in row else reduce(inner, name.split("."), row)
        if value is not None:
            return value


def inner(value, key):
    return value.get(key) if isinstance(value, dict) else None


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
    there = [name for name, value in row.items() if not isinstance(value, dict)]
    there += [f"{name}.{inner}" for name, value in row.items() if isinstance(value, dict) for inner in value]
    if found := [name for name in names if name in there]:
        return malformed(where, f"{found[0]} without a value", "an unlabelled row", EXPECTED)
    got = f"the fields {sorted(there)}, none of which is {' or '.join(names)}"
    guess = closest(names[0], there) or "NAME"
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
    found = loaded(text) if re.match(r"\s*\[\s*\{", text) else None
    messages = [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []
    return found if {"role", "content", "from"} & set().union(*messages) else text


def read_prompt(prompt, where: str):
    """A prompt, text or chat messages. Raises ValueError for one that is neither, is empty, or ends with the answer."""
    prompt = spelt_chat(prompt) if isinstance(prompt, str) else prompt
    prompt = chat(prompt, where) if isinstance(prompt, list) else prompt
    cause = ""
    if not isinstance(prompt, (str, list)):
        cause = "a column of another meaning: it is neither a text nor a list of messages"
    elif not prompt or isinstance(prompt, str) and prompt.isspace():
        cause = "an empty row"
    elif isinstance(prompt, list) and prompt[-1]["role"] == "assistant":
        cause = "messages that end with the answer"
    if cause:
        raise malformed(where, f"prompt {str(prompt)[:60]!r}", cause, EXPECTED)
    return prompt


def read_answer(answer, row: dict, task: str, where: str) -> str:
    """The reference of a row's answer, in the form that its grader reads. Raises ValueError if there is none."""
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
    form = data.ANSWERS.get(task, ".*")
    if not (reference and references.right_for_itself(reference, task) and re.fullmatch(form, reference, re.S)):
        expected = f"an answer for `{task}` (see plumbing/sources.py)"
        raise malformed(where, f"answer {str(answer)[:60]!r}", cause, expected)
    return reference


def parse_row(row, where: str, task: str | None, columns, own: bool = False, source: int = 0) -> Row:
    """Check a row's fields. task, columns: those of its source. Raises ValueError naming `where` if it is unusable.

    own     as in `load`: any answer will do, and none
    source  its position
    """
    if not isinstance(row, dict):
        raise malformed(where, f"a {type(row).__name__}", "one JSON array instead of a line per row", EXPECTED)
    prompt, answer = values = [field(row, names) for names in columns]
    for flag, names, value in zip(FLAGS, columns, values):
        if value is None and not (own and flag == "--answer-column"):
            raise missing(row, where, names, flag)
    prompt = read_prompt(prompt, where)
    if own:
        text = "" if answer is None else answer if isinstance(answer, str) else json.dumps(answer)
        check_text(where, [prompt, text], code=True)
        return Row(where, prompt, text, OWN, source)
    task = str(task or row.get("task") or "math")
    if task not in TASKS:
        cause = "a misspelt name, or a column that means something else: override it with NAME:WEIGHT:TASK"
        raise malformed(where, f"task {task!r}", cause, f"a task of {sorted(TASKS)}")
    check_text(where, prompt, code=task == "code")
    check_text(where, answer.rpartition("####")[2] if isinstance(answer, str) else answer, code=task == "code")
    return Row(where, prompt, read_answer(answer, row, task, where), task, source)


def texts(value) -> list[str]:
    """All texts within a value."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in texts(part)]


# JSON reads \frac with one backslash as a form feed and rac. Behind a tab or the end of a line, only these letters are
# the rest of a command; those that are words too (\ne, \nu, \parallel) not where prose may end a line.
COMMANDS = {
    r"\t": "ext extbf extit extrm extsf extsc exttt extstyle extnormal heta imes an anh au frac o op ilde binom ag "
    "riangle riangleq riangleleft riangleright herefore hickapprox hicksim hinspace woheadrightarrow",
    r"\n": "eq abla ot otin leq geq subseteq supseteq atural earrow warrow onumber ormalsize olimits ewline ewcommand "
    "rightarrow leftarrow leftrightarrow Rightarrow Leftarrow sim cong gtr prec succ vdash",
    r"(?<![^\W\d_]{2})(?<![.:;,!?\n\r])\n": "u e(?![).:]) i(?![).:]) eg mid less parallel exists",
    r"\r": "ho ight ightarrow ightharpoonup ightleftharpoons angle floor ceil vert Vert brace brack m oot aise times "
    "ule ef",
}
EATEN = re.compile(
    r"[\b\f\v][A-Za-z]*|"
    + "|".join(f"{behind}(?:{'|'.join(rest.split())})(?![A-Za-z])" for behind, rest in COMMANDS.items())
)


def check_text(where: str, value, *, code: bool) -> None:
    """Raise ValueError for a text that is no Unicode, or in which JSON has read the beginning of a LaTeX command.

    code  tabs and ends of lines may stand before anything
    """
    for text in texts(value):
        if text.isprintable():  # most are, and that is quickly found
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            cause = "a file that is not UTF-8, or half of a \\u pair"
            raise malformed(where, f"{text[:60]!r}", cause, "text in UTF-8") from error
        if found := not code and EATEN.search(text):
            near = text[max(0, found.start() - 20) : found.end() + 20]
            cause = "LaTeX with one backslash in JSON, which makes a control character of \\f: double the backslash"
            raise malformed(where, f"{near!r}", cause, "LaTeX as \\\\frac in JSON")


# --- Prompts of all sources ------------------------------------------------------------------------------------------


def template_marks(ready) -> tuple[str, ...]:
    """What the chat template, or the tokenizer without one, writes around a prompt: texts, and special tokens."""
    question = "a question"
    try:
        text = ready.tokenizer.decode(ready.ids(ready.render(Row("", question, "", ""))))
    except ValueError:  # the rows will show it
        return ()
    special = (token.content for token in ready.tokenizer.added_tokens_decoder.values() if token.special)
    marks = [*map(str.strip, text.split(question)), *(one for one in special if one in text)]
    return tuple(mark for mark in marks if len(mark) > 2)  # many questions end with a colon


def usable(found, task: str | None, number: int, ready, columns, own: bool, skipped: list[str] | None) -> Iterator[Row]:
    """Yield the usable rows of `found`. The error of another is added to `skipped`, or raised if `skipped` is None."""
    for where, row in found:
        try:
            row = parse_row(row, where, task, columns, own, number)
            ready.check(row)
        except ValueError as error:
            if skipped is None:
                raise ValueError(f"{error}; --skip-unusable leaves such rows out") from error
            skipped.append(str(error))
            continue
        yield row


def distinct(name: str, rows: Iterable[Row], marks: tuple[str, ...], found: data.Data, evaluate: bool) -> tuple:
    """(rows with their prompt for the first time; to `evaluate`, those that repeat one; tasks of all).

    Rows are as data.packed makes them. To `found` it adds how many repeat a prompt, and warnings of rows that do so
    with another answer, and of rows that begin or end with one of `marks`.
    """
    first: list[bytes] = []
    repeated: list[bytes] = []
    places: dict[str, int] = {}  # data.identity -> place in `first`
    tasks = set()
    conflicts = []
    rendered = []
    try:
        for row in rows:
            tasks.add(row.task)
            known = len(first)
            place = places.setdefault(data.identity(row.prompt), known)
            if place == known:
                first.append(data.packed(row))
            else:
                found.duplicates += 1
                repeated += [data.packed(row)] if evaluate else []
                if data.unpacked(first[place]).answer != row.answer:
                    conflicts.append(f"{row.where} of {data.unpacked(first[place]).where}")
            if any(text.startswith(marks) or text.endswith(marks) for text in map(str.strip, texts(row.prompt))):
                rendered.append(row.where)
    except (EOFError, zlib.error) as error:
        raise malformed(f"--data {name}", str(error), "an interrupted download", "a whole .gz file") from error
    if rendered:
        found.warnings.append(
            f"{len(rendered)} rows, the first {rendered[0]}, begin or end with what the chat template or the tokenizer "
            "writes itself, and will have it twice; expected bare questions, or chat messages"
        )
    if conflicts and not evaluate:
        said = "rows repeat a prompt with another answer, and the earlier row counts:"
        found.warnings.append(f"{len(conflicts)} {said} {', '.join(conflicts[:3])}")
    return first, repeated, tasks


def load(
    sources,
    tokenizer,
    *,
    budget: int,
    validation=data.VALIDATION_PROMPTS,
    columns=(("prompt",), ("answer",)),
    skip_unusable: bool = False,
    own: bool = False,
    vocabulary: int | None = None,
    evaluate: bool = False,
) -> data.Data:
    """The prompts of a run, split, those for validation tokenised (see the top of this file).

    sources     one or several, as --data takes them
    budget      tokens per prompt; longer prompts are left out when they are drawn
    validation  prompts to hold out of every source
    columns     (names for the prompt's column, names for the answer's); of each, the first that a row has counts
    skip_unusable  leave out rows without a usable prompt or answer (some of APPS and TACO have no tests)
    own         a function of one's own grades the completions (--reward): answers may have any form, or be missing
    vocabulary  tokens that the model knows, if not all of the tokenizer's
    evaluate    nothing is trained on: sources may share rows, and rows a prompt
    Raises ValueError for a malformed or repeated source, a malformed row, a prompt in training and validation, or if no
    prompt of a source fits the budget.
    """
    names, weights, tasks = zip(*map(parse_source, [sources] if isinstance(sources, str) else sources))
    if len(set(names)) < len(names):
        raise malformed("--data", str(names), "a source given twice: add up its weights", "different sources")
    ready = data.Tokeniser(tokenizer, budget=budget, vocabulary=vocabulary)
    found = data.Data(data.Prompts(ready), data.Prompts(ready), weights=weights)
    owned: list[set[str]] = []  # by source: its tasks
    held: list[tuple[str, data.Prompt]] = []  # (data.identity, prompt)
    for number, (name, weight, task) in enumerate(zip(names, weights, tasks)):
        if name in data.EMBEDDED:
            train, rows = embedded(name, number, validation)
            new = list(filter(None, (drawn(row, ready) for row in rows)))
            too_long = len(rows) - len(new)
            owned.append({name})
        else:
            each = usable(read(name), task, number, ready, columns, own, found.unusable if skip_unusable else None)
            first, repeated, its_tasks = distinct(name, each, template_marks(ready), found, evaluate)
            share = data.HELD_OUT if weight else 1
            train, new, too_long = data.split(first, validation, share=share, ready=partial(drawn, ready=ready))
            if not new:
                got = f"{too_long} longer ones" + "".join(f" and unusable rows ({row})" for row in found.unusable[:1])
                cause = "an empty file, an interrupted download, or a small budget"
                raise malformed(name, got, cause, f"a prompt of <= {budget} tokens")
            found.others.rows += repeated if weight else repeated + train
            owned.append(its_tasks)
        train = train if weight else []
        held += new
        found.train.rows += train
        found.sizes.append(len(train))
        found.too_long += too_long
    number_validation(found, held, labels(names), owned)
    if not evaluate:
        data.check_leakage({identity: prompt.where for identity, prompt in held}, found.train)
    return found


def drawn(packed: bytes, ready) -> tuple[str, data.Prompt] | None:
    """(data.identity, prompt) of a row; None if it is too long."""
    row = data.unpacked(packed)
    prompt = ready(row)
    return prompt and (data.identity(row.prompt), prompt)


def embedded(name: str, number: int, validation: int) -> tuple[list[bytes], list[bytes]]:
    """(training rows, validation rows) of an embedded task."""
    counts = (data.EMBEDDED_PROMPTS[name], False), (validation, True)
    sets = (data.examples(name, count, seed=0, held_out=held) for count, held in counts)
    train, held = ([data.packed(Row(name, *pair, name, number)) for pair in pairs] for pairs in sets)
    return train, held


def number_validation(found: data.Data, held, names: Sequence[str], owned: Sequence[set[str]]) -> None:
    """Name the curves, by task, or by source if several train on the task or none does; add the validation prompts."""
    owners = Counter(task for tasks, weight in zip(owned, found.weights) if weight for task in tasks)
    for number, (name, tasks, weight) in enumerate(zip(names, owned, found.weights)):
        found.tasks |= tasks
        found.train.ready.curves |= {(number, task): name for task in tasks if owners[task] > 1 or not weight}
    for index, (_, prompt) in enumerate(held):
        found.validation.append(replace(prompt, index=index, curve=found.train.ready.curve(prompt)))
