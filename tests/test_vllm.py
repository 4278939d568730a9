"""Sec. 3.1 and 3.2 on two truly different backends: VLLMGenerator against TorchGenerator and against the trainer.

Starting an engine takes seconds, so one engine serves many tests; each test gives it its own weights and settings.
Skipped without vLLM. Those marked gpu run on one as well: weights reach vLLM within one GPU.
"""

import copy
import os
import signal
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import alive, read_rows, tiny_model, wait_until

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: docs/own.md says how", allow_module_level=True)

import psutil  # vLLM needs it
from rollouts import EveryGenerator, finish, perturb, requests, tokenizer
from started_runs import TORCHRUN

from precision import PolicyModel
from rollout import Generator
from vllm_rollout import VLLMGenerator

ROOT = Path(__file__).parent.parent


def start(folder, model, tokens=None, **settings):
    """An engine on the weights of `model`."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return VLLMGenerator(folder, tokens or tokenizer(), **dict(slots=64, max_new_tokens=24) | settings)


def renew(gen, model, **settings):
    """Give a running engine other weights and settings, at a new version: keys and values are cached by version."""
    gen._engine.abort_request(list(gen._running))  # left by a test that failed
    with torch.no_grad():
        for name, weight in gen.named_weights().items():
            weight.copy_(model.get_parameter(name))
    gen._running = {}
    gen.update_weights(gen.version + 1)
    Generator.__init__(gen, model, tokenizer(), **dict(slots=5, max_new_tokens=24, version=gen.version) | settings)
    return gen


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """An fp32 engine with tied embeddings."""
    gen = start(tmp_path_factory.mktemp("fp32"), tiny_model())
    yield gen
    gen.close()


@pytest.fixture(scope="module")
def bf16_engine(tmp_path_factory):
    """A bf16 engine with an fp32 head and untied embeddings."""
    gen = start(tmp_path_factory.mktemp("bf16"), tiny_model("llama"), dtype=torch.bfloat16)
    yield gen
    gen.close()


@pytest.fixture
def make(engine):
    return partial(renew, engine)


class TestVLLMGenerator(EveryGenerator):
    pass


# --- Parity with the trainer (Sec. 3.2) ------------------------------------------------------------------------------


def deviations(completions, oracle):
    """|generator's log-prob - oracle(completion)| of every token, in nats."""
    return torch.cat([(torch.tensor(c.logprobs) - oracle(c)).abs() for c in completions])


def trainer(model):
    """completion -> log-probs (T,) of its tokens by the trainer's forward pass, at temperature 0.7."""
    policy = PolicyModel(copy.deepcopy(model), dtype=model.dtype, temperature=0.7)

    @torch.no_grad()
    def logprobs(completion):
        return policy(torch.tensor([completion.prompt_ids + completion.ids]))[0][0, len(completion.prompt_ids) - 1 :]

    return logprobs


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name, kind, dtype, largest, mean",
    [
        ("engine", "qwen3", torch.float32, 5e-4, 1e-4),  # fp32 sums in another order
        ("bf16_engine", "llama", torch.bfloat16, 2.0, 0.1),  # bf16 bodies round differently; a wrong weight gives > 0.3
    ],
)
def test_sec32_log_ratio_to_the_trainer_is_0_before_and_after_an_update(request, name, kind, dtype, largest, mean):
    old = tiny_model(kind).to(dtype)
    gen = renew(request.getfixturevalue(name), old, slots=40, temperature=0.7)
    before = finish(gen, requests(20)).values()
    new = perturb(gen, old)
    after = finish(gen, requests(20)).values()
    for part in (deviations(before, trainer(old)), deviations(after, trainer(new))):
        assert part.max() < largest and part.mean() < mean
    assert deviations(after, trainer(old)).mean() > 2 * mean  # what the other version would give


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_200_updates_of_vllm_take_no_more_memory_than_one(engine):
    engine.update_weights(engine.version + 1)
    free = torch.cuda.mem_get_info()[0]
    for _ in range(200):
        engine.update_weights(engine.version + 1)
    assert torch.cuda.mem_get_info()[0] > free - 50e6


