"""What cannot work is refused here, in one line and before anything is loaded: settings that contradict each other, an
--out that holds what would be overwritten, a loss of the user's own.

--loss FILE.py:FUNCTION is trusted: it runs with all rights of its user. It is called with logprobs, gen_logprobs,
advantages and mask, as for loss.cispo, or with those of them that it names. It returns (B, T), per token, to be
maximised. Its parameters are the function's keyword defaults. The log's `clipped` is null, since nobody says where its
bound acts.

Deviation: losses of one's own are no part of the paper.

Run by settings.py. Test: pytest tests/test_settings.py tests/test_user_loss.py
"""

import os
import sys
import threading
from pathlib import Path

import torch

import data
from loss import LOSSES, Loss
from pipeline import OFF_POLICY, Fault, greatest_staleness
from plumbing.arguments import option
from plumbing.devices import restarts, torchrun, world_size
from plumbing.log import others, step_of
from plumbing.prompts import parse_source
from verify import user_reward

HANGS = 600.0  # seconds after which a call counts as hanging, in virtual time too, where no heartbeat watches it


# --- Settings ---------------------------------------------------------------------------------------------------------


def check_settings(args, given, asked):
    """Raise ValueError for what cannot work, before anything is loaded or spawned."""
    try_loss(args)
    sets = [parse_source(source) for source in args.data]
    embedded = [name in data.EMBEDDED_TASKS for name, *_ in sets]
    if "model" not in given and not all(embedded):
        tasks = ", ".join(data.EMBEDDED_TASKS)
        got = sets[embedded.index(False)][0]
        raise ValueError(f"--data {got} is none of {tasks}; a file needs --model: the embedded one knows only digits")
    tasks = [task for (_, _, task), ours in zip(sets, embedded) if task and (ours or args.reward)]
    if tasks:
        raise ValueError(f"--data NAME:WEIGHT:{tasks[0]}: an embedded task, and --reward, have a grader; leave it out")
    if all(embedded) and (
        ignored := {"prompt_column", "answer_column", "choice_index", "skip_unusable"} & asked.keys()
    ):
        raise ValueError(f"{', '.join(map(option, ignored))}: read with files only, got --data {' '.join(args.data)}")
    if args.length_control == "penalty" and args.length_cache > args.length_max:
        got = f"--length-cache {args.length_cache} with --length-max {args.length_max}"
        raise ValueError(f"{got}: expected no more than that: it is the part of the length in which the penalty rises")
    if args.dtype == "float32" and not args.fp32_head and "fp32_head" in asked:
        raise ValueError("--no-fp32-head with --dtype float32: its head is float32; give --dtype bfloat16 too")
    if "generators" in asked and not args.virtual:
        raise ValueError("--generators is read with --virtual only; in a real run all ranks but the trainers generate")
    if not args.evaluate:
        check_training(args, sets)
    check_start(args, given)
    check_folder(args, given)


def check_rule(args):
    """Raise ValueError for a k that the rule of --off-policy has not, or with which it breaks its promise."""
    rule = OFF_POLICY[args.off_policy]
    if args.k < rule.least_k:
        raise ValueError(f"--k is {args.k}; expected >= {rule.least_k} with {args.off_policy}")
    greatest = greatest_staleness(args.steps, off_policy=args.off_policy, k=args.k)
    if greatest > rule.bound(args.k):
        raise ValueError(
            f"--off-policy {args.off_policy} --k {args.k}: its rule promises tokens at most {rule.bound(args.k)} "
            f"optimizer steps old, and would allow {greatest}"
        )


def check_training(args, sets):
    """Raise ValueError for what training needs and an evaluation does not. sets: as from prompts.parse_source."""
    if not any(weight for _, weight, _ in sets):
        raise ValueError("--data: expected a source to train on; all have weight 0, which is for validation only")
    if args.temperature == 0:
        raise ValueError("--temperature is 0; expected more, except with --evaluate: RL needs different completions")
    interval = fitting_interval(args)
    if interval != args.eval_every:
        raise ValueError(
            f"--eval-every {args.eval_every} with --off-policy {args.off_policy} --k {args.k}: expected an interval at "
            f"whose multiples the generators get new weights; give --eval-every {interval or args.steps}"
        )
    if args.generations < 2:
        raise ValueError("--generations is 1; expected 2 or more: one completion has no group to be compared with")
    world = world_size(args.plan)
    if not args.virtual and args.trainers >= world:
        raise ValueError(f"--trainers {args.trainers} of {world} processes leaves no generator: raise --nproc-per-node")


def fitting_interval(args):
    """The least --eval-every from the present one on at whose multiples the generators have the trainers' weights.

    A rule need not send weights at multiples of anything, so the search has an end: None.
    """
    sent = OFF_POLICY[args.off_policy].broadcasts
    for interval in range(args.eval_every, 2 * args.eval_every + args.k + 1):
        if all(sent(step, args.k) for step in range(interval, args.steps, interval)):
            return interval
    return None


