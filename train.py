"""Sec. 2 to 4: the ScaleRL loop, wired: generators stream completions, trainers take gradient steps, a scaling law is fitted.

    torchrun train.py --loss cispo                                   the embedded task, on a laptop CPU
    torchrun --nproc-per-node 8 train.py --loss cispo --model DIR --data FILE.jsonl       your model and data
    torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:PORT train.py …    several nodes

Ranks 0 … T-1 are trainers (FSDP2 among themselves), the rest generators. Started as one process, it starts itself again
with one process per GPU, at least two. Rank 0 hosts the mailbox (pipeline.py), keeps the curriculum, the clock and the log.

Metric glossary (`runs/NAME/log.jsonl`, one JSON object per line, told apart by `kind`)
  step   step (optimizer steps done), gpu_hours (devices x seconds on the clock / 3600), tokens (generated), tokens_trained,
         flops (2 N per generated token, 6 N per trained token, prompts included; N parameters), reward (mean, +-1), pass_rate (of
         correctness), kept (prompts with gradient), retired (prompts at >= 0.9), epoch, entropy (nats), rho_mean, rho_max,
         clipped (share of trained tokens), log_rho (mean |log rho|, nats), gradient_norm, lr, staleness ({age in optimizer
         steps: tokens}), truncated, interrupted (shares of completions), idle_generators, idle_trainers (shares of wall time
         since the last step, outside evaluation), seconds_generate, _train, _publish
  eval   step, gpu_hours, tokens, flops, pass_rate (mean@k on the validation set), stderr (sampling error), tasks
  fit    A, B, C_mid, R_0, bands, forecasts (fit.py);   end   reason, seconds (wall time);   config   every flag in force

Deviation: on the embedded task learning rate, warm-up, batch, lengths and validation are scaled to a laptop (EMBEDDED below).
Deviation: weights and gradients use collectives; of small traffic only a per-micro-batch stop flag and the step's metrics do.
Open in the paper: MiniMax's normalisation and k (here: prompt, 8); the number of prompts of Magistral (here: 48).
"""

import argparse
import json
import os
import signal
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.device_mesh import DeviceMesh
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import data
import fit
import loss
import pipeline
import precision
import reward
import rollout

RECIPES = {  # Sec. 2 (baseline), Sec. 4 (scalerl), A.16 (the others): algorithmic flags only
    "baseline": dict(loss="dapo", average="sample", normalisation="prompt", zero_variance_filter=False,
                     no_positive_resampling=None, fp32_head=False, off_policy="ppo", k=8, prompts=48)}
RECIPES |= {
    "scalerl": dict(loss="cispo", average="prompt", normalisation="batch", zero_variance_filter=True,
                    no_positive_resampling=0.9, fp32_head=True, off_policy="pipeline", k=8, prompts=48),
    "deepseek": RECIPES["baseline"] | dict(loss="grpo"),
    "qwen2.5": RECIPES["baseline"] | dict(average="prompt", zero_variance_filter=True, prompts=80),
    "magistral": RECIPES["baseline"] | dict(average="prompt", off_policy="pipeline"),
    "minimax": RECIPES["baseline"] | dict(loss="cispo", average="prompt", fp32_head=True,
                                          zero_variance_filter=True, prompts=80)}
CLIPS = {"eps_max": 5.0, "eps": 0.2, "eps_low": 0.2, "eps_high": 0.26}  # Sec. 3, A.17
GSPO_CLIPS = {"eps_low": 3e-3, "eps_high": 5e-3}  # conference Fig. 20
PAPER = dict(lr=5e-7, warmup=100, steps=7400, generations=16, max_new_tokens=14336, max_prompt_tokens=2048,
             interrupt_at=(10000, 12000), slots=256, eval_every=100, eval_prompts=1000, eval_generations=16,
             token_budget=32768, interrupt_phrase="Okay, time is up. Let me stop thinking and formulate a final answer now. </think>")
# Deviation: a 0.9M-parameter policy on two cores. Sizes chosen by measurement (README).
EMBEDDED = dict(lr=3e-5, warmup=20, steps=160, prompts=32, generations=16, max_new_tokens=80, max_prompt_tokens=32,
                interrupt_at=(64, 72), slots=128, eval_every=8, eval_prompts=256, eval_generations=8,
                token_budget=8192, interrupt_phrase="</think>")

