"""The columns of all vectors that one rank holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.core import ByzantiumError
from byzantium.engines.distributed.ranks import Ranks
from byzantium.engines.distributed.team import RankTeam
from byzantium.vectors import Matrix, Source

Rows = NDArray[np.int64]

# Columns travel in chunks, so that the first are multiplied while the last are on their way.
CHUNK = 1 << 22

# Memory of the last call, for the next one: new pages cost as much as half an all-reduce.
_spare: list[Tensor] = []


class Shard(Source):
    """The vectors of all ranks, as the input of a rule on one rank, which holds some columns.

    Row r is the vector of rank r. The columns are divided among the ranks, chunk by chunk. Nothing
    is sent before the columns are first read, and they are read as they arrive.
    `robust_all_reduce` makes it.

    - `vector`: the vector of this rank, (d,).
    - `ranks`: the ranks of the group.
    - `out`: memory for the aggregate; it may be the vector itself.
    """

    def __init__(self, vector: Tensor, ranks: Ranks, out: Tensor | None = None) -> None:
        self.vector, self.ranks = vector.contiguous(), ranks
        self.n, self.dtype, self.device = ranks.n, vector.dtype, vector.device
        self.unreadable = {}
        starts = range(0, len(vector), CHUNK)
        self.chunks = [slice(start, min(start + CHUNK, len(vector))) for start in starts]
        self.widths = [_widths(chunk.stop - chunk.start, self.n) for chunk in self.chunks]
        self.d = sum(widths[ranks.rank] for widths in self.widths)
        self.team = RankTeam(ranks, self.chunks, self.widths, self.vector, out)
        self._arrived: list[Matrix] = []
        self._transfers: list[tuple[Tensor, Callable[[], None]]] | None = None

    def relative_to(self, base: Any) -> Source:
        raise ByzantiumError(
            "vectors of several ranks take no base: each rank subtracts it from its own, and adds "
            "it to the aggregate"
        )

    def block(self, columns: slice, rows: Rows) -> Tensor:
        """Some of the columns of this rank; rules read them by `pieces` instead."""
        blocks = [matrix[torch.from_numpy(rows)] for _, matrix, _ in self.pieces(np.arange(self.n))]
        return torch.cat(blocks, dim=1)[:, columns].contiguous()

    def pieces(self, rows: Rows) -> Iterator[tuple[slice, Tensor, Rows]]:
        start = 0
        for matrix in self._matrices():
            for columns, piece, which in matrix.pieces(rows):
                yield slice(start + columns.start, start + columns.stop), piece, which
            start += matrix.d

    def _matrices(self) -> Iterator[Matrix]:
        if self._transfers is None:
            self._memory = _memory_for(self.n * self.d, self.vector)
            self._transfers, start = [], 0
            for k, (chunk, widths) in enumerate(zip(self.chunks, self.widths, strict=True)):
                width = widths[self.ranks.rank]
                place = self._memory[self.n * start : self.n * (start + width)].view(self.n, width)
                leaves = torch.split(self.vector[chunk], widths)
                self._transfers.append((place, self.ranks.exchange(list(place), leaves, k)))
                start += width
        for k, (matrix, finish) in enumerate(self._transfers):
            if k == len(self._arrived):
                finish()
                self._arrived.append(Matrix(matrix))
            yield self._arrived[k]

    def result(self, vector: Tensor, rows: Rows) -> Tensor:
        if self._transfers is not None:  # what arrived has been read
            _spare[:] = [self._memory]
            self._transfers, self._arrived = None, []
        return vector.to(self.dtype)


def _memory_for(size: int, like: Tensor) -> Tensor:
    """Memory for so many numbers, of the dtype and device of a tensor."""
    spare = _spare.pop() if _spare else like
    fits = spare is not like and (spare.dtype, spare.device) == (like.dtype, like.device)
    return spare if fits and spare.numel() == size else like.new_empty(size)


def _widths(columns: int, ranks: int) -> list[int]:
    """How many of some columns each rank holds: as even as possible."""
    return [columns * (rank + 1) // ranks - columns * rank // ranks for rank in range(ranks)]
