"""The ranks of a group, and the few types of messages between them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from byzantium.core import ByzantiumError

Numbers = NDArray[Any]
# Whether to send, what to send or to fill, and the other rank.
Message = tuple[bool, Tensor, int]

#: How many seconds a rank waits for the others; torch's own default is half an hour.
TIMEOUT = 60.0
# How many bytes of a rank's view are shown when ranks disagree.
LONGEST_VIEW = 2000


class LostRankError(ByzantiumError, RuntimeError):
    """Another rank died, or did not take part in an all-reduce in time."""


class Ranks:
    """The n ranks of a group, of which this process is one; a context that ends all transfers.

    Messages go from rank to rank directly. (The all-gather of gloo passes long vectors around a
    ring, and takes two to five times as long; its all-to-all needs n copies of them. Its gather and
    broadcast use one more thread, and take half as long again.) Rank 0 is the *leader*.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device, timeout: float):
        if not (dist.is_available() and dist.is_initialized()):
            raise ByzantiumError(
                "there is no process group yet; start with torchrun and call "
                "torch.distributed.init_process_group first"
            )
        world = dist.group.WORLD
        assert world is not None
        self.group = world if group is None else group
        self.n, self.rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        if self.rank < 0:
            raise ByzantiumError("this process is not a member of the group that it was given")
        self.device = device
        self.timeout = timeout
        self._unfinished: list[Any] = []  # sends that may not have ended yet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Wait until all that was sent has arrived, unless a rank is lost."""
        if kind is not LostRankError:
            self._end([])

    def exchange(
        self, arrives: Sequence[Tensor], leaves: Sequence[Tensor], tag: int = 0
    ) -> Callable[[], None]:
        """Begin to send a tensor to each rank, and to receive one; call the result to end it.

        - `arrives`: memory for the tensor from each rank.
        - `leaves`: the tensor for each rank.
        - `tag`: a number that distinguishes simultaneous exchanges.
        """
        others = [(self.rank + k) % self.n for k in range(1, self.n)]  # all begin with another one
        sent = [(True, leaves[k], k) for k in others]
        received = [(False, arrives[k], k) for k in reversed(others)]
        works = self._begin(sent + received, tag)
        if arrives[self.rank].data_ptr() != leaves[self.rank].data_ptr():
            arrives[self.rank].copy_(leaves[self.rank])
        return partial(self._end, works)

    def gather_to_leader(self, numbers: Numbers) -> Numbers | None:
        """(n, ...): the numbers of each rank, few and of the same shape; None on other ranks."""
        if self.rank:
            self._send(numbers, [0])
            return None
        memory = np.empty((self.n, *numbers.shape), numbers.dtype)
        memory[0] = numbers
        received = self._tensor(memory)
        self._end(self._begin([(False, received[k], k) for k in range(1, self.n)]))
        return received.cpu().numpy()

    def all_gather_small(self, numbers: Numbers) -> Numbers:
        """(n, ...): the numbers of each rank, few and of the same shape, on all ranks.

        By way of the leader: where all write to all, each must be woken n times, and with more
        ranks than cores that takes three times as long.
        """
        gathered = self.gather_to_leader(numbers)
        if gathered is None:
            gathered = np.empty((self.n, *numbers.shape), numbers.dtype)
        return self.broadcast(gathered)

    def broadcast(self, numbers: Numbers) -> Numbers:
        """The numbers of the leader, few, on all ranks; the others give an array of their shape."""
        if not self.rank:
            self._send(numbers, range(1, self.n))
            return numbers
        received = self._tensor(numbers)
        self._end(self._begin([(False, received, 0)]))
        return received.cpu().numpy()

    def _send(self, numbers: Numbers, to: Iterable[int]) -> None:
        """Send numbers to some ranks. They must not change until the next `_end`, which waits."""
        tensor = self._tensor(numbers)
        self._unfinished += self._begin([(True, tensor, k) for k in to])

    def _tensor(self, numbers: Numbers) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self.device)

    def all_gather(self, vector: Tensor) -> Tensor:
        """(n, d): the vector of each rank, on all ranks; for long vectors."""
        matrix = vector.new_empty(self.n, len(vector))
        try:
            work = dist.all_gather(list(matrix), vector, group=self.group, async_op=True)
        except RuntimeError as error:
            raise self._lost(error) from error
        self._end([work])
        return matrix

    def agree(self, view: Mapping[str, str]) -> None:
        """Raise the same error on all ranks unless all have the same view of what comes next."""
        text = "\n".join(f"{key}\t{' '.join(value.split())}" for key, value in view.items())
        content = text.encode()[:LONGEST_VIEW]
        mark = int.from_bytes(hashlib.sha256(content).digest()[:8], "big", signed=True)
        marks, lengths = self.all_gather_small(np.array([mark, len(content)])).T
        if not (marks == mark).all():
            raise ByzantiumError(self._disagreement(content, int(lengths.max())))

    def _disagreement(self, content: bytes, longest: int) -> str:
        mine = np.zeros(min(max(longest, len(content)), LONGEST_VIEW), np.uint8)
        mine[: len(content)] = list(content)
        views = [
            dict(line.split("\t") for line in _text(row).splitlines() if line.count("\t") == 1)
            for row in self.all_gather_small(mine)
        ]
        sentences = []
        for key in dict.fromkeys(key for view in views for key in view):
            ranks: dict[str, list[int]] = {}
            for rank, view in enumerate(views):
                ranks.setdefault(view.get(key, "unknown"), []).append(rank)
            if len(ranks) > 1:
                values = [f"{value} on {_listed(who)}" for value, who in ranks.items()]
                sentences.append(f"{key} {' and '.join(values)}")
        return f"the ranks disagree on what to aggregate: {'; '.join(sentences)}"

    def _begin(self, messages: Sequence[Message], tag: int = 0) -> list[Any]:
        """Begin to send and to receive; returns the unfinished transfers, for `_end`."""
        group, messages = self.group, [message for message in messages if message[1].numel()]
        try:
            if self.device.type == "cpu":  # without torch's checks, which take as long as a message
                return [
                    (group.send if sends else group.recv)([tensor], peer, tag)
                    for sends, tensor, peer in messages
                ]
            batch = [
                dist.P2POp(dist.isend if sends else dist.irecv, tensor, None, group, tag, peer)
                for sends, tensor, peer in messages
            ]
            return dist.batch_isend_irecv(batch) if batch else []
        except RuntimeError as error:
            raise self._lost(error) from error

    def _end(self, works: Sequence[Any]) -> None:
        """Wait for these transfers, and for all other unfinished ones."""
        limit = timedelta(seconds=self.timeout)
        try:
            # The last first: when it has ended, so have the others, and each pause costs time.
            for work in reversed(works):
                work.wait(limit)
            while self._unfinished:
                self._unfinished.pop().wait(limit)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> LostRankError:
        reason = str(error).strip().partition("\n")[0][:300]
        return LostRankError(
            f"rank {self.rank} of {self.n} has lost another rank, which died or did not answer "
            f"within {self.timeout:g} s: {reason}"
        )


def _text(row: Numbers) -> str:
    return bytes(row.tolist()).rstrip(b"\0").decode(errors="replace")


def _listed(ranks: Sequence[int], most: int = 10) -> str:
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:most]))}{more}"
