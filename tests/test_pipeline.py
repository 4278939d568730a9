"""Sec. 3.1: claims about requests, token versions, the mailbox and weights.

Most runs are simulated: the real trainer's side and the real serving loop run in threads, one thread at a time, on a
virtual clock and an in-memory store. So a run depends only on its Setting and takes milliseconds.
"""

import doctest
import random
import socket
import threading
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import pipeline
from data import Curriculum, Prompt
from pipeline import Mailbox, Pipeline, Request, Rollout, serve
from plumbing import fleet, virtual
from plumbing.fleet import broadcast_weights
from plumbing.virtual import Store, World
from verify.scorer import Scorer

PAUSE = pipeline.POLL  # virtual seconds; the unit of every duration below


# --- A world with a clock of its own ---------------------------------------------------------------------------------


class Bounded(World):
    """A world whose runs end."""

    def __init__(self):
        super().__init__()
        self.slept = 0

    def sleep(self, seconds):
        self.slept += 1
        if self.slept > 30_000:  # several times the sleeps of the longest run below
            raise RuntimeError(f"expected an end of the run, got none by {self.now:.1f} virtual seconds")
        super().sleep(seconds)


def memory_store():
    """A store outside any world's run."""
    return Store(World())


class SlowStore(Store):
    """A store on which every call takes a random time, in which other actors run: calls may come in any order."""

    def __init__(self, world, rng):
        super().__init__(world)
        self.rng = rng

    def __getattribute__(self, name):
        method = super().__getattribute__(name)
        if name in ("set", "get", "multi_get", "check", "add", "delete_key"):
            self.world.sleep(self.rng.choice((0.0, 0.1, 0.4)) * PAUSE)
        return method


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
    evaluate_every: int = 0  # optimizer steps; 0: never
    correct: str = "mixed"  # or "always" (every group has zero variance), or "learnt" (some prompts are always solved)
    pool: int = 1000  # training prompts
    seed: int = 0  # of lengths, verdicts and prompts; durations are given above


@dataclass
class Record:
    """What happened."""

    batches: dict = field(default_factory=dict)  # step -> [[RolloutMetadata]]
    trained: dict = field(default_factory=dict)  # step -> [Rollout]
    started: Counter = field(default_factory=Counter)  # (evaluation, its version or False, request, index) -> times
    evaluated: dict = field(default_factory=dict)  # version -> ([[RolloutMetadata]], [Rollout])
    keys: list = field(default_factory=list)  # number of keys in the store after every step
    left: list = field(default_factory=list)  # what `serve` returned
    idle: float = 0.0
    decoding: float = 0.0
    elapsed: float = 0.0
    retired: int = 0

    def ages(self):
        """(step, step - version) of every token that trained."""
        return [(step, step - v) for step, group in self.trained.items() for c in group for v in c.versions]

    def prompts(self):
        return [[group[0].prompt for group in groups] for groups in self.batches.values()]


def dice(*name):
    return random.Random(repr(name))


class FakeGenerator:
    """Decodes one token per slot and step; lengths are random, the duration of a step is this generator's."""

    def __init__(self, setting, index, record, sleep, version):
        duration, self.slots = setting.generators[index]
        self.setting, self.record, self.sleep, self.version = setting, record, sleep, version
        self.duration, self.weights = duration * PAUSE, {"version": [version]}
        self.running, self.queue, self.evaluations = [], deque(), deque()
        self.decode_steps = self.slot_steps = 0

    def length(self, request, index):
        rng = dice(self.setting.seed, request.evaluation, request.number, index)
        return rng.randint(1, self.setting.longest * (8 if rng.random() < 0.125 else 1))

    def add(self, request):
        assert self.version >= request.version
        for index in range(request.generations):
            self.record.started[request.evaluation, request.evaluation and request.version, request.number, index] += 1
            left = self.length(request, index)
            answer = Rollout(request.number, index, request.evaluation, [1], [], [], [], [], "", False, False)
            (self.evaluations if request.evaluation else self.queue).append([left, answer])

    @property
    def free(self):
        return self.slots - len(self.running)

    def has_capacity(self, evaluation):
        return self.free > len(self.evaluations) + (0 if evaluation else len(self.queue))

    @property
    def busy(self):
        return bool(self.running or self.queue or self.evaluations)

    def named_weights(self):
        return self.weights

    def update_weights(self, version):
        assert self.weights["version"] == [version] and version > self.version
        self.version = version

    def step(self):
        evaluating = self.evaluations or any(answer.evaluation for _, answer in self.running)
        queue = self.evaluations if evaluating else self.queue
        while self.free and queue:
            self.running.append(queue.popleft())
        self.sleep(self.duration)
        self.record.decoding += self.duration
        self.decode_steps += 1
        self.slot_steps += len(self.running)
        for job in self.running:
            job[0] -= 1
            c = job[1]
            c.ids.append(7), c.mask.append(True), c.logprobs.append(-1.0), c.versions.append(self.version)
        done, self.running = [job for job in self.running if not job[0]], [job for job in self.running if job[0]]
        return [answer for _, answer in done]


