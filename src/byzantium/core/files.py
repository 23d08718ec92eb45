"""Reading and writing files safely: a file is complete or absent, and never a trap.

A folder of results may come from somebody who is not trusted. Where we write, symbolic links are
never followed; where we read, only regular files are opened, so that no pipe blocks and no device
is read for ever. What is read as a whole has a largest size, which is checked on the open file: a
sparse file of any size takes no space on the disk, but all of it in memory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
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
    ...     read(Path(folder) / "a" / "note.txt", most=100)
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
    with writing_beside(path) as (_, file):
        yield file


@contextmanager
def writing_beside(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """The same, with the path that the file has meanwhile, so that others can write to it, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        beside, descriptor = create_beside(path)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield beside, file
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
    """Remove files that killed processes left half written; only where the folder is locked."""
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


def read(path: Path, most: int, *, pipe: bool = False) -> bytes:
    """The contents of a regular file.

    - `most`: the most bytes that it may have.
    - `pipe`: whether it may be a pipe instead, which only the user can have named.
    """
    with path.open("rb") if pipe else reading(path) as file:
        _check_size(file, path, most)
        content = file.read(most + 1)
    if len(content) > most:  # a pipe has no size, and a file may have grown
        raise _too_large(path, most)
    return content


def read_lines(path: Path, most: int, longest: int) -> Iterator[str]:
    """The whole lines of a regular file that may be growing, one at a time; sizes are in bytes."""
    with reading(path, most) as file:
        while line := file.readline(longest + 1):
            if len(line) > longest:
                raise OSError(errno.EFBIG, f"it has a line of more than {longest} bytes", str(path))
            if line.endswith(b"\n"):
                yield line[:-1].decode()


def reading(path: Path, most: int | None = None) -> BufferedReader:
    """A regular file of at most so many bytes, opened for reading: no pipe and no device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    _only_a_file(descriptor, path)
    file = os.fdopen(descriptor, "rb")
    try:
        _check_size(file, path, most)
    except OSError:
        file.close()
        raise
    return file


def quarter_of_memory() -> int:
    """The most bytes of what is loaded as a whole and may be large: a quarter of the memory.

    Beside the bytes there are, for a moment, what they are decoded to and a copy of it.
    """
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


def _check_size(file: BinaryIO, path: Path, most: int | None) -> None:
    if most is not None and os.fstat(file.fileno()).st_size > most:
        raise _too_large(path, most)


def _too_large(path: Path, most: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))


def _only_a_file(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a file", str(path))
