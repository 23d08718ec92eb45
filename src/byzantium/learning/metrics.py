"""What is measured while a model is trained: one table of metrics.

A new metric is one entry of `TABLE`. `Settings(record=...)` then accepts its word, the simulation
records it, metrics.jsonl holds it, and tables, figures and the page show it under its title.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from byzantium.core import Registry
from byzantium.learning import formulas
from byzantium.learning.formulas import Evaluation, Round

if TYPE_CHECKING:
    from byzantium.rules import Aggregator

#: What a metric can need beside the aggregate or the model.
Needs = Literal[
    "",
    "report",
    "weights",
    "own",
    "root",
    "classes",
    "trigger",
    "nodes",
    "classified nodes",
    "edges",
    "clock",
]
#: Early metrics are measured in at least so many rounds.
EARLY_ROUNDS = 25
#: What it means if the result stays farther from the root gradient than that.
ROOT_DOUBTED = (
    "the result was always farther from the root gradient than its standard error and the ridge "
    "explain, so more than f workers attack, or the root data differ from those of the workers"
)

# -- what a metric is ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """Something that is measured while a model is trained, in every round or at evaluations.

    A plugin that defines one offers it by its name: `--record largest`. The example measures how
    long the longest honest vector is, and keeps the largest value between two evaluations:

    >>> def longest(scene: Round) -> float:
    ...     return scene.honest.norm(dim=1).max()
    >>> largest = Metric("largest", "longest honest vector", longest, reduce=max)
    >>> largest.scale, largest.record
    ('linear', 'largest')

    - `name`: its key in metrics.jsonl.
    - `title`: what the page, figures and the terminal call it.
    - `compute`: a function that gives its value: of a `Round` if there is a `reduce`, of an
      `Evaluation` otherwise.
    - `reduce`: a function that makes one value of those in the rounds since the last evaluation,
      for metrics.jsonl. Without it, the metric is measured at evaluations only.
    - `scale`: how it is drawn: "linear", "log" or "percent" (linear from 0 to 100).
    - `record`: the word of `Settings.record` that asks for it, by default its name; None measures
      it always.
    - `key`: what it is called in the record of a round, by default its name.
    - `kind`: what its value is: "number"; "rounds", a number of which metrics.jsonl holds that of
      each round; "shares", a number for each of the n workers; "edges", one for each edge that has
      an honest end; or "workers", a list of some of them (in metrics.jsonl, in how many rounds each
      was named).
    - `needs`: what it needs beside the aggregate: nothing, the rule's "report", or "weights", which
      are part of it. Coordinate-wise rules take longer for weights than for the result, so with
      them such a metric is measured only in rounds with an evaluation. One that needs "own" looks
      at the losses of attackers, who then compute them in each round. One that needs "root" looks
      at the root gradient, which is then computed in each round. One that needs "classes" is left
      out for regression. One that needs "trigger" is measured if the attack has a trigger, and one
      that needs "clock" where there is simulated time. Those that need "nodes", "classified nodes"
      (nodes and classes) or "edges" (and weights) are for trainings without a server.
    - `early`: whether it is measured in the first rounds only: one pass of the honest worker with
      the fewest samples over its data, and at least 25 rounds.
    - `better`: whether rules are judged by it, and how: "more" or "less" of it is better.
    """

    name: str
    title: str
    compute: Callable[[Any], Any]
    reduce: Callable[[list[Any]], Any] | None = None
    scale: Literal["linear", "log", "percent"] = "linear"
    record: str | None = ""
    key: str = ""
    kind: Literal["number", "rounds", "shares", "edges", "workers"] = "number"
    needs: Needs = ""
    early: bool = False
    better: Literal["", "more", "less"] = ""

    def __post_init__(self) -> None:
        if self.record == "":
            object.__setattr__(self, "record", self.name)
        object.__setattr__(self, "key", self.key or self.name)

    def measure(self, scene: Round | Evaluation) -> Any:
        """Its value; a plain float where it is a number."""
        value = self.compute(scene)
        return float(value) if self.kind in ("number", "rounds") else value


# -- reductions ---------------------------------------------------------------------------------


def mean(values: list[float]) -> float:
    """The mean of numbers, with six digits."""
    return float(f"{sum(values) / len(values):.6g}")


def mean_of_known(values: list[float]) -> float:
    """The mean of the numbers that are not NaN, with six digits; NaN if all are."""
    return mean([value for value in values if not math.isnan(value)] or values)


def mean_of_each(values: list[list[float]]) -> list[float]:
    """The mean of each worker's numbers, with six decimals."""
    return [round(sum(column) / len(values), 6) for column in zip(*values, strict=True)]


def each(values: list[float]) -> list[float]:
    """The number of each round, with nine digits."""
    return [float(f"{value:.9g}") for value in values]


