"""What there is of each kind, by name: one table for what ships and for what plugins add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from byzantium.core.errors import ByzantiumError

Member = TypeVar("Member")
Function = TypeVar("Function")


@dataclass(frozen=True)
class Plugin:
    """Code that the user chose to run, and that adds members.

    name:   of its file, or of the entry point of an installed package.
    digest: of its source, "sha256:...".
    place:  the whole path of its file; empty for an installed package, which is found by its name.
    """

    name: str
    digest: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.digest}"


class Members(dict[str, Member]):
    """The members of one kind, by their names in our notation.

    kind:    what sentences call one of them.
    plugins: whose they are, of those that do not ship.
    """

    def __init__(self, kind: str, shipped: Mapping[str, Member]) -> None:
        super().__init__(shipped)
        self.kind = kind
        self.plugins: dict[str, Plugin] = {}

    def check_new(self, name: str, plugin: Plugin) -> None:
        """Raise a sentence unless a plugin may add a member of this name."""
        owner = self.plugins.get(name)
        if owner is not None and owner != plugin:
            raise ByzantiumError(
                f"{plugin.name} and {owner.name} both define the {self.kind} {name!r}; "
                "one of them needs another name"
            )
        if owner is None and name in self:
            raise ByzantiumError(
                f"{plugin.name} defines {name!r}, and a {self.kind} of this name is part of "
                "Byzantium; give it another name"
            )

    def add(self, name: str, member: Member, plugin: Plugin) -> None:
        self.check_new(name, plugin)
        self[name] = member
        self.plugins[name] = plugin

    def remove(self, plugin: Plugin) -> None:
        """Take out what a plugin added."""
        for name in [name for name, owner in self.plugins.items() if owner == plugin]:
            del self[name], self.plugins[name]


def offered(function: Function, kind: str) -> Function:
    """Mark a function as a member of a kind, for whoever loads the file that it is in."""
    function.__dict__["offered"] = kind
    return function


def offered_as(value: Any) -> str | None:
    """The kind of member that a function was marked as."""
    return getattr(value, "__dict__", {}).get("offered") if callable(value) else None
