"""Products of two thin matrices, stacked: their inner products, their sums, and cuts to a rank.

Let M_i = c_i B_i A_i for each of some members, with B_i of shape (out, r_i) and A_i of (r_i, in).
All B_i beside each other have R columns, the sum of the ranks, and all A_i below each other R rows.
Then one product of (R, R) numbers for each of the two stacks gives all inner products,

    <M_i, M_j> = c_i c_j sum((B_i^T B_j) o (A_i A_j^T)),

where o multiplies entry by entry, and no matrix (out, in) is ever formed. Such sums lose digits
where products nearly cancel. Then the stacks are replaced by bases, B = Q L and A^T = P T with
orthonormal columns of Q and P: M_i is L_i T_i^T c_i in these bases, its *core*, of at most (R, R)
numbers. Cores have the inner products of the matrices, and can be subtracted first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

# How many rows of a symmetric product are computed at a time.
STRIP = 80
EPS = float(np.finfo(np.float64).eps)
# Squares of singular values that are wrong by more than this part of the sum of all are computed
# from bases, instead of from inner products.
TRUSTED = 1e-10
# Between these, the squares of numbers of such a norm stay within float64.
TINY, HUGE = 1e-100, 1e100


class Product(NamedTuple):
    """The matrix scale * b @ a, of shape (out, in).

    - `b`, `a`: matrices (out, r) and (r, in); r is its rank.
    - `scale`: a number, such as alpha / r.
    """

    b: Tensor
    a: Tensor
    scale: float = 1.0


class Cut(NamedTuple):
    """A matrix of low rank, cut to a rank: b @ a.

    - `b`, `a`: matrices (out, rank) and (rank, in) of float64, of equal norms.
    - `square`: the squared norm before the cut.
    - `lost`: the squared norm of what the cut omits.
    """

    b: Tensor
    a: Tensor
    square: float
    lost: float


class Stack:
    """The products of all members for one matrix, stacked.

    - `products`: the product of each member; all are of the same shape.
    - `scratch`: a stack that is no longer needed, whose memory may be used again.

    Factors are scaled by powers of two, so that (B s, A / s) is computed as (B, A) is.

    >>> b, a = torch.tensor([[3.0], [4.0]]), torch.tensor([[1.0, 0.0]])
    >>> stack = Stack([Product(b, a, 2.0), Product(b, -a)])
    >>> stack.products().tolist()
    [[100.0, -50.0], [-50.0, 25.0]]
    """

    def __init__(self, products: Sequence[Product], scratch: Stack | None = None) -> None:
        ends = np.cumsum([0, *(len(product.a) for product in products)]).tolist()
        self.parts = [slice(*pair) for pair in pairwise(ends)]
        self.rank = ends[-1]
        out, columns = (products[0].b.shape[0], products[0].a.shape[1]) if products else (0, 0)
        left: Tensor | None = None if scratch is None else scratch.left
        right: Tensor | None = None if scratch is None else scratch.right
        self.left: Tensor = _memory(left, self.rank, out)  # the transposed b
        self.right: Tensor = _memory(right, self.rank, columns)
        self.scales, self.sizes = np.zeros(len(products)), np.zeros(len(products))
        for k, (product, part) in enumerate(zip(products, self.parts, strict=True)):
            left, right = self.left[part], self.right[part]
            b_norm, b_exponent = _fill(left, product.b.T)
            a_norm, a_exponent = _fill(right, product.a)
            with np.errstate(over="ignore"):
                self.scales[k] = np.ldexp(product.scale, b_exponent + a_exponent)
            self.sizes[k] = abs(self.scales[k]) * b_norm * a_norm

    def products(self) -> Array:
        """The inner products of all members, (members, members).

        Each is wrong by a few units in the last place of the product of two `sizes`.
        """
        return self._summed(_symmetric(self.left), _symmetric(self.right))

    def squares(self) -> Array:
        """The squared norm of each member, (members,)."""
        parts = [(self.left[part], self.right[part]) for part in self.parts]
        squares = [float((b @ b.T).mul_(a @ a.T).sum()) for b, a in parts]
        with np.errstate(over="ignore", invalid="ignore"):
            return self.scales**2 * np.maximum(squares, 0)

    def _summed(self, left: Tensor, right: Tensor) -> Array:
        starts = [part.start for part in self.parts]
        products = left.mul_(right).numpy()
        blocks = np.add.reduceat(np.add.reduceat(products, starts, axis=0), starts, axis=1)
        blocks = (blocks + blocks.T) / 2
        return blocks * self.scales[:, None] * self.scales

    def cores(self) -> tuple[Tensor, Tensor]:
        """Matrices L and T with R columns: core i is L_i T_i^T, of their columns `parts[i]`."""
        left, right = (torch.linalg.qr(one.T, mode="r").R for one in (self.left, self.right))
        return left * self._spread(self.scales), right

    def factors(self) -> tuple[Tensor, Tensor]:
        """The same for the matrices themselves, in the place of their cores."""
        return self.left.T * self._spread(self.scales), self.right.T

    def _spread(self, numbers: Array) -> Tensor:
        """A number for each of the R columns, from one for each member."""
        counts = [part.stop - part.start for part in self.parts]
        return torch.from_numpy(np.repeat(numbers, counts))

    def whole(self, weights: Array) -> Tensor:
        """The weighted sum of the members, (out, in)."""
        b, a = self.combined(weights)
        return b @ a

    def combined(self, weights: Array) -> tuple[Tensor, Tensor]:
        """The same as factors b and a; members without weight are no part of them."""
        shares = self._spread(weights * self.scales)
        active = shares != 0
        return (self.left[active] * shares[active, None]).T, self.right[active]

    def cut(self, weights: Array, rank: int | None = None) -> Cut:
        """The weighted sum of the members, cut to a rank.

        - `rank`: the largest rank of the result; by default nothing is cut.

        With X the leading right singular vectors of the sum M, U an orthonormal basis of M X and
        M' = U U^T M, no matrix of that rank is nearer to M than M', except for rounding: a wrong
        direction in X whose singular value is as small as rounding is corrected by U.
        """
        b, right = self.combined(weights)
        left = b.T
        most = min(len(left), self.left.shape[1], self.right.shape[1])
        rank = most if rank is None else min(rank, self.left.shape[1], self.right.shape[1])
        directions, square = _leading(left, right, min(rank, most))
        missing = rank - directions.shape[1]
        if missing:
            unit = torch.eye(len(directions), rank, dtype=torch.float64)
            directions = torch.cat([directions, unit], dim=1)
        X = torch.linalg.qr(directions).Q[:, :rank]
        U = torch.linalg.qr(left.T @ (right @ X)).Q
        turn, values, rows = torch.linalg.svd((U.T @ left.T) @ right, full_matrices=False)
        cut = float(values.square().sum())
        lost = max(0.0, square - cut) if rank < most else 0.0
        return Cut(*self._balanced(U @ turn, values, rows, X), max(square, cut), lost)

    def _balanced(
        self, columns: Tensor, values: Tensor, rows: Tensor, directions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Factors from a singular value decomposition.

        Where a singular value is zero, b is zero and a is not: a training that goes on from two
        zeros would never leave them.
        """
        if not len(values):
            return columns, rows
        if not values[0] > 0:
            usual = max(float(abs(self.right).mean()) * self.right.shape[1] ** 0.5, 1.0)
            return torch.zeros_like(columns), directions.T * usual
        zero = values <= EPS * max(columns.shape[0], rows.shape[1]) * values[0]
        roots = torch.where(zero, 0.0, values).sqrt()
        usual = float(roots[~zero].mean())
        return columns * roots, rows * torch.where(zero, usual, roots)[:, None]


