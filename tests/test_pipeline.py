"""Sec. 3.1: claims about requests, the versions of tokens, the queue's two ends, and weights.

Most runs are simulated: the real loops of train.py, `train` and `generate`, in one thread and without a model. Between
any two calls of the trainer's to the store, and while it trains, generators take turns in a random order. So a run
depends only on its Setting and takes milliseconds.
"""

import random
from collections import Counter, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from conftest import check_exercise, refuses, sampled

import pipeline
import reward
import train
from data import Curriculum, Prompt, Prompts
from pipeline import Request, RequestQueue, RolloutQueue
from plumbing import build, evaluate
from plumbing.processes import broadcast_weights, layout_of
from plumbing.store import Interrupted, Store
from plumbing.virtual import Memory
from verify.scorer import Score

# --- A run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    off_policy: str = "pipeline"
    k: int = 2
    prompts: int = 2
    generations: int = 2
    slots: tuple = (2,)  # of each generator
    train: int = 4  # turns of generators in an optimizer step, at most
    mean: int = 3  # tokens of a completion
    learnt: bool = False  # whether three of four prompts are always solved
    pool: int = 1000  # training prompts
    steps: int = 4
    start: int = 0
    eval_every: int = 9999  # optimizer steps; at the start and the end of a run always
    seed: int = 0


def prompt(index):
    return Prompt(index, (1,), f"prompt {index}", "1", "arithmetic")


def quiet():
    """A heartbeat of a rank whose run goes well."""
    return mock.MagicMock(stopped=None)


def verdict(completion, value):
    """What a scorer hands back."""
    return Score(completion, None, "", value, reward=reward.reward(value))


class Generator:
    """The life of a generator rank: train.generate, with this object as its generator and as its scorer.

    A completion has the same length and verdict whenever and wherever it is generated.
    """

    def __init__(self, run, rank, slots):
        self.run = run
        self.slots = slots
        self.queue = deque()  # (request, index, how many tokens it will have, versions of its tokens so far)
        self.running = []
        self.pending = []  # Scores
        self.work = {}
        self.version = run.version
        self.receiving = False
        processes = SimpleNamespace(heartbeat=quiet(), device="cpu", dtype=None, clock=None, receive=self.receive)
        patient = lambda: run.rng.random() < 0.5  # noqa: E731
        self.requests = RequestQueue(Store(run.memory, rank, quiet()), patient, patient)
        self.life = train.generate(self, processes, self.requests)

    busy = property(lambda self: bool(self.running or self.queue))

    def await_weights(self):
        self.version -= 1

    def receive(self, _):
        self.receiving = True  # it has no more turns until the trainer sends

    named_weights = close = lambda self: None

    def update_weights(self, version):
        self.version = version

    def has_capacity(self, evaluation):
        return self.slots - len(self.running) > len(self.queue)

    def add(self, request):
        assert request.version <= self.version  # new weights are taken before requests are claimed
        self.run.started[request.evaluation, request.version, request.number] += 1
        for index in range(request.generations):
            drawn = random.Random(f"{self.run.setting.seed} {request.number} {index}")
            self.queue.append((request, index, 1 + int(drawn.expovariate(1 / self.run.setting.mean)), []))

    def step(self):
        while self.queue and len(self.running) < self.slots:
            self.running.append(self.queue.popleft())
        for *_, versions in self.running:
            versions.append(self.version)
        ended = [one for one in self.running if len(one[3]) == one[2]]
        self.running = [one for one in self.running if len(one[3]) < one[2]]
        return [rollout(request, index, versions) for request, index, _, versions in ended]

    def submit(self, rollout, prompt):
        solved = self.run.setting.learnt and prompt.index % 4 > 0
        drawn = random.Random(f"{self.run.setting.seed} {prompt.index} {rollout.request} {rollout.index}")
        self.pending.append(verdict(rollout, solved or drawn.random() < 0.5))

    def finished(self):
        self.run.rng.shuffle(self.pending)
        late = self.run.rng.randint(0, len(self.pending))
        done, self.pending = self.pending[late:], self.pending[:late]
        return done


def rollout(request, index, versions):
    """The Rollout with tokens of these versions."""
    n = len(versions)
    fields = dict(prompt_ids=[0], ids=[0] * n, mask=[True] * n, logprobs=[0.0] * n, versions=versions)
    place = request.number, index, request.evaluation
    return pipeline.Rollout(*place, **fields, text="", truncated=False, interrupted=False)


