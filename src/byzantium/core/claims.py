"""Who works in a folder: one process at a time; anyone may look, which takes and writes nothing.

The lock is the operating system's and alone decides who works. Beside it the one who works leaves a
mark, for those who look: who it is, and, by the time of the file, that it was alive a moment ago.
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
# Seconds between two signs of life, and after which one who gives none is taken for dead.
BEAT, STALE = 20.0, 180.0


class BusyError(ByzantiumError, RuntimeError):
    """Another process works on this."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Work in a folder, alone; it is made if need be."""
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


def at_work(folder: Path) -> bool:
    """Whether someone works in a folder.

    Here, a process is known by its number and by when it was started, for numbers are used again.
    Of one on another machine there are only its signs of life.
    """
    path = folder / MARK
    try:
        age = time.time() - path.stat().st_mtime
        mark = json.loads(files.read(path))
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
    """Where a number means the same process as here: a start of a machine, a space of numbers."""
    try:
        boot = files.read(Path("/proc/sys/kernel/random/boot_id")).decode().strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except (OSError, ValueError):
        return None


def _started(process: Any) -> int | None:
    """When a process was started, in ticks of the machine; None if there is no such one alive."""
    if not isinstance(process, int) or not 0 < process < 2**31:
        return None
    try:
        status = files.read(Path(f"/proc/{process}/stat")).decode(errors="replace")
        # The name, in parentheses, may hold anything; behind it the state, and later the time.
        state, *others = status.rpartition(")")[2].split()
        return None if state in "ZX" else int(others[18])
    except (OSError, ValueError, IndexError):
        return None
