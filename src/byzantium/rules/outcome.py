"""Results of aggregations: what rules return to calls and reports."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from byzantium.vectors.distances import Array
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.points import SourcePoints


class Attempt(NamedTuple):
    """The result of `Aggregator.try_before_admission`; by default nothing was tried.

    - `aggregate`, `weights`: those of `BaseRule.finish`. They count only if no row is rejected.
    - `norm_bound`: an upper bound on the norm of every vector.
    """

    aggregate: Tensor | None = None
    weights: Array | None = None
    norm_bound: float = math.inf


class Outcome(NamedTuple):
    """The result of one aggregation, from which calls and reports are made.

    - `aggregate`: (d,), the whole vector.
    - `weights`: those of the mixed points, if they are known.
    - `points`: the usable vectors.
    - `geometry`: that of the mixed points.
    - `reasons`: for each rejected row, the reason.
    """

    aggregate: Tensor
    weights: Array | None
    points: SourcePoints
    geometry: Geometry
    reasons: dict[int, str]
