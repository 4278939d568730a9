"""The paper's main comparisons (Fig. 2, 4a, 5a, 6, 7) on the embedded task: what is run, and how it is judged.

`study/run.py` makes the runs, prints the verdicts and draws them. FINDINGS was written
before the runs. Each finding names two configurations, the one quantity in which the paper compares them, and the
direction of the difference in the paper. No setting is tuned to make a finding agree.

    D = mean of the configuration's runs - mean of the reference's runs, in one of these quantities:
        end   mean pass rate of the last quarter of the evaluations
        A     of Eq. 1, fitted to each run
        B     of Eq. 1, fitted to each run with A fixed to the mean A of all runs of both sides (A.5)
    90 % interval: D -+ t s sqrt(1/n + 1/m)
        n, m  numbers of seeds of the two sides
        s     standard deviation between seeds, pooled over all configurations: two seeds alone say little about it;
              for B, A is fixed to the mean of each configuration. In device-hours s has 2 degrees of freedom
        t     95 % quantile of Student's t distribution with the degrees of freedom of s

A run that diverged or has no B that can be compared (it starts above the common A, or B is a jump between two
evaluations) gives its findings no interval, and does not count for s.

The verdict is the first of these that applies:

    cannot tell  The finding is about a clip that acts on less than 0.1 % of the tokens on both sides. Such a clip is
                 idle and cannot have made a difference.
    agrees       The whole interval lies on the paper's side of 0; where the paper says "the same", within the margin.
    does not     The whole interval lies on the other side of 0; where the paper says "the same", outside the margin.
                 Where the paper names a difference in A, a whole interval within the margin does not agree either: by
                 the paper's own margin, a difference in A is one of 0.02 or more.
    cannot tell  All other cases.
Margin, in both directions from 0: 0.02 for end and A (A.5), 0.15 for B (ours: twice the spread of B between seeds).

Two things are printed beside the verdict and do not change it. They were added when 7 of the runs were there, after the
first of pipeline-8 had risen to 0.62 and fallen to 0.42. So was the step as compute of Fig. 4a's "same ceiling" (tokens
before), and, when 16 were there, the control pipeline-1.
    until it falls  the verdict with every run that falls after a peak (`fit.peak`) cut there. Eq. 1 cannot fall. The
                    paper fits the comparisons of Sec. 3 where all runs are still stable. When 28 runs were there,
                    `fit.peak` was mended: it took the steep rise of a short run for noise, and missed a fall by 0.07.
    age             if the mean age of the trained tokens, in optimizer steps, differs by more than 1 between the two
                    sides, then a part of the difference may be due to it. Under PipelineRL-8 tokens are 0 to 8 steps
                    old; where in between depends on which of generators and trainers is the slower, so on the filter
                    and, if both are about equally fast, on the machine's load.
B does not change if all compute is multiplied by a constant. So of Fig. 4a the device-hours to half of the gain, C_mid
at the common A, are printed too.

Every configuration has the steps, the learning rate and the prompts per step of the embedded task, even the recipes for
which A.16 gives 80 prompts. So none of these can cause a difference.

Test: pytest tests/test_study.py
"""

import json
from collections import Counter
from math import nan
from statistics import mean
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

import fit
from recipes import EMBEDDED

MARGIN = {"end": 0.02, "A": 0.02, "B": 0.15}
IDLE_CLIP = 0.001  # share of tokens


class Configuration(NamedTuple):
    """What is run. Its flags are those of the configuration `reference`, if it has one, followed by its own."""

    name: str
    reference: str | None
    flags: str
    seeds: int = 2
    quiet: int = 0  # this many first seeds have the machine to themselves, so that their device-hours count (Fig. 4a)


