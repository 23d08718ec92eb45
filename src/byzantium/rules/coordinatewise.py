"""Rules that treat each coordinate separately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from byzantium.core import Count
from byzantium.rules.kinds import CoordinateWise
from byzantium.rules.mixing import KrumSelection
from byzantium.rules.pipeline import Aggregator
from byzantium.rules.stage import Stage


@dataclass(frozen=True, repr=False)
class Median(CoordinateWise):
    r"""The median of each coordinate; for an even number of vectors the mean of the middle two.

    .. math:: [\mathrm{Median}(x)]_k = \mathrm{median}([x_1]_k, \dots, [x_n]_k)

    Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018.

    >>> Median()(torch.tensor([[1.0, 9.0], [2.0, 8.0], [300.0, 7.0]]))
    tensor([2., 8.])
    """

    takes_weights: ClassVar[bool] = True

    def averaged(self, n: int) -> int:
        return 2 - n % 2

    def averaged_share(self, bad: float) -> float:
        return 0.0


@dataclass(frozen=True, repr=False)
class TrimmedMean(CoordinateWise):
    r"""The mean of each coordinate without its f largest and its f smallest values.

    .. math:: [\mathrm{TrimmedMean}(x)]_k = \frac{1}{n - 2f} \sum_{i=f+1}^{n-f} [x_{(i)}]_k

    where :math:`[x_{(1)}]_k \le \dots \le [x_{(n)}]_k` are the values of coordinate k in order.

    - `f`: how many vectors may be Byzantine, at least 0; there must be at least 2f + 1 vectors.

    Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018.

    >>> TrimmedMean(f=1)(torch.tensor([[1.0], [2.0], [3.0], [300.0]]))
    tensor([2.5000])
    """

    f: Count
    takes_weights: ClassVar[bool] = True

    def averaged(self, n: int) -> int:
        return n - 2 * self.f

    def averaged_share(self, bad: float) -> float:
        return 1 - 2 * bad


@dataclass(frozen=True, repr=False)
class MeaMed(CoordinateWise):
    r"""The mean, in each coordinate, of the n - f values nearest the median ("mean around median").

    .. math:: [\mathrm{MeaMed}(x)]_k = \frac{1}{n - f} \sum_{i \in N_k} [x_i]_k

    where :math:`N_k` are the n - f vectors whose coordinate k is nearest the median of that
    coordinate; of two values equally near, the lower counts.

    - `f`: how many vectors may be Byzantine, at least 0; there must be at least 2f + 1 vectors.

    Xie, Koyejo, Gupta: Generalized Byzantine-tolerant SGD, 2018.

    >>> MeaMed(f=1)(torch.tensor([[1.0], [2.0], [3.5], [300.0]]))
    tensor([2.1667])
    """

    f: Count
    nearest: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True

    def averaged(self, n: int) -> int:
        return n - self.f

    def averaged_share(self, bad: float) -> float:
        return 1 - bad


@dataclass(frozen=True, repr=False)
class Bulyan(Aggregator):
    r"""Picks n - 2f vectors by repeated Krum, then averages around their median (MeaMed).

    In each of n - 2f steps, the vector with the smallest sum of squared distances to its
    :math:`\max(1, n_t - f - 2)` nearest is picked among the :math:`n_t` vectors that are left, and
    taken out. Then, with P the picked vectors, in each coordinate k

    .. math:: [\mathrm{Bulyan}(x)]_k = \frac{1}{n - 4f} \sum_{i \in N_k} [x_i]_k

    where :math:`N_k` are the n - 4f vectors of P whose coordinate k is nearest its median over P.

    - `f`: how many vectors may be Byzantine, at least 0; there must be at least 4f + 3 vectors.

    El Mhamdi, Guerraoui, Rouault: The Hidden Vulnerability of Distributed Learning in Byzantium,
    ICML 2018.

    >>> updates = torch.tensor([[1.0], [1.1], [1.2], [1.3], [1.4], [1.5], [99.0]])
    >>> Bulyan(f=1)(updates)
    tensor([1.2000])
    """

    f: Count

    def min_vectors(self) -> tuple[int, str]:
        return 4 * self.f + 3, "4f + 3"

    @property
    def expansion(self) -> tuple[Stage, ...]:
        return KrumSelection(self.f), MeaMed(2 * self.f)
