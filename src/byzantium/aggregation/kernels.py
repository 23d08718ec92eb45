"""The compiled loops over millions of columns. Importing this module imports numba.

Rows are read as pieces of one flat array, row i from offsets[i] on. A kernel works on the columns
first <= c < last, in blocks that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Columns worked on at a time: loops long enough to be fast, rows short enough for the cache.
BLOCK = 2048
# Bytes of centred rows multiplied at a time.
GRAM_BYTES = 256 << 10
# Where the offset of a row would stand, for points that are not rows of the matrix.
ORIGIN, CENTRE = -1, -2
# What a sum may be vectorised by. Not "fast": NaN and infinity keep their meaning.
SUMS = {"reassoc", "contract", "nsz"}


def _compiled(function: Callable[..., None], **options: Any) -> Callable[..., None]:
    """Compiled on first use and kept on disk, where there is a folder that can be written."""
    try:
        compiled = numba.njit(function, nogil=True, cache=True, **options)
    except RuntimeError:  # no such folder: each process compiles for itself
        compiled = numba.njit(function, nogil=True, **options)

    def call(*arguments: Any) -> None:
        try:
            compiled(*arguments)
        except OSError:  # compiled, but could not be written down; now it is in memory
            compiled(*arguments)

    return call


def _squared_norms(flat: Array, offsets: Array, total: Array, first: int, last: int) -> None:
    for i in range(len(offsets)):
        row = flat[offsets[i] + first : offsets[i] + last]
        square = 0.0
        for c in range(len(row)):
            square += np.float64(row[c]) * np.float64(row[c])
        total[i] = square


squared_norms = _compiled(_squared_norms, fastmath=SUMS)


@numba.njit
def _add(flat: Array, offsets: Array, start: int, shares: Array, out: Array) -> None:
    """Out += sum_i shares[i] * row i, from column `start` on; four rows at a time."""
    n, width = len(offsets), len(out)
    for i in range(0, n - n % 4, 4):
        a = flat[offsets[i] + start : offsets[i] + start + width]
        b = flat[offsets[i + 1] + start : offsets[i + 1] + start + width]
        c = flat[offsets[i + 2] + start : offsets[i + 2] + start + width]
        d = flat[offsets[i + 3] + start : offsets[i + 3] + start + width]
        for k in range(width):
            out[k] += (shares[i] * a[k] + shares[i + 1] * b[k]) + (
                shares[i + 2] * c[k] + shares[i + 3] * d[k]
            )
    for i in range(n - n % 4, n):
        a = flat[offsets[i] + start : offsets[i] + start + width]
        for k in range(width):
            out[k] += shares[i] * a[k]


def _combine(
    flat: Array,
    offsets: Array,
    weights: Array,
    centre: Array,
    on_centre: float,
    out: Array,
    first: int,
    last: int,
) -> None:
    total = np.empty(BLOCK)
    for start in range(first, last, BLOCK):
        width = min(BLOCK, last - start)
        total[:width] = 0
        if on_centre != 0:
            for c in range(width):
                total[c] = on_centre * centre[start + c]
        _add(flat, offsets, start, weights, total[:width])
        for c in range(width):
            out[start + c] = total[c]


combine = _compiled(_combine)


# -- order statistics --------------------------------------------------------------------------


@numba.njit(inline="always")
def _row(flat: Array, offsets: Array, buffer: Array, place: int, start: int, width: int) -> Array:
    """A block of an input row (place < 0) or of a spare row of the buffer."""
    if place < 0:
        offset = offsets[~place] + start
        return flat[offset : offset + width]
    return buffer[place * BLOCK : place * BLOCK + width]


def _central_mean(
    flat: Array,
    offsets: Array,
    starts: Array,
    sources: Array,
    shares: Array,
    comparators: Array,
    chosen: Array,
    places: int,
    kept: int,
    nearest: bool,
    out: Array,
    first: int,
    last: int,
) -> None:
    """Mix the rows (not at all where `starts` is empty), run a network, average what it brings."""
    mixes = len(starts) - 1
    rows = np.empty(max(mixes, 0) * BLOCK, flat.dtype) if mixes > 0 else flat
    offsets_of_rows = np.arange(mixes) * BLOCK if mixes > 0 else offsets
    buffer = np.empty(places * BLOCK, flat.dtype)
    total = np.empty(BLOCK, np.float64)
    median = np.empty(BLOCK, np.float64)
    count = len(chosen)
    for start in range(first, last, BLOCK):
        width = min(BLOCK, last - start)
        origin = start
        if mixes > 0:
            origin = 0
            rows[:] = 0
            for i in range(mixes):
                parts = slice(starts[i], starts[i + 1])
                mixed = rows[i * BLOCK : i * BLOCK + width]
                _add(flat, offsets[sources[parts]], start, shares[parts], mixed)
        for k in range(len(comparators)):
            a = _row(rows, offsets_of_rows, buffer, comparators[k, 0], origin, width)
            b = _row(rows, offsets_of_rows, buffer, comparators[k, 1], origin, width)
            # Never the rows just read: see Network.
            low = buffer[comparators[k, 2] * BLOCK : comparators[k, 2] * BLOCK + width]
            high = buffer[comparators[k, 3] * BLOCK : comparators[k, 3] * BLOCK + width]
            if comparators[k, 3] < 0:
                for c in range(width):
                    low[c] = a[c] if a[c] < b[c] else b[c]
            elif comparators[k, 2] < 0:
                for c in range(width):
                    high[c] = b[c] if a[c] < b[c] else a[c]
            else:
                for c in range(width):
                    x, y = a[c], b[c]
                    low[c] = x if x < y else y
                    high[c] = y if x < y else x
        total[:width] = 0
        if not nearest:
            for k in range(count):
                row = _row(rows, offsets_of_rows, buffer, chosen[k], origin, width)
                for c in range(width):
                    total[c] += row[c]
        else:
            a = _row(rows, offsets_of_rows, buffer, chosen[(count - 1) // 2], origin, width)
            b = _row(rows, offsets_of_rows, buffer, chosen[count // 2], origin, width)
            for c in range(width):
                median[c] = (np.float64(a[c]) + np.float64(b[c])) / 2
            # The window of `kept` sorted values slides up past k when value k + kept is nearer.
            for k in range(count):
                row = _row(rows, offsets_of_rows, buffer, chosen[k], origin, width)
                below = _row(rows, offsets_of_rows, buffer, chosen[max(k - kept, 0)], origin, width)
                above = _row(
                    rows, offsets_of_rows, buffer, chosen[min(k + kept, count - 1)], origin, width
                )
                always_enters, never_leaves = k < kept, k + kept >= count
                for c in range(width):
                    x, m = np.float64(row[c]), median[c]
                    enters = always_enters or x - m < m - below[c]
                    leaves = not never_leaves and above[c] - m < m - x
                    total[c] += x if enters and not leaves else 0.0
        for c in range(width):
            out[start + c] = total[c] / kept


central_mean = _compiled(_central_mean)


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
