"""Vectors that are read in blocks of columns, and the passes over them.

Inner products are taken about a *reference*, one of the rows, so that a large common part costs no
digits. *Anchors* are further points after the n rows: origin, center and root gradient. Rows so
small that squares would underflow are read in another unit; see `scale`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from byzantium._kernels.backend import backend
from byzantium._kernels.torch_passes import mixed_blocks
from byzantium.vectors.distances import (
    REFERENCE_TRUSTED,
    Array,
    blurred,
    distinct,
    largest_rounding,
    reach,
    rounding,
    squared_distances,
)
from byzantium.vectors.scale import SMALL, SMALL_SQUARE, Scale
from byzantium.vectors.source import Matrix, Rows, Source

# Each better reference gains eight digits; float64 has sixteen.
MOST_REFERENCES = 3


class Points(ABC):
    """n vectors of dimension d and the anchors after them, read in blocks of columns.

    - `anchors`: vectors (d,) by name: "origin", "center" and "root", in this order; that of the
      origin is None.
    - `norms`: the norms of the rows; None if they are not known.
    - `unit`: a power of two, the length that counts as 1 in `pieces` and `gram`; 1 until inner
      products are measured. See `scale`.
    - `clear`: whether half of the rows clearly differ; known when inner products are measured.
    """

    n: int
    source: Source
    unit: float = 1.0
    clear: bool = True
    dtype: torch.dtype  # of computations and of combined vectors
    anchors: Mapping[str, Tensor | None]
    norms: Array | None
    _speculative: Array | None = None
    _gram: Array | None = None

    @property
    def d(self) -> int:
        """The dimension of the vectors here."""
        return self.source.d

    @property
    def device(self) -> torch.device:
        """The device of the vectors."""
        return self.source.device

    @abstractmethod
    def read(self, relative: bool) -> Iterator[tuple[slice, Tensor, Rows, Tensor | None]]:
        """All columns in blocks: which columns, a matrix with them, which of its rows to use.

        The numbers are in units of `unit`.

        - `relative`: whether a vector may be subtracted from all rows; its columns, not in units,
          come last.
        """

    def pieces(self) -> Iterator[tuple[slice, Tensor, Rows]]:
        """The same, with nothing subtracted."""
        for columns, matrix, rows, _ in self.read(relative=False):
            yield columns, matrix, rows

    @property
    def separable(self) -> bool:
        """Whether some of the rows can be measured by themselves, without inner products of all."""
        return False

    def subset(self, rows: Rows) -> Points:
        """Some rows and all anchors, where they are `separable`."""
        raise NotImplementedError

    def source_weights(self, weights: Array) -> Array:
        """The weights (..., points) of the rows of the source, from those of the points."""
        return weights

    @property
    @abstractmethod
    def first_reference(self) -> int:
        """The index of a row that is likely to be near most of the others."""

    def combine(self, weights: Array) -> Tensor:
        """The weighted sum of rows and anchors, (d,), or in the form of the source's own."""
        if (by_source := self.combined_by_source(weights)) is not None:
            return by_source
        total = self.source.empty_aggregate(self.dtype)
        for columns, matrix, rows in self.pieces():
            anchors = self._anchor_parts(self.anchors, matrix, columns)
            backend(matrix).combine(matrix, rows, anchors, weights, total[columns])
        return total if self.unit == 1 else total.mul_(self.unit)

    @abstractmethod
    def combined_by_source(self, weights: Array) -> Tensor | None:
        """The weighted sum, if the source computes it; see `Source.combined`."""

    @property
    def gram(self) -> Array:
        r"""Inner products about a reference row r, :math:`\langle p_i - r, p_j - r \rangle`.

        Computed in float64, in units of the square of `unit`. Distances between rows that are close
        to each other matter most, and a reference far from them costs digits. The first reference
        may be an attacker; where that costs digits, a row that has half of the others around it
        replaces it, and f workers cannot choose that one. Inner products that were measured
        speculatively (`norm_bound`) count if they cost no digits.
        """
        if self._gram is None:
            self._gram = self._measure()
        return self._gram

    def _measure(self) -> Array:
        gram, self.clear = self._measure_about_good_reference()
        if not self.clear and self._rescale(gram):
            gram, self.clear = self._measure_about_good_reference()
        return gram

    def _rescale(self, gram: Array) -> bool:
        """Choose unit and reference anew if these inner products require it; whether they did."""
        return False

    def _measure_about_good_reference(self) -> tuple[Array, bool]:
        """Inner products about a good reference; whether it is clear that half of the rows differ.

        They may differ by so little that the squares underflow, or that the difference is lost in
        the distance to a reference far from all of them.
        """
        if self._speculative is not None:
            gram = self.source.team.broadcast(self._speculative)
            better, clear = self._better_reference(gram, speculative=True)
            if better is None:
                return gram, clear
        reference: int | None = self.first_reference
        for _ in range(MOST_REFERENCES):
            assert reference is not None
            gram = self.source.team.sum_to_all(self.gram_about(reference, self.anchors))
            reference, clear = self._better_reference(gram)
            if reference is None:
                break
        return gram, clear

    def _better_reference(self, gram: Array, speculative: bool = False) -> tuple[int | None, bool]:
        """A reference that would save digits; None where the present one is good enough.

        And whether it is clear that half of the rows differ.

        - `speculative`: whether the present one may be anywhere; seen from far enough, all other
          rows are equal.
        """
        n, distances, sizes = self.n, squared_distances(gram), np.sqrt(gram.diagonal())
        away = reach(distances, n, self.anchors)
        best = int(away.argmin())
        smallest = float(away[best])
        if largest_rounding(sizes) <= REFERENCE_TRUSTED * smallest:
            return None, smallest >= SMALL_SQUARE  # not even the largest error matters
        errors = rounding(sizes)
        gains = 16 * rounding(np.sqrt(distances[best])) < errors
        lost = gains & (errors > REFERENCE_TRUSTED * np.maximum(distances, smallest))
        if lost.any() and not speculative:
            # Rows that are equal to the bit have equal products, and no digits to lose.
            which = distinct(gram)[1]
            lost &= which[:, None] != which
        clear = smallest >= SMALL_SQUARE and not blurred(sizes[best], smallest)
        return (best if lost.any() else None), clear

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """The rows, in small blocks of columns that may be overwritten."""
        raise NotImplementedError

    def _sizes(self) -> Array:
        """Distances of rows, anchors and origin from the coordinate-wise median, in columns here.

        They are sums of magnitudes, not of squares: none underflows.
        """
        anchors, rows, middle = {**self.anchors, "": None}, np.arange(self.n), 2 - self.n % 2
        total = np.zeros(self.n + len(anchors))
        for columns, block in self._blocks():
            median = torch.empty_like(block[0])
            backend(block).central_mean(block, rows, None, middle, False, median)
            anchor_parts = self._anchor_parts(anchors, block, columns)
            away = [median if anchor is None else anchor - median for anchor in anchor_parts]
            sums = [block.sub_(median).abs_().sum(dim=1), *(one.abs().sum()[None] for one in away)]
            total += torch.cat(sums).cpu().numpy()
        return total

    def gram_about(self, reference: int, anchors: Mapping[str, Tensor | None]) -> Array:
        """Inner products of the rows and anchors about a row, over the columns that are here."""
        total: Array | None = None
        for columns, matrix, rows, subtracted in self.read(relative=True):
            anchor_parts = self._anchor_parts(anchors, matrix, columns, subtracted)
            part = backend(matrix).gram(matrix, rows, anchor_parts, reference)
            total = part if total is None else np.add(total, part, out=total)
        return np.zeros((self.n + len(anchors),) * 2) if total is None else total

    def _anchor_parts(
        self,
        anchors: Mapping[str, Tensor | None],
        matrix: Tensor,
        columns: slice,
        subtracted: Tensor | None = None,
    ) -> list[Tensor | None]:
        """Some columns of anchors, moved and scaled as the same columns of the rows."""
        parts = [None if one is None else one.to(matrix)[columns] for one in anchors.values()]
        if subtracted is not None:
            parts = [-subtracted if one is None else one - subtracted for one in parts]
        if self.unit != 1:
            parts = [None if one is None else one / self.unit for one in parts]
        return parts


