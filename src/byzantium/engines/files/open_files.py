"""Files of strangers, of which any part may be read, and of which only so many are open at a time.

A contributor decides how many files there are, but not how many of them are open. A file that was
closed is opened again when it is needed, and must then be the one that it was.
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

# Nothing that a contributor did.
OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# How many files stay open where the system sets no limit.
MOST = 4096

Bytes = NDArray[np.uint8]
# The descriptors that nobody uses just now, by the number of their file, the longest unused first.
# All that is done with it is one call at a time, which no other thread sees half done.
_idle: OrderedDict[int, int] = OrderedDict()
_numbers = itertools.count()


class UnreadableError(ByzantiumError):
    """A checkpoint that cannot be used; why, as the end of a sentence that begins with its name."""


@contextmanager
def rejecting() -> Iterator[None]:
    """Whatever goes wrong with a file of a stranger is a reason to reject it, unless it is ours."""
    try:
        yield
    except (UnreadableError, MemoryError):
        raise
    except OSError as error:
        if error.errno in OURS:
            raise
        raise UnreadableError(f"cannot be opened: {error.strerror}") from error
    except ByzantiumError as error:
        raise UnreadableError("was changed or cut off while it was read") from error
    except Exception as error:
        raise UnreadableError(f"cannot be read: {shown(str(error))}") from error


class Opened:
    """A file of which any part may be read, and that is noticed to be another one.

    It is not mapped: the system ends a program that reads where a mapped file was cut off
    meanwhile, and whoever sent the file could do that.

    - `path`: the file.
    - `folder`: what it must not lead out of, by links; None for a file that the user named.
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
        self._give_back(descriptor)

    def fill(self, target: NDArray[Any], offset: int) -> None:
        """Read as many bytes as the target has, which lie one after the other."""
        rest = target.view(np.uint8).data
        descriptor = self._take()
        try:
            while rest:
                count = os.preadv(descriptor, [rest], offset)
                if not count:
                    raise ByzantiumError(f"{named(self.path)} was cut off while it was read")
                rest, offset = rest[count:], offset + count
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(self.path)) from error
        finally:
            self._give_back(descriptor)

    def read(self, offset: int, count: int) -> Bytes:
        raw = np.empty(count, np.uint8)
        self.fill(raw, offset)
        return raw

    def changed(self) -> bool:
        """Whether it is no longer what it was when it was opened."""
        try:
            return _state(os.stat(self.real)) != self.state
        except OSError:
            return True

    def _take(self) -> int:
        descriptor = _idle.pop(self.number, None)
        if descriptor is not None:
            return descriptor
        try:
            descriptor = _open(self.real)
        except OSError as error:
            if error.errno in OURS:
                raise
            raise self._change() from error
        if _state(os.fstat(descriptor)) != self.state:
            os.close(descriptor)
            raise self._change()
        return descriptor

    def _give_back(self, descriptor: int) -> None:
        if _idle.setdefault(self.number, descriptor) != descriptor:
            os.close(descriptor)  # another thread read it, too
        while len(_idle) > _most() and _close_one():
            pass

    def _change(self) -> ByzantiumError:
        return ByzantiumError(f"{named(self.path)} was changed while it was read")


def _open(path: str) -> int:
    """A descriptor of a regular file; where there are no more, others are closed first."""
    while True:
        try:
            with files.reading(Path(path)) as file:
                return os.dup(file.fileno())
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not _close_one():
                raise


def _close(number: int) -> None:
    if (descriptor := _idle.pop(number, None)) is not None:
        os.close(descriptor)


def _close_one() -> bool:
    """Close what was not used for longest; False if there is nothing."""
    try:
        _, descriptor = _idle.popitem(last=False)
    except KeyError:
        return False
    os.close(descriptor)
    return True


def _most() -> int:
    """How many files stay open: half of what the system allows, the rest is for everybody else."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if limit == resource.RLIM_INFINITY else limit // 2


def _state(status: os.stat_result) -> tuple[int, ...]:
    """What differs if a file was replaced or written to; nobody can set the last one."""
    return (*identity(status), status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def identity(status: os.stat_result) -> tuple[int, int]:
    """What tells a file from all others, whatever it is called."""
    return status.st_dev, status.st_ino


def _within(real: str, folder: str) -> bool:
    """Whether a path without links is in a folder, or in the store that its links lead to.

    The cache of Hugging Face has models--NAME/snapshots/REVISION, with links to files in
    models--NAME/blobs.
    """
    snapshots, model = os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))
    roots = [folder]
    if os.path.basename(snapshots) == "snapshots" and os.path.basename(model)[:8] == "models--":
        roots.append(os.path.join(model, "blobs"))
    return any(real.startswith(os.path.join(root, "")) for root in roots)


def shown(name: str, most: int = 100) -> str:
    """A name that a stranger chose, as it can be printed."""
    return repr(name if len(name) <= most else f"{name[:most]}...")


def named(path: Path | str) -> str:
    """A path as it can be printed."""
    return str(path) if str(path).isprintable() else repr(str(path))
