"""A strategy for Flower that aggregates the changes of clients by any rule or pipeline."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Lt
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from byzantium.attacks import Attack
from byzantium.core import (
    ArgumentTypeError,
    ByzantiumError,
    Count,
    Measure,
    Positive,
    TooManyRejected,
    type_name,
    validated,
)
from byzantium.core.options import FORMER_SPELLINGS, renamed
from byzantium.engines.flower.grid import ReplyGrid, message_to
from byzantium.engines.flower.record import Record
from byzantium.engines.flower.rehearsal import Rehearsal
from byzantium.engines.flower.replies import (
    Arrays,
    UnusableReply,
    medians,
    metric_faults,
    metrics_of,
    model_of,
    record_of,
    row_of,
)
from byzantium.engines.flower.root import Root, RootFunction
from byzantium.engines.flower.rounds import (
    Round,
    Standstill,
    byzantine_count,
    log_near_zero,
    logger,
    probability_of_more,
    renumber,
    sample_nodes,
)
from byzantium.engines.flower.space import ArraySpace, space_of
from byzantium.engines.flower.step import MakeOptimizer, Step
from byzantium.engines.flower.vectors import layout, rejection_reasons
from byzantium.guarantees import announce
from byzantium.rules import Aggregator, Report, Trust, parse_rule
from byzantium.runs import Federation

RuleOrText = Aggregator | str
MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]
EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]
Fraction = Annotated[float, Ge(0), Lt(0.5)]
# With a root update, which is trusted, more than half of the nodes may be Byzantine.
RootFraction = Annotated[float, Ge(0), Lt(1)]


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
    - `patience`: after so many rounds in a row that leave the model unchanged: `Standstill`.
    - `node_timeout`: how many seconds to wait for enough nodes; after them: `TooFewNodes`.
    - `optimizer`: a function that makes an optimizer of torch for the parameters that it is given;
      the aggregate is then its gradient. By default the aggregated change is added to the model.
    - `folder`: the folder of results, as for other runs. Every round is saved there, and a server
      that was killed continues after the last one; `byzantium report FOLDER` shows it.
    - `name`: the name of the federation in that folder; another name is another federation.
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
        patience: int = 3,
        node_timeout: float = 600.0,
        optimizer: MakeOptimizer | None = None,
        folder: Path | str | None = None,
        name: str = "federation",
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
        fraction = Fraction if root is None else RootFraction
        allowed = fraction if isinstance(f, float | np.floating) else Count
        self.f: int | float = validated("RobustStrategy", "f", f, allowed)
        self.root = Root(root)
        self.patience: int = validated("RobustStrategy", "patience", patience, Positive)
        self.node_timeout: float = validated(
            "RobustStrategy", "node_timeout", node_timeout, Measure
        )
        self.configured_rule = rule
        self._rule_state: Mapping[str, Any] = {}
        self.rule: Aggregator | None = None
        if isinstance(rule, Aggregator | str):
            known = self.f if isinstance(self.f, int) else 1
            fixed = parse_rule(rule, f=known) if isinstance(rule, str) else rule
            self.root.check(fixed, used=True)
            self.rule = self._rule_for(0, self.f) if isinstance(self.f, int) else None
        self.step, self.adapters, self.space = Step(optimizer), adapters, ArraySpace()
        self.rehearsal = None if rehearse is None else Rehearsal(rehearse, nodes)
        self.record: Record | None = None
        if folder is not None:
            text = rule if isinstance(rule, str) else getattr(rule, "__name__", repr(rule))
            self.record = Record(folder, Federation(name=name, rule=text, f=str(self.f)))
        self.trust = Trust()
        self.rounds: list[Round] = []
        self.evaluations: list[Round] = []
        self.unchanged_in_a_row = 0
        self.node_metrics, self._near_zero = node_metrics, list[int]()
        self._model: Arrays = {}
        self._rounds_before = 0  # rounds of a server that was killed

    def summary(self) -> None:
        """Log the configuration."""
        logger.info("\t├──> Rule: %r, f = %s of the sampled nodes", self.configured_rule, self.f)
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
    ) -> Result:
        """Run Flower's loop over rounds; with a folder, continue after the last saved one."""
        with nullcontext() if self.record is None else self.record.open():
            arrays = self._resume(initial_arrays)

            def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
                if evaluate_fn is None or (self._rounds_before and not number):
                    return None
                metrics = evaluate_fn(number + self._rounds_before, arrays)
                if self.record is not None and number:
                    self.record.add_evaluation(metrics)
                return metrics

            result = super().start(
                ReplyGrid(grid),
                arrays,
                max(0, num_rounds - self._rounds_before),
                timeout,
                train_config,
                evaluate_config,
                evaluate if evaluate_fn is not None else None,
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
        self._rounds_before, self._rule_state = state["round"], state["rule"]
        self.unchanged_in_a_row = state["kept"]
        self.step.load_state_dict(state["step"])
        self.trust = Trust.of(state["trust"])
        self.root.load_state_dict(state.get("root", {}))
        if self.rule is not None:
            self.rule.load_state_dict(self._rule_state)
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
        nodes, connected = sample_nodes(
            grid, fraction, least, self.min_available_nodes, self.node_timeout
        )
        f = byzantine_count(self.f, len(nodes))
        self.rule = self._rule_for(len(nodes), f)
        self.space = space_of(self._model, self.adapters)
        self.space.check(self.rule, self.step.make is not None)
        announce(self.rule, len(nodes), f)
        if isinstance(self.f, float):
            logger.info(
                "configure_train: f = %d is %g of the %d sampled nodes; if %g of the %d connected "
                "ones are Byzantine, more than f of a sample are with probability %.3g",
                *(f, self.f, len(nodes), self.f, connected),
                probability_of_more(self.f, len(nodes), connected),
            )
        at = Round(server_round, tuple(nodes), connected, f)
        self.root.compute(at, self._model, self.rule, self.space)
        self.rounds.append(at)
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
        contents = {node: reply.content for node, reply in at.sort(replies).items()}
        rows = self._rows(at, contents)
        report = self._explain(at, rows)
        metrics, arrays = MetricRecord(), None
        if report is not None:
            used = [contents[node] for node in at.used]
            metrics = self.train_metrics_aggr_fn(used, self.weighted_by_key)
            arrays = record_of(self.step(self._model, report.aggregate))
        at.log("aggregate_train")
        if at.above_limit and not any(one.above_limit for one in self.rounds[:-1]):
            logger.warning("\t> %s", at.above_limit)
        metrics.update(at.metrics(nodes=self.node_metrics))
        self.trust.update(at.weights, at.rejected, at.absent)
        self._near_zero = log_near_zero(self.trust, self._near_zero)
        if self.record is not None:
            self.record.add(at)
        self._count(at)
        return arrays, metrics

    def _rows(self, at: Round, contents: dict[int, RecordDict]) -> dict[int, Arrays]:
        """The arrays of each usable reply; the nodes of all others are rejected."""
        rows, metrics = {}, {}
        for node, content in contents.items():
            try:
                rows[node], metrics[node] = row_of(content, self._model), metrics_of(content)
            except UnusableReply as error:
                at.rejected[node] = str(error)
        at.rejected |= metric_faults(metrics, self.weighted_by_key)
        return {node: row for node, row in rows.items() if node not in at.rejected}

    def _explain(self, at: Round, rows: dict[int, Arrays]) -> Report | None:
        """The report of the rule about the rows; None if the model must not change."""
        if not rows:
            at.check()
            return None
        assert self.rule is not None
        if self.rehearsal is not None:
            self.rehearsal(self._model, rows, self.rule)
        before = self.rule.state_dict()
        # The rule also gets the unreadable rows, as None, and rejects them: so it knows how many
        # there were, and reduces its f.
        nodes = [node for node in at.sampled if node not in at.absent]
        vectors = [rows.get(node) for node in nodes]
        source, root = self.space.source(vectors, self._model, nodes), self.root.update
        try:
            report = self.rule.explain(source, root=self.space.vector(root))
        except TooManyRejected as error:
            at.reject(nodes, error.reasons)
            at.check()
            if not at.kept:
                at.leave_unchanged("too-many-rejected", str(error))
        except ByzantiumError as error:
            at.reject(nodes, rejection_reasons(source))
            at.leave_unchanged("undefined", str(error))
        else:
            at.reject(nodes, report.reasons)
            at.check()
            if not at.kept:
                report = self.space.finished(report, self._model)
                at.use(nodes, report)
                used = [rows[node] for node in at.used]
                far, at.spread_to_mean = self.space.measure(self._model, used, report.aggregate)
                at.distances = dict(zip(at.used, far, strict=True))
                self.root.measure(at, self._model, report.aggregate, self.space)
                if self.rehearsal is not None:
                    self.rehearsal.observe(self._model, report.aggregate)
                return report
        self.rule.load_state_dict(before)
        return None

    def _count(self, at: Round) -> None:
        """Count rounds in a row that leave the model unchanged; too many end the run."""
        self.unchanged_in_a_row = self.unchanged_in_a_row + 1 if at.kept else 0
        if self.unchanged_in_a_row >= self.patience:
            raise Standstill(
                f"the model was left unchanged in {self.unchanged_in_a_row} rounds in a row, the "
                f"last time because {at.kept}"
            )

    # -- evaluation --------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample the nodes that evaluate the model."""
        server_round += self._rounds_before
        if self.record is not None and self.rounds:
            self.record.save(server_round, model_of(arrays), self._state())
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
        contents = {node: reply.content for node, reply in at.sort(replies).items()}
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
        at.log("aggregate_evaluate")
        if self.record is not None:
            self.record.add_evaluation(metrics)
        metrics.update(at.metrics(nodes=self.node_metrics))
        return metrics

    def _state(self) -> dict[str, Any]:
        """The state that is needed in addition to the model to continue."""
        assert self.rule is not None
        return {
            "rule": self.rule.state_dict(),
            "step": self.step.state_dict(),
            "kept": self.unchanged_in_a_row,
            "trust": self.trust.state(),
            "root": self.root.state_dict(),
        }

    # -- parts -------------------------------------------------------------------------------------

    def _rule_for(self, n: int, f: int) -> Aggregator:
        """The rule for n sampled nodes, of which f may be Byzantine; it continues the old state."""
        rule = self.configured_rule
        if not isinstance(rule, Aggregator | str):
            rule = rule(n)
        rule = parse_rule(rule, f=f) if isinstance(rule, str) else rule
        if not isinstance(rule, Aggregator):
            raise ArgumentTypeError(f"RobustStrategy needs a rule, got {type_name(rule)}")
        self.root.check(rule)
        for stage in rule.stages:
            if stage.bad not in (None, f):
                raise ByzantiumError(
                    f"{stage!r} says f={stage.bad} and the strategy says f={f}; a rule that is "
                    "written without f, such as 'Krum()', takes that of the strategy"
                )
        if rule == self.rule:
            return self.rule
        state = self._rule_state if self.rule is None else self.rule.state_dict()
        rule = copy.deepcopy(rule)
        if state:
            rule.load_state_dict(state)
        return rule
