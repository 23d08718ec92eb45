"""The record of one round: which nodes were asked, used, rejected or absent, and the result."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median
from typing import Generic, TypeVar

import numpy as np

from byzantium.core import ByzantiumError
from byzantium.guarantees import describe_limit, largest_heterogeneity
from byzantium.learning.metrics import EARLY_ROUNDS
from byzantium.rules import Report, Trust
from byzantium.rules.trust import WorkerRecord
from byzantium.vectors.weights import Weights

# The name of a node: a number in Flower, a text in FLARE.
Node = TypeVar("Node", bound=Hashable)

# The most nodes that a line of the log names.
MAX_LISTED = 20
# A weight is near zero below this part of an equal share.
NEAR_ZERO = 0.1


class Standstill(ByzantiumError):  # noqa: N818
    """The model could not be changed for too many rounds in a row: `RobustStrategy.patience`."""


@dataclass
class Round(Generic[Node]):
    """The record of one round of training or evaluation: who took part, and how.

    - `number`: the number of the round.
    - `sampled`: the nodes that were asked.
    - `connected`: how many nodes were connected.
    - `f`: how many of the sampled nodes may be Byzantine.
    - `used`: the nodes whose replies were aggregated.
    - `cached`: with a cache, the nodes whose reply of an earlier round stands for them: those that
      were not asked in this round, or are absent.
    - `rejected`: the nodes whose replies were unusable, each with the reason; they count among the
      f Byzantine ones.
    - `absent`: the nodes that sent no reply, or an error, each with the reason; they do not count
      among the f Byzantine ones.
    - `ignored`: how many replies came from nodes that were not asked, or belong to an earlier
      round.
    - `weights`: the weight of each node. Their sum is 1, minus the weight of what is no node, such
      as the center of a clipping rule.
    - `distances`: how far the vector of each node was from the aggregate.
    - `kept`: why the model was left unchanged, in a sentence; empty if it was changed.
    - `cause`: the same in a word, for metrics.
    - `notes`: the notes of the rule.
    - `vouched`: the weight of each sampled node for which the operator vouches; empty if all count
      the same.
    - `heard`: the share of the weight that was heard; see `byzantium.Report.heard`.
    - `root_norm`: the norm of the root update, if the rule needs one.
    - `root_distance`: how far the aggregate was from the root update. Where it is much larger than
      the root's own error explains, more than f nodes are Byzantine, or the root data are biased.
    - `spread_to_mean`: the mean squared distance of the used replies to their mean, over the
      squared norm of the mean change of the model; None if nobody changed it. Byzantine replies
      count, so attackers can change this number.

    With a cache, f counts among all nodes, and nodes of `cached` may be used or rejected.

    >>> at = Round(number=1, sampled=(7, 8, 9), connected=5, f=1, absent={9: "no reply"})
    >>> at.replied, at.usable
    (2, 2)
    """

    number: int
    sampled: tuple[Node, ...]
    connected: int
    f: int
    used: tuple[Node, ...] = ()
    rejected: dict[Node, str] = field(default_factory=dict)
    absent: dict[Node, str] = field(default_factory=dict)
    ignored: int = 0
    weights: dict[Node, float] = field(default_factory=dict)
    distances: dict[Node, float] = field(default_factory=dict)
    kept: str = ""
    cause: str = ""
    notes: tuple[str, ...] = ()
    vouched: dict[Node, float] = field(default_factory=dict)
    heard: float | None = None
    root_norm: float | None = None
    root_distance: float | None = None
    spread_to_mean: float | None = None
    cached: tuple[Node, ...] = ()

    @property
    def replied(self) -> int:
        """How many nodes sent a reply that is not an error."""
        return len(self.sampled) - len(self.absent)

    @property
    def usable(self) -> int:
        """How many replies were not rejected, those of earlier rounds included."""
        return self.replied + len(self.cached) - len(self.rejected)

    @property
    def fresh(self) -> tuple[Node, ...]:
        """The nodes whose replies in this round were aggregated."""
        return tuple(node for node in self.used if node not in set(self.cached))

    def reject(self, nodes: Sequence[Node], reasons: Mapping[int, str]) -> None:
        """Reject some of the nodes, by their indices, unless they are rejected already."""
        for k, reason in reasons.items():
            self.rejected.setdefault(nodes[k], reason)

    def check(self) -> None:
        """Leave the model unchanged if more than f are rejected, or no honest majority is left.

        With a root update, which is trusted, one honest reply is enough.
        """
        left = self.f - len(self.rejected)
        if left < 0:
            self.leave_unchanged(
                "too-many-rejected", f"{len(self.rejected)} replies are unusable, more than f"
            )
        elif self.root_norm is not None and self.usable < left + 1:
            self.leave_unchanged(
                "no-honest", f"all of the {self.usable} usable replies may be Byzantine"
            )
        elif self.root_norm is None and self.usable < 2 * left + 1:
            self.leave_unchanged(
                "no-majority",
                f"{self.usable} usable replies, of which {left} may be Byzantine, leave no "
                f"majority of honest ones: 2 x {left} + 1 are needed",
            )
        elif self.root_norm is None and (held := self._held(left)) >= 1 / 2:
            self.leave_unchanged(
                "no-majority",
                f"{left} of {self.usable} usable replies may be Byzantine, and can hold "
                f"{100 * held:.3g} % of the weight, which leaves no majority of honest ones",
            )

    def _held(self, left: int) -> float:
        """The share of the weight of the usable replies that `left` Byzantine ones can hold."""
        if not self.vouched:
            return 0.0
        replied = [*(node for node in self.sampled if node not in self.absent), *self.cached]
        weights = Weights.of(np.array([self.vouched[node] for node in replied]))
        usable = np.array([node not in self.rejected for node in replied])
        return weights.of_rows(usable).of_largest(left) if usable.any() else 0.0

    def use(self, nodes: Sequence[Node], report: Report) -> None:
        """Use the replies of all nodes that are not rejected, with the weights of a report."""
        self.used = tuple(node for node in nodes if node not in self.rejected)
        weights = dict(zip(nodes, report.weights.tolist(), strict=True))
        self.weights = {node: weights[node] for node in self.used}
        self.notes = report.notes
        self.heard = report.heard if np.isfinite(report.heard) else None

    def leave_unchanged(self, cause: str, sentence: str) -> None:
        """Leave the model unchanged, and note why."""
        self.cause, self.kept = cause, sentence
        self.weights, self.distances, self.used = {}, {}, ()

    def metrics(self, *, nodes: bool = False) -> dict[str, int | float]:
        """The numbers of the round, as metrics: counts, and summaries over the nodes.

        - `nodes`: whether to add the numbers of each node, such as weight-NODE.
        """
        counted = ("sampled", "used", "rejected", "absent")
        numbers: dict[str, int | float] = {
            **{name: len(getattr(self, name)) for name in counted},
            "ignored": self.ignored,
            "f": self.f,
            "kept": int(bool(self.kept)),
        }
        if self.cached:
            numbers["cached"] = len(self.cached)
        if self.cause:
            numbers[f"kept-{self.cause}"] = 1
        for name, values in (("weight", self.weights), ("distance", self.distances)):
            known = [value for value in values.values() if math.isfinite(value)]
            for summary in (min, median, max) if known else ():
                numbers[f"{name}-{summary.__name__}"] = summary(known)
        if self.weights:
            numbers["near-zero"] = sum(
                weight < NEAR_ZERO * self._usual(node) for node, weight in self.weights.items()
            )
        if nodes:
            numbers |= {f"rejected-{node}": 1 for node in self.rejected}
            numbers |= {f"absent-{node}": 1 for node in self.absent}
            numbers |= {f"weight-{node}": weight for node, weight in self.weights.items()}
            numbers |= {f"distance-{node}": far for node, far in self.distances.items()}
        numbers |= {name.replace("_", "-"): x for name, x in self.measurements().items()}
        return numbers

    def _usual(self, node: Node) -> float:
        """The weight of a used node if all used nodes count as much as they should."""
        if not self.vouched:
            return 1 / len(self.weights)
        return self.vouched[node] / sum(self.vouched[other] for other in self.weights)

    def measurements(self) -> dict[str, float]:
        """What was measured in the round about all replies together, by name."""
        names = ("heard", "vouched_used", "root_norm", "root_distance", "spread_to_mean")
        numbers = {name: getattr(self, name) for name in (*names, "spread_to_mean_limit")}
        return {name: number for name, number in numbers.items() if number is not None}

    @property
    def vouched_used(self) -> float | None:
        """The share of the sampled nodes' weight that replied and was used."""
        if not self.vouched:
            return None
        return sum(self.vouched[node] for node in self.used) / sum(self.vouched.values())

    @property
    def spread_to_mean_limit(self) -> float | None:
        """What `spread_to_mean` must stay below for any rule to promise descent: (n - 2f) / f.

        n is how many replies were used, and f how many of them may be Byzantine. None if f is 0, or
        the rule has a root update: then there is no such limit.
        """
        left = self.f - len(self.rejected)
        if not self.used or left <= 0 or self.root_norm is not None:
            return None
        return largest_heterogeneity(None, len(self.used), left)

    @property
    def above_limit(self) -> str:
        """A sentence if the spread-to-mean ratio is not below its limit, otherwise empty.

        Only for the first rounds: later, the mean of honest changes vanishes on any data, and the
        ratio says nothing.
        """
        ratio, limit = self.spread_to_mean, self.spread_to_mean_limit
        if self.number > EARLY_ROUNDS or ratio is None or limit is None or ratio < limit:
            return ""
        left = self.f - len(self.rejected)
        return describe_limit(len(self.used), left, {"": [ratio]}, "these replies have")

    def log(self, title: str, logger: logging.Logger) -> None:
        """Write the round to the log."""
        counts = map(len, (self.sampled, self.used, self.rejected, self.absent))
        sentence = "%s: %d sampled, %d used, %d rejected, %d absent, f = %d"
        logger.info(sentence, title, *counts, self.f)
        if self.cached:
            logger.info("\t> of %d nodes the replies of earlier rounds count", len(self.cached))
        for status, nodes in (("rejected", self.rejected), ("absent", self.absent)):
            for node, reason in list(nodes.items())[:MAX_LISTED]:
                logger.warning("\t> node %s is %s: %s", node, status, reason)
            if len(nodes) > MAX_LISTED:
                logger.warning("\t> and %d more are %s", len(nodes) - MAX_LISTED, status)
        if self.ignored:
            logger.warning(
                "\t> %d replies ignored, of nodes that were not asked or to an earlier round",
                self.ignored,
            )
        if self.weights:
            lowest = sorted(self.weights, key=self.weights.__getitem__)[:MAX_LISTED]
            listed = ", ".join(
                f"{node}: {self.weights[node]:.3f} at {self.distances[node]:.3g}" for node in lowest
            )
            logger.info("\t> weight of each node, and its distance to the aggregate: %s", listed)
        if self.root_norm is not None and self.root_distance is not None:
            logger.log(
                logging.WARNING if self.root_distance > self.root_norm else logging.INFO,
                "\t> the root update has the norm %.3g, and the aggregate is at %.3g from it",
                *(self.root_norm, self.root_distance),
            )
        for note in self.notes:
            logger.info("\t> %s", note)
        if self.kept:
            logger.warning("\t> the model is left unchanged: %s", self.kept)


