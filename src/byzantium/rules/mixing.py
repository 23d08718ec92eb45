"""The mixings: matrices P that mix the workers' vectors before a rule."""

from __future__ import annotations

import secrets
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from annotated_types import Gt
from numpy.typing import NDArray

from byzantium.core import ByzantiumError, Count, OrInfinity, Positive
from byzantium.rules.admission import check_sizes
from byzantium.rules.pipeline import Aggregator, Mixing
from byzantium.rules.stage import Stage
from byzantium.vectors.distances import EQUAL, Array, chunks
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.weights import Weights, smallest_masses


def tolerates(stages: Sequence[Stage], n: int, f: int, vouched: Weights | None = None) -> bool:
    """Whether stages that end in a rule are defined for n vectors, and tolerate f bad ones.

    - `vouched`: the weights of the vectors that the operator vouches for, if there are any.
    """
    try:
        *mixings, rule = check_sizes(stages, n, vouched)
    except ByzantiumError:
        return False
    for mixing in mixings:
        assert isinstance(mixing, Mixing)
        n, f = mixing.rows(n), mixing.bad_outputs(f)
        vouched = None if vouched is None else mixing.heaviest(vouched)
    assert isinstance(rule, Aggregator)
    held, whole = (f, n) if vouched is None else (vouched.of_largest(f), 1)
    return f <= (f if rule.bad is None else rule.bad) and (not f or held < rule.delta_max * whole)


