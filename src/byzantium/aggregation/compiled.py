"""The passes over the vectors on the CPU, by compiled kernels; `plain` says what they mean.

Kernels release the GIL and are spread over threads of our own, as many as torch uses; those of
torch are not ours to use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.aggregation import kernels, machine, sorting
from byzantium.aggregation.emit import DOUBLE, FLOAT
from byzantium.core.threads import spread

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Result = TypeVar("Result")

REAL = {torch.float32: FLOAT, torch.float64: DOUBLE}
# Below this many values a call is over before another thread has woken up, or a kernel of its own
# has been compiled.
SMALL = 1 << 18
# A call is divided into this many pieces, or into pieces of this many values if these are more. It
# does not matter how many threads there are: sums stay the same, to the bit.
PIECES, PIECE = 16, 1 << 22
# Columns are divided at multiples of this.
GRAIN = 1024
# Beyond so many rows, a network without a loop takes long to compile, and fits in no cache.
MOST_STRAIGHT = 64


def mixed(matrix: Tensor, rows: Tensor, mixing: Array) -> Tensor:
    m, d = len(mixing), matrix.shape[1]
    kernel, given = kernels.mix(REAL[matrix.dtype]), _Mixing(matrix, rows, mixing)
    result = torch.empty(m, d, dtype=torch.float64)

    def part(first: int, last: int) -> None:
        wide = _room(given.n * kernels.BLOCK)
        kernel(*given.arguments, _address(wide), first, last, result.data_ptr(), d)

    _over_columns(part, len(given.shares), d)
    return result


def squared_norms(matrix: Tensor, rows: Tensor) -> Array:
    n, real, addresses = len(rows), REAL[matrix.dtype], _addresses(matrix, rows)
    kernel, lanes = kernels.squared_norms(real), machine.HOST.lanes(real)

    def part(first: int, last: int) -> Array:
        sums = _room(n, lanes)
        kernel(_address(addresses), n, first, last, _address(sums))
        return sums.sum(axis=1)

    return _sum(_over_columns(part, n, matrix.shape[1]))


def gram(matrix: Tensor, rows: Tensor, anchors: Sequence[Tensor | None], reference: int) -> Array:
    points, d, real = len(rows) + len(anchors), matrix.shape[1], REAL[matrix.dtype]
    tile = kernels.tile_of(points)
    stride, size = -(-points // tile) * tile, kernels.gram_columns(points, d)
    origin = matrix.new_zeros(size)  # the same in all columns: it need not be longer
    vectors = [origin if anchor is None else anchor.contiguous() for anchor in anchors]
    addresses = _addresses(matrix, rows)
    base = int(addresses[reference])
    addresses = np.append(addresses, np.array([v.data_ptr() for v in vectors], dtype=np.int64))
    advances = np.ones(points, dtype=np.int64)
    advances[len(rows) :] = [anchor is not None for anchor in anchors]
    kernel = kernels.gram(real, tile)

    def part(first: int, last: int) -> Array:
        block, products = _room(stride * size), _room(stride, stride)
        given = (_address(addresses), points, _address(advances), base, first, last)
        kernel(*given, _address(block), size, _address(products), stride)
        return products

    lower = np.tril(_sum(_over_columns(part, points, d))[:points, :points])
    return lower + np.tril(lower, -1).T


def combine(
    matrix: Tensor, rows: Tensor, anchors: Sequence[Tensor | None], weights: Array, out: Tensor
) -> None:
    addresses, shares = _addresses(matrix, rows), weights[: len(rows)]
    # The centre comes last among the anchors, and is one more row; the origin adds nothing.
    centre = anchors[-1].contiguous() if anchors and anchors[-1] is not None else None
    if centre is not None:
        addresses, shares = np.append(addresses, centre.data_ptr()), np.append(shares, weights[-1])
    counts = shares.nonzero()[0]
    if not len(counts):
        out.zero_()
        return
    addresses, shares = addresses[counts], shares[counts]
    n, excess, kernel = len(counts), _excess(weights), kernels.weighted_sum(REAL[matrix.dtype])

    def part(first: int, last: int) -> None:
        given = (_address(addresses), n, _address(shares), excess)
        kernel(*given, first, last, out.data_ptr())

    _over_columns(part, n, matrix.shape[1])


def central_mean(
    matrix: Tensor, rows: Tensor, mixing: Array | None, kept: int, nearest: bool, out: Tensor
) -> Array:
    n, d, real = len(rows) if mixing is None else len(mixing), matrix.shape[1], REAL[matrix.dtype]
    lanes, straight = machine.HOST.lanes(real), n <= MOST_STRAIGHT and n * d >= SMALL
    if straight:
        columns, context = sorting.straight(n, kept, nearest, real), np.empty(0, dtype=np.int64)
        size = kernels.BLOCK
    else:
        columns, context = sorting.tabled(nearest, real), _context(n, kept, nearest)
        size = sorting.STRIP // matrix.itemsize
    if mixing is None:
        blocks, addresses = sorting.copied(real, size), _addresses(matrix, rows)
    else:
        blocks, given = sorting.mixed(real, size), _Mixing(matrix, rows, mixing)

    def part(first: int, last: int) -> Array:
        sums = _room(n, lanes)
        if straight and mixing is None:  # whole vectors are sorted as they come from the memory
            start, first = first, last - (last - first) % lanes
            where = _address(addresses), start, first
            columns(_address(context), *where, _address(sums), out.data_ptr())
        if first < last:
            wide = _room(0 if mixing is None else given.n * size)
            source = (
                (_address(addresses), n) if mixing is None else (*given.arguments, _address(wide))
            )
            room = [context, _room(n * size), _room(n), sums, _room(size)]
            blocks(*source, first, last, columns.address, *map(_address, room), out.data_ptr())
        return sums.sum(axis=1)

    return _sum(_over_columns(part, n, d))


def moments(matrix: Tensor, rows: Tensor, mean: Tensor, deviation: Tensor) -> None:
    n, d, addresses = len(rows), matrix.shape[1], _addresses(matrix, rows)
    kernel, out = kernels.moments(REAL[matrix.dtype]), (mean.data_ptr(), deviation.data_ptr())

    def part(first: int, last: int) -> None:
        kernel(_address(addresses), n, first, last, *out, n, max(n - 1, 1))

    _over_columns(part, n, d)


# -- what kernels are given --------------------------------------------------------------------


class _Mixing:
    """A matrix P as lists, and the rows that it mixes; see `kernels.Mixing`."""

    def __init__(self, matrix: Tensor, rows: Tensor, mixing: Array) -> None:
        used = mixing.any(axis=0)  # a row without a share is left out
        mixing, addresses = mixing[:, used], _addresses(matrix, rows)[used]
        m, self.n = mixing.shape
        where, sources = map(np.ascontiguousarray, mixing.nonzero())
        starts, excess = where.searchsorted(np.arange(m + 1)), np.zeros(m)
        if matrix.dtype == torch.float64:
            excess[:] = [_excess(shares) for shares in mixing]
        self.shares = mixing[where, sources]
        self._kept = addresses, starts, sources, self.shares, excess
        first, second, *lists = map(_address, self._kept)
        self.arguments = first, self.n, second, m, *lists


def _excess(shares: Array) -> float:
    """By how much shares that are to sum to one miss it; nothing, if that is not rounding."""
    excess = math.fsum([*shares.tolist(), -1.0])
    return excess if abs(excess) <= len(shares) * np.finfo(np.float64).eps else 0.0


@lru_cache(maxsize=64)
def _context(n: int, kept: int, nearest: bool) -> Integers:
    """A network as `sorting.tabled` takes it."""
    comparators, wires = sorting.network(n, kept, nearest)
    pairs = [wire for comparator in comparators for wire in comparator[:2]]
    return np.array([n, kept, len(comparators), *wires, *pairs], dtype=np.int64)


def _addresses(matrix: Tensor, rows: Tensor) -> Integers:
    """Where each row starts, whatever lies between the rows."""
    addresses: Integers = (rows * (matrix.stride(0) * matrix.itemsize)).numpy()
    return addresses + matrix.data_ptr()


def _address(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    return int(array.__array_interface__["data"][0])


def _room(*shape: int) -> Array:
    """Zeros for a kernel to work with, from where a line of the cache begins."""
    size, line = math.prod(shape), kernels.LINE // 8
    room = np.zeros(size + line)
    start = -(_address(room) // 8) % line
    return room[start : start + size].reshape(shape)


def _sum(parts: Sequence[Array]) -> Array:
    """In order."""
    return parts[0] if len(parts) == 1 else np.sum(parts, axis=0)


def _over_columns(kernel: Callable[[int, int], Result], n: int, d: int) -> list[Result]:
    """kernel(first, last) for pieces that together cover the d columns of n rows."""
    if n * d < SMALL:
        return [kernel(0, d)]
    values = min(max(n * d // PIECES, SMALL // 2, 1), PIECE)
    step = GRAIN * -(-values // (GRAIN * n))
    pieces = [(first, min(first + step, d)) for first in range(0, d, step)]
    return spread(kernel, pieces, torch.get_num_threads())
