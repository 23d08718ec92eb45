"""The result of a rule for low-rank updates, and the columns of such updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.vectors.factors import Cut, Stack

if TYPE_CHECKING:
    from byzantium.vectors.low_rank import LowRank

Array = NDArray[np.float64]

# How many numbers of an array are converted at a time.
CHUNK = 1 << 18


@dataclass(frozen=True)
class Part:
    """One matrix or array of the updates, and its columns.

    - `name`, `shape`, `dtype`: those of the matrix or array.
    - `factored`: whether it comes as a product.
    - `start`: its first column.
    - `height`, `width`: those of its block of columns.
    """

    name: Any
    shape: tuple[int, ...]
    dtype: torch.dtype
    factored: bool
    start: int
    height: int
    width: int

    @property
    def size(self) -> int:
        return self.height * self.width


class LowRankUpdate(Mapping[Any, Tensor]):
    """A weighted sum of low-rank updates: whole matrices, computed on access, or factors of them.

    `rule(LowRank(updates))` gives one; `LowRank` has an example.

    - `source`: the updates.
    - `weights`: the weight of each update, and at last of the root.
    - `counters`: the arrays of whole numbers.
    """

    def __init__(self, source: LowRank, weights: Array, counters: Mapping[Any, Any]) -> None:
        self.source, self.weights, self.counters = source, weights, counters
        members = len(source.members)
        used = np.flatnonzero(weights[: source.n])
        shares = np.zeros(members)
        np.add.at(shares, source.member_of[used], weights[used])
        parts = [shares]
        if source.base is not None:
            parts.append(np.array([1 - weights.sum()]))
        if source.root is not None:
            parts.append(weights[-1:])
        everyone, shares = source.everyone, np.concatenate(parts)
        active = np.flatnonzero(shares) if shares.any() else np.arange(1)
        #: The updates that count, with the base and the root, and how much each of them does.
        self.members = [everyone[k] for k in active]
        self.shares: Array = shares[active]
        self.parts = {part.name: part for part in source.parts}

    def __len__(self) -> int:
        return len(self.source.pattern)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source.pattern)

    def __getitem__(self, name: Any) -> Tensor:
        if name in self.counters:
            return self.counters[name]
        part = self.parts[name]
        if part.factored:
            return self._stack(name).whole(self.shares).to(part.dtype)
        total = torch.zeros(part.size, dtype=torch.float64)
        for share, one in zip(self.shares.tolist(), self.members, strict=True):
            for columns in chunks(part.size):
                total[columns].add_(one[name].values(columns), alpha=share)
        return total.reshape(part.shape).to(part.dtype)

    @property
    def products(self) -> list[Any]:
        """The names of the matrices that are products."""
        return [name for name, part in self.parts.items() if part.factored]

    def factors(self, name: Any) -> tuple[Tensor, Tensor]:
        """One of the `products` as factors b and a of float64, uncut: their product is the sum."""
        return self._stack(name).combined(self.shares)

    def cut(self, name: Any, rank: int | None = None) -> Cut:
        """One of the `products` as factors: the nearest matrix of a rank.

        - `name`: its name.
        - `rank`: the largest rank of the result; by default nothing is cut.
        """
        return self._stack(name).cut(self.shares, rank)

    def _stack(self, name: Any) -> Stack:
        return Stack([one[name].product for one in self.members])


def chunks(size: int) -> Iterator[slice]:
    """Slices of an array of so many numbers."""
    for start in range(0, size, CHUNK):
        yield slice(start, min(start + (CHUNK), size))