# --- Errors, and how processes end -----------------------------------------------------------------------------------


SCRIPT = """
import json, signal, sys
from transformers import AutoTokenizer
from pipeline import Request
from plumbing import prompts as sources
from rollouts import finish
from vllm_rollout import VLLMGenerator

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with Ctrl-C ignored
    tokens = AutoTokenizer.from_pretrained("base")
    prompts = sources.read_sources("arithmetic", tokens, budget=64, validation=64).validation
    gen = VLLMGenerator("base", tokens, slots=64, max_new_tokens=48, temperature=0, fp32_head=False)
    print(len(finish(gen, [Request(prompt.index, 0, prompt, 1) for prompt in prompts])), flush=True)
    ending = sys.stdin.readline().strip()
    if ending != "close":
        gen.add(Request(64, 0, prompts[0], 10**5))
        gen.step()
        print("running", flush=True)
        if ending == "error":
            raise ValueError("an error")
        while gen.busy:
            gen.step()
    gen.close()
"""
ENDINGS = {"close": 0, "error": 1, "kill": -signal.SIGKILL, "interrupt": -signal.SIGINT}  # the exit status of each


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """One process per ending, all started at once: each needs up to half a minute of a core to come up."""
    script = tmp_path_factory.mktemp("endings") / "script.py"
    script.write_text(SCRIPT)
    variables = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE) | dict(text=True, start_new_session=True)
    command = [sys.executable, script]
    started = {ending: subprocess.Popen(command, cwd=ROOT, env=variables, **pipes) for ending in ENDINGS}
    yield started
    for process in started.values():
        process.kill()


def test_no_process_is_left_after_a_normal_end_an_error_ctrl_c_or_kill(processes):
    assert [process.stdout.readline() for process in processes.values()] == ["64\n"] * len(ENDINGS)  # all are up
    workers = {}
    for ending, process in processes.items():
        workers[ending] = psutil.Process(process.pid).children(recursive=True)
        assert workers[ending]
        process.stdin.write(f"{ending}\n")
        process.stdin.flush()
        assert ending == "close" or process.stdout.readline() == "running\n"
        if ending == "kill":
            process.kill()
        if ending == "interrupt":
            os.killpg(process.pid, signal.SIGINT)
    for ending, process in processes.items():
        _, errors = process.communicate(timeout=240)
        assert process.returncode == ENDINGS[ending], errors
        wait_until(lambda ending=ending: not any(alive(one.pid) for one in workers[ending]), ending, 60)


def test_a_dead_worker_is_an_error_and_closing_works_nevertheless(bf16_engine):
    """Must be the last test on this engine, whose worker it kills."""
    [worker] = [handle.proc for handle in bf16_engine._engine.model_executor.workers]
    for request in requests(4):
        bf16_engine.add(request)
    bf16_engine.step()
    worker.kill()
    with pytest.raises(RuntimeError):
        while True:
            bf16_engine.step()
    assert bf16_engine.busy
    bf16_engine.close()
    assert not bf16_engine.busy and not worker.is_alive()


def test_train_py_trains_on_vllm(tmp_path):
    """Two optimizer steps; the first one's batch is sampled by the weights that it trains."""
    flags = (
        "--generator vllm --loss cispo --steps 2 --prompts 4 --generations 4 --slots 16 --max-new-tokens 48"
        " --interrupt-at 16 24 --eval-prompts 4 --eval-generations 1 --out"
    )
    subprocess.run([*TORCHRUN, *flags.split(), tmp_path], check=True, timeout=400)
    steps = read_rows(tmp_path / "log.jsonl", "step")
    assert len(steps) == 2 and 0 < steps[0]["log_rho"] < 1e-3  # nats: fp32 sums in another order
