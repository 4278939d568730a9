"""Sec. 3.1: claims about requests, the versions of tokens, the queue's two ends, and weights.

Most runs are simulated: the real loops of train.py, `train` and `generate`, run in threads, one thread at a time, on a
virtual clock and a store in memory. So a run depends only on its Setting and takes milliseconds.
"""

import math
import random
import threading
from collections import Counter, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from conftest import check_exercise, refuses
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import pipeline
import reward
import train
from data import Curriculum, Prompt
from pipeline import Request, RequestQueue, RolloutQueue
from plumbing import build, evaluate
from plumbing.heartbeat import Lost
from plumbing.processes import broadcast_weights, layout_of
from plumbing.store import POLL, Interrupted, Store, paces
from plumbing.virtual import Events, Memory
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

    def run(self, actors):
        threads = [threading.Thread(target=self.live, args=(actor,), daemon=True) for actor in actors]
        for thread in threads:
            self.after(0.0, thread.start)
        self.next()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


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
    prompts: int = 2
    generations: int = 2
    trainers: int = 1
    generators: tuple = ((1, 2),)  # (duration of a decode step, slots) of each generator
    train: int = 4  # duration of an optimizer step
    mean: float = 3  # tokens of a completion
    cut: int = 99
    verifying: int = 0  # longest duration of verifying an answer
    learnt: bool = False  # whether three of four prompts are always solved
    pool: int = 1000  # training prompts
    steps: int = 4
    start: int = 0
    eval_every: int = 9999  # optimizer steps; at the start and the end of a run always
    seed: int = 0

    @property
    def queue(self):
        same = {name: getattr(self, name) for name in ("off_policy", "k", "generations", "steps", "start")}
        return same | {"per_step": self.prompts}

    @property
    def trainer_ranks(self):
        return range(self.trainers)

    @property
    def generator_ranks(self):
        return range(self.trainers, self.trainers + len(self.generators))


class Record:
    """What happened."""

    def __init__(self):
        self.batches = {}  # step -> [[RolloutMetadata]]
        self.trained = defaultdict(list)  # step -> [Rollout]
        self.started = Counter()  # (evaluation, version, request) -> times
        self.evaluated = {}  # version -> ([[RolloutMetadata]], [Rollout])
        self.ends = []  # why the generators' loops ended

    def staleness(self):
        """(step, step - version) of every token that trained."""
        return [(step, step - v) for step, rollouts in self.trained.items() for one in rollouts for v in one.versions]


def tokens(setting, request, index):
    """How many tokens a completion has, lognormal: the same whenever and wherever it is generated."""
    drawn = random.Random(f"{setting.seed} {request} {index}").lognormvariate(math.log(setting.mean) - 0.245, 0.7)
    return min(setting.cut, max(1, round(drawn)))


def completion(request, index, versions):
    """The Rollout with tokens of these versions."""
    n = len(versions)
    fields = dict(prompt_ids=[0], ids=[0] * n, mask=[True] * n, logprobs=[0.0] * n, versions=versions)
    place = request.number, index, request.evaluation
    return pipeline.Rollout(*place, **fields, text="", truncated=False, interrupted=False)


class Generator:
    """What `generate` and RequestQueue ask of a generator; its weights are the number of their version."""

    def __init__(self, setting, index, record, sleep):
        duration, self.slots = setting.generators[index]
        self.setting = setting
        self.seconds = duration * PAUSE
        self.running = []  # (request, index, versions of its tokens so far)
        self.queue = deque()
        self.work = {"decode_seconds": 0.0}
        self.version = setting.start
        self.weights = {"version": [setting.start - 1]}
        self.record = record
        self.sleep = sleep

    @property
    def busy(self):
        return bool(self.running or self.queue)

    def add(self, request):
        assert request.version <= self.version  # new weights are taken before requests are claimed
        self.record.started[request.evaluation, request.version, request.number] += 1
        self.queue += [(request, index, []) for index in range(request.generations)]

    def has_capacity(self, evaluation):
        return self.slots - len(self.running) > len(self.queue)

    def named_weights(self):
        return self.weights

    def update_weights(self, version):
        assert self.weights["version"] == [version] and version > self.version
        self.version = version

    def step(self):
        while self.queue and len(self.running) < self.slots:
            self.running.append(self.queue.popleft())
        if not self.running:
            return []
        self.sleep(self.seconds)
        self.work["decode_seconds"] += self.seconds
        ended = []
        for request, index, versions in self.running:
            versions.append(self.version)
            if len(versions) == tokens(self.setting, request.number, index):
                ended.append((request, index, versions))
        self.running = [one for one in self.running if one not in ended]
        return [completion(*one) for one in ended]

    def close(self):
        self.running = None


