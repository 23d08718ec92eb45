"""Slow reference implementations, written from the papers' definitions as plain loops.

A rule returns (aggregate, margin). The margin is the relative gap between the decision taken and
the nearest alternative which would have changed the result; math.inf where nothing is decided.
A swap of two equal rows changes nothing, so it does not count as an alternative.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Result = tuple[Array, float]
Pair = tuple[int, int]


def squared_distance(x: Array, y: Array) -> float:
    """sum_k (x_k - y_k)^2."""
    return float(np.sum((x - y) ** 2))


def distance(x: Array, y: Array) -> float:
    """sqrt(sum_k (x_k - y_k)^2)."""
    return math.sqrt(squared_distance(x, y))


def norm(x: Array) -> float:
    """sqrt(sum_k x_k^2)."""
    return distance(x, np.zeros_like(x))


def average(rows: Sequence[Array]) -> Array:
    """(1/m) sum of the m rows."""
    total = np.zeros_like(rows[0])
    for row in rows:
        total = total + row
    return total / len(rows)


def gap(a: float, b: float) -> float:
    """|a - b| / max(|a|, |b|, tiny)."""
    return abs(a - b) / max(abs(a), abs(b), sys.float_info.min)


def smallest_gap(keys: Sequence[float], pairs: Iterable[Pair]) -> float:
    """Min of gap(keys_i, keys_j) over the pairs, inf if there are none."""
    return min((gap(keys[i], keys[j]) for i, j in pairs), default=math.inf)


def swaps(X: Array, kept: Sequence[int], dropped: Sequence[int]) -> list[Pair]:
    """Pairs (i kept, j dropped) with x_i != x_j: exchanging them would change what is kept."""
    return [(i, j) for i in kept for j in dropped if not np.array_equal(X[i], X[j])]


def mean(X: Array) -> Result:
    """(1/n) sum_i x_i."""
    return average(list(X)), math.inf


# Krum and Bulyan


def distance_power(x: Array, y: Array, power: float) -> float:
    """||x - y||^power, from the square so that power 2 is exact on integers."""
    return math.pow(squared_distance(x, y), power / 2)


def krum_score(X: Array, i: int, rows: Sequence[int], neighbours: int, power: float) -> float:
    """Sum of ||x_i - x_j||^power over the nearest `neighbours` of the rows j != i."""
    powers = [distance_power(X[i], X[j], power) for j in rows if j != i]
    return sum(sorted(powers)[:neighbours])


def krum_select(X: Array, rows: Sequence[int], m: int, neighbours: int, power: float) -> list[int]:
    """The m of `rows` with the smallest score, lowest index first on ties."""
    return sorted(rows, key=lambda i: (krum_score(X, i, rows, neighbours, power), i))[:m]


def krum_margin(
    X: Array, rows: Sequence[int], kept: Sequence[int], neighbours: int, power: float
) -> float:
    """Gap between kept and dropped scores, but for ties by definition (see below)."""
    scores = [
        krum_score(X, i, rows, neighbours, power) if i in rows else 0.0 for i in range(len(X))
    ]
    dropped = [i for i in rows if i not in kept]
    pairs = swaps(X, kept, dropped)
    if neighbours == 1:
        # Two rows which are each other's nearest have the same one distance as their score,
        # whatever the data: the index decides between them and not the arithmetic.
        pairs = [
            (i, j)
            for i, j in pairs
            if not scores[i] == scores[j] == distance_power(X[i], X[j], power)
        ]
    return smallest_gap(scores, pairs)


def krum(X: Array, f: int, m: int = 1, power: float = 2) -> Result:
    """Mean of the m rows with the smallest sum of distance^power to their n-f-2 nearest others."""
    rows = range(len(X))
    neighbours = len(X) - f - 2
    if neighbours < 1:
        raise ValueError("Krum needs n - f - 2 >= 1")
    kept = krum_select(X, rows, m, neighbours, power)
    return average([X[i] for i in kept]), krum_margin(X, rows, kept, neighbours, power)


def bulyan(X: Array, f: int) -> Result:
    """n-2f picks by Krum on what remains, then meamed(picks, 2f); the mean for f = 0."""
    if f == 0:
        return mean(X)
    remaining = list(range(len(X)))
    picks: list[int] = []
    margin = math.inf
    while len(picks) < len(X) - 2 * f:
        neighbours = max(1, len(remaining) - f - 2)
        pick = krum_select(X, remaining, 1, neighbours, 2)
        margin = min(margin, krum_margin(X, remaining, pick, neighbours, 2))
        picks = picks + pick
        remaining = [i for i in remaining if i not in pick]
    aggregate, meamed_margin = meamed(X[picks], 2 * f)
    return aggregate, min(margin, meamed_margin)


# Coordinate by coordinate


def median_of(values: Sequence[float]) -> float:
    """The middle value, or the mean of the middle two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def median(X: Array) -> Result:
    """The median of each coordinate."""
    return np.array([median_of(column.tolist()) for column in X.T]), math.inf


