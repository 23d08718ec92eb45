"""A rule and an attack of your own, each a class: they are checked, then used in a training.

The rule drops the f vectors farthest from the most central one, and averages the others. The
attackers send the honest mean backwards, ten times as long: the mean fails, the rule learns.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

import byzantium as bz
from byzantium.data import iid, load
from byzantium.learning import Settings, mlp, simulate
from byzantium.testing import check_attack, check_rule


@dataclass(frozen=True)
class DropFarthest(bz.Weighting):
    f: int

    def weights(self, geometry: bz.Geometry) -> NDArray[np.float64]:
        distances = np.sqrt(geometry.squared_distances)
        central = distances.sum(axis=1).argmin()
        return geometry.uniform_over(distances[central].argsort()[: geometry.n - self.f])


@dataclass(frozen=True)
class Backwards(bz.Attack):
    def vectors(self, scene: bz.Scene) -> torch.Tensor:
        return -10 * scene.mean


check_rule(DropFarthest(f=3))
check_attack(Backwards())
settings = Settings(n=15, attackers=3, rounds=200, learning_rate=0.1, dtype="float64")
for rule in (bz.Mean(), DropFarthest(f=3)):
    torch.manual_seed(0)
    history = simulate(settings, load("digits"), mlp((1, 8, 8)), rule, Backwards(), iid())
    print(f"{rule!r}: {history.accuracy:.0f} %")
