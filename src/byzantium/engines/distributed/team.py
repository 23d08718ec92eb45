"""The ranks as a team: the first one decides, and all combine the columns that they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.engines.distributed.ranks import Ranks
from byzantium.vectors.team import Team

Array = NDArray[np.float64]

# A message of the leader begins with its type and SHORT numbers: whatever the others await, the
# length is the same. The type is 0, the length of a decision, or UNUSABLE.
SHORT, UNUSABLE = 255, -1


class _Decided(BaseException):  # no rule that catches errors should catch it
    """The leader has decided, while this rank awaited something on the way to the decision."""

    def __init__(self, decision: Array) -> None:
        self.decision = decision


class UnusableVectors(BaseException):  # no rule that catches errors should catch it
    """The leader has found vectors that are not usable, while this rank presumed all were."""


class RankTeam(Team):
    """The ranks of a group, of which each holds some columns of each chunk; rank 0 is the leader.

    - `chunks`: the columns of each chunk.
    - `widths`: for each chunk, how many of its columns each rank holds.
    - `vector`: the vector of this rank, (d,).
    - `out`: memory for the aggregate, if there is any; it may be the vector itself.
    """

    def __init__(
        self,
        ranks: Ranks,
        chunks: Sequence[slice],
        widths: Sequence[list[int]],
        vector: Tensor,
        out: Tensor | None,
    ) -> None:
        self.ranks, self.chunks, self.widths = ranks, chunks, widths
        self.vector, self.out = vector, out
        self._deciding, self._pending = False, list[Array]()  # what is yet to be broadcast
        self._whole: Tensor | None = None

    def dimension(self, d: int) -> int:
        return len(self.vector)

    def empty_part(self, d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A part of the memory of the whole aggregate, if it is one chunk; for the first call.

        But the vector of this rank stays unchanged until there is an aggregate.
        """
        in_place = self.out is not None and self.out.data_ptr() == self.vector.data_ptr()
        other = in_place or self._whole is not None or dtype != self.vector.dtype
        if other or len(self.chunks) != 1:
            return super().empty_part(d, dtype, device)
        self._whole = self._output(dtype)
        return torch.split(self._whole, self.widths[0])[self.ranks.rank]

    def sum_to_leader(self, sums: Array) -> Array:
        """The sum over all ranks, in the order of the ranks."""
        self._send_pending()
        parts = self.ranks.gather_to_leader(sums)
        return sums if parts is None else np.add.reduce(parts, axis=0)

    def presume_usable(self, usable: bool) -> bool:
        if self.ranks.rank:
            return True
        if not usable:
            self._send(np.empty(0), UNUSABLE)
        return usable

    def broadcast(self, numbers: Array) -> Array:
        """The numbers of the leader; while it decides, it postpones the message."""
        if self.ranks.rank:
            return self._receive(numbers.size).reshape(numbers.shape)
        self._pending.append(numbers)
        if not self._deciding:
            self._send_pending()
        return numbers

    def decide_on_leader(self, decide: Callable[[], Array]) -> Array:
        """The decision of the leader, a vector.

        The others receive its intermediate results only if it needs more sums from them. Otherwise
        the decision is the next message that they receive.
        """
        if self.ranks.rank:
            try:
                return self._receive(decide().size)
            except _Decided as message:
                return message.decision
        self._deciding = True
        try:
            decision = decide()
        except BaseException:
            self._send_pending()  # then the others come upon the same error
            raise
        finally:
            self._deciding = False
        self._pending.clear()
        self._send(decision, len(decision))
        return decision

    def _send_pending(self) -> None:
        for numbers in self._pending:
            self._send(numbers)
        self._pending.clear()

    def _send(self, numbers: Array, message_type: int = 0) -> None:
        """Send numbers to all other ranks: the first SHORT, then the rest if there are more."""
        numbers = numbers.ravel()
        message = np.zeros(1 + SHORT)
        message[0], message[1 : 1 + numbers.size] = message_type, numbers[:SHORT]
        self.ranks.broadcast(message)
        if numbers.size > SHORT:
            self.ranks.broadcast(numbers[SHORT:])

    def _receive(self, size: int) -> Array:
        """The numbers that the leader sends, where so many are awaited."""
        message = self.ranks.broadcast(np.empty(1 + SHORT))
        message_type = int(message[0])
        if message_type == UNUSABLE:
            raise UnusableVectors
        size = message_type or size
        numbers = message[1 : 1 + size]
        if size > SHORT:
            numbers = np.append(numbers, self.ranks.broadcast(np.empty(size - SHORT)))
        if message_type:
            raise _Decided(numbers)
        return numbers

    def local_part(self, vector: Tensor) -> Tensor:
        before = [sum(widths[: self.ranks.rank]) for widths in self.widths]
        parts = [
            vector[chunk][start : start + widths[self.ranks.rank]]
            for chunk, widths, start in zip(self.chunks, self.widths, before, strict=True)
        ]
        return torch.cat(parts) if parts else vector[:0]

    def gather_whole(self, vector: Tensor) -> Tensor:
        whole = self._whole
        if whole is None or whole.dtype != vector.dtype:
            whole = self._output(vector.dtype)
        endings, start = [], 0
        for k, (chunk, widths) in enumerate(zip(self.chunks, self.widths, strict=True)):
            part = vector[start : start + widths[self.ranks.rank]]
            arrives = torch.split(whole[chunk], widths)
            endings.append(self.ranks.exchange(arrives, [part] * self.ranks.n, k))
            start += len(part)
        for end in endings:
            end()
        return whole

    def _output(self, dtype: torch.dtype) -> Tensor:
        """Memory for the whole aggregate."""
        if self.out is not None and self.out.dtype == dtype and self.out.is_contiguous():
            return self.out
        return self.vector.new_empty(len(self.vector), dtype=dtype)
