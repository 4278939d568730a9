"""The settings of a run: one dataclass, from which the command line and --help are made. Each flag is stated once here.

Flags are named in the paper's words. The value in force is the first of: the given flag, the resumed run's, that of a
given --recipe, that of the preset (recipes.PRESETS: base for the models in base/, tiny for base/tiny, else few), the
default, which is ScaleRL's. The clip flags (--eps-max ...) are those that the losses declare. A flag that the chosen
mode does not read is refused.

Deviation: --loss gspo without --recipe takes the sample average, the only one under which its objective is GSPO's.
Deviation: with ppo, a default --eval-every is rounded up to a multiple of k: the paper's 100 is no multiple of 8.

Run by train.py. Test: pytest tests/test_settings.py
"""

import argparse
import os
from collections import ChainMap
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import get_args, get_origin

import data
from loss import AGGREGATIONS, LOSSES, NORMALISATIONS
from pipeline import OFF_POLICY, Fault
from plumbing.arguments import Parser, as_given, option
from plumbing.checks import check_rule, check_settings, fitting_interval, register_own_loss
from plumbing.devices import check_launcher, default_dtype, end_launcher, fleet, gpus, refuse, world_size
from plumbing.log import finished_checkpoints, lock_log, step_of, stored_flags
from plumbing.prompts import anchored, parse_source
from recipes import PRESETS, RECIPES
from reward import THINK_END

ROOT = Path(__file__).resolve().parents[1]  # the project's folder, so that base/ is found from every working folder


def flag(help, marks=frozenset(), default=None, **more):
    """A field of Settings. Its default is here or in recipes.py.

    marks                    some of EVALUATION, FREE, START
    type, choices, metavar   as in argparse
    least, above             bounds of a number: at least `least`; more than `above`, and finite
    read_with                (name, value) of the setting with which it is read
    """
    return field(default=default, metadata={"help": help, "marks": marks, **more})


EVALUATION = frozenset({"evaluation"})  # --evaluate reads it too
FREE = frozenset({"free"})  # --resume may change it: neither samples nor gradients depend on it
START = frozenset({"start"})  # it belongs to one start: --resume does not take it from the log
LENGTH_CONTROLS = ("interrupt", "penalty", "none")
MOST = 1e15  # no number of a run is larger
INTERRUPT, PENALTY = ("length_control", "interrupt"), ("length_control", "penalty")


# --- Values as they are typed ----------------------------------------------------------------------------------------


def path_of(text):
    if not text.strip():
        raise ValueError("expected a path; likely cause: a shell variable that is not set")
    return os.path.expanduser(text)


def whole_path(text):
    return os.path.abspath(path_of(text))  # a run finds its files again from another folder


def folder_or_name(text):
    path = whole_path(text)
    return path if os.path.isdir(path) else text


def loss_name(text):
    if text in LOSSES:
        return text
    if ":" not in text:
        raise ValueError(f"expected {', '.join(LOSSES)} or FILE.py:FUNCTION")
    path = whole_path(text)
    register_own_loss(path)
    return path


def share_or_off(text):
    share = None if text == "off" else float(text)
    if share is not None and not 0 < share <= 1:
        raise ValueError("expected a share above 0 and up to 1, or off")
    return share


def day(text):
    return date.fromisoformat(text).isoformat()


def mark_or_none(text):
    if not text:
        raise ValueError("expected the text behind which the answer begins, or none")
    return None if text == "none" else text


# --- The settings ----------------------------------------------------------------------------------------------------

# The setting of each group that comes first -> the group's title in --help.
GROUPS = {
    "recipe": "recipe and loss",
    "off_policy": "asynchrony",
    "model": "model and data",
    "think_end": "lengths",
    "lr": "optimizer",
    "eval_every": "run",
}


