"""The sums of many rows by which thousands of rows are mixed, all at once.

Nearest-neighbor mixing makes n sums of n - f rows each. The rows are taken a few at a time: the
sums of all subsets of these few are tabulated once, and each of the n sums adds the entry of its
own subset ("the method of four Russians").
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from byzantium._kernels import compiler as machine
from byzantium._kernels.ir import (
    ADDRESS,
    BYTE,
    DOUBLE,
    INTEGER,
    SIZE,
    Array,
    Function,
    Value,
    larger,
    magnitude,
)
from byzantium._kernels.sums import BLOCK, prefetch

Matrix = NDArray[np.float64]

# Rows of a subset, and tables of subsets: so many that all tables stay in the nearest cache.
FEW, TABLES = 6, 8
ENTRIES = 1 << FEW


class SubsetSums:
    """The arguments of a function that computes P X block by block, as `sums.Mixing` does.

    Row i of P X is shares[i] times the sum of some rows of X, by their codes: bit k of
    codes[p, i, t] says that row (p * TABLES + t) * FEW + k of X is among them.
    """

    def __init__(self, function: Function, real: str) -> None:
        self.function, self.real = function, real
        self.rows, self.passes = function.array("rows", ADDRESS), function.number("passes")
        self.codes, self.m = function.array("codes", BYTE), function.number("m")
        self.shares = function.array("shares", DOUBLE)
        self.tables = function.array("tables", DOUBLE)  # scratch memory
        self.sums = function.array("sums", DOUBLE)  # the same, (m, lanes)

    def block(
        self,
        start: Value,
        bound: Value | None,
        store: Callable[[Value, Value, Value], None],
        peak: Array,
    ) -> None:
        """Compute a block of P X; see `sums.Mixing.block`."""
        function, size = self.function, BLOCK // SIZE[self.real]
        self._raise_peak(start, bound, peak)
        lanes = machine.HOST.lanes(DOUBLE)
        zero = function.constant(0.0, DOUBLE, lanes)
        with function.loop(0, size, lanes) as c:
            with function.loop(0, self.m) as i:
                self.sums.store(i * lanes, zero)
            with function.loop(0, self.passes) as p:
                tables = [self._table(p * TABLES + t, t, start + c, bound) for t in range(TABLES)]
                codes = self.codes.at(p * self.m * TABLES)
                with function.loop(0, self.m) as i:
                    total = self.sums.load(i * lanes, lanes)
                    for t, table in enumerate(tables):
                        code = codes.load(i * TABLES + t).to(INTEGER)
                        total = total + table.load(code * lanes, lanes)
                    self.sums.store(i * lanes, total)
            with function.loop(0, self.m) as i:
                share = self.shares.load(i).on(lanes)
                store(i, c, self.sums.load(i * lanes, lanes) * share)

    def _raise_peak(self, start: Value, bound: Value | None, peak: Array) -> None:
        function, lanes = self.function, machine.HOST.lanes(self.real)
        size, largest = BLOCK // SIZE[self.real], function.variable(peak.load(0, lanes))
        with function.loop(0, self.passes * (TABLES * FEW)) as j:
            row = Array(self.rows.load(j), self.real)
            for c in range(0, size, lanes):
                x = row.load(start + c, lanes, bound)
                largest.value = larger(largest.value, magnitude(x))
            prefetch(row, start, size)
        peak.store(0, largest.value)

    def _table(self, group: Value, place: int, column: Value, bound: Value | None) -> Array:
        """The sums of all subsets of some rows, in some columns."""
        function, lanes = self.function, machine.HOST.lanes(DOUBLE)
        table = self.tables.at(place * ENTRIES * lanes)
        table.store(0, function.constant(0.0, DOUBLE, lanes))
        for k in range(FEW):
            row = Array(self.rows.load(group * FEW + k), self.real)
            x = row.load(column, lanes, bound).to(DOUBLE)
            with function.loop(0, 1 << k) as subset:
                entry = table.load(subset * lanes, lanes) + x
                table.store((subset + (1 << k)) * lanes, entry)
        return table


def saves_work(mixing: Matrix) -> bool:
    """Whether sums by tables are fewer operations than sums of single rows."""
    m, n = mixing.shape
    return 2 * _passes(n) * TABLES * (m + ENTRIES) <= np.count_nonzero(mixing)


def averages(mixing: Matrix) -> bool:
    """Whether each row of a matrix has equal shares, besides zeros."""
    return all(((row == 0) | (row == row.max())).all() for row in mixing)


def codes_of(mixing: Matrix) -> NDArray[np.uint8]:
    """(passes, m, TABLES): which rows each sum has; see `SubsetSums`."""
    m, n = mixing.shape
    passes, bits = _passes(n), 1 << np.arange(FEW, dtype=np.uint8)
    codes = np.empty((passes, m, TABLES), dtype=np.uint8)
    for i, row in enumerate(mixing):
        among = np.zeros(passes * TABLES * FEW, dtype=np.uint8)
        among[:n] = row != 0
        codes[:, i] = among.reshape(passes, TABLES, FEW) @ bits
    return codes


def _passes(n: int) -> int:
    return -(-n // (TABLES * FEW))
