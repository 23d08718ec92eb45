"""Lazy exports: the public names of a package, each loaded when it is first used.

The names are listed in the `__init__.pyi` beside each `__init__.py`, where type checkers find them,
too: SPEC 1 of Scientific Python. `from .rules import *` in such a file stands for all public names
of that package. Names that have moved work for one release, with a `DeprecationWarning`.
"""

from __future__ import annotations

import ast
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lazy_loader

from byzantium.core.forks import awaited

Exports = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def lazy_exports(package: str, file: str, moved: Mapping[str, str] | None = None) -> Exports:
    """The `__getattr__`, `__dir__` and `__all__` of a package, from its `__init__.pyi`.

    - `moved`: former names, and where each is now, such as {"load": "byzantium.data.load"}.
    """
    submodules, attributes = _read_stub(Path(file).with_suffix(".pyi"))
    load, names, public = lazy_loader.attach(package, submodules, attributes)

    def attribute(name: str) -> Any:
        if name in public:
            return load(name)
        if moved and name in moved:
            return load_moved(f"{package}.{name}", moved[name])
        message = f"module {package!r} has no attribute {name!r}{_nearest(name, public)}"
        # Without an object, Python's traceback adds no second hint of its own.
        raise AttributeError(message, name=name, obj=None)

    return awaited(attribute), names, public


def former_package(
    package: str, places: Sequence[str], renamed: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """The `__getattr__` of a package that is gone: it finds each name where it is now.

    - `places`: the packages that have its names now.
    - `renamed`: names that are spelled in another way now.
    """

    def attribute(name: str) -> Any:
        now = (renamed or {}).get(name, name)
        for place in places:
            if now in importlib.import_module(place).__all__:
                return load_moved(f"{package}.{name}", f"{place}.{now}")
        message = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=None)

    return attribute


def load_moved(old: str, new: str) -> Any:
    """What is now called `new`, with a warning that `old` is its former name."""
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
    place, _, name = new.rpartition(".")
    module = importlib.import_module(place)
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(new)


def _read_stub(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """The submodules that an `__init__.pyi` names, and the names that come from each module."""
    submodules: list[str] = []
    attributes: dict[str, list[str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names]
        if node.module is None:
            submodules += names
        elif names == ["*"]:
            inner, below = _read_stub(path.parent / node.module / "__init__.pyi")
            public = [name for some in below.values() for name in some]
            attributes.setdefault(node.module, []).extend(inner + public)
        else:
            attributes.setdefault(node.module, []).extend(names)
    return submodules, attributes


def _nearest(name: str, public: list[str]) -> str:
    """The end of a message about an unknown name: the closest one, however it is spelled."""
    if name.startswith("__"):  # Python itself asks for these, at each import
        return ""
    from difflib import get_close_matches  # only where it is needed

    spelled = {one.lower(): one for one in reversed(public)}
    close = get_close_matches(name.replace("_", "").lower(), spelled, n=1)
    return f"; did you mean {spelled[close[0]]!r}?" if close else ""
