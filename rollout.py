"""Generators: they turn requests into rollouts by continuous batching, and load new weights between two decode steps.

Paper: Sec. 2 (generators, interruptions), Sec. 3.1 and A.11 (PipelineRL: half-finished completions go on under new
weights with the stale KV cache), Sec. 3.2 (FP32 head), A.10 (forced interruption).

    log pi_gen(y_t) = log softmax(W h_t / tau)[y_t]          top-p 1, no top-k; always fp32
    y_t = min {y : sum_{j <= y} pi_gen(j) > u_t}             inverse CDF in float64
    u_t = hash(seed, stream, request, index, t) in [0, 1)     so u_t depends neither on timing nor on the slot
    still thinking after L tokens, L drawn from [lo, hi]:    the phrase follows, then the policy answers

W -> head weight, h_t -> hidden, tau -> temperature, y_t -> token, u_t -> uniform, L -> interrupt_at, the phrase ->
phrase_ids, [lo, hi] -> think_budget; stream is 0 in training, version + 1 in evaluations. Thinking ends where the text
think_end appears, however it is tokenised: few tokenizers have a single token for </think>, and the same text can be
split differently in another place. So each completion is checked once, in the decoded text of its first L tokens.

How TorchGenerator decodes. Each of S slots is one row of a key/value cache, and column i of the row holds position i of
a prompt and its completion. A prompt is run once per request, without its last token. Its keys and values are copied
into the slots of its G completions when these start, and the last prompt token is the first input of each slot. Free
slots are refilled before the next decode step: a waiting completion takes the row of a finished one. If none waits, the
last row in use is copied there, so that the slots in use are always the first rows. Attention reads columns only
up to the longest running sequence. When few completions are left, a decode step costs only what these few need. The CPU
keeps what is known of a completion: a decode step sends three numbers a row to the device, and waits for two. The
weights of the Hugging Face model keep their values. Either decoding.py reads them, or the model is called with its own
arguments for cache, mask and positions.

New weights (Sec. 3.1). Running completions keep their keys and values, and each token records the version that sampled
it. Prompts whose completions have not all started are run again, so that no completion starts on keys and values of
older weights.

Deviation: each random number is a hash of what it is drawn for, not the next one of a sequence that all completions
  share, whose order would depend on timing.
Open in the paper: how injected tokens count. Here they are not the policy's (mask False, log-prob 0.0), but they use up
  the token budget.
Open in the paper: whether a prompt's keys and values are kept when the weights change before its last completion has
  started. Here they are not.

Run by train.py; vllm_rollout.py has the same interface on vLLM.
Test: pytest tests/test_rollout.py
Page: docs/paper/token.md
"""

import inspect
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from jinja2 import TemplateError
from transformers.cache_utils import Cache, DynamicCache

from data import rendered
from decoding import Graphs, decoder, rounded, unseen
from experts import Recorder
from pipeline import Request, Rollout
from precision import as_factor, forbid_tf32, head_logits
from reward import THINK_END

NEVER = 2**62  # a length that no completion reaches
PREFILL_TOKENS = 16384  # prompt tokens per forward pass, padding included: bounds its memory
PREFILL_AHEAD = 8  # at most so many queued completions have their prompts run along with those of the starting ones
KV_BLOCK = 64  # positions; key/value buffers grow in multiples of it

