"""What is measured of a training, as one table. Who measures, writes or shows it, reads it there.

A new metric is one entry of `TABLE`. `Settings(record=...)` then accepts its word, the simulation
records it, the file of metrics has it, and tables, figures and the page show it under its title.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from byzantium import aggregation, learning
from byzantium.core import Members, cached_property

if TYPE_CHECKING:
    from torch import Tensor

    from byzantium.aggregation import Aggregator, Report
    from byzantium.learning.simulation import Simulation


# -- where a metric looks -----------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """What is known of a round when the server has aggregated, and before it takes its step.

    n:         how many workers there are; `workers` took part, the honest ones first.
    sent:      (len(workers), d), what they sent.
    honest:    (h, d), the first rows of it.
    loss:      the mean loss of the honest workers on their batches.
    aggregate: (d,).
    report:    of the rule; None unless a metric needs it.
    """

    n: int
    workers: Sequence[int]
    sent: Tensor
    honest: Tensor
    loss: float
    aggregate: Tensor
    report: Report | None = None

    @property
    def explained(self) -> Report:
        assert self.report is not None, "a metric that reads the report says so: needs='report'"
        return self.report


class Evaluation:
    """The model after a round. What several metrics share is computed once."""

    def __init__(self, training: Simulation) -> None:
        self.training = training

    @cached_property
    def test(self) -> dict[str, float]:
        return self.training.evaluate()

    @cached_property
    def heterogeneity(self) -> dict[str, float]:
        return self.training.heterogeneity()


# -- what a metric is ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """One thing that is measured.

    name:    its key in metrics.jsonl.
    title:   what the page, figures and the terminal call it.
    compute: its value, from a `Round`; or, where there is no reduce, from an `Evaluation`.
    reduce:  how its values in the rounds before an evaluation become one, in metrics.jsonl. Without
             it, it is measured at evaluations.
    scale:   how it is drawn: "linear", "log" or "percent" (linear from 0 to 100).
    record:  the word of `Settings.record` that asks for it: its name unless something else is said;
             None if it is always measured.
    key:     what it is called in the record of a round: its name unless something else is said.
    kind:    what its value is: "number"; "shares", a number for each of the n workers; "workers", a
             list of some of them (in metrics.jsonl a mapping of these to numbers of rounds).
    needs:   what it needs of the rule beside the aggregate: nothing, its "report", or "weights",
             which are in the report. Rules that do not weigh (by coordinate) must work out weights,
             which takes longer than the rule; with these it is of rounds with an evaluation alone.
             One that needs "classes" is left out where the targets are numbers.
    """

    name: str
    title: str
    compute: Callable[[Any], Any]
    reduce: Callable[[list[Any]], Any] | None = None
    scale: Literal["linear", "log", "percent"] = "linear"
    record: str | None = ""
    key: str = ""
    kind: Literal["number", "shares", "workers"] = "number"
    needs: Literal["", "report", "weights", "classes"] = ""

    def __post_init__(self) -> None:
        if self.record == "":
            object.__setattr__(self, "record", self.name)
        object.__setattr__(self, "key", self.key or self.name)

    def measure(self, scene: Round | Evaluation) -> Any:
        value = self.compute(scene)
        return float(value) if self.kind == "number" else value


# -- formulas -----------------------------------------------------------------------------------


def _weights(scene: Round) -> list[float]:
    """How much each of the n workers counted; one that took no part has the weight 0."""
    weights = [0.0] * scene.n
    for worker, weight in zip(scene.workers, scene.explained.weights.tolist(), strict=True):
        weights[worker] = weight
    return weights


# -- reductions ---------------------------------------------------------------------------------


def mean(values: list[float]) -> float:
    """The mean of numbers, with six digits."""
    return float(f"{sum(values) / len(values):.6g}")


def mean_of_each(values: list[list[float]]) -> list[float]:
    """The mean of each worker's numbers, with six decimals."""
    return [round(sum(column) / len(values), 6) for column in zip(*values, strict=True)]


def times(values: list[list[int]]) -> dict[str, int]:
    """In how many rounds each worker was among those named."""
    named = [worker for workers in values for worker in workers]
    return {str(worker): named.count(worker) for worker in sorted(set(named))}


# -- the table ----------------------------------------------------------------------------------