CONFIGURATIONS = {
    c.name: c
    for c in (
        Configuration("baseline", None, "--recipe baseline", quiet=2),
        Configuration("deepseek", None, "--recipe deepseek"),
        Configuration("qwen2.5", None, "--recipe qwen2.5"),
        Configuration("magistral", None, "--recipe magistral"),
        Configuration("minimax", None, "--recipe minimax"),
        Configuration("scalerl", None, "--recipe scalerl", seeds=5),
        Configuration("pipeline-8", "baseline", "--off-policy pipeline", seeds=5, quiet=2),
        Configuration(
            "pipeline-1", "pipeline-8", "--k 1"
        ),  # a control, in no finding: does pipeline-8 fall for its age?
        Configuration("cispo", "pipeline-8", "--loss cispo"),
        Configuration("gspo", "pipeline-8", "--loss gspo"),
        Configuration("prompt-average", "pipeline-8", "--average prompt"),
        Configuration("token-average", "pipeline-8", "--average token"),
        Configuration("batch-normalisation", "pipeline-8", "--normalisation batch"),
        Configuration("no-normalisation", "pipeline-8", "--normalisation none"),
        Configuration("zero-variance-filter", "pipeline-8", "--zero-variance-filter"),
        Configuration("no-positive-resampling", "pipeline-8", "--no-positive-resampling 0.9"),
        Configuration("loo-dapo", "scalerl", "--loss dapo"),
        Configuration("loo-sample-average", "scalerl", "--average sample"),
        Configuration("loo-prompt-normalisation", "scalerl", "--normalisation prompt"),
        Configuration("loo-no-filter", "scalerl", "--no-zero-variance-filter"),
        Configuration("loo-uniform-resampling", "scalerl", "--no-positive-resampling off"),
        Configuration("loo-length-penalty", "scalerl", "--length-control penalty"),
        Configuration("loo-ppo-8", "scalerl", "--off-policy ppo"),
        Configuration("scalerl-bf16", "scalerl", "--dtype bfloat16"),  # in an fp32 model --fp32-head changes nothing
        Configuration("loo-no-fp32-head", "scalerl-bf16", "--no-fp32-head"),
    )
}


class Finding(NamedTuple):
    """A sentence of the paper about two configurations."""

    figure: str
    says: str
    configuration: str
    reference: str
    quantity: str  # "end", "A" or "B": what the paper compares
    direction: int  # of configuration - reference: +1, -1, or 0 for "the same"
    paper: tuple = ()  # its numbers for configuration and reference, if it gives any
    x: str = "tokens"  # the column of our logs that counts as compute
    clip: bool = False  # whether the finding is about a clip, which may be idle


def left_out(name, without, paper=(), clip=False):
    """The two findings of Sec. 4 about a component left out of ScaleRL: the ceiling stays, the efficiency falls."""
    return (
        Finding("7", f"ScaleRL {without}: same ceiling", f"loo-{name}", "scalerl", "A", 0, clip=clip),
        Finding("7", f"ScaleRL {without}: less efficient", f"loo-{name}", "scalerl", "B", -1, paper, clip=clip),
    )


FINDINGS = (
    Finding("2", "ScaleRL ends above the baseline", "scalerl", "baseline", "A", +1),
    Finding("2", "ScaleRL ends above DeepSeek's GRPO", "scalerl", "deepseek", "A", +1),
    Finding("2", "ScaleRL ends above Qwen2.5's DAPO", "scalerl", "qwen2.5", "A", +1),
    Finding("2", "ScaleRL ends above Magistral", "scalerl", "magistral", "A", +1),
    Finding("2", "ScaleRL ends above MiniMax", "scalerl", "minimax", "A", +1),
    Finding("4a", "PipelineRL-8 and PPO-off-policy-8: same ceiling", "pipeline-8", "baseline", "A", 0, x="step"),
    Finding(
        "4a", "PipelineRL-8 is the more efficient in device-hours", "pipeline-8", "baseline", "B", +1, x="gpu_hours"
    ),
    Finding("4a", "a step of PipelineRL-8 gains as much", "pipeline-8", "baseline", "B", 0, x="step"),
    Finding("5a", "CISPO has a higher ceiling than DAPO", "cispo", "pipeline-8", "A", +1, clip=True),
    Finding("5a", "GSPO has a higher ceiling than DAPO", "gspo", "pipeline-8", "A", +1, clip=True),
    Finding("6", "prompt average above sample average", "prompt-average", "pipeline-8", "A", +1),
    Finding("6", "prompt average above token average", "prompt-average", "token-average", "A", +1),
    Finding("6", "batch and prompt normalisation: the same", "batch-normalisation", "pipeline-8", "A", 0),
    Finding("6", "no and prompt normalisation: the same", "no-normalisation", "pipeline-8", "A", 0),
    Finding("6", "the zero-variance filter lifts the ceiling", "zero-variance-filter", "pipeline-8", "A", +1),
    Finding("6", "No-Positive-Resampling lifts the ceiling", "no-positive-resampling", "pipeline-8", "A", +1),
    *left_out("dapo", "with DAPO's loss", (1.77, 2.01), clip=True),
    *left_out("sample-average", "with the sample average"),
    *left_out("prompt-normalisation", "with prompt normalisation"),
    *left_out("no-filter", "without the zero-variance filter"),
    *left_out("uniform-resampling", "with uniform resampling"),
    *left_out("length-penalty", "with the length penalty"),
    *left_out("ppo-8", "with PPO-off-policy-8"),
    Finding("7", "ScaleRL in bf16 without the FP32 head: same ceiling", "loo-no-fp32-head", "scalerl-bf16", "A", 0),
)


