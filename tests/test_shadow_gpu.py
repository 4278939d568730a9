"""The GPU path, rehearsed without a GPU: tensors that say "cuda" (shadow/shadow.py), and a meter of its memory
(shadow/meter.py). What this cannot show is listed in docs/nodes.md.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import read_rows
from test_settings import QWEN3_8B

from plumbing.setup import sizing

pytestmark = pytest.mark.processes
HERE = Path(__file__).parent / "shadow"
TORCH = Path(torch.__file__).parent
CASES = [(2, 1, 1), (3, 2, 3)]  # processes, trainers, GPUs that a process sees
FLAGS = "--loss cispo --steps 2 --prompts 4 --seed 1 --generations 4 --off-policy ppo --k 1 --token-budget 512"
FLAGS += " --activation-checkpointing --max-new-tokens 64 --length-control none --eval-prompts 1 --eval-generations 1"
MODEL = type(QWEN3_8B)(**QWEN3_8B.to_dict() | {"num_hidden_layers": 2, "layer_types": None})
SIZES = dict(token_budget=32768, slots=4, max_prompt_tokens=2048, max_new_tokens=14336, activation_checkpointing=True)
SIZES["plan"] = None  # the meter captures no CUDA graphs


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The folder of the runs, and {what was started: the Future of what it prints}: two at a time on two cores."""
    if not shutil.which("g++"):
        pytest.skip("g++, which compiles tests/shadow/guard.cpp, is not on this machine")
    folder = tmp_path_factory.mktemp("shadow")
    guard = folder / "guard.so"
    paths = ["-I", TORCH / "include", HERE / "guard.cpp", "-L", TORCH / "lib", "-lc10", "-ltorch_cpu"]
    subprocess.run(["g++", "-shared", "-fPIC", "-std=c++20", *paths, "-o", guard], check=True)
    MODEL.save_pretrained(folder)

    def run(*command, **more):
        variables = os.environ | {"SHADOW_GUARD": str(guard), "OMP_NUM_THREADS": "1"} | more
        command = [sys.executable, *map(str, command)]
        found = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=400)
        assert found.returncode == 0, found.stderr
        return found.stdout

    with ThreadPoolExecutor(2) as pool:
        started = {}
        for processes, trainers, gpus in reversed(CASES):
            ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes, HERE / "shadow.py"]
            command = [*ranks, HERE.parent.parent / "train.py", *FLAGS.split(), "--trainers", trainers]
            # Each further rank sees a GB less of free memory, so each would choose other slots.
            seen = dict(SHADOW_GPUS=str(gpus), SHADOW_LESS="1000000000", SHADOW_REPORT=f"{folder}/{trainers}")
            started[trainers] = pool.submit(run, *command, "--out", folder / f"run{trainers}", **seen)
        pytest_main = Path(pytest.__file__).parent / "__main__.py"
        tests = [HERE.parent / "test_gpu.py", *"-m gpu -k on_a_gpu".split()]
        started["tests"] = pool.submit(run, HERE / "shadow.py", pytest_main, *tests)
        started["generate"] = pool.submit(run, HERE / "generate.py")
        started["slots"] = pool.submit(run, HERE / "meter.py", folder, SIZES["slots"])
        started["16 trainers"] = pool.submit(run, HERE / "meter.py", folder, 16, SIZES["token_budget"])
        yield folder, started


@pytest.mark.parametrize("processes, trainers, seen", CASES, ids=["one seen, as by Slurm", "all seen"])
def test_a_run_in_bf16_on_gpus_ends_well_and_seldom_waits_for_them(outputs, processes, trainers, seen):
    folder, started = outputs
    started[trainers].result()
    rows = read_rows(folder / f"run{trainers}" / "log.jsonl")
    assert rows[0]["world"] == processes
    assert rows[-1]["reason"] == "finished" and rows[0]["flags"]["dtype"] == "bfloat16"
    first, second = [row for row in rows if row["kind"] == "step"]
    assert first["kept"] and second["kept"]
    # Each step trains on what the newest weights sampled; see MISMATCH_LIMIT. Here attention is the same on both sides.
    assert 0 < first["log_rho"] < 1e-3 and 0 < second["log_rho"] < 1e-3  # nats
    reports = [json.loads((folder / f"{trainers}.{rank}").read_text()) for rank in range(processes)]
    for rank, report in enumerate(reports):
        assert report["products"].keys() == {"torch.bfloat16"} and not any(report["unfinished"].values())
        # Statistics of each token; on a generator also positions and probabilities. A head in fp64 makes 4e-4.
        share = 2e-4 if rank < trainers else 5e-4
        assert report["numbers"]["torch.float64"] < share * sum(report["numbers"].values())
    waits = Counter()
    for place, count in reports[0]["waits"].items():
        waits[place.split()[0]] += count
    del waits["checkpoint"], waits["__init__"]  # one for each weight
    # 3 a micro-batch, and 11 more for the check at the start; 11 in the two steps.
    assert waits.total() <= 3 * (first["micro_batches"] + second["micro_batches"]) + 11 * first["micro_batches"] + 11


def test_a_generator_on_a_gpu_waits_once_a_decode_step_and_names_the_line_of_a_tensor_on_the_cpu(outputs):
    found = json.loads(outputs[1]["generate"].result().splitlines()[-1])
    assert found["waits"] == found["steps"] > 0
    assert "on different devices" in found["mistake"] and "rollout.py:" in found["mistake"]


def test_what_the_tests_of_a_gpu_compare_with_a_cpu_is_the_same_here(outputs):
    assert "3 passed" in outputs[1]["tests"].result()  # the head, plain and on tensor cores; a generator


def test_the_peak_memory_of_a_trainer_is_what_sizing_says_and_publishing_needs_no_more(outputs):
    found = json.loads(outputs[1]["16 trainers"].result())  # test_plan.py has what the meter found for others
    training = max(found[phase] for phase in ("gradients 1", "optimizer 1", "gradients 2", "optimizer 2"))
    expected = sizing.trainer_bytes(SimpleNamespace(**SIZES), MODEL, found["parameters"], 2, 16)
    assert 0.85 * expected <= training <= 1.1 * expected and found["publish"] <= training


def test_the_peak_memory_of_a_generator_is_what_sizing_says(outputs):
    found = json.loads(outputs[1]["slots"].result())
    fixed, slot = sizing.generator_bytes(SimpleNamespace(**SIZES), MODEL, found["parameters"], 2)
    assert 0.9 <= found["peak"] / (fixed + SIZES["slots"] * slot) <= 1.1
