"""The passes over vectors in plain torch, for any device; `compiled_passes` are for the CPU.

Each takes a matrix of float32 or float64, and which of its rows to use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium._kernels import conjugate_gradients
from byzantium._kernels.conjugate_gradients import Minimum
from byzantium._kernels.networks import Network, in_order, middle
from byzantium._kernels.selection import PIECE, central, central_masses, shares_of_masses
from byzantium._kernels.selection import shares as shares_of
from byzantium._kernels.threads import parallel_map

Array = NDArray[np.float64]
Rows = NDArray[np.int64]  # indices of rows

# Columns are converted, mixed, multiplied and sorted in blocks of about this size.
BLOCK_BYTES = 8 << 20
# Sorting reads a piece of columns again and again: on the CPU (True) it stays in the cache, and on
# other devices each operation has much to do.
SORTED_BYTES = {True: 2 << 20, False: 256 << 20}
# A piece has so many columns or more, if there are as many: each operation takes a microsecond
# before it begins.
COLUMNS = 8192
# With fewer columns, or more rows, one call of `sort` is faster than a network.
FEWEST, MOST_WIRES = 1024, 1024


def column_blocks(rows: int, d: int, dtype: torch.dtype) -> Iterator[slice]:
    """Divide d columns into slices, such that `rows` rows of a slice take about 8 MB.

    >>> list(column_blocks(1024, 5000, torch.float32))
    [slice(0, 2048, None), slice(2048, 4096, None), slice(4096, 5000, None)]
    """
    width = max(256, BLOCK_BYTES // (max(rows, 1) * dtype.itemsize))
    for start in range(0, d, width):
        yield slice(start, min(start + width, d))


def mixed_blocks(
    matrix: Tensor, rows: Rows, mixing: Array | None
) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of columns, and P X in these columns; None for P is the identity."""
    which = torch.from_numpy(rows).to(matrix.device)
    widest = len(rows) if mixing is None else max(mixing.shape)
    for columns in column_blocks(widest, matrix.shape[1], matrix.dtype):
        block = matrix[:, columns].index_select(0, which)
        yield columns, block if mixing is None else torch.from_numpy(mixing).to(block) @ block


def mixed(matrix: Tensor, rows: Rows, mixing: Array) -> Tensor:
    """P X in float64."""
    which = torch.from_numpy(rows).to(matrix.device)
    return torch.from_numpy(mixing).to(matrix.device) @ matrix[which].double()


