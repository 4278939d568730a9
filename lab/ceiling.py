"""Why the default task has a ceiling: pass rate and pass@16 by number of operands, before and after RL.

    python -m lab.ceiling runs/cispo-seed0/checkpoint-120      measures base/ and this policy, two minutes
    python -m lab.ceiling                                      draws results/ceiling.json again

For every length in data.LENGTHS, PROMPTS held-out sums are asked 16 times each, through `train.py --evaluate`. Writes
results/ceiling.json (one object per policy and length; standard errors over prompts) and figures/ceiling.png.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from matplotlib.figure import Figure

import data
import reward
import sft
from plumbing.figures import COLOURS

ROOT = Path(__file__).resolve().parent.parent

RESULTS, FIGURE = ROOT / "results" / "ceiling.json", ROOT / "figures" / "ceiling.png"
PROMPTS, GENERATIONS = 32, 16
LENGTHS = sorted(set(data.LENGTHS["arithmetic"]))


def held_out(length):
    """PROMPTS distinct (text, answer) pairs of `length` operands that are held out for validation, always the same."""
    rng = random.Random(f"ceiling/{length}")
    pairs = {}
    while len(pairs) < PROMPTS:
        text, answer = data.expression(rng, length)
        if data.is_held_out(text):
            pairs[text] = answer
    return pairs.items()


def operands(text):
    return sum(character.isdigit() for character in text)


def measure(label, policy):
    """Yield the rows of one policy, a folder: for each length mean@16 and pass@16, each with its standard error."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sums.jsonl"
        out = Path(folder) / "out"
        rows = [
            {"prompt": text, "answer": answer, "task": "arithmetic"}
            for length in LENGTHS
            for text, answer in held_out(length)
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        subprocess.run(
            [
                sys.executable,
                str(ROOT / "train.py"),
                "--evaluate",
                str(policy),
                "--data",
                str(file),
                "--generations",
                str(GENERATIONS),
                "--out",
                str(out),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        found = {}
        for row in map(json.loads, (out / "evaluation.jsonl").open()):
            found.setdefault(row["prompt"], []).append(row["correct"])
    for length in LENGTHS:
        groups = [group for text, group in found.items() if operands(text) == length]
        rate, best = (reward.pass_at_k(groups, k) for k in (1, GENERATIONS))
        numbers = {"pass_rate": rate[0], "stderr": rate[1], "pass_at_16": best[0], "pass_at_16_stderr": best[1]}
        yield (
            {"policy": label, "operands": length, "prompts": len(groups)}
            | {name: round(value, 4) for name, value in numbers.items()}
        )


def draw(rows, path):
    """Draw points with standard errors; grey bars: each length's share of prompts; shaded: longer than any in SFT."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    ax = figure.add_subplot()
    every = data.LENGTHS["arithmetic"]
    shares = [every.count(length) / len(every) for length in LENGTHS]
    ax.bar(LENGTHS, shares, color="0.75", label="share of the prompts")
    ax.axvspan(
        sft.SHOWN["arithmetic"][1] + 0.5,
        LENGTHS[-1] + 0.5,
        color="0.93",
        lw=0,
        zorder=0,
        label="longer than any in SFT",
    )
    for label, colour in zip(dict.fromkeys(row["policy"] for row in rows), COLOURS):
        own = [row for row in rows if row["policy"] == label]
        for name, error, style, what in (
            ("pass_rate", "stderr", "o-", f"mean@{GENERATIONS}"),
            ("pass_at_16", "pass_at_16_stderr", "^:", f"pass@{GENERATIONS}"),
        ):
            ax.errorbar(
                [row["operands"] for row in own],
                [row[name] for row in own],
                [row[error] for row in own],
                fmt=style,
                color=colour,
                label=f"{what} {label}",
                capsize=2,
                ms=5,
            )
    ax.set(
        xlabel="operands",
        ylabel="share of held-out sums",
        xticks=LENGTHS,
        ylim=(0, 1.03),
        xlim=(LENGTHS[0] - 0.5, LENGTHS[-1] + 0.5),
        title="The ceiling of the default task, by length of the sum",
    )
    ax.grid(alpha=0.25)
    ax.legend(fontsize=8, loc="center", bbox_to_anchor=(0.42, 0.47))
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "checkpoint", nargs="?", help="folder of the policy after RL; if not given, the stored results are drawn"
    )
    args = parser.parse_args()
    if args.checkpoint:
        rows = [*measure("before RL", ROOT / "base"), *measure("after RL", args.checkpoint)]
        RESULTS.write_text("[" + ",\n ".join(map(json.dumps, rows)) + "]\n")
    draw(json.loads(RESULTS.read_text()), FIGURE)


if __name__ == "__main__":
    main()
