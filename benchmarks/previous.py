"""An experiment: agnostic clipping by steps from the previous aggregate, a shared reference.

    python benchmarks/previous.py

One seed of the setting of clipping.toml, with the two attacks for which b matters.
"""

from __future__ import annotations

import math
from statistics import fmean

import torch
from torch import Tensor

import byzantium as bz
from byzantium import learning
from byzantium.data import by_label
from byzantium.runs import LAST, Run

F = 5


class FromPrevious(bz.MatrixRule):
    """Steps of centered clipping from the last result, with the radius of `AgnosticClipping`."""

    def __init__(self, b: float, steps: int) -> None:
        self.b, self.steps = b, steps
        self.previous: Tensor | None = None

    def __repr__(self) -> str:
        return f"FromPrevious(b={self.b:g}, steps={self.steps})"

    def aggregate(self, updates: Tensor) -> Tensor:
        n, h = len(updates), len(updates) - F
        squares = torch.cdist(updates.double(), updates.double()) ** 2
        spread = math.sqrt(squares.sort(dim=1).values[:, :h].mean(dim=1).min())
        radius = self.b * h * spread / (2 * math.sqrt(F * (n - 2 * F)))
        v = torch.zeros_like(updates[0]) if self.previous is None else self.previous
        for _ in range(self.steps):
            away = updates - v
            v = v + (away * (radius / away.norm(dim=1, keepdim=True)).clip(max=1)).mean(dim=0)
        self.previous = v.clone()
        return v


def accuracy(rule: bz.Aggregator, attack: str, momentum: float) -> float:
    """The mean of the last five evaluations, as for runs."""
    run = Run(attack=attack, momentum=momentum, f=F, rounds=350, record=())
    data = run.dataset()
    attacker, partition = bz.parse_attack(attack), by_label()
    history = learning.simulate(
        run.settings(), data, run.build_model(data), rule, attacker, partition, progress=False
    )
    return fmean(evaluation["accuracy"] for evaluation in history.evaluations[-LAST:])


if __name__ == "__main__":
    for b, steps in ((1.25, 1), (1.25, 3), (2.0, 1)):
        for attack in ("BitFlip()", "ALittleIsEnough(z=100)"):
            values = [accuracy(FromPrevious(b, steps), attack, beta) for beta in (0.0, 0.9)]
            print(FromPrevious(b, steps), attack, " / ".join(f"{value:.1f}" for value in values))
