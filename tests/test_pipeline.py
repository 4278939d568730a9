"""Sec. 3.1: claims about requests, the versions of tokens, the queue's two ends, and weights.

Most runs are simulated: the real loops of train.py, `train` and `generate`, run in threads, one thread at a time, on a
virtual clock and a store in memory. So a run depends only on its Setting and takes milliseconds.
"""

import random
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import batches
import pipeline
import train
from data import Curriculum, Prompt
from pipeline import Request, RequestQueue, Rollout, RolloutQueue
from plumbing.run.heartbeat import Lost
from plumbing.run.processes import broadcast_weights, layout_of
from plumbing.run.store import POLL, Interrupted, Store, paces
from plumbing.run.virtual import Events, Memory
from plumbing.setup import build, evaluation
from rollout import Generator
from verify.scorer import Score

PAUSE = POLL  # virtual seconds; the unit of every duration below


# --- Time ------------------------------------------------------------------------------------------------------------


class World(Events):
    """Actors, each in a thread, of which one runs at a time: the one whose sleep ends first goes on."""

    def __init__(self):
        super().__init__()
        self.errors = []
        self.sleeps = 0

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.sleeps += 1
        # Several times the sleeps of the longest run below.
        if self.errors or self.sleeps > 30_000:
            raise RuntimeError(f"expected an end of the run, got none by {self.now:.1f} virtual seconds")
        turn = threading.Event()
        self.after(seconds, turn.set)
        self.next()
        turn.wait()

    def live(self, actor):
        try:
            actor()
        except Exception as error:  # raised again in the test's own thread
            self.errors.append(error)
        if self._heap:
            self.next()

    def run(self, *actors):
        threads = [threading.Thread(target=self.live, args=(actor,), daemon=True) for actor in actors]
        for thread in threads:
            self.after(0.0, thread.start)
        self.next()
        for thread in threads:
            thread.join(30)
        if self.errors:
            raise self.errors[0]
        assert not any(thread.is_alive() for thread in threads)


class Slow:
    """A backend on which every call takes a random time, in which other actors run: calls may come in any order."""

    def __init__(self, backend, world, rng):
        self.backend = backend
        self.world = world
        self.rng = rng

    def __getattr__(self, name):
        self.world.sleep(self.rng.choice((0.0, 0.1, 0.4)) * PAUSE)
        return getattr(self.backend, name)

    def get(self, key):
        """Waits for a key that is not there yet, as a TCPStore does."""
        while not self.check([key]):
            self.world.sleep(PAUSE)
        return self.backend.get(key)


# --- A run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    off_policy: str = "pipeline"
    k: int = 2
    steps: int = 4
    start: int = 0
    prompts: int = 2
    generations: int = 2
    trainers: int = 1
    generators: tuple = ((1, 2),)  # (duration of a decode step, slots) of each generator
    training: int = 4  # duration of an optimizer step
    longest: int = 4  # tokens of a completion; one in eight is up to eight times as long
    verifying: int = 0  # longest duration of verifying an answer
    evaluate_every: int = 9999  # optimizer steps; at the start and the end of a run always
    correct: str = "mixed"  # or "always" (every group has zero variance), or "learnt" (some prompts are always solved)
    pool: int = 1000  # training prompts
    seed: int = 0  # of lengths, verdicts and prompts; durations are given above

    @property
    def rule(self):
        return {name: getattr(self, name) for name in ("off_policy", "k", "prompts", "generations", "steps", "start")}

    @property
    def trainer_ranks(self):
        return range(self.trainers)

    @property
    def generator_ranks(self):
        return range(self.trainers, self.trainers + len(self.generators))


@dataclass
class Record:
    """What happened."""

    batches: dict = field(default_factory=dict)  # step -> [[RolloutMetadata]]
    trained: dict = field(default_factory=dict)  # step -> [Rollout]
    started: Counter = field(default_factory=Counter)  # (evaluation, its version or False, request, index) -> times
    evaluated: dict = field(default_factory=dict)  # version -> ([[RolloutMetadata]], [Rollout])
    keys: list = field(default_factory=list)  # number of keys in the store after every step
    left: list = field(default_factory=list)  # why the generators' loops ended
    retired: int = 0

    def staleness(self):
        """(step, step - version) of every token that trained."""
        return [(step, step - v) for step, rollouts in self.trained.items() for one in rollouts for v in one.versions]

    def prompts(self):
        return [[group[0].prompt for group in groups] for groups in self.batches.values()]


