"""The base class of all trainings in one process, with every topology and clock.

`Simulation` is the synchronous training with a server.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from byzantium.attacks import Attack, NoAttack
from byzantium.core.options import present_spellings
from byzantium.data.batches import Batches
from byzantium.data.dataset import Dataset
from byzantium.data.partition import Partition, iid
from byzantium.learning import checkpoint, evaluation, formulas, losses, metrics
from byzantium.learning.gradients import one_thread, vector_of
from byzantium.learning.history import History
from byzantium.learning.losses import Loss
from byzantium.learning.method import Task, WorkerMethod, check_settings
from byzantium.learning.metrics import Metric
from byzantium.learning.models import check_device, check_fit
from byzantium.learning.randomness import Randomness
from byzantium.learning.root_data import without
from byzantium.learning.settings import Settings
from byzantium.learning.state import check, check_result, fingerprint
from byzantium.learning.worker import Momentum, Workers
from byzantium.rules import Aggregator

# What attackers send of their own gradients, unless the attack says otherwise.
PLAIN = Momentum(beta=0.0)

# The samples of so many workers are gathered at a time, at least one.
SAMPLE_BYTES = 256 << 20


class Loop(ABC):
    """A training in one process, round by round: iterate over it to train.

    It has the workers, their data and the attack, the history and the checkpoints. A subclass
    defines what happens in a round, `_round`, and the state beside that of the workers: `_state`,
    `_state_forms`, `_try_state` and `_load_state`.

    Its parameters are those of `Simulation`. `rule` aggregates the vectors of workers, and
    `optimizer` takes the steps. Row i of `sent` is what worker i sends: its momentum, or what
    attackers made of theirs. `root_samples` are the samples that the server holds and no worker
    has, with their targets.
    """

    rule: Aggregator
    optimizer: torch.optim.Optimizer
    #: What it has that not all have: simulated time (a "clock"), or "nodes" without a server.
    has: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        settings: Settings,
        data: Dataset,
        model: nn.Module,
        attack: Attack | None = None,
        partition: Partition | None = None,
        loss: Loss | None = None,
        randomness: Callable[[Settings], Randomness] = Randomness,
        worker: WorkerMethod | None = None,
    ) -> None:
        self.settings = settings
        #: How many workers are honest; they are the first.
        self.honest = settings.n - settings.attackers
        check_device(settings.device)
        self.randomness = randomness(settings)
        held_out = self.randomness.root(data) if settings.root else None
        root_data, data = data, data if held_out is None else without(data, held_out)
        dtype = getattr(torch, settings.dtype)
        self.data = data.to(settings.device, dtype)
        self.root_samples: tuple[Tensor, Tensor] | None = None
        if held_out is not None:
            root_data = root_data.to(settings.device, dtype)
            self.root_samples = root_data.train_x[held_out], root_data.train_y[held_out]
        self.model = model.to(settings.device, dtype)
        self.loss = losses.read(settings.loss) if loss is None else loss
        check_fit(model, self.data, self.loss)
        self.attack = copy.deepcopy(attack) if attack is not None else NoAttack()
        self.partition = partition if partition is not None else iid()
        self.momentum = Momentum(settings.momentum, settings.heavy_ball)
        self.worker = copy.deepcopy(worker) if worker is not None else self.momentum
        check_settings(self.worker, settings)
        self.workers = Workers(model, settings.n, self.loss)
        self.gradients, self.sent = self.workers.gradients, self.workers.sent
        self.history = History()
        self.batches = self.randomness.batches(data, self.partition)
        self.own_batches = self.randomness.own_batches(data)
        self.generators = self.randomness.generators
        own = range(settings.attackers if self.attack.needs_own and self.attack.own_momentum else 0)
        parts = dict(enumerate(self.batches.parts))
        parts |= {self.honest + place: self.own_batches.parts[place] for place in own}
        self.worker.prepare(self.workers, parts)

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

    @abstractmethod
    def _round(self, t: int) -> dict[str, Any]:
        """Carry out round t, the first being 0, and return what is recorded of it."""

    def is_evaluated(self, t: int) -> bool:
        """Whether the model is evaluated after round t; the first round is 0."""
        return t + 1 == self.settings.rounds or (t + 1) % self.settings.evaluate_every == 0

    @property
    def early_rounds(self) -> int:
        """How many rounds count as the first ones, in which early metrics are measured.

        The honest worker with the fewest samples passes over them once; at least 25.
        """
        return max(metrics.EARLY_ROUNDS, -(-self.batches.epoch // self.settings.local_steps))

    def _compute(self, rows: Tensor, workers: list[int], t: int) -> Tensor:
        """Update the rows of some workers, who are all honest or all attackers."""
        if not workers:
            return torch.zeros(0)
        method, attacking = self.worker, self._attacking(workers)
        if attacking and not self.attack.own_momentum:
            method = PLAIN
        if self.settings.redundancy > 1 and not attacking:
            first, group = self._groups(workers)  # who computes the same sends the same, to the bit
            own = rows[first]
            losses = self._computed(method, own, [workers[k] for k in first], t)[group]
            rows.copy_(own[group])
        else:
            losses = self._computed(method, rows, workers, t)
        for worker in workers:
            self.workers.seen[worker] = True
        return losses

    def _computed(self, method: WorkerMethod, rows: Tensor, workers: list[int], t: int) -> Tensor:
        """Let a method compute what these workers send, block by block; return the losses."""
        indices = self._next_indices(workers)
        losses = [
            method.compute(rows[part], self._task(workers[part], indices[part], t))
            for part in self._worker_blocks(indices)
        ]
        return torch.cat(losses)

    def _task(self, workers: list[int], indices: Tensor, t: int) -> Task:
        """What these workers compute with in round t.

        - `indices`: the samples of their batches, (k, steps, batch).
        """
        source, places = self._source(workers)
        attacking = self._attacking(workers)

        def samples(which: Tensor) -> tuple[Tensor, Tensor]:
            return self._samples(which, attacking)

        return Task(
            self.workers,
            workers,
            *samples(indices),
            indices,
            [source.parts[place] for place in places],
            samples,
            self.settings.local_rate,
            self.settings.learning_rate,
            self._seeds(workers, t),
            self.randomness.common(t),
            models=self._models_of(workers),
        )

    def _worker_blocks(self, indices: Tensor) -> Iterator[slice]:
        """Workers in blocks, such that their samples take little memory at a time."""
        x = self.data.train_x
        size = indices[0].numel() * x[0].numel() * x.itemsize
        step = max(1, SAMPLE_BYTES // size)
        for start in range(0, len(indices), step):
            yield slice(start, start + step)

    def _models_of(self, workers: list[int]) -> Tensor | None:
        """The models at which workers compute gradients, (k, d); None if all have the same."""
        return None

    def _groups(self, workers: list[int]) -> tuple[list[int], list[int]]:
        """The first of these workers in each group, and for each worker the place of its group."""
        count, first = self.randomness.groups, dict[int, int]()
        for k, worker in enumerate(workers):
            first.setdefault(worker % count, k)
        places = {group: place for place, group in enumerate(first)}
        return list(first.values()), [places[worker % count] for worker in workers]

    def _attacking(self, workers: list[int]) -> bool:
        """Whether these workers, who are all honest or all attackers, are attackers."""
        return workers[0] >= self.honest

    def _source(self, workers: list[int]) -> tuple[Batches, list[int]]:
        """Where these workers draw their batches from, and their places there."""
        if self._attacking(workers):
            return self.own_batches, [worker - self.honest for worker in workers]
        return self.batches, workers

    def _next_batches(self, workers: list[int]) -> tuple[Tensor, Tensor]:
        """The next batches of these workers and their labels, (k, steps, batch, ...)."""
        return self._samples(self._next_indices(workers), self._attacking(workers))

    def _next_indices(self, workers: list[int]) -> Tensor:
        """The samples of the next batches of these workers, (k, steps, batch)."""
        source, places = self._source(workers)
        steps = range(self.settings.local_steps)
        return torch.stack([source.draw(places) for _ in steps], dim=1)

    def _samples(self, indices: Tensor, attacking: bool) -> tuple[Tensor, Tensor]:
        """Samples and their labels, as attackers see them if `attacking`."""
        x, y = self.data.train_x[indices], self.data.train_y[indices]
        if attacking:
            x, y = self.attack.inputs(x, y), self.attack.labels(y, self.data.classes)
        return x, y

    def _reshuffle(self, t: int) -> None:
        """Let all workers start a new pass over their data, if it is time for it."""
        if self.settings.reshuffle_every and t and t % self.settings.reshuffle_every == 0:
            self.batches.reshuffle()
            self.own_batches.reshuffle()

    def _seeds(self, workers: list[int], t: int) -> list[int]:
        """The seeds of these workers' dropout in round t."""
        return [self.randomness.dropout(t, worker) for worker in workers]

    def _diverged(self, record: dict[str, Any]) -> dict[str, Any]:
        """The last round of the history is the one in which it diverged."""
        self.history.status = "diverged"
        return record

    # -- evaluation --------------------------------------------------------------------------------

    @abstractmethod
    def round_metrics(self, t: int, early: bool) -> list[Metric]:
        """The metrics that are measured in round t.

        - `early`: whether those of the first rounds are among them.
        """

    def evaluation_metrics(self) -> list[Metric]:
        """The metrics that are measured at evaluations."""
        record, trigger = self.settings.record, self.attack.has_trigger
        return metrics.evaluation_metrics(record, self.data.classes, trigger, self.has)

    def _evaluation(self, t: int) -> dict[str, Any]:
        """The record of an evaluation after round t."""
        scene = formulas.Evaluation(self)
        values = {metric.key: metric.measure(scene) for metric in self.evaluation_metrics()}
        return {"round": t + 1, **values}

    def evaluate(self) -> dict[str, float]:
        """The "loss" on the test set and, where there are classes, the "accuracy" (percent)."""
        return evaluation.average(self.evaluate_nodes())

    def evaluate_nodes(self) -> list[dict[str, float]]:
        """The same for the model of each honest node; with a server there is one model."""
        return [evaluation.evaluate(self.model, self.data, self.loss)]

    @property
    def honest_models(self) -> Tensor:
        """The models of the honest nodes, (h, d); with a server there is one, (1, d)."""
        return vector_of(self.gradients.columns)[None]

    def success_rate(self) -> float:
        """How many test samples with the attack's trigger are called its target, in percent."""
        x, targets = self.attack.triggered(self.data.test_x, self.data.test_y)
        return evaluation.accuracy(self.model, x, targets)

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
        return self.worker.keeps_rows

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
            "sent": self.sent if self.keeps_rows else None,
            **({"worker": dict(self.worker.state)} if self.worker.state else {}),
            "seen": list(self.workers.seen),
            "attack": self.attack.state_dict(),
            "generators": {name: g.get_state() for name, g in self.generators.items()},
            "batches": self.batches.state_dict(),
            "own batches": self.own_batches.state_dict(),
            **self._state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state that `state_dict` gave.

        Raises `CheckpointError`, and changes nothing, where it is not that of this simulation.
        """
        state = present_spellings(state)
        self.history = check(self, state)
        self._load_state(state)
        if state["sent"] is not None:
            self.sent.copy_(state["sent"])
        for name, tensor in self.worker.state.items():
            tensor.copy_(state["worker"][name])
        self.workers.seen = list(state["seen"])
        self.attack.load_state_dict(state["attack"])
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name])
        self.batches.load_state_dict(state["batches"])
        self.own_batches.load_state_dict(state["own batches"])

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """The state beside that of the workers, the attack and the data, by name."""

    @abstractmethod
    def _state_forms(self, history: History) -> dict[str, Any]:
        """Templates of parts of a state with this history, as `state.check_form` compares them."""

    @abstractmethod
    def _try_state(self, state: dict[str, Any]) -> None:
        """Try copies of what alone knows its own state; raises an error where it cannot go on."""

    @abstractmethod
    def _load_state(self, state: dict[str, Any]) -> None:
        """Take over the model and what `_state` gave."""
