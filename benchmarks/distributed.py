"""Robust all-reduce over gloo, on this machine: against all_reduce, and against gathering."""

import json
import subprocess
import sys
from pathlib import Path

from model import Figure, Result, Section
from sections import Run

RANKS = Path(__file__).with_name("ranks.py")
# Ranks, the dimension, how often the ranks are started, and repeats for each start. What is short
# waits for luck with two cores; starts differ from beginning to end, and the middle one counts.
SIZES = (
    (4, 1_000, 1, 60),
    (4, 1_200_000, 5, 20),
    (4, 12_000_000, 1, 8),
    (8, 1_000, 1, 60),
    (8, 1_200_000, 3, 15),
    (8, 12_000_000, 1, 8),
)
LEAST = 10**6  # numbers in a vector from which there are goals
STEPS = sum(starts * (repeats + 1) for *_, starts, repeats in SIZES)


def goals(rule: str, ranks: int, d: int) -> tuple[str | None, str | None]:
    """None for the smallest vectors, which are there to measure what messages cost."""
    if d < LEAST:
        return None, None
    to_all_reduce = None
    if ranks == 4 and "Bucketing" not in rule:
        to_all_reduce = "reduce coordinate" if rule == "Median()" else "reduce weighting"
    return to_all_reduce, f"reduce gathered {ranks}"


def measured(run: Run, ranks: int, d: int, repeats: int) -> dict[str, float]:
    """The fastest of some repeats, by contestant; nothing where a rank failed."""
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
        found = [measured(run, ranks, d, repeats) for _ in range(starts)]
        if not all(found):
            run.say(f"Robust all-reduce on {ranks} ranks is left out: it failed here.")
            continue
        for rule in [name for name in found[0] if f"{name} gathered" in found[0]]:
            by_ratio = sorted(found, key=lambda times: times[rule] / times["all_reduce"])
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
