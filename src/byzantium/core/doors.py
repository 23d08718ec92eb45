"""What a package offers to others, loaded only when it is first used.

The names are listed in the `__init__.pyi` beside each `__init__.py`, where type checkers find them,
too: SPEC 1 of Scientific Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lazy_loader

from byzantium.core.forks import awaited

Door = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def door(package: str, file: str) -> Door:
    """The `__getattr__`, `__dir__` and `__all__` of a package, from its `__init__.pyi`."""
    load, names, offered = lazy_loader.attach_stub(package, file)
    return awaited(load), names, offered
