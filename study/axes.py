"""The paper's axes (Sec. 5) on the task `tiny`: which runs are made, and how they are judged.

    batch       prompts x generations, 32 to 1,024 completions a step, for 40,960 completions in all (Fig. 9, 10, A.12)
    length      the token budget of a completion, with interruptions as far below it as in the preset (Fig. 9)
    truncation  the same budgets without interruptions: what is cut off carries no loss (A.15)
    model       policies of 11,000 to 2.5 million parameters, each made by sft.py's steps at its learning rate, one for
                each seed (Fig. 9). (At first one policy for all seeds, with other initial weights than base/tiny's; of
                hidden size 48 that one did not learn and base/tiny does: found after the runs, which were made
                again; the first ones are not kept)
    pool        the number of training prompts, sums of 4 to 7 operands; 160 steps of 16 prompts draw 2,560
    difficulty  the longest sum that is asked, in training and validation; 1,000 prompts, since there are few short sums
    mixture     sums of 4 or 5 and of 6 or 7 operands, two sources that train together, at five weights
    embedded    prompts a step, of 16 completions each, for 69,120 completions in all, on the embedded task (Fig. 9)

Written before the first run of any of them. Exact staleness k = 1, CISPO, ScaleRL's other settings, the preset's
learning rate at every size (Open in the paper: whether it follows the batch), 3 seeds; 160 steps but for `batch`, 1,280
to 40, and `embedded`, 270, 90 and 30. Evaluations ask 512 prompts once (`mixture` and `difficulty`: 256 of each source
twice; `embedded`: 256 four times). Compute is tokens. An axis is to take 90 minutes of one core at most. No-Positive-
Resampling's threshold of 0.9 means 4 of 4, 8 of 8, 15 of 16 and 29 of 32 completions.

A run that collapses for good, diverges, or ends because all its prompts are retired, is a result of its own and left
out below; a question is asked if all members that it names have other runs. (At first: a run that collapses, though it
recovers; and all members of the axis. Found after the runs.) Two questions are asked of each axis, and one more of
three of them; intervals are of 90 %, with the spread between seeds pooled over the axis, or over what is compared, and
the margin of "the same" is 0.02:

    first half     the end (mean of the last five evaluations) forecast from half of the compute: the error, and how
                   often the 90 % band held it
    smaller ones   is the mean end of the largest member on the straight line, in log2 of the size, through the two
                   before it? Not asked of `batch`, whose sizes repeat, and `mixture`. A policy that still rises when
                   the run ends (the table's "still rising": the last five evaluations minus the five before) says it
                   of this compute alone
    batch          among the sets of 128 and of 256 completions a step, the generations per prompt with the highest pass
                   rate at an eighth, a quarter, half and all of the compute. The IsoCompute playbook, arXiv 2603.12151:
                   the best number grows with compute and then saturates. "Grows": larger at the end than at first, and
                   no step down between; agrees if so in 95 % of 1,000 resamplings of seeds, disagrees if in 5 % or
                   less; undecided if the best is the smallest or the largest number at all four (found after the runs;
                   both sets "disagreed" before)
    model          does the end follow the policy's loss on right traces or its pass@16 (arXiv 2607.16097)? Spearman's
                   rank correlation of each with the end
    mixture        is a mixture w R_6,7 + (1 - w) R_4,5, each the curve of the runs of one source alone, at w and 1 - w
                   of their compute? If it ends higher, the sources help each other, or it is better to draw fewer
                   prompts of a source in more steps, as a mixture does: see 8 x 8 beside 16 x 8 in `batch`

What the axes cannot say apart: with one learning rate, `batch` is an axis of the number of optimizer steps. From 4,096
prompts on, no prompt of `pool` comes twice, and from 10 tokens on, no right answer of `length` and `truncation` is cut
off, so the largest two members of these differ by chance alone. The answer of `tiny` is one digit: by chance, pass@16
is 0.81. A.12: beside the ends of `batch` stands the entropy of sampled validation tokens, and within a set their rank
correlation. Only sums of one-digit numbers are asked but in `embedded`, by one policy: on another task an axis may look
different.

    python study/order.py --parts axis  makes the runs
    python study/axes.py                prints what the runs under results/tiny say (--into FOLDER: elsewhere)
    python study/verdicts.py --write    draws figures/axes.png

Test: pytest tests/test_axes.py
"""

