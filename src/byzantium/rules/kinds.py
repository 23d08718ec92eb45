"""The three types of rule: by weights, by coordinate, or any function of the matrix."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor

from byzantium._kernels.backend import backend
from byzantium.core import ByzantiumError, type_name
from byzantium.rules.outcome import Attempt
from byzantium.rules.pipeline import BaseRule
from byzantium.rules.stage import Stage
from byzantium.vectors.distances import Array
from byzantium.vectors.geometry import SUMS_TO_ONE, Geometry
from byzantium.vectors.source import Rows, Source
from byzantium.vectors.weights import Weights

# A smaller share of the weight is not averaged: the median is its limit.
SMALLEST_KEPT = 1e-9


class Weighting(BaseRule):
    r"""A rule whose result is a weighted sum of the vectors, :math:`\sum_i w_i x_i`.

    The weights follow from n x n numbers alone: distances and inner products. To write one, derive
    from this class and define `weights`.

    >>> class Nearest(Weighting):
    ...     "The vector nearest to the mean."
    ...     def weights(self, geometry):
    ...         mean = geometry.uniform_over(np.arange(geometry.n))
    ...         return geometry.at(int(geometry.distances_to(mean).argmin()))
    >>> Nearest()(torch.tensor([[0.0], [1.0], [5.0]]))
    tensor([1.])
    """

    weights_known = "always"
    measures = True

    @abstractmethod
    def weights(self, geometry: Geometry) -> Array:
        """The weights: (n,), or (points,) with those of the anchors. They sum to one."""

    def weights_of(self, geometries: Sequence[Geometry]) -> list[Array]:
        """The weights of each of several geometries, for attackers who try many vectors.

        They are those of `weights` to the bit; rules that can compute them together do so.
        """
        return [self.weights(geometry) for geometry in geometries]

    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        weights = geometry.basis.source.team.decide_on_leader(lambda: self.point_weights(geometry))
        return geometry.combine(weights), weights

    def point_weights(self, geometry: Geometry) -> Array:
        """The weights of all points, (points,), checked."""
        return self.checked(self.weights(geometry), geometry)

    def checked(self, weights: Array, geometry: Geometry) -> Array:
        """The weights of all points, from what `weights` returned."""
        weights = np.asarray(weights, dtype=np.float64)
        if geometry.anchors and weights.shape == (geometry.n,):  # nothing lies on an anchor
            weights = np.append(weights, np.zeros(geometry.anchors))
        if weights.shape != (geometry.points,):
            raise ByzantiumError(
                f"{self!r} must give a weight for each of {geometry.n} vectors, got the shape "
                f"{weights.shape}"
            )
        if not abs(weights.sum() - 1) <= SUMS_TO_ONE * max(1, abs(weights).sum()):
            raise ByzantiumError(
                f"the weights of {self!r} must sum to one, but sum to {weights.sum():.6g}"
            )
        return weights


class MatrixRule(BaseRule):
    """A rule that is any function of the matrix of vectors; the weights of workers are unknown.

    To write one, derive from this class and define `aggregate`. After mixings, the mixed vectors
    are computed for it, which other pipelines avoid.

    >>> class Largest(MatrixRule):
    ...     def aggregate(self, updates: Tensor) -> Tensor:
    ...         return updates.max(dim=0).values
    >>> Largest()(torch.tensor([[1.0, 4.0], [2.0, 3.0]]))
    tensor([2., 4.])
    """

    weights_known = "never"

    @abstractmethod
    def aggregate(self, updates: Tensor) -> Tensor:
        """The result, (d,), for the matrix (n, d) of float32 or float64, which may be changed."""

    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        rows = whole_rows(self, geometry)
        aggregate, d = self.aggregate(rows), rows.shape[1]
        if not isinstance(aggregate, Tensor) or aggregate.shape != (d,):
            shape = tuple(getattr(aggregate, "shape", ()))
            raise ByzantiumError(
                f"{self!r} must give one vector of dimension {d}, got {type_name(aggregate)} of "
                f"shape {shape}"
            )
        return aggregate.detach().to(rows), None


def whole_rows(rule: Stage, geometry: Geometry) -> Tensor:
    """The vectors themselves, (n, d); raises an error where only some columns are here."""
    source = geometry.basis.source
    source.check_coordinates(rule)
    if source.d != source.dimension:
        raise ByzantiumError(
            f"{rule!r} needs whole vectors, but here each machine holds only some columns"
        )
    return geometry.rows()


def central_mean(
    source: Source, count: int, explain: bool, nearest: bool = False, mixing: Array | None = None
) -> Attempt:
    """The mean of the `count` central values of each column, before admission.

    - `mixing`: the matrix that mixes the rows first; None is the identity.
    """

    def mean(matrix: Tensor, which: Rows, out: Tensor, share: Array | None) -> float:
        return backend(matrix).central_mean(matrix, which, mixing, count, nearest, out, share)

    return _before_admission(source, mean, explain)


def central_weighted_mean(
    source: Source, vouched: Weights, kept: float, explain: bool, nearest: bool = False
) -> Attempt:
    """The mean of the central share `kept` of the weight in each column, before admission."""
    weights = vouched.shares

    def mean(matrix: Tensor, which: Rows, out: Tensor, share: Array | None) -> float:
        passes = backend(matrix)
        return passes.weighted_mean(matrix, which, None, weights, kept, nearest, out, share)

    return _before_admission(source, mean, explain)


def _before_admission(
    source: Source, mean: Callable[[Tensor, Rows, Tensor, Array | None], float], explain: bool
) -> Attempt:
    """A pass that aggregates all rows while it finds out how large their numbers are."""
    rows = source.readable
    if len(rows) < source.n or not source.has_coordinates:
        return Attempt()
    out = source.empty_aggregate(source.compute_dtype)
    square, share = 0.0, np.zeros(source.n) if explain else None
    for columns, matrix, which in source.pieces(rows):
        peak = mean(matrix, which, out[columns], share)
        # No number of the block is larger than its peak, so no row of it is longer than this.
        square += peak * peak * matrix.shape[1]
    # One sum: what is summed is read after the sum before, as `Team` says.
    sums = source.team.sum_to_all(np.append([] if share is None else share, square))
    weights = None if share is None else total_share(sums[:-1], source)
    bound = math.sqrt(sums[-1]) if source.norms is None else float(source.norms.max())
    return Attempt(out, weights, bound)


def total_share(share: Array, source: Source) -> Array:
    """The share of all averaged values that each row supplied, from the sums over all columns."""
    total = share.sum()
    if not source.dimension or not total:  # without coordinates, all rows count the same
        return np.full(len(share), 1 / len(share))
    return share / total


class CoordinateWise(BaseRule):
    """A rule that averages, in each coordinate separately, the central ones of the n values.

    To write one, derive from this class and define `averaged`.

    - `nearest`: which values are central: if False, the middle ones in order of size; if True,
      those nearest to the median.

    >>> class Middle(CoordinateWise):
    ...     "The mean of each coordinate without its smallest and its largest value."
    ...     def averaged(self, n):
    ...         return n - 2
    >>> Middle()(torch.tensor([[0.0], [1.0], [3.0], [99.0]]))
    tensor([2.])
    """

    weights_known = "asked"
    nearest: ClassVar[bool] = False

    @abstractmethod
    def averaged(self, n: int) -> int:
        """How many of n values are averaged: 1 to n; unless `nearest`, n minus an even number."""

    def _count(self, n: int) -> int:
        count = self.averaged(n)
        if not 1 <= count <= n or ((n - count) % 2 and not self.nearest):
            even = "" if self.nearest else f", and {n} minus an even number"
            raise ByzantiumError(
                f"{self!r} needs averaged({n}) to be from 1 to {n}{even}, got {count}"
            )
        return count

    def averaged_share(self, bad: float) -> float:
        """With weights: which share of the weight is averaged; 0 means the median.

        For rules whose `takes_weights` is True.

        - `bad`: the share of the weight that the f largest have.
        """
        raise NotImplementedError

    def _kept(self, bad: float) -> float:
        kept = self.averaged_share(bad)
        return kept if kept > SMALLEST_KEPT else 0.0

    def try_before_admission(self, source: Source, explain: bool) -> Attempt:
        self.check(source.n)
        return central_mean(source, self._count(source.n), explain, self.nearest)

    def try_with_weights(self, source: Source, vouched: Weights, explain: bool) -> Attempt:
        self.check(source.n)
        kept = self._kept(vouched.of_largest(self.bad or 0))
        return central_weighted_mean(source, vouched, kept, explain, self.nearest)

    def try_mixed(self, source: Source, mixing: Array | None) -> Attempt:
        count = self._count(source.n if mixing is None else len(mixing))
        return central_mean(source, count, False, self.nearest, mixing)

    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        geometry.basis.source.check_coordinates(self)
        points, mixing, vouched = geometry.basis, geometry.matrix(), geometry.vouched
        count = self._count(geometry.n) if vouched is None else 0
        kept = 0.0 if vouched is None else self._kept(geometry.bad_share(self.bad or 0))
        aggregate = points.source.empty_aggregate(points.dtype)
        share = np.zeros(geometry.n) if explain else None
        for columns, matrix, rows in points.pieces():
            passes, out = backend(matrix), aggregate[columns]
            if vouched is None:
                passes.central_mean(matrix, rows, mixing, count, self.nearest, out, share)
            else:
                weights = vouched.shares
                passes.weighted_mean(matrix, rows, mixing, weights, kept, self.nearest, out, share)
        if points.unit != 1:
            aggregate.mul_(points.unit)
        if share is None:
            return aggregate, None
        anchors = np.zeros(geometry.points - geometry.n)  # they supply nothing
        share = points.source.team.sum_to_all(share)
        return aggregate, np.append(total_share(share, points.source), anchors)
