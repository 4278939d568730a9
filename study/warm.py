"""A run of train.py in virtual time inside this process, for the study's many short runs: torch is imported once.

    rows = run(train, argv, objective)    the rows of the log, in memory; no figure, no checkpoint, no screen

`train` is the module train.py, handed in by the command that imports it. What is run is train.py's own loop under its
own flags; only the drawing and the checkpoints are left out, and `objective` may take the place of the loss.

Test: pytest tests/test_study_runs.py
"""

import hashlib
import io
import json
import tempfile
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch

import loss
import sft
from plumbing import run_log
from plumbing.settings import read_settings
from study import comparisons

ROOT = Path(__file__).resolve().parent.parent

CARRIER = "cispo"  # the --loss under whose name an objective of the study's own runs; it takes eps_max


def no_ratio(logprobs, gen_logprobs, advantages, mask, *, eps_max):
    """REINFORCE: the advantage times log pi_train, as if the weights that sampled were the trainer's. (B, T)

    Arguments as in loss.cispo; eps_max is not read.
    """
    return torch.where(mask, advantages[:, None] * torch.where(mask, logprobs, 0.0), 0.0)


@cache
def rounding():
    """12 hex digits that tell whether two machines round alike: of the bits of a policy's logits and gradients.

    They depend on processor and libraries. With the same digits a run in virtual time is the same run.
    """
    policy = sft.load(ROOT / "base" / "tiny")
    ids = torch.arange(256 * 16).reshape(256, 16) % policy.config.vocab_size
    logits = policy(input_ids=ids).logits
    logits.logsumexp(-1).sum().backward()
    numbers = [logits.detach(), *(weight.grad for weight in policy.parameters())]
    return hashlib.sha256(b"".join(one.numpy().tobytes() for one in numbers)).hexdigest()[:12]


def run(train, argv, objective=None):
    """The rows of the log of `train.py *argv`, which has --virtual; the run may have ended because it diverged.

    objective  a function with the arguments of loss.cispo in its place, with --loss cispo; None: the loss itself
    Raises RuntimeError, with what was printed, if the flags were refused; SystemExit if a signal ended the run.
    """
    printed = io.StringIO()
    with ExitStack() as stack:
        out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="study-"))) / "run"
        stack.enter_context(patch.object(train.Trainer, "checkpoint", lambda trainer: None))
        stack.enter_context(patch.object(run_log, "Figure", lambda out: lambda row: None))
        stack.enter_context(patch.object(run_log.RunLog, "finish", ended))
        if objective:
            stack.enter_context(patch.dict(loss.LOSSES, {CARRIER: loss.LOSSES[CARRIER]._replace(objective=objective)}))
        for redirect in (redirect_stdout, redirect_stderr):
            stack.enter_context(redirect(printed))
        try:
            train.main(read_settings([*argv, "--out", str(out)]))
        except SystemExit as end:
            raise RuntimeError(f"train.py {' '.join(argv)}: {printed.getvalue()}") from end
        rows = [json.loads(line) for line in (out / "log.jsonl").open()]
    if not comparisons.complete(rows[-1]["reason"]):
        raise SystemExit(f"the study ends: {rows[-1]['reason']}")
    return rows


def ended(log, reason, step, seconds):
    """In place of RunLog.finish: log why the run ended."""
    log.screen.close()
    log("end", step=step, reason=reason, final=False, seconds=seconds)
