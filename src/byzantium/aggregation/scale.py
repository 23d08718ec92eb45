"""The unit in which tiny vectors are measured, so that no square underflows.

float64 holds numbers down to 5e-324, but squares only of numbers above 1e-154: of smaller vectors,
all squared distances would be zero, and a rule could not tell the honest ones from others that are
a million times larger. So vectors that are nearly as small are measured in a unit of their own, a
power of two, and no bit of the results changes otherwise.

The unit follows from a *radius* that f bad vectors cannot choose: the distance from the
coordinate-wise median within which as many vectors lie as are honest at least. Vectors outside it
are at most f, and in the way: 1e150, the largest that is admitted, is no square in units of 1e-170.
Those more than about 1e270 times the radius away are therefore brought nearer, in the direction of
one vector that is inside. That does no harm: what is proved of a rule holds wherever f vectors are.
If in truth some of them are honest, then so many bad ones are inside that nobody can tell, and the
result must be near the others, within a few times the radius, in either case.

Distances that are smaller than the radius by many orders of magnitude may still underflow: honest
vectors vary at least by a share of the radius, and what is far below their variation never matters.
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
LEAST, LARGEST = -400, 500
# No number of a vector, nor a factor, is larger than this.
MOST = 1000
# An exponent below that of all numbers, for zero.
NOTHING = -1100


@dataclass(frozen=True)
class Scale:
    """How tiny rows are measured: times a power of two, and those far away brought nearer.

    - `exponent`: of the power of two that the rows are multiplied by, from 0 to 1000.
    - `reference`: a row that most of the others are around.
    - `factors`: (n,), powers of two up to 1, by which the difference of each row to the reference
      is shortened; 1 but for rows that are extremely far away.

    >>> sizes = np.array([3e-170, 1e-170, 2e-170, 1e-164, 1e120, 1e-170])
    >>> scale = Scale.of(sizes, 5, 3)
    >>> scale.exponent, scale.reference, (scale.factors == 1).tolist()
    (563, 1, [True, True, True, True, False])
    """

    exponent: int
    reference: int
    factors: Array

    @classmethod
    def of(cls, sizes: Array, n: int, honest: int) -> Scale | None:
        """The scale for n rows, of which at least so many are honest; None if none is needed.

        sizes: distances from the coordinate-wise median: of the n rows, of the anchors, and at last
        of the origin, whether or not it is an anchor.
        """
        rows, beside = sizes[:n], sizes[n:-1]
        radius = np.partition(rows, honest - 1)[honest - 1]
        measured = sizes[:-1]
        smallest = radius if radius > 0 else measured[measured > 0].min(initial=np.inf)
        if smallest >= SMALL:
            return None
        exponents = np.where(sizes > 0, np.frexp(sizes)[1], NOTHING)
        top = int(exponents[:-1].max())
        # Where so many rows are equal, none is brought nearer: who is inside is beyond doubt.
        base = int(np.frexp(radius)[1]) if radius > 0 else top - (LARGEST - LEAST)
        exponent = max(min(-base, LARGEST - top), LEAST - base)
        anchored = int(exponents[n:-1].max(initial=NOTHING)) if beside.size else NOTHING
        exponent = min(exponent, LARGEST - anchored, MOST - int(exponents[-1]), MOST)
        exponent = max(exponent, 0)
        beyond = np.maximum(exponents[:n] + exponent - LARGEST, 0)
        return cls(exponent, int(rows.argmin()), np.ldexp(1.0, -beyond))

    @property
    def unit(self) -> float:
        """The length that counts as 1."""
        return 2.0**-self.exponent

    def given(self, weights: Array) -> Array:
        """The weights of the rows as they were given, from those of the rows as they are measured.

        weights: (..., points), the rows before the anchors.
        """
        moved = weights[..., : len(self.factors)] * (1 - self.factors)
        weights = weights.copy()
        weights[..., : len(self.factors)] -= moved
        weights[..., self.reference] += moved.sum(axis=-1)
        return weights
