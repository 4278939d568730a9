"""Memory and time of one forward and backward of the log-probs: precision.token_logprobs against all logits at once.

    python benchmarks/logprobs_memory.py              on a GPU if there is one, else on the CPU (minutes: 9 TFLOP)
    python benchmarks/logprobs_memory.py --help       sizes

Each method runs in a process of its own, so that the peak is of that method alone: peak resident set (CPU, Linux) or
peak allocated bytes (GPU), less what was there before the pass (head weight, hidden states) and less the gradient of
the head weight. Both compute log-probs and entropy, multiply the same weight in fp32, and hold no tensor longer than
autograd needs it. Targets: memory at most 1/6, time at most 1.5 times. On a CPU that others use too, compare the CPU
times.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import precision  # noqa: E402  (a script in benchmarks/ does not see the repository root)


def naive(hidden, head_weight, ids, chunk):
    """All (N, V) logits at once, differentiated by autograd; `chunk` is not used."""
    log_pi = torch.log_softmax(hidden.float() @ head_weight.float().T, -1)
    with torch.no_grad():
        entropy = -log_pi.exp().mul_(log_pi).sum(-1)
    return log_pi.gather(-1, ids[:, None]).squeeze(-1), entropy


def chunked(hidden, head_weight, ids, chunk):
    """Sec. 3.2 as the trainer runs it."""
    return precision.token_logprobs(hidden, head_weight, ids, chunk=chunk)


METHODS = {"naive": naive, "chunked": chunked}


def held(device):
    """Bytes in use now."""
    if device == "cuda":
        return torch.cuda.memory_allocated()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak(device):
    """Most bytes that were ever in use in this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def one_pass(function, tokens, args):
    """Seconds, CPU seconds and extra bytes of forward + backward on random states; sums, to compare the two methods."""
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    hidden = torch.empty(tokens, args.hidden, dtype=dtype, device=args.device).normal_().requires_grad_()
    weight = torch.empty(args.vocab, args.hidden, dtype=dtype, device=args.device)
    weight.normal_(std=args.hidden**-0.5).requires_grad_()
    ids = torch.randint(args.vocab, (tokens,), device=args.device)
    before = held(args.device)
    start = time.perf_counter()
    cpu_start = time.process_time()
    logprobs, entropy = function(hidden, weight, ids, args.chunk)
    logprobs.sum().backward()
    if args.device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    cpu_seconds = time.process_time() - cpu_start
    extra = peak(args.device) - before - weight.grad.nbytes
    sums = [x.float().sum().item() for x in (logprobs, entropy, hidden.grad.square(), weight.grad.square())]
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "bytes": extra, "sums": sums}


def child(args):
    """Measure one method and print the numbers as JSON; on a GPU, after a small pass that loads the kernels."""
    if args.device == "cuda":
        one_pass(METHODS[args.method], 64, args)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    print(json.dumps(one_pass(METHODS[args.method], args.tokens, args)))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=1024, help="width of the final hidden state")
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--chunk", type=int, default=256, help="tokens whose logits exist at once")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of states and head weight")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--method", choices=METHODS, help="measure one method in this process (used by the script)")
    return parser.parse_args()


def main():
    args = parse_args()
    if args.method:
        return child(args)
    results = {}
    for method in METHODS:
        command = [sys.executable, __file__, *sys.argv[1:], "--method", method]
        results[method] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    print(
        f"{args.tokens} tokens, hidden {args.hidden}, V {args.vocab}, {args.dtype}, chunk {args.chunk}, "
        f"{args.device}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print("| method | memory above head weight and gradient, MiB | forward + backward, s | CPU time, s |")
    print("|---|---|---|---|")
    for method, result in results.items():
        print(f"| {method} | {result['bytes'] / 2**20:.0f} | {result['seconds']:.2f} | {result['cpu_seconds']:.2f} |")
    one, other = results["naive"], results["chunked"]
    apart = max(abs(a / b - 1) for a, b in zip(one["sums"], other["sums"]))
    print(
        f"chunked / naive: memory 1/{one['bytes'] / other['bytes']:.1f} (target at most 1/6), "
        f"time {other['seconds'] / one['seconds']:.2f} (target at most 1.5), "
        f"CPU time {other['cpu_seconds'] / one['cpu_seconds']:.2f}"
    )
    print(f"sums of log-probs, entropies and squared gradients agree within {apart:.0e} (relative)")


if __name__ == "__main__":
    main()
