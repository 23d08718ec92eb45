"""The four passes over the vectors in plain torch, for any device; `compiled` has them for the CPU.

Each takes a matrix of float32 or float64 and the rows of it that take part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from byzantium.aggregation.order import central

# What is converted, mixed, multiplied or sorted is so in blocks of columns of about this size.
BLOCK_BYTES = 8 << 20


def column_blocks(rows: int, d: int, dtype: torch.dtype) -> Iterator[slice]:
    """Slices of columns such that `rows` of them fill a block."""
    width = max(256, BLOCK_BYTES // (max(rows, 1) * dtype.itemsize))
    for start in range(0, d, width):
        yield slice(start, min(start + width, d))


def mixed_blocks(matrix: Tensor, rows: Tensor, mixing: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Columns, and P X in these columns; P = None is the identity."""
    rows = rows.to(matrix.device)
    widest = len(rows) if mixing is None else max(mixing.shape)
    for columns in column_blocks(widest, matrix.shape[1], matrix.dtype):
        block = matrix[:, columns].index_select(0, rows)
        yield columns, block if mixing is None else mixing.to(block) @ block


def squared_norms(matrix: Tensor) -> Tensor:
    """(n,), float64."""
    total = torch.zeros(len(matrix), dtype=torch.float64)
    for columns in column_blocks(len(matrix), matrix.shape[1], torch.float64):
        total += matrix[:, columns].double().square().sum(dim=1).cpu()
    return total


def gram(
    matrix: Tensor, rows: Tensor, anchors: Sequence[Tensor | None], reference: int
) -> Tensor:
    """<p_i - r, p_j - r> in float64 for rows and anchors, about row `reference` of the rows.

    An anchor is a vector; None is the origin.
    """
    points = len(rows) + len(anchors)
    total = torch.zeros(points, points, dtype=torch.float64)
    rows = rows.to(matrix.device)
    for columns in column_blocks(points, matrix.shape[1], torch.float64):
        block = matrix[:, columns].index_select(0, rows).double()
        origin = block.new_zeros(block.shape[1])
        beside = [origin if a is None else a[columns].double() for a in anchors]
        block = torch.vstack([block, *beside]) - block[reference]
        total += (block @ block.T).cpu()
    return total


def combine(matrix: Tensor, rows: Tensor, weights: Tensor, out: Tensor) -> None:
    """out = weights @ matrix[rows], for weights (n,) in float64."""
    for columns, block in mixed_blocks(matrix, rows, None):
        out[columns] = weights.to(block) @ block


def central_mean(
    matrix: Tensor, rows: Tensor, mixing: Tensor | None, kept: int, nearest: bool, out: Tensor
) -> None:
    """out = the mean of the `kept` central values of each column of P X; see `order.central`."""
    for columns, block in mixed_blocks(matrix, rows, mixing):
        values = block.sort(dim=0).values
        inside = central(values, kept, nearest=nearest)
        out[columns] = torch.where(inside, values.double(), 0).sum(dim=0).div(kept)
