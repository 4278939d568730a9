"""Sec. 2 to 4, the ScaleRL loop: generators stream rollouts, trainers take gradient steps, a scaling law is fitted.

    torchrun train.py                                               the embedded task, on a laptop CPU
    torchrun --nproc-per-node 8 train.py --model DIR --data FILE.jsonl        your model and data
    python train.py --evaluate CHECKPOINT --data FILE.jsonl --generations 16        mean@k and pass@k of a policy
    python train.py --plan 16xH100 --model DIR      no run: an estimate of memory, seconds and device-hours
    python train.py --virtual exact                    one process in virtual time, which can be repeated
    torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:PORT train.py …   more nodes

Ranks 0 … T-1 are trainers (FSDP2 among themselves), the rest generators. Started as one process, train.py relaunches
itself with one process per GPU, at least two. Ctrl-C ends a run in order, with a checkpoint, the log and the fit so
far. `torchrun train.py --resume --out FOLDER` continues it. docs/running.md explains the log.

Deviation: none known beyond those of the modules.

Page: docs/paper/setup.md
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # which PYTHONSAFEPATH leaves out

from plumbing.settings import read_settings

if __name__ == "__main__":  # --help and wrong flags answer before the imports below, which take seconds
    SETTINGS = read_settings(sys.argv[1:])

import math
import time
from contextlib import closing
from functools import partial
from typing import NamedTuple

import torch
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import batches
import data
import experts
import loss
import precision
import reward
from pipeline import RolloutQueue, broadcasts
from plumbing import build, checkpoints, evaluate, memory
from plumbing.devices import alone, torchrun
from plumbing.log import RunLog
from plumbing.processes import Processes, launch, layout_of, run_generator, run_trainer
from plumbing.virtual import InOneProcess

SAMPLES = 4  # prompts per evaluation whose completions are kept in completions.jsonl


# --- The algorithm ---------------------------------------------------------------------------------------------------


def train(trainer, args):
    """Sec. 2 to 4 on a trainer rank, for a Trainer. Returns why the run ended."""
    queue = trainer.queue
    queue.broadcast(trainer.broadcast_weights)  # the first weights too, so that startup_check tests how they travel
    if trainer.version % args.eval_every == 0 and trainer.evaluated_version != trainer.version:
        trainer.evaluate()  # R_0, at C = 0; or an evaluation that was due when the resumed run ended
    trainer.log.clock.start()
    queue.admit(trainer.curriculum.in_flight[: queue.room])  # in work at the checkpoint of a resumed run
    queue.admit(trainer.curriculum.next(queue.room))
    for step in range(trainer.version, args.steps):
        # 1. Generate (Sec. 3.1): tokens may be up to k optimizer steps old; each keeps its log pi_gen.
        groups = queue.next_batch(step)
        if groups is None:
            break
        with trainer.log.timed("train"):
            # 2. Filter and normalise (Sec. 3.2); divide the work among trainers and micro-batches.
            share = trainer.divide(groups)
            # 3. Update (Sec. 3, Eq. 3 to 8).
            update = trainer.update(share)
        # 4. Record pass rates for No-Positive-Resampling (Sec. 3.2); log, before the weights go, what led to them;
        # publish them if --off-policy says so now; admit the requests that the new version allows.
        for group in groups:
            trainer.curriculum.update_history(group[0].prompt, reward.group_pass_rate(group))
        trainer.log_step(groups, share, update)
        with trainer.log.timed("publish"):
            queue.announce(trainer.version, trainer.broadcast_weights)
        queue.admit(trainer.curriculum.next(queue.room))
        # 5. Validate (Sec. 2.1).
        if trainer.version % args.eval_every == 0:
            trainer.evaluate()
        if trainer.version % args.checkpoint_every == 0 or trainer.late_for_a_checkpoint():
            trainer.checkpoint()
    queue.announce(trainer.version, trainer.broadcast_weights, final=True)
    if trainer.evaluated_version != trainer.version:
        trainer.evaluate()
    return "finished" if trainer.version >= args.steps else "curriculum exhausted"


def generate(args, processes, queue):
    """Sec. 2 and 3.1 on a generator rank, for a RequestQueue, until rank 0 ends the run.

    Yields (generator, scorer, the rollouts that this step has finished) after each decode step: there virtual time
    passes, and an idle generator waits.
    """
    with processes.heartbeat.working():
        generator = build.make_generator(args, processes.device, processes.dtype)
    generator.clock = processes.clock
    build.await_weights(generator)
    with closing(generator), closing(build.make_scorer(args)) as scorer:
        while (state := queue.state(generator.busy)).stop is None:
            done = []
            if state.version > generator.version:
                # Unfinished rollouts go on under the new weights, with the keys and values they have.
                queue.join(state.version)
                processes.receive(generator.named_weights())
                generator.update_weights(state.version)
            else:
                for request in queue.claim(generator):
                    generator.add(request)
                done = generator.step()
                for rollout in done:
                    scorer.submit(rollout, queue.prompt(rollout))
            yield generator, scorer, done
            for score in scorer.finished():
                if score.completion.evaluation and state.version == 0:
                    evaluate.note(queue.store, score, args)
                queue.put(score)
            queue.report(generator.work)
        processes.heartbeat.needed = set()  # rank 0 may end while vLLM still closes


def learning_rate(version, *, lr, warmup):
    """A.3: linear warm-up, then constant. version: optimizer steps done, so that the first step has lr / warmup."""
    return lr * min(1.0, (version + 1) / warmup)


class Update(NamedTuple):
    """What an optimizer step was: columns of the log."""

    means: dict  # of batches.Statistics, per token
    gradient_norm: float  # L2, over all ranks
    lr: float
    skipped: bool  # the gradient was not finite


class Trainer:
    """A trainer rank: policy, optimizer, curriculum, its end of the queue, the log.

    Every trainer rank makes the same calls in the same order and keeps the same curriculum; only rank 0 writes the log
    and talks to the generators.
    """

    def __init__(self, args, processes, prompts):
        self.args = args
        self.processes = processes
        self.validation = prompts.validation
        self.benchmarks = {source for source, weight in enumerate(prompts.weights) if not weight}  # never trained on
        folder = build.weights_folder(args)
        state = checkpoints.counters(folder) if args.checkpoint else {}
        self.version = state.get("version", 0)  # optimizer steps done
        self.evaluated_version = state.get("evaluated")  # version of the last evaluation
        self.last_evaluation = {}  # on rank 0: version and pass_rate of the last one since the start
        self.best = state.get("best", {})  # the same of the best one that has a checkpoint
        self.saved_version = state.get("version")  # version of the last checkpoint
        self.saved_at = time.monotonic()
        self.first_weights = True  # those of the generators that sampled the batch, until the first update
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        given = {name: getattr(args, name) for name in ("activation_checkpointing", "temperature", "fp32_head")}
        self.policy = checkpoints.load_policy(folder, processes, resume=bool(state), dtype=processes.dtype, **given)
        parameters = list(self.policy.parameters())
        fused = parameters[0].is_cuda or None  # else a step on a GPU needs 4 more bytes a parameter
        self.optimizer = torch.optim.AdamW(parameters, eps=1e-15, fused=fused)  # A.3; lr and decay before each step
        self.curriculum = data.Curriculum(
            prompts.train, seed=args.seed, threshold=args.no_positive_resampling, weights=prompts.weights
        )
        if state:
            checkpoints.load_state(folder, self.policy, self.optimizer, processes.writers, stepped=state["stepped"])
            if args.offload_optimizer:
                precision.move_moments(self.optimizer, "cpu")
            try:
                self.curriculum.load_state_dict(state["curriculum"])
            except ValueError as error:
                raise OSError(f"--resume from {folder}: {error}") from error
        self.queue = RolloutQueue(
            processes.store,
            processes.trainer_ranks,
            processes.generator_ranks,
            off_policy=args.off_policy,
            k=args.k,
            per_step=args.prompts,
            generations=args.generations,
            steps=args.steps,
            start=self.version,
            drain=processes.drain,
        )
        self.policy.chunk = memory.head_chunk(args, self.policy.model.config)
        self.replay = experts.Replay(self.policy.model)
        active = experts.active_parameters(self.policy.model)
        self.log = RunLog(args, processes, active, state, self.queue.generator_work, evaluate.draw)
        if not processes.rank:
            self.log.observers.append(evaluate.Figure(self.log.out))
        if not (processes.rank or args.virtual):
            self.log.observers.append(evaluate.Projection(args, self.log.screen.write))
        self.decoder = evaluate.trainer_decodes(args, processes, self.policy, generate)
        self.log("config", step=self.version, flags=vars(args), **build.provenance(prompts, args, processes.world))

    # --- One optimizer step

    def divide(self, groups):
        """The batches.Share of this rank in a batch."""
        args = self.args
        return batches.divide(
            groups,
            zero_variance_filter=args.zero_variance_filter,
            normalisation=args.normalisation,
            max_new_tokens=args.max_new_tokens,
            token_budget=args.token_budget,
            rank=self.processes.rank,
            trainers=len(self.processes.trainer_ranks),
            device=self.processes.device,
        )

    def update(self, share):
        """One optimizer step on this rank's batches.Share; returns an Update, the same on all ranks.

        Denominators are global: the numbers of micro-batches and ranks change only the speed. The weights are not
        updated if no token carries loss (all groups of zero variance) or the gradient is not finite; the version
        advances all the same.
        """
        args = self.args
        chosen = loss.LOSSES[args.loss]
        device = self.processes.device
        statistics = batches.Statistics(share.trains, device)
        self.queue.drop(share.dropped)
        for items, tokens in zip(share.micro_batches, share.padded):
            self.processes.stop_together(tokens)
            batch = batches.collate(items, self.queue.tokens, device, share.newest)
            self.replay(batch.experts)  # of a mixture of experts; a deviation, see experts.py
            with torch.set_grad_enabled(share.trains):
                logprobs, entropy = self.policy(batch.input_ids, batch.mask)
            if self.first_weights and items:
                precision.startup_check(logprobs, batch.gen_logprobs, batch.mask, self.processes.dtype)
            inputs = logprobs, batch.gen_logprobs, batch.advantages, batch.mask
            if share.trains:
                per_token = chosen.objective(*inputs, **args.clips)
                objective = loss.aggregate(
                    per_token, batch.mask, batch.prompt_index, args.aggregation, share.denominators
                )
                (-objective).backward()
            statistics.add(logprobs, entropy, batch, chosen.clipped(*inputs, **args.clips))
        means = statistics.means(self.processes.total)
        norm = self.gradient_norm()
        skipped = not math.isfinite(norm)  # the same on all ranks, since the norm is
        lr = learning_rate(self.version, lr=args.lr, warmup=args.warmup)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = lr
            parameters["weight_decay"] = args.weight_decay  # a resumed run may have been given another
        if share.trains and not skipped:
            if args.offload_optimizer:
                precision.move_moments(self.optimizer, device)
            self.optimizer.step()
            if args.offload_optimizer:
                precision.move_moments(self.optimizer, "cpu")
            self.first_weights = False
        self.optimizer.zero_grad()
        self.version += 1
        return Update(means, norm, lr, skipped)

    def gradient_norm(self):
        """L2 norm of the gradient over all ranks. It is only logged: the gradient is never clipped."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.policy.parameters() if p.grad is not None])
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def broadcast_weights(self):
        """Send the weights to the generators, in their dtype. Collective; no rank ever holds a whole model on a GPU."""
        parameters = dict(self.policy.model.named_parameters())
        tensors = (tensor for _, tensor in precision.full_tensors(self.policy))
        self.processes.broadcast(layout_of(parameters, self.policy.dtype), tensors)

    # --- What is kept of it

    def log_step(self, groups, share, update):
        """Log an optimizer step, before its weights are published: if the run ends there, its checkpoint counts it."""
        self.log(
            "step",
            step=self.version,
            kept=int(share.kept.sum()),
            retired=self.curriculum.retired,
            epoch=self.curriculum.epoch,
            too_long=len(self.curriculum.too_long),
            micro_batches=len(share.micro_batches),
            padded=sum(share.padded),
            tokens_trained=share.tokens,
            gradient_norm=update.gradient_norm,
            lr=update.lr,
            skipped=update.skipped,
            **update.means,
            **batches.batch_metrics(groups, self.version - 1),
            **evaluate.grading_metrics(groups, self.curriculum.prompts),
        )

    def evaluate(self):
        """Log mean@k on the validation set. Meanwhile the clock stands still and nothing is sent or admitted."""
        k = self.args.eval_generations
        with self.log.clock.paused():
            with self.log.validation(len(self.validation) * k, self.decoder) as waited:
                first = self.version == 0
                look = evaluate.FirstLook(self.queue.store, self.args, self.log, waited) if first else None
                groups, samples = self.queue.evaluate(self.validation, k, SAMPLES, look or waited)
            self.evaluated_version = self.version
            if not groups:  # only rank 0 has them
                return
            if look:
                look.end()
            row = evaluate.metrics(groups, self.validation, self.benchmarks)
            self.log("eval", step=self.version, **row)
            self.last_evaluation = {"version": self.version, "pass_rate": row["pass_rate"]}
        evaluate.keep_samples(self.args.out, self.version, self.validation, groups, samples)

    def late_for_a_checkpoint(self):
        """Whether the last one was written more than checkpoints.LATEST seconds ago, by the clock of rank 0.

        Never with a --checkpoint-every of one's own, in virtual time, or within a phase of PPO-off-policy.
        """
        args = self.args
        if args.virtual or "checkpoint_every" in args.asked or not broadcasts(self.version, **self.queue.setup):
            return False
        late = time.monotonic() - self.saved_at > checkpoints.LATEST
        return self.processes.any_trainer(late and not self.processes.rank)

    def checkpoint(self):
        """Write a checkpoint of this version if there is none. Raises FloatingPointError if a weight is not finite."""
        if self.saved_version == self.version:
            return
        if self.processes.any_trainer(not checkpoints.finite(self.policy)):
            raise FloatingPointError(f"the weights of step {self.version} are not finite")
        # An evaluation in which the verifier failed is made again.
        evaluated = None if self.processes.heartbeat.failed else self.evaluated_version
        if evaluated == self.version == self.last_evaluation.get("version"):
            self.best = max(self.best, self.last_evaluation, key=lambda measured: measured.get("pass_rate", -1.0))
        counters = {"version": self.version, "evaluated": evaluated, "best": self.best}
        counters |= {"stepped": bool(self.optimizer.state), **self.log.state()}
        counters["curriculum"] = self.curriculum.state_dict()
        with self.processes.heartbeat.working():
            named = precision.full_tensors(self.policy)  # collective; only rank 0 keeps them
            weights = {name: tensor.cpu() for name, tensor in named if self.processes.rank == 0}
            state = self.policy, self.optimizer, self.tokenizer, weights, counters
            checkpoints.save(self.args.out, *state, self.processes)
        self.saved_version = self.version
        self.saved_at = time.monotonic()


def main(args):
    """Returns the exit code of this process."""
    disable_progress_bar()
    if args.plan:
        return build.show_plan(args)
    args, prompts = build.load_prompts(args)
    if not alone(args) and torchrun("WORLD_SIZE") == 1:
        launch(__file__, sys.argv[1:])
    if args.evaluate:
        return evaluate.evaluate_policy(args, build.questions(args, prompts))
    processes = InOneProcess(args, generate) if args.virtual else Processes(args)
    with closing(processes):
        if processes.rank in processes.trainer_ranks:
            return processes.end(
                run_trainer(args, processes, partial(Trainer, processes=processes, prompts=prompts), train)
            )
        return processes.end(run_generator(args, processes, generate))


if __name__ == "__main__":
    sys.exit(main(SETTINGS))
