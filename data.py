"""Prompts: No-Positive-Resampling (Sec. 3.2), the split (Sec. 2.1), the embedded tasks, and prompts as tokens.

Paper: Sec. 2 and A.3 (math prompts, and code beside them, for several epochs), Sec. 2.1 (1,000 validation prompts held
out at random), Sec. 3.2 (No-Positive-Resampling: a prompt whose historical pass rate is >= 0.9 is never sampled in
a later epoch).

    Curriculum.next(n) -> the next n prompts, from every source its share
    Curriculum.update_history(i, pass_rate) records the pass rate of prompt i in the history

Files and data sets are read by plumbing/prompts.py. The embedded tasks:
  arithmetic  "7+5-3+9=" -> "18", 3 to 18 one-digit operands, of which SFT has shown 3 to 12 (sft.py). A fixed hash of
              the text reserves one text in HELD_OUT for validation, so neither SFT nor RL can meet a validation prompt,
              whatever their seeds.
  sorting     "=5274=" -> "2457", 3 to 12 digits, with validation texts reserved in the same way.
  tiny        "7+5-3....=" -> "9", the sum of 2 to 7 operands modulo 10: for a policy of 41,000 parameters, with which a
              run takes seconds. Validation texts are reserved in the same way.

A prompt is put into the tokenizer's chat template, or stays as it is if the tokenizer has none. This happens only when
it is drawn, so that a run on a million rows starts quickly, and a prompt that turns out too long is left out then.
Validation prompts are drawn from every source, and each source has its own curve, named by Prompt.curve. A prompt in
both training and validation, from whatever sources, is refused. Both sets are the same for every --seed, which only
orders the training prompts, so that runs with different seeds are measured on the same prompts.

Deviation: the paper holds out 1,000 prompts. We hold out a tenth of a source of fewer than 10,000 rows, unless it is an
  embedded task.
Deviation: a prompt in flight, whose completions are not back yet, is not given out again. So the run ends when fewer
  than P prompts are both below 0.9 and not in flight. With many prompts this is the paper's rule.
Open in the paper: what a historical pass rate is. Here it is the share of correct completions among the prompt's latest
  G, or their mean v with a graded --reward.
Open in the paper: how math and code are mixed. Here every batch mixes the sources by weight, and each source has its
  own epochs. A source whose prompts are all learnt leaves its share to the others.

Test: pytest tests/test_data.py
Page: docs/paper/batch.md
"""

import hashlib
import json
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple

from jinja2 import TemplateError

HELD_OUT = 10  # one embedded text in so many is reserved for validation, as is one prompt in so many of a small source
VALIDATION_PROMPTS = 1_000  # Sec. 2.1; from every source
MOST_DRAWS = 100  # of an embedded text for each that is wanted, since some are drawn again
MAX_ANSWER = 4 << 20  # bytes: a request carries its prompt's tests, and a value in the store may have 8 MiB


@dataclass(frozen=True)
class Prompt:
    """One prompt x, tokenised as the model gets it."""

    index: int  # position within the run's training or validation set
    ids: tuple[int, ...]  # prompt tokens
    text: str  # what `ids` spell, chat template included
    answer: str  # the verifier's reference
    task: str  # the verifier: a key of graders.TASKS
    source: int = 0  # position of its source within --data
    curve: str = ""  # the validation curve it counts for: its task, or its source's name where sources share the task
    where: str = ""  # file and line, for messages


class Row(NamedTuple):
    """A prompt as it stands in its source."""

    where: str  # "file:line", for messages
    prompt: Any  # text, or chat messages
    answer: str
    task: str
    source: int = 0  # position within --data


class Prompts:
    """Many rows, each made a prompt only when it is asked for: of a million most are never drawn.

    ready  a Tokeniser
    rows   source after source
    """

    def __init__(self, ready, rows: Iterable[Row] = ()):
        self.ready = ready
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index) -> Prompt | None:
        """The prompt in this place; None if it is too long. Raises RuntimeError if it turns out unusable."""
        try:
            return self.ready(self.rows[index], index)
        except ValueError as error:
            raise RuntimeError(str(error)) from error

    def __iter__(self) -> Iterator[Prompt | None]:
        return map(self.__getitem__, range(len(self)))


