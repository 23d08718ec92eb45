"""A class is its formula: checked parameters, and a repr that is the notation."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

from byzantium.core.errors import ByzantiumError
from byzantium.core.fields import check_fields

if TYPE_CHECKING:
    from torch import Tensor


class Formula:
    """Members are frozen dataclasses; their fields are the parameters of a formula.

    One without parameters need not be a dataclass.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        check_dataclass(cls)
        return super().__new__(cls)

    def __repr__(self) -> str:
        """As one would write it, without what has its default value: `Krum(f=5)`.

        A field that was added when there were results already, and whose default is another
        definition than theirs, is always written: metadata={"written": True}.
        """
        given = (
            f"{field.name}={_written(getattr(self, field.name))}"
            for field in parameters(self)
            if field.init
            and (getattr(self, field.name) != field.default or field.metadata.get("written"))
        )
        return f"{type(self).__name__}({', '.join(given)})"

    @final
    def __post_init__(self) -> None:
        """Check each parameter by its annotation, then what they must be to each other."""
        check_fields(self, type(self).__name__)
        self.check_parameters()

    def check_parameters(self) -> None:
        """Raise a sentence about parameters that fit their fields but not each other."""

    @classmethod
    def wanted(cls, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The parameters that these arguments make necessary, though they have a default."""
        return ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__post_init__" in vars(cls):
            raise TypeError(
                f"{cls.__name__} defines __post_init__, which checks the parameters by their "
                "annotations; what else must hold belongs into check_parameters"
            )
        # What a class has already, a dataclass does not replace: its repr stays the notation.
        if "__repr__" not in vars(cls):
            cls.__repr__ = cls.__repr__  # type: ignore[method-assign]


def check_dataclass(kind: type[Formula]) -> None:
    """Raise a sentence about a class whose parameters are none of a frozen dataclass."""
    remedy = f"write @dataclass(frozen=True) above class {kind.__name__}"
    if "__dataclass_fields__" in vars(kind):
        if not vars(kind)["__dataclass_params__"].frozen:
            raise ByzantiumError(f"{kind.__name__} is a dataclass that can be changed: {remedy}")
        return
    for name, hint in inspect.get_annotations(kind).items():
        if not _is_class_variable(hint):
            raise ByzantiumError(
                f"{kind.__name__} has the parameter {name!r} and is no dataclass: {remedy}"
            )


def _is_class_variable(hint: Any) -> bool:
    if isinstance(hint, str):
        return hint.partition("[")[0].rpartition(".")[2] == "ClassVar"
    return hint is ClassVar or typing.get_origin(hint) is ClassVar


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


def parameters(formula: Formula | type[Formula]) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a formula; one that is no dataclass has none."""
    return dataclasses.fields(formula) if dataclasses.is_dataclass(formula) else ()


def _written(value: object) -> str:
    """One text for equal numbers: 10, not 10.0."""
    whole = isinstance(value, float) and abs(value) < 1e15 and value.is_integer()
    return repr(int(value) if whole else value)  # type: ignore[call-overload]
