"""What rules and mixings have in common: they are steps of a pipeline."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

from byzantium.core import ByzantiumError, Formula


class Stage(Formula):
    """One step of a pipeline."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The steps a pipeline is made of, as the user wrote them."""
        return (self,)

    @property
    def expansion(self) -> tuple[Stage, ...]:
        """The steps this one stands for, when it is defined by others."""
        return (self,)

    @property
    def needs_origin(self) -> bool:
        """Whether the origin must stand among the points."""
        return False

    @property
    def bad(self) -> int | None:
        """How many vectors may be bad: its parameter f, if it has one."""
        return getattr(self, "f", None)

    def least(self) -> tuple[int, str]:
        """The smallest number of vectors it is defined for, and the formula behind it.

        Where f may be bad, the others must be more.
        """
        return (1, "1") if self.bad is None else (2 * self.bad + 1, "2f + 1")

    def check(self, n: int, history: str = "") -> None:
        """Raise a sentence unless it is defined for n vectors; `history` says why there are n."""
        least, formula = self.least()
        if n < least:
            bound = formula if formula == str(least) else f"{formula} = {least}"
            raise ByzantiumError(f"{self!r} needs at least {bound} vectors, got {n}{history}")

    def settled(self, n: int, behind: Sequence[Stage]) -> Stage:
        """This step for n vectors, where it depends on them or on the steps behind it."""
        return self

    def with_fewer_bad(self, rejected: int) -> Self:
        """The same step when so many of the f bad vectors are gone already."""
        if self.bad is None:
            return self
        step = copy.copy(self)
        object.__setattr__(step, "f", self.bad - rejected)
        return step