@dataclass(frozen=True)
class Settings:
    """All flags of train.py, and what follows from them. Sizes that fit the memory stand in changed copies."""

    recipe: str = flag("a published recipe (A.16); flags given beside it win", default="scalerl", choices=RECIPES)
    recipe_given: bool = False  # else P and k are those of the preset
    preset: str = flag(
        "sizes of a run; flags given beside it win [base or tiny for a model of base/, few for any other]",
        default="",
        choices=PRESETS,
    )
    loss: str = flag(
        "objective, Eq. 3 to 8, or one of your own (docs/paper/losses.md)",
        type=loss_name,
        metavar="|".join([*LOSSES, "FILE.py:FUNCTION"]),
    )
    aggregation: str = flag("loss aggregation (Sec. 3.2); with --loss gspo: sample", choices=AGGREGATIONS)
    normalisation: str = flag("advantage normalisation (Sec. 3.2)", choices=NORMALISATIONS)
    zero_variance_filter: bool = flag("drop prompts with all completions right or all wrong (Sec. 3.2)")
    no_positive_resampling: float | None = flag(
        "pass rate at which a prompt is never sampled again, or off (Sec. 3.2)", type=share_or_off, metavar="SHARE|off"
    )
    fp32_head: bool = flag("LM head in fp32 on both sides (Sec. 3.2), as in a float32 model anyway", EVALUATION)

    off_policy: str = flag("when batches are generated and weights sent (Sec. 3.1)", choices=OFF_POLICY)
    k: int = flag("greatest staleness of a token in optimizer steps; with ppo it is k - 1 (Sec. 3.1)", least=0)
    prompts: int = flag("P, prompts per optimizer step", least=1)
    generations: int = flag("G, completions per prompt; with --evaluate, the k of mean@k", EVALUATION, least=1)
    generator: str = flag("inference backend; vllm: docs/own.md", FREE | EVALUATION, "torch", choices=("torch", "vllm"))
    slots: int = flag(
        "completions that a generator decodes at once; fewer if memory is short", FREE | EVALUATION, least=1
    )
    trainers: int | None = flag("T, ranks that train; the others generate (default: a fifth)", START, least=1)
    virtual: str | None = flag(
        "one process in virtual time (docs/virtual.md)", choices=("exact", "generators", "balanced", "trainers")
    )
    generators: int = flag("with --virtual: generators beside the T trainers", default=1, least=1, metavar="N")

    model: str = flag(
        "folder or hub name of a Hugging Face causal LM (default: the embedded one, base)", FREE, type=folder_or_name
    )
    data: list[str] = flag(
        f"prompts: {', '.join(data.EMBEDDED_TASKS)}, a JSONL file, or what `datasets` reads (plumbing/prompts.py)",
        FREE | EVALUATION,
        ("arithmetic",),
        type=anchored,
        metavar="NAME[:WEIGHT][:TASK]",
    )
    prompt_column: list[str] = flag("field of the prompt; of several the first found", EVALUATION, ("prompt",))
    answer_column: list[str] = flag("field of the answer; of several the first found", EVALUATION, ("answer",))
    choice_index: str | None = flag(
        "whole numbers as references of choice: indices from 0 or 1, or words of options (docs/data.md)",
        EVALUATION,
        choices=("0", "1", "words"),
    )
    template: list[str] = flag(
        "variables of the chat template, as enable_thinking=false", EVALUATION, (), metavar="NAME=VALUE"
    )
    date: str = flag(
        "that a chat template writes (default: of the run's first start)", EVALUATION, type=day, metavar="YYYY-MM-DD"
    )
    skip_unusable: bool = flag("leave out rows without a usable prompt or answer", EVALUATION, False)
    verify_timeout: float = flag("seconds to check an answer, or one test of a program", EVALUATION, 5.0, above=0)
    reward: str | None = flag(
        "your own function instead of the graders (docs/rewards.md)",
        EVALUATION,
        type=whole_path,
        metavar="FILE.py:FUNCTION",
    )
    verifiers: int = flag("processes of each generator that check answers", FREE | EVALUATION, 2, least=1, metavar="N")
    temperature: float = flag("of sampling; 0, with --evaluate: the most probable token", EVALUATION, 1.0, least=0)
    dtype: str = flag(
        "not of master weights; default: bfloat16 on GPUs, else float32", EVALUATION, choices=("float32", "bfloat16")
    )

    think_end: str | None = flag(
        "the answer is what follows the last TEXT of a completion; none: the whole completion is the answer",
        EVALUATION,
        THINK_END,
        type=mark_or_none,
        metavar="TEXT|none",
    )
    max_prompt_tokens: int = flag("longer prompts are dropped and counted", EVALUATION, least=1)
    max_new_tokens: int = flag("thinking and answer tokens of a completion", EVALUATION, least=1)
    length_control: str = flag("interruptions, the penalty of Eq. 9, or none", EVALUATION, choices=LENGTH_CONTROLS)
    interrupt_at: tuple[int, int] = flag(
        "interrupt: a completion still thinking at a length drawn from here is made to answer (A.10)",
        EVALUATION,
        least=1,
        metavar=("LO", "HI"),
        read_with=INTERRUPT,
    )
    interrupt_phrase: str = flag("interrupt: the text that is injected there", EVALUATION, read_with=INTERRUPT)
    length_max: int = flag("penalty: L_max of Eq. 9, tokens", least=1, read_with=PENALTY)
    length_cache: int = flag("penalty: L_cache of Eq. 9, tokens", least=1, read_with=PENALTY)

    lr: float = flag("AdamW learning rate, constant after warm-up (A.3)", FREE, above=0)
    warmup: int = flag("optimizer steps of linear warm-up (A.3)", FREE, least=1)
    weight_decay: float = flag("AdamW weight decay (A.3)", default=0.01, least=0)
    steps: int = flag("optimizer steps of the run", FREE, least=1)
    token_budget: int = flag("padded tokens per micro-batch and trainer", FREE, least=1)
    activation_checkpointing: bool = flag("recompute layers in the backward pass: less memory, slower", FREE)
    offload_optimizer: bool = flag(
        "AdamW's moments lie in the host's memory between steps (default: where the model then fits, or runs faster)",
        FREE,
        False,
    )

    eval_every: int = flag("optimizer steps between evaluations", FREE, least=1)
    checkpoint_every: int | None = flag(
        "optimizer steps between checkpoints (default: as --eval-every, or 30 minutes)", FREE, least=1
    )
    eval_prompts: int = flag(
        "validation prompts of every source, at most; own model: fewer for few generators", EVALUATION, least=1
    )
    eval_generations: int = flag("completions per validation prompt (mean@k)", least=1)
    timeout: float = flag(
        "seconds without progress after which a rank counts as lost", FREE | EVALUATION, 600.0, above=0
    )
    seed: int = flag("of the order of training prompts and of sampling", EVALUATION, 0, least=0)
    out: str | None = flag(
        "new folder, seen by all nodes (default runs/LOSS-seedSEED)", START | EVALUATION, type=path_of
    )
    evaluate: str | None = flag(
        "no training: mean@k, pass@k on --data", START | EVALUATION, type=path_of, metavar="CHECKPOINT"
    )
    plan: tuple | None = flag("no run: its memory and time (docs/nodes.md)", START, type=fleet, metavar="NxGPU")
    resume: bool = flag(
        "go on from the newest checkpoint in --out, or start anew (docs/running.md: what may change)", START, False
    )

    # What follows
    clips: dict = field(default_factory=dict)  # {name: value} of the clip flags that the loss reads
    checkpoint: str | None = None  # the folder to resume from
    asked: list = field(default_factory=list)  # names of the given flags, and of sizes that an earlier run had
    notes: list = field(default_factory=list)  # lines for the screen: what was changed, and why
    protections: list = field(default_factory=list)  # of sandboxes on this node, found by build.prepare
    default_new: int = 0  # the default of --max-new-tokens, for which the other default lengths are made