def verdict(completion, value, **more):
    """What a scorer hands back."""
    return Score(completion, None, "", value, reward=reward.reward(value), **more)


class Scorer:
    """Random verdicts, some of them late."""

    def __init__(self, setting, clock):
        self.setting = setting
        self.clock = clock
        self.pending = []

    def submit(self, completion, prompt):
        rng = random.Random(repr((self.setting.seed, prompt.index, completion.request, completion.index)))
        due = self.clock() + rng.randint(0, self.setting.verifying) * PAUSE
        solved = self.setting.learnt and prompt.index % 4 > 0
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
    return mock.MagicMock(stopped=None)


class Trainer(train.Trainer):
    """A Trainer without the learning. sent, waiting: as in `simulate`."""

    def __init__(self, setting, record, world, store, sent, waiting, queue):
        whole = dict(
            zero_variance_filter=True, normalisation="batch", token_budget=128, max_new_tokens=99, virtual=True
        )
        self.args = SimpleNamespace(steps=setting.steps, eval_every=setting.eval_every, checkpoint_every=9999, **whole)
        self.processes = SimpleNamespace(rank=store.rank, trainer_ranks=setting.trainer_ranks, device="cpu")
        self.record = record
        self.pass_time = partial(world.sleep, setting.train * PAUSE)
        self.queue = queue(store, setting.trainer_ranks, setting.generator_ranks, **setting.queue, drain=False)
        self.curriculum = Curriculum([prompt(n) for n in range(setting.pool)], seed=setting.seed, threshold=0.9)
        self.log = mock.MagicMock()
        self.sent = sent
        self.waiting = waiting
        self.before = setting.start - 1  # version of the weights sent last
        self.version = setting.start
        self.evaluated = None

    def evaluate(self):
        groups, samples = self.queue.evaluate([prompt(n) for n in range(3)], 2, samples=1)
        self.evaluated = self.version
        if self.processes.rank == 0:
            self.record.evaluated[self.version] = groups, samples

    def divide(self, groups):
        assert self.record.batches.setdefault(self.version, groups) == groups  # the same on every trainer
        return super().divide(groups)

    def update(self, share):
        self.queue.drop(share.dropped)
        rollouts = self.queue.tokens([item.rollout for items in share.micro_batches for item in items])
        if share.trains:  # else they are only compared
            self.record.trained[self.version] += rollouts
        self.pass_time()
        self.version += 1

    def log_step(self, groups, share, update):
        pass

    def broadcast_weights(self):
        assert self.waiting[self.before] == len(self.queue.generators)  # else a collective would run into its timeout
        self.before = self.version
        if self.processes.rank == 0:
            self.sent.append(self.version)

    def live(self):
        self.queue.stop(train.train(self, self.args))
        self.record.retired = self.curriculum.retired


def faked():
    """train.generate gets its generator and its scorer from the settings; nobody looks at the first completions."""
    builds = mock.patch.multiple(
        build,
        make_generator=lambda args, *_: args.generator,
        make_scorer=lambda args: args.scorer,
        await_weights=lambda generator: setattr(generator, "version", generator.version - 1),
    )
    with builds, mock.patch.multiple(evaluate, note=mock.DEFAULT):
        yield


fakes = pytest.fixture(faked, scope="module", autouse=True)


def turns(generator, scorer, queue, receive=None):
    """train.generate with these fakes: each `next` is a turn."""
    processes = SimpleNamespace(heartbeat=queue.store.heartbeat, device="cpu", dtype=None, clock=None, receive=receive)
    return train.generate(SimpleNamespace(generator=generator, scorer=scorer), processes, queue)


