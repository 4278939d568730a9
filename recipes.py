"""Every flag, and the recipes of the paper as settings of them.

Sec. 2 and A.3 (setup, optimizer), Sec. 4 (ScaleRL), A.16 (the recipes of Fig. 2), A.17 (clips).

A flag has the paper's word; what is not given comes from --recipe if given, then from the task's preset, then from ScaleRL.
--recipe sets algorithmic flags only (loss, clips, average, normalisation, filters, head, off-policy, k, P), never learning
rate, steps or model. A flag that the chosen mode does not read is an error when set.

Deviation: on the embedded task learning rate, warm-up, batch, lengths and validation are scaled to a laptop (EMBEDDED).
Open in the paper: MiniMax's normalisation and k (here: prompt, 8); the number of prompts of Magistral (here: 48).

Test: pytest tests/test_train.py
"""

import argparse
import json
import os
from pathlib import Path

import torch

import loss

RECIPES = {  # Sec. 2 (baseline), Sec. 4 (scalerl), A.16 (the others): algorithmic flags only
    "baseline": dict(loss="dapo", average="sample", normalisation="prompt", zero_variance_filter=False,
                     no_positive_resampling=None, fp32_head=False, off_policy="ppo", k=8, prompts=48)}
RECIPES |= {
    "scalerl": dict(loss="cispo", average="prompt", normalisation="batch", zero_variance_filter=True,
                    no_positive_resampling=0.9, fp32_head=True, off_policy="pipeline", k=8, prompts=48),
    "deepseek": RECIPES["baseline"] | dict(loss="grpo"),
    "qwen2.5": RECIPES["baseline"] | dict(average="prompt", zero_variance_filter=True, prompts=80),
    "magistral": RECIPES["baseline"] | dict(average="prompt", off_policy="pipeline"),
    "minimax": RECIPES["baseline"] | dict(loss="cispo", average="prompt", fp32_head=True,
                                          zero_variance_filter=True, prompts=80)}
CLIPS = {"eps_max": 5.0, "eps": 0.2, "eps_low": 0.2, "eps_high": 0.26}  # Sec. 3, A.17
GSPO_CLIPS = {"eps_low": 3e-3, "eps_high": 5e-3}  # conference Fig. 20
PAPER = dict(lr=5e-7, warmup=100, steps=7400, generations=16, max_new_tokens=14336, max_prompt_tokens=2048,
             interrupt_at=(10000, 12000), slots=256, eval_every=100, eval_prompts=1000, eval_generations=16,
             token_budget=32768, interrupt_phrase="Okay, time is up. Let me stop thinking and formulate a final answer now. </think>")
# Deviation: a 0.9M-parameter policy on two cores. Sizes chosen by measurement (README).
EMBEDDED = dict(lr=5e-5, warmup=20, steps=200, prompts=32, generations=16, max_new_tokens=96, max_prompt_tokens=32,
                interrupt_at=(80, 88), slots=128, eval_every=10, eval_prompts=256, eval_generations=8,
                token_budget=2048, interrupt_phrase="</think>")


