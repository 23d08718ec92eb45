"""Reading and writing files safely: a file is complete or absent, and never a trap.

A folder of results may come from a stranger. Where we write, symbolic links are never followed;
where we read, only regular files are opened, so that no pipe blocks and no device is read for ever.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

# How a file is opened for appending. O_NONBLOCK: opening a pipe that nobody reads does not block.
AT_THE_END = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
# How the name of a file ends while it is being written.
WRITING = re.compile(r"\.[0-9a-f]{16}\.writing$")


def write(path: Path, content: str | bytes) -> None:
    """Write a whole file at once; its folder is made if need be. See `writing`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "a" / "note.txt", "complete")
    ...     read(Path(folder) / "a" / "note.txt")
    b'complete'
    """
    with writing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A context with an open file that gets its name only when everything is written.

    Whatever happens meanwhile, a file of this name is complete, be it the old or the new one: the
    contents go to a new file beside it, under a name that nobody can have taken before, are brought
    to the disk, and the file is then renamed. The folder is made if need be.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        beside, descriptor = create_beside(path)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error
    _sync(path.parent)


def create_beside(path: Path) -> tuple[Path, int]:
    """A new, empty file beside `path`, and its descriptor.

    It is locked while it is open, so that others see that it is in use.
    """
    while True:
        beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.writing")
        # What is there already, a link among it, is never opened.
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return beside, descriptor
        os.close(descriptor)  # `clear_abandoned` removed it before we had the lock


def _sync(folder: Path) -> None:
    """Bring the entries of a folder to the disk, where the system can do that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def clear(folder: Path) -> None:
    """Remove files that killed processes left half written; only for whoever holds the folder."""
    for path in folder.iterdir():
        if WRITING.search(path.name):
            with suppress(OSError):
                path.unlink()


def clear_abandoned(path: Path) -> None:
    """Remove what killed processes left half written beside this file, but nothing in use."""
    for beside in path.parent.iterdir() if path.parent.is_dir() else ():
        if WRITING.search(beside.name) and WRITING.sub("", beside.name) == path.name:
            with suppress(OSError):
                descriptor = os.open(beside, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    beside.unlink()
                finally:
                    os.close(descriptor)


def in_use(path: Path) -> bool:
    """Whether a file that was made by `create_beside` is still open."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def append(path: Path, text: str) -> None:
    """Append text to a file; it is on the disk when this returns."""
    with appending(path) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def appending(path: Path) -> TextIO:
    """A file, opened for appending; never a link, a pipe or a device."""
    descriptor = os.open(path, AT_THE_END, 0o666)
    _only_a_file(descriptor, path)
    return os.fdopen(descriptor, "a", encoding="utf-8")


def read(path: Path) -> bytes:
    """The contents of a regular file."""
    with reading(path) as file:
        return file.read()


def reading(path: Path) -> BinaryIO:
    """A regular file, opened for reading; pipes and devices are refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    _only_a_file(descriptor, path)
    return os.fdopen(descriptor, "rb")


def _only_a_file(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a file", str(path))
