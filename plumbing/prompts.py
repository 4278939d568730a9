"""Where prompts come from: the embedded tasks, files, folders and data sets of the hub, and the rows they hold.

    read_sources(sources, tokenizer, budget=...) -> data.Data(train, validation, ...), before any process is started

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

Test: pytest tests/test_prompts.py
"""

import base64
import csv
import gzip
import json
import os
import pickletools
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from glob import escape, glob
from itertools import chain, islice
from pathlib import Path
from tarfile import TarError
from typing import Any
from zipfile import BadZipFile

import data
from data import Row, malformed
from plumbing import references
from verify.graders import TASKS
from verify.programs import read_tests

MAX_TESTS = 2 * data.MAX_ANSWER  # bytes of packed tests; written anew they have to fit data.MAX_ANSWER
EXPECTED = 'a row like {"prompt": text or chat messages, "answer": text or integer}'


class TooLong(Exception):
    """A row's answer is larger than any that is used."""


# --- Sources ---------------------------------------------------------------------------------------------------------


def parse_source(text: str) -> tuple[str, float, str | None]:
    """(name, weight, task or None) of a source as --data takes it.

    Raises ValueError for an empty name.

    >>> parse_source("code.jsonl:3:code"), parse_source("aime.jsonl:0"), parse_source("sorting")
    (('code.jsonl', 3.0, 'code'), ('aime.jsonl', 0.0, None), ('sorting', 1.0, None))
    """
    match = re.fullmatch(f"(.*?)(?::([0-9]+[.]?[0-9]*))?(?::({'|'.join(TASKS)}))?", text, re.S)
    assert match  # the first part takes any text
    name, weight, task = match.groups()
    if not name.strip():  # as a path it would be the working folder
        raise malformed("--data", repr(text), "a shell variable that is not set", "NAME[:WEIGHT][:TASK]")
    return name, float(weight or 1), task