def dice(*name):
    return random.Random(repr(name))


class FakeGenerator(Generator):
    """Decodes one token per slot and step; lengths are random, the duration of a step is this generator's."""

    def __init__(self, setting, index, record, sleep):
        duration, self.slots = setting.generators[index]
        self.setting, self.record, self.sleep, self.version = setting, record, sleep, setting.start
        self.duration, self.weights = duration * PAUSE, {"version": [setting.start - 1]}
        self._running, self._queue, self._evaluations, self._evaluating = [], deque(), deque(), 0
        self.seed, self.think_budget, self.max_new_tokens, self.positions = 0, None, 0, 1
        self.eos_ids, self.other_ends, self._text = [7], {}, str
        self.work = {"decode_seconds": 0.0}

    def add(self, request):
        for index in range(request.generations):
            self.record.started[request.evaluation, request.evaluation and request.version, request.number, index] += 1
        super().add(request)

    def length(self, sequence):
        request = sequence.group.request
        rng = dice(self.setting.seed, request.evaluation, request.number, sequence.index)
        return rng.randint(1, self.setting.longest * (8 if rng.random() < 0.125 else 1))

    def named_weights(self):
        return self.weights

    def update_weights(self, version):
        assert self.weights["version"] == [version] and version > self.version
        self.version = version

    def step(self):
        self._running += self._starts()
        if not self._running:
            return []
        self.sleep(self.duration)
        self.work["decode_seconds"] += self.duration
        for sequence in self._running:
            sequence.tokens.append((7, True, -1.0, self.version))
        done = [sequence for sequence in self._running if len(sequence.tokens) == self.length(sequence)]
        self._running = [sequence for sequence in self._running if sequence not in done]
        return [self._completion(sequence) for sequence in done]

    def close(self):
        self._running = None


def verdict(completion, value, **more):
    """What a scorer hands back."""
    return Score(completion, None, "", 0.0, value, **more)


class FakeScorer:
    """Random verdicts (see Setting.correct), some of them late."""

    def __init__(self, setting, clock):
        self.setting, self.clock, self.pending = setting, clock, []

    def submit(self, completion, prompt):
        rng, kind = dice(self.setting.seed, prompt.index, completion.request, completion.index), self.setting.correct
        solved = kind == "always" or kind == "learnt" and prompt.index % 4 > 0
        due = self.clock() + rng.randint(0, self.setting.verifying) * PAUSE
        self.pending.append((due, verdict(completion, solved or rng.random() < 0.5)))

    def finished(self):
        now = self.clock()
        done = [score for due, score in self.pending if due <= now]
        self.pending = [entry for entry in self.pending if entry[0] > now]
        return done

    def close(self):
        self.pending = None


def prompt(index):
    return Prompt(index, (1,), f"prompt {index}", "1", "arithmetic")


def quiet():
    """A heartbeat of a rank whose run goes well."""
    return SimpleNamespace(
        tick=lambda: None, waiting=lambda what: nullcontext(), working=nullcontext, stopped=None, needed=None
    )


