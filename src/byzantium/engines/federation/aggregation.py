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
    log_fraction,
    log_near_zero,
)
from byzantium.engines.federation.space import ArraySpace, space_of
from byzantium.engines.federation.vectors import Arrays, change_vector, rejection_reasons
from byzantium.engines.files.cache import ChangeCache, measure_changes
from byzantium.engines.weights import SiteWeights
from byzantium.guarantees import announce
from byzantium.rules import Aggregator, Report, Trust, parse_rule
from byzantium.rules.stage import stages_of_workers
from byzantium.vectors import Source

RuleOrText = Aggregator | str
WeightsOfNodes = Mapping[Any, float] | Callable[[Any], float]
Fraction = Annotated[float, Ge(0), Lt(0.5)]
# With a root update, which is trusted, more than half of the nodes may be Byzantine.
RootFraction = Annotated[float, Ge(0), Lt(1)]


class Aggregation:
    """The rule of a federation, its f, its root update, and a record of each node.

    A round begins with `begin`, is aggregated by `explain`, and ends with `end`.

    Parameters that are not listed are those of `RobustStrategy`.

    - `owner`: the name of the class that users see, for errors.
    - `logger`: where the rounds are logged.
    - `added`: whether the aggregated change is added to the model, rather than an optimizer's step.
    - `cache`: the last changes of all nodes: those of nodes that were not sampled are aggregated,
      too, and f counts among all nodes.
    """

    def __init__(
        self,
        owner: str,
        rule: RuleOrText | Callable[[int], RuleOrText],
        f: int | float,
        root: RootFunction | None,
        weights: WeightsOfNodes | None,
        patience: int,
        logger: logging.Logger,
        adapters: bool | Mapping[str, Any] = False,
        added: bool = True,
        cache: ChangeCache | None = None,
    ) -> None:
        fraction = Fraction if root is None else RootFraction
        allowed = fraction if isinstance(f, float | np.floating) else Count
        self.owner, self.logger, self.cache = owner, logger, cache
        self.f: int | float = validated(owner, "f", f, allowed)
        self.root = Root(root, logger)
        self.adapters, self.added, self.space = adapters, added, ArraySpace()
        self.patience: int = validated(owner, "patience", patience, Positive)
        self.configured_rule = rule
        self.weights = SiteWeights(weights, owner)
        self._rule_state: Mapping[str, Any] = {}
        self.rule: Aggregator | None = None
        if isinstance(rule, Aggregator | str):
            count = self.f if isinstance(self.f, int) else 1
            fixed = parse_rule(rule, f=count) if isinstance(rule, str) else rule
            self.root.check(fixed, used=True)
            self.weights.check(fixed)
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
        self.rule, vouched = self._rule_for(n, f), self.weights.of(nodes)
        self.space = space_of(model, self.adapters)
        self.space.check(self.rule, not self.added)
        if self.cache is not None and type(self.space) is not ArraySpace:
            raise ByzantiumError(
                f"{self.owner} cannot keep products of the factors of adapters in a cache; omit "
                "cache, or adapters=False to aggregate factors as any arrays"
            )
        announce(self.rule, n, f, weights=vouched if self.cache is None else None)
        at = Round(number, tuple(nodes), connected, f)
        if isinstance(self.f, float) and self.cache is None:
            log_fraction(at, self.f, self.logger)
        at.vouched = dict(zip(nodes, vouched or [], strict=False))
        self.root.compute(at, model, self.rule, self.space)
        self.rounds.append(at)

    def explain(self, at: Round[Node], model: Arrays, rows: Mapping[Node, Arrays]) -> Report | None:
        """The report of the rule about the rows; None if the model must not change.

        - `at`: the round, which gets what is found out.
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
        if self.cache is not None and at.vouched:
            nodes = list(dict.fromkeys([*at.sampled, *at.cached]))
            at.vouched = dict(zip(nodes, self.weights.of(nodes) or [], strict=True))
        nodes = [*(node for node in at.sampled if node not in at.absent), *at.cached]
        source: Source
        if self.cache is None:  # the rule rejects unreadable rows, None: so its f is reduced
            source = self.space.source([rows.get(node) for node in nodes], model, nodes)
        else:
            source = self.cache.source(nodes, model)
        try:
            root = self.space.vector(self.root.update)
            weights = [at.vouched[node] for node in nodes] if at.vouched else None
            report = self.rule.explain(source, root=root, weights=weights)
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
                report = self.space.finished(report, model)
                at.use(nodes, report)
                if self.cache is None:
                    used = [rows[node] for node in at.used]
                    far, at.spread_to_mean = self.space.measure(model, used, report.aggregate)
                else:
                    usable = [k for k, node in enumerate(nodes) if node not in at.rejected]
                    change = change_vector(model, report.aggregate)
                    far, at.spread_to_mean = measure_changes(source, np.array(usable), change)
                at.distances = dict(zip(at.used, far, strict=True))
                self.root.measure(at, model, report.aggregate, self.space)
                return report
        self.rule.load_state_dict(before)
        return None

    def end(self, at: Round[Any], title: str) -> None:
        """End a round: write it to the log, and add it to the records of the nodes."""
        at.log(title, self.logger)
        if at.above_limit and not any(one.above_limit for one in self.rounds[:-1]):
            self.logger.warning("\t> %s", at.above_limit)
        self.trust.update(at.weights, at.rejected, at.absent, vouched=at.vouched or None)
        self._near_zero = log_near_zero(self.trust, self._near_zero, self.logger)

    def count(self, at: Round[Any]) -> None:
        """Count rounds in a row that leave the model unchanged; too many end the run.

        A round in which a cache gets to know another node is a step toward enough of them.
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
        self.weights.check(rule)
        for stage in stages_of_workers(rule.stages):
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
