"""The geometry of n vectors of dimension d, in n x n numbers: what rules compute with.

`Geometry` is the view that rules have of `Points`: inner products, distances, and how the present
points were mixed from the original ones. Let r be the reference, p_i the points and
G_ij = <p_i - r, p_j - r>. Weights w over all points (rows and anchors) sum to one, so the point
z = sum_i w_i p_i has z - r = sum_i w_i (p_i - r). Therefore

    <p_i - r, z - r> = (G w)_i,    |z - r|^2 = w^T G w,
    |p_i - z|^2 = G_ii - 2 (G w)_i + w^T G w,

and no distance depends on r: we choose the reference with the smallest rounding errors. The rows of
a mixing matrix P sum to one, too. Therefore the mixed points have the inner products P G P^T.

That holds only up to rounding, and attackers can make rounding errors large: +v and -v in one
bucket cancel in the average, but not in P G P^T once v is huge. The distances that decide must be
those of the vectors that are then combined. So each distance comes with a bound on its rounding
error. Where that bound is too large, the mixed rows are computed and become the points: they are
measured and combined by the same passes.
"""

from __future__ import annotations

import logging
import warnings
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium._kernels.torch_passes import mixed_blocks
from byzantium.core import ByzantiumError
from byzantium.vectors.distances import (
    Array,
    distances_of,
    distinct,
    largest_rounding,
    reach,
    rounding,
    squared_distances,
)
from byzantium.vectors.mixed_points import GroupPoints, MixedPoints
from byzantium.vectors.points import Points, SourcePoints
from byzantium.vectors.scale import MOST, SMALL
from byzantium.vectors.weights import Weights

logger = logging.getLogger("byzantium")

# The relative rounding error of a squared distance above which the mixed rows are computed.
TRUSTED = 1e-6
# A row this many times farther away (squared) than half of the rows has no influence in any rule.
FAR = 1e4
# How far the sum of a row of a mixing matrix may be from one, by rounding.
SUMS_TO_ONE = 1e-9
# The rounding error that a Gram matrix of the user may have, relative to its largest eigenvalue.
GRAM_ROUNDING = 1e-4