FIELDS = {setting.name: setting for setting in fields(Settings) if "help" in setting.metadata}  # the flags
DEFAULTS: dict = {name: setting.default for name, setting in FIELDS.items()} | RECIPES["scalerl"]


def known_flags():
    """The parser. A flag that is not given is absent from its namespace, so that presets can fill it in."""
    parser = Parser(
        prog="train.py",
        usage="train.py [--FLAG VALUE ...]; all of them: train.py --help",
        description="ScaleRL: asynchronous reinforcement learning of a language model, and a forecast of what more "
        "compute will buy. In [brackets]: defaults on the embedded task; few: with your own --model; tiny: with "
        "--data tiny; paper: with --preset paper.",
        argument_default=argparse.SUPPRESS,
    )
    for name, setting in FIELDS.items():
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        group.add_argument(option(name), help=setting.metadata["help"] + default_text(name), **argument(setting))
        if name == "loss":
            for clip in dict.fromkeys(clip for known in LOSSES.values() for clip in known.clips):
                group.add_argument(option(clip), type=float, help=clip_text(clip))
    return parser


def argument(setting):
    """argparse's keywords for a field of Settings."""
    keywords: dict = {name: setting.metadata[name] for name in ("choices", "metavar") if name in setting.metadata}
    if setting.type is bool:
        return keywords | {"action": argparse.BooleanOptionalAction}
    bounds = setting.metadata
    convert = bounds.get("type") or (get_args(setting.type) or (setting.type,))[0]

    def value(text):
        try:
            given = convert(text)
            if "least" in bounds and not bounds["least"] <= given < MOST:
                raise ValueError(f"expected {bounds['least']} or more, and below {MOST:g}")
            if "above" in bounds and not bounds["above"] < given < MOST:
                raise ValueError(f"expected more than {bounds['above']}, and below {MOST:g}")
        except ValueError as error:  # of which argparse would not show the words
            raise argparse.ArgumentTypeError(f"got {text!r}; {error}") from error
        return given

    several: dict = {list: {"nargs": "+"}, tuple: {"nargs": 2}}.get(get_origin(setting.type), {})
    return keywords | several | {"type": value}


