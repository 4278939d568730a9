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
--prompt-column and --answer-column name other columns; several names may be given, for several sources, and the first
that a row has counts. "reward_model.ground_truth" is a field of that name, or ground_truth within reward_model.

A reference of `math` is read in five forms (`math_reference`). It is unusable if it says more than its value, so that
the bare value would be a wrong answer (`exactly 7`). One of `choice` is an option that its prompt offers
(`place_choices`). The answer of a code row is its tests, in a form that verify/programs.py reads, as JSON text or as an
object. A row without a usable prompt or tests ends the run, and so do unusable references in more than MOST_LEFT_OUT of
a source; --skip-unusable leaves them out. If rows of a source have the same prompt, the first is trained on; the others
are counted, and all are evaluated.

Test: pytest tests/test_prompts.py tests/test_references.py
"""

import ast
import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import category, normalize

import data
from data import Row, malformed
from verify import graders
from verify.graders import UNREADABLE
from verify.mathematics import BOX, BOXES, end_taken_off, equal, only_formula, strip_lead
from verify.programs import read_tests
from verify.scorer import verdicts
from verify.spelling import chosen, labelled, options, unmarked

TASKS = graders.TASKS | {task: graders.TASKS[name] for task, name in data.GRADERS.items()}
EXPECTED = 'a row like {"prompt": text or chat messages, "answer": text or integer}'
OWN = "own"  # the task of rows that --reward grades
MOST_LEFT_OUT = 0.05  # of a source's rows: more unusable references than that end the run
SAMPLE = 200  # math references that the grader tries when the data is loaded


class Unusable(ValueError):
    """A row whose reference no answer can be compared with; a few of them are left out (MOST_LEFT_OUT)."""


class Reading(NamedTuple):
    """How the rows of all sources are read."""

    columns: Sequence = (("prompt",), ("answer",))  # names for both; of each, the first that a row has counts
    skip_unusable: bool = False  # leave out rows without a usable prompt or answer (some of APPS have no tests)
    own: bool = False  # a function of one's own grades (--reward): answers may have any form, or be missing
    choice_index: str | None = None  # as in `place_choices`
    evaluate: bool = False  # nothing is trained on: sources may share rows, and rows a prompt

    @property
    def taken(self) -> set[str]:
        """Names of the columns that are read."""
        names = {*chain.from_iterable(self.columns)}
        return names | {name.partition(".")[0] for name in names}


# --- Sources ---------------------------------------------------------------------------------------------------------


def parse_source(text: str) -> tuple[str, float, str | None]:
    """(name, weight, task or None) of a source as --data takes it. Raises ValueError for an empty name or no task.

    >>> parse_source("code.jsonl:3:code"), parse_source("aime.jsonl:0"), parse_source("sorting")
    (('code.jsonl', 3.0, 'code'), ('aime.jsonl', 0.0, None), ('sorting', 1.0, None))
    """
    match = re.fullmatch(r"(.*?)(?::([0-9]+[.]?[0-9]*))?(?::([A-Za-z_]+))?", text, re.S)
    assert match  # the first part takes any text
    name, weight, task = match.groups()
    if not name.strip():  # as a path it would be the working folder
        raise malformed("--data", repr(text), "a shell variable that is not set", "NAME[:WEIGHT][:TASK]")
    if task and task not in TASKS:
        raise malformed(f"--data {text}", f"the task {task!r}", "a misspelt name", f"one of {', '.join(TASKS)}")
    return name, float(weight or 1), task


def anchored(text: str) -> str:
    """A source as --data takes it, a file or folder with its whole path: it is found from any other folder too."""
    name, *_ = parse_source(text)
    path = os.path.abspath(os.path.expanduser(name))
    here = name not in data.EMBEDDED_TASKS and os.path.exists(path)
    return path + text[len(name) :] if here else text


def names_in_log(names: Sequence[str]) -> Sequence[str]:
    """What sources are called in the log: files and folders without their path, if that tells all sources apart."""
    short = [os.path.basename(name) if os.path.isabs(name) else name for name in names]
    return short if len(set(short)) == len(short) else names


def read_lines(path: str) -> Iterator[tuple[str, object]]:
    """Yield (place, row) for each non-empty line of a JSONL file. Raises ValueError for a line that is not JSON."""
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            place = f"{path}:{number}"
            try:
                row = json.loads(line, object_pairs_hook=unique)
            except (ValueError, RecursionError) as error:
                check_text(place, line)
                cause = (
                    "another kind of file, or a cut one, a document over many lines, or a backslash that is not doubled"
                )
                raise malformed(place, f"{line[:60]!r} ({error})", cause, EXPECTED) from error
            yield place, row


def unique(pairs: list) -> dict:
    """The object of these pairs of JSON. Raises ValueError for a name that occurs twice: only one would count."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"a name occurs twice among {', '.join(name for name, _ in pairs)}")
    return fields


