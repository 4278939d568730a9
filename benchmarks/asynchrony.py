"""Sec. 3.1: PipelineRL-k against PPO-off-policy-k, everything else equal, on the embedded task.

    OMP_NUM_THREADS=1 python benchmarks/asynchrony.py            5 to 6 minutes on two cores

Both run here, one after the other. --slots is so low by default that training takes 0.3 to 0.9 of the generation time,
as where there are more generators than trainers. Measured over whole PPO phases, without the first and the last two:
where the run starts and ends, one of the two processes has no work. Prints a table and the ratio of completions/s.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TRAIN = Path(__file__).parent.parent / "train.py"


def run(off_policy, args, folder):
    """(flags, [row of the log for each step]) of one run."""
    out = Path(folder) / off_policy
    steps = args.phases * args.k
    command = [
        sys.executable,
        str(TRAIN),
        "--loss",
        "cispo",
        "--off-policy",
        off_policy,
        "--k",
        args.k,
        "--steps",
        steps,
        "--slots",
        args.slots,
        "--eval-every",
        steps,
        "--eval-prompts",
        8,
        "--out",
        out,
    ]
    subprocess.run(
        list(map(str, command)), check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    rows = [json.loads(line) for line in (out / "log.jsonl").open()]
    return rows[0]["flags"], [row for row in rows if row["kind"] == "step"]


def measure(flags, steps, k):
    """{name: number} of the inner phases: completions per second, seconds of generating and training, idle shares."""
    inner = steps[k : len(steps) - k - 1]
    inner = inner[: len(inner) // k * k]
    seconds = sum(row["seconds"] for row in inner)
    return {
        "completions/s": len(inner) * flags["prompts"] * flags["generations"] / seconds,
        "generate s/step": sum(row["seconds_generate"] for row in inner) / len(inner),
        "train s/step": sum(row["seconds_train"] for row in inner) / len(inner),
        "generators idle": sum(row["idle_generators"] * row["seconds"] for row in inner) / seconds,
        "trainers idle": sum(row["idle_trainers"] * row["seconds"] for row in inner) / seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--phases", type=int, default=4, help="number of phases of k optimizer steps; 4 or more")
    parser.add_argument("--slots", type=int, default=64)
    args = parser.parse_args()
    if args.phases < 4:
        parser.error(f"--phases is {args.phases}; expected 4 or more: the first, the last and one more are left out")
    with tempfile.TemporaryDirectory() as folder:
        table = {name: measure(*run(name, args, folder), args.k) for name in ("ppo", "pipeline")}
    print(f"{'':18}" + "".join(f"{name:>12}" for name in table))
    for metric in table["ppo"]:
        print(f"{metric:18}" + "".join(f"{row[metric]:12.3f}" for row in table.values()))
    fast, slow = table["pipeline"], table["ppo"]
    print(f"training / generating: {slow['train s/step'] / slow['generate s/step']:.2f} (ppo)")
    print(f"completions/s, pipeline / ppo: {fast['completions/s'] / slow['completions/s']:.2f}")


if __name__ == "__main__":
    main()