SHIPPED = (
    Metric("loss", "test loss", lambda at: at.test["loss"], scale="log", record=None),
    Metric(
        "accuracy",
        "test accuracy (%)",
        lambda at: at.test["accuracy"],
        scale="percent",
        record=None,
        needs="classes",
    ),
    Metric(
        "train_loss",
        "training loss",
        lambda scene: scene.loss,
        mean,
        "log",
        record=None,
        key="loss",
    ),
    Metric(
        "distance",
        "distance to the honest mean",
        lambda scene: (scene.aggregate - aggregation.moments(scene.honest)[0]).norm(),
        mean,
    ),
    Metric(
        "spread",
        "spread of the honest (heterogeneity)",
        lambda scene: learning.spread(scene.honest),
        mean,
    ),
    Metric(
        "norm",
        "mean norm of the honest",
        lambda scene: aggregation.row_norms(aggregation.Matrix(scene.honest)).mean(),
        mean,
        "log",
    ),
    Metric(
        "weights",
        "weight of each worker",
        _weights,
        mean_of_each,
        kind="shares",
        needs="weights",
    ),
    Metric(
        "rejected",
        "rejected workers",
        lambda scene: [scene.workers[k] for k in scene.explained.rejected],
        times,
        kind="workers",
        needs="report",
    ),
    Metric("zeta2", "ζ²", lambda at: at.heterogeneity["zeta2"], record="heterogeneity"),
    Metric("b2", "B²", lambda at: at.heterogeneity["b2"], scale="log", record="heterogeneity"),
)
TABLE: Members[Metric] = Members("metric", {metric.name: metric for metric in SHIPPED})


def words() -> tuple[str, ...]:
    """The words that `Settings.record` takes."""
    return tuple(dict.fromkeys(m.record for m in TABLE.values() if m.record is not None))


def of_rounds(record: Collection[str], rule: Aggregator, evaluated: bool) -> list[Metric]:
    """The metrics of a round, for these words of `Settings.record`."""
    weights = rule.knows_weights == "always" or (rule.knows_weights == "asked" and evaluated)
    return [
        metric
        for metric in _asked_for(record)
        if metric.reduce is not None and (metric.needs != "weights" or weights)
    ]


def of_evaluations(record: Collection[str], classes: int) -> list[Metric]:
    """The metrics of an evaluation, on data with so many classes."""
    return [
        metric
        for metric in _asked_for(record)
        if metric.reduce is None and (metric.needs != "classes" or classes)
    ]


def _asked_for(record: Collection[str]) -> list[Metric]:
    return [metric for metric in TABLE.values() if metric.record in (None, *record)]


def line(evaluation: dict[str, Any], rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A line of metrics.jsonl: an evaluation, and the rounds before it, each metric reduced."""
    reduced = {}
    for metric in TABLE.values():
        values = [record[metric.key] for record in rounds if metric.key in record]
        if metric.reduce is not None and values:
            reduced[metric.name] = metric.reduce(values)
    return {**evaluation, **reduced}


def heterogeneity(lines: Sequence[Mapping[str, Any]]) -> tuple[float, float, float] | None:
    """zeta^2, B^2 and ||grad f||^2 = zeta^2 / B^2: means over the lines where they were recorded.

    B^2 is the mean of zeta^2 over that of the squared gradient, so that a line where the gradient
    vanishes does not decide alone. None where nothing was recorded, or is not finite.
    """
    recorded = [line for line in lines if line.get("b2") and "zeta2" in line]
    found = [(line["zeta2"], line["zeta2"] / line["b2"]) for line in recorded]
    if not found:
        return None
    zeta2, gradient = (sum(column) / len(found) for column in zip(*found, strict=True))
    usable = math.isfinite(zeta2) and math.isfinite(gradient) and gradient > 0
    return (zeta2, zeta2 / gradient, gradient) if usable else None


def scale(name: str) -> str:
    """How a metric is drawn; linear where the table does not know it."""
    return TABLE[name].scale if name in TABLE else "linear"


def numbers() -> list[Metric]:
    """The metrics that can be drawn over rounds, in the order a page offers them."""
    found = [metric for metric in TABLE.values() if metric.kind == "number"]
    # What runs are judged by goes first; the others follow in the order of the table.
    return sorted(found, key=lambda metric: metric.name != "accuracy")
