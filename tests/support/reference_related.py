"""Slow reference implementations of the systems of the paper's related work; see `reference`."""

from __future__ import annotations

import numpy as np
from reference import Array, Result, average, gap, mean, smallest_gap, swaps


def divide_and_conquer(X: Array, f: int, c: float = 1.0) -> Result:
    """Mean of the rows with the smallest projection on the top right singular vector (DnC)."""
    n = len(X)
    removed = int(np.ceil(c * f))
    if not removed:
        return mean(X)
    centered = X - average(list(X))
    _, values, directions = np.linalg.svd(centered)
    scores = [float(directions[0] @ row) ** 2 for row in centered]
    order = sorted(range(n), key=lambda i: (scores[i], i))
    kept, dropped = order[: n - removed], order[n - removed :]
    apart = gap(values[0], values[1]) if len(values) > 1 else np.inf
    return average([X[i] for i in kept]), min(apart, smallest_gap(scores, swaps(X, kept, dropped)))