def anchored(text: str) -> str:
    """A source as --data takes it, a file or folder with its whole path: it is found from any other folder too."""
    name, *_ = parse_source(text)
    if name in data.EMBEDDED_TASKS:
        return text
    given = os.path.expanduser(name)
    pattern = os.path.join(escape(os.getcwd()), given)  # in a folder whose own name is none
    for path, there in ((os.path.abspath(given), os.path.exists), (os.path.normpath(pattern), glob)):
        if there(path):
            return path + text[len(name) :]
    return text


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
    """A text file to be read, packed or not. What is no UTF-8 is kept for check_text to find."""
    reader = gzip.open if path.lower().endswith(".gz") else open
    return reader(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def read_lines(path: str) -> Iterator[tuple[str, object]]:
    """Yield (place, row) for each non-empty line of a JSONL file. Raises ValueError for a line that is not JSON."""
    with opened(path, newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            place = f"{path}:{number}"
            try:
                row = json.loads(line, object_pairs_hook=unique)
            except (ValueError, RecursionError) as error:
                check_text(place, line, program=True)
                cause = "one JSON document over many lines, or a backslash that is not doubled, as in LaTeX"
                raise malformed(place, f"{line[:60]!r} ({error})", cause, EXPECTED) from error
            yield place, row


def unique(pairs: list) -> dict:
    """The object of these pairs of JSON. Raises ValueError for a name that occurs twice: only one would count."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a name occurs twice among {', '.join(name for name, _ in pairs)}")
    return found


def read_table(path: str) -> Iterator[tuple[str, dict]]:
    """Yield (place, row) for each row of a CSV or TSV file, every cell as the text it is: 007 stays 007.

    The separator is the one of , ; | and tab that the first line has most of. Raises ValueError for what is no table, a
    name that two columns have, a row of more cells than names, and for a quote that opens a cell but is closed nowhere,
    or within it: its text would swallow the rows behind it.
    """
    csv.field_size_limit(data.MAX_ANSWER)
    line = 0
    with opened(path, newline="") as file:
        first = file.readline()
        file.seek(0)
        table = csv.DictReader(file, delimiter=max(",;\t|", key=first.count), strict=True)
        try:
            names = [name for name in table.fieldnames or [] if name]
            check_text(f"{path}:1", names, program=True)
            if len(set(names)) < len(names):
                cause = "a joined table; one of these columns would be read in place of the other"
                raise malformed(f"{path}:1", f"columns {names}, two the same", cause, "a name for each column")
            for row in table:
                line = table.reader.line_num
                if None in row:
                    cause = "a text that should stand in quotes, or a first line that does not name the columns"
                    raise malformed(f"{path}:{line}", f"more cells than the names {names}", cause, "a table")
                yield f"{path}:{line}", row
        except csv.Error as error:
            got = f"a row that runs to line {table.reader.line_num} ({error})"
            cause = "a quote that opens a text and is not closed, or that stands within one and is not written twice"
            raise malformed(f"{path}:{line + 1}", got, cause, "a table") from error


READERS = {".jsonl": read_lines, ".ndjson": read_lines, ".csv": read_table, ".tsv": read_table}
OWN = "own"  # the task of rows that --reward grades
BUILDERS = {".parquet": "parquet", ".json": "json", ".arrow": "arrow"}  # that `datasets` has
DESCRIPTIONS = {"config.json", "dataset_info.json", "dataset_infos.json"}  # no rows


def one_kind(name: str, files: Iterable[str]) -> str:
    """The ending of all files, "" if there are none. Raises ValueError if they differ, naming one of each kind."""
    kinds = {ending(path): os.path.basename(path) for path in sorted(files)}
    if len(kinds) > 1:
        got = f"{len(kinds)} kinds: {', '.join(kinds.values())}"
        cause = "other files beside the data; a pattern in quotes, as 'FOLDER/*.jsonl', names those of one kind"
        raise malformed(f"--data {name}", got, cause, "files of one kind")
    return next(iter(kinds), "")


def read(name: str) -> Iterator[tuple[str, Any]]:
    """(place, row) of a source that is not embedded. Raises ValueError, with what is there, if there is none."""
    if os.path.isdir(name):
        if escape(name) != name:
            cause = "by that name `datasets` may read another folder: give it another one"
            raise malformed(f"--data {name}", "a pattern", cause, "a folder whose name is no pattern")
        files = glob("**", root_dir=name, recursive=True)  # without hidden ones
        rows = [path for path in files if os.path.basename(path) not in DESCRIPTIONS]
        one_kind(name, [path for path in rows if ending(path) in READERS | BUILDERS])  # of which `datasets` takes one
        return read_dataset(name, path=name)
    # A file of this very name comes first: data[1].jsonl is also a pattern, which data1.jsonl matches.
    files = [name] if os.path.isfile(name) else sorted(filter(os.path.isfile, glob(name)))
    kind = one_kind(name, files or [name])
    if files and kind in READERS:
        return chain.from_iterable(map(READERS[kind], files))
    if files and kind in BUILDERS:
        return read_dataset(name, path=BUILDERS[kind], data_files=[escape(path) for path in files])
    if files:
        cause = "lines of text, which have no answers, or another kind of table"
        raise malformed(f"--data {name}", f"a file ending in {kind or 'nothing'}", cause, ", ".join(READERS | BUILDERS))
    hub = re.fullmatch("([^/]+/[^/]+)(?:/([^/]+))?", name)
    if hub and not os.path.isdir(name.partition("/")[0]) and kind not in READERS | BUILDERS:
        return read_dataset(name, path=hub[1], name=hub[2])
    expected = f"{', '.join(data.EMBEDDED_TASKS)}, a file, a folder or OWNER/NAME on the hub"
    raise ValueError(f"--data {name}: expected {expected}; there is no such file or folder")


def read_dataset(source: str, **place) -> Iterator[tuple[str, dict]]:
    """(place, row) of the rows that `datasets.load_dataset` finds; ValueError if it finds none or is not installed."""
    cause = "a misspelt name, no network, no train split, several configurations, or: pip install datasets"
    failures = (ImportError, OSError, ValueError, EOFError, zlib.error, BadZipFile, TarError)
    try:
        import datasets  # not a requirement: the embedded tasks, JSONL and CSV do without it

        failures += (datasets.exceptions.DatasetsError,)
        rows = datasets.load_dataset(**place, split="train")
    except failures as error:
        expected = f"{', '.join(data.EMBEDDED_TASKS)}, a file, or what datasets.load_dataset reads (docs/data.md)"
        reason = error.__cause__ or error  # "An error occurred while generating the dataset" says nothing
        raise malformed(f"--data {source}", f"{type(reason).__name__}: {reason}", cause, expected) from error
    return ((f"{source}, row {number}", row) for number, row in enumerate(rows, 1))


def field(row: dict, names: Iterable[str]):
    """The first of the named fields that the row has, or None; "a.b" is the field "a.b", else field b of field a."""
    for name in names:
        value = row
        for key in [name] if name in row else name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value


def missing(row: dict, where: str, names: Sequence[str], flag: str) -> ValueError:
    """The error for a row without a value under any of these names, which `flag` gives."""
    there = [name for name, value in row.items() if value is not None and not isinstance(value, dict)]
    there += [f"{name}.{inner}" for name, value in row.items() if isinstance(value, dict) for inner in value]
    cause = f"an unlabelled row, or another name of the column: {flag} NAME"
    return malformed(where, f"nothing under {' or '.join(names)}, but under {sorted(there)}", cause, EXPECTED)


# The operations of a pickled text. No other pickle is read: unpickling may call anything, and fill all memory.
TEXT = {
    "PROTO",
    "FRAME",
    "UNICODE",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
    "MEMOIZE",
    "PUT",
    "BINPUT",
    "STOP",
}


def private_tests(text: str):
    """The tests that LiveCodeBench keeps packed (base64 of zlib of a pickled JSON text), or that a text spells.

    Raises TooLong if those packed are of more than MAX_TESTS bytes, which are never held in memory.
    """
    with suppress(ValueError, zlib.error):
        inflater = zlib.decompressobj()
        pickled = inflater.decompress(base64.b64decode(text, validate=True), MAX_TESTS)
        if inflater.unconsumed_tail:
            raise TooLong
        operations = list(islice(pickletools.genops(pickled), len(TEXT)))
        if {operation.name for operation, _, _ in operations} <= TEXT:
            [packed] = [value for _, value, _ in operations if isinstance(value, str)]
            return json.loads(packed)  # not as a Python literal too, which takes 500 bytes for each of the text's
    return references.loaded(text)


def code_answer(answer, row: dict) -> str:
    """A code row's tests, text or objects, as JSON text in a form that the verifier reads.

    A function's name may stand in the row's `metadata` (LiveCodeBench, DeepCoder's lcbv5). Tests in another form raise
    ValueError, LookupError, TypeError, AttributeError or RecursionError.
    """
    tests = private_tests(answer) if isinstance(answer, str) else answer
    if isinstance(tests, dict) and {"input", "output"} <= tests.keys():  # CodeContests
        tests = {"inputs": tests["input"], "outputs": tests["output"]}
    name = field({"of": references.loaded(row.get("metadata"))}, ["of.func_name", "of.fn_name"])
    if name and isinstance(tests, list):
        tests = [{"fn_name": name} | test for test in tests]
    texts(tests)  # takes more of the stack than a worker will: RecursionError for what could not be read there
    text = json.dumps(tests)
    read_tests(text)
    return text


def chat(prompt: list, where: str) -> list[dict]:
    """Chat messages, each with its content as one text. Raises ValueError for another form, or parts without text."""
    whole = []
    for message in prompt:
        try:
            parts = message["content"] if isinstance(message["content"], list) else [message["content"]]
            content = "".join(part if isinstance(part, str) else part["text"] for part in parts)
            whole.append({"role": "" + message["role"], "content": content})
        except (KeyError, TypeError) as error:
            cause = "another form of chat, or an image or sound"
            expected = 'messages like {"role": "user", "content": text}'
            raise malformed(where, f"the message {str(message)[:90]!r}", cause, expected) from error
    return whole


def read_prompt(prompt, where: str):
    """A prompt, text or chat messages. Raises ValueError for one that is neither, is empty, or ends with the answer."""
    if isinstance(prompt, str) and re.match(r"\s*\[\s*\{.*['\"](?:role|from)['\"]\s*:", prompt, re.S):
        prompt = references.loaded(prompt)  # chat messages as text
    prompt = chat(prompt, where) if isinstance(prompt, list) else prompt
    cause = ""
    if not isinstance(prompt, (str, list)):
        cause = "a column of another meaning"
    elif not prompt or isinstance(prompt, str) and prompt.isspace():
        cause = "an empty row"
    elif isinstance(prompt, list) and prompt[-1]["role"] == "assistant":
        cause = "messages that end with the answer"
    if cause:
        raise malformed(where, f"prompt {str(prompt)[:60]!r}", cause, EXPECTED)
    return prompt


def read_answer(answer, row: dict, task: str, where: str) -> str:
    """The reference of a row's answer, in the form that its grader reads. Raises ValueError if there is none."""
    reference = ""
    cause = "an unlabelled row, no tests, or another notation"
    try:
        if task == "code":
            reference = code_answer(answer, row)
        elif task == "math" and {"nums", "numbers"} & row.keys() and "target" in row:
            cause = references.COUNTDOWN
        elif task == "math":
            reference = references.reduced(answer)
        elif type(answer) in (str, int):
            reference = references.letter(answer) if task == "choice" else references.legible(str(answer))
    except ValueError as error:
        cause += f": {error}"
    except (LookupError, TypeError, AttributeError):
        pass  # what Python says of it helps nobody
    if not (reference and references.right_for_itself(reference, task)):
        expected = f"an answer for `{task}` (docs/data.md)"
        error = malformed(where, f"answer {str(answer)[:60]!r}", cause, expected)
        raise references.Unusable(str(error)) if task != "code" else error
    return reference


def parse_row(row, where: str, task: str | None, columns, own: bool = False, source: int = 0) -> Row:
    """Check a row's fields. task, columns: those of its source. Raises ValueError naming `where` if it is unusable.

    own     as in `read_source`
    source  its position
    """
    if not isinstance(row, dict):
        raise malformed(where, f"a {type(row).__name__}", "one JSON array instead of a line per row", EXPECTED)
    prompt, answer = (field(row, names) for names in columns)
    if prompt is None:
        raise missing(row, where, columns[0], "--prompt-column")
    if answer is None and not own:
        raise missing(row, where, columns[1], "--answer-column")
    prompt = read_prompt(prompt, where)
    task = OWN if own else str(task or row.get("task") or "math")
    behind = answer.rpartition("####")[2] if isinstance(answer, str) else answer
    check_text(where, [prompt, behind], program=task in ("code", OWN))
    if own:
        text = "" if answer is None else answer if isinstance(answer, str) else json.dumps(answer, default=str)
        return Row(where, prompt, text, OWN, source)
    if task not in TASKS:
        cause = "a misspelt name, or a column that means something else: override it with NAME:WEIGHT:TASK"
        raise malformed(where, f"task {task!r}", cause, f"a task of {sorted(TASKS)}")
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


def check_text(where: str, value, *, program: bool) -> None:
    """Raise ValueError for a text that is no Unicode, or in which JSON has read the beginning of a LaTeX command.

    program  tabs and ends of lines may stand before anything
    """
    for text in texts(value):
        if text.isprintable():  # most are, and that is quickly found
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            cause = "a file in another encoding, such as UTF-16 or Latin-1, or half of a \\u pair"
            raise malformed(where, f"{text[:60]!r}", cause, "text in UTF-8") from error
        if match := not program and EATEN.search(text):
            near = text[max(0, match.start() - 20) : match.end() + 20]
            cause = "LaTeX with one backslash in JSON, which makes a control character of \\f: double the backslash"
            raise malformed(where, f"{near!r}", cause, "LaTeX as \\\\frac in JSON")


# --- Prompts of all sources ------------------------------------------------------------------------------------------


def usable(name, number, task, ready, prompts, *, columns, skip_unusable, own) -> Iterator[Row]:
    """Yield the usable rows of a source; arguments as in `read_source`.

    The columns of the first row that are not read are added to `prompts` too: a question whose choices or text stand in
    a column of their own would be asked without them.
    """
    taken = {"task", "metadata", *chain.from_iterable(columns)}
    taken |= {name.partition(".")[0] for name in taken}
    left_out = count = 0
    for where, fields in read(name):
        count += 1
        try:
            row = parse_row(fields, where, task, columns, own, number)
            ready.check(row)
        except TooLong:
            prompts.too_long += 1
            continue
        except (ValueError, RecursionError) as error:
            if isinstance(error, RecursionError):
                error = malformed(where, str(error), "values nested in hundreds of levels", EXPECTED)
            a_few = isinstance(error, references.Unusable)
            left_out += a_few
            if not (skip_unusable or a_few):
                raise ValueError(f"{error}; --skip-unusable leaves such rows out") from error
            prompts.unusable.append(str(error))
            continue
        prompts.unread.setdefault(number, [name for name in fields if name not in taken])
        yield row
    if left_out > references.MOST_LEFT_OUT * count and not skip_unusable:
        first = prompts.unusable[-left_out]
        raise ValueError(f"{first}; {left_out} of {count} rows have no usable answer; --skip-unusable leaves them out")


RENDERED = "begin or end with a special token, which the chat template or the tokenizer writes itself"
CONFLICT = "repeat a prompt with another answer, and the earlier row counts"


def read_source(
    name, number, task, ready, prompts, *, evaluate, columns=(("prompt",), ("answer",)), skip_unusable=False, own=False
):
    """(rows with their prompt for the first time; those that repeat one; tasks of all) of a source.

    number, task   of the source
    ready, prompts  data.Tokeniser, data.Data
                   `prompts` gets what is wrong with rows, and a warning if some begin or end with a special token
    columns        (names for the prompt's column, names for the answer's); of each, the first that a row has counts
    skip_unusable  leave out rows without a usable prompt or answer (some of APPS and TACO have no tests)
    own            a function of one's own grades the completions (--reward): answers may have any form, or be missing
    """
    marks = tuple(token.content for token in ready.tokenizer.added_tokens_decoder.values() if token.special)
    first: dict[str, Row] = {}  # data.identity -> row
    repeated: list[Row] = []
    tasks = set()
    places: dict[str, list[str]] = {RENDERED: [], CONFLICT: []}  # places of rows
    try:
        for row in usable(name, number, task, ready, prompts, columns=columns, skip_unusable=skip_unusable, own=own):
            tasks.add(row.task)
            earlier = first.setdefault(data.identity(row.prompt), row)
            if earlier is not row:
                repeated.append(row)
                if not evaluate and earlier.answer != row.answer:
                    places[CONFLICT].append(row.where)
            if any(text.startswith(marks) or text.endswith(marks) for text in map(str.strip, texts(row.prompt))):
                places[RENDERED].append(row.where)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise malformed(f"--data {name}", str(error), "an interrupted download", "a whole .gz file") from error
    prompts.warnings += [
        f"{len(them)} rows, the first {them[0]}, {problem}" for problem, them in places.items() if them
    ]
    return list(first.values()), repeated, tasks


def read_sources(
    sources, tokenizer, *, budget, validation=data.VALIDATION_PROMPTS, vocabulary=None, evaluate=False, **reading
):
    """The prompts of a run (data.Data), split, those for validation tokenised (see the top of this file).

    sources     one or several, as --data takes them
    budget      tokens per prompt; longer prompts are left out when they are drawn
    validation  prompts to hold out of every source
    vocabulary  tokens that the model knows, if not all of the tokenizer's
    evaluate    nothing is trained on: sources may share rows, and rows a prompt
    reading     as in `read_source`
    Raises ValueError for a malformed or repeated source, a malformed row, a prompt in training and validation, or if no
    prompt of a source fits the budget.
    """
    names, weights, tasks = zip(*map(parse_source, [sources] if isinstance(sources, str) else sources))
    if len(set(names)) < len(names):
        raise malformed("--data", str(names), "a source given twice: add up its weights", "different sources")
    ready = data.Tokeniser(tokenizer, budget=budget, vocabulary=vocabulary)
    prompts = data.Data(data.Prompts(ready), data.Prompts(ready), weights=weights)
    owned: list[set[str]] = []  # by source: its tasks
    held: list[Row] = []  # rows to validate with
    for number, (name, weight, task) in enumerate(zip(names, weights, tasks)):
        if name in data.EMBEDDED_TASKS:
            train, new, too_long = embedded(name, number, validation, ready.fits)
            its_tasks = {name}
        else:
            first, repeated, its_tasks = read_source(name, number, task, ready, prompts, evaluate=evaluate, **reading)
            train, new, too_long = data.split(first, validation, share=data.HELD_OUT if weight else 1, fits=ready.fits)
            prompts.duplicates += len(repeated)
            prompts.others.rows += repeated if weight else repeated + train
        if not new:
            got = "; ".join([f"{too_long} longer ones", *prompts.unusable[:1]])
            cause = "an empty file, a small --max-prompt-tokens, or only unusable rows"
            raise malformed(name, got, cause, f"a prompt of <= {budget} tokens")
        owned.append(its_tasks)
        prompts.too_long += too_long
        held += new
        prompts.sizes.append(len(train) if weight else 0)
        prompts.train.rows += train if weight else []
    prompts.tasks = set().union(*owned)
    ready.curves = curves(labels(names), owned, weights)
    prompts.validation += filter(None, data.Prompts(ready, held))
    if not evaluate:
        data.check_leakage(held, prompts.train)
    return prompts


def embedded(name: str, number: int, validation: int, fits) -> tuple[list[Row], list[Row], int]:
    """(training rows, validation rows, how many of those do not fit) of an embedded task."""
    counts = (data.EMBEDDED_TASKS[name].prompts, False), (validation, True)
    sets = (data.examples(name, count, seed=0, held_out=held) for count, held in counts)
    train, held = ([Row(name, *pair, name, number) for pair in pairs] for pairs in sets)
    fitting = list(filter(fits, held))
    return train, fitting, len(held) - len(fitting)


def curves(names: Sequence[str], owned: Sequence[set[str]], weights: Sequence[float]) -> dict[tuple[int, str], str]:
    """{(source, task): its name} where a curve has not the task's name: several sources train on the task, or none."""
    owners = Counter(task for tasks, weight in zip(owned, weights) if weight for task in tasks)
    numbered = enumerate(zip(names, owned, weights))
    return {(n, task): name for n, (name, its, weight) in numbered for task in its if owners[task] > 1 or not weight}
