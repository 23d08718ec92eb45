"""The mimic attack of the bucketing paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from byzantium.attacks.attack import Attack, Scene
from byzantium.core import ByzantiumError, Count, Positive


@dataclass(frozen=True, repr=False)
class Mimic(Attack):
    r"""All attackers copy one honest worker, :math:`x_{i_\star}`, so that it is over-represented.

    No rule can distinguish them from that worker, so no rule can filter them out. A warm-up finds
    the worker to copy: the one that lies farthest in the direction z in which the honest vectors
    vary most. Oja's method finds z. With :math:`\mu` the mean of all honest vectors so far,

    .. math:: z \leftarrow \frac{t}{1+t} z + \frac{1}{1+t} \sum_i (x_i - \mu)(x_i - \mu)^\top z,
        \quad i_\star = \operatorname*{argmax}_i z^\top x_i

    and z is scaled to length one after each step. During the warm-up the attackers copy the current
    :math:`i_\star`; after it they copy the last one. The attack has a state: z, the mean, the
    number of rounds and :math:`i_\star`.

    :math:`i_\star` counts the honest vectors of a round. Where only some of the workers take part,
    that is not always the same worker, and if there are too few, the attackers choose anew; with
    `retarget` they choose in each round the one of those present that lies farthest.

    Where the warm-up takes more than one round, the code that the authors released differs: it
    scales the sum to length one before it is added, so that the first rounds count more. (The text
    of the paper has both.) With a warm-up of one round, as in the published runs, there is no
    difference.

    - `warmup`: how many rounds the warm-up takes, at least 1; None means one epoch. The published
      runs used 1.
    - `retarget`: whether to choose a new :math:`i_\star` in each round after the warm-up, too.
    - `target`: the index of the worker to copy from the beginning; then there is no warm-up. To
      repeat a run whose warm-up found a worker in its first round, name that worker.

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
            raise ByzantiumError(
                "Mimic takes either a target, or warmup and retarget to find one, not both"
            )

    def vectors(self, scene: Scene) -> Tensor:
        honest = scene.honest
        if self.target is not None:
            if self.target >= len(honest):
                raise ByzantiumError(
                    f"{self!r} needs more than {self.target} honest workers, got {len(honest)}"
                )
            return honest[self.target]
        state = self._state
        rounds = scene.epoch if self.warmup is None else self.warmup
        if rounds is None:
            raise ByzantiumError(
                f"{self!r} warms up for one epoch of unknown length: pass epoch=... in the call, "
                "or set warmup=..."
            )
        if int(state["rounds"]) < max(1, rounds):
            self._observe(honest, scene.generator)
        elif not self.retarget and int(state["copied"]) < len(honest):
            return honest[int(state["copied"])]
        state["copied"] = (honest @ state["direction"].to(honest)).argmax().cpu()
        return honest[int(state["copied"])]

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
        if "_memory" not in self.__dict__:
            self.reset()
        return self.__dict__["_memory"]

    def state_dict(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self._state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if unknown := sorted(set(state) - {"rounds", "copied", "mean", "direction"}):
            raise ByzantiumError(
                f"{self!r} has only the state 'rounds', 'copied', 'mean' and 'direction', got "
                f"{', '.join(unknown)}"
            )
        copies = {name: value.clone() for name, value in state.items()}
        object.__setattr__(self, "_memory", {"rounds": torch.tensor(0)} | copies)