def flags():
    """The command line; a flag that is not given is absent from the namespace, so that presets can fill it."""
    parser = argparse.ArgumentParser(prog="train.py", usage="train.py [--FLAG VALUE ...]; all of them: train.py --help",
                                     description=__doc__.split("\n")[0], argument_default=argparse.SUPPRESS)
    add, toggle = parser.add_argument, argparse.BooleanOptionalAction
    add("--recipe", choices=RECIPES, help="algorithmic flags of a published recipe (A.16); a flag given beside it wins")
    add("--loss", choices=loss.LOSSES, help="objective, Eq. 3 to 8")
    add("--eps-max", type=float, help="cispo: cap on the ratio itself, >= 1 (Eq. 4)")
    add("--eps", type=float, help="grpo: half-width of the clip (Eq. 7)")
    add("--eps-low", type=float, help="dapo, gspo: lower half-width (Eq. 3, 8)")
    add("--eps-high", type=float, help="dapo, gspo: upper half-width (Eq. 3, 8)")
    add("--average", choices=loss.AVERAGES, help="loss aggregation (Sec. 3.2)")
    add("--normalisation", choices=loss.NORMALISATIONS, help="advantage normalisation (Sec. 3.2)")
    add("--zero-variance-filter", action=toggle, help="drop prompts whose completions are all right or all wrong (Sec. 3.2)")
    add("--no-positive-resampling", type=threshold, metavar="SHARE",
        help="never sample a prompt again from this pass rate on; 'off' for uniform resampling (Sec. 3.2)")
    add("--fp32-head", action=toggle, help="LM head and log-softmax in fp32 on both sides (Sec. 3.2)")
    add("--off-policy", choices=("pipeline", "ppo"), help="PipelineRL-k or PPO-off-policy-k (Sec. 3.1)")
    add("--k", type=int, help="optimizer steps a token may be old (Sec. 3.1)")
    add("--prompts", type=positive, help="P, prompts per optimizer step")
    add("--generations", type=positive, help="G, completions per prompt")
    add("--temperature", type=float, help="sampling temperature")
    add("--lr", type=float, help="AdamW learning rate, constant after warm-up (A.3)")
    add("--warmup", type=positive, help="optimizer steps of linear warm-up (A.3)")
    add("--weight-decay", type=float, help="AdamW weight decay (A.3)")
    add("--steps", type=positive, help="optimizer steps of the run")
    add("--token-budget", type=positive, help="padded tokens per micro-batch and trainer")
    add("--model", help="folder or hub name of a Hugging Face causal LM (default: base, the embedded one)")
    add("--data", help="JSONL of {prompt, answer} (default: arithmetic, the embedded task)")
    add("--dtype", choices=("float32", "bfloat16"), help="generators' and forward passes' dtype; master weights are float32")
    add("--max-prompt-tokens", type=positive, help="longer prompts are dropped and counted")
    add("--max-new-tokens", type=positive, help="thinking and answer tokens of a completion")
    add("--interrupt-at", type=positive, nargs=2, metavar=("LO", "HI"),
        help="a completion still thinking at a length drawn from here is made to answer (A.10)")
    add("--interrupt-phrase", help="what is injected then; ends in </think>")
    add("--slots", type=positive, help="completions that a generator decodes at once")
    add("--eval-every", type=positive, help="optimizer steps between evaluations")
    add("--eval-prompts", type=positive, help="held-out validation prompts")
    add("--eval-generations", type=positive, help="completions per validation prompt (mean@k)")
    add("--trainers", type=positive, help="T, ranks that train; the others generate (default: a fifth, the paper's 16 of 80)")
    add("--timeout", type=float, help="seconds without progress after which a wait fails and says who waits for whom")
    add("--seed", type=int, help="of prompts, order and sampling")
    add("--out", help="folder of the run (default runs/LOSS-seedSEED); must not hold a run")
    add("--resume", action="store_true", help="go on from the last checkpoint in --out, with its flags unless given again")
    return parser


def threshold(text):
    if text != "off" and not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"got {text}; expected a share above 0 and up to 1, or off")
    return None if text == "off" else float(text)


def positive(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text}; expected a whole number of 1 or more")
    return int(text)