def read_table(path: str) -> Iterator[tuple[str, dict]]:
    """Yield (place, row) for each row of a CSV or TSV file, every cell as the text it is: 007 stays 007.

    The separator is the one of , ; | and tab that the first line has most of. Raises ValueError for what is no table, a
    name that two columns have, a row of more cells than names, and for a quote that opens a cell but is closed nowhere,
    or within it: its text would swallow the rows behind it.
    """
    csv.field_size_limit(data.MAX_ANSWER)
    line = 0
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        first = file.readline()
        file.seek(0)
        table = csv.DictReader(file, delimiter=max(",;\t|", key=first.count), strict=True)
        try:
            names = [name for name in table.fieldnames or [] if name]
            check_text(f"{path}:1", names)
            if len(set(names)) < len(names) or "sep=" in names:
                cause = "a joined table, or a line for Excel alone: delete it"
                raise malformed(f"{path}:1", f"the columns {names}", cause, "a name of its own for each column")
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
BUILDERS = {".parquet": "parquet", ".json": "json", ".arrow": "arrow"}  # that `datasets` has


def read(name: str) -> Iterator[tuple[str, Any]]:
    """(place, row) of a source that is not embedded. Raises ValueError, with what is there, if there is none."""
    path = Path(name)
    kind = path.suffix.lower()
    known = READERS | BUILDERS
    got = "a packed file, lines of text, or another kind of table"
    if path.is_dir():
        files = [
            file
            for file in sorted(path.rglob("*"))
            if file.suffix.lower() in known and file.name != "dataset_info.json"
        ]
        kinds = {file.suffix.lower(): file.name for file in files}
        if len(kinds) < 2:
            return read_dataset(name, files, path=name)
        got = f"{len(kinds)} kinds of data: {', '.join(kinds.values())}"
    elif path.exists():
        if kind in READERS:
            return READERS[kind](name)
        if kind in BUILDERS:
            return read_dataset(name, [path], path=BUILDERS[kind], data_files=[name])
    else:
        hub = re.fullmatch("([^/]+/[^/]+)(?:/([^/]+))?", name)
        if hub and not Path(path.parts[0]).is_dir() and kind not in known:
            return read_dataset(name, [], path=hub[1], name=hub[2])
        got = "nothing: there is no such file or folder"
    kinds = ", ".join([*data.EMBEDDED_TASKS, *known])
    folder = "a folder of files of one kind (none of save_to_disk: write files with dataset.to_parquet(FILE))"
    raise ValueError(f"--data {name}: expected {kinds}, {folder} or OWNER/NAME on the hub, got {got}")


def read_dataset(source: str, files: list[Path], **place) -> Iterator[tuple[str, dict]]:
    """(place, row) of the rows that `datasets.load_dataset` finds; ValueError if it finds none or is not installed.

    files  local ones, which are read anew if one was changed in place. Of several processes one converts them
    """
    cause = "no such data, no network, no train split, several configurations, a broken file, or: "
    cause += "pip install -e '.[data]'"
    failures = (ImportError, OSError, ValueError, EOFError)
    try:
        import datasets  # not a requirement: the embedded tasks, JSONL and CSV do without it

        failures += (datasets.exceptions.DatasetsError,)
        if files:  # their names are looked at by `datasets` itself
            changed = max(file.stat().st_ctime_ns for file in files)
            place["cache_dir"] = f"{datasets.config.HF_DATASETS_CACHE}/by_stamp/{changed}"
        rows = datasets.load_dataset(**place, split="train")
    except failures as error:
        reason = error.__cause__ or error  # "An error occurred while generating the dataset" says nothing
        expected = "what datasets.load_dataset reads (docs/data.md)"
        raise malformed(f"--data {source}", f"{type(reason).__name__}: {reason}", cause, expected) from error
    return ((f"{source}, row {number}", row) for number, row in enumerate(rows, 1))


