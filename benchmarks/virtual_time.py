"""Does virtual time tell what a real run does? Its costs are taken from one real run and predict a second one.

    OMP_NUM_THREADS=1 python benchmarks/virtual_time.py            about 8 minutes on two cores that do nothing else

Two real runs of the embedded task with other seeds, then the second seed in virtual time with the costs of the first
(`--virtual measured:LOG`). Prints for each seconds a step, idle shares and the mean staleness of the trained tokens,
without the first steps, in which much is done for the first time, and the difference between the second real run and
the virtual one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TRAIN = Path(__file__).resolve().parent.parent / "train.py"


def run(out, args, seed, *more):
    """The rows of a run's log of kind `step`, without the first `--skip`."""
    flags = ["--loss", "cispo", "--seed", seed, "--steps", args.steps, "--slots", args.slots]
    flags += ["--eval-every", args.steps, "--eval-prompts", 16, "--eval-generations", 2, "--out", out, *more]
    command = [sys.executable, str(TRAIN), *map(str, flags)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    rows = [json.loads(line) for line in (out / "log.jsonl").open()]
    return [row for row in rows if row["kind"] == "step"][args.skip :]


def measure(steps):
    """{name: number}: seconds a step, idle shares of the time, mean staleness of the tokens in optimizer steps."""
    seconds = sum(row["seconds"] for row in steps)
    staleness = [(int(k), tokens) for row in steps for k, tokens in row["staleness"].items()]
    return {
        "seconds a step": seconds / len(steps),
        "generators idle": sum(row["idle_generators"] * row["seconds"] for row in steps) / seconds,
        "trainers idle": sum(row["idle_trainers"] * row["seconds"] for row in steps) / seconds,
        "mean staleness": sum(k * tokens for k, tokens in staleness) / sum(tokens for _, tokens in staleness),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--skip", type=int, default=4, help="first steps that are left out (default: 4)")
    parser.add_argument("--slots", type=int, default=128)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        table = {
            "real, seed 10": measure(run(folder / "first", args, 10)),
            "real, seed 11": measure(run(folder / "second", args, 11)),
            "virtual, seed 11": measure(
                run(folder / "virtual", args, 11, "--virtual", f"measured:{folder / 'first' / 'log.jsonl'}")
            ),
        }
    real, virtual = table["real, seed 11"], table["virtual, seed 11"]
    table["difference"] = {name: virtual[name] - real[name] for name in real}
    print(f"{'':18}" + "".join(f"{name:>18}" for name in table))
    for metric in real:
        print(f"{metric:18}" + "".join(f"{row[metric]:18.3f}" for row in table.values()))
    print(f"seconds a step, virtual / real: {virtual['seconds a step'] / real['seconds a step']:.3f}")


if __name__ == "__main__":
    main()
