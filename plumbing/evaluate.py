"""Evaluations (Sec. 2.1): train.py --evaluate, without training; what a trainer does while it waits for one; the
first; when a run will end.

Test: pytest tests/test_train.py
"""

import copy
import math
import sys
import time
from collections import deque
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import mean

import torch
import torch.distributed as dist

import batches
import precision
import reward
from pipeline import Fault, Request, RequestQueue
from plumbing.build import make_generator, make_scorer
from plumbing.devices import device, threads, torchrun
from plumbing.log import append, progress
from plumbing.store import POLL, Pace, paces
from verify.graders import NO_FAILURE, OWN, TASKS

TURNS = 0.2  # seconds that the first trainer decodes between two looks at what the generators have finished
ENOUGH = 100  # completions of a first evaluation after which it is known whether a run can learn anything
FAILED = 0.1  # a run ends if --reward fails on a larger share of the first completions
KINDS = ("right", "wrong", "truncated")
SHOWN = 3  # completions
LENGTH = 200  # characters of a text that is shown
NO_MARK = (
    "none of the first {total} completions is right, and none has written {mark!r}, behind which the answer begins, "
    "itself: every reward is -1. If the model writes no mark: --think-end none; if another one: --think-end TEXT; if "
    "it thinks for longer: a larger --max-new-tokens or --interrupt-at"
)
ALL_TRUNCATED = (
    "all of the first {total} completions are truncated: every reward is -1. Give a larger --max-new-tokens; if they "
    "are complete and go on behind their end, the model's end token is not the one of its generation_config.json"
)


class LocalQueue(RequestQueue):
    """The requests of a generator in a trainer's process, which takes the weights from the trainer itself."""

    def join(self, version):
        pass


class TrainerDecodes:
    """On CPUs a run's only trainer decodes too while it waits for an evaluation, since its cores would be idle.

    generate  train.generate, whose loop it runs with a generator of its own. A completion depends on
              its request alone, not on who makes it. The generator is made here, at the start: later the checkpoint
              that it is read from may have been deleted
    """

    def __init__(self, args, processes, policy, generate):
        def copied(named):
            for name, tensor in precision.full_tensors(policy):
                named[name].detach().copy_(tensor)

        local = copy.copy(processes)
        local.receive = copied
        self.turns = generate(args, local, LocalQueue(processes.store, *paces()))
        next(self.turns)  # makes the generator, which gets the trainer's weights

    def decode(self):
        """Decode for a moment; returns at once if all requests of the evaluation are taken."""
        began = time.monotonic()
        for generator, *_ in self.turns:
            if not generator.busy or time.monotonic() - began > TURNS:
                return

    def close(self):
        self.turns.close()


def trainer_decodes(args, processes, policy, generate):
    """The TrainerDecodes of a run's only trainer on CPUs; None in any other run. Arguments as for TrainerDecodes."""
    if args.trainers > 1 or args.generator != "torch" or args.virtual or processes.device.type != "cpu":
        return None
    return TrainerDecodes(args, processes, policy, generate)


# --- The first evaluation --------------------------------------------------------------------------------------------


def note(store, score, args):
    """On a generator: count a completion of the first evaluation, and keep the first of its kind, for a FirstLook."""
    rollout = score.completion
    if score.value or score.marked and not rollout.interrupted:
        store.count("first/hopeful", 1)
    if score.error.startswith(OWN) and score.error != OWN:  # OWN alone: it has returned None, on purpose
        store.put({"first/error": score.error})
        store.count("first/failed", 1)
    kind = "truncated" if rollout.truncated else "right" if score.value else "wrong"
    number = store.count(f"first/{kind}", 1)
    if number <= SHOWN:
        store.put({f"shown/{kind}/{number}": as_shown(kind, score, args)})


