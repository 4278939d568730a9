"""Predictions and measurements: every function returns one or more numbers. Replace the `raise` by a return of yours.

Think first, then look: `python exercises.py next` says whether it is right, and what is wrong if it is not.
"""

import json
from pathlib import Path


def crossing():
    """Table 1: run 0 has A = 0.585, B = 2.44, C_mid = 2,542; run 1 A = 0.645, B = 1.70, C_mid = 10,909; R_0 = 0.39.

    Returns which run (0 or 1) has the higher pass rate at 5,000 GPU-hours, and which at 50,000.
    """
    R_0 = 0.39
    runs = ((0.585, 2.44, 2542), (0.645, 1.70, 10909))
    rates = [[R_0 + (A - R_0) / (1 + (C_mid / C) ** B) for A, B, C_mid in runs] for C in (5000, 50000)]
    return tuple(rate.index(max(rate)) for rate in rates)


def power_law():
    """Run 1 of `crossing` has A = 0.645. Somebody fits R = A - D / C^B to its points from 5,000 to 50,000 GPU-hours.

    Returns the A of this power law (A.4), to within 0.03.
    """
    return 0.74  # fit.py:fit_power_law on these points; the paper gives the same number


def half():
    """Eq. 1, fitted to the first half of the compute of results/main_seed4.jsonl.

    Returns the forecast of the last evaluation, the measured one, and forecast - measured.
    """
    from forecast import fitted, hindcast
    from plumbing.foreign_logs import read_run

    row = hindcast(fitted(read_run("results/main_seed4.jsonl")._replace(start="10%", stop="50%")))
    return row["forecast"], row["measured"], row["error"]


def weights():
    """A token is now 8 times as likely as when it was sampled. CISPO: eps_max 4; DAPO: eps_low 0.2, eps_high 0.26.

    Returns d objective / d log pi_train: (CISPO's, DAPO's for A = +1, CISPO's, DAPO's for A = -1).
    """
    # CISPO: min(8, 4) A. DAPO: for A = +1 the clipped term 1.26 A is the smaller, for A = -1 the free one, 8 A.
    return 4.0, 0.0, -4.0, -8.0


def dropped():
    """A prompt that the policy solves with probability p gets G answers.

    Returns the probability that the prompt has no gradient (Sec. 3.2), for p = 1/2, G = 4 and for p = 0.9, G = 16, to
    within 0.001.
    """
    return tuple(p**G + (1 - p) ** G for p, G in ((0.5, 4), (0.9, 16)))


def staleness_bound():
    """A token is sampled at one policy version and trained on at a later one; k = 8.

    Returns the largest difference, in optimizer steps, that can occur under (pipeline, ppo).
    """
    # Requests of step v are issued at version v - 8 or later; of a ppo phase v ... v + 7 all are issued at version v.
    return 8, 7


def staleness():
    """`python exercises.py train --data tiny --virtual balanced --steps 20` takes seconds (docs/virtual.md says why).

    Then read `staleness` in the newest runs/*/log.jsonl. Returns the largest staleness of a token, in optimizer steps,
    and the share of tokens with more than 0 steps, of all tokens of the run.
    """
    by_age = {}
    for row in rows("step"):
        for k, tokens in row["staleness"].items():
            by_age[int(k)] = by_age.get(int(k), 0) + tokens
    return max(by_age), 1 - by_age.get(0, 0) / sum(by_age.values())


def idle():
    """Generators need 30 s for a batch, trainers 20 s for an optimizer step; new weights are there at once.

    With ppo, the trainers wait for all batches of a phase.
    Returns the shares of the time, in the long run, in which (generators, trainers) do nothing: for pipeline with
    k = 0, then with k = 1, then for ppo with k = 2; six numbers.
    """
    # pipeline, k = 0: in turn, 50 s a step. k = 1: generators never wait, 30 s a step. ppo: a phase begins with new
    # weights; its batches are there after 60 s, its second step ends after 100 s: in turn as well.
    return 20 / 50, 30 / 50, 0, 10 / 30, 40 / 100, 60 / 100


def queue():
    """`python -m course.timeline --k 8 --generate 30 --train T` with T = 15, then with T = 60 (chapter 4 solved).

    Returns the mean staleness of the tokens, in optimizer steps, for both T.
    """
    from course.timeline import mean_staleness, timeline

    return tuple(mean_staleness(timeline(k=8, generate=30.0, train=train)) for train in (15.0, 60.0))


