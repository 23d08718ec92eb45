"""The worker method whose workers keep models of their own, near that of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from byzantium.core import ByzantiumError, PositiveMeasure
from byzantium.learning import Task, WorkerMethod
from byzantium.learning.gradients import vector_of
from byzantium.related.votes import SignSum

if TYPE_CHECKING:
    from torch import Tensor

    from byzantium.learning.worker import Workers
    from byzantium.rules import Aggregator


@dataclass(frozen=True, repr=False)
class RSA(WorkerMethod):
    r"""Models of the workers' own, which a penalty keeps near that of the server (RSA).

    .. math::

        x_i \leftarrow x_i - \eta \bigl(\nabla f_{iB}(x_i) + \lambda \operatorname{sign}(x_i - x_0)
            \bigr), \qquad
        x_0 \leftarrow x_0 - \eta \lambda \sum_i \operatorname{sign}(x_0 - x_i)

    Worker i sends :math:`x_0 - x_i`, and the server's rule is `SignSum` with the same penalty; a
    regularization term of the server is the `weight_decay` of its optimizer. An attacker
    moves the server by at most :math:`\eta \lambda` in each coordinate and round. All models begin
    as that of the server. Workers step with the learning rate of the settings.

    - `penalty`: the factor :math:`\lambda`, above 0. If it is as large as the largest coordinate of
      any honest worker's full gradient at the common optimum, all models are equal there; and the
      larger it is, the more an attacker moves.

    Li, Xu, Chen, Giannakis, Ling: RSA: Byzantine-Robust Stochastic Aggregation Methods for
    Distributed Learning from Heterogeneous Datasets, AAAI 2019.

    >>> from byzantium.data import load
    >>> from byzantium.learning import Settings, linear, simulate
    >>> settings = Settings(n=10, rounds=60, learning_rate=0.1)
    >>> digits, model = load("digits"), linear((1, 8, 8))
    >>> rule, worker = SignSum(penalty=0.02), RSA(penalty=0.02)
    >>> simulate(settings, digits, model, rule, worker=worker).accuracy > 50
    True
    """

    penalty: PositiveMeasure

    def check_rule(self, rule: Aggregator) -> None:
        needed = SignSum(self.penalty)
        if rule != needed:
            raise ByzantiumError(
                f"workers with {self!r} send what the rule {needed!r} is for, got the rule {rule!r}"
            )

    def size(self, samples: Sequence[int], d: int) -> int:
        return len(samples) * d

    def initial_state(self, team: Workers, parts: Mapping[int, Tensor]) -> dict[str, Tensor]:
        return {"models": team.gradients.rows(len(team.sent))}

    def compute(self, rows: Tensor, task: Task) -> Tensor:
        gradients, workers = task.team.gradients, list(task.workers)
        server = vector_of(gradients.columns)
        models = self.state["models"][workers]
        models[task.new] = server
        rows.copy_(server - models)
        moves = gradients.rows(len(workers))
        losses = gradients(moves, task.x, task.y, seeds=task.seeds, models=models)
        moves += self.penalty * (models - server).sign()
        self.state["models"][workers] = models - task.learning_rate * moves
        return losses