SAMPLES = 4  # prompts per evaluation whose completions are kept in completions.jsonl
WHOLE = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=False)
LINES = {  # what of a log row the screen shows
    "step": "step {step:4d}  pass rate {pass_rate:.3f}  kept {kept}  entropy {entropy:.3f}  rho {rho_mean:.3f} (max "
            "{rho_max:.2f})  idle {idle_generators:.0%} gen {idle_trainers:.0%} train  {gpu_hours:.4f} gpu_hours",
    "eval": "step {step:4d}  VALIDATION pass rate {pass_rate:.3f} +- {stderr:.3f}  ({completions} completions)  "
            "{gpu_hours:.4f} gpu_hours"}


def flags():
    """The command line; a flag that is not given is absent from the namespace, so that presets can fill it."""
    parser = argparse.ArgumentParser(prog="train.py", description=__doc__.split("\n")[0], argument_default=argparse.SUPPRESS)
    add, toggle = parser.add_argument, argparse.BooleanOptionalAction
    add("--recipe", choices=RECIPES, help="algorithmic flags of a published recipe (A.16); a flag given beside it wins")
    add("--loss", choices=loss.LOSSES, help="objective, Eq. 3 to 8")
    add("--eps-max", type=float, help="cispo: cap on the ratio itself, >= 1 (Eq. 4)")
    add("--eps", type=float, help="grpo: half-width of the clip (Eq. 7)")
    add("--eps-low", type=float, help="dapo, gspo: lower half-width (Eq. 3, 8)")
    add("--eps-high", type=float, help="dapo, gspo: upper half-width (Eq. 3, 8)")
    add("--average", choices=loss.AVERAGES, help="loss aggregation (Sec. 3.2)")
    add("--normalisation", choices=loss.NORMALISATIONS, help="advantage normalisation (Sec. 3.2)")
    add("--zero-variance-filter", action=toggle, help="drop prompts whose completions are all right or all wrong (Sec. 3.2)")
    add("--no-positive-resampling", type=threshold, metavar="SHARE", help="never sample a prompt again from this pass rate on; 'off' for uniform resampling (Sec. 3.2)")
    add("--fp32-head", action=toggle, help="LM head and log-softmax in fp32 on both sides (Sec. 3.2)")
    add("--off-policy", choices=("pipeline", "ppo"), help="PipelineRL-k or PPO-off-policy-k (Sec. 3.1)")
    add("--k", type=int, help="optimizer steps a token may be old (Sec. 3.1)")
    add("--prompts", type=positive, help="P, prompts per optimizer step")
    add("--generations", type=positive, help="G, completions per prompt")
    add("--temperature", type=float, help="sampling temperature")
    add("--lr", type=float, help="AdamW learning rate, constant after warm-up (A.3)")
    add("--warmup", type=positive, help="optimizer steps of linear warm-up (A.3)")
    add("--weight-decay", type=float, help="AdamW weight decay (A.3)")
    add("--steps", type=positive, help="optimizer steps of the run")
    add("--token-budget", type=positive, help="padded tokens per micro-batch and trainer")
    add("--model", help="folder or hub name of a Hugging Face causal LM (default: base, the embedded one)")
    add("--data", help="JSONL of {prompt, answer} (default: arithmetic, the embedded task)")
    add("--dtype", choices=("float32", "bfloat16"), help="generators' and forward passes' dtype; master weights are float32")
    add("--max-prompt-tokens", type=positive, help="longer prompts are dropped and counted")
    add("--max-new-tokens", type=positive, help="thinking and answer tokens of a completion")
    add("--interrupt-at", type=positive, nargs=2, metavar=("LO", "HI"), help="a completion still thinking at a length drawn from here is made to answer (A.10)")
    add("--interrupt-phrase", help="what is injected then; ends in </think>")
    add("--slots", type=positive, help="completions that a generator decodes at once")
    add("--eval-every", type=positive, help="optimizer steps between evaluations")
    add("--eval-prompts", type=positive, help="held-out validation prompts")
    add("--eval-generations", type=positive, help="completions per validation prompt (mean@k)")
    add("--trainers", type=positive, help="T, ranks that train; the others generate (default: a fifth, the paper's 16 of 80)")
    add("--timeout", type=float, help="seconds without progress after which a wait fails and says who waits for whom")
    add("--seed", type=int, help="of prompts, order and sampling")
    add("--out", help="folder of the run (default runs/LOSS-seedSEED); must not hold a run")
    add("--resume", action="store_true", help="go on from the last checkpoint in --out, with its flags unless given again")
    return parser


def threshold(text):
    return None if text == "off" else float(text)


def positive(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text}; expected a whole number of 1 or more")
    return int(text)


