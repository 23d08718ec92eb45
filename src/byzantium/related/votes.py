"""Rules and mixings in which workers vote."""

from __future__ import annotations

import copy
import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from byzantium._kernels.torch_passes import mixed_blocks
from byzantium.core import ByzantiumError, Positive, PositiveMeasure
from byzantium.rules import Mixing, Stage
from byzantium.rules.kinds import total_share
from byzantium.rules.pipeline import BaseRule
from byzantium.vectors import Geometry
from byzantium.vectors.distances import Array


class _Signs(BaseRule):
    """A rule that follows from how many more vectors have one sign than the other."""

    weights_known = "asked"

    @abstractmethod
    def result(self, surplus: Tensor) -> Tensor:
        """The result, from the sum of all signs in each coordinate."""

    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        """The result; a vector counts as often as its sign is that of the majority."""
        points, mixing = geometry.basis, geometry.matrix()
        points.source.check_coordinates(self)
        aggregate = points.source.empty_aggregate(points.dtype)
        agreed = np.zeros(geometry.n)
        for columns, matrix, rows in points.pieces():
            for inner, block in mixed_blocks(matrix, rows, mixing):
                votes = block.sign()
                surplus = votes.sum(dim=0)
                aggregate[columns][inner] = self.result(surplus)
                if explain:
                    winner = surplus.sign()
                    agreed += ((votes == winner) & (winner != 0)).sum(dim=1).cpu().numpy()
        if not explain:
            return aggregate, None
        anchors = np.zeros(geometry.anchors)
        agreed = points.source.team.sum_to_all(agreed)
        return aggregate, np.append(total_share(agreed, points.source), anchors)


@dataclass(frozen=True, repr=False)
class SignVote(_Signs):
    r"""The sign of each coordinate that most vectors have (signSGD with majority vote).

    .. math:: \mathrm{size} \cdot \operatorname{sign} \sum_i \operatorname{sign}(x_i)

    The vectors are gradients or, as in Signum, momenta. The result says nothing of their length, so
    the learning rate must be much smaller than for other rules, or `size` must be.

    - `size`: the magnitude of each coordinate of the result, above 0.

    Nothing is promised where honest vectors differ: in a coordinate that only the workers with one
    class know, all others vote by noise.

    Bernstein, Zhao, Azizzadenesheli, Anandkumar: signSGD with Majority Vote is Communication
    Efficient and Fault Tolerant, ICLR 2019.

    >>> SignVote()(torch.tensor([[0.1, -2.0], [0.2, -3.0], [-90.0, 90.0]]))
    tensor([ 1., -1.])
    """

    size: PositiveMeasure = 1.0

    def result(self, surplus: Tensor) -> Tensor:
        return self.size * surplus.sign()


@dataclass(frozen=True, repr=False)
class SignSum(_Signs):
    r"""The sum of the signs of each coordinate: the server of RSA.

    .. math:: \lambda \sum_i \operatorname{sign}(x_i)

    Its workers, `RSA`, send how far the model of the server is from their own. Any vector
    changes each coordinate by at most :math:`\lambda`.

    - `penalty`: the factor :math:`\lambda`, above 0: the penalty of `RSA`.

    Li, Xu, Chen, Giannakis, Ling: RSA: Byzantine-Robust Stochastic Aggregation Methods for
    Distributed Learning from Heterogeneous Datasets, AAAI 2019.

    >>> SignSum(penalty=0.5)(torch.tensor([[0.1, -2.0], [0.2, -3.0], [-90.0, 90.0]]))
    tensor([ 0.5000, -0.5000])
    """

    penalty: PositiveMeasure

    def result(self, surplus: Tensor) -> Tensor:
        return self.penalty * surplus