@dataclass
class Verdict:
    """What a scorer hands back, like scorer.Score."""

    completion: Rollout
    correct: bool | None
    timed_out: bool = False
    marked: bool = True
    error: str = ""

    @property
    def reward(self):
        return float("nan") if self.correct is None else 2.0 * self.correct - 1.0


class FakeScorer:
    """Random verdicts (see Setting.correct), some of them late."""

    def __init__(self, setting, clock):
        self.setting, self.clock, self.pending = setting, clock, []

    def submit(self, completion, prompt):
        rng, kind = dice(self.setting.seed, prompt.index, completion.request, completion.index), self.setting.correct
        solved = kind == "always" or kind == "learnt" and prompt.index % 4 > 0
        due = self.clock() + rng.randint(0, self.setting.verifying) * PAUSE
        self.pending.append((due, Verdict(completion, solved or rng.random() < 0.5)))

    def finished(self):
        now = self.clock()
        done = [score for due, score in self.pending if due <= now]
        self.pending = [entry for entry in self.pending if entry[0] > now]
        return done


class Wire:
    """Weights as in a broadcast: each receiver gets every version in order, and waits while there is no new one."""

    def __init__(self, sleep):
        self.sent, self.sleep = [], sleep

    def send(self, named):
        self.sent.append(named["version"][0])

    def receiver(self):
        seen = 0

        def receive(named):
            nonlocal seen
            while len(self.sent) == seen:
                self.sleep(PAUSE)
            named["version"][0], seen = self.sent[seen], seen + 1

        return receive


def prompt(index):
    return Prompt(index, (1,), f"prompt {index}", "1", "arithmetic")


def train(setting, record, box, sleep, wire, trainers_side=Pipeline):
    """train.py's loop without the learning, on one trainer rank."""
    s = setting
    pipe = trainers_side(
        box, off_policy=s.off_policy, k=s.k, prompts=s.prompts, generations=s.generations, steps=s.steps, start=s.start
    )
    curriculum = Curriculum([prompt(n) for n in range(s.pool)], seed=s.seed, threshold=0.9)
    version, reason = s.start, "finished"

    def evaluate():
        groups, samples, failed = pipe.evaluate([prompt(n) for n in range(3)], 2, samples=1)
        assert failed == {}  # on every rank
        if box.rank == 0:
            record.evaluated[version] = groups, samples

    pipe.issue(curriculum.next(pipe.room))
    for step in range(s.start, s.steps):
        groups = pipe.next_batch(step)
        if groups is None:
            reason = "curriculum exhausted"
            break
        for group in groups:
            curriculum.update_history(group[0].prompt, sum(rollout.correct for rollout in group) / len(group))
        mixed = [len({rollout.correct for rollout in group}) > 1 for group in groups]
        kept = [rollout for group, keep in zip(groups, mixed) if keep for rollout in group]
        pipe.drop([rollout for group, keep in zip(groups, mixed) if not keep for rollout in group])
        record.batches[step] = groups
        record.trained.setdefault(step, []).extend(pipe.take(kept[box.rank :: s.trainers]))
        for _ in range(s.training):
            sleep(PAUSE)
            box.beat()
        version = step + 1
        pipe.publish(version, lambda: {"version": [version]}, wire.send)
        pipe.issue(curriculum.next(pipe.room))
        record.keys.append(box.store.num_keys())
        if s.evaluate_every and version % s.evaluate_every == 0 and version < s.steps:
            evaluate()
    pipe.publish(version, lambda: {"version": [version]}, wire.send, final=True)
    evaluate()
    assert pipe.stop(reason) == []
    record.idle, record.retired = pipe.idle(), curriculum.retired


def simulate(setting, trainers_side=Pipeline, slow=False, waking=False):
    """A whole run in virtual time; returns its Record and the store it leaves behind. Ranks poll, unless `waking`."""
    world, record = Bounded(), Record()
    store = SlowStore(world, dice(setting)) if slow else Store(world)
    wire, size = Wire(world.sleep), setting.trainers + len(setting.generators)

    def mailbox(rank):
        if waking:
            return virtual.mailbox(world, store, rank, trainers=setting.trainers, ranks=size)
        box = Mailbox(store, rank, trainers=setting.trainers, world=size, timeout=1.0)
        box.clock, box.pause = world.clock, world.sleep
        return box

    def trainer(rank):
        return lambda: train(setting, record, mailbox(rank), world.sleep, wire, trainers_side)

    def generator(index):
        fake = FakeGenerator(setting, index, record, world.sleep, setting.start)
        box, scorer = mailbox(setting.trainers + index), FakeScorer(setting, world.clock)
        return lambda: record.left.append(serve(fake, box, wire.receiver(), scorer))

    trainers, generators = range(setting.trainers), range(len(setting.generators))
    actors = [*map(trainer, trainers), *map(generator, generators)]
    world.run({f"rank {rank}": actor for rank, actor in enumerate(actors)})
    record.elapsed = world.now
    return record, store


