"""Weights of the operator: which stages take them, how much is too much, and how to truncate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Le

from byzantium._kernels.selection import EQUAL_SHARES
from byzantium.core import ByzantiumError, Count, validated
from byzantium.rules.stage import Stage
from byzantium.vectors.weights import Array, Vouched, Weights, checked_weights

Share = Annotated[float, Gt(0), Le(1)]

# How far below its share `truncated_weights` stays, so that no rounding reaches it.
MARGIN = 1e-9


def check_takes_weights(stages: Sequence[Stage]) -> None:
    """Raise an error unless all stages take weights of the operator.

    >>> from byzantium import Krum
    >>> check_takes_weights([Krum(f=1)])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    byzantium.ByzantiumError: Krum(f=1) takes no weights; AgnosticClipping, Bucketing, ... do
    """
    from byzantium.rules.notation import members  # imports all rules

    for stage in stages:
        if not stage.takes_weights:
            names = sorted(name for name, kind in members().items() if kind.takes_weights)
            raise ByzantiumError(
                f"{stage!r} takes no weights; {', '.join(names[:-1])} and {names[-1]} do"
            )


def check_places(stages: Sequence[Stage], call: Vouched) -> None:
    """Raise an error if places matter, and vectors of weight 0 are missing among the others."""
    if call.source.n < call.n:
        check_takes_weights([stage for stage in stages if stage.placed])


def check_held(stage: Stage, weights: Weights) -> None:
    """Raise an error unless f vectors hold less of the weight than the stage's share.

    - `stage`: the stage, with all parameters known.
    - `weights`: the weights of the vectors that reach it, before any is rejected.
    """
    held = weights.of_largest(stage.bad or 0)
    if stage.bad and not held < stage.max_share - EQUAL_SHARES:
        raise ByzantiumError(too_heavy(stage, stage.bad, weights, stage.max_share))


def too_heavy(stage: Stage, f: int, weights: Weights, share: float) -> str:
    """The sentence that says how much of the weight f vectors hold, and how much is tolerated.

    >>> from byzantium import Median
    >>> print(too_heavy(Median(), 2, Weights.of(np.array([8.0, 4, 1, 1, 1, 1, 1, 1, 1])), 1 / 2))
    the 2 largest of 9 sites hold 63.2 % of the weight; Median tolerates less than 50 %: \
truncated_weights(weights, 2, 0.5) limits the largest
    """
    n, held = len(weights.shares), 100 * weights.of_largest(f)
    number, bound = f"{held:.3g}", f"{100 * share:.3g}"
    if number == bound and held != 100 * share:
        number = f"{held:.9g}"
    largest = f"the {f} largest of {n} sites hold" if f > 1 else f"the largest of {n} sites holds"
    tolerated = f"less than {bound} %" if share else "none"
    remedy = ""
    if f < share * n:
        remedy = f": truncated_weights(weights, {f}, {share:.3g}) limits the largest"
    name = type(stage).__name__
    return f"{largest} {number} % of the weight; {name} tolerates {tolerated}{remedy}"


def truncated_weights(weights: Any, f: int, share: float) -> Array:
    r"""Weights whose largest are cut off, such that the f largest hold less than a share of all.

    .. math:: \min(U, w_i), \quad U = \sup \{u : \sum_{i \le f} \min(u, w_{(i)})
        < \mathrm{share} \sum_i \min(u, w_i)\}

    where :math:`w_{(1)} \ge w_{(2)} \ge \dots` are the weights in order. They stay below the share
    by 1e-9, so that no rounding reaches it; weights that are small enough stay as they are. The
    price: sites above U count less than their sizes say, and the mean that a rule looks for is that
    of the truncated weights.

    - `weights`: n numbers, not negative and not all zero.
    - `f`: how many sites may be Byzantine.
    - `share`: what they must stay below, above 0 and at most 1: 0.5 for most rules.

    Raises an error if f/n is not below the share: then no truncation helps. Sites of weight 0 are
    not counted in n.

    Portnoy, Tirosh, Hendler: Towards Federated Learning With Byzantine-Robust Client Weighting,
    2022.

    >>> truncated_weights([190, 2000, 3000, 3500, 17834], f=1, share=0.5).round(3).tolist()
    [190.0, 2000.0, 3000.0, 3500.0, 8690.0]
    """
    f = validated("truncated_weights", "f", f, Count)
    share = validated("truncated_weights", "share", share, Share)
    size = np.size(weights) if not hasattr(weights, "numel") else int(weights.numel())
    scaled = checked_weights(weights, size)
    whole = np.asarray(weights, dtype=np.float64)
    ordered = np.sort(scaled[scaled > 0])[::-1]
    n = len(ordered)
    if not f / n < share:
        raise ByzantiumError(
            f"truncated_weights needs f / n < share, got {f} / {n} and {share:g}: equal weights "
            "already give the f largest so much"
        )
    target = max(share - MARGIN, (share + f / n) / 2)

    def held(bound: float) -> float:
        cut = np.minimum(ordered, bound)
        return float(cut[:f].sum() / cut.sum())

    if held(1.0) < target:
        return whole.copy()
    # What is held grows with the bound, and between two weights k weights are cut: those that are
    # at least the larger of the two.
    edges = np.unique(ordered)
    above = int(np.searchsorted([held(edge) for edge in edges], target))  # the first too large
    k = int((ordered >= edges[above]).sum())
    rest, top = ordered[k:].sum(), ordered[k:f].sum()
    # target = (min(k, f) U + top) / (k U + rest)
    bound = (target * rest - top) / (min(k, f) - target * k)
    return np.minimum(whole, bound * whole.max())
