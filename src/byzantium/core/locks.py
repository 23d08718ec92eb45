"""Which process works in a folder: one at a time. Others can find out without taking or writing.

A lock of the operating system alone decides who may work. For those who only look, the process that
holds it writes a second file, the mark: it says which process it is, and its modification time,
renewed again and again, says that the process is alive.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from byzantium.core import files
from byzantium.core.errors import ByzantiumError

LOCK, MARK = ".lock", ".working"
# Every BEAT seconds a mark is renewed; a process whose mark is older than STALE is taken for dead.
BEAT, STALE = 20.0, 180.0
# The most bytes of a mark, and of what the system says about a process.
LARGEST = 1 << 16


class BusyError(ByzantiumError, RuntimeError):
    """Another process works in the same folder. Also a `RuntimeError`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as name, folder_lock(Path(name)):
    ...     try:
    ...         with folder_lock(Path(name)):
    ...             print("never reached")
    ...     except BusyError:
    ...         print("busy")
    busy
    """


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """A context in which no other process may work in the folder; the folder is made if need be.

    Raises `BusyError` at once, without waiting, if another process is working there. Files that
    killed processes left half written are removed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as name, folder_lock(Path(name)):
    ...     is_locked(Path(name))
    True
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BusyError(f"another process works on {folder}") from None
    try:
        files.clear(folder)
        with _marked(folder / MARK):
            yield
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process works in a folder. Only looks: it takes no lock and writes nothing.

    A process of this machine is identified by its number and its start time, because numbers are
    used again. One of another machine counts as working while its mark was renewed within the last
    three minutes.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as name:
    ...     is_locked(Path(name))
    False
    """
    path = folder / MARK
    try:
        age = time.time() - path.stat().st_mtime
        mark = json.loads(files.read(path, LARGEST))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(mark, dict):
        return False
    if mark.get("place") is not None and mark["place"] == _place():
        started = _started(mark.get("process"))
        return started is not None and started == mark.get("started")
    return abs(age) < STALE  # clocks differ


@contextmanager
def _marked(path: Path) -> Iterator[None]:
    process = os.getpid()
    mark = {"place": _place(), "process": process, "started": _started(process)}
    files.write(path, json.dumps(mark) + "\n")
    done = threading.Event()

    def live() -> None:
        while not done.wait(BEAT):
            with suppress(OSError):
                os.utime(path)

    threading.Thread(target=live, name=f"signs of life in {path}", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        path.unlink(missing_ok=True)


def _place() -> str | None:
    """What process numbers are valid in: this machine, since it started, and this container."""
    try:
        boot = files.read(Path("/proc/sys/kernel/random/boot_id"), LARGEST).decode().strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except (OSError, ValueError):
        return None


def _started(process: Any) -> int | None:
    """When a process was started, in clock ticks; None if no such process is alive."""
    if not isinstance(process, int) or not 0 < process < 2**31:
        return None
    try:
        status = files.read(Path(f"/proc/{process}/stat"), LARGEST).decode(errors="replace")
        # The name, in parentheses, may hold anything; after it come the state and, later, the time.
        state, *others = status.rpartition(")")[2].split()
        return None if state in "ZX" else int(others[18])
    except (OSError, ValueError, IndexError):
        return None
