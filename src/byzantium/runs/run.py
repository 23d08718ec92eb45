"""A run: one training of one model, as data."""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from byzantium.aggregation import Aggregator, parse_rule
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
from byzantium.learning import (
    Dataset,
    Settings,
    Simulation,
    load,
    long_tail,
    metrics,
    models,
    partition,
)
from byzantium.learning.data import NAMES
from byzantium.learning.partition import Imbalance
from byzantium.learning.saving import checkpointed, resume
from byzantium.learning.worker import Beta
from byzantium.runs.job import (
    METRICS,
    Job,
    Metrics,
    Stop,
    Watch,
    append,
    option,
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

    data: str = option("digits", "The data set; `byzantium list data` names them.")
    partition: str = option(
        "by_label()", "Who holds what: iid, by_label, dirichlet(alpha), mixed(fraction)."
    )
    long_tail: Imbalance = option(1.0, "How many times rarer the last class is than the first.")
    model: str = option("mlp", "cnn, cnn(scale=2), mlp, mlp(hidden=64, layers=1), linear.")
    n: Positive = option(25, "Workers.")
    f: Count = option(5, "How many attackers the server reckons with.")
    attackers: Count | None = option(None, "How many there really are, where that is not f.")
    rule: str = option(
        "Bucketing(s=2) >> GeometricMedian()",
        "The rule, behind mixings if any; written without its f, it has that of the run.",
    )
    attack: str = option("NoAttack()", "What the attackers do; `byzantium list attacks`.")
    momentum: Beta = option(0.0, "Of the workers: beta of Algorithm 2.")
    heavy_ball: bool = option(False, "Momentum without the factor 1 - beta, as the published runs.")
    optimiser: str = option("sgd", "Of the server: sgd, sgd(momentum=0.9), adam.")
    learning_rate: PositiveMeasure = option(0.1, "Of the server.")
    rounds: Positive = option(600, "Steps of the server.")
    batch: Positive = option(32, "Samples of a worker in each round.")
    local_steps: Positive = option(1, "Steps of a worker on its own before it sends.")
    local_rate: PositiveMeasure = option(0.01, "The learning rate of these steps.")
    participants: Positive | None = option(None, "Workers drawn for each round, where not all are.")
    reshuffle_every: Positive | None = option(
        None, "Rounds after which workers begin their data again."
    )
    evaluate_every: Positive = option(30, "Rounds between evaluations on the test set.")
    record: tuple[str, ...] = option(
        ("distance", "spread", "weights"), f"What else to keep, of {', '.join(metrics.words())}."
    )
    seed: Seed = option(0, "Of everything random.")

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
        """The data set; of the last two, those that other runs of this process need are at hand."""
        return _dataset(self.data, self.long_tail, os.environ.get("BYZANTIUM_DATA"))

    def built(self, data: Dataset) -> nn.Module:
        """The model for a data set, at its beginning."""
        _, build = _spelled(self.model, MODELS, given=1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model: nn.Module = build(data)
        return model

    def check_parts(self, data: Dataset) -> None:
        """Raise a sentence unless the model and the partition fit a data set."""
        try:
            with torch.device("meta"):  # shapes without numbers, which take no memory
                self.built(data)
        except (RuntimeError, MemoryError) as error:
            raise ByzantiumError(f"the model {self.model} cannot be built: {error}") from error
        generator = torch.Generator().manual_seed(0)
        partition.read(self.partition)(data.train_y, self.n - self.q, generator)

    def simulation(self) -> Simulation:
        """The training, at its beginning."""
        data = self.dataset()
        _, optimiser = _spelled(self.optimiser, OPTIMISERS, given=2)
        return Simulation(
            self.settings(),
            data,
            self.built(data),
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
        for record in checkpointed(training, folder, stop=stop):
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
        summary = {"status": history.outcome, "accuracy": accuracy_of_last}
        digests = dict(training.data.digests)
        return {**summary, "data": digests} if digests else summary


def _blocks(evaluations: list[Metrics], rounds: list[Metrics], first: int = 0) -> list[Metrics]:
    """The evaluations from the first on, each with the rounds before it summed up."""
    ends = [0, *(evaluation["round"] for evaluation in evaluations)]
    return [
        metrics.line(evaluation, rounds[ends[k] : ends[k + 1]])
        for k, evaluation in enumerate(evaluations)
        if k >= first
    ]


def check_ready(jobs: Iterable[Job]) -> None:
    """Raise a sentence unless the jobs can begin: data are found, and models and partitions fit.

    It takes seconds, and is asked before hours of work. Runs that are alike in this are looked at
    once. The data are not held on to: other processes may do the work.
    """
    alike: dict[tuple[str, float], dict[tuple[str, str, int], Run]] = {}
    for run in jobs:
        if isinstance(run, Run):
            same = alike.setdefault((run.data, run.long_tail), {})
            same[run.model, run.partition, run.n - run.q] = run
    for (name, gamma), runs in alike.items():
        data = _selected(name, gamma)
        for run in runs.values():
            run.check_parts(data)


def _selected(name: str, gamma: float) -> Dataset:
    data = load(name)
    return data if gamma == 1 else long_tail(data, gamma)


@functools.lru_cache(maxsize=2)
def _dataset(name: str, gamma: float, folder: str | None) -> Dataset:
    """Read once for all runs of a process; `folder` is where `load` looks for the files."""
    return _selected(name, gamma)


def rule_of(text: str, f: int) -> Aggregator:
    """A rule from its notation; written without its f, it has this one."""
    return parse_rule(_called(text), f=f)


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
