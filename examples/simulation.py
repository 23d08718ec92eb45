"""A whole federation in one call: 25 workers, 5 of them attackers that copy an honest one.

The honest workers hold handwritten digits sorted by label. Krum selects one worker in each round,
so it never learns most digits; behind buckets of two it learns more, and the geometric median
learns them all.
"""

import torch

import byzantium as bz
from byzantium.data import by_label, load
from byzantium.learning import Settings, mlp, simulate

data = load("digits")
settings = Settings(n=25, attackers=5, rounds=200, evaluate_every=50, dtype="float64")

print(f"{'test accuracy (%) after round':36}" + "".join(f"{t:>6}" for t in (50, 100, 150, 200)))
for last in (bz.Krum(f=5), bz.GeometricMedian()):
    for rule in (last, bz.Bucketing(s=2) >> last):
        torch.manual_seed(0)  # the same first model for all
        history = simulate(settings, data, mlp((1, 8, 8)), rule, bz.Mimic(warmup=1), by_label())
        accuracies = [f"{at['accuracy']:6.0f}" for at in history.evaluations]
        print(f"{rule!r:36}" + "".join(accuracies))
