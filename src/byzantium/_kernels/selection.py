"""Which of the sorted values of a column a coordinate-wise rule averages, and from which rows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
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
    weight = _shared(values, weight, torch.ones_like(weight))
    return torch.zeros_like(weight).scatter_(0, order, weight).sum(dim=1).cpu()


def _shared(values: Tensor, mass: Tensor, weights: Tensor) -> Tensor:
    """Masses of sorted columns, where equal values share theirs in proportion to weights."""
    n, d = values.shape
    # Positions start[k] <= k < end[k] hold equal values; what they have is pooled.
    position = torch.arange(n, device=values.device)[:, None].expand(n, d)
    rises = torch.ones_like(values, dtype=torch.bool)
    rises[1:] = values[1:] > values[:-1]
    start = torch.where(rises, position, 0).cummax(dim=0).values
    end = torch.where(rises.roll(-1, 0), position + 1, n).flip(0).cummin(dim=0).values.flip(0)

    def pooled(numbers: Tensor) -> Tensor:
        total = torch.cat([numbers.new_zeros(1, d), numbers.cumsum(dim=0)])
        return total.gather(0, end) - total.gather(0, start)

    return weights * (pooled(mass) / pooled(weights))


# -- with weights ------------------------------------------------------------------------------

# Shares of the weight that differ by less are equal: sums of weights are rounded.
EQUAL_SHARES = 1e-12


def central_masses(
    values: Tensor, order: Tensor, weights: NDArray[np.float64], kept: float, *, nearest: bool
) -> Tensor:
    """How much each value of a sorted column counts in the mean of its central part, (n, d).

    Let value i of a sorted column extend over an interval as long as its weight. Central is the
    middle of all intervals, of the length `kept`, or with `nearest` what is nearest the median (of
    two equally near values the lower counts first). Where `kept` is 0 it is the median itself, the
    mean of two values where half of the weight ends between them.

    - `values`, `order`: the sorted columns, and the row that each value comes from.
    - `weights`: (n,), those of the rows; they sum to one.
    - `kept`: the share of the weight that counts, from 0 to 1.
    """
    own = torch.from_numpy(weights).to(values.device)[order]
    ends = own.cumsum(dim=0)
    if nearest or not kept:
        last = len(values) - 1
        low = (ends < 0.5 - EQUAL_SHARES).sum(dim=0, keepdim=True).clamp(max=last)
        high = (ends <= 0.5 + EQUAL_SHARES).sum(dim=0, keepdim=True).clamp(max=last)
        if not kept:
            halves = torch.full_like(ends[:1], 0.5)
            return torch.zeros_like(ends).scatter_add_(0, low, halves).scatter_add_(0, high, halves)
    if nearest:
        median = (values.gather(0, low).double() + values.gather(0, high).double()) / 2
        by_distance = (values.double() - median).abs().sort(dim=0, stable=True).indices
        sorted_own = own.gather(0, by_distance)
        inside = _overlap(sorted_own.cumsum(dim=0), sorted_own, 0.0, kept)
        inside = torch.zeros_like(inside).scatter_(0, by_distance, inside)
    else:
        cut = (1 - kept) / 2
        inside = _overlap(ends, own, cut, 1 - cut)
    return inside / inside.sum(dim=0)


def _overlap(ends: Tensor, own: Tensor, first: float, last: float) -> Tensor:
    """How much of each interval, of length `own`, lies between two numbers."""
    inside = (ends.clamp(max=last) - (ends - own).clamp(min=first)).clamp(min=0)
    # A rounding error, times the value of an attacker, would matter.
    return torch.where(inside > EQUAL_SHARES, inside, 0)


def shares_of_masses(
    values: Tensor, order: Tensor, weights: NDArray[np.float64], mass: Tensor
) -> Tensor:
    """(n,): how much of the result each row supplied, summed over columns.

    - `values`, `order`, `weights`, `mass`: as in `central_masses`.
    """
    own = torch.from_numpy(weights).to(values.device)[order]
    supplied = _shared(values, mass, own)
    return torch.zeros_like(supplied).scatter_(0, order, supplied).sum(dim=1).cpu()