def tolerated(rule: Aggregator, n: int) -> int:
    """How many bad ones of n vectors a rule or pipeline tolerates; it must be defined for n.

    >>> from byzantium import GeometricMedian, Krum, Mean
    >>> [tolerated(rule, 10) for rule in (Mean(), Krum(f=2), GeometricMedian())]
    [0, 2, 4]
    """
    stages = check_sizes(rule.stages, n)
    bounds = [stage.bad for stage in stages if stage.bad is not None]
    most = min([n // 2, *bounds])
    # The more vectors are bad, the less a rule tolerates them: from the first f that fails all do.
    return bisect(range(most + 1), False, key=lambda f: not tolerates(stages, n, f)) - 1


class Permutations(torch.Generator):
    """A generator with permutations of its own, which random mixings use.

    Derive from it and define `permutation`. A simulation that saves checkpoints also needs
    `get_state` and `set_state`.

    >>> class Reversed(Permutations):
    ...     def permutation(self, n):
    ...         return np.arange(n)[::-1]
    >>> Bucketing(s=2)(torch.tensor([[1.0], [2.0], [3.0]]), Reversed())
    tensor([[2.5000],
            [1.0000]])
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # torch would take an argument of `__init__` for a device.
        return super().__new__(cls)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """The numbers from 0 to n - 1, in the order of the next permutation."""
        raise NotImplementedError


def random_permutation(n: int, generator: torch.Generator | None) -> NDArray[np.int64]:
    """A random order of n vectors; None as the generator means the system's entropy."""
    if generator is None:
        # An attacker could exploit buckets that it can predict: use the system's entropy.
        generator = torch.Generator().manual_seed(secrets.randbits(63))
    if isinstance(generator, Permutations):
        return generator.permutation(n)
    return torch.randperm(n, generator=generator, device=generator.device).cpu().numpy()


def _averages(indices: NDArray[np.int64], sizes: NDArray[np.int64], n: int) -> Array:
    """The matrix that averages the rows with the first `sizes[0]` indices, the next ones, ..."""
    m = len(sizes)
    places = np.arange(m).repeat(sizes) * n + indices
    return np.bincount(places, minlength=m * n).reshape(m, n) / sizes[:, None]


def _nearest(geometry: Geometry, near: int) -> NDArray[np.bool_]:
    """(n, n): for each row, which are the first `near` rows of `_by_distance`."""
    n = geometry.n
    nearest = np.empty((n, n), dtype=bool)
    for rows in chunks(n):
        distances = geometry.squared_distances_of(rows)
        own = np.arange(len(distances))
        distances[own, rows.start + own] = -1
        last = np.partition(distances, near - 1, axis=1)[:, near - 1, None]
        nearer, equal = distances < last, distances == last
        missing = near - nearer.sum(axis=1, keepdims=True)
        nearest[rows] = nearer | equal & (equal.cumsum(axis=1) <= missing)
    return nearest


def _by_distance(geometry: Geometry) -> NDArray[np.int64]:
    """(n, n): for each row the indices of all rows by distance, beginning with itself."""
    distances = geometry.squared_distances.copy()
    np.fill_diagonal(distances, -1)
    return distances.argsort(axis=1, kind="stable")


@dataclass(frozen=True, repr=False)
class Bucketing(Mixing):
    r"""Averages random groups ("buckets") of s vectors: Algorithm 1 of the bucketing paper.

    .. math:: y_i = \frac{1}{|B_i|} \sum_{k \in B_i} x_k, \quad
        B_i = \{\pi(k) : (i-1) s < k \le \min(n, i s)\}

    with a new random permutation :math:`\pi` in each call. :math:`\lceil n/s \rceil` vectors come
    out; their variance is s times smaller, and still at most f of them are Byzantine. (Algorithm 1
    of the paper divides by s; its proof, like this class, divides by the real size of a group,
    which is smaller for the last one where s does not divide n.)

    - `s`: how many vectors a bucket has, at least 1 and at most n. "auto" takes balanced buckets
      with the largest s for which the rule that follows tolerates f Byzantine vectors among
      :math:`\lceil n/s \rceil`: the paper's :math:`\lfloor \delta_{\max} / \delta \rfloor`, where
      that leaves an honest majority.
    - `balanced`: whether to make buckets whose sizes differ by at most one. A last bucket of one
      vector would not be averaged at all: 25 vectors with s = 12 make buckets of 12, 12 and 1, or
      balanced of 9, 8 and 8.
    - `f`: how many vectors may be Byzantine, at least 0; only `s="auto"` needs it.

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, 2022.

    >>> updates = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    >>> Bucketing(s=4)(updates)
    tensor([[2.5000]])
    """

    s: Positive | Literal["auto"]
    balanced: bool = False
    f: Count | None = None
    takes_weights: ClassVar[bool] = True
    oblivious: ClassVar[bool] = True
    keeps_workers: ClassVar[bool] = False

    @classmethod
    def also_required(cls, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return ("f",) if arguments.get("s") == "auto" else ()

    def check_parameters(self) -> None:
        if self.s == "auto" and self.f is None:
            raise ByzantiumError(f"{self!r} needs f, the number of vectors that may be Byzantine")

    def resolved_for(self, weights: Weights, following: Sequence[Stage]) -> Stage:
        return self.resolved(len(weights.shares), following, weights)

    def resolved(self, n: int, following: Sequence[Stage], weights: Weights | None = None) -> Stage:
        if self.s != "auto":
            return self
        if not following or isinstance(following[-1], Mixing):
            raise ByzantiumError(f"{self!r} chooses s for the rule that follows, but none does")
        f = self.f or 0

        def fails(s: int) -> bool:
            heaviest = None
            if weights is not None:
                heaviest = replace(self, s=s, balanced=True).heaviest(weights)
            return not tolerates(following, -(-n // s), f, heaviest)

        # The larger s, the fewer groups: from the first s that fails on, all fail.
        s = bisect(range(1, n + 1), False, key=fails)
        if not s:
            rule = " >> ".join(map(repr, following))
            raise ByzantiumError(
                f"{self!r} finds no s with which {rule} tolerates f = {self.f} Byzantine vectors "
                f"of {n}"
            )
        return replace(self, s=s, balanced=True)

    @property
    def size(self) -> int:
        """The number s; raises while it is still "auto"."""
        if self.s == "auto":
            raise ByzantiumError(f"{self!r} has no s until a pipeline with a rule is called")
        return self.s

    def min_vectors(self) -> tuple[int, str]:
        return self.size, "s"

    def rows(self, n: int) -> int:
        return -(-n // self.size)

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        n = geometry.n
        groups = _averages(random_permutation(n, generator), self.sizes(n), n)
        if geometry.vouched is None:
            return groups
        shares = (groups > 0) * geometry.shares
        return shares / shares.sum(axis=1, keepdims=True)

    def mixed_weights(self, matrix: Array, weights: Weights) -> Weights:
        return weights.grouped(matrix[:, : len(weights.shares)] > 0)

    def heaviest(self, weights: Weights) -> Weights:
        """The largest weights together in the largest groups."""
        sizes = np.sort(self.sizes(len(weights.shares)))[::-1]
        ordered, starts = np.sort(weights.shares)[::-1], sizes.cumsum() - sizes
        return Weights.of(np.add.reduceat(ordered, starts))

    def sizes(self, n: int) -> NDArray[np.int64]:
        """How many vectors are in each bucket of n."""
        m = self.rows(n)
        if self.balanced:
            return n // m + (np.arange(m) < n % m)
        sizes = np.full(m, self.size)
        sizes[-1] = n - (m - 1) * self.size
        return sizes


@dataclass(frozen=True, repr=False)
class Resampling(Mixing):
    r"""Averages n random groups of s vectors, using each vector s times: an older bucketing.

    .. math:: y_i = \frac{1}{s} \sum_{k \in B_i} x_k

    Each vector is repeated s times, and the s n copies are dealt at random into n buckets
    :math:`B_i` of s. n vectors come out; up to s f of them contain a Byzantine one, so the rule
    that follows must be built for s f Byzantine vectors. Bucketing replaced it.

    - `s`: how many vectors a bucket has, at least 1 and at most n.

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, 2022,
    appendix (bucketing against resampling).

    >>> Resampling(s=2)(torch.tensor([[0.0], [6.0]])).mean()
    tensor(3.)
    """

    s: Positive
    oblivious: ClassVar[bool] = True
    keeps_workers: ClassVar[bool] = False

    def min_vectors(self) -> tuple[int, str]:
        return self.s, "s"

    def bad_outputs(self, f: int) -> int:
        return self.s * f

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        n = geometry.n
        return _averages(random_permutation(n * self.s, generator) % n, np.full(n, self.s), n)


@dataclass(frozen=True, repr=False)
class NearestNeighborMixing(Mixing):
    r"""Replaces each vector by the mean of its n - f nearest vectors, itself included (NNM).

    .. math:: y_i = \frac{1}{n-f} \sum_{j \in N_i} x_j

    where :math:`N_i` are the n - f vectors nearest to :math:`x_i`.

    - `f`: how many vectors may be Byzantine, at least 0; there must be at least 2f + 1 vectors.

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by Mixing, AISTATS 2023.

    >>> updates = torch.tensor([[0.0], [1.0], [100.0]])
    >>> NearestNeighborMixing(f=1)(updates)
    tensor([[ 0.5000],
            [ 0.5000],
            [50.5000]])
    """

    f: Count
    takes_weights: ClassVar[bool] = True
    measures = True

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        if geometry.vouched is not None:
            distances = geometry.squared_distances.copy()
            np.fill_diagonal(distances, -1)
            near_share = 1 - geometry.bad_share(self.f)
            masses = smallest_masses(distances, geometry.shares, near_share)
            return masses / masses.sum(axis=1, keepdims=True)
        near = geometry.n - self.f
        return _nearest(geometry, near) / near


@dataclass(frozen=True, repr=False)
class AdaptiveClipping(Mixing):
    r"""Clips the largest norms to the next largest one; their number follows from f and n (ARC).

    .. math:: y_i = x_i \min(1, C / \|x_i\|)

    where C is the norm that comes next after the :math:`\lfloor 2 f (n-f) / n \rfloor` largest.

    - `f`: how many vectors may be Byzantine, at least 0; there must be at least 2f + 1 vectors.

    Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan: Adaptive Gradient Clipping for Robust
    Federated Learning, ICLR 2025.

    >>> AdaptiveClipping(f=1)(torch.tensor([[1.0], [2.0], [-30.0]]))
    tensor([[ 1.],
            [ 2.],
            [-2.]])
    """

    f: Count
    needs_origin = True

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        n = geometry.n
        return _clipping(geometry, np.sort(geometry.norms)[n - 1 - 2 * self.f * (n - self.f) // n])


@dataclass(frozen=True, repr=False)
class RankClipping(Mixing):
    r"""Clips every norm to one of the smallest: the one of rank f + 2.

    .. math:: y_i = x_i \min(1, C / \|x_i\|)

    where C is the (f + 2)-th smallest norm: at least two honest vectors are no longer, so f
    attackers who send tiny vectors do not choose it. It clips most honest vectors, too, which makes
    them more alike; where workers' data differ little, that costs accuracy.

    - `f`: how many vectors may be bad, at least 0; there must be at least 2f + 1 vectors, and two.

    The mixing is ours.

    >>> RankClipping(f=1)(torch.tensor([[0.0], [1.0], [2.0], [-30.0]]))
    tensor([[ 0.],
            [ 1.],
            [ 2.],
            [-2.]])
    """

    f: Count
    needs_origin = True

    def min_vectors(self) -> tuple[int, str]:
        return (2 * self.f + 1, "2f + 1") if self.f else (2, "2")

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        return _clipping(geometry, np.sort(geometry.norms)[self.f + 1])


@dataclass(frozen=True, repr=False)
class Clipping(Mixing):
    r"""Clips every norm to a fixed radius.

    .. math:: y_i = x_i \min(1, \mathrm{radius} / \|x_i\|)

    If the norms of honest vectors are not known, `AdaptiveClipping` finds a radius.

    - `radius`: the largest norm of the results, above 0; it may be infinite.

    >>> Clipping(radius=2)(torch.tensor([[1.0], [3.0], [-30.0]]))
    tensor([[ 1.],
            [ 2.],
            [-2.]])
    """

    radius: Annotated[float, Gt(0), OrInfinity]
    needs_origin = True

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        return _clipping(geometry, self.radius)


def _clipping(geometry: Geometry, bound: float) -> Array:
    """The matrix that clips each vector to a norm, by mixing it with the origin.

    x s = s x + (1 - s) 0, with s = min(1, bound / |x|), has rows that sum to one.
    """
    n, norms = geometry.n, geometry.norms
    scale = np.divide(bound, norms, out=np.ones(n), where=norms > bound)
    matrix = np.zeros((n, geometry.points))
    matrix[:, :n] = np.diag(scale)
    matrix[:, geometry.origin] = 1 - scale
    return matrix


@dataclass(frozen=True, repr=False)
class KrumSelection(Mixing):
    r"""The n - 2f vectors that Krum picks one after the other: the first half of Bulyan.

    Each pick has the smallest sum of squared distances to its max(1, n_t - f - 2) nearest among the
    n_t vectors not yet picked, and is taken out.
    """

    f: Count
    keeps_workers: ClassVar[bool] = False
    measures = True

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
            scores = np.where(left, np.where(near, distances, 0).sum(axis=1), np.inf)
            # Of equal scores the first counts, however their sums are rounded.
            picks.append(int((scores <= (1 + EQUAL) * scores.min()).argmax()))
            left[picks[-1]] = False
        return np.eye(n)[picks]
