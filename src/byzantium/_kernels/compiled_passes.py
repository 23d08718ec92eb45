"""The passes over vectors on the CPU, by compiled kernels; `torch_passes` defines their results.

Kernels release the GIL and are shared by as many threads as torch uses, its own if possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium._kernels import compiler as machine
from byzantium._kernels import conjugate_gradients
from byzantium._kernels import networks as network
from byzantium._kernels import newton as newtons
from byzantium._kernels import order_statistics as sorting
from byzantium._kernels import subset_sums as subsets
from byzantium._kernels import sums as kernels
from byzantium._kernels import torch_passes as plain
from byzantium._kernels import weighted_statistics as weighted
from byzantium._kernels.conjugate_gradients import Minimum
from byzantium._kernels.ir import DOUBLE, FLOAT
from byzantium._kernels.schedule import MOST, Integers, Pieces, piece_arguments, scratch_memory
from byzantium._kernels.torch_passes import Rows

Array = NDArray[np.float64]

REAL = {torch.float32: FLOAT, torch.float64: DOUBLE}
# For fewer values it is not worth the time to compile a sorting network for their number.
SMALL = 1 << 18
# With so many rows, their products take more memory than the pieces of the columns.
MANY = 1024
# Of many rows, so many columns are multiplied at a time, and so many tiles of rows by one thread.
WIDTH, GROUP = 512, 8
# With fewer rows, a sum over one row would wait for its previous addition.
FEW = 8
# Up to MOST_STRAIGHT rows a sorting network is code without a loop; for more it would take long to
# compile, and would not fit in a cache. Larger networks have parts with at most MOST_PART wires.
MOST_STRAIGHT, MOST_PART = 128, 24
# The same for rows with weights, whose networks are three times as much code: for more than
# FEW_WEIGHTED rows it takes seconds to compile, and pays for MANY_WEIGHTED values.
MOST_WEIGHTED, FEW_WEIGHTED, MANY_WEIGHTED = 128, 64, 1 << 24
# All weights of a mean together: as whole numbers, their sum is exact.
WHOLE = 1 << 52
# Sums that are sorted are formed in registers if they load each row so many times on average.
MOST_SUMMED = 2


def mixed(matrix: Tensor, rows: Rows, mixing: Array) -> Tensor:
    source, (m, d) = _Mixed(matrix, rows, mixing), (len(mixing), matrix.shape[1])
    result = torch.empty(m, d, dtype=torch.float64)
    pieces = Pieces(len(source.shares), d)
    pieces.call(kernels.mix(REAL[matrix.dtype]), *source.arguments(pieces), result, d)
    return result


def squared_norms(matrix: Tensor, rows: Rows) -> Array:
    n, d, real, addresses = len(rows), matrix.shape[1], REAL[matrix.dtype], _addresses(matrix, rows)
    kernel, lanes = kernels.squared_norms(real), machine.HOST.lanes(real)
    # Few rows are read at several places at a time.
    places = max(1, FEW // max(n, 1))
    width = d // places
    starts = matrix.itemsize * width * np.arange(places)
    starts_of_parts = (addresses[:, None] + starts).ravel()
    pieces = Pieces(len(starts_of_parts), width)
    sums = pieces.per_piece(len(starts_of_parts), lanes)
    pieces.call(kernel, starts_of_parts, len(starts_of_parts), sums)
    total: Array = sums.numbers.sum(axis=2).sum(axis=0).reshape(n, places).sum(axis=1)
    if width * places < d:
        rest = scratch_memory(n, lanes)
        kernel(addresses, n, width * places, d, rest)
        total += rest.sum(axis=1)
    return total


def gram(matrix: Tensor, rows: Rows, anchors: Sequence[Tensor | None], reference: int) -> Array:
    n, d, real = len(rows) + len(anchors), matrix.shape[1], REAL[matrix.dtype]
    size = kernels.gram_columns(n, d) if n < MANY else WIDTH
    vectors = [  # the origin is the same in all columns: it need not be longer
        matrix.new_zeros(size) if anchor is None else anchor.contiguous() for anchor in anchors
    ]
    addresses, advances = _addresses(matrix, rows), np.ones(n, dtype=np.int64)
    if anchors:
        addresses = np.append(addresses, [vector.data_ptr() for vector in vectors])
        advances[len(rows) :] = [anchor is not None for anchor in anchors]
    if n >= MANY:
        return _gram_of_many(real, addresses, advances, reference, d)
    # The reference itself is at zero, and so are its products.
    base, others, m = int(addresses[reference]), _others(n, reference), n - 1
    addresses, advances = addresses[others], advances[others]
    # So many values that the products of a piece take a thirty-second of their memory.
    pieces = Pieces(n, d, most=max(MOST, 64 * n * n))
    if kernels.few(m):
        products = pieces.per_piece(m, m)
        pieces.call(kernels.gram_of_few(real, m), addresses, advances, base, products)
    else:
        tile = kernels.tile_of(m)
        stride = -(-m // tile) * tile
        products, block = pieces.per_piece(stride, stride), pieces.per_thread(stride * size)
        arguments = addresses, m, advances, base, block, size, products, stride
        pieces.call(kernels.gram(real, tile), *arguments)
    lower = products.numbers.sum(axis=0)[:m, :m]
    whole = np.zeros((n, n))
    whole[others[:, None], others] = np.where(_triangle(m), lower, lower.T)
    return whole


def _gram_of_many(
    real: str, addresses: Integers, advances: Integers, reference: int, d: int
) -> Array:
    """The same, where matrices of n x n are large beside the rows: there is one for all threads.

    Threads take rows of the products, instead of columns of the rows.
    """
    n, tile, base = len(addresses), kernels.tile_of(len(addresses)), int(addresses[reference])
    padded = -(-n // tile) * tile
    # Products with rows that fill up the last tile are zero, and are added to those of its others.
    products = scratch_memory(padded * n + tile)
    block = scratch_memory(padded, WIDTH)
    rows, groups = Pieces.of(n, GROUP), Pieces.of(padded, GROUP * tile)
    for start in range(0, d, WIDTH):
        end = min(start + WIDTH, d)
        filled = addresses, advances, base, start, end, block, WIDTH
        rows.call(kernels.differences(real), *filled)
        groups.call(kernels.gram_of_many(tile), block, WIDTH, end - start, products, n)
    whole: Array = products[: n * n].reshape(n, n)
    for first in range(0, n, WIDTH):
        last = min(first + WIDTH, n)
        square = whole[first:last, first:last]
        square[:] = np.where(_triangle(last - first), square, square.T)
        whole[first:last, last:] = whole[last:, first:last].T
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
    # The center comes last among the anchors, and is one more row; the origin adds nothing.
    center = anchors[-1].contiguous() if anchors and anchors[-1] is not None else None
    if center is not None:
        addresses, shares = np.append(addresses, center.data_ptr()), np.append(shares, weights[-1])
    counting = shares != 0
    addresses, shares = addresses[counting], shares[counting]
    kernel = kernels.weighted_sum(REAL[matrix.dtype])
    pieces = Pieces(max(len(shares), 1), matrix.shape[1])
    pieces.call(kernel, addresses, len(shares), shares, _excess(weights), out)


def central_mean(
    matrix: Tensor,
    rows: Rows,
    mixing: Array | None,
    count: int,
    nearest: bool,
    out: Tensor,
    shares: Array | None = None,
) -> float:
    n, d, real = len(rows) if mixing is None else len(mixing), matrix.shape[1], REAL[matrix.dtype]
    everything = count == n and mixing is None
    if everything and shares is not None:
        shares += d / n
        shares = None
    explained, lanes = shares is not None, machine.HOST.lanes(real)
    source = _source(matrix, rows, mixing)
    straight = n <= MOST_STRAIGHT and n * d >= SMALL and d >= lanes
    summed = straight and not explained and isinstance(source, _Mixed) and source.few
    pieces = Pieces(len(source.addresses) if summed else n, d)
    numbers = np.float32 if matrix.dtype == torch.float32 else np.float64
    peaks = pieces.per_thread(lanes, dtype=numbers)

    def largest() -> float:
        """The largest magnitude of the rows and of their mixtures; infinity if one is not read."""
        return float(peaks.numbers.max()) if len(source.addresses) == len(rows) else math.inf

    if isinstance(source, _Mixed) and summed:
        table, places = source.by_place()
        columns = sorting.straight(n, count, nearest, real, explained, source.size)
        pieces.call(columns, table, places, peaks, out)
        return largest()

    if straight:
        columns = sorting.straight(n, count, nearest, real, explained)
        context = np.empty(0, dtype=np.int64)
    elif everything:
        columns, context = kernels.mean(real, False), np.array([n])
    else:
        most = MOST_PART if n * d >= SMALL else network.SINGLE
        columns = sorting.tabled(nearest, real, explained)
        context = _context(machine.HOST, n, count, nearest, real, most)
    if (straight or everything) and mixing is None and not explained:
        pieces.call(columns, context, source.addresses, peaks, out)  # without a copy
        return float(peaks.numbers.max())

    size = kernels.BLOCK // matrix.itemsize
    scratch = (
        pieces.per_thread(n * size, dtype=numbers),
        pieces.per_thread(n),
        pieces.per_thread(4 * size, dtype=numbers),
    )
    arguments: tuple[Any, ...] = *source.arguments(pieces), columns, context, *scratch, peaks, out
    if explained:
        within, changes = pieces.per_piece(n, lanes, dtype=numbers), pieces.per_piece(n, lanes)
        arguments = *arguments, sorting.supplied(real), count, within, changes
    if mixing is None:
        blocks = sorting.copied(real, explained, not straight)
    else:
        blocks = sorting.mixed(real, explained, not straight, source.type)
    if straight and mixing is None:  # without a copy, except for the last columns
        whole = d - d % size
        pieces.call(sorting.direct(real), *arguments, end=whole)
        blocks(*piece_arguments(blocks, whole, d, arguments))
    else:
        pieces.call(blocks, *arguments)
    if shares is not None:
        counts = within.numbers.sum(axis=(0, 2), dtype=np.float64)
        shares += (counts + changes.numbers.sum(axis=(0, 2))) / count
    return largest()


def weighted_mean(
    matrix: Tensor,
    rows: Rows,
    mixing: Array | None,
    weights: Array,
    kept: float,
    nearest: bool,
    out: Tensor,
    shares: Array | None = None,
) -> float:
    n, d, real = len(weights), matrix.shape[1], REAL[matrix.dtype]
    lanes, everything = machine.HOST.lanes(real), kept == 1 and mixing is None
    straight = d >= lanes and _worth_a_network(n, d)
    if not straight and not everything:
        return plain.weighted_mean(matrix, rows, mixing, weights, kept, nearest, out, shares)
    if everything:
        context, many = np.rint(weights * WHOLE).view(np.int64), n > MOST_STRAIGHT
        if many or n * d < SMALL or d < lanes:
            columns, context = kernels.mean(real, True), np.append(n, context)
        else:
            columns = weighted.mean(n, real)
        if shares is not None:
            shares += d * weights
    else:
        median = not weighted.keeps_any(n, kept, real)
        columns = weighted.straight(n, nearest and not median, median, real)
        context = weighted.context(weights, kept, nearest, real)
        if shares is not None:
            _add_shares(matrix, rows, mixing, weights, 0 if median else kept, nearest, shares)
    pieces, numbers = Pieces(n, d), np.float32 if matrix.dtype == torch.float32 else np.float64
    peaks = pieces.per_thread(lanes, dtype=numbers)
    if mixing is None:
        pieces.call(columns, context, _addresses(matrix, rows), peaks, out)
        return float(peaks.numbers.max())
    size, source = kernels.BLOCK // matrix.itemsize, _Mixed(matrix, rows, mixing)
    scratch = (
        pieces.per_thread(n * size, dtype=numbers),
        pieces.per_thread(n),
        pieces.per_thread(4 * size, dtype=numbers),
    )
    pieces.call(
        sorting.mixed(real, False, False),
        *(*source.arguments(pieces), columns, context, *scratch, peaks, out),
    )
    return float(peaks.numbers.max())


def _worth_a_network(n: int, d: int) -> bool:
    """Whether a network of weighted rows is worth the time to compile it."""
    return n <= MOST_WEIGHTED and n * d >= (SMALL if n <= FEW_WEIGHTED else MANY_WEIGHTED)


def _add_shares(
    matrix: Tensor,
    rows: Rows,
    mixing: Array | None,
    weights: Array,
    kept: float,
    nearest: bool,
    shares: Array,
) -> None:
    """Add how much of each column's result each row of P X supplied."""
    n, real = len(weights), REAL[matrix.dtype]
    columns = weighted.straight(n, nearest and kept > 0, not kept, real, True)
    numbers, lanes = np.float32 if real == FLOAT else np.float64, machine.HOST.lanes(real)
    for _, block in plain.mixed_blocks(matrix, rows, mixing):
        tail = max(0, lanes - block.shape[1])
        block, width = torch.nn.functional.pad(block, (0, tail)), block.shape[1] + tail
        bounds, pieces = torch.empty(3, width, dtype=torch.float64), Pieces(n, width)
        context = weighted.context(weights, kept, nearest, real, width)
        peaks = pieces.per_thread(lanes, dtype=numbers)
        pieces.call(columns, context, _addresses(block, np.arange(n)), peaks, bounds)
        last = width - tail
        shares += weighted.supplied(block[:, :last], bounds[:, :last], weights, kept, nearest)


