"""Sec. 2 to 4, the ScaleRL loop: generators stream completions, trainers take gradient steps, a scaling law is fitted.

    torchrun train.py --loss cispo                                  the embedded task, on a laptop CPU
    torchrun --nproc-per-node 8 train.py --loss cispo --model DIR --data FILE.jsonl        your model and data
    python train.py --evaluate CHECKPOINT --data FILE.jsonl --generations 16        mean@k and pass@k of a policy
    torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:PORT train.py …   several nodes

Ranks 0 … T-1 are trainers (FSDP2 among themselves), the rest generators. Started as one process, it starts itself
again with one process per GPU, at least two. Rank 0 hosts the mailbox (pipeline.py), keeps the curriculum, the clock
and the log. Ctrl-C ends a run in order: checkpoint, log, fit so far; `--resume --out FOLDER` goes on.

Metric glossary (`runs/NAME/log.jsonl`, one JSON object per line, told apart by `kind`; null is not a number)
  all    step (optimizer steps done), gpu_hours (devices x seconds on the clock / 3600), tokens (generated),
         tokens_trained (prompts included), flops (2 N per generated, 6 N per trained token; N parameters)
  step   prompts (their indices), reward (mean, +-1, shaped by a length penalty if there is one), pass_rate (of
         correctness), kept (prompts with gradient), retired (prompts at >= 0.9), epoch, entropy (nats), rho_mean,
         rho_max, clipped (share of trained tokens), log_rho (mean |log rho|, nats), gradient_norm, lr, staleness ({age
         in optimizer steps: tokens}), truncated, interrupted (shares of completions), timed_out (answers wrong because
         checking took too long), unverified (completions whose verifier failed), idle_generators, idle_trainers (shares
         of wall time since the last step, outside evaluation), seconds and of these _generate, _train, _publish (of the
         version before)
  eval   pass_rate (mean@k on the validation set), stderr (sampling error), entropy_sampled (nats, -mean log pi_gen of
         the sampled tokens: an estimate of the entropy, A.12), completions, unverified, timed_out, tasks
  unverified  a prompt whose answers got no verdict, once: prompt, where (file and line), error. A reference that cannot
         be read is no failure of the verifier, which ends the run when it is frequent
  fit    A, B, C_mid, R_0, bands, forecasts (fit.py)
  end    reason, seconds (wall)
  config every flag in force, protections of the jail, commit, versions, prompts (how many, and how many left out)
A run resumed after a crash logs the steps behind its checkpoint a second time; the last line of a step counts.

Deviation: none known beyond those of the modules.
Open in the paper: whether validation counts in C. Ours does not, though completions of training that are half finished
  go on during it.
"""

import os
import shutil
import statistics
import sys
import time
from collections import Counter, deque
from contextlib import closing
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict as sharded
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import data
import loss
import pipeline
import precision
import reward
from plumbing import batches, fit_cli
from plumbing.evaluation import answered, append, evaluate_policy
from plumbing.fleet import Abandoned, Clock, Fleet, launch
from plumbing.flags import checkpoints, make_generator, make_scorer, provenance, questions, start, weights_folder

SAMPLES = 4  # prompts per evaluation whose completions are kept in completions.jsonl
TRUNCATION = 0.1  # A.15: above 10 to 15 % of truncated completions runs destabilise
STANDING = 10  # batches without gradient before a warning
UNVERIFIED = 0.01  # share of groups whose verifier failed, of at least 100, above which a run stops
WHOLE = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=False)
WARNINGS = {
    "no mark": "WARNING: none of the {completions} completions of the validation holds {mark!r}, behind which the answer "
               "begins. So none has an answer, every reward is -1, and nothing will be learnt. A model that does not "
               "think between marks: --think-end none takes its whole completion as the answer; one with another mark: "
               "--think-end TEXT. One that thinks for longer: --length-control interrupt, or a larger --max-new-tokens",
    "no gradient": "WARNING: {batches} batches in a row had no gradient: in every group all completions were right or all "
                   "were wrong (pass rate of the last batch {pass_rate:.3f}), and the policy stands still. All wrong: "
                   "easier --data, more --generations, or answers that are not found (completions.jsonl shows what the "
                   "model writes; --think-end). All right: harder --data"}
