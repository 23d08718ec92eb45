"""A strategy for Flower that aggregates the changes of clients by any rule or pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from byzantium.attacks import Attack
from byzantium.core import ByzantiumError, Measure, validated
from byzantium.core.options import FORMER_SPELLINGS, renamed
from byzantium.engines.federation.aggregation import Aggregation, RuleOrText
from byzantium.engines.federation.record import Record
from byzantium.engines.federation.replies import UnusableReply
from byzantium.engines.federation.root import RootFunction
from byzantium.engines.federation.rounds import Round, byzantine_count
from byzantium.engines.federation.vectors import Arrays, layout
from byzantium.engines.files.cache import ChangeCache
from byzantium.engines.flower.grid import ReplyGrid, message_to
from byzantium.engines.flower.nodes import logger, renumber, sample_nodes, sort_replies
from byzantium.engines.flower.rehearsal import Rehearsal
from byzantium.engines.flower.replies import (
    medians,
    metric_faults,
    metrics_of,
    model_of,
    record_of,
    row_of,
)
from byzantium.engines.flower.step import MakeOptimizer, Step
from byzantium.rules import Aggregator, Trust
from byzantium.runs import Federation

MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]
EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]


class RobustStrategy(FedAvg):
    """A strategy for Flower that aggregates by a robust rule, and tolerates whatever clients send.

    The rule aggregates the changes that clients made to the model. A reply that is malformed or not
    finite is rejected, and counts as one of the f Byzantine ones; a node that sends nothing, or an
    error, is absent, and f does not change. The model is left unchanged in a round in which more
    than f replies are rejected, the others have no honest majority, or the rule is not defined for
    so few. Nothing that a client claims about itself changes its weight.

    `rounds` and `evaluations` have a record of each round, `trust` one of each node.

    - `rule`: the rule, with mixings before it if wanted, or its text, in which f may be omitted; or
      a function that returns one for a number of sampled nodes.
    - `f`: how many of the sampled nodes may be Byzantine: an integer, or a fraction below one half,
      which is rounded up (with a root below one). Too few is fatal, one too many costs little.
    - `root`: a function for rules that need a root update, such as `RootMatching`. It gets the
      global model, a dict of NumPy arrays by name, and returns the model after training on data
      that the server trusts, like a client: arrays or tensors of the same names, shapes and dtypes.
      It is called once in each round, before nodes are; `byzantium.learning.RootUpdate` makes one.
    - `weights`: how much each node counts: a mapping from node ids to numbers that you vouch for,
      or a function of a node id. A node without weight is not asked. By default all are equal.
    - `patience`: after so many rounds in a row that leave the model unchanged: `Standstill`.
    - `node_timeout`: how many seconds to wait for enough nodes; after them: `TooFewNodes`.
    - `optimizer`: a function that makes an optimizer of torch for the parameters that it is given;
      the aggregate is then its gradient. By default the aggregated change is added to the model.
    - `folder`: the folder of results, as for other runs. Every round is saved there, and a server
      that was killed continues after the last one; `byzantium report FOLDER` shows it.
    - `name`: the name of the federation in that folder; another name is another federation.
    - `track`: experiment trackers that follow the federation: "mlflow", "wandb", "tensorboard", or
      several of them; they need a folder of results.
    - `cache`: a folder for the last change of each node. If it is given, the rule aggregates those
      of all nodes, and f counts among all of them, so that attackers cannot capture a round in
      which few nodes are sampled. A node that was not heard yet is absent. A folder is for one
      federation; the changes take n times the size of the model there, and not in memory.
    - `cache_age`: how many rounds old such a change may be; by default any number.
    - `rehearse`: an attack to rehearse, by `nodes` (which, or how many) that see all others.
    - `adapters`: whether LoRA factors among the arrays, such as `q.lora_A.weight`, are aggregated
      as products; or their configuration, which has the scales (by default all are 1).
    - `node_metrics`: whether Flower's metrics have the numbers of each node, beside summaries. In
      any case `rounds` has them, and with a folder its file rounds.jsonl.
    - `fraction_train` and all that follow: as in Flower's FedAvg. Metrics are aggregated by their
      median, and `weighted_by_key`, a client's number of examples, is not used.

    >>> RobustStrategy("Bucketing(s=2) >> Krum()", f=1, fraction_train=0.5).rule
    Bucketing(s=2) >> Krum(f=1)
    """

    @renamed(**FORMER_SPELLINGS)
    def __init__(
        self,
        rule: RuleOrText | Callable[[int], RuleOrText],
        *,
        f: int | float,
        root: RootFunction | None = None,
        weights: Mapping[int, float] | Callable[[int], float] | None = None,
        patience: int = 3,
        node_timeout: float = 600.0,
        optimizer: MakeOptimizer | None = None,
        folder: Path | str | None = None,
        name: str = "federation",
        track: str | Sequence[str] = (),
        cache: Path | str | None = None,
        cache_age: int | None = None,
        rehearse: Attack | str | None = None,
        nodes: int | Collection[int] | None = None,
        adapters: bool | Mapping[str, Any] = True,
        node_metrics: bool = False,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
    ) -> None:
        super().__init__(
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn or medians,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn or medians,
        )
        self.cache = None if cache is None else ChangeCache(cache, cache_age)
        if self.cache is None and cache_age is not None:
            raise ByzantiumError("RobustStrategy needs a cache for cache_age: cache=, a folder")
        if self.cache is not None and rehearse is not None:
            raise ByzantiumError(
                "RobustStrategy cannot rehearse an attack with a cache: the attackers would see "
                "only the sampled nodes; byzantium run --participants 10 --cache simulates it"
            )
        shared = root, weights, patience, logger
        self.aggregation = Aggregation(
            "RobustStrategy", rule, f, *shared, adapters, optimizer is None, self.cache
        )
        self.f, self.patience = self.aggregation.f, self.aggregation.patience
        self.node_timeout = validated("RobustStrategy", "node_timeout", node_timeout, Measure)
        self.step = Step(optimizer)
        self.rehearsal = None if rehearse is None else Rehearsal(rehearse, nodes)
        self.record: Record | None = None
        if folder is not None:
            text = rule if isinstance(rule, str) else getattr(rule, "__name__", repr(rule))
            cached = cache is not None
            federation = Federation(name=name, rule=text, f=str(self.f), cache=cached)
            self.record = Record(folder, federation, track)
        elif track:
            raise ByzantiumError("RobustStrategy needs a folder of results to track it: folder=")
        self.rounds: list[Round[int]] = self.aggregation.rounds
        self.evaluations: list[Round[int]] = []
        self.node_metrics = node_metrics
        self._model: Arrays = {}
        self._rounds_before = 0  # rounds of a server that was killed

    def summary(self) -> None:
        """Log the configuration."""
        logger.info(
            "\t├──> Rule: %r, f = %s of %s nodes",
            *(self.aggregation.configured_rule, self.f, "the sampled" if not self.cache else "all"),
        )
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
        **options: Any,
    ) -> Result:
        """Run Flower's loop over rounds; with a folder, continue after the last saved one.

        - `options`: what Flower's own strategies get in versions later than the one we know.
        """
        with (
            nullcontext() if self.cache is None else self.cache.open(),
            nullcontext() if self.record is None else self.record.open(),
        ):
            arrays = self._resume(initial_arrays)

            def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
                if evaluate_fn is None or (self._rounds_before and not number):
                    return None
                metrics = evaluate_fn(number + self._rounds_before, arrays)
                if self.record is not None and number:
                    self.record.add_evaluation(metrics)
                return metrics

            result = super().start(
                cast(Grid, ReplyGrid(grid)),
                arrays,
                max(0, num_rounds - self._rounds_before),
                timeout,
                train_config,
                evaluate_config,
                evaluate if evaluate_fn is not None else None,
                **options,
            )
            renumber(result, self._rounds_before)
            if not result.arrays:  # the model was unchanged in every round
                result.arrays = arrays
        for sentence in self.trust.sentences():
            logger.info("node %s", sentence)
        return result

    def _resume(self, arrays: ArrayRecord) -> ArrayRecord:
        """The first model: that of the last checkpoint, if there is one."""
        state = None if self.record is None else self.record.resume()
        if state is None:
            return arrays
        if layout(model_of(arrays)) != layout(state["model"]):
            raise ByzantiumError(
                "the checkpoint is of a model with other arrays; give the federation another name"
            )
        self._rounds_before = state["round"]
        self.step.load_state_dict(state["step"])
        self.aggregation.load_state_dict(state)
        logger.info("going on after round %d", self._rounds_before)
        return record_of(state["model"])

    # -- training ----------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample the nodes that train in a round, and store the model that they get."""
        if self.fraction_train == 0.0:
            return []
        server_round += self._rounds_before
        if self.record is not None:
            self.record.flush()
        self._model = model_of(arrays)
        fraction, least = self.fraction_train, self.min_train_nodes
        available, timeout = self.min_available_nodes, self.node_timeout
        weights = self.aggregation.weights
        nodes, connected = sample_nodes(grid, fraction, least, available, timeout, weights)
        self.aggregation.begin(server_round, nodes, connected, self._model)
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [message_to(content, MessageType.TRAIN, node, server_round) for node in nodes]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the changes of the nodes; None instead of a model leaves it unchanged."""
        server_round += self._rounds_before
        if not self.rounds or self.rounds[-1].number != server_round:
            return None, None
        at = self.rounds[-1]
        contents = {node: reply.content for node, reply in sort_replies(at, replies).items()}
        rows = self._rows(at, contents)
        if self.rehearsal is not None and self.rule is not None:
            self.rehearsal(self._model, rows, self.rule, at.vouched)
        report = self.aggregation.explain(at, self._model, rows)
        metrics, arrays = MetricRecord(), None
        if report is not None:
            if self.rehearsal is not None:
                self.rehearsal.observe(self._model, report.aggregate)
            used = [contents[node] for node in at.fresh]
            metrics = self.train_metrics_aggr_fn(used, self.weighted_by_key)
            arrays = record_of(self.step(self._model, report.aggregate))
        self.aggregation.end(at, "aggregate_train")
        metrics.update(at.metrics(nodes=self.node_metrics))
        if self.record is not None:
            self.record.add(at)
        self.aggregation.count(at)
        return arrays, metrics

    def _rows(self, at: Round[int], contents: dict[int, RecordDict]) -> dict[int, Arrays]:
        """The arrays of each usable reply; the nodes of all others are rejected."""
        rows, metrics = {}, {}
        for node, content in contents.items():
            try:
                rows[node], metrics[node] = row_of(content, self._model), metrics_of(content)
            except UnusableReply as error:
                at.rejected[node] = str(error)
        at.rejected |= metric_faults(metrics, self.weighted_by_key)
        return {node: row for node, row in rows.items() if node not in at.rejected}

    # -- evaluation --------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample the nodes that evaluate the model."""
        server_round += self._rounds_before
        if self.record is not None and self.rounds:
            self.record.save(server_round, model_of(arrays), self._state())
        if self.cache is not None:
            self.cache.commit()
        if self.fraction_evaluate == 0.0:
            return []
        fraction, least = self.fraction_evaluate, self.min_evaluate_nodes
        nodes, connected = sample_nodes(
            grid, fraction, least, self.min_available_nodes, self.node_timeout
        )
        f = byzantine_count(self.f, len(nodes))
        self.evaluations.append(Round(server_round, tuple(nodes), connected, f))
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [message_to(content, MessageType.EVALUATE, node, server_round) for node in nodes]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The median of each metric; without an honest majority, only the numbers of nodes."""
        server_round += self._rounds_before
        if not self.evaluations or self.evaluations[-1].number != server_round:
            return None
        at, reported = self.evaluations[-1], {}
        contents = {node: reply.content for node, reply in sort_replies(at, replies).items()}
        for node, content in contents.items():
            try:
                reported[node] = metrics_of(content)
            except UnusableReply as error:
                at.rejected[node] = str(error)
        at.rejected |= metric_faults(reported, self.weighted_by_key)
        at.used = tuple(node for node in reported if node not in at.rejected)
        at.check()
        metrics = MetricRecord()
        if not at.kept:
            used = [contents[node] for node in at.used]
            metrics = self.evaluate_metrics_aggr_fn(used, self.weighted_by_key)
        at.log("aggregate_evaluate", logger)
        if self.record is not None:
            self.record.add_evaluation(metrics)
        metrics.update(at.metrics(nodes=self.node_metrics))
        return metrics

    def _state(self) -> dict[str, Any]:
        """The state that is needed in addition to the model to continue."""
        return {**self.aggregation.state_dict(), "step": self.step.state_dict()}

    @property
    def rule(self) -> Aggregator | None:
        """The rule of the last round; before the first, the one that is given, if f is a number."""
        return self.aggregation.rule

    @property
    def trust(self) -> Trust:
        """The record of each node."""
        return self.aggregation.trust

    @property
    def unchanged_in_a_row(self) -> int:
        """How many rounds in a row have left the model unchanged."""
        return self.aggregation.unchanged_in_a_row
