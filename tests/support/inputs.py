"""Awkward matrices (n, d), float64, with a seed each: what aggregation meets in the wild."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def gaussian(n: int, d: int = 7, seed: int = 0) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def heterogeneous(n: int, d: int = 7, seed: int = 0) -> Tensor:
    """Groups of workers around three centres far from each other."""
    return gaussian(n, d, seed) + 10 * gaussian(3, d, seed + 1).repeat(n // 3 + 1, 1)[:n]


def common_part(n: int, d: int = 900, seed: int = 0) -> Tensor:
    """Rows of norm 63 whose spread is 1e-3: weights of a model rather than updates."""
    shared = gaussian(1, d, seed)
    own = gaussian(n, d, seed + 1)
    return 63 * shared / shared.norm() + 1e-3 * own / own.norm(dim=1, keepdim=True)


def copies(n: int, d: int = 7, seed: int = 0) -> Tensor:
    """Groups of rows that are equal to the bit."""
    return gaussian(n, d, seed)[torch.arange(n) // 4]


def thin(n: int, d: int = 9, seed: int = 0) -> Tensor:
    """Rows in a plane."""
    return gaussian(n, 2, seed) @ gaussian(2, d, seed + 1)


def outliers(n: int, d: int = 7, seed: int = 0, size: float = 1e8) -> Tensor:
    """Two rows that are huge, and not quite equal."""
    rows = gaussian(n, d, seed) + 1
    rows[-2:] = size * (1 + 1e-3 * gaussian(2, d, seed + 1))
    return rows


INPUTS: dict[str, Callable[[int], Tensor]] = {
    "gaussian": gaussian,
    "heterogeneous": heterogeneous,
    "common part": common_part,
    "copies": copies,
    "in a plane": thin,
    "outliers at 1e8": outliers,
    "one column": lambda n: gaussian(n, 1, 3),
}