LINES = {  # what of a log row the screen shows
    "config": "{prompts[train]} training prompts, {prompts[validation]} held out; left out: "
              "{prompts[too_long]} too long, {prompts[repeated]} repeated, {prompts[unusable]} unusable",
    "step": "step {step:4d}  pass rate {pass_rate:.3f}  kept {kept}  entropy {entropy:.3f}  rho {rho_mean:.3f} "
            "(max {rho_max:.2f})  idle: generators {idle_generators:.0%}, trainers {idle_trainers:.0%}  "
            "{gpu_hours:.4f} gpu_hours",
    "unverified": "NO VERDICT {where}: {error}",
    "eval": "step {step:4d}  VALIDATION pass rate {pass_rate:.3f} +- {stderr:.3f}  ({completions} completions)  "
            "{gpu_hours:.4f} gpu_hours"}


class Unverifiable(pipeline.Interrupted):
    """Too many verifiers fail for the rewards to mean anything."""


class Trainer:
    """A trainer rank: policy, optimizer, curriculum, clock and log.

    Every trainer rank makes the same calls in the same order and keeps the same curriculum; only rank 0 writes files
    and speaks to the generators (pipeline.py).
    """

    def __init__(self, args, fleet, prompts):
        self.args, self.fleet, self.validation, self.out = args, fleet, prompts.validation, Path(args.out)
        folder = weights_folder(args)
        state = torch.load(Path(folder) / "trainer.pt", weights_only=True, mmap=True) if args.resume else {}
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        if args.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()  # it is skipped otherwise; dropout, the other thing this switches on, is refused
        self.parameters = sum(p.numel() for p in model.parameters())
        self.policy = precision.shard(precision.PolicyModel(
            model, dtype=fleet.dtype, temperature=args.temperature, fp32_head=args.fp32_head), fleet.mesh)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), eps=1e-15)  # the rest is set before each step
        self.curriculum = data.Curriculum(
            prompts.train, seed=args.seed, threshold=args.no_positive_resampling, weights=prompts.weights)
        if state:
            if state["optimizer"]:
                sharded.set_optimizer_state_dict(self.policy, self.optimizer, state["optimizer"], options=WHOLE)
            self.curriculum.load_state_dict(state["curriculum"])
        self.version, self.evaluated, self.checked = state.get("version", 0), state.get("evaluated"), False
        self.truncated = deque(maxlen=10)  # shares of the last steps
        self.standing = 0  # batches without gradient, in a row
        self.unverified, self.named = state.get("unverified", 0), set()  # groups; prompts that are in the log
        self.totals = state.get("totals", {"tokens": 0, "tokens_trained": 0, "flops": 0.0})
        self.clock = Clock(dist.get_world_size(), state.get("gpu_hours", 0.0))
        self.pipeline = pipeline.Pipeline(
            fleet.mailbox, off_policy=args.off_policy, k=args.k, prompts=args.prompts, generations=args.generations,
            steps=args.steps, start=self.version)
        self.bar = tqdm(total=args.steps, initial=self.version, unit="step", disable=fleet.rank > 0)
        self.idle, self.logged, self.publishing = 0.0, self.clock.gpu_hours, 0.0  # as of the last line
        self.out.mkdir(parents=True, exist_ok=True)
        self.log("config", flags=vars(args), world=dist.get_world_size(), **provenance(prompts))

    def issue(self, waiting=()):
        """Tickets for the next prompts of the curriculum, after those that a resumed run had `waiting`."""
        waiting = waiting[: self.pipeline.room]  # not all if it resumes with fewer --steps
        self.pipeline.issue([*waiting, *self.curriculum.next(self.pipeline.room - len(waiting))])

    def gradient_step(self, plan):
        """One optimizer step on this rank's share; denominators are global: micro-batches and ranks only change speed.

        Returns metrics over all ranks. Without any gradient (all groups of zero variance) the weights stand still.
        """
        args, sums, rho_max, began = self.args, torch.zeros(len(batches.STATISTICS)).double(), 0.0, time.perf_counter()
        objective = loss.LOSSES[args.loss][0]
        for items in plan.micro_batches:
            self.fleet.stop_together()
            completions = self.pipeline.take([item.header for item in items])
            input_ids, mask, gen_logprobs, advantages, prompt_index = batches.collate(
                items, completions, self.fleet.device)
            logprobs, entropy = self.policy(input_ids, mask)
            if items and not self.checked:  # the first batch was sampled with the weights that the trainer still has
                precision.startup_check(logprobs, gen_logprobs, mask, self.fleet.dtype)
            inputs = logprobs, gen_logprobs, advantages, mask
            per_token = objective(*inputs, **args.clips)
            (-loss.aggregate(per_token, mask, prompt_index, args.average, plan.denominators)).backward()
            clipped = loss.clipped(objective, *inputs, **args.clips)
            more, largest = batches.statistics(logprobs, gen_logprobs, entropy, clipped, mask)
            sums, rho_max = sums + more, max(rho_max, largest)
        metrics = self.fleet.total(sums, rho_max) | {"gradient_norm": self.gradient_norm(), "lr": self.warm_up()}
        self.fleet.stepping = True
        if plan.denominators.tokens:
            self.optimizer.step()
            self.checked = True  # on all ranks: from here on the trainers are ahead of the tokens
        self.version += 1
        self.optimizer.zero_grad()
        return metrics | {"seconds_train": time.perf_counter() - began}

    def warm_up(self):
        """Learning rate of the coming step: linear over --warmup steps, then constant (A.3)."""
        lr = self.args.lr * min(1.0, (self.version + 1) / self.args.warmup)
        for group in self.optimizer.param_groups:
            group |= {"lr": lr, "weight_decay": self.args.weight_decay}  # a resumed run may have been given another
        return lr

    def gradient_norm(self):
        """L2 norm over all ranks; logged, never clipped."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.policy.parameters() if p.grad is not None])
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def weights(self, dtype=None, device=None):
        """{name: full tensor} on rank 0; the others take part. By default in the generators' dtype, where it is."""
        named = precision.full_tensors(self.policy, dtype)
        return {name: tensor.to(device or tensor.device) for name, tensor in named if self.fleet.rank == 0}

    def publish(self, final=False):
        """Weights to the generators, if k and the off-policy setup say so, or for the last evaluation."""
        began = time.perf_counter()
        self.pipeline.publish(self.version, self.weights, self.fleet.send, final=final)
        self.publishing = time.perf_counter() - began

    def learned(self, groups):
        """No-Positive-Resampling's history: the share of correct completions per prompt, None if a verifier failed."""
        for group in groups:
            known = all(header.correct is not None for header in group)
            self.curriculum.came_back(group[0].prompt, sum(h.correct for h in group) / len(group) if known else None)
            if not known:
                [error, *_] = [header.error for header in group if header.correct is None]
                self.unverified += not error.startswith(reward.UNREADABLE)
                self.name_unverified(self.curriculum.prompts[group[0].prompt], error)

    def name_unverified(self, prompt, error):
        """A line of the log for a prompt whose answers get no verdict, when that is first seen."""
        if (prompt.text, error) not in self.named:
            self.named.add((prompt.text, error))
            self.log("unverified", prompt=prompt.text, where=prompt.where, error=error)

    def watch(self, headers, gradient_norm):
        """What ruins a run slowly. Warns of many truncated completions, and of batches without any gradient; raises
        Unverifiable if verifiers fail often.
        """
        self.standing = 0 if gradient_norm else self.standing + 1
        if self.fleet.rank == 0 and self.standing == STANDING:
            self.bar.write(WARNINGS["no gradient"].format(
                batches=STANDING, pass_rate=mean(bool(header.correct) for header in headers)))
            self.standing = 0
        self.truncated.append(sum(header.truncated for header in headers) / len(headers))
        if self.fleet.rank == 0 and sum(self.truncated) > TRUNCATION * self.truncated.maxlen:
            self.bar.write(f"WARNING: {sum(self.truncated) / len(self.truncated):.0%} of the completions of the last "
                           f"{len(self.truncated)} steps were truncated and carry no loss. Runs destabilise above "
                           f"{TRUNCATION:.0%} (A.15): raise --max-new-tokens, or interrupt earlier (--interrupt-at)")
            self.truncated.clear()
        errors = [header.error for header in headers if header.correct is None]
        check_verifier(errors, self.unverified, self.version * self.args.prompts)

    def validate(self):
        """Mean@k on the validation set; clock, weights and training tickets stand still meanwhile."""
        with self.clock.paused():
            groups, samples, failed = self.pipeline.evaluate(self.validation, self.args.eval_generations, SAMPLES)
            failures = [error for error in failed.values() if not error.startswith(reward.UNREADABLE)]
            check_verifier(failures, len(failures), len(self.validation))
            self.evaluated = self.version
            if not groups:  # another rank than 0
                return
            for index, error in failed.items():
                self.name_unverified(self.validation[index], error)
            headers = sum(groups, [])
            if self.version == 0 and not any(header.marked for header in headers):
                self.bar.write(WARNINGS["no mark"].format(completions=len(headers), mark=self.args.think_end))
            self.log("eval", **reward.pass_rates(groups, self.validation), timed_out=sum(h.timed_out for h in headers))
            for header, completion in zip(headers, samples):
                append(self.out / "completions.jsonl", {
                    "step": self.version, **answered(self.validation[header.prompt], completion, header.correct)})

    def checkpoint(self):
        """A Hugging Face folder with trainer.pt beside the weights; the two latest are kept. Renamed when complete.

        While `fleet.stepping`, so that no signal's patience ends in the middle of it.
        """
        weights = self.weights(torch.float32, "cpu")
        # Before the first optimizer step there is no state, and asking for it would count one.
        optimizer = self.optimizer.state and sharded.get_optimizer_state_dict(
            self.policy, self.optimizer, options=WHOLE)
        final, folder = self.out / f"checkpoint-{self.version}", self.out / "checkpoint.tmp"
        if self.fleet.rank or final.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        self.policy.model.save_pretrained(folder, state_dict=weights)
        self.tokenizer.save_pretrained(folder)
        torch.save({"version": self.version, "evaluated": self.evaluated, "optimizer": dict(optimizer),
                    "curriculum": self.curriculum.state_dict(), "totals": self.totals,
                    "unverified": self.unverified, "gpu_hours": self.clock.gpu_hours}, folder / "trainer.pt")
        folder.rename(final)
        for old in checkpoints(self.out)[:-2]:
            shutil.rmtree(old, ignore_errors=True)  # over NFS, what a resumed run has mapped cannot go yet

    def record(self, groups, headers, plan, metrics):
        """The `step` line."""
        known = [header for header in headers if header.correct is not None]
        generated = sum(h.tokens for h in headers)
        flops = self.parameters * (2.0 * generated + 6.0 * plan.tokens)
        for name, more in (("tokens", generated), ("tokens_trained", plan.tokens), ("flops", flops)):
            self.totals[name] += more
        sampled = sum((Counter(h.versions) for h in headers), Counter())
        before, self.idle = self.idle, self.pipeline.idle() / len(self.fleet.mailbox.generators)
        idle = self.idle - before
        wall = (self.clock.gpu_hours - self.logged) * 3600 / self.clock.devices
        self.logged = self.clock.gpu_hours
        self.log(
            "step", prompts=[group[0].prompt for group in groups],
            reward=mean(h.reward for h in known), pass_rate=mean(h.correct for h in known),
            kept=plan.kept, retired=self.curriculum.retired, epoch=self.curriculum.epoch, **metrics,
            staleness={self.version - 1 - version: n for version, n in sorted(sampled.items(), reverse=True)},
            truncated=mean(h.truncated for h in headers), interrupted=mean(h.interrupted for h in headers),
            timed_out=sum(h.timed_out for h in headers), unverified=len(headers) - len(known),
            idle_generators=min(1.0, idle / wall), idle_trainers=1 - metrics["seconds_train"] / wall,
            seconds=wall, seconds_generate=wall - idle, seconds_publish=self.publishing)
        self.fleet.stepping = False

    def log(self, kind, **values):
        """One line of log.jsonl, on rank 0, and in short on the screen."""
        if self.fleet.rank:
            return
        row = {"kind": kind, "step": self.version, "gpu_hours": self.clock.gpu_hours, **self.totals, **values}
        append(self.out / "log.jsonl", row)
        self.bar.update(self.version - self.bar.n)
        if kind in LINES:
            self.bar.write(LINES[kind].format(**row), file=sys.stdout)


