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

Several problems of one size are solved together; each has the solution, to the bit, that it has
alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from byzantium.vectors.distances import Array

Mask = NDArray[np.bool_]
Indices = NDArray[np.int64]

# How far, relative to |Q| w, conditions that should hold with equality may be off by rounding.
TOLERANCE = 1e-11
EPSILON = np.finfo(np.float64).eps
# So many guesses the primal-dual method gets: it needs fewer than ten, or does not end.
MOST_EXCHANGES = 30
# So many steps an entry the primal method gets; one or two are enough.
MOST_STEPS = 50


class Guess(NamedTuple):
    """Which entries are free, and which are at the cap, (..., n); the others are 0."""

    free: Mask
    capped: Mask


class CappedSimplex:
    """Quadratic forms over capped simplices.

    - `forms`: the matrices Q, (k, n, n), symmetric and positive definite. Their rows may differ in
      size by many orders of magnitude.
    - `caps`: (k, n), the largest value of each entry; for each form they sum to at least one.

    >>> forms = np.diag([1.0, 1.0, 4.0])[None].repeat(2, axis=0)
    >>> CappedSimplex(forms, np.array([[1.0] * 3, [0.4] * 3])).minimize().round(4)
    array([[0.4444, 0.4444, 0.1111],
           [0.4   , 0.4   , 0.2   ]])
    """

    def __init__(self, forms: Array, caps: Array) -> None:
        self.caps, (self.k, self.n) = caps, caps.shape
        diagonal = forms.diagonal(axis1=1, axis2=2)
        # No smaller than the rounding of Q: where that has made it singular, it is not any more.
        self.forms = forms.copy()
        self.forms.reshape(self.k, -1)[:, :: self.n + 1] += self.n * EPSILON * diagonal
        self.sizes = abs(self.forms)
        # Entries in units of 1 / sqrt(Q_ii): rows of any size cost no digits.
        self.scale = 1 / np.sqrt(self.forms.diagonal(axis1=1, axis2=2))
        self.scaled = self.forms * self.scale[:, :, None]
        self.scaled *= self.scale[:, None, :]

    def minimize(self) -> Array:
        """The minimizers, (k, n)."""
        best = self.caps / self.caps[:, :1]
        best /= best.sum(axis=1)[:, None]  # where all entries must be at their caps
        which = np.flatnonzero(self.caps.sum(axis=1) > 1 + TOLERANCE)
        guess = Guess(np.ones((len(which), self.n), bool), np.zeros((len(which), self.n), bool))
        for _ in range(MOST_EXCHANGES):
            if not len(which):
                return best
            weights, level = self._solved(which, guess)
            below = guess.free & (weights < 0)
            above = guess.free & (weights > self.caps[which])
            released = self._violations(which, weights, level, guess) > 0
            best[which] = self._rounded(which, weights, guess)
            # Where they do not sum to one, nothing is free, and the entries at the cap are too few
            # or too many.
            lost = abs(weights.sum(axis=1) - 1) > TOLERANCE
            for j in np.flatnonzero(lost).tolist():
                best[which[j]] = self._primal(which[j : j + 1], weights[j : j + 1])
            going = (below | above | released).any(axis=1) & ~lost
            which, weights = which[going], weights[going]
            guess = Guess(
                (guess.free & ~below & ~above | released)[going],
                (guess.capped & ~released | above)[going],
            )
        for k in range(len(which)):
            best[which[k]] = self._primal(which[k : k + 1], weights[k : k + 1])
        return best

    def _solved(self, which: Indices, guess: Guess) -> tuple[Array, Array]:
        """The weights for which (Q w)_i = l at all free entries, and l, of some of the problems."""
        free, capped = guess
        weights, level = np.where(capped, self.caps[which], 0.0), np.empty(len(which))
        counts = free.sum(axis=1)
        for count in set(counts.tolist()):  # systems of one size are solved together
            chosen = np.flatnonzero(counts == count)
            these, held, mask = which[chosen], weights[chosen], free[chosen]
            if not count:
                level[chosen] = self._between(these, held, capped[chosen])
                continue
            scale = self.scale[these][mask].reshape(-1, count)
            rows = self.forms[these][mask].reshape(-1, count, self.n)
            scaled = self.scaled[these][mask][mask.repeat(count, axis=0)]
            sides = np.empty((len(chosen), count, 2))
            sides[:, :, 0] = scale
            sides[:, :, 1] = scale * _products(rows, held)
            solutions = np.linalg.solve(scaled.reshape(-1, count, count), sides)
            solutions *= scale[:, :, None]
            ones, shift = solutions[:, :, 0], solutions[:, :, 1]
            level[chosen] = (1 - held.sum(axis=1) + shift.sum(axis=1)) / ones.sum(axis=1)
            held[mask] = (level[chosen, None] * ones - shift).ravel()
            weights[chosen] = held
        return weights, level

    def _between(self, which: Indices, weights: Array, capped: Mask) -> Array:
        """Where nothing is free: numbers between the slopes at the cap and those at 0."""
        slopes = _products(self.forms[which], weights)
        largest = np.where(capped, slopes, 0).max(axis=1)
        smallest = np.where(capped, np.inf, slopes).min(axis=1)
        return np.asarray((largest + smallest) / 2)

    def _violations(self, which: Indices, weights: Array, level: Array, guess: Guess) -> Array:
        """By how much entries at a bound would rather leave it; 0 where rounding explains it."""
        level = level[:, None]
        slopes = _products(self.forms[which], weights)
        wrong = np.where(guess.capped, slopes - level, level - slopes)
        wrong[guess.free] = 0
        noise = TOLERANCE * (_products(self.sizes[which], abs(weights)) + abs(level))
        return np.where(wrong > noise, wrong * self.scale[which], 0)

    def _rounded(self, which: Indices, weights: Array, guess: Guess) -> Array:
        caps = self.caps[which]
        return np.asarray(np.where(guess.capped, caps, weights).clip(0, caps))

    def _projected(self, weights: Array, caps: Array) -> Array:
        """The weights clip(w - t, 0, cap) with the t for which they sum to one, by bisection."""
        low, high = weights.min() - 1, weights.max()
        for _ in range(100):
            middle = (low + high) / 2
            if (weights - middle).clip(0, caps).sum() > 1:
                low = middle
            else:
                high = middle
        return (weights - low).clip(0, caps)

    def _primal(self, which: Indices, weights: Array) -> Array:
        """The minimizer, (n,), of one problem, by steps that stay inside and reduce the value.

        - `which`: the index of the problem, (1,).
        - `weights`: (1, n), near where the steps begin.
        """
        caps = self.caps[which]
        weights = self._projected(weights, caps)
        guess = Guess((weights > 0) & (weights < caps), weights == caps)
        for _ in range(MOST_STEPS * self.n):
            target, level = self._solved(which, guess)
            step = target - weights
            slack = np.where(step > 0, caps - weights, weights)
            moving = guess.free & (abs(step) > TOLERANCE * caps)
            shares = np.divide(slack, abs(step), out=np.ones((1, self.n)), where=moving)
            first = int(shares.argmin())
            if shares[0, first] < 1:  # an entry meets a bound: it stays there
                weights = weights + shares[0, first] * step
                guess.free[0, first], guess.capped[0, first] = False, step[0, first] > 0
                weights[0, first] = caps[0, first] if step[0, first] > 0 else 0.0
                continue
            weights = target
            wrong = self._violations(which, weights, level, guess)
            if not wrong.any():
                break
            worst = int(wrong.argmax())
            guess.free[0, worst], guess.capped[0, worst] = True, False
        return np.asarray(self._rounded(which, weights, guess)[0])


def _products(matrices: Array, vectors: Array) -> Array:
    """The product of each matrix with its vector, (k, n)."""
    return np.asarray((matrices @ vectors[:, :, None])[:, :, 0])
