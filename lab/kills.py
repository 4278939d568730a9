"""kill -9 at random moments over all roles of one run that torchrun restarts, beside the same run left alone.

    python -m lab.kills --kills 50 --out runs/kills -o results/kills.json

Roles: rank 0, the other trainer, the generator, the launcher. After the launcher's death the same command line is given
again, as a scheduler does that requeues. A kill has recovered when a new start has logged a step. The batches of two
runs can be compared because without No-Positive-Resampling the order of prompts depends on the seed alone.

Which tokens a step trains on depends on timing, so two runs of one command do not end alike: `--alone` says how many
times the run is made without kills, to see by how much. Prints a table and writes its numbers. It takes about 25
minutes on two cores. Linux only: it reads /proc.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from plumbing.run.folder import rows

ROOT = Path(__file__).resolve().parent.parent

MARK = "KILLED_RUN"  # an environment variable by which the processes of a run are found
ROLES = ("0", "1", "2", "launcher")  # ranks 0 and 1 train
PATIENCE = 300.0  # seconds without a new step after which a kill counts as not recovered
FLAGS = """--resume --data tiny --loss cispo --trainers 2 --k 2 --no-positive-resampling off --eval-every 100
--checkpoint-every 5 --seed 5 --timeout 60""".split()


def start(out, steps):
    """Give the one command line; returns the launcher."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    command = [*torchrun, "--max-restarts", "1000", ROOT / "train.py", *FLAGS, "--steps", str(steps), "--out", str(out)]
    variables = {MARK: str(out), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    with open(f"{out}.txt", "a") as console:
        return subprocess.Popen(
            command, env=os.environ | variables, stdout=console, stderr=console, start_new_session=True
        )


def members(out):
    """{role, or process id of a helper: process id} of the run's living processes but the launcher."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                variables = dict(x.split("=", 1) for x in (folder / "environ").read_text().split("\0") if "=" in x)
                dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                helper = "verify.workers" in (folder / "cmdline").read_text()
            except (OSError, UnicodeDecodeError):
                continue
            if variables.get(MARK) == str(out) and not dead and "TORCHELASTIC_RUN_ID" in variables:
                found[folder.name if helper else variables["RANK"]] = int(folder.name)
    return found


def steps_of(out):
    """The step rows of the log so far."""
    log = Path(out) / "log.jsonl"
    return [row for row in rows(log)[0] if row["kind"] == "step"] if log.exists() else []


def starts_of(out):
    """How many starts of the run have logged a step so far."""
    log = Path(out) / "log.jsonl"
    kinds = "".join(row["kind"][0] for row in rows(log)[0] if row["kind"] in ("config", "step")) if log.exists() else ""
    return kinds.count("cs")


def wait_for(condition, seconds):
    """Whether the condition held within so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def kill(out, role, launcher):
    """kill -9 the process of this role as soon as there is one."""
    if role == "launcher":
        launcher.kill()
        launcher.wait()
        wait_for(lambda: not members(out), PATIENCE)  # they end in order by themselves
        return

    def struck():
        with suppress(KeyError, ProcessLookupError):  # it may not have started yet, or have just ended
            os.kill(members(out)[role], signal.SIGKILL)
            return True

    wait_for(struck, PATIENCE)


def disturb(out, kills, steps, rng):
    """Run to the end through so many kills; returns (a row per kill, seconds of it all, the launcher's exit code)."""
    began = time.monotonic()
    launcher = start(out, steps)
    found = []
    while len(found) < kills and wait_for(lambda: steps_of(out), PATIENCE):
        time.sleep(rng.uniform(0.0, 6.0))  # after every other kill this hits a run that is still starting
        before = steps_of(out)
        if before[-1]["step"] > steps - 3:
            break
        role = rng.choice(ROLES)
        started = starts_of(out)
        moment = time.monotonic()
        kill(out, role, launcher)
        row = {"role": role, "after step": before[-1]["step"], "processes left": 0}
        if role == "launcher":
            row["processes left"] = len(members(out))
            launcher = start(out, steps)
        if rng.random() < 0.5:
            recovered = wait_for(lambda: starts_of(out) > started, PATIENCE)
            row |= {"recovered": recovered, "seconds": round(time.monotonic() - moment, 1)}
        found.append(row)
        print(row, flush=True)
    launcher.wait()
    return found, time.monotonic() - began, launcher.returncode


def table(quiet, killed, found):
    """What is counted, from the step rows of both runs and the kills. A kill soon after another recovers with it."""
    prompts = {row["step"]: row["prompts"] for row in quiet}
    last = {row["step"]: row["prompts"] for row in killed}
    asked = Counter(sum(last.values(), []))
    wanted = Counter(sum(prompts.values(), []))
    return {
        "kills": len(found),
        "of each role": dict(Counter(row["role"] for row in found)),
        "steps of the run": len(last),
        "steps repeated": len(killed) - len(last),
        "requests lost or doubled": sum((asked - wanted).values()) + sum((wanted - asked).values()),
        "batches that differ": sum(row["prompts"] != prompts.get(row["step"]) for row in killed),
        "processes left": sum(row["processes left"] for row in found),
        "seconds from a kill to the next step, median": statistics.median(
            row["seconds"] for row in found if "seconds" in row
        ),
        "longest": max(row["seconds"] for row in found if "seconds" in row),
    }


def last_evaluation(out):
    return [row for row in rows(out / "log.jsonl")[0] if row["kind"] == "eval"][-1]


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--alone", type=int, default=2, help="runs without kills")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and roles")
    parser.add_argument("--out", default="runs/kills", help="folder for both runs")
    parser.add_argument("-o", "--json", help="file for the numbers")
    args = parser.parse_args(argv)
    folder = Path(args.out).resolve()
    folder.mkdir(parents=True)
    began = time.monotonic()
    alone = [folder / f"alone{number}" for number in range(args.alone)]
    for out in alone:
        start(out, args.steps).wait()
    alone_seconds = (time.monotonic() - began) / args.alone
    found, seconds, code = disturb(folder / "killed", args.kills, args.steps, random.Random(args.seed))
    killed = steps_of(folder / "killed")
    time.sleep(5.0)
    result = table(steps_of(alone[0]), killed, found)
    result["recovered"] = len(found) if code == 0 and killed[-1]["step"] == args.steps else "no: see the console"
    result["processes left"] += len(members(folder / "killed"))
    result["seconds, left alone (mean) and killed"] = [round(alone_seconds), round(seconds)]
    ends = [last_evaluation(out) for out in (*alone, folder / "killed")]
    result["final pass rate, left alone and, last, killed"] = [round(row["pass_rate"], 3) for row in ends]
    result["its standard error"] = [round(row["stderr"], 3) for row in ends]
    result["device-hours"] = [round(row["gpu_hours"], 4) for row in ends]
    result["of these lost"] = [round(row["lost_gpu_hours"], 4) for row in ends]
    for name, value in result.items():
        print(f"{name:40} {value}")
    if args.json:
        Path(args.json).write_text(json.dumps(result | {"each": found}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