class FakeTrainer:
    """What train.train asks of a Trainer, without the learning."""

    def __init__(self, setting, record, world, store, sent, queue):
        self.setting, self.record, self.world, self.store = setting, record, world, store
        self.queue = queue(store, setting.trainer_ranks, setting.generator_ranks, **setting.rule, drain=False)
        self.curriculum = Curriculum([prompt(n) for n in range(setting.pool)], seed=setting.seed, threshold=0.9)
        self.log = SimpleNamespace(clock=SimpleNamespace(start=lambda: None), timed=lambda name: nullcontext())
        self.sent = sent
        self.version = setting.start
        self.evaluated = None

    def evaluate(self):
        groups, samples = self.queue.evaluate([prompt(n) for n in range(3)], 2, samples=1)
        self.evaluated = self.version
        if self.store.rank == 0:
            self.record.evaluated[self.version] = groups, samples

    def plan(self, groups):
        assert self.record.batches.setdefault(self.version, groups) == groups  # the same on every trainer
        share = {"rank": self.store.rank, "trainers": self.setting.trainers, "device": "cpu"}
        return batches.make_plan(
            groups, zero_variance_filter=True, normalisation="batch", token_budget=64, device="cpu", **share
        )

    def update(self, plan):
        self.queue.drop(plan.dropped)
        taken = [self.queue.tokens([item.rollout for item in items]) for items in plan.micro_batches]
        if plan.tokens:  # else they are only compared
            self.record.trained.setdefault(self.version, []).extend(sum(taken, []))
        self.world.sleep(self.setting.training * PAUSE)
        self.version += 1

    def log_step(self, groups, plan, update):
        self.record.keys.append(len(self.store.backend.values))

    def broadcast_weights(self):
        if self.store.rank == 0:
            self.sent.append(self.version)

    def live(self):
        s = self.setting
        flags = SimpleNamespace(steps=s.steps, eval_every=s.evaluate_every, checkpoint_every=9999)
        reason = train.train(self, flags)
        self.queue.stop(reason)
        self.record.retired = self.curriculum.retired


FAKES = {
    "make_generator": lambda args, *_: args.generator,
    "make_scorer": lambda args: args.scorer,
    "await_weights": lambda generator: setattr(generator, "version", generator.version - 1),
}


@pytest.fixture(scope="module", autouse=True)
def fakes():
    """train.generate gets its generator and its scorer from the settings."""
    with mock.patch.multiple(build, **FAKES):
        yield


def turns(fake, scorer, queue, receive=None):
    """train.generate with these fakes: each `next` is a turn."""
    processes = SimpleNamespace(heartbeat=queue.store.heartbeat, device="cpu", dtype=None, clock=None, receive=receive)
    return train.generate(SimpleNamespace(generator=fake, scorer=scorer), processes, queue)


def simulate(setting, queue=RolloutQueue, slow=False):
    """A whole run; returns its Record and the keys that it leaves in the store; slow: whether calls to it take time."""
    world, record = World(), Record()
    sent, rng, memory = [setting.start - 1], dice(setting), Memory(lambda key: None)

    def store(rank):
        return Store(Slow(memory, world, rng) if slow else memory, rank, quiet(), pause=world.sleep)

    def trainer(rank):
        FakeTrainer(setting, record, world, store(rank), sent, queue).live()

    def receive(named):  # as in a broadcast, which the trainers begin when all generators wait for it
        while sent[-1] == named["version"][0]:
            world.sleep(PAUSE)
        named["version"][0] = sent[-1]

    def generator(rank):
        fake = FakeGenerator(setting, rank - setting.trainers, record, world.sleep)
        requests = RequestQueue(store(rank), *paces(world.clock))
        for _ in turns(fake, FakeScorer(setting, world.clock), requests, receive):
            world.sleep(0.0 if fake.busy else PAUSE)
        record.left.append(requests.latest.stop)

    trainers = [partial(trainer, rank) for rank in setting.trainer_ranks]
    world.run(*trainers, *(partial(generator, rank) for rank in setting.generator_ranks))
    return record, [*memory.values]


def check_no_token_too_stale(setting, record):
    """Measured on the tokens: the step that trained a token minus the version that sampled it."""
    bound = pipeline.OFF_POLICY[setting.off_policy].bound(setting.k)
    assert all(0 <= staleness <= bound for _, staleness in record.staleness())


def check_nothing_lost_or_done_twice(setting, record):
    """Every rollout of a batch was generated once, and trained once unless its group has no variance."""
    assert set(record.started.values()) == {1}
    for step, groups in record.batches.items():
        done, kept = [], []
        for request, group in enumerate(groups, step * setting.prompts):
            here = [(request, index) for index in range(setting.generations)]
            assert [rollout.key for rollout in group] == [f"rollout/train/{t}/{i}" for t, i in here]
            done += here
            kept += here if len({rollout.correct for rollout in group}) > 1 else []
        assert len(done) == setting.prompts * setting.generations
        assert all(record.started[False, False, request, index] for request, index in done)
        assert sorted(kept) == sorted((one.request, one.index) for one in record.trained.get(step, []))


