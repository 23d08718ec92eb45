"""What happened in one round: who was asked, who was used, rejected or absent, and what it gave."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from flwr.app import Message, MetricRecord

from byzantium.core import ByzantiumError
from byzantium.engines.flower.replies import UNREADABLE, shown

# Flower's own, which is shown where Flower's lines are.
logger = logging.getLogger("flwr")

# The most nodes that a line of the log names.
LONGEST_LIST = 20


class Standstill(ByzantiumError):  # noqa: N818
    """The model could not be changed for too many rounds in a row: `RobustStrategy.patience`."""


class TooFewNodes(ByzantiumError):  # noqa: N818
    """Fewer nodes are connected than a round needs, and no more came in time."""


@dataclass
class Round:
    """What happened in one round of training, or of evaluation: who took part, and how.

    - `number`: the number of the round.
    - `sampled`: the nodes that were asked.
    - `connected`: how many nodes were connected.
    - `f`: how many of the sampled nodes may be bad.
    - `used`: the nodes whose replies were aggregated.
    - `rejected`: the nodes whose replies were unusable, each with the reason; they count among the
      f bad ones.
    - `absent`: the nodes that sent no reply, or an error, each with the reason; they do not count
      among the f bad ones.
    - `ignored`: how many replies came from nodes that were not asked, or belong to an earlier
      round.
    - `weights`: how much each node counted. The sum over nodes is 1, less what lies on no node,
      such as the centre of a clipping rule.
    - `distances`: how far the vector of each node was from the aggregate.
    - `kept`: why the model was left unchanged, in a sentence; empty if it was changed.
    - `cause`: the same in a word, for metrics.
    - `notes`: what the rule has to say.

    >>> at = Round(number=1, sampled=(7, 8, 9), connected=5, f=1, absent={9: "no reply"})
    >>> at.replied, at.usable
    (2, 2)
    """

    number: int
    sampled: tuple[int, ...]
    connected: int
    f: int
    used: tuple[int, ...] = ()
    rejected: dict[int, str] = field(default_factory=dict)
    absent: dict[int, str] = field(default_factory=dict)
    ignored: int = 0
    weights: dict[int, float] = field(default_factory=dict)
    distances: dict[int, float] = field(default_factory=dict)
    kept: str = ""
    cause: str = ""
    notes: tuple[str, ...] = ()

    def sort(self, replies: Iterable[Message]) -> dict[int, Message]:
        """Sort replies: one for each node; a node without a usable one is rejected or absent."""
        found: dict[int, Message] = {}
        errors: dict[int, str] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in self.sampled or reply.metadata.group_id != str(self.number):
                # An error in the name of a node that is gone comes from the SuperLink.
                self.ignored += not reply.has_error()
            elif reply.has_error() and reply.error.code == UNREADABLE:
                self.rejected[node] = shown(reply.error.reason)
            elif reply.has_error():
                errors[node] = f"error: {shown(reply.error.reason)}"
            elif node in found:
                self.rejected[node] = "sent two replies"
            else:
                found[node] = reply
        for node in self.sampled:
            if node not in found and node not in self.rejected:
                self.absent[node] = errors.get(node, "no reply")
        return {node: reply for node, reply in found.items() if node not in self.rejected}

    @property
    def replied(self) -> int:
        """How many nodes sent a reply that is not an error."""
        return len(self.sampled) - len(self.absent)

    @property
    def usable(self) -> int:
        """How many replies were not rejected."""
        return self.replied - len(self.rejected)

    def check(self) -> None:
        """Leave the model as it is if more than f are rejected, or no honest majority is left."""
        left = self.f - len(self.rejected)
        if left < 0:
            self.keep(
                "too-many-rejected", f"{len(self.rejected)} replies are unusable, more than f"
            )
        elif self.usable < 2 * left + 1:
            self.keep(
                "no-majority",
                f"{self.usable} usable replies, of which {left} may be bad, leave no majority of "
                f"honest ones: 2 x {left} + 1 are needed",
            )

    def keep(self, cause: str, sentence: str) -> None:
        """Leave the model as it is, and note why."""
        self.cause, self.kept = cause, sentence
        self.weights, self.distances, self.used = {}, {}, ()

    def metrics(self) -> MetricRecord:
        """All numbers of the round, as Flower's metrics."""
        found: dict[str, int | float] = {
            "sampled": len(self.sampled),
            "used": len(self.used),
            "rejected": len(self.rejected),
            "absent": len(self.absent),
            "ignored": self.ignored,
            "f": self.f,
            "kept": int(bool(self.kept)),
        }
        if self.cause:
            found[f"kept-{self.cause}"] = 1
        found |= {f"rejected-{node}": 1 for node in self.rejected}
        found |= {f"absent-{node}": 1 for node in self.absent}
        found |= {f"weight-{node}": weight for node, weight in self.weights.items()}
        found |= {f"distance-{node}": far for node, far in self.distances.items()}
        return MetricRecord(dict(found))

    def tell(self, what: str) -> None:
        """Write the round to the log."""
        logger.info(
            "%s: %d sampled, %d used, %d rejected, %d absent, f = %d",
            what,
            len(self.sampled),
            len(self.used),
            len(self.rejected),
            len(self.absent),
            self.f,
        )
        for title, nodes in (("rejected", self.rejected), ("absent", self.absent)):
            for node, why in list(nodes.items())[:LONGEST_LIST]:
                logger.warning("\t> node %d is %s: %s", node, title, why)
            if len(nodes) > LONGEST_LIST:
                logger.warning("\t> and %d more are %s", len(nodes) - LONGEST_LIST, title)
        if self.ignored:
            logger.warning(
                "\t> %d replies ignored, of nodes that were not asked or to an earlier round",
                self.ignored,
            )
        if self.weights:
            lowest = sorted(self.weights, key=self.weights.__getitem__)[:LONGEST_LIST]
            listed = ", ".join(
                f"{node}: {self.weights[node]:.3f} at {self.distances[node]:.3g}" for node in lowest
            )
            logger.info("\t> weight of each node, and its distance to the aggregate: %s", listed)
        for note in self.notes:
            logger.info("\t> %s", note)
        if self.kept:
            logger.warning("\t> the model is left unchanged: %s", self.kept)


def bad_among(f: int | float, n: int) -> int:
    """How many of n nodes may be bad, for a number or a fraction, which is rounded up."""
    # As it is written: 0.1 of 30 are 3, and not the next number above.
    return f if isinstance(f, int) else math.ceil(Fraction(str(f)) * n)


def chance_of_more(f: float, sampled: int, connected: int) -> float:
    """The probability that a sample holds more bad nodes than f allows, if a fraction f is bad.

    >>> round(chance_of_more(0.2, sampled=10, connected=100), 3)
    0.319
    """
    bad, most = bad_among(f, connected), bad_among(f, sampled)
    ways = sum(
        math.comb(bad, k) * math.comb(connected - bad, sampled - k)
        for k in range(most + 1, min(bad, sampled) + 1)
        if sampled - k <= connected - bad
    )
    return ways / math.comb(connected, sampled)