def check_no_token_too_old(setting, record):
    """Measured on the tokens: the step that trained a token minus the version that sampled it."""
    bound = setting.k if setting.off_policy == "pipeline" else setting.k - 1
    assert all(0 <= age <= bound for _, age in record.ages())


def check_nothing_lost_or_done_twice(setting, record):
    """Every completion of a batch was generated once, and trained once unless its group has no variance."""
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
        assert sorted(kept) == sorted((c.request, c.index) for c in record.trained[step])


def fixed_keys(setting):
    """The keys that a finished run may leave in the store, whatever its length."""
    ranks = range(setting.trainers + len(setting.generators))
    counts = ("beat", "idle", "decoding", "steps", "used", "joined", "left")
    names = {f"{name}/{rank}" for name in counts for rank in ranks}
    return names | {"news", "news/count", "claimed/train", "claimed/eval"}


def check_run(setting, record, keys):
    """Everything that must hold of a run that does not run out of prompts."""
    assert list(record.batches) == list(range(setting.start, setting.steps))
    assert record.left == ["finished"] * len(setting.generators)
    check_no_token_too_old(setting, record)
    check_nothing_lost_or_done_twice(setting, record)
    requests = {request for evaluation, _, request, _ in record.started if not evaluation}
    assert requests == set(range(setting.start * setting.prompts, setting.steps * setting.prompts))  # no others
    for version, (groups, samples) in record.evaluated.items():
        assert [len(group) for group in groups] == [2, 2, 2] and len(samples) == 2
        assert all(set(rollout.versions) == {version} for group in groups for rollout in group)
    assert set(keys) <= fixed_keys(setting)


def settings_of(**fixed):
    """Strategy for a Setting: random values, except for the fields in `fixed`."""
    ranges = dict(
        steps=st.integers(1, 6), prompts=st.integers(1, 3), generations=st.integers(1, 3), trainers=st.integers(1, 2),
        generators=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=3).map(tuple),
        training=st.integers(0, 12), longest=st.integers(1, 5), verifying=st.integers(0, 5), seed=st.integers(0, 999),
    )  # fmt: skip
    return st.builds(Setting, **(ranges | fixed))


