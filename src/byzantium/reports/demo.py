"""The demonstration: five rules, with and without bucketing, under four attacks, on digits."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from byzantium.papers import bucketed
from byzantium.reports.headline import headline
from byzantium.runs import Run, Store
from byzantium.tables import pivots
from byzantium.tables.terms import full_name

RULES = {
    "mean": "Mean()",
    "krum": "Krum()",
    "median": "Median()",
    "rfa": "GeometricMedian()",
    "cclip": "CenteredClipping(radius=1, steps=3)",
}
ATTACKS = {
    "Mimic": "Mimic(warmup=1)",
    "IPM": "InnerProduct(epsilon=0.1)",
    "ALIE": "ALittleIsEnough()",
    "far away": "ALittleIsEnough(z=100)",
}
Runs = dict[tuple[str, str, int], Run]


def runs(rounds: int = 300) -> Runs:
    """The 40 runs of the demonstration, by rule, attack and size of a bucket (1 or 2).

    - `rounds`: how many rounds each run has.

    >>> runs()["krum", "Mimic", 2].rule
    'Bucketing(s=2) >> Krum(f=5)'
    """
    return {
        (rule, attack, s): Run(
            rule=bucketed(s, RULES[rule]),
            attack=ATTACKS[attack],
            rounds=rounds,
            momentum=0.0,
        )
        for rule in RULES
        for attack in ATTACKS
        for s in (1, 2)
    }


def conclusion(runs: Runs, store: Store) -> Iterator[RenderableType]:
    """The result of the demonstration: a table for the terminal, and a few sentences.

    - `runs`: the runs.
    - `store`: where their results are.
    """
    results = {key: store.result(run) for key, run in runs.items()}
    value = {key: result.accuracy or 0.0 for key, result in results.items()}
    table = Table(title="Test accuracy (%), alone → with bucketing (s = 2)", title_justify="left")
    table.add_column("rule")
    for attack in ("worst", *ATTACKS):
        table.add_column(attack, justify="right")
    for rule in RULES:
        pairs = [(value[rule, attack, 1], value[rule, attack, 2]) for attack in ATTACKS]
        worst = (min(alone for alone, _ in pairs), min(mixed for _, mixed in pairs))
        table.add_row(full_name("aggregator", rule), *(_shaded(*pair) for pair in (worst, *pairs)))
    yield table
    point = headline(pivots(results.values()))
    yield (
        f"Vectors far away bring the mean to {value['mean', 'far away', 1]:.0f} %. Robust rules "
        "tolerate that, but are not enough: the honest workers hold different digits, and none of "
        f"them represents the others. {point.sentence if point else ''}"
    )


def _shaded(alone: float, mixed: float) -> Text:
    return Text.assemble(_colored(alone), " → ", _colored(mixed))


def _colored(accuracy: float) -> tuple[str, str]:
    color = "red" if accuracy < 60 else "yellow" if accuracy < 85 else "green"
    return f"{accuracy:.0f}", color