FIGURES = {
    "2": "recipes",
    "4a": "PipelineRL-8 and PPO-off-policy-8",
    "5a": "losses",
    "6": "loss aggregation, advantage normalisation, prompts",
    "7": "leave one out",
}


def flags(name):
    """The command line of a configuration, without --seed and --out."""
    own = CONFIGURATIONS[name]
    above = flags(own.reference) if own.reference else ["--prompts", str(EMBEDDED["prompts"]), "--dtype", "float32"]
    return above + own.flags.split()


def figures_of(name):
    """The paper's figures that a configuration is run for, as a string."""
    return ", ".join(sorted({f.figure for f in FINDINGS if name in (f.configuration, f.reference)}))


def kept(folder):
    """{(name, seed): rows} of the logs NAME-SEED.jsonl in a folder."""
    paths = {
        (name, seed): folder / f"{name}-{seed}.jsonl"
        for name, own in CONFIGURATIONS.items()
        for seed in range(own.seeds)
    }
    return {pair: rows_of(path) for pair, path in paths.items() if path.exists()}


def rows_of(path):
    """The rows of a log."""
    return [json.loads(line) for line in path.open()]


# --- Verdicts --------------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """What the findings need to know of a run."""

    run: fit.Run
    end: float
    A: float
    clipped: float  # share of the trained tokens on which the clip acts
    oldest: int  # age of the oldest token in optimizer steps
    age: float  # mean age of the trained tokens in optimizer steps


