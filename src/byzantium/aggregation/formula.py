"""A class is its formula: checked parameters, and a repr that is the notation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor


class Formula:
    """Members are frozen dataclasses; their fields are the parameters of a formula."""

    def __repr__(self) -> str:
        """As one would write it, without what has its default value: `Krum(f=5)`."""
        given = (
            f"{field.name}={_written(getattr(self, field.name))}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if field.init and getattr(self, field.name) != field.default
        )
        return f"{type(self).__name__}({', '.join(given)})"

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


class Stateful:
    """State carried from call to call is no field: it takes no part in repr, eq and hash."""

    def state_dict(self) -> dict[str, Tensor]:
        """What must be saved beside the parameters to go on where one stopped."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if state:
            raise ValueError(f"{self!r} has no state, got {', '.join(state)}")

    def reset(self) -> None:
        """Forget the state."""
        self.load_state_dict({})


def _written(value: object) -> str:
    """One text for equal numbers: 10, not 10.0."""
    whole = isinstance(value, float) and abs(value) < 1e15 and value.is_integer()
    return repr(int(value) if whole else value)  # type: ignore[call-overload]
