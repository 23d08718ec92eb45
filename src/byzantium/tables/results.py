"""Tables of results: our numbers in each cell, beside the published ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev, variance
from typing import Any

from byzantium.learning import metrics
from byzantium.runs import Job, Result
from byzantium.tables.artifact import Artifact, Cell

#: A cell agrees with the paper within two published standard deviations, or so many points.
POINTS = 1.5
#: The same in words.
CRITERION = (
    "within two published standard deviations of the published mean (over seeds, or over seeds and "
    f"the last ten evaluations), or within {POINTS} points of it, whichever is most"
)
# Student's t by degrees of freedom, 1 to 10: a larger one is beyond chance, with 95 % (two-sided).
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
#: Cells that the seeds do not show to differ count as equally good if their means differ by at most
#: this share of the larger one.
ALIKE = 0.05
#: A model of at most this test accuracy, in percent of ten classes, has collapsed: it guesses. One
#: that always predicts the same class of MNIST has up to 11.35.
COLLAPSED = 12.0


def differ(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether the means of two samples differ by more than chance, by Welch's t test with 95 %.

    It is False if one of them has a single value.
    """
    if min(len(a), len(b)) < 2:
        return False
    u, v = variance(a) / len(a), variance(b) / len(b)
    gap = abs(fmean(a) - fmean(b))
    if u + v == 0:
        return gap > 0
    freedom = (u + v) ** 2 / (u**2 / (len(a) - 1) + v**2 / (len(b) - 1))
    return gap > STUDENT[min(int(freedom + 1e-9), len(STUDENT)) - 1] * math.sqrt(u + v)


def tied(best: Sequence[float], other: Sequence[float]) -> bool:
    """Whether another cell is marked with the best one: its values are close, and not shown worse.

    A test alone would mark a cell because its seeds vary much.

    >>> tied([96.0, 96.4, 96.2], [96.1, 95.5, 96.3]), tied([96.0, 96.4, 96.2], [69.0, 1.0, 2.0])
    (True, False)
    """
    a, b = fmean(best), fmean(other)
    return abs(a - b) <= ALIKE * max(abs(a), abs(b)) and not differ(best, other)


@dataclass(frozen=True)
class Published:
    """The published number of a cell.

    - `mean`: the mean test accuracy over seeds, in percent.
    - `deviation`: its standard deviation over seeds.
    - `seeds`: how many seeds there were.
    - `spread`: the standard deviation, about the mean, of the means of five evaluations in a row,
      over seeds and over the last ten evaluations; 0 where no curves were released.
    - `collapsed`: how many seeds ended at the accuracy of guessing.

    >>> Published(mean=37.33, deviation=6.78, seeds=3).spread
    0.0
    """

    mean: float
    deviation: float
    seeds: int
    spread: float = 0.0
    collapsed: int = 0


