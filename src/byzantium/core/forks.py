"""Aggregating survives forks, whatever the other threads are doing at that moment.

A forked child has one thread, and all else as it was: locks that other threads held, libraries in
the middle of something. (The OpenBLAS below numpy even stops for ever if the *parent* multiplies
matrices meanwhile.) So a fork waits until no other thread aggregates.

The child's one thread still counts on the OpenMP threads that it had in the parent: its next large
operation in torch would wait for them for ever. A thread that was started in the child gets its
own, so one of these aggregates in its place.
"""

from __future__ import annotations

# Python holds locks of its own during a fork. Who aggregates may need them, so that they must be
# taken after ours; what was registered first is taken last.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
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
        self.door = threading.RLock()  # nobody comes in while it is held
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
            with self.door:
                self.inside[thread] = left
            yield
        finally:
            self.inside.pop(thread, None)
            left.release()

    def close(self) -> None:
        self.door.acquire()
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
        self.door.release()

    def open_in_child(self) -> None:
        self.open()
        self.door = threading.RLock()  # the old one may still count threads that wait for it
        self.orphan = threading.get_ident()
        for thread in self.inside.keys() - {self.orphan}:  # it was not waited for any longer
            del self.inside[thread]


_gate = _Gate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_gate.close, after_in_parent=_gate.open, after_in_child=_gate.open_in_child
    )


def held_during_forks(lock: Lock) -> None:
    """Have forks wait for one more lock, which others than those inside may hold, too."""
    _gate.locks.append(lock)


def fork_safe(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorates what aggregates."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if sys.is_finalizing():  # the other threads have stopped where they were, locks in hand
            return function(*args, **kwargs)

        def guarded() -> Result:
            with _gate.aggregating():
                return function(*args, **kwargs)

        return _elsewhere(guarded) if threading.get_ident() == _gate.orphan else guarded()

    return call


def awaited(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorates what a fork waits for and what any thread can do: loading a part of the library.

    A child that was forked while another thread imports finds that module locked for ever.
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if sys.is_finalizing():
            return function(*args, **kwargs)
        with _gate.aggregating():
            return function(*args, **kwargs)

    return call


def _elsewhere(function: Callable[[], Result]) -> Result:
    """Call it in a new thread, if there can be one."""
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