PIPELINES = settings_of(k=st.integers(0, 8), evaluate_every=st.integers(0, 3))
PHASES = st.integers(1, 8).flatmap(
    lambda k: settings_of(
        off_policy=st.just("ppo"), k=st.just(k), steps=st.integers(1, 10), evaluate_every=st.sampled_from((0, k))
    )
)
RESUMED = settings_of(k=st.integers(0, 8), start=st.integers(1, 5), steps=st.integers(6, 8))
# No shrinking: settings are small anyway, and it takes a second to detect a run that never ends.
many = settings(max_examples=80, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
few = settings(many, max_examples=20)


# --- The rules -------------------------------------------------------------------------------------------------------


def test_sec31_requests_of_pipeline_rl_k_by_hand():
    # 3 prompts per step, 5 steps, k = 1: requests of two batches at first, one batch more per step, 15 requests at most.
    issued = [pipeline.admission_limit(v, off_policy="pipeline", k=1, steps=5, prompts=3) for v in range(6)]
    assert issued == [6, 9, 12, 15, 15, 15]
    assert all(pipeline.publishes(v, off_policy="pipeline", k=3) for v in range(7))


def test_sec31_requests_of_ppo_off_policy_k_by_hand():
    # k = 2: phases of two batches, the next phase only when both are trained; 5 steps are two and a half phases.
    issued = [pipeline.admission_limit(v, off_policy="ppo", k=2, steps=5, prompts=3) for v in range(6)]
    assert issued == [6, 6, 12, 12, 15, 15]
    assert [v for v in range(7) if pipeline.publishes(v, off_policy="ppo", k=3)] == [0, 3, 6]


def test_fewer_steps_than_k_issue_no_request_for_a_step_that_never_comes():
    assert pipeline.admission_limit(0, off_policy="pipeline", k=8, steps=2, prompts=3) == 6
    assert pipeline.admission_limit(0, off_policy="ppo", k=8, steps=2, prompts=3) == 6


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(pipeline).failed == 0 < doctest.testmod(pipeline).attempted
    assert doctest.testmod(fleet).failed == 0 < doctest.testmod(fleet).attempted


# --- Runs ------------------------------------------------------------------------------------------------------------


@many
@given(PIPELINES)
def test_sec31_no_token_of_pipeline_rl_k_is_more_than_k_steps_old(setting):
    record, store = simulate(setting)
    check_run(setting, record, store.values)


@many
@given(PHASES)
def test_sec31_all_tokens_of_a_ppo_phase_come_from_the_weights_it_began_with(setting):
    record, store = simulate(setting)
    check_run(setting, record, store.values)
    assert all(age == step % setting.k for step, age in record.ages())


@few
@given(PIPELINES | PHASES | RESUMED)
def test_nothing_depends_on_the_order_in_which_ranks_reach_the_mailbox(setting):
    record, store = simulate(setting, slow=True)
    check_run(setting, record, store.values)


@few
@given(settings_of(k=st.integers(0, 8), correct=st.just("always")))
def test_batches_without_variance_train_nothing_but_the_schedule_goes_on(setting):
    record, store = simulate(replace(setting, pool=(setting.steps + 9) * 3))
    check_run(setting, record, store.values)
    assert not any(record.trained.values())


@few
@given(RESUMED)
def test_a_resumed_run_counts_on_from_its_version(setting):
    record, store = simulate(setting)
    check_run(setting, record, store.values)


LONG = dict(k=st.integers(1, 4), steps=st.just(40), correct=st.just("learnt"))


@few
@given(settings_of(**LONG) | settings_of(off_policy=st.just("ppo"), **LONG), st.integers(1, 4))
def test_an_exhausted_curriculum_ends_the_run_after_its_last_full_batch(setting, spare):
    setting = replace(setting, pool=(setting.k + 1) * setting.prompts + spare)
    record, store = simulate(setting)
    check_no_token_too_old(setting, record)
    check_nothing_lost_or_done_twice(setting, record)
    if len(record.batches) < setting.steps:  # one prompt in four is right only by chance: it goes on with P of those
        assert set(record.left) == {"curriculum exhausted"}
        assert setting.pool - record.retired < setting.prompts


def test_curricula_do_get_exhausted_in_the_test_above():
    record, _ = simulate(Setting(k=2, prompts=3, steps=40, pool=10, correct="learnt"))
    assert record.left == ["curriculum exhausted"] and 0 < len(record.batches) < 40


@few
@given(settings_of(), st.integers(0, 12))
def test_sec31_ppo_off_policy_1_is_pipeline_rl_0(setting, training):
    pipelined, _ = simulate(replace(setting, k=0))
    phased, _ = simulate(replace(setting, off_policy="ppo", k=1, training=training))
    assert phased.batches == pipelined.batches  # prompts, rewards and the version of every token
    assert phased.ages() == pipelined.ages()


@few
@given(settings_of(k=st.integers(0, 4), correct=st.just("learnt")), settings_of())
def test_the_prompts_of_a_batch_do_not_depend_on_timing(setting, other):
    setting = replace(setting, pool=5 * setting.prompts + 40)
    timing = dict(generators=other.generators, training=other.training, verifying=other.verifying)
    assert simulate(setting)[0].prompts() == simulate(replace(setting, **timing))[0].prompts()


def test_sec31_the_bound_is_reached_and_completions_span_updates():
    # Training takes no time and completions take long: the weights change k = 3 times while the first ones run.
    record, _ = simulate(Setting(k=3, steps=8, training=0, longest=20, generators=((1, 16),)))
    assert max(age for _, age in record.ages()) == 3
    assert any(len(set(c.versions)) > 1 for batch in record.trained.values() for c in batch)


class FirstCome(Pipeline):
    """What you get when the batch is whatever is delivered first: long completions grow old without limit."""

    def next_batch(self, step):
        groups, box = [], self.mailbox
        while len(groups) < self.prompts:
            keys = [f"group/train/{number}" for number in range(self._news.requests)]
            groups += box.take([key for key in keys if box.has(key)][: self.prompts - len(groups)])
            box.beat()
            box.pause(PAUSE)
        return groups


def test_taking_whatever_arrives_first_breaks_the_bound():
    setting = Setting(k=1, steps=12, prompts=2, generations=2, longest=8, generators=((1, 8), (7, 8)), seed=1)
    right, wrong = (max(age for _, age in simulate(setting, side)[0].ages()) for side in (Pipeline, FirstCome))
    assert right <= setting.k < wrong


def test_issuing_more_requests_than_the_rule_allows_is_refused():
    pipe = Pipeline(lonely(0), off_policy="pipeline", k=1, prompts=2, generations=1, steps=9)
    with pytest.raises(ValueError, match="at most 4 prompts at version 0, got 5"):
        pipe.issue([prompt(n) for n in range(5)])


def test_a_run_resumed_with_fewer_steps_than_are_done_issues_nothing():
    pipe = Pipeline(lonely(0), off_policy="pipeline", k=1, prompts=2, generations=1, steps=3, start=5)
    assert pipe.room == 0
    pipe.issue([])


def test_evaluating_weights_that_the_generators_do_not_have_is_refused():
    pipe = Pipeline(lonely(0), off_policy="ppo", k=2, prompts=2, generations=1, steps=9)
    assert not pipe.publish(1, None, None)  # 2 does not divide 1: nothing is gathered or sent
    with pytest.raises(ValueError, match="generators at 1, got 0; likely cause: with ppo, an evaluation"):
        pipe.evaluate([prompt(0)], 1, samples=0)


def test_idle_time_is_what_is_neither_decoding_nor_evaluation():
    box = lonely(1, timeout=100.0)
    desk = pipeline.Desk(fresh()[0], box, None, None)
    for seconds, decoding, evaluating in ((5.0, 2.0, False), (7.0, 1.0, True), (0.5, 0.25, False)):
        box.pause(seconds)
        desk.report(decoding, evaluating)
    assert box.store.values["idle/1"] == 3_250_000  # microseconds: (5 - 2) + (0.5 - 0.25) s; the 7 s hold an evaluation


def test_a_generator_idles_through_training_if_k_is_0():
    # It has nothing to do for 40 pauses in each of 5 steps; its last report may be one beat old.
    record, _ = simulate(Setting(k=0, steps=5, generations=1, longest=1, training=40, generators=((4, 4),)))
    assert record.elapsed - record.decoding > 5 * 40 * PAUSE
    assert 0 < record.elapsed - record.decoding - record.idle < pipeline.BEAT


# --- Who waits for whom ----------------------------------------------------------------------------------------------


def lonely(rank, *, trainers=1, world=3, timeout=10.0, store=None, other=lambda now: None, **more):
    """A mailbox on a virtual clock that only its pauses move; `other(now)` is what the other ranks do in each pause."""
    box, now = Mailbox(store or memory_store(), rank, trainers=trainers, world=world, timeout=timeout, **more), [0.0]

    def pause(seconds):
        now[0] += seconds
        other(now[0])

    box.clock, box.pause = lambda: now[0], pause
    return box


def waiting(other, world=3):
    """The Pipeline of trainer rank 0; while it waits the other ranks do `other(store, now)`."""
    store = memory_store()
    box = lonely(0, store=store, world=world, other=lambda now: other(store, now))
    return Pipeline(box, off_policy="pipeline", k=1, prompts=2, generations=1, steps=9)


def test_a_wait_for_weights_names_the_generators_that_do_not_join():
    pipe = waiting(lambda store, now: store.set("joined/2", "1"), world=4)
    with pytest.raises(pipeline.Stalled) as caught:
        pipe.publish(1, dict, None)
    assert str(caught.value).startswith(
        "trainer rank 0 waits for the generators to join version 1, but generator rank 1 and generator rank 3 made no "
        "progress for 10 s"
    )
    assert pipe.mailbox.clock() < 11


def test_weights_are_gathered_then_announced_and_sent_when_every_generator_waits_for_them():
    happened = []

    def other(store, now):  # in every pause one more generator sees the news and says that it waits
        rank = len(happened)
        assert lonely(rank, store=store).news().version == 1 and rank <= 2
        store.set(f"joined/{rank}", "1")
        happened.append(f"rank {rank} waits")

    def gather():
        assert pipe.mailbox.news().version == 0  # nobody has been asked
        happened.append("gathered")
        return {"w": 1}

    pipe = waiting(other)
    assert pipe.publish(1, gather, lambda named: happened.append(named))
    assert happened == ["gathered", "rank 1 waits", "rank 2 waits", {"w": 1}]


def test_a_wait_for_a_batch_names_the_stuck_generator_and_not_the_working_one():
    pipe = waiting(lambda store, now: store.add("beat/1", 1))
    pipe.issue([prompt(0), prompt(1)])
    with pytest.raises(pipeline.Stalled, match="rank 0 waits for the requests of step 0, but generator rank 2 made no"):
        pipe.next_batch(0)


def test_a_slow_generator_that_makes_progress_is_waited_for():
    def other(store, now):
        store.add("beat/1", 1), store.add("beat/2", 1)
        if now > 200:
            raise TimeoutError  # after twenty timeouts

    with pytest.raises(TimeoutError):
        pipe = waiting(other)
        pipe.issue([prompt(0), prompt(1)])
        pipe.next_batch(0)


def test_time_between_two_waits_does_not_count_against_a_rank_that_worked_meanwhile():
    store, seen = memory_store(), []
    box = lonely(0, store=store, world=2)
    box.wait("one", lambda: [] if box.clock() > 1 else [1])
    for _ in range(100):  # an optimizer step of 10 timeouts, in which generator rank 1 decodes
        box.pause(1.0), store.add("beat/1", 1)
    start = box.clock()
    with pytest.raises(pipeline.Stalled):
        box.wait("two", lambda: seen.append(1) or [1])
    assert box.clock() - start > 10


def fresh(setting=Setting()):
    record = Record()
    return FakeGenerator(setting, 0, record, lambda seconds: None, 0), FakeScorer(setting, lambda: 0.0)


def test_a_generator_without_news_from_rank_0_ends_and_says_so():
    fake, scorer = fresh()
    message = "^generator rank 1 waits for news, but trainer rank 0 made no progress for 10 s"
    with pytest.raises(pipeline.Stalled, match=message):
        serve(fake, lonely(1), None, scorer)


def test_a_trainer_waits_for_rank_0_and_hears_of_the_end():
    box = lonely(1, trainers=2)
    pipe = Pipeline(box, off_policy="pipeline", k=0, prompts=1, generations=1, steps=9)
    pipe.issue([prompt(0)])
    with pytest.raises(pipeline.Stalled, match="trainer rank 1 waits for the batch of step 0, but trainer rank 0 "):
        pipe.next_batch(0)
    lead = Pipeline(lonely(0, store=box.store), off_policy="pipeline", k=0, prompts=1, generations=1, steps=9)
    lead.stop("interrupted", patience=0.0)
    with pytest.raises(pipeline.Interrupted, match="^interrupted$"):
        pipe.next_batch(0)


def test_a_lost_rank_ends_every_wait_and_turn_at_once():
    lost = []
    box = lonely(0, lost=lambda: lost and "generator rank 2 ended", other=lambda now: now > 3 and lost.append(1))
    pipe = Pipeline(box, off_policy="pipeline", k=1, prompts=2, generations=1, steps=9)
    with pytest.raises(pipeline.Stalled, match="^generator rank 2 ended$"):
        pipe.publish(1, dict, None)  # even in a wait that cannot be interrupted
    assert box.clock() < 3.1
    fake, scorer = fresh()
    with pytest.raises(pipeline.Stalled, match="^generator rank 2 ended$"):
        serve(fake, lonely(1, lost=box.lost), None, scorer)


def test_a_wait_can_be_interrupted_but_not_between_joining_and_sending():
    flag = []
    box = lonely(0, interrupted=lambda: "interrupted" if flag else None, other=lambda now: now > 3 and flag.append(1))
    pipe = Pipeline(box, off_policy="pipeline", k=1, prompts=2, generations=1, steps=9)
    pipe.issue([prompt(0), prompt(1)])
    with pytest.raises(
        pipeline.Interrupted, match="interrupted while trainer rank 0 waited for the requests of step 0"
    ):
        pipe.next_batch(0)
    with pytest.raises(pipeline.Stalled):  # else generators would wait for the weights for ever
        pipe.publish(1, dict, None)


def test_stop_does_not_wait_for_a_generator_that_is_gone():
    pipe = waiting(lambda store, now: store.set("left/1", b"1"))
    assert pipe.stop("generator killed", patience=3.0) == [2]
    assert 3.0 <= pipe.mailbox.clock() < 3.1


# --- Deliveries ------------------------------------------------------------------------------------------------------


def answer(**changes):
    one = Rollout(
        request=0, index=0, evaluation=False, prompt_ids=[1, 2], ids=[5, 6, 7], mask=[True, False, True],
        logprobs=[-1.0, 0.0, -2.0], versions=[3, 3, 4], text="", truncated=False, interrupted=True,
    )  # fmt: skip
    return replace(one, **changes)


def test_headers_count_and_weigh_sampled_tokens_and_leave_injected_ones_out():
    rollout = pipeline.metadata(Verdict(answer(logprobs=[-1.0, -9.0, -2.0]), True), Request(0, 3, prompt(8), 1))
    assert rollout.versions == {3: 1, 4: 1} and (rollout.prompt_tokens, rollout.tokens) == (2, 3)
    assert rollout.logprob == -3.0  # the middle token is injected
    assert (rollout.prompt, rollout.key, rollout.interrupted) == (8, "rollout/train/0/0", True)


def test_a_group_is_delivered_with_its_last_verdict_and_its_headers_after_its_completions():
    box, puts = lonely(1), []
    put = box.put
    box.put = lambda values: (puts.append(list(values)), put(values))
    desk = pipeline.Desk(fresh()[0], box, None, None)
    desk.requests[False, 0] = Request(0, 0, prompt(8), 3)
    for index in (2, 0):
        desk.deliver(Verdict(answer(index=index), True))
    assert puts == []
    desk.deliver(Verdict(answer(index=1), False))
    assert puts == [[f"rollout/train/0/{index}" for index in range(3)], ["group/train/0"]]
    [rollouts] = box.take(["group/train/0"])
    assert [rollout.correct for rollout in rollouts] == [True, False, True]  # in the order of the completions


def test_one_turn_takes_the_weights_claims_decodes_and_delivers():
    # Started anew at version 1: a claim before the weights would fail the assertion in `claim`.
    store = memory_store()
    lead = Pipeline(lonely(0, store=store), off_policy="pipeline", k=1, prompts=1, generations=1, steps=9, start=1)
    lead.issue([prompt(8)])
    fake, scorer = fresh(Setting(longest=1))
    desk = pipeline.Desk(fake, lonely(1, store=store), lambda named: named.update(version=[1]), scorer)
    desk.turn(desk.mailbox.news())
    [[rollout]] = lead.mailbox.take(["group/train/1"])
    assert store.values["joined/1"] == "1" and rollout.versions == {1: 1} and not fake.busy


def test_a_failed_verifier_is_neither_right_nor_wrong():
    fake, _ = fresh()
    box = lonely(1)
    desk = pipeline.Desk(fake, box, None, None)
    desk.requests[False, 0] = Request(0, 0, prompt(8), 1)
    desk.deliver(Verdict(answer(), None, error="no memory"))
    [[rollout]] = box.take(["group/train/0"])
    assert rollout.correct is None and rollout.reward != rollout.reward and rollout.error == "no memory"


def test_verdicts_of_the_real_scorer_are_delivered():
    scorer, box, (fake, _) = Scorer(timeout=1.0), lonely(1), fresh()
    desk = pipeline.Desk(fake, box, None, scorer)
    desk.requests[False, 0] = Request(0, 0, prompt(8), 2)
    for index, text in enumerate(("<think>1</think>1", "<think>1</think>2")):
        scorer.submit(answer(index=index, text=text), prompt(8))
    for score in scorer.finished():
        desk.deliver(score)
    [rollouts] = box.take(["group/train/0"])
    assert [(h.correct, h.reward) for h in rollouts] == [(True, 1.0), (False, -1.0)]
    assert [c.text[-1] for c in box.take([h.key for h in rollouts])] == ["1", "2"]


@pytest.fixture(scope="module")
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def client(store):
    return dist.TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)


