"""Order statistics over workers: the mean of the central values of each column.

Every coordinate-wise rule is the mean of `kept` sorted values of a column: the middle ones (median,
trimmed mean) or those nearest the median (MeaMed). On the CPU a pruned sorting network, which is a
fixed list of minima and maxima, runs over whole blocks of columns at once; elsewhere torch sorts.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.aggregation.geometry import column_blocks

# Each thread is given about this many pieces, so that a busy core does not hold up the rest.
PIECES_PER_THREAD = 4
# Below this many values a call is over before another thread has woken up.
SMALL = 1 << 16


def central_mean(matrix: Tensor, rows: Tensor, kept: int, *, nearest: bool, out: Tensor) -> None:
    """Of each column of `matrix[rows]`, the mean of `kept` central values, into `out` (d,)."""
    if matrix.device.type == "cpu":
        _central_mean_by_network(matrix, rows, kept, nearest, out)
    else:
        out.copy_(central_mean_by_sorting(matrix[rows.to(matrix.device)], kept, nearest=nearest))


def central_mean_by_sorting(matrix: Tensor, kept: int, *, nearest: bool) -> Tensor:
    """The same in plain torch, for any device."""
    values = matrix.sort(dim=0).values
    return (values * central(values, kept, nearest=nearest)).sum(dim=0) / kept


def central(values: Tensor, kept: int, *, nearest: bool) -> Tensor:
    """Which of the sorted values of each column are averaged: (n, d), or (n, 1) where all agree.

    Those nearest the median stand side by side. Slide a window up from the lowest values, as long
    as the value that would enter is nearer than the one that would leave.
    """
    n = len(values)
    if not nearest:
        low = (n - kept) // 2
        position = torch.arange(n, device=values.device)[:, None]
        return (low <= position) & (position < low + kept)
    median = (values[(n - 1) // 2] + values[n // 2]) / 2
    slides = (values[kept:] - median < median - values[: n - kept]).int().sum(dim=0)
    position = torch.arange(n, device=values.device)[:, None]
    return (slides <= position) & (position < slides + kept)


def shares(matrix: Tensor, rows: Tensor, kept: int, *, nearest: bool) -> Tensor:
    """(n,): how many columns each row supplied; rows with equal values share equally."""
    total = torch.zeros(len(rows), dtype=torch.float64)
    for columns in column_blocks(len(rows), matrix.shape[1], torch.float64):
        block = matrix[:, columns].index_select(0, rows.to(matrix.device))
        total += _shares(block, kept, nearest=nearest).cpu()
    return total


def _shares(matrix: Tensor, kept: int, *, nearest: bool) -> Tensor:
    values, order = matrix.sort(dim=0, stable=True)
    n, d = values.shape
    weight = central(values, kept, nearest=nearest).expand(n, d).double() / kept
    # Positions start[k] <= k < end[k] hold equal values; their weights are pooled.
    position = torch.arange(n, device=matrix.device)[:, None].expand(n, d)
    rises = torch.ones_like(values, dtype=torch.bool)
    rises[1:] = values[1:] > values[:-1]
    start = torch.where(rises, position, 0).cummax(dim=0).values
    end = torch.where(rises.roll(-1, 0), position + 1, n).flip(0).cummin(dim=0).values.flip(0)
    total = torch.cat([weight.new_zeros(1, d), weight.cumsum(dim=0)])
    weight = (total.gather(0, end) - total.gather(0, start)) / (end - start)
    return torch.zeros_like(weight).scatter_(0, order, weight).sum(dim=1)


# -- sorting networks --------------------------------------------------------------------------


class Network(NamedTuple):
    """comparators: (k, 4) of places a, b, low, high: read a and b, write their minimum and maximum.

    A place i >= 0 is a spare row of a buffer of `places` rows; i < 0 is row ~i of the input, which
    is thus read once and never copied; -1 as a target means that nobody needs the value. Every
    comparator writes to places other than those it reads: written in place, the minimum becomes a
    masked store, several times slower. chosen: the places of the values to average.
    """

    comparators: NDArray[np.int64]
    chosen: NDArray[np.int64]
    places: int


@lru_cache(maxsize=64)
def network(n: int, first: int, last: int, *, in_order: bool) -> Network:
    """A network that brings the values of ranks first <= k < last of n out, sorted or as a set."""
    comparators: list[tuple[int, int, int, int]] = []
    place = [~i for i in range(n)]
    spare: list[int] = []
    places = 0

    def take() -> int:
        nonlocal places
        if spare:
            return spare.pop()  # the last one freed is still in the cache
        places += 1
        return places - 1

    for a, b, low_needed, high_needed in _pruned(n, first, last, in_order=in_order):
        read = place[a], place[b]
        place[a] = take() if low_needed else -1
        place[b] = take() if high_needed else -1
        comparators.append((*read, place[a], place[b]))
        spare.extend(p for p in read if p >= 0)
    table = np.array(comparators, dtype=np.int64).reshape(-1, 4)
    return Network(table, np.array(place[first:last], dtype=np.int64), max(places, 1))


def _pruned(n: int, first: int, last: int, *, in_order: bool) -> list[tuple[int, int, bool, bool]]:
    """Comparators that matter for the wanted ranks, and which of their two results do.

    Going backwards, a wire is dropped, only summed, or needed as it is. A comparator of two dropped
    or of two only summed wires changes nothing.
    """
    dropped, summed, needed = range(3)
    wire = [(needed if in_order else summed) if first <= k < last else dropped for k in range(n)]
    kept = []
    for a, b in reversed(_merge_exchange(n)):
        if wire[a] == wire[b] != needed:
            continue
        kept.append((a, b, wire[a] != dropped, wire[b] != dropped))
        wire[a] = wire[b] = needed
    return kept[::-1]


def _merge_exchange(n: int) -> list[tuple[int, int]]:
    """Batcher's merge exchange, a sorting network for any n (Knuth, TAOCP 3, 5.2.2, algorithm M)."""
    comparators = []
    top = 1 << max(0, (n - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, distance = top, 0, p
        while True:
            comparators += [(i, i + distance) for i in range(n - distance) if i & p == r]
            if q == p:
                break
            q, r, distance = q // 2, p, q - p
        p //= 2
    return comparators


def _central_mean_by_network(
    matrix: Tensor, rows: Tensor, kept: int, nearest: bool, out: Tensor
) -> None:
    from byzantium.aggregation import kernel  # imports numba: only when it is needed

    n, d = len(rows), matrix.shape[1]
    if not d:
        return
    low = (n - kept) // 2
    net = network(n, 0, n, in_order=True) if nearest else network(n, low, low + kept, in_order=False)
    # Row i starts at offsets[i] of one flat array, whatever lies between the rows.
    flat = matrix.as_strided(((len(matrix) - 1) * matrix.stride(0) + d,), (1,)).numpy()
    offsets = (rows * matrix.stride(0)).numpy()
    arguments = (flat, offsets, *net, kept, nearest, out.numpy())

    threads = torch.get_num_threads()
    if threads == 1 or n * d < SMALL:
        kernel.central_mean(*arguments, 0, d)
        return
    pool = _pool(os.getpid(), threads)
    blocks = -(-d // kernel.BLOCK)
    step = kernel.BLOCK * -(-blocks // (threads * PIECES_PER_THREAD))
    pieces = [
        pool.submit(kernel.central_mean, *arguments, start, min(start + step, d))
        for start in range(0, d, step)
    ]
    for piece in pieces:
        piece.result()


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of our own: those of numba die in a forked child and abort under several callers."""
    return ThreadPoolExecutor(threads, thread_name_prefix="byzantium")
