"""Rules that average some of the vectors, chosen in each round anew."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from byzantium.core import ByzantiumError, Count, PositiveMeasure
from byzantium.rules import Weighting
from byzantium.vectors import Geometry
from byzantium.vectors.distances import EQUAL, Array


@dataclass(frozen=True, repr=False)
class DivideAndConquer(Weighting):
    r"""The mean without those vectors that lie farthest out in the direction of largest variance.

    .. math:: \frac{1}{|S|} \sum_{i \in S} x_i, \quad S = \text{the } n - \lceil c f \rceil
        \text{ vectors with the smallest } \langle v, x_i - \mu \rangle^2

    where :math:`\mu` is the mean of all vectors and v the top right singular vector of the centered
    vectors (DnC). The authors look at a random sample of the columns, several times, and average
    the vectors that are always among the best, because the singular vector of the whole matrix is
    expensive. From inner products all columns cost no more than some, so here it is all of them,
    once.

    - `f`: how many vectors may be bad, at least 0; there must be at least 2f + 1 vectors.
    - `c`: how many vectors are removed for each bad one, above 0; at least one vector stays.

    Nothing is promised: the direction of largest variance may be that of a class that few workers
    hold, and an attacker at a distance S hides another at a distance of about the root of S.

    Shejwalkar, Houmansadr: Manipulating the Byzantine: Optimizing Model Poisoning Attacks and
    Defenses for Federated Learning, NDSS 2021.

    >>> DivideAndConquer(f=1)(torch.tensor([[0.9], [1.0], [1.1], [50.0]])).round(decimals=2)
    tensor([1.])
    """

    f: Count
    c: PositiveMeasure = 1.0
    delta_max: ClassVar[float] = 0  # one vector far away hides another: see the tests

    def check(self, n: int) -> None:
        super().check(n)
        if self.removed >= n:
            raise ByzantiumError(f"{self!r} removes {self.removed} vectors, got only {n}")

    @property
    def removed(self) -> int:
        """How many vectors are removed."""
        return math.ceil(self.c * self.f)

    def weights(self, geometry: Geometry) -> Array:
        n = geometry.n
        gram = geometry.gram[:n, :n]
        means = gram.mean(axis=1)
        centered = gram - means[:, None] - means + means.mean()
        # With K = A A^T of the centered vectors A and its top eigenvector u, <v, x_i - mu> is
        # proportional to u_i. Rounding makes no difference between equal vectors.
        scores = abs(np.linalg.eigh((centered + centered.T) / 2)[1][:, -1])
        scores = np.where(scores <= EQUAL * scores.max(), 0, scores)
        return geometry.uniform_over(scores.argsort(kind="stable")[: n - self.removed])
