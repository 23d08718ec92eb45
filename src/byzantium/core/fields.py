"""Parameters: their annotations say which values are allowed, and `validated` checks them.

>>> @checked
... def halve(batch: Positive) -> float:
...     return batch / 2
>>> halve(0)
Traceback (most recent call last):
byzantium.ByzantiumError: halve needs batch >= 1, got batch=0
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from byzantium.core.errors import ArgumentTypeError, ByzantiumError, named, type_name

# How many characters of a refused value an error message shows.
LONGEST_SHOWN = 80

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """Which numbers a parameter may be; part of its annotation, `Annotated[float, Bounds(...)]`.

    - `least`, `most`: the smallest and the largest number that is allowed.
    - `above`, `below`: numbers that it must be above and below, and not equal to.
    - `infinite`: whether infinity is allowed, too.
    - `bits`: how many bits a whole number may have; torch counts with 63.

    >>> Bounds(least=0, below=1).hold(0.9), Bounds(least=0, below=1).hold(1)
    (True, False)
    """

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf
    infinite: bool = False
    bits: int = 63

    def hold(self, value: float) -> bool:
        """Whether a number is allowed; NaN never is."""
        within = self.least <= value <= self.most and self.above < value < self.below
        return within or (self.infinite and value == math.inf)

    def written(self, name: str) -> str:
        """The bounds of the parameter `name`, as error messages say them.

        >>> Bounds(above=0).written("power"), Bounds(least=0, below=1).written("momentum")
        ('power > 0', '0 <= momentum < 1')
        """
        lower = [bound for bound in ((self.least, "="), (self.above, "")) if bound[0] > -math.inf]
        upper = [bound for bound in ((self.most, "="), (self.below, "")) if bound[0] < math.inf]
        right = "".join(f" <{equal} {bound:g}" for bound, equal in upper)
        if right:
            return "".join(f"{bound:g} <{equal} " for bound, equal in lower) + name + right
        return "".join(f"{name} >{equal} {bound:g}" for bound, equal in lower) or f"a finite {name}"


#: A whole number, at least 0.
Count = Annotated[int, Bounds(least=0)]
#: A whole number, at least 1.
Positive = Annotated[int, Bounds(least=1)]
#: A whole number, at least 0 and of at most 64 bits: what random generators are seeded with.
Seed = Annotated[int, Bounds(least=0, bits=64)]
#: A finite number, at least 0.
Measure = Annotated[float, Bounds(least=0)]
#: A finite number above 0.
PositiveMeasure = Annotated[float, Bounds(above=0)]
#: The weight of the past in a moving average: at least 0 and below 1.
Beta = Annotated[float, Bounds(least=0, below=1)]
#: How many times rarer the last class is than the first: at least 1.
Imbalance = Annotated[float, Bounds(least=1)]


def check_fields(self: Any, owner: str) -> None:
    """Check all fields of a dataclass against their annotations, and raise on the first that fails.

    Values that pass are brought to the type of their field: 1 becomes 1.0 where it is a float.

    - `self`: the instance.
    - `owner`: what the error message calls it.

    >>> @dataclass
    ... class Circle:
    ...     radius: PositiveMeasure
    >>> circle = Circle(radius=1)
    >>> check_fields(circle, "Circle")
    >>> circle
    Circle(radius=1.0)
    """
    hints = _hints(type(self))  # type: ignore[arg-type]
    for field in dataclasses.fields(self):
        value = validated(owner, field.name, getattr(self, field.name), hints[field.name])
        object.__setattr__(self, field.name, value)


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that every call checks its arguments against their annotations.

    >>> @checked
    ... def square(side: Measure) -> float:
    ...     return side**2
    >>> square(-1)
    Traceback (most recent call last):
    byzantium.ByzantiumError: square needs side >= 0, got side=-1.0
    """

    @functools.wraps(function)
    def checking(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.arguments.update(validated_arguments(function, bound.arguments))
        return function(*bound.args, **bound.kwargs)

    return checking


def validated_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments of a function, checked against its annotations and brought to their types.

    >>> def scaled(by: float, times: int = 1) -> float: ...
    >>> validated_arguments(scaled, {"by": 2})
    {'by': 2.0}
    """
    hints = _hints(function)
    name = function.__name__.strip("_")
    return {
        key: validated(name, key, value, hints.get(key, Any)) for key, value in arguments.items()
    }


@functools.cache
def _hints(annotated: Any) -> dict[str, Any]:
    return typing.get_type_hints(annotated, include_extras=True)


def validated(owner: str, name: str, value: Any, hint: Any) -> Any:
    """A value, checked against an annotation and brought to its type.

    - `owner`, `name`: whose parameter it is and what it is called, for the error message.
    - `value`: the value.
    - `hint`: the annotation: a type, `Literal`, `Annotated` with `Bounds`, a union with None or
      words, or a tuple of one of these.

    >>> validated("Krum", "f", 5, Count)
    5
    """
    also = ""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and types.NoneType in options:
            return None
        words = [option for option in options if typing.get_origin(option) is Literal]
        instead = [word for option in words for word in typing.get_args(option)]
        others = [option for option in options if option not in (types.NoneType, *words)]
        hint = others[0] if others else Literal[tuple(instead)]
        if isinstance(value, str) and value in instead:  # such as "auto"
            return value
        also = "".join(f" or {word!r}" for word in instead)
    bounds = Bounds()
    if typing.get_origin(hint) is Annotated:
        hint, *marks = typing.get_args(hint)
        bounds = next((mark for mark in marks if isinstance(mark, Bounds)), bounds)
    if hint is int:
        return _whole(owner, name, value, bounds, also)
    if hint is float:
        return _number(owner, name, value, bounds, also)
    if typing.get_origin(hint) is Literal:
        return _word(owner, name, value, typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return _several(owner, name, value, typing.get_args(hint)[0])
    if isinstance(hint, type) and not isinstance(value, hint):
        kind = {bool: "True or False", str: "a text"}.get(hint) or named(hint.__name__)
        if isinstance(value, type) and issubclass(value, hint):
            made = f"{value.__name__}(...)"
            raise ArgumentTypeError(
                f"{owner} needs {kind} for {name}, got {type_name(value)}: write {made}"
            )
        raise _wrong_kind(owner, name, value, kind)
    return value


def _whole(owner: str, name: str, value: Any, bounds: Bounds, also: str) -> int:
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, numbers.Integral):
        raise _wrong_kind(owner, name, value, f"a whole number{also}")
    found = int(plain)
    if found.bit_length() > bounds.bits:
        raise ByzantiumError(
            f"{owner} needs {name} of at most {bounds.bits} bits, got {found.bit_length()} bits"
        )
    _check_bounds(owner, name, found, bounds)
    return found


def _number(owner: str, name: str, value: Any, bounds: Bounds, also: str) -> float:
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, numbers.Real):
        raise _wrong_kind(owner, name, value, f"a number{also}")
    try:
        found = float(plain)
    except OverflowError:
        raise ByzantiumError(
            f"{owner} needs {name} within the range of float64, got a number beyond it"
        ) from None
    if math.isinf(found) and not bounds.infinite:
        raise ByzantiumError(f"{owner} needs a finite {name}, got {name}={found}")
    _check_bounds(owner, name, found, bounds)
    return found


def _check_bounds(owner: str, name: str, value: float, bounds: Bounds) -> None:
    if not bounds.hold(value):
        raise ByzantiumError(f"{owner} needs {bounds.written(name)}, got {name}={value}")


def _word(owner: str, name: str, value: Any, words: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in words:
        *others, last = map(repr, words)
        listed = f"{', '.join(others)} or {last}" if others else last
        raise ByzantiumError(f"{owner} needs {listed} for {name}, got {name}={shown(value)}")
    return value


def _several(owner: str, name: str, value: Any, kind: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _wrong_kind(owner, name, value, "a list")
    return tuple(validated(owner, name, item, kind) for item in value)


def _wrong_kind(owner: str, name: str, value: Any, wanted: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"{owner} needs {wanted} for {name}, got {name}={shown(value)}")


def _plain(value: Any) -> Any:
    """A single number of NumPy or torch as Python's own; anything else as it is."""
    try:
        return value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return value


def shown(value: object) -> str:
    """A refused value as part of an error message: on one line, and not too long.

    >>> shown("a"), len(shown("a" * 1000))
    ("'a'", 83)
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
