"""The GPU path, rehearsed without a GPU: tensors that say "cuda" (shadow/shadow.py), and a meter of its memory
(shadow/meter.py). What this cannot show is listed in docs/nodes.md.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.processes
HERE = Path(__file__).parent / "shadow"
TORCH = Path(torch.__file__).parent


@pytest.fixture(scope="module")
def shadowed(tmp_path_factory):
    """Runs a command of python with guard.cpp compiled, and returns what it prints."""
    if not shutil.which("g++"):
        pytest.skip("g++, which compiles tests/shadow/guard.cpp, is not on this machine")
    guard = tmp_path_factory.mktemp("shadow") / "guard.so"
    paths = ["-I", TORCH / "include", HERE / "guard.cpp", "-L", TORCH / "lib", "-lc10", "-ltorch_cpu"]
    subprocess.run(["g++", "-shared", "-fPIC", "-std=c++20", *paths, "-o", guard], check=True)

    def run(*command, **environment):
        variables = os.environ | {"SHADOW_GUARD": str(guard), "OMP_NUM_THREADS": "1"} | environment
        found = subprocess.run([sys.executable, *command], env=variables, capture_output=True, text=True, timeout=200)
        assert found.returncode == 0, found.stderr
        return found.stdout

    return run


@pytest.mark.parametrize("processes, trainers", [(2, 1), (3, 2)])
def test_a_run_in_bf16_on_gpus_ends_well_and_seldom_waits_for_them(shadowed, tmp_path, processes, trainers):
    out = tmp_path / "run"
    flags = "--loss cispo --steps 2 --prompts 4 --generations 4 --eval-prompts 8 --eval-generations 1 --off-policy ppo"
    report = tmp_path / "waits"
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [*ranks, HERE / "shadow.py", HERE.parent.parent / "train.py", *flags.split()]
    # Each further rank sees a GB less of free memory, so each would choose other slots.
    environment = dict(SHADOW_GPUS=str(processes), SHADOW_REPORT=str(report), SHADOW_LESS="1000000000")
    shadowed(*command, "--trainers", str(trainers), "--out", out, **environment)
    rows = [json.loads(line) for line in (out / "log.jsonl").open()]
    assert rows[-1]["reason"] == "finished" and rows[0]["flags"]["dtype"] == "bfloat16"
    steps = [row for row in rows if row["kind"] == "step"]
    assert [row["log_rho"] for row in steps if row["kept"]][0] < 0.1  # nats; see MISMATCH_LIMIT
    waits = json.loads(Path(f"{report}.{trainers - 1}").read_text())  # of a trainer without the store
    micro_batch = ("stop_together", "bool(flag)", "get_decoder()", "nonzero(as_tuple", "torch.stack([*(value")
    count = sum(n for line, n in waits.items() if any(part in line for part in micro_batch))
    assert 0 < count <= 6 * sum(row["micro_batches"] for row in steps)


@pytest.fixture(scope="module")
def generated(shadowed):
    return json.loads(shadowed(HERE / "generate.py").splitlines()[-1])


def test_a_generator_on_a_gpu_gives_the_completions_of_a_cpu_and_waits_three_times_a_step(generated):
    assert generated["same"] == generated["of"] >= 8 and generated["waits"] <= 3


@pytest.mark.parametrize(
    "mistake, where",
    [
        ("_eos", "rollout.py:"),
        ("_phrase", "rollout.py:"),
        ("key", "rollout.py:"),
        ("gen_logprobs", "loss.py:"),
        ("input_ids", "precision.py:"),
    ],
)
def test_a_tensor_on_the_wrong_device_is_named_with_its_line(generated, mistake, where):
    said = generated["mistakes"][mistake]
    assert "on different devices" in said and where in said