def log_fraction(at: Round[Node], fraction: float, logger: logging.Logger) -> None:
    """Log what f is if it was given as a fraction, and how likely more than f are Byzantine."""
    n = len(at.sampled)
    logger.info(
        "configure_train: f = %d is %g of the %d sampled nodes; if %g of the %d connected "
        "ones are Byzantine, more than f of a sample are with probability %.3g",
        *(at.f, fraction, n, fraction, at.connected),
        probability_of_more(fraction, n, at.connected),
    )


def log_near_zero(trust: Trust, named: Collection[Node], logger: logging.Logger) -> list[Node]:
    """Name in the log the nodes whose weight stays near zero, round after round.

    These are unheard, and have on average less than a tenth of an equal share of the weight.

    - `named`: the nodes that were named before; they are not named again.

    Returns all nodes whose weight stays near zero.
    """
    workers: dict[Node, WorkerRecord] = {
        node: of for node, of in trust.unheard().items() if of.weight < NEAR_ZERO
    }
    new = [node for node in workers if node not in named]
    for node in new[:MAX_LISTED]:
        logger.warning(
            "\t> the weight of node %s stays near zero: %.2f of an equal share on average over %d "
            "rounds. It may attack, or hold data that nobody else has.",
            *(node, workers[node].weight, workers[node].rounds),
        )
    if len(new) > MAX_LISTED:
        logger.warning("\t> and the weights of %d more nodes", len(new) - MAX_LISTED)
    return list(workers)


def byzantine_count(f: int | float, n: int) -> int:
    """How many of n nodes may be Byzantine, for a number or a fraction, which is rounded up."""
    # The fraction as it is written: 0.1 of 30 are 3, although the float 0.1 is a little larger.
    return f if isinstance(f, int) else math.ceil(Fraction(str(f)) * n)


def probability_of_more(f: float, sampled: int, connected: int) -> float:
    """The probability that more than f of the sampled nodes are Byzantine, if a fraction f is.

    >>> round(probability_of_more(0.2, sampled=10, connected=100), 3)
    0.319
    """
    byzantine, most = byzantine_count(f, connected), byzantine_count(f, sampled)
    honest = connected - byzantine
    samples = sum(
        math.comb(byzantine, k) * math.comb(honest, sampled - k)
        for k in range(most + 1, min(byzantine, sampled) + 1)
        if sampled - k <= honest
    )
    return samples / math.comb(connected, sampled)
