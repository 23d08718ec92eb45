"""The door of a room: what others may use of it, loaded when it is first used.

The names stand in the `__init__.pyi` beside an `__init__.py`, for us and for type checkers, as
SPEC 1 of Scientific Python has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lazy_loader

from byzantium.core.forks import awaited

Door = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def door(package: str, file: str) -> Door:
    """`__getattr__`, `__dir__` and `__all__` of a package."""
    load, names, offered = lazy_loader.attach_stub(package, file)
    return awaited(load), names, offered
