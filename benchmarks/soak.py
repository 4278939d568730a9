"""Does scoring leak? 100,000 answers, 5 % of them hostile, limit 0.2 s: memory, processes, file descriptors over time.

    OMP_NUM_THREADS=1 python benchmarks/soak.py                       100,000 answers
    OMP_NUM_THREADS=1 python benchmarks/soak.py --answers 5000        a shorter one
    python benchmarks/soak.py --rates                                 answers, and tests of programs, per second
    python benchmarks/soak.py --verdicts                              share right of tests/data/verdicts.jsonl, by kind
    python benchmarks/soak.py --make-answers                          writes tests/data/answers_500.jsonl again

Answers come in blocks of 1,000 in a fixed random order: 50 hostile (each of HOSTILE in turn), 10 programs, 90
expressions of tests/data/answers_500.jsonl, which need math-verify; the others are exact answers to math and arithmetic
prompts.
Every verdict is checked: an honest answer has one known verdict, a hostile one must not be graded right. At a limit of
0.2 s honest answers may time out on a busy machine; these timeouts are also counted separately.

Columns: answers scored; seconds; answers/s since the last line; then, while nothing is pending, resident MB of this
process, resident MB of this process and all its descendants, the number of these processes, and of their file
descriptors; then timeouts, and timeouts of honest answers, so far.
At the end the medians of the first and of the last tenth of the blocks are compared. Medians, because a single moment
may catch a sandbox at its end, or a worker before it has loaded everything. Target: no growth.
"""

import argparse
import json
import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from verify import sandbox  # noqa: E402  (a script in benchmarks/ does not see the repository root)
from verify.scorer import Scorer  # noqa: E402

FILE = ROOT / "tests" / "data" / "answers_500.jsonl"
BLOCK, HOSTILE_SHARE, PROGRAMS, EXPRESSIONS = 1_000, 0.05, 10, 90
SUM = json.dumps({"inputs": ["1 2\n", "-5 5\n"], "outputs": ["3\n", "0\n"]})
PROGRAM = "```python\nprint(sum(map(int, input().split())))\n```"
HOSTILE = [  # (task, answer): all wrong, however expensive to grade
    ("math", "\\boxed{9^{9^{9^9}}}"),
    ("math", "\\boxed{" + "{" * 500_000 + "18" + "}" * 500_000 + "}"),
    ("math", "\\boxed{" + "\\sqrt{2+" * 900 + "2" + "}" * 901),
    ("math", bytes(range(256)).decode("latin1") * 10),
    ("math", "\\boxed{\\left(\\frac{36}{2\\right)}}"),
    ("math", "9" * 1_000_000),
    ("math", "\\boxed{१८}"),
    ("math", "\\boxed{__import__('os')._exit(18)}"),
    ("math", "\\boxed{" + "(" * 3_000 + "17" + ")" * 3_000 + "}"),
    ("math", "\\boxed{\\int_0^1 " + "x^{" * 30 + "x" + "}" * 30 + " dx}"),
    ("math", "\\boxed{100000!!}"),
    ("arithmetic", "1" * 1_000_000),
    ("code", "```python\nwhile True: pass\n```"),
    ("code", "```python\nimport os\nwhile True:\n  try: os.fork()\n  except OSError: pass\n```"),
    ("code", "```python\nx = [0]\nwhile True: x += x\n```"),
    ("code", "```python\nwhile True: print('x' * 1000)\n```"),
    ("code", "```python\nimport os\nif not os.fork():\n  os.setsid()\n  while True: pass\n```"),
    ("code", "```python\nimport os\nos._exit(0)\n```"),
]


# --- Answers ---------------------------------------------------------------------------------------------------------


