"""The mimic attack of the bucketing paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from byzantium.core import ByzantiumError, Count, Positive
from byzantium.threats.attack import Attack, Scene


@dataclass(frozen=True, repr=False)
class Mimic(Attack):
    r"""All attackers copy one honest worker, :math:`x_{i_\star}`, and so over-represent it.

    Nothing tells them from that worker: they cannot be filtered out. Whom to copy is found during a
    warm-up, along the direction z of largest variance of all that the honest workers sent, by
    Oja's method: with :math:`\mu` the mean so far,

    .. math:: z \leftarrow \frac{t}{1+t} z + \frac{1}{1+t} \sum_i (x_i - \mu)(x_i - \mu)^\top z,
        \quad i_\star = \arg\max_i z^\top x_i

    and z is brought to length one in each step. During the warm-up they copy the current argmax,
    afterwards that worker for good, or with `retarget` the argmax of each round. `warmup` counts
    rounds; None is one epoch. (The published runs used 1.) A `target` fixes the worker from the
    beginning.

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, 2022.

    >>> Mimic(target=1)(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), q=2)
    tensor([[3., 4.],
            [3., 4.]])
    """

    warmup: Positive | None = None
    retarget: bool = False
    target: Count | None = None

    def check_parameters(self) -> None:
        if self.target is not None and (self.warmup is not None or self.retarget):
            raise ByzantiumError("Mimic takes a target, or looks for one, not both")

    def vectors(self, scene: Scene) -> Tensor:
        honest = scene.honest
        if self.target is not None:
            if self.target >= len(honest):
                raise ByzantiumError(f"{self!r} needs more than {self.target} honest workers")
            return honest[self.target]
        state = self._state
        if int(state["rounds"]) < self._warm_up_rounds(scene):
            self._observe(honest, scene.generator)
        elif not self.retarget:
            return honest[int(state["copied"])]
        state["copied"] = (honest @ state["direction"].to(honest)).argmax().cpu()
        return honest[int(state["copied"])]

    def _warm_up_rounds(self, scene: Scene) -> int:
        rounds = scene.epoch if self.warmup is None else self.warmup
        if rounds is None:
            raise ByzantiumError(f"{self!r} warms up for an epoch: say epoch=..., or warmup=...")
        return max(1, rounds)

    def _observe(self, honest: Tensor, generator: torch.Generator) -> None:
        """One step of Oja's method."""
        state, t = self._state, int(self._state["rounds"])
        mean = honest.mean(dim=0)
        if t == 0:
            start = torch.randn(honest.shape[1], generator=generator, device=generator.device)
            state["mean"], state["direction"] = mean, start.to(honest) / start.norm()
        else:
            state["mean"] = (t * state["mean"] + mean) / (1 + t)
        mean, z = state["mean"], state["direction"]
        along = honest @ z - mean @ z
        step = along @ honest - along.sum() * mean
        z = (t * z + step) / (1 + t)
        length = z.norm()
        state["direction"] = z / length if length > 0 else state["direction"]
        state["rounds"] = torch.tensor(t + 1)

    @property
    def _state(self) -> dict[str, Tensor]:
        if "_observed" not in self.__dict__:
            self.reset()
        state: dict[str, Tensor] = self.__dict__["_observed"]
        return state

    def state_dict(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self._state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if unknown := sorted(set(state) - {"rounds", "copied", "mean", "direction"}):
            raise ByzantiumError(f"{self!r} has no such state: {', '.join(unknown)}")
        loaded = {name: value.clone() for name, value in state.items()}
        object.__setattr__(self, "_observed", {"rounds": torch.tensor(0)} | loaded)