def trimmed_mean(X: Array, f: int) -> Result:
    """Per coordinate, the mean without the f smallest and the f largest values."""
    n = len(X)
    kept = [sorted(column.tolist())[f : n - f] for column in X.T]
    return np.array([sum(values) / (n - 2 * f) for values in kept]), math.inf


def meamed_of(values: Sequence[float], f: int) -> tuple[float, float]:
    """(Mean of the n-f values nearest the median, ties to the lower value; margin)."""
    centre = median_of(values)
    gaps = [abs(value - centre) for value in values]
    order = sorted(range(len(values)), key=lambda i: (gaps[i], values[i]))
    kept, dropped = order[: len(values) - f], order[len(values) - f :]
    pairs = [(i, j) for i in kept for j in dropped if values[i] != values[j]]
    return sum(values[i] for i in kept) / len(kept), smallest_gap(gaps, pairs)


def meamed(X: Array, f: int) -> Result:
    """Per coordinate, the mean of the n-f values nearest the median; the smallest margin."""
    results = [meamed_of(column.tolist(), f) for column in X.T]
    return np.array([value for value, _ in results]), min(margin for _, margin in results)


# Geometric median


def pull(X: Array, z: Array) -> Array:
    """Sum of (x_i - z)/||x_i - z|| over the rows x_i != z: minus the gradient of the objective."""
    total = np.zeros_like(z)
    for x in X:
        length = distance(x, z)
        if length > 0:
            total = total + (x - z) / length
    return total


def hessian(X: Array, z: Array) -> Array:
    """Sum of (I - u_i u_i^T)/||x_i - z|| with u_i the unit vector from z to x_i, over x_i != z."""
    total = np.zeros((len(z), len(z)))
    for x in X:
        length = distance(x, z)
        if length > 0:
            unit = (x - z) / length
            total = total + (np.eye(len(z)) - np.outer(unit, unit)) / length
    return total


def sum_of_distances(X: Array, z: Array) -> float:
    """sum_i ||x_i - z||."""
    return sum(distance(x, z) for x in X)


def multiplicity(X: Array, z: Array) -> int:
    """How many rows are equal to z."""
    return sum(distance(x, z) == 0 for x in X)


def leave_row(X: Array, row: Array) -> Array:
    """A point row + t pull/||pull|| where the objective still falls, so lower than at the row."""
    direction = pull(X, row) / norm(pull(X, row))
    t = max(distance(x, row) for x in X)
    while float(pull(X, row + t * direction) @ direction) <= 0:
        t = t / 2
    return row + t * direction


def falling_part(X: Array, z: Array, step: Array) -> Array:
    """The part t*step, t <= 1, along which the (convex) objective falls, by bisection on t."""
    if float(pull(X, z + step) @ step) >= 0:
        return step
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if float(pull(X, z + middle * step) @ step) >= 0:
            low = middle
        else:
            high = middle
    return low * step


