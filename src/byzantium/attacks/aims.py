"""What an attacker who tries the server's rule wants: how harmful a result is."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from byzantium.attacks.attack import Attack, Scene
from byzantium.core import ByzantiumError

#: The aims of attacks that search.
Aim = Literal["alignment", "distance", "loss", "collapse"]


def harm(aim: Aim, result: Tensor, mean: Tensor, model: Tensor | None) -> float:
    """How harmful a result of the rule is, by an aim other than "loss".

    - `aim`: "alignment": how far the result points away from the honest mean; "distance": how far
      it is from the honest mean; "collapse": how much a step with it shrinks the model.
    - `result`: the result.
    - `mean`: the honest mean.
    - `model`: the parameters of the model, for "collapse".

    >>> import torch
    >>> mean = torch.tensor([1.0, 0.0])
    >>> harm("alignment", -2 * mean, mean, None), harm("distance", -2 * mean, mean, None)
    (2.0, 3.0)
    """
    if aim == "distance":
        return float((result - mean).norm())
    if aim == "collapse":
        assert model is not None
        return float(result @ model)
    return -float(result @ mean)


def check_aim(attack: Attack, aim: Aim, scene: Scene) -> None:
    """Raise an error if attackers know too little in a scene for an aim."""
    if aim == "loss" and scene.step_loss is None:
        raise ByzantiumError(
            f"{attack!r} needs the loss after a step, step_loss=..., which a simulation passes"
        )
    if aim == "collapse" and scene.model is None:
        raise ByzantiumError(
            f"{attack!r} needs the parameters of the model, model=..., which a simulation passes"
        )