def simulate(setting, queue=RolloutQueue, slow=False):
    """A whole run; returns its Record and the keys that it leaves in the store; slow: whether calls to it take time."""
    world, record, memory = World(), Record(), Memory()
    sent = [setting.start - 1]  # versions of the weights
    waiting = Counter()  # version -> generators that have it and are about to receive the next one
    rng = random.Random(repr(setting))

    def store(rank):
        return Store(Slow(memory, world, rng) if slow else memory, rank, quiet(), pause=world.sleep)

    def trainer(rank):
        Trainer(setting, record, world, store(rank), sent, waiting, queue).live()

    def receive(named):
        waiting[named["version"][0]] += 1
        while sent[-1] == named["version"][0]:
            world.sleep(PAUSE)
        named["version"][0] = sent[-1]

    def generator(rank):
        fake = Generator(setting, rank - setting.trainers, record, world.sleep)
        requests = RequestQueue(store(rank), *paces(world.clock))
        for _ in turns(fake, Scorer(setting, world.clock), requests, receive):
            world.sleep(0.0 if fake.busy else PAUSE)
        record.ends.append(requests.latest.stop)

    trainers = [partial(trainer, rank) for rank in setting.trainer_ranks]
    world.run([*trainers, *(partial(generator, rank) for rank in setting.generator_ranks)])
    return record, [*memory.values]


def check_tokens(setting, record):
    """No token is too old, and every rollout was generated once, and trained once unless its group has no variance."""
    bound = pipeline.OFF_POLICY[setting.off_policy].bound(setting.k)
    assert all(0 <= staleness <= bound for _, staleness in record.staleness())
    assert set(record.started.values()) == {1}
    for step, groups in record.batches.items():
        numbers = range(step * setting.prompts, (step + 1) * setting.prompts)
        keys = [[f"rollout/train/{number}/{index}" for index in range(setting.generations)] for number in numbers]
        assert [[rollout.key for rollout in group] for group in groups] == keys
        kept = [group for group in groups if len({rollout.correct for rollout in group}) > 1]
        trained = sorted(f"rollout/train/{one.request}/{one.index}" for one in record.trained[step])
        assert trained == sorted(rollout.key for group in kept for rollout in group)


def check_run(setting, record, keys):
    """Everything that must hold of a run that does not run out of prompts."""
    assert list(record.batches) == list(range(setting.start, setting.steps))
    assert record.ends == ["finished"] * len(setting.generators)
    check_tokens(setting, record)
    requests = {number for evaluation, _, number in record.started if not evaluation}
    assert requests == set(range(setting.start * setting.prompts, setting.steps * setting.prompts))  # no others
    assert setting.steps in record.evaluated
    for version, (groups, samples) in record.evaluated.items():
        assert [len(group) for group in groups] == [2, 2, 2] and len(samples) == 2
        assert all(set(rollout.versions) == {version} for group in groups for rollout in group)
    # What a finished run leaves in the store, whatever its length.
    work = {f"work/{rank}" for rank in setting.generator_ranks}
    assert set(keys) <= work | {"state", "claimed/train", "claimed/eval", "finished/eval"}


def settings_of(**fixed):
    """Strategy for a Setting: random values, except for the fields in `fixed`."""
    ranges = dict(
        steps=st.integers(1, 10),
        prompts=st.integers(1, 3),
        generations=st.integers(1, 3),
        trainers=st.integers(1, 2),
        generators=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=3).map(tuple),
        train=st.integers(0, 12),
        mean=st.integers(1, 5),
        verifying=st.integers(0, 5),
        seed=st.integers(0, 999),
    )
    return st.builds(Setting, **(ranges | fixed))


@st.composite
def of_rule(draw, name):
    """A Setting of a rule, whatever k and interval of evaluations it can have."""
    rule = pipeline.OFF_POLICY[name]
    k = draw(st.integers(rule.least_k, 8))
    sent = [every for every in range(1, 9) if all(rule.broadcasts(v, k) for v in range(every, 11, every))]
    return draw(settings_of(off_policy=st.just(name), k=st.just(k), eval_every=st.sampled_from([*sent, 9999])))