# --- Prompts ---------------------------------------------------------------------------------------------------------

LOOKS_LIKE_CHAT = re.compile(r"\s*(?:array\()?[\s\[(]*\{.{0,4000}?['\"](?:role|from)['\"]\s*:", re.S)
LEFT_ALONE = {"role", "content", "name", "weight", "cache_control", "type", "text"}  # of a message, or of a part of one
OF_OTHER_MODELS = ("images", "image", "videos", "audios", "tools")  # columns


def loaded(text):
    """The value that a text spells in JSON or as a Python literal; anything else, whatever it is, stays."""
    for load_text in (json.loads, ast.literal_eval):
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return load_text(text)
    return text


def chat(messages: list, where: str) -> list[dict]:
    """Chat messages, each with its content as one text.

    Raises ValueError for another form, for a tool's message, and for anything beside the text, which would be lost.
    """
    whole = []
    for message in messages:
        try:
            parts = message["content"] if isinstance(message["content"], list) else [message["content"]]
            parts = [{"text": part} if isinstance(part, str) else part for part in parts]
            whole.append({"role": "" + message["role"], "content": "".join(part["text"] for part in parts)})
            lost = {name for part in (message, *parts) for name in part if part[name]} - LEFT_ALONE
            lost |= {part.get("type", "text") for part in parts} - {"text"}
            lost |= {message["role"]} & {"tool", "function"}
        except (KeyError, TypeError, AttributeError):
            lost = {"another form of chat, or an image or sound"}
        if lost:
            cause = f"{', '.join(sorted(lost))}, which is not read"
            expected = 'messages like {"role": "user", "content": text}'
            raise malformed(where, f"the message {str(message)[:90]!r}", cause, expected)
    return whole


def read_prompt(prompt, where: str):
    """A prompt, text or chat messages. Raises ValueError for one that is neither, is empty, or ends with the answer."""
    messages = isinstance(prompt, list) or isinstance(prompt, str) and LOOKS_LIKE_CHAT.match(prompt)
    read = loaded(prompt) if messages else prompt
    if isinstance(read, list):
        read = chat(read, where)
        asks = read and read[-1]["role"] != "assistant"
    else:
        asks = isinstance(read, str) and read.strip() and not messages
    if not asks:
        cause = (
            "a column of another meaning, or converted; an empty row; messages that end with the answer, or messages "
        )
        cause += "as NumPy prints them: write them with json.dumps"
        raise malformed(where, f"prompt {str(prompt)[:60]!r}", cause, EXPECTED)
    return read


def question(prompt) -> str:
    """The text that asks: of chat messages the last."""
    return prompt[-1]["content"] if isinstance(prompt, list) else prompt


# --- Characters ------------------------------------------------------------------------------------------------------

# JSON reads \frac with one backslash as a form feed and rac. These characters have no other use.
EATEN = re.compile(r"[\a\b\f\v][A-Za-z]*|\n(?:eq|leq|geq|abla|otin|subseteq)(?![A-Za-z])")
EATEN_IN_FORMULA = re.compile(r"[\t\r][A-Za-z]+")
FORMULA = re.compile(r"\$[^$]*\$|\\\(.*?\\\)|\\\[.*?\\\]", re.S)