import argparse
import io
import json
import re
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from itertools import pairwise, product
from math import log2
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from scipy.special import stdtrit
from scipy.stats import spearmanr

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import data  # noqa: E402
import fit  # noqa: E402
import forecast  # noqa: E402
import recipes  # noqa: E402
from plumbing import settings  # noqa: E402
from study import grid, regimes, rule, stability, warm  # noqa: E402

PLAN = "axes"
SEEDS = range(3)
COMPLETIONS = 40_960  # of a run of `batch`
EMBEDDED_COMPLETIONS = 69_120  # of a run of `embedded`: 90 steps of ScaleRL's 48 prompts
BATCH = [  # (prompts, generations)
    (prompts, generations)
    for prompts, generations in product((4, 8, 16, 32, 64), (4, 8, 16, 32))
    if 32 <= prompts * generations <= 1024
]
SETS = (128, 256)  # completions a step for which all numbers of generations are there
PARTS = (1 / 8, 1 / 4, 1 / 2, 1)  # of the compute, at which the best number of generations is asked
RESAMPLINGS = 1000
BUDGETS = (6, 7, 8, 10, 12)  # tokens of a completion; right traces of 2 to 7 operands have 4 to 9
WEIGHTS = {0.0: (1, 0), 0.25: (3, 1), 0.5: (1, 1), 0.75: (1, 3), 1.0: (0, 1)}  # share of the longer -> of both sources
SOURCES = {"shorter": (4, 5), "longer": (6, 7)}  # operands of the sums of `mixture`
ROWS = 4000  # of a source: a tenth of them are held out
EVALUATED = "--eval-prompts 512 --eval-generations 1"
TWICE = "--eval-prompts 256 --eval-generations 2"  # of sums of up to 3 operands, 420 are held out
XY = ("compute", "reward")  # of a curve
STYLES = {0: "-", 4: "-", 8: "--", 16: "-.", 32: ":"}  # of a curve, by generations per prompt
TITLES = {  # of the panels
    "batch": "batch: prompts x generations",
    "length": "token budget",
    "truncation": "token budget, no interruptions",
    "model": "model",
    "pool": "number of prompts",
    "difficulty": "longest sum (operands)",
    "mixture": "two sources",
    "embedded": "batch, embedded task",
}
LAST = 5  # evaluations whose mean is the end of a run


class Member(NamedTuple):
    """A member of an axis: its size, train.py's flags, and what the run changes that is no flag."""

    size: float
    label: str
    flags: str = ""
    lengths: tuple = ()  # operands of the sums, each entry equally likely; (): those of the task
    prompts: int = 0  # training prompts; 0: those of the task
    hidden: int = 0  # hidden size of the policy; 0: base/tiny
    weights: tuple = ()  # of the two SOURCES; (): the task itself
    generations: int = 0  # of `batch`: completions per prompt
    task: tuple = tuple(grid.TINY)  # flags that name the task and what goes with it


def batch():
    for prompts, generations in BATCH:
        size = prompts * generations
        steps = COMPLETIONS // size
        flags = f"--prompts {prompts} --generations {generations} --steps {steps} --eval-every {steps // 20}"
        yield Member(size, f"{prompts} x {generations}", flags, generations=generations)


def length():
    room = recipes.TINY["max_new_tokens"] - np.array(recipes.TINY["interrupt_at"])
    for budget in BUDGETS:
        low, high = budget - room
        yield Member(budget, f"{budget} tokens", f"--max-new-tokens {budget} --interrupt-at {low} {high}")


def truncation():
    for budget in BUDGETS:
        yield Member(budget, f"{budget} tokens", f"--max-new-tokens {budget} --length-control none")


def model():
    for hidden in (24, 48, 96, 192, 384):
        yield Member(hidden, f"hidden size {hidden}", hidden=hidden)


def pool():
    for prompts in (64, 256, 1024, 4096, 16384):
        yield Member(prompts, f"{prompts} prompts", lengths=(4, 5, 6, 7), prompts=prompts)


def difficulty():
    for longest in range(3, 1 + data.PLACES):
        lengths = tuple(range(2, 1 + longest))
        yield Member(longest, f"up to {longest}", TWICE, lengths=lengths, prompts=1000)


def mixture():
    for share, weights in WEIGHTS.items():
        yield Member(share, f"{share:.0%} longer", TWICE, weights=weights)


def embedded():
    for prompts in (16, 48, 144):
        steps = EMBEDDED_COMPLETIONS // (16 * prompts)
        flags = f"--prompts {prompts} --steps {steps} --eval-every {steps // 15} --eval-prompts 256 {regimes.WIDE}"
        yield Member(prompts, f"{prompts} prompts", flags, task=("--recipe", "scalerl", "--dtype", "float32"))


