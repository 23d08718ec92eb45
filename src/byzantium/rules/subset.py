"""The subset of smallest diameter, by branch and bound.

Call two rows farther apart than t a conflict. A set of diameter at most t is what remains when rows
are removed that cover all conflicts (a vertex cover). So bisect for the smallest t whose conflicts
can be covered by f rows, then look at all such covers. The problem is NP-hard, and f workers can
make it hard on purpose: the search ends at a budget, with the best set so far. It begins with a row
and its nearest rows, chosen such that the diameter is at most twice the smallest: from any row of
the best set, all others of that set are no farther away than its diameter.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

# How many rows are visited before it ends: a count, not a time, so that all machines agree.
BUDGET = 500_000
ROUNDING = 1e-9


def smallest_diameter(squared_distances: NDArray[np.float64], size: int) -> tuple[list[int], bool]:
    """Indices of `size` rows whose largest distance is smallest, and whether that is proven.

    Among equals the smallest sum of squared distances, then the first.
    """
    search = _Search(squared_distances.tolist(), size)
    try:
        search.run()
    except _OutOfBudgetError:
        return search.best[2], False
    return search.best[2], True


class _OutOfBudgetError(Exception):
    pass


class _Search:
    """Sets of rows are the bits of an integer. `best` is (diameter, sum, rows) of the best set."""

    def __init__(self, distances: list[list[float]], size: int) -> None:
        self.distances = distances
        self.size = size
        self.n = len(distances)
        self.left = BUDGET
        values = sorted({value for row in distances for value in row})
        # Diameters that differ by rounding are equal: only the largest of each such group counts.
        self.diameters = [
            value
            for value, larger in zip(values, [*values[1:], math.inf], strict=True)
            if larger > value * (1 + ROUNDING)
        ]
        around = (sorted(range(self.n), key=row.__getitem__)[:size] for row in distances)
        self.best = min(self._candidate(sorted(rows)) for rows in around)

    def run(self) -> None:
        everyone, f = (1 << self.n) - 1, self.n - self.size
        # All diameters below the best one known; the first that is possible is the smallest.
        smaller = self.diameters[: bisect_left(self.diameters, self.best[0])]
        k = bisect_left(smaller, True, key=lambda t: self._coverable(t, everyone, f))
        self._collect(self._conflicts(self.diameters[k]), everyone, f)

    def _candidate(self, rows: list[int]) -> tuple[float, float, list[int]]:
        within = [self.distances[i][j] for i in rows for j in rows if j < i]
        diameter = self.diameters[bisect_left(self.diameters, max(within, default=0.0))]
        return diameter, sum(within), rows

    def _spend(self, rows: int) -> None:
        self.left -= rows
        if self.left < 0:
            raise _OutOfBudgetError

    def _conflicts(self, diameter: float) -> list[int]:
        return [
            sum(1 << j for j, distance in enumerate(row) if distance > diameter)
            for row in self.distances
        ]

    def _most_conflicting(self, conflicts: list[int], rows: int) -> tuple[int, int, int]:
        """The row with most conflicts among `rows`, how many it has, and how many there are."""
        members = _members(rows)
        self._spend(len(members))
        degrees = [(conflicts[i] & rows).bit_count() for i in members]
        most = max(degrees, default=0)
        return members[degrees.index(most)] if most else 0, most, sum(degrees) // 2

    def _coverable(self, diameter: float, rows: int, f: int) -> bool:
        """Whether removing f of the rows can end all conflicts; if so, the rest is a candidate."""
        rest = self._uncovered(self._conflicts(diameter), rows, f)
        if rest is not None:
            self._offer(_members(rest)[: self.size])
        return rest is not None

    def _uncovered(self, conflicts: list[int], rows: int, f: int) -> int | None:
        """What remains, without conflicts, when at most f rows are removed; None if nothing can."""
        row, most, total = self._most_conflicting(conflicts, rows)
        if total == 0:
            return rows
        if total > f * most:
            return None
        # Remove either the row, or all rows that it is in conflict with.
        rest = self._uncovered(conflicts, rows & ~(1 << row), f - 1)
        if rest is None and most <= f:
            rest = self._uncovered(conflicts, rows & ~conflicts[row], f - most)
        return rest

    def _collect(self, conflicts: list[int], rows: int, f: int) -> None:
        """Visit every way to end all conflicts by removing f rows."""
        row, most, total = self._most_conflicting(conflicts, rows)
        if total == 0:
            self._choose([], _members(rows), 0.0)
        elif total <= f * most:
            self._collect(conflicts, rows & ~(1 << row), f - 1)
            if most <= f:
                self._collect(conflicts, rows & ~conflicts[row], f - most)

    def _choose(self, chosen: list[int], rest: list[int], total: float) -> None:
        """Complete `chosen` from `rest` to the right size and the smallest sum of distances."""
        need = self.size - len(chosen)
        self._spend(len(rest) ** 2 + 1)
        greedy = chosen + rest[:need]
        self._offer(greedy)
        # Each further row adds its distances to those chosen, and half of those to the others.
        additions = []
        for i in rest:
            others = sorted(self.distances[i][j] for j in rest if j != i)[: max(need - 1, 0)]
            additions.append(sum(self.distances[i][j] for j in chosen) + sum(others) / 2)
        bound = total + sum(sorted(additions)[:need])
        if len(rest) == need or bound >= self.best[1]:
            return
        first, rest = rest[0], rest[1:]
        self._choose([*chosen, first], rest, total + sum(self.distances[first][j] for j in chosen))
        self._choose(chosen, rest, total)

    def _offer(self, rows: list[int]) -> None:
        self.best = min(self.best, self._candidate(rows))


def _members(rows: int) -> list[int]:
    return [i for i in range(rows.bit_length()) if rows >> i & 1]
