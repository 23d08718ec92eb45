"""Everything that the package offers is documented, and most of it by an example that is run."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import byzantium as bz

PACKAGE = Path(bz.__file__).parent
# What a package offers stands in its `__init__.pyi`.
DOORS = sorted(
    ".".join(("byzantium", *stub.parent.relative_to(PACKAGE).parts))
    for stub in PACKAGE.rglob("__init__.pyi")
)
# An example would need what a documentation does not have, or is that of another name.
CLUSTER, ELSEWHERE, ABSTRACT = "needs other processes", "has its example elsewhere", "is abstract"
NO_EXAMPLE = {
    "Adapters": ELSEWHERE,
    "LowRankUpdate": ELSEWHERE,
    "LostRankError": CLUSTER,
    "Shard": CLUSTER,
    "aggregate_before_step": CLUSTER,
    "aggregate_gradients": CLUSTER,
    "aggregate_in_ddp": CLUSTER,
    "explain_all_reduce": CLUSTER,
    "robust_all_reduce": CLUSTER,
    "Ray": CLUSTER,
    "Loop": ABSTRACT,
    "Pool": ABSTRACT,
    "Worker": ABSTRACT,
    "Merged": ELSEWHERE,
    "checkpointed": ELSEWHERE,
    "load_plugin": "leaves a rule in the tables of the process",
    "handle_signal": "changes the signals of the process",
    "published_cells": "takes more than a second",
}


def offered(door: str) -> Iterator[tuple[str, Any]]:
    """The classes and functions of a package that are ours, by their full names."""
    package = importlib.import_module(door)
    for name in package.__all__:
        value = getattr(package, name)
        ours = str(getattr(value, "__module__", "")).partition(".")[0] == "byzantium"
        if ours and (inspect.isclass(value) or inspect.isroutine(value)):
            yield f"{door}.{name}", value


NAMES = [one for door in DOORS for one in offered(door)]
CHECKS = importlib.import_module("byzantium.testing")
NAMES += [
    (f"byzantium.testing.{name}", check)
    for name, check in vars(CHECKS).items()
    if name.startswith("check_")
]


@pytest.mark.parametrize(("name", "value"), NAMES, ids=lambda one: one if type(one) is str else "")
def test_every_class_and_function_is_documented(name: str, value: Callable[..., Any]) -> None:
    text = inspect.getdoc(value) if inspect.isclass(value) else value.__doc__
    assert text, f"{name} has no docstring"
    if inspect.isclass(value):  # not one that it inherits, nor the signature that a dataclass has
        own = vars(value).get("__doc__") or ""
        assert own, f"{name} has no docstring of its own"
        assert not own.startswith(f"{value.__name__}("), f"{name} has no docstring of its own"
    assert ">>> " in text or name.rpartition(".")[2] in NO_EXAMPLE, f"{name} has no example"


@pytest.mark.parametrize("door", [*DOORS, "byzantium.testing"])
def test_every_package_is_documented(door: str) -> None:
    assert importlib.import_module(door).__doc__, f"{door} has no docstring"


def test_every_method_is_documented() -> None:
    """Its own, or that of the method that it overrides."""
    missing = [
        f"{name}.{attribute}"
        for name, value in NAMES
        if inspect.isclass(value)
        for attribute, member in inspect.getmembers(value)
        if not attribute.startswith("_") and _is_ours(member) and not inspect.getdoc(member)
    ]
    assert missing == []


def _is_ours(member: Any) -> bool:
    """Whether it is a method or a property that was written here."""
    function = member.fget if isinstance(member, property) else member
    written = inspect.isroutine(member) or isinstance(member, property)
    return written and str(getattr(function, "__module__", "")).startswith("byzantium")