def clip_text(clip):
    """What --help says of a clip flag: which losses read it, with which default."""
    reads = [(how, known.clips[clip]) for how, known in LOSSES.items() if clip in known.clips]
    return "; ".join(f"{how}: {declared.help} [{declared.default:g}]" for how, declared in reads)


def default_text(name):
    """What --help says of a flag's default: on the embedded task and, where it differs, under the other presets.

    >>> default_text("lr"), default_text("off_policy"), default_text("out")
    (' [0.0002; paper: 5e-07; few: 1e-06; tiny: 0.0003]', ' [pipeline]', '')
    """
    if name == "recipe":
        return " [scalerl, with the preset's --prompts and --k]"
    if name == "offload_optimizer":
        return ""  # computed by memory.fit_trainers
    ours, *others = (as_given((DEFAULTS | preset).get(name)) for preset in PRESETS.values())
    differ = [f"; {preset}: {value}" for preset, value in zip([*PRESETS][1:], others) if value != ours]
    return "" if ours in (None, "") else f" [{ours}{''.join(differ)}]"


# --- The settings in force -------------------------------------------------------------------------------------------


def read_settings(argv):
    """The Settings in force: given flags win over those of a resumed run, these over --recipe, that over the preset.

    Exits with code 2 and one line for a wrong value, or for a flag that the chosen mode does not read.
    """
    parser = known_flags()
    try:
        return in_force(vars(parser.parse_args(argv)))
    except (ValueError, OSError, Fault) as error:
        refuse(error)
    except SystemExit as end:
        if end.code:
            end_launcher()
        raise


