"""Do the paper's main comparisons (Fig. 2, 4a, 5a, 6, 7) come out the same way on the embedded task?

    python benchmarks/study.py --list                             every configuration, its flags, which runs are there
    python benchmarks/study.py --only 'loo-*' --seeds 0 1         the runs among these that are missing, seed by seed
    python benchmarks/study.py --quiet                            those of Fig. 4a whose device-hours count: nothing
                                                                  else may use the machine meanwhile
    python benchmarks/study.py --verdicts                         the table of findings, from what is in results/study

A run of 10 to 15 minutes on two cores is kept as results/study/NAME-SEED.jsonl, in at most 15 kB: every evaluation, and
what happened between two of them. An interrupted run goes on where its last checkpoint was. Steps, batches and tokens
depend on no timing, so only --quiet runs need a machine to themselves.

All configurations have the embedded task's steps, learning rate and prompts per step, those of A.16 with 80 prompts
too, so that a difference has one cause. FINDINGS was written down before the runs: of each finding the two sides, the
one quantity that the paper names for it and the direction it gives. Nothing is tuned until it agrees.

    D = configuration - reference, of the means over seeds, in
        end   mean of the last quarter of the evaluations
        A     of Eq. 1, fitted to each run
        B     of Eq. 1, all runs of both sides fitted again with A fixed to the mean of all their A (A.5)
    90 % interval: D -+ t s sqrt(1/n + 1/m), with n and m the seeds of both sides, s the standard deviation between
    seeds, pooled over all configurations (two seeds alone say little of it), t the 95 % quantile of Student's t with
    the degrees of freedom of s

    agrees       the interval lies beyond 0 in the paper's direction; where the paper says "the same", within the margin
    does not     it lies beyond 0 the other way, or wholly outside the margin where the paper says "the same"; or, where
                 the paper names a difference in A, which by its own margin is one of 0.02 or more, within the margin
    cannot tell  everything else; and a clip that acts on under 0.1 % of the tokens on both sides is idle, and can have
                 made no difference
Margin: 0.02 for end and A (A.5), 0.15 for B (ours: twice the spread of B between seeds).

Test: pytest tests/test_study.py
"""

import argparse
import fnmatch
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from scipy.special import stdtrit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import fit  # noqa: E402  (the modules lie one folder up, whatever the working folder is)
from recipes import EMBEDDED  # noqa: E402

RESULTS, RUNS = ROOT / "results" / "study", ROOT / "runs" / "study"
MARGIN = {"end": 0.02, "A": 0.02, "B": 0.15}
IDLE_CLIP = 0.001  # share of tokens


class Configuration(NamedTuple):
    """What is run; its flags are those of `reference`, if it has one, and its own."""

    name: str
    reference: str | None
    flags: str
    figures: str  # of the paper
    seeds: int = 2
    quiet: bool = False  # needs the machine to itself


