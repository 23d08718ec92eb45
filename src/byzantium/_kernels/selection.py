"""Which of the sorted values of a column a coordinate-wise rule averages, and from which rows."""

from __future__ import annotations

import torch
from torch import Tensor

# How many numbers are sorted at a time: sorting with indices takes dozens of bytes for each. For so
# few torch uses one thread, so that no thread waits for another.
PIECE = 1 << 15


def central(values: Tensor, count: int, *, nearest: bool) -> Tensor:
    """Mark the `count` central values of each sorted column: truth values, (n, d) or (n, 1).

    Central are the middle ones, or with `nearest` those nearest the median. These are neighbors in
    order, too: slide a window up from the lowest value, as long as the value that would enter is
    nearer than the one that would leave. Of two equally near values the lower counts.
    """
    n = len(values)
    position = torch.arange(n, device=values.device)[:, None]
    if nearest:
        values = values.double()
        median = (values[(n - 1) // 2] + values[n // 2]) / 2
        low = (values[count:] - median < median - values[: n - count]).int().sum(dim=0)
    else:
        low = torch.tensor((n - count) // 2)
    return (low <= position) & (position < low + count)


def shares(matrix: Tensor, count: int, *, nearest: bool) -> Tensor:
    """(n,): how many columns each row supplied, in parts; rows with equal values share equally."""
    width = max(1, PIECE // max(1, len(matrix)))
    total = torch.zeros(len(matrix), dtype=torch.float64)
    for start in range(0, matrix.shape[1], width):
        total += _shares(matrix[:, start : start + width], count, nearest=nearest)
    return total


def _shares(matrix: Tensor, count: int, *, nearest: bool) -> Tensor:
    values, order = matrix.sort(dim=0, stable=True)
    n, d = values.shape
    weight = central(values, count, nearest=nearest).expand(n, d).double() / count
    # Positions start[k] <= k < end[k] hold equal values; their weights are pooled.
    position = torch.arange(n, device=matrix.device)[:, None].expand(n, d)
    rises = torch.ones_like(values, dtype=torch.bool)
    rises[1:] = values[1:] > values[:-1]
    start = torch.where(rises, position, 0).cummax(dim=0).values
    end = torch.where(rises.roll(-1, 0), position + 1, n).flip(0).cummin(dim=0).values.flip(0)
    total = torch.cat([weight.new_zeros(1, d), weight.cumsum(dim=0)])
    weight = (total.gather(0, end) - total.gather(0, start)) / (end - start)
    return torch.zeros_like(weight).scatter_(0, order, weight).sum(dim=1).cpu()
