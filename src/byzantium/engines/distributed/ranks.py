"""The ranks of a group, and the few ways in which they talk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from byzantium.core import ByzantiumError

Result = TypeVar("Result")
# dist.isend or dist.irecv, what to send or to fill, and the other rank.
Message = tuple[Callable[..., Any], Tensor, int]

#: How many seconds a rank waits for the others; torch's own default is half an hour.
TIMEOUT = 60.0
# What is told of a rank's view, when ranks disagree.
LONGEST_TOLD = 2000


class LostRankError(ByzantiumError, RuntimeError):
    """Another rank died, or did not take part in an all-reduce in time."""


class Ranks:
    """The n ranks of a group, of which this process is one.

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

    def exchange(
        self, arrives: Sequence[Tensor], leaves: Sequence[Tensor], tag: int = 0
    ) -> Callable[[], None]:
        """Begin to send a tensor to each rank, and to receive one; call the result to end it.

        tag: tells exchanges apart that are under way together.
        """
        arrives[self.rank].copy_(leaves[self.rank])
        messages: list[Message] = []
        for k in range(1, self.n):  # everybody begins with another one
            to, of = (self.rank + k) % self.n, (self.rank - k) % self.n
            messages += [(dist.isend, leaves[to], to), (dist.irecv, arrives[of], of)]
        return self._passed(messages, tag)

    def at_first(self, tensor: Tensor) -> Tensor | None:
        """(n, ...), on the first rank only: what each rank holds, of the same shape; small."""
        given = tensor.to(self.device).contiguous()
        if self.rank:
            self._passed([(dist.isend, given, 0)])()
            return None
        found = given.new_empty(self.n, *given.shape)
        found[0] = given
        self._passed([(dist.irecv, found[k], k) for k in range(1, self.n)])()
        return found

    def everyone(self, tensor: Tensor) -> Tensor:
        """(n, ...): what each rank holds, of the same shape; small.

        By way of the first rank: where all write to all, each must be woken n times, and with more
        ranks than cores that takes three times as long.
        """
        found = self.at_first(tensor)
        return self.from_first(tensor.new_empty(self.n, *tensor.shape) if found is None else found)

    def gathered(self, vector: Tensor) -> Tensor:
        """(n, d): the same, for vectors that are too large to be laid out n times over."""
        found = vector.new_empty(self.n, len(vector))
        self._finish(
            self._guarded(
                lambda: dist.all_gather(list(found), vector, group=self.group, async_op=True)
            )
        )
        return found

    def from_first(self, tensor: Tensor) -> Tensor:
        """What the first rank holds; small."""
        found = tensor.to(self.device, copy=True).contiguous()
        others = range(1, self.n)
        self._passed(
            [(dist.irecv, found, 0)] if self.rank else [(dist.isend, found, k) for k in others]
        )()
        return found

    def agree(self, view: Mapping[str, str], number: float) -> list[float]:
        """Raise the same sentence on all ranks unless all hold the same view of what comes next.

        Returns the number that each rank brought.
        """
        told = "\n".join(f"{key}\t{' '.join(value.split())}" for key, value in view.items())
        content = told.encode()[:LONGEST_TOLD]
        mark = int.from_bytes(hashlib.sha256(content).digest()[:8], "big", signed=True)
        bits = torch.tensor(number, dtype=torch.float64).view(torch.int64)
        table = self.everyone(torch.tensor([mark, len(content), int(bits)])).cpu()
        if not bool((table[:, 0] == mark).all()):
            raise ByzantiumError(self._disagreement(content, int(table[:, 1].max())))
        numbers: list[float] = table[:, 2].contiguous().view(torch.float64).tolist()
        return numbers

    def _disagreement(self, content: bytes, longest: int) -> str:
        mine = torch.zeros(min(max(longest, len(content)), LONGEST_TOLD), dtype=torch.uint8)
        mine[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        views = [
            dict(line.split("\t") for line in _text(row).splitlines() if line.count("\t") == 1)
            for row in self.everyone(mine).cpu()
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

    def _passed(self, messages: Sequence[Message], tag: int = 0) -> Callable[[], None]:
        """Begin to send and to receive; call the result to end it."""
        batch = [
            dist.P2POp(verb, tensor, group=self.group, tag=tag, group_peer=peer)
            for verb, tensor, peer in messages
            if tensor.numel()
        ]
        works = self._guarded(lambda: dist.batch_isend_irecv(batch)) if batch else []

        def finish() -> None:
            for work in works:
                self._finish(work)

        return finish

    def _finish(self, work: Any) -> None:
        self._guarded(lambda: work.wait(timedelta(seconds=self.timeout)))

    def _guarded(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except RuntimeError as error:
            why = str(error).strip().partition("\n")[0][:300]
            raise LostRankError(
                f"rank {self.rank} of {self.n} has lost another rank, which died or did not answer "
                f"within {self.timeout:g} s: {why}"
            ) from error


def _text(row: Tensor) -> str:
    return bytes(row.tolist()).rstrip(b"\0").decode(errors="replace")


def _listed(ranks: Sequence[int], most: int = 10) -> str:
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:most]))}{more}"