def as_shown(kind, score, args):
    """A graded completion for the screen: what the model read and wrote, and what was read of it."""
    prompt, text = score.prompt, score.completion.text
    answer = reward.final_answer(text, args.think_end)
    if kind == "truncated":
        read = "nothing, since it is truncated"
    elif answer is None:
        read = f"nothing, since it lacks {args.think_end!r}"
    elif args.reward:
        read = "what --reward reads"
    elif score.error or score.timed_out:  # here a grader has neither a guard nor a time limit
        read = score.error or "nothing within --verify-timeout"
    else:
        graded = TASKS[score.grader].grade(answer, prompt.answer)
        read = repr((graded if isinstance(graded, str) else answer.strip())[-LENGTH:])
    return (
        f"A completion of {prompt.where}, {kind if not score.error else 'without a verdict'}:\n"
        f"  the prompt ends with      {prompt.text[-LENGTH:]!r}\n"
        f"  the completion ends with  {text[-LENGTH:]!r}\n"
        f"  read as the answer        {read}\n"
        f"  the reference             {prompt.answer[:LENGTH]!r}"
    )


class FirstLook:
    """Rank 0's look at the first evaluation: it ends a run in which every reward is -1, before all of it is decoded.

    Called while the evaluation is waited for, with how many completions are finished; `end` is called behind it.

    log     log.RunLog, which is taken back with the run, so that --out is free again
    waited  as in RolloutQueue.evaluate
    """

    def __init__(self, store, args, log, waited):
        self.store = store
        self.args = args
        self.log = log
        self.waited = waited
        self.looked = False

    def __call__(self, finished):
        self.waited(finished)
        if finished >= ENOUGH and not self.looked:
            self.looked = True
            self.look()

    def look(self):
        """Raise Fault if nothing can be learnt. Fewer than ENOUGH completions, or a mark that was given, only warn."""
        counts = {kind: self.store.count(f"first/{kind}") for kind in KINDS}
        total = sum(counts.values())
        hopeful = self.store.count("first/hopeful")  # read last, since it is counted first
        failed = self.store.count("first/failed")
        if failed > FAILED * total:
            [error] = self.store.take(["first/error"])
            problem = f"of the first {total} completions {failed} got no verdict: {error}"
            ends = True
        elif total and counts["truncated"] == total:
            problem = ALL_TRUNCATED.format(total=total)
            ends = total >= ENOUGH
        elif total and not hopeful:
            problem = NO_MARK.format(total=total, mark=self.args.think_end)
            ends = total >= ENOUGH and "think_end" not in self.args.asked
        else:
            return
        if ends:
            self.show()
            self.log.take_back()
            raise Fault(problem)
        self.log.screen.write(f"WARNING: {problem}")

    def show(self):
        """Show three completions: a right, a wrong and a truncated one, where there are such."""
        names = [f"shown/{kind}/{number}" for number in range(1, 1 + SHOWN) for kind in KINDS]
        there = [name for name in names if self.store.has([name])]
        texts = self.store.take(there)
        for text in [*dict.fromkeys(texts), *texts][:SHOWN]:  # equal ones last
            self.log.screen.write(text)

    def end(self):
        if not self.looked:
            self.look()
        self.show()


# --- When a run will end ----------------------------------------------------------------------------------------------


DAY = 24 * 3600.0
MOVED = 1.25  # a projection that has moved by this factor is told again
SOON = 600.0  # seconds: an end that is nearer is not told


