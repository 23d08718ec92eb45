"""The sizes of workers' data as weights, for which the server of a simulation vouches."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from byzantium.rules import Aggregator
from byzantium.rules.admission import check_sizes
from byzantium.vectors.weights import with_weight


def site_sizes(parts: Sequence[Tensor], attackers: int) -> list[float]:
    """How many samples each worker has; an attacker as many as the mean honest worker.

    >>> import torch
    >>> site_sizes([torch.arange(3), torch.arange(9)], attackers=1)
    [3.0, 9.0, 6.0]
    """
    sizes = [float(len(part)) for part in parts]
    return sizes + [sum(sizes) / len(sizes)] * attackers


def check_weights(rule: Aggregator, weights: Sequence[float], participants: int | None) -> None:
    """Raise an error unless a rule takes these weights in every round.

    Where some workers are drawn for a round, the worst draw is that of the heaviest f and of the
    lightest others.

    - `participants`: how many workers are drawn for a round; None if all take part.
    """
    count, ordered = participants or len(weights), sorted(weights, reverse=True)
    f = min(max((stage.bad or 0 for stage in rule.stages), default=0), count)
    lightest = ordered[len(ordered) - (count - f) :] if count > f else []
    drawn = ordered[:f] + lightest
    check_sizes(rule.stages, count, with_weight(drawn, count)[1])