MEMBERS = (batch, length, truncation, model, pool, difficulty, mixture, embedded)
AXES = {axis.__name__: list(axis()) for axis in MEMBERS}


# --- Making runs -----------------------------------------------------------------------------------------------------


def runs(axis):
    """The grid.Runs of an axis: one seed of all members before the next of any."""
    return [
        grid.Run(
            PLAN,
            (("axis", axis), ("member", member.label)),
            seed,
            f"--virtual exact --k 1 --steps 160 --eval-every 8 {EVALUATED} {member.flags}",
        )
        for seed, member in product(SEEDS, AXES[axis])
    ]


def missing(folder, axis):
    """The Runs of an axis that are not there."""
    there = grid.kept(folder, PLAN)
    return [run for run in runs(axis) if run.name() not in there]


def member_of(run):
    """The Member that a Run is of."""
    key = dict(run.key)
    return next(member for member in AXES[key["axis"]] if member.label == key["member"])


def make(train, run, folder):
    """Make a Run and append its line: that of grid.summary, and `more`. train: the module train.py."""
    began = time.process_time()
    member = member_of(run)
    with changed(member, run.seed) as (flags, policy):
        rows = warm.run(train, [*member.task, *run.flags.split(), *flags, "--seed", str(run.seed)])
    further = more(rows) | (quality(train, policy) if policy else {})
    grid.keep(folder, run, rows, further | {"cpu_seconds": round(time.process_time() - began, 1)})


def more(rows):
    """What a line has besides grid.summary: columns of the evaluations; means over the first 8 and the last steps."""
    evaluations = [row for row in rows if row["kind"] == "eval"]
    steps = [row for row in rows if row["kind"] == "step"]
    last = steps[-max(1, len(steps) // 4) :]
    return {
        "entropy": [grid.digits(row["entropy_sampled"]) for row in evaluations],
        "tasks": {name: [grid.digits(row["tasks"][name]) for row in evaluations] for name in evaluations[0]["tasks"]},
        "truncated": [grid.digits(mean(row["truncated"] for row in own)) for own in (steps[:8], last)],
        "retired": steps[-1]["retired"],
    }


@contextmanager
def changed(member, seed):
    """What a Member changes that is no flag of train.py; yields further flags, and the folder of its policy or None."""
    with ExitStack() as stack:
        if member.lengths:
            stack.enter_context(patch.dict(data.LENGTHS, tiny=member.lengths))
        if member.prompts:
            stack.enter_context(patch.dict(data.EMBEDDED_PROMPTS, tiny=member.prompts))
        if member.weights:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="study-")))
            yield ["--model", str(ROOT / "base" / "tiny"), "--data", *mixed_sources(place, member.weights)], None
        elif member.hidden:
            stack.enter_context(patch.object(settings, "preset_of", lambda folder: recipes.TINY))
            place = policy_of(member.hidden, seed)
            yield ["--model", str(place)], place
        else:
            yield [], None


def file_of(source):
    """The file of one of SOURCES, which is also its name in the rows of a run that mixes."""
    return f"{source}.jsonl"


def mixed_sources(folder, weights):
    """Write the sources that have a weight; their names for --data."""
    names = []
    for (name, lengths), weight in zip(SOURCES.items(), weights):
        with patch.dict(data.LENGTHS, tiny=lengths):
            pairs = data.examples("tiny", ROWS, seed=0, held_out=False)
        path = folder / file_of(name)
        path.write_text("".join(json.dumps({"prompt": text, "answer": answer}) + "\n" for text, answer in pairs))
        names += [f"{path}:{weight}:tiny"] if weight else []
    return names


def policy_of(hidden, seed, runs_folder=ROOT / "runs"):
    """The folder of a policy of this hidden size, made if it is not there: as base/tiny, which is 48 and seed 0."""
    import torch
    from transformers import Qwen3ForCausalLM

    import sft

    place = runs_folder / f"tiny-{hidden}-seed{seed}"
    if not place.exists():
        torch.set_num_threads(1)
        tokens = sft.tokenizer(tiny=True)
        config = sft.untrained(tiny=True).config
        config.initializer_range *= (config.hidden_size / hidden) ** 0.5
        config.num_attention_heads = config.num_key_value_heads = hidden // config.head_dim
        config.intermediate_size = hidden * config.intermediate_size // config.hidden_size
        config.hidden_size = hidden
        torch.manual_seed(seed)
        policy = Qwen3ForCausalLM(config)
        sft.supervise(policy, tokens, tasks=["tiny"], habits=False, steps=sft.TINY_SKILL_STEPS, seed=seed)
        sft.supervise(policy, tokens, tasks=["tiny"], habits=True, steps=sft.TINY_HABIT_STEPS, seed=seed)
        part = place.with_suffix(".part")
        policy.save_pretrained(part)
        tokens.save_pretrained(part)
        part.rename(place)  # whole or not at all
    return place