def squared_norms(matrix: Tensor, rows: Rows) -> Array:
    """The squared norm of each row, (n,)."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=matrix.device)
    for _, block in mixed_blocks(matrix, rows, None):
        total += block.double().square().sum(dim=1)
    return total.cpu().numpy()


def gram(matrix: Tensor, rows: Rows, anchors: Sequence[Tensor | None], reference: int) -> Array:
    """Inner products <p_i - r, p_j - r> of rows and anchors, in float64; r is the row `reference`.

    An anchor is a vector; None is the origin.
    """
    points = len(rows) + len(anchors)
    total = torch.zeros(points, points, dtype=torch.float64, device=matrix.device)
    which = torch.from_numpy(rows).to(matrix.device)
    for columns in column_blocks(points, matrix.shape[1], torch.float64):
        block = matrix[:, columns].index_select(0, which).double()
        origin = block.new_zeros(block.shape[1])
        beside = [origin if a is None else a[columns].double() for a in anchors]
        block = torch.vstack([block, *beside]) - block[reference]
        total += block @ block.T
    # Some libraries' products are not symmetric to the bit, and two rows that are each other's
    # nearest would differ by that.
    lower = total.tril()
    return (lower + lower.tril(-1).T).cpu().numpy()


def combine(
    matrix: Tensor, rows: Rows, anchors: Sequence[Tensor | None], weights: Array, out: Tensor
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
    rows: Rows,
    mixing: Array | None,
    count: int,
    nearest: bool,
    out: Tensor,
    shares: Array | None = None,
) -> float:
    """Fill `out` with the mean of the `count` central values of each column of P X.

    See `selection.central`. Returns a number that no magnitude in X exceeds, which costs nothing;
    infinity if P leaves out a row; NaN if there is a NaN. The `selection.shares` of each row of P X
    are added to `shares`, unless it is None.
    """
    d, which = matrix.shape[1], torch.from_numpy(rows).to(matrix.device)
    factor = None if mixing is None else torch.from_numpy(mixing).to(matrix)
    n = len(rows) if mixing is None else len(mixing)

    def part(first: int, last: int) -> tuple[float, Array | None]:
        block = matrix[:, first:last].index_select(0, which)
        low, high = block.aminmax()
        if factor is not None:
            block = factor @ block
        supplied = None if shares is None else shares_of(block, count, nearest=nearest).numpy()
        out[first:last] = _central_mean(block, count, nearest)
        return float(torch.maximum(high, -low)), supplied

    cpu = matrix.device.type == "cpu"
    pieces = sorted_pieces(max(n, len(rows)) * matrix.itemsize, d, SORTED_BYTES[cpu])
    results = parallel_map(part, pieces, torch.get_num_threads() if cpu else 1)
    for _, supplied in results:
        if supplied is not None:
            assert shares is not None
            shares += supplied
    return float(np.max([0.0, *(peak for peak, _ in results)]))


def sorted_pieces(column: int, d: int, most: int) -> list[tuple[int, int]]:
    """Divide d columns into pieces of about equal size that are sorted one after the other.

    - `column`: the bytes of a column.
    - `most`: about how many bytes a piece has, unless a column has so many that this would leave
      too few columns.

    >>> sorted_pieces(100, 50_000, 2 << 20)
    [(0, 25000), (25000, 50000)]
    """
    count = max(1, round(d / max(most // max(column, 1), COLUMNS)))
    step = max(1, -(-d // count))
    return [(first, min(first + step, d)) for first in range(0, d, step)]


def _central_mean(block: Tensor, count: int, nearest: bool) -> Tensor:
    """The mean of the central values of each column. The block is overwritten."""
    n, low = len(block), (len(block) - count) // 2
    quick = block.shape[1] >= FEWEST and n <= MOST_WIRES
    values: Sequence[Tensor]
    if nearest:
        window = torch.stack(_compared(block, in_order(n))) if quick else block.sort(dim=0).values
        inside = central(window, count, nearest=True)
        return torch.where(inside, window.double(), 0).sum(dim=0).div(count)
    if quick:
        values = _compared(block, middle(n, low, low + count))
    else:
        values = list(block.sort(dim=0).values[low : low + count])
    if count == 1:
        return values[0]
    total = values[0].double()
    for value in values[1:]:
        total += value
    return total.div_(count)


def _compared(block: Tensor, network: Network) -> list[Tensor]:
    """What a network makes of the rows of a block, which it overwrites, on its wires."""
    rows, spare = list(block), torch.empty_like(block[0])
    for (a, b), _, (low, high) in network.parts:
        x, y = rows[a], rows[b]
        if not high:
            torch.minimum(x, y, out=x)
        elif not low:
            torch.maximum(x, y, out=y)
        else:
            torch.minimum(x, y, out=spare)
            torch.maximum(x, y, out=y)
            rows[a], spare = spare, x
    return [rows[wire] for wire in network.wires]


def weighted_mean(
    matrix: Tensor,
    rows: Rows,
    mixing: Array | None,
    weights: Array,
    kept: float,
    nearest: bool,
    out: Tensor,
    shares: Array | None = None,
) -> float:
    """Fill `out` with the mean of the central part of the weight in each column of P X.

    See `selection.central_masses`. Returns a number that no magnitude in P X exceeds, the largest
    one where P is None; NaN if there is a NaN. How much of the result came from each row, summed
    over columns, is added to `shares`.
    """
    peaks = [0.0]
    if shares is not None:
        add_shares(matrix, rows, mixing, weights, kept, nearest, shares)
    for columns, block in mixed_blocks(matrix, rows, mixing):
        values, order = block.sort(dim=0, stable=True)
        mass = central_masses(values, order, weights, kept, nearest=nearest)
        mean = torch.where(mass > 0, mass * values.double(), 0).sum(dim=0)
        # Rounding never leaves the interval of the averaged values: equal ones are their mean.
        low = torch.where(mass > 0, values, torch.inf).amin(dim=0)
        high = torch.where(mass > 0, values, -torch.inf).amax(dim=0)
        out[columns] = mean.clamp(low.double(), high.double())
        peaks.append(float(block.abs().max()))
    return float(np.max(peaks))


def add_shares(
    matrix: Tensor,
    rows: Rows,
    mixing: Array | None,
    weights: Array,
    kept: float,
    nearest: bool,
    shares: Array,
) -> None:
    """Add to `shares` how much of the result of `weighted_mean` comes from each row of P X."""
    for _, block in mixed_blocks(matrix, rows, mixing):
        width = max(1, PIECE // max(1, len(block)))
        for start in range(0, block.shape[1], width):
            values, order = block[:, start : start + width].sort(dim=0, stable=True)
            mass = central_masses(values, order, weights, kept, nearest=nearest)
            shares += shares_of_masses(values, order, weights, mass).numpy()


def newton(gram: Array, counts: Array, near: float) -> Minimum | None:
    """The point at which Newton's method ends for many rows.

    None for few: there is no such kernel in plain torch, and `geometric_median` searches without.
    """
    n = len(counts)
    many = n >= conjugate_gradients.MANY
    return conjugate_gradients.newton(gram[:n, :n], counts, near) if many else None


def moments(matrix: Tensor, rows: Rows, mean: Tensor, deviation: Tensor) -> None:
    """Fill in the mean and the standard deviation (n - 1) of each column; of one row it is 0."""
    for columns, block in mixed_blocks(matrix, rows, None):
        wide = block.double()
        mean[columns] = wide.mean(dim=0)
        deviation[columns] = wide.std(dim=0, correction=min(1, len(rows) - 1))
