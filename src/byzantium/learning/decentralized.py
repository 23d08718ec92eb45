"""Training without a server: each node has its own model, and exchanges it with its neighbors."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from byzantium.attacks import Attack, Node
from byzantium.core import ByzantiumError, TooManyRejected
from byzantium.data.dataset import Dataset
from byzantium.data.partition import Partition
from byzantium.learning import checks, evaluation, formulas, metrics, optimizers, topology
from byzantium.learning.checkpoint import CheckpointError
from byzantium.learning.gradients import set_parameters, vector_of
from byzantium.learning.history import History
from byzantium.learning.loop import Loop
from byzantium.learning.losses import Loss
from byzantium.learning.method import WorkerMethod
from byzantium.learning.metrics import Metric
from byzantium.learning.randomness import Randomness
from byzantium.learning.server import MakeOptimizer
from byzantium.learning.settings import Settings
from byzantium.learning.simulation import SAMPLED
from byzantium.learning.state import checkpoint_errors, try_optimizer
from byzantium.rules import Aggregator, Mixing, Report, Stage
from byzantium.rules.admission import check_sizes
from byzantium.rules.gossip import node_rule

logger = logging.getLogger("byzantium")

# A node whose model is longer has diverged; rules would reject it.
LONGEST = 1e18


class DecentralizedSimulation(Loop):
    r"""A training without a server, in one process: nodes of a graph exchange their models.

    In each round every node takes a step with its own gradient (with momentum) at its own model,
    sends the model to its neighbors, and moves to what its rule makes of its own model and theirs:

    .. math:: x_i^{t+1/2} = x_i^t - \eta m_i^t, \qquad
        x_i^{t+1} = \mathrm{rule}_i (x_i^{t+1/2}, \{x_j^{t+1/2}\}_{j \sim i})

    The rule may be gossip, any other mixing, of whose rows a node takes its own, or any rule, which
    counts all neighbors alike. Attackers may send something else to each neighbor: for each honest
    node, the attack sees the models of the node and of its honest neighbors, the node's own first.
    An attack that needs vectors of the attackers' own makes them follow the protocol.

    The parameters are those of `Simulation`, apart from these. `Settings.topology` names the graph;
    the last nodes attack.

    - `model`: the model of all nodes before the first round; later the mean of the honest nodes'.
    - `rule`: what each node does: a mixing or a rule.
    - `optimizer`: makes an optimizer of one matrix, whose rows are the models. It must treat each
      number separately, as SGD and Adam do.

    `models` has the model of each node as a row, (n, d), and `topology` is the graph.

    >>> from byzantium import ClippedGossip, Dissensus
    >>> from byzantium.data import load
    >>> from byzantium.learning import DecentralizedSimulation, Settings, linear
    >>> settings = Settings(n=9, attackers=1, rounds=30, topology="torus", momentum=0.9, record=())
    >>> model, rule, attack = linear((1, 8, 8)), ClippedGossip(f=1), Dissensus()
    >>> training = DecentralizedSimulation(settings, load("digits"), model, rule, attack)
    >>> for record in training:
    ...     pass
    >>> training.history.accuracy > 70, training.models.shape
    (True, torch.Size([9, 650]))
    """

    has: ClassVar[frozenset[str]] = frozenset({"nodes"})

    def __init__(
        self,
        settings: Settings,
        data: Dataset,
        model: nn.Module,
        rule: Aggregator | Mixing,
        attack: Attack | None = None,
        partition: Partition | None = None,
        optimizer: MakeOptimizer | None = None,
        loss: Loss | None = None,
        randomness: Callable[[Settings], Randomness] = Randomness,
        worker: WorkerMethod | None = None,
    ) -> None:
        """Prepare the first round."""
        checks.check_loop(settings, type(self).__name__, self.has)
        if settings.topology is None:
            raise ByzantiumError(
                "a training without a server needs a graph, such as topology='ring', got None"
            )
        checks.check_rule(settings, rule, attack)
        super().__init__(settings, data, model, attack, partition, loss, randomness, worker)
        self.topology = topology.read(settings.topology, settings.n)
        self.honest_topology = self.topology.subgraph(range(self.honest))
        start = vector_of(self.gradients.columns)
        self.models = nn.Parameter(start.repeat(settings.n, 1), requires_grad=False)
        self.optimizer = (optimizer or optimizers.plain(settings.learning_rate))([self.models])
        self.rule: Aggregator = node_rule(rule)
        self._uses_weights = any(stage.uses_graph for stage in self.rule.stages)
        self.neighborhoods = [self._neighborhood(node) for node in range(settings.n)]
        self.rules = [
            copy.deepcopy(self.rule).on_graph(self.topology.weights[np.ix_(nodes, nodes)])
            for nodes in self.neighborhoods
        ]
        self.attacks = [copy.deepcopy(self.attack) for _ in range(self.honest)]
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", checks.graph_in_words(settings))
        checks.announce_doubts(settings, rule)
        #: The nodes that aggregate: the honest ones, and attackers that follow the protocol.
        self.receivers = [
            node
            for node, nodes in enumerate(self.neighborhoods)
            if node < self.honest or (self.attack.needs_own and fits(self.rule.stages, len(nodes)))
        ]
        self._last_indices: Tensor | None = None

    @property
    def honest_models(self) -> Tensor:
        """The models of the honest nodes, (h, d)."""
        return self.models[: self.honest]

    def _neighborhood(self, node: int) -> list[int]:
        """A node and its neighbors, itself first and those who attack last."""
        return [node, *self.topology.neighbors(node)]

    # -- training --------------------------------------------------------------------------------

    def _round(self, t: int) -> dict[str, Any]:
        h, everybody = self.honest, list(range(self.settings.n))
        self._reshuffle(t)
        losses = self._compute(self.sent[:h], everybody[:h], t)
        theirs = losses[:0]
        if self.attack.needs_own:
            theirs = self._compute(self.sent[h:], everybody[h:], t)
        elif metrics.need_own_losses(self.settings.record) and h < len(everybody):
            seeds = self._seeds(everybody[h:], t)
            theirs = self.gradients.losses(*self._next_batches(everybody[h:]), seeds)
        record: dict[str, Any] = {"round": t + 1, "loss": float(losses.mean())}
        if not losses.isfinite().all():
            return self._diverged(record)
        before = self.models.detach().clone()
        self.models.grad = self.sent
        self.optimizer.step()
        self.models.grad = None
        lengths = self.honest_models.norm(dim=1)
        if not (lengths <= LONGEST).all():
            return self._diverged(record)
        measured = self.round_metrics(t, t < self.early_rounds)
        try:
            after, reports = self._gossip(before, any(metric.needs for metric in measured))
        except _HonestRejectedError:
            return self._diverged(record)
        self.models.copy_(after)
        set_parameters(self.gradients.columns, self.honest_models.mean(dim=0))
        step = before[:h].mean(dim=0) - self.honest_models.mean(dim=0)
        scene = formulas.Round(
            self.settings.n,
            everybody,
            self.sent,
            self.sent[:h],
            record["loss"],
            step / self.optimizer.param_groups[0]["lr"],
            self._report(reports, step) if reports else None,
            torch.cat([losses, theirs]),
            rule=self.rule,
            kept=self._kept(reports) if any(m.needs == "edges" for m in measured) else None,
        )
        record |= {metric.key: metric.measure(scene) for metric in measured}
        return record if after.isfinite().all() else self._diverged(record)

    def _models_of(self, workers: list[int]) -> Tensor:
        return self.models.detach()[workers]

    def _next_indices(self, workers: list[int]) -> Tensor:
        indices = super()._next_indices(workers)
        if not self._attacking(workers):
            self._last_indices = indices  # for `_step_loss`
        return indices

    def _gossip(self, before: Tensor, explain: bool) -> tuple[Tensor, list[Report]]:
        """The models after the exchange, and the reports of the honest nodes if they are wanted.

        - `before`: the models at the beginning of the round.
        """
        after, reports = self.models.detach().clone(), []
        for node in self.receivers:
            honest = node < self.honest
            received = self._received(node, before)
            rule, generator = self.rules[node], self.generators["server"]
            try:
                if explain and honest:
                    reports.append(rule.explain(received, generator))
                    after[node] = reports[-1].aggregate
                else:
                    after[node] = rule(received, generator)
            except TooManyRejected as error:
                nodes = self.neighborhoods[node]
                if honest and any(nodes[row] < self.honest for row in error.reasons):
                    raise _HonestRejectedError from error
                if honest:  # more attackers than the f that the rule assumes
                    raise
        return after, reports

    def _received(self, node: int, before: Tensor) -> Tensor:
        """The models that a node has after its neighbors sent theirs, its own first, (k, d)."""
        nodes = self.neighborhoods[node]
        received = self.models.detach()[nodes]
        k = sum(other < self.honest for other in nodes)
        if node >= self.honest or k == len(nodes):
            return received
        received[k:] = self.attacks[node](
            received[:k],
            received[k:] if self.attack.needs_own else None,
            q=len(nodes) - k,
            rule=self.rules[node],
            epoch=self.batches.epoch,
            generator=self.generators["attack"],
            step_loss=self._step_loss,
            last_aggregate=before[node],
            node=self._node(node),
        )
        return received

    def _node(self, node: int) -> Node:
        """What the attackers know of a node to which they send."""
        weights = self.topology.weights[node][self.neighborhoods[node][1:]]
        fiedler = self.honest_topology.fiedler_vector
        return Node(node, weights.tolist(), self.honest_models.detach(), fiedler.tolist())

    def _step_loss(self, result: Tensor) -> float:
        """The mean loss of a few honest workers on their batches, at a result of the rule."""
        assert self._last_indices is not None
        x, y = self.data.train_x[self._last_indices], self.data.train_y[self._last_indices]
        chosen = torch.linspace(0, len(x) - 1, min(len(x), SAMPLED)).long()
        mean = vector_of(self.gradients.columns)
        set_parameters(self.gradients.columns, result.to(mean))
        try:
            return float(self.gradients.losses(x[chosen], y[chosen], [0] * len(chosen)).mean())
        finally:
            set_parameters(self.gradients.columns, mean)

    # -- what is recorded --------------------------------------------------------------------------

    def _report(self, reports: Sequence[Report], step: Tensor) -> Report:
        """One report of all honest nodes: means of their weights, and all that any rejected."""
        mixing = self._mixing(reports)
        names = {
            nodes[row]: reason
            for nodes, report in zip(self.neighborhoods, reports, strict=False)
            for row, reason in report.reasons.items()
        }
        return replace(
            reports[0],
            aggregate=step,
            weights=torch.from_numpy(mixing.mean(axis=0)),
            remainder=float(np.mean([report.remainder for report in reports])),
            rejected=tuple(sorted(names)),
            mixing=torch.from_numpy(mixing),
            reasons=names,
            notes=(),
        )

    def _mixing(self, reports: Sequence[Report]) -> np.ndarray:
        """(h, n): the weight of each node in the new model of each honest node."""
        mixing = np.zeros((len(reports), self.settings.n))
        for row, nodes, report in zip(mixing, self.neighborhoods, reports, strict=False):
            row[nodes] = report.weights.numpy()
        return mixing

    @property
    def recorded_edges(self) -> list[topology.Edge]:
        """The edges with an honest end, in the order in which "kept" lists them."""
        return [edge for edge in self.topology.edges if edge[0] < self.honest]

    def _kept(self, reports: Sequence[Report]) -> list[float]:
        """How much of each edge its honest ends took over, relative to what plain gossip takes."""
        graph = self.topology
        plain = (graph.weights if self._uses_weights else graph.equal_weights)[: self.honest]
        mixing = self._mixing(reports)
        taken = np.divide(mixing, plain, out=np.zeros_like(mixing), where=plain > 0).clip(0, 1)
        return [
            float((taken[i, j] + taken[j, i]) / 2 if j < self.honest else taken[i, j])
            for i, j in self.recorded_edges
        ]

    def round_metrics(self, t: int, early: bool) -> list[Metric]:
        evaluated = self.is_evaluated(t)
        return metrics.round_metrics(self.settings.record, self.rule, evaluated, early, self.has)

    def evaluate_nodes(self) -> list[dict[str, float]]:
        mean, results = vector_of(self.gradients.columns), []
        try:
            for model in self.honest_models:
                set_parameters(self.gradients.columns, model)
                results.append(evaluation.evaluate(self.model, self.data, self.loss))
        finally:
            set_parameters(self.gradients.columns, mean)
        return results

    # -- state -------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {
            "models": self.models.detach(),
            "optimizer": self.optimizer.state_dict(),
            "rules": [rule.state_dict() for rule in self.rules],
            "attacks": [attack.state_dict() for attack in self.attacks],
        }

    def _state_forms(self, history: History) -> dict[str, Any]:
        return {
            "models": self.models.detach(),
            "rules": [dict] * len(self.rules),
            "attacks": [dict] * len(self.attacks),
        }

    def _try_state(self, state: dict[str, Any]) -> None:
        try_optimizer(self.optimizer, state)
        if not state["models"].isfinite().all():
            raise CheckpointError("its models are not finite")
        self._try_rules(state["rules"])
        self._try_attacks(state["attacks"])

    @checkpoint_errors("rules")
    def _try_rules(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        for node, (rule, state) in enumerate(zip(self.rules, states, strict=True)):
            copied, nodes = copy.deepcopy(rule), self.neighborhoods[node]
            copied.load_state_dict(state)
            if node in self.receivers:
                copied(self.sent.new_zeros(len(nodes), self.gradients.d), torch.Generator())

    @checkpoint_errors("attacks")
    def _try_attacks(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        for node, state in enumerate(states):
            attack, nodes = copy.deepcopy(self.attacks[node]), self.neighborhoods[node]
            attack.load_state_dict(state)
            k = sum(other < self.honest for other in nodes)
            rows = self.sent.new_zeros(len(nodes), self.gradients.d)
            if k < len(nodes):
                attack(
                    rows[:k],
                    rows[k:] if attack.needs_own else None,
                    q=len(nodes) - k,
                    rule=self.rules[node],
                    epoch=self.batches.epoch,
                    generator=torch.Generator(),
                    step_loss=lambda result: 0.0,
                    last_aggregate=rows[0],
                    node=self._node(node),
                )

    def _load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(dict(state["model"]))
        self.models.copy_(state["models"])
        self.optimizer.load_state_dict(state["optimizer"])
        for rule, own in zip(self.rules, state["rules"], strict=True):
            rule.load_state_dict(own)
        for attack, own in zip(self.attacks, state["attacks"], strict=True):
            attack.load_state_dict(own)


def fits(stages: Sequence[Stage], n: int) -> bool:
    """Whether stages are defined for n vectors."""
    try:
        check_sizes(stages, n)
    except ByzantiumError:
        return False
    return True


class _HonestRejectedError(Exception):
    """A rule rejected the model of an honest node: the training diverged."""
