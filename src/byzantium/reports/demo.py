"""The demonstration: five rules, with and without bucketing, under four attacks, on digits."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from byzantium.papers import bucketed
from byzantium.reports.palette import words
from byzantium.runs import Run, Store

RULES = {
    "mean": "Mean()",
    "krum": "Krum()",
    "median": "Median()",
    "rfa": "GeometricMedian()",
    "cclip": "CenteredClipping(radius=1, steps=3)",
}
ATTACKS = {
    "mimic": "Mimic(warmup=1)",
    "IPM": "InnerProduct(epsilon=0.1)",
    "ALIE": "ALittleIsEnough()",
    "far away": "ALittleIsEnough(z=100)",
}
Runs = dict[tuple[str, str, int], Run]


def runs(rounds: int = 300) -> Runs:
    """By rule, attack and s."""
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
    """The table that makes the point, and the point in a sentence."""
    value = {key: store.result(run).accuracy or 0.0 for key, run in runs.items()}
    worst = {
        (rule, s): min(value[rule, attack, s] for attack in ATTACKS)
        for rule in RULES
        for s in (1, 2)
    }
    table = Table(title="Test accuracy (%), alone → with bucketing (s = 2)", title_justify="left")
    table.add_column("rule")
    for attack in (*ATTACKS, "worst"):
        table.add_column(attack, justify="right")
    for rule in RULES:
        pairs = [(value[rule, attack, 1], value[rule, attack, 2]) for attack in ATTACKS]
        pairs.append((worst[rule, 1], worst[rule, 2]))
        table.add_row(words("aggregator", rule), *(_shaded(*pair) for pair in pairs))
    yield table
    gained = max(RULES, key=lambda rule: worst[rule, 2] - worst[rule, 1])
    name = words("aggregator", gained)
    yield (
        f"Vectors far away bring the mean to {value['mean', 'far away', 1]:.0f} %. Robust rules "
        "stand that, and are not enough: "
        f"the honest workers hold different labels, none is representative, and the worst of these "
        f"attacks brings {name} to {worst[gained, 1]:.0f} %. Behind bucketing it keeps "
        f"{worst[gained, 2]:.0f} % under all four."
    )


def _shaded(alone: float, mixed: float) -> Text:
    return Text.assemble(_coloured(alone), " → ", _coloured(mixed))


def _coloured(accuracy: float) -> tuple[str, str]:
    colour = "red" if accuracy < 60 else "yellow" if accuracy < 85 else "green"
    return f"{accuracy:.0f}", colour
