"""The sum of distances to n points, and the way to its minimiser, in n x n numbers.

A point is given by its weights over the points; see `geometry`.
"""

from __future__ import annotations

import numpy as np

from byzantium.aggregation.geometry import Array, Geometry

# Newton's method takes about ten; never reached, this bounds the work whatever comes in.
MOST_STEPS = 1000


class SumOfDistances:
    r"""F(z) = sum_i h(||z - x_i||) over the rows of a geometry.

    h is the identity; with smoothing, Huber's function, which is quadratic below it. The minimiser
    is the fixed point of Weiszfeld's iteration with w_i ~ 1 / max(smoothing, ||z - x_i||).
    """

    def __init__(self, geometry: Geometry, smoothing: float) -> None:
        self.geometry = geometry
        self.n = geometry.n
        self.smoothing = smoothing

    def __call__(self, weights: Array) -> float:
        distances = self.geometry.distances_to(weights)
        if self.smoothing:
            near = (distances**2 / self.smoothing + self.smoothing) / 2
            distances = np.where(distances < self.smoothing, near, distances)
        return float(distances.sum())

    def _pull(self, weights: Array) -> Array:
        """(points,): 1 / max(smoothing, ||z - x_i||); infinite at a point itself."""
        pull = np.zeros(len(weights))
        with np.errstate(divide="ignore"):
            pull[: self.n] = 1 / self.geometry.distances_to(weights).clip(min=self.smoothing)
        return pull

    def weiszfeld(self, weights: Array) -> Array:
        """One step of Weiszfeld's iteration; at a point itself, of Vardi and Zhang's."""
        pull = self._pull(weights)
        here = np.isinf(pull)
        if not here.any():
            return pull / pull.sum()
        pull[here] = 0
        strength = np.sqrt(self._squared_norm(pull - pull.sum() * weights))
        if strength <= here.sum():  # the others cannot pull it away: this is the minimiser
            return weights
        stay = here.sum() / strength
        return (1 - stay) * pull / pull.sum() + stay * weights

    def newton(self, weights: Array) -> Array | None:
        """One step of Newton's method, by Woodbury's formula; None where it is not defined.

        With u_i = (z - x_i) / e_i and e_i = max(smoothing, ||z - x_i||), the gradient is U 1 and
        the Hessian S I - U_a diag(1 / e_a) U_a^T, where S = sum_i 1 / e_i and a are the points
        farther than the smoothing. Without its second term this would be Weiszfeld's step.
        """
        pull = self._pull(weights)
        if np.isinf(pull).any():
            return None
        inverse = pull[: self.n]
        units = inverse[:, None] * (weights - np.eye(self.n, len(weights)))
        products = units @ self.geometry.gram @ units.T
        total = inverse.sum()
        far = inverse * self.smoothing < 1
        system = np.diag(1 / inverse) - products / total
        correction = np.zeros(len(weights))
        try:
            solution = np.linalg.solve(system[far][:, far], products.sum(axis=1)[far] / total)
        except np.linalg.LinAlgError:
            return None
        correction[: self.n][far] = solution
        force = pull * (1 + correction)
        step: Array = weights + (force - force.sum() * weights) / total
        return step if np.isfinite(step).all() else None

    def slope(self, weights: Array) -> float:
        """The squared norm of the gradient."""
        pull = self._pull(weights)
        if np.isinf(pull).any():
            return 0.0
        return self._squared_norm(pull - pull.sum() * weights)

    def minimise(self, weights: Array) -> Array:
        """Descend, by Newton's steps where they gain more and else Weiszfeld's."""
        value = self(weights)
        for _ in range(MOST_STEPS):
            steps = (self.weiszfeld(weights), self.newton(weights))
            values = [(self(step), k) for k, step in enumerate(steps) if step is not None]
            best, k = min(values)
            if best >= value:
                break
            value, weights = best, steps[k]  # type: ignore[assignment]
        # The sum is flat to rounding long before its gradient is, above all beside huge vectors.
        slope = self.slope(weights)
        for _ in range(MOST_STEPS):
            step = self.newton(weights)
            if step is None or (flatter := self.slope(step)) >= slope:
                break
            slope, weights = flatter, step
        return self.weiszfeld(weights)  # the same point, as a convex combination

    def _squared_norm(self, differences: Array) -> float:
        """Of a combination whose weights sum to zero."""
        return max(0.0, float(differences @ self.geometry.gram @ differences))