class Projection:
    """An observer of the log that says when the run will end: after R_0, after five steps, and when that has moved.

    write  a function of a text, for the screen
    """

    def __init__(self, args, write, now=time.monotonic):
        self.args = args
        self.write = write
        self.now = now
        self.last = now()
        self.steps = deque(maxlen=5)  # seconds of the last steps
        self.evaluation = 0.0  # seconds of the last evaluation
        self.told = 0.0  # seconds of a step and its share of an evaluation, when that was last told

    def __call__(self, row):
        args, now = self.args, self.now()
        took, self.last = now - self.last, now
        if row["kind"] == "step":
            self.steps.append(took)
        elif row["kind"] == "eval":
            self.evaluation = took
        full = len(self.steps) == self.steps.maxlen
        if not full and (row["kind"] != "eval" or self.told):
            return
        # Before the first steps: each takes as long as its completions did in R_0, if decoding is the slower side.
        decoded = self.evaluation * args.prompts * args.generations / row.get("completions", math.inf)
        pace = (mean(self.steps) if full else decoded) + self.evaluation / args.eval_every
        left = (args.steps - row["step"]) * pace
        if self.told / MOVED < pace < self.told * MOVED or left < SOON:
            return
        self.told = pace
        end = time.strftime("%A %H:%M", time.localtime(time.time() + left))
        text = (
            f"{'at the speed of the last steps' if full else 'if a step decodes as R_0 did'}, {args.steps:,} steps end "
        )
        text += f"on {end}, in {left / 3600:.1f} hours"
        if left > DAY:
            text += f"; --steps {int(row['step'] + DAY / pace):,} would end within 24 hours"
        self.write(text)


# --- What is logged of an evaluation ---------------------------------------------------------------------------------


def metrics(groups, prompts, benchmarks):
    """What the log says of an evaluation: groups of RolloutMetadata, the data.Prompts that they answer.

    benchmarks  sources that are never trained on: they have their own curves, and no part in what is fitted
    """
    trained = [group for group in groups if prompts[group[0].prompt].source not in benchmarks]
    every = reward.pass_rates(groups, prompts)
    rates = reward.pass_rates(trained, prompts) | {name: every[name] for name in ("tasks", "tasks_stderr")}
    return rates | grading_metrics(groups, prompts)


def grading_metrics(groups, prompts):
    """What the log says of verdicts, in a batch or an evaluation. prompts: the data.Prompts that the groups index."""
    rollouts = sum(groups, [])
    errors = {group[0].prompt: [rollout.error for rollout in group if rollout.value is None] for group in groups}
    failures = [
        {
            "where": prompts[index].where,
            "error": reasons[0],
            "verifier": not reasons[0].startswith(NO_FAILURE),  # else the reference, or a function of one's own
            "own": reasons[0].startswith(OWN),
        }
        for index, reasons in errors.items()
        if reasons and reasons[0] != OWN
    ]
    return {
        "answered": batches.mean(
            rollout.marked and not rollout.interrupted or bool(rollout.correct) for rollout in rollouts
        ),
        "timed_out": sum(rollout.timed_out for rollout in rollouts),
        "silent": sum(OWN in reasons[:1] for reasons in errors.values()),
        "failures": failures,
    }


def keep_samples(out, step, prompts, groups, samples):
    """Append the Rollouts `samples`, those of the first groups, to completions.jsonl."""
    for rollout, tokens in zip(sum(groups, []), samples):
        append(
            Path(out) / "completions.jsonl", {"step": step, **answered(prompts[rollout.prompt], tokens, rollout.value)}
        )


# --- Without training ------------------------------------------------------------------------------------------------


def complete(generator, scorer, prompts, generations):
    """Yield the scorer.Score of `generations` completions of each prompt, in the order of the verdicts; no queue.

    prompts            data.Prompts
    generator, scorer  as in train.generate; the caller closes both
    """
    asked = {prompt.index: prompt for prompt in prompts}
    for prompt in prompts:
        generator.add(Request(prompt.index, generator.version, prompt, generations, evaluation=True))
    while generator.busy or scorer.pending:
        if generator.busy:
            for completion in generator.step():
                scorer.submit(completion, asked[completion.request])
        else:
            time.sleep(POLL)
        yield from scorer.finished()


