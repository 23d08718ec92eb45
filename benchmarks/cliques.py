"""Draws docs/cliques.svg: what two cliques with other digits learn from each other, by rule.

byzantium sweep benchmarks/cliques.toml --jobs 2 --out results-cliques
python benchmarks/cliques.py results-cliques
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np

from byzantium.reports.palette import ATTACKER, HONEST
from byzantium.reports.style import GREY
from byzantium.runs import LAST, Result, Run, Store

OUT = Path(__file__).parents[1] / "docs" / "cliques.svg"
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    found: dict[str, list[Result]] = defaultdict(list)
    for result in Store(parser.parse_args().results):
        assert isinstance(result.job, Run)
        found[result.job.rule].append(result)
    plt.rcParams.update({"font.size": 9.5, "svg.hashsalt": "byzantium"})
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(9.5, 2.5), sharey=True, layout="tight")
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
        axis.set(ylim=(0, 100))
        axis.set_title(SHOWN[rule], fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[len(SHOWN) // 2].set_xlabel("round")
    axes[0].set_ylabel("test accuracy (%)")
    axes[0].legend(frameon=False, loc="lower right", fontsize=7.5)
    figure.savefig(OUT, metadata={"Date": None})


if __name__ == "__main__":
    main()
