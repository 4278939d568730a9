"""Sec. 2, Sec. 3.1: the paper's 64 generators and 16 trainers in virtual time; nothing is learnt.

    python benchmarks/simulated_fleet.py                  all rows: the table, results/simulated_fleet.json, the figure
    python benchmarks/simulated_fleet.py --rows k=8 slow  only rows whose names hold one of these texts; prints them
    python benchmarks/simulated_fleet.py --requests       requests to the store by what a rank is doing, and how many
                                                          such ranks one store bears

pipeline.py's own Pipeline, serve and Mailbox run here, in virtual time (plumbing/virtual.py). Only the work is
replaced: a generator draws how many tokens a completion has and takes TOKEN seconds for a decode step of all its slots;
a trainer takes `train` seconds for an optimizer step. Verdicts take no time, and there are no evaluations.

A step cannot take less than the largest of three times:
    the trainers         train + broadcast
    the slots            tokens of a batch / (tokens per second of all slots together)
    the longest answer   (its decoding + train) / (k + 1) + broadcast
The third: the requests of k + 1 batches are issued at the same time, and those that come next only when the first of
these batches is trained on, which waits for its longest completion. So batches begin together, and times are measured
over whole cycles of k + 1 optimizer steps.

Test: pytest tests/test_simulated_fleet.py
"""

import argparse
import itertools
import json
import math
import random
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from matplotlib.figure import Figure

sys.path.insert(0, str(ROOT := Path(__file__).resolve().parent.parent))

import pipeline  # noqa: E402
from data import Prompt  # noqa: E402
from plumbing import virtual  # noqa: E402

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
    drain: bool = False  # generators that are too slow get no requests, as in train.py
    seed: int = 0

    @property
    def speed(self):
        """Tokens per second of all slots together."""
        last = 0 if self.drain and self.slow > 2 else 1 / self.slow
        return self.slots / TOKEN * (self.generators - 1 + last)

    @property
    def cycle(self):
        """Optimizer steps after which the pattern of waiting repeats."""
        return self.k if self.off_policy == "ppo" else self.k + 1

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
    **{f"pipeline k=8, one {slow} times slower, drained": {"slow": slow, "drain": True} for slow in (3, 10)},
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
    """What `pipeline.serve` asks of a generator. Decode steps without an end and a new control state pass at once."""

    def __init__(self, setting, world, slow=1.0, poll=False):
        self.setting = setting
        self.world = world
        self.seconds = TOKEN * slow
        self.poll = poll  # a decode step at a time, so that the store is asked as often as in a real run
        self.version = 0
        self.running = []
        self.queue = deque()
        self.slots = setting.slots
        self.decode_steps = 0
        self.slot_steps = 0  # tokens: one per slot in use and decode step

    def add(self, request):
        lengths = [tokens(self.setting, request.number, index) for index in range(request.generations)]
        self.queue += [Running(request, index, length, []) for index, length in enumerate(lengths)]

    def has_capacity(self, evaluation):
        return self.setting.slots - len(self.running) > len(self.queue)

    @property
    def busy(self):
        return bool(self.running or self.queue)

    def named_weights(self):
        return {}

    def update_weights(self, version):
        self.version = version

    def step(self):
        """Decode until a completion ends or the control state changes; returns the completions that have ended."""
        while self.queue and len(self.running) < self.setting.slots:
            self.running.append(self.queue.popleft())
        steps = self.decode(min(one.left for one in self.running))
        self.decode_steps += steps
        self.slot_steps += steps * len(self.running)
        for one in self.running:
            one.left -= steps
            one.spans.append((self.version, steps))
        ended = [one for one in self.running if not one.left]
        self.running = [one for one in self.running if one.left]
        return [completion(one) for one in ended]

    def decode(self, steps):
        """Decode so many steps, or fewer: until the one in which the control state changes. Returns how many."""
        if self.poll:
            self.world.sleep(self.seconds)
            return 1
        began = self.world.now
        self.world.wait(["news/count"], steps * self.seconds)
        whole = math.ceil((self.world.now - began) / self.seconds - 1e-6)
        steps = min(steps, max(1, whole))
        self.world.sleep(max(0.0, began + steps * self.seconds - self.world.now))
        return steps


def completion(one):
    """The pipeline.Rollout of a Running that has ended, with one entry for every CHUNK tokens."""
    versions = []
    count = 0
    for version, steps in one.spans:
        count += steps
        versions += [version] * (math.ceil(count / CHUNK) - len(versions))
    n = len(versions)
    fields = dict(prompt_ids=[0], ids=[0] * n, mask=[True] * n, logprobs=[0.0] * n, versions=versions)
    return pipeline.Rollout(one.request.number, one.index, False, **fields, text="", truncated=False, interrupted=False)