def settings(argv):
    """Flags > --recipe > the presets of task and paper; a Namespace with every flag in force.

    Exits with code 2 and one line for a wrong value, or for a flag that the chosen loss does not read.
    """
    parser = flags()
    given = vars(parser.parse_args(argv))
    if given.pop("resume", False):
        given = resumed_flags(given, parser.error) | given | {"resume": True}
    embedded = given.get("data", "arithmetic") == "arithmetic"
    cuda = torch.cuda.is_available()
    args = argparse.Namespace(**dict(
        recipe="scalerl", temperature=1.0, weight_decay=0.01, model="base", data="arithmetic", trainers=None, seed=0,
        timeout=600.0, dtype="bfloat16" if cuda else "float32", resume=False) | RECIPES["scalerl"]
        | (EMBEDDED if embedded else PAPER) | RECIPES.get(given.get("recipe"), {}) | given)
    args.clips = clips(args, given, parser.error)
    args.out = given.get("out", f"runs/{args.loss}-seed{args.seed}")
    check(args, embedded, given, parser.error)
    return args


def clips(args, given, error):
    """The loss's own clip arguments (Sec. 3, A.17); a clip that the loss does not read is an error when set."""
    read = loss.LOSSES[args.loss][1]
    for name in CLIPS:
        if name in given and name not in read:
            error(f"--{name.replace('_', '-')} is not read by --loss {args.loss}, which reads {', '.join(read)}")
    defaults = CLIPS | (GSPO_CLIPS if args.loss == "gspo" else {})
    values = {name: given.get(name, defaults[name]) for name in read}
    try:  # the loss knows its bounds; an empty batch is enough to ask
        loss.LOSSES[args.loss][0](torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1), torch.ones(1, 1).bool(), **values)
    except ValueError as wrong:
        error(str(wrong))
    return values


