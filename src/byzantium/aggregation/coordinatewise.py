"""Rules that work on each coordinate by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from byzantium.aggregation.mixing import KrumSelection
from byzantium.aggregation.pipeline import Aggregator
from byzantium.aggregation.rules import CoordinateWise
from byzantium.aggregation.stage import Stage
from byzantium.core import Count


@dataclass(frozen=True, repr=False)
class Median(CoordinateWise):
    r"""The coordinate-wise median; for an even number of vectors the mean of the middle two.

    .. math:: [\mathrm{Median}(x)]_k = \mathrm{median}([x_1]_k, \dots, [x_n]_k)

    Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018.

    >>> Median()(torch.tensor([[1.0, 9.0], [2.0, 8.0], [300.0, 7.0]]))
    tensor([2., 8.])
    """

    def averaged(self, n: int) -> int:
        return 2 - n % 2


@dataclass(frozen=True, repr=False)
class TrimmedMean(CoordinateWise):
    r"""The mean of what remains of each coordinate without its f largest and f smallest values.

    Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018.

    >>> TrimmedMean(f=1)(torch.tensor([[1.0], [2.0], [3.0], [300.0]]))
    tensor([2.5000])
    """

    f: Count

    def averaged(self, n: int) -> int:
        return n - 2 * self.f


@dataclass(frozen=True, repr=False)
class MeaMed(CoordinateWise):
    r"""The mean, in each coordinate, of the n - f values nearest the median ("mean around median").

    Of two values equally near, the lower.

    Xie, Koyejo, Gupta: Generalized Byzantine-tolerant SGD, 2018.

    >>> MeaMed(f=1)(torch.tensor([[1.0], [2.0], [3.5], [300.0]]))
    tensor([2.1667])
    """

    f: Count
    nearest: ClassVar[bool] = True

    def averaged(self, n: int) -> int:
        return n - self.f


@dataclass(frozen=True, repr=False)
class Bulyan(Aggregator):
    r"""Picks n - 2f vectors by iterated Krum, then takes MeaMed(2f) of them.

    At each of n - 2f steps, of the n_t vectors left, the one with the smallest sum of squared
    distances to its max(1, n_t - f - 2) nearest is picked and taken out; then, in each coordinate,
    the n - 4f picked values nearest their median are averaged.

    El Mhamdi, Guerraoui, Rouault: The Hidden Vulnerability of Distributed Learning in Byzantium,
    ICML 2018.

    >>> updates = torch.tensor([[1.0], [1.1], [1.2], [1.3], [1.4], [1.5], [99.0]])
    >>> Bulyan(f=1)(updates)
    tensor([1.2000])
    """

    f: Count

    def least(self) -> tuple[int, str]:
        return 4 * self.f + 3, "4f + 3"

    @property
    def expansion(self) -> tuple[Stage, ...]:
        return KrumSelection(self.f), MeaMed(2 * self.f)