def pairs(kind, r):
    """(reference, equal answer, different answer) in LaTeX; kind: 0 to 19; r: a random.Random."""
    a, b, c, k = r.randint(2, 9), r.randint(2, 9), r.randint(11, 30), r.randint(2, 6)
    p = r.randint(1, 40)
    q = r.choice([2, 4, 5, 8, 10, 16, 20, 25])
    value = f"\\frac{{{p}}}{{{q}}}"
    return [
        (value, f"\\frac{{{p * k}}}{{{q * k}}}", f"\\frac{{{p * k + 1}}}{{{q * k}}}"),
        (value, str(p / q), str(round(p / q + 0.01, 4))),
        (f"{a}\\sqrt{{{c}}}", f"\\sqrt{{{a * a * c}}}", f"\\sqrt{{{a * a * c + 1}}}"),
        (f"x^2+{a + b}x+{a * b}", f"(x+{a})(x+{b})", f"(x-{a})(x+{b})"),
        (f"{a + 1}^{{{k}}}", f"{(a + 1) ** k}", f"{a**k}"),
        (
            ["\\sin(\\frac{\\pi}{6})", "\\cos(\\frac{\\pi}{6})"][a % 2],
            ["\\frac{1}{2}", "\\frac{\\sqrt{3}}{2}"][a % 2],
            f"\\frac{{\\sqrt{{{b}}}}}{{{b + 6}}}",
        ),
        (f"\\ln({a})+\\ln({b})", f"\\ln({a * b})", f"\\ln({a + b + a * b})"),
        (f"{a}x+{b}y-{c}", f"{b}y-{c}+{a}x", f"{b}x-{c}+{a + b}y"),
        (f"\\frac{{\\sqrt{{{c}}}}}{{{c}}}", f"\\frac{{1}}{{\\sqrt{{{c}}}}}", f"\\frac{{1}}{{\\sqrt{{{c + 1}}}}}"),
        (f"{a}+{c}i", f"{c}i+{a}", f"{a}i+{c}"),
        (f"\\{{{a}, {c}, {c + k}\\}}", f"\\{{{c + k}, {a}, {c}\\}}", f"\\{{{c + k}, {a}\\}}"),
        (f"[{a}, {a + c})", f"[{a}.0, {a + c})", f"({a}, {a + c}]"),
        (f"({value}, {a})", f"({p / q}, {a})", f"({a}, {p / q + 9})"),
        (f"{c}", f"x = {c}.0", f"x = {c + k}"),
        (f"\\binom{{{c}}}{{2}}", str(c * (c - 1) // 2), str(c * (c - 1) // 2 + k)),
        (f"\\frac{{{a * c + b}}}{{{c}}}", f"{a}\\frac{{{b}}}{{{c}}}", f"{a}\\frac{{{b + 1}}}{{{c}}}"),
        (f"e^{{{a}}}e^{{{b}}}", f"e^{{{a + b}}}", f"e^{{{a * b + 1}}}"),
        (
            f"\\begin{{pmatrix}}{a} & {value}\\\\{b} & {c}\\end{{pmatrix}}",
            f"\\begin{{pmatrix}}{a} & {p / q}\\\\{b} & {c}\\end{{pmatrix}}",
            f"\\begin{{pmatrix}}{a} & {b}\\\\{p / q} & {c + 1}\\end{{pmatrix}}",
        ),
        (f"{c * 1000 + a}", f"{c},{a:03d}", f"{c}.{a:03d}"),
        (f"\\frac{{\\pi}}{{{a}}}", f"\\frac{{{k}\\pi}}{{{a * k}}}", f"\\frac{{{k}\\pi}}{{{a * k + 1}}}"),
    ][kind]


def make_answers():
    """500 rows {answer, reference, correct}: 25 of each kind, 13 of them right; no answer is the same text as its
    reference.
    """
    r = random.Random(0)
    sentences = ("So the answer is $\\boxed{%s}$.", "\\boxed{%s}", "Hence\n\\[\\boxed{%s}.\\]")
    rows = []
    for n in range(500):
        reference, right, wrong = pairs(n % 20, r)
        correct = n // 20 % 2 == 0
        assert reference not in (right, wrong)
        answer = sentences[n % 3] % (right if correct else wrong)
        rows.append({"answer": answer, "reference": reference, "correct": correct})
    return rows


def block(rows, hostile, r):
    """BLOCK shuffled (task, answer, reference, verdict); verdict None: hostile, so anything but right."""
    answers = [(*next(hostile), None) for _ in range(round(BLOCK * HOSTILE_SHARE))]
    answers = [(task, answer, SUM if task == "code" else "18", verdict) for task, answer, verdict in answers]
    answers += [("code", PROGRAM, SUM, True)] * PROGRAMS
    answers += [("math", row["answer"], row["reference"], row["correct"]) for row in r.sample(rows, EXPRESSIONS)]
    while len(answers) < BLOCK:
        number = str(r.randint(-99, 999))
        answers.append(r.choice([("arithmetic", number), ("math", f"\\boxed{{{number}}}")]) + (number, True))
    r.shuffle(answers)
    return answers


# --- Measuring -------------------------------------------------------------------------------------------------------


def below(pid):
    """Ids of process `pid` and of all that descend from it."""
    found = {pid}
    known = list(sandbox.all_processes())
    while more := {child for child, parent, *_ in known if parent in found} - found:
        found |= more
    return found


def usage():
    """(MB resident in this process, MB resident in it and its descendants, their number, their file descriptors)."""
    pages = {}
    files = 0
    for pid in below(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            opened = len(os.listdir(f"/proc/{pid}/fd"))
            pages[pid] = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            files += opened
    megabytes = os.sysconf("SC_PAGE_SIZE") / 2**20
    return pages[os.getpid()] * megabytes, sum(pages.values()) * megabytes, len(pages), files


def cpu_seconds():
    """CPU time so far of this process and all its descendants, those that have ended included."""
    ticks = 0
    for pid in below(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended, and counts in its parent
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def drain(scorer, wanted, waiting):
    """Wait for `wanted` verdicts: [(scorer.Score, the answer that was submitted)]; waiting: as from `submit`."""
    scores = []
    while len(scores) < wanted:
        for score in scorer.finished():
            scores.append((score, waiting.pop(id(score.completion))[1]))
        time.sleep(0.001)
    return scores


def submit(scorer, answers):
    """Submit all answers at once: {id of the completion: (completion, answer)}, kept so that no id is used again."""
    waiting = {}
    for answer in answers:
        completion = SimpleNamespace(text=f"</think>{answer[1]}", truncated=False)
        waiting[id(completion)] = completion, answer
        asked = answer[3].get("prompt", "") if isinstance(answer[-1], dict) else ""
        scorer.submit(completion, SimpleNamespace(task=answer[0], answer=answer[2], text=asked))
    return waiting


def soak(count, limit, workers, seed):
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    scorer = Scorer(timeout=limit, workers=workers)
    r = random.Random(seed)
    hostile = (HOSTILE[n % len(HOSTILE)] for n in range(count))
    start = last = time.monotonic()
    timeouts = late = errors = shown = 0
    lines = []
    print(
        f"{'answers':>8} {'seconds':>8} {'per s':>7} {'MB':>7} {'all MB':>7} {'processes':>9} {'files':>6} "
        f"{'timeouts':>8} {'honest':>6}"
    )
    for done in range(BLOCK, count + 1, BLOCK):
        for score, (task, answer, reference, verdict) in drain(scorer, BLOCK, submit(scorer, block(rows, hostile, r))):
            errors += score.correct is None
            timeouts += score.timed_out
            late += bool(verdict is not None and score.timed_out)
            false = score.correct if verdict is None else score.correct is (not verdict) and not score.timed_out
            assert not false, f"expected {verdict}, got {score.correct}: {task} {answer[:200]!r} for {reference!r}"
        now = time.monotonic()
        lines.append(usage())
        if done == BLOCK or done % max(BLOCK, count // 20) == 0:
            own, everything, processes, files = lines[-1]
            print(
                f"{done:8} {now - start:8.1f} {(done - shown) / (now - last):7.0f} {own:7.1f} {everything:7.1f} "
                f"{processes:9} {files:6} {timeouts:8} {late:6}",
                flush=True,
            )
            last, shown = now, done
    scorer.close()
    names = ("MB here", "MB in all", "processes", "file descriptors")
    tenth = -(-len(lines) // 10)
    growth = [
        f"{median(figures[-tenth:]) - median(figures[:tenth]):+.1f} {name}" for name, figures in zip(names, zip(*lines))
    ]
    print("growth from the first to the last tenth:", ", ".join(growth))
    print(f"no verdict: {errors}; processes after close: {len(below(os.getpid())) - 1}")


def of_tests(count):
    """200 tests in all, by programs of `count` tests each, or a single program of more."""
    numbers = range(count)
    tests = {"inputs": [f"{n} 2\n" for n in numbers], "outputs": [f"{n + 2}\n" for n in numbers]}
    return [("code", PROGRAM, json.dumps(tests), True)] * max(1, 200 // count)


def rates():
    """Print, by kind of answer, how many one worker grades per second and per CPU second (hardly changed by others)."""
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    kinds = {  # name -> (answers, how many tests are in one)
        "exact": ([("math", f"\\boxed{{{n}}}", str(n), True) for n in range(20_000)], 1),
        "expressions": ([("math", row["answer"], row["reference"], row["correct"]) for row in rows], 1),
    }
    kinds |= {f"programs of {count}": (of_tests(count), count) for count in (1, 10, 100, 300)}
    scorer = Scorer(timeout=20.0, workers=1)
    drain(scorer, 2, submit(scorer, [kinds["expressions"][0][0], kinds["programs of 1"][0][0]]))  # starts the worker
    for kind, (answers, tests) in kinds.items():
        start, cpu = time.monotonic(), cpu_seconds()
        scores = drain(scorer, len(answers), submit(scorer, answers))
        seconds, cpu = time.monotonic() - start, cpu_seconds() - cpu
        agree = sum(score.correct is verdict for score, (*_, verdict) in scores)
        print(
            f"{kind:16} {len(answers):6} answers  {len(answers) * tests / seconds:8.1f} tests/s  "
            f"{len(answers) * tests / cpu:8.1f} tests/CPU s  {agree} as made"
        )
    scorer.close()


def verdicts():
    """Grade tests/data/verdicts.jsonl, whose verdicts are known; print how many come out so by kind, and the others."""
    rows = [json.loads(line) for line in FILE.with_name("verdicts.jsonl").read_text().splitlines()]
    scorer = Scorer(timeout=20.0, workers=2)
    answers = [(row.get("task", "math"), row["answer"], row["reference"], row) for row in rows]
    found = [(score.correct, row) for score, (*_, row) in drain(scorer, len(rows), submit(scorer, answers))]
    scorer.close()
    for kind in (*dict.fromkeys(row["kind"] for row in rows), ""):
        those = [(correct, row["correct"]) for correct, row in found if kind in ("", row["kind"])]
        print(
            f"{kind or 'all':12} {len(those):4} answers, {sum(not right for _, right in those):4} wrong ones; "
            f"as they should be {sum(a is b for a, b in those):4}; wrong ones graded right "
            f"{sum(a is True and not b for a, b in those)}"
        )
    for correct, row in found:
        if correct is not row["correct"]:
            print(f"graded {correct}: {row}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--answers", type=int, default=100_000, help="answers to score, in blocks of 1,000")
    parser.add_argument("--limit", type=float, default=0.2, help="seconds of wall clock per answer")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rates", action="store_true", help="measure answers per second instead")
    parser.add_argument("--verdicts", action="store_true", help="grade tests/data/verdicts.jsonl instead")
    parser.add_argument("--make-answers", action="store_true", help="write tests/data/answers_500.jsonl instead")
    args = parser.parse_args()
    if args.make_answers:
        FILE.write_text("".join(json.dumps(row) + "\n" for row in make_answers()))
    elif args.rates:
        rates()
    elif args.verdicts:
        verdicts()
    else:
        soak(args.answers, args.limit, args.workers, args.seed)


if __name__ == "__main__":
    main()
