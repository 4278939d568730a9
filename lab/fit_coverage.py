"""Do the 90 % bands of forecast.py hold the truth in 85-97 % of runs, how well is A found, how long does a fit take?

Each run is drawn at random: A uniform in 0.4-0.9, B in 1-3, R_0 in 0.05-0.35, noise in 0.005-0.02 (standard deviation
of a pass rate; normal, independent; results are clipped to [0, 1]), 40 points evenly spaced in compute or in its
logarithm, C_mid log-uniform inside their range. "evaluation at 3x" is a new evaluation at 3x the last compute. R_0 is
"exact" if it is given to the fit, "measured" if it is a noisy point at C = 0.
For how well A is found: 40 points from 0.2 to 5 C_mid, noise 0.003, A in 0.2-0.99, R_0 exact, several values of B.

Run:  python -m lab.fit_coverage [--runs 200]      (200 runs: one minute on one core)
"""

import argparse
import time

import numpy as np

import fit
import forecast

QUANTITIES = ("A", "B", "C_mid", "curve at the last C", "curve at 3x", "evaluation at 3x")


def synthetic(seed, points=40, log_spaced=False):
    """A run with known truth: (C (n,), R (n,), truth as keywords of `fit.sigmoid`, noise, generator)."""
    rng = np.random.default_rng(seed)
    C = np.geomspace(25, 1000, points) if log_spaced else np.linspace(1000 / points, 1000, points)
    truth = {"A": rng.uniform(0.4, 0.9), "B": rng.uniform(1, 3), "R_0": rng.uniform(0.05, 0.35)}
    truth["C_mid"] = np.exp(rng.uniform(np.log(C[0]), np.log(C[-1])))
    noise = rng.uniform(0.005, 0.02)
    return C, np.clip(fit.sigmoid(C, **truth) + noise * rng.normal(size=points), 0, 1), truth, noise, rng


def covered(seed, exact=True, log_spaced=False):
    """For one run: whether each of QUANTITIES lies in its 90 % band, and the width of the band of A."""
    C, R, truth, noise, rng = synthetic(seed, log_spaced=log_spaced)
    if exact:
        law = forecast.forecast(C, R, r0=truth["R_0"])
    else:
        law = forecast.forecast(np.append(0, C), np.append(max(0, truth["R_0"] + noise * rng.normal()), R))
    held = [low <= truth[name] <= high for name, (low, high) in law.bands.items()]
    last, far = C[-1], 3 * C[-1]
    further = fit.sigmoid(far, **truth) + noise * rng.normal()
    asked = [(last, fit.sigmoid(last, **truth), np.inf), (far, fit.sigmoid(far, **truth), np.inf), (far, further, 1)]
    for at, value, mean_of in asked:
        low, high = law.band(at, mean_of)
        held.append(low <= value <= high)
    return held, law.bands["A"][1] - law.bands["A"][0]


def wide_truth(seed, noise, B=None):
    """Points from 0.2 to 5 C_mid, parameters from wide ranges (B in 0.4-4 if not given): (C (40,), R (40,), truth)."""
    rng = np.random.default_rng(seed)
    truth = {"A": rng.uniform(0.2, 0.99), "B": B or rng.uniform(0.4, 4), "C_mid": 10 ** rng.uniform(-1, 4)}
    truth["R_0"] = truth["A"] * rng.uniform(0.1, 0.5)
    C = np.linspace(0.2, 5, 40) * truth["C_mid"]
    return C, np.clip(fit.sigmoid(C, **truth) + noise * rng.normal(size=40), 0, 1), truth


def error_of_A(seed, B):
    """|A - truth| at noise 0.003, and whether the band of A holds the truth."""
    C, R, truth = wide_truth(seed, 0.003, B)
    law = forecast.forecast(C, R, r0=truth["R_0"])
    return abs(law.A - truth["A"]), law.bands["A"][0] <= truth["A"] <= law.bands["A"][1]


def main():
    """Print the table of coverage, the errors of A, and the time of a fit with bands to 75 points."""
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
    print(f"points from 0.2 to 5 C_mid\n{'B':>5}{'median |error of A|':>21}{'largest':>9}{'in the band':>13}")
    for B in (0.4, 0.7, 1, 2, 4):
        errors, held = zip(*(error_of_A(seed, B) for seed in range(runs // 4)))
        print(f"{B:5}{np.median(errors):21.3f}{max(errors):9.3f}{np.mean(held):13.2f}")
    times = []
    for seed in range(5):
        C, R, *_ = synthetic(seed, points=75)
        start = time.perf_counter()
        forecast.forecast(C, R)
        times.append(time.perf_counter() - start)
    print(f"fit with bands, 75 points: {min(times):.2f} to {max(times):.2f} s")


if __name__ == "__main__":
    main()
