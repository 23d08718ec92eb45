"""Batches: the samples that each worker draws next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Batches:
    """Batches of indices: each worker draws from its own samples, in a random order.

    A worker whose remaining samples do not fill a batch begins again, in a new order; one that has
    fewer samples than a batch repeats them.

    - `parts`: which samples each worker holds.
    - `size`: how many samples a batch has.
    - `generator`: the source of the random orders.

    >>> batches = Batches([torch.arange(4), torch.arange(4, 8)], 2, torch.Generator())
    >>> drawn = torch.cat([batches.draw([1]), batches.draw([1])])
    >>> sorted(drawn.flatten().tolist())
    [4, 5, 6, 7]
    """

    def __init__(
        self, parts: Sequence[Tensor], size: int, generator: torch.Generator | None
    ) -> None:
        self.parts = list(parts)
        self.size = size
        self.generator = generator
        self.reshuffle()

    def _order(self, worker: int) -> Tensor:
        """The samples of a worker's next pass, in their order."""
        part = self.parts[worker]
        return self._filling(part[torch.randperm(part.shape[0], generator=self.generator)])

    def _filling(self, order: Tensor) -> Tensor:
        """An order smaller than a batch, repeated until it fills one."""
        times = -(-self.size // len(order))
        return order.repeat(times) if times > 1 else order

    def reshuffle(self) -> None:
        """Let every worker begin again."""
        self.orders = [self._order(worker) for worker in range(len(self.parts))]
        self.positions = [0] * len(self.parts)

    def draw(self, workers: Sequence[int]) -> Tensor:
        """The next batch of each of these workers: indices, (len(workers), size)."""
        drawn = []
        for worker in workers:
            start = self.positions[worker]
            if start + self.size > len(self.orders[worker]):
                self.orders[worker], start = self._order(worker), 0
            drawn.append(self.orders[worker][start : start + self.size])
            self.positions[worker] = start + self.size
        return torch.stack(drawn)

    @property
    def epoch(self) -> int:
        """How many batches the worker with the fewest samples has."""
        return max(1, min(len(part) for part in self.parts) // self.size)

    def fits(self, state: dict[str, Any]) -> bool:
        """Whether in a state every worker holds its own samples, and is somewhere among them."""
        pieces = zip(self.parts, state["orders"], state["positions"], strict=True)
        return all(
            torch.equal(order.sort().values, self._filling(part).sort().values)
            and 0 <= position <= len(order)
            for part, order, position in pieces
        )

    def state_dict(self) -> dict[str, Any]:
        """Where every worker is, for `load_state_dict`."""
        assert self.generator is not None
        return {
            "orders": list(self.orders),
            "positions": list(self.positions),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave, and go on from there."""
        assert self.generator is not None
        self.orders = list(state["orders"])
        self.positions = list(state["positions"])
        self.generator.set_state(state["generator"])


class GivenBatches(Batches):
    """Batches in orders that the caller gives: nothing is drawn.

    - `order`: a function of a worker and of the number of its pass over its samples, 0 at first: it
      gives the samples of that pass, in their order.
    - `workers`: how many workers there are.
    - `size`: how many samples a batch has.
    - `parts`: which samples each worker holds; by default those of its first pass.

    >>> batches = GivenBatches(lambda worker, number: torch.arange(4) + 10 * number, 1, size=2)
    >>> [batches.draw([0]).tolist() for _ in range(3)]
    [[[0, 1]], [[2, 3]], [[10, 11]]]
    """

    def __init__(
        self,
        order: Callable[[int, int], Tensor],
        workers: int,
        size: int,
        parts: Sequence[Tensor] | None = None,
    ) -> None:
        self.order = order
        self.passes = [-1] * workers  # of each worker, before its first
        first = [order(worker, 0) for worker in range(workers)] if parts is None else parts
        super().__init__(first, size, None)

    def _order(self, worker: int) -> Tensor:
        self.passes[worker] += 1
        return self._filling(self.order(worker, self.passes[worker]))

    def _orders(self, passes: Sequence[int]) -> list[Tensor]:
        return [self._filling(self.order(worker, number)) for worker, number in enumerate(passes)]

    def fits(self, state: dict[str, Any]) -> bool:
        """Whether a state is one of passes that there are, and of places in them."""
        if min(state["passes"], default=0) < 0:
            return False
        orders = self._orders(state["passes"])
        return all(0 <= k <= len(o) for o, k in zip(orders, state["positions"], strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {"passes": list(self.passes), "positions": list(self.positions)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes = list(state["passes"])
        self.positions = list(state["positions"])
        self.orders = self._orders(self.passes)


class SharedBatches(Batches):
    """Batches of groups of workers: all workers of a group have the same, and each call draws one.

    - `groups`: the batches of the groups; worker i is in group i modulo their number.
    - `workers`: how many workers there are.

    >>> groups = Batches([torch.arange(4), torch.arange(4, 8)], 2, torch.Generator())
    >>> batches = SharedBatches(groups, workers=5)
    >>> drawn = batches.draw(range(5))
    >>> bool((drawn[0] == drawn[2]).all()), bool((drawn[0] == drawn[1]).all())
    (True, False)
    """

    def __init__(self, groups: Batches, workers: int) -> None:
        self.groups = groups
        count = len(groups.parts)
        self.parts = [groups.parts[worker % count] for worker in range(workers)]
        self.size, self.generator = groups.size, groups.generator

    def reshuffle(self) -> None:
        self.groups.reshuffle()

    def draw(self, workers: Sequence[int]) -> Tensor:
        count = len(self.groups.parts)
        # All groups draw in each call: what a group draws does not depend on who is honest.
        return self.groups.draw(range(count))[[worker % count for worker in workers]]

    def fits(self, state: dict[str, Any]) -> bool:
        return self.groups.fits(state)

    def state_dict(self) -> dict[str, Any]:
        return self.groups.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.groups.load_state_dict(state)
