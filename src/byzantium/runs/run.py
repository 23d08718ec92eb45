"""A run: one training of one model, as data."""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from byzantium.aggregation import Aggregator, parse
from byzantium.aggregation.pipeline import check_sizes
from byzantium.core import files, notation
from byzantium.core.errors import ByzantiumError
from byzantium.core.fields import (
    Count,
    Measure,
    Positive,
    PositiveMeasure,
    Seed,
    fitted_arguments,
)
from byzantium.learning import Dataset, Settings, Simulation, load, long_tail, models, partition
from byzantium.learning.data import NAMES
from byzantium.learning.keeping import kept, resume
from byzantium.learning.partition import Imbalance
from byzantium.learning.settings import RECORDS, Beta
from byzantium.runs.job import (
    METRICS,
    Job,
    Metrics,
    Stop,
    Watch,
    append,
    told,
)
from byzantium.threats import parse_attack

# The accuracy of a run is the mean of its last five evaluations, as in the paper.
LAST = 5


def _cnn(data: Dataset, scale: Positive = 1) -> nn.Module:
    if data.train_x.shape[1:] != (1, 28, 28):
        size = " x ".join(map(str, data.train_x.shape[1:]))
        raise ByzantiumError(
            f"the model cnn is for images of 1 x 28 x 28, those of {data.name} are {size}"
        )
    return models.cnn(scale, data.classes)


def _mlp(data: Dataset, hidden: Positive = 64, layers: Positive = 1) -> nn.Module:
    return models.mlp(tuple(data.train_x.shape[1:]), (hidden,) * layers, data.classes)


def _linear(data: Dataset) -> nn.Module:
    return models.linear(tuple(data.train_x.shape[1:]), data.classes)


MODELS: dict[str, Callable[..., nn.Module]] = {"cnn": _cnn, "mlp": _mlp, "linear": _linear}


def _sgd(
    parameters: Any, rate: float, momentum: Measure = 0.0, weight_decay: Measure = 0.0
) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=weight_decay)


def _adam(parameters: Any, rate: float, weight_decay: Measure = 0.0) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=weight_decay)


OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": _sgd, "adam": _adam}


