"""The subset of smallest diameter, exactly, by branch and bound.

Rows farther apart than t are in conflict. A set of diameter at most t is what remains when a vertex
cover of the conflicts is removed: bisect for the smallest t whose conflicts f rows cover, then look
at all such covers.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

# Rows looked at before giving up: a count and not a clock, so that every machine agrees.
BUDGET = 20_000_000
ROUNDING = 1e-9


def smallest_diameter(squared_distances: NDArray[np.float64], size: int) -> list[int] | None:
    """Indices of `size` rows whose largest distance is smallest, or None beyond the budget.

    Among equals the smallest sum of squared distances, then the first.
    """
    try:
        return _Search(squared_distances.tolist(), size).run()
    except _OutOfBudgetError:
        return None


class _OutOfBudgetError(Exception):
    pass


class _Search:
    """Sets of rows are the bits of an integer."""

    def __init__(self, distances: list[list[float]], size: int) -> None:
        self.distances = distances
        self.size = size
        self.n = len(distances)
        self.left = BUDGET
        self.best: tuple[float, list[int]] | None = None

    def run(self) -> list[int]:
        everyone, f = (1 << self.n) - 1, self.n - self.size
        values = sorted({value for row in self.distances for value in row})
        # Diameters that differ by rounding are equal: only the largest of each such group counts.
        diameters = [
            value
            for value, larger in zip(values, [*values[1:], math.inf], strict=True)
            if larger > value * (1 + ROUNDING)
        ]
        k = bisect_left(
            diameters, True, key=lambda t: self._coverable(self._conflicts(t), everyone, f)
        )
        self._collect(self._conflicts(diameters[k]), everyone, f)
        assert self.best is not None
        return self.best[1]

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

    def _coverable(self, conflicts: list[int], rows: int, f: int) -> bool:
        """Whether removing f of the rows can end all conflicts."""
        row, most, total = self._most_conflicting(conflicts, rows)
        if total == 0:
            return True
        if total > f * most:
            return False
        # Either the row goes, or all that it is in conflict with.
        return self._coverable(conflicts, rows & ~(1 << row), f - 1) or (
            most <= f and self._coverable(conflicts, rows & ~conflicts[row], f - most)
        )

    def _collect(self, conflicts: list[int], rows: int, f: int) -> None:
        """Visit every way to end all conflicts by removing f rows."""
        row, most, total = self._most_conflicting(conflicts, rows)
        if total == 0:
            self._choose([], _members(rows), 0.0)
        elif total <= f * most:
            self._collect(conflicts, rows & ~(1 << row), f - 1)
            if most <= f:
                self._collect(conflicts, rows & ~conflicts[row], f - most)

    def _choose(self, kept: list[int], rest: list[int], total: float) -> None:
        """Complete `kept` from `rest` to the right size and the smallest sum of distances."""
        need = self.size - len(kept)
        self._spend(len(rest) ** 2 + 1)
        greedy = kept + rest[:need]
        self._offer(greedy)
        # Each further row adds its distances to those kept, and half of those to the others.
        additions = []
        for i in rest:
            others = sorted(self.distances[i][j] for j in rest if j != i)[: max(need - 1, 0)]
            additions.append(sum(self.distances[i][j] for j in kept) + sum(others) / 2)
        bound = total + sum(sorted(additions)[:need])
        if len(rest) == need or self.best is None or bound >= self.best[0]:
            return
        first, rest = rest[0], rest[1:]
        self._choose([*kept, first], rest, total + sum(self.distances[first][j] for j in kept))
        self._choose(kept, rest, total)

    def _offer(self, rows: list[int]) -> None:
        total = sum(self.distances[i][j] for i in rows for j in rows if j < i)
        if self.best is None or (total, rows) < self.best:
            self.best = total, rows


def _members(rows: int) -> list[int]:
    return [i for i in range(rows.bit_length()) if rows >> i & 1]
