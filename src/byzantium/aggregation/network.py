"""Sorting networks: fixed lists of comparators that bring out the wanted order statistics.

A comparator replaces the values on two wires by their minimum and their maximum, whatever they are,
so it works on many columns at once. Networks are built from halves, and each half is written down
before the next: what is compared was compared shortly before, and is still in a register.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

Pairs = list[tuple[int, int]]


class Comparator(NamedTuple):
    """The minimum goes to wire a, the maximum to wire b, unless nobody needs it."""

    a: int
    b: int
    low: bool
    high: bool


class Network(NamedTuple):
    """Row i is on wire i at first; in the end the wanted values are on the wires named."""

    comparators: tuple[Comparator, ...]
    wires: tuple[int, ...]


@lru_cache(maxsize=64)
def middle(n: int, first: int, last: int) -> Network:
    """The values of ranks first <= k < last among n, as a set."""
    below, above, half = first, n - last, n // 2
    if below + above > half:
        pairs, wires = _sorted(range(n))
        return Network(_pruned(pairs, wires[first:last], ()), tuple(wires[first:last]))
    # Of two sorted halves, a and b, the k lowest are the lower ones of the pairs of a_i and b_j
    # with i + j = k - 1: each element of a pair outranks all that stand below it, k - 1 in all.
    pairs_a, a = _sorted(range(half))
    pairs_b, b = _sorted(range(half, n))
    pairs = pairs_a + pairs_b
    pairs += [(a[i], b[below - 1 - i]) for i in range(below)]
    pairs += [(b[-1 - i], a[i - above]) for i in range(above)]
    wires = b + a[below : half - above]
    return Network(_pruned(pairs, wires, ()), tuple(wires))


@lru_cache(maxsize=64)
def in_order(n: int, summed: tuple[int, ...] = ()) -> Network:
    """All n values in order; but those of the ranks `summed` only as a set."""
    pairs, wires = _sorted(range(n))
    as_set = {wires[k] for k in summed}
    return Network(_pruned(pairs, as_set, set(wires) - as_set), tuple(wires))


def _pruned(
    pairs: Pairs, summed: Collection[int], needed: Collection[int]
) -> tuple[Comparator, ...]:
    """The comparators that matter, and which of their two results do.

    Going backwards, a wire is dropped, only summed, or needed as it is. A comparator of two dropped
    or of two only summed wires changes nothing.
    """
    wires = dict.fromkeys(summed, "summed") | dict.fromkeys(needed, "needed")
    kept = []
    for a, b in reversed(pairs):
        low, high = wires.get(a), wires.get(b)
        if low != high or low == "needed":
            kept.append(Comparator(a, b, low is not None, high is not None))
            wires[a] = wires[b] = "needed"
    return tuple(reversed(kept))


def _sorted(wires: Sequence[int]) -> tuple[Pairs, list[int]]:
    """Pairs of wires to compare, and the wires in the order that the values then have."""
    if len(wires) < 2:
        return [], list(wires)
    half = len(wires) // 2
    pairs_a, a = _sorted(wires[:half])
    pairs_b, b = _sorted(wires[half:])
    pairs, order = _merged(a, b)
    return pairs_a + pairs_b + pairs, order


def _merged(a: list[int], b: list[int]) -> tuple[Pairs, list[int]]:
    """Batcher's odd-even merge of two sorted lists (Knuth, TAOCP 3, 5.3.4)."""
    if not a or not b:
        return [], a + b
    if len(a) == len(b) == 1:
        return [(a[0], b[0])], [a[0], b[0]]
    pairs_even, even = _merged(a[::2], b[::2])
    pairs_odd, odd = _merged(a[1::2], b[1::2])
    # The lowest is even[0]; then come odd[i] and even[i + 1], two by two, in an order to be found.
    pairs = list(zip(odd, even[1:], strict=False))
    order = [even[0], *(wire for pair in pairs for wire in pair)]
    order += odd[len(pairs) :] + even[1 + len(pairs) :]
    return pairs_even + pairs_odd + pairs, order
