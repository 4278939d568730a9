"""The paper's comparisons on the embedded task where staleness is set: regimes in virtual time, a folder each.

    exact-1    Fig. 2, 5a, 6 and 7. Every token is one optimizer step old after the first step (--virtual exact --k 1).
               Recipes with PPO-off-policy get --k 2: staleness 0 and 1, never more than the others' 1; with --k 1
               they would be on-policy. 90 steps, an evaluation every 6
    exact-8    Fig. 5a, and ScaleRL with DAPO's loss: every token eight steps old, where clips are not idle
    balanced   Fig. 4a: PipelineRL-8 and PPO-off-policy-8 where generators and trainer are about equally fast
               (--virtual balanced), in virtual device-hours. 96 steps, an evaluation every 8

Configurations, findings, margins and the rule of the verdicts are those of study/comparisons.py and study/rule.py; the
spread between seeds is that of the regime. Written before the first run of any of them. The control pipeline-1 is left
out, and a name loses its -8 where k is another. Fig. 4a is not asked where decoding costs nothing.

Seeds: three of each configuration first. Then only pairs that are undecided get more. Stopping rule: for n = 3, 4, 5,
all findings are judged by the first n seeds; both settings of those that are undecided get n + 1 seeds, unless the clip
is idle, a setting has no run with an asymptote, or the settings are the same runs, which no seed mends. Verdicts are
those of all runs at the end, also of findings that were decided earlier. Looking four times errs more often than
looking once: of two equal settings, one look finds a difference one time in ten, up to four looks two times
(simulated); `looks` says how often a finding was looked at. Nothing else is tuned, added or left out. (After two seeds
of each, which runs have an asymptote became stricter, study/rule.py: a setting none of whose runs levels off gets no
more seeds either.)

Test: pytest tests/test_study_runs.py
"""

from typing import NamedTuple

from recipes import RECIPES
from study import comparisons, rule

LEAST = 3  # seeds of each configuration
MOST = 6
# To save CPU seconds, a fifth of them by the slots: where decoding takes no virtual time, slots change sums by rounding
# only; half the completions raise an evaluation's binomial error from 0.011 to 0.015.
WIDE = "--slots 1024 --eval-generations 4"


class Regime(NamedTuple):
    """How stale tokens get, and which of the paper's figures are run with it."""

    says: str
    flags: str  # behind those of a configuration
    ppo: str  # behind those, for PPO-off-policy
    names: tuple  # configurations of study/comparisons.py, in the order in which they are run
    figures: tuple


REGIMES = {
    "exact-1": Regime(
        "exact, k = 1",
        f"--virtual exact --k 1 --steps 90 --eval-every 6 {WIDE}",
        "--k 2",
        (
            *("scalerl", "baseline", "deepseek", "qwen2.5", "magistral", "minimax"),
            *("pipeline-8", "cispo", "gspo", "prompt-average", "token-average", "zero-variance-filter"),
            *("no-positive-resampling", "batch-normalisation", "no-normalisation", "loo-dapo", "loo-no-filter"),
            *("loo-sample-average", "loo-prompt-normalisation", "loo-uniform-resampling", "loo-length-penalty"),
            *("loo-ppo-8", "scalerl-bf16", "loo-no-fp32-head"),
        ),
        ("2", "5a", "6", "7"),
    ),
    "exact-8": Regime(
        "exact, k = 8",
        f"--virtual exact --k 8 --steps 90 --eval-every 6 {WIDE}",
        "",
        ("pipeline-8", "cispo", "gspo", "scalerl", "loo-dapo"),
        ("5a", "7"),
    ),
    "balanced": Regime(
        "virtual time, balanced, k = 8",
        "--virtual balanced --k 8 --steps 96 --eval-every 8",
        "",
        ("pipeline-8", "baseline"),
        ("4a",),
    ),
}


def called(regime, name):
    """What a configuration is called in a regime: without the -8 of the asynchronous runs where k is another."""
    return name if "--k 8" in REGIMES[regime].flags else name.removesuffix("-8")


def names(regime):
    """Its configurations, in the order in which they are run."""
    return [called(regime, name) for name in REGIMES[regime].names]


def flags(regime, name):
    """The command line of a configuration, as `called`, without --seed and --out."""
    own = REGIMES[regime]
    [original] = [one for one in own.names if called(regime, one) == name]
    above = comparisons.flags(original) + own.flags.split()
    return above + (own.ppo.split() if ppo(original) else [])


def ppo(name):
    """Whether a configuration of study/comparisons.py takes turns (PPO-off-policy)."""
    given = comparisons.flags(name)
    values = {flag: value for flag, value in zip(given, given[1:]) if flag in ("--recipe", "--off-policy")}
    return values.get("--off-policy", RECIPES[values["--recipe"]]["off_policy"]) == "ppo"


def findings(regime):
    """The sentences of the paper that the regime's configurations can be judged by."""
    own = REGIMES[regime]
    return [
        one._replace(
            configuration=called(regime, one.configuration),
            reference=called(regime, one.reference),
            says=one.says if "--k 8" in own.flags else one.says.replace("PPO-off-policy-8", "PPO-off-policy, --k 2"),
        )
        for one in comparisons.FINDINGS
        if one.figure in own.figures and {one.configuration, one.reference} <= {*own.names}
    ]


def kept(folder, regime):
    """{(name, seed): rows} of the logs FOLDER/REGIME/NAME-SEED.jsonl."""
    paths = {(name, seed): place(folder, regime, name, seed) for seed in range(MOST) for name in names(regime)}
    return {pair: comparisons.rows_of(path) for pair, path in paths.items() if path.exists()}


def place(folder, regime, name, seed):
    """Where the log of a finished run is kept."""
    return folder / regime / f"{name}-{seed}.jsonl"


def missing(folder, regime, seeds):
    """[(name, seed)] of the first `seeds` seeds that are not there, the first of all before the second of any."""
    pairs = [(name, seed) for seed in range(seeds) for name in names(regime)]
    return [pair for pair in pairs if not place(folder, regime, *pair).exists()]


def due(logs, regime):
    """[(name, seed)] of the runs that the stopping rule asks for now; none before each configuration has LEAST."""
    if any((name, seed) not in logs for name in names(regime) for seed in range(LEAST)):
        return []
    for count in range(LEAST, MOST):
        found = rule.judged({pair: rows for pair, rows in logs.items() if pair[1] < count}, findings(regime))
        asked = {name for one, row in found.items() if open_(row) for name in (one.configuration, one.reference)}
        pairs = [(name, seed) for seed in range(count + 1) for name in names(regime) if name in asked]
        if wanted := [pair for pair in pairs if pair not in logs]:
            return wanted
    return []


def open_(row):
    """Whether more seeds may decide a finding; row: rule.Judged."""
    return row.verdict == "undecided" and row.why not in (rule.IDLE, rule.NO_ASYMPTOTE, rule.SAME)


def looks(logs, finding):
    """How often a finding was looked at: once with LEAST seeds per setting, and once for each seed more."""
    counts = [sum(name == setting for name, _ in logs) for setting in (finding.configuration, finding.reference)]
    return max(1, max(counts) - LEAST + 1)
