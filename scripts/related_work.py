"""Makes the table of docs/understand/related.md: run it with a folder for results.

Each system of the paper's related work meets the suite of the benchmark, with the settings of the
benchmark: on iid and label-sorted digits, 5 of 25 attack. Nothing was tuned to the suite. In
ByzantineSGD, v is the largest deviation of an honest vector in a training on iid data without
attack, and t_a and t_b follow from the formulas of the paper (T = 200, n = 25, p = 0.05, D = 25).
The penalty of RSA is the best of 0.1, 0.01 and 0.001 on iid data without attack and with another
seed. Runs are stored in the folder that is named, and a second start continues.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from byzantium.papers import recorded_ranking
from byzantium.papers.benchmarks import NOBODY, SETTINGS, SUITE, SUITES
from byzantium.runs import Processes, Run, Store, execute
from byzantium.tables import Row

SPLITS = {"iid": "iid()", "noniid": "by_label()"}
F = 5
RSA = {"rule": "SignSum(penalty=0.01)", "worker": "RSA(penalty=0.01)"}
MARINA = {"rule": "Bucketing(s=2) >> GeometricMedian()", "worker": "Marina(p=0.4)"}
METHODS: dict[str, dict[str, Any]] = {
    "SignVote(size=0.01)": {},
    "DivideAndConquer()": {},
    "LargestCluster()": {},
    "Safeguard()": {},
    "ByzantineSGD(v=1.1, t_a=5900, t_b=235)": {},
    "BlockGeometricMedian(share=0.1)": {},
    "MajorityVote(r=5) >> Mean()": {"redundancy": 5},
    "MajorityVote(r=5) >> Bucketing(s=2) >> Median()": {"redundancy": 5},
    "Zeno(), 10 root images per class": {"rule": "Zeno()", "root": 10},
    "RSA(penalty=0.01)": RSA,
    "SAGA(), GeometricMedian()": {"rule": "GeometricMedian()", "worker": "SAGA()"},
    "Marina(p=0.4), Bucketing(s=2) >> GeometricMedian()": MARINA,
}
# Rules of the recorded benchmark, to compare with.
BESIDE = ("Mean()", "GeometricMedian()", "AgnosticClipping(b=0.6)")


def measured(store: Store, seeds: range, jobs: int) -> list[Row]:
    """What each method did under each attack."""
    attacks = {**SUITES[SUITE], **NOBODY}
    cells = {
        (method, split, attack): [
            Run.of({**SETTINGS, "rule": method, **options, "f": F, "partition": SPLITS[split]})
            .varied(attack=text, seed=seed)
            for seed in seeds
        ]
        for method, options in METHODS.items()
        for split in SPLITS
        for attack, text in attacks.items()
    }  # fmt: skip
    each = [run for runs in cells.values() for run in runs]
    accuracies = {r.job: r.accuracy or 0.0 for r in execute(each, store, Processes(jobs))}
    return [
        Row(method, method, 0, {
            (split, F): {
                attack: tuple(accuracies[run] for run in cells[method, split, attack])
                for attack in attacks
            }
            for split in SPLITS
        })
        for method in METHODS
    ]  # fmt: skip


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    recorded = {row.rule: row for row in recorded_ranking().rows}
    rows = measured(Store(given.results), range(given.seeds), given.jobs)
    for row in [*rows, *(recorded[rule] for rule in BESIDE)]:
        cells = [row.rule]
        for split in SPLITS:
            worst = row.worst(split, F, list(SUITES[SUITE]))
            assert worst is not None
            spread = "" if math.isnan(worst.deviation) else f" ± {worst.deviation:.1f}"
            cells.append(f"{row.undisturbed(split, F):.1f}")
            cells.append(f"{worst.mean:.1f}{spread} ({worst.attack})")
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