def quality(train, folder):
    """{"loss": nats a token of right traces, some of them seen in training; "pass@16": on validation prompts}."""
    import random

    import torch

    import sft

    model = sft.load(folder)
    tokens = sft.tokenizer(tiny=True)
    rng = random.Random("axes")
    traces = [pair for _ in range(8) for pair in sft.batch(tokens, rng, False, ["tiny"])]
    with torch.no_grad():
        losses = [model(input_ids=ids, labels=labels).loss.item() for ids, labels in traces]
    printed = io.StringIO()
    sizes = "--generations 16 --eval-prompts 512 --max-new-tokens 12 --max-prompt-tokens 8 --slots 512".split()
    with tempfile.TemporaryDirectory(prefix="study-") as out, redirect_stdout(printed):
        asked = ["--evaluate", str(folder), *grid.TINY, *sizes, "--length-control", "none", "--out", out]
        train.main(settings.read_settings(asked))
    [found] = re.findall(r"pass@16 +([0-9.]+)", printed.getvalue())
    return {"loss": grid.digits(mean(losses)), "pass@16": float(found)}


# --- Judging ---------------------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """What is asked of a kept run."""

    curve: fit.Run  # pass rate against tokens
    end: float  # mean of the last evaluations
    collapsed: bool  # or diverged
    lost: bool  # it collapsed and has not recovered
    early: bool  # ended before its last step, with all prompts retired
    line: dict


def made(line):
    """The Made of a kept line."""
    evaluations = line["evals"]
    curve = fit.Run(evaluations["tokens"], evaluations["pass_rate"], start="10%")
    one = stability.one(line)
    collapsed = one.collapsed is not None
    end = mean(evaluations["pass_rate"][-LAST:])
    return Made(curve, end, collapsed, collapsed and not one.recovered, line["reason"] != "finished", line)


def kept(folder, axis):
    """{Member: [Made]} of the members of an axis that have runs."""
    found = defaultdict(list)
    for line in grid.kept(folder, PLAN).values():
        if line["run"]["axis"] == axis:
            found[line["run"]["member"]].append(made(line))
    return {member: found[member.label] for member in AXES[axis] if member.label in found}


def whole(members):
    """{Member: [Made]} without runs that collapse for good or end early, and without members that have none else."""
    sound = {member: [one for one in own if not one.lost and not one.early] for member, own in members.items()}
    return {member: own for member, own in sound.items() if own}


def spread(sound):
    """(standard deviation of the ends between seeds, degrees of freedom), pooled over the members."""
    return rule.pooled([[one.end for one in own] for own in sound.values()])


def judged(gap, weights, spread):
    """Words: a difference with its interval, and whether it is 0. weights: of the runs' ends in the difference."""
    s, freedom = spread
    if not freedom:
        return f"{gap:+.3f}: one seed gives no interval"
    half = float(stdtrit(freedom, 0.95)) * s * sum(w * w for w in weights) ** 0.5
    word, _ = rule.verdict(gap - half, gap + half, direction=0, quantity="A")
    said = {"agrees": "none, within 0.02", "disagrees": "a difference", "undecided": "undecided"}[word]
    return f"{gap:+.3f} ({gap - half:+.3f} to {gap + half:+.3f}): {said}"