def mean(values):
    """nan without any."""
    return statistics.fmean(values) if (values := list(values)) else float("nan")


def check_verifier(errors, failed, groups):
    """Raises Unverifiable if the verifier failed on more than 1 % of so many groups, counted as 100 at least."""
    if failed > UNVERIFIED * max(100, groups):
        [(error, _)] = Counter(errors).most_common(1) or [("as before", 0)]
        raise Unverifiable(f"the verifier failed on {failed} groups: {error}")


# --- The loop --------------------------------------------------------------------------------------------------------


def train(run):
    """Sec. 2 to 4 in order; returns why the run ended."""
    args = run.args
    if run.version % args.eval_every == 0 and run.evaluated != run.version:
        run.validate()  # R_0, at C = 0; or one that was interrupted
    run.clock.start()
    run.issue(waiting=run.curriculum.in_flight)
    for step in range(run.version, args.steps):
        # 1. Generate (Sec. 3.1): tokens may be up to k optimizer steps old; each keeps its log pi_gen.
        groups = run.pipeline.next_batch(step)
        if groups is None:
            break
        # 2. Filter and normalise (Sec. 3.2).
        kept, advantages = loss.weigh(
            groups, zero_variance_filter=args.zero_variance_filter, normalisation=args.normalisation)
        plan = batches.make_plan(groups, kept, advantages, token_budget=args.token_budget, rank=run.fleet.rank,
                              trainers=args.trainers)
        run.pipeline.drop(plan.dropped)
        # 3. Update (Sec. 3, Eq. 3 to 8).
        metrics = run.gradient_step(plan)
        # 4. History (Sec. 3.2), clock and log; publish the weights; the tickets that the new version allows.
        run.learned(groups)
        headers = sum(groups, [])
        run.record(groups, headers, plan, metrics)  # before the waiting that may end the run: it counts in checkpoints
        run.watch(headers, metrics["gradient_norm"])
        run.publish()
        run.issue()
        # 5. Validate (Sec. 2.1).
        if run.version % args.eval_every == 0:
            run.validate()
            run.fleet.stepping = True
            run.checkpoint()
            run.fleet.stepping = False
    run.publish(final=True)
    if run.evaluated != run.version:
        run.validate()
    return "finished" if run.version >= args.steps else "curriculum exhausted"


