"""Makes aggregation safe in forked processes, whatever other threads do at the moment of the fork.

A forked child has only one thread, but all else as it was: locks that other threads held, libraries
in the middle of an operation. (OpenBLAS, which numpy uses, even hangs for ever if the *parent*
multiplies matrices meanwhile.) So a fork waits until no other thread aggregates.

The one thread of the child still relies on the OpenMP threads of the parent: its next large
operation in torch would wait for them for ever. A thread that is started in the child gets OpenMP
threads of its own, so such a thread aggregates in its place.
"""

from __future__ import annotations

# Python, too, holds locks during a fork. A thread that aggregates may need them, so a fork must
# take ours first and these after. The handlers registered first run last: hence these imports.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial, wraps
from typing import ParamSpec, Protocol, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Seconds that a fork waits. Not for ever: what it waits for could wait for the thread that forks.
PATIENCE = 60.0


class Lock(Protocol):
    def acquire(self) -> object: ...
    def release(self) -> object: ...


class _Gate:
    """Any number of threads may be inside; one that forks waits until the others have left."""

    def __init__(self) -> None:
        self.entrance = threading.RLock()  # nobody comes in while it is held
        self.inside: dict[int, threading.Lock] = {}  # by thread; released when it leaves
        self.locks: list[Lock] = []
        self.held: list[Lock] = []  # of these, by a thread that forks
        self.orphan: int | None = None  # the thread of a forked child that came from the parent

    @contextmanager
    def aggregating(self) -> Iterator[None]:
        thread = threading.get_ident()
        if thread in self.inside:  # an attack tries a rule
            yield
            return
        left = threading.Lock()
        left.acquire()
        try:
            with self.entrance:
                self.inside[thread] = left
            yield
        finally:
            self.inside.pop(thread, None)
            left.release()

    def close(self) -> None:
        self.entrance.acquire()
        end = time.monotonic() + PATIENCE
        for thread, left in list(self.inside.items()):
            if thread != threading.get_ident():
                left.acquire(timeout=max(0.0, end - time.monotonic()))
        self.held = list(self.locks)
        for lock in self.held:
            lock.acquire()

    def open(self) -> None:
        for lock in self.held:
            lock.release()
        self.entrance.release()

    def open_in_child(self) -> None:
        self.open()
        self.entrance = threading.RLock()  # the old one may still count threads that wait for it
        self.orphan = threading.get_ident()
        for thread in self.inside.keys() - {self.orphan}:  # it was not waited for any longer
            del self.inside[thread]


_gate = _Gate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_gate.close, after_in_parent=_gate.open, after_in_child=_gate.open_in_child
    )


def held_during_forks(lock: Lock) -> None:
    """Have every fork hold this lock, too, so that no child finds it taken.

    >>> held_during_forks(threading.Lock())
    """
    _gate.locks.append(lock)


def fork_safe(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function that aggregates, so that forks are safe while it runs.

    >>> @fork_safe
    ... def doubled(x: int) -> int:
    ...     return 2 * x
    >>> doubled(3)
    6
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if threading.get_ident() == _gate.orphan and not sys.is_finalizing():
            return _elsewhere(partial(waited, *args, **kwargs))
        return waited(*args, **kwargs)

    waited = awaited(function)
    return call


def awaited(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function that forks wait for but that any thread may run: one that imports.

    A child that is forked while another thread imports a module finds that module locked for ever.
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if sys.is_finalizing():  # other threads were stopped where they were, and may hold locks
            return function(*args, **kwargs)
        with _gate.aggregating():
            return function(*args, **kwargs)

    return call


def _elsewhere(function: Callable[[], Result]) -> Result:
    """Call a function in a new thread; in this one if no thread can be started."""
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError:
        run()
    return done.result()
