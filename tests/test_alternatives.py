"""Claims about the course's checks: other ways of solving an exercise are right, and near misses are wrong.

Each entry is the body of an exercise's function. It is judged as a student sees it and on hidden inputs of two seeds.
"""

import ast
import textwrap

import pytest

import exercises
from course import checker, grading
from course.checks.catalogue import EXERCISES

ROOT = exercises.ROOT
RIGHT = {  # (exercise, how it is solved) -> body
    ("ratio", "loops"): r"""
import math

out = torch.ones_like(logprobs)
for i in range(mask.shape[0]):
    for j in range(mask.shape[1]):
        if mask[i, j]:
            out[i, j] = math.exp((logprobs[i, j] - gen_logprobs[i, j]).item())
return out
""",
    ("gspo", "prod**(1/n)"): r"""
out = []
for l, g, m in zip(logprobs, gen_logprobs, mask):
    r = (l[m] - g[m]).exp()
    out.append(r.prod() ** (1 / max(len(r), 1)))
return torch.stack(out)[:, None]
""",
    ("cispo", "indexed"): r"""
out = torch.zeros_like(logprobs)
w = importance_ratio(logprobs, gen_logprobs, mask).clamp(max=eps_max).detach()
out[mask] = (w * advantages[:, None] * logprobs)[mask]
return out
""",
    ("cispo", "expand"): r"""
A = advantages[:, None].expand_as(mask)
with torch.no_grad():
    rho = importance_ratio(logprobs, gen_logprobs, mask)
rho[rho > eps_max] = eps_max
return rho * A * logprobs.masked_fill(~mask, 0)
""",
    ("clip", "by sign"): r"""
A = advantages[:, None]
v = torch.where(A > 0, ratio.clamp(max=1 + eps_high), ratio.clamp(min=1 - eps_low)) * A
return v.masked_fill(~mask, 0)
""",
    ("clip", "where on product"): r"""
A = advantages.reshape(-1, 1)
u = ratio * A
c = ratio.clamp(1 - eps_low, 1 + eps_high) * A
return torch.where(u < c, u, c) * mask
""",
    ("baseline", "loop"): r"""
return torch.stack([r - r.sum() / len(r) for r in rewards])
""",
    ("baseline", "list"): r"""
return [[x - sum(r) / len(r) for x in r] for r in rewards.tolist()]
""",
    ("advantages", "std_mean"): r"""
if how == "none":
    return advantages
s = (
    advantages.std(unbiased=False)
    if how == "batch"
    else torch.sqrt(((advantages - advantages.mean(1, True)) ** 2).mean(1, True))
)
return advantages / (s + STD_EPS)
""",
    ("advantages", "one-pass var"): r"""
if how == "none":
    return advantages
d = (1,) if how == "prompt" else (0, 1)
s = ((advantages**2).mean(d, keepdim=True) - advantages.mean(d, keepdim=True) ** 2).clamp(min=0).sqrt()
return advantages / (s + 1e-6)
""",
    ("denominators", "bincount tensors"): r"""
t = torch.bincount(prompt_index, weights=lengths.double()).long()
return Denominators((lengths > 0).sum(), (t > 0).sum(), lengths.sum(), t)
""",
    ("denominators", "list"): r"""
t = [int(lengths[prompt_index == p].sum()) for p in range(int(prompt_index.max()) + 1)]
return Denominators(sum(n > 0 for n in lengths.tolist()), sum(n > 0 for n in t), sum(t), t)
""",
    ("aggregate", "python float"): r"""
d, tot = denominators, 0.0
for o, m, p in zip(objective, mask, prompt_index.tolist()):
    n = int(m.sum())
    if n:
        tot += (
            float(o[m].sum())
            / {
                "sample": n * d.completions,
                "prompt": int(d.tokens_per_prompt[p]) * d.prompts,
                "token": d.tokens,
            }[how]
        )
return tot
""",
    ("aggregate", "vectorised"): r"""
d = denominators
n = mask.sum(-1, keepdim=True).clamp(min=1)
w = {
    "sample": 1 / (n * max(d.completions, 1)),
    "prompt": 1 / (d.tokens_per_prompt[prompt_index][:, None].clamp(min=1) * max(d.prompts, 1)),
    "token": torch.ones_like(n) / max(d.tokens, 1),
}[how]
return (objective.masked_fill(~mask, 0) * w).sum()
""",
    ("requests", "loop"): r"""
n = 0
for s in range(steps):
    if (s - version <= k) if off_policy == "pipeline" else (s // k <= version // k):
        n += prompts
return n
""",
    ("phases", "loop"): r"""
return sum(k for v in range(version + 1) if v % k == 0)
""",
    ("publishes", "int"): r"""
return int(version % k == 0)
""",
    ("sample", "searchsorted"): r"""
c = log_pi.double().exp().cumsum(-1)
return torch.searchsorted(c, uniforms[:, None], right=True).squeeze(-1).clamp(max=log_pi.shape[-1] - 1)
""",
    ("sample", "argmax"): r"""
c = torch.cumsum(log_pi.exp().double(), 1)
return (c > uniforms[:, None]).int().argmax(1)
""",
    ("sample", "list"): r"""
out = []
for row, u in zip(log_pi.double().exp().tolist(), uniforms.tolist()):
    s = 0.0
    for i, p in enumerate(row):
        s += p
        if s > u:
            break
    out.append(i)
return torch.tensor(out)
""",
    ("ends", "loop list->tensor"): r"""
return torch.tensor(
    [
        t in self._eos.tolist() or c >= self.max_new_tokens
        for t, c in zip(token.tolist(), self._slots.count[:n].tolist())
    ]
)
""",
    ("head", "F.linear"): r"""
d = torch.float32 if fp32_head else head_weight.dtype
with torch.autocast(hidden.device.type, enabled=False):
    return torch.nn.functional.linear(hidden.to(d), head_weight.to(d)).float()
""",
    ("mismatch", "numpy"): r"""
import numpy as np

d = (logprobs - gen_logprobs)[mask].detach().double().numpy()
r = np.exp(d)
return {
    "tokens": len(d),
    "mean_abs_log_ratio": np.abs(d).mean(),
    "max_abs_log_ratio": np.abs(d).max(),
    "min_ratio": r.min(),
    "max_ratio": r.max(),
    "k3": np.mean(np.expm1(d) - d),
    "clipped": np.mean((r < low) | (r > high)),
    "effective_sample_size": r.sum() ** 2 / (r**2).sum() / len(d),
}
""",
    ("mismatch", "tensors"): r"""
d = (logprobs - gen_logprobs)[mask]
r = d.exp()
return {
    "tokens": mask.sum(),
    "mean_abs_log_ratio": d.abs().mean(),
    "max_abs_log_ratio": d.abs().max(),
    "min_ratio": r.min(),
    "max_ratio": r.max(),
    "k3": (r - 1 - d).mean(),
    "clipped": ((r < low) | (r > high)).float().mean(),
    "effective_sample_size": r.sum() ** 2 / (r**2).sum() / len(d),
}
""",
    ("reward", "ints"): r"""
if value is None:
    return float("nan")
return 1 + penalty if value else -1
""",
    ("reward", "np.nan"): r"""
import numpy as np

return np.nan if value is None else (2 * value - 1) + (penalty if value else 0)
""",
    ("penalty", "max(-1,min(0,..)) ints"): r"""
return max(-1, min(0, (length_max - tokens) / length_cache - 1))
""",
    ("penalty", "np.clip"): r"""
import numpy as np

return np.clip((length_max - tokens) / length_cache - 1, -1, 0)
""",
    ("penalty", "branches"): r"""
if tokens <= length_max - length_cache:
    return 0
if tokens >= length_max:
    return -1
return (length_max - length_cache - tokens) / length_cache
""",
    ("pass-at-k", "product+np"): r"""
import numpy as np

v = [1 - np.prod([(len(g) - sum(g) - i) / (len(g) - i) for i in range(k)]) for g in groups]
return np.mean(v), np.std(v, ddof=1) / np.sqrt(len(v))
""",
    ("pass-at-k", "statistics"): r"""
import math, statistics

v = [1 - math.comb(len(g) - sum(g), k) / math.comb(len(g), k) for g in groups]
return statistics.mean(v), statistics.stdev(v) / len(v) ** 0.5
""",
    ("retired", "round"): r"""
return self.threshold is not None and round(self.pass_rates.get(index, -1.0), 6) >= self.threshold
""",
    ("retired", "float32 compare"): r"""
import numpy as np

return self.threshold is not None and np.float32(self.pass_rates.get(index, -1.0)) >= np.float32(self.threshold)
""",
    ("retired", "int arithmetic tol 1e-4"): r"""
return (
    self.threshold is not None and index in self.pass_rates and self.pass_rates[index] > self.threshold - 1e-4
)
""",
    ("warm-up", "if"): r"""
if version + 1 < warmup:
    return lr * (version + 1) / warmup
return lr
""",
    ("sigmoid", "expit"): r"""
C = np.asarray(C, float)
with np.errstate(divide="ignore"):
    return R_0 + (A - R_0) * expit(B * (np.log(C) - np.log(C_mid)))
""",
    ("sigmoid", "C^B form"): r"""
C = np.asarray(C, float)
return R_0 + (A - R_0) * C**B / (C**B + C_mid**B)
""",
    ("efficiency", "logit"): r"""
return B * np.log(C_mid) + logit((np.asarray(R) - R_0) / (A - R_0))
""",
    ("efficiency", "diff of logs"): r"""
return B * np.log(C_mid) - (np.log(A - R) - np.log(R - R_0))
""",
    ("compute-for", "vectorize"): r"""
f = lambda r: (
    0.0
    if r <= self.R_0
    else float("inf")
    if r >= self.A
    else self.C_mid * ((r - self.R_0) / (self.A - r)) ** (1 / self.B)
)
return np.vectorize(f, otypes=[float])(R)
""",
    ("compute-for", "exp logit"): r"""
with np.errstate(all="ignore"):
    p = np.clip((np.asarray(R, float) - self.R_0) / (self.A - self.R_0), 0, 1)
    return self.C_mid * np.exp(logit(p) / self.B)
""",
    ("zero-variance", "any !="): r"""
return (rewards != rewards[:, :1]).any(1)
""",
    ("zero-variance", "std>1e-6"): r"""
return rewards.std(-1) > 1e-6
""",
    ("zero-variance", "unique"): r"""
return torch.tensor([len(set(r)) > 1 for r in rewards.tolist()])
""",
    ("last-answer", "split"): r"""
if think_end is None:
    return text
return text.split(think_end)[-1] if think_end in text else None
""",
    ("last-answer", "rfind"): r"""
if think_end is None:
    return text
i = text.rfind(think_end)
return None if i < 0 else text[i + len(think_end) :]
""",
    ("history", "if-else"): r"""
del self._in_flight[index]
if pass_rate is not None:
    self.pass_rates[index] = pass_rate
""",
    ("stale-kv", "chain"): r"""
import itertools

self.version = version
for d in itertools.chain(self._queue, self._evaluations):
    d.group.prompt_kv = None
""",
    ("stale-kv", "via _startable-like: all groups"): r"""
self.version = version
for d in [*self._evaluations, *self._queue]:
    if d.group.prompt_kv is not None:
        d.group.prompt_kv = None
""",
    ("streams", "negative"): r"""
key = torch.zeros(request.generations, dtype=torch.int64)
stream = -1 - request.version if request.evaluation else 0
for word in (seed, stream, request.number, torch.arange(request.generations)):
    key = mix((key ^ word) + INCREMENT)
return key
""",
    ("clipped", "by weight"): r"""
rho = importance_ratio(logprobs, gen_logprobs, mask)
return (rho.clamp(max=eps_max) < rho).logical_and(mask & (advantages != 0).unsqueeze(1))
""",
    ("rounding", "tensors"): r"""
import torch

return (torch.tensor(1.0, dtype=torch.bfloat16) + torch.tensor(2.0**-9, dtype=torch.bfloat16)).item(), 1 + 2**-9
""",
    ("rounding", "torch tensor tuple"): r"""
import torch

return torch.tensor(1.0), torch.tensor(1 + 2**-9)
""",
    ("dropped", "fraction"): r"""
from fractions import Fraction

return Fraction(1, 8), 0.9**16 + 0.1**16
""",
    ("dropped", "rounded 3 digits"): r"""
return 0.125, 0.185
""",
    ("flops", "int"): r"""
return 2 * 8 * 10**9 * 768 * 10000 + 6 * 8 * 10**9 * 768 * 10500
""",
    ("crossing", "bools list"): r"""
return [False, True]
""",
    ("bias", "percent 2 digits"): r"""
return 0.44, 0.5
""",
    ("ends", "eos_ids"): r"""
return torch.tensor([int(t) in self.eos_ids for t in token]) | (self._slots.count[:n] >= self.max_new_tokens)
""",
    ("crossing", "np.bool_"): r"""
import numpy as np

return np.array([2.0, 3.0])[0] > 2.5, np.array([2.0, 3.0])[1] > 2.5
""",
    ("staleness-bound", "array"): r"""
import numpy as np

return np.array([8, 7])
""",
    ("clock", "start"): r"""
since = self.since
self.seconds, self.since = self.now(), None
yield
if since is not None:
    self.start()
""",
    ("clock", "perf_counter"): r"""
from time import perf_counter

was = self.since
self.seconds = self.now()
self.since = None
yield
self.since = perf_counter() if was else None
""",
    ("retired", "np.bool_"): r"""
import numpy as np

return self.threshold is not None and np.float64(self.pass_rates.get(index, 0.0)) >= self.threshold - 1e-6
""",
    ("head", "matmul"): r"""
dtype = torch.float32 if fp32_head else head_weight.dtype
with torch.autocast(hidden.device.type, enabled=False):
    return torch.matmul(hidden.to(dtype), head_weight.to(dtype).transpose(0, 1)).to(torch.float32)
""",
}
WRONG = {  # (exercise, what is wrong) -> body
    ("ratio", "quotient of exps"): r"""
return torch.where(mask, logprobs.exp() / gen_logprobs.exp(), 1.0)
""",
    ("ratio", "double out"): r"""
return torch.where(mask, (logprobs - gen_logprobs).double().exp(), 1.0)
""",
    ("head", "no autocast off"): r"""
d = torch.float32 if fp32_head else head_weight.dtype
return (hidden.to(d) @ head_weight.to(d).T).float()
""",
    ("power-law", "str"): r"""
return "0.74"
""",
    ("aggregate", "dummy nan"): r"""
d = denominators
lengths = mask.sum(-1)
by = {
    "sample": d.completions * lengths,
    "prompt": d.prompts * d.tokens_per_prompt[prompt_index],
    "token": d.tokens,
}[how]
return (objective.masked_fill(~mask, 0).sum(-1) / by).sum()
""",
    ("aggregate", "dummy error"): r"""
d, total = denominators, 0.0
for o, m, p in zip(objective, mask, prompt_index.tolist()):
    by = {
        "sample": int(m.sum()) * d.completions,
        "prompt": int(d.tokens_per_prompt[p]) * d.prompts,
        "token": d.tokens,
    }[how]
    total += float(o[m].sum()) / by
return total
""",
    ("staleness-bound", "text"): r"""
return "8", "7"
""",
    ("reward", "text"): r"""
return "nan" if value is None else str(1.0 + penalty) if value else "-1"
""",
    ("streams", "random"): r"""
return torch.randint(1 << 60, (request.generations,))
""",
    ("stale-kv", "version only"): r"""
self.version = version
""",
}
PERF_COUNTER = RIGHT["clock", "perf_counter"]


