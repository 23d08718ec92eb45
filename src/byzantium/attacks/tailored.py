"""Attacks of the literature that are tailored to one rule: they know what it lets pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn.functional import normalize

from byzantium.attacks.attack import Attack, Scene
from byzantium.attacks.stateless import ALittleIsEnough
from byzantium.core import Measure

# A perpendicular shorter than this, of a vector of length one, is rounding.
PERPENDICULAR = 1e-6


@dataclass(frozen=True, repr=False)
class RelocatedPerturbation(Attack):
    r"""The server's last aggregate, moved a short way across the honest direction (ROP).

    .. math:: \pi m + (1 - \pi) \bar x + z \left(\sin\theta \, p + \cos\theta \, u / \|u\|\right),
        \quad u = \lambda m + (1 - \lambda) \bar x

    where m is the last aggregate, zero in the first round, and p the part of the vector
    :math:`(1, \dots, 1)` perpendicular to u, scaled to length one. It is made against
    `CenteredClipping`, whose center is m: with :math:`\pi = 1` and a radius above z the attackers
    are never clipped, and push in a direction in which honest workers do not pull back.

    - `relocation`: :math:`\pi`, the weight of the last aggregate in the place to start from; the
      rest is the weight of the honest mean.
    - `reference`: :math:`\lambda`, the weight of the last aggregate in the direction u.
    - `angle`: :math:`\theta`, the angle between the push and u, in degrees.
    - `z`: the length of the push, at least 0; None, the default, means the number z of
      `ALittleIsEnough`.

    Özfatura, Özfatura, Küpçü, Gündüz: Byzantines Can Also Learn From History: Fall of Centered
    Clipping in Federated Learning, IEEE Transactions on Information Forensics and Security, 2024.

    >>> attack, honest = RelocatedPerturbation(z=3), torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    >>> attack(honest, q=1, last_aggregate=torch.tensor([0.0, 5.0]))  # u points upwards
    tensor([[-3.,  5.]])
    """

    relocation: Annotated[float, Ge(0), Le(1)] = 1.0
    reference: Annotated[float, Ge(0), Le(1)] = 0.9
    angle: Annotated[float, Ge(0), Le(360)] = 270.0
    z: Measure | None = None
    strength: ClassVar[str | None] = "z"
    needs_last_aggregate: ClassVar[bool] = True

    def vectors(self, scene: Scene) -> Tensor:
        mean, last = scene.mean.double(), scene.last_aggregate
        last = torch.zeros_like(mean) if last is None else last.to(mean)
        start = self.relocation * last + (1 - self.relocation) * mean
        u = _unit(self.reference * last + (1 - self.reference) * mean)
        ones = _unit(torch.ones_like(mean))
        p = normalize(ones - (ones @ u) * u, dim=0, eps=PERPENDICULAR)
        angle, z, n = math.radians(self.angle), self.z, len(scene.honest) + scene.q
        z = ALittleIsEnough().deviations(n, scene.q) if z is None else z
        return start + z * (math.sin(angle) * p + math.cos(angle) * u)


def _unit(vector: Tensor) -> Tensor:
    """A vector scaled to length one; zero stays zero."""
    return normalize(vector, dim=0, eps=torch.finfo(vector.dtype).tiny)