@dataclass(frozen=True, repr=False)
class MajorityVote(Mixing):
    r"""One vector of each group of r workers that computed the same: the one that most of it sent.

    .. math:: y_g = \operatorname*{argmax}_{x_i, \, i \in G_g} |\{ j \in G_g : x_j = x_i \}|,
        \quad G_g = \{ i : i \equiv g \pmod{n/r} \}

    Vectors are equal if all their bits are. In a simulation, `redundancy=r` lets the workers of a
    group compute the same batch. While fewer than r/2 workers of each group are Byzantine,
    n/r honest vectors come out, to the bit: behind it, `Mean()` is the repetition code of DRACO.
    `MajorityVote(r=3) >> Bucketing(s=2) >> Median()` is DETOX. Of several vectors that most sent,
    the first counts.

    The price is r times the work, and the server must be trusted to deal the data.

    - `r`: how many workers a group has, at least 1; n must be a multiple of it.

    Chen, Wang, Charles, Papailiopoulos: DRACO: Byzantine-resilient Distributed Training via
    Redundant Gradients, ICML 2018; Rajput, Wang, Charles, Papailiopoulos: DETOX: A Redundancy-based
    Framework for Faster and More Robust Gradient Aggregation, NeurIPS 2019.

    >>> updates = torch.tensor([[1.0], [2.0], [1.0], [2.0], [9.0], [2.0]])
    >>> MajorityVote(r=3)(updates)
    tensor([[1.],
            [2.]])
    """

    r: Positive
    keeps_workers: ClassVar[bool] = False
    selects: ClassVar[bool] = True

    @property
    def redundancy(self) -> int:
        return self.r

    def check(self, n: int) -> None:
        super().check(n)
        if n % self.r:
            raise ByzantiumError(
                f"{self!r} needs groups of r = {self.r} workers, but {n} is no multiple of it"
            )

    def min_vectors(self) -> tuple[int, str]:
        return self.r, "r"

    def resolved(self, n: int, following: Sequence[Stage]) -> Stage:
        """The groups are those of all n vectors, also where some are rejected afterwards."""
        stage = copy.copy(self)
        object.__setattr__(stage, "_groups", n // self.r)
        return stage

    def rows(self, n: int) -> int:
        groups: int = self.__dict__.get("_groups", n // self.r)
        return groups

    def bad_outputs(self, f: int) -> int:
        return f // -(-self.r // 2)

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        n, groups = geometry.n, self.rows(geometry.n)
        members = [np.flatnonzero(geometry.workers % groups == g) for g in range(groups)]
        pairs = [pair for rows in members for pair in combinations(rows.tolist(), 2)]
        equal = np.eye(n, dtype=bool)
        for (i, j), same in zip(pairs, _equal(geometry, pairs), strict=True):
            equal[i, j] = equal[j, i] = same
        votes, matrix = equal.sum(axis=1), np.zeros((groups, n))
        for g, rows in enumerate(members):
            if len(rows):
                matrix[g, rows[votes[rows].argmax()]] = 1
        # A group without usable vectors has r Byzantine workers: it says nothing new.
        matrix[matrix.sum(axis=1) == 0] = matrix.sum(axis=0) / matrix.sum()
        undecided = sum(2 * votes[rows].max(initial=0) <= self.r for rows in members)
        if undecided and self.r > 1:
            most = 2 * undecided > groups
            hint = f"; do its workers compute the same (redundancy={self.r})?" if most else ""
            sentence = f"{self!r} found no majority in {undecided} of {groups} groups{hint}"
            geometry.note(sentence, logging.WARNING if most else logging.INFO)
        return matrix


def _equal(geometry: Geometry, pairs: Sequence[tuple[int, int]]) -> list[bool]:
    """For each pair of rows whether all their bits are equal."""
    different = np.zeros(len(pairs))
    if pairs:
        first, second = (torch.tensor(side) for side in zip(*pairs, strict=True))
        for _, matrix, rows in geometry.basis.pieces():
            for _, block in mixed_blocks(matrix, rows, geometry.matrix()):
                a, b = block[first], block[second]
                apart = (a != b) | (a.signbit() != b.signbit())
                different += apart.any(dim=1).cpu().numpy()
    return [not one for one in geometry.basis.source.team.sum_to_all(different)]
