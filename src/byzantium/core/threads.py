"""Threads of our own, which help the calling thread and which it can do without."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

Result = TypeVar("Result")


class _Done(NamedTuple):
    """What came of a piece."""

    place: int
    result: Any = None
    error: BaseException | None = None


class _Piece(NamedTuple):
    place: int
    call: Callable[[], Any]
    finished: SimpleQueue[_Done]


def spread(
    function: Callable[[int, int], Result], pieces: Sequence[tuple[int, int]], threads: int
) -> list[Result]:
    """function(first, last) of each piece, by this thread and up to `threads` - 1 helpers.

    It never waits for a piece that nobody has begun. Without helpers (the system has no threads
    left, the interpreter is about to exit) this thread does everything.
    """
    finished: SimpleQueue[_Done] = SimpleQueue()
    todo = deque(
        _Piece(place, partial(function, *piece), finished) for place, piece in enumerate(pieces)
    )
    try:
        _helpers(os.getpid()).call(min(threads, len(pieces)) - 1, todo)
        _work(todo)
        done = sorted(finished.get() for _ in pieces)  # by their places
    finally:
        todo.clear()  # helpers that come late find nothing, and hold on to nothing
    for piece in done:
        if piece.error is not None:
            raise piece.error
    return [piece.result for piece in done]


def _work(todo: deque[_Piece]) -> None:
    """Take pieces, in order, while there are any; once one has failed, only pass that on."""
    failure: BaseException | None = None
    while True:
        try:
            place, call, finished = todo.popleft()
        except IndexError:
            return
        result = None
        if failure is None:
            try:
                result = call()
            except BaseException as error:
                failure = error
        finished.put(_Done(place, result, failure))


class _Helpers:
    def __init__(self) -> None:
        self._calls: SimpleQueue[deque[_Piece]] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def call(self, number: int, todo: deque[_Piece]) -> None:
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