def newton(X: Array, z: Array) -> Array:
    """Minimiser of sum_i ||x_i - z|| by Newton steps which never raise it; z below every row."""
    scale = float(np.max(np.abs(X)))
    for _ in range(200):
        force = pull(X, z)
        if norm(force) <= 1e-14 * len(X):
            return z
        step = np.asarray(np.linalg.solve(hessian(X, z), force), dtype=np.float64)
        part = falling_part(X, z, step)
        z = z + part
        # Converged, or (rows all but collinear) no decrease left which rounding lets through.
        if norm(step) <= 1e-13 * scale or norm(part) <= 1e-15 * scale:
            return z
    raise ArithmeticError("the geometric median has not converged")


def geometric_median(X: Array) -> Result:
    """argmin_z sum_i ||x_i - z||; margin: how near any row is to (not) being a minimiser.

    A row is a minimiser iff ||pull of the other rows|| <= its multiplicity. If two distinct rows
    are (collinear rows, even n), so is the segment between them: its midpoint, with margin 0.
    """
    minimisers: list[Array] = []
    margin = math.inf
    for row in np.unique(X, axis=0):
        force, weight = norm(pull(X, row)), multiplicity(X, row)
        margin = min(margin, gap(force, weight))
        if force <= weight + 1e-12:
            minimisers.append(row)
    if len(minimisers) == 1:
        return minimisers[0], margin
    if minimisers:
        return average(minimisers), 0.0
    # Below the lowest row there are no rows, hence no kinks: the objective is smooth there.
    lowest = min(X, key=lambda row: sum_of_distances(X, row))
    return newton(X, leave_row(X, lowest)), margin


def weiszfeld(X: Array, steps: int, smoothing: float, start: Array) -> Result:
    """`steps` times z <- sum_i w_i x_i / sum_i w_i, w_i = 1/max(smoothing, ||z - x_i||)."""
    z = start
    for _ in range(steps):
        weights = [1 / max(smoothing, distance(z, x)) for x in X]
        total = np.zeros_like(z)
        for weight, x in zip(weights, X, strict=True):
            total = total + weight * x
        z = total / sum(weights)
    return z, math.inf


def centered_clipping(X: Array, radius: float, steps: int, centre: Array) -> Result:
    """`steps` times v <- v + (1/n) sum_i (x_i - v) min(1, radius/||x_i - v||)."""
    v = centre
    for _ in range(steps):
        total = np.zeros_like(v)
        for x in X:
            length = distance(x, v)
            factor = 1.0 if length <= radius else radius / length
            total = total + (x - v) * factor
        v = v + total / len(X)
    return v, math.inf


def agnostic_clipping(X: Array, f: int, b: float = 1.25) -> Result:
    """The rest point of v <- v + (1/n) sum_i clip(x_i - v), by those steps and then Newton's.

    The radius is b (n-f) s / (2 sqrt(f (n-2f))), where s^2 is the smallest mean of the n-f smallest
    squared distances of a row. It is continuous in the rows: nothing is decided.
    """
    n, h = len(X), len(X) - f
    if f == 0:
        return mean(X)
    s2 = min(sum(sorted(squared_distance(x, y) for y in X)[:h]) / h for x in X)
    radius = b * h / (2 * math.sqrt(f * (n - 2 * f))) * math.sqrt(s2)
    v = min(X, key=lambda x: sum(sorted(distance(x, y) for y in X)[:h]))
    if s2 == 0:
        return v, math.inf
    for _ in range(100):
        v, _ = centered_clipping(X, radius, 30, v)
        step, _ = centered_clipping(X, radius, 1, v)
        if distance(step, v) <= 1e-14 * radius:
            return v, math.inf
        # The derivative of the sum of clipped differences: -I within the radius, beyond it
        # -(radius/d)(I - u u^T), u the unit vector.
        slope = np.zeros((len(v), len(v)))
        for x in X:
            length = distance(x, v)
            unit = (x - v) / length if length > radius else np.zeros_like(v)
            slope = slope + min(1.0, radius / max(length, radius)) * (
                np.eye(len(v)) - np.outer(unit, unit)
            )
        newton_step = np.asarray(np.linalg.lstsq(slope, n * (step - v), rcond=None)[0], np.float64)
        if norm(newton_step) < radius:
            v = v + newton_step
    raise ArithmeticError("centred clipping has not come to rest")


