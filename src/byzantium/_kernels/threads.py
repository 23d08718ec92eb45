"""Parallel calls: threads help the calling thread, which also works alone.

In the main thread the helpers are torch's own threads, if its OpenMP can be called. After each
operation of torch these wait in a busy loop for some milliseconds, and threads of our own would
compete with them for the cores: an aggregation directly after a backward pass took a quarter
longer. Everywhere else the helpers are threads of our own.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

Result = TypeVar("Result")


class _Done(NamedTuple):
    """The result of one piece of work, or the error that it raised."""

    place: int
    result: Any = None
    error: BaseException | None = None


class _Piece(NamedTuple):
    place: int
    call: Callable[[], Any]
    finished: SimpleQueue[_Done]


def parallel_map(
    function: Callable[[int, int], Result], pieces: Sequence[tuple[int, int]], threads: int
) -> list[Result]:
    """Call function(first, last) for each piece, on this thread and up to `threads` - 1 helpers.

    - `function`: the function; it should release the GIL, or threads gain nothing.
    - `pieces`: a pair (first, last) for each call.
    - `threads`: how many threads work at once, this one included.

    Returns the results in the order of the pieces; if a call raises, its error is raised here. It
    never waits for a piece that no thread has begun. Without helpers (the system has no threads
    left, or the interpreter is about to exit) this thread does everything.

    >>> parallel_map(lambda first, last: sum(range(first, last)), [(0, 10), (10, 20)], threads=2)
    [45, 145]
    """
    threads = min(threads, len(pieces))
    if threads <= 1:
        return [function(*piece) for piece in pieces]
    finished: SimpleQueue[_Done] = SimpleQueue()
    todo = deque(
        _Piece(place, partial(function, *piece), finished) for place, piece in enumerate(pieces)
    )
    try:
        if openmp := _torch_openmp():
            openmp.together(_TAKES_PART, id(todo), threads, partial(_work, todo))
        else:
            _helpers(os.getpid()).call(threads - 1, todo)
            _work(todo)
        done = sorted(finished.get() for _ in pieces)  # by their places
    finally:
        todo.clear()  # helpers that come late find nothing, and hold no references
    for piece in done:
        if piece.error is not None:
            raise piece.error
    return [piece.result for piece in done]


def parallel_call(code: int, argument: int, here: Callable[[], None], threads: int) -> None:
    """Call machine code on this thread and on up to `threads` - 1 helpers at once.

    - `code`: the address of a function of C. Threads that call it at the same time share the work;
      one alone does all of it.
    - `argument`: the address that is its only argument.
    - `here`: the same call, from Python. It must hold references to all that the function uses.
    - `threads`: how many threads work at once, this one included.

    >>> seen = []
    >>> function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(seen.append)
    >>> code = ctypes.cast(function, ctypes.c_void_p).value
    >>> parallel_call(code, 7, lambda: function(7), threads=2)
    >>> seen
    [7, 7]
    """
    if threads > 1 and (openmp := _torch_openmp()):
        openmp.together(code, argument, threads, here)
    else:
        parallel_map(lambda *_: here(), [(0, 0)] * threads, threads)


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


# -- the threads of torch -----------------------------------------------------------------------

# The function that OpenMP calls in each of its threads, with its argument.
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.py_object)(_work)
_TAKES_PART = ctypes.cast(_CALLBACK, ctypes.c_void_p).value or 0
# The flag of Linux for a process that was forked and has started no program since.
FORKED = 0x40  # PF_FORKNOEXEC


class _OpenMP(NamedTuple):
    """Functions of the OpenMP library: start a parallel region, end it, ask whether in one."""

    start: Any
    end: Any
    inside: Any

    def together(self, code: int, argument: int, threads: int, here: Callable[[], None]) -> None:
        """Call a function of C on torch's threads, and the same function here from Python.

        Python handles signals after `start`, and never before it.
        """
        try:
            self.start(code, argument, threads)
            here()
        finally:
            self.end()


@lru_cache(maxsize=1)
def _openmp(process: int) -> _OpenMP | None:
    """The OpenMP library that torch has loaded; None if it uses none, or another one than GNU's.

    None in forked children, too: OpenMP in their main thread relies on threads that exist only in
    the parent. Raises if the system has no thread left, because OpenMP would end the process.
    """
    try:
        library, state = ctypes.CDLL(None), Path("/proc/self/stat").read_text(encoding="utf-8")
        openmp = _OpenMP(
            library.GOMP_parallel_start, library.GOMP_parallel_end, library.omp_in_parallel
        )
    except (AttributeError, OSError, TypeError):
        return None
    if int(state.rpartition(")")[2].split()[6]) & FORKED:
        return None
    threading.Thread(target=int).start()
    openmp.start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
    openmp.start.restype = openmp.end.restype = None
    return openmp


def _torch_openmp() -> _OpenMP | None:
    """OpenMP, where its threads may be used now; None otherwise.

    That is, not in other threads than the main one, for each of which OpenMP would start a team of
    its own; not while the interpreter exits; and not within a parallel region.
    """
    if threading.get_ident() != threading.main_thread().ident or sys.is_finalizing():
        return None
    try:
        openmp = _openmp(os.getpid())
    except RuntimeError:
        return None
    return None if openmp is None or openmp.inside() else openmp


# -- threads of our own -------------------------------------------------------------------------


class _Helpers:
    def __init__(self) -> None:
        self._calls: SimpleQueue[deque[_Piece]] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def call(self, number: int, todo: deque[_Piece]) -> None:
        """Ask so many helpers; each takes part as soon as it is free."""
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
    """The helpers of this process: a forked child does not inherit threads."""
    return _Helpers()
