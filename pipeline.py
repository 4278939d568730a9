"""Asynchronous training: who may generate what, when a batch is complete, and how weights reach running generators.

Paper: Sec. 3.1 and A.11 (PipelineRL-k, PPO-off-policy-k); Sec. 2 (generators and trainers are separate processes).

    pipeline   N(v) = min(k + 1 + v, steps) P               new weights after every optimizer step
    ppo        N(v) = min((floor(v / k) + 1) k, steps) P    new weights when k divides v
    batch of step v = tickets v P ... (v + 1) P - 1         in both, whatever order they finish in

v -> version (optimizer steps done), P -> prompts (per step), N(v) -> tickets_issued, k -> k (optimizer steps).

A ticket is the permission to generate one group. Rank 0 issues ticket n once n < N(v), so all tickets of step v's batch
are issued at version v - k or later, and weights at least that new start them: no token trains more than k steps (ppo:
k - 1) after the version that sampled it. Nothing is discarded, and the prompts of a batch depend on no timing. Trainers
that are ahead wait because their tickets are unfinished, generators that are ahead because there is no ticket.

Who tells whom, all through one key-value store that rank 0 hosts (the mailbox):
    rank 0 -> generators   "news": how many tickets there are, the version to join, evaluation, end of the run
    generator -> rank 0    claims the next number by an atomic add and keeps it until that ticket exists; when its last
                           completion is scored, a value per completion, and behind them their headers
    rank 0 -> trainers     the headers; each trainer fetches its own completions, which deletes them
Weights do not go through the mailbox: when all generators have joined a version, `broadcast_weights` (plumbing/fleet.py), or whatever
is passed in, moves them between two decode steps. Every rank counts its progress; a wait fails when a rank it depends
on makes none for `timeout` seconds, and says who waits for whom. It fails at once when a process is lost; one that is
blocked in the mailbox itself, whose host is frozen, is ended by another thread (plumbing/lifeline.py).

Deviation: the paper hands over the first full batch; here a batch is made of the oldest tickets. Taking what arrives
  first breaks the bound (test_taking_whatever_arrives_first_breaks_the_bound) and favours short answers.
Deviation: when few prompts are left, ppo issues tickets late, in the middle of a phase; their age stays bounded.
Open in the paper: in what staleness is counted (ours: optimizer steps, from the version that sampled a token to the one
  that trains on it); whether ppo publishes the last weights (ours: yes, for the last evaluation).

Run by train.py. Test: pytest tests/test_pipeline.py
"""

import os
import pickle
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import torch.distributed as dist

from plumbing.unpickler import read

MAX_BYTES = 8 << 20  # of one value: above it the store drops the connection
POLL = 0.005  # seconds between two looks of a rank with nothing to do; a look is a round trip to rank 0
LOOK = 0.025  # seconds between two looks for news of a generator that decodes
BEAT = 0.25  # seconds between two signs of progress


# --- Rules: pure functions on counts ---------------------------------------------------------------------------------


