"""The rule's part in a federation: the aggregate of each round, and what is known of the nodes."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Lt

from byzantium.core import (
    ArgumentTypeError,
    ByzantiumError,
    Count,
    Positive,
    TooManyRejected,
    type_name,
    validated,
)
from byzantium.engines.federation.root import Root, RootFunction
from byzantium.engines.federation.rounds import (
    Node,
    Round,
    Standstill,
    byzantine_count,
    log_near_zero,
    probability_of_more,
)
from byzantium.engines.federation.vectors import (
    Arrays,
    change_vector,
    measure,
    rejection_reasons,
)
from byzantium.engines.files.cache import ChangeCache, measure_changes
from byzantium.guarantees import announce
from byzantium.rules import Aggregator, Report, Trust, parse_rule
from byzantium.vectors import Source, as_source

RuleOrText = Aggregator | str
Fraction = Annotated[float, Ge(0), Lt(0.5)]
# With a root update, which is trusted, more than half of the nodes may be Byzantine.
RootFraction = Annotated[float, Ge(0), Lt(1)]


class Aggregation:
    """The rule of a federation, its f, its root update, and a record of each node.

    A round begins with `begin`, is aggregated by `explain`, and ends with `end`.

    - `owner`: the name of the class that users see, for errors.
    - `rule`: the rule or its text, in which f may be omitted; or a function that returns one for a
      number of sampled nodes.
    - `f`: how many of the sampled nodes may be Byzantine: an integer or a fraction.
    - `root`: a function for rules that need a root update.
    - `patience`: after so many rounds in a row that leave the model unchanged: `Standstill`.
    - `logger`: where the rounds are logged.
    - `cache`: the last changes of all nodes: those of nodes that were not sampled are aggregated,
      too, and f counts among all nodes.
    """

    def __init__(
        self,
        owner: str,
        rule: RuleOrText | Callable[[int], RuleOrText],
        f: int | float,
        root: RootFunction | None,
        patience: int,
        logger: logging.Logger,
        cache: ChangeCache | None = None,
    ) -> None:
        fraction = Fraction if root is None else RootFraction
        allowed = fraction if isinstance(f, float | np.floating) else Count
        self.owner, self.logger, self.cache = owner, logger, cache
        self.f: int | float = validated(owner, "f", f, allowed)
        self.root = Root(root, logger)
        self.patience: int = validated(owner, "patience", patience, Positive)
        self.configured_rule = rule
        self._rule_state: Mapping[str, Any] = {}
        self.rule: Aggregator | None = None
        if isinstance(rule, Aggregator | str):
            known = self.f if isinstance(self.f, int) else 1
            fixed = parse_rule(rule, f=known) if isinstance(rule, str) else rule
            self.root.check(fixed, used=True)
            self.rule = self._rule_for(0, self.f) if isinstance(self.f, int) else None
        self.trust = Trust()
        self.rounds: list[Round[Any]] = []
        self.unchanged_in_a_row = 0
        self._near_zero = list[Any]()
        self._heard_more = False

    def begin(self, number: int, nodes: Sequence[Node], connected: int, model: Arrays) -> None:
        """Begin a round: with its f, its rule and, if that needs one, its root update."""
        n = len(nodes)
        if self.cache is not None:
            n = max(connected, len({*nodes, *self.cache.nodes(number)}))
        f = byzantine_count(self.f, n)
        self.rule = self._rule_for(n, f)
        announce(self.rule, n, f)
        if isinstance(self.f, float) and self.cache is None:
            self.logger.info(
                "configure_train: f = %d is %g of the %d sampled nodes; if %g of the %d connected "
                "ones are Byzantine, more than f of a sample are with probability %.3g",
                *(f, self.f, len(nodes), self.f, connected),
                probability_of_more(self.f, len(nodes), connected),
            )
        at = Round(number, tuple(nodes), connected, f)
        self.root.compute(at, model, self.rule)
        self.rounds.append(at)

    def explain(self, at: Round[Node], model: Arrays, rows: Mapping[Node, Arrays]) -> Report | None:
        """The report of the rule about the rows; None if the model must not change.

        - `at`: the round, which gets what is found out.
        - `model`: the model that the nodes were sent.
        - `rows`: the arrays of each node whose reply is usable so far.
        """
        if self.cache is not None:
            self._heard_more = remember(self.cache, at, model, rows)
        if not rows:
            at.check()
            if not at.kept:
                at.leave_unchanged("no-reply", "no reply of this round is usable")
            return None
        assert self.rule is not None
        before = self.rule.state_dict()
        nodes = [*(node for node in at.sampled if node not in at.absent), *at.cached]
        source = self._source(nodes, model, rows)
        try:
            report = self.rule.explain(source, root=self.root.update)
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
                self._measure(at, model, nodes, rows, source, report)
                self.root.measure(at, model, report.aggregate)
                return report
        self.rule.load_state_dict(before)
        return None

    def _source(self, nodes: Sequence[Node], model: Arrays, rows: Mapping[Node, Arrays]) -> Source:
        """What the rule gets: the rows, or the last changes of all nodes.

        It also gets the unreadable rows, as None, and rejects them: so it knows how many there
        were, and reduces its f.
        """
        if self.cache is not None:
            return self.cache.source(nodes, model)
        vectors = [rows.get(node) for node in nodes]
        return as_source(vectors, base=model, strict=False, names=nodes)

    def _measure(
        self,
        at: Round[Node],
        model: Arrays,
        nodes: Sequence[Node],
        rows: Mapping[Node, Arrays],
        source: Source,
        report: Report,
    ) -> None:
        at.used = tuple(node for node in nodes if node not in at.rejected)
        weights = dict(zip(nodes, report.weights.tolist(), strict=True))
        at.weights = {node: weights[node] for node in at.used}
        if self.cache is None:
            used = [rows[node] for node in at.used]
            distances, at.spread_to_mean = measure(model, used, report.aggregate)
        else:
            indices = np.array([k for k, node in enumerate(nodes) if node not in at.rejected])
            aggregate = change_vector(model, report.aggregate)
            distances, at.spread_to_mean = measure_changes(source, indices, aggregate)
        at.distances = dict(zip(at.used, distances, strict=True))
        at.notes = report.notes

    def end(self, at: Round[Any], title: str) -> None:
        """End a round: write it to the log, and add it to the records of the nodes."""
        at.log(title, self.logger)
        if at.above_limit and not any(one.above_limit for one in self.rounds[:-1]):
            self.logger.warning("\t> %s", at.above_limit)
        self.trust.update(at.weights, at.rejected, at.absent)
        self._near_zero = log_near_zero(self.trust, self._near_zero, self.logger)

    def count(self, at: Round[Any]) -> None:
        """Count rounds in a row that leave the model unchanged; too many end the run.

        A round in which a cache gets to know another node is a step towards enough of them.
        """
        if at.kept and self._heard_more:
            return
        self.unchanged_in_a_row = self.unchanged_in_a_row + 1 if at.kept else 0
        if self.unchanged_in_a_row >= self.patience:
            raise Standstill(
                f"the model was left unchanged in {self.unchanged_in_a_row} rounds in a row, the "
                f"last time because {at.kept}"
            )

    def state_dict(self) -> dict[str, Any]:
        """What is needed to continue after the last round, besides the model."""
        assert self.rule is not None
        return {
            "rule": self.rule.state_dict(),
            "kept": self.unchanged_in_a_row,
            "trust": self.trust.state(),
            "root": self.root.state_dict(),
            **({} if self.cache is None else {"cache": self.cache.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the round of a state."""
        self._rule_state = state["rule"]
        self.unchanged_in_a_row = state["kept"]
        self.trust = Trust.of(state["trust"])
        self.root.load_state_dict(state.get("root", {}))
        if self.cache is not None:
            self.cache.load_state_dict(state.get("cache", {}))
        if self.rule is not None:
            self.rule.load_state_dict(self._rule_state)

    def _rule_for(self, n: int, f: int) -> Aggregator:
        """The rule for n sampled nodes, of which f may be Byzantine; it continues the old state."""
        rule = self.configured_rule
        if not isinstance(rule, Aggregator | str):
            rule = rule(n)
        rule = parse_rule(rule, f=f) if isinstance(rule, str) else rule
        if not isinstance(rule, Aggregator):
            raise ArgumentTypeError(f"{self.owner} needs a rule, got {type_name(rule)}")
        self.root.check(rule)
        for stage in rule.stages:
            if stage.bad not in (None, f):
                raise ByzantiumError(
                    f"{stage!r} says f={stage.bad} and {self.owner} says f={f}; a rule that is "
                    "written without f, such as 'Krum()', takes that one"
                )
        if rule == self.rule:
            return self.rule
        state = self._rule_state if self.rule is None else self.rule.state_dict()
        rule = copy.deepcopy(rule)
        if state:
            rule.load_state_dict(state)
        return rule


def remember(
    cache: ChangeCache, at: Round[Node], model: Arrays, rows: Mapping[Node, Arrays]
) -> bool:
    """Put the replies of a round into the cache; the round gets the nodes of earlier replies.

    Returns whether a node was heard that is not in the cache yet, or no longer.
    """
    before = set(cache.nodes(at.number))
    for node, row in rows.items():
        cache.put(node, at.number, row, model)
    for node, reason in at.rejected.items():
        cache.put_fault(node, at.number, f"{reason} (in round {at.number})")
    replied = {*rows, *at.rejected}
    at.cached = tuple(node for node in cache.nodes(at.number) if node not in replied)
    at.rejected |= cache.faults(at.cached)
    return not before.issuperset(replied)
