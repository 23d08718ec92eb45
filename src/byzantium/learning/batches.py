"""Which samples each worker looks at next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Batches:
    """Batches of indices: each worker draws from its own samples, in a random order.

    A worker whose remaining samples do not fill a batch begins again, in a new order; one that has
    fewer samples than a batch repeats them.
    """

    def __init__(self, parts: Sequence[Tensor], size: int, generator: torch.Generator) -> None:
        self.parts = list(parts)
        self.size = size
        self.generator = generator
        # A part smaller than a batch is repeated until it fills one.
        self.lengths = [len(part) * max(1, -(-size // len(part))) for part in self.parts]
        self.reshuffle()

    def _order(self, worker: int) -> Tensor:
        part, length = self.parts[worker], self.lengths[worker]
        order = part[torch.randperm(part.shape[0], generator=self.generator)]
        return order.repeat(length // part.shape[0]) if length > part.shape[0] else order

    def reshuffle(self) -> None:
        """Let every worker begin again."""
        self.orders = [self._order(worker) for worker in range(len(self.parts))]
        self.positions = [0] * len(self.parts)

    def draw(self, workers: Sequence[int]) -> Tensor:
        """The next batch of each of these workers: indices, (len(workers), size)."""
        drawn = []
        for worker in workers:
            start = self.positions[worker]
            if start + self.size > self.lengths[worker]:
                self.orders[worker], start = self._order(worker), 0
            drawn.append(self.orders[worker][start : start + self.size])
            self.positions[worker] = start + self.size
        return torch.stack(drawn)

    @property
    def epoch(self) -> int:
        """How many batches the worker with the fewest samples has."""
        return max(1, min(len(part) for part in self.parts) // self.size)

    def state_dict(self) -> dict[str, Any]:
        return {
            "orders": list(self.orders),
            "positions": list(self.positions),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.orders = list(state["orders"])
        self.positions = list(state["positions"])
        self.generator.set_state(state["generator"])