def settings(argv):
    """Flags > --recipe > the presets of task and paper; a Namespace with every flag in force.

    Exits with code 2 and one line for a wrong value, or for a flag that the chosen loss does not read.
    """
    parser = flags()
    given = vars(parser.parse_args(argv))
    if given.pop("resume", False):
        given = resumed_flags(given, parser.error) | given | {"resume": True}
    embedded = given.get("data", "arithmetic") == "arithmetic"
    cuda = torch.cuda.is_available()
    args = argparse.Namespace(**dict(
        recipe="scalerl", temperature=1.0, weight_decay=0.01, model="base", data="arithmetic", trainers=None, seed=0,
        timeout=600.0, dtype="bfloat16" if cuda else "float32", resume=False) | RECIPES["scalerl"]
        | (EMBEDDED if embedded else PAPER) | RECIPES.get(given.get("recipe"), {}) | given)
    if args.off_policy == "ppo" and args.k > 0 and "eval_every" not in given:
        args.eval_every += -args.eval_every % args.k  # Deviation: the paper's 100 is no multiple of its k of 8
    args.clips = clips(args, given, parser.error)
    args.out = given.get("out", f"runs/{args.loss}-seed{args.seed}")
    check(args, embedded, given, parser.error)
    return args


def clips(args, given, error):
    """The loss's own clip arguments (Sec. 3, A.17); a clip that the loss does not read is an error when set."""
    read = loss.LOSSES[args.loss][1]
    for name in CLIPS:
        if name in given and name not in read:
            error(f"--{name.replace('_', '-')} is not read by --loss {args.loss}, which reads {', '.join(read)}")
    defaults = CLIPS | (GSPO_CLIPS if args.loss == "gspo" else {})
    values = {name: given.get(name, defaults[name]) for name in read}
    try:  # the loss knows its bounds; an empty batch is enough to ask
        loss.LOSSES[args.loss][0](torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1), torch.ones(1, 1).bool(), **values)
    except ValueError as wrong:
        error(str(wrong))
    return values


def check(args, embedded, given, error):
    """Refuse what cannot work, before anything is spawned."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    out, low, high = Path(args.out), *args.interrupt_at
    if not embedded and "model" not in given:
        error("--data FILE needs --model: the embedded base model knows only digits, + and -")
    if args.off_policy == "ppo" and args.k < 1 or args.k < 0:
        error(f"--k is {args.k}; expected >= 0 with --off-policy pipeline and >= 1 with ppo")
    if args.off_policy == "ppo" and args.eval_every % args.k:
        error(f"--eval-every {args.eval_every} is no multiple of --k {args.k}: ppo publishes weights only every k steps")
    if not low <= high < args.max_new_tokens:
        error(f"--interrupt-at {low} {high}: expected LO <= HI < --max-new-tokens {args.max_new_tokens}, so that an answer fits")
    if args.max_prompt_tokens + args.max_new_tokens > args.token_budget:
        error(f"--token-budget {args.token_budget} is below one sequence of {args.max_prompt_tokens} + {args.max_new_tokens} tokens")
    for name, least in (("lr", 0), ("temperature", 0), ("timeout", 0), ("weight_decay", -1e-9)):
        if not getattr(args, name) > least:
            error(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected more than 0")
    if world > 1 and (args.trainers or 1) >= world:
        error(f"--trainers {args.trainers} of {world} processes leaves no generator; start more with --nproc-per-node")
    if not args.resume and (out / "log.jsonl").exists():
        error(f"{out} holds a run already; give another --out, or --resume to go on with it")


def resumed_flags(given, error):
    """The flags of the run in --out as it was last started, from its log; what its state depends on must not change."""
    log = Path(given.get("out", "?")) / "log.jsonl"
    if not log.exists():
        error(f"--resume: expected a run in --out, found no {log}")
    if not list(log.parent.glob("checkpoint-*")):
        error(f"--resume: found no checkpoint in {log.parent}; did the run end before its first evaluation after step 0?")
    stored = [row for row in map(json.loads, log.open()) if row["kind"] == "config"][-1]["flags"]
    for name in ("recipe", "loss", "off_policy", "k", "prompts", "data", "seed"):
        if given.get(name, stored[name]) != stored[name]:
            error(f"--resume with --{name.replace('_', '-')} {given[name]}: the run in {log.parent} has {stored[name]}")
    return {name: value for name, value in stored.items() if name != "clips"} | stored["clips"]
