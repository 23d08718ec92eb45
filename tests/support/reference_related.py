"""Slow reference implementations of the systems of the paper's related work; see `reference`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from reference import (
    Array,
    Result,
    average,
    distance,
    gap,
    geometric_median,
    mean,
    norm,
    smallest_gap,
    swaps,
)


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


def sign_vote(X: Array, size: float = 1.0) -> Result:
    """Size * sign(number of positive entries - number of negative ones), column by column."""
    out = [(column > 0).sum() - (column < 0).sum() for column in X.T]
    return size * np.sign(np.array(out, dtype=float)), math.inf


def sign_sum(X: Array, penalty: float) -> Result:
    """Penalty * (number of positive entries - number of negative ones), column by column."""
    out = [(column > 0).sum() - (column < 0).sum() for column in X.T]
    return penalty * np.array(out, dtype=float), math.inf


def cosine(x: Array, y: Array) -> float:
    """<x, y> / (||x|| ||y||), 0 where one of them is zero."""
    lengths = norm(x) * norm(y)
    return float(x @ y) / lengths if lengths else 0.0


def cross_similarity(cosines: Array, one: Iterable[int], other: Iterable[int]) -> float:
    """The largest cosine between two groups."""
    return max(float(cosines[i, j]) for i in one for j in other)


def best_division(cosines: Array, group: Sequence[int]) -> tuple[set[int], set[int], float]:
    """The two parts with the smallest largest cosine across, by all 2^(k-1) divisions."""
    first, *others = group
    best: tuple[set[int], set[int], float] | None = None
    for k in range(len(others)):
        for chosen in itertools.combinations(others, k):
            one = {first, *chosen}
            other = set(group) - one
            across = cross_similarity(cosines, one, other)
            if best is None or across < best[2]:
                best = one, other, across
    assert best is not None
    return best


def linked_division(
    cosines: Array, group: Sequence[int]
) -> tuple[set[int], set[int], float, float]:
    """The same by single linkage: join the most similar parts until two are left. And a margin."""
    parts = [{i} for i in group]
    last = math.inf
    while len(parts) > 2:
        pairs = itertools.combinations(range(len(parts)), 2)
        a, b = max(
            pairs, key=lambda pair: cross_similarity(cosines, parts[pair[0]], parts[pair[1]])
        )
        last = cross_similarity(cosines, parts[a], parts[b])
        parts = [part for k, part in enumerate(parts) if k not in (a, b)] + [parts[a] | parts[b]]
    across = cross_similarity(cosines, *parts)
    return parts[0], parts[1], across, last - across


def largest_cluster(X: Array, similarity: float = 0.0, brute: bool = False) -> Result:
    """Mean of the larger part, divided again while its parts have no cosine above the bound."""
    cosines = np.array([[cosine(x, y) for y in X] for x in X])
    group, margin = list(range(len(X))), math.inf
    while len(group) > 1:
        if brute:
            one, other, across = best_division(cosines, group)
        else:
            one, other, across, apart = linked_division(cosines, group)
            margin = min(margin, abs(across - similarity), apart)
        if across > similarity or len(one) == len(other):
            break
        group = sorted(one if len(one) > len(other) else other)
    return average([X[i] for i in group]), margin


def majority_reach(sums: Array, good: Sequence[int], i: int) -> float:
    """The smallest radius around sum i with more than half of all workers within it."""
    return sorted(distance(sums[i], sums[j]) for j in good)[len(sums) // 2]


def safeguard(
    calls: Sequence[Array],
    short: int,
    long: int,
    factor: float = 1.5,
    radius: float | None = None,
    forgive: bool = False,
) -> tuple[list[Array], list[int]]:
    """The results of one call after the other, and the good workers after the last."""
    n = len(calls[0])
    good = list(range(n))
    sums = {short: np.zeros_like(calls[0]), long: np.zeros_like(calls[0])}
    results = []
    for t, X in enumerate(calls):
        results.append(average([X[i] for i in good]))
        stay = set(good)
        for length in sums:
            if t % length == 0:
                sums[length] = np.zeros_like(X)
            sums[length] = sums[length] + X
            if 2 * len(good) <= n:
                continue
            if radius is None:
                center = min(good, key=lambda i: majority_reach(sums[length], good, i))
                threshold = factor * majority_reach(sums[length], good, center)
            else:
                threshold = 2 * radius * math.sqrt(t % length + 1)
                center = max(
                    good,
                    key=lambda i: sum(
                        distance(sums[length][i], sums[length][j]) <= threshold / 2 for j in good
                    ),
                )
            if threshold > 0:
                stay -= {
                    i for i in good if distance(sums[length][i], sums[length][center]) > threshold
                }
        good = sorted(stay)
        if forgive and (t + 1) % long == 0:
            good = list(range(n))
    return results, good


def byzantine_sgd(
    calls: Sequence[Array], v: float, t_a: float, t_b: float
) -> tuple[list[Array], list[int]]:
    """The results of one call after the other, and the good workers after the last."""
    n, d = calls[0].shape
    good, way = list(range(n)), np.zeros(d)
    A, B = [0.0] * n, [np.zeros(d)] * n
    results = []
    for X in calls:
        A = [A[i] + float(X[i] @ way) for i in range(n)]
        B = [B[i] + X[i] for i in range(n)]
        b = max(range(n), key=lambda i: sum(distance(B[i], B[j]) <= t_b for j in range(n)))
        g = max(range(n), key=lambda i: sum(distance(X[i], X[j]) <= 2 * v for j in range(n)))
        good = [
            i
            for i in good
            if abs(A[i] - float(np.median(A))) <= t_a
            and distance(B[i], B[b]) <= t_b
            and distance(X[i], X[g]) <= 4 * v
        ]
        results.append(average([X[i] for i in good]) if good else np.zeros(d))
        way = way + results[-1]
    return results, good


def block_geometric_median(calls: Sequence[Array], share: float) -> tuple[list[Array], Array]:
    """The results of one call after the other, and the memory after the last."""
    d = calls[0].shape[1]
    count = max(1, int(share * d))
    memory, results = np.zeros(d), []
    for X in calls:
        Y = np.array([x + memory for x in X])
        order = sorted(range(d), key=lambda k: (-float(np.sum(Y[:, k] ** 2)), k))
        block = sorted(order[:count])
        out = np.zeros(d)
        out[block] = geometric_median(Y[:, block])[0]
        memory = average(list(Y))
        memory[block] = 0
        results.append(out)
    return results, memory


def zeno(
    X: Array, loss: Callable[[Array], float], f: int, trial: float = 0.01, rho: float = 0.005
) -> Array:
    """Mean of the n - f rows that lower the loss of root data most, less what their length costs.

    - `loss`: the loss after a step, which is subtracted from the model.
    """
    scores = []
    for x in X:
        lowered = loss(np.zeros_like(x)) - loss(trial * x)
        scores.append(lowered - trial * rho * sum(float(number) ** 2 for number in x))
    best = sorted(range(len(X)), key=lambda i: (-scores[i], i))[: len(X) - f]
    return average([X[i] for i in best])


def majority_vote(X: Array, r: int) -> Array:
    """Of each group i = g (mod n / r) the vector that most of its members have; the first wins."""
    groups = len(X) // r
    out = []
    for g in range(groups):
        members = [X[g + k * groups] for k in range(r)]
        copies = [sum(x.tobytes() == y.tobytes() for y in members) for x in members]
        out.append(members[copies.index(max(copies))])
    return np.array(out)