class Busy:
    """The store as the trainer sees it: generators have turns before each call."""

    def __init__(self, run):
        self.run = run

    def __getattr__(self, name):
        self.run.turns(2)
        return getattr(self.run.memory, name)


class Run(train.Trainer):
    """A whole run, done when it is made: a Trainer without the learning, and what happened."""

    def __init__(self, setting, queue=RolloutQueue):
        same = dict(zero_variance_filter=True, normalisation="batch", token_budget=128, max_new_tokens=99, virtual=True)
        self.args = SimpleNamespace(steps=setting.steps, eval_every=setting.eval_every, checkpoint_every=9999, **same)
        self.processes = SimpleNamespace(rank=0, trainer_ranks=range(1), device="cpu")
        self.setting = setting
        self.rng = random.Random(repr(setting))
        self.turns_taken = 0
        self.memory = Memory(self.written)
        self.log = mock.MagicMock()
        prompts = Prompts(lambda made, _: made, map(prompt, range(setting.pool)))
        self.curriculum = Curriculum(prompts, seed=setting.seed, threshold=0.9)
        self.version = setting.start
        self.evaluated_version = None
        self.batches = {}  # step -> [[RolloutMetadata]]
        self.trained = defaultdict(list)  # step -> [Rollout]
        self.started = Counter()  # (evaluation, version, request) -> times
        self.evaluations = {}  # version -> ([[RolloutMetadata]], [Rollout])
        ranks = range(1, 1 + len(setting.slots))
        self.generators = [Generator(self, *each) for each in zip(ranks, setting.slots)]
        store = Store(Busy(self), 0, quiet(), pause=lambda _: self.turns(9))
        fields = {name: getattr(setting, name) for name in ("off_policy", "k", "generations", "steps", "start")}
        makers = dict(make_generator=lambda made, *_: made, make_scorer=lambda made: made)
        fakes = mock.patch.multiple(build, **makers, await_weights=Generator.await_weights)
        with fakes, mock.patch.object(evaluate, "note"):  # nobody looks at the first completions
            self.queue = queue(store, range(1), ranks, **fields, per_step=setting.prompts, drain=False)
            self.queue.stop(train.train(self, self.args))
            self.turns(1000)

    def turns(self, most):
        """Up to so many turns of generators."""
        for _ in range(self.rng.randint(most // 2, most)):
            self.turns_taken += 1
            assert self.turns_taken < 50_000, "the run does not end"
            generator = self.rng.choice(self.generators)
            if not generator.receiving:
                next(generator.life, None)

    def written(self, key):
        """Whoever sees the metadata finds the tokens."""
        if key.startswith("group/train/"):
            tokens = [key.replace("group", "rollout") + f"/{index}" for index in range(self.setting.generations)]
            assert self.memory.check(tokens)

    def evaluate(self):
        counts = []
        groups, samples = self.queue.evaluate([prompt(n) for n in range(3)], 2, 1, counts.append)
        assert counts == sorted(counts) and 4 <= counts[-1] <= 6  # of 6 rollouts; 4 came before the last group
        self.evaluated_version = self.version
        self.evaluations[self.version] = groups, samples

    def update(self, share):
        self.queue.drop(share.dropped)
        rollouts = self.queue.tokens([item.rollout for items in share.micro_batches for item in items])
        if share.trains:  # else they are only compared
            self.trained[self.version] += rollouts
        self.turns(self.setting.train)
        self.version += 1

    def log_step(self, groups, share, update):
        self.batches[self.version - 1] = groups

    def broadcast_weights(self):
        for generator in self.generators:
            assert generator.receiving and generator.version == self.version  # else a collective would never end
            generator.receiving = False

    @property
    def staleness(self):
        """(step, step - version) of every token that trained."""
        return [(step, step - v) for step, rollouts in self.trained.items() for one in rollouts for v in one.versions]

    @property
    def ends(self):
        return {generator.requests.latest.stop for generator in self.generators}


def check_tokens(run):
    """No token is too old, and every rollout was generated once, and trained once unless its group has no variance."""
    setting = run.setting
    bound = pipeline.OFF_POLICY[setting.off_policy].bound(setting.k)
    assert all(0 <= staleness <= bound for _, staleness in run.staleness)
    assert set(run.started.values()) == {1}
    for step, groups in run.batches.items():
        numbers = range(step * setting.prompts, (step + 1) * setting.prompts)
        keys = [[f"rollout/train/{number}/{index}" for index in range(setting.generations)] for number in numbers]
        assert [[rollout.key for rollout in group] for group in groups] == keys
        kept = [group for group in groups if len({rollout.correct for rollout in group}) > 1]
        trained = sorted(f"rollout/train/{one.request}/{one.index}" for one in run.trained[step])
        assert trained == sorted(rollout.key for group in kept for rollout in group)


def check_run(run):
    """Everything that must hold of a run that does not run out of prompts."""
    setting = run.setting
    assert list(run.batches) == list(range(setting.start, setting.steps)) and run.ends == {"finished"}
    check_tokens(run)
    requests = {number for evaluation, _, number in run.started if not evaluation}
    assert requests == set(range(setting.start * setting.prompts, setting.steps * setting.prompts))  # no others
    assert max(setting.start, setting.steps) in run.evaluations
    for version, (groups, samples) in run.evaluations.items():
        assert [len(group) for group in groups] == [2, 2, 2] and len(samples) == 2
        assert all(set(rollout.versions) == {version} for group in groups for rollout in group)
    # What a finished run leaves in the store, whatever its length.
    left = {key for key in run.memory.values if not key.startswith("work/")}
    assert left <= {"state", "claimed/train", "claimed/eval", "finished/eval"}


def drawn(name, number, **fixed):
    """A random Setting of a rule, whatever k and interval of evaluations it can have, but for the `fixed` fields."""
    rng = random.Random(number)
    rule = pipeline.OFF_POLICY[name]
    k = rng.randint(rule.least_k, 8)
    sent = [every for every in range(1, 9) if all(rule.broadcasts(v, k) for v in range(every, 11, every))]
    most = dict(prompts=3, generations=3, mean=5, steps=10, seed=999)
    fields = {field: rng.randint(1, limit) for field, limit in most.items()} | {"train": rng.randint(0, 30)}
    slots = tuple(rng.choices(range(1, 6), k=rng.randint(1, 3)))
    return Setting(name, k, **fields | dict(slots=slots, eval_every=rng.choice([*sent, 9999])) | fixed)


# --- The rules -------------------------------------------------------------------------------------------------------


def test_sec31_requests_and_broadcasts_by_hand():
    check_exercise(pipeline, "requests")
    assert all(pipeline.broadcasts(v, off_policy="pipeline", k=3) for v in range(7))
    assert [v for v in range(7) if pipeline.broadcasts(v, off_policy="ppo", k=3)] == [0, 3, 6]


@pytest.mark.parametrize("name", pipeline.OFF_POLICY)
def test_sec31_no_token_is_older_than_its_rule_says(name):
    """By counting, and in runs, whatever their timing; those resumed at step 3 may have fewer steps to do than done."""
    rule = pipeline.OFF_POLICY[name]
    for k in range(rule.least_k, 41):
        assert pipeline.greatest_staleness(400, off_policy=name, k=k) == rule.bound(k), k

    for number in range(20):
        check_run(Run(drawn(name, number, start=number % 2 * 3)))


def test_sec31_all_tokens_of_a_ppo_phase_come_from_the_weights_it_began_with():
    for run in (Run(drawn("ppo", number)) for number in range(10)):
        assert all(staleness == step % run.setting.k for step, staleness in run.staleness)


# Training takes no time and completions take long: the weights change while the first ones run.
LONG = dict(k=1, steps=12, train=0, mean=20, slots=(8, 8), seed=3)


def test_a_token_older_than_its_rule_says_ends_the_run_with_rule_token_and_bound(monkeypatch):
    late = pipeline.OFF_POLICY["pipeline"]._replace(requested=lambda version, k: k + 3 + version)
    monkeypatch.setitem(pipeline.OFF_POLICY, "late", late)
    refuses("at most 1 optimizer steps old, got one of 2", Run, Setting("late", **LONG), error=RuntimeError)


@pytest.mark.parametrize("off_policy", pipeline.OFF_POLICY)
def test_an_exhausted_curriculum_ends_the_run_after_its_last_full_batch(off_policy):
    run = Run(Setting(off_policy, prompts=3, steps=40, pool=10, learnt=True))
    check_tokens(run)
    assert run.ends == {"curriculum exhausted"} and 0 < len(run.batches) < 40
    assert run.setting.pool - run.curriculum.retired < 3  # one prompt in four is right only by chance


def test_the_prompts_of_a_batch_do_not_depend_on_timing():
    def prompts(setting):
        return [[group[0].prompt for group in groups] for groups in Run(setting).batches.values()]

    for number in range(8):
        setting = drawn("pipeline", number, learnt=True, pool=80)
        assert prompts(setting) == prompts(replace(setting, slots=(2, 7), train=90 - setting.train))


class FirstCome(RolloutQueue):
    """What you get when the batch is whatever arrives first: long completions grow old without limit."""

    def next_batch(self, step):
        groups = []
        while len(groups) < self.per_step:
            keys = [f"group/train/{number}" for number in range(self.state.requests)]
            arrived = [key for key in keys if self.store.has([key])]
            groups += self.store.take(arrived[: self.per_step - len(groups)])
            self.store.pause(0)
        return groups


def test_taking_whatever_arrives_first_breaks_the_bound():
    """Taking the oldest reaches it, and completions span updates."""
    setting = Setting(**LONG)
    run, first_come = (Run(setting, queue) for queue in (RolloutQueue, FirstCome))
    right, wrong = (max(staleness for _, staleness in one.staleness) for one in (run, first_come))
    assert right == setting.k < wrong
    assert any(len(set(one.versions)) > 1 for batch in run.trained.values() for one in batch)


# --- Who waits for whom ----------------------------------------------------------------------------------------------


def trainers_end(rank=0, *, pause=None, heartbeat=None, memory=None, trainers=1):
    """The trainers' end of a queue for two generators, ranks 1 and 2; `pause` is what happens while it waits."""
    store = Store(memory or Memory(), rank, heartbeat or quiet(), pause)
    rule = dict(off_policy="pipeline", k=1, per_step=2, generations=1, steps=9, start=0, drain=False)
    return RolloutQueue(store, range(trainers), range(1, 3), **rule)


def test_a_trainer_waits_for_rank_0_and_hears_of_the_end():
    lead = trainers_end(trainers=2)
    queue = trainers_end(1, memory=lead.store.backend, trainers=2, pause=lambda seconds: lead.stop("interrupted"))
    queue.admit([prompt(0), prompt(1)])
    refuses("^interrupted$", queue.next_batch, 0, error=Interrupted)


def test_a_wait_can_be_interrupted_but_not_between_joining_and_sending():
    heartbeat = quiet()
    heartbeat.stopped = "interrupted"
    queue = trainers_end(heartbeat=heartbeat, pause=mock.Mock(side_effect=[None, None, TimeoutError]))
    queue.admit([prompt(0), prompt(1)])
    refuses("^interrupted$", queue.next_batch, 0, error=Interrupted)
    with pytest.raises(TimeoutError):  # after the third pause; else generators would wait for the weights for ever
        queue.announce(1, None)


def test_metadata_count_and_weigh_sampled_tokens_and_leave_injected_ones_out():
    check_exercise(pipeline, "metadata")
    one = sampled([5, 6], [7, 8, 9], [-1.0, -9.0, -2.0], [True, False, True])
    kept = pipeline.metadata(verdict(one, None), Request(0, 3, prompt(8), 1))
    assert (kept.prompt, kept.length, kept.logprob, kept.correct) == (8, 5, -3.0, None)


# --- Weights ---------------------------------------------------------------------------------------------------------


def test_sec31_weights_arrive_bit_for_bit():
    odd = torch.tensor([float("nan"), -0.0, float("inf"), 1 / 3, 5])  # of odd sizes, so that none is aligned by chance
    sent = {"flag": torch.tensor([True]), "half": odd[:3].bfloat16(), "layer": torch.rand(8, 7), "odd": odd}
    received = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    storage = [tensor.data_ptr() for tensor in received.values()]
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def live(rank):
        group = dist.ProcessGroupGloo(host.clone(), rank, 2, timedelta(seconds=20))
        named = received if rank else sent
        broadcast_weights(layout_of(named), iter(named.values()), group, "cpu")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(live, range(2)))
    torch.testing.assert_close(received, sent, rtol=0, atol=0, equal_nan=True)
    assert storage == [tensor.data_ptr() for tensor in received.values()]  # received in place
