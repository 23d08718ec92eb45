"""The schedule of a kernel: the columns in pieces, which threads take one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from byzantium._kernels import compiler as machine
from byzantium._kernels.ir import DOUBLE
from byzantium._kernels.sums import LINE
from byzantium._kernels.threads import parallel_call

Integers = NDArray[np.int64]

# A call is divided into PIECES pieces, each of LEAST to MOST values: fewer would be finished before
# another thread has woken up. The number of threads has no influence, so that sums are the same to
# the bit.
PIECES, LEAST, MOST = 8, 1 << 19, 1 << 22
# Columns are divided at multiples of this.
GRAIN = 1024
# Bytes between the memory of different threads: no thread reads or prefetches what another writes.
APART = 4096


class PerPiece(NamedTuple):
    """Memory for sums: a row for each piece, so that they are the same for all threads."""

    numbers: NDArray[Any]


class PerThread(NamedTuple):
    """Scratch memory: a row for each thread."""

    numbers: NDArray[Any]


Argument: TypeAlias = machine.Argument | PerPiece | PerThread


class Pieces:
    """d columns of n rows, divided into `count` pieces of `step` columns.

    - `n`, `d`: how many rows and columns there are.
    - `most`: the largest number of values of a piece.
    """

    def __init__(self, n: int, d: int, most: int = MOST) -> None:
        values = min(max(n * d // PIECES, LEAST), most)
        self.d, self.step = d, GRAIN * -(-values // (GRAIN * n))
        self.count = max(1, -(-d // self.step))
        self.threads = min(torch.get_num_threads(), self.count)

    @classmethod
    def of(cls, d: int, step: int) -> Pieces:
        """Pieces of `step` columns each, or of whatever is numbered up to d."""
        pieces = cls(1, d)
        pieces.step, pieces.count = step, max(1, -(-d // step))
        pieces.threads = min(torch.get_num_threads(), pieces.count)
        return pieces

    def per_piece(self, *shape: int, dtype: type = np.float64) -> PerPiece:
        return PerPiece(_apart(self.count, *shape, dtype=dtype))

    def per_thread(self, *shape: int, dtype: type = np.float64) -> PerThread:
        return PerThread(_apart(self.threads, *shape, dtype=dtype))

    def call(self, kernel: machine.Kernel, *arguments: Argument, end: int | None = None) -> None:
        """Call a kernel for all columns, or those before `end`.

        - `kernel`: the kernel.
        - `arguments`: all its arguments except `first` and `last`.
        """
        end = self.d if end is None else end
        if self.count == 1:
            kernel(*piece_arguments(kernel, 0, end, arguments))
            return
        numbers, place = [0, 0, self.count, self.step, end], kernel.place
        kinds = kernel.kinds[:place] + kernel.kinds[place + 2 :]
        for argument, kind in zip(arguments, kinds, strict=True):
            numbers += _bits(argument, kind)
        packed = np.array(numbers)
        here = partial(_take_part, kernel, packed, arguments)
        parallel_call(kernel.in_pieces, int(machine.number(packed)), here, self.threads)


def _take_part(kernel: machine.Kernel, packed: Integers, arguments: Sequence[Argument]) -> None:
    """Take pieces; the thread that does so holds references to all arguments."""
    kernel.work(packed)


def piece_arguments(
    kernel: machine.Kernel, first: int, last: int, arguments: Sequence[Argument]
) -> list[machine.Argument]:
    """All arguments of a kernel; of memory by piece or thread, the first row."""
    place = kernel.place
    others = [a.numbers[0] if isinstance(a, PerPiece | PerThread) else a for a in arguments]
    return [*others[:place], first, last, *others[place:]]


def _bits(argument: Argument, kind: str) -> tuple[int, int, int]:
    """An argument as an integer, and its increments from piece to piece and thread to thread."""
    if isinstance(argument, PerPiece):
        return int(machine.number(argument.numbers[0])), argument.numbers.strides[0], 0
    if isinstance(argument, PerThread):
        return int(machine.number(argument.numbers[0])), 0, argument.numbers.strides[0]
    number = machine.number(argument)
    return int(np.float64(number).view(np.int64)) if kind == DOUBLE else int(number), 0, 0


def scratch_memory(*shape: int, dtype: type = np.float64) -> NDArray[Any]:
    """Zeros for a kernel to work with, aligned to a line of the cache."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + LINE, dtype=np.uint8)
    start = -memory.__array_interface__["data"][0] % LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def _apart(count: int, *shape: int, dtype: type) -> NDArray[Any]:
    """So many arrays of zeros, far from each other."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = scratch_memory(count, APART + -(-size // LINE) * LINE, dtype=np.uint8)
    return memory[:, :size].view(dtype).reshape(count, *shape)