def texts(value) -> list[str]:
    """All texts within a value."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in texts(part)]


def check_text(where: str, value, formulas=None) -> None:
    """Raise ValueError for a text that is no Unicode, or in which JSON has read the beginning of a LaTeX command.

    formulas  text -> those in it; None: it is a program or a name, in which any character may stand
    """
    for text in texts(value):
        if text.isprintable():  # most are, and that is quickly found
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            cause = "a file in another encoding, such as UTF-16 or Latin-1, or half of a \\u pair"
            raise malformed(where, f"{text[:60]!r}", cause, "text in UTF-8") from error
        inside = map(EATEN_IN_FORMULA.search, formulas(text)) if formulas else ()
        if formulas and (eaten := EATEN.search(text) or next(filter(None, inside), None)):
            cause = "LaTeX with one backslash in JSON, which makes a control character of \\f: double the backslash"
            raise malformed(where, f"{eaten[0]!r} in {text[:60]!r}", cause, "LaTeX as \\\\frac in JSON")


def legible(text: str) -> str:
    """The text as models write it: nothing invisible, and in plain width if its digits are wide.

    The invisible ones that join letters or keep them apart stay: they spell words of Persian or Hindi.

    >>> legible("8\\u200b"), legible("（１，２）"), legible("10²"), legible("是，不是")
    ('8', '(1,2)', '10²', '是，不是')
    """
    if text.isascii():
        return text.strip()
    plain_width = normalize("NFKC", text) if re.search("[０-９]", text) else text
    return "".join(sign for sign in plain_width if category(sign) != "Cf" or sign in "\u200c\u200d").strip()


# --- References ------------------------------------------------------------------------------------------------------

FIELDS = ("ground_truth", "final_answer", "answer", "value")  # of a reference that is an object
NO_ANSWER = {"proof", "notfound", "not found", "n/a", "nan", "null", "undefined answer"}
SPELT = re.compile(r"\s*(?:\{\s*['\"].*\}|\[.*\])\s*", re.S)  # an object or a list, as JSON or Python writes it
GAP = r"(?:[\s~]|\\[ ,;:]|\\q?quad(?![a-z]))+"
LABEL = re.compile(rf"(?:\(([A-H])\)|([A-H])[).:]){GAP}(.+)", re.S)  # (B) 4
LEAD = re.compile(r"(?:\b(?:is|are|equals)|[:=])\W*$")  # not "A solution exists", of which "A solution" is no lead
WHOLE = re.compile(r"([0-9]{1,4})(?:\.0+)?")
NUMBER = re.compile("-?[0-9.,/]+")  # it can be read: no worker, which loads SymPy for a second, need try it
PLAIN = re.compile(r"(?:[-+*/^_=<>0-9.,{}|!% ]|\\(?!text)[a-z]+|(?<![A-Za-z])[a-z](?![A-Za-z]))+")  # without words


def unpacked(answer) -> str:
    """The text of a reference, which may stand in a list of one or be the only known field of an object, also as text.

    >>> unpacked("['72']"), unpacked({"ground_truth": 5}), unpacked("She has 3 + 4 = 7.\\n#### 7"), unpacked("[1, 2]")
    ('72', '5', '7', '[1, 2]')
    """
    value = loaded(answer) if isinstance(answer, str) and SPELT.fullmatch(answer) else answer
    if isinstance(value, dict):
        names = [name for name in FIELDS if name in value]
        if len(names) != 1:
            raise ValueError(f"an object with the fields {[*value]}")
        value = [value[names[0]]]
    if isinstance(value, list) and len(value) == 1:
        return unpacked(value[0])
    if isinstance(value, list) and (value is answer or all(isinstance(item, str) for item in value)):
        raise ValueError(f"a list of {len(value)} answers")
    return as_text(answer)  # also [1, 2], an interval


def as_text(value) -> str:
    """A text or an integer as legible text, behind its last ####. Raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f"it is a {type(value).__name__}, and must be text or an integer; store it as text")
    return legible(str(value).rpartition("####")[2])


def math_reference(answer, prompt: str) -> str:
    """The reference of a math row: its text, behind a lead as an answer's, or what verify reads of a box in it.

    Raises ValueError if an answer that holds its only number or formula alone would be wrong, as far as is known
    without SymPy.
    """
    text = unpacked(answer)
    if not text:
        return ""
    if PLAIN.fullmatch(text) or BOXES.search(text):
        value = text
    elif label := LABEL.fullmatch(unmarked(text).strip("$")):
        value = f"({label[1] or label[2]}) {label[3].strip()}"
    else:
        value = strip_lead(end_taken_off(text))
        value = value if LEAD.search(text.partition(value)[0]) else text
    if value.casefold().strip(" .") in NO_ANSWER:
        raise ValueError(f"{value!r} stands for a missing answer")
    if not PLAIN.fullmatch(value) and (only := only_formula(value, prompt)):
        right = equal(f"{BOX}{only}}}", value, prompt, symbolic=False)
        if not right and (right is False or "=" not in value):  # "Sum = 7" is for SymPy to say
            raise ValueError(f"a reference that says more than its value: the answer {only} would be wrong")
    return value


