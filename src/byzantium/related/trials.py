"""Rules that try each vector as a step, on data that the server trusts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from byzantium.core import ByzantiumError, Count, Measure, PositiveMeasure
from byzantium.rules import Weighting
from byzantium.rules.kinds import whole_rows
from byzantium.vectors import Geometry
from byzantium.vectors.distances import Array


@dataclass(frozen=True, repr=False)
class Zeno(Weighting):
    r"""The mean of the n - f vectors that lower the loss of root data most.

    .. math:: \mathrm{score}(x_i) = F(w) - F(w - \gamma x_i) - \gamma \rho \|x_i\|^2

    F is the loss of data that the server holds (root data), w the model and :math:`\gamma` the
    length of the trial. The rule gets F as a function of the step, `rule(updates, root=loss)`:
    `loss(v)` is :math:`F(w - v)`. A simulation with `root` passes it.

    The trial must be small where workers hold different classes: a step along one class lowers the
    loss of that class and raises the others', so with the learning rate of the server, honest
    workers can score below an attacker who does nothing. But if the server steps farther than the
    trial, attackers can send a good direction at a length that only the trial bears; `rho` alone
    is against that.

    - `f`: how many vectors may be Byzantine, at least 0 and below n.
    - `trial`: :math:`\gamma`, above 0.
    - `rho`: how much the squared norm counts, at least 0; the :math:`\rho` of the paper is
      :math:`\gamma` times this number.

    Nothing is proved for honest vectors that differ: with fewer attackers than f, those honest
    vectors are left out whose classes the model knows already.

    Xie, Koyejo, Gupta: Zeno: Distributed Stochastic Gradient Descent with Suspicion-based
    Fault-tolerance, ICML 2019.

    >>> w, goal = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0])
    >>> def loss(step):
    ...     return float((w - step - goal).square().sum())
    >>> updates = torch.tensor([[-1.0, 0.0], [0.0, -1.0], [9.0, 9.0]])
    >>> Zeno(f=1)(updates, root=loss)
    tensor([-0.5000, -0.5000])
    """

    f: Count
    trial: PositiveMeasure = 0.01
    rho: Measure = 0.005
    delta_max: ClassVar[float] = 1
    root_form: ClassVar[Literal["gradient", "loss"]] = "loss"

    @property
    def max_share(self) -> float:
        return self.delta_max

    @property
    def needs_root(self) -> bool:
        return True

    def min_vectors(self) -> tuple[int, str]:
        return self.f + 1, "f + 1"

    def weights(self, geometry: Geometry) -> Array:
        rows, loss = whole_rows(self, geometry), geometry.basis.source.root_loss
        if loss is None:
            raise ByzantiumError(f"{self!r} needs the loss of root data, root=...")
        scores = np.empty(geometry.n)
        before = float(loss(rows.new_zeros(rows.shape[1])))
        for k, row in enumerate(rows):
            square = float(row.double().square().sum())
            score = before - float(loss(self.trial * row)) - self.trial * self.rho * square
            scores[k] = score if math.isfinite(score) else -math.inf
        best = (-scores).argsort(kind="stable")
        return geometry.uniform_over(best[: geometry.n - self.f])