def fixed_keys(setting):
    """The keys that a finished run may leave in the store, whatever its length."""
    work = {f"work/{rank}" for rank in setting.generator_ranks}
    return work | {"state", "claimed/train", "claimed/eval", "finished/eval"}


def check_run(setting, record, keys):
    """Everything that must hold of a run that does not run out of prompts."""
    assert list(record.batches) == list(range(setting.start, setting.steps))
    assert record.left == ["finished"] * len(setting.generators)
    check_no_token_too_stale(setting, record)
    check_nothing_lost_or_done_twice(setting, record)
    requests = {request for evaluation, _, request, _ in record.started if not evaluation}
    assert requests == set(range(setting.start * setting.prompts, setting.steps * setting.prompts))  # no others
    assert record.evaluated.keys() >= {setting.steps}
    for version, (groups, samples) in record.evaluated.items():
        assert [len(group) for group in groups] == [2, 2, 2] and len(samples) == 2
        assert all(set(rollout.versions) == {version} for group in groups for rollout in group)
    assert set(keys) <= fixed_keys(setting)


def settings_of(**fixed):
    """Strategy for a Setting: random values, except for the fields in `fixed`."""
    ranges = dict(
        steps=st.integers(1, 6),
        prompts=st.integers(1, 3),
        generations=st.integers(1, 3),
        trainers=st.integers(1, 2),
        generators=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=3).map(tuple),
        training=st.integers(0, 12),
        longest=st.integers(1, 5),
        verifying=st.integers(0, 5),
        seed=st.integers(0, 999),
    )
    return st.builds(Setting, **(ranges | fixed))


VERDICTS = st.sampled_from(("mixed", "mixed", "always"))
PIPELINES = settings_of(k=st.integers(0, 8), evaluate_every=st.sampled_from((1, 2, 3, 9999)), correct=VERDICTS)


def of_rule(name):
    """Strategy for a Setting of a rule, whatever k and interval of evaluations it can have."""
    rule = pipeline.OFF_POLICY[name]
    ks = st.integers(rule.least_k, 8)

    def of_k(k):
        sent = [every for every in range(1, 9) if all(rule.broadcasts(v, k) for v in range(every, 11, every))]
        evaluate_every = st.sampled_from([*sent, 9999])
        steps = st.integers(1, 10)
        return settings_of(off_policy=st.just(name), k=st.just(k), steps=steps, evaluate_every=evaluate_every)

    return ks.flatmap(of_k)


def check_rule(name, runs=80):
    """What the row of an off-policy rule promises, by counting and whatever the timing: test_adding.py uses it too."""
    rule = pipeline.OFF_POLICY[name]
    for k in range(rule.least_k, 41):
        assert pipeline.greatest_staleness(400, off_policy=name, k=k) == rule.bound(k), k

    @settings(many, max_examples=runs)
    @given(of_rule(name))
    def bounded(setting):
        record, keys = simulate(setting)
        check_run(setting, record, keys)

    with mock.patch.multiple(build, **FAKES):
        bounded()


