"""The ranks of a group, and the few ways in which they talk."""

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
# What is told of a rank's view, when ranks disagree.
LONGEST_TOLD = 2000


class LostRankError(ByzantiumError, RuntimeError):
    """Another rank died, or did not take part in an all-reduce in time."""


class Ranks:
    """The n ranks of a group, of which this process is one; a context, which ends what it sent.

    What they tell each other goes to each one directly. (The all-gather of gloo hands long vectors
    around a ring, and takes two to five times as long; its all-to-all wants them laid out n times
    over. Its gather and broadcast pass through a thread more, and take half as long again.)
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
        self._under_way: list[Any] = []  # what was sent, and may not have arrived yet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        """All that was sent has arrived, unless a rank is lost."""
        if kind is not LostRankError:
            self._end([])

    def exchange(
        self, arrives: Sequence[Tensor], leaves: Sequence[Tensor], tag: int = 0
    ) -> Callable[[], None]:
        """Begin to send a tensor to each rank, and to receive one; call the result to end it.

        tag: tells exchanges apart that are under way together.
        """
        others = [(self.rank + k) % self.n for k in range(1, self.n)]  # all begin with another one
        sent = [(True, leaves[k], k) for k in others]
        received = [(False, arrives[k], k) for k in reversed(others)]
        works = self._begin(sent + received, tag)
        if arrives[self.rank].data_ptr() != leaves[self.rank].data_ptr():
            arrives[self.rank].copy_(leaves[self.rank])
        return partial(self._end, works)

    def at_first(self, numbers: Numbers) -> Numbers | None:
        """(n, ...), on the first rank only: what each rank holds, of the same shape; small."""
        if self.rank:
            self._sent(numbers, [0])
            return None
        place = np.empty((self.n, *numbers.shape), numbers.dtype)
        place[0] = numbers
        found = self._tensor(place)
        self._end(self._begin([(False, found[k], k) for k in range(1, self.n)]))
        return found.cpu().numpy()

    def everyone(self, numbers: Numbers) -> Numbers:
        """(n, ...): what each rank holds, of the same shape; small.

        By way of the first rank: where all write to all, each must be woken n times, and with more
        ranks than cores that takes three times as long.
        """
        found = self.at_first(numbers)
        given = np.empty((self.n, *numbers.shape), numbers.dtype) if found is None else found
        return self.from_first(given)

    def from_first(self, numbers: Numbers) -> Numbers:
        """What the first rank holds, in the place of what the others hold; small."""
        if not self.rank:
            self._sent(numbers, range(1, self.n))
            return numbers
        found = self._tensor(numbers)
        self._end(self._begin([(False, found, 0)]))
        return found.cpu().numpy()

    def _sent(self, numbers: Numbers, to: Iterable[int]) -> None:
        """Send them to some ranks, and do not wait: who waits for something next does.

        Until then they must not change.
        """
        tensor = self._tensor(numbers)
        self._under_way += self._begin([(True, tensor, k) for k in to])

    def _tensor(self, numbers: Numbers) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self.device)

    def gathered(self, vector: Tensor) -> Tensor:
        """(n, d): the same, for vectors that are too large to be laid out n times over."""
        found = vector.new_empty(self.n, len(vector))
        try:
            work = dist.all_gather(list(found), vector, group=self.group, async_op=True)
        except RuntimeError as error:
            raise self._lost(error) from error
        self._end([work])
        return found

    def agree(self, view: Mapping[str, str]) -> None:
        """Raise the same sentence on all ranks unless all hold the same view of what comes next."""
        told = "\n".join(f"{key}\t{' '.join(value.split())}" for key, value in view.items())
        content = told.encode()[:LONGEST_TOLD]
        mark = int.from_bytes(hashlib.sha256(content).digest()[:8], "big", signed=True)
        marks, lengths = self.everyone(np.array([mark, len(content)])).T
        if not (marks == mark).all():
            raise ByzantiumError(self._disagreement(content, int(lengths.max())))

    def _disagreement(self, content: bytes, longest: int) -> str:
        mine = np.zeros(min(max(longest, len(content)), LONGEST_TOLD), np.uint8)
        mine[: len(content)] = list(content)
        views = [
            dict(line.split("\t") for line in _text(row).splitlines() if line.count("\t") == 1)
            for row in self.everyone(mine)
        ]
        sentences = []
        for key in dict.fromkeys(key for view in views for key in view):
            ranks: dict[str, list[int]] = {}
            for rank, view in enumerate(views):
                ranks.setdefault(view.get(key, "unknown"), []).append(rank)
            if len(ranks) > 1:
                told = " and ".join(f"{value} on {_listed(who)}" for value, who in ranks.items())
                sentences.append(f"{key} {told}")
        return f"the ranks disagree on what to aggregate: {'; '.join(sentences)}"

    def _begin(self, messages: Sequence[Message], tag: int = 0) -> list[Any]:
        """Begin to send and to receive; returns what is then under way, for `_end`."""
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
        """Wait for them, and for all else that is under way."""
        limit = timedelta(seconds=self.timeout)
        try:
            # The last first: when it has ended, so have the others, and each pause costs time.
            for work in reversed(works):
                work.wait(limit)
            while self._under_way:
                self._under_way.pop().wait(limit)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> LostRankError:
        why = str(error).strip().partition("\n")[0][:300]
        return LostRankError(
            f"rank {self.rank} of {self.n} has lost another rank, which died or did not answer "
            f"within {self.timeout:g} s: {why}"
        )


def _text(row: Numbers) -> str:
    return bytes(row.tolist()).rstrip(b"\0").decode(errors="replace")


def _listed(ranks: Sequence[int], most: int = 10) -> str:
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:most]))}{more}"