# Minimum diameter


def widest_pairs(squares: Array, subset: Sequence[int]) -> set[Pair]:
    """The pairs of the subset at its diameter."""
    pairs = list(itertools.combinations(subset, 2))
    widest = max((squares[p] for p in pairs), default=0.0)
    return {p for p in pairs if squares[p] == widest}


def diameter_and_sum(squares: Array, subset: Sequence[int]) -> tuple[float, float]:
    """(Largest, sum) of the squared distances within the subset."""
    within = [float(squares[p]) for p in itertools.combinations(subset, 2)]
    return max(within, default=0.0), sum(within)


def minimum_diameter(X: Array, f: int) -> Result:
    """Mean of the n-f rows of smallest diameter, then sum of squared distances, then indices."""
    n = len(X)
    squares = np.array([[squared_distance(x, y) for y in X] for x in X])
    subsets = list(itertools.combinations(range(n), n - f))
    best = min(subsets, key=lambda subset: (*diameter_and_sum(squares, subset), subset))
    best_diameter, best_sum = diameter_and_sum(squares, best)
    best_rows = sorted(X[list(best)].tolist())
    best_pairs = widest_pairs(squares, best)
    margin = math.inf
    for subset in subsets:
        if sorted(X[list(subset)].tolist()) == best_rows:
            continue
        diameter, total = diameter_and_sum(squares, subset)
        # With a widest pair in common the diameters are one number, and the sum decides.
        if widest_pairs(squares, subset) & best_pairs:
            margin = min(margin, gap(best_sum, total))
        else:
            margin = min(margin, gap(best_diameter, diameter))
    return average([X[i] for i in best]), margin


# Spectral filter


def weighted_mean(X: Array, c: Sequence[float]) -> Array:
    """sum_i c_i x_i / sum_i c_i."""
    total = np.zeros(X.shape[1])
    for weight, x in zip(c, X, strict=True):
        total = total + weight * x
    return total / sum(c)


def weighted_covariance(X: Array, c: Sequence[float], mu: Array) -> Array:
    """sum_i c_i (x_i - mu)(x_i - mu)^T / sum_i c_i."""
    total = np.zeros((X.shape[1], X.shape[1]))
    for weight, x in zip(c, X, strict=True):
        total = total + weight * np.outer(x - mu, x - mu)
    return total / sum(c)


def spectral_filter(X: Array, f: int) -> Result:
    """CAF: weights c_i <- c_i (1 - t_i/t_max), t_i = <v, x_i - mu>^2, while sum c > n-2f.

    v is the top eigenvector of the weighted covariance; the mu of least top eigenvalue is returned.
    Margin: of the least top eigenvalue, and in each iteration of the top eigenvalue, of the row
    which attains t_max (only that one gets weight 0) and of the decision to stop.
    """
    n, d = X.shape
    if f == 0:
        return mean(X)
    rounding = 1e-12 * float(np.max(np.abs(X)))
    c = [1.0] * n
    records: list[tuple[float, Array]] = []
    margin = math.inf
    while sum(c) > n - 2 * f:
        mu = weighted_mean(X, c)
        values, vectors = np.linalg.eigh(weighted_covariance(X, c, mu))
        records.append((float(values[-1]), mu))
        t = [float(vectors[:, -1] @ (x - mu)) ** 2 for x in X]
        active = [i for i in range(n) if c[i] > 0]
        top = max(active, key=lambda i: t[i])
        if t[top] == 0:
            break
        c = [c[i] * (1 - t[i] / t[top]) if c[i] > 0 else 0.0 for i in range(n)]
        # Once the rows left coincide up to rounding, mu changes no more.
        if values[-1] > rounding**2:
            margin = min(margin, smallest_gap(t, swaps(X, [top], active)), gap(sum(c), n - 2 * f))
            margin = min(margin, gap(values[-1], values[-2]) if d > 1 else math.inf)
    least, best = min(records, key=lambda record: record[0])
    others = [value for value, mu in records if distance(mu, best) > rounding]
    return best, min([margin] + [gap(least, value) for value in others])