@dataclass(frozen=True)
class Run(Job):
    """One training. `byzantium run --help` says what the fields mean.

    Rules, attacks, partitions and models are texts in our notation, and kept as it writes them, so
    that equal runs are equal texts. A rule that is written without its f has the f of the run.

    >>> Run(rule="Bucketing(2) >> Krum()", n=25, f=5).rule
    'Bucketing(s=2) >> Krum(f=5)'
    >>> Run(rounds="many")
    Traceback (most recent call last):
    byzantium.KindError: a run needs a whole number for rounds, got rounds='many'
    """

    called = "a run"

    data: str = told("digits", "The data set; `byzantium list data` names them.")
    partition: str = told(
        "by_label()", "Who holds what: iid, by_label, dirichlet(alpha), mixed(fraction)."
    )
    long_tail: Imbalance = told(1.0, "How many times rarer the last class is than the first.")
    model: str = told("mlp", "cnn, cnn(scale=2), mlp, mlp(hidden=64, layers=1), linear.")
    n: Positive = told(25, "Workers.")
    f: Count = told(5, "How many attackers the server reckons with.")
    attackers: Count | None = told(None, "How many there really are, where that is not f.")
    rule: str = told(
        "Bucketing(s=2) >> GeometricMedian()",
        "The rule, behind mixings if any; written without its f, it has that of the run.",
    )
    attack: str = told("NoAttack()", "What the attackers do; `byzantium list attacks`.")
    momentum: Beta = told(0.0, "Of the workers: beta of Algorithm 2.")
    heavy_ball: bool = told(False, "Momentum without the factor 1 - beta, as the published runs.")
    optimiser: str = told("sgd", "Of the server: sgd, sgd(momentum=0.9), adam.")
    learning_rate: PositiveMeasure = told(0.1, "Of the server.")
    rounds: Positive = told(600, "Steps of the server.")
    batch: Positive = told(32, "Samples of a worker in each round.")
    local_steps: Positive = told(1, "Steps of a worker on its own before it sends.")
    local_rate: PositiveMeasure = told(0.01, "The learning rate of these steps.")
    participants: Positive | None = told(None, "Workers drawn for each round, where not all are.")
    reshuffle_every: Positive | None = told(
        None, "Rounds after which workers begin their data again."
    )
    evaluate_every: Positive = told(30, "Rounds between evaluations on the test set.")
    record: tuple[str, ...] = told(
        ("distance", "spread", "weights"), f"What else to keep, of {', '.join(RECORDS)}."
    )
    seed: Seed = told(0, "Of everything random.")

    def check(self) -> None:
        if self.data not in NAMES:
            raise ByzantiumError(
                f"there is no data set {self.data!r}{notation.hint(self.data, NAMES)}"
            )
        settings, rule = self.settings(), self.aggregator()
        for stage in rule.stages:
            if getattr(stage, "f", self.f) != self.f:
                raise ByzantiumError(
                    f"{stage!r} says f={stage.f} and the run says f={self.f}; "  # type: ignore[attr-defined]
                    "written without its f, a rule has that of the run"
                )
        check_sizes(rule.stages, settings.participants or settings.n)
        normal = {
            "rule": repr(rule),
            "attack": repr(parse_attack(_called(self.attack))),
            "partition": repr(partition.read(self.partition)),
            "model": _spelled(self.model, MODELS, given=1)[0],
            "optimiser": _spelled(self.optimiser, OPTIMISERS, given=2)[0],
        }
        for name, text in normal.items():
            object.__setattr__(self, name, text)

    # -- parts -----------------------------------------------------------------------------------

    @property
    def workers(self) -> int:
        return self.n

    @property
    def q(self) -> int:
        """How many attack: unless it is said, as many as declared; none without an attack."""
        if self.attackers is not None:
            return self.attackers
        return 0 if _called(self.attack) == "NoAttack()" else self.f

    def settings(self) -> Settings:
        return Settings(
            n=self.n,
            q=self.q,
            **{
                name: getattr(self, name)
                for name in inspect.signature(Settings).parameters
                if name not in ("n", "q")
            },
        )

    def aggregator(self) -> Aggregator:
        return rule_of(self.rule, self.f)

    def dataset(self) -> Dataset:
        return _dataset(self.data, self.long_tail)

    def simulation(self) -> Simulation:
        """The training, at its beginning."""
        data = self.dataset()
        _, build = _spelled(self.model, MODELS, given=1)
        _, optimiser = _spelled(self.optimiser, OPTIMISERS, given=2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = build(data)
        return Simulation(
            self.settings(),
            data,
            model,
            self.aggregator(),
            parse_attack(self.attack),
            partition.read(self.partition),
            lambda parameters: optimiser(parameters, self.learning_rate),
        )

    # -- work ------------------------------------------------------------------------------------

    def work(self, folder: Path, watch: Watch, stop: Stop) -> dict[str, Any] | None:
        training = self.simulation()
        resume(training, folder)
        history, path = training.history, folder / METRICS
        blocks = _blocks(history.evaluations, history.rounds)
        files.write(path, "".join(json.dumps(block) + "\n" for block in blocks))
        written = len(blocks)
        for record in kept(training, folder, stop=stop):
            if len(history.evaluations) > written:
                append(path, _blocks(history.evaluations, history.rounds, written)[0])
                written += 1
            accuracy = "" if math.isnan(history.accuracy) else f"{history.accuracy:.1f} %"
            watch(record["round"], self.rounds, accuracy)
        if history.status == "running":
            return None
        last = [evaluation["accuracy"] for evaluation in history.evaluations[-LAST:]]
        completed = history.status == "completed"
        accuracy_of_last = sum(last) / len(last) if completed else None
        return {"status": history.status, "accuracy": accuracy_of_last}


def _blocks(evaluations: list[Metrics], rounds: list[Metrics], first: int = 0) -> list[Metrics]:
    """The evaluations from the first on, each with the means over the rounds before it."""
    ends = [0, *(evaluation["round"] for evaluation in evaluations)]
    return [
        {**evaluation, **_means(rounds[ends[k] : ends[k + 1]])}
        for k, evaluation in enumerate(evaluations)
        if k >= first
    ]


def _means(rounds: list[Metrics]) -> Metrics:
    """The loss in training, and what was recorded; of rejections, how often each worker's."""
    means: Metrics = {"train_loss": _mean(record["loss"] for record in rounds)}
    for name in ("distance", "spread", "norm"):
        if name in rounds[0]:
            means[name] = _mean(record[name] for record in rounds)
    if weights := [record["weights"] for record in rounds if "weights" in record]:
        columns = zip(*weights, strict=True)
        means["weights"] = [round(sum(column) / len(weights), 6) for column in columns]
    if "rejected" in rounds[0]:
        rejected = [worker for record in rounds for worker in record["rejected"]]
        means["rejected"] = {
            str(worker): rejected.count(worker) for worker in sorted(set(rejected))
        }
    return means


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return float(f"{sum(values) / len(values):.6g}")


@functools.lru_cache(maxsize=2)
def _dataset(name: str, gamma: float) -> Dataset:
    data = load(name)
    return data if gamma == 1 else long_tail(data, gamma)


def rule_of(text: str, f: int) -> Aggregator:
    """A rule from its notation; written without its f, it has this one."""
    rule = parse(_called(text), f=f)
    if not isinstance(rule, Aggregator):
        raise ByzantiumError(f"{text!r} mixes and does not aggregate; it must end in a rule")
    return rule


def _called(text: str) -> str:
    """`Median` is short for `Median()`."""
    return f"{text.strip()}()" if text.strip().isidentifier() else text


def _spelled(
    text: str, known: Mapping[str, Callable[..., Any]], given: int
) -> tuple[str, Callable[..., Any]]:
    """How `name(argument=value)` is written, and the function with these arguments.

    The first `given` parameters are not of the notation.
    """

    def note(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def noted(**arguments: Any) -> tuple[str, dict[str, Any]]:
            return name, fitted_arguments(make, arguments)

        signature = inspect.signature(make)
        written = list(signature.parameters.values())[given:]
        noted.__signature__ = signature.replace(parameters=written)  # type: ignore[attr-defined]
        return noted

    noting = {name: note(name, make) for name, make in known.items()}
    name, arguments = notation.read(_called(text), noting)
    defaults = inspect.signature(known[name]).parameters
    given_ones = {k: v for k, v in arguments.items() if v != defaults[k].default}
    listed = ", ".join(f"{argument}={value}" for argument, value in given_ones.items())
    return f"{name}({listed})" if listed else name, functools.partial(known[name], **arguments)