def check(args, embedded, given, error):
    """Refuse what cannot work, before anything is spawned."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    out, low, high = Path(args.out), *args.interrupt_at
    if not embedded and "model" not in given:
        error("--data FILE needs --model: the embedded base model knows only digits, + and -")
    if args.off_policy == "ppo" and args.k < 1 or args.k < 0:
        error(f"--k is {args.k}; expected >= 0 with --off-policy pipeline and >= 1 with ppo")
    if args.off_policy == "ppo" and args.eval_every % args.k:
        error(f"--eval-every {args.eval_every} is no multiple of --k {args.k}: ppo publishes weights only every k steps")
    if not low <= high < args.max_new_tokens:
        error(f"--interrupt-at {low} {high}: expected LO <= HI < --max-new-tokens {args.max_new_tokens}, so that an answer fits")
    if args.max_prompt_tokens + args.max_new_tokens > args.token_budget:
        error(f"--token-budget {args.token_budget} is below one sequence of {args.max_prompt_tokens} + {args.max_new_tokens} tokens")
    for name, least in (("lr", 0), ("temperature", 0), ("timeout", 0), ("weight_decay", -1e-9)):
        if not getattr(args, name) > least:
            error(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected more than 0")
    if world > 1 and (args.trainers or 1) >= world:
        error(f"--trainers {args.trainers} of {world} processes leaves no generator; start more with --nproc-per-node")
    if not args.resume and (out / "log.jsonl").exists():
        error(f"{out} holds a run already; give another --out, or --resume to go on with it")


def resumed_flags(given, error):
    """The flags of the run in --out, from the first line of its log."""
    log = Path(given.get("out", "?")) / "log.jsonl"
    if not log.exists():
        error(f"--resume: expected a run in --out, found no {log}")
    stored = json.loads(log.open().readline())["flags"]
    return {name: value for name, value in stored.items() if name != "clips"} | stored["clips"]


def launch(argv):
    """Become torchrun with one process per GPU, at least two: the launcher's own variables must not reach them."""
    inherited = ("TORCHELASTIC_", "TORCH_NCCL_ASYNC", "LOCAL_", "GROUP_", "ROLE_", "RANK", "WORLD_SIZE", "MASTER_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(inherited)}
    processes = max(2, torch.cuda.device_count())
    environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // processes)))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), __file__, *argv]
    os.execve(sys.executable, [sys.executable, *command], environment)


# --- One optimizer step ----------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """What one trainer rank does in one optimizer step."""

    micro_batches: list  # of lists of (header, advantage, prompt_index); an empty one keeps the ranks of FSDP in step
    denominators: loss.Denominators  # of the whole batch, all ranks
    dropped: list  # headers whose completions carry no loss
    kept: int  # prompts with a gradient


def weigh(groups, args):
    """Filter and normalise (Sec. 3.2): P groups of G headers -> kept (P,) bool, advantages (P, G).

    The filter looks at correctness, never at a shaped reward. A group whose verifier failed is dropped. Truncated
    completions are wrong here, and carry no loss later.
    """
    judged = torch.tensor([all(header.correct is not None for header in group) for group in groups])
    correct = torch.tensor([[2.0 * bool(header.correct) - 1 for header in group] for group in groups])
    rewards = torch.tensor([[header.reward for header in group] for group in groups])
    kept = judged & loss.nonzero_variance(correct) if args.zero_variance_filter else judged
    advantages = torch.zeros_like(rewards)
    if kept.any():
        advantages[kept] = loss.normalise(loss.group_advantages(rewards[kept]), args.normalisation)
    return kept, advantages


def make_plan(groups, args, rank):
    """P groups of G headers -> this trainer rank's Plan: as many micro-batches as every other rank's.

    Every rank sorts the whole batch by length, so that little is padding, fills micro-batches up to --token-budget
    padded tokens and takes every T-th.
    """
    kept, advantages = weigh(groups, args)
    chosen, dropped = [], []
    for p, group in enumerate(groups):
        for g, header in enumerate(group):
            if kept[p] and not header.truncated:
                chosen.append((header, advantages[p, g].item(), p))
            else:
                dropped.append(header)
    counts = torch.tensor([(sum(header.versions.values()), p) for header, _, p in chosen], dtype=torch.long).view(-1, 2)
    chosen.sort(key=lambda item: (item[0].prompt_tokens + item[0].tokens, item[0].key))
    micro_batches = [[]]
    for item in chosen:
        length = item[0].prompt_tokens + item[0].tokens
        if (len(micro_batches[-1]) + 1) * length > args.token_budget:
            micro_batches.append([])
        micro_batches[-1].append(item)
    micro_batches += [[]] * (-len(micro_batches) % args.trainers)
    share = micro_batches[rank::args.trainers]
    return Plan(share, loss.global_denominators(counts[:, 0], counts[:, 1]), dropped, int(kept.sum()))


def collate(items, completions, device):
    """One micro-batch, right-padded: input_ids (B, T), mask and gen_logprobs (B, T-1), advantages and prompt_index (B,)."""
    width = max((len(c.prompt_ids) + len(c.ids) for c in completions), default=2)
    input_ids = torch.zeros(max(len(items), 1), width, dtype=torch.long)
    mask, gen_logprobs = torch.zeros(input_ids.shape, dtype=torch.bool), torch.zeros(input_ids.shape)
    for row, c in enumerate(completions):
        begin, end = len(c.prompt_ids), len(c.prompt_ids) + len(c.ids)
        input_ids[row, :end] = torch.tensor(c.prompt_ids + c.ids)
        mask[row, begin:end], gen_logprobs[row, begin:end] = torch.tensor(c.mask), torch.tensor(c.logprobs)
    advantages = torch.tensor([advantage for _, advantage, _ in items] or [0.0])
    prompt_index = torch.tensor([p for *_, p in items] or [0])
    return [t.to(device) for t in (input_ids, mask[:, 1:], gen_logprobs[:, 1:], advantages, prompt_index)]


def statistics(logprobs, gen_logprobs, entropy, clipped, mask):
    """Sums over a micro-batch's trained tokens: count, entropy, rho, |log rho|, clipped; and the largest rho."""
    log_ratio = (logprobs.detach() - gen_logprobs)[mask].double()
    rho = log_ratio.exp()
    sums = [mask.sum(), entropy[mask].sum(), rho.sum(), log_ratio.abs().sum(), (clipped & mask).sum()]
    return torch.stack([s.double() for s in sums]).cpu(), max(rho.tolist(), default=0.0)


class Clock:
    """Device-hours, x of Eq. 1: seconds while it runs times devices, over 3600. On CPU a process is a device."""

    def __init__(self, devices, gpu_hours=0.0):
        self.devices, self.seconds, self.since = devices, gpu_hours * 3600 / devices, None

    def start(self):
        self.since = time.perf_counter()

    @contextmanager
    def paused(self):
        """Stands still inside, then goes on if it ran."""
        self.seconds, since, self.since = self.now(), self.since, None
        yield
        self.since = since and time.perf_counter()

    def now(self):
        return self.seconds + (time.perf_counter() - self.since if self.since else 0.0)

    @property
    def gpu_hours(self):
        return self.devices * self.now() / 3600


class Trainer:
    """A trainer rank: policy, optimizer, curriculum, clock and log. Every trainer rank makes the same calls in the same
    order and keeps the same curriculum; only rank 0 writes files and speaks to the generators (pipeline.py).
    """

    def __init__(self, args, fleet, prompts):
        self.args, self.fleet, self.validation, self.out = args, fleet, prompts.validation, Path(args.out)
        folder = weights_folder(args)
        state = torch.load(Path(folder) / "trainer.pt", weights_only=True) if args.resume else {}
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(fleet.device)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.policy = precision.shard(precision.PolicyModel(
            model, dtype=fleet.dtype, temperature=args.temperature, fp32_head=args.fp32_head), fleet.mesh, fleet.dtype)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=args.lr, weight_decay=args.weight_decay, eps=1e-15)
        if state:
            sharded.set_optimizer_state_dict(self.policy, self.optimizer, state["optimizer"], options=WHOLE)
        self.curriculum = data.Curriculum(prompts.train, seed=args.seed, threshold=args.no_positive_resampling)
        if state:
            self.curriculum.load_state_dict(state["curriculum"])
        self.version, self.evaluated, self.checked = state.get("version", 0), None, False
        self.totals = state.get("totals", {"tokens": 0, "tokens_trained": 0, "flops": 0.0})
        self.clock = Clock(dist.get_world_size(), state.get("gpu_hours", 0.0))
        self.pipeline = pipeline.Pipeline(
            fleet.mailbox, off_policy=args.off_policy, k=args.k, prompts=args.prompts, generations=args.generations,
            steps=args.steps, start=self.version)
        self.idle, self.logged = self.pipeline.idle(), self.clock.gpu_hours  # as of the last line

    def issue(self, waiting=()):
        """Tickets for the next prompts of the curriculum, after those that a resumed run had `waiting`."""
        self.pipeline.issue([*waiting, *self.curriculum.next(self.pipeline.room - len(waiting))])

    def update(self, plan):
        """One optimizer step on this rank's share; denominators are global, so micro-batches and ranks only change speed.

        Returns metrics over all ranks. Without any gradient (all groups of zero variance) the weights stand still.
        """
        args, sums, rho_max = self.args, torch.zeros(5, dtype=torch.float64), 0.0
        objective = loss.LOSSES[args.loss][0]
        for items in plan.micro_batches:
            self.fleet.stop_together()
            completions = self.pipeline.take([header for header, *_ in items])
            input_ids, mask, gen_logprobs, advantages, prompt_index = collate(items, completions, self.fleet.device)
            logprobs, entropy = self.policy(input_ids, mask)
            if items and not self.checked:  # the first batch was sampled with the weights that the trainer still has
                precision.startup_check(logprobs, gen_logprobs, mask, self.fleet.dtype)
                self.checked = True
            inputs = logprobs, gen_logprobs, advantages, mask
            per_token = objective(*inputs, **args.clips)
            (-loss.aggregate(per_token, mask, prompt_index, args.average, plan.denominators)).backward()
            clipped = loss.clipped(objective, *inputs, **args.clips)
            more, largest = statistics(logprobs, gen_logprobs, entropy, clipped, mask)
            sums, rho_max = sums + more, max(rho_max, largest)
        metrics = self.fleet.total(sums, rho_max) | {"gradient_norm": self.gradient_norm(), "lr": self.warm_up()}
        self.fleet.stepping = True
        if plan.denominators.tokens:
            self.optimizer.step()
        self.version, self.fleet.stepping = self.version + 1, False
        self.optimizer.zero_grad()
        return metrics

    def warm_up(self):
        """Learning rate of the coming step: linear over --warmup steps, then constant (A.3)."""
        lr = self.args.lr * min(1.0, (self.version + 1) / self.args.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def gradient_norm(self):
        """L2 norm over all ranks; logged, never clipped."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.policy.parameters() if p.grad is not None])
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def publish(self, final=False):
        """Weights to the generators, if k and the off-policy setup say so, or for the last evaluation."""
        self.pipeline.publish(self.version, lambda: dict(precision.full_tensors(self.policy)), self.fleet.send, final=final)

    def learned(self, groups):
        """No-Positive-Resampling's history: the share of correct completions per prompt, None if a verifier failed."""
        for group in groups:
            known = all(header.correct is not None for header in group)
            self.curriculum.update(group[0].prompt, sum(h.correct for h in group) / len(group) if known else None)

    def evaluate(self):
        """Mean@k on the validation set; clock, weights and training tickets stand still meanwhile."""
        with self.clock.paused():
            groups, samples = self.pipeline.evaluate(self.validation, self.args.eval_generations, SAMPLES)
            self.evaluated = self.version
            if not groups:  # another rank than 0
                return
            self.log("eval", **pass_rates(groups, self.validation))
            with (self.out / "completions.jsonl").open("a") as file:
                for header, completion in zip((header for group in groups for header in group), samples):
                    prompt = self.validation[header.prompt]
                    file.write(json.dumps({"step": self.version, "prompt": prompt.text, "completion": completion.text,
                                           "answer": prompt.answer, "correct": completion.correct}) + "\n")

    def checkpoint(self):
        """A Hugging Face folder with trainer.pt beside the weights; the two latest are kept. Written aside, then renamed."""
        weights = {name: whole(p).to("cpu") for name, p in self.policy.model.named_parameters()}
        optimizer = sharded.get_optimizer_state_dict(self.policy, self.optimizer, options=WHOLE)
        final = self.out / f"checkpoint-{self.version}"
        if self.fleet.rank or final.exists():
            return
        folder = self.out / "checkpoint.tmp"
        shutil.rmtree(folder, ignore_errors=True)
        self.policy.model.save_pretrained(folder, state_dict=weights)
        self.tokenizer.save_pretrained(folder)
        torch.save({"version": self.version, "optimizer": optimizer, "curriculum": self.curriculum.state_dict(),
                    "totals": self.totals, "gpu_hours": self.clock.gpu_hours}, folder / "trainer.pt")
        folder.rename(final)
        for old in checkpoints(self.out)[:-2]:
            shutil.rmtree(old)

    def record(self, groups, plan, metrics, marks):
        """The `step` line. marks: time.perf_counter() before and after training, and after publishing."""
        headers = [header for group in groups for header in group]
        share = lambda values: sum(values) / len(headers)  # noqa: E731
        generated = sum(h.tokens for h in headers)
        trained = sum(h.prompt_tokens + h.tokens for h in headers) - sum(h.prompt_tokens + h.tokens for h in plan.dropped)
        flops = self.parameters * (2.0 * generated + 6.0 * trained)
        for name, more in (("tokens", generated), ("tokens_trained", trained), ("flops", flops)):
            self.totals[name] += more
        sampled = sum((Counter(h.versions) for h in headers), Counter())
        generators = len(self.fleet.mailbox.generators)
        training, publishing = (b - a for a, b in zip(marks, marks[1:]))
        idle, self.idle = self.pipeline.idle() - self.idle, self.pipeline.idle()
        wall = (self.clock.gpu_hours - self.logged) * 3600 / self.clock.devices
        self.logged = self.clock.gpu_hours
        self.log(
            "step", prompts=[group[0].prompt for group in groups], reward=share(h.reward if h.correct is not None else 0.0 for h in headers),
            pass_rate=share(bool(h.correct) for h in headers), kept=plan.kept, retired=self.curriculum.retired,
            epoch=self.curriculum.epoch, **metrics,
            staleness={self.version - 1 - version: n for version, n in sorted(sampled.items(), reverse=True)},
            truncated=share(h.truncated for h in headers), interrupted=share(h.interrupted for h in headers),
            timed_out=sum(h.timed_out for h in headers), unverified=sum(h.correct is None for h in headers),
            idle_generators=idle / generators / wall, idle_trainers=1 - training / wall, seconds=wall,
            seconds_generate=wall - idle / generators, seconds_train=training, seconds_publish=publishing)

    def log(self, kind, **values):
        """One line of log.jsonl, on rank 0, and in short on the screen."""
        if self.fleet.rank:
            return
        row = {"kind": kind, "step": self.version, "gpu_hours": self.clock.gpu_hours, **self.totals, **values}
        with (self.out / "log.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.fleet.bar.update(self.version - self.fleet.bar.n)
        if kind in LINES:
            self.fleet.bar.write(LINES[kind].format(**row), file=sys.stdout)


def pass_rates(groups, prompts):
    """Mean@k with its sampling error on this fixed set of prompts, and per task. The error leaves out which prompts were drawn."""
    rates, tasks = torch.tensor([[float(bool(h.correct)) for h in group] for group in groups]), {}
    for group, rate in zip(groups, rates):
        tasks.setdefault(prompts[group[0].prompt].task, []).append(rate.mean().item())
    variance = rates.var(1).mean().item() / rates.numel() if rates.shape[1] > 1 else float("nan")
    return {"pass_rate": rates.mean().item(), "stderr": variance ** 0.5, "completions": rates.numel(),
            "tasks": {task: sum(values) / len(values) for task, values in tasks.items()}}


def whole(parameter):
    """The full tensor of a parameter that FSDP2 may have sharded; a collective of the trainers."""
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()


def checkpoints(out):
    """Finished checkpoint folders, oldest first."""
    return sorted(out.glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))


def weights_folder(args):
    """Where the policy comes from: --model, or the last checkpoint of a resumed run."""
    return str(checkpoints(Path(args.out))[-1]) if args.resume else args.model


# --- The loop --------------------------------------------------------------------------------------------------------


def train(run):
    """Sec. 2 to 4 in order; returns why the run ended."""
    args = run.args
    if run.version == 0:
        run.evaluate()  # R_0, at C = 0
    run.clock.start()
    run.issue(waiting=run.curriculum.in_flight)
    for step in range(run.version, args.steps):
        # 1. Generate (Sec. 3.1): tokens may be up to k optimizer steps old; each keeps its log pi_gen.
        groups = run.pipeline.next_batch(step)
        if groups is None:
            break
        # 2. Filter and normalise (Sec. 3.2).
        marks = [time.perf_counter()]
        plan = make_plan(groups, args, run.fleet.rank)
        run.pipeline.drop(plan.dropped)
        # 3. Update (Sec. 3, Eq. 3 to 8).
        metrics = run.update(plan)
        marks.append(time.perf_counter())
        # 4. Publish the weights; history (Sec. 3.2); the tickets that the new version allows; read the clock, log.
        run.publish()
        run.learned(groups)
        run.issue()
        run.record(groups, plan, metrics, [*marks, time.perf_counter()])
        # 5. Validate (Sec. 2.1).
        if run.version % args.eval_every == 0:
            run.evaluate()
            run.checkpoint()
    run.publish(final=True)
    if run.evaluated != run.version:
        run.evaluate()
    return "finished" if run.version == args.steps else "curriculum exhausted"


def finish(run, reason, seconds, whole_state=True):
    """The run's last words: generators leave, the state is kept, the fit is drawn and printed."""
    run.pipeline.stop(reason, patience=2.0)
    if whole_state:
        run.checkpoint()
    if run.fleet.rank == 0:
        values, lines = fit.report(run.out / "log.jsonl", run.out / "scaling.png")
        if values:  # None with too few evaluations
            run.log("fit", **values)
        run.log("end", reason=reason, seconds=seconds)
        run.fleet.bar.close()
        print(*lines, sep="\n")


# --- Processes -------------------------------------------------------------------------------------------------------


class Abandoned(pipeline.Interrupted):
    """Something hung after a signal; with several trainers there is no agreement any more to gather a checkpoint."""


class Fleet:
    """This process among the others: its rank, device and groups, the mailbox, and the signal to stop."""

    def __init__(self, args):
        local, self.rank, world = int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        locals_, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
        self.device = torch.device("cuda", local % gpus) if gpus else torch.device("cpu")
        own_gpu = gpus >= locals_  # two processes on one GPU cannot form an NCCL group
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // locals_))
        if gpus:
            torch.cuda.set_device(self.device)
        wait = timedelta(seconds=args.timeout)
        dist.init_process_group("cpu:gloo,cuda:nccl" if own_gpu and gpus else "gloo", timeout=wait)
        self.dtype, self.stopped, self.stepping = getattr(torch, args.dtype), False, False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, self.on_signal)
        self.trainers = dist.new_group(range(args.trainers), timeout=wait)
        self.publishers = dist.new_group([0, *range(args.trainers, world)], timeout=wait)
        self.mesh = DeviceMesh.from_group(self.trainers, self.device.type) if self.rank < args.trainers else None
        self.mailbox = pipeline.Mailbox(pipeline.connect(), self.rank, trainers=args.trainers, world=world,
                                        timeout=args.timeout, interrupted=lambda: self.stopped)
        self.bar = tqdm(total=args.steps, unit="step", disable=self.rank > 0)
        self.peers = [None] * world
        dist.all_gather_object(self.peers, (os.uname().nodename, os.getpid()))

    def on_signal(self, number, _):
        """Ctrl-C or the launcher's wish to end. The trainers end at the next micro-batch or wait, and tell the generators;
        what still hangs after 5 seconds (a dead process never joins) is abandoned, but never half an optimizer step.
        """
        if number == signal.SIGALRM and self.rank < self.mailbox.trainers and not self.stepping:
            raise Abandoned("interrupted")
        if number == signal.SIGALRM or not self.stopped:
            signal.alarm(1 if self.stopped else 5)
        self.stopped = True

    def send(self, named):
        """Rank 0's weights to the generators."""
        pipeline.broadcast_weights(named, self.publishers)

    receive = send  # one collective, the same call on both ends

    def stop_together(self):
        """Before each micro-batch: trainers leave a step only if all of them do, or the others would hang in FSDP."""
        self.mailbox.beat()
        stop = torch.tensor(float(self.stopped), device=self.device)
        dist.all_reduce(stop, dist.ReduceOp.MAX, group=self.trainers)
        if stop:
            raise pipeline.Interrupted("interrupted")

    def total(self, sums, rho_max):
        """Metrics of one optimizer step over all trainer ranks; nan if nothing was trained."""
        sums, rho_max = sums.to(self.device), torch.tensor(rho_max, device=self.device)
        dist.all_reduce(sums, group=self.trainers)
        dist.all_reduce(rho_max, dist.ReduceOp.MAX, group=self.trainers)
        count, *others = sums.tolist()
        entropy, rho, log_rho, clipped = (value / count if count else float("nan") for value in others)
        return {"entropy": entropy, "rho_mean": rho, "rho_max": rho_max.item(), "log_rho": log_rho, "clipped": clipped}

    def missing(self):
        """Names of processes on this machine that have ended."""
        host, _ = self.peers[self.rank]
        return [self.mailbox.name(rank) for rank, (node, pid) in enumerate(self.peers) if node == host and not alive(pid)]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def generate(args, fleet):
    """A generator rank: serves tickets until rank 0 ends the run (pipeline.serve)."""
    folder = weights_folder(args)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=fleet.dtype).to(fleet.device)
    phrase = tokenizer.encode(args.interrupt_phrase, add_special_tokens=False)
    generator = rollout.TorchGenerator(
        model, tokenizer, slots=args.slots, max_new_tokens=args.max_new_tokens, phrase_ids=phrase,
        think_budget=tuple(args.interrupt_at), temperature=args.temperature, seed=args.seed, fp32_head=args.fp32_head)
    scorer = reward.Scorer(timeout=5.0)
    try:
        pipeline.serve(generator, fleet.mailbox, fleet.receive, scorer)
    finally:
        scorer.close()
        generator.close()


