"""The passes over the vectors on the CPU, by compiled kernels; `plain` says what they mean.

Kernels release the GIL and are spread over threads of our own, as many as torch uses: those of
numba die in a forked child and abort under several callers, those of torch are not ours to use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.aggregation import kernels
from byzantium.aggregation.network import network
from byzantium.core import spread

Array = NDArray[np.float64]
Result = TypeVar("Result")

# Each thread is given about this many pieces, so that a busy core does not hold up the rest.
PIECES_PER_THREAD = 4
# Below this many values a call is over before another thread has woken up.
SMALL = 1 << 18
# Mixed rows are made in blocks of this many columns, just before they are sorted.
MIXED_COLUMNS = 4 * kernels.BLOCK


def mixed(matrix: Tensor, rows: Tensor, mixing: Array) -> Tensor:
    flat, offsets = _flat(matrix, rows)
    lists, nothing = _lists(mixing), np.empty(0, flat.dtype)
    result = np.empty((len(mixing), matrix.shape[1]))

    def part(first: int, last: int) -> None:
        kernels.mix(flat, offsets, *lists, nothing, 0.0, result[:, first:last], first, last)

    _over_columns(part, len(lists[1]), matrix.shape[1])
    return torch.from_numpy(result)


def squared_norms(matrix: Tensor, rows: Tensor) -> Array:
    flat, offsets = _flat(matrix, rows)

    def part(first: int, last: int) -> Array:
        total = np.zeros(len(offsets))
        kernels.squared_norms(flat, offsets, total, first, last)
        return total

    return np.sum(_over_columns(part, len(rows), matrix.shape[1]), axis=0)


def gram(matrix: Tensor, rows: Tensor, anchors: Sequence[Tensor | None], reference: int) -> Array:
    points = len(rows) + len(anchors)
    flat, offsets = _flat(matrix, rows)
    kinds = [kernels.ORIGIN if anchor is None else kernels.CENTRE for anchor in anchors]
    offsets = np.append(offsets, np.array(kinds, dtype=np.int64))
    centre = _centre(anchors, matrix).numpy()

    def part(first: int, last: int) -> Array:
        total = np.zeros((-(-points // 3) * 3,) * 2)
        kernels.gram(flat, offsets, centre, reference, total, first, last)
        return total

    parts = _over_columns(part, points, matrix.shape[1])
    lower = np.tril(np.sum(parts, axis=0)[:points, :points])
    return lower + np.tril(lower, -1).T


def combine(
    matrix: Tensor, rows: Tensor, anchors: Sequence[Tensor | None], weights: Array, out: Tensor
) -> None:
    n, d = len(rows), matrix.shape[1]
    flat, offsets = _flat(matrix, rows)
    # The centre comes last among the anchors.
    on_centre = float(weights[-1]) if anchors and anchors[-1] is not None else 0.0
    centre = _centre(anchors, matrix).numpy()
    lists, result = _lists(weights[None, :n]), out.numpy()

    def part(first: int, last: int) -> None:
        piece = result[None, first:last]
        kernels.mix(flat, offsets, *lists, centre, on_centre, piece, first, last)

    _over_columns(part, len(lists[1]), d)


def central_mean(
    matrix: Tensor, rows: Tensor, mixing: Array | None, kept: int, nearest: bool, out: Tensor
) -> Array:
    n, d = len(rows) if mixing is None else len(mixing), matrix.shape[1]
    flat, offsets = _flat(matrix, rows)
    kernel, low = kernels.nearest_mean if nearest else kernels.middle_mean, (n - kept) // 2
    net = (
        network(n, 0, n, in_order=True) if nearest else network(n, low, low + kept, in_order=False)
    )
    result = out.numpy()
    lists, nothing = None if mixing is None else _lists(mixing), np.empty(0, flat.dtype)

    def part(first: int, last: int) -> Array:
        squares = np.zeros(n)
        if lists is None:
            kernel(flat, offsets, *net, kept, squares, result, first, last)
            return squares
        mixed = np.empty((n, MIXED_COLUMNS), flat.dtype)
        places = np.arange(n) * MIXED_COLUMNS
        for start in range(first, last, MIXED_COLUMNS):
            stop = min(start + MIXED_COLUMNS, last)
            kernels.mix(flat, offsets, *lists, nothing, 0.0, mixed, start, stop)
            piece = result[start:stop]
            kernel(mixed.reshape(-1), places, *net, kept, squares, piece, 0, stop - start)
        return squares

    return np.sum(_over_columns(part, n, d), axis=0)


def moments(matrix: Tensor, rows: Tensor, mean: Tensor, deviation: Tensor) -> None:
    flat, offsets = _flat(matrix, rows)
    arguments = (flat, offsets, mean.numpy(), deviation.numpy())
    _over_columns(partial(kernels.moments, *arguments), len(rows), matrix.shape[1])


def _lists(mixing: Array) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """A matrix as starts, sources, shares: see `kernels.mix`."""
    rows, sources = mixing.nonzero()
    starts = np.searchsorted(rows, np.arange(len(mixing) + 1))
    return starts, sources, mixing[rows, sources]


def _centre(anchors: Sequence[Tensor | None], matrix: Tensor) -> Tensor:
    """The one anchor that is not the origin; empty where there is none."""
    return next((a for a in anchors if a is not None), matrix.new_empty(0))


def _flat(matrix: Tensor, rows: Tensor) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """One flat array and where in it each row starts, whatever lies between the rows."""
    size = (len(matrix) - 1) * matrix.stride(0) + matrix.shape[1] if matrix.numel() else 0
    flat: NDArray[Any] = matrix.as_strided((size,), (1,)).numpy()
    return flat, (rows * matrix.stride(0)).numpy()


def _over_columns(kernel: Callable[[int, int], Result], n: int, d: int) -> list[Result]:
    """kernel(first, last) for pieces that together cover the d columns of n rows."""
    threads = torch.get_num_threads()
    if threads == 1 or n * d < SMALL:
        return [kernel(0, d)]
    step = kernels.BLOCK * -(-d // (kernels.BLOCK * threads * PIECES_PER_THREAD))
    pieces = [(first, min(first + step, d)) for first in range(0, d, step)]
    return spread(kernel, pieces, threads)
