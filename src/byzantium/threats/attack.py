"""What every attack shares: what it sees, what it may keep, and how it is called."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from byzantium.aggregation import Aggregator, moments
from byzantium.core import ByzantiumError, Formula, Stateful, cached_property, fork_safe


@dataclass(frozen=True)
class Scene:
    """All that the attackers know when they act; they are omniscient and collude.

    honest:    (h, d), what the honest workers send.
    own:       (q, d), what the attackers would send if they were honest; None if nobody asked.
    q:         how many attackers there are.
    rule:      the server's rule, to try things on copies of.
    epoch:     how many rounds an epoch has, if there are epochs.
    generator: of the attackers; never the server's.
    """

    honest: Tensor
    own: Tensor | None
    q: int
    rule: Aggregator | None
    epoch: int | None
    generator: torch.Generator

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """The honest mean and the unbiased standard deviation by coordinate, each (d,)."""
        return moments(self.honest)

    @property
    def mean(self) -> Tensor:
        return self.moments[0]

    @property
    def deviation(self) -> Tensor:
        return self.moments[1]


class Attack(Formula, Stateful, ABC):
    """attack(honest, own) -> (q, d), what the attackers send."""

    needs_own: ClassVar[bool] = False  # whether the attackers must compute gradients of their own
    own_momentum: ClassVar[bool] = False  # whether these carry momentum, as honest ones do
    strength: ClassVar[str | None] = None  # the field that says how hard it pushes

    @abstractmethod
    def vectors(self, scene: Scene) -> Tensor:
        """(q, d), or (d,) where all attackers send the same."""

    def labels(self, y: Tensor, classes: int) -> Tensor:
        """The labels the attackers train on."""
        return y

    @fork_safe
    def __call__(
        self,
        honest: Tensor,
        own: Tensor | None = None,
        *,
        q: int | None = None,
        rule: Aggregator | None = None,
        epoch: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """(q, d): what q attackers send, who see what the honest workers send.

        q is the number of rows of `own`, which only some attacks need; otherwise say it.
        """
        if self.needs_own and own is None:
            raise ByzantiumError(f"{self!r} needs the attackers' own vectors")
        if q is None:
            if own is None:
                raise ByzantiumError(
                    f"{self!r} needs the attackers' own vectors, or their number q"
                )
            q = len(own)
        generator = generator or torch.Generator().manual_seed(secrets.randbits(63))
        sent = self.vectors(Scene(honest.detach(), own, q, rule, epoch, generator))
        d = honest.shape[1]
        if not isinstance(sent, Tensor) or sent.shape not in ((d,), (1, d), (q, d)):
            raise ByzantiumError(
                f"{self!r} must send {q} vectors of dimension {d}, or one for all, got a "
                f"{type(sent).__name__} of shape {tuple(getattr(sent, 'shape', ()))}"
            )
        return sent.detach().to(honest).expand(q, d)
