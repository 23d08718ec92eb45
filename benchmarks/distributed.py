"""Robust all-reduce over gloo, on this machine: against all_reduce, and against gathering."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from model import Figure, Result, Section
from sections import Run

RANKS = Path(__file__).with_name("ranks.py")


class Size(NamedTuple):
    """Ranks, the dimension, how often the ranks are started, and repeats for each start.

    Short calls need many repeats on two cores. Starts differ as a whole; the median one counts.
    """

    ranks: int
    d: int
    starts: int
    repeats: int


SIZES = (
    Size(4, 1_000, 1, 60),
    Size(4, 1_200_000, 5, 20),
    Size(4, 12_000_000, 1, 8),
    Size(8, 1_000, 1, 60),
    Size(8, 1_200_000, 3, 15),
    Size(8, 12_000_000, 1, 8),
)
LEAST = 10**6  # numbers in a vector from which there are goals
STEPS = sum(size.starts * (size.repeats + 1) for size in SIZES)


def goals(rule: str, ranks: int, d: int) -> tuple[str | None, str | None]:
    """The goals of a rule; None for the smallest vectors, which measure the cost of messages."""
    if d < LEAST:
        return None, None
    to_all_reduce = None
    if ranks == 4 and "Bucketing" not in rule:
        to_all_reduce = "reduce coordinate" if rule == "Median()" else "reduce weighting"
    return to_all_reduce, f"reduce gathered {ranks}"


def measure(run: Run, ranks: int, d: int, repeats: int) -> dict[str, float]:
    """The fastest of some repeats, by contestant; nothing if a rank failed."""
    seconds: dict[str, float] = {}
    command = [sys.executable, str(RANKS), str(ranks), str(d), str(repeats)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            run.step(f"{ranks} ranks, d = {d}")
            seconds = json.loads(line).get("seconds", seconds)
    return {} if process.returncode else seconds


def all_reduce(run: Run) -> Section:
    results = []
    for ranks, d, starts, repeats in SIZES:
        measurements = [measure(run, ranks, d, repeats) for _ in range(starts)]
        if not all(measurements):
            run.say(f"Robust all-reduce on {ranks} ranks is omitted: it failed here.")
            continue
        names = measurements[0]
        for rule in [name for name in names if f"{name} gathered" in names]:
            by_ratio = sorted(measurements, key=lambda times: times[rule] / times["all_reduce"])
            seconds = by_ratio[starts // 2]
            plain, ours, gathered = (
                seconds[name] for name in ("all_reduce", rule, f"{rule} gathered")
            )
            to_all_reduce, to_gathered = goals(rule, ranks, d)
            figures = [
                Figure("ours / all_reduce", ours / plain, goal=to_all_reduce),
                Figure("gathered / ours", gathered / ours, goal=to_gathered),
            ]
            times = {"all_reduce": plain, "ours": ours, "gathered": gathered}
            results.append(Result(f"{rule}, {ranks} ranks, d = {d}", times, figures))
    return Section("distributed", "Robust all-reduce over gloo, ranks on this machine", results)
