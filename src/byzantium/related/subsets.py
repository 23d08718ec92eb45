"""Rules that average some of the vectors, chosen in each round anew."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

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


@dataclass(frozen=True, repr=False)
class LargestCluster(Weighting):
    r"""The mean of the largest group of vectors that point in similar directions.

    .. math:: (C_1, C_2) = \operatorname*{argmin}_{C_1 \cup C_2 = C}
        \max_{i \in C_1, j \in C_2} \cos(x_i, x_j)

    All vectors are one group C at first. While the largest cosine across the best division of C is
    at most `similarity`, C becomes the larger part; two equal parts are not divided. The best
    division cuts the weakest edge of the maximum spanning tree of the cosines, so it is exact.

    - `similarity`: the largest cosine of vectors that are called different, from -1 to 1.

    Nothing is promised, because lengths do not count: a vector that points the same way as the
    others may be a million times as long. On data of different classes, honest vectors are
    different, too.

    Sattler, Müller, Wiegand, Samek: On the Byzantine Robustness of Clustered Federated Learning,
    ICASSP 2020.

    >>> LargestCluster()(torch.tensor([[1.0, 0.1], [1.0, -0.1], [-9.0, 0.0]]))
    tensor([1., 0.])
    """

    similarity: Annotated[float, Ge(-1), Le(1)] = 0.0
    delta_max: ClassVar[float] = 0

    @property
    def needs_origin(self) -> bool:
        return True

    def weights(self, geometry: Geometry) -> Array:
        n, products = geometry.n, geometry.gram_about(geometry.origin)
        norms = np.sqrt(products.diagonal())[:n]
        lengths = norms[:, None] * norms
        cosines = np.divide(
            products[:n, :n], lengths, out=np.zeros_like(lengths), where=lengths > 0
        )
        return geometry.uniform_over(largest_cluster(cosines, self.similarity))


def largest_cluster(similarities: Array, bound: float) -> NDArray[np.int64]:
    """The rows of the group that is left when no part of it is different from the rest.

    A part of a maximum spanning tree without its weakest edge is again such a tree, so one tree is
    enough for all divisions. Of equal edges the one between the first rows is the weakest.
    """
    n = len(similarities)
    parent, best = np.zeros(n, dtype=np.int64), similarities[0].copy()
    edges, outside = list[tuple[float, int, int]](), np.arange(n) > 0
    for _ in range(n - 1):  # Prim's algorithm
        new = int(np.where(outside, best, -np.inf).argmax())
        edges.append((float(best[new]), int(parent[new]), new))
        outside[new] = False
        closer = outside & (similarities[new] > best)
        best[closer], parent[closer] = similarities[new][closer], new
    group = set(range(n))
    while edges:
        weakest = min(edges)
        if weakest[0] > bound:
            break
        edges.remove(weakest)
        part = _connected({weakest[1]}, edges)
        if 2 * len(part) == len(group):
            break
        group = part if 2 * len(part) > len(group) else group - part
        edges = [edge for edge in edges if edge[1] in group]
    return np.array(sorted(group))


def _connected(part: set[int], edges: list[tuple[float, int, int]]) -> set[int]:
    """All vertices that edges connect with some of them."""
    while True:
        wider = part.union(*({one, other} for _, one, other in edges if {one, other} & part))
        if wider == part:
            return part
        part = wider
