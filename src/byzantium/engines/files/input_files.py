"""Input files of which any part can be read.

Contributors decide how many files there are. So no file stays open: each reading opens it, and it
must not have changed since the first one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byzantium.core import ByzantiumError, files

# Errors of this machine, which no contributor caused.
LOCAL_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

Bytes = NDArray[np.uint8]
Identity = tuple[int, int]


class UnreadableError(ByzantiumError):
    """A checkpoint cannot be used; the message is a predicate whose subject is its name."""


@contextmanager
def convert_errors() -> Iterator[None]:
    """Convert errors that a file causes to `UnreadableError`, except those of this machine."""
    try:
        yield
    except (UnreadableError, MemoryError):
        raise
    except OSError as error:
        if error.errno in LOCAL_ERRORS:
            raise
        raise UnreadableError(f"cannot be opened: {error.strerror}") from error
    except ByzantiumError as error:
        raise UnreadableError("was changed or cut off while it was read") from error
    except Exception as error:
        raise UnreadableError(f"cannot be read: {quote(str(error))}") from error


class InputFile:
    """A file of which any part can be read, and that notices when it was changed.

    It is not memory-mapped: the system kills a program that reads beyond the end of a mapped file,
    and a contributor could truncate the file meanwhile.

    - `path`: the file.
    - `folder`: links must not lead out of this folder; None for a file that the user named.
    """

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self.path, self.real = path, os.path.realpath(path)
        if folder is not None and not _within(self.real, os.path.realpath(folder)):
            raise UnreadableError("leads out of its folder by a link")
        with files.reading(Path(self.real)) as file:
            status = os.fstat(file.fileno())
        self.state, self.size = _state(status), status.st_size
        self.identity = identity(status)

    def fill(self, target: NDArray[Any], offset: int) -> None:
        """Read bytes into a contiguous target until it is full."""
        rest, descriptor = target.view(np.uint8).data, self._open()
        try:
            while rest:
                count = os.preadv(descriptor, [rest], offset)
                if not count:
                    raise ByzantiumError(f"{printable(self.path)} was cut off while it was read")
                rest, offset = rest[count:], offset + count
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(self.path)) from error
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        """A descriptor of the file, which must not have changed."""
        try:
            descriptor = os.open(self.real, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in LOCAL_ERRORS:
                raise
            raise self._changed_error() from error
        if _state(os.fstat(descriptor)) != self.state:
            os.close(descriptor)
            raise self._changed_error()
        return descriptor

    def read(self, offset: int, count: int) -> Bytes:
        raw = np.empty(count, np.uint8)
        self.fill(raw, offset)
        return raw

    def changed(self) -> bool:
        """Whether the file was changed or replaced since it was opened."""
        try:
            return _state(os.stat(self.real)) != self.state
        except OSError:
            return True

    def reopen(self) -> None:
        """Find the file on this machine, which must be the one that another machine has opened.

        The same file may have another device and inode there.
        """
        status = os.stat(self.real)
        if _state(status)[2:] != self.state[2:]:
            raise ByzantiumError(f"{printable(self.path)} was changed, or is another file")
        self.state, self.identity = _state(status), identity(status)

    def _changed_error(self) -> ByzantiumError:
        return ByzantiumError(f"{printable(self.path)} was changed while it was read")


def _state(status: os.stat_result) -> tuple[int, ...]:
    """Values that differ if a file was replaced or written to; no user can set the last one."""
    return (*identity(status), status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def identity(status: os.stat_result) -> Identity:
    """The device and inode of a file, which distinguish it from all others."""
    return status.st_dev, status.st_ino


def _within(real: str, folder: str) -> bool:
    """Whether a path without links is in a folder, or in the store of files that it links to.

    The cache of Hugging Face has models--NAME/snapshots/REVISION, with links to files in
    models--NAME/blobs.
    """
    snapshots, model = os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))
    roots = [folder]
    if os.path.basename(snapshots) == "snapshots" and os.path.basename(model)[:8] == "models--":
        roots.append(os.path.join(model, "blobs"))
    return any(real.startswith(os.path.join(root, "")) for root in roots)


def quote(name: str) -> str:
    """A name that a contributor chose, in quotes, printable and at most about 100 characters."""
    return repr(name if len(name) <= 100 else f"{name[:100]}...")


def printable(path: Path | str) -> str:
    """A path as text without control characters."""
    return str(path) if str(path).isprintable() else repr(str(path))
