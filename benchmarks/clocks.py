"""Draws docs/clocks.svg: accuracy over simulated time, and prints it at some times.

byzantium sweep benchmarks/clocks.toml --out results-clocks --rows clock --over time
python benchmarks/clocks.py results-clocks
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from panels import named_results, panels, save

from byzantium.reports.palette import OTHER_LINES
from byzantium.runs import Result, Run

TITLES = {
    "NoAttack()": "nobody attacks",
    "ALittleIsEnough()": "3 of 25 attack: ALIE",
    "InnerProduct()": "3 of 25 attack: IPM",
}
TIMES = (50, 100, 200, 300)


def at(result: Result, times: Sequence[float]) -> list[float]:
    """The accuracy of a run at some simulated times, between two evaluations on a line."""
    known = [(line["time"], line["accuracy"]) for line in result.metrics if "time" in line]
    x, y = np.array(known).T
    return [float(value) for value in np.interp(times, x, y, left=np.nan)]


def main() -> None:
    """Read the results, draw the picture, and print its numbers."""
    found: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in named_results(__doc__):
        assert isinstance(result.job, Run)
        found[result.job.attack, result.job.clock].append(result)
    axes, grid = panels(len(TITLES), (7.5, 2.8)), np.linspace(0, TIMES[-1], 121)
    for axis, attack in zip(axes, TITLES, strict=True):
        clocks = sorted(clock for other, clock in found if other == attack)
        for clock, color in zip(clocks, OTHER_LINES, strict=False):
            runs, name = found[attack, clock], clock.partition("(")[0]
            seeds = np.array([at(run, [*grid]) for run in runs])
            axis.plot(grid, seeds.mean(axis=0), color=color.light, label=name)
            axis.fill_between(
                grid, seeds.min(axis=0), seeds.max(axis=0), color=color.light, alpha=0.2, lw=0
            )
            each = [at(run, TIMES) for run in runs]
            means = {
                t: round(fmean(k), 1) for t, k in zip(TIMES, zip(*each, strict=True), strict=True)
            }
            steps = fmean(run.metrics[-1]["round"] / run.metrics[-1]["time"] for run in runs)
            stale = fmean(line["staleness"] for run in runs for line in run.metrics)
            print(f"{attack:18} {name:12} {means} steps per time {steps:.2f} staleness {stale:.2f}")
        axis.set(xlim=(0, TIMES[-1]))
    label = "simulated time (1 = the mean time of a vector)"
    save(axes, TITLES.values(), label, "clocks.svg")


if __name__ == "__main__":
    main()
