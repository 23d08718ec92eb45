"""The point with the smallest sum of distances to n points, found in n x n numbers.

A point is given by its weights over the points; see `geometry`.

Nothing here compares sums of distances: if some vectors are 1e15 times farther away than the
others, rounding makes the sum constant everywhere near its minimiser. Its gradient, a sum of unit
vectors, is not constant: it says where to go and when one has arrived.
"""

from __future__ import annotations

import math

import numpy as np

from byzantium._kernels.backend import cpu_backend
from byzantium.vectors.geometry import FAR, Geometry
from byzantium.vectors.points import Array, medians, squared_distances

# Newton's method takes about ten steps; this bound is never reached, but limits the work for sure.
MOST_STEPS = 200
# A gradient that does not get smaller for so many steps is as small as rounding lets it be.
PATIENCE = 2
# The gradient at which a row counts as the minimiser: far below what anyone can use.
FLAT = 1e-9
# The determinant of the Hessian above which a sum counts as curved; for points on a line it is 0.
CURVED = 1e-3
# Smaller distances, relative to the typical one, are replaced by this, so that none is zero.
NEAR = 1e-10
# Rows that are closer to each other than this, relative to the typical distance, count as one: the
# weights of a step along their difference would be nothing but rounding.
CLOSE = 3e-7


class SumOfDistances:
    r"""F(z) = sum_i h(||z - x_i||) over the rows of a geometry.

    h is the identity; with smoothing, Huber's function, which is quadratic below it. The minimiser
    is the fixed point of Weiszfeld's iteration with w_i ~ 1 / max(smoothing, ||z - x_i||).

    - `smoothing`: in the unit of the geometry.
    """

    def __init__(self, geometry: Geometry, smoothing: float) -> None:
        self.geometry = geometry
        self.n = geometry.n
        self.smoothing = smoothing

    def weiszfeld(self, weights: Array) -> Array:
        """One step of Weiszfeld's iteration; at a point itself, of Vardi and Zhang's."""
        pull = np.zeros(len(weights))
        with np.errstate(divide="ignore"):
            pull[: self.n] = 1 / self.geometry.measured_to(weights).clip(min=self.smoothing)
        here = np.isinf(pull)
        if not here.any():
            return pull / pull.sum()
        pull[here] = 0
        force = pull - pull.sum() * weights
        strength = math.sqrt(max(0.0, float(force @ self.geometry.gram @ force)))
        if strength <= here.sum():  # the others cannot pull it away: this is the minimiser
            return weights
        stay = here.sum() / strength
        return (1 - stay) * pull / pull.sum() + stay * weights

    def minimise(self) -> Array:
        """The weights of the minimiser, a convex combination of the rows."""
        weights = self._directly()
        return self._searched() if weights is None else weights

    def _directly(self) -> Array | None:
        """By Newton's steps alone; None where these are not to be trusted.

        The sum is convex: where its gradient vanishes and it is curved in all directions, there is
        the minimiser, and no other.
        """
        minimum = cpu_backend().newton(self.geometry.gram, self.n, self.smoothing)
        if minimum is None:
            return None
        flat, curved = minimum.slope < FLAT**2, minimum.determinant > CURVED
        if not (flat and curved and minimum.corners == 0):
            return None
        if not np.isfinite(minimum.weights).all():  # a step so long that no row pulls any more
            return None
        weights = np.zeros(self.geometry.points)
        weights[: self.n] = minimum.weights
        return weights

    def _searched(self) -> Array:
        """By a search that takes care of corners and of flat places."""
        geometry, n = self.geometry, self.n
        gram, distances = geometry.gram[:n, :n], geometry.squared_distances
        reach = medians(distances)
        # Rows that can hardly be told apart are one row that counts several times. (Of those far
        # away from the others, rounding may hide the distances, and they do not matter.)
        near = distances[reach.argmin()] <= FAR * reach.min()
        indistinct = (distances <= CLOSE**2 * reach.min()) & near[:, None] & near
        np.fill_diagonal(indistinct, True)
        rows, group, counts = np.unique(
            indistinct.argmax(axis=1), return_inverse=True, return_counts=True
        )
        search = _Search(gram[rows][:, rows], counts.astype(float), reach[rows], self.smoothing)
        if (row := search.minimising_row()) is not None:
            return geometry.at(int(rows[row]))
        return np.append((search.run() / counts)[group], np.zeros(geometry.anchors))


