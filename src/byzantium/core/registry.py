"""Tables of what can be named in our notation: what ships with Byzantium, and what plugins add."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from byzantium.core.errors import ByzantiumError

Member = TypeVar("Member")
Function = TypeVar("Function")


@dataclass(frozen=True)
class Plugin:
    """A file or an installed package of the user's that adds rules, attacks, models and the like.

    - `name`: the name of its file, or of the entry point of an installed package.
    - `digest`: a digest of its source, "sha256:...".
    - `place`: the full path of its file; empty for an installed package, which is found by name.

    >>> print(Plugin("mine.py", "sha256:1f2e"))
    mine.py sha256:1f2e
    """

    name: str
    digest: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.digest}"


class Registry(dict[str, Member]):
    """A table of all members of one kind (rules, attacks, models, ...) by name. It is a dictionary.

    - `kind`: what error messages call a member, such as "rule or mixing".
    - `shipped`: the members that are part of Byzantium.
    - `aliases`: other names of these members, such as the paper's. Texts may use them; what we
      write has the name of the member.
    - `plugins`: for each member that a plugin added, which one.

    >>> losses = Registry("loss", {"squared": lambda x, y: (x - y) ** 2}, {"L2": "squared"})
    >>> losses.add("absolute", lambda x, y: abs(x - y), Plugin("mine.py", "sha256:1f2e"))
    >>> sorted(losses), losses.full_name("L2")
    (['absolute', 'squared'], 'squared')
    """

    def __init__(
        self, kind: str, shipped: Mapping[str, Member], aliases: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(shipped)
        self.kind = kind
        self.aliases = dict(aliases or {})
        self.plugins: dict[str, Plugin] = {}

    def full_name(self, name: str) -> str:
        """The name of the member that an alias stands for; any other name as it is."""
        return self.aliases.get(name, name)

    def check_new(self, name: str, plugin: Plugin) -> None:
        """Raise if the name is taken, by Byzantium or by another plugin."""
        if name in self.aliases:
            raise ByzantiumError(
                f"{plugin.name} defines {name!r}, but this is another name of the {self.kind} "
                f"{self.aliases[name]!r}, which is part of Byzantium; give yours another name"
            )
        owner = self.plugins.get(name)
        if owner is not None and owner != plugin:
            raise ByzantiumError(
                f"{plugin.name} and {owner.name} both define the {self.kind} {name!r}; "
                "one of them needs another name"
            )
        if owner is None and name in self:
            raise ByzantiumError(
                f"{plugin.name} defines {name!r}, but a {self.kind} of this name is part of "
                "Byzantium; give yours another name"
            )

    def add(self, name: str, member: Member, plugin: Plugin) -> None:
        """Add a member of a plugin; one of the same plugin is replaced."""
        self.check_new(name, plugin)
        self[name] = member
        self.plugins[name] = plugin

    def remove(self, plugin: Plugin) -> None:
        """Remove all members that a plugin added."""
        for name in [name for name, owner in self.plugins.items() if owner == plugin]:
            del self[name], self.plugins[name]


def exported(package: ModuleType, base: type[Any]) -> dict[str, Any]:
    """The public classes of a package that derive from a base, by name."""
    members = {name: getattr(package, name) for name in dir(package)}
    return {k: one for k, one in members.items() if inspect.isclass(one) and issubclass(one, base)}


def register(function: Function, kind: str) -> Function:
    """Mark a function as a member of a kind; loading its file as a plugin then finds it.

    >>> def squared(x, y): ...
    >>> registered_as(register(squared, "loss"))
    'loss'
    """
    function.__dict__["registered"] = kind
    return function


def registered_as(value: Any) -> str | None:
    """The kind that a function was marked with by `register`; None if it was not.

    >>> registered_as(print) is None
    True
    """
    return getattr(value, "__dict__", {}).get("registered") if callable(value) else None
