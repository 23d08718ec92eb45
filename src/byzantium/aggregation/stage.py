"""What rules and mixings have in common: checked parameters, and a repr that is a notation."""

from __future__ import annotations

import copy
import dataclasses
from typing import Self


class Stage:
    """One step of a pipeline. Members are frozen dataclasses; their fields are their parameters."""

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

    def __repr__(self) -> str:
        """As one would write it, without what has its default value: `Krum(f=5)`."""
        given = (
            f"{field.name}={_written(getattr(self, field.name))}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if field.init and getattr(self, field.name) != field.default
        )
        return f"{type(self).__name__}({', '.join(given)})"

    def least(self) -> tuple[int, str]:
        """The smallest number of vectors it is defined for, and the formula behind it."""
        return 1, "1"

    def check(self, n: int, history: str = "") -> None:
        """Raise a sentence unless it is defined for n vectors; `history` says why there are n."""
        least, formula = self.least()
        if n < least:
            bound = formula if formula == str(least) else f"{formula} = {least}"
            raise ValueError(f"{self!r} needs at least {bound} vectors, got {n}{history}")

    def without(self, rejected: int) -> Self:
        """The same step when so many of the f Byzantine vectors are gone already."""
        if getattr(self, "f", None) is None:
            return self
        step = copy.copy(self)
        object.__setattr__(step, "f", self.f - rejected)  # type: ignore[attr-defined]
        return step

    def _count(self, name: str, least: int) -> None:
        """Check a parameter that counts."""
        value = getattr(self, name)
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(
                f"{type(self).__name__} needs a whole number for {name}, got {name}={value!r}"
            )
        if value < least:
            raise ValueError(f"{type(self).__name__} needs {name} >= {least}, got {name}={value}")
        object.__setattr__(self, name, int(value))

    def _measure(self, name: str, *, positive: bool) -> None:
        """Check a parameter that measures; infinity is a measure, NaN is not."""
        value = getattr(self, name)
        if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
            raise TypeError(
                f"{type(self).__name__} needs a number for {name}, got {name}={value!r}"
            )
        value = float(value)
        if not (value > 0 or (value == 0 and not positive)):
            relation = ">" if positive else ">="
            raise ValueError(f"{type(self).__name__} needs {name} {relation} 0, got {name}={value}")
        object.__setattr__(self, name, value)


def _written(value: object) -> str:
    """One text for equal numbers: 10, not 10.0."""
    whole = isinstance(value, float) and abs(value) < 1e15 and value.is_integer()
    return repr(int(value) if whole else value)  # type: ignore[call-overload]
