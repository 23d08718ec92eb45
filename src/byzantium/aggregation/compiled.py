"""The passes over the vectors on the CPU, by compiled kernels; `plain` defines what they compute.

Kernels release the GIL and are spread over as many threads as torch uses, its own if possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.aggregation import kernels, machine, network, sorting
from byzantium.aggregation import newton as newtons
from byzantium.aggregation.emit import DOUBLE, FLOAT
from byzantium.aggregation.plain import Rows
from byzantium.core import spread

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Result = TypeVar("Result")

REAL = {torch.float32: FLOAT, torch.float64: DOUBLE}
# For fewer values it does not pay to compile a sorting network of their own.
SMALL = 1 << 18
# A call is divided into PIECES pieces, each of LEAST to MOST values: fewer are computed before
# another thread has woken up. The number of threads has no influence, so that sums are the same to
# the bit.
PIECES, LEAST, MOST = 8, 1 << 19, 1 << 22
# Columns are divided at multiples of this.
GRAIN = 1024
# With fewer rows, a sum over a row would wait for its last addition.
FEW = 8
# Up to MOST_STRAIGHT rows a sorting network is code without a loop; for more it would take long to
# compile, and fit in no cache. Larger networks consist of parts with at most MOST_PART wires.
MOST_STRAIGHT, MOST_PART = 80, 24


def mixed(matrix: Tensor, rows: Rows, mixing: Array) -> Tensor:
    kernel, source = kernels.mix(REAL[matrix.dtype]), _Mixed(matrix, rows, mixing)
    m, d = len(mixing), matrix.shape[1]
    result = torch.empty(m, d, dtype=torch.float64)

    def part(first: int, last: int) -> None:
        kernel(*source.arguments(), first, last, result, d)

    _over_columns(part, len(source.shares), d)
    return result


def squared_norms(matrix: Tensor, rows: Rows) -> Array:
    n, d, real, addresses = len(rows), matrix.shape[1], REAL[matrix.dtype], _addresses(matrix, rows)
    kernel, lanes = kernels.squared_norms(real), machine.HOST.lanes(real)

    def sums_of(addresses: Integers, first: int, last: int) -> Array:
        sums = _room(len(addresses), lanes)
        kernel(addresses, len(addresses), first, last, sums)
        return sums.sum(axis=1)

    # Of few rows, several places are read at a time.
    places = max(1, FEW // max(n, 1))
    width = d // places
    starts = matrix.itemsize * width * np.arange(places)
    spread_out = (addresses[:, None] + starts).ravel()
    found = _sum(_over_columns(partial(sums_of, spread_out), len(spread_out), width))
    total: Array = found.reshape(n, places).sum(axis=1)
    return total if width * places == d else total + sums_of(addresses, width * places, d)


def gram(matrix: Tensor, rows: Rows, anchors: Sequence[Tensor | None], reference: int) -> Array:
    n, d, real = len(rows) + len(anchors), matrix.shape[1], REAL[matrix.dtype]
    size = kernels.gram_columns(n, d)
    vectors = [  # the origin is the same in all columns: it need not be longer
        matrix.new_zeros(size) if anchor is None else anchor.contiguous() for anchor in anchors
    ]
    addresses, advances = _addresses(matrix, rows), np.ones(n, dtype=np.int64)
    if anchors:
        addresses = np.append(addresses, [vector.data_ptr() for vector in vectors])
        advances[len(rows) :] = [anchor is not None for anchor in anchors]
    # The reference itself is at zero, and so are its products.
    base, others, m = int(addresses[reference]), _others(n, reference), n - 1
    addresses, advances = addresses[others], advances[others]

    if kernels.few(m):
        few = kernels.gram_of_few(real, m)

        def part(first: int, last: int) -> Array:
            products = _room(m, m)
            few(addresses, advances, base, first, last, products)
            return products

    else:
        tile = kernels.tile_of(m)
        many, stride = kernels.gram(real, tile), -(-m // tile) * tile

        def part(first: int, last: int) -> Array:
            block, products = _room(stride * size), _room(stride, stride)
            many(addresses, m, advances, base, first, last, block, size, products, stride)
            return products

    lower = _sum(_over_columns(part, n, d))[:m, :m]
    whole = np.zeros((n, n))
    whole[others[:, None], others] = np.where(_triangle(m), lower, lower.T)
    return whole


@lru_cache(maxsize=64)
def _others(n: int, one: int) -> Integers:
    return np.delete(np.arange(n), one)


@lru_cache(maxsize=64)
def _triangle(n: int) -> NDArray[np.bool_]:
    return np.tri(n, dtype=bool)


def combine(
    matrix: Tensor, rows: Rows, anchors: Sequence[Tensor | None], weights: Array, out: Tensor
) -> None:
    addresses, shares = _addresses(matrix, rows), weights[: len(rows)]
    # The centre comes last among the anchors, and is one more row; the origin adds nothing.
    centre = anchors[-1].contiguous() if anchors and anchors[-1] is not None else None
    if centre is not None:
        addresses, shares = np.append(addresses, centre.data_ptr()), np.append(shares, weights[-1])
    counting = shares != 0
    addresses, shares = addresses[counting], shares[counting]
    n, excess, kernel = len(shares), _excess(weights), kernels.weighted_sum(REAL[matrix.dtype])

    def part(first: int, last: int) -> None:
        kernel(addresses, n, shares, excess, first, last, out)

    _over_columns(part, max(n, 1), matrix.shape[1])


def central_mean(
    matrix: Tensor,
    rows: Rows,
    mixing: Array | None,
    kept: int,
    nearest: bool,
    out: Tensor,
    shares: Array | None = None,
) -> float:
    n, d, real = len(rows) if mixing is None else len(mixing), matrix.shape[1], REAL[matrix.dtype]
    everything = kept == n and mixing is None
    if everything and shares is not None:
        shares += d / n
        shares = None
    explained, lanes = shares is not None, machine.HOST.lanes(real)
    straight = n <= MOST_STRAIGHT and n * d >= SMALL and d >= lanes
    if straight:
        columns = sorting.straight(n, kept, nearest, real, explained)
        context = np.empty(0, dtype=np.int64)
    elif everything:
        columns, context = kernels.mean(real), np.array([n])
    else:
        most = MOST_PART if n * d >= SMALL else network.SINGLE
        columns = sorting.tabled(nearest, real, explained)
        context = _context(machine.HOST, n, kept, nearest, real, most)
    source = _Rows(matrix, rows) if mixing is None else _Mixed(matrix, rows, mixing)

    def directly(first: int, last: int) -> float:
        """Most are sorted as they come from the memory."""
        peak = _registers(matrix)
        columns(context, source.addresses, first, last, peak, out)
        return peak.max()

    if (straight or everything) and mixing is None and not explained:
        return float(np.max(_over_columns(directly, n, d)))

    blocks = (sorting.copied if mixing is None else sorting.mixed)(real, explained, not straight)
    counted, size = n if explained else 0, kernels.BLOCK // matrix.itemsize

    def part(first: int, last: int) -> tuple[float, Array]:
        peak, counts = _registers(matrix), (_registers(matrix, counted), _room(counted, lanes))
        room = _room(n * size), _room(n), _room(4 * size)
        also = (sorting.supplied(real), kept, *counts) if explained else ()
        given = columns, context, *room, peak, out, *also
        if straight and mixing is None:
            start, first = first, last - (last - first) % size
            sorting.direct(real)(*source.arguments(), start, first, *given)
        if first < last:
            blocks(*source.arguments(), first, last, *given)
        return peak.max(), sum(count.sum(axis=1, dtype=np.float64) for count in counts)

    peaks, supplied = zip(*_over_columns(part, n, d), strict=True)
    if shares is not None:
        shares += _sum(supplied) / kept
    return float(np.max(peaks))


def newton(gram: Array, n: int, near: float) -> tuple[Array, list[float]]:
    """What `newton.newton` finds: the weights of n rows; slope, determinant and corners there."""
    size, room = newtons.size_of(n), _room(newtons.room_of(n))
    newtons.newton()(np.ascontiguousarray(gram), len(gram), n, size, near, room)
    return room[newtons.LANES :][:n], room[:3].tolist()


def moments(matrix: Tensor, rows: Rows, mean: Tensor, deviation: Tensor) -> None:
    n, addresses, kernel = len(rows), _addresses(matrix, rows), kernels.moments(REAL[matrix.dtype])

    def part(first: int, last: int) -> None:
        kernel(addresses, n, first, last, mean, deviation, n, max(n - 1, 1))

    _over_columns(part, n, matrix.shape[1])


# -- what kernels are given --------------------------------------------------------------------


class _Rows:
    def __init__(self, matrix: Tensor, rows: Rows) -> None:
        self.addresses = _addresses(matrix, rows)

    def arguments(self) -> tuple[Any, ...]:
        return self.addresses, len(self.addresses)


class _Mixed(_Rows):
    """A matrix P as lists, and the rows that it mixes; see `kernels.Mixing`."""

    def __init__(self, matrix: Tensor, rows: Rows, mixing: Array) -> None:
        used = mixing.any(axis=0)  # a row without a share is left out
        super().__init__(matrix, rows[used])
        mixing, m = mixing[:, used], len(mixing)
        where, sources = mixing.nonzero()
        self.starts, self.sources = where.searchsorted(np.arange(m + 1)), sources.copy()
        self.shares, self.excess = mixing[where, sources], np.zeros(m)
        if matrix.dtype == torch.float64:
            self.excess[:] = [_excess(shares) for shares in mixing]
        self.columns = kernels.BLOCK // matrix.itemsize

    def arguments(self) -> tuple[Any, ...]:
        lists = self.starts, len(self.excess), self.sources, self.shares, self.excess
        return *super().arguments(), *lists, _room(len(self.addresses) * self.columns)


def _excess(shares: Array) -> float:
    """By how much shares that are to sum to one miss it; nothing, if that is not rounding."""
    excess = math.fsum([*shares.tolist(), -1.0])
    return excess if abs(excess) <= len(shares) * np.finfo(np.float64).eps else 0.0


@lru_cache(maxsize=64)
def _context(processor: machine.Processor, *arguments: Any) -> Integers:
    """The table of a network, whose parts are code for a processor."""
    return np.array(sorting.table(*arguments), dtype=np.int64)


def _addresses(matrix: Tensor, rows: Rows) -> Integers:
    """Where each row starts, whatever lies between the rows."""
    return rows * (matrix.stride(0) * matrix.itemsize) + matrix.data_ptr()


def _room(*shape: int) -> Array:
    """Zeros for a kernel to work with, from where a line of the cache begins."""
    size, line = math.prod(shape), kernels.LINE // 8
    room = np.zeros(size + line)
    start = -(room.__array_interface__["data"][0] // 8) % line
    return room[start : start + size].reshape(shape)


def _registers(matrix: Tensor, *shape: int) -> NDArray[Any]:
    """Room for vectors of numbers such as those of the matrix."""
    numbers = np.float32 if matrix.dtype == torch.float32 else np.float64
    return _room(*shape, machine.HOST.vector // 8).view(numbers)


def _sum(parts: Sequence[Array]) -> Array:
    """In order."""
    return parts[0] if len(parts) == 1 else np.sum(parts, axis=0)


def _over_columns(kernel: Callable[[int, int], Result], n: int, d: int) -> list[Result]:
    """kernel(first, last) for pieces that together cover the d columns of n rows."""
    values = min(max(n * d // PIECES, LEAST), MOST)
    step = GRAIN * -(-values // (GRAIN * n))
    if d <= step:
        return [kernel(0, d)]
    pieces = [(first, min(first + step, d)) for first in range(0, d, step)]
    return spread(kernel, pieces, torch.get_num_threads())
