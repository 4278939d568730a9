"""Do the 90 % bands of fit.py hold the truth in 85-95 % of runs, and how long does a fit take?

A run: A uniform in 0.4-0.9, B in 1-3, R_0 in 0.05-0.35, noise in 0.005-0.02 (of a pass rate, normal, independent), 40
points evenly spaced in compute or in its logarithm, C_mid log-uniform inside their range. "evaluation at 3x" is a new
evaluation at 3x the last compute. R_0 "exact": given to the fit; "measured": a noisy point at C = 0.

Run:  python benchmarks/fit_coverage.py [--runs 200]      (200 runs: one minute on one core)
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import fit  # noqa: E402  (the modules lie one folder up, whatever the working folder is)

QUANTITIES = ("A", "B", "C_mid", "curve at the last C", "curve at 3x", "evaluation at 3x")


def synthetic(seed, points=40, log_spaced=False):
    """A run with known truth: (C (n,), R (n,), truth as keywords of `fit.sigmoid`, noise, generator)."""
    rng = np.random.default_rng(seed)
    C = np.geomspace(25, 1000, points) if log_spaced else np.linspace(1000 / points, 1000, points)
    truth = {"A": rng.uniform(0.4, 0.9), "B": rng.uniform(1, 3), "R_0": rng.uniform(0.05, 0.35)}
    truth["C_mid"] = np.exp(rng.uniform(np.log(C[0]), np.log(C[-1])))
    noise = rng.uniform(0.005, 0.02)
    return C, fit.sigmoid(C, **truth) + noise * rng.normal(size=points), truth, noise, rng


def covered(seed, exact=True, log_spaced=False):
    """For one run: whether each of QUANTITIES lies in its 90 % band, and the width of the band of A."""
    C, R, truth, noise, rng = synthetic(seed, log_spaced=log_spaced)
    if exact:
        law = fit.fit(C, R, r0=truth["R_0"])
    else:
        law = fit.fit(np.append(0, C), np.append(truth["R_0"] + noise * rng.normal(), R))
    held = [low <= truth[name] <= high for name, (low, high) in law.bands.items()]
    last, far = C[-1], 3 * C[-1]
    further = fit.sigmoid(far, **truth) + noise * rng.normal()
    asked = [(last, fit.sigmoid(last, **truth), np.inf), (far, fit.sigmoid(far, **truth), np.inf), (far, further, 1)]
    for at, value, mean_of in asked:
        low, high = law.band(at, mean_of)
        held.append(low <= value <= high)
    return held, law.bands["A"][1] - law.bands["A"][0]


def main():
    """Print the table of coverage and the time of a fit with bands to 75 points."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="seeds 0 to RUNS - 1")
    runs = parser.parse_args().runs
    print(f"share of {runs} runs in which the 90 % band holds the truth")
    print(f"{'R_0':10}{'points':8}" + "".join(f"{name:>21}" for name in QUANTITIES) + f"{'median width of A':>21}")
    for exact in (True, False):
        for log_spaced in (False, True):
            held, widths = zip(*(covered(seed, exact, log_spaced) for seed in range(runs)))
            row = "".join(f"{share:21.3f}" for share in np.mean(held, axis=0)) + f"{np.median(widths):21.4f}"
            print(f"{'exact' if exact else 'measured':10}{'log' if log_spaced else 'linear':8}{row}")
    times = []
    for seed in range(5):
        C, R, *_ = synthetic(seed, points=75)
        start = time.perf_counter()
        fit.fit(C, R)
        times.append(time.perf_counter() - start)
    print(f"fit with bands, 75 points: {min(times):.2f} to {max(times):.2f} s")


if __name__ == "__main__":
    main()
