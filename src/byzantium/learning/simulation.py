"""Algorithm 2 of the paper, in one process: a simulation of workers, attackers and a server.

The workers are in `worker.py`, the server is in `server.py`, the metrics are in `metrics.py`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from byzantium.attacks import Attack, NoAttack
from byzantium.core import TooManyRejected
from byzantium.core.options import FORMER_SPELLINGS, present_spellings, renamed
from byzantium.data.dataset import Dataset
from byzantium.data.partition import Partition, iid
from byzantium.guarantees import announce
from byzantium.learning import checkpoint, evaluation, formulas, losses, metrics, optimizers
from byzantium.learning.gradients import one_thread
from byzantium.learning.history import History
from byzantium.learning.losses import Loss
from byzantium.learning.models import check_device, check_fit
from byzantium.learning.participants import Participants, first_samples
from byzantium.learning.randomness import Randomness
from byzantium.learning.root_data import Root, RootGradient, without
from byzantium.learning.server import MakeOptimizer, Server
from byzantium.learning.settings import Settings, check_root
from byzantium.learning.sizes import check_weights, site_sizes
from byzantium.learning.state import check, check_result, fingerprint
from byzantium.learning.worker import Momentum, Workers
from byzantium.rules import Aggregator

logger = logging.getLogger("byzantium")

# An attack that tries steps of the server sees the losses of so many honest workers.
SAMPLED = 5


@renamed(**FORMER_SPELLINGS)
class Simulation:
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
    ) -> None:
        """Prepare the first round."""
        self.settings = settings
        check_device(settings.device)
        check_root(rule, attack if attack is not None else NoAttack(), settings.root)
        self.randomness = randomness(settings)
        held_out = self.randomness.root(data) if settings.root else None
        root_data, data = data, data if held_out is None else without(data, held_out)
        dtype = getattr(torch, settings.dtype)
        self.data = data.to(settings.device, dtype)
        self.model = model.to(settings.device, dtype)
        self.loss = losses.read(settings.loss) if loss is None else loss
        check_fit(model, self.data, self.loss)
        self.attack = copy.deepcopy(attack) if attack is not None else NoAttack()
        self.partition = partition if partition is not None else iid()
        self.momentum = Momentum(settings.momentum, settings.heavy_ball)
        # Row i of `sent` is what worker i sends: its momentum, or what attackers made of theirs.
        self.workers = Workers(model, settings.n, self.loss)
        self.gradients, self.sent = self.workers.gradients, self.workers.sent
        parameters = self.gradients.parameters.values()
        self.optimizer = (
            optimizers.SGD(parameters, lr=settings.learning_rate)
            if optimizer is None
            else optimizer(parameters)
        )
        self.server = Server(model, rule, self.optimizer)
        self.rule = self.server.rule
        if "weights" in settings.record and rule.knows_weights == "never":
            logger.warning(
                "%r does not know how much each worker counted, so no weights are recorded", rule
            )
        self.history = History()

        self.root: Root | None = None
        if held_out is not None and (
            rule.needs_root or self.attack.needs_root or metrics.need_root(settings.record)
        ):
            root_data = root_data.to(settings.device, dtype)
            self.root = Root(
                model,
                self.loss,
                root_data.train_x[held_out],
                root_data.train_y[held_out],
                settings.local_steps,
                estimate_error=metrics.need_root(settings.record),
            )
        self._root_doubted = False
        self.last_aggregate: Tensor | None = None  # only for an attack that needs it
        self.batches = self.randomness.batches(data, self.partition)
        self.own_batches = self.randomness.own_batches(data)
        self.generators = self.randomness.generators
        self.weights = None
        if settings.weights == "sizes":
            self.weights = site_sizes(self.batches.parts, settings.attackers)
            check_weights(rule, self.weights, settings.participants)
        n = settings.vectors if self.weights is None else settings.n
        announce(rule, n, settings.attackers or None, weights=self.weights)
        self.participants = Participants(settings, self.generators["participants"])

    # -- training --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[dict[str, Any]]:
        settings = self.settings
        small = self.gradients.is_small(settings.n * settings.local_steps * settings.batch)
        while self.history.status == "running":
            t = len(self.history.rounds)
            with one_thread(small):
                record = self._round(t)
                self.history.rounds.append(record)
                last = t + 1 == settings.rounds
                if self.history.status == "running":
                    if self.is_evaluated(t):
                        self.history.evaluations.append(self._evaluation(t))
                    if last:
                        self.history.status = "completed"
            yield record

    def is_evaluated(self, t: int) -> bool:
        """Whether the model is evaluated after round t; the first round is 0."""
        return t + 1 == self.settings.rounds or (t + 1) % self.settings.evaluate_every == 0

    @property
    def early_rounds(self) -> int:
        """How many rounds count as the first ones, in which early metrics are measured.

        The honest worker with the fewest samples passes over them once; at least 25.
        """
        return max(metrics.EARLY_ROUNDS, -(-self.batches.epoch // self.settings.local_steps))

    def _round(self, t: int) -> dict[str, Any]:
        settings = self.settings
        if settings.reshuffle_every and t and t % settings.reshuffle_every == 0:
            self.batches.reshuffle()
            self.own_batches.reshuffle()
        sampled = self.participants.draw()
        h = self.participants.honest(sampled)
        rows = self.sent if len(sampled) == settings.n else self.sent[sampled]

        self._last_batches: tuple[Tensor, Tensor] | None = None
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
        try:
            if sending:
                vectors = self.attack(  # which may try the rule on what honest workers send
                    rows[:h],
                    rows[h:] if self.attack.needs_own else None,
                    q=len(workers) - h,
                    rule=self.rule,
                    epoch=self.batches.epoch,
                    generator=self.generators["attack"],
                    root=None if root is None else root.vector,
                    model=self.server.model_vector() if self.attack.needs_model else None,
                    step_loss=self._step_loss,
                    last_aggregate=self.last_aggregate,
                    weights=self._weights_of(workers),
                )
                for k in sending:
                    rows[k] = vectors[k - h]
            if rows is not self.sent:
                self.sent[workers] = rows
            both = torch.cat([losses, theirs])
            aggregate = self._aggregate(rows, h, workers, record, both, root)
        except TooManyRejected as error:
            # Without an unusable vector of an honest worker, nothing diverged: there are more
            # attackers than the f that the rule assumes, which is for the user to know.
            if not any(row < h for row in error.reasons):
                raise
            return self._diverged(record)
        if self.attack.needs_last_aggregate:
            self.last_aggregate = aggregate.clone()  # an optimizer may change what it takes
        self.server.take(aggregate)
        if not aggregate.isfinite().all():
            return self._diverged(record)
        return record

    def _weights_of(self, workers: list[int]) -> list[float] | None:
        """How much each of these workers counts; None if all count the same."""
        return None if self.weights is None else [self.weights[worker] for worker in workers]

    def _compute(self, rows: Tensor, workers: list[int], t: int) -> Tensor:
        """Update the rows of some workers, who are all honest or all attackers."""
        if not workers:
            return torch.zeros(0)
        attacking = not self.participants.honest(workers)
        x, y = self._next_batches(workers)
        if not attacking:
            self._last_batches = x, y  # for `_step_loss`
        return self.workers.compute(
            rows,
            workers,
            x,
            y,
            self.momentum if not attacking or self.attack.own_momentum else Momentum(beta=0.0),
            rate=self.settings.local_rate,
            seeds=self._seeds(workers, t),
        )

    def _root_gradient(self, t: int) -> RootGradient | None:
        """The root gradient of round t; None where nobody needs it."""
        if self.root is None:
            return None
        rate, seed = self.settings.local_rate, self.randomness.root_dropout(t)
        return self.root.compute(self.momentum, rate=rate, seed=seed)

    def _next_batches(self, workers: list[int]) -> tuple[Tensor, Tensor]:
        """The next batches of these workers and their labels, (k, steps, batch, ...)."""
        settings, honest = self.settings, self.settings.n - self.settings.attackers
        attacking = not self.participants.honest(workers)
        source = self.own_batches if attacking else self.batches
        places = [worker - honest for worker in workers] if attacking else workers
        indices = torch.stack([source.draw(places) for _ in range(settings.local_steps)], dim=1)
        x, y = self.data.train_x[indices], self.data.train_y[indices]
        if attacking:
            x, y = self.attack.inputs(x, y), self.attack.labels(y, self.data.classes)
        return x, y

    def _seeds(self, workers: list[int], t: int) -> list[int]:
        """The seeds of these workers' dropout in round t."""
        return [self.randomness.dropout(t, worker) for worker in workers]

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
        generator, evaluated = self.generators["server"], self.is_evaluated(record["round"] - 1)
        early = record["round"] <= self.early_rounds
        measured = metrics.round_metrics(self.settings.record, self.rule, evaluated, early)
        vector, weights = None if root is None else root.vector, self._weights_of(workers)
        if any(metric.needs for metric in measured):
            report = self.rule.explain(sent, generator, root=vector, weights=weights)
            aggregate: Tensor = report.aggregate
        else:
            report = None
            aggregate = self.rule(sent, generator, root=vector, weights=weights)
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
        )
        record |= {metric.key: metric.measure(scene) for metric in measured}
        return aggregate

    def _step_loss(self, aggregate: Tensor) -> float:
        """The mean loss of a few honest workers on their batches, after a step of plain SGD."""
        x, y = self._last_batches or first_samples(
            self.data, self.batches.parts, self.settings.batch
        )
        spread = torch.linspace(0, len(x) - 1, min(len(x), SAMPLED)).long()  # over all workers
        x, y = x[spread], y[spread]
        with self.server.tried(aggregate), torch.no_grad():
            return float(self.gradients.losses(x, y, [0] * len(x)).mean())

    def _diverged(self, record: dict[str, Any]) -> dict[str, Any]:
        """The last round of the history is the one in which it diverged."""
        self.history.status = "diverged"
        return record

    # -- evaluation --------------------------------------------------------------------------------

    def _evaluation(self, t: int) -> dict[str, Any]:
        self._check_root_distance(t)
        scene = formulas.Evaluation(self)
        measured = metrics.evaluation_metrics(
            self.settings.record, self.data.classes, self.attack.has_trigger
        )
        return {"round": t + 1, **{metric.key: metric.measure(scene) for metric in measured}}

    def _check_root_distance(self, t: int) -> None:
        """Log once that the rule's result stays farther from the root gradient than it should."""
        since = self.history.evaluations[-1]["round"] if self.history.evaluations else 0
        rounds = self.history.rounds[since:]
        if self._root_doubted or not metrics.root_is_doubtful(self.rule, rounds):
            return
        self._root_doubted = True
        logger.warning("rounds %d to %d: %s", since + 1, t + 1, metrics.ROOT_DOUBTED)

    def evaluate(self) -> dict[str, float]:
        """The "loss" on the test set and, where there are classes, the "accuracy" (percent)."""
        return evaluation.evaluate(self.model, self.data, self.loss)

    def success_rate(self) -> float:
        """How many test samples with the attack's trigger are called its target, in percent."""
        x, wanted = self.attack.triggered(self.data.test_x, self.data.test_y)
        return evaluation.accuracy(self.model, x, wanted)

    def heterogeneity(self) -> dict[str, float]:
        r"""How much the honest workers' full gradients differ at the current model.

        .. math::

            \zeta^2 = \frac{1}{h} \sum_{j=1}^{h} \|\nabla f_j - \nabla f\|^2,
            \qquad B^2 = \zeta^2 / \|\nabla f\|^2

        Returns both numbers, by the names of their metrics.
        """
        return evaluation.heterogeneity(self.gradients, self.data, self.batches.parts)

    # -- state -------------------------------------------------------------------------------------

    def fingerprint(self) -> str:
        """A text of all settings; a checkpoint fits only a simulation with the same one."""
        return fingerprint(self)

    @property
    def keeps_rows(self) -> bool:
        """Whether a round needs the rows of earlier ones; otherwise each is made anew."""
        return bool(self.settings.momentum) or self.settings.cache

    def result(self) -> dict[str, Any]:
        """The trained model and the history, which `load_result` reads."""
        return {
            "fingerprint": self.fingerprint(),
            "model": self.model.state_dict(),
            "history": self.history.state_dict(),
        }

    def load_result(self, state: dict[str, Any]) -> None:
        """Take over the model and the history of a finished simulation.

        Raises `CheckpointError` where the state is not that of this simulation, finished.
        """
        history = check_result(self, state)
        if history.status == "running":
            raise checkpoint.CheckpointError("it is not the state of a finished simulation")
        self.model.load_state_dict(dict(state["model"]))
        self.history = history

    def state_dict(self) -> dict[str, Any]:
        """The whole state: a simulation that loads it goes on exactly as this one would."""
        return {
            **self.result(),
            **self.server.state_dict(),
            "sent": self.sent if self.keeps_rows else None,
            "seen": list(self.workers.seen),
            "attack": self.attack.state_dict(),
            "generators": {name: g.get_state() for name, g in self.generators.items()},
            "batches": self.batches.state_dict(),
            "own batches": self.own_batches.state_dict(),
            **({"heard": list(self.participants.heard)} if self.settings.cache else {}),
            **({} if self.root is None else {"root": self.root.state_dict()}),
            **({"last aggregate": self.last_aggregate} if self.attack.needs_last_aggregate else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state that `state_dict` gave.

        Raises `CheckpointError`, and changes nothing, where it is not that of this simulation.
        """
        state = present_spellings(state)
        history = check(self, state)
        self.server.load_state_dict(state)
        self.history = history
        if state["sent"] is not None:
            self.sent.copy_(state["sent"])
        self.workers.seen = list(state["seen"])
        self.participants.heard = list(state.get("heard") or self.participants.heard)
        self.attack.load_state_dict(state["attack"])
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name])
        self.batches.load_state_dict(state["batches"])
        self.own_batches.load_state_dict(state["own batches"])
        if self.root is not None:
            self.root.load_state_dict(state["root"])
        last = state.get("last aggregate")
        self.last_aggregate = None if last is None else last.clone()
