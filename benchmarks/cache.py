"""Draws docs/sampling.svg: accuracy against the share of workers that take part in a round.

byzantium sweep benchmarks/cache.toml --out results-cache
python benchmarks/cache.py results-cache
"""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

from matplotlib.axes import Axes
from panels import named_results, panels, save

from byzantium.reports.palette import ATTACKER, HONEST
from byzantium.reports.style import GREY
from byzantium.runs import Run, Store

TITLES = {
    "NoAttack()": "nobody attacks",
    "ALittleIsEnough()": "10 of 50 attack: ALIE",
    "Adaptive()": "10 of 50 attack: Adaptive",
}
# Digits have ten classes: so right is a model that knows nothing, or a run that cannot go on.
CHANCE = 10.0


def accuracies(store: Store) -> dict[tuple[str, bool], dict[int, list[float]]]:
    """The accuracy of each seed, by attack, cache and number of participants."""
    found: dict[tuple[str, bool], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in store:
        job = result.job
        assert isinstance(job, Run)
        accuracy = CHANCE if result.accuracy is None else result.accuracy
        found[job.attack, job.cache][job.participants or job.n].append(accuracy)
    return found


def draw(axis: Axes, found: dict[int, list[float]], label: str, color: str) -> None:
    """One curve: the mean over seeds, and a dot for each seed."""
    counts = sorted(found)
    axis.plot(counts, [fmean(found[count]) for count in counts], color=color, label=label)
    for count in counts:
        axis.scatter([count] * len(found[count]), found[count], color=color, s=9)


def main() -> None:
    """Read the results, draw the picture, and print its numbers."""
    found = accuracies(named_results(__doc__))
    axes = panels(len(TITLES), (7.5, 2.6))
    for axis, attack in zip(axes, TITLES, strict=True):
        for cache, label, color in (
            (True, "with a cache", HONEST.light),
            (False, "without", ATTACKER.light),
        ):
            draw(axis, found[attack, cache], label, color)
            means = {k: round(fmean(v), 1) for k, v in sorted(found[attack, cache].items())}
            print(f"{attack:18} {label:13} {means}")
        axis.set(xscale="log")
        axis.set_xticks([3, 5, 10, 20, 50], ["3", "5", "10", "20", "50"])
        axis.minorticks_off()
        axis.axhline(CHANCE, color=GREY, linewidth=0.6, linestyle=":")
    label = "how many of 50 workers take part in a round"
    save(axes, TITLES.values(), label, "sampling.svg")


if __name__ == "__main__":
    main()
