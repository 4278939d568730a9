"""Asynchronous training: how far generators may run ahead, when a batch is complete, and the queue in between.

Paper: Sec. 3.1 and A.11 (PipelineRL-k, PPO-off-policy-k); Sec. 2 (generators and trainers are separate processes).

    pipeline   N(v) = min(k + 1 + v, steps) P               new weights after every optimizer step
    ppo        N(v) = min((floor(v / k) + 1) k, steps) P    new weights when k divides v
    batch of step v = requests v P ... (v + 1) P - 1        in both, whatever order they finish in
    step v waits for  its batch (pipeline); all requests admitted so far (ppo)

v -> version (optimizer steps done), P -> per_step (prompts), N(v) -> admission_limit, k -> k (optimizer steps).

A request asks for one group, which is G rollouts of one prompt. A generator may take request n once rank 0 has admitted
it, which happens when n < N(v). The requests of step v's batch are therefore admitted at version v - k or later, and
generators start them with weights at least that new. No token is trained on more than k optimizer steps (ppo: k - 1)
after the version that sampled it. No rollout is discarded for its staleness, and the prompts of a batch do not depend
on timing. Trainers that are ahead wait for unfinished requests. Generators that are ahead wait for new ones.

Deviation: the paper hands over the first full batch. Here a batch consists of the oldest requests. Taking the rollouts
  that arrive first breaks the bound (test_taking_whatever_arrives_first_breaks_the_bound) and favours short answers.
Open in the paper: the unit of staleness. Here it is the number of optimizer steps from the version that sampled a token
  to the version that trains on it.

Run by train.py. Test: pytest tests/test_pipeline.py
Page: docs/paper/off_policy.md
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

# --- Rules: pure functions on counts. To add one, add its row to OFF_POLICY: flags, tests and messages follow ---------


class Rule(NamedTuple):
    """An off-policy rule. version: optimizer steps done; k: optimizer steps.

    `requested` never falls as the version grows and is at least version + 1: otherwise the next step has no batch.
    """

    least_k: int
    bound: Callable  # k -> the greatest staleness of a token, in optimizer steps; a run that exceeds it ends
    requested: Callable  # (version, k) -> how many batches may have been requested, over the whole run
    broadcasts: Callable  # (version, k) -> whether the generators get the weights of this version
    alternates: bool  # whether a step waits for all requests admitted so far, so that generators and trainers alternate


def ppo_batches(version, k):
    """PPO-off-policy-k: the batches of all phases that have begun, k each."""
    # Deviation: if too few prompts are free when a phase begins, the missing requests are admitted in its middle; the
    # staleness of their tokens stays bounded.
    return (version // k + 1) * k


def ppo_broadcasts(version, k):
    """PPO-off-policy-k: whether this version stands between two phases."""
    return version % k == 0


class Fault(RuntimeError):
    """The run cannot go on, and no other process is to blame: a new start would fail alike."""


OFF_POLICY = {
    "pipeline": Rule(
        least_k=0,
        bound=lambda k: k,
        # Open in the paper: what happens if the trainers are slower. Here k + 1 batches queue up; staleness nears k.
        requested=lambda version, k: k + 1 + version,
        broadcasts=lambda version, k: True,
        alternates=False,
    ),
    "ppo": Rule(least_k=1, bound=lambda k: k - 1, requested=ppo_batches, broadcasts=ppo_broadcasts, alternates=True),
}


def admission_limit(version, *, off_policy, k, steps, per_step):
    """N(v): how many requests may have been admitted, over the whole run, once `version` optimizer steps are done.

    off_policy  "pipeline", or "ppo" with k >= 1
    k           optimizer steps
    steps       optimizer steps of the run
    per_step    P, requests per optimizer step

    >>> [admission_limit(v, off_policy="pipeline", k=2, steps=5, per_step=10) for v in range(5)]
    [30, 40, 50, 50, 50]
    >>> [admission_limit(v, off_policy="ppo", k=2, steps=5, per_step=10) for v in range(5)]
    [20, 20, 40, 40, 50]
    """
    return min(OFF_POLICY[off_policy].requested(version, k), steps) * per_step


def batch_requests(step, per_step):
    """The numbers of the P requests that optimizer step `step` (counted from 0) trains on."""
    return range(step * per_step, (step + 1) * per_step)


def awaited_requests(step, admitted, *, off_policy, per_step, drain=False):
    """The requests that are finished before optimizer step `step` begins, if `admitted` have been admitted by then.

    pipeline: its batch. ppo: the whole phase, since generation and training alternate.
    drain    wait for all in pipeline too, so that every token is exactly k steps old (train.py --virtual exact)

    >>> [awaited_requests(1, 40, off_policy=setup, per_step=10) for setup in ("pipeline", "ppo")]
    [range(10, 20), range(10, 40)]
    """
    batch = batch_requests(step, per_step)
    return range(batch.start, admitted) if drain or OFF_POLICY[off_policy].alternates else batch


def broadcasts(version, *, off_policy, k):
    """Whether the generators get the weights of `version`: every version in pipeline, every k-th in ppo."""
    return OFF_POLICY[off_policy].broadcasts(version, k)


def greatest_staleness(steps, *, off_policy, k):
    """The greatest staleness that a rule allows in so many optimizer steps, by counting: optimizer steps.

    A batch is requested at the first version whose limit includes it. Its tokens may be as old as the latest weights
    that were sent by then. Raises ValueError if a step would find no batch requested, or if the limit falls.

    >>> greatest_staleness(9, off_policy="pipeline", k=2), greatest_staleness(9, off_policy="ppo", k=4)
    (2, 3)
    """
    rule = OFF_POLICY[off_policy]
    requested = sent = greatest = 0
    for version in range(steps):
        limit = rule.requested(version, k)
        if limit < max(requested, version + 1):
            raise ValueError(
                f"--off-policy {off_policy} --k {k}: expected its rule to request {max(requested, version + 1)} "
                f"batches or more by version {version}, the one that is trained on next among them; got {limit}"
            )
        if rule.broadcasts(version, k):
            sent = version
        if limit > requested and requested < steps:
            greatest = max(greatest, min(limit, steps) - 1 - sent)
        requested = limit
    return greatest


def check_staleness(groups, step, *, off_policy, k):
    """Raise Fault if a token of the batch of `step` is older than its rule promises.

    groups  lists of RolloutMetadata
    """
    bound = OFF_POLICY[off_policy].bound(k)
    for rollout in (rollout for group in groups for rollout in group):
        staleness = step - min(rollout.versions, default=step)
        if staleness > bound:
            raise Fault(
                f"--off-policy {off_policy} --k {k}: expected tokens at most {bound} optimizer steps old, got one of "
                f"{staleness}: {rollout.key} was sampled by version {min(rollout.versions)} and is trained on at "
                f"version {step}; likely cause: the rule requests more batches, or sends weights less often, than its "
                f"bound allows"
            )


# --- What is sent ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """Asks for one group: G rollouts of one prompt."""

    number: int  # 0, 1, … over the training requests of the run, or over one evaluation
    version: int  # of the generators when it was admitted; only weights at least that new may start it
    prompt: object  # data.Prompt
    generations: int  # G
    evaluation: bool = False  # a validation prompt: its rollouts start before those of training requests
    metadata_only: bool = False  # no tokens are delivered: the 16,000 rollouts of an evaluation would fill the store

    @property
    def queue(self):
        """The queue that it is claimed from."""
        return "eval" if self.evaluation else "train"


@dataclass
class Rollout:
    """One sampled completion. ids, mask, logprobs, versions: one entry per token, EOS included."""

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
    experts: bytes = b""  # those that the generator's routers chose (experts.py); empty for a dense model


@dataclass(frozen=True)
class RolloutMetadata:
    """A graded rollout without its tokens: all that forming a batch, advantages and the division of work need."""

    key: str  # of the Rollout in the store
    prompt: int  # data.Prompt.index
    reward: float  # nan if the verifier failed
    value: float | None  # v from 0 (wrong) to 1 (right); None if the verifier failed: its group is dropped, not wrong
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
    def correct(self):
        """Whether v is 1; None without a verdict."""
        return None if self.value is None else self.value == 1

    @property
    def length(self):
        """Tokens, prompt included."""
        return self.prompt_tokens + self.tokens


@dataclass(frozen=True)
class ControlState:
    """What rank 0 tells the generators."""

    version: int = -1  # of the weights that they should have; -1 before rank 0 has told
    requests: int = 0  # training requests admitted over the whole run
    evaluation_requests: int = 0  # admitted over all evaluations
    evaluating: bool = False  # if so, only evaluation requests may be claimed
    stop: str | None = None  # why the run ends; None before


# --- The trainers' end of the queue ----------------------------------------------------------------------------------


class RolloutQueue:
    """The trainers' end: requests go in, batches of rollouts come out.

    Every trainer rank makes the same calls; only rank 0 talks to the generators.

    store, trainers, generators   plumbing.store.Store, and the ranks of both
    off_policy, k                 a name in OFF_POLICY; optimizer steps (Sec. 3.1)
    per_step, generations         P, requests per optimizer step; G, rollouts per request
    steps, start                  optimizer steps of the run; those already done (a resumed run)
    drain                         as in awaited_requests
    """

    def __init__(self, store, trainers, generators, *, off_policy, k, per_step, generations, steps, start, drain):
        self.store = store
        self.trainers = trainers
        self.generators = generators
        self.setup = {"off_policy": off_policy, "k": k}
        self.per_step = per_step
        self.generations = generations
        self.steps = steps
        self.drain = drain
        self.version = start
        if store.rank == 0:  # a resumed run counts on: the first request claimed is the first not yet trained on
            store.count("claimed/train", start * per_step)
        self.state = ControlState(version=start, requests=start * per_step)
        self._announce_state()

    @property
    def room(self):
        """How many requests may be admitted now; 0 if the run was resumed with fewer steps than are done."""
        limit = admission_limit(self.version, **self.setup, steps=self.steps, per_step=self.per_step)
        return max(0, limit - self.state.requests)

    def admit(self, prompts):
        """Admit one request per data.Prompt, in order; at most `room`."""
        first = self.state.requests
        requests = [Request(n, self.state.version, prompt, self.generations) for n, prompt in enumerate(prompts, first)]
        self._announce_state(requests, first, requests=first + len(requests))

    def next_batch(self, step):
        """Wait for the batch of `step`: P lists of G RolloutMetadata, in request order, the same on every trainer.

        None if fewer than P requests could be admitted for this step: the prompts are exhausted. Raises Fault if a
        token is older than the rule's bound.
        """
        if self.state.requests < batch_requests(step, self.per_step).stop:
            return None
        if self.store.rank:
            groups = self._receive(f"batch/{step}/{self.store.rank}", f"the batch of step {step}")
        else:
            groups = self._collect(step)
        check_staleness(groups, step, **self.setup)
        return groups

    def _collect(self, step):
        """On rank 0: wait for the batch of `step`, and hand it to the other trainers."""
        setup = {"off_policy": self.setup["off_policy"], "per_step": self.per_step}
        awaited = awaited_requests(step, self.state.requests, **setup, drain=self.drain)
        keys = [f"group/train/{n}" for n in awaited]
        self.store.wait(f"the requests of step {step}", lambda: self.store.has(keys), self._stopped)
        groups = self.store.take(keys[: self.per_step])
        self.store.put({f"batch/{step}/{rank}": groups for rank in self.trainers[1:]})
        return groups

    def tokens(self, rollouts):
        """The Rollouts of these RolloutMetadata, in order, taken out of the store. Any trainer rank may call this."""
        return self.store.take([rollout.key for rollout in rollouts])

    def drop(self, rollouts):
        """Delete the tokens of these RolloutMetadata, which no rank will take."""
        if self.store.rank == 0:
            self.store.delete([rollout.key for rollout in rollouts])

    def announce(self, version, send, *, final=False):
        """After an optimizer step: announce its version and send the weights if the rule says so, or if it is `final`.

        send  as in `broadcast`
        Open in the paper: whether ppo sends the last weights. Ours does, for the last evaluation.
        """
        self.version = version
        if version > self.state.version and (final or broadcasts(version, **self.setup)):
            self._announce_state(version=version)
            self.broadcast(send)

    def broadcast(self, send):
        """Send the weights of the state's version to all generators: the first ones too, before anything is asked.

        send  called on every trainer rank once every generator has joined and is about to receive
        """
        version = self.state.version
        going = [f"sending/{version}/{rank}" for rank in self.trainers[1:]]
        what = f"the generators to join version {version}"
        if self.store.rank == 0:  # not interruptible: a generator that has joined is blocked until the weights come
            joined = [f"joined/{version}/{rank}" for rank in self.generators]
            self.store.wait(what, lambda: self.store.has(joined))
            self.store.delete(joined)
            self.store.put(dict.fromkeys(going, True))
        else:  # not in a collective, whose timeout would run
            self._receive(going[self.store.rank - 1], what, stopped=lambda: None)
        send()

    def evaluate(self, prompts, generations, samples, waited=lambda finished: None):
        """Sec. 2.1: `generations` (k of mean@k) rollouts of each validation prompt, at the trainers' version.

        Returns (groups of RolloutMetadata, a list per prompt; Rollouts of the first `samples` prompts); ([], []) on
        ranks other than 0. Meanwhile no weights are sent and no training requests admitted. Running rollouts go on.
        The generators must have the trainers' weights: settings.py refuses an --eval-every at which they would not.
        waited  called on rank 0 while it waits, with how many rollouts are finished
        """

        def stopped():
            waited(self.store.count("finished/eval") - before)
            return self._stopped()

        version = self.version
        first = self.state.evaluation_requests
        before = self.store.count("finished/eval")
        requests = [Request(n, version, prompt, generations, True, n >= samples) for n, prompt in enumerate(prompts)]
        self._announce_state(requests, first, evaluating=True, evaluation_requests=first + len(requests))
        groups = []
        if self.store.rank:  # not in a collective: an evaluation may take longer than its timeout
            self._receive(f"evaluated/{version}/{self.store.rank}", "the evaluation")
        else:
            groups = [self._receive(f"group/eval/{n}", f"evaluation request {n}", stopped) for n in range(len(prompts))]
            self.store.put({f"evaluated/{version}/{rank}": True for rank in self.trainers[1:]})
        self._announce_state(evaluating=False)
        return groups, self.tokens(sum(groups[:samples], []))

    def stop(self, reason):
        """Tell all ranks that the run ends, and why."""
        self._announce_state(stop=reason)

    def generator_work(self):
        """{generator rank: its latest report, as in RequestQueue.report}, on rank 0."""
        return {rank: self.store.read(f"work/{rank}") for rank in self.generators if self.store.has([f"work/{rank}"])}

    def _announce_state(self, more=(), first=0, **changes):
        """Put the requests `more` into their queue, from place `first` on, then the state with its `changes`."""
        self.state = replace(self.state, **changes)
        if self.store.rank == 0:  # the state last: a generator that sees it finds the requests
            requests = {f"request/{request.queue}/{place}": request for place, request in enumerate(more, first)}
            self.store.put(requests | {"state": self.state})

    def _stopped(self):
        return self.store.read("state").stop if self.store.rank else self.store.heartbeat.stopped

    def _receive(self, key, what, stopped=None):
        self.store.wait(what, lambda: self.store.has([key]), stopped or self._stopped)
        return self.store.take([key])[0]


# --- The generators' end ---------------------------------------------------------------------------------------------


class RequestQueue:
    """The generators' end: requests come out, graded rollouts go in.

    polls, reports  () -> whether it is time to poll the control state while decoding, and to report work: both take a
                    round trip to rank 0. By default always, as in virtual time, where that costs nothing
    """

    def __init__(self, store, polls=lambda: True, reports=lambda: True):
        self.store = store
        self.polls = polls
        self.reports = reports
        self.numbers = {}  # queue -> a number claimed, kept until it is admitted, across evaluations too
        self.requests = {}  # (evaluation, number) -> (Request in work, its verify.scorer.Scores so far)
        self.work = Counter()  # reported so far
        self._before = Counter()  # the generator's work at the last report
        self.latest = ControlState()  # as last seen

    def state(self, busy):
        """The latest ControlState; while the generator is `busy`, as late as `polls` allows."""
        if (not busy or self.polls()) and self.store.has(["state"]):
            self.latest = self.store.read("state")
        return self.latest

    def join(self, version):
        """Say that this generator is about to receive these weights."""
        self.store.put({f"joined/{version}/{self.store.rank}": True})

    def claim(self, generator):
        """Yield requests while the generator has free slots; during an evaluation only evaluation requests."""
        state = self.latest
        queue, admitted = ("eval", state.evaluation_requests) if state.evaluating else ("train", state.requests)
        # Before rank 0 has set the counter of a resumed run (its first state says so), claiming would hand out requests
        # that were trained on already.
        while admitted and generator.has_capacity(state.evaluating):
            if queue not in self.numbers:
                self.numbers[queue] = self.store.count(f"claimed/{queue}", 1) - 1
            if self.numbers[queue] >= admitted:
                return
            [request] = self.store.take([f"request/{queue}/{self.numbers.pop(queue)}"])
            self.requests[request.evaluation, request.number] = request, []
            yield request

    def prompt(self, rollout):
        """The data.Prompt that a rollout answers."""
        return self.requests[rollout.evaluation, rollout.request][0].prompt

    def put(self, score):
        """Keep a graded rollout; with the last of its group, put all tokens into the store, then the metadata."""
        place = score.completion.evaluation, score.completion.request
        request, scores = self.requests[place]
        scores.append(score)
        if request.evaluation:
            self.store.count("finished/eval", 1)
        if len(scores) == request.generations:
            scores.sort(key=lambda score: score.completion.index)
            group = [metadata(score, request) for score in scores]
            tokens = {rollout.key: score.completion for rollout, score in zip(group, scores)}
            metadata_last = {f"group/{request.queue}/{request.number}": group}
            self.store.put(metadata_last if request.metadata_only else tokens | metadata_last)
            del self.requests[place]

    def report(self, work):
        """Tell rank 0 what this generator has done outside evaluations: {name: number}, counted since its start."""
        self.store.heartbeat.tick()
        for name, value in work.items():
            self.work[name] += 0 if self.latest.evaluating else value - self._before[name]
            self._before[name] = value
        if self.reports():
            self.store.put({f"work/{self.store.rank}": dict(self.work)})


def metadata(score, request):
    """The RolloutMetadata of a rollout with its verdict (verify.scorer.Score)."""
    rollout = score.completion
    versions = Counter(version for version, sampled in zip(rollout.versions, rollout.mask) if sampled)
    logprob = sum(logprob for logprob, sampled in zip(rollout.logprobs, rollout.mask) if sampled)
    return RolloutMetadata(
        key=f"rollout/{request.queue}/{request.number}/{rollout.index}",
        prompt=request.prompt.index,
        reward=score.reward,
        value=score.value,
        truncated=rollout.truncated,
        interrupted=rollout.interrupted,
        prompt_tokens=len(rollout.prompt_ids),
        tokens=len(rollout.ids),
        versions=dict(versions),
        logprob=logprob,
        timed_out=score.timed_out,
        error=score.error,
        marked=score.marked,
    )
