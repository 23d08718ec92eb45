"""The passes over millions of columns, written in the language of `emit`.

Rows are given as a table of addresses, so that it does not matter how they lie in memory. A kernel
works on the columns first <= c < last, some columns of all rows at a time. `real` says what the
rows hold, FLOAT or DOUBLE; everything is computed in float64 or better.
"""

from __future__ import annotations

from collections.abc import Callable

from byzantium._kernels import compiler as machine
from byzantium._kernels.compiler import kernel
from byzantium._kernels.ir import (
    ADDRESS,
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
    sqrt,
)

# Bytes of a line of the cache. One line of each row is read at a time: memory is faster for many
# rows than for more of one.
LINE = 64
# How many bytes ahead lines are prefetched.
AHEAD = 256
# Bytes of a row that are mixed or sorted at a time, where they are copied first: so little that all
# rows stay in the nearest cache.
BLOCK = 256


class Total:
    """A running sum in twice the precision of what is summed.

    That is float64 for float32; and for float64 an unevaluated sum of two, where `low` collects
    the rounding errors of `high` (Ogita, Rump, Oishi: Accurate Sum and Dot Product, 2005). So a
    mean is rounded only once, and that of equal numbers not at all.
    """

    def __init__(self, function: Function, real: str, lanes: int) -> None:
        zero = function.constant(0.0, DOUBLE, lanes)
        self.high = function.variable(zero)
        self.low = function.variable(zero) if real == DOUBLE else None

    def add(self, x: Value) -> None:
        before, x = self.high.value, x.to(DOUBLE)
        after = self.high.value = before + x
        if self.low is not None:
            added = after - before
            self.low.value = self.low.value + ((before - (after - added)) + (x - added))

    def add_product(self, weight: Value, x: Value) -> None:
        """Products are rounded before they are added, so that opposite ones cancel to the bit."""
        x = x.to(DOUBLE)
        product = weight * x
        self.add(product)
        if self.low is not None:
            self.low.value = self.low.value + fma(weight, x, -product)

    def add_fused(self, weight: Value, x: Value) -> None:
        """The same where nothing must cancel to the bit."""
        if self.low is None:
            self.high.value = fma(weight, x.to(DOUBLE), self.high.value)
        else:
            self.add_product(weight, x)

    def over(self, number: Value) -> Value:
        """The quotient, in float64."""
        high = self.high.value
        quotient = high / number
        if self.low is None:
            return quotient
        rest = fma(-quotient, number, high) + self.low.value
        return quotient + rest / number

    def over_one_plus(self, excess: Value) -> Value:
        """The quotient by 1 + excess, in float64, where the excess is a rounding error."""
        high = self.high.value
        return high if self.low is None else high + fma(-excess, high, self.low.value)