@dataclass
class Data:
    """A run's prompts, and how many were left out of them and why."""

    train: Prompts
    others: Prompts  # for --evaluate only: repeated rows, and those of weight 0 that are not validated
    validation: list[Prompt] = field(default_factory=list)
    weights: tuple[float, ...] = (1.0,)  # by source; 0: validated, never trained on
    tasks: set[str] = field(default_factory=set)
    too_long: int = 0  # rows that were drawn for validation and have more tokens than the budget
    duplicates: int = 0  # rows that repeat an earlier prompt of their source
    unusable: list[str] = field(default_factory=list)  # what is wrong with each row that --skip-unusable left out
    choices: dict[str, str] = field(default_factory=dict)  # source -> how its references of `choice` were read
    notes: list[str] = field(default_factory=list)  # lines for the screen


def malformed(where: str, got: str, cause: str, expected: str) -> ValueError:
    """The error for unusable input: where it is, what was expected, what was found, the likely cause."""
    return ValueError(f"{where}: expected {expected}, got {got}; likely cause: {cause}")


# --- No-Positive-Resampling (Sec. 3.2) -------------------------------------------------------------------------------


class Curriculum:
    """Which prompts come next: epochs in a seeded order, without those that the policy has already learnt.

    prompts    the training set, index = position, source after source; one that is too long for the model is None
    seed       orders the epochs
    threshold  a prompt whose latest pass rate is >= this is never sampled again; None: uniform resampling
    weights    of the sources: any run of consecutive draws keeps two sources within one prompt of their shares, more
               sources close to them; a source without a free prompt leaves its share to the others. Each source has its
               own epochs; one of weight 0 has no prompts

    A prompt is in flight from `next` to `update_history`, and is not given out a second time meanwhile. If its turn in
    the next epoch comes before it is back, the prompts behind it go first; if only such prompts remain, the epoch is
    over. A prompt that is too long is left out when its turn comes first.
    """

    def __init__(self, prompts: Prompts, *, seed: int, threshold: float | None, weights: Iterable[float] = (1.0,)):
        self.prompts = prompts
        self.seed = seed
        self.threshold = threshold
        self.weights = list(weights)
        self.pass_rates: dict[int, float] = {}  # index -> mean v of the latest G completions
        self.too_long: set[int] = set()  # drawn, and left out
        self._in_flight: dict[int, None] = {}  # an ordered set
        sizes = Counter(row.source for row in prompts.rows)
        ends = [0, *accumulate(sizes[source] for source in range(len(self.weights)))]
        self._members: list[Sequence[int]] = [range(*pair) for pair in pairwise(ends)]  # by source: to be sampled again
        # By source: number of its epoch, how many prompts were in it at its start, which are still to come; and how far
        # the source is behind its share.
        self._sources: list[dict[str, Any]] = [
            {"epoch": -1, "size": 1, "queue": deque(), "credit": 0.0} for _ in self.weights
        ]

    @property
    def epoch(self) -> float:
        """Epochs sampled so far, the current one by the part sampled; the mean over the sources."""
        trained = [state for state, weight in zip(self._sources, self.weights) if weight]
        done = [state["epoch"] + 1 - len(state["queue"]) / state["size"] for state in trained]
        return sum(done) / len(done)

    @property
    def retired(self) -> int:
        """How many prompts are at or above the threshold."""
        return sum(self._is_retired(index) for index in self.pass_rates)

    @property
    def in_flight(self) -> list[Prompt | None]:
        """Prompts given out and not back, in the order they were given out (a resumed run generates them again)."""
        return [self.prompts[index] for index in self._in_flight]

    def next(self, count: int) -> list[Prompt]:
        """The next `count` prompts, or as many as are neither in flight nor retired ("curriculum exhausted").

        At each draw every source earns its weight as credit. The one with the most gives the prompt, and pays the sum
        of the weights.
        """
        chosen = []
        sources = dict(enumerate(self._sources))
        while len(chosen) < count and sources:
            source = max(sources, key=lambda source: sources[source]["credit"] + self.weights[source])
            index = self._draw(source)
            if index is None:
                del sources[source]
                continue
            prompt = self.prompts[index]
            if prompt is None:
                self.too_long.add(index)
                continue
            self._in_flight[index] = None
            for other in sources:
                sources[other]["credit"] += self.weights[other]
            sources[source]["credit"] -= sum(self.weights[other] for other in sources)
            chosen.append(prompt)
        return chosen

    def update_history(self, index: int, pass_rate: float | None) -> None:
        """Prompt `index` is back. pass_rate: mean v of its G completions; None if unknown (keeps the last one).

        Raises ValueError if it is not in flight.
        """
        if index not in self._in_flight:
            raise ValueError(f"expected a prompt in flight, got {index}; likely cause: its group was delivered twice")
        del self._in_flight[index]
        if pass_rate is not None:
            self.pass_rates[index] = float(pass_rate)

    def state_dict(self) -> dict:
        """Everything that decides which prompts come next, in a form that JSON can hold."""
        sources = [state | {"queue": list(state["queue"])} for state in self._sources]
        state = {"data": self._fingerprint, "sources": sources, "too_long": sorted(self.too_long)}
        return state | {"in_flight": list(self._in_flight), "pass_rates": list(self.pass_rates.items())}

    def load_state_dict(self, state: dict) -> None:
        """Continue from a `state_dict`. Raises ValueError for a state of other prompts, answers, weights or seed."""
        if state["data"] != self._fingerprint:
            raise ValueError(
                "expected the state of these prompts, answers and seed, got another; likely cause: new flags, data of "
                "which prompts or answers have changed, or a checkpoint of another version of the code"
            )
        self._sources = [source | {"queue": deque(source["queue"])} for source in state["sources"]]
        self.too_long = set(state["too_long"])
        self._in_flight = dict.fromkeys(state["in_flight"])
        self.pass_rates = dict(state["pass_rates"])

    @cached_property
    def _fingerprint(self) -> str:
        """A hash of the training rows in their order, the weights and the seed; once, for tests of code are long."""
        digest = hashlib.sha256(f"{self.seed}\0{self.weights}".encode())
        for row in self.prompts.rows:
            digest.update(repr(row[1:]).encode())  # without its place: a file may have been moved
        return digest.hexdigest()[:16]

    def _is_retired(self, index: int) -> bool:
        """At the threshold or above, with room for a float32 mean: 9 correct of 10 may arrive as 0.89999998."""
        return self.threshold is not None and self.pass_rates.get(index, 0.0) >= self.threshold - 1e-6

    def _is_free(self, index: int) -> bool:
        return index not in self._in_flight and not self._is_gone(index)

    def _is_gone(self, index: int) -> bool:
        return index in self.too_long or self._is_retired(index)

    def _draw(self, source: int) -> int | None:
        """Take the source's next free prompt out of its queue: its index, None if there is none. May start an epoch."""
        state = self._sources[source]
        index = next(filter(self._is_free, state["queue"]), None)
        if index is None:
            active = self._members[source] = [prompt for prompt in self._members[source] if not self._is_gone(prompt)]
            if not any(map(self._is_free, active)):
                return None
            number = state["epoch"] + 1
            queue = deque(shuffled(active, f"epoch/{self.seed}/{number}"))
            state |= {"epoch": number, "size": len(active), "queue": queue}
            index = next(filter(self._is_free, queue))
        state["queue"].remove(index)
        return index


