"""The point with the smallest sum of distances to n points, found in n x n numbers.

A point is represented by its weights over the points; see `geometry`.

Nothing here compares sums of distances: if some vectors are 1e15 times farther away than the
others, rounding makes the sum constant everywhere near its minimizer. Its gradient, a sum of unit
vectors, is not constant: it determines the direction and when to stop.
"""

from __future__ import annotations

import math

import numpy as np

from byzantium._kernels.backend import cpu_backend
from byzantium._kernels.selection import EQUAL_SHARES
from byzantium.vectors.distances import Array, medians, squared_distances
from byzantium.vectors.geometry import FAR, Geometry

# Newton's method takes about ten iterations; this bound is never reached, but limits the work.
MOST_STEPS = 200
# A gradient that does not shrink for so many iterations is as small as rounding allows.
PATIENCE = 2
# The gradient at which a row counts as the minimizer: far below any useful accuracy.
FLAT = 1e-9
# The curvature above which a sum counts as curved; for points on a line it is 0.
CURVED = 1e-3
# Smaller distances, relative to the typical one, are replaced by this, so that none is zero.
NEAR = 1e-10
# Rows that are closer to each other than this, relative to the typical distance, count as one: the
# weights of a step along their difference would be rounding errors.
CLOSE = 3e-7


class SumOfDistances:
    r"""F(z) = sum_i c_i h(||z - x_i||) over the rows of a geometry.

    The counts c_i are 1, or in proportion to weights that the operator vouches for. h is the
    identity; with smoothing, Huber's function, which is quadratic below it. The minimizer is the
    fixed point of Weiszfeld's iteration with w_i ~ c_i / max(smoothing, ||z - x_i||).

    - `geometry`: the rows.
    - `smoothing`: the threshold of Huber's function, in the unit of the geometry.
    """

    def __init__(self, geometry: Geometry, smoothing: float) -> None:
        self.geometry = geometry
        self.n = n = geometry.n
        self.smoothing = smoothing
        # How often each row counts: once, or as the operator's weights say, once on average.
        self.counts = np.ones(n) if geometry.vouched is None else n * geometry.shares

    def sums(self) -> Array:
        """(n,): the sum of the distances of all rows to each row."""
        distances = np.sqrt(self.geometry.squared_distances)
        if self.geometry.vouched is None:
            return np.asarray(distances.sum(axis=1))
        return distances @ self.counts

    def weiszfeld(self, weights: Array) -> Array:
        """One step of Weiszfeld's iteration; from a row, of Vardi and Zhang's.

        At a row of multiplicity m, their step is (1 - m / |R|) T + m / |R| z, if |R| > m, where R
        is the sum of the unit vectors to the other rows and T is Weiszfeld's step over these.
        """
        pull = np.zeros(len(weights))
        with np.errstate(divide="ignore"):
            away = self.geometry.measured_to(weights).clip(min=self.smoothing)
            pull[: self.n] = self.counts / away
        here = np.isinf(pull)
        if not here.any():
            return pull / pull.sum()
        pull[here] = 0
        force = pull - pull.sum() * weights
        # The force R = sum_i pull_i (x_i - z) has weights that sum to zero. Therefore the reference
        # cancels, and |R|^2 = force^T G force.
        strength = math.sqrt(max(0.0, float(force @ self.geometry.gram @ force)))
        multiplicity = self.counts[here[: self.n]].sum()
        if strength <= multiplicity:  # the others cannot pull it away: this is the minimizer
            return weights
        stay = multiplicity / strength
        return (1 - stay) * pull / pull.sum() + stay * weights

    def minimize(self) -> Array:
        """The weights of the minimizer, a convex combination of the rows."""
        weights = self._newton()
        return self._search() if weights is None else weights

    def _reach(self, distances: Array) -> Array:
        """(n,): for each row the squared distance within which half of the others lie, by count."""
        if self.geometry.vouched is None:
            return medians(distances)
        order = distances.argsort(axis=1)
        ends = self.geometry.shares[order].cumsum(axis=1)
        half = (ends <= 1 / 2 + EQUAL_SHARES).sum(axis=1).clip(max=self.n - 1)
        places = np.arange(self.n)
        return np.asarray(distances[places, order[places, half]])

    def _newton(self) -> Array | None:
        """By Newton's method alone; None where its result is not reliable.

        The sum is convex: a point at which its gradient vanishes and it is curved in all directions
        is the only minimizer.
        """
        minimum = cpu_backend().newton(self.geometry.gram, self.counts, self.smoothing)
        if minimum is None:
            return None
        flat, curved = minimum.slope < FLAT**2, minimum.curvature > CURVED
        if not (flat and curved and minimum.corners == 0):
            return None
        if not np.isfinite(minimum.weights).all():  # a step so long that no row pulls any more
            return None
        weights = np.zeros(self.geometry.points)
        weights[: self.n] = minimum.weights
        return weights

    def _search(self) -> Array:
        """By a search that handles corners and flat regions."""
        geometry, n = self.geometry, self.n
        gram, distances = geometry.gram[:n, :n], geometry.squared_distances
        reach = self._reach(distances)
        # Rows that are almost equal are one row that counts several times. (Rounding may hide the
        # distances among rows far away from the others, but these do not matter.)
        near = distances[reach.argmin()] <= FAR * reach.min()
        indistinct = (distances <= CLOSE**2 * reach.min()) & near[:, None] & near
        np.fill_diagonal(indistinct, True)
        rows, group = np.unique(indistinct.argmax(axis=1), return_inverse=True)
        counts = np.bincount(group, weights=self.counts).astype(np.float64)
        search = _Search(gram[rows][:, rows], counts, reach[rows], self.smoothing)
        if (row := search.minimizing_row()) is not None:
            return geometry.at(int(rows[row]))
        weights = (search.run() / counts)[group] * self.counts
        return np.append(weights, np.zeros(geometry.anchors))


