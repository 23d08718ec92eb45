"""The compiled loops over millions of columns. Importing this module imports numba.

Rows are read as pieces of one flat array, row i from offsets[i] on. A kernel works on the columns
first <= c < last, in blocks that stay in the cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core.compiler_lock import global_compiler_lock
from numpy.typing import NDArray

from byzantium.aggregation.cache import CheckedCache
from byzantium.core import held_during_forks

logger = logging.getLogger("byzantium")

Array = NDArray[Any]

# Columns worked on at a time: loops long enough to be fast, rows short enough for the cache.
BLOCK = 2048
# Bytes of centred rows multiplied at a time.
GRAM_BYTES = 256 << 10
# Where the offset of a row would stand, for points that are not rows of the matrix.
ORIGIN, CENTRE = -1, -2
# What a sum may be vectorised by. Not "fast": NaN and infinity keep their meaning.
SUMS = {"reassoc", "contract", "nsz"}


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compiled on first use and kept on disk, where there is a folder that can be written."""
    compiled: Any = numba.njit(function, nogil=True)
    try:
        compiled._cache = CheckedCache(function)
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # no such folder: each process compiles for itself
        logger.info("compiled code is not kept: %s", error)
    return compiled


# Whoever compiles holds this lock.
held_during_forks(global_compiler_lock)


@numba.njit(fastmath=SUMS)
def _add_squares(flat: Array, offsets: Array, start: int, width: int, squares: Array) -> None:
    """Add to the squared norms of the rows, where they are wanted, while the block is at hand."""
    for i in range(len(squares)):
        row = flat[offsets[i] + start : offsets[i] + start + width]
        square = 0.0
        for c in range(width):
            square += np.float64(row[c]) * np.float64(row[c])
        squares[i] += square


def _squared_norms(flat: Array, offsets: Array, squares: Array, first: int, last: int) -> None:
    _add_squares(flat, offsets, first, last - first, squares)


squared_norms = _compiled(_squared_norms)


def _mix(
    flat: Array,
    offsets: Array,
    starts: Array,
    sources: Array,
    shares: Array,
    centre: Array,
    on_centre: float,
    out: Array,
    first: int,
    last: int,
) -> None:
    """out[i] = on_centre * centre + sum_k shares[k] * row sources[k], starts[i] <= k < starts[i+1].

    `out` has the columns first <= c < last alone. Sums are float64, whatever the rows are.
    """
    total = np.empty(BLOCK)
    for start in range(first, last, BLOCK):
        width = min(BLOCK, last - start)
        for i in range(len(out)):
            for c in range(width):
                total[c] = on_centre * centre[start + c] if on_centre != 0 else 0.0
            k = starts[i]
            while k + 4 <= starts[i + 1]:  # four rows at a time
                a, b = offsets[sources[k]] + start, offsets[sources[k + 1]] + start
                c, d = offsets[sources[k + 2]] + start, offsets[sources[k + 3]] + start
                p, q, r, s = shares[k], shares[k + 1], shares[k + 2], shares[k + 3]
                u, v = flat[a : a + width], flat[b : b + width]
                x, y = flat[c : c + width], flat[d : d + width]
                for j in range(width):
                    total[j] += (p * u[j] + q * v[j]) + (r * x[j] + s * y[j])
                k += 4
            while k < starts[i + 1]:
                a, p = offsets[sources[k]] + start, shares[k]
                u = flat[a : a + width]
                for j in range(width):
                    total[j] += p * u[j]
                k += 1
            row = out[i, start - first : start - first + width]
            for c in range(width):
                row[c] = total[c]


mix = _compiled(_mix)


def _moments(
    flat: Array, offsets: Array, mean: Array, deviation: Array, first: int, last: int
) -> None:
    """The mean and the unbiased standard deviation of each column, in one reading."""
    n = len(offsets)
    total, square = np.empty(BLOCK), np.empty(BLOCK)
    for start in range(first, last, BLOCK):
        width = min(BLOCK, last - start)
        for c in range(width):
            total[c] = square[c] = 0
        for i in range(n):
            row = flat[offsets[i] + start : offsets[i] + start + width]
            for c in range(width):
                total[c] += row[c] / n
        for i in range(n):
            row = flat[offsets[i] + start : offsets[i] + start + width]
            for c in range(width):
                square[c] += (row[c] - total[c]) * (row[c] - total[c])
        for c in range(width):
            mean[start + c] = total[c]
            deviation[start + c] = np.sqrt(square[c] / max(n - 1, 1))


moments = _compiled(_moments)


# -- order statistics --------------------------------------------------------------------------


@numba.njit
def _row(flat: Array, offsets: Array, buffer: Array, place: int, start: int, width: int) -> Array:
    """A block of an input row (place < 0) or of a spare row of the buffer."""
    if place < 0:
        offset = offsets[~place] + start
        return flat[offset : offset + width]
    return buffer[place * BLOCK : place * BLOCK + width]


@numba.njit
def _compare(
    rows: Array, offsets: Array, start: int, width: int, comparators: Array, buffer: Array
) -> None:
    """Run a `network.Network` over a block of columns."""
    for k in range(len(comparators)):
        a = _row(rows, offsets, buffer, comparators[k, 0], start, width)
        b = _row(rows, offsets, buffer, comparators[k, 1], start, width)
        low, high = comparators[k, 2] * BLOCK, comparators[k, 3] * BLOCK
        if high < 0:
            smaller = buffer[low : low + width]
            for c in range(width):
                smaller[c] = a[c] if a[c] < b[c] else b[c]
        elif low < 0:
            larger = buffer[high : high + width]
            for c in range(width):
                larger[c] = b[c] if a[c] < b[c] else a[c]
        else:
            smaller, larger = buffer[low : low + width], buffer[high : high + width]
            for c in range(width):
                x, y = a[c], b[c]
                smaller[c] = x if x < y else y
                larger[c] = y if x < y else x