def table(members):
    """Lines of Markdown: a row for each member; members: what `kept` returns."""
    rows = [
        "| member | runs | steps | end of all (standard deviation) | still rising | collapse, for good | end early "
        "| truncated at first, at last | entropy | error of the forecast from half; in band |",
        "|---" * 10 + "|",
    ]
    for member, own in members.items():
        ends = [one.end for one in own]
        deviation = f" ({stdev(ends):.3f})" if len(ends) > 1 else ""
        steady = [one for one in own if not one.collapsed and not one.early]
        found = [row for one in steady for row in forecast.hindcasts(one.curve, (50,), LAST)]
        errors = [abs(row["error"]) for row in found]
        held = f"{mean(errors):.3f}; {sum(row['inside'] for row in found)} of {len(found)}" if found else "-"
        truncated = [mean(one.line["truncated"][at] for one in own) for at in (0, 1)]
        entropy = mean(mean(one.line["entropy"][-LAST:]) for one in own)
        steps = mean(one.line["evals"]["step"][-1] for one in own)
        rising = mean(one.end - mean(one.curve.reward[-2 * LAST : -LAST] or [one.end]) for one in own)
        rows.append(
            f"| {member.label} | {len(own)} | {steps:.0f} | {mean(ends):.3f}{deviation} | {rising:+.3f} "
            f"| {sum(one.collapsed for one in own)}, {sum(one.lost for one in own)} | {sum(one.early for one in own)} "
            f"| {truncated[0]:.1%}, {truncated[1]:.1%} | {entropy:.3f} | {held} |"
        )
    return rows


def from_smaller(sound, spread):
    """Words: the end of the largest member minus that on the line through the two before it, and whether it is none.

    sound: of the last three members; spread: what `spread` says of all
    """
    (low, _), (middle, _), (high, _) = tail = list(sound.items())
    r = log2(high.size / middle.size) / log2(middle.size / low.size)
    weights = (r, -1 - r, 1)
    gap = sum(w * mean(one.end for one in own) for w, (_, own) in zip(weights, tail))
    said = judged(gap, [w / len(own) ** 0.5 for w, (_, own) in zip(weights, tail)], spread)
    return f"the largest minus the line through the two before it: {said}"


def rate_at(curve, share):
    """The pass rate at a share of a curve's compute, mean of LAST evaluations around it on straight lines between."""
    at = np.linspace(max(0.0, share - 0.1), min(1.0, share + 0.1), LAST) * curve.compute[-1]
    return float(np.interp(at, curve.compute, curve.reward).mean())


def best_generations(members, part):
    """The number of generations with the highest mean pass rate at a part of the compute.

    members: {Member: [Made]} of one number of completions a step
    """
    means = {member.generations: mean(rate_at(one.curve, part) for one in own) for member, own in members.items()}
    return max(means, key=means.__getitem__)


def grows(numbers):
    """Whether the numbers end larger than they begin, without a step down."""
    return numbers[-1] > numbers[0] and all(one <= other for one, other in pairwise(numbers))


def iso_compute(sound):
    """Words: the best number of generations at each of PARTS, and the verdict.

    sound: of all members with one number of completions a step
    """
    best = [best_generations(sound, part) for part in PARTS]
    tried = [member.generations for member in sound]
    rng = np.random.default_rng(0)
    grown = []
    for _ in range(RESAMPLINGS):
        drawn = {member: [own[at] for at in rng.integers(len(own), size=len(own))] for member, own in sound.items()}
        grown.append(grows([best_generations(drawn, part) for part in PARTS]))
    share = mean(grown)
    word = "agrees" if share >= 0.95 else "disagrees" if share <= 0.05 else "undecided"
    if set(best) in ({min(tried)}, {max(tried)}):
        word = "undecided, the best lies at an edge of what was tried"
    said = ", ".join(f"{number} at {part:.0%}" for number, part in zip(best, PARTS))
    return f"best generations per prompt: {said}; grows in {share:.0%} of resamplings: {word}"


def follows(sound):
    """Words: rank correlation of the ends with the policies' loss and pass@16, over all runs."""
    runs = [one for own in sound.values() for one in own]
    ends = [one.end for one in runs]
    ranks = {name: spearmanr([one.line[name] for one in runs], ends).statistic for name in ("loss", "pass@16")}
    return "rank correlation of the end with " + ", ".join(f"{name} {value:+.2f}" for name, value in ranks.items())


def goes_with_entropy(sound):
    """Words: rank correlation of the ends with the policies' entropy at the end, over all runs."""
    runs = [one for own in sound.values() for one in own]
    entropies = [mean(one.line["entropy"][-LAST:]) for one in runs]
    return (
        f"rank correlation of the end with the entropy {spearmanr(entropies, [one.end for one in runs]).statistic:+.2f}"
    )


def alone(sound, w):
    """What a mixture with the share w of longer sums is predicted from: for each source its runs' values, alone."""
    of = {member.size: own for member, own in sound.items() if member.size in (0.0, 1.0)}
    return [[last_of(one.curve, share) for one in of[only]] for only, share in ((0.0, 1 - w), (1.0, w))]