CONFIGURATIONS = {c.name: c for c in (
    Configuration("baseline", None, "--recipe baseline", "2, 4a"),
    Configuration("deepseek", None, "--recipe deepseek", "2"),
    Configuration("qwen2.5", None, "--recipe qwen2.5", "2"),
    Configuration("magistral", None, "--recipe magistral", "2"),
    Configuration("minimax", None, "--recipe minimax", "2"),
    Configuration("scalerl", None, "--recipe scalerl", "2, 7", seeds=5),
    Configuration("pipeline-8", "baseline", "--off-policy pipeline", "4a, 5a, 6", seeds=5),
    Configuration("quiet-ppo-8", "baseline", "", "4a", quiet=True),
    Configuration("quiet-pipeline-8", "pipeline-8", "", "4a", quiet=True),
    Configuration("cispo", "pipeline-8", "--loss cispo", "5a"),
    Configuration("gspo", "pipeline-8", "--loss gspo", "5a"),
    Configuration("prompt-average", "pipeline-8", "--average prompt", "6"),
    Configuration("token-average", "pipeline-8", "--average token", "6"),
    Configuration("batch-normalisation", "pipeline-8", "--normalisation batch", "6"),
    Configuration("no-normalisation", "pipeline-8", "--normalisation none", "6"),
    Configuration("zero-variance-filter", "pipeline-8", "--zero-variance-filter", "6"),
    Configuration("no-positive-resampling", "pipeline-8", "--no-positive-resampling 0.9", "6"),
    Configuration("loo-dapo", "scalerl", "--loss dapo", "7"),
    Configuration("loo-sample-average", "scalerl", "--average sample", "7"),
    Configuration("loo-prompt-normalisation", "scalerl", "--normalisation prompt", "7"),
    Configuration("loo-no-filter", "scalerl", "--no-zero-variance-filter", "7"),
    Configuration("loo-uniform-resampling", "scalerl", "--no-positive-resampling off", "7"),
    Configuration("loo-length-penalty", "scalerl", "--length-control penalty", "7"),
    Configuration("loo-ppo-8", "scalerl", "--off-policy ppo", "7"),
    Configuration("scalerl-bf16", "scalerl", "--dtype bfloat16", "7"),  # with fp32 bodies the head's flag does nothing
    Configuration("loo-no-fp32-head", "scalerl-bf16", "--no-fp32-head", "7"),
)}


class Finding(NamedTuple):
    """A sentence of the paper about two configurations."""

    figure: str
    says: str
    configuration: str
    reference: str
    quantity: str  # "end", "A" or "B": the one that the paper names
    direction: int  # of configuration - reference: +1, -1, or 0 for "the same"
    paper: str = "none"  # its number, where it gives one
    x: str = "tokens"  # compute, as in our logs
    clip: bool = False  # a finding about a clip


def left_out(name, without, paper="none", clip=False):
    """Sec. 4 says two things of each component left out of ScaleRL: the ceiling stays, the efficiency falls."""
    return (Finding("7", f"ScaleRL {without}: same ceiling", f"loo-{name}", "scalerl", "A", 0, clip=clip),
            Finding("7", f"ScaleRL {without}: less efficient", f"loo-{name}", "scalerl", "B", -1, paper, clip=clip))


FINDINGS = (
    Finding("2", "ScaleRL ends above the baseline", "scalerl", "baseline", "A", +1),
    Finding("2", "ScaleRL ends above DeepSeek's GRPO", "scalerl", "deepseek", "A", +1),
    Finding("2", "ScaleRL ends above Qwen2.5's DAPO", "scalerl", "qwen2.5", "A", +1),
    Finding("2", "ScaleRL ends above Magistral", "scalerl", "magistral", "A", +1),
    Finding("2", "ScaleRL ends above MiniMax", "scalerl", "minimax", "A", +1),
    Finding("4a", "PipelineRL-8 and PPO-off-policy-8: same ceiling", "pipeline-8", "baseline", "A", 0),
    Finding("4a", "PipelineRL-8 is the more efficient", "quiet-pipeline-8", "quiet-ppo-8", "B", +1, x="gpu_hours"),
    Finding("4a", "a step of PipelineRL-8 gains as much", "pipeline-8", "baseline", "B", 0, x="step"),
    Finding("5a", "CISPO has a higher ceiling than DAPO", "cispo", "pipeline-8", "A", +1, clip=True),
    Finding("5a", "GSPO has a higher ceiling than DAPO", "gspo", "pipeline-8", "A", +1, clip=True),
    Finding("6", "prompt average above sample average", "prompt-average", "pipeline-8", "A", +1),
    Finding("6", "prompt average above token average", "prompt-average", "token-average", "A", +1),
    Finding("6", "batch and prompt normalisation: the same", "batch-normalisation", "pipeline-8", "A", 0),
    Finding("6", "no and prompt normalisation: the same", "no-normalisation", "pipeline-8", "A", 0),
    Finding("6", "the zero-variance filter lifts the ceiling", "zero-variance-filter", "pipeline-8", "A", +1),
    Finding("6", "No-Positive-Resampling lifts the ceiling", "no-positive-resampling", "pipeline-8", "A", +1),
    *left_out("dapo", "with DAPO's loss", "B 2.01 and 1.77", clip=True),
    *left_out("sample-average", "with the sample average"),
    *left_out("prompt-normalisation", "with prompt normalisation"),
    *left_out("no-filter", "without the zero-variance filter"),
    *left_out("uniform-resampling", "with uniform resampling"),
    *left_out("length-penalty", "with the length penalty"),
    *left_out("ppo-8", "with PPO-off-policy-8"),
    Finding("7", "ScaleRL without the FP32 head: same ceiling", "loo-no-fp32-head", "scalerl-bf16", "A", 0),
)


