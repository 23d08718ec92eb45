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
from functools import cached_property

import torch
from torch import Tensor

# A block of columns is read, centred and multiplied while it is in the cache.
BLOCK_BYTES = 4 << 20
# Mixed rows are handed to coordinate-wise rules in larger pieces, worth waking up threads for.
MIXED_BLOCK_BYTES = 12 << 20
# Up to this many columns float64 costs nothing worth saving.
NARROW = 1 << 15
# A pair of rows this close, beside their squared distance from the reference, is beyond float32.
CLOSE = 1e-2
# Squares of values much smaller than this leave the range of float32.
TINY_NORM = 1e-12


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
    def whole(self) -> bool:
        return self.n == len(self.updates)

    @property
    def dtype(self) -> torch.dtype:
        """What sums are accumulated in: never less than float32."""
        return accumulator(self.updates.dtype)

    def geometry(self) -> Geometry:
        identity = torch.eye(self.n + len(self.anchors), dtype=torch.float64)
        return Geometry(self._gram, identity, len(self.anchors), self.norms.double())

    # -- reading ---------------------------------------------------------------------------------

    def read(self, columns: slice) -> Tensor:
        """The rows that take part, in some columns: a view unless rows were rejected."""
        block = self.updates[:, columns]
        return block if self.whole else block.index_select(0, self.rows.to(block.device))

    def combine(self, weights: Tensor) -> Tensor:
        """sum_i w_i x_i over rows and anchors. Rows that do not take part are never read."""
        counted = weights[: self.n].nonzero().flatten()
        if 2 * len(counted) > self.n:
            counted = torch.arange(self.n)  # one long read rather than many short ones
        rows = self.rows[counted]
        share = weights[counted].to(self.updates.device, self.dtype)
        total = torch.zeros(self.d, dtype=self.dtype, device=self.updates.device)
        if self.updates.dtype == self.dtype and self.updates.stride(1) == 1:
            for first, last in _runs(rows.tolist()):
                part = self.updates[rows[first] : rows[first] + last - first]
                total.addmv_(part.T, share[first:last])
        else:
            some = Points(self.updates, rows, self.norms[counted])
            for columns in column_blocks(len(rows), self.d, self.dtype):
                total[columns] = share @ some.read(columns).to(self.dtype)
        for anchor, weight in zip(self.anchors, weights[self.n :].tolist(), strict=True):
            if anchor is not None and weight:
                total.add_(anchor.to(total), alpha=weight)
        return total

    def blocks(self, geometry: Geometry) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The mixed rows, never all at once: columns, a matrix, and which of its rows they are.

        Where nothing was mixed or converted, the matrix is the input itself, whole. (Of the anchors
        only the origin can be mixed in, and it adds nothing.)
        """
        matrix = geometry.mixing[: geometry.n, : self.n]
        unmixed = torch.equal(matrix, torch.eye(self.n, dtype=torch.float64))
        if unmixed and self.updates.dtype == self.dtype and self.updates.stride(1) == 1:
            yield slice(0, self.d), self.updates, self.rows
            return
        matrix = matrix.to(self.updates.device, self.dtype)
        widest, rows = max(matrix.shape), torch.arange(geometry.n)
        for columns in column_blocks(widest, self.d, self.dtype, MIXED_BLOCK_BYTES):
            yield columns, matrix @ self.read(columns).to(self.dtype), rows

    # -- the Gram matrix -------------------------------------------------------------------------

    def _gram(self) -> Tensor:
        """<p_i - r, p_j - r> for all points, in float64, about a reference r among the rows.

        A row of median norm is not huge, and seldom far from the honest rows. Products are taken
        in float32 and summed in float64. Two different rows that are close beside their distance
        from r are beyond float32: then all is done again in float64, about a row that has half of
        the others around it. Rows equal to the bit are found, and given distance zero.
        """
        everything = slice(0, self.d)
        reference = int(self.norms.argsort(stable=True)[(self.n - 1) // 2])
        float32_will_do = (
            self.dtype == torch.float32
            and self.d > NARROW
            and float(self.norms[reference]) > TINY_NORM
            and torch.get_float32_matmul_precision() == "highest"
        )
        total = torch.zeros(self.n + len(self.anchors), self.n + len(self.anchors)).double()
        for columns, product in self._products(
            reference, torch.float32 if float32_will_do else torch.float64
        ):
            total += product
            # One block often tells that the rest is not worth reading in this frame.
            if columns.start == 0 and not self._are_copies(_close_pairs(total), columns):
                break
        pairs = _close_pairs(total)
        if not self._are_copies(pairs, everything):
            medoid = _medoid(total[: self.n, : self.n])
            total.zero_()
            for _, product in self._products(medoid, torch.float64):
                total += product
            pairs = [pair for pair in _close_pairs(total) if self._are_copies([pair], everything)]
        for copy, original in pairs:
            total[copy] = total[original]
            total[:, copy] = total[:, original]
        return total

    def _products(self, reference: int, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """The Gram matrix of each block of columns, minus the reference row."""
        device = self.updates.device
        vector = self.updates[int(self.rows[reference])]
        points = self.n + len(self.anchors)
        buffer = torch.empty(0, dtype=dtype, device=device)
        for columns in column_blocks(points, self.d, dtype):
            width = columns.stop - columns.start
            if not len(buffer):
                buffer = torch.empty(points, width, dtype=dtype, device=device)
            block = buffer[:, :width]
            rows, base = self.read(columns), vector[columns].to(dtype)
            if rows.dtype == dtype:
                torch.sub(rows, base, out=block[: self.n])
            else:
                block[: self.n].copy_(rows).sub_(base)
            for i, anchor in enumerate(self.anchors, start=self.n):
                block[i] = -base if anchor is None else anchor[columns].to(base) - base
            yield columns, (block @ block.T).cpu()

    def _are_copies(self, pairs: list[tuple[int, int]], columns: slice) -> bool:
        """Whether each pair is one row twice, in these columns."""
        return all(
            max(pair) < self.n
            and torch.equal(*(self.updates[int(self.rows[i]), columns] for i in pair))
            for pair in pairs
        )


def _close_pairs(gram: Tensor) -> list[tuple[int, int]]:
    """(i, j) for each point i and the first j < i that is close to it beside their scale."""
    squares = gram.diagonal()
    scale = torch.maximum(squares[:, None], squares[None, :])
    close = (squared_distances(gram) < CLOSE * scale).tril_(-1)
    return [(int(i), int(close[i].byte().argmax())) for i in close.any(dim=1).nonzero()]


def _medoid(gram: Tensor) -> int:
    """The row whose nearer half of the others lies closest around it."""
    distances = squared_distances(gram)
    return int(distances.kthvalue(len(gram) // 2 + 1, dim=1).values.argmin())


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What sums of this type are taken in: never less than float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _runs(rows: list[int]) -> Iterator[tuple[int, int]]:
    """first <= k < last for each run of consecutive numbers rows[k]."""
    first = 0
    for k in range(1, len(rows) + 1):
        if k == len(rows) or rows[k] != rows[k - 1] + 1:
            yield first, k
            first = k


def row_norms(matrix: Tensor) -> Tensor:
    """(n,), on the CPU; NaN or infinite where a row is."""
    dtype = accumulator(matrix.dtype)
    if matrix.dtype == dtype:
        return torch.linalg.vector_norm(matrix, dim=1).cpu()
    norms = [
        torch.linalg.vector_norm(matrix[:, columns].to(dtype), dim=1)
        for columns in column_blocks(len(matrix), matrix.shape[1], dtype)
    ]
    nothing = matrix.new_zeros(len(matrix), dtype=dtype)
    return torch.linalg.vector_norm(torch.stack([nothing, *norms]), dim=0).cpu()


def column_blocks(
    rows: int, d: int, dtype: torch.dtype, block_bytes: int = BLOCK_BYTES
) -> Iterator[slice]:
    """Slices of columns such that `rows` of them fill about `block_bytes`."""
    width = max(256, block_bytes // (max(rows, 1) * dtype.itemsize))
    for start in range(0, d, width):
        yield slice(start, min(start + width, d))
