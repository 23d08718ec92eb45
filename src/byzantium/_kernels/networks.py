"""Sorting networks: fixed lists of comparators that compute order statistics.

A comparator replaces the values on two wires by their minimum and their maximum, whatever they are,
so it works on many columns at once. Networks are built from halves, and each half is written down
before the next: what is compared was compared shortly before, and is still in a register.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple


class Part(NamedTuple):
    """Comparators among some wires.

    - `wires`: the wires.
    - `pairs`: the comparators, as indices into `wires`: the minimum goes to the first wire of a
      pair, the maximum to the second.
    - `wanted`: for each wire, whether its value matters afterwards.
    """

    wires: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    wanted: tuple[bool, ...]


class Network(NamedTuple):
    """A network: row i is on wire i at first, and in the end the results are on `wires`."""

    parts: tuple[Part, ...]
    wires: tuple[int, ...]


# The number of wires of a single comparator.
SINGLE = 2


@lru_cache(maxsize=64)
def middle(n: int, first: int, last: int, most: int = SINGLE) -> Network:
    """The values of ranks first <= k < last among n, as a set."""
    below, above, half = first, n - last, n // 2
    if below + above > half:
        parts, order = _sorted(range(n), most)
        wires = order[first:last]
    else:
        # Of two sorted halves, a and b, the k lowest are the lower ones of the pairs of a_i and b_j
        # with i + j = k - 1: each has i + j others below it in the two halves, and no more.
        parts_a, a = _sorted(range(half), most)
        parts_b, b = _sorted(range(half, n), most)
        parts = parts_a + parts_b
        parts += [_comparator(a[i], b[below - 1 - i]) for i in range(below)]
        parts += [_comparator(b[-1 - i], a[i - above]) for i in range(above)]
        wires = b + a[below : half - above]
    return Network(_pruned(parts, wires, ()), tuple(wires))


@lru_cache(maxsize=64)
def in_order(n: int, summed: tuple[int, ...] = (), most: int = SINGLE) -> Network:
    """All n values in order; but those of the ranks `summed` only as a set."""
    parts, wires = _sorted(range(n), most)
    as_set = {wires[k] for k in summed}
    return Network(_pruned(parts, as_set, set(wires) - as_set), tuple(wires))


def _pruned(
    parts: list[Part], summed: Collection[int], needed: Collection[int]
) -> tuple[Part, ...]:
    """The parts that matter, and which of their results do.

    Going backwards, a wire is dropped, only summed, or needed as it is. Comparators among dropped
    wires alone, or among only summed ones, change nothing.
    """
    state = dict.fromkeys(summed, "summed") | dict.fromkeys(needed, "needed")
    remaining = []
    for part in reversed(parts):
        states = [state.get(wire) for wire in part.wires]
        if states[0] == "needed" or len(set(states)) > 1:
            remaining.append(part._replace(wanted=tuple(one is not None for one in states)))
            state |= dict.fromkeys(part.wires, "needed")
    return tuple(reversed(remaining))


def _comparator(a: int, b: int) -> Part:
    return Part((a, b), ((0, 1),), (True, True))


def _sorted(wires: Sequence[int], most: int) -> tuple[list[Part], list[int]]:
    """The parts of a sorting network, and the wires in the order of their values."""
    n, half = len(wires), len(wires) // 2
    if n < 2:
        return [], list(wires)
    if SINGLE < n <= most:
        return _as_part(wires, *_sorted(range(n), SINGLE))
    parts_a, a = _sorted(wires[:half], most)
    parts_b, b = _sorted(wires[half:], most)
    parts, order = _merged(a, b, most)
    return parts_a + parts_b + parts, order


def _merged(a: list[int], b: list[int], most: int) -> tuple[list[Part], list[int]]:
    """Batcher's odd-even merge of two sorted lists (Knuth, TAOCP 3, 5.3.4)."""
    p, n = len(a), len(a) + len(b)
    if not a or not b:
        return [], a + b
    if n == 2:
        return [_comparator(a[0], b[0])], [a[0], b[0]]
    if n <= most:
        return _as_part(a + b, *_merged(list(range(p)), list(range(p, n)), SINGLE))
    parts_even, even = _merged(a[::2], b[::2], most)
    parts_odd, odd = _merged(a[1::2], b[1::2], most)
    # The lowest is even[0]; then come odd[i] and even[i + 1], two by two, in an order to be found.
    pairs = list(zip(odd, even[1:], strict=False))
    order = [even[0], *(wire for pair in pairs for wire in pair)]
    order += odd[len(pairs) :] + even[1 + len(pairs) :]
    return parts_even + parts_odd + [_comparator(*pair) for pair in pairs], order


def _as_part(
    wires: Sequence[int], comparators: list[Part], order: list[int]
) -> tuple[list[Part], list[int]]:
    """A network of wires 0, 1, ... as one part of a larger one."""
    pairs = tuple((part.wires[0], part.wires[1]) for part in comparators)
    return [Part(tuple(wires), pairs, (True,) * len(wires))], [wires[k] for k in order]
