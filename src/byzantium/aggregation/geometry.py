"""Everything a rule may know of n vectors of dimension d, in n x n numbers.

`Points` are vectors that are read in blocks of columns; `Geometry` is what the rules see: inner
products, distances, and how the points at hand were mixed from the original ones.

Beside the n rows may stand *anchors*: the origin, and the centre of centred clipping. Weights over
points always sum to one, so every formula here is affine and the frame of reference is ours to
choose: we choose the one with the least rounding.

What is measured is what is used. Inner products of mixed rows follow from those of the original
ones, P G P^T, but only up to rounding, and rounding is in the hands of attackers: +v and -v in one
bucket cancel in the average and not in P G P^T once v is huge. So each distance comes with a bound
on its rounding. Where that bound matters, the mixed rows themselves become the points: they are
measured, and the result is combined from them, by the same passes.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cache
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.aggregation import plain
from byzantium.aggregation.plain import column_blocks
from byzantium.aggregation.sources import Matrix, Source
from byzantium.core.forks import fork_safe

Array = NDArray[np.float64]

logger = logging.getLogger("byzantium")

# A squared distance of rows whose sizes (distances from the reference) are a and b is wrong by at
# most about ROUNDING (a + b)^2: a few units in the last place for each of the sums it is made of.
ROUNDING = 8 * np.finfo(np.float64).eps
# How much of a squared distance may be rounding before the mixed rows themselves are measured.
TRUSTED = 1e-6
# A squared distance, beside that of half of the rows, at which a row has no say in any rule.
FAR = 1e4
# How much of it may be rounding before a better reference is taken.
REFERENCE_TRUSTED = 1e-10
# Each better reference gains eight digits; float64 has sixteen.
MOST_REFERENCES = 3


def squared_distances(gram: Array) -> Array:
    """||x_i - x_j||^2 from inner products about any reference; never negative, zero to itself."""
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clip(min=0)
    np.fill_diagonal(distances, 0)
    return distances


def rounding(sizes: Array) -> Array:
    """What the squared distances of points of these sizes may be wrong by; zero to itself."""
    errors = ROUNDING * (sizes[:, None] + sizes) ** 2
    np.fill_diagonal(errors, 0)
    return errors


def _distinct(rows: Array) -> tuple[Array, NDArray[np.int64]]:
    """The different rows of a matrix, and for each row which of them it is."""
    places: dict[bytes, int] = {}
    rows = rows + 0.0  # zeros of one sign
    which = np.array([places.setdefault(row.tobytes(), len(places)) for row in rows])
    first = np.unique(which, return_index=True)[1]
    return rows[first], which


def medians(distances: Array) -> Array:
    """(n,): how far from each row one must go to meet half of the others."""
    half = len(distances) // 2
    return np.partition(distances, half, axis=1)[:, half]


class Geometry:
    """The Gram matrix of n rows and their anchors, and how they came from the original points.

    basis:  the points that the passes read.
    steps:  the matrices that make these points from the basis, one after the other.
    mixing: (points, original points), the product of all mixings so far; its rows sum to one.
    notes:  what the user should know of the way here, in sentences.
    """

    def __init__(
        self,
        basis: Points,
        steps: tuple[Array, ...],
        mixing: Array,
        notes: list[str] | None = None,
    ) -> None:
        self.basis = basis
        self.steps = steps
        self.mixing = mixing
        self.notes = [] if notes is None else notes
        self._gram: Array | None = None
        self._squared_distances: Array | None = None

    def note(self, sentence: str) -> None:
        """Tell the user: in the log, and in the report."""
        logger.warning("%s", sentence)
        self.notes.append(sentence)

    @property
    def anchors(self) -> int:
        return len(self.basis.anchors)

    @property
    def points(self) -> int:
        return len(self.mixing)

    @property
    def n(self) -> int:
        return self.points - self.anchors

    @property
    def origin(self) -> int:
        """The index of the origin, for stages that declare `needs_origin`."""
        return self.n

    @property
    def centre(self) -> int:
        """The index of the centre a rule holds; the origin while it holds none."""
        return self.points - 1

    @property
    def gram(self) -> Array:
        """Inner products of all points about a reference that does not matter."""
        if self._gram is None:
            self._gram = self._measured()
        return self._gram

    def _measured(self) -> Array:
        if not self.steps:
            return self.basis.gram
        # Mixed alike means equal, to the bit; and symmetric to the bit, so that ties are ties.
        factor, which = _distinct(self.factor)
        gram = factor @ self.basis.gram @ factor.T
        gram = (gram + gram.T) / 2
        sizes = abs(factor) @ np.sqrt(self.basis.gram.diagonal())
        distances, errors = squared_distances(gram), rounding(sizes)
        rows = which[: self.n]
        scale = medians(distances[rows][:, rows]).min()
        if errors.max() > TRUSTED * scale:
            doubt = errors > TRUSTED * np.maximum(distances, scale)
            # Half of the others are surely near this row: a reference that f rows cannot choose.
            reference = int(medians((distances + errors)[rows][:, rows]).argmin())
            near = which[reference]
            # Whether rows that are plainly far away are near each other is of no consequence.
            far = ~doubt[near] & (distances[near] > FAR * scale)
            doubt &= ~(far[:, None] & far)
            if doubt.any():
                self.note("huge vectors cancel where they are mixed; the mixed ones are measured")
                for step in self.steps:
                    self.basis = MixedPoints(self.basis, step, reference)
                self.steps = ()
                return self.basis.gram
        return gram[which][:, which]

    @property
    def factor(self) -> Array:
        """(points, points of the basis): all steps in one."""
        if not self.steps:
            return np.eye(self.points)
        factor, *steps = self.steps
        for step in steps:
            factor = step @ factor
        return factor

    @property
    def squared_distances(self) -> Array:
        """(n, n) between the rows."""
        if self._squared_distances is None:
            self._squared_distances = squared_distances(self.gram)[: self.n, : self.n]
        return self._squared_distances

    @property
    def norms(self) -> Array:
        """(n,), known without a Gram matrix as long as nothing was mixed."""
        if not self.steps and self.basis.norms is not None:
            return self.basis.norms
        return self.distances_to(self.at(self.origin))

    def distances_to(self, weights: Array) -> Array:
        """(n,) from each row to the point `weights @ points`."""
        products = self.gram @ weights
        squares = self.gram.diagonal() - 2 * products + weights @ products
        distances: Array = np.sqrt(squares[: self.n].clip(min=0))
        return distances

    def at(self, index: int) -> Array:
        """The weights of one point."""
        weights = np.zeros(self.points)
        weights[index] = 1
        return weights

    def uniform_over(self, rows: NDArray[np.int64]) -> Array:
        """The weights of the mean of some rows."""
        weights = np.zeros(self.points)
        weights[rows] = 1 / len(rows)
        return weights

    def combine(self, weights: Array) -> Tensor:
        """The vector `weights @ points`."""
        return self.basis.combine(weights @ self.factor)

    def matrix(self) -> Array | None:
        """P over the rows of the basis, to be applied to them; None where it is the identity.

        (Of the anchors only the origin can be mixed in, and it adds nothing.)
        """
        matrix = self.factor[: self.n, : self.basis.n]
        return None if np.array_equal(matrix, np.eye(self.basis.n)) else matrix

    def rebased(self) -> Geometry:
        """The same points, taken as the original ones."""
        return Geometry(self.basis, self.steps, np.eye(self.points), self.notes)

    def mixed(self, matrix: Array) -> Geometry:
        """The geometry of P X, for P of shape (m, n), or (m, points) with the origin mixed in."""
        m, columns = matrix.shape
        extended = np.zeros((m + self.anchors, self.points))
        extended[:m, :columns] = matrix
        extended[m:, self.n :] = np.eye(self.anchors)
        return Geometry(self.basis, (*self.steps, extended), extended @ self.mixing, self.notes)


class Points(ABC):
    """n vectors of dimension d and the anchors beside them, read in blocks of columns.

    anchors: vectors of dimension d; None is the origin.
    norms:   of the rows, where they are known.
    """

    n: int
    source: Source
    dtype: torch.dtype  # what the passes compute in and combine to
    anchors: tuple[Tensor | None, ...]
    norms: Array | None
    _gram: Array | None = None

    @property
    def d(self) -> int:
        return self.source.d

    @property
    def device(self) -> torch.device:
        return self.source.device

    @abstractmethod
    def pieces(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Columns, a matrix that the passes can read, and which of its rows take part."""

    @property
    @abstractmethod
    def first_reference(self) -> int:
        """A row that is likely to be near most of the others."""

    def geometry(self) -> Geometry:
        return Geometry(self, (), np.eye(self.n + len(self.anchors)))

    def combine(self, weights: Array) -> Tensor:
        """sum_i w_i x_i over rows and anchors. Rows that do not take part are never read."""
        total = torch.empty(self.d, dtype=self.dtype, device=self.device)
        for columns, matrix, rows in self.pieces():
            anchors = self._anchors(matrix, columns)
            backend(matrix).combine(matrix, rows, anchors, weights, total[columns])
        return total

    @property
    def gram(self) -> Array:
        """<p_i - r, p_j - r> for all points, in float64, about a reference r among the rows.

        The rows near each other matter most, and a reference far from them costs their digits.
        An attacker may be the first reference, but where that hurts, a row that has half of the
        others around it takes its place, and f workers cannot choose that one.
        """
        if self._gram is None:
            reference = self.first_reference
            for _ in range(MOST_REFERENCES):
                self._gram = self.gram_about(reference)
                better = self._better_reference(self._gram)
                if better is None:
                    break
                reference = better
        assert self._gram is not None
        return self._gram

    def _better_reference(self, gram: Array) -> int | None:
        """A reference that would save digits; None where the one at hand is good enough."""
        n, distances, sizes = self.n, squared_distances(gram), np.sqrt(gram.diagonal())
        reach = medians(distances[:n, :n])
        best = int(reach.argmin())
        if ROUNDING * (2 * sizes.max()) ** 2 <= REFERENCE_TRUSTED * reach[best]:
            return None  # not even the largest error matters
        errors = rounding(sizes)
        gains = 16 * rounding(np.sqrt(distances[best])) < errors
        lost = gains & (errors > REFERENCE_TRUSTED * np.maximum(distances, reach[best]))
        if lost.any():
            # Rows that are equal to the bit have equal products, and no digits to lose.
            which = _distinct(gram)[1]
            lost &= which[:, None] != which
        return best if lost.any() else None

    def gram_about(self, reference: int) -> Array:
        total = np.zeros((self.n + len(self.anchors),) * 2)
        for columns, matrix, rows in self.pieces():
            anchors = self._anchors(matrix, columns)
            total += backend(matrix).gram(matrix, rows, anchors, reference)
        return self.source.total(total)

    def _anchors(self, matrix: Tensor, columns: slice) -> list[Tensor | None]:
        return [None if anchor is None else anchor.to(matrix)[columns] for anchor in self.anchors]


