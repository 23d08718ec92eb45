"""Makes the table of docs/understand/related.md: run it with a folder for results.

Each system of the paper's related work meets the suite of the benchmark, with the settings of the
benchmark: on iid and label-sorted digits, 5 of 25 attack. Runs are stored in the folder that is
named, and a second start continues.

Nothing was tuned to the suite: parameters are the defaults where there are any. The p of MARINA is
the batch divided by the samples of a worker, a group of MajorityVote bears two liars, and the block
of BlockGeometricMedian is a tenth of the columns. Three were chosen without attack and with other
seeds, 100 to 102, which `--choose` repeats. The size of SignVote and the penalty of RSA have the
best mean of the accuracies on iid and on label-sorted data. In ByzantineSGD, v is the largest
deviation of an honest vector on iid data, rounded up, and t_a and t_b follow from the formulas of
the paper (T = 200, n = 25, p = 0.05; D is the way of the model, divided by the learning rate).
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from statistics import fmean
from typing import Any

from byzantium.papers import recorded_ranking
from byzantium.papers.benchmarks import NOBODY, SETTINGS, SUITE, SUITES
from byzantium.runs import Processes, Run, Store, execute
from byzantium.tables import Row

SPLITS = {"iid": "iid()", "noniid": "by_label()"}
F = 5


def rsa(penalty: float) -> dict[str, Any]:
    """The rule and the worker method of RSA."""
    return {"rule": f"SignSum(penalty={penalty})", "worker": f"RSA(penalty={penalty})"}


MARINA = {"rule": "Bucketing(s=2) >> GeometricMedian()", "worker": "Marina(p=0.4)"}
METHODS: dict[str, dict[str, Any]] = {
    "SignVote(size=0.1)": {},
    "DivideAndConquer()": {},
    "LargestCluster()": {},
    "Safeguard()": {},
    "ByzantineSGD(v=1.3, t_a=8420, t_b=278)": {},
    "BlockGeometricMedian(share=0.1)": {},
    "MajorityVote(r=5) >> Mean()": {"redundancy": 5},
    "Zeno(), 10 root images per class": {"rule": "Zeno()", "root": 10},
    "RSA(penalty=0.01)": rsa(0.01),
    "SAGA(), GeometricMedian()": {"rule": "GeometricMedian()", "worker": "SAGA()"},
    "Marina(p=0.4), Bucketing(s=2) >> GeometricMedian()": MARINA,
}
# As exact as DRACO, which the tests prove, so it is run without attack alone.
DETOX = "MajorityVote(r=5) >> Bucketing(s=2) >> Median()"
# What is compared by --choose.
CANDIDATES: dict[str, dict[str, Any]] = {
    **{f"SignVote(size={size})": {} for size in (0.3, 0.1, 0.03, 0.01)},
    **{f"RSA(penalty={penalty})": rsa(penalty) for penalty in (0.03, 0.01, 0.003, 0.001)},
}
# Rules of the recorded benchmark, to compare with.
BESIDE = (
    "Mean()",
    "GeometricMedian()",
    "Bucketing(s=2) >> GeometricMedian()",
    "AgnosticClipping(b=0.6)",
)


def measured(
    methods: dict[str, dict[str, Any]],
    attacks: dict[str, str],
    store: Store,
    seeds: range,
    jobs: int,
) -> list[Row]:
    """What each method did under each attack."""
    cells = {
        (method, split, attack): [
            Run.of({**SETTINGS, "rule": method, **options, "f": F, "partition": SPLITS[split]})
            .varied(attack=text, seed=seed)
            for seed in seeds
        ]
        for method, options in methods.items()
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
        for method in methods
    ]  # fmt: skip


def undisturbed(row: Row) -> list[float]:
    """The accuracies without attack, on iid and label-sorted data."""
    found = [row.undisturbed(split, F) for split in SPLITS]
    return [accuracy for accuracy in found if accuracy is not None]


def choose(store: Store, jobs: int) -> None:
    """Print what the parameters of SignVote, RSA and ByzantineSGD follow from."""
    seeds = range(100, 103)
    for row in measured(CANDIDATES, NOBODY, store, seeds, jobs):
        accuracies = undisturbed(row)
        print(row.rule, *(f"{one:.1f}" for one in accuracies), f"mean {fmean(accuracies):.2f}")
    for seed in seeds:
        run = Run.of({**SETTINGS, "rule": "Mean()", "f": F, "attack": "NoAttack()", "seed": seed})
        training = run.varied(partition=SPLITS["iid"]).simulation()
        start, deviation, way = training.server.model_vector().clone(), 0.0, 0.0
        for _ in training:
            honest = training.sent[: training.honest]
            deviation = max(deviation, float((honest - honest.mean(dim=0)).norm(dim=1).max()))
            way = max(way, float((training.server.model_vector() - start).norm()))
        print(f"seed {seed}: v {deviation:.2f}, D {way / run.learning_rate:.1f}")


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--choose", action="store_true", help="show where parameters come from")
    given = parser.parse_args()
    store, seeds = Store(given.results), range(given.seeds)
    if given.choose:
        choose(store, given.jobs)
        return
    recorded = {row.rule: row for row in recorded_ranking().rows}
    rows = measured(METHODS, {**SUITES[SUITE], **NOBODY}, store, seeds, given.jobs)
    for row in [*rows, *(recorded[rule] for rule in BESIDE)]:
        cells = [row.rule]
        for split in SPLITS:
            worst = row.worst(split, F, list(SUITES[SUITE]))
            assert worst is not None
            spread = "" if math.isnan(worst.deviation) else f" ± {worst.deviation:.1f}"
            cells.append(f"{row.undisturbed(split, F):.1f}")
            cells.append(f"{worst.mean:.1f}{spread} ({worst.attack})")
        print(f"| {' | '.join(cells)} |")
    (detox,) = measured({DETOX: {"redundancy": 5}}, NOBODY, store, seeds, given.jobs)
    print("DETOX, without attack:", *(f"{one:.1f}" for one in undisturbed(detox)))


if __name__ == "__main__":
    main()