# Mixings


def bucketing(X: Array, s: int, permutation: Sequence[int]) -> Array:
    """Means of consecutive groups of s permuted rows, the last one possibly smaller."""
    permuted = [X[i] for i in permutation]
    return np.array([average(permuted[k : k + s]) for k in range(0, len(X), s)])


def resampling(X: Array, s: int, permutation: Sequence[int]) -> Array:
    """Bucket b = 0..n-1 is the mean of the rows k % n, k in permutation[b*s : (b+1)*s]."""
    n = len(X)
    return np.array([average([X[k % n] for k in permutation[b * s : b * s + s]]) for b in range(n)])


def nearest_neighbor_mixing(X: Array, f: int) -> Result:
    """(Each row becomes the mean of its n-f nearest rows, itself included; smallest margin)."""
    n = len(X)
    mixed: list[Array] = []
    margin = math.inf
    for x in X:
        squares = [squared_distance(x, y) for y in X]
        order = sorted(range(n), key=lambda j: (squares[j], j))
        kept, dropped = order[: n - f], order[n - f :]
        mixed.append(average([X[j] for j in kept]))
        margin = min(margin, smallest_gap(squares, swaps(X, kept, dropped)))
    return np.array(mixed), margin


def adaptive_clipping(X: Array, f: int) -> Array:
    """ARC: the k = floor(2f(n-f)/n) largest norms are clipped to the (k+1)-th largest."""
    n = len(X)
    k = (2 * f * (n - f)) // n
    threshold = sorted((norm(x) for x in X), reverse=True)[k]
    return np.array([x * (threshold / norm(x)) if norm(x) > threshold else x for x in X])


def clipping(X: Array, radius: float) -> Array:
    """Every norm above the radius is clipped to it."""
    return np.array([x * (radius / norm(x)) if norm(x) > radius else x for x in X])


# Rules with a root gradient


