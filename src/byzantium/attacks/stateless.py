"""Attacks without state: most of those of the bucketing paper, and others of the literature."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Literal

import torch
from torch import Tensor

from byzantium._kernels.torch_passes import column_blocks
from byzantium.attacks.attack import Attack, Scene
from byzantium.core import ByzantiumError, Measure

# By how much, relatively, rounding may move a vector beyond the bound on its distances.
ROUNDING = 1e-6


@dataclass(frozen=True, repr=False)
class NoAttack(Attack):
    """No attack: the attackers send their own honest vectors, :math:`x_j`.

    >>> NoAttack()(torch.ones(3, 2), torch.tensor([[5.0, 6.0]]))
    tensor([[5., 6.]])
    """

    needs_own: ClassVar[bool] = True
    own_momentum: ClassVar[bool] = True

    def vectors(self, scene: Scene) -> Tensor:
        assert scene.own is not None
        return scene.own


@dataclass(frozen=True, repr=False)
class BitFlip(Attack):
    r"""Each attacker sends its own honest vector with the sign flipped, :math:`-x_j`.

    One of the five attacks of Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous
    Datasets via Bucketing, 2022.

    >>> BitFlip()(torch.ones(3, 2), torch.tensor([[5.0, 6.0]]))
    tensor([[-5., -6.]])
    """

    needs_own: ClassVar[bool] = True

    def vectors(self, scene: Scene) -> Tensor:
        assert scene.own is not None
        return -scene.own


@dataclass(frozen=True, repr=False)
class LabelFlip(NoAttack):
    r"""Each attacker trains honestly, but on wrong labels: label y becomes classes - 1 - y.

    One of the five attacks of Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous
    Datasets via Bucketing, 2022.

    >>> LabelFlip().labels(torch.tensor([0, 3, 9]), classes=10)
    tensor([9, 6, 0])
    """

    own_momentum: ClassVar[bool] = False  # as in the published runs

    def labels(self, y: Tensor, classes: int) -> Tensor:
        if not classes:
            raise ByzantiumError(f"{self!r} needs labels of classes, but these targets are numbers")
        return classes - 1 - y


@dataclass(frozen=True, repr=False)
class InnerProduct(Attack):
    r"""All attackers send a negative multiple of the honest mean (IPM), :math:`-\epsilon \bar x`.

    With a small epsilon these vectors lie near the honest ones, and a rule that selects them
    reverses the step of the model.

    - `epsilon`: the factor, at least 0.

    Xie, Koyejo, Gupta: Fall of Empires, UAI 2020.

    >>> InnerProduct(epsilon=0.5)(torch.tensor([[2.0], [4.0]]), q=1)
    tensor([[-1.5000]])
    """

    epsilon: Measure = 0.1
    strength: ClassVar[str | None] = "epsilon"

    def vectors(self, scene: Scene) -> Tensor:
        return -self.epsilon * scene.mean


@dataclass(frozen=True, repr=False)
class ALittleIsEnough(Attack):
    r"""All attackers send the honest mean moved by z standard deviations in each coordinate (ALIE).

    .. math:: \bar x - z \sigma, \quad z = \Phi^{-1}\left(\frac{n - q - s}{n - q}\right), \quad
        s = \lfloor n/2 + 1 \rfloor - q

    With this default z, about s honest workers lie beyond the attackers in each coordinate; these
    and the attackers together form a majority.

    - `z`: how many standard deviations, at least 0; None, the default, means the formula above, but
      never below 0.

    Baruch, Baruch, Goldberg: A Little Is Enough, NeurIPS 2019.

    >>> ALittleIsEnough(z=1)(torch.tensor([[2.0], [4.0], [6.0]]), q=1)
    tensor([[2.]])
    >>> round(ALittleIsEnough().deviations(n=25, q=5), 4)
    0.2533
    """

    z: Measure | None = None
    strength: ClassVar[str | None] = "z"

    def deviations(self, n: int, q: int) -> float:
        """The number z for n workers of which q are attackers."""
        if self.z is not None:
            return self.z
        supporters = max(1, math.floor(n / 2 + 1) - q)
        share = (n - q - supporters) / (n - q)
        return max(0.0, NormalDist().inv_cdf(share)) if share > 0 else 0.0

    def vectors(self, scene: Scene) -> Tensor:
        z = self.deviations(len(scene.honest) + scene.q, scene.q)
        return scene.mean - z * scene.deviation


@dataclass(frozen=True, repr=False)
class GaussianNoise(Attack):
    r"""Each attacker sends Gaussian noise, :math:`\mathrm{scale} \cdot N(0, I)`, new in each round.

    - `scale`: the standard deviation of each coordinate, at least 0.

    >>> GaussianNoise(scale=2.0)(torch.ones(3, 2), q=4).shape
    torch.Size([4, 2])
    """

    scale: Measure = 1.0
    strength: ClassVar[str | None] = "scale"

    def vectors(self, scene: Scene) -> Tensor:
        shape = scene.q, scene.honest.shape[1]
        noise = torch.randn(shape, generator=scene.generator, device=scene.generator.device)
        return self.scale * noise.to(scene.honest.device)


@dataclass(frozen=True, repr=False)
class NonFinite(Attack):
    """All attackers send values that are not finite: NaN or infinity.

    - `kind`: "nan", "inf", "-inf", or "mixture" for these three in turn, coordinate by coordinate.

    >>> NonFinite("-inf")(torch.ones(3, 2), q=1)
    tensor([[-inf, -inf]])
    """

    kind: Literal["nan", "inf", "-inf", "mixture"] = "nan"

    def vectors(self, scene: Scene) -> Tensor:
        values = ("nan", "inf", "-inf") if self.kind == "mixture" else (self.kind,)
        numbers = scene.honest.new_tensor([float(value) for value in values])
        return numbers[torch.arange(scene.honest.shape[1], device=numbers.device) % len(values)]


@dataclass(frozen=True, repr=False)
class _DistanceBounded(Attack):
    r"""The honest mean, moved against a direction as far as a bound on its distances allows.

    .. math:: \bar x - \gamma p

    The direction p is one of three: the standard deviations by coordinate, the mean itself, or the
    signs of the mean. Everything is computed in float64, relative to the first honest vector, so
    that a large common part costs no digits. Then the vector is rounded to the dtype of the honest
    ones, and its distances are checked again: if rounding moved it beyond the bound, gamma shrinks.
    """

    direction: Literal["deviation", "unit", "sign"] = "deviation"

    @abstractmethod
    def conditions(self, squares: Tensor) -> Tensor:
        """The bounded quantities, (..., k), from squared distances (..., h) to the honest vectors.

        None of them may exceed the largest that an honest vector has. They must be linear.
        """

    def vectors(self, scene: Scene) -> Tensor:
        honest, (h, d) = scene.honest, scene.honest.shape
        first = honest[0].double()
        mean, p = torch.empty_like(first), torch.empty_like(first)
        products, along = first.new_zeros(h, h), first.new_zeros(h)
        for columns in column_blocks(h, d, torch.float64):
            block = honest[:, columns].double() - first[columns]
            mean[columns] = block.mean(dim=0)
            p[columns] = self._direction(block, first[columns] + mean[columns])
            block = block - mean[columns]
            products += block @ block.T
            along += block @ p[columns]
        square = p.square().sum()
        if not square > 0:
            return first + mean
        to_mean = products.diagonal()
        bound = self.conditions(to_mean[:, None] + to_mean - 2 * products).max()
        # ||mean - gamma p - x_i||^2 = to_mean_i + 2 gamma along_i + gamma^2 square: a quadratic
        # for each condition, in units of the length of p, whose own square may underflow.
        slope, constant = self.conditions(along) / square, self.conditions(to_mean)
        margin = torch.zeros_like(bound)
        while True:
            slack = ((bound - margin - constant) / square).clip(min=0)
            gamma = ((slope.square() + slack).sqrt() - slope).min()
            vector = (first + (mean - gamma * p)).to(honest.dtype)
            excess = self.conditions(_squared_distances(honest, vector)).max() - bound
            if not (gamma > 0 and excess > ROUNDING * bound):
                return vector
            margin = torch.maximum(excess, 2 * margin)

    def _direction(self, rows: Tensor, mean: Tensor) -> Tensor:
        """The direction in some columns. Its length does not matter: gamma is scaled to it."""
        if self.direction == "deviation":
            return rows.std(dim=0, correction=min(1, len(rows) - 1))
        return mean if self.direction == "unit" else mean.sign()


def _squared_distances(rows: Tensor, point: Tensor) -> Tensor:
    """The squared distance of each row to a point, (n,), in float64, from exact differences."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for columns in column_blocks(len(rows), rows.shape[1], torch.float64):
        total += (rows[:, columns].double() - point[columns].double()).square().sum(dim=1)
    return total


