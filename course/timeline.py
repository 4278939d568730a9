"""A run's timeline from two costs: who waits, and how stale the tokens are. Nothing is generated, nothing learnt.

    python -m course.timeline --k 8 --generate 30 --train 20      a line per step, then shares of idle time

Generators make one batch after the other, `generate` seconds each; trainers take `train` seconds for a step; weights
travel at once. When a batch may begin, what a step waits for and which versions the generators get, say pipeline.py's
own rules, here with one request per batch (Sec. 3.1). plumbing/virtual.py simulates whole runs.

Test: pytest tests/test_exercises.py -k timeline
"""

import argparse

import pipeline


def timeline(*, off_policy="pipeline", k, generate, train, steps=96):
    """A dict per step: when its batch was generated and trained on, (begin, end) seconds; mean staleness.

    A token's staleness is the number of optimizer steps between the weights that sampled it and those that it trains.
    """
    rows = []
    updated = [0.0]  # [v]: when version v was there
    generated = []  # [batch]: its (begin, end)
    free = 0.0  # when the generators are
    for step in range(steps):
        admitted = pipeline.admission_limit(step, off_policy=off_policy, k=k, steps=steps, per_step=1)
        while len(generated) < admitted:
            begin = max(free, updated[step])
            free = begin + generate
            generated.append((begin, free))
        awaited = pipeline.awaited_requests(step, admitted, off_policy=off_policy, per_step=1)
        trained = max(updated[step], generated[awaited[-1]][1])
        begin, end = generated[step]
        sent = [v for v in range(len(updated)) if pipeline.broadcasts(v, off_policy=off_policy, k=k)]
        times = [min(max(updated[v], begin), end) for v in sent] + [end]
        staleness = sum((step - v) * (b - a) for v, a, b in zip(sent, times, times[1:])) / generate
        updated.append(trained + train)
        spans = {"generated": (begin, end), "trained": (trained, updated[-1])}
        rows.append({"step": step, **spans, "staleness": staleness})
    return rows


def idle(rows, what):
    """The share of the time of steps 24 to 71 in which `what` ("generated", "trained") does nothing."""
    busy = sum(row[what][1] - row[what][0] for row in rows[24:72])
    return 1 - busy / (rows[72][what][0] - rows[24][what][0])


def mean_staleness(rows):
    """The mean staleness of the tokens of steps 24 to 71, in optimizer steps."""
    return sum(row["staleness"] for row in rows[24:72]) / 48


def main():
    parser = argparse.ArgumentParser(prog="python -m course.timeline", description=__doc__.split("\n")[0])
    for flag, kind in (("--k", int), ("--generate", float), ("--train", float)):
        parser.add_argument(flag, type=kind, required=True)
    args = parser.parse_args()
    rows = timeline(k=args.k, generate=args.generate, train=args.train)
    for row in rows[:12]:
        (begin, end), (start, stop) = row["generated"], row["trained"]
        print(
            f"step {row['step']:3}  generated {begin:6g} to {end:6g} s  trained {start:6g} to {stop:6g} s  "
            f"mean staleness {row['staleness']:.2f}"
        )
    print(f"idle: generators {idle(rows, 'generated'):.3f}, trainers {idle(rows, 'trained'):.3f}")
    print(f"mean staleness of the tokens: {mean_staleness(rows):.3f} optimizer steps")


if __name__ == "__main__":
    main()