def try_loss(args):
    """Raise ValueError, or what the loss itself raises, for bounds that it refuses or values that cannot be trained on.

    A gradient of zero is no reason to refuse it.
    """
    logprobs = torch.tensor([[-0.5, -1.0, -2.0], [-3.0, -0.1, -1.5]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    batch = logprobs, torch.full((2, 3), -1.2), torch.tensor([1.0, -0.5]), mask
    before = [tensor.clone() for tensor in batch]
    values = LOSSES[args.loss].objective(*batch, **args.clips)[mask]
    if not all(map(torch.equal, batch, before)):
        raise ValueError(f"--loss {args.loss}: expected its arguments unchanged, but it writes into one; use clone()")
    if not values.isfinite().all():
        raise ValueError(f"--loss {args.loss}: expected finite values where mask is True, got {values.tolist()}")


def check_start(args, given):
    """Raise ValueError for a mode that cannot be started as it was."""
    if args.plan and args.virtual:
        raise ValueError("--plan with --virtual: a plan is of a run on GPUs; leave one of them out")
    if args.virtual and torchrun("WORLD_SIZE") > 1:
        raise ValueError("--virtual runs in a single process: start it with python train.py, not with torchrun")
    if args.virtual and args.generator != "torch":
        raise ValueError(f"--virtual with --generator {args.generator}: only torch's decode steps are timed one by one")
    if args.virtual and args.checkpoint:
        check_repeatable(args, step_of(args.checkpoint))
    if restarts() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ValueError("--max-restarts needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in every launcher's environment")
    if restarts() and not given.get("resume"):
        raise ValueError("--max-restarts needs --resume: else a restart is refused, as --out holds a run already")


def check_repeatable(args, version):
    """Refuse to resume a virtual run from where rollouts were half finished, whose keys and values are lost.

    It would not repeat what the run without the break does.
    """
    if OFF_POLICY[args.off_policy].requested(version - 1, args.k) > version:
        raise ValueError(
            f"--resume at step {version} of a run in virtual time with --off-policy {args.off_policy} --k {args.k}: "
            "completions are in work there in a longer run, so it would not repeat. Start anew: it does the same again"
        )


def check_folder(args, given):
    """Raise ValueError for an --out that holds what would be overwritten."""
    out = Path(args.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; expected a folder, or the name of one to be made")
    if (out / "config.json").exists():
        raise ValueError(f"--out {out} is the folder of a model or a checkpoint; expected that of a run, or a new one")
    if args.evaluate and (out / "evaluation.jsonl").exists():
        raise ValueError(f"{out} holds an evaluation already; give another --out")
    if args.evaluate or args.plan or given.get("resume"):
        return
    if (log := out / "log.jsonl").exists() and log.stat().st_size:
        go_on = "" if args.virtual and args.k else ", or --resume to go on with it"
        raise ValueError(f"{out} holds a run already; give another --out{go_on}")
    if names := others(out):
        raise ValueError(
            f"{out} holds {', '.join(names[:3])}, of another program or of a run whose log is gone; give another --out"
        )


# --- A loss of the user's own -----------------------------------------------------------------------------------------


def register_own_loss(spec):
    """Load the function and put it into loss.LOSSES under `spec`. Raises ValueError if it cannot be loaded."""
    function = user_reward.load(spec, ("logprobs", "gen_logprobs", "advantages", "mask"))
    LOSSES[spec] = Loss(objective_of(function, spec), unknown, {})


def unknown(logprobs, gen_logprobs, advantages, mask):
    """Where its cap or clip acts: nobody says."""
    return torch.full(mask.shape, float("nan"), device=mask.device)


def objective_of(function, spec):
    """The objective with this function. It raises Fault if a call raises, exits, or returns what is no loss."""

    def hangs():
        print(f"train.py: error: --loss {spec} has not returned for {HANGS:g} s", file=sys.stderr, flush=True)
        os._exit(1)  # the main thread is in its code

    def objective(*inputs):
        logprobs, *_, mask = inputs
        watch = threading.Timer(HANGS, hangs)
        watch.daemon = True
        watch.start()
        try:
            values = function(*inputs)
        except (Exception, SystemExit) as error:  # whatever the user's function raises
            raise Fault(f"--loss {spec} raised {user_reward.place(error, user_reward.parsed(spec)[0])}") from error
        finally:
            watch.cancel()
        tensor = isinstance(values, torch.Tensor)
        if not (tensor and values.shape == mask.shape and values.is_floating_point()):
            got = f"shape {tuple(values.shape)} of {values.dtype}" if tensor else type(values).__name__
            raise Fault(f"--loss {spec}: expected real numbers in a tensor of the shape of mask, (B, T); got {got}")
        if logprobs.requires_grad and values.grad_fn is None:
            raise Fault(f"--loss {spec}: expected a value that depends on logprobs, got one without a gradient")
        return values

    return objective
