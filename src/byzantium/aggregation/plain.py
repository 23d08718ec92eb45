"""The passes over the vectors in plain torch, for any device; `compiled` has them for the CPU.

Each takes a matrix of float32 or float64 and the rows of it that take part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.aggregation.order import central
from byzantium.aggregation.order import shares as shares_of

Array = NDArray[np.float64]

# What is converted, mixed, multiplied or sorted is so in blocks of columns of about this size.
BLOCK_BYTES = 8 << 20


def column_blocks(rows: int, d: int, dtype: torch.dtype) -> Iterator[slice]:
    """Slices of columns such that `rows` of them fill a block."""
    width = max(256, BLOCK_BYTES // (max(rows, 1) * dtype.itemsize))
    for start in range(0, d, width):
        yield slice(start, min(start + width, d))


def mixed_blocks(
    matrix: Tensor, rows: Tensor, mixing: Array | None
) -> Iterator[tuple[slice, Tensor]]:
    """Columns, and P X in these columns; P = None is the identity."""
    rows = rows.to(matrix.device)
    widest = len(rows) if mixing is None else max(mixing.shape)
    for columns in column_blocks(widest, matrix.shape[1], matrix.dtype):
        block = matrix[:, columns].index_select(0, rows)
        yield columns, block if mixing is None else torch.from_numpy(mixing).to(block) @ block


def mixed(matrix: Tensor, rows: Tensor, mixing: Array) -> Tensor:
    """P X in float64."""
    return torch.from_numpy(mixing).to(matrix.device) @ matrix[rows.to(matrix.device)].double()


def squared_norms(matrix: Tensor, rows: Tensor) -> Array:
    """(n,)."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=matrix.device)
    for _, block in mixed_blocks(matrix, rows, None):
        total += block.double().square().sum(dim=1)
    return total.cpu().numpy()


def gram(matrix: Tensor, rows: Tensor, anchors: Sequence[Tensor | None], reference: int) -> Array:
    """<p_i - r, p_j - r> in float64 for rows and anchors, about row `reference` of the rows.

    An anchor is a vector; None is the origin.
    """
    points = len(rows) + len(anchors)
    total = torch.zeros(points, points, dtype=torch.float64, device=matrix.device)
    rows = rows.to(matrix.device)
    for columns in column_blocks(points, matrix.shape[1], torch.float64):
        block = matrix[:, columns].index_select(0, rows).double()
        origin = block.new_zeros(block.shape[1])
        beside = [origin if a is None else a[columns].double() for a in anchors]
        block = torch.vstack([block, *beside]) - block[reference]
        total += block @ block.T
    # Some libraries' products are not symmetric to the bit, and two rows that are each other's
    # nearest would be told apart by that.
    lower = total.tril()
    return (lower + lower.tril(-1).T).cpu().numpy()


def combine(
    matrix: Tensor, rows: Tensor, anchors: Sequence[Tensor | None], weights: Array, out: Tensor
) -> None:
    """Fill `out` with the weighted sum of rows and anchors."""
    shares = torch.from_numpy(weights).to(out)
    for columns, block in mixed_blocks(matrix, rows, None):
        out[columns] = shares[: len(rows)] @ block
    for anchor, share in zip(anchors, weights[len(rows) :].tolist(), strict=True):
        if anchor is not None:
            out.add_(anchor, alpha=share)


def central_mean(
    matrix: Tensor,
    rows: Tensor,
    mixing: Array | None,
    kept: int,
    nearest: bool,
    out: Tensor,
    shares: Array | None = None,
) -> float:
    """Fill `out` with the mean of the `kept` central values of each column of P X.

    See `order.central`. Returns the largest magnitude in P X, as it is at hand; NaN beside NaN.
    shares: to be raised, for each row of P X, by its `order.shares`.
    """
    peaks = [0.0]
    for columns, block in mixed_blocks(matrix, rows, mixing):
        values = block.sort(dim=0).values
        inside = central(values, kept, nearest=nearest)
        out[columns] = torch.where(inside, values.double(), 0).sum(dim=0).div(kept)
        peaks.append(float(block.abs().max()))
        if shares is not None:
            shares += shares_of(block, kept, nearest=nearest).numpy()
    return float(np.max(peaks))


def newton(gram: Array, n: int, near: float) -> tuple[Array, list[float]]:
    """No weights, and a gradient that says so: `geometric_median` has a search without kernels."""
    return np.zeros(n), [math.inf, 0.0, 0.0]


def moments(matrix: Tensor, rows: Tensor, mean: Tensor, deviation: Tensor) -> None:
    """The mean and the unbiased standard deviation of each column; of one row, zero."""
    for columns, block in mixed_blocks(matrix, rows, None):
        wide = block.double()
        mean[columns] = wide.mean(dim=0)
        deviation[columns] = wide.std(dim=0, correction=min(1, len(rows) - 1))
