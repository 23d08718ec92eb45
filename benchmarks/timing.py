"""Interleaved timing: noise of the machine hits every contestant of a group alike."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter, sleep
from typing import Any

SLOW = 2.0  # seconds: a first call this long is no warm-up but a measurement
BUDGET = 4.0  # seconds one contestant may use up within its group
PAUSE = (
    0.02  # seconds: threads of the last contestant that wait in a loop have gone to sleep by then
)


@dataclass(frozen=True)
class Contestant:
    """`call` is timed; the making of its input is not. One that may fail drops out if it does."""

    call: Callable[[Any], Any]
    make_input: Callable[[], Any]
    may_fail: bool = False

    def timed(self) -> tuple[Any, float]:
        given = self.make_input()
        sleep(PAUSE)
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
        times[name] = [seconds] if seconds > SLOW else []
    for _ in range(repeats):
        for name, values in times.items():
            if sum(values) < BUDGET:
                values.append(contestants[name].timed()[1])
        tick()
    return {name: median(values) for name, values in times.items()}, first