class GivenPoints(Points):
    """Rows of a source.

    rows: those that take part, in order; all of them unless it is said.
    """

    def __init__(
        self,
        source: Source,
        rows: NDArray[np.int64] | None = None,
        norms: Array | None = None,
        anchors: tuple[Tensor | None, ...] = (),
    ) -> None:
        self.source = source
        self.rows = np.arange(source.n) if rows is None else rows
        self.norms = norms
        self.anchors = anchors
        self.n, self.dtype = len(self.rows), source.working

    @property
    def first_reference(self) -> int:
        """A row of median norm is not huge, and seldom far from the honest rows."""
        norms = row_norms(self.source, self.rows) if self.norms is None else self.norms
        return int(norms.argsort(kind="stable")[(self.n - 1) // 2])

    def pieces(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        return self.source.pieces(self.rows)


class MixedPoints(Points):
    """P X as points of their own, made in float64 and in blocks of columns, the same each time.

    matrix: (points, points of X), one of the steps of a `Geometry`; anchors stay what they are.
    """

    dtype = torch.float64
    norms = None

    def __init__(self, basis: Points, matrix: Array, reference: int) -> None:
        self.basis = basis
        self.n = len(matrix) - len(basis.anchors)
        self.source, self.anchors = basis.source, basis.anchors
        self.matrix = matrix[: self.n, : basis.n]
        self.reference = reference

    @property
    def first_reference(self) -> int:
        return self.reference

    def pieces(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        rows = torch.arange(self.n)
        for outer, matrix, given in self.basis.pieces():
            for columns in column_blocks(self.n, matrix.shape[1], self.dtype):
                block = backend(matrix).mixed(matrix[:, columns], given, self.matrix)
                yield slice(outer.start + columns.start, outer.start + columns.stop), block, rows


def backend(matrix: Tensor) -> ModuleType:
    """Where the passes over a matrix are to be found: `compiled` for the CPU, else `plain`."""
    if matrix.device.type != "cpu":
        return plain
    return compiled()


@cache  # while the interpreter exits, nothing can be imported any more
@fork_safe
def compiled() -> ModuleType:
    from byzantium.aggregation import compiled  # imports llvmlite: only when it is needed

    return compiled


def row_norms(source: Source, rows: NDArray[np.int64] | None = None) -> Array:
    """Of some rows, or of all; NaN or infinite where a row is."""
    rows = np.arange(source.n) if rows is None else rows
    total = np.zeros(len(rows))
    for _, matrix, which in source.pieces(rows):
        total += backend(matrix).squared_norms(matrix, which)
    norms: Array = np.sqrt(source.total(total))
    return norms


def moments(updates: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the unbiased standard deviation of each column (d,), in one reading."""
    source = Matrix(updates)
    mean, deviation = (
        torch.empty(source.d, dtype=source.working, device=source.device) for _ in range(2)
    )
    for columns, matrix, rows in GivenPoints(source).pieces():
        backend(matrix).moments(matrix, rows, mean[columns], deviation[columns])
    return mean, deviation
