"""What happens before a rule: matrices P that mix the workers' vectors."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

from byzantium.aggregation.geometry import Geometry
from byzantium.aggregation.pipeline import Mixing


def _permutation(n: int, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        # Buckets that an attacker can predict can be gamed: nothing seeded by the program.
        generator = torch.Generator().manual_seed(secrets.randbits(63))
    return torch.randperm(n, generator=generator, device=generator.device).cpu()


def _averages(groups: list[Tensor], n: int) -> Tensor:
    """The matrix whose rows average groups of rows, repetitions counted."""
    matrix = torch.zeros(len(groups), n, dtype=torch.float64)
    for row, group in zip(matrix, groups, strict=True):
        row.index_add_(0, group, torch.full((len(group),), 1 / len(group), dtype=torch.float64))
    return matrix


@dataclass(frozen=True, repr=False)
class Bucketing(Mixing):
    r"""Means of random groups of s: Algorithm 1 of the paper.

    .. math:: y_i = \frac{1}{|B_i|} \sum_{k \in B_i} x_k, \quad
        B_i = \{\pi(k) : (i-1) s < k \le \min(n, i s)\}

    for a fresh random permutation :math:`\pi` in each call: ceil(n/s) vectors, s times less spread
    out, of which still at most f are bad. (The paper's Algorithm 1 divides by s; its proof, and
    we, by the real size of a group, which differs for the last one when s does not divide n.)

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, 2022.

    >>> updates = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    >>> Bucketing(s=4)(updates)
    tensor([[2.5000]])
    """

    s: int

    def __post_init__(self) -> None:
        self._count("s", least=1)

    def least(self) -> tuple[int, str]:
        return self.s, "s"

    def rows(self, n: int) -> int:
        return -(-n // self.s)

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Tensor:
        return _averages(list(_permutation(geometry.n, generator).split(self.s)), geometry.n)


@dataclass(frozen=True, repr=False)
class Resampling(Mixing):
    r"""Means of s out of s copies of every vector: the paper's earlier variant of bucketing.

    Each vector is repeated s times, and the s n copies are dealt at random into n buckets of s.
    n vectors come out; up to s f of them contain a bad one, so the rule behind it must be built
    for s f.

    Karimireddy, He, Jaggi 2022, appendix (bucketing against resampling).

    >>> Resampling(s=2)(torch.tensor([[0.0], [6.0]])).mean()
    tensor(3.)
    """

    s: int

    def __post_init__(self) -> None:
        self._count("s", least=1)

    def least(self) -> tuple[int, str]:
        return self.s, "s"

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Tensor:
        n = geometry.n
        return _averages(list((_permutation(n * self.s, generator) % n).split(self.s)), n)


@dataclass(frozen=True, repr=False)
class NearestNeighborMixing(Mixing):
    r"""Each vector becomes the mean of its n - f nearest, itself included.

    .. math:: y_i = \frac{1}{n-f} \sum_{j \in N_i} x_j

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by Mixing, AISTATS 2023.

    >>> updates = torch.tensor([[0.0], [1.0], [100.0]])
    >>> NearestNeighborMixing(f=1)(updates)
    tensor([[ 0.5000],
            [ 0.5000],
            [50.5000]])
    """

    f: int

    def __post_init__(self) -> None:
        self._count("f", least=0)

    def least(self) -> tuple[int, str]:
        return 2 * self.f + 1, "2f + 1"

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Tensor:
        distances = geometry.squared_distances.clone().fill_diagonal_(-1)  # itself first
        nearest = distances.sort(dim=1, stable=True).indices[:, : geometry.n - self.f]
        return _averages(list(nearest), geometry.n)


@dataclass(frozen=True, repr=False)
class AdaptiveClipping(Mixing):
    r"""Clips the floor(2f(n-f)/n) largest norms to the next largest (ARC).

    .. math:: y_i = x_i \min(1, C / \|x_i\|), \quad
        C \text{ the norm of rank } \lfloor 2 f (n-f) / n \rfloor + 1 \text{ from above}

    Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan: Adaptive Gradient Clipping for Robust
    Federated Learning, ICLR 2025.

    >>> AdaptiveClipping(f=1)(torch.tensor([[1.0], [2.0], [-30.0]]))
    tensor([[ 1.],
            [ 2.],
            [-2.]])
    """

    f: int

    def __post_init__(self) -> None:
        self._count("f", least=0)

    def least(self) -> tuple[int, str]:
        return 2 * self.f + 1, "2f + 1"

    @property
    def needs_origin(self) -> bool:
        return True

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Tensor:
        n = geometry.n
        norms = geometry.norms
        bound = norms.sort(descending=True).values[2 * self.f * (n - self.f) // n]
        scale = torch.where(norms > bound, bound / norms, 1.0)
        matrix = torch.zeros(n, geometry.points, dtype=torch.float64)
        matrix[:, :n] = scale.diag()
        matrix[:, geometry.origin] = 1 - scale
        return matrix


@dataclass(frozen=True, repr=False)
class KrumSelection(Mixing):
    r"""The n - 2f vectors that Krum picks one after the other: the first half of Bulyan.

    Each pick minimises the sum of squared distances to the max(1, n_t - f - 2) nearest among the
    n_t vectors not yet picked, and is taken out.
    """

    f: int

    def rows(self, n: int) -> int:
        return n - 2 * self.f

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Tensor:
        n = geometry.n
        distances, order = geometry.squared_distances.clone().fill_diagonal_(-1).sort(
            dim=1, stable=True
        )
        distances, order = distances[:, 1:], order[:, 1:]
        left = torch.ones(n, dtype=torch.bool)
        picks = []
        for size in range(n, 2 * self.f, -1):
            others = left[order]
            near = others & (others.cumsum(dim=1) <= max(1, size - self.f - 2))
            scores = torch.where(near, distances, 0.0).sum(dim=1)
            pick = int(torch.where(left, scores, torch.inf).argmin())
            left[pick] = False
            picks.append(pick)
        return torch.eye(n, dtype=torch.float64)[picks]
