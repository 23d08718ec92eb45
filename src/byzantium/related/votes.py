"""Rules and mixings in which workers vote."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from byzantium._kernels.torch_passes import mixed_blocks
from byzantium.core import PositiveMeasure
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

    Its workers, `RSA`, send how far the model of the server is from their own. Whatever a vector
    is, it changes each coordinate by at most :math:`\lambda`.

    - `penalty`: the factor :math:`\lambda`, above 0: the penalty of `RSA`.

    Li, Xu, Chen, Giannakis, Ling: RSA: Byzantine-Robust Stochastic Aggregation Methods for
    Distributed Learning from Heterogeneous Datasets, AAAI 2019.

    >>> SignSum(penalty=0.5)(torch.tensor([[0.1, -2.0], [0.2, -3.0], [-90.0, 90.0]]))
    tensor([ 0.5000, -0.5000])
    """

    penalty: PositiveMeasure

    def result(self, surplus: Tensor) -> Tensor:
        return self.penalty * surplus
