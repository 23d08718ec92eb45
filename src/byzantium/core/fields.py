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
import operator
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from annotated_types import Ge, Gt, Le, Lt

from byzantium.core.errors import ArgumentTypeError, ByzantiumError, named, type_name
from byzantium.core.texts import one_line

# How many characters of a refused value an error message shows.
LONGEST_SHOWN = 80

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class MaxBits:
    """A limit of whole numbers, as part of an annotation: how many bits they may have.

    Without it there are 63, as torch has.

    >>> validated("Torus", "size", 2**63, Annotated[int, MaxBits(64)])
    9223372036854775808
    """

    bits: int


class OrInfinity:
    """As part of an annotation: infinity is allowed, too.

    >>> validated("Clipping", "radius", math.inf, Annotated[float, Gt(0), OrInfinity])
    inf
    """


#: A whole number, at least 0.
Count = Annotated[int, Ge(0)]
#: A whole number, at least 1.
Positive = Annotated[int, Ge(1)]
#: A whole number, at least 0 and of at most 64 bits: what random generators are seeded with.
Seed = Annotated[int, Ge(0), MaxBits(64)]
#: A finite number, at least 0.
Measure = Annotated[float, Ge(0)]
#: A finite number above 0.
PositiveMeasure = Annotated[float, Gt(0)]
#: The weight of the past in a moving average: at least 0 and below 1.
Beta = Annotated[float, Ge(0), Lt(1)]
#: How many times rarer the last class is than the first: at least 1.
Imbalance = Annotated[float, Ge(1)]


def check_fields(self: Any, owner: str) -> None:
    """Check all fields of a dataclass against their annotations, and raise on the first that fails.

    Values that pass are brought to the type of their field: 1 becomes 1.0 where it is a float.

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
    - `hint`: the annotation: a type, `Literal`, `Annotated` with limits (`Ge`, `Gt`, `Le`, `Lt`,
      `MaxBits`, `OrInfinity`), a union with None or words, or a tuple of one of these.

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
        if isinstance(value, (list, tuple)):  # or one number, or several
            hint = next((one for one in others if typing.get_origin(one) is tuple), hint)
        if isinstance(value, str) and value in instead:  # such as "auto"
            return value
        also = "".join(f" or {word!r}" for word in instead)
    limits: list[Any] = []
    if typing.get_origin(hint) is Annotated:
        hint, *limits = typing.get_args(hint)
    if hint is int:
        return _whole(owner, name, value, limits, also)
    if hint is float:
        return _number(owner, name, value, limits, also)
    if typing.get_origin(hint) is Literal:
        if isinstance(value, str) and value in typing.get_args(hint):
            return value
        *others, last = map(repr, typing.get_args(hint))
        listed = f"{', '.join(others)} or {last}" if others else last
        raise ByzantiumError(f"{owner} needs {listed} for {name}, got {name}={shown(value)}")
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise _wrong_type(owner, name, value, "a list")
        return tuple(validated(owner, name, item, typing.get_args(hint)[0]) for item in value)
    if isinstance(hint, type) and not isinstance(value, hint):
        expected = {bool: "True or False", str: "a text"}.get(hint) or named(hint.__name__)
        if isinstance(value, type) and issubclass(value, hint):
            example = f"{value.__name__}(...)"
            raise ArgumentTypeError(
                f"{owner} needs {expected} for {name}, got {type_name(value)}: write {example}"
            )
        raise _wrong_type(owner, name, value, expected)
    return value


def _whole(owner: str, name: str, value: Any, limits: list[Any], also: str) -> int:
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, numbers.Integral):
        raise _wrong_type(owner, name, value, f"a whole number{also}")
    whole = int(plain)
    most = next((limit.bits for limit in limits if isinstance(limit, MaxBits)), 63)
    if whole.bit_length() > most:
        raise ByzantiumError(
            f"{owner} needs {name} of at most {most} bits, got {whole.bit_length()} bits"
        )
    _check_limits(owner, name, whole, limits)
    return whole


def _number(owner: str, name: str, value: Any, limits: list[Any], also: str) -> float:
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, numbers.Real):
        raise _wrong_type(owner, name, value, f"a number{also}")
    try:
        number = float(plain)
    except OverflowError:
        raise ByzantiumError(
            f"{owner} needs {name} within the range of float64, got a number beyond it"
        ) from None
    if math.isinf(number) and OrInfinity not in limits:
        raise ByzantiumError(f"{owner} needs a finite {name}, got {name}={number}")
    _check_limits(owner, name, number, limits)
    return number


def _check_limits(owner: str, name: str, value: float, limits: list[Any]) -> None:
    bounds: dict[str, float] = {}  # such as {"ge": 0, "lt": 1}
    for limit in limits:
        if isinstance(limit, Ge | Gt | Le | Lt):
            bounds |= dataclasses.asdict(limit)
    within = all(getattr(operator, word)(value, bound) for word, bound in bounds.items())
    if within and not math.isnan(value):
        return
    lower = [(bound, "=" * (word == "ge")) for word, bound in bounds.items() if word[0] == "g"]
    upper = [(bound, "=" * (word == "le")) for word, bound in bounds.items() if word[0] == "l"]
    if upper:
        text = "".join(f"{bound:g} <{equal} " for bound, equal in lower) + name
        text += "".join(f" <{equal} {bound:g}" for bound, equal in upper)
    else:
        text = "".join(f"{name} >{equal} {bound:g}" for bound, equal in lower)
    raise ByzantiumError(f"{owner} needs {text or f'a finite {name}'}, got {name}={value}")


def _wrong_type(owner: str, name: str, value: Any, expected: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"{owner} needs {expected} for {name}, got {name}={shown(value)}")


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
    return one_line(repr(value), LONGEST_SHOWN)
