"""Chapter 4: asynchrony (Sec. 3.1, A.11). Claims, wrong answers, exercises. Test: pytest tests/test_exercises.py"""

from types import SimpleNamespace
from unittest.mock import MagicMock

from course.checks.claims import Chapter

ASYNCHRONY = Chapter()


# --- requests --------------------------------------------------------------------------------------------------------


RULES = ("pipeline", "ppo")


def requests(issued, k, steps, per_step):
    """N(v), the number of requests issued by version v: a row per rule, a number per version."""
    return [[issued(v, off_policy=rule, k=k, steps=steps, per_step=per_step) for v in range(steps)] for rule in RULES]


def _batches(version, off_policy, k):
    """Right: batches whose requests are issued by this version, in a run without an end."""
    return k + 1 + version if off_policy == "pipeline" else (version // k + 1) * k


def requests_k_batches(version, off_policy, k, steps, per_step):
    """issue k + v batches instead of k + 1 + v in a pipeline: with k = 0 nothing ever starts."""
    return min(_batches(version, off_policy, k) - (off_policy == "pipeline"), steps) * per_step


def requests_without_end(version, off_policy, k, steps, per_step):
    """forget the end of the run: requests are issued for steps that never come."""
    return _batches(version, off_policy, k) * per_step


def requests_ppo_every_step(version, off_policy, k, steps, per_step):
    """let ppo issue requests in every step instead of once per phase, as a pipeline does."""
    return min(k + 1 + version if off_policy == "pipeline" else version + k, steps) * per_step


def requests_in_batches(version, off_policy, k, steps, per_step):
    """count batches instead of prompts."""
    return min(_batches(version, off_policy, k), steps)


# k = 2, 5 steps of 10 prompts: pipeline 3, 4, 5, 5, 5 batches; ppo phases of 2, 2 and the last 1: 2, 2, 4, 4, 5.
ASYNCHRONY.write(
    name="requests",
    where="pipeline.py:admission_limit",
    minutes=15,
    teaches="How stale a token may be is decided when its prompt is handed out, not when it arrives.",
    hints=(
        "Sec. 3.1; N(v) at the top of pipeline.py.",
        "OFF_POLICY counts batches, N(v) requests; none may be admitted for steps that never come.",
        "As many batches as the rule in OFF_POLICY says, but no more than the run has steps; P requests each.",
    ),
    says="pipeline, then ppo, versions 0 to 4, for k = 2, 5 steps, 10 prompts",
    probe=requests,
    inputs=(2, 5, 10),
    expected=[[30, 40, 50, 50, 50], [20, 20, 40, 40, 50]],
    labels="pipeline, ppo",
    mistakes=(requests_k_batches, requests_without_end, requests_ppo_every_step, requests_in_batches),
)


# --- rule-bound ------------------------------------------------------------------------------------------------------


def ended(check_staleness, step, k, batches):
    """Whether each batch, lists of the versions of rollouts' tokens, ends the run of pipeline, then that of ppo."""
    by_rule = {rule: [] for rule in RULES}
    for rule, ends in by_rule.items():
        for batch in batches:
            groups = [[SimpleNamespace(key="", versions=dict.fromkeys(own, 1)) for own in group] for group in batch]
            try:
                check_staleness(groups, step, off_policy=rule, k=k)
                ends.append(False)
            except NotImplementedError:  # which is a RuntimeError too
                raise
            except RuntimeError:
                ends.append(True)
    return [*by_rule.values()]


def _end_if(too_old):
    if too_old:
        raise RuntimeError


def _ages(groups, step):
    """Right: the staleness of the oldest token of each rollout that has any."""
    return [step - min(rollout.versions) for group in groups for rollout in group if rollout.versions]


def rule_bound_is_k(groups, step, off_policy, k):
    """take k for both rules: all batches of a phase of ppo begin at one version, so its last one is k - 1 steps old."""
    _end_if(max(_ages(groups, step), default=0) > k)


def rule_bound_itself_ends(groups, step, off_policy, k):
    """end the run at the bound: a token may be as old as the rule promises, not older."""
    _end_if(max(_ages(groups, step), default=0) >= k - (off_policy == "ppo"))


def rule_bound_of_the_newest(groups, step, off_policy, k):
    """look at the newest token of a rollout: one that was half done when new weights came has older ones."""
    ages = [step - max(rollout.versions) for group in groups for rollout in group if rollout.versions]
    _end_if(max(ages, default=0) > k - (off_policy == "ppo"))


# Step 10, k = 3: pipeline bears 3 steps, ppo 2. Oldest tokens of version 7, 8, 6; none; 6 in the last rollout; 6 and 9.
ASYNCHRONY.write(
    name="rule-bound",
    where="pipeline.py:check_staleness",
    minutes=15,
    teaches="A rule promises a bound, and every batch is held to it: a rule that broke it would only train worse.",
    hints=(
        "Sec. 3.1; `bound` of a Rule, and the rows of OFF_POLICY.",
        "A rollout may have tokens of several versions, or none that was sampled.",
        "The staleness of a rollout is the step minus the oldest of its versions; above the bound, RuntimeError.",
    ),
    says="with k = 3, pipeline ends at a token 4 steps old, ppo at one of 3",
    probe=ended,
    inputs=(10, 3, [[[[7]]], [[[8]]], [[[6]]], [[[]]], [[[9], [9]], [[9], [6]]], [[[9, 6]]]]),
    expected=[[False, False, True, False, True, True], [True, False, True, False, True, True]],
    labels="pipeline, ppo",
    mistakes=(rule_bound_is_k, rule_bound_itself_ends, rule_bound_of_the_newest),
)


# --- metadata --------------------------------------------------------------------------------------------------------


def sampled_tokens(metadata, versions, mask):
    """From a rollout's metadata: sampled tokens of version 3, of version 4, and the length with injected tokens."""
    rollout = MagicMock(versions=versions, mask=mask, ids=mask, logprobs=[0.0] * len(mask))
    kept = metadata(MagicMock(completion=rollout), MagicMock())
    return [kept.versions.get(3, 0), kept.versions.get(4, 0), kept.tokens]


# Three tokens of version 3, five of version 4, of which two are injected: 3, 5 - 2 = 3, and 8 in all.
ASYNCHRONY.bug(
    name="metadata",
    where="pipeline.py:metadata",
    minutes=10,
    teaches="Injected tokens are not the policy's: they enter no count except the length.",
    hints=(
        "A.10, forced interruptions.",
        "Look at what goes into the denominators of a batch: the metadata's counts per version.",
        "Each token has a version and a flag that says whether the policy sampled it.",
    ),
    says="sampled tokens per version; injected tokens count only in the length",
    probe=sampled_tokens,
    inputs=([3, 3, 3, 4, 4, 4, 4, 4], [True] * 4 + [False] * 2 + [True] * 2),
    expected=[3, 3, 8],
    labels="sampled by version 3, sampled by version 4, length",
    bug=(
        "Counter(version for version, sampled in zip(rollout.versions, rollout.mask) if sampled)",
        "Counter(rollout.versions)",
    ),
    symptom="Prompts with interrupted completions weigh less than others, as if they had more tokens.",
)


# --- staleness-bound -------------------------------------------------------------------------------------------------


ASYNCHRONY.predict(
    name="staleness-bound",
    minutes=5,
    teaches="k bounds the staleness of a token, but not by the same number in the two setups.",
    hints=(
        "Sec. 3.1; the top of pipeline.py.",
        "A phase of ppo starts right after its generators got new weights.",
        "Follow the last batch of a ppo phase: how many steps were done since it was sampled?",
    ),
    says="the most optimizer steps between the version that sampled a token and the one that trains on it, "
    "(pipeline, ppo), k = 8",
    mistakes={
        "give the same number for both: when do the generators of each get new weights?": (8, 8),
        "also count the step that trains on the token: a token's staleness is that at the start of the step.": (9, 8),
        "count the batches in flight: the first of them is already in training.": (9, 9),
    },
    labels="pipeline, ppo",
)


# --- idle ------------------------------------------------------------------------------------------------------------


ASYNCHRONY.predict(
    name="idle",
    minutes=15,
    teaches="Asynchrony makes neither generators nor trainers faster: the slower of the two never waits.",
    hints=(
        "Sec. 3.1, A.11; the rules at the top of pipeline.py.",
        "Draw two lines, one for generators, one for trainers; with k = 1 one batch is made while another trains.",
        "How long is a step in the long run, or a phase of ppo, and how much of it is work for each?",
    ),
    says="shares of the time without work, (generators, trainers) for pipeline k = 0, k = 1 and ppo k = 2",
    mistakes={
        "let ppo's trainers begin with the first batch of a phase: they wait for the whole phase.": (
            0.4,
            0.6,
            0.0,
            1 / 3,
            0.25,
            0.5,
        ),
        "expect asynchrony to keep both busy: the slower one sets the pace, and the other one waits for it.": (
            0.4,
            0.6,
            0.0,
            0.0,
            0.4,
            0.6,
        ),
        "mix up generators and trainers.": (0.6, 0.4, 1 / 3, 0.0, 0.6, 0.4),
    },
    atol=5e-3,
    labels="generators with k = 0, trainers, generators with k = 1, trainers, generators of ppo, trainers",
)


# --- queue -----------------------------------------------------------------------------------------------------------


ASYNCHRONY.measure(
    name="queue",
    minutes=10,
    teaches="k bounds staleness; how large it gets depends on who is slower: slow trainers get stale tokens.",
    hints=(
        "Sec. 3.1; `python -m course.timeline --help`.",
        "It uses your admission_limit; `solve requests` if it is not written yet.",
        "The last line it prints, once for each T.",
    ),
    says="the mean staleness for k = 8 where the generators are slower, and where the trainers are",
    labels="T = 15, T = 60",
    atol=2e-2,
)


# --- staleness -------------------------------------------------------------------------------------------------------


ASYNCHRONY.measure(
    name="staleness",
    minutes=15,
    teaches="The bound holds in a whole run, and some tokens stay below it.",
    hints=(
        "Sec. 3.1; the table of the log's columns in docs/running.md.",
        "`python exercises.py train --data tiny --virtual balanced --steps 20` first; the newest log in runs/ counts.",
        "Every `step` line has `staleness`, {steps: tokens}: add them up over the lines.",
    ),
    says="the largest one of a token in your own run, and the share of tokens with more than 0 steps",
    labels="largest, share above 0",
    atol=2e-3,
)


# --- too-stale -------------------------------------------------------------------------------------------------------


ASYNCHRONY.measure(
    name="too-stale",
    minutes=20,
    teaches="Little staleness costs little, much costs most of what RL gains; where the edge lies depends on lr.",
    hints=(
        "Fig. 4b, A.10; docs/virtual.md: with --virtual exact every token is k steps old once k steps are done.",
        "Three runs, in stale/k0, stale/k4 and stale/k32; nothing else may differ between them.",
        "The mean of the last five `pass_rate` of each log; then try --lr 3e-4 or --loss gspo for the same k.",
    ),
    says="what k = 4 and k = 32 lose at the end against k = 0, in your own runs",
    labels="k = 4, k = 32",
    atol=2e-3,
)
