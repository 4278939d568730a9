"""Chapter 3: denominators and averages (Eq. 3, 8, Sec. 3.2, A.6). Claims, wrong answers, exercises.

Arguments as in loss.py: objective, mask (B, T); lengths, prompt_index (B,). Test: pytest tests/test_exercises.py
"""

from types import SimpleNamespace

import torch

from course.checks.claims import Chapter, Claim

AVERAGES = Chapter()


# --- denominators ----------------------------------------------------------------------------------------------------


def _counts(lengths, prompt_index):
    """Right: the number of completions, prompts, tokens, and tokens per prompt."""
    sums = [int(lengths[prompt_index == prompt].sum()) for prompt in range(int(prompt_index.max()) + 1)]
    return int((lengths > 0).sum()), sum(tokens > 0 for tokens in sums), sum(sums), torch.tensor(sums)


def denominators_with_filtered_prompts(lengths, prompt_index):
    """count the filtered prompts too: the more prompts are filtered, the smaller the objective."""
    completions, _, *tokens = _counts(lengths, prompt_index)
    return completions, int(prompt_index.max()) + 1, *tokens


def denominators_of_all_completions(lengths, prompt_index):
    """count all completions: those of length 0, truncated or filtered, carry no loss."""
    return len(lengths), *_counts(lengths, prompt_index)[1:]


def denominators_of_prompts_that_occur(lengths, prompt_index):
    """count the prompts that occur: one all of whose completions have length 0 carries no loss."""
    completions, _, *tokens = _counts(lengths, prompt_index)
    return completions, len(prompt_index.unique()), *tokens


def denominators_of_completions_per_prompt(lengths, prompt_index):
    """count each prompt's completions instead of its tokens."""
    return *_counts(lengths, prompt_index)[:3], torch.bincount(prompt_index)


def denominators_without_gaps(lengths, prompt_index):
    """list only the prompts that occur: every prompt after a gap moves to the wrong index."""
    *counts, tokens_per_prompt = _counts(lengths, prompt_index)
    return *counts, tokens_per_prompt[prompt_index.unique()]


def counted(count, lengths, prompt_index):
    """The three counts, then the tokens of each prompt."""
    completions, prompts, tokens, tokens_per_prompt, *_ = count(lengths, prompt_index)
    return [completions, prompts, tokens, *tokens_per_prompt]


# Prompt 1 was filtered, prompts 3 and 4 dropped, completion 5 truncated; left are completions 0, 1, 4, 6, 7, prompts 0,
# 2, 5 and 5 + 2 + 4 + 1 + 1 tokens.
AVERAGES.write(
    name="denominators",
    where="loss.py:global_denominators",
    minutes=15,
    teaches="An average needs to know what it divides by before the first micro-batch is there.",
    hints=(
        "Sec. 3.2; A.6 on the effective batch.",
        "A completion of length 0 carries no loss; a prompt all of whose completions have length 0 is not counted.",
        "Add the lengths up at each prompt's index, then count what is above 0.",
    ),
    says="completions, prompts, tokens that carry a loss; then the tokens of each prompt",
    probe=counted,
    inputs=(torch.tensor([5, 2, 0, 0, 4, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 2, 2, 5, 5])),
    expected=[5, 3, 13, 7, 0, 4, 0, 0, 2],
    labels="completions, prompts, tokens, of prompt 0, of prompt 1, of prompt 2, of prompt 3, of prompt 4, of prompt 5",
    mistakes=(
        denominators_with_filtered_prompts,
        denominators_of_all_completions,
        denominators_of_prompts_that_occur,
        denominators_of_completions_per_prompt,
        denominators_without_gaps,
    ),
)


# --- aggregate -------------------------------------------------------------------------------------------------------


# Averages: (objective, mask, prompt_index, how, denominators) -> scalar; objective is 0 where mask is False
def average_over_tokens(objective, mask, *_):
    """average over all tokens at once, so long prompts weigh more (that is token averaging)."""
    return objective.sum() / mask.sum()


def average_over_completions(objective, mask, *_):
    """average each completion first, so that in a prompt short completions weigh more (that is sample averaging)."""
    return (objective.sum(-1) / mask.sum(-1)).mean()


def aggregate_always_prompt(objective, mask, prompt_index, how, denominators):
    """take the prompt average whatever `how` says."""
    return _share(objective, prompt_index, "prompt", denominators, mask.sum(-1))


def aggregate_of_the_micro_batch(objective, mask, prompt_index, how, denominators):
    """average over what the micro-batch holds: such averages do not add up."""
    lengths = mask.sum(-1).clamp(1)
    if how == "prompt":
        return _prompt_average(objective, prompt_index, lengths)
    sums = objective.sum(-1)
    return (sums / lengths).mean() if how == "sample" else sums.sum() / lengths.sum()