def lead(args, fleet, prompts, began):
    """A trainer rank. Whatever ends the run, it leaves a checkpoint, a readable log and the fit so far; returns the reason
    if that is a failure.
    """
    run, failure, whole_state = Trainer(args, fleet, prompts), None, True
    try:
        reason = train(run)
    except (pipeline.Interrupted, pipeline.Stopped, pipeline.Stalled, RuntimeError) as end:
        gone = ", ".join(fleet.missing())  # the launcher stops everybody when one process dies
        known = isinstance(end, (pipeline.Interrupted, pipeline.Stopped, pipeline.Stalled))
        if not gone and not known:
            raise
        reason = f"{gone} ended" if gone else str(end)
        failure = reason if gone or isinstance(end, pipeline.Stalled) else None
        whole_state = args.trainers == 1 or isinstance(end, (pipeline.Interrupted, pipeline.Stopped)) and not isinstance(end, Abandoned)
    finish(run, reason, time.perf_counter() - began, whole_state)
    return failure


def prepare(args):
    """Load and check what every rank needs; raises ValueError or OSError before anything expensive starts."""
    folder = weights_folder(args)
    precision.check_supported(AutoConfig.from_pretrained(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = data.load(args.data, tokenizer, budget=args.max_prompt_tokens, validation=args.eval_prompts)
    data.check_size(prompts, prompts=args.prompts, k=args.k)
    return prompts


def begin_log(args):
    """The `config` line: every flag in force, versions and commit."""
    Path(args.out).mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True,
                            cwd=Path(__file__).parent, check=False).stdout.strip()
    row = {"kind": "config", "flags": vars(args), "world": dist.get_world_size(), "commit": commit,
           "versions": {name: version(name) for name in ("torch", "transformers", "numpy", "scipy")}}
    with (Path(args.out) / "log.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def main(argv):
    began, args = time.perf_counter(), settings(argv)
    disable_progress_bar()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    try:
        prompts = prepare(args)
    except (ValueError, OSError) as wrong:
        print(f"train.py: error: {wrong}" if rank == 0 else "", file=sys.stderr)
        sys.exit(2)
    if world == 1:
        launch(argv)
    args.trainers = args.trainers or max(1, world // 5)
    fleet = Fleet(args)
    if rank == 0:
        begin_log(args)
    failure = lead(args, fleet, prompts, began) if rank < args.trainers else generate(args, fleet)
    if failure:
        sys.exit(f"train.py: error: {failure}; {args.out} holds the log and a checkpoint: go on with --resume")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
