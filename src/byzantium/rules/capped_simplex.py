"""The smallest value of a quadratic form over the capped simplex, exactly.

    minimize  w^T Q w   over   sum_i w_i = 1,  0 <= w_i <= cap_i

for a positive definite Q, (n, n). Such a problem has one solution, and w is that solution if and
only if there is a number l with

    (Q w)_i >= l  where w_i = 0,    (Q w)_i <= l  where w_i = cap_i,    (Q w)_i = l  elsewhere.

Given which entries are *free* (neither 0 nor cap), w and l follow from linear equations. A guess of
the free entries is improved by a primal-dual active-set method (Hintermueller, Ito, Kunisch: The
Primal-Dual Active Set Strategy as a Semismooth Newton Method, SIAM J. Optim. 2002), which exchanges
many entries at once and mostly ends after a few iterations. Where it does not end, the classical
primal method (Nocedal, Wright: Numerical Optimization, 2006, section 16.5) finishes: each of its
steps reduces the value, so it cannot return to an earlier guess.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from byzantium.vectors.distances import Array

Mask = NDArray[np.bool_]

# How far, relative to |Q| w, conditions that should hold with equality may be off by rounding.
TOLERANCE = 1e-11
EPSILON = np.finfo(np.float64).eps
# So many guesses the primal-dual method gets: it needs fewer than ten, or does not end.
MOST_EXCHANGES = 30
# So many steps an entry the primal method gets; one or two are enough.
MOST_STEPS = 50


class Guess(NamedTuple):
    """Which entries are free, and which are at the cap; the others are 0."""

    free: Mask
    capped: Mask


class CappedSimplex:
    """A quadratic form over the capped simplex.

    - `form`: Q, (n, n), symmetric and positive definite. Its rows may differ in size by many
      orders of magnitude.
    - `caps`: (n,), the largest value of each entry; they sum to at least one.

    >>> CappedSimplex(np.diag([1.0, 1.0, 4.0]), np.ones(3)).minimize().round(4)
    array([0.4444, 0.4444, 0.1111])
    >>> CappedSimplex(np.diag([1.0, 1.0, 4.0]), np.full(3, 0.4)).minimize().round(4)
    array([0.4, 0.4, 0.2])
    """

    def __init__(self, form: Array, caps: Array) -> None:
        self.caps, self.n = caps, len(form)
        # No smaller than the rounding of Q: where that has made it singular, it is not any more.
        self.form = form = form.copy()
        form.flat[:: self.n + 1] += self.n * EPSILON * form.diagonal()
        self.sizes = abs(form)
        # Entries in units of 1 / sqrt(Q_ii): rows of any size cost no digits.
        self.scale = 1 / np.sqrt(form.diagonal())
        self.scaled = form * self.scale[:, None]
        self.scaled *= self.scale

    def minimize(self) -> Array:
        """The minimizer, (n,)."""
        if self.caps.sum() <= 1 + TOLERANCE:
            relative = self.caps / self.caps[0]
            return np.asarray(relative / relative.sum())
        guess = Guess(np.ones(self.n, dtype=bool), np.zeros(self.n, dtype=bool))
        for _ in range(MOST_EXCHANGES):
            weights, level = self._solved(guess)
            if abs(weights.sum() - 1) > TOLERANCE:
                break  # nothing is free, and the entries at the cap are too few or too many
            below = guess.free & (weights < 0)
            above = guess.free & (weights > self.caps)
            released = self._violations(weights, level, guess) > 0
            if not (below | above | released).any():
                return self._rounded(weights, guess)
            guess = Guess(
                guess.free & ~below & ~above | released,
                guess.capped & ~released | above,
            )
        return self._primal(self._projected(weights))

    def _solved(self, guess: Guess) -> tuple[Array, float]:
        """The weights for which (Q w)_i = l at all free entries, and l."""
        free, capped = guess
        weights = np.where(capped, self.caps, 0.0)
        if not free.any():
            # Any number between the slopes at the cap and those at 0.
            slopes = self.form @ weights
            largest, smallest = slopes[capped].max(initial=0), slopes[~capped].min(initial=np.inf)
            return weights, float((largest + smallest) / 2)
        scale, form = self.scale[free], self.scaled.compress(free, 0).compress(free, 1)
        sides = np.empty((len(scale), 2))
        sides[:, 0] = scale
        sides[:, 1] = scale * (self.form[free] @ weights)
        ones, shift = (np.linalg.solve(form, sides) * scale[:, None]).T
        level = float((1 - weights.sum() + shift.sum()) / ones.sum())
        weights[free] = level * ones - shift
        return weights, level

    def _violations(self, weights: Array, level: float, guess: Guess) -> Array:
        """By how much entries at a bound would rather leave it; 0 where rounding explains it."""
        slopes = self.form @ weights
        wrong = np.where(guess.capped, slopes - level, level - slopes)
        wrong[guess.free] = 0
        noise = TOLERANCE * (self.sizes @ abs(weights) + abs(level))
        return np.where(wrong > noise, wrong * self.scale, 0)

    def _rounded(self, weights: Array, guess: Guess) -> Array:
        weights[guess.capped] = self.caps[guess.capped]
        return weights.clip(0, self.caps)

    def _projected(self, weights: Array) -> Array:
        """The weights clip(w - t, 0, cap) with the t for which they sum to one, by bisection."""
        low, high = weights.min() - 1, weights.max()
        for _ in range(100):
            middle = (low + high) / 2
            if (weights - middle).clip(0, self.caps).sum() > 1:
                low = middle
            else:
                high = middle
        return (weights - low).clip(0, self.caps)

    def _primal(self, weights: Array) -> Array:
        """The minimizer, by steps that stay in the capped simplex and reduce the value.

        - `weights`: where the steps begin.
        """
        guess = Guess((weights > 0) & (weights < self.caps), weights == self.caps)
        for _ in range(MOST_STEPS * self.n):
            target, level = self._solved(guess)
            step = target - weights
            slack = np.where(step > 0, self.caps - weights, weights)
            moving = guess.free & (abs(step) > TOLERANCE * self.caps)
            shares = np.divide(slack, abs(step), out=np.ones(self.n), where=moving)
            first = int(shares.argmin())
            if shares[first] < 1:  # an entry meets a bound: it stays there
                weights = weights + shares[first] * step
                guess.free[first], guess.capped[first] = False, step[first] > 0
                weights[first] = self.caps[first] if step[first] > 0 else 0.0
                continue
            weights = target
            wrong = self._violations(weights, level, guess)
            if not wrong.any():
                break
            worst = int(wrong.argmax())
            guess.free[worst], guess.capped[worst] = True, False
        return self._rounded(weights, guess)
