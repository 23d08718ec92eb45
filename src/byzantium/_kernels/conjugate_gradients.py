"""Newton's method for the geometric median of thousands of rows, without matrices of its own.

`newton` solves for each step by elimination, which takes n³ operations and two more matrices of
n x n. Here conjugate gradients solve for it (Nocedal, Wright: Numerical Optimization, 2006, section
7.1): each of their iterations is one product of the inner products with a vector. At most the last
digits differ. In the same way, corners and flat regions are only reported.

The point is z = sum_i w_i x_i, e_i = max(near, |z - x_i|), and a_i = x_i - z. With the counts c_i
and S = sum_i c_i / e_i, the sum of distances has the

    gradient  g = -sum_i c_i / e_i a_i,    Hessian  H = S I - sum_i c_i / e_i^3 a_i a_i^T,

where the second sum has only the rows with |a_i| > near. Vectors are represented by the weights of
x_i - b, with the row b that is the base, and have the inner products v^T B w, where B has those of
all x_i - b.
"""

from __future__ import annotations

import math
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# From so many rows on, elimination would take longer.
MANY = 1024
# Four to six iterations are enough; and so many of conjugate gradients for each.
MOST_STEPS, MOST_PRODUCTS = 12, 60
# Conjugate gradients end where this share of the gradient is left: three digits for each iteration.
REMAINDER = 1e-3
# The square of a gradient that is a rounding error, for each pair of rows.
ROUNDED = 1e-28
# A row is at a corner if its distance is less than this share of the sizes whose difference it is.
CORNER = 1e-2
# Rows of the inner products that are computed with at a time.
CHUNK = 64


class Minimum(NamedTuple):
    """The result of Newton's method for a sum of distances.

    - `weights`: (n,), those of the point at which it ended.
    - `slope`: the square of the gradient there.
    - `curvature`: a lower bound of the smallest eigenvalue of the Hessian there, divided by that of
      Weiszfeld's approximation of it; 0 for points on a line, and at most 1.
    - `corners`: how many rows are so near that the sum is not smooth there.
    """

    weights: Array
    slope: float
    curvature: float
    corners: float


class Descent:
    """The current point and its distances; everything is relative to the row `base`.

    - `gram`: inner products (n, n) about any reference.
    - `counts`: how often each row counts.
    - `near`: the threshold of Huber's function; 0 for the sum of distances.
    """

    def __init__(self, gram: Array, counts: Array, near: float) -> None:
        self.gram, self.counts, self.near = gram, counts, near
        self.squares = gram.diagonal()
        sums = np.empty(len(gram))
        for rows in self._chunks():
            sums[rows] = self._distances(rows) @ counts
        self.base = int(sums.argmin())
        self.sizes = self._distances(slice(self.base, self.base + 1))[0]
        self._start()

    def _chunks(self) -> list[slice]:
        return [slice(first, first + CHUNK) for first in range(0, len(self.gram), CHUNK)]

    def _distances(self, rows: slice) -> Array:
        squares = self.squares[rows, None] + self.squares - 2 * self.gram[rows]
        return np.sqrt(squares.clip(min=0))

    def _times(self, vector: Array) -> Array:
        """Inner products about the base, times a vector.

        A sum of BLAS would depend on the number of threads.
        """
        product: Array = np.einsum("ij,j->i", self.gram, vector)
        row = self.gram[self.base]
        return product - product[self.base] - (row - row[self.base]) * vector.sum()

    def _start(self) -> None:
        """The step of Vardi and Zhang, from the base."""
        elsewhere = self.sizes > 0
        pull = np.divide(self.counts, self.sizes, out=np.zeros_like(self.sizes), where=elsewhere)
        strength = math.sqrt(max(0.0, float(pull @ self._times(pull))))
        here = float(self.counts[~elsewhere].sum())
        leave = 1 - here / strength if strength > here else 0.0
        self.weights = leave * pull / (pull.sum() or 1)  # the weight of the base does not matter

    def measure(self) -> float:
        """Distances and pulls at the current point; the square of the gradient."""
        w, counts = self.weights, self.counts
        self.products = self._times(w)
        self.square = float(w @ self.products)
        squares = self.sizes**2 - 2 * self.products + self.square
        distances = np.sqrt(squares.clip(min=0))
        e = np.maximum(self.near, distances)
        self.corners = int((e < CORNER * (self.sizes + abs(w) @ self.sizes)).sum())
        self.pull = counts / e
        self.curving = np.where(distances > self.near, self.pull / e**2, 0.0)
        self.total = float(self.pull.sum())
        if not math.isfinite(self.total):
            return math.inf
        self.force = self.pull - self.total * w
        self.pulled = self._times(self.force)
        return abs(float(self.force @ self.pulled))

    def step(self) -> None:
        """Take Newton's step s, H s = -g.

        Near the minimizer the force, as weights, would not vanish, and hide in rounding errors how
        small the gradient is. Therefore the step is S^-1 (-g + sum_i k_i a_i <a_i, s>), with the
        numbers k_i of H and the s of conjugate gradients: its weights lead to Weiszfeld's.
        """
        its_products = np.zeros_like(self.force)  # B s
        residual, pulled = direction, products = self.force, self.pulled
        square = first = abs(float(residual @ pulled))
        for _ in range(MOST_PRODUCTS):
            turned = self.total * direction - self._bent(products)
            fall = float(turned @ products)
            if not fall > 0:
                break
            length = square / fall
            its_products = its_products + length * products
            residual = residual - length * turned
            pulled = self._times(residual)
            before, square = square, abs(float(residual @ pulled))
            if square <= REMAINDER**2 * first:
                break
            direction = residual + square / before * direction
            products = pulled + square / before * products
        self.weights = self.weights + (self.force + self._bent(its_products)) / self.total

    def _bent(self, products: Array) -> Array:
        """The sum of k_i a_i <a_i, s>, from B s."""
        bent = self.curving * (products - self.weights @ products)
        return bent - bent.sum() * self.weights

    def curvature(self) -> float:
        """That of a `Minimum`.

        H / S = I - M for a positive semidefinite M, no eigenvalue of which exceeds the root of the
        sum of all their squares. That sum is the sum of k_i k_j K_ij^2 / S^2.
        """
        squares, roots = 0.0, np.sqrt(self.curving)
        for rows in self._chunks():
            row = self.gram[rows] - self.gram[self.base] - self.gram[rows, self.base, None]
            row += self.squares[self.base] + self.square - self.products
            row -= self.products[rows, None]
            row *= roots[rows, None] * roots
            squares += float(np.vdot(row, row))
        return 1 - math.sqrt(squares) / self.total


@np.errstate(all="ignore")
def newton(gram: Array, counts: Array, near: float) -> Minimum | None:
    """The point at which the gradient is smallest, mostly as small as rounding allows.

    None where there is no such point. Not all numbers need be finite.

    - `gram`, `counts`, `near`: see `Descent`.
    """
    descent, least, best = Descent(gram, counts, near), math.inf, None
    for _ in range(MOST_STEPS):
        slope = descent.measure()
        if slope < least:
            least, best = slope, copy(descent)
        if slope == math.inf or least < len(gram) ** 2 * ROUNDED:
            break
        descent.step()
    if best is None:
        return None
    weights = best.pull / best.total  # the point, as a convex combination
    return Minimum(weights, least, best.curvature(), best.corners)
