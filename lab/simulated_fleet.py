"""Sec. 2, Sec. 3.1: the paper's 64 generators and 16 trainers in virtual time; nothing is learnt.

    python -m lab.simulated_fleet        the table, results/simulated_fleet.json, the figure

Both ends of pipeline.py's queue run here, in virtual time (plumbing/run/virtual.py). Only the work is replaced: a
generator draws how many tokens a completion has and takes TOKEN seconds for a decode step of all its slots; the
trainers, who act as one, take `train` seconds for an optimizer step. Verdicts take no time; there are no evaluations.

A step cannot take less than the largest of three times:
    the trainers         train + broadcast
    the slots            tokens of a batch / (tokens per second of all slots together)
    the longest answer   (its decoding + train) / (k + 1) + broadcast
The third: the requests of k + 1 batches are issued at the same time, and those that come next only when the first of
these batches is trained on, which waits for its longest completion. So batches begin together, and times are measured
over whole cycles of k + 1 optimizer steps.

Test: pytest tests/test_simulated_fleet.py
"""

import itertools
import json
import math
import random
import sys
from collections import Counter, deque
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from matplotlib.figure import Figure

import pipeline
from data import Prompt
from plumbing.run.store import Store
from plumbing.run.virtual import Events, Memory

ROOT = Path(__file__).resolve().parent.parent

TOKEN = 0.020  # seconds of a decode step
CHUNK = 16  # tokens that one entry of Rollout.versions stands for; staleness is as exact as that
CYCLES = 3  # at least so many cycles of k + 1 optimizer steps are measured


