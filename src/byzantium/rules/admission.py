"""Admission: vectors are checked against a pipeline, and unusable ones are rejected."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from byzantium.core import ByzantiumError, TooManyRejected, type_name
from byzantium.rules.report import rejections
from byzantium.rules.shares import check_held, check_takes_weights
from byzantium.rules.stage import (
    Rejected,
    Stage,
    after_rejection,
    min_honest,
    most_bad,
    pipeline_repr,
)
from byzantium.vectors.points import SourcePoints, row_norms
from byzantium.vectors.source import Source, largest_norm
from byzantium.vectors.weights import Weights

logger = logging.getLogger("byzantium")


class Admission(NamedTuple):
    """The result of `admit`.

    - `points`: the usable vectors.
    - `stages`: the stages of the pipeline, with f smaller by the number of rejected rows.
    - `reasons`: for each rejected row, the reason.
    - `vouched`: the weights of the usable vectors that the operator vouches for, if there are any.
    """

    points: SourcePoints
    stages: tuple[Stage, ...]
    reasons: dict[int, str]
    vouched: Weights | None = None


def admit(
    stages: Sequence[Stage],
    source: Source,
    center: Tensor | None = None,
    norm_bound: float = math.inf,
    root: Any = None,
    vouched: Weights | None = None,
) -> Admission:
    """Check vectors against a pipeline, and reject unusable vectors.

    - `center`: the center that the rule holds, (d,), if it holds one.
    - `norm_bound`: an upper bound on the norm of every vector, if one is known already.
    - `root`: the root gradient, in the form of one of the vectors, for stages that need it.
    - `vouched`: the weights of the vectors that the operator vouches for, if there are any.

    Sizes are checked before any row is rejected, so that no f workers can make a pipeline fail by
    being rejected.

    >>> from byzantium import Krum
    >>> from byzantium.vectors import as_source
    >>> updates = torch.tensor([[1.0], [2.0], [3.0], [4.0], [torch.inf]])
    >>> admit([Krum(f=1)], as_source(updates))[1:3]
    ((Krum(f=0),), {4: 'not finite, or of norm above 1e+18'})
    """
    pipeline, n, readable = pipeline_repr(stages), source.n, source.readable
    stages = check_sizes(stages, n, vouched)
    largest = largest_norm(source.dtype)
    expanded = [one for stage in stages for one in stage.expansion]
    anchors: dict[str, Tensor | None] = {}
    if any(stage.needs_origin for stage in expanded):
        anchors["origin"] = None
    if center is not None:
        source.check_center(pipeline, center)
        anchors["center"] = source.team.local_part(center)
    if any(stage.needs_root and stage.root_form == "loss" for stage in expanded):
        if not callable(root):
            raise ByzantiumError(
                f"{pipeline} needs the loss of root data, root=...: a function that takes a step, "
                f"which is subtracted from the model, and returns a number; got {type_name(root)}"
            )
        source.root_loss = root
    elif any(stage.needs_root for stage in expanded):
        if root is None:
            raise ByzantiumError(
                f"{pipeline} needs the root gradient, root=...: the gradient of data that the "
                "server holds and trusts, in the form of one of the vectors"
            )
        anchors["root"] = source.team.local_part(source.trusted("the root", root))

    def honest() -> int:
        return min_honest(stages, n)

    points = SourcePoints(source, readable, None, anchors, honest)
    usable = norm_bound <= largest  # the bound may be NaN
    unmeasured = readable.size and source.norms is None
    if not usable and unmeasured and _measures(expanded):
        usable = source.team.presume_usable(points.norm_bound() <= largest)
    reasons = dict(source.unreadable)
    if not usable:
        norms = row_norms(source, readable)
        admitted, reason = norms <= largest, f"not finite, or of norm above {largest:g}"
        reasons |= dict.fromkeys(readable[~admitted].tolist(), reason)
        points = SourcePoints(source, readable[admitted], norms[admitted], anchors, honest)
    if reasons:
        bound = most_bad(stages)
        allowed = n // 2 if bound is None else bound
        listed = rejections(reasons, source)
        usable_rows = np.isin(np.arange(n), list(reasons), invert=True)
        heavy = bound is None and vouched is not None and vouched.shares[usable_rows].sum() < 1 / 2
        if len(reasons) > allowed or heavy:
            most = f"its f = {allowed}" if bound is not None else f"half of them, {allowed}"
            most = "half of the weight" if heavy else most
            raise TooManyRejected(
                f"{pipeline} can do without {most} of {n} vectors, but {len(reasons)} are "
                f"unusable: {listed}",
                reasons,
            )
        logger.warning("rejected %d of %d vectors: %s", len(reasons), n, listed)
        fewer = after_rejection(stages, Rejected(n, np.array(sorted(reasons)), len(reasons)))
        expanded = [one for stage in fewer for one in stage.expansion]
        vouched = None if vouched is None else vouched.of_rows(usable_rows)
    return Admission(points, tuple(expanded), reasons, vouched)


def _measures(stages: Sequence[Stage]) -> bool:
    """Whether stages use the distances of all vectors that go into the first."""
    for stage in stages:
        if stage.measures:
            return True
        if stage.separate:
            return False
    return False


def check_sizes(
    stages: Sequence[Stage], n: int, vouched: Weights | None = None
) -> tuple[Stage, ...]:
    """The stages for n vectors, with all parameters known; raises if n is too small for a stage.

    With weights of the operator, it also raises if f vectors hold too much of the weight.

    >>> from byzantium import Bucketing, Krum
    >>> check_sizes((Bucketing(s="auto", f=2) >> Krum(f=2)).stages, 25)
    (Bucketing(s=4, balanced=True, f=2), Krum(f=2))
    """
    if vouched is not None:
        check_takes_weights(stages)
    left, heaviest, checked = n, vouched, list[Stage]()
    for k, stage in enumerate(stages):
        following = stages[k + 1 :]
        if heaviest is None:
            resolved = stage.resolved(left, following)
        else:
            resolved = stage.resolved_for(heaviest, following)
        try:
            resolved.check(left)
            if heaviest is not None:
                check_held(resolved, heaviest)
        except ByzantiumError as error:
            history = f" ({pipeline_repr(stages[:k])} left {left} of {n})" if left != n else ""
            raise ByzantiumError(f"{error}{history}") from None
        heaviest = None if heaviest is None else resolved.heaviest(heaviest)
        left = resolved.rows(left)
        checked.append(resolved)
    return tuple(checked)
