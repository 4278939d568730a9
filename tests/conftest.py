"""One thread a process: the pools of a run's processes would fight for the cores, and base/ is too small for two.

Imported modules are frozen: otherwise every full garbage collection would walk through all of them again.
"""

import gc
import itertools
import json
import math
import multiprocessing.forkserver
import operator
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

pytest.register_assert_rewrite("started_runs", "rollouts")
os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, by this process and by those that tests start
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # what forks after tokenising need not be told so


DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parent.parent
ROOMS = {"plumbing", "verify", "course", "lab"}  # a folder a trade


def modules():
    """{dotted name: text} of the project's modules, in folders of any depth."""
    patterns = ("*.py", *(f"{room}/**/*.py" for room in ROOMS))
    files = (file for pattern in patterns for file in ROOT.glob(pattern))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file.read_text() for file in files}


def read_rows(path, kind=None):
    """The rows of a JSON Lines file, or only those of a kind."""
    found = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return [row for row in found if kind in (None, row.get("kind"))]


def write_rows(path, rows):
    Path(path).write_text(jsonl(rows), encoding="utf-8")


def rows(name, kind=None):
    """The rows of data/NAME.jsonl, or only those of a kind."""
    return read_rows(DATA / f"{name}.jsonl", kind)


def close(found, expected, within):
    """Whether no number of two tensors, or of a list and a tensor, differs by more than `within`."""
    import torch

    return torch.allclose(torch.as_tensor(found), expected, rtol=0, atol=within)


def of_tokens(logits, ids):
    """The log-probabilities of these tokens from the whole (..., V) logits at once."""
    return logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)


def jsonl(rows):
    """The text of a file with a line for each row."""
    return "".join(json.dumps(row) + "\n" for row in rows)


TRUTH = {"A": 0.8, "B": 1.7, "C_mid": 30.0, "R_0": 0.2}


def clean(noise=0.0, points=30, top=150.0, seed=0, **changes):
    """Compute (points + 1,) from 0 to `top`, pass rates of TRUTH with normal noise on all but both ends."""
    import fit

    C = np.linspace(0, top, points + 1)
    R = fit.sigmoid(C, **(TRUTH | changes))
    return C, R + noise * np.random.default_rng(seed).normal(size=len(C)) * (C > 0) * (C < top)


def run_of(name="run", **options):
    """A fit.Run made by `clean`."""
    import fit

    return fit.Run(*clean(**options), name=name)


def launched(monkeypatch, **variables):
    """As if torchrun had started this process, with these of its variables."""
    for name, value in ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500} | variables).items():
        monkeypatch.setenv(name, str(value))


def given(flags=""):
    """The settings of a command line."""
    from plumbing.settings import read_settings

    return read_settings(flags.split())


def ended(flags):
    """The exit code of a run in this process.

    It draws no run.png, which takes longer than most runs of the tests; test_log.py has one drawn.
    """
    import train

    with patch("plumbing.figures.page"):
        return train.main(given(flags))


def trained(flags, out="run"):
    """The rows of the log of a run in this process."""
    assert ended(f"{flags} --out {out}") == 0
    return read_rows(Path(out, "log.jsonl"))


@pytest.fixture
def losses_as_before():
    """Losses that a test adds are gone after it."""
    import loss  # not at the top: torch is slow to import

    with patch.dict(loss.LOSSES):
        yield


@pytest.fixture
def signs(monkeypatch):
    """Advantages are 1, -1, 1, -1 in every group: a random model answers nothing."""
    import torch

    import loss

    everything = torch.ones(4, dtype=torch.bool), torch.tensor([1.0, -1.0, 1.0, -1.0]).expand(4, 4)
    monkeypatch.setattr(loss, "compute_advantages", lambda groups, **_: everything)


def alive(pid):
    """Whether the process runs: it exists and is no zombie, which another process has to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(true, what, seconds=30.0):
    """Fails with `what` (a text, or a function that says it) if it does not come true in time."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.02)


CHARACTERS = "0123456789+-=.abcdefghijklmnopqrstuvwxyz:?| "
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def character_tokenizer(*, template=None, wrap=False, characters=CHARACTERS):
    """One token per character, id = 3 + place in `characters`; `wrap` adds <bos> and <eos> as some models do."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "<bos>": 1, "<eos>": 2} | {c: 3 + i for i, c in enumerate(characters)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    if wrap:
        marks = [("<bos>", 1), ("<eos>", 2)]
        core.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=marks)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>")
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return character_tokenizer()


KINDS = {  # what differs between the models that tests make
    "qwen3": dict(tie_word_embeddings=True),
    "llama": dict(num_attention_heads=4, tie_word_embeddings=False),
    "gemma": dict(num_attention_heads=4, num_key_value_heads=1, tie_word_embeddings=True),
    "qwen3_moe": dict(num_experts=8, moe_intermediate_size=16, head_dim=16, norm_topk_prob=True),
    "mixtral": dict(num_local_experts=8, intermediate_size=16, head_dim=16, sliding_window=None),
    "olmoe": dict(num_experts=8, intermediate_size=16, head_dim=16),
}


def tiny_model(kind="qwen3", **changes):
    """A random fp32 model with clearly uneven probabilities, the same one at every call; changes: of its config."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = dict(vocab_size=24, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=32)
    sizes |= dict(num_attention_heads=2, num_key_value_heads=2, num_experts_per_tok=2, max_position_embeddings=128)
    rest = dict(initializer_range=0.3, eos_token_id=1, pad_token_id=0, bos_token_id=2)
    config = AutoConfig.for_model(kind, **sizes | rest | KINDS.get(kind, {}) | changes)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def qwen3(size):
    """The config of a Qwen3 as published."""
    from transformers import AutoConfig

    width, inner, layers, heads, tied = {
        "0.6B": (1024, 3072, 28, 16, True),
        "4B": (2560, 9728, 36, 32, True),
        "8B": (4096, 12288, 36, 32, False),
        "14B": (5120, 17408, 40, 40, False),
        "32B": (5120, 25600, 64, 64, False),
    }[size]
    sizes = dict(hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads)
    rest = dict(num_key_value_heads=8, head_dim=128, vocab_size=151936, max_position_embeddings=40960)
    return AutoConfig.for_model("qwen3", **sizes, **rest, tie_word_embeddings=tied)


