"""Asynchronous training: who may generate what, when a batch is complete, and how weights reach running generators.

Paper: Sec. 3.1 and A.11 (PipelineRL-k, PPO-off-policy-k); Sec. 2 (generators and trainers are separate processes).

    pipeline   N(v) = min(k + 1 + v, steps) P               new weights after every optimizer step
    ppo        N(v) = min((floor(v / k) + 1) k, steps) P    new weights when k divides v
    batch of step v = requests v P ... (v + 1) P - 1         in both, whatever order they finish in
    step v waits for  its batch (pipeline); all requests issued so far (ppo)

v -> version (optimizer steps done), P -> prompts (per step), N(v) -> admission_limit, k -> k (optimizer steps).

A request is the permission to generate one group: G completions of one prompt. Rank 0 issues request n once n < N(v), so
the requests of step v's batch are issued at version v - k or later, and generators start them with weights at least that
new: no token is trained on more than k optimizer steps (ppo: k - 1) after the version that sampled it. No completion is
discarded for its age, and the prompts of a batch do not depend on timing. Trainers that are ahead wait for unfinished
requests; generators that are ahead wait for new ones.

All messages go through one key-value store that rank 0 hosts (the mailbox):
    rank 0 -> generators   the requests, and "news": how many requests are issued, which version the generators should
                           have, whether an evaluation is on, whether the run ends
    generator -> rank 0    claims the next request number by an atomic add and keeps it until that request is issued; when
                           the last completion of a request is scored, puts a value per completion, then their rollouts
    rank 0 -> trainers     the rollouts of a batch; each trainer takes its share of the completions out of the mailbox
Weights do not go through the mailbox. When every generator has joined a version (says that it waits for these weights),
the functions passed as `send` and `receive` (in train.py, broadcast_weights of plumbing/fleet.py) copy them; each
generator receives between two decode steps.
Every rank counts its progress. A wait fails when a rank that it depends on makes no progress for `timeout` seconds, and
says who waits for whom; it fails at once when a process is lost. A process that is blocked in a call to the mailbox
because rank 0 is frozen is ended by one of its own threads (plumbing/lifeline.py).

Deviation: the paper hands over the first full batch; here a batch is made of the oldest requests. Taking the completions
  that arrive first breaks the bound (test_taking_whatever_arrives_first_breaks_the_bound) and favours short answers.
Deviation: if too few prompts are free when a phase of ppo begins, the missing requests are issued in the middle of it;
  the age of their tokens stays bounded.
Open in the paper: what holds where the trainers are the slower side. The paper speaks of trainers that wait, once they
  are k steps ahead. Here the generators may then finish k + 1 batches that no step has trained on, before they wait; so
  with large k a queue of old tokens stands, nearly k steps old when they are trained on.
Open in the paper: the unit of staleness (ours: optimizer steps, from the version that sampled a token to the version
  that trains on it); whether ppo publishes the last weights (ours: yes, for the last evaluation).

Run by train.py. Test: pytest tests/test_pipeline.py
"""

import pickle
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch.distributed as dist

from plumbing.unpickler import read

MAX_BYTES = 8 << 20  # of one value; the store drops the connection above this
POLL = 0.005  # seconds between two polls of a rank with nothing else to do; each is a round trip to rank 0
LONGEST_POLL = 0.05  # to which they grow while nothing changes
SLOWER = 1.25  # by which factor, from one poll to the next
LOOK = 0.025  # seconds between two polls for news by a generator that is decoding
BEAT = 0.25  # seconds between two signs of progress
MEASURED = 20  # decode steps after which a generator's speed is known
PROBE = 8  # optimizer steps between two probes of the generators that were too slow


# --- Rules: pure functions on counts ---------------------------------------------------------------------------------


