"""Options: fields of dataclasses with a help text, which the command line and docstrings show.

Options may be added and renamed without losing results: an option that was added later is no part
of an identity while it has its default, and a renamed one is part of it under its former name.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from byzantium.core.errors import ByzantiumError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Class = TypeVar("Class", bound="type[DataclassInstance]")

#: Former spellings of parameters, of attributes and of keys of states.
FORMER_SPELLINGS: Mapping[str, str] = {
    "optimiser": "optimizer",  # former name
}
#: The former names of options, by class and by present name. Files may have them, and identities
#: and checkpoints are made with them.
FORMER_NAMES: Mapping[str, Mapping[str, str]] = {
    "Run": {"optimizer": "optimiser"},  # former name
    "Mimicry": {"attackers": "q"},
    "Settings": {"attackers": "q"},
}


def option(default: Any, text: str, *, later: bool = False) -> Any:
    """A field of a dataclass that is an option.

    - `text`: its help, in one sentence; `with_options` puts it into the docstring, too.
    - `later`: whether it was added when there were results already. While such an option has its
      default, it is left out of the identity, so that these results are still found.

    >>> option(600, "How many rounds to train.").metadata["help"]
    'How many rounds to train.'
    """
    return dataclasses.field(default=default, metadata={"help": text, "later": later})


def with_default(cls: type[DataclassInstance], name: str, default: Any) -> Any:
    """An inherited option of a dataclass, with another default."""
    (field,) = (field for field in dataclasses.fields(cls) if field.name == name)
    return dataclasses.field(default=default, metadata=field.metadata)


def with_options(cls: Class) -> Class:
    """Decorate a dataclass of options: its docstring lists them, and former names are accepted.

    >>> @with_options
    ... @dataclasses.dataclass
    ... class Training:
    ...     "One training."
    ...     rounds: int = option(600, "How many rounds to train.")
    >>> print(Training.__doc__.strip())
    One training.
    - `rounds`: how many rounds to train.
    """
    text, mark, example = inspect.cleandoc(cls.__doc__ or "").partition("\n>>> ")
    helps = {field.name: field.metadata["help"] for field in options_of(cls)}
    lines = [f"- `{name}`: {help_[0].lower()}{help_[1:]}" for name, help_ in helps.items()]
    cls.__doc__ = "\n".join([text, *lines, mark + example])
    names = former_names(cls)
    return renamed(**{old: new for new, old in names.items()})(cls) if names else cls


def options_of(cls: type[DataclassInstance]) -> list[dataclasses.Field[Any]]:
    """The options of a dataclass: first its own, then those that it inherits."""
    above = [base for base in cls.__bases__ if dataclasses.is_dataclass(base)]
    inherited = {field.name for base in above for field in dataclasses.fields(base)}
    return sorted(dataclasses.fields(cls), key=lambda field: field.name in inherited)


def former_names(cls: type) -> Mapping[str, str]:
    """The former names of a dataclass's options, by their present names."""
    return next((FORMER_NAMES[c.__name__] for c in cls.__mro__ if c.__name__ in FORMER_NAMES), {})


def present_names(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of options by their present names, of which some may have former ones."""
    present = {old: new for new, old in former_names(cls).items()}
    for old, new in present.items():
        if old in values and new in values:
            raise ByzantiumError(f"{new} and {old} are the same option: name one of them")
    return {present.get(name, name): value for name, value in values.items()}


def present_spellings(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state whose keys have their present spellings."""
    return {FORMER_SPELLINGS.get(key, key): value for key, value in state.items()}


def identity_fields(instance: DataclassInstance) -> dict[str, Any]:
    """The options that make an object what it is, by the names that they had first.

    Options that were added later are left out while they have their defaults.
    """
    names = former_names(type(instance))
    return {
        names.get(field.name, field.name): getattr(instance, field.name)
        for field in dataclasses.fields(instance)
        if not field.metadata.get("later") or getattr(instance, field.name) != field.default
    }


def renamed(**names: str) -> Callable[[Decorated], Decorated]:
    """Decorate a function or class so that it accepts former names of parameters, with a warning.

    Attributes of a class can be read by their former names, too.

    - `names`: the present name of each former one.

    >>> @renamed(q="attackers")
    ... def share(attackers: int, n: int) -> float:
    ...     return attackers / n
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", DeprecationWarning)
    ...     share(q=1, n=4)
    0.25
    """

    def decorate(decorated: Any) -> Any:
        if isinstance(decorated, type):
            decorated.__init__ = decorate(decorated.__init__)  # type: ignore[misc]
            for old, new in names.items():
                setattr(decorated, old, former_attribute(old, new))
            return decorated

        @functools.wraps(decorated)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old in names.keys() & kwargs.keys():
                warnings.warn(f"{old}= is now {names[old]}=", DeprecationWarning, stacklevel=2)
                if names[old] in kwargs:
                    raise TypeError(f"{names[old]}= and {old}= are the same: give one of them")
                kwargs[names[old]] = kwargs.pop(old)
            return decorated(*args, **kwargs)

        return call

    return decorate


def former_attribute(old: str, new: str) -> property:
    """A property for the former name of an attribute, with a warning."""

    def read(self: object) -> Any:
        warnings.warn(f"{type(self).__name__}.{old} is now {new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(read, doc=f"The former name of `{new}`.")
