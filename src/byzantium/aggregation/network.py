"""Sorting networks: fixed lists of comparators that bring out the wanted order statistics.

A comparator replaces two values by their minimum and their maximum, whatever they are, so it runs
over whole rows of columns at once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Network(NamedTuple):
    """comparators: (k, 4) of places a, b, low, high: read a and b, write their minimum and maximum.

    A place p >= 0 is one of `places` spare rows; p < 0 is input row ~p, which is thus read once and
    never copied; as a target, -1 means that nobody needs the value. A comparator never writes to
    the places it reads: in place, the minimum would become a masked store, several times slower.
    chosen: the places of the wanted values.
    """

    comparators: NDArray[np.int64]
    chosen: NDArray[np.int64]
    places: int


@lru_cache(maxsize=64)
def network(n: int, first: int, last: int, *, in_order: bool) -> Network:
    """Bring out the values of ranks first <= k < last among n, sorted or just as a set."""
    comparators: list[tuple[int, int, int, int]] = []
    place = [~i for i in range(n)]
    spare: list[int] = []
    places = 0

    def take() -> int:
        nonlocal places
        if spare:
            return spare.pop()  # the last one freed is still in the cache
        places += 1
        return places - 1

    for a, b, low_needed, high_needed in _pruned(n, first, last, in_order=in_order):
        read = place[a], place[b]
        place[a] = take() if low_needed else -1
        place[b] = take() if high_needed else -1
        comparators.append((*read, place[a], place[b]))
        spare.extend(p for p in read if p >= 0)
    table = np.array(comparators, dtype=np.int64).reshape(-1, 4)
    return Network(table, np.array(place[first:last], dtype=np.int64), max(places, 1))


def _pruned(n: int, first: int, last: int, *, in_order: bool) -> list[tuple[int, int, bool, bool]]:
    """The comparators that matter for the wanted ranks, and which of their two results do.

    Going backwards, a wire is dropped, only summed, or needed as it is. A comparator of two dropped
    or of two only summed wires changes nothing.
    """
    dropped, summed, needed = range(3)
    wire = [(needed if in_order else summed) if first <= k < last else dropped for k in range(n)]
    kept = []
    for a, b in reversed(_merge_exchange(n)):
        if wire[a] == wire[b] != needed:
            continue
        kept.append((a, b, wire[a] != dropped, wire[b] != dropped))
        wire[a] = wire[b] = needed
    return kept[::-1]


def _merge_exchange(n: int) -> list[tuple[int, int]]:
    """Batcher's merge exchange sorts any number of values (Knuth, TAOCP 3, 5.2.2, algorithm M)."""
    comparators = []
    top = 1 << max(0, (n - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, distance = top, 0, p
        while True:
            comparators += [(i, i + distance) for i in range(n - distance) if i & p == r]
            if q == p:
                break
            q, r, distance = q // 2, p, q - p
        p //= 2
    return comparators
