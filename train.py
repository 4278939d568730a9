"""Sec. 2 to 4, the ScaleRL loop: generators stream completions, trainers take gradient steps, a scaling law is fitted.

    torchrun train.py --loss cispo                                  the embedded task, on a laptop CPU
    torchrun --nproc-per-node 8 train.py --loss cispo --model DIR --data FILE.jsonl        your model and data
    python train.py --evaluate CHECKPOINT --data FILE.jsonl --generations 16        mean@k and pass@k of a policy
    python train.py --virtual exact --loss cispo                    one process, virtual time: the same run twice
    torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:PORT train.py …   several nodes

Ranks 0 … T-1 are trainers (FSDP2 among themselves), the rest generators. Started as one process, train.py relaunches
itself with one process per GPU, at least two. Rank 0 hosts the mailbox (pipeline.py) and keeps the curriculum, the
clock and the log. Ctrl-C ends a run in order: it writes a checkpoint, the log and the fit so far, and
`--resume --out FOLDER` continues the run. When a process dies, all others are told and end; the last periodic
checkpoint remains.

Metric glossary (`runs/NAME/log.jsonl`, one JSON object per line; `kind` says which; null stands for nan or inf)
  all    step (optimizer steps done), gpu_hours (devices x seconds on the clock / 3600), tokens (generated),
         tokens_trained (prompts included), flops (2 N per generated, 6 N per trained token; N parameters),
         lost_gpu_hours (the part of gpu_hours that crashes cost: spent on steps that were then made again; the other
         totals hold such steps twice too)
  step   prompts (their indices), reward (mean, +-1, shaped by a length penalty if there is one), pass_rate (of
         correctness), kept (prompts left after filtering), micro_batches, padded (tokens in them with padding; both of
         trainer rank 0), retired (prompts at or above --no-positive-resampling), length_mean, length_max (tokens of a
         completion, injected ones included), epoch, entropy (nats), rho_mean, rho_max, clipped (share of trained
         tokens), log_rho (mean |log rho|, nats), effective_sample_size ((sum rho)^2 / (n sum rho^2) over n trained
         tokens; a step without gradient, which trains on no token, has none of these six),
         gradient_norm, lr, staleness ({age in optimizer steps: tokens}), skipped (the gradient was not finite, so the
         weights were not updated), truncated, interrupted (shares of completions), timed_out (answers wrong because
         checking took too long), unverified (completions whose verifier failed), seconds (wall time since the last
         step, outside evaluation), idle_generators, idle_trainers (shares of these seconds), slots_used (share of the
         generators' slots and these seconds in which something was decoded; evaluations count), decode_seconds ({rank:
         seconds of a decode step}), drained (ranks of generators too slow to get requests), seconds_generate (with
         something decoding, mean over the generators), seconds_train, seconds_publish (of the previous version)
  eval   pass_rate (mean@k on the validation set), stderr (sampling error), entropy_sampled (nats, -mean log pi_gen of
         the sampled tokens: an estimate of the entropy, A.12), completions, unverified, timed_out, tasks
  unverified  one line per prompt whose answers got no verdict, and error: prompt, where (file and line), error.
         Frequent failures of the verifier end the run; a reference answer that cannot be read is not counted as one
  fit    A, B, C_mid, R_0, bands, forecasts (fit.py)
  end    reason, final (a new start would end for the same reason, so --max-restarts is not used), seconds (wall)
  config flags (all in force; with the protections of the sandbox), world (number of processes), threads (of torch),
         commit, versions, prompts (how many, and how many left out)
With --virtual all times but that of `end` are virtual: a model (plumbing/costs.py), not the machine's.
A run resumed after a crash logs the steps after its checkpoint again; of several lines for a step, the last counts.

Deviation: none known beyond those of the modules.
Open in the paper: whether validation counts in C. Here it does not, although half-finished training completions
  continue during it.
"""

