"""A class is its formula: checked parameters, and a repr that is the notation."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from byzantium.core.errors import ByzantiumError

# How many bits torch counts with, and how many its seeds have.
COUNT_BITS, SEED_BITS = 63, 64
# How much of a value that is refused is shown.
LONGEST_SHOWN = 80


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
        value = whole(type(self).__name__, name, getattr(self, name))
        if value < least:
            raise ByzantiumError(
                f"{type(self).__name__} needs {name} >= {least}, got {name}={value}"
            )
        object.__setattr__(self, name, value)

    def _measure(self, name: str, *, positive: bool, finite: bool = True) -> None:
        """Check a parameter that measures; NaN is no measure, and infinity seldom."""
        value = number(type(self).__name__, name, getattr(self, name))
        if not (value > 0 or (value == 0 and not positive)):
            relation = ">" if positive else ">="
            raise ByzantiumError(
                f"{type(self).__name__} needs {name} {relation} 0, got {name}={value}"
            )
        if finite and math.isinf(value):
            raise ByzantiumError(f"{type(self).__name__} needs a finite {name}, got {name}={value}")
        object.__setattr__(self, name, value)


class Stateful:
    """State carried from call to call is no field: it takes no part in repr, eq and hash."""

    def state_dict(self) -> dict[str, Tensor]:
        """What must be saved beside the parameters to go on where one stopped."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if state:
            raise ByzantiumError(f"{self!r} has no state, got {', '.join(state)}")

    def reset(self) -> None:
        """Forget the state."""
        self.load_state_dict({})


def whole(owner: str, name: str, value: object, bits: int = COUNT_BITS) -> int:
    """A whole number of so many bits, whoever's it is; a truth value is none."""
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, numbers.Integral):
        raise TypeError(f"{owner} needs a whole number for {name}, got {name}={_shown(value)}")
    if (found := int(plain).bit_length()) > bits:
        raise ByzantiumError(f"{owner} needs {name} of at most {bits} bits, got {found} bits")
    return int(plain)


def number(owner: str, name: str, value: object) -> float:
    """A number, whoever's it is; a truth value is none, NaN and infinity are for the caller."""
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, numbers.Real):
        raise TypeError(f"{owner} needs a number for {name}, got {name}={_shown(value)}")
    try:
        return float(plain)
    except OverflowError:
        raise ByzantiumError(f"{owner} needs {name} within the range of float64") from None


def truth(owner: str, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{owner} needs True or False for {name}, got {name}={_shown(value)}")
    return value


def _plain(value: Any) -> Any:
    """A single number of NumPy or torch as Python's own; anything else as it is."""
    try:
        return value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return value


def _shown(value: object) -> str:
    """A value that is refused, in one line of a sentence."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _written(value: object) -> str:
    """One text for equal numbers: 10, not 10.0."""
    whole = isinstance(value, float) and abs(value) < 1e15 and value.is_integer()
    return repr(int(value) if whole else value)  # type: ignore[call-overload]