def code_reference(answer, row: dict) -> str:
    """A code row's tests, text or objects, as JSON text in a form that the verifier reads.

    A function's name may stand in the row's `metadata` (DeepCoder's lcbv5). Tests in another form raise ValueError,
    LookupError, TypeError, AttributeError or RecursionError.
    """
    tests = loaded(answer)
    if isinstance(tests, dict) and {"input", "output"} <= tests.keys():  # CodeContests
        tests = {"inputs": tests["input"], "outputs": tests["output"]}
    about = loaded(row.get("metadata"))
    name = isinstance(about, dict) and (about.get("func_name") or about.get("fn_name"))
    if name and isinstance(tests, list):
        tests = [{"fn_name": name} | test for test in tests]
    texts(tests)  # takes more of the stack than a worker will: RecursionError for what could not be read there
    text = json.dumps(tests)
    read_tests(text)
    return text


def read_answer(answer, row: dict, task: str, prompt, where: str) -> str:
    """The reference of a row's answer, in the form that its grader reads. Raises ValueError if there is none.

    One of `choice` is the text that place_choices looks at.
    """
    reference = ""
    cause = "an unlabelled row, no tests, or another notation"
    try:
        if task == "code":
            reference = code_reference(answer, row)
        elif task == "math" and {"nums", "numbers"} & row.keys() and "target" in row:
            cause = "a Countdown game, for which any expression of that value is right: grade it with --reward"
        elif task == "math":
            reference = math_reference(answer, question(prompt))
        else:
            reference = as_text(answer)
            if task != "choice" and TASKS[task].grade(reference, reference) is False:
                cause = "a reference that would not be right as an answer"
                reference = ""
    except ValueError as error:
        cause = str(error)
    except (LookupError, TypeError, AttributeError):
        pass  # what Python says of it helps nobody
    if not reference:
        expected = f"an answer for `{task}` (docs/data.md)"
        error = malformed(where, f"answer {str(answer)[:60]!r}", cause, expected)
        raise Unusable(str(error)) if task != "code" else error
    return reference


def place_choices(name: str, rows: list[Row], index: str | None) -> tuple[list[str | None], str]:
    """(for each `choice` row of a source its option's label, None if it has none; how the references were read).

    name   of the source
    index  --choice-index: whole numbers are indices from "0" or "1", or "words"; None: as the whole source says.
           Whole numbers are labels or words if each is one, else indices from 0
    Raises ValueError if that cannot be known.
    """
    offered = [options(question(row.prompt)) for row in rows]
    # Where a prompt shows no options, a letter may stand before a text.
    named = [chosen(row.answer, own) or (None if own else labelled(row.answer)[0]) for row, own in zip(rows, offered)]
    whole = [WHOLE.fullmatch(row.answer) for row in rows]
    if all(whole) and index != "words":
        first = int(index or 0)
        places = [int(match[1]) - first for match in whole if match]
        labels = [[*choices] or list("ABCDEFGHIJ") for choices in offered]
        counted = [own[place] if 0 <= place < len(own) else None for own, place in zip(labels, places)]
        if index:
            return counted, f"indices from {first}"
        if not all(named) and None not in counted and (len(rows) < 20 or 0 in places):
            return counted, "indices from 0"
        if not all(named) or None not in counted and counted != named:
            raise ValueError(
                f"--data {name}: expected references of `choice` that are whole numbers to be labels or words of "
                "options, or indices from 0, one of them 0; got both or neither: give --choice-index 0, 1 or words"
            )
    return named, "labels or words of options"


# --- Rows ------------------------------------------------------------------------------------------------------------


def field(row: dict, names: Iterable[str]):
    """The first of the named fields that the row has, or None; "a.b" is the field "a.b", else field b of field a."""
    for name in names:
        value = row
        for key in [name] if name in row else name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value


