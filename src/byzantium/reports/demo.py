"""The demonstration: seven rules under four attacks and none, on digits sorted by label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from byzantium.learning import metrics
from byzantium.runs import Run, Store

ROOT = 10
RULES = {
    "Mean": "Mean()",
    "Krum": "Krum()",
    "GeometricMedian": "GeometricMedian()",
    "Bucketing >> GeometricMedian": "Bucketing(s=2) >> GeometricMedian()",
    "AgnosticClipping": "AgnosticClipping(b=0.6)",
    "RankClipping >> SpectralFilter": "RankClipping() >> SpectralFilter()",
    "RootMatching": "RootMatching()",
}
ATTACKS = {
    "none": "NoAttack()",
    "Mimic": "Mimic(warmup=1)",
    "IPM": "InnerProduct(epsilon=0.1)",
    "strong IPM": "InnerProduct(epsilon=10)",
    "collapse": "Adaptive('collapse')",
}
Runs = dict[tuple[str, str], Run]


def runs(rounds: int = 300) -> Runs:
    """The 35 runs of the demonstration, by rule and attack.

    >>> runs()["Krum", "Mimic"].rule
    'Krum(f=5)'
    """
    return {
        (rule, attack): Run(
            rule=text,
            attack=ATTACKS[attack],
            rounds=rounds,
            momentum=0.9,
            root=ROOT if text == "RootMatching()" else 0,
        )
        for rule, text in RULES.items()
        for attack in ATTACKS
    }


def conclusion(runs: Runs, store: Store) -> Iterator[RenderableType]:
    """The result of the demonstration: a table for the terminal, and a few sentences."""
    from byzantium.guarantees import describe_limit

    results = {key: store.result(run) for key, run in runs.items()}
    value = {key: result.accuracy or 0.0 for key, result in results.items()}
    table = Table(title="Test accuracy (%), 5 of 25 workers attack", title_justify="left")
    table.add_column("rule")
    worst = {rule: min(value[rule, attack] for attack in ATTACKS) for rule in RULES}
    for title in (*ATTACKS, "worst"):
        table.add_column(title, justify="right")
    for rule in RULES:
        cells = [*(value[rule, attack] for attack in ATTACKS), worst[rule]]
        colors = ("red" if one < 60 else "yellow" if one < 85 else "green" for one in cells)
        table.add_row(rule, *(Text(f"{a:.0f}", b) for a, b in zip(cells, colors, strict=True)))
    yield table
    b2 = metrics.early_heterogeneity(results["Mean", "none"].metrics)
    limit = "" if b2 is None else f"{describe_limit(25, 5, {'': [b2]}, 'here it is')}. "
    yield _sentences(value, worst, limit)


def _sentences(
    value: Mapping[tuple[str, str], float], worst: Mapping[str, float], limit: str
) -> str:
    bucketed, median = "Bucketing >> GeometricMedian", "GeometricMedian"
    best = max(worst[rule] for rule in RULES if rule != "RootMatching")
    return (
        f"Large vectors bring the mean to {value['Mean', 'strong IPM']:.0f} %. Krum looks for one "
        "representative worker. The honest workers hold different digits, and none of them "
        f"represents the others: Krum has {value['Krum', 'none']:.0f} % even if nobody "
        f"attacks. Buckets before the rule help against attackers that look ordinary: under IPM "
        f"the geometric median has {value[median, 'IPM']:.0f} % alone and "
        f"{value[bucketed, 'IPM']:.0f} % behind buckets. Against strong attacks of so many "
        f"workers they do not ({value[bucketed, 'collapse']:.0f} %). {limit}Beyond that limit no "
        "rule that sees vectors alone can promise anything; the best of them here keeps "
        f"{best:.0f} %. Ten images of each class at the server keep "
        f"{worst['RootMatching']:.0f} %. The price, if nobody attacks: "
        f"{value['RootMatching', 'none']:.0f} % instead of the mean's "
        f"{value['Mean', 'none']:.0f} %."
    )