def _leading(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, float]:
    """The leading right singular vectors of left^T right, and its squared norm."""
    if not rank:
        return right.new_empty(right.shape[1], 0), 0.0
    outer, inner = _symmetric(left), _symmetric(right)
    square = float((outer * inner).sum())
    bound = float(outer.diagonal().sum() * inner.diagonal().sum())
    if len(left) * EPS * bound <= TRUSTED * square:
        # The rows of W^T right / sqrt(l) are orthonormal, with W and l of the inner products.
        values, vectors = torch.linalg.eigh(inner)
        clear = values > len(values) * EPS * values[-1]
        roots, vectors = values[clear].sqrt(), vectors[:, clear]
        turned = vectors * roots
        basis = torch.linalg.eigh(turned.T @ outer @ turned).eigenvectors.flip(1)[:, :rank]
        return right.T @ (vectors / roots @ basis), square
    P, T = torch.linalg.qr(right.T)
    core = torch.linalg.qr(left.T, mode="r").R @ T.T
    _, values, rows = torch.linalg.svd(core, full_matrices=False)
    return P @ rows[:rank].T, float(values.square().sum())


def _symmetric(rows: Tensor) -> Tensor:
    """The inner products of rows, symmetric to the bit; only half of them are computed."""
    n = len(rows)
    products = rows.new_empty(n, n)
    for start in range(0, n, STRIP):
        stop = min(start + STRIP, n)
        torch.mm(rows[start:stop], rows[:stop].T, out=products[start:stop, :stop])
    lower = products.tril()
    return lower + lower.tril(-1).T


def _memory(old: Tensor | None, rows: int, columns: int) -> Tensor:
    """Memory for a matrix: that of an old one, if it is of this shape."""
    if old is not None and old.shape == (rows, columns):
        return old
    return torch.empty(rows, columns, dtype=torch.float64)


def _fill(target: Tensor, values: Tensor) -> tuple[float, int]:
    """Fill a target with values divided by a power of two, such that its norm is about 1.

    Returns its norm, and the exponent of the power.
    """
    target.copy_(values)
    norm = float(torch.linalg.vector_norm(target))
    if not TINY < norm < HUGE:  # perhaps squares were beyond float64
        norm = float(torch.linalg.vector_norm(target, torch.inf)) if target.numel() else 0.0
    if not 0 < norm < np.inf:
        return norm, 0
    exponent = int(np.frexp(norm)[1])
    # In two parts: a single power could be beyond float64.
    target.mul_(2.0 ** -(exponent // 2)).mul_(2.0 ** -(exponent - exponent // 2))
    if TINY < norm < HUGE:
        return float(np.ldexp(norm, -exponent)), exponent
    return float(torch.linalg.vector_norm(target)), exponent
