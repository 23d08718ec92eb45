"""Processor time of one round of Adaptive, beside that of the gradients of the same round.

    python benchmarks/search_time.py

The paper's network on images of MNIST's size (random ones: time does not depend on them), 25
workers of which 5 attack, batches of 32, one thread. Every number is the median over rounds.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any, get_args

import torch

import byzantium as bz
from byzantium.attacks.attack import Aim
from byzantium.data import Dataset
from byzantium.learning import Settings, Simulation, cnn

ROUNDS = 4
RULES = (
    bz.GeometricMedian(),
    bz.Bucketing(s=2) >> bz.GeometricMedian(),
    bz.RootMatching(f=5),
    bz.TrimmedMean(f=5),
)


def timed(function: Any, seconds: list[float]) -> Any:
    """The function, which also notes the processor time of each call."""

    def call(*arguments: Any, **options: Any) -> Any:
        begin = time.process_time()
        result = function(*arguments, **options)
        seconds.append(time.process_time() - begin)
        return result

    return call


def measure(data: Dataset, rule: bz.Aggregator, aim: Aim) -> tuple[float, float]:
    """Seconds of the honest gradients, and of the search, in a round; the first is left out."""
    settings = Settings(
        n=25, attackers=5, rounds=ROUNDS, record=(), root=10 if rule.needs_root else 0
    )
    training = Simulation(settings, data, cnn(), rule, bz.Adaptive(aim))
    gradients: list[float] = []
    search: list[float] = []
    training._compute = timed(training._compute, gradients)  # type: ignore[method-assign]
    object.__setattr__(training.attack, "vectors", timed(training.attack.vectors, search))
    list(training)
    return median(gradients[1:]), median(search[1:])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = torch.rand(2000, 1, 28, 28), torch.arange(2000) % 10
    data = Dataset("random", x, y, x[:100], y[:100], classes=10)
    for rule in RULES:
        for aim in get_args(Aim):
            gradients, search = measure(data, rule, aim)
            print(
                f"{rule!r}, {aim}: gradients {gradients:.2f} s, search {search:.2f} s", flush=True
            )


main()
