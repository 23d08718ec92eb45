"""Replays: repeated runs, each beside the released run of its seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

from byzantium.papers import published
from byzantium.runs import Result, Run
from byzantium.tables import COLLAPSED, MeasuredCell, ResultTable

#: How many test images the released runs were evaluated on.
IMAGES = 9984
# In percent. The published accuracies are rounded to three decimals, which is less.
HALF_AN_IMAGE = 100 / IMAGES / 2


@dataclass(frozen=True)
class Replay:
    """A run with the released random numbers, and the released run of the same seed.

    - `artifact`: the name of the table or figure that it belongs to.
    - `cell`: its cell.
    - `result`: our run.
    - `curve`: the released run: (round, accuracy, loss) at each evaluation. Empty for Tables 1 and
      3, of which no curves were released.
    - `logged`: the training losses of the first rounds of the released run, by round.

    >>> from pathlib import Path
    >>> from byzantium.tables import Cell
    >>> metrics = [{"round": 30, "accuracy": 68.349}, {"round": 60, "accuracy": 70.1}]
    >>> result = Result(Run(), Path("results"), "unfinished", metrics, {})
    >>> curve = [(30, 68.349, 1.634), (60, 70.132, 1.021)]
    >>> Replay("table2", MeasuredCell(Cell({}, ()), None, ()), result, curve, {}).equal
    1
    """

    artifact: str
    cell: MeasuredCell
    result: Result
    curve: list[tuple[int, float, float]]
    logged: dict[int, float]

    @property
    def seed(self) -> int:
        """The seed of both runs."""
        assert isinstance(self.result.job, Run)
        return self.result.job.seed

    @cached_property
    def differences(self) -> dict[int, float]:
        """Our accuracy minus the released one, in percent, by round, where both evaluated."""
        ours = {line["round"]: line["accuracy"] for line in self.result.metrics}
        return {at: ours[at] - theirs for at, theirs, _ in self.curve if at in ours}

    @property
    def equal(self) -> int:
        """At how many evaluations in a row, from the first, the accuracy is equal to the digit."""
        return sum(1 for _ in takewhile(_is_zero, self.differences.values()))

    @property
    def ends(self) -> int | None:
        """The first round at which the accuracy differs; None if it never does."""
        unequal = (at for at, gap in self.differences.items() if not _is_zero(gap))
        return next(unequal, None)

    @cached_property
    def loss_differences(self) -> dict[int, float]:
        """The relative differences of the training losses, by round, where one was logged."""
        ours = training_losses(self.result)
        return {
            at: abs(ours[at] - theirs) / theirs
            for at, theirs in self.logged.items()
            if at in ours and math.isfinite(theirs)
        }

    @property
    def loss_difference(self) -> float | None:
        """The largest relative difference of the training losses before the accuracy differs."""
        before = [
            gap for at, gap in self.loss_differences.items() if self.ends is None or at < self.ends
        ]
        return max(before, default=None)

    @property
    def final(self) -> tuple[float, float] | None:
        """The mean of the last five accuracies, released and ours; None unless both are there.

        After NaN the released runs predicted class 0; so would ours, which stops there.
        """
        if not self.curve or not self.result.done:
            return None
        ours = self.result.accuracy
        if ours is None:
            ours = published.AFTER_NAN
        accuracies = [accuracy for _, accuracy, _ in self.curve]
        accuracies += [published.AFTER_NAN] * (published.EVALUATIONS - len(accuracies))
        return published.final(accuracies), ours

    @property
    def agrees(self) -> bool | None:
        """Whether the final accuracies agree, or both runs collapsed; None unless both are there.

        They agree within what two runs of the cell may differ by (`MeasuredCell.tolerance`).
        """
        if self.final is None:
            return None
        theirs, ours = self.final
        both = max(theirs, ours) <= COLLAPSED
        return both or abs(ours - theirs) <= self.cell.tolerance + 1e-9


def training_losses(result: Result) -> dict[int, float]:
    """The training loss of each round of a run that recorded them ("losses"), by round."""
    losses: dict[int, float] = {}
    for line in result.metrics:
        block = line.get("losses", [])
        losses |= dict(enumerate(block, line["round"] - len(block) + 1))
    return losses


def replays(table: ResultTable) -> Iterator[Replay]:
    """All repeated runs of an artifact that have evaluated at least once.

    - `table`: the artifact, in its released version.

    >>> from byzantium.papers import artifact, compare
    >>> from byzantium.runs import Store
    >>> from byzantium.tables import Version
    >>> made = artifact("table2", Version(seeds=1, released=True))
    >>> list(replays(compare(made, Store("nowhere"))))
    []
    """
    name = table.artifact.name
    for cell in table.cells:
        labels: dict[str, Any] = cell.labels
        curves = published.curves(name, labels)
        for seed, result in enumerate(cell.results):
            if result.metrics:
                curve = curves[seed] if curves else []
                yield Replay(name, cell, result, curve, published.losses(name, labels, seed))


def _is_zero(gap: float) -> bool:
    return abs(gap) < HALF_AN_IMAGE