def finish(run, reason, seconds, whole_state=True):
    """The run's last words: generators leave, the state is kept, the fit is drawn and printed."""
    run.fleet.stepping = True  # from here on a signal abandons nothing: what it asks for is under way
    run.pipeline.stop(reason, patience=2.0)
    if whole_state:
        run.checkpoint()
    if run.fleet.rank == 0:
        values, lines = fit_cli.report(run.out / "log.jsonl", run.out / "scaling.png")
        if values:  # None with too few evaluations
            run.log("fit", **values)
        run.log("end", reason=reason, seconds=seconds)
        run.bar.close()
        print(*lines, sep="\n")


# --- Processes -------------------------------------------------------------------------------------------------------


def generate(args, fleet):
    """A generator rank: serves tickets until rank 0 ends the run (pipeline.serve)."""
    with closing(make_generator(args, fleet.device, fleet.dtype)) as generator, closing(make_scorer(args)) as scorer:
        pipeline.serve(generator, fleet.mailbox, fleet.receive, scorer)


def lead(args, fleet, prompts, began):
    """A trainer rank. Whatever ends the run, it leaves a checkpoint, a readable log and the fit so far.

    Except where a peer dies in a collective of NCCL, or on another node: then the last periodic checkpoint stands.
    Returns the reason if that is a failure.
    """
    run, failure, whole_state = Trainer(args, fleet, prompts), None, True
    try:
        reason = train(run)
    except (pipeline.Interrupted, RuntimeError) as end:  # Stalled, or a collective without its peer
        asked = not isinstance(end, RuntimeError)
        gone = fleet.missing(patience=0.0 if asked else 1.0)
        if not gone and not asked and not isinstance(end, pipeline.Stalled):
            raise
        reason = f"{', '.join(map(fleet.mailbox.name, gone))} ended" if gone else str(end)  # the launcher stops everybody when one process dies
        failure = reason if gone or not asked or isinstance(end, Unverifiable) else None
        # Several trainers gather a checkpoint only if all are where they can agree to: waiting, or asked to stop.
        together = (asked or fleet.rank == 0) and not any(rank < args.trainers for rank in gone)
        together = together and not isinstance(end, Abandoned)
        whole_state = args.trainers == 1 or together
    finish(run, reason, time.perf_counter() - began, whole_state)
    return failure and f"{failure}; {args.out} holds the log and a checkpoint: go on with --resume"


def main(argv):
    began, (args, prompts) = time.perf_counter(), start(argv)
    disable_progress_bar()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if "evaluate" in args:
        return evaluate_policy(args, questions(args, prompts))
    if world == 1:
        launch(__file__, argv)
    args.trainers = args.trainers or max(1, world // 5)
    fleet = Fleet(args)
    try:
        failure = lead(args, fleet, prompts, began) if rank < args.trainers else generate(args, fleet)
    except (ConnectionError, pipeline.Stalled, Abandoned) as end:  # a generator's; a trainer's are handled in `lead`
        failure = end
    if failure:
        sys.exit(f"train.py: error: {failure}")
    if dist.is_initialized():  # vLLM's end takes it along
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
