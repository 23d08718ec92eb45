"""Algorithm 2 of the paper, in one process: a simulation of workers, attackers and a server.

The workers are in `worker.py`, the server is in `server.py`, the metrics are in `metrics.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from byzantium.attacks import Attack
from byzantium.core import TooManyRejected
from byzantium.core.options import FORMER_SPELLINGS, renamed
from byzantium.data.dataset import Dataset
from byzantium.data.partition import Partition
from byzantium.guarantees import announce
from byzantium.learning import checks, formulas, metrics, optimizers
from byzantium.learning.history import History
from byzantium.learning.loop import Loop
from byzantium.learning.losses import Loss
from byzantium.learning.method import Task, WorkerMethod
from byzantium.learning.metrics import Metric
from byzantium.learning.participants import Participants
from byzantium.learning.randomness import Randomness
from byzantium.learning.root_data import Root, RootGradient
from byzantium.learning.server import MakeOptimizer, Server
from byzantium.learning.settings import Settings
from byzantium.learning.sizes import check_weights, site_sizes
from byzantium.learning.state import try_optimizer, try_rule_and_attack
from byzantium.rules import Aggregator

logger = logging.getLogger("byzantium")

# An attack that tries steps of the server sees the losses of so many honest workers.
SAMPLED = 5


@renamed(**FORMER_SPELLINGS)
class Simulation(Loop):
    """A federation in one process: Algorithm 2 of the bucketing paper, round by round.

    Iterate over it to train. Each step is one round, which yields what was recorded of it: workers
    compute gradients (with momentum) on their own samples, attackers replace theirs, the server
    aggregates all of them with the rule and takes a step. `simulate` does all rounds at once.

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR
    2022.

    - `settings`: how many workers, attackers and rounds there are, and so on.
    - `data`: what is learned.
    - `model`: what is trained, in place.
    - `rule`: how the server aggregates what workers send.
    - `attack`: what attackers send; by default nobody attacks (`NoAttack`).
    - `partition`: how the samples are dealt to the honest workers; by default `iid`.
    - `optimizer`: a function that makes the server's optimizer of the parameters, such as `lambda
      p: torch.optim.Adam(p)`; by default plain SGD with the learning rate of the settings.
    - `loss`: a function of the outputs and the targets of a batch, instead of the loss that the
      settings name.
    - `randomness`: what makes the source of everything random of the settings; by default
      independent streams that follow from the seed.
    - `worker`: what workers make of their gradients before they send, such as
      `byzantium.related.SAGA()`; by default momentum, as the settings say.

    >>> from byzantium import Bucketing, GeometricMedian, Mimic
    >>> from byzantium.data import by_label, load
    >>> from byzantium.learning import Settings, Simulation, mlp
    >>> data, settings = load("digits"), Settings(n=25, attackers=5, rounds=3, record=())
    >>> rule, attack = Bucketing(s=2) >> GeometricMedian(), Mimic(warmup=1)
    >>> training = Simulation(settings, data, mlp((1, 8, 8)), rule, attack, by_label())
    >>> [sorted(record) for record in training][-1]
    ['early_heterogeneity', 'loss', 'round']
    """

    def __init__(
        self,
        settings: Settings,
        data: Dataset,
        model: nn.Module,
        rule: Aggregator,
        attack: Attack | None = None,
        partition: Partition | None = None,
        optimizer: MakeOptimizer | None = None,
        loss: Loss | None = None,
        randomness: Callable[[Settings], Randomness] = Randomness,
        worker: WorkerMethod | None = None,
    ) -> None:
        checks.check_loop(settings, type(self).__name__, self.has)
        checks.check_rule(settings, rule, attack)
        super().__init__(settings, data, model, attack, partition, loss, randomness, worker)
        self.worker.check_rule(rule)
        parameters = self.gradients.parameters.values()
        self.optimizer = (optimizer or optimizers.plain(settings.learning_rate))(parameters)
        self.server = Server(model, rule, self.optimizer)
        self.rule: Aggregator = self.server.rule
        if "weights" in settings.record and rule.knows_weights == "never":
            logger.warning(
                "%r does not know how much each worker counted, so no weights are recorded", rule
            )
        self.root: Root | None = None
        if self.root_samples is not None and (
            rule.needs_root or self.attack.needs_root or metrics.need_root(settings.record)
        ):
            estimated = metrics.need_root(settings.record)
            self.root = Root(model, self.loss, *self.root_samples, settings.local_steps, estimated)
        self._root_doubted = False
        # What the last step was taken with, and where; only for attacks and methods that need it.
        self.last_aggregate: Tensor | None = None
        self.last_model: Tensor | None = None
        self.weights = None
        if settings.weights == "sizes":
            self.weights = site_sizes(self.batches.parts, settings.attackers)
            check_weights(rule, self.weights, settings.participants)
        n = settings.vectors if self.weights is None else settings.n
        announce(rule, n, min(settings.attackers, n) or None, weights=self.weights)
        self.participants = Participants(settings, self.generators["participants"])

    # -- training --------------------------------------------------------------------------------

    def _round(self, t: int) -> dict[str, Any]:
        settings = self.settings
        self._reshuffle(t)
        sampled = self.participants.draw()
        h = self.participants.honest(sampled)
        rows = self.sent if len(sampled) == settings.n else self.sent[sampled]

        self._last_indices: Tensor | None = None
        losses = self._compute(rows[:h], sampled[:h], t)
        theirs = losses[:0]
        if h < len(sampled):
            if self.attack.needs_own:
                theirs = self._compute(rows[h:], sampled[h:], t)
            elif metrics.need_own_losses(settings.record):
                theirs = self.gradients.losses(
                    *self._next_batches(sampled[h:]), self._seeds(sampled[h:], t)
                )
        record: dict[str, Any] = {"round": t + 1, "loss": float(losses.mean())}
        root = self._root_gradient(t)
        if not losses.isfinite().all() or not (root is None or root.vector.isfinite().all()):
            return self._diverged(record)
        begun = self.participants.enough(self.rule)
        workers = self.participants.hear(sampled)
        if settings.cache and rows is not self.sent:
            self.sent[sampled] = rows
            rows = self.sent if len(workers) == settings.n else self.sent[workers]
            h = self.participants.honest(workers)
        if not self.participants.enough(self.rule):
            return record
        # Vectors that attackers sent before the first step are made now: nobody has seen them.
        sending = [k for k in range(h, len(workers)) if not begun or workers[k] in sampled]
        record = self._serve(rows, h, workers, sending, record, torch.cat([losses, theirs]), root)
        if rows is not self.sent:
            self.sent[workers] = rows
        return record

    def _serve(
        self,
        rows: Tensor,
        h: int,
        workers: list[int],
        sending: list[int],
        record: dict[str, Any],
        losses: Tensor,
        root: RootGradient | None,
    ) -> dict[str, Any]:
        """Let the attackers act, aggregate, and take a step; return the record of the round.

        - `rows`: what the rule is applied to, the h honest vectors first.
        - `workers`: the numbers of the workers who take part.
        - `sending`: the rows that the attack replaces.
        - `losses`: the losses of these workers, as far as they were computed.
        """
        t = record["round"] - 1
        try:
            if sending:
                vectors = self.attack(  # which may try the rule on what honest workers send
                    rows[:h],
                    rows[h:] if self.attack.needs_own else None,
                    q=len(rows) - h,
                    rule=self.rule,
                    epoch=self.batches.epoch,
                    generator=self.generators["attack"],
                    root=None if root is None else root.vector,
                    model=self.server.model_vector() if self.attack.needs_model else None,
                    step_loss=self._step_loss,
                    last_aggregate=self.last_aggregate,
                    weights=self._weights_of(workers),
                    root_loss=lambda step: self._root_loss(step, t),
                )
                for k in sending:
                    rows[k] = vectors[k - h]
            aggregate = self._aggregate(rows, h, workers, record, losses, root)
        except TooManyRejected as error:
            # Without an unusable vector of an honest worker, nothing diverged: there are more
            # attackers than the f that the rule assumes, which is for the user to know.
            if not any(row < h for row in error.reasons):
                raise
            return self._diverged(record)
        if self._needs_last_aggregate:
            self.last_aggregate = aggregate.clone()  # an optimizer may change what it takes
        if self.worker.needs_last_step:
            self.last_model = self.server.model_vector()
        self.server.take(aggregate)
        if not aggregate.isfinite().all():
            return self._diverged(record)
        return record

    def _weights_of(self, workers: list[int]) -> list[float] | None:
        """How much each of these workers counts; None if all count the same."""
        return None if self.weights is None else [self.weights[worker] for worker in workers]

    def _root_gradient(self, t: int) -> RootGradient | None:
        """The root gradient of round t; None where nobody needs it."""
        if self.root is None:
            return None
        rate, seed = self.settings.local_rate, self.randomness.root_dropout(t)
        return self.root.compute(self.momentum, rate=rate, seed=seed)

    def _next_indices(self, workers: list[int]) -> Tensor:
        indices = super()._next_indices(workers)
        if not self._attacking(workers):
            self._last_indices = indices  # for `_step_loss`
        return indices

    def _task(self, workers: list[int], indices: Tensor, t: int) -> Task:
        task = super()._task(workers, indices, t)
        if self.last_model is None:
            return task
        return task._replace(last_model=self.last_model, last_aggregate=self.last_aggregate)

    @property
    def _needs_last_aggregate(self) -> bool:
        return self.attack.needs_last_aggregate or self.worker.needs_last_step

    def _aggregate(
        self,
        sent: Tensor,
        h: int,
        workers: list[int],
        record: dict[str, Any],
        losses: Tensor,
        root: RootGradient | None,
    ) -> Tensor:
        """The aggregate of the rows; the metrics of the round are added to the record."""
        generator, t = self.generators["server"], record["round"] - 1
        measured = self.round_metrics(t, t < self.early_rounds)
        gradient, weights = None if root is None else root.vector, self._weights_of(workers)
        trusted = self.rule.trusted(gradient, lambda step: self._root_loss(step, t))
        if any(metric.needs not in ("", "clock") for metric in measured):
            report = self.rule.explain(sent, generator, root=trusted, weights=weights)
            aggregate: Tensor = report.aggregate
        else:
            report = None
            aggregate = self.rule(sent, generator, root=trusted, weights=weights)
        scene = formulas.Round(
            self.settings.n,
            workers,
            sent,
            sent[:h],
            record["loss"],
            aggregate,
            report,
            losses,
            root,
            self.rule,
            weights,
            self._buffered(workers),
        )
        record |= {metric.key: metric.measure(scene) for metric in measured}
        return aggregate

    def _buffered(self, workers: list[int]) -> formulas.Buffered | None:
        """What metrics see of the buffers in which the vectors of these workers are."""
        return None

    def _root_loss(self, step: Tensor, t: int) -> float:
        """The loss of the root data after a step in round t: a vector that the model loses."""
        assert self.root is not None
        with self.server.tried(step, rate=1.0):
            return self.root.loss(self.randomness.root_dropout(t))

    def _step_loss(self, aggregate: Tensor) -> float:
        """The mean loss of a few honest workers on their batches, after a step of plain SGD."""
        indices = self._last_indices
        if indices is None:
            parts = self.batches.parts  # nobody honest takes part: the first samples of all
            size = min(self.settings.batch, *map(len, parts))
            indices = torch.stack([part[:size] for part in parts])[:, None]
        spread = torch.linspace(0, len(indices) - 1, min(len(indices), SAMPLED)).long()
        x, y = self._samples(indices[spread], attacking=False)  # of some among all workers
        with self.server.tried(aggregate), torch.no_grad():
            return float(self.gradients.losses(x, y, [0] * len(x)).mean())

    # -- evaluation --------------------------------------------------------------------------------

    def round_metrics(self, t: int, early: bool) -> list[Metric]:
        evaluated = self.is_evaluated(t)
        return metrics.round_metrics(self.settings.record, self.rule, evaluated, early, self.has)

    def _evaluation(self, t: int) -> dict[str, Any]:
        since = self.history.evaluations[-1]["round"] if self.history.evaluations else 0
        rounds = self.history.rounds[since:]
        if not self._root_doubted and metrics.root_is_doubtful(self.rule, rounds):
            self._root_doubted = True  # the log says it once
            logger.warning("rounds %d to %d: %s", since + 1, t + 1, metrics.ROOT_DOUBTED)
        return super()._evaluation(t)

    # -- state -------------------------------------------------------------------------------------

    @property
    def keeps_rows(self) -> bool:
        return super().keeps_rows or self.settings.cache

    def _state(self) -> dict[str, Any]:
        return {
            **self.server.state_dict(),
            **({"heard": list(self.participants.heard)} if self.settings.cache else {}),
            **({} if self.root is None else {"root": self.root.state_dict()}),
            **({"last aggregate": self.last_aggregate} if self._needs_last_aggregate else {}),
            **({"last model": self.last_model} if self.worker.needs_last_step else {}),
        }

    def _state_forms(self, history: History) -> dict[str, Any]:
        last = self.sent[0] if history.rounds else None
        return {
            "heard": self.participants.heard if self.settings.cache else None,
            "root": None if self.root is None else self.root.state_dict(),
            "last aggregate": last if self._needs_last_aggregate else None,
            "last model": last if self.worker.needs_last_step else None,
        }

    def _try_state(self, state: dict[str, Any]) -> None:
        try_rule_and_attack(self, state)
        try_optimizer(self.optimizer, state)

    def _load_state(self, state: dict[str, Any]) -> None:
        self.server.load_state_dict(state)
        self.participants.heard = list(state.get("heard") or self.participants.heard)
        if self.root is not None:
            self.root.load_state_dict(state["root"])
        last, model = state.get("last aggregate"), state.get("last model")
        self.last_aggregate = None if last is None else last.clone()
        self.last_model = None if model is None else model.clone()
