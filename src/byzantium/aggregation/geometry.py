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
from functools import cache, cached_property
from types import ModuleType

import torch
from torch import Tensor

from byzantium.aggregation import plain
from byzantium.aggregation.plain import column_blocks

# Different rows this close, beside their distance from the reference, deserve a better reference.
CLOSE = 1e-4


def squared_distances(gram: Tensor) -> Tensor:
    """||x_i - x_j||^2 from inner products about any reference; never negative, zero to itself."""
    squares = gram.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp_min_(0)
    return distances.fill_diagonal_(0)


class Geometry:
    """The Gram matrix of n rows and their anchors, and how they came from the original points.

    mixing: (points, original points), the rows of a matrix P whose rows sum to one.
    gram:   P G P^T, float64, about a reference that does not matter; computed when first asked for.
    """

    def __init__(
        self,
        base: Callable[[], Tensor],
        mixing: Tensor,
        anchors: int,
        norms: Tensor | None = None,
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
    def gram(self) -> Tensor:
        # Mixed alike means equal, to the bit; and symmetric to the bit, so that ties are ties.
        mixing, which = self.mixing.unique(dim=0, return_inverse=True)
        gram = mixing @ self._base() @ mixing.T
        return ((gram + gram.T) / 2)[which][:, which]

    @cached_property
    def squared_distances(self) -> Tensor:
        """(n, n) between the rows."""
        return squared_distances(self.gram)[: self.n, : self.n]

    @property
    def norms(self) -> Tensor:
        """(n,), known without a Gram matrix as long as nothing was mixed."""
        if self._norms is None:
            return self.squared_distances_to(self.at(self.origin)).sqrt()
        return self._norms

    def squared_distances_to(self, weights: Tensor) -> Tensor:
        """(n,) from each row to the point `weights @ points`."""
        products = self.gram @ weights
        squares = self.gram.diagonal() - 2 * products + weights @ products
        return squares[: self.n].clamp_min(0)

    def at(self, index: int) -> Tensor:
        """The weights of one point."""
        weights = torch.zeros(self.points, dtype=torch.float64)
        weights[index] = 1
        return weights

    def uniform_over(self, rows: Tensor) -> Tensor:
        """The weights of the mean of some rows."""
        weights = torch.zeros(self.points, dtype=torch.float64)
        weights[rows] = 1 / len(rows)
        return weights

    def matrix(self, n: int) -> Tensor | None:
        """P over the n original rows alone, to be applied to them; None where it is the identity.

        (Of the anchors only the origin can be mixed in, and it adds nothing.)
        """
        matrix = self.mixing[: self.n, :n]
        return None if torch.equal(matrix, torch.eye(n, dtype=torch.float64)) else matrix

    def renewed(self) -> Geometry:
        """The same points, taken as the original ones."""
        identity = torch.eye(self.points, dtype=torch.float64)
        return Geometry(lambda: self.gram, identity, self.anchors)

    def mixed(self, matrix: Tensor) -> Geometry:
        """The geometry of P X, for P of shape (m, n) or, where anchors are mixed in, (m, points)."""
        m, columns = matrix.shape
        extended = torch.zeros(m + self.anchors, self.points, dtype=torch.float64)
        extended[:m, :columns] = matrix
        extended[m:, self.n :] = torch.eye(self.anchors)
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
    norms: Tensor
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

    def geometry(self) -> Geometry:
        identity = torch.eye(self.n + len(self.anchors), dtype=torch.float64)
        return Geometry(cache(self._gram), identity, len(self.anchors), self.norms)

    def pieces(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Columns, a matrix that the passes can read, and which of its rows take part.

        That is the input itself, whole, or where it must be converted, a copy of some columns.
        """
        if self.updates.dtype == self.dtype and self.updates.stride(1) == 1:
            yield slice(0, self.d), self.updates, self.rows
        else:
            for columns in column_blocks(self.n, self.d, self.dtype):
                block = self.updates[:, columns].index_select(0, self.rows.to(self.updates.device))
                yield columns, block.to(self.dtype).contiguous(), torch.arange(self.n)

    def combine(self, weights: Tensor) -> Tensor:
        """sum_i w_i x_i over rows and anchors. Rows that do not take part are never read."""
        total = torch.empty(self.d, dtype=self.dtype, device=self.updates.device)
        for columns, matrix, rows in self.pieces():
            backend(matrix).combine(matrix, rows, weights[: self.n], total[columns])
        for anchor, weight in zip(self.anchors, weights[self.n :].tolist(), strict=True):
            if anchor is not None and weight:
                total.add_(anchor.to(total), alpha=weight)
        return total

    def _gram(self) -> Tensor:
        """<p_i - r, p_j - r> for all points, in float64, about a reference r among the rows.

        A row of median norm is not huge, and seldom far from the honest rows. Where different rows
        turn out to be close beside their distance from it, a row with half of the others around it
        is a better reference.
        """
        gram = self._gram_about(int(self.norms.argsort(stable=True)[(self.n - 1) // 2]))
        squares = gram.diagonal()
        distances = squared_distances(gram)
        scale = torch.maximum(squares[:, None], squares[None, :])
        if ((distances > 0) & (distances < CLOSE * scale)).any():
            nearer_half = distances[: self.n, : self.n].kthvalue(self.n // 2 + 1, dim=1).values
            gram = self._gram_about(int(nearer_half.argmin()))
        return gram

    def _gram_about(self, reference: int) -> Tensor:
        points = self.n + len(self.anchors)
        total = torch.zeros(points, points, dtype=torch.float64)
        for columns, matrix, rows in self.pieces():
            anchors = [None if a is None else a.to(matrix)[columns] for a in self.anchors]
            total += backend(matrix).gram(matrix, rows, anchors, reference)
        return total


def backend(matrix: Tensor) -> ModuleType:
    """Where the passes over a matrix are to be found: `compiled` for the CPU, else `plain`."""
    if matrix.device.type != "cpu":
        return plain
    from byzantium.aggregation import compiled  # imports numba: only when it is needed

    return compiled


def row_norms(updates: Tensor) -> Tensor:
    """(n,), float64, on the CPU; NaN or infinite where a row is."""
    everyone = torch.arange(len(updates))
    points = Points(updates, everyone, everyone)
    total = torch.zeros(len(updates), dtype=torch.float64)
    for _, matrix, _ in points.pieces():
        total += backend(matrix).squared_norms(matrix)
    return total.sqrt()
