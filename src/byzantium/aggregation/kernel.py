"""The compiled kernel of the coordinate-wise rules. Importing this module imports numba."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Columns sorted at a time: the rows of a block stay in the cache, and the loops over it are long.
BLOCK = 2048


def _row(flat: Array, offsets: Array, buffer: Array, place: int, start: int, width: int) -> Array:
    """A block of an input row (place < 0) or of a spare row of the buffer."""
    if place < 0:
        offset = offsets[~place] + start
        return flat[offset : offset + width]
    return buffer[place * BLOCK : place * BLOCK + width]


def _central_mean(
    flat: Array,
    offsets: Array,
    comparators: Array,
    chosen: Array,
    places: int,
    kept: int,
    nearest: bool,
    out: Array,
    first: int,
    last: int,
) -> None:
    """See `order.Network`; fills out[first:last]. Sums are float64, whatever the input is."""
    buffer = np.empty(places * BLOCK, flat.dtype)
    total = np.empty(BLOCK, np.float64)
    median = np.empty(BLOCK, np.float64)
    count = len(chosen)
    for start in range(first, last, BLOCK):
        width = min(BLOCK, last - start)
        for k in range(len(comparators)):
            a = _row(flat, offsets, buffer, comparators[k, 0], start, width)
            b = _row(flat, offsets, buffer, comparators[k, 1], start, width)
            # Targets are never inputs; a separate loop for each case keeps it free of branches.
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
                row = _row(flat, offsets, buffer, chosen[k], start, width)
                for c in range(width):
                    total[c] += row[c]
        else:
            a = _row(flat, offsets, buffer, chosen[(count - 1) // 2], start, width)
            b = _row(flat, offsets, buffer, chosen[count // 2], start, width)
            for c in range(width):
                median[c] = (np.float64(a[c]) + np.float64(b[c])) / 2
            # The window of `kept` sorted values slides up past k when value k + kept is nearer.
            for k in range(count):
                row = _row(flat, offsets, buffer, chosen[k], start, width)
                below = _row(flat, offsets, buffer, chosen[max(k - kept, 0)], start, width)
                above = _row(flat, offsets, buffer, chosen[min(k + kept, count - 1)], start, width)
                always_enters, never_leaves = k < kept, k + kept >= count
                for c in range(width):
                    x, m = np.float64(row[c]), median[c]
                    enters = always_enters or x - m < m - below[c]
                    leaves = not never_leaves and above[c] - m < m - x
                    total[c] += x if enters and not leaves else 0.0
        for c in range(width):
            out[start + c] = total[c] / kept


_row = numba.njit(_row, inline="always")
try:
    _cached = numba.njit(_central_mean, nogil=True, cache=True)
except RuntimeError:  # no folder that could hold the compiled code: compile in each process
    _cached = numba.njit(_central_mean, nogil=True)


def central_mean(*arguments: Any) -> None:
    try:
        _cached(*arguments)
    except OSError:  # compiled, but could not be written down; now it is in memory
        _cached(*arguments)
