"""Compiled code on disk, as numba keeps it, but of which nothing damaged is ever used.

Files become damaged: a disk fills up, a machine loses power, two processes write at once. numba
would fail with whatever unpickling raises, at every call, or run what the damage made of the
machine code. (Against people who may write to the folder a digest is no help, nor is it meant to
be: they could as well change the source beside it.)
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile

logger = logging.getLogger("byzantium")


class CheckedCache(FunctionCache):
    """What cannot be loaded is compiled, and what cannot be saved is kept in memory."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        base, stamp = self._impl.filename_base, self._impl.locator.get_source_stamp()
        self._cache_file = _Files(self._cache_path, base, stamp)

    def load_overload(self, *arguments: Any) -> Any:
        try:
            return super().load_overload(*arguments)
        except Exception as error:  # unpickling and linking may raise anything
            logger.warning("compiled code in %s is of no use: %r", self._cache_path, error)
            return None

    def save_overload(self, *arguments: Any) -> None:
        try:
            super().save_overload(*arguments)
        except OSError as error:
            logger.info("compiled code is not kept in %s: %s", self._cache_path, error)


class _Files(IndexDataCacheFile):
    """The index and the code of one kernel: each file ends in a digest of what stands before it.

    Unpickling stops before the digest. With the code stands what it is the code of: two processes
    that save at once may write the same file.
    """

    def save(self, key: Any, data: Any) -> None:
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        kept, data = super().load(key) or (None, None)
        return data if kept == key else None

    @contextmanager
    def _open_for_write(self, path: str) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        yield content
        with super()._open_for_write(path) as file:
            file.write(content.getvalue() + _digest(content.getvalue()))

    def _load_index(self) -> Any:
        return super()._load_index() if _sound(self._index_path) else {}

    def _load_data(self, name: str) -> Any:
        return super()._load_data(name) if _sound(self._data_path(name)) else None


def _sound(path: str) -> bool:
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        logger.warning("compiled code cannot be read: %s", error)
        return False
    size = len(content) - len(_digest(b""))
    if size >= 0 and _digest(content[:size]) == content[size:]:
        return True
    logger.warning("%s is damaged; the kernel is compiled anew", path)
    return False


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