def _middle_mean(
    flat: Array,
    offsets: Array,
    comparators: Array,
    chosen: Array,
    places: int,
    kept: int,
    squares: Array,
    out: Array,
    first: int,
    last: int,
) -> None:
    """The mean of the `kept` values that a network brings out; see `_add_squares`, too."""
    buffer, total = np.empty(places * BLOCK, flat.dtype), np.empty(BLOCK)
    for start in range(first, last, BLOCK):
        width = min(BLOCK, last - start)
        _add_squares(flat, offsets, start, width, squares)
        _compare(flat, offsets, start, width, comparators, buffer)
        for c in range(width):
            total[c] = 0
        for k in range(len(chosen)):
            row = _row(flat, offsets, buffer, chosen[k], start, width)
            for c in range(width):
                total[c] += row[c]
        for c in range(width):
            out[start + c] = total[c] / kept


def _nearest_mean(
    flat: Array,
    offsets: Array,
    comparators: Array,
    chosen: Array,
    places: int,
    kept: int,
    squares: Array,
    out: Array,
    first: int,
    last: int,
) -> None:
    """The mean of the `kept` values nearest the median; the network brings out all, in order."""
    buffer, total, median = np.empty(places * BLOCK, flat.dtype), np.empty(BLOCK), np.empty(BLOCK)
    n = len(chosen)
    for start in range(first, last, BLOCK):
        width = min(BLOCK, last - start)
        _add_squares(flat, offsets, start, width, squares)
        _compare(flat, offsets, start, width, comparators, buffer)
        low = _row(flat, offsets, buffer, chosen[(n - 1) // 2], start, width)
        high = _row(flat, offsets, buffer, chosen[n // 2], start, width)
        for c in range(width):
            median[c] = (np.float64(low[c]) + np.float64(high[c])) / 2
            total[c] = 0
        # The window of `kept` sorted values slides up past k when value k + kept is nearer.
        for k in range(n):
            row = _row(flat, offsets, buffer, chosen[k], start, width)
            low = _row(flat, offsets, buffer, chosen[max(k - kept, 0)], start, width)
            high = _row(flat, offsets, buffer, chosen[min(k + kept, n - 1)], start, width)
            always_enters, never_leaves = k < kept, k + kept >= n
            for c in range(width):
                x, m = np.float64(row[c]), median[c]
                enters = always_enters or x - m < m - low[c]
                leaves = not never_leaves and high[c] - m < m - x
                total[c] += x if enters and not leaves else 0.0
        for c in range(width):
            out[start + c] = total[c] / kept


middle_mean = _compiled(_middle_mean)
nearest_mean = _compiled(_nearest_mean)


# -- inner products ----------------------------------------------------------------------------


@numba.njit(fastmath=SUMS)
def _tile(buffer: Array, size: int, i: int, j: int, width: int, gram: Array) -> None:
    """Nine inner products at once, so that each value read is used three times."""
    a0, b0 = buffer[i * size : i * size + width], buffer[j * size : j * size + width]
    i, j = i + 1, j + 1
    a1, b1 = buffer[i * size : i * size + width], buffer[j * size : j * size + width]
    i, j = i + 1, j + 1
    a2, b2 = buffer[i * size : i * size + width], buffer[j * size : j * size + width]
    i, j = i - 2, j - 2
    s00 = s01 = s02 = s10 = s11 = s12 = s20 = s21 = s22 = 0.0
    for c in range(width):
        s00 += a0[c] * b0[c]
        s01 += a0[c] * b1[c]
        s02 += a0[c] * b2[c]
        s10 += a1[c] * b0[c]
        s11 += a1[c] * b1[c]
        s12 += a1[c] * b2[c]
        s20 += a2[c] * b0[c]
        s21 += a2[c] * b1[c]
        s22 += a2[c] * b2[c]
    gram[i, j] += s00
    gram[i, j + 1] += s01
    gram[i, j + 2] += s02
    gram[i + 1, j] += s10
    gram[i + 1, j + 1] += s11
    gram[i + 1, j + 2] += s12
    gram[i + 2, j] += s20
    gram[i + 2, j + 1] += s21
    gram[i + 2, j + 2] += s22


def _gram(
    flat: Array,
    offsets: Array,
    centre: Array,
    reference: int,
    gram: Array,
    first: int,
    last: int,
) -> None:
    """Add <p_i - r, p_j - r> to the lower triangle of `gram`, in float64, r being row `reference`.

    `gram` is padded to a multiple of three. Equal rows give equal sums, to the bit.
    """
    size = max(64, GRAM_BYTES // (8 * len(gram)))
    buffer = np.zeros(len(gram) * size)
    for start in range(first, last, size):
        width = min(size, last - start)
        base = flat[offsets[reference] + start : offsets[reference] + start + width]
        for i in range(len(offsets)):
            row = buffer[i * size : i * size + width]
            if offsets[i] == ORIGIN:
                for c in range(width):
                    row[c] = -np.float64(base[c])
            elif offsets[i] == CENTRE:
                for c in range(width):
                    row[c] = np.float64(centre[start + c]) - np.float64(base[c])
            else:
                point = flat[offsets[i] + start : offsets[i] + start + width]
                for c in range(width):
                    row[c] = np.float64(point[c]) - np.float64(base[c])
        for i in range(0, len(gram), 3):
            for j in range(0, i + 1, 3):
                _tile(buffer, size, i, j, width, gram)


gram = _compiled(_gram)
