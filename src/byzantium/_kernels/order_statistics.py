"""Kernels for order statistics: all rows of some columns are sorted at once, by a network.

Both types of kernel have the same arguments: columns(context, rows, first, last, peak, out) fills
out[c] for first <= c < last, whole vectors, with the mean of the central values of the rows (see
`selection.central`). peak, as many integers as lanes, is raised to the largest `magnitude` of all
that is loaded.

To count whose values these are, kernels with `bounds` read a block of columns, fill out from its
beginning, and store three more numbers for each column, one block further each: the lowest and the
highest of the central values, and the rank of the lowest. `supplied` then reads all values again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain, groupby

from byzantium._kernels import compiler as machine
from byzantium._kernels.compiler import kernel
from byzantium._kernels.ir import (
    ADDRESS,
    BITS,
    DOUBLE,
    INTEGER,
    SIZE,
    Array,
    Function,
    Operand,
    Value,
    larger,
    magnitude,
    maximum,
    minimum,
    select,
)
from byzantium._kernels.networks import SINGLE, Network, in_order, middle
from byzantium._kernels.subset_sums import SubsetSums
from byzantium._kernels.sums import BLOCK, Mixing, Total, prefetch


class Columns:
    """The arguments of a kernel."""

    def __init__(self, function: Function, real: str) -> None:
        self.context = function.array("context", INTEGER)
        self.rows = function.array("rows", ADDRESS)
        self.first, self.last = function.number("first"), function.number("last")
        self.peak = function.array("peak", BITS[real])
        self.out = function.array("out", real)


def network(n: int, count: int, nearest: bool, most: int = SINGLE) -> Network:
    """The network that selects the `count` central values among n."""
    if not nearest:
        low = (n - count) // 2
        return middle(n, low, low + count, most)
    # Values that are in the window wherever it slides are only summed, unless they are the median.
    always = set(range(n - count, count)) - {(n - 1) // 2, n // 2}
    return in_order(n, tuple(sorted(always)), most)


@kernel
def straight(
    n: int, count: int, nearest: bool, real: str, bounds: bool, size: int = 0
) -> list[Function]:
    """One vector of columns at a time, comparator by comparator, without a loop or a table.

    Where `last` does not end a vector, the last vector begins before the one before it has ended.

    - `size`: how many rows are summed to each of the values that are sorted; 0 sorts the rows. The
      sums never leave the registers. `rows` then lists the first `size` rows to be summed, the next
      ones, ..., and `context` their shares, and then the excess of each sum (see `Mixing`).
    """
    comparators, wires = network(n, count, nearest)
    function, lanes = Function("straight"), machine.HOST.lanes(real)
    inputs = Columns(function, real)
    peak = function.variable(inputs.peak.load(0, lanes))
    with function.loop(inputs.first, inputs.last, lanes) as start:
        c = start if bounds else minimum(start, inputs.last - lanes)
        values: dict[int, Value] = {}

        def loaded(place: int) -> Value:
            row = Array(inputs.rows.load(place), real)
            x = row.load(c, lanes)
            prefetch(row, c, lanes)
            peak.value = larger(peak.value, magnitude(x))
            return x

        def mixed(wire: int) -> Value:
            total, numbers = Total(function, real, lanes), Array(inputs.context.address, DOUBLE)
            for place in range(wire * size, (wire + 1) * size):
                total.add_product(numbers.load(place).on(lanes), loaded(place))
            return total.over_one_plus(numbers.load(n * size + wire).on(lanes)).to(real)

        def value(wire: int) -> Value:
            """The value on a wire: at first a row or a sum, which is loaded when it is needed."""
            if wire not in values:
                values[wire] = mixed(wire) if size else loaded(wire)
            return values[wire]

        for (a, b), _, (low, high) in comparators:
            x, y = value(a), value(b)
            if low:
                values[a] = minimum(x, y)
            if high:
                values[b] = maximum(x, y)
        for wire in range(n):
            value(wire)  # for its magnitude
        central = [values[wire] for wire in wires]
        rank = function.constant(float((n - count) // 2), real, lanes)
        if nearest:
            central, rank = _nearest(central, count)
        mean = _mean(function, central, real)
        if bounds:
            found = mean, reduce(minimum, central), reduce(maximum, central), rank
            for k, number in enumerate(found):
                inputs.out.store(c - inputs.first + k * (BLOCK // SIZE[real]), number)
        else:
            inputs.out.store(c, mean)
    inputs.peak.store(0, peak.value)
    return [function]


def _mean(function: Function, values: Sequence[Value], real: str) -> Value:
    if len(values) == 1:
        return values[0]
    total = Total(function, real, values[0].lanes)
    for x in values:
        total.add(x)
    return total.over(function.constant(float(len(values)), DOUBLE, values[0].lanes)).to(real)


def _nearest(values: Sequence[Value], count: int) -> tuple[list[Value], Value]:
    """Of sorted values, the `count` nearest the median, and the rank of the lowest.

    A window of that size slides up past value j if value j + count is nearer: then the latter
    replaces the former.
    """
    n = len(values)
    median = _median(values[(n - 1) // 2], values[n // 2])
    window, rank = list(values[:count]), _constant(0.0, values[0])
    for j in range(n - count):
        enters = values[j + count]
        slides = _slides(enters, values[j], median)
        window[j % count] = select(slides, enters, window[j % count])
        rank = _plus_one(rank, slides)
    return window, rank


def _constant(number: float, like: Value) -> Value:
    return like.function.constant(number, like.kind, like.lanes)


def _plus_one(count: Value, truth: Value) -> Value:
    """The count plus one where a condition is true."""
    return select(truth, count + 1.0, count)


def _median(low: Value, high: Value) -> Value:
    return (low.to(DOUBLE) + high.to(DOUBLE)) * 0.5


def _slides(enters: Value, leaves: Value, median: Value) -> Value:
    return enters.to(DOUBLE) - median < median - leaves.to(DOUBLE)


# -- many rows ---------------------------------------------------------------------------------


@kernel
def part(pairs: tuple[tuple[int, int], ...], real: str) -> list[Function]:
    """Sort a block of columns in place by a `networks.Part`."""
    function, lanes = Function("part"), machine.HOST.lanes(real)
    rows, wires = function.array("rows", ADDRESS), function.array("wires", INTEGER)
    start = function.number("start")
    with function.loop(start, start + BLOCK // SIZE[real], lanes) as c:
        places: dict[int, Array] = {}
        values: dict[int, Value] = {}

        def value(k: int) -> Value:
            if k not in values:
                places[k] = Array(rows.load(wires.load(k)), real).at(c)
                values[k] = places[k].load(0, lanes)
            return values[k]

        for a, b in pairs:
            x, y = value(a), value(b)
            values[a], values[b] = minimum(x, y), maximum(x, y)
        for k, place in places.items():
            place.store(0, values[k])
    return [function]


@kernel
def tabled(nearest: bool, real: str, bounds: bool) -> list[Function]:
    """Sort the rows, which must be copies, in place by a network that is stored in a table.

    - `context`: see `table`.
    """
    function = Function("tabled")
    inputs = Columns(function, real)
    n, count, steps = (inputs.context.load(k) for k in range(3))
    wires = inputs.context.at(3)
    lanes, strip = machine.HOST.lanes(real), BLOCK // SIZE[real]

    def row(wire: Value) -> Array:
        return Array(inputs.rows.load(wire), real)

    peak = function.variable(inputs.peak.load(0, lanes))
    with function.loop(inputs.first, inputs.last, strip) as start:
        with function.loop(0, n) as i:
            for c in range(0, strip, lanes):
                x = row(i).load(start + c, lanes)
                peak.value = larger(peak.value, magnitude(x))

        place = function.variable(n if nearest else count)
        with function.loop(0, steps):
            step = wires.at(place.value)
            parts, code, comparators, length = (step.load(k) for k in range(4))
            here = step.at(4)
            with function.loop(0, parts):
                function.call(code, inputs.rows, here, start)
            with function.loop(0, comparators) as k:
                a, b = row(here.load(k * 2)), row(here.load(k * 2 + 1))
                for c in range(0, strip, lanes):
                    x, y = a.load(start + c, lanes), b.load(start + c, lanes)
                    a.store(start + c, minimum(x, y))
                    b.store(start + c, maximum(x, y))
            place.value = place.value + length

        def value(rank: Value, start: Value = start) -> Value:
            return row(wires.load(rank)).load(start, strip)

        total = Total(function, real, strip)
        median = _median(value((n - 1) / 2), value(n / 2)) if nearest else None
        lowest = function.constant(0, INTEGER) if nearest else (n - count) / 2
        rank = function.variable(lowest.to(real).on(strip))
        low = function.variable(function.constant(math.inf, real, strip))
        high = function.variable(-low.value)
        with function.loop(0, count) as r:
            inside = function.variable(value(r))
            if median is not None:
                with function.loop(r, n - count, count) as j:
                    enters = value(j + count)
                    slides = _slides(enters, value(j), median)
                    inside.value = select(slides, enters, inside.value)
                    if bounds:
                        rank.value = _plus_one(rank.value, slides)
            total.add(inside.value)
            if bounds:
                low.value = minimum(low.value, inside.value)
                high.value = maximum(high.value, inside.value)
        inputs.out.store(start, total.over(count.to(DOUBLE).on(strip)).to(real))
        if bounds:
            for further, bound in enumerate((low, high, rank), 1):
                inputs.out.store(start + further * strip, bound.value)
    inputs.peak.store(0, peak.value)
    return [function]


def table(n: int, count: int, nearest: bool, real: str, most: int) -> list[int]:
    """The context of `tabled`, for a network with parts of at most so many wires.

    n, count, the number of steps; the wires that count; then the steps. A step is one part, or some
    single comparators: the number of parts (one or none), the address of the code of that part, the
    number of comparators, the length of all this, and the wires.
    """
    parts, wires = network(n, count, nearest, most)
    steps = []
    for single, group in groupby(parts, key=lambda part: len(part.wires) == SINGLE):
        if single:
            pairs = [wire for comparator in group for wire in comparator.wires]
            steps.append([0, 0, len(pairs) // 2, 4 + len(pairs), *pairs])
        else:
            steps += [
                [1, part(one.pairs, real).address, 0, 4 + len(one.wires), *one.wires]
                for one in group
            ]
    return [n, count, len(steps), *wires, *chain(*steps)]


# -- rows that supplied the central values -----------------------------------------------------


@kernel
def supplied(real: str) -> list[Function]:
    """Count, in a block of columns from `start` on, how many of the central values are row i's.

    within[i, :] is raised where the value of row i lies within the bounds. Where more values lie
    within the bounds than are central, values that equal a bound share equally: the difference is
    added to changes[i, :]. Only the first `width` columns of the block count.

    - `results`: the means, and the bounds.
    """
    function, lanes, size = Function("supplied"), machine.HOST.lanes(real), BLOCK // SIZE[real]
    rows, n = function.array("rows", ADDRESS), function.number("n")
    count, start = function.number("count"), function.number("start")
    width = function.number("width")
    results, within = function.array("results", real), function.array("within", real)
    changes = function.array("changes", DOUBLE)

    def value(i: Value, c: Value) -> Value:
        return Array(rows.load(i), real).load(start + c, lanes)

    with function.loop(0, size, lanes) as c:
        low, high, rank = (results.load(c + k * size, lanes) for k in (1, 2, 3))
        none = _constant(0.0, low)
        counted = function.lanes_before(c, width, lanes)
        one = select(counted, _constant(1.0, low), none)
        inside = function.variable(none)
        with function.loop(0, n) as i:
            x = value(i, c)
            here = select(x < low, none, select(high < x, none, one))
            inside.value = inside.value + here
            within.store(i * lanes, within.load(i * lanes, lanes) + here)
        window = count.to(real).on(lanes)
        with function.when(function.constant(0.5, real) < (inside.value - window * one).sum()):
            tallies = [function.variable(none) for _ in range(4)]
            with function.loop(0, n) as i:
                x = value(i, c)
                truths = x < low, low < x, x < high, high < x
                for tally, truth in zip(tallies, truths, strict=True):
                    tally.value = _plus_one(tally.value, truth)
            below, above_low, below_high, above = (tally.value for tally in tallies)
            number = n.to(real).on(lanes)
            # How many of the central values equal the lowest of them, and the highest.
            lowest = select(low < high, number - above_low - rank, window)
            highest = rank + window - below_high
            change_low = _change(lowest, number - below - above_low, counted)
            change_high = _change(highest, number - below_high - above, counted)
            nothing = _constant(0.0, change_low)
            with function.loop(0, n) as i:
                x = value(i, c)
                above = select(x < high, nothing, select(high < x, nothing, change_high))
                change = select(x < low, nothing, select(low < x, above, change_low))
                changes.store(i * lanes, changes.load(i * lanes, lanes) + change)
    return [function]


def _change(central: Value, equal: Value, counted: Value) -> Value:
    """The change for each of some equal values, all of which were counted, if they share."""
    change = central.to(DOUBLE) / equal.to(DOUBLE) - 1.0
    return select(counted, change, _constant(0.0, change))


# -- block by block ----------------------------------------------------------------------------


class _Blocks:
    """The arguments of a function that sorts the columns of rows block by block.

    `columns` is the kernel that sorts; everything except it, its context, `peak` and `out` is
    scratch memory. To count whose values are central, there are also `supplied` and its arguments.

    - `explained`: whether to count whose values are central.
    - `destructive`: whether the kernel sorts in place, so that blocks are made again to be counted.
    """

    def __init__(self, function: Function, real: str, explained: bool, destructive: bool) -> None:
        self.function, self.real = function, real
        self.first, self.last = function.number("first"), function.number("last")
        self.columns = function.number("columns")
        self.context = function.array("context", INTEGER)
        self.block, self.places = function.array("block", real), function.array("places", ADDRESS)
        self.result, self.peak = function.array("result", real), function.array("peak", BITS[real])
        self.out = function.array("out", real)
        self.explained, self.destructive = explained, destructive
        if explained:
            self.supplied, self.count = function.number("supplied"), function.number("count")
            self.within = function.array("within", real)
            self.changes = function.array("changes", DOUBLE)

    def sort(self, n: Value, make: Callable[[Value, Value | None], None]) -> None:
        """make(start, bound) stores row i, columns start and following, at block[i, :]."""
        function, size = self.function, BLOCK // SIZE[self.real]
        lanes = machine.HOST.lanes(self.real)
        with function.loop(0, n) as i:
            self.places.store(i, self.block.at(i * size).address)
        zero, width = function.constant(0, INTEGER), function.constant(size, INTEGER)
        arguments = self.context, self.places, zero, width, self.peak, self.result
        for start, bound in function.columns(self.first, self.last, size):
            make(start, bound)
            function.call(self.columns, *arguments)
            for c in range(0, size, lanes):
                self.out.store(start + c, self.result.load(c, lanes), bound)
            if self.explained:
                if self.destructive:
                    make(start, bound)
                self.count_supplied(self.places, n, zero, width if bound is None else bound - start)

    def count_supplied(self, rows: Array, n: Value, start: Value, width: Value) -> None:
        arguments = rows, n, self.count, start, width, self.result, self.within, self.changes
        self.function.call(self.supplied, *arguments)


@kernel
def copied(real: str, explained: bool, destructive: bool) -> list[Function]:
    """Copy the rows, and sort them."""
    function, lanes, size = Function("copied"), machine.HOST.lanes(real), BLOCK // SIZE[real]
    rows, n = function.array("rows", ADDRESS), function.number("n")
    blocks = _Blocks(function, real, explained, destructive)

    def copy(start: Value, bound: Value | None) -> None:
        with function.loop(0, n) as i:
            row = Array(rows.load(i), real)
            for c in range(0, size, lanes):
                blocks.block.store(i * size + c, row.load(start + c, lanes, bound))
            prefetch(row, start, size)

    blocks.sort(n, copy)
    return [function]


@kernel
def direct(real: str) -> list[Function]:
    """Sort whole blocks without a copy, and count whose values are central."""
    function, lanes, size = Function("direct"), machine.HOST.lanes(real), BLOCK // SIZE[real]
    rows, n = function.array("rows", ADDRESS), function.number("n")
    blocks = _Blocks(function, real, explained=True, destructive=False)
    width = function.constant(size, INTEGER)
    with function.loop(blocks.first, blocks.last, size) as start:
        arguments = blocks.context, rows, start, start + size, blocks.peak, blocks.result
        function.call(blocks.columns, *arguments)
        for c in range(0, size, lanes):
            blocks.out.store(start + c, blocks.result.load(c, lanes))
        blocks.count_supplied(rows, n, start, width)
    return [function]


@kernel
def mixed(
    real: str, explained: bool, destructive: bool, type_: type[Mixing | SubsetSums] = Mixing
) -> list[Function]:
    """Mix the rows, and sort the mixed rows.

    - `type_`: the form of the matrix P.
    """
    function, size = Function("mixed"), BLOCK // SIZE[real]
    mixing, blocks = type_(function, real), _Blocks(function, real, explained, destructive)

    def store(i: Value, c: Operand, x: Value) -> None:
        blocks.block.store(i * size + c, x.to(real))

    blocks.sort(mixing.m, lambda start, bound: mixing.block(start, bound, store, blocks.peak))
    return [function]