def last_of(curve, share):
    """Mean pass rate at a share of the compute of each of the last evaluations."""
    return float(np.interp(share * np.asarray(curve.compute[-LAST:]), curve.compute, curve.reward).mean())


def ended(one):
    """The end of a mixture: its sources' pass rates, by their weights, whatever the share of their prompts."""
    w = next(member.size for member in AXES["mixture"] if member.label == one.line["run"]["member"])
    return sum(share * mean(one.line["tasks"][file_of(name)][-LAST:]) for share, name in zip((1 - w, w), SOURCES))


def mixtures(sound):
    """Words: the end of each mixture minus the predicted one, and whether that is 0."""
    mixed = {member: list(map(ended, own)) for member, own in sound.items() if 0 < member.size < 1}
    sources = {member: alone(sound, member.size) for member in mixed}
    s = rule.pooled([*mixed.values(), *(values for both in sources.values() for values in both)])
    lines = []
    for member, ends in mixed.items():
        shares = 1 - member.size, member.size
        gap = mean(ends) - sum(share * mean(values) for share, values in zip(shares, sources[member]))
        weights = [share / len(values) ** 0.5 for share, values in zip(shares, sources[member])]
        lines.append(f"{member.label} {judged(gap, [len(ends) ** -0.5, *weights], s)}")
    return f"end minus that from the sources alone: {'; '.join(lines)}"


def questions(axis, spread):
    """(the Members of which a question is asked, the function that answers it) for each question of an axis."""
    if axis == "batch":
        for size in SETS:
            of_size = [member for member in AXES[axis] if member.size == size]
            yield of_size, iso_compute
            yield of_size, goes_with_entropy
    elif axis == "mixture":
        yield AXES[axis], mixtures
    else:
        yield AXES[axis][-3:], partial(from_smaller, spread=spread)
    if axis == "model":
        yield AXES[axis], follows


def answers(axis, members):
    """Lines: what the members of an axis say on its questions; none where one that is asked has no sound run."""
    sound = whole(members)
    lines = []
    for asked, answer in questions(axis, spread(sound)):
        said = "not asked: one of these has no run that neither collapses nor ends early"
        if all(member in sound for member in asked):
            said = answer({member: sound[member] for member in asked})
        lines.append(f"- {asked[0].label} to {asked[-1].label}: {said}")
    return lines


def curves(folder, path):
    """Draw a panel an axis: pass rate against tokens, mean over the seeds at each evaluation. Returns the path."""
    drawn = Figure(figsize=(15, 9), layout="constrained")
    drawn.supxlabel("thousands of tokens")
    drawn.supylabel("pass rate on validation, mean over seeds")
    there = {axis: members for axis in AXES if (members := kept(folder, axis))}
    for place, (axis, members) in enumerate(there.items(), 1):
        ax = drawn.add_subplot(2, 4, place)
        ax.set_title(TITLES[axis], fontsize=10)
        draw(ax, members)
        ax.grid(alpha=0.25)
        ax.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3)
    drawn.savefig(path, dpi=120)
    return path


def draw(ax, members):
    """Draw a curve a Member: its colour says the size, its style the generations per prompt."""
    sizes = sorted({member.size for member in members})
    for member, own in members.items():
        shown = min(len(one.curve.compute) for one in own)  # some end early
        tokens, rates = (np.mean([getattr(one.curve, what)[:shown] for one in own], 0) for what in XY)
        colour = colormaps["viridis"](0.9 * sizes.index(member.size) / max(1, len(sizes) - 1))
        style = STYLES[member.generations]
        ax.plot(tokens / 1000, rates, style, color=colour, label=member.label, linewidth=1.2)


def report(folder):
    """Lines of Markdown: each axis that has runs, and the names of those that have none."""
    lines = []
    waiting = []
    for axis, asked in AXES.items():
        members = kept(folder, axis)
        if not members:
            waiting.append(axis)
            continue
        done = sum(map(len, members.values()))
        lines += ["", f"### Axis {axis}: {done} of {len(asked) * len(SEEDS)} runs", ""]
        lines += [*table(members), "", *answers(axis, members)]
    return [*lines, "", f"Axes, not made yet: {', '.join(waiting)}."] if waiting else lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "results", metavar="FOLDER", help="where the runs are")
    print(*report(parser.parse_args().into), sep="\n")


if __name__ == "__main__":
    main()