def aggregate_over_a_count(objective, mask, prompt_index, how, denominators):
    """divide the sum of everything by the number of prompts, completions or tokens: lengths count in the first two."""
    return objective.sum() / getattr(denominators, {"sample": "completions"}.get(how, f"{how}s"))


def aggregate_mean_of_completions(objective, mask, prompt_index, how, denominators):
    """take the mean over the completions: what they are divided by is in the denominators, so they are added."""
    return _share(objective, prompt_index, how, denominators, mask.sum(-1).clamp(1)) / len(mask)


def _share(objective, prompt_index, how, denominators, lengths):
    """Right, if no length is 0: what a micro-batch adds to the average of the whole batch."""
    divisors = {
        "prompt": denominators.prompts * denominators.tokens_per_prompt[prompt_index].clamp(1),
        "sample": denominators.completions * lengths,
        "token": denominators.tokens,
    }
    return (objective.sum(-1) / divisors[how]).sum()


def _prompt_average(objective, prompt_index, lengths):
    prompts = [prompt_index == prompt for prompt in prompt_index.unique()]
    return torch.stack([objective[rows].sum() / lengths[rows].sum() for rows in prompts]).mean()


# Two prompts of two completions, with 2 and 5 sampled tokens, and one without any; the third completion has an injected
# token inside.
OBJECTIVE = torch.tensor([[4.0, 0.0, 0.0], [8.0, 0.0, 0.0], [1.0, 0.0, 3.0], [2.0, -1.0, 2.0]])
PROMPT_INDEX = torch.tensor([0, 0, 1, 1])
WHOLE = SimpleNamespace(completions=4, prompts=2, tokens=7, tokens_per_prompt=torch.tensor([2, 5, 0]))
BATCH = OBJECTIVE, OBJECTIVE != 0, PROMPT_INDEX, WHOLE


def prompt_average(aggregate, objective, mask, prompt_index, whole):
    return aggregate(objective, mask, prompt_index, "prompt", whole)


def micro_batches(aggregate, objective, mask, prompt_index, whole):
    """The prompt, sample and token average from two micro-batches, one with a completion that is masked whole, and a
    dummy."""
    parts = [(objective[rows], mask[rows], prompt_index[rows]) for rows in ([0, 1, 2], [3])]
    dummy = objective[:1] * 0, mask[:1] & False, prompt_index[:1] + 2
    parts[1] = tuple(torch.cat(pair) for pair in zip(parts[1], dummy))
    return [
        sum(float(aggregate(*part, how, whole)) for part in (*parts, dummy)) for how in ("prompt", "sample", "token")
    ]


# (12 / 2 + 7 / 5) / 2 = 3.7
PROMPT_AVERAGE = Claim(
    says="every prompt has weight 1/2, whatever its length",
    probe=prompt_average,
    inputs=BATCH,
    expected=3.7,
    mistakes=(average_over_tokens, average_over_completions),
)


# (4 + 8 + (1 + 3) / 2 + (2 - 1 + 2) / 3) / 4 = 15 / 4; (4 + 8 + 1 + 3 + 2 - 1 + 2) / 7 = 19 / 7
# The second prompt is split between the micro-batches: (12 / 2 + 4 / 5) / 2 + (0 + 3 / 5) / 2 = 3.4 + 0.3
MICRO_BATCHES = Claim(
    says="the shares of micro-batches add up to the prompt, sample and token average of the batch; a dummy adds 0",
    probe=micro_batches,
    inputs=BATCH,
    expected=[3.7, 15 / 4, 19 / 7],
    labels="prompt, sample, token",
    mistakes=(
        aggregate_always_prompt,
        aggregate_over_a_count,
        aggregate_of_the_micro_batch,
        aggregate_mean_of_completions,
    ),
    undefined="divide by a length without sampled tokens, as that of a dummy, or average what a micro-batch holds: "
    "0 / 0 is nan",
)


AVERAGES.write(
    name="aggregate",
    where="loss.py:aggregate",
    minutes=25,
    teaches="Sample, prompt and token average differ in whether a long answer weighs more.",
    hints=(
        "Sec. 3.2, loss aggregation; Eq. 3, 8.",
        "The denominators are those of the whole batch: shares of micro-batches are added, never averaged. "
        "A dummy has no tokens, and 0 / 0 is nan.",
        "Each completion has one weight: 1 / (completions x its tokens), 1 / (prompts x its prompt's tokens) or "
        "1 / tokens; the result is the sum over completions of weight times sum over sampled tokens.",
    ),
    claims=(PROMPT_AVERAGE, MICRO_BATCHES),
)
