"""Interleaved timing: noise of the machine affects all contestants of a group equally.

In each round every contestant is called for a while, and then once more, which counts: the previous
contestant affects caches and threads of the first calls. (Threads of OpenMP wait in a loop for some
milliseconds after torch has used them, on a core that the next contestant could use. Another
section measures what that costs in a training loop.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

WARM = 0.02  # seconds for which a contestant is called before it is timed
SLOW = 0.5  # seconds: a call this long needs no warming up
BUDGET = 4.0  # seconds that one contestant may use within its group


@dataclass(frozen=True)
class Contestant:
    """A call to time, without the time to make its input; one that may fail is then omitted."""

    call: Callable[[Any], Any]
    make_input: Callable[[], Any]
    may_fail: bool = False

    def warm(self) -> float:
        """Call it until threads of others sleep, and once more; the seconds of the last call."""
        end = perf_counter() + WARM
        seconds = self.time()[1]
        while seconds < SLOW and perf_counter() < end:
            seconds = self.time()[1]
        return seconds if seconds >= SLOW else self.time()[1]

    def time(self) -> tuple[Any, float]:
        """The result of a call, and its seconds."""
        value = self.make_input()
        start = perf_counter()
        result = self.call(value)
        return result, perf_counter() - start


def interleave(
    contestants: dict[str, Contestant], repeats: int, tick: Callable[[], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """The median seconds of each contestant, and the result of its first call."""
    times: dict[str, list[float]] = {}
    first: dict[str, Any] = {}
    for name, contestant in contestants.items():
        try:
            first[name], seconds = contestant.time()
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
