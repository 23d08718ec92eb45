"""Everything a rule may know of n vectors of dimension d, in n x n numbers.

`Points` holds the vectors as they came and reads them in blocks of columns; `Geometry` is what the
rules see: inner products, distances, and how the points at hand were mixed from the original ones.

Beside the n rows may stand *anchors*: the origin, and the centre of centred clipping. Weights over
points always sum to one, so every formula here is affine and the frame of reference is ours to
choose: we choose the one with the least rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.aggregation import plain
from byzantium.aggregation.forks import fork_safe
from byzantium.aggregation.lazy import cached_property
from byzantium.aggregation.plain import column_blocks

Array = NDArray[np.float64]

# Different rows this close, beside their distance from the reference, deserve a better reference.
CLOSE = 1e-4


def squared_distances(gram: Array) -> Array:
    """||x_i - x_j||^2 from inner products about any reference; never negative, zero to itself."""
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clip(min=0)
    np.fill_diagonal(distances, 0)
    return distances


class Geometry:
    """The Gram matrix of n rows and their anchors, and how they came from the original points.

    mixing: (points, original points), the matrix P whose rows sum to one.
    gram:   P G P^T about a reference that does not matter; computed when first asked for.
    """

    def __init__(
        self,
        base: Callable[[], Array],
        mixing: Array,
        anchors: int,
        norms: Array | None = None,
    ) -> None:
        self._base = base
        self.mixing = mixing
        self.anchors = anchors
        self._norms = norms

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

    @cached_property
    def gram(self) -> Array:
        if self._norms is not None:  # nothing was mixed
            return self._base()
        # Mixed alike means equal, to the bit; and symmetric to the bit, so that ties are ties.
        mixing, which = np.unique(self.mixing, axis=0, return_inverse=True)
        gram = mixing @ self._base() @ mixing.T
        which = which.reshape(-1)
        return ((gram + gram.T) / 2)[which][:, which]

    @cached_property
    def squared_distances(self) -> Array:
        """(n, n) between the rows."""
        return squared_distances(self.gram)[: self.n, : self.n]

    @property
    def norms(self) -> Array:
        """(n,), known without a Gram matrix as long as nothing was mixed."""
        if self._norms is None:
            return self.distances_to(self.at(self.origin))
        return self._norms

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

    def matrix(self, n: int) -> Array | None:
        """P over the n original rows alone, to be applied to them; None where it is the identity.

        (Of the anchors only the origin can be mixed in, and it adds nothing.)
        """
        matrix = self.mixing[: self.n, :n]
        return None if np.array_equal(matrix, np.eye(n)) else matrix

    def renewed(self) -> Geometry:
        """The same points, taken as the original ones."""
        return Geometry(lambda: self.gram, np.eye(self.points), self.anchors)

    def mixed(self, matrix: Array) -> Geometry:
        """The geometry of P X, for P of shape (m, n), or (m, points) with the origin mixed in."""
        m, columns = matrix.shape
        extended = np.zeros((m + self.anchors, self.points))
        extended[:m, :columns] = matrix
        extended[m:, self.n :] = np.eye(self.anchors)
        return Geometry(self._base, extended @ self.mixing, self.anchors)


@dataclass(frozen=True)
class Points:
    """Rows of a matrix that is read and never copied, and the anchors that stand beside them.

    rows:    the rows of `updates` that take part, in order.
    norms:   of those rows.
    anchors: vectors of dimension d; None is the origin.
    """

    updates: Tensor
    rows: Tensor
    norms: Array
    anchors: tuple[Tensor | None, ...] = ()

    @property
    def n(self) -> int:
        return len(self.rows)

    @property
    def d(self) -> int:
        return self.updates.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in: the input's own, but never less than float32."""
        return torch.float64 if self.updates.dtype == torch.float64 else torch.float32

    @property
    def native(self) -> bool:
        """Whether the passes can read the input as it is."""
        return self.updates.dtype == self.dtype and self.updates.stride(1) == 1

    def geometry(self) -> Geometry:
        identity = np.eye(self.n + len(self.anchors))
        return Geometry(cache(self._gram), identity, len(self.anchors), self.norms)

    def pieces(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Columns, a matrix that the passes can read, and which of its rows take part.

        That is the input itself, whole, or where it must be converted, a copy of some columns.
        """
        if self.native:
            yield slice(0, self.d), self.updates, self.rows
        else:
            for columns in column_blocks(self.n, self.d, self.dtype):
                block = self.updates[:, columns].index_select(0, self.rows.to(self.updates.device))
                yield columns, block.to(self.dtype).contiguous(), torch.arange(self.n)

    def combine(self, weights: Array) -> Tensor:
        """sum_i w_i x_i over rows and anchors. Rows that do not take part are never read."""
        total = torch.empty(self.d, dtype=self.dtype, device=self.updates.device)
        for columns, matrix, rows in self.pieces():
            anchors = self._anchors(matrix, columns)
            backend(matrix).combine(matrix, rows, anchors, weights, total[columns])
        return total

    def _gram(self) -> Array:
        """<p_i - r, p_j - r> for all points, in float64, about a reference r among the rows.

        A row of median norm is not huge, and seldom far from the honest rows. Where different rows
        turn out to be close beside their distance from it, a row with half of the others around it
        is a better reference.
        """
        gram = self._gram_about(int(self.norms.argsort(kind="stable")[(self.n - 1) // 2]))
        squares, distances = gram.diagonal(), squared_distances(gram)
        close = distances < CLOSE * np.maximum(squares[:, None], squares)
        if (close & (distances > 0)).any():
            nearer_half = np.partition(distances[: self.n, : self.n], self.n // 2, axis=1)
            gram = self._gram_about(int(nearer_half[:, self.n // 2].argmin()))
        return gram

    def _gram_about(self, reference: int) -> Array:
        total = np.zeros((self.n + len(self.anchors),) * 2)
        for columns, matrix, rows in self.pieces():
            anchors = self._anchors(matrix, columns)
            total += backend(matrix).gram(matrix, rows, anchors, reference)
        return total

    def _anchors(self, matrix: Tensor, columns: slice) -> list[Tensor | None]:
        return [None if anchor is None else anchor.to(matrix)[columns] for anchor in self.anchors]


def backend(matrix: Tensor) -> ModuleType:
    """Where the passes over a matrix are to be found: `compiled` for the CPU, else `plain`."""
    if matrix.device.type != "cpu":
        return plain
    return _compiled()


@cache  # while the interpreter exits, nothing can be imported any more
@fork_safe
def _compiled() -> ModuleType:
    from byzantium.aggregation import compiled  # imports numba: only when it is needed

    return compiled


def row_norms(updates: Tensor) -> Array:
    """(n,); NaN or infinite where a row is."""
    n = len(updates)
    total = np.zeros(n)
    for _, matrix, _ in Points(updates, torch.arange(n), total).pieces():
        total += backend(matrix).squared_norms(matrix)
    norms: Array = np.sqrt(total)
    return norms


def moments(updates: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the unbiased standard deviation of each column (d,), in one reading."""
    n = len(updates)
    points = Points(updates, torch.arange(n), np.zeros(n))
    mean, deviation = (
        torch.empty(points.d, dtype=points.dtype, device=updates.device) for _ in range(2)
    )
    for columns, matrix, rows in points.pieces():
        backend(matrix).moments(matrix, rows, mean[columns], deviation[columns])
    return mean, deviation
