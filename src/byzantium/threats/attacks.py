"""The attacks: the paper's five, and what the field adds."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from byzantium.aggregation.geometry import Array, GivenPoints
from byzantium.threats.attack import Attack, Scene


@dataclass(frozen=True, repr=False)
class NoAttack(Attack):
    """Everybody is honest: the attackers send their own vectors.

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
    r"""Minus one's own vector, :math:`-x_j`.

    >>> BitFlip()(torch.ones(3, 2), torch.tensor([[5.0, 6.0]]))
    tensor([[-5., -6.]])
    """

    needs_own: ClassVar[bool] = True

    def vectors(self, scene: Scene) -> Tensor:
        assert scene.own is not None
        return -scene.own


@dataclass(frozen=True, repr=False)
class LabelFlip(NoAttack):
    r"""One's own vector, but trained on labels turned around: y becomes classes - 1 - y.

    >>> LabelFlip().labels(torch.tensor([0, 3, 9]), classes=10)
    tensor([9, 6, 0])
    """

    own_momentum: ClassVar[bool] = False  # as in the published runs

    def labels(self, y: Tensor, classes: int) -> Tensor:
        return classes - 1 - y


@dataclass(frozen=True, repr=False)
class InnerProduct(Attack):
    r"""Minus a small multiple of the honest mean (IPM), :math:`-\epsilon \bar x`.

    Xie, Koyejo, Gupta: Fall of Empires, UAI 2020.

    >>> InnerProduct(epsilon=0.5)(torch.tensor([[2.0], [4.0]]), q=1)
    tensor([[-1.5000]])
    """

    epsilon: float = 0.1
    strength: ClassVar[str | None] = "epsilon"

    def __post_init__(self) -> None:
        self._measure("epsilon", positive=False)

    def vectors(self, scene: Scene) -> Tensor:
        return -self.epsilon * scene.mean


@dataclass(frozen=True, repr=False)
class ALittleIsEnough(Attack):
    r"""The honest mean, moved by z standard deviations in each coordinate (ALIE).

    .. math:: \bar x - z \sigma, \quad z = \Phi^{-1}\left(\frac{n - q - s}{n - q}\right), \quad
        s = \lfloor n/2 + 1 \rfloor - q

    by default: as far as it takes s honest supporters to look like the majority, and never below 0.

    Baruch, Baruch, Goldberg: A Little Is Enough, NeurIPS 2019.

    >>> ALittleIsEnough(z=1)(torch.tensor([[2.0], [4.0], [6.0]]), q=1)
    tensor([[2.]])
    >>> round(ALittleIsEnough().deviations(n=25, q=5), 4)
    0.2533
    """

    z: float | None = None
    strength: ClassVar[str | None] = "z"

    def __post_init__(self) -> None:
        if self.z is not None:
            self._measure("z", positive=False)

    def deviations(self, n: int, q: int) -> float:
        """z, for n workers of which q are attackers."""
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
    r"""Noise, :math:`\mathrm{scale} \cdot N(0, I)`, fresh for each attacker and round.

    >>> GaussianNoise(scale=2.0)(torch.ones(3, 2), q=4).shape
    torch.Size([4, 2])
    """

    scale: float = 1.0
    strength: ClassVar[str | None] = "scale"

    def __post_init__(self) -> None:
        self._measure("scale", positive=False)

    def vectors(self, scene: Scene) -> Tensor:
        shape = scene.q, scene.honest.shape[1]
        noise = torch.randn(shape, generator=scene.generator, device=scene.generator.device)
        return self.scale * noise.to(scene.honest.device)


@dataclass(frozen=True, repr=False)
class NonFinite(Attack):
    """Numbers that are none: all NaN, all infinite of either sign, or all of these in turn.

    >>> NonFinite("-inf")(torch.ones(3, 2), q=1)
    tensor([[-inf, -inf]])
    """

    kind: Literal["nan", "inf", "-inf", "mixture"] = "nan"

    def __post_init__(self) -> None:
        if self.kind not in ("nan", "inf", "-inf", "mixture"):
            raise ValueError(
                f"NonFinite sends 'nan', 'inf', '-inf' or a 'mixture', got kind={self.kind!r}"
            )

    def vectors(self, scene: Scene) -> Tensor:
        values = ("nan", "inf", "-inf") if self.kind == "mixture" else (self.kind,)
        numbers = scene.honest.new_tensor([float(value) for value in values])
        return numbers[torch.arange(scene.honest.shape[1], device=numbers.device) % len(values)]


class _Unnoticed(Attack):
    r"""The honest mean, moved against the deviations as far as the distances allow.

    .. math:: \bar x - \gamma \sigma
    """

    @abstractmethod
    def step(self, pairs: Array, to_mean: Array, along: Array, square: float) -> float:
        """The largest gamma, from squared distances between honest vectors and to their mean.

        ||mean - gamma sigma - x_i||^2 = to_mean_i + 2 gamma along_i + gamma^2 square.
        """

    def vectors(self, scene: Scene) -> Tensor:
        h = len(scene.honest)
        geometry = GivenPoints(scene.honest).geometry()
        to_mean = geometry.distances_to(geometry.uniform_over(np.arange(h))) ** 2
        direction = -scene.deviation
        square = float(direction.double().square().sum())
        if not square:
            return scene.mean
        along = scene.mean @ direction - scene.honest.to(direction) @ direction
        step = self.step(geometry.squared_distances, to_mean, along.double().cpu().numpy(), square)
        return scene.mean + step * direction


@dataclass(frozen=True, repr=False)
class MinMax(_Unnoticed):
    r"""No farther from any honest vector than the honest ones are from each other.

    .. math:: \bar x - \gamma \sigma, \quad
        \max_i \|\bar x - \gamma \sigma - x_i\| = \max_{i,j} \|x_i - x_j\|

    The paper searches gamma by bisection; each condition is a quadratic, solved here.

    Shejwalkar, Houmansadr: Manipulating the Byzantine, NDSS 2021.

    >>> MinMax()(torch.tensor([[-1.0], [1.0]]), q=1).round(decimals=2)
    tensor([[-1.]])
    """

    def step(self, pairs: Array, to_mean: Array, along: Array, square: float) -> float:
        room = (pairs.max() - to_mean).clip(min=0)
        return float(((np.sqrt(along**2 + square * room) - along) / square).min())


@dataclass(frozen=True, repr=False)
class MinSum(_Unnoticed):
    r"""A sum of squared distances to the honest vectors no larger than that of any honest one.

    .. math:: \bar x - \gamma \sigma, \quad
        \sum_i \|\bar x - \gamma \sigma - x_i\|^2 = \max_j \sum_i \|x_j - x_i\|^2

    The paper searches gamma by bisection; around the mean the condition is solved by a root.

    Shejwalkar, Houmansadr: Manipulating the Byzantine, NDSS 2021.

    >>> MinSum()(torch.tensor([[-1.0], [1.0]]), q=1).round(decimals=2)
    tensor([[-1.]])
    """

    def step(self, pairs: Array, to_mean: Array, along: Array, square: float) -> float:
        room = pairs.sum(axis=1).max() - to_mean.sum()
        return math.sqrt(max(0.0, room) / (len(pairs) * square))
