"""The unit in which tiny vectors are measured, so that no square underflows.

float64 holds numbers down to 5e-324, but squares only of numbers above 1e-154: of smaller vectors,
all squared distances would be zero, and a rule could not tell the honest ones from others that are
a million times larger. So vectors that are nearly as small are measured in a unit of their own, a
power of two, and no bit of the results changes otherwise.

The unit follows from a *radius* that f Byzantine vectors cannot choose: the distance from the
coordinate-wise median within which the smallest majority of the vectors lies. (Where a majority is
equal, it is that of the n - f nearest; where these are equal, the smallest other distance.) Vectors
outside may prevent that: 1e150, the largest norm admitted, has no square in units of 1e-170. Those
more than about 1e295 times the radius away are therefore brought nearer, in the direction of one
that is inside; but never the n - f nearest. So they are at most f, and the bounds of a rule hold
wherever f vectors are. If some of them are honest after all, then as many Byzantine ones are among
the nearest, no rule can distinguish them, and the result must be close to the nearest in either
case.

Distances that are smaller than the radius by many orders of magnitude may still underflow: honest
vectors vary at least by a share of the radius, and distances far below that never matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Squares of distances above SMALL, also of many columns together, lose nothing to underflow.
SMALL, SMALL_SQUARE = 2.0**-450, 2.0**-900
# In the new unit the radius is 1. If there are larger distances than LARGEST, it is smaller, but
# not below LEAST; these and the others are exponents of two.
LEAST, LARGEST = -480, 496
# No number of a vector, nor a factor, is larger than this.
MOST = 1000
# An exponent below that of all numbers, for zero.
NOTHING = -1100


@dataclass(frozen=True)
class Scale:
    """The scale of tiny rows: a power of two, and factors that bring rows far away nearer.

    - `exponent`: of the power of two that the rows are multiplied by, from 0 to 1000.
    - `reference`: a row that most of the others are around.
    - `factors`: (n,), powers of two up to 1, by which the difference of each row to the reference
      is shortened; 1 except for rows that are extremely far away.

    >>> sizes = np.array([3e-170, 1e-170, 2e-170, 1e-164, 1e140, 1e-170])
    >>> scale = Scale.of(sizes, 5, 3)
    >>> scale.exponent, scale.reference, (scale.factors == 1).tolist()
    (83, 1, [True, True, True, True, False])
    """

    exponent: int
    reference: int
    factors: Array

    @classmethod
    def of(cls, sizes: Array, n: int, honest: int) -> Scale | None:
        """The scale for n rows; None if none is needed.

        - `sizes`: distances from the coordinate-wise median: of the n rows, of the anchors, and at
          last of the origin, whether or not it is an anchor.
        - `n`: the number of rows.
        - `honest`: how many of them are honest at least.
        """
        rows, points = sizes[:n], sizes[:-1]
        near, largest = np.sort(rows)[[n // 2, honest - 1]]
        radius = near or largest or points[points > 0].min(initial=np.inf)
        if radius >= SMALL:
            return None
        exponents = np.where(sizes > 0, np.frexp(sizes)[1], NOTHING)
        top, origin = int(exponents[:-1].max()), int(exponents[-1])
        base = int(np.frexp(radius)[1])
        exponent = max(min(-base, LARGEST - top), LEAST - base)
        fixed = int(np.append(exponents[n:-1], np.sort(exponents[:n])[honest - 1]).max())
        exponent = max(0, min(exponent, LARGEST - fixed, MOST - origin, MOST))
        beyond = np.maximum(exponents[:n] + exponent - LARGEST, 0)
        return cls(exponent, int(rows.argmin()), np.ldexp(1.0, -beyond))

    @property
    def unit(self) -> float:
        """The length that counts as 1."""
        return 2.0**-self.exponent

    def source_weights(self, weights: Array) -> Array:
        """The weights of the rows of the source, from those of the rows as they are measured.

        - `weights`: (..., points), the rows before the anchors.
        """
        n, weights = len(self.factors), weights.copy()
        moved = (weights[..., :n] * (1 - self.factors)).sum(axis=-1)
        weights[..., :n] *= self.factors
        weights[..., self.reference] += moved
        return weights
