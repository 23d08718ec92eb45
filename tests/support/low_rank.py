"""Low-rank updates of several contributors, and the same as dense vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Update = dict[str, Any]

SHAPES = {"q": (30, 20), "v": (8, 50)}


def updates(
    n: int,
    ranks: Sequence[int] = (1, 2, 3, 4, 5),
    shapes: Mapping[str, tuple[int, int]] = SHAPES,
    *,
    seed: int = 0,
    bad: int = 2,
    dtype: torch.dtype = torch.float64,
) -> list[Update]:
    """Updates of these ranks in turn, of which the first are of five times the size."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows = []
    for i in range(n):
        size = 5.0 if i < bad else 1.0
        row: Update = {}
        for k, (name, (out, columns)) in enumerate(shapes.items()):
            rank = ranks[(i + k) % len(ranks)]
            b, a = size * normal(out, rank), normal(rank, columns)
            row[name] = (b.to(dtype), a.to(dtype), 2.0 / rank)
        row["bias"] = (size * normal(7) + 3).to(dtype)
        rows.append(row)
    return rows


def dense(row: Mapping[str, Any]) -> Tensor:
    """An update as one vector of float64: its products are formed."""
    parts = []
    for value in row.values():
        if isinstance(value, tuple):
            b, a, scale = value
            parts.append(scale * (b.double() @ a.double()))
        else:
            parts.append(value.double())
    return torch.cat([part.reshape(-1) for part in parts])


def matrix(rows: Sequence[Mapping[str, Any]]) -> Tensor:
    return torch.stack([dense(row) for row in rows])


def rotated(row: Mapping[str, Any], seed: int, condition: float = 10.0) -> Update:
    """The same update in another basis: (B M, M^-1 A) for a random M."""
    generator = torch.Generator().manual_seed(seed)
    result: Update = {}
    for name, value in row.items():
        if not isinstance(value, tuple):
            result[name] = value
            continue
        b, a, scale = value
        r = len(a)
        square = torch.randn(r, r, generator=generator, dtype=torch.float64)
        U, _, V = torch.linalg.svd(square)
        values = torch.logspace(0, -torch.log10(torch.tensor(condition)), r, dtype=torch.float64)
        M = U @ torch.diag(values) @ V
        result[name] = (b @ M, torch.linalg.solve(M, a), scale)
    return result


def flattened(result: Mapping[str, Any]) -> Tensor:
    """A result of a rule as one vector."""
    return torch.cat([tensor.double().reshape(-1) for tensor in result.values()])
