"""The table of a sweep: for each rule and attack the mean accuracy over seeds, momentum 0 / 0.9.

byzantium sweep benchmarks/clipping.toml --out clipping
python benchmarks/clipping.py clipping
"""

from __future__ import annotations

import sys
from collections import defaultdict
from statistics import mean

from byzantium.runs import Run, Store

NAMES = {
    "BitFlip()": "bit flip",
    "LabelFlip()": "label flip",
    "Mimic(warmup=1)": "mimic",
    "InnerProduct()": "IPM",
    "ALittleIsEnough()": "ALIE",
    "ALittleIsEnough(z=100)": "far away",
    "Tuned(attack=InnerProduct(), both=True)": "tuned IPM",
    "Tuned(attack=ALittleIsEnough(), both=True)": "tuned ALIE",
    "InnerProduct(epsilon=10)": "strong IPM",
}


def table(folder: str) -> str:
    """A Markdown table of the complete rules; a run that diverged counts as 10 %, like guessing."""
    accuracies: defaultdict[tuple[str, str, float], list[float]] = defaultdict(list)
    for result in Store(folder):
        run = result.job
        if isinstance(run, Run) and result.done:
            accuracy = 10.0 if result.accuracy is None else result.accuracy
            accuracies[run.rule, run.attack, run.momentum].append(accuracy)
    attacks = [attack for attack in NAMES if attack in {attack for _, attack, _ in accuracies}]
    momenta = sorted({momentum for _, _, momentum in accuracies})
    seeds = max(map(len, accuracies.values()))
    rules = {
        rule
        for rule, _, _ in list(accuracies)
        if all(len(accuracies[rule, attack, m]) == seeds for attack in attacks for m in momenta)
    }
    head = " | ".join(NAMES[attack] for attack in attacks)
    lines = [f"| | {head} | worst |", "| --- " * (len(attacks) + 2) + "|"]
    rows = []
    for rule in rules:
        cells = [[mean(accuracies[rule, attack, m]) for m in momenta] for attack in attacks]
        worst = min(value for cell in cells for value in cell)
        texts = [" / ".join(f"{value:.1f}" for value in cell) for cell in cells]
        rows.append((-worst, f"| `{rule}` | {' | '.join(texts)} | {worst:.1f} |"))
    return "\n".join([*lines, *(row for _, row in sorted(rows))])


if __name__ == "__main__":
    print(table(sys.argv[1]))
