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

    def attribute(name: str) -> Any:
        if name in offered:
            return load(name)
        message = f"module {package!r} has no attribute {name!r}{_nearest(name, offered)}"
        # Without an object, Python's traceback adds no second hint of its own.
        raise AttributeError(message, name=name, obj=None)

    return awaited(attribute), names, offered


def _nearest(name: str, offered: list[str]) -> str:
    """The end of a message about an unknown name: the closest one, however it is spelled."""
    from difflib import get_close_matches  # only where it is needed

    spelled = {one.lower(): one for one in reversed(offered)}
    close = get_close_matches(name.replace("_", "").lower(), spelled, n=1)
    return f"; did you mean {spelled[close[0]]!r}?" if close else ""
