"""The kinds of rule: by weights, by coordinate, or any function of the matrix."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np
from torch import Tensor

from byzantium.core import ByzantiumError, type_name
from byzantium.rules.pipeline import Rule
from byzantium.vectors.geometry import SUMS_TO_ONE, Geometry
from byzantium.vectors.points import Array, backend
from byzantium.vectors.source import Source


class Weighting(Rule):
    r"""A rule whose result is a weighted sum of the vectors, :math:`\sum_i w_i x_i`.

    The weights follow from distances and inner products alone, so that n x n numbers are enough to
    find them. To write one, derive from this class and define `weights`.

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
        weights = geometry.basis.source.decided(lambda: self._checked(geometry))
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


class MatrixRule(Rule):
    """A rule that is any function of the matrix of vectors; how much each worker counts is unknown.

    To write one, derive from this class and define `aggregate`. It works after mixings, too: then
    the mixed vectors are built for it, which other pipelines avoid.

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
    source: Source, kept: int, explain: bool, nearest: bool = False
) -> tuple[Tensor | None, Array | None, float]:
    """What `one_pass` returns for the mean of the `kept` central values of each column."""
    rows = source.readable
    if len(rows) < source.n:
        return None, None, math.inf
    out = source.room(source.working)
    square, share = 0.0, np.zeros(source.n) if explain else None
    for columns, matrix, which in source.pieces(rows):
        given = matrix, which, None, kept, nearest, out[columns], share
        peak = backend(matrix).central_mean(*given)
        square += peak * peak * matrix.shape[1]
    weights = None if share is None else _of_all(share, source)
    if source.norms is not None:
        return out, weights, float(source.norms.max())
    return out, weights, math.sqrt(source.total(np.array([square]))[0])


def _of_all(share: Array, source: Source) -> Array:
    """The share of all averaged values that each row supplied, from the columns held here."""
    if not source.dimension:  # there is no coordinate: all rows count the same
        return np.full(len(share), 1 / len(share))
    share = source.total(share)
    return share / share.sum()


class CoordinateWise(Rule):
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

    def _kept(self, n: int) -> int:
        kept = self.averaged(n)
        if not 1 <= kept <= n or ((n - kept) % 2 and not self.nearest):
            even = "" if self.nearest else f", and {n} minus an even number"
            raise ByzantiumError(
                f"{self!r} needs averaged({n}) to be from 1 to {n}{even}, got {kept}"
            )
        return kept

    def one_pass(self, source: Source, explain: bool) -> tuple[Tensor | None, Array | None, float]:
        self.check(source.n)
        return central_mean(source, self._kept(source.n), explain, self.nearest)

    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        points, kept, mixing = geometry.basis, self._kept(geometry.n), geometry.matrix()
        aggregate = points.source.room(points.dtype)
        share = np.zeros(geometry.n) if explain else None
        for columns, matrix, rows in points.pieces():
            backend(matrix).central_mean(
                matrix, rows, mixing, kept, self.nearest, aggregate[columns], share
            )
        if points.unit != 1:
            aggregate.mul_(points.unit)
        if share is None:
            return aggregate, None
        anchors = np.zeros(geometry.points - geometry.n)  # they supply nothing
        return aggregate, np.append(_of_all(share, points.source), anchors)