# --- Prompts for validation (Sec. 2.1) -------------------------------------------------------------------------------


def shuffled(items: Iterable, seed: str) -> list:
    """The items in an order that depends on nothing but their number and the seed."""
    rng = random.Random(seed)
    return sorted(items, key=lambda _: rng.random())


def split(rows: list, count: int, *, one_in: int = HELD_OUT, fits=lambda row: True) -> tuple[list, list, int]:
    """(rows to train on, rows to validate with, rows that are too long).

    For validation `count` random rows, always the same; at most one in `one_in`, at least one. A row that does not fit
    the budget gives its place to another.
    """
    count = min(count, max(1, len(rows) // one_in))
    drawn = shuffled(rows, "split")
    held: list = []
    seen = 0
    while len(held) < count and seen < len(drawn):
        held += filter(fits, drawn[seen : seen + 1])
        seen += 1
    return drawn[seen:], held, seen - len(held)


def identity(prompt) -> str:
    """What is the same in rows whose prompt is the same: a text is as good as one message of a user."""
    if isinstance(prompt, list):
        alone = len(prompt) == 1 and prompt[0]["role"] == "user"
        return prompt[0]["content"].strip() if alone else json.dumps(prompt)
    return prompt.strip()


def check_leakage(held: list[Row], train: Prompts) -> None:
    """Raise ValueError for a training row that is in the validation set (`held`) too: two sources may share a row."""
    places = {identity(row.prompt): row.where for row in held}
    for row in train.rows:
        if where := places.get(identity(row.prompt)):
            expected = f"no validation prompt in training, and {where} is one"
            raise malformed(row.where, f"the same {str(row.prompt)[:60]!r}", "the same row in two sources", expected)


def check_size(data: Data, *, prompts: int, k: int) -> None:
    """Raise ValueError unless there are more than (k + 1)·P training prompts: so many may be in flight at once."""
    needed = (k + 1) * prompts
    count = sum(1 for _ in islice(filter(None, data.train), needed + 1))  # no more, since looking takes time
    if count <= needed:
        too_long = data.too_long + len(data.train) - count
        raise ValueError(
            f"expected more than (k + 1)·P = {needed} training prompts, got {count} "
            f"(held out: {len(data.validation)}, too long: {too_long}, repeated: {data.duplicates}); "
            "likely cause: a small file or prompt budget; lower k or the prompts per step"
        )


# --- The embedded tasks ----------------------------------------------------------------------------------------------

PLACES = 7  # operands that a prompt of `tiny` has room for


class EmbeddedTask(NamedTuple):
    """A task that comes with the code. An answer is right if it is the reference, character by character."""

    example: Callable  # (random.Random, length) -> (text, answer)
    lengths: Sequence[int]  # numbers of operands or digits of a prompt, each entry equally likely
    prompts: int  # for training; few enough for several epochs (Sec. 2)
    base: str = "base"  # folder of the policy that RL starts from, which sft.py makes


def is_held_out(text: str) -> bool:
    """True for the embedded texts kept for validation: decided by the text alone, whatever the seed."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % HELD_OUT == 0


def expression(rng: random.Random, length: int) -> tuple[str, str]:
    """(text, answer) with `length` one-digit operands joined by + and -, for example ("7+5-3+9=", "18").

    Only `rng.random()` is used: it alone is promised to give the same numbers in every Python version.
    """
    digits = [int(10 * rng.random()) for _ in range(length)]
    signs = [1] + [1 if rng.random() < 0.5 else -1 for _ in digits[1:]]
    text = "".join(f"{'+' if sign > 0 else '-'}{digit}" for sign, digit in zip(signs, digits))[1:] + "="
    return text, str(sum(sign * digit for sign, digit in zip(signs, digits)))


def unsorted(rng: random.Random, length: int) -> tuple[str, str]:
    """(text, answer) with `length` digits to put in order, for example ("=5274=", "2457")."""
    digits = "".join(str(int(10 * rng.random())) for _ in range(length))
    return f"={digits}=", "".join(sorted(digits))


def modular(rng: random.Random, length: int) -> tuple[str, str]:
    """(text, answer) of a sum modulo 10, for example ("7+5-3....=", "9").

    The dots fill up to the longest sum, so that every running result stands equally far behind the operand it needs.
    """
    text, answer = expression(rng, length)
    return text[:-1] + "." * (PLACES - length) + "=", str(int(answer) % 10)


# To add a task, add its row: --data and --help, the policy that a run starts from, verdicts and the tests follow.
EMBEDDED_TASKS = {
    # SFT shows sums of 3 to 12 operands, each length as often (sft.TRACES).
    "arithmetic": EmbeddedTask(expression, [*range(3, 10)] * 9 + [*range(10, 14)] * 2 + [*range(14, 19)] * 6, 1_400),
    "sorting": EmbeddedTask(unsorted, range(3, 13), 8_000, base="base/sorting"),
    "tiny": EmbeddedTask(modular, range(2, 1 + PLACES), 4_000, base="base/tiny"),
}


GRADERS = dict.fromkeys(EMBEDDED_TASKS, "exact")  # {task: its grader in verify/graders.py}; another is its own


def base_of(tasks: Iterable[str]) -> str:
    """The folder of the policy that a run on these tasks starts from: that of the first which has one of its own.

    >>> base_of(["arithmetic", "sorting"]), base_of(["prompts.jsonl"])
    ('base/sorting', 'base')
    """
    own = (EMBEDDED_TASKS[task].base for task in tasks if task in EMBEDDED_TASKS)
    return next((base for base in own if base != "base"), "base")


def examples(task: str, count: int, *, seed: int, held_out: bool) -> list[tuple[str, str]]:
    """`count` distinct (text, answer) pairs of an embedded task, always the same for the same arguments.

    held_out  True: texts reserved for validation (is_held_out); False: the others
    Raises ValueError if the task has too few texts.
    """
    rng = random.Random(f"{task}/{seed}")
    example, lengths, *_ = EMBEDDED_TASKS[task]
    pairs = {}
    for _ in range(MOST_DRAWS * count):
        if len(pairs) == count:
            break
        length = lengths[int(len(lengths) * rng.random())]
        text, answer = example(rng, length)
        while is_held_out(text) != held_out:
            text, answer = example(rng, length)
        pairs[text] = answer
    if len(pairs) < count:
        raise ValueError(f"expected {count} different texts of the embedded task {task}, found {len(pairs)}")
    return list(pairs.items())


def embedded(name: str, number: int, validation: int, fits) -> tuple[list[Row], list[Row], int]:
    """(training rows, validation rows, how many of those do not fit) of an embedded task."""
    counts = (EMBEDDED_TASKS[name].prompts, False), (validation, True)
    sets = (examples(name, count, seed=0, held_out=held) for count, held in counts)
    train, held = ([Row(name, *pair, name, number) for pair in pairs] for pairs in sets)
    fitting = list(filter(fits, held))
    return train, fitting, len(held) - len(fitting)


def curves(names: Sequence[str], owned: Sequence[set[str]], weights: Sequence[float]) -> dict[tuple[int, str], str]:
    """{(source, task): its name} where a curve has not the task's name: several sources train on the task, or none."""
    owners = Counter(task for tasks, weight in zip(owned, weights) if weight for task in tasks)
    numbered = enumerate(zip(names, owned, weights))
    return {(n, task): name for n, (name, its, weight) in numbered for task in its if owners[task] > 1 or not weight}


# --- Prompts as tokens -----------------------------------------------------------------------------------------------


class Tokeniser:
    """Makes a Prompt of a Row: renders it as the one text that the model reads, and tokenises that.

    A chat template writes the special tokens itself; without one the tokenizer adds its own (Llama's and Gemma's first
    token; the embedded tokenizer has none). An end-of-text token that it adds at the end is removed: nothing would
    follow it.

    budget      tokens of the longest prompt that is used
    vocabulary  how many tokens the model knows; None: all of the tokenizer's
    """

    def __init__(self, tokenizer, *, budget: int, vocabulary: int | None = None):
        tokens = tokenizer.get_vocab()
        self.tokenizer = tokenizer
        self.budget = budget
        self.vocabulary = vocabulary or 1 + max(tokens.values())
        self.longest = budget * max(map(len, tokens))  # characters: no longer text has few enough tokens
        # Some models use their unknown token as one of these too, and templates write it.
        known = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
        self.unknown = {tokenizer.unk_token_id} - {None} - known
        # Whether a row may hold what cannot be tokenised, so that every one has to be tried before the start.
        strange = tokenizer("\ue000\u0fff", add_special_tokens=False)["input_ids"]
        self.careful = bool(self.unknown & set(strange)) or max(tokens.values()) >= self.vocabulary
        self.shapes: set[tuple] = set()  # of the chats that have been rendered
        self.curves: dict[tuple[int, str], str] = {}  # (source, task) -> validation curve, where it is not the task

    def check(self, row: Row) -> None:
        """Raise ValueError for a row that cannot be rendered or tokenised.

        Whether a template takes a chat is decided by the order of its roles, so one chat of each order is tried.
        """
        shape = tuple(message["role"] for message in row.prompt) if isinstance(row.prompt, list) else ()
        if self.careful or shape not in self.shapes:
            if shape not in self.shapes and self.render(row) is None:
                cause = "a chat template for another form of messages, or a broken one"
                expected = "the texts of the system and the user in the rendered prompt"
                raise malformed(row.where, "a prompt without it", cause, expected)
            self(row)
            self.shapes.add(shape)

    def __call__(self, row: Row, index: int = 0) -> Prompt | None:
        """The prompt; None if its question is lost, or it has too many tokens, or an answer of over MAX_ANSWER bytes.

        Raises ValueError for what cannot be rendered or tokenised.
        """
        text = self.render(row)
        if text is None or len(text) > self.longest:  # before tokenising, which takes long for megabytes
            return None
        ids = self.ids(text)
        if self.unknown & set(ids):
            cause = "the embedded base model's tokenizer, which knows its own tasks only: give another --model"
            raise malformed(row.where, f"{text[:60]!r}", cause, "text that the tokenizer can spell")
        if max(ids, default=0) >= self.vocabulary:
            token = self.tokenizer.convert_ids_to_tokens(max(ids))
            cause = "the tokenizer of another model, or tokens that were added without resizing the model"
            expected = f"ids below {self.vocabulary}, the model's vocabulary"
            raise malformed(row.where, f"the token {token!r} with the id {max(ids)}", cause, expected)
        if len(ids) > self.budget or len(row.answer.encode()) > MAX_ANSWER:
            return None
        curve = self.curves.get((row.source, row.task), row.task)
        return Prompt(index, tuple(ids), text, row.answer, row.task, row.source, curve, row.where)

    def fits(self, row: Row) -> bool:
        """Whether a row has no more tokens than the budget."""
        return self(row) is not None

    def ids(self, text: str) -> list[int]:
        """A rendered text as tokens."""
        special = not self.tokenizer.chat_template
        ids = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        return ids[:-1] if special and ids[-1:] == [self.tokenizer.eos_token_id] else ids

    def render(self, row: Row) -> str | None:
        """The row's prompt as one text, up to where the completion starts; None if its question is not in it."""
        chat = isinstance(row.prompt, list)
        if not self.tokenizer.chat_template:
            if chat:
                cause = "a base model, which has no chat template"
                raise malformed(row.where, "chat messages", cause, "a prompt as one text")
            return row.prompt
        messages = row.prompt if chat else [{"role": "user", "content": row.prompt}]
        try:
            return rendered(self.tokenizer, messages, add_generation_prompt=True)
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            cause = "a broken chat template, or one without a system message, or where user and assistant take turns"
            raise malformed(row.where, f"{error} (roles: {roles})", cause, "a chat that the template takes") from error


def rendered(tokenizer, messages: list[dict], **variables) -> str | None:
    """Chat messages as one text, by the tokenizer's template, with contents as texts or else as lists of text parts.

    None if the text of a system's or a user's message is not in it, spaces aside, or if the lists are printed as Python
    prints them. Raises TemplateError if neither is taken.
    """
    asked = [message["content"] for message in messages if message["role"] in ("system", "user")]
    parts = [message | {"content": [{"type": "text", "text": message["content"]}]} for message in messages]
    failures: list[Exception] = []
    for form in (messages, parts):
        try:
            text = tokenizer.apply_chat_template(form, tokenize=False, **variables)
        except (TemplateError, TypeError) as error:
            failures.append(error)
            continue
        bare = "".join(text.split())
        printed = form is parts and any(str(message["content"]) in text for message in parts)
        if not printed and all("".join(question.split()) in bare for question in asked):
            return text
    if len(failures) == 2:
        raise TemplateError(str(failures[0]))
    return None
