"""The three types of rule: by weights, by coordinate, or any function of the matrix."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np
from torch import Tensor

from byzantium._kernels.backend import backend
from byzantium.core import ByzantiumError, type_name
from byzantium.rules.pipeline import Attempt, BaseRule
from byzantium.vectors.geometry import SUMS_TO_ONE, Geometry
from byzantium.vectors.points import Array
from byzantium.vectors.source import Source


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

    @property
    def measures(self) -> bool:
        return True

    @abstractmethod
    def weights(self, geometry: Geometry) -> Array:
        """The weights: (n,), or (points,) with those of the anchors. They sum to one."""

    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        weights = geometry.basis.source.team.decide_on_leader(lambda: self._checked(geometry))
        return geometry.combine(weights), weights

    def _checked(self, geometry: Geometry) -> Array:
        weights = np.asarray(self.weights(geometry), dtype=np.float64)
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
        source = geometry.basis.source
        if source.d != source.dimension:
            raise ByzantiumError(
                f"{self!r} needs whole vectors, but here each machine holds only some columns"
            )
        rows = geometry.rows()
        aggregate = self.aggregate(rows)
        if not isinstance(aggregate, Tensor) or aggregate.shape != (source.d,):
            shape = tuple(getattr(aggregate, "shape", ()))
            raise ByzantiumError(
                f"{self!r} must give one vector of dimension {source.d}, got "
                f"{type_name(aggregate)} of shape {shape}"
            )
        return aggregate.detach().to(rows), None


def central_mean(
    source: Source, count: int, explain: bool, nearest: bool = False, mixing: Array | None = None
) -> Attempt:
    """The mean of the `count` central values of each column, before admission.

    - `mixing`: the matrix that mixes the rows first; None is the identity.
    """
    rows = source.readable
    if len(rows) < source.n:
        return Attempt()
    out = source.empty_aggregate(source.compute_dtype)
    square, share = 0.0, np.zeros(source.n) if explain else None
    for columns, matrix, which in source.pieces(rows):
        peak = backend(matrix).central_mean(
            matrix, which, mixing, count, nearest, out[columns], share
        )
        # No number of the block is larger than its peak, so no row of it is longer than this.
        square += peak * peak * matrix.shape[1]
    weights = None if share is None else _total_share(share, source)
    if source.norms is not None:
        return Attempt(out, weights, float(source.norms.max()))
    return Attempt(out, weights, math.sqrt(source.team.sum_to_all(np.array([square]))[0]))


def _total_share(share: Array, source: Source) -> Array:
    """The share of all averaged values that each row supplied, from the columns that are here."""
    if not source.dimension:  # without coordinates, all rows count the same
        return np.full(len(share), 1 / len(share))
    share = source.team.sum_to_all(share)
    return share / share.sum()


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

    def try_before_admission(self, source: Source, explain: bool) -> Attempt:
        self.check(source.n)
        return central_mean(source, self._count(source.n), explain, self.nearest)

    def try_mixed(self, source: Source, mixing: Array | None) -> Attempt:
        count = self._count(source.n if mixing is None else len(mixing))
        return central_mean(source, count, False, self.nearest, mixing)

    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        points, count, mixing = geometry.basis, self._count(geometry.n), geometry.matrix()
        aggregate = points.source.empty_aggregate(points.dtype)
        share = np.zeros(geometry.n) if explain else None
        for columns, matrix, rows in points.pieces():
            backend(matrix).central_mean(
                matrix, rows, mixing, count, self.nearest, aggregate[columns], share
            )
        if points.unit != 1:
            aggregate.mul_(points.unit)
        if share is None:
            return aggregate, None
        anchors = np.zeros(geometry.points - geometry.n)  # they supply nothing
        return aggregate, np.append(_total_share(share, points.source), anchors)