def test_a_group_of_10_mib_arrives(store):
    box, other = (Mailbox(client(store), rank, trainers=1, world=2, timeout=9.0) for rank in (1, 0))
    desk = pipeline.Desk(fresh()[0], box, None, None)
    desk.requests[False, 0] = Request(0, 0, prompt(0), 16)
    tokens = 45_000  # 15 bytes per token: 10.3 MiB in 16 completions
    for index in range(16):
        lists = {"mask": [True] * tokens, "logprobs": [-0.1] * tokens, "versions": [index] * tokens}
        one = answer(index=index, ids=list(range(tokens)), **lists)
        desk.deliver(Verdict(one, index % 2 == 0))
    pipe = Pipeline(other, off_policy="pipeline", k=0, prompts=1, generations=16, steps=1)
    pipe.issue([prompt(0)])
    [group] = pipe.next_batch(0)
    assert sum(len(store.get(rollout.key)) for rollout in group) > 10 << 20
    completions = pipe.take(group)
    assert [c.index for c in completions] == list(range(16)) and [h.correct for h in group] == [True, False] * 8
    assert all(c.ids == list(range(tokens)) and c.versions == [c.index] * tokens for c in completions)
    assert not store.check([group[0].key])


def test_a_completion_over_8_mib_is_refused_before_it_breaks_the_connection(store):
    box = Mailbox(client(store), 0, trainers=1, world=2, timeout=9.0)
    with pytest.raises(ValueError, match="<= 8388608 bytes for rollout/train/0/0, got .* too many tokens"):
        box.put({"rollout/train/0/0": answer(text="x" * (8 << 20))})
    fits = answer(text="x" * ((8 << 20) - 1000))
    box.put({"fits": fits})
    assert box.take(["fits"]) == [fits]