def with_body(exercise, body):
    """The exercise's file as `start` leaves it, but with this body of its function."""
    text = exercises.left(exercise.file)
    [node] = checker.parsed(text, exercise.file).nodes(exercise.target)
    lines = checker.LINES.findall(text)
    first = node.body[0].end_lineno if ast.get_docstring(node) else node.body[0].lineno - 1
    inside = textwrap.indent(body.strip("\n") + "\n", " " * (node.col_offset + 4))
    return "".join([*lines[:first], inside, *lines[node.end_lineno :]])


def problems(name, text):
    """What is wrong with an exercise in a file with this text, on the course's inputs and on hidden ones."""
    exercise = exercises.find(name)
    student = checker.Source(text, f"mine/{exercise.file}")
    original = checker.Source.read(checker.original_file(ROOT, exercise.file))
    right = checker.expected(exercise, original, EXERCISES, ROOT)
    found = checker.judged(exercise, checker.vectors(exercise, student, original, EXERCISES), right)
    definition = checker.build(exercise, checker.pieces(exercise, original, original, EXERCISES))
    function = checker.build(exercise, checker.pieces(exercise, student, original, EXERCISES))
    for seed in (1, 2):
        for claim, vector in zip(exercise.claims, right):
            inputs, answers = grading.drawn(exercise, claim, definition, vector, seed)
            try:
                yours = claim.vector(function, inputs)
            except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
                yours = repr(error)
            found += [text] if (text := claim.problem(yours, answers[0], inputs)) else []
    return found


@pytest.mark.parametrize("name, how", RIGHT, ids=lambda part: part.replace(" ", "-"))
def test_another_right_answer_is_accepted(name, how):
    assert problems(name, with_body(exercises.find(name), RIGHT[name, how])) == []


@pytest.mark.parametrize("name, how", WRONG, ids=lambda part: part.replace(" ", "-"))
def test_a_near_miss_is_rejected(name, how):
    assert problems(name, with_body(exercises.find(name), WRONG[name, how])) != []


def test_a_clock_may_import_perf_counter_at_the_top_of_its_file():
    statement, body = PERF_COUNTER.strip().split("\n", 1)
    text = with_body(exercises.find("clock"), body)
    assert problems("clock", text.replace("\nimport ", f"\n{statement}\nimport ", 1)) == []