@dataclass
class Score:
    """What `serve` reads of a verdict."""

    completion: pipeline.Rollout
    correct: bool = True
    reward: float = 1.0
    marked: bool = True
    timed_out: bool = False
    error: str = ""


class Scorer:
    """Every answer is right, at once."""

    def __init__(self):
        self.scores = []

    def submit(self, completion, prompt):
        self.scores.append(Score(completion))

    def finished(self):
        scores, self.scores = self.scores, []
        return scores


def train(setting, world, box, send, rows):
    """The loop of train.py without the learning, on one trainer rank; rank 0 adds a row per step."""
    numbers = itertools.count()
    pipe = pipeline.Pipeline(
        box,
        off_policy=setting.off_policy,
        k=setting.k,
        prompts=setting.prompts,
        generations=setting.generations,
        steps=setting.steps,
    )

    def issue():
        pipe.issue([Prompt(next(numbers), (0,), "", "", "arithmetic") for _ in range(pipe.room)])

    issue()
    for step in range(setting.steps):
        rollouts = sum(pipe.next_batch(step), [])
        pipe.take(rollouts[box.rank :: setting.trainers])
        box.store.enter("trains")
        world.sleep(setting.train)
        if box.rank == 0:
            staleness = Counter()
            for rollout in rollouts:
                staleness.update({step - version: count for version, count in rollout.versions.items()})
            rows.append({"step": step, "ended": world.now, "ages": staleness, "idle": pipe.idle()})
        box.store.enter("waits")
        if setting.drain:
            pipe.drain()
        pipe.publish(step + 1, dict, send)
        issue()
    pipe.stop("finished")


# --- The run ---------------------------------------------------------------------------------------------------------


class Counted:
    """The store as one rank sees it: counts its requests, and its seconds, by what it is doing (`enter`)."""

    def __init__(self, store, world, state):
        self.store = store
        self.world = world
        self.state = state
        self.since = world.now
        self.requests = Counter()
        self.seconds = Counter()

    def enter(self, state):
        self.seconds[self.state] += self.world.now - self.since
        self.since = self.world.now
        self.state = state

    def __getattr__(self, name):
        self.requests[self.state] += 1
        return getattr(self.store, name)


class Watched(Generator):
    """A generator that tells its rank's Counted store whether it decodes."""

    def __init__(self, *args, store, **more):
        super().__init__(*args, **more)
        self.store = store

    def step(self):
        self.store.enter("decodes")
        ended = super().step()
        if not self.busy:
            self.store.enter("idle")
        return ended


def run(setting, poll=False):
    """(rows of the steps, generators, {rank: its Counted store}, virtual seconds) of a whole run.

    poll  True: as in a real run, ranks ask the store again and again, instead of pausing until there is something
    """
    world = virtual.World()
    store = virtual.Store(world)
    wire = virtual.Wire(world, setting.broadcast)
    ranks = setting.trainers + setting.generators
    rows = []
    generators = []
    actors = {}
    stores = {rank: Counted(store, world, "waits" if rank < setting.trainers else "idle") for rank in range(ranks)}
    for rank, own in stores.items():
        box = virtual.mailbox(world, own, rank, trainers=setting.trainers, ranks=ranks)
        if poll:
            box.pause = world.sleep
            box.look = pipeline.LOOK
            box.beat_every = pipeline.BEAT
        if rank < setting.trainers:
            actors[box.name(rank)] = lambda box=box: train(setting, world, box, wire.send, rows)
        else:
            slow = setting.slow if rank == ranks - 1 else 1.0
            generators.append(one := Watched(setting, world, slow, poll, store=own))
            actors[box.name(rank)] = lambda one=one, box=box: pipeline.serve(one, box, wire.receive, Scorer())
    world.run(actors)
    return rows, generators, stores, world.now