def tickets_issued(version, *, off_policy, k, steps, prompts):
    """N(v): tickets, over the whole run, that may have been issued once `version` optimizer steps are done.

    >>> [tickets_issued(v, off_policy="pipeline", k=2, steps=5, prompts=10) for v in range(5)]
    [30, 40, 50, 50, 50]
    >>> [tickets_issued(v, off_policy="ppo", k=2, steps=5, prompts=10) for v in range(5)]
    [20, 20, 40, 40, 50]
    """
    batches = k + 1 + version if off_policy == "pipeline" else (version // k + 1) * k
    return min(batches, steps) * prompts


def batch_tickets(step, prompts):
    """The numbers of the tickets that optimizer step `step` (from 0) trains on."""
    return range(step * prompts, (step + 1) * prompts)


def publishes(version, *, off_policy, k):
    """Whether the generators get the weights of `version`: always in a pipeline, between two phases in ppo."""
    return off_policy == "pipeline" or version % k == 0


# --- What is sent ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ticket:
    """Permission to generate one group: G completions of one prompt."""

    number: int  # 0, 1, … over the whole run, or over one evaluation
    version: int  # of the generators when it was issued; only weights at least that new may start it
    prompt: object  # data.Prompt
    generations: int  # G
    evaluation: bool = False  # of the validation set: goes before everything else
    headers_only: bool = False  # completions are not delivered: an evaluation's 16,000 would fill the mailbox

    @property
    def queue(self):
        """What it is claimed from."""
        return "eval" if self.evaluation else "train"


@dataclass
class Completion:
    """One answer, under its ticket. ids, mask, logprobs, versions: an entry per token of the answer, EOS included."""

    ticket: int  # Ticket.number
    index: int  # 0 … G-1 in its group
    evaluation: bool
    prompt_ids: list[int]
    ids: list[int]
    mask: list[bool]  # True where the policy sampled the token, False where it was injected
    logprobs: list[float]  # nats, log pi_gen in the distribution sampled from, when it was sampled; 0.0 if injected
    versions: list[int]  # policy version (optimizer steps) of the weights at that time
    text: str
    truncated: bool  # no end within the token budget
    interrupted: bool  # the interruption phrase was injected


@dataclass(frozen=True)
class Header:
    """What it takes to know of a completion to form a batch, normalise its advantages and share it out."""

    key: str  # of the completion in the mailbox
    prompt: int  # data.Prompt.index
    reward: float  # nan if the verifier failed
    correct: bool | None  # None if the verifier failed: the group must be dropped, it is not wrong
    truncated: bool
    interrupted: bool
    prompt_tokens: int
    tokens: int  # of the completion, injected ones included
    versions: dict[int, int]  # {policy version: tokens it sampled}, injected ones excluded
    logprob: float  # nats, log pi_gen summed over the tokens that the policy sampled
    timed_out: bool  # wrong because verifying it took too long
    error: str  # why the verifier failed
    marked: bool = True  # the text holds the mark behind which the answer begins, or there is no such mark

    @property
    def length(self):
        """Tokens, prompt included."""
        return self.prompt_tokens + self.tokens


@dataclass(frozen=True)
class News:
    """What rank 0 tells the generators."""

    version: int = 0  # of the weights they should have
    tickets: int = 0  # issued over the whole run
    evaluation_tickets: int = 0  # issued over all evaluations
    evaluating: bool = False
    stop: str | None = None  # the reason, at the end of the run


# --- The mailbox -----------------------------------------------------------------------------------------------------


class Stalled(RuntimeError):
    """A rank that is waited for makes no progress, or any rank is lost."""


class Interrupted(Exception):
    """The run shall end in order: `interrupted()` said so during a wait, or rank 0 did; the message is the reason."""


def connect():
    """The store behind the mailbox, hosted by rank 0; every rank of an initialised default process group calls this."""
    store = partial(dist.TCPStore, os.environ["MASTER_ADDR"], wait_for_workers=False)
    hosted = store(port=0, is_master=True) if dist.get_rank() == 0 else None  # 0: any free port
    port = [hosted and hosted.port]
    dist.broadcast_object_list(port, 0)
    return hosted or store(port=port[0], is_master=False)


class Mailbox:
    """Python objects under names, in one store for all ranks. Only `wait` and `receive` wait for another rank to act.

    Every method asks rank 0's store, whose `add`, `check`, `get`, `multi_get` and `delete_key` have no time limit: they
    block while rank 0 is frozen or out of reach.

    store        a TCPStore, or anything with its methods; one per thread (`store.clone()`)
    rank         of this process: ranks below `trainers` train, the rest up to `world` generate
    timeout      seconds without progress after which a rank counts as stuck
    interrupted  () -> why the run shall end in order, or None; asked while waiting
    lost         () -> why it cannot go on, or None; asked in every wait and turn
    """

    def __init__(self, store, rank, *, trainers, world, timeout, interrupted=lambda: None, lost=lambda: None):
        self.store, self.rank, self.trainers, self.generators = store, rank, trainers, range(trainers, world)
        self.clock, self.pause = time.monotonic, time.sleep  # a simulation puts its own here
        self.timeout, self.beat_every, self.interrupted, self.lost = timeout, min(BEAT, timeout / 8), interrupted, lost
        self._beaten = self._looked = float("-inf")  # when, by the clock
        self._progress = {}  # rank -> (its beats, since when there are so many: by our clock, for clocks differ)
        self._news, self._news_count, self._asked = News(), 0, float("-inf")

    def put(self, values):
        """{key: value}, in this order. Raises ValueError for a value that would break the connection."""
        for key, value in values.items():
            data = pickle.dumps(value)
            if len(data) > MAX_BYTES:
                cause = "a completion of too many tokens (lower --max-new-tokens), or a long reference answer"
                raise ValueError(f"expected <= {MAX_BYTES} bytes for {key}, got {len(data)}; likely cause: {cause}")
            self.store.set(key, data)  # waits for no answer; multi_set shows some keys before others, and is slow

    def has(self, *keys):
        """True if all of them are there."""
        return self.store.check(list(keys))

    def take(self, keys):
        """The values, which must be there, in order; they are deleted."""
        values = [read(data) for data in self.store.multi_get(keys)] if keys else []
        self.discard(keys)
        return values

    def discard(self, keys):
        for key in keys:
            self.store.delete_key(key)

    def news(self, every=0.0):
        """The latest News, up to `every` seconds late; a single look while there is nothing new."""
        if self.clock() - self._asked >= every:
            self._asked, count = self.clock(), self.store.add("news/count", 0)
            if count > self._news_count:
                self._news, self._news_count = read(self.store.get("news")), count
        return self._news

    def beat(self):
        """Say that this rank makes progress; cheap enough for every decode step and micro-batch. True if it was due."""
        if due := self.clock() - self._beaten >= self.beat_every:
            self._beaten = self.clock()
            self.store.add(f"beat/{self.rank}", 1)
        return due

    def role(self, rank):
        return "trainer" if rank < self.trainers else "generator"

    def name(self, rank):
        return f"{self.role(rank)} rank {rank}"

    def watch(self, ranks, what):
        """Raises Stalled if a rank is lost, or one of `ranks` has made no progress for `timeout` seconds; names it."""
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
            late = f"{' and '.join(stuck)} made no progress for {self.timeout:g} s; likely cause: killed, hanging,"
            raise Stalled(f"{self.name(self.rank)} waits for {what}, but {late} a step or checkpoint above --timeout")

    def wait(self, what, missing, *, interruptible=True):
        """Poll until nobody is missing.

        what     for the message
        missing  () -> the ranks that `what` still depends on
        Raises Stalled if one of these makes no progress for `timeout` seconds or any rank is lost; and Interrupted.
        """
        while not (reason := self.interrupted() if interruptible else None):
            # First: what rank 0 put before its end is seen below.
            stop = self.news().stop if self.rank and interruptible else None
            if not (ranks := missing()):
                return
            if stop is not None:
                raise Interrupted(stop)
            self.beat()
            self.watch(ranks, what)
            self.pause(POLL)
        raise Interrupted(f"{reason} while {self.name(self.rank)} waited for {what}")

    def receive(self, key, what, ranks, *, interruptible=True):
        """Wait for a value that these ranks may bring, and take it."""
        self.wait(what, lambda: [] if self.has(key) else ranks, interruptible=interruptible)
        return self.take([key])[0]


# --- The trainers' side ----------------------------------------------------------------------------------------------


class Pipeline:
    """The trainers' end. Every trainer rank makes the same calls; only rank 0 talks to the generators.

    off_policy   "pipeline" with k >= 0 or "ppo" with k >= 1, in optimizer steps (Sec. 3.1)
    prompts      P, tickets per optimizer step;  generations  G, completions per ticket
    steps        optimizer steps of the run;     start        those already done (a resumed run)
    """

    def __init__(self, mailbox, *, off_policy, k, prompts, generations, steps, start=0):
        self.mailbox, self.prompts, self.generations = mailbox, prompts, generations
        self.rules, self.version = {"off_policy": off_policy, "k": k}, start
        self.limit = partial(tickets_issued, **self.rules, steps=steps, prompts=prompts)
        if mailbox.rank == 0:  # a resumed run counts on: the first claim is the first ticket that is not yet trained
            mailbox.store.add("claimed/train", start * prompts)
        self._news = News(version=start, tickets=start * prompts)
        self._post()

    @property
    def room(self):
        """Tickets that may be issued now; none if the run was resumed with fewer steps than are done."""
        return max(0, self.limit(self.version) - self._news.tickets)

    def issue(self, prompts):
        """One ticket per data.Prompt, in order. Fewer than `room` are fine; raises ValueError for more."""
        if len(prompts) > self.room:
            raise ValueError(f"expected at most {self.room} prompts at version {self.version}, got {len(prompts)}")
        first, version = self._news.tickets, self._news.version
        tickets = [Ticket(n, version, prompt, self.generations) for n, prompt in enumerate(prompts, first)]
        self._post(tickets, first, tickets=first + len(tickets))

    def next_batch(self, step):
        """The headers of step's tickets, one list per ticket in ticket order, the same on every trainer rank.

        None if too few tickets could be issued for it: the curriculum is exhausted.
        """
        box, numbers = self.mailbox, batch_tickets(step, self.prompts)
        if self._news.tickets < numbers.stop:
            return None
        if box.rank:
            return box.receive(f"batch/{step}/{box.rank}", f"the batch of step {step}", [0])
        # ppo alternates: training begins when the whole phase is generated.
        awaited = range(numbers.start, self._news.tickets) if self.rules["off_policy"] == "ppo" else numbers
        keys = [f"headers/train/{n}" for n in awaited]
        box.wait(f"the tickets of step {step}", lambda: [] if box.has(*keys) else box.generators)
        groups = box.take(keys[: self.prompts])
        box.put({f"batch/{step}/{rank}": groups for rank in range(1, box.trainers)})
        return groups

    def take(self, headers):
        """The completions of these headers, in order; they leave the mailbox. On any trainer rank."""
        return self.mailbox.take([header.key for header in headers])

    def drop(self, headers):
        """Delete completions that no rank takes."""
        if self.mailbox.rank == 0:
            self.mailbox.discard([header.key for header in headers])

    def publish(self, version, gather, send, *, final=False):
        """An optimizer step is done: send the weights if the rules, or the end of the run (`final`), ask for it.

        gather  () -> {name: full tensor} in the generators' dtype; called on every trainer rank, and before any
                generator is asked to wait for weights
        send    called with it on rank 0, once every generator has joined and is about to receive
        Returns True if the generators now have this version.
        """
        self.version, box = version, self.mailbox
        if version > self._news.version and (final or publishes(version, **self.rules)):
            named = gather()
            self._post(version=version)
            if box.rank == 0:
                def absent():
                    return [rank for rank in box.generators if box.store.add(f"joined/{rank}", 0) < version]

                # Not interruptible: a generator that has joined waits for the weights and for nothing else.
                box.wait(f"the generators to join version {version}", absent, interruptible=False)
                send(named)
        return version == self._news.version

    def evaluate(self, prompts, generations, samples):
        """Headers, a list per prompt, and completions, of the first `samples` prompts; nothing on other ranks than 0.
        On all ranks: {index of a prompt: why its verifier failed}.

        Weights and training tickets stand still meanwhile; `generations` is the k of mean@k. Running completions go
        on. A generator that has finished its share may start completions of tickets it had already claimed; for up to
        LOOK seconds, until it has seen the news, it may still claim a new one.
        Raises ValueError if the generators do not have the trainers' weights.
        """
        box, version, first = self.mailbox, self.version, self._news.evaluation_tickets
        if self._news.version != version:
            cause = "ppo evaluates at multiples of k"
            raise ValueError(f"expected generators at {version}, got {self._news.version}; likely cause: {cause}")
        tickets = [Ticket(n, version, prompt, generations, True, n >= samples) for n, prompt in enumerate(prompts)]
        self._post(tickets, first, evaluating=True, evaluation_tickets=first + len(tickets))
        numbers = range(0 if box.rank else len(tickets))
        groups = [box.receive(f"headers/eval/{n}", f"evaluation ticket {n}", box.generators) for n in numbers]
        self._post(evaluating=False)
        if box.rank:  # not in a collective, whose timeout an evaluation may outlast
            failed = box.receive(f"evaluated/{version}/{box.rank}", "the evaluation", [0])
        else:
            failed = {header.prompt: header.error for header in sum(groups, []) if header.correct is None}
            box.put({f"evaluated/{version}/{rank}": failed for rank in range(1, box.trainers)})
        return groups, self.take(sum(groups[:samples], [])), failed

    def idle(self):
        """Seconds with nothing decoding, outside evaluations, summed over the generators since they started.

        Up to date to BEAT seconds; only differences mean something. Joining, receiving and delivering are idle time.
        """
        return sum(self.mailbox.store.add(f"idle/{rank}", 0) for rank in self.mailbox.generators) / 1e6

    def stop(self, reason, patience=5.0):
        """End the run. Returns the generator ranks that have not left after `patience` seconds: one may be the reason.

        Rank 0 hosts the mailbox, so it must not end before this returns.
        """
        self._post(stop=reason)
        box, until = self.mailbox, self.mailbox.clock() + patience
        staying = box.generators if box.rank == 0 else []
        while (staying := [rank for rank in staying if not box.has(f"left/{rank}")]) and box.clock() < until:
            box.pause(POLL)
        return staying

    def _post(self, more=(), first=0, **changes):
        """Put more tickets into their queue, behind its `first` ones, then the news of it."""
        self._news = replace(self._news, **changes)
        if self.mailbox.rank == 0:
            tickets = {f"ticket/{ticket.queue}/{place}": ticket for place, ticket in enumerate(more, first)}
            self.mailbox.put(tickets | {"news": self._news})
            self.mailbox.store.add("news/count", 1)  # last: whoever sees it move finds what it stands for


# --- The generators' side --------------------------------------------------------------------------------------------


def serve(generator, mailbox, receive, scorer):
    """A generator's life; returns rank 0's reason for ending it.

    generator  rollout.TorchGenerator or its like: add(ticket), wants(evaluation), busy, step() -> finished completions,
               named_weights(), update_weights(version); its version is that of the run's start
    receive    called with generator.named_weights(), fills these tensors: the other end of Pipeline.publish's `send`
    scorer     workers.Scorer or its like: submit(completion, prompt), finished() -> verdicts

    Raises Stalled if rank 0 makes no progress or a rank is lost, dist.DistError if the mailbox is gone.
    """
    desk = Desk(generator, mailbox, receive, scorer)
    while (news := mailbox.news(every=LOOK if generator.busy else 0.0)).stop is None:
        desk.turn(news)
    mailbox.put({f"left/{mailbox.rank}": True})
    return news.stop


class Desk:
    """What `serve` keeps in mind: numbers claimed, tickets in work, time wasted."""

    def __init__(self, generator, mailbox, receive, scorer):
        self.generator, self.mailbox, self.receive, self.scorer = generator, mailbox, receive, scorer
        self.claims = {"train": None, "eval": None}  # a number is kept until its ticket exists, also over evaluations
        self.tickets, self.scores = {}, {}  # by (evaluation, number): the Ticket, and the Scores that it has so far
        self.turned, self.idle = mailbox.clock(), 0.0

    def turn(self, news):
        """One decode step and what belongs between two of them."""
        self.take_weights(news.version)
        self.claim(news)
        began = self.mailbox.clock()
        for completion in self.generator.step() if self.generator.busy else ():
            self.scorer.submit(completion, self.tickets[completion.evaluation, completion.ticket].prompt)
        decoding = self.mailbox.clock() - began
        for score in self.scorer.finished():
            self.deliver(score)
        if not self.generator.busy:
            self.mailbox.pause(POLL)
        self.report(decoding, news.evaluating)
        self.mailbox.watch([0], "news")

    def take_weights(self, version):
        """Sec. 3.1: new weights between two decode steps; what is half finished goes on under them."""
        if version > self.generator.version:
            self.mailbox.store.set(f"joined/{self.mailbox.rank}", str(version))
            self.receive(self.generator.named_weights())
            self.generator.update_weights(version)

    def claim(self, news):
        """Take tickets while the generator wants some; during an evaluation only the evaluation's."""
        queue, issued = ("eval", news.evaluation_tickets) if news.evaluating else ("train", news.tickets)
        # Nothing is claimed before the first news: numbers would count from 0, also in a resumed run.
        while issued and self.generator.wants(news.evaluating):
            if self.claims[queue] is None:
                self.claims[queue] = self.mailbox.store.add(f"claimed/{queue}", 1) - 1
            if self.claims[queue] >= issued:
                return
            [ticket] = self.mailbox.take([f"ticket/{queue}/{self.claims[queue]}"])
            self.claims[queue] = None
            assert ticket.version <= self.generator.version, f"{ticket} needs newer weights than {news}"
            self.tickets[ticket.evaluation, ticket.number] = ticket
            self.generator.add(ticket)

    def deliver(self, score):
        """With the last completion of a ticket all of them, and behind them their headers."""
        place = score.completion.evaluation, score.completion.ticket
        ticket, scores = self.tickets[place], self.scores.setdefault(place, [])
        scores.append(score)
        if len(scores) == ticket.generations:
            scores.sort(key=lambda score: score.completion.index)
            headers = [header(score, ticket) for score in scores]
            if not ticket.headers_only:
                self.mailbox.put({header.key: score.completion for header, score in zip(headers, scores)})
            self.mailbox.put({f"headers/{ticket.queue}/{ticket.number}": headers})
            del self.tickets[place], self.scores[place]

    def report(self, decoding, evaluating):
        """Add up what is left of this turn without its `decoding` seconds, and tell rank 0 now and then."""
        now = self.mailbox.clock()
        self.idle += 0.0 if evaluating else now - self.turned - decoding
        self.turned = now
        if self.mailbox.beat():
            self.mailbox.store.add(f"idle/{self.mailbox.rank}", int(self.idle * 1e6))  # the store counts in integers
            self.idle = 0.0


def header(score, ticket):
    """Header of a scored completion."""
    c = score.completion
    versions = Counter(version for version, sampled in zip(c.versions, c.mask) if sampled)
    logprob = sum(logprob for logprob, sampled in zip(c.logprobs, c.mask) if sampled)
    return Header(
        f"completion/{ticket.queue}/{ticket.number}/{c.index}", ticket.prompt.index, score.reward, score.correct,
        c.truncated, c.interrupted, len(c.prompt_ids), len(c.ids), dict(versions), logprob, score.timed_out,
        score.error, score.marked)
