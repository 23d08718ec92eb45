"""What rules and mixings have in common: they are steps of a pipeline."""

from __future__ import annotations

import copy
from typing import Self

from byzantium.core.errors import ByzantiumError
from byzantium.core.formula import Formula


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

    def __post_init__(self) -> None:
        if hasattr(self, "f"):
            self._count("f", least=0)

    def least(self) -> tuple[int, str]:
        """The smallest number of vectors it is defined for, and the formula behind it.

        Where f may be bad, the others must be more.
        """
        return (2 * self.f + 1, "2f + 1") if hasattr(self, "f") else (1, "1")

    def check(self, n: int, history: str = "") -> None:
        """Raise a sentence unless it is defined for n vectors; `history` says why there are n."""
        least, formula = self.least()
        if n < least:
            bound = formula if formula == str(least) else f"{formula} = {least}"
            raise ByzantiumError(f"{self!r} needs at least {bound} vectors, got {n}{history}")

    def without(self, rejected: int) -> Self:
        """The same step when so many of the f Byzantine vectors are gone already."""
        if getattr(self, "f", None) is None:
            return self
        step = copy.copy(self)
        object.__setattr__(step, "f", self.f - rejected)  # type: ignore[attr-defined]
        return step
