"""Kernels for the order statistics of weighted values: a network sorts values with their weights.

A comparator exchanges two weights where it exchanges their values. Weights are whole numbers, so
that sums of them are exact: of 32 bits beside float32, and float64 beside float64. The arguments
are those of `order_statistics.straight`.

To find out which rows supplied what is averaged, a kernel with `bounds` stores, instead of means,
the lowest and the highest averaged value of each column, in float64 and `stride` columns apart; or
for what is nearest the median the two values around it, and the largest distance that counts.
`supplied` then looks at all values again, in torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium._kernels import compiler as machine
from byzantium._kernels.compiler import kernel
from byzantium._kernels.ir import (
    BITS,
    DOUBLE,
    FLOAT,
    INTEGER,
    SIZE,
    Array,
    Function,
    Value,
    fma,
    larger,
    magnitude,
    maximum,
    minimum,
    select,
)
from byzantium._kernels.networks import in_order
from byzantium._kernels.order_statistics import Columns
from byzantium._kernels.selection import PIECE
from byzantium._kernels.sums import Total, prefetch

# All weights together, as whole numbers of which also sums are exact.
WHOLE = {FLOAT: 1 << 30, DOUBLE: 1 << 52}
# The type of weights beside values of a type.
OF_WEIGHTS = {FLOAT: BITS[FLOAT], DOUBLE: DOUBLE}
# The numbers of the context before the weights; the last is `stride`.
HEADER = 5
# A hair more than 1: of two equally near values the lower one counts first.
NEXT = 1 + 2.0**-52


def tolerance(n: int) -> int:
    """A bound on the rounding errors of sums of n weights: differences below it are none."""
    return 2 * n


def keeps_any(n: int, kept: float, real: str) -> bool:
    """Whether so small a share of the weight of n rows is more than rounding errors."""
    return kept * WHOLE[real] > 4 * tolerance(n)


def context(
    weights: NDArray[np.float64], kept: float, nearest: bool, real: str, stride: int = 0
) -> NDArray[np.int64]:
    """The context of the kernels: where the median begins and ends, and what is kept; the weights.

    The ends of what is kept are moved inwards: by rounding, nothing beyond them may count.

    - `weights`: (n,), which sum to one.
    - `kept`: the share of the weight that is averaged.
    - `nearest`: whether this is the share nearest the median.
    - `stride`: how many numbers lie between bounds.
    """
    own, error = np.rint(weights * WHOLE[real]), tolerance(len(weights))
    whole = own.sum()
    cut = 0 if nearest else np.rint(whole * (1 - kept) / 2) + error
    end = np.rint(whole * kept) - error if nearest else whole - cut
    numbers = np.rint(np.array([(whole - error) / 2, (whole + error) / 2, cut, end, 0, *own]))
    words = numbers.astype(np.int64) if real == FLOAT else numbers.view(np.int64)
    words[HEADER - 1] = stride
    return words


class _Weighted(NamedTuple):
    """A value and its weight, in lanes."""

    value: Value
    weight: Value


@kernel
def mean(n: int, real: str) -> list[Function]:
    """The mean by weight, one vector of columns at a time, without a loop over the rows.

    - `context`: the weights, whole numbers as the bits of DOUBLE.
    """
    function, lanes = Function("mean_by_weight"), machine.HOST.lanes(real)
    inputs = Columns(function, real)
    weights, whole = Array(inputs.context.address, DOUBLE), function.constant(0.0, DOUBLE)
    for k in range(n):
        whole = whole + weights.load(k)
    peak = function.variable(inputs.peak.load(0, lanes))
    with function.loop(inputs.first, inputs.last, lanes) as start:
        c, total = minimum(start, inputs.last - lanes), Total(function, real, lanes)
        for k in range(n):
            row = Array(inputs.rows.load(k), real)
            x = row.load(c, lanes)
            prefetch(row, c, lanes)
            peak.value = larger(peak.value, magnitude(x))
            total.add_fused(weights.load(k).on(lanes), x)
        inputs.out.store(c, total.over(whole.on(lanes)).to(real))
    inputs.peak.store(0, peak.value)
    return [function]


@kernel
def straight(
    n: int, nearest: bool, median: bool, real: str, bounds: bool = False
) -> list[Function]:
    """One vector of columns at a time, comparator by comparator, without a loop or a table.

    - `nearest`: whether what is nearest the median is averaged, and not the middle.
    - `median`: whether the result is the median itself.
    - `context`: see `context`.
    """
    network = in_order(n)
    function, lanes = Function("weighted"), machine.HOST.lanes(real)
    inputs = Columns(function, real)
    kind = OF_WEIGHTS[real]
    numbers, stride = Array(inputs.context.address, kind), SIZE[INTEGER] // SIZE[kind]

    def number(k: int) -> Value:
        return numbers.load(k * stride).on(lanes)

    peak = function.variable(inputs.peak.load(0, lanes))
    with function.loop(inputs.first, inputs.last, lanes) as start:
        c = minimum(start, inputs.last - lanes)
        wires: dict[int, _Weighted] = {}

        def wire(k: int) -> _Weighted:
            """What is on a wire: at first a row, which is loaded when it is needed."""
            if k not in wires:
                row = Array(inputs.rows.load(k), real)
                x = row.load(c, lanes)
                prefetch(row, c, lanes)
                peak.value = larger(peak.value, magnitude(x))
                wires[k] = _Weighted(x, number(HEADER + k))
            return wires[k]

        for part in network.parts:
            a, b = part.wires
            x, y = wire(a), wire(b)
            wires[a], wires[b] = _exchanged(x.value < y.value, x, y)
        ordered = [wire(k) for k in network.wires]
        halves = (number(0), number(1)) if median or nearest else (number(2), number(3))
        low, high = _ends(ordered, *halves)
        middle = (low.to(DOUBLE) + high.to(DOUBLE)) * 0.5
        if bounds:
            wide, step = Array(inputs.out.address, DOUBLE), inputs.context.load(HEADER - 1)
            found = [low.to(DOUBLE), high.to(DOUBLE)]
            if nearest:
                found.append(_mean_difference(function, ordered, middle, number(3))[1])
            for k, bound in enumerate(found):
                wide.store(step * k + c, bound)
        elif median:
            inputs.out.store(c, middle.to(real))
        elif nearest:
            difference, _ = _mean_difference(function, ordered, middle, number(3))
            inputs.out.store(c, (middle + difference).to(real))
        else:
            mean = _mean(function, real, ordered, number(2), number(3))
            inputs.out.store(c, mean.to(real))
    inputs.peak.store(0, peak.value)
    return [function]


def _exchanged(truth: Value, x: _Weighted, y: _Weighted) -> tuple[_Weighted, _Weighted]:
    """The two in this order where the condition is true, and exchanged elsewhere."""
    lower = _Weighted(select(truth, x.value, y.value), select(truth, x.weight, y.weight))
    upper = _Weighted(select(truth, y.value, x.value), select(truth, y.weight, x.weight))
    return lower, upper


def _ends(ordered: Sequence[_Weighted], first: Value, last: Value) -> tuple[Value, Value]:
    """The values at which two sums of weights are reached: the first, and the last that goes on."""
    low = high = ordered[0].value
    end = ordered[0].weight
    for value, weight in ordered[1:]:
        low = select(end < first, value, low)
        high = select(last < end, high, value)
        end = end + weight
    return low, high


def _mean(
    function: Function,
    real: str,
    ordered: Sequence[_Weighted],
    first: Value,
    last: Value,
) -> Value:
    """The mean of what lies between two sums of weights, in float64."""
    total = Total(function, real, first.lanes)
    before, end = first, first - first
    for value, weight in ordered:
        end = end + weight
        after = minimum(maximum(end, first), last)
        total.add_fused((after - before).to(DOUBLE), value)
        before = after
    return total.over((last - first).to(DOUBLE))


def _mean_difference(
    function: Function, ordered: Sequence[_Weighted], median: Value, kept: Value
) -> tuple[Value, Value]:
    """The mean difference to the median of what is nearest to it, and the largest distance.

    In the order of the values, distances to the median fall and then rise: a bitonic merge sorts
    them (Knuth, TAOCP 3, 5.3.4). Weights below the median are negative meanwhile.
    """
    away, none = [], kept - kept
    for value, weight in ordered:
        difference = value.to(DOUBLE) - median
        signed = select(difference < 0.0, none - weight, weight)
        away.append(_Weighted(maximum(difference * NEXT, -difference), signed))
    for i, j in _bitonic(len(away)):
        x, y = away[i], away[j]
        away[i], away[j] = _exchanged(x.value < y.value, x, y)
    total = function.variable(function.constant(0.0, DOUBLE, kept.lanes))
    before, end, largest = none, none, away[0].value
    for distance, weight in away:
        largest = select(end < kept, distance, largest)
        end = end + maximum(weight, none - weight)
        after = minimum(end, kept)
        own = after - before
        own = select(weight < none, none - own, own)
        total.value = fma(own.to(DOUBLE), distance, total.value)
        before = after
    return total.value / kept.to(DOUBLE), largest


def _bitonic(n: int) -> Iterator[tuple[int, int]]:
    """The comparators that sort n numbers of which the first ones fall and the others rise."""
    stride = 1 << max(0, (n - 1).bit_length() - 1)
    while stride:
        yield from ((i, i + stride) for i in range(n - stride) if not i & stride)
        stride //= 2


def supplied(
    block: Tensor, bounds: Tensor, weights: NDArray[np.float64], kept: float, nearest: bool
) -> NDArray[np.float64]:
    """(n,): how much of the results each row supplied, summed over columns.

    Equal values share in proportion to weights.

    - `block`: some columns, (n, width).
    - `bounds`: what a kernel with `bounds` found, (3, width).
    - `kept`: the share of the weight that is averaged; 0 for the median.
    """
    width = max(1, PIECE // max(1, len(block)))
    total = torch.zeros(len(block), dtype=torch.float64)
    for start in range(0, block.shape[1], width):
        part = slice(start, start + width)
        total += _supplied(block[:, part], bounds[:, part], weights, kept, nearest)
    return np.asarray(weights * total.numpy() / (kept or 1))


def _supplied(
    x: Tensor, bounds: Tensor, weights: NDArray[np.float64], kept: float, nearest: bool
) -> Tensor:
    """(n,): the same over the weight of each row."""
    own = torch.from_numpy(weights).to(x)
    low, high, largest = bounds
    if nearest and kept:
        difference = x.double() - (low + high) / 2
        away = torch.maximum(difference * NEXT, -difference)
        inside = away < largest
        groups = [(away == largest, kept - own @ inside.to(x))]
    else:
        low, high, cut = low.to(x), high.to(x), (1 - kept) / 2
        at_low, below_high = x == low, x < high
        if not kept:  # the mean of two values
            half = torch.full_like(low, 0.5)
            groups, inside = [(at_low, half), (x == high, half)], None
        else:
            end = (own @ (x <= low).to(x)).clamp(max=1 - cut)
            over = (own @ below_high.to(x)).clamp(min=cut)
            rest = torch.where(low < high, 1 - cut - over, 0)
            groups = [(at_low, end - cut), (x == high, rest)]
            inside = (low < x) & below_high
    total = torch.zeros(len(x), dtype=torch.float64)
    if inside is not None:
        total += inside.sum(dim=1)
    for members, mass in groups:
        there = members.to(x)
        total += there.double() @ (mass.clamp(min=0).to(x) / (own @ there)).double()
    return total