def admission_limit(version, *, off_policy, k, steps, prompts):
    """N(v): how many requests may have been issued, over the whole run, once `version` optimizer steps are done.

    off_policy  "pipeline", or "ppo" with k >= 1;  k  optimizer steps
    steps       of the run;                        prompts  P, requests per step

    >>> [admission_limit(v, off_policy="pipeline", k=2, steps=5, prompts=10) for v in range(5)]
    [30, 40, 50, 50, 50]
    >>> [admission_limit(v, off_policy="ppo", k=2, steps=5, prompts=10) for v in range(5)]
    [20, 20, 40, 40, 50]
    """
    batches = k + 1 + version if off_policy == "pipeline" else (version // k + 1) * k
    return min(batches, steps) * prompts


def batch_requests(step, prompts):
    """The numbers of the P requests that optimizer step `step` (counted from 0) trains on."""
    return range(step * prompts, (step + 1) * prompts)


def awaited_requests(step, issued, *, off_policy, prompts, drain=False):
    """The requests that are finished before optimizer step `step` begins, if `issued` requests are issued by then.

    pipeline: its batch. ppo: the whole phase, since generation and training alternate.
    drain    wait for all in pipeline too, so that every token is exactly k steps old (train.py --virtual exact)

    >>> [awaited_requests(1, 40, off_policy=setup, prompts=10) for setup in ("pipeline", "ppo")]
    [range(10, 20), range(10, 40)]
    """
    batch = batch_requests(step, prompts)
    return range(batch.start, issued) if drain or off_policy == "ppo" else batch


def publishes(version, *, off_policy, k):
    """Whether the generators get the weights of `version`: every version in pipeline, every k-th in ppo."""
    return off_policy == "pipeline" or version % k == 0


def stragglers(seconds, drained):
    """The generators that are to be drained, {rank: seconds per decode step, the latest known} for all: those above
    twice the median, of 4 or more; one that is drained already must come below 1.5 times the median to be let in again.

    >>> stragglers({1: 1.0, 2: 1.1, 3: 0.9, 4: 2.3, 5: 1.8}, drained={5})
    {4, 5}
    >>> stragglers({1: 1.0, 2: 9.0, 3: 1.0}, drained=set())
    set()
    """
    if len(seconds) < 4:
        return set()
    usual = statistics.median(seconds.values())
    return {rank for rank, mine in seconds.items() if mine > (1.5 if rank in drained else 2.0) * usual}


# --- What is sent ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """Permission to generate one group: G completions of one prompt."""

    number: int  # 0, 1, … over the training requests of the run, or over one evaluation
    version: int  # of the generators when the request was issued; only weights at least that new may start it
    prompt: object  # data.Prompt
    generations: int  # G
    evaluation: bool = False  # a validation prompt: its completions start before those of training requests
    metadata_only: bool = False  # no completion is delivered: the 16,000 of an evaluation would fill the mailbox

    @property
    def queue(self):
        """The queue that it is claimed from."""
        return "eval" if self.evaluation else "train"


@dataclass
class Rollout:
    """One answer to a request's prompt. ids, mask, logprobs, versions: one entry per token, EOS included."""

    request: int  # Request.number
    index: int  # 0 … G-1 in its group
    evaluation: bool  # Request.evaluation
    prompt_ids: list[int]
    ids: list[int]
    mask: list[bool]  # True where the policy sampled the token, False where it was injected
    logprobs: list[float]  # nats, log pi_gen of the token, stored when it was sampled; 0.0 if injected
    versions: list[int]  # policy version (optimizer steps) when the token was appended
    text: str  # special tokens included, EOS excluded
    truncated: bool  # no EOS within the token budget
    interrupted: bool  # the interruption phrase was injected


@dataclass(frozen=True)
class RolloutMetadata:
    """What trainers need to know of a completion to form a batch, normalise advantages and divide the work."""

    key: str  # of the completion in the mailbox
    prompt: int  # data.Prompt.index
    reward: float  # nan if the verifier failed
    correct: bool | None  # None if the verifier failed: then its group is dropped, not counted as wrong
    truncated: bool
    interrupted: bool
    prompt_tokens: int
    tokens: int  # of the completion, injected ones included
    versions: dict[int, int]  # {policy version: number of tokens that it sampled}, injected ones excluded
    logprob: float  # nats, log pi_gen summed over the tokens that the policy sampled
    timed_out: bool  # wrong because verifying it took too long
    error: str  # why the verifier failed; "" if it did not
    marked: bool = True  # the text holds the mark after which the answer begins (--think-end), or none is required

    @property
    def length(self):
        """Tokens, prompt included."""
        return self.prompt_tokens + self.tokens


@dataclass(frozen=True)
class News:
    """What rank 0 tells the generators."""

    version: int = 0  # of the weights that the generators should have
    requests: int = 0  # training requests issued over the whole run
    evaluation_requests: int = 0  # issued over all evaluations
    evaluating: bool = False  # if so, only evaluation requests may be claimed
    stop: str | None = None  # why the run ends; None before
    drained: frozenset = frozenset()  # ranks of slow generators, which take no requests
    probes: int = 0  # how often they have been asked to decode something all the same


# --- The mailbox -----------------------------------------------------------------------------------------------------


class Stalled(RuntimeError):
    """A rank that this one waits for makes no progress, or some rank is lost."""


class Interrupted(Exception):
    """The run shall end in an orderly way: `interrupted()` or rank 0's news says so. The message is the reason."""


def connect(address, listen):
    """The store behind the mailbox, hosted by rank 0; every rank of an initialised default process group calls this.

    address  of rank 0;  listen  () -> a socket that listens there
    """
    server = listen() if dist.get_rank() == 0 else None
    port: list = [server and server.getsockname()[1]]
    dist.broadcast_object_list(port, 0)
    hosting = {"is_master": True, "master_listen_fd": server.detach()} if server else {"is_master": False}
    return dist.TCPStore(address, port[0], wait_for_workers=False, **hosting)


class Mailbox:
    """Python objects under names, in one store for all ranks. Only `wait` and `receive` wait for another rank to act.

    The methods call rank 0's store, whose `add`, `check`, `get`, `multi_get` and `delete_key` have no time limit: they
    block while rank 0 is frozen or out of reach.

    store        a TCPStore, or anything with its methods; one per thread (`store.clone()`)
    rank         of this process: ranks below `trainers` train, the rest up to `world` generate
    timeout      seconds without progress after which a rank counts as stuck
    interrupted  () -> why the run shall end in an orderly way, or None; called while waiting
    lost         () -> why the run cannot go on, or None; called in every wait and every turn of a generator
    hosts        of all ranks; named in messages if there are several
    """

    def __init__(self, store, rank, *, trainers, world, timeout, interrupted=lambda: None, lost=lambda: None, hosts=()):
        self.store = store
        self.hosts = hosts
        self.rank = rank
        self.trainers = trainers
        self.generators = range(trainers, world)
        self.timeout = timeout
        self.interrupted = interrupted
        self.lost = lost
        self.clock = time.monotonic  # plumbing/virtual.py puts its own clock and pause here, and 0 for the next two
        self.pause = time.sleep
        self.look = LOOK
        self.beat_every = min(BEAT, timeout / 8)
        self._beaten = float("-inf")  # clock time of the last `beat`
        self._looked = float("-inf")  # of the last look at the others' beats
        self._asked = float("-inf")  # of the last look at the news
        self._progress = {}  # rank -> (its beats, when we first saw that many: by our clock, as clocks differ)
        self._news = News()  # the last that was seen
        self._news_count = 0  # how many were posted by then

    def put(self, values):
        """Store {key: value}, in this order. Raises ValueError for a value above MAX_BYTES."""
        for key, value in values.items():
            data = pickle.dumps(value)
            if len(data) > MAX_BYTES:
                cause = "a completion of too many tokens (lower --max-new-tokens), or a long reference answer"
                raise ValueError(f"expected <= {MAX_BYTES} bytes for {key}, got {len(data)}; likely cause: {cause}")
            self.store.set(key, data)  # waits for no answer; multi_set is slow, and some keys appear before others

    def has(self, *keys):
        """True if all these keys are in the store."""
        return self.store.check(list(keys))

    def take(self, keys):
        """Return the values of these keys, in order, and delete them. All of them must be in the store already."""
        values = [read(data) for data in self.store.multi_get(keys)] if keys else []
        self.discard(keys)
        return values

    def discard(self, keys):
        for key in keys:
            self.store.delete_key(key)

    def news(self, every=0.0):
        """The latest News, at most `every` seconds late. While nothing is new, a call makes one round trip at most."""
        if self.clock() - self._asked >= every:
            self._asked = self.clock()
            count = self.store.add("news/count", 0)
            if count > self._news_count:
                self._news = read(self.store.get("news"))
                self._news_count = count
        return self._news

    def beat(self):
        """Say that this rank makes progress, if that is due; True if it was. Cheap enough for every decode step."""
        if due := self.clock() - self._beaten >= self.beat_every:
            self._beaten = self.clock()
            self.store.add(f"beat/{self.rank}", 1)
        return due

    def role(self, rank):
        return "trainer" if rank < self.trainers else "generator"

    def name(self, rank):
        return f"{self.role(rank)} rank {rank}" + (f" on {self.hosts[rank]}" if len({*self.hosts}) > 1 else "")

    def watch(self, ranks, what):
        """Raise Stalled if any rank is lost, or if one of `ranks` has made no progress for `timeout` seconds.

        what  names in the message what this rank waits for; the stuck ranks are named too
        """
        if reason := self.lost():
            raise Stalled(reason)
        now = self.clock()
        if now - self._looked < self.beat_every:
            return
        self._looked = now
        for rank in ranks:
            beats = self.store.add(f"beat/{rank}", 0)
            if beats != self._progress.get(rank, (None, now))[0]:
                self._progress[rank] = beats, now
        if stuck := [self.name(rank) for rank in ranks if now - self._progress[rank][1] > self.timeout]:
            late = f"{' and '.join(stuck)} made no progress for {self.timeout:g} s; likely cause: it is dead, it hangs,"
            raise Stalled(f"{self.name(self.rank)} waits for {what}, but {late} a step or checkpoint above --timeout")

    def wait(self, what, missing, *, interruptible=True):
        """Poll until no rank is missing.

        what           names in messages what this rank waits for
        missing        () -> the ranks that this still depends on; the wait ends when there are none
        interruptible  False: wait on although the run shall end
        Raises Stalled if one of these ranks makes no progress for `timeout` seconds, or any rank is lost; Interrupted
        if the run shall end.
        """
        pause = POLL
        while not (reason := self.interrupted() if interruptible else None):
            # Read before `missing` is called, which then sees all that rank 0 put before it told of the end.
            stop = self.news().stop if self.rank and interruptible else None
            if not (ranks := missing()):
                return
            if stop is not None:
                raise Interrupted(stop)
            self.beat()
            self.watch(ranks, what)
            self.pause(pause)
            pause = min(LONGEST_POLL, SLOWER * pause)
        raise Interrupted(f"{reason} while {self.name(self.rank)} waited for {what}")

    def receive(self, key, what, ranks, *, interruptible=True):
        """Wait until one of these ranks has put a value under `key`, and take it."""
        self.wait(what, lambda: [] if self.has(key) else ranks, interruptible=interruptible)
        return self.take([key])[0]


# --- The trainers' side ----------------------------------------------------------------------------------------------


class Pipeline:
    """The trainers' end of the pipeline. Every trainer rank makes the same calls; only rank 0 talks to the generators.

    off_policy   "pipeline" with k >= 0 or "ppo" with k >= 1, in optimizer steps (Sec. 3.1)
    prompts      P, requests per optimizer step;  generations  G, completions per request
    steps        optimizer steps of the run;     start        those already done (a resumed run)
    drain        as in awaited_requests
    """

    def __init__(self, mailbox, *, off_policy, k, prompts, generations, steps, start=0, drain=False):
        self.mailbox = mailbox
        self.prompts = prompts
        self.generations = generations
        self.rules = {"off_policy": off_policy, "k": k}
        self.awaited = partial(awaited_requests, off_policy=off_policy, prompts=prompts, drain=drain)
        self.version = start
        self.limit: Callable[[int], int] = partial(admission_limit, **self.rules, steps=steps, prompts=prompts)
        if mailbox.rank == 0:  # a resumed run counts on: the first request claimed is the first not yet trained on
            mailbox.store.add("claimed/train", start * prompts)
        self._news = News(version=start, requests=start * prompts)
        self._post()
        self._work = {}  # generator rank -> (seconds of decoding, decode steps), at the last call of `drain`
        self._measured = {}  # the same, when its speed was last measured
        self._speeds = {}  # generator rank -> seconds per decode step, the latest known
        self._slots_used = 0.0  # seconds, at the last call of `slots_used`
        self._calls = 0  # of `drain`

    @property
    def room(self):
        """How many requests may be issued now; 0 if the run was resumed with fewer steps than are done."""
        return max(0, self.limit(self.version) - self._news.requests)

    def issue(self, prompts):
        """Issue one request per data.Prompt, in order. Raises ValueError for more than `room`; fewer are fine."""
        if len(prompts) > self.room:
            raise ValueError(f"expected at most {self.room} prompts at version {self.version}, got {len(prompts)}")
        first = self._news.requests
        version = self._news.version
        requests = [Request(n, version, prompt, self.generations) for n, prompt in enumerate(prompts, first)]
        self._post(requests, first, requests=first + len(requests))

    def next_batch(self, step):
        """Wait for the batch of `step`: its rollouts, P lists of G in request order, the same on every trainer rank.

        None if fewer than P requests could be issued for this step: the curriculum is exhausted.
        """
        box = self.mailbox
        numbers = batch_requests(step, self.prompts)
        if self._news.requests < numbers.stop:
            return None
        if box.rank:
            return box.receive(f"batch/{step}/{box.rank}", f"the batch of step {step}", [0])
        keys = [f"group/train/{n}" for n in self.awaited(step, self._news.requests)]
        box.wait(f"the requests of step {step}", lambda: [] if box.has(*keys) else box.generators)
        groups = box.take(keys[: self.prompts])
        box.put({f"batch/{step}/{rank}": groups for rank in range(1, box.trainers)})
        return groups

    def take(self, rollouts):
        """The completions of these rollouts, in order, taken out of the mailbox. Any trainer rank may call this."""
        return self.mailbox.take([rollout.key for rollout in rollouts])

    def drop(self, rollouts):
        """Delete the completions of these rollouts, which no rank will take, from the mailbox."""
        if self.mailbox.rank == 0:
            self.mailbox.discard([rollout.key for rollout in rollouts])

    def publish(self, version, gather, send, *, final=False):
        """After an optimizer step: send the weights if `publishes` says so, or at the end of the run (`final`).

        gather  () -> {name: full tensor} in the generators' dtype; called on every trainer rank, and before any
                generator is asked to wait for weights
        send    called on rank 0 with what `gather` returned, once every generator has joined and is about to receive
        Returns True if the generators now have this version.
        """
        self.version = version
        box = self.mailbox
        if version > self._news.version and (final or publishes(version, **self.rules)):
            named = gather()
            self._post(version=version)
            if box.rank == 0:

                def absent():
                    return [rank for rank in box.generators if box.store.add(f"joined/{rank}", 0) < version]

                # Not interruptible: a generator that has joined is blocked until the weights come.
                box.wait(f"the generators to join version {version}", absent, interruptible=False)
                send(named)
        return version == self._news.version

    def evaluate(self, prompts, generations, samples):
        """Sec. 2.1: have `generations` (k of mean@k) completions of each validation prompt generated and scored.

        Returns (rollouts, a list per prompt; completions of the first `samples` prompts; {index of a prompt: why its
        verifier failed}). The first two are empty on ranks other than 0.
        Meanwhile no weights are sent and no training requests issued. Running completions go on. A generator that has
        finished its share may start completions of requests it had already claimed; for up to LOOK seconds, until it
        has seen the news, it may still claim a training request.
        Raises ValueError if the generators do not have the trainers' weights.
        """
        box = self.mailbox
        version = self.version
        first = self._news.evaluation_requests
        if self._news.version != version:
            cause = "with ppo, an evaluation at a version that is no multiple of k"
            raise ValueError(f"expected generators at {version}, got {self._news.version}; likely cause: {cause}")
        requests = [Request(n, version, prompt, generations, True, n >= samples) for n, prompt in enumerate(prompts)]
        self._post(requests, first, evaluating=True, evaluation_requests=first + len(requests))
        numbers = range(0 if box.rank else len(requests))
        groups = [box.receive(f"group/eval/{n}", f"evaluation request {n}", box.generators) for n in numbers]
        self._post(evaluating=False)
        if box.rank:  # not in a collective: an evaluation may take longer than its timeout
            failed = box.receive(f"evaluated/{version}/{box.rank}", "the evaluation", [0])
        else:
            failed = {rollout.prompt: rollout.error for rollout in sum(groups, []) if rollout.correct is None}
            box.put({f"evaluated/{version}/{rank}": failed for rank in range(1, box.trainers)})
        return groups, self.take(sum(groups[:samples], [])), failed

    def idle(self):
        """Seconds without decoding, outside evaluations, summed over the generators since they started.

        The value is up to BEAT seconds late; only differences between two calls mean something. Joining a version,
        receiving weights and delivering completions count as idle time.
        """
        return sum(self.mailbox.store.add(f"idle/{rank}", 0) for rank in self.mailbox.generators) / 1e6

    def slots_used(self):
        """Seconds of decoding times the share of slots in use, since the last call, mean over the generators."""
        ranks = self.mailbox.generators
        before = self._slots_used
        now = sum(self.mailbox.store.add(f"used/{rank}", 0) for rank in ranks) / 1e6
        self._slots_used = now
        return (now - before) / len(ranks)

    def drain(self):
        """Name the stragglers to all generators. Returns {rank: seconds per decode step since the last call}, and the
        ranks that were drained before and are now.

        A slow generator keeps the number that it has claimed and finishes what it holds. From then on every PROBE-th
        call asks it for answers that belong to no batch (`Desk.probe`), which show whether it has recovered: no batch
        waits for them. Its work is not given to others as well: the answers that end first would be the short ones.
        """
        latest = {}
        nothing = (0.0, 0)
        for rank in self.mailbox.generators:
            work = self.mailbox.store.add(f"decoding/{rank}", 0) / 1e6, self.mailbox.store.add(f"steps/{rank}", 0)
            if steps := work[1] - self._work.get(rank, nothing)[1]:
                latest[rank] = round((work[0] - self._work.get(rank, nothing)[0]) / steps, 9)
            self._work[rank] = work
            seconds, steps = (new - old for new, old in zip(work, self._measured.get(rank, nothing)))
            if steps >= MEASURED:
                self._speeds[rank] = seconds / steps
                self._measured[rank] = work
        before = self._news.drained
        now = frozenset(stragglers(self._speeds, before))
        self._calls += 1
        probe = bool(now) and self._calls % PROBE == 0
        if now != before or probe:
            self._post(drained=now, probes=self._news.probes + probe)
        return latest, before, now

    def stop(self, reason, patience=5.0):
        """End the run. Returns the generator ranks that have not left after `patience` seconds (a dead one never does).

        Rank 0 hosts the mailbox, so it must not end before this returns.
        """
        self._post(stop=reason)
        return self._staying(self.mailbox.generators, patience) if self.mailbox.rank == 0 else []

    def leave(self, patience=5.0):
        """The last call: trainers say that they need rank 0 no more, which waits for that before it ends."""
        if self.mailbox.rank:
            self.mailbox.put({f"left/{self.mailbox.rank}": True})
        else:
            self._staying(range(1, self.mailbox.trainers), patience)

    def _staying(self, staying, patience):
        """Those of the ranks that have not left after `patience` seconds."""
        box = self.mailbox
        until = box.clock() + patience
        while (staying := [rank for rank in staying if not box.has(f"left/{rank}")]) and box.clock() < until:
            box.pause(POLL)
        return staying

    def _post(self, more=(), first=0, **changes):
        """Put the requests `more` into their queue, from place `first` on, then the news with its `changes`."""
        self._news = replace(self._news, **changes)
        if self.mailbox.rank == 0:
            requests = {f"request/{request.queue}/{place}": request for place, request in enumerate(more, first)}
            self.mailbox.put(requests | {"news": self._news})
            self.mailbox.store.add("news/count", 1)  # last: a rank that sees it change finds the rest


# --- The generators' side --------------------------------------------------------------------------------------------


def serve(generator, mailbox, receive, scorer):
    """Run a generator until rank 0 ends the run; returns the reason that rank 0 gives.

    generator  rollout.TorchGenerator or its like: add(request), has_capacity(evaluation), busy, step() -> finished completions,
               named_weights(), update_weights(version), slots; decode_steps and slot_steps, counted by step(); its
               version is that of the run when it starts
    receive    called with generator.named_weights(), fills these tensors: the other end of Pipeline.publish's `send`
    scorer     scorer.Scorer or its like: submit(completion, prompt), finished() -> verdicts

    Raises Stalled if rank 0 makes no progress or a rank is lost, dist.DistError if the mailbox is gone.
    """
    desk = Desk(generator, mailbox, receive, scorer)
    while (news := mailbox.news(every=mailbox.look if generator.busy else 0.0)).stop is None:
        desk.turn(news)
    mailbox.put({f"left/{mailbox.rank}": True})
    return news.stop


class Desk:
    """The state of `serve`: request numbers claimed, requests in work, idle seconds."""

    def __init__(self, generator, mailbox, receive, scorer):
        self.generator = generator
        self.mailbox = mailbox
        self.receive = receive
        self.scorer = scorer
        self.claims = {"train": None, "eval": None}  # a number is kept until its request exists, across evaluations too
        self.requests = {}  # (evaluation, number) -> Request
        self.scores = {}  # (evaluation, number) -> its Scores so far
        self.turned = mailbox.clock()  # when the last turn ended
        self.counts = Counter()  # what the next report adds in the mailbox: seconds, and decode steps
        self.probed = 0  # News.probes at the last probe of this generator
        self.latest = None  # the request taken last
        self.pause = POLL  # seconds until the next poll, if there is nothing to do
        self.news = None  # of the last turn

    def turn(self, news):
        """One decode step, and what is done between two of them."""
        self.take_weights(news.version)
        self.claim(news)
        began = self.mailbox.clock()
        if worked := self.generator.busy:
            before = self.generator.decode_steps, self.generator.slot_steps
        for completion in self.generator.step() if worked else ():
            if request := self.requests.get((completion.evaluation, completion.request)):  # None: of a probe
                self.scorer.submit(completion, request.prompt)
        decoding = self.mailbox.clock() - began
        for score in self.scorer.finished():
            self.deliver(score)
        if worked:  # after a step there may be requests to claim at once
            self.pause = POLL
            self.count_work(decoding, *before)
        else:
            self.mailbox.pause(self.pause)
            self.pause = POLL if news is not self.news else min(LONGEST_POLL, SLOWER * self.pause)
        self.news = news
        self.report(decoding, news.evaluating)
        self.mailbox.watch([0], "news")

    def count_work(self, decoding, steps, slot_steps):
        """Count `decoding` seconds, the decode steps in them and the share of slots in use; before: the generator's."""
        steps = self.generator.decode_steps - steps
        used = (self.generator.slot_steps - slot_steps) / (max(1, steps) * self.generator.slots)
        self.counts += Counter(decoding=decoding, steps=steps, used=decoding * used)

    def take_weights(self, version):
        """Sec. 3.1: receive new weights between two decode steps; unfinished completions go on under them."""
        if version > self.generator.version:
            self.mailbox.store.set(f"joined/{self.mailbox.rank}", str(version))
            self.receive(self.generator.named_weights())
            self.generator.update_weights(version)

    def claim(self, news):
        """Take requests while the generator wants more; during an evaluation only evaluation requests."""
        queue, issued = ("eval", news.evaluation_requests) if news.evaluating else ("train", news.requests)
        # Nothing is claimed before the first news: until then the count of a resumed run, too, starts at 0.
        while issued and self.generator.has_capacity(news.evaluating):
            if self.claims[queue] is None:
                if self.mailbox.rank in news.drained:
                    return self.probe(news.probes)
                self.claims[queue] = self.mailbox.store.add(f"claimed/{queue}", 1) - 1
            if self.claims[queue] >= issued:
                return
            [request] = self.mailbox.take([f"request/{queue}/{self.claims[queue]}"])
            self.claims[queue] = None
            assert request.version <= self.generator.version, f"{request} is newer than the weights"
            self.requests[request.evaluation, request.number] = self.latest = request
            self.generator.add(request)

    def probe(self, probes):
        """If a new probe is asked for and nothing is in work: fill all slots with the latest prompt once more.

        Full slots take the time that others take for a decode step. What comes of it is thrown away (number -1).
        """
        if self.probed != probes and self.latest and not self.generator.busy:
            self.probed = probes
            while self.generator.has_capacity(False):
                self.generator.add(replace(self.latest, number=-1, evaluation=False))

    def deliver(self, score):
        """Keep a score; when it is the last of its request, put all completions into the mailbox, then their rollouts."""
        place = score.completion.evaluation, score.completion.request
        request = self.requests[place]
        scores = self.scores.setdefault(place, [])
        scores.append(score)
        if len(scores) == request.generations:
            scores.sort(key=lambda score: score.completion.index)
            rollouts = [metadata(score, request) for score in scores]
            if not request.metadata_only:
                self.mailbox.put({rollout.key: score.completion for rollout, score in zip(rollouts, scores)})
            self.mailbox.put({f"group/{request.queue}/{request.number}": rollouts})
            del self.requests[place], self.scores[place]

    def report(self, decoding, evaluating):
        """Count this turn without its `decoding` seconds as idle, unless `evaluating`; tell rank 0 at every beat."""
        now = self.mailbox.clock()
        self.counts["idle"] += 0.0 if evaluating else now - self.turned - decoding
        self.turned = now
        if self.mailbox.beat():
            for name, value in self.counts.items():  # the store counts in integers: millionths of a second
                whole = value if name == "steps" else int(value * 1e6)
                self.mailbox.store.add(f"{name}/{self.mailbox.rank}", whole)
            self.counts.clear()


def metadata(score, request):
    """The RolloutMetadata of a completion with its verdict (scorer.Score)."""
    c = score.completion
    versions = Counter(version for version, sampled in zip(c.versions, c.mask) if sampled)
    logprob = sum(logprob for logprob, sampled in zip(c.logprobs, c.mask) if sampled)
    return RolloutMetadata(
        f"rollout/{request.queue}/{request.number}/{c.index}",
        request.prompt.index,
        score.reward,
        score.correct,
        c.truncated,
        c.interrupted,
        len(c.prompt_ids),
        len(c.ids),
        dict(versions),
        logprob,
        score.timed_out,
        score.error,
        score.marked,
    )
