"""A run: one training of one model, as data."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from byzantium import attacks, guarantees, learning
from byzantium.core import (
    Beta,
    ByzantiumError,
    Count,
    Imbalance,
    files,
    notation,
    option,
    type_name,
    with_options,
)
from byzantium.core.options import former_attribute, options_of, with_default
from byzantium.learning import checks, metrics
from byzantium.learning.settings import TrainingOptions
from byzantium.runs import plugins, values
from byzantium.runs.job import METRICS, Job, Stop, Watch, rule_facets
from byzantium.runs.records import Metrics
from byzantium.runs.values import Checks

if TYPE_CHECKING:
    from torch import nn

    from byzantium.data import Dataset
    from byzantium.learning import Loop, Settings
    from byzantium.rules import Aggregator, Mixing

#: The accuracy of a run is the mean of so many last evaluations, as in the paper.
LAST = 5
#: The options that make no difference to a training on root data alone.
OF_WORKERS = (
    *("rule", "n", "f", "attack", "attackers", "partition", "participants", "cache", "weights"),
    *("worker", "batch", "reshuffle_every", "record", "plugin", "clock", "redundancy"),
)
#: What the option --plugin does.
PLUGIN_HELP = (
    "A Python file of your own: its code is run, and its rules, attacks, worker methods, "
    "partitions, models, data sets, losses, clocks and metrics can be named wherever ours can. "
    "May be given several times."
)


@with_options
@dataclass(frozen=True)
class Run(Job, TrainingOptions):
    """One training of one model, as data; its fields are the options of `byzantium run`.

    Rules, attacks, partitions, models and so on are texts such as "Krum(f=5)". They are spelled in
    one way, so that equal runs have equal fields.

    >>> Run(rule="Bucketing(2) >> Krum()", n=25, f=5).rule
    'Bucketing(s=2) >> Krum(f=5)'
    >>> Run(rounds="many")
    Traceback (most recent call last):
    byzantium.ArgumentTypeError: a run needs a whole number for rounds, got rounds='many'
    """

    display_name = "a run"
    summary_checks: ClassVar[Checks] = {
        **Job.summary_checks,
        "accuracy": values.optional(values.size),
        "loss": values.optional(values.number),
        "data": values.digests,
    }

    data: str = option(
        "digits",
        "The data set: a name from `byzantium list data`, or a file of your own (.npz or "
        ".safetensors).",
    )
    partition: str = option(
        "by_label()",
        "How the training samples are dealt to the honest workers: iid, by_label (sorted by label, "
        "then cut), by_user, dirichlet(alpha) or mixed(fraction).",
    )
    long_tail: Imbalance = option(
        1.0, "Keep this many times fewer samples of the last class than of the first; 1 keeps all."
    )
    model: str = option(
        "mlp",
        "The model to train: mlp, mlp(hidden=64, layers=1), linear, cnn, cnn(scale=2), convnet or "
        "resnet20.",
    )
    f: Count = option(
        5,
        "How many Byzantine vectors the rule assumes: too few is fatal, one too many costs little.",
    )
    rule: str = option(
        "Bucketing(s=2) >> GeometricMedian()",
        "The aggregation rule from `byzantium list rules`, with mixings before it if wanted; one "
        "that is written without f takes the f of the run.",
    )
    attack: str = option(
        "InnerProduct()",
        "What the attackers send: an attack from `byzantium list attacks`; NoAttack() for none.",
    )
    momentum: Beta = with_default(TrainingOptions, "momentum", 0.9)
    optimizer: str = option(
        "sgd",
        "The optimizer of the server: sgd, sgd(momentum=0.9), sgd(weight_decay=1e-4) or adam.",
    )
    worker: str = option(
        "Momentum()",
        "What workers make of their gradients before they send: a method from `byzantium list "
        "workers`; Momentum() has the momentum of the run, and others have none.",
        later=True,
    )
    plugin: tuple[str, ...] = option((), PLUGIN_HELP, later=True)
    randomness: Literal["fresh", "released"] = option(
        "fresh",
        "Where the random numbers come from: independent streams (fresh), or those of the runs "
        "that the authors of the bucketing paper released (released).",
        later=True,
    )

    def check(self) -> None:
        from byzantium.data import partition, user_files
        from byzantium.rules.admission import check_sizes
        from byzantium.rules.shares import check_takes_weights
        from byzantium.rules.stage import stages_of_workers
        from byzantium.runs import builders, released

        if plugins.check_recorded(self, (*plugins.tables(), "optimizer")):
            checks.check_workers(self)
            return
        # First: the number of attackers depends on it.
        attack = repr(attacks.parse_attack(notation.with_parentheses(self.attack)))
        object.__setattr__(self, "attack", attack)
        checks.check_options(self)
        rule = self.stage()
        checks.check_rule(self, rule, attacks.parse_attack(attack))
        if self.weights == "sizes":
            check_takes_weights(rule.stages)
        for stage in stages_of_workers(rule.stages):
            if stage.bad not in (None, self.f):
                raise ByzantiumError(
                    f"{stage!r} says f={stage.bad} and the run says f={self.f}; "
                    "a rule that is written without f takes that of the run"
                )
        check_sizes(rule.stages, self.vectors)
        self._check_worker()
        normal = {
            "rule": repr(rule),
            "partition": repr(partition.read(self.partition)),
            "model": builders.model(self.model)[0],
            "optimizer": builders.optimizer(self.optimizer)[0],
            "data": builders.spelled_data(self.data),
        }
        for name, text in normal.items():
            object.__setattr__(self, name, text)
        if self.randomness == "released":
            released.check(self)
        plugins.record_plugins(self, plugins.tables())
        object.__setattr__(self, "_data", user_files.path_of(self.data))

    def _check_worker(self) -> None:
        """Spell its worker method in one way; raise an error where it does not fit the rest."""
        from byzantium.learning.method import check_settings
        from byzantium.runs import builders

        method = builders.worker(self.worker, self.momentum, self.heavy_ball)
        named = "Momentum()"
        if not isinstance(method, learning.Momentum):
            named = repr(method)
            for name, value in (("momentum", 0.0), ("heavy_ball", False)):
                object.__setattr__(self, name, value)
        check_settings(method, self)
        if self.topology is None:  # otherwise there is no server, and workers have momentum
            method.check_rule(self.aggregator())
        object.__setattr__(self, "worker", named)

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> Self:
        """The run of a configuration of somebody else: no file that it names is opened."""
        from byzantium.data import user_files
        from byzantium.learning import topology

        data = values.get("data", "")
        if isinstance(data, str) and user_files.is_path(data):
            raise ByzantiumError(f"its data, {data[:80]!r}, is a path without a digest")
        graph = values.get("topology")
        if isinstance(graph, str) and topology.is_file(graph):
            raise ByzantiumError(f"its topology, {graph[:80]!r}, is a path instead of its edges")
        return cls.of(values)

    def _prepare(self) -> None:
        """Load its plugins and find its data; raises an error where one of them is missing.

        Other processes get the path of a file of data from here, as they get those of plugins.
        """
        from byzantium.data import user_files

        plugins.load_required(self)
        if place := getattr(self, "_data", None):
            user_files.remember_path(self.data, place)

    # -- parts -----------------------------------------------------------------------------------

    @property
    def workers(self) -> int:
        return self.n

    @property
    def metric_checks(self) -> Checks:
        """The checks of its metrics, which are those of the table; plugins may have added some."""
        return {name: values.METRIC_CHECKS[metric.kind] for name, metric in metrics.TABLE.items()}

    q = former_attribute("q", "attacker_count")

    @property
    def attacker_count(self) -> int:
        """How many workers attack: `attackers` or, if that is None, f; 0 without an attack."""
        if self.attackers is not None:
            return self.attackers
        return 0 if notation.with_parentheses(self.attack) == "NoAttack()" else self.f

    def settings(self) -> Settings:
        """The settings of its simulation."""
        shared = dataclasses.fields(TrainingOptions)
        values = {field.name: getattr(self, field.name) for field in shared}
        return learning.Settings(**{**values, "attackers": self.attacker_count})

    def stage(self) -> Aggregator | Mixing:
        """Its rule, with the mixings before it; without a server it may be a mixing."""
        from byzantium.runs import builders

        self._prepare()
        read = builders.read_rule if self.topology is None else builders.read_stage
        return read(self.rule, self.f)

    def aggregator(self) -> Aggregator:
        """Its rule, with the mixings before it; without a server, what one node does."""
        from byzantium.rules.gossip import node_rule

        return node_rule(self.stage())

    @property
    def bad(self) -> int:
        """How many of these may be Byzantine: f, or the number of attackers if it is larger."""
        if self.topology is not None:
            return self.f
        return min(max(self.f, self.attacker_count), self.vectors)

    def root_alone(self) -> Run | None:
        """The training on its root data alone, which its result is to be compared with.

        None where its rule uses no root data, or is `RootOnly` itself.

        >>> Run(rule="RootMatching()", root=10, attack="BitFlip()").root_alone().rule
        'RootOnly()'
        >>> Run(rule="Median()").root_alone()
        """
        if not self.root or self.rule == "RootOnly()" or not self.aggregator().needs_root:
            return None
        defaults = ("attackers", "plugin", "weights", "worker", "clock", "redundancy")
        alone = {option.name: option.default for option in options_of(Run)}
        changes = {name: alone[name] for name in defaults}
        return self.varied(rule="RootOnly()", attack="NoAttack()", **changes)

    def same_root_training(self, other: Run) -> bool:
        """Whether this and another run train on the same root data alone, in the same way.

        Then they have the same result, whatever workers there are.
        """
        names = [f.name for f in dataclasses.fields(Run) if f.name not in OF_WORKERS]
        return self.rule == other.rule == "RootOnly()" and all(
            getattr(self, name) == getattr(other, name) for name in names
        )

    def gap(self) -> str:
        """Why its rule has no guarantee; "" if it has one, or if nothing is said of it.

        That is so if a plugin is not loaded, and without a server.
        """
        if plugins.missing(self.plugin) or self.topology is not None:
            return ""
        return guarantees.gap(self.aggregator(), self.vectors, self.bad)

    def beyond_limit(self, lines: Sequence[Metrics]) -> str:
        r"""That its honest vectors differed too much for any rule to promise descent; "" otherwise.

        It is "" for rules with root data, which the limit does not bind, without a server, where
        rules see models, and where nothing was measured: :math:`B^2` is recorded in the first
        rounds, which a run may not have reached.

        >>> lines = [{"round": 30, "early_heterogeneity": [27.0, 28.0, 31.0]}]
        >>> Run(f=5).beyond_limit(lines)
        '5 of 25 need B² < 3; yours is 28: no rule that sees vectors alone promises descent here'
        >>> Run(f=0).beyond_limit(lines), Run(rule="RootMatching()", root=10).beyond_limit(lines)
        ('', '')
        """
        if self.topology is not None:
            return ""
        n, f, b2 = self.vectors, self.bad, metrics.early_heterogeneity(lines)
        if b2 is None or not 0 < 2 * f < n or b2 < guarantees.largest_heterogeneity(None, n, f):
            return ""
        if plugins.missing(self.plugin) or self.aggregator().needs_root:
            return ""
        limit = guarantees.describe_limit(n, f, {"": [b2]})
        return f"{limit}: no rule that sees vectors alone promises descent here"

    def announce(self, *, again: bool = False) -> None:
        """Log the guarantee of its rule, as a warning where there is none."""
        if plugins.missing(self.plugin):
            return
        if self.topology is None:
            guarantees.announce(self.aggregator(), self.vectors, self.bad, again=again)
        else:
            checks.announce_doubts(self, self.stage(), again=again)

    def graph(self) -> str:
        """Its graph in words, and that of its honest nodes; "" with a server."""
        return checks.graph_in_words(self)

    def dataset(self) -> Dataset:
        """Its data set; the last two that runs of this process used stay in memory."""
        from byzantium.runs import builders, released

        self._prepare()
        folder = os.environ.get("BYZANTIUM_DATA")
        data = builders.dataset(self.data, self.long_tail, folder, self.plugin)
        return released.whole_batches(data) if self.randomness == "released" else data

    def build_model(self, data: Dataset) -> nn.Module:
        """Its model for a data set, before the first round."""
        import torch

        from byzantium.runs import builders, released

        self._prepare()
        _, build = builders.model(self.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model: nn.Module = build(data)
        if not isinstance(model, torch.nn.Module):
            name = type_name(model)
            raise ByzantiumError(f"the model {self.model} must be an nn.Module, got {name}")
        if self.randomness == "released" and self.dropout == "shared":
            return released.masked(model, self.seed)
        return model

    def heterogeneity(self, watch: Callable[[int, int], None] = lambda done, total: None) -> float:
        r"""The median :math:`B^2` of what its workers send at first if nobody attacks."""
        return learning.measured_heterogeneity(**self._parts(), watch=watch)

    def simulation(self) -> Loop:
        """Its training, before the first round."""
        from byzantium.learning.training import loop_for

        parts, attack = self._parts(), attacks.parse_attack(self.attack)
        return loop_for(parts["settings"])(**parts, rule=self.stage(), attack=attack)

    def _parts(self) -> dict[str, Any]:
        """What every training of it has, by the names of the parameters of `Simulation`."""
        from byzantium.data import partition
        from byzantium.runs import builders, released

        data = self.dataset()
        _, optimizer = builders.optimizer(self.optimizer)
        fresh = self.randomness == "fresh"
        return {
            "settings": self.settings(),
            "data": data,
            "model": self.build_model(data),
            "partition": partition.read(self.partition),
            "optimizer": lambda parameters: optimizer(parameters, self.learning_rate),
            "randomness": learning.Randomness if fresh else released.Released,
            "worker": builders.worker(self.worker, self.momentum, self.heavy_ball),
        }

    def until(self, last: int | None) -> Self:
        """The same run, which stops after a round for now; None carries it out to its end.

        It saves itself there. Its identity is that of the whole run, which goes on from there.

        >>> Run(rounds=600).until(90) == Run(rounds=600)
        True
        """
        run = copy.copy(self)
        object.__setattr__(run, "_until", last)
        return run

    # -- work ------------------------------------------------------------------------------------

    def work(self, folder: Path, watch: Watch, stop: Stop) -> dict[str, Any] | None:
        self._prepare()
        self.announce(again=True)  # each run has it in its log
        training = self.simulation()
        learning.resume(training, folder)
        history, path = training.history, folder / METRICS
        blocks = _blocks(history.evaluations, history.rounds)
        files.write(path, "".join(json.dumps(block) + "\n" for block in blocks))
        written, last = len(blocks), getattr(self, "_until", None) or self.rounds
        if history.status == "running" and len(history.rounds) >= last:
            return None

        def stopped() -> bool:
            return stop() or len(history.rounds) >= last

        for record in learning.checkpointed(training, folder, stop=stopped):
            if len(history.evaluations) > written:
                block = _blocks(history.evaluations, history.rounds, written)[0]
                files.append(path, json.dumps(block) + "\n")
                written += 1
            accuracy = "" if math.isnan(history.accuracy) else f"{history.accuracy:.1f} %"
            watch(record["round"], self.rounds, accuracy)
        if history.status == "running":
            return None
        measure = "accuracy" if training.data.classes else "loss"
        last = [evaluation[measure] for evaluation in history.evaluations[-LAST:]]
        completed = history.status == "completed"
        mean_of_last = sum(last) / len(last) if completed else None
        summary = {"status": history.outcome, measure: mean_of_last}
        digests = dict(training.data.digests)
        return {**summary, "data": digests} if digests else summary

    def facets(self) -> dict[str, Any]:
        names = ("data", "model", "partition", "attack", "momentum", "seed", "n")
        values = {name: getattr(self, name) for name in names}
        return {**values, "q": self.attacker_count, **rule_facets(self.rule)}


def _blocks(evaluations: list[Metrics], rounds: list[Metrics], first: int = 0) -> list[Metrics]:
    """The evaluations from the first on, each with the rounds before it summed up."""
    ends = [0, *(evaluation["round"] for evaluation in evaluations)]
    return [
        metrics.line(evaluation, rounds[ends[k] : ends[k + 1]])
        for k, evaluation in enumerate(evaluations)
        if k >= first
    ]