def root_matching(X: Array, root: Array, f: int, ridge: float = 0.1) -> Array:
    """X'w for the w with least |X'w - g0|^2 + ridge s^2 |w - 1/n|^2.

    The weights sum to one, 0 <= w_i <= 1/(n-f), and s^2 is the median squared norm or |g0|^2.

    Weight goes from the row where the slope is largest to the one where it is smallest, as much as
    reduces the value most, until no such exchange reduces it.
    """
    n = len(X)
    norms = sorted(float(np.sum(x**2)) for x in X)
    s2 = (norms[(n - 1) // 2] + norms[n // 2]) / 2 if 2 * f < n else float(np.sum(root**2))
    usual = max(s2, float(np.sum(root**2)), sorted(squared_distance(x, root) for x in X)[n - f - 1])
    near = [i for i in range(n) if squared_distance(X[i], root) <= 1e8 * usual]
    m, cap = ridge * s2, 1 / (n - f)
    w = {i: 1 / len(near) for i in near}
    out = sum((w[i] * X[i] for i in near), start=np.zeros_like(root))
    for _ in range(200_000):
        slopes = {i: float((X[i] - root) @ (out - root)) + m * (w[i] - 1 / n) for i in near}
        below = [i for i in near if w[i] < cap]
        if not below:
            break
        give = max((i for i in near if w[i] > 0), key=slopes.__getitem__)
        take = min(below, key=slopes.__getitem__)
        gain = slopes[give] - slopes[take]
        if gain <= 1e-15 * (s2 + float(np.sum(root**2))):
            break
        curvature = squared_distance(X[give], X[take]) + 2 * m
        moved = min(gain / curvature, w[give], cap - w[take])
        w[give], w[take] = w[give] - moved, w[take] + moved
        out = sum((w[i] * X[i] for i in near), start=np.zeros_like(root))
    return out


def fltrust(X: Array, root: Array) -> Array:
    """sum_i c_i (|g0| / |x_i|) x_i / sum_i c_i with c_i = max(0, cos(x_i, g0)); 0 if no c_i > 0."""
    total, trust = np.zeros_like(root), 0.0
    for x in X:
        length = norm(x) * norm(root)
        c = max(0.0, float(x @ root) / length) if length else 0.0
        if c:
            total, trust = total + c * norm(root) / norm(x) * x, trust + c
    return total / trust if trust else total


def rank_clipping(X: Array, f: int) -> Array:
    """x_i min(1, C / |x_i|) with C the (f + 2)-th smallest norm."""
    return clipping(X, sorted(norm(x) for x in X)[f + 1])


def hierarchy(X: Array, sizes: Sequence[int], inner: Callable[[Array], Array]) -> Array:
    """Row g is what the inner rule makes of the next sizes[g] rows."""
    results, first = list[Array](), 0
    for size in sizes:
        results.append(inner(X[first : first + size]))
        first += size
    return np.array(results)


def gossip(
    X: Array, weights: Array | None, kept: Callable[[list[float], list[float]], list[float]]
) -> Array:
    """y_i = x_i + sum_j w_ij s_ij (x_j - x_i), with s_i = kept(distances, weights of neighbors)."""
    n = len(X)
    W = np.full((n, n), 1 / n) if weights is None else weights
    mixed = []
    for i in range(n):
        neighbors = [j for j in range(n) if j != i and W[i, j] > 0]
        shares = kept([distance(X[i], X[j]) for j in neighbors], [W[i, j] for j in neighbors])
        y = X[i].copy()
        for j, share in zip(neighbors, shares, strict=True):
            y = y + W[i, j] * share * (X[j] - X[i])
        mixed.append(y)
    return np.array(mixed)


def plain_gossip(X: Array, weights: Array | None = None) -> Array:
    """Every neighbor counts in full."""
    return gossip(X, weights, lambda d, w: [1.0] * len(d))


def heaviest(w: list[float], f: int) -> float:
    """The weight of the f heaviest neighbors."""
    return sum(sorted(w, reverse=True)[:f])


def near_masses(d: list[float], w: list[float], left_out: float) -> list[float]:
    """The weights of the nearest neighbors, all but some weight: one may count in part."""
    left, masses = sum(w) - left_out, [0.0] * len(d)
    for j in sorted(range(len(d)), key=lambda j: (d[j], j)):
        if left > 1e-12:
            masses[j] = min(w[j], left)
            left -= masses[j]
    return masses


def clipped_gossip(X: Array, f: int, radius: object = None, weights: Array | None = None) -> Array:
    """Differences clipped to tau: a number, the second largest, or from the nearest neighbors."""

    def kept(d: list[float], w: list[float]) -> list[float]:
        if radius == "second":
            tau = sorted(d)[-2] if len(d) > 1 else max(d, default=0.0)
        elif radius is not None:
            tau = float(radius)  # type: ignore[arg-type]
        elif not (b := heaviest(w, f)):
            tau = math.inf
        else:
            masses = near_masses(d, w, b)
            tau = math.sqrt(sum(m * x**2 for m, x in zip(masses, d, strict=True)) / b)
        return [1.0 if x <= tau else tau / x for x in d]

    return gossip(X, weights, kept)


def clipped_sum_gossip(X: Array, f: int, weights: Array | None = None) -> Array:
    """Differences clipped to the largest distance after which 2b of the weight follow."""

    def kept(d: list[float], w: list[float]) -> list[float]:
        b, order = heaviest(w, f), sorted(range(len(d)), key=lambda j: (d[j], j))
        radii = [
            d[j]
            for place, j in enumerate(order)
            if sum(w[k] for k in order[place + 1 :]) >= 2 * b - 1e-12
        ]
        tau = max(radii, default=0.0) if b else math.inf
        return [1.0 if x <= tau else tau / x for x in d]

    return gossip(X, weights, kept)


def trimmed_gossip(X: Array, f: int, weights: Array | None = None) -> Array:
    """Only the nearest neighbors count, all but b of the weight."""

    def kept(d: list[float], w: list[float]) -> list[float]:
        masses = near_masses(d, w, heaviest(w, f))
        return [m / x for m, x in zip(masses, w, strict=True)]

    return gossip(X, weights, kept)