# --- Runs ------------------------------------------------------------------------------------------------------------


def flags(name):
    """The command line of a configuration, without seed and folder."""
    own = CONFIGURATIONS[name]
    above = flags(own.reference) if own.reference else ["--prompts", str(EMBEDDED["prompts"])]
    return above + own.flags.split()


def wanted(pattern="*", seeds=None, quiet=False):
    """[(name, seed)], the first seed of every configuration before the second of any."""
    chosen = [c for c in CONFIGURATIONS.values() if fnmatch.fnmatch(c.name, pattern) and c.quiet == quiet]
    every = range(max((c.seeds for c in chosen), default=0))
    return [(c.name, seed) for seed in every for c in chosen if seed < c.seeds and (seeds is None or seed in seeds)]


def place(name, seed):
    """Where the log of a finished run is kept."""
    return RESULTS / f"{name}-{seed}.jsonl"


def rows_of(path):
    return [json.loads(line) for line in path.open()] if path.exists() else []


def run(name, seed):
    """One run, from its last checkpoint if it has one; its log goes to results/study when it has ended by itself."""
    out = RUNS / f"{name}-{seed}"
    started = list(out.glob("checkpoint-*"))
    if not started and (out / "log.jsonl").exists():
        (out / "log.jsonl").unlink()  # it was interrupted before its first checkpoint
    more = ["--resume"] if started else [*flags(name), "--seed", str(seed)]
    train([*more, "--out", str(out)])
    rows = rows_of(out / "log.jsonl")
    if rows[-1]["kind"] != "end" or rows[-1]["reason"] not in ("finished", "curriculum exhausted"):
        sys.exit(f"study.py: {out} ended with {rows[-1].get('reason', 'no reason')!r}; run this again to go on with it")
    RESULTS.mkdir(parents=True, exist_ok=True)
    place(name, seed).write_text("".join(json.dumps(row) + "\n" for row in reduced(rows)))


def train(argv):
    """train.py in a process of its own. Raises subprocess.CalledProcessError if it fails."""
    command = [sys.executable, str(ROOT / "train.py"), *argv]
    with subprocess.Popen(command) as process:
        try:
            status = process.wait()
        except KeyboardInterrupt:  # it reaches the run too, which ends in order, with a checkpoint
            status = process.wait()
    if status:
        raise subprocess.CalledProcessError(status, command)


def reduced(rows):
    """Of a log what fits and figures read: config, evaluations, end, and before an evaluation one `step` row."""
    steps, kept = {}, []
    for row in rows:
        if row["kind"] == "step":  # a resumed run repeats some: the last line of a step counts
            steps[row["step"]] = row
        elif row["kind"] == "eval":
            kept = [one for one in kept if one["kind"] == "config" or one["step"] < row["step"]]
            since = max((one["step"] for one in kept if one["kind"] == "eval"), default=0)
            kept += [summary([steps[n] for n in sorted(steps) if since < n <= row["step"]])] if row["step"] else []
            kept.append(row)
        elif row["kind"] == "end" or not kept:
            kept.append(row)
    return [short(row) for row in kept]


