"""Everything a rule may know of n vectors of dimension d, in n x n numbers.

`Geometry` is what the rules see of `Points`: inner products, distances, and how the points at hand
were mixed from the original ones. Weights over points, rows and anchors, always sum to one, so
every formula here is affine and the frame of reference is ours to choose: we choose the one with
the least rounding.

What is measured is what is used. Inner products of mixed rows follow from those of the original
ones, P G P^T, but only up to rounding, and rounding is in the hands of attackers: +v and -v in one
bucket cancel in the average and not in P G P^T once v is huge. So each distance comes with a bound
on its rounding. Where that bound matters, the mixed rows themselves become the points: they are
measured, and the result is combined from them, by the same passes.
"""

from __future__ import annotations

import logging
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.aggregation.plain import mixed_blocks
from byzantium.aggregation.points import (
    Array,
    MixedPoints,
    Points,
    distinct,
    largest_rounding,
    medians,
    rounding,
    squared_distances,
)
from byzantium.core import ByzantiumError

logger = logging.getLogger("byzantium")

# How much of a squared distance may be rounding before the mixed rows themselves are measured.
TRUSTED = 1e-6
# A squared distance, beside that of half of the rows, at which a row has no say in any rule.
FAR = 1e4
# What the sums of the rows of a mixing matrix may owe to rounding.
SUMS_TO_ONE = 1e-9
# What a Gram matrix that somebody gives may owe to rounding, beside its largest eigenvalue.
GRAM_ROUNDING = 1e-4


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

    @classmethod
    def of(cls, points: Points) -> Self:
        """Of points as they are."""
        return cls(points, (), np.eye(points.n + len(points.anchors)))

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
        """The index of the origin, for steps that declare `needs_origin`."""
        return self._index("origin", "a step that uses the origin must say so with `needs_origin`")

    @property
    def centre(self) -> int:
        """The index of the centre a rule holds; the origin while it holds none."""
        if "centre" not in self.basis.anchors:
            return self.origin
        return self._index("centre", "a rule that uses a centre must hold one")

    def _index(self, anchor: str, remedy: str) -> int:
        names = list(self.basis.anchors)
        if anchor not in names:
            raise ByzantiumError(f"the {anchor} does not stand among the points; {remedy}")
        return self.n + names.index(anchor)

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
        factor, which = distinct(self.factor)
        # A product of matrices is rounded as each machine likes, and what follows depends on it.
        gram = self.basis.source.agreed(factor @ self.basis.gram @ factor.T)
        gram = (gram + gram.T) / 2
        sizes = abs(factor) @ np.sqrt(self.basis.gram.diagonal())
        distances, rows = squared_distances(gram), which[: self.n]
        scale = medians(distances[rows[:, None], rows]).min()
        if largest_rounding(sizes) > TRUSTED * scale:
            errors = rounding(sizes)
            doubt = errors > TRUSTED * np.maximum(distances, scale)
            # Half of the others are surely near this row: a reference that f rows cannot choose.
            reference = int(medians((distances + errors)[rows[:, None], rows]).argmin())
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
        return gram if len(factor) == len(which) else gram[which][:, which]

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
        origin = self.origin
        if not self.steps and self.basis.norms is not None:
            return self.basis.norms
        return self.distances_to(self.at(origin))

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

    def rows(self) -> Tensor:
        """(n, d), the rows themselves. Only what is not a matter of weights needs to build them."""
        rows = torch.empty(self.n, self.basis.d, dtype=self.basis.dtype, device=self.basis.device)
        for columns, matrix, taken in self.basis.pieces():
            for inner, block in mixed_blocks(matrix, taken, self.matrix()):
                rows[:, columns][:, inner] = block
        return rows

    def rebased(self) -> Geometry:
        """The same points, taken as the original ones."""
        return Geometry(self.basis, self.steps, np.eye(self.points), self.notes)

    def mixed(self, matrix: Array) -> Geometry:
        """The geometry of P X, for P of shape (m, n), or (m, points) with the origin mixed in.

        The rows of P must sum to one: inner products are taken about a reference, and only affine
        combinations do not care about which.
        """
        matrix = np.asarray(matrix, dtype=np.float64)
        if matrix.ndim != 2:
            raise ByzantiumError(f"a mixing matrix has two dimensions, got {matrix.ndim}")
        m, columns = matrix.shape
        if columns not in (self.n, self.points):
            raise ByzantiumError(
                f"a mixing matrix has a column for each of {self.n} vectors, got {columns} columns"
            )
        sums = matrix.sum(axis=1)
        if not (abs(sums - 1) <= SUMS_TO_ONE).all():
            row = int((~(abs(sums - 1) <= SUMS_TO_ONE)).argmax())
            raise ByzantiumError(
                f"the rows of a mixing matrix must sum to one, and its row {row} sums to "
                f"{sums[row]:.6g}; what is missing belongs on the origin"
            )
        extended = np.zeros((m + self.anchors, self.points))
        extended[:m, :columns] = matrix
        extended[m:, self.n :] = np.eye(self.anchors)
        return Geometry(self.basis, (*self.steps, extended), extended @ self.mixing, self.notes)


def vectors_of(gram: Tensor | Array) -> Tensor:
    """(n, n): vectors that have these inner products."""
    products = torch.as_tensor(gram).detach().cpu().double().numpy()
    if products.ndim != 2 or products.shape[0] != products.shape[1]:
        raise ByzantiumError(f"a Gram matrix has the shape (n, n), got {products.shape}")
    if not np.isfinite(products).all():
        raise ByzantiumError("a Gram matrix holds finite numbers, got some that are not")
    values, vectors = np.linalg.eigh((products + products.T) / 2)
    largest = abs(values).max(initial=0)
    skewed = abs(products - products.T).max(initial=0)
    if max(skewed, -values.min(initial=0)) > GRAM_ROUNDING * largest:
        raise ByzantiumError("a Gram matrix is symmetric and has no negative eigenvalues")
    return torch.from_numpy(vectors * np.sqrt(values.clip(min=0)))