# --- The real store --------------------------------------------------------------------------------------------------


def run_threads(setting):
    """A whole run on a real store in real time; every rank is a thread with its own clone of the store."""
    host, record, errors = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), Record(), []
    wire, size = Wire(time.sleep), setting.trainers + len(setting.generators)

    def mailbox(rank):
        return Mailbox(host.clone(), rank, trainers=setting.trainers, world=size, timeout=20.0)

    def live(rank):
        try:
            if rank < setting.trainers:
                return train(setting, record, mailbox(rank), lambda seconds: time.sleep(seconds / 5), wire)
            fake = FakeGenerator(setting, rank - setting.trainers, record, lambda seconds: time.sleep(seconds / 5), 0)
            record.left.append(serve(fake, mailbox(rank), wire.receiver(), FakeScorer(setting, time.monotonic)))
        except Exception as error:  # raised again below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(size)]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    for error in errors:
        raise error
    assert not any(thread.is_alive() for thread in threads)
    return record, host.list_keys()


@pytest.mark.parametrize("setting", [
    Setting(k=2, steps=5, prompts=3, generators=((1, 4), (3, 2)), evaluate_every=2),
    Setting(k=0, steps=3, trainers=2, generators=((1, 4),)),
    Setting(off_policy="ppo", k=2, steps=5, generators=((1, 4), (2, 4)), verifying=3),
], ids=["pipeline-2", "pipeline-0 on two trainers", "ppo-2"])  # fmt: skip
def test_runs_on_a_real_store(setting):
    check_run(setting, *run_threads(setting))


