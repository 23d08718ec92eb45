"""When the server takes its steps, and how long workers take: the clocks of trainings.

With every clock, vectors wait in buffers until enough of these are filled; the loop is in
`asynchronous.py`.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Gt, Le

from byzantium.core import (
    ByzantiumError,
    Formula,
    Positive,
    PositiveMeasure,
    Registry,
    notation,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: The clock of a training that names none: rounds, as in Algorithm 2.
SYNCHRONOUS = "Synchronous()"


@dataclass(frozen=True, kw_only=True, repr=False)
class Clock(Formula, ABC):
    r"""A clock: when the server takes a step, and how long workers take, in simulated time.

    A worker fetches the model, computes its vector on it, and sends it. The server keeps the mean
    of what arrives in each of its buffers. When enough of them are filled, it applies the rule to
    them, takes a step, and empties them: that is a round.

    Times of all distributions have the mean 1, so that clocks can be compared.

    - `times`: how long a vector takes: "constant"; "exponential"; or "pareto", which has a heavy
      tail, :math:`P(T > t) = (t_0 / t)^\alpha`.
    - `tail`: the exponent :math:`\alpha` of "pareto", above 1; up to 2 the variance is infinite.
    - `lasting`: whether a worker draws one time for the whole training, and not one for each
      vector, so that the same workers are always slow.
    - `haste`: how many times faster attackers are than honest workers, at most 1000.

    `waits` says whether a worker waits for the next step before it begins again.

    >>> import torch
    >>> FedBuff(size=3, times="pareto").draw(4, torch.Generator().manual_seed(0)).min() >= 1 / 3
    tensor(True)
    """

    waits: ClassVar[bool] = False

    times: Literal["constant", "exponential", "pareto"] = "constant"
    tail: Annotated[float, Gt(1)] = 1.5
    lasting: bool = False
    haste: Annotated[float, Gt(0), Le(1000)] = 1.0

    @abstractmethod
    def buffer_count(self, n: int) -> int:
        """How many buffers the server has for n workers; worker i sends to buffer i mod this."""

    @abstractmethod
    def vectors(self, n: int) -> int:
        """How many buffers are filled before a step, and how many vectors the rule gets."""

    def factor(self, staleness: int) -> float:
        """The factor of a vector that was computed on a model so many steps ago."""
        return 1.0

    @property
    def patience(self) -> float:
        """How long there may be no step until workers are dealt to other buffers."""
        return math.inf

    def check_size(self, n: int, attackers: int) -> None:
        """Raise an error unless it can be used with n workers of which some attack."""
        vectors = self.vectors(n)
        if not attackers < vectors <= n:
            raise ByzantiumError(
                f"{self!r} needs more buffers than attackers and no more than workers, so that one "
                f"has honest vectors only: from {attackers + 1} to {n}, got {vectors}"
            )

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Random times, as many as `count`, in float64; their mean is 1."""
        import torch

        # From (0, 1]: a time is never infinite.
        share = 1 - torch.rand(count, dtype=torch.float64, generator=generator)
        if self.times == "exponential":
            return -share.log()
        if self.times == "pareto":
            return (self.tail - 1) / self.tail * share ** (-1 / self.tail)
        return torch.ones_like(share)


@dataclass(frozen=True, repr=False)
class Synchronous(Clock):
    """A clock whose server waits for all workers, and they for its step: Algorithm 2, with times.

    With any times, its rounds are those of a training without a clock, to the bit; each lasts as
    long as its slowest worker takes.

    >>> Synchronous(times="pareto").vectors(25)
    25
    """

    waits: ClassVar[bool] = True

    def buffer_count(self, n: int) -> int:
        return n

    def vectors(self, n: int) -> int:
        return n


@dataclass(frozen=True, repr=False)
class BASGD(Clock):
    r"""Buffered asynchronous SGD: worker i sends to buffer i mod B, and all B must be filled.

    .. math:: w \leftarrow w - \eta \operatorname{Rule}(h_1, \dots, h_B), \qquad
        h_b = \text{the mean of what the workers of buffer } b \text{ sent since the last step}

    No worker waits for another one. However often an attacker sends, its vectors are in one buffer,
    so that q attackers have at most q of the B vectors that the rule is applied to. With as many
    buffers as workers and constant times it is Algorithm 2, to the bit.

    Yang, Li: BASGD: Buffered Asynchronous SGD for Byzantine Learning, ICML 2021.

    - `buffers`: how many buffers there are, B: more than twice the f of the rule.
    - `timer`: if there was no step for so long, the buffers are emptied and the workers are dealt
      to them anew, those that have sent something first, so that these are spread evenly. By
      default never.

    >>> BASGD(buffers=11, times="exponential")
    BASGD(buffers=11, times='exponential')
    """

    buffers: Positive
    timer: PositiveMeasure | None = None

    def buffer_count(self, n: int) -> int:
        return self.buffers

    def vectors(self, n: int) -> int:
        return self.buffers

    @property
    def patience(self) -> float:
        return math.inf if self.timer is None else self.timer


@dataclass(frozen=True, repr=False)
class FedBuff(Clock):
    r"""A buffer of K workers' updates, weighted by their staleness.

    .. math:: w \leftarrow w - \eta \operatorname{Rule}(s(\tau_1) u_1, \dots, s(\tau_K) u_K),
        \qquad s(\tau) = 1 / \sqrt{1 + \tau}

    The server takes a step as soon as K different workers have sent something. The staleness
    :math:`\tau` of an update is how many steps the server has taken since its worker fetched the
    model. A worker is in the buffer once, with the mean of what it sent since the last step: an
    attacker that sends often does not fill the buffer.

    Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered
    Asynchronous Aggregation, AISTATS 2022. There the mean is in place of the rule.

    - `size`: how many workers the buffer holds, K: more than twice the f of the rule.

    >>> FedBuff(size=11).factor(staleness=3)
    0.5
    """

    size: Positive

    def buffer_count(self, n: int) -> int:
        return n

    def vectors(self, n: int) -> int:
        return self.size

    def factor(self, staleness: int) -> float:
        return 1 / math.sqrt(1 + staleness)


@functools.cache
def members() -> Registry[type[Clock]]:
    """All clocks that `parse_clock` knows, by name: ours, and those of loaded plugins.

    >>> sorted(members())
    ['BASGD', 'FedBuff', 'Synchronous']
    """
    shipped: tuple[type[Clock], ...] = (Synchronous, BASGD, FedBuff)
    return Registry("clock", {one.__name__: one for one in shipped})


def parse_clock(text: str) -> Clock:
    """Read a clock from text, such as "BASGD(buffers=11)"; the inverse of `repr`.

    >>> parse_clock("FedBuff(11, times='pareto')")
    FedBuff(size=11, times='pareto')
    """
    clock = notation.read(notation.with_parentheses(text), members())
    assert isinstance(clock, Clock)
    return clock
