"""The paper's main comparisons (Fig. 2, 4a, 5a, 6, 7) on the embedded task: which runs are made, for which sentences.

`study/run.py` makes the runs and prints the verdicts, study/rule.py says how a sentence is judged. FINDINGS was written
before the runs, but for the compute of Fig. 4a's "same ceiling" (tokens at first, steps since 7 runs were there), the
control pipeline-1 (16 runs), and E, by which efficiency is judged (B at first; 56 runs). Each finding names two
configurations, the one quantity in which the paper compares them, and the direction of the difference in the paper. No
setting is tuned to make a finding agree.

Every configuration has the steps, the learning rate and the prompts per step of the embedded task, even the recipes for
which A.16 gives 80 prompts. So none of these can cause a difference. The runs are asynchronous: under PipelineRL-8
tokens are 0 to 8 steps old, and where in between depends on which of generators and trainer is the slower, so on the
filter and, if both are about equally fast, on the machine's load.

Test: pytest tests/test_study.py
"""

from typing import NamedTuple

from plumbing import run_folder
from recipes import EMBEDDED


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
        Configuration("pipeline-1", "pipeline-8", "--k 1"),  # a control of staleness, in no finding
        Configuration("cispo", "pipeline-8", "--loss cispo"),
        Configuration("gspo", "pipeline-8", "--loss gspo"),
        Configuration("prompt-average", "pipeline-8", "--aggregation prompt"),
        Configuration("token-average", "pipeline-8", "--aggregation token"),
        Configuration("batch-normalisation", "pipeline-8", "--normalisation batch"),
        Configuration("no-normalisation", "pipeline-8", "--normalisation none"),
        Configuration("zero-variance-filter", "pipeline-8", "--zero-variance-filter"),
        Configuration("no-positive-resampling", "pipeline-8", "--no-positive-resampling 0.9"),
        Configuration("loo-dapo", "scalerl", "--loss dapo"),
        Configuration("loo-sample-average", "scalerl", "--aggregation sample"),
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
    quantity: str  # "A", the asymptote, or "E", the efficiency (study/rule.py)
    direction: int  # of configuration - reference: +1, -1, or 0 for "the same"
    paper: tuple = ()  # its B of configuration and reference, if it gives any
    x: str = "tokens"  # the column of our logs that counts as compute
    clip: bool = False  # whether the finding is about a clip, which may be idle


def left_out(name, without, paper=(), clip=False):
    """The two findings of Sec. 4 about a component left out of ScaleRL: same asymptote, lower efficiency."""
    return (
        Finding("7", f"ScaleRL {without}: same ceiling", f"loo-{name}", "scalerl", "A", 0, clip=clip),
        Finding("7", f"ScaleRL {without}: less efficient", f"loo-{name}", "scalerl", "E", -1, paper, clip=clip),
    )


FINDINGS = (
    Finding("2", "ScaleRL ends above the baseline", "scalerl", "baseline", "A", +1),
    Finding("2", "ScaleRL ends above DeepSeek's GRPO", "scalerl", "deepseek", "A", +1),
    Finding("2", "ScaleRL ends above Qwen2.5's DAPO", "scalerl", "qwen2.5", "A", +1),
    Finding("2", "ScaleRL ends above Magistral", "scalerl", "magistral", "A", +1),
    Finding("2", "ScaleRL ends above MiniMax", "scalerl", "minimax", "A", +1),
    Finding("4a", "PipelineRL-8 and PPO-off-policy-8: same ceiling", "pipeline-8", "baseline", "A", 0, x="step"),
    Finding(
        "4a", "PipelineRL-8 is the more efficient in device-hours", "pipeline-8", "baseline", "E", +1, x="gpu_hours"
    ),
    Finding("4a", "a step of PipelineRL-8 gains as much", "pipeline-8", "baseline", "E", 0, x="step"),
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
    """The rows of a log, under today's names."""
    return run_folder.rows(path)[0]


def complete(reason):
    """Whether a run that ended so is a result: it got to its end, or diverged (plumbing/monitor.py)."""
    return reason in ("finished", "curriculum exhausted") or "finite" in reason
