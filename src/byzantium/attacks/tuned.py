"""An attack that searches for the strength that hurts the server's rule most."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from byzantium.attacks.attack import AIMS_AT_STEPS, Aim, Attack, Scene, check_aim, harm
from byzantium.core import ByzantiumError

# Ten strengths to try, of either sign; then up to six more around the best.
GRID = tuple(2.0**k for k in range(-4, 6))
# What it needs because the attack does.
NEEDS = (
    *("needs_own", "needs_root", "needs_model", "needs_last_aggregate", "needs_node"),
    *("needs_server", "has_trigger"),
)


@dataclass(frozen=True, repr=False)
class Tuned(Attack):
    r"""Another attack, at the strength that hurts the server's rule most.

    .. math:: \operatorname*{argmax}_\lambda
        \|\mathrm{rule}(x_1, \dots, \mathrm{attack}_\lambda) - \bar x\|

    By default that is the strength that moves the result farthest from the honest mean. In each
    round it tries at most 26 strengths :math:`\lambda`, on copies of the rule and with random
    numbers of the attackers' own: a trial never changes the server's state, and never reveals its
    next random permutation.

    - `attack`: the attack to tune; its class must name a `strength`, as `InnerProduct`,
      `ALittleIsEnough` and `GaussianNoise` do.
    - `both`: whether to try negative strengths, too: a rule that resists a push in one direction
      may yield in the other. `repr` always shows it, because earlier runs tried one sign only.
    - `aim`: what counts as harm, as for `Adaptive`: "distance", "alignment", "loss" or "collapse".

    >>> from byzantium import Mean
    >>> from byzantium.attacks import InnerProduct
    >>> Tuned(InnerProduct())(torch.ones(4, 1), q=1, rule=Mean())  # the stronger the farther
    tensor([[-32.]])
    """

    attack: Attack
    both: bool = field(default=True, metadata={"written": True})
    aim: Aim = "distance"

    def check_parameters(self) -> None:
        if self.attack.strength is None:
            raise ByzantiumError(
                "Tuned needs an attack that has a strength, such as InnerProduct, "
                f"ALittleIsEnough or GaussianNoise, got {self.attack!r}"
            )
        needs = {name: getattr(self.attack, name) for name in NEEDS}
        needs["needs_model"] |= self.aim == "collapse"
        needs["needs_server"] |= self.aim in AIMS_AT_STEPS
        vars(self).update(needs)

    def inputs(self, x: Tensor, y: Tensor) -> Tensor:
        return self.attack.inputs(x, y)

    def labels(self, y: Tensor, classes: int) -> Tensor:
        return self.attack.labels(y, classes)

    def triggered(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.attack.triggered(x, y)

    def vectors(self, scene: Scene) -> Tensor:
        if scene.rule is None:
            raise ByzantiumError(f"{self!r} needs the server's rule to tune itself to, rule=...")
        check_aim(self, self.aim, scene)
        device = scene.generator.device
        seed = int(torch.randint(2**62, (), generator=scene.generator, device=device))
        own = dataclasses.replace(scene, generator=torch.Generator())
        h, d = scene.honest.shape
        vectors = scene.honest.new_empty(h + scene.q, d)
        vectors[:h] = scene.honest

        def attack_vectors(strength: float) -> Tensor:
            attack = copy.copy(self.attack)
            object.__setattr__(attack, str(attack.strength), strength)
            own.generator.manual_seed(seed)
            return attack.vectors(own)

        def harm_of(strength: float) -> float:
            vectors[h:] = attack_vectors(strength)
            rule, generator = scene.rule, torch.Generator().manual_seed(seed)
            assert rule is not None
            root = rule.trusted(scene.root, scene.root_loss)
            result = rule.preview(vectors, generator, root=root, weights=scene.weights)
            if self.aim == "loss":
                assert scene.step_loss is not None
                return scene.step_loss(result)
            return harm(self.aim, result, own.mean, scene.model)

        strengths = (*GRID, *(-strength for strength in GRID)) if self.both else GRID
        harms = {strength: harm_of(strength) for strength in strengths}
        most = max(harms, key=harms.__getitem__)
        for step in (abs(most) / 4, abs(most) / 8, abs(most) / 16):
            best = max(harms, key=harms.__getitem__)
            for strength in (max(best - step, -GRID[-1]), min(best + step, GRID[-1])):
                if strength not in harms:
                    harms[strength] = harm_of(strength)
        return attack_vectors(max(harms, key=harms.__getitem__))

    def state_dict(self) -> dict[str, Tensor]:
        return self.attack.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.attack.load_state_dict(state)