class _Search:
    """A descent to the minimizer over distinct rows, each with a multiplicity.

    Inner products are taken about `base`, the row nearest to the current point: then even the
    smallest distance from that row has all of its digits.

    - `gram`: inner products of the rows.
    - `counts`: how often each row counts.
    - `reach`: for each row, the squared distance within which half of the others lie.
    - `smoothing`: the threshold of Huber's function.
    """

    def __init__(self, gram: Array, counts: Array, reach: Array, smoothing: float) -> None:
        self.gram, self.counts = gram, counts
        self.smoothing = smoothing
        # Half of the rows are around it: the minimizer cannot be much farther away than these.
        self.start = int(reach.argmin())
        self.near = max(smoothing, NEAR * math.sqrt(reach.min()))
        self.base = 0
        self.based = gram

    def minimizing_row(self) -> int | None:
        """The row that is the minimizer, if one is.

        The subgradients of F at row k of multiplicity c_k are the unit vectors from the other rows,
        summed, plus any vector of length at most c_k. Therefore row k is the minimizer if and only
        if that sum is no longer than c_k (Vardi and Zhang). Smoothed, F has no such corners.
        """
        if self.smoothing:
            return None
        force, distances = np.zeros_like(self.gram), squared_distances(self.gram)
        np.divide(self.counts, np.sqrt(distances), out=force, where=distances > 0)
        np.fill_diagonal(force, -force.sum(axis=1))
        strength = np.sqrt(((force @ self.gram) * force).sum(axis=1).clip(min=0))
        minimal = strength <= self.counts + FLAT
        return int(minimal.argmax()) if minimal.any() else None

    def run(self) -> Array:
        weights = best = np.eye(len(self.gram))[self.start]
        least, patience = math.inf, PATIENCE
        for _ in range(MOST_STEPS):
            self._rebase(weights)
            force = self._force(weights)
            # A negative value is a rounding error, whose size is that of all rounding errors here.
            slope = abs(float(force @ self.based @ force))
            if slope < least:
                best, least = weights, slope
            elif least < FLAT**2:
                patience -= 1
            if not patience or slope == 0:
                break
            weights = self._step(weights, force)
            # About the base, the weight of the base does not matter: it is set to make the sum one.
            weights[self.base] = 0
            weights[self.base] = 1 - weights.sum()
        self._rebase(best)
        pull = self._pull(best)
        return pull / pull.sum()  # the same point, as a convex combination

    def _rebase(self, weights: Array) -> None:
        """Take inner products about the row that is nearest to a point.

        <x_i - b, x_j - b> = G_ij - G_bj - G_ib + G_bb.
        """
        self.base = base = int(self._distances(weights).argmin())
        self.based = self.gram - self.gram[base] - self.gram[:, base, None] + self.gram[base, base]

    def _distances(self, weights: Array) -> Array:
        products = self.based @ weights
        squares = self.based.diagonal() - 2 * products + weights @ products
        return np.sqrt(squares.clip(min=0))

    def _pull(self, weights: Array) -> Array:
        """How strongly each row pulls at a point."""
        return self.counts / self._distances(weights).clip(min=self.near)

    def _force(self, weights: Array) -> Array:
        """Minus the gradient, as weights that sum to zero."""
        pull = self._pull(weights)
        return pull - pull.sum() * weights

    def _step(self, weights: Array, force: Array) -> Array:
        """The next point: along Newton's direction, or else Weiszfeld's, if that is a descent."""
        for direction in (self._newton(weights), force / self._pull(weights).sum()):
            if direction is not None and (fall := float(force @ self.based @ direction)) > 0:
                return weights + self._length(weights, direction, fall) * direction
        return weights.copy()

    def _length(self, weights: Array, direction: Array, fall: float) -> float:
        """The length of a step that at least halves the slope: by bisection, as F is convex."""
        falling, rising, length = 0.0, math.inf, 1.0
        along = self.based @ direction
        for _ in range(MOST_STEPS):
            left = float(self._force(weights + length * direction) @ along)
            if abs(left) <= fall / 2:
                return length
            if left > 0:
                falling = length
            else:
                rising = length
            length = 2 * falling if rising == math.inf else (falling + rising) / 2
        return falling

    def _newton(self, weights: Array) -> Array | None:
        """Newton's step, by Woodbury's formula; None where it is not defined."""
        # Let e_i = max(near, |z - x_i|), u_i = (z - x_i) / e_i, U the matrix of these columns, c
        # the counts, and `a` the rows farther away than near. The distance to one of these has the
        # gradient u_i and the Hessian (I - u_i u_i^T) / e_i; Huber's function has the gradient u_i
        # and the Hessian I / e_i at all other rows. Therefore, with S = sum_i c_i / e_i,
        #     g = U c,    H = S I - U_a D^-1 U_a^T,    D = diag(e_a / c_a).
        # By Woodbury's formula, H^-1 = I / S + U_a (D - U_a^T U_a / S)^-1 U_a^T / S^2. Therefore
        #     -H^-1 g = -(U c + U_a y) / S,    (D - U_a^T U_a / S) y = U_a^T U c / S.
        # Without y this is Weiszfeld's step.
        pull = self._pull(weights)
        inverse = pull / self.counts
        units = inverse[:, None] * (weights - np.eye(len(weights)))
        products = units @ self.based @ units.T
        total = pull.sum()
        far = inverse * self.near < 1
        system = np.diag(1 / pull) - products / total
        correction = np.zeros(len(weights))
        try:
            correction[far] = np.linalg.solve(
                system[far][:, far], (products @ self.counts)[far] / total
            )
        except np.linalg.LinAlgError:
            return None
        # U (c + y) = sum_i (c_i + y_i) / e_i (z - x_i), as weights over the rows.
        force = inverse * (self.counts + correction)
        step: Array = (force - force.sum() * weights) / total
        return step if np.isfinite(step).all() else None
