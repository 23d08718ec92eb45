"""The rules as a researcher writes them from the papers in ten minutes: the bench's reference.

Every function takes a list of gradient vectors. The code is readable, and not slow on purpose.
"""

from itertools import combinations

import torch
from torch import Tensor

Vectors = list[Tensor]


def squared_distances(vectors: Vectors) -> Tensor:
    n = len(vectors)
    distances = torch.zeros(n, n)
    for i in range(n):
        for j in range(i):
            distances[i, j] = distances[j, i] = (vectors[i] - vectors[j]).pow(2).sum()
    return distances


def mean(vectors: Vectors) -> Tensor:
    return torch.stack(vectors).mean(dim=0)


def krum_scores(distances: Tensor, f: int) -> Tensor:
    """The sum of the squared distances of each vector to its n - f - 2 nearest others."""
    nearest = distances.sort(dim=1).values[:, 1:]  # the first is the vector itself
    return nearest[:, : max(1, len(distances) - f - 2)].sum(dim=1)


def krum(vectors: Vectors, f: int) -> Tensor:
    scores = krum_scores(squared_distances(vectors), f)
    return vectors[int(scores.argmin())]


def geometric_median(vectors: Vectors, steps: int = 8) -> Tensor:
    x = torch.stack(vectors)
    z = x.mean(dim=0)
    for _ in range(steps):
        weights = 1 / (x - z).norm(dim=1).clamp(min=1e-8)
        z = (weights[:, None] * x).sum(dim=0) / weights.sum()
    return z


def centered_clipping(vectors: Vectors, radius: float, center: Tensor | None = None) -> Tensor:
    """One step from the previous center."""
    x = torch.stack(vectors)
    if center is None:
        center = torch.zeros_like(x[0])
    differences = x - center
    scale = (radius / differences.norm(dim=1)).clamp(max=1)
    step: Tensor = (scale[:, None] * differences).mean(dim=0)
    return center + step


def median(vectors: Vectors) -> Tensor:
    """torch.median returns the lower of the two middle values, so the upper one comes from -x."""
    x = torch.stack(vectors)
    lower = x.median(dim=0).values
    if len(vectors) % 2:
        return lower
    return (lower - (-x).median(dim=0).values) / 2


def trimmed_mean(vectors: Vectors, f: int) -> Tensor:
    ordered = torch.sort(torch.stack(vectors), dim=0).values
    return ordered[f : len(vectors) - f].mean(dim=0)


def mean_around_median(vectors: Vectors, keep: int) -> Tensor:
    """The mean of the `keep` values of each coordinate that lie closest to its median."""
    x = torch.stack(vectors)
    nearest = (x - median(vectors)).abs().argsort(dim=0)[:keep]
    return x.gather(0, nearest).mean(dim=0)


def meamed(vectors: Vectors, f: int) -> Tensor:
    return mean_around_median(vectors, len(vectors) - f)


def bulyan(vectors: Vectors, f: int) -> Tensor:
    """Krum picks n - 2f vectors one by one; then the mean around their median."""
    distances = squared_distances(vectors)
    left = list(range(len(vectors)))
    chosen: list[int] = []
    while len(chosen) < len(vectors) - 2 * f:
        scores = krum_scores(distances[left][:, left], f)
        chosen.append(left.pop(int(scores.argmin())))
    return mean_around_median([vectors[i] for i in chosen], len(chosen) - 2 * f)


def minimum_diameter(vectors: Vectors, f: int) -> Tensor:
    """The mean of the n - f vectors whose largest distance is smallest; tries every subset."""
    distances = squared_distances(vectors)
    best: tuple[int, ...] = ()
    smallest = float("inf")
    for subset in combinations(range(len(vectors)), len(vectors) - f):
        index = torch.tensor(subset)
        diameter = float(distances[index][:, index].max())
        if diameter < smallest:
            best, smallest = subset, diameter
    return mean([vectors[i] for i in best])


def spectral_filter(vectors: Vectors, f: int, power_steps: int = 8) -> Tensor:
    """Reduce weights along the direction of largest variance; of all means, the steadiest one."""
    x = torch.stack(vectors)
    weights = torch.ones(len(x))
    best, smallest = x.mean(dim=0), float("inf")
    while weights.sum() > len(x) - 2 * f:
        center = (weights[:, None] * x).sum(dim=0) / weights.sum()
        differences = x - center
        direction = torch.randn_like(center)
        for _ in range(power_steps):
            direction = differences.T @ (weights * (differences @ direction))
            direction = direction / direction.norm()
        spread = (differences @ direction).pow(2)
        variance = float((weights * spread).sum() / weights.sum())
        if variance < smallest:
            best, smallest = center, variance
        weights = weights * (1 - spread / spread.max())
    return best


def bucketing(vectors: Vectors, s: int) -> Vectors:
    order = torch.randperm(len(vectors)).tolist()
    groups = [order[k : k + s] for k in range(0, len(order), s)]
    return [mean([vectors[i] for i in group]) for group in groups]


def nearest_neighbor_mixing(vectors: Vectors, f: int) -> Vectors:
    nearest = squared_distances(vectors).argsort(dim=1)[:, : len(vectors) - f]
    return [mean([vectors[i] for i in row]) for row in nearest.tolist()]


def resampling(vectors: Vectors, s: int) -> Vectors:
    """The means of n random groups of s, from s copies of every vector."""
    n = len(vectors)
    order = (torch.randperm(n * s) % n).tolist()
    return [mean([vectors[i] for i in order[k * s : (k + 1) * s]]) for k in range(n)]


def adaptive_clipping(vectors: Vectors, f: int) -> Vectors:
    """The floor(2 f (n - f) / n) longest vectors are scaled to the length of the next one."""
    n = len(vectors)
    norms = torch.stack([v.norm() for v in vectors])
    clipped = 2 * f * (n - f) // n
    bound = norms.sort().values[n - clipped - 1]
    return [v * (bound / norm).clamp(max=1) for v, norm in zip(vectors, norms, strict=True)]