def in_force(asked):
    """The Settings for the flags of a command line, {name: value}. Raises ValueError or OSError."""
    check_launcher()
    earlier = earlier_flags(asked)
    given = earlier | asked
    base = data.base_of([parse_source(source)[0] for source in given.get("data", ["arithmetic"])])
    preset = given.get("preset") or preset_of((ROOT / given.get("model", base)).resolve())
    recipe = dict(RECIPES.get(given.get("recipe"), {"aggregation": "sample"} if given.get("loss") == "gspo" else {}))
    if preset == "few":
        recipe.pop("prompts", None)  # a recipe is an algorithm; its batch is made for a large fleet
    computed = {"model": base, "dtype": given["plan"].device.dtype if given.get("plan") else default_dtype()}
    # The first that has a flag gives its value.
    values = ChainMap(asked, earlier, recipe, PRESETS[preset], computed, DEFAULTS)
    args = SimpleNamespace(**vars(Settings(**{name: values[name] for name in FIELDS})))
    args.preset = preset
    args.recipe_given = "recipe" in asked or earlier.get("recipe_given", False)
    if gpus() and args.dtype == "float32" and "dtype" not in given and not args.plan:
        args.notes.append("--dtype float32, since this GPU has no bfloat16: all takes twice the memory, and longer")
    args.default_new = (PRESETS[preset] | earlier)["max_new_tokens"]
    # Sizes of an earlier run count as asked for, so that memory.py does not change them.
    sizes = {"max_prompt_tokens", "max_new_tokens", "interrupt_at", "length_max", "length_cache", "think_end"}
    args.asked = sorted(asked.keys() | sizes & earlier.keys())
    args.clips = {clip: given.get(clip, declared.default) for clip, declared in LOSSES[args.loss].clips.items()}
    check_rule(args)
    derive_defaults(args, given, asked, earlier)
    check_read(args, asked)
    check_settings(args, given, asked)
    how = "" if args.recipe_given else " with the preset's --prompts and --k"
    sizes = f"{args.prompts} x {args.generations} completions of up to {args.max_new_tokens:,} tokens a step"
    args.notes.append(f"preset {preset} ({sizes}), recipe {args.recipe}{how}; flags that you give win")
    return Settings(**vars(args))


def preset_of(folder):
    """The name of the preset for the policy in this folder."""
    if folder == ROOT / "base" / "tiny":
        return "tiny"
    return "base" if folder.is_relative_to(ROOT / "base") else "few"


def earlier_flags(asked):
    """The flags of an earlier run, which those of the command line replace: of the run to resume, or of the run that
    wrote the checkpoint of --evaluate; {} without one."""
    if "evaluate" in asked:
        if ignored := sorted(asked.keys() - of_evaluations()):
            raise ValueError(f"--evaluate trains nothing: it does not read {', '.join(map(option, ignored))}")
        log = Path(asked["evaluate"]).parent / "log.jsonl"
        return (restored(log, asked) if log.exists() else {}) | {"model": asked["evaluate"]}
    if not asked.get("resume"):
        return {}
    if "out" not in asked:
        raise ValueError("--resume: found no --out; expected the folder of the run")
    log = Path(asked["out"]) / "log.jsonl"
    checkpoints = finished_checkpoints(log.parent)
    if log.exists():
        lock_log(log.parent, alone=False).close()  # a run that goes on deletes checkpoints that are looked at
    if not log.exists() or not log.stat().st_size:  # a start that failed before its first row leaves an empty one
        if checkpoints:
            expected = f"expected the log of the run whose checkpoints are in {log.parent}"
            raise ValueError(f"--resume: {expected}, found no {log} with rows")
        return {}
    stored = restored(log, asked)
    for name, value in asked.items():
        setting = FIELDS.get(name)  # None: a clip flag of a loss
        was = stored.get(name, setting.default if setting else value)
        if value != was and not (setting and setting.metadata["marks"] & (FREE | START)):
            way = f" from its weights: --model {checkpoints[-1]}" if checkpoints else ", with another --out"
            raise ValueError(
                f"--resume with {option(name)} {as_given(value)}: the run in {log.parent} has {as_given(was)}, "
                f"and this must stay. To change it, start a new run{way}"
            )
    return stored


def restored(log, asked):
    """The flags of the run of this log, without those that belong to one start.

    Raises ValueError if it names a file with code that the command line does not name: somebody else may have
    written the log.
    """
    known = {name for name, setting in FIELDS.items() if not START & setting.metadata["marks"]} | {"recipe_given"}
    if "evaluate" in asked:  # nothing is trained, and no time is virtual
        known &= of_evaluations()
    stored = stored_flags(log)
    flags = {name: value for name, value in stored.items() if name in known}
    check_logged(log, flags)
    for name in ("loss", "reward"):
        if ":" in (flags.get(name) or "") and name not in asked:
            raise ValueError(f"{log} names code, which runs only if you name it too: {option(name)} {flags[name]}")
    if flags.get("loss") in LOSSES:
        flags |= {name: value for name, value in stored.items() if name in LOSSES[flags["loss"]].clips}
    return flags


