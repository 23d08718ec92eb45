"""Makes the table of docs/understand/heterogeneity-limit.md: run it with a folder for results.

How well B² of the first rounds predicts how many attackers a training survives. For each split of
the digits: B² of an honest training, the largest f that it allows (`most_attackers`), and the
largest f for which the better of two rules keeps 80 % under the worst of five attacks. It bisects:
it is assumed that more attackers do more harm. Runs are stored in the folder that is named, and a
second start continues.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

from byzantium.guarantees import most_attackers
from byzantium.runs import Processes, Run, Store, execute

SPLITS = ("iid()", "dirichlet(1)", "dirichlet(0.1)", "by_label()")
RULES = ("GeometricMedian()", "AgnosticClipping(b=0.6)")
# Two stages, so that what falls in the first is not tried in the second.
STAGES = (
    ("InnerProduct(epsilon=10)", "BitFlip()"),
    ("Tuned(InnerProduct())", "Tuned(ALittleIsEnough())", "Mimic()"),
)
SEEDS = (10, 11)
SURVIVED = 80.0  # percent
BASE = Run(
    n=25, rounds=200, momentum=0.9, learning_rate=0.2, batch=32, evaluate_every=10, record=()
)
# The accuracy and the attack of the worst case of a rule.
Worst = tuple[float, str]


def worst_cases(asked: dict[str, int], store: Store) -> dict[str, tuple[float, str, str]]:
    """For each split and f: the accuracy of the better rule, its name and its worst attack."""
    worst: dict[tuple[str, str], Worst] = {}
    standing = [(split, rule) for split in asked for rule in RULES]
    for attacks in STAGES:
        jobs = {
            (split, rule, attack): [
                BASE.varied(rule=rule, f=asked[split], attack=attack, partition=split, seed=seed)
                for seed in SEEDS
            ]
            for split, rule in standing
            for attack in attacks
        }
        wanted = [job for group in jobs.values() for job in group]
        accuracies = {r.job: r.accuracy or 0.0 for r in execute(wanted, store, Processes(2))}
        for (split, rule, attack), group in jobs.items():
            found = fmean(accuracies[job] for job in group), attack
            worst[split, rule] = min(found, worst.get((split, rule), found))
        standing = [key for key in standing if worst[key][0] >= SURVIVED]
    return {
        split: max((worst[split, rule][0], rule, worst[split, rule][1]) for rule in RULES)
        for split in asked
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("heterogeneity-limit"))
    store = Store(parser.parse_args().folder)
    low = dict.fromkeys(SPLITS, 0)  # survived
    high = dict.fromkeys(SPLITS, (BASE.n + 1) // 2)  # not survived: half or more
    seen: dict[tuple[str, int], tuple[float, str, str]] = {}
    while asked := {s: (low[s] + high[s]) // 2 for s in SPLITS if high[s] - low[s] > 1}:
        for split, case in worst_cases(asked, store).items():
            seen[split, asked[split]] = case
            print(split, "f =", asked[split], case, flush=True)
            side = low if case[0] >= SURVIVED else high
            side[split] = asked[split]
    print("| split | B², first rounds | largest f allowed | largest f survived | one more |")
    print("| --- | --- | --- | --- | --- |")
    for split in SPLITS:
        runs = [BASE.varied(rule="Mean()", f=0, partition=split, seed=seed) for seed in SEEDS]
        values = [run.heterogeneity() for run in runs]
        allowed = [str(most_attackers(BASE.n, value)) for value in values]
        cells = [
            f"`{split}`",
            ", ".join(f"{value:.1f}" for value in values),
            ", ".join(dict.fromkeys(allowed)),
            *(_case(f, seen.get((split, f))) for f in (low[split], high[split])),
        ]
        print(f"| {' | '.join(cells)} |")


def _case(f: int, case: tuple[float, str, str] | None) -> str:
    if case is None:
        return str(f)
    accuracy, rule, attack = case
    return f"{f}: {accuracy:.1f} % (`{rule}`, `{attack}`)"


if __name__ == "__main__":
    main()
