"""Algorithm 2 of the paper: workers with momentum, a robust rule, a step of the server."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from byzantium.aggregation import Aggregator
from byzantium.aggregation.geometry import GivenPoints, moments, row_norms
from byzantium.aggregation.sources import Matrix
from byzantium.core.claims import held
from byzantium.core.errors import TooManyRejected
from byzantium.learning import checkpoint
from byzantium.learning.batches import Batches
from byzantium.learning.data import Dataset
from byzantium.learning.gradients import WorkerGradients, shaped
from byzantium.learning.keeping import finished, kept, resume
from byzantium.learning.partition import Partition, iid
from byzantium.learning.settings import History, Settings
from byzantium.learning.state import check, check_result
from byzantium.threats import Attack, NoAttack

STREAMS = ("partition", "batches", "own batches", "server", "attack", "participants", "dropout")
# Samples looked at together where all of them are.
CHUNK = 1024

MakeOptimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Simulation:
    """Iterate over it to train: each step is one round, and yields what was recorded of it.

    >>> from byzantium import Bucketing, GeometricMedian, Mimic
    >>> from byzantium.learning import Settings, Simulation, by_label, load, mlp
    >>> data, settings = load("digits"), Settings(n=25, q=5, rounds=3)
    >>> rule, attack = Bucketing(s=2) >> GeometricMedian(), Mimic(warmup=1)
    >>> training = Simulation(settings, data, mlp((1, 8, 8)), rule, attack, by_label())
    >>> [sorted(record) for record in training]
    [['loss', 'round'], ['loss', 'round'], ['loss', 'round']]
    """

    def __init__(
        self,
        settings: Settings,
        data: Dataset,
        model: nn.Module,
        rule: Aggregator,
        attack: Attack | None = None,
        partition: Partition | None = None,
        optimiser: MakeOptimiser | None = None,
    ) -> None:
        self.settings = settings
        self.data = data
        self.model = model
        self.rule = copy.deepcopy(rule)
        self.attack = copy.deepcopy(attack) if attack is not None else NoAttack()
        self.partition = partition if partition is not None else iid()
        self.gradients = WorkerGradients(model)
        parameters = self.gradients.parameters.values()
        self.optimiser = (
            torch.optim.SGD(parameters, lr=settings.learning_rate)
            if optimiser is None
            else optimiser(parameters)
        )
        self.history = History()

        # Independent streams of random numbers: what one part draws never shifts another.
        seeds = np.random.SeedSequence(settings.seed).generate_state(len(STREAMS), np.uint64)
        self.seeds = {name: int(seed) >> 1 for name, seed in zip(STREAMS, seeds, strict=True)}
        generators = {name: torch.Generator().manual_seed(s) for name, s in self.seeds.items()}
        honest = settings.n - settings.q
        parts = self.partition(data.train_y, honest, generators["partition"])
        self.batches = Batches(parts, settings.batch, generators["batches"])
        # Attackers draw from the whole set, dealt out among as many as there are honest workers.
        everybody = iid()(data.train_y, honest, generators["partition"])
        own = [everybody[j % honest] for j in range(settings.q)]
        self.own_batches = Batches(own, settings.batch, generators["own batches"])
        self.generators = {name: generators[name] for name in ("server", "attack", "participants")}

        # Row i is what worker i sends: its momentum, or what the attackers made of theirs.
        self.sent = torch.zeros(settings.n, self.gradients.d)
        self.seen = [False] * settings.n

    # -- training --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[dict[str, Any]]:
        settings = self.settings
        while self.history.status == "running":
            t = len(self.history.rounds)
            record = self._round(t)
            self.history.rounds.append(record)
            last = t + 1 == settings.rounds
            if self.history.status == "running":
                if self.evaluated(t):
                    self.history.evaluations.append({"round": t + 1, **self._look()})
                if last:
                    self.history.status = "completed"
            yield record

    def evaluated(self, t: int) -> bool:
        """Whether an evaluation follows on round t."""
        return t + 1 == self.settings.rounds or (t + 1) % self.settings.evaluate_every == 0

    def _round(self, t: int) -> dict[str, Any]:
        settings = self.settings
        if settings.reshuffle_every and t and t % settings.reshuffle_every == 0:
            self.batches.reshuffle()
            self.own_batches.reshuffle()
        workers = self._participants()
        h = sum(worker < settings.n - settings.q for worker in workers)
        whole = len(workers) == settings.n
        sent = self.sent if whole else self.sent[workers]

        losses = self._compute(sent[:h], workers[:h], t)
        own = None
        if self.attack.needs_own and h < len(workers):
            self._compute(sent[h:], workers[h:], t)
            own = sent[h:]
        record: dict[str, Any] = {"round": t + 1, "loss": float(losses.mean())}
        if not losses.isfinite().all():
            return self._diverged(record)
        if h < len(workers):
            sent[h:] = self.attack(
                sent[:h],
                own,
                q=len(workers) - h,
                rule=self.rule,
                epoch=self.batches.epoch,
                generator=self.generators["attack"],
            )
        if not whole:
            self.sent[workers] = sent
        try:
            aggregate = self._aggregate(sent, h, workers, record)
        except TooManyRejected as error:
            if not any(row < h for row in error.reasons):
                raise
            return self._diverged(record)
        self._step(aggregate)
        if not aggregate.isfinite().all():
            return self._diverged(record)
        return record

    def _participants(self) -> list[int]:
        settings = self.settings
        if settings.participants is None:
            return list(range(settings.n))
        while True:
            drawn = torch.randperm(settings.n, generator=self.generators["participants"])
            workers = sorted(drawn[: settings.participants].tolist())
            if workers[0] < settings.n - settings.q:
                return workers

    def _compute(self, rows: Tensor, workers: list[int], t: int) -> Tensor:
        """Bring the rows of some workers, all honest or all attackers, up to date."""
        settings, honest = self.settings, self.settings.n - self.settings.q
        if not workers:
            return torch.zeros(1)
        bad = workers[0] >= honest
        source = self.own_batches if bad else self.batches
        places = [worker - honest for worker in workers] if bad else workers
        indices = torch.stack([source.draw(places) for _ in range(settings.local_steps)], dim=1)
        y = self.data.train_y[indices]
        if bad:
            y = self.attack.labels(y, self.data.classes)
        beta = settings.momentum if not bad or self.attack.own_momentum else 0.0
        share = 1.0 if settings.heavy_ball or not beta else 1 - beta
        new = [k for k, worker in enumerate(workers) if not self.seen[worker]]
        rows[new] = 0
        losses = self.gradients(
            rows,
            self.data.train_x[indices],
            y,
            rate=settings.local_rate,
            keep=beta,
            share=share,
            seeds=[self.seeds["dropout"] + t * settings.n + worker for worker in workers],
        )
        if share != 1:
            for k in new:
                rows[k] /= share  # in its first round a worker sends the gradient itself
        for worker in workers:
            self.seen[worker] = True
        return losses

    def _aggregate(
        self, sent: Tensor, h: int, workers: list[int], record: dict[str, Any]
    ) -> Tensor:
        wanted, generator = set(self.settings.record), self.generators["server"]
        if not wanted:
            return self.rule(sent, generator)
        if not self.rule.weighs and not self.evaluated(record["round"] - 1):
            wanted.discard("weights")
        if wanted & {"weights", "rejected"}:
            report = self.rule.explain(sent, generator)
            aggregate = report.aggregate
            if "weights" in wanted:
                weights = torch.zeros(self.settings.n, dtype=torch.float64)
                weights[workers] = report.weights
                record["weights"] = weights.tolist()
            if "rejected" in wanted:
                record["rejected"] = [workers[k] for k in report.rejected]
        else:
            aggregate = self.rule(sent, generator)
        honest = sent[:h]
        if "distance" in wanted:
            record["distance"] = float((aggregate - moments(honest)[0]).norm())
        if "spread" in wanted:
            record["spread"] = spread(honest)
        if "norm" in wanted:
            record["norm"] = float(row_norms(Matrix(honest)).mean())
        return aggregate

    def _step(self, aggregate: Tensor) -> None:
        for parameter, columns in self.gradients.columns.items():
            parameter.grad = shaped(aggregate[columns], parameter)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def _diverged(self, record: dict[str, Any]) -> dict[str, Any]:
        self.history.status = f"diverged in round {record['round']}"
        return record

    # -- looking -----------------------------------------------------------------------------------

    def _look(self) -> dict[str, float]:
        wanted = "heterogeneity" in self.settings.record
        return {**self.evaluate(), **(self.heterogeneity() if wanted else {})}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy (percent) on the test set."""
        mode = self.model.training
        self.model.eval()
        loss, correct = 0.0, 0
        for start in range(0, len(self.data.test_y), CHUNK):
            x = self.data.test_x[start : start + CHUNK]
            y = self.data.test_y[start : start + CHUNK]
            logits = self.model(x)
            loss += float(nn.functional.cross_entropy(logits, y, reduction="sum"))
            correct += int((logits.argmax(dim=1) == y).sum())
        self.model.train(mode)
        count = len(self.data.test_y)
        return {"loss": loss / count, "accuracy": 100 * correct / count}

    def heterogeneity(self) -> dict[str, float]:
        """The paper's zeta^2 and B^2 at the current model, from full local gradients.

        zeta^2 = mean_j ||grad f_j - grad f||^2 and B^2 = zeta^2 / ||grad f||^2 over the honest.
        """
        mode = self.model.training
        self.model.eval()
        rows = torch.zeros(len(self.batches.parts), self.gradients.d)
        for row, part in zip(rows, self.batches.parts, strict=True):
            for start in range(0, len(part), CHUNK):
                piece = part[start : start + CHUNK]
                x, y = self.data.train_x[piece][None, None], self.data.train_y[piece][None, None]
                self.gradients(row[None], x, y, keep=1.0, share=len(piece) / len(part))
        self.model.train(mode)
        zeta2 = spread(rows)
        return {"zeta2": zeta2, "b2": zeta2 / float(rows.mean(dim=0).double().square().sum())}

    # -- state -------------------------------------------------------------------------------------

    def fingerprint(self) -> str:
        """What must agree for a checkpoint to be of this simulation."""
        shapes = [tuple(p.shape) for p in self.gradients.parameters.values()]
        return (
            f"{self.settings!r} {self.rule!r} {self.attack!r} {self.partition!r} "
            f"{self.data.name} {len(self.data.train_y)} {type(self.optimiser).__name__} {shapes}"
        )

    def result(self) -> dict[str, Any]:
        """The model and the history."""
        return {
            "fingerprint": self.fingerprint(),
            "model": self.model.state_dict(),
            "history": {
                "rounds": self.history.rounds,
                "evaluations": self.history.evaluations,
                "status": self.history.status,
            },
        }

    def load_result(self, state: dict[str, Any]) -> None:
        """Be one that is finished; a `CheckpointError` where that is not what the state is."""
        check_result(self, state)
        if state["history"]["status"] == "running":
            raise checkpoint.CheckpointError("it is not the state of a finished simulation")
        self._load_result(state)

    def _load_result(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(dict(state["model"]))
        self.history = History(**state["history"])

    def state_dict(self) -> dict[str, Any]:
        """Everything, so that a loaded simulation goes on bit by bit as this one would."""
        return {
            **self.result(),
            "optimiser": self.optimiser.state_dict(),
            # Without momentum every row is made anew in each round.
            "sent": self.sent if self.settings.momentum else None,
            "seen": list(self.seen),
            "rule": self.rule.state_dict(),
            "attack": self.attack.state_dict(),
            "generators": {name: g.get_state() for name, g in self.generators.items()},
            "batches": self.batches.state_dict(),
            "own batches": self.own_batches.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; a `CheckpointError`, and nothing is changed, where one cannot."""
        check(self, state)
        self._load_result(state)
        self.optimiser.load_state_dict(state["optimiser"])
        if state["sent"] is not None:
            self.sent.copy_(state["sent"])
        self.seen = list(state["seen"])
        self.rule.load_state_dict(state["rule"])
        self.attack.load_state_dict(state["attack"])
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name])
        self.batches.load_state_dict(state["batches"])
        self.own_batches.load_state_dict(state["own batches"])


def spread(rows: Tensor) -> float:
    """The mean squared distance of rows to their mean."""
    n = len(rows)
    geometry = GivenPoints(Matrix(rows)).geometry()
    return float((geometry.distances_to(geometry.uniform_over(np.arange(n))) ** 2).mean())


def simulate(
    settings: Settings,
    data: Dataset,
    model: nn.Module,
    rule: Aggregator,
    attack: Attack | None = None,
    partition: Partition | None = None,
    optimiser: MakeOptimiser | None = None,
    *,
    folder: Path | None = None,
    seconds: float = 60,
    progress: bool | None = None,
) -> History:
    """Train `model` in place and return the history.

    With a folder, the run saves itself there at evaluations and every so many seconds, and goes on
    from where it was killed. When it is done, `model.pt` stays, with the history; started again, it
    is read from there. Two never work in one folder. A progress bar is shown on a terminal.
    """
    training = Simulation(settings, data, model, rule, attack, partition, optimiser)
    shown = sys.stderr.isatty() if progress is None else progress
    if folder is None:
        _finish(training, iter(training), shown)
    elif not finished(training, folder):
        with held(folder):
            resume(training, folder)
            _finish(training, kept(training, folder, seconds), shown)
    return training.history


def _finish(training: Simulation, rounds: Iterator[dict[str, Any]], progress: bool) -> None:
    for _ in _watched(training, rounds, progress):
        pass


def _watched(
    training: Simulation, rounds: Iterator[dict[str, Any]], progress: bool
) -> Iterator[dict[str, Any]]:
    """The rounds, with a progress bar that shows accuracy and the time left."""
    if not progress:
        yield from rounds
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=training.settings.rounds)
        for record in rounds:
            accuracy = training.history.accuracy
            shown = "" if math.isnan(accuracy) else f", accuracy {accuracy:.1f} %"
            text = f"loss {record['loss']:.3f}{shown}"
            bar.update(task, completed=record["round"], description=text)
            yield record
