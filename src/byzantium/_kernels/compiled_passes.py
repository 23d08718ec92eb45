"""The passes over vectors on the CPU, by compiled kernels; `torch_passes` defines their results.

Kernels release the GIL and are shared by as many threads as torch uses, its own if possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium._kernels import compiler as machine
from byzantium._kernels import networks as network
from byzantium._kernels import newton as newtons
from byzantium._kernels import order_statistics as sorting
from byzantium._kernels import sums as kernels
from byzantium._kernels.backend import Minimum
from byzantium._kernels.ir import DOUBLE, FLOAT
from byzantium._kernels.threads import parallel_call
from byzantium._kernels.torch_passes import Rows

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

REAL = {torch.float32: FLOAT, torch.float64: DOUBLE}
# For fewer values it does not pay to compile a sorting network of their own.
SMALL = 1 << 18
# A call is divided into PIECES pieces, each of LEAST to MOST values: fewer are computed before
# another thread has woken up. The number of threads has no influence, so that sums are the same to
# the bit.
PIECES, LEAST, MOST = 8, 1 << 19, 1 << 22
# Columns are divided at multiples of this.
GRAIN = 1024
# Bytes between what different threads write: what one asks for, or the processor by itself, must
# not be what another writes.
APART = 4096
# With fewer rows, a sum over a row would wait for its last addition.
FEW = 8
# Up to MOST_STRAIGHT rows a sorting network is code without a loop; for more it would take long to
# compile, and fit in no cache. Larger networks consist of parts with at most MOST_PART wires.
MOST_STRAIGHT, MOST_PART = 128, 24


def mixed(matrix: Tensor, rows: Rows, mixing: Array) -> Tensor:
    source, (m, d) = _Mixed(matrix, rows, mixing), (len(mixing), matrix.shape[1])
    result = torch.empty(m, d, dtype=torch.float64)
    pieces = _Pieces(len(source.shares), d)
    pieces.call(kernels.mix(REAL[matrix.dtype]), *source.arguments(pieces), result, d)
    return result


def squared_norms(matrix: Tensor, rows: Rows) -> Array:
    n, d, real, addresses = len(rows), matrix.shape[1], REAL[matrix.dtype], _addresses(matrix, rows)
    kernel, lanes = kernels.squared_norms(real), machine.HOST.lanes(real)
    # Of few rows, several places are read at a time.
    places = max(1, FEW // max(n, 1))
    width = d // places
    starts = matrix.itemsize * width * np.arange(places)
    spread_out = (addresses[:, None] + starts).ravel()
    pieces = _Pieces(len(spread_out), width)
    sums = pieces.each(len(spread_out), lanes)
    pieces.call(kernel, spread_out, len(spread_out), sums)
    total: Array = sums.numbers.sum(axis=2).sum(axis=0).reshape(n, places).sum(axis=1)
    if width * places < d:
        rest = _scratch(n, lanes)
        kernel(addresses, n, width * places, d, rest)
        total += rest.sum(axis=1)
    return total


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
    # So many values that the products of a piece take a thirty-second of their memory.
    pieces = _Pieces(n, d, most=max(MOST, 64 * n * n))
    if kernels.few(m):
        products = pieces.each(m, m)
        pieces.call(kernels.gram_of_few(real, m), addresses, advances, base, products)
    else:
        tile = kernels.tile_of(m)
        stride = -(-m // tile) * tile
        products, block = pieces.each(stride, stride), pieces.own(stride * size)
        given = addresses, m, advances, base, block, size, products, stride
        pieces.call(kernels.gram(real, tile), *given)
    lower = products.numbers.sum(axis=0)[:m, :m]
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
    # The center comes last among the anchors, and is one more row; the origin adds nothing.
    center = anchors[-1].contiguous() if anchors and anchors[-1] is not None else None
    if center is not None:
        addresses, shares = np.append(addresses, center.data_ptr()), np.append(shares, weights[-1])
    counting = shares != 0
    addresses, shares = addresses[counting], shares[counting]
    kernel = kernels.weighted_sum(REAL[matrix.dtype])
    pieces = _Pieces(max(len(shares), 1), matrix.shape[1])
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
    straight = n <= MOST_STRAIGHT and n * d >= SMALL and d >= lanes
    if straight:
        columns = sorting.straight(n, count, nearest, real, explained)
        context = np.empty(0, dtype=np.int64)
    elif everything:
        columns, context = kernels.mean(real), np.array([n])
    else:
        most = MOST_PART if n * d >= SMALL else network.SINGLE
        columns = sorting.tabled(nearest, real, explained)
        context = _context(machine.HOST, n, count, nearest, real, most)
    source = _Rows(matrix, rows) if mixing is None else _Mixed(matrix, rows, mixing)
    pieces, numbers = _Pieces(n, d), np.float32 if matrix.dtype == torch.float32 else np.float64
    peaks = pieces.own(lanes, kind=numbers)
    if (straight or everything) and mixing is None and not explained:
        pieces.call(columns, context, source.addresses, peaks, out)  # as they come from the memory
        return float(peaks.numbers.max())

    size = kernels.BLOCK // matrix.itemsize
    scratch = pieces.own(n * size, kind=numbers), pieces.own(n), pieces.own(4 * size, kind=numbers)
    given: tuple[Any, ...] = *source.arguments(pieces), columns, context, *scratch, peaks, out
    if explained:
        within, changes = pieces.each(n, lanes, kind=numbers), pieces.each(n, lanes)
        given = *given, sorting.supplied(real), count, within, changes
    blocks = (sorting.copied if mixing is None else sorting.mixed)(real, explained, not straight)
    if straight and mixing is None:  # as they come from the memory, but for the last ones
        whole = d - d % size
        pieces.call(sorting.direct(real), *given, end=whole)
        blocks(*_placed(blocks, whole, d, given))
    else:
        pieces.call(blocks, *given)
    if shares is not None:
        counts = within.numbers.sum(axis=(0, 2), dtype=np.float64)
        shares += (counts + changes.numbers.sum(axis=(0, 2))) / count
    return float(peaks.numbers.max())


def newton(gram: Array, n: int, near: float) -> Minimum:
    """The point at which `newton.newton` ends."""
    size, scratch = newtons.size_of(n), _scratch(newtons.scratch_size(n))
    newtons.newton()(np.ascontiguousarray(gram), len(gram), n, size, near, scratch)
    return Minimum(scratch[newtons.LANES :][:n], *scratch[:3].tolist())


def moments(matrix: Tensor, rows: Rows, mean: Tensor, deviation: Tensor) -> None:
    n, addresses, kernel = len(rows), _addresses(matrix, rows), kernels.moments(REAL[matrix.dtype])
    _Pieces(n, matrix.shape[1]).call(kernel, addresses, n, mean, deviation, n, max(n - 1, 1))


# -- pieces ------------------------------------------------------------------------------------


class _Each(NamedTuple):
    """Memory for sums: a row for each piece, so that they are the same for all threads."""

    numbers: NDArray[Any]


class _Own(NamedTuple):
    """Scratch memory: a row for each thread."""

    numbers: NDArray[Any]


Argument: TypeAlias = machine.Argument | _Each | _Own


class _Pieces:
    """d columns of n rows, divided into `count` pieces of `step` columns.

    - `most`: how many values a piece has at the most.
    """

    def __init__(self, n: int, d: int, most: int = MOST) -> None:
        values = min(max(n * d // PIECES, LEAST), most)
        self.d, self.step = d, GRAIN * -(-values // (GRAIN * n))
        self.count = max(1, -(-d // self.step))
        self.threads = min(torch.get_num_threads(), self.count)

    def each(self, *shape: int, kind: type = np.float64) -> _Each:
        return _Each(_apart(self.count, *shape, kind=kind))

    def own(self, *shape: int, kind: type = np.float64) -> _Own:
        return _Own(_apart(self.threads, *shape, kind=kind))

    def call(self, kernel: machine.Kernel, *arguments: Argument, end: int | None = None) -> None:
        """Call a kernel for all columns, or those before `end`.

        The arguments are all but `first` and `last`.
        """
        end = self.d if end is None else end
        if self.count == 1:
            kernel(*_placed(kernel, 0, end, arguments))
            return
        numbers, place = [0, 0, self.count, self.step, end], kernel.place
        kinds = kernel.kinds[:place] + kernel.kinds[place + 2 :]
        for argument, kind in zip(arguments, kinds, strict=True):
            numbers += _bits(argument, kind)
        given = np.array(numbers)
        here = partial(_take_part, kernel, given, arguments)
        parallel_call(kernel.in_pieces, int(machine.number(given)), here, self.threads)


def _take_part(kernel: machine.Kernel, given: Integers, arguments: Sequence[Argument]) -> None:
    """Work; whoever does so holds on to all arguments."""
    kernel.work(given)


def _placed(
    kernel: machine.Kernel, first: int, last: int, arguments: Sequence[Argument]
) -> list[machine.Argument]:
    """All arguments of a kernel; of memory by piece or thread, the first row."""
    place = kernel.place
    given = [a.numbers[0] if isinstance(a, _Each | _Own) else a for a in arguments]
    return [*given[:place], first, last, *given[place:]]


def _bits(argument: Argument, kind: str) -> tuple[int, int, int]:
    """An argument as a whole number, and what is added for each piece, and for each thread."""
    if isinstance(argument, _Each):
        return int(machine.number(argument.numbers[0])), argument.numbers.strides[0], 0
    if isinstance(argument, _Own):
        return int(machine.number(argument.numbers[0])), 0, argument.numbers.strides[0]
    number = machine.number(argument)
    return int(np.float64(number).view(np.int64)) if kind == DOUBLE else int(number), 0, 0


# -- what kernels are given --------------------------------------------------------------------


class _Rows:
    def __init__(self, matrix: Tensor, rows: Rows) -> None:
        self.addresses = _addresses(matrix, rows)

    def arguments(self, pieces: _Pieces) -> tuple[Any, ...]:
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

    def arguments(self, pieces: _Pieces) -> tuple[Any, ...]:
        lists = self.starts, len(self.excess), self.sources, self.shares, self.excess
        return *super().arguments(pieces), *lists, pieces.own(len(self.addresses), self.columns)


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


def _scratch(*shape: int, kind: type = np.float64) -> NDArray[Any]:
    """Zeros for a kernel to work with, aligned to a line of the cache."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    memory = np.zeros(size + kernels.LINE, dtype=np.uint8)
    start = -memory.__array_interface__["data"][0] % kernels.LINE
    return memory[start : start + size].view(kind).reshape(shape)


def _apart(count: int, *shape: int, kind: type) -> NDArray[Any]:
    """So many arrays of zeros, far from each other."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    memory = _scratch(count, APART + -(-size // kernels.LINE) * kernels.LINE, kind=np.uint8)
    return memory[:, :size].view(kind).reshape(count, *shape)
