"""Draws docs/cliques.svg: what two cliques with other digits learn from each other, by rule.

byzantium sweep benchmarks/cliques.toml --jobs 2 --out results-cliques
python benchmarks/cliques.py results-cliques
"""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

import numpy as np
from panels import named_results, panels, save

from byzantium.reports.palette import ATTACKER, HONEST
from byzantium.reports.style import GREY
from byzantium.runs import LAST, Result, Run

LINES = {
    "everybody": ("mean of all models", "#000000", "-"),
    "clique_1": ("mean of clique 1", HONEST.light, "-"),
    "clique_2": ("mean of clique 2", ATTACKER.light, "--"),
}
SHOWN = {
    "Gossip()": "Gossip",
    "ClippedGossip(f=1, radius=3)": "ClippedGossip, radius 3",
    "ClippedGossip(f=1)": "ClippedGossip",
    "TrimmedGossip(f=1)": "TrimmedGossip",
    "TrimmedMean(f=1)": "TrimmedMean",
}
# Each clique holds half of the digits: it knows no more of the others if it hears nothing.
HALF = 50


def main() -> None:
    """Read the results, draw the picture, and print the means of the last evaluations."""
    found: dict[str, list[Result]] = defaultdict(list)
    for result in named_results(__doc__):
        assert isinstance(result.job, Run)
        found[result.job.rule].append(result)
    axes = panels(len(SHOWN), (9.5, 2.5), **{"axes.titlesize": 9, "legend.fontsize": 7.5})
    for rule, results in sorted(found.items()):
        seeds = {
            name: np.array([[line[name] for line in result.metrics] for result in results])
            for name in LINES
        }
        last = {name: round(fmean(rows[:, -LAST:].flat), 1) for name, rows in seeds.items()}
        apart = fmean(r.metrics[-1]["consensus"] for r in results)
        print(f"{rule:32} {last} consensus {apart:.3f} ({len(results)} seeds)")
        if rule not in SHOWN:
            continue
        axis, rounds = axes[[*SHOWN].index(rule)], [line["round"] for line in results[0].metrics]
        for name, (label, color, dashes) in LINES.items():
            rows = seeds[name]
            axis.plot(rounds, rows.mean(axis=0), color=color, linestyle=dashes, label=label)
            axis.fill_between(rounds, rows.min(axis=0), rows.max(axis=0), color=color, alpha=0.15)
        axis.axhline(HALF, color=GREY, linewidth=0.6, linestyle=":")
    save(axes, SHOWN.values(), "round", "cliques.svg")


if __name__ == "__main__":
    main()