# SplitMix64 (Steele, Lea, Flood 2014): an odd increment and two odd multipliers, as int64, which wraps modulo 2^64.
INCREMENT, MIX_1, MIX_2 = (word - 2**64 for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


# --- Random numbers --------------------------------------------------------------------------------------------------


def shifted(state, bits):
    """An unsigned shift to the right of an int64 tensor, whose own copies the sign bit."""
    return (state >> bits) & (2 ** (64 - bits) - 1)


def mix(state):
    """SplitMix64's output function: int64 tensor -> int64 tensor, every input bit spread over all 64."""
    state = (state ^ shifted(state, 30)) * MIX_1
    state = (state ^ shifted(state, 27)) * MIX_2
    return state ^ shifted(state, 31)


def uniform(key, draw):
    """float64 in [0, 1), shaped like `key`: number `draw` of the random sequence that `key` names (both int64)."""
    return shifted(mix(key + (draw + 1) * INCREMENT), 11).double() * 2.0**-53


def completion_keys(seed, request):
    """(G,) int64 on the CPU: names the random sequence of each completion of the request.

    Numbers of training requests are unique in a run. Every evaluation numbers its requests from 0: the version tells
    evaluations apart.
    """
    key = torch.zeros(request.generations, dtype=torch.int64)
    stream = request.version + 1 if request.evaluation else 0
    for word in (seed, stream, request.number, torch.arange(request.generations)):
        key = mix((key ^ word) + INCREMENT)
    return key


def sample(log_pi, uniforms):
    """Inverse CDF: (n, V) fp32 log-probabilities and (n,) float64 uniforms -> (n,) token ids.

    The token is the first whose running sum of probabilities exceeds the uniform. The last sum counts as 1, below which
    rounding may keep it.
    """
    cdf = log_pi.double().exp_().cumsum(-1)
    # right=True never picks a token of probability 0. Scaled by the last entry, as rounding may keep it from being 1.
    token = torch.searchsorted(cdf, uniforms[:, None] * cdf[:, -1:], right=True).squeeze(-1)
    return token.clamp_(max=log_pi.shape[-1] - 1)


# --- Slots -----------------------------------------------------------------------------------------------------------


class SlotCache(Cache):
    """The key/value cache of S slots: per decoder layer keys and values, (S, heads, capacity, head size) each.

    A row is a slot, a column a position. `longest` is the most columns that a prompt with its completion can need: the
    capacity never exceeds it.
    """

    def __init__(self, slots, longest):
        super().__init__(layers=[])
        self.slots = slots
        self.longest = longest
        self.buffers = {}  # layer -> [keys, values]
        self.place(torch.empty(0, dtype=torch.long), 0)

    def place(self, positions, filled):
        """The next decode step writes positions[i] of row i, for each of its n rows, and reads `filled` columns."""
        self.positions = positions
        self.filled = filled
        self._written = {}  # (heads, capacity) of a buffer -> its flat indices that the step writes

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        """Called by attention: store two (n, heads, 1, head size) states; returns the n rows' filled columns."""
        states = key_states, value_states
        buffers = self._reserve(layer_idx, states, self.filled)
        heads, capacity = size = buffers[0].shape[1:3]
        if size not in self._written:
            rows, head = (torch.arange(k, device=self.positions.device) for k in (len(self.positions), heads))
            self._written[size] = ((rows[:, None] * heads + head) * capacity + self.positions[:, None]).flatten()
        for buffer, state in zip(buffers, states):  # twice as fast as buffer[rows, :, positions] = ...
            buffer.flatten(0, 2).index_copy_(0, self._written[size], state.flatten(0, 2))
        return tuple(buffer[: len(self.positions), :, : self.filled] for buffer in buffers)

    def _reserve(self, layer, states, length):
        """The key and value buffers of a layer, grown to at least `length` positions of states like these."""
        # Zeros, not empty memory: a masked column has weight 0, and 0 times a leftover nan is nan.
        buffers = self.buffers.get(layer) or [x.new_zeros(self.slots, x.shape[-3], 0, x.shape[-1]) for x in states]
        if length > buffers[0].shape[2]:
            # A quarter more than needed, so that copying stays rare. On a GPU all at once: a buffer that is outgrown
            # leaves a hole in its memory, which no larger one fits into.
            capacity = min(-(-length * 5 // 4 // KV_BLOCK) * KV_BLOCK, self.longest)
            capacity = self.longest if states[0].is_cuda else capacity
            buffers = [torch.nn.functional.pad(x, (0, 0, 0, capacity - x.shape[2])) for x in buffers]
        self.buffers[layer] = buffers
        return buffers

    def load(self, row, prompt_kv):
        """Copy a prompt's keys and values, per layer a pair of (heads, length, head size), into a row."""
        for layer, states in enumerate(prompt_kv):
            for buffer, state in zip(self._reserve(layer, states, states[0].shape[1]), states):
                buffer[row, :, : state.shape[1]] = state

    def move(self, target, source):
        """Rows `target` become copies of rows `source`, as far as the last decode step has filled them."""
        for buffer in (buffer for buffers in self.buffers.values() for buffer in buffers):
            buffer[target, :, : self.filled] = buffer[source, :, : self.filled]


# --- What both generators share --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Group:
    """What the completions of a request share."""

    request: Request
    prompt_kv: list | None = None  # per layer (keys, values); None until the prompt is run under the present weights


@dataclass(eq=False)
class ActiveSequence:
    """An unfinished completion: queued, or in a slot."""

    group: Group
    index: int  # 0 ... G-1
    key: int  # names its random sequence
    interrupt_at: int  # L, tokens; NEVER without think_budget
    tokens: list = field(default_factory=list)  # (id, sampled by the policy?, nats, version), as in Rollout

    @property
    def ids(self):
        return [token for token, *_ in self.tokens]


class Generator:
    """The queues in which completions wait for one of the `slots`; those of an evaluation go first.

    While any of an evaluation is unfinished, no training completion starts; running ones go on. A subclass has
    `step`, `named_weights`, `update_weights` and `close`, and keeps in `_running` an ActiveSequence for each slot in
    use.

    model           a Hugging Face causal LM; only its config and the ids that end a completion are read here
    tokenizer       the model's; used only to decode
    slots           S, completions decoded at once
    max_new_tokens  budget of a completion, forced tokens included; a completion without EOS by then is truncated
    max_prompt_tokens  of the longest prompt to come; None: as many as the model's positions leave room for
    think_budget    (lo, hi) in tokens: L is drawn from lo, ..., hi (A.10); None: no interruptions
    phrase_ids      tokens of the interruption phrase, whose text ends in think_end; read only with a think_budget
    think_end       the text that ends thinking; read only with a think_budget
    temperature     tau; 0 takes the most probable token, and log-probs are then those of temperature 1
    seed            of the random numbers (completion_keys)
    version         of the model's present weights: how many optimizer steps made them

    Raises ValueError for settings that contradict each other.
    """

    _running: dict  # by row, or by request

    def __init__(
        self,
        model,
        tokenizer,
        *,
        slots,
        max_new_tokens,
        max_prompt_tokens=None,
        think_budget=None,
        phrase_ids=(),
        think_end=THINK_END,
        temperature=1.0,
        seed=0,
        version=0,
    ):
        if think_budget:
            check_interruption(tokenizer, phrase_ids, think_end, think_budget, max_new_tokens)
        self.tokenizer = tokenizer
        self.eos_ids = eos_ids(model, tokenizer)
        self.slots = slots
        self.clock = time.perf_counter  # seconds
        self.work = {"decode_seconds": 0.0, "slot_seconds": 0.0}  # so far; for the log
        self.max_new_tokens = max_new_tokens
        self.think_budget = think_budget
        self.phrase_ids = list(phrase_ids)
        self.think_end = think_end
        self.temperature = temperature
        self.seed = seed
        self.version = version
        self.positions = min(
            getattr(model.config, "max_position_embeddings", NEVER),
            NEVER if max_prompt_tokens is None else max_prompt_tokens + max_new_tokens,
        )
        self._queue = deque()  # of ActiveSequence
        self._evaluations = deque()
        self._evaluating = 0  # unfinished completions of an evaluation

    def add(self, request):
        """Queue a request's completions. Raises ValueError if it asks for newer weights, or is empty or too long."""
        length = len(request.prompt.ids)
        limit = self.positions
        if request.version > self.version:
            expected = f"request {request.number} expects weights of version >= {request.version}"
            raise ValueError(f"{expected}, got {self.version}: it was added before they were received")
        if length < 1 or request.generations < 1 or length + self.max_new_tokens > limit:
            raise ValueError(
                f"request {request.number}: expected generations >= 1 and prompt + max_new_tokens <= {limit}"
                f" positions; got {request.generations}, {length} + {self.max_new_tokens}; likely cause: a "
                "prompt above max_prompt_tokens, or more tokens than the model has positions for"
            )
        keys = completion_keys(self.seed, request)
        lo, hi = self.think_budget or (NEVER, NEVER)
        interrupt_at = lo + (uniform(keys, -1) * (hi - lo + 1)).long()  # -1: tokens draw numbers 0, 1, ...
        group = Group(request)
        queue = self._evaluations if request.evaluation else self._queue
        drawn = enumerate(zip(keys.tolist(), interrupt_at.tolist()))
        queue += [ActiveSequence(group, index, *pair) for index, pair in drawn]
        self._evaluating += request.generations if request.evaluation else 0

    @property
    def busy(self):
        """True while anything added is unfinished."""
        return bool(self._running or self._queue or self._evaluations)

    def count_step(self, seconds, running):
        """Count a decode step of so many seconds, in which so many slots were in use."""
        self.work["decode_seconds"] += seconds
        self.work["slot_seconds"] += seconds * running / self.slots

    def has_capacity(self, evaluation):
        """True if a slot is free that no queued completion will take; for an evaluation, only its own count."""
        queue = self._evaluations if evaluation else self._startable()
        return self.slots - len(self._running) > len(queue)

    def _startable(self):
        """The queue that may start now."""
        return self._evaluations if self._evaluating else self._queue

    def _starts(self):
        """Take as many completions off the queue as there are free slots: a list of ActiveSequence."""
        queue = self._startable()
        return [queue.popleft() for _ in range(min(len(queue), self.slots - len(self._running)))]

    def _text(self, ids):
        """The decoded ids, special tokens included: the mark that ends thinking may be one."""
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def _thinks(self, ids):
        """Whether a completion that begins with these tokens is still thinking."""
        return self.think_end not in self._text(ids)

    def _completion(self, sequence):
        """The pipeline.Rollout of a finished sequence. Its text is without EOS."""
        request = sequence.group.request
        ids, mask, logprobs, versions = map(list, zip(*sequence.tokens))
        self._evaluating -= request.evaluation
        ended = ids[-1] in self.eos_ids
        text = self._text(ids[:-1] if ended else ids)
        return Rollout(
            request.number,
            sequence.index,
            request.evaluation,
            list(request.prompt.ids),
            ids,
            mask,
            logprobs,
            versions,
            text,
            truncated=not ended,
            interrupted=not all(mask),
        )


def eos_ids(model, tokenizer):
    """Ids that end a completion: all that the generation config, the config, the tokenizer or the chat template name.

    Published models often name only one of them in each place. Raises ValueError for none, or for one that the model
    has no output for.
    """
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids = special & set(end_of_turn(tokenizer)[:1])
    for source in (model.generation_config, model.config, tokenizer):
        named = getattr(source, "eos_token_id", None)
        ids |= set(named if isinstance(named, list) else [named]) - {None}
    if not ids:
        raise ValueError(
            "expected eos_token_id in the model's generation config or config, or in the tokenizer; got none: "
            "every completion would be truncated"
        )
    size = model.config.vocab_size
    if max(ids) >= size:
        raise ValueError(
            f"expected ids of eos_token_id below {size}, the model's vocabulary; got {max(ids)}; likely cause: the "
            "tokenizer or generation config of another model"
        )
    return sorted(ids)


def end_of_turn(tokenizer):
    """Ids of what the chat template writes behind an answer; [] without one."""
    answer = "an answer"
    messages = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": answer}]
    if not tokenizer.chat_template:
        return []
    try:
        text = rendered(tokenizer, messages) or ""
    except TemplateError:  # the prompts decide whether the template can be used
        return []
    _, written, end = text.rpartition(answer)
    return tokenizer(end.strip(), add_special_tokens=False)["input_ids"] if written else []


def check_interruption(tokenizer, phrase_ids, think_end, think_budget, max_new_tokens):
    """Raise ValueError unless the phrase's text ends in `think_end` and the budget leaves room for an answer."""
    lo, hi = think_budget
    spelled = tokenizer.decode(list(phrase_ids), skip_special_tokens=False)
    if not think_end or not spelled.rstrip().endswith(think_end.rstrip()):
        got = f"got {spelled!r}, as its tokenizer spells it; give another --think-end or --interrupt-phrase"
        raise ValueError(f"expected an interruption phrase that ends in {think_end!r}, {got}")
    if not 0 <= lo <= hi < max_new_tokens - len(phrase_ids):
        raise ValueError(
            f"expected --interrupt-at LO HI with LO <= HI, and HI below --max-new-tokens {max_new_tokens} less the "
            f"{len(phrase_ids)} tokens of the phrase, so that one is left for the answer; got {lo} {hi}"
        )


# --- On a Hugging Face model -----------------------------------------------------------------------------------------


class TorchGenerator(Generator):
    """pi_gen on a supported Hugging Face model, on any device: continuous batching over `slots` completions.

    model      a causal LM on its device, in the generators' dtype; updates are written into its parameters
    fp32_head  Sec. 3.2: the head's product in fp32
    settings   as for Generator
    """

    def __init__(self, model, tokenizer, *, fp32_head=True, **settings):
        super().__init__(model, tokenizer, **settings)
        forbid_tf32()
        # On an H100 or B200 torch prefers cuDNN, which makes a plan, in 25 to 450 ms, for each number of rows and
        # columns, and keeps them all: that would be one in each decode step.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.model = model.eval()
        self.fp32_head = fp32_head
        parameters = inspect.signature(model.get_decoder().forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"  # renamed in transformers 5.24
        self._cache = SlotCache(self.slots, self.positions)
        self._decoder = decoder(model, self.positions) or self._hugging_face
        self._next = self._sample
        if model.device.type == "cuda" and self._decoder != self._hugging_face:
            self._next = Graphs(self._sample)
        self._routing = Recorder(model)  # of a mixture of experts: which of them each token went to
        self._running = {}  # row -> ActiveSequence; between two steps rows may be free among them
        self._head = None  # `as_factor` of the head weight, once it is needed under the present weights
        self.filled = 0  # columns that the last decode step needed

    def named_weights(self):
        """{name: parameter}, tied ones once: new weights are copied into these, between two steps."""
        return dict(self.model.named_parameters())

    def update_weights(self, version):
        """The parameters now hold `version`: later tokens carry it.

        Prompts of completions that have not started, of training or of an evaluation, are run again.
        """
        self.version = version
        self._head = None
        for sequence in (*self._queue, *self._evaluations):
            sequence.group.prompt_kv = None

    @torch.inference_mode()
    def step(self):
        """Refill free slots, decode one token in each active one; returns the completions that end with it."""
        began = self.clock()
        self._refill()
        n = len(self._running)
        if not n:
            return []
        done = []
        for row, (token, logprob) in enumerate(zip(*self._decode(n))):
            sequence = self._running[row]
            sequence.tokens.append(self._choose(sequence, int(token), logprob))
            if self._ends(sequence):
                done.append(self._finish(row))
        self.count_step(self.clock() - began, n)
        return done

    def close(self):
        """Drop what is queued or running, and the memory it holds; the generator cannot be used afterwards."""
        self._running = {}
        self._queue = self._evaluations = ()
        self._cache = None

    # --- Starting completions

    def _refill(self):
        """Start queued completions in free rows, then move the last rows into those that stay free."""
        starts = self._starts()
        if any(sequence.group.prompt_kv is None for sequence in starts):
            # A pass over one short prompt costs nearly as much as one over several: run the next ones along with it.
            groups = dict.fromkeys(sequence.group for sequence in (*starts, *islice(self._startable(), PREFILL_AHEAD)))
            self._prefill([group for group in groups if group.prompt_kv is None])
        free = [row for row in range(self.slots) if row not in self._running]
        for row, sequence in zip(free, starts):
            self._running[row] = sequence
            self._cache.load(row, sequence.group.prompt_kv)
            if sequence.index + 1 == sequence.group.request.generations:
                # Else the pass that it is a view of stays in memory until the group ends.
                sequence.group.prompt_kv = None
        n = len(self._running)
        target = [row for row in free[len(starts) :] if row < n]
        source = [row for row in self._running if row >= n]
        if target:
            self._cache.move(target, source)
            for new, old in zip(target, source):
                self._running[new] = self._running.pop(old)

    def _prefill(self, groups):
        """Run prompts without their last token under the present weights; keys and values go into the groups."""
        per_pass = max(1, PREFILL_TOKENS // max(len(group.request.prompt.ids) for group in groups))
        for part in (groups[first : first + per_pass] for first in range(0, len(groups), per_pass)):
            prompts = [torch.tensor(group.request.prompt.ids[:-1], dtype=torch.int64) for group in part]
            # Padded on the right, without a mask: in causal attention no prompt token sees what follows it.
            ids = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True).to(self.model.device)
            cache: Any = DynamicCache()
            if ids.shape[1]:  # 0 if every prompt is a single token
                self.model.get_decoder()(input_ids=ids, use_cache=True, **{self._cache_name: cache})
            layers = [(layer.keys, layer.values) for layer in cache.layers] + self._routing.states(len(part))
            for row, group in enumerate(part):
                group.prompt_kv = [tuple(x[row, :, : len(prompts[row])] for x in states) for states in layers]

    # --- One decode step over the first n rows

    def _decode(self, n):
        """(n token ids, n log-probs in nats): the next of each row, sampled. Waits for the device once."""
        running = [self._running[row] for row in range(n)]
        counts = [len(sequence.tokens) for sequence in running]
        prompts = [sequence.group.request.prompt.ids for sequence in running]
        # The first input is the last prompt token.
        tokens = [s.tokens[-1][0] if s.tokens else prompt[-1] for s, prompt in zip(running, prompts)]
        positions = [len(prompt) - 1 + count for prompt, count in zip(prompts, counts)]
        uniforms = uniform(torch.tensor([sequence.key for sequence in running]), torch.tensor(counts))
        self.filled = max(positions) + 1
        inputs = torch.zeros(3, min(rounded(n), self.slots), dtype=torch.float64)
        inputs[:, :n] = torch.stack([torch.tensor(tokens), torch.tensor(positions), uniforms])
        columns = min(rounded(self.filled), self.positions)
        self._cache.filled = columns  # what `move` copies; a CUDA graph that is replayed does not set it
        return self._next(inputs.to(self.model.device), columns)[:, :n].tolist()

    def _sample(self, inputs, columns):
        """(2, n) float64, token ids and their log-probs, from (3, n): newest tokens, their positions, uniforms."""
        tokens, positions, uniforms = inputs
        log_pi = self._log_pi(tokens.long(), positions.long(), columns)
        token = sample(log_pi, uniforms) if self.temperature else log_pi.argmax(-1)
        return torch.stack([token.double(), log_pi.gather(-1, token[:, None]).squeeze(-1).double()])

    def _log_pi(self, tokens, positions, columns):
        """(n, V) fp32: log-probabilities of the token behind each of these (n,), which attends to `columns` columns."""
        self._cache.place(positions, columns)
        hidden = self._decoder(tokens, self._cache)
        if self._head is None:
            self._head = as_factor(self.model.get_output_embeddings().weight, self.fp32_head)
        logits = head_logits(hidden, self._head, self.fp32_head)
        return torch.log_softmax(logits / (self.temperature or 1.0), dim=-1)

    def _hugging_face(self, tokens, cache):
        """The final hidden states (n, H) of a model that decoding.py does not write out; as decoding.Decoder."""
        hidden = self.model.get_decoder()(
            input_ids=tokens[:, None],
            # Additive: eager attention adds it to its scores; a boolean mask would be wrong there without an error.
            attention_mask=unseen(cache, self.model.dtype),
            position_ids=cache.positions[:, None],
            use_cache=True,
            **{self._cache_name: cache},
        ).last_hidden_state[:, -1]
        self._routing.keep(cache)
        return hidden

    # --- What comes of a token

    def _choose(self, sequence, token, logprob):
        """The next token of a sequence, as in ActiveSequence.tokens: the sampled one, or an interruption's (A.10)."""
        offset = len(sequence.tokens) - sequence.interrupt_at  # index of the next token in the phrase
        if offset == 0 and not self._thinks(sequence.ids):
            sequence.interrupt_at = NEVER
        elif 0 <= offset < len(self.phrase_ids):
            return self.phrase_ids[offset], False, 0.0, self.version
        return token, True, logprob, self.version

    def _ends(self, sequence):
        """Whether a completion ends with its last token: EOS, or the token budget is used up."""
        return sequence.tokens[-1][0] in self.eos_ids or len(sequence.tokens) >= self.max_new_tokens

    def _finish(self, row):
        """The Rollout of the completion in this row, which is free then."""
        rollout = self._completion(self._running.pop(row))
        rollout.experts = self._routing.record(self._cache, row, len(rollout.prompt_ids) + len(rollout.ids))
        return rollout
