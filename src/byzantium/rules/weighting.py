"""Rules that compute a weight for each worker from the n x n inner products of the vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Gt, Le
from torch import Tensor

from byzantium.core import ByzantiumError, Count, Measure, OrInfinity, Positive
from byzantium.rules.geometric_median import SumOfDistances
from byzantium.rules.kinds import Weighting, central_mean, central_weighted_mean
from byzantium.rules.outcome import Attempt
from byzantium.rules.subset import smallest_diameter
from byzantium.vectors.distances import EQUAL, Array, chunks, nth_smallest
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.source import Source
from byzantium.vectors.weights import Weights, smallest_masses


@dataclass(frozen=True, repr=False)
class Mean(Weighting):
    r"""The mean, :math:`\frac{1}{n} \sum_i x_i`. One bad vector can move it anywhere.

    >>> Mean()(torch.tensor([[1.0], [2.0], [300.0]]))
    tensor([101.])
    """

    delta_max: ClassVar[float] = 0
    takes_weights: ClassVar[bool] = True
    measures = False

    def weights(self, geometry: Geometry) -> Array:
        return geometry.shares

    def try_before_admission(self, source: Source, explain: bool) -> Attempt:
        return central_mean(source, source.n, explain)

    def try_with_weights(self, source: Source, vouched: Weights, explain: bool) -> Attempt:
        return central_weighted_mean(source, vouched, 1.0, explain)


# The largest power of numbers from 1 to 4 (see `Krum.weights`) whose sums stay within float64.
LARGEST_POWER = 1000


@dataclass(frozen=True, repr=False)
class Krum(Weighting):
    r"""The mean of the m vectors that are closest to their n - f - 2 nearest neighbors.

    .. math:: \mathrm{score}(i) = \sum_{i \to j} \|x_i - x_j\|^{\mathrm{power}}

    where :math:`i \to j` runs over the n - f - 2 other vectors nearest to i; the m vectors with the
    smallest score are averaged.

    - `f`: how many vectors may be bad, at least 0; there must be at least 2f + 3 vectors.
    - `m`: how many vectors are averaged, from 1 to n - f. With m > 1 it is called Multi-Krum.
    - `power`: the exponent, above 0 and at most 1000. 2 is the definition; the released runs of the
      bucketing paper used 4.

    Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries, NeurIPS 2017.

    >>> Krum(f=1)(torch.tensor([[0.9], [1.0], [1.1], [1.3], [9.0]]))
    tensor([1.])
    """

    f: Count
    m: Positive = 1
    power: Annotated[float, Gt(0), Le(LARGEST_POWER)] = 2

    def min_vectors(self) -> tuple[int, str]:
        return 2 * self.f + 3, "2f + 3"

    def check(self, n: int) -> None:
        super().check(n)
        if self.m > n - self.f:
            raise ByzantiumError(f"{self!r} needs m <= n - f = {n - self.f}, got m={self.m}")

    def weights(self, geometry: Geometry) -> Array:
        neighbors = geometry.n - self.f - 2
        distances = geometry.squared_distances
        # In units in which the m-th smallest of the rows' largest squares is from 1 to 4, the m-th
        # score is at least 1 and finite: one that underflows is among the m, one that overflows is
        # not. An even power of two changes no bit of the others. Where that square is zero, only
        # scores of zero may be below 1.
        largest = nth_smallest(distances, neighbors)
        unit = np.partition(largest, self.m - 1)[self.m - 1] or largest[largest > 0].min(initial=1)
        _, exponent = np.frexp(unit)
        scores = np.empty(geometry.n)
        with np.errstate(over="ignore", under="ignore"):
            for rows in chunks(geometry.n):
                nearest = np.sort(distances[rows], axis=1)[:, 1 : neighbors + 1]
                nearest = np.ldexp(nearest, -2 * ((exponent - 1) // 2))
                scores[rows] = (nearest ** (self.power / 2)).sum(axis=1)
        return geometry.uniform_over(scores.argsort(kind="stable")[: self.m])


@dataclass(frozen=True, repr=False)
class GeometricMedian(Weighting):
    r"""The point with the smallest sum of distances to the vectors.

    .. math:: \operatorname*{argmin}_z \sum_i \|z - x_i\|

    By default it is the exact minimizer. With `steps`, that many iterations of Weiszfeld's method

    .. math:: z \leftarrow \sum_i w_i x_i, \quad
        w_i \propto 1 / \max(\mathrm{smoothing}, \|z - x_i\|)

    approximate it. `GeometricMedian(steps=8, smoothing=0.1, start="zero")` is called RFA in
    the published runs of the bucketing paper. Where z is one of the vectors, the iteration is that
    of Vardi and Zhang (PNAS 2000), which stays there exactly if that vector is the minimizer.

    - `steps`: how many iterations, at least 1; None, the default, means the exact minimizer.
    - `smoothing`: at least 0. In the weights, distances below it count as if they were equal to
      it. Without `steps`, a sum of Huber functions with this threshold is minimized instead.
    - `start`: where the iterations begin: at the vector with the smallest sum of distances
      ("medoid") or at the origin ("zero").

    Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning, 2022.

    >>> GeometricMedian()(torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [1.0, 1.0]]))
    tensor([1., 1.])
    """

    steps: Positive | None = None
    smoothing: Measure = 0
    start: Literal["medoid", "zero"] = "medoid"
    takes_weights: ClassVar[bool] = True

    @property
    def needs_origin(self) -> bool:
        return self.start == "zero"

    def weights(self, geometry: Geometry) -> Array:
        objective = SumOfDistances(geometry, geometry.in_units(self.smoothing))
        if self.steps is None:
            return objective.minimize()
        medoid = int(objective.sums().argmin())
        weights = geometry.at(geometry.origin if self.start == "zero" else medoid)
        for _ in range(self.steps):
            weights = objective.weiszfeld(weights)
        return weights


@dataclass(frozen=True, repr=False)
class CenteredClipping(Weighting):
    r"""Moves a center by the mean of the differences to it, each clipped to a radius (CClip).

    .. math:: v \leftarrow v + \frac{1}{n} \sum_i (x_i - v) \min(1, \mathrm{radius} / \|x_i - v\|)

    The rule has a state: the result is the center of the next call. The first center is zero.

    - `radius`: the length to which differences are clipped, above 0; it may be infinite.
    - `steps`: how many times the center is moved in each call, at least 1.

    Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021.

    >>> rule = CenteredClipping(radius=1.0)
    >>> updates = torch.tensor([[1.0], [1.0], [100.0]])
    >>> rule(updates), rule(updates)
    (tensor([1.]), tensor([1.3333]))
    """

    radius: Annotated[float, Gt(0), OrInfinity]
    steps: Positive = 1
    delta_max: ClassVar[float] = 0.1  # what is proved, if the radius suits the vectors
    takes_weights: ClassVar[bool] = True

    def weights(self, geometry: Geometry) -> Array:
        n = geometry.n
        weights = geometry.at(geometry.center)
        for _ in range(self.steps):
            distances = geometry.distances_to(weights)
            move = np.zeros(geometry.points)
            move[:n] = np.divide(
                self.radius, distances, out=np.ones(n), where=distances > self.radius
            )
            if geometry.vouched is None:
                move /= n
            else:
                move[:n] *= geometry.shares
            weights = weights + move - move.sum() * weights
        return weights

    @property
    def needs_origin(self) -> bool:
        return self.center is None

    @property
    def center(self) -> Tensor | None:
        return self.__dict__.get("_center")

    def remember(self, aggregate: Tensor) -> None:
        object.__setattr__(self, "_center", aggregate.clone())

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self.center is None else {"center": self.center.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        former = "centre"  # former name
        if unknown := sorted(set(state) - {"center", former}):
            raise ByzantiumError(f"{self!r} has only the state 'center', got {', '.join(unknown)}")
        center = state.get("center", state.get(former))
        object.__setattr__(self, "_center", None if center is None else center.detach().clone())


@dataclass(frozen=True, repr=False)
class AgnosticClipping(Weighting):
    r"""Centered clipping that finds its radius and its center from the vectors themselves.

    .. math:: \sum_i (x_i - v) \min(1, \tau / \|x_i - v\|) = 0, \quad
        \tau = b \, \frac{n - f}{2 \sqrt{f (n - 2f)}} \, s

    The result v is the fixed point of centered clipping with radius :math:`\tau` (the minimizer of
    a sum of Huber functions), so that there is no start and there are no iterations. s is
    an estimate of the spread of the honest vectors: for each vector take the mean of its n - f
    smallest squared distances to all vectors, itself included; the smallest of these means is
    :math:`s^2`. With f = 0 the rule is the mean.

    If s were exactly the spread of the honest vectors, b = 1 would give the smallest error that any
    rule can promise. docs/guarantees.md has the proof, the bound that holds with the estimate, and
    how to choose b. Where workers' data differ much, attackers who tune their strength to the rule
    can make a training with the default b fail; b = 0.6 is better there, and fails, too, if a fifth
    of the workers attack (docs/benchmark.md).

    - `f`: how many vectors may be bad, at least 0; there must be at least 2f + 1 vectors.
    - `b`: a factor of the radius, above 0 and at most 1e9.

    The rule is ours. Karimireddy, He, Jaggi (Byzantine-Robust Learning on Heterogeneous Datasets
    via Bucketing, 2022) name a radius that adapts by itself as an open question.

    >>> AgnosticClipping(f=1)(torch.tensor([[0.9], [1.0], [1.1], [1.3], [9.0]]))
    tensor([1.1333])
    """

    f: Count
    b: Annotated[float, Gt(0), Le(1e9)] = 1.25
    takes_weights: ClassVar[bool] = True

    def weights(self, geometry: Geometry) -> Array:
        if geometry.vouched is not None:
            return self._weighted(geometry)
        n, f = geometry.n, self.f
        if not f:
            return geometry.uniform_over(np.arange(n))
        distances, spreads = geometry.squared_distances, np.empty(n)
        for rows in chunks(n):
            nearest = np.partition(distances[rows], n - f - 1, axis=1)[:, : n - f]
            spreads[rows] = nearest.mean(axis=1)
        middle = int(spreads.argmin())
        if not spreads[middle] > 0:  # n - f vectors are equal: no radius is too small for them
            return geometry.at(middle)
        radius = self.b * (n - f) / (2 * math.sqrt(f * (n - 2 * f))) * math.sqrt(spreads[middle])
        return SumOfDistances(geometry, radius).minimize()

    def _weighted(self, geometry: Geometry) -> Array:
        """The same in shares of the weight, F/N and (N - F)/N, instead of in vectors."""
        bad, shares = geometry.bad_share(self.f), geometry.shares
        if not bad:
            return shares
        squares = geometry.squared_distances
        spreads = (smallest_masses(squares, shares, 1 - bad) * squares).sum(axis=1) / (1 - bad)
        middle = int(spreads.argmin())
        if not spreads[middle] > 0:
            return geometry.at(middle)
        radius = self.b * (1 - bad) / (2 * math.sqrt(bad * (1 - 2 * bad)))
        return SumOfDistances(geometry, radius * math.sqrt(spreads[middle])).minimize()

    def try_before_admission(self, source: Source, explain: bool) -> Attempt:
        return Attempt() if self.f else central_mean(source, source.n, explain)

    def try_with_weights(self, source: Source, vouched: Weights, explain: bool) -> Attempt:
        return Attempt() if self.f else central_weighted_mean(source, vouched, 1.0, explain)


@dataclass(frozen=True, repr=False)
class MinimumDiameter(Weighting):
    r"""The mean of those n - f vectors whose largest distance from each other is smallest (MDA).

    .. math:: \frac{1}{n-f} \sum_{i \in S} x_i, \quad
        S = \operatorname*{argmin}_{|S| = n-f} \max_{i,j \in S} \|x_i - x_j\|

    Of several such sets S the one with the smallest sum of squared distances counts, then the
    first. The problem is NP-hard, so the exact search (branch and bound) has a budget. If that
    is not enough, the best set so far counts: its diameter is at most twice the
    smallest, and the report has a note.

    - `f`: how many vectors may be bad, at least 0; there must be at least 2f + 1 vectors.

    El Mhamdi, Guerraoui, Rouault: Distributed Momentum for Byzantine-resilient SGD, ICLR 2021.

    >>> MinimumDiameter(f=1)(torch.tensor([[0.0], [1.0], [2.0], [50.0]]))
    tensor([1.])
    """

    f: Count

    def weights(self, geometry: Geometry) -> Array:
        subset, proven = smallest_diameter(geometry.squared_distances, geometry.n - self.f)
        if not proven:
            geometry.note(
                f"{self!r} found no proof within its budget that its {len(subset)} of {geometry.n} "
                "vectors have the smallest diameter; theirs is at most twice the smallest"
            )
        return geometry.uniform_over(np.array(subset))


@dataclass(frozen=True, repr=False)
class SpectralFilter(Weighting):
    r"""Reduces the weights of outliers in the direction of largest variance (CAF).

    All weights begin at :math:`c_i = 1`. While :math:`\sum_i c_i > n - 2f`,

    .. math:: c_i \leftarrow c_i (1 - t_i / \max_{j: c_j > 0} t_j), \quad
        t_i = \langle v, x_i - \mu_c \rangle^2

    where :math:`\mu_c` is the weighted mean and v the top eigenvector of the weighted covariance.
    The result is the weighted mean of that iteration whose covariance has the smallest top
    eigenvalue.

    The maximum is taken over the vectors that still have weight, so each iteration removes all
    weight of one vector, and there are at most n. (byzfl takes the maximum over all vectors: then
    an outlier without any weight would leave the others nearly unchanged for many iterations.)

    - `f`: how many vectors may be bad, at least 0; there must be at least 2f + 1 vectors.

    Allouah, Guerraoui, Stephan: Towards Trustworthy Federated Learning with Untrusted
    Participants, ICML 2025.

    >>> SpectralFilter(f=1)(torch.tensor([[0.9], [1.0], [1.1], [50.0]])).round(decimals=2)
    tensor([1.])
    """

    f: Count

    def weights(self, geometry: Geometry) -> Array:
        return self.weights_of([geometry])[0]

    def weights_of(self, geometries: Sequence[Geometry]) -> list[Array]:
        n = geometries[0].n
        filtered = self._filtered(np.stack([geometry.gram[:n, :n] for geometry in geometries]))
        anchors = np.zeros(geometries[0].anchors)
        return [np.append(weights, anchors) for weights in filtered]

    def _filtered(self, grams: Array) -> Array:
        """The weights, (k, n), from the inner products of the rows of k geometries."""
        k, n, _ = grams.shape
        best, smallest = np.full((k, n), 1 / n), np.full(k, np.inf)
        # Those of which weights must still be removed, and the c_i of these.
        which, c = np.arange(k), np.ones((k, n))
        while len(which):
            totals = c.sum(axis=1)
            going = totals > n - 2 * self.f
            which, c, totals, grams = which[going], c[going], totals[going], grams[going]
            w = c / totals[:, None]
            # K_ij = <x_i - mu, x_j - mu>. With A the rows sqrt(w_i) (x_i - mu), the covariance is
            # A^T A, and its top eigenvector comes from that of A A^T.
            products = grams @ w[:, :, None]
            centered = grams - products
            centered -= products.transpose(0, 2, 1)
            centered += w[:, None, :] @ products
            roots = np.sqrt(w)
            covariances = roots[:, :, None] * centered
            covariances *= roots[:, None, :]
            values, vectors = np.linalg.eigh(covariances)
            better = values[:, -1] < smallest[which]
            best[which[better]], smallest[which[better]] = w[better], values[better, -1]
            tops = (roots * vectors[:, :, -1])[:, :, None]
            projections = abs(centered @ tops)[:, :, 0] * (c > 0)
            largest = projections.max(axis=1, initial=0)
            going = largest > 0
            which, c, grams = which[going], c[going], grams[going]
            shares = projections[going] / largest[going, None]
            # Equal vectors lose all weight together, however their products are rounded.
            c = np.where(shares < 1 - EQUAL, c * (1 - shares**2), 0)
        return best