class SourcePoints(Points):
    """Rows of a source as points.

    - `source`: the vectors.
    - `rows`: the indices of the rows that take part, in order; by default all.
    - `norms`: their norms, if they are known.
    - `anchors`: further points, by name: "origin" (None), "center" and "root" (vectors).
    - `honest`: returns how many of the rows are honest at least; by default, the smallest majority.
      It is called only where rows must be rescaled.
    - `gram`: inner products of rows and anchors about one of the rows, if they are known.

    >>> from byzantium.vectors import Matrix
    >>> points = SourcePoints(Matrix(torch.tensor([[1.0, 0.0], [0.0, 2.0]])))
    >>> points.combine(np.array([0.5, 0.5]))
    tensor([0.5000, 1.0000])
    """

    def __init__(
        self,
        source: Source,
        rows: Rows | None = None,
        norms: Array | None = None,
        anchors: Mapping[str, Tensor | None] = MappingProxyType({}),
        honest: Callable[[], int] | None = None,
        gram: Array | None = None,
    ) -> None:
        self.source, self._gram = source, gram
        self.rows = np.arange(source.n) if rows is None else rows
        self.norms = norms
        self.anchors = anchors
        self.n, self.dtype = len(self.rows), source.compute_dtype
        self._honest = honest
        self._central: int | None = None
        self._scale: Scale | None = None

    @property
    def honest(self) -> int:
        """How many of the rows are honest at least."""
        return self.n // 2 + 1 if self._honest is None else min(self._honest(), self.n)

    @property
    def first_reference(self) -> int:
        """A row of median norm is not huge, and seldom far from the honest rows."""
        if self._central is not None:
            return self._central
        norms = row_norms(self.source, self.rows) if self.norms is None else self.norms
        return int(norms.argsort(kind="stable")[(self.n - 1) // 2])

    def norm_bound(self) -> float:
        """An upper bound on the norm of every row, from inner products that are needed anyway.

        They are taken about row 0, speculatively. If that turns out to be a bad reference, they are
        taken again; mostly it is not, and one reading is saved. With the origin o among the points,
        |p_i - o| <= |p_i - r| + |r - o|.
        """
        anchors = {**self.anchors, "origin": None}  # last, unless it is an anchor anyway
        gram = self.source.team.sum_to_leader(self.gram_about(0, anchors))
        n, points = self.n, self.n + len(self.anchors)
        self._speculative = gram[:points, :points]
        sizes: Array = np.sqrt(gram.diagonal())
        return float(sizes[:n].max() + sizes[n + list(anchors).index("origin")])

    def read(self, relative: bool) -> Iterator[tuple[slice, Tensor, Rows, Tensor | None]]:
        if self._scale is None:
            for columns, matrix, rows in self.source.pieces(self.rows):
                yield columns, matrix, rows, None
            return
        scale, rows, larger = self._scale, np.arange(self.n), 2.0**self._scale.exponent
        factors = torch.from_numpy(scale.factors * larger).to(self.device)[:, None]
        # A shortened difference would be lost in a large common part.
        moved = rows if relative else np.flatnonzero(scale.factors < 1)
        which = torch.from_numpy(moved).to(self.device)
        for columns, block in self._blocks():
            reference = block[scale.reference].clone()
            block[which] -= reference
            block *= factors
            if not relative:
                block[which] += reference * larger
            yield columns, block, rows, reference if relative else None

    def pieces(self) -> Iterator[tuple[slice, Tensor, Rows]]:
        return self.source.pieces(self.rows) if self._scale is None else super().pieces()

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for outer, matrix, rows in self.source.pieces(self.rows):
            for columns, block in mixed_blocks(matrix, rows, None):
                yield slice(outer.start + columns.start, outer.start + columns.stop), block

    def _rescale(self, gram: Array) -> bool:
        """By the coordinate-wise median: a row near it, and a radius around it; see `scale`."""
        n = self.n
        away = reach(squared_distances(gram), n, self.anchors)
        best = int(away.argmin())
        lost = blurred(math.sqrt(gram[best, best]), away[best])
        if not lost and self.dtype != torch.float64:
            return False  # the squares of all other dtypes do not underflow
        sizes = self.source.team.sum_to_all(self._sizes())
        self._scale = Scale.of(sizes, n, self.honest)
        if self._scale is None and not lost:
            return False
        self.unit = 1.0 if self._scale is None else self._scale.unit
        self._central, self._speculative = int(sizes[:n].argmin()), None
        return True

    def _measure(self) -> Array:
        known = self.source.inner_products(self.rows, self.anchors)
        return super()._measure() if known is None else known

    def combined_by_source(self, weights: Array) -> Tensor | None:
        weights, rows = self.source_weights(weights), np.zeros(self.source.n)
        rows[self.rows] = weights[: self.n]
        return self.source.combined(rows, dict(zip(self.anchors, weights[self.n :], strict=True)))

    @property
    def separable(self) -> bool:
        measured = self._gram is not None or self._speculative is not None
        if measured or not self.source.has_coordinates or self.norms is None:
            return False
        # Rows in another unit need one that all of them share.
        return self.dtype != torch.float64 or bool(np.median(self.norms) >= SMALL)

    def subset(self, rows: Rows) -> Points:
        assert self.norms is not None
        return SourcePoints(self.source, self.rows[rows], self.norms[rows], self.anchors)

    def source_weights(self, weights: Array) -> Array:
        return weights if self._scale is None else self._scale.source_weights(weights)


def row_norms(source: Source, rows: Rows | None = None) -> Array:
    """The norms of some rows of a source, by default of all; not finite where a row is not.

    >>> from byzantium.vectors import Matrix
    >>> row_norms(Matrix(torch.tensor([[3.0, 4.0], [0.0, 2.0]])))
    array([5., 2.])
    """
    rows = np.arange(source.n) if rows is None else rows
    if source.norms is not None:
        return source.norms[rows]
    total = np.zeros(len(rows))
    for _, matrix, which in source.pieces(rows):
        total += backend(matrix).squared_norms(matrix, which)
    norms: Array = np.sqrt(source.team.sum_to_all(total))
    return norms


def moments(updates: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation (divided by n - 1) of each column, both (d,).

    >>> moments(torch.tensor([[2.0], [4.0], [6.0]]))
    (tensor([4.]), tensor([2.]))
    """
    source = Matrix(updates)
    mean, deviation = (
        torch.empty(source.d, dtype=source.compute_dtype, device=source.device) for _ in range(2)
    )
    for columns, matrix, rows in SourcePoints(source).pieces():
        backend(matrix).moments(matrix, rows, mean[columns], deviation[columns])
    return mean, deviation