def evaluate_policy(args, prompts):
    """--evaluate: print mean@k and pass@k of a policy for each validation curve, with standard errors over prompts.

    Each completion becomes a row of OUT/evaluation.jsonl. Prompts whose verifier failed are left out of the means. Each
    of several ranks takes every n-th prompt; rank 0 collects.
    """
    rank, local, world = map(torchrun, ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    place = device(local)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if world > 1:
        torch.set_num_threads(threads())
        dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
        patient = dist.new_group(timeout=timedelta(days=1))  # some ranks end long before others
        dist.broadcast_object_list(tried := [args.protections], 0)
        args = replace(args, protections=tried[0])
    mine = prompts[rank::world]
    values = {prompt.index: [] for prompt in mine}
    unit = " completions" if world == 1 else f" completions on 1 of {world} ranks"
    # Its rate is the mean so far, as completions end in bursts.
    look = {"total": len(mine) * args.generations, "unit": unit, "smoothing": 0.0, "disable": bool(rank)}
    rows = part(args, rank)
    rows.parent.mkdir(parents=True, exist_ok=True)
    rows.write_bytes(b"")  # an interrupted evaluation may have left some
    with (
        closing(make_generator(args, place, getattr(torch, args.dtype))) as generator,
        closing(make_scorer(args)) as scorer,
        progress(sys.stderr, **look) as bar,
    ):
        for score in complete(generator, scorer, mine, args.generations):
            values[score.completion.request].append(score.value)
            append(rows, answered(prompts[score.completion.request], score.completion, score.value))
            bar.update()
        shares = [values] * world
        if world > 1:  # before the generator is closed: vLLM destroys the group with it
            dist.all_gather_object(shares, values, group=patient)
    if rank:
        return
    with rows.open("ab") as file:
        for other in range(1, world):
            file.write(part(args, other).read_bytes())
            part(args, other).unlink()
    rows.rename(rows.with_suffix(".jsonl"))
    report(args, prompts, {index: group for share in shares for index, group in share.items()})


def part(args, rank):
    """The file in which a rank keeps its rows until all are there."""
    return Path(args.out) / f"evaluation{rank or ''}.part"


def report(args, prompts, values):
    """Print what --evaluate has found. values: {Prompt.index: v of each completion}"""
    groups = [values[prompt.index] for prompt in prompts]
    for curve in sorted({prompt.curve for prompt in prompts}):
        known = [group for prompt, group in zip(prompts, groups) if prompt.curve == curve and None not in group]
        print(f"{curve}: prompts asked {len(known):,}, completions of each {args.generations}")
        if not known:
            continue
        estimates = {f"mean@{args.generations}": reward.over_prompts([*map(mean, known)])}
        graded = any(value not in (0, 1) for group in known for value in group)  # else pass@1 is mean@k
        for k in (2**power for power in range(0 if graded else 1, args.generations.bit_length())):
            estimates[f"pass@{k}"] = reward.pass_at_k(known, k)
        for name, (value, stderr) in estimates.items():
            print(f"  {name:8} {value:.4f} +- {stderr:.4f}")


def answered(prompt, completion, value):
    """A completion as a row of completions.jsonl or evaluation.jsonl. value: v from 0 to 1; None: unknown."""
    return {
        "prompt": prompt.text,
        "completion": completion.text,
        "answer": prompt.answer,
        "correct": None if value is None else value == 1,
        "value": value,
        "truncated": completion.truncated,
        "task": prompt.curve,
    }


def draw(out):
    """Draw run.png, if there is a step, and scaling.png, if a fit is possible; returns what `curves.report` does.

    No run ends for a figure: what else fails becomes a line."""
    from fit import BadInput  # here, since these load scipy and matplotlib
    from plumbing import curves, figures

    values, lines = curves.report(out / "log.jsonl", out / "scaling.png")
    try:
        figures.page(out / "log.jsonl", out / "run.png")
    except BadInput:
        pass
    except Exception as error:  # as in curves.report
        lines.append(f"WARNING: run.png was not drawn: {error}")
    return values, lines


REDRAW = 60.0  # seconds between two drawings of the figures at least; at its end each run is drawn


class Figure:
    """An observer that draws the figures anew after an evaluation; together they take about a second."""

    def __init__(self, out):
        self.out = out
        self.due = Pace(REDRAW)
        self.due()  # not at R_0

    def __call__(self, row):
        if row["kind"] == "eval" and self.due():
            draw(self.out)  # a figure that cannot be drawn is told of at the end