def test_the_number_of_keys_stays_flat_over_many_steps():
    setting = Setting(k=2, steps=40, training=1, longest=2, generators=((1, 6), (1, 6)), evaluate_every=7)
    record, keys = run_threads(setting)
    check_run(setting, record, keys)
    # In flight are at most (k + 1) P requests, each as one key, or as one key of rollouts and G of completions.
    assert max(record.keys) <= len(fixed_keys(setting)) + 3 * 2 * (1 + 2)


def test_a_generator_that_loses_the_mailbox_ends():
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    box, (fake, scorer) = Mailbox(client(host), 1, trainers=1, world=2, timeout=20.0), fresh()
    del host  # the server ends with the object
    with pytest.raises(dist.DistError):  # a RuntimeError; the lifeline names the rank that ended
        serve(fake, box, None, scorer)


# --- Weights ---------------------------------------------------------------------------------------------------------


def weights(fill):
    """Tensors of several dtypes and odd sizes, so that they fill no bucket exactly and nothing is aligned by chance."""
    rng = torch.Generator().manual_seed(fill)
    named = {f"layer{n}": torch.randn(n, 7, generator=rng) for n in range(1, 9)}
    named |= {"half": torch.randn(3, generator=rng).bfloat16(), "flag": torch.tensor([fill > 0])}
    named |= {"scalar": torch.tensor(fill), "odd": torch.tensor([float("nan"), -0.0, float("inf"), fill])}
    return named | {"parameter": torch.nn.Parameter(torch.ones(5) * fill)}