def each_finite(values: list[float]) -> list[float]:
    """The number of each round where it is finite, with nine digits."""
    return each([value for value in values if math.isfinite(value)])


def last(values: list[float]) -> float:
    """The number of the last round, with nine digits."""
    return each(values[-1:])[0]


def times(values: list[list[int]]) -> dict[str, int]:
    """In how many rounds each worker was among those named."""
    named = [worker for workers in values for worker in workers]
    return {str(worker): named.count(worker) for worker in sorted(set(named))}


# -- the table ----------------------------------------------------------------------------------

# Metrics that are always measured, and those that a word asks for together.
_always = partial(Metric, record=None)
_percent = partial(_always, scale="percent")
_root = partial(Metric, reduce=mean, record="root", needs="root")
_full = partial(Metric, record="heterogeneity")
_timed = partial(_always, needs="clock")

SHIPPED = (
    _always("loss", "test loss", lambda at: at.test["loss"], scale="log", better="less"),
    _percent(
        "accuracy",
        "test accuracy (%)",
        lambda at: at.test["accuracy"],
        needs="classes",
        better="more",
    ),
    _percent(
        "success_rate",
        "success rate of the backdoor (%)",
        lambda at: at.training.success_rate(),
        needs="trigger",
        better="less",
    ),
    _percent(
        "worst_accuracy",
        "test accuracy of the worst honest node (%)",
        lambda at: min(node["accuracy"] for node in at.nodes),
        needs="classified nodes",
        better="more",
    ),
    _always(
        "consensus",
        "distance of honest nodes to their mean model",
        formulas.consensus,
        scale="log",
        needs="nodes",
        better="less",
    ),
    _always(
        "train_loss", "training loss", lambda scene: scene.loss, mean_of_known, "log", key="loss"
    ),
    Metric("distance", "distance to the honest mean", formulas.distance, mean),
    Metric("spread", "spread of honest vectors (heterogeneity)", formulas.spread, mean),
    Metric("norm", "mean norm of honest vectors", formulas.norm, mean, "log"),
    Metric(
        "weights",
        "weight of each worker",
        formulas.weights,
        mean_of_each,
        kind="shares",
        needs="weights",
    ),
    Metric(
        "kept",
        "share of each edge that honest nodes took over",
        lambda at: list(at.kept),
        mean_of_each,
        record="weights",
        kind="edges",
        needs="edges",
    ),
    Metric("heard", "share of the weight that was heard", formulas.heard, mean, needs="weights"),
    Metric(
        "rejected", "rejected workers", formulas.rejected, times, kind="workers", needs="report"
    ),
    Metric(
        "losses",
        "training loss of each round, that of attackers' own batches included",
        lambda at: at.losses.double().mean(),
        each,
        "log",
        kind="rounds",
        needs="own",
    ),
    _root("root_distance", "distance to the root gradient", formulas.root_distance),
    _root("root_error", "standard error of the root gradient", formulas.root_error),
    _root("root_limit", "explained distance to the root gradient", formulas.root_limit),
    _full("zeta2", "ζ², spread of full gradients", lambda at: at.heterogeneity["zeta2"]),
    _full("b2", "B² = ζ² / ‖∇f‖²", lambda at: at.heterogeneity["b2"], scale="log"),
    _always(
        "early_heterogeneity",
        "B² of the vectors that honest workers sent, in each of the first rounds",
        formulas.relative_spread,
        each_finite,
        "log",
        kind="rounds",
        early=True,
    ),
    _timed("time", "simulated time", lambda at: at.buffered.time, last),
    _timed("staleness", "staleness of what honest workers sent (steps)", formulas.staleness, mean),
)
TABLE: Registry[Metric] = Registry("metric", {metric.name: metric for metric in SHIPPED})


def words() -> tuple[str, ...]:
    """The words that `Settings.record` takes."""
    return tuple(dict.fromkeys(m.record for m in TABLE.values() if m.record is not None))


def round_metrics(
    record: Collection[str],
    rule: Aggregator,
    evaluated: bool,
    early: bool,
    has: Collection[str] = (),
) -> list[Metric]:
    """The metrics of a round, for the words of `Settings.record`.

    - `rule`: the rule, which may not know the weights of workers, or only when it is asked.
    - `has`: what the training has that not all have: a "clock", or "nodes" without a server.
    """
    weights = rule.knows_weights == "always" or (rule.knows_weights == "asked" and evaluated)
    return [
        metric
        for metric in _asked_for(record)
        if metric.reduce is not None
        and (metric.needs not in ("weights", "edges") or weights)
        and (metric.needs != "edges" or "nodes" in has)
        and (metric.needs != "clock" or "clock" in has)
        and (early or not metric.early)
    ]