@dataclass(frozen=True)
class MeasuredCell:
    """A cell of a table or figure with its published number and our results.

    - `published`: the published number; None if there is none.
    - `results`: the results of its jobs, one for each seed.
    - `metric`: the name of the metric that it shows; by default what its jobs are judged by.

    >>> from pathlib import Path
    >>> from byzantium.runs import Run
    >>> done = Result(Run(), Path("results"), "completed", [], {"accuracy": 90.0})
    >>> paper = Published(mean=91.0, deviation=0.3, seeds=3)
    >>> cell = MeasuredCell(Cell({}, (Run(),)), paper, (done,))
    >>> cell.difference, cell.verdict
    (-1.0, 'agrees')
    """

    cell: Cell
    published: Published | None
    results: tuple[Result, ...]
    metric: str = ""

    @property
    def labels(self) -> dict[str, Any]:
        """The labels of the cell."""
        return self.cell.labels

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs of the cell, one for each seed."""
        return self.cell.jobs

    @property
    def values(self) -> list[float]:
        """The number of each completed job: its accuracy in percent, or its loss for regression.

        With a metric, the mean of its last five evaluations.
        """
        values = (
            result.mean_of_last(self.metric) if self.metric else result.measured
            for result in self.results
        )
        return [value for value in values if value is not None]

    @property
    def goodness(self) -> float:
        """A number that is larger for better results; minus infinity for one that diverged."""
        if self.diverged or self.value is None:
            return -math.inf
        if self.metric:
            less = metrics.better(self.metric) == "less"
        else:
            less = any("loss" in result.summary for result in self.results)
        return -self.value if less else self.value

    @property
    def value(self) -> float | None:
        """The mean of the values over seeds; None if there is none."""
        return fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the values over seeds; None if there are fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def missing(self) -> int:
        """How many of its jobs are not finished."""
        return sum(not result.done for result in self.results)

    @property
    def diverged(self) -> int:
        """How many of its jobs diverged."""
        return sum(result.status == "diverged" for result in self.results)

    @property
    def collapsed(self) -> int:
        """How many of its jobs diverged, or ended at the accuracy of guessing."""
        return self.diverged + sum(value <= COLLAPSED for value in self.values)

    @property
    def failed(self) -> int:
        """How many of its jobs were tried and failed."""
        return sum(result.status == "failed" for result in self.results)

    @property
    def difference(self) -> float | None:
        """Our value minus the published one; None if one of them is missing."""
        if self.published is None or self.value is None:
            return None
        return self.value - self.published.mean

    @property
    def within_seeds(self) -> bool:
        """Whether our value is within `POINTS`, or two published deviations over seeds alone."""
        if self.published is None or self.difference is None:
            return False
        return abs(self.difference) <= max(POINTS, 2 * self.published.deviation) + 1e-9

    @property
    def tolerance(self) -> float:
        """How far our value may be from the published one to agree with it."""
        if self.published is None:
            return math.nan
        return max(POINTS, 2 * self.published.deviation, 2 * self.published.spread)

    def differs(self, other: MeasuredCell) -> bool:
        """Whether two cells differ by more than chance; False if one of them has a single seed."""
        return differ(self.values, other.values)

    @property
    def verdict(self) -> str:
        """How it compares: "agrees", "differs", "collapsed" or "missing".

        "collapsed" are runs of ours that diverged or guess where no published one does. Where runs
        collapse on both sides they agree: when it happens is chance. Where nothing was published,
        it is "diverged" or empty.
        """
        if self.missing == len(self.results):
            return "missing"
        if self.published is None:
            return "diverged" if self.diverged else ""
        # The sum of two means is rounded: exactly the tolerance is within it.
        near = self.difference is not None and abs(self.difference) <= self.tolerance + 1e-9
        if near and not self.diverged:
            return "agrees"
        if self.collapsed:
            return "agrees" if self.published.collapsed else "collapsed"
        return "differs"


@dataclass(frozen=True)
class ResultTable:
    """A table or figure with the published numbers and our results: reports are made of these.

    - `artifact`: the table or figure.
    - `cells`: its cells, each with its published number and our results.

    >>> from byzantium.papers import artifact, compare
    >>> from byzantium.runs import Store
    >>> table = compare(artifact("table2"), Store("nowhere"))
    >>> table.is_published, table.begun, table.command()
    (True, False, 'byzantium reproduce table2')
    """

    artifact: Artifact
    cells: tuple[MeasuredCell, ...]

    @property
    def is_published(self) -> bool:
        """Whether numbers were published for any of its cells."""
        return any(cell.published for cell in self.cells)

    @property
    def comparable(self) -> bool:
        """Whether its settings are the paper's, except for the number of seeds."""
        version = self.artifact.version
        return not (version.rounds or version.model or version.data)

    @property
    def complete(self) -> bool:
        """Whether all its jobs are finished."""
        return not any(cell.missing for cell in self.cells)

    @property
    def begun(self) -> bool:
        """Whether any of its jobs was begun."""
        return any(result.status != "missing" for c in self.cells for result in c.results)

    def command(self, cell: MeasuredCell | None = None) -> str:
        """The command that makes it, or one cell of it; empty where no single command does."""
        version = self.artifact.version
        version = version if cell is None else replace(version, only=cell.cell.name)
        return " ".join([self.artifact.maker, *version.flags()])

    def order(self) -> tuple[int, int]:
        """How many pairs of rules are in the published order, and how many pairs there are.

        These are the pairs in one setting whose published numbers differ by more than `POINTS`
        and by more than two standard deviations over seeds.
        """
        same = pairs = 0
        for a, b in itertools.combinations(self.cells, 2):
            if _setting(a) != _setting(b) or not (a.published and b.published):
                continue
            if a.value is None or b.value is None:
                continue
            gap = a.published.mean - b.published.mean
            if abs(gap) > max(POINTS, 2 * a.published.deviation, 2 * b.published.deviation):
                pairs += 1
                same += gap * (a.value - b.value) > 0
        return same, pairs


def grouped(
    cells: Iterable[MeasuredCell], names: Iterable[str]
) -> dict[tuple[Any, ...], list[MeasuredCell]]:
    """Cells by their values of some labels; None stands for a label that they do not have."""
    names, groups = tuple(names), dict[tuple[Any, ...], list[MeasuredCell]]()
    for cell in cells:
        groups.setdefault(tuple(cell.labels.get(name) for name in names), []).append(cell)
    return groups


def _setting(cell: MeasuredCell) -> dict[str, Any]:
    return {name: value for name, value in cell.labels.items() if name != "aggregator"}


def worst(cells: Sequence[MeasuredCell]) -> MeasuredCell | None:
    """The cell with the worst mean over seeds, such as that of the worst attack.

    One that diverged is worse than any number. None if no cell has a result.

    - `cells`: cells that can be compared, such as those of one rule under different attacks.

    >>> worst([]) is None
    True
    """
    there = [cell for cell in cells if cell.values or cell.diverged]
    return min(there, key=lambda cell: cell.goodness, default=None)