RESUMED = settings_of(k=st.integers(0, 8), start=st.integers(1, 5), steps=st.integers(6, 8))
# No shrinking: settings are small anyway, and it takes a second to detect a run that never ends.
many = settings(max_examples=80, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
few = settings(many, max_examples=20)


# --- The rules -------------------------------------------------------------------------------------------------------


def test_sec31_requests_of_pipeline_rl_k_by_hand():
    # 3 prompts per step, 5 steps, k = 1: requests of two batches at first, of one more per step, at most 15.
    admitted = [pipeline.admission_limit(v, off_policy="pipeline", k=1, steps=5, prompts=3) for v in range(6)]
    assert admitted == [6, 9, 12, 15, 15, 15]
    assert all(pipeline.broadcasts(v, off_policy="pipeline", k=3) for v in range(7))


def test_sec31_requests_of_ppo_off_policy_k_by_hand():
    # k = 2: phases of two batches, the next phase only when both are trained; 5 steps are two and a half phases.
    admitted = [pipeline.admission_limit(v, off_policy="ppo", k=2, steps=5, prompts=3) for v in range(6)]
    assert admitted == [6, 6, 12, 12, 15, 15]
    assert [v for v in range(7) if pipeline.broadcasts(v, off_policy="ppo", k=3)] == [0, 3, 6]


# --- Runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", pipeline.OFF_POLICY)
def test_sec31_no_token_is_older_than_its_rule_says(name):
    check_rule(name)


@few
@given(of_rule("ppo"))
def test_sec31_all_tokens_of_a_ppo_phase_come_from_the_weights_it_began_with(setting):
    record, _ = simulate(setting)
    assert all(staleness == step % setting.k for step, staleness in record.staleness())


def test_a_token_older_than_its_rule_says_ends_the_run_with_rule_token_and_bound(monkeypatch):
    late = pipeline.OFF_POLICY["pipeline"]._replace(batches=lambda version, k: k + 3 + version)
    monkeypatch.setitem(pipeline.OFF_POLICY, "late", late)
    said = r"--off-policy late --k 1: expected tokens at most 1 optimizer steps old, got one of 2: rollout/train/\d+/\d"
    with pytest.raises(RuntimeError, match=said):
        simulate(Setting("late", k=1, steps=8, training=0, longest=20, generators=((1, 16),)))


@few
@given(st.sampled_from([*pipeline.OFF_POLICY]).flatmap(of_rule) | RESUMED)
def test_nothing_depends_on_the_order_in_which_ranks_reach_the_store(setting):
    record, keys = simulate(setting, slow=True)
    check_run(setting, record, keys)


@pytest.mark.parametrize("off_policy", pipeline.OFF_POLICY)
def test_an_exhausted_curriculum_ends_the_run_after_its_last_full_batch(off_policy):
    setting = Setting(off_policy=off_policy, k=2, prompts=3, steps=40, pool=10, correct="learnt")
    record, _ = simulate(setting)
    check_no_token_too_stale(setting, record)
    check_nothing_lost_or_done_twice(setting, record)
    assert record.left == ["curriculum exhausted"] and 0 < len(record.batches) < 40
    assert setting.pool - record.retired < setting.prompts  # one prompt in four is right only by chance


@few
@given(settings_of(k=st.integers(0, 4), correct=st.just("learnt")), settings_of())
def test_the_prompts_of_a_batch_do_not_depend_on_timing(setting, other):
    setting = replace(setting, pool=5 * setting.prompts + 40)
    timing = dict(generators=other.generators, training=other.training, verifying=other.verifying)
    assert simulate(setting)[0].prompts() == simulate(replace(setting, **timing))[0].prompts()


def test_sec31_the_bound_is_reached_and_completions_span_updates():
    # Training takes no time and completions take long: the weights change k = 3 times while the first ones run.
    record, _ = simulate(Setting(k=3, steps=8, training=0, longest=20, generators=((1, 16),), seed=2))
    assert max(staleness for _, staleness in record.staleness()) == 3
    assert any(len(set(one.versions)) > 1 for batch in record.trained.values() for one in batch)


class FirstCome(RolloutQueue):
    """What you get when the batch is whatever arrives first: long completions grow old without limit."""

    def next_batch(self, step):
        groups = []
        while len(groups) < self.prompts:
            keys = [f"group/train/{number}" for number in range(self.state.requests)]
            arrived = [key for key in keys if self.store.has([key])]
            groups += self.store.take(arrived[: self.prompts - len(groups)])
            self.store.pause(PAUSE)
        return groups


def test_taking_whatever_arrives_first_breaks_the_bound():
    setting = Setting(k=1, steps=12, prompts=2, generations=2, longest=8, generators=((1, 8), (7, 8)), seed=1)
    runs = [simulate(setting, queue)[0].staleness() for queue in (RolloutQueue, FirstCome)]
    right, wrong = (max(staleness for _, staleness in run) for run in runs)
    assert right <= setting.k < wrong


# --- Who waits for whom ----------------------------------------------------------------------------------------------


def rollouts(rank=0, *, pause=None, heartbeat=None, memory=None, trainers=1, **changes):
    """The trainers' end of a queue for two generators, ranks 1 and 2; `pause` is what happens while it waits."""
    memory = memory or Memory(lambda key: None)
    rule = dict(off_policy="pipeline", k=1, prompts=2, generations=1, steps=9, start=0, drain=False) | changes
    store = Store(memory, rank, heartbeat or quiet(), pause)
    return RolloutQueue(store, range(trainers), range(1, 3), **rule)


def requests(queue, rank=1, heartbeat=None):
    """The generators' end of the same queue."""
    return RequestQueue(Store(queue.store.backend, rank, heartbeat or quiet()))


def fresh(setting=Setting()):
    """A generator and a scorer for which no time passes; the first weights have arrived."""
    fake = FakeGenerator(setting, 0, Record(), lambda seconds: None)
    fake.version += 1  # await_weights goes one back
    return fake, FakeScorer(setting, lambda: 0.0)


def lost(why):
    """A heartbeat of a rank that has heard of a loss."""
    heartbeat = quiet()
    heartbeat.tick = mock.Mock(side_effect=Lost(why))
    return heartbeat


def test_weights_are_announced_and_sent_when_every_generator_waits_for_them():
    happened = []

    def pause(seconds):  # in every pause one more generator sees the new version and says that it waits
        rank = 1 + len(happened)
        generator = requests(queue, rank)
        assert generator.state(busy=False).version == 1 and rank <= 2
        generator.join(1)
        happened.append(f"rank {rank} waits")

    queue = rollouts(pause=pause)
    queue.announce(1, lambda: happened.append("sent"))
    assert happened == ["rank 1 waits", "rank 2 waits", "sent"]


def test_another_trainer_gathers_weights_with_rank_0_once_every_generator_waits_for_them():
    def pause(seconds):  # a collective that waited for a generator would run into its timeout
        assert not happened
        for rank in (1, 2):
            requests(lead, rank).join(1)
        lead.announce(1, lambda: happened.append("rank 0"))

    happened = []
    lead = rollouts(trainers=3)
    queue = rollouts(1, memory=lead.store.backend, trainers=3, pause=pause)
    queue.announce(1, lambda: happened.append("rank 1"))
    assert happened == ["rank 0", "rank 1"]
    assert set(lead.store.backend.values) == {"state", "claimed/train", "sending/1/2"}  # rank 2 has yet to come


def test_a_run_resumed_with_fewer_steps_than_are_done_admits_nothing():
    queue = rollouts(steps=3, start=5)
    assert queue.room == 0
    queue.admit([])


def test_a_trainer_waits_for_rank_0_and_hears_of_the_end():
    lead = rollouts(trainers=2)
    queue = rollouts(1, memory=lead.store.backend, trainers=2, pause=lambda seconds: lead.stop("interrupted"))
    queue.admit([prompt(0), prompt(1)])
    with pytest.raises(Interrupted, match="^interrupted$"):
        queue.next_batch(0)


def test_a_wait_can_be_interrupted_but_not_between_joining_and_sending():
    heartbeat = quiet()
    heartbeat.stopped = "interrupted"
    queue = rollouts(heartbeat=heartbeat, pause=mock.Mock(side_effect=[None, None, TimeoutError]))
    queue.admit([prompt(0), prompt(1)])
    with pytest.raises(Interrupted, match="^interrupted$"):
        queue.next_batch(0)
    with pytest.raises(TimeoutError):  # after the third pause; else generators would wait for the weights for ever
        queue.announce(1, None)


def test_a_lost_rank_ends_every_wait_and_turn_at_once():
    queue = rollouts(heartbeat=lost("generator rank 2 ended"))
    queue.admit([prompt(0), prompt(1)])
    with pytest.raises(Lost, match="^generator rank 2 ended$"):
        queue.next_batch(0)
    with pytest.raises(Lost, match="^generator rank 2 ended$"):
        queue.announce(1, None)  # even in a wait that cannot be interrupted
    life = turns(*fresh(), requests(rollouts(), heartbeat=lost("generator rank 2 ended")))
    next(life)
    with pytest.raises(Lost, match="^generator rank 2 ended$"):
        next(life)


# --- The generators' end ---------------------------------------------------------------------------------------------


def answer(**changes):
    lists = dict(prompt_ids=[1, 2], ids=[5, 6, 7], mask=[True, False, True], logprobs=[-1.0, 0.0, -2.0])
    one = Rollout(0, 0, False, **lists, versions=[3, 3, 4], text="", truncated=False, interrupted=True)
    return replace(one, **changes)


def claimed(generations, queue=None):
    """The generators' end with one request in work, of prompt 8."""
    queue = requests(queue or rollouts())
    queue.requests[False, 0] = Request(0, 0, prompt(8), generations), []
    return queue


def test_metadata_count_and_weigh_sampled_tokens_and_leave_injected_ones_out():
    one, request = answer(logprobs=[-1.0, -9.0, -2.0]), Request(0, 3, prompt(8), 1)
    rollout = pipeline.metadata(verdict(one, True), request)
    assert rollout.versions == {3: 1, 4: 1}
    assert (rollout.prompt_tokens, rollout.tokens, rollout.length) == (2, 3, 5)
    assert rollout.logprob == -3.0  # the middle token is injected
    assert (rollout.prompt, rollout.key, rollout.interrupted) == (8, "rollout/train/0/0", True)
    failed = pipeline.metadata(verdict(one, None, error="no memory"), request)
    assert failed.correct is None and failed.reward != failed.reward and failed.error == "no memory"


def test_a_group_arrives_with_its_last_verdict_and_its_metadata_after_its_tokens():
    queue, written = claimed(3), []
    queue.store.backend.written = written.append
    for index in (2, 0):
        queue.put(verdict(answer(index=index), True))
    assert written == []
    queue.put(verdict(answer(index=1), False))
    assert written == [*(f"rollout/train/0/{index}" for index in range(3)), "group/train/0"]
    [rollouts] = queue.store.take(["group/train/0"])
    assert [rollout.correct for rollout in rollouts] == [True, False, True]  # in the order of the rollouts


def test_of_an_evaluation_only_the_samples_arrive_with_their_tokens_and_the_count_of_what_is_finished():
    queue = rollouts(pause=lambda seconds: next(life))
    life = turns(*fresh(Setting(longest=1, generators=((1, 1),))), requests(queue))
    for _ in range(2):  # the second one counts anew
        seen = []
        groups, samples = queue.evaluate([prompt(0), prompt(1)], 2, 1, seen.append)
        assert [[rollout.prompt for rollout in group] for group in groups] == [[0, 0], [1, 1]]
        assert [one.request for one in samples] == [0, 0]
        assert seen == sorted(seen) and {*range(4)} <= {*seen} <= {*range(5)}
    assert not any(key.startswith("rollout/") for key in queue.store.backend.values)


def test_a_trainer_decodes_too_while_it_waits_for_an_evaluation():
    queue = rollouts(pause=lambda seconds: None)
    fake, scorer = fresh()
    place = dict(heartbeat=queue.store.heartbeat, device="cpu", dtype=None, clock=None, store=queue.store)
    policy = SimpleNamespace(modules=list, model=SimpleNamespace(named_parameters=list))
    asked = SimpleNamespace(generator=fake, scorer=scorer), SimpleNamespace(**place), policy
    decoder = evaluation.TrainerDecodes(*asked, train.generate)
    with mock.patch.object(build, "make_generator", side_effect=OSError("the checkpoint is deleted by now")):
        groups, _ = queue.evaluate([prompt(n) for n in range(3)], 2, 1, lambda _: decoder.decode())  # no other answers
    assert [[rollout.prompt for rollout in group] for group in groups] == [[0, 0], [1, 1], [2, 2]]
    assert not queue.store.has(["joined/0/0"])


def test_the_generators_loop_takes_new_weights_before_it_claims_decodes_and_delivers():
    # Started anew at version 1: a claim before the weights would be refused by `add`.
    queue = rollouts(prompts=1, start=1)
    queue.admit([prompt(8)])
    fake, scorer = fresh(Setting(longest=1))
    life = turns(fake, scorer, requests(queue), lambda named: named.update(version=[1]))
    next(life)
    assert queue.store.has(["joined/1/1"]) and not queue.store.has(["group/train/1"])
    next(life), next(life)
    [[rollout]] = queue.store.take(["group/train/1"])
    assert rollout.versions == {1: 1} and not fake.busy


def test_work_during_an_evaluation_does_not_count():
    queue = rollouts()
    generator = requests(queue)
    # Seconds of decoding so far at each report; the 4 seconds from 2 to 6 were spent in an evaluation.
    for seconds, evaluating in ((2.0, False), (6.0, True), (6.25, False)):
        queue._announce_state(evaluating=evaluating)
        generator.state(busy=True)
        generator.report({"decode_seconds": seconds})
    assert queue.generator_work() == {1: {"decode_seconds": 2.25}}


# --- The real store --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_the_number_of_keys_stays_flat_over_many_steps():
    setting = Setting(k=2, steps=40, training=1, longest=2, generators=((1, 6), (1, 6)), evaluate_every=7)
    record, keys = simulate(setting)
    check_run(setting, record, keys)
    # In flight are at most (k + 1) P requests, each as one key, or as one key of metadata and G of rollouts.
    assert max(record.keys) <= len(fixed_keys(setting)) + 3 * 2 * (1 + 2)


# --- Weights ---------------------------------------------------------------------------------------------------------


def weights(fill):
    """Tensors of several dtypes and odd sizes, so that they fill no bucket exactly and nothing is aligned by chance."""
    rng = torch.Generator().manual_seed(fill)
    named = {f"layer{n}": torch.randn(n, 7, generator=rng) for n in range(1, 9)}
    named |= {"half": torch.randn(3, generator=rng).bfloat16(), "flag": torch.tensor([fill > 0])}
    named |= {"scalar": torch.tensor(fill), "odd": torch.tensor([float("nan"), -0.0, float("inf"), fill])}
    return named | {"parameter": torch.nn.Parameter(torch.ones(5) * fill)}


def gloo(host, name):
    """The two ranks of a gloo group, for two threads; made in two threads, as each waits for the other."""

    def group(rank):
        return dist.ProcessGroupGloo(dist.PrefixStore(name, host.clone()), rank, 2, timedelta(seconds=20))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(group, range(2)))


