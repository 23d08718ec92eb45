"""What happens before a rule: matrices P that mix the workers' vectors."""

from __future__ import annotations

import secrets
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from byzantium.aggregation.geometry import Geometry
from byzantium.aggregation.pipeline import Mixing, withstand
from byzantium.aggregation.points import Array
from byzantium.aggregation.stage import Stage
from byzantium.core import Bounds, ByzantiumError, Count, Positive


def _permutation(n: int, generator: torch.Generator | None) -> NDArray[np.int64]:
    if generator is None:
        # Buckets that an attacker can predict can be gamed: nothing seeded by the program.
        generator = torch.Generator().manual_seed(secrets.randbits(63))
    return torch.randperm(n, generator=generator, device=generator.device).cpu().numpy()


def _averages(items: NDArray[np.int64], sizes: NDArray[np.int64], n: int) -> Array:
    """The matrix whose rows average rows: the first `sizes[0]` items, the next `sizes[1]`, ..."""
    m = len(sizes)
    places = np.arange(m).repeat(sizes) * n + items
    return np.bincount(places, minlength=m * n).reshape(m, n) / sizes[:, None]


def _by_distance(geometry: Geometry) -> NDArray[np.int64]:
    """(n, n): for each row all rows, the nearest first, beginning with itself."""
    distances = geometry.squared_distances.copy()
    np.fill_diagonal(distances, -1)
    return distances.argsort(axis=1, kind="stable")


@dataclass(frozen=True, repr=False)
class Bucketing(Mixing):
    r"""Means of random groups of s: Algorithm 1 of the paper.

    .. math:: y_i = \frac{1}{|B_i|} \sum_{k \in B_i} x_k, \quad
        B_i = \{\pi(k) : (i-1) s < k \le \min(n, i s)\}

    for a fresh random permutation :math:`\pi` in each call: ceil(n/s) vectors, s times less spread
    out, of which still at most f are bad. (The paper's Algorithm 1 divides by s; its proof, and
    we, by the real size of a group, which differs for the last one when s does not divide n.)
    A last group of one is no less spread out than the vectors were: `balanced` makes as many
    groups, of sizes that differ by at most one. 25 vectors and s = 12: 12, 12, 1 or 9, 8, 8.

    `s="auto"` takes balanced groups, and the largest s for which the rule behind them stands f bad
    ones among ceil(n/s): the paper's floor(delta_max / delta), where that leaves a majority.

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, 2022.

    >>> updates = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    >>> Bucketing(s=4)(updates)
    tensor([[2.5000]])
    """

    s: Positive | Literal["auto"]
    balanced: bool = False
    f: Count | None = None

    @classmethod
    def wanted(cls, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return ("f",) if arguments.get("s") == "auto" else ()

    def check_parameters(self) -> None:
        if self.s == "auto" and self.f is None:
            raise ByzantiumError(f"{self!r} needs f, the number of vectors that may be bad")

    def settled(self, n: int, behind: Sequence[Stage]) -> Stage:
        if self.s != "auto":
            return self
        if not behind or isinstance(behind[-1], Mixing):
            raise ByzantiumError(f"{self!r} chooses s for the rule behind it, and there is none")
        # The larger s, the fewer groups, and what is too few for a rule stays so.
        s = bisect(range(1, n + 1), False, key=lambda s: not self._withstood(-(-n // s), behind))
        if not s:
            rule = " >> ".join(map(repr, behind))
            raise ByzantiumError(f"{self!r} finds no s with which {rule} stands f bad ones of {n}")
        return replace(self, s=s, balanced=True)

    def _withstood(self, groups: int, behind: Sequence[Stage]) -> bool:
        return withstand(behind, groups, self.f or 0)

    @property
    def size(self) -> int:
        """s, once it is a number."""
        if self.s == "auto":
            raise ByzantiumError(f"{self!r} has no s until it is known what stands behind it")
        return self.s

    def least(self) -> tuple[int, str]:
        return self.size, "s"

    def rows(self, n: int) -> int:
        return -(-n // self.size)

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        n = geometry.n
        return _averages(_permutation(n, generator), self.sizes(n), n)

    def sizes(self, n: int) -> NDArray[np.int64]:
        """Of the groups that n vectors make."""
        m = self.rows(n)
        if self.balanced:
            return n // m + (np.arange(m) < n % m)
        sizes = np.full(m, self.size)
        sizes[-1] = n - (m - 1) * self.size
        return sizes


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

    s: Positive

    def least(self) -> tuple[int, str]:
        return self.s, "s"

    def spoiled(self, f: int) -> int:
        return self.s * f

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        n = geometry.n
        return _averages(_permutation(n * self.s, generator) % n, np.full(n, self.s), n)


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

    f: Count

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        n, near = geometry.n, geometry.n - self.f
        return _averages(_by_distance(geometry)[:, :near].ravel(), np.full(n, near), n)


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

    f: Count

    @property
    def needs_origin(self) -> bool:
        return True

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        n = geometry.n
        return _clipped(geometry, np.sort(geometry.norms)[n - 1 - 2 * self.f * (n - self.f) // n])


@dataclass(frozen=True, repr=False)
class Clipping(Mixing):
    r"""Clips every norm to a radius that is known beforehand.

    .. math:: y_i = x_i \min(1, \mathrm{radius} / \|x_i\|)

    Where what honest workers send has no known size, `AdaptiveClipping` finds a bound.

    >>> Clipping(radius=2)(torch.tensor([[1.0], [3.0], [-30.0]]))
    tensor([[ 1.],
            [ 2.],
            [-2.]])
    """

    radius: Annotated[float, Bounds(above=0, infinite=True)]

    @property
    def needs_origin(self) -> bool:
        return True

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        return _clipped(geometry, self.radius)


def _clipped(geometry: Geometry, bound: float) -> Array:
    """The matrix that shortens each vector to a norm, by mixing in the origin."""
    n, norms = geometry.n, geometry.norms
    scale = np.divide(bound, norms, out=np.ones(n), where=norms > bound)
    matrix = np.zeros((n, geometry.points))
    matrix[:, :n] = np.diag(scale)
    matrix[:, geometry.origin] = 1 - scale
    return matrix


@dataclass(frozen=True, repr=False)
class KrumSelection(Mixing):
    r"""The n - 2f vectors that Krum picks one after the other: the first half of Bulyan.

    Each pick minimises the sum of squared distances to the max(1, n_t - f - 2) nearest among the
    n_t vectors not yet picked, and is taken out.
    """

    f: Count

    def rows(self, n: int) -> int:
        return n - 2 * self.f

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        n = geometry.n
        order = _by_distance(geometry)[:, 1:]
        distances = np.take_along_axis(geometry.squared_distances, order, axis=1)
        left = np.ones(n, dtype=bool)
        picks = []
        for size in range(n, 2 * self.f, -1):
            others = left[order]
            near = others & (others.cumsum(axis=1) <= max(1, size - self.f - 2))
            scores = np.where(near, distances, 0).sum(axis=1)
            picks.append(int(np.where(left, scores, np.inf).argmin()))
            left[picks[-1]] = False
        return np.eye(n)[picks]
