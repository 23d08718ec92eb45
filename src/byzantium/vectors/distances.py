"""Squared distances from inner products, and the rounding errors that they may have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

# A squared distance is G_ii + G_jj - 2 G_ij. If a and b are the sizes of the rows (their distances
# from the reference), the terms are at most a^2, b^2 and 2ab, and each is wrong by a few units in
# its last place. Therefore the error is at most about ROUNDING (a + b)^2.
ROUNDING = 8 * np.finfo(np.float64).eps
# The relative rounding error of a squared distance above which a better reference is taken.
REFERENCE_TRUSTED = 1e-10
# How far, relatively, sums that should be equal may be apart, when they are taken in another order.
EQUAL = 1e-12


def squared_distances(gram: Array) -> Array:
    """Squared distances from inner products about any reference: never negative, diagonal zero.

    |p_i - p_j|^2 = |p_i - r|^2 + |p_j - r|^2 - 2 <p_i - r, p_j - r>.
    """
    distances = np.empty_like(gram)
    for rows in chunks(len(gram)):  # a matrix of n x n is large where there are many rows
        distances[rows] = distances_of(rows, gram)
    return distances


def distances_of(rows: slice, gram: Array) -> Array:
    """Some rows of `squared_distances`."""
    squares = gram.diagonal()
    distances = squares[rows, None] + squares
    distances -= 2 * gram[rows]
    np.maximum(distances, 0, out=distances)
    own = np.arange(len(distances))
    distances[own, rows.start + own] = 0
    return distances


def rounding(sizes: Array) -> Array:
    """Bounds on the rounding errors of squared distances between points of these sizes."""
    errors = ROUNDING * (sizes[:, None] + sizes) ** 2
    np.fill_diagonal(errors, 0)
    return errors


def largest_rounding(sizes: Array) -> float:
    """An upper bound on every entry of `rounding`."""
    return float(ROUNDING * (2 * sizes.max()) ** 2)


def blurred(size: float, square: float) -> bool:
    """Whether a squared distance between rows of this size may be a rounding error."""
    return bool(ROUNDING * (2 * size) ** 2 > REFERENCE_TRUSTED * square)


def distinct(rows: Array) -> tuple[Array, NDArray[np.int64]]:
    """The distinct rows of a matrix, and for each row which of them it equals."""
    places: dict[bytes, int] = {}
    rows = rows + 0.0  # zeros of one sign
    which = np.array([places.setdefault(row.tobytes(), len(places)) for row in rows])
    if len(places) == len(rows):
        return rows, which
    first = np.unique(which, return_index=True)[1]
    return rows[first], which


def medians(distances: Array) -> Array:
    """(n,): for each row, the distance within which half of the others lie."""
    return nth_smallest(distances, len(distances) // 2)


def nth_smallest(distances: Array, rank: int) -> Array:
    """(n,): for each row its value of that rank, from 0 on."""
    found = np.empty(len(distances))
    for rows in chunks(len(distances)):
        found[rows] = np.partition(distances[rows], rank, axis=1)[:, rank]
    return found


def chunks(n: int, size: int = 64) -> Iterator[slice]:
    """Rows of n x n numbers, so many at a time that their copy is small."""
    for first in range(0, n, size):
        yield slice(first, first + size)


def reach(distances: Array, n: int, anchors: Mapping[str, Tensor | None]) -> Array:
    """(n,): for each row how far it is from where a good reference lies, from squared distances.

    Mostly that is the distance within which half of the others lie, which a minority of rows cannot
    choose. With a root gradient, which is trusted, it is the distance to the root gradient: then
    even a majority cannot choose it.
    """
    if "root" in anchors:
        return distances[:n, n + list(anchors).index("root")]
    return medians(distances[:n, :n])
