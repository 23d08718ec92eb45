"""Interleaved timing: noise of the machine hits every contestant of a group alike.

In each round every contestant is called for a while, and then once more, which counts: the first
calls find caches and threads as the contestant before left them. (Threads of OpenMP wait in a loop
for some milliseconds after torch has used them, on a core that the next contestant could use. What
that costs in a training loop has a section of its own.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

WARM = 0.02  # seconds for which a contestant is called before it is timed
SLOW = 0.5  # seconds: a call this long needs no warming up
BUDGET = 4.0  # seconds one contestant may use up within its group


@dataclass(frozen=True)
class Contestant:
    """`call` is timed; the making of its input is not. One that may fail drops out if it does."""

    call: Callable[[Any], Any]
    make_input: Callable[[], Any]
    may_fail: bool = False

    def warm(self) -> float:
        """Seconds of its last call, of as many as it takes for others' threads to go to sleep."""
        end = perf_counter() + WARM
        seconds = self.timed()[1]
        while seconds < SLOW and perf_counter() < end:
            seconds = self.timed()[1]
        return seconds if seconds >= SLOW else self.timed()[1]

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
                values.append(contestants[name].warm())
        tick()
    return {name: median(values) for name, values in times.items()}, first