# No shrinking: settings are small anyway, and it takes a second to detect a run that never ends.
few = settings(max_examples=20, deadline=None, derandomize=True, database=None, phases=[Phase.generate])


def check_rule(name, runs=40):
    """What the row of an off-policy rule promises, by counting and whatever the timing: test_adding.py uses it too."""
    rule = pipeline.OFF_POLICY[name]
    for k in range(rule.least_k, 41):
        assert pipeline.greatest_staleness(400, off_policy=name, k=k) == rule.bound(k), k

    @settings(few, max_examples=runs)
    @given(of_rule(name))
    def bounded(setting):
        check_run(setting, *simulate(setting))

    with contextmanager(faked)():
        bounded()


# --- The rules -------------------------------------------------------------------------------------------------------


def test_sec31_requests_and_broadcasts_by_hand():
    check_exercise(pipeline, "requests")
    assert all(pipeline.broadcasts(v, off_policy="pipeline", k=3) for v in range(7))
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


# Training takes no time and completions take long: the weights change while the first ones run.
LONG = dict(k=1, steps=12, train=0, mean=20, generators=((1, 8), (7, 8)))


def test_a_token_older_than_its_rule_says_ends_the_run_with_rule_token_and_bound(monkeypatch):
    late = pipeline.OFF_POLICY["pipeline"]._replace(requested=lambda version, k: k + 3 + version)
    monkeypatch.setitem(pipeline.OFF_POLICY, "late", late)
    refuses("at most 1 optimizer steps old, got one of 2", simulate, Setting("late", **LONG), error=RuntimeError)


@few
@given(
    st.sampled_from([*pipeline.OFF_POLICY]).flatmap(of_rule) | settings_of(start=st.just(3), steps=st.integers(6, 8))
)
def test_nothing_depends_on_the_order_in_which_ranks_reach_the_store(setting):
    check_run(setting, *simulate(setting, slow=True))


@pytest.mark.parametrize("off_policy", pipeline.OFF_POLICY)
def test_an_exhausted_curriculum_ends_the_run_after_its_last_full_batch(off_policy):
    setting = Setting(off_policy, prompts=3, steps=40, pool=10, learnt=True)
    record, _ = simulate(setting)
    check_tokens(setting, record)
    assert record.ends == ["curriculum exhausted"] and 0 < len(record.batches) < 40
    assert setting.pool - record.retired < setting.prompts  # one prompt in four is right only by chance


@few
@given(settings_of(k=st.integers(0, 4), learnt=st.just(True)), settings_of())
def test_the_prompts_of_a_batch_do_not_depend_on_timing(setting, other):
    setting = replace(setting, pool=5 * setting.prompts + 70)
    timed = replace(setting, generators=other.generators, train=other.train, verifying=other.verifying)
    batches = [simulate(one)[0].batches.values() for one in (setting, timed)]
    found, expected = ([[group[0].prompt for group in groups] for groups in run] for run in batches)
    assert found == expected


class FirstCome(RolloutQueue):
    """What you get when the batch is whatever arrives first: long completions grow old without limit."""

    def next_batch(self, step):
        groups = []
        while len(groups) < self.per_step:
            keys = [f"group/train/{number}" for number in range(self.state.requests)]
            arrived = [key for key in keys if self.store.has([key])]
            groups += self.store.take(arrived[: self.per_step - len(groups)])
            self.store.pause(PAUSE)
        return groups


def test_taking_whatever_arrives_first_breaks_the_bound():
    """Taking the oldest reaches it, and completions span updates."""
    setting = Setting(**LONG)
    record, first_come = (simulate(setting, queue)[0] for queue in (RolloutQueue, FirstCome))
    right, wrong = (max(staleness for _, staleness in run.staleness()) for run in (record, first_come))
    assert right == setting.k < wrong
    assert any(len(set(one.versions)) > 1 for batch in record.trained.values() for one in batch)


# --- Who waits for whom ----------------------------------------------------------------------------------------------


