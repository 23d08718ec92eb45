"""Input files of which any part can be read, with a limit on how many are open at a time.

Contributors decide how many files there are, but not how many of them are open. A file that was
closed is opened again when it is needed, and must not have changed.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byzantium.core import ByzantiumError, files

# Errors of this machine, which no contributor caused.
LOCAL_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# How many files stay open where the system sets no limit.
MAX_OPEN = 4096

Bytes = NDArray[np.uint8]
Identity = tuple[int, int]
# Descriptors that are not in use, by the number of their file, the least recently used first. Each
# access is a single call, which is atomic for other threads.
_idle_descriptors: OrderedDict[int, int] = OrderedDict()
_numbers = itertools.count()


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


class OpenFile:
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
        self.number = next(_numbers)
        weakref.finalize(self, _close, self.number)
        descriptor = _open(self.real)
        status = os.fstat(descriptor)
        self.state, self.size = _state(status), status.st_size
        self.identity = identity(status)
        self._release(descriptor)

    def fill(self, target: NDArray[Any], offset: int) -> None:
        """Read bytes into a contiguous target until it is full."""
        rest = target.view(np.uint8).data
        descriptor = self._acquire()
        try:
            while rest:
                count = os.preadv(descriptor, [rest], offset)
                if not count:
                    raise ByzantiumError(f"{printable(self.path)} was cut off while it was read")
                rest, offset = rest[count:], offset + count
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(self.path)) from error
        finally:
            self._release(descriptor)

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

    def _acquire(self) -> int:
        descriptor = _idle_descriptors.pop(self.number, None)
        if descriptor is not None:
            return descriptor
        try:
            descriptor = _open(self.real)
        except OSError as error:
            if error.errno in LOCAL_ERRORS:
                raise
            raise self._changed_error() from error
        if _state(os.fstat(descriptor)) != self.state:
            os.close(descriptor)
            raise self._changed_error()
        return descriptor

    def _release(self, descriptor: int) -> None:
        if _idle_descriptors.setdefault(self.number, descriptor) != descriptor:
            os.close(descriptor)  # another thread has opened it, too
        while len(_idle_descriptors) > _max_open() and _close_oldest():
            pass

    def _changed_error(self) -> ByzantiumError:
        return ByzantiumError(f"{printable(self.path)} was changed while it was read")


def _open(path: str) -> int:
    """A descriptor of a regular file; if the system has none left, others are closed first."""
    while True:
        try:
            with files.reading(Path(path)) as file:
                return os.dup(file.fileno())
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not _close_oldest():
                raise


def _close(number: int) -> None:
    if (descriptor := _idle_descriptors.pop(number, None)) is not None:
        os.close(descriptor)


def _close_oldest() -> bool:
    """Close the descriptor that was unused for longest; False if there is none."""
    try:
        _, descriptor = _idle_descriptors.popitem(last=False)
    except KeyError:
        return False
    os.close(descriptor)
    return True


def _max_open() -> int:
    """How many files stay open: half of what the system allows this process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN if limit == resource.RLIM_INFINITY else limit // 2


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
