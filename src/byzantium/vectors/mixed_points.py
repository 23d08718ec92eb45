"""Mixed rows as points: sums of the rows of other points, computed when they are read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from byzantium._kernels.backend import backend
from byzantium._kernels.torch_passes import column_blocks
from byzantium.vectors.distances import Array
from byzantium.vectors.points import Points
from byzantium.vectors.source import Rows


class MixedPoints(Points):
    """Mixed rows P X as points, computed in float64, in blocks of columns, each time they are read.

    - `basis`: the points X.
    - `matrix`: (points, points of X), one of the `steps` of a `Geometry`; anchors stay the same.
    - `reference`: the first row about which inner products are taken.
    """

    dtype = torch.float64
    norms = None

    def __init__(self, basis: Points, matrix: Array, reference: int) -> None:
        self.basis = basis
        self.n = len(matrix) - len(basis.anchors)
        self.source, self.anchors, self.unit = basis.source, basis.anchors, basis.unit
        self.matrix = matrix[: self.n, : basis.n]
        self.reference = reference

    @property
    def first_reference(self) -> int:
        return self.reference

    def combined_by_source(self, weights: Array) -> Tensor | None:
        rows = weights[: self.n] @ self.matrix
        return self.basis.combined_by_source(np.append(rows, weights[self.n :]))

    def read(self, relative: bool) -> Iterator[tuple[slice, Tensor, Rows, Tensor | None]]:
        rows = np.arange(self.n)
        for outer, matrix, which, common in self.basis.read(relative):
            for columns in column_blocks(self.n, matrix.shape[1], self.dtype):
                block = self._mix(matrix[:, columns], which)
                whole = slice(outer.start + columns.start, outer.start + columns.stop)
                yield whole, block, rows, None if common is None else common[columns]

    def _mix(self, matrix: Tensor, which: Rows) -> Tensor:
        """Some columns of P X, from those of X."""
        return backend(matrix).mixed(matrix, which, self.matrix)


class GroupPoints(MixedPoints):
    """Mixed rows of which each is made of few rows of X: only these are read for it.

    Their inner products are taken about a row whose norm is surely not huge: the bound on it,
    sum_j |P_ij| |x_j|, is the median of these bounds.
    """

    def __init__(self, basis: Points, matrix: Array) -> None:
        assert basis.norms is not None
        super().__init__(basis, matrix, 0)
        bounds = abs(self.matrix) @ basis.norms
        self.reference = int(bounds.argsort(kind="stable")[(self.n - 1) // 2])
        self.step = matrix
        self._parts = [(members := np.flatnonzero(row), row[members]) for row in self.matrix]

    def _rescale(self, gram: Array) -> bool:
        """Make the row that is nearest to the coordinate-wise median the reference."""
        before, sizes = self.reference, self.source.team.sum_to_all(self._sizes())
        self.reference = int(sizes[: self.n].argmin())
        return self.reference != before

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for columns, block, _ in self.pieces():
            yield columns, block

    def _mix(self, matrix: Tensor, which: Rows) -> Tensor:
        block = matrix.new_empty(self.n, matrix.shape[1], dtype=self.dtype)
        for k, (members, weights) in enumerate(self._parts):
            rows = torch.from_numpy(which[members]).to(matrix.device)
            factors = torch.from_numpy(weights).to(matrix.device)
            block[k] = factors @ matrix.index_select(0, rows).double()
        return block
