"""What metrics see of a round or an evaluation, and what they compute of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from byzantium.core import cached_property

if TYPE_CHECKING:
    from torch import Tensor

    from byzantium.learning.loop import Loop
    from byzantium.learning.root_data import RootGradient
    from byzantium.rules import Aggregator, Report

# The root gradient of honest data is rarely farther from the true one than this many standard
# errors: in a quarter of all draws at most (Markov), and hardly ever where many directions share
# the error.
STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Buffered:
    """What a metric of rounds sees where what workers send waits in buffers.

    - `time`: the simulated time.
    - `staleness`: for each honest worker who took part how many steps old the model was on which
      it computed, the mean over what it sent.
    - `rows`: for each worker who took part the row of `Round.sent` that has what it sent.
    - `shares`: for each of them how much of this row is its own.
    """

    time: float
    staleness: Sequence[float]
    rows: Sequence[int]
    shares: Sequence[float]


@dataclass(frozen=True)
class Round:
    """What a metric of rounds sees: a round after the server aggregated, before it takes its step.

    - `n`: how many workers there are.
    - `workers`: the numbers of those who took part, the honest ones first.
    - `sent`: what they sent, (len(workers), d); with a clock what is in the buffers.
    - `honest`: what the honest ones sent, (h, d): the first rows of `sent`.
    - `loss`: the mean loss of the honest workers on their batches.
    - `aggregate`: the result of the rule, (d,).
    - `report`: what the rule's `explain` says; None unless a metric needs it.
    - `losses`: the losses of the workers on their batches, in the order of `workers`; those of
      attackers are among them only where they were computed.
    - `root`: the root gradient and its standard error; None unless something needs it.
    - `rule`: the server's rule.
    - `weights`: how much each of the workers counts, in the order of `workers`, if the server
      vouches for weights.
    - `buffered`: the buffers; None where there are none.
    - `kept`: without a server, how much of each edge its honest ends took over, from 0 to 1; None
      unless a metric needs it.

    Without a server, `aggregate` is the step that the mean of the honest models took, divided by
    the learning rate, and the report has the mean weights of the honest nodes' reports.
    """

    n: int
    workers: Sequence[int]
    sent: Tensor
    honest: Tensor
    loss: float
    aggregate: Tensor
    report: Report | None = None
    losses: Tensor | None = None
    root: RootGradient | None = None
    rule: Aggregator | None = None
    weights: Sequence[float] | None = None
    buffered: Buffered | None = None
    kept: Sequence[float] | None = None

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """The mean and the standard deviation of each coordinate of what the honest ones sent."""
        from byzantium.vectors.points import moments  # imports torch

        return moments(self.honest)

    @property
    def explained(self) -> Report:
        """The report, for a metric that needs it."""
        assert self.report is not None, "a metric that reads the report says so: needs='report'"
        return self.report


class Evaluation:
    """What a metric of evaluations sees: the model after a round, in `training.model`.

    What several metrics share is computed once.
    """

    def __init__(self, training: Loop) -> None:
        self.training = training

    @cached_property
    def nodes(self) -> list[dict[str, float]]:
        """The numbers of `test` for each honest node that has a model of its own."""
        return self.training.evaluate_nodes()

    @cached_property
    def test(self) -> dict[str, float]:
        """The "loss" on the test set and, where there are classes, the "accuracy" (percent)."""
        from byzantium.learning.evaluation import average  # imports torch

        return average(self.nodes)

    @cached_property
    def heterogeneity(self) -> dict[str, float]:
        """How much the honest workers' full gradients differ; see `Loop.heterogeneity`."""
        return self.training.heterogeneity()


def weights(scene: Round) -> list[float]:
    """How much each of the n workers counted; one that took no part has the weight 0."""
    weights, counted = [0.0] * scene.n, scene.explained.weights.tolist()
    if scene.buffered is not None:
        buffers = zip(scene.buffered.rows, scene.buffered.shares, strict=True)
        counted = [counted[row] * share for row, share in buffers]
    for worker, weight in zip(scene.workers, counted, strict=True):
        weights[worker] = weight
    return weights


def heard(scene: Round) -> float:
    return scene.explained.heard


def rejected(scene: Round) -> list[int]:
    """The workers whose vectors were rejected; where they are in buffers, all of such a buffer."""
    rows = range(len(scene.workers)) if scene.buffered is None else scene.buffered.rows
    rejected = set(scene.explained.rejected)
    return [worker for worker, row in zip(scene.workers, rows, strict=True) if row in rejected]


def distance(scene: Round) -> Tensor:
    """The distance to the mean of the honest vectors, by weight if there are weights."""
    from byzantium.rules import Mean  # imports torch

    if scene.weights is None:
        mean = scene.moments[0]
    else:
        mean = Mean()(scene.honest, weights=scene.weights[: len(scene.honest)])
    return (scene.aggregate - mean).norm()


def spread(scene: Round) -> float:
    from byzantium.learning.evaluation import spread_of  # imports torch

    return spread_of(scene.moments[1], len(scene.honest))


def relative_spread(scene: Round) -> float:
    from byzantium.learning import evaluation  # imports torch

    return evaluation.relative_spread(*scene.moments, len(scene.honest))


def staleness(scene: Round) -> float:
    """The mean over the honest workers who took part."""
    assert scene.buffered is not None, "a metric that reads the buffers says so: needs='clock'"
    staleness = scene.buffered.staleness
    return sum(staleness) / len(staleness)


def norm(scene: Round) -> Tensor:
    from byzantium.vectors import Matrix  # imports torch
    from byzantium.vectors.points import row_norms

    return row_norms(Matrix(scene.honest)).mean()


def root_distance(scene: Round) -> Tensor:
    return (scene.aggregate - root_of(scene).vector).norm()


def root_error(scene: Round) -> float:
    error = root_of(scene).error
    assert error is not None, "it is estimated where a metric of the table needs the root"
    return error


def root_limit(scene: Round) -> float:
    """What the standard error explains of the distance, and for `RootMatching` its ridge."""
    from byzantium.rules import RootMatching  # imports torch
    from byzantium.vectors import Matrix
    from byzantium.vectors.points import row_norms

    rule, slack = scene.rule, 0.0
    if isinstance(rule, RootMatching):
        root_norm = float(root_of(scene).vector.norm())
        slack = rule.slack(row_norms(Matrix(scene.sent)), root_norm)
    return STANDARD_ERRORS * root_error(scene) + slack


def root_of(scene: Round) -> RootGradient:
    assert scene.root is not None, "a metric that reads the root gradient says so: needs='root'"
    return scene.root


def consensus(at: Evaluation) -> float:
    """How far the honest nodes' models are from their mean: the root of the mean square."""
    from byzantium.learning.evaluation import spread  # imports torch

    return math.sqrt(spread(at.training.honest_models))