def rollouts(rank=0, *, pause=None, heartbeat=None, memory=None, trainers=1, **changes):
    """The trainers' end of a queue for two generators, ranks 1 and 2; `pause` is what happens while it waits."""
    store = Store(memory or Memory(), rank, heartbeat or quiet(), pause)
    rule = Setting(k=1, generations=1, steps=9).queue | changes
    return RolloutQueue(store, range(trainers), range(1, 3), **rule, drain=False)


def requests(queue, rank=1, heartbeat=None):
    """The generators' end of the same queue."""
    return RequestQueue(Store(queue.store.backend, rank, heartbeat or quiet()))


def fresh(setting=Setting()):
    """A generator and a scorer for which no time passes; the first weights have arrived."""
    generator = Generator(setting, 0, Record(), float)
    generator.version += 1  # await_weights goes one back
    return generator, Scorer(setting, float)


def test_a_run_resumed_with_fewer_steps_than_are_done_admits_nothing():
    queue = rollouts(steps=3, start=5)
    assert queue.room == 0
    queue.admit([])


def test_a_trainer_waits_for_rank_0_and_hears_of_the_end():
    lead = rollouts(trainers=2)
    queue = rollouts(1, memory=lead.store.backend, trainers=2, pause=lambda seconds: lead.stop("interrupted"))
    queue.admit([prompt(0), prompt(1)])
    refuses("^interrupted$", queue.next_batch, 0, error=Interrupted)


def test_a_wait_can_be_interrupted_but_not_between_joining_and_sending():
    heartbeat = quiet()
    heartbeat.stopped = "interrupted"
    queue = rollouts(heartbeat=heartbeat, pause=mock.Mock(side_effect=[None, None, TimeoutError]))
    queue.admit([prompt(0), prompt(1)])
    refuses("^interrupted$", queue.next_batch, 0, error=Interrupted)
    with pytest.raises(TimeoutError):  # after the third pause; else generators would wait for the weights for ever
        queue.announce(1, None)


def test_a_lost_rank_ends_every_turn_at_once():
    """As it ends every wait: test_store.py."""
    heartbeat = quiet()
    heartbeat.tick = mock.Mock(side_effect=Lost("generator rank 2 ended"))
    life = turns(*fresh(), requests(rollouts(), heartbeat=heartbeat))
    next(life)
    refuses("^generator rank 2 ended$", next, life, error=Lost)


def test_a_generator_that_loses_the_store_ends():
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    queue = requests(rollouts(memory=host))
    queue.store.backend = dist.TCPStore("127.0.0.1", host.port, is_master=False, wait_for_workers=False)
    life = turns(*fresh(), queue)
    next(life)
    del host  # the server ends with the object
    with pytest.raises(dist.DistError):  # a RuntimeError; the heartbeat names the rank that ended
        for _ in life:
            pass


# --- The generators' end ---------------------------------------------------------------------------------------------


def answer(**changes):
    lists = dict(prompt_ids=[1, 2], ids=[5, 6, 7], mask=[True, False, True], logprobs=[-1.0, 0.0, -2.0])
    one = pipeline.Rollout(0, 0, False, **lists, versions=[3, 3, 4], text="", truncated=False, interrupted=True)
    return replace(one, **changes)


def test_metadata_count_and_weigh_sampled_tokens_and_leave_injected_ones_out():
    check_exercise(pipeline, "metadata")
    one, request = answer(logprobs=[-1.0, -9.0, -2.0]), Request(0, 3, prompt(8), 1)
    rollout = pipeline.metadata(verdict(one, True), request)
    assert (rollout.prompt_tokens, rollout.length, rollout.logprob) == (2, 5, -3.0)  # the middle token is injected
    assert (rollout.prompt, rollout.interrupted) == (8, True)
    failed = pipeline.metadata(verdict(one, None, error="no memory"), request)
    assert failed.correct is None and failed.reward != failed.reward and failed.error == "no memory"


