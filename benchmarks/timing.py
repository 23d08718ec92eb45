"""Interleaved timing: noise of the machine hits every contestant of a group alike.

In each round every contestant is called twice in a row and the second call counts: the first finds
caches and threads as the contestant before left them. (Threads of OpenMP wait in a loop for some
milliseconds after torch has used them, on a core that the next contestant could use.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

SLOW = 0.5  # seconds: a call this long needs no warming up
BUDGET = 4.0  # seconds one contestant may use up within its group


@dataclass(frozen=True)
class Contestant:
    """`call` is timed; the making of its input is not. One that may fail drops out if it does."""

    call: Callable[[Any], Any]
    make_input: Callable[[], Any]
    may_fail: bool = False

    def timed(self) -> tuple[Any, float]:
        given = self.make_input()
        start = perf_counter()
        result = self.call(given)
        return result, perf_counter() - start


def interleave(
    contestants: dict[str, Contestant], repeats: int, tick: Callable[[], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Median seconds of each contestant, and what each returned on its first call."""
    times: dict[str, list[float]] = {}
    first: dict[str, Any] = {}
    for name, contestant in contestants.items():
        try:
            first[name], seconds = contestant.timed()
        except Exception:
            if not contestant.may_fail:
                raise
            continue
        times[name] = [seconds] if seconds > BUDGET / 2 else []
    for _ in range(repeats):
        for name, values in times.items():
            if sum(values) < BUDGET:
                seconds = contestants[name].timed()[1]
                values.append(contestants[name].timed()[1] if seconds < SLOW else seconds)
        tick()
    return {name: median(values) for name, values in times.items()}, first