def prefetch(row: Array, index: Value, columns: int) -> None:
    """Prefetch as many columns as are being read, ahead of them."""
    for c in range(AHEAD, AHEAD + columns * SIZE[row.kind], LINE):
        row.prefetch(index + c // SIZE[row.kind])


@kernel
def squared_norms(real: str) -> list[Function]:
    """sums[i, :].sum() += ||row i||^2; as many sums for each row as a register has numbers."""
    function = Function("squared_norms")
    rows, n = function.array("rows", ADDRESS), function.number("n")
    first, last = function.number("first"), function.number("last")
    sums = function.array("sums", DOUBLE)
    lanes, columns = machine.HOST.lanes(real), LINE // SIZE[real]
    for start, bound in function.columns(first, last, columns):
        with function.loop(0, n) as i:
            row, sum_ = Array(rows.load(i), real), sums.load(i * lanes, lanes)
            for c in range(0, columns, lanes):
                x = row.load(start + c, lanes, bound).to(DOUBLE)
                sum_ = fma(x, x, sum_)
            sums.store(i * lanes, sum_)
            prefetch(row, start, columns)
    return [function]


@kernel
def moments(real: str) -> list[Function]:
    """The mean and the unbiased standard deviation of each column: over n, and over n - 1."""
    function = Function("moments")
    rows, n = function.array("rows", ADDRESS), function.number("n")
    first, last = function.number("first"), function.number("last")
    mean, deviation = function.array("mean", real), function.array("deviation", real)
    over, freedom = function.number("over", DOUBLE), function.number("freedom", DOUBLE)
    lanes = LINE // SIZE[real]
    for c, bound in function.columns(first, last, lanes):
        total = Total(function, real, lanes)
        with function.loop(0, n) as i:
            row = Array(rows.load(i), real)
            total.add(row.load(c, lanes, bound))
            prefetch(row, c, lanes)
        middle = total.over(over.on(lanes))
        square = function.variable(function.constant(0.0, DOUBLE, lanes))
        with function.loop(0, n) as i:
            away = Array(rows.load(i), real).load(c, lanes, bound).to(DOUBLE) - middle
            square.value = fma(away, away, square.value)
        mean.store(c, middle.to(real), bound)
        deviation.store(c, sqrt(square.value / freedom.on(lanes)).to(real), bound)
    return [function]


@kernel
def mean(real: str, weighted: bool) -> list[Function]:
    """out[c] = the mean of column c, or that by weight; arguments as in `order_statistics`.

    - `context`: how many rows; if `weighted`, then their weights, whole numbers as the bits of
      DOUBLE.
    """
    function = Function("mean")
    context, rows = function.array("context", INTEGER), function.array("rows", ADDRESS)
    first, last = function.number("first"), function.number("last")
    peak, out = function.array("peak", BITS[real]), function.array("out", real)
    n, weights = context.load(0), Array(context.address, DOUBLE)
    lanes, columns = machine.HOST.lanes(real), LINE // SIZE[real]
    largest = function.variable(peak.load(0, lanes))
    whole = function.variable(n.to(DOUBLE))
    if weighted:
        whole.value = function.constant(0.0, DOUBLE)
        with function.loop(0, n) as i:
            whole.value = whole.value + weights.load(i + 1)
    for start, bound in function.columns(first, last, columns):
        total = [Total(function, real, lanes) for _ in range(0, columns, lanes)]
        with function.loop(0, n) as i:
            row = Array(rows.load(i), real)
            weight = weights.load(i + 1).on(lanes) if weighted else None
            for k, part in enumerate(total):
                x = row.load(start + k * lanes, lanes, bound)
                if weight is None:
                    part.add(x)
                else:
                    part.add_fused(weight, x)
                largest.value = larger(largest.value, magnitude(x))
            prefetch(row, start, columns)
        for k, part in enumerate(total):
            quotient = part.over(whole.value.on(lanes)).to(real)
            out.store(start + k * lanes, quotient, bound)
    peak.store(0, largest.value)
    return [function]


# -- weighted sums -----------------------------------------------------------------------------


@kernel
def weighted_sum(real: str) -> list[Function]:
    """out[c] = sum_i shares[i] row_i[c], over 1 + excess, the sum of the shares."""
    function = Function("weighted_sum")
    rows, n = function.array("rows", ADDRESS), function.number("n")
    shares, excess = function.array("shares", DOUBLE), function.number("excess", DOUBLE)
    first, last = function.number("first"), function.number("last")
    out = function.array("out", real)
    lanes = LINE // SIZE[real]
    for c, bound in function.columns(first, last, lanes):
        total = Total(function, real, lanes)
        with function.loop(0, n) as i:
            row = Array(rows.load(i), real)
            total.add_product(shares.load(i).on(lanes), row.load(c, lanes, bound))
            prefetch(row, c, lanes)
        out.store(c, total.over_one_plus(excess.on(lanes)).to(real), bound)
    return [function]


class Mixing:
    """The arguments of a function that computes P X, block by block.

    P comes as lists: row i of P X is the sum of shares[k] times row sources[k] of X, for
    starts[i] <= k < starts[i + 1], over 1 + excess[i], the sum of these shares.
    """

    def __init__(self, function: Function, real: str) -> None:
        self.function, self.real = function, real
        self.rows, self.n = function.array("rows", ADDRESS), function.number("n")
        self.starts, self.m = function.array("starts", INTEGER), function.number("m")
        self.sources = function.array("sources", INTEGER)
        self.shares = function.array("shares", DOUBLE)
        self.excess = function.array("excess", DOUBLE)
        self.wide = function.array("wide", DOUBLE)  # (n, columns of a block), scratch memory

    def block(
        self,
        start: Value,
        bound: Value | None,
        store: Callable[[Value, int, Value], None],
        peak: Array | None = None,
    ) -> None:
        """Compute a block of P X, from column `start` on; columns beyond the bound are zero.

        store(i, c, x) stores the lanes x of row i, columns start + c and following, in float64.

        - `peak`: integers that are raised to the largest `magnitude` of the rows.
        """
        function, size = self.function, BLOCK // SIZE[self.real]
        lanes = machine.HOST.lanes(self.real)
        largest = None if peak is None else function.variable(peak.load(0, lanes))
        with function.loop(0, self.n) as j:
            row = Array(self.rows.load(j), self.real)
            for c in range(0, size, lanes):
                x = row.load(start + c, lanes, bound)
                self.wide.store(j * size + c, x.to(DOUBLE))
                if largest is not None:
                    largest.value = larger(largest.value, magnitude(x))
            prefetch(row, start, size)
        if peak is not None and largest is not None:
            peak.store(0, largest.value)
        # Eight registers of sums, or four of two numbers each: one sum alone would wait for itself.
        lanes = min(size, (8 if self.real == FLOAT else 4) * machine.HOST.lanes(DOUBLE))
        with function.loop(0, self.m) as i:
            excess = self.excess.load(i).on(lanes)
            for c in range(0, size, lanes):
                total = Total(function, self.real, lanes)
                with function.loop(self.starts.load(i), self.starts.load(i + 1)) as k:
                    x = self.wide.load(self.sources.load(k) * size + c, lanes)
                    total.add_product(self.shares.load(k).on(lanes), x)
                store(i, c, total.over_one_plus(excess))


@kernel
def mix(real: str) -> list[Function]:
    """out[i * stride + c] = (P X)[i, c], in float64; see `Mixing`."""
    function = Function("mix")
    mixing = Mixing(function, real)
    first, last = function.number("first"), function.number("last")
    out, stride = function.array("out", DOUBLE), function.number("stride")
    for start, bound in function.columns(first, last, BLOCK // SIZE[real]):

        def store(
            i: Value, c: int, x: Value, start: Value = start, bound: Value | None = bound
        ) -> None:
            out.at(i * stride).store(start + c, x, bound)

        mixing.block(start, bound, store)
    return [function]


# -- inner products ----------------------------------------------------------------------------


def tile_of(n: int) -> int:
    """The number of rows whose products with as many others are computed at once.

    Each number is loaded once for that many products; but n is rounded up to a multiple of it.
    """
    if machine.HOST.vector < 64:  # 16 registers: nine sums, three factors, and one more
        return 3

    def cost(tile: int) -> int:  # as measured
        tiles = -(-n // tile)
        return tiles * (tiles + 1) * (tile**2 + 9)

    return min((5, 4, 3), key=cost)


def few(n: int) -> bool:
    """Whether n rows, and the sums of all their products, fit in 32 registers, or in 16."""
    return n <= (6 if machine.HOST.vector == 64 else 4)


# Columns of many rows whose products are computed before the next ones.
NEAR = 256


def gram_columns(n: int, d: int) -> int:
    """How many columns of differences are multiplied at a time, of d."""
    grain = 64
    return min(max(256, (32 << 10) // (8 * n) // grain * grain), -(-d // grain) * grain)


@kernel
def gram(real: str, tile: int) -> list[Function]:
    """Add <row_i - r, row_j - r>, j <= i, to products[i * stride + j]; r is the row `base`.

    Rows advance with the columns, or not (the origin). Equal rows give equal sums, to the bit.
    block: (stride, size), scratch memory, zero from row n on. The stride is a multiple of the tile.
    """
    inner = _tile(tile)
    function = Function("gram")
    rows, n = function.array("rows", ADDRESS), function.number("n")
    advances = function.array("advances", INTEGER)
    base = function.array("base", real)
    first, last = function.number("first"), function.number("last")
    block, size = function.array("block", DOUBLE), function.number("size")
    products, stride = function.array("products", DOUBLE), function.number("stride")
    lanes = machine.HOST.lanes(real)
    with function.loop(first, last, size) as start:
        end = minimum(start + size, last)
        with function.loop(0, n) as i:
            row = Array(rows.load(i), real).at((advances.load(i) - 1) * start)
            place = block.at(i * size - start)
            for c, bound in function.columns(start, end, lanes):
                x, r = row.load(c, lanes, bound).to(DOUBLE), base.load(c, lanes, bound).to(DOUBLE)
                place.store(c, x - r)
                row.prefetch(c + size)
        with function.loop(0, stride, tile) as i, function.loop(0, i + 1, tile) as j:
            place = products.at(i * stride + j)
            function.call(
                inner, block.at(i * size), block.at(j * size), size, end - start, place, stride
            )
    return [inner, function]


@kernel
def differences(real: str) -> list[Function]:
    """block[i, c - start] = row_i[c] - r[c], for start <= c < end, in float64; see `gram`.

    It works on the rows first <= i < last. The last vector of columns is filled up with zeros.
    """
    function = Function("differences")
    rows, advances = function.array("rows", ADDRESS), function.array("advances", INTEGER)
    base = function.array("base", real)
    first, last = function.number("first"), function.number("last")
    start, end = function.number("start"), function.number("end")
    block, size = function.array("block", DOUBLE), function.number("size")
    lanes = machine.HOST.lanes(real)
    with function.loop(first, last) as i:
        row = Array(rows.load(i), real).at((advances.load(i) - 1) * start)
        place = block.at(i * size - start)
        for c, bound in function.columns(start, end, lanes):
            x, r = row.load(c, lanes, bound).to(DOUBLE), base.load(c, lanes, bound).to(DOUBLE)
            place.store(c, x - r)
    return [function]


@kernel
def gram_of_many(tile: int) -> list[Function]:
    """Add <block_i, block_j>, j <= i, to products[i * n + j], for the rows first <= i < last.

    Each row of the block is brought into the nearest cache once for all these rows. Numbers of rows
    are multiples of the tile; rows of the block from n on are zero.
    """
    inner = _tile(tile)
    function = Function("gram_of_many")
    block, size = function.array("block", DOUBLE), function.number("size")
    first, last = function.number("first"), function.number("last")
    width = function.number("width")
    products, n = function.array("products", DOUBLE), function.number("n")
    with function.loop(0, width, NEAR) as start:
        columns = minimum(function.constant(NEAR, INTEGER), width - start)
        with function.loop(0, last, tile) as j, function.loop(maximum(first, j), last, tile) as i:
            a, b = block.at(i * size + start), block.at(j * size + start)
            function.call(inner, a, b, size, columns, products.at(i * n + j), n)
    return [inner, function]


@kernel
def gram_of_few(real: str, n: int) -> list[Function]:
    """Set products[i * n + j], j <= i, to the sums of `gram`, for so few rows that registers do."""
    function = Function("gram_of_few")
    rows = function.array("rows", ADDRESS)
    advances = function.array("advances", INTEGER)
    base = function.array("base", real)
    first, last = function.number("first"), function.number("last")
    products = function.array("products", DOUBLE)
    lanes, columns = machine.HOST.lanes(DOUBLE), LINE // SIZE[real]
    zero = function.constant(0.0, DOUBLE, lanes)
    sums = {(i, j): function.variable(zero) for i in range(n) for j in range(i + 1)}
    for start, bound in function.columns(first, last, columns):
        vectors = [Array(rows.load(i), real).at((advances.load(i) - 1) * start) for i in range(n)]
        for c in range(0, columns, lanes):
            r = base.load(start + c, lanes, bound).to(DOUBLE)
            away = [row.load(start + c, lanes, bound).to(DOUBLE) - r for row in vectors]
            for (i, j), sum_ in sums.items():
                sum_.value = fma(away[i], away[j], sum_.value)
        for row in vectors:
            prefetch(row, start, columns)
    for (i, j), sum_ in sums.items():
        products.store(n * i + j, sum_.value.sum())
    return [function]


def _tile(tile: int) -> Function:
    """Add <a_i, b_j> to products[i * stride + j] for i, j < tile."""
    function = Function("tile")
    a, b = function.array("a", DOUBLE), function.array("b", DOUBLE)
    size, width = function.number("size"), function.number("width")
    products, stride = function.array("products", DOUBLE), function.number("stride")
    lanes = machine.HOST.lanes(DOUBLE)
    zero = function.constant(0.0, DOUBLE, lanes)
    sums = [[function.variable(zero) for _ in range(tile)] for _ in range(tile)]
    with function.loop(0, width, lanes) as c:
        y = [b.load(size * j + c, lanes) for j in range(tile)]
        for i in range(tile):
            x = a.load(size * i + c, lanes)
            for j in range(tile):
                sums[i][j].value = fma(x, y[j], sums[i][j].value)
    for i in range(tile):
        for j in range(tile):
            place = stride * i + j
            products.store(place, products.load(place) + sums[i][j].value.sum())
    return function
