"""The nodes of a round, their replies, and the numbers of its rounds, as Flower has them."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from byzantium.core import ByzantiumError
from byzantium.engines.federation.replies import printable
from byzantium.engines.federation.rounds import Round
from byzantium.engines.flower.replies import UNREADABLE
from byzantium.engines.weights import SiteWeights

# Flower's own logger, so that these lines appear among Flower's.
logger = logging.getLogger("flwr")


class TooFewNodes(ByzantiumError):  # noqa: N818
    """Fewer nodes are connected than a round needs, and no more came in time."""


def sort_replies(at: Round[int], replies: Iterable[Message]) -> dict[int, Message]:
    """Sort replies: one for each node; a node without a usable one is rejected or absent."""
    usable: dict[int, Message] = {}
    errors: dict[int, str] = {}
    for reply in replies:
        node = reply.metadata.src_node_id
        if node not in at.sampled or reply.metadata.group_id != str(at.number):
            # The SuperLink sends errors in the name of nodes that have left.
            at.ignored += not reply.has_error()
        elif reply.has_error() and reply.error.code == UNREADABLE:
            at.rejected[node] = printable(reply.error.reason)
        elif reply.has_error():
            errors[node] = f"error: {printable(reply.error.reason)}"
        elif node in usable:
            at.rejected[node] = "sent two replies"
        else:
            usable[node] = reply
    for node in at.sampled:
        if node not in usable and node not in at.rejected:
            at.absent[node] = errors.get(node, "no reply")
    return {node: reply for node, reply in usable.items() if node not in at.rejected}


def renumber(result: Result, before: int) -> None:
    """Count the rounds of a result, in place, from the first server on; `before` were before it."""
    for metrics in (
        result.train_metrics_clientapp,
        result.evaluate_metrics_clientapp,
        result.evaluate_metrics_serverapp,
    ):
        shifted = {number + before: value for number, value in metrics.items()}
        metrics.clear()
        metrics.update(shifted)


def sample_nodes(
    grid: Grid,
    fraction: float,
    least: int,
    available: int,
    timeout: float,
    weights: SiteWeights | None = None,
) -> tuple[list[int], int]:
    """The nodes of a round, and how many are connected.

    - `least`: how many to sample at least.
    - `available`: how many must be connected.
    - `weights`: the weights that the operator vouches for: nodes without weight are left out.
    """
    weights = SiteWeights(None) if weights is None else weights
    needed = max(available, least)
    deadline = time.monotonic() + timeout
    while len(nodes := weights.with_weight(list(grid.get_node_ids()))) < needed:
        if time.monotonic() > deadline:
            raise TooFewNodes(
                f"{len(nodes)} nodes are connected after {timeout:g} s, and a round needs "
                f"{needed}; node_timeout says how long to wait"
            )
        logger.info("%d nodes are connected; waiting until there are %d", len(nodes), needed)
        time.sleep(min(1.0, timeout))
    return random.sample(nodes, max(int(len(nodes) * fraction), least)), len(nodes)
