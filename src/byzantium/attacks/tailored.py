"""Attacks of the literature that are tailored to one rule: they know what it lets pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn.functional import normalize

from byzantium._kernels.torch_passes import column_blocks
from byzantium.attacks.attack import Attack, Scene
from byzantium.attacks.stateless import ALittleIsEnough
from byzantium.core import Measure
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.points import SourcePoints
from byzantium.vectors.source import Matrix

# A perpendicular shorter than this, of a vector of length one, is rounding.
PERPENDICULAR = 1e-6
# How often Fang halves the distance at most: to less than 1e-5 of the bound.
HALVINGS = 17


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


@dataclass(frozen=True, repr=False)
class Fang(Attack):
    r"""Against the signs of the honest mean, as far as Krum or a trimmed mean lets it pass.

    With :math:`s = \mathrm{sign}(\bar x)`, the attack against Krum sends

    .. math:: -\lambda s, \quad \lambda \le \frac{1}{\|s\|} \left(\sqrt{\frac{1}{n - 2q - 1}
        \min_i \sum_{i \to j} \|x_i - x_j\|^2} + \max_i \|x_i\|\right)

    where :math:`i \to j` runs over the n - q - 2 honest vectors nearest to i. It begins with the
    bound, beyond which `Krum(f=q)` selects no attacker, and halves :math:`\lambda`, 17 times at
    most, until that rule selects one; otherwise a vector near zero is sent.

    The attack against trimming sends a number beyond all honest ones in each coordinate: where
    s = 1, half of the smallest honest number if that is positive, else twice the smallest; where
    s = -1, twice the largest if that is positive, else half of it; where s = 0, zero.

    All attackers send the same vector. In the paper, those against Krum differ by a tiny noise, and
    those against trimming draw factors between 1 and 2.

    - `target`: the rule that is attacked: "krum", or "trim" for the trimmed mean and the median.

    Fang, Cao, Jia, Gong: Local Model Poisoning Attacks to Byzantine-Robust Federated Learning,
    USENIX Security 2020; with full knowledge.

    >>> honest = torch.tensor([[1.0, -3.0], [2.0, 1.0], [3.0, 1.0]])
    >>> Fang("trim")(honest, q=1)
    tensor([[0.5000, 2.0000]])
    >>> Fang("krum")(honest, q=1).sign()
    tensor([[-1.,  1.]])
    """

    target: Literal["krum", "trim"] = "krum"

    def vectors(self, scene: Scene) -> Tensor:
        signs = scene.mean.sign()
        if self.target == "krum":
            return -_largest_selected(scene, signs) * signs
        smallest, largest = torch.aminmax(scene.honest, dim=0)
        extreme = torch.where(signs > 0, smallest, largest)
        return signs.abs() * torch.where(signs * extreme > 0, extreme / 2, extreme * 2)


def _largest_selected(scene: Scene, signs: Tensor) -> float:
    """The largest tried distance at which Krum selects one of the attackers.

    With s the signs, ||x_i + distance s||^2 = ||x_i||^2 + 2 distance <x_i, s> + distance^2 ||s||^2:
    a trial costs n^2.
    """
    (h, d), q = scene.honest.shape, scene.q
    geometry = Geometry.of(SourcePoints(Matrix(scene.honest), anchors={"origin": None}))
    between, norms = geometry.squared_distances * geometry.unit**2, geometry.norms
    along = np.zeros(h)
    for columns in column_blocks(h, d, torch.float64):
        along += (scene.honest[:, columns].double() @ signs[columns].double()).cpu().numpy()
    square = float(signs.abs().sum(dtype=torch.float64)) or 1.0
    # Where there are too few vectors for Krum, one neighbor counts.
    neighbors = max(1, h - 2)
    nearest = np.sort(between, axis=1)[:, 1 : neighbors + 1].sum(axis=1).min()
    distance = (math.sqrt(nearest / max(1, h - q - 1)) + norms.max()) / math.sqrt(square)
    for _ in range(HALVINGS):
        to_attackers = (norms**2 + 2 * distance * along + distance**2 * square).clip(min=0)
        honest = np.hstack([between, np.repeat(to_attackers[:, None], q, axis=1)])
        attacker = np.hstack([np.zeros(q), to_attackers])
        scores, own = (
            np.sort(rows, axis=-1)[..., 1 : neighbors + 1].sum(axis=-1)
            for rows in (honest, attacker)
        )
        if own < scores.min():
            break
        distance /= 2
    return float(distance)


@dataclass(frozen=True, repr=False)
class ByzMean(Attack):
    r"""Two groups of attackers that bring the mean of all vectors to that of a hidden attack.

    .. math:: m = \bar x - z \sigma, \quad
        \frac{1}{q_2} \left((n - q_1) m - \sum_i x_i\right) = m - \frac{h}{q_2} z \sigma

    The first :math:`q_1 = \lfloor q/2 \rfloor` attackers send m, as in `ALittleIsEnough`; each of
    the other :math:`q_2 = q - q_1` sends the second vector, so that the mean of all n vectors is m.
    The sum is over the h honest vectors.

    - `z`: how many standard deviations, at least 0.

    Xu, Huang, Song, Lan: Byzantine-Robust Federated Learning through Collaborative Malicious
    Gradient Filtering, ICDCS 2022.

    >>> honest = torch.tensor([[2.0], [4.0], [6.0]])
    >>> sent = ByzMean(z=0.5)(honest, q=2)
    >>> sent, torch.cat([honest, sent]).mean(dim=0)
    (tensor([[3.],
            [0.]]), tensor([3.]))
    """

    z: Measure = 0.5
    strength: ClassVar[str | None] = "z"

    def vectors(self, scene: Scene) -> Tensor:
        h, q = len(scene.honest), scene.q
        first = q // 2
        moves = [self.z] * first + [self.z * (1 + h / (q - first))] * (q - first)
        deviations = torch.tensor(moves, dtype=scene.mean.dtype, device=scene.mean.device)
        return scene.mean - deviations[:, None] * scene.deviation