def measure(rows, x="tokens"):
    """The Measured of a kept log, given as its rows; x: column of the compute."""
    evaluations, steps = ([row for row in rows if row["kind"] == kind] for kind in ("eval", "step"))
    rates = [row["pass_rate"] for row in evaluations]
    one = fit.Run([row[x] for row in evaluations], rates, start="10%")
    law = fitted(one)
    clipped = mean([row["clipped"] for row in steps if "clipped" in row] or [nan])  # absent: no batch had a gradient
    ages = sum((Counter({int(age): n for age, n in row["staleness"].items()}) for row in steps), Counter())
    return Measured(
        one,
        mean(rates[-(len(rates) // 4) :]),
        law.A if law else nan,
        clipped,
        max(ages),
        sum(age * n for age, n in ages.items()) / ages.total(),
    )


def fitted(run, A=None):
    """The Fit of a fit.Run, with A fixed if given; None if it cannot be fitted, or B with this A is a mere jump."""
    try:
        law = fit.fit_run(run, A=A)
    except fit.BadInput:
        return None
    return None if A is not None and law.B > fit.JUMP else law


def values(runs, quantity, A):
    """The quantity of each Measured run, nan where it has none; B and C_mid are fitted with A fixed to `A`."""
    if quantity in ("B", "C_mid"):
        return [getattr(fitted(one.run, A), quantity, nan) for one in runs]
    return [getattr(one, quantity) for one in runs]


def common_A(runs):
    """The mean A of the runs that have one, with which their B are fitted (A.5); nan if none has."""
    return mean([one.A for one in runs if one.A == one.A] or [nan])


def until_it_falls(rows):
    """The rows up to the peak of the pass rate if it falls after it (`fit.peak`), else all."""
    evaluations = [n for n, row in enumerate(rows) if row["kind"] == "eval"]
    last, drop, limit = fit.peak(np.array([rows[n]["pass_rate"] for n in evaluations]))
    return rows[: evaluations[last] + 1] if drop > limit else rows


def pooled(samples):
    """(standard deviation, degrees of freedom) within samples, assuming one standard deviation for all of them.

    >>> pooled([[1, 3], [4, 6, 8]])  # squares 1 + 1 and 4 + 0 + 4, over 1 + 2 degrees of freedom
    (1.8257418583505538, 3)
    """
    samples = [known for sample in samples if (known := [value for value in sample if value == value])]  # without nan
    squares = sum(sum((value - mean(sample)) ** 2 for value in sample) for sample in samples)
    freedom = sum(len(sample) - 1 for sample in samples)
    return ((squares / freedom) ** 0.5, freedom) if freedom else (float("nan"), 0)


def interval(one, other, spread, freedom):
    """(D, low, high): the difference of the means of two samples, and its 90 % interval."""
    difference = mean(one) - mean(other)
    reach = stdtrit(freedom, 0.95) * spread * (1 / len(one) + 1 / len(other)) ** 0.5
    return difference, difference - reach, difference + reach


def verdict(low, high, *, direction, quantity, clip_idle=False):
    """(verdict, why) by the rule at the top of this file. low, high: the 90 % interval of configuration - reference.

    >>> verdict(0.01, 0.03, direction=+1, quantity="A")
    ('agrees', 'beyond 0 that way')
    """
    margin, zero = MARGIN[quantity], "" if low <= 0 <= high else "; not 0"
    inside, outside = -margin <= low and high <= margin, low > margin or high < -margin
    if clip_idle:
        return "cannot tell", "the clip is idle"
    if not low <= high:
        return "cannot tell", "no interval"
    if direction == 0:
        return (
            ("agrees", f"within {margin}")
            if inside
            else ("does not", f"outside {margin}")
            if outside
            else ("cannot tell", f"neither within nor outside {margin}{zero}")
        )
    if min(low * direction, high * direction) > 0:
        return "agrees", "beyond 0 that way"
    if max(low * direction, high * direction) < 0:
        return "does not", "beyond 0 the other way"
    if quantity == "A" and inside:
        return "does not", f"within {margin}"
    return "cannot tell", "the interval holds 0"


def judged(logs):
    """{finding: (D, low, high, verdict, why)} of the findings whose two sides have runs. logs: {(name, seed): rows}"""
    groups = {x: grouped(logs, x) for x in {f.x for f in FINDINGS}}
    tested = [f for f in FINDINGS if {f.configuration, f.reference} <= groups[f.x].keys()]
    spread = {
        (x, quantity): pooled([values(runs, quantity, common_A(runs)) for runs in groups[x].values()])
        for x, quantity in {(f.x, f.quantity) for f in tested}
    }
    found = {}
    for finding in tested:
        one, other = (groups[finding.x][name] for name in (finding.configuration, finding.reference))
        A = common_A(one + other)
        samples = (values(runs, finding.quantity, A) for runs in (one, other))
        difference = interval(*samples, *spread[finding.x, finding.quantity])
        idle = finding.clip and all(measured.clipped < IDLE_CLIP for measured in one + other)
        rule = dict(direction=finding.direction, quantity=finding.quantity, clip_idle=idle)
        word, why = verdict(*difference[1:], **rule)
        ages = [mean(measured.age for measured in runs) for runs in (one, other)]
        why += "; tokens {:.1f} against {:.1f} steps old".format(*ages) if abs(ages[0] - ages[1]) > 1 else ""
        found[finding] = *difference, word, why
    return found


def grouped(logs, x):
    """{configuration: [Measured]} of the runs that count for compute x."""
    groups = {}
    for (name, seed), rows in logs.items():
        if counts(name, seed, x):
            groups.setdefault(name, []).append(measure(rows, x))
    return groups


def counts(name, seed, x):
    """Whether a run counts for compute x. Device-hours count only if the machine did nothing else during the run."""
    return x != "gpu_hours" or seed < CONFIGURATIONS[name].quiet


def averaged(logs, name, x):
    """A fit.Run of a configuration's mean over its seeds, up to the last evaluation that all of its runs have."""
    seeds = [
        [(row[x], row["pass_rate"]) for row in rows if row["kind"] == "eval"]
        for (one, seed), rows in logs.items()
        if one == name and counts(name, seed, x)
    ]
    C, R = np.mean([one[: min(map(len, seeds))] for one in seeds], 0).T
    return fit.Run(C, R, start="10%", name=f"{name} ({len(seeds)})", unit=x)


def table(logs):
    """The findings as lines of Markdown, then what else is to be known of them."""
    rising = {pair: until_it_falls(rows) for pair, rows in logs.items()}
    found, cut = judged(logs), judged(rising)
    head = "| Fig. | finding | paper | ours: difference (90 % interval) | verdict | until it falls |"
    lines = [line(finding, found[finding], cut[finding]) for finding in found]
    return [head, "|---" * 6 + "|", *lines, "", *remarks(logs, rising, found)]


def line(finding, found, cut):
    """A line of the table. found: (D, low, high, verdict, why); cut: the same with runs until they fall, said if it
    differs.
    """
    said = {-1: "lower", 0: "the same", 1: "higher"}[finding.direction]
    numbers = ", {} against {}".format(*finding.paper) if finding.paper else ""
    ours, until = ("{:+.3f} ({:+.3f} to {:+.3f})".format(*one[:3]) for one in (found, cut))
    until = f"{until}, {cut[3]}" if until != ours or cut[3] != found[3] else ""
    return (
        f"| {finding.figure} | {finding.says} | {finding.quantity} {said}{numbers} | {finding.quantity} {ours} "
        f"| {found[3]}: {found[4]} | {until} |"
    )


def remarks(logs, rising, found):
    """Lines: how many findings were tested; each configuration's clip, ages and end; Fig. 4a's speed; runs that fall.

    rising: the logs until they fall.
    """
    count = Counter(row[3] for row in found.values())
    groups, hours = grouped(logs, "tokens"), grouped(rising, "gpu_hours")
    verdicts = ", ".join(f"{count[word]} {word}" for word in ("agrees", "does not", "cannot tell"))
    lines = [
        f"{len(found)} of {len(FINDINGS)} findings tested: {verdicts}. Of 90 % intervals one in ten errs, and "
        "findings with a common reference err together."
    ]
    for name, runs in groups.items():
        clipped, age, end = (mean(getattr(one, what) for one in runs) for what in ("clipped", "age", "end"))
        lines.append(
            f"{name} ({len(runs)}): {clipped:.3%} of tokens clipped, tokens {age:.1f} steps old, the oldest "
            f"{max(one.oldest for one in runs)}; pass rate at the end {end:.3f}"
        )
    if hours:
        A = common_A([one for runs in hours.values() for one in runs])
        known = (f"{name} {', '.join(f'{x:.3f}' for x in values(runs, 'C_mid', A))}" for name, runs in hours.items())
        lines.append(f"device-hours to half of the gain, with A = {A:.3f}: {'; '.join(known)}")
    falling = [f"{name}-{seed}" for (name, seed), rows in logs.items() if len(rising[name, seed]) < len(rows)]
    lines += ["falling after a peak: " + ", ".join(falling)] if falling else []
    ceilings = [row for finding, row in found.items() if finding.quantity == "A"]
    if ceilings and all(low <= 0 <= high for _, low, high, *_ in ceilings):
        lines.append("A differs nowhere: on this task the prompts fix the ceiling, not the recipe.")
    return lines