def ranks_of(launcher):
    """{rank: process id} of the children of a torchrun."""
    found = {}
    for child in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text(encoding="utf-8").split():
        variables = Path(f"/proc/{child}/environ").read_text(encoding="utf-8").split("\0")
        found |= {int(text[5:]): int(child) for text in variables if text.startswith("RANK=")}
    return found


def rollout(correct, prompt=0, *, tokens=4, injected=0, prompt_tokens=3, truncated=False, logprob=-1.0):
    """The rollout of a completion, all that trainers know at first; correct None: its verifier failed."""
    import pipeline
    import reward

    value = math.nan if correct is None else reward.reward(correct)
    lengths = prompt_tokens, tokens, {0: tokens - injected}
    key = f"rollout/{next(made)}"
    return pipeline.RolloutMetadata(
        key, prompt, value, correct, truncated, injected > 0, *lengths, logprob, timed_out=False, error=""
    )


made = itertools.count()


def sampled(prompt_ids, ids, logprobs, mask=None):
    """A pipeline.Rollout with these tokens."""
    import pipeline

    mask = mask or [True] * len(ids)
    return pipeline.Rollout(0, 0, False, prompt_ids, ids, mask, logprobs, [0] * len(ids), "", False, False)


def alone(sums, largest):
    """Processes.total of a single trainer."""
    return sums.tolist(), largest.item()


def batch(*verdicts):
    """A group of rollouts for each list of verdicts."""
    return [[rollout(correct, p) for correct in group] for p, group in enumerate(verdicts)]


def refuses(words, function, *args, error=ValueError, **options):
    """The call raises this error with a message that holds these words (a pattern)."""
    with pytest.raises(error, match=words):
        function(*args, **options)


def check_exercise(module, name):
    """What the course asks of a function, with numbers worked out by hand, holds for the module's own."""
    pytest.importorskip("course", reason="the numbers are those of the course, which this copy lacks")
    from course.checks.catalogue import EXERCISES

    [exercise] = [exercise for exercise in EXERCISES if exercise.name == name]
    function = operator.attrgetter(exercise.target)(module)
    for claim in exercise.claims:
        assert not claim.problem(claim.vector(function), claim.right(function))


@dataclass
class Finished:
    """The fields of pipeline.Rollout that the scorer reads."""

    text: str
    truncated: bool = False
    ids: tuple = ()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Every test runs in an empty folder and without a launcher's variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture
def start(forks, tmp_path):
    """(world, flags, fault=…) -> a Run; its processes are killed when the test ends."""
    from started_runs import Run

    runs = []

    def started(world, flags, out=tmp_path / "run", fault=None):
        runs.append(Run(out))
        return runs[-1].fork(forks, world, flags, fault)

    yield started
    for process in (process for run in runs for process in run.processes):
        process.kill()
        process.join()


@pytest.fixture(scope="module")
def launchers():
    """The launchers that tests start; those that a failed test leaves running are ended with this module."""
    from started_runs import PATIENCE

    started = []
    yield started
    for launcher in started:
        launcher.terminate()  # a launcher ends its ranks too; does nothing if it has ended
        launcher.wait(PATIENCE)


if (
    sys.platform != "linux"
):  # it alone has processes of torchrun, sandboxes and workers, and the locks of a run's folder
    names = "faults heartbeat nodes programs restarts resumed run_folder sandbox scorer train user_reward virtual vllm"
    collect_ignore = [f"test_{name}.py" for name in names.split()]

# The test modules that take longest: `pytest -n 2` begins with them, so that no core waits for the last one.
LONGEST = ("test_scorer", "test_lab", "test_train", "test_forecast", "test_user_reward", "test_sandbox")


def pytest_configure(config):
    """A plain pytest on a machine with GPUs tests what it does on any other: only `pytest -m gpu` may see them.

    With `pytest -n 2` the tests of a file stay together, since they share its runs.
    """
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    config.option.dist = "loadfile" if getattr(config.option, "dist", "no") == "load" else "no"
    config.option.loadscopereorder = False  # by the number of tests


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_collection_finish():
    gc.freeze()


@pytest.fixture(scope="session")
def forks():
    """A context that forks ranks from a fresh process, which has imported what they need and has no threads yet.

    Importing takes longer than most runs of the tests.
    """
    context = multiprocessing.get_context("forkserver")
    here = Path(__file__).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(here.parent), str(here)]))
        late = "transformers.models.qwen3.modeling_qwen3", "plumbing.figures", "matplotlib.figure"
        context.set_forkserver_preload(["train", "started_runs", *late])
        multiprocessing.forkserver.ensure_running()
    return context


def live(rank, world, meet, life, arguments):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    life(rank, *arguments)
    dist.destroy_process_group()


def run_ranks(forks, world, meet, life, *arguments):
    """life(rank, *arguments) in so many forked processes of a group, which meet at a file that is not there yet."""
    ranks = [
        forks.Process(target=live, args=(rank, world, meet, life, arguments), daemon=True) for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0] * world, "a rank failed, or a collective hangs (None)"
