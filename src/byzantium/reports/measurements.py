"""Measurements: the curves, numbers and weights of the cells of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from byzantium.learning import metrics
from byzantium.papers import published
from byzantium.runs import LARGEST, LAST, Result
from byzantium.tables import MeasuredCell, ResultTable

#: The values of a metric, by round or by simulated time.
Curve = dict[float, float]
# Lines in percent that stay so close together nearly coincide.
COINCIDE = 15.0


def curves(table: ResultTable, cell: MeasuredCell) -> list[Curve]:
    """The curve of each seed that the figure shows: finite values by round, or by simulated time.

    Steps of several seeds come at different times, so these are interpolated to the same times.
    A norm is shown as its ratio to that without momentum, of the same seed, unless a user asked
    for a table of norms.
    """
    if table.artifact.picture.x == "time":
        return _at_same_times(
            [_recorded(result, table.artifact.picture.y, "time") for result in cell.results]
        )
    return _by_round(table, cell)


def _by_round(table: ResultTable, cell: MeasuredCell) -> list[Curve]:
    y = table.artifact.picture.y
    own = [_recorded(result, y) for result in cell.results]
    if y != "norm" or cell.metric:
        return own
    labels = {**cell.labels, "momentum": 0.0}
    plain = next((cell for cell in table.cells if cell.labels == labels), None)
    if plain is None:
        return [{} for _ in own]
    below = [_recorded(result, y) for result in plain.results]
    return [
        _drawn({at: value / base[at] for at, value in curve.items() if base.get(at)})
        for curve, base in zip(own, below, strict=True)
    ]


def _recorded(result: Result, y: str, x: str = "round") -> Curve:
    """Without a clock, a round takes the time 1."""
    return _drawn(
        {line[x if x in line else "round"]: line[y] for line in result.metrics if y in line}
    )


def _at_same_times(seeds: Sequence[Curve]) -> list[Curve]:
    """Several curves at the same times, from the first to the last that all have."""
    import numpy as np  # help does without it

    drawn = [curve for curve in seeds if curve]
    if len(drawn) < 2:
        return list(seeds)
    first, last = max(map(min, drawn)), min(map(max, drawn))
    times = np.linspace(first, max(first, last), max(map(len, drawn)))
    return [
        dict(zip(times.tolist(), np.interp(times, [*curve], [*curve.values()]), strict=True))
        for curve in drawn
    ]


def first_end(table: ResultTable) -> float | None:
    """When the first curve of completed runs ends, so that all can be compared until then."""
    done = [cell for cell in table.cells if all(r.status == "completed" for r in cell.results)]
    return min((max(c) for cell in done for c in curves(table, cell) if c), default=None)


def _drawn(curve: Curve) -> Curve:
    return {at: value for at, value in curve.items() if abs(value) <= LARGEST}


def published_curves(table: ResultTable, cell: MeasuredCell) -> list[list[tuple[int, float]]]:
    """The published curve of each seed, if the figure shows a metric that was published."""
    place = {"accuracy": 1, "loss": 2}.get(table.artifact.picture.y)
    if place is None:
        return []
    seeds = published.curves(table.artifact.name, cell.labels)
    if table.artifact.version.released:  # beside each run the one that it repeats
        seeds = seeds[: len(cell.results)]
    return [[(point[0], point[place]) for point in seed] for seed in seeds]


def zoom(table: ResultTable, cells: Sequence[MeasuredCell]) -> tuple[float, float] | None:
    """The range of lines in percent that nearly coincide; None otherwise.

    The first third of the rounds does not count.
    """
    if metrics.scale(table.artifact.picture.y) != "percent":
        return None
    lines: list[list[tuple[float, float]]] = []
    for cell in cells:
        lines += [list(curve.items()) for curve in curves(table, cell)]
        lines += [list[tuple[float, float]](curve) for curve in published_curves(table, cell)]
    return zoom_range(lines)


def zoom_range(lines: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float] | None:
    """The range of lines of (round, percent) that nearly coincide; None otherwise.

    >>> zoom_range([[(0, 10.0), (30, 91.0), (60, 94.0)], [(0, 10.0), (30, 92.0), (60, 95.5)]])
    (88.0, 98.0)
    >>> zoom_range([[(30, 91.0)], [(30, 20.0)]]) is None
    True
    """
    late = [value for line in lines for at, value in line if at > line[-1][0] / 3]
    late = [value for value in late if math.isfinite(value)]
    if not late or max(late) - min(late) > COINCIDE:
        return None
    return math.floor(min(late) / 2 - 1) * 2.0, min(100.0, math.ceil(max(late) / 2 + 1) * 2.0)


def numbers(table: ResultTable, cell: MeasuredCell) -> list[float]:
    """The number of a cell for each completed seed; for curves, the mean of the last five."""
    if cell.metric or table.artifact.picture.y in ("accuracy", "error"):
        return cell.values
    pairs = zip(cell.results, _by_round(table, cell), strict=True)
    return [
        fmean(list(curve.values())[-LAST:])
        for result, curve in pairs
        if result.status == "completed" and curve
    ]


def weights(cell: MeasuredCell, done: bool = False) -> list[list[float]]:
    """The mean weights of the workers for each seed that is done, or that was begun."""
    return [
        mean_weights(result)
        for result in cell.results
        if any("weights" in line for line in result.metrics) and (result.done or not done)
    ]


def mean_weights(result: Result) -> list[float]:
    """The mean weight of each worker over the rounds of a run."""
    lengths, rows = zip(*weight_blocks(result), strict=True)
    return means(rows, lengths)


def means(rows: Sequence[Sequence[float]], weights: Sequence[int] | None = None) -> list[float]:
    """The mean of each column of some rows, by weight if there are weights."""
    return [fmean(column, weights) for column in zip(*rows, strict=True)]


def weight_blocks(result: Result) -> list[tuple[int, list[float]]]:
    """The weights of the workers in each line, and over how many rounds they are means.

    The last block is shorter where the number of rounds is no multiple of the others' length.
    """
    lines = [line for line in result.metrics if "weights" in line]
    ends = [0, *(line["round"] for line in lines)]
    return [
        (line["round"] - before, line["weights"]) for before, line in zip(ends, lines, strict=False)
    ]


def share(weights: Sequence[float], attackers: int) -> float:
    """The share of the weight that the attackers, the last workers, had; 0 if all weights are 0."""
    total = sum(weights)
    return sum(weights[len(weights) - attackers :]) / total if total else 0.0


def deviation(result: Result) -> float:
    """The standard deviation over the draws of a demonstration; 0 if it is unknown."""
    deviation = result.metrics[-1].get("deviation", 0.0) if result.metrics else 0.0
    return float(deviation) if math.isfinite(deviation) else 0.0