class Geometry:
    """Distances and inner products of n vectors: what a rule or mixing computes its weights from.

    *Points* are the n vectors, called *rows*, and the *anchors* after them: the origin and the
    center of a clipping, where a stage uses them. A vector of weights has a number for each point.

    - `basis`: the points that are stored, from which the present ones were mixed.
    - `steps`: the mixing matrices between the basis and the present points, in order.
    - `notes`: sentences for the report.
    - `vouched`: the weights of the present rows that the operator vouches for; None if all count
      the same.

    Inner products and squared distances are in units of the square of `unit`; distances and norms
    are in the unit of the vectors.

    >>> from byzantium.vectors import Matrix
    >>> from byzantium.vectors.points import SourcePoints
    >>> geometry = Geometry.of(SourcePoints(Matrix(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))))
    >>> geometry.n, geometry.squared_distances.tolist()
    (2, [[0.0, 25.0], [25.0, 0.0]])
    >>> geometry.distances_to(geometry.uniform_over(np.arange(2)))
    array([2.5, 2.5])
    """

    def __init__(
        self,
        basis: Points,
        steps: tuple[Array, ...],
        mixing: Array | None,
        notes: list[str] | None = None,
        vouched: Weights | None = None,
    ) -> None:
        self.basis = basis
        self.steps = steps
        self._mixing = mixing
        self.notes = [] if notes is None else notes
        self.vouched = vouched
        self._gram: Array | None = None
        self._squared_distances: Array | None = None

    @classmethod
    def of(cls, points: Points, vouched: Weights | None = None) -> Self:
        """The geometry of points, before any mixing."""
        return cls(points, (), None, vouched=vouched)

    def note(self, sentence: str, level: int = logging.WARNING) -> None:
        """Write a sentence for the user into the log and into the notes of the report."""
        logger.log(level, "%s", sentence)
        self.notes.append(sentence)

    @property
    def anchors(self) -> int:
        """How many anchors there are."""
        return len(self.basis.anchors)

    @property
    def points(self) -> int:
        """How many points there are: rows and anchors."""
        return self.basis.n + self.anchors if self._mixing is None else len(self._mixing)

    @property
    def mixing(self) -> Array:
        """(points, original points): the product of all mixings so far; its rows sum to one."""
        return np.eye(self.points) if self._mixing is None else self._mixing

    @property
    def n(self) -> int:
        """How many rows there are."""
        return self.points - self.anchors

    @property
    def origin(self) -> int:
        """The index of the origin among the points, for stages whose `needs_origin` is True."""
        return self._index("origin", "for a stage that uses it, needs_origin must be True")

    @property
    def center(self) -> int:
        """The index of the center that a rule holds; of the origin while it holds none."""
        if "center" not in self.basis.anchors:
            return self.origin
        return self._index("center", "a rule that uses a center must hold one")

    @property
    def root(self) -> int:
        """The index of the root gradient among the points, for stages that say `needs_root`."""
        return self._index("root", "for a stage that uses it, needs_root must be True")

    def gram_about(self, index: int) -> Array:
        """Inner products (points, points) about one of the points instead of the reference.

        With q the point, <p_i - q, p_j - q> = G_ij - G_iq - G_jq + G_qq.
        """
        gram = self.gram
        products = gram - gram[:, [index]]
        products -= gram[index]
        products += gram[index, index]
        np.fill_diagonal(products, self.squares_about(index))
        return products

    def squares_about(self, index: int) -> Array:
        """(points,): the diagonal of `gram_about`, the squared distances from one of the points."""
        squares = self.gram.diagonal()
        distances = (squares + squares[index] - 2 * self.gram[index]).clip(min=0)
        distances[index] = 0
        return distances

    @property
    def centre(self) -> int:  # former name
        """The former name of `center`, for one release."""
        message = "Geometry.centre is now Geometry.center"  # former name
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.center

    def _index(self, anchor: str, remedy: str) -> int:
        names = list(self.basis.anchors)
        if anchor not in names:
            raise ByzantiumError(f"the {anchor} is not among the points; {remedy}")
        return self.n + names.index(anchor)

    @property
    def unit(self) -> float:
        """The length that counts as 1 in `gram` and `squared_distances`, a power of two.

        It is 1 unless the vectors are so small (about 1e-135) that squares would underflow.
        """
        _ = self.gram  # the unit is chosen when inner products are measured
        return self.basis.unit

    def in_units(self, length: float) -> float:
        """A length in units of `unit`, but at most the largest number there is."""
        return min(length / self.unit, 2.0**MOST)

    @property
    def gram(self) -> Array:
        r"""Inner products (points, points), :math:`\langle p_i - r, p_j - r \rangle`.

        The reference r is one of the points, chosen for the least rounding.
        """
        if self._gram is None:
            self._gram = self._measured()
        return self._gram

    def _measured(self) -> Array:
        if not self.steps:
            basis, gram = self.basis, self.basis.gram
            if not isinstance(basis, GroupPoints) or basis.clear:
                return gram
            # The rows of groups differ by less than is measured: the basis has another unit.
            self.basis, self.steps = basis.basis, (basis.step,)
        # Rows that are mixed in the same way must be equal to the bit, and the matrix symmetric to
        # the bit, so that equal distances are equal.
        factor, which = distinct(self.factor)
        # Machines round a product of matrices differently, and decisions depend on it.
        gram = self.basis.source.team.broadcast(factor @ self.basis.gram @ factor.T)
        gram = (gram + gram.T) / 2
        # |sum_j P_ij (p_j - r)| <= sum_j |P_ij| |p_j - r|: what rounding errors are relative to.
        sizes = abs(factor) @ np.sqrt(self.basis.gram.diagonal())
        if len(factor) < len(which):
            gram, sizes = gram[which][:, which], sizes[which]
        distances, n = squared_distances(gram), self.n
        scale = reach(distances, n, self.basis.anchors).min()
        if largest_rounding(sizes) > TRUSTED * scale:
            errors = np.where(which[:, None] == which, 0, rounding(sizes))
            doubtful = errors > TRUSTED * np.maximum(distances, scale)
            # Half of the others are surely near this row: a reference that f rows cannot choose.
            reference = int(reach(distances + errors, n, self.basis.anchors).argmin())
            # Distances among rows that are all far away do not matter.
            far = ~doubtful[reference] & (distances[reference] > FAR * scale)
            doubtful &= ~(far[:, None] & far)
            if doubtful.any():
                # Any attacker can cause this, in every round, and no user need do anything.
                self.note(
                    "vectors cancel each other in a mixing, as +v and -v do, so the mixed vectors "
                    "are computed and measured themselves",
                    logging.INFO,
                )
                for step in self.steps:
                    self.basis = MixedPoints(self.basis, step, reference)
                self.steps = ()
                return self.basis.gram
        self._squared_distances = distances[:n, :n]
        return gram

    @property
    def workers(self) -> NDArray[np.int64]:
        """(n,): for each row the index of its worker among all vectors of the call.

        For rules that remember workers; mixings before these keep the rows in order.
        """
        points = self.basis
        while isinstance(points, MixedPoints):
            points = points.basis
        assert isinstance(points, SourcePoints)
        return points.rows

    @property
    def factor(self) -> Array:
        """(points, points of the basis): the product of all steps."""
        if not self.steps:
            return np.eye(self.points)
        factor, *steps = self.steps
        for step in steps:
            factor = step @ factor
        return factor

    @property
    def squared_distances(self) -> Array:
        r"""(n, n): :math:`\|x_i - x_j\|^2` of all rows; never negative, zero on the diagonal."""
        if self._squared_distances is None:
            self._squared_distances = squared_distances(self.gram)[: self.n, : self.n]
        return self._squared_distances

    def squared_distances_of(self, rows: slice) -> Array:
        """A copy of some rows of `squared_distances`, which need not be stored for it."""
        gram = self.gram  # it may compute the distances, too
        if self._squared_distances is not None:
            return self._squared_distances[rows].copy()
        return distances_of(rows, gram[: self.n, : self.n])

    @property
    def norms(self) -> Array:
        """(n,): the norms of the rows, for stages whose `needs_origin` is True."""
        origin, norms = self.origin, self.basis.norms
        if self.steps or norms is None:
            return self.distances_to(self.at(origin))
        # Squares of norms near zero may have underflowed; then there is another unit.
        exact = np.median(norms) >= SMALL or self.unit == 1
        return norms if exact else self.distances_to(self.at(origin))

    def distances_to(self, weights: Array) -> Array:
        """(n,): the distance of each row to the point `weights @ points`."""
        return self.measured_to(weights) * self.unit

    def measured_to(self, weights: Array) -> Array:
        """The same in units of `unit`: every distance except zero has a finite inverse."""
        products = self.gram @ weights
        squares = self.gram.diagonal() - 2 * products + weights @ products
        distances: Array = np.sqrt(squares[: self.n].clip(min=0))
        return distances

    def at(self, index: int) -> Array:
        """The weights that are 1 at one point and 0 at all others."""
        weights = np.zeros(self.points)
        weights[index] = 1
        return weights

    @property
    def shares(self) -> Array:
        """(n,): the share of each row in the mean, 1/n or what the operator vouches for."""
        return np.full(self.n, 1 / self.n) if self.vouched is None else self.vouched.shares

    def bad_share(self, f: int) -> float:
        """The share of the weight that f rows can have at most, f/n if all count the same."""
        return f / self.n if self.vouched is None else self.vouched.of_largest(f)

    def uniform_over(self, rows: NDArray[np.int64]) -> Array:
        """The weights whose point is the mean of the rows with these indices."""
        weights = np.zeros(self.points)
        weights[rows] = 1 / len(rows)
        return weights

    def combine(self, weights: Array) -> Tensor:
        """The vector `weights @ points`, of dimension d."""
        return self.basis.combine(weights @ self.factor if self.steps else weights)

    def matrix(self) -> Array | None:
        """The matrix that makes the rows from those of the basis; None if it is the identity.

        (The only anchor that can be mixed in is the origin, which adds nothing.)
        """
        matrix = self.factor[: self.n, : self.basis.n]
        n, ones = self.n, (matrix.diagonal() == 1).all()
        identity = n == self.basis.n and ones and np.count_nonzero(matrix) == n
        return None if identity else matrix

    def rows(self) -> Tensor:
        """(n, d): the rows themselves, which only rules without weights need."""
        rows = torch.empty(self.n, self.basis.d, dtype=self.basis.dtype, device=self.basis.device)
        for columns, matrix, which in self.basis.pieces():
            for inner, block in mixed_blocks(matrix, which, self.matrix()):
                rows[:, columns][:, inner] = block
        return rows if self.basis.unit == 1 else rows.mul_(self.basis.unit)

    @property
    def separable(self) -> bool:
        """Whether `subset` measures only its own rows; then no n x n numbers are needed."""
        return not self.steps and self.basis.separable

    def subset(self, rows: NDArray[np.int64]) -> Geometry:
        """The geometry of some rows and all anchors, as if they were the original points."""
        if self.separable:
            return Geometry(self.basis.subset(rows), (), None, self.notes)
        return self.mixed(np.eye(self.n)[rows]).rebased()

    def computed(self) -> Geometry:
        """The same points after one mixing, computed from the basis and measured themselves."""
        (step,) = self.steps
        points = GroupPoints(self.basis, step)
        return Geometry(points, (), self._mixing, self.notes, self.vouched)

    def rebased(self) -> Geometry:
        """The same points, as if they were the original ones."""
        return Geometry(self.basis, self.steps, np.eye(self.points), self.notes, self.vouched)

    def mixed(
        self, matrix: Array, vouched: Weights | None = None, selects: bool = False
    ) -> Geometry:
        """The geometry of P X, for P of shape (m, n), or (m, points) with the origin mixed in.

        The rows of P must sum to one: inner products are taken about a reference, and only such
        combinations do not depend on which one it is.

        - `vouched`: the weights of the mixed rows.
        - `selects`: whether each mixed row is a row. Then these rows are read, in their order, and
          sums of them do not depend on the others, to the bit.
        """
        matrix = np.asarray(matrix, dtype=np.float64)
        if matrix.ndim != 2:
            raise ByzantiumError(f"a mixing matrix has two dimensions, got {matrix.ndim}")
        m, columns = matrix.shape
        if columns not in (self.n, self.points):
            raise ByzantiumError(
                f"a mixing matrix has a column for each of {self.n} vectors, got {columns} columns"
            )
        errors = abs(matrix.sum(axis=1) - 1)
        if not errors.max(initial=0) <= SUMS_TO_ONE:
            row = int(errors.argmax())
            raise ByzantiumError(
                f"the rows of a mixing matrix must sum to one, but its row {row} sums to "
                f"{matrix[row].sum():.6g}; what is missing belongs in the column of the origin"
            )
        extended = matrix
        if self.anchors:
            extended = np.zeros((m + self.anchors, self.points))
            extended[:m, :columns] = matrix
            extended[m:, self.n :] = np.eye(self.anchors)
        mixing = extended if self._mixing is None else extended @ self._mixing
        basis, chosen = self.basis, extended[:m, : self.n]
        if (
            selects
            and not self.steps
            and type(basis) is SourcePoints
            and np.all(chosen.max(1) == 1)
        ):
            rows = chosen.argmax(axis=1)
            norms = None if basis.norms is None else basis.norms[rows]
            points = SourcePoints(basis.source, basis.rows[rows], norms, basis.anchors)
            return Geometry(points, (), mixing, self.notes, vouched)
        return Geometry(self.basis, (*self.steps, extended), mixing, self.notes, vouched)


def vectors_of(gram: Tensor | Array) -> Tensor:
    """Vectors that have these inner products, as the rows of a matrix (n, n).

    If G = V diag(l) V^T, then X = V diag(sqrt(l)) has X X^T = G.
    """
    products = torch.as_tensor(gram).detach().cpu().double().numpy()
    if products.ndim != 2 or products.shape[0] != products.shape[1]:
        raise ByzantiumError(f"a Gram matrix has the shape (n, n), got {products.shape}")
    if not np.isfinite(products).all():
        raise ByzantiumError("a Gram matrix must be finite, got NaN or infinite numbers")
    values, vectors = np.linalg.eigh((products + products.T) / 2)
    largest = abs(values).max(initial=0)
    skewed = abs(products - products.T).max(initial=0)
    if max(skewed, -values.min(initial=0)) > GRAM_ROUNDING * largest:
        raise ByzantiumError(
            "a Gram matrix must be symmetric and have no negative eigenvalues, got one that is not"
        )
    return torch.from_numpy(vectors * np.sqrt(values.clip(min=0)))