@dataclass(frozen=True, repr=False)
class MinMax(_DistanceBounded):
    r"""The honest mean, moved as far as the largest distance between honest vectors allows.

    .. math:: \bar x - \gamma \sigma, \quad
        \max_i \|\bar x - \gamma \sigma - x_i\| = \max_{i,j} \|x_i - x_j\|

    The paper searches gamma by bisection; here the quadratic equations are solved directly.

    - `direction`: what the mean is moved against: the standard deviations by coordinate
      ("deviation", as in the formula), the mean itself ("unit") or the signs of the mean ("sign").

    Shejwalkar, Houmansadr: Manipulating the Byzantine, NDSS 2021.

    >>> MinMax()(torch.tensor([[-1.0], [1.0]]), q=1).round(decimals=2)
    tensor([[-1.]])
    """

    def conditions(self, squares: Tensor) -> Tensor:
        return squares


@dataclass(frozen=True, repr=False)
class MinSum(_DistanceBounded):
    r"""The honest mean, moved as far as the sums of squared distances of honest vectors allow.

    .. math:: \bar x - \gamma \sigma, \quad
        \sum_i \|\bar x - \gamma \sigma - x_i\|^2 = \max_j \sum_i \|x_j - x_i\|^2

    The paper searches gamma by bisection; here the quadratic equation is solved directly.

    - `direction`: what the mean is moved against: the standard deviations by coordinate
      ("deviation", as in the formula), the mean itself ("unit") or the signs of the mean ("sign").

    Shejwalkar, Houmansadr: Manipulating the Byzantine, NDSS 2021.

    >>> MinSum()(torch.tensor([[-1.0], [1.0]]), q=1).round(decimals=2)
    tensor([[-1.]])
    """

    def conditions(self, squares: Tensor) -> Tensor:
        return squares.mean(dim=-1, keepdim=True)