def check_logged(log, flags):
    """Raise ValueError for a logged value that its flag cannot have: the log was edited, or is of another version."""
    for name in flags.keys() & FIELDS.keys():
        value, kind = flags[name], FIELDS[name].type
        if not isinstance(kind, (type, UnionType)):  # list[str]; a tuple is logged as a list
            kind = list
        choices = FIELDS[name].metadata.get("choices") or [value]
        if name == "loss" and ":" not in str(value):
            choices = LOSSES
        if not isinstance(value, kind) or value not in (*choices, None):
            got = f"got {option(name)} {as_given(value)} in the last config row of {log}"
            raise ValueError(
                f"{got}; expected a value of that flag. Mend the row, or start a new run with another --out"
            )


def of_evaluations():
    """Names of the flags that --evaluate reads."""
    return {name for name, setting in FIELDS.items() if EVALUATION <= setting.metadata["marks"]}


def derive_defaults(args, given, asked, earlier):
    """Fill in the values that follow from others."""
    if args.virtual:
        args.trainers = args.trainers or max(1, (1 + args.generators) // 5)  # of the model: one process computes
    elif not args.evaluate:
        world = world_size(args.plan)
        if args.resume and args.trainers and args.trainers >= world:  # a node may be missing after a restart
            args.notes.append(f"--trainers {args.trainers} of {world} processes: {world - 1} train")
            args.trainers = world - 1
        args.trainers = args.trainers or -(-world // 5)  # memory.py takes more if these do not fit
    if "eval_every" not in given:
        args.eval_every = fitting_interval(args) or args.eval_every
    args.checkpoint_every = args.checkpoint_every or args.eval_every
    name = args.loss.rpartition(":")[2]
    args.out = args.out or ("runs/evaluation" if args.evaluate else f"runs/{name}-seed{args.seed}")
    args.checkpoint = starting_point(args, earlier) if args.resume else None
    args.resume = bool(args.checkpoint)
    args.date = args.date or date.today().isoformat()
    if args.think_end is None and args.length_control == "interrupt":
        if "length_control" in asked:
            raise ValueError("--length-control interrupt with --think-end none: an interruption ends in the mark")
        args.length_control = "none"
    elif args.think_end and "interrupt_phrase" not in given:
        args.interrupt_phrase = args.interrupt_phrase.replace(THINK_END, args.think_end)


def starting_point(args, earlier):
    """The folder of the checkpoint to resume from, or None; `notes` say what --resume does.

    earlier  flags of the run
    """
    from plumbing.checkpoints import check_same_policy, newest  # here, since it loads transformers

    folder, _ = newest(args.out)
    choice = f"goes on from {folder}" if folder else f"no checkpoint in {args.out}: starts anew"
    args.notes.append(f"--resume: {choice}")
    if folder and step_of(folder) >= args.steps:
        args.notes.append(f"--resume: no step is left of --steps {args.steps}; raise it to go on")
    for name in ("lr", "warmup"):
        value = getattr(args, name)
        was = earlier.get(name, value)
        if value != was:
            args.notes.append(f"--resume: {option(name)} {value} instead of {was}")
    if args.model != earlier.get("model", args.model):
        check_same_policy(args.model, folder)
    return folder and str(folder)


# --- What cannot work ------------------------------------------------------------------------------------------------


def check_read(args, asked):
    """Raise ValueError for a flag that the chosen loss or length control does not read."""
    for name in asked:
        mode, value = FIELDS[name].metadata.get("read_with", ("", "")) if name in FIELDS else ("", "")
        if mode and getattr(args, mode) != value:
            raise ValueError(f"{option(name)} is read with {option(mode)} {value} only, got {getattr(args, mode)}")
        if name not in FIELDS and name not in args.clips:
            reads = ", ".join(map(option, args.clips)) or "none of these"
            raise ValueError(f"{option(name)} is not read by --loss {args.loss}, which reads {reads}")