def too_stale():
    """Three runs of less than a minute each; in stale/k4/log.jsonl each `eval` line has a `pass_rate`:

    for k in 0 4 32; do
      python exercises.py train --data tiny --virtual exact --lr 6e-4 --k $k --eval-every 8 --out stale/k$k
    done

    A run ends at the mean of its last five pass rates. Does one end below its best five in a row?
    Returns the end of k = 0 minus that of k = 4, and that of k = 0 minus that of k = 32, in your own runs.
    """
    last = [[row["pass_rate"] for row in rows("eval", f"stale/k{k}/log.jsonl")][-5:] for k in (0, 4, 32)]
    ends = [sum(rates) / 5 for rates in last]
    return ends[0] - ends[1], ends[0] - ends[2]


def phrase():
    """A completion thinks for 80 tokens, gets a phrase of 17 tokens injected, and answers with 5.

    Returns how many of its tokens carry a loss, and how many tokens of the budget (--max-new-tokens) it has used.
    """
    return 80 + 5, 80 + 17 + 5


def rounding():
    """Add 1 and 2^-9 in bf16, and in fp32. Returns both sums."""
    return 1.0, 1 + 2**-9  # behind the first bit of the sum bf16 has 7 more


def flops():
    """A step of an 8B model generates, and trains on, 768 completions of 10,000 tokens; each prompt has 500 tokens.

    Returns the floating-point operations of the step, counted as in the log (`flops` in docs/running.md).
    """
    generated, trained = 768 * 10_000, 768 * 10_500
    return 8e9 * (2 * generated + 6 * trained)


def kept():
    """Each `step` line of results/main_seed0.jsonl says how many of its 32 prompts have a gradient (`kept`).

    Returns the mean share of prompts that are kept, over the first ten steps and over the last ten.
    """
    steps = rows("step", "results/main_seed0.jsonl")
    return tuple(sum(row["kept"] for row in part) / 320 for part in (steps[:10], steps[-10:]))


def own_loss():
    """Without its ratio CISPO is REINFORCE. Write it, without the weight sg(min(rho, eps_max)), in a file mine.py:

        def objective(logprobs, gen_logprobs, advantages, mask):  # shapes as in loss.cispo

    By how much does CISPO end higher where every token is 8 steps old? Predict it (negative: it ends lower). Then
    compare, which takes some minutes on two cores. Run this in the folder of the project, which has lab/, with the path
    of this folder for HERE:

        python -m lab.compare "cispo: --loss cispo" "mine: --loss HERE/mine.py:objective" --seeds 3 --data tiny \\
            --virtual exact --k 8 --eval-every 8 --out HERE/race

    In each race/KEY/log.jsonl the first line has the `flags`, one of them `loss`, and each `eval` line a `pass_rate`.
    A run ends at the mean of its last five pass rates.
    Returns your prediction of CISPO's end minus yours, and what you measured: the mean over the three seeds.
    """
    ends = {"cispo": [], "mine": []}
    if not Path("race").is_dir():
        raise FileNotFoundError("there is no race/ here yet")
    for log in Path("race").glob("*/log.jsonl"):
        name = "cispo" if rows("config", log)[0]["flags"]["loss"] == "cispo" else "mine"
        ends[name].append(sum(row["pass_rate"] for row in rows("eval", log)[-5:]) / 5)
    cispo, mine = (sum(rates) / len(rates) for rates in ends.values())
    return 0.0, cispo - mine


def six_steps():
    """Six steps on the task `tiny`, in virtual time: one run has your solved functions, the other one has ours.

    Returns the largest difference that you expect between a number in one log and the same number in the other.
    """
    return 0.0


def rows(kind, log=None):
    """For your own use: the rows of this kind in the log at this path, by default in the newest log in runs/."""
    logs = sorted(Path("runs").glob("*/log.jsonl"), key=lambda path: path.stat().st_mtime)
    if not log and not logs:
        raise FileNotFoundError("there is no run in runs/ yet")
    return [row for row in map(json.loads, Path(log or logs[-1]).open(encoding="utf-8")) if row["kind"] == kind]