def measure(setting):
    """{name: number} of the steps that are whole cycles, without the first and the last ones."""
    began = time.process_time()
    rows, generators, _, end = run(setting)
    inner = rows[setting.warm_up - 1 : setting.steps - setting.cycle]
    seconds = inner[-1]["ended"] - inner[0]["ended"]
    steps = len(inner) - 1
    staleness = sum((row["ages"] for row in inner[1:]), Counter())
    total = sum(staleness.values())
    numbers = [number for row in inner[1:] for number in pipeline.batch_requests(row["step"], setting.prompts)]
    limits = bounds(setting, numbers)
    limit = max(limits, key=limits.get)
    trained = sum(tokens(setting, number, index) for number in numbers for index in range(setting.generations))
    return {
        "seconds": seconds / steps,
        "bound": limits[limit] if setting.off_policy == "pipeline" else None,
        "limit": limit if setting.off_policy == "pipeline" else None,
        "idle_trainers": 1 - setting.train * steps / seconds,
        "idle_generators": (inner[-1]["idle"] - inner[0]["idle"]) / seconds / setting.generators,
        "slots_used": trained * TOKEN / (seconds * setting.slots * setting.generators),
        "age": sum(steps_old * count for steps_old, count in staleness.items()) / total,
        "ages": {steps_old: count / total for steps_old, count in sorted(staleness.items())},
        "steps": steps,
        "cpu_seconds_per_step": (time.process_time() - began) / setting.steps,
    }


def requests(setting):
    """{(role, state): requests per second and rank} of a run in which the ranks poll as in reality."""
    _, _, stores, _ = run(setting, poll=True)
    counts = Counter()
    seconds = Counter()
    for rank, store in stores.items():
        store.enter("ended")
        role = "rank 0" if rank == 0 else "trainer" if rank < setting.trainers else "generator"
        for state, spent in store.seconds.items():
            counts[role, state] += store.requests[state]
            seconds[role, state] += spent
    return {place: counts[place] / seconds[place] for place in seconds if seconds[place]}


def capacity(seconds=1.0):
    """Requests per second that a real store answers to one client, which waits for each answer."""
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", host.port, is_master=False, wait_for_workers=False)
    began = time.perf_counter()
    count = 0
    while time.perf_counter() - began < seconds:
        count += 1
        client.add("news/count", 0)
    return count / (time.perf_counter() - began)


# --- The table and the figure ----------------------------------------------------------------------------------------


def table(measured):
    """Lines of Markdown for {name of a row: what `measure` returned}."""
    head = "setting|s a step|bound (what limits)|above it|trainers idle|generators idle|slots in use"
    head += "|staleness, mean|at most"
    lines = [f"| {head.replace('|', ' | ')} |", "|---" * (head.count("|") + 1) + "|"]
    for name, one in measured.items():
        bound, above = "-", "-"
        if one["bound"]:
            bound = f"{one['bound']:.1f} ({one['limit']})"
            above = f"{100 * (one['seconds'] / one['bound'] - 1):.1f} %"
        shares = (f"{100 * one[key]:.1f} %" for key in ("idle_trainers", "idle_generators", "slots_used"))
        cells = [
            name,
            f"{one['seconds']:.1f}",
            bound,
            above,
            *shares,
            f"{one['age']:.1f}",
            str(max(map(int, one["ages"]))),
        ]
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
        [line] = by_k.plot([8], [seconds], mark, label=f"one of 64 generators {slow} times slower")
        drained = measured[f"pipeline k=8, one {slow} times slower, drained"]["seconds"]
        style = dict(color=line.get_color(), mfc="none", ms=9)
        by_k.plot([8], [drained], mark, **style, label="the same, drained")
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
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose name holds one of these texts")
    parser.add_argument("--requests", action="store_true", help="requests to the store, on 8 + 2 devices")
    args = parser.parse_args()
    if args.requests:
        small = Setting(prompts=6, generators=8, trainers=2, k=1)
        answers = max(capacity() for _ in range(5))
        print(f"one store: {answers:,.0f} requests per second")
        for (role, state), rate in sorted(requests(small).items()):
            bears = f"one store bears {answers / rate:,.0f} such ranks" if rate else "none"
            print(f"{role} {state}: {rate:.1f} requests per second: {bears}")
        return
    chosen = {name: row for name, row in ROWS.items() if any(text in name for text in args.rows or [""])}
    if not chosen:
        parser.error(f"--rows {' '.join(args.rows)}: no row has this in its name; rows: {', '.join(ROWS)}")
    measured = {}
    for name, row in chosen.items():
        measured[name] = measure(Setting(**row))
        print(f"{name}: {measured[name]['seconds']:.1f} s a step", file=sys.stderr)
    print(*table(measured), sep="\n")
    if not args.rows:
        (ROOT / "results" / "simulated_fleet.json").write_text(json.dumps(measured, indent=1) + "\n")
        draw(measured, ROOT / "figures" / "simulated_fleet.png")


if __name__ == "__main__":
    main()
