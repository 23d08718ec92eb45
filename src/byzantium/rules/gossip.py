"""Gossip: mixings in which each vector moves toward its neighbors in a graph.

Row i of the matrix is P_ij = w_ij s_ij for neighbors j, and P_ii is the rest. The w_ij are the
weights of the graph. The s_ij, from 0 to 1, say how much of the way to a neighbor node i goes; they
follow from the distances to its neighbors alone.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from annotated_types import Ge

from byzantium.core import ByzantiumError, Count, OrInfinity
from byzantium.rules.kinds import Weighting
from byzantium.rules.pipeline import Aggregator, Mixing
from byzantium.vectors.distances import Array
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.mixed_points import MixedPoints
from byzantium.vectors.points import SourcePoints

# A share of a weight that differs from none or from all of it by less is rounding.
ROUNDING = 1e-9


@dataclass(frozen=True, repr=False)
class Gossip(Mixing):
    r"""Averages each vector with those of its neighbors, by weight: plain gossip.

    .. math:: y_i = x_i + \sum_j w_{ij} (x_j - x_i)

    In a training without a server the weights :math:`w_{ij}` are those of its `Topology`. Elsewhere
    all n vectors are neighbors with the weight 1/n, and each becomes the mean. It tolerates no
    Byzantine vector: it is what robust gossip is compared with.

    Boyd, Ghosh, Prabhakar, Shah: Randomized Gossip Algorithms, IEEE Transactions on Information
    Theory, 2006.

    >>> Gossip()(torch.tensor([[0.0], [2.0], [4.0]]))
    tensor([[2.],
            [2.],
            [2.]])
    >>> line = np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])
    >>> Gossip().on_graph(line)(torch.tensor([[0.0], [2.0], [4.0]]))
    tensor([[1.],
            [2.],
            [3.]])
    """

    uses_graph: ClassVar[bool] = True

    def on_graph(self, weights: Array) -> Self:
        """The same gossip on a graph.

        - `weights`: (n, n), the weights of the edges, such as `Topology.weights`; 0 where there is
          none. The diagonal does not matter.
        """
        bound = copy.copy(self)
        object.__setattr__(bound, "_graph", weights)
        return bound

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        weights = self._weights(geometry)
        distances = np.sqrt(geometry.squared_distances)
        matrix = weights * self._shares(distances, weights, geometry)
        return matrix + np.diag(1 - matrix.sum(axis=1))

    def _weights(self, geometry: Geometry) -> Array:
        """(n, n): the weights of the edges among the rows that are left, 0 on the diagonal."""
        n = geometry.n
        graph: Array | None = self.__dict__.get("_graph")
        if graph is None:
            weights = np.full((n, n), 1 / n)
        else:
            points = geometry.basis
            while isinstance(points, MixedPoints):
                points = points.basis
            assert isinstance(points, SourcePoints)
            if points.source.n != len(graph) or points.n != n:
                raise ByzantiumError(
                    f"{self!r} is on a graph of {len(graph)} nodes, got {n} vectors of "
                    f"{points.source.n}; mixings before it must keep their number"
                )
            weights = graph[np.ix_(points.rows, points.rows)]  # others were rejected
        return np.where(np.eye(n, dtype=bool), 0, weights)

    def _shares(self, distances: Array, weights: Array, geometry: Geometry) -> Array:
        """(n, n): how much of the way to each neighbor each row goes, from 0 to 1.

        - `distances`: (n, n), those between the rows, in the unit of the geometry.
        - `weights`: (n, n), those of the edges, 0 where there is none.
        """
        return np.ones_like(distances)


@dataclass(frozen=True, repr=False)
class _RobustGossip(Gossip):
    """Gossip that tolerates f Byzantine neighbors of each node."""

    f: Count

    def _bad_weights(self, weights: Array) -> Array:
        """(n,): the most weight that f neighbors of each row can have, b."""
        total: Array = np.sort(weights, axis=1)[:, len(weights) - self.f :].sum(axis=1)
        return total


@dataclass(frozen=True, repr=False)
class _ClippedDifferences(_RobustGossip):
    """Gossip in which no row goes farther toward a neighbor than a radius of its own."""

    def _shares(self, distances: Array, weights: Array, geometry: Geometry) -> Array:
        radii = self._radii(distances, weights, geometry)[:, None]
        return np.divide(radii, distances, out=np.ones_like(distances), where=distances > radii)

    @abstractmethod
    def _radii(self, distances: Array, weights: Array, geometry: Geometry) -> Array:
        """(n,): how far each row goes toward a neighbor at most."""


@dataclass(frozen=True, repr=False)
class ClippedGossip(_ClippedDifferences):
    r"""Gossip that clips each difference to a radius (self-centered clipping).

    .. math:: y_i = x_i + \sum_j w_{ij} (x_j - x_i) \min(1, \tau_i / \|x_j - x_i\|), \quad
        \tau_i^2 = \frac{1}{b_i} \sum_{j \in N_i} w_{ij} \|x_j - x_i\|^2

    where :math:`b_i` is the weight of the f heaviest neighbors of i, and :math:`N_i` are all of its
    neighbors except the farthest ones, which have the weight :math:`b_i` (one may count in part).
    Without a graph all n vectors are neighbors with the weight 1/n.

    - `f`: how many neighbors of a node may be Byzantine, at least 0.
    - `radius`: None, the default, means the formula above; "second", the distance to the second
      farthest neighbor, as in the code that the authors released; a number is the same radius for
      all, which may be 0 (no node moves) or infinite (plain gossip).

    He, Karimireddy, Jaggi: Byzantine-Robust Decentralized Learning via ClippedGossip, 2022.

    >>> updates = torch.tensor([[0.0], [0.0], [3.0], [300.0]])
    >>> ClippedGossip(f=1)(updates)[0]  # each difference is clipped to 3
    tensor([1.5000])
    >>> ClippedGossip(f=1, radius=1)(updates)[0]
    tensor([0.5000])
    """

    radius: Annotated[float, Ge(0), OrInfinity] | Literal["second"] | None = None

    def _radii(self, distances: Array, weights: Array, geometry: Geometry) -> Array:
        n = len(distances)
        if self.radius == "second":
            near = np.sort(np.where(weights > 0, distances, -1), axis=1)
            farthest, second = near[:, -1], near[:, -2] if n > 1 else near[:, -1]
            return np.where(second < 0, farthest, second).clip(min=0)
        if self.radius is not None:
            return np.full(n, geometry.in_units(self.radius))
        bad = self._bad_weights(weights)
        squares = (nearest(distances, weights, bad) * distances**2).sum(axis=1)
        return np.sqrt(np.divide(squares, bad, out=np.full(n, np.inf), where=bad > 0))


@dataclass(frozen=True, repr=False)
class ClippedSumGossip(_ClippedDifferences):
    r"""Gossip that clips differences to a distance that twice the Byzantine weight exceeds (CS+).

    .. math:: y_i = x_i + \sum_j w_{ij} (x_j - x_i) \min(1, \tau_i / \|x_j - x_i\|)

    where :math:`\tau_i` is the largest distance to a neighbor such that those after it, in the
    order of their distances, have a weight of :math:`2 b_i` or more; 0 where there is none. The
    f heaviest neighbors have the weight :math:`b_i`. Without a graph all n vectors are neighbors
    with the weight 1/n.

    - `f`: how many neighbors of a node may be Byzantine, at least 0.

    Gaucher, Dieuleveut, Hendrikx: Unified Breakdown Analysis for Byzantine Robust Gossip, ICML
    2025.

    >>> ClippedSumGossip(f=1)(torch.tensor([[0.0], [1.0], [2.0], [300.0]]))[0]
    tensor([0.7500])
    """

    def _radii(self, distances: Array, weights: Array, geometry: Geometry) -> Array:
        bad = self._bad_weights(weights)
        order, after = _by_distance(distances, weights)
        ordered = np.take_along_axis(distances, order, axis=1)
        neighbors = np.take_along_axis(weights, order, axis=1) > 0
        enough = neighbors & (after >= 2 * bad[:, None] - ROUNDING)
        radii: Array = np.where(enough, ordered, 0).max(axis=1)
        return np.where(bad > 0, radii, np.inf)


@dataclass(frozen=True, repr=False)
class TrimmedGossip(_RobustGossip):
    r"""Gossip without the farthest neighbors (GTS, the form of NNA for any graph).

    .. math:: y_i = x_i + \sum_{j \in N_i} w_{ij} (x_j - x_i)

    where :math:`N_i` are all neighbors of i except the farthest ones, which have the weight of the
    f heaviest neighbors; one may count in part. Without a graph all n vectors are
    neighbors with the weight 1/n. NNA itself, which takes the plain mean of the nearest, is
    `NearestNeighborMixing` at each node.

    - `f`: how many neighbors of a node may be Byzantine, at least 0.

    Gaucher, Dieuleveut, Hendrikx: Unified Breakdown Analysis for Byzantine Robust Gossip, ICML
    2025. Farhadkhani, Guerraoui, Gupta, Hoang, Pinot, Stephan: Robust Collaborative Learning with
    Linear Gradient Overhead, ICML 2023.

    >>> TrimmedGossip(f=1)(torch.tensor([[0.0], [1.0], [3.0], [300.0]]))[0]
    tensor([1.])
    """

    def _shares(self, distances: Array, weights: Array, geometry: Geometry) -> Array:
        counted = nearest(distances, weights, self._bad_weights(weights))
        return np.divide(counted, weights, out=np.zeros_like(weights), where=weights > 0)


def nearest(distances: Array, weights: Array, left_out: Array) -> Array:
    """(n, n): the weights of all neighbors except the farthest; one may count in part.

    - `distances`, `weights`: (n, n), from each row to each neighbor.
    - `left_out`: (n,), the weight that is left out of each row.

    >>> weights = np.array([[0.0, 0.3, 0.3, 0.3]])
    >>> nearest(np.array([[0.0, 5.0, 1.0, 2.0]]), weights, np.array([0.45]))
    array([[0.  , 0.  , 0.3 , 0.15]])
    """
    order, after = _by_distance(distances, weights)
    ordered = np.take_along_axis(weights, order, axis=1)
    # The farthest are left out first: a neighbor loses what the farther ones do not make up.
    counted = (ordered - (left_out[:, None] - after).clip(min=0)).clip(min=0)
    counted[counted < ROUNDING * ordered] = 0
    counted = np.where(counted > (1 - ROUNDING) * ordered, ordered, counted)
    result = np.zeros_like(weights)
    np.put_along_axis(result, order, counted, axis=1)
    return result


def _by_distance(distances: Array, weights: Array) -> tuple[np.ndarray, Array]:
    """For each row the order of all by distance, and the weight that comes after each."""
    order = distances.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(weights, order, axis=1)
    reverse = ordered[:, ::-1].cumsum(axis=1)[:, ::-1]
    return order, np.hstack([reverse[:, 1:], np.zeros((len(order), 1))])


@dataclass(frozen=True, repr=False)
class OwnVector(Weighting):
    """The first vector: what a node is left with after a mixing of its own and its neighbors'.

    >>> (TrimmedGossip(f=1) >> OwnVector())(torch.tensor([[0.0], [1.0], [3.0], [300.0]]))
    tensor([1.])
    """

    def weights(self, geometry: Geometry) -> Array:
        return geometry.at(0)


def node_rule(stage: Aggregator | Mixing) -> Aggregator:
    """What one node does with its own vector, the first, and those of its neighbors.

    - `stage`: a rule, or a mixing, of whose rows the node takes its own.

    >>> node_rule(Gossip())
    Gossip() >> OwnVector()
    """
    return stage if isinstance(stage, Aggregator) else stage >> OwnVector()