def parse_row(row, where: str, task: str | None, reading: Reading, source: int) -> Row:
    """Check a row's fields. task, source: of its source. Raises ValueError naming `where` if it is unusable."""
    if not isinstance(row, dict):
        raise malformed(where, f"a {type(row).__name__}", "one JSON array instead of a line per row", EXPECTED)
    prompt, answer = (field(row, names) for names in reading.columns)
    for value, names, flag in zip((prompt, reading.own or answer), reading.columns, ("prompt", "answer")):
        if value is None:
            cause = f"an unlabelled row, or another name of the column: --{flag}-column NAME"
            got = f"nothing under {' or '.join(names)} among the columns {sorted(row)}"
            raise malformed(where, got, cause, EXPECTED)
    if lost := [name for name in OF_OTHER_MODELS if row.get(name)]:
        raise malformed(where, f"a column {lost[0]}", "a prompt for a model that sees or calls tools", "text alone")
    prompt = read_prompt(prompt, where)
    task = OWN if reading.own else str(task or row.get("task") or "math")
    latex = task not in ("code", OWN)
    check_text(where, prompt, latex and FORMULA.findall)
    behind = answer.rpartition("####")[2] if isinstance(answer, str) else answer
    check_text(where, behind, latex and (lambda text: [text]))
    if reading.own:
        text = "" if answer is None else answer if isinstance(answer, str) else json.dumps(answer, default=str)
        return Row(where, prompt, text, OWN, source)
    if task not in TASKS:
        cause = "a misspelt name, or a column that means something else: override it with NAME:WEIGHT:TASK"
        raise malformed(where, f"task {task!r}", cause, f"a task of {sorted(TASKS)}")
    if task == "choice" and not options(question(prompt)):
        several = [name for name, value in row.items() if isinstance(value, (list, dict)) and len(value) > 1]
        if columns := [name for name in ("A", *several) if name in row and name not in reading.taken]:
            cause = "options that the model would not see: write them into the prompt, each on a line, as in `A. Rome`"
            raise malformed(where, f"a prompt without options, and a column {columns[0]}", cause, "options in it")
    return Row(where, prompt, read_answer(answer, row, task, prompt, where), task, source)


def usable(name: str, number: int, task: str | None, ready, prompts, reading: Reading) -> list[Row]:
    """The usable rows of a source. `prompts`, data.Data, gets what is wrong with others, and columns that are not read.

    A question whose choices or text stand in such a column would be asked without them.
    """
    taken = reading.taken | {"task", "metadata"}
    rows: list[Row] = []
    left_out: list[str] = []  # for their reference
    unread: list[str] = []  # columns
    count = 0
    for where, fields in read(name):
        count += 1
        try:
            row = parse_row(fields, where, task, reading, number)
            ready.check(row)
        except Unusable as error:
            left_out.append(str(error))
        except (ValueError, RecursionError) as error:
            if isinstance(error, RecursionError):
                error = malformed(where, str(error), "values nested in hundreds of levels", EXPECTED)
            if not reading.skip_unusable:
                raise ValueError(f"{error}; --skip-unusable leaves such rows out") from error
            prompts.unusable.append(str(error))
        else:
            unread = unread or [column for column in fields if column not in taken]
            rows.append(row)
    if unread:
        prompts.notes.append(f"{name}: these columns are not read: {', '.join(unread)}")
    choices = [row for row in rows if row.task == "choice"]
    if choices:
        labels, how = place_choices(name, choices, reading.choice_index)
        prompts.choices[name] = how
        prompts.notes.append(f"{name}: references of `choice` are read as {how}")
        label_of = {row.where: label for row, label in zip(choices, labels)}
        rows = [row._replace(answer=label_of.get(row.where, row.answer) or "") for row in rows]
        cause = "none of the options that the prompt offers"
        unplaced = [row for row in choices if not label_of[row.where]]
        left_out += [str(malformed(row.where, f"answer {row.answer[:60]!r}", cause, "an option")) for row in unplaced]
        rows = [row for row in rows if row.answer]
    prompts.unusable += left_out
    if len(left_out) > MOST_LEFT_OUT * count and not reading.skip_unusable:
        got = f"{left_out[0]}; {len(left_out)} of {count} rows have no usable answer"
        raise ValueError(f"{got}; --skip-unusable leaves them out")
    return rows


