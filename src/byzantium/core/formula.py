"""What rules, mixings and attacks share: checked parameters, and a repr that can be read back."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from abc import ABCMeta
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar, final

from byzantium.core.errors import ArgumentTypeError, ByzantiumError
from byzantium.core.fields import check_fields

if TYPE_CHECKING:
    from torch import Tensor

Built = TypeVar("Built")


class FormulaType(ABCMeta):
    """The type of the classes themselves: wrong ways of using a class get a clear error."""

    def __call__(cls: type[Built], *args: Any, **kwargs: Any) -> Built:
        try:
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        except ByzantiumError:
            raise
        except TypeError:
            if reason := _misfit(cls, args, kwargs):
                raise ArgumentTypeError(reason) from None
            raise

    @property
    def __signature__(cls) -> inspect.Signature:
        """That of the class without this type, whose `__call__` takes anything."""
        if cls.__init__ is object.__init__:  # type: ignore[misc]
            return inspect.Signature()
        init = inspect.signature(cls.__init__)  # type: ignore[misc]
        return init.replace(parameters=list(init.parameters.values())[1:])

    def __rshift__(cls, other: object) -> NoReturn:
        required = ", ".join(f"{name}=..." for name in _required(cls))
        raise ArgumentTypeError(
            f">> joins objects, but {cls.__name__} is a class: write {cls.__name__}({required})"
        )

    __rrshift__ = __rshift__


class Formula(metaclass=FormulaType):
    """The base of all rules, mixings and attacks: a frozen dataclass whose fields are parameters.

    Parameters are checked against their annotations when an instance is built. The repr is the
    notation of command line and files: what `parse` reads. A class without parameters need not be
    a dataclass.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Power(Formula):
    ...     exponent: int = 2
    >>> Power(), Power(3)
    (Power(), Power(exponent=3))
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        check_dataclass(cls)
        return super().__new__(cls)

    def __repr__(self) -> str:
        """As one would write it, without parameters that have their default: `Krum(f=5)`.

        A field with `metadata={"written": True}` is always written. It is for a field that was
        added when there were results already, and whose default changes the definition: their
        repr, which lacks the field, must not become that of the new definition.
        """
        written = (
            f"{field.name}={_written(getattr(self, field.name))}"
            for field in parameters(self)
            if field.init
            and (getattr(self, field.name) != field.default or field.metadata.get("written"))
        )
        return f"{type(self).__name__}({', '.join(written)})"

    @final
    def __post_init__(self) -> None:
        """Check each parameter against its annotation, then all of them together."""
        check_fields(self, type(self).__name__)
        self.check_parameters()

    def check_parameters(self) -> None:
        """Override it to raise where parameters are allowed one by one but not together."""

    @classmethod
    def also_required(cls, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Parameters with a default that must nevertheless be given beside these arguments.

        `Bucketing(s="auto")`, for instance, needs f.
        """
        return ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__post_init__" in vars(cls):
            raise TypeError(
                f"{cls.__name__} defines __post_init__, which is where parameters are checked "
                "against their annotations; put further checks into check_parameters"
            )
        # A dataclass does not replace a repr that its class defines: so it stays the notation.
        if "__repr__" not in vars(cls):
            cls.__repr__ = cls.__repr__  # type: ignore[method-assign]


def _required(kind: type) -> list[str]:
    """The parameters without a default."""
    parameters = inspect.signature(kind).parameters.values()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in several]


def _misfit(kind: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Why a class cannot be called with these arguments; empty if it can."""
    from byzantium.core.notation import hint  # which needs this file

    signature, name = inspect.signature(kind), kind.__name__
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        pass
    else:
        return ""
    taken = list(signature.parameters)
    if not taken:
        count = len(args) + len(kwargs)
        return f"{name} takes no parameters, got {count}: write {name}() and call the result"
    if len(args) > len(taken):
        return f"{name} takes at most {len(taken)} parameters, got {len(args)}"
    for other in kwargs:
        if other not in taken:
            return f"{name} has no parameter {other!r}{hint(other, taken)}"
        if other in taken[: len(args)]:
            return f"{name} is given the parameter {other} twice"
    for missing in _required(kind):
        if missing not in (*taken[: len(args)], *kwargs):
            return f"{name} needs {missing}{_meaning(kind, missing)}"
    return ""


def _meaning(kind: type, parameter: str) -> str:
    """What the docstring of a class says about a parameter, for the end of a message."""
    text = " ".join((inspect.getdoc(kind) or "").split())
    match = re.search(rf"- `{parameter}`: (.+?)(?:[;.](?: |$)|$)", text)
    return f", {match[1]}" if match else ""


def check_dataclass(kind: type[Formula]) -> None:
    """Raise if a class has parameters (annotated names) and is not a frozen dataclass.

    >>> class Power(Formula):
    ...     exponent: int = 2
    >>> try:
    ...     check_dataclass(Power)
    ... except ByzantiumError as error:
    ...     print(str(error).partition(":")[0])
    Power has the parameter 'exponent' but is not a dataclass
    """
    remedy = f"write @dataclass(frozen=True) above class {kind.__name__}"
    if "__dataclass_fields__" in vars(kind):
        if not vars(kind)["__dataclass_params__"].frozen:
            raise ByzantiumError(f"{kind.__name__} is a dataclass that is not frozen: {remedy}")
        return
    for name, hint in inspect.get_annotations(kind).items():
        if not _is_class_variable(hint):
            raise ByzantiumError(
                f"{kind.__name__} has the parameter {name!r} but is not a dataclass: {remedy}"
            )


def _is_class_variable(hint: Any) -> bool:
    if isinstance(hint, str):
        return hint.partition("[")[0].rpartition(".")[2] == "ClassVar"
    return hint is ClassVar or typing.get_origin(hint) is ClassVar


class Stateful:
    """The base of rules and attacks that may remember something from call to call.

    This state is not a field: it does not show in the repr, and does not count when two instances
    are compared or hashed.

    >>> from byzantium import CenteredClipping
    >>> rule = CenteredClipping(radius=1.0)
    >>> _ = rule(torch.tensor([[1.0], [1.0], [100.0]]))
    >>> rule, rule.state_dict()
    (CenteredClipping(radius=1), {'center': tensor([1.])})
    >>> rule.reset()
    >>> rule.state_dict()
    {}
    """

    def state_dict(self) -> dict[str, Tensor]:
        """The state as named tensors: what to save, beside the parameters, to continue later."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state_dict` returned; an empty mapping is the initial state."""
        if state:
            raise ByzantiumError(f"{self!r} has no state, got {', '.join(state)}")

    def reset(self) -> None:
        """Forget the state, as if nothing had been called before."""
        self.load_state_dict({})


def parameters(formula: Formula | type[Formula]) -> tuple[dataclasses.Field[Any], ...]:
    """The parameters of a formula, as dataclass fields; without a dataclass there are none.

    Those that can be given by name only are the last, as in the signature.
    """
    fields = dataclasses.fields(formula) if dataclasses.is_dataclass(formula) else ()
    return tuple(sorted(fields, key=lambda field: field.kw_only))


def _written(value: object) -> str:
    """The repr of a value; whole floats as 10, not 10.0, so that equal numbers look equal."""
    whole = isinstance(value, float) and abs(value) < 1e15 and value.is_integer()
    return repr(int(value) if whole else value)  # type: ignore[call-overload]