class _Search:
    """A descent to the minimiser over different rows, of which each counts several times.

    The frame of reference moves with it: about the row nearest to the point at hand, even the
    smallest distance from that row has all of its digits.
    """

    def __init__(self, gram: Array, counts: Array, reach: Array, smoothing: float) -> None:
        self.gram, self.counts = gram, counts
        self.smoothing = smoothing
        # Half of the rows around it: the minimiser cannot be much farther away than these.
        self.start = int(reach.argmin())
        self.near = max(smoothing, NEAR * math.sqrt(reach.min()))
        self.base = 0
        self.based = gram

    def minimising_row(self) -> int | None:
        """The row that is the minimiser, if one is.

        By the criterion of Vardi and Zhang, that is one from which the unit vectors to the others
        add up to no more than how often it counts. Smoothed, the sum has no such corners.
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
            self._settle(weights)
            force = self._force(weights)
            # Where it comes out negative, it is rounding, and its size says of how much.
            slope = abs(float(force @ self.based @ force))
            if slope < least:
                best, least = weights, slope
            elif least < FLAT**2:
                patience -= 1
            if not patience or slope == 0:
                break
            weights = self._step(weights, force)
            # What lies on the base counts for nothing in its frame: it is what the others leave.
            weights[self.base] = 0
            weights[self.base] = 1 - weights.sum()
        self._settle(best)
        pull = self._pull(best)
        return pull / pull.sum()  # the same point, as a convex combination

    def _settle(self, weights: Array) -> None:
        """Make the row that is nearest to a point the frame of reference."""
        self.base = base = int(self._distances(weights).argmin())
        self.based = self.gram - self.gram[base] - self.gram[:, base, None] + self.gram[base, base]

    def _distances(self, weights: Array) -> Array:
        products = self.based @ weights
        squares = self.based.diagonal() - 2 * products + weights @ products
        distances: Array = np.sqrt(squares.clip(min=0))
        return distances

    def _pull(self, weights: Array) -> Array:
        """How strongly each row pulls at a point."""
        pull: Array = self.counts / self._distances(weights).clip(min=self.near)
        return pull

    def _force(self, weights: Array) -> Array:
        """Minus the gradient, as weights that sum to zero."""
        pull = self._pull(weights)
        return pull - pull.sum() * weights

    def _step(self, weights: Array, force: Array) -> Array:
        """Go downhill, by Newton's step or else Weiszfeld's, for as long as it goes downhill."""
        for direction in (self._newton(weights), force / self._pull(weights).sum()):
            if direction is not None and (fall := float(force @ self.based @ direction)) > 0:
                return weights + self._length(weights, direction, fall) * direction
        return weights.copy()

    def _length(self, weights: Array, direction: Array, fall: float) -> float:
        """How far to go, so that little of the fall is left: by bisection, as the sum is convex."""
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
        """Newton's step, by Woodbury's formula; None where it is not defined.

        With u_i = (z - x_i) / e_i, e_i = max(near, ||z - x_i||) and counts c_i, the gradient is U c
        and the Hessian S I - U_a diag(c_a / e_a) U_a^T, where S = sum_i c_i / e_i and a are the
        rows farther than that. Without its second term this would be Weiszfeld's step.
        """
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
        force = inverse * (self.counts + correction)
        step: Array = (force - force.sum() * weights) / total
        return step if np.isfinite(step).all() else None