def test_of_an_evaluation_only_the_samples_arrive_with_their_tokens_and_the_count_of_what_is_finished():
    queue = rollouts(pause=lambda seconds: next(life))
    life = turns(*fresh(Setting(cut=1, generators=((1, 1),))), requests(queue))
    for _ in range(2):  # the second one counts anew
        seen = []
        _, samples = queue.evaluate([prompt(0), prompt(1)], 2, 1, seen.append)
        assert [one.request for one in samples] == [0, 0]
        assert seen == sorted(seen) and {*range(4)} <= {*seen} <= {*range(5)}
    assert not any(key.startswith("rollout/") for key in queue.store.backend.values)


def test_a_trainer_decodes_too_while_it_waits_for_an_evaluation():
    queue = rollouts(pause=float)
    generator, scorer = fresh()
    place = dict(heartbeat=queue.store.heartbeat, device="cpu", dtype=None, clock=None, store=queue.store)
    policy = SimpleNamespace(modules=list, model=SimpleNamespace(named_parameters=list))
    asked = SimpleNamespace(generator=generator, scorer=scorer), SimpleNamespace(**place), policy
    decoder = evaluate.TrainerDecodes(*asked, train.generate)
    with mock.patch.object(build, "make_generator", side_effect=OSError("the checkpoint is deleted by now")):
        groups, _ = queue.evaluate([prompt(n) for n in range(3)], 2, 1, lambda _: decoder.decode())  # no other answers
    assert [[rollout.prompt for rollout in group] for group in groups] == [[0, 0], [1, 1], [2, 2]]
    assert not queue.store.has(["joined/0/0"])


# --- Weights ---------------------------------------------------------------------------------------------------------


def test_work_during_an_evaluation_does_not_count():
    queue = rollouts()
    generator = requests(queue)
    # Seconds of decoding so far at each report; the 4 seconds from 2 to 6 were spent in an evaluation.
    for seconds, evaluating in ((2.0, False), (6.0, True), (6.25, False)):
        queue._announce_state(evaluating=evaluating)
        generator.state(busy=True)
        generator.report({"decode_seconds": seconds})
    assert queue.generator_work() == {1: {"decode_seconds": 2.25}}


def weights(fill):
    """Tensors of several dtypes and odd sizes, so that nothing is aligned by chance."""
    rng = torch.Generator().manual_seed(fill)
    named = {f"layer{n}": torch.randn(n, 7, generator=rng) for n in range(1, 9)}
    named |= {"half": torch.randn(3, generator=rng).bfloat16(), "flag": torch.tensor([fill > 0])}
    named |= {"scalar": torch.tensor(fill), "odd": torch.tensor([float("nan"), -0.0, float("inf"), fill])}
    return named | {"parameter": torch.nn.Parameter(torch.ones(5) * fill)}


@pytest.fixture
def pair():
    """The two ranks of a gloo group, for two threads; made in two threads, as each waits for the other."""
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ThreadPoolExecutor(2) as pool:
        made = lambda rank: dist.ProcessGroupGloo(host.clone(), rank, 2, timedelta(seconds=20))  # noqa: E731
        yield list(pool.map(made, range(2)))


def test_sec31_weights_arrive_bit_for_bit(pair):
    sent, received = weights(3), dict(sorted(weights(0).items()))
    tensors = (sent[name] for name in sorted(sent))  # made when they are asked for
    storage = {name: tensor.data_ptr() for name, tensor in received.items()}
    with ThreadPoolExecutor(1) as pool:
        pool.submit(broadcast_weights, layout_of(sent), tensors, pair[0], "cpu")
        broadcast_weights(layout_of(received), received.values(), pair[1], "cpu")
    for named in (received, sent):
        torch.testing.assert_close(named, weights(3), rtol=0, atol=0, equal_nan=True)
    assert storage == {name: tensor.data_ptr() for name, tensor in received.items()}  # received in place


def test_a_receiver_with_other_tensors_says_so(pair):
    with ThreadPoolExecutor(1) as pool:
        # A digest of other tensors; nothing is sent after it, so a receiver that ignored it would hang.
        pool.submit(lambda: pair[0].broadcast(torch.zeros(32, dtype=torch.uint8), 0).wait())
        words = "model or dtype is not the trainers'"
        refuses(words, broadcast_weights, layout_of(weights(0)), (), pair[1], "cpu")