def newton(gram: Array, counts: Array, near: float) -> Minimum | None:
    """The point at which `newton.newton` ends, or that of many rows."""
    n = len(counts)
    if n >= conjugate_gradients.MANY:
        return conjugate_gradients.newton(gram[:n, :n], counts, near)
    size, scratch = newtons.size_of(n), scratch_memory(newtons.scratch_size(n))
    stride, between = (step // gram.itemsize for step in gram.strides)
    if between != 1:
        gram, stride = np.ascontiguousarray(gram), gram.shape[1]
    address = int(gram.__array_interface__["data"][0])  # its rows may lie apart
    newtons.newton()(address, stride, counts, n, size, near, scratch)
    return Minimum(scratch[newtons.LANES :][:n], *scratch[:3].tolist())


def moments(matrix: Tensor, rows: Rows, mean: Tensor, deviation: Tensor) -> None:
    n, addresses, kernel = len(rows), _addresses(matrix, rows), kernels.moments(REAL[matrix.dtype])
    Pieces(n, matrix.shape[1]).call(kernel, addresses, n, mean, deviation, n, max(n - 1, 1))


# -- arguments of kernels ----------------------------------------------------------------------


def _source(matrix: Tensor, rows: Rows, mixing: Array | None) -> _Rows:
    if mixing is None:
        return _Rows(matrix, rows)
    many = len(rows) >= MANY and matrix.dtype == torch.float32
    if many and subsets.saves_work(mixing) and subsets.averages(mixing):
        return _Subsets(matrix, rows, mixing)
    return _Mixed(matrix, rows, mixing)


class _Rows:
    type: type[kernels.Mixing] | type[subsets.SubsetSums] = kernels.Mixing

    def __init__(self, matrix: Tensor, rows: Rows) -> None:
        self.addresses = _addresses(matrix, rows)

    def arguments(self, pieces: Pieces) -> tuple[Any, ...]:
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
        # The most rows of a sum, and whether all sums have few, as those of buckets have.
        self.size = int(np.diff(self.starts).max(initial=0))
        self.few = 0 < m * self.size <= MOST_SUMMED * len(self.addresses)

    def by_place(self) -> tuple[Integers, Integers]:
        """The context and the rows of `sorting.straight`; short sums are filled up with zeros."""
        m, size = len(self.excess), self.size
        lengths = np.diff(self.starts)
        places = np.repeat(np.arange(m) * size - self.starts[:-1], lengths)
        places += np.arange(len(self.sources))
        shares, sources = np.zeros(m * size), np.zeros(m * size, dtype=np.int64)
        shares[places], sources[places] = self.shares, self.sources
        table = np.concatenate([shares, self.excess]).view(np.int64)
        return table, self.addresses[sources]

    def arguments(self, pieces: Pieces) -> tuple[Any, ...]:
        lists = self.starts, len(self.excess), self.sources, self.shares, self.excess
        return (
            *super().arguments(pieces),
            *lists,
            pieces.per_thread(len(self.addresses), self.columns),
        )


class _Subsets(_Rows):
    """A matrix P whose rows average subsets of thousands of rows; see `subset_sums`."""

    type = subsets.SubsetSums

    def __init__(self, matrix: Tensor, rows: Rows, mixing: Array) -> None:
        super().__init__(matrix, rows)
        self.codes, self.shares = subsets.codes_of(mixing), mixing.max(axis=1)
        passes, self.m, tables = self.codes.shape
        # Rows that fill up the last subsets are in none.
        missing = passes * tables * subsets.FEW - len(rows)
        self.padded = np.append(self.addresses, np.full(missing, self.addresses[0]))

    def arguments(self, pieces: Pieces) -> tuple[Any, ...]:
        lanes = machine.HOST.lanes(DOUBLE)
        return (
            *(self.padded, len(self.codes), self.codes, self.m, self.shares),
            pieces.per_thread(subsets.TABLES * subsets.ENTRIES * lanes),
            pieces.per_thread(self.m, lanes),
        )


def _excess(shares: Array) -> float:
    """The sum of shares minus one, if that is a rounding error; otherwise 0."""
    excess = math.fsum([*shares.tolist(), -1.0])
    return excess if abs(excess) <= len(shares) * np.finfo(np.float64).eps else 0.0


@lru_cache(maxsize=64)
def _context(processor: machine.Processor, *arguments: Any) -> Integers:
    """The table of a network, whose parts are code for a processor."""
    return np.array(sorting.table(*arguments), dtype=np.int64)


def _addresses(matrix: Tensor, rows: Rows) -> Integers:
    """The address of each row, whatever lies between the rows."""
    return rows * (matrix.stride(0) * matrix.itemsize) + matrix.data_ptr()