# --- Prompts of all sources ------------------------------------------------------------------------------------------


def distinct(rows: list[Row], prompts, reading: Reading) -> tuple[list[Row], list[Row]]:
    """(rows with their prompt for the first time, those that repeat one); data.Data gets a warning of other answers."""
    first: dict[str, Row] = {}  # data.identity -> row
    repeated = [row for row in rows if first.setdefault(data.identity(row.prompt), row) is not row]
    others = [row.where for row in repeated if row.answer != first[data.identity(row.prompt)].answer]
    if others and not reading.evaluate:
        rows_are = f"{len(others)} rows, the first {others[0]}, repeat a prompt with another answer"
        prompts.notes.append(f"WARNING: {rows_are}, and the earlier row counts")
    return list(first.values()), repeated


def read_sources(sources, tokenizer, *, budget, validation=data.VALIDATION_PROMPTS, vocabulary=None, **settings):
    """The prompts of a run (data.Data), split, those for validation tokenised (see the top of this file).

    sources     one or several, as --data takes them
    budget      tokens per prompt; longer prompts are left out when they are drawn
    validation  prompts to hold out of every source
    vocabulary  tokens that the model knows, if not all of the tokenizer's
    settings    of a Reading
    Raises ValueError for a malformed or repeated source, a malformed row, a prompt in training and validation, or if no
    prompt of a source fits the budget.
    """
    names, weights, tasks = zip(*map(parse_source, [sources] if isinstance(sources, str) else sources))
    if len(set(names)) < len(names):
        raise malformed("--data", str(names), "a source given twice: add up its weights", "different sources")
    reading = Reading(**settings)
    ready = data.Tokeniser(tokenizer, budget=budget, vocabulary=vocabulary)
    prompts = data.Data(data.Prompts(ready), data.Prompts(ready), weights=weights)
    owned: list[set[str]] = []  # by source: its tasks
    held: list[Row] = []  # rows to validate with
    for number, (name, weight, task) in enumerate(zip(names, weights, tasks)):
        if name in data.EMBEDDED_TASKS:
            train, new, too_long = data.embedded(name, number, validation, ready.fits)
        else:
            first, repeated = distinct(usable(name, number, task, ready, prompts, reading), prompts, reading)
            train, new, too_long = data.split(first, validation, one_in=data.HELD_OUT if weight else 1, fits=ready.fits)
            prompts.duplicates += len(repeated)
            prompts.others.rows += repeated if weight else repeated + train
        if not new:
            got = "; ".join([f"{too_long} longer ones", *prompts.unusable[:1]])
            cause = "an empty file, a small --max-prompt-tokens, or only unusable rows"
            raise malformed(name, got, cause, f"a prompt of <= {budget} tokens")
        owned.append({row.task for row in chain(train, new)})
        prompts.too_long += too_long
        held += new
        prompts.train.rows += train if weight else []
    prompts.tasks = set().union(*owned)
    ready.curves = data.curves(names_in_log(names), owned, weights)
    prompts.validation += filter(None, data.Prompts(ready, held))
    if not reading.evaluate:
        data.check_leakage(held, prompts.train)
    return prompts


def unreadable(prompts, timeout: float, skip_unusable: bool) -> list[str]:
    """A warning about the math references in a sample of data.Prompts that no answer can be compared with, or [].

    They are read in a worker. Raises ValueError for more than MOST_LEFT_OUT of the sample, unless skip_unusable.
    """
    asked = [prompt for prompt in prompts if prompt.task == "math"]
    asked = asked[:: len(asked) // SAMPLE + 1]
    pairs = [("\\boxed{?}", prompt) for prompt in asked if not NUMBER.fullmatch(prompt.answer)]
    errors = [score.error for score in verdicts(pairs, timeout=timeout) if score.error.startswith(UNREADABLE)]
    if not errors:
        return []
    got = (
        f"{len(errors)} of {len(asked)} references cannot be compared with any answer, and get no verdict: {errors[0]}"
    )
    if len(errors) > MOST_LEFT_OUT * len(asked) and not skip_unusable:
        raise ValueError(f"{got}; --skip-unusable goes on")
    return [f"WARNING: {got}"]
