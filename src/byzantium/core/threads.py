"""Threads of our own, which help the calling thread and which it can do without."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

Result = TypeVar("Result")
Pieces: TypeAlias = deque[tuple[Future[Any], Callable[[], Any]]]


def spread(
    function: Callable[[int, int], Result], pieces: Sequence[tuple[int, int]], threads: int
) -> list[Result]:
    """function(first, last) of each piece, by this thread and up to `threads` - 1 helpers.

    It never waits for a piece that nobody has begun. Without helpers (the system has no threads
    left, the interpreter is about to exit) this thread does everything.
    """
    results: list[Future[Result]] = [Future() for _ in pieces]
    todo: Pieces = deque(
        (result, partial(function, *piece)) for result, piece in zip(results, pieces, strict=True)
    )
    try:
        _helpers(os.getpid()).call(min(threads, len(pieces)) - 1, todo)
        _work(todo)
        return [result.result() for result in results]
    finally:
        todo.clear()


def _work(todo: Pieces) -> None:
    """Take pieces, in order, while there are any."""
    while True:
        try:
            result, piece = todo.popleft()
        except IndexError:
            return
        try:
            result.set_result(piece())
        except BaseException as error:  # whoever asks for the pieces in order will see it
            todo.clear()
            result.set_exception(error)


class _Helpers:
    def __init__(self) -> None:
        self._calls: SimpleQueue[Pieces] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def call(self, number: int, todo: Pieces) -> None:
        """Ask so many to help; each comes when it is free."""
        # Thread.start waits for the thread, which would never run once the interpreter goes down.
        while len(self._threads) < number and not sys.is_finalizing():
            thread = threading.Thread(target=self._help, name="byzantium", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                break
            self._threads.append(thread)
        for _ in range(number):
            self._calls.put(todo)

    def _help(self) -> None:
        while True:
            _work(self._calls.get())


@lru_cache(maxsize=1)
def _helpers(process: int) -> _Helpers:
    """Of this process: threads do not follow into a forked child."""
    return _Helpers()
