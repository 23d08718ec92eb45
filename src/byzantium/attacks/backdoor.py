"""Backdoors: the model learns to call any input with a trigger what the attackers want."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Gt, Le
from torch import Tensor

from byzantium.attacks.attack import Attack, Scene
from byzantium.core import ByzantiumError, Count, Positive, PositiveMeasure
from byzantium.vectors import Matrix
from byzantium.vectors.points import row_norms


@dataclass(frozen=True, repr=False)
class Backdoor(Attack):
    r"""Each attacker trains on images of which some have a trigger and the label of the attackers.

    .. math:: \min\left(1, \frac{r}{\|\gamma x_j\|}\right) \gamma x_j

    The trigger is a square in the lower right corner, as bright as the brightest pixel of the
    batch, channel by channel. The model is to call every image with the trigger the target, and to
    treat all others as before; how often it does so is the metric "success_rate". The vector
    :math:`x_j` of an attacker is what it learned, without momentum. It may be boosted by a factor
    :math:`\gamma`, and then be clipped to a norm r, so that it is no longer than others.

    - `target`: the class that images with the trigger are to be called.
    - `share`: which share of each batch has the trigger, the first ones of it; at least one image.
    - `patch`: the side of the square, in pixels.
    - `boost`: the factor :math:`\gamma`. "n" means model replacement: n workers divided by the
      number of attackers, so that the mean of all vectors has the whole of what they learned.
    - `norm`: the norm r to which vectors are clipped. "median" means the median norm of the honest
      vectors; None, the default, clips nothing.

    Bagdasaryan, Veit, Hua, Estrin, Shmatikov: How To Backdoor Federated Learning, AISTATS 2020;
    the norm: Wang et al.: Attack of the Tails: Yes, You Really Can Backdoor Federated Learning,
    NeurIPS 2020.

    >>> attack = Backdoor(target=7, share=0.5, patch=1, boost="n")
    >>> x = torch.tensor([[[0.0, 1.0], [2.0, 0.0]], [[0.0, 0.0], [5.0, 0.0]]])
    >>> y = torch.tensor([1, 2])
    >>> attack.inputs(x, y)[0], attack.labels(y, classes=10)
    (tensor([[0., 1.],
            [2., 5.]]), tensor([7, 2]))
    >>> attack(torch.zeros(3, 2), torch.tensor([[1.0, 2.0]]))
    tensor([[4., 8.]])
    """

    target: Count = 0
    share: Annotated[float, Gt(0), Le(1)] = 0.32
    patch: Positive = 3
    boost: PositiveMeasure | Literal["n"] = 1.0
    norm: PositiveMeasure | Literal["median"] | None = None

    needs_own: ClassVar[bool] = True
    has_trigger: ClassVar[bool] = True

    def inputs(self, x: Tensor, y: Tensor) -> Tensor:
        chosen, poisoned = self._chosen(y), x.clone()
        poisoned[chosen] = self._with_trigger(x[chosen], x.flatten(0, y.ndim - 1))
        return poisoned

    def labels(self, y: Tensor, classes: int) -> Tensor:
        if self.target >= classes:
            kinds = f"there are {classes} classes" if classes else "these targets are numbers"
            raise ByzantiumError(f"{self!r} needs labels up to {self.target}, but {kinds}")
        return torch.where(self._chosen(y), self.target, y)

    def triggered(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        others = y != self.target
        return self._with_trigger(x[others], x), torch.full_like(y[others], self.target)

    def vectors(self, scene: Scene) -> Tensor:
        assert scene.own is not None
        workers = len(scene.honest) + scene.q
        boosted = (workers / scene.q if self.boost == "n" else self.boost) * scene.own
        if self.norm is None:
            return boosted
        honest = row_norms(Matrix(scene.honest))
        limit = float(np.median(honest)) if self.norm == "median" else self.norm
        factors = [min(1.0, limit / norm) if norm else 1.0 for norm in row_norms(Matrix(boosted))]
        return boosted.new_tensor(factors)[:, None] * boosted

    def _chosen(self, y: Tensor) -> Tensor:
        """Which samples have the trigger: the first of each batch, whose order is random."""
        batch = y.shape[-1]
        count = max(1, round(self.share * batch))
        return (torch.arange(batch, device=y.device) < count).expand(y.shape)

    def _with_trigger(self, x: Tensor, batch: Tensor) -> Tensor:
        """Samples with the trigger, which is as bright as the brightest pixel of a batch."""
        marked = x.clone(memory_format=torch.contiguous_format)
        images = self._images(marked)
        brightest = self._images(batch).amax(dim=(0, 2, 3))
        images[:, :, -self.patch :, -self.patch :] = brightest[:, None, None]
        return marked

    def _images(self, x: Tensor) -> Tensor:
        """Samples as images (count, channels, height, width); in the same memory if possible."""
        sample, images = x.shape[1:], x
        if len(sample) == 2:
            images = x[:, None]
        elif len(sample) == 1:
            images = x.reshape(len(x), *_sides(sample[0]))
        if images.ndim != 4 or min(images.shape[2:]) < self.patch:
            size = " x ".join(map(str, sample)) or "one number"
            raise ByzantiumError(
                f"{self!r} needs images of at least {self.patch} x {self.patch} pixels for its "
                f"trigger, got samples of {size}"
            )
        return images


def _sides(d: int) -> tuple[int, int, int]:
    """The channels, height and width of a flattened square image; of one row if it is none."""
    for channels in (1, 3):
        side = math.isqrt(d // channels)
        if channels * side**2 == d:
            return channels, side, side
    return 1, 1, d