def gloo(store, name):
    """The two ranks of a gloo group, for two threads; made in two threads, as each waits for the other."""

    def group(rank):
        return dist.ProcessGroupGloo(dist.PrefixStore(name, client(store)), rank, 2, timedelta(seconds=20))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(group, range(2)))


def same_bits(one, other):
    flat = [t.detach().reshape(-1).view(torch.uint8) for t in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*flat)


@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 20], ids=["one each", "several", "one for all"])
def test_sec31_weights_arrive_bit_for_bit_whatever_the_buckets(store, bucket_bytes):
    sent, received = weights(3), dict(reversed(weights(0).items()))
    storage = {name: tensor.data_ptr() for name, tensor in received.items()}
    first, second = gloo(store, f"bits/{bucket_bytes}")
    sender = threading.Thread(target=broadcast_weights, args=(sent, first), kwargs={"bucket_bytes": bucket_bytes})
    sender.start()
    broadcast_weights(received, second, bucket_bytes=bucket_bytes)
    sender.join()
    assert all(same_bits(received[name], tensor) for name, tensor in weights(3).items())
    assert all(same_bits(sent[name], tensor) for name, tensor in weights(3).items())
    assert storage == {name: tensor.data_ptr() for name, tensor in received.items()}  # received in place


def test_a_receiver_with_other_tensors_says_so(store):
    first, second = gloo(store, "layout")
    digest = threading.Thread(target=lambda: first.broadcast(torch.zeros(32, dtype=torch.uint8), 0).wait())
    digest.start()  # digest of other tensors; nothing is sent after it, so a receiver that ignored it would hang
    with pytest.raises(ValueError, match="model or dtype is not the trainers'"):
        broadcast_weights(weights(0), second)
    digest.join()


class Idle:
    """A generator that takes weights and is asked for nothing, and its scorer."""

    version, busy = 0, False

    def __init__(self):
        self.weights = {"w": torch.zeros(5)}

    def has_capacity(self, evaluation):
        return False

    def named_weights(self):
        return self.weights

    def update_weights(self, version):
        self.version = version

    def finished(self):
        return []


def generator_process(folder):
    """Writes how it ended, its version and its weights into the folder."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=1, world_size=2)
    box = Mailbox(pipeline.connect("127.0.0.1", None), 1, trainers=1, world=2, timeout=60.0)
    group = dist.new_group([0, 1])
    idle = Idle()
    reason = serve(idle, box, lambda named: broadcast_weights(named, group), idle)
    (folder / "end").write_text(f"{reason} {idle.version} {idle.weights['w'].tolist()}")
    dist.destroy_process_group()


def test_a_generator_in_a_process_of_its_own_gets_weights_and_ends(forks, tmp_path):
    child = forks.Process(target=generator_process, args=(tmp_path,), daemon=True)
    child.start()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=2)
    try:
        listening = partial(socket.create_server, ("127.0.0.1", 0))
        box = Mailbox(pipeline.connect("127.0.0.1", listening), 0, trainers=1, world=2, timeout=60.0)
        group = dist.new_group([0, 1])
        pipe = Pipeline(box, off_policy="pipeline", k=1, prompts=2, generations=1, steps=9)
        pipe.publish(1, lambda: {"w": torch.arange(5.0)}, lambda named: broadcast_weights(named, group))
        assert pipe.stop("finished", patience=30.0) == []
        child.join(30)
        assert (tmp_path / "end").read_text() == "finished 1 [0.0, 1.0, 2.0, 3.0, 4.0]"
    finally:
        dist.destroy_process_group()
        child.kill()