import math
import os
import statistics
import sys
import time
from collections import Counter, deque
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import data
import loss
import pipeline
import precision
import reward
from plumbing import batches, checkpoints, fit_cli, screen, track, virtual_run
from plumbing.evaluation import answered, append, evaluate_policy
from plumbing.flags import make_generator, make_scorer, provenance, questions, start, weights_folder
from plumbing.fleet import Clock, Fleet, Screen, end_launcher, launch
from plumbing.screen import WARNINGS
from verify.graders import NO_FAILURE, OWN

SAMPLES = 4  # prompts per evaluation whose completions are kept in completions.jsonl
TRUNCATION = 0.1  # A.15: above 10 to 15 % of truncated completions runs destabilise
TRUNCATED_STEPS = 10  # steps whose shares of truncated completions are averaged
REDRAW = 20.0  # seconds between two drawings of scaling.png at least; at its end each run is drawn
STANDING = 10  # batches in a row without gradient before a warning
FEW_HELD_OUT = 16  # with fewer held-out prompts a warning says that they are too few for a curve
SILENT = 0.1  # share of the first validation's prompts without an opinion of --reward above which a warning says so
UNVERIFIED = 0.01  # a run stops when the verifier failed on a larger share of its groups (of 100, if it has had fewer)
SKIPPED = 5  # steps in a row without a finite gradient, after which a run stops


class Unverifiable(pipeline.Interrupted):
    """The verifier fails too often for the rewards to mean anything."""


class Diverged(pipeline.Interrupted):
    """No finite gradient for SKIPPED steps in a row, or weights that are not finite."""