@dataclass(frozen=True)
class Setting:
    """The processes of a run and their work; the paper's where known (Sec. 2), else the numbers of a plausible one."""

    off_policy: str = "pipeline"
    k: int = 8  # optimizer steps
    prompts: int = 48
    generations: int = 16
    trainers: int = 16
    generators: int = 64
    slots: int = 64
    train: float = 30.0  # seconds of an optimizer step
    broadcast: float = 0.0  # seconds of sending weights
    mean: float = 6000.0  # tokens of a completion, lognormal, before the cut
    sigma: float = 0.7  # standard deviation of the logarithm of its tokens
    cut: int = 14336  # tokens
    slow: float = 1.0  # the last generator takes so many times longer for a decode step
    seed: int = 0

    @property
    def speed(self):
        """Tokens per second of all slots together."""
        return self.slots / TOKEN * (self.generators - 1 + 1 / self.slow)

    @property
    def cycle(self):
        """Optimizer steps after which the pattern of waiting repeats."""
        return pipeline.OFF_POLICY[self.off_policy].bound(self.k) + 1

    @property
    def warm_up(self):
        """Steps that are not measured: until the run has left its start behind."""
        return 2 * self.cycle

    @property
    def steps(self):
        """Of the run: those measured are followed by a cycle, so that no generator has run out of requests."""
        return self.warm_up + self.cycle * max(CYCLES, -(-20 // self.cycle)) + self.cycle


LONG = {"mean": 6000.0 * 32768 / 14336, "cut": 32768}  # the same answers, stretched to 32k
ROWS = {
    **{f"pipeline k={k}": {"k": k} for k in (0, 1, 2, 4, 8, 16)},
    "ppo k=8": {"off_policy": "ppo"},
    **{f"pipeline k=8, {slots} slots": {"slots": slots} for slots in (32, 128, 256)},
    **{f"pipeline k={k}, broadcast 2 s": {"k": k, "broadcast": 2.0} for k in (0, 8)},
    **{f"pipeline k=8, one generator {slow} times slower": {"slow": slow} for slow in (3, 10)},
    **{f"pipeline k={k}, 32k tokens": {"k": k, **LONG} for k in (0, 8, 16)},
    "ppo k=8, 32k tokens": {"off_policy": "ppo", **LONG},
}


def tokens(setting, request, index):
    """How many tokens completion `index` of a request has: the same whenever and wherever it is generated."""
    rng = random.Random(f"{setting.seed} {request} {index}")
    drawn = rng.lognormvariate(math.log(setting.mean) - setting.sigma**2 / 2, setting.sigma)
    return min(setting.cut, max(1, round(drawn)))


def bounds(setting, numbers):
    """{what limits: seconds} that an optimizer step takes at least, for the batches of these requests.

    With one slow generator the second bound takes for granted that it gets less work; the third knows nothing of it.
    """
    drawn = [tokens(setting, number, index) for number in numbers for index in range(setting.generations)]
    longest = max(drawn) * TOKEN + setting.train
    return {
        "trainers": setting.train + setting.broadcast,
        "slots": sum(drawn) / len(numbers) * setting.prompts / setting.speed,
        "longest answer": longest / (setting.k + 1) + setting.broadcast,
    }


# --- The work --------------------------------------------------------------------------------------------------------


@dataclass
class Running:
    """A completion that is queued or in a slot."""

    request: pipeline.Request
    index: int
    left: int  # tokens
    spans: list  # (policy version, tokens decoded under it)


class Generator:
    """What `generate` and pipeline.RequestQueue ask of a generator."""

    def __init__(self, setting, slow=1.0):
        self.setting = setting
        self.seconds = TOKEN * slow  # of a decode step
        self.version = 0
        self.running = []
        self.queue = deque()
        self.work = {"decode_seconds": 0.0}

    def add(self, request):
        lengths = [tokens(self.setting, request.number, index) for index in range(request.generations)]
        self.queue += [Running(request, index, length, []) for index, length in enumerate(lengths)]

    def has_capacity(self, evaluation):
        return self.setting.slots - len(self.running) > len(self.queue)

    def start(self):
        """Fill free slots; returns the decode steps until a completion ends, 0 without any."""
        while self.queue and len(self.running) < self.setting.slots:
            self.running.append(self.queue.popleft())
        return min((one.left for one in self.running), default=0)

    def decode(self, steps):
        """So many decode steps; returns the completions that have ended."""
        self.work["decode_seconds"] += steps * self.seconds
        for one in self.running:
            one.left -= steps
            one.spans.append((self.version, steps))
        ended = [one for one in self.running if not one.left]
        self.running = [one for one in self.running if one.left]
        return [completion(one) for one in ended]


def completion(one):
    """The pipeline.Rollout of a Running that has ended, with one entry for every CHUNK tokens."""
    versions = []
    count = 0
    for version, steps in one.spans:
        count += steps
        versions += [version] * (math.ceil(count / CHUNK) - len(versions))
    n = len(versions)
    fields = dict(prompt_ids=[0], ids=[0] * n, mask=[True] * n, logprobs=[0.0] * n, versions=versions)
    request = one.request
    place = request.number, one.index, request.evaluation
    return pipeline.Rollout(*place, **fields, text="", truncated=False, interrupted=False)


@dataclass
class Score:
    """What the queue reads of a verdict: every answer is right, at once."""

    completion: pipeline.Rollout
    value: float = 1.0
    reward: float = 1.0
    marked: bool = True
    timed_out: bool = False
    error: str = ""


def generate(queue, generator):
    """train.generate without evaluations. Yields the decode steps that come next, 0 if there are none, None to receive
    weights; is sent how many have been made.
    """
    while (state := queue.state(busy=False)).stop is None:
        if state.version > generator.version:
            queue.join(state.version)
            yield None
            generator.version = state.version
            continue
        for request in queue.claim(generator):
            generator.add(request)
        steps = yield generator.start()
        for rollout in generator.decode(steps):
            queue.put(Score(rollout))
        queue.report(generator.work)


class Turns:
    """A generator's life: decode steps without an end and without a new control state pass at once."""

    def __init__(self, life, generator, events):
        self.life = life
        self.generator = generator
        self.events = events
        self.plan = None  # (when the decode steps began, how many there are to be) or None
        events.after(0.0, partial(self.resume, None))

    def resume(self, sent):
        """Go on until it waits for decode steps, weights or a new control state."""
        self.plan = None
        steps = next(self.life, 0) if sent is None else self.send(sent)
        if steps is not None:
            self.expect(self.events.now, steps)

    def send(self, steps):
        try:
            return self.life.send(steps)
        except StopIteration:  # the run has ended
            return 0

    def expect(self, began, steps):
        """Be resumed when so many decode steps since `began` are over; not at all without any."""
        self.plan = plan = began, steps
        until = began + steps * self.generator.seconds
        if steps:
            self.events.after(until - self.events.now, lambda: self.plan is plan and self.resume(steps))

    def look(self):
        """The control state has changed: look at it after the decode step under way."""
        if self.plan:
            began, steps = self.plan
            whole = math.ceil((self.events.now - began) / self.generator.seconds - 1e-6)
            self.plan = plan = began, min(steps, max(1, whole)) if steps else 0
            until = began + plan[1] * self.generator.seconds
            self.events.after(max(0.0, until - self.events.now), lambda: self.plan is plan and self.resume(plan[1]))


# --- The run ---------------------------------------------------------------------------------------------------------


def run(setting):
    """(rows of the steps, of the whole run; its virtual seconds): the loop of train.py without the learning."""
    events = Events()
    turns = []
    memory = Memory(lambda key: [one.look() for one in turns] if key == "state" else None)
    heart = SimpleNamespace(tick=lambda: None, stopped=None, waiting=lambda what: nullcontext())
    store = Store(memory, 0, heart, pause=lambda _: events.next())
    ranks = range(1, 1 + setting.generators)
    names = ("off_policy", "k", "prompts", "generations", "steps")
    rule = {name: getattr(setting, name) for name in names}
    queue = pipeline.RolloutQueue(store, range(1), ranks, **rule, start=0, drain=False)
    for rank in ranks:
        generator = Generator(setting, setting.slow if rank == ranks[-1] else 1.0)
        requests = pipeline.RequestQueue(Store(memory, rank, heart))
        turns.append(Turns(generate(requests, generator), generator, events))

    def send():
        events.sleep(setting.broadcast)
        for one in turns:
            events.after(0.0, partial(one.resume, None))

    numbers = itertools.count()

    def admit():
        queue.admit([Prompt(next(numbers), (0,), "", "", "arithmetic") for _ in range(queue.room)])

    rows = []
    admit()
    for step in range(setting.steps):
        rollouts = sum(queue.next_batch(step), [])
        queue.tokens(rollouts)
        events.sleep(setting.train)
        staleness = Counter()
        for rollout in rollouts:
            staleness.update({step - version: count for version, count in rollout.versions.items()})
        decoding = sum(work["decode_seconds"] for work in queue.generator_work().values())
        rows.append({"step": step, "ended": events.now, "ages": staleness, "decoding": decoding})
        queue.announce(step + 1, send)
        admit()
    return rows, events.now


def measure(setting):
    """{name: number} of the steps that are whole cycles, without the first and the last ones."""
    rows, _ = run(setting)
    inner = rows[setting.warm_up - 1 : setting.steps - setting.cycle]
    seconds = inner[-1]["ended"] - inner[0]["ended"]
    steps = len(inner) - 1
    staleness = sum((row["ages"] for row in inner[1:]), Counter())
    total = sum(staleness.values())
    numbers = [number for row in inner[1:] for number in pipeline.batch_requests(row["step"], setting.prompts)]
    limits = bounds(setting, numbers)
    limit = max(limits, key=limits.get)
    alternates = pipeline.OFF_POLICY[setting.off_policy].alternates  # the bounds are those of sides that overlap
    trained = sum(tokens(setting, number, index) for number in numbers for index in range(setting.generations))
    return {
        "seconds": seconds / steps,
        "bound": None if alternates else limits[limit],
        "limit": None if alternates else limit,
        "idle_trainers": 1 - setting.train * steps / seconds,
        "idle_generators": 1 - (inner[-1]["decoding"] - inner[0]["decoding"]) / seconds / setting.generators,
        "slots_used": trained * TOKEN / (seconds * setting.slots * setting.generators),
        "age": sum(steps_old * count for steps_old, count in staleness.items()) / total,
        "ages": {steps_old: count / total for steps_old, count in sorted(staleness.items())},
        "steps": steps,
    }


# --- The table and the figure ----------------------------------------------------------------------------------------


def table(measured):
    """Lines of Markdown for {name of a row: what `measure` returned}."""
    head = ("setting", "s a step", "bound (what limits)", "trainers idle", "staleness, mean")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, one in measured.items():
        bound = f"{one['bound']:.1f} ({one['limit']})" if one["bound"] else "-"
        cells = [name, f"{one['seconds']:.1f}", bound, f"{100 * one['idle_trainers']:.1f} %", f"{one['age']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def draw(measured, path):
    """Three panels: seconds a step against k with the bound; against slots; staleness."""
    figure = Figure(figsize=(15, 4.2), layout="constrained")
    by_k, by_slots, by_staleness = figure.subplots(1, 3)
    ks = (0, 1, 2, 4, 8, 16)
    rows = [measured[f"pipeline k={k}"] for k in ks]
    by_k.plot(ks, [row["seconds"] for row in rows], "o-", label="PipelineRL-k")
    by_k.plot(ks, [row["bound"] for row in rows], "k--", lw=1, label="bound")
    by_k.plot([8], [measured["ppo k=8"]["seconds"]], "s", label="PPO-off-policy-8")
    for slow, mark in ((3, "^"), (10, "v")):
        seconds = measured[f"pipeline k=8, one generator {slow} times slower"]["seconds"]
        by_k.plot([8], [seconds], mark, label=f"one of 64 generators {slow} times slower")
    by_k.set(xlabel="k (optimizer steps)", ylabel="seconds an optimizer step", ylim=(0, None), title="64 slots")
    slots = {32: ", 32 slots", 64: "", 128: ", 128 slots", 256: ", 256 slots"}
    rows = [measured[f"pipeline k=8{name}"] for name in slots.values()]
    by_slots.plot(list(slots), [100 * row["slots_used"] for row in rows], "o-", label="slots in use")
    idle = [100 * (1 - row["idle_generators"]) for row in rows]
    by_slots.plot(list(slots), idle, "s-", label="generators not idle, as the log counts")
    by_slots.set(xlabel="slots a generator", ylabel="% of the time", ylim=(0, 105), title="PipelineRL-8")
    for name in ("pipeline k=4", "pipeline k=8", "pipeline k=16", "ppo k=8"):
        shares = {int(k): share for k, share in measured[name]["ages"].items()}
        by_staleness.plot(range(17), [100 * shares.get(k, 0.0) for k in range(17)], "o-", ms=3, label=name)
    by_staleness.set(
        xlabel="staleness of a token (optimizer steps)", ylabel="% of the trained tokens", title="64 slots"
    )
    for ax in (by_k, by_slots, by_staleness):
        ax.grid(alpha=0.3)
        ax.legend(fontsize=8)
    figure.suptitle("Simulated: 64 generators, 16 trainers, completions of 6,000 tokens in the mean, at most 14,336")
    figure.savefig(path, dpi=110)


def main():
    measured = {}
    for name, row in ROWS.items():
        measured[name] = measure(Setting(**row))
        print(f"{name}: {measured[name]['seconds']:.1f} s a step", file=sys.stderr)
    print(*table(measured), sep="\n")
    (ROOT / "results" / "simulated_fleet.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    draw(measured, ROOT / "figures" / "simulated_fleet.png")


if __name__ == "__main__":
    main()