def need_own_losses(record: Collection[str]) -> bool:
    """Whether a metric for these words looks at the losses of attackers."""
    return any(metric.needs == "own" for metric in _asked_for(record))


def need_root(record: Collection[str]) -> bool:
    """Whether a metric for these words looks at the root gradient."""
    return any(metric.needs == "root" for metric in _asked_for(record))


def root_is_doubtful(rule: Aggregator, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether `RootMatching` stayed farther from the root gradient than can be explained.

    - `rule`: the server's rule; for others than `RootMatching` alone the answer is no.
    - `lines`: records of rounds, or lines of metrics.jsonl, that have "root_distance".
    """
    from byzantium.rules import RootMatching  # imports torch

    measured = [line for line in lines if "root_distance" in line and "root_limit" in line]
    return (
        isinstance(rule, RootMatching)
        and bool(measured)
        and all(line["root_distance"] > line["root_limit"] for line in measured)
    )


def evaluation_metrics(
    record: Collection[str], classes: int, trigger: bool, has: Collection[str] = ()
) -> list[Metric]:
    """The metrics of an evaluation, for the words of `Settings.record`.

    - `has`: what the training has that not all have, such as "nodes" with models of their own.
    """
    nodes = "nodes" in has
    there = {"classes": bool(classes), "trigger": bool(classes) and trigger, "nodes": nodes}
    there["classified nodes"] = bool(classes) and nodes
    return [
        metric
        for metric in _asked_for(record)
        if metric.reduce is None and there.get(metric.needs, True)
    ]


def _asked_for(record: Collection[str]) -> list[Metric]:
    return [metric for metric in TABLE.values() if metric.record in (None, *record)]


def line(evaluation: dict[str, Any], rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A line of metrics.jsonl: an evaluation, and each metric of the rounds before it, reduced."""
    reduced = {}
    for metric in TABLE.values():
        values = [record[metric.key] for record in rounds if metric.key in record]
        if metric.reduce is not None and values:
            reduced[metric.name] = metric.reduce(values)
    return {**evaluation, **reduced}


class Heterogeneity(NamedTuple):
    r"""How different honest workers are: :math:`\zeta^2`, :math:`B^2`, :math:`\|\nabla f\|^2`."""

    zeta2: float
    b2: float
    gradient2: float


def heterogeneity(lines: Sequence[Mapping[str, Any]]) -> Heterogeneity | None:
    r"""The means of :math:`\zeta^2`, :math:`B^2` and :math:`\|\nabla f\|^2` over recorded lines.

    The last is :math:`\zeta^2 / B^2`. The mean :math:`B^2` is the mean :math:`\zeta^2` divided by
    the mean :math:`\|\nabla f\|^2`, so that one line where the gradient vanishes does not decide
    alone. None where nothing was recorded, or where it is not finite.
    """
    recorded = [line for line in lines if line.get("b2") and "zeta2" in line]
    if not recorded:
        return None
    zeta2 = sum(line["zeta2"] for line in recorded) / len(recorded)
    gradient2 = sum(line["zeta2"] / line["b2"] for line in recorded) / len(recorded)
    usable = math.isfinite(zeta2) and math.isfinite(gradient2) and gradient2 > 0
    return Heterogeneity(zeta2, zeta2 / gradient2, gradient2) if usable else None


def early_heterogeneity(lines: Sequence[Mapping[str, Any]]) -> float | None:
    r"""The median :math:`B^2` of the vectors that honest workers sent in the first rounds.

    :math:`B^2` is the mean squared distance of these vectors, momentum included, to their mean,
    divided by the squared norm of the mean. Unlike "b2", which looks at full gradients at
    evaluations, it is what a rule has to cope with; and late in a training, where the mean
    vanishes, it would say nothing. None where nothing was recorded.

    >>> early_heterogeneity([{"early_heterogeneity": [4.0, 2.0]}, {"early_heterogeneity": [3.0]}])
    3.0
    """
    values = [value for line in lines for value in line.get("early_heterogeneity", ())]
    return median(values) if values else None


def scale(name: str) -> str:
    """How a metric is drawn; linear where the table does not know it."""
    return TABLE[name].scale if name in TABLE else "linear"


def better(name: str) -> str:
    """Whether "more" or "less" of a metric is better; empty where rules are not judged by it."""
    return TABLE[name].better if name in TABLE else ""


def numbers() -> list[Metric]:
    """The metrics that can be drawn over rounds, in the order a page offers them."""
    listed = [metric for metric in TABLE.values() if metric.kind == "number"]
    # What runs are judged by goes first; the others follow in the order of the table.
    return sorted(listed, key=lambda metric: metric.name != "accuracy")
