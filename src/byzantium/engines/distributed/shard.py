"""The columns that one rank looks after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.core import ByzantiumError
from byzantium.engines.distributed.ranks import Ranks
from byzantium.vectors import Matrix, Source

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

# Columns travel in chunks, so that the first are multiplied while the last are on their way.
CHUNK = 1 << 22

# What the first rank tells first: so many numbers, and before them what they are.
SHORT, DOUBT = 255, -1

# Memory that a call is done with, for the next one: new pages cost as much as half an all-reduce.
_spare: list[Tensor] = []


class _DecidedError(BaseException):  # no rule that catches errors should catch it
    """The first rank has decided, while this one awaited something on the way to the decision."""

    def __init__(self, decision: Array) -> None:
        self.decision = decision


class DoubtedError(BaseException):  # no rule that catches errors should catch it
    """The first rank has found vectors that are not usable, while this one presumed all were."""


class Shard(Source):
    """The vectors of all ranks, as the input of a rule on one rank, which holds some columns.

    Row r is the vector of rank r. The columns are divided among the ranks, chunk by chunk. Nothing
    is sent before the columns are first read, and they are read as they arrive.
    `robust_all_reduce` makes it.

    - `vector`: the vector of this rank, (d,).
    - `ranks`: the ranks of the group.
    - `out`: where the aggregate may be put together; it may be the vector itself.
    """

    def __init__(self, vector: Tensor, ranks: Ranks, out: Tensor | None = None) -> None:
        self.vector, self.ranks, self.out = vector.contiguous(), ranks, out
        self.n, self.dtype, self.device = ranks.n, vector.dtype, vector.device
        self.unreadable = {}
        starts = range(0, len(vector), CHUNK)
        self.chunks = [slice(start, min(start + CHUNK, len(vector))) for start in starts]
        self.widths = [_widths(chunk.stop - chunk.start, self.n) for chunk in self.chunks]
        self.d = sum(widths[ranks.rank] for widths in self.widths)
        self._arrived: list[Matrix] = []
        self._deciding, self._untold = False, list[Array]()
        self._coming: list[tuple[Tensor, Callable[[], None]]] | None = None
        self._found: Tensor | None = None

    @property
    def dimension(self) -> int:
        """How many numbers a whole vector has."""
        return len(self.vector)

    def relative_to(self, base: Any) -> Source:
        raise ByzantiumError(
            "vectors of several ranks take no base: each rank subtracts it from its own, and adds "
            "it to the aggregate"
        )

    def block(self, columns: slice, rows: Rows) -> Tensor:
        """Some of the columns of this rank; rules read them by `pieces` instead."""
        found = [matrix[torch.from_numpy(rows)] for _, matrix, _ in self.pieces(np.arange(self.n))]
        return torch.cat(found, dim=1)[:, columns].contiguous()

    def pieces(self, rows: Rows) -> Iterator[tuple[slice, Tensor, Rows]]:
        start = 0
        for matrix in self._matrices():
            for columns, piece, which in matrix.pieces(rows):
                yield slice(start + columns.start, start + columns.stop), piece, which
            start += matrix.d

    def _matrices(self) -> Iterator[Matrix]:
        if self._coming is None:
            self._memory = _taken(self.n * self.d, self.vector)
            self._coming, start = [], 0
            for k, (chunk, widths) in enumerate(zip(self.chunks, self.widths, strict=True)):
                width = widths[self.ranks.rank]
                place = self._memory[self.n * start : self.n * (start + width)].view(self.n, width)
                leaves = torch.split(self.vector[chunk], widths)
                self._coming.append((place, self.ranks.exchange(list(place), leaves, k)))
                start += width
        for k, (matrix, finish) in enumerate(self._coming):
            if k == len(self._arrived):
                finish()
                self._arrived.append(Matrix(matrix))
            yield self._arrived[k]

    def room(self, dtype: torch.dtype) -> Tensor:
        """The place of these columns in the whole, if it is one piece, for the first who asks.

        But the vector of this rank stays as it is until there is an aggregate.
        """
        kept = self.out is not None and self.out.data_ptr() == self.vector.data_ptr()
        if kept or self._found is not None or dtype != self.dtype or len(self.chunks) != 1:
            return super().room(dtype)
        self._found = self._output(dtype)
        return torch.split(self._found, self.widths[0])[self.ranks.rank]

    def result(self, vector: Tensor, rows: Rows) -> Tensor:
        return vector.to(self.dtype)

    def collected(self, sums: Array) -> Array:
        """The sum over all ranks, which the first rank takes, in the order of the ranks."""
        self._tell_all()
        found = self.ranks.at_first(sums)
        return sums if found is None else np.add.reduce(found, axis=0)

    def presumed(self, usable: bool) -> bool:
        if self.ranks.rank:
            return True
        if not usable:
            self._tell(np.empty(0), DOUBT)
        return usable

    def agreed(self, decision: Array) -> Array:
        """What the first rank found, the same on all ranks; while it decides, it tells nothing."""
        if self.ranks.rank:
            return self._heard(decision.size).reshape(decision.shape)
        self._untold.append(decision)
        if not self._deciding:
            self._tell_all()
        return decision

    def decided(self, decide: Callable[[], Array]) -> Array:
        """The decision of the first rank, a vector.

        What the first rank finds on the way, the others are told only if it needs them again for
        more sums. Otherwise the decision is the next that they hear.
        """
        if self.ranks.rank:
            try:
                return self._heard(decide().size)
            except _DecidedError as heard:
                return heard.decision
        self._deciding = True
        try:
            decision = decide()
        except BaseException:
            self._tell_all()  # then the others come upon the same error
            raise
        finally:
            self._deciding = False
        self._untold.clear()
        self._tell(decision, len(decision))
        return decision

    def _tell_all(self) -> None:
        for found in self._untold:
            self._tell(found)
        self._untold.clear()

    def _tell(self, found: Array, kind: int = 0) -> None:
        """Tell the others some numbers. The kind is the length of a decision, or a doubt.

        Whatever the others await, the first message has the same length; the rest has its own.
        """
        numbers = found.ravel()
        message = np.zeros(1 + SHORT)
        message[0], message[1 : 1 + numbers.size] = kind, numbers[:SHORT]
        self.ranks.from_first(message)
        if numbers.size > SHORT:
            self.ranks.from_first(numbers[SHORT:])

    def _heard(self, size: int) -> Array:
        """What the first rank tells, where so many numbers are awaited."""
        message = self.ranks.from_first(np.empty(1 + SHORT))
        kind = int(message[0])
        if kind == DOUBT:
            raise DoubtedError
        size = kind or size
        numbers = message[1 : 1 + size]
        if size > SHORT:
            numbers = np.append(numbers, self.ranks.from_first(np.empty(size - SHORT)))
        if kind:
            raise _DecidedError(numbers)
        return numbers

    def part(self, vector: Tensor) -> Tensor:
        before = [sum(widths[: self.ranks.rank]) for widths in self.widths]
        parts = [
            vector[chunk][start : start + widths[self.ranks.rank]]
            for chunk, widths, start in zip(self.chunks, self.widths, before, strict=True)
        ]
        return torch.cat(parts) if parts else vector[:0]

    def whole(self, vector: Tensor) -> Tensor:
        found = self._found
        if found is None or found.dtype != vector.dtype:
            found = self._output(vector.dtype)
        if self._coming is not None:  # what arrived has been read
            _spare[:] = [self._memory]
            self._coming, self._arrived = None, []
        endings, start = [], 0
        for k, (chunk, widths) in enumerate(zip(self.chunks, self.widths, strict=True)):
            part = vector[start : start + widths[self.ranks.rank]]
            arrives = torch.split(found[chunk], widths)
            endings.append(self.ranks.exchange(arrives, [part] * self.n, k))
            start += len(part)
        for end in endings:
            end()
        return found

    def _output(self, dtype: torch.dtype) -> Tensor:
        """Memory for the whole aggregate."""
        if self.out is not None and self.out.dtype == dtype and self.out.is_contiguous():
            return self.out
        return self.vector.new_empty(self.dimension, dtype=dtype)


def _taken(size: int, like: Tensor) -> Tensor:
    """Memory for so many numbers, of the dtype and device of a tensor."""
    spare = _spare.pop() if _spare else like
    fits = spare is not like and (spare.dtype, spare.device) == (like.dtype, like.device)
    return spare if fits and spare.numel() == size else like.new_empty(size)


def _widths(columns: int, ranks: int) -> list[int]:
    """How many of some columns each rank looks after: as even as can be."""
    return [columns * (rank + 1) // ranks - columns * rank // ranks for rank in range(ranks)]