def same_bits(one, other):
    flat = [t.detach().reshape(-1).view(torch.uint8) for t in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*flat)


@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 20], ids=["one each", "several", "one for all"])
def test_sec31_weights_arrive_bit_for_bit_whatever_the_buckets(host, bucket_bytes):
    sent, received = weights(3), dict(sorted(weights(0).items()))
    tensors = (sent[name] for name in sorted(sent))  # made when they are asked for
    storage = {name: tensor.data_ptr() for name, tensor in received.items()}
    first, second = gloo(host, f"bits/{bucket_bytes}")
    sizes = {"bucket_bytes": bucket_bytes}
    sender = threading.Thread(target=broadcast_weights, args=(layout_of(sent), tensors, first, "cpu"), kwargs=sizes)
    sender.start()
    broadcast_weights(layout_of(received), received.values(), second, "cpu", **sizes)
    sender.join()
    assert all(same_bits(received[name], tensor) for name, tensor in weights(3).items())
    assert all(same_bits(sent[name], tensor) for name, tensor in weights(3).items())
    assert storage == {name: tensor.data_ptr() for name, tensor in received.items()}  # received in place


def test_a_receiver_with_other_tensors_says_so(host):
    first, second = gloo(host, "layout")
    digest = threading.Thread(target=lambda: first.broadcast(torch.zeros(32, dtype=torch.uint8), 0).wait())
    digest.start()  # digest of other tensors; nothing is sent after it, so a receiver that ignored it would hang
    with pytest.raises(ValueError, match="model or dtype is not the trainers'"):
        broadcast_weights(layout_of(weights(0)), (), second, "cpu")
    digest.join()