class Trainer:
    """A trainer rank: policy, optimizer, curriculum, clock and log.

    Every trainer rank makes the same calls in the same order and keeps the same curriculum. Only rank 0 writes the log
    and talks to the generators (pipeline.py).
    """

    def __init__(self, args, fleet, prompts):
        self.args = args
        self.fleet = fleet
        self.validation = prompts.validation
        self.out = Path(args.out)
        folder = weights_folder(args)
        state = checkpoints.counters(folder) if args.resume else {}
        self.load(folder, state, prompts)
        self.version = state.get("version", 0)  # optimizer steps done
        self.evaluated = state.get("evaluated")  # version of the last evaluation
        self.saved = state.get("version")  # version of the last checkpoint
        self.drawn = time.monotonic()
        self.checked = False  # whether the start-up check has been passed, or its time is over
        self.skipped = 0  # skipped steps in a row
        self.truncated = deque(maxlen=TRUNCATED_STEPS)  # truncated share of the completions, for each of the last steps
        self.standing = 0  # batches without gradient, in a row
        self.unverified = state.get("unverified", 0)  # groups on which the verifier failed
        self.named = set()  # (prompt, error) in the log
        self.raised = 0  # groups on which --reward raised an error, or gave no truth value
        self.totals = {"tokens": 0, "tokens_trained": 0, "flops": 0.0, "lost_gpu_hours": 0.0} | state.get("totals", {})
        self.clock = Clock(fleet.devices, state.get("gpu_hours", 0.0) + self.count_lost(state), fleet.clock)
        self.pipeline = pipeline.Pipeline(
            fleet.mailbox,
            off_policy=args.off_policy,
            k=args.k,
            prompts=args.prompts,
            generations=args.generations,
            steps=args.steps,
            start=self.version,
            drain=fleet.drain,
        )
        # Without a terminal there is no bar: its carriage returns would hide the lines from grep.
        self.bar = tqdm(total=args.steps, initial=self.version, unit="step", disable=fleet.rank > 0 or None)
        self.idle = 0.0  # seconds a generator was idle, at the last `step` line
        self.logged = self.clock.gpu_hours  # at the last `step` line
        self.publishing = 0.0  # seconds of the last publication
        self.published = self.clock.gpu_hours  # after it
        processes = {"world": dist.get_world_size(), "threads": torch.get_num_threads()}
        self.tracker = track.begin(args.track, self.out, vars(args)) if args.track and fleet.rank == 0 else None
        self.log("config", flags=vars(args), **processes, **provenance(prompts))

    def load(self, folder, state, prompts):
        """Policy, optimizer and curriculum from a folder of weights; state: its counters, if it is a checkpoint."""
        args = self.args
        fleet = self.fleet
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.policy = checkpoints.load_policy(
            folder,
            fleet,
            resume=args.resume,
            prepare=self.prepare,
            dtype=fleet.dtype,
            temperature=args.temperature,
            fp32_head=args.fp32_head,
        )
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), eps=1e-15)  # A.3; the rest before each step
        self.curriculum = data.Curriculum(
            prompts.train, seed=args.seed, threshold=args.no_positive_resampling, weights=prompts.weights
        )
        if state:
            checkpoints.load_state(folder, self.policy, self.optimizer, fleet.writers, stepped=state["stepped"])
            try:
                self.curriculum.load_state_dict(state["curriculum"])
            except ValueError as error:
                raise OSError(f"--resume from {folder}: {error}") from error

    def count_lost(self, state):
        """Keep in the totals what a crash cost since the checkpoint with these counters; returns its device-hours."""
        crashes_count = self.fleet.rank == 0 and "virtual" not in self.args  # virtual time is a model, and repeats
        lost = checkpoints.lost(self.out, state) if crashes_count else {}
        hours = lost.pop("gpu_hours", 0.0)
        for name, more in lost.items():
            self.totals[name] += more
        self.totals["lost_gpu_hours"] += hours
        return hours

    def prepare(self, model):
        """Set activation checkpointing and count the parameters of the Hugging Face model, before it is wrapped."""
        if self.args.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()  # else it has no effect; dropout, which this turns on too, is refused
        self.parameters = sum(p.numel() for p in model.parameters())

    def issue(self, waiting=()):
        """Issue requests: first for the prompts `waiting` (in flight at the checkpoint), then for the curriculum's."""
        waiting = waiting[: self.pipeline.room]  # a run resumed with fewer --steps has no room for all
        self.pipeline.issue([*waiting, *self.curriculum.next(self.pipeline.room - len(waiting))])

    def gradient_step(self, plan):
        """One optimizer step on this rank's share of the batch (`plan`, a batches.Plan).

        Denominators are global: the numbers of micro-batches and ranks change only the speed. Returns metrics over all
        ranks. The weights are not updated if no token carries loss (all groups of zero variance) or the gradient is not
        finite; the version advances all the same.
        """
        began = self.fleet.clock()
        args = self.args
        objective = loss.LOSSES[args.loss][0]
        sums = torch.zeros(len(batches.STATISTICS)).double()
        rho_max = 0.0
        for items in plan.micro_batches:
            self.fleet.stop_together(items)
            completions = self.pipeline.take([item.rollout for item in items])
            input_ids, mask, gen_logprobs, advantages, prompt_index = batches.collate(
                items, completions, self.fleet.device
            )
            logprobs, entropy = self.policy(input_ids, mask)
            if items and not self.checked:  # before the first update the trainer has the weights that sampled the batch
                precision.startup_check(logprobs, gen_logprobs, mask, self.fleet.dtype)
            inputs = logprobs, gen_logprobs, advantages, mask
            per_token = objective(*inputs, **args.clips)
            (-loss.aggregate(per_token, mask, prompt_index, args.aggregation, plan.denominators)).backward()
            clipped = loss.clipped(args.loss, *inputs, **args.clips)
            more, largest = batches.statistics(logprobs, gen_logprobs, entropy, clipped, mask)
            sums += more
            rho_max = max(rho_max, largest)
        metrics = self.fleet.total(sums, rho_max)
        norm = self.gradient_norm()
        skipped = not math.isfinite(norm)  # the same on all ranks, since the norm is
        self.skipped = self.skipped + 1 if skipped else 0
        lr = self.warm_up()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
            group["weight_decay"] = args.weight_decay  # a resumed run may have been given another
        if plan.denominators.tokens and not skipped:
            self.optimizer.step()
            self.checked = True  # on all ranks: from here on the trainers' weights are newer than a batch's
        self.version += 1
        self.optimizer.zero_grad()
        seconds = self.fleet.clock() - began
        return metrics | {"gradient_norm": norm, "lr": lr, "skipped": skipped, "seconds_train": seconds}

    def warm_up(self):
        """The learning rate of this step: linear over --warmup steps, then constant (A.3)."""
        return self.args.lr * min(1.0, (self.version + 1) / self.args.warmup)

    def gradient_norm(self):
        """L2 norm of the gradient over all ranks. It is only logged: the gradient is never clipped."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.policy.parameters() if p.grad is not None])
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def weights(self, device=None):
        """{name: full tensor} on rank 0, in the generators' dtype, on `device` (default: where the policy is).

        Collective: every trainer rank calls it; the others get {}.
        """
        named = precision.full_tensors(self.policy)
        return {name: tensor.to(device or tensor.device) for name, tensor in named if self.fleet.rank == 0}

    def publish(self, final=False):
        """Send the weights to the generators if the off-policy setup does so at this version, or if it is `final`."""
        began = self.fleet.clock()
        self.pipeline.publish(self.version, self.weights, self.fleet.broadcast, final=final)
        self.publishing = self.fleet.clock() - began
        self.published = self.clock.gpu_hours

    def learned(self, groups):
        """Give the curriculum each prompt's share of correct completions, None if a verifier failed (which is logged).

        No-Positive-Resampling (Sec. 3.2) needs this history.
        """
        for group in groups:
            known = all(rollout.correct is not None for rollout in group)
            self.curriculum.update_history(
                group[0].prompt, sum(h.correct for h in group) / len(group) if known else None
            )
            if not known:
                [error, *_] = [rollout.error for rollout in group if rollout.correct is None]
                self.unverified += not error.startswith(NO_FAILURE)
                self.name_unverified(self.curriculum.prompts[group[0].prompt], error)

    def name_unverified(self, prompt, error):
        """Log a prompt whose answers get no verdict, once per prompt and error; of errors of --reward the first."""
        if error.startswith(OWN):
            if error != OWN:  # None, as it may say
                self.count_raised(prompt, error)
        elif (prompt.text, error) not in self.named:
            self.named.add((prompt.text, error))
            self.log("unverified", prompt=prompt.text, where=prompt.where, error=error)

    def count_raised(self, prompt, error):
        """Show the first error of --reward, and how many there have been when they are 10, 100, ..."""
        self.raised += 1
        if self.raised == 1:
            self.log("unverified", prompt=prompt.text, where=prompt.where, error=error)
        elif self.raised in (10**power for power in range(1, 9)):
            self.warn("reward", count=self.raised)

    def watch(self, rollouts, gradient_norm):
        """Warn of what ruins runs: skipped steps, STANDING batches without any gradient, many truncated completions.

        Raises Unverifiable if the verifier failed often (`check_verifier`), Diverged after SKIPPED skipped steps in a
        row.
        """
        self.standing = 0 if gradient_norm else self.standing + 1
        if self.standing == STANDING:
            self.warn("no gradient", batches=STANDING, pass_rate=mean(bool(rollout.correct) for rollout in rollouts))
            self.standing = 0
        self.truncated.append(sum(rollout.truncated for rollout in rollouts) / len(rollouts))
        if sum(self.truncated) > TRUNCATION * TRUNCATED_STEPS:
            self.warn("truncated", share=mean(self.truncated), steps=len(self.truncated), limit=TRUNCATION)
            self.truncated.clear()
        if self.skipped:
            self.warn("skipped", step=self.version)
        if self.skipped >= SKIPPED:
            raise Diverged(
                f"no gradient of the last {SKIPPED} steps was finite; likely cause: an importance ratio "
                "without upper bound (dapo and grpo have none where the advantage is negative), or --lr"
            )
        errors = [rollout.error for rollout in rollouts if rollout.correct is None]
        check_verifier(errors, self.unverified, self.version * self.args.prompts)

    def validate(self):
        """Log mean@k on the validation set. Meanwhile the clock is stopped; no weights are sent, no requests issued."""
        self.bar.set_description("validating")
        with self.clock.paused():
            groups, samples, failed = self.pipeline.evaluate(self.validation, self.args.eval_generations, SAMPLES)
            failures = [error for error in failed.values() if not error.startswith(NO_FAILURE)]
            check_verifier(failures, len(failures), len(self.validation))
            if len(failed) == len(self.validation):
                raise Unverifiable(f"no validation prompt got verdicts: {most_common(failed.values())}")
            self.evaluated = self.version
            self.bar.set_description()
            if not groups:  # only rank 0 has them
                return
            for index, error in failed.items():
                self.name_unverified(self.validation[index], error)
            rollouts = sum(groups, [])
            if self.version == 0 and not any(h.marked and not h.interrupted or h.correct for h in rollouts):
                self.warn("no mark", completions=len(rollouts), mark=self.args.think_end)
            if self.version == 0 and len(self.validation) < FEW_HELD_OUT:
                self.warn("few held out", count=screen.counted(len(self.validation), "held-out prompt"))
            silent = sum(error == OWN for error in failed.values()) / len(self.validation)
            if self.version == 0 and silent > SILENT:
                self.warn("silent", share=silent)
            self.log("eval", **reward.pass_rates(groups, self.validation), timed_out=sum(h.timed_out for h in rollouts))
            self.draw()
            for rollout, completion in zip(rollouts, samples):
                append(
                    self.out / "completions.jsonl",
                    {"step": self.version, **answered(self.validation[rollout.prompt], completion, rollout.correct)},
                )

    def draw(self):
        """Draw scaling.png with the evaluations so far, once they are enough for a fit; it takes about a second."""
        if time.monotonic() < self.drawn + REDRAW:
            return
        self.drawn = time.monotonic()
        with suppress(OSError):  # on a full disk
            fit_cli.report(self.out / "log.jsonl", self.out / "scaling.png")

    def checkpoint(self):
        """Write a checkpoint of this version if there is none. All ranks raise Diverged if a weight is not finite."""
        if self.saved == self.version:
            return
        if self.fleet.any(not checkpoints.finite(self.policy)):
            raise Diverged(f"the weights of step {self.version} are not finite")
        counters = {
            "version": self.version,
            "evaluated": self.evaluated,
            "stepped": bool(self.optimizer.state),
            "curriculum": self.curriculum.state_dict(),
            "totals": self.totals,
            "unverified": self.unverified,
            # A virtual run repeats what it was interrupted in, so that this must not count.
            "gpu_hours": self.published if "virtual" in self.args else self.clock.gpu_hours,
        }
        with self.fleet.beating():
            checkpoints.save(
                self.out, self.policy, self.optimizer, self.tokenizer, self.weights("cpu"), counters, self.fleet
            )
        self.saved = self.version

    def record(self, groups, rollouts, plan, metrics):
        """Add this step to the totals and log its `step` line."""
        known = [rollout for rollout in rollouts if rollout.correct is not None]
        generated = sum(h.tokens for h in rollouts)
        flops = self.parameters * (2.0 * generated + 6.0 * plan.tokens)
        for name, more in (("tokens", generated), ("tokens_trained", plan.tokens), ("flops", flops)):
            self.totals[name] += more
        sampled = sum((Counter(h.versions) for h in rollouts), Counter())
        idle_before = self.idle
        self.idle = self.pipeline.idle() / len(self.fleet.mailbox.generators)
        idle = round(self.idle - idle_before, 9)  # so that it does not depend on what was idle before a resume
        wall = (self.clock.gpu_hours - self.logged) * 3600 / self.clock.devices
        self.logged = self.clock.gpu_hours
        decode_seconds, before, drained = self.pipeline.drain()
        for rank in before ^ drained:
            self.warn("slow" if rank in drained else "recovered", name=self.fleet.mailbox.name(rank))
        self.log(
            "step",
            prompts=[group[0].prompt for group in groups],
            reward=mean(h.reward for h in known),
            pass_rate=mean(h.correct for h in known),
            kept=plan.kept,
            micro_batches=len(plan.micro_batches),
            padded=sum(map(batches.padded, plan.micro_batches)),
            retired=self.curriculum.retired,
            epoch=self.curriculum.epoch,
            **metrics,
            staleness={self.version - 1 - version: n for version, n in sorted(sampled.items(), reverse=True)},
            length_mean=mean(h.tokens for h in rollouts),
            length_max=max(h.tokens for h in rollouts),
            truncated=mean(h.truncated for h in rollouts),
            interrupted=mean(h.interrupted for h in rollouts),
            timed_out=sum(h.timed_out for h in rollouts),
            unverified=len(rollouts) - len(known),
            idle_generators=min(1.0, idle / wall),
            idle_trainers=max(0.0, 1 - metrics["seconds_train"] / wall),
            slots_used=round(self.pipeline.slots_used(), 9) / wall,
            decode_seconds=decode_seconds,
            drained=sorted(drained),
            seconds=wall,
            seconds_generate=wall - idle,
            seconds_publish=self.publishing,
        )

    def log(self, kind, **values):
        """Write one line of log.jsonl, and a short form of it on the screen; on rank 0 only."""
        if self.fleet.rank:
            return
        row = {"kind": kind, "step": self.version, "gpu_hours": self.clock.gpu_hours, **self.totals, **values}
        append(self.out / "log.jsonl", row)
        if self.tracker and kind in ("step", "eval"):
            self.tracker.log(track.numbers(row), step=self.version)
        self.bar.update(self.version - self.bar.n)
        if shown := screen.line(row, self.fleet.hours):
            self.bar.write(shown, file=sys.stdout)

    def warn(self, name, **values):
        """Print one of WARNINGS; on rank 0 only."""
        if self.fleet.rank == 0:
            self.bar.write(f"WARNING: {WARNINGS[name].format(**values)}")


def mean(values):
    """The mean of the values; nan if there are none."""
    return statistics.fmean(values) if (values := list(values)) else float("nan")


def check_verifier(errors, failed, groups):
    """Raise Unverifiable if `failed` is more than UNVERIFIED of `groups`, or of 100 if there are fewer groups.

    errors: messages of which the most common is shown
    """
    if failed > UNVERIFIED * max(100, groups):
        raise Unverifiable(f"the verifier failed on {failed} groups: {most_common(errors)}")


def most_common(errors):
    [(error, _)] = Counter(errors).most_common(1) or [("see the `unverified` rows of the log", 0)]
    return error


# --- The loop --------------------------------------------------------------------------------------------------------


def train(run):
    """The algorithm of Sec. 2 to 4, for a Trainer `run`. Returns why the run ended."""
    args = run.args
    if run.version % args.eval_every == 0 and run.evaluated != run.version:
        run.validate()  # R_0, at C = 0; or an evaluation that was due when the resumed run ended
    run.clock.start()
    run.issue(waiting=run.curriculum.in_flight)
    for step in range(run.version, args.steps):
        # 1. Generate (Sec. 3.1): tokens may be up to k optimizer steps old; each keeps its log pi_gen.
        groups = run.pipeline.next_batch(step)
        if groups is None:
            break
        # 2. Filter and normalise (Sec. 3.2).
        kept, advantages = loss.compute_advantages(
            groups, zero_variance_filter=args.zero_variance_filter, normalisation=args.normalisation
        )
        plan = batches.make_plan(
            groups,
            kept,
            advantages,
            token_budget=args.token_budget,
            rank=run.fleet.rank,
            trainers=run.fleet.mailbox.trainers,
        )
        run.pipeline.drop(plan.dropped)
        # 3. Update (Sec. 3, Eq. 3 to 8).
        metrics = run.gradient_step(plan)
        # 4. Update the history (Sec. 3.2), log; publish the weights; issue the requests that the new version allows.
        run.learned(groups)
        rollouts = sum(groups, [])
        run.record(groups, rollouts, plan, metrics)  # before publish: if the run ends there, its checkpoint counts this
        run.watch(rollouts, metrics["gradient_norm"])
        run.publish()
        run.issue()
        # 5. Validate (Sec. 2.1).
        if run.version % args.eval_every == 0:
            run.validate()
        if run.version % args.checkpoint_every == 0:
            run.checkpoint()
    run.publish(final=True)
    if run.evaluated != run.version:
        run.validate()
    return "finished" if run.version >= args.steps else "curriculum exhausted"


def finish(run, reason, seconds):
    """On rank 0: log, draw and print the fit so far, then log why the run ended. `seconds`: since its start."""
    run.bar.close()
    with suppress(OSError):  # on a full disk, write what still fits
        values, lines = fit_cli.report(run.out / "log.jsonl", run.out / "scaling.png")
        if values:  # None with too few evaluations
            run.log("fit", **values)
        drawn = ", scaling.png" * bool(values)
        print(*lines, f"written to {run.out}: log.jsonl, completions.jsonl, checkpoints{drawn}", sep="\n")
    with suppress(OSError):
        if run.tracker:
            run.tracker.finish()
        run.log("end", reason=reason, final=run.fleet.lifeline.final, seconds=seconds)


# --- Processes -------------------------------------------------------------------------------------------------------


def generate(args, fleet):
    """Serve requests on a generator rank until rank 0 ends the run. Returns the reason, and whether it is a failure."""
    try:
        fleet.settle(args)
        with fleet.beating():
            generator = make_generator(args, fleet.device, fleet.dtype)
        with closing(generator), closing(make_scorer(args)) as scorer:
            reason = pipeline.serve(generator, fleet.mailbox, fleet.broadcast, scorer)
            fleet.lifeline.needed = set()  # rank 0 may end while vLLM still closes
            return reason, False
    except (OSError, RuntimeError) as error:
        return fleet.lifeline.blame(error), True


def lead(args, fleet, prompts, began):
    """Train on a trainer rank. Returns why it ended, and whether that is a failure.

    An orderly end (finished, Ctrl-C, Unverifiable) writes a checkpoint. After the loss of a process, on a full disk, or
    with weights that are not finite, the previous checkpoint remains. Either way rank 0 draws the fit so far.
    """
    run = None
    failed = False
    try:
        fleet.settle(args)
        with fleet.beating():
            run = Trainer(args, fleet, prompts)
        try:
            reason = train(run)
        except pipeline.Interrupted as end:
            reason = str(end)
            failed = isinstance(end, (Unverifiable, Diverged))
            fleet.mailbox.watch([], reason)  # raises if a process died: then the launcher, not Ctrl-C, interrupted us
        fleet.lifeline.needed = set(range(args.trainers))  # from here on generators may end
        run.pipeline.stop(reason, patience=2.0)
        run.checkpoint()
        fleet.lifeline.needed = set()  # from here on rank 0 may end too
        run.pipeline.leave()
    except Diverged as end:
        reason = str(end)
        failed = True
    except (OSError, RuntimeError) as error:
        reason = fleet.lifeline.blame(error)
        failed = True
    fleet.lifeline.final |= failed and not fleet.lifeline.lost  # the verifier, or what is not finite
    if run and fleet.rank == 0:
        finish(run, reason, time.perf_counter() - began)
    return reason, failed


def main(argv):
    began = time.perf_counter()
    try:
        args, prompts = start(argv)
    except SystemExit:  # what is refused now would be refused again
        end_launcher()
        raise
    disable_progress_bar()
    rank = int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    if "evaluate" in args:
        return evaluate_policy(args, questions(args, prompts))
    if "virtual" in args:
        return virtual_run.run(args, partial(lead, args, prompts=prompts, began=began))
    if world == 1:
        launch(__file__, argv)
    args.trainers = args.trainers or max(1, world // 5)
    fleet = Fleet(args)
    sys.stdout = Screen(sys.stdout)
    sys.stderr = Screen(sys.stderr)
    reason, failed = lead(args, fleet, prompts, began) if rank < args.trainers else generate(args, fleet)
    fleet.lifeline.leave()
    if failed:
        if fleet.lifeline.final:
            end_launcher()
        sys.exit(1 if fleet.lifeline.lost else fleet.farewell(reason))  # 1: the reason is printed already
    if reason != "finished":
        print(f"train.py: {reason} ({fleet.mailbox.name(rank)})")
    if dist.is_initialized():  # vLLM destroys the group when it closes
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