def summary(steps):
    """One `step` row for several: means of the rates, the largest rho, tokens by age, the last of the rest."""
    means = ("reward", "pass_rate", "kept", "entropy", "log_rho", "clipped", "gradient_norm", "truncated",
             "interrupted", "idle_generators", "idle_trainers", "seconds")
    last = ("kind", "step", "gpu_hours", "tokens", "tokens_trained", "flops", "retired", "epoch")
    ages = sum((Counter(row["staleness"]) for row in steps), Counter())
    known = {name: [row[name] for row in steps if row[name] is not None] for name in means}
    return ({name: steps[-1][name] for name in last} | {name: mean(values) for name, values in known.items() if values}
            | {"rho_max": max(row["rho_max"] for row in steps), "staleness": ages})


def short(value):
    """The same with five significant digits in what is no whole number."""
    if isinstance(value, dict):
        return {name: short(one) for name, one in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def run_missing(pairs):
    """Run what is not in results/study, and say how far it is and, going by the runs that are there, the time left."""
    missing = [pair for pair in pairs if not place(*pair).exists()]
    print(f"{len(pairs) - len(missing)} of {len(pairs)} runs are there")
    for number, (name, seed) in enumerate(missing):
        hours = [rows_of(place(*pair))[-1]["seconds"] / 3600 for pair in pairs if place(*pair).exists()]
        left = f", about {median(hours) * (len(missing) - number):.1f} hours left" if hours else ""
        print(f"--- {number + 1} of {len(missing)}: {name}, seed {seed}{left}", flush=True)
        run(name, seed)


# --- Verdicts --------------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """What of a run the findings need."""

    run: fit.Run
    end: float
    A: float
    clipped: float  # share of trained tokens
    oldest: int  # optimizer steps, of the stalest token


def measure(rows, x="tokens"):
    """Of the rows of a kept log."""
    evaluations, steps = ([row for row in rows if row["kind"] == kind] for kind in ("eval", "step"))
    rates = [row["pass_rate"] for row in evaluations]
    law = fit.fit_run(one := fit.Run([row[x] for row in evaluations], rates, start="10%"))
    return Measured(one, mean(rates[-(len(rates) // 4):]), law.A, mean(row["clipped"] for row in steps),
                    max(int(age) for row in steps for age in row["staleness"]))


def values(runs, quantity, A):
    """A quantity of each Measured run; B at the given A."""
    if quantity == "B":
        return [law.B for law in fit.refit_B([one.run for one in runs], A)]
    return [getattr(one, quantity) for one in runs]


def common_A(runs):
    return mean(one.A for one in runs)


def pooled(samples):
    """(standard deviation, degrees of freedom) within samples, taken as the same in all of them.

    >>> pooled([[1, 3], [4, 6, 8]])  # squares 1 + 1 and 4 + 0 + 4, over 1 + 2 degrees of freedom
    (1.8257418583505538, 3)
    """
    squares = sum(sum((value - mean(sample)) ** 2 for value in sample) for sample in samples)
    freedom = sum(len(sample) - 1 for sample in samples)
    return ((squares / freedom) ** 0.5, freedom) if freedom else (float("nan"), 0)


def interval(one, other, spread, freedom):
    """(D, low, high): the difference of two samples' means with its 90 % interval."""
    difference = mean(one) - mean(other)
    reach = stdtrit(freedom, 0.95) * spread * (1 / len(one) + 1 / len(other)) ** 0.5
    return difference, difference - reach, difference + reach


def verdict(low, high, *, direction, quantity, clip_idle=False):
    """The rule above: (verdict, why). low, high: the 90 % interval of configuration - reference.

    >>> verdict(0.01, 0.03, direction=+1, quantity="A")
    ('agrees', 'beyond 0 that way')
    """
    margin = MARGIN[quantity]
    inside, outside = -margin <= low and high <= margin, low > margin or high < -margin
    if clip_idle:
        return "cannot tell", "the clip is idle"
    if not low <= high:
        return "cannot tell", "no interval"
    if direction == 0:
        return (("agrees", f"within {margin}") if inside else ("does not", f"outside {margin}") if outside
                else ("cannot tell", f"neither within nor outside {margin}"))
    if min(low * direction, high * direction) > 0:
        return "agrees", "beyond 0 that way"
    if max(low * direction, high * direction) < 0:
        return "does not", "beyond 0 the other way"
    if quantity == "A" and inside:
        return "does not", f"within {margin}"
    return "cannot tell", "both sides of 0"


def judged(logs):
    """{finding: (D, low, high, verdict, why)} of those whose two sides have runs. logs: {(name, seed): rows}"""
    found = {}
    by_x = {x: grouped(logs, x) for x in {finding.x for finding in FINDINGS}}
    for finding in FINDINGS:
        groups = by_x[finding.x]
        one, other = (groups.get(name, []) for name in (finding.configuration, finding.reference))
        if one and other:
            samples = [values(runs, finding.quantity, common_A(runs)) for runs in groups.values()]
            A = common_A(one + other)
            difference = interval(*(values(runs, finding.quantity, A) for runs in (one, other)), *pooled(samples))
            idle = finding.clip and all(measured.clipped < IDLE_CLIP for measured in one + other)
            rule = dict(direction=finding.direction, quantity=finding.quantity, clip_idle=idle)
            found[finding] = *difference, *verdict(*difference[1:], **rule)
    return found


def grouped(logs, x):
    """{configuration: [Measured]}; the device-hours of a machine that did other things as well count for nothing."""
    groups = {}
    for (name, _), rows in logs.items():
        if x != "gpu_hours" or CONFIGURATIONS[name].quiet:
            groups.setdefault(name, []).append(measure(rows, x))
    return groups


def table(logs):
    """The findings as lines of Markdown."""
    said, found = {-1: "lower", 0: "the same", 1: "higher"}, judged(logs)
    lines = ["| Fig. | finding | paper | ours: difference (90 % interval) | verdict |", "|---|---|---|---|---|"]
    for finding, (difference, low, high, word, why) in found.items():
        paper = f"{finding.quantity} {said[finding.direction]}" + f", {finding.paper}" * (finding.paper != "none")
        ours = f"{finding.quantity} {difference:+.3f} ({low:+.3f} to {high:+.3f})"
        lines.append(f"| {finding.figure} | {finding.says} | {paper} | {ours} | {word}: {why} |")
    count = Counter(row[3] for row in found.values())
    verdicts = ", ".join(f"{count[word]} {word}" for word in ("agrees", "does not", "cannot tell"))
    lines += ["", f"{len(found)} of {len(FINDINGS)} findings tested: {verdicts}. Of 90 % intervals one in ten errs."]
    groups = grouped(logs, "tokens")
    lines += [f"{name}: {len(runs)} runs, {mean(one.clipped for one in runs):.3%} of tokens clipped, "
              f"the oldest {max(one.oldest for one in runs)} steps old" for name, runs in groups.items()]
    ceilings = [finding for finding in found if finding.quantity == "A" and finding.direction]
    if ceilings and all(found[finding][1] <= 0 <= found[finding][2] for finding in ceilings):
        lines.append("A differs nowhere: on this task the prompts fix the ceiling, not the recipe.")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="the configurations and which runs are there")
    parser.add_argument("--verdicts", action="store_true", help="the table of findings")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="configurations by name, such as 'loo-*'")
    parser.add_argument("--seeds", type=int, nargs="+", help="of these seeds only")
    parser.add_argument("--quiet", action="store_true", help="only the runs that need a machine to themselves")
    args = parser.parse_args()
    if args.list:
        for name, own in CONFIGURATIONS.items():
            there = [seed for seed in range(own.seeds) if place(name, seed).exists()]
            print(f"{name:26} Fig. {own.figures:10} {len(there)} of {own.seeds} runs   {' '.join(flags(name))}")
    elif args.verdicts:
        logs = {(name, seed): rows_of(place(name, seed)) for name, own in CONFIGURATIONS.items()
                for seed in range(own.seeds) if place(name, seed).exists()}
        print(*table(logs), sep="\n")
    else:
        run_missing(wanted(args.only, args.seeds, args.quiet))


if __name__ == "__main__":
    main()
